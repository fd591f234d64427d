/* The end of a tool's standard output: what is buffered is written, and a failure of that is
 * told. */
#include "common/output.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

int output_end(int code) {
    const int failed = fflush(stdout);
    if (!failed && !ferror(stdout)) return code;
    fprintf(stderr, "sheaf: the results cannot be written to the standard output: %s\n",
            failed ? strerror(errno) : "an earlier write failed");
    return code ? code : 1;
}
