/* A part of table.h, of the AVX-512 table: products of quantized weights with many columns, by
 * integers.
 *
 * Activations are integers of 16 bits times a power of two for each block of 32, as two signed bytes,
 * q = h * 256 + l. VNNI multiplies the bytes with the unsigned integers of the weights exactly, at half the
 * instructions of floats. The offset of the weights comes off through the sum of a block's activations, which
 * is the same for all rows. A sum of integers becomes a float in the unit of its column, a power of two that
 * is the largest of its blocks, by a subtraction from the exponent, where a product with the scale would take a
 * place of the two pipes that multiply; the scale of the weights is all that is multiplied with it.
 *
 * Rounding to 2^-15 of a block's largest, or less, is a 16th of what a K/V cache of F16 does, and less than a
 * hundredth of what any of these types does to weights.
 *
 * What a row of weights is unpacked to (struct panel_row) is made of it with a few instructions for 64
 * weights: with 16 columns that is what counts, after the products themselves.
 *
 * Invariant: as in panels.h. */

enum { NO_EXPONENT = -1000, NOT_FINITE = 1000 }; /* of zeros; beside those of floats */

/* 32 activations as integers of magnitudes up to 127 * 256, times a power of two, whose exponent is returned. */
INLINE int integers_by_power(const float *x, __m512i *q) {
    const __m512 v[2] = {v_load(x), v_load(x + 16)};
    const float max = largest_of_32(v);
    uint32_t bits;
    if (max < 0x1p-100f || !isfinite(max)) {
        q[0] = q[1] = _mm512_setzero_si512();
        return isfinite(max) ? NO_EXPONENT : NOT_FINITE;
    }
    const float d = max / (127.0f * 256.0f);
    memcpy(&bits, &d, sizeof bits);
    const uint32_t exponent = (bits + 0x7fffff) >> 23; /* of the next power, if it is none */
    const uint32_t inverse_bits = (254 - exponent) << 23;
    float inverse;
    memcpy(&inverse, &inverse_bits, sizeof inverse);
    round_to_integers(v, inverse, q);
    return (int)exponent - 127;
}

/* Digits of 4 elements of a column, the high ones first, [2][8][cols][4] at x, and its sums of 16; returns its
 * exponent. */
INLINE int pack_block(const float *from, int cols, int8_t (*x)[4], int32_t *sums) {
    __m512i q[2];
    int8_t byte[2][32];
    const int exponent = integers_by_power(from, q);
    for (int g = 0; g < 2; g++) {
        sums[g * cols] = sum_of_lanes(q[g]);
        for (int i = 1; i >= 0; i--) {
            _mm_storeu_si128((__m128i *)(byte[i] + 16 * g), _mm512_cvtepi32_epi8(q[g]));
            q[g] = _mm512_srai_epi32(_mm512_add_epi32(q[g], _mm512_set1_epi32(128)), 8);
        }
    }
    for (int i = 0; i < 2; i++) {
        for (int j = 0; j < 8; j++) memcpy(x[(8 * i + j) * cols], byte[i] + 4 * j, 4);
    }
    return exponent;
}

/* Of 16 columns, exponents of blocks so many bytes apart become what they are less than the largest. 126 leave
 * any integer a float, and nothing of it in a sum. */
INLINE void units_of_columns(int64_t blocks, size_t stride, char *less, char *unit) {
    __m512i most = _mm512_set1_epi32(NO_EXPONENT);
    for (int64_t b = 0; b < blocks; b++)
        most = _mm512_max_epi32(most, load512(less + (size_t)b * stride));
    const __mmask16 not_finite = _mm512_cmpeq_epi32_mask(most, _mm512_set1_epi32(NOT_FINITE));
    const __m512 as_float =
        _mm512_mask_mov_ps(_mm512_cvtepi32_ps(most), not_finite, _mm512_set1_ps(NAN));
    for (int64_t b = 0; b < blocks; b++, less += stride, unit += stride) {
        const __m512i by =
            _mm512_min_epi32(_mm512_sub_epi32(most, load512(less)), _mm512_set1_epi32(126));
        _mm512_storeu_si512(less, _mm512_slli_epi32(by, 23));
        _mm512_storeu_ps(unit, as_float);
    }
}

