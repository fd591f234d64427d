/* A part of vbmi.c: rows of quantized weights as integers that are BF16, with their scales apart, which tiles of AMX
 * multiply (panels_scaled_amx.h). A new type comes by way of bytes (SCALED_BYTES), until it gets a function of its own.
 */

INLINE void store_integers(struct scaled_row *row, int b, __m512i words) {
    _mm512_storeu_si512(row->q[b], words);
}
INLINE void store_kind(struct scaled_row *row, bool by_16, bool has_min) {
    row->by_16 = by_16;
    row->has_min = has_min;
}

/* 256 weights of each type. */
INLINE void scaled_nibbles(enum sheaf_type type, const char *w, struct scaled_row *row) {
    const bool xs = type == SHEAF_TYPE_IQ4_XS;
    const size_t block = xs ? SHEAF__QK / 2 : size_256(type) / 8;
    const size_t qs = xs                         ? offsetof(struct sheaf__block_iq4_xs, qs)
                      : type == SHEAF_TYPE_MXFP4 ? offsetof(struct sheaf__block_mxfp4, qs)
                                                 : offsetof(struct sheaf__block_q4_0, qs);
    const __m512i levels = bf16_levels(type == SHEAF_TYPE_Q4_0    ? q4_levels
                                       : type == SHEAF_TYPE_MXFP4 ? fp4_levels
                                                                  : iq4_levels);
    UNROLL_8 for (int b = 0; b < 8; b++) {
        const __m512i at = low_and_high_words(w + qs + (size_t)b * block);
        store_integers(row, b, _mm512_permutexvar_epi16(at, levels));
    }
    _mm256_storeu_ps(row->d,
                     type == SHEAF_TYPE_Q4_0 ? gather_halves(w, block, 8) : scales_32(type, w));
    store_kind(row, false, false);
}

INLINE void scaled_q8_0(const char *w, struct scaled_row *row) {
    const size_t block = sizeof(struct sheaf__block_q8_0);
    UNROLL_8 for (int b = 0; b < 8; b++) store_integers(
        row, b, bf16_of_bytes(w + (size_t)b * block + offsetof(struct sheaf__block_q8_0, qs)));
    _mm256_storeu_ps(row->d, gather_halves(w, block, 8));
    store_kind(row, false, false);
}

INLINE void scaled_k(enum sheaf_type type, const char *w, struct scaled_row *row) {
    const bool five = type == SHEAF_TYPE_Q5_K;
    const char *qs = w + size_256(type) - SHEAF__QK_K / 2;
    const __m512i numbers = bf16_from(0), low = _mm512_set1_epi16(15);
    const __m512i table = five ? numbers : _mm512_broadcast_i64x4(_mm512_castsi512_si256(numbers));
    const __m512 s = scales_then_minus_mins(w);
    __m512i fifth = _mm512_setzero_si512();
    if (five)
        fifth = _mm512_slli_epi16(
            _mm512_cvtepu8_epi16(load256(((const struct sheaf__block_q5_k *)(const void *)w)->qh)),
            4);
    UNROLL for (int p = 0; p < 4; p++) {
        const __m512i x = _mm512_cvtepu8_epi16(load256(qs + 32 * p));
        __m512i q[2] = {x, _mm512_srli_epi16(x, 4)};
        UNROLL for (int h = 0; h < 2; h++) {
            if (five) /* the low 4 bits of q, the others of the fifth bits */
                q[h] = _mm512_ternarylogic_epi64(
                    low, q[h], _mm512_srlv_epi16(fifth, _mm512_set1_epi16((int16_t)(2 * p + h))),
                    0xca);
            store_integers(row, 2 * p + h, _mm512_permutexvar_epi16(q[h], table));
        }
    }
    _mm256_storeu_ps(row->d, _mm512_castps512_ps256(s));
    _mm256_storeu_ps(row->m, _mm512_extractf32x8_ps(s, 1));
    store_kind(row, false, true);
}

INLINE void scaled_q6_k(const char *w, struct scaled_row *row) {
    const struct sheaf__block_q6_k *b = (const void *)w;
    const __m512i first = bf16_from(-32), second = bf16_from(0), low = _mm512_set1_epi16(15);
    UNROLL for (int g = 0; g < 2; g++) {
        const __m512i high = _mm512_cvtepu8_epi16(load256(b->qh + 32 * g));
        const __m512i two[4] = {_mm512_slli_epi16(high, 4), _mm512_slli_epi16(high, 2), high,
                                _mm512_srli_epi16(high, 2)};
        UNROLL for (int t = 0; t < 4; t++) {
            __m512i q = _mm512_cvtepu8_epi16(load256(b->ql + 64 * g + t % 2 * 32));
            if (t >= 2) q = _mm512_srli_epi16(q, 4);
            q = _mm512_ternarylogic_epi64(low, q, two[t], 0xca);
            store_integers(row, 4 * g + t, _mm512_permutex2var_epi16(first, q, second));
        }
    }
    v_store(row->d, v_mul(v_set1(f16(b->d)), v_load_i8(b->scales)));
    store_kind(row, true, false);
}

