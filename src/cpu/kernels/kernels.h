/* Kernel tables: one for each instruction set, loaded from a module and chosen once at run time.
 *
 * A table is complete: every entry is set, for the types listed at each. All tables give the same
 * results to rounding; within a table each result has one order of accumulation, whatever the tile
 * that computes it. Kernels touch only the memory they are given, need no alignment beyond the
 * element's, accept n = 0, and have no state. */
#ifndef SHEAF_CPU_KERNELS_KERNELS_H
#define SHEAF_CPU_KERNELS_KERNELS_H

#include <assert.h>
#include <stdalign.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "sheaf/ops.h"
#include "sheaf/type.h"

enum {
    SHEAF__TILE_COLS = 8,      /* most activation columns in one call of rows_dot of any table */
    SHEAF__BF16_COLS = 16,     /* the same by columns of BF16 */
    SHEAF__DIRECT_WIDTH = 256, /* widest head of dots_of and mix_of */
    SHEAF__VALUES_TOGETHER = 64,
};

/* 32 elements of a query in two digits: x = d * (high * 256 + low), where d is the largest magnitude
 * over 127 * 256; not finite if an element is not. */
struct sheaf__query_digits {
    int8_t high[32], low[32];
    float d;
    int32_t offset; /* -128 times the sum of the integers: for keys that are bytes plus 128 */
};

/* What the activations of a product with few columns are turned into. */
enum sheaf__act {
    SHEAF__ACT_F32,    /* plain floats */
    SHEAF__ACT_DIGITS, /* integers of 24 or 16 bits; in place of floats where a table has them */
    SHEAF__ACT_WORDS,  /* integers of 16 bits, for several columns */
    /* Only where activations are to be rounded: integers of 8 bits, for quantized weights; BF16, for plain
     * ones, by several columns */
    SHEAF__ACT_BYTES,
    SHEAF__ACT_BF16,
};

/* 256 activations in digits: x = d * ((h * 256 + m) * 256 + l), where d is the largest magnitude of
 * a block of 32 over 127 * 2^16, which rounds as floats do; or, for weights of few bits, x =
 * d * (h * 256 + m), and d that magnitude over 127 * 2^8. Products of digits are exact integers. A
 * column of k is as many of these as it takes, 64-byte aligned, zeros beyond k where kernels read them. */
struct sheaf__act_digits {
    union {
        struct {
            int8_t digit[4][3][64]; /* h, m, l of 64 elements each, see sheaf__digits_place */
            /* SHEAF__DIGITS_EIGHTS, _24, _K: for each 4 bytes of 64, d of their block, and the sum of their
             * elements in all vectors (sheaf__digits_block_lane); SHEAF__DIGITS_HALVES: d of each 16;
             * _PIECES: the same in the order of sheaf__digits_piece_lane, _6K: of sheaf__digits_6k_lane */
            float lane_d[16], lane_sums[16];
            /* SHEAF__DIGITS_EIGHTS, _24, _K: of the same, minus the sums of the integers h * 256 + m, and
             * of l */
            int32_t minus_sums[2][16];
        };
        /* SHEAF__DIGITS_WORDS: h, and m and l as one number; _SHORTS, _OCT_SHORTS: h and m as one */
        int16_t word[2][256];
    };
    float d[8], sums32[8]; /* of 32 elements each; sums only with vectors of 32 bytes */
    /* SHEAF__DIGITS_PLAIN, _HALVES: of 16; _PIECES, _6K: the same, as lane_d */
    float sums16[16];
};
static_assert(sizeof(struct sheaf__act_digits) % 64 == 0, "no padding");

/* The same 256 activations as integers h * 256 + m, and what else several columns need. */
struct sheaf__act_words {
    int16_t x[256];
    float d[8], unused[8]; /* d of 32 elements each */
    float lane_sums[16];   /* as those of digits */
};
static_assert(sizeof(struct sheaf__act_words) % 64 == 0, "no padding");

/* The same as integers of 8 bits, of magnitudes up to 127, in the places of digits. */
struct sheaf__act_bytes {
    int8_t x[256];
    float d[8], sums32[8]; /* of 32 elements each; sums only with vectors of 32 bytes */
    /* With vectors of 64 bytes, for each lane of 4 d, the sum of the elements that it has in all vectors,
     * and minus the sum of these as integers. With vectors of 32, _6K and _HALVES: d and sums of 16 */
    float lane_d[16], lane_sums[16];
    int32_t minus_sums[16];
};
static_assert(sizeof(struct sheaf__act_bytes) % 64 == 0, "no padding");

