/* T1: for every op, every tuple of operand states and every result state, is the row that the rules
 * offer true, and is every true one offered? Truth is found by running the op on slices: the local
 * op is made by the op's own constructor from the slices, so its shape is not the planner's word.
 *
 * A result state is true if every member's result is its slice of the whole result (S), all of it
 * (M), an addend of it (P), or an addend whose columns are whole or 0 as a mask says (masked P).
 * Addends of operands are uneven and have offsets that cancel, values are never near zero, so that
 * a wrong row does not pass by luck.
 *
 * T1m: rules that are wrong on purpose must be found out by the same means. */
#include <criterion/criterion.h>

#include "attention_part.h"
#include "op_example.h"
#include "sanitizer.h"
#include "sheaf/backend-impl.h"
#include "split/match.h"
#include "split_cuts.h"
#include "split_state_cases.h"

enum { MAX_OPERANDS = SHEAF__MAX_OPERANDS };

struct xcase {
    const char *name;
    int n;
    int64_t ne[MAX_OPERANDS][SHEAF_MAX_DIMS];
    const char *type; /* a letter an operand: f32, positive f32, h f16, q8_0, ids, - none */
    int below;        /* ids are under this; without a build: the op */
    int max_members;
    T *(*build)(C *ctx, T **a); /* NULL: op_example.h */
};

/* ---- ops ---- */

static T *b_add(C *c, T **a) { return sheaf_add(c, a[0], a[1]); }
static T *b_sub(C *c, T **a) { return sheaf_sub(c, a[0], a[1]); }
static T *b_mul(C *c, T **a) { return sheaf_mul(c, a[0], a[1]); }
static T *b_div(C *c, T **a) { return sheaf_div(c, a[0], a[1]); }
static T *b_scale(C *c, T **a) { return sheaf_scale(c, a[0], 1.5f); }
static T *b_scale_bias(C *c, T **a) { return sheaf_scale_bias(c, a[0], 1.5f, 0.75f); }
static T *b_silu(C *c, T **a) { return sheaf_silu(c, a[0]); }
static T *b_sigmoid(C *c, T **a) { return sheaf_unary(c, a[0], SHEAF_UNARY_OP_SIGMOID); }
static T *b_gelu(C *c, T **a) { return sheaf_unary(c, a[0], SHEAF_UNARY_OP_GELU); }
static T *b_relu(C *c, T **a) { return sheaf_unary(c, a[0], SHEAF_UNARY_OP_RELU); }
static T *b_tanh(C *c, T **a) { return sheaf_unary(c, a[0], SHEAF_UNARY_OP_TANH); }
static T *b_exp(C *c, T **a) { return sheaf_unary(c, a[0], SHEAF_UNARY_OP_EXP); }
static T *b_neg(C *c, T **a) { return sheaf_unary(c, a[0], SHEAF_UNARY_OP_NEG); }
static T *b_swiglu(C *c, T **a) { return sheaf_swiglu(c, a[0]); }
static T *b_geglu_swapped(C *c, T **a) { return sheaf_glu(c, a[0], SHEAF_GLU_OP_GEGLU, true); }
static T *b_swiglu_split(C *c, T **a) { return sheaf_swiglu_split(c, a[0], a[1]); }
static T *b_sum_rows(C *c, T **a) { return sheaf_sum_rows(c, a[0]); }
static T *b_argmax(C *c, T **a) { return sheaf_argmax(c, a[0]); }
static T *b_top_k(C *c, T **a) { return sheaf_top_k(c, a[0], 2); }
static T *b_concat0(C *c, T **a) { return sheaf_concat(c, a[0], a[1], 0); }
static T *b_concat1(C *c, T **a) { return sheaf_concat(c, a[0], a[1], 1); }
static T *b_rms_norm(C *c, T **a) { return sheaf_rms_norm(c, a[0], 1e-5f); }
static T *b_mul_mat(C *c, T **a) { return sheaf_mul_mat(c, a[0], a[1]); }
static T *b_mul_mat_id(C *c, T **a) { return sheaf_mul_mat_id(c, a[0], a[1], a[2]); }
static T *b_cpy(C *c, T **a) { return sheaf_cpy(c, a[0], a[1]); }
static T *b_cont(C *c, T **a) { return sheaf_cont(c, a[0]); }
static T *b_dup(C *c, T **a) { return sheaf_dup(c, a[0]); }
static T *b_cast(C *c, T **a) { return sheaf_cast(c, a[0], SHEAF_TYPE_F16); }
static T *b_get_rows(C *c, T **a) { return sheaf_get_rows(c, a[0], a[1]); }
static T *b_set_rows(C *c, T **a) { return sheaf_set_rows(c, a[0], a[1], a[2]); }
static T *b_soft_max(C *c, T **a) { return sheaf_soft_max(c, a[0]); }
static T *b_soft_max_mask(C *c, T **a) { return sheaf_soft_max_ext(c, a[0], a[1], 0.5f, 0); }
static T *b_soft_max_alibi(C *c, T **a) { return sheaf_soft_max_ext(c, a[0], a[1], 0.5f, 8); }
static T *rope(C *c, T **a, T *freq, int mode, int n_dims) {
    return sheaf_rope_ext(c, a[0], a[1], freq, n_dims, mode, 64, 10000.0f, 1, 0.5f, 1, 32, 1);
}
static T *b_rope(C *c, T **a) {
    return rope(c, a, NULL, SHEAF_ROPE_TYPE_NORMAL, (int)(a[0]->ne[0] / 2 * 2));
}
static T *b_rope_freq(C *c, T **a) { return rope(c, a, a[2], SHEAF_ROPE_TYPE_NEOX, 4); }
static T *b_rope_back(C *c, T **a) { return sheaf_rope_back(b_rope_freq(c, a)); }
static T *b_rope_sections(C *c, T **a) {
    const int sections[] = {1, 1, 1, 0};
    return sheaf_rope_set_offset(sheaf_rope_multi(c, a[0], a[1], NULL, 4, sections,
                                                  SHEAF_ROPE_TYPE_MROPE, 64, 10000.0f, 1, 0.5f, 1,
                                                  32, 1),
                                 2);
}
static T *b_flash(C *c, T **a) {
    return sheaf_flash_attn_ext(c, a[0], a[1], a[2], NULL, 0.6f, 0, 0);
}
static T *b_flash_mask(C *c, T **a) {
    return sheaf_flash_attn_ext(c, a[0], a[1], a[2], a[3], 0.6f, 0, 0);
}
static T *b_flash_cap(C *c, T **a) {
    return sheaf_flash_attn_ext(c, a[0], a[1], a[2], a[3], 0.6f, 0, 2.0f);
}
static T *b_flash_alibi(C *c, T **a) {
    return sheaf_flash_attn_ext(c, a[0], a[1], a[2], a[3], 0.6f, 8, 0);
}
static T *b_soft_max_sinks(C *c, T **a) {
    return sheaf_soft_max_sinks(c, a[0], a[1], a[2], 0.5f, 0);
}
static T *b_soft_max_alibi_sinks(C *c, T **a) {
    return sheaf_soft_max_sinks(c, a[0], a[1], a[2], 0.5f, 8);
}
static T *b_flash_sinks(C *c, T **a) {
    return sheaf_flash_attn_sinks(c, a[0], a[1], a[2], a[3], a[4], 0.6f, 0, 0);
}
static T *b_flash_alibi_sinks(C *c, T **a) {
    return sheaf_flash_attn_sinks(c, a[0], a[1], a[2], a[3], a[4], 0.6f, 8, 0);
}
#include "split_cases.h"

