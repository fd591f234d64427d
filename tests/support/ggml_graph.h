/* Tensors and graphs of ggml made by hand, and an encoder for them: no library that stands for ggml is needed. An op's
 * number is its row in the table, and all weights lie in one memory. Included by suites of one file. */
#ifndef SHEAF_TESTS_GGML_GRAPH_H
#define SHEAF_TESTS_GGML_GRAPH_H

#include <stdlib.h>
#include <string.h>

#include "ggml/encode.h"
#include "ggml/translate.h"

enum { F32 = SHEAF_TYPE_F32, UNKNOWN = GG_MAX_TYPES - 1, ROOM = 512, SLOTS = 1024 };

static struct gg_host host;
static struct gg_encoder e;
static struct gg_numbers numbers;
static struct gg_memory *memory; /* of weights, and of the buffer `any`, which has no usage */
static struct gg_buffer weights, work, any;
static struct gg_tensor pool[ROOM], *nodes[ROOM];
static size_t n_pool, at_work, at_weights;
static struct gg_cgraph graph;
static uint32_t used[SLOTS / 32];
static struct gg_tensor *keys[SLOTS];
static int32_t counts[SLOTS];

static inline struct gg_memory *memory_of(const struct gg_tensor *t) {
    return t->buffer != &work ? memory : NULL;
}

/* An empty graph, and an encoder that has seen none. */
static inline void begin_graph(void) {
    n_pool = at_work = at_weights = 0;
    memset(used, 0, sizeof used);
    memset(keys, 0, sizeof keys);
    memset(counts, 0, sizeof counts);
    memset(host.op, -1, sizeof host.op);
    memset(host.type, -1, sizeof host.type);
    for (int i = 0; i < gg_n_op_rows(); i++)
        if (gg_find_op_row(gg_op_row(i)->name) == i) host.op[i] = (int8_t)i;
    for (int i = 0; i < SHEAF_TYPE_COUNT && i < UNKNOWN; i++)
        if (sheaf_type_is_known((enum sheaf_type)i)) host.type[i] = (int8_t)i;
    memory = gg_memory_new(1 << 24, 1, 0);
    weights.usage = GG_USAGE_WEIGHTS;
    work.usage = GG_USAGE_COMPUTE;
    any.usage = GG_USAGE_ANY;
    e = (struct gg_encoder){.host = &host, .numbers = &numbers, .memory_of = memory_of};
    host.has_uid = true;
    graph = (struct gg_cgraph){
        .nodes = nodes, .use_counts = counts, .visited = {SLOTS, used, keys}, .uid = 1};
}
static inline void end_graph(void) {
    gg_encoder_free(&e);
    gg_memory_free(memory);
    free(numbers.unused);
    numbers = (struct gg_numbers){0};
}

static inline size_t slot_of(const struct gg_tensor *t) {
    size_t i = ((size_t)(uintptr_t)t >> 4) % SLOTS;
    while (used[i / 32] >> (i % 32) & 1 && keys[i] != t) i = (i + 1) % SLOTS;
    return i;
}
static inline void count_use(struct gg_tensor *t, int32_t uses) {
    const size_t i = slot_of(t);
    used[i / 32] |= 1u << (i % 32);
    keys[i] = t;
    counts[i] += uses;
}

static inline struct gg_tensor *tensor(int type, int64_t a, int64_t b, int64_t c) {
    struct gg_tensor *t = &pool[n_pool++];
    const size_t block = type == UNKNOWN ? 4 : sheaf_type_size((enum sheaf_type)type);
    *t = (struct gg_tensor){.type = type, .ne = {a, b, c, 1}, .buffer = &work};
    t->nb[0] = block;
    t->nb[1] = type == UNKNOWN ? 4 * (size_t)a : sheaf_row_size((enum sheaf_type)type, a);
    for (int i = 2; i < GG_MAX_DIMS; i++) t->nb[i] = t->nb[i - 1] * (size_t)t->ne[i - 1];
    t->data = (char *)(uintptr_t)((1 << 20) + at_work);
    at_work += t->nb[3];
    count_use(t, 0);
    return t;
}
static inline struct gg_tensor *weight_of(int type, const char *name, int64_t a, int64_t b,
                                          int64_t c) {
    struct gg_tensor *t = tensor(type, a, b, c);
    t->buffer = &weights;
    t->data = memory->base + at_weights;
    at_weights += t->nb[3];
    strcpy(t->name, name);
    return t;
}
static inline struct gg_tensor *weight(const char *name, int64_t a, int64_t b) {
    return weight_of(F32, name, a, b, 1);
}
/* Adds a node of that op, whose result is [a, b, c]. */
static inline struct gg_tensor *node(const char *op, int64_t a, int64_t b, int64_t c,
                                     struct gg_tensor *const *src, int n_src) {
    struct gg_tensor *t = tensor(F32, a, b, c);
    t->op = gg_find_op_row(op);
    for (int i = 0; i < n_src; i++) {
        t->src[i] = src[i];
        count_use(src[i], 1);
    }
    return nodes[graph.n_nodes++] = t;
}
#define NODE(op, a, b, c, ...)                                                                     \
    node(op, a, b, c, (struct gg_tensor *[]){__VA_ARGS__},                                         \
         sizeof(struct gg_tensor *[]){__VA_ARGS__} / sizeof(struct gg_tensor *))
/* The node shows memory of src[0], or of what that shows. */
static inline struct gg_tensor *shows(struct gg_tensor *t, struct gg_tensor *of, size_t offset) {
    t->view_src = of->view_src ? of->view_src : of;
    t->view_offs = offset;
    t->data = (char *)t->view_src->data + offset;
    return t;
}
static inline struct gg_tensor *view(struct gg_tensor *of, int64_t a, int64_t b, size_t offset) {
    return shows(NODE("VIEW", a, b, 1, of), of, offset);
}
static inline struct gg_tensor *scale(struct gg_tensor *x) {
    return NODE("SCALE", x->ne[0], x->ne[1], x->ne[2], x);
}

#endif
