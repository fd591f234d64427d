/* Ops of the CPU backend against a meaning: a function that gives each element of a node in double.
 *
 * A case builds one node over leaves; a leaf's name says what it is filled with. */
#ifndef SHEAF_TESTS_CPU_CASES_H
#define SHEAF_TESTS_CPU_CASES_H

#include <criterion/criterion.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/arith.h"
#include "cpu/ops/ops.h"
#include "sanitizer.h"
#include "sheaf/backend-impl.h"
#include "sheaf/sheaf.h"
#include "tensor/access.h"

typedef struct sheaf_tensor T;
typedef struct sheaf_context C;

enum { F32 = SHEAF_TYPE_F32, F16 = SHEAF_TYPE_F16, BF16 = SHEAF_TYPE_BF16, Q8 = SHEAF_TYPE_Q8_0 };
enum { Q4 = SHEAF_TYPE_Q4_0, Q41 = SHEAF_TYPE_Q4_1, Q4K = SHEAF_TYPE_Q4_K, Q6K = SHEAF_TYPE_Q6_K };
enum { I32 = SHEAF_TYPE_I32, I64 = SHEAF_TYPE_I64 };

/* ---- elements ---- */

static inline const char *address(const T *t, const char *base, int64_t i0, int64_t i1, int64_t i2,
                                  int64_t i3) {
    return base + (size_t)(i0 / sheaf_blck_size((enum sheaf_type)t->type)) * t->nb[0] +
           (size_t)i1 * t->nb[1] + (size_t)i2 * t->nb[2] + (size_t)i3 * t->nb[3];
}

static inline double value_in(const T *t, const char *base, int64_t i0, int64_t i1, int64_t i2,
                              int64_t i3) {
    const char *p = address(t, base, i0, i1, i2, i3);
    float buf[256];
    int32_t i32;
    int64_t i64;
    if (t->type == SHEAF_TYPE_I32) {
        memcpy(&i32, p, sizeof i32);
        return i32;
    }
    if (t->type == SHEAF_TYPE_I64) {
        memcpy(&i64, p, sizeof i64);
        return (double)i64;
    }
    int64_t block = sheaf_blck_size(t->type);
    cr_assert_eq(sheaf_to_float(t->type, p, buf, block), SHEAF_STATUS_SUCCESS);
    return (double)buf[i0 % block];
}

static inline double value(const T *t, int64_t i0, int64_t i1, int64_t i2, int64_t i3) {
    return value_in(t, t->data, i0, i1, i2, i3);
}

/* Element number i in logical order. */
static inline double flat(const T *t, int64_t i) {
    return value(t, i % t->ne[0], i / t->ne[0] % t->ne[1], i / t->ne[0] / t->ne[1] % t->ne[2],
                 i / t->ne[0] / t->ne[1] / t->ne[2]);
}

static uint64_t seed;
static inline double uniform(void) { /* [0, 1) */
    seed = seed * 6364136223846793005u + 1442695040888963407u;
    return (double)(seed >> 40) / (double)(1u << 24);
}

/* Names of leaves: "x" uniform in [-1, 1), "wide" in [-20, 20), "ids N" whole numbers in [0, N),
 * "perm" 0..n-1 in a shuffled order, "mask" zeros, -inf and some values, "closed" -inf, "pos" large
 * positions, "one+" in [1, 2), "ties" whole numbers in [-3, 3]. */
static inline double draw(const T *t, int64_t i) {
    int n = 0;
    if (sscanf(t->name, "ids %d", &n) == 1) return floor(uniform() * n);
    if (strcmp(t->name, "perm") == 0) return (double)((i * 5 + 3) % t->ne[0]);
    if (strcmp(t->name, "wide") == 0) return uniform() * 40 - 20;
    if (strcmp(t->name, "one+") == 0) return uniform() + 1;
    if (strcmp(t->name, "ties") == 0) return floor(uniform() * 7) - 3;
    if (strcmp(t->name, "pos") == 0) return floor(uniform() * 100000);
    if (strcmp(t->name, "closed") == 0) return -INFINITY;
    if (strcmp(t->name, "mask") == 0) {
        double u = uniform();
        return u < 0.4 ? -INFINITY : u < 0.7 ? 0.0 : -u;
    }
    return uniform() * 2 - 1;
}

static inline void fill(T *t) {
    int64_t n = sheaf_nelements(t);
    float *f = malloc((size_t)(n + 1) * sizeof *f);
    for (int64_t i = 0; i < n; i++) {
        double d = draw(t, i);
        f[i] = (float)d;
        if (t->type == SHEAF_TYPE_I32) ((int32_t *)t->data)[i] = (int32_t)d;
        if (t->type == SHEAF_TYPE_I64) ((int64_t *)t->data)[i] = (int64_t)d;
    }
    if (t->type != SHEAF_TYPE_I32 && t->type != SHEAF_TYPE_I64 && n > 0)
        cr_assert_eq(sheaf_from_float(t->type, f, t->data, n), SHEAF_STATUS_SUCCESS);
    free(f);
}

