/* Sets of states: the states in which a tensor is available at one point of a graph, interned, so
 * that equal sets have equal numbers.
 *
 * Invariant: the number of the empty set is 0; a set never changes once it has a number. */
#ifndef SHEAF_SPLIT_SETS_H
#define SHEAF_SPLIT_SETS_H

#include "split/cut.h"

enum { SHEAF__NO_SET = -1, SHEAF__EMPTY_SET = 0, SHEAF__SET_STATES = 8 };

struct sheaf__set {
    int n;
    bool native;    /* st[0] lies in the tensor's own memory */
    uint8_t packed; /* bits: a dense copy of a tensor that is not dense */
    struct sheaf__st st[SHEAF__SET_STATES];
};

struct sheaf__sets {
    struct sheaf__set *set;
    int n;
    size_t cap;
    int *slot; /* hash: set + 1 */
    int n_slots;
};

/* The set's number; NO_SET: out of memory. */
int sheaf__set_number(struct sheaf__sets *sets, const struct sheaf__set *set);
int sheaf__set_of_one(struct sheaf__sets *sets, struct sheaf__st st, bool native);
void sheaf__sets_free(struct sheaf__sets *sets);

bool sheaf__set_holds(const struct sheaf__set *set, enum sheaf__state_kind kind);
/* Adds a state; where there is no room, in place of the newest one. */
void sheaf__set_add(struct sheaf__set *set, struct sheaf__st st, bool packed);

#endif
