/* Start and end of the job: MPI, hosts, and who shares memory with whom.
 *
 * A process that no launcher started is a world of one and never touches MPI. Two ranks share a
 * host only if they have the same host name, boot, and network, UTS and process namespaces: only
 * then can each reach the other's memory. */
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "base/settings.h"
#include "comm/guard.h"
#include "comm/heartbeat.h"
#include "comm/world.h"
#include "sheaf/log.h"
#include "sheaf/version.h"

enum {
    DEFAULT_TIMEOUT_MS = 60000,
    DEFAULT_HEARTBEAT_MS = 20000,
    /* After a failure, for the rank that reports it to speak first: several times as long as that
     * rank takes to be told that it may. The launcher mostly cuts it short. */
    GRACE_MS = 3000,
    TOLD_MS = 300, /* for what it said to arrive */
};

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

static const char HOSTS[] = "hosts:";

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

/* srun of Slurm sets SLURM_STEP_ID; a batch script alone has only the job's variables. */
static bool launched(void) {
    static const char *const signs[] = {"OMPI_COMM_WORLD_SIZE", "PMIX_RANK", "PMI_RANK",
                                        "MPI_LOCALNRANKS", "SLURM_STEP_ID"};
    for (size_t i = 0; i < sizeof signs / sizeof *signs; i++)
        if (getenv(signs[i])) return true;
    return false;
}

/* What makes two ranks neighbours, in one number beside the host name. */
static uint64_t host_identity(const char *name) {
    static const char *const namespaces[] = {"/proc/self/ns/uts", "/proc/self/ns/net",
                                             "/proc/self/ns/pid"};
    uint64_t h = sheaf__hash(0, name, strlen(name));
    char boot[64] = "";
    FILE *f = fopen("/proc/sys/kernel/random/boot_id", "re");
    if (f) {
        if (!fgets(boot, sizeof boot, f)) boot[0] = 0;
        fclose(f);
    }
    h = sheaf__hash(h, boot, strlen(boot));
    for (size_t i = 0; i < sizeof namespaces / sizeof *namespaces; i++) {
        struct stat st;
        uint64_t inode = stat(namespaces[i], &st) ? 0 : (uint64_t)st.st_ino;
        h = sheaf__hash(h, &inode, sizeof inode);
    }
    return h;
}

static enum sheaf_status start_mpi(void) {
    int initialized = 0, level = 0;
    MPI_Initialized(&initialized);
    /* sheaf_world_finalize has a barrier of its own. Open MPI's, at the start of MPI_Finalize, goes
     * through mpirun, which does not answer any more once it was interrupted: it kills the ranks a
     * second later, and their segments stay in /dev/shm (seen with Open MPI 4.1.4, 2026-11-21). */
    setenv("OMPI_MCA_async_mpi_finalize", "1", 0);
    sheaf__enter(SHEAF_PHASE_START, "MPI_Init", sheaf__time_ns());
    int code = initialized ? MPI_Query_thread(&level)
                           : MPI_Init_thread(NULL, NULL, MPI_THREAD_SERIALIZED, &level);
    if (code != MPI_SUCCESS)
        return sheaf_set_error(SHEAF_STATUS_FAILED, "start: MPI_Init_thread failed (code %d)",
                               code);
    world.ends_mpi = !initialized;
    MPI_Comm_rank(MPI_COMM_WORLD, &world.rank);
    MPI_Comm_size(MPI_COMM_WORLD, &world.size);
    /* Every rank sees the same levels and settings here, so no rank is left behind in a dup. */
    MPI_Comm *const comms[] = {&world.control, &world.data};
    sheaf__enter(SHEAF_PHASE_START, "MPI_Comm_dup", sheaf__time_ns());
    for (size_t i = 0; i < sizeof comms / sizeof *comms; i++) {
        if (MPI_Comm_dup(MPI_COMM_WORLD, comms[i]) != MPI_SUCCESS ||
            MPI_Comm_set_errhandler(*comms[i], MPI_ERRORS_RETURN) != MPI_SUCCESS)
            return sheaf_set_error(SHEAF_STATUS_FAILED, "start: MPI_Comm_dup failed");
    }
    world.mpi = true;
    if (level < MPI_THREAD_SERIALIZED)
        return sheaf_set_error(SHEAF_STATUS_UNSUPPORTED,
                               "start: this MPI gives thread level %d; sheaf needs "
                               "MPI_THREAD_SERIALIZED (%d)",
                               level, MPI_THREAD_SERIALIZED);
    return SHEAF_STATUS_SUCCESS;
}

/* identity record on the wire: version 24, pad 8, identity 8, host name 64 */
enum { ID_VERSION = 24, ID_HASH = 32, ID_NAME = 40, ID_BYTES = ID_NAME + SHEAF__HOST_NAME_BYTES };

