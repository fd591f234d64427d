/* What ggml asserts of nodes that its devices nevertheless say they support: its constructors
 * refuse them, so its kernels never meet them, and end the process if they do. One row an op:
 * layouts of operands, types, shapes. An op without a row is not given to ggml. Source: ggml.c,
 * ggml-cpu/ops.cpp of ggml 0.25.3. */
#include "ggml/member.h"
#include "sheaf/ops.h"

enum layout {
    ANY,
    ROWS,  /* elements of a row lie side by side */
    DENSE, /* all do */
};

/* Of an op: how operands 0 and 1 and the result must lie, and what else holds. */
struct limits {
    bool there; /* the op has a row */
    enum layout a, b, result;
    bool (*check)(const struct sheaf_tensor *node); /* NULL: nothing else */
};

static bool is_float(const struct sheaf_tensor *t) {
    return t->type == SHEAF_TYPE_F32 || t->type == SHEAF_TYPE_F16 || t->type == SHEAF_TYPE_BF16;
}
static bool is_f32(const struct sheaf_tensor *t) { return t->type == SHEAF_TYPE_F32; }

static bool lies(const struct sheaf_tensor *t, enum layout layout) {
    if (!t || layout == ANY) return true;
    if (layout == DENSE) return sheaf_is_contiguous(t);
    return t->ne[0] == sheaf_blck_size(t->type) || t->nb[0] == sheaf_type_size(t->type);
}

static bool all_f32(const struct sheaf_tensor *node) {
    for (int i = 0; i < SHEAF_MAX_SRC; i++)
        if (node->src[i] && !is_f32(node->src[i]) && node->src[i]->type != SHEAF_TYPE_I32)
            return false;
    return is_f32(node);
}

/* Kernels that read operands from the first on as plain arrays. */
static bool dense_from(const struct sheaf_tensor *n, int first) {
    for (int i = first; i < SHEAF_MAX_SRC; i++)
        if (!lies(n->src[i], DENSE)) return false;
    return true;
}

/* The result has the type of the first operand; the second has it too, or is F32. */
static bool binary(const struct sheaf_tensor *n) {
    const struct sheaf_tensor *a = n->src[0], *b = n->src[1];
    if (!is_float(a) || n->type != a->type) return false;
    return b->type == a->type || is_f32(b);
}
static bool floats(const struct sheaf_tensor *n) {
    return is_float(n->src[0]) && n->type == n->src[0]->type;
}
static bool unary(const struct sheaf_tensor *n) {
    return floats(n) &&
           (n->op_params[0] != SHEAF_UNARY_OP_XIELU || (lies(n->src[0], DENSE) && lies(n, DENSE)));
}
static bool halves(const struct sheaf_tensor *n) { return floats(n) && n->type != SHEAF_TYPE_BF16; }
static bool fill(const struct sheaf_tensor *n) { return is_f32(n) || n->type == SHEAF_TYPE_F16; }
static bool matrix_f32(const struct sheaf_tensor *n) {
    return is_f32(n->src[0]) && n->src[0]->ne[2] == 1 && n->src[0]->ne[3] == 1;
}

static bool product(const struct sheaf_tensor *n) {
    const struct sheaf_tensor *b = n->src[1];
    return is_f32(n) && (is_f32(b) || (b->type == n->src[0]->type && is_float(b)));
}

/* Ids of a batch belong to that batch of rows. */
static bool get_rows(const struct sheaf_tensor *n) {
    const struct sheaf_tensor *a = n->src[0], *ids = n->src[1];
    return ids->type == SHEAF_TYPE_I32 && a->ne[2] == ids->ne[1] && a->ne[3] == ids->ne[2] &&
           ids->ne[3] == 1 &&
           n->type == (a->type == SHEAF_TYPE_I32 ? SHEAF_TYPE_I32 : SHEAF_TYPE_F32);
}

static bool side_by_side(const struct sheaf_tensor *t) { /* rows, too */
    return lies(t, ROWS) && t->nb[1] == sheaf_row_size(t->type, t->ne[0]);
}

