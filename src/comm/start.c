/* Start and end of the job: MPI, hosts, and which ranks share memory.
 *
 * A process that no launcher started, and that has not initialized MPI itself, is a world of one
 * and never starts MPI. Two ranks share a host only if they have the same host name, boot, and
 * network, UTS and process namespaces: only then can each reach the other's memory. */
#include <stdio.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/hash.h"
#include "base/settings.h"
#include "base/sized.h"
#include "comm/diag/events.h"
#include "comm/diag/recorder.h"
#include "comm/watch/watch.h"
#include "comm/world/same_setting.h"
#include "comm/world/world.h"
#include "sheaf/log.h"
#include "sheaf/version.h"

static const char HOSTS[] = "hosts:";
static void *board; /* memory of the share group */
static size_t board_bytes;

/* The property that makes two ranks neighbours, in one number beside the host name. */
static uint64_t host_identity(const char *name) {
    static const char *const namespaces[] = {"/proc/self/ns/uts", "/proc/self/ns/net",
                                             "/proc/self/ns/pid"};
    uint64_t h = sheaf__hash_bytes(0, name, strlen(name));
    char boot[64] = "";
    FILE *f = fopen("/proc/sys/kernel/random/boot_id", "re");
    if (f) {
        if (!fgets(boot, sizeof boot, f)) boot[0] = 0;
        fclose(f);
    }
    h = sheaf__hash_bytes(h, boot, strlen(boot));
    for (size_t i = 0; i < sizeof namespaces / sizeof *namespaces; i++) {
        struct stat st;
        uint64_t inode = stat(namespaces[i], &st) ? 0 : (uint64_t)st.st_ino;
        h = sheaf__hash_bytes(h, &inode, sizeof inode);
    }
    return h;
}

/* Duplicates of the host program's communicator, whose errors are statuses. */
static enum sheaf_status duplicate(MPI_Comm from, MPI_Comm *out) {
    MPI_Errhandler before;
    if (MPI_Comm_get_errhandler(from, &before) != MPI_SUCCESS)
        return sheaf_set_error(SHEAF_STATUS_INVALID, "start: mpi_comm is no communicator");
    MPI_Comm_set_errhandler(from, MPI_ERRORS_RETURN);
    const int code = MPI_Comm_dup(from, out);
    MPI_Comm_set_errhandler(from, before);
    MPI_Errhandler_free(&before);
    if (code == MPI_SUCCESS && MPI_Comm_set_errhandler(*out, MPI_ERRORS_RETURN) == MPI_SUCCESS)
        return SHEAF_STATUS_SUCCESS;
    return sheaf_set_error(SHEAF_STATUS_FAILED, "start: MPI_Comm_dup failed (code %d)", code);
}

static void finalize_mpi(void) {
    sheaf__keep_mpi_components();
    MPI_Finalize();
}

/* Of a launcher that is another MPI's, every process is a world of one, which ends here. */
static enum sheaf_status check_launcher(void) {
    int size = 1;
    const struct sheaf__launch job = sheaf__launcher_job();
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    if (size > 1 || job.size == 1) return SHEAF_STATUS_SUCCESS;
    finalize_mpi();
    sheaf__world()->ends_mpi = false;
    sheaf__world()->mute = job.rank != 0;
    return sheaf_set_error(
        SHEAF_STATUS_INVALID,
        "start: the launcher has started %d ranks, but each is alone: sheaf uses %s, and %s",
        job.size, sheaf_world_mpi(), job.missed);
}

/* Every rank sees the same settings here, so no rank is left behind in a dup. */
static enum sheaf_status join(MPI_Comm from) {
    struct sheaf__world *w = sheaf__world();
    int inter = 1;
    enum sheaf_status st;
    if (from == MPI_COMM_NULL || MPI_Comm_test_inter(from, &inter) != MPI_SUCCESS || inter)
        return sheaf_set_error(SHEAF_STATUS_INVALID, "start: mpi_comm is no intracommunicator");
    MPI_Comm_rank(from, &w->rank);
    MPI_Comm_size(from, &w->size);
    sheaf__enter(SHEAF_PHASE_START, "MPI_Comm_dup", sheaf__time_ns());
    if ((st = duplicate(from, &w->control)) || (st = duplicate(from, &w->data))) return st;
    w->mpi = true;
    return SHEAF_STATUS_SUCCESS;
}

