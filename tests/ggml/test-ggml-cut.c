/* How weights and caches are cut, by names and by the graph alone: blocks of quantized types, shapes that
 * do not fit, and layers that differ. What members compute with the cuts is tested by test-ggml-plugin. */
#include <criterion/criterion.h>
#include <stdio.h>
#include <string.h>

#include "ggml/cut.h"
#include "ggml/leaf.h"
#include "ggml_graph.h"

enum { Q4_0 = SHEAF_TYPE_Q4_0, MOST = 16, TOKENS = 2 };

static struct sheaf_split_state *states[MOST];
static const char *why[MOST];
static double shares[] = {1, 1, 1};
static struct gg_cutter cutter;

static void forget(void) {
    for (size_t i = 0; i < e.n_unbound; i++) sheaf_split_state_free(states[i]);
    memset(states, 0, sizeof states);
    memset(why, 0, sizeof why);
}
static void start(void) {
    begin_graph();
    cutter = (struct gg_cutter){.e = &e, .graph = &graph, .n_members = 3, .shares = shares};
}
static void stop(void) {
    forget();
    end_graph();
}
TestSuite(ggml_cut, .init = start, .fini = stop);

static void encode(void) {
    forget();
    cr_assert_eq(gg_encode(&e, &graph), SHEAF_STATUS_SUCCESS, "%s", sheaf_last_error());
    cr_assert_leq(e.n_unbound, MOST);
}
static void cut(void) {
    bool is_named;
    encode();
    cr_assert_eq(gg_cut_by_names(&cutter, states, why, &is_named), SHEAF_STATUS_SUCCESS);
    cr_expect(is_named);
}
static size_t number_of(const struct gg_tensor *w) {
    size_t i = 0;
    while (i < e.n_unbound && e.unbound[i] != gg_region_find(memory, w)) i++;
    cr_assert_lt(i, e.n_unbound, "'%s' is not read", w->name);
    return i;
}
static void is_cut(const struct gg_tensor *w, const char *want) {
    char text[256] = "whole";
    const struct sheaf_split_state *state = states[number_of(w)];
    if (state) sheaf_split_state_print(state, text, sizeof text);
    cr_expect_str_eq(text, want, "%s: %s, not %s", w->name, text, want);
}
static void is_whole(const struct gg_tensor *w, const char *reason) {
    const size_t i = number_of(w);
    cr_expect(!states[i], "%s", w->name);
    cr_expect(why[i] && strstr(why[i], reason), "%s: %s", w->name, why[i] ? why[i] : "no reason");
}

/* ---- by names ---- */

Test(ggml_cut, names_say_layer_role_and_family) {
    static const struct {
        const char *name, *layer;
        enum gg_role role;
        const char *family;
        bool bias;
    } cases[] = {
        {"blk.7.attn_q.weight", "blk.7.", GG_ROLE_Q, "", false},
        {"blk.7.attn_q.bias", "blk.7.", GG_ROLE_Q, "", true},
        {"blk.17.ffn_up_exps.weight", "blk.17.", GG_ROLE_FFN_IN, "_exps", false},
        {"blk.7.ffn_down_chexps.weight", "blk.7.", GG_ROLE_FFN_OUT, "_chexps", false},
        {"blk.7.ffn_gate_shexp.weight", "blk.7.", GG_ROLE_FFN_IN, "_shexp", false},
        {"blk.7.ffn_down_1.weight", "blk.7.", GG_ROLE_FFN_OUT, "_1", false},
        {"blk.7.ssm_a", "blk.7.", GG_ROLE_STATE_HEADS, "", false},
        {"blk.7.shortconv.conv.weight", "blk.7.", GG_ROLE_SHORT, "", false},
        {"dec.blk.7.attn_q.weight", "blk.7.", GG_ROLE_Q, "", false},
        {"dec.blk.7.cross_attn_q.weight", "blk.7.cross.", GG_ROLE_Q, "", false},
        {"v.blk.7.attn_q.weight", "v.blk.7.", GG_ROLE_Q, "", false},
        {"output.weight", "", GG_ROLE_VOCABULARY, "", false},
        {"blk.7.output_norm.weight", "blk.7.", GG_ROLE_NONE, "", false},
        {"leaf_7", "", GG_ROLE_NONE, "", false},
        {"cache_k_l0", "blk.0.", GG_ROLE_CACHE_K, "", false},
        {"cache_v_l17", "blk.17.", GG_ROLE_CACHE_V, "", false},
        {"conv_states_all-7", "blk.7.", GG_ROLE_CACHE_R, "", false},
        {"cache_k_l-1", "", GG_ROLE_NONE, "", false},
        {"cache_k", "", GG_ROLE_NONE, "", false},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct gg_leaf l;
        gg_leaf_of(cases[i].name, &l);
        cr_expect_str_eq(l.layer, cases[i].layer, "%s: '%s'", cases[i].name, l.layer);
        cr_expect_str_eq(l.family, cases[i].family, "%s: '%s'", cases[i].name, l.family);
        cr_expect(l.role == cases[i].role && l.bias == cases[i].bias, "%s", cases[i].name);
    }
}

