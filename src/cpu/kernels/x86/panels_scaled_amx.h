/* A part of amx.c: products of quantized weights with few columns.
 *
 * The integers of a block are BF16, exactly, and its scales lie beside them (scaled_rows.h). Activations are the sum
 * of two BF16 (bf16.h), or with --fast one, whose products add to one tile. Its sums are floats, and take one
 * multiply-add each to be joined to their scale. So a weight is unpacked by a look-up or a conversion, where the two
 * BF16 of panels that serve many columns need its scale before they are rounded, which takes longer than to multiply it
 * by 16 columns. 16 rows by 16 columns by 32 elements take 18 to 20 ns, 13 of them the instructions of tiles and 6
 * joining (Granite Rapids, November 2026).
 *
 * Invariant: as in panels.h. */

/* 32 elements of 16 columns: both terms, two elements of a column side by side; sums of 16 each. */
struct panel_scaled {
    uint16_t x[2][BF16_UNIT / 2][AMX_TILE][2];
    float sums[2][AMX_TILE];
};
static_assert(sizeof(struct panel_scaled) % 64 == 0, "no padding");

static void pack_scaled(const float *const *x, int64_t n, int used, void *panel) {
    struct panel_scaled *to = panel;
    (void)used;
    for (int64_t i = 0; i < n; i += BF16_UNIT, to++) {
        pack_unit(2, AMX_TILE, x, i, n, to->x[0][0][0]);
        for (int h = 0; h < 2; h++) {
            for (int c = 0; c < AMX_TILE; c++) to->sums[h][c] = v_sum(v_load(x[c] + i + h * VW));
        }
    }
}

/* Tiles 0 and 1 are sums; 2, 3 and 4 rows and the terms of columns of 32 elements, 5, 6 and 7 of 16. */
static void begin_scaled(struct sheaf__cpu_kept *kept) {
    static const struct tile_shapes shapes = {.palette = 1,
                                              .bytes = {64, 64, 64, 64, 64, 32, 64, 64},
                                              .rows = {16, 16, 16, 16, 16, 16, 8, 8}};
    _tile_storeconfig(kept);
    _tile_loadconfig(&shapes);
}

/* Part h of block b by one term or both. */
#define MULTIPLY_TERMS(SUM, ROWS, FIRST, SECOND)                                                   \
    do {                                                                                           \
        _tile_loadd(ROWS, w[b / 8].q[b % 8] + 16 * h, stride);                                     \
        _tile_loadd(FIRST, panel[b].x[0][8 * h], sizeof panel->x[0][0]);                           \
        _tile_zero(SUM);                                                                           \
        _tile_dpbf16ps(SUM, ROWS, FIRST);                                                          \
        if (terms == 1) break;                                                                     \
        _tile_loadd(SECOND, panel[b].x[1][8 * h], sizeof panel->x[0][0]);                          \
        _tile_dpbf16ps(SUM, ROWS, SECOND);                                                         \
    } while (0)

/* sum[r] += what the sums of part h of a block are worth; d: of the first row. */
INLINE void join_scaled(bool by_16, bool mins, const float *d, size_t stride, int h,
                        const struct panel_scaled *panel, float (*from)[AMX_TILE], v_f *sum) {
    v_f x = v_load(panel->sums[h]);
    if (!by_16) x = v_add(x, v_load(panel->sums[1]));
    UNROLL_16 for (int r = 0; r < AMX_TILE; r++) {
        const float *its = (const void *)((const char *)d + (size_t)r * stride);
        sum[r] = v_fma(v_load(from[r]), v_set1(its[0]), sum[r]);
        if (mins) sum[r] = v_fma(v_set1(its[SCALED_MINS]), x, sum[r]);
    }
}

/* A part's sums are stored a step after its products, and joined another step later, since a core forwards neither to
 * tiles nor from them. */
