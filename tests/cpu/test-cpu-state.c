/* Layers with a state, against their formulas in double, element by element: the definitions that
 * papers give, not the rearranged ones of the kernels. With 1 to 4 threads and every table of
 * kernels the same bits. */
#include <criterion/criterion.h>
#include <math.h>
#include <stdio.h>

#include "cpu/kernels/kernels.h"
#include "sheaf/sheaf.h"

typedef struct sheaf_tensor T;
typedef struct sheaf_context C;

static uint64_t seed;
static float uniform(void) {
    seed = seed * 6364136223846793005u + 1442695040888963407u;
    return (float)(seed >> 40) / (float)(1u << 23) - 1;
}

static T *values(C *ctx, int64_t a, int64_t b, int64_t c, int64_t d) {
    T *t = sheaf_new_tensor_4d(ctx, SHEAF_TYPE_F32, a, b, c, d);
    cr_assert_not_null(t, "%s", sheaf_last_error());
    for (int64_t i = 0; i < sheaf_nelements(t); i++) ((float *)t->data)[i] = uniform();
    return t;
}
/* The same as a view with gaps between its rows, if there are any. */
static T *spread(C *ctx, int64_t a, int64_t b, int64_t c, int64_t d) {
    if (a * b * c * d == 0) return values(ctx, a, b, c, d);
    T *all = values(ctx, a + 3, b + 1, c, d);
    return sheaf_view_4d(ctx, all, a, b, c, d, all->nb[1], all->nb[2], all->nb[3], sizeof(float));
}
static double at(const T *t, int64_t a, int64_t b, int64_t c, int64_t d) {
    float f;
    memcpy(&f,
           (const char *)t->data + (size_t)a * t->nb[0] + (size_t)b * t->nb[1] +
               (size_t)c * t->nb[2] + (size_t)d * t->nb[3],
           sizeof f);
    return (double)f;
}

/* Runs the node, and compares it with n values. */
static void check(T *node, const double *expect, int64_t n, const char *what) {
    cr_assert_not_null(node, "%s: %s", what, sheaf_last_error());
    cr_assert_eq(sheaf_nelements(node), n, "%s", what);
    struct sheaf_context *ctx =
        sheaf_init((struct sheaf_init_params){.mem_size = 1 << 16, .no_alloc = true});
    struct sheaf_cgraph *g = sheaf_new_graph_custom(ctx, 64);
    cr_assert_eq(sheaf_build_forward_expand(g, node), SHEAF_STATUS_SUCCESS);
    float *first = malloc((size_t)n * sizeof *first);
    double largest = 0;
    for (int64_t i = 0; i < n; i++) largest = fmax(largest, fabs(expect[i]));
    for (int threads = 1; threads <= 4; threads++) {
        char params[32];
        snprintf(params, sizeof params, "threads=%d", threads);
        sheaf_backend_t backend;
        cr_assert_eq(sheaf_backend_dev_init(sheaf_backend_dev_get(0), params, &backend),
                     SHEAF_STATUS_SUCCESS);
        memset(node->data, 0xff, sheaf_nbytes(node)); /* NaN: all of it is written */
        cr_assert_eq(sheaf_backend_graph_compute(backend, g), SHEAF_STATUS_SUCCESS, "%s: %s", what,
                     sheaf_last_error());
        sheaf_backend_free(backend);
        const float *y = node->data;
        if (threads == 1) memcpy(first, y, (size_t)n * sizeof *first);
        cr_expect_eq(memcmp(first, y, (size_t)n * sizeof *first), 0, "%s: %d threads", what,
                     threads);
        for (int64_t i = 0; i < n; i++) {
            if (fabs((double)y[i] - expect[i]) <= 1e-5 * (1 + largest)) continue;
            cr_expect(0, "%s: element %lld is %g, expected %g", what, (long long)i, (double)y[i],
                      expect[i]);
            break;
        }
    }
    free(first);
    sheaf_free(ctx);
}

