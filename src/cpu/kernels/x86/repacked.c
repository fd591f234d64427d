/* A part of the module of avx512bf16.c: weights in the order in which the vectors of eights.h take them, and the rows of
 * the table compiled for that order, which compute the same bits.
 *
 * 256 weights are two vectors of 64 nibbles: vectors 0 and 1 of eights.h in the low and high nibbles of the first, 2 and
 * 3 in those of the second. Weights of 5 bits are two vectors and 32 bytes (load_fives). Types of 32: these, the
 * scales of the eight blocks, their mins. Blocks of 256: weights where the block has nibbles and fifth bits, scales and
 * mins of 6 bits in dwords (scales_of_rows), the rest as it is.
 *
 * On the way, fifth bits are 32 bytes, of which byte i has those of bytes i and i + 32, bit 4 - 4 h + v being that of
 * byte i + 32 h of vector v. */
#pragma GCC diagnostic ignored "-Wunused-function" /* of the parts not all are needed */
#pragma GCC diagnostic ignored "-Wunused-const-variable"
#define KERNELS_VBMI
#define KERNELS_REPACKED
#define KERNELS_NO_TABLE
#include "cpu/kernels/x86/avx512.h"

#include "cpu/kernels/x86/table.h"

enum { MOST_BYTES = 192, VECTORS = MOST_BYTES / 64, FIFTHS = 32 };

/* Where the nibbles of each byte come from: of byte low[i] and high[i], the one of the same place or the other. */
struct nibbles {
    uint8_t low[MOST_BYTES], high[MOST_BYTES];
    uint64_t low_is_other[VECTORS], high_is_other[VECTORS];
};
/* From the order of files to that of vectors, and back. */
struct orders {
    struct nibbles to, from;
    int fifths;          /* where the fifth bits lie among vectors; 0: none */
    int bit[8 * FIFTHS]; /* where bit i of these goes */
};
static struct orders orders[SHEAF_TYPE_COUNT];

/* ---- orders ---- */

static void set_nibble(struct nibbles *n, int to, int from) {
    const int at = to / 2;
    const uint64_t bit = (uint64_t)((to ^ from) & 1) << (at % 64);
    (to % 2 ? n->high : n->low)[at] = (uint8_t)(from / 2);
    uint64_t *other = (to % 2 ? n->high_is_other : n->low_is_other) + at / 64;
    *other = (*other & ~((uint64_t)1 << (at % 64))) | bit;
}
/* Nibble `file` of the file's order is number `vector` of the vectors'. */
static void pair_nibbles(struct orders *o, int file, int vector) {
    set_nibble(&o->to, vector, file);
    set_nibble(&o->from, file, vector);
}
static void pair_bytes(struct orders *o, int file, int vector, int n) {
    for (int i = 0; i < 2 * n; i++) pair_nibbles(o, 2 * file + i, 2 * vector + i);
}

/* Of blocks of 32 that begin with 2 bytes or 1, which come last; then fifth bits, and 16 bytes of nibbles. */
static void order_of_32(struct orders *o, enum sheaf_type type) {
    const int block = (int)block_size_32(type), scale = type == SHEAF_TYPE_MXFP4 ? 1 : 2;
    const bool five = type == SHEAF_TYPE_Q5_0 || type == SHEAF_TYPE_Q5_1;
    const int scales = 128 + (five ? FIFTHS : 0), mins = scales + 8 * scale;
    for (int b = 0; b < 8; b++) {
        pair_bytes(o, block * b, scales + scale * b, scale);
        if (has_min(type)) pair_bytes(o, block * b + scale, mins + scale * b, scale);
        if (five) pair_bytes(o, block * (b + 1) - 16 - 4, 128 + 4 * b, 4);
    }
}

/* Place of the fifth bit of an element at `place` among vectors. */
static int fifth_of(int place) {
    return place % FIFTHS * 8 + 4 - place % 64 / FIFTHS * 4 + place / 64;
}