/* ---- cases ---- */

static char *before; /* bytes of the result's memory before the compute, for ops that keep some */

static inline double param(const T *t, int i) { return (double)sheaf__param_f32(t, i); }

/* Element i0, i1, i2, i3 of a node. */
typedef double (*cpu_meaning)(const T *t, int64_t i0, int64_t i1, int64_t i2, int64_t i3);

struct cpu_case {
    const char *name;
    T *(*build)(C *);
    const double *tolerance; /* relative to the larger of 1 and the element */
};
/* The cases of a file: CASES(K) has K(name, tolerance, expression of c) for each. This makes
 * cases [N_CASES] of them. */
#define CASE(name, tolerance, expr)                                                                \
    static T *build_##name(C *c) { return expr; }                                                  \
    static const double tol_##name = tolerance;
#define CASE_ROW(name, tolerance, expr) {#name, build_##name, &tol_##name},
#define MAKE_CASES                                                                                 \
    CASES(CASE)                                                                                    \
    static const struct cpu_case cases[] = {CASES(CASE_ROW)};                                      \
    enum { N_CASES = sizeof cases / sizeof *cases };

static inline T *leaf(C *c, int type, const char *fill_with, int64_t a, int64_t b, int64_t d,
                      int64_t e) {
    return sheaf_set_name(sheaf_new_tensor_4d(c, (enum sheaf_type)type, a, b, d, e), fill_with);
}
#define X(type, ...)            leaf(c, type, "x", __VA_ARGS__)
#define L(type, fill_with, ...) leaf(c, type, fill_with, __VA_ARGS__)

/* [a, b, d, e] whose memory lies with the first three dimensions turned */
static inline T *turned(C *c, int type, const char *fill_with, int64_t a, int64_t b, int64_t d,
                        int64_t e) {
    return sheaf_permute(c, leaf(c, type, fill_with, b, d, a, e), 1, 2, 0, 3);
}
#define TURNED(type, ...) turned(c, type, "x", __VA_ARGS__)
/* rows lie apart, elements side by side */
static inline T *swapped(C *c, int type, int64_t a, int64_t b, int64_t d, int64_t e) {
    return sheaf_permute(c, leaf(c, type, "x", a, d, b, e), 0, 2, 1, 3);
}
#define SWAPPED(type, ...) swapped(c, type, __VA_ARGS__)

static inline T *slice(T *t, int base, int extent) {
    if (t) {
        t->op_params[SHEAF_OP_PARAM_BASE] = base;
        t->op_params[SHEAF_OP_PARAM_EXTENT] = extent;
    }
    return t;
}

/* ---- running ---- */

struct run {
    C *ctx;
    struct sheaf_cgraph *graph;
    T *node;
    sheaf_backend_buffer_t buffer;
};

static inline sheaf_backend_t new_backend(int threads) {
    sheaf_backend_t backend;
    cr_assert_eq(sheaf_backend_init_by_name("CPU0", NULL, &backend), SHEAF_STATUS_SUCCESS, "%s",
                 sheaf_last_error());
    cr_assert_eq(sheaf_backend_cpu_set_n_threads(backend, threads), SHEAF_STATUS_SUCCESS, "%s",
                 sheaf_last_error());
    return backend;
}

/* Where the node's result lies: over operand 0 or 1, or with as much memory between its rows, or its
 * elements, as they have; the node is NULL if that cannot be. Or as the constructor says. */
enum { OVER_0, OVER_1, ROWS_APART, ELEMENTS_APART, WAYS };
static inline struct run prepare_way(sheaf_backend_t backend, T *(*build)(C *), int way) {
    struct run r = {0};
    r.ctx = sheaf_init((struct sheaf_init_params){.mem_size = 1 << 20, .no_alloc = true});
    r.node = build(r.ctx);
    cr_assert_not_null(r.node, "%s", sheaf_last_error());
    if (way == OVER_0 || way == OVER_1) r.node = sheaf_in_place(r.node, way);
    for (int i = way == ROWS_APART; i < 4 && (way == ROWS_APART || way == ELEMENTS_APART); i++)
        r.node->nb[i] *= 2;
    if (!r.node || !sheaf_backend_op_is_valid(r.node)) {
        r.node = NULL;
        return r;
    }
    r.graph = sheaf_new_graph(r.ctx);
    cr_assert_eq(sheaf_build_forward_expand(r.graph, r.node), SHEAF_STATUS_SUCCESS);
    cr_assert_eq(sheaf_backend_alloc_ctx_tensors(r.ctx, backend, &r.buffer), SHEAF_STATUS_SUCCESS);
    seed = 12345;
    for (int i = 0; i < sheaf_graph_n_leafs(r.graph); i++) fill(sheaf_graph_leaf(r.graph, i));
    return r;
}

