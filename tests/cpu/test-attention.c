/* Attention on the CPU backend against a plain computation in double: sinks, masks of every shape, all
 * types of a K/V cache, V unlike K; SOFT_MAX with sinks; rows written into caches.
 *
 * A case runs with 1 and 3 threads and as its reference, element by element against the formulas
 * below; with other threads it must have the same bits. Suite `rounded` is the same in the fast mode, where the
 * kernels may round queries, keys, weights and values to BF16; `amx` and `amx_rounded` are both on
 * tests/emulators/amx, with 16 bits and with 8; `narrow` and `narrowest` have vectors of 32 and of 16 bytes, where the
 * machine would take wider ones. */
#include <criterion/criterion.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "attention_part.h"
#include "cpu/kernels/kernels.h"
#include "sanitizer.h"
#include "sheaf/sheaf.h"

typedef struct sheaf_tensor T;
typedef struct sheaf_context C;

enum { MAX_KEYS = 1300 };

static const enum sheaf_type cache_types[] = {SHEAF_TYPE_F32,  SHEAF_TYPE_F16,  SHEAF_TYPE_BF16,
                                              SHEAF_TYPE_Q8_0, SHEAF_TYPE_Q4_0, SHEAF_TYPE_Q4_1,
                                              SHEAF_TYPE_Q5_0, SHEAF_TYPE_Q5_1, SHEAF_TYPE_IQ4_NL};
enum { N_TYPES = sizeof cache_types / sizeof *cache_types };

/* ---- data ---- */

static uint64_t seed = 1;
static double uniform(void) { /* [-1, 1) */
    seed = seed * 6364136223846793005u + 1442695040888963407u;
    return (double)(seed >> 40) / (double)(1u << 23) - 1;
}

static void fill(T *t, double size) {
    const int64_t n = sheaf_nelements(t);
    float *x = malloc((size_t)(n + 1) * sizeof *x);
    for (int64_t i = 0; i < n; i++) x[i] = (float)(size * uniform());
    cr_assert_eq(sheaf_from_float(t->type, x, t->data, n), SHEAF_STATUS_SUCCESS);
    free(x);
}

/* A quarter is -inf, but never the first of a row; `closed`: a row is -inf altogether. */
static void fill_mask(T *t, int64_t closed) {
    const int64_t n = sheaf_nelements(t);
    float *x = malloc((size_t)n * sizeof *x);
    for (int64_t i = 0; i < n; i++) {
        const double u = uniform();
        const bool shut = (i % t->ne[0] && u < -0.5) || i / t->ne[0] == closed;
        x[i] = shut ? -INFINITY : (float)u;
    }
    cr_assert_eq(sheaf_from_float(t->type, x, t->data, n), SHEAF_STATUS_SUCCESS);
    free(x);
}

/* A row of t, to whole blocks. */
enum { MAX_ROW = 1024 };
static void row_of(const T *t, int64_t i1, int64_t i2, int64_t i3, float *x) {
    const int64_t block = sheaf_blck_size(t->type), n = (t->ne[0] + block - 1) / block * block;
    const char *p = (const char *)t->data + (size_t)i1 * t->nb[1] + (size_t)i2 * t->nb[2] +
                    (size_t)i3 * t->nb[3];
    cr_assert(n <= MAX_ROW && t->nb[0] == sheaf_type_size(t->type));
    cr_assert_eq(sheaf_to_float(t->type, p, x, n), SHEAF_STATUS_SUCCESS);
}
static double value(const T *t, int64_t i0, int64_t i1, int64_t i2, int64_t i3) {
    const int64_t block = sheaf_blck_size(t->type);
    float x[256];
    const char *p = (const char *)t->data + (size_t)(i0 / block) * t->nb[0] +
                    (size_t)i1 * t->nb[1] + (size_t)i2 * t->nb[2] + (size_t)i3 * t->nb[3];
    cr_assert_eq(sheaf_to_float(t->type, p, x, block), SHEAF_STATUS_SUCCESS);
    return (double)x[i0 % block];
}

/* ---- running ---- */

static sheaf_backend_t backend_of(int threads, bool reference) {
    sheaf_backend_t backend;
    cr_assert_eq(sheaf_backend_init_by_name("CPU0", NULL, &backend), SHEAF_STATUS_SUCCESS);
    cr_assert_eq(sheaf_backend_cpu_set_n_threads(backend, threads), SHEAF_STATUS_SUCCESS);
    sheaf_backend_cpu_set_reference(backend, reference);
    return backend;
}

/* Computes the node in each way; check sees every result. Results of one kind have the same bits. */
static void compute(C *c, T *node, void (*check)(const T *, const char *), const char *what) {
    static const struct {
        int threads;
        bool reference;
    } ways[] = {{1, false}, {3, false}, {1, true}, {3, true}};
    struct sheaf_cgraph *graph = sheaf_new_graph(c);
    const size_t bytes = sheaf_nbytes(node);
    char *first = malloc(bytes + 1);
    cr_assert_eq(sheaf_build_forward_expand(graph, node), SHEAF_STATUS_SUCCESS);
    for (int i = 0; i < 4; i++) {
        sheaf_backend_t backend = backend_of(ways[i].threads, ways[i].reference);
        cr_assert(sheaf_backend_supports_op(backend, node), "%s", what);
        if (!node->view_src) memset(node->data, 0xA5, bytes);
        cr_assert_eq(sheaf_backend_graph_compute(backend, graph), SHEAF_STATUS_SUCCESS, "%s: %s",
                     what, sheaf_last_error());
        if (i % 2) {
            cr_assert_arr_eq(first, node->data, bytes, "%s: other bits with 3 threads", what);
        } else {
            memcpy(first, node->data, bytes);
            check(node, what);
        }
        sheaf_backend_free(backend);
    }
    free(first);
}

