/* Results that later graphs read: copies of their slices outside the compute buffers. */
#include <stdlib.h>

#include "base/array.h"
#include "meta/backend.h"

struct meta_carry {            /* a result kept for later graphs: copies of its slices */
    struct meta_tensor record; /* first */
    const struct sheaf_tensor *key;
    struct meta_program *program; /* owns the state; NULL: free for use */
    struct sheaf_tensor *tensors; /* [n_local] */
    sheaf_backend_buffer_t *buffers;
};

static void free_carry(struct meta_carry *c, int n_local) {
    for (int m = 0; c->buffers && m < n_local; m++) sheaf_backend_buffer_free(c->buffers[m]);
    free(c->record.slices);
    free(c->tensors);
    free((void *)c->buffers);
    free(c);
}

void sheaf__meta_release(sheaf_backend_t backend, const struct sheaf_tensor *tensor) {
    struct meta_backend *b = backend->context;
    for (size_t i = 0; i < b->n_carries; i++) {
        struct meta_carry *c = b->carries[i];
        if (c->key != tensor || !c->program) continue;
        c->program->n_carried--;
        c->program = NULL;
    }
}

static size_t bytes_of(const struct meta_carry *c, int m) {
    return c->buffers[m] ? sheaf_backend_buffer_get_size(c->buffers[m]) : 0;
}

/* The smallest free carry with room for `slices` on every member, else the one that needs the least
 * additional memory; NULL: none is free. */
static struct meta_carry *find_free(const struct meta_backend *b, struct sheaf_tensor **slices) {
    struct meta_carry *best = NULL;
    size_t best_lacks = 0, best_has = 0;
    for (size_t i = 0; i < b->n_carries; i++) {
        struct meta_carry *c = b->carries[i];
        size_t lacks = 0, has = 0;
        if (c->program) continue;
        for (int m = 0; m < b->dev->n_local; m++) {
            const size_t want = sheaf_nbytes(slices[m]), have = bytes_of(c, m);
            has += have;
            if (want > have) lacks += want - have;
        }
        if (best && (lacks != best_lacks ? lacks > best_lacks : has >= best_has)) continue;
        best = c;
        best_lacks = lacks;
        best_has = has;
    }
    return best;
}

/* NULL: out of memory. */
static struct meta_carry *new_carry(struct meta_backend *b) {
    if (!sheaf__grow(&b->carries, &b->cap_carries, b->n_carries + 1, sizeof(struct meta_carry *)))
        return NULL;
    struct meta_carry *c = calloc(1, sizeof *c);
    if (!c) return NULL;
    const size_t n = (size_t)b->dev->n_local + 1;
    c->record.carried = true;
    c->record.slices = calloc(n, sizeof *c->record.slices);
    c->tensors = calloc(n, sizeof *c->tensors);
    c->buffers = calloc(n, sizeof(sheaf_backend_buffer_t));
    if (!c->record.slices || !c->tensors || !c->buffers) {
        free_carry(c, 0);
        return NULL;
    }
    b->carries[b->n_carries++] = c;
    return c;
}

enum sheaf_status sheaf__meta_carry(struct meta_backend *b, struct meta_program *p,
                                    struct sheaf_tensor *node, const struct meta_tensor *from,
                                    bool dry) {
    sheaf__meta_release(&b->base, node);
    struct meta_carry *c = find_free(b, from->slices);
    if (!c) c = new_carry(b);
    if (!c) return sheaf_set_error(SHEAF_STATUS_ALLOC_FAILED, "meta: out of memory");
    enum sheaf_status st = SHEAF_STATUS_SUCCESS;
    for (int m = 0; m < b->dev->n_local && !st; m++) {
        struct sheaf_tensor *s = from->slices[m], *t = &c->tensors[m];
        memset(t, 0, sizeof *t);
        t->type = s->type;
        memcpy(t->ne, s->ne, sizeof t->ne);
        memcpy(t->nb, s->nb, sizeof t->nb);
        memcpy(t->name, s->name, sizeof t->name);
        st = sheaf__meta_place_slice(b->dev, m, SHEAF_BACKEND_BUFFER_USAGE_COMPUTE, &c->buffers[m],
                                     t);
        if (!st && !dry && !sheaf_is_empty(t)) st = sheaf_backend_tensor_copy(s, t);
        c->record.slices[m] = t;
    }
    if (st) return st;
    c->record.state = from->state;
    c->key = node;
    c->program = p;
    p->n_carried++;
    node->extra = &c->record;
    return st;
}

bool sheaf__meta_is_carried(const struct sheaf_tensor *t) {
    return t && t->op != SHEAF_OP_NONE && t->extra &&
           ((const struct meta_tensor *)t->extra)->carried;
}

void sheaf__meta_free_carries(struct meta_backend *b) {
    for (size_t i = 0; i < b->n_carries; i++) free_carry(b->carries[i], b->dev->n_local);
    free((void *)b->carries);
}
