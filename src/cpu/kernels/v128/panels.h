/* Products with many columns.
 *
 * Columns are packed in panels of PANEL_COLS, an element of all of them together; a tile is PANEL_ROWS rows by all
 * columns of a panel, whose sums are in registers. Weights are unpacked to floats, or, where there is an instruction
 * that multiplies bytes (KERNELS_DIGITS), to bytes with scales, which meet activations of 16 bits as two digits, or of
 * 8 (--fast).
 *
 * Invariant: a sum runs over k in order, carried on through memory, so that neither the rows and columns beside it
 * nor the length of a pass show in its bits. */
#include "cpu/kernels/v128/rows.h"

#if defined(__aarch64__)
enum { PANEL_ROWS = 8 };
#else
enum { PANEL_ROWS = 4 };
#endif
enum { PANEL_VECTORS = 2, PANEL_COLS = PANEL_VECTORS * VW };

/* panel[i][c] = x[c][i] */
static void pack_f32(const float *const *x, int64_t n, int used, void *panel) {
    float *to = panel;
    (void)used;
    for (int64_t i = 0; i < n; i++, to += PANEL_COLS) {
        for (int c = 0; c < PANEL_COLS; c++) to[c] = x[c][i];
    }
}

/* c[r][..] = or += sum over i < k of a[r * by_row + i * by_i] * panel[i], of PANEL_ROWS rows. One of by_row and by_i
 * is 1, so that a vector has four elements of a row, or one of four rows. */
INLINE void floats_tile(bool rows_together, int64_t k, const float *a, int64_t apart,
                        const float *panel, float *c, bool add) {
    v_f acc[PANEL_ROWS][PANEL_VECTORS], b[PANEL_VECTORS];
    UNROLL for (int r = 0; r < PANEL_ROWS; r++) {
        UNROLL for (int v = 0; v < PANEL_VECTORS; v++) acc[r][v] =
            add ? v_load(c + r * PANEL_COLS + v * VW) : v_set1(0.0f);
    }
#define ADD_LANE(r, x, lane)                                                                       \
    UNROLL for (int v = 0; v < PANEL_VECTORS; v++) acc[r][v] = V_FMA_LANE(x, lane, b[v], acc[r][v])
#define LOAD_COLUMNS(i)                                                                            \
    UNROLL for (int v = 0; v < PANEL_VECTORS; v++) b[v] = v_load(panel + (i)*PANEL_COLS + v * VW)
    int64_t i = 0;
    if (rows_together) {
        for (; i < k; i++) {
            LOAD_COLUMNS(i);
            UNROLL for (int r = 0; r < PANEL_ROWS; r += VW) {
                const v_f x = v_load(a + i * apart + r);
                ADD_LANE(r, x, 0);
                ADD_LANE(r + 1, x, 1);
                ADD_LANE(r + 2, x, 2);
                ADD_LANE(r + 3, x, 3);
            }
        }
    } else {
        for (; i + VW <= k; i += VW) {
            v_f x[PANEL_ROWS];
            UNROLL for (int r = 0; r < PANEL_ROWS; r++) x[r] = v_load(a + r * apart + i);
#define ADD_ELEMENT(lane)                                                                          \
    LOAD_COLUMNS(i + (lane));                                                                      \
    UNROLL for (int r = 0; r < PANEL_ROWS; r++) { ADD_LANE(r, x[r], lane); }
            ADD_ELEMENT(0)
            ADD_ELEMENT(1)
            ADD_ELEMENT(2)
            ADD_ELEMENT(3)
#undef ADD_ELEMENT
        }
        for (; i < k; i++) {
            LOAD_COLUMNS(i);
            UNROLL for (int r = 0; r < PANEL_ROWS; r++) {
                const v_f x = v_set1(a[r * apart + i]);
                ADD_LANE(r, x, 0);
            }
        }
    }
#undef ADD_LANE
#undef LOAD_COLUMNS
    UNROLL for (int r = 0; r < PANEL_ROWS; r++) {
        UNROLL for (int v = 0; v < PANEL_VECTORS; v++)
            v_store(c + r * PANEL_COLS + v * VW, acc[r][v]);
    }
}

