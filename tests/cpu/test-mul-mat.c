/* Matrix products and row kernels of every instruction set that this machine has, against the
 * reference. What an instruction set that it lacks would run is skipped, and said so. */
#include <criterion/criterion.h>
#include <dlfcn.h>
#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cpu/kernels/kernels.h"
#include "cpu/matmul/mul_mat.h"
#include "float_types.h"
#include "quant/quants.h"
#include "random_numbers.h"
#include "sanitizer.h"
#include "sheaf/backend-impl.h"
#include "sheaf/sheaf.h"

static const enum sheaf_type cache_types[] = {SHEAF_TYPE_F32,  SHEAF_TYPE_F16,  SHEAF_TYPE_BF16,
                                              SHEAF_TYPE_Q8_0, SHEAF_TYPE_Q4_0, SHEAF_TYPE_Q4_1,
                                              SHEAF_TYPE_Q5_0, SHEAF_TYPE_Q5_1, SHEAF_TYPE_IQ4_NL};

static void fill(float *x, int64_t n) {
    for (int64_t i = 0; i < n; i++) x[i] = random_float();
}

/* Tables that this CPU lacks are not among them: check_ops skips its test for each. */
#define FOR_EACH_TABLE(kern)                                                                       \
    for (int table_ = 0; table_ >= 0; table_ = -1)                                                 \
        for (const struct sheaf__cpu_kernels *kern; (kern = sheaf__cpu_kernels_at(table_++));)

/* ---- kernels ---- */

/* Where a block has its half floats: one, or two side by side. -1: none. */
static int halves_at(enum sheaf_type type) {
    switch ((int)type) {
    case SHEAF_TYPE_MXFP4:
    case SHEAF_TYPE_NVFP4:
    case SHEAF_TYPE_IQ1_M: /* in parts */
        return -1;
    case SHEAF_TYPE_Q2_K:
        return 80;
    case SHEAF_TYPE_Q3_K:
    case SHEAF_TYPE_Q6_K:
    case SHEAF_TYPE_TQ1_0:
    case SHEAF_TYPE_TQ2_0:
        return (int)sheaf_type_size(type) - 2;
    default:
        return 0;
    }
}
static bool has_two_halves(enum sheaf_type type) {
    return type == SHEAF_TYPE_Q4_1 || type == SHEAF_TYPE_Q5_1 || type == SHEAF_TYPE_Q4_K ||
           type == SHEAF_TYPE_Q5_K || type == SHEAF_TYPE_Q2_K;
}

/* Random block bytes with sane scales: codes that no quantizer makes (-128 of Q8_0 and of the
 * scales of Q6_K) are included. */
static void random_blocks(enum sheaf_type type, void *dst, int64_t n) {
    const size_t size = sheaf_type_size(type), bytes = sheaf_row_size(type, n);
    const int at = halves_at(type);
    uint8_t *p = dst;
    for (size_t i = 0; i < bytes; i++) p[i] = (uint8_t)random_u32();
    for (size_t b = 0; b < bytes; b += size) {
        uint16_t d = sheaf_fp32_to_fp16(random_float()), m = sheaf_fp32_to_fp16(random_float());
        if (at >= 0) memcpy(p + b + at, &d, 2);
        if (has_two_halves(type)) memcpy(p + b + at + 2, &m, 2);
        if (type == SHEAF_TYPE_MXFP4) p[b] = (uint8_t)(120 + p[b] % 8);
        for (int i = 0; i < 4 && type == SHEAF_TYPE_IQ1_M; i++) { /* the top nibbles are d */
            uint8_t *high = p + b + 49 + 2 * i;
            *high = (uint8_t)((*high & 15) | (d >> 4 * i & 15) << 4);
        }
    }
}

static void random_row(enum sheaf_type type, void *dst, int64_t n) {
    if (sheaf_is_quantized(type)) {
        random_blocks(type, dst, n);
        return;
    }
    for (int64_t i = 0; i < n; i++) {
        float x = random_float();
        sheaf_from_float(type, &x, (char *)dst + (size_t)i * sheaf_type_size(type), 1);
    }
}

enum { MAX_K = 2304, MAX_ROWS_HERE = 13, PAD = 48 };

/* Where element i of a column of k lies: its block of 256, and its place there. */
static int block_of(int64_t k, int64_t i) {
    return sheaf__digits_block(i / 32, k, sheaf__digits_at_end(k));
}
static int place_of(enum sheaf__digits_order order, int64_t k, int64_t i) {
    return sheaf__digits_place(order, 32 * block_of(k, i) + (int)(i % 32));
}

/* A column in an activation format, and the floats that it stands for. */
static float given[MAX_K]; /* the column as it was */
static void make_column(const struct sheaf__cpu_kernels *kern, enum sheaf__act format,
                        enum sheaf__digits_order order, int64_t k, void *act, float *meant) {
    fill(meant, k);
    memcpy(given, meant, (size_t)k * sizeof *meant);
    switch (format) {
    case SHEAF__ACT_DIGITS: {
        struct sheaf__act_digits *y = act;
        kern->to_digits(meant, y, k, sheaf__digits_at_end(k), order);
        for (int64_t i = 0; i < k; i++) {
            const struct sheaf__act_digits *x = &y[i / 256];
            const int b = block_of(k, i), at = place_of(order, k, i);
            const int8_t(*digit)[64] = x->digit[at / 64];
            int q = digit[0][at % 64] * 256 + digit[1][at % 64];
            if (sheaf__digits_used(order) == 3) q = q * 256 + digit[2][at % 64];
            if (order == SHEAF__DIGITS_WORDS) q = x->word[0][at] * 65536 + x->word[1][at];
            if (order == SHEAF__DIGITS_SHORTS || order == SHEAF__DIGITS_OCT_SHORTS)
                q = x->word[0][at];
            float back = x->d[b] * (float)q;
            cr_assert_float_eq(back, meant[i], 3.0f * x->d[b]);
            meant[i] = back;
        }
        break;
    }
    case SHEAF__ACT_WORDS: {
        struct sheaf__act_words *y = act;
        kern->to_words(meant, y, k, sheaf__digits_at_end(k), order);
        for (int64_t i = 0; i < k; i++) {
            const struct sheaf__act_words *x = &y[i / 256];
            const float d = x->d[block_of(k, i)];
            const float back = d * x->x[place_of(order, k, i)];
            cr_assert_float_eq(back, meant[i], 3.0f * d);
            meant[i] = back;
        }
        break;
    }
    case SHEAF__ACT_BYTES: {
        struct sheaf__act_bytes *y = act;
        kern->to_bytes(meant, y, k, sheaf__digits_at_end(k), order);
        for (int64_t i = 0; i < k; i++) {
            const struct sheaf__act_bytes *x = &y[i / 256];
            const float d = x->d[block_of(k, i)];
            const float back = d * x->x[place_of(order, k, i)];
            cr_assert_float_eq(back, meant[i], 0.51f * d);
            meant[i] = back;
        }
        break;
    }
    case SHEAF__ACT_BF16:
        kern->from_float[SHEAF_TYPE_BF16](meant, act, k);
        sheaf_to_float(SHEAF_TYPE_BF16, act, meant, k);
        break;
    default:
        memcpy(act, meant, (size_t)k * sizeof(float));
    }
}

/* The families of rows_dot: by floats, by floats as digits, by several of these, and by rounded ones. */
enum way { BY_FLOATS, BY_DIGITS, BY_FEW, BY_ROUNDED };

static sheaf__rows_dot_fn dot_of(const struct sheaf__cpu_kernels *kern, enum way way,
                                 enum sheaf_type type) {
    return way == BY_FLOATS   ? kern->rows_dot[type]
           : way == BY_DIGITS ? kern->rows_dot_digits[type]
           : way == BY_FEW    ? kern->rows_dot_few[type]
                              : kern->rows_dot_rounded[type];
}

/* The product of quantized weights with activations is a plain sum of exact terms, so only float
 * rounding is left between a kernel and it. Each result is also computed alone, one row and one
 * column (with BY_FEW by the kernel of BY_DIGITS), and must have the same bits. Returns the tiles
 * compared. */
