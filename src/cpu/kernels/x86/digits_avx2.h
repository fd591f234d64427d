/* A part of table.h, of tables with vectors of 32 bytes: blocks of weights by activations in
 * digits, as digits.h has them, or rounded, in bytes. With VNNI (KERNELS_VNNI_256) sums have 32 bits at once.
 *
 * Without VNNI a product of bytes gives sums of two in 16 bits, and a second instruction sums these
 * in 32. Weights of up to 6 bits leave room in 16 bits: of 4 bits eight vectors are added there,
 * 8 * 2 * 15 * 128 < 2^15, of 5 bits four, of 6 bits two. So weights are put into the lanes of
 * their scale first: of types of 32, dword j of eight blocks is a vector, lane b block b; then one
 * vector of scales and one conversion serve 256 weights.
 *
 * Weights of up to 6 bits meet two digits, h and m. Weights that need all of a byte are multiplied as 16
 * bits: Q8_0 by h, and by m and l as one number, types of levels by h and m as one (signed.h). Rounded
 * activations are one digit for all types.
 *
 * Invariant: as there, one order of accumulation per (row, column) whatever the tile. */

/* Functions that take 256 weights apart: in the order of files, or in that of repacked_avx2.c. */
#if defined(KERNELS_REPACKED)
#define IN_ORDER(FN) FN##_repacked
#include "cpu/kernels/x86/repacked_avx2.h"
#else
#define IN_ORDER(FN) FN##_in_file
#endif

INLINE int hsum8_i32(__m256i v) {
    __m128i s = _mm_add_epi32(_mm256_castsi256_si128(v), _mm256_extracti128_si256(v, 1));
    s = _mm_add_epi32(s, _mm_unpackhi_epi64(s, s));
    return _mm_cvtsi128_si32(_mm_add_epi32(s, _mm_shuffle_epi32(s, 1)));
}

/* acc += the products of words, two a lane. */
INLINE __m256i madd_acc(__m256i acc, __m256i a, __m256i b) {
#if defined(KERNELS_VNNI_256)
    return _mm256_dpwssd_avx_epi32(acc, a, b);
#else
    acc = _mm256_add_epi32(acc, _mm256_madd_epi16(a, b));
    __asm__("" : "+x"(acc)); /* gcc would multiply all first, and spill the products */
    return acc;
#endif
}

/* ---- 256 activations of a column, in digits or in bytes ---- */

INLINE const void *part_of_column(enum sheaf__act act, const void *column, int64_t b) {
    return (const char *)column + (size_t)b * act_size_256(act);
}
INLINE __m256 d_of(enum sheaf__act act, const void *y) {
    return _mm256_load_ps(act == SHEAF__ACT_BYTES ? ((const struct sheaf__act_bytes *)y)->d
                                                  : ((const struct sheaf__act_digits *)y)->d);
}
INLINE __m256 sums32_of(enum sheaf__act act, const void *y) {
    return _mm256_load_ps(act == SHEAF__ACT_BYTES ? ((const struct sheaf__act_bytes *)y)->sums32
                                                  : ((const struct sheaf__act_digits *)y)->sums32);
}
/* SHEAF__DIGITS_6K, _HALVES: of the 8 pieces of 16 in half n. */
INLINE __m256 d16_of(enum sheaf__act act, const void *y, int n) {
    return _mm256_load_ps(8 * n + (act == SHEAF__ACT_BYTES
                                       ? ((const struct sheaf__act_bytes *)y)->lane_d
                                       : ((const struct sheaf__act_digits *)y)->lane_d));
}
INLINE __m256 sums16_of(enum sheaf__act act, const void *y, int n) {
    return _mm256_load_ps(8 * n + (act == SHEAF__ACT_BYTES
                                       ? ((const struct sheaf__act_bytes *)y)->lane_sums
                                       : ((const struct sheaf__act_digits *)y)->sums16));
}
INLINE int digits_in(enum sheaf__act act) { return act == SHEAF__ACT_BYTES ? 1 : 2; }
/* Digit j of vector v. */
INLINE __m256i digit_of(enum sheaf__act act, const void *y, int v, int j) {
    return load256(act == SHEAF__ACT_BYTES
                       ? ((const struct sheaf__act_bytes *)y)->x + 32 * v
                       : ((const struct sheaf__act_digits *)y)->digit[v / 2][j] + v % 2 * 32);
}

/* The products of n vectors with those of a column from vector v on, summed in each lane, of
 * weights of up to `bits` bits. */
