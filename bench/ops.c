/* Time of single ops as a token and a short prompt meet them, on one thread of CPU0; and the same
 * cases as text, for another program to repeat (scripts/bench-ops).
 *
 *   bench-ops [PREFIX]         a line a case whose name begins so: "NAME|us"
 *   bench-ops --list           NAME|op or op:function|type|ne|parameters|type ne nb, ... of operands
 *
 * Parameters and operands of --list are in ggml's order (docs/ggml.md); operands lie as ggml lays them. A
 * case is computed many times in one graph, so that a graph's own cost is not in the figure. */
#include <inttypes.h>
#include <string.h>

#include "sheaf/sheaf.h"

#include "base/sort.h"
#include "bench.h"

typedef struct sheaf_tensor T;
typedef struct sheaf_context C;

enum { EMBD = 2048, FF = 5632, HEAD = 128, HEADS = 16, KV = 8, SEEN = 1024, VOCAB = 1024 };
enum { EXPERTS = 8, USED = 2, MAX_REPEATS = 512, MAX_CASES = 160, MAX_ROUNDS = 50 };
static const double LEAST_S = 0.02; /* of one measured graph */

struct bench_case {
    char name[48];
    T *(*build)(C *c, enum sheaf_type type, int64_t n, T **leaf);
    enum sheaf_type type;
    int64_t n; /* tokens */
};

/* ---- cases: operands are made once, in leaf; the node again and again ---- */

static T *leaf_of(C *c, T **at, enum sheaf_type type, int64_t a, int64_t b, int64_t d, int64_t e) {
    if (!*at) *at = sheaf_new_tensor_4d(c, type, a, b, d, e);
    return *at;
}
#define LEAF(i, type, ...) leaf_of(c, &leaf[i], type, __VA_ARGS__)
#define F32                SHEAF_TYPE_F32
#define X(i)               LEAF(i, F32, EMBD, n, 1, 1)
#define OP(name, expr)                                                                             \
    static T *name(C *c, enum sheaf_type type, int64_t n, T **leaf) {                              \
        (void)type;                                                                                \
        (void)n;                                                                                   \
        return expr;                                                                               \
    }
OP(mul_mat, sheaf_mul_mat(c, LEAF(0, type, EMBD, EMBD / 2, 1, 1), X(1)))
OP(mul_mat_id,
   sheaf_mul_mat_id(c, LEAF(0, type, EMBD, EMBD / 2, EXPERTS, 1), LEAF(1, F32, EMBD, 1, n, 1),
                    LEAF(2, SHEAF_TYPE_I32, USED, n, 1, 1)))
OP(attention,
   sheaf_flash_attn_ext(c, LEAF(0, F32, HEAD, n, HEADS, 1), LEAF(1, type, HEAD, SEEN, KV, 1),
                        LEAF(2, type, HEAD, SEEN, KV, 1), NULL, 0.09f, 0, 0))
OP(get_rows,
   sheaf_get_rows(c, LEAF(0, type, EMBD, VOCAB, 1, 1), LEAF(1, SHEAF_TYPE_I32, n, 1, 1, 1)))
OP(set_rows, sheaf_set_rows(c, LEAF(0, type, EMBD / 2, SEEN, 1, 1), LEAF(1, F32, EMBD / 2, n, 1, 1),
                            LEAF(2, SHEAF_TYPE_I64, n, 1, 1, 1)))
