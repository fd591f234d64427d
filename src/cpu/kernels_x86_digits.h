/* A part of kernels_x86.h, of the AVX-512 table: blocks of weights by activations in digits.
 *
 * An activation is an integer of 24 bits times the scale of its block of 32, kept as three signed
 * bytes: q = (h * 256 + m) * 256 + l. VNNI multiplies each digit with the unsigned integers of the
 * weights exactly: 64 weights cost three instructions, where floats take four and the unpacking to
 * 32 bits besides. What rounding is left is that of floats.
 *
 * 64 weights are a vector of bytes, 4 of them a lane. With weights of up to 6 bits a lane's sum
 * stays below 2^31: 4 * 63 * (127 * 2^16 + 128 * 2^8 + 128). It becomes a float and is scaled by
 * the product of both scales; offsets and mins of weights meet the sums of activations.
 *
 * Invariant: as there, one order of accumulation per (row, column) whatever the tile. */

INLINE __m512i load512(const void *p) { return _mm512_loadu_si512(p); }
INLINE __m512i twice256(const void *p) { return _mm512_broadcast_i64x4(load256(p)); }
INLINE __m512i and15_512(__m512i q) { return _mm512_and_si512(q, _mm512_set1_epi8(15)); }

/* a in the lower half, b in the upper half of the bits. */
INLINE __m512i halves(int a, int b) {
    return _mm512_inserti64x4(_mm512_set1_epi32(a), _mm256_set1_epi32(b), 1);
}

/* Lanes of 4 products of 64 weights of up to `bits` bits with the three digits of a column. */
INLINE __m512 dot_digits(int bits, __m512i q, int8_t (*x)[64]) {
    const __m512i zero = _mm512_setzero_si512();
    __m512i a = _mm512_dpbusd_epi32(zero, q, load512(x[0]));
    a = _mm512_dpbusd_epi32(_mm512_slli_epi32(a, 8), q, load512(x[1]));
    if (bits <= 6)
        return _mm512_cvtepi32_ps(_mm512_dpbusd_epi32(_mm512_slli_epi32(a, 8), q, load512(x[2])));
    __m512 low = _mm512_cvtepi32_ps(_mm512_dpbusd_epi32(zero, q, load512(x[2])));
    return _mm512_fmadd_ps(_mm512_cvtepi32_ps(a), _mm512_set1_ps(256.0f), low);
}

/* ---- blocks of 32 ---- */

/* The 64 integers of two blocks, unsigned. */
INLINE __m512i pair_32(enum sheaf_type type, const char *p0, const char *p1) {
    if (type == SHEAF_TYPE_Q8_0) {
        const struct sheaf__block_q8_0 *a = (const void *)p0, *b = (const void *)p1;
        __m512i q = _mm512_inserti64x4(_mm512_castsi256_si512(load256(a->qs)), load256(b->qs), 1);
        return _mm512_xor_si512(q, _mm512_set1_epi8(-128));
    }
    const bool five = type == SHEAF_TYPE_Q5_0 || type == SHEAF_TYPE_Q5_1;
    const size_t at = 2u + (has_min(type) ? 2u : 0u) + (five ? 4u : 0u);
    __m512i q = _mm512_broadcast_i32x4(load128(p0 + at));
    q = _mm512_mask_broadcast_i32x4(q, 0xff00, load128(p1 + at));
    q = and15_512(_mm512_srlv_epi64(q, _mm512_setr_epi64(0, 0, 4, 4, 0, 0, 4, 4)));
    if (five) {
        uint32_t h0, h1;
        memcpy(&h0, p0 + at - 4, sizeof h0);
        memcpy(&h1, p1 + at - 4, sizeof h1);
        q = _mm512_mask_add_epi8(q, (uint64_t)h1 << 32 | h0, q, _mm512_set1_epi8(16));
    }
    return q;
}

/* Lanes 8j.. of the result: number 2j and 2j + 1 of the first 8 of x, 8 times each. */
INLINE __m512 spread_8(__m256 x, int j) {
    return _mm512_permutexvar_ps(halves(2 * j, 2 * j + 1), _mm512_castps256_ps512(x));
}

/* The halves at p, p + block .. of n <= 8 blocks, zeros after them. They are put together in
 * general registers: shuffles are what these loops have too many of, and memory would be waited
 * for. */
INLINE __m256 gather_halves(const char *p, size_t block, int n) {
    uint64_t h[2] = {0, 0};
    UNROLL_12 for (int i = 0; i < 8; i++) {
        uint16_t one;
        if (i >= n) break;
        memcpy(&one, p + (size_t)i * block, sizeof one);
        h[i / 4] |= (uint64_t)one << (i % 4 * 16);
    }
    return _mm256_cvtph_ps(_mm_set_epi64x((int64_t)h[1], (int64_t)h[0]));
}

