/* Start and end of the job, its commands, and graphs. */
#include "ggml/driver.h"

#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "base/thread.h"
#include "ggml/calls.h"
#include "ggml/claim.h"
#include "ggml/cut.h"
#include "ggml/driver_impl.h"

struct gg_driver gg_driver;

/* ---- commands ---- */

/* May the command be sent while a device computes without rank 0? Other commands use the memory of
 * its results, or all ranks meet in them, for which the time is limited, as in a question about a node or
 * in a run whose views move: all get its payload, and may plan again. */
static bool goes_beside_runs(const struct gg_command *c) {
    return (c->kind == GG_COMMAND_RUN && !c->n_moves) || c->kind == GG_COMMAND_FETCH ||
           c->kind == GG_COMMAND_END;
}

enum sheaf_status gg_send(struct gg_command *command, const void *payload, void *result) {
    const enum sheaf_status st =
        goes_beside_runs(command) ? SHEAF_STATUS_SUCCESS : gg_later_wait_all();
    if (st) return st;
    return gg_engine_do(gg_driver.engine, command, payload, result);
}

/* ---- start and end ---- */

static char descriptions[GG_MAX_GROUPS][64];

/* The job has failed. The program may be idle, so that no call would report it: it is asked to end,
 * as by its user, when the ranks have had the time to agree on the one that prints the failure. The
 * library ends a program that stays, after SHEAF_TIMEOUT_FINALIZE_MS. */
static void *ask_to_end(void *unused) {
    (void)unused;
    usleep(1500000);
    kill(getpid(), SIGTERM);
    return NULL;
}
static void end_program(int rank, const char *text, void *user) {
    pthread_t thread;
    (void)rank;
    (void)text;
    (void)user;
    if (!sheaf__thread_start(&thread, ask_to_end, NULL)) pthread_detach(thread);
}

static int hosts_of(size_t device) {
    int n = 0;
    for (int h = 0; h < sheaf_world_n_hosts(); h++) {
        bool is_one = false;
        for (int r = 0; r < sheaf_world_size(); r++)
            is_one = is_one || (sheaf_world_host_index(r) == h &&
                                gg_engine_has_rank(gg_driver.engine, device, r));
        n += is_one;
    }
    return n;
}

static void describe(size_t device) {
    const size_t n = gg_engine_n_members_of(gg_driver.engine, device);
    const int hosts = hosts_of(device);
    snprintf(descriptions[device], sizeof descriptions[device], "%zu member%s on %d host%s", n,
             n == 1 ? "" : "s", hosts, hosts == 1 ? "" : "s");
}

static void stay_out(const char *text) {
    sheaf_log(SHEAF_LOG_ERROR, "SHEAF stays out of this program: %s", text);
}

static enum sheaf_status start_task(void *unused) {
    (void)unused;
    const bool lives_on = gg_program_lives_on();
    const struct gg_start start = {.may_exit = !lives_on,
                                   .on_failure = lives_on ? NULL : end_program,
                                   .tell = stay_out,
                                   .check = gg_check_cuts};
    enum sheaf_status st = gg_engine_start(&start, &gg_driver.engine);
    for (size_t i = 0; !st && i < gg_engine_n_devices(gg_driver.engine); i++) describe(i);
    if (!st) st = gg_measure_all(NULL);
    return st;
}

static enum sheaf_status stop_task(void *unused) {
    (void)unused;
    sheaf_world_move_here();
    gg_engine_log(gg_driver.engine);
    if (gg_claim_has_end()) { /* a launcher that ends the job does not answer MPI_Finalize */
        fflush(NULL);
        sheaf_world_expect_end(GG_EXIT_ASKED);
    }
    if (!sheaf_world_failed()) gg_send(&(struct gg_command){.kind = GG_COMMAND_END}, NULL, NULL);
    gg_forget_all();
    gg_encoder_free(&gg_driver.encoder);
    free(gg_driver.numbers.unused);
    gg_engine_stop(gg_driver.engine);
    return SHEAF_STATUS_SUCCESS;
}

enum sheaf_status gg_driver_start(const struct gg_host *host) {
    gg_driver.host = host;
    gg_driver.encoder.host = host;
    gg_driver.encoder.memory_of = gg_plugin_memory_of;
    gg_driver.encoder.numbers = &gg_driver.numbers;
    if (gg_calls_start()) {
        stay_out(sheaf_last_error());
        return SHEAF_STATUS_FAILED;
    }
    return gg_calls_open(start_task);
}

void gg_driver_stop(void) { gg_calls_close(stop_task); }

size_t gg_driver_n_devices(void) { return gg_engine_n_devices(gg_driver.engine); }
const char *gg_driver_description(size_t device) { return descriptions[device]; }

/* ---- runs that go on without rank 0 ---- */

struct wait {
    size_t device;
    uint64_t run;
};

static enum sheaf_status wait_task(void *argument) {
    const struct wait *w = argument;
    return gg_later_wait_device(w->device, w->run);
}

uint64_t gg_driver_last_run(size_t device) { return gg_driver.pending[device].asked; }

void gg_driver_wait(size_t device, uint64_t run) {
    struct wait w = {device, run};
    const bool waits = gg_driver.pending[device].fetched < run || gg_has_later(device);
    if (waits && gg_calls_are_open()) gg_failure_note(gg_call(wait_task, &w));
}

/* ---- graphs ---- */

struct computation {
    size_t device;
    const struct gg_cgraph *graph;
};

static enum sheaf_status compute_task(void *argument) {
    const struct computation *c = argument;
    return gg_run_graph(c->device, c->graph);
}

enum sheaf_status gg_driver_compute(size_t device, const struct gg_cgraph *graph) {
    const enum sheaf_status earlier = gg_failure_take();
    if (earlier) return earlier;
    struct computation c = {device, graph};
    const enum sheaf_status st = gg_call(compute_task, &c);
    if (st) gg_failure_log();
    if (st && sheaf_world_failed()) gg_failure_set();
    return st;
}
