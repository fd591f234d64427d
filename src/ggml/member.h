/* What the files of libsheaf-ggml.so share: devices of a ggml library as devices of sheaf.
 *
 * A tensor of ours and its descriptor for ggml have one address, one type and one layout; only op,
 * operands and parameters are translated. Descriptors of weights and caches live as long as their
 * buffer, because backends of ggml may keep facts in them; those of a graph as long as the graph is
 * kept. */
#ifndef SHEAF_GGML_MEMBER_H
#define SHEAF_GGML_MEMBER_H

#include <string.h>

#include "ggml/library.h"
#include "ggml/translate.h"
#include "sheaf/backend-impl.h"

enum { GG_MAX_LAYOUTS = 4 };

/* A layout that the device may want weights in. */
struct gg_layout {
    struct gg_buft *buft;
    struct gg_buffer *nothing; /* without memory: tensors in it are for questions */
};

struct gg_member {
    struct sheaf_backend_device base; /* context: this struct */
    struct sheaf_backend_buffer_type buft, host_buft;
    const struct gg_library *lib;
    struct gg_device *dev;
    struct gg_buft *gg_buft, *gg_host_buft; /* the latter NULL: the device has none */
    int type;                               /* GG_DEVICE_TYPE_... */
    bool has_addresses; /* kernels get addresses, so operands may begin anywhere */
    struct sheaf_backend_dev_caps caps;
    struct gg_layout layouts[GG_MAX_LAYOUTS];
    int n_layouts;
    char name[64], description[192];
};

static inline struct gg_member *gg_member_of(sheaf_backend_dev_t dev) {
    return (struct gg_member *)dev->context;
}

/* Extents and strides. A dimension of one element has the stride of a dense tensor: a slice keeps
 * those of the whole, no address depends on them, but kernels of ggml step by them to further
 * states. */
static inline void gg_lay_out(const struct sheaf_tensor *t, struct gg_tensor *out) {
    for (int i = 0; i < GG_MAX_DIMS; i++) {
        const size_t dense = !i       ? sheaf_type_size(t->type)
                             : i == 1 ? sheaf_row_size(t->type, t->ne[0])
                                      : out->nb[i - 1] * (size_t)t->ne[i - 1];
        out->ne[i] = t->ne[i];
        out->nb[i] = t->ne[i] == (i ? 1 : sheaf_blck_size(t->type)) ? dense : t->nb[i];
    }
}

/* Type, extents, strides and name. A type that this ggml lacks is -1. */
static inline void gg_describe_shape(const struct gg_library *lib, const struct sheaf_tensor *t,
                                     struct gg_tensor *out) {
    out->type = lib->type[t->type];
    gg_lay_out(t, out);
    memcpy(out->name, t->name, sizeof out->name);
}
static inline bool gg_has_layout(const struct gg_tensor *t, const struct gg_tensor *like) {
    return t->type == like->type && !memcmp(t->ne, like->ne, sizeof t->ne) &&
           !memcmp(t->nb, like->nb, sizeof t->nb);
}

/* ---- member_memory.c ---- */

/* Of a weight or a cache. */
struct gg_kept {
    struct gg_tensor gg;         /* as it was written; its tensor's `extra` */
    struct gg_tensor packed;     /* in a layout of the device */
    struct gg_buffer *packed_in; /* NULL: it is not */
    size_t renewed;              /* of packed weights: bytes of a new value that lie as written */
    const char *read_as_written; /* what was done with it so: it must stay; NULL: nothing */
    bool is_told;                /* that it stays was logged */
};

struct gg_member_buffer {
    struct gg_member *member;
    struct gg_buffer *gg;
    /* of this process's buffers: an address may come again, a serial does not; another one when a
     * packed weight gets a new value in parts, so that graphs are made anew, and look at it */
    uint64_t serial;
    struct gg_kept **kept;
    size_t n_kept, cap_kept;
};

extern const struct sheaf_backend_buffer_type_i gg_member_buft_i;

/* The buffer that t, or the tensor that it is a view of, lies in; NULL: it has none, or it is not
 * one of ggml's. */
const struct gg_member_buffer *gg_member_buffer_of(const struct sheaf_tensor *t);
/* Gives the buffer that t lies in another serial. */
void gg_member_buffer_renew(const struct sheaf_tensor *t);
/* What the buffer of t, or of the tensor that it is a view of, keeps of it; NULL: nothing. */
struct gg_kept *gg_member_kept(const struct sheaf_tensor *t);
/* Type, extents, strides and name, as bytes where this ggml lacks the type. */
struct gg_tensor gg_member_describe_shape(const struct gg_member *m, const struct sheaf_tensor *t);
/* A descriptor without op of a tensor with memory, for transfers. */
struct gg_tensor gg_member_describe(const struct gg_member *m, const struct sheaf_tensor *t);

