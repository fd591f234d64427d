/* Ops: their numbers, their parameters, and a constructor for each. A constructor makes a tensor
 * that stands for a computation; nothing runs until a backend computes a graph.
 *
 * Errors: NULL and sheaf_last_error() if shapes or types do not fit or the arena is full. Every
 * constructor accepts NULL operands and then returns NULL keeping the first error's text, so a
 * graph can be built without checks between calls. Shapes are written [ne0, ne1, ne2, ne3] in the
 * letters of the split rules (docs/split.md).
 *
 * Layout of op_params, 32-bit words by number (f: the bits of a float, i: int32, u: half of a
 * uint64):
 *   SCALE            0 f scale, 1 f bias
 *   TOP_K            0 i k
 *   CONCAT           0 i dim
 *   RMS_NORM         0 f eps
 *   VIEW             0 u offset, 1 u offset  (also in tensor.view_offs, relative to the owner)
 *   PERMUTE          0 i axis0, 1 i axis1, 2 i axis2, 3 i axis3
 *   SOFT_MAX         0 f scale, 1 f max_bias
 *   ROPE             0 i n_dims, 1 i mode, 2 i n_ctx_orig, 3 f freq_base, 4 f freq_scale,
 *                    5 f ext_factor, 6 f attn_factor, 7 f beta_fast, 8 f beta_slow, 9 i section0,
 *                    10 i section1, 11 i section2, 12 i section3, 13 i offset
 *   ROPE_BACK        0 i n_dims, 1 i mode, 2 i n_ctx_orig, 3 f freq_base, 4 f freq_scale,
 *                    5 f ext_factor, 6 f attn_factor, 7 f beta_fast, 8 f beta_slow, 9 i section0,
 *                    10 i section1, 11 i section2, 12 i section3, 13 i offset
 *   FLASH_ATTN_EXT   0 f scale, 1 f max_bias, 2 f logit_softcap
 *   UNARY            0 i op; XIELU: 1 f alpha_n, 2 f alpha_p, 3 f beta, 4 f eps
 *   GLU              0 i op, 1 i swapped; SWIGLU_OAI: 2 f alpha; it and SWIGLU_CLAMP: 3 f limit
 *   NORM             0 f eps
 *   L2_NORM          0 f eps
 *   GROUP_NORM       0 i groups, 1 f eps, 2 i channels of a group
 *   ARGSORT          0 i order
 *   CLAMP            0 f min, 1 f max
 *   LEAKY_RELU       0 f slope
 *   FILL             0 f value
 *   PAD              0 i left, 1 i right of dimension 0, 2 i, 3 i of dimension 1, 4 i, 5 i of
 *                    dimension 2, 6 i, 7 i of dimension 3, 8 i circular
 *   SSM_SCAN         0 i kept
 *   GATED_DELTA_NET  0 i kept
 *   GATED_LINEAR_ATTN  0 f scale
 *   SET              0 i, 1 i, 2 i, 3 i start
 *   ACC              0 i, 1 i, 2 i, 3 i start
 *   TRI              0 i type
 *   DIAG_MASK_INF    0 i n_past
 *   DIAG_MASK_ZERO   0 i n_past
 *   ARANGE           0 f start, 1 f stop, 2 f step
 *   IM2COL           0 i, 1 i size, 2 i, 3 i stride, 4 i, 5 i pad, 6 i, 7 i dilation
 *   CONV_2D          0 i, 1 i size, 2 i, 3 i stride, 4 i, 5 i pad, 6 i, 7 i dilation
 *   CONV_2D_DW       0 i, 1 i size, 2 i, 3 i stride, 4 i, 5 i pad, 6 i, 7 i dilation
 *   CONV_TRANSPOSE_1D  0 i stride
 *   POOL_1D          0 i, 1 i size, 2 i, 3 i stride, 4 i, 5 i pad, 6 i, 7 i dilation, 8 i kind
 *   POOL_2D          0 i, 1 i size, 2 i, 3 i stride, 4 i, 5 i pad, 6 i, 7 i dilation, 8 i kind
 *   UPSCALE          0 i mode, 1 i align_corners
 *   PAD_REFLECT_1D   0 i left, 1 i right
 *   ROLL             0 i, 1 i, 2 i, 3 i shift
 *   TIMESTEP_EMBEDDING  0 i dim, 1 i max_period
 *   DSV4_HC_COMB     0 f eps, 1 i n_iter
 *   DSV4_HC_PRE      0 f scale, 1 i gated
 *   CONV_TRANSPOSE_2D  0 i stride
 *   COL2IM_1D        0 i size, 1 i stride, 2 i pad
 *   IM2COL_3D        0 i, 1 i, 2 i size, 3 i, 4 i, 5 i stride, 6 i, 7 i, 8 i pad, 9 i, 10 i, 11 i
 *                    dilation
 *   CONV_3D          0 i, 1 i, 2 i size, 3 i, 4 i, 5 i stride, 6 i, 7 i, 8 i pad, 9 i, 10 i, 11 i
 *                    dilation
 *   WIN_PART         0 i size
 *   WIN_UNPART       0 i size
 * Words 14 and 15 (SHEAF_OP_PARAM_BASE, SHEAF_OP_PARAM_EXTENT) are 0, except on a slice of an
 * indexed dimension, where the meta device sets them. extent != 0 says "this operand holds indices
 * [base, base + its ne) of extent":
 *   GET_ROWS         rows of a: an id outside yields a row of zeros
 *   MUL_MAT_ID       experts: an id outside yields zeros
 *   ADD_ID           rows of b: an id outside yields zeros
 *   MEAN             elements of a row: the sum of the slice is divided by extent
 *   SOFT_MAX, FLASH_ATTN_EXT   heads: head h of the slice is head base + h of extent (ALiBi slopes)
 * On a slice of MUL_MAT that has some of the columns (tokens, or heads that meet one matrix), the
 * words are of the whole: 14 (SHEAF_OP_PARAM_NE1) its ne[1], 15 (SHEAF_OP_PARAM_COLUMNS) the columns
 * that meet a matrix. Devices choose kernels by such numbers; the slice gets those of the whole.
 * Word 13 of FLASH_ATTN_EXT (SHEAF_OP_PARAM_GROUP) is 0, except on a slice that begins or ends
 * inside of a group of query heads: then it is r, the query heads of a K/V head, and head h of the
 * slice reads K/V head (base % r + h) / r of the slice, whose K/V heads are those that its query
 * heads read. */
#ifndef SHEAF_OPS_H
#define SHEAF_OPS_H

