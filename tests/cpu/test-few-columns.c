/* Kernels for few columns and few queries have the bits of those for many: tiles of panels that
 * leave out columns, products of up to 12 columns, products of one panel, and attention by rows of a
 * cache as they lie. Attention over Q8_0 in integers is near that in floats. */
#include <criterion/criterion.h>
#include <math.h>
#include <string.h>

#include "cpu/kernels/kernels.h"
#include "quant/blocks.h"
#include "sheaf/sheaf.h"

enum { PASS = 256, MAX_TILE = 64, MAX_COLS = 32 };

static uint32_t seed = 7;
static uint32_t random_u32(void) {
    seed = seed * 1664525u + 1013904223u;
    return seed >> 8;
}
static void fill(float *x, int64_t n) {
    for (int64_t i = 0; i < n; i++) x[i] = (float)random_u32() / 8388608.0f - 1.0f;
}
/* Any halves below 1 and any bytes below 0x30, which are finite weights of every type here. */
static void fill_rows(void *x, size_t bytes) {
    for (size_t i = 0; i + 2 <= bytes; i += 2)
        memcpy((char *)x + i, &(uint16_t){random_u32() & 0x2fff}, 2);
}

/* Tile of `used` columns and of all: two passes, the second added, unless a tile takes all of k. */
static void compare_tiles(const struct sheaf__cpu_kernels *kern, const struct sheaf__cpu_panels *p,
                          enum sheaf_type type) {
    static _Alignas(64) char rows[MAX_TILE * PASS * 8], panel[PASS * MAX_COLS * 8];
    static _Alignas(64) float all[MAX_TILE * MAX_COLS], few[MAX_TILE * MAX_COLS];
    static char w[MAX_TILE * PASS * 4];
    static float x[MAX_COLS][PASS];
    const float *cols[MAX_COLS];
    const size_t stride = PASS / (size_t)p->unit * p->row_bytes, size = sheaf_row_size(type, PASS);
    cr_assert(p->rows <= MAX_TILE && p->cols <= MAX_COLS);
    for (int c = 0; c < p->cols; c++) fill(x[c], PASS), cols[c] = x[c];
    fill_rows(w, sizeof w);
    p->pack(cols, PASS, p->cols, panel);
    for (int r = 0; r < p->rows; r++) {
        float floats[PASS];
        if (p->unpack[type]) {
            p->unpack[type](w + (size_t)r * size, rows + (size_t)r * stride, PASS);
        } else {
            sheaf_to_float(type, w + (size_t)r * size, floats, PASS);
            p->from_floats(floats, rows + (size_t)r * stride, PASS);
        }
    }
    struct sheaf__cpu_kept kept;
    if (p->begin) p->begin(&kept);
    for (int pass = 0; pass < 2; pass++) p->tile(PASS, rows, stride, panel, p->cols, all, pass > 0);
    for (int used = 1; used <= p->cols; used++) {
        p->pack(cols, PASS, used, panel);
        for (int pass = 0; pass < 2; pass++)
            p->tile(PASS, rows, stride, panel, used, few, pass > 0);
        for (int r = 0; r < p->rows; r++)
            cr_assert_arr_eq(all + r * p->cols, few + r * p->cols, (size_t)used * sizeof *all,
                             "%s %s: row %d of %d columns", kern->name, sheaf_type_name(type), r,
                             used);
    }
    if (p->end) p->end(&kept);
}

Test(few_columns, tiles_of_any_number_have_the_same_bits) {
    const struct sheaf__cpu_kernels *kern;
    int compared = 0, tables = 0;
    for (int i = 0; (kern = sheaf__cpu_kernels_at(i)); i++) {
        tables += kern->panels[SHEAF__PANELS_FLOATS].rows > 0;
        for (int kind = 0; kind < SHEAF__PANELS_KINDS; kind++) {
            const struct sheaf__cpu_panels *p = &kern->panels[kind];
            for (int t = 0; t < SHEAF_TYPE_COUNT && p->rows > 0; t++) {
                if (!p->unpack[t] && (!p->from_floats || t != SHEAF_TYPE_Q8_0)) continue;
                compare_tiles(kern, p, (enum sheaf_type)t);
                compared++;
            }
        }
    }
    if (!tables) cr_skip("no table that runs here has tiles of panels");
    cr_assert_geq(compared, 20 * tables);
}

