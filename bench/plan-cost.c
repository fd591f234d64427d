/* The cost of planning, for 2..1024 members: a graph of 32 transformer layers whose every weight
 * has something for each of 1024 members. Prints the table of docs/split.md.
 *
 *   bench-plan-cost            the table
 *   bench-plan-cost --check    fails if doubling the members more than doubles the time (with
 *                              a quarter for noise), over the whole range
 *   bench-plan-cost -m FILE    a token's graph of this model, for 2 and 64 members, whose weights are cut
 *                              as its loader cuts them (which reads none)
 *
 * To count instructions: valgrind --tool=callgrind --toggle-collect=sheaf__split_plan_new */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/hash.h"
#include "model/place/outline.h"
#include "model/place/policy.h"
#include "sheaf/graph.h"
#include "sheaf/tensor.h"
#include "split/plan.h"

typedef struct sheaf_tensor T;

enum { LAYERS = 32, HEADS = 1024, D = 8, EMBD = 4096, FF = 16384, VOCAB = 32768, CTX = 512 };
enum { MOST = 1024, ROUNDS = 9, MAX_LEAVES = 4096, SLOTS = 4 * MAX_LEAVES };

struct bench {
    struct sheaf_context *ctx;
    struct sheaf_cgraph *graph;
    int n_members, n_leaves;
    struct {
        const T *t;
        int axis; /* -1: mirrored */
        int64_t units;
        struct sheaf_split_state *state;
    } leaf[MAX_LEAVES];
    int slot[SLOTS]; /* leaf + 1, by address */
};

/* The slot of a leaf, or the empty one that it may take. */
static int *slot_of(struct bench *b, const T *t) {
    size_t i = sheaf__hash_address(t, SLOTS);
    while (b->slot[i] && b->leaf[b->slot[i] - 1].t != t) i = (i + 1) % SLOTS;
    return &b->slot[i];
}

static int add_leaf(struct bench *b, const T *t) {
    if (!t || b->n_leaves == MAX_LEAVES) abort();
    b->leaf[b->n_leaves].t = t;
    *slot_of(b, t) = b->n_leaves + 1;
    return b->n_leaves++;
}

static T *leaf(struct bench *b, enum sheaf_type type, int64_t a, int64_t c, int axis,
               int64_t units) {
    T *t = sheaf_new_tensor_2d(b->ctx, type, a, c);
    const int i = add_leaf(b, t);
    b->leaf[i].axis = axis;
    b->leaf[i].units = units;
    return t;
}
static T *weight(struct bench *b, int64_t a, int64_t c, int axis, int64_t units) {
    return leaf(b, SHEAF_TYPE_F32, a, c, axis, units);
}
static T *norm(struct bench *b, T *x) {
    return sheaf_mul(b->ctx, sheaf_rms_norm(b->ctx, x, 1e-5f), weight(b, EMBD, 1, -1, 0));
}
static T *heads(struct bench *b, T *x) {
    return sheaf_reshape_3d(b->ctx, sheaf_mul_mat(b->ctx, weight(b, EMBD, HEADS * D, 1, HEADS), x),
                            D, HEADS, 1);
}

static T *rotate(struct bench *b, T *x, T *pos) {
    return sheaf_rope_ext(b->ctx, x, pos, NULL, D, SHEAF_ROPE_TYPE_NORMAL, 0, 10000.0f, 1, 0, 1, 32,
                          1);
}

static T *through_cache(struct bench *b, T *x, T *rows) {
    struct sheaf_context *c = b->ctx;
    T *all = sheaf_set_rows(c, weight(b, HEADS * D, CTX, 0, HEADS),
                            sheaf_reshape_2d(c, x, HEADS * D, 1), rows);
    return sheaf_permute(c, sheaf_reshape_3d(c, all, D, HEADS, CTX), 0, 2, 1, 3);
}

