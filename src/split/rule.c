/* The rule table: one row an op, in the letters of docs/split.md.
 *
 * Letters: i j h s dimensions of elementwise ops (capitals: how often the other operand repeats),
 * k summed, m n rows and columns, d e head sizes, t positions, g K/V heads, r query heads a K/V
 * head, v vocabulary rows, L cache rows, x experts, u experts used; of states S rows of the cache,
 * K kept, a what is one or as many as another. */
#include "split/rule.h"

#include <assert.h>
#include <stdio.h>

#include "base/text.h"
#include "tensor/access.h"
#include "tensor/volume.h"

static bool has_src1(const struct sheaf_tensor *t) { return t->src[1] != NULL; }
static bool biased_scale(const struct sheaf_tensor *t) { return sheaf__param_f32(t, 1) != 0; }
static bool of_zero_is_zero(const struct sheaf_tensor *t) {
    const int32_t op = t->op_params[0];
    if (op == (int32_t)SHEAF_UNARY_OP_XIELU) return sheaf__param_f32(t, 4) >= 0;
    return op != (int32_t)SHEAF_UNARY_OP_SIGMOID && op != (int32_t)SHEAF_UNARY_OP_HARDSIGMOID &&
           op != (int32_t)SHEAF_UNARY_OP_EXP && op != (int32_t)SHEAF_UNARY_OP_SOFTPLUS;
}
static bool leaves_out_zero(const struct sheaf_tensor *t) {
    return sheaf__param_f32(t, 0) > 0 || sheaf__param_f32(t, 1) < 0;
}
/* The value enters other than as a factor. */
static bool oai(const struct sheaf_tensor *t) {
    return has_src1(t) && t->op_params[0] == (int32_t)SHEAF_GLU_OP_SWIGLU_OAI;
}
static bool clamped(const struct sheaf_tensor *t) {
    return has_src1(t) && t->op_params[0] == (int32_t)SHEAF_GLU_OP_SWIGLU_CLAMP;
}
static bool no_epsilon(const struct sheaf_tensor *t) { return !(sheaf__param_f32(t, 0) > 0); }
static bool negates(const struct sheaf_tensor *t) {
    return t->op_params[0] == (int32_t)SHEAF_UNARY_OP_NEG;
}
static bool one_row_of_b(const struct sheaf_tensor *t) { return t->src[1]->ne[1] == 1; }
static bool has_slopes(const struct sheaf_tensor *t) { return sheaf__param_f32(t, 1) > 0; }
static const struct sheaf_tensor *mask_of(const struct sheaf_tensor *t) {
    return t->src[t->op == SHEAF_OP_SOFT_MAX ? 1 : 3];
}
/* The mask has more rows than there are queries: a slice of the queries has no slice of the mask.
 */
static bool padded_mask(const struct sheaf_tensor *t) {
    const struct sheaf_tensor *mask = mask_of(t);
    return mask && mask->ne[1] != t->src[0]->ne[1];
}
static bool padded_slopes(const struct sheaf_tensor *t) { return padded_mask(t) && has_slopes(t); }
/* Heads take turns with fewer masks: neither one for all nor one for each. Such heads stay whole;
 * no model has them. */
static bool turns_of_masks(const struct sheaf_tensor *t) {
    const struct sheaf_tensor *mask = mask_of(t);
    return mask && mask->ne[2] != 1 && mask->ne[2] != t->src[0]->ne[2];
}
static bool padded_turns(const struct sheaf_tensor *t) {
    return padded_mask(t) && turns_of_masks(t);
}

static void soft_max(const struct sheaf_tensor *t, char expr[static SHEAF__MAX_EXPR]) {
    const struct sheaf_tensor *mask = t->src[1], *sinks = t->src[2];
    const char *h = mask ? "H.h" : "h", *s = mask ? "S.s" : "s";
    char m[16] = "", x[8] = "";
    if (mask) snprintf(m, sizeof m, ", k %s h s", padded_mask(t) ? "N" : "n");
    if (sinks && !mask) snprintf(m, sizeof m, ", 1");
    if (sinks) snprintf(x, sizeof x, ", %s", h);
    snprintf(expr, SHEAF__MAX_EXPR, "k n %s %s%s%s -> k n %s %s", h, s, m, x, h, s);
}