#include "sheaf/type.h"

#ifdef __cplusplus
extern "C" {
#endif

struct sheaf_context;
struct sheaf_tensor;

enum sheaf_op {
    SHEAF_OP_NONE = 0, /* a leaf: weights, caches, inputs */
    SHEAF_OP_DUP,
    SHEAF_OP_ADD,
    SHEAF_OP_SUB,
    SHEAF_OP_MUL,
    SHEAF_OP_DIV,
    SHEAF_OP_SCALE,
    SHEAF_OP_SUM_ROWS,
    SHEAF_OP_ARGMAX,
    SHEAF_OP_TOP_K,
    SHEAF_OP_CONCAT,
    SHEAF_OP_RMS_NORM,
    SHEAF_OP_MUL_MAT,
    SHEAF_OP_MUL_MAT_ID,
    SHEAF_OP_CPY,
    SHEAF_OP_CONT,
    SHEAF_OP_RESHAPE,
    SHEAF_OP_VIEW,
    SHEAF_OP_PERMUTE,
    SHEAF_OP_TRANSPOSE,
    SHEAF_OP_GET_ROWS,
    SHEAF_OP_SET_ROWS,
    SHEAF_OP_SOFT_MAX,
    SHEAF_OP_ROPE,
    SHEAF_OP_FLASH_ATTN_EXT,
    SHEAF_OP_UNARY,
    SHEAF_OP_GLU,
    SHEAF_OP_SQR,
    SHEAF_OP_SQRT,
    SHEAF_OP_SIN,
    SHEAF_OP_COS,
    SHEAF_OP_LOG,
    SHEAF_OP_CLAMP,
    SHEAF_OP_LEAKY_RELU,
    SHEAF_OP_FILL,
    SHEAF_OP_NORM,
    SHEAF_OP_L2_NORM,
    SHEAF_OP_GROUP_NORM,
    SHEAF_OP_SUM,
    SHEAF_OP_MEAN,
    SHEAF_OP_ARGSORT,
    SHEAF_OP_ADD_ID,
    SHEAF_OP_REPEAT,
    SHEAF_OP_PAD,
    SHEAF_OP_ROPE_BACK,
    SHEAF_OP_SSM_CONV,
    SHEAF_OP_SSM_SCAN,
    SHEAF_OP_GATED_DELTA_NET,
    SHEAF_OP_RWKV_WKV6,
    SHEAF_OP_RWKV_WKV7,
    SHEAF_OP_GATED_LINEAR_ATTN,
    SHEAF_OP_SET,
    SHEAF_OP_ACC,
    SHEAF_OP_CUMSUM,
    SHEAF_OP_TRI,
    SHEAF_OP_DIAG,
    SHEAF_OP_DIAG_MASK_INF,
    SHEAF_OP_DIAG_MASK_ZERO,
    SHEAF_OP_SOLVE_TRI,
    SHEAF_OP_ARANGE,
    SHEAF_OP_LIGHTNING_INDEXER,
    SHEAF_OP_DSV4_HC_COMB,
    SHEAF_OP_DSV4_HC_PRE,
    SHEAF_OP_DSV4_HC_POST,
    SHEAF_OP_IM2COL,
    SHEAF_OP_CONV_2D,
    SHEAF_OP_CONV_2D_DW,
    SHEAF_OP_CONV_TRANSPOSE_1D,
    SHEAF_OP_POOL_1D,
    SHEAF_OP_POOL_2D,
    SHEAF_OP_UPSCALE,
    SHEAF_OP_PAD_REFLECT_1D,
    SHEAF_OP_ROLL,
    SHEAF_OP_TIMESTEP_EMBEDDING,
    SHEAF_OP_COUNT_EQUAL,
    SHEAF_OP_CONV_TRANSPOSE_2D,
    SHEAF_OP_COL2IM_1D,
    SHEAF_OP_IM2COL_3D,
    SHEAF_OP_CONV_3D,
    SHEAF_OP_WIN_PART,
    SHEAF_OP_WIN_UNPART,
    SHEAF_OP_GET_REL_POS,
    SHEAF_OP_ADD_REL_POS,
    SHEAF_OP_COUNT,
};

enum sheaf_unary_op {
    SHEAF_UNARY_OP_SILU,
    SHEAF_UNARY_OP_GELU, /* tanh approximation */
    SHEAF_UNARY_OP_RELU,
    SHEAF_UNARY_OP_TANH,
    SHEAF_UNARY_OP_SIGMOID,
    SHEAF_UNARY_OP_NEG,
    SHEAF_UNARY_OP_EXP,
    SHEAF_UNARY_OP_ABS,
    SHEAF_UNARY_OP_SGN,         /* -1, 0 or 1 */
    SHEAF_UNARY_OP_STEP,        /* x > 0 ? 1 : 0 */
    SHEAF_UNARY_OP_ELU,         /* x > 0 ? x : exp(x) - 1 */
    SHEAF_UNARY_OP_GELU_QUICK,  /* x * sigmoid(1.702 x) */
    SHEAF_UNARY_OP_GELU_ERF,    /* x/2 * (1 + erf(x / sqrt(2))) */
    SHEAF_UNARY_OP_HARDSWISH,   /* x * hardsigmoid(x) */
    SHEAF_UNARY_OP_HARDSIGMOID, /* min(1, max(0, (x + 3) / 6)) */
    SHEAF_UNARY_OP_EXPM1,       /* exp(x) - 1 */
    SHEAF_UNARY_OP_SOFTPLUS,    /* log(1 + exp(x)) */
    SHEAF_UNARY_OP_XIELU,       /* sheaf_xielu */
    SHEAF_UNARY_OP_FLOOR,
    SHEAF_UNARY_OP_CEIL,
    SHEAF_UNARY_OP_ROUND, /* halves away from 0 */
    SHEAF_UNARY_OP_TRUNC,
    SHEAF_UNARY_OP_COUNT,
};

enum sheaf_glu_op {
    SHEAF_GLU_OP_SWIGLU,       /* silu(a) * b */
    SHEAF_GLU_OP_GEGLU,        /* gelu(a) * b */
    SHEAF_GLU_OP_REGLU,        /* relu(a) * b */
    SHEAF_GLU_OP_GEGLU_ERF,    /* gelu_erf(a) * b */
    SHEAF_GLU_OP_GEGLU_QUICK,  /* gelu_quick(a) * b */
    SHEAF_GLU_OP_SWIGLU_OAI,   /* sheaf_swiglu_oai */
    SHEAF_GLU_OP_SWIGLU_CLAMP, /* sheaf_swiglu_clamp */
    SHEAF_GLU_OP_COUNT,
};

/* What stays of a square matrix; the rest becomes 0. */
enum sheaf_tri_type {
    SHEAF_TRI_TYPE_UPPER_DIAG, /* the diagonal and above */
    SHEAF_TRI_TYPE_UPPER,      /* above the diagonal */
    SHEAF_TRI_TYPE_LOWER_DIAG,
    SHEAF_TRI_TYPE_LOWER,
};

enum sheaf_pool {
    SHEAF_POOL_MAX,
    SHEAF_POOL_AVG,
};

enum sheaf_scale_mode {
    SHEAF_SCALE_MODE_NEAREST,
    SHEAF_SCALE_MODE_BILINEAR, /* along dimensions 0 and 1; the others by the nearest */
    SHEAF_SCALE_MODE_BICUBIC,  /* the same over 4 x 4 elements: convolution with a = -0.75 */
    /* BILINEAR whose triangles widen where a dimension shrinks, so that every element counts */
    SHEAF_SCALE_MODE_ANTIALIAS,
    SHEAF_SCALE_MODE_COUNT,
};

/* A window that moves over dimensions 0 and 1: its elements lie `dilation` apart, its places
 * `stride` apart, and `pad` elements of 0 surround the image. */
struct sheaf_window {
    int size[2], stride[2], pad[2], dilation[2];
};
/* The same over dimensions 0, 1 and 2. */
struct sheaf_window_3d {
    int size[3], stride[3], pad[3], dilation[3];
};

enum { SHEAF_HC_MAX = 8 }; /* most streams of hyper-connections */

enum sheaf_sort_order {
    SHEAF_SORT_ORDER_ASC,
    SHEAF_SORT_ORDER_DESC,
};

enum {
    SHEAF_OP_PARAM_GROUP = 13,
    SHEAF_OP_PARAM_BASE = 14,
    SHEAF_OP_PARAM_EXTENT = 15,
    SHEAF_OP_PARAM_NE1 = 14,
    SHEAF_OP_PARAM_COLUMNS = 15,
};

enum sheaf_rope_mode {
    SHEAF_ROPE_TYPE_NORMAL = 0, /* rotates pairs (2i, 2i+1): Llama */
    SHEAF_ROPE_TYPE_NEOX = 2,   /* rotates pairs (i, i + n_dims/2): Qwen, Gemma */
    /* Four positions a token, which sections of the pairs take turns with; pairs as NEOX. */
    SHEAF_ROPE_TYPE_MROPE = 8,   /* Qwen2-VL */
    SHEAF_ROPE_TYPE_VISION = 24, /* pairs (i, i + n_dims), n_dims half of a row: its encoder */
    SHEAF_ROPE_TYPE_IMROPE = 40, /* sections interleaved: Qwen3-VL */
};

const char *sheaf_op_name(enum sheaf_op op); /* "MUL_MAT" */
/* As sheaf_op_name, with the unary or glu op's own name. */
const char *sheaf_op_desc(const struct sheaf_tensor *t);
enum sheaf_unary_op sheaf_get_unary_op(const struct sheaf_tensor *t);
enum sheaf_glu_op sheaf_get_glu_op(const struct sheaf_tensor *t);
const char *sheaf_unary_op_name(enum sheaf_unary_op op);
const char *sheaf_glu_op_name(enum sheaf_glu_op op);

/* What the time of an op depends on. */
enum sheaf_op_cost {
    SHEAF_OP_COST_FREE,      /* nothing is computed: leaves and views */
    SHEAF_OP_COST_MOVE,      /* the bytes that it writes: copies and gathers */
    SHEAF_OP_COST_ROWS,      /* the bytes of its operands and its result */
    SHEAF_OP_COST_PRODUCT,   /* multiplications: its elements times the summed dimension */
    SHEAF_OP_COST_ATTENTION, /* two products for each query and each row of K and V */
};
enum sheaf_op_cost sheaf_op_get_cost(enum sheaf_op op);
/* Does the op only look at its operand's memory in another shape? */
bool sheaf_op_is_view(enum sheaf_op op);

/* Makes `node`, new and read by no other, write its result over its operand number `operand`: then
 * the result is that operand's memory, as a view of it. For ops that read an element before they
 * write the same one: elementwise ops, norms, SOFT_MAX and ROPE over their first operand, and
 * elementwise ops of two operands over the second, too. Returns node; NULL if the op does not allow
 * it, or the types or shapes differ. */
struct sheaf_tensor *sheaf_in_place(struct sheaf_tensor *node, int operand);

/* Elementwise; b is repeated to the shape of a. dst: the shape of a, F32 (or the type of a). */
struct sheaf_tensor *sheaf_add(struct sheaf_context *ctx, struct sheaf_tensor *a,
                               struct sheaf_tensor *b);
struct sheaf_tensor *sheaf_sub(struct sheaf_context *ctx, struct sheaf_tensor *a,
                               struct sheaf_tensor *b);
struct sheaf_tensor *sheaf_mul(struct sheaf_context *ctx, struct sheaf_tensor *a,
                               struct sheaf_tensor *b);
struct sheaf_tensor *sheaf_div(struct sheaf_context *ctx, struct sheaf_tensor *a,
                               struct sheaf_tensor *b);
struct sheaf_tensor *sheaf_scale(struct sheaf_context *ctx, struct sheaf_tensor *a, float s);
struct sheaf_tensor *sheaf_scale_bias(struct sheaf_context *ctx, struct sheaf_tensor *a, float s,
                                      float b);

/* Of each element; dst has the shape and type of a, which is F32, F16 or BF16. */
struct sheaf_tensor *sheaf_sqr(struct sheaf_context *ctx, struct sheaf_tensor *a);
struct sheaf_tensor *sheaf_sqrt(struct sheaf_context *ctx, struct sheaf_tensor *a);
struct sheaf_tensor *sheaf_sin(struct sheaf_context *ctx, struct sheaf_tensor *a);
struct sheaf_tensor *sheaf_cos(struct sheaf_context *ctx, struct sheaf_tensor *a);
struct sheaf_tensor *sheaf_ln(struct sheaf_context *ctx, struct sheaf_tensor *a); /* LOG */
/* min where a is less, max where it is more; NaN stays. min must not be above max. */
struct sheaf_tensor *sheaf_clamp(struct sheaf_context *ctx, struct sheaf_tensor *a, float min,
                                 float max);
/* a > 0 ? a : slope * a */
struct sheaf_tensor *sheaf_leaky_relu(struct sheaf_context *ctx, struct sheaf_tensor *a,
                                      float slope);
/* Of the shape and type of `like`, which is F32, F16 or BF16, every element `value`. `like` is not read and is no
 * operand. */
struct sheaf_tensor *sheaf_fill(struct sheaf_context *ctx, struct sheaf_tensor *like, float value);

/* Of each element; dst has the shape and type of a, which is F32, F16 or BF16. XIELU has parameters
 * and a constructor of its own. */
struct sheaf_tensor *sheaf_unary(struct sheaf_context *ctx, struct sheaf_tensor *a,
                                 enum sheaf_unary_op op);
struct sheaf_tensor *sheaf_silu(struct sheaf_context *ctx, struct sheaf_tensor *a);
struct sheaf_tensor *sheaf_gelu(struct sheaf_context *ctx, struct sheaf_tensor *a);
struct sheaf_tensor *sheaf_relu(struct sheaf_context *ctx, struct sheaf_tensor *a);
struct sheaf_tensor *sheaf_tanh(struct sheaf_context *ctx, struct sheaf_tensor *a);
struct sheaf_tensor *sheaf_sigmoid(struct sheaf_context *ctx, struct sheaf_tensor *a);
/* x > 0: p x^2 + beta x, else n (exp(min(x, eps)) - 1 - x) + beta x, where p = softplus(alpha_p)
 * and n = beta + softplus(alpha_n): arXiv 2411.13010. The words hold n and p. */
struct sheaf_tensor *sheaf_xielu(struct sheaf_context *ctx, struct sheaf_tensor *a, float alpha_n,
                                 float alpha_p, float beta, float eps);

/* act(first half of a's rows) * second half: a [f+f, n] -> [f, n]. `swapped`: the halves change
 * places. */
struct sheaf_tensor *sheaf_glu(struct sheaf_context *ctx, struct sheaf_tensor *a,
                               enum sheaf_glu_op op, bool swapped);
/* act(a) * b, both [f, n]. */
struct sheaf_tensor *sheaf_glu_split(struct sheaf_context *ctx, struct sheaf_tensor *a,
                                     struct sheaf_tensor *b, enum sheaf_glu_op op);
struct sheaf_tensor *sheaf_swiglu(struct sheaf_context *ctx, struct sheaf_tensor *a);
struct sheaf_tensor *sheaf_swiglu_split(struct sheaf_context *ctx, struct sheaf_tensor *a,
                                        struct sheaf_tensor *b);
struct sheaf_tensor *sheaf_geglu(struct sheaf_context *ctx, struct sheaf_tensor *a);
struct sheaf_tensor *sheaf_geglu_split(struct sheaf_context *ctx, struct sheaf_tensor *a,
                                       struct sheaf_tensor *b);
/* With x = min(a, limit), y = b held in [-limit, limit], limit >= 0: x sigmoid(alpha x) (y + 1),
 * the unit of gpt-oss; and silu(x) y. */
struct sheaf_tensor *sheaf_swiglu_oai(struct sheaf_context *ctx, struct sheaf_tensor *a,
                                      struct sheaf_tensor *b, float alpha, float limit);
struct sheaf_tensor *sheaf_swiglu_clamp(struct sheaf_context *ctx, struct sheaf_tensor *a,
                                        struct sheaf_tensor *b, float limit);

/* [i,j,h,s] -> [1,j,h,s] */
struct sheaf_tensor *sheaf_sum_rows(struct sheaf_context *ctx, struct sheaf_tensor *a);
/* The sum of all elements: [1], F32. a is F32, F16 or BF16. */
struct sheaf_tensor *sheaf_sum(struct sheaf_context *ctx, struct sheaf_tensor *a);
/* How many elements of a and b are equal, both I32 of one shape: [1], I64. */
struct sheaf_tensor *sheaf_count_equal(struct sheaf_context *ctx, struct sheaf_tensor *a,
                                       struct sheaf_tensor *b);
/* The mean of each row: [i,j,h,s] -> [1,j,h,s]; NaN if i is 0. */
struct sheaf_tensor *sheaf_mean(struct sheaf_context *ctx, struct sheaf_tensor *a);
/* [i,j] -> I32 [j]; the lowest index on a tie. */
struct sheaf_tensor *sheaf_argmax(struct sheaf_context *ctx, struct sheaf_tensor *a);
/* The k largest of each row, best first, ties by lower index: [i,j] -> I32 [k,j]. */
struct sheaf_tensor *sheaf_top_k(struct sheaf_context *ctx, struct sheaf_tensor *a, int k);
/* The positions of the elements of each row in order: F32 [i,j,h,s] -> I32 [i,j,h,s]. Of equal
 * elements the lower position comes first, NaN comes last in either order. */
struct sheaf_tensor *sheaf_argsort(struct sheaf_context *ctx, struct sheaf_tensor *a,
                                   enum sheaf_sort_order order);
/* What sheaf_top_k yields, as a view of the sorted rows: I32 [k,j,h,s] with rows i apart. */
struct sheaf_tensor *sheaf_argsort_top_k(struct sheaf_context *ctx, struct sheaf_tensor *a, int k);
struct sheaf_tensor *sheaf_concat(struct sheaf_context *ctx, struct sheaf_tensor *a,
                                  struct sheaf_tensor *b, int dim);
/* a again and again in each dimension, to a shape whose dimensions are multiples of a's. dst has
 * the type of a: F32, F16, BF16, I32 or I64. */
struct sheaf_tensor *sheaf_repeat(struct sheaf_context *ctx, struct sheaf_tensor *a,
                                  struct sheaf_tensor *shape_of);
struct sheaf_tensor *sheaf_repeat_4d(struct sheaf_context *ctx, struct sheaf_tensor *a, int64_t ne0,
                                     int64_t ne1, int64_t ne2, int64_t ne3);
/* F32 with left[d] and right[d] more elements before and after those of dimension d: zeros, or, if
 * circular, a again from its other end. */
struct sheaf_tensor *sheaf_pad(struct sheaf_context *ctx, struct sheaf_tensor *a, const int left[4],
                               const int right[4], bool circular);

/* Rows of a F32 [i, j, h, s], eps >= 0: x / sqrt(mean of x^2 + eps); (x - mean) / sqrt(variance +
 * eps); x / max(sqrt(sum of x^2), eps). */
struct sheaf_tensor *sheaf_rms_norm(struct sheaf_context *ctx, struct sheaf_tensor *a, float eps);
struct sheaf_tensor *sheaf_norm(struct sheaf_context *ctx, struct sheaf_tensor *a, float eps);
struct sheaf_tensor *sheaf_l2_norm(struct sheaf_context *ctx, struct sheaf_tensor *a, float eps);
/* As sheaf_norm, over the planes [w, h] of a group of channels at a time: a F32 [w, h, c, s]. A
 * group has ceil(c / n_groups) channels, the last one what is left. arXiv 1803.08494. */
struct sheaf_tensor *sheaf_group_norm(struct sheaf_context *ctx, struct sheaf_tensor *a,
                                      int n_groups, float eps);

/* a [k, m, g, s], b [k, n, g.r, s.t] -> F32 [m, n, g.r, s.t]; a of any float or block type, b F32
 * (or F16 for F16 a). */
struct sheaf_tensor *sheaf_mul_mat(struct sheaf_context *ctx, struct sheaf_tensor *a,
                                   struct sheaf_tensor *b);
/* Mixture of experts: as [k, m, x], b [k, 1|u, n], ids I32 [u, n] -> F32 [m, u, n]: row (u,n) uses
 * expert ids[u,n]. */
struct sheaf_tensor *sheaf_mul_mat_id(struct sheaf_context *ctx, struct sheaf_tensor *as,
                                      struct sheaf_tensor *b, struct sheaf_tensor *ids);

/* A bias for each expert: a F32 [m, u, n] plus row ids[u, n] of b F32 [m, x], ids I32 [u, n] -> F32
 * [m, u, n]. An id outside [0, x) fails the compute. */
struct sheaf_tensor *sheaf_add_id(struct sheaf_context *ctx, struct sheaf_tensor *a,
                                  struct sheaf_tensor *b, struct sheaf_tensor *ids);

/* ---- windows, triangles, lists: all F32 ---- */

/* a + b, b of one element: an ADD */
struct sheaf_tensor *sheaf_add1(struct sheaf_context *ctx, struct sheaf_tensor *a,
                                struct sheaf_tensor *b);
/* a with a part replaced by b, and with b added to a part: b's element 0 meets a's at start, and b
 * lies inside a. */
struct sheaf_tensor *sheaf_set(struct sheaf_context *ctx, struct sheaf_tensor *a,
                               struct sheaf_tensor *b, const int64_t start[4]);
struct sheaf_tensor *sheaf_acc(struct sheaf_context *ctx, struct sheaf_tensor *a,
                               struct sheaf_tensor *b, const int64_t start[4]);
/* Element i of a row: the sum of those up to it. */
struct sheaf_tensor *sheaf_cumsum(struct sheaf_context *ctx, struct sheaf_tensor *a);
/* a [n, n, h, s] with zeros outside of a triangle */
struct sheaf_tensor *sheaf_tri(struct sheaf_context *ctx, struct sheaf_tensor *a,
                               enum sheaf_tri_type type);
/* [n, 1, h, s] -> [n, n, h, s] with a on the diagonals, zeros elsewhere */
struct sheaf_tensor *sheaf_diag(struct sheaf_context *ctx, struct sheaf_tensor *a);
/* a [i, j, h, s] with -inf, or 0, where the number of the column is more than n_past and that of
 * the row */
struct sheaf_tensor *sheaf_diag_mask_inf(struct sheaf_context *ctx, struct sheaf_tensor *a,
                                         int n_past);
struct sheaf_tensor *sheaf_diag_mask_zero(struct sheaf_context *ctx, struct sheaf_tensor *a,
                                          int n_past);
/* x of a x = b: a [n, n, h, s] a lower triangle with its diagonal (the rest is not read), b and x
 * [m, n, h, s]: m right sides. */
struct sheaf_tensor *sheaf_solve_tri(struct sheaf_context *ctx, struct sheaf_tensor *a,
                                     struct sheaf_tensor *b);
/* start, start + step, .. as long as it is below stop (above, if step is negative) */
struct sheaf_tensor *sheaf_arange(struct sheaf_context *ctx, float start, float stop, float step);

/* ---- images and signals ---- */

/* The elements under each place of the window, as columns: x [i, j, c, n] of F32, F16 or BF16 ->
 * F32 or F16 [c.w.v, I, J, n] for a window of v w elements and I J places. Of signals [i, c, n]: as
 * images [i, 1, c, n], with a window of v 1. */
struct sheaf_tensor *sheaf_im2col(struct sheaf_context *ctx, struct sheaf_tensor *x,
                                  const struct sheaf_window *window, enum sheaf_type type);
/* Kernel a [v, w, k, m] of F32, F16 or BF16, image b F32 [i, j, k, n] -> F32 [I, J, m, n]; the size
 * of the window is that of the kernel. Depthwise: a [v, w, 1, c], b [i, j, c, n] -> [I, J, c,
 * n]. */
struct sheaf_tensor *sheaf_conv_2d(struct sheaf_context *ctx, struct sheaf_tensor *a,
                                   struct sheaf_tensor *b, const struct sheaf_window *window);
struct sheaf_tensor *sheaf_conv_2d_dw(struct sheaf_context *ctx, struct sheaf_tensor *a,
                                      struct sheaf_tensor *b, const struct sheaf_window *window);
/* Of volumes. A fourth dimension is taken, so channels are the faster factor of dimension 3: x [i,
 * j, l, n.c] -> F32 or F16 [c.u.w.v, I, J, n.L]; kernel a [v, w, u, m.k], image b F32 [i, j, l,
 * n.k] -> F32 [I, J, L, n.m]. channels: c, or k. */
struct sheaf_tensor *sheaf_im2col_3d(struct sheaf_context *ctx, struct sheaf_tensor *x,
                                     int64_t channels, const struct sheaf_window_3d *window,
                                     enum sheaf_type type);
struct sheaf_tensor *sheaf_conv_3d(struct sheaf_context *ctx, struct sheaf_tensor *a,
                                   struct sheaf_tensor *b, int64_t channels,
                                   const struct sheaf_window_3d *window);
/* Kernel a [w, m, k], signal b F32 [i, k] -> F32 [(i - 1) stride + w, m]; kernel a [v, w, m, k],
 * image b F32 [i, j, k, n] -> F32 [(i - 1) stride + v, (j - 1) stride + w, m, n] */
struct sheaf_tensor *sheaf_conv_transpose_1d(struct sheaf_context *ctx, struct sheaf_tensor *a,
                                             struct sheaf_tensor *b, int stride);
struct sheaf_tensor *sheaf_conv_transpose_2d(struct sheaf_context *ctx, struct sheaf_tensor *a,
                                             struct sheaf_tensor *b, int stride);
/* Columns added up to a signal, the second half of a CONV_TRANSPOSE_1D: a [m.w, i] of F32, F16 or
 * BF16, w = size elements of each of m channels -> [(i - 1) stride + w - 2 pad, m] of a's type:
 * column i lies at i stride, and pad elements are cut from both ends. */
struct sheaf_tensor *sheaf_col2im_1d(struct sheaf_context *ctx, struct sheaf_tensor *a, int size,
                                     int stride, int pad);
/* The largest element, or the mean, under each place: a [i, j, c, n] -> F32 [I, j, c, n], or [I, J,
 * c, n]. A mean of POOL_1D is of the elements inside, of POOL_2D their sum over the window's size.
 * A place with no element, which pads as large as the window leave, has the mean 0 and the maximum
 * -FLT_MAX. The window's dilation is not used. */
struct sheaf_tensor *sheaf_pool_1d(struct sheaf_context *ctx, struct sheaf_tensor *a,
                                   enum sheaf_pool kind, int size, int stride, int pad);
struct sheaf_tensor *sheaf_pool_2d(struct sheaf_context *ctx, struct sheaf_tensor *a,
                                   enum sheaf_pool kind, const struct sheaf_window *window);
/* F32 of another shape. align_corners: the first and the last elements of dimensions 0 and 1 stay
 * at the ends, not with ANTIALIAS; else elements are the middles of equal parts. Beyond the ends
 * the last element goes on. */
struct sheaf_tensor *sheaf_upscale(struct sheaf_context *ctx, struct sheaf_tensor *a,
                                   const int64_t ne[4], enum sheaf_scale_mode mode,
                                   bool align_corners);
/* F32 [left + i + right, j, h, s] whose added elements mirror those inside; both are below i. */
struct sheaf_tensor *sheaf_pad_reflect_1d(struct sheaf_context *ctx, struct sheaf_tensor *a,
                                          int left, int right);
/* Element i of dimension d goes to i + shift[d], around the end; F32. */
struct sheaf_tensor *sheaf_roll(struct sheaf_context *ctx, struct sheaf_tensor *a,
                                const int shift[4]);
/* Of each number t of a F32 [n], dim / 2 cosines and as many sines of t max_period^(-i /
 * (dim / 2)), and 0 behind them if dim is odd: F32 [dim, n] */
struct sheaf_tensor *sheaf_timestep_embedding(struct sheaf_context *ctx, struct sheaf_tensor *a,
                                              int dim, int max_period);
/* Attention inside windows, with places relative to each other (segment-anything, arXiv 2304.02643;
 * ViTDet, 2203.16527), all F32; GET_REL_POS takes F16 and BF16 as well, and gives the same type.
 * WIN_PART: a [e, i, j] -> [e, w, w, q.p]: q rows of p windows that cover i and j, zeros beyond
 * their ends. WIN_UNPART undoes it for given i and j. GET_REL_POS: a [e, 2 n - 1] -> [e, n, n]: row
 * (k, q) is row n - 1 - k + q of a. ADD_REL_POS: a [n.n, u.t, b], pw and ph [n, t, u, b]: element
 * (y.x, r, b) plus pw (x, r, b) and ph (y, r, b). */
struct sheaf_tensor *sheaf_win_part(struct sheaf_context *ctx, struct sheaf_tensor *a, int w);
struct sheaf_tensor *sheaf_win_unpart(struct sheaf_context *ctx, struct sheaf_tensor *a, int64_t i,
                                      int64_t j, int w);
struct sheaf_tensor *sheaf_get_rel_pos(struct sheaf_context *ctx, struct sheaf_tensor *a,
                                       int64_t n);
struct sheaf_tensor *sheaf_add_rel_pos(struct sheaf_context *ctx, struct sheaf_tensor *a,
                                       struct sheaf_tensor *pw, struct sheaf_tensor *ph);

/* ---- DeepSeek ---- */

/* Scores by which a token picks the rows that it attends to (DeepSeek-V3.2): sum over heads of w
 * relu(q . k), plus the mask. q F32 [d, h, n, s], k [d, 1, t, s] of any float or block type, w F32
 * [h, n, 1, s], mask F16 or F32 [t, n, 1, 1|s] -> F32 [t, n, 1, s] */
struct sheaf_tensor *sheaf_lightning_indexer(struct sheaf_context *ctx, struct sheaf_tensor *q,
                                             struct sheaf_tensor *k, struct sheaf_tensor *w,
                                             struct sheaf_tensor *mask);
/* Hyper-connections (arXiv 2512.24880) of c streams, 1 to SHEAF_HC_MAX, all F32. How streams are
 * mixed: mixes [(2 + c) c, n], of which elements from 2c on are c rows of c, scale [3], base
 * [(2 + c) c] -> [c, c, n]: mixes scale[2] + base, the softmax of each row plus eps, then n_iter
 * times divided by column sums, before each but the first time by row sums, each plus eps. */
struct sheaf_tensor *sheaf_dsv4_hc_comb(struct sheaf_context *ctx, struct sheaf_tensor *mixes,
                                        struct sheaf_tensor *scale, struct sheaf_tensor *base,
                                        float eps, int n_iter);
/* The sum of streams times their weights: x [e, c, n], weights [c, n] -> [e, n]; or, gated, times
 * scale and the sigmoid of gate [e, c, n] */
struct sheaf_tensor *sheaf_dsv4_hc_pre(struct sheaf_context *ctx, struct sheaf_tensor *x,
                                       struct sheaf_tensor *weights);
struct sheaf_tensor *sheaf_dsv4_hc_pre_gated(struct sheaf_context *ctx, struct sheaf_tensor *x,
                                             struct sheaf_tensor *gate, float scale);
/* Streams after a block: stream i of d is x [e, n] times post[i, n], plus the sum over streams s of
 * residual [e, c, n] times comb[i, s, n], post [d, n], comb [d, c, n] -> [e, d, n]; without comb
 * (NULL), where d is c, plus stream i of the residual */
struct sheaf_tensor *sheaf_dsv4_hc_post(struct sheaf_context *ctx, struct sheaf_tensor *x,
                                        struct sheaf_tensor *residual, struct sheaf_tensor *post,
                                        struct sheaf_tensor *comb);

/* Copies (and converts) a into b; the result is a view of b. Same number of elements. */
struct sheaf_tensor *sheaf_cpy(struct sheaf_context *ctx, struct sheaf_tensor *a,
                               struct sheaf_tensor *b);
struct sheaf_tensor *sheaf_cont(struct sheaf_context *ctx, struct sheaf_tensor *a);
struct sheaf_tensor *sheaf_dup(struct sheaf_context *ctx, struct sheaf_tensor *a);
/* To another type, contiguous. */
struct sheaf_tensor *sheaf_cast(struct sheaf_context *ctx, struct sheaf_tensor *a,
                                enum sheaf_type type);

/* Views: no data moves. reshape wants a contiguous a. */
struct sheaf_tensor *sheaf_reshape(struct sheaf_context *ctx, struct sheaf_tensor *a,
                                   struct sheaf_tensor *shape_of);
struct sheaf_tensor *sheaf_reshape_1d(struct sheaf_context *ctx, struct sheaf_tensor *a,
                                      int64_t ne0);
struct sheaf_tensor *sheaf_reshape_2d(struct sheaf_context *ctx, struct sheaf_tensor *a,
                                      int64_t ne0, int64_t ne1);
struct sheaf_tensor *sheaf_reshape_3d(struct sheaf_context *ctx, struct sheaf_tensor *a,
                                      int64_t ne0, int64_t ne1, int64_t ne2);
struct sheaf_tensor *sheaf_reshape_4d(struct sheaf_context *ctx, struct sheaf_tensor *a,
                                      int64_t ne0, int64_t ne1, int64_t ne2, int64_t ne3);
/* offset and nb in bytes, relative to a's first element; the view must lie inside the owner's
 * memory. */
struct sheaf_tensor *sheaf_view_1d(struct sheaf_context *ctx, struct sheaf_tensor *a, int64_t ne0,
                                   size_t offset);
struct sheaf_tensor *sheaf_view_2d(struct sheaf_context *ctx, struct sheaf_tensor *a, int64_t ne0,
                                   int64_t ne1, size_t nb1, size_t offset);
struct sheaf_tensor *sheaf_view_3d(struct sheaf_context *ctx, struct sheaf_tensor *a, int64_t ne0,
                                   int64_t ne1, int64_t ne2, size_t nb1, size_t nb2, size_t offset);
struct sheaf_tensor *sheaf_view_4d(struct sheaf_context *ctx, struct sheaf_tensor *a, int64_t ne0,
                                   int64_t ne1, int64_t ne2, int64_t ne3, size_t nb1, size_t nb2,
                                   size_t nb3, size_t offset);
/* Dimension i of a becomes dimension axis_i of the result. */
struct sheaf_tensor *sheaf_permute(struct sheaf_context *ctx, struct sheaf_tensor *a, int axis0,
                                   int axis1, int axis2, int axis3);
struct sheaf_tensor *sheaf_transpose(struct sheaf_context *ctx, struct sheaf_tensor *a);

/* Rows of a [e, v, h, s] picked by b I32 [n, h, s] -> F32 [e, n, h, s], a of any float or block
 * type; of a I32 -> I32. An id outside [0, v) fails the compute. */
struct sheaf_tensor *sheaf_get_rows(struct sheaf_context *ctx, struct sheaf_tensor *a,
                                    struct sheaf_tensor *b);
/* Writes the rows of b F32 or F16 [e, n, H.h, S.s] into a [e, L, H.h, S.s] at the row numbers c
 * (I64 or I32) [n, h, s], converting to a's type: lists are repeated over dimensions 2 and 3. The
 * result is a view of a. An id outside [0, L) fails the compute. */
struct sheaf_tensor *sheaf_set_rows(struct sheaf_context *ctx, struct sheaf_tensor *a,
                                    struct sheaf_tensor *b, struct sheaf_tensor *c);

struct sheaf_tensor *sheaf_soft_max(struct sheaf_context *ctx, struct sheaf_tensor *a);
/* softmax(a * scale + slope * mask) over rows: a F32 [k, n, H.h, S.s], mask F32 or F16 [k, >=n, h,
 * s] (repeated over dimensions 2 and 3) or NULL; max_bias > 0: ALiBi slopes per head (dimension
 * 2). */
struct sheaf_tensor *sheaf_soft_max_ext(struct sheaf_context *ctx, struct sheaf_tensor *a,
                                        struct sheaf_tensor *mask, float scale, float max_bias);
/* The same with sinks F32 [H.h], one for each head: a score that joins the largest value and the
 * sum of every row of its head, and has no place in the result (Xiao et al., arXiv 2309.17453;
 * gpt-oss). A row adds up to less than 1. NULL: none. */
struct sheaf_tensor *sheaf_soft_max_sinks(struct sheaf_context *ctx, struct sheaf_tensor *a,
                                          struct sheaf_tensor *mask, struct sheaf_tensor *sinks,
                                          float scale, float max_bias);

/* a F32 or F16 [d, h, n, s], pos I32 [n], freq_factors F32 [n_dims/2] or NULL -> the type of a.
 * Rotates the first n_dims of d. mode: NORMAL or NEOX. YaRN when ext_factor != 0 (n_ctx_orig,
 * beta_fast, beta_slow as in the YaRN paper, arXiv 2309.00071). */
struct sheaf_tensor *sheaf_rope_ext(struct sheaf_context *ctx, struct sheaf_tensor *a,
                                    struct sheaf_tensor *pos, struct sheaf_tensor *freq_factors,
                                    int n_dims, int mode, int n_ctx_orig, float freq_base,
                                    float freq_scale, float ext_factor, float attn_factor,
                                    float beta_fast, float beta_slow);
/* The same with four positions a token, pos I32 [4 n]: those of all n by time, then by height, by
 * width, and one more. mode: MROPE, IMROPE, or VISION, where n_dims is d / 2, all of d is rotated,
 * and freq_factors are [n_dims]. sections: how many pairs of a round go by each position; their sum
 * is from 1 to d. (arXiv 2409.12191) */
struct sheaf_tensor *sheaf_rope_multi(struct sheaf_context *ctx, struct sheaf_tensor *a,
                                      struct sheaf_tensor *pos, struct sheaf_tensor *freq_factors,
                                      int n_dims, const int sections[4], int mode, int n_ctx_orig,
                                      float freq_base, float freq_scale, float ext_factor,
                                      float attn_factor, float beta_fast, float beta_slow);
/* Change `rope`, a node that one of the two above made and no other reads, and return it; NULL if
 * it does not fit. The dimensions [offset, offset + n_dims) are rotated, not the first ones; not
 * with VISION. And: turned by the negative angle, which undoes ROPE (op ROPE_BACK). */
struct sheaf_tensor *sheaf_rope_set_offset(struct sheaf_tensor *rope, int offset);
struct sheaf_tensor *sheaf_rope_back(struct sheaf_tensor *rope);

/* q F32 [d, n, g.r, S.s], k [d, t, g, S.s], v [e, t, g, S.s] (any float or block types, of which
 * F32 F16 BF16 Q8_0 Q4_0 Q4_1 Q5_0 Q5_1 IQ4_NL are fast; K and V may differ in type and in d and e,
 * V may be a view of K; rows dense), mask F16 or F32 [t, >=n, h, s], h a divisor of g.r, or NULL ->
 * F32 [e, g.r, n, S.s] (note the order). Query head i reads K/V head i / r and the mask's i mod h.
 * scale on q.k; max_bias > 0: ALiBi; logit_softcap != 0: cap * tanh(score / cap). A row whose
 * scores are all -inf yields zeros. */
struct sheaf_tensor *sheaf_flash_attn_ext(struct sheaf_context *ctx, struct sheaf_tensor *q,
                                          struct sheaf_tensor *k, struct sheaf_tensor *v,
                                          struct sheaf_tensor *mask, float scale, float max_bias,
                                          float logit_softcap);
/* The same with sinks F32 [g.r]: a score for each query head that joins the largest value and the
 * sum of its softmax and has no value (as of sheaf_soft_max_sinks). NULL: none. */
struct sheaf_tensor *sheaf_flash_attn_sinks(struct sheaf_context *ctx, struct sheaf_tensor *q,
                                            struct sheaf_tensor *k, struct sheaf_tensor *v,
                                            struct sheaf_tensor *mask, struct sheaf_tensor *sinks,
                                            float scale, float max_bias, float logit_softcap);

/* ---- layers with a state: formulas as ggml computes them ----
 *
 * All operands but ids are F32, rows (dimension 0) dense. The results but that of SSM_CONV are
 * one flat tensor [N]: what the tokens read, shaped as said, then the states that they leave. Views
 * take them apart. (ggml gives four of them two dimensions; the memory is the same.) */

/* A causal convolution of each channel: sx [t + k - 1, c, s], its k - 1 values before the tokens
 * first, and w [k, c] -> F32 [c, t, s]: element (c, t, s) is the sum of sx[t + i, c, s] w[i, c]. */
struct sheaf_tensor *sheaf_ssm_conv(struct sheaf_context *ctx, struct sheaf_tensor *sx,
                                    struct sheaf_tensor *w);
/* The selective scan of Mamba (arXiv 2312.00752) and Mamba-2 (2405.21060): states s
 * [k, d, g.r, S], x [d, g.r, t, s], dt [g.r, t, s], a [k, g.r] (Mamba) or [1, g.r] (Mamba-2), b and
 * c [k, g, t, s], ids I32 [s]: sequence s begins with state ids[s], which must be in [0, S).
 * -> y [d, g.r, t, s] ++ states [k, d, g.r, s, kept], newest first; of more than t states the older
 * are 0. dt' = log(1 + exp(dt)); state = state exp(dt' a) + x dt' b; y = sum over k of state c.
 * Head h reads b and c of group h / r. kept >= 1; 1 for Mamba. */
struct sheaf_tensor *sheaf_ssm_scan(struct sheaf_context *ctx, struct sheaf_tensor *s,
                                    struct sheaf_tensor *x, struct sheaf_tensor *dt,
                                    struct sheaf_tensor *a, struct sheaf_tensor *b,
                                    struct sheaf_tensor *c, struct sheaf_tensor *ids, int kept);
/* The gated delta rule (arXiv 2412.06464): q and k [i, g, t, s], v [i, r.g, t, s], gate
 * [1 or i, r.g, t, s], beta [1, r.g, t, s], state [i, i, r.g, s] -> y [i, r.g, t, s] ++ states
 * [i, i, r.g, s, kept] as SSM_SCAN keeps them. With M the state, its dimension 0 that of k: M =
 * M exp(gate); M = M + beta (v - M k) k; y = M q / sqrt(i). Head h reads head h % g of q and k. */
struct sheaf_tensor *sheaf_gated_delta_net(struct sheaf_context *ctx, struct sheaf_tensor *q,
                                           struct sheaf_tensor *k, struct sheaf_tensor *v,
                                           struct sheaf_tensor *gate, struct sheaf_tensor *beta,
                                           struct sheaf_tensor *state, int kept);
/* RWKV 6 (arXiv 2404.05892): k, v, r, td [i, h, s.t], tf [i, h], state [h.i.i, s], for each of
 * whose sequences there are t tokens -> y [i, h, s.t] ++ state. For M[j, i] of a head, j the faster
 * dimension: y[j] = sum over i of r[i] (tf[i] k[i] v[j] + M[j, i]); M = M td[i] + k[i] v[j]. */
struct sheaf_tensor *sheaf_rwkv_wkv6(struct sheaf_context *ctx, struct sheaf_tensor *k,
                                     struct sheaf_tensor *v, struct sheaf_tensor *r,
                                     struct sheaf_tensor *tf, struct sheaf_tensor *td,
                                     struct sheaf_tensor *state);
/* RWKV 7 (arXiv 2503.14456): r, w, k, v, a, b [i, h, s.t], state [h.i.i, s] -> y [i, h, s.t] ++
 * state. For M[i, j] of a head, i the faster dimension: M = M w[i] + v[j] k[i] + (sum over i of
 * M[i, j] a[i]) b[i]; y[j] = sum over i of M[i, j] r[i]. */
struct sheaf_tensor *sheaf_rwkv_wkv7(struct sheaf_context *ctx, struct sheaf_tensor *r,
                                     struct sheaf_tensor *w, struct sheaf_tensor *k,
                                     struct sheaf_tensor *v, struct sheaf_tensor *a,
                                     struct sheaf_tensor *b, struct sheaf_tensor *state);
/* Gated linear attention (arXiv 2312.06635): k, v, q, g [i, h, s.t], state [h.i.i, s] -> y
 * [i, h, s.t] ++ state. For M[j, i] of a head, j the faster dimension: M = M g[i] + k[i] v[j]; y[j]
 * = scale * sum over i of M[j, i] q[i]. */
struct sheaf_tensor *sheaf_gated_linear_attn(struct sheaf_context *ctx, struct sheaf_tensor *k,
                                             struct sheaf_tensor *v, struct sheaf_tensor *q,
                                             struct sheaf_tensor *g, struct sheaf_tensor *state,
                                             float scale);

#ifdef __cplusplus
}
#endif
#include "sheaf/tensor.h" /* which needs the numbers above; programs need the fields of tensors */

#endif
