/* Products of rows with few columns: plain weights by floats, quantized ones by activations in integers of 16 bits,
 * as words or as two digits (vector.h), or of 8 (--fast).
 *
 * 256 weights become bytes once and meet all columns of the call; one conversion joins the products of 32, or of 16
 * where weights have a scale for 16, to the sums.
 *
 * Invariant: a sum of a (row, column) takes the parts of k in one order, whatever the rows and columns beside it. */
#include "cpu/kernels/v128/weights.h"

enum { TILE = 4 }; /* columns in a call */

/* ---- activations ---- */

/* 32 floats as integers of magnitudes up to `top`, and what they are multiplied by. Zeros if the largest is so small
 * that top over it is not finite; d is not finite if one of them is not. */
INLINE float integers_of_32(const float *x, float top, int32_t *q) {
    uint32_t max = 0;
    for (int i = 0; i < 32; i++) {
        uint32_t bits;
        memcpy(&bits, x + i, sizeof bits);
        bits &= 0x7fffffffu;
        max = bits > max ? bits : max;
    }
    float largest, to;
    memcpy(&largest, &max, sizeof largest);
    to = top / largest;
    if (max >= 0x7f800000u || !(to <= 0x1.fffffep127f)) {
        memset(q, 0, 32 * sizeof *q);
        return max >= 0x7f800000u ? __builtin_nanf("") : 0.0f;
    }
    const float magic = 12582912.0f; /* 1.5 * 2^23: adding it rounds to an integer */
    for (int i = 0; i < 32; i++) {
        const float r = x[i] * to + magic;
        int32_t bits;
        memcpy(&bits, &r, sizeof bits);
        q[i] = bits - 0x4b400000;
    }
    return largest / top;
}

/* d, and d times the sums of 32 and of 16, of the block that lies at place b of 256. */
INLINE void describe_32(const int32_t *q, float by, int b, float *d, float *sums32, float *sums16) {
    int32_t sum[2] = {0, 0};
    for (int i = 0; i < 32; i++) sum[i / 16] += q[i];
    d[b] = by;
    sums32[b] = by * (float)(sum[0] + sum[1]);
    sums16[2 * b] = by * (float)sum[0];
    sums16[2 * b + 1] = by * (float)sum[1];
}

static void digits_of_32(const float *x, struct sheaf__act_digits *y, int b) {
    int32_t q[32];
    const float d = integers_of_32(x, 127.0f * 256.0f, q);
    describe_32(q, d, b, y->d, y->sums32, y->sums16);
    for (int j = 0; j < 32; j++) {
#if defined(KERNELS_DIGITS)
        const int8_t low = (int8_t)(uint8_t)(q[j] & 255);
        y->digit[b / 2][0][b % 2 * 32 + j] = (int8_t)((q[j] - low) >> 8);
        y->digit[b / 2][1][b % 2 * 32 + j] = low;
#else
        y->word[0][32 * b + j] = (int16_t)q[j];
#endif
    }
}
static void to_digits(const float *x, struct sheaf__act_digits *y, int64_t n, bool at_end,
                      enum sheaf__digits_order order) {
    (void)order;
    for (int64_t i = 0; i < n / 32; i++)
        digits_of_32(x + 32 * i, &y[i / 8], sheaf__digits_block(i, n, at_end));
}

static void bytes_of_32(const float *x, struct sheaf__act_bytes *y, int b) {
    int32_t q[32];
    const float d = integers_of_32(x, 127.0f, q);
    describe_32(q, d, b, y->d, y->sums32, y->lane_sums);
    for (int j = 0; j < 32; j++) y->x[32 * b + j] = (int8_t)q[j];
}
static void to_bytes(const float *x, struct sheaf__act_bytes *y, int64_t n, bool at_end,
                     enum sheaf__digits_order order) {
    (void)order;
    for (int64_t i = 0; i < n / 32; i++)
        bytes_of_32(x + 32 * i, &y[i / 8], sheaf__digits_block(i, n, at_end));
}

/* ---- quantized weights ---- */