static C *open_ctx(void) {
    return sheaf_init((struct sheaf_init_params){.mem_size = (size_t)16 << 20});
}
static double *results(int64_t n) {
    double *p = calloc((size_t)n, sizeof *p);
    cr_assert_not_null(p);
    return p;
}

Test(state, convolution) {
    const int64_t sizes[][4] = {
        {4, 1, 1, 1}, {4, 37, 1, 2}, {3, 16, 70, 2}, {1, 5, 3, 1}, {4, 129, 9, 3}};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        const int64_t k = sizes[i][0], c = sizes[i][1], t = sizes[i][2], s = sizes[i][3];
        C *ctx = open_ctx();
        T *x = i % 2 ? spread(ctx, t + k - 1, c, s, 1) : values(ctx, t + k - 1, c, s, 1);
        T *w = i % 2 ? spread(ctx, k, c, 1, 1) : values(ctx, k, c, 1, 1);
        double *y = results(c * t * s);
        for (int64_t e = 0; e < c * t * s; e++) {
            for (int64_t j = 0; j < k; j++)
                y[e] += at(x, e / c % t + j, e % c, e / c / t, 0) * at(w, j, e % c, 0, 0);
        }
        check(sheaf_ssm_conv(ctx, x, w), y, c * t * s, "convolution");
        free(y);
        sheaf_free(ctx);
    }
}

struct scan_size {
    int64_t k, d, g, r, t, s;
    int kept;
    bool mamba1;
};

static void scan_naively(const struct scan_size *z, T *const *a, const int32_t *ids, double *y) {
    const int64_t h_n = z->g * z->r, n_y = z->d * h_n * z->t * z->s;
    for (int64_t s = 0; s < z->s; s++) {
        for (int64_t h = 0; h < h_n; h++) {
            for (int64_t d = 0; d < z->d; d++) {
                double state[64];
                for (int64_t k = 0; k < z->k; k++) state[k] = at(a[0], k, d, h, ids[s]);
                for (int64_t k = 0; k < z->k && z->t == 0; k++) /* the newest, others are zeros */
                    y[((s * h_n + h) * z->d + d) * z->k + k] = state[k];
                for (int64_t t = 0; t < z->t; t++) {
                    const double dt = log1p(exp(at(a[2], h, t, s, 0)));
                    double sum = 0;
                    for (int64_t k = 0; k < z->k; k++) {
                        const double decay = exp(dt * at(a[3], z->mamba1 ? k : 0, h, 0, 0));
                        state[k] = state[k] * decay +
                                   at(a[4], k, h / z->r, t, s) * dt * at(a[1], d, h, t, s);
                        sum += state[k] * at(a[5], k, h / z->r, t, s);
                    }
                    y[((s * z->t + t) * h_n + h) * z->d + d] = sum;
                    const int64_t slot = z->t - 1 - t;
                    for (int64_t k = 0; k < z->k && slot < z->kept; k++)
                        y[n_y + (((slot * z->s + s) * h_n + h) * z->d + d) * z->k + k] = state[k];
                }
            }
        }
    }
}

Test(state, scans) {
    const struct scan_size sizes[] = {{16, 4, 1, 3, 1, 1, 1, false}, {5, 40, 2, 2, 3, 2, 1, false},
                                      {32, 7, 3, 1, 4, 2, 2, false}, {16, 33, 1, 2, 2, 3, 4, false},
                                      {16, 1, 1, 50, 1, 1, 1, true}, {16, 1, 2, 40, 5, 2, 1, true},
                                      {3, 5, 2, 3, 2, 2, 1, true},   {16, 3, 1, 2, 0, 2, 2, false}};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        const struct scan_size *z = &sizes[i];
        const int64_t h = z->g * z->r;
        C *ctx = open_ctx();
        T *a[6] = {values(ctx, z->k, z->d, h, z->s + 2),
                   i % 2 ? spread(ctx, z->d, h, z->t, z->s) : values(ctx, z->d, h, z->t, z->s),
                   values(ctx, h, z->t, z->s, 1),
                   values(ctx, z->mamba1 ? z->k : 1, h, 1, 1),
                   i % 2 ? values(ctx, z->k, z->g, z->t, z->s)
                         : spread(ctx, z->k, z->g, z->t, z->s),
                   values(ctx, z->k, z->g, z->t, z->s)};
        T *ids = sheaf_new_tensor_1d(ctx, SHEAF_TYPE_I32, z->s);
        if (z->t > 0) ((float *)a[2]->data)[0] = 25; /* softplus(x) is x */
        for (int64_t s = 0; s < z->s; s++) ((int32_t *)ids->data)[s] = (int32_t)(z->s + 1 - s);
        const int64_t n = z->d * h * (z->t * z->s + z->k * z->s * z->kept);
        double *y = results(n);
        scan_naively(z, a, ids->data, y);
        check(sheaf_ssm_scan(ctx, a[0], a[1], a[2], a[3], a[4], a[5], ids, z->kept), y, n, "scan");
        free(y);
        sheaf_free(ctx);
    }
}

