/* How a failure anywhere becomes a failure everywhere.
 *
 * Ranks of one host share a record; other hosts get an alarm over the control connections
 * (guard.c). The first to take the record writes the text, nobody changes it afterwards. After that
 * MPI is not called again. */
#include <pthread.h>
#include <sched.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include "comm/async.h"
#include "comm/guard.h"
#include "comm/world.h"

static pthread_mutex_t mpi_mutex = PTHREAD_MUTEX_INITIALIZER;
void sheaf__mpi_lock(void) { pthread_mutex_lock(&mpi_mutex); }
void sheaf__mpi_unlock(void) { pthread_mutex_unlock(&mpi_mutex); }

const char *sheaf__rank_text(int rank) {
    static _Thread_local char text[4][SHEAF__HOST_NAME_BYTES + 32];
    static _Thread_local unsigned next;
    char *t = text[next++ % 4];
    const char *host = sheaf_world_host_name(rank);
    if (host && host[0])
        snprintf(t, sizeof text[0], "rank %d (%s)", rank, host);
    else
        snprintf(t, sizeof text[0], "rank %d", rank);
    return t;
}

bool sheaf__record_failure(int origin, const char *text) {
    struct sheaf__failure *f = sheaf__world()->failure;
    int healthy = SHEAF__HEALTHY;
    if (!atomic_compare_exchange_strong(&f->state, &healthy, SHEAF__FAILING)) return false;
    f->origin = origin;
    snprintf(f->text, sizeof f->text, "%s", text);
    atomic_store_explicit(&f->state, SHEAF__FAILED, memory_order_release);
    return true;
}

void sheaf_world_abort(const char *reason) {
    const char *text = reason && reason[0] ? reason : "the job was aborted";
    if (sheaf__record_failure(sheaf__world()->rank, text)) sheaf__guard_spread();
}

bool sheaf_world_failed(void) { return sheaf__has_failed(sheaf__world()); }

enum sheaf_status sheaf__report_failure(void) {
    struct sheaf__world *w = sheaf__world();
    const struct sheaf__failure *f = w->failure;
    /* the text follows the mark within a memcpy's time, unless its writer was killed in between */
    for (int i = 0; i < 1000; i++) {
        if (atomic_load_explicit(&f->state, memory_order_acquire) == SHEAF__FAILED) {
            if (f->origin == w->rank) return sheaf_set_error(SHEAF_STATUS_PEER, "%s", f->text);
            return sheaf_set_error(SHEAF_STATUS_PEER, "%s reports: %s", sheaf__rank_text(f->origin),
                                   f->text);
        }
        sched_yield();
    }
    return sheaf_set_error(SHEAF_STATUS_PEER, "another rank failed and left no reason");
}

enum sheaf_status sheaf__fail(enum sheaf_status status, const char *fmt, ...) {
    char text[SHEAF__REASON_BYTES];
    if (sheaf__has_failed(sheaf__world())) return sheaf__report_failure();
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    sheaf_world_abort(text);
    return sheaf_set_error(status, "%s", text);
}

bool sheaf_world_reports_error(void) {
    const struct sheaf__world *w = sheaf__world();
    if (w->size == 1) return true;
    /* ranks that do not share a record yet go by what they agreed on */
    if (w->failure == &sheaf__own_failure && w->reporter >= 0) return w->reporter == w->rank;
    if (sheaf__has_failed(w))
        return w->failure->origin == w->rank && !atomic_load(&w->failure->outranked) &&
               !sheaf__guard_speaks() && sheaf__guard_claim(false);
    return w->reporter < 0 || w->reporter == w->rank;
}

enum sheaf_status sheaf__mpi_check(int code, const char *doing) {
    if (code == MPI_SUCCESS) return SHEAF_STATUS_SUCCESS;
    char text[MPI_MAX_ERROR_STRING] = "unknown error";
    int n = 0;
    MPI_Error_string(code, text, &n);
    return sheaf__fail(SHEAF_STATUS_PEER, "%s: MPI says: %s", doing, text);
}

