/* Graphs of ggml as bytes: what the encoder writes of nodes that are no plain ones, which results it
 * finds, and that the other ranks take the bytes for a graph. */
#include <criterion/criterion.h>
#include <string.h>

#include "ggml_graph.h"

static struct gg_graph decoded;

static void stop(void) {
    gg_graph_free(&decoded);
    end_graph();
}
TestSuite(ggml_encode, .init = begin_graph, .fini = stop);

/* ---- what becomes of a graph ---- */

static struct sheaf_tensor *object(void *user, uint32_t number) {
    static struct sheaf_tensor objects[8];
    const struct gg_region *r =
        memory->regions[number]; /* a graph here numbers them in their order */
    (void)user;
    objects[number] = (struct sheaf_tensor){.type = r->type, .nb = {4}};
    for (int i = 0; i < SHEAF_MAX_DIMS; i++) {
        objects[number].ne[i] = r->ne[i];
        if (i) objects[number].nb[i] = objects[number].nb[i - 1] * (size_t)r->ne[i - 1];
    }
    return &objects[number];
}
static void decode(void) {
    gg_graph_free(&decoded);
    cr_assert_eq(
        gg_graph_decode(e.graph.data, e.graph.n, (uint32_t)e.n_made, object, NULL, &decoded),
        SHEAF_STATUS_SUCCESS, "%s", sheaf_last_error());
}
static void encode(void) {
    cr_assert_eq(gg_encode(&e, &graph), SHEAF_STATUS_SUCCESS, "%s", sheaf_last_error());
    decode();
}
static void refuses(enum sheaf_status status, const char *text) {
    cr_expect_eq(gg_encode(&e, &graph), status);
    cr_expect(strstr(sheaf_last_error(), text), "%s", sheaf_last_error());
}
/* The i-th tensor of that op; NULL: there are fewer. */
static const struct sheaf_tensor *found(enum sheaf_op op, int i) {
    for (uint32_t k = 0; k < decoded.n; k++)
        if (decoded.tensors[k]->op == op && !i--) return decoded.tensors[k];
    return NULL;
}
static int n_of(enum sheaf_op op) {
    int n = 0;
    while (found(op, n)) n++;
    return n;
}
/* The only result of the graph. */
static void gives(const struct gg_tensor *t) {
    cr_assert_eq(e.n_results, 1, "%zu results", e.n_results);
    cr_expect_eq(e.results[0], t);
}

Test(ggml_encode, versions) {
    static const struct {
        const char *version;
        int since;
        bool is;
    } cases[] = {
        {"0.25.0", 25, true},
        {"0.24.9", 25, false},
        {"0.27.0", 25, true},
        {"0.9.5", 9, true},
        {"1.0.0", 25, true},
        {"1", 25, false},
        {"of unknown version", 0, false},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        strcpy(host.version, cases[i].version);
        cr_expect_eq(gg_is_since(&host, cases[i].since), cases[i].is, "%s", cases[i].version);
    }
}

/* ---- nodes ---- */

Test(ggml_encode, signals_are_read_as_images) {
    struct gg_tensor *columns =
        NODE("IM2COL", 6, 8, 1, tensor(SHEAF_TYPE_F32, 3, 2, 4), tensor(F32, 8, 2, 1));
    columns->op_params[0] = columns->op_params[2] = columns->op_params[4] = 1;
    encode();
    const struct sheaf_tensor *images = found(SHEAF_OP_PERMUTE, 0);
    cr_assert(images && found(SHEAF_OP_IM2COL, 0)->src[0] == images);
    cr_expect(images->ne[0] == 8 && images->ne[1] == 1 && images->ne[2] == 2);
}

