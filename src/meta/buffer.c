/* Meta buffers: they reserve addresses, and hold the slices of the tensors placed in them
 * (slices.c). Data go in and out through transfer.c. */
#include "meta/buffer.h"

#include <stdlib.h>
#include <sys/mman.h>

/* ---- whole buffers ---- */

static void free_buffer(sheaf_backend_buffer_t buffer) {
    struct meta_buffer *mb = buffer->context;
    sheaf__meta_weights_go(mb->dev, buffer);
    for (size_t i = 0; i < mb->n_sets; i++) sheaf__meta_free_set(mb->sets[i], mb->dev->n_local);
    for (int i = 0; mb->bulk && i < mb->dev->n_local; i++) sheaf_backend_buffer_free(mb->bulk[i]);
    mb->dev->static_bytes -= mb->static_bytes;
    mb->dev->input_bytes -= mb->input_bytes;
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

/* Devices may fetch weights before the nodes in front of them have ended (cuda/mul_mat.cu), so the
 * members' buffers say what they hold, too. */
static void set_usage(sheaf_backend_buffer_t buffer, enum sheaf_backend_buffer_usage usage) {
    struct meta_buffer *mb = buffer->context;
    for (int i = 0; i < mb->dev->n_local; i++)
        if (mb->bulk[i]) sheaf_backend_buffer_set_usage(mb->bulk[i], usage);
}

static const struct sheaf_backend_buffer_i buffer_iface = {
    .free_buffer = free_buffer,
    .get_base = get_base,
    .init_tensor = sheaf__meta_init_tensor,
    .memset_tensor = sheaf__meta_memset_tensor,
    .set_tensor = sheaf__meta_set_tensor,
    .get_tensor = sheaf__meta_get_tensor,
    .set_tensor_from = sheaf__meta_set_tensor_from,
    .clear = clear,
    .reset = reset,
    .set_usage = set_usage,
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

/* How many addresses the tensors take. */
static enum sheaf_status count_addresses(sheaf_backend_buffer_type_t buft,
                                         struct sheaf_tensor **tensors, size_t n, size_t *bytes) {
    *bytes = 0;
    for (size_t i = 0; i < n; i++) {
        const size_t one = sheaf__align_up(sheaf_nbytes(tensors[i]), get_alignment(buft));
        if (!sheaf__add_size(*bytes, one, bytes))
            return sheaf_set_error(SHEAF_STATUS_ALLOC_FAILED,
                                   "meta buffer: the tensors' sizes overflow");
    }
    return SHEAF_STATUS_SUCCESS;
}

/* Each tensor gets its addresses, its state, and the shapes of its slices. */
static enum sheaf_status place_tensors(sheaf_backend_buffer_t buffer, struct sheaf_tensor **tensors,
                                       size_t n) {
    struct meta_buffer *mb = buffer->context;
    char *addr = mb->base;
    for (size_t i = 0; i < n; i++) {
        struct slice_set *set = sheaf__meta_new_set(mb);
        if (!set) return SHEAF_STATUS_ALLOC_FAILED;
        const enum sheaf_status st = sheaf__meta_ask_state(mb->dev, tensors[i], set);
        if (st) return st;
        sheaf__meta_shape_slices(mb->dev, set, set->state, tensors[i]);
        sheaf__meta_own_slices(mb->dev, set);
        tensors[i]->buffer = buffer;
        tensors[i]->data = addr;
        tensors[i]->extra = &set->record;
        addr += sheaf__align_up(sheaf_nbytes(tensors[i]), get_alignment(buffer->buft));
    }
    return SHEAF_STATUS_SUCCESS;
}

/* Memory for all slices of a local member, packed in order. */
static enum sheaf_status place_slices(struct meta_buffer *mb, int local) {
    sheaf_backend_buffer_type_t buft = sheaf__meta_member_buft(mb->dev, local);
    const size_t align = sheaf_backend_buft_get_alignment(buft);
    size_t need = align;
    for (size_t i = 0; i < mb->n_sets; i++) {
        const struct sheaf_tensor *s = &mb->sets[i]->tensors[local];
        need += sheaf__align_up(sheaf_backend_buft_get_alloc_size(buft, s), align);
        mb->static_bytes += sheaf_nbytes(s);
    }
    enum sheaf_status st = sheaf_backend_buft_alloc_buffer(buft, need, &mb->bulk[local]);
    if (st) return st;
    struct sheaf_tallocr talloc;
    sheaf_tallocr_init(&talloc, mb->bulk[local]);
    for (size_t i = 0; i < mb->n_sets && !st; i++)
        st = sheaf_tallocr_alloc(&talloc, &mb->sets[i]->tensors[local]);
    return st;
}

/* All tensors at once: one buffer a member. */
static enum sheaf_status alloc_tensors(sheaf_backend_buffer_type_t buft,
                                       struct sheaf_tensor **tensors, size_t n,
                                       sheaf_backend_buffer_t *out) {
    struct meta_device *dev = buft->context;
    sheaf_backend_buffer_t buffer;
    size_t addresses;
    enum sheaf_status st = count_addresses(buft, tensors, n, &addresses);
    if (!st) st = alloc_buffer(buft, addresses, &buffer);
    if (st) return st;
    struct meta_buffer *mb = buffer->context;
    st = place_tensors(buffer, tensors, n);
    for (int m = 0; m < dev->n_local && !st; m++) st = place_slices(mb, m);
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
    if (!sheaf__meta_is_buffer(leaf->buffer)) {
        sheaf_set_error(SHEAF_STATUS_INVALID,
                        "graph: the graph allocator of '%s' has moved to a larger buffer since; "
                        "allocate this graph again",
                        leaf->name);
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