static bool is_open(const struct sheaf__mpi_wait *w, int i) {
    int flag = 1;
    MPI_Status status;
    if (w->requests[i] != MPI_REQUEST_NULL) MPI_Request_get_status(w->requests[i], &flag, &status);
    return !flag;
}

/* A rank that is still loading, and gets on, may take longer than the limit. Returns the time until
 * which it may. */
static uint64_t patience(const struct sheaf__mpi_wait *w) {
    uint64_t until = w->deadline;
    for (int i = 0; i < w->n; i++) {
        const struct sheaf__line *l = sheaf__line(w->peers[i]);
        if (!l || !is_open(w, i) ||
            atomic_load_explicit(&l->kind, memory_order_relaxed) == SHEAF__KIND_EXCHANGE ||
            atomic_load_explicit(&l->phase, memory_order_relaxed) != SHEAF_PHASE_LOAD)
            continue;
        const uint64_t limit = sheaf__world()->limit_ns[SHEAF_PHASE_LOAD] +
                               atomic_load_explicit(&l->since_ns, memory_order_relaxed);
        if (limit > until) until = limit;
    }
    return until;
}

/* Names the ranks whose requests are open: "rank 2 (b), last seen in load 'x', and 3 more". */
static void name_open(const struct sheaf__mpi_wait *w, char *text, size_t size) {
    int first = -1, others = 0;
    for (int i = 0; i < w->n; i++) {
        bool counted = false;
        for (int j = 0; j < i; j++)
            counted = counted || (w->peers[j] == w->peers[i] && is_open(w, j));
        if (counted || !is_open(w, i)) continue;
        if (first < 0)
            first = w->peers[i];
        else
            others++;
    }
    if (first < 0) first = w->n ? w->peers[0] : 0;
    char where[256];
    sheaf__where(first, where, sizeof where);
    if (others)
        snprintf(text, size, "%s, and %d more ranks", where, others);
    else
        snprintf(text, size, "%s", where);
}

enum sheaf_status sheaf__mpi_wait_all(const struct sheaf__mpi_wait *w) {
    struct sheaf__world *world = sheaf__world();
    uint64_t deadline = w->deadline;
    int done = w->n == 0;
    for (unsigned spins = 1;; spins++) {
        if (!done) {
            sheaf__mpi_lock();
            int code = MPI_Testall(w->n, w->requests, &done, w->statuses);
            sheaf__mpi_unlock();
            if (code != MPI_SUCCESS) {
                char text[256];
                w->describe(w->user, text, sizeof text);
                return sheaf__mpi_check(code, text);
            }
        }
        if (done && (!w->not_before || sheaf__time_ns() >= w->not_before)) break;
        if (done) continue;
        const bool napped = w->async && sheaf__async_nap(w->async);
        /* Each test costs about a microsecond over TCP. */
        if (!napped && spins % 64 && spins < (world->crowded ? 1 : 2000)) continue;
        if (sheaf__has_failed(world)) return sheaf__report_failure();
        const uint64_t now = sheaf__time_ns();
        if (now >= deadline) {
            char doing[256], who[320];
            w->describe(w->user, doing, sizeof doing);
            sheaf__mpi_lock();
            deadline = patience(w);
            name_open(w, who, sizeof who);
            sheaf__mpi_unlock();
            if (now < deadline) {
                if (w->async)
                    sheaf__async_touch(w->async, now);
                else
                    sheaf__touch(now);
                continue;
            }
            return sheaf__fail(SHEAF_STATUS_TIMEOUT,
                               "%s: waited %.1f s for %s; if it is only slow, raise %s", doing,
                               (double)(now - w->start) * 1e-9, who,
                               w->setting ? w->setting : "SHEAF_TIMEOUT_MS");
        }
        if (napped) continue;
        /* Idle ranks wait for an interactive one: sleep more the longer it takes. */
        if (now - w->start > 1000000000u)
            nanosleep(&(struct timespec){0, 500000}, NULL);
        else if (now - w->start > 20000000u)
            nanosleep(&(struct timespec){0, 50000}, NULL);
        else
            sched_yield();
    }
    return SHEAF_STATUS_SUCCESS;
}