INLINE __m256 dot_lanes(int bits, int n, const __m256i *q, enum sheaf__act act, const void *y,
                        int v) {
    const int digits = digits_in(act);
#if defined(KERNELS_VNNI_256)
    __m256i s[2] = {_mm256_setzero_si256(), _mm256_setzero_si256()};
    (void)bits;
    UNROLL_12 for (int i = 0; i < n; i++) {
        UNROLL for (int j = 0; j < digits; j++) s[j] =
            _mm256_dpbusd_avx_epi32(s[j], q[i], digit_of(act, y, v + i, j));
    }
    if (digits == 1) return _mm256_cvtepi32_ps(s[0]);
    return _mm256_cvtepi32_ps(_mm256_add_epi32(_mm256_slli_epi32(s[0], 8), s[1]));
#else
    const int most = bits <= 4 ? 8 : bits == 5 ? 4 : 2;
    const __m256i one = _mm256_set1_epi16(1);
    __m256i sum = _mm256_setzero_si256(), s[2];
    UNROLL_12 for (int i = 0; i < n; i++) {
        UNROLL for (int j = 0; j < digits; j++) {
            const __m256i p = _mm256_maddubs_epi16(q[i], digit_of(act, y, v + i, j));
            s[j] = i % most == 0 ? p : _mm256_add_epi16(s[j], p);
            __asm__("" : "+x"(s[j])); /* gcc would multiply all first, and spill the products */
        }
        if (i % most != most - 1 && i != n - 1) continue;
        __m256i all = _mm256_madd_epi16(s[0], one);
        if (digits > 1)
            all = _mm256_add_epi32(_mm256_slli_epi32(all, 8), _mm256_madd_epi16(s[1], one));
        sum = i < most ? all : _mm256_add_epi32(sum, all);
    }
    return _mm256_cvtepi32_ps(sum);
#endif
}

/* Signed bytes meet one digit by their size, with their sign on the activation; with VNNI unsigned, as so much more. */
#if defined(KERNELS_VNNI_256)
enum { SIGNED_OFFSET = 128 };
#else
enum { SIGNED_OFFSET = 0 };
#endif
/* sum plus the products of signed bytes with their offset, four a lane; x is from -127 to 127. */
INLINE __m256i dot_signed(__m256i sum, __m256i q, __m256i x) {
#if defined(KERNELS_VNNI_256)
    return _mm256_dpbusd_avx_epi32(sum, q, x);
#else
    const __m256i p = _mm256_maddubs_epi16(_mm256_abs_epi8(q), _mm256_sign_epi8(x, q));
    return madd_acc(sum, p, _mm256_set1_epi16(1));
#endif
}

/* ---- a row by parts of k: sums as they are carried in memory ---- */

INLINE void take_sums(const v_f *from, int C, v_f *acc, v_f *other) {
    UNROLL for (int c = 0; c < C; c++) {
        acc[c] = carried(from, 2 * c);
        other[c] = carried(from, 2 * c + 1);
    }
}
/* False if this was the last part. */
INLINE bool keep_sums(v_f *to, int C, const v_f *acc, const v_f *other) {
    UNROLL for (int c = 0; c < C && to; c++) {
        to[2 * c] = acc[c];
        to[2 * c + 1] = other[c];
    }
    return to != NULL;
}

/* ---- blocks of 32 ---- */

/* The halves at p, p + block .. of 8 blocks; up to the end of the last block's 16th byte is read. */
INLINE __m256 halves_8(const char *p, size_t block) {
    if (block == sizeof(struct sheaf__block_q4_0)) { /* and of IQ4_NL: 18 bytes */
        __m256i x[4]; /* halves 2 i and 2 i + 1 are words 2 i and 2 i + 1 of the two lanes */
        UNROLL for (size_t i = 0; i < 4; i++) x[i] = load256(p + i * 32);
        x[0] = _mm256_blend_epi32(x[0], x[1], 0x22);
        x[2] = _mm256_blend_epi32(x[2], x[3], 0x88);
        x[0] = _mm256_blend_epi32(x[0], x[2], 0xcc);
        return _mm256_cvtph_ps(
            _mm_blend_epi16(_mm256_castsi256_si128(x[0]), _mm256_extracti128_si256(x[0], 1), 0xaa));
    }
    __m128i x[8]; /* half i is word i of what lies at p + i * (block - 2) */
    UNROLL_12 for (size_t i = 0; i < 8; i++) x[i] = load128(p + i * (block - 2));
    x[0] = _mm_blend_epi16(x[0], x[1], 0x02);
    x[2] = _mm_blend_epi16(x[2], x[3], 0x08);
    x[4] = _mm_blend_epi16(x[4], x[5], 0x20);
    x[6] = _mm_blend_epi16(x[6], x[7], 0x80);
    x[0] = _mm_blend_epi32(x[0], x[2], 0x02 | 0x08);
    x[4] = _mm_blend_epi32(x[4], x[6], 0x08);
    return _mm256_cvtph_ps(_mm_blend_epi32(x[0], x[4], 0x0c));
}

