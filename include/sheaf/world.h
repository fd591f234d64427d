/* The job: its ranks, hosts and devices. Without a launcher the world is one rank, and MPI is not
 * started.
 *
 * SPMD: every rank makes the same calls in the same order. All calls from one thread, unless said
 * otherwise. Every phase has a deadline (enum sheaf_phase). When it passes, when a peer dies, falls
 * silent or reports a failure, or when a peer makes another call, the call returns an error that
 * names the rank, its host and what was waited for, and every later call fails at once.
 *
 * A thread of the library without MPI watches over this. It neither exits nor aborts the process,
 * unless sheaf_world_params.may_exit allows it: then it ends a process whose calling thread does
 * not come back from where it is, with status 1 and the message. */
#ifndef SHEAF_WORLD_H
#define SHEAF_WORLD_H

#include "sheaf/backend.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Called once when this rank learns that the job has failed: `rank` noticed it, `text` says what.
 * From the thread that watches (in a world of one: from the one that called sheaf_world_abort), at
 * most a fraction of a second after the record. It must return soon and may call nothing of the
 * library except sheaf_log. Calls of the library that are under way return errors by themselves. */
typedef void (*sheaf_failure_fn)(int rank, const char *text, void *user);

struct sheaf_world_params {
    size_t size;    /* sizeof(struct sheaf_world_params) */
    int timeout_ms; /* overrides SHEAF_TIMEOUT_MS; 0: use the setting */
    /* Points to an MPI_Comm, an intracommunicator: its ranks are the world. NULL: MPI_COMM_WORLD.
     * MPI must have been initialized then. The library works on duplicates. Ranks of one host share
     * its cores; processes outside of the communicator are not considered. */
    const void *mpi_comm;
    sheaf_failure_fn on_failure; /* NULL: none */
    void *on_failure_user;
    /* May a failed job end this process and what belongs to the launcher? false: the process lives
     * on, and learns of the failure by on_failure and by the statuses of its calls; the library
     * neither calls _exit, nor aborts the launcher's job, nor ends other ranks, nor removes files
     * that MPI would leave. true, for a program that is nothing but this job: after a failure it
     * does all of that for ranks that cannot end themselves. */
    bool may_exit;
};

/* The phase that a rank is in. Milliseconds that a phase may take without progress, and their
 * defaults:
 *   START       SHEAF_TIMEOUT_START_MS       120000   until all ranks have met
 *   LOAD        SHEAF_TIMEOUT_LOAD_MS        300000   for each tensor read, not for all
 *   PLAN        SHEAF_TIMEOUT_PLAN_MS        SHEAF_TIMEOUT_MS
 *   COMPUTE     SHEAF_TIMEOUT_COMPUTE_MS     SHEAF_TIMEOUT_MS, for each span between collectives
 *   COLLECTIVE  SHEAF_TIMEOUT_COLLECTIVE_MS  SHEAF_TIMEOUT_MS; waits for the slowest included
 *   FINALIZE    SHEAF_TIMEOUT_FINALIZE_MS    SHEAF_TIMEOUT_MS
 * SHEAF_TIMEOUT_MS is 60000. IDLE, the time between calls, has no limit of its own: other ranks
 * that wait meanwhile have. While a rank loads, waits of others for it go on. A rank that is silent
 * for SHEAF_TIMEOUT_HEARTBEAT_MS (20000) is lost: its process is stopped, or its host or link is
 * down. A rank that dies is noticed at once. */
enum sheaf_phase {
    SHEAF_PHASE_IDLE,
    SHEAF_PHASE_START,
    SHEAF_PHASE_LOAD,
    SHEAF_PHASE_PLAN,
    SHEAF_PHASE_COMPUTE,
    SHEAF_PHASE_COLLECTIVE,
    SHEAF_PHASE_FINALIZE,
    SHEAF_PHASE_COUNT,
};
/* Tells what this rank does until the next such call, and starts the phase's clock again; `what` (a
 * tensor, a file; may be NULL) appears in messages. The library itself says START, PLAN, COMPUTE,
 * COLLECTIVE and FINALIZE; a loader says LOAD for each tensor, and IDLE at its end. From the thread
 * that called sheaf_world_init; from others without effect. */
void sheaf_world_enter(enum sheaf_phase phase, const char *what);

/* Starts MPI if a launcher (mpirun, srun) started this process. params may be NULL. Once a process,
 * from the main thread, before any device is listed, so that ranks of one host can share its cores.
 * INVALID after sheaf_world_finalize or MPI_Finalize.
 *
 * If the program has initialized MPI itself, that MPI is used and not ended; sheaf_world_finalize
 * comes before MPI_Finalize. MPI_THREAD_SERIALIZED is enough for everything. With less
 * (MPI_THREAD_SINGLE, FUNNELED) call from the thread that initialized MPI: all collectives of ranks
 * that drive one member each work, and sheaf_comm_start runs a collective between hosts at once. A
 * group over several hosts in which a rank drives several members needs SERIALIZED, since each
 * member has its thread. */
enum sheaf_status sheaf_world_init(const struct sheaf_world_params *params);
/* The calling thread takes the place of the one that called sheaf_world_init: phases, limits,
 * traces and records are about its work from here on, and the other one no longer calls anything
 * that sends data. For programs whose calls come from several threads, one at a time, each behind a
 * lock of theirs. INVALID below MPI_THREAD_SERIALIZED, unless the thread has that place. Not
 * collective; some nanoseconds. */
