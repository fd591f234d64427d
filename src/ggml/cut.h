/* How weights and caches are cut when the first graph that uses them is known.
 *
 * Names say what a weight is for, the graph says in which units it may be cut: head sizes are those
 * of the views behind a product, and a fused matrix has the parts that the graph takes out of it.
 * The device may have got a part of the graph only, as between two callbacks, or where some weights
 * are another device's: the table of tensors that comes with a part is that of the whole graph.
 * A name that is unknown costs speed, never the result: the weight is on every member, or the plan
 * gathers what it needs. Once an object has memory its cut stays. */
#ifndef SHEAF_GGML_CUT_H
#define SHEAF_GGML_CUT_H

#include "ggml/encode.h"

/* Can SHEAF_GGML_SPLIT and SHEAF_SPLIT be followed? Asked at the start, before a model is loaded. */
enum sheaf_status gg_check_cuts(const struct gg_engine *engine);
/* shares: of the bytes of a model, for each of the device's members; 1 each where nothing is cut. */
enum sheaf_status gg_read_shares(const struct gg_engine *engine, size_t device, double *shares);

/* states[i]: of e->unbound[i]; the caller frees them. As SHEAF_GGML_SPLIT and SHEAF_SPLIT say. */
enum sheaf_status gg_choose_cuts(const struct gg_encoder *e, const struct gg_cgraph *graph,
                                 const struct gg_engine *engine, size_t device,
                                 struct sheaf_split_state **states);

/* ---- between the files of cuts ---- */
struct gg_cutter {
    const struct gg_encoder *e;
    const struct gg_cgraph *graph;
    int n_members;
    double *shares;  /* [n_members] */
    bool whole_sums; /* SHEAF_SPLIT_SUMS */
};
/* By names and graph; NULL in states[i]: on every member, because of why[i]. *is_named: some weight or
 * cache of the whole graph has a name that is known. */
enum sheaf_status gg_cut_by_names(const struct gg_cutter *c, struct sheaf_split_state **states,
                                  const char **why, bool *is_named);
/* The same for a graph in which no name is known. */
enum sheaf_status gg_cut_by_graph(const struct gg_cutter *c, struct sheaf_split_state **states);

#endif
