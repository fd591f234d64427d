/* The state of the world that all files of this folder read: rank, size, hosts, limits. start.c
 * fills it in; before that it is a world of one rank. */
#include <stdlib.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/settings.h"
#include "comm/world/world.h"

/* Launchers end a job within seconds of their signal. */
static const uint64_t EXPECT_NS = 5000000000;
enum { DEFAULT_TIMEOUT_MS = 60000, DEFAULT_HEARTBEAT_MS = 20000 };

static const struct {
    enum sheaf__setting setting;
    long ms; /* 0: SHEAF_TIMEOUT_MS */
} limits[SHEAF_PHASE_COUNT] = {
    [SHEAF_PHASE_IDLE] = {SHEAF__SET_TIMEOUT, 0},
    [SHEAF_PHASE_START] = {SHEAF__SET_TIMEOUT_START, 120000},
    [SHEAF_PHASE_LOAD] = {SHEAF__SET_TIMEOUT_LOAD, 300000},
    [SHEAF_PHASE_PLAN] = {SHEAF__SET_TIMEOUT_PLAN, 0},
    [SHEAF_PHASE_COMPUTE] = {SHEAF__SET_TIMEOUT_COMPUTE, 0},
    [SHEAF_PHASE_COLLECTIVE] = {SHEAF__SET_TIMEOUT_COLLECTIVE, 0},
    [SHEAF_PHASE_FINALIZE] = {SHEAF__SET_TIMEOUT_FINALIZE, 0},
};

struct sheaf__failure sheaf__own_failure;

static struct sheaf__world world = {
    .size = 1,
    .n_hosts = 1,
    .local_size = 1,
    .limit_ns = {[SHEAF_PHASE_COLLECTIVE] = (uint64_t)DEFAULT_TIMEOUT_MS * 1000000u},
    .failure = &sheaf__own_failure,
    .reporter = -1,
};

struct sheaf__world *sheaf__world(void) {
    return &world;
}

const char *sheaf__phase_setting(enum sheaf_phase phase) {
    return sheaf__setting_name(limits[phase].setting);
}

enum sheaf_status sheaf__read_limits(int timeout_ms) {
    long timeout = DEFAULT_TIMEOUT_MS, heartbeat = DEFAULT_HEARTBEAT_MS;
    enum sheaf_status st = sheaf__setting_int(SHEAF__SET_TIMEOUT, &timeout);
    if (timeout_ms > 0) timeout = timeout_ms;
    for (int p = SHEAF_PHASE_START; p < SHEAF_PHASE_COUNT; p++) {
        long ms = limits[p].ms ? limits[p].ms : timeout;
        const enum sheaf_status bad = sheaf__setting_int(limits[p].setting, &ms);
        if (!st) st = bad;
        world.limit_ns[p] = (uint64_t)ms * 1000000u;
    }
    if (!st) st = sheaf__setting_int(SHEAF__SET_TIMEOUT_HEARTBEAT, &heartbeat);
    world.heartbeat_ns = (uint64_t)heartbeat * 1000000u;
    return st;
}

int sheaf_world_rank(void) { return world.rank; }
int sheaf_world_size(void) { return world.size; }
int sheaf_world_n_hosts(void) { return world.n_hosts; }
int sheaf_world_local_rank(void) { return world.local_rank; }
int sheaf_world_local_size(void) { return world.local_size; }

const char *sheaf_world_host_name(int rank) {
    static char own[SHEAF__HOST_NAME_BYTES]; /* until the world has started */
    if (rank < 0 || rank >= world.size) return NULL;
    if (world.host_name) return world.host_name[rank];
    if (!own[0] && rank == world.rank) gethostname(own, sizeof own - 1);
    return rank == world.rank ? own : "";
}

int sheaf_world_host_index(int rank) {
    if (rank < 0 || rank >= world.size) return -1;
    return world.host_of ? world.host_of[rank] : 0;
}

void sheaf_world_expect_end(int status) {
    atomic_store(&world.end_status, status);
    atomic_store(&world.end_ns, sheaf__time_ns()); /* last: the guard reads the status after it */
}

bool sheaf__end_is_expected(uint64_t now) {
    const uint64_t since = atomic_load(&world.end_ns);
    return since && now < since + EXPECT_NS;
}

/* srun of Slurm sets SLURM_STEP_ID; a batch script alone has only the job's variables. */
bool sheaf__launched(void) {
    static const char *const signs[] = {"OMPI_COMM_WORLD_SIZE", "PMIX_RANK", "PMI_RANK",
                                        "MPI_LOCALNRANKS", "SLURM_STEP_ID"};
    for (size_t i = 0; i < sizeof signs / sizeof *signs; i++)
        if (getenv(signs[i])) return true;
    return false;
}
