/* The guard's thread, and what it does when a job fails.
 *
 * Invariant: the thread never takes a lock that the main thread may hold while it waits for MPI,
 * and calls nothing that can block. */
#include "comm/guard.h"
#include "sheaf/log.h"

#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

#include "comm/heartbeat.h"
#include "comm/launcher.h"
#include "comm/recorder.h"
#include "comm/world.h"

enum { TICK_MS = 100, STATUS_FAILED = 1, MAX_HERE = 65536 /* ranks of a host */ };
static const uint64_t BEAT_NS = 250000000; /* between signs of life */
/* Hosts notice the same thing at about one time. The one of rank 0 decides who speaks: the first to
 * ask, or itself. Others wait so long for its answer; if it is out of reach, whether a lower rank
 * reports something. */
static const uint64_t ANSWER_NS = 1500000000;
static const uint64_t LISTEN_NS = 500000000;
static const uint64_t SPREAD_NS = 1800000000; /* the longest that a main thread waits for that */
static const uint64_t HOLD_NS = 3000000000u;  /* for others to find that it was told */
static const uint64_t FORCE_NS = 3000000000u; /* for a main thread to come back from where it is */
static const uint64_t SILENT_NS = 1500000000; /* after a failure, who is silent so long is stuck */
static const uint64_t CLAIM_NS = 6000000000u; /* for who holds the name, to whom that happens: */
static const uint64_t ENDING_NS = 2000000000; /* no answer: the launcher may be ending the job */
static const uint64_t AWAY_NS = 2000000000;   /* without a tick: the process was stopped */

static struct {
    pthread_t thread;
    bool runs;
    int wake;
    int *pidfds, *ranks, n_pidfds; /* of the other ranks of the share group */
    _Atomic bool watching, stop, leaving, spread, farewell;
    _Atomic int teller;    /* who of this process prints the failure */
    _Atomic bool by_guard; /* the guard took the record */
    _Atomic bool farewell_sent;
    _Atomic int claim;           /* before the watch: the states below */
    _Atomic bool launcher_knows; /* who speaks */
    uint64_t failed_at, last_tick, last_beat;
} guard = {.wake = -1};

static void kick(void) {
    const uint64_t one = 1;
    if (guard.wake >= 0 && write(guard.wake, &one, sizeof one) < 0) return; /* it is full: awake */
}

static void nap(uint64_t ns) {
    nanosleep(&(struct timespec){(time_t)(ns / 1000000000u), (long)(ns % 1000000000u)}, NULL);
}

/* ---- one message ---- */

/* Before ranks share a board, two know which of them speaks: the kernel lets one process of a host
 * have a name without a file, and the launcher connects hosts. Who holds the name listens once it
 * is known who speaks. */
enum { UNDECIDED, DECIDING, SPEAKS, SILENT };

static bool take_name(void) {
    const char *job = getenv("PMIX_NAMESPACE");
    struct sockaddr_un a = {.sun_family = AF_UNIX};
    const int n = snprintf(a.sun_path + 1, sizeof a.sun_path - 1, "sheaf-%u-%.64s", geteuid(),
                           job ? job : "");
    const socklen_t size = (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + (size_t)n);
    const uint64_t end = sheaf__time_ns() + CLAIM_NS;
    const int fd = job ? socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0) : -1;
    if (fd < 0) return true;
    while (bind(fd, (struct sockaddr *)&a, size) && sheaf__time_ns() < end) {
        const int other = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
        const bool told = other >= 0 && !connect(other, (struct sockaddr *)&a, size);
        if (other >= 0) close(other);
        if (told) {
            close(fd);
            return false;
        }
        nap(20000000);
    }
    const enum sheaf__claim claim = sheaf__launcher_claim();
    atomic_store(&guard.launcher_knows, claim != SHEAF__CLAIM_UNKNOWN);
    if (claim == SHEAF__CLAIM_UNKNOWN && !sheaf__launcher_recovers()) nap(ENDING_NS);
    listen(fd, SOMAXCONN); /* until the process ends */
    return claim != SHEAF__CLAIM_LOST;
}

