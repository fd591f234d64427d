/* The job: its ranks, hosts and devices. Without a launcher the world is one rank, and MPI is not
 * started.
 *
 * SPMD: every rank makes the same calls in the same order. All calls from one thread, unless said
 * otherwise. Every wait has a deadline (SHEAF_TIMEOUT_MS, default 60000; start-up
 * SHEAF_TIMEOUT_START_MS, default 120000); when it passes, when a peer reports a failure, or when a
 * peer makes another call, the call returns an error that names the rank, its host and what was
 * waited for, and every later call fails at once. */
#ifndef SHEAF_WORLD_H
#define SHEAF_WORLD_H

#include "sheaf/backend.h"

#ifdef __cplusplus
extern "C" {
#endif

struct sheaf_world_params {
    size_t size;    /* sizeof(struct sheaf_world_params) */
    int timeout_ms; /* 0: SHEAF_TIMEOUT_MS or its default */
};

/* Starts MPI if a launcher (mpirun, srun) started this process. params may be NULL. Call once, from
 * the main thread, before any device is listed, so that ranks of one host can share its cores. */
enum sheaf_status sheaf_world_init(const struct sheaf_world_params *params);
/* Ends MPI. After an error it waits for nobody and leaves MPI as it is: print, call this, and
 * return non-zero from main; the launcher then ends the other ranks. A rank that gives up alone
 * calls sheaf_world_abort first. Without an error it ends with a barrier; if that fails, it says so
 * on standard error. Safe to call twice or without init. */
void sheaf_world_finalize(void);

int sheaf_world_rank(void);
int sheaf_world_size(void);
int sheaf_world_n_hosts(void);
/* Host name and host number (0..n_hosts-1, by first rank) of a rank. NULL / -1 outside. */
const char *sheaf_world_host_name(int rank);
int sheaf_world_host_index(int rank);
int sheaf_world_local_rank(void); /* number among the ranks of this host */
int sheaf_world_local_size(void);

/* All devices of the job, in the same order on every rank: by rank, then as the registry of that
 * rank lists them. Local ones are the registry's own objects, remote ones are stand-ins with name,
 * memory and type ("CPU0@1"). The first call is collective; the array is owned by the world. */
enum sheaf_status sheaf_world_devices(const sheaf_backend_dev_t **devices, size_t *n);
/* The rank that drives a device. */
int sheaf_world_device_rank(sheaf_backend_dev_t dev);

/* ---- control messages (small; not for tensors). `what` names the step in error messages. ---- */
enum sheaf_status sheaf_world_barrier(const char *what);
/* Waits for the root only; that ranks name different roots shows in the next exchange of all. */
enum sheaf_status sheaf_world_broadcast(void *data, size_t size, int root, const char *what);
/* recv holds size() * size bytes, in rank order, on every rank. */
enum sheaf_status sheaf_world_all_gather(const void *send, size_t size, void *recv,
                                         const char *what);
/* As all_gather but with sizes[rank] bytes a rank. */
enum sheaf_status sheaf_world_all_gather_v(const void *send, void *recv, const size_t *sizes,
                                           const char *what);
/* Every rank brings its status. If all are SUCCESS, returns SUCCESS. Otherwise all return the
 * status of the lowest failing rank, with sheaf_last_error "rank 2 (hostname): its text". The way
 * to turn one rank's failure into everyone's. */
enum sheaf_status sheaf_world_agree(enum sheaf_status mine, const char *what);

/* Ends the job from any rank and any thread: marks the world as failed, so that the waits of all
 * ranks end with `reason`. Does not exit. */
void sheaf_world_abort(const char *reason);
/* True once this rank knows of a failure anywhere. Any thread. */
bool sheaf_world_failed(void);
/* Whether this rank should print the current error, so that a job says it once: the rank that
 * noticed a failure, or the lowest failing rank of the last sheaf_world_agree. */
bool sheaf_world_reports_error(void);

#ifdef __cplusplus
}
#endif
#endif