/* ---- member_pack.c ---- */

void gg_find_layouts(struct gg_member *m);
/* The descriptor, in a layout of the device, of a weight that is operand 0 of `node`, which is `gg`
 * in the library; NULL: the weight stays as it was written. The first call for a weight rearranges
 * it. */
struct gg_tensor *gg_pack(const struct sheaf_tensor *weight, const struct sheaf_tensor *node,
                          const struct gg_tensor *gg);
void gg_packed_free(const struct gg_library *lib, struct gg_kept *k);
/* Below, t may also be a view of the weight, and `what`, which stays, says for texts what is
 * done. */
bool gg_is_packed(const struct sheaf_tensor *t);
/* UNSUPPORTED: the weight does not lie any more as it was written. */
enum sheaf_status gg_refuse_packed(const struct sheaf_tensor *t, const char *what);
/* The same, and it is not packed later: what reads it once may read it again. */
enum sheaf_status gg_read_as_written(const struct sheaf_tensor *t, const char *what);
/* *done: t is packed and takes the bytes: all of them, or those that follow the last ones. When the
 * last have come, it is packed anew; no graph can compute with it before. UNSUPPORTED: other parts
 * of one that is packed. */
enum sheaf_status gg_write_packed(const struct sheaf_tensor *t, const void *data, size_t offset,
                                  size_t size, bool *done);

/* ---- member_backend.c ---- */

enum sheaf_status gg_member_backend_new(struct gg_member *m, const char *params,
                                        sheaf_backend_t *out);
enum sheaf_status gg_member_event_new(sheaf_backend_dev_t dev, sheaf_backend_event_t *out);
void gg_member_event_free(sheaf_backend_dev_t dev, sheaf_backend_event_t event);
enum sheaf_status gg_member_event_synchronize(sheaf_backend_dev_t dev, sheaf_backend_event_t event);

/* ---- member_graph.c ---- */

struct gg_member_graph; /* a graph of ggml that stands for one of the library */

/* The tensors of `graph` are allocated. UNSUPPORTED: a node that the device cannot compute. */
enum sheaf_status gg_member_graph_new(struct gg_member *m, const struct sheaf_cgraph *graph,
                                      struct gg_member_graph **out);
void gg_member_graph_free(struct gg_member_graph *g);
/* Is it still what `graph` would be translated to? Reads the nodes and operands of `graph`
 * alone. */
enum gg_fit {
    GG_FITS_NOT,
    GG_FITS,
    GG_FITS_MOVED, /* it will be, after gg_member_graph_move, which no work may meet */
};
enum gg_fit gg_member_graph_fit(const struct gg_member_graph *g, const struct sheaf_cgraph *graph);
/* Moves views to where the graph has them now. False: the device does not take a node there, and
 * the graph is to be made anew. */
bool gg_member_graph_move(struct gg_member_graph *g);
/* NULL: there is nothing to compute. */
struct gg_cgraph *gg_member_graph_get(const struct gg_member_graph *g);
/* For a bound on what is kept. */
size_t gg_member_graph_n_tensors(const struct gg_member_graph *g);

/* ---- member_supports.c ---- */

/* Does the device compute the node, which needs no memory? */
bool gg_member_supports(const struct gg_member *m, const struct sheaf_tensor *node);
/* The same of a node that its op is known to be defined for: it may be a slice. */
bool gg_member_takes(const struct gg_member *m, const struct sheaf_tensor *node);
/* Bytes that the device wants for t in this type of buffer. It may want more for the result of an
 * op than the result has: room that its kernel works in. */
size_t gg_member_alloc_size(const struct gg_member *m, struct gg_buft *buft,
                            const struct sheaf_tensor *t);

/* ---- member_accepts.c ---- */

/* What ggml asserts of a node beyond sheaf_backend_op_is_valid and what its devices say. */
bool gg_member_accepts(const struct gg_member *m, const struct sheaf_tensor *node);
/* May the view be an operand that the device binds as it begins? CPUs take every address. */
bool gg_member_binds(const struct gg_member *m, const struct sheaf_tensor *view);

/* ---- member_lower.c ---- */

enum { GG_MAX_LOWERED = 64 };

/* Nodes of ours that take the place of one which ggml has no op or no parameters for. */
struct gg_lowered {
    struct sheaf_tensor t[GG_MAX_LOWERED]; /* nodes in order; op NONE: values, below */
    int n;
    bool takes[GG_MAX_LOWERED]; /* lies where the original's result lies */
    float *values;              /* [ne] of the one tensor with op NONE; NULL: there is none */
};

/* False: the node stays as it is (out->n 0), or cannot be lowered (out->n -1). */
bool gg_lower(const struct gg_member *m, const struct sheaf_tensor *node, struct gg_lowered *out);
void gg_lowered_free(struct gg_lowered *l);

#endif
