/* One block of floats to one block of each format, for rows on the host (quants.c) and for kernels
 * on a device (src/cuda): a copy gives the same bytes on both.
 *
 * Quantizing rounds to nearest with the largest magnitude (or the range) of a block as its scale:
 * plain and predictable, no search for a better scale (IQ4_NL takes one step of least squares). The
 * types of a K/V cache, which are Q8_0 Q4_0 Q4_1 Q5_0 Q5_1 IQ4_NL, get the bits that ggml's CPU
 * writes into its caches, unless a scale is below 2^-14: elements are divided by the scale before
 * it is rounded to half. Every quantizer accepts any bits, also infinities and NaN, without
 * undefined behaviour; what it stores for them is unspecified. Nothing here needs memory that is
 * aligned to more than two bytes, and MXFP4's and NVFP4's not to more than one.
 *
 * Compiled as C and as C++, without contraction of products in either. */
#ifndef SHEAF_QUANT_BLOCKS_H
#define SHEAF_QUANT_BLOCKS_H

#include <math.h>

#include "quant/quants.h"

/* The integer nearest to x within [lo, hi]; lo for NaN. */
SHEAF__HD int sheaf__round_to(float x, int lo, int hi) {
    const float r = nearbyintf(x);
    return r > (float)lo ? r < (float)hi ? (int)r : hi : lo;
}

SHEAF__HD float sheaf__inverse(float d) { return d != 0 ? 1.0f / d : 0.0f; }

/* The integer below x within [0, hi]; 0 for NaN. x is a number of steps, and a half. */
SHEAF__HD int sheaf__floor_to(float x, int hi) { return x > 0 ? x < (float)hi ? (int)x : hi : 0; }

/* A scale as a half float, and what an element is multiplied by: 1 over the scale as it was, or,
 * where the half has few bits (it is subnormal), over what it became. */
SHEAF__HD float sheaf__scale_to(float d, uint16_t *half) {
    *half = sheaf__f32_to_f16(d);
    return (*half & 0x7c00) ? 1.0f / d : sheaf__inverse(sheaf__f16_to_f32(*half));
}

/* The element of largest magnitude, with its sign. */
SHEAF__HD float sheaf__signed_max(const float *x, int n) {
    float max = 0, abs = 0;
    for (int j = 0; j < n; j++) {
        if (fabsf(x[j]) > abs) {
            abs = fabsf(x[j]);
            max = x[j];
        }
    }
    return max;
}

SHEAF__HD void sheaf__range(const float *x, int n, float *min, float *max) {
    *min = *max = x[0];
    for (int j = 1; j < n; j++) {
        if (x[j] < *min) *min = x[j];
        if (x[j] > *max) *max = x[j];
    }
}

/* ---- 32 elements ---- */

/* The formats without a min reach one step further on the negative side, so the element of largest
 * magnitude is put there: d has its sign reversed. */
SHEAF__HD void sheaf__quantize_block_q4_0(const float *x, struct sheaf__block_q4_0 *b) {
    const float id = sheaf__scale_to(sheaf__signed_max(x, SHEAF__QK) / -8, &b->d);
    for (int j = 0; j < SHEAF__QK / 2; j++) {
        const int lo = sheaf__floor_to(x[j] * id + 8.5f, 15);
        const int hi = sheaf__floor_to(x[j + SHEAF__QK / 2] * id + 8.5f, 15);
        b->qs[j] = (uint8_t)(lo | hi << 4);
    }
}

SHEAF__HD void sheaf__quantize_block_q4_1(const float *x, struct sheaf__block_q4_1 *b) {
    float min, max;
    sheaf__range(x, SHEAF__QK, &min, &max);
    b->m = sheaf__f32_to_f16(min);
    const float id = sheaf__scale_to((max - min) / 15, &b->d);
    for (int j = 0; j < SHEAF__QK / 2; j++) {
        const int lo = sheaf__floor_to((x[j] - min) * id + 0.5f, 15);
        const int hi = sheaf__floor_to((x[j + SHEAF__QK / 2] - min) * id + 0.5f, 15);
        b->qs[j] = (uint8_t)(lo | hi << 4);
    }
}

