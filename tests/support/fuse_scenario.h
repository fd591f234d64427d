/* Layers as a transformer has them around its sums: a product cut over the members, its all-reduce,
 * the residual, the norm. Built on a meta device over any members with or without SHEAF_FUSE, in
 * one process by test-fuse.c, under mpirun by helper-fuse.c, for times by bench/fuse.c. */
#ifndef SHEAF_TESTS_FUSE_SCENARIO_H
#define SHEAF_TESTS_FUSE_SCENARIO_H

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "sheaf/sheaf.h"

enum fuse_shape {
    FUSE_PLAIN, /* x += sum; norm of x */
    FUSE_POST,  /* x += norm of the sum; norm of x */
    FUSE_READ,  /* as PLAIN, the sum and the plain norm are read later, too */
    FUSE_LIGHT, /* as PLAIN, with addends that cost little: a leaf of every layer times the norm */
};
enum { FUSE_CUT = 24, FUSE_MAX_LAYERS = 8 }; /* columns of the cut product */

struct fuse_case {
    int64_t width, rows;
    int layers;
    enum fuse_shape shape;
    bool keep;  /* every residual is an output */
    bool check; /* the backend's check mode */
};

struct fuse_rig {
    sheaf_backend_dev_t meta;
    sheaf_backend_t backend;
    struct sheaf_context *ctx, *weights;
    sheaf_backend_buffer_t buffer;
    sheaf_gallocr_t galloc;
    struct sheaf_cgraph *graph;
    struct sheaf_tensor *x, *residual[FUSE_MAX_LAYERS], *last;
    int n_members;
};

static inline enum sheaf_status fuse_state(const struct sheaf_tensor *t, void *user,
                                           struct sheaf_split_state **out) {
    const int n = ((const struct fuse_rig *)user)->n_members;
    const bool up = !strcmp(t->name, "up");
    if (up || !strcmp(t->name, "down")) {
        int64_t *counts = malloc((size_t)n * sizeof *counts);
        if (!counts) return SHEAF_STATUS_ALLOC_FAILED;
        for (int m = 0; m < n; m++) /* uneven */
            counts[m] = FUSE_CUT * (m + 1) * (m + 1) / n / n - FUSE_CUT * m * m / n / n;
        *out = sheaf_split_state_cut(up ? SHEAF_SPLIT_AXIS_1 : SHEAF_SPLIT_AXIS_0, n, counts, 1);
        free(counts);
    } else {
        *out = strcmp(t->name, "addend") ? sheaf_split_state_mirrored(n)
                                         : sheaf_split_state_partial(n);
    }
    return *out ? SHEAF_STATUS_SUCCESS : SHEAF_STATUS_ALLOC_FAILED;
}

static inline bool fuse_fill(struct sheaf_tensor *t, uint32_t seed) {
    const size_t n = (size_t)sheaf_nelements(t);
    float *v = malloc(n * sizeof *v);
    for (size_t i = 0; v && i < n; i++) {
        seed = seed * 1664525u + 1013904223u;
        v[i] = (float)(seed >> 8) / 16777216.0f - 0.5f;
    }
    const bool ok = v && !sheaf_backend_tensor_set(t, v, 0, n * sizeof *v);
    free(v);
    return ok;
}

static inline struct sheaf_tensor *fuse_norm(struct fuse_rig *r, struct sheaf_tensor *x,
                                             struct sheaf_tensor *w) {
    return sheaf_mul(r->ctx, sheaf_rms_norm(r->ctx, x, 1e-5f), w);
}

