/* The units of panels: what a table packs and unpacks, and what tiles multiply, those of a table that
 * extends it (amx.c) too. */
#include <assert.h>
#include <stdint.h>

/* 32 weights, a line of the cache. With one scale for all, d[1] and m[1] are those of the first. */
struct panel_block {
#if defined(KERNELS_VNNI_512)
    int8_t q[32];
#else
    int8_t q[32], high[32]; /* of 8 bits: the low nibbles, and the high ones */
#endif
    float d[2], m[2]; /* of 16 each */
    int32_t start[2]; /* with VNNI: -128 * sum of q, of 16 each or, with one scale, of all in [0] */
    /* the same for all blocks of a type */
    uint8_t by_16;   /* two scales */
    uint8_t has_min; /* m is 0 without */
    uint8_t bits;    /* without VNNI: 4, 5, 6 or 8 */
    uint8_t unused[5];
};
static_assert(sizeof(struct panel_block) % 32 == 0, "no padding");

#if defined(KERNELS_VNNI_512)
enum { PANEL16_ROWS = 6, PANEL16_COLS = 32, PANEL16_UNIT = 32 };

/* 32 elements of 32 columns */
struct panel16 {
    uint8_t x[2][8][PANEL16_COLS][4]; /* h, l */
    float d[PANEL16_COLS];
    float sums[PANEL16_COLS];
};
static_assert(sizeof(struct panel16) % 64 == 0, "no padding");

/* The same of the first 16, if no others are used: every second line of the cache would lie in half of
 * its sets. */
enum { PANEL16_HALF = PANEL16_COLS / 2 };
struct panel16_half {
    uint8_t x[2][8][PANEL16_HALF][4];
    float d[PANEL16_HALF];
    float sums[PANEL16_HALF];
};
static_assert(2 * sizeof(struct panel16_half) == sizeof(struct panel16), "no padding");
#endif
