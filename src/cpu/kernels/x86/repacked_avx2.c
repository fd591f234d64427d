/* A part of the modules of avx2.c and avxvnni.c: weights in an order that spares products instructions, and the rows
 * of those tables compiled for it (repacked_avx2.h), which compute the same bits.
 *
 * 256 weights meet a column as eight vectors of 32 integers (oct_in_file, pairs_in_file, half_6k_in_file,
 * half_in_file). In this order they are as many vectors of bytes as an integer has bits (integers_of, half_of_6), so
 * that only masks and shifts by constants take them apart; behind them lie the scales as they are loaded. */
#pragma GCC diagnostic ignored "-Wunused-function" /* of the parts not all are needed */
#pragma GCC diagnostic ignored "-Wunused-const-variable"
#define KERNELS_REPACKED
#define KERNELS_NO_TABLE
#if defined(__AVXVNNI__)
#define KERNELS_VNNI_256
#endif
#include "cpu/kernels/x86/avx2.h"

#include "cpu/kernels/x86/table.h"

INLINE void store128(void *p, __m128i x) { _mm_storeu_si128((__m128i *)p, x); }
INLINE __m256i either(__m256i a, __m256i b) { return _mm256_or_si256(a, b); }

/* Halves of 128 bits to two places. */
INLINE void store_halves(void *first, void *second, __m256i x) {
    store128(first, _mm256_castsi256_si128(x));
    store128(second, _mm256_extracti128_si256(x, 1));
}

/* ---- integers ---- */

/* The inverse of integers_of and half_of_6. */
INLINE void put_integers(int bits, const __m256i *q, char *p) {
    __m256i x[5];
    if (bits == 4) {
        UNROLL for (int i = 0; i < 4; i++) x[i] = either(q[i], bits_at(q[4 + i], -4, 0xf0));
    } else if (bits == 5) {
        x[0] = either(q[0], bits_at(q[5], -5, 0xe0));
        x[1] = either(either(q[1], bits_at(q[5], -3, 0xc0)), bits_at(q[6], -2, 0x20));
        x[2] = either(q[2], bits_at(q[6], -5, 0xe0));
        x[3] = either(either(q[3], bits_at(q[7], -3, 0xc0)), bits_at(q[6], -1, 0x20));
        x[4] = either(q[4], bits_at(q[7], -5, 0xe0));
    } else {
        UNROLL for (int i = 0; i < 3; i++) x[i] = either(q[2 * i], bits_at(q[2 * i + 1], -3, 0x38));
        x[0] = either(x[0], bits_at(q[6], -6, 0xc0));
        x[1] = either(x[1], either(bits_at(q[6], -4, 0x40), bits_at(q[7], -5, 0x80)));
        x[2] = either(x[2], bits_at(q[7], -6, 0xc0));
    }
    UNROLL_8 for (int i = 0; i < bits; i++) store256(p + 32 * i, x[i]);
}
INLINE void put_half_of_6(const __m256i *q, char *p) {
    const int shift[3] = {-6, -4, -2};
    UNROLL for (int i = 0; i < 3; i++)
        store256(p + 32 * i, either(q[i], bits_at(q[3], shift[i], 0xc0)));
}

/* The nibbles of eight vectors: those of vectors i and 4 + i in bytes of one. */
INLINE void nibbles_of(int bits, const char *w, __m256i *q, __m256i *x) {
    if (bits == 4) {
        UNROLL for (int i = 0; i < 4; i++) x[i] = load256(w + 32 * i);
        return;
    }
    integers_of(5, w, q);
    UNROLL for (int i = 0; i < 4; i++) x[i] = either(and15(q[i]), bits_at(q[4 + i], -4, 0xf0));
}

/* ---- types of 32 ---- */