/* The result is flat here. Views read it so, other nodes in the shape that it has in ggml. */
Test(ggml_encode, flat_results) {
    enum { SIZE = 4, HEADS = 2, TOKENS = 3, WIDTH = SIZE * HEADS };
    struct gg_tensor *x = tensor(F32, SIZE, HEADS, TOKENS),
                     *state = tensor(F32, SIZE * WIDTH, 1, 1);
    struct gg_tensor *y = NODE("GATED_LINEAR_ATTN", WIDTH, TOKENS + SIZE, 1, x, x, x, x, state);
    scale(view(y, WIDTH, TOKENS, 0));
    encode();
    cr_expect_eq(n_of(SHEAF_OP_RESHAPE), 0);
    scale(y);
    encode();
    cr_assert_eq(n_of(SHEAF_OP_RESHAPE), 1);
    cr_expect_eq(found(SHEAF_OP_VIEW, 0)->src[0], found(SHEAF_OP_GATED_LINEAR_ATTN, 0));
    cr_expect_eq(found(SHEAF_OP_SCALE, 1)->src[0], found(SHEAF_OP_RESHAPE, 0));
    cr_expect_eq(found(SHEAF_OP_SCALE, 1)->ne[1], TOKENS + SIZE);
}

/* The copy of a view of another device's tensor: rows of two blocks with a gap of one. */
Test(ggml_encode, leaves_with_strides) {
    struct gg_tensor *x = tensor(SHEAF_TYPE_Q8_0, 64, 3, 1);
    const size_t block = sheaf_type_size(SHEAF_TYPE_Q8_0);
    x->nb[1] = 3 * block;
    x->nb[2] = x->nb[3] = 9 * block;
    struct gg_tensor *y = NODE("CPY", 64, 3, 1, x, x);
    y->src[1] = y;
    encode();
    const struct sheaf_tensor *view = found(SHEAF_OP_VIEW, 0);
    cr_assert(view && found(SHEAF_OP_DUP, 0)->src[0] == view);
    cr_expect_eq(view->nb[1], 3 * block);
    cr_expect_eq(sheaf_nbytes(view->view_src), 8 * block);
}

Test(ggml_encode, views_of_views) {
    struct gg_tensor *x = tensor(F32, 16, 1, 1), *v = view(x, 8, 1, 32);
    struct gg_tensor *w = view(v, 4, 1, 48), *y = scale(w);
    uint64_t offset;
    encode();
    gives(y);
    const struct sheaf_tensor *inner = found(SHEAF_OP_VIEW, 1);
    memcpy(&offset, inner->op_params, sizeof offset);
    cr_expect_eq(inner->view_offs, 48);
    cr_expect_eq(offset, 16);
    w->view_offs = 16;
    refuses(SHEAF_STATUS_UNSUPPORTED, "begins before");
    w->view_offs = 56;
    refuses(SHEAF_STATUS_INVALID, "ends outside of");
}

/* A plan knows how a cut passes through a permutation, and not through strides. */
Test(ggml_encode, views_keep_their_ops) {
    struct gg_tensor *x = tensor(F32, 4, 6, 1), *v = shows(NODE("TRANSPOSE", 6, 4, 1, x), x, 0);
    v->nb[0] = 16;
    v->nb[1] = 4;
    graph.n_nodes = 0; /* it was computed with another part */
    NODE("CONT", 6, 4, 1, v);
    encode();
    cr_expect(found(SHEAF_OP_TRANSPOSE, 0) && !found(SHEAF_OP_VIEW, 0));
}

Test(ggml_encode, types_that_are_not_known) {
    struct gg_tensor *v = view(tensor(F32, 4, 1, 1), 4, 1, 0);
    v->type = UNKNOWN;
    graph.n_nodes = 0;
    scale(v);
    refuses(SHEAF_STATUS_UNSUPPORTED, "has an op or a type that this device lacks");
}

Test(ggml_encode, a_weight_under_two_names) {
    struct gg_tensor *a = weight("token_embd.weight", 8, 8), *b = weight("output.weight", 8, 8);
    b->data = a->data;
    NODE("ADD", 8, 8, 1, a, b);
    encode();
    cr_expect_eq(e.n_unbound, 1);
    cr_expect_eq(decoded.objects[0], decoded.objects[1]);
}

