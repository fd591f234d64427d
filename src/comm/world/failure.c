/* The record of the job's first failure.
 *
 * Ranks of one host share it; other hosts get an alarm over the control connections (guard.c). The
 * first to take the record writes the text, and nothing changes it afterwards. After that MPI is
 * not called again. */
#include <sched.h>
#include <stdarg.h>
#include <stdio.h>

#include "base/text.h"
#include "comm/world/world.h"

static void (*_Atomic spread)(void);

void sheaf__failure_spread_by(void (*fn)(void)) { atomic_store(&spread, fn); }

/* Writes the record if this call is the one that moves it from state `from`. */
static bool write_record(int from, int to, int origin, const char *text) {
    struct sheaf__failure *f = sheaf__world()->failure;
    if (!atomic_compare_exchange_strong(&f->state, &from, to)) return false;
    f->origin = origin;
    snprintf(f->text, sizeof f->text, "%s", text);
    sheaf__make_plain(f->text); /* every rank may print it, and a peer may have sent it */
    atomic_store_explicit(&f->state, SHEAF__FAILED, memory_order_release);
    return true;
}

bool sheaf__failure_take(int origin, const char *text) {
    return write_record(SHEAF__HEALTHY, SHEAF__FAILING, origin, text);
}

bool sheaf__failure_retake(int origin, const char *text) {
    return write_record(SHEAF__FAILING, SHEAF__RETAKEN, origin, text);
}

void sheaf_world_abort(const char *reason) {
    const char *text = reason && reason[0] ? reason : "the job was aborted";
    if (!sheaf__failure_take(sheaf__world()->rank, text)) return;
    void (*const fn)(void) = atomic_load(&spread);
    if (fn)
        fn();
    else
        sheaf__failure_tell_program();
}

bool sheaf_world_failed(void) { return sheaf__has_failed(sheaf__world()); }

const struct sheaf__failure *sheaf__failure_record(void) {
    const struct sheaf__failure *f = sheaf__world()->failure;
    for (int i = 0; i < 1000; i++) { /* the text follows the mark within a memcpy's time */
        if (atomic_load_explicit(&f->state, memory_order_acquire) == SHEAF__FAILED) return f;
        sched_yield();
    }
    return NULL;
}

void sheaf__failure_tell_program(void) {
    static atomic_flag told = ATOMIC_FLAG_INIT;
    const struct sheaf__world *w = sheaf__world();
    const struct sheaf__failure *f = sheaf__failure_record();
    if (!f || !w->on_failure || atomic_flag_test_and_set(&told)) return;
    w->on_failure(f->origin, f->text, w->on_failure_user);
}

enum sheaf_status sheaf__report_failure(void) {
    const struct sheaf__failure *f = sheaf__failure_record();
    if (!f) return sheaf_set_error(SHEAF_STATUS_PEER, "another rank failed and left no reason");
    if (f->origin == sheaf__world()->rank) return sheaf_set_error(SHEAF_STATUS_PEER, "%s", f->text);
    return sheaf_set_error(SHEAF_STATUS_PEER, "%s reports: %s", sheaf__rank_text(f->origin),
                           f->text);
}

enum sheaf_status sheaf__fail(enum sheaf_status status, const char *fmt, ...) {
    char text[SHEAF__REASON_BYTES];
    if (sheaf__has_failed(sheaf__world())) return sheaf__report_failure();
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    sheaf_world_abort(text);
    return sheaf_set_error(status, "%s", text);
}
