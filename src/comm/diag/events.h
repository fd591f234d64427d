/* Events for sheaf_trace_write: a list that the threads of a rank append to. */
#ifndef SHEAF_COMM_EVENTS_H
#define SHEAF_COMM_EVENTS_H

#include <assert.h>

#include "sheaf/trace.h"

enum sheaf__trace_kind { SHEAF__TRACE_COMPUTE, SHEAF__TRACE_WAIT, SHEAF__TRACE_WIRE };

/* Nothing happens unless a trace was started by this thread or one whose place it took, or it works
 * for one that did. */
void sheaf__trace(enum sheaf__trace_kind kind, const char *name, uint64_t start, uint64_t ns);
bool sheaf__tracing(void);
/* The calling thread's events appear in a lane beside the rank's, or not at all. */
void sheaf__trace_beside(bool on);

/* ---- for trace_file.c ---- */
/* Ranks of a job have one build, and one order of bytes. */
struct sheaf__event {
    uint64_t start, ns;
    uint32_t kind, beside;
    char name[40];
};
static_assert(sizeof(struct sheaf__event) == 64, "no holes: events travel as they are");
struct sheaf__events {
    struct sheaf__event *events;
    size_t cap, n;
    size_t n_asked; /* also those that found no place */
};
/* Takes memory; false if there is none. */
bool sheaf__events_start(size_t max_events);
/* Whether the calling thread's events are kept; own: as those of the main thread before it. */
void sheaf__events_record(bool on);
void sheaf__events_own(void);
const struct sheaf__events *sheaf__events(void); /* NULL: not started */
void sheaf__events_stop(void);                   /* while none are kept */

#endif
