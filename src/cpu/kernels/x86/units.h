/* The units of panels of integers: what a table packs and unpacks, and what its tiles multiply. */
#ifndef SHEAF_CPU_KERNELS_X86_UNITS_H
#define SHEAF_CPU_KERNELS_X86_UNITS_H

#include <assert.h>
#include <stdint.h>

#include "sheaf/type.h"

/* A block has two parts if its type has a scale for 16 weights. */
#define BLOCK_PARTS(BY_16) ((BY_16) ? 2 : 1)

/* CALL with the flags of rows like LIKE as the constants by_16 and mins: what it calls is inlined, and
 * so compiled for each of the four kinds of rows. */
#define BY_KIND(LIKE, CALL)                                                                        \
    do {                                                                                           \
        if ((LIKE)->by_16 && (LIKE)->has_min) {                                                    \
            const bool by_16 = true, mins = true;                                                  \
            CALL;                                                                                  \
        } else if ((LIKE)->by_16) {                                                                \
            const bool by_16 = true, mins = false;                                                 \
            CALL;                                                                                  \
        } else if ((LIKE)->has_min) {                                                              \
            const bool by_16 = false, mins = true;                                                 \
            CALL;                                                                                  \
        } else {                                                                                   \
            const bool by_16 = false, mins = false;                                                \
            CALL;                                                                                  \
        }                                                                                          \
    } while (0)

/* Has the type a scale for 16 weights? The others have one for 32. */
static inline bool panel_by_16(enum sheaf_type type) {
    return type == SHEAF_TYPE_Q6_K || type == SHEAF_TYPE_Q2_K || type == SHEAF_TYPE_Q3_K ||
           type == SHEAF_TYPE_NVFP4 || type == SHEAF_TYPE_IQ2_XS || type == SHEAF_TYPE_IQ2_S ||
           type == SHEAF_TYPE_IQ1_M;
}

#if defined(KERNELS_VNNI_512)
/* 128 weights as unsigned bytes, in four blocks of 32, and the scales and mins of 16 each. With one scale
 * for 32, d[1] and m[1] are those of the first. `offset` is to be taken off the bytes. */
struct panel_row {
    uint8_t q[4][32];
    struct panel_scales {
        float d[2], unused;
        /* the same for all blocks of a type; bytes have no offset if there are mins */
        uint8_t by_16, has_min, offset, unused_too;
        float m[4]; /* the last two are not used, nor is any without has_min */
    } of[4];
};
static_assert(sizeof(struct panel_row) == 256 && sizeof(struct panel_scales) == 32,
              "block b is 32 b bytes from the first, and so are its scales");
enum { PANEL_ROW_UNIT = 128, PANEL_ROW_BLOCKS = PANEL_ROW_UNIT / 32 };
#else
/* 32 weights, a line and a half of the cache, as bytes or as words. With one scale for all, d[1] and m[1]
 * are those of the first. */
struct panel_row {
    union {
        uint8_t q[32]; /* unsigned */
        int16_t words[32];
    };
    float d[2], m[2]; /* of 16 each */
    /* the same for all blocks of a type */
    uint8_t by_16;   /* two scales */
    uint8_t has_min; /* m is 0 without */
    uint8_t bits;    /* 4, 5, 6 or 8 */
    uint8_t offset;  /* to be taken off the bytes, with VNNI; without, it is a part of m */
    uint8_t unused[12];
};
static_assert(sizeof(struct panel_row) % 32 == 0, "no padding");
enum { PANEL_ROW_UNIT = 32, PANEL_ROW_BLOCKS = 1 };
#endif

#if defined(KERNELS_VNNI_512)
/* Block b of an unpacked row, and its scales. */
static inline const char *block_at(const char *row, int64_t b) {
    return row + b / PANEL_ROW_BLOCKS * (int64_t)sizeof(struct panel_row) +
           b % PANEL_ROW_BLOCKS * 32;
}
static inline const struct panel_scales *scales_at(const char *block) {
    return (const void *)(block + offsetof(struct panel_row, of));
}

/* 256 weights as integers that are BF16, in blocks of 32, and their scales: of 16 each by number 2 b + h, else of
 * block b. Weights have no offset, mins are added. An odd number of lines. */
struct scaled_row {
    uint16_t q[8][32];
    float d[16], m[16];
    uint8_t by_16, has_min, unused[62];
};
static_assert(sizeof(struct scaled_row) == 704, "no padding");
enum { SCALED_MINS = 16 }; /* m[i] is d[i + 16] */

enum { PANEL16_ROWS = 6, PANEL16_COLS = 32 };

/* 32 elements of 32 columns: integers h * 256 + l, times 2^(unit - less) */
struct panel16 {
    int8_t x[2][8][PANEL16_COLS][4]; /* h, l */
    int32_t sums[2][PANEL16_COLS];   /* of 16 each */
    int32_t less[PANEL16_COLS];      /* as bits of the exponent of a float */
    float unit[PANEL16_COLS]; /* the same of all blocks of a pass; NaN if something is not finite */
};
static_assert(sizeof(struct panel16) % 64 == 0, "no padding");

/* The same of the first 16, if no others are used: every second line of the cache would lie in half of
 * its sets. */
enum { PANEL16_HALF = PANEL16_COLS / 2 };
struct panel16_half {
    int8_t x[2][8][PANEL16_HALF][4];
    int32_t sums[2][PANEL16_HALF];
    int32_t less[PANEL16_HALF];
    float unit[PANEL16_HALF];
};
static_assert(2 * sizeof(struct panel16_half) == sizeof(struct panel16), "no padding");
#endif

enum { PANEL8_COLS = 2 * VW };
/* 32 elements of all columns in bytes */
struct panel8 {
    int8_t x[8][PANEL8_COLS][4];
    float d[PANEL8_COLS];
#if defined(KERNELS_VNNI_512)
    int32_t sums[2][PANEL8_COLS]; /* of 16 each */
#else
    float sums[2][PANEL8_COLS]; /* the same times d */
#endif
#if defined(KERNELS_VNNI_256)
    int32_t integers[2][PANEL8_COLS]; /* what was multiplied by d */
#endif
};
static_assert(sizeof(struct panel8) % 64 == 0, "no padding");

#endif
