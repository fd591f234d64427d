/* A part of kernels.h, of the AVX-512 table: blocks of weights by activations in digits.
 *
 * An activation is an integer of 24 or 16 bits times the scale of its block of 32, kept as three or
 * two signed bytes: q = (h * 256 + m) * 256 + l, or h * 256 + m for weights of fewer than 6 bits. VNNI
 * multiplies each digit with the unsigned integers of the weights exactly: 64 weights cost an
 * instruction for each digit, where floats take four and the unpacking to 32 bits besides. With 24
 * bits what rounding is left is that of floats.
 *
 * 64 weights are a vector of bytes, 4 of them a lane. With weights of up to 6 bits a lane's sum
 * by three digits stays below 2^31: 4 * 63 * (127 * 2^16 + 128 * 2^8 + 128); by two digits so does that
 * of two vectors of whole bytes, 8 * 255 * 127 * 257. It becomes a float and is scaled by the product of
 * both scales; offsets and mins of weights meet the sums of activations.
 *
 * These loops spend their time on scales and unpacking, not on products, so activations lie in the
 * order in which weights of few bits come out of wide loads (enum sheaf__digits_order).
 *
 * Invariant: as there, one order of accumulation per (row, column) whatever the tile. */

INLINE __m512i twice256(const void *p) { return _mm512_broadcast_i64x4(load256(p)); }
INLINE __m512i and15_512(__m512i q) { return _mm512_and_si512(q, _mm512_set1_epi8(15)); }

/* a in the lower half, b in the upper half of the bits. */
INLINE __m512i halves(int a, int b) {
    return _mm512_inserti64x4(_mm512_set1_epi32(a), _mm256_set1_epi32(b), 1);
}

/* Rows together: a load of digits, which may come from the second cache, serves both. One column, and several
 * that fit the first cache, go row by row, as memory is read in order then: a Zen 5 reads Q4_0 at 37 GB/s, by
 * two rows at 28 to 33, and at 24 instead of 20 while the other core reads too. */
enum { DIGITS_ROWS = 2 };

/* Lanes of 4 products of 64 weights of up to `bits` bits of R rows with the three digits of a
 * column. */
INLINE void dot_digits(int bits, int R, const __m512i *q, const int8_t (*x)[64], __m512 *dot) {
    const __m512i zero = _mm512_setzero_si512();
    __m512i a[DIGITS_ROWS], digit = load512(x[0]);
    UNROLL for (int r = 0; r < R; r++) a[r] = _mm512_dpbusd_epi32(zero, q[r], digit);
    digit = load512(x[1]);
    UNROLL for (int r = 0; r < R; r++) a[r] =
        _mm512_dpbusd_epi32(_mm512_slli_epi32(a[r], 8), q[r], digit);
    digit = load512(x[2]);
    UNROLL for (int r = 0; r < R; r++) {
        if (bits <= 6) {
            a[r] = _mm512_dpbusd_epi32(_mm512_slli_epi32(a[r], 8), q[r], digit);
            dot[r] = _mm512_cvtepi32_ps(a[r]);
            continue;
        }
        const __m512 low = _mm512_cvtepi32_ps(_mm512_dpbusd_epi32(zero, q[r], digit));
        dot[r] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(a[r]), _mm512_set1_ps(256.0f), low);
    }
}

/* ---- blocks of 32 ---- */