static inline bool fuse_up(struct fuse_rig *r, const sheaf_backend_dev_t *devices, size_t n,
                           const char *fuse, const struct fuse_case *c) {
    *r = (struct fuse_rig){.n_members = (int)n};
    setenv("SHEAF_FUSE", fuse, 1);
    if (sheaf_backend_meta_device(devices, n, fuse_state, r, &r->meta) ||
        sheaf_backend_dev_init(r->meta, NULL, &r->backend))
        return false;
    sheaf_backend_meta_set_check(r->backend, c->check);
    r->weights = sheaf_init(
        (struct sheaf_init_params){.mem_size = 16 * sheaf_tensor_overhead(), .no_alloc = true});
    r->ctx = sheaf_init((struct sheaf_init_params){.mem_size = 128 * sheaf_tensor_overhead() +
                                                               sheaf_graph_overhead_custom(128),
                                                   .no_alloc = true});
    struct sheaf_tensor *up = sheaf_new_tensor_2d(r->weights, SHEAF_TYPE_F32, c->width, FUSE_CUT),
                        *down = sheaf_new_tensor_2d(r->weights, SHEAF_TYPE_F32, FUSE_CUT, c->width),
                        *w = sheaf_new_tensor_1d(r->weights, SHEAF_TYPE_F32, c->width),
                        *addend[FUSE_MAX_LAYERS] = {NULL};
    sheaf_set_name(up, "up");
    sheaf_set_name(down, "down");
    for (int l = 0; l < c->layers && c->shape == FUSE_LIGHT; l++) {
        addend[l] = sheaf_new_tensor_2d(r->weights, SHEAF_TYPE_F32, c->width, c->rows);
        sheaf_set_name(addend[l], "addend");
    }
    if (sheaf_backend_alloc_ctx_tensors(r->weights, r->backend, &r->buffer) || !fuse_fill(up, 1) ||
        !fuse_fill(down, 2) || !fuse_fill(w, 3))
        return false;
    for (int l = 0; l < c->layers && c->shape == FUSE_LIGHT; l++) {
        if (!fuse_fill(addend[l], 5)) return false;
    }
    r->x = sheaf_new_tensor_2d(r->ctx, SHEAF_TYPE_F32, c->width, c->rows);
    sheaf_set_input(r->x);
    r->graph = sheaf_new_graph_custom(r->ctx, 128);
    struct sheaf_tensor *x = r->x, *normed = fuse_norm(r, x, w), *extra = NULL;
    for (int l = 0; l < c->layers; l++) {
        struct sheaf_tensor *y =
            c->shape == FUSE_LIGHT ? sheaf_mul(r->ctx, addend[l], normed)
                                   : sheaf_mul_mat(r->ctx, down, sheaf_mul_mat(r->ctx, up, normed));
        x = sheaf_add(r->ctx, x, c->shape == FUSE_POST ? fuse_norm(r, y, w) : y);
        struct sheaf_tensor *norm = sheaf_rms_norm(r->ctx, x, 1e-5f);
        normed = sheaf_mul(r->ctx, norm, w);
        if (c->shape == FUSE_READ) {
            extra = extra ? sheaf_add(r->ctx, extra, y) : sheaf_scale(r->ctx, y, 0.5f);
            extra = sheaf_sub(r->ctx, extra, norm);
        }
        r->residual[l] = x;
        if (c->keep) sheaf_set_output(x);
        if (sheaf_build_forward_expand(r->graph, normed)) return false;
    }
    r->last = extra ? sheaf_add(r->ctx, normed, extra) : normed;
    sheaf_set_output(r->last);
    r->galloc = sheaf_gallocr_new(sheaf_backend_get_default_buffer_type(r->backend));
    return !sheaf_build_forward_expand(r->graph, r->last) &&
           !sheaf_gallocr_alloc_graph(r->galloc, r->graph) && fuse_fill(r->x, 4);
}

static inline void fuse_down(struct fuse_rig *r) {
    sheaf_gallocr_free(r->galloc);
    sheaf_backend_buffer_free(r->buffer);
    sheaf_free(r->weights);
    sheaf_free(r->ctx);
    sheaf_backend_free(r->backend);
    sheaf_backend_meta_device_free(r->meta);
}