/* Before MPI is initialized by us; what the user has set stays.
 *
 * sheaf_world_finalize has a barrier of its own. Open MPI's, at the start of MPI_Finalize, goes
 * through mpirun, which does not answer any more once it was interrupted: it kills the ranks a
 * second later, and their segments stay in /dev/shm (seen with Open MPI 4.1.4, 2026-11-21).
 *
 * Open MPI asks all of its transports whether they are of use; PSM and PSM2 measure a clock for 100
 * ms each before they find no device. On one host, where only control messages go through MPI, it
 * is told the transport: 0.2 s less of a start (D98).
 *
 * Open MPI 5.0.7 finds no way by TCP between two ranks of a host that has an IPv6 address, and each rank says so
 * (open-mpi/ompi issue 14079; seen on Debian 13). By the loopback it finds one, and is silent (D199). Open MPI 4 takes
 * an address of the host, by which ranks in network namespaces of their own can meet. */
static void prepare_open_mpi(void) {
    const char *all = getenv("OMPI_COMM_WORLD_SIZE"), *here = getenv("OMPI_COMM_WORLD_LOCAL_SIZE");
    setenv("OMPI_MCA_async_mpi_finalize", "1", 0);
    if (!all || !here || strcmp(all, here)) return;
    setenv("OMPI_MCA_pml", "ob1", 0);
    if (!strncmp(sheaf_world_mpi(), "Open MPI v5", 11) && !getenv("OMPI_MCA_btl_tcp_if_exclude"))
        setenv("OMPI_MCA_btl_tcp_if_include", "lo", 0);
}

/* MPI, hwloc and the reading of /proc do without what they cannot open, or fail with words of their own. */
static void warn_of_few_descriptors(void) {
    enum { OWN = 64 }; /* two ranks on a host take 22 each, with Open MPI 4.1 */
    struct rlimit limit;
    const struct sheaf__launch job = sheaf__launcher_job();
    if (getrlimit(RLIMIT_NOFILE, &limit) || limit.rlim_cur >= OWN + (rlim_t)job.size) return;
    sheaf_log(SHEAF_LOG_WARN,
              "start: rank %d may have %llu files open, which can be too few for it: if anything "
              "fails, raise the limit to %d or more (ulimit -n)",
              job.rank, (unsigned long long)limit.rlim_cur, OWN + job.size);
}

/* MPI reports an error that belongs to no communicator to the handler of MPI_COMM_WORLD (MPI 3) or
 * MPI_COMM_SELF (MPI 4); MPICH reports there what MPI_Testall finds. */
static void return_errors(void) {
    MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
    MPI_Comm_set_errhandler(MPI_COMM_SELF, MPI_ERRORS_RETURN);
}

static enum sheaf_status start_mpi(const void *mpi_comm, bool initialized) {
    struct sheaf__world *w = sheaf__world();
    int level = 0, main_thread = 1, code;
    sheaf__enter(SHEAF_PHASE_START, "MPI_Init", sheaf__time_ns());
    if (initialized) {
        code = MPI_Query_thread(&level);
        if (code == MPI_SUCCESS) code = MPI_Is_thread_main(&main_thread);
    } else {
        prepare_open_mpi();
        sheaf__crash_before_mpi();
        code = MPI_Init_thread(NULL, NULL, MPI_THREAD_SERIALIZED, &level);
        sheaf__crash_after_mpi();
    }
    if (code != MPI_SUCCESS)
        return sheaf_set_error(SHEAF_STATUS_FAILED, "start: MPI_Init_thread failed (code %d)",
                               code);
    sheaf__launcher_note_names();
    if (!initialized) return_errors(); /* a host program's handlers are its own */
    w->ends_mpi = !initialized;
    w->one_thread = level < MPI_THREAD_SERIALIZED;
    if (w->one_thread && !main_thread)
        return sheaf_set_error(SHEAF_STATUS_INVALID,
                               "start: MPI was initialized with thread level %d; call "
                               "sheaf_world_init from the thread that did it, or initialize MPI "
                               "with MPI_THREAD_SERIALIZED (%d)",
                               level, MPI_THREAD_SERIALIZED);
    const enum sheaf_status status = initialized ? SHEAF_STATUS_SUCCESS : check_launcher();
    if (status) return status;
    return join(mpi_comm ? *(const MPI_Comm *)mpi_comm : MPI_COMM_WORLD);
}

/* ---- hosts ---- */

/* What ranks of all versions tell each other first: version 24, byte order 8, identity 8, host name 64. */
static const uint64_t BYTE_ORDER_MARK = 0x0102030405060708; /* as the rank has it in memory */
enum { ID_VERSION = 24, ID_HASH = 32, ID_NAME = 40, ID_BYTES = ID_NAME + SHEAF__HOST_NAME_BYTES };