static bool claim_alone(void) {
    int state = UNDECIDED;
    if (atomic_compare_exchange_strong(&guard.claim, &state, DECIDING)) {
        state = take_name() ? SPEAKS : SILENT;
        atomic_store(&guard.claim, state);
    }
    return state == SPEAKS;
}

bool sheaf__guard_permits(int origin) {
    const struct sheaf__world *w = sheaf__world();
    const int host = w->share_of[origin] + 1;
    int nobody = 0;
    return atomic_compare_exchange_strong(&w->failure->permit, &nobody, host) || nobody == host;
}

/* `last`: whoever was to speak has had his time. */
static bool claim(bool last) {
    struct sheaf__world *w = sheaf__world();
    int nobody = 0;
    if (!atomic_load(&guard.watching)) return claim_alone();
    if (w->share_of[w->rank] == 0 && !last && !sheaf__guard_permits(w->rank)) return false;
    return atomic_compare_exchange_strong(&w->failure->told, &nobody, w->rank + 1) ||
           nobody == w->rank + 1;
}

/* One thread of this process prints it. */
enum { NO_ONE, MAIN_THREAD, GUARD };

static bool claim_as(int teller, bool last) {
    int before = NO_ONE;
    if (!claim(last)) return false;
    const bool first = atomic_compare_exchange_strong(&guard.teller, &before, teller);
    if (first) kick();                                           /* other hosts are to know */
    return first || (before == teller && teller == MAIN_THREAD); /* which may ask again */
}

bool sheaf__guard_claim(bool last) { return claim_as(MAIN_THREAD, last); }

bool sheaf__guard_speaks(void) { return atomic_load(&guard.by_guard); }

/* Ranks that do not share a record yet have agreed on a failure, and so on who speaks. */
static bool agreed(void) {
    const struct sheaf__world *w = sheaf__world();
    return w->failure == &sheaf__own_failure && w->reporter >= 0;
}

static void tell(bool last) {
    const struct sheaf__world *w = sheaf__world();
    if (atomic_load(&w->failure->outranked) || agreed() || !claim_as(GUARD, last)) return;
    if (w->failure->origin == w->rank)
        sheaf_log(SHEAF_LOG_ERROR, "%s", w->failure->text);
    else
        sheaf_log(SHEAF_LOG_ERROR, "%s reports: %s", sheaf__rank_text(w->failure->origin),
                  w->failure->text);
}

/* ---- what the guard notices ---- */

void sheaf__guard_fail(const char *fmt, ...) {
    char text[SHEAF__REASON_BYTES];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    if (sheaf__record_failure(sheaf__world()->rank, text)) atomic_store(&guard.by_guard, true);
}

/* The record is complete: its state is marked before its text is written. */
static bool has_text(void) {
    return atomic_load_explicit(&sheaf__world()->failure->state, memory_order_acquire) ==
           SHEAF__FAILED;
}

void sheaf__guard_lost(int rank, const char *fmt, ...) {
    const int me = sheaf__world()->rank;
    struct sheaf__activity mine, theirs;
    char why[192], here[160], there[160];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(why, sizeof why, fmt, ap);
    va_end(ap);
    sheaf__read_line(rank, &theirs);
    sheaf__read_line(me, &mine);
    sheaf__activity_text(&theirs, there, sizeof there);
    sheaf__activity_text(&mine, here, sizeof here);
    sheaf__guard_fail("%s %s; it was last seen in %s, and %s is in %s", sheaf__rank_text(rank), why,
                      there, sheaf__rank_text(me), here);
}

void sheaf__hear_failure(int origin, const char *text) {
    struct sheaf__world *w = sheaf__world();
    if (sheaf__record_failure(origin, text)) return;
    if (has_text() && w->share_of[origin] < w->share_of[w->failure->origin])
        atomic_store(&w->failure->lower, 1);
}

void sheaf__hear_told(int rank) {
    int nobody = 0;
    atomic_compare_exchange_strong(&sheaf__world()->failure->told, &nobody, rank + 1);
}

void sheaf__hear_permit(bool speak) {
    struct sheaf__world *w = sheaf__world();
    if (speak)
        atomic_store(&w->failure->permit, w->share_of[w->rank] + 1);
    else
        atomic_store(&w->failure->outranked, 1);
}