static bool concat(const struct sheaf_tensor *n) {
    return lies(n->src[0], ROWS) && lies(n->src[1], ROWS) && n->type == n->src[0]->type &&
           n->src[1]->type == n->type && !sheaf_is_quantized(n->type);
}

static bool repeat(const struct sheaf_tensor *n) {
    return is_float(n) || n->type == SHEAF_TYPE_I32;
}

/* ggml writes no more states than there are tokens, and leaves the others as they are. */
static bool ssm_scan(const struct sheaf_tensor *n) {
    return all_f32(n) && lies(n->src[2], DENSE) && lies(n->src[3], DENSE) &&
           n->op_params[0] <= n->src[1]->ne[2] && side_by_side(n->src[1]) &&
           side_by_side(n->src[4]) && side_by_side(n->src[5]);
}

static bool delta_net(const struct sheaf_tensor *n) {
    return all_f32(n) && n->op_params[0] <= n->src[0]->ne[2] && lies(n->src[2], ROWS) &&
           dense_from(n, 3);
}

static bool linear(const struct sheaf_tensor *n) { return all_f32(n) && dense_from(n, 2); }

/* The CPU's kernel steps by 64 elements of a head. */
static bool wkv7(const struct sheaf_tensor *n) { return linear(n) && n->src[0]->ne[0] % 64 == 0; }

static bool set_rows(const struct sheaf_tensor *n) {
    return is_f32(n->src[1]) &&
           (n->src[2]->type == SHEAF_TYPE_I64 || n->src[2]->type == SHEAF_TYPE_I32);
}

/* Conversions: from floats to anything, from blocks to dense rows of F32; numbers of rows only
 * between their like and F32. */
static bool copy(const struct sheaf_tensor *n) {
    const enum sheaf_type from = n->src[0]->type, to = n->type;
    if (from == to) return true;
    if (from == SHEAF_TYPE_I64 || to == SHEAF_TYPE_I64) return false;
    if (from == SHEAF_TYPE_I32 || to == SHEAF_TYPE_I32)
        return from == SHEAF_TYPE_F32 || to == SHEAF_TYPE_F32;
    if (sheaf_is_quantized(from)) return to == SHEAF_TYPE_F32 && lies(n, ROWS);
    return !sheaf_is_quantized(to) ||
           (from == SHEAF_TYPE_F32 && lies(n->src[0], ROWS) && sheaf_is_contiguous(n));
}

static bool masks(const struct sheaf_tensor *mask, int64_t rows, int64_t heads, int64_t batches) {
    return !mask || (sheaf_is_contiguous(mask) && mask->ne[1] >= rows && heads % mask->ne[2] == 0 &&
                     batches % mask->ne[3] == 0);
}

static bool soft_max(const struct sheaf_tensor *n) {
    const struct sheaf_tensor *a = n->src[0], *mask = n->src[1];
    return is_f32(a) && is_f32(n) && masks(mask, a->ne[1], a->ne[2], a->ne[3]) &&
           (!mask || is_f32(mask) || mask->type == SHEAF_TYPE_F16);
}

static bool flash_attn(const struct sheaf_tensor *n) {
    const struct sheaf_tensor *q = n->src[0], *k = n->src[1], *v = n->src[2], *mask = n->src[3];
    return is_f32(q) && is_f32(n) && masks(mask, q->ne[1], q->ne[2], q->ne[3]) &&
           (!mask || mask->type == SHEAF_TYPE_F16) && lies(k, ROWS) && lies(v, ROWS) &&
           (n->op_params[SHEAF_OP_PARAM_GROUP] || q->ne[2] % k->ne[2] == 0) &&
           k->ne[2] == v->ne[2] && q->ne[3] == k->ne[3] && k->ne[3] == v->ne[3];
}