/* The dwords at p, p + block .. of 8 blocks, likewise. */
INLINE __m256i dwords_8(const char *p, size_t block) {
    __m256i x[8];
    UNROLL_12 for (size_t i = 0; i < 8; i++) x[i] = load256(p + i * (block - 4));
    x[0] = _mm256_blend_epi32(x[0], x[1], 0x02);
    x[2] = _mm256_blend_epi32(x[2], x[3], 0x08);
    x[4] = _mm256_blend_epi32(x[4], x[5], 0x20);
    x[6] = _mm256_blend_epi32(x[6], x[7], 0x80);
    x[0] = _mm256_blend_epi32(x[0], x[2], 0x0c);
    x[4] = _mm256_blend_epi32(x[4], x[6], 0xc0);
    return _mm256_blend_epi32(x[0], x[4], 0xf0);
}

/* d, and m where the type has it, of 8 blocks. */
INLINE void scales_8_in_file(enum sheaf_type type, const char *w, __m256 *d, __m256 *m) {
    const size_t block = block_size_32(type);
    if (type == SHEAF_TYPE_MXFP4) {
        *d = *m = mxfp4_scales((const void *)w);
        return;
    }
    if (!has_min(type)) {
        *d = *m = halves_8(w, block);
        return;
    }
    const __m256i apart = _mm256_broadcastsi128_si256(
        _mm_setr_epi8(0, 1, 4, 5, 8, 9, 12, 13, 2, 3, 6, 7, 10, 11, 14, 15));
    __m256i x = _mm256_shuffle_epi8(dwords_8(w, block), apart);
    x = _mm256_permute4x64_epi64(x, 0xd8);
    *d = _mm256_cvtph_ps(_mm256_castsi256_si128(x));
    *m = _mm256_cvtph_ps(_mm256_extracti128_si256(x, 1));
}

/* In each 128 bits dword j of vector i becomes dword i of vector j. */
INLINE void turn_dwords(const __m256i *x, __m256i *y) {
    __m256i t[4];
    UNROLL for (int i = 0; i < 2; i++) {
        t[i] = _mm256_unpacklo_epi32(x[2 * i], x[2 * i + 1]);
        t[2 + i] = _mm256_unpackhi_epi32(x[2 * i], x[2 * i + 1]);
    }
    UNROLL for (int i = 0; i < 2; i++) {
        y[2 * i] = _mm256_unpacklo_epi64(t[2 * i], t[2 * i + 1]);
        y[2 * i + 1] = _mm256_unpackhi_epi64(t[2 * i], t[2 * i + 1]);
    }
}

/* The nibbles of 8 blocks of 32 from p on, a block a lane: q[0..3] the low ones, q[4..7] the high ones. */
INLINE void nibbles_oct(const char *p, size_t block, __m256i *q) {
    __m256i x[4], y[4];
    UNROLL for (size_t i = 0; i < 4; i++) x[i] = _mm256_inserti128_si256(
        _mm256_castsi128_si256(load128(p + i * block)), load128(p + (i + 4) * block), 1);
    turn_dwords(x, y);
    UNROLL for (int i = 0; i < 4; i++) {
        q[i] = and15(y[i]);
        q[4 + i] = high15(y[i]);
    }
}

/* The integers of 8 blocks, as nibbles_oct has them; of types of levels their numbers. */
INLINE void oct_in_file(enum sheaf_type type, const char *w, __m256i *q) {
    const size_t block = block_size_32(type), at = block - 16;
    nibbles_oct(w + at, block, q);
    if (!is_five(type)) return;
    /* bits 4i .. 4i + 3 are those of vector i: byte i / 2 of each lane, one of its nibbles */
    const __m256i bit = _mm256_set1_epi32(0x08040201),
                  byte = _mm256_setr_epi32(0, 0x04040404, 0x08080808, 0x0c0c0c0c, 0, 0x04040404,
                                           0x08080808, 0x0c0c0c0c);
    const __m256i is_16 = _mm256_broadcastsi128_si256(
        _mm_setr_epi8(0, 16, 16, 0, 16, 0, 0, 0, 16, 0, 0, 0, 0, 0, 0, 0));
    const __m256i h = dwords_8(w + at - 4, block), h4 = _mm256_srli_epi16(h, 4);
    UNROLL_12 for (int i = 0; i < 8; i++) {
        const __m256i pick = _mm256_add_epi8(byte, _mm256_set1_epi8((char)(i / 2)));
        __m256i b = _mm256_and_si256(_mm256_shuffle_epi8(i % 2 ? h4 : h, pick), bit);
        q[i] = _mm256_or_si256(q[i], _mm256_shuffle_epi8(is_16, b));
    }
}

