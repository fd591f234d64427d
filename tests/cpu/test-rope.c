/* ROPE with sections, an offset and F16, and ROPE_BACK, on the CPU backend against a plain computation
 * in double; what it must undo; what is refused. (NORMAL, NEOX and YaRN alone: test-cpu-ops.) */
#include <criterion/criterion.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "sheaf/sheaf.h"

typedef struct sheaf_tensor T;
typedef struct sheaf_context C;

enum { D = 32, H = 3, N = 5, S = 2 };

struct rope {
    const char *what;
    int mode, n_dims, sections[4], offset;
    bool factors, yarn, half;
};
static const struct rope cases[] = {
    {"mrope", SHEAF_ROPE_TYPE_MROPE, 32, {4, 6, 6, 0}, 0, false, false, false},
    {"mrope in rounds", SHEAF_ROPE_TYPE_MROPE, 24, {2, 1, 1, 1}, 0, true, false, false},
    {"mrope, yarn, offset", SHEAF_ROPE_TYPE_MROPE, 16, {3, 3, 2, 0}, 7, true, true, false},
    {"imrope", SHEAF_ROPE_TYPE_IMROPE, 32, {6, 5, 5, 0}, 0, false, false, false},
    {"imrope, other position", SHEAF_ROPE_TYPE_IMROPE, 20, {2, 1, 2, 4}, 12, true, false, true},
    {"vision", SHEAF_ROPE_TYPE_VISION, 16, {8, 8, 0, 0}, 0, false, false, false},
    {"vision, factors, yarn", SHEAF_ROPE_TYPE_VISION, 16, {4, 4, 3, 2}, 0, true, true, false},
    {"normal, offset", SHEAF_ROPE_TYPE_NORMAL, 10, {0}, 21, true, false, false},
    {"neox, offset", SHEAF_ROPE_TYPE_NEOX, 16, {0}, 16, false, true, false},
    {"normal, half floats", SHEAF_ROPE_TYPE_NORMAL, 32, {0}, 0, false, false, true},
    {"neox, half floats", SHEAF_ROPE_TYPE_NEOX, 12, {0}, 2, false, false, true},
};
enum { N_CASES = sizeof cases / sizeof *cases };

static const float base = 10000, freq_scale = 0.5f, ext_factor = 0.7f, attn_factor = 1.25f;
enum { CTX = 64, FAST = 32, SLOW = 1 };

/* ---- the formulas ---- */

static double number(const T *t, int64_t i0, int64_t i1, int64_t i2, int64_t i3) {
    const char *p = (const char *)t->data + (size_t)i0 * t->nb[0] + (size_t)i1 * t->nb[1] +
                    (size_t)i2 * t->nb[2] + (size_t)i3 * t->nb[3];
    float x;
    if (t->type == SHEAF_TYPE_I32) return *(const int32_t *)(const void *)p;
    cr_assert_eq(sheaf_to_float(t->type, p, &x, 1), SHEAF_STATUS_SUCCESS);
    return (double)x;
}

/* Which of a token's positions turns pair i, by lists of pairs written out; *exponent of its
 * frequency. */
static int position_of(const struct rope *r, int i, int *exponent) {
    int order[64], start[64], n = 0;
    const int *s = r->sections;
    *exponent = i;
    if (!(r->mode & SHEAF_ROPE_TYPE_MROPE)) return 0;
    for (int c = 0; c < 4; c++) {
        for (int k = 0, first = n; k < s[c]; k++, n++) order[n] = c, start[n] = first;
    }
    if (r->mode == SHEAF_ROPE_TYPE_IMROPE) { /* time, height, width, time, ... while they last */
        int taken[3] = {0};
        for (int k = 0; k < n; k++) {
            const int c = k % 3;
            order[k] = taken[c] < s[c] ? c : 3;
            taken[c]++;
        }
    }
    if (r->mode == SHEAF_ROPE_TYPE_VISION) *exponent = i % n - start[i % n];
    return order[i % n];
}

