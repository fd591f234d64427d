/* The world as the other files of this folder see it: ranks, hosts, the failure record, and the
 * only ways to wait for MPI.
 *
 * Invariants. Calls of MPI that may communicate are made under sheaf__mpi_lock() only, and between
 * start and end never in a blocking form: every wait is a loop of tests with a deadline. Once the
 * failure record is set, MPI is not called again; buffers of unfinished messages may then be
 * freed. */
#ifndef SHEAF_COMM_WORLD_H
#define SHEAF_COMM_WORLD_H

#include <assert.h>
#include <mpi.h>
#include <stdatomic.h>
#include <string.h>

#include "backend/locality.h"
#include "comm/world/board.h"

enum { SHEAF__HOST_NAME_BYTES = 64 };

struct sheaf__world {
    bool started, ended, mpi, ends_mpi;
    bool one_thread; /* MPI may be called by the main thread only */
    bool may_exit;   /* as sheaf_world_params says, and these two: */
    sheaf_failure_fn on_failure;
    void *on_failure_user;
    int rank, size, n_hosts, local_rank, local_size;
    int *host_of;                              /* [size] */
    int *share_of;                             /* [size] lowest rank that shares memory with it */
    char (*host_name)[SHEAF__HOST_NAME_BYTES]; /* [size] */
    struct sheaf__cpus *cpus;                  /* [size] of each rank when the job started */
    bool crowded; /* other ranks need the cores of this one: give them up early */
    uint64_t limit_ns[SHEAF_PHASE_COUNT], heartbeat_ns;
    _Atomic uint64_t group_limit_ns; /* the longest that a group has for a collective */
    /* sheaf_world_expect_end: when it was called, 0: not; and when MPI_Finalize was entered */
    _Atomic uint64_t end_ns, finalize_ns;
    _Atomic int end_status;
    bool mute;    /* the launcher is another MPI's, each of its ranks a world of one, and its rank 0
                  reports that */
    uint64_t job; /* a random number that all ranks know */
    MPI_Comm control, data;
    struct sheaf__failure *_Atomic failure; /* never NULL */
    int reporter;                           /* lowest rank that failed in the last agree; -1 none */
    char agreed[1024]; /* the error that it has set, with the rank: not named again */
    uint32_t n_groups;                      /* groups made so far, the same on every rank */
};

struct sheaf__world *sheaf__world(void);
/* Did a launcher (mpirun, srun) start this process? */
bool sheaf__launched(void);
/* The time limits of the settings; timeout_ms > 0 is used instead of SHEAF_TIMEOUT_MS. */
enum sheaf_status sheaf__read_limits(int timeout_ms);
/* The environment variable that holds a phase's limit. */
const char *sheaf__phase_setting(enum sheaf_phase phase);

/* True as soon as a rank of the share group has taken the record. */
static inline bool sheaf__has_failed(const struct sheaf__world *w) {
    return atomic_load_explicit(&w->failure->state, memory_order_relaxed) != SHEAF__HEALTHY;
}

/* Was this rank told that others will go? */
bool sheaf__end_is_expected(uint64_t now);

/* "rank 2 (hostname)" in a static buffer of the calling thread; four may be alive at once. */
const char *sheaf__rank_text(int rank);

/* Takes the failure record: false if it was taken before. */
bool sheaf__failure_take(int origin, const char *text);
/* Takes it from a rank that was lost before its text was complete. */
bool sheaf__failure_retake(int origin, const char *text);
/* The record after a failure, when its text is complete, which is at once: NULL if its writer was
 * killed before. */
const struct sheaf__failure *sheaf__failure_record(void);
/* The watch's function that tells other hosts of a failure that this rank has recorded, and returns
 * when that is done. */
void sheaf__failure_spread_by(void (*fn)(void));
/* Calls the program's on_failure, once. */
void sheaf__failure_tell_program(void);
/* A failure that ends the job: marks the world, sets the error, returns `status`. If the world has
 * failed already, reports that instead. */
enum sheaf_status sheaf__fail(enum sheaf_status status, const char *fmt, ...)
    __attribute__((format(printf, 2, 3)));
/* Sets the error to the failure that is on record; SHEAF_STATUS_PEER. */
enum sheaf_status sheaf__report_failure(void);

/* INVALID if the calling thread may not call MPI. */
enum sheaf_status sheaf__mpi_allowed(const char *doing);
void sheaf__mpi_lock(void);
void sheaf__mpi_unlock(void);
/* SUCCESS, or ends the job with the text of MPI's error. */
enum sheaf_status sheaf__mpi_check(int code, const char *doing);

/* How long a waiting thread did not run because its process was stopped, or suspended with its job.
 * A wait is not late because of that: on all ranks of a suspended job the clock went on. A waiting
 * thread looks at the clock at least once in AWAY_NS, also on a loaded core. */
