/* A part of a program under construction: builder.c makes nodes, steps.c what the steps of a plan
 * need. */
#ifndef SHEAF_META_BUILDER_H
#define SHEAF_META_BUILDER_H

#include "meta/meta_impl.h"

struct builder { /* of one part */
    struct meta_device *dev;
    const struct sheaf_cgraph *graph;
    struct sheaf__split_plan *plan;
    struct meta_part *part;
    int member, local; /* its number; that among this rank's members */
    size_t cap_nodes, cap_instrs;
    int n_views;    /* moving views made so far */
    int span_first; /* nodes from here on are not in an instruction yet */
    enum sheaf_status status;
    struct sheaf_tensor no_tensor; /* returned when memory is out */
    struct meta_instr no_instr;
    const int *last_read; /* [plan values] last step that reads the value, -1 if none */
    /* SHEAF__TAKES_SLICE_PROC of the member's device; NULL: it takes all */
    bool (*takes)(sheaf_backend_dev_t, const struct sheaf_tensor *);
    uint8_t *refused;  /* [graph nodes] 1 + local: the device does not take the member's slice */
    uint64_t n_copies; /* conversions that it does not take, which are INSTR_COPY */
};

/* ALLOC_FAILED with its text. */
enum sheaf_status sheaf__meta_no_memory(void);

/* ---- builder.c ---- */
/* A descriptor that lives as long as the part. NULL, with a text: out of memory. */
struct sheaf_tensor *sheaf__meta_part_tensor(struct meta_part *part, enum sheaf_type type);

/* ---- program.c ---- */
void sheaf__meta_part_free(struct meta_part *part); /* what it points to */
/* Of the values of a plan: is it a leaf's, and the last step that reads it (-1: none does). Freed
 * by sheaf__meta_free_uses, also after a failure. */
struct meta_uses {
    bool *leaf;     /* [plan values + 1] */
    int *last_read; /* [plan values + 1] */
};
enum sheaf_status sheaf__meta_find_uses(const struct sheaf__split_plan *plan,
                                        struct meta_uses *uses);
void sheaf__meta_free_uses(struct meta_uses *uses);
/* The local graph and the instructions of b->part, whose values of leaves are set. */
enum sheaf_status sheaf__meta_build_part(struct builder *b);

/* ---- builder.c: failures go to b->status ---- */
struct sheaf_tensor *sheaf__meta_descriptor(struct builder *b, enum sheaf_type type,
                                            const char *name);
void sheaf__meta_shape_dense(struct sheaf_tensor *t, const int64_t ne[SHEAF_MAX_DIMS]);
/* Adds the node to the local graph; returns it. If it shows memory of a descriptor that moves, it
 * moves, too. */
struct sheaf_tensor *sheaf__meta_append(struct builder *b, struct sheaf_tensor *t);
struct meta_instr *sheaf__meta_new_instr(struct builder *b);
/* Ends the running span; an instruction for it only if it has something to compute. */
void sheaf__meta_end_span(struct builder *b);
/* A result of shape ne that something other than the device writes, placed after `after` was
 * computed. */
struct sheaf_tensor *sheaf__meta_placeholder(struct builder *b, enum sheaf_type type,
                                             const int64_t ne[SHEAF_MAX_DIMS],
                                             struct sheaf_tensor *after, const char *name);
/* A view of `of`: shape ne, its strides kept, `offset` bytes in. */
struct sheaf_tensor *sheaf__meta_view_of(struct builder *b, struct sheaf_tensor *of,
                                         const int64_t ne[SHEAF_MAX_DIMS], size_t offset);
/* Does the member's device compute the node? */
bool sheaf__meta_is_taken(const struct builder *b, const struct sheaf_tensor *node);
/* Copies for conversions: by the device, or through the host if the device does not take them. */
void sheaf__meta_copy_node(struct builder *b, struct sheaf_tensor *from, struct sheaf_tensor *to);
struct sheaf_tensor *sheaf__meta_dense_copy(struct builder *b, struct sheaf_tensor *t);
/* The tensor itself if it is contiguous, else a dense copy. */
struct sheaf_tensor *sheaf__meta_dense(struct builder *b, struct sheaf_tensor *t);
/* An instruction that fills it with zeros. */
void sheaf__meta_zero(struct builder *b, struct sheaf_tensor *t);

/* ---- steps.c ---- */
/* Nodes and instructions for all steps of the plan. */
enum sheaf_status sheaf__meta_build_steps(struct builder *b);
/* Must every member hold the same bytes after this step? Empty results and views have none of their
 * own. */
bool sheaf__meta_is_checked(const struct sheaf__split_plan *plan,
                            const struct sheaf__split_step *step);

#endif
