/* Shared by the files of driver.h. All of it belongs to the call that is under way. */
#ifndef SHEAF_GGML_DRIVER_IMPL_H
#define SHEAF_GGML_DRIVER_IMPL_H

#include <stdatomic.h>

#include "ggml/driver.h"
#include "ggml/groups.h"

/* An input of a program. */
struct gg_input {
    uint8_t *sent; /* [bytes] what the ranks have */
    size_t bytes;
    bool is_sent, written; /* written: by the program itself */
};

struct gg_use { /* an object in a program */
    uint64_t buffer;
    int64_t object;
};

/* A program that all ranks have. */
struct gg_sent_program {
    uint64_t number, last_use;
    size_t device;
    uint64_t hash;
    struct gg_bytes message; /* outputs and graph: its identity */
    size_t n_records, n_results;
    struct gg_input *inputs;
    size_t n_inputs;
    struct gg_use *uses; /* [n_uses] */
    size_t n_uses;
    uint64_t *offsets; /* [n_offsets] of its views, as the ranks have them */
    size_t n_offsets;
};

/* A graph that was computed: its tensors, while ggml has not built another. */
struct gg_recent {
    uint64_t uid;
    const struct gg_tensor *first, *last;
    int n_nodes;
    uint64_t program, last_use;
    const struct gg_tensor **inputs, **results;
    uint64_t *offsets; /* of its views, as many as the program has */
    size_t n_inputs, n_results, n_offsets, cap_inputs, cap_results, cap_offsets;
};

/* Where the tensors of a graph are on rank 0, in the order of the program. */
struct gg_places {
    void **inputs, **results;
    uint64_t *offsets; /* of its views */
    size_t n_inputs, n_results, n_offsets, cap_inputs, cap_results, cap_offsets;
};

/* A run of a device without rank 0: it goes on after the call that began it. */
struct gg_pending {
    uint64_t program;
    void **addresses; /* [n] of its results */
    size_t n, cap;
    uint64_t turn; /* in which it began (later.c) */
    /* numbers of the last run that the program wants, that has begun, and whose results are here */
    _Atomic uint64_t asked, run, fetched;
};

enum { GG_MAX_PROGRAMS = 64, GG_MAX_RECENT = 64, GG_MAX_INPUT_BYTES = 256 << 20 };

struct gg_driver {
    const struct gg_host *host;
    struct gg_engine *engine;
    struct gg_encoder encoder;
    struct gg_numbers numbers;
    uint64_t next_program, clock;
    struct gg_sent_program *programs[GG_MAX_PROGRAMS];
    size_t n_programs;
    struct gg_recent recent[GG_MAX_RECENT];
    struct gg_bytes run; /* payload of RUN */
    struct gg_places places;
    struct gg_pending pending[GG_MAX_GROUPS];
    uint64_t turn; /* how often rank 0 has computed with its own group */
};
extern struct gg_driver gg_driver;

/* Sends a command to all ranks and executes it here (gg_engine_do), after the results that it may
 * need have been fetched. */
enum sheaf_status gg_send(struct gg_command *command, const void *payload, void *result);
/* Gives the regions of this graph, the last that was encoded, memory and data on all ranks. */
enum sheaf_status gg_bind_regions(const struct gg_cgraph *graph);
/* Brings the region's bytes back into the shadow, from the ranks or a file; its object and the
 * programs that use it are gone then. */
enum sheaf_status gg_unbind_region(struct gg_memory *m, struct gg_region *r);
/* The bytes of an unbound region, from its file or the shadow. */
enum sheaf_status gg_region_bytes(const struct gg_memory *m, const struct gg_region *r,
                                  size_t offset, void *out, size_t size);
/* The program of a graph, which all ranks have then, and the tensors of this graph. *program NULL:
 * there is nothing to compute. */
enum sheaf_status gg_find_program(size_t device, const struct gg_cgraph *g,
                                  struct gg_sent_program **program, struct gg_recent **graph);
enum sheaf_status gg_run_graph(size_t device, const struct gg_cgraph *graph);
/* Runs a program with these inputs. Waits for the device's run that is under way. */
enum sheaf_status gg_run(struct gg_sent_program *p, const struct gg_places *at);
enum sheaf_status gg_places_of(const struct gg_recent *r, struct gg_places *out);
void gg_places_free(struct gg_places *at);
/* The results of the device's run that is under way, if there is one. */
enum sheaf_status gg_fetch(size_t device);

/* ---- rooms.c: memory of the devices ---- */

/* Asks all ranks, if none computes, what memory their devices have. */
enum sheaf_status gg_measure_all(void *unused);
/* Asks them in any case, and warns if the first host or device has less than needs [members], bytes
 * that each member of the device is to take. */
enum sheaf_status gg_check_room(size_t device, const double *needs);

/* ---- later.c: what waits for the run of another device ---- */

bool gg_has_later(size_t device);
/* The bytes of a result of device `from` go to `to` in a buffer of the device when they are there,
 * before what is asked of that device from now on. False: nothing was done, since they are there, or
 * there is no memory to keep them. */
bool gg_later_copy(size_t device, void *to, size_t from, const void *src, size_t n);
/* Behind what waits for the device. */
enum sheaf_status gg_later_run(const struct gg_sent_program *p, const struct gg_recent *r);
/* The device's last run was fetched. */
void gg_later_fetched(size_t device);
/* The ranks of rank 0's device have computed: others that began before have, about, too. */
void gg_later_turn(void);
/* Waits until this run of the device, and all before it, are fetched. */
enum sheaf_status gg_later_wait(size_t device, uint64_t run);
/* The same, and, if the run is the last, until the copies behind it are made. */
enum sheaf_status gg_later_wait_device(size_t device, uint64_t run);
/* All that was asked of all devices; inside of a run that waited, what has begun. */
enum sheaf_status gg_later_wait_all(void);
void gg_later_forget(void);

/* Bytes that buffers of the device are still to take on its ranks (gg_unbound_bytes). */
size_t gg_bytes_to_come(size_t device);
/* The programs that use the object, or any object of the buffer, are gone on all ranks. */
void gg_forget_buffer(uint64_t buffer);
void gg_forget_object(int64_t object);
void gg_forget_all(void);
struct gg_sent_program *gg_program_of(uint64_t number); /* NULL: it is gone */

#endif
