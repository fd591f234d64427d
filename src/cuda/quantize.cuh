/* Floats to blocks, one block by one thread: the arithmetic of src/core/quants.c, step by step, so
 * that a copy on the device gives the bytes that the host gives. */
#ifndef SHEAF_CUDA_QUANTIZE_CUH
#define SHEAF_CUDA_QUANTIZE_CUH

#include "cuda/kernel.cuh"

/* The integer nearest to x within [lo, hi]; lo for NaN. */
HD int round_to(float x, int lo, int hi) {
    const float r = rintf(x);
    return r > (float)lo ? r < (float)hi ? (int)r : hi : lo;
}
HD float inverse_of(float d) { return d != 0 ? 1.0f / d : 0.0f; }

/* The element of largest magnitude, with its sign. */
HD float signed_max(const float *x, int n) {
    float max = 0, abs = 0;
    for (int j = 0; j < n; j++) {
        if (fabsf(x[j]) > abs) {
            abs = fabsf(x[j]);
            max = x[j];
        }
    }
    return max;
}
HD void range_of(const float *x, int n, float *min, float *max) {
    *min = *max = x[0];
    for (int j = 1; j < n; j++) {
        if (x[j] < *min) *min = x[j];
        if (x[j] > *max) *max = x[j];
    }
}

HD void quantize(const float *x, sheaf__block_q4_0 *b) {
    b->d = f32_to_f16(signed_max(x, 32) / -8);
    const float id = inverse_of(f16_to_f32(b->d));
    for (int j = 0; j < 16; j++) {
        const int lo = round_to(x[j] * id, -8, 7) + 8, hi = round_to(x[j + 16] * id, -8, 7) + 8;
        b->qs[j] = (uint8_t)(lo | hi << 4);
    }
}
HD void quantize(const float *x, sheaf__block_q4_1 *b) {
    float min, max;
    range_of(x, 32, &min, &max);
    b->m = f32_to_f16(min);
    b->d = f32_to_f16((max - min) / 15);
    const float m = f16_to_f32(b->m), id = inverse_of(f16_to_f32(b->d));
    for (int j = 0; j < 16; j++) {
        const int lo = round_to((x[j] - m) * id, 0, 15), hi = round_to((x[j + 16] - m) * id, 0, 15);
        b->qs[j] = (uint8_t)(lo | hi << 4);
    }
}
HD void store_bits(uint8_t *p, uint32_t u) {
    for (int i = 0; i < 4; i++) p[i] = (uint8_t)(u >> 8 * i);
}
HD void quantize(const float *x, sheaf__block_q5_0 *b) {
    b->d = f32_to_f16(signed_max(x, 32) / -16);
    const float id = inverse_of(f16_to_f32(b->d));
    uint32_t qh = 0;
    for (int j = 0; j < 16; j++) {
        const int lo = round_to(x[j] * id, -16, 15) + 16;
        const int hi = round_to(x[j + 16] * id, -16, 15) + 16;
        b->qs[j] = (uint8_t)((lo & 15) | (hi & 15) << 4);
        qh |= (uint32_t)lo >> 4 << j | (uint32_t)hi >> 4 << (j + 16);
    }
    store_bits(b->qh, qh);
}
HD void quantize(const float *x, sheaf__block_q5_1 *b) {
    float min, max;
    range_of(x, 32, &min, &max);
    b->m = f32_to_f16(min);
    b->d = f32_to_f16((max - min) / 31);
    const float m = f16_to_f32(b->m), id = inverse_of(f16_to_f32(b->d));
    uint32_t qh = 0;
    for (int j = 0; j < 16; j++) {
        const int lo = round_to((x[j] - m) * id, 0, 31), hi = round_to((x[j + 16] - m) * id, 0, 31);
        b->qs[j] = (uint8_t)((lo & 15) | (hi & 15) << 4);
        qh |= (uint32_t)lo >> 4 << j | (uint32_t)hi >> 4 << (j + 16);
    }
    store_bits(b->qh, qh);
}
HD void quantize(const float *x, sheaf__block_q8_0 *b) {
    b->d = f32_to_f16(fabsf(signed_max(x, 32)) / 127);
    const float id = inverse_of(f16_to_f32(b->d));
    for (int j = 0; j < 32; j++) b->qs[j] = (int8_t)round_to(x[j] * id, -127, 127);
}