/* n <= 8 blocks from number b of the row on, which is at w. */
INLINE void digits_group(enum sheaf_type type, const char *w, int64_t b, int n,
                         const struct sheaf__act_digits *act, int C, __m512 (*acc)[2],
                         __m256 *mins) {
    const size_t block = block_size_32(type);
    const float offset = type == SHEAF_TYPE_Q8_0   ? -128.0f
                         : type == SHEAF_TYPE_Q4_0 ? -8.0f
                                                   : -16.0f;
    __m256 scale[SHEAF__TILE_COLS];
    const __m256 d = gather_halves(w, block, n);
    const __m256 m =
        has_min(type) ? gather_halves(w + 2, block, n) : _mm256_mul_ps(d, _mm256_set1_ps(offset));
    UNROLL for (int c = 0; c < C; c++) {
        scale[c] = _mm256_mul_ps(d, _mm256_loadu_ps(act[c].d + b));
        mins[c] = _mm256_fmadd_ps(m, _mm256_loadu_ps(act[c].sums32 + b), mins[c]);
    }
    UNROLL for (int j = 0; j < 4; j++, w += 2 * block) {
        if (2 * j >= n) break;
        if (C == 1) prefetch(w, 2 * block);
        /* the scale of a block that is not there is 0 */
        __m512i q = pair_32(type, w, 2 * j + 1 < n ? w + block : w);
        UNROLL for (int c = 0; c < C; c++) {
            __m512 dot = dot_digits(type == SHEAF_TYPE_Q8_0 ? 8 : 5, q, act[c].x[b / 2 + j].digit);
            acc[c][j % 2] = _mm512_fmadd_ps(dot, spread_8(scale[c], j), acc[c][j % 2]);
        }
    }
}

INLINE void digits_32(enum sheaf_type type, int64_t k, const char *w,
                      const struct sheaf__act_digits *act, int C, float *sum) {
    const size_t block = block_size_32(type);
    const int64_t blocks = k / SHEAF__QK;
    __m512 acc[SHEAF__TILE_COLS][2];
    __m256 mins[SHEAF__TILE_COLS];
    UNROLL for (int c = 0; c < C; c++) {
        acc[c][0] = acc[c][1] = _mm512_setzero_ps();
        mins[c] = _mm256_setzero_ps();
    }
    int64_t b = 0;
    for (; b + 8 <= blocks; b += 8, w += 8 * block) digits_group(type, w, b, 8, act, C, acc, mins);
    if (b < blocks) digits_group(type, w, b, (int)(blocks - b), act, C, acc, mins);
    UNROLL for (int c = 0; c < C; c++) sum[c] =
        v_sum(_mm512_add_ps(acc[c][0], acc[c][1])) + hsum8(mins[c]);
}

/* ---- blocks of 256 ---- */

/* Q4_K and Q5_K. */
INLINE void digits_k(enum sheaf_type type, int64_t k, const char *w,
                     const struct sheaf__act_digits *act, int C, float *sum) {
    const bool five = type == SHEAF_TYPE_Q5_K;
    const size_t block = five ? sizeof(struct sheaf__block_q5_k) : sizeof(struct sheaf__block_q4_k);
    const __m512i shift = _mm512_setr_epi64(0, 0, 0, 0, 4, 4, 4, 4);
    __m512 acc[SHEAF__TILE_COLS][2];
    UNROLL for (int c = 0; c < C; c++) acc[c][0] = acc[c][1] = _mm512_setzero_ps();
    for (int64_t b = 0; b < k / SHEAF__QK_K; b++, w += block) {
        const struct sheaf__block_q4_k *b4 = (const void *)w;
        const struct sheaf__block_q5_k *b5 = (const void *)w;
        int32_t d_dmin;
        if (C == 1) prefetch(w, block);
        memcpy(&d_dmin, w, sizeof d_dmin); /* d, dmin, scales lie alike in both */
        __m512 d = _mm512_castps128_ps512(_mm_cvtph_ps(_mm_cvtsi32_si128(d_dmin)));
        d = _mm512_permutexvar_ps(halves(0, 1), d);
        __m512 s = _mm512_cvtepi32_ps(_mm512_cvtepi16_epi32(k_scales_mins(b4->scales)));
        s = _mm512_mul_ps(s, d); /* 8 scales, 8 mins */
        __m512 t[SHEAF__TILE_COLS];
        UNROLL for (int c = 0; c < C; c++) {
            t[c] = _mm512_castps256_ps512(_mm256_loadu_ps(act[c].d + 8 * b));
            t[c] = _mm512_insertf32x8(t[c], _mm256_loadu_ps(act[c].sums32 + 8 * b), 1);
            t[c] = _mm512_mul_ps(s, t[c]);
            acc[c][1] = _mm512_mask_sub_ps(acc[c][1], 0xff00, acc[c][1], t[c]);
        }
        __m512i high = _mm512_setzero_si512();
        if (five) high = _mm512_srlv_epi64(twice256(b5->qh), _mm512_srli_epi64(shift, 2));
        UNROLL for (int j = 0; j < 4; j++) {
            __m512i q = twice256((five ? b5->qs : b4->qs) + 32 * j);
            q = and15_512(_mm512_srlv_epi64(q, shift));
            if (five) { /* bit 2j to bit 4 */
                __m512i h =
                    j < 2 ? _mm512_slli_epi16(high, 4 - 2 * j) : _mm512_srli_epi16(high, 2 * j - 4);
                q = _mm512_ternarylogic_epi64(q, h, _mm512_set1_epi8(16), 0xf8); /* q | h & 16 */
            }
            UNROLL for (int c = 0; c < C; c++) acc[c][j % 2] =
                _mm512_fmadd_ps(dot_digits(6, q, act[c].x[4 * b + j].digit),
                                spread_8(_mm512_castps512_ps256(t[c]), j), acc[c][j % 2]);
        }
    }
    UNROLL for (int c = 0; c < C; c++) sum[c] = v_sum(_mm512_add_ps(acc[c][0], acc[c][1]));
}