/* More tensors than the table has room for at first, of an earlier part. */
Test(ggml_encode, many_views_of_views) {
    enum { VIEWS = 300 };
    struct gg_tensor *v = tensor(F32, 4, 1, 1);
    for (int i = 0; i < VIEWS; i++) v = view(v, 4, 1, 0);
    graph.n_nodes = 0;
    struct gg_tensor *y = NODE("ADD", 4, 1, 1, scale(v), v);
    encode();
    cr_expect_eq(e.n_made, 1 + VIEWS + 2);
    gives(y);
}

/* ---- questions ---- */

static void asks(const struct gg_tensor *t) {
    cr_assert_eq(gg_encode_question(&e, t), SHEAF_STATUS_SUCCESS, "%s", sheaf_last_error());
    decode();
}

Test(ggml_encode, questions) {
    struct gg_tensor *x = tensor(F32, 4, 6, 1), *cells = tensor(F32, 4, 32, 1);
    asks(shows(scale(x), x, 0));
    cr_expect_eq(n_of(SHEAF_OP_CPY), 1, "a result over an operand is copied there");
    asks(shows(NODE("SET_ROWS", 4, 32, 1, x, tensor(SHEAF_TYPE_I64, 6, 1, 1), cells), cells, 0));
    cr_expect_eq(n_of(SHEAF_OP_CPY), 0, "an op that writes there itself is not copied");
    x->nb[1] = 32;
    x->nb[2] = x->nb[3] = 6 * 32;
    asks(scale(x));
    cr_expect(sheaf_is_contiguous(found(SHEAF_OP_SCALE, 0)->src[0]));
}

/* ---- results ---- */

Test(ggml_encode, views_of_other_devices) {
    view(tensor(F32, 8, 1, 1), 4, 1, 0);
    cr_assert_eq(gg_encode(&e, &graph), SHEAF_STATUS_SUCCESS);
    cr_expect_eq(e.n_made + e.n_inputs + e.n_results, 0, "nothing reads it");
}
Test(ggml_encode, the_result_that_a_view_shows) {
    struct gg_tensor *y = scale(tensor(F32, 8, 1, 1));
    view(y, 4, 1, 0);
    encode();
    gives(y);
}
Test(ggml_encode, a_view_of_an_input_is_no_result) {
    struct gg_tensor *y = scale(view(tensor(F32, 8, 1, 1), 4, 1, 0));
    encode();
    gives(y);
}
Test(ggml_encode, what_is_written_over_an_input) {
    struct gg_tensor *x = tensor(F32, 8, 1, 1), *a = shows(scale(x), x, 0);
    shows(scale(a), a, 0);
    encode();
    gives(x);
}
Test(ggml_encode, rows_that_are_set_in_a_view) {
    struct gg_tensor *cells = tensor(F32, 4, 8, 1), *v = view(cells, 4, 4, 64);
    shows(NODE("SET_ROWS", 4, 4, 1, tensor(F32, 4, 2, 1), tensor(SHEAF_TYPE_I64, 2, 1, 1), v), v,
          64);
    encode();
    gives(cells);
    cr_expect_eq(found(SHEAF_OP_SET_ROWS, 0)->view_offs, 64);
}

/* ---- buffers ---- */

static struct gg_tensor *in_any(struct gg_tensor *t) {
    t->buffer = &any;
    t->data = memory->base + (1 << 23) + at_weights;
    at_weights += t->nb[3];
    return t;
}

/* A program elsewhere does not say that a buffer is for results: the first graph with weights elsewhere
 * shows it. What another graph took for a weight is brought back before. */