/* Where elements lie, so that they meet the weights as these are read: 4 of them together at least, words in
 * pairs. */
enum sheaf__digits_order {
    SHEAF__DIGITS_PLAIN, /* three digits */
    /* Vector v has 8 elements of each of 8 blocks of 32, of blocks i and i + 4 in a row: from element
     * 0, 16, 8, 24 on, as low nibbles are the first halves of blocks. Q4_0, Q4_1, Q5_0, Q5_1, IQ4_NL,
     * IQ4_XS, MXFP4, IQ3_XXS, IQ3_S */
    SHEAF__DIGITS_EIGHTS,
    SHEAF__DIGITS_EIGHTS_24, /* the same in three digits: Q8_0 */
    /* Vector v has elements 8 v .. 8 v + 7 of each of 8 blocks of 32: Q4_K, Q5_K */
    SHEAF__DIGITS_K,
    /* Vector v has elements 4 v .. 4 v + 3 of the 16 pieces of 16, a piece a lane of 4 bytes
     * (sheaf__digits_piece_lane): Q2_K, Q3_K, Q6_K, TQ1_0, TQ2_0 */
    SHEAF__DIGITS_PIECES,
    /* Orders for vectors of 32. Each lane of 4 bytes has a block of 32 of its own: Q4_0, Q4_1, Q5_0,
     * Q5_1, MXFP4 */
    SHEAF__DIGITS_OCTS,
    /* Each 8 bytes are of one even (odd) block of 256: Q4_K, Q5_K */
    SHEAF__DIGITS_PAIRS,
    /* Each 8 bytes are of 16 elements, those that come out of the low (the high) nibbles: Q6_K */
    SHEAF__DIGITS_6K,
    /* Vectors 4 h + v have elements 4 v .. 4 v + 3 of the 8 pieces of 16 in half h, a piece a lane:
     * Q2_K, Q3_K, TQ1_0, TQ2_0 */
    SHEAF__DIGITS_HALVES,
    SHEAF__DIGITS_WORDS,  /* two integers of 16 bits: Q8_0 */
    SHEAF__DIGITS_SHORTS, /* one: other types that become bytes */
    /* The same where each lane of two has a block of 32 of its own, as OCTS: elements 4 v and 4 v + 2 in vector
     * 2 v of 16, the two others in the next: IQ4_NL, IQ4_XS */
    SHEAF__DIGITS_OCT_SHORTS,
    /* Orders of sheaf__act_words: as EIGHTS and as K, whose types they serve, but the even elements of what
     * is a vector there, then the odd ones. */
    SHEAF__DIGITS_EIGHT_WORDS,
    SHEAF__DIGITS_K_WORDS,
    SHEAF__DIGITS_IN_PLACE, /* two digits, not moved: for vectors of 16 bytes */
};
/* Digits of an element: h and m, or all. */
static inline int sheaf__digits_used(enum sheaf__digits_order order) {
    return order == SHEAF__DIGITS_PLAIN || order == SHEAF__DIGITS_EIGHTS_24 ||
                   order == SHEAF__DIGITS_WORDS
               ? 3
               : 2;
}
static inline float sheaf__digits_top(enum sheaf__digits_order order) {
    return sheaf__digits_used(order) == 3 ? 127.0f * 256.0f * 256.0f : 127.0f * 256.0f;
}
/* SHEAF__DIGITS_PIECES: the lane of a piece of 16, as transposing 4 x 4 dwords leaves it. */
static inline int sheaf__digits_piece_lane(int piece) { return piece % 4 * 4 + piece / 4; }
/* Orders of 8 elements of each of 8 blocks: the first of the two lanes of block b. */
static inline int sheaf__digits_block_lane(enum sheaf__digits_order order, int b) {
    return order == SHEAF__DIGITS_K || order == SHEAF__DIGITS_K_WORDS ? 2 * b
                                                                      : b % 4 * 4 + b / 4 * 2;
}
/* The place among 8 of block i of 32, of n elements of a column. The blocks after the last whole 256 lie at the end
 * of theirs, behind zeros, if the column is of 256 elements and more (at_end): kernels then read the last 256
 * weights of a row as they lie, of which the first have met their activations before. */