/* The products of n vectors of weights with those of 256 activations from vector `at` of 16 on. */
INLINE v_f dot_of(enum sheaf__act act, const int8_t *q, const void *column, int at, int n) {
    const struct sheaf__act_digits *y = column;
    const int8_t *bytes = ((const struct sheaf__act_bytes *)column)->x;
    v_i32 sum = {0};
    if (act == SHEAF__ACT_BYTES) {
        UNROLL for (int i = 0; i < n; i++) sum =
            dot_16(sum, v_load_i8(q + 16 * i), v_load_i8(bytes + 16 * (at + i)));
        return v_from_i32(sum);
    }
#if defined(KERNELS_DIGITS)
    v_i32 low = {0};
    UNROLL for (int i = 0; i < n; i++) {
        const v_i8 x = v_load_i8(q + 16 * i);
        const int8_t(*digit)[64] = y->digit[(at + i) / 4];
        sum = dot_16(sum, x, v_load_i8(digit[0] + (at + i) % 4 * 16));
        low = dot_16(low, x, v_load_i8(digit[1] + (at + i) % 4 * 16));
    }
    return v_from_i32((sum << 8) + low);
#else
    UNROLL for (int i = 0; i < n; i++) sum =
        dot_16_words(sum, v_load_i8(q + 16 * i), y->word[0] + 16 * (at + i));
    return v_from_i32(sum);
#endif
}

/* 256 activations of a column; what goes with their integers. */
struct activations {
    const void *column;
    const float *d, *sums32, *sums16;
};
INLINE struct activations activations_of(enum sheaf__act act, const void *column, int64_t i) {
    if (act == SHEAF__ACT_BYTES) {
        const struct sheaf__act_bytes *y = (const struct sheaf__act_bytes *)column + i;
        return (struct activations){y, y->d, y->sums32, y->lane_sums};
    }
    const struct sheaf__act_digits *y = (const struct sheaf__act_digits *)column + i;
    return (struct activations){y, y->d, y->sums32, y->sums16};
}

/* acc[c] += `blocks` blocks of 32 weights by those of C columns, which begin `skip` blocks behind the first. */
INLINE void add_256(bool by_16, bool has_min, enum sheaf__act act, int C,
                    const struct weights_256 *w, int blocks, int skip, const struct activations *a,
                    v_f *acc) {
    const int parts = by_16 ? 2 : 1, wide = by_16 ? 1 : 2; /* of a block; vectors of a part */
    for (int s = 0; s < parts * blocks; s++) {
        const int at = parts * skip + s;
        UNROLL for (int c = 0; c < C; c++) acc[c] =
            v_fma(v_set1(w->d[s] * a[c].d[at / parts]),
                  dot_of(act, w->q + 16 * wide * s, a[c].column, wide * at, wide), acc[c]);
    }
    if (!has_min) return;
    UNROLL for (int c = 0; c < C; c++) {
        const float *sums = (by_16 ? a[c].sums16 : a[c].sums32) + parts * skip;
        int s = 0;
        for (; s + VW <= parts * blocks; s += VW)
            acc[c] = v_fma(v_load(w->m + s), v_load(sums + s), acc[c]);
        for (; s < parts * blocks; s++) acc[c][0] += w->m[s] * sums[s];
    }
}

INLINE void rows_by(struct weights of, enum sheaf__act act, int C, int64_t k, const char *w,
                    size_t stride, int64_t nr, const void *const *column, float *const *out) {
    const int rest = (int)(k % SHEAF__QK_K / 32);
    const int last = rest ? sheaf__digits_block(0, k % SHEAF__QK_K, sheaf__digits_at_end(k)) : 0;
    for (int64_t r = 0; r < nr; r++, w += stride) {
        v_f acc[TILE];
        const char *at = w;
        UNROLL for (int c = 0; c < C; c++) acc[c] = v_set1(0.0f);
        for (int64_t i = 0; i < k / 32; i += 8, at += of.size) {
            const int blocks = k / 32 - i < 8 ? rest : 8, skip = blocks < 8 ? last : 0;
            struct activations a[TILE];
            struct weights_256 x;
            of.take(at, blocks, &x);
            UNROLL for (int c = 0; c < C; c++) a[c] = activations_of(act, column[c], i / 8);
            if (of.by_16 && of.has_min)
                add_256(true, true, act, C, &x, blocks, skip, a, acc);
            else if (of.by_16)
                add_256(true, false, act, C, &x, blocks, skip, a, acc);
            else if (of.has_min)
                add_256(false, true, act, C, &x, blocks, skip, a, acc);
            else
                add_256(false, false, act, C, &x, blocks, skip, a, acc);
        }
        UNROLL for (int c = 0; c < C; c++) out[c][r] = v_sum(acc[c]);
    }
}

