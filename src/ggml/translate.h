/* One ggml node as one sheaf node: which op, which operands in which order, which parameters. The
 * table knows ops by name, so a row may name an op that this build of the library lacks; nodes of
 * it are declined. */
#ifndef SHEAF_GGML_TRANSLATE_H
#define SHEAF_GGML_TRANSLATE_H

#include "ggml/host.h"

/* Row of the table for the op that ggml calls so; -1: there is none, or the library lacks the op.
 * To be asked for every name before the first node. */
int gg_op_row(const char *name);

struct gg_operands {
    int8_t order[SHEAF_MAX_SRC]; /* operand i here is operand order[i] of ggml's node; -1: none */
    bool signals; /* operand 0 is signals [i, c, n], and read as images [i, 1, c, n] */
};

/* Fills type, op, ne, nb, flags and op_params of `out`, and `operands`; the tensors of the operands
 * are the caller's. A result that has other dimensions here than in ggml gets its own ne. False:
 * there is no such op or type here, or the node uses something of it that the library lacks. */
bool gg_translate(const struct gg_host *host, const struct gg_tensor *t, struct sheaf_tensor *out,
                  struct gg_operands *operands);

/* Type, ne and nb of operand i, which is `src` in ggml. False: its type is unknown here. */
bool gg_operand(const struct gg_host *host, const struct gg_operands *operands, int i,
                const struct gg_tensor *src, struct sheaf_tensor *out);

/* Do the strides say that elements lie one behind the other? */
bool gg_is_dense(const struct gg_host *host, const struct gg_tensor *t);

/* The other direction: fills `out`, without memory, from a node of ours, and `order`: operand i of
 * ggml's node is operand order[i] of ours, GG_SELF_SRC the node itself, GG_NO_SRC none. A node that
 * is none of the ops of the host, or has parameters that ggml has no words for (slices of an
 * indexed dimension are the caller's to look at), gives false; type, ne, nb and name are filled
 * nevertheless. */
enum { GG_NO_SRC = -1, GG_SELF_SRC = -2 };
bool gg_translate_back(const struct gg_host *host, const struct sheaf_tensor *t,
                       struct gg_tensor *out, int8_t order[GG_MAX_SRC]);
/* The op (enum sheaf_op) that the host has by this number; SHEAF_OP_COUNT: none that is known here. */
enum sheaf_op gg_op_of(const struct gg_host *host, int32_t number);
/* The type (enum sheaf_type) that the host has by this number; -1: none that is known here. */
int gg_type_of(const struct gg_host *host, int32_t number);
/* The host's number of a type; -1: it has none. */
int gg_type_number(const struct gg_host *host, enum sheaf_type type);

/* Does the node only look at its operand's memory? */
bool gg_is_view(const struct sheaf_tensor *node);
/* CPY, SET_ROWS: does the op write into memory of an operand? */
bool gg_writes_operand(const struct sheaf_tensor *node);

#endif
