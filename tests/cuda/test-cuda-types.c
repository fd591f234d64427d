/* Types that the CUDA device takes an element at a time: rows have the host's bits, products are those of
 * these rows, and what it does not write is refused. Rows written by number, in the types of caches. */
#include <criterion/criterion.h>
#include <math.h>

#include "rig.h"

static const enum sheaf_type types[] = {SHEAF_TYPE_NVFP4,  SHEAF_TYPE_Q1_0,  SHEAF_TYPE_Q2_0,
                                        SHEAF_TYPE_TQ1_0,  SHEAF_TYPE_TQ2_0, SHEAF_TYPE_IQ2_XXS,
                                        SHEAF_TYPE_IQ2_XS, SHEAF_TYPE_IQ2_S, SHEAF_TYPE_IQ3_XXS,
                                        SHEAF_TYPE_IQ3_S,  SHEAF_TYPE_IQ1_S, SHEAF_TYPE_IQ1_M};
enum { K = 512, M = 37, MOST = 12 };

static float want[K * M], x[K * MOST], got[K * M];
static uint8_t bytes[K * M * 4];

/* Blocks of any bits, with scales that are small and no NaN: all points of the grids come up. */
static void give_weights(struct sheaf_tensor *w, uint64_t seed) {
    static float f[K * M];
    for (int i = 0; i < K * M; i++) {
        seed = seed * 6364136223846793005u + 1442695040888963407u;
        f[i] = (float)(seed >> 40) / (float)(1 << 23) - 1;
    }
    cr_assert_eq(sheaf_from_float(w->type, f, bytes, K * M), SHEAF_STATUS_SUCCESS);
    cr_assert_eq(sheaf_to_float(w->type, bytes, want, K * M), SHEAF_STATUS_SUCCESS);
    cr_assert_eq(sheaf_backend_tensor_set(w, bytes, 0, sheaf_nbytes(w)), SHEAF_STATUS_SUCCESS);
}

static void product_is_of_the_rows(enum sheaf_type type, int n, const char *params) {
    struct rig r = rig_up("", params);
    struct sheaf_tensor *w = sheaf_new_tensor_2d(r.ctx, type, K, M);
    struct sheaf_tensor *b = sheaf_new_tensor_2d(r.ctx, SHEAF_TYPE_F32, K, n);
    struct sheaf_tensor *ids = sheaf_new_tensor_1d(r.ctx, SHEAF_TYPE_I32, M);
    struct sheaf_tensor *rows = sheaf_get_rows(r.ctx, w, ids), *y = sheaf_mul_mat(r.ctx, w, b);
    int32_t id[M];
    cr_assert_eq(sheaf_build_forward_expand(r.graph, rows), SHEAF_STATUS_SUCCESS);
    cr_assert_eq(sheaf_build_forward_expand(r.graph, y), SHEAF_STATUS_SUCCESS);
    rig_alloc(&r);
    give_weights(w, (uint64_t)n);
    for (int i = 0; i < M; i++) id[i] = M - 1 - i;
    for (int i = 0; i < K * n; i++) x[i] = (float)((i * 7) % 31 - 15) / 16;
    cr_assert_eq(sheaf_backend_tensor_set(ids, id, 0, sizeof id), SHEAF_STATUS_SUCCESS);
    cr_assert_eq(sheaf_backend_tensor_set(b, x, 0, sheaf_nbytes(b)), SHEAF_STATUS_SUCCESS);
    cr_assert_eq(sheaf_backend_graph_compute(r.backend, r.graph), SHEAF_STATUS_SUCCESS, "%s",
                 sheaf_last_error());
    cr_assert_eq(sheaf_backend_tensor_get(rows, got, 0, sizeof got), SHEAF_STATUS_SUCCESS);
    for (int i = 0; i < M; i++)
        cr_assert(!memcmp(got + i * K, want + (M - 1 - i) * K, K * sizeof(float)), "%s: row %d",
                  sheaf_type_name(type), i);
    cr_assert_eq(sheaf_backend_tensor_get(y, got, 0, sheaf_nbytes(y)), SHEAF_STATUS_SUCCESS);
    for (int i = 0; i < M * n; i++) {
        double sum = 0, size = 0;
        for (int k = 0; k < K; k++) {
            const double p = (double)want[i % M * K + k] * (double)x[i / M * K + k];
            sum += p;
            size += fabs(p);
        }
        /* cuBLASLt has the weights in BF16 */
        cr_assert(fabs((double)got[i] - sum) <= size * (n > 8 ? 4e-3 : 1e-5),
                  "%s, %d columns: %d: %g, not %g", sheaf_type_name(type), n, i, (double)got[i],
                  sum);
    }
    rig_down(&r);
}