static void check_deaths(const struct pollfd *fds) {
    for (int i = 0; i < guard.n_pidfds; i++) {
        if (guard.pidfds[i] < 0 || !fds[i].revents) continue;
        close(guard.pidfds[i]);
        guard.pidfds[i] = -1;
        if (atomic_load(&sheaf__line(guard.ranks[i])->left)) continue;
        if (sheaf__has_failed(sheaf__world())) continue; /* on its way out as we are */
        sheaf__guard_lost(guard.ranks[i], "has died (it was killed or ended without notice)");
    }
}

static void check_silence(uint64_t now, bool forgive) {
    const uint64_t limit = sheaf__world()->heartbeat_ns;
    sheaf__heartbeat_check(now, limit, forgive);
    for (int i = 0; i < guard.n_pidfds; i++) {
        struct sheaf__line *l = sheaf__line(guard.ranks[i]);
        if (forgive) atomic_store_explicit(&l->heard_ns, now, memory_order_relaxed);
        const uint64_t heard = atomic_load_explicit(&l->heard_ns, memory_order_relaxed);
        if (guard.pidfds[i] < 0 || atomic_load(&l->left) || now < heard + limit) continue;
        sheaf__guard_lost(guard.ranks[i],
                          "has not run for %.1f s, so it is stopped or starved "
                          "(SHEAF_TIMEOUT_HEARTBEAT_MS)",
                          (double)(now - heard) * 1e-9);
    }
}

/* Before MPI knows the rank, the launcher's variables do. */
static void name_self(char *text, size_t size) {
    static const char *const names[] = {"OMPI_COMM_WORLD_RANK", "PMIX_RANK", "SLURM_PROCID"};
    const char *rank = NULL;
    char host[SHEAF__HOST_NAME_BYTES] = "";
    for (size_t i = 0; i < sizeof names / sizeof *names && !rank; i++) rank = getenv(names[i]);
    gethostname(host, sizeof host - 1);
    if (atomic_load(&guard.watching) || !rank)
        snprintf(text, size, "%s", sheaf__rank_text(sheaf__world()->rank));
    else
        snprintf(text, size, "rank %.9s (%s)", rank, host);
}

/* The main thread's own phase. Waits in collectives have deadlines of their own, which end first.
 */
static void check_phase(uint64_t now) {
    const struct sheaf__world *w = sheaf__world();
    const struct sheaf__line *l =
        atomic_load(&guard.watching) ? sheaf__line(w->rank) : sheaf__line_alone();
    const enum sheaf_phase phase =
        (enum sheaf_phase)atomic_load_explicit(&l->phase, memory_order_relaxed);
    const uint64_t since = atomic_load_explicit(&l->since_ns, memory_order_relaxed);
    if (phase == SHEAF_PHASE_IDLE || phase >= SHEAF_PHASE_COUNT) return;
    const uint64_t limit = w->limit_ns[phase];
    const bool waits = phase == SHEAF_PHASE_COLLECTIVE ||
                       atomic_load_explicit(&l->kind, memory_order_relaxed) == SHEAF__KIND_EXCHANGE;
    const uint64_t more = phase == SHEAF_PHASE_START ? FORCE_NS / 3 : limit;
    if (now < since + limit + (waits ? more : 0)) return;
    struct sheaf__activity a;
    char what[160];
    sheaf__read(l, &a);
    if (a.phase != phase) return;
    sheaf__activity_text(&a, what, sizeof what);
    char who[SHEAF__HOST_NAME_BYTES + 32];
    name_self(who, sizeof who);
    sheaf__guard_fail("%s: %s has not ended for %.1f s; if it is only slow, raise %s", who, what,
                      (double)(now - since) * 1e-9, sheaf__phase_setting(phase));
}

/* ---- after a failure ---- */

static int place_of(int rank) {
    const struct sheaf__world *w = sheaf__world();
    int place = 0;
    for (int r = 0; r < rank; r++) place += w->share_of[r] == w->share_of[rank];
    return place;
}