/* Computes n nodes in one graph with two threads. */
static void compute_nodes(C *c, T *const *nodes, int n) {
    struct sheaf_cgraph *graph = sheaf_new_graph(c);
    sheaf_backend_t backend = backend_of(2, false);
    for (int i = 0; i < n; i++)
        cr_assert_eq(sheaf_build_forward_expand(graph, nodes[i]), SHEAF_STATUS_SUCCESS);
    cr_assert_eq(sheaf_backend_graph_compute(backend, graph), SHEAF_STATUS_SUCCESS);
    sheaf_backend_free(backend);
}

static C *context(void) {
    C *c = sheaf_init((struct sheaf_init_params){.mem_size = 16 << 20});
    cr_assert_not_null(c);
    return c;
}

/* ---- formulas ---- */

static double param(const T *t, int i) {
    float f;
    memcpy(&f, &t->op_params[i], sizeof f);
    return (double)f;
}

static double slope(const T *t, int64_t head, int64_t heads) {
    const double max_bias = param(t, 1);
    if (t->op_params[SHEAF_OP_PARAM_EXTENT]) {
        head += t->op_params[SHEAF_OP_PARAM_BASE];
        heads = t->op_params[SHEAF_OP_PARAM_EXTENT];
    }
    if (max_bias <= 0) return 1;
    const double n = pow(2, floor(log2((double)heads)));
    return (double)head < n ? pow(2, -max_bias * (double)(head + 1) / n)
                            : pow(2, -max_bias / 2 * (2 * ((double)head - n) + 1) / n);
}

/* Weights of n scores: exp(score - largest) over their sum, in which the sink takes part. */
static void soften(int64_t n, double *w, const T *sinks, int64_t head) {
    double most = sinks ? value(sinks, head, 0, 0, 0) : -INFINITY, sum = 0;
    for (int64_t j = 0; j < n; j++) most = fmax(most, w[j]);
    for (int64_t j = 0; j < n; j++) {
        w[j] = most == -INFINITY ? 0 : exp(w[j] - most);
        sum += w[j];
    }
    if (sinks) sum += exp(value(sinks, head, 0, 0, 0) - most);
    for (int64_t j = 0; j < n && sum > 0; j++) w[j] /= sum;
}

/* What the test put at its place, not what the node says of its operands. */
static struct expected {
    const T *mask, *sinks;
    double tolerance;
    int64_t base, group;
} expected;

static double mask_at(const T *t, int64_t j, int64_t n, int64_t h, int64_t s, int64_t heads) {
    const T *m = expected.mask;
    return m ? slope(t, h, heads) * value(m, j, n, h % m->ne[2], s % m->ne[3]) : 0;
}

static double least_tolerance; /* where activations are rounded */
static double farthest;        /* from what was expected, as a share of what was tolerated */
static bool may_round;         /* something was computed that rounds to 8 bits */

static void set_rounded(void) {
    setenv("SHEAF_CPU_ACTIVATIONS", "q8", 1);
    least_tolerance = 2e-3;
}
static void set_amx(void) {
    setenv("SHEAF_BACKEND_PATH", SHEAF_BUILD_DIR "/lib/modules/amx-emu", 1);
    setenv("SHEAF_CPU_ISA", "amx", 1);
}
static void set_amx_rounded(void) {
    set_amx();
    set_rounded();
}
#if defined(__aarch64__)
static void set_narrowest(void) { setenv("SHEAF_CPU_ISA", "neon", 1); }
#else
static void set_narrow(void) { setenv("SHEAF_CPU_ISA", "avx2", 1); }
static void set_narrowest(void) { setenv("SHEAF_CPU_ISA", "sse41", 1); }
#endif
static void need_table(void) {
    if (!sheaf__cpu_kernels())
        cr_skip("this CPU or build lacks the %s kernels", getenv("SHEAF_CPU_ISA"));
}
static void check_rounding(void) {
    cr_assert(!may_round || farthest > 0.1, "nothing was rounded: %g", farthest);
}

#if defined(__aarch64__)
#define TEST_NARROW(NAME)
#else
#define TEST_NARROW(NAME)                                                                          \
    Test(narrow, NAME, .init = set_narrow) {                                                       \
        need_table();                                                                              \
        check_##NAME();                                                                            \
    }