static void tile_f32(int64_t k, const void *row, size_t stride, const void *panel, int used,
                     float *c, bool add) {
    (void)used;
    floats_tile(false, k, row, (int64_t)(stride / sizeof(float)), panel, c, add);
}

#define UNPACK(TYPE, type)                                                                         \
    static void unpack_##type(const void *w, void *row, int64_t n) { floats_##type(w, row, n); }
QUANTIZED_TYPES(UNPACK)
UNPACK(F32, f32)
UNPACK(F16, f16)
UNPACK(BF16, bf16)
#undef UNPACK

#if defined(KERNELS_DIGITS)

/* 32 weights of a row, and 32 elements of all columns, four together. Of activations of 8 bits there is one digit. */
struct weights_row {
    int8_t q[32];
    float d[2], m[2]; /* of 16 elements each */
    int8_t by_16, has_min;
    int8_t unused[14];
};
struct panel_of_digits {
    int8_t digit[2][8][PANEL_COLS][4];
    float d[PANEL_COLS], sums[2][PANEL_COLS]; /* d times the sums of 16 elements each */
};

INLINE void pack_digits(int digits, const float *const *x, int64_t n, void *panel) {
    struct panel_of_digits *to = panel;
    for (int64_t b = 0; b < n / 32; b++, to++) {
        for (int c = 0; c < PANEL_COLS; c++) {
            int32_t q[32];
            const float by =
                integers_of_32(x[c] + 32 * b, digits == 2 ? 127.0f * 256.0f : 127.0f, q);
            float sum32, sums16[2];
            describe_32(q, by, 0, &to->d[c], &sum32, sums16);
            to->sums[0][c] = sums16[0];
            to->sums[1][c] = sums16[1];
            for (int j = 0; j < 32; j++) {
                const int8_t low = (int8_t)(uint8_t)(q[j] & 255);
                to->digit[0][j / 4][c][j % 4] = digits == 2 ? (int8_t)((q[j] - low) >> 8) : low;
                if (digits == 2) to->digit[1][j / 4][c][j % 4] = low;
            }
        }
    }
}
static void pack_16(const float *const *x, int64_t n, int used, void *panel) {
    (void)used;
    pack_digits(2, x, n, panel);
}
static void pack_8(const float *const *x, int64_t n, int used, void *panel) {
    (void)used;
    pack_digits(1, x, n, panel);
}