static void attention(const struct sheaf_tensor *t, char expr[static SHEAF__MAX_EXPR]) {
    const struct sheaf_tensor *q = t->src[0], *mask = t->src[3], *sinks = t->src[4];
    const bool turns = turns_of_masks(t); /* h: all heads, H: masks */
    const char *heads = turns ? "h" : "g.r", *s = "s";
    char m[24] = "", x[8] = "";
    if (mask) {
        if (mask->ne[3] != 1 && mask->ne[3] != q->ne[3]) s = "S.s";
        snprintf(m, sizeof m, ", t %s %s %s", padded_mask(t) ? "N" : "n",
                 turns              ? "H"
                 : mask->ne[2] == 1 ? "1"
                                    : "g.r",
                 mask->ne[3] == 1 ? "1" : "s");
    }
    if (sinks && !mask) snprintf(m, sizeof m, ", 1");
    if (sinks) snprintf(x, sizeof x, ", %s", heads);
    snprintf(expr, SHEAF__MAX_EXPR, "d n %s %s, d t g %s, e t g %s%s%s -> e %s n %s", heads, s, s,
             s, m, x, heads, s);
}

static bool has_sections(const struct sheaf_tensor *t) {
    return (t->op_params[1] & SHEAF_ROPE_TYPE_MROPE) != 0;
}
/* With sections the positions p are four lists of n, one after another: a cut of n is none of p. */
static void rotation(const struct sheaf_tensor *t, char expr[static SHEAF__MAX_EXPR]) {
    snprintf(expr, SHEAF__MAX_EXPR, "d h n s, %s%s -> d h n s", has_sections(t) ? "p" : "n",
             t->src[2] ? ", f" : "");
}

/* Channels of a group stay together; groups of unequal size are not cut. */
static void groups(const struct sheaf_tensor *t, char expr[static SHEAF__MAX_EXPR]) {
    struct sheaf__text text = {expr, SHEAF__MAX_EXPR, 0};
    const long long c = t->ne[2], each = t->op_params[2];
    for (int side = 0; side < 2; side++) {
        sheaf__put(&text, side ? " -> i j " : "i j ");
        sheaf__put(&text, c % each ? "%lld s" : "g.%lld s", c % each ? c : each);
    }
}

/* A dimension that changes is whole, and has its extents for letters. */
static void padded(const struct sheaf_tensor *t, char expr[static SHEAF__MAX_EXPR]) {
    struct sheaf__text text = {expr, SHEAF__MAX_EXPR, 0};
    const struct sheaf_tensor *side[] = {t->src[0], t};
    for (int k = 0; k < 2; k++) {
        for (int i = 0; i < SHEAF_MAX_DIMS; i++) {
            if (t->ne[i] == t->src[0]->ne[i]) {
                sheaf__put(&text, "%c ", "ijhs"[i]);
            } else {
                sheaf__put(&text, "%lld ", (long long)side[k]->ne[i]);
            }
        }
        if (k == 0) sheaf__put(&text, "-> ");
    }
}

/* A dimension of which operand 1 covers a part is whole. */
static void window(const struct sheaf_tensor *t, char expr[static SHEAF__MAX_EXPR]) {
    struct sheaf__text text = {expr, SHEAF__MAX_EXPR, 0};
    const struct sheaf_tensor *side[] = {t->src[0], t->src[1], t};
    for (int k = 0; k < 3; k++) {
        for (int i = 0; i < SHEAF_MAX_DIMS; i++) {
            if (t->ne[i] == t->src[1]->ne[i]) {
                sheaf__put(&text, "%c ", "ijhs"[i]);
            } else {
                sheaf__put(&text, "%lld ", (long long)side[k]->ne[i]);
            }
        }
        if (k < 2) sheaf__put(&text, k ? "-> " : ", ");
    }
}

/* Space is whole, unless windows lie side by side: then whole windows may be cut. */
static void pooled(const struct sheaf_tensor *t, char expr[static SHEAF__MAX_EXPR]) {
    struct sheaf__text text = {expr, SHEAF__MAX_EXPR, 0};
    const struct sheaf_tensor *side[] = {t->src[0], t};
    for (int k = 0; k < 2; k++) {
        for (int i = 0; i < 2; i++) {
            const int32_t size = t->op_params[i];
            const bool apart = t->op_params[2 + i] == size && t->op_params[4 + i] == 0 &&
                               t->src[0]->ne[i] == size * t->ne[i];
            if (!apart) {
                sheaf__put(&text, "%lld ", (long long)side[k]->ne[i]);
            } else if (k) {
                sheaf__put(&text, "%c ", "ij"[i]);
            } else {
                sheaf__put(&text, "%c.%d ", "ij"[i], size);
            }
        }
        sheaf__put(&text, k ? "h s" : "h s -> ");
    }
}