#endif
#define TEST_BOTH(NAME)                                                                            \
    static void check_##NAME(void);                                                                \
    Test(attention, NAME) { check_##NAME(); }                                                      \
    TEST_NARROW(NAME)                                                                              \
    Test(narrowest, NAME, .init = set_narrowest) {                                                 \
        need_table();                                                                              \
        check_##NAME();                                                                            \
    }                                                                                              \
    Test(rounded, NAME, .init = set_rounded) {                                                     \
        check_##NAME();                                                                            \
        check_rounding();                                                                          \
    }                                                                                              \
    static void check_##NAME(void)
#define TEST_ALL(NAME)                                                                             \
    static void check_##NAME(void);                                                                \
    Test(amx, NAME, .init = set_amx) {                                                             \
        need_table();                                                                              \
        check_##NAME();                                                                            \
    }                                                                                              \
    Test(amx_rounded, NAME, .init = set_amx_rounded) {                                             \
        need_table();                                                                              \
        check_##NAME();                                                                            \
        check_rounding();                                                                          \
    }                                                                                              \
    TEST_BOTH(NAME)

static void close_to(const char *what, double got, double want, int64_t i, int64_t j, int64_t h,
                     int64_t s) {
    const double allowed = expected.tolerance * fmax(1, fabs(want));
    farthest = fmax(farthest, fabs(got - want) / allowed);
    cr_assert(fabs(got - want) <= allowed, "%s [%d %d %d %d]: %.9g, expected %.9g", what, (int)i,
              (int)j, (int)h, (int)s, got, want);
}

/* Tables may multiply Q8_0 by queries and weights of 16 bits. */
static double tolerance_of(const T *k, const T *v) {
    const bool q8 = k->type == SHEAF_TYPE_Q8_0 || v->type == SHEAF_TYPE_Q8_0;
    /* with AMX floats are sums of two BF16, on a CPU that has it in all tests */
    const double floats = strcmp(sheaf__cpu_kernels()->name, "amx") == 0 ? 1e-5 : 2e-6;
    return fmax(least_tolerance, q8 ? 5e-5 : floats);
}

static void check_attention(const T *t, const char *what) {
    const T *q = t->src[0], *k = t->src[1], *v = t->src[2];
    const int64_t heads = q->ne[2];
    const struct sheaf__cpu_attention *kind =
        &sheaf__cpu_kernels()->attention[SHEAF__ATTENTION_BF16];
    if (kind->lanes > 0 && q->ne[0] % kind->unit == 0 && q->ne[1] >= 16) may_round = true;
    for (int64_t row = 0; row < heads * q->ne[1] * q->ne[3]; row++) {
        const int64_t h = row % heads, n = row / heads % q->ne[1], s = row / heads / q->ne[1];
        const int64_t hk = expected.group ? (expected.base % expected.group + h) / expected.group
                                          : h / (heads / k->ne[2]);
        double w[MAX_KEYS], want[MAX_ROW] = {0};
        float x[MAX_ROW], y[MAX_ROW];
        row_of(q, n, h, s, x);
        for (int64_t j = 0; j < k->ne[1]; j++) {
            double dot = 0;
            row_of(k, j, hk, s, y);
            for (int64_t i = 0; i < q->ne[0]; i++) dot += (double)x[i] * (double)y[i];
            w[j] = dot * param(t, 0);
            if (param(t, 2) != 0) w[j] = param(t, 2) * tanh(w[j] / param(t, 2));
            w[j] += mask_at(t, j, n, h, s, heads);
        }
        soften(k->ne[1], w, expected.sinks, h);
        for (int64_t j = 0; j < k->ne[1]; j++) {
            row_of(v, j, hk, s, y);
            for (int64_t i = 0; i < v->ne[0]; i++) want[i] += w[j] * (double)y[i];
        }
        row_of(t, h, n, s, x);
        for (int64_t i = 0; i < v->ne[0]; i++) close_to(what, (double)x[i], want[i], i, h, n, s);
    }
}

static void check_soft_max(const T *t, const char *what) {
    const T *a = t->src[0];
    for (int64_t row = 0; row < sheaf_nrows(a); row++) {
        const int64_t n = row % a->ne[1], h = row / a->ne[1] % a->ne[2],
                      s = row / a->ne[1] / a->ne[2];
        double w[MAX_KEYS];
        for (int64_t j = 0; j < a->ne[0]; j++)
            w[j] = value(a, j, n, h, s) * param(t, 0) + mask_at(t, j, n, h, s, a->ne[2]);
        soften(a->ne[0], w, expected.sinks, h);
        for (int64_t j = 0; j < a->ne[0]; j++)
            close_to(what, value(t, j, n, h, s), w[j], j, n, h, s);
    }
}

/* ---- attention ---- */

struct attention {
    const char *what;
    int64_t d, e, t, n, heads, heads_kv, s;
    int k, v;        /* types */
    int64_t mask[3]; /* rows, heads, sequences; 0: none */
    bool sinks, v_in_k;
    float max_bias, softcap;
    int base, extent, group; /* of a slice */
    int closed;              /* 1 + the row of the mask that is -inf */
};

static T *make_cache(C *c, int type, int64_t d, const struct attention *a) {
    /* heads of a position together, as in a cache */
    T *t = sheaf_new_tensor_4d(c, (enum sheaf_type)type, d, a->heads_kv, a->t, a->s);
    fill(t, 1);
    return sheaf_permute(c, t, 0, 2, 1, 3);
}

static void attend(const struct attention *a) {
    C *c = context();
    T *q = sheaf_new_tensor_4d(c, SHEAF_TYPE_F32, a->d, a->n, a->heads, a->s), *mask = NULL;
    T *sinks = a->sinks ? sheaf_new_tensor_1d(c, SHEAF_TYPE_F32, a->heads) : NULL;
    fill(q, 2);
    T *k = make_cache(c, a->k, a->d, a), *v = NULL;
    if (a->v_in_k) {
        v = sheaf_view_4d(c, k, a->e, a->t, a->heads_kv, a->s, k->nb[1], k->nb[2], k->nb[3], 0);
    } else {
        v = make_cache(c, a->v, a->e, a);
    }
    if (a->mask[0]) {
        mask = sheaf_new_tensor_4d(c, SHEAF_TYPE_F16, a->t, a->mask[0], a->mask[1], a->mask[2]);
        fill_mask(mask, a->closed - 1);
    }
    if (sinks) fill(sinks, 3);
    const float params[] = {1 / sqrtf((float)a->d), a->max_bias, a->softcap};
    T *const src[] = {q, k, v, mask, sinks};
    T *node = a->group ? attention_part(c, src, params, a->base, a->extent, a->group)
                       : sheaf_flash_attn_sinks(c, q, k, v, mask, sinks, params[0], a->max_bias,
                                                a->softcap);
    cr_assert_not_null(node, "%s: %s", a->what, sheaf_last_error());
    node->op_params[SHEAF_OP_PARAM_BASE] = a->base;
    node->op_params[SHEAF_OP_PARAM_EXTENT] = a->extent;
    expected = (struct expected){mask, sinks, tolerance_of(k, v), a->base, a->group};
    compute(c, node, check_attention, a->what);
    sheaf_free(c);
}

enum { F32 = SHEAF_TYPE_F32, F16 = SHEAF_TYPE_F16, Q4 = SHEAF_TYPE_Q4_0, Q8 = SHEAF_TYPE_Q8_0 };

TEST_ALL(sinks) {
    /* one query and few: by parts of the keys; many: by lanes */
    static const int64_t n[] = {1, 3, 20};
    for (int i = 0; i < 3; i++) {
        const struct attention cases[] = {
            {"sinks", 32, 32, 300, n[i], 6, 2, 1, F16, F16, {n[i], 1, 1}, .sinks = true},
            {"sinks without a mask", 20, 12, 70, n[i], 4, 4, 2, F32, F16, {0}, .sinks = true},
            {"sinks, soft cap",
             16,
             16,
             70,
             n[i],
             4,
             1,
             1,
             F32,
             F32,
             {n[i] + 2, 1, 1},
             .sinks = true,
             .softcap = 5},
            {"sinks, slopes",
             16,
             16,
             70,
             n[i],
             6,
             2,
             1,
             F32,
             F32,
             {n[i], 1, 1},
             .sinks = true,
             .max_bias = 8},
            {"sinks of a slice",
             16,
             16,
             70,
             n[i],
             4,
             2,
             1,
             F32,
             F32,
             {n[i], 1, 1},
             .sinks = true,
             .max_bias = 8,
             .base = 2,
             .extent = 12},
            {"sinks of a row that sees nothing",
             16,
             16,
             70,
             n[i],
             2,
             2,
             1,
             F32,
             F32,
             {n[i], 1, 1},
             .sinks = true,
             .closed = 1},
        };
        for (size_t j = 0; j < sizeof cases / sizeof *cases; j++) attend(&cases[j]);
    }
}

/* Heads 0 to 4 and 5 to 8 of nine on three K/V heads, whose middle one both slices have, and others. */
TEST_ALL(divided_groups) {
    static const int64_t n[] = {1, 3, 20};
    for (int i = 0; i < 3; i++) {
        const int64_t m = n[i];
        struct attention cases[] = {
            {"the first five of nine", 64, 64, 300, m, 5, 2, 1, F16, F16, {m, 1, 1}, .group = 3},
            {"the last four", 64, 64, 300, m, 4, 2, 1, F16, F16, {m, 1, 1}, .base = 5, .group = 3},
            {"whole groups between", 20, 12, 70, m, 9, 3, 2, F32, F16, {0}, .base = 3, .group = 4},
            {"a mask a head", 32, 32, 70, m, 3, 2, 1, Q8, Q8, {m, 3, 1}, .base = 1, .group = 2},
            {"slopes", 16, 16, 300, m, 7, 3, 1, F32, F32, {m, 1, 1}, .base = 2, .group = 4},
        };
        for (size_t j = 0; j < sizeof cases / sizeof *cases; j++) {
            cases[j].extent = 12;
            cases[j].sinks = j % 2;
            cases[j].max_bias = j == 4 ? 8 : 0;
            attend(&cases[j]);
        }
    }
}

/* The K/V heads of a slice are those that its query heads read; other numbers are refused. */
Test(attention, groups_that_do_not_fit) {
    static const struct {
        int heads, kv, base, group;
        bool valid;
    } cases[] = {{5, 2, 0, 3, true},  {5, 2, 1, 3, true},   {5, 2, 2, 3, false}, {5, 3, 2, 3, true},
                 {5, 3, 0, 3, false}, {5, 2, 0, -3, false}, {5, 2, -1, 3, false}};
    C *c = context();
    sheaf_backend_t backend = backend_of(1, false);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        T *q = sheaf_new_tensor_3d(c, SHEAF_TYPE_F32, 8, 1, cases[i].heads);
        T *k = sheaf_new_tensor_3d(c, SHEAF_TYPE_F32, 8, 4, cases[i].kv);
        T *const src[] = {q, k, k, NULL, NULL};
        T *node = attention_part(c, src, (float[]){1, 0, 0}, cases[i].base, 9, cases[i].group);
        cr_assert_eq(sheaf_backend_supports_op(backend, node), cases[i].valid, "case %zu", i);
    }
    sheaf_backend_free(backend);
    sheaf_free(c);
}