/* Elements j and j + 16 of a block of 5 bits: their low halves, and their fifth bits into *qh. */
SHEAF__HD uint8_t sheaf__five_bits(int j, int lo, int hi, uint32_t *qh) {
    *qh |= (uint32_t)lo >> 4 << j | (uint32_t)hi >> 4 << (j + SHEAF__QK / 2);
    return (uint8_t)((lo & 15) | (hi & 15) << 4);
}
SHEAF__HD void sheaf__store_le32(uint8_t *p, uint32_t u) {
    for (int i = 0; i < 4; i++) p[i] = (uint8_t)(u >> 8 * i);
}

SHEAF__HD void sheaf__quantize_block_q5_0(const float *x, struct sheaf__block_q5_0 *b) {
    const float id = sheaf__scale_to(sheaf__signed_max(x, SHEAF__QK) / -16, &b->d);
    uint32_t qh = 0;
    for (int j = 0; j < SHEAF__QK / 2; j++) {
        const int lo = sheaf__floor_to(x[j] * id + 16.5f, 31);
        const int hi = sheaf__floor_to(x[j + SHEAF__QK / 2] * id + 16.5f, 31);
        b->qs[j] = sheaf__five_bits(j, lo, hi, &qh);
    }
    sheaf__store_le32(b->qh, qh);
}

SHEAF__HD void sheaf__quantize_block_q5_1(const float *x, struct sheaf__block_q5_1 *b) {
    float min, max;
    sheaf__range(x, SHEAF__QK, &min, &max);
    b->m = sheaf__f32_to_f16(min);
    const float id = sheaf__scale_to((max - min) / 31, &b->d);
    uint32_t qh = 0;
    for (int j = 0; j < SHEAF__QK / 2; j++) {
        const int lo = sheaf__floor_to((x[j] - min) * id + 0.5f, 31);
        const int hi = sheaf__floor_to((x[j + SHEAF__QK / 2] - min) * id + 0.5f, 31);
        b->qs[j] = sheaf__five_bits(j, lo, hi, &qh);
    }
    sheaf__store_le32(b->qh, qh);
}

/* What an element of Q8_0 is multiplied by: 127 over the largest magnitude, whose product is
 * rounded once less than that of 1 / (max / 127). Elements that were bf16 lie close to the middle
 * of two integers often enough that the two are told apart. */
SHEAF__HD float sheaf__q8_0_scale(float max, uint16_t *half) {
    const float id = sheaf__scale_to(max / 127, half);
    return (*half & 0x7c00) && (*half & 0x7c00) != 0x7c00 ? 127 / max : id;
}

/* Ties to even, as the vector instructions round. */
SHEAF__HD void sheaf__quantize_block_q8_0(const float *x, struct sheaf__block_q8_0 *b) {
    const float id = sheaf__q8_0_scale(fabsf(sheaf__signed_max(x, SHEAF__QK)), &b->d);
    for (int j = 0; j < SHEAF__QK; j++) b->qs[j] = (int8_t)sheaf__round_to(x[j] * id, -127, 127);
}

/* 32 elements to the numbers of the nearest of 16 levels, in 16 bytes. */
SHEAF__HD int sheaf__nearest(const int8_t *levels, float x) {
    int best = 0;
    for (int k = 1; k < 16; k++) {
        if (fabsf(x - (float)levels[k]) < fabsf(x - (float)levels[best])) best = k;
    }
    return best;
}
SHEAF__HD void sheaf__to_levels(const int8_t *levels, float id, const float *x, uint8_t *qs) {
    for (int j = 0; j < 16; j++)
        qs[j] = (uint8_t)(sheaf__nearest(levels, x[j] * id) | sheaf__nearest(levels, x[j + 16] * id)
                                                                  << 4);
}

/* The number of the level nearest to x, of two the upper one. Levels rise. */
SHEAF__HD int sheaf__nearest_rising(const int8_t *levels, float x) {
    int k = 0;
    while (k < 15 && !(x - (float)levels[k] < (float)levels[k + 1] - x)) k++;
    return k;
}

/* Levels by the element of largest magnitude at -127, then the scale that leaves the smallest
 * squared error of these, weighted by the squares of the elements. */
