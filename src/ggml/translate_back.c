/* From the library to ggml, for devices of ggml: the same table of ops read the other way. A node
 * with a word that neither its row nor its special knows is declined. */
#include <string.h>

#include "ggml/translate.h"

static int number_of(const int8_t *map, int room, int ours) {
    for (int i = 0; i < room && ours >= 0; i++)
        if (map[i] == ours) return i;
    return -1;
}

/* The row of an op, and ggml's number of it; -1: the table or ggml lacks it. */
static int find_row(const struct gg_host *host, enum sheaf_op op, int *number) {
    for (int r = 0; r < gg_n_op_rows(); r++) {
        *number = gg_op_of_row(r) == op ? number_of(host->op, GG_MAX_OPS, r) : -1;
        if (*number >= 0) return r;
    }
    return -1;
}

int gg_type_number(const struct gg_host *host, enum sheaf_type type) {
    return number_of(host->type, GG_MAX_TYPES, (int)type);
}

/* ---- specials ---- */

static bool unary_op(const struct gg_host *host, const struct sheaf_tensor *t,
                     struct gg_tensor *out) {
    out->op_params[0] = number_of(host->unary, GG_MAX_UNARY, t->op_params[0]);
    return out->op_params[0] >= 0;
}

static bool glu_op(const struct gg_host *host, const struct sheaf_tensor *t,
                   struct gg_tensor *out) {
    out->op_params[0] = number_of(host->glu, GG_MAX_GLU, t->op_params[0]);
    return out->op_params[0] >= 0;
}

/* A slice has fewer groups, of as many channels. */
static bool channels(const struct gg_host *host, const struct sheaf_tensor *t,
                     struct gg_tensor *out) {
    const int64_t n = t->op_params[2];
    (void)host;
    if (n <= 0) return false;
    out->op_params[0] = (int32_t)((t->ne[2] + n - 1) / n);
    return out->op_params[0] && (t->ne[2] + out->op_params[0] - 1) / out->op_params[0] == n;
}

/* ggml's results of two dimensions that are flat here: the first is a row of the values. */
static bool flat(const struct gg_host *host, const struct sheaf_tensor *t, struct gg_tensor *out) {
    (void)host;
    const struct sheaf_tensor *values = t->src[t->op == SHEAF_OP_GATED_DELTA_NET ? 2 : 0];
    const int64_t row = values ? values->ne[0] * values->ne[1] : 0;
    if (row <= 0 || t->ne[0] % row) return false;
    out->ne[0] = row;
    out->ne[1] = t->ne[0] / row;
    out->nb[1] = out->nb[0] * (size_t)row;
    out->nb[2] = out->nb[3] = out->nb[1] * (size_t)out->ne[1];
    return true;
}

/* The strides of a, which is dense, and where the part begins in it, in bytes; a is copied
 * first. */
static bool part(const struct gg_host *host, const struct sheaf_tensor *t, struct gg_tensor *out) {
    (void)host;
    const struct sheaf_tensor *a = t->src[0];
    uint64_t offset = 0;
    for (int i = 0; i < SHEAF_MAX_DIMS; i++) {
        offset += (uint64_t)t->op_params[i] * a->nb[i];
        if (i && a->nb[i] > INT32_MAX) return false;
        if (i) out->op_params[i - 1] = (int32_t)a->nb[i];
    }
    out->op_params[3] = (int32_t)offset;
    return offset <= INT32_MAX;
}

/* Words 0 and 1 are the kernel's own. */
static bool kernel(const struct gg_host *host, const struct sheaf_tensor *t,
                   struct gg_tensor *out) {
    (void)host;
    (void)out;
    const struct sheaf_tensor *k = t->src[0];
    return t->op_params[0] == k->ne[0] && t->op_params[1] == k->ne[1];
}

static bool pool(const struct gg_host *host, const struct sheaf_tensor *t, struct gg_tensor *out) {
    (void)host;
    (void)out;
    const bool is_flat = t->op_params[1] == 1 && t->op_params[3] == 1 && t->op_params[5] == 0;
    return t->op_params[6] == 1 && t->op_params[7] == 1 && (t->op == SHEAF_OP_POOL_2D || is_flat);
}

static bool resize(const struct gg_host *host, const struct sheaf_tensor *t,
                   struct gg_tensor *out) {
    (void)host;
    const bool antialias = t->op_params[0] == (int32_t)SHEAF_SCALE_MODE_ANTIALIAS;
    out->op_params[0] =
        (antialias ? (int32_t)SHEAF_SCALE_MODE_BILINEAR | GG_ANTIALIAS : t->op_params[0]) |
        (t->op_params[1] ? GG_ALIGN_CORNERS : 0);
    return true;
}