/* The 64 integers of two blocks of Q8_0, unsigned. */
INLINE __m512i pair_8(const char *p0, const char *p1) {
    const struct sheaf__block_q8_0 *a = (const void *)p0, *b = (const void *)p1;
    __m512i q = _mm512_inserti64x4(_mm512_castsi256_si512(load256(a->qs)), load256(b->qs), 1);
    return _mm512_xor_si512(q, _mm512_set1_epi8(-128));
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

/* n <= 8 blocks of Q8_0 at w and of the next rows, by number g of the columns. */
INLINE void digits_group(const char *w, size_t stride, int R, int64_t g, int n, struct fetch fetch,
                         const struct sheaf__act_digits *const *act, int C,
                         __m512 (*acc)[SHEAF__TILE_COLS][2], __m256 (*mins)[SHEAF__TILE_COLS]) {
    const size_t block = sizeof(struct sheaf__block_q8_0);
    __m256 scale[DIGITS_ROWS][SHEAF__TILE_COLS];
    UNROLL for (int r = 0; r < R; r++) {
        const __m256 d = gather_halves(w + (size_t)r * stride, block, n);
        const __m256 m = _mm256_mul_ps(d, _mm256_set1_ps(-128.0f));
        UNROLL for (int c = 0; c < C; c++) {
            scale[r][c] = _mm256_mul_ps(d, _mm256_load_ps(act[c][g].d));
            mins[r][c] = _mm256_fmadd_ps(m, _mm256_load_ps(act[c][g].sums32), mins[r][c]);
        }
    }
    UNROLL for (int j = 0; j < 4; j++, w += 2 * block) {
        __m512i q[DIGITS_ROWS];
        if (2 * j >= n) break;
        UNROLL for (int r = 0; r < R; r++) {
            const char *p = w + (size_t)r * stride;
            fetch_weights(fetch, p, 2 * block);
            /* the scale of a block that is not there is 0 */
            q[r] = pair_8(p, 2 * j + 1 < n ? p + block : p);
        }
        UNROLL for (int c = 0; c < C; c++) {
            __m512 dot[DIGITS_ROWS];
            dot_digits(8, R, q, act[c][g].digit[j], dot);
            UNROLL for (int r = 0; r < R; r++) acc[r][c][j % 2] =
                _mm512_fmadd_ps(dot[r], spread_8(scale[r][c], j), acc[r][c][j % 2]);
        }
    }
}

INLINE void digits_8(enum sheaf_type type, int64_t k, const char *w, size_t stride, int R,
                     struct fetch fetch, const struct sheaf__act_digits *const *act, int C,
                     float *sum) {
    const size_t block = sizeof(struct sheaf__block_q8_0);
    const int64_t blocks = k / SHEAF__QK;
    __m512 acc[DIGITS_ROWS][SHEAF__TILE_COLS][2];
    __m256 mins[DIGITS_ROWS][SHEAF__TILE_COLS];
    (void)type;
    UNROLL for (int r = 0; r < R; r++) {
        UNROLL for (int c = 0; c < C; c++) {
            acc[r][c][0] = acc[r][c][1] = _mm512_setzero_ps();
            mins[r][c] = _mm256_setzero_ps();
        }
    }
    int64_t b = 0;
    for (; b + 8 <= blocks; b += 8, w += 8 * block)
        digits_group(w, stride, R, b / 8, 8, fetch, act, C, acc, mins);
    if (b < blocks) digits_group(w, stride, R, b / 8, (int)(blocks - b), fetch, act, C, acc, mins);
    UNROLL for (int r = 0; r < R; r++) {
        UNROLL for (int c = 0; c < C; c++) sum[r * C + c] =
            v_sum(_mm512_add_ps(acc[r][c][0], acc[r][c][1])) + hsum8(mins[r][c]);
    }
}

/* ---- four blocks of 32 at a time ---- */

/* Lanes of 8 products of 128 weights of R rows with the two digits of two vectors of a column. */
INLINE void dot_rows_twice(int R, const __m512i *q0, const __m512i *q1, const int8_t (*x)[3][64],
                           __m512 *dot) {
    __m512i a[DIGITS_ROWS];
    UNROLL for (int j = 0; j < 2; j++) {
        const __m512i first = load512(x[0][j]), second = load512(x[1][j]);
        UNROLL for (int r = 0; r < R; r++) {
            a[r] = j ? _mm512_slli_epi32(a[r], 8) : _mm512_setzero_si512();
            a[r] = _mm512_dpbusd_epi32(a[r], q0[r], first);
            a[r] = _mm512_dpbusd_epi32(a[r], q1[r], second);
        }
    }
    UNROLL for (int r = 0; r < R; r++) dot[r] = _mm512_cvtepi32_ps(a[r]);
}
INLINE __m512 dot_digits_twice(__m512i q0, __m512i q1, const int8_t (*x)[3][64]) {
    __m512 dot;
    dot_rows_twice(1, &q0, &q1, x, &dot);
    return dot;
}

/* Scales, which each column has four times for each of 4 blocks, those of column c in lanes 4 i + c:
 * what is done with them is done once for all columns. of_column: those of column c as they were. */
INLINE __m512 by_columns(const float *const *x, int C) {
    __m512 all = v_load(x[0]);
    UNROLL for (int c = 1; c < C; c++) all =
        _mm512_mask_loadu_ps(all, (__mmask16)(0x1111 << c), x[c]);
    return all;
}
INLINE __m512 of_column(__m512 all, int c, int C) {
    return C == 1 ? all : _mm512_permutevar_ps(all, _mm512_set1_epi32(c));
}

/* Where the first 64 bytes of 4 blocks have the nibbles of three (of Q4_0, half of the fourth's),
 * and the scale, then the min, of each lane's block; in words. */
#define NIBBLES(AT) AT, AT + 1, AT + 2, AT + 3, AT + 4, AT + 5, AT + 6, AT + 7
#define FOUR(AT)    AT, AT, AT, AT
static const struct quad {
    _Alignas(64) int16_t nibbles[32];
    int16_t scales[32];
} quad_q4_0 = {{NIBBLES(1), NIBBLES(10), NIBBLES(19), NIBBLES(28)},
               {FOUR(0), FOUR(9), FOUR(18), FOUR(27)}},
  quad_q4_1 = {{NIBBLES(2), NIBBLES(12), NIBBLES(22), NIBBLES(22)},
               {FOUR(0), FOUR(10), FOUR(20), FOUR(30), FOUR(1), FOUR(11), FOUR(21), FOUR(31)}};

/* The same for blocks of 5 bits, 4 of which are 88 or 96 bytes: numbers below 32 are words of the
 * first 64 of these, the others of the last 64. `fifths` are the top bits of each lane's block:
 * those of the first half of it in the low 8 bytes, then those of the second. */
#define W0(AT) (int16_t)((AT) < 32 ? (AT) : (AT) + 20) /* the last 64 bytes begin at word 12 */
#define W1(AT) (int16_t)((AT) < 32 ? (AT) : (AT) + 16) /* .. 16 */
#define EIGHT_5(W, AT)                                                                             \
    W(AT), W(AT + 1), W(AT + 2), W(AT + 3), W(AT + 4), W(AT + 5), W(AT + 6), W(AT + 7)
#define FOUR_5(W, AT) W(AT), W(AT), W(AT), W(AT)
#define TOPS_5(W, AT) FOUR_5(W, AT), FOUR_5(W, (AT) + 1)
static const struct quad_5 {
    _Alignas(64) int16_t nibbles[32];
    int16_t scales[32], fifths[32];
} quad_q5_0 = {{EIGHT_5(W0, 3), EIGHT_5(W0, 14), EIGHT_5(W0, 25), EIGHT_5(W0, 36)},
               {FOUR_5(W0, 0), FOUR_5(W0, 11), FOUR_5(W0, 22), FOUR_5(W0, 33)},
               {TOPS_5(W0, 1), TOPS_5(W0, 12), TOPS_5(W0, 23), TOPS_5(W0, 34)}},
  quad_q5_1 = {{EIGHT_5(W1, 4), EIGHT_5(W1, 16), EIGHT_5(W1, 28), EIGHT_5(W1, 40)},
               {FOUR_5(W1, 0), FOUR_5(W1, 12), FOUR_5(W1, 24), FOUR_5(W1, 36), FOUR_5(W1, 1),
                FOUR_5(W1, 13), FOUR_5(W1, 25), FOUR_5(W1, 37)},
               {TOPS_5(W1, 2), TOPS_5(W1, 14), TOPS_5(W1, 26), TOPS_5(W1, 38)}};

/* The first n <= 64 bytes at p; none for n <= 0. */
INLINE __m512i load_n(const char *p, int n) {
    if (n >= 64) return load512(p);
    return n <= 0 ? _mm512_setzero_si512() : _mm512_maskz_loadu_epi8(((uint64_t)1 << n) - 1, p);
}

/* n <= 4 blocks of 4 bits at w: first halves to lo, second to hi, scales and mins to s. */
INLINE void unpack_quad_4(enum sheaf_type type, const char *w, int n, __m512i *lo, __m512i *hi,
                          __m512i *s) {
    const struct quad *at = has_min(type) ? &quad_q4_1 : &quad_q4_0;
    const int size = (int)block_size_32(type);
    __m512i x = load_n(w, n * size);
    __asm__("" : "+v"(x)); /* not to be loaded twice: it crosses lines of the cache */
    *s = _mm512_permutexvar_epi16(load512(at->scales), x);
    __m512i q = _mm512_permutexvar_epi16(load512(at->nibbles), x);
    if (n == 4) q = _mm512_mask_broadcast_i32x4(q, 0xf000, load128(w + 4 * size - 16));
    *lo = and15_512(q);
    *hi = and15_512(_mm512_srli_epi16(q, 4));
}

/* The same of 5 bits. */
INLINE void unpack_quad_5(enum sheaf_type type, const char *w, int n, __m512i *lo, __m512i *hi,
                          __m512i *s) {
    const struct quad_5 *at = has_min(type) ? &quad_q5_1 : &quad_q5_0;
    const int size = (int)block_size_32(type), last = 4 * size - 64;
    const __m512i bit = _mm512_set1_epi64((int64_t)0x8040201008040201u);
    const __m512i first =
        _mm512_broadcast_i32x4(_mm_setr_epi8(0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 1, 1, 1));
    const __m512i second = _mm512_add_epi8(first, _mm512_set1_epi8(8));
    __m512i x = load_n(w, n * size), y = load_n(w + last, n * size - last);
    __asm__("" : "+v"(x), "+v"(y));
    *s = _mm512_permutex2var_epi16(x, load512(at->scales), y);
    const __m512i q = _mm512_permutex2var_epi16(x, load512(at->nibbles), y);
    const __m512i h = _mm512_permutex2var_epi16(x, load512(at->fifths), y);
    const __m512i bit4 = _mm512_set1_epi8(16);
    *lo = and15_512(q);
    *hi = and15_512(_mm512_srli_epi16(q, 4));
    *lo = _mm512_mask_add_epi8(*lo, _mm512_test_epi8_mask(_mm512_shuffle_epi8(h, first), bit), *lo,
                               bit4);
    *hi = _mm512_mask_add_epi8(*hi, _mm512_test_epi8_mask(_mm512_shuffle_epi8(h, second), bit), *hi,
                               bit4);
}

/* n <= 4 blocks at w and of the next rows, by half h of number g of the columns. */
INLINE void digits_quad(enum sheaf_type type, const char *w, size_t stride, int R, int n,
                        struct fetch fetch, const struct sheaf__act_digits *const *act, int C,
                        int64_t g, int h, __m512 (*acc)[SHEAF__TILE_COLS],
                        __m512 (*mins)[SHEAF__TILE_COLS]) {
    const bool five = type == SHEAF_TYPE_Q5_0 || type == SHEAF_TYPE_Q5_1;
    const float *dx[SHEAF__TILE_COLS];
    __m512i lo[DIGITS_ROWS], hi[DIGITS_ROWS], s;
    __m512 scale[DIGITS_ROWS], m[DIGITS_ROWS];
    UNROLL for (int c = 0; c < C; c++) dx[c] = act[c][g].lane_d[h];
    const __m512 all_d = by_columns(dx, C);
    UNROLL for (int r = 0; r < R; r++) {
        const char *p = w + (size_t)r * stride;
        fetch_weights(fetch, p, 4 * block_size_32(type));
        if (five)
            unpack_quad_5(type, p, n, &lo[r], &hi[r], &s);
        else
            unpack_quad_4(type, p, n, &lo[r], &hi[r], &s);
        const __m512 d = _mm512_cvtph_ps(_mm512_castsi512_si256(s));
        m[r] = has_min(type) ? _mm512_cvtph_ps(_mm512_extracti64x4_epi64(s, 1)) : d;
        scale[r] = _mm512_mul_ps(d, all_d);
    }
    UNROLL for (int c = 0; c < C; c++) {
        const __m512 sums = v_load(act[c][g].lane_sums[h]);
        __m512 dot[DIGITS_ROWS];
        dot_rows_twice(R, lo, hi, &act[c][g].digit[2 * h], dot);
        UNROLL for (int r = 0; r < R; r++) {
            acc[r][c] = _mm512_fmadd_ps(dot[r], of_column(scale[r], c, C), acc[r][c]);
            mins[r][c] = _mm512_fmadd_ps(m[r], sums, mins[r][c]);
        }
    }
}

/* Types of 32 of few bits. */
INLINE void digits_32(enum sheaf_type type, int64_t k, const char *w, size_t stride, int R,
                      struct fetch fetch, const struct sheaf__act_digits *const *act, int C,
                      float *sum) {
    const size_t quad = 4 * block_size_32(type);
    const int64_t blocks = k / SHEAF__QK;
    const __m512 offset = v_set1(has_min(type) ? 1.0f : type == SHEAF_TYPE_Q4_0 ? -8.0f : -16.0f);
    __m512 acc[DIGITS_ROWS][SHEAF__TILE_COLS], mins[DIGITS_ROWS][SHEAF__TILE_COLS];
    UNROLL for (int r = 0; r < R; r++) {
        UNROLL for (int c = 0; c < C; c++) acc[r][c] = mins[r][c] = _mm512_setzero_ps();
    }
    int64_t b = 0;
    for (; b + 8 <= blocks; b += 8, w += 2 * quad) {
        digits_quad(type, w, stride, R, 4, fetch, act, C, b / 8, 0, acc, mins);
        digits_quad(type, w + quad, stride, R, 4, fetch, act, C, b / 8, 1, acc, mins);
    }
    if (b + 4 <= blocks) {
        digits_quad(type, w, stride, R, 4, fetch, act, C, b / 8, 0, acc, mins);
        b += 4, w += quad;
    }
    if (b < blocks)
        digits_quad(type, w, stride, R, (int)(blocks - b), fetch, act, C, b / 8, (int)(b % 8 / 4),
                    acc, mins);
    UNROLL for (int r = 0; r < R; r++) {
        UNROLL for (int c = 0; c < C; c++) sum[r * C + c] =
            v_sum(_mm512_fmadd_ps(offset, mins[r][c], acc[r][c]));
    }
}

/* ---- blocks of 256 ---- */

/* The 8 scales, then the 8 mins, of Q4_K and Q5_K at w, times d and dmin: k_scales_mins without
 * general registers. */
INLINE __m512 k_scales(const char *w) {
    const __m128i x = load128(w);
    const __m128i all = k_scale_bytes(x);
    const __m512 d = _mm512_permutexvar_ps(halves(0, 1), _mm512_castps128_ps512(_mm_cvtph_ps(x)));
    return _mm512_mul_ps(_mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(all)), d);
}