/* Which ranks of a host may share memory: those with the same number. Tests make several "hosts" of
 * one with SHEAF_COMM_TRANSPORT: "mpi" gives each rank its own, "hosts:0,1,0,1" numbers them. */
static long share_label(const char *transport, int rank) {
    if (!strcmp(transport, "mpi")) return rank;
    if (strncmp(transport, HOSTS, sizeof HOSTS - 1)) return 0;
    const char *at = transport + sizeof HOSTS - 1;
    for (int r = 0; r < rank && at; r++)
        if ((at = strchr(at, ','))) at++;
    return at ? strtol(at, NULL, 10) : 0;
}

/* Fills host_of, share_of, names and local ranks from everyone's identity. */
static enum sheaf_status find_hosts(const char *transport) {
    enum sheaf_status st = SHEAF_STATUS_ALLOC_FAILED;
    const size_t n = (size_t)world.size;
    uint8_t mine[ID_BYTES] = {0}, *all = calloc(n, ID_BYTES);
    int *first = calloc(n, sizeof *first); /* [rank] lowest rank of its host */
    world.host_of = calloc(n, sizeof *world.host_of);
    world.share_of = calloc(n, sizeof *world.share_of);
    world.host_name = calloc(n, sizeof *world.host_name);
    if (!all || !first || !world.host_of || !world.share_of || !world.host_name) {
        sheaf_set_error(st, "start: out of memory");
        goto out;
    }
    snprintf((char *)mine, ID_VERSION, "%s", sheaf_version());
    gethostname((char *)mine + ID_NAME, SHEAF__HOST_NAME_BYTES - 1);
    sheaf__put_le(mine + ID_HASH, host_identity((const char *)mine + ID_NAME), 8);
    if ((st = sheaf_world_all_gather(mine, ID_BYTES, all, "start"))) goto out;

    world.n_hosts = 0;
    world.local_rank = world.local_size = 0;
    for (size_t r = 0; r < n; r++) {
        const uint8_t *id = all + r * ID_BYTES;
        memcpy(world.host_name[r], id + ID_NAME, SHEAF__HOST_NAME_BYTES - 1);
        size_t q = 0;
        while (memcmp(all + q * ID_BYTES + ID_HASH, id + ID_HASH, ID_BYTES - ID_HASH)) q++;
        first[r] = (int)q;
        world.host_of[r] = q == r ? world.n_hosts++ : world.host_of[q];
        q = 0;
        const long label = share_label(transport, (int)r);
        while (first[q] != first[r] || share_label(transport, (int)q) != label) q++;
        world.share_of[r] = (int)q;
    }
    for (int r = 0; r < world.size; r++) {
        if (first[r] != first[world.rank]) continue;
        if (r < world.rank) world.local_rank++;
        world.local_size++;
    }
    world.crowded = world.local_size > sysconf(_SC_NPROCESSORS_ONLN);
    for (size_t r = 1; r < n; r++) {
        if (!memcmp(all, all + r * ID_BYTES, ID_VERSION)) continue;
        char theirs[ID_VERSION + 1] = {0}, zero[ID_VERSION + 1] = {0};
        memcpy(theirs, all + r * ID_BYTES, ID_VERSION);
        memcpy(zero, all, ID_VERSION);
        st = sheaf_set_error(SHEAF_STATUS_INVALID,
                             "start: %s runs sheaf %s, %s runs %s; use one version everywhere",
                             sheaf__rank_text(0), zero, sheaf__rank_text((int)r), theirs);
        break;
    }
out:
    free(all);
    free(first);
    return st;
}

static enum sheaf_status read_settings(const struct sheaf_world_params *params,
                                       const char **transport) {
    long timeout = DEFAULT_TIMEOUT_MS, heartbeat = DEFAULT_HEARTBEAT_MS;
    enum sheaf_status st = sheaf__setting_int(SHEAF__SET_TIMEOUT, &timeout);
    if (params && params->size >= sizeof *params && params->timeout_ms > 0)
        timeout = params->timeout_ms;
    for (int p = SHEAF_PHASE_START; p < SHEAF_PHASE_COUNT; p++) {
        long ms = limits[p].ms ? limits[p].ms : timeout;
        const enum sheaf_status bad = sheaf__setting_int(limits[p].setting, &ms);
        if (!st) st = bad;
        world.limit_ns[p] = (uint64_t)ms * 1000000u;
    }
    if (!st) st = sheaf__setting_int(SHEAF__SET_TIMEOUT_HEARTBEAT, &heartbeat);
    world.heartbeat_ns = (uint64_t)heartbeat * 1000000u;
    if (st) return st;
    *transport = sheaf__setting_text(SHEAF__SET_COMM_TRANSPORT);
    if (!*transport) *transport = "auto";
    if (strcmp(*transport, "auto") && strcmp(*transport, "mpi") &&
        strncmp(*transport, HOSTS, sizeof HOSTS - 1))
        return sheaf_set_error(SHEAF_STATUS_INVALID,
                               "setting SHEAF_COMM_TRANSPORT is '%s'; it takes "
                               "'auto', 'mpi' or 'hosts:N,N,...'",
                               *transport);
    return SHEAF_STATUS_SUCCESS;
}

