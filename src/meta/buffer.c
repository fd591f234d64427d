/* Meta buffers: they reserve addresses, and hold the slices of the tensors placed in them.
 *
 * Tensors of weights and caches get one slice per local member, sized by the split state that the
 * user's function gives. Leaves of compute buffers (inputs) are mirrored. Everything else in a
 * compute buffer has no memory here: the programs that compute it hold its slices.
 *
 * Geometry: a tensor cut along axis a is `outer` = product of ne above a repeats of a run of ne[a]
 * * nb[a] bytes; an interval of the axis is a piece of every run. */
#include <stdlib.h>
#include <sys/mman.h>

#include "meta/meta_impl.h"

struct slice_set { /* a meta_tensor with its storage */
    struct meta_tensor record;
    struct sheaf_split_state *state; /* owned, NULL if the device's mirrored state */
    struct sheaf_tensor *tensors;    /* [n_local] */
    sheaf_backend_buffer_t *buffers; /* [n_local] owned; NULL entries if in the meta buffer's own */
    size_t offset, size;             /* inputs: the addresses it stands for, bytes from the base */
    size_t capacity;                 /* inputs: the largest size so far, the same on every rank */
    bool live;
};

struct meta_buffer {
    struct meta_device *dev;
    char *base;
    size_t reserved;
    struct slice_set **sets;
    size_t n_sets, cap_sets;
    sheaf_backend_buffer_t
        *bulk; /* [n_local] memory of all tensors placed in one go; NULL entries possible */
    size_t static_bytes;
};

/* ---- slice sets ---- */

static void free_set(struct slice_set *set, int n_local) {
    if (!set) return;
    for (int i = 0; set->buffers && i < n_local; i++) sheaf_backend_buffer_free(set->buffers[i]);
    sheaf_split_state_free(set->state);
    free(set->record.slices);
    free(set->tensors);
    free(set->buffers);
    free(set);
}

static struct slice_set *new_set(struct meta_buffer *mb) {
    const size_t n = (size_t)mb->dev->n_local + 1; /* + 1: malloc(0) may be NULL */
    struct slice_set *set = calloc(1, sizeof *set);
    if (set) {
        set->record.slices = calloc(n, sizeof *set->record.slices);
        set->tensors = calloc(n, sizeof *set->tensors);
        set->buffers = calloc(n, sizeof(sheaf_backend_buffer_t));
    }
    if (mb->n_sets == mb->cap_sets) {
        const size_t cap = mb->cap_sets ? mb->cap_sets * 2 : 16;
        struct slice_set **p = realloc(mb->sets, cap * sizeof *p);
        if (p) {
            mb->sets = p;
            mb->cap_sets = cap;
        }
    }
    if (!set || !set->record.slices || !set->tensors || !set->buffers ||
        mb->n_sets == mb->cap_sets) {
        free_set(set, 0);
        sheaf_set_error(SHEAF_STATUS_ALLOC_FAILED, "meta buffer: out of memory");
        return NULL;
    }
    set->record.serial = ++mb->dev->n_records;
    mb->sets[mb->n_sets++] = set;
    return set;
}

/* Shapes set->tensors as the slices of `t` under `state`; no memory yet. */
static void shape_slices(const struct meta_device *dev, struct slice_set *set,
                         const struct sheaf_split_state *state, const struct sheaf_tensor *t) {
    set->record.state = state;
    set->live = true;
    for (int i = 0; i < dev->n_local; i++) {
        struct sheaf_tensor *s = &set->tensors[i];
        memset(s, 0, sizeof *s);
        s->type = t->type;
        s->flags = t->flags;
        sheaf_split_state_local_ne(state, t->ne, dev->local[i], s->ne);
        s->nb[0] = sheaf_type_size(t->type);
        s->nb[1] = sheaf_row_size(t->type, s->ne[0]);
        s->nb[2] = s->nb[1] * (size_t)s->ne[1];
        s->nb[3] = s->nb[2] * (size_t)s->ne[2];
        memcpy(s->name, t->name, sizeof s->name);
        set->record.slices[i] = s;
    }
}

