/* Data between whole tensors and their slices: set, fill, load and get.
 *
 * Geometry: a tensor cut along axis a is `outer` = product of ne above a repeats of a run of ne[a]
 * * nb[a] bytes; an interval of the axis is a piece of every run. */
#include <stdlib.h>

#include "meta/buffer.h"

/* ---- pieces ---- */

enum sheaf_status sheaf__meta_for_pieces(const struct sheaf_split_state *state, int m,
                                         enum sheaf_type type, const int64_t ne[SHEAF_MAX_DIMS],
                                         meta_piece_fn fn, void *user) {
    const size_t total = sheaf_row_size(type, ne[0]) * (size_t)(ne[1] * ne[2] * ne[3]);
    if (state->axis > SHEAF_SPLIT_AXIS_3) {
        const struct meta_piece all = {.n = total, .outer = 1};
        return total ? fn(user, &all) : SHEAF_STATUS_SUCCESS;
    }
    const int a = (int)state->axis;
    size_t unit = sheaf_type_size(type),
           outer = 1; /* bytes of one index (of one block on axis 0) */
    if (a > 0) unit = sheaf_row_size(type, ne[0]);
    for (int i = 1; i < a; i++) unit *= (size_t)ne[i];
    for (int i = a + 1; i < SHEAF_MAX_DIMS; i++) outer *= (size_t)ne[i];
    const int64_t block = a == 0 ? sheaf_blck_size(type) : 1;
    const int64_t n = sheaf_split_state_intervals(state, m, NULL, 0);
    if (n == 0 || outer == 0) return SHEAF_STATUS_SUCCESS;
    enum { FEW = 8 };
    int64_t few[2 * FEW], *many = n > FEW ? malloc((size_t)n * 2 * sizeof *many) : NULL;
    int64_t *pairs = n > FEW ? many : few;
    if (!pairs)
        return sheaf_set_error(SHEAF_STATUS_ALLOC_FAILED, "split: no memory for %lld intervals",
                               (long long)n);
    sheaf_split_state_intervals(state, m, pairs, n);
    const int64_t local_extent = sheaf_split_state_extent(state, m, ne[a]);
    struct meta_piece p = {.full_stride = (size_t)(ne[a] / block) * unit,
                           .local_stride = (size_t)(local_extent / block) * unit};
    enum sheaf_status st = SHEAF_STATUS_SUCCESS;
    for (int64_t i = 0; i < n && !st; i++) {
        p.full = (size_t)(pairs[2 * i] / block) * unit;
        const size_t run = (size_t)(pairs[2 * i + 1] / block) * unit;
        const bool one = run == p.full_stride && run == p.local_stride; /* no gaps, on both sides */
        p.n = one ? run * outer : run;
        p.outer = one ? 1 : outer;
        if (p.n) st = fn(user, &p);
        p.local += run;
    }
    free(many);
    return st;
}

/* ---- the record of a tensor, whole or through a view ---- */

struct target {
    const struct meta_tensor *record;
    enum sheaf_type type;
    const int64_t *ne;
    size_t offset; /* of the tensor's first byte in the recorded one */
};

/* A view of a weight, cache or input goes through its owner, byte for byte; a view of a computed
 * tensor has a record of its own. */
static enum sheaf_status resolve(const struct sheaf_tensor *t, const char *what,
                                 struct target *out) {
    const struct sheaf_tensor *owner = t;
    if (t->view_src && (!t->extra || t->view_src->op == SHEAF_OP_NONE)) owner = t->view_src;
    const struct meta_tensor *record = owner->extra;
    if (!record || !record->state) {
        return sheaf_set_error(SHEAF_STATUS_INVALID,
                               "%s '%s': it has no value yet; compute a graph that holds it first",
                               what, t->name);
    }
    *out = (struct target){record, owner->type, owner->ne, owner == t ? 0 : t->view_offs};
    return SHEAF_STATUS_SUCCESS;
}

/* ---- writing ---- */

enum { STAGED_BYTES = 4 << 20 };

enum write_kind { WRITE_DATA, WRITE_FILL, WRITE_READ };

