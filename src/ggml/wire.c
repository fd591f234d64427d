/* Bytes to structures and back. A reader never looks past the end of what it was given, and a graph
 * that it accepts has only tensors that lie inside their owners. */
#include "ggml/wire.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "base/array.h"
#include "ggml/log.h"
#include "sheaf/backend-impl.h"
#include "sheaf/meta.h"

enum { RECORD_WORDS = sizeof(struct gg_record) / 4, MAX_SEGMENTS = 4096, MAX_RECORDS = 1 << 20 };
static_assert(sizeof(struct gg_record) % 4 == 0 && RECORD_WORDS <= 64, "a bit of a u64 each");

void gg_put(struct gg_bytes *b, const void *data, size_t n) {
    if (!sheaf__grow(&b->data, &b->cap, b->n + n, 1)) {
        b->failed = true;
        return;
    }
    if (n) memcpy(b->data + b->n, data, n);
    b->n += n;
}
void gg_put_u64(struct gg_bytes *b, uint64_t v) { gg_put(b, &v, sizeof v); }

void gg_put_short(struct gg_bytes *b, uint64_t v) {
    uint8_t byte[10];
    size_t n = 0;
    for (; v > 127; v >>= 7) byte[n++] = (uint8_t)(v | 128);
    byte[n++] = (uint8_t)v;
    gg_put(b, byte, n);
}

void gg_put_zeros(struct gg_bytes *b) {
    static const uint8_t zeros[8];
    gg_put(b, zeros, (8 - b->n % 8) % 8);
}

const uint8_t *gg_take(struct gg_reader *r, size_t n) {
    if (r->bad || (size_t)(r->end - r->at) < n) {
        r->bad = true;
        return NULL;
    }
    r->at += n;
    return r->at - n;
}
uint64_t gg_take_u64(struct gg_reader *r) {
    uint64_t v = 0;
    const uint8_t *p = gg_take(r, sizeof v);
    if (p) memcpy(&v, p, sizeof v);
    return v;
}

uint64_t gg_take_short(struct gg_reader *r) {
    uint64_t v = 0;
    for (int shift = 0; shift < 64; shift += 7) {
        const uint8_t *p = gg_take(r, 1);
        if (!p) return 0;
        v |= (uint64_t)(*p & 127) << shift;
        if (*p < 128) return v;
    }
    r->bad = true;
    return 0;
}

/* ---- tensors ---- */

void gg_put_record(struct gg_bytes *b, const struct gg_record *record) {
    uint32_t words[RECORD_WORDS], packed[RECORD_WORDS];
    uint64_t map = 0;
    size_t n = 0;
    memcpy(words, record, sizeof words);
    for (int i = 0; i < RECORD_WORDS; i++) {
        if (!words[i]) continue;
        map |= (uint64_t)1 << i;
        packed[n++] = words[i];
    }
    gg_put_u64(b, map);
    gg_put(b, packed, n * sizeof *packed);
}

bool gg_take_record(struct gg_reader *r, struct gg_record *out) {
    uint32_t words[RECORD_WORDS] = {0};
    const uint64_t map = gg_take_u64(r);
    if (RECORD_WORDS < 64 && map >> (RECORD_WORDS % 64)) r->bad = true;
    for (int i = 0; i < RECORD_WORDS; i++) {
        const uint8_t *p = map >> i & 1 ? gg_take(r, 4) : NULL;
        if (p) memcpy(&words[i], p, 4);
    }
    memcpy(out, words, sizeof *out);
    return !r->bad;
}

/* ---- split states ---- */

void gg_put_state(struct gg_bytes *b, const struct sheaf_split_state *s) {
    gg_put_u64(b, (uint64_t)s->axis);
    gg_put_u64(b, (uint64_t)s->n_segments);
    for (int i = 0; i < s->n_segments; i++) {
        const struct sheaf_split_segment *seg = &s->segments[i];
        gg_put_u64(b, (uint64_t)seg->outer);
        gg_put_u64(b, (uint64_t)seg->inner);
        gg_put_u64(b, (uint64_t)seg->units);
        gg_put(b, seg->first, (size_t)s->n_members * sizeof *seg->first);
        gg_put(b, seg->count, (size_t)s->n_members * sizeof *seg->count);
    }
}