static sheaf_backend_buffer_type_t member_buft(const struct meta_device *dev, int local) {
    return sheaf_backend_dev_buffer_type(dev->members[dev->local[local]]);
}

/* A buffer of its own for every slice of the set. */
static enum sheaf_status alloc_slices(const struct meta_device *dev, struct slice_set *set) {
    enum sheaf_status st = SHEAF_STATUS_SUCCESS;
    for (int i = 0; i < dev->n_local && !st; i++) {
        sheaf_backend_buffer_type_t buft = member_buft(dev, i);
        const size_t need = sheaf_backend_buft_get_alloc_size(buft, &set->tensors[i]);
        if (!set->buffers[i] || sheaf_backend_buffer_get_size(set->buffers[i]) < need) {
            sheaf_backend_buffer_free(set->buffers[i]);
            set->buffers[i] = NULL;
            st = sheaf_backend_buft_alloc_buffer(buft, need, &set->buffers[i]);
        }
        if (!st) {
            st = sheaf_backend_tensor_alloc(set->buffers[i], &set->tensors[i],
                                            sheaf_backend_buffer_get_base(set->buffers[i]));
        }
    }
    return st;
}

/* ---- placing tensors ---- */

static enum sheaf_status ask_state(struct meta_device *dev, const struct sheaf_tensor *t,
                                   struct slice_set *set) {
    enum sheaf_status st = dev->get_split_state(t, dev->user, &set->state);
    if (st) return st;
    if (!set->state || set->state->n_members != dev->n_members) {
        return sheaf_set_error(
            SHEAF_STATUS_INVALID,
            "split of '%s': the caller's function gave a state for %d members, the device has %d",
            t->name, set->state ? set->state->n_members : 0, dev->n_members);
    }
    return sheaf_split_state_check(set->state, t);
}

/* A weight or cache outside alloc_tensors: memory of its own. */
static enum sheaf_status place_static(struct meta_buffer *mb, struct sheaf_tensor *t) {
    struct slice_set *set = new_set(mb);
    if (!set) return SHEAF_STATUS_ALLOC_FAILED;
    enum sheaf_status st = ask_state(mb->dev, t, set);
    if (st) return st;
    shape_slices(mb->dev, set, set->state, t);
    st = alloc_slices(mb->dev, set);
    if (st) return st;
    for (int i = 0; i < mb->dev->n_local; i++) {
        mb->static_bytes += sheaf_nbytes(&set->tensors[i]);
        mb->dev->static_bytes += sheaf_nbytes(&set->tensors[i]);
    }
    t->extra = &set->record;
    return st;
}

/* The unused one that `size` fits best: the smallest that is large enough, else the largest. So
 * inputs that each need no more than those of an earlier graph find room, in whatever order, and
 * those of the same graph find their own again. */
static struct slice_set *best_spare(const struct meta_buffer *mb, size_t size) {
    struct slice_set *best = NULL;
    for (size_t i = 0; i < mb->n_sets; i++) {
        struct slice_set *s = mb->sets[i];
        if (s->live) continue;
        const bool fits = s->capacity >= size, had = best && best->capacity >= size;
        if (!best || (fits != had ? fits
                      : fits      ? s->capacity < best->capacity
                                  : s->capacity > best->capacity))
            best = s;
    }
    return best;
}

/* An input at [offset, offset + size): takes over the record of whatever input stood there before,
 * or one that no input has any more. Records are never freed before the buffer, so a stale tensor
 * can be recognised. */
