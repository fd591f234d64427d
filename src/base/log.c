/* The one place of the library that writes to the standard error output.
 *
 * Invariant: a message of up to PIPE_BUF bytes is one write(2), so that messages of ranks and
 * threads do not mix (longer ones may), and no lock is taken that a stopped thread may hold. A full
 * pipe that is not read holds up the caller for a limited time, then the rest is dropped: the guard
 * of a failing job must not wait for the reader of its message. */
#include "sheaf/log.h"

#include <errno.h>
#include <limits.h>
#include <poll.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"

enum { MAX_TEXT = 8192 };
static const uint64_t WRITE_NS = 2000000000; /* for the whole of a message */

static _Atomic(sheaf_log_fn) log_fn;
static void *_Atomic log_user;

void sheaf_log_set(sheaf_log_fn fn, void *user) {
    atomic_store(&log_user, user);
    atomic_store(&log_fn, fn);
}

/* Pipes have room for PIPE_BUF bytes when poll says that they can be written. */
static void write_all(int fd, const char *line, size_t n) {
    const uint64_t end = sheaf__time_ns() + WRITE_NS;
    struct pollfd p = {.fd = fd, .events = POLLOUT};
    for (uint64_t now; n && (now = sheaf__time_ns()) < end;) {
        if (poll(&p, 1, (int)((end - now) / 1000000) + 1) < 1) continue;
        const ssize_t done = write(fd, line, n < PIPE_BUF ? n : PIPE_BUF);
        if (done < 0 && errno != EINTR && errno != EAGAIN) return; /* no other place to report it */
        if (done > 0) line += done, n -= (size_t)done;
    }
}

static void print(const char *text) {
    char line[MAX_TEXT + 64];
    const int n = snprintf(line, sizeof line, "sheaf: %s\n", text);
    if (n > 0) write_all(STDERR_FILENO, line, (size_t)n);
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
