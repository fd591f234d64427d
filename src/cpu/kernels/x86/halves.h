/* A part of table.h, of tables with vectors of 32 bytes: what pieces.h is with AVX-512, for Q2_K, Q3_K,
 * TQ1_0, TQ2_0.
 *
 * A lane is a piece of 16 weights of one half of a block of 256 (SHEAF__DIGITS_HALVES).
 *
 * Invariant: as in digits_avx2.h. */

#define LANES_OF(F) _mm256_setr_epi32(F(0), F(1), F(2), F(3), F(4), F(5), F(6), F(7))
INLINE __m256i lane_dwords(__m256i x, __m256i at, int v) {
    return _mm256_permutevar8x32_epi32(x, _mm256_add_epi32(at, _mm256_set1_epi32(v)));
}

/* Pieces 2 s and 2 s + 1 of a half are bits 2 s of its 32 bytes. */
#define LANE_DWORD(L) ((L) % 2 * 4)
#define LANE_TWICE(L) ((L) / 2 * 2)
#define LANE_PAIR(L)  ((L) / 2)
INLINE void half_of_2(const uint8_t *qs, __m256i *q) {
    const __m256i x = load256(qs), three = _mm256_set1_epi8(3);
    UNROLL for (int v = 0; v < 4; v++) q[v] = _mm256_and_si256(
        _mm256_srlv_epi32(lane_dwords(x, LANES_OF(LANE_DWORD), v), LANES_OF(LANE_TWICE)), three);
}
/* Bit 4 half + s of hmask to bit 2. */
INLINE void half_of_3(const struct sheaf__block_q3_k *b, int half, __m256i *q) {
    const __m256i mask = load256(b->hmask), bit2 = _mm256_set1_epi8(4);
    const __m256i high = half ? _mm256_srli_epi32(mask, 2) : _mm256_slli_epi32(mask, 2);
    half_of_2(b->qs + 32 * half, q);
    UNROLL for (int v = 0; v < 4; v++) {
        const __m256i h =
            _mm256_srlv_epi32(lane_dwords(high, LANES_OF(LANE_DWORD), v), LANES_OF(LANE_PAIR));
        q[v] = _mm256_or_si256(q[v], _mm256_and_si256(h, bit2));
    }
}

/* TQ1_0, as pieces.h has it. */
#define LANE_THREES(L) (((L) / 2 == 0 ? 1 : (L) / 2 == 1 ? 3 : (L) / 2 == 2 ? 9 : 27) * 0x10001)
INLINE __m256i ternary_bytes(__m256i x, __m256i by) {
    const __m256i three = _mm256_set1_epi16(3);
    const __m256i even = _mm256_mullo_epi16(_mm256_slli_epi16(x, 8), by);
    const __m256i odd =
        _mm256_mullo_epi16(_mm256_and_si256(x, _mm256_set1_epi16((int16_t)0xff00)), by);
    return _mm256_or_si256(_mm256_mulhi_epu16(even, three),
                           _mm256_slli_epi16(_mm256_mulhi_epu16(odd, three), 8));
}
INLINE void half_of_ternary(const struct sheaf__block_tq1_0 *b, int half, __m256i *q) {
    const __m256i x = load256(b->qs);
    int32_t four;
    memcpy(&four, b->qh, sizeof four);
    const __m256i rest = _mm256_inserti128_si256(_mm256_castsi128_si256(load128(b->qs + 32)),
                                                 _mm_cvtsi32_si128(four), 1);
    UNROLL for (int v = 0; v < 4; v++) {
        const __m256i bytes = lane_dwords(x, LANES_OF(LANE_DWORD), v);
        const int last = (v == 0 ? 1 : v == 1 ? 3 : v == 2 ? 9 : 27) * 0x10001, k = 0x10001;
        const __m256i at = _mm256_setr_epi32(0, 0, v, v, v, v, v, 4);
        if (!half)
            q[v] = ternary_bytes(bytes, LANES_OF(LANE_THREES));
        else
            q[v] = ternary_bytes(
                _mm256_blend_epi32(_mm256_permutevar8x32_epi32(rest, at), bytes, 0x03),
                _mm256_setr_epi32(81 * k, 81 * k, k, 3 * k, 9 * k, 27 * k, 81 * k, last));
    }
}

/* Pieces of a half, and scales and mins of all. */
INLINE void half_in_file(enum sheaf_type type, const char *w, int half, __m256i *q) {
    if (type == SHEAF_TYPE_Q3_K)
        half_of_3((const void *)w, half, q);
    else if (type == SHEAF_TYPE_TQ1_0)
        half_of_ternary((const void *)w, half, q);
    else if (type == SHEAF_TYPE_TQ2_0)
        half_of_2(((const struct sheaf__block_tq2_0 *)(const void *)w)->qs + 32 * half, q);
    else
        half_of_2(((const struct sheaf__block_q2_k *)(const void *)w)->qs + 32 * half, q);
}

INLINE struct scales scales_16_in_file(enum sheaf_type type, const char *w) {
    return scales_256(type, w);
}
INLINE struct scales mins_16_in_file(const char *w) { return mins_256(w); }

INLINE void digits_halves(enum sheaf_type type, enum sheaf__act act, int64_t k, const char *w,
                          struct fetch fetch, const void *const *cols, int C, const v_f *from,
                          v_f *to, float *sum) {
    const __m256 offset = _mm256_set1_ps(type == SHEAF_TYPE_Q3_K ? 4.0f : 1.0f);
    __m256 acc[TILE], mins[TILE];
    take_sums(from, C, acc, mins);
    for (int64_t b = 0; b < k / SHEAF__QK_K; b++, w += size_256(type)) {
        const struct scales s = IN_ORDER(scales_16)(type, w);
        const struct scales m = type == SHEAF_TYPE_Q2_K ? IN_ORDER(mins_16)(w) : s;
        fetch_lines(fetch, w, size_256(type));
        UNROLL for (int half = 0; half < 2; half++) {
            __m256i q[4];
            IN_ORDER(half)(type, w, half, q);
            UNROLL for (int c = 0; c < C; c++) {
                const void *y = part_of_column(act, cols[c], b);
                const __m256 t = _mm256_mul_ps(half ? s.hi : s.lo, d16_of(act, y, half));
                acc[c] = _mm256_fmadd_ps(dot_lanes(3, 4, q, act, y, 4 * half), t, acc[c]);
                mins[c] = _mm256_fmadd_ps(half ? m.hi : m.lo, sums16_of(act, y, half), mins[c]);
            }
        }
    }
    if (keep_sums(to, C, acc, mins)) return;
    UNROLL for (int c = 0; c < C; c++) sum[c] = v_sum(_mm256_fnmadd_ps(offset, mins[c], acc[c]));
}