/* Elements that are not rotated are copied in pairs, beyond the end of an odd row. */
static bool rope(const struct sheaf_tensor *n) {
    enum {
        SECTIONS = 8,
        FIRST_SECTION = 9,
        OFFSET = 13
    }; /* a bit of the mode; words (sheaf/ops.h) */
    if (n->ne[0] % 2 || n->op_params[OFFSET] % 2 || !gg_has_angles(n)) return false;
    bool sections = !(n->op_params[1] & SECTIONS);
    for (int i = 0; i < 3; i++) sections = sections || n->op_params[FIRST_SECTION + i] > 0;
    return halves(n) && sections && sheaf_is_contiguous(n->src[1]);
}

static bool glu(const struct sheaf_tensor *n) {
    return halves(n) && (!n->src[1] || (n->src[1]->type == n->type && lies(n->src[1], DENSE)));
}

/* The kernels of images take dense operands; ggml's CPU kernels read filters of F32 or F16. */
static bool filter(const struct sheaf_tensor *n) {
    const enum sheaf_type type = n->src[0]->type;
    return (type == SHEAF_TYPE_F32 || type == SHEAF_TYPE_F16) && is_f32(n->src[1]) && is_f32(n);
}
static bool pool_1d(const struct sheaf_tensor *n) { /* windows side by side, none beyond the ends */
    return all_f32(n) && n->op_params[4] == 0 && n->op_params[0] == n->op_params[2];
}
static bool part_f32(const struct sheaf_tensor *n) {
    return all_f32(n) && n->src[0]->type == SHEAF_TYPE_F32 && n->src[1]->type == SHEAF_TYPE_F32;
}
static bool relative(const struct sheaf_tensor *n) {
    return n->type == n->src[0]->type && (n->type == SHEAF_TYPE_F16 || n->type == SHEAF_TYPE_BF16);
}
static bool dense_f32(const struct sheaf_tensor *n) { return all_f32(n) && dense_from(n, 0); }
/* The kernels that mix streams are made for the four of DeepSeek V4. */
enum { HC_STREAMS = 4 };
static bool hc_comb(const struct sheaf_tensor *n) { return dense_f32(n) && n->ne[0] == HC_STREAMS; }
/* ggml has one number of streams, of the residual: neither the result nor the residual is a slice of
 * them alone. */
static bool hc_post(const struct sheaf_tensor *n) {
    const bool mixes = n->src[3] != NULL;
    return dense_f32(n) && n->ne[1] == n->src[1]->ne[1] && (!mixes || n->ne[1] == HC_STREAMS);
}
/* A circular pad goes around an end once. */
static bool pad(const struct sheaf_tensor *n) {
    enum { CIRCULAR = 8 }; /* a word (sheaf/ops.h) */
    const int32_t *p = n->op_params;
    for (int i = 0; i < SHEAF_MAX_DIMS && p[CIRCULAR]; i++) {
        const int64_t most = n->src[0]->ne[i];
        if (p[2 * i] > most || p[2 * i + 1] > most) return false;
    }
    return all_f32(n);
}
/* ggml 0.27 finds rows of the fourth dimension in the wrong place. */
static bool equal_numbers(const struct sheaf_tensor *n) {
    return n->src[0]->ne[3] == 1 && n->src[0]->type == SHEAF_TYPE_I32 &&
           n->src[1]->type == SHEAF_TYPE_I32;
}
static bool indexer(const struct sheaf_tensor *n) {
    return is_f32(n) && is_f32(n->src[0]) && is_f32(n->src[2]) && dense_from(n, 0) && n->src[3] &&
           n->src[3]->type == SHEAF_TYPE_F16;
}

/* Operand 0 and the result are dense, or have dense rows. */
#define MAP(c)                                                                                     \
    { true, DENSE, ANY, DENSE, c }
#define ROW(c)                                                                                     \
    { true, ROWS, ANY, ROWS, c }
