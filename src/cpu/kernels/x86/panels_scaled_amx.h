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

static void use_scaled_amx(struct sheaf__cpu_kernels *table) {
    struct sheaf__cpu_panels *scaled = &table->panels[SHEAF__PANELS_BF16_SCALED];
    struct sheaf__cpu_panels *once = &table->panels[SHEAF__PANELS_BF16_SCALED_ONCE];
    *scaled = (struct sheaf__cpu_panels){
        .rows = AMX_TILE,
        .cols = AMX_TILE,
        .panel_bytes = SHEAF__QK_K / BF16_UNIT * sizeof(struct panel_scaled),
        .pack = pack_scaled,
        .tile = tile_scaled,
        .begin = begin_scaled,
        .end = end_tiles,
    };
    sheaf__cpu_kernels_scaled_rows(scaled);
    for (int type = 0; type < SHEAF_TYPE_COUNT; type++) {
        if (scaled->unpack[type]) scaled->from[type] = SHEAF__TILE_COLS + 1;
    }
    scaled->from[SHEAF_TYPE_Q8_0] = 5; /* whose rows take three digits */
    /* Its columns have a second term that is not read: packing is 1 % of 16 columns. */
    *once = *scaled;
    once->from[SHEAF_TYPE_Q8_0] = SHEAF__TILE_COLS + 1;
    once->tile = tile_scaled_once;
}