static int check_kernels(enum way way) {
    static char w[MAX_ROWS_HERE * (MAX_K * 4 + PAD)];
    static _Alignas(64) char act[SHEAF__BF16_COLS][MAX_K * 5], single[MAX_K * 5];
    static uint16_t halves[MAX_K];
    static float row[MAX_K], exact[SHEAF__BF16_COLS][MAX_K];
    static float meant[SHEAF__BF16_COLS][MAX_K], out[SHEAF__BF16_COLS][64];
    static struct {
        double sum, scale;
        float alone;
    } want[SHEAF__BF16_COLS][MAX_ROWS_HERE];
    static const int64_t ks[] = {0,  1,  7,   8,   15,  16,  17,   32,   33,
                                 64, 96, 256, 288, 512, 576, 1536, 2080, 2304};
    int compared = 0;
    FOR_EACH_TABLE(kern) {
        for (int t = 0; t < N_FLOAT_TYPES; t++) {
            const enum sheaf__act format = way == BY_FLOATS                     ? SHEAF__ACT_F32
                                           : way == BY_DIGITS                   ? SHEAF__ACT_DIGITS
                                           : way == BY_FEW                      ? SHEAF__ACT_WORDS
                                           : sheaf_is_quantized(float_types[t]) ? SHEAF__ACT_BYTES
                                                                                : SHEAF__ACT_BF16;
            const sheaf__rows_dot_fn dot = dot_of(kern, way, float_types[t]);
            const sheaf__rows_dot_fn dot_one =
                way == BY_FEW ? kern->rows_dot_digits[float_types[t]] : dot;
            const enum sheaf__digits_order order =
                way == BY_FEW       ? kern->few_order[float_types[t]]
                : way == BY_ROUNDED ? sheaf__bytes_order(kern->digits_order[float_types[t]])
                                    : kern->digits_order[float_types[t]];
            cr_assert(kern->tile_cols >= 1 && kern->tile_cols <= SHEAF__TILE_COLS);
            const int most = format == SHEAF__ACT_BF16 ? kern->bf16_cols : kern->tile_cols;
            if (way == BY_DIGITS && !kern->to_digits) continue;
            if ((sheaf_is_quantized(float_types[t]) || way == BY_FEW || way == BY_ROUNDED) && !dot)
                continue;
            if ((way == BY_DIGITS || way == BY_FEW) && !sheaf_is_quantized(float_types[t])) {
                cr_assert_null(dot);
                continue;
            }
            for (size_t ki = 0; ki < sizeof ks / sizeof ks[0]; ki++) {
                int64_t k = ks[ki];
                if (k % sheaf_blck_size(float_types[t]) != 0) continue;
                size_t stride = sheaf_row_size(float_types[t], k) + PAD;
                for (int r = 0; r < MAX_ROWS_HERE; r++)
                    random_row(float_types[t], w + (size_t)r * stride, k);
                const void *cols[SHEAF__BF16_COLS];
                float *outs[SHEAF__BF16_COLS];
                for (int c = 0; c < SHEAF__BF16_COLS; c++) {
                    make_column(kern, format, order, k, act[c], meant[c]);
                    memcpy(exact[c], given, (size_t)k * sizeof *given);
                    cols[c] = act[c];
                    outs[c] = out[c];
                }
                for (int r = 0; r < MAX_ROWS_HERE; r++) {
                    const char *row_data = w + (size_t)r * stride;
                    sheaf_to_float(float_types[t], row_data, row, k);
                    if (format == SHEAF__ACT_BF16) { /* F16 weights are rounded, too */
                        sheaf_from_float(SHEAF_TYPE_BF16, row, halves, k);
                        sheaf_to_float(SHEAF_TYPE_BF16, halves, row, k);
                    }
                    for (int c = 0; c < SHEAF__BF16_COLS; c++) {
                        double sum = 0, scale = 0;
                        for (int64_t i = 0; i < k; i++) {
                            const double term = (double)row[i] * (double)meant[c][i];
                            sum += term;
                            scale += fabs(term);
                        }
                        want[c][r].sum = sum;
                        want[c][r].scale = scale;
                        float *one = &want[c][r].alone;
                        const void *col = cols[c];
                        if (way == BY_FEW) {
                            kern->to_digits(exact[c], (void *)single, k, sheaf__digits_at_end(k),
                                            kern->digits_order[float_types[t]]);
                            col = single;
                        }
                        dot_one(k, row_data, stride, 1, &col, 1, &one);
                    }
                }
                for (int nr = 1; nr <= MAX_ROWS_HERE; nr += nr < 6 ? 1 : 7) {
                    for (int nc = 1; nc <= most; nc++) {
                        for (int c = 0; c < SHEAF__BF16_COLS; c++)
                            for (int r = 0; r < 64; r++) out[c][r] = 77;
                        dot(k, w, stride, nr, cols, nc, outs);
                        double error = 0, power = 0;
                        for (int c = 0; c < nc; c++) {
                            for (int r = 0; r < nr; r++) {
                                const float alone = want[c][r].alone;
                                error += pow((double)out[c][r] - want[c][r].sum, 2);
                                power += pow(want[c][r].scale, 2);
                                cr_assert(memcmp(&alone, &out[c][r], sizeof alone) == 0,
                                          "%s %s k %d: row %d column %d of a tile %d x %d: %a, "
                                          "alone %a",
                                          kern->name, sheaf_type_name(float_types[t]), (int)k, r, c,
                                          nr, nc, (double)out[c][r], (double)alone);
                            }
                            cr_assert_eq(out[c][nr], 77.0f, "wrote past the rows");
                        }
                        for (int c = nc; c < SHEAF__BF16_COLS; c++)
                            cr_assert_eq(out[c][0], 77.0f, "wrote past the columns");
                        cr_assert(error <= 1e-13 * power, "%s %s k %d, %d x %d: error %g of %g",
                                  kern->name, sheaf_type_name(float_types[t]), (int)k, nr, nc,
                                  error, power);
                        compared++;
                    }
                }
            }
        }
    }
    return compared;
}

Test(mul_mat, kernels_against_exact_sums) { cr_assert_gt(check_kernels(BY_FLOATS), 1000); }
Test(mul_mat, kernels_against_exact_sums_digits) {
    bool digits = false;
    const struct sheaf__cpu_kernels *kern;
    for (int i = 0; (kern = sheaf__cpu_kernels_at(i)); i++) digits = digits || kern->to_digits;
    if (!digits) cr_skip("no table that runs here has products by digits");
    const int compared = check_kernels(BY_DIGITS);
    cr_assert_geq(compared, 3500, "%d", compared);
}
Test(mul_mat, kernels_against_exact_sums_few) {
    const struct sheaf__cpu_kernels *kern;
    int types_of_few = 0;
    for (int i = 0; (kern = sheaf__cpu_kernels_at(i)); i++) {
        for (int t = 0; t < SHEAF_TYPE_COUNT; t++) types_of_few += kern->rows_dot_few[t] != NULL;
    }
    if (!types_of_few) cr_skip("no table that runs here has products of several columns");
    const int compared = check_kernels(BY_FEW);
    cr_assert_geq(compared, 100 * types_of_few, "%d", compared);
}

Test(mul_mat, kernels_against_exact_sums_rounded) {
    const struct sheaf__cpu_kernels *kern;
    int rounded_types = 0;
    for (int i = 0; (kern = sheaf__cpu_kernels_at(i)); i++) {
        for (int t = 0; t < SHEAF_TYPE_COUNT; t++)
            rounded_types += kern->rows_dot_rounded[t] != NULL;
    }
    if (!rounded_types) cr_skip("no table that runs here has products of rounded columns");
    const int compared = check_kernels(BY_ROUNDED);
    cr_assert_geq(compared, 100 * rounded_types, "%d", compared);
}

/* A table with vectors leaves no type to the portable one. */
Test(mul_mat, types_with_kernels_of_their_own) {
    FOR_EACH_TABLE(kern) {
        if (!kern->to_digits) continue;
        for (int t = 0; t < N_FLOAT_TYPES; t++) {
            const char *name = sheaf_type_name(float_types[t]);
            const bool digits = kern->rows_dot_digits[float_types[t]] != NULL;
            cr_assert_eq(digits, sheaf_is_quantized(float_types[t]), "%s: %s", kern->name, name);
            cr_assert(kern->panels[SHEAF__PANELS_FLOATS].unpack[float_types[t]], "%s: %s",
                      kern->name, name);
        }
    }
}

Test(mul_mat, conversions_same_bits) {
    enum { K = 65536 };
    static uint16_t h[K], got_h[K];
    static float want[K], got[K];
    static uint8_t q[K / 32 * 34], got_q[K / 32 * 34];
    static const enum sheaf_type halves[] = {SHEAF_TYPE_F16, SHEAF_TYPE_BF16};
    FOR_EACH_TABLE(kern) {
        for (int t = 0; t < 2; t++) {
            for (int i = 0; i < K; i++) h[i] = (uint16_t)i;
            sheaf_to_float(halves[t], h, want, K);
            kern->to_float[halves[t]](h, got, K);
            for (int i = 0; i < K; i++) {
                /* bf16 keeps a signalling NaN as it is; only that it is NaN counts */
                bool same = memcmp(&want[i], &got[i], 4) == 0;
                cr_assert(same || (isnan(want[i]) && isnan(got[i])), "%s %04x", kern->name, i);
            }
            for (int i = 0; i < K; i++) {
                uint32_t u = random_u32();
                memcpy(&want[i], &u, 4);
            }
            sheaf_from_float(halves[t], want, h, K);
            for (int n = K - 19; n <= K; n += 19) {
                memset(got_h, 0, sizeof got_h);
                kern->from_float[halves[t]](want, got_h, n);
                cr_assert(memcmp(h, got_h, (size_t)n * 2) == 0, "%s", kern->name);
            }
        }
        for (int i = 0; i < K; i++) want[i] = random_float() * ldexpf(1, i / 32 % 60 - 40);
        for (int i = 0; i < 4096; i++) /* many halves of the largest */
            want[i] = (float)(128 + i / 32) / (float)(1 + i % 2);
        sheaf_from_float(SHEAF_TYPE_Q8_0, want, q, K);
        kern->from_float[SHEAF_TYPE_Q8_0](want, got_q, K);
        cr_assert(memcmp(q, got_q, sizeof q) == 0, "%s", kern->name);
        sheaf_to_float(SHEAF_TYPE_Q8_0, q, want, K);
        kern->to_float[SHEAF_TYPE_Q8_0](q, got, K);
        cr_assert(memcmp(want, got, sizeof want) == 0, "%s", kern->name);
    }
}

/* Every number of keys, and heads of every length: with tails of vectors. */
Test(mul_mat, rows_of_a_cache) {
    enum { K = 320, ROWS = 5 };
    static char x[ROWS * K * 4];
    static float row[K], y[ROWS * (K + 3)];
    FOR_EACH_TABLE(kern) {
        for (size_t t = 0; t < sizeof cache_types / sizeof *cache_types; t++) {
            const enum sheaf_type type = cache_types[t];
            const bool fused = type == SHEAF_TYPE_Q4_1 || type == SHEAF_TYPE_Q5_1; /* d * q + m */
            for (int n = 0; n <= K; n += sheaf_blck_size(type) > 1 ? 32 : 7) {
                const size_t stride = sheaf_row_size(type, n) + 2 * sheaf_type_size(type);
                for (int r = 0; r < ROWS; r++) random_row(type, x + (size_t)r * stride, n);
                for (int i = 0; i < ROWS * (K + 3); i++) y[i] = 77;
                cr_assert(kern->load_rows[type](x, stride, ROWS, n, y, n + 3), "%s", kern->name);
                for (int r = 0; r < ROWS; r++) {
                    sheaf_to_float(type, x + (size_t)r * stride, row, n);
                    for (int i = 0; i < n; i++) {
                        const float got = y[r * (n + 3) + i], off = fused ? 0x1p-20f : 0.0f;
                        cr_assert_float_eq(got, row[i], off * fmaxf(1, fabsf(row[i])), "%s %s",
                                           kern->name, sheaf_type_name(type));
                    }
                    cr_assert_eq(y[r * (n + 3) + n], 77.0f);
                }
                for (int bad = 0; bad < n; bad += 5) { /* NaN wherever it stands, as F32 has it */
                    if (type != SHEAF_TYPE_F32) break;
                    float keep, nan = bad % 2 ? NAN : -INFINITY;
                    char *at = x + 3 * stride + (size_t)bad * sizeof nan;
                    memcpy(&keep, at, sizeof keep);
                    memcpy(at, &nan, sizeof nan);
                    cr_assert(!kern->load_rows[type](x, stride, ROWS, n, y, n + 3), "%d", bad);
                    memcpy(at, &keep, sizeof keep);
                }
                for (int b = 0; b < n / 32 && sheaf_is_quantized(type); b++) { /* a scale */
                    char *at = x + 2 * stride + (size_t)b * sheaf_type_size(type), keep[2];
                    memcpy(keep, at, 2);
                    memcpy(at, &(uint16_t){b % 2 ? 0x7e00 : 0xfc00}, 2);
                    cr_assert(!kern->load_rows[type](x, stride, ROWS, n, y, n + 3), "%d", b);
                    memcpy(at, keep, 2);
                }
            }
        }
    }
}