static enum sheaf_status place_input(struct meta_buffer *mb, struct sheaf_tensor *t) {
    const size_t offset = (size_t)((char *)t->data - mb->base), size = sheaf_nbytes(t);
    struct slice_set *set = NULL;
    for (size_t i = 0; i < mb->n_sets; i++) {
        struct slice_set *s = mb->sets[i];
        if (!s->live) continue;
        if (s->offset == offset && !set) {
            set = s;
        } else if (s->offset < offset + size && offset < s->offset + s->size) {
            s->live = false;
        }
    }
    if (!set) set = best_spare(mb, size);
    if (!set) set = new_set(mb);
    if (!set) return SHEAF_STATUS_ALLOC_FAILED;
    set->offset = offset;
    set->size = size;
    if (size > set->capacity) set->capacity = size;
    shape_slices(mb->dev, set, mb->dev->mirrored, t);
    t->extra = &set->record;
    return alloc_slices(mb->dev, set);
}

static enum sheaf_status init_tensor(sheaf_backend_buffer_t buffer, struct sheaf_tensor *t) {
    struct meta_buffer *mb = buffer->context;
    t->extra = NULL;
    if (t->view_src) return SHEAF_STATUS_SUCCESS;
    if (buffer->usage != SHEAF_BACKEND_BUFFER_USAGE_COMPUTE) return place_static(mb, t);
    return t->op == SHEAF_OP_NONE ? place_input(mb, t) : SHEAF_STATUS_SUCCESS;
}

/* ---- pieces ---- */

struct piece {                  /* `n` bytes repeated `outer` times */
    size_t full, full_stride;   /* where in the whole tensor */
    size_t local, local_stride; /* where in the slice */
    size_t n, outer;
};

typedef enum sheaf_status (*piece_fn)(void *user, struct sheaf_tensor *slice,
                                      const struct piece *piece);

