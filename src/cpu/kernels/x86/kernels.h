/* The body of the x86 kernel tables: a template by inclusion. avx2.c and avx512.c define what is listed
 * here and then include this file; avxvnni.c and vbmi.c take the parts without a table, avxvnni.c extends
 * the table of avx2.c, and avx512vbmi.c, avx512bf16.c and amx.c that of avx512.c.
 *
 * Defined by the build (src/cpu/CMakeLists.txt) for each table:
 *   KERNELS_NAME       the name of the instruction set, a string
 *   KERNELS_TABLE      the name of the table that this file defines (struct sheaf__cpu_kernels)
 * Defined by the including file, where the instruction set has it:
 *   KERNELS_VNNI_512   products of bytes in 512 bits (VNNI): int24.h, panels16.h, panels24.h and
 *                      panels_words.h; without it int24_avx2.h
 *   KERNELS_VNNI_256   the same in 256 bits (AVX-VNNI), for int24_avx2.h, panels16_avx2.h and panels8.h
 *   KERNELS_VBMI       permutations of bytes in 512 bits (VBMI)
 *   KERNELS_NO_TABLE   the parts only
 * Primitives that the including file gives as static inline functions:
 *   v_f, VW            a vector of VW floats; v_load v_store v_set1 v_add v_sub v_mul v_div v_fma
 *                      v_fnma v_min v_max v_round v_ldexp v_sum v_if_equal v_swap v_turn v_twice
 *   v_ldexp_near, v_all_within, V_LDEXP_COSTS   2^n for a normal result, and whether to ask for it
 *   v_load_f16 v_store_f16 v_load_bf16 v_load_i8 v_bytes v_nibbles   VW values of another type as floats
 *   v_eights v_eights_f16 v_eights_bf16 v_eights_i8 v_eights_set1   eight elements, or one for them, of
 *                      each of VW / 8 rows; v_eight: the same eight for all
 *   v_sum_twos v_sum_fours v_sum_eights   sums across eight vectors of such rows
 *   v_d                eight sums in double: v_zeros v_add_8 v_add_sq_8 v_lanes, the same lanes in
 *                      every table, so that sums have the same bits
 * The parts below (fetch.h, k_scales.h, pairs.h, weights32.h, rows.h, panels.h, blocks.h, points.h, int24.h or
 * int24_avx2.h, panels16.h, panels24.h, signed.h with pieces.h, eights.h and few.h or with halves.h and
 * rows_of_lanes.h, plain_few.h, panels_words.h, convert.h, panels8.h, panels16_avx2.h, lanes.h, attention.h,
 * attention_few.h, attention_q8.h with attention_q8_lanes.h) use these and each other in the order in which they
 * are included.
 * Bytes of blocks are unpacked in 256 bits by all, since a block is 32 bytes when unpacked.
 *
 * Invariant: one accumulator per (row, column), fed in the order of k, so that tile shapes may
 * change freely without changing a bit of the result. */
#include <math.h>

#include "cpu/kernels/elements.h"
#include "cpu/kernels/kernels.h"
#include "cpu/kernels/recurrent.h"
#include "cpu/kernels/vec.h"
#include "cpu/kernels/x86/units.h"
#include "cpu/kernels/x86/vector.h"
#include "quant/blocks.h"
#include "quant/iq.h"

#include "cpu/kernels/x86/fetch.h"

/* ---- small vectors ---- */

INLINE float f16(uint16_t h) { return _cvtsh_ss(h); }

/* Bytes of 256 activations in digits or in bytes. */
INLINE size_t act_size_256(enum sheaf__act act) {
    return act == SHEAF__ACT_BYTES ? sizeof(struct sheaf__act_bytes)
                                   : sizeof(struct sheaf__act_digits);
}

/* The 8 scales, then the 8 mins, of Q4_K and Q5_K as bytes, of x: the first 16 bytes of a block,
 * which are the halves d and dmin and bytes a[4], b[4], c[4]. */
INLINE __m128i k_scale_bytes(__m128i x) {
    /* a, c, b, c >> 4 and the top bits of a and b */
    const __m128i low =
        _mm_srlv_epi32(_mm_shuffle_epi32(x, _MM_SHUFFLE(3, 2, 3, 1)), _mm_setr_epi32(0, 0, 0, 4));
    const __m128i top = _mm_srli_epi32(_mm_shuffle_epi32(x, _MM_SHUFFLE(2, 2, 1, 1)), 2);
    const __m128i take = _mm_setr_epi32(0x3f3f3f3f, 0x0f0f0f0f, 0x3f3f3f3f, 0x0f0f0f0f);
    const __m128i add = _mm_setr_epi32(0, 0x30303030, 0, 0x30303030);
    return _mm_or_si128(_mm_and_si128(low, take), _mm_and_si128(top, add));
}

