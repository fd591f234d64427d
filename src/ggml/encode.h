/* A graph of ggml, or the part of one that its scheduler gives to this device, as the bytes of
 * wire.h: the nodes that are to be computed, the leaves that they read, and the results that are
 * read outside of the part.
 *
 * A graph of ggml does not say which results those are. They are found so:
 *   - a node with more uses than this part has: the use counts are those of the whole graph;
 *   - a node that has no use at all, or the flag OUTPUT;
 *   - a node in memory that outlives the graph;
 *   - the last node with its operands, in a part without uid, which is no scheduler split: a
 *     callback or a test looks at them.
 *
 * A norm over all heads becomes several nodes if the device has several members (encode_norms.c).
 *
 * Offsets of views of weights and caches are no part of the bytes: graphs that differ in nothing
 * else are one program. */
#ifndef SHEAF_GGML_ENCODE_H
#define SHEAF_GGML_ENCODE_H

#include "ggml/memory.h"

struct gg_slot { /* of the table of tensors met */
    const struct gg_tensor *tensor;
    uint32_t record; /* 1 + record; 0: none yet */
    uint32_t uses;   /* by the nodes of this part */
    uint32_t views;  /* of these: by views with strides and an offset */
    bool output;
    bool over_heads; /* a norm of what is cut by heads, over all of them */
};

/* A record, for those that come after it. */
struct gg_made {
    struct gg_record record;
    const struct gg_tensor *tensor;
    uint32_t owner; /* the record that owns the memory */
    bool unflat;    /* a flat result in the shape that ggml gives it */
};

struct gg_encoder {
    const struct gg_host *host;
    struct gg_bytes graph, outputs; /* results */
    uint64_t *offsets;              /* [n_offsets] of the views that move (wire.h) */
    size_t n_offsets, cap_offsets;
    struct gg_made *made; /* [n_made] a record each */
    size_t n_made, cap_made;
    const struct gg_tensor **inputs;  /* [n_inputs] leaves, in the order of their records */
    const struct gg_tensor **results; /* [n_results] tensors that others read */
    size_t n_inputs, cap_inputs, n_results, cap_results;
    struct gg_region **unbound; /* [n_unbound] regions that are used for the first time */
    struct gg_memory **unbound_in;
    size_t n_unbound, cap_unbound, cap_unbound_in;
    struct gg_slot *slots;
    size_t n_slots, n_used;
    /* a region whose object must be given back before the graph can be encoded; NULL: none */
    struct gg_region *stale;
    struct gg_memory *stale_in;
    bool shares_norms; /* members add their parts of norms over all heads, and gather no operand */
    struct gg_numbers *numbers;                                   /* of objects; the caller's */
    struct gg_memory *(*memory_of)(const struct gg_tensor *root); /* NULL: not of this plugin */
};

/* INVALID or UNSUPPORTED with a text. If e->stale is set, give it back and encode again. */
enum sheaf_status gg_encode(struct gg_encoder *e, const struct gg_cgraph *graph);
void gg_encoder_free(struct gg_encoder *e);

/* The node alone, its operands as inputs, and the copy of its result where it is written over an
 * operand: in e->graph, as e->n_made records. */
enum sheaf_status gg_encode_question(struct gg_encoder *e, const struct gg_tensor *node);

#endif