SHEAF__HD void sheaf__quantize_block_iq4_nl(const float *x, struct sheaf__block_iq4_nl *b) {
    const int8_t levels[16] = SHEAF__IQ4_LEVELS;
    const float max = sheaf__signed_max(x, SHEAF__QK);
    const float id = fabsf(max) < 1e-15f ? 0.0f : 1.0f / (max / -127);
    float products = 0, squares = 0;
    for (int j = 0; j < SHEAF__QK; j++) {
        const int k = sheaf__nearest_rising(levels, x[j] * id);
        const float q = (float)levels[k], w = x[j] * x[j];
        products += w * q * x[j];
        squares += w * q * q;
        b->qs[j % 16] = (uint8_t)(j < 16 ? k : b->qs[j % 16] | k << 4);
    }
    b->d = sheaf__f32_to_f16(squares > 0 ? products / squares : 0.0f);
}

/* The largest element lies at levels 8 to 12, or is cut down to 12. */
SHEAF__HD void sheaf__quantize_block_mxfp4(const float *x, struct sheaf__block_mxfp4 *b) {
    const int8_t levels[16] = SHEAF__FP4_LEVELS;
    const float max = fabsf(sheaf__signed_max(x, SHEAF__QK));
    int exponent = -128;
    if (max > 0 && max <= 0x1.fffffep127f) frexpf(max, &exponent); /* 0.5..1 * 2^exponent */
    b->e = (uint8_t)sheaf__round_to((float)(exponent + 124), 0, 254);
    sheaf__to_levels(levels, sheaf__inverse(sheaf__mxfp4_scale(b->e)), x, b->qs);
}

/* ---- 64 and 128 elements ---- */

/* x as an unsigned E4M3, nearest, ties to even; 448 for what is larger. */
SHEAF__HD uint8_t sheaf__to_e4m3(float x) {
    if (!(x > 0)) return 0;
    if (x >= 448) return 0x7e;
    if (x < 0x1p-6f) return (uint8_t)sheaf__round_to(x * 512, 0, 8); /* subnormal, or 2^-6 */
    const uint32_t u = sheaf__f32_bits(x);
    return (uint8_t)(((u + 0x7ffff + (u >> 20 & 1)) >> 20) - (120 << 3));
}

SHEAF__HD void sheaf__quantize_block_nvfp4(const float *x, struct sheaf__block_nvfp4 *b) {
    const int8_t levels[16] = SHEAF__FP4_LEVELS;
    for (int s = 0; s < SHEAF__QK_NVFP4 / 16; s++, x += 16) {
        b->d[s] = sheaf__to_e4m3(fabsf(sheaf__signed_max(x, 16)) / 6);
        const float id = sheaf__inverse(sheaf__nvfp4_scale(b->d[s]));
        for (int j = 0; j < 8; j++)
            b->qs[8 * s + j] = (uint8_t)(sheaf__nearest(levels, x[j] * id) |
                                         sheaf__nearest(levels, x[j + 8] * id) << 4);
    }
}

/* Signs, and the mean magnitude. */
SHEAF__HD void sheaf__quantize_block_q1_0(const float *x, struct sheaf__block_q1_0 *b) {
    float sum = 0;
    for (int j = 0; j < SHEAF__QK1; j++) sum += fabsf(x[j]);
    b->d = sheaf__f32_to_f16(sum / SHEAF__QK1);
    for (int i = 0; i < SHEAF__QK1 / 8; i++) {
        int bits = 0;
        for (int j = 0; j < 8; j++) bits |= (x[8 * i + j] >= 0) << j;
        b->qs[i] = (uint8_t)bits;
    }
}

/* -1, 0, 1 times the largest magnitude: what weights of three values are stored by exactly. */
SHEAF__HD int sheaf__ternary(float x, float id) { return sheaf__round_to(x * id, -1, 1) + 1; }

SHEAF__HD void sheaf__quantize_block_q2_0(const float *x, struct sheaf__block_q2_0 *b) {
    b->d = sheaf__f32_to_f16(fabsf(sheaf__signed_max(x, SHEAF__QK2)));
    const float id = sheaf__inverse(sheaf__f16_to_f32(b->d));
    for (int i = 0; i < SHEAF__QK2 / 4; i++) {
        int q = 0;
        for (int j = 0; j < 4; j++) q |= sheaf__ternary(x[4 * i + j], id) << 2 * j;
        b->qs[i] = (uint8_t)q;
    }
}

