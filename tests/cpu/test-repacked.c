/* Weights in the kernels' order: each table's orders and rows; and tensors of a CPU device, of which nodes, and what
 * is written to and read from their buffer, show no difference. */
#include <criterion/criterion.h>
#include <stdlib.h>
#include <string.h>

#include "backend/optional.h"
#include "backend/registry.h"
#include "cpu/device/device.h"
#include "cpu/kernels/kernels.h"
#include "cpu/matmul/repacked.h"
#include "sheaf/sheaf.h"

enum { UNIT = 256, MOST_BYTES = 320 };

static uint32_t seed = 7;
static uint32_t random_u32(void) {
    seed = seed * 1664525u + 1013904223u;
    return seed >> 8;
}
static void random_bytes(void *x, size_t n) {
    for (size_t i = 0; i < n; i++) ((uint8_t *)x)[i] = (uint8_t)random_u32();
}
static void fill(float *x, int64_t n) {
    for (int64_t i = 0; i < n; i++) x[i] = (float)random_u32() / 8388608.0f - 1.0f;
}
/* Any halves below 1 and any bytes below 0x30, which are finite weights of every type here. */
static void fill_weights(void *x, size_t bytes) {
    for (size_t i = 0; i + 2 <= bytes; i += 2)
        memcpy((char *)x + i, &(uint16_t){random_u32() & 0x2fff}, 2);
}

/* ---- tables ---- */

/* Several units at once, to another place and in place; bytes behind them are left alone. */
static void check_order(const struct sheaf__cpu_kernels *kern, enum sheaf_type type) {
    enum { UNITS = 3, BEYOND = 64 };
    const struct sheaf__cpu_repacked *r = &kern->repacked[type];
    const size_t n = UNITS * sheaf_row_size(type, UNIT);
    uint8_t w[UNITS * MOST_BYTES + BEYOND], laid[sizeof w], back[sizeof w], beyond[BEYOND];
    for (int round = 0; round < 20; round++) {
        random_bytes(w, sizeof w);
        random_bytes(laid, sizeof w);
        random_bytes(beyond, BEYOND);
        memcpy(laid + n, beyond, BEYOND);
        r->repack(w, laid, UNITS * UNIT);
        cr_assert_arr_eq(laid + n, beyond, BEYOND, "%s %s", kern->name, sheaf_type_name(type));
        cr_assert_arr_neq(laid, w, n, "%s %s", kern->name, sheaf_type_name(type));
        memcpy(back, w, sizeof w);
        r->repack(back, back, UNITS * UNIT);
        cr_assert_arr_eq(back, laid, n, "%s %s in place", kern->name, sheaf_type_name(type));
        r->restore(laid, back, UNITS * UNIT);
        cr_assert_arr_eq(back, w, sizeof w, "%s %s restored", kern->name, sheaf_type_name(type));
        r->restore(laid, laid, UNITS * UNIT);
        cr_assert_arr_eq(laid, w, n, "%s %s restored in place", kern->name, sheaf_type_name(type));
    }
}

enum { ROWS = 7, MOST_K = 5632, BYTES_EACH = 5 }; /* an activation is at most so many bytes */

/* The same rows as they were written and repacked, by 1 to nc columns of a format. */
static void compare_rows(const struct sheaf__cpu_kernels *kern, enum sheaf_type type, int64_t k,
                         enum sheaf__act act, sheaf__rows_dot_fn plain, sheaf__rows_dot_fn repacked,
                         int most) {
    static char w[2][ROWS * MOST_K * 2];
    static _Alignas(64) char columns[SHEAF__TILE_COLS][MOST_K * BYTES_EACH];
    static float x[MOST_K], out[2][SHEAF__TILE_COLS][ROWS];
    const size_t row = sheaf_row_size(type, k);
    const bool at_end = sheaf__digits_at_end(k);
    const void *cols[SHEAF__TILE_COLS];
    fill_weights(w[0], ROWS * row);
    kern->repacked[type].repack(w[0], w[1], ROWS * k);
    for (int c = 0; c < most; c++) {
        fill(x, k);
        cols[c] = columns[c];
        if (act == SHEAF__ACT_DIGITS)
            kern->to_digits(x, (void *)columns[c], k, at_end, kern->digits_order[type]);
        else if (act == SHEAF__ACT_WORDS)
            kern->to_words(x, (void *)columns[c], k, at_end, kern->few_order[type]);
        else
            kern->to_bytes(x, (void *)columns[c], k, at_end,
                           sheaf__bytes_order(kern->digits_order[type]));
    }
    for (int nc = 1; nc <= most; nc++) {
        for (int i = 0; i < 2; i++) {
            float *to[SHEAF__TILE_COLS];
            for (int c = 0; c < nc; c++) to[c] = out[i][c];
            (i ? repacked : plain)(k, w[i], row, ROWS, cols, nc, to);
        }
        cr_assert_arr_eq(out[0], out[1], (size_t)nc * sizeof out[0][0],
                         "%s %s: %d columns of %d, format %d", kern->name, sheaf_type_name(type),
                         nc, (int)k, (int)act);
    }
}