/* So many columns as struct panel16, or its half, has them: digits, sums, exponents and units. */
INLINE void pack_digits(const float *const *x, int64_t n, int cols, char *panel) {
    const size_t sums_at = sizeof(int8_t[2][8][4]) * (size_t)cols;
    const size_t size = sums_at + sizeof(int32_t[4]) * (size_t)cols;
    const size_t less_at = sums_at + sizeof(int32_t[2]) * (size_t)cols;
    const size_t unit_at = size - sizeof(float) * (size_t)cols;
    for (int64_t b = 0; b < n / 32; b++) {
        char *to = panel + (size_t)b * size;
        int8_t(*first)[4] = (void *)to;
        int32_t *sums = (void *)(to + sums_at), *less = (void *)(to + less_at);
        for (int c = 0; c < cols; c++)
            less[c] = pack_block(x[c] + 32 * b, cols, first + c, sums + c);
    }
    for (size_t at = 0; at < sizeof(int32_t) * (size_t)cols; at += 64)
        units_of_columns(n / 32, size, panel + less_at + at, panel + unit_at + at);
}

/* A panel, or half of one where that is all that is used. */
static void pack_16(const float *const *x, int64_t n, int used, void *panel) {
    if (used <= PANEL16_HALF)
        pack_digits(x, n, PANEL16_HALF, panel);
    else
        pack_digits(x, n, PANEL16_COLS, panel);
}

/* ---- weights ---- */

/* Blocks 2 p and 2 p + 1 of *row: bytes, and lanes d d . . m m . . of each. */
INLINE void store_pair(__m512i q, __m512 scales, __m512 flags, struct panel_row *row, int p) {
    _mm512_storeu_si512(row->q[2 * p], q);
    _mm512_storeu_ps(&row->of[2 * p], _mm512_mask_blend_ps(0x0808, scales, flags));
}

/* Where two blocks of a type of 32 lie in 64 bytes, in words, of which `at` is the first: nibbles, each
 * twice; the fifth bits of their four halves; d and m. */
#define PAIR_32(NAME, SIZE, AT, QH, QS)                                                            \
    static const struct pair_32 NAME = {                                                           \
        {NIBBLES(AT + QS), NIBBLES(AT + QS), NIBBLES(AT + SIZE + QS), NIBBLES(AT + SIZE + QS)},    \
        {EIGHT(AT + QH), EIGHT(AT + QH + 1), EIGHT(AT + SIZE + QH), EIGHT(AT + SIZE + QH + 1)},    \
        {FOUR(AT), FOUR(AT + 1), FOUR(AT + SIZE), FOUR(AT + SIZE + 1)}}
#define EIGHT(AT) FOUR(AT), FOUR(AT)
struct pair_32 {
    _Alignas(64) int16_t nibbles[32];
    int16_t fifths[32], scales[32];
};
/* The first two of four blocks, and the last two in the last 64 bytes of these. */
PAIR_32(first_q4_0, 9, 0, 0, 1);
PAIR_32(last_q4_0, 9, 14, 0, 1);
PAIR_32(first_q4_1, 10, 0, 0, 2);
PAIR_32(last_q4_1, 10, 12, 0, 2);
PAIR_32(first_q5_0, 11, 0, 1, 3);
PAIR_32(last_q5_0, 11, 10, 1, 3);
PAIR_32(first_q5_1, 12, 0, 2, 4);
PAIR_32(last_q5_1, 12, 8, 2, 4);
INLINE const struct pair_32 *pair_of(enum sheaf_type type, bool last) {
    return type == SHEAF_TYPE_Q4_0   ? last ? &last_q4_0 : &first_q4_0
           : type == SHEAF_TYPE_Q4_1 ? last ? &last_q4_1 : &first_q4_1
           : type == SHEAF_TYPE_Q5_0 ? last ? &last_q5_0 : &first_q5_0
           : last                    ? &last_q5_1
                                     : &first_q5_1;
}