/* Words have the bits of two digits. A kind of panels and the one before it. */
static void compare_words(const struct sheaf__cpu_kernels *kern, enum sheaf__panels_kind words,
                          enum sheaf_type type) {
    static _Alignas(64) char rows[MAX_TILE * PASS * 8], panel[PASS * MAX_COLS * 8];
    static _Alignas(64) float c[2][MAX_TILE * MAX_COLS];
    static char w[MAX_TILE * PASS * 4];
    static float x[MAX_COLS][PASS];
    const float *cols[MAX_COLS];
    const size_t size = sheaf_row_size(type, PASS);
    for (int i = 0; i < MAX_COLS; i++) {
        fill(x[i], PASS);
        for (int j = 0; j < PASS; j++) x[i][j] = ldexpf(x[i][j], j / 32 * 5 % 17);
        cols[i] = x[i];
    }
    fill_rows(w, sizeof w);
    for (int64_t k = 32; k <= PASS; k += PASS - 32) {
        if (k % sheaf_blck_size(type)) continue;
        for (int used = 7; used <= MAX_COLS; used += 25) {
            for (int i = 0; i < 2; i++) {
                const struct sheaf__cpu_panels *p = &kern->panels[i ? words : words - 1];
                const size_t stride = PASS / (size_t)p->unit * p->row_bytes;
                p->pack(cols, k, used, panel);
                for (int first = 0; first < 12; first += p->rows) {
                    for (int r = 0; r < p->rows; r++)
                        p->unpack[type](w + (size_t)(first + r) * size, rows + (size_t)r * stride,
                                        k);
                    for (int pass = 0; pass < 2; pass++)
                        p->tile(k, rows, stride, panel, used, c[i] + first * p->cols, pass > 0);
                }
            }
            for (int r = 0; r < 12; r++)
                cr_assert_arr_eq(c[0] + r * MAX_COLS, c[1] + r * MAX_COLS,
                                 (size_t)used * sizeof **c, "%s %s: row %d of %d columns",
                                 kern->name, sheaf_type_name(type), r, used);
        }
    }
}

static void compare_words_of_all(enum sheaf__panels_kind words, int types) {
    const struct sheaf__cpu_kernels *kern;
    int compared = 0, tables = 0;
    for (int i = 0; (kern = sheaf__cpu_kernels_at(i)); i++) {
        const struct sheaf__cpu_panels *p = &kern->panels[words];
        if (p->rows == 0) continue;
        tables++;
        for (int t = 0; t < SHEAF_TYPE_COUNT; t++) {
            cr_assert_eq(!p->unpack[t], !p[-1].unpack[t]);
            if (!p->unpack[t]) continue;
            compare_words(kern, words, (enum sheaf_type)t);
            compared++;
        }
    }
    if (!tables) cr_skip("no table that runs here has panels of words");
    cr_assert_geq(compared, types * tables);
}
Test(few_columns, words_have_the_bits_of_digits) {
    compare_words_of_all(SHEAF__PANELS_16_WORDS, 21);
}

enum { WIDEST = SHEAF__DIRECT_WIDTH, KEYS = 37, QUERIES = 12 };

