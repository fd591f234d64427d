/* The engine's own structures, shared by engine.c, objects.c and programs.c. */
#ifndef SHEAF_GGML_ENGINE_IMPL_H
#define SHEAF_GGML_ENGINE_IMPL_H

#include "base/array.h"
#include "ggml/engine.h"

struct gg_group { /* objects that were bound together */
    uint64_t number;
    struct sheaf_context *ctx;
    sheaf_backend_buffer_t buffer;
};

struct gg_object {
    struct sheaf_tensor *tensor; /* NULL: the number is free */
    uint64_t group;
};

struct gg_binding { /* during BIND */
    const struct sheaf_tensor *tensor;
    struct sheaf_split_state *state;
};

struct gg_program {
    uint64_t number;
    struct gg_graph g;
    sheaf_gallocr_t galloc;
    uint32_t n_inputs, n_outputs;
    struct sheaf_tensor **inputs, **outputs;
    uint32_t n_objects;
    uint64_t *groups; /* [n_objects] of the objects that it reads and writes */
};

struct gg_engine {
    sheaf_backend_dev_t device;
    sheaf_backend_t backend;
    int n_members;
    bool mixed;
    uint64_t sequence;
    struct gg_object *objects;
    size_t n_objects, cap_objects;
    struct gg_group *groups;
    size_t n_groups, cap_groups;
    struct gg_program **programs;
    size_t n_programs, cap_programs;
    struct gg_binding *binding;
    size_t n_binding;
    uint8_t *payload;
    size_t payload_cap;
    uint64_t n_runs, n_graphs, n_inputs, input_bytes;
};

void gg_group_free(struct gg_group *group);
void gg_program_free(struct gg_program *program); /* accepts NULL */
struct sheaf_tensor *gg_object_tensor(void *engine, uint32_t object);
/* Drops the programs that use objects of the group. */
void gg_programs_forget_group(struct gg_engine *e, uint64_t group);

enum sheaf_status gg_execute_bind(struct gg_engine *e, const struct gg_command *c,
                                  const uint8_t *payload);
enum sheaf_status gg_execute_transfer(struct gg_engine *e, const struct gg_command *c,
                                      const uint8_t *payload, void *result);
enum sheaf_status gg_execute_load(struct gg_engine *e, const struct gg_command *c,
                                  const uint8_t *payload);
enum sheaf_status gg_execute_free(struct gg_engine *e, const struct gg_command *c);
enum sheaf_status gg_execute_graph(struct gg_engine *e, const struct gg_command *c,
                                   const uint8_t *payload);
enum sheaf_status gg_execute_drop(struct gg_engine *e, const struct gg_command *c);
enum sheaf_status gg_execute_run(struct gg_engine *e, const struct gg_command *c,
                                 const uint8_t *payload, void *result);
enum sheaf_status gg_execute_ask(struct gg_engine *e, const struct gg_command *c,
                                 const uint8_t *payload);

#endif
