/* The guard's thread: what it notices, and what it does when a job fails.
 *
 * Invariant: the thread never takes a lock that the main thread may hold while it waits for MPI,
 * and calls nothing that can block: files are written by a thread of their own (dumps.c), messages
 * have a limit (base/log.c). */
#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/launcher.h"
#include "comm/watch/guard.h"
#include "comm/watch/watch_impl.h"
#include "comm/world/world.h"
#include "sheaf/log.h"

enum { TICK_MS = 100, PARTING_MS = 2 };
static const uint64_t FINALIZE_NS = 300000000; /* for MPI_Finalize, if the launcher ends the job */
static const uint64_t ARRIVE_NS = 400000000;   /* and then for the farewell to arrive */
static const uint64_t BEAT_NS = 250000000;     /* between signs of life */
/* Several hosts notice a failure at about the same time. The host of rank 0 decides which one
 * prints it: the first host that asks, or itself. The others wait ANSWER_NS for its answer; if it
 * is out of reach, they wait LISTEN_NS for the report of a lower rank. */
static const uint64_t ANSWER_NS = 1500000000;
static const uint64_t LISTEN_NS = 500000000;
static const uint64_t FORCE_NS = 3000000000u; /* for a main thread to come back from where it is */
static const uint64_t SILENT_NS = 1500000000; /* after a failure, a rank silent for this long counts
                                                 as stuck */
static const uint64_t PRINT_NS = 200000000;   /* for a program to print a failure */
static const uint64_t TORN_NS = 1000000000;   /* for the text of a record */
static const uint64_t AWAY_NS = 2000000000;   /* without a tick for this long, the process was
                                                 stopped, perhaps with its whole job */

struct sheaf__guard sheaf__guard = {.wake = -1};

static struct {         /* the thread's own */
    bool forced;        /* the time for the main thread to come back is over */
    uint64_t failed_at; /* 0: not yet */
    uint64_t ends_at;   /* the same: the farewell before an expected end has its time until then */
    uint64_t torn_at;   /* the record was taken, but has no text */
    uint64_t last_tick, last_beat;
    uint64_t told_at; /* when a rank was first seen to print the failure */
} own;

/* The farewell of this rank is under way. */
static bool parting(void) {
    return atomic_load(&sheaf__guard.farewell) && !atomic_load(&sheaf__guard.farewell_arrived);
}

void sheaf__guard_kick(void) {
    const uint64_t one = 1;
    if (sheaf__guard.wake >= 0 && write(sheaf__guard.wake, &one, sizeof one) < 0)
        return; /* it is full: awake */
}

static void tell(bool last) {
    if (sheaf__report_tell(sheaf__guard_watches(), last)) sheaf__guard_kick();
}

static bool is_dead(int neighbour) { return sheaf__guard.pidfds[neighbour] == SHEAF__DEAD; }

/* ---- what the guard notices ---- */

/* While an end is expected deaths are left unread: one that is still there afterwards counts. */
static void check_deaths(const struct pollfd *fds, int n, uint64_t now) {
    if (sheaf__end_is_expected(now)) return;
    for (int i = 0; i < n; i++) {
        if (sheaf__guard.pidfds[i] < 0 || !fds[i].revents) continue;
        close(sheaf__guard.pidfds[i]);
        sheaf__guard.pidfds[i] = SHEAF__DEAD;
        if (atomic_load(&sheaf__line(sheaf__guard.ranks[i])->left)) continue;
        if (sheaf__has_failed(sheaf__world())) continue; /* on its way out as we are */
        sheaf__notice_lost(sheaf__guard.ranks[i],
                           "has died (it was killed or ended without notice)");
    }
}

static void check_silence(uint64_t now, bool forgive) {
    const uint64_t limit = sheaf__world()->heartbeat_ns;
    sheaf__links_check(now, limit, forgive);
    for (int i = 0; i < sheaf__guard_n_neighbours(); i++) {
        struct sheaf__line *l = sheaf__line(sheaf__guard.ranks[i]);
        if (forgive) atomic_store_explicit(&l->heard_ns, now, memory_order_relaxed);
        const uint64_t heard = atomic_load_explicit(&l->heard_ns, memory_order_relaxed);
        if (is_dead(i) || atomic_load(&l->left) || now < heard + limit) continue;
        sheaf__notice_lost(sheaf__guard.ranks[i],
                           "has not run for %.1f s, so it is stopped or starved "
                           "(SHEAF_TIMEOUT_HEARTBEAT_MS)",
                           (double)(now - heard) * 1e-9);
    }
}