Test(state, a_scan_of_a_state_that_is_not_there_fails) {
    C *ctx = open_ctx();
    T *ids = sheaf_new_tensor_1d(ctx, SHEAF_TYPE_I32, 2);
    T *bc = values(ctx, 4, 1, 1, 2);
    T *node = sheaf_ssm_scan(ctx, values(ctx, 4, 2, 3, 5), values(ctx, 2, 3, 1, 2),
                             values(ctx, 3, 1, 2, 1), values(ctx, 1, 3, 1, 1), bc, bc, ids, 1);
    struct sheaf_cgraph *g = sheaf_new_graph_custom(ctx, 64);
    cr_assert_eq(sheaf_build_forward_expand(g, node), SHEAF_STATUS_SUCCESS);
    sheaf_backend_t backend;
    cr_assert_eq(sheaf_backend_dev_init(sheaf_backend_dev_get(0), "threads=2", &backend),
                 SHEAF_STATUS_SUCCESS);
    const int32_t bad[] = {5, -1, INT32_MIN, INT32_MAX};
    for (int i = 0; i < 4; i++) {
        ((int32_t *)ids->data)[1] = bad[i];
        cr_expect_eq(sheaf_backend_graph_compute(backend, g), SHEAF_STATUS_INVALID);
        cr_expect(strstr(sheaf_last_error(), "outside [0, 5)"), "%s", sheaf_last_error());
    }
    sheaf_backend_free(backend);
    sheaf_free(ctx);
}

Test(state, delta_nets) {
    const struct {
        int64_t n, g, r, t, s;
        int kept;
        bool vector;
    } sizes[] = {{16, 1, 1, 1, 1, 1, false}, {33, 2, 3, 4, 2, 1, true},
                 {5, 3, 1, 3, 2, 2, false},  {40, 2, 2, 2, 1, 3, true},
                 {64, 1, 4, 6, 1, 1, false}, {16, 2, 1, 0, 2, 2, false}};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        const int64_t n = sizes[i].n, g = sizes[i].g, h = g * sizes[i].r, t_n = sizes[i].t,
                      s_n = sizes[i].s;
        C *ctx = open_ctx();
        T *q = values(ctx, n, g, t_n, s_n), *k = spread(ctx, n, g, t_n, s_n);
        T *v = i % 2 ? spread(ctx, n, h, t_n, s_n) : values(ctx, n, h, t_n, s_n);
        T *gate = values(ctx, sizes[i].vector ? n : 1, h, t_n, s_n),
          *beta = values(ctx, 1, h, t_n, s_n);
        T *state = values(ctx, n, n, h, s_n);
        const int64_t n_y = n * h * t_n * s_n, all = n_y + sizes[i].kept * n * n * h * s_n;
        double *y = results(all), *m = results(n * n);
        for (int64_t u = 0; u < h * s_n; u++) {
            const int64_t s = u / h, hv = u % h, hk = hv % g;
            for (int64_t e = 0; e < n * n; e++) m[e] = at(state, e % n, e / n, hv, s);
            if (t_n == 0) memcpy(y + (s * h + hv) * n * n, m, (size_t)(n * n) * sizeof *m);
            for (int64_t t = 0; t < t_n; t++) {
                for (int64_t e = 0; e < n * n; e++)
                    m[e] *= exp(at(gate, sizes[i].vector ? e % n : 0, hv, t, s));
                for (int64_t j = 0; j < n; j++) {
                    double had = 0, sum = 0;
                    for (int64_t e = 0; e < n; e++) had += m[j * n + e] * at(k, e, hk, t, s);
                    const double delta = (at(v, j, hv, t, s) - had) * at(beta, 0, hv, t, s);
                    for (int64_t e = 0; e < n; e++) m[j * n + e] += delta * at(k, e, hk, t, s);
                    for (int64_t e = 0; e < n; e++) sum += m[j * n + e] * at(q, e, hk, t, s);
                    y[((s * t_n + t) * h + hv) * n + j] = sum / sqrt((double)n);
                }
                const int64_t slot = t_n - 1 - t;
                if (slot < sizes[i].kept)
                    memcpy(y + n_y + ((slot * s_n + s) * h + hv) * n * n, m,
                           (size_t)(n * n) * sizeof *m);
            }
        }
        check(sheaf_gated_delta_net(ctx, q, k, v, gate, beta, state, sizes[i].kept), y, all,
              "delta net");
        free(y);
        free(m);
        sheaf_free(ctx);
    }
}

