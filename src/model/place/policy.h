/* Which member holds which part of every weight and cache of a model.
 *
 * A dimension has a meaning (enum sheaf__dim), and a meaning has a cut: query heads, key/value
 * heads, n_ff, vocabulary. A weight is cut where its first dimension that can be cut is; what has
 * none (norms) is mirrored. With whole sums (SHEAF_SPLIT_SUMS, as sheaf__policy_new finds it)
 * weights of products that add up heads or n_ff are cut by their rows. Pure apart from that: the
 * same model, shares and setting give the same states on every rank. */
#ifndef SHEAF_MODEL_POLICY_H
#define SHEAF_MODEL_POLICY_H

#include "sheaf/split.h"

#include "base/arith.h"
#include "model/file/weights.h"
#include "model/place/heads.h"

struct sheaf__policy;

/* The run of units of `inner` elements that each member owns; first, count [n_members]. */
void sheaf__segment_fill(struct sheaf_split_segment *s, int n_members, int64_t units, int64_t inner,
                         const int64_t *first, const int64_t *count);

/* With whole sums, slices of matrices have whole groups of so many rows where the matrix has:
 * devices that lay rows out in groups then compute the rows of a slice as they do those of the
 * whole. */
enum { SHEAF__ROW_GROUP = 16 };
/* The rows that slices of n rows are cut by. */
static inline int64_t sheaf__row_group(int64_t n) { return sheaf__gcd(n, SHEAF__ROW_GROUP); }

/* shares [n_members]: proportions, >= 0, not all 0; a member of share 0 gets nothing. The model
 * must outlive the policy. */
enum sheaf_status sheaf__policy_new(const struct sheaf__weights *model, const double *shares,
                                    int n_members, struct sheaf__policy **out);
void sheaf__policy_free(struct sheaf__policy *policy); /* accepts NULL */
int sheaf__policy_n_members(const struct sheaf__policy *policy);

/* "auto" (the policy's own choice, as after sheaf__policy_new), "columns", "rows", "whole"; before
 * the first state is asked for. INVALID with a text that names the option.
 *
 * columns: n_ff of every expert is divided, its last matrix by columns; its results are one sum.
 * rows: the rows of every matrix are divided; two gathers, but no blocks in the way. whole: every
 * expert is on one member; one sum, and members whose experts a token does not use wait. With whole
 * sums "auto" is rows, and columns are refused. */
enum sheaf_status sheaf__policy_cut_experts(struct sheaf__policy *policy, const char *how);

/* State of a weight or cache by its tag; `user` is the policy. Fits
 * sheaf_backend_meta_get_split_state_fn. */
enum sheaf_status sheaf__policy_get_state(const struct sheaf_tensor *tensor, const void *user,
                                          struct sheaf_split_state **out);
/* Bytes of the weights that each member holds, [members]. */
enum sheaf_status sheaf__policy_weight_bytes(const struct sheaf__policy *policy, size_t *bytes);
/* Adds each member's part of one tensor, [members]: for all of them in the time that one takes. */
enum sheaf_status sheaf__policy_add_bytes(const struct sheaf__policy *policy,
                                          const struct sheaf_tensor *tensor, size_t *bytes);
/* The member's part of one tensor. */
enum sheaf_status sheaf__policy_tensor_bytes(const struct sheaf__policy *policy,
                                             const struct sheaf_tensor *tensor, int member,
                                             size_t *bytes);
/* "q heads 6,3  k/v heads 2,1  ffn 1024,512  vocab 32768,16384"; always terminated. */
char *sheaf__policy_print(const struct sheaf__policy *policy, char *buf, size_t n);

#endif
