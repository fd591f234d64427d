/* Runs plans and single ops on slices in one process, for the tests of src/split. Collectives are
 * plain loops over elements; nothing here shares code with the planner's geometry, except through
 * the public split states. Everything is freed by split_free_all(). */
#ifndef SHEAF_TESTS_SPLIT_EXEC_H
#define SHEAF_TESTS_SPLIT_EXEC_H

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/arith.h"
#include "sheaf/sheaf.h"
#include "split/plan.h"
#include "tensor/access.h"
#include "tensor/graph.h"
#include "tensor/op_info.h"

/* ---- memory of a run ---- */

struct split_block {
    struct split_block *next;
    _Alignas(64) char bytes[];
};
static struct split_block *split_blocks;

static inline void *split_alloc(size_t size) {
    struct split_block *b = aligned_alloc(64, (sizeof *b + size + 127) / 64 * 64);
    if (!b) abort();
    b->next = split_blocks;
    split_blocks = b;
    return memset(b->bytes, 0, size);
}
static inline void split_free_all(void) {
    for (struct split_block *b = split_blocks, *next; b; b = next) {
        next = b->next;
        free(b);
    }
    split_blocks = NULL;
}

/* ---- the CPU, one thread, reference kernels ---- */

static inline sheaf_backend_t split_backend(void) {
    static sheaf_backend_t backend;
    if (backend) return backend;
    sheaf_backend_dev_t dev = sheaf_backend_dev_count() ? sheaf_backend_dev_get(0) : NULL;
    if (!dev || sheaf_backend_dev_init(dev, "threads=1", &backend) != SHEAF_STATUS_SUCCESS) {
        fprintf(stderr, "no CPU backend: %s\n", sheaf_last_error());
        abort();
    }
    sheaf_backend_cpu_set_reference(backend, true);
    return backend;
}

static inline enum sheaf_status split_run_node(struct sheaf_tensor *t) {
    if (sheaf_op_is_view(t->op) || t->op == SHEAF_OP_NONE || sheaf_is_empty(t))
        return SHEAF_STATUS_SUCCESS;
    struct sheaf_cgraph g = {.size = 1, .n_nodes = 1, .nodes = &t};
    return sheaf_backend_graph_compute(split_backend(), &g);
}

/* ---- elements ---- */

static inline uint64_t split_random(uint64_t *seed) {
    *seed += 0x9E3779B97F4A7C15u;
    uint64_t z = *seed;
    z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9u;
    z = (z ^ z >> 27) * 0x94D049BB133111EBu;
    return z ^ z >> 31;
}
/* Never near zero, both signs. */
static inline float split_random_float(uint64_t *seed) {
    const uint64_t r = split_random(seed);
    const float f = 0.25f + (float)(r >> 40) / (float)(1 << 24);
    return r & 1 ? f : -f;
}

static inline void split_dense(struct sheaf_tensor *t) {
    t->nb[0] = sheaf_type_size(t->type);
    t->nb[1] = sheaf_row_size(t->type, t->ne[0]);
    for (int i = 2; i < SHEAF_MAX_DIMS; i++) t->nb[i] = t->nb[i - 1] * (size_t)t->ne[i - 1];
}
static inline struct sheaf_tensor *split_tensor(enum sheaf_type type, const int64_t *ne) {
    struct sheaf_tensor *t = split_alloc(sizeof *t);
    t->type = type;
    memcpy(t->ne, ne, sizeof t->ne);
    split_dense(t);
    t->data = split_alloc(sheaf_nbytes(t) + 64);
    return t;
}

/* Walks the indices of ne, dimension 0 in blocks. */
struct split_index {
    int64_t i[SHEAF_MAX_DIMS];
};
static inline bool split_next(struct split_index *x, const int64_t *ne) {
    for (int d = 0; d < SHEAF_MAX_DIMS; d++) {
        if (++x->i[d] < ne[d]) return true;
        x->i[d] = 0;
    }
    return false;
}
static inline char *split_at(const struct sheaf_tensor *t, const struct split_index *x) {
    size_t at = 0;
    for (int d = 0; d < SHEAF_MAX_DIMS; d++) at += (size_t)x->i[d] * t->nb[d];
    return (char *)t->data + at;
}
static inline float split_get(const struct sheaf_tensor *t, const struct split_index *x) {
    const char *p = split_at(t, x);
    switch (t->type) {
    case SHEAF_TYPE_F32: {
        float f;
        memcpy(&f, p, sizeof f);
        return f;
    }
    case SHEAF_TYPE_F16: {
        uint16_t h;
        memcpy(&h, p, sizeof h);
        return sheaf_fp16_to_fp32(h);
    }
    case SHEAF_TYPE_I32: {
        int32_t i;
        memcpy(&i, p, sizeof i);
        return (float)i;
    }
    case SHEAF_TYPE_I64: {
        int64_t i;
        memcpy(&i, p, sizeof i);
        return (float)i;
    }
    default:
        fprintf(stderr, "split_get: type %s\n", sheaf_type_name(t->type));
        abort();
    }
}