/* A sink of -inf is none; one that is larger than all scores leaves almost nothing. */
Test(attention, extreme_sinks) {
    for (int n = 1; n <= 16; n += 15) {
        C *c = context();
        T *q = sheaf_new_tensor_4d(c, SHEAF_TYPE_F32, 16, n, 2, 1), *y[2];
        T *k = sheaf_new_tensor_4d(c, SHEAF_TYPE_F16, 16, 300, 1, 1);
        T *sinks = sheaf_new_tensor_1d(c, SHEAF_TYPE_F32, 2);
        fill(q, 1);
        fill(k, 1);
        ((float *)sinks->data)[0] = -INFINITY;
        ((float *)sinks->data)[1] = 1000;
        for (int i = 0; i < 2; i++)
            y[i] = sheaf_flash_attn_sinks(c, q, k, k, NULL, i ? sinks : NULL, 1, 0, 0);
        compute_nodes(c, y, 2);
        const float *without = y[0]->data, *with = y[1]->data;
        for (int i = 0; i < 32 * n; i++) { /* heads of a query lie together */
            if (i / 16 % 2) cr_assert_float_eq(with[i], 0.0f, 1e-30f);
            if (i / 16 % 2 == 0) cr_assert_eq(with[i], without[i]);
        }
        sheaf_free(c);
    }
}

TEST_ALL(masks_repeat) {
    const struct attention cases[] = {
        {"masks of some heads", 16, 16, 70, 3, 6, 2, 4, F32, F32, {3, 3, 2}, .sinks = false},
        {"masks of some heads, many queries",
         16,
         16,
         70,
         20,
         6,
         3,
         4,
         F32,
         F32,
         {20, 2, 2},
         .sinks = false},
        {"mask of a sequence", 16, 16, 70, 9, 4, 2, 4, F16, F16, {9, 1, 2}, .sinks = true},
    };
    for (size_t j = 0; j < sizeof cases / sizeof *cases; j++) attend(&cases[j]);
}

TEST_ALL(every_cache_type) {
    for (int i = 0; i < N_TYPES; i++) {
        for (int64_t n = 1; n <= 9; n += 8) {
            if (SANITIZED && (i + n / 8) % 2) continue; /* one query or nine */
            const int k = (int)cache_types[i], v = (int)cache_types[(i + 4) % N_TYPES];
            const struct attention same = {"one type", 64, 96, 280, n,         6,
                                           2,          1,  k,  k,   {n, 1, 1}, .sinks = i % 2 == 0};
            const struct attention other = {"K unlike V",  32, 64, 70, n, 4, 2, 1, k, v, {n, 1, 1},
                                            .sinks = false};
            attend(&same);
            attend(&other);
        }
    }
}