static inline int sheaf__digits_block(int64_t i, int64_t n, bool at_end) {
    const int64_t blocks = n / 32;
    return (int)(i % 8) + (at_end && i / 8 == blocks / 8 ? 8 - (int)(blocks % 8) : 0);
}
/* Do the last blocks of a column of k elements lie so? */
static inline bool sheaf__digits_at_end(int64_t k) { return k >= 256; }
/* The place of element i of 256; PLAIN, WORDS, SHORTS and IN_PLACE are not moved. */
static inline int sheaf__digits_place(enum sheaf__digits_order order, int i) {
    const int b = i / 32, e = i % 32, lane = sheaf__digits_block_lane(order, b);
    switch (order) {
    case SHEAF__DIGITS_EIGHTS:
    case SHEAF__DIGITS_EIGHTS_24:
        return (e / 8 % 2 * 2 + e / 16) * 64 + lane * 4 + e % 8;
    case SHEAF__DIGITS_K:
        return e / 8 * 64 + lane * 4 + e % 8;
    case SHEAF__DIGITS_PIECES:
        return e % 16 / 4 * 64 + sheaf__digits_piece_lane(i / 16) * 4 + e % 4;
    case SHEAF__DIGITS_HALVES:
        return i / 128 * 128 + e % 16 / 4 * 32 + i / 16 % 8 * 4 + e % 4;
    case SHEAF__DIGITS_OCTS:
        return e / 4 * 32 + b * 4 + e % 4;
    case SHEAF__DIGITS_OCT_SHORTS:
        return (e / 4 * 2 + e % 2) * 16 + b * 2 + e % 4 / 2;
    case SHEAF__DIGITS_PAIRS:
        return (b % 2 * 4 + e / 8) * 32 + b / 2 * 8 + e % 8;
    case SHEAF__DIGITS_EIGHT_WORDS:
        return ((e / 8 % 2 * 2 + e / 16) * 2 + e % 2) * 32 + lane * 2 + e % 8 / 2;
    case SHEAF__DIGITS_K_WORDS:
        return (e / 8 * 2 + e % 2) * 32 + lane * 2 + e % 8 / 2;
    case SHEAF__DIGITS_6K: /* quarter b % 4 of a half */
        return (b / 2 * 2 + e / 8 % 2) * 32 + (e / 16 * 2 + b % 2) * 8 + e % 8;
    default:
        return i;
    }
}
/* The order of rounded columns, which meet bytes where others meet words. */
static inline enum sheaf__digits_order sheaf__bytes_order(enum sheaf__digits_order order) {
    return order == SHEAF__DIGITS_OCT_SHORTS ? SHEAF__DIGITS_OCTS : order;
}
/* SHEAF__DIGITS_6K: where in lane_d and sums16 piece `half` of block b has its floats. */
static inline int sheaf__digits_6k_lane(int b, int half) {
    return b / 4 * 8 + half * 4 + b % 2 * 2 + b % 4 / 2;
}

/* out[c][r] = row r of w . column c, for nr rows, w_stride bytes apart, and nc (1..tile_cols of the
 * table) columns of k elements in the activation format of the function. */
typedef void (*sheaf__rows_dot_fn)(int64_t k, const void *w, size_t w_stride, int64_t nr,
                                   const void *const *act, int nc, float *const *out);

/* A state of the thread that kernels change and give back: the shapes of AMX tiles. */
struct sheaf__cpu_kept {
    alignas(64) uint8_t bytes[64];
};

/* A tile of struct sheaf__cpu_panels. */
typedef void (*sheaf__tile_fn)(int64_t k, const void *row, size_t stride, const void *panel,
                               int used, float *c, bool add);

/* Products with many columns. Columns are packed in panels of `cols`, an element of all of them
 * together, and rows of weights are unpacked to what the tiles multiply. Both lie in units of so
 * many elements, the last one filled up with zeros. */