/* Elements that are repeated side by side keep a cut; what is interpolated is whole. */
static void scaled(const struct sheaf_tensor *t, char expr[static SHEAF__MAX_EXPR]) {
    struct sheaf__text text = {expr, SHEAF__MAX_EXPR, 0};
    const bool nearest = t->op_params[0] == (int32_t)SHEAF_SCALE_MODE_NEAREST && !t->op_params[1];
    for (int k = 0; k < 2; k++) {
        for (int i = 0; i < SHEAF_MAX_DIMS; i++) {
            const int64_t from = t->src[0]->ne[i], to = t->ne[i];
            if (from == to || (from && to % from == 0 && (nearest || i > 1))) {
                sheaf__put(&text, "%c", "ijhs"[i]);
                if (k && from != to) sheaf__put(&text, ".%lld", (long long)(to / from));
            } else {
                sheaf__put(&text, "%lld", (long long)(k ? to : from));
            }
            sheaf__put(&text, " ");
        }
        if (k == 0) sheaf__put(&text, "-> ");
    }
}

static void columns(const struct sheaf_tensor *t, char expr[static SHEAF__MAX_EXPR]) {
    snprintf(expr, SHEAF__MAX_EXPR, "i j c n -> c.%lld I J n",
             (long long)t->op_params[0] * t->op_params[1]);
}
static void volume_columns(const struct sheaf_tensor *t, char expr[static SHEAF__MAX_EXPR]) {
    const int32_t *p = t->op_params;
    snprintf(expr, SHEAF__MAX_EXPR, "i j l n.c -> c.%lld I J n.L", (long long)p[0] * p[1] * p[2]);
}
static void volume(const struct sheaf_tensor *t, char expr[static SHEAF__MAX_EXPR]) {
    const int64_t k = sheaf__summed_channels(t->src[0]->ne[3], t->src[1]->ne[3], t->ne[3]);
    snprintf(expr, SHEAF__MAX_EXPR, "v w u m.k=%lld, i j l n.k -> I J L n.m", (long long)k);
}
static void signals(const struct sheaf_tensor *t, char expr[static SHEAF__MAX_EXPR]) {
    snprintf(expr, SHEAF__MAX_EXPR, "m.%d i -> I m", t->op_params[0]);
}

/* Whole windows may be cut along a dimension that they fill: q rows of p windows. */
static void windows(const struct sheaf_tensor *t, char expr[static SHEAF__MAX_EXPR]) {
    const bool part = t->op == SHEAF_OP_WIN_PART;
    const struct sheaf_tensor *image = part ? t->src[0] : t;
    const int w = t->op_params[0];
    char side[2][40], n[2][24];
    for (int i = 0; i < 2; i++) {
        const long long ne = image->ne[i + 1];
        if (ne % w) {
            snprintf(side[i], sizeof side[i], "%lld", ne);
            snprintf(n[i], sizeof n[i], "%lld", (ne + w - 1) / w);
        } else {
            snprintf(side[i], sizeof side[i], "%c.%d", "pq"[i], w);
            snprintf(n[i], sizeof n[i], "%c", "pq"[i]);
        }
    }
    struct sheaf__text text = {expr, SHEAF__MAX_EXPR, 0};
    if (part) sheaf__put(&text, "e %s %s -> ", side[0], side[1]);
    sheaf__put(&text, "e %d %d %s.%s", w, w, n[1], n[0]);
    if (!part) sheaf__put(&text, " -> e %s %s", side[0], side[1]);
}

/* A dimension that is shifted is whole. */
static void rolled(const struct sheaf_tensor *t, char expr[static SHEAF__MAX_EXPR]) {
    struct sheaf__text text = {expr, SHEAF__MAX_EXPR, 0};
    for (int k = 0; k < 2; k++) {
        for (int i = 0; i < SHEAF_MAX_DIMS; i++) {
            if (t->ne[i] && t->op_params[i] % t->ne[i]) {
                sheaf__put(&text, "%lld ", (long long)t->ne[i]);
            } else {
                sheaf__put(&text, "%c ", "ijhs"[i]);
            }
        }
        if (k == 0) sheaf__put(&text, "-> ");
    }
}
static bool moves_columns(const struct sheaf_tensor *t) {
    for (int i = 1; i < SHEAF_MAX_DIMS; i++) {
        if (t->ne[i] && t->op_params[i] % t->ne[i]) return true;
    }
    return false;
}

static void indexer(const struct sheaf_tensor *t, char expr[static SHEAF__MAX_EXPR]) {
    snprintf(expr, SHEAF__MAX_EXPR, "d h n s, d 1 t s, h n 1 s, t n 1 %s -> t n 1 s",
             t->src[3]->ne[3] == 1 ? "1" : "s");
}