static bool is_silent(int i, uint64_t now) {
    const struct sheaf__line *l = sheaf__line(guard.ranks[i]);
    return guard.pidfds[i] >= 0 && !atomic_load(&l->left) &&
           now > atomic_load_explicit(&l->heard_ns, memory_order_relaxed) + SILENT_NS;
}

static void dump_records(uint64_t now) {
    const int me = sheaf__world()->rank;
    if (!atomic_load(&guard.watching)) return;
    sheaf__recorder_dump(me, place_of(me));
    for (int i = 0; i < guard.n_pidfds; i++)
        if (guard.pidfds[i] < 0 || is_silent(i, now))
            sheaf__recorder_dump(guard.ranks[i], place_of(guard.ranks[i]));
}

/* Names that Open MPI's vader leaves in /dev/shm when its processes end without MPI_Finalize: those
 * of the ranks that this job has on this host, exactly, which vader counts from 0 on each host. Who
 * has them mapped keeps them. */
static void remove_names(void) {
    const char *job = getenv("PMIX_NAMESPACE"), *ranks = getenv("OMPI_COMM_WORLD_LOCAL_SIZE");
    const char *dir = getenv("OMPI_MCA_btl_vader_backing_directory");
    char *end, host[SHEAF__HOST_NAME_BYTES] = "", path[512];
    if (!job || !ranks) return;
    const unsigned long id = strtoul(job, &end, 10), n = strtoul(ranks, NULL, 10);
    if (end == job || *end || id > UINT32_MAX) return; /* another launcher's names */
    gethostname(host, sizeof host - 1);
    for (unsigned long r = 0; r < n && r < MAX_HERE; r++) {
        snprintf(path, sizeof path, "%s/vader_segment.%s.%u.%lx.%lu", dir ? dir : "/dev/shm", host,
                 geteuid(), id, r);
        unlink(path);
    }
}

/* A rank of this host that is stopped cannot end by itself. */
static void end_silent_ranks(uint64_t now) {
    for (int i = 0; i < guard.n_pidfds; i++)
        if (is_silent(i, now)) syscall(SYS_pidfd_send_signal, guard.pidfds[i], SIGKILL, NULL, 0);
}

/* Is anybody gone who cannot end by himself, or may the launcher leave ranks alone? */
static bool needs_abort(uint64_t now) {
    if (!atomic_load(&guard.watching) || sheaf__launcher_recovers()) return true;
    if (sheaf__heartbeat_lost(now, SILENT_NS)) return true;
    for (int i = 0; i < guard.n_pidfds; i++)
        if (is_silent(i, now)) return true;
    return false;
}

/* The name goes with the process: others may not have looked for it yet. */
static void hold_name(void) {
    if (atomic_load(&guard.claim) == SPEAKS && !atomic_load(&guard.launcher_knows) &&
        sheaf__launcher_recovers())
        nap(HOLD_NS);
}

static void force_exit(uint64_t now) {
    tell(true);
    /* the launcher passes the message on, others see that it was told */
    nap(500000000);
    remove_names();
    end_silent_ranks(now);
    if (needs_abort(now)) sheaf__launcher_abort(STATUS_FAILED);
    hold_name();
    _exit(STATUS_FAILED);
}

/* Is it known which host speaks? */
static bool is_settled(uint64_t now) {
    const struct sheaf__world *w = sheaf__world();
    const struct sheaf__failure *f = w->failure;
    if (!w->share_of || w->share_of[w->rank] == 0) return true;
    if (atomic_load(&f->permit) || atomic_load(&f->outranked) || atomic_load(&f->told)) return true;
    const bool ask = w->share_of[f->origin] == w->share_of[w->rank];
    const bool reached = ask && sheaf__heartbeat_ask(f->origin, f->text);
    if (now < guard.failed_at + (reached ? ANSWER_NS : LISTEN_NS)) return false;
    if (atomic_load(&f->lower)) atomic_store(&w->failure->outranked, 1);
    return true;
}

