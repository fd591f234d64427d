/* What the library reads and writes has decimal points, and letters have the cases of ASCII, whatever locale the
 * program around it has set. Messages for people are the program's. */
#ifndef SHEAF_BASE_LOCALE_H
#define SHEAF_BASE_LOCALE_H

#include <locale.h>
#include <stdlib.h>
#include <strings.h>

/* libc has this one ready: nothing is allocated, nothing to be freed. */
static inline locale_t sheaf__c_locale(void) { return newlocale(LC_ALL_MASK, "C", (locale_t)0); }

static inline double sheaf__strtod(const char *text, char **end) {
    return strtod_l(text, end, sheaf__c_locale());
}

static inline int sheaf__strcasecmp(const char *a, const char *b) {
    return strcasecmp_l(a, b, sheaf__c_locale());
}

static inline int sheaf__strncasecmp(const char *a, const char *b, size_t n) {
    return strncasecmp_l(a, b, n, sheaf__c_locale());
}

#endif