struct write {
    enum write_kind kind;
    const char *data; /* of byte `begin` */
    uint8_t value;
    sheaf_tensor_read_fn read; /* counts from `begin` */
    void *user;
    size_t begin, end; /* bytes of the recorded tensor, of which a view is a part */
    /* of the member that is written to */
    struct sheaf_tensor *slice;
    struct meta_staging *staging;
};

static enum sheaf_status write_run(struct write *w, size_t full, size_t local, size_t n) {
    struct sheaf_tensor *slice = w->slice;
    switch (w->kind) {
    case WRITE_DATA:
        return sheaf_backend_tensor_set(slice, w->data + (full - w->begin), local, n);
    case WRITE_FILL:
        return sheaf_backend_tensor_memset(slice, w->value, local, n);
    case WRITE_READ:
        break;
    }
    if (sheaf_backend_buffer_is_host(slice->buffer))
        return w->read(w->user, full - w->begin, (char *)slice->data + local, n);
    enum sheaf_status st = SHEAF_STATUS_SUCCESS;
    for (size_t at = 0, len; at < n && !st; at += len) {
        void *block = NULL;
        len = n - at < STAGED_BYTES ? n - at : STAGED_BYTES;
        st = sheaf__meta_stage(w->staging, len, &block);
        if (!st) st = w->read(w->user, full - w->begin + at, block, len);
        if (!st) st = sheaf_backend_tensor_set(slice, block, local + at, len);
    }
    return st;
}

/* Short runs for a device that is not host memory: many go over at once, for each transfer costs
 * as much as thousands of bytes. */
static enum sheaf_status write_short_runs(struct write *w, const struct meta_piece *p) {
    enum sheaf_status st = SHEAF_STATUS_SUCCESS;
    const size_t most = STAGED_BYTES / p->n;
    for (size_t o = 0, rows; o < p->outer && !st; o += rows) {
        void *block = NULL;
        rows = p->outer - o < most ? p->outer - o : most;
        st = sheaf__meta_stage(w->staging, rows * p->n, &block);
        for (size_t i = 0; i < rows && !st; i++)
            st = w->read(w->user, p->full - w->begin + (o + i) * p->full_stride,
                         (char *)block + i * p->n, p->n);
        if (!st)
            st = sheaf_backend_tensor_set_2d(w->slice, block, p->local + o * p->local_stride, p->n,
                                             rows, p->local_stride, p->n);
    }
    return st;
}

static enum sheaf_status write_piece(void *user, const struct meta_piece *p) {
    struct write *w = user;
    const bool whole =
        w->begin <= p->full && w->end >= p->full + (p->outer - 1) * p->full_stride + p->n;
    if (whole && w->kind == WRITE_DATA)
        return sheaf_backend_tensor_set_2d(w->slice, w->data + (p->full - w->begin), p->local, p->n,
                                           p->outer, p->local_stride, p->full_stride);
    if (whole && w->kind == WRITE_READ && p->outer > 1 && p->n < STAGED_BYTES &&
        !sheaf_backend_buffer_is_host(w->slice->buffer))
        return write_short_runs(w, p);
    /* the first run that can reach `begin` */
    size_t first = 0;
    if (p->full_stride && w->begin > p->full + p->n)
        first = (w->begin - p->full - p->n) / p->full_stride;
    enum sheaf_status st = SHEAF_STATUS_SUCCESS;
    for (size_t o = first; o < p->outer && !st; o++) {
        const size_t at = p->full + o * p->full_stride;
        if (at >= w->end) break;
        const size_t from = at > w->begin ? at : w->begin,
                     to = at + p->n < w->end ? at + p->n : w->end;
        if (from < to)
            st = write_run(w, from, p->local + o * p->local_stride + (from - at), to - from);
    }
    return st;
}

