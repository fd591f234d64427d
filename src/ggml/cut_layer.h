/* What cuts by names share: roles of weights and caches, the tensors of a graph by layer and role,
 * and cuts of one axis. A layer is all weights whose names share what comes before the last part
 * but one: "blk.7.".
 *
 * The names are those of GGUF files (gguf-py/gguf/constants.py) and of llama.cpp's caches. */
#ifndef SHEAF_GGML_CUT_LAYER_H
#define SHEAF_GGML_CUT_LAYER_H

#include "ggml/cut.h"

enum gg_role {
    GG_ROLE_NONE,
    /* attention; heads of delta nets, too, as far as O */
    GG_ROLE_Q,         /* rows are query heads */
    GG_ROLE_K,         /* rows are key heads */
    GG_ROLE_V,         /* rows are value heads */
    GG_ROLE_QKV,       /* all three */
    GG_ROLE_GATE,      /* rows are query heads */
    GG_ROLE_O,         /* columns are query heads; rows are cut with whole sums */
    GG_ROLE_LATENT_KV, /* rows are heads: a key and a value from the latent vector */
    GG_ROLE_LATENT_K,  /* a matrix a head, from a query to the latent cache */
    GG_ROLE_LATENT_V,  /* a matrix a head, from there to a value */
    GG_ROLE_SINKS,     /* an element a query head */
    GG_ROLE_Q_NORM,    /* of all query heads, each, or one */
    GG_ROLE_K_NORM,    /* likewise of key heads */
    GG_ROLE_CACHE_K,   /* elements of a row are key heads */
    GG_ROLE_CACHE_V,   /* elements of a row are value heads */
    /* feed-forward */
    GG_ROLE_FFN_IN,  /* rows are the inner dimension, once or twice */
    GG_ROLE_FFN_OUT, /* columns are it; rows are cut with whole sums */
    /* layers with a state */
    GG_ROLE_STATE_IN,      /* rows are all that the layer reads */
    GG_ROLE_CHANNELS,      /* rows are channels of the convolution */
    GG_ROLE_STATE_HEADS,   /* rows are heads */
    GG_ROLE_STATE_GROUPS,  /* rows are groups of heads */
    GG_ROLE_STATE_NORM,    /* rows are groups, if there are several */
    GG_ROLE_STATE_COLUMNS, /* columns are heads; on every member with whole sums */
    GG_ROLE_STATE_OUT,     /* columns are heads; rows are cut with whole sums */
    GG_ROLE_CACHE_R,       /* elements of a row are channels */
    GG_ROLE_CACHE_S,       /* elements of a row are heads */
    /* short convolutions */
    GG_ROLE_SHORT_IN,  /* rows are channels, three times */
    GG_ROLE_SHORT,     /* rows are channels */
    GG_ROLE_SHORT_OUT, /* columns are channels; rows are cut with whole sums */
    GG_ROLE_VOCABULARY /* rows are tokens */
};

struct gg_leaf {
    enum gg_role role;
    bool bias;
    char layer[GG_MAX_NAME]; /* "blk.7." */
    const char *family;      /* "_exps", "_shexp", ... or "": feed-forwards of one layer */
};

struct gg_known { /* a tensor of the graph */
    const struct gg_tensor *tensor;
    int op; /* enum sheaf_op; -1: none of ours, or it is a leaf */
    struct gg_leaf leaf;
};

struct gg_whole {
    struct gg_known *all; /* [n] in the order in which the program made them */
    size_t n;
    struct gg_leaf *unbound; /* of e->unbound */
};

void gg_leaf_of(const char *name, struct gg_leaf *l);
/* Nodes of the part, what they read, and what is in the table. False: out of memory. */
bool gg_whole_of(const struct gg_host *host, const struct gg_cgraph *graph, struct gg_whole *g);
/* NULL: the layer has none. Also one that has its cut already, or is another device's: the caches of
 * a second context follow the weights. */
const struct gg_tensor *gg_find(const struct gg_whole *g, const char *layer, enum gg_role role,
                                const char *family);
/* The op of a tensor of the graph (struct gg_known); -1 also of one that is not there. */
int gg_op_in(const struct gg_whole *g, const struct gg_tensor *t);
/* Is t the cache, or a part or another shape of it? */
bool gg_comes_from(const struct gg_tensor *t, const struct gg_tensor *cache);
/* The views and reshapes that take a product's rows apart, in the order of the graph. */
int gg_views_behind(const struct gg_whole *g, const struct gg_tensor *weight,
                    const struct gg_tensor **out, int room);

/* ---- cuts of one axis; NULL: out of memory ---- */

void gg_fill_segment(struct sheaf_split_segment *s, int n_members, int64_t units, int64_t inner,
                     const int64_t *first, const int64_t *count);
/* One segment. */
struct sheaf_split_state *gg_by_units(const struct gg_cutter *c, int axis, int64_t units,
                                      int64_t inner, const int64_t *first, const int64_t *count);
/* n rows of a matrix, or elements of its bias. */
struct sheaf_split_state *gg_by_rows(const struct gg_cutter *c, int axis, int64_t n);
/* n elements, `times` times in a row. */
struct sheaf_split_state *gg_by_inner(const struct gg_cutter *c, int axis, int64_t n, int64_t inner,
                                      int times);
/* The elements that lie together where columns of the weight are cut: a block of its type. */
int64_t gg_block_of(const struct gg_cutter *c, const struct gg_tensor *weight);
/* How many units of `inner` elements have whole blocks. */
int64_t gg_units_of_block(int64_t inner, int64_t block);
/* NULL and a reason instead of a state that the region's shape or type forbids. */
struct sheaf_split_state *gg_checked(const struct gg_region *r, struct sheaf_split_state *state,
                                     const char **why);

/* ---- layers with a state and short convolutions (cut_states.c) ---- */

/* Does the layer have a delta net where others have attention? */
bool gg_is_delta_net(const struct gg_whole *g, const char *layer);
/* Cuts what is unbound of the layer and has a role there. */
enum sheaf_status gg_cut_state_layer(const struct gg_cutter *c, const struct gg_whole *g,
                                     const char *layer, struct sheaf_split_state **states,
                                     const char **why);
enum sheaf_status gg_cut_short_layer(const struct gg_cutter *c, const struct gg_whole *g,
                                     const char *layer, struct sheaf_split_state **states,
                                     const char **why);

#endif