static const struct xcase cases[] = {
    {"add", 2, {{6, 4, 3, 1}, {6, 4, 3, 1}}, "ff", 0, 4, b_add},
    {"add bias", 2, {{6, 4, 3, 1}, {6, 1, 1, 1}}, "ff", 0, 4, b_add},
    {"add column", 2, {{6, 4, 3, 1}, {1, 4, 1, 1}}, "ff", 0, 4, b_add},
    {"add repeated", 2, {{8, 6, 2, 1}, {4, 3, 1, 1}}, "ff", 0, 4, b_add},
    {"sub", 2, {{6, 4, 3, 1}, {6, 4, 3, 1}}, "ff", 0, 4, b_sub},
    {"mul", 2, {{6, 4, 3, 1}, {6, 4, 3, 1}}, "ff", 0, 4, b_mul},
    {"mul broadcast", 2, {{6, 4, 3, 1}, {6, 1, 1, 1}}, "ff", 0, 4, b_mul},
    {"mul weights", 2, {{6, 4, 3, 1}, {1, 4, 3, 1}}, "ff", 0, 4, b_mul},
    {"mul batch", 2, {{4, 4, 3, 6}, {4, 4, 3, 1}}, "ff", 0, 4, b_mul},
    {"div", 2, {{6, 4, 3, 1}, {6, 4, 1, 1}}, "ff", 0, 4, b_div},
    {"add in place", 2, {{6, 4, 3, 1}, {6, 4, 3, 1}}, "ff", 0, 3, b_add_in_place},
    {"sub over the second", 2, {{6, 4, 3, 1}, {6, 4, 3, 1}}, "ff", 0, 3, b_sub_into_b},
    {"scale", 1, {{6, 4, 3, 5}}, "f", 0, 4, b_scale},
    {"scale in place", 1, {{6, 4, 3, 5}}, "f", 0, 3, b_scale_in_place},
    {"scale and bias", 1, {{6, 4, 3, 5}}, "f", 0, 4, b_scale_bias},
    {"silu", 1, {{6, 4, 3, 5}}, "f", 0, 4, b_silu},
    {"sigmoid", 1, {{6, 4, 3, 5}}, "f", 0, 4, b_sigmoid},
    {"gelu", 1, {{6, 4, 3, 5}}, "f", 0, 3, b_gelu},
    {"relu", 1, {{6, 4, 3, 5}}, "f", 0, 3, b_relu},
    {"tanh", 1, {{6, 4, 3, 5}}, "f", 0, 3, b_tanh},
    {"exp", 1, {{6, 4, 3, 5}}, "f", 0, 3, b_exp},
    {"neg", 1, {{6, 4, 3, 5}}, "f", 0, 4, b_neg},
    {"swiglu fused", 1, {{12, 4, 3, 1}}, "f", 0, 4, b_swiglu},
    {"geglu fused swapped", 1, {{12, 4, 3, 1}}, "f", 0, 4, b_geglu_swapped},
    {"swiglu split", 2, {{6, 4, 3, 1}, {6, 4, 3, 1}}, "ff", 0, 4, b_swiglu_split},
    {"sum_rows", 1, {{6, 4, 3, 5}}, "f", 0, 4, b_sum_rows},
    {"argmax", 1, {{6, 8, 1, 1}}, "f", 0, 4, b_argmax},
    {"top_k", 1, {{6, 8, 4, 1}}, "f", 0, 4, b_top_k},
    {"concat 0 equal", 2, {{6, 4, 3, 1}, {6, 4, 3, 1}}, "ff", 0, 4, b_concat0},
    {"concat 0", 2, {{6, 4, 3, 1}, {8, 4, 3, 1}}, "ff", 0, 4, b_concat0},
    {"concat 1", 2, {{6, 4, 3, 1}, {6, 8, 3, 1}}, "ff", 0, 4, b_concat1},
    {"rms_norm", 1, {{6, 4, 3, 5}}, "f", 0, 4, b_rms_norm},
    {"mul_mat", 2, {{6, 8, 1, 1}, {6, 4, 1, 1}}, "ff", 0, 4, b_mul_mat},
    {"mul_mat f16", 2, {{6, 8, 1, 1}, {6, 4, 1, 1}}, "hf", 0, 4, b_mul_mat},
    {"mul_mat q8_0", 2, {{128, 8, 1, 1}, {128, 4, 1, 1}}, "qf", 0, 3, b_mul_mat},
    {"mul_mat batch", 2, {{6, 4, 4, 1}, {6, 4, 4, 1}}, "ff", 0, 4, b_mul_mat},
    {"mul_mat GQA", 2, {{4, 4, 4, 1}, {4, 4, 8, 1}}, "ff", 0, 4, b_mul_mat},
    {"mul_mat MQA", 2, {{4, 4, 1, 1}, {4, 4, 6, 1}}, "ff", 0, 4, b_mul_mat},
    {"mul_mat two groups", 2, {{4, 4, 2, 2}, {4, 4, 4, 4}}, "ff", 0, 4, b_mul_mat},
    {"mul_mat_id", 3, {{6, 4, 6, 1}, {6, 4, 3, 1}, {4, 3, 1, 1}}, "ffi", 6, 4, b_mul_mat_id},
    {"mul_mat_id one row",
     3,
     {{6, 4, 6, 1}, {6, 1, 4, 1}, {4, 4, 1, 1}},
     "ffi",
     6,
     3,
     b_mul_mat_id},
    {"cpy", 2, {{6, 4, 3, 1}, {6, 4, 3, 1}}, "ff", 0, 4, b_cpy},
    {"cpy to f16", 2, {{6, 4, 3, 1}, {6, 4, 3, 1}}, "fh", 0, 4, b_cpy},
    {"cpy heads", 2, {{24, 4, 1, 1}, {6, 4, 4, 1}}, "ff", 0, 4, b_cpy},
    {"cpy flat", 2, {{4, 6, 4, 1}, {24, 4, 1, 1}}, "ff", 0, 4, b_cpy},
    {"cpy oblique", 2, {{6, 8, 1, 1}, {8, 6, 1, 1}}, "ff", 0, 4, b_cpy},
    {"cont", 1, {{6, 4, 3, 5}}, "f", 0, 4, b_cont},
    {"dup", 1, {{6, 4, 3, 5}}, "f", 0, 4, b_dup},
    {"cast", 1, {{6, 4, 3, 5}}, "f", 0, 4, b_cast},
    {"get_rows", 2, {{6, 8, 1, 1}, {9, 1, 1, 1}}, "fi", 8, 4, b_get_rows},
    {"get_rows f16", 2, {{6, 8, 1, 1}, {9, 1, 1, 1}}, "hi", 8, 4, b_get_rows},
    {"get_rows q8_0", 2, {{128, 8, 1, 1}, {9, 1, 1, 1}}, "qi", 8, 3, b_get_rows},
    {"get_rows batch", 2, {{1, 6, 4, 1}, {3, 4, 1, 1}}, "fi", 6, 4, b_get_rows},
    {"set_rows", 3, {{6, 9, 1, 1}, {6, 4, 1, 1}, {4, 1, 1, 1}}, "ffi", 9, 4, b_set_rows},
    {"set_rows f16", 3, {{6, 9, 1, 1}, {6, 4, 1, 1}, {4, 1, 1, 1}}, "hfi", 9, 4, b_set_rows},
    {"set_rows heads", 3, {{4, 8, 6, 1}, {4, 3, 6, 1}, {3, 6, 1, 1}}, "ffi", 8, 4, b_set_rows},
    {"set_rows one list", 3, {{4, 8, 6, 1}, {4, 3, 6, 1}, {3, 1, 1, 1}}, "ffi", 8, 4, b_set_rows},
    {"soft_max", 1, {{6, 4, 3, 5}}, "f", 0, 4, b_soft_max},
    {"soft_max mask", 2, {{6, 4, 6, 1}, {6, 4, 1, 1}}, "ff", 0, 4, b_soft_max_mask},
    {"soft_max mask heads", 2, {{6, 4, 6, 1}, {6, 4, 6, 1}}, "fh", 0, 4, b_soft_max_mask},
    {"soft_max mask batch", 2, {{4, 4, 3, 6}, {4, 4, 1, 6}}, "ff", 0, 4, b_soft_max_mask},
    {"soft_max padded mask", 2, {{6, 4, 6, 1}, {6, 9, 1, 1}}, "ff", 0, 4, b_soft_max_mask},
    {"soft_max alibi", 2, {{6, 4, 6, 1}, {6, 4, 1, 1}}, "ff", 0, 4, b_soft_max_alibi},
    {"soft_max sinks", 3, {{6, 4, 6, 1}, {0}, {6, 1, 1, 1}}, "f-f", 0, 4, b_soft_max_sinks},
    {"soft_max alibi sinks",
     3,
     {{6, 4, 6, 1}, {6, 4, 3, 1}, {6, 1, 1, 1}},
     "fff",
     0,
     3,
     b_soft_max_alibi_sinks},
    {"rope", 2, {{6, 8, 4, 1}, {4, 1, 1, 1}}, "fi", 50, 4, b_rope},
    {"rope in place", 2, {{6, 8, 4, 1}, {4, 1, 1, 1}}, "fi", 50, 3, b_rope_in_place},
    {"rope freq", 3, {{6, 8, 4, 1}, {4, 1, 1, 1}, {2, 1, 1, 1}}, "fif", 50, 4, b_rope_freq},
    {"rope back", 3, {{6, 8, 4, 1}, {4, 1, 1, 1}, {2, 1, 1, 1}}, "fif", 50, 3, b_rope_back},
    {"rope sections", 2, {{6, 6, 4, 2}, {16, 1, 1, 1}}, "fi", 50, 4, b_rope_sections},
    {"rope batch", 2, {{4, 3, 4, 6}, {4, 1, 1, 1}}, "fi", 50, 4, b_rope},
    {"flash MHA", 3, {{4, 4, 6, 1}, {4, 8, 6, 1}, {6, 8, 6, 1}}, "fff", 0, 4, b_flash},
    {"flash GQA", 3, {{4, 4, 8, 1}, {4, 8, 4, 1}, {4, 8, 4, 1}}, "fff", 0, 4, b_flash},
    {"flash in threes", 3, {{4, 2, 9, 1}, {4, 5, 3, 1}, {4, 5, 3, 1}}, "fff", 0, 4, b_flash},
    {"flash MQA", 3, {{4, 4, 6, 1}, {4, 8, 1, 1}, {4, 8, 1, 1}}, "fff", 0, 4, b_flash},
    {"flash GQA mask",
     4,
     {{4, 4, 8, 1}, {4, 6, 4, 1}, {4, 6, 4, 1}, {6, 4, 1, 1}},
     "fhhh",
     0,
     3,
     b_flash_mask},
    {"flash mask heads",
     4,
     {{4, 4, 4, 1}, {4, 6, 2, 1}, {4, 6, 2, 1}, {6, 4, 4, 1}},
     "ffff",
     0,
     2,
     b_flash_mask},
    {"flash padded mask",
     4,
     {{4, 4, 8, 1}, {4, 6, 4, 1}, {4, 6, 4, 1}, {6, 7, 1, 1}},
     "ffff",
     0,
     2,
     b_flash_mask},
    {"flash softcap",
     4,
     {{4, 4, 8, 1}, {4, 6, 4, 1}, {4, 6, 4, 1}, {6, 4, 1, 1}},
     "ffff",
     0,
     2,
     b_flash_cap},
    {"flash batch", 3, {{4, 3, 4, 4}, {4, 3, 2, 4}, {4, 3, 2, 4}}, "fff", 0, 3, b_flash},
    {"flash alibi",
     4,
     {{4, 4, 8, 1}, {4, 6, 4, 1}, {4, 6, 4, 1}, {6, 4, 1, 1}},
     "ffff",
     0,
     3,
     b_flash_alibi},
    {"flash sinks",
     5,
     {{4, 4, 8, 1}, {4, 6, 4, 1}, {4, 6, 4, 1}, {0}, {8, 1, 1, 1}},
     "fff-f",
     0,
     3,
     b_flash_sinks},
    {"flash alibi sinks",
     5,
     {{2, 2, 6, 1}, {2, 3, 2, 1}, {2, 3, 2, 1}, {3, 2, 1, 1}, {6, 1, 1, 1}},
     "fffff",
     0,
     2,
     b_flash_alibi_sinks},
    {"flash masks of sequences",
     4,
     {{2, 2, 2, 4}, {2, 3, 1, 4}, {2, 3, 1, 4}, {3, 2, 1, 2}},
     "ffff",
     0,
     2,
     b_flash_mask},
    MAP_AND_ROW_CASES,
    MATRIX_CASES,
    IMAGE_CASES,
    STATE_CASES};