Test(cuda_types, products_are_of_the_rows) {
    for (size_t i = 0; i < sizeof types / sizeof *types; i++) {
        product_is_of_the_rows(types[i], 1, NULL);
        product_is_of_the_rows(types[i], 3, NULL);
        product_is_of_the_rows(types[i], MOST, NULL);
        product_is_of_the_rows(types[i], MOST, "blas=0");
    }
}

/* Rows so long that the slots of their chunks are filled again, with columns rounded to 8 bits. */
static void a_long_product(enum sheaf_type type, int n) {
    enum { LONG = 9216, ROWS = 4, COLUMNS = 3 };
    static float f[LONG * ROWS], columns[LONG * COLUMNS];
    static uint8_t blocks[LONG * ROWS * 2];
    struct rig r = rig_up("", NULL);
    struct sheaf_tensor *w = sheaf_new_tensor_2d(r.ctx, type, LONG, ROWS);
    struct sheaf_tensor *b = sheaf_new_tensor_2d(r.ctx, SHEAF_TYPE_F32, LONG, n);
    struct sheaf_tensor *y = sheaf_mul_mat(r.ctx, w, b);
    cr_assert_eq(sheaf_build_forward_expand(r.graph, y), SHEAF_STATUS_SUCCESS);
    rig_alloc(&r);
    for (int i = 0; i < LONG * ROWS; i++) f[i] = (float)(i * 37 % 101 - 50) / 16;
    for (int i = 0; i < LONG * n; i++) columns[i] = (float)(i * 53 % 97 - 48) / 8;
    cr_assert_eq(sheaf_from_float(type, f, blocks, LONG * ROWS), SHEAF_STATUS_SUCCESS);
    cr_assert_eq(sheaf_to_float(type, blocks, f, LONG * ROWS), SHEAF_STATUS_SUCCESS);
    cr_assert_eq(sheaf_backend_tensor_set(w, blocks, 0, sheaf_nbytes(w)), SHEAF_STATUS_SUCCESS);
    cr_assert_eq(sheaf_backend_tensor_set(b, columns, 0, sheaf_nbytes(b)), SHEAF_STATUS_SUCCESS);
    cr_assert_eq(sheaf_backend_graph_compute(r.backend, r.graph), SHEAF_STATUS_SUCCESS, "%s",
                 sheaf_last_error());
    cr_assert_eq(sheaf_backend_tensor_get(y, got, 0, sheaf_nbytes(y)), SHEAF_STATUS_SUCCESS);
    for (int i = 0; i < ROWS * n; i++) {
        double sum = 0, size = 0;
        for (int k = 0; k < LONG; k++) {
            const double p = (double)f[i % ROWS * LONG + k] * (double)columns[i / ROWS * LONG + k];
            sum += p;
            size += fabs(p);
        }
        cr_assert(fabs((double)got[i] - sum) <= size * 1e-4,
                  "%s, %d columns: %d: %g, not %g, of %g", sheaf_type_name(type), n, i,
                  (double)got[i], sum, size);
    }
    rig_down(&r);
}

Test(cuda_types, products_of_long_rows) {
    static const enum sheaf_type longer[] = {SHEAF_TYPE_Q4_0, SHEAF_TYPE_Q8_0, SHEAF_TYPE_Q4_K,
                                             SHEAF_TYPE_Q6_K};
    for (size_t i = 0; i < sizeof longer / sizeof *longer; i++) {
        a_long_product(longer[i], 1);
        a_long_product(longer[i], 3);
    }
}

