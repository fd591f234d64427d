/* The AVX-512 table with products by AMX tiles, of bytes and of BF16: what it changes of that of
 * avx512.c.
 *
 * Panels and unpacked rows are those of the VNNI and of the BF16 products, which lie as AMX wants
 * them: a unit of 16 rows is one tile, a unit of 16 columns, four bytes (two BF16) of a column side
 * by side, another. Integer products are exact, so their results have the bits of the VNNI tile.
 *
 * The shapes of tiles are a state of the thread: set before a chunk's first tile, released after
 * its last (begin, end). Compilers know of tile loads that they happen in order, not that
 * they read memory: each function that loads tiles is called through a pointer.
 *
 * Only ever run by an emulation (tests/emulators/amx); speeds are those of Intel's tables: a product of
 * two tiles takes 16 cycles, and the next may add to the same tile after 52. */
#include "cpu/kernels/x86/avx512.h"
#include "cpu/kernels/x86/bf16.h"
#include "cpu/kernels/x86/units.h"

enum { AMX_ROWS = 16 };

/* What LDTILECFG reads. */
struct tile_shapes {
    uint8_t palette, start_row, reserved[14];
    uint16_t bytes[16]; /* of a row */
    uint8_t rows[16];
};
static_assert(sizeof(struct tile_shapes) == 64, "as LDTILECFG has it");

/* Sums in tiles 0 to 3, 16 x 16; rows of weights in 4; columns in 5 and 6. */
static void begin_16(void) {
    static const struct tile_shapes shapes = {
        .palette = 1,
        .bytes = {64, 64, 64, 64, 32, 64, 64},
        .rows = {16, 16, 16, 16, 16, 8, 8},
    };
    _tile_loadconfig(&shapes);
}
static void begin_bf16(void) {
    static const struct tile_shapes shapes = {
        .palette = 1,
        .bytes = {64, 64, 64, 64, 64, 64, 64},
        .rows = {16, 16, 16, 16, 16, 16, 16},
    };
    _tile_loadconfig(&shapes);
}
static void end_tiles(void) { _tile_release(); }

/* ---- integers ---- */

/* digits[d] = digit d of 32 elements of 16 columns, [2][8] lines of so many bytes from x on, . the blocks
 * of 16 rows */
INLINE void multiply_digits(const uint8_t *w, size_t stride, const uint8_t *x, size_t line,
                            int32_t (*digits)[AMX_ROWS][16]) {
    _tile_zero(0);
    _tile_zero(1);
    _tile_loadd(4, w, stride);
    _tile_loadd(5, x, line);
    _tile_dpbusd(0, 4, 5);
    _tile_loadd(6, x + 8 * line, line);
    _tile_dpbusd(1, 4, 6);
    _tile_stored(0, digits[0], sizeof digits[0][0]);
    _tile_stored(1, digits[1], sizeof digits[1][0]);
}

/* Columns first to first + 15 of a panel, or half a panel, of cols. */
INLINE void panel_16_amx(bool mins, int64_t k, const struct panel_row *w, size_t stride,
                         const uint8_t *panel, int cols, int first, float *c, bool add) {
    _Alignas(64) int32_t digits[2][AMX_ROWS][16];
    const size_t line = (size_t)cols * 4,
                 size = (size_t)cols * sizeof(struct panel16) / PANEL16_COLS;
    const __m512i offset = _mm512_set1_epi32(-w->of[0].offset);
    __m512 sum[AMX_ROWS];
    UNROLL_16 for (int r = 0; r < AMX_ROWS; r++) sum[r] =
        add ? v_load(c + r * PANEL16_COLS) : v_set1(0.0f);
    for (int64_t b = 0; b < k / 32; b++, panel += size) {
        const struct panel_row *at = &w[b / PANEL_ROW_BLOCKS];
        const float *scales = (const float *)(const void *)(panel + 16 * line) + first;
        const __m512 d = v_load(scales);
        const __m512i x = _mm512_add_epi32(load512(scales + cols), load512(scales + 2 * cols));
        const __m512i start = _mm512_mullo_epi32(x, offset);
        const __m512 sums = v_mul(d, _mm512_cvtepi32_ps(x));
        multiply_digits(at->q[b % PANEL_ROW_BLOCKS], stride, panel + 4 * first, line, digits);
        UNROLL_16 for (int r = 0; r < AMX_ROWS; r++) {
            const struct panel_row *row = (const void *)((const char *)at + (size_t)r * stride);
            const struct panel_scales *of = &row->of[b % PANEL_ROW_BLOCKS];
            __m512i q = _mm512_slli_epi32(load512(digits[0][r]), 8);
            q = _mm512_add_epi32(q, load512(digits[1][r]));
            if (!mins) q = _mm512_add_epi32(q, start);
            sum[r] = v_fma(_mm512_cvtepi32_ps(q), v_mul(v_set1(of->d[0]), d), sum[r]);
            if (mins) sum[r] = v_fma(v_set1(of->m[0]), sums, sum[r]);
        }
    }
    UNROLL_16 for (int r = 0; r < AMX_ROWS; r++) v_store(c + r * PANEL16_COLS, sum[r]);
}
static_assert(offsetof(struct panel16, d) == 64 * PANEL16_COLS &&
                  offsetof(struct panel16_half, d) == 64 * PANEL16_HALF,
              "scales after the digits");

