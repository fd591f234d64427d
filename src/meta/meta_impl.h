/* The meta device's own structures, shared by the files of src/meta.
 *
 *   device    the device, its buffer type, its parameters
 *   buffer    meta buffers; slices: their tensors' slices; transfer: set, get; load: from one
 *             rank to those that cannot read
 *   program   a planned graph as one local graph and a list of instructions per local member;
 *             builder: nodes and instructions; steps: what the steps of a plan need
 *   overlap   which collectives run beside spans
 *   moving    views whose offsets change from compute to compute
 *   backend   the backend; cache: its programs; key: how they are found; members: the
 *             threads of this rank's members; run: what one member does; stats: what is counted;
 *             carry: results kept for later graphs; check: are mirrored results the same?
 *             inputs: several written at once; copies: those that a device does not make
 *   support   which ops all members run
 *   staging   host memory for the values of devices with other memory
 *   shared    compute buffers that members of a host sum in place
 *   leaves    plans without a device; describe: for people; measure: the memory they take
 *
 * A meta tensor's address (tensor->data) is an address in reserved, inaccessible memory: it orders
 * and identifies tensors for the allocators and is never dereferenced. The data are in the members'
 * slices. */
#ifndef SHEAF_META_META_IMPL_H
#define SHEAF_META_META_IMPL_H

#include "base/arith.h"
#include "base/clock.h"
#include "meta/staging.h"
#include "meta/support.h"
#include "sheaf/alloc.h"
#include "sheaf/backend-impl.h"
#include "sheaf/meta.h"
#include "split/plan.h"
#include "tensor/access.h"
#include "tensor/graph.h"
#include "tensor/op_info.h"

struct meta_device {
    struct sheaf_backend_device base;
    struct sheaf_backend_buffer_type buft;
    char name[32], description[160];
    int n_members, n_local;
    sheaf_backend_dev_t *members;
    int *member_rank; /* [n_members] */
    int *local;       /* [n_local] member numbers */
    bool everywhere;  /* every rank drives a member, so that mirrored data need no message */
    struct sheaf_comm *comm;
    struct meta_support *support;
    struct meta_staging *loading; /* [n_local] for data on their way to a member */
    struct { /* of slices on their way to a reader: kept from one result to the next */
        struct meta_staging own, all, whole;
        size_t *sizes; /* [ranks] */
    } reading;
    struct sheaf_split_state *mirrored;
    sheaf_backend_meta_get_split_state_fn get_split_state;
    const void *user;
    enum sheaf_backend_meta_overlap overlap;
    bool whole_sums;     /* SHEAF_SPLIT_SUMS */
    size_t static_bytes; /* of this rank, over all buffers */
    size_t input_bytes;  /* the same, of inputs in compute buffers */
    uint64_t n_records;  /* meta tensors made so far; numbers them alike on all ranks */
    struct meta_backend *backends; /* a list by `next` */
};

/* How a tensor lies: tensor->extra of every tensor in a meta buffer that has slices. */
struct meta_tensor {
    const struct sheaf_split_state *state; /* NULL: of a result whose program has let it go */
    struct sheaf_tensor **slices; /* [n_local] */
    uint64_t serial; /* of weights and caches: never used twice, the same on every rank */
    bool carried;    /* a result that the backend keeps for later graphs */
};

/* Bits of tensor->flags of local descriptors; sheaf/backend-impl.h says which bits are taken. */
enum {
    /* Every member must have the value alike: check mode compares it when the device has computed
     * the node, or when a collective has written it. */
    META_FLAG_CHECK_NODE = 1 << 16,
    META_FLAG_CHECK_COLLECTIVE = 1 << 17,
    META_FLAG_MOVES = 1 << 22,   /* it shows what a moving view shows */
    META_FLAG_IN_SPAN = 1 << 24, /* a node of the span whose marks are made (program.c) */
};

/* This rank alone has failed where others wait for it, or go on to their collectives: ends the job
 * if there are others. Returns st, which is not SUCCESS. */
enum sheaf_status sheaf__meta_end_apart(enum sheaf_status st);

/* Bytes of the slice that a member has of a tensor of this type and shape. */
size_t sheaf__meta_slice_bytes(const struct sheaf_split_state *state, int member,
                               enum sheaf_type type, const int64_t ne[SHEAF_MAX_DIMS]);

/* Places the slice of local member `local` in *buffer, which is made anew if it is missing or too
 * small. */
enum sheaf_status sheaf__meta_place_slice(const struct meta_device *dev, int local,
                                          enum sheaf_backend_buffer_usage usage,
                                          sheaf_backend_buffer_t *buffer,
                                          struct sheaf_tensor *slice);

extern const struct sheaf_backend_buffer_type_i sheaf__meta_buft_iface;
bool sheaf__meta_is_buffer(sheaf_backend_buffer_t buffer);
/* The record of a leaf of a graph: weights, caches and inputs in buffers of this device. NULL and
 * an error text if the leaf lies elsewhere, or if its memory was given to another graph since. */
struct meta_tensor *sheaf__meta_leaf(const struct meta_device *dev,
                                     const struct sheaf_tensor *leaf);
/* Is it an input or an earlier result (a leaf of a compute buffer, whose slices may move between
 * computes)? */
bool sheaf__meta_leaf_is_input(const struct sheaf_tensor *leaf);

/* A buffer type of one member, for compute buffers. */
struct meta_shared {
    struct sheaf_backend_buffer_type buft;
    struct sheaf_comm *comm;
    int member;
    sheaf_backend_buffer_type_t plain; /* of the device */
};
/* Fills *s, which outlives the buffers; &s->buft, or the device's own type where sharing has no
 * reader or the device cannot use it. */