/* The same weights as they were written and repacked, unpacked for panels, by a tile. */
static void compare_unpacked(const struct sheaf__cpu_kernels *kern, enum sheaf_type type) {
    enum { MOST_ROW = 2048, MOST_ROWS = 64, MOST_COLS = 32 };
    static _Alignas(64) char rows[2][MOST_ROWS * MOST_ROW], panel[UNIT * MOST_COLS * 8];
    static _Alignas(64) float out[2][MOST_ROWS * MOST_COLS];
    static float x[MOST_COLS][UNIT];
    const struct sheaf__cpu_repacked *r = &kern->repacked[type];
    const float *cols[MOST_COLS];
    char w[2][MOST_BYTES];
    for (int c = 0; c < MOST_COLS; c++) fill(x[c], UNIT), cols[c] = x[c];
    for (int kind = 0; kind < SHEAF__PANELS_KINDS; kind++) {
        const struct sheaf__cpu_panels *p = &kern->panels[kind];
        if (!r->unpack[kind] || !p->unpack[type]) continue;
        const size_t row = UNIT / (size_t)p->unit * p->row_bytes;
        cr_assert(row <= MOST_ROW && p->rows <= MOST_ROWS && p->cols <= MOST_COLS);
        for (int i = 0; i < p->rows; i++) {
            fill_weights(w[0], sheaf_row_size(type, UNIT));
            r->repack(w[0], w[1], UNIT);
            p->unpack[type](w[0], rows[0] + (size_t)i * row, UNIT);
            r->unpack[kind](w[1], rows[1] + (size_t)i * row, UNIT);
        }
        p->pack(cols, UNIT, p->cols, panel);
        for (int i = 0; i < 2; i++) p->tile(UNIT, rows[i], row, panel, p->cols, out[i], false);
        cr_assert_arr_eq(out[0], out[1], (size_t)(p->rows * p->cols) * sizeof **out,
                         "%s %s: panels %d", kern->name, sheaf_type_name(type), kind);
    }
}

Test(repacked, orders_and_rows_of_tables) {
    static const int64_t lengths[] = {UNIT, 2 * UNIT, 2048, MOST_K};
    const struct sheaf__cpu_kernels *kern;
    int compared = 0;
    for (int i = 0; (kern = sheaf__cpu_kernels_at(i)); i++) {
        for (int t = 0; t < SHEAF_TYPE_COUNT; t++) {
            const enum sheaf_type type = (enum sheaf_type)t;
            const struct sheaf__cpu_repacked *r = &kern->repacked[t];
            if (!r->repack) continue;
            check_order(kern, type);
            compare_unpacked(kern, type);
            cr_assert(!r->rows_dot_few == !kern->rows_dot_few[t], "%s", sheaf_type_name(type));
            for (size_t k = 0; k < sizeof lengths / sizeof *lengths; k++, compared++) {
                compare_rows(kern, type, lengths[k], SHEAF__ACT_DIGITS, kern->rows_dot_digits[t],
                             r->rows_dot_digits, r->rows_dot_few ? 1 : kern->tile_cols);
                compare_rows(kern, type, lengths[k], SHEAF__ACT_BYTES, kern->rows_dot_rounded[t],
                             r->rows_dot_rounded, kern->tile_cols);
                if (r->rows_dot_few)
                    compare_rows(kern, type, lengths[k], SHEAF__ACT_WORDS, kern->rows_dot_few[t],
                                 r->rows_dot_few, kern->tile_cols);
            }
        }
    }
    if (!compared) cr_skip("no table that runs here repacks weights");
}

/* ---- tensors of a device ---- */

enum { K = 512, M = 40, EXPERTS = 2, N = 40, TOKENS = 3 };

struct nodes {
    struct sheaf_tensor *one, *few, *many; /* products by 1, 3 and N columns */
    struct sheaf_tensor *experts, *rows, *half_k, *half_m;
};

/* Two weights of the same bytes: w[1] may be repacked. */
struct made {
    sheaf_backend_t backend;
    sheaf_backend_buffer_t buffer[2], other; /* of w[0], of w[1], of all others */
    struct sheaf_context *ctx;
    struct sheaf_tensor *w[2];
    struct nodes nodes[2];
    char *bytes;
    size_t size;
};

static struct sheaf_tensor *floats(struct sheaf_context *ctx, int64_t n, int64_t m) {
    return sheaf_new_tensor_2d(ctx, SHEAF_TYPE_F32, n, m);
}

static void run(struct made *m, int i, const struct nodes *nodes) {
    struct sheaf_tensor *const *node = (struct sheaf_tensor *const *)nodes;
    struct sheaf_cgraph *g = sheaf_new_graph(m->ctx);
    for (size_t n = 0; n < sizeof *nodes / sizeof *node; n++)
        if (node[n]) cr_assert_eq(sheaf_build_forward_expand(g, node[n]), SHEAF_STATUS_SUCCESS);
    cr_assert_eq(sheaf_backend_graph_compute(m->backend, g), SHEAF_STATUS_SUCCESS, "weight %d: %s",
                 i, sheaf_last_error());
}

static bool is_repacked(const struct made *m) {
    return !sheaf_backend_buffer_is_host(m->buffer[1]);
}

