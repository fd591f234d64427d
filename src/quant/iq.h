/* The IQ formats of 1 to 3 bits: a weight is a coordinate of a point of a grid, with a sign, times
 * a scale.
 *
 * Owns their bit layouts, as quants.h does for the others. All have in common that a group of 8
 * elements is a scale times 8 integers (struct sheaf__iq_group): what rows and kernels are made of.
 *
 * Signs: a bit set is a minus, bit j for element j of a group. Where only 7 bits are stored, the
 * eighth makes their number even. Source of the layouts: ggml-common.h and the dequantize rows of
 * ggml; written anew. */
#ifndef SHEAF_QUANT_IQ_H
#define SHEAF_QUANT_IQ_H

#include "quant/grids.h"
#include "quant/quants.h"

enum {
    SHEAF__IQ_GROUP = 8,
    SHEAF__IQ_GROUPS = SHEAF__QK_K / SHEAF__IQ_GROUP, /* of a block */
};

/* Each 32 elements: the numbers of 4 points as bytes, then, little-endian, 4 times 7 signs and a
 * scale of 4 bits. x = d * (scale + 1/2) / 4 * coordinate. */
struct sheaf__block_iq2_xxs {
    uint16_t d;
    uint8_t qs[SHEAF__QK_K / 4];
};
/* Each 8: the number of a point in 9 bits and 7 signs above it, little-endian. Scales of 16
 * elements in nibbles, the low one first; x as IQ2_XXS. */
struct sheaf__block_iq2_xs {
    uint16_t d;
    uint8_t qs[SHEAF__QK_K / 4];
    uint8_t scales[SHEAF__QK_K / 32];
};
/* The numbers of points have 8 bits in qs and 2 in qh, group g at bits 2 (g % 4) of qh[g / 4]; 8
 * signs for each. Scales and x as IQ2_XS. */
struct sheaf__block_iq2_s {
    uint16_t d;
    uint8_t qs[SHEAF__QK_K / 8];
    uint8_t signs[SHEAF__QK_K / 8];
    uint8_t qh[SHEAF__QK_K / 32];
    uint8_t scales[SHEAF__QK_K / 32];
};
/* Points of 4 elements, their numbers in qs; each 32 elements have 4 times 7 signs and a scale of 4
 * bits, little-endian. x = d * (scale + 1/2) / 2 * coordinate. */
struct sheaf__block_iq3_xxs {
    uint16_t d;
    uint8_t qs[SHEAF__QK_K / 4];
    uint8_t signs_scales[SHEAF__QK_K / 8];
};
/* Points of 4 elements, bit 8 of the number of point p in bit p % 8 of qh[p / 8]; 8 signs for each
 * 8 elements; scales of 32 elements in nibbles. x = d * (2 scale + 1) * coordinate. */
struct sheaf__block_iq3_s {
    uint16_t d;
    uint8_t qs[SHEAF__QK_K / 4];
    uint8_t qh[SHEAF__QK_K / 32];
    uint8_t signs[SHEAF__QK_K / 8];
    uint8_t scales[SHEAF__QK_K / 64];
};
/* The numbers of points have 8 bits in qs and 3 in qh, which, little-endian, has for 32 elements 4
 * times 3 such bits, a scale of 3 bits, and the sign of an offset of 1/8. x = d * (2 scale + 1) *
 * (coordinate + offset). */
struct sheaf__block_iq1_s {
    uint16_t d;
    uint8_t qs[SHEAF__QK_K / 8];
    uint8_t qh[SHEAF__QK_K / 16];
};
/* As IQ1_S with a nibble of qh for each 8 elements: 3 bits of the number and the sign of the
 * offset. Scales of 16 elements in 3 bits, 4 in each of the four little-endian numbers of `scales`,
 * whose top nibbles are d, the lowest first. */
struct sheaf__block_iq1_m {
    uint8_t qs[SHEAF__QK_K / 8];
    uint8_t qh[SHEAF__QK_K / 16];
    uint8_t scales[SHEAF__QK_K / 32];
};
static_assert(sizeof(struct sheaf__block_iq2_xxs) == 66, "GGUF layout");
static_assert(sizeof(struct sheaf__block_iq2_xs) == 74, "GGUF layout");
static_assert(sizeof(struct sheaf__block_iq2_s) == 82, "GGUF layout");
static_assert(sizeof(struct sheaf__block_iq3_xxs) == 98, "GGUF layout");
static_assert(sizeof(struct sheaf__block_iq3_s) == 110, "GGUF layout");
static_assert(sizeof(struct sheaf__block_iq1_s) == 50, "GGUF layout");
static_assert(sizeof(struct sheaf__block_iq1_m) == 56, "GGUF layout");

/* Seven signs and the one that makes their number even. */
SHEAF__HD uint32_t sheaf__even_signs(uint32_t seven) {
    uint32_t odd = seven ^ seven >> 4;
    odd ^= odd >> 2;
    return seven | ((odd ^ odd >> 1) & 1) << 7;
}

/* x[j] = scale * (coordinate j of point `point`, of points[1] too from j = 4 on in IQ3; minus where
 * a sign is set), and in IQ1, whose integers are those of 8 times the value, plus `offset`. */
struct sheaf__iq_group {
    float scale;
    uint16_t point[2];
    uint8_t signs;
    int8_t offset; /* -1 or 1 in IQ1 */
};

SHEAF__HD int sheaf__nibble_of(const uint8_t *p, int i) { return p[i / 2] >> i % 2 * 4 & 15; }

