/* Divides units and heads over members, in proportion to their shares. */
#ifndef SHEAF_MODEL_HEADS_H
#define SHEAF_MODEL_HEADS_H

#include <stdint.h>

#include "sheaf/status.h"

double sheaf__sum_of_shares(const double *shares, int n_members);

/* Divides n units in proportion: floors, then the largest remainders get one more (ties: the lower
 * member). Members of share 0 get none. counts [n_members] sum up to n. */
void sheaf__split_units(int64_t n, const double *shares, int n_members, int64_t *counts);

/* Query heads (r to each of g key/value heads) so that every member has whole groups or lies inside
 * one, which such members divide as sheaf__split_units does. Of all such cuts in member order, the
 * one whose slowest member (heads by share) is fastest, then the one nearest to the shares (least
 * squares), then the one in which the lower member gets more whole groups; where some get nothing,
 * they come first, since the lower ones get more of what is divided elsewhere. Members inside one
 * group share its key/value head: their intervals overlap. All arrays [n_members]; kv_count 0 where q_count is 0.
 * Takes a time of about n_members * g * r. */
enum sheaf_status sheaf__split_heads(int64_t g, int64_t r, const double *shares, int n_members,
                                     int64_t *q_first, int64_t *q_count, int64_t *kv_first,
                                     int64_t *kv_count);

/* The same, but members may have any run of `unit` query heads, if the slowest member then takes
 * 15/16 of the time or less: time is query and K/V heads by share. A K/V head whose group is
 * divided is on each member that has a part of it. No member has more than 9/8 of the K/V heads by
 * its share that the slowest has in the cut of whole groups, since they are what a long context
 * costs. Groups are not divided where there are more than 4096 units, which no model has. For
 * attention by FLASH_ATTN_EXT, whose kernel is told of divided groups. */
enum sheaf_status sheaf__split_heads_in_runs(int64_t g, int64_t r, int64_t unit,
                                             const double *shares, int n_members, int64_t *q_first,
                                             int64_t *q_count, int64_t *kv_first,
                                             int64_t *kv_count);

#endif
