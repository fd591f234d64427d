/* The scheduler's own structures, shared by its files.
 *
 *   sched.c          life, allocation, public functions, the dump
 *   assign.c   a backend for every tensor
 *   split.c    splits, copies, what a backend is given to compute
 *   run.c      computing the splits of a graph
 *
 * A *slot* is everything about one graph, so that several can be in flight. The tensors of the
 * user's graph are changed only between sheaf__sched_patch and sheaf__sched_unpatch. */
#ifndef SHEAF_SCHED_SCHED_H
#define SHEAF_SCHED_SCHED_H

#include "alloc/gallocr.h"
#include "base/arith.h"
#include "sheaf/alloc.h"
#include "sheaf/backend-impl.h"
#include "sheaf/sched.h"
#include "tensor/access.h"
#include "tensor/graph.h"
#include "tensor/op_info.h"

enum { SCHED_NONE = -1, SCHED_ALWAYS = INT32_MAX };

struct sched_info { /* of a tensor of the graph, or read by it */
    struct sheaf_tensor *tensor;
    int backend; /* SCHED_NONE: none */
    bool by_user;
    const char *cause;
    const struct sheaf_tensor *cause_tensor;
    int last_read; /* owners of memory: execution position of the last reader of a kept result */
    int position;  /* where it is computed, SCHED_NONE: not by this graph */
    int copies;    /* head of a list in slot->copies, SCHED_NONE: empty */
    bool written;  /* owners of memory: a node that was split already writes into it */
};

struct sched_map { /* open-addressed: tensor -> number */
    struct {
        const struct sheaf_tensor *tensor;
        int value;
    } * slots;
    size_t n_slots, n_used;
};

struct sched_copy { /* of `src` in memory of `backend` */
    struct sheaf_tensor *src;
    int backend;
    int next;
    bool from_user;                                    /* src is an input that the user sets */
    bool shared; /* false: of a redirected node, brought back */
    struct sheaf_tensor *copy[SHEAF_SCHED_MAX_COPIES]; /* of each slot */
};

struct sched_exec {              /* a node to compute */
    struct sheaf_tensor *tensor; /* of the user's graph */
    struct sheaf_tensor *run;    /* itself, or redirected: it writes into a copy */
    struct sheaf_tensor *target; /* of a redirected one: what the copy is brought back to */
};

struct sched_split {
    int backend;
    int first, last;          /* of slot->exec */
    int first_copy, n_copies; /* of slot->copies */
    int subgraph;             /* of slot->subgraphs */
};

struct sched_patch { /* of the user's tensors */
    struct sheaf_tensor *tensor;
    struct sheaf_tensor *from, *to;
    int src;       /* operand, or SCHED_NONE: flags */
    int32_t flags; /* to set */
    int32_t added; /* of the flags: those that the tensor did not have */
};

struct sched_subgraph { /* nodes [first, last) of the execution order, as a graph */
    int first, last;
    int first_node, n_nodes, first_leaf, n_leafs; /* of slot->nodes, slot->leafs */
    struct sheaf_cgraph graph;
};

struct sched_carried { /* a value that a backend holds for later splits or for the user */
    struct sheaf_tensor *tensor;
    int backend;
    int until; /* execution position of its last reader */
};

#define SCHED_LIST(type)                                                                           \
    struct {                                                                                       \
        type *at;                                                                                  \
        int n;                                                                                     \
        size_t cap;                                                                                \
    }

struct sched_slot {
    struct sheaf_cgraph *graph;
    uint64_t uid;
    struct sched_map map; /* tensor -> info */
    SCHED_LIST(struct sched_info) info;
    SCHED_LIST(struct sched_split) splits;
    SCHED_LIST(struct sched_copy) copies;
    SCHED_LIST(struct sched_exec) exec;
    SCHED_LIST(struct sched_patch) patches;
    SCHED_LIST(struct sched_subgraph) subgraphs;
    SCHED_LIST(struct sheaf_tensor *) nodes; /* of subgraphs */
    SCHED_LIST(struct sheaf_tensor *) leafs;
    SCHED_LIST(uint64_t) seen; /* [info] number of the subgraph that lists the tensor */
    /* for the allocator */
    SCHED_LIST(struct sheaf_tensor *) alloc_nodes;
    SCHED_LIST(int) node_ids;
    SCHED_LIST(int) leaf_ids;
    SCHED_LIST(struct sheaf_tensor *)
    blocks; /* SCHED_BLOCK descriptors each: copies, redirected nodes */
    int n_tensors;
    /* a split reads or writes another backend's memory where it lies, or writes an input, or copies
     * go where another backend's results may lie */
    bool direct;
    bool patched, in_flight;
    uint64_t n_subgraphs; /* ever built */
};

enum { SCHED_BLOCK = 64 };