/* Q6_K: 6-bit integers unsigned, their offset of 32 as a min. */
INLINE void digits_6k(enum sheaf_type type, int64_t k, const char *w,
                      const struct sheaf__act_digits *act, int C, float *sum) {
    const __m512i shift = _mm512_setr_epi64(0, 0, 0, 0, 2, 2, 2, 2);
    const __m512i each_twice = _mm512_setr_epi32(0, 0, 1, 1, 2, 2, 3, 3, 4, 4, 5, 5, 6, 6, 7, 7);
    const __m512i each_4_times = _mm512_setr_epi32(0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 2, 2, 3, 3, 3, 3);
    __m512 acc[SHEAF__TILE_COLS][2];
    (void)type;
    UNROLL for (int c = 0; c < C; c++) acc[c][0] = acc[c][1] = _mm512_setzero_ps();
    for (int64_t b = 0; b < k / SHEAF__QK_K; b++, w += sizeof(struct sheaf__block_q6_k)) {
        const struct sheaf__block_q6_k *x = (const void *)w;
        if (C == 1) prefetch(w, sizeof *x);
        __m512 s = _mm512_mul_ps(v_load_i8(x->scales), _mm512_set1_ps(f16(x->d)));
        __m512 mins = _mm512_mul_ps(s, _mm512_set1_ps(-32.0f)), t[SHEAF__TILE_COLS];
        UNROLL for (int c = 0; c < C; c++) {
            __m512 dx = _mm512_castps256_ps512(_mm256_loadu_ps(act[c].d + 8 * b));
            t[c] = _mm512_mul_ps(s, _mm512_permutexvar_ps(each_twice, dx));
            acc[c][1] = _mm512_fmadd_ps(mins, v_load(act[c].sums16 + 16 * b), acc[c][1]);
        }
        UNROLL for (int g = 0; g < 2; g++) {
            __m512i l = load512(x->ql + 64 * g), u = twice256(x->qh + 32 * g);
            UNROLL for (int h = 0; h < 2; h++) { /* quarters 0 and 1, then 2 and 3 */
                __m512i lo = and15_512(h ? _mm512_srli_epi16(l, 4) : l);
                /* bits 2t, 2t + 1 to bits 4, 5 */
                __m512i hi =
                    h ? _mm512_srlv_epi64(u, shift)
                      : _mm512_sllv_epi64(u, _mm512_sub_epi64(_mm512_set1_epi64(4), shift));
                __m512i q = _mm512_ternarylogic_epi64(lo, hi, _mm512_set1_epi8(0x30), 0xf8);
                const int j = 2 * g + h;
                const __m512i pick = _mm512_add_epi32(each_4_times, _mm512_set1_epi32(4 * j));
                UNROLL for (int c = 0; c < C; c++) acc[c][h] =
                    _mm512_fmadd_ps(dot_digits(6, q, act[c].x[4 * b + j].digit),
                                    _mm512_permutexvar_ps(pick, t[c]), acc[c][h]);
            }
        }
    }
    UNROLL for (int c = 0; c < C; c++) sum[c] = v_sum(_mm512_add_ps(acc[c][0], acc[c][1]));
}