enum { N_CASES = sizeof cases / sizeof *cases };

static T *build(const struct xcase *x, C *ctx, T **a) {
    return x->build ? x->build(ctx, a) : op_example(ctx, (enum sheaf_op)x->below, a);
}

/* ---- running a tuple ---- */

struct operand {
    T *whole;
    int n;
    struct sheaf__st st[MAX_CANDIDATES];
    T *slice[MAX_CANDIDATES][MAX_MEMBERS];
};

struct bench {
    const struct xcase *x;
    int d;
    struct sheaf__pool pool;
    struct operand operand[MAX_OPERANDS];
    T *whole;    /* result of the unsplit op */
    int written; /* 1 + the operand that it is written over; 0: none */
    C *ctx;
    C *local;
    int n_masks; /* expert ids, one tensor for each arrangement of columns */
    T *mask[2 * MAX_OPERANDS];
};

static T *new_operand(C *ctx, const struct xcase *x, int i) {
    const enum sheaf_type type = x->type[i] == 'i'   ? SHEAF_TYPE_I32
                                 : x->type[i] == 'h' ? SHEAF_TYPE_F16
                                 : x->type[i] == 'q' ? SHEAF_TYPE_Q8_0
                                                     : SHEAF_TYPE_F32;
    return x->type[i] == '-' ? NULL : sheaf_new_tensor(ctx, type, SHEAF_MAX_DIMS, x->ne[i]);
}