static void concat(const struct sheaf_tensor *t, char expr[static SHEAF__MAX_EXPR]) {
    char part[3][4][4];
    for (int i = 0; i < SHEAF_MAX_DIMS; i++) {
        const bool here = i == t->op_params[0];
        for (int p = 0; p < 3; p++)
            snprintf(part[p][i], sizeof part[p][i], "%s",
                     here ? (const char *[]){"a", "b", "a+b"}[p]
                          : (const char *[]){"i", "j", "h", "s"}[i]);
    }
    snprintf(expr, SHEAF__MAX_EXPR, "%s %s %s %s, %s %s %s %s -> %s %s %s %s", part[0][0],
             part[0][1], part[0][2], part[0][3], part[1][0], part[1][1], part[1][2], part[1][3],
             part[2][0], part[2][1], part[2][2], part[2][3]);
}

/* What the tokens read, then the states that they leave. */
#define SCAN "k d g.r S, d g.r t s, g.r t s, a g.r, k g t s, k g t s, s -> s.t.g.r.d+K.s.g.r.d.k"
#define DELTA_NET                                                                                  \
    "i g t s, i g t s, j r.g t s, a r.g t s, 1 r.g t s, i j r.g s -> s.t.r.g.j+K.s.r.g.j.i"
#define WKV6        "i h s.t, j h s.t, i h s.t, i h, i h s.t, h.i.j s -> s.t.h.j+s.h.i.j"
#define WKV7        "i h s.t, i h s.t, i h s.t, j h s.t, i h s.t, i h s.t, h.j.i s -> s.t.h.j+s.h.j.i"
#define LINEAR_ATTN "i h s.t, j h s.t, i h s.t, i h s.t, h.i.j s -> s.t.h.j+s.h.i.j"
#define ELEMENTWISE "I.i J.j H.h S.s, i j h s -> I.i J.j H.h S.s"
#define OPERANDS_0  (1u << 0)
#define OPERANDS_1  (1u << 1)
#define OPERANDS_2  (1u << 2)
#define OPERANDS_3  (1u << 3)
#define OPERANDS_01 (OPERANDS_0 | OPERANDS_1)
#define PAIR(a, b)  (1u << (a) | 1u << (b))

