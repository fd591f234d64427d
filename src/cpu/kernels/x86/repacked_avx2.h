/* A part of digits_avx2.h, signed_avx2.h and halves.h, compiled for the order of repacked_avx2.c (IN_ORDER): integers
 * and scales of 256 weights at w. */

INLINE __m128i load64(const void *p) { return _mm_loadl_epi64((const __m128i *)p); }
/* x of 16-bit lanes shifted right, or left if n < 0, and of each byte the bits of `mask`. */
INLINE __m256i bits_at(__m256i x, int n, int mask) {
    const __m256i y = n > 0 ? _mm256_srli_epi16(x, n) : n < 0 ? _mm256_slli_epi16(x, -n) : x;
    return _mm256_and_si256(y, _mm256_set1_epi8((char)mask));
}

/* Eight vectors of integers of so many bits, which are as many vectors at p: what is in the low bits of each, or in the
 * low nibbles, then what the others leave free. */
INLINE void integers_of(int bits, const char *p, __m256i *q) {
    __m256i x[5];
    UNROLL_8 for (int i = 0; i < bits; i++) {
        x[i] = load256(p + 32 * i);
        if (bits == 4) LOADED_ONCE(x[i]); /* others would be spilled */
    }
    if (bits == 4) {
        UNROLL for (int i = 0; i < 4; i++) {
            q[i] = and15(x[i]);
            q[4 + i] = high15(x[i]);
        }
    } else if (bits == 5) {
        UNROLL_8 for (int i = 0; i < 5; i++) q[i] = bits_at(x[i], 0, 31);
        q[5] = _mm256_or_si256(bits_at(x[0], 5, 7), bits_at(x[1], 3, 24));
        q[6] = _mm256_or_si256(bits_at(x[2], 5, 7), bits_at(x[1], 2, 8));
        q[6] = _mm256_or_si256(q[6], bits_at(x[3], 1, 16));
        q[7] = _mm256_or_si256(bits_at(x[4], 5, 7), bits_at(x[3], 3, 24));
    } else {
        const int lo[6] = {0, 3, 0, 3, 0, 3}, of[6] = {0, 0, 1, 1, 2, 2};
        UNROLL_8 for (int i = 0; i < 6; i++) q[i] = bits_at(x[of[i]], lo[i], 7);
        q[6] = _mm256_or_si256(bits_at(x[0], 6, 3), bits_at(x[1], 4, 4));
        q[7] = _mm256_or_si256(bits_at(x[2], 6, 3), bits_at(x[1], 5, 4));
    }
}
/* Four vectors of 6 bits, which are three. */
INLINE void half_of_6(const char *p, __m256i *q) {
    __m256i x[3];
    UNROLL for (int i = 0; i < 3; i++) {
        x[i] = load256(p + 32 * i);
        LOADED_ONCE(x[i]);
        q[i] = bits_at(x[i], 0, 63);
    }
    q[3] = _mm256_or_si256(bits_at(x[0], 6, 3), bits_at(x[1], 4, 12));
    q[3] = _mm256_or_si256(q[3], bits_at(x[2], 2, 48));
}

/* Bits of an integer where eight vectors of them are together. */
INLINE int bits_of(enum sheaf_type type) {
    return is_five(type) || type == SHEAF_TYPE_Q5_K ? 5 : type == SHEAF_TYPE_Q3_K ? 3 : 4;
}

/* ---- types of 32 ---- */

INLINE void oct_repacked(enum sheaf_type type, const char *w, __m256i *q) {
    integers_of(bits_of(type), w, q);
}
INLINE __m256 eight_halves(const char *p) { return _mm256_cvtph_ps(load128(p)); }
INLINE void scales_8_repacked(enum sheaf_type type, const char *w, __m256 *d, __m256 *m) {
    const char *p = w + 32 * bits_of(type);
    if (type == SHEAF_TYPE_MXFP4) {
        *d = *m = powers_of_two(_mm256_cvtepu8_epi32(load64(p)));
        return;
    }
    *d = eight_halves(p);
    *m = has_min(type) ? eight_halves(p + 16) : *d;
}

/* The eight numbers of 6 bits behind the half d of IQ4_XS, at the top of dwords; what lies below them is not theirs. */
INLINE __m256i xs_at_top(__m128i x) {
    const char no = -128;
    const __m256i at = _mm256_setr_epi8(2, 3, no, no, 2, 3, no, no, 3, 4, no, no, 4, 5, no, no, /**/
                                        5, 6, no, no, 5, 6, no, no, 6, 7, no, no, 7, no, no, no);
    const __m256i to_top = _mm256_setr_epi32(26, 20, 22, 24, 26, 20, 22, 24);
    return _mm256_sllv_epi32(_mm256_shuffle_epi8(_mm256_broadcastq_epi64(x), at), to_top);
}
INLINE void iq4_repacked(enum sheaf_type type, const char *w, __m256i *q) {
    oct_repacked(type, w, q);
}
INLINE __m256 iq4_scales_repacked(enum sheaf_type type, const char *w) {
    if (type == SHEAF_TYPE_IQ4_NL) return eight_halves(w + 128);
    const __m128i x = load64(w + 128);
    return _mm256_mul_ps(_mm256_cvtepi32_ps(_mm256_srai_epi32(xs_at_top(x), 26)),
                         _mm256_broadcastss_ps(_mm_cvtph_ps(x)));
}

