/* What a node can do: the rows that it can take when its operands are available in given sets
 * of states, what each costs, and what it leaves behind. Worked out once for all nodes of a shape,
 * since the layers of a model repeat. */
#ifndef SHEAF_SPLIT_OPTIONS_H
#define SHEAF_SPLIT_OPTIONS_H

#include "split/match.h"
#include "split/search.h"
#include "split/sets.h"

struct sheaf__option {
    struct sheaf__row row;
    bool none;   /* no row: an in-place write that goes through a copy, or an unknown */
    bool mirror; /* a view of a mirrored copy of what its operand is a view of */
    enum sheaf__left_out left_out;
    int64_t cost;
    int collectives, out, set[SHEAF__MAX_OPERANDS]; /* sets of the result and of the operands */
};

struct sheaf__known { /* what a node of one shape can do with these sets */
    struct sheaf__known *next;
    uint64_t hash;
    int shape, set[SHEAF__MAX_OPERANDS], n;
    struct sheaf__option option[];
};

struct sheaf__options;
/* `sets` is the caller's. NULL: out of memory. */
struct sheaf__options *sheaf__options_new(const struct sheaf__search_input *input,
                                          struct sheaf__sets *sets);
void sheaf__options_free(struct sheaf__options *o);
/* Makes `node` the one that is asked about and returns its rule. NULL: out of memory. */
const struct sheaf__rule *sheaf__options_begin(struct sheaf__options *o, int node);
/* What it can do if its operands are available in these sets; only what is kept. NULL: out of
 * memory.
 */
const struct sheaf__known *sheaf__options_of(struct sheaf__options *o, const int *set);
/* All of it, also what is left out: *option until the next call. -1: out of memory. */
int sheaf__options_all(struct sheaf__options *o, const int *set,
                       const struct sheaf__option **option);

#endif