static const struct limits limits[SHEAF_OP_COUNT] = {
    [SHEAF_OP_DUP] = {true, ANY, ANY, ROWS, copy},
    [SHEAF_OP_CONT] = {true, ANY, ANY, ROWS, copy},
    [SHEAF_OP_CPY] = {true, ANY, ANY, ANY, copy},
    [SHEAF_OP_ADD] = ROW(binary),
    [SHEAF_OP_SUB] = ROW(binary),
    [SHEAF_OP_MUL] = ROW(binary),
    [SHEAF_OP_DIV] = ROW(binary),
    [SHEAF_OP_SCALE] = MAP(all_f32),
    [SHEAF_OP_SQR] = ROW(floats),
    [SHEAF_OP_SQRT] = ROW(floats),
    [SHEAF_OP_SIN] = ROW(floats),
    [SHEAF_OP_COS] = ROW(floats),
    [SHEAF_OP_LOG] = ROW(floats),
    [SHEAF_OP_UNARY] = ROW(unary),
    [SHEAF_OP_LEAKY_RELU] = MAP(halves),
    [SHEAF_OP_CLAMP] = ROW(halves),
    [SHEAF_OP_FILL] = {true, ANY, ANY, DENSE, fill},
    [SHEAF_OP_GLU] = {true, DENSE, DENSE, DENSE, glu},
    [SHEAF_OP_SUM] = {true, DENSE, ANY, DENSE, all_f32},
    [SHEAF_OP_SUM_ROWS] = ROW(all_f32),
    [SHEAF_OP_MEAN] = ROW(all_f32),
    [SHEAF_OP_ARGMAX] = ROW(matrix_f32),
    [SHEAF_OP_ARGSORT] = {true, DENSE, ANY, DENSE, NULL},
    [SHEAF_OP_TOP_K] = {true, DENSE, ANY, DENSE, NULL},
    [SHEAF_OP_NORM] = ROW(all_f32),
    [SHEAF_OP_RMS_NORM] = ROW(all_f32),
    [SHEAF_OP_L2_NORM] = ROW(all_f32),
    [SHEAF_OP_GROUP_NORM] = MAP(all_f32),
    [SHEAF_OP_SOFT_MAX] = {true, DENSE, ANY, DENSE, soft_max},
    [SHEAF_OP_ROPE] = ROW(rope),
    [SHEAF_OP_ROPE_BACK] = ROW(rope),
    [SHEAF_OP_MUL_MAT] = {true, ROWS, ROWS, DENSE, product},
    [SHEAF_OP_MUL_MAT_ID] = {true, ROWS, ROWS, DENSE, product},
    [SHEAF_OP_ADD_ID] = {true, ROWS, ROWS, ROWS, all_f32},
    [SHEAF_OP_GET_ROWS] = {true, ROWS, ANY, ROWS, get_rows},
    [SHEAF_OP_SET_ROWS] = {true, ROWS, ROWS, ROWS, set_rows},
    [SHEAF_OP_FLASH_ATTN_EXT] = {true, ROWS, ROWS, DENSE, flash_attn},
    [SHEAF_OP_REPEAT] = ROW(repeat),
    [SHEAF_OP_CONCAT] = ROW(concat),
    [SHEAF_OP_PAD] = {true, ROWS, ANY, DENSE, pad},
    [SHEAF_OP_SSM_CONV] = {true, DENSE, DENSE, DENSE, all_f32},
    [SHEAF_OP_SSM_SCAN] = {true, DENSE, ROWS, DENSE, ssm_scan},
    [SHEAF_OP_GATED_DELTA_NET] = {true, ROWS, ROWS, DENSE, delta_net},
    [SHEAF_OP_CUMSUM] = {true, DENSE, ANY, DENSE, all_f32},
    [SHEAF_OP_TRI] = {true, DENSE, ANY, DENSE, all_f32},
    [SHEAF_OP_DIAG] = {true, DENSE, ANY, DENSE, all_f32},
    [SHEAF_OP_DIAG_MASK_INF] = {true, DENSE, ANY, DENSE, all_f32},
    [SHEAF_OP_DIAG_MASK_ZERO] = {true, DENSE, ANY, DENSE, all_f32},
    [SHEAF_OP_SOLVE_TRI] = {true, DENSE, DENSE, DENSE, all_f32},
    [SHEAF_OP_ARANGE] = {true, ANY, ANY, DENSE, all_f32},
    [SHEAF_OP_UPSCALE] = {true, DENSE, ANY, DENSE, all_f32},
    [SHEAF_OP_PAD_REFLECT_1D] = {true, DENSE, ANY, DENSE, all_f32},
    [SHEAF_OP_ROLL] = {true, DENSE, ANY, DENSE, all_f32},
    [SHEAF_OP_TIMESTEP_EMBEDDING] = {true, DENSE, ANY, DENSE, all_f32},
    [SHEAF_OP_SET] = {true, DENSE, ROWS, DENSE, part_f32},
    [SHEAF_OP_ACC] = {true, DENSE, ROWS, DENSE, part_f32},
    [SHEAF_OP_CONV_2D] = {true, DENSE, DENSE, DENSE, filter},
    [SHEAF_OP_CONV_2D_DW] = {true, DENSE, DENSE, DENSE, all_f32},
    [SHEAF_OP_CONV_TRANSPOSE_1D] = {true, DENSE, DENSE, DENSE, filter},
    [SHEAF_OP_CONV_TRANSPOSE_2D] = {true, DENSE, DENSE, DENSE, filter},
    [SHEAF_OP_COL2IM_1D] = {true, DENSE, ANY, DENSE, all_f32},
    [SHEAF_OP_POOL_1D] = {true, DENSE, ANY, DENSE, pool_1d},
    [SHEAF_OP_POOL_2D] = {true, DENSE, ANY, DENSE, all_f32},
    [SHEAF_OP_WIN_PART] = {true, DENSE, ANY, DENSE, all_f32},
    [SHEAF_OP_WIN_UNPART] = {true, DENSE, ANY, DENSE, all_f32},
    [SHEAF_OP_GET_REL_POS] = {true, DENSE, ANY, DENSE, relative},
    [SHEAF_OP_ADD_REL_POS] = {true, DENSE, DENSE, DENSE, dense_f32},
    [SHEAF_OP_COUNT_EQUAL] = {true, DENSE, DENSE, DENSE, equal_numbers},
    [SHEAF_OP_LIGHTNING_INDEXER] = {true, DENSE, DENSE, DENSE, indexer},
    [SHEAF_OP_DSV4_HC_COMB] = {true, DENSE, DENSE, DENSE, hc_comb},
    [SHEAF_OP_DSV4_HC_PRE] = {true, DENSE, DENSE, DENSE, dense_f32},
    [SHEAF_OP_DSV4_HC_POST] = {true, DENSE, DENSE, DENSE, hc_post},
    [SHEAF_OP_RWKV_WKV6] = {true, DENSE, DENSE, DENSE, linear},
    [SHEAF_OP_RWKV_WKV7] = {true, DENSE, DENSE, DENSE, wkv7},
    [SHEAF_OP_GATED_LINEAR_ATTN] = {true, DENSE, DENSE, DENSE, linear},
};

