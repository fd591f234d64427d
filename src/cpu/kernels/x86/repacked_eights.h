/* A part of eights.h: eight blocks in the order of repacked.c. Kernels for weights as in files include it, too, and call
 * nothing of it: for them of_six_bits is false for all types. */

/* Eight halves, one for each block, to the lanes of each. */
INLINE __m512 halves_of_eight(const char *p) {
    const __m256i lanes = _mm256_setr_epi8(0, 1, 0, 1, 8, 9, 8, 9, 2, 3, 2, 3, 10, 11, 10, 11, /**/
                                           4, 5, 4, 5, 12, 13, 12, 13, 6, 7, 6, 7, 14, 15, 14, 15);
    return _mm512_cvtph_ps(_mm256_shuffle_epi8(_mm256_broadcastsi128_si256(load128(p)), lanes));
}
#if defined(KERNELS_VBMI)
/* Eight bytes less 128. As the low bits of a float of 2^23 they count ones. */
INLINE __m512 exponents_of_eight(const char *p) {
    const __m512i lanes = _mm512_setr_epi32(0, 0, 4, 4, 1, 1, 5, 5, 2, 2, 6, 6, 3, 3, 7, 7);
    int64_t eight;
    memcpy(&eight, p, sizeof eight);
    const __m512i e = _mm512_mask_permutexvar_epi8(
        _mm512_castps_si512(v_set1(0x1p23f)), 0x1111111111111111, lanes, _mm512_set1_epi64(eight));
    return v_sub(_mm512_castsi512_ps(e), v_set1(0x1p23f + 128.0f));
}
#endif
/* The two vectors at p. */
INLINE void load_nibbles(const char *p, __m512i *nibbles) {
    UNROLL for (int i = 0; i < 2; i++) {
        nibbles[i] = load512(p + 64 * i);
        LOADED_ONCE(nibbles[i]); /* they cross lines of the cache */
    }
}

/* Four vectors of 5 bits: vectors 0 and 1 at p, above them the upper three bits of vectors 2 and 3; the low two of
 * these in 32 bytes at `low`, of the first half of a vector in bits 0 to 3, of the second in bits 4 to 7. */
INLINE void load_fives(const char *p, const char *low, __m512i *q) {
    const __m512i at[2] = {_mm512_setr_epi64(0, 0, 0, 0, 4, 4, 4, 4),
                           _mm512_setr_epi64(2, 2, 2, 2, 6, 6, 6, 6)};
    const __m512i bits_2_to_4 = _mm512_set1_epi8(0x1c), two_bits = _mm512_set1_epi8(3);
    const __m512i rest = _mm512_broadcast_i64x4(load256(low));
    __m512i x[2];
    load_nibbles(p, x);
    UNROLL for (int i = 0; i < 2; i++) {
        const __m512i of_rest = _mm512_and_si512(_mm512_srlv_epi64(rest, at[i]), two_bits);
        q[i] = _mm512_and_si512(x[i], _mm512_set1_epi8(31));
        q[2 + i] = _mm512_ternarylogic_epi64(bits_2_to_4, _mm512_srli_epi16(x[i], 3), of_rest,
                                             0xca); /* a & b | ~a & c */
    }
}

/* ---- scales of 6 bits ----
 *
 * Lane j of 128 bits g has bits 8 + 6 g and up of dword j at w, of IQ4_XS, whose scales have a sign, of dword j % 2. The
 * low bytes of the dwords are d, and of K dmin. */

/* Types whose scales are read apart from their weights. */
INLINE bool of_six_bits(enum sheaf_type type) {
#if defined(KERNELS_REPACKED)
    return is_k(type) || type == SHEAF_TYPE_IQ4_XS;
#else
    (void)type;
    return false;
#endif
}

/* d and dmin of rows. They take long to become floats and to reach all lanes, by way of memory, so they do while the
 * 256 weights before them are multiplied: a Zen 4 looks little further ahead than one such turn of three rows. */
struct rows_d {
    _Alignas(32) float row[4][2];
};
/* The low bytes of dwords as dword r. */
INLINE __m128i d_of_row(__m128i dwords, int r) {
    enum { NO = -128 };
    const __m128i at =
        r == 0   ? _mm_setr_epi8(0, 4, 8, 12, NO, NO, NO, NO, NO, NO, NO, NO, NO, NO, NO, NO)
        : r == 1 ? _mm_setr_epi8(NO, NO, NO, NO, 0, 4, 8, 12, NO, NO, NO, NO, NO, NO, NO, NO)
                 : _mm_setr_epi8(NO, NO, NO, NO, NO, NO, NO, NO, 0, 4, 8, 12, NO, NO, NO, NO);
    return _mm_shuffle_epi8(dwords, at);
}
/* Of R rows at w. IQ4_XS has weights behind its first two dwords, and no use for the second floats. */
INLINE void d_of_rows(int R, const char *w, size_t w_stride, struct rows_d *d) {
    __m128i halves = _mm_setzero_si128();
    UNROLL for (int r = 0; r < R; r++) halves =
        _mm_or_si128(halves, d_of_row(load128(w + (size_t)r * w_stride), r));
    _mm256_store_ps(d->row[0], _mm256_cvtph_ps(halves));
    __asm__("" : "+m"(*d)); /* gcc would spread them by permutations */
}

/* Scales of R rows times their d, before scales_to_lanes. */
INLINE void scales_of_rows(enum sheaf_type type, int R, const char *w, size_t w_stride,
                           const struct rows_d *d, struct eight *x) {
    const __m512i to_top =
        _mm512_setr_epi32(18, 18, 18, 18, 12, 12, 12, 12, 6, 6, 6, 6, 0, 0, 0, 0);
    UNROLL for (int r = 0; r < R; r++) {
        const char *p = w + (size_t)r * w_stride;
        if (is_k(type)) {
            double both;
            memcpy(&both, d->row[r], sizeof both);
            const __m512i top = _mm512_sllv_epi32(_mm512_broadcast_i32x4(load128(p)), to_top);
            x[r].d = v_mul(_mm512_cvtepi32_ps(_mm512_srli_epi32(top, 26)),
                           _mm512_castpd_ps(_mm512_set1_pd(both)));
        } else {
            int64_t dwords;
            memcpy(&dwords, p, sizeof dwords);
            const __m512i top = _mm512_sllv_epi32(_mm512_set1_epi64(dwords), to_top);
            x[r].d = v_mul(_mm512_cvtepi32_ps(_mm512_srai_epi32(top, 26)), v_set1(d->row[r][0]));
        }
        LOADED_ONCE(x[r].d); /* gcc would compute it later */
    }
}
/* To the two lanes of each block; K has scales in even lanes and mins in odd ones. */
INLINE void scales_to_lanes(enum sheaf_type type, int R, struct eight *x) {
    UNROLL for (int r = 0; r < R; r++) {
        const __m512 both = x[r].d;
        if (is_k(type)) x[r].m = _mm512_movehdup_ps(both);
        x[r].d = is_k(type) ? _mm512_moveldup_ps(both) : _mm512_permute_ps(both, 0x50);
    }
}