static void on_failure(uint64_t now) {
    const struct sheaf__world *w = sheaf__world();
    if (!guard.failed_at) {
        guard.failed_at = now;
        /* not only who took the record: it may have no connection to whom this rank has one */
        if (w->share_of && w->share_of[w->failure->origin] == w->share_of[w->rank])
            sheaf__heartbeat_alarm(w->failure->origin, w->failure->text);
        dump_records(now);
        remove_names();
    }
    if (is_settled(now)) {
        atomic_store(&guard.spread, true);
        if (atomic_load(&guard.by_guard)) tell(false);
    }
    const enum sheaf_phase phase = sheaf__phase();
    const uint64_t limit = phase == SHEAF_PHASE_IDLE || atomic_load(&guard.leaving)
                               ? w->limit_ns[SHEAF_PHASE_FINALIZE]
                               : FORCE_NS;
    if (now >= guard.failed_at + limit) {
        dump_records(now);
        force_exit(now);
    }
}

/* ---- the thread ---- */

/* fds: what was polled for the watch; NULL before it, even if it has begun since. */
static void tick(const struct pollfd *fds, uint64_t now) {
    if (fds) {
        const struct sheaf__world *w = sheaf__world();
        const bool away = now - guard.last_tick > w->heartbeat_ns / 2;
        atomic_store_explicit(&sheaf__line(w->rank)->heard_ns, now, memory_order_relaxed);
        sheaf__heartbeat_serve(fds + 1 + guard.n_pidfds, now);
        check_deaths(fds + 1);
        if (now >= guard.last_beat + BEAT_NS || guard.failed_at) {
            sheaf__heartbeat_beat();
            guard.last_beat = now;
        }
        const int told = atomic_load(&w->failure->told) - 1;
        /* not only its own; and again, for a frame may be dropped */
        if (told >= 0 && w->share_of[told] == w->share_of[w->rank]) sheaf__heartbeat_told();
        check_silence(now, away);
    }
    if (!fds && now > guard.last_tick + AWAY_NS) /* it is not late by that */
        atomic_fetch_add_explicit(&sheaf__line_alone()->since_ns, now - guard.last_tick,
                                  memory_order_relaxed);
    guard.last_tick = now;
    if (!sheaf__has_failed(sheaf__world())) check_phase(now);
    if (has_text()) on_failure(now);
}

static void *run(void *arg) {
    struct pollfd *fds = NULL, one = {.fd = guard.wake, .events = POLLIN};
    (void)arg;
    while (!atomic_load(&guard.stop)) {
        const bool watching = atomic_load(&guard.watching);
        const int n = watching ? 1 + guard.n_pidfds + sheaf__heartbeat_fds(NULL) : 1;
        if (watching && !fds) fds = calloc((size_t)n, sizeof *fds);
        struct pollfd *at = watching && fds ? fds : &one;
        at[0] = one;
        for (int i = 0; at == fds && i < guard.n_pidfds; i++)
            at[1 + i] = (struct pollfd){.fd = guard.pidfds[i], .events = POLLIN};
        if (at == fds) sheaf__heartbeat_fds(fds + 1 + guard.n_pidfds);
        if (poll(at, at == fds ? (nfds_t)n : 1, TICK_MS) < 0 && errno != EINTR) nap(10000000);
        uint64_t count;
        if (at[0].revents && read(guard.wake, &count, sizeof count) < 0) nap(1000000);
        if (atomic_load(&guard.farewell) && !atomic_load(&guard.farewell_sent)) {
            sheaf__heartbeat_farewell();
            atomic_store(&guard.farewell_sent, true);
        }
        if (!watching || fds) tick(watching ? fds : NULL, sheaf__time_ns());
    }
    free(fds);
    return NULL;
}

enum sheaf_status sheaf__guard_start(void) {
    sigset_t all, before;
    guard.wake = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (guard.wake < 0)
        return sheaf_set_error(SHEAF_STATUS_FAILED, "start: no descriptor for the guard: %s",
                               strerror(errno));
    guard.last_tick = sheaf__time_ns();
    sigfillset(&all); /* signals are the main thread's */
    pthread_sigmask(SIG_SETMASK, &all, &before);
    const int code = pthread_create(&guard.thread, NULL, run, NULL);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    guard.runs = code == 0;
    return guard.runs ? SHEAF_STATUS_SUCCESS
                      : sheaf_set_error(SHEAF_STATUS_FAILED, "start: no thread for the guard: %s",
                                        strerror(code));
}