enum sheaf_status sheaf_world_move_here(void);
/* Ends the job, and MPI if sheaf_world_init started it. After an error it waits for no rank and
 * leaves MPI as it is: print, call this, and return non-zero from main; the launcher then ends the
 * other ranks. A rank that gives up alone calls sheaf_world_abort first. Without an error it ends
 * with a barrier; if that fails, it logs that, and sheaf_world_failed() is true afterwards: return
 * non-zero then too. Safe to call twice or without init. */
void sheaf_world_finalize(void);

int sheaf_world_rank(void);
int sheaf_world_size(void);
int sheaf_world_n_hosts(void);
/* Host name and host number (0..n_hosts-1, by first rank) of a rank. NULL / -1 outside. */
const char *sheaf_world_host_name(int rank);
int sheaf_world_host_index(int rank);
int sheaf_world_local_rank(void); /* number among the ranks of this host */
int sheaf_world_local_size(void);

/* "Open MPI v4.1.4": name and version of the MPI library in use. Also before sheaf_world_init.
 * Owned by the library. */
const char *sheaf_world_mpi(void);
/* The i-th thing that sheaf does without under this MPI and its launcher, a sentence; NULL: there
 * are no more. Under Open MPI's mpirun there is none. Everything else works with any MPI-3
 * library. */
const char *sheaf_world_mpi_lacks(size_t i);

/* All devices of the job, in the same order on every rank: by rank, then as the registry of that
 * rank lists them. Local ones are the registry's own objects, remote ones have name, memory and
 * type ("CPU0@1"), and refuse work. The first call is collective; the array is owned by the world.
 * INVALID before sheaf_world_init in a process that a launcher started: each rank would be alone.
 */
enum sheaf_status sheaf_world_devices(const sheaf_backend_dev_t **devices, size_t *n);
/* The rank that drives a device. */
int sheaf_world_device_rank(sheaf_backend_dev_t dev);
/* "CPU0@1" for CPU0 of rank 1, terminated and cut to `size`. */
void sheaf_world_device_name(sheaf_backend_dev_t dev, char *name, size_t size);
/* Does the entry [n] of a list of devices (SHEAF_DEVICES, --devices) mean this one? "CPU0" is that
 * of every rank, "CPU0@1" that of rank 1; a star at the end of a name stands for any rest of it
 * ("ggml:*"). Case does not matter. */
bool sheaf_world_device_matches(const char *entry, size_t n, sheaf_backend_dev_t dev);

/* ---- control messages (small; not for tensors). `what` names the step in error messages. ---- */
enum sheaf_status sheaf_world_barrier(const char *what);
/* Waits for the root only; that ranks name different roots shows in the next exchange of all. */
enum sheaf_status sheaf_world_broadcast(void *data, size_t size, int root, const char *what);
/* As broadcast, to the ranks r with part[r] only; part has size() entries, alike on all ranks. All
 * ranks call; those that have no part return at once. */
enum sheaf_status sheaf_world_broadcast_to(const bool *part, void *data, size_t size, int root,
                                           const char *what);
/* As broadcast, but the ranks wait for the root without a limit: for the next order of a root that
 * waits for its user. They sleep longer the longer it takes. A rank that has died or was cut off
 * ends the wait as usual. The root does not wait for ranks that still compute: up to 4096 bytes of
 * each of its last 16 calls are kept for them. It waits, without a limit, with more bytes or calls. */
enum sheaf_status sheaf_world_call(void *data, size_t size, int root, const char *what);
/* recv holds size() * size bytes, in rank order, on every rank. */
enum sheaf_status sheaf_world_all_gather(const void *send, size_t size, void *recv,
                                         const char *what);
/* As all_gather but with sizes[rank] bytes a rank. */
enum sheaf_status sheaf_world_all_gather_v(const void *send, void *recv, const size_t *sizes,
                                           const char *what);
/* As all_gather_v, but only `root` receives; recv may be NULL on the others, which return when the
 * root has taken their block or a deadline has passed; at once if they bring no bytes. */
enum sheaf_status sheaf_world_gather_v(const void *send, void *recv, const size_t *sizes, int root,
                                       const char *what);
/* Every rank brings its status. If all are SUCCESS, returns SUCCESS. Otherwise all return the
 * status of the lowest failing rank, with sheaf_last_error "rank 2 (hostname): its text". The way
 * to turn one rank's failure into a failure of all. */
enum sheaf_status sheaf_world_agree(enum sheaf_status mine, const char *what);

/* Ends the job from any rank and any thread: marks the world as failed, so that the waits of all
 * ranks end with `reason`. Does not exit. */
void sheaf_world_abort(const char *reason);
/* The job is being ended on purpose, by a signal of the launcher or of a batch system: for the next
 * five seconds this rank takes it for no failure that others go. A launcher that ends a job does
 * not serve MPI_Finalize; with may_exit a rank that it keeps for a third of a second ends with
 * `status`, from the thread that watches, so standard output is to be flushed before
 * sheaf_world_finalize. For a signal handler: async-signal-safe. */
void sheaf_world_expect_end(int status);
/* True once this rank knows of a failure anywhere. Any thread. */
bool sheaf_world_failed(void);
/* Whether this rank should print the current error, so that a job says it once: the rank that
 * noticed a failure, or the lowest failing rank of the last sheaf_world_agree. While the job
 * starts, ranks may need some seconds to find that out. */
bool sheaf_world_reports_error(void);

#ifdef __cplusplus
}
#endif
#endif
