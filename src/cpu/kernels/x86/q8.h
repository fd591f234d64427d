/* A part of kernels.h, in the same terms: blocks of weights by activations that were rounded to
 * 8 bits. Blocks are worked on in 256 bits by both tables, since a block is 32 bytes when unpacked.
 *
 * Invariant: as there, one accumulator per (row, column), fed in the order of k. */

/* The 32 integers of a block, signed without a min, unsigned with one. */
INLINE __m256i unpack32(enum sheaf_type type, const void *p, float *d, float *m) {
    if (type == SHEAF_TYPE_Q8_0) {
        const struct sheaf__block_q8_0 *b = p;
        *d = f16(b->d);
        return load256(b->qs);
    }
    if (type == SHEAF_TYPE_Q4_0) {
        const struct sheaf__block_q4_0 *b = p;
        *d = f16(b->d);
        return _mm256_sub_epi8(nibbles(b->qs), _mm256_set1_epi8(8));
    }
    if (type == SHEAF_TYPE_Q4_1) {
        const struct sheaf__block_q4_1 *b = p;
        *d = f16(b->d);
        *m = f16(b->m);
        return nibbles(b->qs);
    }
    if (type == SHEAF_TYPE_Q5_0) { /* nibble - 16 + 16 bit = nibble | (bit ? 0 : 0xf0) */
        const struct sheaf__block_q5_0 *b = p;
        *d = f16(b->d);
        return _mm256_or_si256(nibbles(b->qs), spread_bits(b->qh, 0, -16));
    }
    const struct sheaf__block_q5_1 *b = p;
    *d = f16(b->d);
    *m = f16(b->m);
    return _mm256_or_si256(nibbles(b->qs), spread_bits(b->qh, 16, 0));
}

INLINE void tile_32(enum sheaf_type type, int64_t k, const char *w, size_t w_stride, int R,
                    const void *const *act, int C, float *const *out, int64_t r0) {
    const size_t block = block_size_32(type);
    __m256 acc[MAX_ROWS][SHEAF__TILE_COLS];
    float mins[MAX_ROWS][SHEAF__TILE_COLS];
    UNROLL for (int r = 0; r < R; r++) {
        UNROLL for (int c = 0; c < C; c++) {
            acc[r][c] = _mm256_setzero_ps();
            mins[r][c] = 0;
        }
    }
    for (int64_t b = 0; b < k / SHEAF__QK; b++) {
        UNROLL for (int r = 0; r < R; r++) {
            float d, m = 0;
            const char *p = w + (size_t)(r0 + r) * w_stride + (size_t)b * block;
            if (C == 1 && b % 2 == 0)
                prefetch(p + PREFETCH_AHEAD, block); /* two blocks are at most 68 bytes */
            __m256i x = unpack32(type, p, &d, &m);
            __m256 dx = _mm256_set1_ps(d);
            __m256i ax = _mm256_abs_epi8(x);
            UNROLL for (int c = 0; c < C; c++) {
                const struct sheaf__act_q8 *y = (const struct sheaf__act_q8 *)act[c] + b;
                __m256i q = load256(y->qs);
                __m256i dot = has_min(type) ? dot_i8(x, q) : dot_i8(ax, _mm256_sign_epi8(q, x));
                __m256 d2 = _mm256_mul_ps(dx, _mm256_set1_ps(y->d));
                acc[r][c] = _mm256_fmadd_ps(d2, _mm256_cvtepi32_ps(dot), acc[r][c]);
                if (has_min(type)) mins[r][c] = __builtin_fmaf(m, y->s, mins[r][c]);
            }
        }
    }
    UNROLL for (int r = 0; r < R; r++) {
        UNROLL for (int c = 0; c < C; c++) out[c][r0 + r] =
            hsum8(acc[r][c]) + (has_min(type) ? mins[r][c] : 0.0f);
    }
}

