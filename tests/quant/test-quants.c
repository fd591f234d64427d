/* The element types: the table, the conversions of one value over all inputs, and the block formats
 * against a second reading of their description, one bit at a time. */
#include <criterion/criterion.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "float_types.h"
#include "random_numbers.h"

/* Sum of four uniform numbers: bell-shaped, variance 1. */
static float random_bell(void) {
    double s = 0;
    for (int i = 0; i < 4; i++) s += (double)random_u32() / 4294967296.0 - 0.5;
    return (float)(s * 1.7320508);
}

static uint32_t bits(float f) {
    uint32_t u;
    memcpy(&u, &f, sizeof u);
    return u;
}

/* ---- the table ---- */

Test(quants, table) {
    static const struct {
        enum sheaf_type type;
        int number;
        const char *name;
        int64_t blck;
        size_t size;
    } rows[] = {
        {SHEAF_TYPE_F32, 0, "f32", 1, 4},
        {SHEAF_TYPE_F16, 1, "f16", 1, 2},
        {SHEAF_TYPE_Q4_0, 2, "q4_0", 32, 18},
        {SHEAF_TYPE_Q4_1, 3, "q4_1", 32, 20},
        {SHEAF_TYPE_Q5_0, 6, "q5_0", 32, 22},
        {SHEAF_TYPE_Q5_1, 7, "q5_1", 32, 24},
        {SHEAF_TYPE_Q8_0, 8, "q8_0", 32, 34},
        {SHEAF_TYPE_Q4_K, 12, "q4_K", 256, 144},
        {SHEAF_TYPE_Q5_K, 13, "q5_K", 256, 176},
        {SHEAF_TYPE_Q6_K, 14, "q6_K", 256, 210},
        {SHEAF_TYPE_I32, 26, "i32", 1, 4},
        {SHEAF_TYPE_I64, 27, "i64", 1, 8},
        {SHEAF_TYPE_BF16, 30, "bf16", 1, 2},
        {SHEAF_TYPE_Q2_K, 10, "q2_K", 256, 84},
        {SHEAF_TYPE_Q3_K, 11, "q3_K", 256, 110},
        {SHEAF_TYPE_IQ4_NL, 20, "iq4_nl", 32, 18},
        {SHEAF_TYPE_IQ4_XS, 23, "iq4_xs", 256, 136},
        {SHEAF_TYPE_MXFP4, 39, "mxfp4", 32, 17},
        {SHEAF_TYPE_NVFP4, 40, "nvfp4", 64, 36},
        {SHEAF_TYPE_Q1_0, 41, "q1_0", 128, 18},
        {SHEAF_TYPE_Q2_0, 42, "q2_0", 64, 18},
        {SHEAF_TYPE_TQ1_0, 34, "tq1_0", 256, 54},
        {SHEAF_TYPE_TQ2_0, 35, "tq2_0", 256, 66},
        {SHEAF_TYPE_IQ2_XXS, 16, "iq2_xxs", 256, 66},
        {SHEAF_TYPE_IQ2_XS, 17, "iq2_xs", 256, 74},
        {SHEAF_TYPE_IQ3_XXS, 18, "iq3_xxs", 256, 98},
        {SHEAF_TYPE_IQ1_S, 19, "iq1_s", 256, 50},
        {SHEAF_TYPE_IQ3_S, 21, "iq3_s", 256, 110},
        {SHEAF_TYPE_IQ2_S, 22, "iq2_s", 256, 82},
        {SHEAF_TYPE_IQ1_M, 29, "iq1_m", 256, 56},
    };
    int known = 0;
    for (int t = -2; t < SHEAF_TYPE_COUNT + 2; t++)
        known += sheaf_type_is_known((enum sheaf_type)t);
    cr_assert_eq(known, (int)(sizeof rows / sizeof rows[0]));
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        enum sheaf_type t = rows[i].type;
        cr_assert_eq((int)t, rows[i].number);
        cr_assert_str_eq(sheaf_type_name(t), rows[i].name);
        cr_assert_eq(sheaf_type_from_name(rows[i].name), t);
        cr_assert_eq(sheaf_blck_size(t), rows[i].blck);
        cr_assert_eq(sheaf_type_size(t), rows[i].size);
        cr_assert_eq(sheaf_is_quantized(t), rows[i].blck > 1);
        cr_assert_eq(sheaf_row_size(t, 3 * rows[i].blck), 3 * rows[i].size);
        cr_assert_eq(sheaf_row_size(t, 0), 0u);
        cr_assert_eq(sheaf_row_size(t, -rows[i].blck), 0u);
        if (rows[i].blck > 1) cr_assert_eq(sheaf_row_size(t, rows[i].blck + 1), 0u);
    }
    cr_assert_eq(sheaf_row_size(SHEAF_TYPE_I64, INT64_MAX), 0u, "an overflow must give 0");
    cr_assert_eq(sheaf_type_from_name("Q4_k"), SHEAF_TYPE_Q4_K, "case does not matter");
    cr_assert_eq(sheaf_type_from_name("q4"), SHEAF_TYPE_COUNT);
    cr_assert_eq(sheaf_type_from_name(NULL), SHEAF_TYPE_COUNT);
    cr_assert_str_eq(sheaf_type_name((enum sheaf_type)4), "?");
    cr_assert_eq(sheaf_blck_size((enum sheaf_type) - 1), 0);
}

/* A new type belongs in the list that this suite and that of products go through. */
Test(quants, every_float_type_is_tested) {
    int n = 0;
    for (int t = 0; t < SHEAF_TYPE_COUNT; t++)
        n += sheaf_type_is_known((enum sheaf_type)t) && t != SHEAF_TYPE_I32 && t != SHEAF_TYPE_I64;
    cr_expect_eq(N_FLOAT_TYPES, n);
}

Test(quants, refused_conversions) {
    float x[64] = {0};
    char y[256] = {0};
    cr_assert_eq(sheaf_to_float(SHEAF_TYPE_I32, y, x, 1), SHEAF_STATUS_UNSUPPORTED);
    cr_assert_eq(sheaf_from_float(SHEAF_TYPE_I64, x, y, 1), SHEAF_STATUS_UNSUPPORTED);
    cr_assert(strstr(sheaf_last_error(), "i64"));
    cr_assert_eq(sheaf_to_float((enum sheaf_type)5, y, x, 1), SHEAF_STATUS_UNSUPPORTED);
    cr_assert_eq(sheaf_to_float(SHEAF_TYPE_Q4_K, y, x, 32), SHEAF_STATUS_INVALID);
    cr_assert_eq(sheaf_from_float(SHEAF_TYPE_Q8_0, x, y, 33), SHEAF_STATUS_INVALID);
    cr_assert_eq(sheaf_from_float(SHEAF_TYPE_F16, x, y, -1), SHEAF_STATUS_INVALID);
}