static inline void split_blocks_ne(const struct sheaf_tensor *t, int64_t ne[SHEAF_MAX_DIMS]) {
    memcpy(ne, t->ne, sizeof t->ne);
    ne[0] /= sheaf_blck_size(t->type);
}

/* Copies between a whole tensor and a member's slice of it. */
static inline void split_copy_slice(struct sheaf_tensor *whole, struct sheaf_tensor *slice,
                                    const struct sheaf_split_state *state, int member,
                                    bool to_slice) {
    int64_t ne[SHEAF_MAX_DIMS];
    split_blocks_ne(slice, ne);
    if (sheaf_is_empty(slice)) return;
    const bool cut = (unsigned)state->axis < SHEAF_MAX_DIMS;
    const int64_t n = sheaf_split_state_intervals(state, member, NULL, 0);
    int64_t *pairs = malloc((size_t)(2 * n + 2) * sizeof *pairs);
    sheaf_split_state_intervals(state, member, pairs, n);
    const int64_t block = cut && state->axis == 0 ? sheaf_blck_size(whole->type) : 1;
    struct split_index x = {{0}};
    do {
        struct split_index g = x;
        if (cut) {
            int64_t i = x.i[state->axis] * block, k = 0;
            while (i >= pairs[2 * k + 1]) i -= pairs[2 * k++ + 1];
            g.i[state->axis] = (pairs[2 * k] + i) / block;
        }
        if (to_slice) {
            memcpy(split_at(slice, &x), split_at(whole, &g), sheaf_type_size(whole->type));
        } else {
            memcpy(split_at(whole, &g), split_at(slice, &x), sheaf_type_size(whole->type));
        }
    } while (split_next(&x, ne));
    free(pairs);
}

/* The slice of a member, dense, by any state but PARTIAL. */
static inline struct sheaf_tensor *split_slice(struct sheaf_tensor *whole,
                                               const struct sheaf_split_state *state, int member) {
    int64_t ne[SHEAF_MAX_DIMS];
    sheaf_split_state_local_ne(state, whole->ne, member, ne);
    struct sheaf_tensor *t = split_tensor(whole->type, ne);
    memcpy(t->name, whole->name, sizeof t->name);
    split_copy_slice(whole, t, state, member, true);
    return t;
}

/* Addends of a whole f32 tensor: uneven shares that sum to it, with offsets that cancel. */
static inline void split_addends(const struct sheaf_tensor *whole, int n, uint64_t *seed,
                                 struct sheaf_tensor **out) {
    for (int j = 0; j < n; j++) out[j] = split_tensor(whole->type, whole->ne);
    if (sheaf_is_empty(whole)) return;
    struct split_index x = {{0}};
    do {
        float left;
        memcpy(&left, split_at(whole, &x), sizeof left);
        for (int j = 0; j < n; j++) {
            const float part = j == n - 1 ? left : left * 0.3f + split_random_float(seed);
            memcpy(split_at(out[j], &x), &part, sizeof part);
            left -= part;
        }
    } while (split_next(&x, whole->ne));
}

/* Largest difference between two tensors of one shape, relative to the largest finite value of b;
 * infinities must be the same. */
static inline double split_distance(const struct sheaf_tensor *a, const struct sheaf_tensor *b) {
    if (sheaf_is_empty(b)) return 0;
    double worst = 0, scale = 1e-30;
    struct split_index x = {{0}};
    do {
        const double u = (double)split_get(a, &x), v = (double)split_get(b, &x);
        if (isnan(u) || isnan(v)) return 1e30;
        if (isinf(u) || isinf(v)) {
            if (isinf(u) != isinf(v) || (u > 0) != (v > 0)) return 1e30;
            continue;
        }
        worst = fmax(worst, fabs(u - v));
        scale = fmax(scale, fabs(v));
    } while (split_next(&x, b->ne));
    return worst / scale;
}
static inline double split_nmse(const struct sheaf_tensor *a, const struct sheaf_tensor *b) {
    if (sheaf_is_empty(b)) return 0;
    double error = 0, power = 1e-30;
    struct split_index x = {{0}};
    do {
        const double u = (double)split_get(a, &x), v = (double)split_get(b, &x);
        if (isnan(u) || isnan(v)) return 1e30;
        error += (u - v) * (u - v);
        power += v * v;
    } while (split_next(&x, b->ne));
    return error / power;
}
/* The largest magnitude; 1e30 if there is one of 1e12 or more, or no number. 0 for indices. */
static inline double split_largest(const struct sheaf_tensor *t) {
    double most = 0;
    if (sheaf_is_empty(t) || t->type == SHEAF_TYPE_I32) return 0;
    struct split_index x = {{0}};
    do {
        const double v = fabs((double)split_get(t, &x));
        if (!(v < 1e12)) return 1e30;
        most = fmax(most, v);
    } while (split_next(&x, t->ne));
    return most;
}