INLINE bool is_xs(enum sheaf_type type) { return type == SHEAF_TYPE_IQ4_XS; }
/* Bytes of a block, of a scale, and what is before the nibbles. */
INLINE int block_of(enum sheaf_type type) { return is_xs(type) ? 16 : (int)block_size_32(type); }
INLINE int scale_of(enum sheaf_type type) { return type == SHEAF_TYPE_MXFP4 ? 1 : 2; }
INLINE int before_nibbles(enum sheaf_type type) { return is_xs(type) ? 8 : block_of(type) - 16; }

/* Fifth bits of eight vectors to those of the files: bit 4 v + j of dword b is that of byte j of lane b of vector v. */
INLINE __m256i fifths_of(const __m256i *q) {
    __m256i x = _mm256_setzero_si256();
    UNROLL_8 for (int v = 0; v < 8; v++) {
        const int to = v % 2 * 4 + v / 4 * 2 + v / 2 % 2;
        const __m256i bit = _mm256_and_si256(q[v], _mm256_set1_epi8(16));
        x = either(x, to < 4 ? _mm256_srli_epi16(bit, 4 - to) : _mm256_slli_epi16(bit, to - 4));
    }
    /* bits 1 and 4 of the number of a bit change places, and bits 0 and 3 */
    __m256i t =
        _mm256_and_si256(_mm256_xor_si256(_mm256_srli_epi32(x, 14), x), _mm256_set1_epi32(0xcccc));
    x = _mm256_xor_si256(x, _mm256_xor_si256(t, _mm256_slli_epi32(t, 14)));
    t = _mm256_and_si256(_mm256_xor_si256(_mm256_srli_epi32(x, 7), x), _mm256_set1_epi32(0xaa00aa));
    return _mm256_xor_si256(x, _mm256_xor_si256(t, _mm256_slli_epi32(t, 7)));
}

/* Dwords of eight blocks to the 16 bytes of each. */
INLINE void put_oct(const __m256i *x, size_t block, char *to) {
    __m256i y[4];
    turn_dwords(x, y);
    UNROLL for (size_t i = 0; i < 4; i++, to += block) store_halves(to, to + 4 * block, y[i]);
}

/* The numbers of 6 bits of IQ4_XS from d, scales_h and scales_l. */
INLINE void repack_xs_scales(const char *from, char *to) {
    const __m256i s = iq4_xs_scales((const void *)from);
    int32_t n[8];
    uint64_t x = 0;
    store256(n, s);
    for (int b = 0; b < 8; b++) x |= (uint64_t)(n[b] & 63) << (16 + 6 * b);
    memcpy(&x, from, 2);
    memcpy(to, &x, sizeof x);
}
INLINE int64_t any_of(__m256i x) {
    __m128i y = _mm_or_si128(_mm256_castsi256_si128(x), _mm256_extracti128_si256(x, 1));
    return _mm_cvtsi128_si64(_mm_or_si128(y, _mm_unpackhi_epi64(y, y)));
}
INLINE void restore_xs_scales(__m128i x, char *to) {
    const __m256i s = _mm256_xor_si256(_mm256_srli_epi32(xs_at_top(x), 26), _mm256_set1_epi32(32));
    const __m256i low = _mm256_and_si256(s, _mm256_set1_epi32(15)), high = _mm256_srli_epi32(s, 4);
    const int64_t l =
        any_of(_mm256_sllv_epi32(low, _mm256_setr_epi32(0, 4, 8, 12, 16, 20, 24, 28)));
    const int64_t h = any_of(_mm256_sllv_epi32(high, _mm256_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14)));
    const uint64_t d = (uint64_t)_mm_cvtsi128_si64(x) & 0xffff;
    const uint64_t all =
        d | (uint64_t)((h | h >> 32) & 0xffff) << 16 | (uint64_t)(l | l >> 32) << 32;
    memcpy(to, &all, sizeof all);
}