/* Two blocks in the 64 bytes x. */
INLINE void blocks_pair(enum sheaf_type type, __m512i x, bool last, struct panel_row *row) {
    const struct pair_32 *at = pair_of(type, last);
    const __m512i shift = _mm512_setr_epi64(0, 0, 0x0004000400040004, 0x0004000400040004, 0, 0,
                                            0x0004000400040004, 0x0004000400040004);
    const __m512i s = _mm512_permutexvar_epi16(load512(at->scales), x);
    __m512i q = _mm512_permutexvar_epi16(load512(at->nibbles), x);
    q = and15_512(_mm512_srlv_epi16(q, shift));
    if (type == SHEAF_TYPE_Q5_0 || type == SHEAF_TYPE_Q5_1) {
        const __m512i bit = _mm512_set1_epi64((int64_t)0x8040201008040201u);
        const __m512i byte =
            _mm512_broadcast_i32x4(_mm_setr_epi8(0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 1, 1, 1));
        __m512i h = _mm512_permutexvar_epi16(load512(at->fifths), x);
        h = _mm512_shuffle_epi8(h, byte);
        q = _mm512_mask_add_epi8(q, _mm512_test_epi8_mask(h, bit), q, _mm512_set1_epi8(16));
    }
    store_pair(q, _mm512_cvtph_ps(_mm512_castsi512_si256(s)), panel_flags(type, has_min(type)), row,
               last);
}

INLINE void blocks_4(enum sheaf_type type, const void *src, struct panel_row *to, int64_t n) {
    const size_t size = 4 * block_size_32(type);
    const char *w = src;
    for (; n >= PANEL_ROW_UNIT; n -= PANEL_ROW_UNIT, w += size, to++) {
        blocks_pair(type, load512(w), false, to);
        blocks_pair(type, load512(w + size - 64), true, to);
    }
    blocks_32(type, w, to, 0, n);
}

/* Numbers 2 p and 2 p + 1 of x as d of their blocks, and those `m` after them as m. */
INLINE __m512 pair_scales(__m512 x, int p, int m) {
    const int d = 2 * p, e = d + 1;
    const __m512i at = _mm512_setr_epi32(d, d, d, d, d + m, d + m, d + m, d + m, e, e, e, e, e + m,
                                         e + m, e + m, e + m);
    return _mm512_permutexvar_ps(at, x);
}

INLINE void blocks_8(enum sheaf_type type, const void *src, struct panel_row *to, int64_t n) {
    const size_t block = block_size_32(type);
    const char *w = src;
    for (; n >= SHEAF__QK_K; n -= SHEAF__QK_K, to += 2, w += 8 * block) {
        const __m512 d = _mm512_castps256_ps512(gather_halves(w, block, 8));
        UNROLL for (int p = 0; p < 4; p++) {
            const char *at = w + (size_t)(2 * p) * block;
            store_pair(pair_8(at, at + block), pair_scales(d, p, 0), panel_flags(type, false),
                       to + p / 2, p % 2);
        }
    }
    blocks_32(type, w, to, 0, n);
}

/* Q4_K and Q5_K: 32 bytes are blocks 2 p and 2 p + 1. */
INLINE void blocks_k(enum sheaf_type type, const void *src, struct panel_row *to, int64_t n) {
    const bool five = type == SHEAF_TYPE_Q5_K;
    const size_t block = size_256(type);
    const __m512i shift = _mm512_inserti64x4(_mm512_setzero_si512(), _mm256_set1_epi16(4), 1);
    const char *w = src;
    for (int64_t i = 0; i < n; i += SHEAF__QK_K, w += block, to += 2) {
        const struct sheaf__block_q5_k *b5 = (const void *)w;
        const __m512 s = scales_then_minus_mins(w);
        const char *qs = w + block - SHEAF__QK_K / 2;
        UNROLL for (int p = 0; p < 4; p++) {
            __m512i q = and15_512(_mm512_srlv_epi16(twice256(qs + 32 * p), shift));
            if (five) { /* bits 2 p and 2 p + 1 to bit 4 */
                const int lo = (4 - 2 * p) & 63, hi = (3 - 2 * p) & 63;
                const __m512i by = _mm512_setr_epi64(lo, lo, lo, lo, hi, hi, hi, hi);
                const __m512i h = _mm512_rolv_epi64(twice256(b5->qh), by);
                q = _mm512_ternarylogic_epi64(q, h, _mm512_set1_epi8(16), 0xf8); /* q | h & 16 */
            }
            store_pair(q, pair_scales(s, p, 8), panel_flags(type, true), to + p / 2, p % 2);
        }
    }
}