/* Copies that the CPU makes and GPUs do not say that they do not: of whole numbers of 8 bytes, and
 * conversions of blocks that do not lie side by side. */
static bool gpu_copies(const struct sheaf_tensor *n) {
    const struct sheaf_tensor *a = n->src[0];
    if (n->op != SHEAF_OP_CPY && n->op != SHEAF_OP_DUP && n->op != SHEAF_OP_CONT &&
        n->op != SHEAF_OP_CONCAT)
        return true;
    if (n->type == SHEAF_TYPE_I64 || a->type == SHEAF_TYPE_I64) return false;
    return !sheaf_is_quantized(a->type) || a->type == n->type || sheaf_is_contiguous(a);
}

static bool lie_alike(const struct sheaf_tensor *a, const struct sheaf_tensor *b) {
    for (int i = 0; i < SHEAF_MAX_DIMS; i++) /* one element has any stride (gg_lay_out) */
        if (a->ne[i] != b->ne[i] || (a->ne[i] > 1 && a->nb[i] != b->nb[i])) return false;
    return true;
}

/* CUDA's kernels that go over a tensor as one row and end the process at another one, or, CLAMP, read
 * what lies between rows; devices say nothing of it. So do some of layers with a state, and the
 * device reads the fourth operand of DSV4_HC_POST as it answers. Source: ggml-cuda of 0.21. */