struct sheaf_split_state *gg_take_state(struct gg_reader *r, int n_members) {
    const uint64_t axis = gg_take_u64(r), n = gg_take_u64(r);
    const size_t row = (size_t)n_members * sizeof(int64_t);
    if (r->bad || axis > SHEAF_SPLIT_AXIS_PARTIAL || n > MAX_SEGMENTS) return NULL;
    struct sheaf_split_state *s =
        sheaf_split_state_new((enum sheaf_split_axis)axis, n_members, (int)n);
    for (uint64_t i = 0; s && i < n; i++) {
        struct sheaf_split_segment *seg = &s->segments[i];
        seg->outer = (int64_t)gg_take_u64(r);
        seg->inner = (int64_t)gg_take_u64(r);
        seg->units = (int64_t)gg_take_u64(r);
        const uint8_t *first = gg_take(r, row), *count = gg_take(r, row);
        if (!first || !count) break;
        memcpy(seg->first, first, row);
        memcpy(seg->count, count, row);
    }
    if (!r->bad) return s;
    sheaf_split_state_free(s);
    return NULL;
}

/* ---- graphs ---- */

static enum sheaf_status malformed(uint32_t record, const char *what) {
    return sheaf_set_error(SHEAF_STATUS_INVALID, "graph message: record %u %s", record, what);
}

bool gg_fits_owner(const struct sheaf_tensor *t, const struct sheaf_tensor *owner) {
    const size_t bytes = sheaf_nbytes(t), all = sheaf_nbytes(owner);
    return sheaf_is_empty(t) || (t->view_offs <= all && bytes <= all - t->view_offs);
}

static bool shape_is_sane(const struct gg_record *r) {
    uint64_t n = 1, bytes = 1;
    for (int i = 0; i < SHEAF_MAX_DIMS; i++) {
        if (r->ne[i] > INT64_MAX || __builtin_mul_overflow(n, r->ne[i] ? r->ne[i] : 1, &n))
            return false;
        if (__builtin_mul_overflow(r->ne[i] ? r->ne[i] : 1, r->nb[i] ? r->nb[i] : 1, &bytes) ||
            bytes > INT64_MAX / 8)
            return false;
    }
    return n < INT64_MAX / 8;
}

int gg_shown_operand(const struct sheaf_tensor *node) {
    if (node->op == SHEAF_OP_CPY) return 1;
    return sheaf_op_is_view(node->op) || node->op == SHEAF_OP_SET_ROWS ? 0 : -1;
}

/* Views of objects lie at 0 until the first run. */
static void note_moving(struct gg_graph *g, struct sheaf_tensor *t, bool is_view) {
    const int shown = t->view_src ? gg_shown_operand(t) : -1;
    const struct sheaf_tensor *of = shown < 0 ? NULL : t->src[shown];
    if (!of || !(is_view || of->flags & SHEAF_BACKEND_META_TENSOR_MOVES)) return;
    t->flags |= SHEAF_BACKEND_META_TENSOR_MOVES;
    g->moving[g->n_moving++] = (struct gg_moving){t, of, t->view_offs - of->view_offs, is_view};
}

static enum sheaf_status decode_object(struct gg_graph *g, uint32_t i, struct sheaf_tensor *object,
                                       uint32_t number) {
    if (!object) return malformed(i, "names an unknown object");
    g->tensors[i] = object;
    g->objects[g->n_objects++] = number;
    return SHEAF_STATUS_SUCCESS;
}

static enum sheaf_status decode_input(struct sheaf_tensor *t, uint32_t i) {
    if (t->op != SHEAF_OP_NONE || !sheaf_is_contiguous(t))
        return malformed(i, "is an input and not contiguous");
    sheaf_set_input(t);
    return SHEAF_STATUS_SUCCESS;
}

