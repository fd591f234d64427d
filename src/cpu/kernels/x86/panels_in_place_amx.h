/* A part of amx.c: products of Q8_0 with few columns, whose weights tiles read as they lie in memory.
 *
 * 16 rows of a block are a tile of bytes, so nothing is unpacked, and the tiles keep as many rows of memory under way.
 * Activations have three digits, q = (h * 256 + m) * 256 + l, each a column of its own of the other tile: five columns
 * of activations take 15 of its 16 lanes. With --fast they have 8 bits, and take one. A block's sums become floats and
 * meet both scales, lane by lane; digits are added at the end, so a column has the same bits in any lane.
 *
 * A tile's rows are four apart: two rows in a page of memory, as neighbours of 2048 weights are, make the core fetch
 * neither ahead (5 columns by k = 2048, us a MiB: neighbours 130, every second row 99, every fourth 80, in a loop of
 * their own that is not in the tree; Granite Rapids, November 2026).
 *
 * Invariant: as in panels.h. */

enum {
    DIGITS = 3,
    DIGIT_LANES = AMX_TILE / DIGITS,        /* while all of a column's digits are in one tile */
    TILES_APART = 4,                        /* a row of a tile, and the next */
    IN_PLACE_ROWS = TILES_APART * AMX_TILE, /* of so many tiles */
};

/* 32 elements of 16 lanes, four of a lane side by side, and what times them they are. */
struct lanes {
    int8_t x[8][AMX_TILE][4];
    float d[AMX_TILE];
};
/* The digits of 16 columns: the first one, two or all, by the number of columns in use. */
struct panel_digits {
    struct lanes tile[DIGITS];
};
static_assert(sizeof(struct panel_digits) % 64 == 0, "no padding");

static int tiles_of_digits(int used) {
    return used <= DIGIT_LANES ? 1 : used <= 2 * DIGIT_LANES ? 2 : DIGITS;
}

/* 32 elements at x, in so many digits, the highest first; returns what times the integer they are. */
INLINE float digits_of_32(const float *x, int digits, int8_t (*byte)[32]) {
    __m512i q[2];
    const float d = integers_of_32(x, digits == 1 ? 127.0f : 127.0f * 65536.0f, q);
    for (int i = digits - 1; i >= 0; i--) {
        for (int h = 0; h < 2; h++) {
            _mm_storeu_si128((__m128i *)(byte[i] + 16 * h), _mm512_cvtepi32_epi8(q[h]));
            q[h] = _mm512_srai_epi32(_mm512_add_epi32(q[h], _mm512_set1_epi32(128)), 8);
        }
    }
    return d;
}
INLINE void set_lane(struct lanes *to, int lane, const int8_t *byte, float d) {
    for (int j = 0; j < 8; j++) memcpy(to->x[j][lane], byte + 4 * j, 4);
    to->d[lane] = d;
}

static void pack_three_digits(const float *const *x, int64_t n, int used, void *panel) {
    const int tiles = tiles_of_digits(used);
    struct panel_digits *to = panel;
    int8_t byte[DIGITS][32];
    for (int64_t i = 0; i < n; i += 32, to++) {
        memset(to, 0, (size_t)tiles * sizeof to->tile[0]);
        for (int c = 0; c < used; c++) {
            float d = digits_of_32(x[c] + i, DIGITS, byte) * 65536.0f;
            for (int digit = 0; digit < DIGITS; digit++, d /= 256.0f) {
                if (tiles == DIGITS)
                    set_lane(&to->tile[digit], c, byte[digit], d);
                else
                    set_lane(&to->tile[c / DIGIT_LANES],
                             digit * DIGIT_LANES + c % DIGIT_LANES, byte[digit], d);
            }
        }
    }
}
static void pack_one_digit(const float *const *x, int64_t n, int used, void *panel) {
    struct lanes *to = panel;
    int8_t byte[1][32];
    for (int64_t i = 0; i < n; i += 32, to++) {
        memset(to, 0, sizeof *to);
        for (int c = 0; c < used; c++) set_lane(to, c, byte[0], digits_of_32(x[c] + i, 1, byte));
    }
}

/* Tiles 0 to 2 are sums, 3 rows, 4 to 6 lanes. */
static void begin_in_place(struct sheaf__cpu_kept *kept) {
    static const struct tile_shapes shapes = {
        .palette = 1, .bytes = {64, 64, 64, 32, 64, 64, 64}, .rows = {16, 16, 16, 16, 8, 8, 8}};
    _tile_storeconfig(kept);
    _tile_loadconfig(&shapes);
}

#define DOTS_OF_TILE(T, FROM_TILE)                                                                 \
    do {                                                                                           \
        _tile_zero(T);                                                                             \
        _tile_loadd(FROM_TILE, x[T].x, sizeof x[T].x[0]);                                          \
        _tile_dpbssd(T, 3, FROM_TILE);                                                             \
        _tile_stored(T, dots[T], sizeof dots[T][0]);                                               \
    } while (0)

