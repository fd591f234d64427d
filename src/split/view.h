/* Geometry of views: how a cut of the operand lies in the view, and where a member's part of the
 * view lies in the member's slice of the operand.
 *
 * Invariant: a transferred cut is only offered if every member can address its part with one offset
 * and one stride a dimension. */
#ifndef SHEAF_SPLIT_VIEW_H
#define SHEAF_SPLIT_VIEW_H

#include "split/cut.h"

/* A shape in memory. Dimension 0 counts blocks of the type, nb[0] is the bytes of one. */
struct sheaf__layout {
    int64_t ne[SHEAF_MAX_DIMS];
    int64_t nb[SHEAF_MAX_DIMS];
    int64_t block;
};

struct sheaf__layout sheaf__layout_of(const struct sheaf_tensor *t);
/* The same shape as if contiguous. */
struct sheaf__layout sheaf__layout_dense(const struct sheaf_tensor *t);

/* The state of the view of an operand in state S(axis, cut); offset in bytes from the operand's
 * first element. False if the cut does not decompose. */
bool sheaf__view_transfer(struct sheaf__pool *pool, const struct sheaf__layout *from,
                          const struct sheaf__layout *to, int64_t offset, int axis,
                          const struct sheaf__cut *cut, struct sheaf__st *out);
/* Strides and offset (bytes from the first element of the member's operand) of the member's view.
 * `from_local` are the strides of its operand. States as transferred; both M or P, or of a cut
 * that is everywhere to M: the geometry of the whole. False if it cannot be addressed. */
bool sheaf__view_local(const struct sheaf__layout *from, const struct sheaf__layout *to,
                       int64_t offset, struct sheaf__st from_st, struct sheaf__st to_st, int member,
                       const size_t from_local[SHEAF_MAX_DIMS],
                       const int64_t to_ne_local[SHEAF_MAX_DIMS], size_t to_local[SHEAF_MAX_DIMS],
                       int64_t *local_offset);
/* The view, whose states were transferred for the offset `was`, is at `now`: are its state and
 * every member's strides the same there? True only if they are. Allocates nothing. */
bool sheaf__view_moves(const struct sheaf__layout *from, const struct sheaf__layout *to,
                       int64_t was, int64_t now, struct sheaf__st from_st, struct sheaf__st to_st,
                       int n_members);

#endif
