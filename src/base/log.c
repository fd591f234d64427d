/* The one place of the library that writes to the standard error output.
 *
 * Invariant: a message is one write(2), so that messages of ranks and threads do not mix, and no
 * lock is taken that a stopped thread may hold. */
#include "sheaf/log.h"

#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

enum { MAX_TEXT = 8192 };

static _Atomic(sheaf_log_fn) log_fn;
static void *_Atomic log_user;

void sheaf_log_set(sheaf_log_fn fn, void *user) {
    atomic_store(&log_user, user);
    atomic_store(&log_fn, fn);
}

static void print(const char *text) {
    char line[MAX_TEXT + 64];
    const int n = snprintf(line, sizeof line, "sheaf: %s\n", text);
    if (n > 0 && write(STDERR_FILENO, line, (size_t)n) < 0)
        return; /* there is no other place to report it */
}

void sheaf_log(enum sheaf_log_level level, const char *fmt, ...) {
    char text[MAX_TEXT];
    va_list ap;
    va_start(ap, fmt);
    const int n = vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    if (n < 0) return;
    const sheaf_log_fn fn = atomic_load(&log_fn);
    if (fn)
        fn(level, text, atomic_load(&log_user));
    else
        print(text);
}
