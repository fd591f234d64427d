/* The watch as the main thread sees it: start, farewell, and the way out after a failure. The
 * guard's thread does the rest (guard.c). */
#include "comm/watch/watch.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/file.h"
#include "base/thread.h"
#include "comm/watch/guard.h"
#include "comm/watch/watch_impl.h"
#include "comm/world/world.h"
#include "sheaf/log.h"

enum {
    /* After a failure the rank that reports it has this long to print it: several times as long as
     * the permission takes to arrive. The launcher mostly ends the job earlier. */
    GRACE_MS = 3000,
    TOLD_MS = 300, /* for its output to arrive */
};
static const uint64_t SPREAD_NS = 1800000000; /* a main thread waits for that at most this long */
static const uint64_t JOIN_NS = 10000000000u; /* for the thread to end */

/* After this rank took the record: tells other hosts, and returns when a lower rank that reports a
 * failure of its own has been heard. Any thread. */
static void spread(void) {
    if (!sheaf__guard.runs || !sheaf__guard_watches()) return;
    sheaf__guard_kick();
    const uint64_t end = sheaf__time_ns() + SPREAD_NS;
    while (!atomic_load(&sheaf__guard.spread) && sheaf__time_ns() < end) {
        sheaf__nap(1000000);
    }
}

static enum sheaf_status start_thread(void) {
    sheaf__guard.wake = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (sheaf__guard.wake < 0)
        return sheaf_set_error(SHEAF_STATUS_FAILED, "start: no descriptor for the guard: %s",
                               sheaf__errno_text(errno));
    atomic_store(&sheaf__guard.stop, false); /* an earlier start of the world was refused */
    atomic_store(&sheaf__guard.ended, false);
    const int code = sheaf__thread_start(&sheaf__guard.thread, sheaf__guard_run, NULL);
    sheaf__guard.runs = code == 0;
    if (!sheaf__guard.runs) {
        close(sheaf__guard.wake);
        sheaf__guard.wake = -1;
        return sheaf_set_error(SHEAF_STATUS_FAILED, "start: no thread for the guard: %s",
                               strerror(code));
    }
    sheaf__crash_wakes(sheaf__guard_kick);
    return SHEAF_STATUS_SUCCESS;
}

/* The kernel gives no descriptor of the process of `rank`. Success where it has none, or a
 * container forbids the call: a death then shows as silence. */
static enum sheaf_status without_pidfd(int error, int rank, int64_t pid) {
    switch (error) {
    case ESRCH:
        return sheaf_set_error(SHEAF_STATUS_PEER, "start: %s (process %lld) has died",
                               sheaf__rank_text(rank), (long long)pid);
    case EMFILE:
    case ENFILE:
        return sheaf_set_error(SHEAF_STATUS_FAILED, "start: no descriptor to watch %s: %s",
                               sheaf__rank_text(rank), sheaf__errno_text(error));
    default:
        return SHEAF_STATUS_SUCCESS;
    }
}

static enum sheaf_status watch_neighbours(void) {
    const struct sheaf__world *w = sheaf__world();
    const int64_t pid = getpid();
    int64_t *pids = calloc((size_t)w->size, sizeof *pids);
    sheaf__guard.pidfds = calloc((size_t)w->size, sizeof *sheaf__guard.pidfds);
    sheaf__guard.ranks = calloc((size_t)w->size, sizeof *sheaf__guard.ranks);
    enum sheaf_status st = SHEAF_STATUS_SUCCESS;
    if (!pids || !sheaf__guard.pidfds || !sheaf__guard.ranks)
        st = sheaf_set_error(SHEAF_STATUS_ALLOC_FAILED, "start: out of memory");
    if ((st = sheaf_world_agree(st, "start"))) goto out;
    if ((st = sheaf_world_all_gather(&pid, sizeof pid, pids, "process numbers"))) goto out;
    for (int r = 0; r < w->size; r++) {
        if (r == w->rank || w->share_of[r] != w->share_of[w->rank]) continue;
        const int fd = (int)syscall(SYS_pidfd_open, (pid_t)pids[r], 0);
        if (fd < 0 && !st) st = without_pidfd(errno, r, pids[r]);
        sheaf__guard.ranks[sheaf__guard.n_pidfds] = r;
        sheaf__guard.pidfds[sheaf__guard.n_pidfds++] = fd < 0 ? SHEAF__NO_PIDFD : fd;
    }
    st = sheaf_world_agree(st, "start");
    const uint64_t now = sheaf__time_ns();
    for (int i = 0; i < sheaf__guard.n_pidfds; i++)
        atomic_store_explicit(&sheaf__line(sheaf__guard.ranks[i])->heard_ns, now,
                              memory_order_relaxed);
    if (!st) atomic_store(&sheaf__guard.complete, true);
    sheaf__guard_kick();
out:
    free(pids);
    return st;
}

