/* A part of amx.c: products of few columns that are rounded to 8 bits, by tiles of bytes. Rows and panels are those of
 * panels8.h, whose tiles take 93 cycles for 16 rows by 16 columns of a block of 32 where these take 70: a load of
 * each operand, a product, a store of the sums, and three instructions for a row that join them to their scales. Where
 * weights have a scale for 16 there are two of each.
 *
 * Invariant: as in panels.h. */

/* Tiles 0 and 1 are sums; 2 and 3 rows and columns of 32 elements, 4 and 5 of 16. */
static void begin_bytes(void) {
    static const struct tile_shapes shapes = {
        .palette = 1, .bytes = {64, 64, 32, 64, 16, 64}, .rows = {16, 16, 16, 8, 16, 4}};
    _tile_loadconfig(&shapes);
}

/* Part h of block b. */
#define MULTIPLY_PART(SUM, ROWS, COLUMNS)                                                          \
    do {                                                                                           \
        _tile_loadd(ROWS, block_at(w, b) + 16 * h, stride);                                        \
        _tile_loadd(COLUMNS, panel[b].x[4 * h], sizeof panel->x[0]);                               \
        _tile_zero(SUM);                                                                           \
        _tile_dpbusd(SUM, ROWS, COLUMNS);                                                          \
    } while (0)
#define MULTIPLY_BYTES(SUM, S)                                                                     \
    const int64_t b = (S) / parts;                                                                 \
    const int h = (int)((S) % parts);                                                              \
    if (by_16)                                                                                     \
        MULTIPLY_PART(SUM, 4, 5);                                                                  \
    else                                                                                           \
        MULTIPLY_PART(SUM, 2, 3)

/* sum[r] += what the sums of a part are worth: of weights that are bytes less an offset, or times d plus m. */
INLINE void join_bytes(bool by_16, bool mins, const char *block, size_t stride, int h,
                       const struct panel8 *panel, int32_t (*from)[AMX_TILE], v_f *sum) {
    const struct panel_scales *of = scales_at(block);
    const v_f d = v_load(panel->d);
    __m512i x = _mm512_loadu_si512(panel->sums[h]);
    if (!by_16) x = _mm512_add_epi32(x, _mm512_loadu_si512(panel->sums[1]));
    const v_f sums = v_mul(d, _mm512_cvtepi32_ps(x));
    const __m512i first = _mm512_mullo_epi32(x, _mm512_set1_epi32(-of->offset));
    UNROLL_16 for (int r = 0; r < AMX_TILE; r++) {
        const struct panel_scales *its = (const void *)((const char *)of + (size_t)r * stride);
        __m512i all = _mm512_load_si512(from[r]);
        if (!mins) all = _mm512_add_epi32(all, first);
        sum[r] = v_fma(_mm512_cvtepi32_ps(all), v_mul(v_set1(its->d[h]), d), sum[r]);
        if (mins) sum[r] = v_fma(v_set1(its->m[h]), sums, sum[r]);
    }
}

#define JOIN_BYTES(S, FROM)                                                                        \
    join_bytes(by_16, mins, block_at(w, (S) / parts), stride, (int)((S) % parts),                  \
               panel + (S) / parts, FROM, sum)

/* 16 rows by the first 16 columns. */
INLINE void panel_8_amx(bool by_16, bool mins, int64_t k, const char *w, size_t stride,
                        const struct panel8 *panel, float *c, bool add) {
    _Alignas(64) int32_t sums[2][AMX_TILE][AMX_TILE];
    const int parts = BLOCK_PARTS(by_16);
    v_f sum[AMX_TILE];
    UNROLL_16 for (int r = 0; r < AMX_TILE; r++) sum[r] =
        add ? v_load(c + r * PANEL8_COLS) : v_set1(0.0f);
    BLOCK_BY_BLOCK(k / 32 * parts, sums, MULTIPLY_BYTES, JOIN_BYTES)
    UNROLL_16 for (int r = 0; r < AMX_TILE; r++) v_store(c + r * PANEL8_COLS, sum[r]);
}

static void tile_8_amx(int64_t k, const void *row, size_t stride, const void *panel, int used,
                       float *c, bool add) {
    const struct panel_scales *like = scales_at(row);
    (void)used;
    BY_KIND_OF_ROW(like, panel_8_amx, k, row, stride, panel, c, add)
}

static void use_bytes_amx(struct sheaf__cpu_panels *bytes) {
    bytes->rows = AMX_TILE;
    bytes->most = AMX_TILE; /* columns */
    bytes->tile = tile_8_amx;
    bytes->begin = begin_bytes;
    bytes->end = end_tiles;
}