static struct nodes nodes_of(struct made *m, struct sheaf_tensor *w, struct sheaf_tensor *const *x,
                             struct sheaf_tensor *ids) {
    struct sheaf_context *ctx = m->ctx;
    struct sheaf_tensor *first = sheaf_view_2d(ctx, w, K, M, w->nb[1], 0);
    struct sheaf_tensor *half_k = sheaf_view_2d(ctx, w, K / 2, M, w->nb[1], w->nb[1] / 2);
    struct sheaf_tensor *half_m = sheaf_view_2d(ctx, w, K, M / 2, w->nb[1], M / 2 * w->nb[1]);
    return (struct nodes){.one = sheaf_mul_mat(ctx, w, x[0]),
                          .few = sheaf_mul_mat(ctx, first, x[1]),
                          .many = sheaf_mul_mat(ctx, first, x[2]),
                          .experts = sheaf_mul_mat_id(ctx, w, x[4], ids),
                          .rows = sheaf_get_rows(ctx, first, x[5]),
                          .half_k = sheaf_mul_mat(ctx, half_k, x[3]),
                          .half_m = sheaf_mul_mat(ctx, half_m, x[1])};
}

static void place(struct made *m, struct sheaf_tensor *t, size_t *at) {
    char *base = sheaf_backend_buffer_get_base(m->other);
    cr_assert_eq(sheaf_backend_tensor_alloc(m->other, t, base + *at), SHEAF_STATUS_SUCCESS);
    *at += (sheaf_nbytes(t) + 63) / 64 * 64;
}

static struct made make(enum sheaf_type type) {
    struct made m = {.ctx = sheaf_init((struct sheaf_init_params){.mem_size = 8 << 20})};
    sheaf_backend_dev_t dev = sheaf_backend_reg_dev_get(sheaf_backend_cpu_reg(), 0);
    sheaf_backend_buffer_type_t buft = sheaf_backend_dev_buffer_type(dev);
    cr_assert_eq(sheaf_backend_dev_init(dev, "threads=2", &m.backend), SHEAF_STATUS_SUCCESS);
    cr_assert_eq(sheaf_backend_buft_alloc_buffer(buft, 4 << 20, &m.other), SHEAF_STATUS_SUCCESS);
    /* columns by 1, 3 and N; of half the length; of experts */
    struct sheaf_tensor *x[6] = {sheaf_new_tensor_3d(m.ctx, SHEAF_TYPE_F32, K, 1, EXPERTS),
                                 floats(m.ctx, K, 3),
                                 floats(m.ctx, K, N),
                                 floats(m.ctx, K / 2, 3),
                                 sheaf_new_tensor_3d(m.ctx, SHEAF_TYPE_F32, K, 1, TOKENS),
                                 sheaf_new_tensor_1d(m.ctx, SHEAF_TYPE_I32, 2)};
    struct sheaf_tensor *ids = sheaf_new_tensor_2d(m.ctx, SHEAF_TYPE_I32, 1, TOKENS);
    size_t at = 0;
    for (int i = 0; i < 6; i++) {
        place(&m, x[i], &at);
        if (i < 5) fill(x[i]->data, sheaf_nelements(x[i]));
    }
    place(&m, ids, &at);
    memcpy(x[5]->data, (int32_t[]){3, M - 1}, 8);
    memcpy(ids->data, (int32_t[]){1, 0, 1}, 12);
    for (int i = 0; i < 2; i++) {
        m.w[i] = sheaf_new_tensor_3d(m.ctx, type, K, M, EXPERTS);
        m.size = sheaf_nbytes(m.w[i]);
        cr_assert_eq(sheaf_backend_buft_alloc_buffer(buft, m.size, &m.buffer[i]),
                     SHEAF_STATUS_SUCCESS);
        if (i) m.w[i]->flags |= SHEAF__TENSOR_PRIVATE;
        sheaf_backend_tensor_alloc(m.buffer[i], m.w[i], sheaf_backend_buffer_get_base(m.buffer[i]));
    }
    m.bytes = malloc(m.size);
    fill_weights(m.bytes, m.size);
    for (int i = 0; i < 2; i++) {
        sheaf_backend_tensor_set(m.w[i], m.bytes, 0, m.size);
        m.nodes[i] = nodes_of(&m, m.w[i], x, ids);
        struct sheaf_tensor **node = (struct sheaf_tensor **)&m.nodes[i];
        for (size_t n = 0; n < sizeof m.nodes[i] / sizeof *node; n++) {
            for (int s = 0; s < 2; s++)
                if (node[n]->src[s]->view_src)
                    cr_assert_eq(sheaf_backend_view_init(node[n]->src[s]), SHEAF_STATUS_SUCCESS);
            place(&m, node[n], &at);
        }
    }
    return m;
}

static void drop(struct made *m) {
    free(m->bytes);
    sheaf_backend_free(m->backend);
    for (int i = 0; i < 2; i++) sheaf_backend_buffer_free(m->buffer[i]);
    sheaf_backend_buffer_free(m->other);
    sheaf_free(m->ctx);
}