static void compare_direct(const struct sheaf__cpu_kernels *kern, enum sheaf_type type, int64_t k,
                           int64_t rows, int n_q) {
    static char cache[KEYS * (WIDEST + 32) * 4];
    static float floats[KEYS * WIDEST], qs[QUERIES * WIDEST];
    static float want[QUERIES * (KEYS + 1)], got[QUERIES * (KEYS + 1)];
    static float mixed[QUERIES * WIDEST], direct[QUERIES * WIDEST];
    const size_t stride = sheaf_row_size(type, k) + sheaf_row_size(type, 32);
    const float *q[QUERIES];
    fill_rows(cache, sizeof cache);
    fill(qs, QUERIES * WIDEST);
    for (int c = 0; c < QUERIES; c++) q[c] = qs + c * k;
    for (int i = 0; i < QUERIES * (KEYS + 1); i++) want[i] = got[i] = 77;
    kern->load_rows[type](cache, stride, rows, k, floats, k);
    kern->dots(k, floats, k, rows, q, n_q, want, KEYS + 1);
    kern->dots_of[type](k, cache, stride, rows, q, n_q, got, KEYS + 1);
    cr_assert_arr_eq(want, got, sizeof want, "%s %s: %d keys by %d queries of %d", kern->name,
                     sheaf_type_name(type), (int)rows, n_q, (int)k);
    fill(mixed, QUERIES * WIDEST);
    memcpy(direct, mixed, sizeof mixed);
    kern->mix(rows, floats, k, k, want, KEYS + 1, n_q, mixed, k);
    kern->mix_of[type](rows, cache, stride, k, want, KEYS + 1, n_q, direct, k);
    cr_assert_arr_eq(mixed, direct, sizeof mixed, "%s %s: %d values by %d rows of %d", kern->name,
                     sheaf_type_name(type), (int)rows, n_q, (int)k);
}

Test(few_columns, attention_by_rows_of_a_cache_has_the_same_bits) {
    static const int64_t widths[] = {32, 64, 80, 96, 128, 160, 256};
    const struct sheaf__cpu_kernels *kern;
    int compared = 0, tables = 0;
    for (int i = 0; (kern = sheaf__cpu_kernels_at(i)); i++) {
        tables += kern->dots_of[SHEAF_TYPE_F16] != NULL;
        for (int t = 0; t < SHEAF_TYPE_COUNT; t++) {
            cr_assert_eq(kern->dots_of[t] != NULL, kern->mix_of[t] != NULL, "%s", kern->name);
            for (size_t w = 0; kern->dots_of[t] && w < sizeof widths / sizeof *widths; w++) {
                if (widths[w] % sheaf_blck_size((enum sheaf_type)t) != 0) continue;
                for (int64_t rows = 1; rows <= KEYS; rows += rows < 20 ? 3 : 1) {
                    for (int n_q = 1; n_q <= QUERIES; n_q++, compared++)
                        compare_direct(kern, (enum sheaf_type)t, widths[w], rows, n_q);
                }
            }
        }
    }
    if (!tables) cr_skip("no table that runs here has attention by rows of a cache");
    cr_assert_geq(compared, 4000 * tables);
}

enum { LONG = 2 * KEYS };
static struct sheaf__block_q8_0 q8_cache[LONG][WIDEST / 32 + 1];
static float q8_queries[QUERIES * WIDEST];
static void fill_q8(int64_t k) {
    static float x[WIDEST];
    for (int r = 0; r < LONG; r++) {
        fill(x, k);
        cr_assert_eq(sheaf_from_float(SHEAF_TYPE_Q8_0, x, q8_cache[r], k), SHEAF_STATUS_SUCCESS);
    }
    fill(q8_queries, QUERIES * WIDEST);
}

/* Products and sums of rows of Q8_0 in integers are near those of floats, and have the bits that each
 * query has alone. Where weights are 0 rows are not read. */