static void make_order(enum sheaf_type type) {
    struct orders *o = &orders[type];
    const bool k = is_k(type), xs = type == SHEAF_TYPE_IQ4_XS,
               five = type == SHEAF_TYPE_Q5_0 || type == SHEAF_TYPE_Q5_1;
    const int nibbles = k || xs ? (int)size_256(type) - 128 : 0;
    pair_bytes(o, 0, 0, MOST_BYTES);
    if (!k && !xs) order_of_32(o, type);
    if (five) o->fifths = 128;
    if (type == SHEAF_TYPE_Q5_K) o->fifths = (int)offsetof(struct sheaf__block_q5_k, qh);
    for (int i = 0; i < 256; i++) {
        const int b = i / 32, e = i % 32;
        const int place = sheaf__digits_place(k ? SHEAF__DIGITS_K : SHEAF__DIGITS_EIGHTS, i);
        const int vector = 2 * (nibbles + place / 128 * 64 + place % 64) + place / 64 % 2;
        const int block = xs ? 8 + 16 * b : (int)block_size_32(type) * (b + 1) - 16;
        const int file = k ? 2 * (nibbles + b / 2 * 32 + e) + b % 2 : 2 * (block + e % 16) + e / 16;
        pair_nibbles(o, file, vector);
        o->bit[k ? 8 * e + b : 32 * b + e] = fifth_of(place);
    }
}

/* ---- 256 weights from one order to the other ---- */

/* Nibbles of each byte of vector v: byte at[i] of 192, the other half of it where `other` says so. */
INLINE __m512i bytes_at(const uint8_t *at, const __m512i *x) {
    const __m512i i = load512(at);
    const __m512i y = _mm512_permutex2var_epi8(x[0], i, x[1]);
    return _mm512_mask_permutexvar_epi8(y, _mm512_movepi8_mask(i), i, x[2]);
}
INLINE void move_nibbles(const struct nibbles *n, int size, const char *from, char *to) {
    const __mmask64 last = ((__mmask64)-1) >> (MOST_BYTES - size);
    const __m512i x[VECTORS] = {load512(from), load512(from + 64),
                                _mm512_maskz_loadu_epi8(last, from + 128)};
    const __m512i low = _mm512_set1_epi8(15);
    UNROLL for (int v = 0; v < VECTORS; v++) {
        __m512i a = bytes_at(n->low + 64 * v, x), b = bytes_at(n->high + 64 * v, x);
        a = _mm512_mask_blend_epi8(n->low_is_other[v], a, _mm512_srli_epi16(a, 4));
        b = _mm512_mask_blend_epi8(n->high_is_other[v], b, _mm512_slli_epi16(b, 4));
        a = _mm512_ternarylogic_epi64(low, a, b,
                                      0xca); /* bits of a where low has them, else of b */
        _mm512_mask_storeu_epi8(to + 64 * v, v < VECTORS - 1 ? (__mmask64)-1 : last, a);
    }
}

INLINE uint64_t swap_nibbles(uint64_t x) {
    const uint64_t low = 0x0f0f0f0f0f0f0f0fu;
    return (x & low) << 4 | (x >> 4 & low);
}
/* Fifth bits of blocks of 256: bit b of byte 8 j + i goes to bit 4 - 4 (b / 4) + j of byte 8 (b % 4) + i, or back. */
INLINE void turn_fifths(bool back, char *p) {
    uint64_t from[4], to[4] = {0};
    memcpy(from, p, FIFTHS);
    UNROLL for (int j = 0; j < 4 && back; j++) from[j] = swap_nibbles(from[j]);
    UNROLL for (int b = 0; b < 4; b++) {
        UNROLL for (int j = 0; j < 4; j++) to[b] |= (from[j] >> b & 0x1111111111111111u) << j;
        if (!back) to[b] = swap_nibbles(to[b]);
    }
    memcpy(p, to, FIFTHS);
}
static void move_fifths(const struct orders *o, bool back, char *p) {
    uint8_t from[FIFTHS], to[FIFTHS] = {0};
    memcpy(from, p, FIFTHS);
    for (int i = 0; i < 8 * FIFTHS; i++) {
        const int a = back ? o->bit[i] : i, b = back ? i : o->bit[i];
        to[b / 8] = (uint8_t)(to[b / 8] | (from[a / 8] >> a % 8 & 1) << b % 8);
    }
    memcpy(p, to, FIFTHS);
}
/* Where nibbles of eights.h lie, and fifth bits. */
INLINE char *nibbles_in(enum sheaf_type type, char *unit) {
    return is_five(type) ? unit : unit + size_256(type) - SHEAF__QK_K / 2;
}

