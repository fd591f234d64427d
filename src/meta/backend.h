/* The meta backend's state, shared by backend.c, cache.c, members.c, run.c, copies.c, inputs.c,
 * stats.c, key.c, carry.c and check.c. */
#ifndef SHEAF_META_BACKEND_H
#define SHEAF_META_BACKEND_H

#include <pthread.h>
#include <stdatomic.h>

#include "backend/optional.h"
#include "meta/meta_impl.h"

enum { META_MAX_PROGRAMS = 1024 };

struct meta_slot { /* of the tensor-to-number map */
    const struct sheaf_tensor *tensor;
    uint64_t number;
};

struct meta_hash { /* of a tensor's value */
    uint64_t hash;
    const char *name;
};

struct meta_member { /* a local one */
    struct meta_backend *backend;
    int local;
    sheaf_backend_t device_backend;
    struct meta_shared shared;
    sheaf_gallocr_t galloc;
    /* called between runs; NULL: its device captures nothing, or may while members run */
    sheaf__capture_fn *capture;
    /* of its device; NULL: it leaves all tensors as they were written */
    sheaf__as_written_fn *as_written;
    bool staged; /* its memory is not the host's: spans and transfers go through its queue */
    struct meta_staging in, out;
    uint64_t compute_ns, n_started;
    uint64_t stalled_before; /* the group's counter at the last reset */
    uint64_t ticket;         /* of the collective that was started last; 0: none in this compute */
    enum sheaf_status status, failure; /* of the run; of an op that did not end it */
    char error[1024];
    struct meta_hash *hashes; /* check mode */
    size_t n_hashes, cap_hashes;
    pthread_t thread;
    bool has_thread;
};

struct meta_backend {
    struct sheaf_backend base;
    struct meta_device *dev;
    struct meta_backend *next;      /* of the device's */
    struct meta_member *members;    /* [n_local] */
    struct sheaf__devcomm *devcomm; /* NULL: collectives go through host memory */
    char transport[192];
    struct meta_program *programs[META_MAX_PROGRAMS];
    int n_programs;
    bool has_gone; /* the weights of a program that is not empty were freed */
    struct meta_carry **carries;
    size_t n_carries, cap_carries;
    uint64_t generation, clock;
    bool check, lives_on;
    struct { /* what a tensor's slices are given to */
        const struct sheaf_tensor *tensor;
        int node; /* its number in the graph that is computed; -1: it is not there */
        sheaf_backend_meta_follow_fn fn;
        void *user;
    } follow;
    bool uploads; /* of inputs may be under way: some were submitted, and no run has ended since */
    struct meta_slot *map;
    size_t n_map;
    uint64_t n_computes, n_plans;
    struct sheaf_comm_stats baseline[SHEAF_COMM_KIND_COUNT]; /* at the last reset */

    /* hand-over to the member threads */
    struct meta_program *program; /* that runs */
    atomic_uint_fast64_t run_number;
    atomic_int n_running;
    atomic_bool quit;
    pthread_mutex_t lock;
    pthread_cond_t start, done;
};

/* ---- backend.c ---- */
/* NULL, with a text, if it is the backend of another device. */
struct meta_backend *sheaf__meta_backend_of(sheaf_backend_t backend);

/* ---- cache.c ---- */
/* The program of the graph, compiled if there is none. Collective in that case. */
enum sheaf_status sheaf__meta_find_program(struct meta_backend *b, const struct sheaf_cgraph *graph,
                                           struct meta_program **out);
/* Gives the program memory, and points it at the graph's inputs and at where its views are. */
enum sheaf_status sheaf__meta_prepare(struct meta_backend *b, struct meta_program *p,
                                      const struct sheaf_cgraph *graph);

/* ---- members.c ---- */
/* Runs all parts; the status and text of the member that failed first. */
enum sheaf_status sheaf__meta_run_program(struct meta_backend *b, struct meta_program *p);
/* The thread of a member other than the first; arg is the member. */
void *sheaf__meta_member_thread(void *arg);
/* Takes the memory that instructions need besides that of tensors, before the program's first run and
 * again once it was given back: a device may wait for all of its work to give or take memory, and in
 * a run that may be a collective which another local member is still to join. */
enum sheaf_status sheaf__meta_reserve(struct meta_backend *b, struct meta_program *p);

/* ---- run.c ---- */
/* On the member's own thread. */
enum sheaf_status sheaf__meta_run_part(struct meta_member *me, struct meta_part *part);
/* Waits until the member's queue is empty. */
enum sheaf_status sheaf__meta_drain(struct meta_member *me);
/* Waits for a started collective; ticket 0: none. */
enum sheaf_status sheaf__meta_await_collective(struct meta_member *me, uint64_t ticket);

/* ---- copies.c ---- */
/* Makes an INSTR_COPY. `in` is the value of instr->in in host memory, with the tensor's strides;
 * `out` is the memory of instr->out, or room for its value, which then is on its way to the
 * device. */
enum sheaf_status sheaf__meta_copy(struct meta_member *me, const struct meta_instr *instr,
                                   const void *in, void *out);

/* ---- inputs.c ---- */
enum sheaf_status sheaf__meta_set_tensors(sheaf_backend_t backend,
                                          const struct sheaf_tensor_write *writes, size_t n);
/* Until no upload of inputs is under way. A run ends with empty queues. */
enum sheaf_status sheaf__meta_synchronize(sheaf_backend_t backend);

/* ---- key.c ---- */
/* A hash of which weights and caches the graph reads, and of the states of earlier results. Fails if
 * a leaf is not where it must be. */
enum sheaf_status sheaf__meta_leaves_key(const struct meta_backend *b, const struct sheaf_cgraph *g,
                                         uint64_t *key);
/* A hash of that and of the graph's structure; views that move do not count by their offsets. The
 * same graph has other keys in other processes. */
enum sheaf_status sheaf__meta_graph_key(struct meta_backend *b, const struct sheaf_cgraph *g,
                                        uint64_t leaves, uint64_t *key);

/* ---- carry.c ---- */
/* Copies the slices of a node's value out of the compute buffers, which the next program uses.
 * dry: makes room only. */
enum sheaf_status sheaf__meta_carry(struct meta_backend *b, struct meta_program *p,
                                    struct sheaf_tensor *node, const struct meta_tensor *from,
                                    bool dry);
bool sheaf__meta_is_carried(const struct sheaf_tensor *t);
/* The tensor's copy will not be read again. */
void sheaf__meta_release(sheaf_backend_t backend, const struct sheaf_tensor *tensor);
void sheaf__meta_free_carries(struct meta_backend *b);

/* ---- check.c ---- */
/* Notes a hash of the tensor's value, which `value` holds in host memory; flag: the
 * META_FLAG_CHECK_* that asked for it. */
enum sheaf_status sheaf__meta_add_hash(struct meta_member *me, const struct sheaf_tensor *t,
                                       const void *value, int flag);
/* Collective: are the results that all members share the same everywhere? */
enum sheaf_status sheaf__meta_compare_hashes(struct meta_backend *b, const struct meta_program *p);

#endif