/* ---- 256 elements ---- */

SHEAF__HD void sheaf__quantize_block_tq2_0(const float *x, struct sheaf__block_tq2_0 *b) {
    b->d = sheaf__f32_to_f16(fabsf(sheaf__signed_max(x, SHEAF__QK_K)));
    const float id = sheaf__inverse(sheaf__f16_to_f32(b->d));
    for (int i = 0; i < SHEAF__QK_K / 4; i++) {
        int q = 0;
        for (int t = 0; t < 4; t++)
            q |= sheaf__ternary(x[i / 32 * 128 + 32 * t + i % 32], id) << 2 * t;
        b->qs[i] = (uint8_t)q;
    }
}

/* n digits, `step` elements apart, as the byte that has them; the fifth of four is 0. */
SHEAF__HD uint8_t sheaf__tq1_byte(const float *x, int step, int n, float id) {
    int q = 0;
    for (int i = 0; i < 5; i++) q = 3 * q + (i < n ? sheaf__ternary(x[step * i], id) : 0);
    return (uint8_t)((q * 256 + 242) / 243);
}
SHEAF__HD void sheaf__quantize_block_tq1_0(const float *x, struct sheaf__block_tq1_0 *b) {
    b->d = sheaf__f32_to_f16(fabsf(sheaf__signed_max(x, SHEAF__QK_K)));
    const float id = sheaf__inverse(sheaf__f16_to_f32(b->d));
    for (int m = 0; m < 32; m++) b->qs[m] = sheaf__tq1_byte(x + m, 32, 5, id);
    for (int m = 0; m < 16; m++) b->qs[32 + m] = sheaf__tq1_byte(x + 160 + m, 16, 5, id);
    for (int m = 0; m < 4; m++) b->qh[m] = sheaf__tq1_byte(x + 240 + m, 4, 4, id);
}

/* Number s of the 6-bit scales and mins of Q4_K and Q5_K into bytes that were 0. */
SHEAF__HD void sheaf__add_k_scale_min(uint8_t *packed, int s, int ls, int lm) {
    if (s < 4) {
        packed[s] = (uint8_t)(packed[s] | ls);
        packed[s + 4] = (uint8_t)(packed[s + 4] | lm);
    } else {
        packed[s + 4] = (uint8_t)((ls & 15) | (lm & 15) << 4);
        packed[s - 4] = (uint8_t)(packed[s - 4] | (ls >> 4) << 6);
        packed[s] = (uint8_t)(packed[s] | (lm >> 4) << 6);
    }
}

/* Q4_K and Q5_K: the 6-bit scales and mins, packed, and what they stand for. */
SHEAF__HD void sheaf__quantize_scales(const float *x, int q_max, uint16_t *d, uint16_t *dmin,
                                      uint8_t *packed, float *scale, float *min) {
    float max_scale = 0, max_min = 0;
    for (int s = 0; s < 8; s++) {
        float lo, hi;
        sheaf__range(x + 32 * s, 32, &lo, &hi);
        if (lo > 0) lo = 0; /* the format subtracts a min that is not negative */
        if (hi < lo) hi = lo;
        scale[s] = (hi - lo) / (float)q_max;
        min[s] = -lo;
        if (scale[s] > max_scale) max_scale = scale[s];
        if (min[s] > max_min) max_min = min[s];
    }
    *d = sheaf__f32_to_f16(max_scale / 63);
    *dmin = sheaf__f32_to_f16(max_min / 63);
    const float df = sheaf__f16_to_f32(*d), mf = sheaf__f16_to_f32(*dmin);
    for (int i = 0; i < SHEAF__K_SCALES; i++) packed[i] = 0;
    for (int s = 0; s < 8; s++) {
        const int ls = sheaf__round_to(scale[s] * sheaf__inverse(df), 0, 63);
        const int lm = sheaf__round_to(min[s] * sheaf__inverse(mf), 0, 63);
        sheaf__add_k_scale_min(packed, s, ls, lm);
        scale[s] = df * (float)ls;
        min[s] = mf * (float)lm;
    }
}

