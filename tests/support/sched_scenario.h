/* A small transformer that a scheduler computes on several backends: two layers with rotated
 * attention through a cache, a gated feed-forward, logits and the best token. Its weights lie where
 * the caller says; any node can be assigned to any backend; the result is compared with that of one
 * CPU backend. Used by test-sched.c in-process and by helper-sched.c under mpirun. */
#ifndef SHEAF_TESTS_SCHED_SCENARIO_H
#define SHEAF_TESTS_SCHED_SCENARIO_H

#include <dlfcn.h>

#include "meta_scenario.h"

enum { TF_LAYERS = 2, TF_D = 16, TF_H = 4, TF_G = 2, TF_ROWS = 32, TF_TOKENS = 3, TF_NODES = 160 };

static inline bool tf_is(const struct sheaf_tensor *t, const char *prefix) {
    return !strncmp(t->name, prefix, strlen(prefix));
}

/* Heads over the members as evenly as K/V heads allow, feed-forward rows unevenly. */
static inline enum sheaf_status tf_state(const struct sheaf_tensor *t, const void *user,
                                         struct sheaf_split_state **out) {
    const int n = *(const int *)user;
    int64_t counts[8] = {0};
    const bool q = tf_is(t, "wq"), kv = tf_is(t, "wk") || tf_is(t, "wv");
    if (q || kv || tf_is(t, "wo") || tf_is(t, "cache")) {
        for (int g = 0; g < TF_G; g++) counts[g % n]++;
        const int64_t unit = q || tf_is(t, "wo") ? TF_D * TF_H / TF_G : TF_D;
        *out = sheaf_split_state_cut(q || kv ? SHEAF_SPLIT_AXIS_1 : SHEAF_SPLIT_AXIS_0, n, counts,
                                     unit);
    } else if (tf_is(t, "gate") || tf_is(t, "up") || tf_is(t, "down")) {
        scenario_counts(N_FF / 32, n, false, counts);
        *out = sheaf_split_state_cut(tf_is(t, "down") ? SHEAF_SPLIT_AXIS_0 : SHEAF_SPLIT_AXIS_1, n,
                                     counts, 32);
    } else if (tf_is(t, "out")) {
        scenario_counts(N_VOCAB, n, false, counts);
        *out = sheaf_split_state_cut(SHEAF_SPLIT_AXIS_1, n, counts, 1);
    } else {
        *out = sheaf_split_state_mirrored(n);
    }
    return *out ? SHEAF_STATUS_SUCCESS : SHEAF_STATUS_ALLOC_FAILED;
}

struct tf_layer {
    struct sheaf_tensor *norm, *wq, *wk, *wv, *wo, *cache_k, *cache_v, *norm2, *gate, *up, *down;
};

struct tf_model {
    struct sheaf_context *ctx[2]; /* weights of layer 0 and all else; of layer 1 */
    sheaf_backend_buffer_t buffer[2];
    struct tf_layer layer[TF_LAYERS];
    struct sheaf_tensor *out;
};

static inline struct sheaf_tensor *tf_weight(struct sheaf_context *c, const char *name, int il,
                                             int64_t ne0, int64_t ne1) {
    return sheaf_format_name(sheaf_new_tensor_2d(c, SHEAF_TYPE_F32, ne0, ne1), "%s%d", name, il);
}

static inline bool tf_fill(struct sheaf_tensor *t, unsigned seed, float scale) {
    const size_t n = (size_t)sheaf_nelements(t);
    float *v = malloc(n * sizeof *v);
    EXPECT(v);
    for (size_t i = 0; i < n; i++) v[i] = scale * scenario_value(i, seed);
    EXPECT(sheaf_backend_tensor_set(t, v, 0, n * sizeof *v) == SHEAF_STATUS_SUCCESS);
    free(v);
    return true;
}