/* 8 blocks at w by number g of the columns. */
INLINE void digits_oct(enum sheaf_type type, enum sheaf__act act, const char *w, struct fetch fetch,
                       const void *const *cols, int C, int64_t g, __m256 *acc, __m256 *mins) {
    const int bits = is_five(type) || type == SHEAF_TYPE_MXFP4 ? 5 : 4;
    __m256i q[8];
    fetch_lines(fetch, w, size_256(type));
    IN_ORDER(oct)(type, w, q);
    if (type == SHEAF_TYPE_MXFP4) { /* its levels, and 12 */
        const __m256i levels = _mm256_add_epi8(twice128(fp4_levels), _mm256_set1_epi8(12));
        UNROLL_12 for (int i = 0; i < 8; i++) q[i] = _mm256_shuffle_epi8(levels, q[i]);
    }
    __m256 d, m;
    IN_ORDER(scales_8)(type, w, &d, &m);
    UNROLL for (int c = 0; c < C; c++) {
        const void *y = part_of_column(act, cols[c], g);
        const __m256 t = _mm256_mul_ps(d, d_of(act, y));
        acc[c] = _mm256_fmadd_ps(dot_lanes(bits, 8, q, act, y, 0), t, acc[c]);
        mins[c] = _mm256_fmadd_ps(m, sums32_of(act, y), mins[c]);
    }
}

/* Q8_0: 8 blocks at w by number g of the columns. */
INLINE void digits_words(const char *w, struct fetch fetch, const void *const *cols, int C,
                         int64_t g, __m256 *acc, __m256 *high) {
    enum { BLOCK = sizeof(struct sheaf__block_q8_0) };
    const __m256 d = halves_8(w, BLOCK);
    const struct sheaf__act_digits *act[TILE];
    __m256 t[TILE];
    UNROLL for (int c = 0; c < C; c++) {
        act[c] = (const struct sheaf__act_digits *)cols[c] + g;
        t[c] = _mm256_mul_ps(d, _mm256_load_ps(act[c]->d));
    }
    fetch_lines(fetch, w, 8 * BLOCK);
    UNROLL_12 for (int i = 0; i < 8; i++, w += BLOCK) {
        const __m256i q0 = _mm256_cvtepi8_epi16(load128(w + 2));
        const __m256i q1 = _mm256_cvtepi8_epi16(load128(w + 18));
        UNROLL for (int c = 0; c < C; c++) {
            const int16_t *h = act[c]->word[0] + 32 * i, *l = act[c]->word[1] + 32 * i;
            const __m256i lo = madd_acc(_mm256_madd_epi16(q0, load256(l)), q1, load256(l + 16));
            const __m256i hi = madd_acc(_mm256_madd_epi16(q0, load256(h)), q1, load256(h + 16));
            const __m256 s = _mm256_permutevar8x32_ps(t[c], _mm256_set1_epi32(i));
            acc[c] = _mm256_fmadd_ps(_mm256_cvtepi32_ps(lo), s, acc[c]);
            high[c] = _mm256_fmadd_ps(_mm256_cvtepi32_ps(hi), s, high[c]);
        }
    }
}

/* The same by rounded columns. */
INLINE void rounded_bytes(const char *w, struct fetch fetch, const void *const *cols, int C,
                          int64_t g, __m256 *acc, __m256 *sums) {
    enum { BLOCK = sizeof(struct sheaf__block_q8_0) };
    const __m256 d = halves_8(w, BLOCK);
    const struct sheaf__act_bytes *act[TILE];
    float t[TILE][8];
    UNROLL for (int c = 0; c < C; c++) {
        act[c] = (const struct sheaf__act_bytes *)cols[c] + g;
        _mm256_storeu_ps(t[c], _mm256_mul_ps(d, _mm256_load_ps(act[c]->d)));
        sums[c] = _mm256_fmadd_ps(d, _mm256_load_ps(act[c]->sums32), sums[c]);
    }
    fetch_lines(fetch, w, 8 * BLOCK);
    UNROLL_12 for (int i = 0; i < 8; i++, w += BLOCK) {
        const __m256i q = _mm256_xor_si256(load256(w + 2), _mm256_set1_epi8((char)SIGNED_OFFSET));
        UNROLL for (int c = 0; c < C; c++) {
            const __m256i dot = dot_signed(_mm256_setzero_si256(), q, load256(act[c]->x + 32 * i));
            acc[c] = _mm256_fmadd_ps(_mm256_cvtepi32_ps(dot), _mm256_set1_ps(t[c][i]), acc[c]);
        }
    }
}

