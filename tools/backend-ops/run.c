/* One case on one backend. Data depend on the seed and the operand alone, so every backend and
 * every rank gets the same. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "backend_ops.h"
#include "base/hash.h"

static float uniform(uint64_t *state) {
    return (float)(sheaf__random(state) >> 40) / (float)(1 << 24);
}

const char *op_case_text(const struct op_case *c, char *text, size_t size) {
    static const char *const layouts[] = {"", " gap", " permuted", " transposed"};
    size_t used = 0;
    text[0] = 0;
    for (int k = 0; k < c->n_in && used < size; k++) {
        const struct operand *o = &c->in[k];
        used += (size_t)snprintf(text + used, size - used, "%s%s [%lld,%lld,%lld,%lld]%s",
                                 k ? ", " : "", sheaf_type_name(o->type), (long long)o->ne[0],
                                 (long long)o->ne[1], (long long)o->ne[2], (long long)o->ne[3],
                                 layouts[o->layout]);
    }
    if (used < size) {
        snprintf(text + used, size - used, "; %d %d %d %g %g %g", c->i[0], c->i[1], c->i[2],
                 (double)c->f[0], (double)c->f[1], (double)c->f[2]);
    }
    return text;
}

/* ---- operands ---- */

static struct sheaf_tensor *make_leaf(struct sheaf_context *ctx, const struct operand *o, int k) {
    const int64_t *ne = o->ne;
    struct sheaf_tensor *t = NULL;
    switch (o->layout) {
    case LAYOUT_PLAIN:
        t = sheaf_new_tensor_4d(ctx, o->type, ne[0], ne[1], ne[2], ne[3]);
        break;
    case LAYOUT_GAP:
        t = sheaf_new_tensor_4d(ctx, o->type, ne[0] + sheaf_blck_size(o->type), ne[1] + 1, ne[2],
                                ne[3]);
        break;
    case LAYOUT_PERMUTED:
        t = sheaf_new_tensor_4d(ctx, o->type, ne[0], ne[2], ne[1], ne[3]);
        break;
    case LAYOUT_TRANSPOSED:
        t = sheaf_new_tensor_4d(ctx, o->type, ne[1], ne[0], ne[2], ne[3]);
        break;
    }
    return sheaf_format_name(t, "x%d", k);
}

static struct sheaf_tensor *lay_out(struct sheaf_context *ctx, const struct operand *o,
                                    struct sheaf_tensor *leaf) {
    switch (o->layout) {
    case LAYOUT_PLAIN:
        break;
    case LAYOUT_GAP:
        return sheaf_view_4d(ctx, leaf, o->ne[0], o->ne[1], o->ne[2], o->ne[3], leaf->nb[1],
                             leaf->nb[2], leaf->nb[3], leaf->nb[1]);
    case LAYOUT_PERMUTED:
        return sheaf_permute(ctx, leaf, 0, 2, 1, 3);
    case LAYOUT_TRANSPOSED:
        return sheaf_transpose(ctx, leaf);
    }
    return leaf;
}

/* Row by row, in the leaf's order. */
static void make_values(const struct operand *o, uint64_t seed, float *v, int64_t n, int64_t ne0) {
    for (int64_t i = 0; i < n; i++) {
        const float u = uniform(&seed);
        switch (o->fill) {
        case FILL_VALUES:
            v[i] = 2 * u - 1;
            break;
        case FILL_UNIT:
            v[i] = (2 * u - 1) * sqrtf(3 / (float)ne0);
            break;
        case FILL_POSITIVE:
            v[i] = 0.5f + u;
            break;
        case FILL_MASK:
            v[i] = i % ne0 && u < 0.25f ? -INFINITY : u - 0.5f;
            break;
        case FILL_INDEX:
            v[i] = floorf(u * (float)o->limit);
            break;
        case FILL_DISTINCT:
            for (bool again = true; again;) {
                v[i] = floorf(uniform(&seed) * (float)o->limit);
                again = false;
                for (int64_t j = i - i % ne0; j < i; j++) again = again || v[j] == v[i];
            }
            break;
        }
    }
}

/* The bytes of a leaf; NULL: out of memory. */
static void *make_bytes(const struct operand *o, const struct sheaf_tensor *leaf, uint64_t seed) {
    const int64_t n = sheaf_nelements(leaf);
    float *v = malloc(((size_t)n + 1) * sizeof *v);
    char *data = malloc(sheaf_nbytes(leaf) + 1);
    if (!v || !data) goto fail;
    make_values(o, seed, v, n, leaf->ne[0]);
    if (o->type == SHEAF_TYPE_I32) {
        for (int64_t i = 0; i < n; i++) {
            const int32_t x = (int32_t)v[i];
            memcpy(data + (size_t)i * sizeof x, &x, sizeof x);
        }
    } else if (o->type == SHEAF_TYPE_I64) {
        for (int64_t i = 0; i < n; i++) {
            const int64_t x = (int64_t)v[i];
            memcpy(data + (size_t)i * sizeof x, &x, sizeof x);
        }
    } else if (sheaf_from_float(o->type, v, data, n)) {
        goto fail;
    }
    free(v);
    return data;
fail:
    free(v);
    free(data);
    return NULL;
}

/* ---- the graph ---- */

enum { N_TENSORS = 32, N_NODES = 16 };

static struct sheaf_context *new_context(void) {
    return sheaf_init((struct sheaf_init_params){.mem_size = N_TENSORS * sheaf_tensor_overhead() +
                                                             sheaf_graph_overhead_custom(N_NODES),
                                                 .no_alloc = true});
}