/* Layer 0 on `first`, layer 1 on `second`. */
static inline bool tf_load(struct tf_model *m, sheaf_backend_t first, sheaf_backend_t second) {
    memset(m, 0, sizeof *m);
    for (int il = 0; il < TF_LAYERS; il++) {
        struct sheaf_context *c = m->ctx[il] = sheaf_init(
            (struct sheaf_init_params){.mem_size = 16 * sheaf_tensor_overhead(), .no_alloc = true});
        EXPECT(c);
        m->layer[il] = (struct tf_layer){
            .norm = tf_weight(c, "norm", il, N_EMBD, 1),
            .wq = tf_weight(c, "wq", il, N_EMBD, TF_D * TF_H),
            .wk = tf_weight(c, "wk", il, N_EMBD, TF_D * TF_G),
            .wv = tf_weight(c, "wv", il, N_EMBD, TF_D * TF_G),
            .wo = tf_weight(c, "wo", il, TF_D * TF_H, N_EMBD),
            .cache_k = tf_weight(c, "cache_k", il, TF_D * TF_G, TF_ROWS),
            .cache_v = tf_weight(c, "cache_v", il, TF_D * TF_G, TF_ROWS),
            .norm2 = tf_weight(c, "norm2", il, N_EMBD, 1),
            .gate = tf_weight(c, "gate", il, N_EMBD, N_FF),
            .up = tf_weight(c, "up", il, N_EMBD, N_FF),
            .down = tf_weight(c, "down", il, N_FF, N_EMBD),
        };
        if (il == 0) m->out = tf_weight(c, "out", 0, N_EMBD, N_VOCAB);
        EXPECT(sheaf_backend_alloc_ctx_tensors(c, il ? second : first, &m->buffer[il]) ==
               SHEAF_STATUS_SUCCESS);
        sheaf_backend_buffer_set_usage(m->buffer[il], SHEAF_BACKEND_BUFFER_USAGE_WEIGHTS);
        unsigned seed = 1 + 100 * (unsigned)il;
        for (struct sheaf_tensor *t = sheaf_get_first_tensor(c); t;
             t = sheaf_get_next_tensor(c, t), seed++)
            EXPECT(tf_fill(t, seed, tf_is(t, "cache") ? 0.0f : 0.5f));
    }
    return true;
}

static inline void tf_unload(struct tf_model *m) {
    for (int il = 0; il < TF_LAYERS; il++) {
        sheaf_backend_buffer_free(m->buffer[il]);
        sheaf_free(m->ctx[il]);
    }
}

struct tf_graph {
    struct sheaf_context *ctx;
    struct sheaf_cgraph *graph;
    struct sheaf_tensor *x, *pos, *rows, *mask, *mid, *logits, *top;
    int64_t n_tokens;
};