/* All nodes by both weights, and their bits. */
static void compare_nodes(struct made *m, const char *when) {
    struct sheaf_tensor *const *a = (struct sheaf_tensor *const *)&m->nodes[0];
    struct sheaf_tensor *const *b = (struct sheaf_tensor *const *)&m->nodes[1];
    for (int i = 0; i < 2; i++) run(m, i, &m->nodes[i]);
    for (size_t n = 0; n < sizeof m->nodes[0] / sizeof *a; n++)
        cr_assert_arr_eq(a[n]->data, b[n]->data, sheaf_nbytes(a[n]), "%s, %s: node %d",
                         sheaf_type_name(m->w[0]->type), when, (int)n);
}

/* What the buffer gives is what was written. */
static void compare_bytes(struct made *m, const char *when) {
    static const size_t places[][2] = {{0, 1}, {1, 3}, {17, 700}, {143, 2}, {300, 1000}};
    char *got = malloc(m->size);
    sheaf_backend_tensor_get(m->w[1], got, 0, m->size);
    cr_assert_arr_eq(got, m->bytes, m->size, "%s, %s", sheaf_type_name(m->w[0]->type), when);
    for (size_t i = 0; i < sizeof places / sizeof *places; i++) {
        sheaf_backend_tensor_get(m->w[1], got, places[i][0], places[i][1]);
        cr_assert_arr_eq(got, m->bytes + places[i][0], places[i][1], "%s, %s: place %d",
                         sheaf_type_name(m->w[0]->type), when, (int)i);
    }
    const struct sheaf_tensor *view = m->nodes[1].half_m->src[0];
    sheaf_backend_tensor_get(view, got, 5, 400);
    cr_assert_arr_eq(got, m->bytes + view->view_offs + 5, 400, "%s, %s: a view",
                     sheaf_type_name(m->w[0]->type), when);
    free(got);
}

/* The process's table repacks the type; tests of other types have nothing to do. */
static bool repacks(enum sheaf_type type) {
    return sheaf__cpu_kernels() && sheaf__cpu_kernels()->repacked[type].repack;
}

static void write_part(struct made *m, size_t offset, size_t n) {
    fill_weights(m->bytes + offset / 2 * 2, n);
    for (int i = 0; i < 2; i++) sheaf_backend_tensor_set(m->w[i], m->bytes + offset, offset, n);
}

static void check_tensor(enum sheaf_type type) {
    struct made m = make(type);
    const size_t row = m.w[0]->nb[1];
    cr_assert(!is_repacked(&m));
    compare_nodes(&m, "first");
    cr_assert(is_repacked(&m), "%s", sheaf_type_name(type));
    cr_assert_arr_neq(m.w[1]->data, m.bytes, m.size);
    compare_bytes(&m, "repacked");
    write_part(&m, row, 2 * row);    /* whole units */
    write_part(&m, 5 * row + 6, 20); /* parts of some */
    write_part(&m, 7 * row - 4, 8);
    write_part(&m, 9 * row + 100, row);
    compare_bytes(&m, "written again");
    compare_nodes(&m, "written again");
    memset(m.bytes + 10, 0x21, 300);
    for (int i = 0; i < 2; i++) sheaf_backend_tensor_memset(m.w[i], 0x21, 10, 300);
    compare_bytes(&m, "filled");
    compare_nodes(&m, "filled");
    /* a reader of another kind: a copy to floats */
    struct sheaf_tensor *plain[2];
    size_t at = 3 << 20;
    for (int i = 0; i < 2; i++) {
        plain[i] =
            sheaf_cpy(m.ctx, m.w[i], sheaf_new_tensor_3d(m.ctx, SHEAF_TYPE_F32, K, M, EXPERTS));
        place(&m, plain[i]->view_src, &at);
        sheaf_backend_view_init(plain[i]);
        run(&m, i, &(struct nodes){.one = plain[i]});
    }
    cr_assert_arr_eq(plain[0]->data, plain[1]->data, sheaf_nbytes(plain[0]), "%s",
                     sheaf_type_name(type));
    cr_assert(!is_repacked(&m));
    cr_assert_arr_eq(m.w[1]->data, m.bytes, m.size, "restored");
    compare_nodes(&m, "restored");
    cr_assert(!is_repacked(&m), "it stays as it was written");
    drop(&m);
}

static void check_tensors(const char *isa) {
    int checked = 0;
    setenv("SHEAF_CPU_ISA", isa, 1);
    if (!sheaf__cpu_kernels()) cr_skip("this CPU or build lacks the %s kernels", isa);
    for (int t = 0; t < SHEAF_TYPE_COUNT; t++) {
        if (!repacks((enum sheaf_type)t)) continue;
        check_tensor((enum sheaf_type)t);
        checked++;
    }
    if (!checked) cr_skip("the %s kernels repack no weights", isa);
}
Test(repacked, tensors_avx512bf16) { check_tensors("avx512bf16"); }
Test(repacked, tensors_avx2) { check_tensors("avx2"); }
Test(repacked, tensors_avx2_rounded) {
    setenv("SHEAF_CPU_ACTIVATIONS", "q8", 1);
    check_tensors("avx2");
}
Test(repacked, tensors_avx512bf16_rounded) {
    setenv("SHEAF_CPU_ACTIVATIONS", "q8", 1);
    check_tensors("avx512bf16");
}

static enum sheaf_type one_type(void) {
    int t = 0;
    while (t < SHEAF_TYPE_COUNT && !repacks((enum sheaf_type)t)) t++;
    if (t == SHEAF_TYPE_COUNT) cr_skip("this CPU's kernels repack no weights");
    return (enum sheaf_type)t;
}