sheaf_backend_buffer_type_t sheaf__meta_shared_buft(struct meta_shared *s, struct sheaf_comm *comm,
                                                    int member, sheaf_backend_dev_t device);

enum meta_instr_kind {
    INSTR_SPAN,       /* compute nodes [first, last) of the local graph */
    INSTR_ZERO,       /* fill `out` with zeros */
    INSTR_COLLECTIVE, /* `call`: of `in`, or of `out` in place, into `out` */
    INSTR_COPY,       /* of `in` to `out`, alike in type and shape, by the host */
};

struct meta_instr {
    enum meta_instr_kind kind;
    int first, last;
    struct sheaf_tensor *in, *out;
    struct sheaf_comm_call call; /* without the addresses, which change with the memory */
    size_t *sizes;               /* the call's; owned */
    struct sheaf_cgraph span;    /* the nodes as a graph */
    bool started;                /* it runs while later instructions do (overlap.c) */
    struct meta_instr *after;    /* a started one that must have ended before; NULL: none */
    uint64_t ticket;             /* of a started one */
};

/* A local descriptor with META_FLAG_MOVES. */
struct meta_moving {
    struct sheaf_tensor *tensor, *of; /* it shows memory of `of` */
    size_t offset;                    /* from there */
    int view;                         /* of the program's views; -1: the offset stays */
};

/* One local member's share of a program. */
struct meta_part {
    struct sheaf_context **ctx;  /* [n_ctx] of the descriptors, made as they are needed */
    size_t n_ctx, cap_ctx, room; /* for so many more in the last one */
    struct sheaf_cgraph graph;   /* all local nodes, for the allocator; arrays owned by the part */
    struct sheaf_tensor **value; /* [plan values] */
    struct meta_instr *instrs;
    int n_instrs;
    struct meta_moving *moving; /* [n_moving] operands before what shows them */
    size_t n_moving, cap_moving;
};

/* A VIEW with SHEAF_BACKEND_META_TENSOR_MOVES. */
struct meta_view {
    int step;       /* of the plan */
    int64_t offset; /* in its operand, as the parts have it */
    bool moved;     /* while the parts are changed */
};

struct meta_program {
    uint64_t key;    /* of the graph's structure and leaves, local to this process */
    uint64_t leaves; /* of the leaves alone */
    uint64_t uid; /* of the graph computed last */
    uint64_t last_use;
    uint64_t generation; /* of the compute buffers when it was allocated */
    size_t needed;       /* bytes of the compute buffers of local members, then */
    bool reserved;       /* the memory that instructions need besides is there */
    int n_carried;       /* results kept now, whose states are the plan's */
    int n_nodes;
    int n_checked;     /* flagged results of a part, the same for every member */
    uint8_t *refused;  /* [n_nodes] 1 + a local member whose device does not take its slice; 0 */
    uint64_t n_copies; /* of local members, through the host */
    struct sheaf__split_plan *plan;
    struct meta_part *parts;         /* [n_local] */
    struct meta_tensor *node_record; /* [n_nodes] */
    struct sheaf_tensor **slices;    /* [n_nodes * n_local], storage of the records */
    int n_inputs;
    int *input_leaf;             /* [n_inputs] index into the graph's leafs */
    struct sheaf_tensor **input; /* [n_inputs * n_local] the parts' own descriptors */
    struct meta_view *views;     /* [n_views] in the order of steps */
    int n_views;
    bool views_unsure; /* a move has failed: parts may lie anywhere */
    sheaf_backend_buffer_t *buffers; /* [n_buffers] of the weights and caches, some several times */
    size_t n_buffers, cap_buffers;
    bool weights_gone; /* one of the buffers was freed: no graph finds the program again */
};

/* whole: see sheaf__split_plan_new_with. */
enum sheaf_status sheaf__meta_program_new(struct meta_device *dev, const struct sheaf_cgraph *graph,
                                          const uint8_t *whole, struct meta_program **out);
void sheaf__meta_program_free(struct meta_program *program, int n_local);
/* Frees all that it points to except the records of its nodes, whose results are unknown then. */
void sheaf__meta_program_empty(struct meta_program *program, int n_local);
/* Spans of a part are no longer what they were when they ran last (tensor/graph.h, version). */
void sheaf__meta_renew_spans(struct meta_part *part);
/* Points the input descriptors, and the views of them, at the leaves' present memory. */
enum sheaf_status sheaf__meta_program_bind(const struct meta_device *dev,
                                           struct meta_program *program,
                                           const struct sheaf_cgraph *graph);
/* ---- moving.c ---- */
bool sheaf__meta_is_moving(const struct sheaf_tensor *node);
/* Fills p->views, when the plan's steps are in their order. */
enum sheaf_status sheaf__meta_find_views(struct meta_program *p, const struct sheaf_cgraph *graph);
/* Is the program right for where the graph's views are now? The same on every rank. */
bool sheaf__meta_can_move(const struct meta_program *p, const struct sheaf_cgraph *graph);
/* Moves the parts' views there; sheaf__meta_can_move said yes, and the parts have memory. */
enum sheaf_status sheaf__meta_move(const struct meta_device *dev, struct meta_program *p,
                                   const struct sheaf_cgraph *graph);

enum sheaf_status sheaf__meta_backend_new(struct meta_device *dev, sheaf_backend_t *out);
/* ---- cache.c ---- */
/* The buffer goes, and with it the weights and caches that programs name. */
void sheaf__meta_weights_go(const struct meta_device *dev, sheaf_backend_buffer_t buffer);

#endif