Test(mul_mat, dots_and_mix) {
    enum { K = 133, ROWS = 35, STRIDE = K + 3, MIXED = 6 };
    static float x[ROWS * STRIDE], qs[3 * K], out[3 * (ROWS + 1)], one[1], w[MIXED * ROWS];
    static float y[MIXED * STRIDE], y0[MIXED * STRIDE], z[STRIDE];
    fill(x, ROWS * STRIDE);
    fill(qs, 3 * K);
    fill(w, MIXED * ROWS);
    fill(y0, MIXED * STRIDE);
    FOR_EACH_TABLE(kern) {
        for (int k = 0; k <= K; k += k < 20 ? 1 : 37) {
            for (int rows = 0; rows <= ROWS; rows++) {
                const float *q[3] = {qs, qs + K, qs + 2 * K};
                for (int c = 0; c < 3; c++) out[c * (ROWS + 1) + rows] = 77;
                kern->dots(k, x, STRIDE, rows, q, 3, out, ROWS + 1);
                for (int c = 0; c < 3; c++) cr_assert_eq(out[c * (ROWS + 1) + rows], 77.0f);
                for (int r = 0; r < 3 * rows; r++) {
                    const int c = r / rows, j = r % rows;
                    const float got = out[c * (ROWS + 1) + j];
                    double want = 0, size = 0;
                    for (int i = 0; i < k; i++) {
                        want += (double)x[j * STRIDE + i] * (double)q[c][i];
                        size += fabs((double)x[j * STRIDE + i] * (double)q[c][i]);
                    }
                    cr_assert_float_eq((double)got, want, 1e-6 * size, "%s", kern->name);
                    kern->dots(k, x + j * STRIDE, STRIDE, 1, q + c, 1, one, 1);
                    cr_assert_eq(got, one[0], "%s: row %d of %d", kern->name, j, rows);
                }
                for (int n_y = 0; n_y <= MIXED && rows % 7 == 0; n_y++) {
                    memcpy(y, y0, sizeof y);
                    kern->mix(rows, x, STRIDE, k, w, ROWS, n_y, y, STRIDE);
                    for (int r = 0; r < MIXED; r++) {
                        memcpy(z, y0 + r * STRIDE, sizeof z); /* alone, and key by key: the same */
                        for (int j = 0; j < rows && r < n_y; j++)
                            kern->mix(1, x + j * STRIDE, STRIDE, k, w + r * ROWS + j, 0, 1, z, 0);
                        cr_assert_arr_eq(y + r * STRIDE, z, sizeof z, "%s: %d of %d", kern->name, r,
                                         n_y);
                    }
                    for (int i = 0; i < k && n_y > 0; i++) {
                        double want = (double)y0[i], size = fabs(want);
                        for (int j = 0; j < rows; j++) {
                            want += (double)w[j] * (double)x[j * STRIDE + i];
                            size += fabs((double)w[j] * (double)x[j * STRIDE + i]);
                        }
                        cr_assert_float_eq((double)y[i], want, 1e-6 * size, "%s", kern->name);
                    }
                }
            }
        }
    }
}

Test(mul_mat, rows) {
    enum { K = 4099 };
    static float x[K], y[K + 1];
    FOR_EACH_TABLE(kern) {
        for (int i = 0; i < K; i++) x[i] = -110.0f + 120.0f * (float)i / K;
        x[5] = -INFINITY;
        y[K] = 77;
        double want = 0, sum = (double)kern->exp_f32(K, x, 7.5f, y);
        for (int i = 0; i < K; i++) {
            double e = exp((double)(x[i] - 7.5f));
            want += e;
            cr_assert_float_eq((double)y[i], e, 2e-7 * e + 1.2e-38, "%s exp(%g) = %g, want %g",
                               kern->name, (double)(x[i] - 7.5f), (double)y[i], e);
        }
        cr_assert_float_eq(sum, want, 1e-6 * want);
        cr_assert_eq(y[5], 0.0f);
        cr_assert_eq(y[K], 77.0f);
        x[3] = 1000;
        x[4] = NAN;
        kern->exp_f32(9, x, 0, y);
        cr_assert(isinf(y[3]) && isnan(y[4]), "%s", kern->name);

        for (int i = 0; i < K; i++) x[i] = -30.0f + 60.0f * (float)i / K;
        kern->silu_f32(K, x, y);
        for (int i = 0; i < K; i++) {
            double v = (double)x[i], w = v / (1 + exp(-v));
            cr_assert_float_eq((double)y[i], w, 4e-7 * fabs(w), "%s silu(%g)", kern->name, v);
        }
        kern->gelu_f32(K, x, y);
        for (int i = 0; i < K; i++) {
            double v = (double)x[i];
            double w = 0.5 * v * (1 + tanh(0.7978845608028654 * (v + 0.044715 * v * v * v)));
            cr_assert_float_eq((double)y[i], w, 4e-7 * fabs(v), "%s gelu(%g)", kern->name, v);
        }
        cr_assert_eq(y[K], 77.0f);
        for (int n = 0; n < 70; n++) {
            double s = 0, sq = 0, size = 0, max = -INFINITY;
            fill(x, n);
            for (int i = 0; i < n; i++) {
                s += (double)x[i];
                size += fabs((double)x[i]);
                sq += (double)x[i] * (double)x[i];
                max = fmax(max, (double)x[i]);
            }
            cr_assert_float_eq(kern->sum(n, x), s, 1e-14 * size);
            cr_assert_float_eq(kern->sum_sq(n, x), sq, 1e-14 * sq);
            cr_assert_eq(kern->sum(n, x), sheaf__cpu_kernels_portable.sum(n, x));
            cr_assert_eq(kern->sum_sq(n, x), sheaf__cpu_kernels_portable.sum_sq(n, x));
            cr_assert_eq((double)kern->max_f32(n, x), max);
            y[n] = 77;
            kern->scale_f32(n, 1.7f, x, y);
            for (int i = 0; i < n; i++) cr_assert_eq(y[i], 1.7f * x[i]);
            cr_assert_eq(y[n], 77.0f);
        }
    }
}

Test(mul_mat, rotated_pairs) {
    float x[2 * 70], y[2 * 70 + 1], in_place[2 * 70], cos[70], sin[70];
    fill(x, 2 * 70);
    fill(cos, 70);
    fill(sin, 70);
    FOR_EACH_TABLE(kern) {
        for (int n = 0; n < 70; n++) {
            for (int side_by_side = 0; side_by_side < 2; side_by_side++) {
                memcpy(in_place, x, sizeof x);
                y[2 * n] = 77;
                kern->rotate(n, side_by_side, x, cos, sin, y);
                kern->rotate(n, side_by_side, in_place, cos, sin, in_place);
                cr_assert_eq(y[2 * n], 77.0f);
                cr_assert_arr_eq(y, in_place, (size_t)(2 * n) * sizeof *y);
                for (int i = 0; i < n; i++) { /* to the bit: no product is contracted */
                    const int a = side_by_side ? 2 * i : i, b = side_by_side ? 2 * i + 1 : n + i;
                    volatile float p = x[a] * cos[i], q = x[b] * sin[i];
                    volatile float r = x[a] * sin[i], s = x[b] * cos[i];
                    cr_assert_eq(y[a], p - q, "%s n %d i %d", kern->name, n, i);
                    cr_assert_eq(y[b], r + s, "%s n %d i %d", kern->name, n, i);
                }
            }
        }
    }
}

/* ---- the ops, on a team ---- */

struct team {
    pthread_barrier_t barrier;
    struct sheaf__cpu_sync sync;
    const struct sheaf_tensor *dst;
    void *work;
    int nth;
    bool reference;
};
struct member {
    struct team *team;
    int ith;
    enum sheaf_status status;
    char text[256];
};

static void team_barrier(void *team) {
    pthread_barrier_wait(&((struct team *)team)->barrier);
}

static void *run_member(void *arg) {
    struct member *m = arg;
    struct team *t = m->team;
    bool id = t->dst->op == SHEAF_OP_MUL_MAT_ID;
    if (t->reference)
        m->status = id ? sheaf__mul_mat_id_ref(t->dst, m->ith, t->nth, t->work)
                       : sheaf__mul_mat_ref(t->dst, m->ith, t->nth, t->work);
    else
        m->status = id ? sheaf__mul_mat_id(t->dst, m->ith, t->nth, t->work, &t->sync)
                       : sheaf__mul_mat(t->dst, m->ith, t->nth, t->work, &t->sync);
    snprintf(m->text, sizeof m->text, "%s", sheaf_last_error());
    return NULL;
}

/* Fails the test if the members disagree. The work buffer is exactly as long as asked for, so that
 * ASan sees a step beyond it. */
static enum sheaf_status compute(struct sheaf_tensor *dst, int nth, bool reference) {
    struct team team = {.dst = dst, .nth = nth, .reference = reference};
    struct member members[8];
    pthread_t threads[8];
    size_t size = sheaf__mul_mat_work_size(dst, nth);
    team.work = NULL;
    cr_assert_eq(posix_memalign(&team.work, 64, size ? size : 1), 0);
    memset(team.work, 0xff, size);
    memset(dst->data, 0xff, sheaf_nbytes(dst));
    pthread_barrier_init(&team.barrier, NULL, (unsigned)nth);
    team.sync.barrier = team_barrier;
    team.sync.team = &team;
    atomic_store(&team.sync.next, 12345);
    for (int i = 0; i < nth; i++) {
        members[i] = (struct member){.team = &team, .ith = i};
        if (i) cr_assert_eq(pthread_create(&threads[i], NULL, run_member, &members[i]), 0);
    }
    run_member(&members[0]); /* here: threads take much of the time under AddressSanitizer */
    for (int i = 1; i < nth; i++) pthread_join(threads[i], NULL);
    for (int i = 0; i < nth; i++) {
        cr_assert_eq(members[i].status, members[0].status);
        if (members[i].status != SHEAF_STATUS_SUCCESS) cr_assert(members[i].text[0]);
    }
    pthread_barrier_destroy(&team.barrier);
    free(team.work);
    return members[0].status;
}