struct attention {
    struct gg_tensor *q, *k, *v, *o, *cache_k, *cache_v, *norm;
};

static struct gg_tensor *named(int type, int layer, const char *what, int64_t a, int64_t b) {
    char name[64];
    snprintf(name, sizeof name, "blk.%d.%s.weight", layer, what);
    return weight_of(type, name, a, b, 1);
}
/* The heads of a product. */
static struct gg_tensor *heads_of(struct gg_tensor *w, struct gg_tensor *x, int64_t size,
                                  int64_t n) {
    struct gg_tensor *y = NODE("MUL_MAT", size * n, TOKENS, 1, w, x);
    return shows(NODE("RESHAPE", size, n, TOKENS, y), y, 0);
}
static struct gg_tensor *cells_of(int layer, char kind, int type, struct gg_tensor *rows,
                                  int64_t width, struct gg_tensor **cache) {
    char name[32];
    struct gg_tensor *ids = tensor(SHEAF_TYPE_I64, TOKENS, 1, 1);
    snprintf(name, sizeof name, "cache_%c_l%d", kind, layer);
    *cache = weight_of(type, name, width, 8, 1);
    struct gg_tensor *flat = shows(NODE("RESHAPE", width, TOKENS, 1, rows), rows, 0);
    struct gg_tensor *set = NODE("SET_ROWS", width, 8, 1, flat, ids, *cache);
    set->type = type;
    memcpy(set->nb, (*cache)->nb, sizeof set->nb);
    shows(set, *cache, 0)->buffer = &weights;
    return *cache;
}
/* Attention of n heads of 16 elements, that read n_kv, over 8 cells. */
static struct attention attend(int layer, int type, int cache_type, struct gg_tensor *x, int64_t n,
                               int64_t n_kv, bool is_normed) {
    enum { SIZE = 16, CELLS = 8 };
    const int64_t width = x->ne[0];
    struct attention a = {.q = named(type, layer, "attn_q", width, SIZE * n),
                          .k = named(type, layer, "attn_k", width, SIZE * n_kv),
                          .v = named(type, layer, "attn_v", width, SIZE * n_kv),
                          .o = named(type, layer, "attn_output", SIZE * n, width)};
    struct gg_tensor *q = heads_of(a.q, x, SIZE, n), *v = heads_of(a.v, x, SIZE, n_kv);
    struct gg_tensor *k = NODE("MUL_MAT", SIZE * n_kv, TOKENS, 1, a.k, x), *cells[2];
    if (is_normed) {
        a.norm = named(F32, layer, "attn_k_norm", SIZE * n_kv, 1);
        k = NODE("MUL", SIZE * n_kv, TOKENS, 1, NODE("RMS_NORM", SIZE * n_kv, TOKENS, 1, k),
                 a.norm);
    }
    k = shows(NODE("RESHAPE", SIZE, n_kv, TOKENS, k), k, 0);
    cells[0] = cells_of(layer, 'k', cache_type, k, SIZE * n_kv, &a.cache_k);
    cells[1] = cells_of(layer, 'v', cache_type, v, SIZE * n_kv, &a.cache_v);
    for (int i = 0; i < 2; i++) { /* [SIZE, CELLS, n_kv] */
        struct gg_tensor *all = cells[i];
        cells[i] = shows(NODE("VIEW", SIZE, n_kv, CELLS, all), all, 0);
        cells[i]->type = cache_type;
        cells[i]->nb[0] = all->nb[0];
        cells[i]->nb[1] = sheaf_row_size((enum sheaf_type)cache_type, SIZE);
        cells[i]->nb[2] = all->nb[1];
        struct gg_tensor *p = shows(NODE("PERMUTE", SIZE, CELLS, n_kv, cells[i]), cells[i], 0);
        p->type = cache_type;
        p->nb[0] = all->nb[0];
        p->nb[1] = cells[i]->nb[2];
        p->nb[2] = cells[i]->nb[1];
        cells[i] = p;
    }
    q = shows(NODE("PERMUTE", SIZE, TOKENS, n, q), q, 0);
    struct gg_tensor *y = NODE("FLASH_ATTN_EXT", SIZE, n, TOKENS, q, cells[0], cells[1]);
    NODE("MUL_MAT", width, TOKENS, 1, a.o, shows(NODE("RESHAPE", SIZE * n, TOKENS, 1, y), y, 0));
    return a;
}

