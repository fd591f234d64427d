/* Started by drill.py under mpirun: `helper-drill FAULT PLACE CULPRIT MODEL [TOKEN]`. Loads a model
 * and generates some tokens; on rank CULPRIT, FAULT happens at PLACE:
 *
 *   init        on the way into MPI_Init     collective  in one of them
 *   start       after it                     finalize    on the way out
 *   load        between two tensors          mpi_end     on the way into MPI_Finalize
 *   plan, compute                            none        nowhere: the run succeeds
 *
 * Prints "drill: error" once a job and returns 1 after an error. Writes the time of the fault to
 * DRILL_DIR/fault. */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "comm/testing.h"
#include "context.h"
#include "session.h"
#include "sheaf/version.h"

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

static void happen(void) {
    note_time();
    if (!strcmp(fault, "kill")) raise(SIGKILL);
    if (!strcmp(fault, "stop")) raise(SIGSTOP);
    if (!strcmp(fault, "exit")) _exit(0);
    if (!strcmp(fault, "hang")) pause(); /* the process lives, its main thread does not come back */
    if (!strcmp(fault, "late")) sleep(5);
    /* this process is in the network namespace of its host */
    if (!strcmp(fault, "down")) shell("ip link set eth0 down");
    if (!strcmp(fault, "loss"))
        shell("tc qdisc replace dev eth0 root tbf rate 8kbit burst 1600 limit 1600");
}

static const struct {
    const char *name;
    enum sheaf_phase phase;
    const char *what; /* NULL: any */
    int nth;
} places[] = {
    {"init", SHEAF_PHASE_START, "MPI_Init", 1},
    {"start", SHEAF_PHASE_START, "agree 'start'", 3},
    {"load", SHEAF_PHASE_LOAD, NULL, 12},
    {"plan", SHEAF_PHASE_PLAN, NULL, 3},
    {"compute", SHEAF_PHASE_COMPUTE, NULL, 40},
    {"collective", SHEAF_PHASE_COLLECTIVE, NULL, 60},
    {"finalize", SHEAF_PHASE_FINALIZE, NULL, 1},
    {"mpi_end", SHEAF_PHASE_FINALIZE, "MPI_Finalize", 1},
};

static void hook(enum sheaf_phase phase, const char *what) {
    static int count;
    for (size_t i = 0; i < sizeof places / sizeof *places; i++) {
        if (!culprit || strcmp(place, places[i].name) || phase != places[i].phase) continue;
        if (places[i].what && (!what || strcmp(what, places[i].what))) continue;
        if (++count == places[i].nth) happen();
    }
}

/* In place of the library's own: the culprit may run another version. */
const char *sheaf_version(void) {
    return culprit && !strcmp(fault, "version") ? "99.0.0" : "0.1.0";
}

static enum sheaf_status generate(struct sheaf__session *s) {
    int32_t ids[12] = {1, 5, 9, 30, 40, 50, 60, 70, 80, 90, 100, 110};
    enum sheaf_status st = SHEAF_STATUS_SUCCESS;
    /* another graph: other shapes, or other nodes */
    const int64_t n = culprit && !strcmp(fault, "shapes") ? 11 : 12;
    const bool all = culprit && !strcmp(fault, "graph");
    if (!st) st = sheaf__context_eval(s->context, ids, n, all);
    for (int i = 0; i < 40 && !st; i++) {
        int32_t id = i + 10;
        st = sheaf_world_broadcast(&id, sizeof id, 0, "the next token");
        if (!st) st = sheaf__context_eval(s->context, &id, 1, false);
    }
    return st;
}

int main(int argc, char **argv) {
    const char *rank = getenv("OMPI_COMM_WORLD_RANK");
    struct sheaf__session *session = NULL;
    if (argc < 5 || !rank) return 2;
    fault = argv[1];
    place = argv[2];
    culprit = atoi(rank) == atoi(argv[3]);
    /* as sheaf-run does: the launcher's signal is no reason to forget the message */
    sigaction(SIGTERM, &(struct sigaction){.sa_handler = SIG_IGN}, NULL);
    sheaf__phase_hook = hook;
    if (!strcmp(place, "none")) note_time();
    const struct sheaf__session_params params = {
        .size = sizeof params,
        .path = culprit && !strcmp(fault, "model") ? getenv("DRILL_OTHER_MODEL") : argv[4],
        .kv_type = SHEAF_TYPE_F16};
    enum sheaf_status st = sheaf_world_init(NULL);
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