static T *fill(T *t, char type, int below, uint64_t *seed) {
    const int64_t n = sheaf_nelements(t);
    for (int64_t i = 0; i < n; i++) {
        if (type == 'i') {
            ((int32_t *)t->data)[i] = (int32_t)((i * 5 + 1) % below);
        } else if (type == 'h') {
            ((uint16_t *)t->data)[i] = sheaf_fp32_to_fp16(split_random_float(seed));
        } else if (type == 'q') {
            float row[32];
            for (int k = 0; k < 32; k++) row[k] = split_random_float(seed);
            cr_assert_eq(
                sheaf_from_float(t->type, row, (char *)t->data + i / 32 * (int64_t)t->nb[0], 32),
                SHEAF_STATUS_SUCCESS);
            i += 31;
        } else {
            const float f = split_random_float(seed);
            ((float *)t->data)[i] = type == 'p' ? fabsf(f) : f;
        }
    }
    return t;
}

static void copy_tensor(T *to, const T *from) { memcpy(to->data, from->data, sheaf_nbytes(from)); }

/* ---- masked P: experts of columns, a cut of the experts ---- */

enum { EXPERTS = 6 };

static T *mask_for(struct bench *b, const T *t) {
    for (int i = 0; i < b->n_masks; i++) {
        if (!memcmp(b->mask[i]->ne, t->ne + 1, 3 * sizeof *t->ne)) return b->mask[i];
    }
    T *m = sheaf_new_tensor_3d(b->ctx, SHEAF_TYPE_I32, t->ne[1], t->ne[2], t->ne[3]);
    const int64_t n = sheaf_nelements(m);
    uint64_t seed = (uint64_t)b->n_masks + 11;
    for (int64_t i = 0; i < n; i++) /* by more than one member, whatever the cut */
        ((int32_t *)m->data)[i] = i == n / 2   ? 0
                                  : i == n - 1 ? EXPERTS - 1
                                               : (int32_t)(split_random(&seed) % EXPERTS);
    return b->mask[b->n_masks++] = m;
}

static int owner_of_column(const struct sheaf__st st, const struct split_index *x) {
    const struct split_index at = {{x->i[1], x->i[2], x->i[3], 0}};
    int32_t expert;
    memcpy(&expert, split_at(st.mask, &at), sizeof expert);
    for (int j = 0; j < st.cut->n_members; j++) {
        for (int i = st.cut->begin[j]; i < st.cut->begin[j + 1]; i++) {
            if (st.cut->interval[i].lo <= expert && expert < st.cut->interval[i].hi) return j;
        }
    }
    return -1;
}

/* Masked states of a tensor, behind the others. */
static int masked_candidates(struct bench *b, const T *t, enum kind kind, struct sheaf__st *out,
                             int n) {
    const struct sheaf__cut *cut = make_cut(&b->pool, kind, EXPERTS, 1, 1);
    if (t->type == SHEAF_TYPE_F32 && cut && cut->partition && cut->contiguous)
        out[n++] = sheaf__st_masked(cut, mask_for(b, t));
    return n;
}

static void split_masked(const T *whole, struct sheaf__st st, T **out) {
    for (int j = 0; j < st.cut->n_members; j++) out[j] = split_tensor(whole->type, whole->ne);
    struct split_index x = {{0}};
    do {
        memcpy(split_at(out[owner_of_column(st, &x)], &x), split_at(whole, &x), sizeof(float));
    } while (split_next(&x, whole->ne));
}

static bool has_groups(const struct xcase *x) {
    return !strncmp(x->name, "flash", 5) && x->ne[0][2] > x->ne[1][2];
}

/* The K/V heads that a cut of single query heads touches, behind the other states of k and v. */
static int group_candidates(struct bench *b, enum kind kind, struct sheaf__st *out, int n) {
    const int64_t heads = b->x->ne[0][2], r = heads / b->x->ne[1][2];
    const struct sheaf__cut *cut = make_cut(&b->pool, kind, heads, 1, 1);
    if (!cut || !cut->contiguous) return n;
    sheaf__cut_begin(&b->pool);
    for (int j = 0; j < b->d; j++) {
        const struct sheaf__interval *v = &cut->interval[cut->begin[j]];
        if (sheaf__cut_count(cut, j)) sheaf__cut_add(&b->pool, v->lo / r, (v->hi + r - 1) / r);
        sheaf__cut_next_member(&b->pool);
    }
    const struct sheaf__cut *groups = sheaf__cut_end(&b->pool, b->x->ne[1][2]);
    bool known = groups->everywhere;
    for (int i = 0; i < n; i++) known = known || (out[i].cut == groups && out[i].axis == 2);
    if (!known) out[n++] = sheaf__st_s(2, groups);
    return n;
}

static void bench_open(struct bench *b, const struct xcase *x, int d, enum kind kind,
                       uint64_t seed) {
    memset(b, 0, sizeof *b);
    b->x = x;
    b->d = d;
    cr_assert_eq(sheaf__pool_init(&b->pool, d), SHEAF_STATUS_SUCCESS);
    b->ctx = sheaf_init((struct sheaf_init_params){.mem_size = 1 << 20});
    b->local = sheaf_init(
        (struct sheaf_init_params){.mem_size = 16 * sheaf_tensor_overhead(), .no_alloc = true});
    T *a[MAX_OPERANDS] = {NULL}, *scratch[MAX_OPERANDS] = {NULL};
    for (int i = x->n - 1; i >= 0; i--) { /* expert ids first: they are a mask */
        struct operand *o = &b->operand[i];
        a[i] = new_operand(b->ctx, x, i);
        if (!a[i]) {
            o->n = 1;
            o->st[0] = sheaf__st_m();
            continue;
        }
        fill(a[i], x->type[i], x->below, &seed);
        scratch[i] = sheaf_dup_tensor(b->ctx, a[i]);
        copy_tensor(scratch[i], a[i]);
        if ((x->build == b_mul_mat_id || x->build == b_add_id) && i == 2)
            b->mask[b->n_masks++] = a[i];
        o->whole = a[i];
        if (is_flat_case(x->build)) {
            o->n = few_candidates(&b->pool, a[i], kind, o->st);
        } else {
            o->n = candidates(&b->pool, a[i], kind, o->st);
            o->n = masked_candidates(b, a[i], kind, o->st, o->n);
            if (has_groups(x) && (i == 1 || i == 2)) o->n = group_candidates(b, kind, o->st, o->n);
        }
        for (int s = 0; s < o->n; s++) {
            if (o->st[s].mask) {
                split_masked(a[i], o->st[s], o->slice[s]);
                continue;
            }
            if (o->st[s].kind == SHEAF__P) {
                split_addends(a[i], d, &seed, o->slice[s]);
                continue;
            }
            for (int j = 0; j < d; j++)
                o->slice[s][j] = split_slice(a[i], sheaf__st_show(&b->pool, o->st[s]), j);
        }
    }
    b->whole = build(x, b->ctx, scratch);
    cr_assert_not_null(b->whole, "%s: %s", x->name, sheaf_last_error());
    cr_assert_eq(split_run_node(b->whole), SHEAF_STATUS_SUCCESS, "%s: %s", x->name,
                 sheaf_last_error());
    b->written = sheaf__op_written(b->whole);
    for (int i = 0; i < x->n; i++) b->whole->src[i] = a[i];
}

