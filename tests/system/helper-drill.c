/* Started by drill.py under mpirun: `helper-drill FAULT PLACE CULPRIT MODEL [TOKEN]`. Loads a model
 * and generates some tokens; on rank CULPRIT (-1: on all), FAULT happens at PLACE:
 *
 *   init        on the way into MPI_Init     started     in compute, beside a started collective
 *   start       after it                     awaited     while it waits for a started collective
 *   load        between two tensors          finalize    on the way out
 *   plan, compute                            mpi_end     on the way into MPI_Finalize
 *   collective  in one of them               none        nowhere: the run succeeds
 *
 * Prints "drill: error" once a job and returns 1 after an error. Writes the time of the fault to
 * DRILL_DIR/fault. */
#include <dlfcn.h>
#include <execinfo.h>
#include <malloc.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "base/launcher.h"
#include "comm/testing.h"
#include "model/run/evaluator.h"
#include "model/run/session.h"
#include "sheaf/version.h"
#include "start_job.h"

static const char *fault, *place;
static bool culprit;

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static void note_time(void) {
    char path[512];
    snprintf(path, sizeof path, "%s/fault", getenv("DRILL_DIR"));
    FILE *f = fopen(path, "w");
    if (!f) return;
    fprintf(f, "%.6f\n", now());
    fclose(f);
}

static void shell(const char *command) {
    const int status = system(command);
    if (status) fprintf(stderr, "drill cannot: %s (status %d)\n", command, status);
}

enum { LARGE = 100000 };

/* In place of libc's, with which Open MPI's signal handler prints the stack: with the fault "stuck"
 * the handler allocates memory. */
int backtrace(void **frames, int n) {
    static int (*own)(void **, int);
    void *found = own ? NULL : dlsym(RTLD_NEXT, __func__);
    if (!own) memcpy(&own, &found, sizeof own);
    void *volatile block = strcmp(fault, "stuck") ? NULL : malloc(LARGE);
    free(block);
    return own(frames, n);
}

/* glibc aborts when it finds the damage, and holds the heap's lock then: a signal handler that
 * allocates memory waits for ever, since the small blocks at hand are taken, too. The last of many
 * large blocks lies before what was never allocated, whose size follows it. */
static void damage_heap(void) {
    enum { SMALL = 1024, STEP = 16, EACH = 16, BLOCKS = 100 };
    void *volatile block = NULL;
    for (size_t n = STEP; n <= SMALL; n += STEP)
        for (int i = 0; i < EACH; i++) block = malloc(n);
    for (int i = 0; i < BLOCKS; i++) block = malloc(LARGE);
    memset((char *)block + malloc_usable_size(block), 0xff, sizeof(size_t));
    for (int i = 0; i < BLOCKS; i++) block = malloc(LARGE);
}

static void happen(void) {
    note_time();
    if (!strcmp(fault, "heap") || !strcmp(fault, "stuck")) damage_heap();
    if (!strcmp(fault, "kill")) raise(SIGKILL);
    if (!strcmp(fault, "stop")) raise(SIGSTOP);
    if (!strcmp(fault, "exit")) _exit(0);
    if (!strcmp(fault, "hang")) pause(); /* the process lives, its main thread does not come back */
    if (!strcmp(fault, "late")) sleep(5);
    /* this process is in the network namespace of its host */
    if (!strcmp(fault, "down")) shell("ip link set eth0 down");
    if (!strcmp(fault, "oneway")) /* it hears the others, and they do not hear it */
        shell("nft add table inet drill && nft 'add chain inet drill out { type filter hook output "
              "priority 0 ; }' && nft add rule inet drill out oifname eth0 drop");
    if (!strcmp(fault, "loss30"))
        shell("nft add table inet drill && nft 'add chain inet drill out { type filter hook output "
              "priority 0 ; }' && nft add rule inet drill out oifname eth0 numgen random mod 100 "
              "\\< 30 "
              "drop");
    if (!strcmp(fault, "loss"))
        shell("tc qdisc replace dev eth0 root tbf rate 8kbit burst 1600 limit 1600");
}

/* What the main thread does with started collectives. */
static enum { ANY, NOTHING, STARTED, AWAITS } beside = NOTHING;

static const struct {
    const char *name;
    enum sheaf_phase phase;
    const char *what; /* NULL: any */
    int nth, beside;
} places[] = {
    {"init", SHEAF_PHASE_START, "MPI_Init", 1, ANY},
    {"start", SHEAF_PHASE_START, "agree 'start'", 3, ANY},
    {"load", SHEAF_PHASE_LOAD, NULL, 12, ANY},
    {"plan", SHEAF_PHASE_PLAN, NULL, 3, ANY},
    {"compute", SHEAF_PHASE_COMPUTE, NULL, 40, ANY},
    {"collective", SHEAF_PHASE_COLLECTIVE, NULL, 60, ANY},
    {"started", SHEAF_PHASE_COMPUTE, NULL, 20, STARTED},
    {"awaited", SHEAF_PHASE_COLLECTIVE, NULL, 5, AWAITS},
    {"finalize", SHEAF_PHASE_FINALIZE, NULL, 1, ANY},
    {"mpi_end", SHEAF_PHASE_FINALIZE, "MPI_Finalize", 1, ANY},
};

