/* A library that stands for ggml: as much of its interface as the plugin looks for, with numbers of
 * its own for ops, so that a plugin that believed in numbers would be found out. Built several times:
 *   FAKE_API 2 or 3      which backend API it has
 *   FAKE_NO_SCALE        lacks the function ggml_scale
 *   FAKE_SHIFTED         keeps op_params one word later
 *   GG_BEFORE_0_10       has the structures of then (abi.h)
 *   FAKE_VERSION         which version it says that it is */
#include <stdlib.h>
#include <string.h>

#include "ggml/abi.h"

enum { ARENA = 1 << 21, SLOTS = 1031, MAX_NODES = 1024, ALIGN = 16 };

static const char *const ops[] = {"NONE",
                                  "ADD",
                                  "SCALE",
                                  "VIEW",
                                  "MUL_MAT",
                                  "CPY",
                                  "SQR?",
                                  "UNARY",
                                  "SET_ROWS",
                                  "MUL",
                                  "CONT",
                                  "RESHAPE",
                                  "PERMUTE",
                                  "CONCAT",
                                  "GET_ROWS",
                                  "REPEAT",
                                  "SSM_CONV",
                                  "SSM_SCAN",
                                  "GATED_DELTA_NET",
                                  "FLASH_ATTN_EXT",
                                  "RMS_NORM",
                                  "RWKV_WKV6",
                                  "RWKV_WKV7",
                                  "ROPE",
                                  "FILL",
                                  "CLAMP",
                                  "ARGMAX",
                                  "GLU"};
enum { N_OPS = sizeof ops / sizeof *ops };
static const char *const unary[] = {"ABS", "SILU", "RELU", "TRUNC"};
static const char *const glu[] = {"REGLU",     "GEGLU",       "SWIGLU",      "SWIGLU_OAI",
                                  "GEGLU_ERF", "GEGLU_QUICK", "SWIGLU_CLAMP"};
enum {
    OP_ADD = 1,
    OP_SCALE = 2,
    OP_VIEW = 3,
    TYPE_F32 = 0,
    TYPE_F16 = 1,
    TYPE_I32 = 26,
    TYPE_I64 = 27,
    OTHER_BLOCK = 8, /* types that have names of ggml's and are others */
    OTHER_SIZE = 30,
    NEW = 42
};

struct arena {
    char *memory;
    size_t used;
};

void *ggml_init(struct gg_init_params params);
void ggml_free(void *ctx);
struct gg_tensor *ggml_new_tensor_4d(void *ctx, int type, int64_t a, int64_t b, int64_t c,
                                     int64_t d);
struct gg_tensor *ggml_add(void *ctx, struct gg_tensor *a, struct gg_tensor *b);
struct gg_tensor *ggml_scale(void *ctx, struct gg_tensor *a, float s);
struct gg_tensor *ggml_view_1d(void *ctx, struct gg_tensor *a, int64_t n, size_t offset);
struct gg_tensor *ggml_set_name(struct gg_tensor *t, const char *name);
void ggml_set_output(struct gg_tensor *t);
void *ggml_get_data(const struct gg_tensor *t);
struct gg_cgraph *ggml_new_graph(void *ctx);
void ggml_build_forward_expand(struct gg_cgraph *graph, struct gg_tensor *t);
const char *ggml_op_name(int op);
const char *ggml_unary_op_name(int op);
const char *ggml_glu_op_name(int op);
const char *ggml_type_name(int type);
int64_t ggml_blck_size(int type);
size_t ggml_type_size(int type);
const char *ggml_version(void);
struct gg_buffer *ggml_backend_buffer_init(struct gg_buft *buft, struct gg_buffer_i iface,
                                           void *context, size_t size);
void ggml_backend_buffer_free(struct gg_buffer *buffer);
void ggml_backend_buffer_set_usage(struct gg_buffer *buffer, int usage);
size_t ggml_backend_buffer_get_size(struct gg_buffer *buffer);
int fake_ggml_n_buffers(void);
void ggml_backend_buft_alloc_buffer_n(void);

static void *take(struct arena *a, size_t n) {
    void *p = a->memory + a->used;
    a->used += (n + ALIGN - 1) / ALIGN * ALIGN;
    if (a->used > ARENA) abort();
    memset(p, 0, n);
    return p;
}

void *ggml_init(struct gg_init_params params) {
    struct arena *a = malloc(sizeof *a);
    (void)params;
    *a = (struct arena){aligned_alloc(ALIGN, ARENA), 0};
    return a;
}
void ggml_free(void *ctx) {
    free(((struct arena *)ctx)->memory);
    free(ctx);
}