/* Nibbles and fifth bits become what load_fives takes. */
INLINE void join_fives(char *nibbles, char *fifths) {
    const __m512i by_half = _mm512_setr_epi64(0, 0, 0, 0, 4, 4, 4, 4);
    const __m512i h = _mm512_sllv_epi64(_mm512_broadcast_i64x4(load256(fifths)), by_half);
    const __m512i x[2] = {load512(nibbles), load512(nibbles + 64)};
    __m512i q[4];
    low_and_high(x, q);
    UNROLL for (int v = 0; v < 4; v++) q[v] = _mm512_ternarylogic_epi64(
        q[v], words_right(h, v), _mm512_set1_epi8(16), 0xf8); /* q | h & 16 */
    UNROLL for (int i = 0; i < 2; i++) {
        const __m512i upper =
            _mm512_and_si512(_mm512_slli_epi16(q[2 + i], 3), _mm512_set1_epi8(-32));
        _mm512_storeu_si512(nibbles + 64 * i, _mm512_or_si512(q[i], upper));
    }
    const __m512i three = _mm512_set1_epi8(3);
    const __m512i rest = _mm512_or_si512(_mm512_and_si512(q[2], three),
                                         _mm512_slli_epi16(_mm512_and_si512(q[3], three), 2));
    const __m256i second = _mm256_slli_epi16(_mm512_extracti64x4_epi64(rest, 1), 4);
    _mm256_storeu_si256((__m256i *)fifths, _mm256_or_si256(_mm512_castsi512_si256(rest), second));
}
/* And back. */
INLINE void part_fives(char *nibbles, char *fifths) {
    const __m512i one = _mm512_set1_epi8(1);
    __m512i q[4], h = _mm512_setzero_si512();
    load_fives(nibbles, fifths, q);
    UNROLL for (int v = 0; v < 4; v++) h =
        _mm512_or_si512(h, words_left(_mm512_and_si512(_mm512_srli_epi16(q[v], 4), one), v));
    UNROLL for (int i = 0; i < 2; i++) _mm512_storeu_si512(
        nibbles + 64 * i,
        _mm512_or_si512(and15_512(q[2 * i]), _mm512_slli_epi16(and15_512(q[2 * i + 1]), 4)));
    const __m256i first = _mm256_slli_epi16(_mm512_castsi512_si256(h), 4);
    _mm256_storeu_si256((__m256i *)fifths, _mm256_or_si256(first, _mm512_extracti64x4_epi64(h, 1)));
}

INLINE void fifths(enum sheaf_type type, bool back, char *unit) {
    const struct orders *o = &orders[type];
    char *at = unit + o->fifths;
    if (!o->fifths) return;
    if (back) part_fives(nibbles_in(type, unit), at);
    if (type == SHEAF_TYPE_Q5_K)
        turn_fifths(back, at);
    else
        move_fifths(o, back, at);
    if (!back) join_fives(nibbles_in(type, unit), at);
}

/* ---- scales of 6 bits ---- */

/* Four of them, `step` apart, above a byte. */
INLINE uint32_t four_in_dword(const uint8_t *s, int step, uint8_t byte) {
    uint32_t x = byte;
    UNROLL for (int g = 0; g < 4; g++) x |= (uint32_t)s[step * g] << (8 + 6 * g);
    return x;
}
INLINE uint8_t four_of_dword(uint32_t x, int step, uint8_t *s) {
    UNROLL for (int g = 0; g < 4; g++) s[step * g] = x >> (8 + 6 * g) & 63;
    return (uint8_t)x;
}