struct sheaf__cpu_panels {
    int rows, cols; /* of a tile; 0: the table has no panels of this kind */
    int unit;       /* a divisor of 256 */
    /* Columns of quantized types: so many and fewer, or more than these if not 0, are for the kinds before this one */
    int above, most;
    /* Of a quantized type so many columns and more are faster by panels than by rows; 0: as of all kinds (fewest in
     * matmul/panels.c) */
    uint8_t from[SHEAF_TYPE_COUNT];
    int chunk; /* rows at most that are unpacked together, whole tiles; 0: for a second cache of 512 KiB */
    bool whole_rows;               /* unpack and tile take all of k in one call */
    int rows_in_place;             /* of tile_in_place; whole tiles */
    size_t panel_bytes, row_bytes; /* of a unit of a panel, and of a row */
    /* Element i of column c is x[c][i], i < n. The first `used` columns are packed at least; a kind may
     * leave out the upper half if they are of the lower one, and use the first half of the bytes. */
    void (*pack)(const float *const *x, int64_t n, int used, void *panel);
    /* n weights, whole blocks, at most 256 unless whole_rows. NULL for types that go by another kind; floats have all
     * types that rows_dot has */
    void (*unpack[SHEAF_TYPE_COUNT])(const void *w, void *row, int64_t n);
    /* The same of n weights as floats, for all types that unpack lacks, but F32; or NULL */
    void (*from_floats)(const float *w, void *row, int64_t n);
    /* c [rows][cols] = rows of k elements, `stride` bytes apart, . the first `used` columns at
     * least, or added to what c holds. The panel was packed with this `used`, in one call that began
     * with its first element; with whole_rows in several, 256 elements each. */
    sheaf__tile_fn tile;
    /* The same bits from rows_in_place rows of weights as they lie in memory, all of k in one call, not added to c.
     * NULL for types that are always unpacked */
    sheaf__tile_fn tile_in_place[SHEAF_TYPE_COUNT];
    /* A thread calls them before its first tile and after its last; NULL if there is nothing to do.
     * No other kind's tiles and nothing of the user's come between. The thread may be the program's, which has a
     * state of its own: end restores what begin has kept. */
    void (*begin)(struct sheaf__cpu_kept *kept), (*end)(const struct sheaf__cpu_kept *kept);
};
enum sheaf__panels_kind {
    SHEAF__PANELS_FLOATS,
    /* Quantized weights, activations of 16 bits with a scale for each 32, with AVX-512 a power of two, in integers */
    SHEAF__PANELS_16,
    /* The same for many columns, where words are multiplied in less time than two digits: the same bits */
    SHEAF__PANELS_16_WORDS,
    /* Quantized weights as integers that are BF16, with their scales apart, activations as sums of two BF16: 16 bits */
    SHEAF__PANELS_BF16_SCALED,
    /* Weights and activations as sums of two BF16: 16 bits */
    SHEAF__PANELS_BF16_BOTH,
    /* BF16 weights, activations as sums of two BF16 */
    SHEAF__PANELS_BF16_TWICE,
    /* Weights of 8 bits as they lie in memory, activations of 24 bits with a scale for each 32, in integers: for few
     * columns */
    SHEAF__PANELS_24_IN_PLACE,
    /* As PANELS_BF16_SCALED, activations as one BF16. Only with SHEAF__ROUND_BF16 and SHEAF__ROUND_Q8 */
    SHEAF__PANELS_BF16_SCALED_ONCE,
    /* Weights (BF16 and F16, with AMX all but F32) and activations as one BF16: 8 bits. Only with
     * SHEAF__ROUND_BF16 and SHEAF__ROUND_Q8 */
    SHEAF__PANELS_BF16,
    /* Quantized weights, activations of 8 bits with a scale for each 32. Only with SHEAF__ROUND_Q8 */
    SHEAF__PANELS_8,
    SHEAF__PANELS_KINDS,
};

/* Quantized weights that only products read may lie in another order ("repacked"): as vectors take them, so that no
 * instruction moves them. 256 weights of a row are in as many bytes as before, in the same place. */
struct sheaf__cpu_repacked {
    /* n weights, a multiple of 256, at w to the order and back; to may be w. NULL: the type is not repacked */
    void (*repack)(const void *w, void *to, int64_t n);
    void (*restore)(const void *w, void *to, int64_t n);
    /* The bits of the functions of the same names, for rows of a multiple of 256; rows_dot_few is NULL where that is */
    sheaf__rows_dot_fn rows_dot_digits, rows_dot_few, rows_dot_rounded;
    /* Of panels of a kind that has the type, from this order; NULL: they unpack what is restored */
    void (*unpack[SHEAF__PANELS_KINDS])(const void *w, void *row, int64_t n);
};