/* 8 blocks of a type of 32. */
INLINE void digits_256(enum sheaf_type type, enum sheaf__act act, const char *w, struct fetch fetch,
                       const void *const *cols, int C, int64_t g, __m256 *acc, __m256 *other) {
    if (type != SHEAF_TYPE_Q8_0)
        digits_oct(type, act, w, fetch, cols, C, g, acc, other);
    else if (act == SHEAF__ACT_BYTES)
        rounded_bytes(w, fetch, cols, C, g, acc, other);
    else
        digits_words(w, fetch, cols, C, g, acc, other);
}

/* Types of 32. */
INLINE void digits_32(enum sheaf_type type, enum sheaf__act act, int64_t k, const char *w,
                      struct fetch fetch, const void *const *cols, int C, const v_f *from, v_f *to,
                      float *sum) {
    const size_t block = block_size_32(type);
    const int64_t blocks = k / SHEAF__QK;
    const float factor = type == SHEAF_TYPE_Q8_0
                             ? act == SHEAF__ACT_BYTES ? -(float)SIGNED_OFFSET : 65536.0f
                         : has_min(type)            ? 1.0f
                         : type == SHEAF_TYPE_Q4_0  ? -8.0f
                         : type == SHEAF_TYPE_MXFP4 ? -12.0f
                                                    : -16.0f;
    __m256 acc[TILE], other[TILE];
    take_sums(from, C, acc, other);
    for (int64_t b = 0; b < blocks; b += 8, w += 8 * block) {
        _Alignas(8) char rest[MOST_256];
        const char *p =
            whole_256(type, w, k - b * SHEAF__QK, from || sheaf__digits_at_end(k), rest);
        digits_256(type, act, p, fetch, cols, C, b / 8, acc, other);
    }
    if (keep_sums(to, C, acc, other)) return;
    UNROLL for (int c = 0; c < C; c++) sum[c] =
        v_sum(_mm256_fmadd_ps(other[c], _mm256_set1_ps(factor), acc[c]));
}

/* ---- blocks of 256 ---- */

/* The integers of 256 weights of Q4_K and Q5_K: 8 bytes of each pair of blocks are a vector, q[0..3] of the even
 * blocks, q[4..7] of the odd ones. */
INLINE void pairs_in_file(enum sheaf_type type, const char *w, __m256i *q) {
    const char *qs = w + size_256(type) - SHEAF__QK_K / 2;
    const __m256i bit4 = _mm256_set1_epi8(16), pair = _mm256_setr_epi64x(0, 2, 4, 6);
    __m256i x[4];
    UNROLL for (int i = 0; i < 2; i++) {
        const char *p = qs + 16 * i;
        const __m256i even =
            _mm256_inserti128_si256(_mm256_castsi128_si256(load128(p)), load128(p + 64), 1);
        const __m256i odd =
            _mm256_inserti128_si256(_mm256_castsi128_si256(load128(p + 32)), load128(p + 96), 1);
        x[2 * i] = _mm256_unpacklo_epi64(even, odd);
        x[2 * i + 1] = _mm256_unpackhi_epi64(even, odd);
    }
    UNROLL for (int i = 0; i < 4; i++) {
        q[i] = and15(x[i]);
        q[4 + i] = high15(x[i]);
        if (type == SHEAF_TYPE_Q4_K) continue;
        int64_t qh;
        memcpy(&qh, ((const struct sheaf__block_q5_k *)(const void *)w)->qh + 8 * i, 8);
        const __m256i h = _mm256_srlv_epi64(_mm256_set1_epi64x(qh), pair);
        q[i] = _mm256_or_si256(q[i], _mm256_and_si256(_mm256_slli_epi16(h, 4), bit4));
        q[4 + i] = _mm256_or_si256(q[4 + i], _mm256_and_si256(_mm256_slli_epi16(h, 3), bit4));
    }
}
INLINE void k_scales_in_file(enum sheaf_type type, const char *w, __m256 *scales, __m256 *mins) {
    (void)type;
    k_scales(w, scales, mins);
}