/* sum[t][r] = row r of 16 . the lanes of tile t; x: those of the first block, `step` apart. */
INLINE void dots_in_place(int tiles, int64_t k, const char *row, size_t stride,
                          const struct lanes *x, size_t step, v_f (*sum)[AMX_TILE]) {
    _Alignas(64) int32_t dots[DIGITS][AMX_TILE][AMX_TILE];
    UNROLL for (int t = 0; t < tiles; t++) {
        UNROLL_16 for (int r = 0; r < AMX_TILE; r++) sum[t][r] = v_set1(0.0f);
    }
    for (int64_t b = 0; b < k / 32; b++, row += sizeof(struct sheaf__block_q8_0), x += step) {
        _tile_loadd(3, row + offsetof(struct sheaf__block_q8_0, qs), stride);
        DOTS_OF_TILE(0, 4);
        if (tiles > 1) DOTS_OF_TILE(1, 5);
        if (tiles > 2) DOTS_OF_TILE(2, 6);
        UNROLL for (int t = 0; t < tiles; t++) {
            const v_f d = v_load(x[t].d);
            UNROLL_16 for (int r = 0; r < AMX_TILE; r++) {
                const struct sheaf__block_q8_0 *w = (const void *)(row + (size_t)r * stride);
                const v_f scale = v_mul(v_set1(_cvtsh_ss(w->d)), d);
                sum[t][r] =
                    v_fma(_mm512_cvtepi32_ps(_mm512_load_si512(dots[t][r])), scale, sum[t][r]);
            }
        }
    }
}

/* Columns of the first two tiles from digit `digit` on. */
INLINE v_f columns_of_digit(v_f first, v_f second, int digit) {
    const __m512i at = _mm512_setr_epi32(0, 1, 2, 3, 4, 16, 17, 18, 19, 20, 0, 0, 0, 0, 0, 0);
    return _mm512_permutex2var_ps(
        first, _mm512_add_epi32(at, _mm512_set1_epi32(digit * DIGIT_LANES)), second);
}
INLINE void tiles_in_place(int digits, int tiles, int64_t k, const char *row, size_t stride,
                           const void *panel, float *c) {
    const size_t step = digits == 1 ? 1 : DIGITS;
    for (int i = 0; i < TILES_APART; i++, row += stride, c += AMX_TILE) {
        v_f sum[DIGITS][AMX_TILE];
        dots_in_place(tiles, k, row, TILES_APART * stride, panel, step, sum);
        UNROLL_16 for (int r = 0; r < AMX_TILE; r++) {
            const v_f first = sum[0][r], second = sum[tiles > 1][r];
            v_f all = first;
            if (tiles == DIGITS)
                all = v_add(v_add(first, second), sum[2][r]);
            else if (digits == DIGITS)
                all = v_add(v_add(columns_of_digit(first, second, 0),
                                  columns_of_digit(first, second, 1)),
                            columns_of_digit(first, second, 2));
            v_store(c + r * TILES_APART * AMX_TILE, all);
        }
    }
}
static void tile_three_digits(int64_t k, const void *row, size_t stride, const void *panel,
                              int used, float *c, bool add) {
    (void)add; /* k is all of it */
    if (tiles_of_digits(used) == 1)
        tiles_in_place(DIGITS, 1, k, row, stride, panel, c);
    else if (tiles_of_digits(used) == 2)
        tiles_in_place(DIGITS, 2, k, row, stride, panel, c);
    else
        tiles_in_place(DIGITS, 3, k, row, stride, panel, c);
}
static void tile_one_digit(int64_t k, const void *row, size_t stride, const void *panel, int used,
                           float *c, bool add) {
    (void)used, (void)add;
    tiles_in_place(1, 1, k, row, stride, panel, c);
}

static void copy_blocks(const void *w, void *row, int64_t n) {
    memcpy(row, w, (size_t)n / 32 * sizeof(struct sheaf__block_q8_0));
}

static void use_in_place_amx(struct sheaf__cpu_kernels *table) {
    struct sheaf__cpu_panels *three = &table->panels[SHEAF__PANELS_24_IN_PLACE];
    struct sheaf__cpu_panels *one = &table->panels[SHEAF__PANELS_8];
    *three = (struct sheaf__cpu_panels){
        .rows = IN_PLACE_ROWS,
        .cols = AMX_TILE,
        .unit = 32,
        .most = 2 * DIGIT_LANES, /* three tiles take as long as SHEAF__PANELS_BF16_SCALED */
        .from = {[SHEAF_TYPE_Q8_0] = 3},
        .chunk = IN_PLACE_ROWS,
        .in_place = true,
        .panel_bytes = sizeof(struct panel_digits),
        .row_bytes = sizeof(struct sheaf__block_q8_0),
        .pack = pack_three_digits,
        .unpack = {[SHEAF_TYPE_Q8_0] = copy_blocks},
        .tile = tile_three_digits,
        .begin = begin_in_place,
        .end = end_tiles,
    };
    *one = *three;
    one->most = AMX_TILE;
    one->panel_bytes = sizeof(struct lanes);
    one->pack = pack_one_digit;
    one->tile = tile_one_digit;
}