/* ---- one value ---- */

/* IEEE formats by their definition: e exponent bits, m mantissa bits. */
static double decode(uint32_t h, int e, int m) {
    int exp = (int)(h >> m) & ((1 << e) - 1), bias = (1 << (e - 1)) - 1;
    double man = (double)(h & ((1u << m) - 1)), sign = h >> (e + m) & 1 ? -1 : 1;
    if (exp == (1 << e) - 1) return man != 0 ? (double)NAN : sign * INFINITY;
    if (exp == 0) return sign * ldexp(man, 1 - bias - m);
    return sign * ldexp(man + ldexp(1, m), exp - bias - m);
}

static void check_16_bits(int e, int m, float (*to)(uint16_t), uint16_t (*from)(float)) {
    for (uint32_t h = 0; h < 65536; h++) {
        double want = decode(h, e, m);
        float got = to((uint16_t)h);
        if (isnan(want)) {
            uint16_t back = from(got);
            cr_assert(isnan(got) && isnan(decode(back, e, m)), "%04x must stay NaN", h);
            cr_assert_eq(back >> 15, h >> 15);
            continue;
        }
        cr_assert_eq(bits(got), bits((float)want), "%04x: %a, want %a", h, (double)got, want);
        cr_assert_eq(from(got), h, "%04x came back as %04x", h, from(got));
    }
    /* between each two neighbours: below, at and above the middle */
    uint32_t inf = ((1u << e) - 1) << m;
    for (uint32_t h = 0; h < inf; h++) {
        double a = decode(h, e, m),
               b = h + 1 < inf ? decode(h + 1, e, m) : 2 * a - decode(h - 1, e, m);
        float mid = (float)((a + b) / 2);
        uint32_t even = h & 1 ? h + 1 : h;
        for (uint32_t s = 0; s < 2; s++) {
            float sign = s ? -1 : 1;
            cr_assert_eq(from(sign * mid), even | s << 15, "tie after %04x", h);
            cr_assert_eq(from(sign * nextafterf(mid, 0)), h | s << 15, "below the tie after %04x",
                         h);
            cr_assert_eq(from(sign * nextafterf(mid, INFINITY)), (h + 1) | s << 15,
                         "above the tie after %04x", h);
        }
    }
    cr_assert_eq(from(INFINITY), inf);
    cr_assert_eq(from(-INFINITY), inf | 0x8000u);
    /* NaNs whose bits are cut off, or whose rounding would carry */
    static const uint32_t nans[] = {0x7f800001, 0x7fffffff, 0xff800001, 0xffffffff};
    for (int i = 0; i < 4; i++) {
        float nan;
        memcpy(&nan, &nans[i], sizeof nan);
        const uint16_t h = from(nan);
        cr_assert(isnan(decode(h, e, m)) && h >> 15 == nans[i] >> 31, "%08x: %04x", nans[i], h);
    }
}

Test(quants, fp16_all_values) { check_16_bits(5, 10, sheaf_fp16_to_fp32, sheaf_fp32_to_fp16); }
Test(quants, bf16_all_values) { check_16_bits(8, 7, sheaf_bf16_to_fp32, sheaf_fp32_to_bf16); }

/* ---- blocks, bit by bit ---- */

/* Bit number i of a byte string, counting from the least significant bit of its first byte. */
static int bit(const uint8_t *p, int i) { return p[i / 8] >> i % 8 & 1; }
/* n bits from bit i upwards. */
static int field(const uint8_t *p, int i, int n) {
    int v = 0;
    for (int j = 0; j < n; j++) v |= bit(p, i + j) << j;
    return v;
}
static float half_at(const uint8_t *p, int byte) {
    return (float)decode((uint32_t)field(p, 8 * byte, 16), 5, 10);
}
/* a * b + c with one rounding each, in double, where two floats multiply and add exactly enough. */
static float muladd(float a, float b, float c) {
    return (float)((double)(float)((double)a * b) + c);
}

/* Bit offset of the nibble of element j in the plain formats: all low nibbles, then all high. */
static int nibble_32(int j) { return j % 16 * 8 + j / 16 * 4; }

static float q4_0_at(const uint8_t *p, int j) {
    return half_at(p, 0) * (float)(field(p + 2, nibble_32(j), 4) - 8);
}
static float q4_1_at(const uint8_t *p, int j) {
    return muladd(half_at(p, 0), (float)field(p + 4, nibble_32(j), 4), half_at(p, 2));
}
static float q5_0_at(const uint8_t *p, int j) {
    return half_at(p, 0) * (float)(field(p + 6, nibble_32(j), 4) + 16 * bit(p + 2, j) - 16);
}
static float q5_1_at(const uint8_t *p, int j) {
    return muladd(half_at(p, 0), (float)(field(p + 8, nibble_32(j), 4) + 16 * bit(p + 4, j)),
                  half_at(p, 2));
}
static float q8_0_at(const uint8_t *p, int j) {
    int q = field(p + 2, 8 * j, 8);
    return half_at(p, 0) * (float)(q < 128 ? q : q - 256);
}

/* The 12 bytes of Q4_K and Q5_K hold the 6-bit scales 0..3 in the low bits of bytes 0..3, the mins
 * 0..3 in those of bytes 4..7; scales and mins 4..7 have their low 4 bits in the low and high
 * nibbles of bytes 8..11 and their high 2 bits in the top bits of bytes 0..3 and 4..7. */