static void build(struct bench *b) {
    struct sheaf_context *c = b->ctx;
    T *rows = leaf(b, SHEAF_TYPE_I32, 1, 1, -1, 0), *pos = leaf(b, SHEAF_TYPE_I32, 1, 1, -1, 0);
    T *ids = leaf(b, SHEAF_TYPE_I32, 1, 1, -1, 0), *mask = weight(b, CTX, 1, -1, 0);
    T *x = sheaf_get_rows(c, weight(b, EMBD, VOCAB, 1, VOCAB), ids);
    for (int l = 0; l < LAYERS; l++) {
        T *y = norm(b, x);
        T *q = rotate(b, heads(b, y), pos);
        T *k = rotate(b, heads(b, y), pos);
        k = through_cache(b, k, rows);
        T *v = through_cache(b, heads(b, y), rows);
        T *o = sheaf_flash_attn_ext(c, sheaf_permute(c, q, 0, 2, 1, 3), k, v, mask, 0.1f, 0, 0);
        o = sheaf_mul_mat(c, weight(b, HEADS * D, EMBD, 0, HEADS),
                          sheaf_reshape_2d(c, o, HEADS * D, 1));
        x = sheaf_add(c, o, x);
        y = norm(b, x);
        y = sheaf_swiglu_split(c, sheaf_mul_mat(c, weight(b, EMBD, FF, 1, FF), y),
                               sheaf_mul_mat(c, weight(b, EMBD, FF, 1, FF), y));
        x = sheaf_add(c, sheaf_mul_mat(c, weight(b, FF, EMBD, 0, FF), y), x);
    }
    x = sheaf_mul_mat(c, weight(b, EMBD, VOCAB, 1, VOCAB), norm(b, x));
    sheaf_set_output(x);
    if (sheaf_build_forward_expand(b->graph, x) != SHEAF_STATUS_SUCCESS) {
        fprintf(stderr, "%s\n", sheaf_last_error());
        exit(1);
    }
}

static void cut_all(struct bench *b, int n) {
    int64_t counts[MOST];
    b->n_members = n;
    for (int i = 0; i < b->n_leaves; i++) {
        sheaf_split_state_free(b->leaf[i].state);
        const int axis = b->leaf[i].axis;
        const int64_t units = b->leaf[i].units;
        for (int j = 0; j < n; j++) counts[j] = units * (j + 1) / n - units * j / n;
        b->leaf[i].state = axis < 0 ? sheaf_split_state_mirrored(n)
                                    : sheaf_split_state_cut((enum sheaf_split_axis)axis, n, counts,
                                                            b->leaf[i].t->ne[axis] / units);
        if (!b->leaf[i].state) abort();
    }
}

static const struct sheaf_split_state *state_of(const T *t, void *user) {
    struct bench *b = user;
    const int found = *slot_of(b, t);
    return found ? b->leaf[found - 1].state : NULL;
}

#define HEADER                                                                                     \
    "| members | plan, ms | us a member | fingerprint, ms | steps | collectives |\n"               \
    "|---:|---:|---:|---:|---:|---:|\n"

/* One line of the table: the least of several rounds. Returns the seconds of a plan; 0: failed. */
static double measure(const struct bench *b) {
    const int n = b->n_members;
    double plan_s = 1e9, print_s = 1e9;
    int steps = 0, collectives = 0;
    for (int i = 0; i < ROUNDS; i++) {
        struct sheaf__split_plan *plan;
        double t = sheaf__seconds();
        if (sheaf__split_plan_new(b->graph, n, state_of, (void *)(uintptr_t)b, &plan)) {
            fprintf(stderr, "%s\n", sheaf_last_error());
            return 0;
        }
        t = sheaf__seconds() - t;
        if (t < plan_s) plan_s = t;
        t = sheaf__seconds();
        static volatile uint64_t sink; /* the hash must be made */
        sink = sheaf__split_plan_fingerprint(plan, b->graph);
        (void)sink;
        t = sheaf__seconds() - t;
        if (t < print_s) print_s = t;
        steps = plan->n_steps;
        collectives = 0;
        for (int s = 0; s < steps; s++)
            collectives += plan->steps[s].kind == SHEAF_SPLIT_STEP_COLLECTIVE;
        sheaf__split_plan_free(plan);
    }
    printf("| %d | %.3f | %.2f | %.3f | %d | %d |\n", n, plan_s * 1e3, plan_s * 1e6 / n,
           print_s * 1e3, steps, collectives);
    return plan_s;
}