static void write_identity(uint8_t id[static ID_BYTES]) {
    memset(id, 0, ID_BYTES);
    snprintf((char *)id, ID_VERSION, "%s", sheaf_version());
    memcpy(id + ID_VERSION, &BYTE_ORDER_MARK, sizeof BYTE_ORDER_MARK);
    gethostname((char *)id + ID_NAME, SHEAF__HOST_NAME_BYTES - 1);
    sheaf__put_le(id + ID_HASH, host_identity((const char *)id + ID_NAME), 8);
}

/* Do the ranks' numbers and versions fit? ids: those of all ranks. */
static enum sheaf_status check_identities(const uint8_t *ids) {
    for (int r = 1; r < sheaf_world_size(); r++) {
        const uint8_t *id = ids + (size_t)r * ID_BYTES;
        if (memcmp(ids + ID_VERSION, id + ID_VERSION, sizeof BYTE_ORDER_MARK))
            return sheaf_set_error(SHEAF_STATUS_INVALID,
                                   "start: %s and %s have different byte orders; numbers travel as "
                                   "they are, so all hosts of a job need the same",
                                   sheaf__rank_text(0), sheaf__rank_text(r));
        if (!memcmp(ids, id, ID_VERSION)) continue;
        return sheaf_set_error(
            SHEAF_STATUS_INVALID,
            "start: %s runs sheaf %.*s, %s runs %.*s; use one version everywhere",
            sheaf__rank_text(0), ID_VERSION, (const char *)ids, sheaf__rank_text(r), ID_VERSION,
            (const char *)id);
    }
    return SHEAF_STATUS_SUCCESS;
}

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

/* Sets host_of, host_name, share_of and n_hosts. first [size]: room for the lowest rank of each
 * rank's host. */
static void place_ranks(const uint8_t *ids, const char *transport, int *first) {
    struct sheaf__world *w = sheaf__world();
    w->n_hosts = 0;
    for (int r = 0; r < w->size; r++) {
        const uint8_t *id = ids + (size_t)r * ID_BYTES;
        memcpy(w->host_name[r], id + ID_NAME, SHEAF__HOST_NAME_BYTES - 1);
        int q = 0;
        while (memcmp(ids + (size_t)q * ID_BYTES + ID_HASH, id + ID_HASH, ID_BYTES - ID_HASH)) q++;
        first[r] = q;
        w->host_of[r] = q == r ? w->n_hosts++ : w->host_of[q];
        q = 0;
        const long label = share_label(transport, r);
        while (first[q] != first[r] || share_label(transport, q) != label) q++;
        w->share_of[r] = q;
    }
}

/* This rank's place on its host, by the bindings of all. here [size]: room. */
static enum sheaf_status find_local_ranks(int *here) {
    struct sheaf__world *w = sheaf__world();
    struct sheaf__cpus mine;
    sheaf__cpus_here(&mine);
    const enum sheaf_status st = sheaf_world_all_gather(&mine, sizeof mine, w->cpus, "start");
    if (st) return st;
    for (int r = 0; r < w->size; r++) here[r] = w->host_of[r] == w->host_of[w->rank];
    const struct sheaf__locality l = sheaf__locality_of(w->cpus, here, w->size, w->rank);
    w->local_rank = l.rank;
    w->local_size = l.size;
    w->crowded = sheaf__cpus_each(w->cpus, here, w->size, w->rank) < 1;
    sheaf__set_locality(&l);
    return SHEAF_STATUS_SUCCESS;
}

static enum sheaf_status find_hosts(const char *transport) {
    struct sheaf__world *w = sheaf__world();
    const size_t n = (size_t)w->size;
    uint8_t mine[ID_BYTES], *all = calloc(n, ID_BYTES);
    int *first = calloc(n, sizeof *first);
    enum sheaf_status st = SHEAF_STATUS_SUCCESS;
    w->host_of = calloc(n, sizeof *w->host_of);
    w->share_of = calloc(n, sizeof *w->share_of);
    w->host_name = calloc(n, sizeof *w->host_name);
    w->cpus = calloc(n, sizeof *w->cpus);
    if (!all || !first || !w->host_of || !w->share_of || !w->host_name || !w->cpus)
        st = sheaf_set_error(SHEAF_STATUS_ALLOC_FAILED, "start: out of memory");
    write_identity(mine);
    if (!st) st = sheaf_world_all_gather(mine, ID_BYTES, all, "start");
    if (!st) {
        place_ranks(all, transport, first);
        st = check_identities(all);
    }
    if (!st) st = find_local_ranks(first);
    free(all);
    free(first);
    return st;
}

