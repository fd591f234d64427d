/* Shared by the files of the encoder: encode.c walks over a graph and finds its results,
 * encode_nodes.c writes the records of a node and of what it reads, encode_norms.c those of a norm
 * over all heads, and encode_records.c has the tables of tensors met and of records written. */
#ifndef SHEAF_GGML_ENCODE_IMPL_H
#define SHEAF_GGML_ENCODE_IMPL_H

#include "ggml/encode.h"
#include "ggml/translate.h"

/* ---- encode_records.c ---- */

/* Forgets all tensors, and makes room for some n. False: out of memory. */
bool gg_slots_clear(struct gg_encoder *e, size_t n);
/* Until the next tensor is added. NULL: out of memory. */
struct gg_slot *gg_slot_of(struct gg_encoder *e, const struct gg_tensor *t);

/* Type, op, shape and parameters of s; no operands, and no owner. */
void gg_record_fill(struct gg_record *r, const struct sheaf_tensor *s, uint32_t kind);
/* Gives the record the strides of a dense tensor. */
void gg_record_make_dense(struct gg_record *r);
/* Do a view's bytes lie inside of those of its owner? The ranks check this with offset 0 only, when
 * they make a program. */
bool gg_record_fits(const struct gg_record *view, const struct gg_record *owner);
/* Appends a record, which stands for t. 1 + record; 0: out of memory. The owner is the record
 * itself unless view_of says another. */
uint32_t gg_record_add(struct gg_encoder *e, const struct gg_record *r, const struct gg_tensor *t);

/* UNSUPPORTED: an op or a type of t has no counterpart here. */
enum sheaf_status gg_refuse_tensor(const struct gg_tensor *t);

/* ---- encode_nodes.c ---- */

/* *out: 1 + record. Records of operands, and of views that led to them, come before. */
enum sheaf_status gg_encode_node(struct gg_encoder *e, const struct gg_tensor *t, uint32_t *out);

/* ---- encode_norms.c ---- */

/* Is `mul` the product of a norm and a weight that has an element for each element of all heads? By
 * the weight's name, and by the norm's operand: a product's rows, or heads that were made one
 * row. */
bool gg_is_norm_over_heads(const struct gg_encoder *e, const struct gg_tensor *mul);
/* The norm t, whose record is `norm`, as x / sqrt(sum of squares / n + eps): squares are added over
 * members, and the operand stays cut. */
enum sheaf_status gg_encode_norm_over_heads(struct gg_encoder *e, const struct gg_tensor *t,
                                            const struct gg_record *norm, uint32_t *out);

#endif
