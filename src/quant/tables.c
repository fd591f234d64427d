/* Rows of the block formats that came later: Q2_K and Q3_K, those whose levels are a table, IQ4_NL,
 * IQ4_XS, MXFP4, NVFP4, and those of two to four levels, Q1_0, Q2_0, TQ1_0, TQ2_0. As in quants.c,
 * dequantizing is the specification, exact up to the rounding of each product and difference in the
 * order written. */
#include "quant/blocks.h"

static const int8_t iq4_levels[16] = SHEAF__IQ4_LEVELS, fp4_levels[16] = SHEAF__FP4_LEVELS;

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
            const float ds = d * (float)sheaf__q3_k_scale(b->scales, s);
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
        from_table(iq4_levels, sheaf__f16_to_f32(b->d), b->qs, dst);
}

void sheaf__dequantize_iq4_xs(const void *src, float *dst, int64_t n) {
    const struct sheaf__block_iq4_xs *b = src;
    for (int64_t i = 0; i < n / SHEAF__QK_K; i++, b++)
        for (int s = 0; s < 8; s++, dst += 32)
            from_table(iq4_levels, sheaf__f16_to_f32(b->d) * (float)sheaf__iq4_xs_scale(b, s),
                       b->qs + 16 * s, dst);
}

void sheaf__dequantize_mxfp4(const void *src, float *dst, int64_t n) {
    const struct sheaf__block_mxfp4 *b = src;
    for (int64_t i = 0; i < n / SHEAF__QK; i++, b++, dst += SHEAF__QK)
        from_table(fp4_levels, sheaf__mxfp4_scale(b->e), b->qs, dst);
}

void sheaf__dequantize_nvfp4(const void *src, float *dst, int64_t n) {
    const struct sheaf__block_nvfp4 *b = src;
    for (int64_t i = 0; i < n; i++) {
        const int at = (int)(i % SHEAF__QK_NVFP4), s = at / 16;
        const struct sheaf__block_nvfp4 *from = &b[i / SHEAF__QK_NVFP4];
        const int q = from->qs[8 * s + at % 8] >> at % 16 / 8 * 4 & 15;
        dst[i] = sheaf__nvfp4_scale(from->d[s]) * (float)fp4_levels[q];
    }
}

void sheaf__dequantize_q1_0(const void *src, float *dst, int64_t n) {
    const struct sheaf__block_q1_0 *b = src;
    for (int64_t i = 0; i < n / SHEAF__QK1; i++, b++, dst += SHEAF__QK1) {
        const float d = sheaf__f16_to_f32(b->d);
        for (int j = 0; j < SHEAF__QK1; j++) dst[j] = b->qs[j / 8] >> j % 8 & 1 ? d : -d;
    }
}

void sheaf__dequantize_q2_0(const void *src, float *dst, int64_t n) {
    const struct sheaf__block_q2_0 *b = src;
    for (int64_t i = 0; i < n / SHEAF__QK2; i++, b++, dst += SHEAF__QK2) {
        const float d = sheaf__f16_to_f32(b->d);
        for (int j = 0; j < SHEAF__QK2; j++)
            dst[j] = d * (float)((b->qs[j / 4] >> j % 4 * 2 & 3) - 1);
    }
}

void sheaf__dequantize_tq1_0(const void *src, float *dst, int64_t n) {
    const struct sheaf__block_tq1_0 *b = src;
    for (int64_t i = 0; i < n / SHEAF__QK_K; i++, b++) {
        const float d = sheaf__f16_to_f32(b->d);
        for (int j = 0; j < 160; j++)
            *dst++ = d * (float)(sheaf__tq1_digit(b->qs[j % 32], j / 32) - 1);
        for (int j = 0; j < 80; j++)
            *dst++ = d * (float)(sheaf__tq1_digit(b->qs[32 + j % 16], j / 16) - 1);
        for (int j = 0; j < 16; j++)
            *dst++ = d * (float)(sheaf__tq1_digit(b->qh[j % 4], j / 4) - 1);
    }
}

void sheaf__dequantize_tq2_0(const void *src, float *dst, int64_t n) {
    const struct sheaf__block_tq2_0 *b = src;
    for (int64_t i = 0; i < n / SHEAF__QK_K; i++, b++) {
        const float d = sheaf__f16_to_f32(b->d);
        for (int j = 0; j < SHEAF__QK_K; j++)
            *dst++ = d * (float)((b->qs[j / 128 * 32 + j % 32] >> j / 32 % 4 * 2 & 3) - 1);
    }
}

/* ---- from floats ---- */

SHEAF__QUANTIZE(q2_k, SHEAF__QK_K)
SHEAF__QUANTIZE(q3_k, SHEAF__QK_K)
SHEAF__QUANTIZE(iq4_nl, SHEAF__QK)
SHEAF__QUANTIZE(iq4_xs, SHEAF__QK_K)
SHEAF__QUANTIZE(mxfp4, SHEAF__QK)
SHEAF__QUANTIZE(nvfp4, SHEAF__QK_NVFP4)
SHEAF__QUANTIZE(q1_0, SHEAF__QK1)
SHEAF__QUANTIZE(q2_0, SHEAF__QK2)
SHEAF__QUANTIZE(tq1_0, SHEAF__QK_K)
SHEAF__QUANTIZE(tq2_0, SHEAF__QK_K)