/* 64 bytes are two quarters of a half, and with their high nibbles the other two. */
static void blocks_q6_k(const void *src, void *dst, int64_t n) {
    const __m512i two = _mm512_set1_epi8(0x30);
    const __m512i at = _mm512_setr_epi32(0, 1, 0, 0, 0, 0, 0, 0, 2, 3, 0, 0, 0, 0, 0, 0);
    const __m512i left = _mm512_inserti64x4(_mm512_set1_epi16(4), _mm256_set1_epi16(2), 1);
    const __m512i right = _mm512_inserti64x4(_mm512_setzero_si512(), _mm256_set1_epi16(2), 1);
    const struct sheaf__block_q6_k *b = src;
    struct panel_row *to = dst;
    for (; n > 0; n -= SHEAF__QK_K, b++, to += 2) {
        const __m512 s = v_mul(v_set1(f16(b->d)), v_load_i8(b->scales));
        UNROLL for (int p = 0; p < 4; p++) {
            const __m512i l = load512(b->ql + p / 2 * 64), h = twice256(b->qh + p / 2 * 32);
            const __m512i high = p % 2 ? _mm512_srlv_epi16(h, right) : _mm512_sllv_epi16(h, left);
            const __m512i q = and15_512(p % 2 ? _mm512_srli_epi16(l, 4) : l);
            const __m512i pick = _mm512_add_epi32(at, _mm512_set1_epi32(4 * p));
            store_pair(_mm512_ternarylogic_epi64(q, high, two, 0xf8),
                       _mm512_permutexvar_ps(pick, s), panel_flags(SHEAF_TYPE_Q6_K, false),
                       to + p / 2, p % 2);
        }
    }
}

UNPACK(blocks_q8_0, blocks_8, SHEAF_TYPE_Q8_0)
UNPACK(blocks_q4_0, blocks_4, SHEAF_TYPE_Q4_0)
UNPACK(blocks_q4_1, blocks_4, SHEAF_TYPE_Q4_1)
UNPACK(blocks_q5_0, blocks_4, SHEAF_TYPE_Q5_0)
UNPACK(blocks_q5_1, blocks_4, SHEAF_TYPE_Q5_1)
UNPACK(blocks_q4_k, blocks_k, SHEAF_TYPE_Q4_K)
UNPACK(blocks_q5_k, blocks_k, SHEAF_TYPE_Q5_K)

/* ---- tiles ---- */

/* Row r of a tile's, whose address the compiler is not to take apart: gcc kept one for each four bytes, and
 * had not enough registers for them. */
INLINE const char *row_at(const char *block, size_t stride, int r) {
    const char *row = block + (size_t)r * stride;
    __asm__("" : "+r"(row));
    return row;
}

/* Integers as floats in the unit of their column: `less` is taken off their exponents, and zeros stay zeros. */
INLINE __m512 in_units_16(__m512i q, __m512i less) {
    const __m512i bits = _mm512_castps_si512(_mm512_cvtepi32_ps(q));
    return _mm512_castsi512_ps(_mm512_subs_epu16(bits, less));
}
INLINE __m256 in_units_8(__m256i q, __m256i less) {
    const __m256i bits = _mm256_castps_si256(_mm256_cvtepi32_ps(q));
    return _mm256_castsi256_ps(_mm256_subs_epu16(bits, less));
}

/* 16 columns of a panel, or 8 in half a vector, from `from` on. Sums of both digits are apart, so that a block of
 * weights is loaded once for both, and fewer products wait for each other. */