static enum sheaf_status write_slices(struct meta_device *dev, const struct sheaf_tensor *t,
                                      size_t offset, size_t size, struct write *w) {
    struct target at = {0};
    enum sheaf_status st = resolve(t, "set tensor", &at);
    if (st) return st;
    w->begin = at.offset + offset;
    w->end = w->begin + size;
    for (int i = 0; i < dev->n_local && !st; i++) {
        struct sheaf_tensor *slice = at.record->slices[i];
        w->slice = slice;
        w->staging = &dev->loading[i];
        if (at.record->state->axis == SHEAF_SPLIT_AXIS_PARTIAL && dev->local[i] != 0) {
            /* the value is member 0's addend */
            st = sheaf_backend_tensor_memset(slice, 0, w->begin, size);
            continue;
        }
        if (w->kind == WRITE_READ && i > 0 && at.record->state->axis == SHEAF_SPLIT_AXIS_MIRRORED) {
            st = sheaf_backend_tensor_copy(at.record->slices[0], slice); /* read once a rank */
            continue;
        }
        st =
            sheaf__meta_for_pieces(at.record->state, dev->local[i], at.type, at.ne, write_piece, w);
    }
    return st;
}

enum sheaf_status sheaf__meta_set_tensor(sheaf_backend_buffer_t buffer, struct sheaf_tensor *t,
                                         const void *data, size_t offset, size_t size) {
    struct write w = {.kind = WRITE_DATA, .data = data};
    return write_slices(((struct meta_buffer *)buffer->context)->dev, t, offset, size, &w);
}

enum sheaf_status sheaf__meta_memset_tensor(sheaf_backend_buffer_t buffer, struct sheaf_tensor *t,
                                            uint8_t value, size_t offset, size_t size) {
    struct write w = {.kind = WRITE_FILL, .value = value};
    return write_slices(((struct meta_buffer *)buffer->context)->dev, t, offset, size, &w);
}

enum sheaf_status sheaf__meta_set_tensor_from(sheaf_backend_buffer_t buffer, struct sheaf_tensor *t,
                                              sheaf_tensor_read_fn read, void *user) {
    struct write w = {.kind = WRITE_READ, .read = read, .user = user};
    return write_slices(((struct meta_buffer *)buffer->context)->dev, t, 0, sheaf_nbytes(t), &w);
}

/* ---- reading ---- */

struct scatter {
    char *whole;       /* the whole tensor */
    const char *block; /* the slice's bytes */
};

static enum sheaf_status scatter_piece(void *user, const struct meta_piece *p) {
    const struct scatter *s = user;
    for (size_t o = 0; o < p->outer; o++) {
        memcpy(s->whole + p->full + o * p->full_stride, s->block + p->local + o * p->local_stride,
               p->n);
    }
    return SHEAF_STATUS_SUCCESS;
}

static size_t slice_bytes(const struct target *at, int member) {
    return sheaf__meta_slice_bytes(at->record->state, member, at->type, at->ne);
}

/* The bytes of a slice in order, also of a slice that is a strided view. */
static enum sheaf_status pack_slice(const struct sheaf_tensor *s, char *out) {
    const size_t row = sheaf_row_size(s->type, s->ne[0]);
    if (sheaf_is_empty(s)) return SHEAF_STATUS_SUCCESS;
    if (sheaf_is_contiguous(s)) return sheaf_backend_tensor_get(s, out, 0, sheaf_nbytes(s));
    enum sheaf_status st = SHEAF_STATUS_SUCCESS;
    for (int64_t r = 0; r < sheaf_nrows(s) && !st; r++, out += row) {
        const size_t at = sheaf__row_offset(s, r), e = sheaf_type_size(s->type);
        st = sheaf_is_contiguous_rows(s)
                 ? sheaf_backend_tensor_get(s, out, at, row)
                 : sheaf_backend_tensor_get_2d(s, out, at, e, row / e, s->nb[0], e);
    }
    return st;
}

/* Memory for slices of that many bytes in `own`, `all` or `whole`. */
static enum sheaf_status make_room(struct meta_staging *s, size_t want, const char *name,
                                   char **out) {
    void *p = NULL;
    if (sheaf__meta_stage(s, want, &p))
        return sheaf_set_error(SHEAF_STATUS_ALLOC_FAILED, "get '%s': out of memory", name);
    *out = p;
    return SHEAF_STATUS_SUCCESS;
}

/* The memory of a weight or a cache is given back; logits find theirs again. */
static void give_room_back(struct meta_device *dev) {
    enum { KEPT = 16 << 20 };
    struct meta_staging *all[] = {&dev->reading.own, &dev->reading.all, &dev->reading.whole};
    for (int i = 0; i < 3; i++)
        if (all[i]->size > KEPT) sheaf__meta_staging_free(all[i]);
}