/* NMSE that rounding activations may cost: to 8 bits a step is 1/127 of a block's largest, uniform
 * data have a mean square of 1/3, so 1/127^2/12 * 3 = 1.6e-5 on average; to 16 bits, which products
 * of weights of fewer than 8 bits do by panels, or by two digits, 2.3e-10, and up to four times that where steps are
 * powers of two (panels of AVX-512, of 32 columns). To BF16 a
 * step is 2^-7 of the power of two below, which is 2^-14/12 * 3/7 = 2.2e-6; the square of that,
 * 4.8e-12, to two of them. One result alone may be some deviations off, more so as the scales of random rows
 * differ, which makes few results count, and activations that few results share, more. (The kernels are held to 1e-13 above.) */
static double tolerance(const struct sheaf_tensor *dst) {
    const enum sheaf_type type = dst->src[0]->type;
    const struct sheaf__cpu_kernels *kern = sheaf__cpu_kernels();
    const int64_t n = sheaf_nelements(dst);
    const double spread = 1 + 50 / (double)n;
    const bool q8 = sheaf__rounding() == SHEAF__ROUND_Q8;
    const bool bf16 = type != SHEAF_TYPE_F32 && kern->panels[SHEAF__PANELS_BF16_BOTH].from_floats;
    if (q8 && sheaf_is_quantized(type) &&
        (kern->rows_dot_rounded[type] || kern->panels[SHEAF__PANELS_8].unpack[type]))
        return 2e-5 * spread;
    const int64_t columns = dst->op == SHEAF_OP_MUL_MAT_ID
                                ? dst->ne[1] * dst->ne[2] /* all to one expert */
                                : sheaf__mul_mat_columns(dst->src[0], dst->src[1]);
    const bool few_blocks = sheaf_is_quantized(type) && columns <= 8; /* BF16 is for more */
    if (sheaf__rounding() && !few_blocks && (bf16 || kern->panels[SHEAF__PANELS_BF16].unpack[type]))
        return (type == SHEAF_TYPE_BF16 ? 6e-6 : 1.2e-5) *
               spread; /* other weights are rounded, too */
    if (kern->panels[SHEAF__PANELS_16].unpack[type] && sheaf__mul_mat_by_panels(kern, dst, columns))
        return (kern->panels[SHEAF__PANELS_16].cols > 16 ? 1e-9 : 3e-10) * spread;
    if (kern->to_digits && sheaf__digits_used(kern->digits_order[type]) == 2) return 3e-10 * spread;
    if (kern->panels[SHEAF__PANELS_BF16_TWICE].unpack[type]) return 1.4e-11 * spread;
    return (bf16 ? 3e-11 : 1e-12) * spread; /* both are rounded twice */
}

/* Reference, then 1, 2 and 3 threads (under a sanitizer 1 and 3): close to the reference, equal to each other. */
static void check(struct sheaf_tensor *dst, const char *what) {
    size_t bytes = sheaf_nbytes(dst);
    int64_t n = sheaf_nelements(dst);
    cr_assert(sheaf_backend_op_is_valid(dst), "%s", what);
    float *want = malloc(bytes + 1), *first = malloc(bytes + 1);
    const float *got = dst->data;
    cr_assert_eq(compute(dst, 2, true), SHEAF_STATUS_SUCCESS);
    memcpy(want, dst->data, bytes);
    for (int nth = 1; nth <= 3; nth += SANITIZED ? 2 : 1) {
        cr_assert_eq(compute(dst, nth, false), SHEAF_STATUS_SUCCESS);
        if (nth == 1) memcpy(first, dst->data, bytes);
        cr_assert(memcmp(first, dst->data, bytes) == 0, "%s: %d threads, other bits", what, nth);
    }
    /* The mean square of a sum of k products of uniform numbers is k / 9; a small result whose
     * terms happen to cancel is not asked for more digits than its terms have. */
    double error = 0, power = 0;
    for (int64_t i = 0; i < n; i++) {
        error += pow((double)want[i] - (double)got[i], 2);
        power += pow((double)want[i], 2);
    }
    power = fmax(power, (double)n * (double)dst->src[0]->ne[0] / 9);
    cr_assert(n == 0 || error <= tolerance(dst) * power, "%s %s: NMSE %g of %d results, limit %g",
              what, sheaf_type_name(dst->src[0]->type), error / power, (int)n, tolerance(dst));
    free(want);
    free(first);
}

static bool has_grid(enum sheaf_type type) {
    const char *name = sheaf_type_name(type);
    return name[0] == 'i' && name[1] == 'q' && name[2] < '4';
}

/* Blocks of uniform numbers: a few are quantized, and taken again and again, since some types
 * search for the nearest point of a grid. */
static void uniform_blocks(enum sheaf_type type, char *dst, int64_t n) {
    enum { POOL = 24 };
    static char pool[POOL * 256];
    static float x[POOL * 256];
    static enum sheaf_type in_pool = SHEAF_TYPE_COUNT;
    const int64_t blck = sheaf_blck_size(type);
    const size_t size = sheaf_type_size(type);
    if (in_pool != type) {
        fill(x, POOL * blck);
        cr_assert_eq(sheaf_from_float(type, x, pool, POOL * blck), SHEAF_STATUS_SUCCESS);
        in_pool = type;
    }
    for (int64_t b = 0; b < n / blck; b++, dst += size)
        memcpy(dst, pool + random_u32() % POOL * size, size);
}

/* Whether new_random only draws its numbers, for a tensor that is not read. */
static bool draws_only;
static struct sheaf_tensor *new_random(struct sheaf_context *ctx, enum sheaf_type type, int64_t ne0,
                                       int64_t ne1, int64_t ne2, int64_t ne3) {
    struct sheaf_tensor *t = sheaf_new_tensor_4d(ctx, type, ne0, ne1, ne2, ne3);
    int64_t n = sheaf_nelements(t);
    if (has_grid(type)) {
        uniform_blocks(type, t->data, n);
        return t;
    }
    float *x = malloc((size_t)(n ? n : 1) * sizeof *x);
    fill(x, n);
    if (n && !draws_only) cr_assert_eq(sheaf_from_float(type, x, t->data, n), SHEAF_STATUS_SUCCESS);
    free(x);
    return t;
}

/* One at a time, in memory that stays: under a sanitizer fresh pages for each product took as long as
 * the product. */
static struct sheaf_context *new_context(void) {
    static _Alignas(64) unsigned char room[6u << 20];
    struct sheaf_context *ctx =
        sheaf_init((struct sheaf_init_params){.mem_size = sizeof room, .mem_buffer = room});
    cr_assert(ctx);
    return ctx;
}

static const struct sheaf__cpu_kernels *table_named(const char *name) {
    const struct sheaf__cpu_kernels *kern;
    for (int i = 0; (kern = sheaf__cpu_kernels_at(i)); i++) {
        if (strcmp(kern->name, name) == 0) break;
    }
    return kern;
}

/* Skips this test if the machine lacks the table. */
static const struct sheaf__cpu_kernels *need_table(const char *name) {
    const struct sheaf__cpu_kernels *kern = table_named(name);
    if (!kern) cr_skip("this CPU or build lacks the %s kernels", name);
    return kern;
}

/* Limits this process (each test is one) to an instruction set. Where the machine lacks it, checks
 * that it is refused, and skips the test. */
static void need_isa(const char *name) {
    const bool there = table_named(name) != NULL;
    setenv("SHEAF_CPU_ISA", name, 1);
    if (!there) {
        cr_assert_str_neq(name, "portable");
        cr_assert_null(sheaf__cpu_kernels());
        cr_assert(strstr(sheaf_last_error(), "SHEAF_CPU_ISA"));
    }
    need_table(name);
    cr_assert_str_eq(sheaf_cpu_isa_name(), name);
}

/* Weights with every exponent, by one column, by three, and by three that are rounded. */
Test(mul_mat, rows_with_vbmi_have_the_same_bits) {
    enum { K = 768, ROWS = 64, COLS = 3 };
    static const enum sheaf_type of_levels[] = {SHEAF_TYPE_MXFP4, SHEAF_TYPE_IQ4_NL,
                                                SHEAF_TYPE_IQ4_XS};
    static char w[ROWS * K];
    static float x[K], out[2][2 * COLS + 1][ROWS];
    static _Alignas(64) char digits[K * 5], words[COLS][K * 5], bytes[COLS][K * 5];
    const struct sheaf__cpu_kernels *with = need_table("avx512vbmi");
    const struct sheaf__cpu_kernels *kern[2] = {need_table("avx512"), with};
    for (int t = 0; t < 3; t++) {
        const enum sheaf_type type = of_levels[t];
        cr_assert_neq(kern[0]->rows_dot_digits[type], with->rows_dot_digits[type]);
        for (int64_t k = sheaf_blck_size(type); k <= K; k += sheaf_blck_size(type)) {
            const size_t row = sheaf_row_size(type, k);
            for (size_t r = 0; r < ROWS; r++) random_row(type, w + r * row, k);
            for (int r = 0; r < 256; r++) { /* each exponent of MXFP4, at each place */
                if (type == SHEAF_TYPE_MXFP4) w[(size_t)r * 17 % (ROWS * row)] = (char)r;
            }
            const void *one = digits, *cols[COLS] = {words[0], words[1], words[2]};
            const void *rounded[COLS] = {bytes[0], bytes[1], bytes[2]};
            for (int c = 0; c < COLS; c++) {
                fill(x, k);
                with->to_words(x, (void *)words[c], k, sheaf__digits_at_end(k),
                               with->few_order[type]);
                with->to_bytes(x, (void *)bytes[c], k, sheaf__digits_at_end(k),
                               sheaf__bytes_order(with->digits_order[type]));
            }
            with->to_digits(x, (void *)digits, k, sheaf__digits_at_end(k),
                            with->digits_order[type]);
            for (int i = 0; i < 2; i++) {
                float *to[2 * COLS + 1];
                for (int j = 0; j < 2 * COLS + 1; j++) to[j] = out[i][j];
                kern[i]->rows_dot_few[type](k, w, row, ROWS, cols, COLS, to);
                kern[i]->rows_dot_rounded[type](k, w, row, ROWS, rounded, COLS, to + COLS);
                kern[i]->rows_dot_digits[type](k, w, row, ROWS, &one, 1, to + 2 * COLS);
            }
            for (int j = 0; j < (2 * COLS + 1) * ROWS; j++) {
                const float a = out[0][j / ROWS][j % ROWS], b = out[1][j / ROWS][j % ROWS];
                cr_assert(memcmp(&a, &b, sizeof a) == 0 || (isnan(a) && isnan(b)),
                          "%s, k %d: %d is %a, not %a", sheaf_type_name(type), (int)k, j, (double)b,
                          (double)a);
            }
        }
    }
}

