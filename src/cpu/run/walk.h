/* What walk.c and backend.c share: a backend, and what a graph takes to run on it. */
#ifndef SHEAF_CPU_RUN_WALK_H
#define SHEAF_CPU_RUN_WALK_H

#include <pthread.h>
#include <stdatomic.h>

#include "cpu/device/device.h"
#include "cpu/device/profile.h"
#include "cpu/device/queue.h"
#include "cpu/ops/ops.h"
#include "sheaf/cpu.h"

struct cpu_failure {
    pthread_mutex_t lock;
    enum sheaf_status status;
    int ith; /* the lowest that failed speaks */
    char text[512];
};

struct cpu_backend {
    struct sheaf_backend base;
    struct sheaf__cpu_device *device;
    struct sheaf__cpu_team *team;
    sheaf_abort_fn abort;
    void *abort_data;
    bool reference;
    char *work;
    size_t work_size;
    size_t products;                    /* bytes of it, the first, that only products use */
    struct sheaf__cpu_queue *queue;     /* NULL until something was submitted */
    struct sheaf__cpu_profile *profile; /* NULL: not asked for */
    /* of the compute that runs */
    const struct sheaf_cgraph *graph;
    _Atomic int stop_phase;
    struct cpu_failure failure;
};

/* What a graph takes to run. */
struct cpu_demand {
    size_t products, work; /* bytes of work memory: of products, of other ops */
    bool team;             /* some node is worth the whole team */
    bool repacks;          /* products may find weights that are to be repacked first */
    bool as_written;       /* other nodes use what may be repacked */
};

/* Elements below which a node is not worth a barrier: a barrier takes about as long as 4096
 * elements of an elementwise op. */
enum { SHEAF__CPU_SMALL = 4096 };

/* Checks every node and tells what the graph demands on nth threads. */
enum sheaf_status sheaf__cpu_check_graph(const struct cpu_backend *b,
                                         const struct sheaf_cgraph *graph, int nth,
                                         struct cpu_demand *demand);
/* Runs a graph that was checked for the team's size. *demand: what it takes from now on. */
enum sheaf_status sheaf__cpu_run_checked(struct cpu_backend *b, const struct sheaf_cgraph *graph,
                                         struct cpu_demand *demand);

#endif
