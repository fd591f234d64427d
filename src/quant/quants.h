/* The block formats of GGUF files, as structs, and the conversions of one value.
 *
 * Owns the bit layouts: every struct here has exactly the bytes of the file, checked by
 * static_assert, and nothing else in the library unpacks them except the kernels of devices.
 * Source of the layouts: ggml-common.h and the dequantize rows of ggml; written anew. */
#ifndef SHEAF_QUANT_QUANTS_H
#define SHEAF_QUANT_QUANTS_H

#include <assert.h>
#include <stdint.h>
#include <string.h>

#include "sheaf/type.h"

/* Functions that kernels of devices use too; they are compiled as C and as C++. */
#ifdef __CUDACC__
#define SHEAF__HD static __host__ __device__ __forceinline__
#else
#define SHEAF__HD static inline
#endif

enum {
    SHEAF__QK = 32,    /* elements of a plain block */
    SHEAF__QK_K = 256, /* elements of a super-block of the K formats */
    SHEAF__QK_NVFP4 = 64,
    SHEAF__QK1 = 128,     /* Q1_0 */
    SHEAF__QK2 = 64,      /* Q2_0 */
    SHEAF__K_SCALES = 12, /* bytes of the 8 packed 6-bit (scale, min) pairs of Q4_K and Q5_K */
};

/* d, m, dmin and the like are IEEE half floats kept as their bits. */

/* x[j] = d * (nibble - 8); low nibbles are elements 0..15, high nibbles 16..31 */
struct sheaf__block_q4_0 {
    uint16_t d;
    uint8_t qs[SHEAF__QK / 2];
};
/* x[j] = d * nibble + m */
struct sheaf__block_q4_1 {
    uint16_t d, m;
    uint8_t qs[SHEAF__QK / 2];
};
/* x[j] = d * ((nibble | bit j of qh << 4) - 16); qh is little-endian */
struct sheaf__block_q5_0 {
    uint16_t d;
    uint8_t qh[4];
    uint8_t qs[SHEAF__QK / 2];
};
/* x[j] = d * (nibble | bit j of qh << 4) + m */
struct sheaf__block_q5_1 {
    uint16_t d, m;
    uint8_t qh[4];
    uint8_t qs[SHEAF__QK / 2];
};
/* x[j] = d * qs[j] */
struct sheaf__block_q8_0 {
    uint16_t d;
    int8_t qs[SHEAF__QK];
};
/* 8 sub-blocks of 32: x = d * scale * nibble - dmin * min. Sub-blocks 2i and 2i+1 are the low and
 * the high nibbles of qs[32 i .. 32 i + 31]. */
struct sheaf__block_q4_k {
    uint16_t d, dmin;
    uint8_t scales[SHEAF__K_SCALES];
    uint8_t qs[SHEAF__QK_K / 2];
};
/* As Q4_K with a fifth bit: bit b of qh[j] belongs to element j of sub-block b. */
struct sheaf__block_q5_k {
    uint16_t d, dmin;
    uint8_t scales[SHEAF__K_SCALES];
    uint8_t qh[SHEAF__QK_K / 8];
    uint8_t qs[SHEAF__QK_K / 2];
};
/* 16 sub-blocks of 16: x = d * scale * (q - 32), q of 6 bits. In each half of 128 elements,
 * quarter t (32 elements) has its low nibbles in ql[32 (t % 2) + l], low half of the byte for
 * t < 2, high half else, and its two high bits at bits 2t of qh[l]. */
struct sheaf__block_q6_k {
    uint8_t ql[SHEAF__QK_K / 2];
    uint8_t qh[SHEAF__QK_K / 4];
    int8_t scales[SHEAF__QK_K / 16];
    uint16_t d;
};

/* 16 sub-blocks of 16: x = d * scale * q - dmin * min, q of 2 bits; scale and min are the low and
 * the high nibble of scales[]. In each half of 128 elements, quarter t has its q at bits 2t of
 * qs[32 half .. 32 half + 31]. */
struct sheaf__block_q2_k {
    uint8_t scales[SHEAF__QK_K / 16];
    uint8_t qs[SHEAF__QK_K / 4];
    uint16_t d, dmin;
};
/* 16 sub-blocks of 16: x = d * (scale - 32) * q, q of 2 bits laid out as in Q2_K, less 4 where bit
 * 4 half + t of hmask[l] is 0. Scale i, of 6 bits: low half in nibble i / 8 of scales[i % 8], high
 * bits at bits 2 (i / 4) of scales[8 + i % 4]. */