/* Q4_K and Q5_K. */
INLINE void tile_k(enum sheaf_type type, int64_t k, const char *w, size_t w_stride, int R,
                   const void *const *act, int C, float *const *out, int64_t r0) {
    const bool five = type == SHEAF_TYPE_Q5_K;
    const size_t block = five ? sizeof(struct sheaf__block_q5_k) : sizeof(struct sheaf__block_q4_k);
    const __m256i low = _mm256_set1_epi8(15), bit4 = _mm256_set1_epi8(16);
    __m256 acc[MAX_ROWS][SHEAF__TILE_COLS];
    UNROLL for (int r = 0; r < R; r++) {
        UNROLL for (int c = 0; c < C; c++) acc[r][c] = _mm256_setzero_ps();
    }
    for (int64_t b = 0; b < k / SHEAF__QK_K; b++) {
        UNROLL for (int r = 0; r < R; r++) {
            const char *p = w + (size_t)(r0 + r) * w_stride + (size_t)b * block;
            const struct sheaf__block_q4_k *b4 = (const void *)p;
            const struct sheaf__block_q5_k *b5 = (const void *)p;
            if (C == 1) prefetch(p + PREFETCH_AHEAD, block);
            __m256i sm = k_scales_mins(b4->scales); /* d, dmin, scales lie alike in both */
            __m128i m128 = _mm256_extracti128_si256(sm, 1);
            __m256i mins =
                _mm256_set_m128i(_mm_unpackhi_epi16(m128, m128), _mm_unpacklo_epi16(m128, m128));
            __m256i scales = _mm256_permute2x128_si256(sm, sm, 0);
            __m256i pick = _mm256_set1_epi16(0x0100); /* bytes of scale number 0 */
            __m256i high = five ? load256(b5->qh) : _mm256_setzero_si256();
            __m256i sum[SHEAF__TILE_COLS];
            UNROLL for (int c = 0; c < C; c++) sum[c] = _mm256_setzero_si256();
            UNROLL for (int j = 0; j < 4; j++) {
                __m256i q = load256((five ? b5->qs : b4->qs) + 32 * j);
                __m256i lo = _mm256_and_si256(q, low);
                __m256i hi = _mm256_and_si256(_mm256_srli_epi16(q, 4), low);
                if (five) { /* bit 2j to bit 4, and the next one */
                    __m256i h = j < 2 ? _mm256_slli_epi16(high, 4 - 2 * j)
                                      : _mm256_srli_epi16(high, 2 * j - 4);
                    __m256i h2 = j < 2 ? _mm256_slli_epi16(high, 3 - 2 * j)
                                       : _mm256_srli_epi16(high, 2 * j - 3);
                    lo = _mm256_or_si256(lo, _mm256_and_si256(h, bit4));
                    hi = _mm256_or_si256(hi, _mm256_and_si256(h2, bit4));
                }
                __m256i s_lo = _mm256_shuffle_epi8(scales, pick);
                pick = _mm256_add_epi16(pick, _mm256_set1_epi16(0x0202));
                __m256i s_hi = _mm256_shuffle_epi8(scales, pick);
                pick = _mm256_add_epi16(pick, _mm256_set1_epi16(0x0202));
                UNROLL for (int c = 0; c < C; c++) {
                    const struct sheaf__act_q8k *y = (const struct sheaf__act_q8k *)act[c] + b;
                    __m256i p_lo = _mm256_maddubs_epi16(lo, load256(y->qs + 64 * j));
                    __m256i p_hi = _mm256_maddubs_epi16(hi, load256(y->qs + 64 * j + 32));
                    sum[c] = madd_acc(sum[c], p_lo, s_lo);
                    sum[c] = madd_acc(sum[c], p_hi, s_hi);
                }
            }
            __m256 dx = _mm256_set1_ps(f16(b4->d)), dm = _mm256_set1_ps(f16(b4->dmin));
            UNROLL for (int c = 0; c < C; c++) {
                const struct sheaf__act_q8k *y = (const struct sheaf__act_q8k *)act[c] + b;
                __m256 dy = _mm256_set1_ps(y->d);
                __m256 mf = _mm256_cvtepi32_ps(_mm256_madd_epi16(mins, load256(y->sums)));
                __m256 a =
                    _mm256_fmadd_ps(_mm256_mul_ps(dx, dy), _mm256_cvtepi32_ps(sum[c]), acc[r][c]);
                acc[r][c] = _mm256_fnmadd_ps(_mm256_mul_ps(dm, dy), mf, a);
            }
        }
    }
    UNROLL for (int r = 0; r < R; r++) {
        UNROLL for (int c = 0; c < C; c++) out[c][r0 + r] = hsum8(acc[r][c]);
    }
}