Test(ggml_encode, buffers_without_a_usage) {
    static const struct gg_file file;
    struct gg_tensor *x = in_any(tensor(F32, 8, 1, 1)), *w = weight("weight", 8, 1);
    scale(x);
    encode();
    cr_expect_eq(e.n_unbound, 1);
    in_any(NODE("ADD", 8, 1, 1, x, w));
    refuses(SHEAF_STATUS_INVALID, "was a weight before");
    cr_expect_eq(e.stale, gg_region_find(memory, x));
    gg_number_return(&numbers, e.stale);
    e.stale->file = &file;
    refuses(SHEAF_STATUS_INVALID, "was a weight before");
    e.stale->file = NULL;
    encode();
    cr_expect_eq(any.usage, GG_USAGE_COMPUTE);
    cr_expect_eq(e.n_inputs, 1, "x is an input now");
}
Test(ggml_encode, caches_without_a_usage) {
    struct gg_tensor *cells = in_any(tensor(F32, 4, 8, 1)), *ids = tensor(SHEAF_TYPE_I64, 2, 1, 1);
    struct gg_tensor *rows = NODE("SCALE", 4, 2, 1, weight("weight", 4, 2));
    shows(NODE("SET_ROWS", 4, 8, 1, rows, ids, cells), cells, 0)->buffer = &any;
    encode();
    cr_expect_eq(any.usage, GG_USAGE_ANY, "a node that only writes there says nothing");
}

/* ---- norms ---- */

/* The norm of 8 heads of 4 elements, with the nodes before and behind it. */
struct norm {
    const char *name;
    int n_adds;         /* a scale and a bias behind the product */
    bool adds_computed; /* what is added is no weight */
    bool in_place, of_scaled, one_weight_a_head;
    int64_t rows; /* of as many heads; 0: the product's own */
    bool is_shared;
};

static void make_norm(const struct norm *c) {
    struct gg_tensor *x =
        NODE("MUL_MAT", 32, 3, 1, weight("blk.0.attn_q.weight", 16, 32), tensor(F32, 16, 3, 1));
    for (int i = 0; i < c->n_adds; i++)
        x = NODE(i ? "MUL" : "ADD", 32, 3, 1, x,
                 c->adds_computed ? scale(x) : weight("bias", 32, 1));
    if (c->rows) {
        struct gg_tensor *heads = shows(NODE("RESHAPE", 4, 8, 3, x), x, 0);
        x = shows(NODE("RESHAPE", 32 / c->rows, c->rows, 3, heads), heads, 0);
    }
    struct gg_tensor *norm = NODE("RMS_NORM", x->ne[0], x->ne[1], x->ne[2], x);
    if (c->in_place) shows(norm, x, 0);
    struct gg_tensor *w = weight(c->name, c->one_weight_a_head ? 1 : x->ne[0], 1);
    if (c->of_scaled) strcpy((w = scale(w))->name, c->name);
    NODE("MUL", x->ne[0], x->ne[1], x->ne[2], norm, w);
}

/* A norm over all heads becomes a sum of squares, which members add up. Others stay what they are. */
Test(ggml_encode, norms_over_all_heads) {
    static const char q[] = "blk.0.attn_q_norm.weight", two[] = "blk.0.attn_norm_2.weight";
    static const char of_state[] = "blk.0.ssm_norm.weight";
    static const struct norm cases[] = {
        {q, .is_shared = true},
        {"blk.0.attn_k_norm.weight", .is_shared = true},
        {q, .n_adds = 1, .is_shared = true},
        {q, .n_adds = 2, .is_shared = true},
        {q, .n_adds = 3},
        {q, .n_adds = 1, .adds_computed = true},
        {q, .in_place = true},
        {q, .of_scaled = true},
        {q, .one_weight_a_head = true},
        {"blk.0.attn_norm.weight", .rows = 0},
        {two, .rows = 1, .is_shared = true},
        {of_state, .rows = 1, .is_shared = true},
        {of_state, .rows = 2},
        {two, .rows = 8},
        {q, .rows = 1},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        stop();
        begin_graph();
        e.shares_norms = true;
        make_norm(&cases[i]);
        cr_assert_eq(gg_encode(&e, &graph), SHEAF_STATUS_SUCCESS, "case %zu: %s", i,
                     sheaf_last_error());
        int n_sums = 0;
        for (size_t k = 0; k < e.n_made; k++) n_sums += e.made[k].record.op == SHEAF_OP_SUM_ROWS;
        cr_expect_eq(n_sums, cases[i].is_shared, "case %zu: %s", i, cases[i].name);
    }
}