/* Calls fn for every piece of member `m`'s slice of a tensor of this type and shape. */
static enum sheaf_status for_pieces(const struct sheaf_split_state *state, int m,
                                    enum sheaf_type type, const int64_t ne[SHEAF_MAX_DIMS],
                                    struct sheaf_tensor *slice, piece_fn fn, void *user) {
    const size_t total = sheaf_row_size(type, ne[0]) * (size_t)(ne[1] * ne[2] * ne[3]);
    if (state->axis > SHEAF_SPLIT_AXIS_3) {
        const struct piece all = {.n = total, .outer = 1};
        return total ? fn(user, slice, &all) : SHEAF_STATUS_SUCCESS;
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
    int64_t *pairs = malloc((size_t)n * 2 * sizeof *pairs);
    if (!pairs)
        return sheaf_set_error(SHEAF_STATUS_ALLOC_FAILED, "split: no memory for %lld intervals",
                               (long long)n);
    sheaf_split_state_intervals(state, m, pairs, n);
    const int64_t local_extent = sheaf_split_state_extent(state, m, ne[a]);
    struct piece p = {.full_stride = (size_t)(ne[a] / block) * unit,
                      .local_stride = (size_t)(local_extent / block) * unit,
                      .outer = outer};
    enum sheaf_status st = SHEAF_STATUS_SUCCESS;
    for (int64_t i = 0; i < n && !st; i++) {
        p.full = (size_t)(pairs[2 * i] / block) * unit;
        p.n = (size_t)(pairs[2 * i + 1] / block) * unit;
        if (p.n) st = fn(user, slice, &p);
        p.local += p.n;
    }
    free(pairs);
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
    if (!owner->extra) {
        return sheaf_set_error(SHEAF_STATUS_INVALID,
                               "%s '%s': it has no value yet; compute a graph that holds it first",
                               what, t->name);
    }
    *out = (struct target){owner->extra, owner->type, owner->ne, owner == t ? 0 : t->view_offs};
    return SHEAF_STATUS_SUCCESS;
}

/* ---- writing ---- */

enum { STAGED_BYTES = 4 << 20 };

enum write_kind { WRITE_DATA, WRITE_FILL, WRITE_READ };

struct write {
    enum write_kind kind;
    const char *data; /* of byte `begin` */
    uint8_t value;
    sheaf_tensor_read_fn read;
    void *user;
    size_t begin, end;            /* bytes of the whole tensor */
    struct meta_staging *staging; /* of the member that is written to */
};

static enum sheaf_status write_run(struct write *w, struct sheaf_tensor *slice, size_t full,
                                   size_t local, size_t n) {
    switch (w->kind) {
    case WRITE_DATA:
        return sheaf_backend_tensor_set(slice, w->data + (full - w->begin), local, n);
    case WRITE_FILL:
        return sheaf_backend_tensor_memset(slice, w->value, local, n);
    case WRITE_READ:
        break;
    }
    if (sheaf_backend_buffer_is_host(slice->buffer))
        return w->read(w->user, full, (char *)slice->data + local, n);
    enum sheaf_status st = SHEAF_STATUS_SUCCESS;
    for (size_t at = 0, len; at < n && !st; at += len) {
        void *block = NULL;
        len = n - at < STAGED_BYTES ? n - at : STAGED_BYTES;
        st = sheaf__meta_stage(w->staging, len, &block);
        if (!st) st = w->read(w->user, full + at, block, len);
        if (!st) st = sheaf_backend_tensor_set(slice, block, local + at, len);
    }
    return st;
}

/* Short runs for a device that is not host memory: many go over at once, for each transfer costs
 * as much as thousands of bytes. */
static enum sheaf_status write_short_runs(struct write *w, struct sheaf_tensor *slice,
                                          const struct piece *p) {
    enum sheaf_status st = SHEAF_STATUS_SUCCESS;
    const size_t most = STAGED_BYTES / p->n;
    for (size_t o = 0, rows; o < p->outer && !st; o += rows) {
        void *block = NULL;
        rows = p->outer - o < most ? p->outer - o : most;
        st = sheaf__meta_stage(w->staging, rows * p->n, &block);
        for (size_t i = 0; i < rows && !st; i++)
            st = w->read(w->user, p->full + (o + i) * p->full_stride, (char *)block + i * p->n,
                         p->n);
        if (!st)
            st = sheaf_backend_tensor_set_2d(slice, block, p->local + o * p->local_stride, p->n,
                                             rows, p->local_stride, p->n);
    }
    return st;
}

static enum sheaf_status write_piece(void *user, struct sheaf_tensor *slice,
                                     const struct piece *p) {
    struct write *w = user;
    if (w->kind == WRITE_DATA && w->begin == 0 &&
        w->end >= p->full + (p->outer - 1) * p->full_stride + p->n) {
        return sheaf_backend_tensor_set_2d(slice, w->data + p->full, p->local, p->n, p->outer,
                                           p->local_stride, p->full_stride);
    }
    if (w->kind == WRITE_READ && p->outer > 1 && p->n < STAGED_BYTES &&
        !sheaf_backend_buffer_is_host(slice->buffer))
        return write_short_runs(w, slice, p); /* a reader gives the whole tensor */
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
            st = write_run(w, slice, from, p->local + o * p->local_stride + (from - at), to - from);
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
        st = for_pieces(at.record->state, dev->local[i], at.type, at.ne, slice, write_piece, w);
    }
    return st;
}

static enum sheaf_status set_tensor(sheaf_backend_buffer_t buffer, struct sheaf_tensor *t,
                                    const void *data, size_t offset, size_t size) {
    struct write w = {.kind = WRITE_DATA, .data = data};
    return write_slices(((struct meta_buffer *)buffer->context)->dev, t, offset, size, &w);
}

static enum sheaf_status memset_tensor(sheaf_backend_buffer_t buffer, struct sheaf_tensor *t,
                                       uint8_t value, size_t offset, size_t size) {
    struct write w = {.kind = WRITE_FILL, .value = value};
    return write_slices(((struct meta_buffer *)buffer->context)->dev, t, offset, size, &w);
}

