/* How ggml's calls reach the job, one at a time, and the thread that the job began on.
 *
 * ggml calls from any of its threads. A call that needs the job waits for the one before it and
 * works on its own thread. The driver thread, which is the plugin's, starts the world and ends it,
 * and takes the calls if MPI allows one thread only. */
#ifndef SHEAF_GGML_CALLS_H
#define SHEAF_GGML_CALLS_H

#include <stdbool.h>

#include "sheaf/status.h"

typedef enum sheaf_status (*gg_task_fn)(void *argument);

/* Starts the driver thread. */
enum sheaf_status gg_calls_start(void);
/* Runs `first` on it; calls are taken from then on, unless it fails. */
enum sheaf_status gg_calls_open(gg_task_fn first);
bool gg_calls_are_open(void);
/* Waits for the call under way, runs `last` on the driver thread, and ends that thread. Does
 * nothing if calls are not open, and inside of a call: exit() in a handler of a signal may come
 * from there. */
void gg_calls_close(gg_task_fn last);

/* Runs the task when the call before has ended; its status and text. INVALID: calls are not open,
 * or this process is a child of the one that opened them. */
enum sheaf_status gg_call(gg_task_fn task, void *argument);

/* The same, but only if no call is under way. Has the task run, and succeeded? */
bool gg_call_if_idle(gg_task_fn task, void *argument);

/* Notes a failure, if `st` is one and none is noted, and logs it: ggml's functions that move data
 * return nothing, so the next graph reports it. */
void gg_failure_note(enum sheaf_status st);
/* Logs the current error, unless it is the job's and another rank prints it. */
void gg_failure_log(void);
/* Notes a failure that is logged already. */
void gg_failure_set(void);
/* The noted failure, with a text; SUCCESS: none. It is forgotten then, unless the job itself has
 * failed. */
enum sheaf_status gg_failure_take(void);

#endif