INLINE void repack_32(enum sheaf_type type, const char *w, char *to) {
    const int block = block_of(type), size = scale_of(type), bits = bits_of(type);
    __m256i q[8];
    iq4_in_file(type, w, q); /* or any other of 32 */
    put_integers(bits, q, to);
    to += 32 * bits;
    if (is_xs(type)) {
        repack_xs_scales(w, to);
        return;
    }
    for (int b = 0; b < 8; b++, w += block, to += size) {
        memcpy(to, w, (size_t)size);
        if (has_min(type)) memcpy(to + 16, w + 2, 2);
    }
}
INLINE void restore_32(enum sheaf_type type, const char *w, char *to) {
    const int bits = bits_of(type), n = before_nibbles(type);
    const size_t block = (size_t)block_of(type);
    const char *scales = w + 32 * bits;
    __m256i q[8], x[4];
    nibbles_of(bits, w, q, x);
    if (is_xs(type)) {
        const __m128i s = load64(scales);
        put_oct(x, 16, to + 8);
        restore_xs_scales(s, to);
        return;
    }
    _Alignas(32) char s[32];
    uint32_t fifths[8];
    const __m128i d = type == SHEAF_TYPE_MXFP4 ? load64(scales) : load128(scales);
    if (has_min(type)) {
        const __m128i m = load128(scales + 16);
        store128(s, _mm_unpacklo_epi16(d, m));
        store128(s + 16, _mm_unpackhi_epi16(d, m));
    } else {
        store128(s, d);
    }
    if (bits == 5) store256(fifths, fifths_of(q));
    put_oct(x, block, to + n);
    const size_t each = has_min(type) ? 4 : (size_t)scale_of(type);
    UNROLL_8 for (size_t b = 0; b < 8; b++, to += block) {
        memcpy(to, s + b * each, each);
        if (bits == 5) memcpy(to + each, &fifths[b], 4);
    }
}

/* ---- Q4_K, Q5_K ---- */

/* Bit 2 g + o of byte 8 i + j from that of byte j of quadword g of vector i (o = 0) or 4 + i. */
INLINE __m256i k_fifths_of(const __m256i *q) {
    const __m256i to = _mm256_setr_epi64x(6, 4, 2, 0);
    __m256i x[4];
    UNROLL for (int i = 0; i < 4; i++) {
        const __m256i both = either(bits_at(q[i], -2, 0x40), bits_at(q[4 + i], -3, 0x80));
        x[i] = _mm256_srlv_epi64(both, to);
    }
    UNROLL for (int i = 0; i < 2; i++) x[i] = either(_mm256_unpacklo_epi64(x[2 * i], x[2 * i + 1]),
                                                     _mm256_unpackhi_epi64(x[2 * i], x[2 * i + 1]));
    return either(_mm256_permute2x128_si256(x[0], x[1], 0x20),
                  _mm256_permute2x128_si256(x[0], x[1], 0x31));
}

/* d, dmin and numbers of 12 bits, and back to the bytes of sheaf__k_scale_min. */
INLINE void repack_k_scales(const char *from, char *to) {
    const struct k_bytes x = k_bytes(from + 4);
    memcpy(to, from, 4);
    for (int g = 0; g < 4; g++) {
        uint32_t pair = 0;
        for (int i = 0; i < 2; i++) {
            const int at = 16 * g + 8 * i;
            const uint32_t s = x.scales >> at & 63, m = x.mins >> at & 63;
            pair |= (s | m << 6) << 12 * i;
        }
        memcpy(to + 4 + 3 * g, &pair, 3);
    }
}
INLINE void restore_k_scales(const char *from, char *to) {
    const __m128i d = load128(from);
    const __m256i x = twelve_bits(from, 4), low6 = _mm256_set1_epi32(63);
    /* a scale in byte 0, a min in byte 1 */
    const __m256i bytes =
        either(_mm256_and_si256(x, low6),
               _mm256_and_si256(_mm256_slli_epi32(x, 2), _mm256_set1_epi32(63 << 8)));
    const __m128i first = _mm256_castsi256_si128(bytes), last = _mm256_extracti128_si256(bytes, 1);
    const __m128i tops = _mm_slli_epi32(_mm_and_si128(last, _mm_set1_epi32(0x3030)), 2);
    const __m128i low = _mm_and_si128(last, _mm_set1_epi32(0x0f0f));
    /* c in byte 2 */
    const __m128i c = _mm_and_si128(_mm_or_si128(_mm_slli_epi32(low, 16), _mm_slli_epi32(low, 12)),
                                    _mm_set1_epi32(0xff0000));
    const __m128i abc = _mm_or_si128(_mm_or_si128(first, tops), c);
    const char no = -128;
    const __m128i at = _mm_setr_epi8(no, no, no, no, 0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14);
    store128(to, _mm_blend_epi16(_mm_shuffle_epi8(abc, at), d, 0x03));
}