static double angle_of(const struct rope *r, const T *t, int i, int64_t token) {
    int exponent;
    const int which = position_of(r, i, &exponent), half = r->n_dims / 2;
    double theta =
        number(t->src[1], token + which * N, 0, 0, 0) * pow((double)base, -(double)exponent / half);
    if (r->factors) theta /= number(t->src[2], i, 0, 0, 0);
    if (!r->yarn) return theta * (double)freq_scale;
    double lo = r->n_dims * log(CTX / (FAST * 2 * M_PI)) / (2 * log((double)base));
    double hi = r->n_dims * log(CTX / (SLOW * 2 * M_PI)) / (2 * log((double)base));
    lo = fmax(0, floor(lo));
    hi = fmin(r->n_dims - 1, ceil(hi));
    const double ramp = fmin(1, fmax(0, (i - lo) / fmax(0.001, hi - lo)));
    const double mix = (1 - ramp) * (double)ext_factor;
    return theta * (double)freq_scale * (1 - mix) + theta * mix;
}

static double expect(const struct rope *r, const T *t, bool back, const int64_t at[4]) {
    const T *a = t->src[0];
    const bool vision = r->mode == SHEAF_ROPE_TYPE_VISION;
    const int pairs = vision ? r->n_dims : r->n_dims / 2, e = (int)at[0] - r->offset;
    if (e < 0 || e >= 2 * pairs) return number(a, at[0], at[1], at[2], at[3]);
    const bool beside = r->mode == SHEAF_ROPE_TYPE_NORMAL;
    const int i = beside ? e / 2 : e % pairs, second = beside ? e % 2 : e / pairs;
    const int e0 = r->offset + (beside ? 2 * i : i), e1 = e0 + (beside ? 1 : pairs);
    const double x0 = number(a, e0, at[1], at[2], at[3]), x1 = number(a, e1, at[1], at[2], at[3]);
    const double by = (double)attn_factor * (r->yarn ? 1 + 0.1 * log(1 / (double)freq_scale) : 1);
    const double angle = (back ? -1 : 1) * angle_of(r, t, i, at[2]);
    const double c = cos(angle) * by, s = sin(angle) * by;
    return second ? x0 * s + x1 * c : x0 * c - x1 * s;
}

/* ---- running ---- */

static uint64_t seed = 3;
static float uniform(void) { /* [-1, 1) */
    seed = seed * 6364136223846793005u + 1442695040888963407u;
    return (float)(seed >> 40) / (float)(1u << 23) - 1;
}

static void fill(T *t, float middle, float size) {
    for (int64_t i = 0; i < sheaf_nelements(t); i++) {
        const float x = middle + size * uniform();
        if (t->type == SHEAF_TYPE_I32) {
            ((int32_t *)t->data)[i] = (int32_t)x;
        } else {
            char *p = (char *)t->data + (size_t)i * t->nb[0];
            cr_assert_eq(sheaf_from_float(t->type, &x, p, 1), SHEAF_STATUS_SUCCESS);
        }
    }
}

static C *context(void) {
    C *c = sheaf_init((struct sheaf_init_params){.mem_size = 4 << 20});
    cr_assert_not_null(c);
    return c;
}

static T *make(C *c, const struct rope *r, T *a) {
    const bool many = r->mode & SHEAF_ROPE_TYPE_MROPE;
    T *pos = sheaf_new_tensor_1d(c, SHEAF_TYPE_I32, many ? 4 * N : N), *factors = NULL;
    if (r->factors) {
        factors = sheaf_new_tensor_1d(
            c, SHEAF_TYPE_F32, r->mode == SHEAF_ROPE_TYPE_VISION ? r->n_dims : r->n_dims / 2);
        fill(factors, 1, 0.1f);
    }
    fill(pos, 500, 500);
    const float ext = r->yarn ? ext_factor : 0;
    T *t = many ? sheaf_rope_multi(c, a, pos, factors, r->n_dims, r->sections, r->mode, CTX, base,
                                   freq_scale, ext, attn_factor, FAST, SLOW)
                : sheaf_rope_ext(c, a, pos, factors, r->n_dims, r->mode, CTX, base, freq_scale, ext,
                                 attn_factor, FAST, SLOW);
    cr_assert_not_null(t, "%s: %s", r->what, sheaf_last_error());
    cr_assert_eq(sheaf_rope_set_offset(t, r->offset), t, "%s", sheaf_last_error());
    return t;
}

