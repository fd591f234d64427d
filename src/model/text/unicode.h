/* UTF-8 and the classes and kinds of characters that pre-tokenizers ask for. Pure functions.
 *
 * Text may hold anything: a byte that is not part of well-formed UTF-8 (overlong forms and
 * surrogates included) reads as a character of its own, SHEAF__CP_INVALID, of class OTHER. */
#ifndef SHEAF_MODEL_UNICODE_H
#define SHEAF_MODEL_UNICODE_H

#include <stddef.h>
#include <stdint.h>

#define SHEAF__CP_INVALID UINT32_MAX

enum sheaf__char_class {
    SHEAF__CHAR_OTHER = 0,
    SHEAF__CHAR_LETTER = 1, /* \p{L} */
    SHEAF__CHAR_NUMBER = 2, /* \p{N} */
    SHEAF__CHAR_SPACE = 3,  /* White_Space */
};

/* A finer division: every kind belongs to one class. */
enum sheaf__char_kind {
    SHEAF__KIND_OTHER = 0,
    SHEAF__KIND_UPPER = 1,  /* \p{Lu} \p{Lt} */
    SHEAF__KIND_LOWER = 2,  /* \p{Ll} */
    SHEAF__KIND_LETTER = 3, /* \p{Lm} \p{Lo} */
    SHEAF__KIND_NUMBER = 4,
    SHEAF__KIND_SPACE = 5,
    SHEAF__KIND_MARK = 6,        /* \p{M} */
    SHEAF__KIND_PUNCTUATION = 7, /* \p{P} */
    SHEAF__KIND_SYMBOL = 8,      /* \p{S} */
    SHEAF__KIND_COUNT,
};

/* unicode_table.c, generated */
extern const size_t sheaf__unicode_n_ranges;
extern const uint32_t sheaf__unicode_ranges[];

/* Reads the character at s[0..len), len > 0; returns the bytes that it takes, 1..4. */
size_t sheaf__utf8_next(const char *s, size_t len, uint32_t *cp);
/* Writes cp (at most 0x10FFFF); returns the bytes written, 1..4. */
size_t sheaf__utf8_put(uint32_t cp, char out[4]);
/* Bytes at the end of s that begin a well-formed character but do not finish it: 0..3. */
size_t sheaf__utf8_unfinished(const char *s, size_t len);

/* fold_table.c, generated */
extern const size_t sheaf__fold_n_runs, sheaf__fold_n_several;
extern const int32_t sheaf__fold_runs[][4], sheaf__fold_several[][4];

/* The character in lower case, canonically decomposed, without its accents: 0 to 3 characters. */
size_t sheaf__char_fold(uint32_t cp, uint32_t out[3]);
enum sheaf__char_kind sheaf__char_kind(uint32_t cp);
enum sheaf__char_class sheaf__char_class(uint32_t cp);

#endif
