/* Shared by the files of sheaf-backend-ops: the description of a case and how to run one.
 *
 *   cases*.c  the table of families and their cases
 *   run.c    one case on one backend: operands, data, graph, result
 *   sheaf-backend-ops.c  the modes: test, support, perf */
#ifndef SHEAF_TOOLS_BACKEND_OPS_H
#define SHEAF_TOOLS_BACKEND_OPS_H

#include "sheaf/sheaf.h"

enum { MAX_OPERANDS = 7 };

/* How an operand lies in its leaf. */
enum layout {
    LAYOUT_PLAIN,
    LAYOUT_GAP,        /* rows of a larger tensor, from its second row on */
    LAYOUT_PERMUTED,   /* dimensions 1 and 2 change places */
    LAYOUT_TRANSPOSED, /* dimensions 0 and 1 do */
};

enum fill {
    FILL_VALUES,   /* -1 to 1 */
    FILL_UNIT,     /* rows of about length 1 */
    FILL_POSITIVE, /* 0.5 to 1.5 */
    FILL_MASK,     /* -inf here and there, never in column 0 */
    FILL_INDEX,    /* 0 to limit - 1 */
    FILL_DISTINCT, /* the same, none twice in a row */
};

struct operand {
    enum sheaf_type type;
    int64_t ne[SHEAF_MAX_DIMS];
    enum layout layout;
    enum fill fill;
    int64_t limit;
};

struct op_case {
    const struct op_family *family;
    struct operand in[MAX_OPERANDS];
    int n_in;
    int i[4]; /* parameters of the family's build function */
    float f[4];
    bool large; /* for perf; few split states */
};

struct op_list {
    struct op_case *cases;
    size_t n, cap;
    bool full; /* out of memory: cases are missing */
    struct op_case spill;
};

struct op_family {
    const char *name; /* as sheaf_op_desc says it */
    void (*generate)(struct op_list *list, const struct op_family *family);
    /* The op on operands x, which have their layout. */
    struct sheaf_tensor *(*build)(struct sheaf_context *ctx, const struct op_case *c,
                                  struct sheaf_tensor **x);
    double max_error; /* normalised mean square error against the reference */
    int number;       /* of a unary or glu op */
    int typed;        /* the operand whose types the op is listed by */
};

extern const struct op_family op_families[];
extern const size_t n_op_families;

/* All cases; *list is zeroed by the caller and its array freed by it. False: out of memory. */
bool op_list_all(struct op_list *list);
/* "a f32 [10,5,4,3] gap, b f16 [10,1,1,1], i 0 2, f 1" */
const char *op_case_text(const struct op_case *c, char *text, size_t size);

/* The operands of a case, each in the type and order of its leaf. Every run of the case takes the
 * same: to encode random values costs more than most ops. */
struct op_data {
    void *bytes[MAX_OPERANDS];
};

/* On an error nothing is to be freed. */
enum sheaf_status op_data_make(struct op_data *data, const struct op_case *c, uint64_t seed);
void op_data_free(struct op_data *data);

/* A case made on a backend: graph allocated, operands filled. Leaves are named "x0".. and have a
 * buffer of their own that is no compute buffer, so a meta device asks for their split states. */
struct op_rig {
    struct sheaf_context *ctx_leafs, *ctx_graph;
    sheaf_backend_buffer_t buffer;
    sheaf_gallocr_t galloc;
    struct sheaf_cgraph *graph;
    struct sheaf_tensor *result;
};
/* UNSUPPORTED if the device does not support the op. */
enum sheaf_status op_rig_up(struct op_rig *rig, sheaf_backend_t backend, const struct op_case *c,
                            const struct op_data *data);
/* The whole result as floats; for a view, the whole tensor behind it. The caller frees it. */
enum sheaf_status op_rig_result(const struct op_rig *rig, float **values, size_t *n);
void op_rig_down(struct op_rig *rig);
/* The op's tensor with bare operands, in ctx, for questions of support. */
struct sheaf_tensor *op_case_build(struct sheaf_context *ctx, const struct op_case *c);

#endif