/* Attention of many queries, a lane each: in memory [..][lanes]. Functions that take a number of
 * lanes in use may compute those beyond it too. The four that are to be multiplied, queries, keys, weights
 * and values, lie as the tiles of a kind take them, in no more space than floats. */
enum { SHEAF__ATTN_BLOCK = 64 }; /* keys that meet the queries at a time */

struct sheaf__cpu_attention {
    int lanes, rows; /* of a tile; 0: the table has none of this kind */
    int unit;        /* a divisor of the size of a head; 1 for floats */
    /* panel [n][lanes], panel[i][c] = x[c][i]; `lanes` pointers */
    void (*pack)(const float *const *x, int64_t n, float *panel);
    /* y[c][i] = panel[i][c] * by[c] for cols lanes */
    void (*unpack)(const float *panel, int64_t n, const float *by, int cols, float *const *y);
    /* Queries of k elements, `lanes` pointers */
    void (*pack_queries)(const float *const *x, int64_t k, float *y);
    /* Whole tiles of rows [rows][k] of keys, and a block [SHEAF__ATTN_BLOCK][wide] of values; NULL: they
     * stay as they are */
    void (*pack_keys)(int64_t k, int64_t rows, const float *x, float *y);
    void (*pack_values)(int64_t wide, const float *x, float *y);
    /* In place of both, of a cache of this type (else SHEAF_TYPE_F32 and NULL): n rows as they lie, `stride`
     * bytes apart. Values that are not finite are taken as zeros; true if there are none. */
    enum sheaf_type of;
    void (*take_keys)(int64_t k, int64_t n, const void *x, size_t stride, float *y);
    bool (*take_values)(int64_t wide, int64_t n, const void *x, size_t stride, float *y);
    /* c [rows][lanes] = keys . queries */
    void (*scores)(int64_t k, const float *keys, int64_t rows, const float *queries, int lanes,
                   float *c);
    /* A block of n keys joins a softmax. x = scale * score + slope[lane] * mask (-inf where the
     * mask is, whatever the score; no mask: NULL); max becomes the largest so far; weights become
     * exp(x - max), and may be the scores if values are floats; shrink is exp(old max - max), what was summed
     * before is to be multiplied by it; sum is carried on. */
    void (*soften)(int64_t n, int lanes, float scale, const float *mask, const float *slope,
                   float *scores, float *weights, float *max, float *sum, float *shrink);
    /* c [wide][lanes] += values of n keys . weights; whole tiles of rows */
    void (*values)(int64_t n, const float *values, int64_t wide, const float *weights, int lanes,
                   float *c);
    void (*scale)(int64_t n, int lanes, const float *by, float *c); /* c[r] *= by, n rows */
    /* As those of struct sheaf__cpu_panels */
    void (*begin)(struct sheaf__cpu_kept *kept), (*end)(const struct sheaf__cpu_kept *kept);
};
enum sheaf__attention_kind {
    SHEAF__ATTENTION_FLOATS,
    SHEAF__ATTENTION_Q8,        /* a cache of Q8_0 as it is, queries and weights of 16 bits */
    SHEAF__ATTENTION_BF16_BOTH, /* sums of two BF16: 16 bits */
    SHEAF__ATTENTION_BF16,      /* rounded to BF16: 8 bits. Not with SHEAF__ROUND_NONE */
    SHEAF__ATTENTION_KINDS,
};

/* y[r] += sum of w[r][j] * row j of x: n_y rows of n floats y_stride apart, from `rows` rows `stride`
 * bytes apart; weights w_stride apart */
typedef void (*sheaf__mix_rows_fn)(int64_t rows, const void *x, size_t stride, int64_t n,
                                   const float *w, int64_t w_stride, int64_t n_y, float *y,
                                   int64_t y_stride);

/* Attention of few queries over rows of Q8_0 as they lie in a cache, `stride` bytes apart, in integers;
 * k and n as for dots_of. */
struct sheaf__cpu_attention_q8 {
    void (*query)(int64_t k, const float *x,
                  struct sheaf__query_digits *y); /* NULL: none of this */
    /* out[c][j] = row j of x . q[c] */
    void (*dots)(int64_t k, const void *x, size_t stride, int64_t rows,
                 const struct sheaf__query_digits *const *q, int n_q, float *out,
                 int64_t out_stride);
    /* Weights of 16 bits for each SHEAF__VALUES_TOGETHER rows from the first. What row r does not read,
     * with a weight of 0, may be anything; it is not finite if something that it reads is not. */
    sheaf__mix_rows_fn mix;
};