struct sheaf_tensor *op_case_build(struct sheaf_context *ctx, const struct op_case *c) {
    struct sheaf_tensor *x[MAX_OPERANDS] = {NULL};
    for (int k = 0; k < c->n_in; k++) x[k] = lay_out(ctx, &c->in[k], make_leaf(ctx, &c->in[k], k));
    return c->family->build(ctx, c, x);
}

enum sheaf_status op_data_make(struct op_data *d, const struct op_case *c, uint64_t seed) {
    memset(d, 0, sizeof *d);
    struct sheaf_context *ctx = new_context();
    if (!ctx) return SHEAF_STATUS_ALLOC_FAILED;
    enum sheaf_status st = SHEAF_STATUS_SUCCESS;
    for (int k = 0; k < c->n_in && !st; k++) {
        const struct sheaf_tensor *leaf = make_leaf(ctx, &c->in[k], k);
        d->bytes[k] = leaf ? make_bytes(&c->in[k], leaf, seed * 31 + (uint64_t)k) : NULL;
        if (!d->bytes[k])
            st = sheaf_set_error(SHEAF_STATUS_ALLOC_FAILED, "no memory for operand %d", k);
    }
    sheaf_free(ctx);
    if (st) op_data_free(d);
    return st;
}

void op_data_free(struct op_data *d) {
    for (int k = 0; k < MAX_OPERANDS; k++) free(d->bytes[k]);
    memset(d, 0, sizeof *d);
}

enum sheaf_status op_rig_up(struct op_rig *r, sheaf_backend_t backend, const struct op_case *c,
                            const struct op_data *data) {
    struct sheaf_tensor *leafs[MAX_OPERANDS] = {NULL}, *x[MAX_OPERANDS] = {NULL};
    enum sheaf_status st = SHEAF_STATUS_ALLOC_FAILED;
    memset(r, 0, sizeof *r);
    r->ctx_leafs = new_context();
    r->ctx_graph = new_context();
    if (!r->ctx_leafs || !r->ctx_graph) goto out;
    for (int k = 0; k < c->n_in; k++) {
        leafs[k] = make_leaf(r->ctx_leafs, &c->in[k], k);
        if (!leafs[k]) goto out;
    }
    st = sheaf_backend_alloc_ctx_tensors(r->ctx_leafs, backend, &r->buffer);
    if (st) goto out;
    sheaf_backend_buffer_set_usage(r->buffer, SHEAF_BACKEND_BUFFER_USAGE_WEIGHTS);
    for (int k = 0; k < c->n_in; k++) x[k] = lay_out(r->ctx_graph, &c->in[k], leafs[k]);
    r->result = c->family->build(r->ctx_graph, c, x);
    st = SHEAF_STATUS_INVALID;
    if (!r->result) goto out;
    sheaf_set_output(r->result);
    if (!sheaf_backend_supports_op(backend, r->result)) {
        st = sheaf_set_error(SHEAF_STATUS_UNSUPPORTED, "%s does not run this op",
                             sheaf_backend_name(backend));
        goto out;
    }
    st = SHEAF_STATUS_ALLOC_FAILED;
    r->graph = sheaf_new_graph_custom(r->ctx_graph, N_NODES);
    r->galloc = sheaf_gallocr_new(sheaf_backend_get_default_buffer_type(backend));
    if (!r->graph || !r->galloc) goto out;
    st = sheaf_build_forward_expand(r->graph, r->result);
    if (!st) st = sheaf_gallocr_alloc_graph(r->galloc, r->graph);
    for (int k = 0; k < c->n_in && !st; k++) {
        const size_t size = sheaf_nbytes(leafs[k]);
        if (size) st = sheaf_backend_tensor_set(leafs[k], data->bytes[k], 0, size);
    }
out:
    return st;
}

void op_rig_down(struct op_rig *r) {
    sheaf_gallocr_free(r->galloc);
    sheaf_backend_buffer_free(r->buffer);
    sheaf_free(r->ctx_leafs);
    sheaf_free(r->ctx_graph);
}

enum sheaf_status op_rig_result(const struct op_rig *r, float **values, size_t *n) {
    const struct sheaf_tensor *t = r->result->view_src ? r->result->view_src : r->result;
    *n = (size_t)sheaf_nelements(t);
    *values = malloc((*n ? *n : 1) * sizeof **values);
    char *data = malloc(sheaf_nbytes(t) + 1);
    enum sheaf_status st = SHEAF_STATUS_ALLOC_FAILED;
    if (!*values || !data) {
        sheaf_set_error(st, "no memory for a result of %zu values", *n);
    } else {
        st = *n ? sheaf_backend_tensor_get(t, data, 0, sheaf_nbytes(t)) : SHEAF_STATUS_SUCCESS;
    }
    for (size_t i = 0; i < *n && !st && t->type == SHEAF_TYPE_I32; i++) {
        int32_t x;
        memcpy(&x, data + i * sizeof x, sizeof x);
        (*values)[i] = (float)x;
    }
    for (size_t i = 0; i < *n && !st && t->type == SHEAF_TYPE_I64; i++) {
        int64_t x;
        memcpy(&x, data + i * sizeof x, sizeof x);
        (*values)[i] = (float)x;
    }
    if (!st && t->type != SHEAF_TYPE_I32 && t->type != SHEAF_TYPE_I64 && *n)
        st = sheaf_to_float(t->type, data, *values, (int64_t)*n);
    free(data);
    if (st) {
        free(*values);
        *values = NULL;
    }
    return st;
}