struct sheaf__block_q3_k {
    uint8_t hmask[SHEAF__QK_K / 8];
    uint8_t qs[SHEAF__QK_K / 4];
    uint8_t scales[SHEAF__K_SCALES];
    uint16_t d;
};
/* x[j] = d * SHEAF__IQ4_LEVELS[nibble] */
struct sheaf__block_iq4_nl {
    uint16_t d;
    uint8_t qs[SHEAF__QK / 2];
};
/* 8 sub-blocks of 32 as IQ4_NL: x = d * (scale - 32) * SHEAF__IQ4_LEVELS[nibble]. Scale i, of 6
 * bits: low half in nibble i % 2 of scales_l[i / 2], high bits at bits 2i of scales_h. */
struct sheaf__block_iq4_xs {
    uint16_t d;
    uint16_t scales_h;
    uint8_t scales_l[SHEAF__QK_K / 64];
    uint8_t qs[SHEAF__QK_K / 2];
};
/* OCP MXFP4: x[j] = 2^(e - 128) * SHEAF__FP4_LEVELS[nibble] */
struct sheaf__block_mxfp4 {
    uint8_t e;
    uint8_t qs[SHEAF__QK / 2];
};
/* 4 sub-blocks of 16: x = sheaf__nvfp4_scale(d[s]) * SHEAF__FP4_LEVELS[nibble]; the low nibbles of
 * qs[8 s .. 8 s + 7] are the first 8 elements of sub-block s, the high ones the others. */
struct sheaf__block_nvfp4 {
    uint8_t d[SHEAF__QK_NVFP4 / 16];
    uint8_t qs[SHEAF__QK_NVFP4 / 2];
};
/* x = d where the bit is set, else -d; bit j % 8 of qs[j / 8] */
struct sheaf__block_q1_0 {
    uint16_t d;
    uint8_t qs[SHEAF__QK1 / 8];
};
/* x[j] = d * (q - 1), q of 2 bits at bits 2 (j % 4) of qs[j / 4] */
struct sheaf__block_q2_0 {
    uint16_t d;
    uint8_t qs[SHEAF__QK2 / 4];
};
/* x = d * (digit - 1), digits 0, 1, 2: five of base 3 in a byte, which holds their number times 256
 * / 243, rounded up: its product with 3 has the first digit at bit 8, and so on with what is left.
 * Digit n of qs[m] is element 32 n + m for m < 32, 160 + 16 n + m - 32 for others; digit n of
 * qh[m], which has four, is 240 + 4 n + m. */
struct sheaf__block_tq1_0 {
    uint8_t qs[48];
    uint8_t qh[SHEAF__QK_K / 64];
    uint16_t d;
};
/* x = d * (q - 1), q of 2 bits laid out as in Q2_K */
struct sheaf__block_tq2_0 {
    uint8_t qs[SHEAF__QK_K / 4];
    uint16_t d;
};
/* Levels of IQ4_NL and IQ4_XS, closer together near zero; and of FP4 (E2M1), doubled. */
#define SHEAF__IQ4_LEVELS                                                                          \
    { -127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113 }
#define SHEAF__FP4_LEVELS                                                                          \
    { 0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12 }

static_assert(sizeof(struct sheaf__block_q2_k) == 84, "GGUF layout");
static_assert(sizeof(struct sheaf__block_q3_k) == 110, "GGUF layout");
static_assert(sizeof(struct sheaf__block_iq4_nl) == 18, "GGUF layout");
static_assert(sizeof(struct sheaf__block_iq4_xs) == 136, "GGUF layout");
static_assert(sizeof(struct sheaf__block_mxfp4) == 17, "GGUF layout");
static_assert(sizeof(struct sheaf__block_nvfp4) == 36, "GGUF layout");
static_assert(sizeof(struct sheaf__block_q1_0) == 18, "GGUF layout");
static_assert(sizeof(struct sheaf__block_q2_0) == 18, "GGUF layout");
static_assert(sizeof(struct sheaf__block_tq1_0) == 54, "GGUF layout");
static_assert(sizeof(struct sheaf__block_tq2_0) == 66, "GGUF layout");
static_assert(sizeof(struct sheaf__block_q4_0) == 18, "GGUF layout");
static_assert(sizeof(struct sheaf__block_q4_1) == 20, "GGUF layout");
static_assert(sizeof(struct sheaf__block_q5_0) == 22, "GGUF layout");
static_assert(sizeof(struct sheaf__block_q5_1) == 24, "GGUF layout");
static_assert(sizeof(struct sheaf__block_q8_0) == 34, "GGUF layout");
static_assert(sizeof(struct sheaf__block_q4_k) == 144, "GGUF layout");
static_assert(sizeof(struct sheaf__block_q5_k) == 176, "GGUF layout");
static_assert(sizeof(struct sheaf__block_q6_k) == 210, "GGUF layout");

