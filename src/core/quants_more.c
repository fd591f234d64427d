/* Rows of the block formats that have no kernels of their own: Q2_K and Q3_K, and those whose
 * levels are a table: IQ4_NL, IQ4_XS, MXFP4. As in quants.c, dequantizing is the specification,
 * exact up to the rounding of each product and difference in the order written; quantizing is
 * plain. */
#include <math.h>

#include "core/quants.h"

/* Levels of IQ4_NL and IQ4_XS, closer together near zero; and of FP4 (E2M1), doubled. */
const int8_t sheaf__iq4_values[16] = {-127, -104, -83, -65, -49, -35, -22, -10,
                                      1,    13,   25,  38,  53,  69,  89,  113};
const int8_t sheaf__fp4_values[16] = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};

/* 2^(e - 128), e of the scales of MXFP4. */
static float power_of(uint8_t e) {
    return sheaf__bits_f32(e < 2 ? 0x00200000u << e : (uint32_t)(e - 1) << 23);
}

static int q3_scale(const uint8_t *scales, int i) {
    return ((scales[i % 8] >> i / 8 * 4 & 15) | (scales[8 + i % 4] >> i / 4 * 2 & 3) << 4) - 32;
}

static int iq4_scale(const struct sheaf__block_iq4_xs *b, int i) {
    return ((b->scales_l[i / 2] >> i % 2 * 4 & 15) | (b->scales_h >> 2 * i & 3) << 4) - 32;
}

/* ---- to floats ---- */

void sheaf__dequantize_q2_k(const void *src, float *dst, int64_t n) {
    const struct sheaf__block_q2_k *b = src;
    for (int64_t i = 0; i < n / SHEAF__QK_K; i++, b++) {
        const float d = sheaf__f16_to_f32(b->d), dmin = sheaf__f16_to_f32(b->dmin);
        for (int s = 0; s < 16; s++, dst += 16) {
            const float ds = d * (float)(b->scales[s] & 15), ms = dmin * (float)(b->scales[s] >> 4);
            const uint8_t *q = b->qs + s / 8 * 32 + s % 2 * 16;
            for (int l = 0; l < 16; l++) dst[l] = ds * (float)(q[l] >> s % 8 / 2 * 2 & 3) - ms;
        }
    }
}

void sheaf__dequantize_q3_k(const void *src, float *dst, int64_t n) {
    const struct sheaf__block_q3_k *b = src;
    for (int64_t i = 0; i < n / SHEAF__QK_K; i++, b++) {
        const float d = sheaf__f16_to_f32(b->d);
        for (int s = 0; s < 16; s++, dst += 16) {
            const float ds = d * (float)q3_scale(b->scales, s);
            const uint8_t *q = b->qs + s / 8 * 32 + s % 2 * 16, *h = b->hmask + s % 2 * 16;
            for (int l = 0; l < 16; l++)
                dst[l] = ds * (float)((q[l] >> s % 8 / 2 * 2 & 3) - (h[l] >> s / 2 & 1 ? 0 : 4));
        }
    }
}

/* 32 elements of a table, their numbers in 16 bytes. */
static void from_table(const int8_t *table, float d, const uint8_t *qs, float *dst) {
    for (int j = 0; j < 16; j++) {
        dst[j] = d * (float)table[qs[j] & 15];
        dst[j + 16] = d * (float)table[qs[j] >> 4];
    }
}

void sheaf__dequantize_iq4_nl(const void *src, float *dst, int64_t n) {
    const struct sheaf__block_iq4_nl *b = src;
    for (int64_t i = 0; i < n / SHEAF__QK; i++, b++, dst += SHEAF__QK)
        from_table(sheaf__iq4_values, sheaf__f16_to_f32(b->d), b->qs, dst);
}

void sheaf__dequantize_iq4_xs(const void *src, float *dst, int64_t n) {
    const struct sheaf__block_iq4_xs *b = src;
    for (int64_t i = 0; i < n / SHEAF__QK_K; i++, b++)
        for (int s = 0; s < 8; s++, dst += 32)
            from_table(sheaf__iq4_values, sheaf__f16_to_f32(b->d) * (float)iq4_scale(b, s),
                       b->qs + 16 * s, dst);
}

void sheaf__dequantize_mxfp4(const void *src, float *dst, int64_t n) {
    const struct sheaf__block_mxfp4 *b = src;
    for (int64_t i = 0; i < n / SHEAF__QK; i++, b++, dst += SHEAF__QK)
        from_table(sheaf__fp4_values, power_of(b->e), b->qs, dst);
}

/* ---- from floats ---- */

static int round_to(float x, int lo, int hi) {
    const float r = nearbyintf(x);
    return r > (float)lo ? r < (float)hi ? (int)r : hi : lo;
}

static float inverse(float d) { return d != 0 ? 1.0f / d : 0.0f; }

/* The element of largest magnitude, with its sign. */
static float signed_max(const float *x, int n) {
    float max = 0;
    for (int j = 0; j < n; j++) {
        if (fabsf(x[j]) > fabsf(max)) max = x[j];
    }
    return max;
}

static int nearest(const int8_t *table, float x) {
    int best = 0;
    for (int k = 1; k < 16; k++) {
        if (fabsf(x - (float)table[k]) < fabsf(x - (float)table[best])) best = k;
    }
    return best;
}

static void to_table(const int8_t *table, float id, const float *src, uint8_t *qs) {
    for (int j = 0; j < 16; j++)
        qs[j] = (uint8_t)(nearest(table, src[j] * id) | nearest(table, src[j + 16] * id) << 4);
}