static void bench_close(struct bench *b) {
    sheaf__pool_free(&b->pool);
    sheaf_free(b->ctx);
    sheaf_free(b->local);
    split_free_all();
}

/* How the kernel is helped: not at all, with the base of an indexed slice, with the size of a group
 * that a slice divides, or by adding on one member only. */
enum variant { PLAIN, BASE, PARTS, ONCE_0, ONCE_1, N_VARIANTS };

struct results {
    bool valid;             /* every member's op could be made and run */
    T *r[MAX_MEMBERS];      /* dense, with memory of its own */
    bool zero[MAX_MEMBERS]; /* as an addend: some operand's slice is empty */
};

/* Memory of one tuple, used again for the next. */
static char arena[1 << 20];
static size_t arena_used;
static void *take(size_t n) {
    void *p = arena + arena_used;
    arena_used += (n + 64 + 63) / 64 * 64;
    if (arena_used > sizeof arena) abort();
    return p;
}

static T *clone(const T *t) {
    T *c = take(sizeof *c);
    *c = *t;
    c->data = take(sheaf_nbytes(t));
    copy_tensor(c, t);
    return c;
}

/* Base and extent for member j, if the variant has them. */
static bool base_of(const struct bench *b, const struct sheaf__rule *rule, const int *tuple, int j,
                    int32_t param[2]) {
    const int i = rule->base_operand < 0 ? 0 : rule->base_operand;
    const int axis = rule->base_operand < 0 ? 2 : rule->base_axis; /* heads of operand 0 */
    const struct sheaf__st st = b->operand[i].st[tuple[i]];
    if (st.kind != SHEAF__S || st.axis != axis) return false;
    if (!rule->extent && (!rule->base_axis || !st.cut->contiguous)) return false;
    const int first = st.cut->begin[j];
    param[0] = first < st.cut->begin[j + 1] ? (int32_t)st.cut->interval[first].lo : 0;
    param[1] = (int32_t)st.cut->extent;
    return true;
}

/* Has member j query heads [lo, ..) that divide a group? Of any member with j -1. */
static bool has_parts(const struct bench *b, const int *tuple, int j) {
    const struct sheaf__st st = b->operand[0].st[tuple[0]];
    if (b->whole->op != SHEAF_OP_FLASH_ATTN_EXT || st.kind != SHEAF__S || st.axis != 2)
        return false;
    const int64_t r = b->x->ne[0][2] / b->x->ne[1][2];
    for (int i = 0; i < b->d; i++)
        if ((i == j || j < 0) && sheaf__cut_divides_groups(st.cut, i, r)) return true;
    return false;
}

/* Has member j no query heads? Then it computes nothing, whatever K/V heads it has. */
static bool has_no_heads(const struct bench *b, const int *tuple, int j) {
    const struct sheaf__st st = b->operand[0].st[tuple[0]];
    return b->whole->op == SHEAF_OP_FLASH_ATTN_EXT && st.kind == SHEAF__S && st.axis == 2 &&
           !sheaf__cut_count(st.cut, j);
}

/* Attention of heads that divide a group, or of none; NULL if shapes do not fit. */
static T *attend_parts(struct bench *b, T *const *a, const int *tuple, int j) {
    if (has_no_heads(b, tuple, j)) return attention_part(b->local, a, (const float[3]){0}, 0, 0, 0);
    const struct sheaf__cut *cut = b->operand[0].st[tuple[0]].cut;
    const int group = (int)(b->x->ne[0][2] / b->x->ne[1][2]);
    float params[3];
    memcpy(params, b->whole->op_params, sizeof params);
    T *t = attention_part(b->local, a, params, (int)cut->interval[cut->begin[j]].lo,
                          (int)cut->extent, group);
    return sheaf_backend_op_is_valid(t) ? t : NULL;
}

static struct results run_tuple(struct bench *b, const int *tuple, enum variant v,
                                const struct sheaf__rule *rule) {
    struct results out = {.valid = false};
    const struct xcase *x = b->x;
    arena_used = 0;
    if (v == PARTS && !has_parts(b, tuple, -1)) return out;
    for (int j = 0; j < b->d; j++) {
        const bool parts = v == PARTS && has_parts(b, tuple, j);
        T *a[MAX_OPERANDS] = {NULL};
        for (int i = 0; i < x->n; i++) {
            a[i] = b->operand[i].slice[tuple[i]][j];
            if (b->operand[i].st[tuple[i]].kind == SHEAF__S && sheaf_is_empty(a[i]))
                out.zero[j] = true;
        }
        if (b->written) a[b->written - 1] = clone(a[b->written - 1]);
        sheaf_reset(b->local);
        T *t = parts || has_no_heads(b, tuple, j) ? attend_parts(b, a, tuple, j)
                                                  : build(x, b->local, a);
        if (!t) return out;
        if (v == BASE || (v == PARTS && rule->base_axis && !parts)) {
            int32_t param[2];
            if (!base_of(b, rule, tuple, j, param)) return out;
            t->op_params[SHEAF_OP_PARAM_BASE] = param[0];
            t->op_params[SHEAF_OP_PARAM_EXTENT] = param[1];
        }
        if (!t->view_src) t->data = take(sheaf_nbytes(t));
        if ((v == ONCE_0 || v == ONCE_1) && j > 0) {
            const T *keep = a[v == ONCE_1 ? 0 : 1];
            if (!sheaf_are_same_shape(keep, t)) return out;
            copy_tensor(t, keep);
        } else if (!sheaf_is_empty(t) && split_run_node(t) != SHEAF_STATUS_SUCCESS) {
            return out;
        }
        T *r = take(sizeof *r);
        *r = *t;
        out.r[j] = r;
    }
    out.valid = true;
    return out;
}

/* Is every column of every addend what the mask says? */
static bool is_masked(struct bench *b, const struct results *res, struct sheaf__st st,
                      double tolerance) {
    for (int j = 0; j < b->d; j++) {
        if (!sheaf_are_same_shape(res->r[j], b->whole)) return false;
        if (res->zero[j]) continue; /* that the sum is right is a claim of its own */
        T *expect = clone(b->whole);
        struct split_index x = {{0}};
        do {
            float v;
            memcpy(&v, split_at(res->r[j], &x), sizeof v);
            if (owner_of_column(st, &x) == j) {
                memcpy(split_at(expect, &x), &v, sizeof v);
            } else if (v < 0 || v > 0) {
                return false;
            }
        } while (split_next(&x, b->whole->ne));
        if (split_distance(expect, b->whole) > tolerance) return false;
    }
    return true;
}