OP(copy, sheaf_cpy(c, LEAF(0, F32, EMBD, n, 1, 1), LEAF(1, type, EMBD, n, 1, 1)))
OP(rms_norm, sheaf_rms_norm(c, X(0), 1e-5f))
OP(norm, sheaf_norm(c, X(0), 1e-5f))
OP(l2_norm, sheaf_l2_norm(c, LEAF(0, F32, HEAD, HEADS, n, 1), 1e-6f))
OP(add, sheaf_add(c, X(0), X(1)))
OP(mul, sheaf_mul(c, X(0), LEAF(1, F32, EMBD, 1, 1, 1)))
OP(divide, sheaf_div(c, LEAF(0, F32, USED, n, 1, 1), LEAF(1, F32, 1, n, 1, 1)))
OP(scale, sheaf_scale(c, X(0), 0.5f))
OP(sqr, sheaf_sqr(c, X(0)))
OP(clamp, sheaf_clamp(c, X(0), -1, 1))
OP(sum_rows, sheaf_sum_rows(c, X(0)))
OP(mean, sheaf_mean(c, X(0)))
OP(silu, sheaf_silu(c, LEAF(0, F32, FF, n, 1, 1)))
OP(gelu, sheaf_gelu(c, LEAF(0, F32, FF, n, 1, 1)))
OP(sigmoid, sheaf_sigmoid(c, LEAF(0, F32, FF, n, 1, 1)))
OP(softplus, sheaf_unary(c, LEAF(0, F32, FF, n, 1, 1), SHEAF_UNARY_OP_SOFTPLUS))
OP(exponential, sheaf_unary(c, LEAF(0, F32, FF, n, 1, 1), SHEAF_UNARY_OP_EXP))
OP(tanh_, sheaf_tanh(c, LEAF(0, F32, FF, n, 1, 1)))
OP(swiglu, sheaf_swiglu_split(c, LEAF(0, F32, FF, n, 1, 1), LEAF(1, F32, FF, n, 1, 1)))
OP(geglu, sheaf_geglu_split(c, LEAF(0, F32, FF, n, 1, 1), LEAF(1, F32, FF, n, 1, 1)))
OP(swiglu_oai, sheaf_swiglu_oai(c, LEAF(0, F32, FF, n, 1, 1), LEAF(1, F32, FF, n, 1, 1), 1.702f, 7))
OP(soft_max, sheaf_soft_max_ext(c, LEAF(0, F32, SEEN, n, HEADS, 1), NULL, 0.09f, 0))
OP(argsort, sheaf_argsort(c, LEAF(0, F32, 128, n, 1, 1), SHEAF_SORT_ORDER_DESC))
OP(add_id, sheaf_add_id(c, LEAF(0, F32, EMBD, USED, n, 1), LEAF(1, F32, EMBD, EXPERTS, 1, 1),
                        LEAF(2, SHEAF_TYPE_I32, USED, n, 1, 1)))
OP(repeat, sheaf_repeat_4d(c, LEAF(0, F32, HEAD, 1, n, 1), HEAD, HEADS, n, 1))
OP(concat, sheaf_concat(c, LEAF(0, F32, HEAD / 2, HEADS, n, 1), LEAF(1, F32, HEAD, HEADS, n, 1), 0))
OP(cont, sheaf_cont(c, sheaf_permute(c, LEAF(0, F32, HEAD, n, HEADS, 1), 0, 2, 1, 3)))
OP(pad, sheaf_pad(c, X(0), (const int[]){0, 0, 0, 0}, (const int[]){0, 3, 0, 0}, false))
static T *rotate(C *c, int64_t n, T **leaf, int mode) {
    return sheaf_rope_ext(c, LEAF(0, F32, HEAD, HEADS, n, 1), LEAF(1, SHEAF_TYPE_I32, n, 1, 1, 1),
                          NULL, HEAD, mode, 0, 10000, 1, 0, 1, 32, 1);
}
OP(rope, rotate(c, n, leaf, SHEAF_ROPE_TYPE_NORMAL))
OP(rope_neox, rotate(c, n, leaf, SHEAF_ROPE_TYPE_NEOX))
OP(ssm_conv, sheaf_ssm_conv(c, LEAF(0, F32, 3 + n, EMBD, 1, 1), LEAF(1, F32, 4, EMBD, 1, 1)))
OP(ssm_scan,
   sheaf_ssm_scan(c, LEAF(0, F32, 128, 64, 32, 1), LEAF(1, F32, 64, 32, n, 1),
                  LEAF(2, F32, 32, n, 1, 1), LEAF(3, F32, 1, 32, 1, 1), LEAF(4, F32, 128, 1, n, 1),
                  LEAF(5, F32, 128, 1, n, 1), LEAF(6, SHEAF_TYPE_I32, 1, 1, 1, 1), 1))
OP(delta_net,
   sheaf_gated_delta_net(c, LEAF(0, F32, HEAD, KV, n, 1), LEAF(1, F32, HEAD, KV, n, 1),
                         LEAF(2, F32, HEAD, HEADS, n, 1), LEAF(3, F32, 1, HEADS, n, 1),
                         LEAF(4, F32, 1, HEADS, n, 1), LEAF(5, F32, HEAD, HEAD, HEADS, 1), 1))