/* The first 16 bytes of K: d and dmin, then 12 bytes of scales and mins (k_bytes). */
INLINE void move_k(bool back, char *unit) {
    const uint32_t low6 = 0x3f3f3f3f, low4 = 0x0f0f0f0f;
    uint8_t d[4];
    uint32_t x[4];
    struct k_bytes of;
    uint8_t *s = (uint8_t *)&of.scales, *m = (uint8_t *)&of.mins;
    if (back) {
        memcpy(x, unit, sizeof x);
        UNROLL for (int j = 0; j < 4; j++) d[j] = four_of_dword(x[j], 2, (j % 2 ? m : s) + j / 2);
        const uint32_t s0 = (uint32_t)of.scales, s1 = (uint32_t)(of.scales >> 32);
        const uint32_t m0 = (uint32_t)of.mins, m1 = (uint32_t)(of.mins >> 32);
        memcpy(x, d, sizeof d);
        x[1] = s0 | (s1 & (low6 - low4)) << 2;
        x[2] = m0 | (m1 & (low6 - low4)) << 2;
        x[3] = (s1 & low4) | (m1 & low4) << 4;
    } else {
        of = k_bytes(unit + sizeof d);
        memcpy(d, unit, sizeof d);
        UNROLL for (int j = 0; j < 4; j++) x[j] = four_in_dword((j % 2 ? m : s) + j / 2, 2, d[j]);
    }
    memcpy(unit, x, sizeof x);
}
/* The first 8 bytes of IQ4_XS: d, then the upper bits of scales, then their nibbles; as they are they are 32 more. */
INLINE void move_xs(bool back, char *unit) {
    struct sheaf__block_iq4_xs *b = (void *)unit;
    uint8_t d[2], s[8];
    uint32_t x[2], low = 0, high = 0;
    if (back) {
        memcpy(x, unit, sizeof x);
        UNROLL for (int j = 0; j < 2; j++) d[j] = four_of_dword(x[j], 1, s + 4 * j);
        UNROLL_8 for (int i = 0; i < 8; i++) {
            low |= (s[i] & 15u) << 4 * i;
            high |= (s[i] ^ 32u) >> 4 << 2 * i;
        }
        x[0] = (uint32_t)d[0] | (uint32_t)d[1] << 8 | high << 16;
        x[1] = low;
    } else {
        memcpy(d, &b->d, sizeof d);
        memcpy(&low, b->scales_l, sizeof low);
        high = b->scales_h;
        UNROLL_8 for (int i = 0; i < 8; i++) s[i] =
            (uint8_t)((low >> 4 * i & 15) | ((high >> 2 * i & 3) ^ 2) << 4);
        UNROLL for (int j = 0; j < 2; j++) x[j] = four_in_dword(s + 4 * j, 1, d[j]);
    }
    memcpy(unit, x, sizeof x);
}
/* All but nibbles. */
INLINE void move_rest(enum sheaf_type type, bool back, char *unit) {
    fifths(type, back, unit);
    if (is_k(type)) move_k(back, unit);
    if (type == SHEAF_TYPE_IQ4_XS) move_xs(back, unit);
}

/* ---- Q2_K and Q3_K ---- */

#define SHIFT_2(B) (2 * FIELD(B))
/* Two bits of 64 bytes: vector v of pieces.h becomes bits 2 v. */
INLINE void repack_twos(const uint8_t *qs, uint8_t *to) {
    __m512i q[4], x = _mm512_setzero_si512();
    pieces_of_2(qs, q);
    UNROLL for (int v = 0; v < 4; v++) x =
        _mm512_or_si512(x, words_left(_mm512_srlv_epi32(q[v], PIECES(SHIFT_2)), 2 * v));
    _mm512_storeu_si512(to, x);
}
/* Dword 8 h + 4 o + v of the file has piece 8 h + 2 s + o of vector v in its bits 2 s. */
#define LANE_OF(D, S) ((S)*2 % 4 * 4 + (D) / 4 % 2 * 4 + (S) / 2 + (D) / 8 * 2)
#define LANES_OF(S)                                                                                \
    _mm512_setr_epi32(LANE_OF(0, S), LANE_OF(1, S), LANE_OF(2, S), LANE_OF(3, S), LANE_OF(4, S),   \
                      LANE_OF(5, S), LANE_OF(6, S), LANE_OF(7, S), LANE_OF(8, S), LANE_OF(9, S),   \
                      LANE_OF(10, S), LANE_OF(11, S), LANE_OF(12, S), LANE_OF(13, S),              \
                      LANE_OF(14, S), LANE_OF(15, S))
