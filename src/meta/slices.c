/* Slices of tensors in meta buffers: their shapes and memory.
 *
 * Tensors of weights and caches get one slice per local member, sized by the split state that the
 * user's function gives. Leaves of compute buffers (inputs) are mirrored. Everything else in a
 * compute buffer has no memory here: the programs that compute it hold its slices. */
#include <stdlib.h>

#include "backend/optional.h"
#include "base/array.h"
#include "meta/buffer.h"
#include "tensor/access.h"

void sheaf__meta_free_set(struct slice_set *set, int n_local) {
    if (!set) return;
    for (int i = 0; set->buffers && i < n_local; i++) sheaf_backend_buffer_free(set->buffers[i]);
    sheaf_split_state_free(set->state);
    free(set->record.slices);
    free(set->tensors);
    free(set->buffers);
    free(set);
}

struct slice_set *sheaf__meta_new_set(struct meta_buffer *mb) {
    const size_t n = (size_t)mb->dev->n_local + 1; /* + 1: malloc(0) may be NULL */
    struct slice_set *set = calloc(1, sizeof *set);
    if (set) {
        set->record.slices = calloc(n, sizeof *set->record.slices);
        set->tensors = calloc(n, sizeof *set->tensors);
        set->buffers = calloc(n, sizeof(sheaf_backend_buffer_t));
    }
    const bool room = sheaf__grow(&mb->sets, &mb->cap_sets, mb->n_sets + 1, sizeof set);
    if (!set || !set->record.slices || !set->tensors || !set->buffers || !room) {
        sheaf__meta_free_set(set, 0);
        sheaf_set_error(SHEAF_STATUS_ALLOC_FAILED, "meta buffer: out of memory");
        return NULL;
    }
    set->record.serial = ++mb->dev->n_records;
    mb->sets[mb->n_sets++] = set;
    return set;
}

void sheaf__meta_shape_slices(const struct meta_device *dev, struct slice_set *set,
                              const struct sheaf_split_state *state, const struct sheaf_tensor *t) {
    set->record.state = state;
    set->live = true;
    for (int i = 0; i < dev->n_local; i++) {
        struct sheaf_tensor *s = &set->tensors[i];
        memset(s, 0, sizeof *s);
        s->type = t->type;
        s->flags = t->flags;
        if (dev->n_members > 1 && state->axis == SHEAF_SPLIT_AXIS_MIRRORED)
            s->flags &= ~SHEAF_BACKEND_TENSOR_FACTOR; /* plans may take slices of it */
        sheaf_split_state_local_ne(state, t->ne, dev->local[i], s->ne);
        sheaf__set_dense_strides(s);
        memcpy(s->name, t->name, sizeof s->name);
        set->record.slices[i] = s;
    }
}

void sheaf__meta_own_slices(const struct meta_device *dev, struct slice_set *set) {
    for (int i = 0; i < dev->n_local; i++) set->tensors[i].flags |= SHEAF__TENSOR_PRIVATE;
}

sheaf_backend_buffer_type_t sheaf__meta_member_buft(const struct meta_device *dev, int local) {
    return sheaf_backend_dev_buffer_type(dev->members[dev->local[local]]);
}

size_t sheaf__meta_slice_bytes(const struct sheaf_split_state *state, int member,
                               enum sheaf_type type, const int64_t ne[SHEAF_MAX_DIMS]) {
    int64_t local[SHEAF_MAX_DIMS];
    sheaf_split_state_local_ne(state, ne, member, local);
    return sheaf_row_size(type, local[0]) * (size_t)(local[1] * local[2] * local[3]);
}

enum sheaf_status sheaf__meta_place_slice(const struct meta_device *dev, int local,
                                          enum sheaf_backend_buffer_usage usage,
                                          sheaf_backend_buffer_t *buffer,
                                          struct sheaf_tensor *slice) {
    sheaf_backend_buffer_type_t buft = sheaf__meta_member_buft(dev, local);
    const size_t need = sheaf_backend_buft_get_alloc_size(buft, slice);
    if (!*buffer || sheaf_backend_buffer_get_size(*buffer) < need) {
        sheaf_backend_buffer_free(*buffer);
        *buffer = NULL;
        const enum sheaf_status st = sheaf_backend_buft_alloc_buffer(buft, need, buffer);
        if (st) return st;
        sheaf_backend_buffer_set_usage(*buffer, usage);
    }
    return sheaf_backend_tensor_alloc(*buffer, slice, sheaf_backend_buffer_get_base(*buffer));
}