static inline struct run prepare(sheaf_backend_t backend, T *(*build)(C *)) {
    struct run r = prepare_way(backend, build, WAYS);
    cr_assert_not_null(r.node);
    return r;
}

static inline void finish(struct run *r) {
    sheaf_backend_buffer_free(r->buffer);
    sheaf_free(r->ctx);
}

static inline const T *owner(const T *t) { return t->view_src ? t->view_src : t; }

static inline void verify(const char *name, const T *t, double tolerance, cpu_meaning expect) {
    for (int64_t i3 = 0; i3 < t->ne[3]; i3++) {
        for (int64_t i2 = 0; i2 < t->ne[2]; i2++) {
            for (int64_t i1 = 0; i1 < t->ne[1]; i1++) {
                for (int64_t i0 = 0; i0 < t->ne[0]; i0++) {
                    double want = expect(t, i0, i1, i2, i3), got = value(t, i0, i1, i2, i3);
                    bool ok = got == want || (isnan(got) && isnan(want)) ||
                              fabs(got - want) <= tolerance * fmax(1, fabs(want));
                    cr_assert(ok, "%s [%d %d %d %d]: %.9g, expected %.9g", name, (int)i0, (int)i1,
                              (int)i2, (int)i3, got, want);
                }
            }
        }
    }
}

/* A node that all members of a team compute, however small it is. */
enum { MEMBERS = 5 };
struct shared_node {
    T *node;
    bool reference;
    void *work;
    enum sheaf_status status[MEMBERS];
};
static inline void compute_share(void *user, int ith, int nth, struct sheaf__cpu_sync *sync) {
    struct shared_node *n = user;
    const struct sheaf__cpu_op *op = sheaf__cpu_ops[n->node->op];
    const sheaf__cpu_op_fn fn = n->reference && op->reference ? op->reference : op->fn;
    n->status[ith] = fn(n->node, ith, nth, sync, n->work);
    if (ith == 0) sync->packed = NULL;
}
static inline void compute_together(struct sheaf__cpu_team *team, struct sheaf_cgraph *graph,
                                    bool reference, const char *name) {
    for (int i = 0; i < sheaf_graph_n_nodes(graph); i++) {
        struct shared_node n = {.node = sheaf_graph_node(graph, i), .reference = reference};
        const struct sheaf__cpu_op *op = sheaf__cpu_ops[n.node->op];
        if (!op->fn || sheaf_is_empty(n.node)) continue;
        const size_t size = op->work_size ? op->work_size(n.node, MEMBERS) : 0;
        n.work = aligned_alloc(64, sheaf__align_up(size + 1, 64));
        memset(n.work, 0xFF, size); /* NaN */
        sheaf__cpu_team_run(team, compute_share, &n);
        for (int k = 0; k < MEMBERS; k++)
            cr_assert_eq(n.status[k], SHEAF_STATUS_SUCCESS, "%s: member %d", name, k);
        free(n.work);
    }
}

static inline void note_wait(void *met) { *(bool *)met = true; }

/* Members write apart from each other, in the result and in work memory: the bytes that each changes
 * when it runs alone. Not of ops whose members wait for one another, as those of products do. */
static inline void check_shares(const char *name, T *node) {
    enum { UNTOUCHED = 0x11 }; /* a few numbers of such bytes have a sum */
    const struct sheaf__cpu_op *op = sheaf__cpu_ops[node->op];
    if (!op->fn || op->product || sheaf_is_empty(node)) return;
    bool waits = false;
    struct sheaf__cpu_sync sync = {.barrier = note_wait, .team = &waits};
    const size_t result = sheaf_nbytes(owner(node));
    const size_t size = result + (op->work_size ? op->work_size(node, MEMBERS) : 0);
    uint8_t *written = calloc(size, 1), *work = aligned_alloc(64, sheaf__align_up(size, 64));
    for (int ith = 0; ith < MEMBERS && !waits; ith++) {
        uint8_t *to = owner(node)->data;
        memset(to, UNTOUCHED, result);
        memset(work, UNTOUCHED, size - result);
        cr_assert_eq(op->fn(node, ith, MEMBERS, &sync, work), SHEAF_STATUS_SUCCESS, "%s", name);
        for (size_t i = 0; i < size && !waits; i++) {
            if ((i < result ? to[i] : work[i - result]) == UNTOUCHED) continue;
            cr_assert(!written[i], "%s: member %d writes byte %zu of %s, as another does", name,
                      ith, i < result ? i : i - result, i < result ? "the result" : "work memory");
            written[i] = 1;
        }
    }
    free(written);
    free(work);
}