/* The 256 integers of a block of Q4_K or Q5_K: low and high nibbles, the first and the second 16
 * bytes of each 32. */
INLINE void unpack_k(enum sheaf_type type, const char *w, __m512i (*lo)[DIGITS_ROWS],
                     __m512i (*hi)[DIGITS_ROWS], int r) {
    const bool five = type == SHEAF_TYPE_Q5_K;
    const size_t block = five ? sizeof(struct sheaf__block_q5_k) : sizeof(struct sheaf__block_q4_k);
    const __m512i bit4 = _mm512_set1_epi8(16);
    const __m512i to_bit4 = _mm512_setr_epi64(4, 4, 2, 2, 0, 0, 62, 62); /* from 0, 2, 4, 6 */
    const char *qs = w + block - SHEAF__QK_K / 2;
    const __m512i x0 = load512(qs), x1 = load512(qs + 64);
    const __m512i q[2] = {_mm512_shuffle_i64x2(x0, x1, 0x88), _mm512_shuffle_i64x2(x0, x1, 0xdd)};
    UNROLL for (int i = 0; i < 2; i++) {
        lo[i][r] = and15_512(q[i]);
        hi[i][r] = and15_512(_mm512_srli_epi16(q[i], 4));
        if (!five) continue;
        const struct sheaf__block_q5_k *b5 = (const void *)w;
        __m512i h = _mm512_broadcast_i32x4(load128(b5->qh + 16 * i));
        h = _mm512_rolv_epi64(h, to_bit4);
        lo[i][r] = _mm512_ternarylogic_epi64(lo[i][r], h, bit4, 0xf8); /* lo | h & 16 */
        hi[i][r] = _mm512_ternarylogic_epi64(hi[i][r], _mm512_srli_epi16(h, 1), bit4, 0xf8);
    }
}