/* out [width * rows * (layers + 1)]: what the graph gives; the rest of it 0. */
static inline bool fuse_run(const sheaf_backend_dev_t *devices, size_t n, const char *fuse,
                            const struct fuse_case *c, float *out, uint64_t *n_fused) {
    struct fuse_rig r;
    const size_t bytes = (size_t)(c->width * c->rows) * sizeof *out;
    bool ok = fuse_up(&r, devices, n, fuse, c);
    /* twice: the second run finds what the first has left in memory */
    ok = ok && !sheaf_backend_graph_compute(r.backend, r.graph) && fuse_fill(r.x, 4) &&
         !sheaf_backend_graph_compute(r.backend, r.graph) &&
         !sheaf_backend_tensor_get(r.last, out, 0, bytes);
    memset(out + c->width * c->rows, 0, bytes * (size_t)c->layers);
    for (int l = 0; l < c->layers && ok && c->keep; l++)
        ok = !sheaf_backend_tensor_get(r.residual[l], out + (l + 1) * c->width * c->rows, 0, bytes);
    struct sheaf_backend_meta_stats stats = {.size = sizeof stats};
    if (ok) sheaf_backend_meta_get_stats(r.backend, &stats);
    *n_fused = stats.n_fused;
    if (!ok) fprintf(stderr, "rank %d: %s\n", sheaf_world_rank(), sheaf_last_error());
    fuse_down(&r);
    return ok;
}

/* The same bits fused and not, and fused where it is claimed. Widths that end within a chunk of the
 * group, one row and many. threads: of each device. alone: no other rank takes part, whose
 * meetings take the time of cases that differ on a device only. */
static inline bool fuse_compare(const sheaf_backend_dev_t *devices, size_t n, int threads,
                                bool alone) {
    static const struct { int64_t width, rows; } sizes[] = {{5000, 1}, {33, 7}, {1500, 150}};
    static const struct {
        enum fuse_shape shape;
        bool keep;
    } shapes[] = {{FUSE_PLAIN, false}, {FUSE_POST, false}, {FUSE_PLAIN, true}, {FUSE_READ, false}};
    static const struct {
        const char *fuse;
        bool check;
    } modes[] = {{"2", false}, {"1", false}, {"2", true}};
    const size_t n_shapes = alone ? sizeof shapes / sizeof *shapes : 2,
                 n_modes = alone ? sizeof modes / sizeof *modes : 1;
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes * n_shapes; i++) {
        const size_t size = i / n_shapes, shape = i % n_shapes;
        struct fuse_case c = {.width = sizes[size].width,
                              .rows = sizes[size].rows,
                              .layers = 2,
                              .shape = shapes[shape].shape,
                              .keep = shapes[shape].keep};
        const size_t floats = (size_t)(c.width * c.rows * (c.layers + 1));
        float *want = calloc(2 * floats, sizeof *want), *got = want + floats;
        uint64_t none = 0, some = 0;
        bool ok = want && fuse_run(devices, n, "0", &c, want, &none);
        for (size_t m = 0; m < n_modes && ok; m++) {
            c.check = modes[m].check;
            ok = fuse_run(devices, n, modes[m].fuse, &c, got, &some);
            /* two computes; one member has nothing to reduce, and a team wants rows enough */
            const bool few = threads > 1 && c.rows < 2 * threads && c.width * c.rows > 4096;
            const uint64_t expect = m == 0 && n > 1 && !few ? 2 * (uint64_t)c.layers : 0;
            const bool same = !memcmp(want, got, floats * sizeof *want);
            if (ok && same && none == 0 && some == expect) continue;
            if (ok)
                fprintf(stderr,
                        "%zu members, %lld x %lld, shape %zu, mode %zu: %s, %llu of %llu fused\n",
                        n, (long long)c.width, (long long)c.rows, shape, m,
                        same ? "same bits" : "other bits", (unsigned long long)some,
                        (unsigned long long)expect);
            ok = false;
        }
        free(want);
        if (!ok) return false;
    }
    return true;
}

#endif