static bool is_true(struct bench *b, const struct results *res, struct sheaf__st st) {
    if (!res->valid) return false;
    const double tolerance = b->whole->type == SHEAF_TYPE_F16 ? 3e-3 : 2e-5;
    if (st.kind == SHEAF__P) {
        if (b->whole->type != SHEAF_TYPE_F32) return false;
        T sum = *b->whole;
        sum.data = take(sheaf_nbytes(&sum));
        split_dense(&sum);
        memset(sum.data, 0, sheaf_nbytes(&sum));
        for (int j = 0; j < b->d; j++) {
            if (!sheaf_are_same_shape(res->r[j], &sum)) return false;
            const float *f = res->r[j]->data;
            for (int64_t i = 0; i < sheaf_nelements(&sum) && !res->zero[j]; i++)
                ((float *)sum.data)[i] += f[i];
        }
        if (split_distance(&sum, b->whole) >= tolerance) return false;
        return !st.mask || is_masked(b, res, st, tolerance);
    }
    for (int j = 0; j < b->d; j++) {
        int64_t ne[SHEAF_MAX_DIMS];
        const struct sheaf_split_state *shown = sheaf__st_show(&b->pool, st);
        sheaf_split_state_local_ne(shown, b->whole->ne, j, ne);
        if (memcmp(ne, res->r[j]->ne, sizeof ne)) return false;
        if (sheaf_is_empty(res->r[j])) continue;
        /* compared with the whole, so that a slice of small numbers has the same measure */
        T *expect = clone(b->whole);
        split_copy_slice(expect, res->r[j], shown, j, false);
        if (split_distance(expect, b->whole) > tolerance) return false;
    }
    return true;
}

/* ---- what the rules offer ---- */

struct offer {
    struct sheaf__st out;
    enum variant v;
};
struct offers {
    struct bench *b;
    const int *tuple;
    int n;
    struct offer offer[MAX_CANDIDATES];
    const struct sheaf__have *have;
    const struct sheaf__rule *rule;
};

static bool collect(void *user, const struct sheaf__row *row) {
    struct offers *o = user;
    for (int i = 0; i < row->n_operands; i++) {
        if (!sheaf__need_met(&row->need[i], o->have[i].st[0])) return true;
    }
    enum variant v = PLAIN;
    if (row->add_once) v = row->once ? ONCE_1 : ONCE_0;
    const bool told = o->rule->base_axis || o->rule->extent;
    if (told && row->out.kind != SHEAF__M) { /* as sheaf__split_local_node decides */
        const struct sheaf__st st =
            o->rule->base_operand < 0 ? row->out : o->have[o->rule->base_operand].st[0];
        if (st.kind == SHEAF__S && st.axis == o->rule->base_axis) v = BASE;
    }
    if (o->rule->parts && row->out.kind == SHEAF__S && row->out.axis == 1 &&
        has_parts(o->b, o->tuple, -1))
        v = PARTS;
    if (o->n < MAX_CANDIDATES) o->offer[o->n++] = (struct offer){row->out, v};
    return true;
}

struct count {
    long tuples, claims, offered, is_true, wrong, missing, allowed;
};

static bool same(struct sheaf__st a, struct sheaf__st b) { return sheaf__st_equal(a, b); }
/* A masked P is a P. */
static bool says(struct sheaf__st offered, struct sheaf__st claim) {
    const struct sheaf__need need = {.st = claim};
    return same(offered, claim) || (claim.kind == SHEAF__P && sheaf__need_met(&need, offered));
}

static char *print_st(struct bench *b, struct sheaf__st st, char *buf, size_t n) {
    if (st.mask) return snprintf(buf, n, "masked"), buf;
    return sheaf_split_state_print(sheaf__st_show(&b->pool, st), buf, n);
}

static void report(struct bench *b, const char *what, const int *tuple, struct sheaf__st out,
                   enum kind kind) {
    static int reports;
    if (reports++ > 40 && strcmp(what, "wrong")) return;
    char text[200];
    fprintf(stderr, "%s: %s, %d members, %s:", what, b->x->name, b->d, kind_names[kind]);
    for (int i = 0; i < b->x->n; i++)
        fprintf(stderr, " %s", print_st(b, b->operand[i].st[tuple[i]], text, sizeof text));
    fprintf(stderr, " -> %s\n", print_st(b, out, text, sizeof text));
}

/* True rows that are not offered, and why. */
static const char *allowed(struct bench *b, const int *tuple, struct sheaf__st out, enum kind kind,
                           enum variant v) {
    const int written = b->written;
    if (written && !same(out, b->operand[written - 1].st[tuple[written - 1]]))
        return "the result is the target's memory, so it lies as the target does";
    if (written && out.mask) return "what is written over has no mask, a cache never has one";
    if (v == ONCE_0 || v == ONCE_1) {
        const struct sheaf__st once = b->operand[v == ONCE_1].st[tuple[v == ONCE_1]];
        if (once.kind == SHEAF__S && sheaf__cut_count(once.cut, 0) == once.cut->extent)
            return "the member that adds happens to own all of the operand";
    }
    if (b->whole->op == SHEAF_OP_GROUP_NORM && b->whole->ne[2] % b->whole->op_params[2])
        return "channels are not cut where the last group is smaller than the others";
    const enum sheaf_op op = b->whole->op;
    if ((op == SHEAF_OP_LIGHTNING_INDEXER || op == SHEAF_OP_DSV4_HC_PRE ||
         op == SHEAF_OP_DSV4_HC_POST) &&
        out.kind == SHEAF__P) {
        for (int i = 0; i < b->x->n; i++) {
            const struct sheaf__st st = b->operand[i].st[tuple[i]];
            if (st.mask) return "columns with a mask are summed, so the mask is not of the result";
            if (st.kind == SHEAF__S && op != SHEAF_OP_DSV4_HC_PRE)
                return "what is summed over parts meets an addend: no row has both";
        }
    }
    const int mask = b->whole->op == SHEAF_OP_SOFT_MAX         ? 1
                     : b->whole->op == SHEAF_OP_FLASH_ATTN_EXT ? 3
                                                               : 0;
    if (kind == OVERLAP && mask && b->whole->src[mask]) {
        const struct sheaf__st st = b->operand[mask].st[tuple[mask]];
        if (st.kind == SHEAF__S && st.axis == 1 && !st.cut->partition)
            return "a mask may have rows to spare, and these slices begin with the rows needed";
    }
    return NULL;
}

static bool next_tuple(const struct bench *b, int *tuple) {
    for (int i = 0; i < b->x->n; i++) {
        if (++tuple[i] < b->operand[i].n) return true;
        tuple[i] = 0;
    }
    return false;
}

