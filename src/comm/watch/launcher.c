/* PMIx by dlsym: the library does not depend on it, and a process that PMIx started has it loaded.
 * Each request runs on a thread of its own, because it may never return. */
#include "comm/watch/watch.h"
#include "comm/watch/watch_impl.h"

#include <dlfcn.h>
#include <mpi.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

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

/* Of the PMIx standard, 2.0 to 5.0. */
enum { PMIX_SUCCESS = 0, PMIX_UINT32 = 14 };
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

enum { MAX_HERE = 65536 }; /* ranks of a host */

/* Keys; the job's name follows. */
static const char CLAIM[] = "sheaf.claim", TOLD[] = "sheaf.told";
static const uint64_t ABORT_NS = 1500000000; /* for the launcher to answer */
static const uint64_t CLAIM_NS = 2500000000; /* the same, and for the claim to be settled */
/* Time between a claim and the second look at it: a rank that does not see it by then has claimed
 * earlier. */
static const uint64_t SETTLE_NS = 250000000;
static const uint64_t TELL_NS =
    1500000000; /* for the rank that won the claim to print its message */

static struct {
    int status;
    _Atomic bool abort_done, claim_done, answered;
    _Atomic int claim;
} request;

bool sheaf__launcher_recovers(void) {
    const char *recovery = getenv("OMPI_MCA_orte_enable_recovery");
    return recovery && strcmp(recovery, "0");
}

/* Sets *function to one of the library, which then stays loaded. */
static bool find(void *function, const char *name) {
    void *pmix = dlopen("libpmix.so.2", RTLD_NOW), *found = pmix ? dlsym(pmix, name) : NULL;
    memcpy(function, &found, sizeof found);
    return found;
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
    leaks_are_theirs(); /* PMIx 4.2 does not free its copy of the key, and to name a leak takes 0.15 s */
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

/* ---- what Open MPI leaves ---- */

/* Names that Open MPI's vader leaves in /dev/shm when its processes end without MPI_Finalize:
 * exactly those of the ranks of this job on this host, which vader numbers from 0 on each host. A
 * process that has them mapped keeps them. Open MPI calls the host by its name up to the first dot,
 * unless the name is an address or orte_keep_fqdn_hostnames is set: both are tried. */
void sheaf__launcher_remove_names(void) {
    const char *job = getenv("PMIX_NAMESPACE"), *ranks = getenv("OMPI_COMM_WORLD_LOCAL_SIZE");
    const char *dir = getenv("OMPI_MCA_btl_vader_backing_directory");
    char *end, host[SHEAF__HOST_NAME_BYTES] = "", path[512];
    if (!job || !ranks) return;
    const unsigned long id = strtoul(job, &end, 10), n = strtoul(ranks, NULL, 10);
    if (end == job || *end || id > UINT32_MAX) return; /* another launcher's names */
    gethostname(host, sizeof host - 1);
    const int lengths[] = {(int)strlen(host), (int)strcspn(host, ".")};
    for (unsigned long r = 0; r < n && r < MAX_HERE; r++)
        for (int k = 0; k < 1 + (lengths[1] < lengths[0]); k++) {
            snprintf(path, sizeof path, "%s/vader_segment.%.*s.%u.%lx.%lu", dir ? dir : "/dev/shm",
                     lengths[k], host, geteuid(), id, r);
            unlink(path);
        }
}

/* ---- which MPI it is ---- */

const char *sheaf_world_mpi(void) {
    static char name[64];
    char text[MPI_MAX_LIBRARY_VERSION_STRING] = "";
    int n = 0;
    if (name[0]) return name;
    if (MPI_Get_library_version(text, &n) != MPI_SUCCESS || !text[0]) return "unknown";
    text[strcspn(text, ",\n")] = 0; /* "MPICH Version:\t4.0.2", "Open MPI v4.1.4, package: ..." */
    for (char *p = text; *p; p++)
        if (*p == '\t') *p = ' ';
    snprintf(name, sizeof name, "%.*s", (int)sizeof name - 1, text);
    return name;
}

/* Slurm's plugin names the job "slurm.pmix.JOB.STEP", and answers PMIx_Publish and PMIx_Lookup with
 * PMIX_ERR_NOT_SUPPORTED (src/plugins/mpi/pmix/pmixp_info.c, pmixp_client_v2.c of Slurm). */
static bool is_slurm_pmix(void) {
    static const char slurm[] = "slurm.pmix.";
    const char *job = getenv("PMIX_NAMESPACE");
    return job && !strncmp(job, slurm, sizeof slurm - 1);
}

static bool has_claims(void) {
    publish_fn *put = NULL;
    return getenv("PMIX_RANK") && !is_slurm_pmix() && find(&put, "PMIx_Publish");
}
static bool has_daemons(void) { return getenv("OMPI_MCA_orte_local_daemon_uri"); }
static bool is_open_mpi(void) { return !strncmp(sheaf_world_mpi(), "Open MPI", 8); }

const char *sheaf_world_mpi_lacks(size_t i) {
    static const struct {
        bool (*has)(void);
        const char *text;
    } wants[] = {
        {has_claims, "the launcher has no PMIx publish and lookup: a job that fails before its "
                     "ranks have met may be reported by one rank of each host"},
        {has_daemons, "the launcher's addresses are unknown: control connections between hosts use "
                      "those of the host's name, or SHEAF_CONTROL_ADDRESS"},
        {is_open_mpi,
         "names that MPI leaves in /dev/shm when its ranks are killed are not removed"},
        {is_open_mpi, "sheaf-comm-bench compares with MPI's default collectives alone: components "
                      "are Open MPI's"},
    };
    for (size_t k = 0; k < sizeof wants / sizeof *wants; k++)
        if (!wants[k].has() && i-- == 0) return wants[k].text;
    return NULL;
}

/* 0: the variable is not set, or no number of ranks */
static int number_from(const char *name) {
    const char *text = getenv(name);
    const long n = text ? strtol(text, NULL, 10) : 0;
    return n > 0 && n < INT32_MAX ? (int)n : 0;
}

static int rank_from(const char *name) {
    const char *text = getenv(name);
    return text ? atoi(text) : 0;
}

struct sheaf__launch sheaf__launcher_job(void) {
    static const char *const sizes[] = {"OMPI_COMM_WORLD_SIZE", "PMI_SIZE"};
    static const char *const ranks[] = {"OMPI_COMM_WORLD_RANK", "PMI_RANK"};
    static const char other[] = "the launcher is another MPI's; use that one's mpirun or mpiexec";
    const struct sheaf__launch one = {1, 0, other};
    struct sheaf__launch job = one;
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        const int n = number_from(sizes[i]);
        if (n == 1) return one; /* a launcher inside another one's rank */
        if (n > 1) job = (struct sheaf__launch){n, rank_from(ranks[i]), other};
    }
    if (job.size > 1 || !is_slurm_pmix()) return job;
    /* PMIx has no variable for the size. Tasks of a step without --mpi may be programs of one. */
    const int n = number_from("SLURM_STEP_NUM_TASKS");
    return (struct sheaf__launch){
        n > 1 ? n : 1, n > 1 ? rank_from("PMIX_RANK") : 0,
        "it has not joined srun's PMIx; use that MPI's mpirun or mpiexec, or another kind of "
        "srun --mpi (srun --mpi=list names them)"};
}