#define DIGITS_TILE(ROW_FN, TYPE, C)                                                               \
    for (int64_t r = 0; r < nr; r++) {                                                             \
        float sum[C];                                                                              \
        ROW_FN(TYPE, k, (const char *)w + (size_t)r * w_stride, col, C, sum);                      \
        UNROLL for (int c = 0; c < C; c++) out[c][r] = sum[c];                                     \
    }
#define ROWS_DIGITS(NAME, ROW_FN, TYPE)                                                            \
    static void NAME(int64_t k, const void *w, size_t w_stride, int64_t nr,                        \
                     const void *const *act, int nc, float *const *out) {                          \
        struct sheaf__act_digits col[SHEAF__TILE_COLS];                                            \
        for (int c = 0; c < nc; c++) col[c] = sheaf__act_digits_at((void *)(uintptr_t)act[c], k);  \
        if (nc == 1) {                                                                             \
            DIGITS_TILE(ROW_FN, TYPE, 1)                                                           \
        } else if (nc == 2) {                                                                      \
            DIGITS_TILE(ROW_FN, TYPE, 2)                                                           \
        } else if (nc == 3) {                                                                      \
            DIGITS_TILE(ROW_FN, TYPE, 3)                                                           \
        } else {                                                                                   \
            DIGITS_TILE(ROW_FN, TYPE, 4)                                                           \
        }                                                                                          \
    }
ROWS_DIGITS(rows_digits_q8_0, digits_32, SHEAF_TYPE_Q8_0)
ROWS_DIGITS(rows_digits_q4_0, digits_32, SHEAF_TYPE_Q4_0)
ROWS_DIGITS(rows_digits_q4_1, digits_32, SHEAF_TYPE_Q4_1)
ROWS_DIGITS(rows_digits_q5_0, digits_32, SHEAF_TYPE_Q5_0)
ROWS_DIGITS(rows_digits_q5_1, digits_32, SHEAF_TYPE_Q5_1)
ROWS_DIGITS(rows_digits_q4_k, digits_k, SHEAF_TYPE_Q4_K)
ROWS_DIGITS(rows_digits_q5_k, digits_k, SHEAF_TYPE_Q5_K)
ROWS_DIGITS(rows_digits_q6_k, digits_6k, SHEAF_TYPE_Q6_K)

/* ---- activations ---- */

/* Elements i.. of y from n (a multiple of 32) floats; i is a multiple of 64. What lies between the
 * end of the column and that of its last 64 becomes 0. */
static void to_digits(const float *x, const struct sheaf__act_digits *y, int64_t i, int64_t n) {
    const float top = 127.0f * 256.0f * 256.0f;
    const __m512i half = _mm512_set1_epi32(128);
    for (int64_t b = i / 32; b < (i + n) / 32; b++, x += 32) {
        __m512 v[2] = {v_load(x), v_load(x + 16)};
        /* by their bits, which puts NaN above infinity */
        __m512i a = _mm512_castps_si512(_mm512_abs_ps(v[0]));
        a = _mm512_max_epi32(a, _mm512_castps_si512(_mm512_abs_ps(v[1])));
        const float max =
            _mm_cvtss_f32(_mm_castsi128_ps(_mm_cvtsi32_si128(_mm512_reduce_max_epi32(a))));
        const bool zero = max < 0x1p-100f; /* top / max would overflow */
        const __m512 id = _mm512_set1_ps(zero ? 0.0f : top / max);
        const float d = zero ? 0.0f : max / top;
        int8_t(*digit)[64] = y->x[b / 2].digit;
        const int64_t at = b % 2 * 32;
        int whole = 0;
        for (int g = 0; g < 2; g++) {
            __m512i q = _mm512_cvtps_epi32(_mm512_mul_ps(v[g], id));
            __m512i q1 = _mm512_srai_epi32(_mm512_add_epi32(q, half), 8);
            __m512i q2 = _mm512_srai_epi32(_mm512_add_epi32(q1, half), 8);
            __m512i digits[3] = {q2, _mm512_sub_epi32(q1, _mm512_slli_epi32(q2, 8)),
                                 _mm512_sub_epi32(q, _mm512_slli_epi32(q1, 8))};
            for (int j = 0; j < 3; j++)
                _mm_storeu_si128((__m128i *)(digit[j] + at + 16 * g),
                                 _mm512_cvtepi32_epi8(digits[j]));
            const int sum = _mm512_reduce_add_epi32(q);
            y->sums16[2 * b + g] = d * (float)sum;
            whole += sum;
        }
        y->d[b] = d;
        y->sums32[b] = d * (float)whole;
    }
    if ((i + n) % 64 == 32) {
        for (int j = 0; j < 3; j++) memset(y->x[(i + n) / 64].digit[j] + 32, 0, 32);
    }
}
