/* Payloads of commands: graphs and split states as bytes. The bytes of a graph are also the key by
 * which rank 0 finds a program again. All ranks run one build of the library (its version is
 * compared at the start), on machines of one byte order; everything that is read is checked all the
 * same.
 *
 * A graph is a list of records, each one tensor: a leaf, or a node whose operands come before it. A
 * record is a bitmap of its 64 words that are not zero, and these words.
 *
 * Where a view of an object lies in its operand is no part of a graph, but a number of each run: an
 * offset for each record with `moves`, in the order of records. */
#ifndef SHEAF_GGML_WIRE_H
#define SHEAF_GGML_WIRE_H

#include "sheaf/sheaf.h"

/* ---- bytes ---- */
struct gg_bytes { /* grows; the caller frees data */
    uint8_t *data;
    size_t n, cap;
    bool failed; /* out of memory */
};
void gg_put(struct gg_bytes *b, const void *data, size_t n);
void gg_put_u64(struct gg_bytes *b, uint64_t v);
void gg_put_short(struct gg_bytes *b, uint64_t v); /* 7 bits a byte: few for small numbers */
void gg_put_zeros(struct gg_bytes *b);             /* up to a multiple of 8 bytes */

struct gg_reader { /* past the end it gives zeros and sets `bad` */
    const uint8_t *at, *end;
    bool bad;
};
const uint8_t *gg_take(struct gg_reader *r, size_t n); /* NULL past the end */
uint64_t gg_take_u64(struct gg_reader *r);
uint64_t gg_take_short(struct gg_reader *r);

/* ---- tensors ---- */
enum gg_kind { GG_LEAF_OBJECT, GG_LEAF_INPUT, GG_NODE, GG_KIND_COUNT };
struct gg_record {
    uint32_t kind, op, type, flags;
    uint32_t object;             /* of GG_LEAF_OBJECT */
    uint32_t src[SHEAF_MAX_SRC]; /* 1 + record; 0: none */
    uint32_t view_of;            /* 1 + record of the owner; 0: none */
    uint32_t moves;              /* 1: a VIEW of an object's memory; its offset is left 0 */
    uint32_t pad;
    uint64_t view_offs;
    uint64_t ne[SHEAF_MAX_DIMS], nb[SHEAF_MAX_DIMS];
    int32_t params[SHEAF_MAX_OP_PARAMS];
};
void gg_put_record(struct gg_bytes *b, const struct gg_record *record);
bool gg_take_record(struct gg_reader *r, struct gg_record *out);

/* ---- split states ---- */
void gg_put_state(struct gg_bytes *b, const struct sheaf_split_state *state);
/* NULL: not a state of so many members. */
struct sheaf_split_state *gg_take_state(struct gg_reader *r, int n_members);

/* ---- graphs ---- */
/* Do the bytes from t->view_offs to the end of t's last element lie inside of the owner? Reads
 * types, shapes, strides and that offset. */
bool gg_fits_owner(const struct sheaf_tensor *t, const struct sheaf_tensor *owner);
/* The operand whose memory a view shows, or a node writes into; -1: it is neither. */
int gg_shown_operand(const struct sheaf_tensor *node);

typedef struct sheaf_tensor *(*gg_object_fn)(void *user, uint32_t object);
struct gg_moving { /* a node that shows memory of a view with `moves`, or such a view */
    struct sheaf_tensor *tensor;
    const struct sheaf_tensor *of; /* the operand whose memory it shows */
    uint64_t offset;               /* there */
    bool is_view;
};
struct gg_graph {
    struct sheaf_context *ctx;
    struct sheaf_cgraph *graph;
    struct sheaf_tensor **tensors; /* [n] by record */
    uint32_t *objects;             /* [n_objects] of GG_LEAF_OBJECT, by record */
    struct gg_moving *moving;      /* [n_moving] by record */
    uint32_t n, n_objects, n_moving;
};
/* A graph of n records; `objects` gives the tensors of GG_LEAF_OBJECT. INVALID, with a text, if the
 * bytes are no graph. */
enum sheaf_status gg_graph_decode(const uint8_t *data, size_t size, uint32_t n,
                                  gg_object_fn objects, void *user, struct gg_graph *out);
/* Moves views to the offsets that a run brings: n times the number of views that stay and the
 * offset of the next one, filled up to 8 bytes. */
enum sheaf_status gg_graph_move(struct gg_graph *g, uint64_t n, struct gg_reader *r);
void gg_graph_free(struct gg_graph *g); /* accepts zeroes */

#endif
