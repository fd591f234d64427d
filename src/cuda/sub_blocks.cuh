/* Sub-blocks of 32 elements of the block types, taken apart: their integers as bytes, four a word, with scales and
 * minimums. A lane has a sub-block; its block lies in words, in shared memory or in device memory, at any offset. */
#ifndef SHEAF_CUDA_SUB_BLOCKS_CUH
#define SHEAF_CUDA_SUB_BLOCKS_CUH

#include "cuda/kernel.cuh"

/* Bits 0..3 of h to bit 4 of each byte. */
HD uint32_t spread(uint32_t h) {
    return (h & 1) << 4 | (h & 2) << 11 | (h & 4) << 18 | (h & 8) << 25;
}

/* Elements as d0 * (q - MINUS) - m, q four a word in order. m is there where mins is not 0; elements 16..31 have
 * a scale d1 of their own where scales is 2, and also a min m1 where mins is. */
struct Sub {
    uint32_t q[8];
    float d0, d1, m, m1;
    int shift; /* of integers that are left where they lie */
};
/* Which integers a product takes where they lie in their bytes: each shift less is an instruction for every four
 * elements, and the product of all is shifted once. Elements 16..31 in the high halves; all of them in either half. */
HD constexpr bool in_high_halves(int type) { return type == SHEAF_TYPE_Q4_0 || type == SHEAF_TYPE_Q4_1; }
HD constexpr bool in_a_half(int type) { return type == SHEAF_TYPE_Q4_K; }

template <int TYPE> struct Format;
/* The types that have them: type, name of the block, its elements, scales, mins, MINUS. */
#define SUB_BLOCK_TYPES(X)                                                                         \
    X(Q4_0, q4_0, SHEAF__QK, 1, 0, 8)                                                              \
    X(Q4_1, q4_1, SHEAF__QK, 1, 1, 0)                                                              \
    X(Q5_0, q5_0, SHEAF__QK, 1, 0, 16)                                                             \
    X(Q5_1, q5_1, SHEAF__QK, 1, 1, 0)                                                              \
    X(Q8_0, q8_0, SHEAF__QK, 1, 0, 0)                                                              \
    X(Q4_K, q4_k, SHEAF__QK_K, 1, 1, 0)                                                            \
    X(Q5_K, q5_k, SHEAF__QK_K, 1, 1, 0)                                                            \
    X(Q6_K, q6_k, SHEAF__QK_K, 2, 0, 32)                                                           \
    X(Q2_K, q2_k, SHEAF__QK_K, 2, 2, 0)                                                            \
    X(Q3_K, q3_k, SHEAF__QK_K, 2, 0, 4)                                                            \
    X(IQ4_NL, iq4_nl, SHEAF__QK, 1, 0, 0)                                                          \
    X(IQ4_XS, iq4_xs, SHEAF__QK_K, 1, 0, 0)                                                        \
    X(MXFP4, mxfp4, SHEAF__QK, 1, 0, 0)