#define H(i)  LEAF(i, F32, 64, 32, n, 1)
#define ST(i) LEAF(i, F32, 32 * 64 * 64, 1, 1, 1)
OP(wkv6, sheaf_rwkv_wkv6(c, H(0), H(1), H(2), LEAF(3, F32, 64, 32, 1, 1), H(4), ST(5)))
OP(wkv7, sheaf_rwkv_wkv7(c, H(0), H(1), H(2), H(3), H(4), H(5), ST(6)))
OP(linear_attn, sheaf_gated_linear_attn(c, H(0), H(1), H(2), H(3), ST(4), 0.5f))

/* ---- the list ---- */

static struct bench_case cases[MAX_CASES];
static int n_cases;

static void add_case(const char *name, T *(*build)(C *, enum sheaf_type, int64_t, T **),
                     enum sheaf_type type, bool typed, int64_t n) {
    struct bench_case *x = &cases[n_cases++];
    if (n_cases > MAX_CASES) abort();
    *x = (struct bench_case){.build = build, .type = type, .n = n};
    snprintf(x->name, sizeof x->name, "%s%s%s x%" PRId64, name, typed ? " " : "",
             typed ? sheaf_type_name(type) : "", n);
}

static void list_cases(void) {
    static const enum sheaf_type weights[] = {F32,
                                              SHEAF_TYPE_F16,
                                              SHEAF_TYPE_BF16,
                                              SHEAF_TYPE_Q8_0,
                                              SHEAF_TYPE_Q4_0,
                                              SHEAF_TYPE_Q4_1,
                                              SHEAF_TYPE_Q5_0,
                                              SHEAF_TYPE_Q5_1,
                                              SHEAF_TYPE_Q2_K,
                                              SHEAF_TYPE_Q3_K,
                                              SHEAF_TYPE_Q4_K,
                                              SHEAF_TYPE_Q5_K,
                                              SHEAF_TYPE_Q6_K,
                                              SHEAF_TYPE_IQ4_NL,
                                              SHEAF_TYPE_IQ4_XS,
                                              SHEAF_TYPE_MXFP4,
                                              SHEAF_TYPE_NVFP4,
                                              SHEAF_TYPE_TQ1_0,
                                              SHEAF_TYPE_TQ2_0};
    static const enum sheaf_type caches[] = {
        F32, SHEAF_TYPE_F16, SHEAF_TYPE_BF16, SHEAF_TYPE_Q8_0, SHEAF_TYPE_Q4_0, SHEAF_TYPE_Q5_1};
    static const enum sheaf_type experts[] = {SHEAF_TYPE_F16, SHEAF_TYPE_Q8_0, SHEAF_TYPE_Q4_K,
                                              SHEAF_TYPE_MXFP4};
    static const struct {
        const char *name;
        T *(*build)(C *, enum sheaf_type, int64_t, T **);
    } plain[] = {{"RMS_NORM", rms_norm},
                 {"NORM", norm},
                 {"L2_NORM", l2_norm},
                 {"ADD", add},
                 {"MUL", mul},
                 {"DIV", divide},
                 {"SCALE", scale},
                 {"SQR", sqr},
                 {"CLAMP", clamp},
                 {"SUM_ROWS", sum_rows},
                 {"MEAN", mean},
                 {"SILU", silu},
                 {"GELU", gelu},
                 {"SIGMOID", sigmoid},
                 {"SOFTPLUS", softplus},
                 {"EXP", exponential},
                 {"TANH", tanh_},
                 {"SWIGLU", swiglu},
                 {"GEGLU", geglu},
                 {"SWIGLU_OAI", swiglu_oai},
                 {"SOFT_MAX", soft_max},
                 {"ARGSORT", argsort},
                 {"ADD_ID", add_id},
                 {"REPEAT", repeat},
                 {"CONCAT", concat},
                 {"CONT", cont},
                 {"PAD", pad},
                 {"ROPE", rope},
                 {"ROPE neox", rope_neox},
                 {"SSM_CONV", ssm_conv},
                 {"SSM_SCAN", ssm_scan},
                 {"GATED_DELTA_NET", delta_net},
                 {"RWKV_WKV6", wkv6},
                 {"RWKV_WKV7", wkv7},
                 {"GATED_LINEAR_ATTN", linear_attn}};
#define EACH(list) for (size_t i = 0; i < sizeof(list) / sizeof *(list); i++)
    EACH(weights) add_case("MUL_MAT", mul_mat, weights[i], true, 1);
    EACH(experts) add_case("MUL_MAT_ID", mul_mat_id, experts[i], true, 1);
    EACH(caches) add_case("FLASH_ATTN_EXT", attention, caches[i], true, 1);
    EACH(caches) add_case("SET_ROWS", set_rows, caches[i], true, 1);
    EACH(experts) add_case("GET_ROWS", get_rows, experts[i], true, 1);
    add_case("CPY", copy, SHEAF_TYPE_F16, true, 1);
    EACH(plain) add_case(plain[i].name, plain[i].build, F32, false, 1);
    EACH(experts) add_case("MUL_MAT", mul_mat, experts[i], true, 64);
    add_case("MUL_MAT", mul_mat, SHEAF_TYPE_Q4_0, true, 64);
    add_case("FLASH_ATTN_EXT", attention, SHEAF_TYPE_F16, true, 64);
#undef EACH
}