SHEAF__HD struct sheaf__iq_group sheaf__iq2_xxs_group(const struct sheaf__block_iq2_xxs *b, int g) {
    const uint8_t *qs = b->qs + g / 4 * 8;
    const uint32_t rest = sheaf__load_le32(qs + 4);
    struct sheaf__iq_group to = {0};
    to.scale = sheaf__f16_to_f32(b->d) * (0.5f + (float)(rest >> 28)) * 0.25f;
    to.point[0] = qs[g % 4];
    to.signs = (uint8_t)sheaf__even_signs(rest >> 7 * (g % 4) & 127);
    return to;
}

SHEAF__HD struct sheaf__iq_group sheaf__iq2_xs_group(const struct sheaf__block_iq2_xs *b, int g) {
    const uint32_t q = (uint32_t)b->qs[2 * g] | (uint32_t)b->qs[2 * g + 1] << 8;
    struct sheaf__iq_group to = {0};
    to.scale = sheaf__f16_to_f32(b->d) * (0.5f + (float)sheaf__nibble_of(b->scales, g / 2)) * 0.25f;
    to.point[0] = (uint16_t)(q & 511);
    to.signs = (uint8_t)sheaf__even_signs(q >> 9);
    return to;
}

SHEAF__HD struct sheaf__iq_group sheaf__iq2_s_group(const struct sheaf__block_iq2_s *b, int g) {
    struct sheaf__iq_group to = {0};
    to.scale = sheaf__f16_to_f32(b->d) * (0.5f + (float)sheaf__nibble_of(b->scales, g / 2)) * 0.25f;
    to.point[0] = (uint16_t)(b->qs[g] | (b->qh[g / 4] >> g % 4 * 2 & 3) << 8);
    to.signs = b->signs[g];
    return to;
}

SHEAF__HD struct sheaf__iq_group sheaf__iq3_xxs_group(const struct sheaf__block_iq3_xxs *b, int g) {
    const uint32_t rest = sheaf__load_le32(b->signs_scales + g / 4 * 4);
    struct sheaf__iq_group to = {0};
    to.scale = sheaf__f16_to_f32(b->d) * (0.5f + (float)(rest >> 28)) * 0.5f;
    to.point[0] = b->qs[2 * g];
    to.point[1] = b->qs[2 * g + 1];
    to.signs = (uint8_t)sheaf__even_signs(rest >> 7 * (g % 4) & 127);
    return to;
}

SHEAF__HD struct sheaf__iq_group sheaf__iq3_s_group(const struct sheaf__block_iq3_s *b, int g) {
    const int high = b->qh[g / 4] >> g % 4 * 2;
    struct sheaf__iq_group to = {0};
    to.scale = sheaf__f16_to_f32(b->d) * (float)(1 + 2 * sheaf__nibble_of(b->scales, g / 4));
    to.point[0] = (uint16_t)(b->qs[2 * g] | (high & 1) << 8);
    to.point[1] = (uint16_t)(b->qs[2 * g + 1] | (high >> 1 & 1) << 8);
    to.signs = b->signs[g];
    return to;
}

SHEAF__HD struct sheaf__iq_group sheaf__iq1_s_group(const struct sheaf__block_iq1_s *b, int g) {
    const uint32_t h = (uint32_t)b->qh[g / 4 * 2] | (uint32_t)b->qh[g / 4 * 2 + 1] << 8;
    struct sheaf__iq_group to = {0};
    to.scale = sheaf__f16_to_f32(b->d) * (float)(2 * (h >> 12 & 7) + 1) * 0.125f;
    to.point[0] = (uint16_t)(b->qs[g] | (h >> 3 * (g % 4) & 7) << 8);
    to.offset = h >> 15 ? -1 : 1;
    return to;
}

/* The half d of IQ1_M. */
SHEAF__HD uint16_t sheaf__iq1_m_d(const uint8_t *scales) {
    return (uint16_t)(scales[1] >> 4 | (scales[3] & 0xf0) | (scales[5] & 0xf0) << 4 |
                      (scales[7] & 0xf0) << 8);
}
SHEAF__HD struct sheaf__iq_group sheaf__iq1_m_group(const struct sheaf__block_iq1_m *b, int g) {
    const uint8_t *s = b->scales + g / 8 * 2;
    const uint32_t scales = (uint32_t)s[0] | (uint32_t)s[1] << 8;
    const int h = sheaf__nibble_of(b->qh, g);
    struct sheaf__iq_group to = {0};
    to.scale = sheaf__f16_to_f32(sheaf__iq1_m_d(b->scales)) *
               (float)(2 * (scales >> g / 2 % 4 * 3 & 7) + 1) * 0.125f;
    to.point[0] = (uint16_t)(b->qs[g] | (h & 7) << 8);
    to.offset = h & 8 ? -1 : 1;
    return to;
}

/* The levels of the grids' coordinates. */
#define SHEAF__IQ2_LEVELS                                                                          \
    { 8, 25, 43 }
#define SHEAF__IQ3_XXS_LEVELS                                                                      \
    { 4, 12, 20, 28, 36, 44, 52, 62 }
#define SHEAF__IQ3_S_LEVELS                                                                        \
    { 1, 3, 5, 7, 9, 11, 13, 15 }

/* A grid as numbers: `= {SHEAF__IQ1_GRID(SHEAF__IQ_POINTS)}`. */
#define SHEAF__IQ_POINTS(a, b, c, d, e, f, g, h) a, b, c, d, e, f, g, h,

#endif