static bool cuda_runs(const struct sheaf_tensor *n) {
    const struct sheaf_tensor *a = n->src[0], *b = n->src[1];
    switch (n->op) {
    case SHEAF_OP_UNARY:
    case SHEAF_OP_SQR:
    case SHEAF_OP_SQRT:
    case SHEAF_OP_SIN:
    case SHEAF_OP_COS:
    case SHEAF_OP_LOG:
    case SHEAF_OP_CLAMP:
        return halves(n) && sheaf_is_contiguous(a) && sheaf_is_contiguous(n);
    case SHEAF_OP_ARGMAX:
        return sheaf_is_contiguous(a);
    case SHEAF_OP_SSM_CONV: /* widths of a filter that have a kernel */
        return (b->ne[0] >= 3 && b->ne[0] <= 5) || b->ne[0] == 9;
    case SHEAF_OP_GATED_DELTA_NET: /* of q and k */
        return lie_alike(a, b);
    case SHEAF_OP_DSV4_HC_POST:
        return n->src[3] != NULL;
    default:
        return true;
    }
}

/* Vulkan's vision ropes leave the frequency factors out. */
static bool gpu_rope(const struct sheaf_tensor *n) {
    const bool is_rope = n->op == SHEAF_OP_ROPE || n->op == SHEAF_OP_ROPE_BACK;
    return !is_rope || n->op_params[1] != SHEAF_ROPE_TYPE_VISION || !n->src[2];
}

bool gg_member_binds(const struct gg_member *m, const struct sheaf_tensor *view) {
    return m->type == GG_DEVICE_TYPE_CPU ||
           view->view_offs % m->lib->buft_get_alignment(m->gg_buft) == 0;
}

/* The version of ggml (0.N) since which Vulkan has words for the rest, in elements, where operands of
 * an op do not begin as bindings must; 0: it ends the process at such an operand, or binds what lies
 * before it. Source: init_pushconst_tensor_offsets of 0.9.8, 0.15, 0.18 and 0.21; GET_ROWS was seen
 * with 0.27. */
static const uint8_t has_words_since[SHEAF_OP_COUNT] = {
    [SHEAF_OP_DUP] = 9,        [SHEAF_OP_CONT] = 9,        [SHEAF_OP_CPY] = 9,
    [SHEAF_OP_ADD] = 9,        [SHEAF_OP_SUB] = 9,         [SHEAF_OP_MUL] = 9,
    [SHEAF_OP_DIV] = 9,        [SHEAF_OP_SCALE] = 9,       [SHEAF_OP_SQR] = 9,
    [SHEAF_OP_SQRT] = 9,       [SHEAF_OP_SIN] = 9,         [SHEAF_OP_COS] = 9,
    [SHEAF_OP_LOG] = 9,        [SHEAF_OP_CLAMP] = 9,       [SHEAF_OP_REPEAT] = 9,
    [SHEAF_OP_CONCAT] = 9,     [SHEAF_OP_RMS_NORM] = 9,    [SHEAF_OP_PAD] = 9,
    [SHEAF_OP_ROLL] = 9,       [SHEAF_OP_UPSCALE] = 9,     [SHEAF_OP_SUM_ROWS] = 9,
    [SHEAF_OP_SET_ROWS] = 9,   [SHEAF_OP_ROPE] = 15,       [SHEAF_OP_ROPE_BACK] = 15,
    [SHEAF_OP_UNARY] = 21,     [SHEAF_OP_GLU] = 21,        [SHEAF_OP_NORM] = 21,
    [SHEAF_OP_L2_NORM] = 21,   [SHEAF_OP_LEAKY_RELU] = 21, [SHEAF_OP_SUM] = 21,
    [SHEAF_OP_MEAN] = 21,      [SHEAF_OP_TRI] = 21,        [SHEAF_OP_DIAG] = 21,
    [SHEAF_OP_SOLVE_TRI] = 21, [SHEAF_OP_SET] = 21,        [SHEAF_OP_ACC] = 21,
    [SHEAF_OP_GET_ROWS] = 27,
};