enum sheaf_status sheaf__guard_watch(void) {
    const struct sheaf__world *w = sheaf__world();
    const int64_t pid = getpid();
    int64_t *pids = calloc((size_t)w->size, sizeof *pids);
    guard.pidfds = calloc((size_t)w->size, sizeof *guard.pidfds);
    guard.ranks = calloc((size_t)w->size, sizeof *guard.ranks);
    enum sheaf_status st = SHEAF_STATUS_SUCCESS;
    if (!pids || !guard.pidfds || !guard.ranks)
        st = sheaf_set_error(SHEAF_STATUS_ALLOC_FAILED, "start: out of memory");
    if ((st = sheaf_world_agree(st, "start"))) goto out;
    if ((st = sheaf_world_all_gather(&pid, sizeof pid, pids, "process numbers"))) goto out;
    for (int r = 0; r < w->size; r++) {
        if (r == w->rank || w->share_of[r] != w->share_of[w->rank]) continue;
        /* an old kernel has no pidfd: deaths then show as silence */
        const int fd = (int)syscall(SYS_pidfd_open, (pid_t)pids[r], 0);
        if (fd < 0 && errno != ENOSYS)
            st = sheaf_set_error(SHEAF_STATUS_PEER, "start: %s (process %lld) has died",
                                 sheaf__rank_text(r), (long long)pids[r]);
        guard.ranks[guard.n_pidfds] = r;
        guard.pidfds[guard.n_pidfds++] = fd;
    }
    st = sheaf_world_agree(st, "start");
    const uint64_t now = sheaf__time_ns();
    for (int i = 0; i < guard.n_pidfds; i++)
        atomic_store_explicit(&sheaf__line(guard.ranks[i])->heard_ns, now, memory_order_relaxed);
    if (!st) atomic_store(&guard.watching, true);
    kick();
out:
    free(pids);
    return st;
}

void sheaf__guard_stop(void) {
    if (!guard.runs) return;
    atomic_store(&guard.stop, true);
    kick();
    pthread_join(guard.thread, NULL);
    for (int i = 0; i < guard.n_pidfds; i++)
        if (guard.pidfds[i] >= 0) close(guard.pidfds[i]);
    free(guard.pidfds);
    free(guard.ranks);
    close(guard.wake);
    guard.pidfds = guard.ranks = NULL;
    guard.n_pidfds = 0;
    guard.wake = -1;
    guard.runs = false;
    atomic_store(&guard.watching, false);
}

static bool all_left(void) {
    for (int i = 0; i < guard.n_pidfds; i++)
        if (!atomic_load(&sheaf__line(guard.ranks[i])->left)) return false;
    return atomic_load(&guard.farewell_sent) && sheaf__heartbeat_all_left();
}

void sheaf__guard_farewell(void) {
    const uint64_t end = sheaf__time_ns() + sheaf__world()->limit_ns[SHEAF_PHASE_FINALIZE];
    atomic_store(&sheaf__line(sheaf__world()->rank)->left, 1);
    atomic_store(&guard.farewell, true);
    kick();
    while (!all_left() && !sheaf__has_failed(sheaf__world()) && sheaf__time_ns() < end) nap(200000);
}

void sheaf__guard_spread(void) {
    if (!guard.runs || !atomic_load(&guard.watching)) return;
    kick();
    const uint64_t end = sheaf__time_ns() + SPREAD_NS;
    while (!atomic_load(&guard.spread) && sheaf__time_ns() < end) {
        nap(1000000);
    }
}

void sheaf__guard_leaving(void) { atomic_store(&guard.leaving, true); }

void sheaf__guard_end_job(void) {
    if (!guard.runs) return;
    const uint64_t now = sheaf__time_ns();
    remove_names();
    end_silent_ranks(now);
    if (sheaf__has_failed(sheaf__world()) && needs_abort(now)) sheaf__launcher_abort(STATUS_FAILED);
    hold_name();
}