/* ---- plans ---- */

struct split_run {
    const struct sheaf_cgraph *graph;
    const struct sheaf__split_plan *plan;
    struct sheaf_tensor **slice; /* [value][member] */
};

static inline struct sheaf_tensor **split_run_at(struct split_run *r, int value) {
    return &r->slice[(size_t)value * (size_t)r->plan->n_members];
}

static inline struct sheaf_tensor *split_run_sum(struct split_run *r, int value) {
    struct sheaf_tensor **in = split_run_at(r, value);
    struct sheaf_tensor *sum = split_tensor(SHEAF_TYPE_F32, in[0]->ne);
    if (sheaf_is_empty(sum)) return sum;
    for (int j = 0; j < r->plan->n_members; j++) {
        struct split_index x = {{0}};
        do {
            float a, b;
            memcpy(&a, split_at(sum, &x), sizeof a);
            memcpy(&b, split_at(in[j], &x), sizeof b);
            a += b;
            memcpy(split_at(sum, &x), &a, sizeof a);
        } while (split_next(&x, sum->ne));
    }
    return sum;
}

/* The whole of a value, joined; the first owner of an index gives it. */
static inline struct sheaf_tensor *split_run_join(struct split_run *r, int value) {
    const struct sheaf__split_value *v = &r->plan->values[value];
    if (v->state->axis == SHEAF_SPLIT_AXIS_PARTIAL) return split_run_sum(r, value);
    if (v->state->axis == SHEAF_SPLIT_AXIS_MIRRORED) return split_run_at(r, value)[0];
    struct sheaf_tensor *whole = split_tensor(v->tensor->type, v->tensor->ne);
    for (int j = r->plan->n_members - 1; j >= 0; j--)
        split_copy_slice(whole, split_run_at(r, value)[j], v->state, j, false);
    return whole;
}

/* Leaves: a leaf's first value is given, the others are converted. `addends_seed` seeds PARTIAL
 * leaves. */
static inline void split_run_leaves(struct split_run *r, uint64_t addends_seed) {
    const struct sheaf__split_plan *p = r->plan;
    for (int v = 0; v < p->n_values; v++) {
        bool leaf = p->values[v].tensor->op == SHEAF_OP_NONE;
        for (int u = 0; u < v; u++) {
            if (p->values[u].tensor == p->values[v].tensor) leaf = false; /* a conversion of it */
        }
        if (!leaf) continue;
        struct sheaf_tensor **out = split_run_at(r, v);
        if (p->values[v].state->axis == SHEAF_SPLIT_AXIS_PARTIAL) {
            split_addends(p->values[v].tensor, p->n_members, &addends_seed, out);
            continue;
        }
        for (int j = 0; j < p->n_members; j++)
            out[j] = split_slice(p->values[v].tensor, p->values[v].state, j);
    }
}

