/* Signals that ask a tool to end. */
#ifndef SHEAF_TOOLS_INTERRUPT_H
#define SHEAF_TOOLS_INTERRUPT_H

#include <stdbool.h>

/* SIGINT and SIGTERM ask for an end instead of ending the process; a second signal a second later
 * ends it. ends_reads: they also end a read of the standard input. Otherwise, for tools that write
 * a file, SIGHUP asks as well, unless it is ignored (nohup). */
void tool_catch_signals(bool ends_reads);
/* Has one come? */
bool tool_interrupted(void);

#endif