static int k_scale(const uint8_t *s, int j) {
    return j < 4 ? field(s, 8 * j, 6)
                 : field(s, 8 * (j + 4), 4) + 16 * field(s, 8 * (j - 4) + 6, 2);
}
static int k_min(const uint8_t *s, int j) {
    return j < 4 ? field(s, 8 * (j + 4), 6)
                 : field(s, 8 * (j + 4) + 4, 4) + 16 * field(s, 8 * j + 6, 2);
}
static float k_at(const uint8_t *p, int j, int q) {
    float d = half_at(p, 0) * (float)k_scale(p + 4, j / 32);
    float m = half_at(p, 2) * (float)k_min(p + 4, j / 32);
    return muladd(d, (float)q, -m);
}
/* Pairs of sub-blocks share 32 bytes: the even one in the low nibbles. */
static int nibble_k(int j) { return (j / 64 * 32 + j % 32) * 8 + j / 32 % 2 * 4; }
static float q4_k_at(const uint8_t *p, int j) { return k_at(p, j, field(p + 16, nibble_k(j), 4)); }
static float q5_k_at(const uint8_t *p, int j) {
    return k_at(p, j, field(p + 48, nibble_k(j), 4) + 16 * bit(p + 16, j % 32 * 8 + j / 32));
}
static float q6_k_at(const uint8_t *p, int j) {
    int half = j / 128, quarter = j / 32 % 4, l = j % 32;
    int low = field(p + half * 64 + quarter % 2 * 32 + l, quarter / 2 * 4, 4);
    int high = field(p + 128 + half * 32 + l, quarter * 2, 2);
    int scale = p[192 + j / 16] < 128 ? p[192 + j / 16] : p[192 + j / 16] - 256;
    return half_at(p, 208) * (float)scale * (float)(low + 16 * high - 32);
}

static const struct {
    enum sheaf_type type;
    float (*at)(const uint8_t *block, int j);
    int halves[2]; /* byte offsets of the half floats, -1 if none */
} formats[] = {
    {SHEAF_TYPE_Q4_0, q4_0_at, {0, -1}}, {SHEAF_TYPE_Q4_1, q4_1_at, {0, 2}},
    {SHEAF_TYPE_Q5_0, q5_0_at, {0, -1}}, {SHEAF_TYPE_Q5_1, q5_1_at, {0, 2}},
    {SHEAF_TYPE_Q8_0, q8_0_at, {0, -1}}, {SHEAF_TYPE_Q4_K, q4_k_at, {0, 2}},
    {SHEAF_TYPE_Q5_K, q5_k_at, {0, 2}},  {SHEAF_TYPE_Q6_K, q6_k_at, {208, -1}},
};

Test(quants, dequantize_bit_by_bit) {
    enum { BLOCKS = 200 };
    for (size_t f = 0; f < sizeof formats / sizeof formats[0]; f++) {
        size_t size = sheaf_type_size(formats[f].type);
        int64_t blck = sheaf_blck_size(formats[f].type);
        uint8_t *src = malloc(BLOCKS * size);
        float *dst = malloc((size_t)(BLOCKS * blck) * sizeof *dst);
        for (size_t i = 0; i < BLOCKS * size; i++) src[i] = (uint8_t)random_u32();
        for (size_t b = 0; b < BLOCKS; b++) { /* infinite and NaN scales would compare nothing */
            for (int h = 0; h < 2; h++) {
                if (formats[f].halves[h] >= 0)
                    src[b * size + (size_t)formats[f].halves[h] + 1] &= 0xbf;
            }
        }
        cr_assert_eq(sheaf_to_float(formats[f].type, src, dst, BLOCKS * blck),
                     SHEAF_STATUS_SUCCESS);
        for (int64_t i = 0; i < BLOCKS * blck; i++) {
            float want = formats[f].at(src + (size_t)(i / blck) * size, (int)(i % blck));
            cr_assert_eq(dst[i], want, "%s element %d: %a, want %a",
                         sheaf_type_name(formats[f].type), (int)i, (double)dst[i], (double)want);
        }
        free(src);
        free(dst);
    }
}

/* ---- quantizing ---- */

enum { N = 1024 };

static void fill(float *x, int kind) {
    for (int i = 0; i < N; i++) {
        float r = random_bell();
        switch (kind) {
        case 0:
            x[i] = r;
            break;
        case 1:
            x[i] = 0;
            break;
        case 2:
            x[i] = fabsf(r) + 3;
            break;
        case 3:
            x[i] = -fabsf(r) * 1e-3f;
            break;
        case 4:
            x[i] = i % 37 ? r * 0.01f : r * 20;
            break; /* outliers */
        case 5:
            x[i] = 2.5f;
            break;
        default:
            x[i] = r * ldexpf(1, i / 32 % 8 - 4);
            break; /* blocks of different size */
        }
    }
}
enum { N_KINDS = 7 };

/* Largest error of a correct quantizer of each format over a super-block whose largest magnitude is
 * a and whose range (with 0) is r: half a step, a whole one where the largest positive value is
 * clamped, and for the K formats the rounding of their 6- and 8-bit scales. */
static double bound(enum sheaf_type type, double a, double r) {
    double half_float = ldexp(1, -11);
    switch ((int)type) {
    case SHEAF_TYPE_F32:
        return 0;
    case SHEAF_TYPE_F16:
        return a * half_float + 1e-7;
    case SHEAF_TYPE_BF16:
        return a * ldexp(1, -8);
    case SHEAF_TYPE_Q8_0:
        return a * (0.5 / 127 + half_float);
    case SHEAF_TYPE_Q4_0:
        return a * (1.0 / 8 + half_float);
    case SHEAF_TYPE_Q5_0:
        return a * (1.0 / 16 + half_float);
    case SHEAF_TYPE_Q4_1:
        return r * 0.5 / 15 + 2 * a * half_float + r * half_float;
    case SHEAF_TYPE_Q5_1:
        return r * 0.5 / 31 + 2 * a * half_float + r * half_float;
    case SHEAF_TYPE_Q4_K:
        return r * (0.5 / 15 + 0.5 / 63 + 2 * half_float) + a * (0.5 / 63);
    case SHEAF_TYPE_Q5_K:
        return r * (0.5 / 31 + 0.5 / 63 + 2 * half_float) + a * (0.5 / 63);
    case SHEAF_TYPE_Q2_K:
        return r * (0.5 / 3 + 0.5 / 15 + 2 * half_float) + a * (0.5 / 15);
    case SHEAF_TYPE_Q3_K: /* the largest positive value is clamped to 3 of 4 steps */
        return a * (1.0 / 4 + 1.0 / 32 + 2 * half_float);
    case SHEAF_TYPE_IQ4_NL: /* 127 is clamped to 113, or half of the widest gap; the scale that
                             * leaves the least squares may be smaller */
        return a * (20.0 / 127 + half_float);
    case SHEAF_TYPE_IQ4_XS:
        return a * (14.0 / 127 + 1.0 / 32 + 2 * half_float);
    case SHEAF_TYPE_MXFP4: /* half of the gap from 8 to 12, or from 12 to 16 all of it */
        return a * (4.0 / 16);
    case SHEAF_TYPE_NVFP4: /* half of the gap from 4 to 6 of 6, and the rounding of E4M3 */
        return a * (1.0 / 6 + 1.0 / 16) + 6 * ldexp(1, -10);
    case SHEAF_TYPE_Q2_0: /* half of a step */
    case SHEAF_TYPE_TQ1_0:
    case SHEAF_TYPE_TQ2_0:
        return a * (1.0 / 2 + half_float);
    case SHEAF_TYPE_Q1_0: /* from 0 to the mean */
    case SHEAF_TYPE_IQ1_S:
    case SHEAF_TYPE_IQ1_M:
    case SHEAF_TYPE_IQ2_XXS: /* a point that fits 7 others may be wrong by a whole level in one */
    case SHEAF_TYPE_IQ2_XS:
    case SHEAF_TYPE_IQ2_S:
    case SHEAF_TYPE_IQ3_XXS:
    case SHEAF_TYPE_IQ3_S:
        return a * (1 + 1.0 / 16);
    default:
        return a * (1.0 / 32 + 1.0 / 128 + 2 * half_float);
    }
}

