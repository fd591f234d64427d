/* A call on a thread of its own, waited for with a deadline: for calls of a library that may never
 * return. A call that did not return in time is left behind, with its thread; what it uses must
 * stay. */
#ifndef SHEAF_COMM_NCCL_ASIDE_H
#define SHEAF_COMM_NCCL_ASIDE_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdlib.h>

#include "base/clock.h"
#include "base/thread.h"

struct sheaf__aside {
    void (*call)(void *);
    void *with;
    atomic_int owners; /* the thread and the caller; the last frees */
    atomic_bool returned;
};

static inline void sheaf__aside_drop(struct sheaf__aside *a) {
    if (atomic_fetch_sub(&a->owners, 1) == 1) free(a);
}

static inline void *sheaf__aside_main(void *user) {
    struct sheaf__aside *a = user;
    a->call(a->with);
    atomic_store(&a->returned, true);
    sheaf__aside_drop(a);
    return NULL;
}

/* Runs call(with); true once it has returned, false if over(user) came first, or there is no memory
 * or thread for it: then it was not begun, and *begun is false. */
static inline bool sheaf__aside(void (*call)(void *), void *with, bool (*over)(const void *),
                                const void *user, bool *begun) {
    struct sheaf__aside *a = calloc(1, sizeof *a);
    pthread_t thread;
    *begun = false;
    if (!a) return false;
    a->call = call;
    a->with = with;
    atomic_store(&a->owners, 2);
    if (sheaf__thread_start(&thread, sheaf__aside_main, a)) {
        free(a);
        return false;
    }
    *begun = true;
    pthread_detach(thread);
    bool returned = false;
    while (!(returned = atomic_load(&a->returned)) && !over(user)) sheaf__nap(50000);
    returned = returned || atomic_load(&a->returned);
    sheaf__aside_drop(a);
    return returned;
}

#endif