INLINE void panel_scaled(int terms, bool by_16, bool mins, int64_t k, const struct scaled_row *w,
                         size_t stride, const struct panel_scaled *panel, float *c, bool add) {
    _Alignas(64) float sums[2][AMX_TILE][AMX_TILE];
    const int parts = BLOCK_PARTS(by_16);
    const int64_t steps = k / 32 * parts;
    v_f sum[AMX_TILE];
    UNROLL_16 for (int r = 0; r < AMX_TILE; r++) sum[r] =
        add ? v_load(c + r * AMX_TILE) : v_set1(0.0f);
    for (int64_t s = 0; s < steps + 2; s++) {
        const int64_t b = s / parts, j = s - 2;
        const int h = (int)(s % parts);
        if (s < steps && s % 2) {
            if (by_16)
                MULTIPLY_TERMS(1, 5, 6, 7);
            else
                MULTIPLY_TERMS(1, 2, 3, 4);
        } else if (s < steps) {
            if (by_16)
                MULTIPLY_TERMS(0, 5, 6, 7);
            else
                MULTIPLY_TERMS(0, 2, 3, 4);
        }
        if (j >= 0)
            join_scaled(by_16, mins, w[j / parts / 8].d + j % (8 * parts), stride, (int)(j % parts),
                        panel + j / parts, sums[s % 2], sum);
        if (s > steps) break;
        if (s % 2)
            _tile_stored(0, sums[0], sizeof sums[0][0]);
        else if (s > 0)
            _tile_stored(1, sums[1], sizeof sums[1][0]);
    }
    UNROLL_16 for (int r = 0; r < AMX_TILE; r++) v_store(c + r * AMX_TILE, sum[r]);
}

#define TILE_SCALED(NAME, TERMS)                                                                   \
    static void NAME(int64_t k, const void *row, size_t stride, const void *panel, int used,       \
                     float *c, bool add) {                                                         \
        const struct scaled_row *like = row;                                                       \
        (void)used;                                                                                \
        BY_KIND(like, panel_scaled(TERMS, by_16, mins, k, row, stride, panel, c, add));            \
    }
TILE_SCALED(tile_scaled, 2)
TILE_SCALED(tile_scaled_once, 1)

/* ---- one panel or two: weights as they lie in memory ---- */

/* Blocks of 16 rows become BF16 while the core reads ahead in each row, which it does with no requests of the program
 * if these rows are ROWS_APART (panels_in_place_amx.h). A block is multiplied a step after it is unpacked, its sums are
 * stored another step later, and joined in a fourth, for the reason above. To unpack, to multiply and to join 16 rows
 * one after the other is faster than by turns (39 and 46 ns a block of Q8_0, 49 from memory, in a loop that is not in
 * the tree). */

/* How the blocks of 32 of a type lie, one after the other or 8 with common scales; levels: of nibbles. */
struct block_layout {
    enum sheaf_type type;
    bool by_256;
    size_t bytes, quants;
    __m512i levels;
};
INLINE struct block_layout layout_of(enum sheaf_type type) {
#define LAYOUT(BLOCK, BY_256, LEVELS)                                                              \
    (struct block_layout) { type, BY_256, sizeof(BLOCK), offsetof(BLOCK, qs), LEVELS }
    switch ((int)type) {
    case SHEAF_TYPE_Q8_0:
        return LAYOUT(struct sheaf__block_q8_0, false, _mm512_setzero_si512());
    case SHEAF_TYPE_Q4_0:
        return LAYOUT(struct sheaf__block_q4_0, false, bf16_levels(q4_levels));
    case SHEAF_TYPE_IQ4_NL:
        return LAYOUT(struct sheaf__block_iq4_nl, false, bf16_levels(iq4_levels));
    case SHEAF_TYPE_MXFP4:
        return LAYOUT(struct sheaf__block_mxfp4, false, bf16_levels(fp4_levels));
    default:
        return LAYOUT(struct sheaf__block_q4_k, true, bf16_levels(from_0));
    }
}