static inline bool tf_graph(struct tf_graph *g, const struct tf_model *m, int64_t n_tokens) {
    memset(g, 0, sizeof *g);
    g->n_tokens = n_tokens;
    struct sheaf_context *c = g->ctx = sheaf_init((struct sheaf_init_params){
        .mem_size = TF_NODES * sheaf_tensor_overhead() + sheaf_graph_overhead_custom(TF_NODES),
        .no_alloc = true});
    g->graph = sheaf_new_graph_custom(c, TF_NODES);
    g->x = sheaf_set_name(sheaf_new_tensor_2d(c, SHEAF_TYPE_F32, N_EMBD, n_tokens), "x");
    g->pos = sheaf_set_name(sheaf_new_tensor_1d(c, SHEAF_TYPE_I32, n_tokens), "pos");
    g->rows = sheaf_set_name(sheaf_new_tensor_1d(c, SHEAF_TYPE_I64, n_tokens), "rows");
    g->mask = sheaf_set_name(sheaf_new_tensor_2d(c, SHEAF_TYPE_F32, TF_ROWS, n_tokens), "mask");
    sheaf_set_input(g->x);
    sheaf_set_input(g->pos);
    sheaf_set_input(g->rows);
    sheaf_set_input(g->mask);
    struct sheaf_tensor *x = g->x;
    for (int il = 0; il < TF_LAYERS; il++) {
        const struct tf_layer *w = &m->layer[il];
        struct sheaf_tensor *h = sheaf_mul(c, sheaf_rms_norm(c, x, 1e-5f), w->norm), *kv[2];
        struct sheaf_tensor *q =
            sheaf_reshape_3d(c, sheaf_mul_mat(c, w->wq, h), TF_D, TF_H, n_tokens);
        q = sheaf_rope_ext(c, q, g->pos, NULL, TF_D, SHEAF_ROPE_TYPE_NORMAL, 0, 10000.0f, 1, 0, 1,
                           32, 1);
        for (int i = 0; i < 2; i++) {
            struct sheaf_tensor *y = sheaf_mul_mat(c, i ? w->wv : w->wk, h);
            struct sheaf_tensor *cache = sheaf_set_rows(c, i ? w->cache_v : w->cache_k, y, g->rows);
            kv[i] = sheaf_view_2d(c, cache, TF_D * TF_G, TF_ROWS, cache->nb[1], 0);
            kv[i] = sheaf_permute(c, sheaf_reshape_3d(c, kv[i], TF_D, TF_G, TF_ROWS), 0, 2, 1, 3);
        }
        struct sheaf_tensor *y = sheaf_flash_attn_ext(c, sheaf_permute(c, q, 0, 2, 1, 3), kv[0],
                                                      kv[1], g->mask, 0.25f, 0, 0);
        y = sheaf_mul_mat(c, w->wo, sheaf_reshape_2d(c, y, TF_D * TF_H, n_tokens));
        x = sheaf_add(c, x, y);
        h = sheaf_mul(c, sheaf_rms_norm(c, x, 1e-5f), w->norm2);
        y = sheaf_swiglu_split(c, sheaf_mul_mat(c, w->gate, h), sheaf_mul_mat(c, w->up, h));
        x = sheaf_add(c, x, sheaf_mul_mat(c, w->down, y));
        if (il == 0) sheaf_set_output(g->mid = sheaf_set_name(x, "mid"));
    }
    g->logits = sheaf_set_name(sheaf_mul_mat(c, m->out, x), "logits");
    sheaf_set_output(g->logits);
    g->top = sheaf_set_name(sheaf_argmax(c, g->logits), "top");
    sheaf_set_output(g->top);
    EXPECT(sheaf_build_forward_expand(g->graph, g->top) == SHEAF_STATUS_SUCCESS);
    return true;
}

struct tf_result {
    float mid[N_EMBD * TF_TOKENS], logits[N_VOCAB * TF_TOKENS];
    int32_t top[TF_TOKENS];
};

/* Tokens `first`.. at positions of their own; `seed` makes the embeddings. */
static inline bool tf_set_inputs(struct tf_graph *g, int first, unsigned seed) {
    float x[N_EMBD * TF_TOKENS], mask[TF_ROWS * TF_TOKENS];
    int32_t pos[TF_TOKENS];
    int64_t rows[TF_TOKENS];
    for (size_t i = 0; i < (size_t)(N_EMBD * g->n_tokens); i++) x[i] = scenario_value(i, seed);
    for (int i = 0; i < g->n_tokens; i++) {
        rows[i] = pos[i] = first + i;
        for (int k = 0; k < TF_ROWS; k++) mask[i * TF_ROWS + k] = k <= first + i ? 0 : -INFINITY;
    }
    const size_t n = (size_t)g->n_tokens;
    EXPECT(!sheaf_backend_tensor_set(g->x, x, 0, N_EMBD * n * sizeof *x));
    EXPECT(!sheaf_backend_tensor_set(g->pos, pos, 0, n * sizeof *pos));
    EXPECT(!sheaf_backend_tensor_set(g->rows, rows, 0, n * sizeof *rows));
    EXPECT(!sheaf_backend_tensor_set(g->mask, mask, 0, TF_ROWS * n * sizeof *mask));
    return true;
}

static inline bool tf_results(const struct tf_graph *g, struct tf_result *r) {
    memset(r, 0, sizeof *r);
    EXPECT(!sheaf_backend_tensor_get(g->mid, r->mid, 0, sheaf_nbytes(g->mid)));
    EXPECT(!sheaf_backend_tensor_get(g->logits, r->logits, 0, sheaf_nbytes(g->logits)));
    EXPECT(!sheaf_backend_tensor_get(g->top, r->top, 0, sheaf_nbytes(g->top)));
    return true;
}

