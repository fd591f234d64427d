/* The meta device: many devices, local and remote, behind one.
 *
 * SPMD: every rank wraps the same world devices in the same order, makes the same calls in the same
 * order, and holds only the slices of its own members. Weights and caches (tensors in buffers that
 * are not compute buffers) get their split state from the caller's function, and memory of their own,
 * so two of one graph must not lie over each other; everything that a graph computes follows by
 * propagation; leaves of compute buffers (inputs) are mirrored. A graph is compiled once into a plan
 * of spans and collectives and cached.
 *
 * tensor_set takes the whole tensor (each rank copies its slices); tensor_set_from asks only for
 * the bytes that the rank holds; tensor_get gathers, so it is collective: every rank must call it.
 * So is sheaf_backend_dev_supports_op where a rank has no device of some member's kind (a GPU here,
 * a CPU there), since a rank can ask its own devices only.
 *
 * tensor->data of its tensors names a place that holds no memory, and its buffers are not host
 * memory: a program that reads or writes there crashes. The data lie in the members' slices.
 *
 * Members may be of any kind. Values of those whose memory is not the host's go through their host
 * buffer type (pinned memory) into the collectives. */
#ifndef SHEAF_META_H
#define SHEAF_META_H

#include "sheaf/backend.h"
#include "sheaf/comm.h"
#include "sheaf/split.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Must return the same state on every rank; the meta device frees *out. */
typedef enum sheaf_status (*sheaf_backend_meta_get_split_state_fn)(
    const struct sheaf_tensor *tensor, const void *user, struct sheaf_split_state **out);

/* Sums between hosts that run while the members compute: one starts when its addends are there, and
 * is waited for where its result is read. It pays if the graph has other work for that time, as one
 * of two chunks of a prompt has. The results are the same. Not available to members with device
 * memory. */
enum sheaf_backend_meta_overlap {
    SHEAF_BACKEND_META_OVERLAP_CHEAPER, /* the default: between hosts, where an estimate says so */
    SHEAF_BACKEND_META_OVERLAP_NEVER,
    SHEAF_BACKEND_META_OVERLAP_ALWAYS, /* also on one host, and if they are short */
};

/* How a meta device works; alike on every rank. A field of 0 takes the default. */
struct sheaf_backend_meta_params {
    size_t size; /* sizeof */
    enum sheaf_backend_meta_overlap overlap;
    enum sheaf_type wire_type; /* of sums between hosts, as in struct sheaf_comm_params */
};

/* A flag of VIEW nodes of weights and caches: their place is a number of each compute and not of the
 * graph. Between computes the caller may change the offset (in op_params, in view_offs and data of the
 * view and of all nodes that show its memory). The compiled program is kept wherever the members own
 * the same parts of the view as before, at the same distances; elsewhere the graph is compiled again,
 * and both programs are kept. */
enum { SHEAF_BACKEND_META_TENSOR_MOVES = 1 << 21 };

/* A device around `devs` (of sheaf_world_devices or of the registry), ranks in non-decreasing
 * order. params may be NULL. Collective. The device lives until sheaf_backend_meta_device_free,
 * after its backends and buffers are freed. */
enum sheaf_status sheaf_backend_meta_device(const sheaf_backend_dev_t *devs, size_t n_devs,
                                            sheaf_backend_meta_get_split_state_fn get_split_state,
                                            const void *user,
                                            const struct sheaf_backend_meta_params *params,
                                            sheaf_backend_dev_t *out);
void sheaf_backend_meta_device_free(sheaf_backend_dev_t dev); /* accepts NULL */
bool sheaf_backend_dev_is_meta(sheaf_backend_dev_t dev);
/* Of another device than a meta device: 0, NULL or, for a member number, SIZE_MAX. */
size_t sheaf_backend_meta_dev_n_members(sheaf_backend_dev_t dev);
sheaf_backend_dev_t sheaf_backend_meta_dev_member(sheaf_backend_dev_t dev, size_t i);
size_t sheaf_backend_meta_dev_n_local(sheaf_backend_dev_t dev);
size_t sheaf_backend_meta_dev_local_member(sheaf_backend_dev_t dev,
                                           size_t i); /* member number of local member i */
/* true: some rank of the job has no device of a member's kind, and sheaf_backend_dev_supports_op of this
 * device is collective over all ranks. */