/* FN(C, ...) with the number of columns as a constant. */
#define BY_COLUMNS(NC, FN, ...)                                                                    \
    do {                                                                                           \
        switch (NC) {                                                                              \
        case 1:                                                                                    \
            FN(__VA_ARGS__, 1, k, w, stride, nr, column, out);                                     \
            break;                                                                                 \
        case 2:                                                                                    \
            FN(__VA_ARGS__, 2, k, w, stride, nr, column, out);                                     \
            break;                                                                                 \
        case 3:                                                                                    \
            FN(__VA_ARGS__, 3, k, w, stride, nr, column, out);                                     \
            break;                                                                                 \
        default:                                                                                   \
            FN(__VA_ARGS__, 4, k, w, stride, nr, column, out);                                     \
        }                                                                                          \
    } while (0)

static void rows_digits(struct weights of, int64_t k, const void *w, size_t stride, int64_t nr,
                        const void *const *column, int nc, float *const *out) {
    BY_COLUMNS(nc, rows_by, of, SHEAF__ACT_DIGITS);
}
static void rows_rounded(struct weights of, int64_t k, const void *w, size_t stride, int64_t nr,
                         const void *const *column, int nc, float *const *out) {
    BY_COLUMNS(nc, rows_by, of, SHEAF__ACT_BYTES);
}

#define ROWS(TYPE, type)                                                                           \
    static void digits_##type(int64_t k, const void *w, size_t stride, int64_t nr,                 \
                              const void *const *column, int nc, float *const *out) {              \
        rows_digits(weights_of(SHEAF_TYPE_##TYPE, take_##type), k, w, stride, nr, column, nc,      \
                    out);                                                                          \
    }                                                                                              \
    static void rounded_##type(int64_t k, const void *w, size_t stride, int64_t nr,                \
                               const void *const *column, int nc, float *const *out) {             \
        rows_rounded(weights_of(SHEAF_TYPE_##TYPE, take_##type), k, w, stride, nr, column, nc,     \
                     out);                                                                         \
    }
QUANTIZED_TYPES(ROWS)
#undef ROWS

/* ---- plain weights ---- */

/* A row of n elements by C columns of floats: four sums in vectors, which are added at the end. */
INLINE void dots_plain(enum sheaf_type type, int C, int64_t n, const void *x, const float *const *y,
                       float *to) {
    enum { SUMS = 4 };
    v_f acc[TILE][SUMS];
    int64_t i = 0;
    UNROLL for (int c = 0; c < C; c++) {
        UNROLL for (int j = 0; j < SUMS; j++) acc[c][j] = v_set1(0.0f);
    }
    for (; i + SUMS * VW <= n; i += SUMS * VW) {
        UNROLL for (int j = 0; j < SUMS; j++) {
            const v_f v = plain_4(type, x, i + j * VW);
            UNROLL for (int c = 0; c < C; c++) acc[c][j] =
                v_fma(v, v_load(y[c] + i + j * VW), acc[c][j]);
        }
    }
    UNROLL for (int c = 0; c < C; c++) {
        float sum = v_sum((acc[c][0] + acc[c][1]) + (acc[c][2] + acc[c][3]));
        for (int64_t j = i; j < n; j++) sum += plain_1(type, x, j) * y[c][j];
        to[c] = sum;
    }
}

INLINE void rows_plain(enum sheaf_type type, int C, int64_t k, const char *w, size_t stride,
                       int64_t nr, const void *const *column, float *const *out) {
    for (int64_t r = 0; r < nr; r++, w += stride) {
        float to[TILE];
        const float *y[TILE];
        UNROLL for (int c = 0; c < C; c++) y[c] = column[c];
        dots_plain(type, C, k, w, y, to);
        UNROLL for (int c = 0; c < C; c++) out[c][r] = to[c];
    }
}

#define ROWS_PLAIN(TYPE, type)                                                                     \
    static void rows_dot_##type(int64_t k, const void *w, size_t stride, int64_t nr,               \
                                const void *const *column, int nc, float *const *out) {            \
        BY_COLUMNS(nc, rows_plain, SHEAF_TYPE_##TYPE);                                             \
    }
ROWS_PLAIN(F32, f32)
ROWS_PLAIN(F16, f16)
ROWS_PLAIN(BF16, bf16)
#undef ROWS_PLAIN