SHEAF__HD void sheaf__quantize_block_q4_k(const float *x, struct sheaf__block_q4_k *b) {
    float scale[8], min[8];
    sheaf__quantize_scales(x, 15, &b->d, &b->dmin, b->scales, scale, min);
    for (int s = 0; s < 8; s += 2, x += 64) {
        const float id0 = sheaf__inverse(scale[s]), id1 = sheaf__inverse(scale[s + 1]);
        for (int l = 0; l < 32; l++)
            b->qs[16 * s + l] =
                (uint8_t)(sheaf__round_to((x[l] + min[s]) * id0, 0, 15) |
                          sheaf__round_to((x[l + 32] + min[s + 1]) * id1, 0, 15) << 4);
    }
}

SHEAF__HD void sheaf__quantize_block_q5_k(const float *x, struct sheaf__block_q5_k *b) {
    float scale[8], min[8];
    sheaf__quantize_scales(x, 31, &b->d, &b->dmin, b->scales, scale, min);
    for (int l = 0; l < 32; l++) b->qh[l] = 0;
    for (int s = 0; s < 8; s += 2, x += 64) {
        const float id0 = sheaf__inverse(scale[s]), id1 = sheaf__inverse(scale[s + 1]);
        for (int l = 0; l < 32; l++) {
            const int q0 = sheaf__round_to((x[l] + min[s]) * id0, 0, 31);
            const int q1 = sheaf__round_to((x[l + 32] + min[s + 1]) * id1, 0, 31);
            b->qs[16 * s + l] = (uint8_t)((q0 & 15) | (q1 & 15) << 4);
            b->qh[l] = (uint8_t)(b->qh[l] | q0 >> 4 << s | q1 >> 4 << (s + 1));
        }
    }
}

SHEAF__HD void sheaf__quantize_block_q6_k(const float *x, struct sheaf__block_q6_k *b) {
    float scale[16];
    for (int s = 0; s < 16; s++) scale[s] = sheaf__signed_max(x + 16 * s, 16) / -32;
    b->d = sheaf__f32_to_f16(sheaf__signed_max(scale, 16) / -128);
    const float d = sheaf__f16_to_f32(b->d);
    for (int i = 0; i < SHEAF__QK_K / 2; i++) b->ql[i] = 0;
    for (int i = 0; i < SHEAF__QK_K / 4; i++) b->qh[i] = 0;
    for (int s = 0; s < 16; s++) { /* half t / 4, quarter t % 4, half of it s % 2 */
        const int t = s / 2, at = t % 2 * 32 + s % 2 * 16;
        b->scales[s] = (int8_t)sheaf__round_to(scale[s] * sheaf__inverse(d), -128, 127);
        const float id = sheaf__inverse(d * (float)b->scales[s]);
        uint8_t *ql = b->ql + t / 4 * 64 + at, *qh = b->qh + t / 4 * 32 + s % 2 * 16;
        for (int l = 0; l < 16; l++) {
            const int q = sheaf__round_to(x[16 * s + l] * id, -32, 31) + 32;
            ql[l] = (uint8_t)(ql[l] | (q & 15) << t % 4 / 2 * 4);
            qh[l] = (uint8_t)(qh[l] | (q >> 4) << t % 4 * 2);
        }
    }
}

SHEAF__HD void sheaf__quantize_block_q2_k(const float *x, struct sheaf__block_q2_k *b) {
    float scale[16], min[16], max_scale = 0, max_min = 0;
    for (int s = 0; s < 16; s++) {
        float lo = 0, hi = 0; /* the format subtracts a min that is not negative */
        for (int l = 0; l < 16; l++) {
            lo = x[16 * s + l] < lo ? x[16 * s + l] : lo;
            hi = x[16 * s + l] > hi ? x[16 * s + l] : hi;
        }
        scale[s] = (hi - lo) / 3;
        min[s] = -lo;
        max_scale = scale[s] > max_scale ? scale[s] : max_scale;
        max_min = min[s] > max_min ? min[s] : max_min;
    }
    b->d = sheaf__f32_to_f16(max_scale / 15);
    b->dmin = sheaf__f32_to_f16(max_min / 15);
    const float d = sheaf__f16_to_f32(b->d), dmin = sheaf__f16_to_f32(b->dmin);
    for (int i = 0; i < SHEAF__QK_K / 4; i++) b->qs[i] = 0;
    for (int s = 0; s < 16; s++) {
        const int ls = sheaf__round_to(scale[s] * sheaf__inverse(d), 0, 15);
        const int lm = sheaf__round_to(min[s] * sheaf__inverse(dmin), 0, 15);
        const float id = sheaf__inverse(d * (float)ls), m = dmin * (float)lm;
        uint8_t *q = b->qs + s / 8 * 32 + s % 2 * 16;
        b->scales[s] = (uint8_t)(ls | lm << 4);
        for (int l = 0; l < 16; l++)
            q[l] =
                (uint8_t)(q[l] | sheaf__round_to((x[16 * s + l] + m) * id, 0, 3) << s % 8 / 2 * 2);
    }
}