static void hook(enum sheaf_phase phase, const char *what) {
    static int count;
    for (size_t i = 0; i < sizeof places / sizeof *places; i++) {
        if (!culprit || strcmp(place, places[i].name) || phase != places[i].phase) continue;
        if (places[i].what && (!what || strcmp(what, places[i].what))) continue;
        if (places[i].beside && places[i].beside != (int)beside) continue;
        if (++count == places[i].nth) happen();
    }
}

/* In place of the library's own: the culprit may run another version. */
const char *sheaf_version(void) {
    const char *(*own)(void) = NULL;
    void *found = dlsym(RTLD_NEXT, __func__);
    memcpy(&own, &found, sizeof own);
    return culprit && !strcmp(fault, "version") ? "99.0.0" : own();
}

/* These two, too: between them a collective is under way. */
enum sheaf_status sheaf_comm_start(struct sheaf_comm *comm, int member,
                                   const struct sheaf_comm_call *call, uint64_t *ticket) {
    enum sheaf_status (*start)(struct sheaf_comm *, int, const struct sheaf_comm_call *,
                               uint64_t *) = NULL;
    void *found = dlsym(RTLD_NEXT, __func__);
    memcpy(&start, &found, sizeof start);
    const enum sheaf_status st = start(comm, member, call, ticket);
    beside = STARTED;
    return st;
}

enum sheaf_status sheaf_comm_wait(struct sheaf_comm *comm, int member, uint64_t ticket) {
    enum sheaf_status (*wait)(struct sheaf_comm *, int, uint64_t) = NULL;
    void *found = dlsym(RTLD_NEXT, __func__);
    memcpy(&wait, &found, sizeof wait);
    beside = AWAITS;
    const enum sheaf_status st = wait(comm, member, ticket);
    beside = NOTHING;
    return st;
}

static bool starts(void) { return !strcmp(place, "started") || !strcmp(place, "awaited"); }

static enum sheaf_status generate(struct sheaf__session *s) {
    enum { PROMPT = 12, CHUNKED = 64 }; /* tokens */
    int32_t ids[CHUNKED];
    for (int i = 0; i < CHUNKED; i++) ids[i] = (7 * i + 1) % 200;
    /* another graph: other shapes, or other nodes */
    const int64_t n = culprit && !strcmp(fault, "shapes") ? PROMPT - 1 : PROMPT;
    const bool all = culprit && !strcmp(fault, "graph");
    enum sheaf_status st = sheaf__evaluator_eval(s->context, ids, n, all);
    for (int i = 0; i < (starts() ? 10 : 40) && !st; i++) {
        ids[0] = i + 10;
        st = sheaf_world_broadcast(ids, sizeof *ids, 0, "the next token");
        if (!st) st = sheaf__evaluator_eval(s->context, ids, starts() ? CHUNKED : 1, false);
    }
    return st;
}

int main(int argc, char **argv) {
    const char *rank = sheaf__launcher_rank();
    struct sheaf__session *session = NULL;
    if (argc < 5 || !rank) return 2;
    fault = argv[1];
    place = argv[2];
    culprit = atoi(rank) == atoi(argv[3]) || atoi(argv[3]) == -1;
    /* as sheaf-run does: the launcher's signal is no reason to forget the message */
    sigaction(SIGTERM, &(struct sigaction){.sa_handler = SIG_IGN}, NULL);
    sheaf__phase_hook = hook;
    if (!strcmp(place, "none")) note_time();
    const struct sheaf_model_params params = {
        .size = sizeof params,
        .path = culprit && !strcmp(fault, "model") ? getenv("DRILL_OTHER_MODEL") : argv[4],
        .overlap = starts() ? "on" : "off",
        .n_ctx = 1024,
        .kv_type = SHEAF_TYPE_F16};
    enum sheaf_status st = start_job();
    if (!st) st = sheaf__session_new(&params, &session);
    if (!st) st = generate(session);
    if (st) {
        char text[1024];
        snprintf(text, sizeof text, "%s", sheaf_last_error());
        sheaf_world_abort(text);
        if (sheaf_world_reports_error()) fprintf(stderr, "drill: %s\n", text);
    } else if (sheaf_world_rank() == 0) {
        printf("drill ok\n");
        fflush(stdout);
    }
    sheaf__session_free(session);
    sheaf_world_finalize();
    return st || sheaf_world_failed() ? 1 : 0;
}