bool sheaf_backend_meta_dev_asks_all(sheaf_backend_dev_t dev);
struct sheaf_comm *sheaf_backend_meta_dev_comm(sheaf_backend_dev_t dev);

/* Puts bytes [offset, offset + size) of the i-th tensor of a list at dst. */
typedef enum sheaf_status (*sheaf_backend_meta_read_fn)(void *user, size_t i, size_t offset,
                                                        void *dst, size_t size);
/* sheaf_backend_tensor_set_from of n tensors of one meta device, where some ranks cannot read: those
 * r with reads[r], and `root`, read what they hold; to each of the others root sends what it holds,
 * and no more, in blocks of a MiB at most, and `read` may be NULL there. reads has world_size() entries,
 * alike on all ranks. Collective: all ranks call, those without a member too. A failure to read, or of
 * a device, is of that rank only, and the others end the call in step with it: agree
 * (sheaf_world_agree) before the values are used. root calls `read` for itself and for others in turns.
 * Whole tensors, no views. *sent (may be NULL) grows by the bytes that root has sent, on all ranks. */
enum sheaf_status sheaf_backend_meta_tensors_load(struct sheaf_tensor *const *tensors, size_t n,
                                                  const bool *reads, int root,
                                                  sheaf_backend_meta_read_fn read, void *user,
                                                  uint64_t *sent);

/* State of a tensor: for static tensors always, for computed ones after the graph was computed.
 * NULL if unknown. */
const struct sheaf_split_state *sheaf_backend_meta_get_state(const struct sheaf_tensor *tensor);
/* The slice of local member i, as an allocated tensor of that member's device; NULL if the tensor
 * has none yet. Valid until the next compute of another graph. A device may keep weights in an order of its own: their
 * bytes are read and written by sheaf_backend_tensor_get and _set, also where the buffer was host memory once. */
struct sheaf_tensor *sheaf_backend_meta_get_slice(const struct sheaf_tensor *tensor, size_t i);

/* The backend that local member i computes with, owned by `backend` of the meta device: for graphs over
 * its slices between computes. NULL if there is no such member. */
sheaf_backend_t sheaf_backend_meta_member_backend(sheaf_backend_t backend, size_t i);

/* Called for local member i, on its thread, in a compute of a graph with the tensor, when all of the
 * member's part was submitted to its backend and before that is waited for: it may submit more, which
 * is done when the compute returns. slice: the tensor's, valid during the call. Not called for members
 * in host memory, which have no queue, and not in check mode. */
typedef void (*sheaf_backend_meta_follow_fn)(void *user, size_t i, sheaf_backend_t member_backend,
                                             const struct sheaf_tensor *slice);
/* One tensor of a backend is followed; fn NULL: none. Between computes. */
void sheaf_backend_meta_follow(sheaf_backend_t backend, const struct sheaf_tensor *tensor,
                               sheaf_backend_meta_follow_fn fn, void *user);

/* sheaf_backend_tensor_get for one rank: the others bring their slices and may give data NULL. Of
 * mirrored tensors no message is needed where `rank` drives a member. Collective. */
enum sheaf_status sheaf_backend_meta_tensor_get_at(const struct sheaf_tensor *tensor, int rank,
                                                   void *data, size_t offset, size_t size);

/* The calls below return INVALID (transport: NULL), with a text, for a backend of another device.
 */

/* true: after each compute, and for every mirrored result, hashes are compared over all members (of
 * what devices compute: over members of one kind); a difference fails the compute with the tensor's
 * name. INVALID if the backend lives on (below): a rank that has failed compares nothing. */
enum sheaf_status sheaf_backend_meta_set_check(sheaf_backend_t backend, bool check);

/* true: an op that fails on a member (an id outside of its rows) does not end the job. That member
 * goes on with the collectives, whose values mean nothing then, and graph_compute returns the
 * failure, on that rank only: the caller tells the others, and throws the results away. Failures of
 * collectives, and those that a device tells of later, end the job as ever. INVALID in check mode. */
enum sheaf_status sheaf_backend_meta_set_lives_on(sheaf_backend_t backend, bool lives_on);

/* How the members' data meet: "nccl", or "host memory: member 1 (CPU0@1) is a CPU" and other
 * reasons; "" with one member. Owned by the backend. */