void sheaf__quantize_q2_k(const float *src, void *dst, int64_t n) {
    struct sheaf__block_q2_k *b = dst;
    for (int64_t i = 0; i < n / SHEAF__QK_K; i++, b++, src += SHEAF__QK_K) {
        float scale[16], min[16], max_scale = 0, max_min = 0;
        for (int s = 0; s < 16; s++) {
            float lo = 0, hi = 0; /* the format subtracts a min that is not negative */
            for (int l = 0; l < 16; l++) {
                lo = src[16 * s + l] < lo ? src[16 * s + l] : lo;
                hi = src[16 * s + l] > hi ? src[16 * s + l] : hi;
            }
            scale[s] = (hi - lo) / 3;
            min[s] = -lo;
            max_scale = scale[s] > max_scale ? scale[s] : max_scale;
            max_min = min[s] > max_min ? min[s] : max_min;
        }
        b->d = sheaf__f32_to_f16(max_scale / 15);
        b->dmin = sheaf__f32_to_f16(max_min / 15);
        const float d = sheaf__f16_to_f32(b->d), dmin = sheaf__f16_to_f32(b->dmin);
        memset(b->qs, 0, sizeof b->qs);
        for (int s = 0; s < 16; s++) {
            const int ls = round_to(scale[s] * inverse(d), 0, 15);
            const int lm = round_to(min[s] * inverse(dmin), 0, 15);
            const float id = inverse(d * (float)ls), m = dmin * (float)lm;
            uint8_t *q = b->qs + s / 8 * 32 + s % 2 * 16;
            b->scales[s] = (uint8_t)(ls | lm << 4);
            for (int l = 0; l < 16; l++)
                q[l] =
                    (uint8_t)(q[l] | round_to((src[16 * s + l] + m) * id, 0, 3) << s % 8 / 2 * 2);
        }
    }
}

void sheaf__quantize_q3_k(const float *src, void *dst, int64_t n) {
    struct sheaf__block_q3_k *b = dst;
    for (int64_t i = 0; i < n / SHEAF__QK_K; i++, b++, src += SHEAF__QK_K) {
        float scale[16];
        for (int s = 0; s < 16; s++) scale[s] = signed_max(src + 16 * s, 16) / -4;
        memset(b, 0, sizeof *b);
        b->d = sheaf__f32_to_f16(signed_max(scale, 16) / -32);
        const float d = sheaf__f16_to_f32(b->d);
        for (int s = 0; s < 16; s++) {
            const int ls = round_to(scale[s] * inverse(d), -32, 31);
            const float id = inverse(d * (float)ls);
            uint8_t *q = b->qs + s / 8 * 32 + s % 2 * 16, *h = b->hmask + s % 2 * 16;
            uint8_t *low = &b->scales[s % 8], *high = &b->scales[8 + s % 4];
            *low = (uint8_t)(*low | ((ls + 32) & 15) << s / 8 * 4);
            *high = (uint8_t)(*high | (ls + 32) >> 4 << s / 4 * 2);
            for (int l = 0; l < 16; l++) {
                const int v = round_to(src[16 * s + l] * id, -4, 3) + 4;
                q[l] = (uint8_t)(q[l] | (v & 3) << s % 8 / 2 * 2);
                h[l] = (uint8_t)(h[l] | v >> 2 << s / 2);
            }
        }
    }
}

void sheaf__quantize_iq4_nl(const float *src, void *dst, int64_t n) {
    struct sheaf__block_iq4_nl *b = dst;
    for (int64_t i = 0; i < n / SHEAF__QK; i++, b++, src += SHEAF__QK) {
        b->d = sheaf__f32_to_f16(signed_max(src, SHEAF__QK) / -127);
        to_table(sheaf__iq4_values, inverse(sheaf__f16_to_f32(b->d)), src, b->qs);
    }
}

void sheaf__quantize_iq4_xs(const float *src, void *dst, int64_t n) {
    struct sheaf__block_iq4_xs *b = dst;
    for (int64_t i = 0; i < n / SHEAF__QK_K; i++, b++, src += SHEAF__QK_K) {
        float scale[8];
        for (int s = 0; s < 8; s++) scale[s] = signed_max(src + 32 * s, 32) / -127;
        memset(b, 0, sizeof *b);
        b->d = sheaf__f32_to_f16(signed_max(scale, 8) / -32);
        const float d = sheaf__f16_to_f32(b->d);
        for (int s = 0; s < 8; s++) {
            const int ls = round_to(scale[s] * inverse(d), -32, 31);
            b->scales_l[s / 2] = (uint8_t)(b->scales_l[s / 2] | ((ls + 32) & 15) << s % 2 * 4);
            b->scales_h = (uint16_t)(b->scales_h | (ls + 32) >> 4 << 2 * s);
            to_table(sheaf__iq4_values, inverse(d * (float)ls), src + 32 * s, b->qs + 16 * s);
        }
    }
}

/* The largest element lies at levels 8 to 12, or is cut down to 12. */
void sheaf__quantize_mxfp4(const float *src, void *dst, int64_t n) {
    struct sheaf__block_mxfp4 *b = dst;
    for (int64_t i = 0; i < n / SHEAF__QK; i++, b++, src += SHEAF__QK) {
        const float max = fabsf(signed_max(src, SHEAF__QK));
        int exponent = -128;
        if (max > 0 && isfinite(max)) frexpf(max, &exponent); /* max = 0.5..1 * 2^exponent */
        b->e = (uint8_t)round_to((float)(exponent + 124), 0, 254);
        to_table(sheaf__fp4_values, inverse(power_of(b->e)), src, b->qs);
    }
}
