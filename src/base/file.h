/* Words for files that cannot be opened, and the end of one that a stream writes.
 *
 * A stream keeps that a write failed, not why, and errno may be another call's by the time that one
 * asks. */
#ifndef SHEAF_BASE_FILE_H
#define SHEAF_BASE_FILE_H

#include <errno.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

/* What failed, and what to do where that is always the same. */
static inline const char *sheaf__errno_text(int error) {
    return error == EMFILE ? "Too many open files; raise the limit (ulimit -n)" : strerror(error);
}

/* Closes f. Returns 0 if all that was written arrived, else an errno: EIO if an earlier write
 * failed and the end did not. */
static inline int sheaf__close_written(FILE *f) {
    const bool lost = ferror(f) != 0;
    errno = 0;
    if (fclose(f)) return errno ? errno : EIO;
    return lost ? EIO : 0;
}

#endif