static void compute(C *c, T *t, int threads) {
    sheaf_backend_t backend;
    struct sheaf_cgraph *graph = sheaf_new_graph(c);
    cr_assert_eq(sheaf_backend_init_by_name("CPU0", NULL, &backend), SHEAF_STATUS_SUCCESS);
    cr_assert_eq(sheaf_backend_cpu_set_n_threads(backend, threads), SHEAF_STATUS_SUCCESS);
    cr_assert(sheaf_backend_supports_op(backend, t));
    cr_assert_eq(sheaf_build_forward_expand(graph, t), SHEAF_STATUS_SUCCESS);
    cr_assert_eq(sheaf_backend_graph_compute(backend, graph), SHEAF_STATUS_SUCCESS, "%s",
                 sheaf_last_error());
    sheaf_backend_free(backend);
}

static void check(const struct rope *r, const T *t, bool back) {
    const double tolerance = r->half ? 1e-3 : 2e-6;
    for (int64_t i = 0; i < sheaf_nelements(t); i++) {
        const int64_t at[4] = {i % D, i / D % H, i / D / H % N, i / D / H / N};
        const double want = expect(r, t, back, at), got = number(t, at[0], at[1], at[2], at[3]);
        cr_assert(fabs(got - want) <= tolerance * fmax(1, fabs(want)),
                  "%s%s [%d %d %d %d]: %.9g, expected %.9g", r->what, back ? " back" : "",
                  (int)at[0], (int)at[1], (int)at[2], (int)at[3], got, want);
    }
}

Test(rope, every_mode) {
    for (int i = 0; i < N_CASES; i++) {
        for (int back = 0; back < 2; back++) {
            C *c = context();
            T *a =
                sheaf_new_tensor_4d(c, cases[i].half ? SHEAF_TYPE_F16 : SHEAF_TYPE_F32, D, H, N, S);
            fill(a, 0, 2);
            T *t = make(c, &cases[i], a);
            if (back) cr_assert_eq(sheaf_rope_back(t), t);
            cr_assert_eq(t->type, a->type);
            compute(c, t, 1);
            check(&cases[i], t, back);
            char *first = malloc(sheaf_nbytes(t));
            memcpy(first, t->data, sheaf_nbytes(t));
            memset(t->data, 0xA5, sheaf_nbytes(t));
            compute(c, t, 3);
            cr_assert_arr_eq(first, t->data, sheaf_nbytes(t), "%s: 3 threads", cases[i].what);
            free(first);
            sheaf_free(c);
        }
    }
}

/* Over its operand: the same as beside it. */
Test(rope, in_place) {
    for (int i = 0; i < N_CASES; i++) {
        C *c = context();
        T *a = sheaf_new_tensor_4d(c, cases[i].half ? SHEAF_TYPE_F16 : SHEAF_TYPE_F32, D, H, N, S);
        fill(a, 0, 2);
        T *t = make(c, &cases[i], a), *over = sheaf_dup_tensor(c, t);
        over->op = t->op;
        memcpy(over->op_params, t->op_params, sizeof t->op_params);
        memcpy(over->src, t->src, sizeof t->src);
        cr_assert_eq(sheaf_in_place(over, 0), over, "%s", sheaf_last_error());
        compute(c, t, 1);
        compute(c, over, 2);
        cr_assert_eq(over->data, a->data);
        cr_assert_arr_eq(over->data, t->data, sheaf_nbytes(t), "%s", cases[i].what);
        sheaf_free(c);
    }
}

Test(rope, back_undoes) {
    for (int i = 0; i < N_CASES; i++) {
        if (cases[i].half) continue;
        C *c = context();
        T *a = sheaf_new_tensor_4d(c, SHEAF_TYPE_F32, D, H, N, S);
        fill(a, 0, 2);
        T *t = make(c, &cases[i], a), *undone = sheaf_dup_tensor(c, t);
        undone->op = SHEAF_OP_ROPE_BACK;
        memcpy(undone->op_params, t->op_params, sizeof t->op_params);
        memcpy(undone->src, t->src, sizeof t->src);
        undone->src[0] = t;
        compute(c, undone, 2);
        const double by =
            (double)attn_factor * (cases[i].yarn ? 1 + 0.1 * log(1 / (double)freq_scale) : 1);
        const int last = cases[i].mode == SHEAF_ROPE_TYPE_VISION ? D : cases[i].n_dims;
        for (int64_t j = 0; j < sheaf_nelements(t); j++) {
            const int e = (int)(j % D) - cases[i].offset;
            const double scale = e >= 0 && e < last ? by * by : 1;
            const double want = scale * (double)((float *)a->data)[j];
            cr_assert_float_eq(((float *)undone->data)[j], want, 4e-6, "%s", cases[i].what);
        }
        sheaf_free(c);
    }
}