/* Q6_K: 6-bit integers unsigned, their offset of 32 taken off through the sums of activations. */
INLINE void tile_6k(enum sheaf_type type, int64_t k, const char *w, size_t w_stride, int R,
                    const void *const *act, int C, float *const *out, int64_t r0) {
    const __m256i low = _mm256_set1_epi8(15), two = _mm256_set1_epi8(0x30);
    __m256 acc[MAX_ROWS][SHEAF__TILE_COLS];
    (void)type;
    UNROLL for (int r = 0; r < R; r++) {
        UNROLL for (int c = 0; c < C; c++) acc[r][c] = _mm256_setzero_ps();
    }
    for (int64_t b = 0; b < k / SHEAF__QK_K; b++) {
        UNROLL for (int r = 0; r < R; r++) {
            const struct sheaf__block_q6_k *x =
                (const void *)(w + (size_t)(r0 + r) * w_stride + (size_t)b * sizeof *x);
            if (C == 1) prefetch((const char *)x + PREFETCH_AHEAD, sizeof *x);
            __m128i scales = load128(x->scales);
            /* bytes of scales 0 (8 times) and 1 (8 times); 2 further for each 32 elements */
            __m128i pick = _mm_set_epi64x(0x0101010101010101, 0);
            __m256i sum[SHEAF__TILE_COLS];
            UNROLL for (int c = 0; c < C; c++) sum[c] = _mm256_setzero_si256();
            UNROLL for (int h = 0; h < 2; h++) {
                __m256i l0 = load256(x->ql + 64 * h), l1 = load256(x->ql + 64 * h + 32);
                __m256i hi = load256(x->qh + 32 * h);
                UNROLL for (int t = 0; t < 4; t++) {
                    __m256i l = t % 2 ? l1 : l0;
                    if (t >= 2) l = _mm256_srli_epi16(l, 4);
                    /* bits 2t, 2t + 1 to bits 4, 5 */
                    __m256i u =
                        t < 2 ? _mm256_slli_epi16(hi, 4 - 2 * t) : _mm256_srli_epi16(hi, 2 * t - 4);
                    __m256i q = _mm256_or_si256(_mm256_and_si256(l, low), _mm256_and_si256(u, two));
                    __m256i s = _mm256_cvtepi8_epi16(_mm_shuffle_epi8(scales, pick));
                    pick = _mm_add_epi8(pick, _mm_set1_epi8(2));
                    UNROLL for (int c = 0; c < C; c++) {
                        const struct sheaf__act_q8k *y = (const struct sheaf__act_q8k *)act[c] + b;
                        __m256i p = _mm256_maddubs_epi16(q, load256(y->qs + 128 * h + 32 * t));
                        sum[c] = madd_acc(sum[c], p, s);
                    }
                }
            }
            __m256i s16 = _mm256_cvtepi8_epi16(scales);
            __m256 dx = _mm256_set1_ps(f16(x->d));
            UNROLL for (int c = 0; c < C; c++) {
                const struct sheaf__act_q8k *y = (const struct sheaf__act_q8k *)act[c] + b;
                __m256i off = _mm256_slli_epi32(_mm256_madd_epi16(s16, load256(y->sums)), 5);
                __m256 dot = _mm256_cvtepi32_ps(_mm256_sub_epi32(sum[c], off));
                __m256 d = _mm256_mul_ps(dx, _mm256_set1_ps(y->d));
                acc[r][c] = _mm256_fmadd_ps(d, dot, acc[r][c]);
            }
        }
    }
    UNROLL for (int r = 0; r < R; r++) {
        UNROLL for (int c = 0; c < C; c++) out[c][r0 + r] = hsum8(acc[r][c]);
    }
}

ROWS_DOT(rows_q8_q8_0, tile_32, SHEAF_TYPE_Q8_0, 1, 2, 2)
ROWS_DOT(rows_q8_q4_0, tile_32, SHEAF_TYPE_Q4_0, 1, 2, 2)
ROWS_DOT(rows_q8_q4_1, tile_32, SHEAF_TYPE_Q4_1, 1, 2, 1)
ROWS_DOT(rows_q8_q5_0, tile_32, SHEAF_TYPE_Q5_0, 1, 2, 2)
ROWS_DOT(rows_q8_q5_1, tile_32, SHEAF_TYPE_Q5_1, 1, 2, 1)
ROWS_DOT(rows_q8_q4_k, tile_k, SHEAF_TYPE_Q4_K, 1, 1, 1)
ROWS_DOT(rows_q8_q5_k, tile_k, SHEAF_TYPE_Q5_K, 1, 1, 1)
ROWS_DOT(rows_q8_q6_k, tile_6k, SHEAF_TYPE_Q6_K, 1, 1, 1)