/* Bytes of an element of F32, F16, BF16. */
INLINE size_t plain_size(enum sheaf_type type) {
    return type == SHEAF_TYPE_F32 ? sizeof(float) : sizeof(uint16_t);
}
INLINE v_f load_plain(enum sheaf_type type, const void *p, int64_t i) {
    if (type == SHEAF_TYPE_F32) return v_load((const float *)p + i);
    if (type == SHEAF_TYPE_F16) return v_load_f16((const uint16_t *)p + i);
    return v_load_bf16((const uint16_t *)p + i);
}
INLINE v_f load_plain_n(enum sheaf_type type, const void *p, int64_t i, int64_t n) {
    if (type == SHEAF_TYPE_F32) return v_load_n((const float *)p + i, n);
    uint16_t t[VW] = {0};
    memcpy(t, (const uint16_t *)p + i, (size_t)n * sizeof *t);
    return load_plain(type, t, 0);
}

/* ---- a row by C columns, a constant after inlining ---- */

/* Several columns that do not stay in the first cache beside the weights are multiplied in parts, for
 * PART_ROWS rows each: sums wait in memory meanwhile, in the lanes that they have, so that parts do
 * not show in the bits. Four columns of 5632 came from the second cache at half the speed. One column
 * is whole: mul_mat.c cuts long ones. */
enum { PART = 1024, PART_ROWS = 8, MOST_WHOLE = 4096 /* elements of all columns */ };
INLINE int64_t part_of(int64_t k, int nc) { return nc == 1 || nc * k <= MOST_WHOLE ? k : PART; }

/* Sums before a part: zeros where `from` is NULL. */
INLINE v_f carried(const v_f *from, int i) { return from ? from[i] : v_set1(0.0f); }

/* Vector number j of k goes to accumulator j mod ACCS: a row alone, which reads memory in order,
 * would wait for one. (Four rows at a time read F16 at 25 GB/s where one reads it at 36: rows of 4
 * KiB meet in the same sets of the cache. AMD EPYC, Zen 5, November 2026.) */
enum { ACCS = 4, PLAIN_COLS = VW == 16 ? 4 : 2, TILE = VW == 16 ? SHEAF__TILE_COLS : 4 };

/* Elements of a row from i on, less than a round, and what becomes of the sums. */
INLINE void row_plain_end(enum sheaf_type type, int64_t k, int64_t i, const char *w,
                          const float *const *act, int C, v_f (*acc)[ACCS], v_f *to,
                          float *const *out, int64_t r) {
    UNROLL for (int j = 0; j < ACCS; j++) {
        const int64_t at = i + j * VW, n = k - at;
        if (n <= 0) break;
        const v_f x = n >= VW ? load_plain(type, w, at) : load_plain_n(type, w, at, n);
        UNROLL for (int c = 0; c < C; c++) {
            const float *p = act[c] + at;
            acc[c][j] = v_fma(x, n >= VW ? v_load(p) : v_load_n(p, n), acc[c][j]);
        }
    }
    UNROLL for (int c = 0; c < C && to; c++) {
        UNROLL for (int j = 0; j < ACCS; j++) to[c * ACCS + j] = acc[c][j];
    }
    UNROLL for (int c = 0; c < C && !to; c++) {
        v_f sum = v_add(acc[c][0], acc[c][1]);
        UNROLL for (int j = 2; j < ACCS; j += 2) sum =
            v_add(sum, v_add(acc[c][j], acc[c][(j + 1) % ACCS]));
        out[c][r] = v_sum(sum);
    }
}

/* out[c][r], or the sums so far to `to`. k of all parts except the last is whole rounds. */
INLINE void row_plain(enum sheaf_type type, int64_t k, const char *w, struct fetch fetch,
                      const float *const *act, int C, const v_f *from, v_f *to, float *const *out,
                      int64_t r) {
    const size_t size = plain_size(type);
    v_f acc[PLAIN_COLS][ACCS];
    UNROLL for (int c = 0; c < C; c++) {
        UNROLL for (int j = 0; j < ACCS; j++) acc[c][j] = carried(from, c * ACCS + j);
    }
    int64_t i = 0;
    for (; i + ACCS * VW <= k; i += ACCS * VW) {
        fetch_lines(fetch, w + (size_t)i * size, ACCS * VW * size);
        UNROLL for (int j = 0; j < ACCS; j++) {
            const v_f x = load_plain(type, w, i + j * VW);
            UNROLL for (int c = 0; c < C; c++) acc[c][j] =
                v_fma(x, v_load(act[c] + i + j * VW), acc[c][j]);
        }
    }
    row_plain_end(type, k, i, w, act, C, acc, to, out, r);
}