/* A mean is linear, a maximum is not; a row of zeros stays one in both. */
static bool mean_of_rows(const struct sheaf_tensor *t) {
    return t->op == SHEAF_OP_POOL_1D && t->op_params[8] == (int32_t)SHEAF_POOL_AVG;
}
static bool mean(const struct sheaf_tensor *t) {
    return t->op_params[8] == (int32_t)SHEAF_POOL_AVG;
}
static bool of_rows(const struct sheaf_tensor *t) {
    return t->op == SHEAF_OP_POOL_1D && t->op_params[4] < t->op_params[0]; /* no place is empty */
}
static const struct sheaf__rule pool_alt[] = {
    {.when = mean_of_rows, .build = pooled, .linear = {OPERANDS_0}, .zero = {OPERANDS_0}},
    {.when = of_rows, .build = pooled, .zero = {OPERANDS_0}},
    {.when = mean, .build = pooled, .linear = {OPERANDS_0}},
    {.when = NULL},
};
static const struct sheaf__rule roll_alt[] = {
    {.when = moves_columns, .build = rolled, .linear = {OPERANDS_0}},
    {.when = NULL},
};
static bool gated(const struct sheaf_tensor *t) { return t->op_params[1] != 0; }
static bool unmixed(const struct sheaf_tensor *t) { return !t->src[3]; }
static const struct sheaf__rule hc_pre_alt[] = {
    {.when = gated, .expr = "e c n, e c n -> e n", .sum = "c", .linear = {OPERANDS_0}},
    {.when = NULL},
};
static const struct sheaf__rule hc_post_alt[] = {
    {.when = unmixed,
     .expr = "e n, e c n, c n -> e c n",
     .linear = {OPERANDS_01, OPERANDS_1 | OPERANDS_2}},
    {.when = NULL},
};
static const struct sheaf__rule scale_alt[] = {
    {.when = biased_scale, .expr = "i j h s -> i j h s"},
    {.when = NULL},
};
static const struct sheaf__rule unary_alt[] = {
    {.when = negates, .expr = "i j h s -> i j h s", .linear = {OPERANDS_0}, .zero = {OPERANDS_0}},
    {.when = of_zero_is_zero, .expr = "i j h s -> i j h s", .zero = {OPERANDS_0}},
    {.when = NULL},
};
static const struct sheaf__rule clamp_alt[] = {
    {.when = leaves_out_zero, .expr = "i j h s -> i j h s"},
    {.when = NULL},
};
static const struct sheaf__rule rms_norm_alt[] = {
    {.when = no_epsilon, .expr = "i j h s -> i j h s", .whole = "i"},
    {.when = NULL},
};
static const struct sheaf__rule glu_alt[] = {
    {.when = oai, .expr = "f j h s, f j h s -> f j h s", .zero = {OPERANDS_0, OPERANDS_01}},
    {.when = clamped,
     .expr = "f j h s, f j h s -> f j h s",
     .zero = {OPERANDS_0, OPERANDS_1, OPERANDS_01}},
    {.when = has_src1,
     .expr = "f j h s, f j h s -> f j h s",
     .linear = {OPERANDS_1},
     .zero = {OPERANDS_0, OPERANDS_1, OPERANDS_01}},
    {.when = NULL},
};
static const struct sheaf__rule mul_mat_id_alt[] = {
    {.when = one_row_of_b,
     .expr = "k m x, k 1 n, u n -> m u n",
     .sum = "k",
     .index = "x",
     .linear = {OPERANDS_0, OPERANDS_1},
     .zero = {OPERANDS_1},
     .mask = 3,
     .base_operand = 0,
     .base_axis = 2},
    {.when = NULL},
};
static const struct sheaf__rule soft_max_alt[] = {
    {.when = padded_slopes,
     .build = soft_max,
     .whole = "knN",
     .slope = "Hh",
     .base_operand = -1,
     .base_axis = 2},
    {.when = has_slopes,
     .build = soft_max,
     .whole = "k",
     .slope = "Hh",
     .base_operand = -1,
     .base_axis = 2},
    {.when = padded_mask, .build = soft_max, .whole = "knN"},
    {.when = NULL},
};
static const struct sheaf__rule attention_alt[] = {
    {.when = padded_turns, .build = attention, .whole = "dtnNghH", .linear = {OPERANDS_2}},
    {.when = turns_of_masks, .build = attention, .whole = "dtghH", .linear = {OPERANDS_2}},
    {.when = padded_slopes,
     .build = attention,
     .whole = "dtnN",
     .slope = "gr",
     .group = "gr",
     .parts = true,
     .linear = {OPERANDS_2},
     .base_operand = -1,
     .base_axis = 1},
    {.when = padded_mask,
     .build = attention,
     .whole = "dtnN",
     .group = "gr",
     .parts = true,
     .linear = {OPERANDS_2}},
    {.when = has_slopes,
     .build = attention,
     .whole = "dt",
     .slope = "gr",
     .group = "gr",
     .parts = true,
     .linear = {OPERANDS_2},
     .base_operand = -1,
     .base_axis = 1},
    {.when = NULL},
};

static const struct sheaf__rule rotation_alt[] = {
    {.when = has_sections,
     .build = rotation,
     .whole = "dfnp",
     .linear = {OPERANDS_0},
     .zero = {OPERANDS_0}},
    {.when = NULL},
};
#define ROTATION                                                                                   \
    {                                                                                              \
        .build = rotation, .whole = "df", .linear = {OPERANDS_0}, .zero = {OPERANDS_0},            \
        .alt = rotation_alt                                                                        \
    }