/* The mean square of the error over that of bell-shaped data: as measured, and 4 % more. */
static double mean_bound(enum sheaf_type type) {
    static const double measured[SHEAF_TYPE_COUNT] = {
        [SHEAF_TYPE_F16] = 4.3e-8,    [SHEAF_TYPE_BF16] = 2.7e-6,   [SHEAF_TYPE_Q8_0] = 2.6e-5,
        [SHEAF_TYPE_Q4_0] = 0.0067,   [SHEAF_TYPE_Q4_1] = 0.0058,   [SHEAF_TYPE_Q5_0] = 0.00164,
        [SHEAF_TYPE_Q5_1] = 0.00134,  [SHEAF_TYPE_Q2_K] = 0.103,    [SHEAF_TYPE_Q3_K] = 0.0226,
        [SHEAF_TYPE_Q4_K] = 0.0058,   [SHEAF_TYPE_Q5_K] = 0.00135,  [SHEAF_TYPE_Q6_K] = 0.00032,
        [SHEAF_TYPE_IQ4_NL] = 0.0059, [SHEAF_TYPE_IQ4_XS] = 0.0061, [SHEAF_TYPE_MXFP4] = 0.0130,
        [SHEAF_TYPE_NVFP4] = 0.0092,  [SHEAF_TYPE_Q1_0] = 0.343,    [SHEAF_TYPE_Q2_0] = 0.476,
        [SHEAF_TYPE_TQ1_0] = 0.590,   [SHEAF_TYPE_TQ2_0] = 0.588,   [SHEAF_TYPE_IQ2_XXS] = 0.123,
        [SHEAF_TYPE_IQ2_XS] = 0.092,  [SHEAF_TYPE_IQ2_S] = 0.065,   [SHEAF_TYPE_IQ3_XXS] = 0.0344,
        [SHEAF_TYPE_IQ3_S] = 0.0182,  [SHEAF_TYPE_IQ1_S] = 0.321,   [SHEAF_TYPE_IQ1_M] = 0.242,
    };
    return 1.04 * measured[type];
}

Test(quants, round_trip_error) {
    static float x[N], y[N];
    static uint8_t q[N * 4];
    for (int t = 0; t < N_FLOAT_TYPES; t++) {
        enum sheaf_type type = float_types[t];
        int blck = (int)sheaf_blck_size(type);
        for (int kind = 0; kind < N_KINDS; kind++) {
            fill(x, kind);
            cr_assert_eq(sheaf_from_float(type, x, q, N), SHEAF_STATUS_SUCCESS);
            cr_assert_eq(sheaf_to_float(type, q, y, N), SHEAF_STATUS_SUCCESS);
            for (int b = 0; b < N / blck; b++) {
                double lo = 0, hi = 0;
                for (int j = b * blck; j < (b + 1) * blck; j++) {
                    lo = fmin(lo, (double)x[j]);
                    hi = fmax(hi, (double)x[j]);
                }
                double limit = bound(type, fmax(-lo, hi), hi - lo);
                for (int j = b * blck; j < (b + 1) * blck; j++) {
                    double error = fabs((double)x[j] - (double)y[j]);
                    cr_assert_leq(error, limit * 1.0001, "%s data %d: %g became %g, limit %g",
                                  sheaf_type_name(type), kind, (double)x[j], (double)y[j], limit);
                }
            }
        }
    }
}

/* The squares of the differences of what became of x[N], added to *error, and of x, to *power. */
static void add_squares(const float *x, const float *y, double *error, double *power) {
    for (int i = 0; i < N; i++) {
        *error += pow((double)x[i] - (double)y[i], 2);
        *power += pow((double)x[i], 2);
    }
}

/* Values of blocks stay when they are quantized again; those of a grid, of which the nearest point is
 * looked for, nearly. */
Test(quants, mean_error) {
    static float x[N], y[N], again[N];
    static uint8_t q[N * 4];
    for (int t = 0; t < N_FLOAT_TYPES; t++) {
        const enum sheaf_type type = float_types[t];
        const bool grid = strncmp(sheaf_type_name(type), "iq", 2) == 0 &&
                          type != SHEAF_TYPE_IQ4_NL && type != SHEAF_TYPE_IQ4_XS;
        double error = 0, power = 0, moved = 0, left = 0;
        for (int row = 0; row < 16; row++) {
            fill(x, 0);
            cr_assert_eq(sheaf_from_float(type, x, q, N), SHEAF_STATUS_SUCCESS);
            cr_assert_eq(sheaf_to_float(type, q, y, N), SHEAF_STATUS_SUCCESS);
            cr_assert_eq(sheaf_from_float(type, y, q, N), SHEAF_STATUS_SUCCESS);
            cr_assert_eq(sheaf_to_float(type, q, again, N), SHEAF_STATUS_SUCCESS);
            add_squares(x, y, &error, &power);
            add_squares(y, again, &moved, &left);
        }
        cr_expect_leq(error, mean_bound(type) * power, "%s: %g", sheaf_type_name(type),
                      error / power);
        cr_expect_leq(moved, (grid ? 0.006 : 1e-5) * left, "%s: %g", sheaf_type_name(type),
                      moved / left);
    }
}

/* No other point of the grid is nearer: in place of each group's, every point whose number has the
 * same upper bits. */