/* 16 bytes to 32 nibbles: the low ones first. */
INLINE __m256i nibbles(const uint8_t *p) {
    __m128i b = load128(p);
    __m256i both = _mm256_inserti128_si256(_mm256_castsi128_si256(b), _mm_srli_epi16(b, 4), 1);
    return _mm256_and_si256(both, _mm256_set1_epi8(15));
}

/* 32 bits to 32 bytes: `set` where the bit is set, else `clear`. */
INLINE __m256i spread_bits(const uint8_t *p, int8_t set, int8_t clear) {
    int32_t bits;
    memcpy(&bits, p, sizeof bits);
    const __m256i byte_of =
        _mm256_setr_epi64x(0, 0x0101010101010101, 0x0202020202020202, 0x0303030303030303);
    const __m256i bit_of = _mm256_set1_epi64x((int64_t)0x8040201008040201u);
    __m256i b = _mm256_and_si256(_mm256_shuffle_epi8(_mm256_set1_epi32(bits), byte_of), bit_of);
    return _mm256_blendv_epi8(_mm256_set1_epi8(clear), _mm256_set1_epi8(set),
                              _mm256_cmpeq_epi8(b, bit_of));
}

/* Bytes of a block of a type of 32. */
INLINE size_t block_size_32(enum sheaf_type type) {
    return type == SHEAF_TYPE_Q8_0   ? sizeof(struct sheaf__block_q8_0)
           : type == SHEAF_TYPE_Q4_0 ? sizeof(struct sheaf__block_q4_0)
           : type == SHEAF_TYPE_Q4_1 ? sizeof(struct sheaf__block_q4_1)
           : type == SHEAF_TYPE_Q5_0 ? sizeof(struct sheaf__block_q5_0)
           : type == SHEAF_TYPE_Q5_1 ? sizeof(struct sheaf__block_q5_1)
                                     : sizeof(struct sheaf__block_mxfp4);
}

/* Bytes of 256 weights of any quantized type. */
INLINE size_t size_256(enum sheaf_type type) {
    const bool of_32 = type == SHEAF_TYPE_Q8_0 || type == SHEAF_TYPE_Q4_0 ||
                       type == SHEAF_TYPE_Q4_1 || type == SHEAF_TYPE_Q5_0 ||
                       type == SHEAF_TYPE_Q5_1 || type == SHEAF_TYPE_MXFP4;
    return of_32                        ? 8 * block_size_32(type)
           : type == SHEAF_TYPE_IQ4_NL  ? 8 * sizeof(struct sheaf__block_iq4_nl)
           : type == SHEAF_TYPE_NVFP4   ? 4 * sizeof(struct sheaf__block_nvfp4)
           : type == SHEAF_TYPE_IQ4_XS  ? sizeof(struct sheaf__block_iq4_xs)
           : type == SHEAF_TYPE_Q2_K    ? sizeof(struct sheaf__block_q2_k)
           : type == SHEAF_TYPE_Q3_K    ? sizeof(struct sheaf__block_q3_k)
           : type == SHEAF_TYPE_Q4_K    ? sizeof(struct sheaf__block_q4_k)
           : type == SHEAF_TYPE_Q5_K    ? sizeof(struct sheaf__block_q5_k)
           : type == SHEAF_TYPE_Q6_K    ? sizeof(struct sheaf__block_q6_k)
           : type == SHEAF_TYPE_IQ2_XXS ? sizeof(struct sheaf__block_iq2_xxs)
           : type == SHEAF_TYPE_IQ2_XS  ? sizeof(struct sheaf__block_iq2_xs)
           : type == SHEAF_TYPE_IQ2_S   ? sizeof(struct sheaf__block_iq2_s)
           : type == SHEAF_TYPE_IQ3_XXS ? sizeof(struct sheaf__block_iq3_xxs)
           : type == SHEAF_TYPE_IQ3_S   ? sizeof(struct sheaf__block_iq3_s)
           : type == SHEAF_TYPE_IQ1_S   ? sizeof(struct sheaf__block_iq1_s)
           : type == SHEAF_TYPE_IQ1_M   ? sizeof(struct sheaf__block_iq1_m)
           : type == SHEAF_TYPE_TQ1_0   ? sizeof(struct sheaf__block_tq1_0)
           : type == SHEAF_TYPE_TQ2_0   ? sizeof(struct sheaf__block_tq2_0)
           : type == SHEAF_TYPE_Q1_0    ? 2 * sizeof(struct sheaf__block_q1_0)
                                        : 4 * sizeof(struct sheaf__block_q2_0);
}

