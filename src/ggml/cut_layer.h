/* The tensors of a graph by layer and role. A layer is all weights whose names share what comes before
 * the last part but one: "blk.7.". */
#ifndef SHEAF_GGML_CUT_LAYER_H
#define SHEAF_GGML_CUT_LAYER_H

#include "ggml/cut.h"
#include "ggml/leaf.h"

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

/* Nodes of the part, what they read, and what is in the table. False: out of memory. */
bool gg_whole_of(const struct gg_host *host, const struct gg_cgraph *graph, struct gg_whole *g);
/* NULL: the layer has none. Also one that has its cut already, or is another device's: the caches of
 * a second context follow the weights. */
const struct gg_tensor *gg_find(const struct gg_whole *g, const char *layer, enum gg_role role,
                                const char *family);
/* What its name says; NULL: it is no tensor of the graph. */
const struct gg_leaf *gg_leaf_in(const struct gg_whole *g, const struct gg_tensor *t);
/* The op of a tensor of the graph (struct gg_known); -1 also of one that is not there. */
int gg_op_in(const struct gg_whole *g, const struct gg_tensor *t);
/* Is t the cache, or a part or another shape of it? */
bool gg_comes_from(const struct gg_tensor *t, const struct gg_tensor *cache);
/* The views and reshapes that take a product's rows apart, in the order of the graph. */
int gg_views_behind(const struct gg_whole *g, const struct gg_tensor *weight,
                    const struct gg_tensor **out, int room);

/* Which heads of a layer members own, and which groups of them: K/V heads with the query heads that read
 * them, or groups of heads of a state. */
struct gg_division {
    int64_t *head_first, *head_count, *group_first, *group_count; /* [n_members] */
};
bool gg_division_init(struct gg_division *d, int n_members); /* false: out of memory */
void gg_division_fini(struct gg_division *d);

/* How the weights and caches of one kind of layer are cut. */
struct gg_layer_cut {
    bool (*has_role)(enum gg_role role, const void *layer);
    struct sheaf_split_state *(*state_of)(const struct gg_cutter *c, const struct gg_leaf *l,
                                          const struct gg_region *r, const void *layer,
                                          const char **why);
    const void *layer;
    const char *why_whole; /* NULL: state_of is asked */
};
/* Cuts what is unbound of the layer and has one of the roles. */
void gg_cut_layer(const struct gg_cutter *c, const struct gg_whole *g, const char *layer,
                  const struct gg_layer_cut *cut, struct sheaf_split_state **states,
                  const char **why);

/* ---- layers with a state and short convolutions (cut_states.c) ---- */

/* Does a scan or a delta net read the layer's state? */
bool gg_has_scan(const struct gg_whole *g, const char *layer);
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