static enum sheaf_status set_tensor_from(sheaf_backend_buffer_t buffer, struct sheaf_tensor *t,
                                         sheaf_tensor_read_fn read, void *user) {
    struct write w = {.kind = WRITE_READ, .read = read, .user = user};
    return write_slices(((struct meta_buffer *)buffer->context)->dev, t, 0, sheaf_nbytes(t), &w);
}

/* ---- reading ---- */

struct scatter {
    char *whole;       /* the whole tensor */
    const char *block; /* the slice's bytes */
};

static enum sheaf_status scatter_piece(void *user, struct sheaf_tensor *slice,
                                       const struct piece *p) {
    (void)slice;
    const struct scatter *s = user;
    for (size_t o = 0; o < p->outer; o++) {
        memcpy(s->whole + p->full + o * p->full_stride, s->block + p->local + o * p->local_stride,
               p->n);
    }
    return SHEAF_STATUS_SUCCESS;
}

static size_t slice_bytes(const struct target *at, int member) {
    int64_t ne[SHEAF_MAX_DIMS];
    sheaf_split_state_local_ne(at->record->state, at->ne, member, ne);
    return sheaf_row_size(at->type, ne[0]) * (size_t)(ne[1] * ne[2] * ne[3]);
}

/* The bytes of a slice in order, also of a slice that is a strided view. */
static enum sheaf_status pack_slice(const struct sheaf_tensor *s, char *out) {
    const size_t row = sheaf_row_size(s->type, s->ne[0]);
    if (sheaf_is_empty(s)) return SHEAF_STATUS_SUCCESS;
    if (sheaf_is_contiguous(s)) return sheaf_backend_tensor_get(s, out, 0, sheaf_nbytes(s));
    enum sheaf_status st = SHEAF_STATUS_SUCCESS;
    for (int64_t i3 = 0; i3 < s->ne[3]; i3++) {
        for (int64_t i2 = 0; i2 < s->ne[2]; i2++) {
            for (int64_t i1 = 0; i1 < s->ne[1] && !st; i1++) {
                const size_t at =
                    (size_t)i3 * s->nb[3] + (size_t)i2 * s->nb[2] + (size_t)i1 * s->nb[1];
                if (sheaf_is_contiguous_rows(s)) {
                    st = sheaf_backend_tensor_get(s, out, at, row);
                } else {
                    const size_t e = sheaf_type_size(s->type);
                    st = sheaf_backend_tensor_get_2d(s, out, at, e, row / e, s->nb[0], e);
                }
                out += row;
            }
        }
    }
    return st;
}

/* Every rank's slices, in member order, on every rank. *blocks owned by the caller. */
static enum sheaf_status gather_slices(struct meta_device *dev, const struct target *at,
                                       const char *name, char **blocks) {
    *blocks = NULL;
    const int n_ranks = sheaf_world_size();
    size_t total = 0, mine = 0, *sizes = calloc((size_t)n_ranks, sizeof *sizes);
    for (int j = 0; sizes && j < dev->n_members; j++) {
        const size_t n = slice_bytes(at, j);
        sizes[dev->member_rank[j]] += n;
        total += n;
    }
    if (sizes) mine = sizes[sheaf_world_rank()];
    char *all = malloc(total ? total : 1), *own = malloc(mine ? mine : 1);
    enum sheaf_status st = SHEAF_STATUS_SUCCESS;
    if (!sizes || !all || !own)
        st = sheaf_set_error(SHEAF_STATUS_ALLOC_FAILED, "get '%s': out of memory", name);
    size_t packed = 0;
    for (int i = 0; i < dev->n_local && !st; i++) {
        st = pack_slice(at->record->slices[i], own + packed);
        packed += slice_bytes(at, dev->local[i]);
    }
    if (!st) st = sheaf_world_all_gather_v(own, all, sizes, name);
    free(own);
    free(sizes);
    if (st) {
        free(all);
    } else {
        *blocks = all;
    }
    return st;
}