static void compare_integers(const struct sheaf__cpu_kernels *kern, int64_t k, int64_t rows,
                             int n_q) {
    static struct sheaf__query_digits digits[QUERIES][WIDEST / 32];
    static float floats[LONG * WIDEST], y[3][QUERIES * WIDEST];
    static float want[QUERIES * LONG], got[QUERIES * LONG], one[LONG];
    const size_t stride = sizeof *q8_cache;
    const struct sheaf__query_digits *at[QUERIES];
    const float *q[QUERIES];
    for (int c = 0; c < QUERIES; c++) {
        q[c] = q8_queries + c * k;
        at[c] = digits[c];
        kern->attention_q8.query(k, q[c], digits[c]);
    }
    for (int i = 0; i < QUERIES * LONG; i++) want[i] = got[i] = 77;
    kern->load_rows[SHEAF_TYPE_Q8_0](q8_cache, stride, rows, k, floats, k);
    kern->dots(k, floats, k, rows, q, n_q, want, LONG);
    kern->attention_q8.dots(k, q8_cache, stride, rows, at, n_q, got, LONG);
    for (int i = 0; i < QUERIES * LONG; i++)
        cr_assert_float_eq(got[i], want[i], 1e-3, "%s, %d of %d keys of %d", kern->name, i % LONG,
                           (int)rows, (int)k);
    kern->attention_q8.dots(k, q8_cache, stride, rows, at + n_q - 1, 1, one, LONG);
    cr_assert_arr_eq(one, got + (n_q - 1) * LONG, (size_t)rows * sizeof *one);

    for (int i = 0; i < QUERIES * LONG; i++)
        want[i] = i % LONG == rows / 2 || i % 3 == 0 ? 0 : fabsf(want[i]);
    fill(y[0], QUERIES * WIDEST);
    for (int i = 1; i < 3; i++) memcpy(y[i], y[0], sizeof *y);
    kern->mix(rows, floats, k, k, want, LONG, n_q, y[0], k);
    memset(q8_cache[rows / 2], 0xff, stride);
    kern->attention_q8.mix(rows, q8_cache, stride, k, want, LONG, n_q, y[1], k);
    for (int i = 0; i < QUERIES * WIDEST; i++)
        cr_assert_float_eq(y[0][i], y[1][i], 1e-2, "%s, %d values of %d by %d rows", kern->name,
                           (int)rows, (int)k, n_q);
    const int64_t last = n_q - 1;
    kern->attention_q8.mix(rows, q8_cache, stride, k, want + last * LONG, LONG, 1, y[2] + last * k,
                           k);
    cr_assert_arr_eq(y[1] + last * k, y[2] + last * k, (size_t)k * sizeof **y);
    want[rows / 2] = 1e-30f; /* is read now */
    kern->attention_q8.mix(rows, q8_cache, stride, k, want, LONG, 1, y[2], k);
    for (int i = 0; i < k; i++) cr_assert(!isfinite(y[2][i]), "%s", kern->name);
    memset(q8_cache[rows / 2], 0, stride);
}

Test(few_columns, attention_over_q8_0_in_integers) {
    static const int64_t widths[] = {32, 64, 96, 128, 256}, rows[] = {1, 2, 7, 16, 31, 33, 64, 74};
    const struct sheaf__cpu_kernels *kern;
    int compared = 0, tables = 0;
    for (int i = 0; (kern = sheaf__cpu_kernels_at(i)); i++) {
        if (!kern->attention_q8.query) continue;
        tables++;
        for (size_t w = 0; w < sizeof widths / sizeof *widths; w++) {
            fill_q8(widths[w]);
            for (size_t r = 0; r < sizeof rows / sizeof *rows; r++) {
                for (int n_q = 1; n_q <= QUERIES; n_q++, compared++)
                    compare_integers(kern, widths[w], rows[r], n_q);
            }
        }
    }
    if (!tables) cr_skip("no table that runs here has attention in integers");
    cr_assert_eq(compared, 5 * 8 * QUERIES * tables);
}

/* A product of a random matrix by the first n of the columns x, to y. */
static void multiply(sheaf_backend_t backend, enum sheaf_type type, int64_t k, int64_t m, int64_t n,
                     const float *x, float *y) {
    const struct sheaf_init_params params = {.mem_size = 1 << 20, .no_alloc = true};
    struct sheaf_context *ctx = sheaf_init(params);
    struct sheaf_cgraph *graph = sheaf_new_graph(ctx);
    struct sheaf_tensor *w = sheaf_new_tensor_2d(ctx, type, k, m);
    struct sheaf_tensor *b = sheaf_new_tensor_2d(ctx, SHEAF_TYPE_F32, k, n);
    struct sheaf_tensor *product = sheaf_mul_mat(ctx, w, b);
    sheaf_backend_buffer_t buffer = NULL;
    cr_assert_eq(sheaf_build_forward_expand(graph, product), SHEAF_STATUS_SUCCESS);
    cr_assert_eq(sheaf_backend_alloc_ctx_tensors(ctx, backend, &buffer), SHEAF_STATUS_SUCCESS);
    seed = 11;
    fill_rows(w->data, sheaf_nbytes(w));
    memcpy(b->data, x, (size_t)(k * n) * sizeof *x);
    cr_assert_eq(sheaf_backend_graph_compute(backend, graph), SHEAF_STATUS_SUCCESS);
    memcpy(y, product->data, (size_t)(m * n) * sizeof *y);
    sheaf_backend_buffer_free(buffer);
    sheaf_free(ctx);
}