Test(quants, points_are_the_nearest) {
    static const struct {
        enum sheaf_type type;
        int first, step, elements; /* byte of the first number, to the next; elements of a point */
    } grids[] = {{SHEAF_TYPE_IQ2_S, 2, 1, 8},   {SHEAF_TYPE_IQ2_XS, 2, 2, 8},
                 {SHEAF_TYPE_IQ3_XXS, 2, 1, 4}, {SHEAF_TYPE_IQ3_S, 2, 1, 4},
                 {SHEAF_TYPE_IQ1_S, 2, 1, 8},   {SHEAF_TYPE_IQ1_M, 0, 1, 8}};
    static float x[N], y[256];
    uint8_t q[N * 4];
    fill(x, 0);
    for (size_t f = 0; f < sizeof grids / sizeof *grids; f++) {
        double before = 0;
        cr_assert_eq(sheaf_from_float(grids[f].type, x, q, 256), SHEAF_STATUS_SUCCESS);
        for (int v = -1; v < 256 * 256 / grids[f].elements; v++) {
            uint8_t *at = q + grids[f].first + v / 256 * grids[f].step;
            const uint8_t keep = *at;
            double error = 0;
            if (v >= 0) *at = (uint8_t)v;
            cr_assert_eq(sheaf_to_float(grids[f].type, q, y, 256), SHEAF_STATUS_SUCCESS);
            for (int i = 0; i < 256; i++) error += pow((double)x[i] - (double)y[i], 2);
            if (v < 0) before = error;
            cr_assert_geq(error, before * (1 - 1e-5), "%s: point %d of number %d is nearer",
                          sheaf_type_name(grids[f].type), v % 256, v / 256);
            *at = keep;
        }
    }
}

/* Weights of three values are kept as they are. */
Test(quants, ternary_weights_are_exact) {
    static const enum sheaf_type types[] = {SHEAF_TYPE_TQ1_0, SHEAF_TYPE_TQ2_0, SHEAF_TYPE_Q2_0};
    float x[N], y[N];
    uint8_t q[N];
    for (int i = 0; i < N; i++) x[i] = 0.375f * (float)((int)(random_u32() % 3) - 1);
    for (int t = 0; t < 3; t++) {
        cr_assert_eq(sheaf_from_float(types[t], x, q, N), SHEAF_STATUS_SUCCESS);
        cr_assert_eq(sheaf_to_float(types[t], q, y, N), SHEAF_STATUS_SUCCESS);
        for (int i = 0; i < N; i++) cr_assert_eq(x[i], y[i], "%s", sheaf_type_name(types[t]));
    }
}

/* Half the largest element, which is 63.5 steps: 127 / max, rounded, says where it goes, as in ggml's
 * CPU backend on x86; 1 / (max / 127) says the contrary of these. */
Test(quants, q8_0_halves) {
    static const float halves[] = {73, 75, 78, 88, 89, 102, 108, 116};
    static const int want[] = {64, 64, 64, 64, 64, 63, 64, 63};
    for (int i = 0; i < 8; i++) {
        uint8_t block[34]; /* the scale, and 32 integers */
        float x[32] = {halves[i], -halves[i], 2 * halves[i]};
        cr_assert_eq(sheaf_from_float(SHEAF_TYPE_Q8_0, x, block, 32), SHEAF_STATUS_SUCCESS);
        cr_assert_eq((int8_t)block[2], want[i], "%g: %d", (double)x[0], (int8_t)block[2]);
        cr_assert_eq((int8_t)block[3], -want[i], "%g: %d", (double)x[1], (int8_t)block[3]);
    }
}

/* Value of an unsigned E4M3: a bias of 7, the greatest 448. */
static float e4m3(int d) {
    return d < 8 ? ldexpf((float)d, -9) : ldexpf((float)(8 + d % 8), d / 8 - 10);
}

/* The largest element is 6 times the scale: each scale is found, and between two of them the nearest,
 * of a tie the even one. */
Test(quants, nvfp4_scales) {
    for (int d = 1; d <= 0x7e; d++) {
        const float middle = d < 0x7e ? (e4m3(d) + e4m3(d + 1)) / 2 : 2 * e4m3(d);
        const float scales[4] = {e4m3(d), nextafterf(middle, 0), middle,
                                 nextafterf(middle, INFINITY)};
        const int above = d < 0x7e ? d + 1 : d, want[4] = {d, d, d % 2 ? above : d, above};
        float x[64] = {0};
        uint8_t block[36]; /* four scales, and 64 nibbles */
        for (int s = 0; s < 4; s++) x[16 * s + s] = -6 * scales[s];
        cr_assert_eq(sheaf_from_float(SHEAF_TYPE_NVFP4, x, block, 64), SHEAF_STATUS_SUCCESS);
        for (int s = 0; s < 4; s++)
            cr_expect_eq(block[s], want[s], "scale %a: %02x, not %02x", (double)scales[s], block[s],
                         want[s]);
    }
}

/* A scale that is subnormal as a half rounds down to 5/7 of what it was: the integers stay within
 * -127 and 127, and half of them. */
Test(quants, q8_0_of_a_scale_that_rounds) {
    const float most = 127 * 1.4f * 0x1p-24f;
    float x[32] = {most, -most, most / 4};
    uint8_t block[34];
    cr_assert_eq(sheaf_from_float(SHEAF_TYPE_Q8_0, x, block, 32), SHEAF_STATUS_SUCCESS);
    cr_expect_eq(block[0] + 256 * block[1], 1);
    cr_expect_eq((int8_t)block[2], 127);
    cr_expect_eq((int8_t)block[3], -127);
    cr_expect_eq((int8_t)block[4], 44);
}

/* How much a block of ones may lose. */
static float of_ones(enum sheaf_type type) {
    switch ((int)type) {
    case SHEAF_TYPE_NVFP4: /* E4M3 */
        return 1.0f / 16;
    case SHEAF_TYPE_IQ2_XXS: /* its grid has no point of eight large coordinates */
        return 0.82f;
    case SHEAF_TYPE_IQ3_XXS:
    case SHEAF_TYPE_IQ3_S:
        return 0.45f;
    default:
        return 0.02f;
    }
}

/* Infinities, NaN, huge and tiny values: no undefined conversion (run under UBSan), and a finite
 * neighbour block is not touched. */