Test(rope, what_is_refused) {
    C *c = context();
    T *a = sheaf_new_tensor_3d(c, SHEAF_TYPE_F32, 16, 2, 5);
    T *pos = sheaf_new_tensor_1d(c, SHEAF_TYPE_I32, 20),
      *few = sheaf_new_tensor_1d(c, SHEAF_TYPE_I32, 5);
    T *factors = sheaf_new_tensor_1d(c, SHEAF_TYPE_F32, 4);
    const struct {
        int n_dims, sections[4], mode;
        T *pos, *factors;
        const char *words;
    } wrong[] = {
        {16, {2, 2, 2, 0}, SHEAF_ROPE_TYPE_NEOX, pos, NULL, "MROPE, VISION or IMROPE"},
        {16, {2, 2, 2, 0}, SHEAF_ROPE_TYPE_MROPE, few, NULL, "positions are i32 [4 n]"},
        {16, {2, -1, 2, 0}, SHEAF_ROPE_TYPE_MROPE, pos, NULL, "a section is negative"},
        {16, {0, 0, 0, 0}, SHEAF_ROPE_TYPE_MROPE, pos, NULL, "sum of the sections"},
        {16, {INT32_MAX, INT32_MAX, 2, 0}, SHEAF_ROPE_TYPE_MROPE, pos, NULL, "sum of the sections"},
        {16, {4, 4, 0, 0}, SHEAF_ROPE_TYPE_VISION, pos, NULL, "half of dimension 0"},
        {8, {4, 4, 0, 0}, SHEAF_ROPE_TYPE_VISION, pos, factors, "frequency factors"},
    };
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        sheaf_clear_error();
        cr_assert_null(sheaf_rope_multi(c, a, wrong[i].pos, wrong[i].factors, wrong[i].n_dims,
                                        wrong[i].sections, wrong[i].mode, 0, base, 1, 0, 1, 0, 0));
        cr_assert(strstr(sheaf_last_error(), wrong[i].words), "%s", sheaf_last_error());
    }
    const int sections[4] = {2, 2, 2, 0};
    T *t = sheaf_rope_multi(c, a, pos, NULL, 12, sections, SHEAF_ROPE_TYPE_MROPE, 0, base, 1, 0, 1,
                            0, 0);
    cr_assert_not_null(t);
    cr_assert_null(sheaf_rope_set_offset(t, 5));
    cr_assert(strstr(sheaf_last_error(), "within dimension 0"), "%s", sheaf_last_error());
    cr_assert_null(sheaf_rope_set_offset(t, -1));
    cr_assert_null(sheaf_rope_set_offset(a, 1));
    cr_assert_eq(sheaf_rope_set_offset(t, 4), t);
    cr_assert_eq(t->op_params[13], 4);
    cr_assert_null(sheaf_rope_back(a));

    /* nodes that did not come from a constructor */
    sheaf_backend_t backend;
    cr_assert_eq(sheaf_backend_init_by_name("CPU0", NULL, &backend), SHEAF_STATUS_SUCCESS);
    cr_assert(sheaf_backend_supports_op(backend, t));
    static const int spoiled[][2] = {{13, 5}, {13, -1}, {9, -1}, {10, INT32_MAX},
                                     {1, 9},  {1, 24},  {0, 14}, {0, 0}};
    for (size_t i = 0; i < sizeof spoiled / sizeof *spoiled; i++) {
        const int was = t->op_params[spoiled[i][0]];
        t->op_params[spoiled[i][0]] = spoiled[i][1];
        cr_assert_not(sheaf_backend_supports_op(backend, t), "word %d: %d", spoiled[i][0],
                      spoiled[i][1]);
        t->op_params[spoiled[i][0]] = was;
    }
    t->src[1] = few;
    cr_assert_not(sheaf_backend_supports_op(backend, t));
    sheaf_backend_free(backend);
    sheaf_free(c);
}