/* False: the thread does not end, and is left with what it uses; the process ends if it may. */
static bool stop_thread(void) {
    sheaf__crash_leave();
    if (!sheaf__guard.runs) return true;
    atomic_store(&sheaf__guard.stop, true);
    sheaf__guard_kick();
    const uint64_t end = sheaf__time_ns() + JOIN_NS;
    while (!atomic_load(&sheaf__guard.ended) && sheaf__time_ns() < end) sheaf__nap(200000);
    sheaf__guard.runs = false;
    if (!atomic_load(&sheaf__guard.ended)) {
        if (sheaf__world()->may_exit) _exit(SHEAF__GUARD_STATUS);
        pthread_detach(sheaf__guard.thread);
        return false;
    }
    pthread_join(sheaf__guard.thread, NULL);
    for (int i = 0; i < sheaf__guard.n_pidfds; i++)
        if (sheaf__guard.pidfds[i] >= 0) close(sheaf__guard.pidfds[i]);
    free(sheaf__guard.pidfds);
    free(sheaf__guard.ranks);
    close(sheaf__guard.wake);
    sheaf__guard.pidfds = NULL;
    sheaf__guard.ranks = NULL;
    sheaf__guard.n_pidfds = 0;
    sheaf__guard.wake = -1;
    atomic_store(&sheaf__guard.watching, false);
    atomic_store(&sheaf__guard.complete, false);
    return true;
}

static bool all_left(void) {
    for (int i = 0; i < sheaf__guard_n_neighbours(); i++)
        if (!atomic_load(&sheaf__line(sheaf__guard.ranks[i])->left)) return false;
    return atomic_load(&sheaf__guard.farewell_arrived) && sheaf__links_all_left();
}

void sheaf__watch_farewell(void) {
    const uint64_t end = sheaf__time_ns() + sheaf__world()->limit_ns[SHEAF_PHASE_FINALIZE];
    atomic_store(&sheaf__line(sheaf__world()->rank)->left, 1);
    atomic_store(&sheaf__guard.farewell, true);
    sheaf__guard_kick();
    while (!all_left() && !sheaf__has_failed(sheaf__world()) && sheaf__time_ns() < end)
        sheaf__nap(200000);
}

enum sheaf_status sheaf__watch_start(void) {
    const enum sheaf_status st = start_thread();
    if (!st) sheaf__failure_spread_by(spread);
    return st;
}

enum sheaf_status sheaf__watch_connect(void) {
    sheaf__launcher_expect_loss(sheaf__launcher_remove_names);
    const enum sheaf_status st = sheaf__links_start();
    if (st) return st;
    atomic_store(&sheaf__guard.watching, true);
    sheaf__guard_kick();
    return watch_neighbours();
}

bool sheaf__watch_stop(void) {
    if (!stop_thread()) return false;
    sheaf__links_stop();
    return true;
}

/* Is it this thread's task to print the failure? */
static bool claim(bool last) {
    const bool mine = sheaf__report_claim(SHEAF__TELLER_MAIN, sheaf__guard_watches(), last);
    if (mine) sheaf__guard_kick(); /* other hosts are to know */
    return mine;
}

bool sheaf_world_reports_error(void) {
    const struct sheaf__world *w = sheaf__world();
    if (w->size == 1 && w->failure == &sheaf__own_failure) return !w->mute;
    /* ranks that do not share a record yet go by what they agreed on */
    if (w->failure == &sheaf__own_failure && w->reporter >= 0) return w->reporter == w->rank;
    if (sheaf__has_failed(w)) {
        const struct sheaf__failure *f = sheaf__failure_record();
        return f && f->origin == w->rank && !atomic_load(&f->outranked) && !sheaf__noticed() &&
               claim(false);
    }
    return w->reporter < 0 || w->reporter == w->rank;
}

/* If the rank that was to print the failure does not: another of its host does, or of rank 0's,
 * which let it. */
static void tell_for_origin(void) {
    const struct sheaf__world *w = sheaf__world();
    for (int ms = 0; ms < GRACE_MS && !atomic_load(&w->failure->told); ms += 10)
        sheaf__nap(10000000);
    const struct sheaf__failure *f = sheaf__failure_record();
    if (!f) return;
    const int host = w->share_of[w->rank];
    const bool here = w->share_of[f->origin] == host;
    if ((here || host == 0) && !atomic_load(&f->outranked) && claim(true))
        sheaf_log(SHEAF_LOG_ERROR, "%s%s%s", here ? "" : sheaf__rank_text(f->origin),
                  here ? "" : " reports: ", f->text);
}

void sheaf__watch_leave_failed(void) {
    atomic_store(&sheaf__guard.leaving, true);
    if (!sheaf_world_reports_error() && sheaf__world()->failure != &sheaf__own_failure)
        tell_for_origin();
    sheaf__nap(TOLD_MS * 1000000u);
    sheaf__failure_tell_program();
    if (sheaf__guard.runs && sheaf__world()->may_exit) {
        const uint64_t now = sheaf__time_ns();
        sheaf__launcher_remove_names();
        sheaf__dumps_await();
        sheaf__guard_end_silent(now);
        if (sheaf__has_failed(sheaf__world()) && sheaf__guard_needs_abort(now))
            sheaf__launcher_abort(SHEAF__GUARD_STATUS);
        sheaf__speaker_hold();
    }
    /* Silent from here on, but not stopped: what the process still does takes its own time. */
    atomic_store(&sheaf__line_here()->left, 1);
    const struct sheaf__failure *f = sheaf__failure_record();
    const bool met = sheaf__guard_watches();
    if (stop_thread() && met && f) sheaf__links_leave(f->origin, f->text);
    /* connections end with the process */
    sheaf__dumps_await();
}