Test(quants, wild_values) {
    static const float wild[] = {INFINITY, -INFINITY, NAN, 3e38f, -3e38f, 1e-45f, 1e-38f};
    static float x[512], y[512];
    static uint8_t q[512 * 4];
    for (int t = 0; t < N_FLOAT_TYPES; t++) {
        int blck = (int)sheaf_blck_size(float_types[t]);
        for (int i = 0; i < 512; i++) x[i] = i < 256 ? wild[i * 7 / 3 % 7] : 1.0f;
        cr_assert_eq(sheaf_from_float(float_types[t], x, q, 512), SHEAF_STATUS_SUCCESS);
        cr_assert_eq(sheaf_to_float(float_types[t], q, y, 512), SHEAF_STATUS_SUCCESS);
        for (int i = 256; i < 512; i++)
            cr_assert_float_eq(y[i], 1.0f, of_ones(float_types[t]), "%s: %g",
                               sheaf_type_name(float_types[t]), (double)y[i]);
        for (int i = 0; i < blck; i++) x[i] = 1e-44f; /* a scale that rounds to zero */
        cr_assert_eq(sheaf_from_float(float_types[t], x, q, blck), SHEAF_STATUS_SUCCESS);
        cr_assert_eq(sheaf_to_float(float_types[t], q, y, blck), SHEAF_STATUS_SUCCESS);
        for (int i = 0; i < blck; i++) cr_assert_float_eq(y[i], 0.0f, 1e-40f);
    }
}

/* ---- quantizing with a search ---- */

/* x [N] by sheaf_quantize, and back. */
static void searched(enum sheaf_type type, const float *x, const float *weights, float *y) {
    static uint8_t q[N * 4];
    cr_assert_eq(sheaf_quantize(type, x, weights, q, N), SHEAF_STATUS_SUCCESS);
    cr_assert_eq(sheaf_to_float(type, q, y, N), SHEAF_STATUS_SUCCESS);
}

/* The mean square of the error over that of bell-shaped data, without weights and with weights whose
 * logarithms are bell-shaped: as measured, and 0.1 % more. sheaf_from_float loses up to 5 times as
 * much. */
static const struct {
    enum sheaf_type type;
    double plain, weighted;
} losses[] = {
    {SHEAF_TYPE_Q8_0, 2.1563e-05, 1.7134e-05}, {SHEAF_TYPE_Q4_0, 0.0059168, 0.0047349},
    {SHEAF_TYPE_Q4_1, 0.0044881, 0.0034394},   {SHEAF_TYPE_Q5_0, 0.0013948, 0.0011226},
    {SHEAF_TYPE_Q5_1, 0.0010606, 0.00081827},  {SHEAF_TYPE_Q2_K, 0.064709, 0.044289},
    {SHEAF_TYPE_Q3_K, 0.019085, 0.015039},     {SHEAF_TYPE_Q4_K, 0.0045593, 0.0034516},
    {SHEAF_TYPE_Q5_K, 0.00111, 0.00086144},    {SHEAF_TYPE_Q6_K, 0.00024455, 0.00018864},
    {SHEAF_TYPE_IQ4_NL, 0.0050255, 0.0039365}, {SHEAF_TYPE_IQ4_XS, 0.0051445, 0.0042331},
    {SHEAF_TYPE_MXFP4, 0.012305, 0.012536},    {SHEAF_TYPE_NVFP4, 0.0065865, 0.0049952},
    {SHEAF_TYPE_Q1_0, 0.3412, 0.3364},         {SHEAF_TYPE_Q2_0, 0.1166, 0.10448},
    {SHEAF_TYPE_TQ1_0, 0.17566, 0.1762},       {SHEAF_TYPE_TQ2_0, 0.17337, 0.1699},
};
enum { N_LOSSES = sizeof losses / sizeof *losses };

Test(quants, the_search_finds_small_errors) {
    static float x[N], y[N], w[N];
    for (int t = 0; t < N_LOSSES; t++) {
        double error[2] = {0, 0}, power[2] = {0, 0};
        for (int row = 0; row < 16; row++) {
            fill(x, 0);
            for (int i = 0; i < N; i++) w[i] = expf(1.2f * random_bell());
            for (int weighted = 0; weighted < 2; weighted++) {
                searched(losses[t].type, x, weighted ? w : NULL, y);
                for (int i = 0; i < N; i++) {
                    const double of = weighted ? (double)w[i] : 1;
                    error[weighted] += of * pow((double)x[i] - (double)y[i], 2);
                    power[weighted] += of * pow((double)x[i], 2);
                }
            }
        }
        const char *name = sheaf_type_name(losses[t].type);
        cr_expect_leq(error[0], 1.001 * losses[t].plain * power[0], "%s: %g", name,
                      error[0] / power[0]);
        cr_expect_leq(error[1], 1.001 * losses[t].weighted * power[1], "%s, weighted: %g", name,
                      error[1] / power[1]);
    }
}

/* All kinds of data, also those that one half has to reach from 0.01 to 80: no worse than the plain
 * quantizer. */
Test(quants, the_search_is_not_worse_on_any_data) {
    static float x[N], y[N], plain[N];
    static uint8_t q[N * 4];
    for (int t = 0; t < N_LOSSES; t++) {
        const enum sheaf_type type = losses[t].type;
        for (int kind = 0; kind < N_KINDS; kind++) {
            double error = 0, of_plain = 0, power = 0;
            fill(x, kind);
            searched(type, x, NULL, y);
            cr_assert_eq(sheaf_from_float(type, x, q, N), SHEAF_STATUS_SUCCESS);
            cr_assert_eq(sheaf_to_float(type, q, plain, N), SHEAF_STATUS_SUCCESS);
            add_squares(x, y, &error, &power);
            add_squares(x, plain, &of_plain, &power);
            cr_expect_leq(error, of_plain * 1.0001, "%s data %d: %g, plain %g",
                          sheaf_type_name(type), kind, error, of_plain);
        }
    }
}

/* Parts of 16 or 32 elements that are of one value, that have no weight, or that lie above 0, beside
 * bell-shaped ones: blocks with integers lose at least 5 % less than those of sheaf_from_float, also
 * where there is no weight. */