enum { MOST_K = 2336, MOST_M = 43, MOST_N = 70 };

/* The fewest columns that go by panels, by those that 16 columns go by, and the most that go by these. 0: as of other
 * types; without AMX only Q8_0 has its own. */
static int first_by_tiles(enum sheaf_type type) {
    const struct sheaf__cpu_panels *p = sheaf__cpu_kernels()->panels;
    return p[SHEAF__PANELS_16].from[type]            ? p[SHEAF__PANELS_16].from[type]
           : p[SHEAF__PANELS_24_IN_PLACE].from[type] ? p[SHEAF__PANELS_24_IN_PLACE].from[type]
           : p[SHEAF__PANELS_BF16_SCALED].from[type] ? p[SHEAF__PANELS_BF16_SCALED].from[type]
           : p[SHEAF__PANELS_BF16_BOTH].from[type]   ? p[SHEAF__PANELS_BF16_BOTH].from[type]
                                                     : p[SHEAF__PANELS_BF16_TWICE].from[type];
}
static int first_scaled(enum sheaf_type type) {
    const struct sheaf__cpu_panels *in_place =
        &sheaf__cpu_kernels()->panels[SHEAF__PANELS_24_IN_PLACE];
    return in_place->from[type] ? in_place->most + 1 : first_by_tiles(type);
}
static int most_scaled(enum sheaf_type type) {
    return sheaf_is_quantized(type) ? sheaf__cpu_kernels()->panels[SHEAF__PANELS_BF16_BOTH].above
                                    : 0;
}

/* Several parts of k, an odd number of rows, ends of rows that are no whole vectors. */
Test(few_columns, up_to_12_have_the_bits_of_one) {
    enum { MOST = 12 };
    static const struct {
        enum sheaf_type type;
        int64_t k;
    } cases[] = {{SHEAF_TYPE_F32, 1325},    {SHEAF_TYPE_F16, 1325},   {SHEAF_TYPE_BF16, 1325},
                 {SHEAF_TYPE_Q4_0, 2336},   {SHEAF_TYPE_Q8_0, 1312},  {SHEAF_TYPE_Q5_1, 2080},
                 {SHEAF_TYPE_Q4_K, 2304},   {SHEAF_TYPE_Q6_K, 1280},  {SHEAF_TYPE_Q2_K, 1280},
                 {SHEAF_TYPE_IQ4_NL, 2080}, {SHEAF_TYPE_IQ2_XS, 1280}};
    static float x[MOST_N * MOST_K], alone[MOST_N * MOST_M], all[MOST_N * MOST_M];
    sheaf_backend_t backend = NULL;
    cr_assert_eq(sheaf_backend_init_by_name("CPU0", NULL, &backend), SHEAF_STATUS_SUCCESS);
    for (size_t t = 0; t < sizeof cases / sizeof *cases; t++) {
        const enum sheaf_type type = cases[t].type;
        const int64_t k = cases[t].k, m = MOST_M;
        seed = 3;
        fill(x, MOST * k);
        for (int64_t c = 0; c < MOST; c++)
            multiply(backend, type, k, m, 1, x + c * k, alone + c * m);
        const int64_t most = first_by_tiles(type) > 0 ? first_by_tiles(type) - 1 : MOST;
        for (int64_t n = 2; n <= most; n++) {
            multiply(backend, type, k, m, n, x, all);
            cr_assert_arr_eq(all, alone, (size_t)(n * m) * sizeof *all, "%s, %d columns",
                             sheaf_type_name(type), (int)n);
        }
    }
    sheaf_backend_free(backend);
}