/* The same integers in fewer instructions; IQ4, and rounded Q8_0, are multiplied in another form. */
static int check_vnni_256(enum way way) {
    enum { K = 768, ROWS = 5, COLS = 4 };
    static char w[ROWS * K * 2];
    static _Alignas(64) char act[COLS][K * 5];
    static float x[K], out[2][COLS][ROWS];
    const struct sheaf__cpu_kernels *tables[2] = {need_table("avx2"), need_table("avxvnni")};
    int compared = 0;
    for (int t = 0; t < N_FLOAT_TYPES; t++) {
        const enum sheaf_type type = float_types[t];
        const enum sheaf__digits_order order = tables[1]->digits_order[type];
        const size_t row = sheaf_row_size(type, K);
        const void *cols[COLS];
        if (!dot_of(tables[1], way, type) || order != tables[0]->digits_order[type]) continue;
        if (way == BY_ROUNDED && type == SHEAF_TYPE_Q8_0) continue;
        for (size_t r = 0; r < ROWS; r++) random_row(type, w + r * row, K);
        for (int c = 0; c < COLS; c++) {
            fill(x, K);
            if (way == BY_ROUNDED)
                tables[1]->to_bytes(x, (void *)act[c], K, sheaf__digits_at_end(K),
                                    sheaf__bytes_order(order));
            else
                tables[1]->to_digits(x, (void *)act[c], K, sheaf__digits_at_end(K), order);
            cols[c] = act[c];
        }
        for (int nc = 1; nc <= COLS; nc++, compared++) {
            for (int i = 0; i < 2; i++) {
                float *to[COLS];
                for (int c = 0; c < COLS; c++) to[c] = out[i][c];
                dot_of(tables[i], way, type)(K, w, row, ROWS, cols, nc, to);
            }
            cr_assert_arr_eq(out[0], out[1], (size_t)nc * sizeof out[0][0], "%s, %d columns",
                             sheaf_type_name(type), nc);
        }
    }
    return compared;
}
Test(mul_mat, rows_with_vnni_of_32_bytes_have_the_same_bits) {
    cr_assert_geq(check_vnni_256(BY_DIGITS), 4 * 20);
    cr_assert_geq(check_vnni_256(BY_ROUNDED), 4 * 8);
}

/* A rounded activation that is not finite is not lost, and stays in its column. */
Test(mul_mat, rounded_columns_that_are_not_finite) {
    enum { K = 512, ROWS = 5, COLS = 5, SPECIAL = 2 /* and the next */ };
    static char w[ROWS * K * 2];
    static _Alignas(64) char act[COLS][K * 5];
    static float x[K], out[COLS][ROWS];
    int compared = 0;
    FOR_EACH_TABLE(kern) {
        for (int t = 0; t < N_FLOAT_TYPES; t++) {
            const enum sheaf_type type = float_types[t];
            const void *cols[COLS];
            float *to[COLS];
            const int most = sheaf_is_quantized(type) ? kern->tile_cols : kern->bf16_cols;
            const int nc = most < COLS ? most : COLS;
            if (!kern->rows_dot_rounded[type]) continue;
            cr_assert_gt(nc, SPECIAL + 1);
            for (int r = 0; r < ROWS; r++)
                random_row(type, w + (size_t)r * sheaf_row_size(type, K), K);
            for (int c = 0; c < nc; c++) {
                fill(x, K);
                if (c == SPECIAL) x[40] = x[41] = x[50] = x[300] = INFINITY;
                if (c == SPECIAL + 1) x[77] = NAN;
                if (sheaf_is_quantized(type))
                    kern->to_bytes(x, (void *)act[c], K, sheaf__digits_at_end(K),
                                   sheaf__bytes_order(kern->digits_order[type]));
                else
                    kern->from_float[SHEAF_TYPE_BF16](x, act[c], K);
                cols[c] = act[c];
                to[c] = out[c];
            }
            kern->rows_dot_rounded[type](K, w, sheaf_row_size(type, K), ROWS, cols, nc, to);
            for (int i = 0; i < nc * ROWS; i++)
                cr_assert_eq(i / ROWS != SPECIAL && i / ROWS != SPECIAL + 1,
                             isfinite(out[i / ROWS][i % ROWS]) != 0, "%s %s %d", kern->name,
                             sheaf_type_name(type), i);
            compared++;
        }
    }
    if (!compared) cr_skip("no table that runs here has products of rounded columns");
}

/* Nothing over the largest element of such a block is finite. */
Test(mul_mat, columns_of_tiny_elements) {
    enum { K = 512 };
    static char w[K * 2];
    static _Alignas(64) char digits[K * 5], bytes[K * 5];
    static float x[K];
    int compared = 0;
    for (int i = 0; i < K; i++) x[i] = i % 2 ? -0x1p-140f : 0x1p-140f;
    FOR_EACH_TABLE(kern) {
        for (int t = 0; t < N_FLOAT_TYPES && kern->to_digits; t++) {
            const enum sheaf_type type = float_types[t];
            const enum sheaf__digits_order order = kern->digits_order[type];
            const void *column[2] = {digits, bytes};
            float out[2] = {1, 0}, *to[2] = {&out[0], &out[1]};
            if (!kern->rows_dot_digits[type]) continue;
            random_row(type, w, K);
            kern->to_digits(x, (void *)digits, K, true, order);
            kern->rows_dot_digits[type](K, w, 0, 1, &column[0], 1, &to[0]);
            if (kern->rows_dot_rounded[type]) {
                kern->to_bytes(x, (void *)bytes, K, true, sheaf__bytes_order(order));
                kern->rows_dot_rounded[type](K, w, 0, 1, &column[1], 1, &to[1]);
            }
            for (int i = 0; i < 2; i++)
                cr_assert_lt(fabsf(out[i]), 0x1p-100f, "%s %s %d: %g", kern->name,
                             sheaf_type_name(type), i, (double)out[i]);
            compared++;
        }
    }
    if (!compared) cr_skip("no table that runs here has products by digits");
}

/* Types of weights that the ops are checked with: one, or with COUNT all. */
static enum sheaf_type only = SHEAF_TYPE_COUNT;
static bool few; /* one type of each kind of block */
static bool skipped(enum sheaf_type type) {
    if (few)
        return type != SHEAF_TYPE_Q4_0 && type != SHEAF_TYPE_Q4_K && type != SHEAF_TYPE_IQ4_XS &&
               type != SHEAF_TYPE_F16;
    return only != SHEAF_TYPE_COUNT && type != only;
}

static void check_mul_mat(void) {
    static const int64_t ms[] = {1, 3, 17, 130}, ns[] = {1, 2, 3, 4, 5, 8, 9};
    for (int t = 0; t < N_FLOAT_TYPES; t++) {
        enum sheaf_type type = float_types[t];
        if (skipped(type)) continue;
        int64_t blck = sheaf_blck_size(type);
        const int64_t ks[] = {blck, 3 * blck, blck == 1 ? 100 : 6 * blck};
        for (int ki = 0; ki < 3; ki++) {
            for (int mi = 0; mi < 4; mi++) {
                for (int ni = 0; ni < 7; ni++) {
                    struct sheaf_context *ctx = new_context();
                    draws_only = SANITIZED && (ki + mi + ni) % 3; /* each size still occurs */
                    struct sheaf_tensor *a = new_random(ctx, type, ks[ki], ms[mi], 1, 1);
                    struct sheaf_tensor *b = new_random(ctx, SHEAF_TYPE_F32, ks[ki], ns[ni], 1, 1);
                    if (!draws_only) check(sheaf_mul_mat(ctx, a, b), "plain");
                    draws_only = false;
                    sheaf_free(ctx);
                }
            }
        }
        struct sheaf_context *ctx = new_context();
        int64_t k = 2 * (blck == 1 ? 33 : blck);
        /* broadcast over dimensions 2 and 3 */
        struct sheaf_tensor *a = new_random(ctx, type, k, 19, 2, 3);
        struct sheaf_tensor *b = new_random(ctx, SHEAF_TYPE_F32, k, 3, 6, 6);
        check(sheaf_mul_mat(ctx, a, b), "broadcast");
        check(sheaf_mul_mat(ctx, a, new_random(ctx, SHEAF_TYPE_F32, k, 1, 2, 3)), "a column each");
        /* rows of a permuted: [k, g, m] seen as [k, m, g], as a K cache is */
        a = sheaf_permute(ctx, new_random(ctx, type, k, 2, 19, 1), 0, 2, 1, 3);
        check(sheaf_mul_mat(
                  ctx, a,
                  sheaf_permute(ctx, new_random(ctx, SHEAF_TYPE_F32, k, 6, 3, 1), 0, 2, 1, 3)),
              "permuted");
        /* some rows of a, some columns of b */
        a = new_random(ctx, type, k, 40, 1, 1);
        b = new_random(ctx, SHEAF_TYPE_F32, k, 8, 1, 1);
        check(sheaf_mul_mat(ctx, sheaf_view_2d(ctx, a, k, 9, 3 * a->nb[1], a->nb[1]),
                            sheaf_view_2d(ctx, b, k, 4, 2 * b->nb[1], b->nb[1])),
              "views");
        /* b transposed: its rows are not dense */
        b = sheaf_transpose(ctx, new_random(ctx, SHEAF_TYPE_F32, 7, k, 1, 1));
        check(sheaf_mul_mat(ctx, a, b), "transposed");
        if (type == SHEAF_TYPE_F16) {
            check(sheaf_mul_mat(ctx, a, new_random(ctx, SHEAF_TYPE_F16, k, 7, 1, 1)), "f16 by f16");
            b = sheaf_transpose(ctx, new_random(ctx, SHEAF_TYPE_F16, 7, k, 1, 1));
            check(sheaf_mul_mat(ctx, a, b), "f16 transposed");
        }
        /* more columns than a panel has, more elements than a pass */
        const int64_t more = blck == 1 ? 301 : blck < 256 ? 9 * blck : 3 * 256;
        check(sheaf_mul_mat(ctx, new_random(ctx, type, more, 50, 1, 1),
                            new_random(ctx, SHEAF_TYPE_F32, more, 70, 1, 1)),
              "many columns");
        check(sheaf_mul_mat(ctx, new_random(ctx, type, more, 37, 1, 1),
                            new_random(ctx, SHEAF_TYPE_F32, more, 27, 1, 1)),
              "two panels");
        /* columns so long that they are multiplied in parts, rows in more than one group */
        struct sheaf_tensor *l = new_random(ctx, type, 8192 + 3 * 256, 37, 1, 1);
        const bool plain = !sheaf_is_quantized(type);
        const int64_t most = plain && sheaf__cpu_kernels()->rows_dot_rounded[type] ? 13 : 5;
        for (int64_t n = 3; n <= most; n += 2) /* 3 of plain weights are not rounded, more may be */
            check(sheaf_mul_mat(ctx, l, new_random(ctx, SHEAF_TYPE_F32, l->ne[0], n, 1, 1)),
                  "long");
        /* the last part would be one block */
        l = new_random(ctx, type, 65536 + (blck < 32 ? 32 : blck), 3, 1, 1);
        for (int64_t n = 1; n <= 2; n++)
            check(sheaf_mul_mat(ctx, l, new_random(ctx, SHEAF_TYPE_F32, l->ne[0], n, 1, 1)),
                  "very long");
        /* rows enough for several rounds of chunks */
        check(sheaf_mul_mat(ctx, new_random(ctx, type, k, 400, 1, 1),
                            new_random(ctx, SHEAF_TYPE_F32, k, 1, 1, 1)),
              "many rows");
        /* nothing to do, or nothing to add up */
        b = new_random(ctx, SHEAF_TYPE_F32, k, 4, 1, 1);
        check(sheaf_mul_mat(ctx, new_random(ctx, type, k, 0, 1, 1), b), "no rows");
        check(sheaf_mul_mat(ctx, a, new_random(ctx, SHEAF_TYPE_F32, k, 0, 1, 1)), "no columns");
        a = new_random(ctx, type, 0, 5, 1, 1);
        struct sheaf_tensor *zero =
            sheaf_mul_mat(ctx, a, new_random(ctx, SHEAF_TYPE_F32, 0, 3, 1, 1));
        check(zero, "k = 0");
        for (int i = 0; i < 15; i++) cr_assert_eq(((float *)zero->data)[i], 0.0f);
        sheaf_free(ctx);
    }
}