/* Numbers that "hosts:0,1,0,1" has; 0 if it is no such list. */
static int count_labels(const char *transport) {
    const char *at = transport + sizeof HOSTS - 1;
    if (strncmp(transport, HOSTS, sizeof HOSTS - 1)) return 0;
    for (int n = 1;; n++) {
        const size_t digits = strspn(at, "0123456789");
        if (!digits || digits > 9) return 0;
        at += digits;
        if (!*at) return n;
        if (*at++ != ',') return 0;
    }
}

static enum sheaf_status read_settings(const struct sheaf_world_params *params,
                                       const char **transport) {
    /* limits first: the ranks meet under them, and then say what is wrong with the others */
    enum sheaf_status st = sheaf__read_limits(params->timeout_ms);
    if (!st) st = sheaf__settings_check();
    if (st) return st;
    *transport = sheaf__setting_text(SHEAF__SET_COMM_TRANSPORT);
    if (!*transport) *transport = "auto";
    if (strcmp(*transport, "auto") && strcmp(*transport, "mpi") && !count_labels(*transport))
        return sheaf_set_error(SHEAF_STATUS_INVALID,
                               "setting SHEAF_COMM_TRANSPORT is '%s'; it takes "
                               "'auto', 'mpi' or 'hosts:N,N,...', a number for each rank",
                               *transport);
    return SHEAF_STATUS_SUCCESS;
}

/* Once the ranks are counted. */
static enum sheaf_status check_labels(const char *transport) {
    const int n = count_labels(transport), size = sheaf_world_size();
    if (!n || n == size) return SHEAF_STATUS_SUCCESS;
    return sheaf_set_error(
        SHEAF_STATUS_INVALID,
        "setting SHEAF_COMM_TRANSPORT is '%s', which has %d number%s, but the job "
        "has %d ranks: give a number for each",
        transport, n, n == 1 ? "" : "s", size);
}

/* One board for the ranks that share memory, with their flight recorders behind it. */
static enum sheaf_status share_board(void) {
    const struct sheaf__world *w = sheaf__world();
    int n = 0, place = 0;
    for (int r = 0; r < w->size; r++) {
        if (w->share_of[r] != w->share_of[w->rank]) continue;
        if (r < w->rank) place++;
        n++;
    }
    board_bytes = sheaf__board_bytes() + (size_t)n * sheaf__recorder_bytes();
    const enum sheaf_status st =
        sheaf__shared_map(board_bytes, w->share_of[w->rank], n, "start", &board);
    if (st) return st;
    sheaf__board_place(board);
    sheaf__recorders_place((uint8_t *)board + sheaf__board_bytes(), place);
    sheaf__enter(SHEAF_PHASE_START, "watch", sheaf__time_ns());
    return st;
}

static void unshare_board(void) {
    if (!board) return;
    sheaf__board_place(NULL);
    sheaf__recorders_place(NULL, 0);
    sheaf__shared_unmap(board, board_bytes);
    board = NULL;
}

static void log_unknown_settings(void) {
    const char *name, *nearest;
    for (int i = 0; (name = sheaf_setting_unknown(i, &nearest)); i++)
        sheaf_log(SHEAF_LOG_WARN, "environment variable %s is no setting%s%s%s", name,
                  nearest ? "; did you mean " : " (sheaf-info --settings lists them)",
                  nearest ? nearest : "", nearest ? "?" : "");
}

/* May this process join a world? *params: what the caller gave, and 0 for what it does not know;
 * *initialized: by the host program. */
static enum sheaf_status check_call(const struct sheaf_world_params *given,
                                    struct sheaf_world_params *params, bool *initialized) {
    const struct sheaf__world *w = sheaf__world();
    int started = 0, finalized = 0;
    if (w->started)
        return sheaf_set_error(SHEAF_STATUS_INVALID, "sheaf_world_init was called twice");
    if (w->ended)
        return sheaf_set_error(SHEAF_STATUS_INVALID,
                               "sheaf_world_init was called after sheaf_world_finalize; a process "
                               "is in one world, once");
    *params = (struct sheaf_world_params){0};
    if (given) {
        const enum sheaf_status st =
            sheaf__sized_take(given, params, sizeof *params, "sheaf_world_params");
        if (st) return st;
    }
    MPI_Initialized(&started);
    MPI_Finalized(&finalized);
    *initialized = started;
    if (finalized)
        return sheaf_set_error(SHEAF_STATUS_INVALID,
                               "sheaf_world_init was called after MPI_Finalize; MPI starts once a "
                               "process");
    if (params->mpi_comm && !started)
        return sheaf_set_error(SHEAF_STATUS_INVALID,
                               "sheaf_world_init: params.mpi_comm is set, but MPI is not "
                               "initialized");
    return SHEAF_STATUS_SUCCESS;
}

