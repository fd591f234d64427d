/* Rows of one node: which states of its operands give which state of its result.
 *
 * A row is made concrete by a cut. The cut comes from an operand that is split already; no row
 * invents one. Every row that is visited is true: on slices in the needed states, the op computes
 * the slices (or addends) of its result. */
#ifndef SHEAF_SPLIT_MATCH_H
#define SHEAF_SPLIT_MATCH_H

#include "split/cut.h"
#include "split/rule.h"

/* The state that a row needs of an operand. With `readers`, other states meet the need too: those
 * that give the same slice as `st` to each member to which `readers` gives something. */
struct sheaf__need {
    struct sheaf__st st;
    const struct sheaf__cut *readers;
};

struct sheaf__row {
    const char *name; /* "all M", "k", "g.r", "linear", "add once", ... */
    char factor[8];   /* letters of a factor row, for texts */
    int n_operands;
    struct sheaf__need need[SHEAF__MAX_OPERANDS];
    struct sheaf__st out;
    bool adds; /* of an element of `out` several members may have an addend other than 0 */
    bool add_once;
    int once;
};

/* States in which an operand is, or is available at no cost (values that exist). */
struct sheaf__have {
    int n;
    const struct sheaf__st *st;
};

/* Calls visit for each row, in the order of preference between equals: all MIRRORED, factors in
 * order of the expression, add-once, linear sets. A visit that returns false ends it. */
typedef bool (*sheaf__row_fn)(void *user, const struct sheaf__row *row);
void sheaf__rows_visit(struct sheaf__pool *pool, const struct sheaf_tensor *node,
                       const struct sheaf__have have[SHEAF__MAX_OPERANDS], sheaf__row_fn visit,
                       void *user);

/* The same by another rule than the table's: tests show that wrong rules are caught. */
void sheaf__rows_visit_by(struct sheaf__pool *pool, const struct sheaf_tensor *node,
                          const struct sheaf__rule *rule,
                          const struct sheaf__have have[SHEAF__MAX_OPERANDS], sheaf__row_fn visit,
                          void *user);

/* Number of operands, counted to the last one that the node has. One before it may be NULL: it is
 * MIRRORED in every row. */
int sheaf__n_operands(const struct sheaf_tensor *node);
/* Do the rows need the same of every operand and give the same? */
bool sheaf__row_same(const struct sheaf__row *a, const struct sheaf__row *b);
bool sheaf__need_met(const struct sheaf__need *need, struct sheaf__st st);
/* Can the row's node write its result over an operand whose own memory is in this state? */
bool sheaf__row_writes(const struct sheaf__row *row, int operand, struct sheaf__st native);
/* A slice of this state is whole blocks of the type. */
bool sheaf__st_fits(struct sheaf__st st, enum sheaf_type type);

#endif