/* These are given to no GPU with operands that begin elsewhere. */
static bool is_bound_everywhere(const struct sheaf_tensor *n, int operand) {
    switch (n->op) {
    case SHEAF_OP_ROPE: /* there are words for x, but not for positions and factors */
    case SHEAF_OP_ROPE_BACK:
        return operand > 0;
    case SHEAF_OP_RWKV_WKV6:
    case SHEAF_OP_RWKV_WKV7:
    case SHEAF_OP_GATED_LINEAR_ATTN:
    case SHEAF_OP_ADD_ID:
    case SHEAF_OP_FLASH_ATTN_EXT:
    case SHEAF_OP_MUL_MAT_ID:
    case SHEAF_OP_GATED_DELTA_NET:
    case SHEAF_OP_SSM_CONV:
    case SHEAF_OP_SSM_SCAN:
        return true;
    default:
        return false;
    }
}

/* May t, an operand or the result, begin anywhere? Words count elements, so blocks have none, except
 * in copies, which are made of numbers (member_lower.c), and in GET_ROWS. */
static bool may_begin_anywhere(const struct gg_member *m, const struct sheaf_tensor *n,
                               const struct sheaf_tensor *t) {
    const int since = has_words_since[n->op];
    const bool copies = n->src[0] && n->src[0]->type == n->type;
    const bool takes_blocks = copies || n->op == SHEAF_OP_GET_ROWS;
    if (m->has_addresses) return true;
    return since && gg_is_since(&m->lib->host, since) &&
           (takes_blocks || !sheaf_is_quantized(t->type));
}

/* Where a view starts must suit a device's bindings. */
static bool gpu_starts(const struct gg_member *m, const struct sheaf_tensor *n) {
    const bool by_heads = n->op == SHEAF_OP_RWKV_WKV6 || n->op == SHEAF_OP_RWKV_WKV7 ||
                          n->op == SHEAF_OP_GATED_LINEAR_ATTN;
    if (by_heads && n->src[0]->ne[0] != 64) return false; /* kernels are made for heads of 64 */
    for (int i = 0; i < SHEAF_MAX_SRC; i++) {
        const struct sheaf_tensor *t = n->src[i];
        if (!t || gg_member_binds(m, t)) continue;
        if (is_bound_everywhere(n, i) || !may_begin_anywhere(m, n, t)) return false;
    }
    return !n->view_src || gg_member_binds(m, n) || may_begin_anywhere(m, n, n);
}

/* Parameters that earlier versions do not read: they would compute something else. */
static bool reads_words(const struct gg_host *h, const struct sheaf_tensor *n) {
    enum { ROPE_OFFSET = 13, KEPT = 0 }; /* words (sheaf/ops.h) */
    switch (n->op) {
    case SHEAF_OP_GATED_DELTA_NET:
        return gg_is_since(h, 16);
    case SHEAF_OP_SSM_SCAN:
        return n->op_params[KEPT] <= 1 || gg_is_since(h, 20);
    case SHEAF_OP_ROPE:
    case SHEAF_OP_ROPE_BACK:
        return !n->op_params[ROPE_OFFSET] || gg_is_since(h, 21);
    default:
        return true;
    }
}

static bool gpu_takes(const struct gg_member *m, const struct sheaf_tensor *n) {
    return gpu_copies(n) && gpu_starts(m, n) && gpu_rope(n) && (!m->has_addresses || cuda_runs(n));
}

bool gg_member_accepts(const struct gg_member *m, const struct sheaf_tensor *node) {
    const struct limits *l = &limits[node->op];
    if (m->type != GG_DEVICE_TYPE_CPU && !gpu_takes(m, node)) return false;
    if (node->flags & SHEAF_BACKEND_TENSOR_TIES_BY_INDEX) return false; /* ggml leaves it open */
    if (!l->there || !reads_words(&m->lib->host, node)) return false;
    return lies(node->src[0], l->a) && lies(node->src[1], l->b) && lies(node, l->result) &&
           (!l->check || l->check(node));
}