/* The 6-bit scales and mins of 256 elements; levels are taken by k_level. */
struct KScales {
    float d[8], m[8]; /* as they will be read back */
};
HD void quantize_scales(const float *x, int q_max, uint16_t *d, uint16_t *dmin, uint8_t *packed,
                        KScales *out) {
    float max_scale = 0, max_min = 0;
    for (int s = 0; s < 8; s++) {
        float lo, hi;
        range_of(x + 32 * s, 32, &lo, &hi);
        if (lo > 0) lo = 0;
        if (hi < lo) hi = lo;
        out->d[s] = (hi - lo) / (float)q_max;
        out->m[s] = -lo;
        if (out->d[s] > max_scale) max_scale = out->d[s];
        if (out->m[s] > max_min) max_min = out->m[s];
    }
    *d = f32_to_f16(max_scale / 63);
    *dmin = f32_to_f16(max_min / 63);
    const float df = f16_to_f32(*d), mf = f16_to_f32(*dmin);
    for (int i = 0; i < SHEAF__K_SCALES; i++) packed[i] = 0;
    for (int s = 0; s < 8; s++) {
        const int ls = round_to(out->d[s] * inverse_of(df), 0, 63);
        const int lm = round_to(out->m[s] * inverse_of(mf), 0, 63);
        if (s < 4) {
            packed[s] = (uint8_t)(packed[s] | ls);
            packed[s + 4] = (uint8_t)(packed[s + 4] | lm);
        } else {
            packed[s + 4] = (uint8_t)((ls & 15) | (lm & 15) << 4);
            packed[s - 4] = (uint8_t)(packed[s - 4] | (ls >> 4) << 6);
            packed[s] = (uint8_t)(packed[s] | (lm >> 4) << 6);
        }
        out->d[s] = df * (float)ls;
        out->m[s] = mf * (float)lm;
    }
}
HD int k_level(const float *x, const KScales *k, int j, int q_max) {
    return round_to((x[j] + k->m[j / 32]) * inverse_of(k->d[j / 32]), 0, q_max);
}
HD void quantize(const float *x, sheaf__block_q4_k *b) {
    KScales k;
    quantize_scales(x, 15, &b->d, &b->dmin, b->scales, &k);
    for (int j = 0; j < 128; j++) {
        const int lo = j / 32 * 64 + j % 32;
        b->qs[j] = (uint8_t)(k_level(x, &k, lo, 15) | k_level(x, &k, lo + 32, 15) << 4);
    }
}
HD void quantize(const float *x, sheaf__block_q5_k *b) {
    KScales k;
    quantize_scales(x, 31, &b->d, &b->dmin, b->scales, &k);
    for (int l = 0; l < 32; l++) b->qh[l] = 0;
    for (int j = 0; j < 128; j++) {
        const int lo = j / 32 * 64 + j % 32, s = lo / 32;
        const int q0 = k_level(x, &k, lo, 31), q1 = k_level(x, &k, lo + 32, 31);
        b->qs[j] = (uint8_t)((q0 & 15) | (q1 & 15) << 4);
        b->qh[j % 32] = (uint8_t)(b->qh[j % 32] | q0 >> 4 << s | q1 >> 4 << (s + 1));
    }
}
HD void quantize(const float *x, sheaf__block_q6_k *b) {
    float scale[16];
    for (int s = 0; s < 16; s++) scale[s] = signed_max(x + 16 * s, 16) / -32;
    b->d = f32_to_f16(signed_max(scale, 16) / -128);
    const float d = f16_to_f32(b->d);
    for (int i = 0; i < 128; i++) b->ql[i] = 0;
    for (int i = 0; i < 64; i++) b->qh[i] = 0;
    for (int s = 0; s < 16; s++)
        b->scales[s] = (int8_t)round_to(scale[s] * inverse_of(d), -128, 127);
    for (int j = 0; j < SHEAF__QK_K; j++) {
        const float id = inverse_of(d * (float)b->scales[j / 16]);
        const int q = round_to(x[j] * id, -32, 31) + 32, t = j / 32, l = j % 32;
        uint8_t *ql = &b->ql[t / 4 * 64 + t % 2 * 32 + l], *qh = &b->qh[t / 4 * 32 + l];
        *ql = (uint8_t)(*ql | (q & 15) << (t % 4 / 2 * 4));
        *qh = (uint8_t)(*qh | (q >> 4) << (t % 4 * 2));
    }
}

/* x: one block of floats (32 or 256; 1 for plain types) to p. */
HD void store_block(int type, const float *x, void *p) {
    switch (type) {
    case SHEAF_TYPE_Q4_0:
        quantize(x, (sheaf__block_q4_0 *)p);
        break;
    case SHEAF_TYPE_Q4_1:
        quantize(x, (sheaf__block_q4_1 *)p);
        break;
    case SHEAF_TYPE_Q5_0:
        quantize(x, (sheaf__block_q5_0 *)p);
        break;
    case SHEAF_TYPE_Q5_1:
        quantize(x, (sheaf__block_q5_1 *)p);
        break;
    case SHEAF_TYPE_Q8_0:
        quantize(x, (sheaf__block_q8_0 *)p);
        break;
    case SHEAF_TYPE_Q4_K:
        quantize(x, (sheaf__block_q4_k *)p);
        break;
    case SHEAF_TYPE_Q5_K:
        quantize(x, (sheaf__block_q5_k *)p);
        break;
    case SHEAF_TYPE_Q6_K:
        quantize(x, (sheaf__block_q6_k *)p);
        break;
    default:
        store_plain(type, *x, p);
        break;
    }
}

#endif