/* The node again, its result over an operand, and so strided as that is, or strided: the elements of
 * `first`, at `data` now. */
static inline void check_ways(sheaf_backend_t backend, struct sheaf__cpu_team *team,
                              const struct cpu_case *of, const T *first, const char *data) {
    for (int way = 0; way < WAYS; way++) {
        struct run r = prepare_way(backend, of->build, way);
        if (r.node) {
            compute_together(team, r.graph, false, of->name);
            for (int64_t i = 0; i < sheaf_nelements(first); i++) {
                const int64_t i0 = i % first->ne[0], row = i / first->ne[0];
                const int64_t i1 = row % first->ne[1], i2 = row / first->ne[1] % first->ne[2];
                const int64_t i3 = row / first->ne[1] / first->ne[2];
                cr_assert_eq(memcmp(address(first, data, i0, i1, i2, i3),
                                    address(r.node, r.node->data, i0, i1, i2, i3),
                                    sheaf_type_size(first->type)),
                             0, "%s, result in way %d: other bits [%d %d %d %d]", of->name, way,
                             (int)i0, (int)i1, (int)i2, (int)i3);
            }
        }
        finish(&r);
    }
}

/* Every case by a team of which each member has a share of each node, and by backends with 1 and 2
 * threads, which leave small nodes to one; and all as its reference. Against `expect`, and the runs
 * with one another bit by bit, those with a strided result too. Under a sanitizer by the team
 * only, of which the kernels are held against `expect`, the reference is not: what a sanitizer looks
 * for does not lie in bits. */
static inline void run_cpu_cases(const struct cpu_case *cases, size_t n, cpu_meaning expect) {
    const struct {
        int threads; /* 0: the team */
        bool reference;
    } modes[] = {{0, false}, {0, true}, {1, false}, {2, false}, {1, true}};
    const int n_modes = SANITIZED ? 2 : 5;
    const struct sheaf__cpu_team_params params = {.n_threads = MEMBERS, .shared = true};
    struct sheaf__cpu_team *team;
    cr_assert_eq(sheaf__cpu_team_new(&params, &team), SHEAF_STATUS_SUCCESS);
    sheaf_backend_t backends[5];
    for (int m = 0; m < n_modes; m++) {
        backends[m] = new_backend(modes[m].threads ? modes[m].threads : 1);
        sheaf_backend_cpu_set_reference(backends[m], modes[m].reference);
    }
    for (size_t i = 0; i < n; i++) {
        char *first[2] = {NULL, NULL};
        for (int m = 0; m < n_modes; m++) {
            struct run r = prepare(backends[m], cases[i].build);
            const T *o = owner(r.node);
            size_t bytes = sheaf_nbytes(o);
            cr_assert(sheaf_backend_supports_op(backends[m], r.node), "%s", cases[i].name);
            before = malloc(bytes + 1);
            if (r.node->view_src) {
                memcpy(before, o->data, bytes);
            } else if (bytes > 0) {
                memset(o->data, 0xA5, bytes); /* nothing may be left over */
            }
            if (!modes[m].threads)
                compute_together(team, r.graph, modes[m].reference, cases[i].name);
            else
                cr_assert_eq(sheaf_backend_graph_compute(backends[m], r.graph),
                             SHEAF_STATUS_SUCCESS, "%s: %s", cases[i].name, sheaf_last_error());
            char **base = &first[modes[m].reference];
            if (!*base) {
                if (!SANITIZED || !modes[m].reference)
                    verify(cases[i].name, r.node, *cases[i].tolerance, expect);
                *base = malloc(bytes + 1);
                memcpy(*base, o->data ? o->data : before, bytes);
            } else if (bytes > 0) {
                cr_assert_eq(memcmp(*base, o->data, bytes), 0,
                             "%s: other bits with %d threads than with %d", cases[i].name,
                             modes[m].threads, MEMBERS);
            }
            free(before);
            if (m == 0 && !r.node->view_src)
                check_ways(backends[m], team, &cases[i], r.node, first[0]);
            if (m == 0) check_shares(cases[i].name, r.node);
            finish(&r);
        }
        free(first[0]);
        free(first[1]);
    }
    for (int m = 0; m < n_modes; m++) sheaf_backend_free(backends[m]);
    sheaf__cpu_team_free(team);
}

#endif
