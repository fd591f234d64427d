/* The rule of every op: an expression over factors, a kind for each factor, the operand sets in
 * which the op is linear. Rows (which operand states give which result state) are generated from
 * it; nothing else in the planner knows an op by name, except what the table names here. */
#ifndef SHEAF_SPLIT_RULE_H
#define SHEAF_SPLIT_RULE_H

#include <string.h>

#include "tensor/op_info.h"

enum sheaf__rule_form {
    SHEAF__FORM_EXPR,    /* `expr`, or what `build` writes */
    SHEAF__FORM_VIEW,    /* the result is the operand's memory, read with other strides */
    SHEAF__FORM_PERMUTE, /* dimensions move, nothing else */
    SHEAF__FORM_COPY,    /* elements in order into operand 1, whatever its shape */
};

enum { SHEAF__MAX_EXPR = 160, SHEAF__MAX_LINEAR = 4 };

struct sheaf__rule {
    enum sheaf__rule_form form;
    /* operands separated by commas, dimensions by spaces (fastest first, missing ones are 1), a
     * dimension is a sum of products of factors, major to minor: "k m g, k n g.r -> m n g.r". A
     * number is a factor of that size, never split; "k=8" is factor k whose size the shapes do not
     * tell; an operand that the node lacks, before one that it has, is written "1". */
    const char *expr;
    void (*build)(const struct sheaf_tensor *node, char expr[static SHEAF__MAX_EXPR]);
    const char *sum;   /* summed: split => PARTIAL */
    const char *whole; /* never split */
    const char *index; /* as summed, if each member gets a run of indices and its base */
    const char *slope; /* free, if each member gets a run of indices and its base */
    const char *group; /* pairs "gr": operands with g alone follow operands with g.r */
    bool parts;        /* groups may be divided: SHEAF_OP_PARAM_GROUP tells the kernel */
    const char *minor; /* pairs "rg": operands with g alone follow operands with r.g: index i goes
                          with i modulo g */
    const char *joint; /* free factors that are only split together, each with its own cut */
    /* operand sets, bit i is operand i: all of a set PARTIAL and the rest MIRRORED => PARTIAL */
    uint16_t linear[SHEAF__MAX_LINEAR];
    /* operand sets: a column of the result is 0 where those of all of a set are 0 */
    uint16_t zero[SHEAF__MAX_LINEAR];
    unsigned add_once; /* bit i: PARTIAL + MIRRORED => PARTIAL if one member alone adds operand i,
                          0 or 1 */
    bool extent;       /* the kernel is told the extent of dimension 0 of operand 0 */
    bool columns;      /* the kernel is told the columns of the whole product */
    int mask; /* 1 + the operand that tells for each column of the result which index it is made by,
                 if an operand's `index` dimension makes it: the result of masks is a masked P */
    /* the index or slope dimension whose base the kernel is told: operand (or -1: the result) and
     * axis; 0 axis 0 means none, because dimension 0 is never one */
    int base_operand, base_axis;
    const char *none;              /* no expression: why */
    const struct sheaf__rule *alt; /* tried first: the first whose `when` holds; ended by no when */
    bool (*when)(const struct sheaf_tensor *node);
};

/* The rule for a node, alternatives resolved. */
const struct sheaf__rule *sheaf__rule_of(const struct sheaf_tensor *node);
/* Does the op give another view of its first operand's memory? */
static inline bool sheaf__is_view_form(const struct sheaf__rule *rule) {
    return rule->form == SHEAF__FORM_VIEW || rule->form == SHEAF__FORM_PERMUTE;
}
/* The table's row, for tests. */
const struct sheaf__rule *sheaf__rule_row(enum sheaf_op op);

/* ---- expressions with sizes (expr.c) ---- */
enum {
    SHEAF__MAX_FACTORS = 12,
    SHEAF__MAX_TERMS = 5,   /* of a dimension */
    SHEAF__MAX_PRODUCT = 6, /* factors of a term */
    SHEAF__MAX_OPERANDS = SHEAF__OP_MAX_SRC
};

enum sheaf__factor_kind {
    SHEAF__FREE,
    SHEAF__SUM,
    SHEAF__WHOLE,
    SHEAF__INDEX,
    SHEAF__SLOPE,
};

struct sheaf__term { /* bytes, because an expression is cleared for each node that is planned */
    int8_t n;        /* 0: the literal 1 */
    int8_t factor[SHEAF__MAX_PRODUCT];
};
struct sheaf__dim {
    int8_t n;
    struct sheaf__term term[SHEAF__MAX_TERMS];
};
struct sheaf__expr {
    int n_operands, n_factors;
    struct sheaf__dim dim[SHEAF__MAX_OPERANDS + 1][SHEAF_MAX_DIMS]; /* the result is [n_operands] */
    char letter[SHEAF__MAX_FACTORS];                                /* '#': a number */
    int64_t number[SHEAF__MAX_FACTORS]; /* the size in the text; -1: shapes tell it */
    enum sheaf__factor_kind kind[SHEAF__MAX_FACTORS];
    int64_t size[SHEAF__MAX_FACTORS];
};

/* Parses text and kinds; sizes stay 0. false: the table is wrong (our own bug). */
bool sheaf__expr_parse(const struct sheaf__rule *rule, const char *text, struct sheaf__expr *e);
/* Finds the factor sizes from shapes: ne[i] of operand i, the result's last. false: the shapes do
 * not factor this way. */
bool sheaf__expr_bind(struct sheaf__expr *e, const int64_t *const ne[]);
/* Parse and bind for a node. text, if not NULL, receives the expression. */
bool sheaf__expr_of(const struct sheaf_tensor *node, const struct sheaf__rule *rule,
                    struct sheaf__expr *e, char text[SHEAF__MAX_EXPR]);
/* Axis of operand (or result) i that holds the factor; -1: none. */
int sheaf__expr_axis(const struct sheaf__expr *e, int operand, int factor);
int sheaf__expr_factor(const struct sheaf__expr *e, char letter);
/* Is the letter one of the set, which may be NULL? */
static inline bool sheaf__has_letter(const char *set, char letter) {
    return set && letter && strchr(set, letter);
}
/* The rows that a rule generates, as text. Returns the length it needs, as snprintf does. */
size_t sheaf__rows_print(const struct sheaf__rule *rule, const char *expr, char *buf, size_t n);
int64_t sheaf__expr_term_size(const struct sheaf__expr *e, const struct sheaf__term *t);

#endif