INLINE void restore_twos(const uint8_t *from, uint8_t *qs) {
    const __m512i x = load512(from), three = _mm512_set1_epi8(3);
    __m512i all = _mm512_setzero_si512();
    UNROLL for (int s = 0; s < 4; s++) { /* of the lane of each dword, the two bits of its vector */
        const __m512i lanes = _mm512_permutexvar_epi32(s == 0   ? LANES_OF(0)
                                                       : s == 1 ? LANES_OF(1)
                                                       : s == 2 ? LANES_OF(2)
                                                                : LANES_OF(3),
                                                       x);
        const __m512i bits = _mm512_and_si512(
            _mm512_srlv_epi32(lanes, _mm512_broadcast_i32x4(_mm_setr_epi32(0, 2, 4, 6))), three);
        all = _mm512_or_si512(all, words_left(bits, 2 * s));
    }
    _mm512_storeu_si512(qs, all);
}
/* Third bits: bit 2 c + h of byte 16 o + 4 v + i goes to bit 4 - 4 h + v of byte 16 o + 4 c + i, or back. */
INLINE void move_thirds(bool back, uint8_t *p) {
    uint32_t bytes[2][4];
    memcpy(bytes, p, FIFTHS);
    UNROLL for (int o = 0; o < 2; o++) {
        uint32_t to[4] = {0};
        UNROLL for (int v = 0; v < 4; v++) {
            UNROLL for (int c = 0; c < 4; c++) {
                UNROLL for (int h = 0; h < 2; h++) {
                    const int file = 2 * c + h, vector = 4 - 4 * h + v;
                    const uint32_t bit = bytes[o][back ? c : v] >> (back ? vector : file);
                    to[back ? v : c] |= (bit & 0x01010101u) << (back ? file : vector);
                }
            }
        }
        memcpy(p + 16 * o, to, sizeof to);
    }
}
INLINE void move_pieces(enum sheaf_type type, bool back, const char *w, char *out) {
    if (out != w) memcpy(out, w, size_256(type));
    if (type == SHEAF_TYPE_Q2_K) {
        struct sheaf__block_q2_k *b = (void *)out;
        back ? restore_twos(b->qs, b->qs) : repack_twos(b->qs, b->qs);
    } else {
        struct sheaf__block_q3_k *b = (void *)out;
        back ? restore_twos(b->qs, b->qs) : repack_twos(b->qs, b->qs);
        move_thirds(back, b->hmask);
    }
}

INLINE void repack_units(enum sheaf_type type, const char *w, char *to, int64_t n) {
    const int size = (int)size_256(type);
    for (; n > 0; n -= SHEAF__QK_K, w += size, to += size) {
        if (by_pieces(type)) {
            move_pieces(type, false, w, to);
            continue;
        }
        move_nibbles(&orders[type].to, size, w, to);
        move_rest(type, false, to);
    }
}
INLINE void restore_units(enum sheaf_type type, const char *w, char *to, int64_t n) {
    const int size = (int)size_256(type);
    char unit[MOST_BYTES];
    for (; n > 0; n -= SHEAF__QK_K, w += size, to += size) {
        if (by_pieces(type)) {
            move_pieces(type, true, w, to);
            continue;
        }
        memcpy(unit, w, (size_t)size);
        move_rest(type, true, unit);
        move_nibbles(&orders[type].from, size, unit, to);
    }
}

/* ---- rows of panels ---- */

/* Eight bytes of each of 8 blocks lie in a vector: number of block b. */
INLINE int qword_of(enum sheaf_type type, int b) {
    return sheaf__digits_block_lane(is_k(type) ? SHEAF__DIGITS_K : SHEAF__DIGITS_EIGHTS, b) / 2;
}
/* Blocks 2 p and 2 p + 1: their bytes, and their scales and mins as store_pair takes them. */
INLINE __m512i bytes_of_pair(enum sheaf_type type, const __m512i *q, int p) {
    const int a = qword_of(type, 2 * p), b = qword_of(type, 2 * p + 1);
    const __m512i both = _mm512_setr_epi64(a, 8 + a, a, 8 + a, b, 8 + b, b, 8 + b);
    const __m512i second = is_k(type) ? q[1] : q[2], third = is_k(type) ? q[2] : q[1];
    return _mm512_mask_blend_epi64(0xcc, _mm512_permutex2var_epi64(q[0], both, second),
                                   _mm512_permutex2var_epi64(third, both, q[3]));
}
INLINE __m512 scales_of_pair(enum sheaf_type type, __m512 d, __m512 m, int p) {
    const int a = 2 * qword_of(type, 2 * p), b = 2 * qword_of(type, 2 * p + 1);
    const __m512i at = _mm512_setr_epi32(a, a, a, a, 16 + a, 16 + a, 16 + a, 16 + a, /**/
                                         b, b, b, b, 16 + b, 16 + b, 16 + b, 16 + b);
    return _mm512_permutex2var_ps(d, at, m);
}