/* Scale and min number j (0..7) of Q4_K and Q5_K: the low 6 bits of bytes j and j + 4 for j < 4;
 * the nibbles of byte j + 4 and the top two bits of bytes j - 4 and j for the others. */
SHEAF__HD void sheaf__k_scale_min(const uint8_t *scales, int j, uint8_t *scale, uint8_t *min) {
    if (j < 4) {
        *scale = scales[j] & 63;
        *min = scales[j + 4] & 63;
    } else {
        *scale = (uint8_t)((scales[j + 4] & 15) | (scales[j - 4] >> 6) << 4);
        *min = (uint8_t)(scales[j + 4] >> 4 | (scales[j] >> 6) << 4);
    }
}

/* Scale i of Q3_K. */
SHEAF__HD int sheaf__q3_k_scale(const uint8_t *scales, int i) {
    return ((scales[i % 8] >> i / 8 * 4 & 15) | (scales[8 + i % 4] >> i / 4 * 2 & 3) << 4) - 32;
}

/* Scale i of IQ4_XS. */
SHEAF__HD int sheaf__iq4_xs_scale(const struct sheaf__block_iq4_xs *b, int i) {
    return ((b->scales_l[i / 2] >> i % 2 * 4 & 15) | (b->scales_h >> 2 * i & 3) << 4) - 32;
}

SHEAF__HD uint32_t sheaf__f32_bits(float f) {
    uint32_t u;
    memcpy(&u, &f, sizeof u);
    return u;
}
SHEAF__HD float sheaf__bits_f32(uint32_t u) {
    float f;
    memcpy(&f, &u, sizeof f);
    return f;
}

/* 2^(e - 128), e of MXFP4. */
SHEAF__HD float sheaf__mxfp4_scale(uint8_t e) {
    return sheaf__bits_f32(e < 2 ? 0x00200000u << e : (uint32_t)(e - 1) << 23);
}

/* Half of an unsigned E4M3 (bias 7, no infinity, 0x7f is 0), which the levels double: NVFP4. The
 * top bit is not looked at, except that 0xff is no 0x7f. */
SHEAF__HD float sheaf__nvfp4_scale(uint8_t d) {
    const uint32_t exponent = d >> 3 & 15, mantissa = d & 7;
    if (d == 0x7f) return 0;
    if (exponent == 0) return (float)mantissa * 0x1p-10f;
    return sheaf__bits_f32((exponent + 119) << 23 | mantissa << 20);
}

/* Digit n of a byte of TQ1_0. */
SHEAF__HD int sheaf__tq1_digit(uint8_t byte, int n) {
    const int power = n == 0 ? 1 : n == 1 ? 3 : n == 2 ? 9 : n == 3 ? 27 : 81;
    return (byte * power & 255) * 3 >> 8;
}

SHEAF__HD uint32_t sheaf__load_le32(const uint8_t *p) {
    return (uint32_t)p[0] | (uint32_t)p[1] << 8 | (uint32_t)p[2] << 16 | (uint32_t)p[3] << 24;
}

/* Exact; a signalling NaN becomes quiet, as in hardware. */
SHEAF__HD float sheaf__f16_to_f32(uint16_t h) {
    uint32_t sign = (uint32_t)(h & 0x8000) << 16, exp = h >> 10 & 31, man = h & 0x3ffu;
    if (exp == 0) return sheaf__bits_f32(sign | sheaf__f32_bits((float)man * 0x1p-24f));
    if (exp == 31) return sheaf__bits_f32(sign | 0x7f800000u | man << 13 | (man ? 0x400000u : 0));
    return sheaf__bits_f32(sign | (exp + 112) << 23 | man << 13);
}

/* Nearest, ties to even; overflow gives infinity. */
SHEAF__HD uint16_t sheaf__f32_to_f16(float f) {
    uint32_t u = sheaf__f32_bits(f), abs = u & 0x7fffffffu, sign = u >> 16 & 0x8000u;
    if (abs > 0x7f800000u) return (uint16_t)(sign | 0x7e00u | (abs >> 13 & 0x1ffu));
    if (abs >= 0x477ff000u) return (uint16_t)(sign | 0x7c00u); /* 65520 and above */
    if (abs < 0x38800000u) { /* subnormal: adding 0.5 leaves steps of 2^-24 */
        uint32_t r = sheaf__f32_bits(sheaf__bits_f32(abs) + 0.5f);
        return (uint16_t)(sign | (r - 0x3f000000u));
    }
    abs += 0xfffu + (abs >> 13 & 1);
    return (uint16_t)(sign | (abs - (112u << 23)) >> 13);
}

SHEAF__HD float sheaf__bf16_to_f32(uint16_t h) { return sheaf__bits_f32((uint32_t)h << 16); }

