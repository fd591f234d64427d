/* Rows of the block formats to floats and back.
 *
 * Dequantizing is exact up to the one float rounding of each product and sum, in the order written
 * here: it is the specification that the kernels of devices are compared with. Quantizing goes
 * block by block (blocks.h). */
#include "quant/blocks.h"

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

void sheaf__dequantize_q5_0(const void *src, float *dst, int64_t n) {
    const struct sheaf__block_q5_0 *b = src;
    for (int64_t i = 0; i < n / SHEAF__QK; i++, b++, dst += SHEAF__QK) {
        float d = sheaf__f16_to_f32(b->d);
        uint32_t qh = sheaf__load_le32(b->qh);
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
        uint32_t qh = sheaf__load_le32(b->qh);
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

SHEAF__QUANTIZE(q4_0, SHEAF__QK)
SHEAF__QUANTIZE(q4_1, SHEAF__QK)
SHEAF__QUANTIZE(q5_0, SHEAF__QK)
SHEAF__QUANTIZE(q5_1, SHEAF__QK)
SHEAF__QUANTIZE(q8_0, SHEAF__QK)
SHEAF__QUANTIZE(q4_k, SHEAF__QK_K)
SHEAF__QUANTIZE(q5_k, SHEAF__QK_K)
SHEAF__QUANTIZE(q6_k, SHEAF__QK_K)