#define FORMAT(type, name, block_elements, n_scales, n_mins, minus)                                \
    template <> struct Format<SHEAF_TYPE_##type> {                                                 \
        enum { BYTES = sizeof(struct sheaf__block_##name), SUBS = block_elements / 32 };           \
        enum { MINUS = minus };                                                                    \
        static constexpr int scales = n_scales, mins = n_mins;                                     \
    };
SUB_BLOCK_TYPES(FORMAT)
#undef FORMAT

/* LIE: the high ones stay in the high halves of their bytes. */
template <bool LIE = false> HD void nibbles(const uint32_t *w, int at, uint32_t *q) {
    const Words x = words_at(w, at);
    for (int i = 0; i < 4; i++) {
        const uint32_t v = word_of(x, i);
        q[i] = v & 0x0f0f0f0fu;
        q[i + 4] = LIE ? v & 0xf0f0f0f0u : v >> 4 & 0x0f0f0f0fu;
    }
}
HD void fifths(uint32_t h, uint32_t *q) {
    for (int i = 0; i < 8; i++) q[i] |= spread(h >> 4 * i);
}
/* The levels of eight nibbles: low ones as a word, high ones as another. A selector of
 * __byte_perm is three bits, so each half of the levels is asked, and the fourth bits choose. */
static __device__ __forceinline__ void look_up(const Levels &l, uint32_t v, uint32_t *low,
                                               uint32_t *high) {
    uint32_t pair[2]; /* of bytes 0 and 1, of bytes 2 and 3: low, high, low, high */
    for (int i = 0; i < 2; i++, v >>= 16) {
        const uint32_t at = v & 0x7777u, half = (v & 0x8888u) >> 1 | 0x3210u;
        pair[i] = __byte_perm(__byte_perm(l.word[0], l.word[1], at),
                              __byte_perm(l.word[2], l.word[3], at), half);
    }
    *low = __byte_perm(pair[0], pair[1], 0x6420u);
    *high = __byte_perm(pair[0], pair[1], 0x7531u);
}
/* N words, a multiple of four, at a byte offset that is a multiple of 16 in most rows of most types. */
template <int N> HD void words_of(const uint32_t *w, int offset, uint32_t *to) {
    if (offset % 16 == 0) {
        for (int i = 0; i < N; i += 4) {
            const uint4 v = *(const uint4 *)(const void *)(w + offset / 4 + i);
            to[i] = v.x;
            to[i + 1] = v.y;
            to[i + 2] = v.z;
            to[i + 3] = v.w;
        }
    } else {
        const Words x = words_at(w, offset);
        for (int i = 0; i < N; i++) to[i] = word_of(x, i);
    }
}
/* Scale and min of sub-block s of a K block, whose first four words are its head: six bits each, of which those of
 * sub-blocks 4 to 7 are divided. Shifts and masks are of the lane, which has the same s of every block. */
HD void k_scales(const uint32_t *head, int s, Sub *x) {
    const int low = s % 4 * 8, high = s < 4 ? low : low + 2;
    const uint32_t of_high = s < 4 ? 63u : 48u, of_low = s < 4 ? 0u : 15u;
    const uint32_t scale = (head[1] >> high & of_high) | (head[3] >> low & of_low);
    const uint32_t min = (head[2] >> high & of_high) | (head[3] >> (low + 4) & of_low);
    x->d0 = f16_to_f32((uint16_t)head[0]) * (float)scale;
    x->m = f16_to_f32((uint16_t)(head[0] >> 16)) * (float)min;
}

/* Scale i of a block of Q3_K, packed as sheaf__q3_k_scale has it. */
HD int q3_scale(const uint32_t *packed, int i) {
    const uint32_t word = i % 8 < 4 ? packed[0] : packed[1];
    const uint32_t low = word >> (i % 4 * 8 + i / 8 * 4) & 15;
    return (int)(low | (packed[2] >> (i % 4 * 8 + i / 4 * 2) & 3) << 4) - 32;
}

/* Sub-block s of the block at byte offset `at` (even except for MXFP4) of w. LIE: integers stay where they lie, of the
 * types above. */
template <int TYPE, bool LIE = false>
static __device__ __forceinline__ Sub take_apart(const uint32_t *w, int at, int s) {
    Sub x;
    if (TYPE == SHEAF_TYPE_Q4_0) {
        nibbles<LIE>(w, at + 2, x.q);
        x.d0 = half_at(w, at);
    } else if (TYPE == SHEAF_TYPE_Q4_1) {
        nibbles<LIE>(w, at + 4, x.q);
        x.d0 = half_at(w, at);
        x.m = -half_at(w, at + 2);
    } else if (TYPE == SHEAF_TYPE_Q5_0) {
        nibbles(w, at + 6, x.q);
        fifths(word_at(w, at + 2), x.q);
        x.d0 = half_at(w, at);
    } else if (TYPE == SHEAF_TYPE_Q5_1) {
        nibbles(w, at + 8, x.q);
        fifths(word_at(w, at + 4), x.q);
        x.d0 = half_at(w, at);
        x.m = -half_at(w, at + 2);
    } else if (TYPE == SHEAF_TYPE_Q8_0) {
        const Words q = words_at(w, at + 2);
        for (int i = 0; i < 8; i++) x.q[i] = word_of(q, i);
        x.d0 = half_at(w, at);
    } else if (TYPE == SHEAF_TYPE_Q4_K) {
        uint32_t head[4];
        words_of<4>(w, at, head);
        words_of<8>(w, at + 16 + s / 2 * 32, x.q);
        x.shift = s % 2 * 4;
        const uint32_t mask = 0x0f0f0f0fu << x.shift;
        for (int i = 0; i < 8; i++) x.q[i] = LIE ? x.q[i] & mask : x.q[i] >> x.shift & 0x0f0f0f0fu;
        k_scales(head, s, &x);
    } else if (TYPE == SHEAF_TYPE_Q5_K) {
        uint32_t head[4], high[8];
        words_of<4>(w, at, head);
        words_of<8>(w, at + 16, high);
        words_of<8>(w, at + 48 + s / 2 * 32, x.q);
        for (int i = 0; i < 8; i++) { /* bit s of each byte comes to bit 4 */
            const uint32_t h = word_between(high[i], high[i], (unsigned)(s - 4) & 31u);
            x.q[i] = (x.q[i] >> (s % 2 * 4) & 0x0f0f0f0fu) | (h & 0x10101010u);
        }
        k_scales(head, s, &x);
    } else if (TYPE == SHEAF_TYPE_Q6_K) {
        /* the low bits come to bits 0 to 3 of each byte, the high ones to 4 and 5 */
        const Words ql = bits_at(w, at + s / 4 * 64 + s % 2 * 32, s % 4 / 2 * 4);
        const Words qh = bits_at(w, at + 128 + s / 4 * 32, s % 4 * 2 - 4);
        for (int i = 0; i < 8; i++)
            x.q[i] = (word_of(ql, i) & 0x0f0f0f0fu) | (word_of(qh, i) & 0x30303030u);
        const uint32_t scales = word_at(w, at + 192 + s / 2 * 4); /* of sub-blocks s & ~1, s | 1 */
        const int shift = s % 2 * 16;
        const float d = half_at(w, at + 208);
        x.d0 = d * (float)(int8_t)(scales >> shift & 255u);
        x.d1 = d * (float)(int8_t)(scales >> (shift + 8) & 255u);
    } else if (TYPE == SHEAF_TYPE_Q2_K) {
        const uint32_t scales = word_at(w, at + s / 2 * 4) >> (s % 2 * 16);
        const float d = half_at(w, at + 80), dmin = half_at(w, at + 82);
        const Words q = words_at(w, at + 16 + s / 4 * 32);
        for (int i = 0; i < 8; i++) x.q[i] = word_of(q, i) >> (s % 4 * 2) & 0x03030303u;
        x.d0 = d * (float)(scales & 15);
        x.d1 = d * (float)(scales >> 8 & 15);
        x.m = dmin * (float)(scales >> 4 & 15);
        x.m1 = dmin * (float)(scales >> 12 & 15);
    } else if (TYPE == SHEAF_TYPE_Q3_K) {
        uint32_t packed[3];
        for (int i = 0; i < 3; i++) packed[i] = word_at(w, at + 96 + 4 * i);
        const float d = half_at(w, at + 108);
        const Words low = words_at(w, at + 32 + s / 4 * 32), high = words_at(w, at);
        for (int i = 0; i < 8; i++) {
            const uint32_t l = word_of(low, i) >> (s % 4 * 2);
            const uint32_t h = word_of(high, i) >> s & 0x01010101u;
            x.q[i] = (l & 0x03030303u) | h << 2;
        }
        x.d0 = d * (float)q3_scale(packed, 2 * s);
        x.d1 = d * (float)q3_scale(packed, 2 * s + 1);
    } else if (TYPE == SHEAF_TYPE_MXFP4) {
        const Words q = words_at(w, at + 1);
        for (int i = 0; i < 4; i++) look_up(levels_of(true), word_of(q, i), &x.q[i], &x.q[i + 4]);
        x.d0 = sheaf__mxfp4_scale((uint8_t)word_at(w, at));
    } else { /* IQ4_NL, IQ4_XS */
        const bool nl = TYPE == SHEAF_TYPE_IQ4_NL;
        const Words q = words_at(w, at + (nl ? 2 : 8 + 16 * s));
        for (int i = 0; i < 4; i++) look_up(levels_of(false), word_of(q, i), &x.q[i], &x.q[i + 4]);
        x.d0 = half_at(w, at);
        if (!nl) {
            const uint32_t high = word_at(w, at + 2) >> 2 * s; /* scales_h, in the low half */
            const uint32_t low = word_at(w, at + 4) >> 4 * s;  /* scales_l: nibble s */
            x.d0 *= (float)((int)((low & 15) | (high & 3) << 4) - 32);
        }
    }
    return x;
}

#endif