#define COLUMNS(NAME, PANEL, V, I, PS, SI, LOAD, UNITS)                                            \
    INLINE void NAME(bool mins, bool by_16, int64_t k, const char *w, size_t stride,               \
                     const struct PANEL *panel, int from, float *c, bool add) {                    \
        const int parts = BLOCK_PARTS(by_16), fours = 8 / parts;                                   \
        const I offset = PS(set1_epi32)(-scales_at(w)->offset);                                    \
        V sum[PANEL16_ROWS];                                                                       \
        UNROLL_12 for (int r = 0; r < PANEL16_ROWS; r++) sum[r] = PS(setzero_ps)();                \
        for (int64_t b = 0; b < k / 32; b++, panel++) {                                            \
            const char *row[PANEL16_ROWS];                                                         \
            UNROLL_12 for (int r = 0; r < PANEL16_ROWS; r++) row[r] =                              \
                row_at(block_at(w, b), stride, r);                                                 \
            const I less = LOAD(panel->less + from);                                               \
            UNROLL for (int p = 0; p < parts; p++) {                                               \
                I h[PANEL16_ROWS], l[PANEL16_ROWS], start = LOAD(panel->sums[p] + from);           \
                if (!by_16) start = PS(add_epi32)(start, LOAD(panel->sums[1] + from));             \
                const V all = UNITS(start, less);                                                  \
                UNROLL_12 for (int r = 0; r < PANEL16_ROWS; r++) {                                 \
                    h[r] = PS(SI)();                                                               \
                    l[r] = mins ? PS(SI)() : PS(mullo_epi32)(start, offset);                       \
                }                                                                                  \
                UNROLL_12 for (int j = fours * p; j < fours * (p + 1); j++) {                      \
                    const I xh = LOAD(panel->x[0][j][from]), xl = LOAD(panel->x[1][j][from]);      \
                    UNROLL_12 for (int r = 0; r < PANEL16_ROWS; r++) {                             \
                        int32_t four;                                                              \
                        memcpy(&four, row[r] + 4 * j, sizeof four);                                \
                        const I q = PS(set1_epi32)(four);                                          \
                        h[r] = PS(dpbusd_epi32)(h[r], q, xh);                                      \
                        l[r] = PS(dpbusd_epi32)(l[r], q, xl);                                      \
                    }                                                                              \
                }                                                                                  \
                UNROLL_12 for (int r = 0; r < PANEL16_ROWS; r++) {                                 \
                    const struct panel_scales *of = scales_at(row[r]);                             \
                    const I q = PS(add_epi32)(PS(slli_epi32)(h[r], 8), l[r]);                      \
                    sum[r] = PS(fmadd_ps)(UNITS(q, less), PS(set1_ps)(of->d[p]), sum[r]);          \
                    if (mins) sum[r] = PS(fmadd_ps)(PS(set1_ps)(of->m[p]), all, sum[r]);           \
                }                                                                                  \
            }                                                                                      \
        }                                                                                          \
        panel--;                                                                                   \
        UNROLL_12 for (int r = 0; r < PANEL16_ROWS; r++) {                                         \
            float *to = c + r * PANEL16_COLS + from;                                               \
            const V x = PS(scalef_ps)(sum[r], PS(loadu_ps)(panel->unit + from));                   \
            PS(storeu_ps)(to, add ? PS(add_ps)(PS(loadu_ps)(to), x) : x);                          \
        }                                                                                          \
    }
#define IN_512(FN) _mm512_##FN
#define IN_256(FN) _mm256_##FN
COLUMNS(sixteen, panel16, __m512, __m512i, IN_512, setzero_si512, load512, in_units_16)
COLUMNS(eight, panel16, __m256, __m256i, IN_256, setzero_si256, load256, in_units_8)
COLUMNS(sixteen_of_half, panel16_half, __m512, __m512i, IN_512, setzero_si512, load512, in_units_16)
COLUMNS(eight_of_half, panel16_half, __m256, __m256i, IN_256, setzero_si256, load256, in_units_8)

INLINE void any_columns(bool mins, bool by_16, int64_t k, const char *w, size_t stride,
                        const void *panel, int used, float *c, bool add) {
    if (used <= 8) {
        eight_of_half(mins, by_16, k, w, stride, panel, 0, c, add);
    } else if (used <= PANEL16_HALF) {
        sixteen_of_half(mins, by_16, k, w, stride, panel, 0, c, add);
    } else {
        sixteen(mins, by_16, k, w, stride, panel, 0, c, add);
        if (used <= 24)
            eight(mins, by_16, k, w, stride, panel, 16, c, add);
        else
            sixteen(mins, by_16, k, w, stride, panel, 16, c, add);
    }
}

static void tile_16(int64_t k, const void *row, size_t stride, const void *panel, int used,
                    float *c, bool add) {
    const struct panel_scales *like = scales_at(row);
    BY_KIND(like, any_columns(mins, by_16, k, row, stride, panel, used, c, add));
}
