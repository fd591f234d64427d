/* The text of every kind of error and explanation of src/split, word for word: those of
 * tests/golden/split-errors.txt. */
#include <criterion/criterion.h>

#include "golden_text.h"
#include "split_graphs.h"

typedef struct sheaf_tensor T;
typedef int64_t I;

enum { CAP = 1 << 16 };

struct page {
    char text[CAP];
    size_t n;
};

static void put(struct page *p, const char *kind, const char *text) {
    const size_t len = strlen(text);
    const char *end = len && text[len - 1] == '\n' ? "" : "\n";
    p->n += (size_t)snprintf(p->text + p->n, CAP - p->n, "\n# %s\n%s%s", kind, text, end);
    cr_assert_lt(p->n, (size_t)CAP);
    cr_expect(len > 0, "%s has no text", kind);
}

/* ---- explanations of gathers: a graph of one op, two members ---- */

struct one {
    struct split_model m;
};

static void begin(struct one *o) { split_model_init(&o->m, 2, 3); }

static T *tensor(struct one *o, const char *name, I a, I b, I c) {
    return split_new(&o->m, name, a, b, c, 1);
}
static void cut(struct one *o, T *t, int axis, I first, I second) {
    split_give(&o->m, t,
               sheaf_split_state_cut((enum sheaf_split_axis)axis, 2, (I[]){first, second}, 1));
}

static void explain(struct page *p, const char *kind, struct one *o, T *result) {
    char text[2048];
    struct sheaf__split_plan *plan = NULL;
    cr_assert_eq(sheaf_build_forward_expand(o->m.graph, sheaf_set_name(result, "result")), 0, "%s",
                 sheaf_last_error());
    cr_assert_eq(sheaf__split_plan_new(o->m.graph, 2, split_model_state, &o->m, &plan), 0, "%s",
                 sheaf_last_error());
    bool any = false;
    for (int i = 0; i < o->m.graph->n_nodes && !any; i++)
        any = sheaf__split_explain(plan, o->m.graph, i, text, sizeof text);
    cr_expect(any, "%s: nothing was gathered", kind);
    if (any) put(p, kind, text);
    sheaf__split_plan_free(plan);
    split_model_free(&o->m);
}

static void explanations(struct page *p) {
    struct one o;
    T *a, *b;

    begin(&o);
    a = tensor(&o, "x", 8, 4, 1);
    cut(&o, a, 0, 4, 4);
    explain(p, "a dimension that the op needs whole", &o, sheaf_rms_norm(o.m.ctx, a, 1e-5f));

    begin(&o);
    a = tensor(&o, "w", 12, 8, 1);
    b = tensor(&o, "x", 12, 3, 1);
    cut(&o, a, 0, 6, 6);
    cut(&o, b, 0, 4, 8);
    explain(p, "cuts of different sizes", &o, sheaf_mul_mat(o.m.ctx, a, b));

    begin(&o);
    a = tensor(&o, "w", 12, 8, 1);
    b = tensor(&o, "x", 12, 3, 1);
    cut(&o, a, 0, 6, 6);
    struct sheaf_split_state *s = sheaf_split_state_new(SHEAF_SPLIT_AXIS_0, 2, 1);
    s->segments[0].outer = 2;
    s->segments[0].units = 6;
    s->segments[0].inner = 1;
    s->segments[0].first[1] = 3;
    s->segments[0].count[0] = s->segments[0].count[1] = 3;
    split_give(&o.m, b, s);
    explain(p, "cuts of equal sizes in other pieces", &o, sheaf_mul_mat(o.m.ctx, a, b));

    begin(&o);
    a = tensor(&o, "a", 8, 4, 1);
    b = tensor(&o, "b", 8, 4, 1);
    cut(&o, a, 0, 4, 4);
    cut(&o, b, 1, 2, 2);
    explain(p, "cuts of different dimensions", &o, sheaf_add(o.m.ctx, a, b));

    begin(&o);
    a = tensor(&o, "w", 12, 8, 1);
    s = sheaf_split_state_new(SHEAF_SPLIT_AXIS_0, 2, 1);
    s->segments[0].outer = 1;
    s->segments[0].units = 12;
    s->segments[0].inner = 1;
    s->segments[0].first[1] = 4;
    s->segments[0].count[0] = s->segments[0].count[1] = 8;
    split_give(&o.m, a, s);
    explain(p, "a sum over slices that overlap", &o,
            sheaf_mul_mat(o.m.ctx, a, tensor(&o, "x", 12, 3, 1)));

    begin(&o);
    a = tensor(&o, "x", 6, 4, 1);
    cut(&o, a, 0, 2, 4);
    explain(p, "a view across the pieces", &o,
            sheaf_cont(o.m.ctx, sheaf_reshape_2d(o.m.ctx, a, 3, 8)));

    begin(&o);
    a = tensor(&o, "x", 4, 70000, 1);
    cut(&o, a, 0, 2, 2);
    explain(p, "a view of more pieces than a cut can have", &o,
            sheaf_cont(o.m.ctx, sheaf_reshape_1d(o.m.ctx, a, 280000)));

    begin(&o);
    a = tensor(&o, "qkv", 12, 4, 1);
    cut(&o, a, 0, 6, 6);
    T *view = sheaf_view_2d(o.m.ctx, a, 4, 4, a->nb[1], 4 * sizeof(float));
    explain(p, "a gated unit over a dimension cut in one piece", &o,
            sheaf_swiglu(o.m.ctx, sheaf_cont(o.m.ctx, view)));
}

/* ---- refusals ---- */

static const struct sheaf_split_state *no_state(const T *leaf, void *user) {
    (void)leaf;
    (void)user;
    return NULL;
}