static void log_unknown_settings(void) {
    const char *name, *nearest;
    for (int i = 0; (name = sheaf_setting_unknown(i, &nearest)); i++)
        sheaf_log(SHEAF_LOG_WARN, "environment variable %s is no setting%s%s%s", name,
                  nearest ? "; did you mean " : " (sheaf-info --settings lists them)",
                  nearest ? nearest : "", nearest ? "?" : "");
}

enum sheaf_status sheaf_world_init(const struct sheaf_world_params *params) {
    if (world.started)
        return sheaf_set_error(SHEAF_STATUS_INVALID, "sheaf_world_init was called twice");
    const char *transport = "auto";
    enum sheaf_status settings = read_settings(params, &transport), st;
    if (!launched()) {
        world.started = !settings;
        log_unknown_settings();
        return settings;
    }
    char why[256] = "";
    if (settings) snprintf(why, sizeof why, "%s", sheaf_last_error());
    sheaf__board_own();
    if ((st = sheaf__guard_start())) return st;
    if ((st = start_mpi())) {
        sheaf__guard_stop();
        return st;
    }
    world.started = true;
    if ((st = sheaf__control_start())) goto out;
    if (settings) sheaf_set_error(settings, "%s", why);
    if ((st = sheaf_world_agree(settings, "start"))) goto out;
    if ((st = sheaf_world_agree(find_hosts(transport), "start"))) goto out;
    if ((st = sheaf__board_share())) goto out;
    if ((st = sheaf__heartbeat_start())) goto out;
    if ((st = sheaf__guard_watch())) goto out;
    sheaf__set_locality(world.local_rank, world.local_size);
    if (world.rank == 0) log_unknown_settings();
out:
    sheaf__leave();
    return st;
}

/* The way out after a failure: one rank speaks, the others give it time; if it cannot, one of them
 * does. */
static void leave_failed(void) {
    sheaf__guard_leaving();
    const bool shared = world.failure != &sheaf__own_failure;
    if (!sheaf_world_reports_error() && shared) {
        for (int ms = 0; ms < GRACE_MS && !atomic_load(&world.failure->told); ms += 10)
            nanosleep(&(struct timespec){0, 10000000}, NULL);
        /* if he does not: another of his host, or of rank 0's, which let him */
        const int origin = world.failure->origin, host = world.share_of[world.rank];
        const bool here = world.share_of[origin] == host;
        if ((here || host == 0) && !atomic_load(&world.failure->outranked) &&
            sheaf__guard_claim(true))
            sheaf_log(SHEAF_LOG_ERROR, "%s%s%s", here ? "" : sheaf__rank_text(origin),
                      here ? "" : " reports: ", world.failure->text);
    }
    nanosleep(&(struct timespec){0, TOLD_MS * 1000000L}, NULL);
    sheaf__guard_end_job();
    sheaf__guard_stop(); /* connections close with the process: its thread may still be in a call */
}

/* The watch goes on until every rank has come out of MPI_Finalize. */
static void leave_mpi(void) {
    sheaf__control_stop();
    sheaf__enter(SHEAF_PHASE_FINALIZE, "MPI_Finalize", sheaf__time_ns());
    MPI_Comm_free(&world.control);
    MPI_Comm_free(&world.data);
    if (world.ends_mpi) MPI_Finalize();
    sheaf__guard_farewell();
}

static void forget_world(void) {
    sheaf__guard_stop();
    sheaf__heartbeat_stop();
    sheaf__board_unshare();
    free(world.host_of);
    free(world.share_of);
    free(world.host_name);
    world.host_of = world.share_of = NULL;
    world.host_name = NULL;
}

void sheaf_world_finalize(void) {
    if (!world.started) return;
    sheaf__devices_free();
    /* Everyone must be on the way out, or MPI_Finalize would wait for ever. */
    const bool failed = sheaf__has_failed(&world);
    if (world.mpi && !failed) sheaf__enter(SHEAF_PHASE_FINALIZE, NULL, sheaf__time_ns());
    const bool clean = !world.mpi || (!failed && !sheaf_world_barrier("finalize"));
    if (!clean && !failed && sheaf_world_reports_error()) /* no caller would hear of it */
        sheaf_log(SHEAF_LOG_ERROR, "%s", sheaf_last_error());
    if (clean && world.mpi) leave_mpi();
    if (world.mpi && sheaf__has_failed(&world))
        leave_failed();
    else if (world.mpi)
        forget_world();
    world.started = world.mpi = false;
}