/* A step of a state whose rows each meet one value: to[r] = from[r] * w[r] + v[r] * k
 * + (from[r] . a) * b, y[r] = to[r] . q, element by element; no a: without the last addend. */
struct sheaf__state_rows {
    const float *w; /* rows w_stride apart; 0: one for all */
    int64_t w_stride;
    const float *a, *b; /* [n] or both NULL */
    const float *k, *q; /* [n] */
    const float *v;     /* [rows] */
    const float *from;  /* [rows][n] */
    float *to;          /* as from; may be from */
    float *y;           /* [rows] */
};
/* A step of a state whose columns each meet one value: to[r][j] = from[r][j] * w[r] + v[j] * k[r],
 * y[j] = c * v[j] + sum over r of from[r][j] * u[r]. */
struct sheaf__state_cols {
    const float *w, *k, *u; /* [rows] */
    const float *v;         /* [n] */
    float c;
    const float *from; /* rows `stride` floats apart */
    float *to;         /* as from; may be from */
    int64_t stride;
    float *y; /* [n] */
};

/* Rows of elements; y may be an operand; p: parameters, two floats at least. */
typedef void (*sheaf__cpu_unary_fn)(int64_t n, const float *x, float *y);
typedef void (*sheaf__cpu_map_fn)(int64_t n, const float *x, const float *p, float *y);
typedef void (*sheaf__cpu_pair_fn)(int64_t n, const float *a, const float *b, float *y);
typedef void (*sheaf__cpu_gate_fn)(int64_t n, const float *a, const float *b, const float *p,
                                   float *y);

/* The same bits from every table (kernels/elements.h). */
struct sheaf__cpu_elements {
    sheaf__cpu_pair_fn add, sub, mul, div;
    sheaf__cpu_unary_fn unary[SHEAF_UNARY_OP_COUNT]; /* NULL: those that need the C library */
    sheaf__cpu_unary_fn sqr, sqrt;
    sheaf__cpu_map_fn scale, clamp, leaky_relu; /* p: factor, addend; least, most; slope */
    sheaf__cpu_gate_fn swiglu_oai, swiglu_clamp;
    /* below[i] = how many of n keys are below key i */
    void (*below)(int64_t n, const int32_t *keys, int32_t *below);
};

struct sheaf__cpu_kernels {
    const char *name;
    struct sheaf__cpu_panels panels[SHEAF__PANELS_KINDS];

    /* By plain floats: F32 F16 BF16. The portable table has all types, and stands in where another has neither
     * this nor rows_dot_digits. */
    sheaf__rows_dot_fn rows_dot[SHEAF_TYPE_COUNT];
    int tile_cols; /* most columns in one call of rows_dot and the like; at most SHEAF__TILE_COLS */
    /* By columns in digits, in the order of the type. A table has all of these for quantized types or none. Types
     * that have rows_dot_few take one column after the other here. */
    sheaf__rows_dot_fn rows_dot_digits[SHEAF_TYPE_COUNT];
    enum sheaf__digits_order digits_order[SHEAF_TYPE_COUNT];
    /* The same bits for any number of columns in words; NULL where rows_dot_digits serves for all. */
    sheaf__rows_dot_fn rows_dot_few[SHEAF_TYPE_COUNT];
    enum sheaf__digits_order few_order[SHEAF_TYPE_COUNT];
    /* By rounded columns, of quantized types in bytes, of F16 and BF16, from 4 columns on, in BF16; NULL for
     * types whose few columns are not rounded. */
    sheaf__rows_dot_fn rows_dot_rounded[SHEAF_TYPE_COUNT];
    int rounded_cols; /* most columns in bytes that cost less so, tile_cols in a call, than by panels */
    int bf16_cols; /* the same of BF16, which one call takes; at most SHEAF__BF16_COLS */
    /* order: sheaf__bytes_order of that of the type */
    void (*to_bytes)(const float *x, struct sheaf__act_bytes *y, int64_t n, bool at_end,
                     enum sheaf__digits_order order);
    void (*to_words)(const float *x, struct sheaf__act_words *y, int64_t n, bool at_end,
                     enum sheaf__digits_order order);
    /* n % 32 == 0; at_end: of sheaf__digits_block. d is not finite if an element is not. */
    void (*to_digits)(const float *x, struct sheaf__act_digits *y, int64_t n, bool at_end,
                      enum sheaf__digits_order order);