enum { MOST_256 = 8 * sizeof(struct sheaf__block_q8_0) }; /* of the types of less than 256 */

/* The 256 weights at w; of the last `left` of a row, those that end with it if there are as many (long_row), as
 * activations lie (sheaf__digits_block), or these with zeros after them. */
INLINE const char *whole_256(enum sheaf_type type, const char *w, int64_t left, bool long_row,
                             char *rest) {
    if (left >= SHEAF__QK_K) return w;
    if (long_row) return w - size_256(type) * (size_t)(SHEAF__QK_K - left) / SHEAF__QK_K;
    memset(rest, 0, MOST_256);
    memcpy(rest, w, size_256(type) * (size_t)left / SHEAF__QK_K);
    return rest;
}

INLINE bool has_min(enum sheaf_type t) { return t == SHEAF_TYPE_Q4_1 || t == SHEAF_TYPE_Q5_1; }

#include "cpu/kernels/x86/k_scales.h"

/* One row at a time reads memory in order (15 GB/s of Q4_K; two rows at a time 13). */
INLINE void rows_plain(enum sheaf_type type, int64_t k, int64_t part, const char *w,
                       size_t w_stride, int64_t nr, struct fetch fetch, const void *const *act,
                       int C, float *const *out) {
    const size_t size = plain_size(type);
    v_f sums[PART_ROWS][PLAIN_COLS * ACCS];
    if (part == k) {
        const float *at[PLAIN_COLS];
        UNROLL for (int c = 0; c < C; c++) at[c] = act[c];
        for (int64_t r = 0; r < nr; r++, w += w_stride)
            row_plain(type, k, w, fetch, at, C, NULL, NULL, out, r);
        return;
    }
    for (int64_t r0 = 0; r0 < nr; r0 += PART_ROWS) {
        const int64_t rows = nr - r0 < PART_ROWS ? nr - r0 : PART_ROWS;
        int64_t i = 0;
        do {
            const bool last = i + part >= k;
            const float *at[PLAIN_COLS];
            UNROLL for (int c = 0; c < C; c++) at[c] = (const float *)act[c] + i;
            for (int64_t r = 0; r < rows; r++) {
                const char *p = w + (size_t)(r0 + r) * w_stride + (size_t)i * size;
                row_plain(type, last ? k - i : part, p, fetch, at, C, i ? sums[r] : NULL,
                          last ? NULL : sums[r], out, r0 + r);
            }
            i += part;
        } while (i < k);
    }
}
INLINE void rows_plain_few(enum sheaf_type type, int64_t k, const char *w, size_t w_stride,
                           int64_t nr, const void *const *act, int C, float *const *out) {
    const bool fits = sheaf__cpu_fetch == SHEAF__FETCH_BOTH && C * k <= 2 * MOST_WHOLE;
    const int64_t part = fits ? k : part_of(k, C);
    const size_t row = (size_t)part * plain_size(type);
    if (C == 1) {
        BY_FETCH_PLAIN(row, w_stride,
                       rows_plain(type, k, part, w, w_stride, nr, fetch, act, 1, out));
    } else {
        BY_FETCH_FEW(2, row, w_stride,
                     rows_plain(type, k, part, w, w_stride, nr, fetch, act, C, out));
    }
}
/* Functions of their own: together they would leave no registers for the addresses of four columns. */
#define ROWS_PLAIN(NAME, TYPE, C)                                                                  \
    __attribute__((noinline)) static void NAME(int64_t k, const void *w, size_t w_stride,          \
                                               int64_t nr, const void *const *act,                 \
                                               float *const *out) {                                \
        rows_plain_few(TYPE, k, w, w_stride, nr, act, C, out);                                     \
    }
