/* A part of amx.c: products of Q8_0 with few columns, whose weights tiles read as they lie in memory.
 *
 * 16 rows of a block are a tile of bytes, so nothing is unpacked, and the tiles keep as many rows of memory under way.
 * Activations have three digits, q = (h * 256 + m) * 256 + l, each a lane of its own of the other tile: four columns
 * take 12 of its 16 lanes. With --fast they have 8 bits, and take one. A block's sums become floats and meet both
 * scales, lane by lane; digits are added at the end, so a column has the same bits in any lane.
 *
 * A tile's rows are four apart: two rows in a page of memory, as neighbours of 2048 weights are, make the core fetch
 * neither ahead (5 columns by k = 2048, us a MiB: neighbours 130, every second row 99, every fourth 80, in a loop of
 * their own that is not in the tree; Granite Rapids, November 2026).
 *
 * Invariant: as in panels.h. */

enum {
    DIGITS = 3,
    DIGIT_LANES = 4, /* of the columns of a panel */
    ROWS_APART = 4,  /* a row of a tile, and the next */
    ROWS_IN_PLACE = ROWS_APART * AMX_TILE,
};

/* 32 elements of 16 lanes, four of a lane side by side, and what times them they are. */
struct panel_lanes {
    int8_t x[8][AMX_TILE][4];
    float d[AMX_TILE];
};
static_assert(sizeof(struct panel_lanes) % 64 == 0, "no padding");

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
/* Digit i of column c is lane i * DIGIT_LANES + c. */
INLINE void pack_digits(int digits, const float *const *x, int64_t n, int used, void *panel) {
    struct panel_lanes *to = panel;
    int8_t byte[DIGITS][32];
    for (int64_t i = 0; i < n; i += 32, to++) {
        memset(to, 0, sizeof *to);
        for (int c = 0; c < used; c++) {
            float d = digits_of_32(x[c] + i, digits, byte) * (digits == DIGITS ? 65536.0f : 1.0f);
            for (int digit = 0; digit < digits; digit++, d /= 256.0f) {
                const int lane = digit * DIGIT_LANES + c;
                for (int j = 0; j < 8; j++) memcpy(to->x[j][lane], byte[digit] + 4 * j, 4);
                to->d[lane] = d;
            }
        }
    }
}
static void pack_three_digits(const float *const *x, int64_t n, int used, void *panel) {
    pack_digits(DIGITS, x, n, used, panel);
}
static void pack_one_digit(const float *const *x, int64_t n, int used, void *panel) {
    pack_digits(1, x, n, used, panel);
}

/* Tile 0 is sums, 1 rows, 2 lanes. */
static void begin_in_place(struct sheaf__cpu_kept *kept) {
    static const struct tile_shapes shapes = {
        .palette = 1, .bytes = {64, 32, 64}, .rows = {16, 16, 8}};
    _tile_storeconfig(kept);
    _tile_loadconfig(&shapes);
}

/* sum[r] = row r of 16 . the lanes of a panel. */
INLINE void dots_in_place(int64_t k, const char *row, size_t stride, const struct panel_lanes *x,
                          v_f *sum) {
    _Alignas(64) int32_t dots[AMX_TILE][AMX_TILE];
    UNROLL_16 for (int r = 0; r < AMX_TILE; r++) sum[r] = v_set1(0.0f);
    for (int64_t b = 0; b < k / 32; b++, row += sizeof(struct sheaf__block_q8_0), x++) {
        _tile_loadd(1, row + offsetof(struct sheaf__block_q8_0, qs), stride);
        _tile_zero(0);
        _tile_loadd(2, x->x, sizeof x->x[0]);
        _tile_dpbssd(0, 1, 2);
        _tile_stored(0, dots, sizeof dots[0]);
        const v_f d = v_load(x->d);
        UNROLL_16 for (int r = 0; r < AMX_TILE; r++) {
            const struct sheaf__block_q8_0 *w = (const void *)(row + (size_t)r * stride);
            const v_f scale = v_mul(v_set1(_cvtsh_ss(w->d)), d);
            sum[r] = v_fma(_mm512_cvtepi32_ps(_mm512_load_si512(dots[r])), scale, sum[r]);
        }
    }
}

INLINE void store_digits(v_f sum, float *c) {
    const __m128 h = _mm512_castps512_ps128(sum), m = _mm512_extractf32x4_ps(sum, 1),
                 l = _mm512_extractf32x4_ps(sum, 2);
    _mm_storeu_ps(c, _mm_add_ps(_mm_add_ps(h, m), l));
}
INLINE void tile_digits(int digits, int64_t k, const char *row, size_t stride, const void *panel,
                        float *c) {
    const int cols = digits == DIGITS ? DIGIT_LANES : AMX_TILE;
    for (int i = 0; i < ROWS_APART; i++, row += stride, c += cols) {
        v_f sum[AMX_TILE];
        dots_in_place(k, row, ROWS_APART * stride, panel, sum);
        UNROLL_16 for (int r = 0; r < AMX_TILE; r++) {
            float *to = c + r * ROWS_APART * cols;
            if (digits == DIGITS)
                store_digits(sum[r], to);
            else
                v_store(to, sum[r]);
        }
    }
}
#define TILE_DIGITS(NAME, OF)                                                                      \
    static void NAME(int64_t k, const void *row, size_t stride, const void *panel, int used,       \
                     float *c, bool add) {                                                         \
        (void)used, (void)add; /* k is all of it */                                                \
        tile_digits(OF, k, row, stride, panel, c);                                                 \
    }
TILE_DIGITS(tile_three_digits, DIGITS)
TILE_DIGITS(tile_one_digit, 1)

static void copy_blocks(const void *w, void *row, int64_t n) {
    memcpy(row, w, (size_t)n / 32 * sizeof(struct sheaf__block_q8_0));
}

static void use_in_place_amx(struct sheaf__cpu_kernels *table) {
    struct sheaf__cpu_panels *three = &table->panels[SHEAF__PANELS_24_IN_PLACE];
    struct sheaf__cpu_panels *one = &table->panels[SHEAF__PANELS_8];
    *three = (struct sheaf__cpu_panels){
        .rows = ROWS_IN_PLACE,
        .cols = DIGIT_LANES,
        .unit = 32,
        .most = DIGIT_LANES,
        .from = {[SHEAF_TYPE_Q8_0] = 3},
        .chunk = ROWS_IN_PLACE,
        .whole_rows = true,
        .rows_in_place = ROWS_IN_PLACE,
        .panel_bytes = sizeof(struct panel_lanes),
        .row_bytes = sizeof(struct sheaf__block_q8_0),
        .pack = pack_three_digits,
        .unpack = {[SHEAF_TYPE_Q8_0] = copy_blocks},
        .tile = tile_three_digits,
        .tile_in_place = {[SHEAF_TYPE_Q8_0] = tile_three_digits},
        .begin = begin_in_place,
        .end = end_tiles,
    };
    *one = *three;
    one->cols = AMX_TILE;
    one->most = 2 * AMX_TILE;
    one->pack = pack_one_digit;
    one->tile = one->tile_in_place[SHEAF_TYPE_Q8_0] = tile_one_digit;
}
