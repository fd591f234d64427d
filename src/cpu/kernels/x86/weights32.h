/* A part of table.h, in the same terms: 32 weights of a block as floats in registers, d * q + m with q
 * unsigned, for panels of floats and for the keys and values of a cache. */

enum { PER_16 = 16 / VW, PER_32 = 32 / VW }; /* vectors of 16 and of 32 floats */

INLINE __m256i twice128(const void *p) { return _mm256_broadcastsi128_si256(load128(p)); }
INLINE __m256i and15(__m256i q) { return _mm256_and_si256(q, _mm256_set1_epi8(15)); }
INLINE __m256i high15(__m256i q) { return and15(_mm256_srli_epi16(q, 4)); }

/* w = d * q + m for 16 unsigned bytes, which lie in both halves of q. */
INLINE void widen16(__m256i q, v_f d, v_f m, v_f *w) {
    UNROLL for (int i = 0; i < PER_16; i++) w[i] = v_fma(v_bytes(q, i), d, m);
}

/* Keeps an array in memory: the compilers here would rather permute it in registers than load an
 * element into every lane, and loads are free in these loops. */
#define IN_MEMORY(array) __asm__("" : "+m"(array))

/* f[0] = d, f[1] = d / 16, f[2] = what is added to every element, from the first bytes of a block:
 * d, and m if the type has one; `offset` stands in for m. */
INLINE void block_scales(const void *p, bool min, float offset, float *f) {
    int32_t halves;
    memcpy(&halves, p, sizeof halves);
    __m128 dm = _mm_cvtph_ps(_mm_cvtsi32_si128(halves));
    dm = min ? _mm_permute_ps(dm, 0x50) : _mm_permute_ps(dm, 0);
    _mm_storeu_ps(f, _mm_mul_ps(dm, _mm_setr_ps(1.0f, 1.0f / 16, min ? 1.0f : offset, 0.0f)));
}

/* 32 weights of a block of any type of 32; f as block_scales gives it. */
INLINE void weights32(enum sheaf_type type, const void *p, const float *f, v_f *w) {
    const bool min = has_min(type);
    v_f d = v_set1(f[0]);
    if (type == SHEAF_TYPE_Q8_0) {
        const struct sheaf__block_q8_0 *b = p;
        UNROLL for (int j = 0; j < PER_32; j++) w[j] = v_mul(d, v_load_i8(b->qs + j * VW));
    } else if (type == SHEAF_TYPE_Q4_0 || type == SHEAF_TYPE_Q4_1) {
        const struct sheaf__block_q4_0 *b0 = p;
        const struct sheaf__block_q4_1 *b1 = p;
        v_f d_16 = v_set1(f[1]), m = v_set1(f[2]);
        const uint8_t *q = min ? b1->qs : b0->qs;
        UNROLL for (int j = 0; j < PER_16; j++) {
            v_nibbles(q + j * VW, &w[j], &w[PER_16 + j]);
            w[j] = v_fma(w[j], d, m);
            w[PER_16 + j] = v_fma(w[PER_16 + j], d_16, m);
        }
    } else {
        const struct sheaf__block_q5_0 *b0 = p;
        const struct sheaf__block_q5_1 *b1 = p;
        v_f m = v_set1(f[2]);
        __m256i q = twice128(min ? b1->qs : b0->qs);
        __m256i h = spread_bits(min ? b1->qh : b0->qh, 16, 0);
        __m256i lo = _mm256_permute2x128_si256(h, h, 0), hi = _mm256_permute2x128_si256(h, h, 0x11);
        widen16(_mm256_or_si256(and15(q), lo), d, m, w);
        widen16(_mm256_or_si256(high15(q), hi), d, m, w + PER_16);
    }
}
