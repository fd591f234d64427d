/* The activities of each rank over time: a file for trace viewers (chrome://tracing,
 * ui.perfetto.dev), with one lane a rank. Events are compute (a span between collectives, named
 * after its last tensor, or that one's op), wait (for the slowest member of a collective) and wire
 * (the rest of the collective). They are those of the thread that called sheaf_world_init. */
#ifndef SHEAF_TRACE_H
#define SHEAF_TRACE_H

#include "sheaf/world.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Collective. Takes memory for max_events events on this rank (0: 200000); later ones are counted
 * only. Clocks of hosts are compared here, to about the latency between them. */
enum sheaf_status sheaf_trace_start(size_t max_events);
/* Collective. Rank 0 writes the events of all ranks as JSON; tracing ends. */
enum sheaf_status sheaf_trace_write(const char *path);

#ifdef __cplusplus
}
#endif
#endif
