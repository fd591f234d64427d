/* Requests to the launcher, by PMIx. Its functions are found by dlsym: the library does not depend
 * on it, and a process that PMIx started has it loaded. Each request runs on a thread of its own,
 * because it may never return. */
#include "comm/watch/watch.h"
#include "comm/watch/watch_impl.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/thread.h"
#include "comm/world/world.h"
#include "sheaf/world.h"

/* What PMIx allocates for the calling thread is no leak of this library. */
#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/lsan_interface.h>
static void leaks_are_theirs(void) { __lsan_disable(); }
static void leaks_are_ours(void) { __lsan_enable(); }
#else
static void leaks_are_theirs(void) {}
static void leaks_are_ours(void) {}
#endif

/* Of the PMIx standard, 2.0 to 5.0; the code of a lost server is another one since 4.0. */
enum { PMIX_SUCCESS = 0, PMIX_UINT32 = 14, PMIX_LOST_SERVER = -101, PMIX_LOST_CONNECTION = -61 };
struct pmix_value {
    uint16_t type;
    union {
        uint32_t number;
        uint64_t room[8]; /* more than any of its members */
    } data;
};
struct pmix_info {
    char key[512];
    uint32_t flags;
    struct pmix_value value;
};
struct pmix_proc {
    char nspace[256];
    uint32_t rank;
};
struct pmix_pdata {
    struct pmix_proc from;
    char key[512];
    struct pmix_value value;
};
typedef int initialized_fn(void);
typedef int init_fn(struct pmix_proc *self, const struct pmix_info *info, size_t n);
typedef int abort_fn(int status, const char *text, void *procs, size_t n_procs);
typedef int publish_fn(const struct pmix_info *info, size_t n);
typedef int lookup_fn(struct pmix_pdata *data, size_t n, const struct pmix_info *info,
                      size_t n_info);
typedef void handled_fn(int status, struct pmix_info *results, size_t n, void (*done)(int, void *),
                        void *done_data, void *data);
typedef void handler_fn(size_t id, int code, const struct pmix_proc *source, struct pmix_info *info,
                        size_t n_info, struct pmix_info *results, size_t n_results,
                        handled_fn *handled, void *data);
typedef int register_fn(int *codes, size_t n_codes, struct pmix_info *info, size_t n_info,
                        handler_fn *handler, void (*registered)(int, size_t, void *), void *data);

/* Keys; the job's name follows. */
static const char CLAIM[] = "sheaf.claim", TOLD[] = "sheaf.told";
static const uint64_t ABORT_NS = 1500000000; /* for the launcher to answer */
static const uint64_t CLAIM_NS = 2500000000; /* the same, and for the claim to be settled */
/* Time between a claim and the second look at it: a rank that does not see it by then has claimed
 * earlier. */
static const uint64_t SETTLE_NS = 250000000;
/* For the rank that won the claim to print its message. */
static const uint64_t TELL_NS = 1500000000;

static struct {
    int status;
    _Atomic bool abort_done, claim_done, answered;
    _Atomic int claim;
} request;

/* Sets *function to one of the library, which then stays loaded. */
static bool find(void *function, const char *name) {
    void *pmix = dlopen("libpmix.so.2", RTLD_NOW), *found = pmix ? dlsym(pmix, name) : NULL;
    memcpy(function, &found, sizeof found);
    return found;
}

bool sheaf__launcher_publishes(void) {
    publish_fn *put = NULL;
    return getenv("PMIX_RANK") && find(&put, "PMIx_Publish");
}

/* Returns when *done is set, or the time is over. */
static void ask(void *(*run)(void *), const _Atomic bool *done, uint64_t limit) {
    pthread_t thread;
    if (sheaf__thread_start(&thread, run, NULL)) return;
    pthread_detach(thread);
    const uint64_t end = sheaf__time_ns() + limit;
    while (!atomic_load(done) && sheaf__time_ns() < end) sheaf__nap(5000000);
}

static void *run_abort(void *arg) {
    abort_fn *end_job = NULL;
    (void)arg;
    if (find(&end_job, "PMIx_Abort")) end_job(request.status, NULL, NULL, 0);
    atomic_store(&request.abort_done, true);
    return NULL;
}

void sheaf__launcher_abort(int status) {
    request.status = status;
    ask(run_abort, &request.abort_done, ABORT_NS);
}

/* ---- which rank prints the message ---- */

static void set_key(char *to, size_t size, const char *key) {
    const char *job = getenv("PMIX_NAMESPACE");
    snprintf(to, size, "%s.%.255s", key, job ? job : "");
}

/* The launcher keeps what ranks publish, in order, and shows the latest. */
static int publish(publish_fn *fn, const char *key, uint32_t number) {
    struct pmix_info info = {.value = {.type = PMIX_UINT32, .data.number = number}};
    set_key(info.key, sizeof info.key, key);
    return fn(&info, 1);
}

