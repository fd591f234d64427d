/* Chooses the row of every node so that the conversions of the whole graph are cheap: the one place
 * that decides. plan.c writes down what is chosen.
 *
 * A forward pass over the nodes keeps the cheapest partial plans that differ in what later nodes
 * find: for every tensor still to be read, the states in which it is available. Partial plans that
 * reach the same states are merged, so with cuts that fit there are one or two, and the choice is
 * exact as long as there are no more than the pass keeps. Rows that gather are left out where a row
 * takes what is cut as it lies: gathering in order to mirror what follows can save bytes, but every
 * member would do all the work. For the same reason, with whole sums, rows that gather a weight are
 * left out where a row gathers none, though the weight may be less than what many tokens read it
 * with.
 *
 * Pure, and the same on every rank. */
#ifndef SHEAF_SPLIT_SEARCH_H
#define SHEAF_SPLIT_SEARCH_H

#include "sheaf/graph.h"
#include "split/match.h"
#include "split/sets.h"

/* A tensor that the graph mentions. */
struct sheaf__entry {
    struct sheaf_tensor *tensor;
    int node;            /* index in the graph; -1: a leaf */
    int uses;            /* operands that name it */
    int owner;           /* entry of the tensor whose memory it is */
    bool written;        /* of an owner: by a node of the graph */
    int8_t n_operands;   /* of a node, as sheaf__n_operands counts them */
    int8_t writes;       /* of a node: 1 + the operand that it is written over; 0 */
    struct sheaf__st st; /* of a leaf that is used */
    /* the planner's: */
    int epoch;  /* of an owner: in-place writes so far */
    int values; /* newest value */
};

struct sheaf__watch;
/* A graph, its tensors numbered as entries. */
struct sheaf__search_input {
    const struct sheaf_cgraph *graph;
    struct sheaf__pool *pool;
    const struct sheaf__entry *entry;
    int n_entries;
    const int *self;      /* [nodes] entries */
    const int *operand;   /* [nodes][SHEAF__MAX_OPERANDS] entries */
    const uint8_t *whole; /* [nodes] 1: only the row in which nothing is cut; NULL: none is so */
    bool whole_sums;      /* no row that adds */
    struct sheaf__watch *watch; /* NULL: none */
};

/* Whether a row is left out of what a node can do, and why. */
enum sheaf__left_out {
    SHEAF__KEPT,
    SHEAF__GATHERS,        /* needs a collective, and another row takes what is cut as it lies */
    SHEAF__GATHERS_WEIGHT, /* with whole sums: gathers a weight, and another row gathers none */
    SHEAF__DOMINATED,      /* an earlier or cheaper row leaves the same behind */
};

/* What one node can do, for a person: the search fills it in when it comes to the node. */
enum { SHEAF__MAX_CONSIDERED = 64 };
struct sheaf__considered {
    struct sheaf__row row;
    bool none; /* no row: an in-place write that goes through a copy */
    enum sheaf__left_out left_out;
    int64_t cost; /* of the conversions for this node, times members */
    int collectives;
};
struct sheaf__watch {
    int node;
    int only; /* >= 0: the node takes that one of `row`; -1: what is best */
    struct sheaf__set operand[SHEAF__MAX_OPERANDS]; /* as the node finds them */
    int n;
    struct sheaf__considered row[SHEAF__MAX_CONSIDERED];
};

/* ALLOC_FAILED, with the text of all that plans. */
enum sheaf_status sheaf__plan_no_memory(void);

struct sheaf__search;
enum sheaf_status sheaf__search_new(const struct sheaf__search_input *input,
                                    struct sheaf__search **out);
void sheaf__search_free(struct sheaf__search *s);
/* NULL: none (leaves; writes for which there is no row; what such a write left out of date): then
 * decide.c chooses for the node alone. */
const struct sheaf__row *sheaf__search_row(const struct sheaf__search *s, int node);

/* Cost (bytes that a member receives, times members) and collectives of the whole graph; false: no
 * plan takes the row that is asked for. */
bool sheaf__search_total(const struct sheaf__search *s, int64_t *cost, int *collectives);

/* What becomes of a masked result if the graph writes to the mask, or over the addends: they are
 * not what they were. */
struct sheaf__st sheaf__lasting(const struct sheaf__search_input *input, int node,
                                struct sheaf__st st);

#endif