static void bytes_of(struct weights of, const char *w, struct weights_row *to, int64_t n) {
    struct weights_256 x;
    for (; n > 0; n -= SHEAF__QK_K, w += of.size) {
        const int blocks = n < SHEAF__QK_K ? (int)(n / 32) : 8;
        of.take(w, blocks, &x);
        for (int b = 0; b < blocks; b++, to++) {
            memcpy(to->q, x.q + 32 * b, sizeof to->q);
            for (int h = 0; h < 2; h++) {
                const int s = of.by_16 ? 2 * b + h : b;
                to->d[h] = x.d[s];
                if (of.has_min) to->m[h] = x.m[s];
            }
            to->by_16 = of.by_16;
            to->has_min = of.has_min;
        }
    }
}
#define BYTES_OF(TYPE, type)                                                                       \
    static void bytes_##type(const void *w, void *row, int64_t n) {                                \
        bytes_of(weights_of(SHEAF_TYPE_##TYPE, take_##type), w, row, n);                           \
    }
QUANTIZED_TYPES(BYTES_OF)
#undef BYTES_OF

/* Of elements 4 j .. of PANEL_ROWS rows: acc += those of the columns . those of the rows. */
INLINE void add_fours(const int8_t (*x)[PANEL_COLS][4], int h, const v_i8 *q,
                      v_i32 (*acc)[PANEL_VECTORS]) {
#define ADD_FOUR(LANE)                                                                             \
    UNROLL for (int v = 0; v < PANEL_VECTORS; v++) {                                               \
        const v_i8 b = v_load_i8(x[4 * h + (LANE)][VW * v]);                                       \
        UNROLL for (int r = 0; r < PANEL_ROWS; r++) {                                              \
            acc[r][v] = DOT_4_LANE(acc[r][v], b, q[r], LANE);                                      \
            NOW(acc[r][v]);                                                                        \
        }                                                                                          \
    }
    ADD_FOUR(0)
    ADD_FOUR(1)
    ADD_FOUR(2)
    ADD_FOUR(3)
#undef ADD_FOUR
}

INLINE void digits_tile(int digits, bool sixteens, bool mins, int64_t k,
                        const struct weights_row *w, size_t apart,
                        const struct panel_of_digits *panel, float *c, bool add) {
    const int parts = sixteens ? 2 : 1;
    if (!add) memset(c, 0, sizeof(float) * PANEL_ROWS * PANEL_COLS);
    for (int64_t b = 0; b < k / 32; b++, panel++, w++) {
        UNROLL for (int part = 0; part < parts; part++) {
            v_i32 acc[PANEL_ROWS][PANEL_VECTORS] = {{{0}}};
            UNROLL for (int digit = 0; digit < digits; digit++) {
                UNROLL for (int r = 0; r < PANEL_ROWS && digit == 1; r++) {
                    UNROLL for (int v = 0; v < PANEL_VECTORS; v++) acc[r][v] <<= 8;
                }
                UNROLL for (int h = 0; h < 2; h++) {
                    if (sixteens && h != part) continue;
                    v_i8 q[PANEL_ROWS];
                    UNROLL for (int r = 0; r < PANEL_ROWS; r++) q[r] =
                        v_load_i8(w[(size_t)r * apart].q + 16 * h);
                    add_fours(panel->digit[digit], h, q, acc);
                }
            }
            UNROLL for (int v = 0; v < PANEL_VECTORS; v++) {
                const v_f d = v_load(panel->d + v * VW);
                v_f sums = v_load(panel->sums[part] + v * VW);
                if (!sixteens) sums = sums + v_load(panel->sums[1] + v * VW);
                UNROLL for (int r = 0; r < PANEL_ROWS; r++) {
                    const struct weights_row *of = w + (size_t)r * apart;
                    float *to = c + r * PANEL_COLS + v * VW;
                    v_f sum = v_fma(v_from_i32(acc[r][v]), v_set1(of->d[part]) * d, v_load(to));
                    if (mins) sum = v_fma(v_set1(of->m[part]), sums, sum);
                    v_store(to, sum);
                }
            }
            __asm__ volatile(
                "" ::
                    : "memory"); /* the sums of a tile stay where they are: registers are for integers */
        }
    }
}

INLINE void tile_of(int digits, int64_t k, const void *row, size_t stride, const void *panel,
                    float *c, bool add) {
    const struct weights_row *w = row;
    const size_t apart = stride / sizeof *w;
    if (w->by_16 && w->has_min)
        digits_tile(digits, true, true, k, w, apart, panel, c, add);
    else if (w->by_16)
        digits_tile(digits, true, false, k, w, apart, panel, c, add);
    else if (w->has_min)
        digits_tile(digits, false, true, k, w, apart, panel, c, add);
    else
        digits_tile(digits, false, false, k, w, apart, panel, c, add);
}
static void tile_16(int64_t k, const void *row, size_t stride, const void *panel, int used,
                    float *c, bool add) {
    (void)used;
    tile_of(2, k, row, stride, panel, c, add);
}
static void tile_8(int64_t k, const void *row, size_t stride, const void *panel, int used, float *c,
                   bool add) {
    (void)used;
    tile_of(1, k, row, stride, panel, c, add);
}
#endif
