/* One scenario for a meta device over any members: weights with every kind of split state, set /
 * get / load, a small graph computed on slices and compared with the same graph on one CPU device.
 * Used in-process by test-meta.c and under mpirun by helper-meta.c. Every check prints what failed
 * and makes the scenario return false. */
#ifndef SHEAF_TESTS_META_SCENARIO_H
#define SHEAF_TESTS_META_SCENARIO_H

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "sheaf/sheaf.h"

#define EXPECT(cond)                                                                               \
    do {                                                                                           \
        if (!(cond)) {                                                                             \
            fprintf(stderr, "rank %d: %s:%d: %s failed: %s\n", sheaf_world_rank(), __FILE__,       \
                    __LINE__, #cond, sheaf_last_error());                                          \
            return false;                                                                          \
        }                                                                                          \
    } while (0)

enum { N_EMBD = 64, N_FF = 96, N_VOCAB = 40, N_TOKENS = 5 };

static inline float scenario_value(size_t i, unsigned seed) {
    uint32_t x = (uint32_t)i * 2654435761u + seed * 40503u;
    x ^= x >> 15;
    x *= 2246822519u;
    x ^= x >> 13;
    return (float)(x & 0xFFFF) / 65536.0f - 0.5f;
}

/* Shares 1, 2, 3 ... of `units`, the last member takes the rest; with `hole`, member 1 of 3 or more
 * owns nothing. */
static inline void scenario_counts(int64_t units, int n, bool hole, int64_t *counts) {
    int64_t left = units, weights = 0;
    for (int j = 0; j < n; j++) weights += hole && n > 2 && j == 1 ? 0 : j + 1;
    for (int j = 0; j < n; j++) {
        const int w = hole && n > 2 && j == 1 ? 0 : j + 1;
        counts[j] = j == n - 1 ? left : units * w / weights;
        left -= counts[j];
    }
}

struct scenario_policy {
    int n_members;
    bool hole;
};

/* By name: gate/up cut by rows, down by columns in blocks of 32, out by vocabulary, fused in two
 * segments. */
static inline enum sheaf_status scenario_state(const struct sheaf_tensor *t, const void *user,
                                               struct sheaf_split_state **out) {
    const struct scenario_policy *p = user;
    const int n = p->n_members;
    int64_t *counts = malloc((size_t)n * sizeof *counts);
    if (!counts) return SHEAF_STATUS_ALLOC_FAILED;
    if (!strcmp(t->name, "up") || !strcmp(t->name, "gate") || !strcmp(t->name, "down")) {
        const enum sheaf_split_axis axis =
            strcmp(t->name, "down") ? SHEAF_SPLIT_AXIS_1 : SHEAF_SPLIT_AXIS_0;
        scenario_counts(N_FF / 32, n, p->hole, counts);
        *out = sheaf_split_state_cut(axis, n, counts, 32);
    } else if (!strcmp(t->name, "out")) {
        scenario_counts(N_VOCAB, n, p->hole, counts);
        *out = sheaf_split_state_cut(SHEAF_SPLIT_AXIS_1, n, counts, 1);
    } else if (!strcmp(t->name, "fused")) {
        *out = sheaf_split_state_new(SHEAF_SPLIT_AXIS_1, n, 2);
        for (int s = 0; *out && s < 2; s++) {
            struct sheaf_split_segment *seg = &(*out)->segments[s];
            seg->outer = 1;
            seg->inner = s ? 4 : 2;
            seg->units = s ? 6 : 8;
            scenario_counts(seg->units, n, p->hole, seg->count);
            for (int j = 1; j < n; j++) seg->first[j] = seg->first[j - 1] + seg->count[j - 1];
        }
    } else {
        *out = sheaf_split_state_mirrored(n);
    }
    free(counts);
    return *out ? SHEAF_STATUS_SUCCESS : SHEAF_STATUS_ALLOC_FAILED;
}

struct scenario_reader {
    const char *data;
    size_t bytes;
};

static inline enum sheaf_status scenario_read(void *user, size_t offset, void *dst, size_t size) {
    struct scenario_reader *r = user;
    memcpy(dst, r->data + offset, size);
    r->bytes += size;
    return SHEAF_STATUS_SUCCESS;
}

struct scenario_model {
    struct sheaf_context *ctx;
    sheaf_backend_buffer_t buffer;
    struct sheaf_tensor *norm, *gate, *up, *down, *out, *fused;
    size_t bytes_read; /* through the reader, by this rank */
};

static inline bool scenario_load_tensor(struct sheaf_tensor *t, unsigned seed, size_t *bytes_read) {
    const size_t n = (size_t)sheaf_nelements(t);
    float *values = malloc(n * sizeof *values);
    char *data = malloc(sheaf_nbytes(t));
    EXPECT(values && data);
    for (size_t i = 0; i < n; i++) values[i] = scenario_value(i, seed);
    EXPECT(sheaf_from_float(t->type, values, data, (int64_t)n) == SHEAF_STATUS_SUCCESS);
    struct scenario_reader reader = {data, 0};
    /* half of the tensors through the reader, half by plain sets of odd ranges */
    if (seed % 2) {
        EXPECT(sheaf_backend_tensor_set_from(t, scenario_read, &reader) == SHEAF_STATUS_SUCCESS);
    } else {
        const size_t cut = sheaf_nbytes(t) / 3;
        EXPECT(sheaf_backend_tensor_set(t, data, 0, cut) == SHEAF_STATUS_SUCCESS);
        EXPECT(sheaf_backend_tensor_set(t, data + cut, cut, sheaf_nbytes(t) - cut) ==
               SHEAF_STATUS_SUCCESS);
    }
    *bytes_read += reader.bytes;
    /* what comes back is what went in, whole and by range */
    char *back = malloc(sheaf_nbytes(t));
    EXPECT(back && sheaf_backend_tensor_get(t, back, 0, sheaf_nbytes(t)) == SHEAF_STATUS_SUCCESS);
    EXPECT(!memcmp(back, data, sheaf_nbytes(t)));
    const size_t from = sheaf_nbytes(t) / 5, len = sheaf_nbytes(t) / 2;
    EXPECT(sheaf_backend_tensor_get(t, back, from, len) == SHEAF_STATUS_SUCCESS);
    EXPECT(!memcmp(back, data + from, len));
    /* the same at the last rank only */
    const int last = sheaf_world_size() - 1;
    const bool here = sheaf_world_rank() == last;
    const bool meta = sheaf_backend_dev_is_meta(
        sheaf_backend_buft_get_device(sheaf_backend_buffer_get_type(t->buffer)));
    memset(back, 0, len);
    EXPECT(sheaf_backend_meta_tensor_get_at(t, last, here ? back : NULL, from, len) ==
           (meta ? SHEAF_STATUS_SUCCESS : SHEAF_STATUS_INVALID));
    EXPECT(!meta || !here || !memcmp(back, data + from, len));
    free(values);
    free(data);
    free(back);
    return true;
}

static inline bool scenario_load(struct scenario_model *m, sheaf_backend_t backend,
                                 enum sheaf_type type) {
    m->ctx = sheaf_init(
        (struct sheaf_init_params){.mem_size = 16 * sheaf_tensor_overhead(), .no_alloc = true});
    m->norm = sheaf_set_name(sheaf_new_tensor_1d(m->ctx, SHEAF_TYPE_F32, N_EMBD), "norm");
    m->gate = sheaf_set_name(sheaf_new_tensor_2d(m->ctx, type, N_EMBD, N_FF), "gate");
    m->up = sheaf_set_name(sheaf_new_tensor_2d(m->ctx, type, N_EMBD, N_FF), "up");
    m->down = sheaf_set_name(sheaf_new_tensor_2d(m->ctx, type, N_FF, N_EMBD), "down");
    m->out = sheaf_set_name(sheaf_new_tensor_2d(m->ctx, type, N_EMBD, N_VOCAB), "out");
    m->fused =
        sheaf_set_name(sheaf_new_tensor_2d(m->ctx, SHEAF_TYPE_F32, N_EMBD, 2 * 8 + 4 * 6), "fused");
    EXPECT(sheaf_backend_alloc_ctx_tensors(m->ctx, backend, &m->buffer) == SHEAF_STATUS_SUCCESS);
    sheaf_backend_buffer_set_usage(m->buffer, SHEAF_BACKEND_BUFFER_USAGE_WEIGHTS);
    unsigned seed = 1;
    for (struct sheaf_tensor *t = sheaf_get_first_tensor(m->ctx); t;
         t = sheaf_get_next_tensor(m->ctx, t), seed++) {
        if (!scenario_load_tensor(t, seed, &m->bytes_read)) return false;
    }
    return true;
}

static inline void scenario_unload(struct scenario_model *m) {
    sheaf_backend_buffer_free(m->buffer);
    sheaf_free(m->ctx);
}

/* logits = out * (x + ffn(norm(x))); returned with the partial sum, a fused product and a gathered
 * product beside. */
struct scenario_graph {
    struct sheaf_context *ctx;
    struct sheaf_cgraph *graph;
    struct sheaf_tensor *x, *ffn, *logits, *fused, *top;
};

static inline bool scenario_graph(struct scenario_graph *g, const struct scenario_model *m,
                                  int64_t n_tokens) {
    g->ctx = sheaf_init((struct sheaf_init_params){.mem_size = 64 * sheaf_tensor_overhead() +
                                                               sheaf_graph_overhead_custom(64),
                                                   .no_alloc = true});
    struct sheaf_context *c = g->ctx;
    g->graph = sheaf_new_graph_custom(c, 64);
    g->x = sheaf_set_name(sheaf_new_tensor_2d(c, SHEAF_TYPE_F32, N_EMBD, n_tokens), "x");
    sheaf_set_input(g->x);
    struct sheaf_tensor *h = sheaf_mul(c, sheaf_rms_norm(c, g->x, 1e-5f), m->norm);
    struct sheaf_tensor *act =
        sheaf_swiglu_split(c, sheaf_mul_mat(c, m->gate, h), sheaf_mul_mat(c, m->up, h));
    g->ffn = sheaf_set_name(sheaf_mul_mat(c, m->down, act), "ffn");
    sheaf_set_output(g->ffn);
    struct sheaf_tensor *y = sheaf_set_name(sheaf_add(c, g->x, g->ffn), "y");
    g->logits = sheaf_set_name(sheaf_mul_mat(c, m->out, y), "logits");
    sheaf_set_output(g->logits);
    g->fused = sheaf_set_name(sheaf_mul_mat(c, m->fused, y), "fused_out");
    sheaf_set_output(g->fused);
    g->top = sheaf_set_name(sheaf_argmax(c, g->logits), "top");
    sheaf_set_output(g->top);
    EXPECT(sheaf_build_forward_expand(g->graph, g->fused) == SHEAF_STATUS_SUCCESS);
    EXPECT(sheaf_build_forward_expand(g->graph, g->top) == SHEAF_STATUS_SUCCESS);
    return true;
}

struct scenario_result {
    float ffn[N_EMBD * N_TOKENS], logits[N_VOCAB * N_TOKENS], fused[40 * N_TOKENS];
    int32_t top[N_TOKENS];
};

static inline bool scenario_compute(struct scenario_graph *g, sheaf_backend_t backend,
                                    sheaf_gallocr_t galloc, unsigned seed,
                                    struct scenario_result *r) {
    float x[N_EMBD * N_TOKENS];
    const int64_t n = g->x->ne[1];
    for (size_t i = 0; i < (size_t)(N_EMBD * n); i++) x[i] = scenario_value(i, seed + 100);
    EXPECT(sheaf_gallocr_alloc_graph(galloc, g->graph) == SHEAF_STATUS_SUCCESS);
    EXPECT(sheaf_backend_tensor_set(g->x, x, 0, sheaf_nbytes(g->x)) == SHEAF_STATUS_SUCCESS);
    EXPECT(sheaf_backend_graph_compute(backend, g->graph) == SHEAF_STATUS_SUCCESS);
    memset(r, 0, sizeof *r);
    EXPECT(sheaf_backend_tensor_get(g->ffn, r->ffn, 0, sheaf_nbytes(g->ffn)) ==
           SHEAF_STATUS_SUCCESS);
    EXPECT(sheaf_backend_tensor_get(g->logits, r->logits, 0, sheaf_nbytes(g->logits)) ==
           SHEAF_STATUS_SUCCESS);
    EXPECT(sheaf_backend_tensor_get(g->fused, r->fused, 0, sheaf_nbytes(g->fused)) ==
           SHEAF_STATUS_SUCCESS);
    EXPECT(sheaf_backend_tensor_get(g->top, r->top, 0, sheaf_nbytes(g->top)) ==
           SHEAF_STATUS_SUCCESS);
    return true;
}

static inline double scenario_nmse(const float *a, const float *b, size_t n) {
    double err = 0, ref = 0;
    for (size_t i = 0; i < n; i++) {
        err += ((double)a[i] - b[i]) * ((double)a[i] - b[i]);
        ref += (double)b[i] * b[i];
    }
    return ref > 0 ? err / ref : err;
}

/* `members` in rank order; collective. Prints nothing when all is well. */
static inline bool run_meta_scenario(const sheaf_backend_dev_t *members, size_t n_members,
                                     enum sheaf_type type, bool hole) {
    struct scenario_policy policy = {(int)n_members, hole};
    sheaf_backend_dev_t meta;
    sheaf_backend_t backend, cpu;
    EXPECT(sheaf_backend_meta_device(members, n_members, scenario_state, &policy, NULL, &meta) ==
           SHEAF_STATUS_SUCCESS);
    EXPECT(sheaf_backend_dev_init(meta, NULL, &backend) == SHEAF_STATUS_SUCCESS);
    EXPECT(sheaf_backend_init_by_type(SHEAF_BACKEND_DEVICE_TYPE_CPU, NULL, &cpu) ==
           SHEAF_STATUS_SUCCESS);
    sheaf_backend_meta_set_check(backend, true);

    struct scenario_model split = {0}, whole = {0};
    EXPECT(scenario_load(&split, backend, type));
    EXPECT(scenario_load(&whole, cpu, type));
    /* a rank reads each byte of its slices once, and nothing else */
    const bool all_here = sheaf_backend_meta_dev_n_local(meta) == n_members;
    EXPECT(all_here ? split.bytes_read == whole.bytes_read : split.bytes_read < whole.bytes_read);
    struct sheaf_backend_meta_stats stats = {.size = sizeof stats};
    sheaf_backend_meta_get_stats(backend, &stats);
    EXPECT((stats.static_bytes > 0) == (sheaf_backend_meta_dev_n_local(meta) > 0) &&
           stats.n_plans == 0);

    sheaf_gallocr_t g_split = sheaf_gallocr_new(sheaf_backend_get_default_buffer_type(backend));
    sheaf_gallocr_t g_whole = sheaf_gallocr_new(sheaf_backend_get_default_buffer_type(cpu));
    /* a block type rounds activations: a last bit may flip a rounding */
    const double tolerance = sheaf_is_quantized(type) ? 1e-5 : 1e-12;
    for (unsigned round = 0; round < 4; round++) {
        /* rounds 0, 1: the same shape built anew: one plan; 2: another shape: a second plan; 3: the
         * first again */
        const int64_t n_tokens = round == 2 ? 1 : N_TOKENS;
        struct scenario_graph a, b;
        struct scenario_result ra, rb;
        EXPECT(scenario_graph(&a, &split, n_tokens) && scenario_graph(&b, &whole, n_tokens));
        EXPECT(scenario_compute(&a, backend, g_split, round, &ra));
        EXPECT(scenario_compute(&b, cpu, g_whole, round, &rb));
        const double worst =
            fmax(scenario_nmse(ra.ffn, rb.ffn, N_EMBD * (size_t)n_tokens),
                 fmax(scenario_nmse(ra.logits, rb.logits, N_VOCAB * (size_t)n_tokens),
                      scenario_nmse(ra.fused, rb.fused, 40 * (size_t)n_tokens)));
        if (!(worst <= tolerance)) fprintf(stderr, "round %u: NMSE %g\n", round, worst);
        EXPECT(worst <= tolerance);
        EXPECT(!memcmp(ra.top, rb.top, sizeof ra.top));
        sheaf_backend_meta_get_stats(backend, &stats);
        EXPECT(stats.n_plans == (round < 2 ? 1 : 2));
        /* the same graph object once more, other input */
        EXPECT(scenario_compute(&a, backend, g_split, round + 50, &ra));
        EXPECT(scenario_compute(&b, cpu, g_whole, round + 50, &rb));
        EXPECT(scenario_nmse(ra.logits, rb.logits, N_VOCAB * (size_t)n_tokens) <= tolerance);
        sheaf_free(a.ctx);
        sheaf_free(b.ctx);
    }
    sheaf_gallocr_free(g_split);
    sheaf_gallocr_free(g_whole);
    scenario_unload(&split);
    scenario_unload(&whole);
    sheaf_backend_free(backend);
    sheaf_backend_free(cpu);
    sheaf_backend_meta_device_free(meta);
    return true;
}

#endif