/* One panel, half of it or all, whose rows are unpacked tile by tile, has the bits of several. */
Test(few_columns, by_panels_have_the_bits_of_many) {
    static const enum sheaf_type types[] = {SHEAF_TYPE_F32, SHEAF_TYPE_F16, SHEAF_TYPE_Q4_0,
                                            SHEAF_TYPE_Q5_1, SHEAF_TYPE_Q8_0};
    static const int64_t some[] = {5, 9, 13, 16, 17, 20, 24, 32, 45};
    enum { K = 1312 };
    static float x[MOST_N * MOST_K], few[MOST_N * MOST_M], all[MOST_N * MOST_M];
    sheaf_backend_t backend = NULL;
    cr_assert_eq(sheaf_backend_init_by_name("CPU0", NULL, &backend), SHEAF_STATUS_SUCCESS);
    seed = 5;
    fill(x, MOST_N * K);
    for (size_t t = 0; t < sizeof types / sizeof *types; t++) {
        const int64_t most = most_scaled(types[t]), from = first_scaled(types[t]);
        multiply(backend, types[t], K, MOST_M, most ? most : MOST_N, x, all);
        for (size_t i = 0; i < sizeof some / sizeof *some; i++) {
            if (some[i] < (from ? from : 17)) continue; /* fewer may go by rows */
            multiply(backend, types[t], K, MOST_M, some[i], x, few);
            cr_assert_arr_eq(all, few, (size_t)(some[i] * MOST_M) * sizeof *all, "%s, %d columns",
                             sheaf_type_name(types[t]), (int)some[i]);
        }
    }
    sheaf_backend_free(backend);
}

/* Products that share columns but not how these are packed. */
Test(few_columns, products_of_the_same_columns) {
    static const enum sheaf_type types[] = {SHEAF_TYPE_F16, SHEAF_TYPE_Q8_0, SHEAF_TYPE_BF16,
                                            SHEAF_TYPE_F16, SHEAF_TYPE_F32};
    enum { K = 1312, N = 16, TYPES = sizeof types / sizeof *types };
    static float x[N * K], alone[N * MOST_M];
    struct sheaf_tensor *w[TYPES], *product[TYPES];
    sheaf_backend_t backend = NULL;
    sheaf_backend_buffer_t buffer = NULL;
    const struct sheaf_init_params params = {.mem_size = 1 << 20, .no_alloc = true};
    struct sheaf_context *ctx = sheaf_init(params);
    struct sheaf_cgraph *graph = sheaf_new_graph(ctx);
    struct sheaf_tensor *b = sheaf_new_tensor_2d(ctx, SHEAF_TYPE_F32, K, N);
    cr_assert_eq(sheaf_backend_init_by_name("CPU0", NULL, &backend), SHEAF_STATUS_SUCCESS);
    seed = 5;
    fill(x, N * K);
    for (int t = 0; t < TYPES; t++) {
        w[t] = sheaf_new_tensor_2d(ctx, types[t], K, MOST_M);
        product[t] = sheaf_mul_mat(ctx, w[t], b);
        cr_assert_eq(sheaf_build_forward_expand(graph, product[t]), SHEAF_STATUS_SUCCESS);
    }
    cr_assert_eq(sheaf_backend_alloc_ctx_tensors(ctx, backend, &buffer), SHEAF_STATUS_SUCCESS);
    for (int t = 0; t < TYPES; t++) {
        seed = 11;
        fill_rows(w[t]->data, sheaf_nbytes(w[t]));
    }
    memcpy(b->data, x, sizeof x);
    cr_assert_eq(sheaf_backend_graph_compute(backend, graph), SHEAF_STATUS_SUCCESS);
    for (int t = 0; t < TYPES; t++) {
        multiply(backend, types[t], K, MOST_M, N, x, alone);
        cr_assert_arr_eq(product[t]->data, alone, sizeof alone, "%s, number %d",
                         sheaf_type_name(types[t]), t);
    }
    sheaf_backend_buffer_free(buffer);
    sheaf_free(ctx);
    sheaf_backend_free(backend);
}
