/* Start and end of the job, its commands, and graphs. */
#include "ggml/driver.h"

#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "base/arith.h"
#include "base/thread.h"
#include "ggml/calls.h"
#include "ggml/capacity.h"
#include "ggml/claim.h"
#include "ggml/cut.h"
#include "ggml/driver_impl.h"

struct gg_driver gg_driver;

/* ---- commands ---- */

/* May the command be sent while a device computes without rank 0? Other commands use the memory of
 * its results, or all ranks meet in them, as in a run whose views move: all get its payload, and
 * may plan again. */
static bool goes_beside_runs(const struct gg_command *c) {
    return (c->kind == GG_COMMAND_RUN && !c->n_moves) || c->kind == GG_COMMAND_FETCH ||
           c->kind == GG_COMMAND_ASK || c->kind == GG_COMMAND_END;
}

enum sheaf_status gg_send(struct gg_command *command, const void *payload, void *result) {
    const enum sheaf_status st =
        goes_beside_runs(command) ? SHEAF_STATUS_SUCCESS : gg_later_wait_all();
    if (st) return st;
    return gg_engine_do(gg_driver.engine, command, payload, result);
}

/* ---- memory of the devices ---- */

/* The last answer about each device: for questions during a call, and after the job. */
static struct { _Atomic size_t available, all; } known[GG_MAX_GROUPS];

/* Members on the memory of one host use it together, other devices have memory of their own. */
static void find_rooms(size_t device, const struct gg_memory_now *now, const double *shares,
                       size_t n, struct gg_room *available, struct gg_room *all) {
    const sheaf_backend_dev_t meta = gg_engine_device(gg_driver.engine, device);
    for (size_t j = 0; j < n; j++) {
        const sheaf_backend_dev_t dev = sheaf_backend_meta_dev_member(meta, j);
        const bool is_cpu = sheaf_backend_dev_type(dev) == SHEAF_BACKEND_DEVICE_TYPE_CPU;
        const int host = sheaf_world_host_index(sheaf_world_device_rank(dev));
        const struct gg_memory_now *of = &now[gg_engine_member(gg_driver.engine, device, j)];
        available[j].share = all[j].share = shares[j];
        available[j].pool = all[j].pool = is_cpu ? host : sheaf_world_n_hosts() + (int)j;
        available[j].bytes = (size_t)of->available;
        all[j].bytes = (size_t)of->all;
    }
}

/* Cuts follow the members' shares, so a device is full when the first host is. llama.cpp fits the
 * context and the layers of a model into what is said here, also while weights of another one wait
 * for their first graph. */
static enum sheaf_status note_memory(size_t device, const struct gg_memory_now *now) {
    const size_t n = gg_engine_n_members_of(gg_driver.engine, device);
    struct gg_room *rooms = calloc(2 * n + 1, sizeof *rooms);
    double *shares = calloc(n + 1, sizeof *shares);
    enum sheaf_status st = rooms && shares ? gg_read_shares(gg_driver.engine, device, shares)
                                           : gg_no_memory("memory of the devices");
    if (!st) {
        find_rooms(device, now, shares, n, rooms, rooms + n);
        const size_t bytes = gg_capacity(rooms, n), to_come = gg_bytes_to_come(device);
        known[device].available = bytes - sheaf__min_size(bytes, to_come);
        known[device].all = gg_capacity(rooms + n, n);
    }
    free(rooms);
    free(shares);
    return st;
}

/* Ranks of a device that computes without rank 0 would answer at the end of that run. */
static bool are_ranks_idle(void) {
    for (size_t i = 0; i < gg_engine_n_devices(gg_driver.engine); i++)
        if (gg_driver.pending[i].fetched != gg_driver.pending[i].asked) return false;
    return !sheaf_world_failed();
}

static enum sheaf_status measure_task(void *unused) {
    (void)unused;
    if (!are_ranks_idle()) return SHEAF_STATUS_SUCCESS;
    struct gg_memory_now *now = calloc(gg_engine_n_members(gg_driver.engine) + 1, sizeof *now);
    if (!now) return gg_no_memory("memory of the devices");
    enum sheaf_status st = gg_send(&(struct gg_command){.kind = GG_COMMAND_MEASURE}, NULL, now);
    for (size_t i = 0; i < gg_engine_n_devices(gg_driver.engine) && !st; i++)
        st = note_memory(i, now);
    free(now);
    return st;
}

void gg_driver_memory(size_t device, size_t *free_bytes, size_t *total) {
    gg_call_if_idle(measure_task, NULL);
    *free_bytes = known[device].available;
    *total = known[device].all;
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
    if (!st) st = measure_task(NULL);
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