struct sheaf_backend_sched {
    int n_backends;
    sheaf_backend_t *backends;
    sheaf_backend_buffer_type_t *bufts;
    bool *async, *dirty;           /* [n_backends]; dirty: something may be in its queue */
    sheaf_backend_event_t *events; /* [n_backends * n_copies]; NULL entries possible */
    bool op_offload;
    int n_copies, current; /* slots */
    bool is_split, is_alloc;
    int debug;
    struct sched_slot slots[SHEAF_SCHED_MAX_COPIES];
    struct sched_map user; /* tensor -> backend, as the user wants it */
    sheaf_gallocr_t galloc;
    uint64_t layout; /* of the graph placed last */
    char *staging;
    size_t staging_size;
    SCHED_LIST(struct sched_carried) carried;
    sheaf_backend_sched_eval_fn callback;
    void *callback_user;
};

/* Room for n entries, contents kept. */
enum sheaf_status sheaf__sched_room(void *array, size_t *cap, size_t n, size_t entry);
#define SCHED_ROOM(list, count)                                                                    \
    sheaf__sched_room(&(list).at, &(list).cap, (size_t)(count), sizeof *(list).at)

/* sched.c */
int sheaf__sched_map_get(const struct sched_map *map, const struct sheaf_tensor *t); /* or NONE */
enum sheaf_status sheaf__sched_map_put(struct sched_map *map, const struct sheaf_tensor *t,
                                       int value);
enum sheaf_status sheaf__sched_map_clear(struct sched_map *map, size_t n_expected);
/* The info of a tensor that has one. */
static inline struct sched_info *sheaf__sched_info_of(const struct sched_slot *slot,
                                                      const struct sheaf_tensor *t) {
    return &slot->info.at[sheaf__sched_map_get(&slot->map, t)];
}
/* Only looks at memory; computes nothing. */
static inline bool sheaf__sched_is_view(const struct sheaf_tensor *t) {
    return sheaf_op_is_view(t->op) || t->op == SHEAF_OP_NONE;
}
/* The tensor's memory comes from elsewhere than the scheduler. */
static inline bool sheaf__sched_is_placed(const struct sheaf_backend_sched *s,
                                          const struct sheaf_tensor *t) {
    const struct sheaf_tensor *o = sheaf__memory_owner(t);
    return o->buffer && !sheaf__gallocr_owns(s->galloc, o->buffer);
}

/* assign.c */
enum sheaf_status sheaf__sched_assign(struct sheaf_backend_sched *s, struct sched_slot *slot);
/* The info of a tensor, made if there is none. NULL: out of memory. Moves when others are made. */
struct sched_info *sheaf__sched_info(struct sched_slot *slot, struct sheaf_tensor *t);
/* Can the backend use the tensor where it lies or will lie? */
bool sheaf__sched_can_use(struct sheaf_backend_sched *s, struct sched_slot *slot, int backend,
                          struct sheaf_tensor *t);

/* split.c */
enum sheaf_status sheaf__sched_split(struct sheaf_backend_sched *s, struct sched_slot *slot);
void sheaf__sched_patch(struct sched_slot *slot);
void sheaf__sched_unpatch(struct sched_slot *slot);
/* Does the backend keep no memory between graphs, and so is told what to hand on? */
static inline bool sheaf__sched_hands_on(const struct sheaf_backend_sched *s, int backend) {
    return s->backends[backend]->iface->release_tensor != NULL;
}
/* Does it take memory for such graphs ahead? */
static inline bool sheaf__sched_reserves(const struct sheaf_backend_sched *s, int backend) {
    return sheaf__sched_hands_on(s, backend) && s->backends[backend]->iface->graph_reserve;
}
/* Makes the subgraph of nodes [first, last) of a split; the slot is patched. */
enum sheaf_status sheaf__sched_subgraph(struct sheaf_backend_sched *s, struct sched_slot *slot,
                                        const struct sched_split *split, int first, int last,
                                        int next_start);
/* Execution position at which `backend` computes again after `position`, or SCHED_NONE. */
int sheaf__sched_next_start(const struct sched_slot *slot, int backend, int position);

/* run.c */
enum sheaf_status sheaf__sched_run(struct sheaf_backend_sched *s, struct sched_slot *slot);
/* Has backends take the memory that they need besides the tensors'; the graph is placed and
 * patched. */
enum sheaf_status sheaf__sched_dry_run(struct sheaf_backend_sched *s, struct sched_slot *slot);
/* Has backends release what they carry: outputs of a compute are kept until the next one. */
void sheaf__sched_release_all(struct sheaf_backend_sched *s);
/* Host memory for copies that go through it: what the slot's graph may need, and having it. */
size_t sheaf__sched_staging(const struct sheaf_backend_sched *s, const struct sched_slot *slot);
enum sheaf_status sheaf__sched_stage(struct sheaf_backend_sched *s, size_t size);

#endif