    struct sheaf__cpu_repacked repacked[SHEAF_TYPE_COUNT];

    struct sheaf__cpu_attention attention[SHEAF__ATTENTION_KINDS];
    struct sheaf__cpu_attention_q8 attention_q8;
    /* Rows of n elements, `stride` bytes apart, as floats, y_stride apart: a K/V cache's types F32
     * F16 BF16 Q8_0 Q4_0 Q4_1 Q5_0 Q5_1 IQ4_NL; NULL for others. True if all are finite. */
    bool (*load_rows[SHEAF_TYPE_COUNT])(const void *x, size_t stride, int64_t rows, int64_t n,
                                        float *y, int64_t y_stride);
    /* out[c][j] = row j of x (k floats, `stride` floats apart) . q[c] */
    void (*dots)(int64_t k, const float *x, int64_t stride, int64_t rows, const float *const *q,
                 int n_q, float *out, int64_t out_stride);
    /* y[r] += w[r][j] * row j of x, j by j: n_y rows of n floats y_stride apart, from `rows` rows
     * stride apart; weights w_stride apart */
    void (*mix)(int64_t rows, const float *x, int64_t stride, int64_t n, const float *w,
                int64_t w_stride, int64_t n_y, float *y, int64_t y_stride);
    /* dots and mix by rows as they lie in a cache, `stride` bytes apart, k and n a multiple of 16,
     * with Q8_0 of 32, and at most SHEAF__DIRECT_WIDTH: the bits of load_rows and them. F32 F16
     * BF16, and Q8_0 unless attention_q8 has it, or NULL */
    void (*dots_of[SHEAF_TYPE_COUNT])(int64_t k, const void *x, size_t stride, int64_t rows,
                                      const float *const *q, int n_q, float *out,
                                      int64_t out_stride);
    sheaf__mix_rows_fn mix_of[SHEAF_TYPE_COUNT];
    /* y = cap * tanh(x / cap), relative error below 1e-6; y may be x; cap is not 0 */
    void (*softcap_f32)(int64_t n, float cap, const float *x, float *y);
    /* The conversions of sheaf_to_float and sheaf_from_float, the same bits, NULL for types that have
     * none here: F16 BF16 Q8_0, where a table has vectors all quantized types, and from floats Q4_0
     * Q4_1 Q5_0 Q5_1 */
    void (*to_float[SHEAF_TYPE_COUNT])(const void *x, float *y, int64_t n);
    void (*from_float[SHEAF_TYPE_COUNT])(const float *x, void *y, int64_t n);

    /* In double, element i in lane i mod 8, the lanes added in one order: sheaf__lanes_sum. The
     * same bits from every table. */
    double (*sum)(int64_t n, const float *x);
    double (*sum_sq)(int64_t n, const float *x);
    /* n pairs (x0, x1) -> (x0 cos - x1 sin, x0 sin + x1 cos); pair i is elements i and n + i, or,
     * with `side_by_side`, 2i and 2i + 1. y may be x. The same bits from every table. */
    void (*rotate)(int64_t n, bool side_by_side, const float *x, const float *cos, const float *sin,
                   float *y);
    float (*max_f32)(int64_t n, const float *x);                     /* -inf for n = 0 */
    bool (*finite_f32)(int64_t n, const float *x);                   /* all are finite */
    void (*scale_f32)(int64_t n, float a, const float *x, float *y); /* y = a * x; y may be x */
    /* y = exp(x - max), returns the sum of y; y may be x. Relative error below 2e-7 where the
     * result is normal; where it is not, it may be 0. */
    float (*exp_f32)(int64_t n, const float *x, float max, float *y);
    void (*silu_f32)(int64_t n, const float *x, float *y);
    void (*gelu_f32)(int64_t n, const float *x, float *y); /* tanh approximation */
    /* y = silu(a) * b, as silu_f32 and a product give it; y may be an operand */
    void (*swiglu_f32)(int64_t n, const float *a, const float *b, float *y);
    struct sheaf__cpu_elements elements;