/* ---- as text, in ggml's order ---- */

static void print_operand(const T *t) {
    printf("%s", sheaf_type_name(t->type));
    for (int i = 0; i < SHEAF_MAX_DIMS; i++) printf(" %" PRId64, t->ne[i]);
    for (int i = 0; i < SHEAF_MAX_DIMS; i++) printf(" %zu", t->nb[i]);
}

/* Words of ROPE have other places there; flat results of layers with a state two dimensions. */
static void print_node(const char *name, const T *t) {
    int32_t word[16] = {0};
    int64_t ne[4] = {t->ne[0], t->ne[1], t->ne[2], t->ne[3]};
    static const int rope_at[] = {1, 2, 4, 5, 6, 7, 8, 9, 10};
    memcpy(word, t->op_params, sizeof word);
    if (t->op == SHEAF_OP_ROPE) {
        memset(word, 0, sizeof word);
        for (int i = 0; i < 9; i++) word[rope_at[i]] = t->op_params[i];
    }
    if (t->op == SHEAF_OP_TOP_K || t->op == SHEAF_OP_PERMUTE) memset(word, 0, sizeof word);
    const T *state = t->op == SHEAF_OP_GATED_DELTA_NET || t->op == SHEAF_OP_RWKV_WKV6 ||
                             t->op == SHEAF_OP_RWKV_WKV7 || t->op == SHEAF_OP_GATED_LINEAR_ATTN
                         ? t->src[t->op == SHEAF_OP_GATED_DELTA_NET ? 2 : 0]
                         : NULL;
    if (state) {
        ne[0] = state->ne[0] * state->ne[1];
        ne[1] = t->ne[0] / ne[0];
    }
    const char *desc = sheaf_op_desc(t), *op = sheaf_op_name(t->op);
    printf("%s|%s%s%s|%s|%" PRId64 " %" PRId64 " %" PRId64 " %" PRId64 "|", name, op,
           strcmp(op, desc) ? ":" : "", strcmp(op, desc) ? desc : "", sheaf_type_name(t->type),
           ne[0], ne[1], ne[2], ne[3]);
    for (int i = 0; i < 16; i++) printf("%s%" PRId32, i ? " " : "", word[i]);
    static const int rows_order[] = {1, 2, 0};
    for (int i = 0, n = 0; i < SHEAF_MAX_SRC; i++) {
        const T *src = t->src[t->op == SHEAF_OP_SET_ROWS && i < 3 ? rows_order[i] : i];
        if (!src) continue;
        printf("%s", n++ ? "," : "|");
        print_operand(src);
    }
    printf("\n");
}

/* ---- running ---- */