/* Columns (heads) [first, first + n) of dimension `axis` of b alone, as a member that has some of them computes them:
 * the bits of the whole. */
static void check_slice(struct sheaf_context *ctx, const struct sheaf_tensor *whole, int axis,
                        int64_t first, int64_t n) {
    struct sheaf_tensor *a = whole->src[0], *b = whole->src[1];
    const int64_t n1 = axis == 1 ? n : b->ne[1], n2 = axis == 2 ? n : b->ne[2];
    struct sheaf_tensor *dst = sheaf_mul_mat(
        ctx, a,
        sheaf_view_3d(ctx, b, b->ne[0], n1, n2, b->nb[1], b->nb[2], (size_t)first * b->nb[axis]));
    dst->op_params[SHEAF_OP_PARAM_NE1] = (int32_t)b->ne[1];
    dst->op_params[SHEAF_OP_PARAM_COLUMNS] = (int32_t)(b->ne[1] * b->ne[2]);
    cr_assert_eq(compute(dst, 1 + (int)(n % 3), false), SHEAF_STATUS_SUCCESS);
    for (int64_t i2 = 0; i2 < n2; i2++) {
        const char *want =
            (const char *)whole->data + (size_t)i2 * whole->nb[2] + (size_t)first * whole->nb[axis];
        cr_assert_arr_eq((const char *)dst->data + (size_t)i2 * dst->nb[2], want,
                         (size_t)n1 * dst->nb[1], "%s, %d columns of %d in dimension %d",
                         sheaf_type_name(a->type), (int)n, (int)b->ne[axis], axis);
    }
}

static void check_slices_of_columns(void) {
    static const int64_t ns[] = {2, 4, 7, 12, 23, 40, 70};
    for (int t = 0; t < N_FLOAT_TYPES; t++) {
        if (skipped(float_types[t])) continue;
        const int64_t blck = sheaf_blck_size(float_types[t]), k = blck == 1 ? 301 : 6 * blck;
        for (int i = 0; i < 7; i++) {
            for (int axis = 1; axis <= 2; axis++) {
                struct sheaf_context *ctx = new_context();
                struct sheaf_tensor *whole =
                    sheaf_mul_mat(ctx, new_random(ctx, float_types[t], k, 50, 1, 1),
                                  new_random(ctx, SHEAF_TYPE_F32, k, axis == 1 ? ns[i] : 2,
                                             axis == 1 ? 1 : ns[i], 1));
                cr_assert_eq(compute(whole, 2, false), SHEAF_STATUS_SUCCESS);
                check_slice(ctx, whole, axis, 0, 1);
                check_slice(ctx, whole, axis, ns[i] / 3, ns[i] - ns[i] / 3);
                sheaf_free(ctx);
            }
        }
    }
}

static struct sheaf_tensor *new_ids(struct sheaf_context *ctx, int64_t u, int64_t n, int mod) {
    /* the first u of rows of 6, as top-k leaves them */
    struct sheaf_tensor *all = sheaf_new_tensor_2d(ctx, SHEAF_TYPE_I32, 6, n);
    for (int64_t i = 0; i < 6 * n; i++)
        ((int32_t *)all->data)[i] = (int32_t)(random_u32() >> 8) % mod;
    return sheaf_view_2d(ctx, all, u, n, all->nb[1], 0);
}

static void check_mul_mat_id(void) {
    for (int t = 0; t < N_FLOAT_TYPES; t++) {
        if (skipped(float_types[t])) continue;
        int64_t k =
            2 * (sheaf_blck_size(float_types[t]) == 1 ? 33 : sheaf_blck_size(float_types[t]));
        for (int64_t n = 1; n <= 67; n += n < 23 ? 11 : 44) { /* the last: 40 pairs an expert */
            for (int64_t shared = 0; shared < 2; shared++) {
                struct sheaf_context *ctx = new_context();
                struct sheaf_tensor *a = new_random(ctx, float_types[t], k, 21, 5, 1);
                struct sheaf_tensor *b = new_random(ctx, SHEAF_TYPE_F32, k, shared ? 1 : 3, n, 1);
                struct sheaf_tensor *ids = new_ids(ctx, 3, n, 5);
                struct sheaf_tensor *dst = sheaf_mul_mat_id(ctx, a, b, ids);
                check(dst, "experts");
                /* the same by slices of 2 and 3 experts: their sum is the whole, bit by bit */
                struct sheaf_tensor *lo = sheaf_view_3d(ctx, a, k, 21, 2, a->nb[1], a->nb[2], 0);
                struct sheaf_tensor *hi =
                    sheaf_view_3d(ctx, a, k, 21, 3, a->nb[1], a->nb[2], 2 * a->nb[2]);
                struct sheaf_tensor *d_lo = sheaf_mul_mat_id(ctx, lo, b, ids);
                struct sheaf_tensor *d_hi = sheaf_mul_mat_id(ctx, hi, b, ids);
                d_lo->op_params[SHEAF_OP_PARAM_EXTENT] = d_hi->op_params[SHEAF_OP_PARAM_EXTENT] = 5;
                d_hi->op_params[SHEAF_OP_PARAM_BASE] = 2;
                check(d_lo, "experts 0 and 1");
                check(d_hi, "experts 2 to 4");
                const float *x = d_lo->data, *y = d_hi->data, *z = dst->data;
                for (int64_t i = 0; i < sheaf_nelements(dst); i++) {
                    cr_assert_eq(x[i] + y[i], z[i]);
                    cr_assert(x[i] == 0 || y[i] == 0);
                }
                sheaf_free(ctx);
            }
        }
    }
    static const int32_t bad[] = {5, -1, INT32_MAX, INT32_MIN};
    struct sheaf_context *ctx = new_context();
    struct sheaf_tensor *a = new_random(ctx, SHEAF_TYPE_Q4_0, 64, 3, 5, 1);
    struct sheaf_tensor *b = new_random(ctx, SHEAF_TYPE_F32, 64, 1, 4, 1);
    struct sheaf_tensor *ids = new_ids(ctx, 2, 4, 5);
    struct sheaf_tensor *dst = sheaf_mul_mat_id(ctx, a, b, ids);
    for (int i = 0; i < 4; i++) {
        ((int32_t *)ids->data)[7] = bad[i];
        for (int nth = 1; nth <= 3; nth++) {
            cr_assert_eq(compute(dst, nth, false), SHEAF_STATUS_INVALID);
            cr_assert_eq(compute(dst, nth, true), SHEAF_STATUS_INVALID);
        }
    }
    sheaf_free(ctx);
}

static void check_ops(const char *isa, const char *activations) {
    if (activations) setenv("SHEAF_CPU_ACTIVATIONS", activations, 1);
    need_isa(isa);
    const bool rounded = activations && strcmp(activations, "q8") == 0;
    few = few || (SANITIZED && rounded); /* weights are read as with activations that are not */
    cr_assert_eq(sheaf__rounding() == SHEAF__ROUND_Q8, rounded);
    check_mul_mat();
    check_slices_of_columns();
    check_mul_mat_id();
}

Test(mul_mat, ops_portable) { check_ops("portable", NULL); }
Test(mul_mat, ops_portable_q8) { check_ops("portable", "q8"); }
Test(mul_mat, ops_avx2) { check_ops("avx2", "f32"); }
Test(mul_mat, ops_avx2_q8) { check_ops("avx2", "q8"); }
Test(mul_mat, ops_avxvnni) { check_ops("avxvnni", NULL); }
Test(mul_mat, ops_avxvnni_q8) { check_ops("avxvnni", "q8"); }
Test(mul_mat, ops_avx512) { check_ops("avx512", ""); }
Test(mul_mat, ops_avx512_q8) { check_ops("avx512", "q8"); }
Test(mul_mat, ops_avx512vbmi) {
    only = SHEAF_TYPE_MXFP4;
    check_ops("avx512vbmi", NULL);
}

static void check_bf16(enum sheaf_type weights, const char *isa, const char *activations) {
    only = weights;
    check_ops(isa, activations);
}
/* has no such products: as floats */
Test(mul_mat, ops_avx2_bf16) { check_bf16(SHEAF_TYPE_BF16, "avx2", "bf16"); }
Test(mul_mat, ops_avx512bf16) { check_bf16(SHEAF_TYPE_BF16, "avx512bf16", NULL); }
Test(mul_mat, ops_avx512bf16_bf16) { check_bf16(SHEAF_TYPE_BF16, "avx512bf16", "bf16"); }
Test(mul_mat, ops_avx512bf16_bf16_halves) { check_bf16(SHEAF_TYPE_F16, "avx512bf16", "bf16"); }

/* ---- vectors of 16 bytes; products of bytes on tests/emulators/dotprod where there are none ---- */