static void offers_of(struct bench *b, const struct sheaf__rule *rule, const int *tuple,
                      struct sheaf__have *have, struct offers *o) {
    *o = (struct offers){.b = b, .tuple = tuple, .have = have, .rule = rule};
    for (int i = 0; i < b->x->n; i++)
        have[i] = (struct sheaf__have){1, &b->operand[i].st[tuple[i]]};
    sheaf__rows_visit_by(&b->pool, b->whole, rule, have, collect, o);
}

/* States of a flat result: those that some row of some tuple gives. */
static int offered_results(struct bench *b, const struct sheaf__rule *rule, struct sheaf__st *out) {
    int n = 0, tuple[MAX_OPERANDS] = {0};
    out[n++] = sheaf__st_m();
    out[n++] = sheaf__st_p();
    do {
        struct sheaf__have have[SHEAF__MAX_OPERANDS] = {{0}};
        struct offers o;
        offers_of(b, rule, tuple, have, &o);
        for (int i = 0; i < o.n; i++) {
            bool known = false;
            for (int k = 0; k < n; k++) known = known || same(out[k], o.offer[i].out);
            if (!known && n < MAX_CANDIDATES) out[n++] = o.offer[i].out;
        }
    } while (next_tuple(b, tuple));
    return n;
}

static void run_case(const struct xcase *x, int d, enum kind kind, const struct sheaf__rule *mutant,
                     struct count *c) {
    struct bench b;
    bench_open(&b, x, d, kind, 1234 + (uint64_t)d);
    const struct sheaf__rule *rule = mutant ? mutant : sheaf__rule_of(b.whole);
    struct sheaf__st result[MAX_CANDIDATES];
    int n_result = 0;
    if (is_flat_case(x->build)) {
        n_result = offered_results(&b, rule, result);
    } else {
        n_result = candidates(&b.pool, b.whole, kind, result);
        n_result = masked_candidates(&b, b.whole, kind, result, n_result);
    }
    int tuple[MAX_OPERANDS] = {0};
    do {
        struct sheaf__have have[SHEAF__MAX_OPERANDS] = {{0}};
        struct offers o;
        offers_of(&b, rule, tuple, have, &o);
        c->tuples++;
        c->offered += o.n;
        bool found[MAX_CANDIDATES] = {false};
        for (int v = 0; v < N_VARIANTS; v++) {
            if (v == BASE && !rule->base_axis && !rule->extent && !mutant) continue;
            if (v == PARTS && !rule->parts) continue;
            if (v >= ONCE_0 && !(rule->add_once >> (v - ONCE_0) & 1)) continue;
            const struct results res = run_tuple(&b, tuple, (enum variant)v, rule);
            const size_t mark = arena_used;
            for (int i = 0; i < o.n; i++) {
                if (o.offer[i].v != (enum variant)v) continue;
                arena_used = mark;
                if (!is_true(&b, &res, o.offer[i].out)) {
                    c->wrong++;
                    if (!mutant) report(&b, "wrong", tuple, o.offer[i].out, kind);
                }
            }
            for (int r = 0; r < n_result && !mutant; r++) {
                arena_used = mark;
                if (found[r] || !is_true(&b, &res, result[r])) continue;
                found[r] = true;
                c->is_true++;
                bool is_offered = false;
                for (int i = 0; i < o.n; i++)
                    is_offered = is_offered || says(o.offer[i].out, result[r]);
                if (is_offered) continue;
                if (allowed(&b, tuple, result[r], kind, (enum variant)v)) {
                    c->allowed++;
                    continue;
                }
                c->missing++;
                report(&b, "missing", tuple, result[r], kind);
            }
        }
        c->claims += n_result;
    } while (next_tuple(&b, tuple));
    bench_close(&b);
}

/* Under a sanitizer every other kind, the others with another number of members. */
static void run_cases(const struct xcase *x, int n) {
    const int step = SANITIZED ? 2 : 1;
    struct count all = {0};
    for (int i = 0; i < n; i++) {
        for (int d = 2; d <= x[i].max_members; d++) {
            for (int k = (i + d) % step; k < N_KINDS; k += step)
                run_case(&x[i], d, (enum kind)k, NULL, &all);
        }
    }
    printf("%s .. %s: %ld operand tuples, %ld claims; %ld true, %ld rows offered, %ld wrong, "
           "%ld missing, %ld allowed\n",
           x[0].name, x[n - 1].name, all.tuples, all.claims, all.is_true, all.offered, all.wrong,
           all.missing, all.allowed);
    cr_expect_eq(all.wrong, 0);
    cr_expect_eq(all.missing, 0);
    cr_expect_gt(all.is_true, 0);
}

static int index_of(const char *name) {
    for (int i = 0; i < N_CASES; i++) {
        if (!strcmp(cases[i].name, name)) return i;
    }
    cr_assert(0, "no case '%s'", name);
    return -1;
}

static void run_between(const char *first, const char *end) {
    const int i = index_of(first);
    run_cases(&cases[i], (end ? index_of(end) : N_CASES) - i);
}

Test(exhaustive, elementwise) { run_between("add", "rms_norm"); }
Test(exhaustive, products) { run_between("rms_norm", "cpy"); }
Test(exhaustive, copies_and_rows) { run_between("cpy", "soft_max"); }
Test(exhaustive, soft_max_and_rope) { run_between("soft_max", "flash MHA"); }
Test(exhaustive, attention) { run_between("flash MHA", "sqr"); }
/* "add_id square" is for a mutant: its few ids make claims true by luck. */
Test(exhaustive, maps_and_rows) { run_between("sqr", "add_id square"); }
Test(exhaustive, matrices) { run_between("set", "im2col"); }
Test(exhaustive, images) { run_between("im2col", "ssm_conv"); }
Test(exhaustive, scans) { run_between("ssm_conv", "delta net heads"); }
Test(exhaustive, delta_nets) { run_between("delta net heads", "wkv6"); }
Test(exhaustive, linear_attention) { run_between("wkv6", NULL); }

/* The op of a case, whose operands are not filled. */
static enum sheaf_op op_of(const struct xcase *x, C *ctx) {
    T *a[MAX_OPERANDS];
    for (int i = 0; i < x->n; i++) {
        a[i] = new_operand(ctx, x, i);
    }
    T *t = x->build(ctx, a);
    cr_assert_not_null(t, "%s: %s", x->name, sheaf_last_error());
    return t->op;
}

