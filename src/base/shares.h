/* Shares of members as a user writes them: "3,1". Which members there are is the caller's. */
#ifndef SHEAF_BASE_SHARES_H
#define SHEAF_BASE_SHARES_H

#include <stdbool.h>
#include <string.h>

#include "base/locale.h"
#include "sheaf/status.h"

/* The numbers of a list with commas between them, decimal, each from 0 to 1e12 and one above 0.
 * Returns how many; 0: the text is something else. Writes the first `most` of them to shares, which
 * may be NULL if most is 0. */
static inline int sheaf__read_shares(const char *text, double *shares, int most) {
    bool any = false;
    for (int n = 0;; n++) {
        char *end;
        const double share = sheaf__strtod(text, &end);
        const size_t length = (size_t)(end - text);
        /* neither signs, blanks, "nan" and "inf", nor hexadecimal numbers, all of which strtod
         * takes */
        if (!length || strspn(text, "0123456789.eE+-") < length || *text == '+' || *text == '-')
            return 0;
        if (!(share >= 0 && share <= 1e12) || (*end && *end != ',')) return 0;
        if (n < most) shares[n] = share;
        any = any || share > 0;
        if (!*end) return any ? n + 1 : 0;
        text = end + 1;
    }
}

/* INVALID, with the values that --split takes. */
static inline enum sheaf_status sheaf__refuse_split(const char *split) {
    return sheaf_set_error(SHEAF_STATUS_INVALID,
                           "--split %.60s: give even, auto, or a share for each member: numbers "
                           "from 0 to 1e12, not all 0, with commas between them (3,1)",
                           split);
}

#endif