INLINE void repack_k(enum sheaf_type type, const char *w, char *to) {
    __m256i q[8];
    pairs_in_file(type, w, q);
    put_integers(bits_of(type), q, to);
    repack_k_scales(w, to + 32 * bits_of(type));
}
INLINE void restore_k(enum sheaf_type type, const char *w, char *to) {
    const int bits = bits_of(type);
    __m256i q[8], x[4];
    nibbles_of(bits, w, q, x);
    restore_k_scales(w + 32 * bits, to);
    if (bits == 5) store256(to + 16, k_fifths_of(q));
    to += size_256(type) - 128;
    UNROLL for (int i = 0; i < 2; i++, to += 16) {
        store_halves(to, to + 64, _mm256_unpacklo_epi64(x[2 * i], x[2 * i + 1]));
        store_halves(to + 32, to + 96, _mm256_unpackhi_epi64(x[2 * i], x[2 * i + 1]));
    }
}

/* ---- Q6_K ---- */

INLINE void repack_6k(const char *w, char *to) {
    const struct sheaf__block_q6_k *b = (const void *)w;
    UNROLL for (int n = 0; n < 2; n++) {
        __m256i q[4];
        half_6k_in_file(w, n, q);
        put_half_of_6(q, to + 96 * n);
    }
    store128(to + 192, turn_scales_6k(load128(b->scales)));
    memcpy(to + 208, &b->d, 2);
}
INLINE void restore_half_6k(const __m256i *q, char *ql, char *qh) {
    const __m256i by_block = _mm256_setr_epi64x(0, 2, 0, 2);
    __m256i l[2], h[2];
    UNROLL for (int i = 0; i < 2; i++) {
        l[i] = either(and15(q[i]), bits_at(q[2 + i], -4, 0xf0));
        h[i] = either(bits_at(q[i], 4, 3), bits_at(q[2 + i], 0, 0x30));
        h[i] = _mm256_sllv_epi64(h[i], by_block);
    }
    store256(ql, _mm256_unpacklo_epi64(l[0], l[1]));
    store256(ql + 32, _mm256_unpackhi_epi64(l[0], l[1]));
    store256(qh, either(_mm256_unpacklo_epi64(h[0], h[1]), _mm256_unpackhi_epi64(h[0], h[1])));
}
INLINE void restore_6k(const char *w, char *to) {
    const __m128i scales = turn_scales_6k(load128(w + 192));
    uint16_t d;
    __m256i q[2][4];
    memcpy(&d, w + 208, sizeof d);
    UNROLL for (int n = 0; n < 2; n++) half_of_6(w + 96 * n, q[n]);
    UNROLL for (int n = 0; n < 2; n++) restore_half_6k(q[n], to + 64 * n, to + 128 + 32 * n);
    store128(to + 192, scales);
    memcpy(to + 208, &d, sizeof d);
}

/* ---- Q2_K, Q3_K ---- */

/* Fields of `wide` bits, four in each byte or in each half of it: field v of dword t of 128 bits changes places with
 * field t of dword v. */
