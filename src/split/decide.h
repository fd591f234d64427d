/* Decides what the search of a whole graph leaves open: from which of its states an operand is
 * converted, and which row a node takes whose operands are not as the search saw them (views of
 * what was written in place are made again). All comparisons of costs are here and in the search.
 *
 * Pure: integers, ties by order; the same on every rank. */
#ifndef SHEAF_SPLIT_DECIDE_H
#define SHEAF_SPLIT_DECIDE_H

#include "split/match.h"

/* Index of the state from which `need` is met at least cost, the first of equals; a state that
 * meets it wins, at a cost of SHEAF__MET. n > 0. */
enum { SHEAF__MET = -1 };
int sheaf__cheapest_source(const struct sheaf__st *st, int n, const struct sheaf__need *need,
                           int64_t bytes, int members, int64_t *cost);

struct sheaf__at_hand { /* an operand: the states that it has */
    int n;
    const struct sheaf__st *st;
    const struct sheaf__st *native; /* of the tensor's own memory; NULL: none of use */
    int64_t bytes;
};
struct sheaf__asked { /* a node */
    const struct sheaf_tensor *node;
    const struct sheaf__rule *rule;
    int written;     /* it is written over operand `written` - 1; 0: over none */
    bool whole;      /* only a row in which nothing is cut */
    bool whole_sums; /* no row that adds */
};
/* The row of a node: that of the search, if there is one and the operands are available as it needs
 * them, else the cheapest for this node alone. false: there is none (a write in place that no row
 * takes where it lies), or out of memory (pool->failed). */
bool sheaf__decide_row(struct sheaf__pool *pool, const struct sheaf__asked *asked,
                       const struct sheaf__row *of_search, const struct sheaf__at_hand *operand,
                       struct sheaf__row *out);
/* Is anything in the row not whole on every member? */
bool sheaf__row_cuts(const struct sheaf__row *row);

#endif