/* Ops that no case names have one by the table of ops. Views are the matter of test-split-views. */
Test(exhaustive, every_other_op) {
    C *ctx = sheaf_init((struct sheaf_init_params){.mem_size = 1 << 20, .no_alloc = true});
    bool named[SHEAF_OP_COUNT] = {false};
    for (int i = 0; i < N_CASES; i++) named[op_of(&cases[i], ctx)] = true;
    for (int op = 0; op < SHEAF_OP_COUNT; op++) {
        const struct sheaf__op_info *info = sheaf__op_info((enum sheaf_op)op);
        if (named[op] || info->cost == SHEAF_OP_COST_FREE) continue;
        struct xcase x = {.name = info->name, .type = "fffffff", .below = op, .max_members = 4};
        x.n = op_example_operands((enum sheaf_op)op);
        for (int i = 0; i < x.n; i++) memcpy(x.ne[i], (int64_t[]){6, 4, 3, 5}, sizeof x.ne[i]);
        T *a[MAX_OPERANDS];
        for (int i = 0; i < x.n; i++) a[i] = sheaf_new_tensor(ctx, SHEAF_TYPE_F32, 4, x.ne[i]);
        if (x.n == 0 || !op_example(ctx, (enum sheaf_op)op, a)) {
            cr_expect(0, "%s has no case, and none follows from its row in op_info.h", x.name);
            continue;
        }
        run_cases(&x, 1);
    }
    sheaf_free(ctx);
}

/* ---- T1m: wrong rules are found out ---- */

struct mutant {
    const char *name, *on;
    struct sheaf__rule rule;
};

static void attention_text(const T *t, char expr[static SHEAF__MAX_EXPR]) {
    const char *text = t->src[3] ? "d n g.r s, d t g s, e t g s, t n 1 s -> e g.r n s"
                                 : "d n g.r s, d t g s, e t g s -> e g.r n s";
    strcpy(expr, text);
}

static void sinks_text(const T *t, char expr[static SHEAF__MAX_EXPR]) {
    (void)t;
    strcpy(expr, "d n g.r s, d t g s, e t g s, 1, g.r -> e g.r n s");
}
static void sinks_by_groups(const T *t, char expr[static SHEAF__MAX_EXPR]) {
    (void)t;
    strcpy(expr, "d n g.r s, d t g s, e t g s, 1, r.g -> e g.r n s");
}

static const struct mutant mutants[] = {
    {"a norm row may be cut", "rms_norm", {.expr = "i j h s -> i j h s"}},
    {"a softmax row may be cut", "soft_max", {.expr = "k n h s -> k n h s"}},
    {"ALiBi heads need no base",
     "soft_max alibi",
     {.expr = "k n H.h S.s, k n h s -> k n H.h S.s", .whole = "k"}},
    {"ALiBi heads of attention need no base",
     "flash alibi",
     {.build = attention_text, .whole = "dt", .group = "gr"}},
    {"ALiBi heads need no run of indices",
     "soft_max alibi",
     {.expr = "k n H.h S.s, k n h s -> k n H.h S.s", .whole = "kn", .linear = {1}}},
    {"sinks are not cut with the heads",
     "soft_max sinks",
     {.expr = "k n h s, 1, H -> k n h s", .whole = "kH"}},
    {"sinks of attention are linear",
     "flash sinks",
     {.build = sinks_text, .whole = "dt", .group = "gr", .linear = {16}}},
    {"sinks of attention go with K/V heads",
     "flash sinks",
     {.build = sinks_by_groups, .whole = "dt", .group = "gr"}},
    {"the rotary dimension may be cut", "rope", {.expr = "d h n s, n -> d h n s", .linear = {1}}},
    {"attention sums over positions",
     "flash GQA",
     {.build = attention_text, .whole = "d", .sum = "t", .group = "gr"}},
    {"attention is linear in q",
     "flash GQA",
     {.build = attention_text, .whole = "dt", .group = "gr", .linear = {1}}},
    {"attention is linear in k",
     "flash GQA",
     {.build = attention_text, .whole = "dt", .group = "gr", .linear = {2}}},
    {"query heads need not keep groups",
     "flash GQA",
     {.expr = "d n h s, d t g s, e t g s -> e h n s", .whole = "dtg"}},
    {"heads of a group are apart",
     "mul_mat GQA",
     {.expr = "k m g s, k n r.g s.t -> m n r.g s.t", .sum = "k"}},
    {"a gather sums without a mask", "get_rows", {.expr = "e v h s, n h s -> e n h s", .sum = "v"}},
    {"set_rows may cut the rows that it writes to",
     "set_rows",
     {.expr = "e L H.h S.s, e n H.h S.s, n h s -> e L H.h S.s", .whole = "n"}},
    {"a normalised sum is a sum", "rms_norm", {.expr = "k j h s -> k j h s", .linear = {1}}},
    {"P + M is P", "add", {.expr = "i j h s, i j h s -> i j h s", .linear = {1}}},
    {"P * P is P", "mul", {.expr = "i j h s, i j h s -> i j h s", .linear = {3}}},
    {"M / P is P", "div", {.expr = "I.i J.j H.h S.s, i j h s -> I.i J.j H.h S.s", .linear = {2}}},
    {"silu of P is P", "silu", {.expr = "i j h s -> i j h s", .linear = {1}}},
    {"scale with a bias is linear",
     "scale and bias",
     {.expr = "i j h s -> i j h s", .linear = {1}}},
    {"fused GLU is one factor", "swiglu fused", {.expr = "f.q j h s -> f j h s", .whole = "q"}},
    {"fused GLU is linear in its value",
     "swiglu fused",
     {.expr = "f+f j h s -> f j h s", .linear = {1}}},
    {"experts sum without a mask",
     "mul_mat_id",
     {.expr = "k m x, k u n, u n -> m u n", .sum = "kx"}},
    {"a mask outlives a sum with what is whole",
     "add",
     {.expr = "i j h s, i j h s -> i j h s", .zero = {1}}},
    {"a mask outlives a bias", "scale and bias", {.expr = "i j h s -> i j h s", .zero = {1}}},
    {"a mask outlives a softmax",
     "soft_max",
     {.expr = "k n h s -> k n h s", .whole = "k", .zero = {1}}},
    {"a sigmoid of 0 is 0", "sigmoid", {.expr = "i j h s -> i j h s", .zero = {1}}},
    {"a product is masked as its weights",
     "mul_mat batch",
     {.expr = "k m g s, k n g.r s.t -> m n g.r s.t", .sum = "k", .group = "grst", .zero = {1}}},
    {"experts are masked without their base",
     "mul_mat_id",
     {.expr = "k m x, k u n, u n -> m u n", .sum = "kx", .mask = 3}},
    MAP_AND_ROW_MUTANTS,
    MATRIX_MUTANTS,
    IMAGE_MUTANTS,
    STATE_MUTANTS};

static struct count judge(const struct mutant *m) {
    struct count c = {0};
    const struct xcase *x = &cases[index_of(m->on)];
    for (int d = 2; d <= 3; d++) {
        for (int k = 0; k < N_KINDS; k++) run_case(x, d, (enum kind)k, &m->rule, &c);
    }
    return c;
}

Test(mutants, are_all_caught) {
    const int n = (int)(sizeof mutants / sizeof *mutants);
    const int step = SANITIZED ? 8 : 1;
    int caught = 0;
    for (int i = 0; i < n; i += step) {
        const struct count c = judge(&mutants[i]);
        caught += c.wrong > 0;
        if (!c.wrong) fprintf(stderr, "not caught: %s (%ld rows)\n", mutants[i].name, c.offered);
    }
    printf("mutants: %d of %d caught\n", caught, (n + step - 1) / step);
    cr_expect_eq(caught, (n + step - 1) / step);
}