static bool windows(const struct gg_host *host, const struct sheaf_tensor *t,
                    struct gg_tensor *out) {
    (void)host;
    const int32_t w = t->op_params[0];
    if (w < 1) return false;
    for (int i = 0; i < 2; i++) out->op_params[i] = (int32_t)((t->src[0]->ne[i + 1] + w - 1) / w);
    return true;
}

static bool signals(const struct gg_host *host, const struct sheaf_tensor *t,
                    struct gg_tensor *out) {
    (void)host;
    if (t->op_params[0] < 1) return false;
    out->op_params[1] = (int32_t)(t->src[0]->ne[0] / t->op_params[0]);
    return true;
}

/* For each special: what is done, and which words of the node it deals with. Others do nothing. */
static const struct {
    /* False: ggml has no words for the node. NULL: there is nothing to do. */
    bool (*translate)(const struct gg_host *host, const struct sheaf_tensor *t,
                      struct gg_tensor *out);
    int first_word, n_words;
} specials[GG_SPECIAL_COUNT] = {
    [GG_UNARY_OP] = {unary_op, 0, 1},
    [GG_GLU_OP] = {glu_op, 0, 1},
    [GG_CHANNELS] = {channels, 2, 1},
    [GG_FLAT] = {flat, 0, 0},
    [GG_PART] = {part, 0, SHEAF_MAX_DIMS},
    [GG_KERNEL] = {kernel, 0, 2},
    [GG_POOL] = {pool, 0, 8},
    [GG_RESIZE] = {resize, 0, 2},
    [GG_WINDOWS] = {windows, 0, 0},
    [GG_SIGNALS] = {signals, 0, 1},
};

/* ---- nodes ---- */

/* DUP and CONT of another type are conversions, which ggml makes by a CPY to itself. */
static bool is_conversion(const struct sheaf_tensor *t) {
    return (t->op == SHEAF_OP_DUP || t->op == SHEAF_OP_CONT) && t->src[0] &&
           t->src[0]->type != t->type;
}

/* Does the row or its special know the word? Those of slices are the caller's to look at. */
static bool is_known_word(const struct gg_op_row *row, int word) {
    const int first = specials[row->special].first_word, n = specials[row->special].n_words;
    if (word == SHEAF_OP_PARAM_BASE || word == SHEAF_OP_PARAM_EXTENT) return true;
    if (word >= first && word < first + n) return true;
    for (int i = 0; i < GG_MAX_WORDS && row->words[i][0]; i++)
        if (row->words[i][1] == word + 1) return true;
    return false;
}

static bool knows_words(const struct gg_op_row *row, const struct sheaf_tensor *t) {
    for (int w = 0; w < SHEAF_MAX_OP_PARAMS && !sheaf_op_is_view(t->op); w++)
        if (t->op_params[w] && !is_known_word(row, w)) return false;
    return true;
}

/* A conversion into a type whose scales ggml searches for. */
static bool converts_by_search(const struct sheaf_tensor *t) {
    const struct sheaf_tensor *rows = t->src[t->op == SHEAF_OP_SET_ROWS];
    return gg_searches_scales(t->type) && !sheaf_op_is_view(t->op) && rows && rows->type != t->type;
}

bool gg_translate_back(const struct gg_host *host, const struct sheaf_tensor *t,
                       struct gg_tensor *out, int8_t order[GG_MAX_SRC]) {
    int number = -1;
    const bool conversion = is_conversion(t);
    const int r = find_row(host, conversion ? SHEAF_OP_CPY : t->op, &number);
    memset(out, 0, sizeof *out);
    memset(order, GG_NO_SRC, GG_MAX_SRC);
    out->type = gg_type_number(host, t->type);
    memcpy(out->ne, t->ne, sizeof out->ne);
    memcpy(out->nb, t->nb, sizeof out->nb);
    memcpy(out->name, t->name, sizeof out->name - 1);
    if (r < 0 || out->type < 0) return false;
    const struct gg_op_row *row = gg_op_row(r);
    if (converts_by_search(t) || !knows_words(row, t)) return false;
    out->op = number;
    for (int i = 0; i < GG_MAX_WORDS && row->words[i][0]; i++)
        out->op_params[row->words[i][0] - 1] = t->op_params[row->words[i][1] - 1];
    for (int i = 0; i < SHEAF_MAX_SRC && row->src[i]; i++) order[row->src[i] - 1] = (int8_t)i;
    for (int i = 0; i < SHEAF_MAX_SRC; i++) /* an operand that the row does not know */
        if (t->src[i] && t->op != SHEAF_OP_NONE && !row->src[i]) return false;
    if (conversion) order[1] = GG_SELF_SRC;
    if (row->special == GG_SHAPE_ONLY) order[0] = GG_SELF_SRC; /* for its shape only */
    return !specials[row->special].translate || specials[row->special].translate(host, t, out);
}
