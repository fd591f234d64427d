/* A graph of the library in the making as a graph of ggml, shared by member_build.c, which makes
 * the descriptors, member_graph.c, which gives a whole graph memory and keeps it, and
 * member_supports.c, which asks the device about a single node and needs no memory. */
#ifndef SHEAF_GGML_MEMBER_BUILD_H
#define SHEAF_GGML_MEMBER_BUILD_H

#include "ggml/member.h"

enum { GG_CHUNK = 64 };

/* A descriptor made here. */
struct gg_item {
    struct gg_tensor gg;
    const struct sheaf_tensor *from; /* the tensor whose memory it has; NULL: scratch or a view */
    const float *values;             /* to be written once; NULL: none */
};
struct gg_chunk {
    struct gg_chunk *next;
    size_t n;
    struct gg_item items[GG_CHUNK];
};

/* A tensor of ours as it was. */
struct gg_seen {
    const struct sheaf_tensor *tensor;
    struct gg_tensor *gg; /* NULL: none */
    uint64_t serial;      /* of the buffer */
    struct sheaf_tensor copy;
};

struct gg_member_graph {
    struct gg_member *m;
    struct gg_chunk *first, *last;
    size_t n_items;
    struct gg_seen *seen; /* the nodes, then what they read */
    size_t n_seen, cap_seen;
    int n_nodes;
    bool has_lowered;
    void *ctx;
    struct gg_cgraph *graph;
    struct gg_buffer *scratch;
};
/* Frees the descriptors. */
void gg_items_free(struct gg_member_graph *g);

/* ---- building ---- */

struct gg_build_slot {
    const struct sheaf_tensor *key;
    struct gg_tensor *gg;
};
struct gg_build {
    struct gg_member_graph *g;
    const struct gg_library *lib;
    struct gg_build_slot *slots; /* open addressed */
    size_t n_slots, n_used;
    struct gg_tensor **nodes; /* of ggml, in order */
    size_t n_nodes, cap_nodes;
    struct gg_lowered **lowered;
    size_t n_lowered, cap_lowered;
    bool with_memory;          /* for a graph; false: for a question */
    bool no_memory;            /* out of memory */
    bool lowers;               /* the nodes are those of a lowered one */
    enum sheaf_status refused; /* with its text */
};
void gg_build_free(struct gg_build *b);

/* Adds the nodes of ggml that a node of the library becomes. False: ggml has none, or b->no_memory,
 * or b->refused. */
bool gg_build_node(struct gg_build *b, const struct sheaf_tensor *node);
/* The descriptor that stands for t; NULL: none. */
struct gg_tensor *gg_build_find(const struct gg_build *b, const struct sheaf_tensor *t);
/* Notes t as it is, for graphs with memory. */
void gg_build_remember(struct gg_build *b, const struct sheaf_tensor *t);
/* Does the device say that it computes this node of ggml? */
static inline bool gg_build_runs(const struct gg_build *b, const struct gg_tensor *gg) {
    return b->lib->dev_supports_op(b->g->m->dev, gg);
}
/* The serial number of the buffer that t lies in; 0: none of ggml's. */
uint64_t gg_serial_of(const struct sheaf_tensor *t);

#endif