static bool permutes(const struct sheaf_tensor *t, const int32_t axes[SHEAF_MAX_DIMS]) {
    unsigned seen = 0;
    for (int k = 0; k < SHEAF_MAX_DIMS; k++) {
        if (axes[k] < 0 || axes[k] >= SHEAF_MAX_DIMS || t->ne[axes[k]] != t->src[0]->ne[k])
            return false;
        seen |= 1u << axes[k];
    }
    return seen == (1u << SHEAF_MAX_DIMS) - 1;
}

/* Planners and devices take nodes for valid, and views and copies for those of their operands. */
static bool is_valid(const struct sheaf_tensor *t) {
    static const int32_t swap[SHEAF_MAX_DIMS] = {1, 0, 2, 3};
    const int shown = gg_shown_operand(t);
    if (shown >= 0 && (!t->view_src || !t->src[shown])) return false;
    switch (t->op) {
    case SHEAF_OP_PERMUTE:
        return permutes(t, t->op_params);
    case SHEAF_OP_TRANSPOSE:
        return permutes(t, swap);
    case SHEAF_OP_RESHAPE:
        return sheaf_nelements(t) == sheaf_nelements(t->src[0]);
    default:
        return sheaf_backend_op_is_valid(t);
    }
}

/* The owner of a node's memory, if that is another tensor. */
static enum sheaf_status decode_owner(const struct gg_graph *g, uint32_t i,
                                      const struct gg_record *r, struct sheaf_tensor *t) {
    if (r->view_of) {
        if (r->view_of > i || g->tensors[r->view_of - 1]->view_src)
            return malformed(i, "is a view of a view or of a later tensor");
        t->view_src = g->tensors[r->view_of - 1];
        t->view_offs = (size_t)r->view_offs;
        if (!gg_fits_owner(t, t->view_src)) return malformed(i, "ends outside of its owner");
    }
    if (r->moves && (t->op != SHEAF_OP_VIEW || !t->view_src || t->view_src->op != SHEAF_OP_NONE ||
                     t->view_src->flags & SHEAF_TENSOR_FLAG_INPUT))
        return malformed(i, "moves and is no view of an object");
    return SHEAF_STATUS_SUCCESS;
}

/* Type, shape, op, parameters and operands of a leaf or a node. */
static enum sheaf_status decode_tensor(struct gg_graph *g, uint32_t i, const struct gg_record *r) {
    struct sheaf_tensor *t = sheaf_new_tensor_1d(g->ctx, (enum sheaf_type)r->type, 0);
    if (!t) return SHEAF_STATUS_ALLOC_FAILED;
    t->op = (enum sheaf_op)r->op;
    t->flags = (int32_t)r->flags;
    for (int k = 0; k < SHEAF_MAX_DIMS; k++) {
        t->ne[k] = (int64_t)r->ne[k];
        t->nb[k] = (size_t)r->nb[k];
    }
    memcpy(t->op_params, r->params, sizeof t->op_params);
    for (int k = 0; k < SHEAF_MAX_SRC; k++) {
        if (r->src[k] > i) return malformed(i, "has an operand that comes later");
        if (r->src[k]) t->src[k] = g->tensors[r->src[k] - 1];
    }
    sheaf_format_name(t, "%s_%u", r->kind == GG_NODE ? sheaf_op_name(t->op) : "input", i);
    g->tensors[i] = t;
    return SHEAF_STATUS_SUCCESS;
}