/* RWKV 6 and 7, gated linear attention: n x n states m[i][j], i the index of keys. */
static void heads_naively(int kind, int64_t n, int64_t h_n, int64_t t_n, int64_t s_n, T *const *a,
                          const T *state, float scale, double *y) {
    double *m = results(n * n), *before = results(n * n);
    for (int64_t u = 0; u < h_n * s_n; u++) {
        const int64_t s = u / h_n, h = u % h_n;
        for (int64_t e = 0; e < n * n; e++) /* of RWKV 7, keys lie side by side */
            m[e] =
                at(state, (h * n + (kind == 7 ? e % n : e / n)) * n + (kind == 7 ? e / n : e % n),
                   s, 0, 0);
        for (int64_t t = s * t_n; t < (s + 1) * t_n; t++) {
            memcpy(before, m, (size_t)(n * n) * sizeof *m);
            for (int64_t j = 0; j < n; j++) {
                double had = 0, sum = 0;
                for (int64_t i = 0; i < n && kind == 7; i++)
                    had += before[i * n + j] * at(a[4], i, h, t, 0);
                for (int64_t i = 0; i < n; i++) {
                    double *x = &m[i * n + j];
                    if (kind == 6) { /* k v r tf td */
                        const double kv = at(a[0], i, h, t, 0) * at(a[1], j, h, t, 0);
                        sum += at(a[2], i, h, t, 0) * (at(a[3], i, h, 0, 0) * kv + *x);
                        *x = *x * at(a[4], i, h, t, 0) + kv;
                    } else if (kind == 7) { /* r w k v a b */
                        *x = *x * at(a[1], i, h, t, 0) +
                             at(a[3], j, h, t, 0) * at(a[2], i, h, t, 0) +
                             had * at(a[5], i, h, t, 0);
                        sum += *x * at(a[0], i, h, t, 0);
                    } else { /* k v q g */
                        *x =
                            *x * at(a[3], i, h, t, 0) + at(a[0], i, h, t, 0) * at(a[1], j, h, t, 0);
                        sum += (double)scale * *x * at(a[2], i, h, t, 0);
                    }
                }
                y[(t * h_n + h) * n + j] = sum;
            }
        }
        for (int64_t e = 0; e < n * n; e++)
            y[n * h_n * t_n * s_n + s * h_n * n * n + (h * n + (kind == 7 ? e % n : e / n)) * n +
              (kind == 7 ? e / n : e % n)] = m[e];
    }
    free(m);
    free(before);
}