Test(quants, the_search_meets_parts_of_all_kinds) {
    static const enum sheaf_type types[] = {SHEAF_TYPE_Q2_K, SHEAF_TYPE_Q3_K, SHEAF_TYPE_Q4_K,
                                            SHEAF_TYPE_Q5_K, SHEAF_TYPE_Q6_K, SHEAF_TYPE_IQ4_XS};
    static float x[N], y[N], plain[N], w[N];
    static uint8_t q[N * 4];
    for (size_t t = 0; t < sizeof types / sizeof *types; t++) {
        for (int kind = 0; kind < 3; kind++) {
            double error[2] = {0, 0}, of_plain[2] = {0, 0}; /* of odd parts: [1] */
            fill(x, 0);
            for (int i = 0; i < N; i++) {
                const bool odd = i / 32 % 2 != 0;
                if (odd && kind == 0) x[i] = -0.3f;
                if (odd && kind == 2) x[i] = fabsf(x[i]) + 1;
                w[i] = odd && kind == 1 ? 0 : 1;
            }
            searched(types[t], x, w, y);
            cr_assert_eq(sheaf_from_float(types[t], x, q, N), SHEAF_STATUS_SUCCESS);
            cr_assert_eq(sheaf_to_float(types[t], q, plain, N), SHEAF_STATUS_SUCCESS);
            for (int i = 0; i < N; i++) {
                error[i / 32 % 2] += pow((double)x[i] - (double)y[i], 2);
                of_plain[i / 32 % 2] += pow((double)x[i] - (double)plain[i], 2);
            }
            cr_expect_leq(error[0] + error[1], 0.95 * (of_plain[0] + of_plain[1]),
                          "%s, parts %d: %g, plain %g", sheaf_type_name(types[t]), kind,
                          error[0] + error[1], of_plain[0] + of_plain[1]);
            if (kind == 1)
                cr_expect_leq(error[1], 0.95 * of_plain[1], "%s", sheaf_type_name(types[t]));
        }
    }
}

/* Values that a block can hold are kept: a file of the same type does not change. */
Test(quants, the_search_keeps_what_blocks_hold) {
    static const enum sheaf_type types[] = {SHEAF_TYPE_Q4_0,  SHEAF_TYPE_Q4_1,  SHEAF_TYPE_Q5_0,
                                            SHEAF_TYPE_Q5_1,  SHEAF_TYPE_Q8_0,  SHEAF_TYPE_IQ4_NL,
                                            SHEAF_TYPE_MXFP4, SHEAF_TYPE_NVFP4, SHEAF_TYPE_Q1_0,
                                            SHEAF_TYPE_TQ1_0, SHEAF_TYPE_TQ2_0, SHEAF_TYPE_Q2_0};
    static float x[N], y[N];
    static uint8_t q[N * 4];
    for (size_t t = 0; t < sizeof types / sizeof *types; t++) {
        fill(x, 0);
        cr_assert_eq(sheaf_from_float(types[t], x, q, N), SHEAF_STATUS_SUCCESS);
        cr_assert_eq(sheaf_to_float(types[t], q, x, N), SHEAF_STATUS_SUCCESS);
        searched(types[t], x, NULL, y);
        for (int i = 0; i < N; i++)
            cr_expect_float_eq(y[i], x[i], 2e-3f * fabsf(x[i]), "%s: %g became %g",
                               sheaf_type_name(types[t]), (double)x[i], (double)y[i]);
    }
}

/* A type without a search, and a block without squares, gets the bits of sheaf_from_float; weights
 * that are no use do nothing. */
Test(quants, where_no_search_is_possible) {
    static const float useless[] = {0, -1, NAN, INFINITY};
    static float x[N], w[N];
    static uint8_t a[N * 4], b[N * 4];
    for (int t = 0; t < N_FLOAT_TYPES; t++) {
        const enum sheaf_type type = float_types[t];
        const size_t size = sheaf_row_size(type, N);
        bool has_search = false;
        for (int k = 0; k < N_LOSSES; k++) has_search |= losses[k].type == type;
        for (int kind = has_search ? 1 : 0; kind < 4; kind++) {
            fill(x, kind ? 1 : 0); /* zeros */
            if (kind > 1)
                for (int i = 0; i < N; i++) x[i] = kind == 2 ? 3e38f : i % 3 ? 1 : NAN;
            cr_assert_eq(sheaf_from_float(type, x, a, N), SHEAF_STATUS_SUCCESS);
            cr_assert_eq(sheaf_quantize(type, x, NULL, b, N), SHEAF_STATUS_SUCCESS);
            cr_expect_arr_eq(a, b, size, "%s, data %d", sheaf_type_name(type), kind);
        }
        fill(x, 0);
        cr_assert_eq(sheaf_quantize(type, x, NULL, a, N), SHEAF_STATUS_SUCCESS);
        for (int k = 0; k < 4; k++) {
            for (int i = 0; i < N; i++) w[i] = useless[k];
            cr_assert_eq(sheaf_quantize(type, x, w, b, N), SHEAF_STATUS_SUCCESS);
            cr_expect_arr_eq(a, b, size, "%s, weights %g", sheaf_type_name(type),
                             (double)useless[k]);
        }
    }
    cr_assert_eq(sheaf_quantize(SHEAF_TYPE_Q4_K, x, NULL, a, 32), SHEAF_STATUS_INVALID);
    cr_assert_eq(sheaf_quantize(SHEAF_TYPE_I64, x, NULL, a, 1), SHEAF_STATUS_UNSUPPORTED);
}

/* ---- against another implementation ---- */

static uint8_t hex_byte(FILE *f) {
    unsigned v;
    cr_assert_eq(fscanf(f, "%2x", &v), 1, "the golden file ends early");
    return (uint8_t)v;
}

/* tests/golden/quantize.txt: floats, and the blocks of the types of a K/V cache that ggml makes of
 * them. A cache that a program of ggml's compares with its own has the same bits. */
Test(quants, quantize_as_ggml) {
    FILE *f = fopen(SHEAF_SOURCE_DIR "/tests/golden/quantize.txt", "re");
    char name[16];
    int elements, lines = 0;
    cr_assert_not_null(f);
    while (fscanf(f, " #%*[^\n]") != EOF && fscanf(f, "%15s %d", name, &elements) == 2) {
        const enum sheaf_type type = sheaf_type_from_name(name);
        uint8_t bytes[256], got[256];
        float x[64];
        cr_assert(type != SHEAF_TYPE_COUNT && elements == 64, "%s", name);
        for (int i = 0; i < 256; i++) bytes[i] = hex_byte(f);
        memcpy(x, bytes, sizeof x);
        cr_assert_eq(sheaf_from_float(type, x, got, 64), SHEAF_STATUS_SUCCESS);
        for (size_t i = 0; i < sheaf_row_size(type, 64); i++) {
            const uint8_t want = hex_byte(f);
            cr_assert_eq(got[i], want, "%s, line %d, byte %zu: %02x, want %02x", name, lines, i,
                         got[i], want);
        }
        lines++;
    }
    fclose(f);
    cr_assert_eq(lines, 36);
}