INLINE __m256i turn_fields(__m256i x, int wide) {
    UNROLL for (int n = 2; n > 0; n--) { /* by bit 1 of their numbers, then by bit 0 */
        const int by = n * wide;
        const char low = by == 4 ? 0x0f : by == 2 ? 0x33 : 0x55;
        const __m256i y = n == 2 ? _mm256_shuffle_epi32(x, 0x4e) : _mm256_shuffle_epi32(x, 0xb1);
        const __m256i up = _mm256_slli_epi16(y, by), down = _mm256_srli_epi16(y, by);
        const int32_t l = low * 0x01010101, h = ~l;
        /* the fields that stay: the lower ones of the lower dwords */
        const __m256i stay = n == 2 ? _mm256_setr_epi32(l, l, h, h, l, l, h, h)
                                    : _mm256_setr_epi32(l, h, l, h, l, h, l, h);
        const __m256i come =
            n == 2 ? _mm256_blend_epi32(up, down, 0xcc) : _mm256_blend_epi32(up, down, 0xaa);
        x = either(_mm256_and_si256(x, stay), _mm256_andnot_si256(stay, come));
    }
    return x;
}
/* Lanes of pieces 2 t + o to dwords 4 o + t, their fields of vector v to field t of dwords 4 o + v. */
INLINE __m256i fields_of(__m256i x, int wide) {
    const __m256i at = _mm256_setr_epi32(0, 2, 4, 6, 1, 3, 5, 7);
    return turn_fields(_mm256_permutevar8x32_epi32(x, at), wide);
}

INLINE void repack_2k(const char *w, char *to) {
    const struct sheaf__block_q2_k *b = (const void *)w;
    const __m256i back = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7);
    UNROLL for (int h = 0; h < 2; h++) store256(
        to + 32 * h, _mm256_permutevar8x32_epi32(turn_fields(load256(b->qs + 32 * h), 2), back));
    memcpy(to + 64, b->scales, sizeof b->scales);
    memcpy(to + 80, w + 80, 4);
}
INLINE void restore_2k(const char *w, char *to) {
    const __m256i x[2] = {load256(w), load256(w + 32)};
    const __m128i scales = load128(w + 64);
    store128(to, scales);
    UNROLL for (int h = 0; h < 2; h++) store256(to + 16 + 32 * h, fields_of(x[h], 2));
    memmove(to + 80, w + 80, 4);
}

INLINE void repack_3k(const char *w, char *to) {
    const struct sheaf__block_q3_k *b = (const void *)w;
    __m256i q[8];
    int8_t s[16];
    UNROLL for (int h = 0; h < 2; h++) half_in_file(SHEAF_TYPE_Q3_K, w, h, q + 4 * h);
    put_integers(3, q, to);
    store128(s, q3_k_scales(b->scales));
    for (int l = 0; l < 8; l += 2) {
        uint32_t pair = 0;
        for (int i = 0; i < 2; i++)
            pair |= ((uint32_t)(s[l + i] & 63) | (uint32_t)(s[8 + l + i] & 63) << 6) << 12 * i;
        memcpy(to + 96 + l / 2 * 3, &pair, 3);
    }
    memcpy(to + 108, &b->d, 2);
}
INLINE void restore_3k_scales(__m256i x, char *to) {
    const char no = -128;
    const __m256i bytes = _mm256_xor_si256(
        either(_mm256_and_si256(x, _mm256_set1_epi32(63)),
               _mm256_and_si256(_mm256_slli_epi32(x, 2), _mm256_set1_epi32(63 << 8))),
        _mm256_set1_epi32(0x2020));
    /* byte 0: low nibbles of both; byte 1, in either nibble: their high bits */
    const __m256i lows =
        either(_mm256_and_si256(bytes, _mm256_set1_epi32(15)),
               _mm256_and_si256(_mm256_srli_epi32(bytes, 4), _mm256_set1_epi32(0xf0)));
    const __m256i highs =
        either(_mm256_and_si256(_mm256_slli_epi32(bytes, 4), _mm256_set1_epi32(0x300)),
               _mm256_and_si256(bytes, _mm256_set1_epi32(0x3000)));
    const __m256i both = either(lows, highs);
    const __m128i first = _mm256_castsi256_si128(both), last = _mm256_extracti128_si256(both, 1);
    const __m128i tops =
        _mm_or_si128(first, _mm_slli_epi32(_mm_and_si128(last, _mm_set1_epi32(0x3300)), 2));
    const __m128i a = _mm_shuffle_epi8(
        tops, _mm_setr_epi8(0, 4, 8, 12, no, no, no, no, 1, 5, 9, 13, no, no, no, no));
    const __m128i b = _mm_shuffle_epi8(
        last, _mm_setr_epi8(no, no, no, no, 0, 4, 8, 12, no, no, no, no, no, no, no, no));
    char all[16];
    store128(all, _mm_or_si128(a, b));
    memcpy(to, all, SHEAF__K_SCALES);
}
INLINE void restore_3k(const char *w, char *to) {
    const __m256i scales = twelve_bits(w + 94, 2);
    __m256i q[8], two[2], high = _mm256_setzero_si256();
    uint16_t d;
    memcpy(&d, w + 108, sizeof d);
    integers_of(3, w, q);
    UNROLL for (int h = 0; h < 2; h++) {
        two[h] = bits_at(q[4 * h], 0, 3);
        UNROLL for (int v = 1; v < 4; v++) two[h] =
            either(two[h], bits_at(q[4 * h + v], -2 * v, 3 << 2 * v));
        UNROLL for (int v = 0; v < 4; v++) high =
            either(high, bits_at(q[4 * h + v], 2 - v - 4 * h, 1 << (v + 4 * h)));
    }
    store256(to, fields_of(high, 1));
    UNROLL for (int h = 0; h < 2; h++) store256(to + 32 + 32 * h, fields_of(two[h], 2));
    restore_3k_scales(scales, to + 96);
    memcpy(to + 108, &d, sizeof d);
}