static void fill(T *t) {
    static uint32_t seed = 1;
    const int64_t n = t->ne[0];
    float *row = must(malloc((size_t)n * sizeof *row));
    for (int64_t r = 0; r < sheaf_nrows(t); r++) {
        char *to = (char *)t->data + (size_t)r * t->nb[1];
        for (int64_t i = 0; i < n; i++) {
            seed = seed * 1664525u + 1013904223u;
            row[i] = (float)(seed >> 8) / 8388608.0f - 1.0f;
            const int32_t whole = (int32_t)(i % (t->ne[0] > 1 ? EXPERTS : 1));
            if (t->type == SHEAF_TYPE_I32) ((int32_t *)(void *)to)[i] = whole;
            if (t->type == SHEAF_TYPE_I64) ((int64_t *)(void *)to)[i] = whole;
        }
        if (t->type != SHEAF_TYPE_I32 && t->type != SHEAF_TYPE_I64)
            check(sheaf_from_float(t->type, row, to, n));
    }
    free(row);
}

/* Seconds of one node: the median of several graphs of many. */
static double measure(sheaf_backend_t backend, const struct bench_case *x, int repeats) {
    C *leaves = must(sheaf_init(
        (struct sheaf_init_params){.mem_size = 64 * sheaf_tensor_overhead(), .no_alloc = true}));
    C *nodes = must(sheaf_init(
        (struct sheaf_init_params){.mem_size = 4096 * sheaf_tensor_overhead(), .no_alloc = true}));
    T *leaf[SHEAF_MAX_SRC] = {NULL};
    const T *result = must(x->build(leaves, x->type, x->n, leaf)); /* makes the operands, too */
    sheaf_backend_buffer_t buffer = NULL;
    check(sheaf_backend_alloc_ctx_tensors(leaves, backend, &buffer));
    for (int i = 0; i < SHEAF_MAX_SRC; i++) {
        if (leaf[i]) fill(leaf[i]);
    }
    struct sheaf_cgraph *graph = must(sheaf_new_graph_custom(nodes, 2 * MAX_REPEATS + 16));
    for (int i = 0; i < repeats; i++) {
        T *t = must(x->build(nodes, x->type, x->n, leaf));
        if (!t->view_src) { /* all write the same memory, as far as caches can tell */
            t->data = result->data;
            t->buffer = result->buffer;
        }
        check(sheaf_build_forward_expand(graph, t));
    }
    double taken[MAX_ROUNDS], spent = 0;
    int n = 0;
    check(sheaf_backend_graph_compute(backend, graph)); /* warm */
    while (n < 5 || (spent < 5 * LEAST_S && n < MAX_ROUNDS)) {
        const double begin = sheaf__seconds();
        check(sheaf_backend_graph_compute(backend, graph));
        spent += taken[n++] = sheaf__seconds() - begin;
    }
    sheaf_backend_buffer_free(buffer);
    sheaf_free(nodes);
    sheaf_free(leaves);
    return sheaf__median_of_reals(taken, (size_t)n) / repeats;
}

static int repeats_of(sheaf_backend_t backend, const struct bench_case *x) {
    const double one = measure(backend, x, 1);
    const double n = LEAST_S / one;
    return n < 1 ? 1 : n > MAX_REPEATS ? MAX_REPEATS : (int)n;
}

int main(int argc, char **argv) {
    const bool list = argc == 2 && !strcmp(argv[1], "--list");
    const char *prefix = argc == 2 && !list ? argv[1] : "";
    if (argc > 2 || (prefix[0] == '-')) {
        fprintf(stderr, "usage: bench-ops [--list | PREFIX]\n");
        return 2;
    }
    list_cases();
    if (list) {
        for (int i = 0; i < n_cases; i++) {
            C *c = must(sheaf_init((struct sheaf_init_params){
                .mem_size = 64 * sheaf_tensor_overhead(), .no_alloc = true}));
            T *leaf[SHEAF_MAX_SRC] = {NULL};
            print_node(cases[i].name, must(cases[i].build(c, cases[i].type, cases[i].n, leaf)));
            sheaf_free(c);
        }
        return 0;
    }
    sheaf_backend_t backend;
    check(sheaf_backend_init_by_name("CPU0", NULL, &backend));
    check(sheaf_backend_cpu_set_n_threads(backend, 1));
    for (int i = 0; i < n_cases; i++) {
        if (strncmp(cases[i].name, prefix, strlen(prefix)) != 0) continue;
        printf("%s|%.4f\n", cases[i].name,
               1e6 * measure(backend, &cases[i], repeats_of(backend, &cases[i])));
        fflush(stdout);
    }
    sheaf_backend_free(backend);
    return 0;
}