/* Before MPI is initialized, the variables of the launcher tell the rank. */
static void name_self(char *text, size_t size) {
    const char *rank = sheaf__launcher_rank();
    char host[SHEAF__HOST_NAME_BYTES] = "";
    gethostname(host, sizeof host - 1);
    if (sheaf__guard_watches() || !rank)
        snprintf(text, size, "%s", sheaf__rank_text(sheaf__world()->rank));
    else
        snprintf(text, size, "rank %.9s (%s)", rank, host);
}

/* The process was away: the phase of the main thread is not late because of that, and has its time
 * anew. One that begins now is as new. */
static void forgive_phase(uint64_t now) {
    _Atomic uint64_t *since = &sheaf__line_here()->since_ns;
    uint64_t before = atomic_load_explicit(since, memory_order_relaxed);
    atomic_compare_exchange_strong(since, &before, now);
}

/* A process that has crashed may end: the launcher then ends the others, also the one that prints.
 * A program that prints itself does not say when it has. */
static bool message_is_out(uint64_t now) {
    const struct sheaf__failure *f = sheaf__world()->failure;
    if (!own.told_at && atomic_load(&f->told)) own.told_at = now;
    return atomic_load(&f->printed) || (own.told_at && now > own.told_at + PRINT_NS);
}

/* A thread of this process is in the handler of a crash, which waits for the message. */
static void check_crash(void) {
    struct sheaf__activity a;
    char what[160], self[SHEAF__HOST_NAME_BYTES + 32];
    if (sheaf__has_failed(sheaf__world())) return;
    sheaf__read(sheaf__line_here(), &a);
    sheaf__activity_text(&a, what, sizeof what);
    name_self(self, sizeof self);
    sheaf__notice("%s has crashed with %s in %s", self, sheaf__crash_name(), what);
}

/* The time that a phase has. */
static uint64_t limit_of(enum sheaf_phase phase) {
    const struct sheaf__world *w = sheaf__world();
    const uint64_t limit = w->limit_ns[phase], of_groups = atomic_load(&w->group_limit_ns);
    return phase == SHEAF_PHASE_COLLECTIVE && of_groups > limit ? of_groups : limit;
}

/* Checks the phase of the main thread. Waits in collectives have their own deadlines, which end
 * first. */
static void check_phase(uint64_t now) {
    const struct sheaf__line *l = sheaf__line_here();
    const struct sheaf__doing d = sheaf__doing(l);
    if (d.phase == SHEAF_PHASE_IDLE || d.phase >= SHEAF_PHASE_COUNT) return;
    const uint64_t limit = limit_of(d.phase);
    const bool waits = d.phase == SHEAF_PHASE_COLLECTIVE || d.exchanges;
    const uint64_t more = d.phase == SHEAF_PHASE_START ? FORCE_NS / 3 : limit;
    if (now < d.since_ns + limit + (waits ? more : 0)) return;
    struct sheaf__activity a;
    char what[160];
    sheaf__read(l, &a);
    if (a.phase != d.phase) return;
    sheaf__activity_text(&a, what, sizeof what);
    char self[SHEAF__HOST_NAME_BYTES + 32];
    name_self(self, sizeof self);
    sheaf__notice("%s: %s has not ended for %.1f s; if it is only slow, raise %s", self, what,
                  (double)(now - d.since_ns) * 1e-9, sheaf__phase_setting(d.phase));
}

/* A rank that was killed while it wrote the record has left it without a text. */
static void check_record(uint64_t now) {
    if (!sheaf__has_failed(sheaf__world())) {
        own.torn_at = 0;
        return;
    }
    if (!own.torn_at) own.torn_at = now;
    if (now >= own.torn_at + TORN_NS) sheaf__notice_torn();
}

/* ---- after a failure ---- */

static int place_of(int rank) {
    const struct sheaf__world *w = sheaf__world();
    int place = 0;
    for (int r = 0; r < rank; r++) place += w->share_of[r] == w->share_of[rank];
    return place;
}

