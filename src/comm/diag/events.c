/* The events of this rank, collected while a trace runs. */
#include "comm/diag/events.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

static struct sheaf__events list;
static _Atomic size_t n_asked; /* events, also those that found no place */
static atomic_bool started;    /* for the main thread */
static _Thread_local bool active, beside;

void sheaf__trace(enum sheaf__trace_kind kind, const char *name, uint64_t start, uint64_t ns) {
    if (!active || !ns) return;
    const size_t i = atomic_fetch_add_explicit(&n_asked, 1, memory_order_relaxed);
    if (i >= list.cap) return;
    struct sheaf__event *e = &list.events[i];
    *e = (struct sheaf__event){.start = start, .ns = ns, .kind = (uint32_t)kind, .beside = beside};
    memcpy(e->name, name, strnlen(name, sizeof e->name - 1));
}

bool sheaf__tracing(void) { return active; }
void sheaf__trace_beside(bool on) { active = beside = on; }

bool sheaf__events_start(size_t max_events) {
    struct sheaf__event *events = calloc(max_events, sizeof *events);
    if (!events) return false;
    list = (struct sheaf__events){.events = events, .cap = max_events};
    n_asked = 0;
    return true;
}

void sheaf__events_record(bool on) { started = active = on; }
void sheaf__events_own(void) { active = started; }

const struct sheaf__events *sheaf__events(void) {
    list.n_asked = n_asked;
    list.n = list.n_asked < list.cap ? list.n_asked : list.cap;
    return list.events ? &list : NULL;
}

void sheaf__events_stop(void) {
    free(list.events);
    list = (struct sheaf__events){0};
}