/* Columns of attn_output are cut between blocks of 32 elements, which two heads have. */
Test(ggml_cut, heads_of_whole_blocks) {
    struct gg_tensor *x = tensor(F32, 64, TOKENS, 1);
    const struct attention of_blocks = attend(0, Q4_0, F32, x, 10, 5, false);
    const struct attention of_floats = attend(1, F32, F32, x, 9, 3, false);
    cutter.n_members = 2;
    cut();
    is_cut(of_blocks.q, "S1 {6,4}x16");
    is_cut(of_blocks.o, "S0 {6,4}x16");
    is_cut(of_floats.q, "S1 {5,4}x16");
    is_cut(of_floats.o, "S0 {5,4}x16");
    is_cut(of_floats.cache_v, "S0 {0:2,1:2}x16");
    cutter.whole_sums = true;
    cut();
    is_cut(of_blocks.q, "S1 {5,5}x16");
    is_cut(of_blocks.o, "S1 {2,2}x16");
}
/* Two members with parts of the middle K/V head's queries would each have a part of the norm over all. */
Test(ggml_cut, norms_over_all_key_heads) {
    const struct attention a = attend(0, F32, F32, tensor(F32, 64, TOKENS, 1), 9, 3, true);
    cutter.n_members = 2;
    cut();
    is_cut(a.q, "S1 {6,3}x16");
    is_cut(a.norm, "S0 {2,1}x16");
}
Test(ggml_cut, caches_whose_heads_are_no_blocks) {
    const struct attention a =
        attend(0, F32, SHEAF_TYPE_Q8_0, tensor(F32, 64, TOKENS, 1), 8, 2, false);
    cut();
    is_whole(a.cache_k, "its heads are no whole blocks of its type");
    is_cut(a.q, "S1 {4,2,2}x16");
}
Test(ggml_cut, one_head) {
    const struct attention a = attend(0, F32, F32, tensor(F32, 64, TOKENS, 1), 1, 1, false);
    cut();
    is_whole(a.q, "it has one head");
}
static struct gg_tensor *part_of(struct gg_tensor *y, int64_t n, size_t step, size_t first) {
    struct gg_tensor *v = shows(NODE("VIEW", 16, n, TOKENS, y), y, first * sizeof(float));
    v->nb[1] = step * sizeof(float);
    v->nb[2] = v->nb[3] = y->nb[1];
    return v;
}
/* Query, key and value in one matrix: one behind the other, which the graph takes apart in any order, or in each head. */
Test(ggml_cut, fused_heads) {
    static const struct {
        int64_t n, n_kv;
        bool is_interleaved;
        const char *want;
    } cases[] = {
        {9, 3, false, "S1 {5,4}x16+{0:2,1:2}x16+{0:2,1:2}x16"},
        {8, 8, false, "S1 {4,4}x16+{4,4}x16+{4,4}x16"},
        {8, 8, true, "S1 {4,4}x48"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const int64_t n = cases[i].n, n_kv = cases[i].n_kv, rows = 16 * (n + 2 * n_kv);
        const bool in_each = cases[i].is_interleaved;
        const size_t step = in_each ? 48 : 16, k_at = in_each ? 16 : 16 * (size_t)n;
        const size_t v_at = in_each ? 32 : k_at + 16 * (size_t)n_kv;
        stop();
        start();
        cutter.n_members = 2;
        struct gg_tensor *w = named(F32, 0, "attn_qkv", 64, rows),
                         *o = named(F32, 0, "attn_output", 16 * n, 64);
        struct gg_tensor *y = NODE("MUL_MAT", rows, TOKENS, 1, w, tensor(F32, 64, TOKENS, 1));
        struct gg_tensor *v = part_of(y, n_kv, step, v_at), *q = part_of(y, n, step, 0);
        struct gg_tensor *k = part_of(y, n_kv, step, k_at);
        scale(part_of(y, n, step, 0)); /* queries are read twice */
        struct gg_tensor *z = NODE("FLASH_ATTN_EXT", 16, n, TOKENS, q, k, v);
        NODE("MUL_MAT", 64, TOKENS, 1, o, shows(NODE("RESHAPE", 16 * n, TOKENS, 1, z), z, 0));
        cut();
        is_cut(w, cases[i].want);
    }
}
/* In units of the blocks of ffn_down; a bias of rows is cut like them, and that of the result is added once. */
Test(ggml_cut, feed_forward_of_blocks) {
    struct gg_tensor *x = tensor(F32, 64, TOKENS, 1);
    struct gg_tensor *up = named(Q4_0, 0, "ffn_up", 64, 160),
                     *down = named(Q4_0, 0, "ffn_down", 160, 64);
    struct gg_tensor *up_bias = weight("blk.0.ffn_up.bias", 160, 1),
                     *bias = weight("blk.0.ffn_down.bias", 64, 1);
    struct gg_tensor *h =
        NODE("ADD", 160, TOKENS, 1, NODE("MUL_MAT", 160, TOKENS, 1, up, x), up_bias);
    NODE("ADD", 64, TOKENS, 1, NODE("MUL_MAT", 64, TOKENS, 1, down, NODE("SQR", 160, TOKENS, 1, h)),
         bias);
    cut();
    is_cut(up, "S1 {2,2,1}x32");
    is_cut(up_bias, "S0 {2,2,1}x32");
    is_cut(down, "S0 {2,2,1}x32");
    is_cut(bias, "whole");
}

/* ---- layers with a state ---- */

enum { SIZE = 16, OPERANDS = 7 }; /* elements of a head; the most operands of a scan */

/* The layer's scan. `state`: the operand that it reads from the layer's cache. */
static struct gg_tensor *cache;
static struct gg_tensor *scan(const char *op, int state, int64_t heads, struct gg_tensor *groups) {
    const int64_t width = SIZE * heads;
    struct gg_tensor *src[OPERANDS];
    cache = weight("cache_s_l0", SIZE * width, 4);
    struct gg_tensor *x = tensor(F32, SIZE, heads, TOKENS);
    for (int i = 0; i < OPERANDS; i++) src[i] = x;
    src[state ? 0 : 4] = groups; /* queries, or B of a scan */
    src[state] = view(cache, SIZE * width, 1, 0);
    struct gg_tensor *y = node(op, width, TOKENS + SIZE, 1, src, state ? state + 1 : OPERANDS);
    return view(y, width, TOKENS, 0);
}

/* Queries of groups, as the scan reads them: as they are, or repeated for all heads, group by group or in rounds. */
enum repeats { AS_THEY_ARE, BY_GROUPS, IN_ROUNDS };
static struct gg_tensor *queries(int64_t heads, int64_t groups, enum repeats repeats) {
    if (repeats == AS_THEY_ARE) return tensor(F32, SIZE, groups, TOKENS);
    const bool rounds = repeats == IN_ROUNDS;
    struct gg_tensor *x = tensor(F32, SIZE, rounds ? groups : 1, rounds ? 1 : groups);
    x = NODE("REPEAT", SIZE, rounds ? heads : heads / groups, rounds ? TOKENS : groups * TOKENS, x);
    return shows(NODE("RESHAPE", SIZE, heads, TOKENS, x), x, 0);
}

struct scan {
    const char *op;
    int state;
    int64_t heads, groups;
    int type;           /* of the matrix behind it */
    const char *by_one; /* the cut of what has one number a head; NULL: whole */
    const char *out;    /* of the matrix's columns, or why it is whole */
    enum repeats repeats;
};

static void try_scan(const struct scan *s) {
    const char *name = strcmp(s->op, "GATED_DELTA_NET") ? "ssm_out" : "attn_output";
    struct gg_tensor *out = named(s->type, 0, name, SIZE * s->heads, 64);
    struct gg_tensor *d = weight("blk.0.ssm_d", s->heads, 1),
                     *bias = weight("blk.0.ssm_out.bias", 64, 1);
    struct gg_tensor *y = scan(s->op, s->state, s->heads, queries(s->heads, s->groups, s->repeats));
    NODE("ADD", 64, TOKENS, 1, NODE("MUL_MAT", 64, TOKENS, 1, out, y), bias);
    scale(d);
    cut();
    char of_state[64];
    snprintf(of_state, sizeof of_state, "%sx256", s->by_one ? s->by_one : "");
    is_cut(cache, s->by_one ? of_state : "whole");
    is_cut(d, s->by_one ? s->by_one : "whole");
    is_cut(bias, "whole");
    (s->out[0] == 'S' ? is_cut : is_whole)(out, s->out);
}
Test(ggml_cut, states_of_heads) {
    static const char blocks[] = "its heads are no whole blocks of its type";
    static const char no_scan[] = "the graph has no scan that reads the layer's state";
    static const struct scan scans[] = {
        {"SSM_SCAN", 0, 10, 1, F32, "S0 {4,3,3}", "S0 {4,3,3}x16", AS_THEY_ARE},
        {"SSM_SCAN", 0, 10, 1, Q4_0, "S0 {4,4,2}", "S0 {4,4,2}x16", AS_THEY_ARE},
        {"SSM_SCAN", 0, 10, 2, Q4_0, "S0 {5,3,2}", blocks, AS_THEY_ARE},
        {"SSM_SCAN", 0, 10, 4, F32, NULL, no_scan, AS_THEY_ARE},
        {"SSM_SCAN", 0, 1, 1, F32, NULL, "it has one head", AS_THEY_ARE},
        {"GATED_LINEAR_ATTN", 4, 10, 10, F32, "S0 {4,3,3}", "S0 {4,3,3}x16", AS_THEY_ARE},
        {"GATED_LINEAR_ATTN", 4, 10, 10, Q4_0, "S0 {4,4,2}", "S0 {4,4,2}x16", AS_THEY_ARE},
        {"GATED_DELTA_NET", 5, 10, 10, F32, "S0 {4,3,3}", "S0 {4,3,3}x16", AS_THEY_ARE},
        {"GATED_DELTA_NET", 5, 10, 5, F32, "S0 2*{2,2,1}", "S0 2*{2,2,1}x16", AS_THEY_ARE},
        {"GATED_DELTA_NET", 5, 10, 5, Q4_0, "S0 2*{2,2,1}", blocks, AS_THEY_ARE},
        {"GATED_DELTA_NET", 5, 10, 10, Q4_0, "S0 {4,4,2}", "S0 {4,4,2}x16", AS_THEY_ARE},
        {"GATED_DELTA_NET", 5, 20, 10, Q4_0, "S0 {8,6,6}", "S0 {8,6,6}x16", BY_GROUPS},
        {"GATED_DELTA_NET", 5, 10, 2, F32, "S0 5*{1,1,0}", "S0 5*{1,1,0}x16", IN_ROUNDS},
        {"RWKV_WKV6", 5, 10, 10, F32, "S0 {4,3,3}", "S0 {4,3,3}x16", AS_THEY_ARE},
        {"RWKV_WKV7", 6, 10, 10, F32, "S0 {4,3,3}", "S0 {4,3,3}x16", AS_THEY_ARE},
    };
    for (size_t i = 0; i < sizeof scans / sizeof *scans; i++) {
        stop();
        start();
        fprintf(stderr, "case %zu, %s\n", i, scans[i].op);
        try_scan(&scans[i]);
    }
    stop();
    start();
    cutter.whole_sums = true; /* blocks of columns that are not cut do not count */
    try_scan(
        &(struct scan){"SSM_SCAN", 0, 10, 1, Q4_0, "S0 {4,3,3}", "S1 {2,1,1}x16", AS_THEY_ARE});
}

/* Weights of a layer, [a, b], which the graph reads beside the scan; heads of 16 elements. */
struct beside {
    const char *op;
    int state;
    int64_t heads, groups;
    const char *name;
    int64_t a, b;
    const char *want; /* the cut, or why it is whole */
    int type;
    bool whole_sums;
};

Test(ggml_cut, what_heads_of_states_have) {
    static const char other[] = "its dimensions are not those of the layer's heads";
    static const struct beside weights_of[] = {
        {"SSM_SCAN", 0, 12, 6, "blk.0.ssm_in.weight", 64, 2 * 192 + 2 * 96 + 12,
         "S1 {4,4,4}x16+{4,4,4}x16+{2,2,2}x16+{2,2,2}x16+{4,4,4}", F32, false},
        {"SSM_SCAN", 0, 12, 6, "blk.0.ssm_in.weight", 64, 2 * 192 + 2 * 96 + 13, other, F32, false},
        {"SSM_SCAN", 0, 12, 6, "blk.0.ssm_conv1d.weight", 4, 192 + 2 * 96,
         "S1 {4,4,4}x16+{2,2,2}x16+{2,2,2}x16", F32, false},
        {"SSM_SCAN", 0, 12, 6, "blk.0.ssm_conv1d.weight", 4, 192 + 2 * 96 + 1, other, F32, false},
        {"SSM_SCAN", 0, 12, 6, "blk.0.ssm_norm.weight", 32, 6, "S1 {2,2,2}", F32, false},
        {"SSM_SCAN", 0, 12, 4, "blk.0.ssm_norm.weight", 48, 4, "S1 {2,1,1}", F32, false},
        {"SSM_SCAN", 0, 10, 2, "blk.0.ssm_norm.weight", 80, 2, "all heads have it", F32, false},
        {"SSM_SCAN", 0, 12, 1, "blk.0.ssm_norm.weight", 192, 1, "all heads have it", F32, false},
        {"SSM_SCAN", 0, 12, 6, "blk.0.ssm_d.weight", 13, 1, other, F32, false},
        {"GATED_DELTA_NET", 5, 12, 6, "blk.0.attn_qkv.weight", 64, 192 + 2 * 96,
         "S1 {2,2,2}x16+{2,2,2}x16+2*{2,2,2}x16", F32, false},
        {"GATED_DELTA_NET", 5, 12, 6, "blk.0.ssm_in.weight", 64, 600, "S1 {2,2,2}x100", F32, false},
        {"GATED_DELTA_NET", 5, 12, 6, "blk.0.ssm_ba.weight", 64, 24, "S1 {2,2,2}x4", F32, false},
        {"GATED_DELTA_NET", 5, 12, 6, "blk.0.ssm_ba.weight", 64, 25, other, F32, false},
        {"GATED_DELTA_NET", 5, 12, 6, "blk.0.ssm_norm.weight", 16, 12, "all heads have it", F32,
         false},
        {"RWKV_WKV6", 5, 12, 12, "blk.0.time_mix_key.weight", 64, 192, "S1 {4,4,4}x16", F32, false},
        {"RWKV_WKV6", 5, 12, 12, "blk.0.time_mix_key.weight", 64, 96, "all heads have it", F32,
         false},
        {"RWKV_WKV6", 5, 12, 12, "blk.0.time_mix_output.weight", 192, 64, "S0 {4,4,4}x16", F32,
         false},
        {"RWKV_WKV6", 5, 12, 12, "cache_r_l0", 128, 4, "all heads read the token before", F32,
         false},
        {"SSM_SCAN", 0, 12, 6, "cache_r_l0", 3 * 384, 4, "S0 {4,4,4}x48+{2,2,2}x48+{2,2,2}x48", F32,
         false},
        {"SSM_SCAN", 0, 12, 6, "blk.0.ssm_norm.weight", 192, 1, "all heads have it", F32, false},
        {"SSM_SCAN", 0, 12, 6, "blk.0.attn_q.weight", 64, 192,
         "the graph does not say how many heads it has", F32, false},
        {"SSM_SCAN", 0, 10, 1, "blk.0.ssm_x.weight", 160, 40, "S0 {4,4,2}x16", Q4_0, false},
        {"SSM_SCAN", 0, 10, 1, "blk.0.ssm_x.weight", 160, 40, "sums are whole", F32, true},
    };
    for (size_t i = 0; i < sizeof weights_of / sizeof *weights_of; i++) {
        const struct beside *s = &weights_of[i];
        stop();
        start();
        fprintf(stderr, "case %zu, %s\n", i, s->name);
        struct gg_tensor *w = weight_of(s->type, s->name, s->a, s->b, 1);
        cutter.whole_sums = s->whole_sums;
        scale(scan(s->op, s->state, s->heads, queries(s->heads, s->groups, AS_THEY_ARE)));
        scale(w);
        cut();
        (s->want[0] == 'S' ? is_cut : is_whole)(w, s->want);
    }
}

/* 96 channels in blocks of 32. */
Test(ggml_cut, short_convolutions) {
    static const char other[] = "its rows are not the columns of out_proj";
    static const struct {
        const char *name;
        int64_t a, b;
        const char *want;
        bool whole_sums;
    } cases[] = {
        {"blk.0.shortconv.in_proj.weight", 64, 288, "S1 {1,1,1}x32+{1,1,1}x32+{1,1,1}x32", false},
        {"blk.0.shortconv.in_proj.weight", 64, 192, other, false},
        {"blk.0.shortconv.conv.weight", 3, 96, "S1 {1,1,1}x32", false},
        {"blk.0.shortconv.conv.weight", 3, 192, other, false},
        {"cache_r_l0", 192, 4, "S0 {1,1,1}x64", false},
        {"cache_r_l0", 191, 4, other, false},
        {"blk.0.shortconv.out_proj.bias", 64, 1, other, false},
        {"blk.0.shortconv.out_proj.bias", 64, 1, other, true},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        stop();
        start();
        fprintf(stderr, "case %zu, %s\n", i, cases[i].name);
        cutter.whole_sums = cases[i].whole_sums;
        struct gg_tensor *out = named(Q4_0, 0, "shortconv.out_proj", 96, 64);
        struct gg_tensor *w = weight(cases[i].name, cases[i].a, cases[i].b);
        NODE("MUL_MAT", 64, TOKENS, 1, out, tensor(F32, 96, TOKENS, 1));
        scale(w);
        cut();
        is_cut(out, cases[i].whole_sums ? "S1 {2,1,1}x16" : "S0 {1,1,1}x32");
        (cases[i].want[0] == 'S' ? is_cut : is_whole)(w, cases[i].want);
    }
}

/* ---- by the graph ---- */

/* Rows of the first matrix become columns of the second. */
struct pair {
    const char *what;
    int64_t rows;  /* of the first; 0: as many as the second has columns */
    int type;      /* of the second */
    int64_t depth; /* of the first: matrices */
    bool adds_input, adds_scalar, is_bound, is_tied;
    const char *first; /* its cut; NULL: whole */
};

static struct gg_tensor *middle_of(const struct pair *p, struct gg_tensor *h) {
    h = NODE("SQR", h->ne[0], TOKENS, 1, h);
    if (p->adds_scalar) h = NODE("ADD", h->ne[0], TOKENS, 1, h, weight("leaf_1", 1, 1));
    if (p->adds_input) h = NODE("ADD", h->ne[0], TOKENS, 1, h, tensor(F32, h->ne[0], TOKENS, 1));
    if (p->rows) h = NODE("REPEAT", 256, TOKENS, 1, h);
    return h;
}
static void try_pair(const struct pair *p) {
    const int64_t n = p->rows ? p->rows : 256;
    struct gg_tensor *x = tensor(F32, p->is_tied ? 256 : 128, TOKENS, 1);
    struct gg_tensor *first = weight_of(F32, "leaf_2", x->ne[0], n, p->depth ? p->depth : 1);
    struct gg_tensor *second = p->is_tied ? first : weight_of(p->type, "leaf_3", 256, 1024, 1);
    struct gg_tensor *h = NODE("MUL_MAT", n, TOKENS, 1, first, x);
    h = NODE("MUL_MAT", second->ne[1], TOKENS, 1, second, middle_of(p, h));
    NODE("SQR", h->ne[0], TOKENS, 1, h);
    encode();
    if (p->is_bound) { /* an earlier graph has used the first one */
        gg_region_find(memory, first)->bound = true;
        encode();
    }
    cr_assert_eq(gg_cut_by_graph(&cutter, states), SHEAF_STATUS_SUCCESS);
    if (!p->is_bound) is_cut(first, p->first ? p->first : "whole");
    if (!p->is_tied)
        is_cut(second, !p->first ? "whole" : p->type ? "S0 {3,3,2}x32" : "S0 {86,85,85}");
}

Test(ggml_cut, pairs_of_matrices) {
    static const struct pair pairs[] = {
        {"a pair", .first = "S1 {86,85,85}"},
        {"a pair of blocks", .type = Q4_0, .first = "S1 {3,3,2}x32"},
        {"an input of whole rows", .adds_input = true},
        {"one number for all rows", .adds_scalar = true},
        {"fewer rows", .rows = 128},
        {"several matrices", .depth = 2},
        {"one that has its cut", .is_bound = true},
        {"the same matrix", .is_tied = true},
    };
    for (size_t i = 0; i < sizeof pairs / sizeof *pairs; i++) {
        stop();
        start();
        fprintf(stderr, "%s\n", pairs[i].what);
        try_pair(&pairs[i]);
    }
}

/* A matrix that nothing reads behind, as the one of logits, is cut by rows. */
Test(ggml_cut, the_last_product) {
    struct gg_tensor *x = tensor(F32, 256, TOKENS, 1), *last = weight("leaf_1", 256, 512);
    struct gg_tensor *small = weight("leaf_2", 256, 32);
    NODE("MUL_MAT", 512, TOKENS, 1, last, x);
    NODE("MUL_MAT", 32, TOKENS, 1, small, x);
    encode();
    cr_assert_eq(gg_cut_by_graph(&cutter, states), SHEAF_STATUS_SUCCESS);
    is_cut(last, "S1 {171,171,170}");
    is_cut(small, "whole");
    cutter.whole_sums = true;
    encode();
    cr_assert_eq(gg_cut_by_graph(&cutter, states), SHEAF_STATUS_SUCCESS);
    is_cut(last, "whole");
}

/* Heads that share keys and values are left to the names. */
Test(ggml_cut, attention_without_names) {
    struct gg_tensor *x = tensor(F32, 256, TOKENS, 1);
    const struct attention alike = attend(0, F32, F32, x, 8, 8, false);
    const struct attention shared = attend(1, F32, F32, x, 8, 2, false);
    encode();
    cr_assert_eq(gg_cut_by_graph(&cutter, states), SHEAF_STATUS_SUCCESS);
    is_cut(alike.q, "S1 {3,3,2}x16");
    is_cut(alike.o, "S0 {3,3,2}x16");
    is_cut(alike.cache_k, "S0 {3,3,2}x16");
    is_cut(shared.o, "S1 {86,85,85}"); /* nothing reads its product */
    is_cut(shared.cache_k, "whole");
}
