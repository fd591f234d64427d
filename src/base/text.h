/* Texts of bounded length, written piece by piece. */
#ifndef SHEAF_BASE_TEXT_H
#define SHEAF_BASE_TEXT_H

#include <stdarg.h>
#include <stdio.h>

/* A text in memory of the caller's: `size` bytes, always terminated. */
struct sheaf__text {
    char *at;
    size_t size;
    size_t n; /* characters the whole text has; >= size means that it was cut */
};

#if defined(__GNUC__)
__attribute__((format(printf, 2, 3)))
#endif
static inline void
sheaf__put(struct sheaf__text *text, const char *fmt, ...) {
    const size_t room = text->n < text->size ? text->size - text->n : 0;
    va_list ap;
    va_start(ap, fmt);
    const int n = vsnprintf(room ? text->at + text->n : NULL, room, fmt, ap);
    va_end(ap);
    if (n > 0) text->n += (size_t)n;
}

/* Behind what so many members in a row have in common: of five and more "(x5)", as Slurm writes
 * tasks of nodes. Returns for how many of them it stands; fewer than five are written one by one. */
static inline int sheaf__put_alike(struct sheaf__text *text, int alike) {
    if (alike < 5) return 1;
    sheaf__put(text, "(x%d)", alike);
    return alike;
}

/* Texts out of files and of peers must not command a terminal: control bytes become '?'. */
static inline void sheaf__make_plain(char *text) {
    for (; *text; text++)
        if ((unsigned char)*text < 0x20 || *text == 0x7f) *text = '?';
}

/* Number of insertions, deletions and replacements that make one word the other (Levenshtein), for
 * "did you mean". Words of at most 63 characters; longer ones are compared by those. */
static inline int sheaf__word_distance(const char *a, const char *b) {
    int row[64], n = 0;
    while (b[n] && n < 63) n++;
    for (int j = 0; j <= n; j++) row[j] = j;
    for (int i = 1; i < 64 && a[i - 1]; i++) {
        int corner = row[0];
        row[0] = i;
        for (int j = 1; j <= n; j++) {
            const int above = row[j];
            int least = corner + (a[i - 1] != b[j - 1]);
            if (above + 1 < least) least = above + 1;
            if (row[j - 1] + 1 < least) least = row[j - 1] + 1;
            row[j] = least;
            corner = above;
        }
    }
    return row[n];
}

#endif