static inline bool tf_equal(const struct tf_result *a, const struct tf_result *b) {
    const double mid = scenario_nmse(a->mid, b->mid, N_EMBD * TF_TOKENS);
    const double logits = scenario_nmse(a->logits, b->logits, N_VOCAB * TF_TOKENS);
    if (!(mid <= 1e-10 && logits <= 1e-10)) fprintf(stderr, "NMSE %g, %g\n", mid, logits);
    EXPECT(mid <= 1e-10 && logits <= 1e-10);
    EXPECT(!memcmp(a->top, b->top, sizeof a->top));
    return true;
}

/* The prompt and three steps on one CPU backend: what every way must give. */
enum { TF_STEPS = 4 };
static inline bool tf_reference(struct tf_result *want) {
    sheaf_backend_t cpu;
    struct tf_model m;
    EXPECT(!sheaf_backend_init_by_type(SHEAF_BACKEND_DEVICE_TYPE_CPU, NULL, &cpu));
    EXPECT(tf_load(&m, cpu, cpu));
    sheaf_gallocr_t galloc = sheaf_gallocr_new(sheaf_backend_get_default_buffer_type(cpu));
    for (int i = 0; i < TF_STEPS; i++) {
        struct tf_graph g;
        EXPECT(tf_graph(&g, &m, i ? 1 : TF_TOKENS));
        EXPECT(!sheaf_gallocr_alloc_graph(galloc, g.graph));
        EXPECT(tf_set_inputs(&g, i ? TF_TOKENS + i - 1 : 0, (unsigned)i + 1000));
        EXPECT(!sheaf_backend_graph_compute(cpu, g.graph));
        EXPECT(tf_results(&g, &want[i]));
        sheaf_free(g.ctx);
    }
    sheaf_gallocr_free(galloc);
    tf_unload(&m);
    sheaf_backend_free(cpu);
    return true;
}

/* ---- buffers counted ---- */

/* Every buffer is made by this function, the members' too: it stands before the library's. */
static size_t tf_n_buffers;
enum sheaf_status sheaf_backend_buft_alloc_buffer(sheaf_backend_buffer_type_t buft, size_t size,
                                                  sheaf_backend_buffer_t *out) {
    enum sheaf_status (*real)(sheaf_backend_buffer_type_t, size_t, sheaf_backend_buffer_t *);
    void *found = dlsym(RTLD_NEXT, "sheaf_backend_buft_alloc_buffer");
    memcpy(&real, &found, sizeof real);
    __atomic_fetch_add(&tf_n_buffers, 1, __ATOMIC_RELAXED);
    return real(buft, size, out);
}

/* Which nodes go where. */
struct tf_forced {
    enum sheaf_op op; /* to the last backend; SHEAF_OP_COUNT: none */
    unsigned seed;    /* not 0: every node to a backend by lot */
    int least_splits;
    sheaf_backend_sched_eval_fn callback;
};

static inline bool tf_assign(const struct tf_forced *f, sheaf_backend_sched_t sched,
                             const struct tf_graph *g) {
    const int n = sheaf_backend_sched_get_n_backends(sched);
    for (int i = 0; i < sheaf_graph_n_nodes(g->graph); i++) {
        struct sheaf_tensor *t = sheaf_graph_node(g->graph, i);
        int b = t->op == f->op ? n - 1 : -1;
        if (f->seed) b = (int)(fabs((double)scenario_value((size_t)i, f->seed)) * 1000) % n;
        if (b < 0) continue;
        EXPECT(!sheaf_backend_sched_set_tensor_backend(sched, t,
                                                       sheaf_backend_sched_get_backend(sched, b)));
    }
    return true;
}

