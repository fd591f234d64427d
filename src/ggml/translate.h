/* One node of ggml as one node of the library (translate.c), and the other way (translate_back.c):
 * which op, which operands in which order, which parameters. */
#ifndef SHEAF_GGML_TRANSLATE_H
#define SHEAF_GGML_TRANSLATE_H

#include "ggml/op_table.h"

/* ---- from ggml to the library ---- */

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

/* Does the node only look at its operand's memory? */
bool gg_is_view(const struct sheaf_tensor *node);
/* CPY, SET_ROWS: does the op write into memory of an operand? */
bool gg_writes_operand(const struct sheaf_tensor *node);

/* ---- from the library to ggml ---- */

/* Fills `out`, without memory, from a node of the library, and `order`: operand i of ggml's node is
 * operand order[i] of the library's, GG_SELF_SRC the node itself, GG_NO_SRC none. False: the host
 * lacks the op, or ggml has no words for a parameter (slices of an indexed dimension are the
 * caller's to look at); type, ne, nb and name are filled nevertheless. */
enum { GG_NO_SRC = -1, GG_SELF_SRC = -2 };
bool gg_translate_back(const struct gg_host *host, const struct sheaf_tensor *t,
                       struct gg_tensor *out, int8_t order[GG_MAX_SRC]);
/* The host's number of a type; -1: it has none. */
int gg_type_number(const struct gg_host *host, enum sheaf_type type);

#endif
