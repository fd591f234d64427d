/* Writing flight records while a job fails. The file system may be what failed: each request has a
 * thread of its own, which may stay in the kernel for ever, and a limit for those that wait for
 * it. */
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/settings.h"
#include "base/thread.h"
#include "comm/diag/recorder.h"
#include "comm/watch/watch_impl.h"

static const uint64_t DUMP_NS = 2000000000;

static _Atomic int under_way;

struct request {
    int n;
    struct sheaf__dump list[];
};

static void *write_all(void *arg) {
    struct request *r = arg;
    for (int i = 0; i < r->n; i++) sheaf__recorder_dump(r->list[i].rank, r->list[i].place);
    free(r);
    atomic_fetch_sub(&under_way, 1);
    return NULL;
}

void sheaf__dumps_write(const struct sheaf__dump *list, int n) {
    pthread_t thread;
    /* In a crash a new thread may wait for a lock of the loader, so none is started for nothing. */
    if (!sheaf__setting_text(SHEAF__SET_FLIGHT_DIR)) return;
    struct request *r = malloc(sizeof *r + (size_t)n * sizeof *list);
    if (!r) return;
    r->n = n;
    memcpy(r->list, list, (size_t)n * sizeof *list);
    atomic_fetch_add(&under_way, 1);
    if (!sheaf__thread_start(&thread, write_all, r)) {
        pthread_detach(thread);
        return;
    }
    atomic_fetch_sub(&under_way, 1);
    free(r);
}

void sheaf__dumps_await(void) {
    const uint64_t end = sheaf__time_ns() + DUMP_NS;
    while (atomic_load(&under_way) && sheaf__time_ns() < end) sheaf__nap(2000000);
}