/* All steps on the scheduler, every graph built anew, one computed twice; model loaded fresh. */
static inline bool tf_run(sheaf_backend_sched_t sched, sheaf_backend_t first,
                          sheaf_backend_t second, const struct tf_forced *f,
                          const struct tf_result *want) {
    struct tf_model m;
    EXPECT(tf_load(&m, first, second));
    sheaf_backend_sched_set_eval_callback(sched, f->callback, NULL);
    for (int i = 0; i < TF_STEPS; i++) {
        struct tf_graph g;
        struct tf_result r;
        EXPECT(tf_graph(&g, &m, i ? 1 : TF_TOKENS));
        EXPECT(!sheaf_backend_sched_reset(sched));
        EXPECT(tf_assign(f, sched, &g));
        for (int again = 0; again < 2; again++) {
            EXPECT(!sheaf_backend_sched_alloc_graph(sched, g.graph));
            EXPECT(sheaf_backend_sched_get_n_splits(sched) >= f->least_splits);
            for (int loop = 0; loop < 2; loop++) {
                EXPECT(tf_set_inputs(&g, i ? TF_TOKENS + i - 1 : 0, (unsigned)i + 1000));
                EXPECT(!sheaf_backend_sched_graph_compute(sched, g.graph));
                EXPECT(tf_results(&g, &r));
                EXPECT(tf_equal(&r, &want[i]));
            }
        }
        for (int k = 0; k < sheaf_graph_n_nodes(g.graph); k++) /* put back as they were */
            EXPECT(!(sheaf_graph_node(g.graph, k)->flags >> 2));
        sheaf_free(g.ctx);
    }
    tf_unload(&m);
    return true;
}

static inline bool tf_watch(struct sheaf_tensor *t, bool ask, void *user) {
    (void)user;
    if (ask) return t->op == SHEAF_OP_MUL_MAT;
    float v[4];
    return sheaf_backend_tensor_get(t, v, 0, sizeof v) == SHEAF_STATUS_SUCCESS;
}

/* Reserve from the largest graph, then compute smaller and equal ones, built anew each: no member
 * gets a buffer from then on, and the graphs of the second round need no plan. Collective. */
static inline bool tf_reserved(const sheaf_backend_dev_t *members, size_t n_members,
                               enum sheaf_op forced) {
    static struct tf_graph graphs[2 * TF_TOKENS];
    const struct tf_forced f = {forced, 0, 1, NULL};
    int n = (int)n_members;
    sheaf_backend_dev_t meta;
    sheaf_backend_t backend[2];
    struct tf_model m;
    struct tf_graph largest;
    struct tf_result r;
    EXPECT(!sheaf_backend_meta_device(members, n_members, tf_state, &n, NULL, &meta));
    EXPECT(!sheaf_backend_dev_init(meta, NULL, &backend[0]));
    EXPECT(!sheaf_backend_init_by_type(SHEAF_BACKEND_DEVICE_TYPE_CPU, NULL, &backend[1]));
    sheaf_backend_sched_t s = sheaf_backend_sched_new(backend, NULL, 2, TF_NODES, false, false);
    EXPECT(s && tf_load(&m, backend[0], backend[0]));
    EXPECT(tf_graph(&largest, &m, TF_TOKENS) && tf_assign(&f, s, &largest));
    EXPECT(!sheaf_backend_sched_reserve(s, largest.graph));
    EXPECT(!largest.logits->buffer && !largest.x->buffer && !largest.x->data);
    struct sheaf_backend_meta_stats before = {.size = sizeof before}, after = before;
    sheaf_backend_meta_get_stats(backend[0], &before);
    EXPECT(before.n_computes == 0 && before.n_plans > 0);
    const size_t n_buffers = tf_n_buffers;
    EXPECT(n_buffers > 0);
    for (int round = 0; round < 2; round++) {
        for (int i = 0; i < 2 * TF_TOKENS; i++) {
            struct tf_graph *g = &graphs[i];
            if (round) sheaf_free(g->ctx);
            EXPECT(tf_graph(g, &m, 1 + (i * 2) % TF_TOKENS));
            EXPECT(!sheaf_backend_sched_reset(s) && tf_assign(&f, s, g));
            EXPECT(!sheaf_backend_sched_alloc_graph(s, g->graph));
            EXPECT(tf_set_inputs(g, i, 7));
            EXPECT(!sheaf_backend_sched_graph_compute(s, g->graph));
            EXPECT(tf_results(g, &r));
            EXPECT(tf_n_buffers == n_buffers);
        }
        const uint64_t n_plans = after.n_plans;
        sheaf_backend_meta_get_stats(backend[0], &after);
        EXPECT(after.compute_bytes == before.compute_bytes);
        EXPECT(round == 0 || after.n_plans == n_plans);
    }
    for (int i = 0; i < 2 * TF_TOKENS; i++) sheaf_free(graphs[i].ctx);
    sheaf_free(largest.ctx);
    sheaf_backend_sched_free(s);
    tf_unload(&m);
    sheaf_backend_free(backend[0]);
    sheaf_backend_free(backend[1]);
    sheaf_backend_meta_device_free(meta);
    return true;
}

