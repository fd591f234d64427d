/* Events for sheaf_trace_write. */
#ifndef SHEAF_COMM_TRACE_H
#define SHEAF_COMM_TRACE_H

#include "sheaf/trace.h"

enum sheaf__trace_kind { SHEAF__TRACE_COMPUTE, SHEAF__TRACE_WAIT, SHEAF__TRACE_WIRE };

/* Nothing happens unless a trace was started by this thread, or it works for one that did. */
void sheaf__trace(enum sheaf__trace_kind kind, const char *name, uint64_t start, uint64_t ns);
bool sheaf__tracing(void);
/* The calling thread's events appear in a lane beside the rank's, or not at all. */
void sheaf__trace_beside(bool on);

#endif