INLINE void digits_k(enum sheaf_type type, enum sheaf__act act, int64_t k, const char *w,
                     struct fetch fetch, const void *const *cols, int C, const v_f *from, v_f *to,
                     float *sum) {
    const int bits = type == SHEAF_TYPE_Q5_K ? 5 : 4;
    const size_t block = size_256(type);
    __m256 acc[TILE], mins[TILE];
    take_sums(from, C, acc, mins);
    for (int64_t b = 0; b < k / SHEAF__QK_K; b++, w += block) {
        __m256i q[8];
        __m256 scales, ms;
        fetch_lines(fetch, w, block);
        IN_ORDER(pairs)(type, w, q);
        IN_ORDER(k_scales)(type, w, &scales, &ms);
        UNROLL for (int c = 0; c < C; c++) {
            const void *y = part_of_column(act, cols[c], b);
            const __m256 t = _mm256_mul_ps(scales, d_of(act, y));
            mins[c] = _mm256_fmadd_ps(ms, sums32_of(act, y), mins[c]);
            acc[c] =
                _mm256_fmadd_ps(dot_lanes(bits, 4, q, act, y, 0), _mm256_moveldup_ps(t), acc[c]);
            acc[c] = _mm256_fmadd_ps(dot_lanes(bits, 4, q + 4, act, y, 4), _mm256_movehdup_ps(t),
                                     acc[c]);
        }
    }
    if (keep_sums(to, C, acc, mins)) return;
    UNROLL for (int c = 0; c < C; c++) sum[c] = v_sum(_mm256_sub_ps(acc[c], mins[c]));
}

/* The integers of half n of 256 weights of Q6_K, unsigned: q[0], q[1] of the low nibbles, q[2], q[3] of the high
 * ones. */
INLINE void half_6k_in_file(const char *w, int n, __m256i *q) {
    const struct sheaf__block_q6_k *x = (const void *)w;
    const __m256i up = _mm256_setr_epi64x(4, 2, 4, 2), down = _mm256_setr_epi64x(0, 2, 0, 2);
    const __m256i bits45 = _mm256_set1_epi8(0x30);
    const __m256i l0 = load256(x->ql + 64 * n), l1 = load256(x->ql + 64 * n + 32);
    const __m256i h = load256(x->qh + 32 * n);
    const __m256i l[2] = {_mm256_unpacklo_epi64(l0, l1), _mm256_unpackhi_epi64(l0, l1)};
    const __m256i u[2] = {_mm256_unpacklo_epi64(h, h), _mm256_unpackhi_epi64(h, h)};
    UNROLL for (int i = 0; i < 2; i++) {
        const __m256i a = _mm256_and_si256(_mm256_sllv_epi64(u[i], up), bits45);
        const __m256i z = _mm256_and_si256(_mm256_srlv_epi64(u[i], down), bits45);
        q[i] = _mm256_or_si256(and15(l[i]), a);
        q[2 + i] = _mm256_or_si256(high15(l[i]), z);
    }
}
/* The scales of a block of Q6_K to the order of sheaf__digits_6k_lane, and back. */
INLINE __m128i turn_scales_6k(__m128i scales) {
    return _mm_shuffle_epi8(scales,
                            _mm_setr_epi8(0, 4, 2, 6, 1, 5, 3, 7, 8, 12, 10, 14, 9, 13, 11, 15));
}
INLINE __m256i scales_6k_in_file(const char *w, int n) {
    const __m128i s =
        turn_scales_6k(load128(((const struct sheaf__block_q6_k *)(const void *)w)->scales));
    return _mm256_cvtepi8_epi32(n ? _mm_unpackhi_epi64(s, s) : s);
}

/* Q6_K: the offset of 32 as a min. */
INLINE void digits_6k(enum sheaf__act act, int64_t k, const char *w, struct fetch fetch,
                      const void *const *cols, int C, const v_f *from, v_f *to, float *sum) {
    __m256 acc[TILE], mins[TILE];
    take_sums(from, C, acc, mins);
    for (int64_t b = 0; b < k / SHEAF__QK_K; b++, w += sizeof(struct sheaf__block_q6_k)) {
        const struct sheaf__block_q6_k *x = (const void *)w;
        const __m256 d = _mm256_set1_ps(f16(x->d)); /* the last bytes in either order */
        fetch_lines(fetch, w, sizeof *x);
        UNROLL for (int n = 0; n < 2; n++) {
            __m256i q[4];
            IN_ORDER(half_6k)(w, n, q);
            const __m256i s8 = IN_ORDER(scales_6k)(w, n);
            const __m256 s = _mm256_mul_ps(_mm256_cvtepi32_ps(s8), d);
            UNROLL for (int c = 0; c < C; c++) {
                const void *y = part_of_column(act, cols[c], b);
                const __m256 t = _mm256_mul_ps(s, d16_of(act, y, n));
                mins[c] = _mm256_fmadd_ps(s, sums16_of(act, y, n), mins[c]);
                acc[c] = _mm256_fmadd_ps(dot_lanes(6, 2, q, act, y, 4 * n), _mm256_moveldup_ps(t),
                                         acc[c]);
                acc[c] = _mm256_fmadd_ps(dot_lanes(6, 2, q + 2, act, y, 4 * n + 2),
                                         _mm256_movehdup_ps(t), acc[c]);
            }
        }
    }
    if (keep_sums(to, C, acc, mins)) return;
    UNROLL for (int c = 0; c < C; c++) sum[c] =
        v_sum(_mm256_fmadd_ps(mins[c], _mm256_set1_ps(-32.0f), acc[c]));
}