    /* The same bits from every table (kernels/recurrent.h). */
    void (*state_rows)(int64_t n, int64_t rows, const struct sheaf__state_rows *x);
    void (*state_cols)(int64_t n, int64_t rows, const struct sheaf__state_cols *x);
    /* y[r][i] = exp(x[r] * a[r][i]), rows of a a_stride apart */
    void (*exp_products)(int64_t n, int64_t rows, const float *x, const float *a, int64_t a_stride,
                         float *y);
    /* y[t][c] = sum over k < taps of x[c][t + k] * w[c][k], in order; strides in floats */
    void (*conv_rows)(int64_t n_t, int64_t rows, int64_t taps, const float *x, int64_t x_stride,
                      const float *w, int64_t w_stride, float *y, int64_t y_stride);
};

/* How products may round activations: SHEAF_CPU_ACTIVATIONS, numbered as its choices. Fixed when
 * sheaf__cpu_kernels is. */
enum sheaf__rounding { SHEAF__ROUND_NONE, SHEAF__ROUND_BF16, SHEAF__ROUND_Q8 };
enum sheaf__rounding sheaf__rounding(void);
const char *sheaf__rounding_name(void); /* of the choice */
bool sheaf__repacks(void);              /* SHEAF_CPU_REPACK */
/* Bytes of k activations. */
size_t sheaf__act_row_size(enum sheaf__act act, int64_t k);

/* The table in use: the best that this CPU runs, or the one that SHEAF_CPU_ISA names; decided by
 * the first call, the same for the life of the process. NULL with the error text set if
 * SHEAF_CPU_ISA names a table that is absent, broken or not for this CPU, or if
 * SHEAF_CPU_ACTIVATIONS names no format. Any thread; the first call maps files, so no lock of the
 * registry is held. */
const struct sheaf__cpu_kernels *sheaf__cpu_kernels(void);

/* Table number i of those that run here, best last; NULL beyond. For tests. */
const struct sheaf__cpu_kernels *sheaf__cpu_kernels_at(int i);

/* The reference, which runs anywhere; part of the library. */
extern const struct sheaf__cpu_kernels sheaf__cpu_kernels_portable;

/* Of each module of x86: how weights that meet one column are fetched, and rows of a cache. Set before the module's
 * table is handed out. */
enum sheaf__cpu_fetch {
    SHEAF__FETCH_SECOND, /* to the second cache */
    SHEAF__FETCH_FIRST,  /* to the first */
    SHEAF__FETCH_BOTH, /* to the second, and to the first a little ahead; by several columns, too */
    /* to the second, some more than once: plain weights and rows of a cache, with AVX-512 types by eights that meet one
     * column and types by pieces that meet several (D115, D160, D162 to D164) */
    SHEAF__FETCH_OFTEN,
};
extern enum sheaf__cpu_fetch sheaf__cpu_fetch;

/* ---- modules ----
 *
 * The table ISA lies in a file of its own, libsheaf-cpu-ISA.so, that needs nothing of libsheaf and
 * exports two functions (src/cpu/kernels/module.c). Any change to a struct or to a contract of this
 * header raises the version. */
enum { SHEAF__CPU_KERNELS_VERSION = 35 };

struct sheaf__cpu_kernels_module {
    int version;       /* nothing else is read if it is another */
    size_t table_size; /* of struct sheaf__cpu_kernels */
    const struct sheaf__cpu_kernels *kernels;
};
const struct sheaf__cpu_kernels_module *sheaf_cpu_kernels_init(void);
/* Of a table that is another one with changes: makes them in a copy of that one. Called once. */
void sheaf__cpu_kernels_extend(struct sheaf__cpu_kernels *table);

/* What all tables that extend that of AVX-512 change of it: the rows of x86/vbmi.c. */
void sheaf__cpu_kernels_use_vbmi(struct sheaf__cpu_kernels *table);
/* The entries `repacked`, of x86/repacked.c or repacked_avx2.c. */
void sheaf__cpu_kernels_use_repacked(struct sheaf__cpu_kernels *table);
/* Attention of few queries for a Zen 4, of x86/attention_halves.c. */
void sheaf__cpu_kernels_use_halves(struct sheaf__cpu_kernels *table);
/* Rows of SHEAF__PANELS_BF16_SCALED: their units, and what unpacks them. */
void sheaf__cpu_kernels_scaled_rows(struct sheaf__cpu_panels *panels);
/* 0 if this CPU lacks what the table was compiled for, else the better the more. Runs anywhere. */
int sheaf_cpu_kernels_score(void);

#endif
