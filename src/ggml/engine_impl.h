/* The engine's own structures, shared by engine.c (devices and the channel of commands), objects.c
 * and load.c (weights and caches), and programs.c (graphs). */
#ifndef SHEAF_GGML_ENGINE_IMPL_H
#define SHEAF_GGML_ENGINE_IMPL_H

#include "base/array.h"
#include "ggml/engine.h"

struct gg_batch {    /* objects that were bound together */
    uint64_t buffer; /* number of the buffer of ggml that they lie in */
    struct sheaf_context *ctx;
    sheaf_backend_buffer_t memory;
};

struct gg_object {
    struct sheaf_tensor *tensor; /* NULL: the number is free */
    uint64_t buffer;
    size_t device;
    bool goes;                       /* it is to be freed, and programs that use it before */
    const struct sheaf_context *ctx; /* of those that were bound together */
};

struct gg_binding { /* an object that a BIND makes */
    size_t object;  /* its number */
    struct sheaf_tensor *tensor;
    struct sheaf_split_state *state;
};

struct gg_report { /* of a rank, about a run */
    int32_t status;
    char text[252];
};

struct gg_program {
    uint64_t number;
    struct gg_report report; /* of its last run */
    size_t device;
    struct gg_graph g;
    sheaf_gallocr_t galloc;
    uint32_t n_inputs, n_outputs;
    struct sheaf_tensor **inputs, **outputs;
    bool told; /* what its plan gathers, to the log */
};

struct gg_ranks { /* a group of ranks, as one device */
    const struct gg_engine *engine;
    sheaf_backend_dev_t device;
    sheaf_backend_t backend;
    int n_members;
    size_t *member; /* [n_members] among those of all devices */
    bool *part;     /* [ranks] drives a member */
    size_t *report; /* [ranks] bytes of its report */
};

struct gg_engine {
    struct gg_ranks *devices;
    size_t n_devices, n_members;
    struct gg_report *reports; /* [ranks] */
    struct gg_memory_now *own; /* [n_members] of this rank's devices, while they are asked */
    size_t *own_bytes;         /* [ranks] that each rank has there */
    uint64_t sequence;
    struct gg_object *objects;
    size_t n_objects, cap_objects; /* n_objects: the most so far */
    struct gg_batch *batches;
    size_t n_batches, cap_batches;
    struct gg_program **programs;
    size_t n_programs, cap_programs;
    struct gg_binding *binding; /* [n_binding], while a BIND is executed */
    size_t n_binding;
    uint8_t *payload;
    size_t payload_cap;
    uint64_t n_runs, n_graphs, n_inputs, input_bytes, n_moves, sent_bytes; /* sent: of weights */
};

void gg_batch_free(struct gg_batch *batch);
void gg_program_free(struct gg_program *program); /* accepts NULL */
struct sheaf_tensor *gg_object_tensor(void *engine, uint32_t object);
/* Drops the programs that use objects which go. */
void gg_programs_let_go(struct gg_engine *e);

/* Ends the job if `st` is a failure of this rank alone, after which ranks would not go on with the
 * same commands. Returns st: with one rank it is an ordinary failure. */
enum sheaf_status gg_or_end(enum sheaf_status st);
/* NULL: there is none. *at (may be NULL): its place in e->programs. */
struct gg_program *gg_program_find(const struct gg_engine *e, uint64_t number, size_t *at);

/* ---- a function for each kind of command; a payload is NULL on a rank that it is not for ---- */

/* objects.c */
enum sheaf_status gg_execute_bind(struct gg_engine *e, const struct gg_command *c,
                                  const uint8_t *payload);
enum sheaf_status gg_execute_transfer(struct gg_engine *e, const struct gg_command *c,
                                      const uint8_t *payload, void *result);
enum sheaf_status gg_execute_free(struct gg_engine *e, const struct gg_command *c);
enum sheaf_status gg_execute_release(struct gg_engine *e, const struct gg_command *c);
/* load.c */
enum sheaf_status gg_execute_load(struct gg_engine *e, const struct gg_command *c,
                                  const uint8_t *payload, const struct gg_source *mine);
/* programs.c */
enum sheaf_status gg_execute_graph(struct gg_engine *e, const struct gg_command *c,
                                   const uint8_t *payload);
enum sheaf_status gg_execute_drop(struct gg_engine *e, const struct gg_command *c);
enum sheaf_status gg_execute_run(struct gg_engine *e, const struct gg_command *c,
                                 const uint8_t *payload, void *result);
enum sheaf_status gg_execute_fetch(struct gg_engine *e, const struct gg_command *c, void *result);
enum sheaf_status gg_execute_ask(struct gg_engine *e, const struct gg_command *c,
                                 const uint8_t *payload);

#endif