/* Q4_K and Q5_K. */
INLINE void digits_k(enum sheaf_type type, int64_t k, const char *w, size_t stride, int R,
                     struct fetch fetch, const struct sheaf__act_digits *const *act, int C,
                     float *sum) {
    const size_t block = type == SHEAF_TYPE_Q5_K ? sizeof(struct sheaf__block_q5_k)
                                                 : sizeof(struct sheaf__block_q4_k);
    const __m512i even = _mm512_cvtepi8_epi32(_mm_setr_epi8(FOUR(0), FOUR(2), FOUR(4), FOUR(6)));
    const __m512i odd = _mm512_cvtepi8_epi32(_mm_setr_epi8(FOUR(1), FOUR(3), FOUR(5), FOUR(7)));
    __m512 acc[DIGITS_ROWS][SHEAF__TILE_COLS][2], mins[DIGITS_ROWS][SHEAF__TILE_COLS];
    UNROLL for (int r = 0; r < R; r++) {
        UNROLL for (int c = 0; c < C; c++) acc[r][c][0] = acc[r][c][1] = mins[r][c] =
            _mm512_setzero_ps();
    }
    for (int64_t b = 0; b < k / SHEAF__QK_K; b++, w += block) {
        __m512 s[DIGITS_ROWS];
        __m512i lo[2][DIGITS_ROWS], hi[2][DIGITS_ROWS];
        UNROLL for (int r = 0; r < R; r++) {
            const char *p = w + (size_t)r * stride;
            fetch_weights(fetch, p, block);
            s[r] = k_scales(p);
            unpack_k(type, p, lo, hi, r);
        }
        UNROLL for (int c = 0; c < C; c++) {
            const struct sheaf__act_digits *y = &act[c][b];
            const __m512 d = v_load(y->d); /* sums32 follow d */
            __m512 t[DIGITS_ROWS], dot[DIGITS_ROWS];
            UNROLL for (int r = 0; r < R; r++) {
                t[r] = _mm512_mul_ps(s[r], d);
                mins[r][c] = _mm512_add_ps(mins[r][c], t[r]); /* its upper half */
            }
            dot_rows_twice(R, lo[0], lo[1], &y->digit[0], dot);
            UNROLL for (int r = 0; r < R; r++) acc[r][c][0] =
                _mm512_fmadd_ps(dot[r], _mm512_permutexvar_ps(even, t[r]), acc[r][c][0]);
            dot_rows_twice(R, hi[0], hi[1], &y->digit[2], dot);
            UNROLL for (int r = 0; r < R; r++) acc[r][c][1] =
                _mm512_fmadd_ps(dot[r], _mm512_permutexvar_ps(odd, t[r]), acc[r][c][1]);
        }
    }
    UNROLL for (int r = 0; r < R; r++) {
        UNROLL for (int c = 0; c < C; c++) sum[r * C + c] =
            v_sum(_mm512_add_ps(acc[r][c][0], acc[r][c][1])) -
            hsum8(_mm512_extractf32x8_ps(mins[r][c], 1));
    }
}