/* A plan that was made before, too. */
Test(repacked, reference_reads_as_written) {
    struct made m = make(one_type());
    sheaf_backend_graph_plan_t plan;
    struct sheaf_cgraph *g = sheaf_new_graph(m.ctx);
    sheaf_build_forward_expand(g, m.nodes[1].few);
    cr_assert_eq(sheaf_backend_graph_plan_create(m.backend, g, &plan), SHEAF_STATUS_SUCCESS);
    compare_nodes(&m, "by kernels");
    cr_assert(is_repacked(&m));
    sheaf_backend_cpu_set_reference(m.backend, true);
    cr_assert_eq(sheaf_backend_graph_plan_compute(m.backend, plan), SHEAF_STATUS_SUCCESS);
    cr_assert(!is_repacked(&m));
    sheaf_backend_graph_plan_free(m.backend, plan);
    compare_nodes(&m, "by the reference");
    drop(&m);
}

Test(repacked, memory_that_is_read_past_the_device) {
    struct made m = make(one_type());
    sheaf__as_written_fn *as_written;
    sheaf__dev_find_proc(sheaf_backend_get_device(m.backend), SHEAF__AS_WRITTEN_PROC, &as_written);
    cr_assert(as_written);
    compare_nodes(&m, "first");
    cr_assert(is_repacked(&m));
    cr_assert(sheaf_backend_supports_buft(m.backend, m.w[1]->buffer->buft));
    cr_assert_eq(as_written(m.nodes[1].half_k->src[0]), SHEAF_STATUS_SUCCESS);
    cr_assert_arr_eq(m.w[1]->data, m.bytes, m.size);
    compare_nodes(&m, "as written");
    cr_assert_arr_eq(m.w[1]->data, m.bytes, m.size);
    drop(&m);
    /* before any product */
    m = make(one_type());
    cr_assert_eq(as_written(m.w[1]), SHEAF_STATUS_SUCCESS);
    compare_nodes(&m, "as written");
    cr_assert(!is_repacked(&m));
    drop(&m);
}

/* A member's slice of a weight may be empty, and the next one begins where it does. */
Test(repacked, an_empty_weight_before_it) {
    struct made m = make(one_type());
    sheaf__as_written_fn *as_written;
    sheaf__dev_find_proc(sheaf_backend_get_device(m.backend), SHEAF__AS_WRITTEN_PROC, &as_written);
    struct sheaf_tensor *empty = sheaf_new_tensor_2d(m.ctx, m.w[1]->type, K, 0);
    empty->flags |= SHEAF__TENSOR_PRIVATE;
    cr_assert_eq(sheaf_backend_tensor_alloc(m.buffer[1], empty, m.w[1]->data),
                 SHEAF_STATUS_SUCCESS);
    for (int i = 0; i < 2; i++) {
        cr_assert_eq(as_written(empty), SHEAF_STATUS_SUCCESS);
        compare_nodes(&m, i ? "repacked" : "first");
        cr_assert(is_repacked(&m));
    }
    drop(&m);
}

/* Transfers behind the graph that repacks a weight. */
Test(repacked, transfers_in_the_queue) {
    enum { BYTES = 200 << 10 }; /* more than an idle queue moves at once */
    struct made m = make(one_type());
    struct sheaf_tensor *big = sheaf_new_tensor_2d(m.ctx, m.w[0]->type, K, 2048), *x, *y;
    sheaf_backend_buffer_t buffer;
    const size_t n = sheaf_nbytes(big);
    size_t at = 3 << 20;
    cr_assert_geq(n, BYTES);
    cr_assert_eq(sheaf_backend_alloc_buffer(m.backend, n, &buffer), SHEAF_STATUS_SUCCESS);
    sheaf_backend_tensor_alloc(buffer, big, sheaf_backend_buffer_get_base(buffer));
    big->flags |= SHEAF__TENSOR_PRIVATE;
    char *bytes = malloc(2 * n), *got = bytes + n;
    fill_weights(bytes, n);
    sheaf_backend_tensor_set(big, bytes, 0, n);
    x = floats(m.ctx, K, 1);
    place(&m, x, &at);
    fill(x->data, K);
    y = sheaf_mul_mat(m.ctx, big, x);
    place(&m, y, &at);
    struct sheaf_cgraph *g = sheaf_new_graph(m.ctx);
    sheaf_build_forward_expand(g, y);
    cr_assert_eq(sheaf_backend_graph_compute_async(m.backend, g), SHEAF_STATUS_SUCCESS);
    sheaf_backend_tensor_get_async(m.backend, big, got, 0, n);
    cr_assert_eq(sheaf_backend_synchronize(m.backend), SHEAF_STATUS_SUCCESS);
    cr_assert(!sheaf_backend_buffer_is_host(buffer));
    cr_assert_arr_eq(got, bytes, n);
    fill_weights(bytes, n);
    sheaf_backend_tensor_set_async(m.backend, big, bytes, 0, n);
    cr_assert_eq(sheaf_backend_synchronize(m.backend), SHEAF_STATUS_SUCCESS);
    sheaf_backend_tensor_get(big, got, 0, n);
    cr_assert_arr_eq(got, bytes, n);
    free(bytes);
    sheaf_backend_buffer_free(buffer);
    drop(&m);
}

