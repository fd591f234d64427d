/* How a failure anywhere becomes a failure everywhere.
 *
 * Ranks of one host share a record; other hosts get an alarm message, for which every rank keeps a
 * receive posted that all waits test. The first to take the record writes the text, nobody changes
 * it afterwards. After that MPI is called only to send the alarm. */
#include <pthread.h>
#include <sched.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include "comm/world.h"

enum {
    ALARM_TAG = 1,
    ALARM_HEADER = 8, /* magic, origin */
    ALARM_BYTES = ALARM_HEADER + SHEAF__REASON_BYTES,
    ALARM_MAGIC = 0x53484146, /* "SHAF" */
};
static const uint64_t ALARM_SEND_NS = 200000000; /* how long to push an alarm out */
/* Several hosts often notice the same thing at once; so long, the lowest rank may take the word. */
static const uint64_t ALARM_LISTEN_NS = 60000000;

static pthread_mutex_t mpi_mutex = PTHREAD_MUTEX_INITIALIZER;
static MPI_Request alarm_request = MPI_REQUEST_NULL;
static uint8_t alarm_in[ALARM_BYTES], alarm_out[ALARM_BYTES];
static _Atomic bool outranked; /* a lower rank reports a failure too */

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

/* True if this call took the record. */
static bool record(int origin, const char *text) {
    struct sheaf__failure *f = sheaf__world()->failure;
    int healthy = SHEAF__HEALTHY;
    if (!atomic_compare_exchange_strong(&f->state, &healthy, SHEAF__FAILING)) return false;
    f->origin = origin;
    snprintf(f->text, sizeof f->text, "%s", text);
    atomic_store_explicit(&f->state, SHEAF__FAILED, memory_order_release);
    return true;
}

void sheaf__poll_alarm_locked(void) {
    if (alarm_request == MPI_REQUEST_NULL || sheaf__has_failed(sheaf__world())) return;
    int flag = 0, count = 0;
    MPI_Status status;
    if (MPI_Test(&alarm_request, &flag, &status) || !flag) return;
    MPI_Get_count(&status, MPI_BYTE, &count);
    int origin = status.MPI_SOURCE;
    const char *text = "sent a broken alarm message";
    if (count == ALARM_BYTES && sheaf__get_le(alarm_in, 4) == ALARM_MAGIC) {
        origin = (int)sheaf__get_le(alarm_in + 4, 4);
        alarm_in[ALARM_BYTES - 1] = 0;
        text = (const char *)alarm_in + ALARM_HEADER;
    }
    record(origin, text);
}

void sheaf__poll_alarm(void) {
    if (alarm_request == MPI_REQUEST_NULL || pthread_mutex_trylock(&mpi_mutex)) return;
    sheaf__poll_alarm_locked();
    pthread_mutex_unlock(&mpi_mutex);
}

enum sheaf_status sheaf__start_alarm(void) {
    sheaf__mpi_lock();
    int code = MPI_Irecv(alarm_in, ALARM_BYTES, MPI_BYTE, MPI_ANY_SOURCE, ALARM_TAG,
                         sheaf__world()->alarm, &alarm_request);
    sheaf__mpi_unlock();
    return sheaf__mpi_check(code, "post the alarm receive");
}

void sheaf__stop_alarm(void) {
    if (alarm_request == MPI_REQUEST_NULL) return;
    sheaf__mpi_lock();
    MPI_Cancel(&alarm_request);
    MPI_Wait(&alarm_request, MPI_STATUS_IGNORE); /* of a cancelled receive: local */
    sheaf__mpi_unlock();
}

/* Hears who else raises an alarm. Holds the lock. */
static void listen_locked(void) {
    struct sheaf__world *w = sheaf__world();
    const uint64_t end = sheaf__time_ns() + ALARM_LISTEN_NS;
    while (!outranked && sheaf__time_ns() < end) {
        int flag = 0;
        MPI_Status status;
        if (MPI_Test(&alarm_request, &flag, &status)) return;
        if (!flag) {
            nanosleep(&(struct timespec){0, 100000}, NULL);
            continue;
        }
        outranked = status.MPI_SOURCE < w->rank;
        if (MPI_Irecv(alarm_in, ALARM_BYTES, MPI_BYTE, MPI_ANY_SOURCE, ALARM_TAG, w->alarm,
                      &alarm_request))
            return;
    }
}

