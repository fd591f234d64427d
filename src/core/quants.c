/* Rows of the block formats to floats and back.
 *
 * Dequantizing is exact up to the one float rounding of each product and sum, in the order written
 * here: it is the specification that the kernels of src/cpu are compared with. Quantizing rounds to
 * nearest with the largest magnitude (or the range) of a block as its scale: plain and predictable,
 * no search for a better scale. Every quantizer accepts any bits, also infinities and NaN, without
 * undefined behaviour; what it stores for them is unspecified. */
#include "core/quants.h"

#include <math.h>

/* ---- to floats ---- */

void sheaf__dequantize_q4_0(const void *src, float *dst, int64_t n) {
    const struct sheaf__block_q4_0 *b = src;
    for (int64_t i = 0; i < n / SHEAF__QK; i++, b++, dst += SHEAF__QK) {
        float d = sheaf__f16_to_f32(b->d);
        for (int j = 0; j < SHEAF__QK / 2; j++) {
            dst[j] = d * (float)((b->qs[j] & 15) - 8);
            dst[j + SHEAF__QK / 2] = d * (float)((b->qs[j] >> 4) - 8);
        }
    }
}

void sheaf__dequantize_q4_1(const void *src, float *dst, int64_t n) {
    const struct sheaf__block_q4_1 *b = src;
    for (int64_t i = 0; i < n / SHEAF__QK; i++, b++, dst += SHEAF__QK) {
        float d = sheaf__f16_to_f32(b->d), m = sheaf__f16_to_f32(b->m);
        for (int j = 0; j < SHEAF__QK / 2; j++) {
            dst[j] = d * (float)(b->qs[j] & 15) + m;
            dst[j + SHEAF__QK / 2] = d * (float)(b->qs[j] >> 4) + m;
        }
    }
}

static uint32_t load_le32(const uint8_t *p) {
    return (uint32_t)p[0] | (uint32_t)p[1] << 8 | (uint32_t)p[2] << 16 | (uint32_t)p[3] << 24;
}

static void store_le32(uint8_t *p, uint32_t u) {
    for (int i = 0; i < 4; i++) p[i] = (uint8_t)(u >> 8 * i);
}

void sheaf__dequantize_q5_0(const void *src, float *dst, int64_t n) {
    const struct sheaf__block_q5_0 *b = src;
    for (int64_t i = 0; i < n / SHEAF__QK; i++, b++, dst += SHEAF__QK) {
        float d = sheaf__f16_to_f32(b->d);
        uint32_t qh = load_le32(b->qh);
        for (int j = 0; j < SHEAF__QK / 2; j++) {
            int lo = (b->qs[j] & 15) | (int)(qh >> j & 1) << 4;
            int hi = b->qs[j] >> 4 | (int)(qh >> (j + 16) & 1) << 4;
            dst[j] = d * (float)(lo - 16);
            dst[j + SHEAF__QK / 2] = d * (float)(hi - 16);
        }
    }
}

void sheaf__dequantize_q5_1(const void *src, float *dst, int64_t n) {
    const struct sheaf__block_q5_1 *b = src;
    for (int64_t i = 0; i < n / SHEAF__QK; i++, b++, dst += SHEAF__QK) {
        float d = sheaf__f16_to_f32(b->d), m = sheaf__f16_to_f32(b->m);
        uint32_t qh = load_le32(b->qh);
        for (int j = 0; j < SHEAF__QK / 2; j++) {
            int lo = (b->qs[j] & 15) | (int)(qh >> j & 1) << 4;
            int hi = b->qs[j] >> 4 | (int)(qh >> (j + 16) & 1) << 4;
            dst[j] = d * (float)lo + m;
            dst[j + SHEAF__QK / 2] = d * (float)hi + m;
        }
    }
}

void sheaf__dequantize_q8_0(const void *src, float *dst, int64_t n) {
    const struct sheaf__block_q8_0 *b = src;
    for (int64_t i = 0; i < n / SHEAF__QK; i++, b++, dst += SHEAF__QK) {
        float d = sheaf__f16_to_f32(b->d);
        for (int j = 0; j < SHEAF__QK; j++) dst[j] = d * (float)b->qs[j];
    }
}