/* Every rank's slices, in member order, on every rank (root -1) or on one; NULL on the others.
 * *blocks is there until the next call. */
static enum sheaf_status gather_slices(struct meta_device *dev, const struct target *at, int root,
                                       const char *name, char **blocks) {
    size_t total = 0, *sizes = dev->reading.sizes;
    memset(sizes, 0, (size_t)sheaf_world_size() * sizeof *sizes);
    for (int j = 0; j < dev->n_members; j++) {
        const size_t n = slice_bytes(at, j);
        sizes[dev->member_rank[j]] += n;
        total += n;
    }
    const bool receives = root < 0 || root == sheaf_world_rank();
    char *all = NULL, *own = NULL;
    enum sheaf_status st = make_room(&dev->reading.own, sizes[sheaf_world_rank()], name, &own);
    if (!st && receives) st = make_room(&dev->reading.all, total, name, &all);
    size_t packed = 0;
    for (int i = 0; i < dev->n_local && !st; i++) {
        st = pack_slice(at->record->slices[i], own + packed);
        packed += slice_bytes(at, dev->local[i]);
    }
    *blocks = all;
    if (st) return sheaf__meta_end_apart(st);
    return root < 0 ? sheaf_world_all_gather_v(own, all, sizes, name)
                    : sheaf_world_gather_v(own, all, sizes, root, name);
}

/* On a rank that drives a member. */
static enum sheaf_status read_mirrored(struct meta_device *dev, const struct target *at,
                                       const char *name, void *data, size_t offset, size_t size) {
    const struct sheaf_tensor *s = at->record->slices[0];
    if (sheaf_is_contiguous(s)) return sheaf_backend_tensor_get(s, data, offset, size);
    char *whole = malloc(slice_bytes(at, dev->local[0]));
    if (!whole) return sheaf_set_error(SHEAF_STATUS_ALLOC_FAILED, "get '%s': out of memory", name);
    const enum sheaf_status st = pack_slice(s, whole);
    if (!st) memcpy(data, whole + offset, size);
    free(whole);
    return st;
}

static enum sheaf_status get_mirrored(struct meta_device *dev, const struct target *at,
                                      const char *name, void *data, size_t offset, size_t size) {
    enum sheaf_status st =
        dev->n_local ? read_mirrored(dev, at, name, data, offset, size) : SHEAF_STATUS_SUCCESS;
    if (dev->everywhere) return st; /* no other rank waits for this one */
    return st ? sheaf__meta_end_apart(st)
              : sheaf_world_broadcast(data, size, dev->member_rank[0], name);
}

static bool drives_a_member(const struct meta_device *dev, int rank) {
    for (int i = 0; i < dev->n_members; i++)
        if (dev->member_rank[i] == rank) return true;
    return false;
}

/* From the first member's rank to a root that drives none. */
static enum sheaf_status send_mirrored(struct meta_device *dev, const struct target *at, int root,
                                       const char *name, void *data, size_t offset, size_t size) {
    const int from = dev->member_rank[0], me = sheaf_world_rank();
    size_t *sizes = dev->reading.sizes;
    char *own = NULL;
    enum sheaf_status st = SHEAF_STATUS_SUCCESS;
    if (me == from) st = make_room(&dev->reading.own, size, name, &own);
    if (!st && me == from) st = read_mirrored(dev, at, name, own, offset, size);
    if (st) return sheaf__meta_end_apart(st);
    memset(sizes, 0, (size_t)sheaf_world_size() * sizeof *sizes);
    sizes[from] = size;
    return sheaf_world_gather_v(own, data, sizes, root, name);
}

static enum sheaf_status get_mirrored_at(struct meta_device *dev, const struct target *at, int root,
                                         const char *name, void *data, size_t offset, size_t size) {
    if (!drives_a_member(dev, root)) return send_mirrored(dev, at, root, name, data, offset, size);
    return root == sheaf_world_rank() ? read_mirrored(dev, at, name, data, offset, size)
                                      : SHEAF_STATUS_SUCCESS;
}