const char *sheaf_backend_meta_transport(sheaf_backend_t backend);

struct sheaf_backend_meta_stats {
    size_t size;            /* sizeof, set by the caller */
    uint64_t n_computes;    /* graphs computed */
    uint64_t n_plans;       /* plans compiled */
    uint64_t compute_ns;    /* in spans, of this rank's first member */
    uint64_t collective_ns; /* in collectives, waiting included */
    uint64_t wait_ns;       /* of that: waiting for the slowest member */
    uint64_t n_collectives;
    uint64_t collective_bytes;
    size_t static_bytes;  /* slices of weights and caches of this rank */
    size_t compute_bytes; /* compute buffers of this rank */
    uint64_t hidden_ns;   /* of collective_ns: while the first member computed */
    uint64_t n_started;   /* of n_collectives: to run while it computes */
    size_t input_bytes;   /* inputs of graphs, of this rank's members */
    /* This rank stood still for others: waits in which a member did nothing else, of its member that
     * waited least (its other members waited for that one). */
    uint64_t stalled_ns;
};
enum sheaf_status sheaf_backend_meta_get_stats(sheaf_backend_t backend,
                                               struct sheaf_backend_meta_stats *stats);
enum sheaf_status sheaf_backend_meta_reset_stats(sheaf_backend_t backend);

/* ---- plans, described without computing ---- */

/* A tensor in one of the states that it takes in a plan. Values have numbers: the result of one
 * step is the operand of another if the numbers are equal. */
struct sheaf_backend_meta_value {
    int number; /* -1: no operand */
    const struct sheaf_tensor *tensor;
    const struct sheaf_split_state *state;
};

/* Valid during the call that gives it. */
struct sheaf_backend_meta_step {
    size_t size; /* sizeof, set by the library */
    enum sheaf_split_step_kind kind;
    enum sheaf_comm_kind collective; /* of a COLLECTIVE */
    int index;                       /* of the step: 0, 1, ... in order of execution */
    int span; /* steps of one span need no message; a collective has the number of the span that it
                 ends */
    int node; /* in the graph; of a conversion: the node that needs it */
    struct sheaf_backend_meta_value in[SHEAF_MAX_SRC]; /* conversions read in[0] */
    struct sheaf_backend_meta_value out;
    bool add_once;   /* only member 0 adds the mirrored operand to its addend */
    int64_t bytes;   /* conversions: of the whole tensor */
    const char *why; /* first gather for a node: which cuts did not fit, and what would avoid it */
};

/* Returns false to end the description. */
typedef bool (*sheaf_backend_meta_step_fn)(const struct sheaf_backend_meta_step *step, void *user);

/* Plans the graph for n_members and calls `visit` for each step. Needs no device and no memory of
 * tensors: leaves flagged as inputs are mirrored, of all others get_split_state gives the state.
 * Local: other ranks need not call it. */
enum sheaf_status
sheaf_backend_meta_describe_plan(const struct sheaf_cgraph *graph, int n_members,
                                 sheaf_backend_meta_get_split_state_fn get_split_state,
                                 const void *user, sheaf_backend_meta_step_fn visit,
                                 void *visit_user);
/* Bytes that each of n_members takes to compute the graph, bytes [n_members]: its compute buffer and
 * the inputs, placed as for a run on devices whose buffers are aligned to 64 bytes (CPUs), or a
 * little less elsewhere. Sums that run beside spans (sheaf_backend_meta_overlap) keep their addends
 * longer, which is not counted. Needs no device. Local. */
enum sheaf_status
sheaf_backend_meta_measure_graph(const struct sheaf_cgraph *graph, int n_members,
                                 sheaf_backend_meta_get_split_state_fn get_split_state,
                                 const void *user, size_t *bytes);
/* Writes which rows of states were considered for a node of the graph, what each would move and
 * compute, and why the one taken won: at most n bytes, always terminated. Local. */
enum sheaf_status
sheaf_backend_meta_explain_node(const struct sheaf_cgraph *graph, int n_members,
                                sheaf_backend_meta_get_split_state_fn get_split_state,
                                const void *user, int node, char *buf, size_t n);
/* "all-reduce" */
const char *sheaf_backend_meta_step_name(const struct sheaf_backend_meta_step *step);

#ifdef __cplusplus
}
#endif
#endif