static void refuse(struct page *p, const char *kind, struct one *o, int n_members,
                   sheaf__leaf_state_fn fn) {
    struct sheaf__split_plan *plan;
    sheaf_set_error(SHEAF_STATUS_INVALID, "%s", "");
    cr_expect_neq(sheaf__split_plan_new(o->m.graph, n_members, fn, &o->m, &plan), 0, "%s", kind);
    cr_expect_null(plan);
    put(p, kind, sheaf_last_error());
    split_model_free(&o->m);
}

static T *graph_of_one(struct one *o, enum sheaf_type type, I a, I b) {
    begin(o);
    T *t = sheaf_set_name(sheaf_new_tensor_2d(o->m.ctx, type, a, b), "blk.0.ffn_down.weight");
    T *x = sheaf_new_tensor_2d(o->m.ctx, SHEAF_TYPE_F32, a, 1);
    cr_assert_eq(sheaf_build_forward_expand(o->m.graph, sheaf_mul_mat(o->m.ctx, t, x)), 0, "%s",
                 sheaf_last_error());
    return t;
}

static struct sheaf_split_state *one_segment(I outer, I inner, I units, I f0, I c0, I f1, I c1) {
    struct sheaf_split_state *s = sheaf_split_state_new(SHEAF_SPLIT_AXIS_0, 2, 1);
    struct sheaf_split_segment *g = s->segments;
    g->outer = outer;
    g->inner = inner;
    g->units = units;
    g->first[0] = f0;
    g->count[0] = c0;
    g->first[1] = f1;
    g->count[1] = c1;
    return s;
}

static void refusals(struct page *p) {
    struct one o;
    T *t;

    graph_of_one(&o, SHEAF_TYPE_F32, 64, 8);
    refuse(p, "a leaf without a state", &o, 2, no_state);
    graph_of_one(&o, SHEAF_TYPE_F32, 64, 8);
    refuse(p, "no members", &o, 0, split_model_state);
    t = graph_of_one(&o, SHEAF_TYPE_F32, 64, 8);
    split_give(&o.m, t, sheaf_split_state_mirrored(3));
    refuse(p, "a state for another number of members", &o, 2, split_model_state);

    const struct {
        const char *kind;
        enum sheaf_type type;
        struct sheaf_split_state *state;
    } cases[] = {
        {"addends of a type that has none", SHEAF_TYPE_Q8_0, sheaf_split_state_partial(2)},
        {"slices that cut quantization blocks", SHEAF_TYPE_Q8_0, one_segment(1, 16, 4, 0, 1, 1, 3)},
        {"segments that do not add up", SHEAF_TYPE_F32, one_segment(1, 1, 60, 0, 30, 30, 30)},
        {"units without an owner", SHEAF_TYPE_F32, one_segment(1, 1, 64, 0, 30, 34, 30)},
        {"units outside their segment", SHEAF_TYPE_F32, one_segment(1, 1, 64, 0, 32, 40, 32)},
        {"a segment of nothing", SHEAF_TYPE_F32, one_segment(0, 1, 64, 0, 32, 32, 32)},
        {"a cut without segments", SHEAF_TYPE_F32, sheaf_split_state_new(SHEAF_SPLIT_AXIS_0, 2, 0)},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        t = graph_of_one(&o, cases[i].type, 64, 8);
        split_give(&o.m, t, cases[i].state);
        refuse(p, cases[i].kind, &o, 2, split_model_state);
    }
    t = graph_of_one(&o, SHEAF_TYPE_F32, 1 << 18, 1);
    split_give(&o.m, t, one_segment(1 << 17, 1, 2, 0, 1, 1, 1));
    refuse(p, "a cut of too many pieces", &o, 2, split_model_state);

    struct sheaf_split_state *s;
    cr_expect_neq(
        sheaf_split_state_from_ne((enum sheaf_split_axis)7, 2, 1, (I[]){1, 1}, (uint32_t[]){1}, &s),
        0);
    put(p, "from ggml's form: an axis that is none", sheaf_last_error());
    cr_expect_neq(sheaf_split_state_from_ne(SHEAF_SPLIT_AXIS_0, 2, 0, NULL, NULL, &s), 0);
    put(p, "from ggml's form: no segment", sheaf_last_error());
    cr_expect_neq(
        sheaf_split_state_from_ne(SHEAF_SPLIT_AXIS_0, 2, 1, (I[]){1, -1}, (uint32_t[]){1}, &s), 0);
    put(p, "from ggml's form: less than nothing", sheaf_last_error());
    cr_expect_neq(sheaf_split_state_from_ne(SHEAF_SPLIT_AXIS_0, 2, 1,
                                            (I[]){INT64_MAX, INT64_MAX - 1}, (uint32_t[]){1}, &s),
                  0);
    put(p, "from ggml's form: too much", sheaf_last_error());
    s = one_segment(1, 1, 4, 2, 2, 0, 2);
    I ne[2];
    uint32_t nr[1];
    cr_expect_neq(sheaf_split_state_to_ne(s, ne, nr), 0);
    put(p, "to ggml's form: what it cannot say", sheaf_last_error());
    sheaf_split_state_free(s);
}

Test(split_errors, texts_are_the_golden_ones) {
    struct page *made = calloc(1, sizeof *made);
    cr_assert_not_null(made);
    made->n = (size_t)snprintf(made->text, CAP,
                               "# Every kind of error and explanation of src/split. Made by "
                               "test-split-errors\n# with SHEAF_TEST_UPDATE_GOLDEN=1.\n");
    explanations(made);
    refusals(made);
    expect_golden_text(GOLDEN_FILE("split-errors.txt"), made->text);
    free(made);
}
