/* Events for sheaf_trace_write. */
#ifndef SHEAF_COMM_TRACE_H
#define SHEAF_COMM_TRACE_H

#include "sheaf/trace.h"

enum sheaf__trace_kind { SHEAF__TRACE_COMPUTE, SHEAF__TRACE_WAIT, SHEAF__TRACE_WIRE };

/* Nothing happens unless a trace was started, or on another thread. */
void sheaf__trace(enum sheaf__trace_kind kind, const char *name, uint64_t start, uint64_t ns);

#endif