enum { SHEAF__AWAY_NS = 1000000000 };
struct sheaf__absence {
    uint64_t looked, total; /* looked: the last time, at first the start of the wait */
    bool loading;           /* a rank did, as sheaf__forgive_load was told last */
};
/* At every look of the wait: the total until now. */
static inline uint64_t sheaf__away(struct sheaf__absence *a, uint64_t now) {
    if (now > a->looked + SHEAF__AWAY_NS) a->total += now - a->looked;
    a->looked = now;
    return a->total;
}

/* Does the rank load, within its limit? A wait for it is not late then. */
bool sheaf__loads(int rank, uint64_t now);
/* A wait is `late` beyond its limit. True: it goes on, because a rank loads, or did so until now;
 * the limit is longer by a moment, or by itself when none loads any more. */
bool sheaf__forgive_load(struct sheaf__absence *a, bool loads, uint64_t late, uint64_t limit);

/* What a thread does between looks at MPI, if a member computes beside it. */
struct sheaf__idle {
    /* Leaves the core to others for a moment. False, at once, if the member waits. */
    bool (*nap)(struct sheaf__idle *self);
    /* The wait is justified until now. */
    void (*touch)(struct sheaf__idle *self, uint64_t now);
};
/* The same with or without such a thread (NULL). */
static inline void sheaf__touch_idle(struct sheaf__idle *idle, uint64_t now) {
    if (idle)
        idle->touch(idle, now);
    else
        sheaf__touch(now);
}

/* Waits until all requests are done. peer[i] is the rank at the other end of request i. */
struct sheaf__mpi_wait {
    MPI_Request *requests;
    MPI_Status *statuses;
    const int *peers;
    int n;
    uint64_t not_before; /* clock time before which nothing counts as arrived; 0 none */
    uint64_t start, deadline;
    struct sheaf__absence *away; /* since `start`; it moves the deadline */
    /* Does a rank load, for which this wait may be? NULL: asks the peers of open requests. */
    bool (*loads)(const void *user, uint64_t now);
    /* writes what is being done, for messages: "all_reduce 'x' (node 3, 64 bytes)" */
    void (*describe)(const void *user, char *text, size_t size);
    const void *user;
    const char *setting;      /* that lengthens the wait; NULL: SHEAF_TIMEOUT_MS */
    struct sheaf__idle *idle; /* NULL: looks all the time at first */
    bool unlimited;           /* no deadline; the naps grow to 5 ms */
};
enum sheaf_status sheaf__mpi_wait_all(const struct sheaf__mpi_wait *wait);

/* Control messages need their buffers before the first one. */
enum sheaf_status sheaf__control_start(void);
void sheaf__control_stop(void);
/* Behind an exchange of all ranks, before MPI_Finalize: ends the sends of calls that all have taken. */
enum sheaf_status sheaf__control_settle(void);

void sheaf__devices_free(void);

/* Before MPI_Finalize: keeps the components that Open MPI has loaded mapped to the end of the
 * process. Does nothing under another MPI. */
void sheaf__keep_mpi_components(void);

/* Memory shared by the ranks for which share_of is the same. Collective over the world: every rank
 * calls with the same `what`. `bytes` agrees inside a share group; 0 for ranks that take no part.
 * group_first is the lowest taking part rank of the caller's group, n_parts how many take part; a
 * single one gets private memory. The memory is zero; it vanishes with its last process, and has no
 * name in the file system at any time. */
enum sheaf_status sheaf__shared_map(size_t bytes, int group_first, int n_parts, const char *what,
                                    void **out);
void sheaf__shared_unmap(void *memory, size_t bytes);
size_t sheaf__whole_pages(size_t bytes);
/* A file without a name of that many bytes, which nothing can make shorter; -1 and errno. */
int sheaf__shared_file(size_t bytes);
/* That file of another process. -1 and errno if it cannot be opened or is not such a file: reading
 * memory that is mapped beyond a file's end would be a fault. */
int sheaf__shared_open(uint64_t pid, uint64_t fd, size_t bytes);
/* Whole pages of the file, or, of fd -1, of memory that no other process has; NULL and errno. */
void *sheaf__shared_view(int fd, size_t bytes);
/* How it is reached, for messages. */
enum { SHEAF__SHARED_PATH_BYTES = 64 };
void sheaf__shared_path(uint64_t pid, uint64_t fd, char path[static SHEAF__SHARED_PATH_BYTES]);

/* Little-endian fields of what goes over the wire. */
static inline void sheaf__put_le(uint8_t *at, uint64_t value, int bytes) {
    for (int i = 0; i < bytes; i++) at[i] = (uint8_t)(value >> (8 * i));
}
static inline uint64_t sheaf__get_le(const uint8_t *at, int bytes) {
    uint64_t value = 0;
    for (int i = 0; i < bytes; i++) value |= (uint64_t)at[i] << (8 * i);
    return value;
}

#endif