void sheaf__dequantize_q4_k(const void *src, float *dst, int64_t n) {
    const struct sheaf__block_q4_k *b = src;
    for (int64_t i = 0; i < n / SHEAF__QK_K; i++, b++) {
        float d = sheaf__f16_to_f32(b->d), dmin = sheaf__f16_to_f32(b->dmin);
        for (int s = 0; s < 8; s++, dst += 32) {
            uint8_t scale, min;
            sheaf__k_scale_min(b->scales, s, &scale, &min);
            float ds = d * (float)scale, ms = dmin * (float)min;
            const uint8_t *q = b->qs + s / 2 * 32;
            int shift = s % 2 * 4;
            for (int l = 0; l < 32; l++) dst[l] = ds * (float)(q[l] >> shift & 15) - ms;
        }
    }
}

void sheaf__dequantize_q5_k(const void *src, float *dst, int64_t n) {
    const struct sheaf__block_q5_k *b = src;
    for (int64_t i = 0; i < n / SHEAF__QK_K; i++, b++) {
        float d = sheaf__f16_to_f32(b->d), dmin = sheaf__f16_to_f32(b->dmin);
        for (int s = 0; s < 8; s++, dst += 32) {
            uint8_t scale, min;
            sheaf__k_scale_min(b->scales, s, &scale, &min);
            float ds = d * (float)scale, ms = dmin * (float)min;
            const uint8_t *q = b->qs + s / 2 * 32;
            int shift = s % 2 * 4;
            for (int l = 0; l < 32; l++)
                dst[l] = ds * (float)((q[l] >> shift & 15) | (b->qh[l] >> s & 1) << 4) - ms;
        }
    }
}

void sheaf__dequantize_q6_k(const void *src, float *dst, int64_t n) {
    const struct sheaf__block_q6_k *b = src;
    for (int64_t i = 0; i < n / SHEAF__QK_K; i++, b++) {
        float d = sheaf__f16_to_f32(b->d);
        for (int t = 0; t < 8; t++, dst += 32) { /* quarter t % 4 of half t / 4 */
            const uint8_t *ql = b->ql + t / 4 * 64 + t % 2 * 32, *qh = b->qh + t / 4 * 32;
            int lo = t % 4 / 2 * 4, hi = t % 4 * 2;
            for (int l = 0; l < 32; l++) {
                int q = (ql[l] >> lo & 15) | (qh[l] >> hi & 3) << 4;
                dst[l] = d * (float)b->scales[2 * t + l / 16] * (float)(q - 32);
            }
        }
    }
}

/* ---- from floats ---- */

/* The integer nearest to x within [lo, hi]; lo for NaN. */
static int round_to(float x, int lo, int hi) {
    float r = nearbyintf(x);
    return r > (float)lo ? r < (float)hi ? (int)r : hi : lo;
}

static float inverse(float d) { return d != 0 ? 1.0f / d : 0.0f; }

/* The element of largest magnitude, with its sign. */
static float signed_max(const float *x, int n) {
    float max = 0, abs = 0;
    for (int j = 0; j < n; j++) {
        if (fabsf(x[j]) > abs) {
            abs = fabsf(x[j]);
            max = x[j];
        }
    }
    return max;
}

static void range(const float *x, int n, float *min, float *max) {
    *min = *max = x[0];
    for (int j = 1; j < n; j++) {
        if (x[j] < *min) *min = x[j];
        if (x[j] > *max) *max = x[j];
    }
}

/* The formats without a min reach one step further on the negative side, so the element of largest
 * magnitude is put there: d has its sign reversed. */
void sheaf__quantize_q4_0(const float *src, void *dst, int64_t n) {
    struct sheaf__block_q4_0 *b = dst;
    for (int64_t i = 0; i < n / SHEAF__QK; i++, b++, src += SHEAF__QK) {
        b->d = sheaf__f32_to_f16(signed_max(src, SHEAF__QK) / -8);
        float id = inverse(sheaf__f16_to_f32(b->d));
        for (int j = 0; j < SHEAF__QK / 2; j++) {
            int lo = round_to(src[j] * id, -8, 7) + 8;
            int hi = round_to(src[j + SHEAF__QK / 2] * id, -8, 7) + 8;
            b->qs[j] = (uint8_t)(lo | hi << 4);
        }
    }
}

