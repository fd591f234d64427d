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

#include "sanitizer.h"
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
#define CASE(name, tolerance, expr)                                                                \
    static T *build_##name(C *c) { return expr; }                                                  \
    static const double tol_##name = tolerance;

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

static inline struct run prepare(sheaf_backend_t backend, T *(*build)(C *)) {
    struct run r = {0};
    r.ctx = sheaf_init((struct sheaf_init_params){.mem_size = 1 << 20, .no_alloc = true});
    r.node = build(r.ctx);
    cr_assert_not_null(r.node, "%s", sheaf_last_error());
    r.graph = sheaf_new_graph(r.ctx);
    cr_assert_eq(sheaf_build_forward_expand(r.graph, r.node), SHEAF_STATUS_SUCCESS);
    cr_assert_eq(sheaf_backend_alloc_ctx_tensors(r.ctx, backend, &r.buffer), SHEAF_STATUS_SUCCESS);
    seed = 12345;
    for (int i = 0; i < sheaf_graph_n_leafs(r.graph); i++) fill(sheaf_graph_leaf(r.graph, i));
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

/* Every case with 1, 2 and 3 threads and as its reference, against `expect`, and the runs with one
 * another bit by bit. Under a sanitizer with 3 threads only, of which the kernels are held against
 * `expect`, the reference is not: what a sanitizer looks for does not lie in bits. */
static inline void run_cpu_cases(const struct cpu_case *cases, size_t n, cpu_meaning expect) {
    const struct {
        int threads;
        bool reference;
    } modes[] = {{3, false}, {3, true}, {1, false}, {2, false}, {1, true}};
    const int n_modes = SANITIZED ? 2 : 5;
    sheaf_backend_t backends[5];
    for (int m = 0; m < n_modes; m++) {
        backends[m] = new_backend(modes[m].threads);
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
            cr_assert_eq(sheaf_backend_graph_compute(backends[m], r.graph), SHEAF_STATUS_SUCCESS,
                         "%s: %s", cases[i].name, sheaf_last_error());
            char **base = &first[modes[m].reference];
            if (!*base) {
                if (!SANITIZED || !modes[m].reference)
                    verify(cases[i].name, r.node, *cases[i].tolerance, expect);
                *base = malloc(bytes + 1);
                memcpy(*base, o->data ? o->data : before, bytes);
            } else if (bytes > 0) {
                cr_assert_eq(memcmp(*base, o->data, bytes), 0,
                             "%s: other bits with %d threads than with 3", cases[i].name,
                             modes[m].threads);
            }
            free(before);
            finish(&r);
        }
        free(first[0]);
        free(first[1]);
    }
    for (int m = 0; m < n_modes; m++) sheaf_backend_free(backends[m]);
}

#endif