static enum sheaf_status get_mirrored(struct meta_device *dev, const struct target *at,
                                      const char *name, void *data, size_t offset, size_t size) {
    enum sheaf_status st = SHEAF_STATUS_SUCCESS;
    if (dev->n_local) {
        const struct sheaf_tensor *s = at->record->slices[0];
        if (sheaf_is_contiguous(s)) {
            st = sheaf_backend_tensor_get(s, data, offset, size);
        } else {
            char *whole = malloc(slice_bytes(at, dev->local[0]));
            if (!whole)
                return sheaf_set_error(SHEAF_STATUS_ALLOC_FAILED, "get '%s': out of memory", name);
            st = pack_slice(s, whole);
            if (!st) memcpy(data, whole + offset, size);
            free(whole);
        }
    }
    if (!st && !dev->everywhere) st = sheaf_world_broadcast(data, size, dev->member_rank[0], name);
    return st;
}

static enum sheaf_status get_tensor(sheaf_backend_buffer_t buffer, const struct sheaf_tensor *t,
                                    void *data, size_t offset, size_t size) {
    struct meta_device *dev = ((struct meta_buffer *)buffer->context)->dev;
    struct target at = {0};
    enum sheaf_status st = resolve(t, "get tensor", &at);
    if (st) return st;
    offset += at.offset;
    const enum sheaf_split_axis axis = at.record->state->axis;
    if (axis == SHEAF_SPLIT_AXIS_MIRRORED)
        return get_mirrored(dev, &at, t->name, data, offset, size);
    if (axis == SHEAF_SPLIT_AXIS_PARTIAL && at.type != SHEAF_TYPE_F32) {
        return sheaf_set_error(SHEAF_STATUS_UNSUPPORTED, "get tensor '%s': partial sums of type %s",
                               t->name, sheaf_type_name(at.type));
    }
    char *blocks = NULL;
    const size_t n_bytes =
        sheaf_row_size(at.type, at.ne[0]) * (size_t)(at.ne[1] * at.ne[2] * at.ne[3]);
    char *whole = calloc(1, n_bytes ? n_bytes : 1);
    if (!whole)
        return sheaf_set_error(SHEAF_STATUS_ALLOC_FAILED, "get '%s': out of memory", t->name);
    st = gather_slices(dev, &at, t->name, &blocks);
    size_t done = 0;
    for (int j = 0; j < dev->n_members && !st; j++) {
        if (axis == SHEAF_SPLIT_AXIS_PARTIAL) { /* the sum, in member order */
            float *sum = (float *)(void *)whole;
            const float *addend = (const float *)(const void *)(blocks + done);
            for (size_t i = 0; i < n_bytes / sizeof *sum; i++) sum[i] += addend[i];
        } else {
            struct scatter s = {whole, blocks + done};
            st = for_pieces(at.record->state, j, at.type, at.ne, NULL, scatter_piece, &s);
        }
        done += slice_bytes(&at, j);
    }
    if (!st) memcpy(data, whole + offset, size);
    free(whole);
    free(blocks);
    return st;
}

/* ---- whole buffers ---- */

static void free_buffer(sheaf_backend_buffer_t buffer) {
    struct meta_buffer *mb = buffer->context;
    for (size_t i = 0; i < mb->n_sets; i++) free_set(mb->sets[i], mb->dev->n_local);
    for (int i = 0; mb->bulk && i < mb->dev->n_local; i++) sheaf_backend_buffer_free(mb->bulk[i]);
    mb->dev->static_bytes -= mb->static_bytes;
    if (mb->base) munmap(mb->base, mb->reserved);
    free(mb->sets);
    free(mb->bulk);
    free(mb);
}

static void *get_base(sheaf_backend_buffer_t buffer) {
    return ((struct meta_buffer *)buffer->context)->base;
}