/* The members' blocks as a tensor, or their sum in member order. */
static enum sheaf_status join(const struct meta_device *dev, const struct target *at, char *whole,
                              size_t n_bytes, const char *blocks) {
    enum sheaf_status st = SHEAF_STATUS_SUCCESS;
    if (!sheaf_split_state_is_partition(at->record->state)) memset(whole, 0, n_bytes);
    for (int j = 0; j < dev->n_members && !st; j++) {
        if (at->record->state->axis == SHEAF_SPLIT_AXIS_PARTIAL) {
            float *sum = (float *)(void *)whole;
            const float *addend = (const float *)(const void *)blocks;
            for (size_t i = 0; i < n_bytes / sizeof *sum; i++) sum[i] += addend[i];
        } else {
            struct scatter s = {whole, blocks};
            st = sheaf__meta_for_pieces(at->record->state, j, at->type, at->ne, scatter_piece, &s);
        }
        blocks += slice_bytes(at, j);
    }
    return st;
}

/* On a rank that receives: slices go straight to the reader if all is read. Its memory need not be
 * aligned for sums. */
static enum sheaf_status get_cut(struct meta_device *dev, const struct target *at, int root,
                                 const char *name, void *data, size_t offset, size_t size) {
    const size_t n_bytes =
        sheaf_row_size(at->type, at->ne[0]) * (size_t)(at->ne[1] * at->ne[2] * at->ne[3]);
    const bool straight =
        offset == 0 && size == n_bytes && at->record->state->axis != SHEAF_SPLIT_AXIS_PARTIAL;
    char *blocks = NULL, *whole = data;
    enum sheaf_status st =
        straight ? SHEAF_STATUS_SUCCESS : make_room(&dev->reading.whole, n_bytes, name, &whole);
    if (st) return sheaf__meta_end_apart(st);
    st = gather_slices(dev, at, root, name, &blocks);
    if (!st) st = join(dev, at, whole, n_bytes, blocks);
    if (!st && !straight) memcpy(data, whole + offset, size);
    return st;
}

/* On every rank (root -1) or on one. */
static enum sheaf_status get_tensor(struct meta_device *dev, const struct sheaf_tensor *t, int root,
                                    void *data, size_t offset, size_t size) {
    struct target at = {0};
    enum sheaf_status st = resolve(t, "get tensor", &at);
    if (st) return st;
    offset += at.offset;
    const enum sheaf_split_axis axis = at.record->state->axis;
    const bool receives = root < 0 || root == sheaf_world_rank();
    if (axis == SHEAF_SPLIT_AXIS_PARTIAL && at.type != SHEAF_TYPE_F32) {
        return sheaf_set_error(SHEAF_STATUS_UNSUPPORTED, "get tensor '%s': partial sums of type %s",
                               t->name, sheaf_type_name(at.type));
    }
    if (axis == SHEAF_SPLIT_AXIS_MIRRORED)
        st = root < 0 ? get_mirrored(dev, &at, t->name, data, offset, size)
                      : get_mirrored_at(dev, &at, root, t->name, data, offset, size);
    else
        st = receives ? get_cut(dev, &at, root, t->name, data, offset, size)
                      : gather_slices(dev, &at, root, t->name, &(char *){NULL});
    give_room_back(dev);
    return st;
}

enum sheaf_status sheaf__meta_get_tensor(sheaf_backend_buffer_t buffer,
                                         const struct sheaf_tensor *t, void *data, size_t offset,
                                         size_t size) {
    return get_tensor(((struct meta_buffer *)buffer->context)->dev, t, -1, data, offset, size);
}

enum sheaf_status sheaf_backend_meta_tensor_get_at(const struct sheaf_tensor *t, int rank,
                                                   void *data, size_t offset, size_t size) {
    const sheaf_backend_buffer_t buffer = sheaf__memory_owner(t)->buffer;
    const size_t all = sheaf_nbytes(t);
    if (!buffer || !sheaf__meta_is_buffer(buffer) || rank < 0 || rank >= sheaf_world_size() ||
        offset > all || size > all - offset)
        return sheaf_set_error(SHEAF_STATUS_INVALID,
                               "get '%s' at rank %d: it is not on a meta device, there is no such "
                               "rank, or the range is outside",
                               t->name, rank);
    if (!size) return SHEAF_STATUS_SUCCESS;
    return get_tensor(((struct meta_buffer *)buffer->context)->dev, t, rank, data, offset, size);
}
