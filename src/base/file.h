/* The end of a file that a stream writes.
 *
 * A stream keeps that a write failed, not why, and errno may be another call's by the time that one
 * asks. */
#ifndef SHEAF_BASE_FILE_H
#define SHEAF_BASE_FILE_H

#include <errno.h>
#include <stdbool.h>
#include <stdio.h>

/* Closes f. Returns 0 if all that was written arrived, else an errno: EIO if an earlier write
 * failed and the end did not. */
static inline int sheaf__close_written(FILE *f) {
    const bool lost = ferror(f) != 0;
    errno = 0;
    if (fclose(f)) return errno ? errno : EIO;
    return lost ? EIO : 0;
}

#endif
