/* How far the load of a model is: a bar where the standard error output is a terminal, else a line
 * every ten seconds, since under mpirun it is a pipe. */
#ifndef SHEAF_TOOLS_PROGRESS_H
#define SHEAF_TOOLS_PROGRESS_H

#include <stdbool.h>
#include <stddef.h>

enum { PROGRESS_LINE = 96 };

struct progress {
    bool terminal;
    double start, last; /* seconds: of the load, and when it was last shown. 0: not begun */
    int percent;        /* last shown */
};

/* The text to be shown at the time `now` [s], "" for nothing; `text` has PROGRESS_LINE bytes. */
void progress_text(struct progress *p, double now, size_t done, size_t total, char *text);
/* Shows it, on rank 0; `user` is a struct progress. Fits sheaf_model_progress_fn. */
bool progress_show(void *user, size_t done, size_t total);

#endif