static const struct sheaf__rule rules[] = {
    [SHEAF_OP_NONE] = {.none = "a leaf: its state is given"},
    [SHEAF_OP_DUP] = {.expr = "i j h s -> i j h s", .linear = {OPERANDS_0}, .zero = {OPERANDS_0}},
    [SHEAF_OP_ADD] = {.expr = ELEMENTWISE,
                      .linear = {OPERANDS_01},
                      .zero = {OPERANDS_01},
                      .add_once = 3},
    [SHEAF_OP_SUB] = {.expr = ELEMENTWISE, .linear = {OPERANDS_01}, .zero = {OPERANDS_01}},
    [SHEAF_OP_MUL] = {.expr = ELEMENTWISE,
                      .linear = {OPERANDS_0, OPERANDS_1},
                      .zero = {OPERANDS_0, OPERANDS_1, OPERANDS_01}},
    [SHEAF_OP_DIV] = {.expr = ELEMENTWISE, .linear = {OPERANDS_0}, .zero = {OPERANDS_0}},
    [SHEAF_OP_SCALE] = {.expr = "i j h s -> i j h s",
                        .linear = {OPERANDS_0},
                        .zero = {OPERANDS_0},
                        .alt = scale_alt},
    [SHEAF_OP_SUM_ROWS] = {.expr = "k j h s -> 1 j h s",
                           .sum = "k",
                           .linear = {OPERANDS_0},
                           .zero = {OPERANDS_0}},
    [SHEAF_OP_ARGMAX] = {.expr = "i j -> j", .whole = "i"},
    [SHEAF_OP_TOP_K] = {.expr = "i j h s -> q j h s", .whole = "iq"},
    [SHEAF_OP_CONCAT] = {.build = concat,
                         .joint = "ab",
                         .linear = {OPERANDS_01},
                         .zero = {OPERANDS_01}},
    [SHEAF_OP_RMS_NORM] = {.expr = "i j h s -> i j h s",
                           .whole = "i",
                           .zero = {OPERANDS_0},
                           .alt = rms_norm_alt},
    [SHEAF_OP_MUL_MAT] = {.expr = "k m g s, k n g.r s.t -> m n g.r s.t",
                          .sum = "k",
                          .group = "grst",
                          .linear = {OPERANDS_0, OPERANDS_1},
                          .zero = {OPERANDS_1},
                          .columns = true},
    [SHEAF_OP_MUL_MAT_ID] = {.expr = "k m x, k u n, u n -> m u n",
                             .sum = "k",
                             .index = "x",
                             .linear = {OPERANDS_0, OPERANDS_1},
                             .zero = {OPERANDS_1},
                             .mask = 3,
                             .base_operand = 0,
                             .base_axis = 2,
                             .alt = mul_mat_id_alt},
    [SHEAF_OP_CPY] = {.form = SHEAF__FORM_COPY, .linear = {OPERANDS_01}},
    [SHEAF_OP_CONT] = {.expr = "i j h s -> i j h s", .linear = {OPERANDS_0}, .zero = {OPERANDS_0}},
    [SHEAF_OP_RESHAPE] = {.form = SHEAF__FORM_VIEW, .linear = {OPERANDS_0}, .zero = {OPERANDS_0}},
    [SHEAF_OP_VIEW] = {.form = SHEAF__FORM_VIEW, .linear = {OPERANDS_0}, .zero = {OPERANDS_0}},
    [SHEAF_OP_PERMUTE] = {.form = SHEAF__FORM_PERMUTE, .linear = {OPERANDS_0}},
    [SHEAF_OP_TRANSPOSE] = {.form = SHEAF__FORM_PERMUTE, .linear = {OPERANDS_0}},
    [SHEAF_OP_GET_ROWS] = {.expr = "e v h s, n h s -> e n h s",
                           .index = "v",
                           .linear = {OPERANDS_0},
                           .base_operand = 0,
                           .base_axis = 1},
    [SHEAF_OP_SET_ROWS] = {.expr = "e L H.h S.s, e n H.h S.s, n h s -> e L H.h S.s",
                           .whole = "nL",
                           .linear = {OPERANDS_01}},
    [SHEAF_OP_SOFT_MAX] = {.build = soft_max, .whole = "k", .alt = soft_max_alt},
    [SHEAF_OP_ROPE] = ROTATION,
    [SHEAF_OP_ROPE_BACK] = ROTATION,
    [SHEAF_OP_FLASH_ATTN_EXT] = {.build = attention,
                                 .whole = "dt",
                                 .group = "gr",
                                 .parts = true,
                                 .linear = {OPERANDS_2},
                                 .alt = attention_alt},
    [SHEAF_OP_UNARY] = {.expr = "i j h s -> i j h s", .alt = unary_alt},
    [SHEAF_OP_GLU] = {.expr = "f+f j h s -> f j h s", .zero = {OPERANDS_0}, .alt = glu_alt},
    [SHEAF_OP_SSM_CONV] = {.expr = "T c s, k c -> c t s",
                           .whole = "Tkt",
                           .linear = {OPERANDS_0, OPERANDS_1}},
    [SHEAF_OP_SSM_SCAN] = {.expr = SCAN,
                           .whole = "ktSaK",
                           .group = "gr",
                           .linear = {PAIR(0, 1), PAIR(0, 4)}},
    [SHEAF_OP_GATED_DELTA_NET] = {.expr = DELTA_NET,
                                  .whole = "ijtaK",
                                  .minor = "rg",
                                  .linear = {PAIR(2, 5)}},
    [SHEAF_OP_RWKV_WKV6] = {.expr = WKV6, .whole = "ijt", .linear = {PAIR(0, 5), PAIR(1, 5)}},
    [SHEAF_OP_RWKV_WKV7] = {.expr = WKV7, .whole = "ijt", .linear = {PAIR(2, 6), PAIR(3, 6)}},
    [SHEAF_OP_GATED_LINEAR_ATTN] = {.expr = LINEAR_ATTN,
                                    .whole = "ijt",
                                    .linear = {PAIR(0, 4), PAIR(1, 4)}},
    [SHEAF_OP_SQR] = {.expr = "i j h s -> i j h s", .zero = {OPERANDS_0}},
    [SHEAF_OP_SQRT] = {.expr = "i j h s -> i j h s", .zero = {OPERANDS_0}},
    [SHEAF_OP_SIN] = {.expr = "i j h s -> i j h s", .zero = {OPERANDS_0}},
    [SHEAF_OP_COS] = {.expr = "i j h s -> i j h s"},
    [SHEAF_OP_LOG] = {.expr = "i j h s -> i j h s"},
    [SHEAF_OP_CLAMP] = {.expr = "i j h s -> i j h s", .zero = {OPERANDS_0}, .alt = clamp_alt},
    [SHEAF_OP_LEAKY_RELU] = {.expr = "i j h s -> i j h s", .zero = {OPERANDS_0}},
    [SHEAF_OP_FILL] = {.none = "it has no operands: every member makes all of it"},
    [SHEAF_OP_NORM] = {.expr = "i j h s -> i j h s",
                       .whole = "i",
                       .zero = {OPERANDS_0},
                       .alt = rms_norm_alt},
    [SHEAF_OP_L2_NORM] = {.expr = "i j h s -> i j h s",
                          .whole = "i",
                          .zero = {OPERANDS_0},
                          .alt = rms_norm_alt},
    [SHEAF_OP_GROUP_NORM] = {.build = groups, .whole = "ij"},
    [SHEAF_OP_SUM] = {.expr = "i j h s -> 1",
                      .sum = "ijhs",
                      .linear = {OPERANDS_0},
                      .zero = {OPERANDS_0}},
    [SHEAF_OP_MEAN] = {.expr = "k j h s -> 1 j h s",
                       .sum = "k",
                       .linear = {OPERANDS_0},
                       .zero = {OPERANDS_0},
                       .extent = true},
    [SHEAF_OP_ARGSORT] = {.expr = "i j h s -> i j h s", .whole = "i"},
    [SHEAF_OP_ADD_ID] = {.expr = "m u n, m x, u n -> m u n",
                         .index = "x",
                         .linear = {OPERANDS_01},
                         .add_once = 2,
                         .mask = 3,
                         .base_operand = 1,
                         .base_axis = 1},
    [SHEAF_OP_REPEAT] = {.expr = "i j h s -> I.i J.j H.h S.s",
                         .linear = {OPERANDS_0},
                         .zero = {OPERANDS_0}},
    [SHEAF_OP_PAD] = {.build = padded, .linear = {OPERANDS_0}, .zero = {OPERANDS_0}},
    [SHEAF_OP_SET] = {.build = window, .linear = {OPERANDS_01}, .zero = {OPERANDS_01}},
    [SHEAF_OP_ACC] = {.build = window,
                      .linear = {OPERANDS_01},
                      .zero = {OPERANDS_01},
                      .add_once = 3},
    [SHEAF_OP_CUMSUM] = {.expr = "i j h s -> i j h s",
                         .whole = "i",
                         .linear = {OPERANDS_0},
                         .zero = {OPERANDS_0}},
    [SHEAF_OP_TRI] = {.expr = "i j h s -> i j h s",
                      .whole = "ij",
                      .linear = {OPERANDS_0},
                      .zero = {OPERANDS_0}},
    [SHEAF_OP_DIAG] = {.expr = "n 1 h s -> n n h s",
                       .whole = "n",
                       .linear = {OPERANDS_0},
                       .zero = {OPERANDS_0}},
    [SHEAF_OP_DIAG_MASK_INF] = {.expr = "i j h s -> i j h s",
                                .whole = "ij",
                                .linear = {OPERANDS_0}},
    [SHEAF_OP_DIAG_MASK_ZERO] = {.expr = "i j h s -> i j h s",
                                 .whole = "ij",
                                 .linear = {OPERANDS_0},
                                 .zero = {OPERANDS_0}},
    [SHEAF_OP_SOLVE_TRI] = {.expr = "k n h s, m n h s -> m n h s",
                            .whole = "kn",
                            .linear = {OPERANDS_1}},
    [SHEAF_OP_ARANGE] = {.none = "it has no operands: every member makes all of it"},
    [SHEAF_OP_LIGHTNING_INDEXER] = {.build = indexer,
                                    .whole = "dh",
                                    .linear = {OPERANDS_2 | OPERANDS_3},
                                    .zero = {OPERANDS_2 | OPERANDS_3}},
    [SHEAF_OP_DSV4_HC_COMB] = {.expr = "m n, x, m -> c d n", .whole = "mxcd"},
    [SHEAF_OP_DSV4_HC_PRE] = {.expr = "e c n, c n -> e n",
                              .sum = "c",
                              .linear = {OPERANDS_0, OPERANDS_1},
                              .zero = {OPERANDS_1},
                              .alt = hc_pre_alt},
    [SHEAF_OP_DSV4_HC_POST] = {.expr = "e n, e c n, d n, d c n -> e d n",
                               .whole = "c",
                               .linear = {OPERANDS_01, OPERANDS_2 | OPERANDS_3,
                                          OPERANDS_0 | OPERANDS_3, OPERANDS_1 | OPERANDS_2},
                               .alt = hc_post_alt},
    [SHEAF_OP_IM2COL] = {.build = columns, .whole = "ijIJ", .linear = {OPERANDS_0}},
    [SHEAF_OP_CONV_2D] = {.expr = "v w k m, i j k n -> I J m n",
                          .sum = "k",
                          .whole = "vwijIJ",
                          .linear = {OPERANDS_0, OPERANDS_1}},
    [SHEAF_OP_CONV_2D_DW] = {.expr = "v w 1 c, i j c n -> I J c n",
                             .whole = "vwijIJ",
                             .linear = {OPERANDS_0, OPERANDS_1}},
    [SHEAF_OP_CONV_TRANSPOSE_1D] = {.expr = "w m k, i k -> I m",
                                    .sum = "k",
                                    .whole = "wiI",
                                    .linear = {OPERANDS_0, OPERANDS_1},
                                    .zero = {OPERANDS_0}},
    [SHEAF_OP_POOL_1D] = {.build = pooled, .alt = pool_alt},
    [SHEAF_OP_POOL_2D] = {.build = pooled, .alt = pool_alt},
    [SHEAF_OP_UPSCALE] = {.build = scaled, .linear = {OPERANDS_0}, .zero = {OPERANDS_0}},
    [SHEAF_OP_PAD_REFLECT_1D] = {.build = padded, .linear = {OPERANDS_0}, .zero = {OPERANDS_0}},
    [SHEAF_OP_ROLL] = {.build = rolled,
                       .linear = {OPERANDS_0},
                       .zero = {OPERANDS_0},
                       .alt = roll_alt},
    [SHEAF_OP_TIMESTEP_EMBEDDING] = {.expr = "n -> d n", .whole = "d"},
    [SHEAF_OP_COUNT_EQUAL] = {.expr = "i j h s, i j h s -> 1", .whole = "ijhs"},
    [SHEAF_OP_CONV_TRANSPOSE_2D] = {.expr = "v w m k, i j k n -> I J m n",
                                    .sum = "k",
                                    .whole = "vwijIJ",
                                    .linear = {OPERANDS_0, OPERANDS_1}},
    [SHEAF_OP_COL2IM_1D] = {.build = signals, .whole = "iI", .linear = {OPERANDS_0}},
    [SHEAF_OP_IM2COL_3D] = {.build = volume_columns, .whole = "ijlIJL", .linear = {OPERANDS_0}},
    [SHEAF_OP_CONV_3D] = {.build = volume,
                          .sum = "k",
                          .whole = "vwuijlIJL",
                          .linear = {OPERANDS_0, OPERANDS_1}},
    [SHEAF_OP_WIN_PART] = {.build = windows, .linear = {OPERANDS_0}, .zero = {OPERANDS_0}},
    [SHEAF_OP_WIN_UNPART] = {.build = windows, .linear = {OPERANDS_0}, .zero = {OPERANDS_0}},
    [SHEAF_OP_GET_REL_POS] = {.expr = "e p -> e k q",
                              .whole = "pkq",
                              .linear = {OPERANDS_0},
                              .zero = {OPERANDS_0}},
    [SHEAF_OP_ADD_REL_POS] = {.expr = "N u.t b, n t u b, n t u b -> N u.t b",
                              .whole = "Nn",
                              .linear = {OPERANDS_01 | OPERANDS_2},
                              .zero = {OPERANDS_01 | OPERANDS_2},
                              .add_once = 2},
};
static_assert(sizeof rules / sizeof *rules == SHEAF_OP_COUNT, "every op has a rule or a reason");

const struct sheaf__rule *sheaf__rule_row(enum sheaf_op op) { return &rules[op]; }

const struct sheaf__rule *sheaf__rule_of(const struct sheaf_tensor *node) {
    if ((unsigned)node->op >= SHEAF_OP_COUNT) return &rules[SHEAF_OP_NONE];
    const struct sheaf__rule *rule = &rules[node->op];
    for (const struct sheaf__rule *a = rule->alt; a && a->when; a++) {
        if (a->when(node)) return a;
    }
    return rule;
}
