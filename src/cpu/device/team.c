/* Thread teams. See team.h.
 *
 * Two waits exist: a worker waits for the next job (`job` changes), a member waits at the barrier
 * (`generation` changes). Both are a counter that only grows, so a late reader cannot miss a
 * change: the next change needs its own arrival. A sleeper announces itself in `sleepers` before
 * the futex call, and the thread that changes the counter reads `sleepers` afterwards, both in the
 * one total order of seq_cst operations: either the waker sees the sleeper or the futex sees the
 * new counter. */
#include "cpu/device/team.h"
#include "base/thread.h"

#include <linux/futex.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

enum {
    CACHE_LINE = 64,
    /* About 0.3 ms on Zen 3, 1 ms on Skylake: longer than a collective inside a host, shorter than
     * a person's idle loop. */
    SPIN_LIMIT = 20000,
    /* With shared cores the other side probably needs this very core. */
    YIELD_LIMIT = 2,
};

struct word {
    _Alignas(CACHE_LINE) _Atomic uint32_t value;
    _Atomic uint32_t sleepers;
};

struct worker {
    struct sheaf__cpu_team *team;
    pthread_t thread;
    int ith;
};

struct sheaf__cpu_team {
    struct word generation; /* of the barrier */
    struct word job;
    _Alignas(CACHE_LINE) _Atomic uint32_t arrived;
    _Alignas(CACHE_LINE) struct sheaf__cpu_sync sync;
    uint32_t nth;
    bool shared;
    /* written before `job` changes, read after */
    _Alignas(CACHE_LINE) sheaf__cpu_team_fn fn;
    void *user;
    bool stop;
    void (*bind)(void *bind_user, int ith);
    void *bind_user;
    int n_workers; /* started */
    struct worker *workers;
};

static void word_wait(struct word *word, uint32_t old, bool shared) {
    if (shared) {
        for (int i = 0; i < YIELD_LIMIT; i++) {
            if (atomic_load_explicit(&word->value, memory_order_acquire) != old) return;
            sched_yield();
        }
    } else {
        for (int i = 0; i < SPIN_LIMIT; i++) {
            if (atomic_load_explicit(&word->value, memory_order_acquire) != old) return;
            sheaf__relax();
        }
    }
    atomic_fetch_add(&word->sleepers, 1);
    while (atomic_load(&word->value) == old) {
        /* EAGAIN and EINTR are answered by looking again */
        syscall(SYS_futex, &word->value, FUTEX_WAIT_PRIVATE, old, NULL, NULL, 0);
    }
    atomic_fetch_sub(&word->sleepers, 1);
}

static void word_bump(struct word *word) {
    atomic_fetch_add(&word->value, 1);
    if (atomic_load(&word->sleepers) != 0) {
        syscall(SYS_futex, &word->value, FUTEX_WAKE_PRIVATE, INT32_MAX, NULL, NULL, 0);
    }
}

static void barrier(void *user) {
    struct sheaf__cpu_team *team = user;
    if (team->nth == 1) return;
    uint32_t generation = atomic_load_explicit(&team->generation.value, memory_order_acquire);
    if (atomic_fetch_add(&team->arrived, 1) + 1 == team->nth) {
        atomic_store_explicit(&team->arrived, 0, memory_order_relaxed);
        word_bump(&team->generation);
    } else {
        word_wait(&team->generation, generation, team->shared);
    }
}

static void *worker_main(void *arg) {
    struct worker *me = arg;
    struct sheaf__cpu_team *team = me->team;
    uint32_t job = 0;
    if (team->bind) team->bind(team->bind_user, me->ith);
    for (;;) {
        word_wait(&team->job, job, team->shared);
        job++;
        if (team->stop) break;
        team->fn(team->user, me->ith, (int)team->nth, &team->sync);
        barrier(team);
    }
    return NULL;
}

enum sheaf_status sheaf__cpu_team_new(const struct sheaf__cpu_team_params *params,
                                      struct sheaf__cpu_team **out) {
    enum sheaf_status status = SHEAF_STATUS_SUCCESS;
    int n = params->n_threads;
    *out = NULL;
    struct sheaf__cpu_team *team = aligned_alloc(CACHE_LINE, sizeof *team);
    if (!team) return sheaf_set_error(SHEAF_STATUS_ALLOC_FAILED, "cpu: no memory for a team");
    memset(team, 0, sizeof *team);
    team->sync.barrier = barrier;
    team->sync.team = team;
    team->nth = (uint32_t)n;
    team->shared = params->shared;
    team->bind = params->bind;
    team->bind_user = params->bind_user;
    if (n > 1) {
        team->workers = calloc((size_t)n - 1, sizeof *team->workers);
        if (!team->workers) {
            status = sheaf_set_error(SHEAF_STATUS_ALLOC_FAILED, "cpu: no memory for %d threads", n);
            goto out;
        }
    }
    for (int i = 0; i < n - 1; i++) {
        struct worker *worker = &team->workers[i];
        worker->team = team;
        worker->ith = i + 1;
        const int err = sheaf__thread_start(&worker->thread, worker_main, worker);
        if (err != 0) {
            status = sheaf_set_error(SHEAF_STATUS_FAILED,
                                     "cpu: cannot start thread %d of %d: %s; use fewer threads "
                                     "(SHEAF_CPU_THREADS)",
                                     i + 1, n, strerror(err));
            break;
        }
        team->n_workers++;
    }
out:
    if (status != SHEAF_STATUS_SUCCESS) {
        sheaf__cpu_team_free(team);
        return status;
    }
    *out = team;
    return SHEAF_STATUS_SUCCESS;
}

void sheaf__cpu_team_free(struct sheaf__cpu_team *team) {
    if (!team) return;
    team->stop = true;
    word_bump(&team->job);
    for (int i = 0; i < team->n_workers; i++) pthread_join(team->workers[i].thread, NULL);
    free(team->workers);
    free(team);
}

int sheaf__cpu_team_size(const struct sheaf__cpu_team *team) { return (int)team->nth; }

void sheaf__cpu_team_run(struct sheaf__cpu_team *team, sheaf__cpu_team_fn fn, void *user) {
    if (team->nth > 1) {
        team->fn = fn;
        team->user = user;
        word_bump(&team->job);
    }
    fn(user, 0, (int)team->nth, &team->sync);
    barrier(team);
}