/* Computes a node that wants w[1] as m->bytes have it, and all products after it. */
static void check_as_written(struct made *m, struct sheaf_tensor *node) {
    run(m, 1, &(struct nodes){.one = node});
    cr_assert(!is_repacked(m));
    cr_assert_arr_eq(m->w[1]->data, m->bytes, m->size);
    compare_nodes(m, "as written");
    drop(m);
}

/* Views of which the length, the place, or a stride is no whole number of units. */
Test(repacked, a_view_of_parts_of_units) {
    enum { BLOCK = 18, WIDE = 320 / 32 * BLOCK }; /* Q4_0 */
    static const struct view {
        int64_t ne[3];
        size_t nb[2], at;
    } views[] = {
        {{64, M, 1}, {K / 32 * BLOCK, M * K / 32 * BLOCK}, 0},
        {{UNIT, M, 1}, {K / 32 * BLOCK, M * K / 32 * BLOCK}, 2 * BLOCK},
        {{UNIT, M, 1}, {WIDE, M * WIDE}, 0},
        {{UNIT, 3, 4}, {K / 32 * BLOCK, 5 * WIDE}, 0},
    };
    if (!repacks(SHEAF_TYPE_Q4_0)) cr_skip("this CPU's kernels do not repack Q4_0");
    for (size_t i = 0; i < sizeof views / sizeof *views; i++) {
        const struct view *v = &views[i];
        struct made m = make(SHEAF_TYPE_Q4_0);
        struct sheaf_tensor *x = sheaf_new_tensor_3d(m.ctx, SHEAF_TYPE_F32, v->ne[0], 2, v->ne[2]);
        struct sheaf_tensor *node[2];
        size_t at = 3 << 20;
        compare_nodes(&m, "first");
        cr_assert(is_repacked(&m));
        place(&m, x, &at);
        fill(x->data, sheaf_nelements(x));
        for (int j = 0; j < 2; j++) {
            struct sheaf_tensor *part = sheaf_view_3d(m.ctx, m.w[j], v->ne[0], v->ne[1], v->ne[2],
                                                      v->nb[0], v->nb[1], v->at);
            sheaf_backend_view_init(part);
            node[j] = sheaf_mul_mat(m.ctx, part, x);
            place(&m, node[j], &at);
        }
        run(&m, 0, &(struct nodes){.one = node[0]});
        run(&m, 1, &(struct nodes){.one = node[1]});
        cr_assert_arr_eq(node[0]->data, node[1]->data, sheaf_nbytes(node[0]), "view %d", (int)i);
        cr_assert(!is_repacked(&m), "view %d", (int)i);
        cr_assert_arr_eq(m.w[1]->data, m.bytes, m.size);
        compare_nodes(&m, "as written");
        drop(&m);
    }
}

Test(repacked, a_node_that_writes_a_weight) {
    struct made m = make(one_type());
    struct sheaf_tensor *from = sheaf_new_tensor_3d(m.ctx, m.w[1]->type, K, M, EXPERTS);
    size_t at = 3 << 20;
    compare_nodes(&m, "first");
    place(&m, from, &at);
    fill_weights(m.bytes, m.size);
    memcpy(from->data, m.bytes, m.size);
    struct sheaf_tensor *node = sheaf_cpy(m.ctx, from, m.w[1]);
    sheaf_backend_view_init(node);
    sheaf_backend_tensor_set(m.w[0], m.bytes, 0, m.size);
    check_as_written(&m, node);
}

Test(repacked, a_clear_forgets) {
    struct made m = make(one_type());
    compare_nodes(&m, "first");
    cr_assert(is_repacked(&m));
    for (int i = 0; i < 2; i++) sheaf_backend_buffer_clear(m.buffer[i], 0);
    cr_assert(!is_repacked(&m));
    memset(m.bytes, 0, m.size);
    compare_bytes(&m, "cleared");
    write_part(&m, 0, m.size);
    compare_nodes(&m, "cleared and written");
    cr_assert(is_repacked(&m), "the next product repacks it");
    drop(&m);
}

/* ---- several weights of one buffer ---- */

enum { WEIGHTS = 5, EACH = 38 }; /* rows: no number of units that three threads share evenly */

/* Weights without a gap between them, and the nodes that read each. */
struct several {
    sheaf_backend_t backend;
    sheaf_backend_buffer_t buffer, other;
    struct sheaf_context *ctx;
    struct sheaf_tensor *w[WEIGHTS], *product[WEIGHTS], *copy[WEIGHTS], *rows;
    char *bytes[WEIGHTS];
    float *expected[WEIGHTS];
    size_t size;
};

static void put(sheaf_backend_buffer_t buffer, struct sheaf_tensor *t, size_t *at) {
    char *base = sheaf_backend_buffer_get_base(buffer);
    cr_assert_eq(sheaf_backend_tensor_alloc(buffer, t, base + *at), SHEAF_STATUS_SUCCESS);
    *at += (sheaf_nbytes(t) + 63) / 64 * 64;
}