/* Where 16 rows begin, from the first on. */
struct row_offsets {
    __m512i low, high;
};
INLINE struct row_offsets offsets_of_rows(size_t stride) {
    const __m512i low = _mm512_setr_epi64(0, 1, 2, 3, 4, 5, 6, 7);
    const __m512i high = _mm512_add_epi64(low, _mm512_set1_epi64(8));
    const __m512i step = _mm512_set1_epi64((int64_t)stride);
    return (struct row_offsets){_mm512_mullo_epi64(low, step), _mm512_mullo_epi64(high, step)};
}
/* Scales of 16 rows from the first bytes of their blocks. */
INLINE v_f scales_of_rows(enum sheaf_type type, const char *w, struct row_offsets at) {
    const __m256i low = _mm512_i64gather_epi32(at.low, w, 1);
    const __m256i high = _mm512_i64gather_epi32(at.high, w, 1);
    const __m512i x = _mm512_inserti64x4(_mm512_castsi256_si512(low), high, 1);
    if (type != SHEAF_TYPE_MXFP4) return _mm512_cvtph_ps(_mm512_cvtepi32_epi16(x));
    /* as sheaf__mxfp4_scale */
    const __m512i e = _mm512_and_si512(x, _mm512_set1_epi32(255)), one = _mm512_set1_epi32(1);
    const __m512i normal = _mm512_slli_epi32(_mm512_sub_epi32(e, one), 23);
    return _mm512_castsi512_ps(_mm512_mask_sllv_epi32(normal, _mm512_cmple_epi32_mask(e, one),
                                                      _mm512_set1_epi32(0x00200000), e));
}

/* Of 8 blocks of 16 rows: scale j of row r is by_256 number 16 r + j, and its min 8 behind it, else 16 j + r. */
typedef float scales_of_8[AMX_TILE * 16];

/* Block j of 8 of 16 rows at w, where its row of 256 begins, or, if they lie one after the other, the block itself. */
INLINE void unpack_rows(struct block_layout of, const char *w, size_t stride, struct row_offsets at,
                        int j, uint16_t (*q)[32], float *scales) {
    const __m512i nibble = _mm512_set1_epi16((int16_t)(j % 2 * 4));
    if (!of.by_256) v_store(scales + j * AMX_TILE, scales_of_rows(of.type, w, at));
    if (of.by_256 && j == 0) {
        UNROLL_16 for (int r = 0; r < AMX_TILE; r++)
            v_store(scales + 16 * r, scales_then_minus_mins(w + (size_t)r * stride));
    }
    UNROLL_16 for (int r = 0; r < AMX_TILE; r++) {
        const char *quants = w + (size_t)r * stride + of.quants;
        __m512i x;
        if (of.by_256)
            x = _mm512_srlv_epi16(_mm512_cvtepu8_epi16(load256(quants + j / 2 * 32)), nibble);
        else if (of.type != SHEAF_TYPE_Q8_0)
            x = low_and_high_words(quants);
        else
            x = bf16_of_bytes(quants);
        if (of.type != SHEAF_TYPE_Q8_0) x = _mm512_permutexvar_epi16(x, of.levels);
        _mm512_store_si512(q[r], x);
    }
}

/* sum[r] += what the sums of block j are worth. */
INLINE void join_rows(bool by_256, const float *scales, int j, const struct panel_scaled *panel,
                      float (*from)[AMX_TILE], v_f *sum) {
    const float *its = scales + (by_256 ? j : j * AMX_TILE);
    const v_f x = v_add(v_load(panel->sums[0]), v_load(panel->sums[1]));
    UNROLL_16 for (int r = 0; r < AMX_TILE; r++, its += by_256 ? 16 : 1) {
        sum[r] = v_fma(v_load(from[r]), v_set1(its[0]), sum[r]);
        if (by_256) sum[r] = v_fma(v_set1(its[8]), x, sum[r]);
    }
}

/* Block b by one term or both. */
#define MULTIPLY_BLOCK(SUM, ROWS)                                                                  \
    do {                                                                                           \
        _tile_loadd(ROWS, q[SUM], sizeof q[0][0]);                                                 \
        _tile_loadd(3, panel[b].x[0], sizeof panel->x[0][0]);                                      \
        _tile_zero(SUM);                                                                           \
        _tile_dpbf16ps(SUM, ROWS, 3);                                                              \
        if (terms == 1) break;                                                                     \
        _tile_loadd(4, panel[b].x[1], sizeof panel->x[0][0]);                                      \
        _tile_dpbf16ps(SUM, ROWS, 4);                                                              \
    } while (0)