struct gg_tensor *ggml_new_tensor_4d(void *ctx, int type, int64_t a, int64_t b, int64_t c,
                                     int64_t d) {
    struct gg_tensor *t = take(ctx, sizeof *t);
    const int64_t ne[] = {a, b, c, d};
    t->type = type;
    for (int i = 0; i < GG_MAX_DIMS; i++) {
        t->ne[i] = ne[i];
        t->nb[i] = i ? t->nb[i - 1] * (size_t)ne[i - 1] : ggml_type_size(type);
    }
    t->data = take(ctx, t->nb[3] * (size_t)d);
    return t;
}
static struct gg_tensor *like(void *ctx, const struct gg_tensor *a, int op) {
    struct gg_tensor *t = ggml_new_tensor_4d(ctx, a->type, a->ne[0], a->ne[1], a->ne[2], a->ne[3]);
    t->op = op;
    return t;
}
struct gg_tensor *ggml_add(void *ctx, struct gg_tensor *a, struct gg_tensor *b) {
    struct gg_tensor *t = like(ctx, a, OP_ADD);
    t->src[0] = a;
    t->src[1] = b;
    return t;
}
#ifndef FAKE_NO_SCALE
struct gg_tensor *ggml_scale(void *ctx, struct gg_tensor *a, float s) {
    struct gg_tensor *t = like(ctx, a, OP_SCALE);
    t->src[0] = a;
#ifdef FAKE_SHIFTED
    memcpy(t->op_params + 1, &s, sizeof s);
#else
    memcpy(t->op_params, &s, sizeof s);
#endif
    return t;
}
#endif
struct gg_tensor *ggml_view_1d(void *ctx, struct gg_tensor *a, int64_t n, size_t offset) {
    struct gg_tensor *t = ggml_new_tensor_4d(ctx, a->type, n, 1, 1, 1);
    t->op = OP_VIEW;
    t->src[0] = a;
    t->view_src = a->view_src ? a->view_src : a;
    t->view_offs = a->view_offs + offset;
    t->data = (char *)t->view_src->data + t->view_offs;
    t->buffer = t->view_src->buffer;
    return t;
}
struct gg_tensor *ggml_set_name(struct gg_tensor *t, const char *name) {
    strncpy(t->name, name, GG_MAX_NAME - 1);
    return t;
}
void ggml_set_output(struct gg_tensor *t) { t->flags |= GG_FLAG_OUTPUT; }
void *ggml_get_data(const struct gg_tensor *t) { return t->data; }

/* ---- graphs ---- */

struct gg_cgraph *ggml_new_graph(void *ctx) {
    struct gg_cgraph *g = take(ctx, sizeof *g + MAX_NODES * sizeof *g->nodes);
    g->size = MAX_NODES;
    g->nodes = (struct gg_tensor **)(g + 1);
    g->leafs = take(ctx, MAX_NODES * sizeof *g->leafs);
    g->use_counts = take(ctx, SLOTS * sizeof *g->use_counts);
    g->visited.size = SLOTS;
    g->visited.used = take(ctx, (SLOTS / 32 + 1) * sizeof *g->visited.used);
    g->visited.keys = take(ctx, SLOTS * sizeof *g->visited.keys);
    GG_SINCE_0_10(g->uid = 7;)
    return g;
}
static size_t place(const struct gg_cgraph *g, const struct gg_tensor *t) {
    size_t i = ((size_t)(uintptr_t)t >> 4) % SLOTS;
    while (g->visited.used[i / 32] >> (i % 32) & 1 && g->visited.keys[i] != t) i = (i + 1) % SLOTS;
    return i;
}
void ggml_build_forward_expand(struct gg_cgraph *g, struct gg_tensor *t) {
    const size_t at = place(g, t);
    if (g->visited.keys[at] == t) return;
    g->visited.keys[at] = t;
    g->visited.used[at / 32] |= 1u << (at % 32);
    for (int i = 0; i < GG_MAX_SRC; i++) {
        if (!t->src[i]) continue;
        ggml_build_forward_expand(g, t->src[i]);
        g->use_counts[place(g, t->src[i])]++;
    }
    t->flags |= GG_FLAG_COMPUTE;
    if (t->op)
        g->nodes[g->n_nodes++] = t;
    else
        g->leafs[g->n_leafs++] = t;
}

/* ---- names ---- */

const char *ggml_op_name(int op) { return op < N_OPS ? ops[op] : (abort(), NULL); }
const char *ggml_unary_op_name(int op) { return op < 4 ? unary[op] : (abort(), NULL); }
const char *ggml_glu_op_name(int op) { return op < 7 ? glu[op] : (abort(), NULL); }
const char *ggml_type_name(int type) {
    if (type > 42) abort();
    return type == TYPE_F32      ? "f32"
           : type == TYPE_F16    ? "f16"
           : type == TYPE_I32    ? "i32"
           : type == TYPE_I64    ? "i64"
           : type == OTHER_BLOCK ? "q8_0"
           : type == OTHER_SIZE  ? "bf16"
           : type == NEW         ? "new"
                                 : "?";
}
/* 0: types that were removed */
int64_t ggml_blck_size(int type) { return strcmp(ggml_type_name(type), "?") != 0; }
size_t ggml_type_size(int type) {
    return type == TYPE_I64 ? 8 : type == TYPE_F16 ? 2 : type == OTHER_BLOCK ? 34 : 4;
}
#ifndef FAKE_VERSION
#define FAKE_VERSION (FAKE_API == 3 ? "0.27.0" : "0.21.0")
#endif
const char *ggml_version(void) { return FAKE_VERSION; }

/* ---- buffers ---- */

static int n_buffers; /* that were not freed */
int fake_ggml_n_buffers(void) { return n_buffers; }
struct gg_buffer *ggml_backend_buffer_init(struct gg_buft *buft, struct gg_buffer_i iface,
                                           void *context, size_t size) {
    struct gg_buffer *b = malloc(sizeof *b);
    n_buffers++;
    *b = (struct gg_buffer){iface, buft, context, size, GG_USAGE_ANY};
    return b;
}
void ggml_backend_buffer_free(struct gg_buffer *b) {
    b->iface.free_buffer(b);
    free(b);
    n_buffers--;
}
void ggml_backend_buffer_set_usage(struct gg_buffer *b, int usage) { b->usage = usage; }
size_t ggml_backend_buffer_get_size(struct gg_buffer *b) { return b->size; }
#if FAKE_API == 3
void ggml_backend_buft_alloc_buffer_n(void) {}
#endif

/* ---- backends ---- */

/* Another function of this library calls the plugin, as ggml's registry does. */
bool fake_ggml_load(struct gg_reg *(*init)(void));
bool fake_ggml_load(struct gg_reg *(*init)(void)) { return init() != NULL; }
