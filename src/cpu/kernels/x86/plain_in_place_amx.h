/* A part of amx.c: products of F16 and BF16 weights with few columns, from rows as they lie in
 * memory, which the core fetches itself (panels_in_place_amx.h). BF16 rows are tiles as they are;
 * F16 rows become BF16 a unit at a time, a step before they are multiplied.
 *
 * Invariant: the bits of panel_amx. */

enum { PLAIN_IN_PLACE_ROWS = ROWS_APART * AMX_ROWS };

/* 32 rows that lie `stride` bytes apart; theirs of c ROWS_APART. */
INLINE void f16_rows(int terms, int64_t k, const char *w, size_t stride,
                     const struct panel_bf16 *panel, bool both, float *c) {
    _Alignas(64) char unpacked[2][AMX_ROWS][2 * ROW_BF16];
    const int64_t units = k / BF16_UNIT;
    begin_sums(c, both, false);
    for (int64_t u = 0; u <= units; u++, w += ROW_BF16) {
        UNROLL_16 for (int r = 0; r < AMX_ROWS && u < units; r++) {
            const uint16_t *from = (const void *)(w + (size_t)r * stride);
            terms_of_unit(terms, v_load_f16(from), v_load_f16(from + VW), unpacked[u % 2][r]);
        }
        if (u == 0) continue;
        multiply_terms(terms, terms, unpacked[(u - 1) % 2][0], sizeof unpacked[0][0], panel, both);
        panel += terms;
    }
    store_sums(c, ROWS_APART, both);
}
INLINE void plain_rows(enum sheaf_type type, int terms, int64_t k, const char *w, size_t stride,
                       const struct panel_bf16 *panel, bool both, float *c) {
    if (type == SHEAF_TYPE_BF16)
        panel_amx(1, terms, k, w, stride, panel, both, c, ROWS_APART, false);
    else
        f16_rows(terms, k, w, stride, panel, both, c);
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