enum sheaf_status sheaf_world_init(const struct sheaf_world_params *given) {
    struct sheaf__world *w = sheaf__world();
    struct sheaf_world_params params;
    bool initialized = false;
    const char *transport = "auto";
    enum sheaf_status st = check_call(given, &params, &initialized);
    if (st) return st;
    const enum sheaf_status settings = read_settings(&params, &transport);
    w->may_exit = params.may_exit;
    w->on_failure = params.on_failure;
    w->on_failure_user = params.on_failure_user;
    if (!initialized && !sheaf__launched()) {
        w->started = !settings;
        log_unknown_settings();
        return settings;
    }
    char why[256] = "";
    if (settings) snprintf(why, sizeof why, "%s", sheaf_last_error());
    warn_of_few_descriptors();
    sheaf__board_own();
    if ((st = sheaf__watch_start())) return st;
    if ((st = start_mpi(params.mpi_comm, initialized))) {
        (void)sheaf__watch_stop();
        sheaf__leave();
        return st;
    }
    w->started = true;
    if ((st = sheaf__control_start())) goto out;
    if (settings) sheaf_set_error(settings, "%s", why);
    if ((st = sheaf_world_agree(settings ? settings : check_labels(transport), "start"))) goto out;
    if ((st = sheaf_world_agree(find_hosts(transport), "start"))) goto out;
    /* Each rank has found the hosts by its own value. It is compared now, not before: from here on
     * messages name ranks with their hosts. */
    if ((st = sheaf__same_setting("SHEAF_COMM_TRANSPORT", transport, NULL))) goto out;
    if ((st = share_board())) goto out;
    if ((st = sheaf__watch_connect())) goto out;
    if (w->rank == 0) log_unknown_settings();
out:
    sheaf__leave();
    return st;
}

enum sheaf_status sheaf_world_move_here(void) {
    if (!sheaf__world()->mpi) return SHEAF_STATUS_SUCCESS;
    const enum sheaf_status st = sheaf__mpi_allowed("calls from another thread");
    if (st) return st;
    sheaf__board_own();
    sheaf__set_recording(true);
    sheaf__events_own();
    return SHEAF_STATUS_SUCCESS;
}

/* The watch goes on until every rank has come out of MPI_Finalize. */
static void leave_mpi(bool finalized) {
    struct sheaf__world *w = sheaf__world();
    sheaf__control_stop();
    sheaf__enter(SHEAF_PHASE_FINALIZE, "MPI_Finalize", sheaf__time_ns());
    if (!finalized) {
        MPI_Comm_free(&w->control);
        MPI_Comm_free(&w->data);
        atomic_store(&w->finalize_ns, sheaf__time_ns());
        if (w->ends_mpi) {
            sheaf__launcher_await(w->limit_ns[SHEAF_PHASE_FINALIZE] / 2);
            finalize_mpi();
        }
    }
    sheaf__watch_farewell();
    atomic_store(&w->finalize_ns, 0);
}

static void forget_world(void) {
    struct sheaf__world *w = sheaf__world();
    if (!sheaf__watch_stop()) return; /* the guard still reads all of it */
    unshare_board();
    free(w->host_of);
    free(w->share_of);
    free(w->host_name);
    free(w->cpus);
    w->host_of = w->share_of = NULL;
    w->host_name = NULL;
    w->cpus = NULL;
}

/* MPI_Finalize would wait for ever for a rank that is not on the way out. */
static bool meet_at_the_end(void) {
    sheaf__enter(SHEAF_PHASE_FINALIZE, NULL, sheaf__time_ns());
    if (!sheaf_world_barrier("finalize") && !sheaf__control_settle()) return true;
    if (sheaf_world_reports_error()) /* sheaf_world_finalize returns no status */
        sheaf_log(SHEAF_LOG_ERROR, "%s", sheaf_last_error());
    return false;
}

void sheaf_world_finalize(void) {
    struct sheaf__world *w = sheaf__world();
    int finalized = 0;
    if (!w->started) return;
    sheaf__devices_free();
    if (w->mpi) {
        MPI_Finalized(&finalized);
        if (finalized)
            sheaf_log(SHEAF_LOG_WARN, "MPI_Finalize was called before sheaf_world_finalize");
        if (!sheaf__has_failed(w) && (finalized || meet_at_the_end())) leave_mpi(finalized);
        if (sheaf__has_failed(w))
            sheaf__watch_leave_failed();
        else
            forget_world();
    }
    w->started = w->mpi = false;
    w->ended = true;
}