/* ---- blocks of 256 ---- */

/* Eight numbers of 12 bits from byte `first` of the 16 at p on, one a lane; what lies above them is not theirs. */
INLINE __m256i twelve_bits(const char *p, int first) {
    const char no = -128;
#define LANE_12(AT) (char)(AT), (char)((AT) + 1), no, no
#define FOUR_12(AT) LANE_12(AT), LANE_12((AT) + 1), LANE_12((AT) + 3), LANE_12((AT) + 4)
    const __m256i at = _mm256_setr_epi8(FOUR_12(first), FOUR_12(first + 6));
    const __m256i x = _mm256_shuffle_epi8(twice128(p), at);
    return _mm256_srlv_epi32(x, _mm256_setr_epi32(0, 4, 0, 4, 0, 4, 0, 4));
}

/* Q4_K, Q5_K: integers, d, dmin, then scales and mins of 6 bits, those of a block together. */
INLINE void pairs_repacked(enum sheaf_type type, const char *w, __m256i *q) {
    integers_of(bits_of(type), w, q);
}
INLINE void k_scales_repacked(enum sheaf_type type, const char *w, __m256 *scales, __m256 *mins) {
    const char *p = w + 32 * bits_of(type);
    const __m128 d = _mm_cvtph_ps(load128(p));
    const __m256i x = twelve_bits(p, 4), low6 = _mm256_set1_epi32(63);
    const __m256i s = _mm256_and_si256(x, low6);
    const __m256i m = _mm256_and_si256(_mm256_srli_epi32(x, 6), low6);
    *scales = _mm256_mul_ps(_mm256_cvtepi32_ps(s), _mm256_broadcastss_ps(d));
    *mins = _mm256_mul_ps(_mm256_cvtepi32_ps(m), _mm256_broadcastss_ps(_mm_movehdup_ps(d)));
}

/* Q6_K: halves, scales as lanes meet them, d. */
INLINE void half_6k_repacked(const char *w, int n, __m256i *q) { half_of_6(w + 96 * n, q); }
INLINE __m256i scales_6k_repacked(const char *w, int n) {
    return _mm256_cvtepi8_epi32(load64(w + 192 + 8 * n));
}

/* Q2_K: a vector for each half, scales and mins, d, dmin. Q3_K: three vectors for both, signed scales of pieces L and
 * 8 + L of 6 bits in each 12, d. */
INLINE void half_repacked(enum sheaf_type type, const char *w, int half, __m256i *q) {
    __m256i x[8];
    if (type == SHEAF_TYPE_Q3_K) {
        integers_of(3, w, x);
        UNROLL for (int v = 0; v < 4; v++) q[v] = x[4 * half + v];
    } else {
        UNROLL for (int v = 0; v < 4; v++) q[v] = bits_at(load256(w + 32 * half), 2 * v, 3);
    }
}
INLINE __m256i bytes_16(const char *w, int half) {
    return _mm256_cvtepu8_epi32(load64(w + 64 + 8 * half));
}
INLINE struct scales scaled_16(__m256i lo, __m256i hi, float d) {
    const __m256 by = _mm256_set1_ps(d);
    return (struct scales){_mm256_mul_ps(_mm256_cvtepi32_ps(lo), by),
                           _mm256_mul_ps(_mm256_cvtepi32_ps(hi), by)};
}
INLINE struct scales scales_16_repacked(enum sheaf_type type, const char *w) {
    const __m256i low4 = _mm256_set1_epi32(15);
    if (type == SHEAF_TYPE_Q3_K) {
        const __m256i x = twelve_bits(w + 94, 2);
        return scaled_16(_mm256_srai_epi32(_mm256_slli_epi32(x, 26), 26),
                         _mm256_srai_epi32(_mm256_slli_epi32(x, 20), 26),
                         f16(((const struct sheaf__block_q3_k *)(const void *)w)->d));
    }
    return scaled_16(_mm256_and_si256(bytes_16(w, 0), low4), _mm256_and_si256(bytes_16(w, 1), low4),
                     f16(((const struct sheaf__block_q2_k *)(const void *)w)->d));
}
INLINE struct scales mins_16_repacked(const char *w) {
    return scaled_16(_mm256_srli_epi32(bytes_16(w, 0), 4), _mm256_srli_epi32(bytes_16(w, 1), 4),
                     f16(((const struct sheaf__block_q2_k *)(const void *)w)->dmin));
}