/* 16 rows that lie `stride` bytes apart; theirs of c ROWS_APART. */
INLINE void rows_in_place(int terms, struct block_layout of, int64_t k, const char *w,
                          size_t stride, const struct panel_scaled *panel, float *c) {
    _Alignas(64) uint16_t q[2][AMX_TILE][32];
    _Alignas(64) float sums[2][AMX_TILE][AMX_TILE];
    _Alignas(64) scales_of_8 scales[2];
    const struct row_offsets at = offsets_of_rows(stride);
    const int64_t blocks = k / 32;
    v_f sum[AMX_TILE];
    UNROLL_16 for (int r = 0; r < AMX_TILE; r++) sum[r] = v_set1(0.0f);
    for (int64_t s = 0; s < blocks + 3; s++) {
        const int64_t b = s - 1, joined = s - 3;
        const bool odd = s % 2;
        if (s < blocks) unpack_rows(of, w, stride, at, (int)(s % 8), q[odd], scales[s / 8 % 2]);
        if (!of.by_256 || s % 8 == 7) w += of.bytes;
        if (b >= 0 && b < blocks) {
            if (odd)
                MULTIPLY_BLOCK(0, 2);
            else
                MULTIPLY_BLOCK(1, 2);
        }
        if (joined >= 0)
            join_rows(of.by_256, scales[joined / 8 % 2], (int)(joined % 8), panel + joined,
                      sums[!odd], sum);
        if (odd)
            _tile_stored(1, sums[1], sizeof sums[0][0]);
        else
            _tile_stored(0, sums[0], sizeof sums[0][0]);
    }
    UNROLL_16 for (int r = 0; r < AMX_TILE; r++) v_store(c + r * ROWS_APART * AMX_TILE, sum[r]);
}

#define IN_PLACE(NAME, TERMS, TYPE)                                                                \
    static void NAME(int64_t k, const void *w, size_t stride, const void *panel, int used,         \
                     float *c, bool add) {                                                         \
        const struct block_layout of = layout_of(TYPE);                                            \
        (void)used, (void)add; /* k is all of it */                                                \
        for (int i = 0; i < ROWS_APART; i++)                                                       \
            rows_in_place(TERMS, of, k, (const char *)w + (size_t)i * stride, ROWS_APART * stride, \
                          panel, c + i * AMX_TILE);                                                \
    }
#define IN_PLACE_BY_TERMS(TYPE)                                                                    \
    IN_PLACE(in_place_##TYPE, 2, SHEAF_TYPE_##TYPE)                                                \
    IN_PLACE(in_place_once_##TYPE, 1, SHEAF_TYPE_##TYPE)
#define TYPES_IN_PLACE(X) X(Q8_0) X(Q4_0) X(IQ4_NL) X(MXFP4) X(Q4_K)
TYPES_IN_PLACE(IN_PLACE_BY_TERMS)

static void use_scaled_amx(struct sheaf__cpu_kernels *table) {
    struct sheaf__cpu_panels *scaled = &table->panels[SHEAF__PANELS_BF16_SCALED];
    struct sheaf__cpu_panels *once = &table->panels[SHEAF__PANELS_BF16_SCALED_ONCE];
    *scaled = (struct sheaf__cpu_panels){
        .rows = AMX_TILE,
        .cols = AMX_TILE,
        .panel_bytes = SHEAF__QK_K / BF16_UNIT * sizeof(struct panel_scaled),
        .rows_in_place = ROWS_IN_PLACE,
        .pack = pack_scaled,
        .tile = tile_scaled,
        .begin = begin_scaled,
        .end = end_tiles,
    };
#define USE_IN_PLACE(TYPE) scaled->tile_in_place[SHEAF_TYPE_##TYPE] = in_place_##TYPE;
#define USE_ONCE(TYPE)     once->tile_in_place[SHEAF_TYPE_##TYPE] = in_place_once_##TYPE;
    TYPES_IN_PLACE(USE_IN_PLACE)
    sheaf__cpu_kernels_scaled_rows(scaled);
    for (int type = 0; type < SHEAF_TYPE_COUNT; type++) {
        if (scaled->unpack[type])
            scaled->from[type] = scaled->tile_in_place[type] ? 5 : SHEAF__TILE_COLS + 1;
    }
    /* Its columns have a second term that is not read: packing is 1 % of 16 columns. */
    *once = *scaled;
    once->from[SHEAF_TYPE_Q8_0] = SHEAF__TILE_COLS + 1;
    once->tile = tile_scaled_once;
    TYPES_IN_PLACE(USE_ONCE)
}
