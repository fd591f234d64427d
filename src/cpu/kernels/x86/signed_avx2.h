/* A part of table.h, of tables with vectors of 32 bytes: rows of types that become signed bytes (signed.h), by
 * integers of 16 bits; IQ4 eight blocks at a time.
 *
 * Invariant: as in digits_avx2.h. */

/* One scale for all 32 weights. */
INLINE bool by_32(enum sheaf_type type) {
    return type == SHEAF_TYPE_IQ2_XXS || type == SHEAF_TYPE_IQ3_XXS || type == SHEAF_TYPE_IQ3_S ||
           type == SHEAF_TYPE_IQ1_S || type == SHEAF_TYPE_Q1_0 || type == SHEAF_TYPE_Q2_0;
}

INLINE void digits_signed(enum sheaf_type type, int64_t k, const char *w, struct fetch fetch,
                          const struct sheaf__act_digits *const *act, int C, float *sum) {
    __m256 acc[TILE][2];
    UNROLL for (int c = 0; c < C; c++) acc[c][0] = acc[c][1] = _mm256_setzero_ps();
    for (int64_t i = 0; i < k; i += SHEAF__QK_K, w += size_256(type)) {
        _Alignas(8) char rest[MOST_256];
        const char *p = whole_256(type, w, k - i, sheaf__digits_at_end(k), rest);
        const struct scales s = scales_256(type, p);
        float t[TILE][16];
        uint32_t signs[8];
        if (signs_are_packed(type)) signs_256(type, p, signs);
        fetch_lines(fetch, w, size_256(type));
        UNROLL for (int c = 0; c < C; c++) {
            const struct sheaf__act_digits *y = &act[c][i / SHEAF__QK_K];
            const struct scales dx = each_twice(_mm256_load_ps(y->d));
            _mm256_storeu_ps(t[c], _mm256_mul_ps(s.lo, dx.lo));
            _mm256_storeu_ps(t[c] + 8, _mm256_mul_ps(s.hi, dx.hi));
        }
        UNROLL_12 for (int j = 0; j < 8; j++) {
            const __m256i q = signed_32(type, p, j, signs);
            const __m256i q0 = _mm256_cvtepi8_epi16(_mm256_castsi256_si128(q));
            const __m256i q1 = _mm256_cvtepi8_epi16(_mm256_extracti128_si256(q, 1));
            UNROLL for (int c = 0; c < C; c++) {
                const int16_t *x = act[c][i / SHEAF__QK_K].word[0] + 32 * j;
                const __m256i a = _mm256_madd_epi16(q0, load256(x));
                const __m256i b = _mm256_madd_epi16(q1, load256(x + 16));
                const __m256 first = _mm256_set1_ps(t[c][2 * j]);
                if (by_32(type)) {
                    const __m256 dot = _mm256_cvtepi32_ps(_mm256_add_epi32(a, b));
                    acc[c][j % 2] = _mm256_fmadd_ps(dot, first, acc[c][j % 2]);
                    continue;
                }
                acc[c][0] = _mm256_fmadd_ps(_mm256_cvtepi32_ps(a), first, acc[c][0]);
                acc[c][1] = _mm256_fmadd_ps(_mm256_cvtepi32_ps(b), _mm256_set1_ps(t[c][2 * j + 1]),
                                            acc[c][1]);
            }
        }
    }
    UNROLL for (int c = 0; c < C; c++) sum[c] = v_sum(_mm256_add_ps(acc[c][0], acc[c][1]));
}

/* What digits_iq4 adds to levels to make them unsigned: VNNI wants that, and an unsigned byte becomes a word by a mask or
 * a shift. */
INLINE int iq4_offset(enum sheaf__act act) { return act == SHEAF__ACT_BYTES ? SIGNED_OFFSET : 128; }