static bool published(lookup_fn *fn, const char *key, uint32_t *number) {
    struct pmix_pdata data = {0};
    set_key(data.key, sizeof data.key, key);
    /* PMIx 4.2 does not free its copy of the key, and to name a leak takes 0.15 s */
    leaks_are_theirs();
    const int status = fn(&data, 1, NULL, 0);
    leaks_are_ours();
    *number = data.value.data.number;
    return status == PMIX_SUCCESS && data.value.type == PMIX_UINT32;
}

static enum sheaf__claim settle(publish_fn *put, lookup_fn *get, uint32_t me) {
    uint32_t latest = 0;
    if (published(get, TOLD, &latest)) return SHEAF__CLAIM_LOST;
    if (publish(put, CLAIM, me)) return SHEAF__CLAIM_UNKNOWN;
    sheaf__nap(SETTLE_NS);
    const bool seen = published(get, CLAIM, &latest);
    const uint64_t end = sheaf__time_ns() + TELL_NS;
    do {
        uint32_t speaker;
        if (published(get, TOLD, &speaker)) return SHEAF__CLAIM_LOST;
        if (!seen || latest == me) break;
        sheaf__nap(20000000);
    } while (sheaf__time_ns() < end);
    return publish(put, TOLD, me) ? SHEAF__CLAIM_UNKNOWN : SHEAF__CLAIM_WON;
}

static void *run_claim(void *arg) {
    initialized_fn *initialized = NULL;
    init_fn *init = NULL;
    publish_fn *put = NULL;
    lookup_fn *get = NULL;
    struct pmix_proc self;
    const char *rank = getenv("PMIX_RANK");
    (void)arg;
    if (rank && find(&initialized, "PMIx_Initialized") && find(&init, "PMIx_Init") &&
        find(&put, "PMIx_Publish") && find(&get, "PMIx_Lookup") &&
        (initialized() || !init(&self, NULL, 0))) /* the main thread may not have come so far */
        atomic_store(&request.claim, (int)settle(put, get, (uint32_t)strtoul(rank, NULL, 10)));
    atomic_store(&request.claim_done, true);
    return NULL;
}

enum sheaf__claim sheaf__launcher_claim(void) {
    ask(run_claim, &request.claim_done, CLAIM_NS);
    return (enum sheaf__claim)atomic_load(&request.claim);
}

/* ---- is it there? ---- */

static void *run_question(void *arg) {
    lookup_fn *get = NULL;
    uint32_t number;
    (void)arg;
    if (find(&get, "PMIx_Lookup")) published(get, TOLD, &number); /* any answer will do */
    atomic_store(&request.answered, true);
    return NULL;
}

void sheaf__launcher_await(uint64_t limit_ns) {
    pthread_t thread;
    if (!getenv("PMIX_RANK") || sheaf__thread_start(&thread, run_question, NULL)) return;
    const uint64_t end = sheaf__time_ns() + limit_ns;
    for (uint64_t now = 0; !atomic_load(&request.answered) && now < end; sheaf__nap(100000)) {
        now = sheaf__time_ns();
        if (sheaf__end_is_expected(now) || sheaf__has_failed(sheaf__world())) break;
    }
    if (atomic_load(&request.answered))
        pthread_join(thread, NULL);
    else
        pthread_detach(thread);
}

/* ---- is it gone? ---- */

static void (*lost)(void);

static void on_lost(size_t id, int code, const struct pmix_proc *source, struct pmix_info *info,
                    size_t n_info, struct pmix_info *results, size_t n_results, handled_fn *handled,
                    void *data) {
    (void)id, (void)code, (void)source, (void)info, (void)n_info, (void)results, (void)n_results;
    lost();
    if (handled) handled(PMIX_SUCCESS, NULL, 0, NULL, NULL, data);
}

static void on_registered(int status, size_t id, void *data) {
    (void)status, (void)id, (void)data; /* without it names are left, no more */
}

void sheaf__launcher_expect_loss(void (*on_loss)(void)) {
    static int codes[] = {PMIX_LOST_CONNECTION, PMIX_LOST_SERVER};
    register_fn *register_handler = NULL;
    Dl_info here;
    if (lost || !getenv("PMIX_RANK") || !find(&register_handler, "PMIx_Register_event_handler"))
        return;
    /* PMIx may call it until the process ends, so a library that has it must not be unloaded. */
    if (dladdr(codes, &here)) (void)dlopen(here.dli_fname, RTLD_LAZY | RTLD_NOLOAD | RTLD_NODELETE);
    lost = on_loss;
    register_handler(codes, sizeof codes / sizeof *codes, NULL, 0, on_lost, on_registered, NULL);
}