static enum sheaf_status decode_record(struct gg_graph *g, uint32_t i, const struct gg_record *r,
                                       gg_object_fn objects, void *user) {
    if (r->kind >= GG_KIND_COUNT || !sheaf_type_is_known((enum sheaf_type)r->type) ||
        r->op >= SHEAF_OP_COUNT || !shape_is_sane(r))
        return malformed(i, "is no tensor");
    if (r->kind == GG_LEAF_OBJECT) return decode_object(g, i, objects(user, r->object), r->object);
    enum sheaf_status st = decode_tensor(g, i, r);
    if (st) return st;
    struct sheaf_tensor *t = g->tensors[i];
    if (r->kind == GG_LEAF_INPUT) return decode_input(t, i);
    if (t->op == SHEAF_OP_NONE) return malformed(i, "is a node without an op");
    st = decode_owner(g, i, r, t);
    if (st) return st;
    if (!is_valid(t)) return malformed(i, "is no node that its op is defined for");
    note_moving(g, t, r->moves);
    return sheaf_build_forward_expand(g->graph, t);
}

enum sheaf_status gg_graph_decode(const uint8_t *data, size_t size, uint32_t n,
                                  gg_object_fn objects, void *user, struct gg_graph *g) {
    struct gg_reader r = {data, data + size, false};
    *g = (struct gg_graph){.n = n};
    if (n == 0) return malformed(n, "is missing");
    if (n > MAX_RECORDS) return malformed(n, "is one too many");
    if (n > size / sizeof(uint64_t)) return malformed(n, "is cut off"); /* each has a map */
    g->ctx = sheaf_init((struct sheaf_init_params){
        .mem_size = ((size_t)n + 1) * sheaf_tensor_overhead() + sheaf_graph_overhead_custom(n + 1),
        .no_alloc = true});
    g->tensors = calloc((size_t)n + 1, sizeof *g->tensors);
    g->objects = calloc((size_t)n + 1, sizeof *g->objects);
    g->moving = calloc((size_t)n + 1, sizeof *g->moving);
    g->graph = g->ctx ? sheaf_new_graph_custom(g->ctx, n + 1) : NULL;
    enum sheaf_status st = SHEAF_STATUS_SUCCESS;
    if (!g->ctx || !g->tensors || !g->objects || !g->moving || !g->graph)
        st = gg_no_memory("graph message");
    for (uint32_t i = 0; i < n && !st; i++) {
        struct gg_record record;
        st = gg_take_record(&r, &record) ? decode_record(g, i, &record, objects, user)
                                         : malformed(i, "is cut off");
    }
    if (!st && r.at != r.end) st = malformed(n, "is followed by more");
    if (st) gg_graph_free(g);
    return st;
}

static enum sheaf_status take_offsets(struct gg_graph *g, uint64_t n, struct gg_reader *r) {
    uint32_t at = 0;
    for (; n; n--) {
        uint64_t skip = gg_take_short(r);
        const uint64_t offset = gg_take_short(r);
        while (at < g->n_moving && (!g->moving[at].is_view || skip))
            skip -= g->moving[at++].is_view;
        if (r->bad || at == g->n_moving || offset > INT64_MAX / 2)
            return sheaf_set_error(SHEAF_STATUS_INVALID, "run: an offset is of no view");
        g->moving[at++].offset = offset;
    }
    return SHEAF_STATUS_SUCCESS;
}

enum sheaf_status gg_graph_move(struct gg_graph *g, uint64_t n, struct gg_reader *r) {
    enum sheaf_status st = take_offsets(g, n, r);
    for (uint32_t i = 0; i < g->n_moving && !st; i++) {
        const struct gg_moving *m = &g->moving[i];
        struct sheaf_tensor *t = m->tensor;
        if (m->is_view) memcpy(t->op_params, &m->offset, sizeof m->offset);
        t->view_offs = m->of->view_offs + (size_t)m->offset;
        if (!gg_fits_owner(t, t->view_src))
            return sheaf_set_error(SHEAF_STATUS_INVALID, "run: '%s' ends outside of its owner",
                                   t->name);
        if (t->buffer) st = sheaf_backend_view_init(t);
    }
    return st;
}

void gg_graph_free(struct gg_graph *g) {
    sheaf_free(g->ctx);
    free(g->tensors);
    free(g->objects);
    free(g->moving);
    *g = (struct gg_graph){0};
}
