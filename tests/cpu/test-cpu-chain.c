/* Chains on the CPU: what makes one, which memory allows it, and that rows may be computed in any
 * partition. */
#include <criterion/criterion.h>

#include "cpu/run/chain.h"

enum { WIDTH = 8, ROWS = 6 };

struct chain_rig {
    struct sheaf_context *ctx;
    struct sheaf_tensor *source, *other, *weight, *node[3];
    float memory[8 * WIDTH * ROWS];
};

static float *place(struct chain_rig *r, int i) { return r->memory + i * WIDTH * ROWS; }

/* x = other + source, n = norm of x, m = n * weight: each in memory of its own */
static void chain_up(struct chain_rig *r) {
    r->ctx = sheaf_init(
        (struct sheaf_init_params){.mem_size = 32 * sheaf_tensor_overhead(), .no_alloc = true});
    r->source = sheaf_new_tensor_2d(r->ctx, SHEAF_TYPE_F32, WIDTH, ROWS);
    r->other = sheaf_new_tensor_2d(r->ctx, SHEAF_TYPE_F32, WIDTH, ROWS);
    r->weight = sheaf_new_tensor_1d(r->ctx, SHEAF_TYPE_F32, WIDTH);
    r->node[0] = sheaf_add(r->ctx, r->other, r->source);
    r->node[1] = sheaf_rms_norm(r->ctx, r->node[0], 1e-5f);
    r->node[2] = sheaf_mul(r->ctx, r->node[1], r->weight);
    r->source->data = place(r, 0);
    r->other->data = place(r, 1);
    r->weight->data = place(r, 2);
    for (int i = 0; i < 3; i++) r->node[i]->data = place(r, 3 + i);
}

Test(chain, memory_decides) {
    static const struct {
        int node;       /* whose memory is elsewhere */
        int at, floats; /* at that place, and so much behind its begin */
        bool safe;
    } cases[] = {
        {0, 3, 0, true},
        {0, 0, 0, true},            /* onto the source, row by row */
        {0, 1, 0, true},            /* onto the other operand */
        {1, 0, 0, true},            /* a norm where the sum was */
        {1, 0, WIDTH, false},       /* a row further: the next one is still needed */
        {1, 0, -WIDTH, false},      /* a row earlier */
        {2, 0, 3, false},           /* within rows */
        {1, 2, 0, false},           /* over the weights that each row reads */
        {2, 3, 0, true},            /* over x */
        {2, 0, WIDTH * ROWS, true}, /* behind the source: over the other operand, in step */
        {2, 6, 0, true},            /* of no node */
        {0, 6, WIDTH * ROWS / 2, true},
        {2, 2, -1, false}, /* the end of it over the weights */
    };
    struct chain_rig r;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        chain_up(&r);
        r.node[cases[i].node]->data = place(&r, cases[i].at) + cases[i].floats;
        cr_expect_eq(sheaf__cpu_chain_is_safe(r.source, r.node, 3), cases[i].safe, "case %zu", i);
        sheaf_free(r.ctx);
    }
}

/* A chain that was declared safe has the bits of its nodes, in any partition, and in place. */
Test(chain, rows_in_any_partition) {
    static const int memory[][3] = {{3, 4, 5}, {0, 4, 4}, {1, 0, 0}, {1, 1, 0}};
    for (size_t k = 0; k < sizeof memory / sizeof *memory; k++) {
        float want[3][WIDTH * ROWS];
        for (int step = ROWS; step >= 1; step--) {
            struct chain_rig r;
            chain_up(&r);
            for (int i = 0; i < 8 * WIDTH * ROWS; i++) r.memory[i] = (float)(i % 37) * 0.37f - 3;
            for (int i = 0; i < 3; i++) r.node[i]->data = place(&r, memory[k][i]);
            cr_assert(sheaf__cpu_chain_is_safe(r.source, r.node, 3));
            for (int64_t row = 0; row < ROWS; row += step)
                sheaf__cpu_chain_rows(r.node, 3, row, row + step < ROWS ? row + step : ROWS);
            for (int i = 0; i < 3; i++) {
                if (step == ROWS) memcpy(want[i], r.node[i]->data, sizeof want[i]);
                cr_assert_eq(memcmp(want[i], r.node[i]->data, sizeof want[i]), 0, "%zu %d", k, i);
            }
            sheaf_free(r.ctx);
        }
    }
}

Test(chain, what_is_one) {
    struct chain_rig r;
    chain_up(&r);
    struct sheaf_tensor *list[4] = {r.node[0], r.node[1], r.node[2], NULL};
    struct sheaf_tensor *t;
    cr_expect_eq(sheaf__cpu_chain_length(r.source, list, 3), 3);
    cr_expect_eq(sheaf__cpu_chain_length(NULL, list, 3), 3);
    cr_expect_eq(sheaf__cpu_chain_length(r.weight, list, 3), 0, "rows of another shape");
    cr_expect_eq(sheaf__cpu_chain_length(r.source, list + 1, 1), 1);

    list[3] = sheaf_mul_mat(r.ctx, r.other, r.node[2]);
    cr_assert_not_null(list[3]);
    cr_expect_eq(sheaf__cpu_chain_length(r.source, list, 4), 3, "a product needs all rows");
    list[3] = sheaf_add(r.ctx, r.node[2], sheaf_new_tensor_2d(r.ctx, SHEAF_TYPE_F32, WIDTH, 3));
    cr_expect_eq(sheaf__cpu_chain_length(r.source, list, 4), 3, "rows 3 to 5 need rows 0 to 2");
    list[3] = t = sheaf_mul(r.ctx, r.node[2], r.other);
    cr_expect_eq(sheaf__cpu_chain_length(r.source, list, 4), 4);
    t->nb[1] *= 2;
    cr_expect_eq(sheaf__cpu_chain_length(r.source, list, 4), 3, "rows with gaps");
    list[3] = sheaf_mul(r.ctx, r.node[2], sheaf_new_tensor_1d(r.ctx, SHEAF_TYPE_F32, 2));
    cr_expect_eq(sheaf__cpu_chain_length(r.source, list, 4), 3, "repeated within a row");
    list[3] = sheaf_scale(r.ctx, r.node[2], 2);
    cr_expect_eq(sheaf__cpu_chain_length(r.source, list, 4), 3, "no such row function");
    list[3] = sheaf_add(r.ctx, sheaf_new_tensor_2d(r.ctx, SHEAF_TYPE_F16, WIDTH, ROWS), r.node[2]);
    cr_expect_eq(sheaf__cpu_chain_length(r.source, list, 4), 3, "an F16 result");
    sheaf_free(r.ctx);
}