/* ---- rows of panels ---- */

INLINE __m256i low_halves_of(__m256i a, __m256i b) { return _mm256_permute2x128_si256(a, b, 0x20); }
INLINE __m256i high_halves_of(__m256i a, __m256i b) {
    return _mm256_permute2x128_si256(a, b, 0x31);
}

/* The integers of eight blocks, each in its order. */
INLINE void blocks_of_32(enum sheaf_type type, const char *w, __m256i *block) {
    __m256i q[8], first[4], second[4];
    oct_repacked(type, w, q);
    turn_dwords(q, first);
    turn_dwords(q + 4, second);
    UNROLL for (int b = 0; b < 4; b++) {
        block[b] = low_halves_of(first[b], second[b]);
        block[4 + b] = high_halves_of(first[b], second[b]);
    }
}
INLINE void blocks_of_k(enum sheaf_type type, const char *w, __m256i *block) {
    __m256i q[8];
    pairs_repacked(type, w, q);
    UNROLL for (int o = 0; o < 2; o++) {
        const __m256i *x = q + 4 * o;
        const __m256i even[2] = {_mm256_unpacklo_epi64(x[0], x[1]),
                                 _mm256_unpacklo_epi64(x[2], x[3])};
        const __m256i odd[2] = {_mm256_unpackhi_epi64(x[0], x[1]),
                                _mm256_unpackhi_epi64(x[2], x[3])};
        block[o] = low_halves_of(even[0], even[1]);
        block[2 + o] = low_halves_of(odd[0], odd[1]);
        block[4 + o] = high_halves_of(even[0], even[1]);
        block[6 + o] = high_halves_of(odd[0], odd[1]);
    }
}
INLINE void blocks_of_6k(const char *w, __m256i *block) {
    UNROLL for (int n = 0; n < 2; n++) {
        __m256i q[4];
        half_6k_repacked(w, n, q);
        UNROLL for (int i = 0; i < 2; i++) {
            block[4 * n + 2 * i] = _mm256_unpacklo_epi64(q[2 * i], q[2 * i + 1]);
            block[4 * n + 2 * i + 1] = _mm256_unpackhi_epi64(q[2 * i], q[2 * i + 1]);
        }
    }
}
INLINE void blocks_of_halves(enum sheaf_type type, const char *w, __m256i *block) {
    UNROLL for (int h = 0; h < 2; h++) {
        __m256i q[4], pieces[4];
        half_repacked(type, w, h, q);
        turn_dwords(q, pieces);
        UNROLL for (int i = 0; i < 2; i++) {
            block[4 * h + i] = low_halves_of(pieces[2 * i], pieces[2 * i + 1]);
            block[4 * h + 2 + i] = high_halves_of(pieces[2 * i], pieces[2 * i + 1]);
        }
    }
}

