/* Status names and the thread-local text of the last error. */
#include "sheaf/status.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "base/text.h"

static _Thread_local char last_error[2048];

const char *sheaf_status_to_string(enum sheaf_status status) {
    switch (status) {
    case SHEAF_STATUS_SUCCESS:
        return "success";
    case SHEAF_STATUS_ABORTED:
        return "aborted";
    case SHEAF_STATUS_FAILED:
        return "failed";
    case SHEAF_STATUS_ALLOC_FAILED:
        return "out of memory";
    case SHEAF_STATUS_INVALID:
        return "invalid input";
    case SHEAF_STATUS_IO:
        return "input/output error";
    case SHEAF_STATUS_UNSUPPORTED:
        return "not supported";
    case SHEAF_STATUS_TIMEOUT:
        return "timed out";
    case SHEAF_STATUS_PEER:
        return "another rank failed";
    }
    return "unknown status";
}

const char *sheaf_last_error(void) { return last_error; }

void sheaf_clear_error(void) { last_error[0] = '\0'; }

enum sheaf_status sheaf_set_error(enum sheaf_status status, const char *fmt, ...) {
    /* Formatted aside first: callers wrap the previous text by passing sheaf_last_error() as an
     * argument. */
    char text[sizeof last_error];
    va_list ap;
    va_start(ap, fmt);
    int n = vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    if (n < 0) text[0] = '\0';
    sheaf__make_plain(text); /* it may quote a file */
    memcpy(last_error, text, sizeof text);
    return status;
}