static void emulate_dotprod(void) {
#if !defined(__aarch64__)
    setenv("SHEAF_BACKEND_PATH", SHEAF_BUILD_DIR "/lib/modules/dotprod-emu", 1);
#endif
}
#if defined(__aarch64__)
Test(mul_mat, ops_neon) { check_ops("neon", NULL); }
Test(mul_mat, ops_neon_q8) { check_ops("neon", "q8"); }
#else
Test(mul_mat, ops_sse41) { check_ops("sse41", NULL); }
Test(mul_mat, ops_sse41_q8) {
    few = true;
    check_ops("sse41", "q8");
}
#endif
Test(mul_mat, ops_dotprod) {
    few = SANITIZED;
    emulate_dotprod();
    check_ops("dotprod", NULL);
}
Test(mul_mat, ops_dotprod_q8) {
    few = true;
    emulate_dotprod();
    check_ops("dotprod", "q8");
}

/* ---- AMX, on tests/emulators/amx where there is none ---- */

static void emulate_amx(void) {
    setenv("SHEAF_BACKEND_PATH", SHEAF_BUILD_DIR "/lib/modules/amx-emu", 1);
}
Test(mul_mat, ops_amx) {
    few = SANITIZED; /* the emulation is under the sanitizer, too */
    emulate_amx();
    check_ops("amx", NULL);
}
Test(mul_mat, ops_amx_q8) {
    few = true;
    emulate_amx();
    check_ops("amx", "q8");
}
Test(mul_mat, ops_amx_bf16) {
    emulate_amx();
    check_bf16(SHEAF_TYPE_BF16, "amx", "bf16");
}
Test(mul_mat, ops_amx_bf16_halves) {
    emulate_amx();
    check_bf16(SHEAF_TYPE_F16, "amx", "bf16");
}
Test(mul_mat, ops_amx_bf16_blocks) {
    emulate_amx();
    check_bf16(SHEAF_TYPE_Q8_0, "amx", "bf16");
}

/* A product by the panels of one table, on this thread. */
static void by_panels(const struct sheaf__cpu_kernels *kern, struct sheaf_tensor *dst) {
    struct sheaf__cpu_sync sync = {0};
    void *work = NULL;
    cr_assert_eq(posix_memalign(&work, 64, sheaf__mul_mat_panels_size(kern, dst, 1)), 0);
    memset(dst->data, 0xff, sheaf_nbytes(dst));
    cr_assert_eq(sheaf__mul_mat_panels(kern, dst, 0, 1, work, &sync), SHEAF_STATUS_SUCCESS);
    free(work);
}

/* Products of integers that fit the terms are exact: weights of two BF16 by activations of one, and
 * of one by two. */
Test(mul_mat, both_terms_of_amx_are_used) {
    static const int top[][2] = {{2047, 128}, {32, 8191}}; /* of a weight, of an activation */
    static const int64_t ms[] = {1, 16, 33, 70}, ns[] = {8, 16, 33, 70};
    emulate_amx();
    const struct sheaf__cpu_kernels *amx = need_table("amx");
    for (int i = 0; i < 8; i++) {
        const int64_t k = 40, m = ms[i / 2], n = ns[i / 2];
        struct sheaf_context *ctx = new_context();
        struct sheaf_tensor *a = sheaf_new_tensor_2d(ctx, SHEAF_TYPE_F16, k, m);
        struct sheaf_tensor *b = sheaf_new_tensor_2d(ctx, SHEAF_TYPE_F32, k, n);
        uint16_t *w = a->data;
        float *x = b->data;
        for (int64_t j = 0; j < k * m; j++)
            w[j] = sheaf_fp32_to_fp16((float)(j * 7919 % (2 * top[i % 2][0] + 1) - top[i % 2][0]));
        for (int64_t j = 0; j < k * n; j++)
            x[j] = (float)(j * 104729 % (2 * top[i % 2][1] + 1) - top[i % 2][1]);
        struct sheaf_tensor *dst = sheaf_mul_mat(ctx, a, b);
        by_panels(amx, dst);
        for (int64_t r = 0; r < m * n; r++) {
            double want = 0;
            for (int64_t j = 0; j < k; j++)
                want += (double)sheaf_fp16_to_fp32(w[r % m * k + j]) * (double)x[r / m * k + j];
            cr_assert_eq((double)((float *)dst->data)[r], want, "case %d: %.1f, not %.1f", i,
                         (double)((float *)dst->data)[r], want);
        }
        sheaf_free(ctx);
    }
}

/* The shapes of tiles are the thread's: ggml's CPU backend, whose graphs run on the same thread as sheaf's in a
 * program of llama.cpp, sets its own once and relies on them. */
Test(mul_mat, shapes_of_tiles_are_given_back) {
    static const struct {
        enum sheaf_type type;
        int64_t n;
    } cases[] = {
        {SHEAF_TYPE_F16, 33}, {SHEAF_TYPE_Q8_0, 33}, {SHEAF_TYPE_Q8_0, 9}, {SHEAF_TYPE_Q4_0, 16}};
    const uint8_t theirs[64] = {1, [16] = 64, [18] = 32, [48] = 8, [49] = 16};
    const uint8_t none[64] = {0};
    uint8_t now[64];
    emulate_amx();
    const struct sheaf__cpu_kernels *amx = need_table("amx");
    void *module = dlopen(SHEAF_BUILD_DIR "/lib/modules/amx-emu/libsheaf-cpu-amx.so", RTLD_NOW);
    cr_assert_not_null(module, "%s", dlerror());
    void (*load)(const void *), (*store)(void *);
    *(void **)&load = dlsym(module, "amx_emu_load");
    *(void **)&store = dlsym(module, "amx_emu_store");
    cr_assert(load && store);
    for (int loaded = 0; loaded < 2; loaded++) {
        if (loaded) load(theirs);
        for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
            struct sheaf_context *ctx = new_context();
            struct sheaf_tensor *a = sheaf_new_tensor_2d(ctx, cases[i].type, 256, 32);
            struct sheaf_tensor *b = sheaf_new_tensor_2d(ctx, SHEAF_TYPE_F32, 256, cases[i].n);
            memset(a->data, 0, sheaf_nbytes(a));
            memset(b->data, 0, sheaf_nbytes(b));
            by_panels(amx, sheaf_mul_mat(ctx, a, b));
            store(now);
            cr_assert(!memcmp(now, loaded ? theirs : none, sizeof now), "case %zu: other shapes",
                      i);
            sheaf_free(ctx);
        }
    }
    dlclose(module);
}

enum { LONGEST = 768 };
/* m rows of k weights, with codes that no quantizer makes, by n columns. */
static struct sheaf_tensor *product_of(struct sheaf_context *ctx, enum sheaf_type type, int64_t k,
                                       int64_t m, int64_t n) {
    struct sheaf_tensor *a = sheaf_new_tensor_2d(ctx, type, k, m);
    struct sheaf_tensor *b = new_random(ctx, SHEAF_TYPE_F32, k, n, 1, 1);
    for (int64_t r = 0; r < m; r++) random_row(type, (char *)a->data + (size_t)r * a->nb[1], k);
    return sheaf_mul_mat(ctx, a, b);
}
/* The same of several passes, the last one not whole where blocks allow it. */
static struct sheaf_tensor *random_product(struct sheaf_context *ctx, enum sheaf_type type,
                                           int64_t m, int64_t n) {
    const int64_t blck = sheaf_blck_size(type);
    return product_of(ctx, type, blck < 256 ? 512 + blck : LONGEST, m, n);
}

/* Rounding is all that panels of 8 bits lose: products of rounded activations, whose bits are
 * computed here, are sums of exact terms. Weights have codes that no quantizer makes. */
Test(mul_mat, panels_of_8_bits_against_exact_sums) {
    enum { M = 77, MOST = 37 };
    static float row[LONGEST], meant[MOST][LONGEST];
    int compared = 0, tables = 0;
    setenv("SHEAF_CPU_ACTIVATIONS", "q8", 1);
    FOR_EACH_TABLE(kern) {
        const struct sheaf__cpu_panels *p = &kern->panels[SHEAF__PANELS_8];
        const int n = p->most ? p->most : MOST;
        tables += p->rows > 0 && !p->whole_rows; /* with AMX: Q8_0 alone */
        for (int t = 0; t < N_FLOAT_TYPES && p->rows > 0; t++) {
            const enum sheaf_type type = float_types[t];
            if (!p->unpack[type]) continue;
            struct sheaf_context *ctx = new_context();
            struct sheaf_tensor *dst = random_product(ctx, type, M, n), *a = dst->src[0];
            const int64_t k = a->ne[0];
            float *x = dst->src[1]->data;
            for (int i = 0; i < 32; i++) x[i] = 0, x[32 + i] *= 1e-37f; /* too small: zeros */
            for (int64_t i = 0; i < n * k; i += 32) {
                float max = 0;
                for (int j = 0; j < 32; j++) max = fmaxf(max, fabsf(x[i + j]));
                for (int j = 0; j < 32; j++) {
                    const float q = rintf(x[i + j] * (127.0f / max));
                    meant[i / k][i % k + j] = max < 0x1p-116f ? 0 : max / 127.0f * q;
                }
            }
            by_panels(kern, dst);
            double error = 0, power = 0;
            for (int r = 0; r < M; r++) {
                sheaf_to_float(type, (char *)a->data + (size_t)r * a->nb[1], row, k);
                for (int c = 0; c < n; c++) {
                    double want = 0, scale = 0;
                    for (int64_t i = 0; i < k; i++) {
                        want += (double)row[i] * (double)meant[c][i];
                        scale += fabs((double)row[i] * (double)meant[c][i]);
                    }
                    error += pow((double)((float *)dst->data)[c * M + r] - want, 2);
                    power += scale * scale;
                }
            }
            cr_assert(error <= 1e-13 * power, "%s %s: error %g of %g", kern->name,
                      sheaf_type_name(type), error, power);
            x[5 * k + 40] = NAN; /* is not lost, and stays in its column */
            by_panels(kern, dst);
            for (int i = 0; i < M * n; i++)
                cr_assert_eq(i / M != 5, isfinite(((float *)dst->data)[i]) != 0, "%s %s %d",
                             kern->name, sheaf_type_name(type), i);
            sheaf_free(ctx);
            compared += !p->whole_rows;
        }
    }
    if (!tables) cr_skip("no table that runs here has panels of 8 bits");
    cr_assert_geq(compared, 7 * tables);
}

/* Activations of 16 bits and of 24, whatever the exponents of a column's blocks are: no result is farther off than
 * a step of its blocks' integers, half of twice 1 / top of the largest of 32, zeros give 0, and what is not
 * finite stays in its column. */