static void the_last_is_kept(enum sheaf_type type, int n) {
    enum { WIDTH = 256, ROWS = 8, MOST_ROWS = 300 };
    static float f[WIDTH * MOST_ROWS];
    static uint8_t rows[WIDTH * ROWS * 4], last[WIDTH * ROWS * 4];
    int32_t id[MOST_ROWS];
    struct rig r = rig_up("", NULL);
    struct sheaf_tensor *a = sheaf_new_tensor_2d(r.ctx, type, WIDTH, ROWS);
    struct sheaf_tensor *b = sheaf_new_tensor_2d(r.ctx, SHEAF_TYPE_F32, WIDTH, n);
    struct sheaf_tensor *ids = sheaf_new_tensor_1d(r.ctx, SHEAF_TYPE_I32, n);
    cr_assert_eq(sheaf_build_forward_expand(r.graph, sheaf_set_rows(r.ctx, a, b, ids)),
                 SHEAF_STATUS_SUCCESS);
    rig_alloc(&r);
    for (int j = 0; j < n; j++) id[j] = j % ROWS;
    for (int j = 0; j < WIDTH * n; j++) f[j] = (float)((j / WIDTH + j * 7) % 301 - 150);
    cr_assert_eq(sheaf_backend_tensor_set(b, f, 0, sheaf_nbytes(b)), SHEAF_STATUS_SUCCESS);
    cr_assert_eq(sheaf_backend_tensor_set(ids, id, 0, sheaf_nbytes(ids)), SHEAF_STATUS_SUCCESS);
    cr_assert_eq(sheaf_backend_graph_compute(r.backend, r.graph), SHEAF_STATUS_SUCCESS, "%s",
                 sheaf_last_error());
    cr_assert_eq(sheaf_backend_tensor_get(a, rows, 0, sheaf_nbytes(a)), SHEAF_STATUS_SUCCESS);
    for (int row = 0; row < ROWS; row++)
        cr_assert_eq(sheaf_from_float(type, f + WIDTH * ((n - 1 - row) / ROWS * ROWS + row),
                                      last + a->nb[1] * (size_t)row, WIDTH),
                     SHEAF_STATUS_SUCCESS);
    cr_assert(!memcmp(rows, last, sheaf_nbytes(a)), "%s, %d rows", sheaf_type_name(type), n);
    rig_down(&r);
}

/* Of many rows with one number, which all warps of a block look for, the last is kept. */
Test(cuda_types, the_last_of_many_rows_is_kept) {
    static const enum sheaf_type caches[] = {SHEAF_TYPE_F32, SHEAF_TYPE_F16, SHEAF_TYPE_Q8_0,
                                             SHEAF_TYPE_Q4_K};
    for (size_t i = 0; i < sizeof caches / sizeof *caches; i++) {
        the_last_is_kept(caches[i], 300);
        for (int n = 17; n < 33; n += 5) the_last_is_kept(caches[i], n);
    }
}

Test(cuda_types, what_is_not_written_is_refused) {
    for (size_t i = 0; i < sizeof types / sizeof *types; i++) {
        struct rig r = rig_up("", NULL);
        struct sheaf_tensor *w = sheaf_new_tensor_2d(r.ctx, types[i], K, M);
        struct sheaf_tensor *f = sheaf_new_tensor_2d(r.ctx, SHEAF_TYPE_F32, K, M);
        struct sheaf_tensor *y = sheaf_cpy(r.ctx, f, w);
        cr_assert_not(sheaf_backend_supports_op(r.backend, y), "%s", sheaf_type_name(types[i]));
        cr_assert(sheaf_backend_supports_op(r.backend, sheaf_cpy(r.ctx, w, f)));
        cr_assert(sheaf_backend_supports_op(r.backend, sheaf_view_1d(r.ctx, w, K, 0)));
        cr_assert_eq(sheaf_build_forward_expand(r.graph, y), SHEAF_STATUS_SUCCESS);
        rig_alloc(&r);
        cr_assert_eq(sheaf_backend_graph_compute(r.backend, r.graph), SHEAF_STATUS_UNSUPPORTED);
        cr_assert(strstr(sheaf_last_error(), sheaf_type_name(types[i])), "%s", sheaf_last_error());
        rig_down(&r);
    }
}