/* ---- rows ---- */

/* R rows together by C columns: what R is does not show in the bits. */
#define DIGITS_TILE(ROW_FN, TYPE, R, C)                                                            \
    for (; r + (R) <= nr; r += (R)) {                                                              \
        float sum[(R) * (C)];                                                                      \
        ROW_FN(TYPE, k, (const char *)w + (size_t)r * w_stride, w_stride, R, fetch, col, C, sum);  \
        UNROLL for (int i = 0; i < (R); i++) {                                                     \
            UNROLL for (int c = 0; c < (C); c++) out[c][r + i] = sum[i * (C) + c];                 \
        }                                                                                          \
    }
#define DIGITS_TILES(ROW_FN, TYPE, C)                                                              \
    if ((C)*k > MOST_WHOLE) DIGITS_TILE(ROW_FN, TYPE, DIGITS_ROWS, C)                              \
    DIGITS_TILE(ROW_FN, TYPE, 1, C)
#define ROWS_DIGITS(NAME, ROW_FN, TYPE, PER, BLOCK)                                                \
    static void NAME(int64_t k, const void *w, size_t w_stride, int64_t nr,                        \
                     const void *const *act, int nc, float *const *out) {                          \
        const size_t ahead = prefetch_ahead((size_t)(k / (PER)) * sizeof(BLOCK), w_stride);        \
        const struct sheaf__act_digits *col[SHEAF__TILE_COLS];                                     \
        int64_t r = 0;                                                                             \
        for (int c = 0; c < nc; c++) col[c] = act[c];                                              \
        if (nc == 1) {                                                                             \
            BY_FETCH(ahead, DIGITS_TILE(ROW_FN, TYPE, 1, 1));                                      \
            return;                                                                                \
        }                                                                                          \
        const struct fetch fetch = {ahead, false};                                                 \
        if (nc == 2) {                                                                             \
            DIGITS_TILES(ROW_FN, TYPE, 2)                                                          \
        } else if (nc == 3) {                                                                      \
            DIGITS_TILES(ROW_FN, TYPE, 3)                                                          \
        } else {                                                                                   \
            DIGITS_TILES(ROW_FN, TYPE, 4)                                                          \
        }                                                                                          \
    }