/* Heads that share a K/V head, by rows of a cache as they lie; parts that end amid a vector. */
Test(attention, heads_that_share) {
    static const int64_t sizes[] = {64, 80, 96, 128, 256}, shared[] = {1, 3, 4, 7, 8, 11};
    static const int types[] = {F16, SHEAF_TYPE_Q8_0, SHEAF_TYPE_BF16, F32};
    for (int i = 0; i < 30; i++) {
        const int64_t d = sizes[i / 6];
        const struct attention a = {"shared",
                                    d,
                                    d,
                                    273,
                                    1,
                                    shared[i % 6],
                                    1,
                                    1,
                                    d % 32 ? F16 : types[i % 4],
                                    d % 32 ? SHEAF_TYPE_BF16 : types[(i + i / 4) % 4],
                                    {1, 1, 1},
                                    .sinks = i % 3 == 0,
                                    .max_bias = i % 5 == 2 ? 8 : 0,
                                    .softcap = i % 4 == 1 ? 20 : 0};
        attend(&a);
    }
}

/* A head has the bits that it has alone: heads of one K/V head may be split over devices. */
TEST_ALL(heads_that_share_have_the_bits_of_one) {
    enum { D = 64, HEADS = 11, KEYS = 300 };
    for (int i = 0; i < N_TYPES; i++) {
        for (int64_t n = 1; n <= 9; n += 4) {
            C *c = context();
            T *q = sheaf_new_tensor_3d(c, SHEAF_TYPE_F32, D, n, HEADS), *y[HEADS + 1];
            T *k = sheaf_new_tensor_3d(c, cache_types[i], D, KEYS, 1);
            T *v = sheaf_new_tensor_3d(c, cache_types[i], D, KEYS, 1);
            T *mask = sheaf_new_tensor_2d(c, SHEAF_TYPE_F16, KEYS, n);
            fill(q, 2);
            fill(k, 1);
            fill(v, 1);
            fill_mask(mask, -1);
            for (int h = 0; h <= HEADS; h++) {
                T *some = h == HEADS ? q
                                     : sheaf_view_3d(c, q, D, n, 1, q->nb[1], q->nb[2],
                                                     (size_t)h * q->nb[2]);
                y[h] = sheaf_flash_attn_ext(c, some, k, v, mask, 0.125f, 0, 0);
            }
            compute_nodes(c, y, HEADS + 1);
            const float *all = y[HEADS]->data;
            for (int64_t r = 0; r < n * HEADS; r++) /* heads of a query lie together */
                cr_assert_arr_eq(all + r * D, (float *)y[r % HEADS]->data + r / HEADS * D,
                                 D * sizeof *all, "%s: head %d of query %d",
                                 sheaf_type_name(k->type), (int)(r % HEADS), (int)(r / HEADS));
            sheaf_free(c);
        }
    }
}

/* Rows whose masks begin and end at other keys are computed together or not: the same bits, whatever
 * lies between the windows. */
Test(attention, windows_that_differ) {
    enum { D = 64, N = 7, WINDOW = 35 };
    static const enum sheaf_type types[] = {SHEAF_TYPE_F16, SHEAF_TYPE_Q4_0, SHEAF_TYPE_Q8_0};
    for (int i = 0; i < 6; i++) {
        /* of two parts, where queries count as apart, and of one, where rows of several are computed together */
        const int keys = i < 3 ? 290 : 250, step = i < 3 ? 38 : 29;
        C *c = context();
        T *q = sheaf_new_tensor_3d(c, SHEAF_TYPE_F32, D, N, 6);
        T *k = sheaf_new_tensor_3d(c, types[i % 3], D, keys, 2);
        T *mask = sheaf_new_tensor_2d(c, SHEAF_TYPE_F32, keys, N);
        fill(q, 2);
        fill(k, 1);
        for (int j = 0; j < keys * N; j++) {
            const int last = 60 + j / keys * step, key = j % keys;
            ((float *)mask->data)[j] = key <= last && key > last - WINDOW ? 0.0f : -INFINITY;
        }
        expected = (struct expected){.mask = mask, .tolerance = tolerance_of(k, k)};
        compute(c, sheaf_flash_attn_ext(c, q, k, k, mask, 0.125f, 0, 0), check_attention,
                "windows");
        for (int h = 0; h < 2; h++) /* no finite floats, nor scales */
            memset((char *)k->data + 62 * k->nb[1] + (size_t)h * k->nb[2], 0xff, 2 * k->nb[1]);
        for (int64_t n = 0; n < N; n++) { /* alone */
            T *y[2], *one = sheaf_view_3d(c, q, D, 1, 6, q->nb[1], q->nb[2], (size_t)n * q->nb[1]);
            T *open = sheaf_view_2d(c, mask, keys, 1, mask->nb[1], (size_t)n * mask->nb[1]);
            y[0] = sheaf_flash_attn_ext(c, q, k, k, mask, 0.125f, 0, 0);
            y[1] = sheaf_flash_attn_ext(c, one, k, k, open, 0.125f, 0, 0);
            compute_nodes(c, y, 2);
            cr_assert_arr_eq((char *)y[0]->data + (size_t)n * y[0]->nb[2], y[1]->data,
                             6 * D * sizeof(float), "query %d", (int)n);
        }
        sheaf_free(c);
    }
}

/* Many queries, whose blocks of keys are closed, open or mixed: tiles go over the keys together, and a
 * query has the bits that it has among few. What no query sees may hold anything: no bit changes. */