/* The offset of integers as they lie, of types that are not levels. */
INLINE int offset_of(enum sheaf_type type) {
    return type == SHEAF_TYPE_Q4_0   ? 8
           : type == SHEAF_TYPE_Q5_0 ? 16
           : type == SHEAF_TYPE_Q6_K ? 32
           : type == SHEAF_TYPE_Q3_K ? 4
                                     : 0;
}
/* Eight vectors, as panel_block takes them. */
INLINE void signed_blocks(enum sheaf_type type, const char *w, __m256i *block) {
    if (type == SHEAF_TYPE_Q6_K)
        blocks_of_6k(w, block);
    else if (is_k(type))
        blocks_of_k(type, w, block);
    else if (BY_HALVES(type))
        blocks_of_halves(type, w, block);
    else
        blocks_of_32(type, w, block);
    UNROLL_8 for (int b = 0; b < 8; b++) {
        if (BY_IQ4(type) || type == SHEAF_TYPE_MXFP4)
            block[b] = levels_of(type, block[b]);
        else
            block[b] = _mm256_sub_epi8(block[b], _mm256_set1_epi8((char)offset_of(type)));
    }
}
/* The scales of each 16, and what is added to each. */
INLINE struct scales unit_scales(enum sheaf_type type, const char *w, struct scales *mins) {
    __m256 d, m;
    if (BY_HALVES(type)) {
        if (type == SHEAF_TYPE_Q2_K) {
            const struct scales off = mins_16_repacked(w);
            mins->lo = _mm256_sub_ps(_mm256_setzero_ps(), off.lo);
            mins->hi = _mm256_sub_ps(_mm256_setzero_ps(), off.hi);
        }
        return scales_16_repacked(type, w);
    }
    if (type == SHEAF_TYPE_Q6_K)
        return scaled(turn_scales_6k(load128(w + 192)),
                      f16(((const struct sheaf__block_q6_k *)(const void *)w)->d));
    if (BY_IQ4(type)) return each_twice(iq4_scales_repacked(type, w));
    if (is_k(type)) {
        k_scales_repacked(type, w, &d, &m);
        m = _mm256_xor_ps(m, _mm256_set1_ps(-0.0f));
    } else {
        scales_8_repacked(type, w, &d, &m);
    }
    *mins = each_twice(m);
    return each_twice(d);
}

INLINE void row_repacked(enum sheaf_type type, const char *w, struct panel_row *to, int64_t n) {
    const bool has_mins = has_min(type) || is_k(type) || type == SHEAF_TYPE_Q2_K;
    for (; n > 0; n -= SHEAF__QK_K, w += size_256(type), to += 8) {
        float d[16], m[16];
        __m256i block[8];
        struct scales mins = {_mm256_setzero_ps(), _mm256_setzero_ps()};
        const struct scales s = unit_scales(type, w, &mins);
        _mm256_storeu_ps(d, s.lo);
        _mm256_storeu_ps(d + 8, s.hi);
        _mm256_storeu_ps(m, mins.lo);
        _mm256_storeu_ps(m + 8, mins.hi);
        signed_blocks(type, w, block);
        UNROLL_8 for (int b = 0; b < 8; b++)
            panel_block(type, block[b], d + 2 * b, has_mins ? m + 2 * b : NULL, to, b);
    }
}

/* ---- the table ---- */