static uint32_t crc32_of(const uint8_t *p, size_t n) {
    uint32_t crc = UINT32_MAX;
    for (size_t i = 0; i < n; i++) {
        crc ^= p[i];
        for (int b = 0; b < 8; b++) crc = crc >> 1 ^ (crc & 1 ? 0xedb88320u : 0);
    }
    return ~crc;
}

/* A block of a row for a cache: uniform; one element 4096 times as large; multiples of half a step from lo to
 * hi, which are the largest; one value, of which a quarter are zeros (ggml leaves IQ4_NL's unset); numbers of
 * 8 bits. */
static void cache_block(int kind, int lo, int hi, bool zeros, uint64_t *state, float x[32]) {
    const bool swapped = *state >> 63;
    for (int j = 0; j < 32; j++) {
        *state = *state * 6364136223846793005u + 1442695040888963407u;
        const int random = (int)(*state >> 40);
        x[j] = ldexpf((float)(random - (1 << 23)), -20);
        if (kind == 1 && j == 17) x[j] *= 4096;
        if (kind == 2) x[j] = (float)lo + 0.5f * (float)(random % (2 * (hi - lo) + 1));
        if (kind == 2 && j < 2) x[j] = (float)((j == 1) == swapped ? lo : hi);
        if (kind == 3 && j > 0) x[j] = x[0];
        if (kind == 3 && zeros && random % 4 == 0 && j == 0) x[j] = 0;
        if (kind == 4) x[j] = (float)((random >> 16) - 128);
    }
}

/* tests/golden/quantize-sums.txt: the same of 1024 blocks of each kind, as SET_ROWS of ggml's CPU device
 * writes them. */
Test(quants, many_blocks_as_ggml) {
    enum { BLOCKS = 1024 };
    FILE *f = fopen(SHEAF_SOURCE_DIR "/tests/golden/quantize-sums.txt", "re");
    static float x[32 * BLOCKS];
    static uint8_t blocks[34 * BLOCKS];
    char name[16];
    int lo, hi, types = 0;
    cr_assert_not_null(f);
    while (fscanf(f, " #%*[^\n]") != EOF && fscanf(f, "%15s %d %d", name, &lo, &hi) == 3) {
        const enum sheaf_type type = sheaf_type_from_name(name);
        cr_assert(sheaf_type_size(type) <= 34, "%s", name);
        for (int kind = 0; kind < 5; kind++) {
            uint64_t state = 1;
            unsigned want;
            for (int b = 0; b < BLOCKS; b++)
                cache_block(kind, lo, hi, type != SHEAF_TYPE_IQ4_NL, &state, x + (size_t)b * 32);
            cr_assert_eq(fscanf(f, "%x", &want), 1, "the golden file ends early");
            cr_assert_eq(sheaf_from_float(type, x, blocks, 32 * BLOCKS), SHEAF_STATUS_SUCCESS);
            const uint32_t sum = crc32_of(blocks, BLOCKS * sheaf_type_size(type));
            cr_expect_eq(sum, want, "%s, data %d: %08x, want %08x", name, kind, sum, want);
        }
        types++;
    }
    fclose(f);
    cr_assert_eq(types, 6);
}

/* tests/golden/dequantize.txt: random blocks, and the bits that the numpy dequantizers of the
 * Python package gguf 0.19.0 make of them. */
Test(quants, dequantize_as_gguf_py) {
    FILE *f = fopen(SHEAF_SOURCE_DIR "/tests/golden/dequantize.txt", "re");
    char name[16];
    int elements, types = 0;
    cr_assert_not_null(f);
    while (fscanf(f, " #%*[^\n]") != EOF && fscanf(f, "%15s %d", name, &elements) == 2) {
        const enum sheaf_type type = sheaf_type_from_name(name);
        uint8_t blocks[4096];
        float got[512];
        cr_assert_neq(type, SHEAF_TYPE_COUNT, "%s", name);
        cr_assert_leq(elements, 512);
        const size_t size = sheaf_row_size(type, elements);
        cr_assert(size > 0 && size <= sizeof blocks, "%s", name);
        for (size_t i = 0; i < size; i++) blocks[i] = hex_byte(f);
        cr_assert_eq(sheaf_to_float(type, blocks, got, elements), 0);
        for (int i = 0; i < elements; i++) {
            uint32_t want = 0;
            for (int b = 0; b < 4; b++) want |= (uint32_t)hex_byte(f) << 8 * b;
            cr_assert_eq(bits(got[i]), want, "%s element %d: %08x, want %08x", name, i,
                         bits(got[i]), want);
        }
        types++;
    }
    fclose(f);
    cr_assert_eq(types, 25);
}

/* tests/golden/dequantize-sums.txt: the same of so many blocks that every point of every grid is
 * met. */
Test(quants, many_blocks_as_gguf_py) {
    enum { ELEMENTS = 1 << 19 };
    FILE *f = fopen(SHEAF_SOURCE_DIR "/tests/golden/dequantize-sums.txt", "re");
    char name[16];
    int halves[2], types = 0;
    unsigned want;
    float *got = malloc(ELEMENTS * sizeof *got);
    cr_assert(f && got);
    while (fscanf(f, " #%*[^\n]") != EOF &&
           fscanf(f, "%15s %d %d %x", name, &halves[0], &halves[1], &want) == 4) {
        const enum sheaf_type type = sheaf_type_from_name(name);
        const size_t bytes = sheaf_row_size(type, ELEMENTS), size = sheaf_type_size(type);
        uint8_t *blocks = malloc(bytes);
        uint64_t state = 1;
        cr_assert_not_null(blocks, "%s", name);
        for (size_t i = 0; i < bytes; i++) {
            state = state * 6364136223846793005u + 1442695040888963407u;
            blocks[i] = (uint8_t)(state >> 56);
            for (int h = 0; h < 2; h++)
                if (halves[h] >= 0 && i % size == (size_t)halves[h] + 1) blocks[i] &= 0xbf;
        }
        cr_assert_eq(sheaf_to_float(type, blocks, got, ELEMENTS), 0);
        const uint32_t sum = crc32_of((const uint8_t *)got, ELEMENTS * sizeof *got);
        cr_assert_eq(sum, want, "%s: %08x, want %08x", name, sum, want);
        free(blocks);
        types++;
    }
    free(got);
    fclose(f);
    cr_assert_eq(types, 25);
}
