/* UTF-8 and character classes; see unicode.h.
 *
 * Well-formedness follows table 3-7 of the Unicode standard: the second byte's range depends on the
 * first, the rest are 80..BF. */
#include "model/text/unicode.h"

/* Length that a lead byte announces (0: not a lead byte) and the range of its second byte. */
static size_t lead(unsigned char b, unsigned char *lo, unsigned char *hi) {
    *lo = 0x80;
    *hi = 0xBF;
    if (b < 0x80) return 1;
    if (b < 0xC2) return 0;
    if (b < 0xE0) return 2;
    if (b < 0xF0) {
        if (b == 0xE0) *lo = 0xA0;
        if (b == 0xED) *hi = 0x9F;
        return 3;
    }
    if (b < 0xF5) {
        if (b == 0xF0) *lo = 0x90;
        if (b == 0xF4) *hi = 0x8F;
        return 4;
    }
    return 0;
}

/* How many of the first `n` bytes fit the form that the lead byte announces; *want is its length.
 */
static size_t fitting(const char *s, size_t n, size_t *want) {
    unsigned char lo, hi;
    *want = lead((unsigned char)s[0], &lo, &hi);
    if (*want == 0) return 0;
    size_t i = 1;
    for (; i < *want && i < n; i++) {
        unsigned char b = (unsigned char)s[i];
        if (b < lo || b > hi) break;
        lo = 0x80;
        hi = 0xBF;
    }
    return i;
}

size_t sheaf__utf8_next(const char *s, size_t len, uint32_t *cp) {
    static const unsigned char mask[5] = {0, 0x7F, 0x1F, 0x0F, 0x07};
    size_t want;
    size_t have = fitting(s, len, &want);
    if (want == 0 || have < want) {
        *cp = SHEAF__CP_INVALID;
        return 1;
    }
    uint32_t c = (unsigned char)s[0] & mask[want];
    for (size_t i = 1; i < want; i++) c = c << 6 | ((unsigned char)s[i] & 0x3F);
    *cp = c;
    return want;
}

size_t sheaf__utf8_put(uint32_t cp, char out[4]) {
    static const unsigned char mark[5] = {0, 0x00, 0xC0, 0xE0, 0xF0};
    size_t n = cp < 0x80 ? 1 : cp < 0x800 ? 2 : cp < 0x10000 ? 3 : 4;
    for (size_t i = n; i-- > 1; cp >>= 6) out[i] = (char)(0x80 | (cp & 0x3F));
    out[0] = (char)(mark[n] | cp);
    return n;
}

size_t sheaf__utf8_unfinished(const char *s, size_t len) {
    for (size_t back = 1; back <= 3 && back <= len; back++) {
        const char *p = s + len - back;
        if (((unsigned char)*p & 0xC0) == 0x80) continue;
        size_t want;
        size_t have = fitting(p, back, &want);
        return want > back && have == back ? back : 0;
    }
    return 0;
}

enum sheaf__char_kind sheaf__char_kind(uint32_t cp) {
    if (cp > 0x10FFFF) return SHEAF__KIND_OTHER;
    size_t lo = 0, hi = sheaf__unicode_n_ranges; /* ranges[lo] <= cp < ranges[hi] */
    while (hi - lo > 1) {
        size_t mid = lo + (hi - lo) / 2;
        if (sheaf__unicode_ranges[mid] >> 4 <= cp)
            lo = mid;
        else
            hi = mid;
    }
    return (enum sheaf__char_kind)(sheaf__unicode_ranges[lo] & 15);
}

enum sheaf__char_class sheaf__char_class(uint32_t cp) {
    static const enum sheaf__char_class classes[SHEAF__KIND_COUNT] = {
        [SHEAF__KIND_UPPER] = SHEAF__CHAR_LETTER,  [SHEAF__KIND_LOWER] = SHEAF__CHAR_LETTER,
        [SHEAF__KIND_LETTER] = SHEAF__CHAR_LETTER, [SHEAF__KIND_NUMBER] = SHEAF__CHAR_NUMBER,
        [SHEAF__KIND_SPACE] = SHEAF__CHAR_SPACE,
    };
    return classes[sheaf__char_kind(cp)];
}

/* ---- lower case without accents ---- */

/* The row of table [n][4] with the greatest row[0] <= cp; NULL: none. */
static const int32_t *find_row(const int32_t (*table)[4], size_t n, uint32_t cp) {
    size_t lo = 0, hi = n; /* table[lo - 1] <= cp < table[hi] */
    while (lo < hi) {
        const size_t mid = lo + (hi - lo) / 2;
        if (table[mid][0] <= (int32_t)cp)
            lo = mid + 1;
        else
            hi = mid;
    }
    return lo ? table[lo - 1] : NULL;
}

/* A Hangul syllable is a leading consonant, a vowel, and maybe a trailing consonant: the Unicode
 * standard, section 3.12. */
static size_t split_hangul(uint32_t cp, uint32_t out[3]) {
    const uint32_t s = cp - 0xAC00;
    out[0] = 0x1100 + s / (21 * 28);
    out[1] = 0x1161 + s / 28 % 21;
    out[2] = 0x11A7 + s % 28;
    return s % 28 ? 3 : 2;
}

size_t sheaf__char_fold(uint32_t cp, uint32_t out[3]) {
    out[0] = cp;
    if (cp >= 0xAC00 && cp <= 0xD7A3) return split_hangul(cp, out);
    const int32_t *row = find_row(sheaf__fold_several, sheaf__fold_n_several, cp);
    if (row && row[0] == (int32_t)cp) {
        for (int i = 0; i < 3; i++) out[i] = (uint32_t)row[i + 1];
        return row[3] ? 3 : 2;
    }
    row = find_row(sheaf__fold_runs, sheaf__fold_n_runs, cp);
    if (!row || (int32_t)cp > row[1] || ((int32_t)cp - row[0]) % row[2]) return 1;
    if (row[3] == -row[0]) return 0;
    out[0] = (uint32_t)((int32_t)cp + row[3]);
    return 1;
}