INLINE void repack_unit(enum sheaf_type type, const char *w, char *to) {
    if (type == SHEAF_TYPE_Q2_K)
        repack_2k(w, to);
    else if (type == SHEAF_TYPE_Q3_K)
        repack_3k(w, to);
    else if (type == SHEAF_TYPE_Q6_K)
        repack_6k(w, to);
    else if (is_k(type))
        repack_k(type, w, to);
    else
        repack_32(type, w, to);
}
INLINE void restore_unit(enum sheaf_type type, const char *w, char *to) {
    if (type == SHEAF_TYPE_Q2_K)
        restore_2k(w, to);
    else if (type == SHEAF_TYPE_Q3_K)
        restore_3k(w, to);
    else if (type == SHEAF_TYPE_Q6_K)
        restore_6k(w, to);
    else if (is_k(type))
        restore_k(type, w, to);
    else
        restore_32(type, w, to);
}

#define REPACKED(X)                                                                                \
    X(Q4_0, rows_digits_q4_0)                                                                      \
    X(Q4_1, rows_digits_q4_1)                                                                      \
    X(Q5_0, rows_digits_q5_0)                                                                      \
    X(Q5_1, rows_digits_q5_1)                                                                      \
    X(Q2_K, rows_signed_Q2_K)                                                                      \
    X(Q3_K, rows_signed_Q3_K)                                                                      \
    X(Q4_K, rows_digits_q4_k)                                                                      \
    X(Q5_K, rows_digits_q5_k)                                                                      \
    X(Q6_K, rows_digits_q6_k)                                                                      \
    X(IQ4_NL, rows_signed_IQ4_NL)                                                                  \
    X(IQ4_XS, rows_signed_IQ4_XS)                                                                  \
    X(MXFP4, rows_signed_MXFP4)

#define MOVES(TYPE, DIGITS)                                                                        \
    static void repack_##TYPE(const void *w, void *to, int64_t n) {                                \
        const size_t size = size_256(SHEAF_TYPE_##TYPE);                                           \
        const char *from = w;                                                                      \
        _Alignas(32) char unit[MOST_256];                                                          \
        char *p = to;                                                                              \
        for (; n > 0; n -= SHEAF__QK_K, from += size, p += size) {                                 \
            memcpy(unit, from, size);                                                              \
            repack_unit(SHEAF_TYPE_##TYPE, unit, p);                                               \
        }                                                                                          \
    }                                                                                              \
    static void restore_##TYPE(const void *w, void *to, int64_t n) {                               \
        const size_t size = size_256(SHEAF_TYPE_##TYPE);                                           \
        const char *from = w;                                                                      \
        char *p = to;                                                                              \
        for (; n > 0; n -= SHEAF__QK_K, from += size, p += size)                                   \
            restore_unit(SHEAF_TYPE_##TYPE, from, p);                                              \
    }                                                                                              \
    static void bytes_##TYPE(const void *w, void *to, int64_t n) {                                 \
        row_repacked(SHEAF_TYPE_##TYPE, w, to, n);                                                 \
    }                                                                                              \
    static void words_##TYPE(const void *w, void *to, int64_t n) {                                 \
        row_repacked(SHEAF_TYPE_##TYPE, w, to, n);                                                 \
        widen_row(SHEAF_TYPE_##TYPE, to, n);                                                       \
    }
REPACKED(MOVES)

void sheaf__cpu_kernels_use_repacked(struct sheaf__cpu_kernels *table) {
#define USE(TYPE, DIGITS)                                                                          \
    table->repacked[SHEAF_TYPE_##TYPE] = (struct sheaf__cpu_repacked){                             \
        .repack = repack_##TYPE,                                                                   \
        .restore = restore_##TYPE,                                                                 \
        .rows_dot_digits = DIGITS,                                                                 \
        .rows_dot_rounded = rounded_##TYPE,                                                        \
        .unpack = {[SHEAF__PANELS_16] = words_##TYPE, [SHEAF__PANELS_8] = bytes_##TYPE},           \
    };
    REPACKED(USE)
}