Test(state, heads_of_rwkv_and_linear_attention) {
    const int64_t sizes[][4] = {{16, 1, 1, 1}, {8, 3, 2, 2},  {40, 2, 3, 1},
                                {5, 4, 1, 3},  {64, 2, 5, 2}, {70, 2, 0, 2}};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        const int64_t n = sizes[i][0], h = sizes[i][1], t = sizes[i][2], s = sizes[i][3];
        const int64_t all = n * h * t * s + n * n * h * s;
        for (int kind = 5; kind <= 7; kind++) {
            C *ctx = open_ctx();
            T *a[6], *state = values(ctx, n * n * h, s, 1, 1);
            for (int k = 0; k < 6; k++)
                a[k] = (k + (int)i) % 3 == 1 ? spread(ctx, n, h, t * s, 1)
                                             : values(ctx, n, h, t * s, 1);
            if (kind == 6) a[3] = values(ctx, n, h, 1, 1);
            double *y = results(all);
            heads_naively(kind, n, h, t, s, a, state, 0.7f, y);
            T *node = kind == 6 ? sheaf_rwkv_wkv6(ctx, a[0], a[1], a[2], a[3], a[4], state)
                      : kind == 7
                          ? sheaf_rwkv_wkv7(ctx, a[0], a[1], a[2], a[3], a[4], a[5], state)
                          : sheaf_gated_linear_attn(ctx, a[0], a[1], a[2], a[3], state, 0.7f);
            check(node, y, all, kind == 5 ? "linear attention" : kind == 6 ? "RWKV 6" : "RWKV 7");
            free(y);
            sheaf_free(ctx);
        }
    }
}

/* ---- kernels ---- */

Test(state, tables_give_the_same_bits) {
    enum { MOST = 70, ROWS = 9 };
    static float x[8][ROWS * MOST], one[3][ROWS * MOST], two[3][ROWS * MOST];
    for (int i = 0; i < 8; i++) {
        for (int j = 0; j < ROWS * MOST; j++) x[i][j] = uniform();
    }
    for (int t = 0; sheaf__cpu_kernels_at(t); t++) {
        const struct sheaf__cpu_kernels *kern = sheaf__cpu_kernels_at(t),
                                        *base = &sheaf__cpu_kernels_portable;
        for (int64_t n = 0; n <= MOST; n++) {
            for (int with = 0; with < 4; with++) {
                struct sheaf__state_rows r = {x[0],
                                              with & 2 ? n : 0,
                                              with & 1 ? x[1] : NULL,
                                              with & 1 ? x[2] : NULL,
                                              x[3],
                                              x[4],
                                              x[5],
                                              x[6],
                                              one[0],
                                              one[1]};
                base->state_rows(n, ROWS, &r);
                r.to = two[0], r.y = two[1];
                kern->state_rows(n, ROWS, &r);
                cr_assert_eq(memcmp(one[0], two[0], (size_t)(ROWS * n) * sizeof(float)), 0, "%s",
                             kern->name);
                cr_assert_eq(memcmp(one[1], two[1], ROWS * sizeof(float)), 0, "%s", kern->name);
            }
            struct sheaf__state_cols c = {x[0], x[1], x[2], x[3], 0.3f, x[4], one[0], MOST, one[1]};
            base->state_cols(n, ROWS, &c);
            c.to = two[0], c.y = two[1];
            kern->state_cols(n, ROWS, &c);
            for (int r = 0; r < ROWS; r++)
                cr_assert_eq(
                    memcmp(one[0] + r * MOST, two[0] + r * MOST, (size_t)n * sizeof(float)), 0);
            cr_assert_eq(memcmp(one[1], two[1], (size_t)n * sizeof(float)), 0, "%s", kern->name);
            base->exp_products(n, ROWS, x[0], x[1], MOST, one[0]);
            kern->exp_products(n, ROWS, x[0], x[1], MOST, two[0]);
            cr_assert_eq(memcmp(one[0], two[0], (size_t)(ROWS * n) * sizeof(float)), 0, "%s",
                         kern->name);
            base->conv_rows(n > 3 ? n - 3 : 0, ROWS, 4, x[0], n, x[1], 4, one[0], ROWS);
            kern->conv_rows(n > 3 ? n - 3 : 0, ROWS, 4, x[0], n, x[1], 4, two[0], ROWS);
            cr_assert_eq(
                memcmp(one[0], two[0], (size_t)(n > 3 ? (n - 3) * ROWS : 0) * sizeof(float)), 0);
        }
    }
}