/* [meta over the members, CPU]: everything on the meta device, then ops forced to the CPU in the
 * middle, then nodes by lot. Collective. */
static inline bool run_sched_scenario(const sheaf_backend_dev_t *members, size_t n_members,
                                      int n_lots) {
    int n = (int)n_members;
    sheaf_backend_dev_t meta;
    sheaf_backend_t backend[2];
    static struct tf_result want[TF_STEPS];
    EXPECT(tf_reference(want));
    EXPECT(!sheaf_backend_meta_device(members, n_members, tf_state, &n, NULL, &meta));
    EXPECT(!sheaf_backend_dev_init(meta, NULL, &backend[0]));
    EXPECT(!sheaf_backend_init_by_type(SHEAF_BACKEND_DEVICE_TYPE_CPU, NULL, &backend[1]));
    sheaf_backend_sched_t sched = sheaf_backend_sched_new(backend, NULL, 2, 16, false, false);
    EXPECT(sched);
    const struct tf_forced cases[] = {
        {SHEAF_OP_COUNT, 0, 1, NULL},          {SHEAF_OP_GLU, 0, 5, NULL},
        {SHEAF_OP_RMS_NORM, 0, 8, NULL},       {SHEAF_OP_MUL, 0, 8, NULL},
        {SHEAF_OP_FLASH_ATTN_EXT, 0, 5, NULL}, {SHEAF_OP_SET_ROWS, 0, 9, NULL},
        {SHEAF_OP_ROPE, 0, 5, NULL},           {SHEAF_OP_ADD, 0, 8, NULL},
        {SHEAF_OP_ARGMAX, 0, 2, NULL},         {SHEAF_OP_MUL_MAT, 0, 8, NULL},
        {SHEAF_OP_COUNT, 0, 1, tf_watch},      {SHEAF_OP_GLU, 0, 5, tf_watch},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        if (!tf_run(sched, backend[0], backend[0], &cases[i], want)) {
            fprintf(stderr, "forced op %s\n",
                    cases[i].op == SHEAF_OP_COUNT ? "none" : sheaf_op_name(cases[i].op));
            return false;
        }
    }
    for (unsigned seed = 1; seed <= (unsigned)n_lots; seed++) {
        const struct tf_forced lot = {SHEAF_OP_COUNT, seed, 3, seed % 4 ? NULL : tf_watch};
        /* weights: on the meta device, on the CPU, one layer on each */
        if (!tf_run(sched, backend[seed % 3 == 1], backend[seed % 3 >= 1], &lot, want)) {
            fprintf(stderr, "lot %u\n", seed);
            return false;
        }
    }
    sheaf_backend_sched_free(sched);
    sheaf_backend_free(backend[0]);
    sheaf_backend_free(backend[1]);
    sheaf_backend_meta_device_free(meta);
    EXPECT(tf_reserved(members, n_members, SHEAF_OP_COUNT));
    EXPECT(tf_reserved(members, n_members, SHEAF_OP_GLU));
    EXPECT(tf_reserved(members, n_members, SHEAF_OP_MUL));
    EXPECT(tf_reserved(members, n_members, SHEAF_OP_SET_ROWS));
    return true;
}

#endif