/* Nearest, ties to even. */
SHEAF__HD uint16_t sheaf__f32_to_bf16(float f) {
    uint32_t u = sheaf__f32_bits(f);
    if ((u & 0x7fffffffu) > 0x7f800000u) return (uint16_t)(u >> 16 | 0x40u);
    return (uint16_t)((u + 0x7fffu + (u >> 16 & 1)) >> 16);
}

/* Rows of n elements, n a multiple of the block size. The tables of type.c point here. */
void sheaf__dequantize_q4_0(const void *src, float *dst, int64_t n);
void sheaf__dequantize_q4_1(const void *src, float *dst, int64_t n);
void sheaf__dequantize_q5_0(const void *src, float *dst, int64_t n);
void sheaf__dequantize_q5_1(const void *src, float *dst, int64_t n);
void sheaf__dequantize_q8_0(const void *src, float *dst, int64_t n);
void sheaf__dequantize_q4_k(const void *src, float *dst, int64_t n);
void sheaf__dequantize_q5_k(const void *src, float *dst, int64_t n);
void sheaf__dequantize_q6_k(const void *src, float *dst, int64_t n);
void sheaf__dequantize_q2_k(const void *src, float *dst, int64_t n);
void sheaf__dequantize_q3_k(const void *src, float *dst, int64_t n);
void sheaf__dequantize_iq4_nl(const void *src, float *dst, int64_t n);
void sheaf__dequantize_iq4_xs(const void *src, float *dst, int64_t n);
void sheaf__dequantize_mxfp4(const void *src, float *dst, int64_t n);
void sheaf__dequantize_nvfp4(const void *src, float *dst, int64_t n);
void sheaf__dequantize_q1_0(const void *src, float *dst, int64_t n);
void sheaf__dequantize_q2_0(const void *src, float *dst, int64_t n);
void sheaf__dequantize_tq1_0(const void *src, float *dst, int64_t n);
void sheaf__dequantize_tq2_0(const void *src, float *dst, int64_t n);
void sheaf__dequantize_iq2_xxs(const void *src, float *dst, int64_t n);
void sheaf__dequantize_iq2_xs(const void *src, float *dst, int64_t n);
void sheaf__dequantize_iq2_s(const void *src, float *dst, int64_t n);
void sheaf__dequantize_iq3_xxs(const void *src, float *dst, int64_t n);
void sheaf__dequantize_iq3_s(const void *src, float *dst, int64_t n);
void sheaf__dequantize_iq1_s(const void *src, float *dst, int64_t n);
void sheaf__dequantize_iq1_m(const void *src, float *dst, int64_t n);

void sheaf__quantize_q4_0(const float *src, void *dst, int64_t n);
void sheaf__quantize_q4_1(const float *src, void *dst, int64_t n);
void sheaf__quantize_q5_0(const float *src, void *dst, int64_t n);
void sheaf__quantize_q5_1(const float *src, void *dst, int64_t n);
void sheaf__quantize_q8_0(const float *src, void *dst, int64_t n);
void sheaf__quantize_q4_k(const float *src, void *dst, int64_t n);
void sheaf__quantize_q5_k(const float *src, void *dst, int64_t n);
void sheaf__quantize_q6_k(const float *src, void *dst, int64_t n);
void sheaf__quantize_q2_k(const float *src, void *dst, int64_t n);
void sheaf__quantize_q3_k(const float *src, void *dst, int64_t n);
void sheaf__quantize_iq4_nl(const float *src, void *dst, int64_t n);
void sheaf__quantize_iq4_xs(const float *src, void *dst, int64_t n);
void sheaf__quantize_mxfp4(const float *src, void *dst, int64_t n);
void sheaf__quantize_nvfp4(const float *src, void *dst, int64_t n);
void sheaf__quantize_q1_0(const float *src, void *dst, int64_t n);
void sheaf__quantize_q2_0(const float *src, void *dst, int64_t n);
void sheaf__quantize_tq1_0(const float *src, void *dst, int64_t n);
void sheaf__quantize_tq2_0(const float *src, void *dst, int64_t n);
void sheaf__quantize_iq2_xxs(const float *src, void *dst, int64_t n);
void sheaf__quantize_iq2_xs(const float *src, void *dst, int64_t n);
void sheaf__quantize_iq2_s(const float *src, void *dst, int64_t n);
void sheaf__quantize_iq3_xxs(const float *src, void *dst, int64_t n);
void sheaf__quantize_iq3_s(const float *src, void *dst, int64_t n);
void sheaf__quantize_iq1_s(const float *src, void *dst, int64_t n);
void sheaf__quantize_iq1_m(const float *src, void *dst, int64_t n);

#endif