/* ---- activations ---- */

/* Sums of each 4 lanes, in the first. */
INLINE __m128i sums_of_4(__m512i v) {
    v = _mm512_add_epi32(v, _mm512_shuffle_epi32(v, _MM_PERM_BADC));
    v = _mm512_add_epi32(v, _mm512_shuffle_epi32(v, _MM_PERM_CDAB));
    return _mm512_castsi512_si128(_mm512_permutexvar_epi32(
        _mm512_setr_epi32(0, 4, 8, 12, 0, 4, 8, 12, 0, 4, 8, 12, 0, 4, 8, 12), v));
}

static void to_digits(const float *x, struct sheaf__act_digits *y, int64_t n,
                      enum sheaf__digits_order order) {
    const float top = sheaf__digits_top(order);
    const int used = sheaf__digits_used(order);
    const bool pieces = order == SHEAF__DIGITS_PIECES || order == SHEAF__DIGITS_PIECES_24;
    const __m512i half = _mm512_set1_epi32(128);
    if (n % 256) memset(&y[n / 256], 0, sizeof *y);
    for (int64_t i = 0; i < n / 32; i++, x += 32) {
        struct sheaf__act_digits *to = &y[i / 8];
        const int b = (int)(i % 8);
        const __m512 v[2] = {v_load(x), v_load(x + 16)};
        /* by their bits, which puts NaN above infinity */
        __m512i a = _mm512_castps_si512(_mm512_abs_ps(v[0]));
        a = _mm512_max_epi32(a, _mm512_castps_si512(_mm512_abs_ps(v[1])));
        const float max =
            _mm_cvtss_f32(_mm_castsi128_ps(_mm_cvtsi32_si128(_mm512_reduce_max_epi32(a))));
        const bool zero = max < 0x1p-100f; /* top / max would overflow */
        const __m512 id = _mm512_set1_ps(zero ? 0.0f : top / max);
        const float d = zero ? 0.0f : max / top;
        __m512i q[2];
        for (int h = 0; h < 2; h++) {
            q[h] = _mm512_cvtps_epi32(_mm512_mul_ps(v[h], id));
            const int at = sheaf__digits_place(order, 32 * b + 16 * h);
            __m512i rest = q[h];
            for (int j = used - 1; j >= 0; j--) { /* the least digit first */
                const __m512i more = _mm512_srai_epi32(_mm512_add_epi32(rest, half), 8);
                const __m512i digit = j ? _mm512_sub_epi32(rest, _mm512_slli_epi32(more, 8)) : rest;
                const __m128i bytes = _mm512_cvtepi32_epi8(digit);
                rest = more;
                if (!pieces) {
                    _mm_storeu_si128((__m128i *)(to->digit[at / 64][j] + at % 64), bytes);
                    continue;
                }
                int32_t four[4]; /* to the four vectors */
                _mm_storeu_si128((__m128i *)four, bytes);
                for (int p = 0; p < 4; p++) memcpy(to->digit[p][j] + at, &four[p], sizeof *four);
            }
        }
        to->d[b] = d;
        if (order == SHEAF__DIGITS_QUADS) {
            const __m128 sums = _mm_cvtepi32_ps(sums_of_4(_mm512_add_epi32(q[0], q[1])));
            _mm_storeu_ps(to->lane_d[b / 4] + b % 4 * 4, _mm_set1_ps(d));
            _mm_storeu_ps(to->lane_sums[b / 4] + b % 4 * 4, _mm_mul_ps(sums, _mm_set1_ps(d)));
            continue;
        }
        to->lane_d[0][2 * b] = to->lane_d[0][2 * b + 1] = d;
        const int sums[2] = {_mm512_reduce_add_epi32(q[0]), _mm512_reduce_add_epi32(q[1])};
        to->sums16[2 * b] = d * (float)sums[0];
        to->sums16[2 * b + 1] = d * (float)sums[1];
        to->sums32[b] = d * (float)(sums[0] + sums[1]);
    }
}