static inline enum sheaf_status split_run_step(struct split_run *r,
                                               const struct sheaf__split_step *s) {
    const struct sheaf__split_plan *p = r->plan;
    const int d = p->n_members;
    struct sheaf_tensor **out = split_run_at(r, s->out);
    const struct sheaf_split_state *state = p->values[s->out].state;
    if (s->kind == SHEAF_SPLIT_STEP_NODE) {
        const struct sheaf_tensor *node = r->graph->nodes[s->node];
        for (int j = 0; j < d; j++) {
            struct sheaf_tensor *t = split_alloc(sizeof *t);
            const struct sheaf_tensor *src[SHEAF_MAX_SRC] = {NULL};
            t->type = node->type;
            memcpy(t->name, node->name, sizeof t->name);
            for (int i = 0; i < SHEAF_MAX_SRC; i++) {
                if (s->in[i] >= 0) src[i] = t->src[i] = split_run_at(r, s->in[i])[j];
            }
            const enum sheaf_status status = sheaf__split_local_node(p, s, r->graph, j, src, t);
            if (status != SHEAF_STATUS_SUCCESS) return status;
            const int target = sheaf_op_is_view(node->op) ? 0 : sheaf__op_written(node) - 1;
            out[j] = t;
            if (target >= 0) {
                struct sheaf_tensor *of = t->src[target];
                t->view_src = of->view_src ? of->view_src : of;
                t->data = (char *)t->view_src->data + t->view_offs;
            } else {
                t->data = split_alloc(sheaf_nbytes(t) + 64);
                if (!sheaf_is_contiguous(t))
                    return sheaf_set_error(SHEAF_STATUS_FAILED, "'%s' is not dense", t->name);
            }
            if (s->add_once && j != 0) {
                memmove(t->data, t->src[1 - s->once]->data, sheaf_nbytes(t));
                continue;
            }
            if (sheaf__split_contributes_zero(p, s, r->graph, j)) {
                memset(t->data, 0, sheaf_nbytes(t));
                continue;
            }
            const enum sheaf_status ran = split_run_node(t);
            if (ran != SHEAF_STATUS_SUCCESS) return ran;
        }
        return SHEAF_STATUS_SUCCESS;
    }
    struct sheaf_tensor *whole = NULL;
    if (sheaf__step_is(s, SHEAF_COMM_ALL_REDUCE) || sheaf__step_is(s, SHEAF_COMM_REDUCE_SCATTER))
        whole = split_run_sum(r, s->in[0]);
    if (sheaf__step_is(s, SHEAF_COMM_ALL_GATHER)) whole = split_run_join(r, s->in[0]);
    for (int j = 0; j < d; j++) {
        struct sheaf_tensor *from = whole ? whole : split_run_at(r, s->in[0])[j];
        struct sheaf_tensor *t;
        if (s->kind == SHEAF_SPLIT_STEP_KEEP_ONE) {
            t = split_tensor(from->type, from->ne);
            if (j == 0) split_copy_slice(from, t, state, j, true);
        } else {
            t = split_slice(from, state, j);
        }
        if (!out[j]) {
            out[j] = t;
            continue;
        }
        /* a write-back: into the memory that is there */
        int64_t ne[SHEAF_MAX_DIMS];
        split_blocks_ne(t, ne);
        struct split_index x = {{0}};
        if (sheaf_is_empty(t)) continue;
        do {
            memcpy(split_at(out[j], &x), split_at(t, &x), sheaf_type_size(t->type));
        } while (split_next(&x, ne));
    }
    return SHEAF_STATUS_SUCCESS;
}

static inline enum sheaf_status split_run_all(struct split_run *r) {
    for (int s = 0; s < r->plan->n_steps; s++) {
        const enum sheaf_status status = split_run_step(r, &r->plan->steps[s]);
        if (status != SHEAF_STATUS_SUCCESS) return status;
    }
    return SHEAF_STATUS_SUCCESS;
}

/* Prints steps and values, for failing tests. */
static inline void split_print_plan(const struct sheaf__split_plan *p,
                                    const struct sheaf_cgraph *graph) {
    static const char *const names[] = {
        [SHEAF_SPLIT_STEP_NODE] = "node",
        [SHEAF_SPLIT_STEP_SLICE] = "slice",
        [SHEAF_SPLIT_STEP_KEEP_ONE] = "keep one",
        [SHEAF_SPLIT_STEP_COLLECTIVE] = "collective",
    };
    static const char *const collectives[] = {
        [SHEAF_COMM_ALL_REDUCE] = "all-reduce",
        [SHEAF_COMM_ALL_GATHER] = "all-gather",
        [SHEAF_COMM_REDUCE_SCATTER] = "reduce-scatter",
    };
    for (int s = 0; s < p->n_steps; s++) {
        const struct sheaf__split_step *st = &p->steps[s];
        char text[160];
        fprintf(stderr, "%3d %-14s %-14s", s,
                st->kind == SHEAF_SPLIT_STEP_COLLECTIVE ? collectives[st->collective]
                                                        : names[st->kind],
                st->kind == SHEAF_SPLIT_STEP_NODE ? sheaf_op_desc(graph->nodes[st->node]) : "");
        for (int i = 0; i < SHEAF_MAX_SRC && st->in[i] >= 0; i++) {
            fprintf(stderr, " %d:%s", st->in[i],
                    sheaf_split_state_print(p->values[st->in[i]].state, text, sizeof text));
        }
        fprintf(stderr, " -> %d:%s [%lld %lld %lld %lld]%s\n", st->out,
                sheaf_split_state_print(p->values[st->out].state, text, sizeof text),
                (long long)p->values[st->out].tensor->ne[0],
                (long long)p->values[st->out].tensor->ne[1],
                (long long)p->values[st->out].tensor->ne[2],
                (long long)p->values[st->out].tensor->ne[3], st->add_once ? " once" : "");
    }
}

#endif
