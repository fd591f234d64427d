/* Roles of weights and caches by their names, which are those of GGUF files
 * (gguf-py/gguf/constants.py) and of llama.cpp's caches. */
#ifndef SHEAF_GGML_LEAF_H
#define SHEAF_GGML_LEAF_H

#include <stdbool.h>

#include "ggml/memory.h"

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
    GG_ROLE_OUT_A,     /* a matrix for each group of query heads */
    GG_ROLE_OUT_B,     /* columns are these groups; rows are cut with whole sums */
    GG_ROLE_SINKS,     /* an element a query head */
    GG_ROLE_Q_NORM,    /* of all query heads, each, or one */
    GG_ROLE_K_NORM,    /* likewise of key heads */
    GG_ROLE_NORM_2,    /* of all query heads of linear attention; of a layer's input elsewhere */
    GG_ROLE_PICK_Q,    /* queries by which cells of the caches are picked: rows are heads */
    GG_ROLE_PICK_K,    /* and their keys, of one head */
    GG_ROLE_CACHE_K,   /* elements of a row are key heads */
    GG_ROLE_CACHE_V,   /* elements of a row are value heads */
    /* feed-forward */
    GG_ROLE_FFN_IN,         /* rows are the inner dimension, once or twice */
    GG_ROLE_FFN_OUT,        /* columns are it; rows are cut with whole sums */
    GG_ROLE_FFN_LATENT_OUT, /* columns are the experts' results; whole with whole sums */
    GG_ROLE_JOINED,         /* columns are of two vectors that all members have; likewise rows */
    /* layers with a state */
    GG_ROLE_STATE_IN,      /* rows are all that the layer reads */
    GG_ROLE_CHANNELS,      /* rows are channels of the convolution */
    GG_ROLE_STATE_HEADS,   /* rows are heads */
    GG_ROLE_STATE_FIRST,   /* likewise, if there are as many as heads have elements */
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

/* l->role GG_ROLE_NONE: the name is unknown. */
void gg_leaf_of(const char *name, struct gg_leaf *l);

#endif