static enum sheaf_status clear(sheaf_backend_buffer_t buffer, uint8_t value) {
    struct meta_buffer *mb = buffer->context;
    enum sheaf_status st = SHEAF_STATUS_SUCCESS;
    for (int i = 0; i < mb->dev->n_local && !st; i++) {
        if (mb->bulk[i]) st = sheaf_backend_buffer_clear(mb->bulk[i], value);
        for (size_t j = 0; j < mb->n_sets && !st; j++) {
            if (mb->sets[j]->buffers[i])
                st = sheaf_backend_buffer_clear(mb->sets[j]->buffers[i], value);
        }
    }
    return st;
}

/* A new graph is placed: the records of inputs are free for it, with their memory. */
static enum sheaf_status reset(sheaf_backend_buffer_t buffer) {
    struct meta_buffer *mb = buffer->context;
    if (buffer->usage != SHEAF_BACKEND_BUFFER_USAGE_COMPUTE) return SHEAF_STATUS_SUCCESS;
    for (size_t i = 0; i < mb->n_sets; i++) mb->sets[i]->live = false;
    return SHEAF_STATUS_SUCCESS;
}

static const struct sheaf_backend_buffer_i buffer_iface = {
    .free_buffer = free_buffer,
    .get_base = get_base,
    .init_tensor = init_tensor,
    .memset_tensor = memset_tensor,
    .set_tensor = set_tensor,
    .get_tensor = get_tensor,
    .set_tensor_from = set_tensor_from,
    .clear = clear,
    .reset = reset,
};

bool sheaf__meta_is_buffer(sheaf_backend_buffer_t buffer) { return buffer->iface == &buffer_iface; }

static const char *buft_name(sheaf_backend_buffer_type_t buft) {
    return ((struct meta_device *)buft->context)->name;
}

