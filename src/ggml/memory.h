/* The memory of ggml's buffers on rank 0. A buffer is a range of addresses with pages of its own,
 * the shadow, which holds what the program has written and the results that it may read.
 *
 * A region is a weight or a cache: a tensor in the buffer that owns its memory. Until a graph uses
 * it, its bytes are in the shadow or in a file. From then on they are in an object of the engine,
 * on all ranks. Results of graphs, and leaves in compute buffers, are never objects: they travel
 * between the shadow and the ranks with each run. */
#ifndef SHEAF_GGML_MEMORY_H
#define SHEAF_GGML_MEMORY_H

#include "ggml/engine.h"
#include "ggml/file.h"
#include "ggml/host.h"

enum { GG_NO_OBJECT = -1 };

struct gg_region {
    size_t offset, bytes; /* in the buffer */
    enum sheaf_type type;
    int64_t ne[SHEAF_MAX_DIMS];
    int64_t object; /* GG_NO_OBJECT until a graph uses it */
    bool bound;     /* the object has memory and data */
    bool written;   /* it may have bytes that are not 0 */
    const struct gg_file *file; /* the bytes are there; NULL: in the shadow */
    uint64_t file_offset;
    char name[GG_MAX_NAME];
};

struct gg_memory {
    char *base;
    size_t size;
    uint64_t number; /* by which the ranks know the buffer */
    size_t device;   /* whose it is */
    struct gg_buffer *buffer; /* ggml's */
    struct gg_memory *next;   /* of all that the driver has */
    struct gg_region **regions;
    size_t n_regions, cap_regions;
    uint32_t *index; /* [n_index] 1 + region, by offset; 0: free */
    size_t n_index;
    uint8_t cleared; /* what the buffer was filled with last */
    bool written;    /* bytes that no region had were written since */
};

/* The numbers of objects. Programs name objects by number, so one is used again when the object and
 * the programs that use it are gone on all ranks, and not before. */
struct gg_numbers {
    uint32_t *unused; /* [n_unused] */
    size_t n_unused, cap;
    uint32_t n; /* numbers that were ever given */
};
/* Gives the region a number, if it has none. False: out of memory. */
bool gg_number_take(struct gg_numbers *all, struct gg_region *r);
/* The region has no object then. */
void gg_number_return(struct gg_numbers *all, struct gg_region *r);

struct gg_memory *gg_memory_new(size_t size, uint64_t number, size_t device);
void gg_memory_free(struct gg_memory *m);

/* The region of a tensor without view_src; a new one if there is none at its address. NULL: out of
 * memory, or its type is unknown here. *other: a region at this address of another type or shape,
 * or one that lies over it, whose bytes are not in the shadow, or may not be; they must be brought
 * there first, and NULL is returned too. */
struct gg_region *gg_region_of(struct gg_memory *m, const struct gg_host *host,
                               const struct gg_tensor *root, struct gg_region **other);
struct gg_region *gg_region_find(const struct gg_memory *m, const struct gg_tensor *root);
/* A region that has all of these bytes of the buffer; NULL: none. */
struct gg_region *gg_region_around(const struct gg_memory *m, size_t offset, size_t bytes);
/* A region other than `but` that has some of these bytes, and not in the shadow; NULL: none. */
struct gg_region *gg_region_over(const struct gg_memory *m, size_t offset, size_t bytes,
                                 const struct gg_region *but);
/* Are the region's bytes on the ranks or in a file? */
bool gg_region_is_away(const struct gg_region *r);

/* Bytes of a tensor without strides; 0: its type is unknown here. */
size_t gg_bytes_of(const struct gg_host *host, const struct gg_tensor *t);
/* Bytes for which the ranks have no memory yet, but need it when graphs use all of the buffer. */
size_t gg_unbound_bytes(const struct gg_host *host, const struct gg_memory *m);

/* Is the root of t such a weight or cache? One with strides, the copy of a view, is in the shadow. */
bool gg_is_static(const struct gg_host *host, const struct gg_tensor *t);
/* Gives the shadow of a region back to the system. */
void gg_shadow_drop(const struct gg_memory *m, size_t offset, size_t bytes);

#endif
