/* A part of amx.c: products of F16 and BF16 weights with few columns, from rows as they lie in memory, which the core
 * fetches itself (panels_in_place_amx.h). BF16 rows are tiles as they are; F16 rows become BF16 a unit at a time, a step
 * before they are multiplied.
 *
 * Invariant: the bits of panel_amx. */

enum { PLAIN_IN_PLACE_ROWS = ROWS_APART * AMX_ROWS };

INLINE void unpack_unit(int terms, const char *w, size_t stride,
                        uint16_t (*to)[AMX_ROWS][BF16_UNIT]) {
    UNROLL_16 for (int r = 0; r < AMX_ROWS; r++, w += stride) {
        const uint16_t *from = (const void *)w;
        const v_f low = v_load_f16(from), high = v_load_f16(from + VW);
        const __m512i first = (__m512i)_mm512_cvtne2ps_pbh(high, low);
        _mm512_store_si512(to[0][r], first);
        if (terms == 1) continue;
        const __m256bh of_low = (__m256bh)_mm512_castsi512_si256(first);
        const __m256bh of_high = (__m256bh)_mm512_extracti64x4_epi64(first, 1);
        const __m512bh second =
            _mm512_cvtne2ps_pbh(second_term(high, of_high), second_term(low, of_low));
        _mm512_store_si512(to[1][r], (__m512i)second);
    }
}

/* 32 rows that lie `stride` bytes apart; theirs of c ROWS_APART. */
INLINE void plain_rows(enum sheaf_type type, int terms, int64_t k, const char *w, size_t stride,
                       const struct panel_bf16 *panel, bool both, float *c) {
    _Alignas(64) uint16_t unpacked[2][2][AMX_ROWS][BF16_UNIT];
    begin_sums(c, both, false);
    const int64_t units = k / BF16_UNIT;
    if (type == SHEAF_TYPE_BF16) {
        for (int64_t u = 0; u < units; u++, w += ROW_BF16, panel += terms) {
            multiply(w, stride, panel, both);
            if (terms == 2) multiply(NULL, 0, panel + 1, both);
        }
    } else {
        for (int64_t u = 0; u <= units; u++, w += ROW_BF16) {
            if (u < units) unpack_unit(terms, w, stride, unpacked[u % 2]);
            if (u == 0) continue;
            const char *first = (const void *)unpacked[(u - 1) % 2][0];
            if (terms == 2) multiply(first + sizeof unpacked[0][0], ROW_BF16, panel, both);
            multiply(first, ROW_BF16, terms == 2 ? NULL : panel, both);
            if (terms == 2) multiply(NULL, 0, panel + 1, both);
            panel += terms;
        }
    }
    store_sums(c, ROWS_APART, both);
}

#define PLAIN_IN_PLACE(NAME, TYPE, TERMS)                                                          \
    static void NAME(int64_t k, const void *w, size_t stride, const void *panel, int used,         \
                     float *c, bool add) {                                                         \
        (void)add; /* k is all of it */                                                            \
        for (int i = 0; i < ROWS_APART; i++, c += BF16_COLS) {                                     \
            const char *row = (const char *)w + (size_t)i * stride;                                \
            if (used > AMX_TILE)                                                                   \
                plain_rows(TYPE, TERMS, k, row, ROWS_APART * stride, panel, true, c);              \
            else                                                                                   \
                plain_rows(TYPE, TERMS, k, row, ROWS_APART * stride, panel, false, c);             \
        }                                                                                          \
    }
PLAIN_IN_PLACE(bf16_in_place, SHEAF_TYPE_BF16, 2)
PLAIN_IN_PLACE(bf16_in_place_once, SHEAF_TYPE_BF16, 1)
PLAIN_IN_PLACE(f16_in_place, SHEAF_TYPE_F16, 2)
PLAIN_IN_PLACE(f16_in_place_once, SHEAF_TYPE_F16, 1)

static void use_plain_in_place_amx(struct sheaf__cpu_kernels *table) {
    struct sheaf__cpu_panels *one = &table->panels[SHEAF__PANELS_BF16];
    struct sheaf__cpu_panels *both = &table->panels[SHEAF__PANELS_BF16_BOTH];
    struct sheaf__cpu_panels *twice = &table->panels[SHEAF__PANELS_BF16_TWICE];
    one->rows_in_place = both->rows_in_place = twice->rows_in_place = PLAIN_IN_PLACE_ROWS;
    one->tile_in_place[SHEAF_TYPE_BF16] = bf16_in_place_once;
    one->tile_in_place[SHEAF_TYPE_F16] = f16_in_place_once;
    twice->tile_in_place[SHEAF_TYPE_BF16] = bf16_in_place;
    both->tile_in_place[SHEAF_TYPE_F16] = f16_in_place;
}