#define COMPUTE(s, ...)                                                                            \
    compute(s, (struct sheaf_tensor *[]){__VA_ARGS__},                                             \
            sizeof(struct sheaf_tensor *[]){__VA_ARGS__} / sizeof(struct sheaf_tensor *))
static void compute(struct several *s, struct sheaf_tensor **nodes, size_t n) {
    struct sheaf_cgraph *g = sheaf_new_graph(s->ctx);
    for (size_t i = 0; i < n; i++) {
        if (nodes[i]->op == SHEAF_OP_MUL_MAT) memset(nodes[i]->data, 0xff, sheaf_nbytes(nodes[i]));
        sheaf_build_forward_expand(g, nodes[i]);
    }
    cr_assert_eq(sheaf_backend_graph_compute(s->backend, g), SHEAF_STATUS_SUCCESS, "%s",
                 sheaf_last_error());
    for (size_t i = 0; i < n; i++)
        for (int w = 0; w < WEIGHTS; w++)
            if (nodes[i] == s->product[w])
                cr_assert_arr_eq(nodes[i]->data, s->expected[w], sheaf_nbytes(nodes[i]),
                                 "weight %d", w);
}

static void write_all(struct several *s) {
    for (int i = 0; i < WEIGHTS; i++) sheaf_backend_tensor_set(s->w[i], s->bytes[i], 0, s->size);
}

static struct several make_several(enum sheaf_type type) {
    struct several s = {.ctx = sheaf_init((struct sheaf_init_params){.mem_size = 8 << 20})};
    sheaf_backend_dev_t dev = sheaf_backend_reg_dev_get(sheaf_backend_cpu_reg(), 0);
    sheaf_backend_buffer_type_t buft = sheaf_backend_dev_buffer_type(dev);
    struct sheaf_tensor *x = floats(s.ctx, K, 3), *ids;
    size_t at = 0, at_w = 0;
    s.size = sheaf_row_size(type, K) * EACH;
    cr_assert_eq(s.size % 64, 0, "there is no gap");
    cr_assert_eq(sheaf_backend_dev_init(dev, "threads=3", &s.backend), SHEAF_STATUS_SUCCESS);
    cr_assert_eq(sheaf_backend_buft_alloc_buffer(buft, 4 << 20, &s.other), SHEAF_STATUS_SUCCESS);
    cr_assert_eq(sheaf_backend_buft_alloc_buffer(buft, WEIGHTS * s.size, &s.buffer),
                 SHEAF_STATUS_SUCCESS);
    put(s.other, x, &at);
    fill(x->data, K * 3);
    ids = sheaf_new_tensor_1d(s.ctx, SHEAF_TYPE_I32, 1);
    put(s.other, ids, &at);
    *(int32_t *)ids->data = 5;
    for (int i = 0; i < WEIGHTS; i++) {
        s.w[i] = sheaf_new_tensor_2d(s.ctx, type, K, EACH);
        put(s.buffer, s.w[i], &at_w);
        s.bytes[i] = malloc(s.size);
        fill_weights(s.bytes[i], s.size);
        s.product[i] = sheaf_mul_mat(s.ctx, s.w[i], x);
        put(s.other, s.product[i], &at);
        struct sheaf_tensor *to = floats(s.ctx, K, EACH);
        put(s.other, to, &at);
        s.copy[i] = sheaf_cpy(s.ctx, s.w[i], to);
        sheaf_backend_view_init(s.copy[i]);
        s.expected[i] = malloc(sheaf_nbytes(s.product[i]));
    }
    s.rows = sheaf_get_rows(s.ctx, s.w[0], ids);
    put(s.other, s.rows, &at);
    write_all(&s);
    return s;
}

static void drop_several(struct several *s) {
    for (int i = 0; i < WEIGHTS; i++) free(s->bytes[i]), free(s->expected[i]);
    sheaf_backend_free(s->backend);
    sheaf_backend_buffer_free(s->buffer);
    sheaf_backend_buffer_free(s->other);
    sheaf_free(s->ctx);
}

/* The buffer gives what was written; bit i of `repacked`: weight i lies in another order. */
static void check_several(const struct several *s, unsigned repacked) {
    char *got = malloc(s->size);
    for (int i = 0; i < WEIGHTS; i++) {
        sheaf_backend_tensor_get(s->w[i], got, 0, s->size);
        cr_assert_arr_eq(got, s->bytes[i], s->size, "weight %d", i);
        cr_assert_eq(memcmp(s->w[i]->data, s->bytes[i], s->size) != 0, repacked >> i & 1,
                     "weight %d", i);
    }
    cr_assert_eq(sheaf_backend_buffer_is_host(s->buffer), !repacked);
    free(got);
}