/* Cuts that no loader would ask for: neighbours rarely fit. */
static void cut_at_random(struct bench *b) {
    uint64_t seed = 1;
    for (int i = 0; i < b->n_leaves; i++) {
        if (b->leaf[i].axis < 0) continue;
        seed = seed * 6364136223846793005u + 1442695040888963407u;
        const int axis = (int)(seed >> 33) % 2, n = b->n_members;
        const int64_t ne = b->leaf[i].t->ne[axis];
        int64_t counts[MOST];
        for (int j = 0; j < n; j++) counts[j] = ne * (j + 1) / n - ne * j / n;
        sheaf_split_state_free(b->leaf[i].state);
        b->leaf[i].state = sheaf_split_state_cut((enum sheaf_split_axis)axis, n, counts, 1);
        if (!b->leaf[i].state) abort();
    }
}

/* ---- a model ---- */

static bool cut_as_loaded(struct bench *b, const struct sheaf__weights *model, int n) {
    double shares[MOST];
    struct sheaf__policy *policy;
    for (int j = 0; j < n; j++) shares[j] = 1;
    if (sheaf__policy_new(model, shares, n, &policy)) return false;
    b->n_members = n;
    bool good = true;
    for (int i = 0; i < b->n_leaves && good; i++) {
        sheaf_split_state_free(b->leaf[i].state);
        b->leaf[i].state = NULL;
        if (b->leaf[i].t->flags & SHEAF_TENSOR_FLAG_INPUT) {
            b->leaf[i].state = sheaf_split_state_mirrored(n);
        } else {
            good = !sheaf__policy_get_state(b->leaf[i].t, policy, &b->leaf[i].state);
        }
    }
    sheaf__policy_free(policy);
    return good;
}

/* The line of a token's graph for 2 and for 64 members. */
static bool measure_model(struct bench *b, const char *path) {
    struct sheaf__weights *model = NULL;
    struct sheaf__outline *outline = NULL;
    bool good = !sheaf__weights_open(path, &model) &&
                !sheaf__outline_new(model, 1, 256, SHEAF_TYPE_F16, &outline);
    if (good) {
        b->graph = outline->graph;
        for (int i = 0; i < sheaf_graph_n_leafs(b->graph); i++)
            add_leaf(b, sheaf_graph_leaf(b->graph, i));
        printf("%d nodes\n\n" HEADER, sheaf_graph_n_nodes(b->graph));
    }
    for (int n = 2; n <= 64 && good; n *= 32) good = cut_as_loaded(b, model, n) && measure(b) > 0;
    if (!good) fprintf(stderr, "%s\n", sheaf_last_error());
    for (int i = 0; i < b->n_leaves; i++) sheaf_split_state_free(b->leaf[i].state);
    sheaf__outline_free(outline);
    sheaf__weights_free(model);
    return good;
}

int main(int argc, char **argv) {
    const bool check = argc == 2 && !strcmp(argv[1], "--check");
    static struct bench b;
    if (argc == 3 && !strcmp(argv[1], "-m")) return !measure_model(&b, argv[2]);
    if (argc > 1 && !check) {
        fprintf(stderr, "usage: bench-plan-cost [--check | -m FILE]\n");
        return 2;
    }
    b.ctx = sheaf_init((struct sheaf_init_params){.mem_size = (size_t)16 << 20, .no_alloc = true});
    b.graph = b.ctx ? sheaf_new_graph_custom(b.ctx, 4096) : NULL;
    if (!b.graph) abort();
    build(&b);
    double first = 0, last = 0;
    printf(HEADER);
    for (int n = 2; n <= MOST; n *= 2) {
        cut_all(&b, n);
        const double plan_s = measure(&b);
        if (plan_s <= 0) return 1;
        fflush(stdout);
        if (n == 2) first = plan_s;
        last = plan_s;
    }
    printf("\nThe same with every weight cut along an axis of its own choice:\n\n" HEADER);
    for (int n = 4; n <= 64; n *= 16) {
        cut_all(&b, n);
        cut_at_random(&b);
        if (measure(&b) <= 0) return 1;
    }
    for (int i = 0; i < b.n_leaves; i++) sheaf_split_state_free(b.leaf[i].state);
    sheaf_free(b.ctx);
    if (!check || last <= 1.25 * first * (MOST / 2)) return 0;
    fprintf(stderr, "planning for %d members takes %.0f times as long as for 2\n", MOST,
            last / first);
    return 1;
}