/* Scale s of Q3_K into bytes that were 0. */
SHEAF__HD void sheaf__add_q3_k_scale(uint8_t *scales, int s, int ls) {
    uint8_t *low = &scales[s % 8], *high = &scales[8 + s % 4];
    *low = (uint8_t)(*low | ((ls + 32) & 15) << s / 8 * 4);
    *high = (uint8_t)(*high | (ls + 32) >> 4 << s / 4 * 2);
}

SHEAF__HD void sheaf__quantize_block_q3_k(const float *x, struct sheaf__block_q3_k *b) {
    float scale[16];
    for (int s = 0; s < 16; s++) scale[s] = sheaf__signed_max(x + 16 * s, 16) / -4;
    memset(b, 0, sizeof *b);
    b->d = sheaf__f32_to_f16(sheaf__signed_max(scale, 16) / -32);
    const float d = sheaf__f16_to_f32(b->d);
    for (int s = 0; s < 16; s++) {
        const int ls = sheaf__round_to(scale[s] * sheaf__inverse(d), -32, 31);
        const float id = sheaf__inverse(d * (float)ls);
        uint8_t *q = b->qs + s / 8 * 32 + s % 2 * 16, *h = b->hmask + s % 2 * 16;
        sheaf__add_q3_k_scale(b->scales, s, ls);
        for (int l = 0; l < 16; l++) {
            const int v = sheaf__round_to(x[16 * s + l] * id, -4, 3) + 4;
            q[l] = (uint8_t)(q[l] | (v & 3) << s % 8 / 2 * 2);
            h[l] = (uint8_t)(h[l] | v >> 2 << s / 2);
        }
    }
}

/* Scale s into a block whose scales were 0. */
SHEAF__HD void sheaf__add_iq4_xs_scale(struct sheaf__block_iq4_xs *b, int s, int ls) {
    b->scales_l[s / 2] = (uint8_t)(b->scales_l[s / 2] | ((ls + 32) & 15) << s % 2 * 4);
    b->scales_h = (uint16_t)(b->scales_h | (ls + 32) >> 4 << 2 * s);
}

SHEAF__HD void sheaf__quantize_block_iq4_xs(const float *x, struct sheaf__block_iq4_xs *b) {
    const int8_t levels[16] = SHEAF__IQ4_LEVELS;
    float scale[8];
    for (int s = 0; s < 8; s++) scale[s] = sheaf__signed_max(x + 32 * s, 32) / -127;
    memset(b, 0, sizeof *b);
    b->d = sheaf__f32_to_f16(sheaf__signed_max(scale, 8) / -32);
    const float d = sheaf__f16_to_f32(b->d);
    for (int s = 0; s < 8; s++) {
        const int ls = sheaf__round_to(scale[s] * sheaf__inverse(d), -32, 31);
        sheaf__add_iq4_xs_scale(b, s, ls);
        sheaf__to_levels(levels, sheaf__inverse(d * (float)ls), x + 32 * s, b->qs + 16 * s);
    }
}

/* The function that quantizes rows of a type; block: its elements. */
#define SHEAF__QUANTIZE(type, block)                                                               \
    void sheaf__quantize_##type(const float *src, void *dst, int64_t n) {                          \
        struct sheaf__block_##type *b = dst;                                                       \
        for (int64_t i = 0; i < n / block; i++, b++, src += block)                                 \
            sheaf__quantize_block_##type(src, b);                                                  \
    }

#endif