/* Lanes of the products of eight vectors of bytes, levels with their offset, with block b of each column. */
INLINE void dots_iq4(const __m256i *q, enum sheaf__act act, const void *const *cols, int C,
                     int64_t b, __m256 *to) {
#if defined(KERNELS_VNNI_256)
    UNROLL for (int c = 0; c < C; c++) to[c] =
        dot_lanes(8, 8, q, act, part_of_column(act, cols[c], b), 0);
#else
    __m256i dot[TILE];
    UNROLL for (int c = 0; c < C; c++) dot[c] = _mm256_setzero_si256();
    UNROLL_8 for (int v = 0; v < 8; v++) {
        const __m256i even = _mm256_and_si256(q[v], _mm256_set1_epi16(255));
        const __m256i odd = _mm256_srli_epi16(q[v], 8);
        UNROLL for (int c = 0; c < C; c++) {
            const void *y = part_of_column(act, cols[c], b);
            if (act == SHEAF__ACT_BYTES) {
                dot[c] = dot_signed(dot[c], q[v], digit_of(act, y, v, 0));
                continue;
            }
            const int16_t *x = ((const struct sheaf__act_digits *)y)->word[0] + 32 * v;
            dot[c] = madd_acc(madd_acc(dot[c], even, load256(x)), odd, load256(x + 16));
        }
    }
    UNROLL for (int c = 0; c < C; c++) to[c] = _mm256_cvtepi32_ps(dot[c]);
#endif
}

/* Numbers of the levels of eight blocks, as nibbles_oct has them, and scales. */
INLINE void iq4_in_file(enum sheaf_type type, const char *w, __m256i *q) {
    if (type == SHEAF_TYPE_IQ4_XS)
        nibbles_oct(w + offsetof(struct sheaf__block_iq4_xs, qs), SHEAF__QK / 2, q);
    else
        oct_in_file(type, w, q);
}
INLINE __m256 iq4_scales_in_file(enum sheaf_type type, const char *w) {
    return type == SHEAF_TYPE_IQ4_XS ? scales_32(type, w)
                                     : halves_8(w, sizeof(struct sheaf__block_iq4_nl));
}

/* IQ4_NL and IQ4_XS: eight blocks, a lane each, by integers of 16 bits, with VNNI by two digits, or rounded. */
INLINE void digits_iq4(enum sheaf_type type, enum sheaf__act act, int64_t k, const char *w,
                       struct fetch fetch, const void *const *cols, int C, const v_f *from, v_f *to,
                       float *sum) {
    const __m256i levels =
        _mm256_add_epi8(twice128(iq4_levels), _mm256_set1_epi8((char)iq4_offset(act)));
    __m256 acc[TILE], sums[TILE];
    take_sums(from, C, acc, sums);
    for (int64_t i = 0, b = 0; i < k; i += SHEAF__QK_K, b++, w += size_256(type)) {
        _Alignas(8) char rest[MOST_256];
        const char *p = whole_256(type, w, k - i, from || sheaf__digits_at_end(k), rest);
        const __m256 d = IN_ORDER(iq4_scales)(type, p);
        __m256i q[8];
        __m256 dot[TILE];
        fetch_lines(fetch, w, size_256(type));
        IN_ORDER(iq4)(type, p, q);
        UNROLL_8 for (int v = 0; v < 8; v++) q[v] = _mm256_shuffle_epi8(levels, q[v]);
        dots_iq4(q, act, cols, C, b, dot);
        UNROLL for (int c = 0; c < C; c++) {
            const void *y = part_of_column(act, cols[c], b);
            acc[c] = _mm256_fmadd_ps(dot[c], _mm256_mul_ps(d, d_of(act, y)), acc[c]);
            sums[c] = _mm256_fmadd_ps(d, sums32_of(act, y), sums[c]);
        }
    }
    if (keep_sums(to, C, acc, sums)) return;
    UNROLL for (int c = 0; c < C; c++) sum[c] =
        v_sum(_mm256_fmadd_ps(sums[c], _mm256_set1_ps(-(float)iq4_offset(act)), acc[c]));
}