/* ---- activations ---- */

INLINE void store256(void *p, __m256i x) { _mm256_storeu_si256((__m256i *)p, x); }

/* 32 activations as integers of magnitudes up to `top`; returns what times them the activations are. */
INLINE float integers_of_32(const float *x, float top, __m256i *q) {
    __m256i max_bits = _mm256_setzero_si256();
    UNROLL for (int j = 0; j < 4; j++) max_bits = max_abs_bits(max_bits, v_load(x + 8 * j));
    const float max = hmax_bits(max_bits);
    const bool zero = max < 0x1p-100f; /* top / max would overflow */
    const v_f id = v_set1(zero ? 0.0f : top / max);
    UNROLL for (int j = 0; j < 4; j++) q[j] = _mm256_cvtps_epi32(v_mul(v_load(x + 8 * j), id));
    return zero ? 0.0f : max / top;
}

static void to_digits(const float *x, struct sheaf__act_digits *y, int64_t n, bool at_end,
                      enum sheaf__digits_order order) {
    const int used = sheaf__digits_used(order);
    const float top = sheaf__digits_top(order);
    if (n % 256) memset(&y[n / 256], 0, sizeof *y);
    for (int64_t i = 0; i < n / 32; i++, x += 32) {
        struct sheaf__act_digits *to = &y[i / 8];
        const int b = sheaf__digits_block(i, n, at_end);
        __m256i q[4];
        const float d = integers_of_32(x, top, q);
        const __m256i first = _mm256_add_epi32(q[0], q[1]), second = _mm256_add_epi32(q[2], q[3]);
        to->d[b] = d;
        to->sums32[b] = d * (float)hsum8_i32(_mm256_add_epi32(first, second));
        if (order == SHEAF__DIGITS_SHORTS) {
            store256(to->word[0] + 32 * b, pack_words(q[0], q[1]));
            store256(to->word[0] + 32 * b + 16, pack_words(q[2], q[3]));
            continue;
        }
        if (order == SHEAF__DIGITS_OCT_SHORTS) {
            const __m256i even_first = _mm256_broadcastsi128_si256(
                _mm_setr_epi8(0, 1, 4, 5, 2, 3, 6, 7, 8, 9, 12, 13, 10, 11, 14, 15));
            int32_t twos[16];
            UNROLL for (int v = 0; v < 2; v++) store256(
                twos + 8 * v, _mm256_shuffle_epi8(pack_words(q[2 * v], q[2 * v + 1]), even_first));
            for (int j = 0; j < 16; j++) memcpy(to->word[0] + 16 * j + 2 * b, &twos[j], 4);
            continue;
        }
        if (order == SHEAF__DIGITS_WORDS) {
            UNROLL for (int j = 0; j < 2; j++) {
                const __m256i *p = &q[2 * j], half = _mm256_set1_epi32(32768);
                const __m256i h0 = _mm256_srai_epi32(_mm256_add_epi32(p[0], half), 16);
                const __m256i h1 = _mm256_srai_epi32(_mm256_add_epi32(p[1], half), 16);
                const __m256i l0 = _mm256_sub_epi32(p[0], _mm256_slli_epi32(h0, 16));
                const __m256i l1 = _mm256_sub_epi32(p[1], _mm256_slli_epi32(h1, 16));
                const int at = 32 * b + 16 * j;
                store256(to->word[0] + at, pack_words(h0, h1));
                store256(to->word[1] + at, pack_words(l0, l1));
            }
            continue;
        }
        if (order == SHEAF__DIGITS_HALVES) {
            to->lane_d[2 * b] = to->lane_d[2 * b + 1] = d;
            to->sums16[2 * b] = d * (float)hsum8_i32(first);
            to->sums16[2 * b + 1] = d * (float)hsum8_i32(second);
        }
        if (order == SHEAF__DIGITS_6K) {
            const int p[2] = {sheaf__digits_6k_lane(b, 0), sheaf__digits_6k_lane(b, 1)};
            to->lane_d[p[0]] = to->lane_d[p[1]] = d;
            to->sums16[p[0]] = d * (float)hsum8_i32(first);
            to->sums16[p[1]] = d * (float)hsum8_i32(second);
        }
        for (int j = used - 1; j >= 0; j--) { /* l, m, h */
            __m256i digits[4];
            char bytes[32];
            UNROLL for (int v = 0; v < 4; v++) {
                const __m256i half = _mm256_set1_epi32(j ? 128 : 0);
                const __m256i rest = _mm256_srai_epi32(_mm256_add_epi32(q[v], half), 8);
                digits[v] = j ? _mm256_sub_epi32(q[v], _mm256_slli_epi32(rest, 8)) : q[v];
                q[v] = rest;
            }
            _mm256_storeu_si256((__m256i *)bytes, pack_bytes(digits));
            for (int e = 0; e < 32; e += 4) {
                const int at = sheaf__digits_place(order, 32 * b + e);
                memcpy(to->digit[at / 64][j] + at % 64, bytes + e, 4);
            }
        }
    }
}