/* ---- what constructors refuse ---- */

Test(state, operands_that_do_not_fit_are_refused) {
    C *ctx = open_ctx();
    T *x = values(ctx, 4, 6, 3, 2), *dt = values(ctx, 6, 3, 2, 1), *bc = values(ctx, 8, 2, 3, 2);
    T *s = values(ctx, 8, 4, 6, 5), *a = values(ctx, 1, 6, 1, 1),
      *ids = sheaf_new_tensor_1d(ctx, SHEAF_TYPE_I32, 2);
    T *odd = values(ctx, 8, 4, 3, 2), *a1 = values(ctx, 8, 6, 1, 1), *f = values(ctx, 2, 1, 1, 1);
    T *thin = sheaf_permute(ctx, values(ctx, 6, 4, 3, 2), 1, 0, 2, 3); /* rows are not dense */
    T *q = values(ctx, 4, 3, 3, 2), *beta = values(ctx, 1, 6, 3, 2), *m = values(ctx, 4, 4, 6, 2);
    T *w = values(ctx, 4, 6, 6, 1), *tf = values(ctx, 4, 6, 1, 1), *st = values(ctx, 96, 2, 1, 1);
    T *st5 = values(ctx, 96, 4, 1, 1);
    cr_expect_not_null(sheaf_ssm_scan(ctx, s, x, dt, a, bc, bc, ids, 1), "%s", sheaf_last_error());
    cr_expect_not_null(sheaf_gated_delta_net(ctx, q, q, x, beta, beta, m, 2), "%s",
                       sheaf_last_error());
    cr_expect_not_null(sheaf_rwkv_wkv6(ctx, w, w, w, tf, w, st), "%s", sheaf_last_error());
    T *const bad[] = {
        sheaf_ssm_scan(ctx, s, x, dt, a, bc, bc, ids, 0),
        sheaf_ssm_scan(ctx, s, x, dt, a1, bc, bc, ids, 2),
        sheaf_ssm_scan(ctx, s, x, dt, a, odd, odd, ids, 1), /* 6 heads, 4 groups */
        sheaf_ssm_scan(ctx, s, thin, dt, a, bc, bc, ids, 1),
        sheaf_ssm_scan(ctx, s, x, dt, a, bc, bc, f, 1),
        sheaf_ssm_scan(ctx, s, x, x, a, bc, bc, ids, 1),
        sheaf_ssm_scan(ctx, s, x, dt, a, bc, NULL, ids, 1),
        sheaf_ssm_conv(ctx, x, a),
        sheaf_ssm_conv(ctx, values(ctx, 2, 6, 1, 1), values(ctx, 4, 6, 1, 1)),
        sheaf_gated_delta_net(ctx, q, q, x, beta, beta, m, 0),
        sheaf_gated_delta_net(ctx, q, q, x, beta, beta, s, 1),
        sheaf_gated_delta_net(ctx, x, q, x, beta, beta, m, 1),
        sheaf_gated_delta_net(ctx, q, NULL, x, beta, beta, m, 1),
        sheaf_rwkv_wkv6(ctx, w, w, w, w, w, st),
        sheaf_rwkv_wkv6(ctx, w, w, w, tf, w, st5), /* 6 tokens, 4 sequences */
        sheaf_rwkv_wkv7(ctx, w, w, w, w, tf, w, st),
        sheaf_rwkv_wkv7(ctx, w, w, w, w, w, NULL, st),
        sheaf_gated_linear_attn(ctx, w, w, w, w, tf, 1),
    };
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) cr_expect_null(bad[i], "case %zu", i);
    sheaf_free(ctx);
}