#define ROWS_DOT(NAME, TYPE)                                                                       \
    ROWS_PLAIN(NAME##_1, TYPE, 1)                                                                  \
    ROWS_PLAIN(NAME##_2, TYPE, 2)                                                                  \
    ROWS_PLAIN(NAME##_3, TYPE, PLAIN_COLS - 1)                                                     \
    ROWS_PLAIN(NAME##_4, TYPE, PLAIN_COLS)                                                         \
    static void NAME(int64_t k, const void *w, size_t w_stride, int64_t nr,                        \
                     const void *const *act, int nc, float *const *out) {                          \
        for (; nc >= PLAIN_COLS; nc -= PLAIN_COLS, act += PLAIN_COLS, out += PLAIN_COLS)           \
            NAME##_4(k, w, w_stride, nr, act, out);                                                \
        if (nc == 3) NAME##_3(k, w, w_stride, nr, act, out);                                       \
        if (nc == 2) NAME##_2(k, w, w_stride, nr, act, out);                                       \
        if (nc == 1) NAME##_1(k, w, w_stride, nr, act, out);                                       \
    }
ROWS_DOT(rows_dot_f32, SHEAF_TYPE_F32)
ROWS_DOT(rows_dot_f16, SHEAF_TYPE_F16)
ROWS_DOT(rows_dot_bf16, SHEAF_TYPE_BF16)
#if defined(KERNELS_VNNI_512)
#include "cpu/kernels/x86/pairs.h"
#endif

/* Types whose few columns may be rounded. */
#define ROUNDED_COMMON(X)                                                                          \
    X(Q4_0)                                                                                        \
    X(Q4_1)                                                                                        \
    X(Q5_0)                                                                                        \
    X(Q5_1)                                                                                        \
    X(Q8_0) X(Q2_K) X(Q3_K) X(Q4_K) X(Q5_K) X(Q6_K) X(IQ4_NL) X(IQ4_XS) X(MXFP4) X(TQ1_0) X(TQ2_0)
#if defined(KERNELS_VNNI_512)
#define ROUNDED(X) ROUNDED_COMMON(X) X(IQ3_XXS) X(IQ3_S)
#else
#define ROUNDED(X) ROUNDED_COMMON(X)
#endif

#include "cpu/kernels/x86/rows.h"
#include "cpu/kernels/x86/weights32.h"

#include "cpu/kernels/x86/blocks.h"
#include "cpu/kernels/x86/panels.h"
#include "cpu/kernels/x86/points.h"
#if defined(KERNELS_VNNI_512)
#include "cpu/kernels/x86/int24.h"
#include "cpu/kernels/x86/panels16.h"
#include "cpu/kernels/x86/panels24.h"
#else
#include "cpu/kernels/x86/int24_avx2.h"
#endif
#include "cpu/kernels/x86/signed.h"
#if defined(KERNELS_VNNI_512)
#include "cpu/kernels/x86/plain_few.h"
#if !defined(KERNELS_NO_TABLE)
#include "cpu/kernels/x86/panels_words.h"
#endif
#endif
#include "cpu/kernels/x86/convert.h"
#include "cpu/kernels/x86/panels8.h"
#if !defined(KERNELS_VNNI_512)
#include "cpu/kernels/x86/panels16_avx2.h"
#endif

#if defined(KERNELS_VNNI_512)
ROWS_EIGHTS(rows_digits_q4_0, SHEAF_TYPE_Q4_0)
ROWS_EIGHTS(rows_digits_q4_1, SHEAF_TYPE_Q4_1)
ROWS_EIGHTS(rows_digits_q5_0, SHEAF_TYPE_Q5_0)
ROWS_EIGHTS(rows_digits_q5_1, SHEAF_TYPE_Q5_1)
ROWS_EIGHTS(rows_digits_q4_k, SHEAF_TYPE_Q4_K)
ROWS_EIGHTS(rows_digits_q5_k, SHEAF_TYPE_Q5_K)
#else
ROWS_OF_ACT(rows_digits_q8_0, SHEAF_TYPE_Q8_0, SHEAF__ACT_DIGITS)
ROWS_OF_ACT(rows_digits_q4_0, SHEAF_TYPE_Q4_0, SHEAF__ACT_DIGITS)
ROWS_OF_ACT(rows_digits_q4_1, SHEAF_TYPE_Q4_1, SHEAF__ACT_DIGITS)
ROWS_OF_ACT(rows_digits_q5_0, SHEAF_TYPE_Q5_0, SHEAF__ACT_DIGITS)
ROWS_OF_ACT(rows_digits_q5_1, SHEAF_TYPE_Q5_1, SHEAF__ACT_DIGITS)
ROWS_OF_ACT(rows_digits_q4_k, SHEAF_TYPE_Q4_K, SHEAF__ACT_DIGITS)
ROWS_OF_ACT(rows_digits_q5_k, SHEAF_TYPE_Q5_K, SHEAF__ACT_DIGITS)
ROWS_OF_ACT(rows_digits_q6_k, SHEAF_TYPE_Q6_K, SHEAF__ACT_DIGITS)
#endif

#include "cpu/kernels/x86/lanes.h"

#include "cpu/kernels/x86/attention.h"
#include "cpu/kernels/x86/attention_few.h"
#if defined(KERNELS_VNNI_512)
#include "cpu/kernels/x86/attention_q8.h"
#include "cpu/kernels/x86/attention_q8_lanes.h"
#endif

/* Quantized types whose weights have fewer than 8 bits, integers of at most 6 bits and of 8. */
#define ENTRIES_OF_6_BITS(FN)                                                                      \
    [SHEAF_TYPE_Q4_0] = FN##_q4_0, [SHEAF_TYPE_Q4_1] = FN##_q4_1, [SHEAF_TYPE_Q5_0] = FN##_q5_0,   \
    [SHEAF_TYPE_Q5_1] = FN##_q5_1, [SHEAF_TYPE_Q4_K] = FN##_q4_k, [SHEAF_TYPE_Q5_K] = FN##_q5_k,   \
    [SHEAF_TYPE_Q6_K] = FN##_q6_k, ENTRIES_OF_5_BITS(FN##_signed)
#define ENTRIES_OF_ALL(FN) ENTRIES_OF_6_BITS(FN), ENTRIES_OF_8_BITS(FN##_signed)

#if defined(KERNELS_VNNI_512)
#define ENTRIES_16 ENTRIES_OF_ALL(blocks)
#else
#define ENTRIES_16 ENTRIES_OF_ALL(words)
#endif
#if defined(KERNELS_VNNI_512) || defined(KERNELS_VNNI_256)
#define ENTRIES_8 [SHEAF_TYPE_Q8_0] = blocks_q8_0, ENTRIES_OF_ALL(blocks)
#else
#define ENTRIES_8 ENTRIES_OF_6_BITS(blocks)
#endif

#define ENTRIES_DIGITS                                                                             \
    [SHEAF_TYPE_Q8_0] = rows_digits_q8_0, [SHEAF_TYPE_Q4_0] = rows_digits_q4_0,                    \
    [SHEAF_TYPE_Q4_1] = rows_digits_q4_1, [SHEAF_TYPE_Q5_0] = rows_digits_q5_0,                    \
    [SHEAF_TYPE_Q5_1] = rows_digits_q5_1, [SHEAF_TYPE_Q4_K] = rows_digits_q4_k,                    \
    [SHEAF_TYPE_Q5_K] = rows_digits_q5_k, [SHEAF_TYPE_Q6_K] = rows_digits_q6_k,                    \
    ENTRIES_SIGNED(rows_signed)

#define ROUNDED_ENTRY(TYPE) [SHEAF_TYPE_##TYPE] = rounded_##TYPE,

/* Of integers: panels and rows lie in units of PANEL_ROW_BLOCKS blocks. */
#define PANELS(ROWS, COLS, PANEL, ROW, PACK, TILE_OF)                                              \
    .rows = ROWS, .cols = COLS, .unit = PANEL_ROW_UNIT,                                            \
    .panel_bytes = PANEL_ROW_BLOCKS * sizeof(struct PANEL), .row_bytes = sizeof(struct ROW),       \
    .pack = PACK, .tile = TILE_OF
/* Words take longer to unpack than one panel saves. */
#define PANELS_WORDS(PANEL, ROW, PACK, TILE_OF)                                                    \
    PANELS(WORDS_ROWS, PANEL16_COLS, PANEL, ROW, PACK, TILE_OF), .above = PANEL16_COLS
#define PANELS_16 PANELS(PANEL16_ROWS, PANEL16_COLS, panel16, panel_row, pack_16, tile_16)
#define PANELS_24 PANELS(PANEL16_ROWS, PANEL16_COLS, panel24, panel_row, pack_24, tile_24)
#define PANELS_8  PANELS(PANEL8_ROWS, PANEL8_COLS, panel8, panel_row, pack_8, tile_8)
#define WORDS_16  PANELS_WORDS(panel16, words_row, pack_words_16, tile_words_16)
#define WORDS_24  PANELS_WORDS(panel24, words_row_24, pack_words_24, tile_words_24)

#if !defined(KERNELS_NO_TABLE)
const struct sheaf__cpu_kernels KERNELS_TABLE = {
    .name = KERNELS_NAME,
    .panels =
        {
            [SHEAF__PANELS_FLOATS] =
                {
                    .rows = PANEL_ROWS,
                    .cols = PANEL_COLS,
                    .unit = 1,
                    .panel_bytes = PANEL_COLS * sizeof(float),
                    .row_bytes = sizeof(float),
                    .pack = pack_f32,
                    .tile = panel_f32,
                    .unpack =
                        {
                            [SHEAF_TYPE_F32] = floats_f32,
                            [SHEAF_TYPE_F16] = floats_f16,
                            [SHEAF_TYPE_BF16] = floats_bf16,
                            [SHEAF_TYPE_Q8_0] = floats_q8_0,
                            [SHEAF_TYPE_Q4_0] = floats_q4_0,
                            [SHEAF_TYPE_Q4_1] = floats_q4_1,
                            [SHEAF_TYPE_Q5_0] = floats_q5_0,
                            [SHEAF_TYPE_Q5_1] = floats_q5_1,
                            [SHEAF_TYPE_Q4_K] = floats_q4_k,
                            [SHEAF_TYPE_Q5_K] = floats_q5_k,
                            [SHEAF_TYPE_Q6_K] = floats_q6_k,
                            ENTRIES_SIGNED(floats_signed),
                        },
                },
            [SHEAF__PANELS_16] = {PANELS_16, .unpack = {ENTRIES_16}},
#if defined(KERNELS_VNNI_512)
            [SHEAF__PANELS_16_WORDS] = {WORDS_16, .unpack = {ENTRIES_OF_ALL(wide_blocks)}},
            [SHEAF__PANELS_24] = {PANELS_24, .unpack = {[SHEAF_TYPE_Q8_0] = blocks_q8_0}},
            [SHEAF__PANELS_24_WORDS] = {WORDS_24, .unpack = {[SHEAF_TYPE_Q8_0] = wide_24_q8_0}},
#endif
#if !defined(KERNELS_VNNI_512)
            [SHEAF__PANELS_16_BYTES] = {PANELS_16, .unpack = {[SHEAF_TYPE_Q8_0] = words_q8_0}},
#endif
            [SHEAF__PANELS_8] = {PANELS_8, .unpack = {ENTRIES_8}},
        },
    .rows_dot =
        {
#if defined(KERNELS_VNNI_512)
            [SHEAF_TYPE_F32] = eight_f32,
            [SHEAF_TYPE_F16] = eight_f16,
            [SHEAF_TYPE_BF16] = eight_bf16,
#else
            [SHEAF_TYPE_F32] = rows_dot_f32,
            [SHEAF_TYPE_F16] = rows_dot_f16,
            [SHEAF_TYPE_BF16] = rows_dot_bf16,
#endif
        },
    .rows_dot_digits = {ENTRIES_DIGITS},
    .digits_order = DIGITS_ORDER,
    .tile_cols = TILE,
#if defined(KERNELS_VNNI_512)
    .rows_dot_few =
        {
            [SHEAF_TYPE_Q4_0] = few_q4_0,
            [SHEAF_TYPE_Q4_1] = few_q4_1,
            [SHEAF_TYPE_Q5_0] = few_q5_0,
            [SHEAF_TYPE_Q5_1] = few_q5_1,
            [SHEAF_TYPE_Q4_K] = few_q4_k,
            [SHEAF_TYPE_Q5_K] = few_q5_k,
            [SHEAF_TYPE_IQ4_NL] = few_signed_IQ4_NL,
            [SHEAF_TYPE_IQ4_XS] = few_signed_IQ4_XS,
            [SHEAF_TYPE_MXFP4] = few_signed_MXFP4,
            [SHEAF_TYPE_IQ3_XXS] = few_signed_IQ3_XXS,
            [SHEAF_TYPE_IQ3_S] = few_signed_IQ3_S,
        },
    .few_order = FEW_ORDER,
    .to_words = to_words,
#endif
    .rows_dot_rounded = {ROUNDED(ROUNDED_ENTRY)},
    .rounded_cols = 8,
    .to_bytes = to_bytes,
    .to_digits = to_digits,
    .attention[SHEAF__ATTENTION_FLOATS] =
        {
            .lanes = LANES,
            .rows = LANE_ROWS,
            .unit = 1,
            .pack = pack_lanes,
            .unpack = unpack_lanes,
            .pack_queries = pack_lanes,
            .scores = lanes_scores,
            .soften = lanes_soften,
            .values = lanes_values,
            .scale = lanes_scale,
        },
    .load_rows =
        {
            [SHEAF_TYPE_F32] = load_rows_f32,
            [SHEAF_TYPE_F16] = load_rows_f16,
            [SHEAF_TYPE_BF16] = load_rows_bf16,
            [SHEAF_TYPE_Q8_0] = load_rows_q8_0,
            [SHEAF_TYPE_Q4_0] = load_rows_q4_0,
            [SHEAF_TYPE_Q4_1] = load_rows_q4_1,
            [SHEAF_TYPE_Q5_0] = load_rows_q5_0,
            [SHEAF_TYPE_Q5_1] = load_rows_q5_1,
            [SHEAF_TYPE_IQ4_NL] = load_rows_iq4_nl,
        },
#if defined(KERNELS_VNNI_512)
    .attention[SHEAF__ATTENTION_Q8] =
        {
            .lanes = LANES,
            .rows = LANE_ROWS,
            .unit = SHEAF__QK,
            .pack = pack_lanes,
            .unpack = unpack_lanes,
            .pack_queries = pack_lanes_digits,
            .of = SHEAF_TYPE_Q8_0,
            .take_keys = take_keys_q8,
            .take_values = take_values_q8,
            .scores = scores_q8,
            .soften = lanes_soften,
            .values = values_q8,
            .scale = lanes_scale,
        },
    .attention_q8 = {.query = query_digits, .dots = dots_digits, .mix = mix_integers},
#endif
    .dots = dots,
    .mix = mix,
    .dots_of =
        {
            [SHEAF_TYPE_F32] = dots_f32,
            [SHEAF_TYPE_F16] = dots_f16,
            [SHEAF_TYPE_BF16] = dots_bf16,
#if !defined(KERNELS_VNNI_512)
            [SHEAF_TYPE_Q8_0] = dots_q8_0,
#endif
        },
    .mix_of =
        {
            [SHEAF_TYPE_F32] = mix_f32,
            [SHEAF_TYPE_F16] = mix_f16,
            [SHEAF_TYPE_BF16] = mix_bf16,
#if !defined(KERNELS_VNNI_512)
            [SHEAF_TYPE_Q8_0] = mix_q8_0,
#endif
        },
    .softcap_f32 = softcap_f32,
    .to_float =
        {
            [SHEAF_TYPE_F16] = f16_to_f32,
            [SHEAF_TYPE_BF16] = bf16_to_f32,
            [SHEAF_TYPE_Q8_0] = q8_0_to_f32,
            [SHEAF_TYPE_Q4_0] = exact_q4_0,
            [SHEAF_TYPE_Q4_1] = exact_q4_1,
            [SHEAF_TYPE_Q5_0] = exact_q5_0,
            [SHEAF_TYPE_Q5_1] = exact_q5_1,
            [SHEAF_TYPE_Q4_K] = exact_q4_k,
            [SHEAF_TYPE_Q5_K] = exact_q5_k,
            [SHEAF_TYPE_Q6_K] = exact_q6_k,
            ENTRIES_SIGNED(exact_signed),
        },
    .from_float =
        {
            [SHEAF_TYPE_F16] = f32_to_f16,
            [SHEAF_TYPE_BF16] = f32_to_bf16,
            [SHEAF_TYPE_Q8_0] = f32_to_q8_0,
            [SHEAF_TYPE_Q4_0] = f32_to_q4_0,
            [SHEAF_TYPE_Q4_1] = f32_to_q4_1,
            [SHEAF_TYPE_Q5_0] = f32_to_q5_0,
            [SHEAF_TYPE_Q5_1] = f32_to_q5_1,
        },
    .sum = sum,
    .sum_sq = sum_sq,
    .rotate = rotate,
    .max_f32 = max_f32,
    .finite_f32 = finite_f32,
    .scale_f32 = scale_f32,
    .exp_f32 = exp_f32,
    .silu_f32 = silu_f32,
    .gelu_f32 = gelu_f32,
    .swiglu_f32 = swiglu_f32,
    .elements = ELEMENTS,
    .state_rows = state_rows,
    .state_cols = state_cols,
    .exp_products = exp_products,
    .conv_rows = conv_few,
};
#endif