/* Tells every rank that does not see our record. Ranks that are themselves failing do not answer;
 * nobody waits for them. */
static void send_alarm(const char *text) {
    struct sheaf__world *w = sheaf__world();
    if (!w->mpi || alarm_request == MPI_REQUEST_NULL) return;
    MPI_Request *requests = malloc((size_t)w->size * sizeof *requests);
    if (!requests) return;
    sheaf__mpi_lock();
    sheaf__put_le(alarm_out, ALARM_MAGIC, 4);
    sheaf__put_le(alarm_out + 4, (uint64_t)w->rank, 4);
    snprintf((char *)alarm_out + ALARM_HEADER, SHEAF__REASON_BYTES, "%s", text);
    int n = 0, done = 0;
    for (int r = 0; r < w->size; r++) {
        if (w->share_of[r] == w->share_of[w->rank]) continue;
        if (MPI_Isend(alarm_out, ALARM_BYTES, MPI_BYTE, r, ALARM_TAG, w->alarm, &requests[n]) ==
            MPI_SUCCESS)
            n++;
    }
    const uint64_t end = sheaf__time_ns() + ALARM_SEND_NS;
    while (n && !done && sheaf__time_ns() < end) {
        if (MPI_Testall(n, requests, &done, MPI_STATUSES_IGNORE)) break;
        if (!done) sched_yield();
    }
    if (n) listen_locked();
    sheaf__mpi_unlock();
    free(requests); /* unfinished sends keep their own state; alarm_out is static */
}

void sheaf_world_abort(const char *reason) {
    const char *text = reason && reason[0] ? reason : "the job was aborted";
    if (record(sheaf__world()->rank, text)) send_alarm(text);
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
    if (sheaf__has_failed(w)) return w->failure->origin == w->rank && !outranked;
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

/* Names the ranks whose requests are open: "rank 2 (b)", "rank 2 (b) and 3 others". */
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
    if (others)
        snprintf(text, size, "%s and %d more", sheaf__rank_text(first), others);
    else
        snprintf(text, size, "%s", sheaf__rank_text(first));
}

enum sheaf_status sheaf__mpi_wait_all(const struct sheaf__mpi_wait *w) {
    struct sheaf__world *world = sheaf__world();
    int done = w->n == 0;
    for (unsigned spins = 1;; spins++) {
        if (!done) {
            sheaf__mpi_lock();
            int code = MPI_Testall(w->n, w->requests, &done, w->statuses);
            if (!done && spins % 64 == 0) sheaf__poll_alarm_locked();
            sheaf__mpi_unlock();
            if (code != MPI_SUCCESS) {
                char text[256];
                w->describe(w->user, text, sizeof text);
                return sheaf__mpi_check(code, text);
            }
        }
        if (done && (!w->not_before || sheaf__time_ns() >= w->not_before)) break;
        if (done) continue;
        /* Each test costs about a microsecond over TCP. */
        if (spins % 64 && spins < (world->crowded ? 1 : 2000)) continue;
        if (sheaf__has_failed(world)) return sheaf__report_failure();
        const uint64_t now = sheaf__time_ns();
        if (now >= w->deadline) {
            char doing[256], who[128];
            w->describe(w->user, doing, sizeof doing);
            sheaf__mpi_lock();
            name_open(w, who, sizeof who);
            sheaf__mpi_unlock();
            return sheaf__fail(SHEAF_STATUS_TIMEOUT,
                               "%s: waited %.1f s for %s in vain; if it is only slow, raise "
                               "SHEAF_TIMEOUT_MS",
                               doing, (double)(now - w->start) * 1e-9, who);
        }
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