static enum sheaf_status alloc_buffer(sheaf_backend_buffer_type_t buft, size_t size,
                                      sheaf_backend_buffer_t *out) {
    struct meta_device *dev = buft->context;
    struct meta_buffer *mb = calloc(1, sizeof *mb);
    if (!mb) goto fail;
    mb->dev = dev;
    mb->reserved = sheaf__align_up(size ? size : 1, 4096);
    mb->bulk = calloc((size_t)dev->n_local + 1, sizeof(sheaf_backend_buffer_t));
    void *base =
        mmap(NULL, mb->reserved, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    mb->base = base == MAP_FAILED ? NULL : base;
    if (!mb->bulk || !mb->base) goto fail;
    *out = sheaf_backend_buffer_init(buft, &buffer_iface, mb, size);
    if (*out) return SHEAF_STATUS_SUCCESS;
fail:
    if (mb) {
        if (mb->base) munmap(mb->base, mb->reserved);
        free(mb->bulk);
        free(mb);
    }
    return sheaf_set_error(SHEAF_STATUS_ALLOC_FAILED,
                           "meta buffer: cannot reserve %zu bytes of addresses", size);
}

static size_t get_alignment(sheaf_backend_buffer_type_t buft) {
    (void)buft;
    return 128;
}

/* All tensors at once: one buffer a member, slices packed in order. */
static enum sheaf_status alloc_tensors(sheaf_backend_buffer_type_t buft,
                                       struct sheaf_tensor **tensors, size_t n,
                                       sheaf_backend_buffer_t *out) {
    struct meta_device *dev = buft->context;
    size_t addresses = 0;
    for (size_t i = 0; i < n; i++) {
        if (!sheaf__add_size(addresses,
                             sheaf__align_up(sheaf_nbytes(tensors[i]), get_alignment(buft)),
                             &addresses)) {
            return sheaf_set_error(SHEAF_STATUS_ALLOC_FAILED,
                                   "meta buffer: the tensors' sizes overflow");
        }
    }
    sheaf_backend_buffer_t buffer;
    enum sheaf_status st = alloc_buffer(buft, addresses, &buffer);
    if (st) return st;
    struct meta_buffer *mb = buffer->context;
    char *addr = mb->base;
    for (size_t i = 0; i < n && !st; i++) {
        struct slice_set *set = new_set(mb);
        st = set ? ask_state(dev, tensors[i], set) : SHEAF_STATUS_ALLOC_FAILED;
        if (st) break;
        shape_slices(dev, set, set->state, tensors[i]);
        tensors[i]->buffer = buffer;
        tensors[i]->data = addr;
        tensors[i]->extra = &set->record;
        addr += sheaf__align_up(sheaf_nbytes(tensors[i]), get_alignment(buft));
    }
    for (int m = 0; m < dev->n_local && !st; m++) {
        sheaf_backend_buffer_type_t mbuft = member_buft(dev, m);
        const size_t align = sheaf_backend_buft_get_alignment(mbuft);
        size_t need = align;
        for (size_t i = 0; i < n; i++) {
            const struct sheaf_tensor *s = &mb->sets[i]->tensors[m];
            need += sheaf__align_up(sheaf_backend_buft_get_alloc_size(mbuft, s), align);
            mb->static_bytes += sheaf_nbytes(s);
        }
        st = sheaf_backend_buft_alloc_buffer(mbuft, need, &mb->bulk[m]);
        if (st) break;
        struct sheaf_tallocr talloc;
        sheaf_tallocr_init(&talloc, mb->bulk[m]);
        for (size_t i = 0; i < n && !st; i++)
            st = sheaf_tallocr_alloc(&talloc, &mb->sets[i]->tensors[m]);
    }
    dev->static_bytes += mb->static_bytes;
    if (st) {
        for (size_t i = 0; i < n; i++)
            tensors[i]->buffer = NULL, tensors[i]->data = NULL, tensors[i]->extra = NULL;
        sheaf_backend_buffer_free(buffer);
        return st;
    }
    *out = buffer;
    return st;
}

const struct sheaf_backend_buffer_type_i sheaf__meta_buft_iface = {
    .get_name = buft_name,
    .alloc_buffer = alloc_buffer,
    .get_alignment = get_alignment,
    .alloc_tensors = alloc_tensors,
};

/* ---- leaves of graphs ---- */

bool sheaf__meta_leaf_is_input(const struct sheaf_tensor *leaf) {
    return leaf->buffer && leaf->buffer->usage == SHEAF_BACKEND_BUFFER_USAGE_COMPUTE;
}

struct meta_tensor *sheaf__meta_leaf(const struct meta_device *dev,
                                     const struct sheaf_tensor *leaf) {
    if (!leaf->buffer || leaf->buffer->buft != &dev->buft || !leaf->extra) {
        sheaf_set_error(SHEAF_STATUS_INVALID,
                        "graph: '%s' is not in a buffer of the meta device %s; allocate it there "
                        "before the graph is "
                        "computed",
                        leaf->name, dev->name);
        return NULL;
    }
    if (leaf->op != SHEAF_OP_NONE) { /* an earlier result, in the graph of a scheduler split */
        struct meta_tensor *record = leaf->extra;
        if (record->carried) return record;
        sheaf_set_error(SHEAF_STATUS_INVALID,
                        "graph: '%s', computed by an earlier graph, was not kept for this one",
                        leaf->name);
        return NULL;
    }
    if (sheaf__meta_leaf_is_input(leaf)) {
        const struct slice_set *set = leaf->extra; /* the record is its first member */
        const struct meta_buffer *mb = leaf->buffer->context;
        if (!set->live || set->offset != (size_t)((char *)leaf->data - mb->base) ||
            set->size != sheaf_nbytes(leaf)) {
            sheaf_set_error(SHEAF_STATUS_INVALID,
                            "graph: the memory of input '%s' was given to another graph since; "
                            "allocate this graph again",
                            leaf->name);
            return NULL;
        }
    }
    return leaf->extra;
}