Test(repacked, several_weights_of_a_buffer) {
    struct several s = make_several(one_type());
    float *const copies[] = {s.copy[3]->data, s.copy[4]->data};
    float *plain[2];
    for (int i = 0; i < 2; i++) plain[i] = malloc((size_t)K * EACH * sizeof(float));
    struct sheaf_cgraph *g = sheaf_new_graph(s.ctx);
    for (int i = 0; i < WEIGHTS; i++) sheaf_build_forward_expand(g, s.product[i]);
    for (int i = 3; i < WEIGHTS; i++) sheaf_build_forward_expand(g, s.copy[i]);
    cr_assert_eq(sheaf_backend_graph_compute(s.backend, g), SHEAF_STATUS_SUCCESS);
    for (int i = 0; i < WEIGHTS; i++) {
        memcpy(s.expected[i], s.product[i]->data, sheaf_nbytes(s.product[i]));
        s.w[i]->flags |= SHEAF__TENSOR_PRIVATE;
    }
    for (int i = 0; i < 2; i++) memcpy(plain[i], copies[i], (size_t)K * EACH * sizeof(float));
    COMPUTE(&s, s.product[2]);
    check_several(&s, 1 << 2);
    COMPUTE(&s, s.product[1], s.product[3], s.rows, s.product[2]); /* on either side; rows alone */
    check_several(&s, 1 << 1 | 1 << 2 | 1 << 3);
    memset(copies[0], 0xff, (size_t)K * EACH * sizeof(float));
    COMPUTE(&s, s.product[1], s.copy[3], s.product[2]);
    cr_assert_arr_eq(copies[0], plain[0], (size_t)K * EACH * sizeof(float));
    check_several(&s, 1 << 1 | 1 << 2);
    COMPUTE(&s, s.product[1], s.product[2], s.product[3]);
    check_several(&s, 1 << 1 | 1 << 2);
    /* read as written before any product, beside one and beside what is settled */
    memset(copies[1], 0xff, (size_t)K * EACH * sizeof(float));
    COMPUTE(&s, s.copy[4], s.product[4], s.copy[3]);
    cr_assert_arr_eq(copies[1], plain[1], (size_t)K * EACH * sizeof(float));
    check_several(&s, 1 << 1 | 1 << 2);
    COMPUTE(&s, s.product[0], s.product[1]);
    check_several(&s, 1 << 0 | 1 << 1 | 1 << 2);
    sheaf_backend_buffer_clear(s.buffer, 0);
    write_all(&s);
    COMPUTE(&s, s.product[0]);
    check_several(&s, 1 << 0);
    COMPUTE(&s, s.product[1], s.product[3], s.product[4]);
    check_several(&s, 1 << 0 | 1 << 1);
    sheaf_backend_buffer_reset(s.buffer); /* others may lie there */
    write_all(&s);
    check_several(&s, 0);
    COMPUTE(&s, s.product[3]);
    check_several(&s, 1 << 3);
    for (int i = 0; i < 2; i++) free(plain[i]);
    drop_several(&s);
}

/* An empty slice of a member without a share is not noted, however often it is read. */
Test(repacked, empty_weights) {
    const enum sheaf_type type = one_type();
    struct several s = make_several(type);
    struct sheaf_tensor *empty = sheaf_new_tensor_2d(s.ctx, type, K, 0);
    size_t at = 0;
    put(s.buffer, empty, &at);
    empty->flags |= SHEAF__TENSOR_PRIVATE;
    for (int i = 0; i < 3; i++)
        cr_assert_eq(sheaf__cpu_keep_as_written(empty), SHEAF_STATUS_SUCCESS);
    cr_assert_eq(sheaf__cpu_buffer_weights(s.buffer)->n, 0);
    cr_assert_not(sheaf__cpu_repack_begin(empty));
    drop_several(&s);
}

/* Memory that the device did not make is never repacked. */
Test(repacked, memory_of_the_caller) {
    struct several s = make_several(one_type());
    sheaf_backend_buffer_t buffer;
    struct sheaf_tensor *w = sheaf_new_tensor_2d(s.ctx, s.w[0]->type, K, EACH), *y;
    size_t at = 3 << 20, at_w = 0;
    char *memory = aligned_alloc(64, s.size);
    memcpy(memory, s.bytes[0], s.size);
    cr_assert_eq(sheaf_backend_cpu_buffer_from_ptr(memory, s.size, &buffer), SHEAF_STATUS_SUCCESS);
    put(buffer, w, &at_w);
    w->flags |= SHEAF__TENSOR_PRIVATE;
    y = sheaf_mul_mat(s.ctx, w, s.product[0]->src[1]);
    put(s.other, y, &at);
    COMPUTE(&s, y);
    memcpy(s.expected[0], y->data, sheaf_nbytes(y));
    COMPUTE(&s, s.product[0]);
    cr_assert_arr_eq(memory, s.bytes[0], s.size);
    sheaf_backend_buffer_free(buffer);
    free(memory);
    drop_several(&s);
}

Test(repacked, only_private_weights) {
    struct made m = make(one_type());
    m.w[1]->flags &= ~SHEAF__TENSOR_PRIVATE;
    compare_nodes(&m, "not private");
    cr_assert(!is_repacked(&m));
    drop(&m);
}

Test(repacked, setting) {
    setenv("SHEAF_CPU_REPACK", "0", 1);
    struct made m = make(one_type());
    compare_nodes(&m, "off");
    cr_assert(!is_repacked(&m));
    drop(&m);
}

Test(repacked, wrong_setting) {
    setenv("SHEAF_CPU_REPACK", "2", 1);
    cr_assert_null(sheaf__cpu_kernels());
    cr_assert(strstr(sheaf_last_error(), "SHEAF_CPU_REPACK"), "%s", sheaf_last_error());
}