static void tile_16_amx(int64_t k, const void *row, size_t stride, const void *panel, int used,
                        float *c, bool add) {
    const struct panel_row *w = row;
    const int cols = used > PANEL16_HALF ? PANEL16_COLS : PANEL16_HALF;
    for (int first = 0; first < used; first += 16) {
        if (w->of[0].has_min) {
            panel_16_amx(true, k, w, stride, panel, cols, first, c + first, add);
        } else {
            panel_16_amx(false, k, w, stride, panel, cols, first, c + first, add);
        }
    }
}

/* ---- BF16 ---- */

/* Sums of the terms of even and of odd number lie in tiles of their own: one chain of sums would
 * wait for itself. */
INLINE void panel_bf16_amx(int terms, int64_t k, const char *row, size_t stride,
                           const struct panel_bf16 *panel, int used, float *c, bool add) {
    enum { LINE = BF16_COLS * sizeof(float) };
    const bool both = used > 16; /* tiles of columns */
    _Alignas(64) float odd[AMX_ROWS][BF16_COLS];
    const int64_t n = (k + BF16_UNIT - 1) / BF16_UNIT * terms;
    if (add) {
        _tile_loadd(0, c, LINE);
        _tile_loadd(1, c + 16, LINE);
    } else {
        _tile_zero(0);
        _tile_zero(1);
    }
    _tile_zero(2);
    _tile_zero(3);
    for (int64_t i = 0; i < n; i++, panel++) {
        _tile_loadd(4, row + (size_t)(i / terms) * BF16_UNIT * sizeof(uint16_t), stride);
        _tile_loadd(5, panel->x[0][0], sizeof panel->x[0]);
        if (both) _tile_loadd(6, panel->x[0][16], sizeof panel->x[0]);
        if (i % 2 == 0) {
            _tile_dpbf16ps(0, 4, 5);
            if (both) _tile_dpbf16ps(1, 4, 6);
        } else {
            _tile_dpbf16ps(2, 4, 5);
            if (both) _tile_dpbf16ps(3, 4, 6);
        }
    }
    _tile_stored(0, c, LINE);
    _tile_stored(1, c + 16, LINE);
    _tile_stored(2, odd[0], LINE);
    _tile_stored(3, odd[0] + 16, LINE);
    for (int r = 0; r < AMX_ROWS; r++, c += BF16_COLS) {
        v_store(c, v_add(v_load(c), v_load(odd[r])));
        v_store(c + VW, v_add(v_load(c + VW), v_load(odd[r] + VW)));
    }
}
static void tile_bf16(int64_t k, const void *row, size_t stride, const void *panel, int used,
                      float *c, bool add) {
    panel_bf16_amx(1, k, row, stride, panel, used, c, add);
}
static void tile_bf16_twice(int64_t k, const void *row, size_t stride, const void *panel, int used,
                            float *c, bool add) {
    panel_bf16_amx(2, k, row, stride, panel, used, c, add);
}

void sheaf__cpu_kernels_extend(struct sheaf__cpu_kernels *table) {
    struct sheaf__cpu_panels *p16 = &table->panels[SHEAF__PANELS_16];
    p16->rows = AMX_ROWS;
    p16->tile = tile_16_amx;
    p16->begin = begin_16;
    p16->end = end_tiles;
    /* A scale for 16: a product of two tiles would be half a block. These types stay floats. */
    for (int t = 0; t < SHEAF_TYPE_COUNT; t++)
        if (panel_by_16((enum sheaf_type)t)) p16->unpack[t] = NULL;
    /* AMX multiplies two bytes of an activation faster than VNNI one: no panels of 8 bits for the
     * types that have those of 16. */
    for (int t = 0; t < SHEAF_TYPE_COUNT; t++)
        if (p16->unpack[t]) table->panels[SHEAF__PANELS_8].unpack[t] = NULL;
    use_panels_bf16(table, AMX_ROWS, tile_bf16, tile_bf16_twice, begin_bf16, end_tiles);
}