TEST_ALL(tiles_that_go_together) {
    enum { D = 32, N = 90, FEW = 9, KEYS = 1300, WINDOW = 1150, UNSEEN = 60, ALL = N * 2 * D };
    static const enum sheaf_type types[] = {SHEAF_TYPE_F16, SHEAF_TYPE_Q8_0};
    for (int i = 0; i < 2; i++) {
        C *c = context();
        T *q = sheaf_new_tensor_3d(c, SHEAF_TYPE_F32, D, N, 2);
        T *k = sheaf_new_tensor_2d(c, types[i], D, KEYS);
        T *mask = sheaf_new_tensor_2d(c, SHEAF_TYPE_F16, KEYS, N);
        float before[ALL];
        fill(q, 2);
        fill(k, 1);
        for (int j = 0; j < KEYS * N; j++) {
            const int last = KEYS - N + j / KEYS, key = j % KEYS;
            ((uint16_t *)mask->data)[j] = key <= last && key > last - WINDOW ? 0 : 0xfc00;
        }
        expected = (struct expected){.mask = mask, .tolerance = tolerance_of(k, k)};
        T *y[2] = {sheaf_flash_attn_ext(c, q, k, k, mask, 0.25f, 0, 0), NULL};
        compute(c, y[0], check_attention, "together");
        compute_nodes(c, y, 1);
        memcpy(before, y[0]->data, sizeof before);
        memset(k->data, 0xff, UNSEEN * k->nb[1]);
        compute_nodes(c, y, 1);
        cr_assert_arr_eq(y[0]->data, before, sizeof before, "what no query sees shows");
        for (int64_t n = 0; n < N; n += FEW) {
            T *open = sheaf_view_2d(c, mask, KEYS, FEW, mask->nb[1], (size_t)n * mask->nb[1]);
            T *some = sheaf_view_3d(c, q, D, FEW, 2, q->nb[1], q->nb[2], (size_t)n * q->nb[1]);
            y[1] = sheaf_flash_attn_ext(c, some, k, k, open, 0.25f, 0, 0);
            compute_nodes(c, y + 1, 1);
            cr_assert_arr_eq(before + n * 2 * D, y[1]->data, FEW * 2 * D * sizeof(float),
                             "queries from %d on", (int)n);
        }
        sheaf_free(c);
    }
}

/* Queries of sequences of their own, in one cache: each has the bits that it has alone, also where rows of
 * two queries are one item, and a mask a head, which is not looked at so. */
TEST_BOTH(sequences_in_one_cache) {
    enum { D = 32 };
    static const int64_t queries[] = {3, 10}, heads[][2] = {{6, 2}, {20, 1}};
    for (int i = 0; i < 8; i++) {
        const int64_t n = queries[i % 2], h = heads[i / 2 % 2][0], of_masks = i < 4 ? 1 : h;
        const int64_t all_keys = i % 3 ? 1280 : 120; /* of all: in several parts, or in one */
        C *c = context();
        T *q = sheaf_new_tensor_3d(c, SHEAF_TYPE_F32, D, n, h);
        T *k = sheaf_new_tensor_3d(c, SHEAF_TYPE_F16, D, all_keys, heads[i / 2 % 2][1]);
        T *mask = sheaf_new_tensor_3d(c, SHEAF_TYPE_F16, all_keys, n, of_masks);
        fill(q, 2);
        fill(k, 1);
        for (int64_t j = 0; j < all_keys * n * of_masks; j++) {
            const int64_t query = j / all_keys % n,
                          head = j / all_keys / n; /* each sees another sequence */
            const int64_t first = (query + head) % n * (all_keys / n), key = j % all_keys;
            ((uint16_t *)mask->data)[j] =
                key >= first && key < first + all_keys / n - 1 ? 0 : 0xfc00;
        }
        expected = (struct expected){.mask = mask, .tolerance = tolerance_of(k, k)};
        T *all = sheaf_flash_attn_ext(c, q, k, k, mask, 0.25f, 0, 0);
        compute(c, all, check_attention, "sequences");
        for (int64_t m = 0; m < n; m++) {
            T *open = sheaf_view_3d(c, mask, all_keys, 1, of_masks, mask->nb[1], mask->nb[2],
                                    (size_t)m * mask->nb[1]);
            T *one = sheaf_view_3d(c, q, D, 1, h, q->nb[1], q->nb[2], (size_t)m * q->nb[1]);
            T *const y[2] = {all, sheaf_flash_attn_ext(c, one, k, k, open, 0.25f, 0, 0)};
            compute_nodes(c, y, 2);
            if (of_masks == 1 || n < 8) /* else by lanes */
                cr_assert_arr_eq((char *)all->data + (size_t)m * all->nb[2], y[1]->data,
                                 (size_t)(h * D) * sizeof(float), "sequence %d of %d", (int)m,
                                 (int)n);
        }
        sheaf_free(c);
    }
}

/* So many rows and parts that a thread folds the parts of its rows as they come, since all of them would take much
 * memory: the bits of each query alone, whose parts are kept. Most parts are masked, for all queries or for each in
 * places of its own. */
Test(attention, parts_that_are_not_kept) {
    enum { D = 32, E = 512, N = 7, HEADS = 64, KEYS = 4700, OPEN = 9 };
    for (int apart = 0; apart < 2; apart++) {
        C *c = context();
        T *q = sheaf_new_tensor_3d(c, SHEAF_TYPE_F32, D, N, HEADS), *y[2];
        T *k = sheaf_new_tensor_2d(c, SHEAF_TYPE_F16, D, KEYS);
        T *v = sheaf_new_tensor_2d(c, SHEAF_TYPE_F16, E, KEYS);
        T *mask = sheaf_new_tensor_2d(c, SHEAF_TYPE_F16, KEYS, N);
        fill(q, 2);
        fill(k, 1);
        fill(v, 1);
        for (int j = 0; j < KEYS * N; j++) {
            const int window = 1200 + (apart ? j / KEYS * 400 : j / KEYS), key = j % KEYS;
            const bool open = key % window < OPEN || key == KEYS - 1;
            ((uint16_t *)mask->data)[j] = open ? 0 : 0xfc00;
        }
        y[0] = sheaf_flash_attn_ext(c, q, k, v, mask, 0.25f, 0, 0);
        compute_nodes(c, y, 1);
        for (int64_t n = 0; n < N; n++) {
            T *open = sheaf_view_2d(c, mask, KEYS, 1, mask->nb[1], (size_t)n * mask->nb[1]);
            T *one = sheaf_view_3d(c, q, D, 1, HEADS, q->nb[1], q->nb[2], (size_t)n * q->nb[1]);
            y[1] = sheaf_flash_attn_ext(c, one, k, v, open, 0.25f, 0, 0);
            compute_nodes(c, y + 1, 1);
            cr_assert_arr_eq((char *)y[0]->data + (size_t)n * y[0]->nb[2], y[1]->data,
                             HEADS * E * sizeof(float), "query %d", (int)n);
        }
        sheaf_free(c);
    }
}