static bool is_silent(int i, uint64_t now) {
    const struct sheaf__line *l = sheaf__line(sheaf__guard.ranks[i]);
    return !is_dead(i) && !atomic_load(&l->left) &&
           now > atomic_load_explicit(&l->heard_ns, memory_order_relaxed) + SILENT_NS;
}

static void dump_records(uint64_t now) {
    const int me = sheaf__world()->rank;
    struct sheaf__dump *list = calloc((size_t)sheaf__world()->size + 1, sizeof *list);
    int n = 0;
    if (sheaf__guard_watches() && list) {
        list[n++] = (struct sheaf__dump){me, place_of(me)};
        for (int i = 0; i < sheaf__guard_n_neighbours(); i++)
            if (is_dead(i) || is_silent(i, now))
                list[n++] =
                    (struct sheaf__dump){sheaf__guard.ranks[i], place_of(sheaf__guard.ranks[i])};
        sheaf__dumps_write(list, n);
    }
    free(list);
}

/* A rank of this host that is stopped cannot exit on its own. */
void sheaf__guard_end_silent(uint64_t now) {
    for (int i = 0; i < sheaf__guard_n_neighbours(); i++)
        if (is_silent(i, now))
            syscall(SYS_pidfd_send_signal, sheaf__guard.pidfds[i], SIGKILL, NULL, 0);
}

/* Is a rank lost that cannot exit on its own, or does the launcher leave ranks running? */
bool sheaf__guard_needs_abort(uint64_t now) {
    if (!atomic_load(&sheaf__guard.complete) || sheaf__launcher_recovers()) return true;
    if (sheaf__links_lost(now, SILENT_NS)) return true;
    for (int i = 0; i < sheaf__guard_n_neighbours(); i++)
        if (is_silent(i, now)) return true;
    return false;
}

/* The main thread has not come back. */
static void force_exit(uint64_t now) {
    dump_records(now);
    tell(true);
    /* the launcher passes the message on, and other ranks see that it was printed */
    sheaf__nap(500000000);
    if (!sheaf__world()->may_exit) return;
    sheaf__launcher_remove_names();
    sheaf__dumps_await();
    sheaf__guard_end_silent(now);
    if (sheaf__guard_needs_abort(now)) sheaf__launcher_abort(SHEAF__GUARD_STATUS);
    sheaf__speaker_hold();
    _exit(SHEAF__GUARD_STATUS);
}

/* Is it known which host prints the failure? */
static bool is_settled(uint64_t now) {
    const struct sheaf__world *w = sheaf__world();
    const struct sheaf__failure *f = w->failure;
    if (!w->share_of || w->share_of[w->rank] == 0) return true;
    if (atomic_load(&f->permit) || atomic_load(&f->outranked) || atomic_load(&f->told)) return true;
    const bool ask = w->share_of[f->origin] == w->share_of[w->rank];
    const bool reached = ask && sheaf__links_ask(f->origin, f->text);
    if (now < own.failed_at + (reached ? ANSWER_NS : LISTEN_NS)) return false;
    if (atomic_load(&f->lower)) atomic_store(&w->failure->outranked, 1);
    return true;
}

static void on_failure(uint64_t now) {
    const struct sheaf__world *w = sheaf__world();
    if (!own.failed_at) {
        own.failed_at = now;
        /* every rank of the share group sends it: the rank that took the record may lack a
         * connection that this one has */
        if (w->share_of && w->share_of[w->failure->origin] == w->share_of[w->rank])
            sheaf__links_alarm(w->failure->origin, w->failure->text);
        dump_records(now);
        if (w->may_exit) sheaf__launcher_remove_names();
        sheaf__failure_tell_program();
    }
    if (is_settled(now)) {
        atomic_store(&sheaf__guard.spread, true);
        if (sheaf__noticed()) tell(false);
    }
    const enum sheaf_phase phase = sheaf__phase();
    const uint64_t limit = phase == SHEAF_PHASE_IDLE || atomic_load(&sheaf__guard.leaving)
                               ? w->limit_ns[SHEAF_PHASE_FINALIZE]
                               : FORCE_NS;
    if (now >= own.failed_at + limit && !own.forced) {
        own.forced = true;
        force_exit(now);
    }
}