void sheaf__quantize_q4_1(const float *src, void *dst, int64_t n) {
    struct sheaf__block_q4_1 *b = dst;
    for (int64_t i = 0; i < n / SHEAF__QK; i++, b++, src += SHEAF__QK) {
        float min, max;
        range(src, SHEAF__QK, &min, &max);
        b->m = sheaf__f32_to_f16(min);
        b->d = sheaf__f32_to_f16((max - min) / 15);
        float m = sheaf__f16_to_f32(b->m), id = inverse(sheaf__f16_to_f32(b->d));
        for (int j = 0; j < SHEAF__QK / 2; j++) {
            int lo = round_to((src[j] - m) * id, 0, 15);
            int hi = round_to((src[j + SHEAF__QK / 2] - m) * id, 0, 15);
            b->qs[j] = (uint8_t)(lo | hi << 4);
        }
    }
}

void sheaf__quantize_q5_0(const float *src, void *dst, int64_t n) {
    struct sheaf__block_q5_0 *b = dst;
    for (int64_t i = 0; i < n / SHEAF__QK; i++, b++, src += SHEAF__QK) {
        b->d = sheaf__f32_to_f16(signed_max(src, SHEAF__QK) / -16);
        float id = inverse(sheaf__f16_to_f32(b->d));
        uint32_t qh = 0;
        for (int j = 0; j < SHEAF__QK / 2; j++) {
            int lo = round_to(src[j] * id, -16, 15) + 16;
            int hi = round_to(src[j + SHEAF__QK / 2] * id, -16, 15) + 16;
            b->qs[j] = (uint8_t)((lo & 15) | (hi & 15) << 4);
            qh |= (uint32_t)lo >> 4 << j | (uint32_t)hi >> 4 << (j + 16);
        }
        store_le32(b->qh, qh);
    }
}

void sheaf__quantize_q5_1(const float *src, void *dst, int64_t n) {
    struct sheaf__block_q5_1 *b = dst;
    for (int64_t i = 0; i < n / SHEAF__QK; i++, b++, src += SHEAF__QK) {
        float min, max;
        range(src, SHEAF__QK, &min, &max);
        b->m = sheaf__f32_to_f16(min);
        b->d = sheaf__f32_to_f16((max - min) / 31);
        float m = sheaf__f16_to_f32(b->m), id = inverse(sheaf__f16_to_f32(b->d));
        uint32_t qh = 0;
        for (int j = 0; j < SHEAF__QK / 2; j++) {
            int lo = round_to((src[j] - m) * id, 0, 31);
            int hi = round_to((src[j + SHEAF__QK / 2] - m) * id, 0, 31);
            b->qs[j] = (uint8_t)((lo & 15) | (hi & 15) << 4);
            qh |= (uint32_t)lo >> 4 << j | (uint32_t)hi >> 4 << (j + 16);
        }
        store_le32(b->qh, qh);
    }
}

void sheaf__quantize_q8_0(const float *src, void *dst, int64_t n) {
    struct sheaf__block_q8_0 *b = dst;
    for (int64_t i = 0; i < n / SHEAF__QK; i++, b++, src += SHEAF__QK) {
        b->d = sheaf__f32_to_f16(fabsf(signed_max(src, SHEAF__QK)) / 127);
        float id = inverse(sheaf__f16_to_f32(b->d));
        for (int j = 0; j < SHEAF__QK; j++) b->qs[j] = (int8_t)round_to(src[j] * id, -127, 127);
    }
}