#define DIGITS_ORDER                                                                               \
    {                                                                                              \
        [SHEAF_TYPE_Q4_0] = SHEAF__DIGITS_QUADS, [SHEAF_TYPE_Q4_1] = SHEAF__DIGITS_QUADS,          \
        [SHEAF_TYPE_Q5_0] = SHEAF__DIGITS_QUADS, [SHEAF_TYPE_Q5_1] = SHEAF__DIGITS_QUADS,          \
        [SHEAF_TYPE_Q4_K] = SHEAF__DIGITS_K, [SHEAF_TYPE_Q5_K] = SHEAF__DIGITS_K,                  \
        [SHEAF_TYPE_IQ4_NL] = SHEAF__DIGITS_QUADS, [SHEAF_TYPE_IQ4_XS] = SHEAF__DIGITS_QUADS,      \
        [SHEAF_TYPE_IQ3_XXS] = SHEAF__DIGITS_QUADS, [SHEAF_TYPE_IQ3_S] = SHEAF__DIGITS_QUADS,      \
        [SHEAF_TYPE_MXFP4] = SHEAF__DIGITS_QUADS, [SHEAF_TYPE_Q2_K] = SHEAF__DIGITS_PIECES,        \
        [SHEAF_TYPE_Q3_K] = SHEAF__DIGITS_PIECES, [SHEAF_TYPE_Q6_K] = SHEAF__DIGITS_PIECES_24,     \
        [SHEAF_TYPE_TQ1_0] = SHEAF__DIGITS_PIECES, [SHEAF_TYPE_TQ2_0] = SHEAF__DIGITS_PIECES,      \
    }