/* The program has finished, but its main thread stays in MPI_Finalize: the launcher, which ends the
 * job, does not serve it, or has killed a rank that the others wait for there. */
static void end_as_expected(uint64_t now) {
    const struct sheaf__world *w = sheaf__world();
    const uint64_t since = atomic_load(&w->finalize_ns);
    if (!w->may_exit || !since || now < since + FINALIZE_NS || !sheaf__end_is_expected(now)) return;
    if (!own.ends_at) own.ends_at = now + ARRIVE_NS;
    if (sheaf__guard_watches()) atomic_store(&sheaf__line(w->rank)->left, 1);
    atomic_store(&sheaf__guard.farewell, true); /* the thread goes on with it, and beats no more */
    if (!sheaf__links_farewell() && now < own.ends_at) return;
    sheaf__launcher_remove_names();
    _exit(atomic_load(&w->end_status));
}

/* ---- the thread ---- */

/* fds: the polled descriptors, n of neighbours first; NULL if the poll was before the watch. */
static void tick(const struct pollfd *fds, int n, uint64_t now) {
    /* also before this rank watches: others that are ahead of it in the start may watch it */
    atomic_store_explicit(&sheaf__line_here()->heard_ns, now, memory_order_relaxed);
    if (fds) {
        const struct sheaf__world *w = sheaf__world();
        const bool away = now - own.last_tick > w->heartbeat_ns / 2;
        sheaf__links_serve(fds + 1 + n, now);
        check_deaths(fds + 1, n, now);
        /* not behind a farewell, whose arrival they would hide */
        if ((now >= own.last_beat + BEAT_NS && !atomic_load(&sheaf__guard.farewell)) ||
            own.failed_at) {
            sheaf__links_beat();
            own.last_beat = now;
        }
        const int told = atomic_load(&w->failure->told) - 1;
        /* also for another rank of the share group; and repeatedly, since a frame may be dropped */
        if (told >= 0 && w->share_of[told] == w->share_of[w->rank]) sheaf__links_told();
        check_silence(now, away);
    }
    if (now > own.last_tick + AWAY_NS) forgive_phase(now);
    own.last_tick = now;
    end_as_expected(now);
    if (sheaf__crash_name()) check_crash();
    if (!sheaf__has_failed(sheaf__world())) check_phase(now);
    if (sheaf__report_has_text())
        on_failure(now);
    else
        check_record(now);
    if (sheaf__crash_name() && message_is_out(now)) sheaf__crash_told();
}

void *sheaf__guard_run(void *arg) {
    struct pollfd *fds = NULL, one = {.fd = sheaf__guard.wake, .events = POLLIN};
    (void)arg;
    own.last_tick = sheaf__time_ns();
    while (!atomic_load(&sheaf__guard.stop)) {
        const bool met = sheaf__guard_watches();
        const int n = sheaf__guard_n_neighbours(), n_links = met ? sheaf__links_fds(NULL) : 0;
        if (met && !fds) fds = calloc((size_t)(1 + sheaf__world()->size + n_links), sizeof *fds);
        struct pollfd *at = met && fds ? fds : &one;
        at[0] = one;
        const bool deaths = !sheaf__end_is_expected(sheaf__time_ns());
        for (int i = 0; at == fds && i < n; i++)
            at[1 + i] =
                (struct pollfd){.fd = deaths ? sheaf__guard.pidfds[i] : -1, .events = POLLIN};
        if (at == fds) sheaf__links_fds(fds + 1 + n);
        const int wait = parting() ? PARTING_MS : TICK_MS;
        if (poll(at, at == fds ? (nfds_t)(1 + n + n_links) : 1, wait) < 0 && errno != EINTR)
            sheaf__nap(10000000);
        uint64_t count;
        if (at[0].revents && read(sheaf__guard.wake, &count, sizeof count) < 0) sheaf__nap(1000000);
        if (parting() && sheaf__links_farewell())
            atomic_store(&sheaf__guard.farewell_arrived, true);
        if (!met || fds) tick(met ? fds : NULL, n, sheaf__time_ns());
    }
    free(fds);
    atomic_store(&sheaf__guard.ended, true);
    return NULL;
}
