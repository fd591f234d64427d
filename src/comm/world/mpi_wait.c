/* The only ways to call MPI between start and end: under one lock, and with a deadline. */
#include <pthread.h>
#include <stdio.h>

#include "comm/world/world.h"

static const uint64_t LOOK_NS = 100000000; /* between looks at a rank that loads */

enum sheaf_status sheaf__mpi_allowed(const char *doing) {
    if (!sheaf__world()->one_thread || sheaf__board_is_main()) return SHEAF_STATUS_SUCCESS;
    return sheaf_set_error(SHEAF_STATUS_INVALID,
                           "%s: MPI was initialized below MPI_THREAD_SERIALIZED, so that only the "
                           "thread that called sheaf_world_init may exchange data between hosts",
                           doing);
}

static pthread_mutex_t mpi_mutex = PTHREAD_MUTEX_INITIALIZER;
void sheaf__mpi_lock(void) { pthread_mutex_lock(&mpi_mutex); }
void sheaf__mpi_unlock(void) { pthread_mutex_unlock(&mpi_mutex); }

static enum sheaf_status fail_by(int code, const char *doing, const char *of, const char *rank) {
    char text[MPI_MAX_ERROR_STRING] = "unknown error";
    int n = 0;
    MPI_Error_string(code, text, &n);
    return sheaf__fail(SHEAF_STATUS_PEER, "%s: MPI says%s%s: %s", doing, of, rank, text);
}

enum sheaf_status sheaf__mpi_check(int code, const char *doing) {
    return code == MPI_SUCCESS ? SHEAF_STATUS_SUCCESS : fail_by(code, doing, "", "");
}

/* A test of several requests says only that some failed; each one's status says how. */
static enum sheaf_status fail_of_requests(const struct sheaf__mpi_wait *w, int code) {
    char doing[256];
    w->describe(w->user, doing, sizeof doing);
    for (int i = 0; code == MPI_ERR_IN_STATUS && i < w->n; i++) {
        const int one = w->statuses[i].MPI_ERROR;
        if (one != MPI_SUCCESS && one != MPI_ERR_PENDING)
            return fail_by(one, doing, " of the message with ", sheaf__rank_text(w->peers[i]));
    }
    return sheaf__mpi_check(code, doing);
}

static bool is_open(const struct sheaf__mpi_wait *w, int i) {
    int flag = 1;
    MPI_Status status;
    if (w->requests[i] != MPI_REQUEST_NULL) MPI_Request_get_status(w->requests[i], &flag, &status);
    return !flag;
}

bool sheaf__loads(int rank, uint64_t now) {
    const struct sheaf__line *l = sheaf__line(rank);
    if (!l) return false;
    const struct sheaf__doing d = sheaf__doing(l);
    return d.phase == SHEAF_PHASE_LOAD && !d.exchanges &&
           now < d.since_ns + sheaf__world()->limit_ns[SHEAF_PHASE_LOAD];
}

bool sheaf__forgive_load(struct sheaf__absence *a, bool loads, uint64_t late, uint64_t limit) {
    if (!loads && !a->loading) return false;
    a->total += late + (loads ? LOOK_NS : limit);
    a->loading = loads;
    return true;
}

static bool any_loads(const struct sheaf__mpi_wait *w, uint64_t now) {
    bool any = false;
    if (w->loads) return w->loads(w->user, now);
    sheaf__mpi_lock();
    for (int i = 0; i < w->n && !any; i++) any = sheaf__loads(w->peers[i], now) && is_open(w, i);
    sheaf__mpi_unlock();
    return any;
}

/* Names the ranks whose requests are open: "rank 2 (b), last seen in load 'x', and 3 more ranks". */
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
        snprintf(text, size, "%s, and %d more rank%s", where, others, others == 1 ? "" : "s");
    else
        snprintf(text, size, "%s", where);
}

static enum sheaf_status fail_late(const struct sheaf__mpi_wait *w, uint64_t waited) {
    char doing[256], missing[320];
    w->describe(w->user, doing, sizeof doing);
    sheaf__mpi_lock();
    name_open(w, missing, sizeof missing);
    sheaf__mpi_unlock();
    return sheaf__fail(
        SHEAF_STATUS_TIMEOUT, "%s: waited %.1f s for %s; if it is only slow, raise %s", doing,
        (double)waited * 1e-9, missing, w->setting ? w->setting : "SHEAF_TIMEOUT_MS");
}

enum sheaf_status sheaf__mpi_wait_all(const struct sheaf__mpi_wait *w) {
    struct sheaf__world *world = sheaf__world();
    int done = w->n == 0;
    for (unsigned spins = 1;; spins++) {
        if (!done) {
            sheaf__mpi_lock();
            int code = MPI_Testall(w->n, w->requests, &done, w->statuses);
            sheaf__mpi_unlock();
            if (code != MPI_SUCCESS) return fail_of_requests(w, code);
        }
        if (done && (!w->not_before || sheaf__time_ns() >= w->not_before)) break;
        if (done) continue;
        const bool napped = w->idle && w->idle->nap(w->idle);
        /* Each test costs about a microsecond over TCP. */
        if (!napped && spins % 64 && spins < (world->crowded ? 1 : 2000)) continue;
        if (sheaf__has_failed(world)) return sheaf__report_failure();
        const uint64_t now = sheaf__time_ns(), away = sheaf__away(w->away, now);
        if (!w->unlimited && now >= w->deadline + away) {
            if (!sheaf__forgive_load(w->away, any_loads(w, now), now - (w->deadline + away),
                                     w->deadline - w->start))
                return fail_late(w, now - w->start - away);
            sheaf__touch_idle(w->idle, now);
        }
        if (napped) continue;
        /* Idle ranks may wait for an interactive one: the longer the wait, the longer the sleep. */
        if (w->unlimited && now - w->start > 5000000000u)
            sheaf__nap(5000000);
        else
            sheaf__back_off(now - w->start);
    }
    return SHEAF_STATUS_SUCCESS;
}