static void to_bytes(const float *x, struct sheaf__act_bytes *y, int64_t n, bool at_end,
                     enum sheaf__digits_order order) {
    if (n % 256) memset(&y[n / 256], 0, sizeof *y);
    for (int64_t i = 0; i < n / 32; i++, x += 32) {
        struct sheaf__act_bytes *to = &y[i / 8];
        const int b = sheaf__digits_block(i, n, at_end);
        __m256i q[4];
        int8_t bytes[32];
        const float d = integers_of_32(x, 127.0f, q);
        const __m256i sums[2] = {_mm256_add_epi32(q[0], q[1]), _mm256_add_epi32(q[2], q[3])};
        to->d[b] = d;
        to->sums32[b] = d * (float)hsum8_i32(_mm256_add_epi32(sums[0], sums[1]));
        const bool halves = order == SHEAF__DIGITS_HALVES;
        for (int h = 0; h < 2 && (halves || order == SHEAF__DIGITS_6K); h++) {
            const int lane = halves ? 2 * b + h : sheaf__digits_6k_lane(b, h);
            to->lane_d[lane] = d;
            to->lane_sums[lane] = d * (float)hsum8_i32(sums[h]);
        }
        store256(bytes, pack_bytes(q));
        for (int e = 0; e < 32; e += 4)
            memcpy(to->x + sheaf__digits_place(order, 32 * b + e), bytes + e, 4);
    }
}

#define BY_HALVES(TYPE)                                                                            \
    ((TYPE) == SHEAF_TYPE_Q2_K || (TYPE) == SHEAF_TYPE_Q3_K || (TYPE) == SHEAF_TYPE_TQ1_0 ||       \
     (TYPE) == SHEAF_TYPE_TQ2_0)
#define BY_IQ4(TYPE) ((TYPE) == SHEAF_TYPE_IQ4_NL || (TYPE) == SHEAF_TYPE_IQ4_XS)
#if defined(KERNELS_VNNI_256)
#define IQ4_ORDER SHEAF__DIGITS_OCTS
#else
#define IQ4_ORDER SHEAF__DIGITS_OCT_SHORTS
#endif
#define IN_WORDS(TYPE)                                                                             \
    [SHEAF_TYPE_##TYPE] = SHEAF_TYPE_##TYPE == SHEAF_TYPE_MXFP4 ? SHEAF__DIGITS_OCTS               \
                          : BY_HALVES(SHEAF_TYPE_##TYPE)        ? SHEAF__DIGITS_HALVES             \
                          : BY_IQ4(SHEAF_TYPE_##TYPE)           ? IQ4_ORDER                        \
                                                                : SHEAF__DIGITS_SHORTS,
#define DIGITS_ORDER                                                                               \
    {                                                                                              \
        [SHEAF_TYPE_Q8_0] = SHEAF__DIGITS_WORDS, [SHEAF_TYPE_Q4_0] = SHEAF__DIGITS_OCTS,           \
        [SHEAF_TYPE_Q4_1] = SHEAF__DIGITS_OCTS, [SHEAF_TYPE_Q5_0] = SHEAF__DIGITS_OCTS,            \
        [SHEAF_TYPE_Q5_1] = SHEAF__DIGITS_OCTS, [SHEAF_TYPE_Q4_K] = SHEAF__DIGITS_PAIRS,           \
        [SHEAF_TYPE_Q5_K] = SHEAF__DIGITS_PAIRS, [SHEAF_TYPE_Q6_K] = SHEAF__DIGITS_6K,             \
        SIGNED_BY_32(IN_WORDS) SIGNED_BY_16(IN_WORDS)                                              \
    }