/* The 6-bit scales and mins, and the levels 0..q_max of 256 elements. */
static void quantize_k(const float *x, int q_max, uint16_t *d, uint16_t *dmin, uint8_t *packed,
                       uint8_t *levels) {
    float scale[8], min[8], max_scale = 0, max_min = 0;
    for (int s = 0; s < 8; s++) {
        float lo, hi;
        range(x + 32 * s, 32, &lo, &hi);
        if (lo > 0) lo = 0; /* the format subtracts a min that is not negative */
        if (hi < lo) hi = lo;
        scale[s] = (hi - lo) / (float)q_max;
        min[s] = -lo;
        if (scale[s] > max_scale) max_scale = scale[s];
        if (min[s] > max_min) max_min = min[s];
    }
    *d = sheaf__f32_to_f16(max_scale / 63);
    *dmin = sheaf__f32_to_f16(max_min / 63);
    float df = sheaf__f16_to_f32(*d), mf = sheaf__f16_to_f32(*dmin);
    memset(packed, 0, SHEAF__K_SCALES);
    for (int s = 0; s < 8; s++) {
        int ls = round_to(scale[s] * inverse(df), 0, 63);
        int lm = round_to(min[s] * inverse(mf), 0, 63);
        if (s < 4) {
            packed[s] = (uint8_t)(packed[s] | ls);
            packed[s + 4] = (uint8_t)(packed[s + 4] | lm);
        } else {
            packed[s + 4] = (uint8_t)((ls & 15) | (lm & 15) << 4);
            packed[s - 4] = (uint8_t)(packed[s - 4] | (ls >> 4) << 6);
            packed[s] = (uint8_t)(packed[s] | (lm >> 4) << 6);
        }
        float id = inverse(df * (float)ls), m = mf * (float)lm;
        for (int l = 0; l < 32; l++)
            levels[32 * s + l] = (uint8_t)round_to((x[32 * s + l] + m) * id, 0, q_max);
    }
}

void sheaf__quantize_q4_k(const float *src, void *dst, int64_t n) {
    struct sheaf__block_q4_k *b = dst;
    uint8_t q[SHEAF__QK_K];
    for (int64_t i = 0; i < n / SHEAF__QK_K; i++, b++, src += SHEAF__QK_K) {
        quantize_k(src, 15, &b->d, &b->dmin, b->scales, q);
        for (int j = 0; j < SHEAF__QK_K / 2; j++) {
            int lo = j / 32 * 64 + j % 32;
            b->qs[j] = (uint8_t)(q[lo] | q[lo + 32] << 4);
        }
    }
}

void sheaf__quantize_q5_k(const float *src, void *dst, int64_t n) {
    struct sheaf__block_q5_k *b = dst;
    uint8_t q[SHEAF__QK_K];
    for (int64_t i = 0; i < n / SHEAF__QK_K; i++, b++, src += SHEAF__QK_K) {
        quantize_k(src, 31, &b->d, &b->dmin, b->scales, q);
        for (int j = 0; j < SHEAF__QK_K / 2; j++) {
            int lo = j / 32 * 64 + j % 32;
            b->qs[j] = (uint8_t)((q[lo] & 15) | (q[lo + 32] & 15) << 4);
        }
        for (int l = 0; l < 32; l++) {
            int bits = 0;
            for (int s = 0; s < 8; s++) bits |= q[32 * s + l] >> 4 << s;
            b->qh[l] = (uint8_t)bits;
        }
    }
}

void sheaf__quantize_q6_k(const float *src, void *dst, int64_t n) {
    struct sheaf__block_q6_k *b = dst;
    for (int64_t i = 0; i < n / SHEAF__QK_K; i++, b++, src += SHEAF__QK_K) {
        float scale[16];
        for (int s = 0; s < 16; s++) scale[s] = signed_max(src + 16 * s, 16) / -32;
        b->d = sheaf__f32_to_f16(signed_max(scale, 16) / -128);
        float d = sheaf__f16_to_f32(b->d);
        memset(b->ql, 0, sizeof b->ql);
        memset(b->qh, 0, sizeof b->qh);
        for (int s = 0; s < 16; s++)
            b->scales[s] = (int8_t)round_to(scale[s] * inverse(d), -128, 127);
        for (int j = 0; j < SHEAF__QK_K; j++) {
            float id = inverse(d * (float)b->scales[j / 16]);
            int q = round_to(src[j] * id, -32, 31) + 32, t = j / 32, l = j % 32;
            uint8_t *ql = &b->ql[t / 4 * 64 + t % 2 * 32 + l], *qh = &b->qh[t / 4 * 32 + l];
            *ql = (uint8_t)(*ql | (q & 15) << t % 4 / 2 * 4);
            *qh = (uint8_t)(*qh | (q >> 4) << t % 4 * 2);
        }
    }
}
