/* A formatted text in memory of its own, for malloc's users.
 *
 * asprintf of the C library is not called anywhere, so that the leaks of Open MPI's calls of it can
 * be suppressed by its name (test-symbols). */
#ifndef SHEAF_BASE_FORMAT_H
#define SHEAF_BASE_FORMAT_H

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

/* For free(); NULL without memory. */
#if defined(__GNUC__)
__attribute__((format(printf, 1, 2)))
#endif
static inline char *
sheaf__format(const char *fmt, ...) {
    va_list ap;
    va_start(ap, fmt);
    const int n = vsnprintf(NULL, 0, fmt, ap);
    va_end(ap);
    char *text = n < 0 ? NULL : malloc((size_t)n + 1);
    if (!text) return NULL;
    va_start(ap, fmt);
    vsnprintf(text, (size_t)n + 1, fmt, ap);
    va_end(ap);
    return text;
}

#endif