/* A buffer of its own for every slice of the set. */
static enum sheaf_status alloc_slices(const struct meta_device *dev, struct slice_set *set,
                                      enum sheaf_backend_buffer_usage usage) {
    enum sheaf_status st = SHEAF_STATUS_SUCCESS;
    for (int i = 0; i < dev->n_local && !st; i++)
        st = sheaf__meta_place_slice(dev, i, usage, &set->buffers[i], &set->tensors[i]);
    return st;
}

/* Of the slices' own buffers. */
static size_t bytes_of(const struct meta_device *dev, const struct slice_set *set) {
    size_t bytes = 0;
    for (int i = 0; i < dev->n_local; i++)
        if (set->buffers[i]) bytes += sheaf_backend_buffer_get_size(set->buffers[i]);
    return bytes;
}

/* ---- placing tensors ---- */

enum sheaf_status sheaf__meta_ask_state(struct meta_device *dev, const struct sheaf_tensor *t,
                                        struct slice_set *set) {
    enum sheaf_status st = dev->get_split_state(t, dev->user, &set->state);
    if (st) return st;
    if (!set->state)
        return sheaf_set_error(SHEAF_STATUS_INVALID,
                               "split of '%s': the caller's function gave no state; give MIRRORED "
                               "if every member is to hold all of it",
                               t->name);
    if (set->state->n_members != dev->n_members)
        return sheaf_set_error(
            SHEAF_STATUS_INVALID,
            "split of '%s': the caller's function gave a state for %d members, the device has %d",
            t->name, set->state->n_members, dev->n_members);
    return sheaf_split_state_check(set->state, t);
}

/* A weight or cache outside alloc_tensors: memory of its own. */
static enum sheaf_status place_static(struct meta_buffer *mb, struct sheaf_tensor *t) {
    struct slice_set *set = sheaf__meta_new_set(mb);
    if (!set) return SHEAF_STATUS_ALLOC_FAILED;
    enum sheaf_status st = sheaf__meta_ask_state(mb->dev, t, set);
    if (st) return st;
    sheaf__meta_shape_slices(mb->dev, set, set->state, t);
    sheaf__meta_own_slices(mb->dev, set);
    st = alloc_slices(mb->dev, set, SHEAF_BACKEND_BUFFER_USAGE_ANY);
    if (st) return st;
    for (int i = 0; i < mb->dev->n_local; i++) {
        mb->static_bytes += sheaf_nbytes(&set->tensors[i]);
        mb->dev->static_bytes += sheaf_nbytes(&set->tensors[i]);
    }
    t->extra = &set->record;
    return st;
}

/* The unused one that `size` fits best: the smallest that is large enough, else the largest. So
 * inputs that each need no more than those of an earlier graph find room, in any order, and
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

/* An input at [offset, offset + size): takes over the record of the input that was there before, or
 * an unused one. Records are never freed before the buffer, so a stale tensor can be recognised. */
static enum sheaf_status place_input(struct meta_buffer *mb, struct sheaf_tensor *t) {
    const size_t offset = (size_t)((char *)t->data - mb->base), size = sheaf_nbytes(t);
    struct slice_set *set = NULL;
    /* an empty one may lie where another begins */
    for (size_t i = 0; i < mb->n_sets && size; i++) {
        struct slice_set *s = mb->sets[i];
        if (!s->live || !s->size) continue;
        if (s->offset == offset && !set) {
            set = s;
        } else if (s->offset < offset + size && offset < s->offset + s->size) {
            s->live = false;
        }
    }
    if (!set) set = best_spare(mb, size);
    if (!set) set = sheaf__meta_new_set(mb);
    if (!set) return SHEAF_STATUS_ALLOC_FAILED;
    set->offset = offset;
    set->size = size;
    if (size > set->capacity) set->capacity = size;
    sheaf__meta_shape_slices(mb->dev, set, mb->dev->mirrored, t);
    t->extra = &set->record;
    const size_t before = bytes_of(mb->dev, set);
    /* a device that keeps descriptors of static tensors would keep one for each shape */
    const enum sheaf_status st = alloc_slices(mb->dev, set, SHEAF_BACKEND_BUFFER_USAGE_COMPUTE);
    const size_t grown = bytes_of(mb->dev, set) - before; /* also where it shrank, modulo 2^n */
    mb->input_bytes += grown;
    mb->dev->input_bytes += grown;
    return st;
}

enum sheaf_status sheaf__meta_init_tensor(sheaf_backend_buffer_t buffer, struct sheaf_tensor *t) {
    struct meta_buffer *mb = buffer->context;
    t->extra = NULL;
    if (t->view_src) return SHEAF_STATUS_SUCCESS;
    if (buffer->usage != SHEAF_BACKEND_BUFFER_USAGE_COMPUTE) return place_static(mb, t);
    return t->op == SHEAF_OP_NONE ? place_input(mb, t) : SHEAF_STATUS_SUCCESS;
}