/* MLA: one K/V head of 576, of which the first 512 are V. */
TEST_ALL(v_is_a_part_of_k) {
    for (int64_t n = 1; n <= 10; n += 9) {
        const struct attention mla = {"MLA", 576, 512, 65,  n,         4,
                                      1,     1,   F16, F16, {n, 1, 1}, .v_in_k = true};
        const struct attention blocks = {"MLA in blocks", 96, 64, 65, n, 4, 1, 1, Q4, Q4, {n, 1, 1},
                                         .v_in_k = true};
        attend(&mla);
        attend(&blocks);
    }
}

TEST_ALL(heads_of_any_size) {
    static const int64_t sizes[][2] = {{1, 1}, {3, 7}, {40, 40}, {65, 67}, {72, 80}, {320, 256}};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        for (int64_t n = 2; n <= 11; n += 9) {
            const struct attention a = {"sizes", sizes[i][0], sizes[i][1],   40, n, 2, 1, 1, F16,
                                        F16,     {n, 1, 1},   .sinks = false};
            attend(&a);
        }
    }
}

/* Keys and values behind a mask are never read into a result, whatever the type of the cache. */
TEST_ALL(masked_blocks_may_hold_anything) {
    for (int i = 3; i <= N_TYPES; i++) {
        const enum sheaf_type type =
            i < N_TYPES ? cache_types[i] : SHEAF_TYPE_Q4_K; /* read without a kernel */
        const int64_t d = i < N_TYPES ? 64 : 256;
        for (int64_t n = 1; n <= 9; n += 8) {
            C *c = context();
            T *q = sheaf_new_tensor_2d(c, SHEAF_TYPE_F32, d, n);
            T *k = sheaf_new_tensor_2d(c, type, d, 70);
            T *mask = sheaf_new_tensor_2d(c, SHEAF_TYPE_F32, 70, n);
            fill(q, 1);
            fill(k, 1);
            for (int64_t j = 0; j < 70 * n; j++)
                ((float *)mask->data)[j] = j % 70 % 3 ? 0.0f : -INFINITY;
            for (int j = 0; j < 70; j += 3) /* scales of NaN */
                memset((char *)k->data + (size_t)j * k->nb[1], 0xff, 4);
            T *y = sheaf_flash_attn_ext(c, q, k, k, mask, 0.2f, 0, 0);
            compute_nodes(c, &y, 1);
            for (int64_t j = 0; j < d * n; j++)
                cr_assert(isfinite(((float *)y->data)[j]), "%s", sheaf_type_name(type));
            ((float *)mask->data)[0] = 0.0f; /* an open one shows */
            compute_nodes(c, &y, 1);
            cr_assert(!isfinite(((float *)y->data)[0]), "%s", sheaf_type_name(type));
            sheaf_free(c);
        }
    }
}

/* The only open key of the last part is NaN: it has no largest score, and shows all the same. */
Test(attention, a_part_of_nan_alone) {
    enum { D = 64, KEYS = 300 };
    for (int n = 1; n <= 9; n += 8) {
        C *c = context();
        T *q = sheaf_new_tensor_2d(c, SHEAF_TYPE_F32, D, n);
        T *k = sheaf_new_tensor_2d(c, SHEAF_TYPE_F16, D, KEYS);
        T *mask = sheaf_new_tensor_2d(c, SHEAF_TYPE_F32, KEYS, n);
        fill(q, 1);
        fill(k, 1);
        for (int j = 0; j < D; j++) ((uint16_t *)k->data)[(KEYS - 1) * D + j] = 0x7e00;
        for (int j = 0; j < KEYS * n; j++)
            ((float *)mask->data)[j] = j % KEYS < 200 || j % KEYS == KEYS - 1 ? 0.0f : -INFINITY;
        T *y = sheaf_flash_attn_ext(c, q, k, k, mask, 0.2f, 0, 0);
        compute_nodes(c, &y, 1);
        for (int j = 0; j < D * n; j++) cr_assert(isnan(((float *)y->data)[j]), "%d of %d", j, n);
        sheaf_free(c);
    }
}

/* Every table, also where cap * tanh(x / cap) is x, where it is cap, and in tails of vectors. */
Test(attention, soft_caps) {
    enum { K = 1003 };
    static float x[K], y[K + 1];
    static const float caps[] = {50, 5, -30};
    const struct sheaf__cpu_kernels *kern;
    for (int i = 0; i < K - 3; i++) x[i] = (float)(uniform() * pow(10, i % 12 - 8));
    x[K - 3] = INFINITY;
    x[K - 2] = -INFINITY;
    x[K - 1] = NAN;
    for (int table = 0; (kern = sheaf__cpu_kernels_at(table)); table++) {
        for (int i = 0; i < 3; i++) {
            y[K] = 77;
            kern->softcap_f32(K, caps[i], x, y);
            for (int j = 0; j < K - 1; j++) {
                const double cap = (double)caps[i], want = cap * tanh((double)x[j] / cap);
                cr_assert_float_eq((double)y[j], want, 1e-6 * fabs(want), "%s: %g of %g",
                                   kern->name, (double)x[j], cap);
            }
            cr_assert(isnan(y[K - 1]) && y[K] == 77.0f, "%s", kern->name);
        }
    }
}

