/* Which rank prints a failure, so that a job says it once, and what the watch itself notices.
 *
 * Before ranks share a board the speaker decides. Then: one rank of each share group may print, and
 * rank 0's group decides which group does. */
#include <stdarg.h>
#include <stdio.h>

#include "comm/watch/watch_impl.h"
#include "comm/world/world.h"
#include "sheaf/log.h"

static _Atomic int first_teller;  /* enum sheaf__teller: the thread of this process that prints */
static _Atomic bool noticed_here; /* the watch of this process took the record */

/* ---- one message ---- */

bool sheaf__permits(int origin) {
    const struct sheaf__world *w = sheaf__world();
    const int host = w->share_of[origin] + 1;
    int none = 0;
    return atomic_compare_exchange_strong(&w->failure->permit, &none, host) || none == host;
}

/* The share group's: true for the rank that takes it first, each time. */
static bool take_told(void) {
    struct sheaf__world *w = sheaf__world();
    int none = 0;
    return atomic_compare_exchange_strong(&w->failure->told, &none, w->rank + 1) ||
           none == w->rank + 1;
}

static bool claim(bool met, bool last) {
    struct sheaf__world *w = sheaf__world();
    if (!met) { /* a rank of this share group that came out of the start earlier may print it */
        const int told = atomic_load(&w->failure->told);
        return (!told || told == w->rank + 1) && sheaf__speaker_claim() && take_told();
    }
    if (w->share_of[w->rank] == 0 && !last && !sheaf__permits(w->rank)) return false;
    return take_told();
}

bool sheaf__report_claim(enum sheaf__teller teller, bool met, bool last) {
    int before = SHEAF__NO_TELLER;
    if (!claim(met, last)) return false;
    return atomic_compare_exchange_strong(&first_teller, &before, (int)teller) ||
           (before == (int)teller && teller == SHEAF__TELLER_MAIN);
}

/* Ranks that do not share a record yet have agreed on a failure, and so on which of them speaks. */
static bool agreed(void) {
    const struct sheaf__world *w = sheaf__world();
    return w->failure == &sheaf__own_failure && w->reporter >= 0;
}

bool sheaf__report_tell(bool met, bool last) {
    struct sheaf__failure *f = sheaf__world()->failure;
    if (atomic_load(&f->outranked) || agreed() ||
        !sheaf__report_claim(SHEAF__TELLER_WATCH, met, last))
        return false;
    const bool own = f->origin == sheaf__world()->rank;
    sheaf_log(SHEAF_LOG_ERROR, "%s%s%s", own ? "" : sheaf__rank_text(f->origin),
              own ? "" : " reports: ", f->text);
    atomic_store(&f->printed, 1);
    return true;
}

/* ---- what the watch notices ---- */

void sheaf__notice(const char *fmt, ...) {
    char text[SHEAF__REASON_BYTES];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    if (sheaf__failure_take(sheaf__world()->rank, text)) atomic_store(&noticed_here, true);
}

void sheaf__notice_torn(void) {
    const int me = sheaf__world()->rank;
    char text[SHEAF__REASON_BYTES];
    snprintf(text, sizeof text, "a rank of host %s was lost while it reported a failure",
             sheaf_world_host_name(me));
    if (sheaf__failure_retake(me, text)) atomic_store(&noticed_here, true);
}

bool sheaf__noticed(void) { return atomic_load(&noticed_here); }

bool sheaf__notice_lost(int rank, const char *fmt, ...) {
    if (sheaf__end_is_expected(sheaf__time_ns())) return false;
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
    sheaf__notice("%s %s; it was last seen in %s, and %s is in %s", sheaf__rank_text(rank), why,
                  there, sheaf__rank_text(me), here);
    return true;
}

/* ---- what it hears ---- */

bool sheaf__report_has_text(void) {
    return atomic_load_explicit(&sheaf__world()->failure->state, memory_order_acquire) ==
           SHEAF__FAILED;
}

void sheaf__hear_failure(int origin, const char *text) {
    struct sheaf__world *w = sheaf__world();
    if (sheaf__failure_take(origin, text)) return;
    if (sheaf__report_has_text() && w->share_of[origin] < w->share_of[w->failure->origin])
        atomic_store(&w->failure->lower, 1);
}

void sheaf__hear_told(int rank) {
    int none = 0;
    atomic_compare_exchange_strong(&sheaf__world()->failure->told, &none, rank + 1);
}

void sheaf__hear_permit(bool speak) {
    struct sheaf__world *w = sheaf__world();
    if (speak)
        atomic_store(&w->failure->permit, w->share_of[w->rank] + 1);
    else
        atomic_store(&w->failure->outranked, 1);
}