INLINE void blocks_repacked(enum sheaf_type type, const char *w, struct panel_row *to, int64_t n) {
    const int more = panel_offset(type) - offset_eight(type);
    const bool mins = eights_have_mins(type);
    for (; n > 0; n -= SHEAF__QK_K, w += size_256(type), to += 2) {
        struct eight x;
        unpack_eight(type, w, 8, &x);
        const __m512 d = scale_eight(type, &x, v_set1(1.0f));
        const __m512 m = !mins ? v_set1(0.0f) : is_k(type) ? v_sub(v_set1(0.0f), x.m) : x.m;
        UNROLL for (int p = 0; p < 4; p++) {
            __m512i q = bytes_of_pair(type, x.q, p);
            if (more) q = _mm512_add_epi8(q, _mm512_set1_epi8((char)more));
            store_pair(q, scales_of_pair(type, d, m, p), panel_flags(type, mins), to + p / 2,
                       p % 2);
        }
    }
}

/* ---- the table ---- */

/* The types of pieces.h and of eights.h. */
#define REPACKED_PIECES(X)                                                                         \
    X(Q2_K, rows_signed_Q2_K, NULL)                                                                \
    X(Q3_K, rows_signed_Q3_K, NULL)
#define REPACKED_EIGHTS(X)                                                                         \
    X(Q4_0, rows_digits_q4_0, few_q4_0)                                                            \
    X(Q4_1, rows_digits_q4_1, few_q4_1)                                                            \
    X(Q5_0, rows_digits_q5_0, few_q5_0)                                                            \
    X(Q5_1, rows_digits_q5_1, few_q5_1)                                                            \
    X(Q4_K, rows_digits_q4_k, few_q4_k)                                                            \
    X(Q5_K, rows_digits_q5_k, few_q5_k)                                                            \
    X(IQ4_NL, rows_signed_IQ4_NL, few_signed_IQ4_NL)                                               \
    X(IQ4_XS, rows_signed_IQ4_XS, few_signed_IQ4_XS)                                               \
    X(MXFP4, rows_signed_MXFP4, few_signed_MXFP4)

#define MOVES(TYPE, DIGITS, FEW)                                                                   \
    static void repack_##TYPE(const void *w, void *to, int64_t n) {                                \
        repack_units(SHEAF_TYPE_##TYPE, w, to, n);                                                 \
    }                                                                                              \
    static void restore_##TYPE(const void *w, void *to, int64_t n) {                               \
        restore_units(SHEAF_TYPE_##TYPE, w, to, n);                                                \
    }
#define ROWS_OF_PANELS(TYPE, DIGITS, FEW)                                                          \
    static void panels_##TYPE(const void *w, void *to, int64_t n) {                                \
        blocks_repacked(SHEAF_TYPE_##TYPE, w, to, n);                                              \
    }
REPACKED_PIECES(MOVES)
REPACKED_EIGHTS(MOVES)
REPACKED_EIGHTS(ROWS_OF_PANELS)

void sheaf__cpu_kernels_use_repacked(struct sheaf__cpu_kernels *table) {
#define USE(TYPE, DIGITS, FEW)                                                                     \
    table->repacked[SHEAF_TYPE_##TYPE] = (struct sheaf__cpu_repacked){                             \
        .repack = repack_##TYPE,                                                                   \
        .restore = restore_##TYPE,                                                                 \
        .rows_dot_digits = DIGITS,                                                                 \
        .rows_dot_few = FEW,                                                                       \
        .rows_dot_rounded = rounded_##TYPE,                                                        \
    };
#define USE_EIGHTS(TYPE, DIGITS, FEW)                                                              \
    USE(TYPE, DIGITS, FEW)                                                                         \
    make_order(SHEAF_TYPE_##TYPE);                                                                 \
    table->repacked[SHEAF_TYPE_##TYPE].unpack[SHEAF__PANELS_16] = panels_##TYPE;                   \
    table->repacked[SHEAF_TYPE_##TYPE].unpack[SHEAF__PANELS_8] = panels_##TYPE;
    REPACKED_PIECES(USE)
    REPACKED_EIGHTS(USE_EIGHTS)
}