/* ---- soft_max ---- */

Test(attention, soft_max_with_sinks) {
    static const struct {
        const char *what;
        int64_t ne[4], mask[3];
        float max_bias;
    } cases[] = {
        {"sinks", {65, 5, 6, 2}, {5, 1, 1}, 0},
        {"no mask", {65, 5, 6, 2}, {0}, 0},
        {"slopes", {65, 5, 6, 2}, {7, 1, 1}, 8},
        {"repeated mask", {33, 5, 6, 4}, {5, 3, 2}, 8},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        for (int with = 0; with < 2; with++) {
            C *c = context();
            T *a = sheaf_new_tensor(c, SHEAF_TYPE_F32, 4, cases[i].ne), *mask = NULL;
            T *sinks = with ? sheaf_new_tensor_1d(c, SHEAF_TYPE_F32, a->ne[2]) : NULL;
            fill(a, 3);
            if (cases[i].mask[0]) {
                mask = sheaf_new_tensor_4d(c, SHEAF_TYPE_F32, a->ne[0], cases[i].mask[0],
                                           cases[i].mask[1], cases[i].mask[2]);
                fill_mask(mask, -1);
            }
            if (sinks) fill(sinks, 2);
            T *node = sheaf_soft_max_sinks(c, a, mask, sinks, 0.7f, cases[i].max_bias);
            cr_assert_not_null(node, "%s", sheaf_last_error());
            expected = (struct expected){.mask = mask, .sinks = sinks, .tolerance = 1e-6};
            compute(c, node, check_soft_max, cases[i].what);
            sheaf_free(c);
        }
    }
}

/* ---- rows into caches ---- */

/* Rows of F32 and F16, lists of ids repeated over dimensions 2 and 3: the bits of the conversion. */
Test(attention, set_rows_into_every_type) {
    enum { N = 96, ROWS = 5, L = 9, H = 6, S = 4 };
    for (int i = 0; i < 2 * N_TYPES; i++) {
        C *c = context();
        const enum sheaf_type type = cache_types[i / 2];
        T *cache = sheaf_new_tensor_4d(c, type, N, L, H, S);
        T *rows = sheaf_new_tensor_4d(c, i % 2 ? SHEAF_TYPE_F16 : SHEAF_TYPE_F32, N, ROWS, H, S);
        T *ids = sheaf_new_tensor_3d(c, i % 2 ? SHEAF_TYPE_I32 : SHEAF_TYPE_I64, ROWS, 3, 2);
        fill(rows, 1);
        memset(cache->data, 0, sheaf_nbytes(cache));
        for (int j = 0; j < ROWS * 6; j++) {
            if (i % 2) ((int32_t *)ids->data)[j] = (j * 2 + j / ROWS) % L;
            if (i % 2 == 0) ((int64_t *)ids->data)[j] = (j * 2 + j / ROWS) % L;
        }
        T *node = sheaf_set_rows(c, cache, rows, ids);
        cr_assert_not_null(node, "%s", sheaf_last_error());
        struct sheaf_cgraph *graph = sheaf_new_graph(c);
        cr_assert_eq(sheaf_build_forward_expand(graph, node), SHEAF_STATUS_SUCCESS);
        sheaf_backend_t backend = backend_of(2, false);
        cr_assert_eq(sheaf_backend_graph_compute(backend, graph), SHEAF_STATUS_SUCCESS);
        const size_t bytes = sheaf_row_size(type, N);
        for (int64_t at = 0; at < ROWS * H * S; at++) {
            const int64_t r = at % ROWS, h = at / ROWS % H, s = at / ROWS / H;
            const int j = (int)(r + ROWS * (h % 3 + 3 * (s % 2))), id = (j * 2 + j / ROWS) % L;
            float x[N];
            char want[N * 4];
            for (int e = 0; e < N; e++) x[e] = (float)value(rows, e, r, h, s);
            cr_assert_eq(sheaf_from_float(type, x, want, N), SHEAF_STATUS_SUCCESS);
            cr_assert_arr_eq((char *)cache->data + (size_t)id * cache->nb[1] +
                                 (size_t)h * cache->nb[2] + (size_t)s * cache->nb[3],
                             want, bytes, "%s", sheaf_type_name(type));
        }
        sheaf_backend_free(backend);
        sheaf_free(c);
    }
}

/* Nodes that did not come from a constructor. */
Test(attention, wrong_sinks_are_refused) {
    C *c = context();
    T *q = sheaf_new_tensor_3d(c, SHEAF_TYPE_F32, 16, 2, 4);
    T *k = sheaf_new_tensor_3d(c, SHEAF_TYPE_F32, 16, 9, 2);
    T *sinks = sheaf_new_tensor_1d(c, SHEAF_TYPE_F32, 4);
    T *wrong[] = {sheaf_new_tensor_1d(c, SHEAF_TYPE_F32, 3),
                  sheaf_new_tensor_1d(c, SHEAF_TYPE_F16, 4),
                  sheaf_new_tensor_2d(c, SHEAF_TYPE_F32, 4, 2)};
    T *nodes[] = {sheaf_flash_attn_sinks(c, q, k, k, NULL, sinks, 1, 0, 0),
                  sheaf_soft_max_sinks(c, q, NULL, sinks, 1, 0)};
    sheaf_backend_t backend = backend_of(1, false);
    for (int i = 0; i < 2; i++) {
        T **at = &nodes[i]->src[i ? 2 : 4];
        cr_assert_eq(*at, sinks);
        cr_assert(sheaf_backend_supports_op(backend, nodes[i]));
        for (int j = 0; j < 3; j++) {
            *at = wrong[j];
            cr_assert_not(sheaf_backend_supports_op(backend, nodes[i]), "%d %d", i, j);
        }
    }
    sheaf_backend_free(backend);
    sheaf_free(c);
}