static void check_exponents(const struct sheaf__cpu_kernels *kern, enum sheaf_type type, int64_t m,
                            int64_t n, double top) {
    enum { ZEROS = 1, NOT_FINITE = 2 /* and the next */ };
    static float row[LONGEST];
    struct sheaf_context *ctx = new_context();
    struct sheaf_tensor *dst = random_product(ctx, type, m, n), *a = dst->src[0];
    const int64_t k = a->ne[0];
    float *x = dst->src[1]->data;
    for (int64_t i = 0; i < n * k; i++) x[i] = ldexpf(x[i], (int)(i / 32 * 37 % 151) - 90);
    memset(x + ZEROS * k, 0, (size_t)k * sizeof *x);
    x[NOT_FINITE * k + 40] = NAN;
    x[(NOT_FINITE + 1) * k + 70] = -INFINITY;
    by_panels(kern, dst);
    for (int64_t i = 0; i < m * n; i++) {
        const double got = (double)((float *)dst->data)[i];
        const float *column = x + i / m * k;
        double want = 0, allowed = 0;
        cr_assert_eq(i / m != NOT_FINITE && i / m != NOT_FINITE + 1, isfinite(got) != 0, "%s %s %d",
                     kern->name, sheaf_type_name(type), (int)i);
        if (!isfinite(got)) continue;
        sheaf_to_float(type, (char *)a->data + (size_t)(i % m) * a->nb[1], row, k);
        for (int64_t j = 0; j < k; j += 32) {
            double most = 0, weights = 0;
            for (int64_t l = j; l < j + 32; l++) {
                most = fmax(most, fabs((double)column[l]));
                weights += fabs((double)row[l]);
                want += (double)row[l] * (double)column[l];
            }
            allowed += most * weights;
        }
        allowed *= 1.0 / top + 1e-6; /* sums are floats */
        cr_assert(fabs(got - want) <= allowed, "%s %s: %g, not %g", kern->name,
                  sheaf_type_name(type), got, want);
    }
    sheaf_free(ctx);
}
/* For all widths of panels. */
static void check_kind(enum sheaf__panels_kind kind, double top, int types_of_it) {
    static const int64_t widths[] = {37, 45, 52, 60, 10};
    int compared = 0, tables = 0;
    FOR_EACH_TABLE(kern) {
        const struct sheaf__cpu_panels *p = &kern->panels[kind];
        const int n = kind == SHEAF__PANELS_BF16_SCALED ? 5 : 4;
        tables += p->rows > 0;
        for (int t = 0; t < N_FLOAT_TYPES && p->rows > 0; t++) {
            if (!p->unpack[float_types[t]]) continue;
            for (int i = 0; i < n; i++) check_exponents(kern, float_types[t], 13, widths[i], top);
            compared++;
        }
    }
    if (!tables) cr_skip("no table that runs here has panels of this kind");
    cr_assert_geq(compared, types_of_it * tables);
}
Test(mul_mat, panels_of_16_bits_for_all_exponents) { check_kind(SHEAF__PANELS_16, 127.0 * 256, 8); }
Test(mul_mat, panels_of_words_for_all_exponents) {
    check_kind(SHEAF__PANELS_16_WORDS, 127.0 * 256, 8);
}
/* An activation is off by 2^-17 of itself, so the bound of 16 bits is a wide one; integers beside scales must not
 * overflow where their products do not. */
Test(mul_mat, panels_of_scaled_bf16_for_all_exponents) {
    emulate_amx();
    check_kind(SHEAF__PANELS_BF16_SCALED, 127.0 * 256, 20);
}

/* Whole tiles of rows and a rest. */
Test(mul_mat, panels_in_place_for_all_exponents) {
    emulate_amx();
    check_exponents(need_table("amx"), SHEAF_TYPE_Q8_0, 77, 4, 127.0 * 65536);
}

/* A column has the same bits beside any others of `first` to `most` columns, which are in one panel or several, and a
 * row whether tiles read it in place or from a copy. */
static void check_bits_in_place(enum sheaf_type type, int64_t first, int64_t most) {
    enum { M = 150, REST = 70 };
    emulate_amx();
    const struct sheaf__cpu_kernels *amx = need_table("amx");
    struct sheaf_context *ctx = new_context();
    struct sheaf_tensor *all = product_of(ctx, type, type == SHEAF_TYPE_Q4_K ? 768 : 512 + 32, M,
                                          most),
                        *a = all->src[0];
    by_panels(amx, all);
    const float *want = all->data;
    for (int64_t n = first; n <= most; n += 1 + n / 8) {
        struct sheaf_tensor *b =
            sheaf_view_2d(ctx, all->src[1], a->ne[0], n, all->src[1]->nb[1], 0);
        struct sheaf_tensor *dst = sheaf_mul_mat(ctx, a, b);
        by_panels(amx, dst);
        cr_assert(!memcmp(dst->data, want, sheaf_nbytes(dst)), "%s: %d columns",
                  sheaf_type_name(type), (int)n);
        struct sheaf_tensor *rows =
            sheaf_view_2d(ctx, a, a->ne[0], REST, a->nb[1], (M - REST) * a->nb[1]);
        dst = sheaf_mul_mat(ctx, rows, b);
        by_panels(amx, dst);
        for (int64_t c = 0; c < n; c++)
            cr_assert(!memcmp((float *)dst->data + c * REST, want + c * M + M - REST,
                              REST * sizeof *want),
                      "%s, column %d of %d: the last rows", sheaf_type_name(type), (int)c, (int)n);
    }
    sheaf_free(ctx);
}
Test(mul_mat, bits_in_place) { check_bits_in_place(SHEAF_TYPE_Q8_0, 3, 4); }
Test(mul_mat, bits_in_place_rounded) {
    setenv("SHEAF_CPU_ACTIVATIONS", "q8", 1);
    check_bits_in_place(SHEAF_TYPE_Q8_0, 3, 32);
}
/* Three panels are unpacked. */
static void check_bits_of_scaled(int64_t first, int64_t most) {
    static const enum sheaf_type of[] = {SHEAF_TYPE_Q8_0, SHEAF_TYPE_Q4_0, SHEAF_TYPE_IQ4_NL,
                                         SHEAF_TYPE_MXFP4, SHEAF_TYPE_Q4_K};
    for (size_t i = 0; i < sizeof of / sizeof *of; i++) check_bits_in_place(of[i], first, most);
}
Test(mul_mat, bits_of_scaled_in_place) { check_bits_of_scaled(6, 40); }
Test(mul_mat, bits_of_scaled_in_place_rounded) {
    setenv("SHEAF_CPU_ACTIVATIONS", "bf16", 1);
    check_bits_of_scaled(9, 16);
}
Test(mul_mat, bits_of_plain_in_place) {
    check_bits_in_place(SHEAF_TYPE_BF16, 3, 40);
    check_bits_in_place(SHEAF_TYPE_F16, 9, 40);
}
Test(mul_mat, bits_of_plain_in_place_rounded) {
    setenv("SHEAF_CPU_ACTIVATIONS", "bf16", 1);
    check_bits_in_place(SHEAF_TYPE_BF16, 4, 40);
    check_bits_in_place(SHEAF_TYPE_F16, 5, 40);
}

/* Two BF16 hold what one cannot; infinities and NaN stay what they are in their own column. */
static void check_what_bf16_keeps(const char *isa) {
    enum { K = 100, M = 20, N = 40 };
    static const float special[] = {INFINITY, -INFINITY, NAN, 1.0f + 0x1p-15f, -0x1p100f};
    const struct sheaf__cpu_kernels *kern = need_table(isa);
    struct sheaf_context *ctx = new_context();
    struct sheaf_tensor *a = sheaf_new_tensor_2d(ctx, SHEAF_TYPE_BF16, K, M);
    struct sheaf_tensor *b = sheaf_new_tensor_2d(ctx, SHEAF_TYPE_F32, K, N);
    for (int j = 0; j < K * M; j++) ((uint16_t *)a->data)[j] = 0x3f80; /* 1 */
    memset(b->data, 0, sheaf_nbytes(b));
    for (int c = 0; c < N; c++) ((float *)b->data)[c * K + (7 * c) % K] = special[c % 5];
    struct sheaf_tensor *dst = sheaf_mul_mat(ctx, a, b);
    by_panels(kern, dst);
    const float *got = dst->data;
    for (int j = 0; j < M * N; j++) {
        const float want = special[j / M % 5];
        cr_assert(got[j] == want || (isnan(got[j]) && isnan(want)), "%d: %g, not %g", j,
                  (double)got[j], (double)want);
    }
    sheaf_free(ctx);
}
Test(mul_mat, what_bf16_keeps) { check_what_bf16_keeps("avx512bf16"); }
Test(mul_mat, what_bf16_keeps_amx) {
    emulate_amx();
    check_what_bf16_keeps("amx");
}

Test(mul_mat, unknown_activations) {
    setenv("SHEAF_CPU_ACTIVATIONS", "q4", 1);
    cr_assert_null(sheaf__cpu_kernels());
    cr_assert(strstr(sheaf_last_error(), "SHEAF_CPU_ACTIVATIONS is 'q4'"));
    cr_assert_str_eq(sheaf_cpu_isa_name(), "?");
}

Test(mul_mat, unknown_isa) {
    setenv("SHEAF_CPU_ISA", "avx3", 1);
    cr_assert_null(sheaf__cpu_kernels());
    cr_assert(strstr(sheaf_last_error(), "avx3") && strstr(sheaf_last_error(), "SHEAF_CPU_ISA"));
    cr_assert_str_eq(sheaf_cpu_isa_name(), "?");
}

Test(mul_mat, best_isa) {
    const struct sheaf__cpu_kernels *best = NULL, *kern;
    unsetenv("SHEAF_CPU_ISA");
    for (int i = 0; (kern = sheaf__cpu_kernels_at(i)); i++) best = kern;
    cr_assert_eq(sheaf__cpu_kernels(), best);
}

Test(mul_mat, unsupported) {
    struct sheaf_context *ctx = new_context();
    struct sheaf_tensor *a = new_random(ctx, SHEAF_TYPE_F32, 8, 4, 1, 1);
    struct sheaf_tensor *b = new_random(ctx, SHEAF_TYPE_F32, 8, 4, 1, 1);
    struct sheaf_tensor *dst = sheaf_mul_mat(ctx, a, b);
    cr_assert(sheaf_backend_op_is_valid(dst));
    a->type = SHEAF_TYPE_I32;
    cr_assert_not(sheaf_backend_op_is_valid(dst));
    a->type = SHEAF_TYPE_F32;
    b->type = SHEAF_TYPE_BF16;
    cr_assert_not(sheaf_backend_op_is_valid(dst));
    b->type = SHEAF_TYPE_F32;
    a->nb[0] = 8;
    cr_assert_not(sheaf_backend_op_is_valid(dst));
    sheaf_free(ctx);
}