#define SCALED(NAME, TYPE, ...)                                                                    \
    static void NAME(const void *src, void *dst, int64_t n) {                                      \
        const enum sheaf_type type = TYPE;                                                         \
        struct scaled_row *row = dst;                                                              \
        const char *w = src;                                                                       \
        for (; n > 0; n -= SHEAF__QK_K, w += size_256(type), row++) {                              \
            _Alignas(8) char rest[MOST_256];                                                       \
            const char *p = whole_256(type, w, n, false, rest);                                    \
            __VA_ARGS__;                                                                           \
        }                                                                                          \
    }
SCALED(scaled_rows_q4_0, SHEAF_TYPE_Q4_0, scaled_nibbles(type, p, row))
SCALED(scaled_rows_iq4_nl, SHEAF_TYPE_IQ4_NL, scaled_nibbles(type, p, row))
SCALED(scaled_rows_iq4_xs, SHEAF_TYPE_IQ4_XS, scaled_nibbles(type, p, row))
SCALED(scaled_rows_mxfp4, SHEAF_TYPE_MXFP4, scaled_nibbles(type, p, row))
SCALED(scaled_rows_q8_0, SHEAF_TYPE_Q8_0, scaled_q8_0(p, row))
SCALED(scaled_rows_q4_k, SHEAF_TYPE_Q4_K, scaled_k(type, p, row))
SCALED(scaled_rows_q5_k, SHEAF_TYPE_Q5_K, scaled_k(type, p, row))
SCALED(scaled_rows_q6_k, SHEAF_TYPE_Q6_K, scaled_q6_k(p, row))

/* The other types come by way of bytes. */
INLINE void scaled_from_bytes(const struct panel_row *w, int64_t n, struct scaled_row *row) {
    const struct panel_scales *like = w->of;
    const __m256i offset = _mm256_set1_epi8((char)like->offset);
    store_kind(row, like->by_16, like->has_min);
    for (int b = 0; b < n / SHEAF__QK; b++) {
        const struct panel_row *from = w + b / PANEL_ROW_BLOCKS;
        const struct panel_scales *of = &from->of[b % PANEL_ROW_BLOCKS];
        int8_t q[SHEAF__QK];
        _mm256_storeu_si256((__m256i *)q,
                            _mm256_sub_epi8(load256(from->q[b % PANEL_ROW_BLOCKS]), offset));
        store_integers(row, b, bf16_of_bytes(q));
        for (int h = 0; h <= like->by_16; h++) {
            const int at = like->by_16 ? 2 * b + h : b;
            row->d[at] = of->d[h];
            row->m[at] = of->m[h];
        }
    }
}
#define SCALED_BYTES(BLOCKS_OF) BY_WAY_OF_BYTES(scaled_##BLOCKS_OF, BLOCKS_OF, scaled_from_bytes)
#define SCALED_SIGNED(TYPE) SCALED_BYTES(blocks_signed_##TYPE)
SCALED_BYTES(blocks_q4_1)
SCALED_BYTES(blocks_q5_0)
SCALED_BYTES(blocks_q5_1)
SIGNED_BY_32(SCALED_SIGNED)
SIGNED_BY_16(SCALED_SIGNED)

void sheaf__cpu_kernels_scaled_rows(struct sheaf__cpu_panels *panels) {
#define USE_SIGNED(TYPE) panels->unpack[SHEAF_TYPE_##TYPE] = scaled_blocks_signed_##TYPE;
    panels->unit = SHEAF__QK_K;
    panels->row_bytes = sizeof(struct scaled_row);
    SIGNED_BY_32(USE_SIGNED)
    SIGNED_BY_16(USE_SIGNED)
    panels->unpack[SHEAF_TYPE_Q4_1] = scaled_blocks_q4_1;
    panels->unpack[SHEAF_TYPE_Q5_0] = scaled_blocks_q5_0;
    panels->unpack[SHEAF_TYPE_Q5_1] = scaled_blocks_q5_1;
    panels->unpack[SHEAF_TYPE_Q4_0] = scaled_rows_q4_0;
    panels->unpack[SHEAF_TYPE_IQ4_NL] = scaled_rows_iq4_nl;
    panels->unpack[SHEAF_TYPE_IQ4_XS] = scaled_rows_iq4_xs;
    panels->unpack[SHEAF_TYPE_MXFP4] = scaled_rows_mxfp4;
    panels->unpack[SHEAF_TYPE_Q8_0] = scaled_rows_q8_0;
    panels->unpack[SHEAF_TYPE_Q4_K] = scaled_rows_q4_k;
    panels->unpack[SHEAF_TYPE_Q5_K] = scaled_rows_q5_k;
    panels->unpack[SHEAF_TYPE_Q6_K] = scaled_rows_q6_k;
}
