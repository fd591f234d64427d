/* What the files of meta buffers share: buffer.c, slices.c, transfer.c, load.c. */
#ifndef SHEAF_META_BUFFER_H
#define SHEAF_META_BUFFER_H

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
    size_t static_bytes, input_bytes;
};

/* ---- slices.c ---- */
/* Appends an empty set to the buffer, which owns it. NULL with an error text: out of memory. */
struct slice_set *sheaf__meta_new_set(struct meta_buffer *mb);
void sheaf__meta_free_set(struct slice_set *set, int n_local); /* accepts NULL */
/* set->state: what the user's function gives for the tensor, checked. */
enum sheaf_status sheaf__meta_ask_state(struct meta_device *dev, const struct sheaf_tensor *t,
                                        struct slice_set *set);
/* Shapes set->tensors as the slices of `t` under `state`; no memory yet. */
void sheaf__meta_shape_slices(const struct meta_device *dev, struct slice_set *set,
                              const struct sheaf_split_state *state, const struct sheaf_tensor *t);
/* Weights and caches, which only this library reaches: devices may keep them in an order of their own. */
void sheaf__meta_own_slices(const struct meta_device *dev, struct slice_set *set);
sheaf_backend_buffer_type_t sheaf__meta_member_buft(const struct meta_device *dev, int local);
/* Gives the tensor its slices, with memory of their own. */
enum sheaf_status sheaf__meta_init_tensor(sheaf_backend_buffer_t buffer, struct sheaf_tensor *t);

/* ---- transfer.c ---- */
struct meta_piece {             /* `n` bytes repeated `outer` times */
    size_t full, full_stride;   /* where in the whole tensor */
    size_t local, local_stride; /* where in the slice */
    size_t n, outer;
};
typedef enum sheaf_status (*meta_piece_fn)(void *user, const struct meta_piece *piece);
/* Calls fn for every piece of member `m`'s slice of a tensor of this type and shape, in the order
 * in which sheaf_backend_tensor_set_from asks for them. */
enum sheaf_status sheaf__meta_for_pieces(const struct sheaf_split_state *state, int m,
                                         enum sheaf_type type, const int64_t ne[SHEAF_MAX_DIMS],
                                         meta_piece_fn fn, void *user);

/* ---- transfer.c: as in struct sheaf_backend_buffer_i ---- */
enum sheaf_status sheaf__meta_set_tensor(sheaf_backend_buffer_t buffer, struct sheaf_tensor *t,
                                         const void *data, size_t offset, size_t size);
enum sheaf_status sheaf__meta_memset_tensor(sheaf_backend_buffer_t buffer, struct sheaf_tensor *t,
                                            uint8_t value, size_t offset, size_t size);
enum sheaf_status sheaf__meta_set_tensor_from(sheaf_backend_buffer_t buffer, struct sheaf_tensor *t,
                                              sheaf_tensor_read_fn read, void *user);
enum sheaf_status sheaf__meta_get_tensor(sheaf_backend_buffer_t buffer,
                                         const struct sheaf_tensor *t, void *data, size_t offset,
                                         size_t size);

#endif
