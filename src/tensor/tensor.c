/* Arena contexts and tensor descriptors.
 *
 * A context is one block of memory that only grows; objects (tensors, graphs) are chained in the
 * order in which they were made. Nothing is freed one by one. Invariant: every object starts
 * 16-byte aligned and lies inside the arena. */
#include "sheaf/tensor.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/arith.h"
#include "tensor/context.h"

enum { OBJECT_TENSOR, OBJECT_OTHER };

struct object {
    struct object *next;
    int kind; /* of the payload that follows */
    int pad;
};

struct sheaf_context {
    char *mem;
    size_t mem_size, used;
    bool owns_mem, no_alloc;
    struct object *first, *last;
};

enum { ARENA_ALIGN = 16, DATA_ALIGN = 64 };

static_assert(sizeof(struct object) % 8 == 0, "objects keep their payload aligned");

struct sheaf_context *sheaf_init(struct sheaf_init_params params) {
    struct sheaf_context *ctx = params.mem_size > PTRDIFF_MAX ? NULL : calloc(1, sizeof *ctx);
    if (!ctx) goto fail;
    ctx->mem_size = sheaf__align_up(params.mem_size ? params.mem_size : ARENA_ALIGN, ARENA_ALIGN);
    if (params.mem_buffer) {
        ctx->mem = params.mem_buffer;
        ctx->mem_size = params.mem_size / ARENA_ALIGN * ARENA_ALIGN;
    } else {
        ctx->mem = aligned_alloc(DATA_ALIGN, sheaf__align_up(ctx->mem_size, DATA_ALIGN));
        ctx->owns_mem = true;
        if (!ctx->mem) goto fail;
    }
    ctx->no_alloc = params.no_alloc;
    return ctx;
fail:
    free(ctx);
    sheaf_set_error(SHEAF_STATUS_ALLOC_FAILED, "context: no memory for an arena of %zu bytes",
                    params.mem_size);
    return NULL;
}

void sheaf_free(struct sheaf_context *ctx) {
    if (!ctx) return;
    if (ctx->owns_mem) free(ctx->mem);
    free(ctx);
}

void sheaf_reset(struct sheaf_context *ctx) {
    ctx->used = 0;
    ctx->first = ctx->last = NULL;
}

size_t sheaf_used_mem(const struct sheaf_context *ctx) { return ctx->used; }
size_t sheaf_get_mem_size(const struct sheaf_context *ctx) { return ctx->mem_size; }
bool sheaf_get_no_alloc(const struct sheaf_context *ctx) { return ctx->no_alloc; }
void sheaf_set_no_alloc(struct sheaf_context *ctx, bool no_alloc) { ctx->no_alloc = no_alloc; }

size_t sheaf_tensor_overhead(void) { return sheaf__object_overhead(sizeof(struct sheaf_tensor)); }

size_t sheaf__object_overhead(size_t size) {
    return sheaf__align_up(sizeof(struct object), ARENA_ALIGN) + sheaf__align_up(size, ARENA_ALIGN);
}

static void *new_object(struct sheaf_context *ctx, int kind, size_t size) {
    const size_t head = sheaf__align_up(sizeof(struct object), ARENA_ALIGN);
    size_t need;
    if (!sheaf__add_size(size, head + ARENA_ALIGN, &need) ||
        sheaf__align_up(size, ARENA_ALIGN) + head > ctx->mem_size - ctx->used) {
        sheaf_set_error(SHEAF_STATUS_ALLOC_FAILED,
                        "context: arena of %zu bytes is full (%zu used, %zu more wanted); give "
                        "sheaf_init a larger "
                        "mem_size",
                        ctx->mem_size, ctx->used, size);
        return NULL;
    }
    struct object *obj = (struct object *)(void *)(ctx->mem + ctx->used);
    *obj = (struct object){.kind = kind};
    ctx->used += head + sheaf__align_up(size, ARENA_ALIGN);
    if (ctx->last) {
        ctx->last->next = obj;
    } else {
        ctx->first = obj;
    }
    ctx->last = obj;
    return (char *)obj + head;
}

void *sheaf__context_alloc(struct sheaf_context *ctx, size_t size) {
    return new_object(ctx, OBJECT_OTHER, size);
}

struct sheaf_tensor *sheaf__new_tensor_raw(struct sheaf_context *ctx) {
    struct sheaf_tensor *t = new_object(ctx, OBJECT_TENSOR, sizeof *t);
    if (t) memset(t, 0, sizeof *t);
    return t;
}

struct sheaf_tensor *sheaf_new_tensor(struct sheaf_context *ctx, enum sheaf_type type, int n_dims,
                                      const int64_t *ne) {
    if (!sheaf_type_is_known(type)) {
        sheaf_set_error(SHEAF_STATUS_INVALID, "new tensor: type number %d is not known", (int)type);
        return NULL;
    }
    if (n_dims < 1 || n_dims > SHEAF_MAX_DIMS) {
        sheaf_set_error(SHEAF_STATUS_INVALID, "new tensor: %d dimensions; 1 to %d are possible",
                        n_dims, SHEAF_MAX_DIMS);
        return NULL;
    }
    int64_t full[SHEAF_MAX_DIMS] = {1, 1, 1, 1};
    for (int i = 0; i < n_dims; i++) full[i] = ne[i];
    size_t bytes = sheaf_type_size(type), nb[SHEAF_MAX_DIMS];
    size_t extent = bytes; /* as if no dimension were 0, so that counts of rows cannot overflow */
    const int64_t block = sheaf_blck_size(type);
    for (int i = 0; i < SHEAF_MAX_DIMS; i++) {
        if (full[i] < 0 || (i == 0 && full[0] % block)) {
            sheaf_set_error(
                SHEAF_STATUS_INVALID,
                "new tensor: dimension %d is %lld; type %s wants whole blocks of %lld and nothing "
                "negative",
                i, (long long)full[i], sheaf_type_name(type), (long long)block);
            return NULL;
        }
        nb[i] = bytes;
        const size_t n = (size_t)(i == 0 ? full[0] / block : full[i]);
        bytes *= n; /* at most extent */
        if (!sheaf__mul_size(extent, n ? n : 1, &extent) || extent > PTRDIFF_MAX / (size_t)block) {
            sheaf_set_error(SHEAF_STATUS_INVALID,
                            "new tensor: [%lld %lld %lld %lld] of %s is too large",
                            (long long)full[0], (long long)full[1], (long long)full[2],
                            (long long)full[3], sheaf_type_name(type));
            return NULL;
        }
    }
    struct sheaf_tensor *t = sheaf__new_tensor_raw(ctx);
    if (!t) return NULL;
    t->type = type;
    memcpy(t->ne, full, sizeof full);
    memcpy(t->nb, nb, sizeof nb);
    if (!ctx->no_alloc) {
        char *data = sheaf__context_alloc(ctx, bytes + DATA_ALIGN);
        if (!data) return NULL;
        t->data = (void *)sheaf__align_up((size_t)data, DATA_ALIGN);
    }
    return t;
}

struct sheaf_tensor *sheaf_new_tensor_1d(struct sheaf_context *ctx, enum sheaf_type type,
                                         int64_t ne0) {
    return sheaf_new_tensor(ctx, type, 1, &ne0);
}
struct sheaf_tensor *sheaf_new_tensor_2d(struct sheaf_context *ctx, enum sheaf_type type,
                                         int64_t ne0, int64_t ne1) {
    return sheaf_new_tensor(ctx, type, 2, (int64_t[]){ne0, ne1});
}
struct sheaf_tensor *sheaf_new_tensor_3d(struct sheaf_context *ctx, enum sheaf_type type,
                                         int64_t ne0, int64_t ne1, int64_t ne2) {
    return sheaf_new_tensor(ctx, type, 3, (int64_t[]){ne0, ne1, ne2});
}
struct sheaf_tensor *sheaf_new_tensor_4d(struct sheaf_context *ctx, enum sheaf_type type,
                                         int64_t ne0, int64_t ne1, int64_t ne2, int64_t ne3) {
    return sheaf_new_tensor(ctx, type, 4, (int64_t[]){ne0, ne1, ne2, ne3});
}
struct sheaf_tensor *sheaf_dup_tensor(struct sheaf_context *ctx, const struct sheaf_tensor *src) {
    return sheaf_new_tensor(ctx, src->type, SHEAF_MAX_DIMS, src->ne);
}

static struct sheaf_tensor *object_tensor(struct object *obj) {
    return (struct sheaf_tensor *)(void *)((char *)obj + sheaf__align_up(sizeof *obj, ARENA_ALIGN));
}

static struct sheaf_tensor *next_tensor(struct object *obj) {
    while (obj && obj->kind != OBJECT_TENSOR) obj = obj->next;
    return obj ? object_tensor(obj) : NULL;
}

struct sheaf_tensor *sheaf_get_first_tensor(const struct sheaf_context *ctx) {
    return next_tensor(ctx->first);
}

struct sheaf_tensor *sheaf_get_next_tensor(const struct sheaf_context *ctx,
                                           const struct sheaf_tensor *tensor) {
    (void)ctx;
    const size_t head = sheaf__align_up(sizeof(struct object), ARENA_ALIGN);
    struct object *obj = (struct object *)(void *)((char *)(uintptr_t)tensor - head);
    return next_tensor(obj->next);
}

struct sheaf_tensor *sheaf_get_tensor(const struct sheaf_context *ctx, const char *name) {
    for (struct sheaf_tensor *t = sheaf_get_first_tensor(ctx); t;
         t = sheaf_get_next_tensor(ctx, t)) {
        if (!strcmp(t->name, name)) return t;
    }
    return NULL;
}

struct sheaf_tensor *sheaf_set_name(struct sheaf_tensor *t, const char *name) {
    return sheaf_format_name(t, "%s", name);
}

struct sheaf_tensor *sheaf_format_name(struct sheaf_tensor *t, const char *fmt, ...) {
    if (!t) return NULL;
    char name[sizeof t->name] = ""; /* aside first: the old name may be an argument */
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(name, sizeof name, fmt, ap);
    va_end(ap);
    memcpy(t->name, name, sizeof name);
    return t;
}

const char *sheaf_get_name(const struct sheaf_tensor *t) { return t->name; }
void sheaf_set_input(struct sheaf_tensor *t) {
    if (t) t->flags |= SHEAF_TENSOR_FLAG_INPUT;
}
void sheaf_set_output(struct sheaf_tensor *t) {
    if (t) t->flags |= SHEAF_TENSOR_FLAG_OUTPUT;
}

int64_t sheaf_nelements(const struct sheaf_tensor *t) {
    return t->ne[0] * t->ne[1] * t->ne[2] * t->ne[3];
}
int64_t sheaf_nrows(const struct sheaf_tensor *t) { return t->ne[1] * t->ne[2] * t->ne[3]; }
bool sheaf_is_empty(const struct sheaf_tensor *t) { return sheaf_nelements(t) == 0; }
bool sheaf_is_view(const struct sheaf_tensor *t) { return t->view_src != NULL; }
size_t sheaf_element_size(const struct sheaf_tensor *t) { return sheaf_type_size(t->type); }

size_t sheaf_nbytes(const struct sheaf_tensor *t) {
    if (sheaf_is_empty(t)) return 0;
    const int64_t block = sheaf_blck_size(t->type);
    size_t n = sheaf_type_size(t->type) + (size_t)(t->ne[0] / block - 1) * t->nb[0];
    if (block > 1) n = (size_t)(t->ne[0] / block) * t->nb[0];
    for (int i = 1; i < SHEAF_MAX_DIMS; i++) n += (size_t)(t->ne[i] - 1) * t->nb[i];
    return n;
}

int sheaf_n_dims(const struct sheaf_tensor *t) {
    for (int i = SHEAF_MAX_DIMS - 1; i >= 1; i--) {
        if (t->ne[i] != 1) return i + 1;
    }
    return 1;
}

/* Dense in the first `to` dimensions; one of 1 may have any stride. */
static bool is_dense(const struct sheaf_tensor *t, int to) {
    size_t next = sheaf_type_size(t->type);
    for (int i = 0; i < to; i++) {
        const int64_t n = i == 0 ? t->ne[0] / sheaf_blck_size(t->type) : t->ne[i];
        if (n != 1 && t->nb[i] != next) return false;
        next *= (size_t)n;
    }
    return true;
}

bool sheaf_is_contiguous(const struct sheaf_tensor *t) {
    return sheaf_is_empty(t) || is_dense(t, SHEAF_MAX_DIMS);
}
bool sheaf_is_contiguous_rows(const struct sheaf_tensor *t) {
    return sheaf_is_empty(t) || is_dense(t, 1);
}
bool sheaf_is_transposed(const struct sheaf_tensor *t) { return t->nb[0] > t->nb[1]; }
bool sheaf_is_permuted(const struct sheaf_tensor *t) {
    return t->nb[0] > t->nb[1] || t->nb[1] > t->nb[2] || t->nb[2] > t->nb[3];
}
bool sheaf_are_same_shape(const struct sheaf_tensor *a, const struct sheaf_tensor *b) {
    return !memcmp(a->ne, b->ne, sizeof a->ne);
}
bool sheaf_are_same_layout(const struct sheaf_tensor *a, const struct sheaf_tensor *b) {
    return a->type == b->type && sheaf_are_same_shape(a, b) && !memcmp(a->nb, b->nb, sizeof a->nb);
}
bool sheaf_can_repeat(const struct sheaf_tensor *a, const struct sheaf_tensor *b) {
    for (int i = 0; i < SHEAF_MAX_DIMS; i++) {
        if (a->ne[i] == b->ne[i]) continue;
        if (a->ne[i] == 0 || b->ne[i] % a->ne[i]) return false;
    }
    return true;
}

static const char *const unary_names[] = {
    [SHEAF_UNARY_OP_SILU] = "SILU",
    [SHEAF_UNARY_OP_GELU] = "GELU",
    [SHEAF_UNARY_OP_RELU] = "RELU",
    [SHEAF_UNARY_OP_TANH] = "TANH",
    [SHEAF_UNARY_OP_SIGMOID] = "SIGMOID",
    [SHEAF_UNARY_OP_NEG] = "NEG",
    [SHEAF_UNARY_OP_EXP] = "EXP",
    [SHEAF_UNARY_OP_ABS] = "ABS",
    [SHEAF_UNARY_OP_SGN] = "SGN",
    [SHEAF_UNARY_OP_STEP] = "STEP",
    [SHEAF_UNARY_OP_ELU] = "ELU",
    [SHEAF_UNARY_OP_GELU_QUICK] = "GELU_QUICK",
    [SHEAF_UNARY_OP_GELU_ERF] = "GELU_ERF",
    [SHEAF_UNARY_OP_HARDSWISH] = "HARDSWISH",
    [SHEAF_UNARY_OP_HARDSIGMOID] = "HARDSIGMOID",
    [SHEAF_UNARY_OP_EXPM1] = "EXPM1",
    [SHEAF_UNARY_OP_SOFTPLUS] = "SOFTPLUS",
    [SHEAF_UNARY_OP_XIELU] = "XIELU",
    [SHEAF_UNARY_OP_FLOOR] = "FLOOR",
    [SHEAF_UNARY_OP_CEIL] = "CEIL",
    [SHEAF_UNARY_OP_ROUND] = "ROUND",
    [SHEAF_UNARY_OP_TRUNC] = "TRUNC",
};
static_assert(sizeof unary_names / sizeof *unary_names == SHEAF_UNARY_OP_COUNT,
              "a unary op has no name");

static const char *const glu_names[] = {[SHEAF_GLU_OP_SWIGLU] = "SWIGLU",
                                        [SHEAF_GLU_OP_GEGLU] = "GEGLU",
                                        [SHEAF_GLU_OP_REGLU] = "REGLU",
                                        [SHEAF_GLU_OP_GEGLU_ERF] = "GEGLU_ERF",
                                        [SHEAF_GLU_OP_GEGLU_QUICK] = "GEGLU_QUICK",
                                        [SHEAF_GLU_OP_SWIGLU_OAI] = "SWIGLU_OAI",
                                        [SHEAF_GLU_OP_SWIGLU_CLAMP] = "SWIGLU_CLAMP"};
static_assert(sizeof glu_names / sizeof *glu_names == SHEAF_GLU_OP_COUNT, "a glu op has no name");

const char *sheaf_unary_op_name(enum sheaf_unary_op op) {
    return (unsigned)op < SHEAF_UNARY_OP_COUNT ? unary_names[op] : "?";
}
const char *sheaf_glu_op_name(enum sheaf_glu_op op) {
    return (unsigned)op < SHEAF_GLU_OP_COUNT ? glu_names[op] : "?";
}
enum sheaf_unary_op sheaf_get_unary_op(const struct sheaf_tensor *t) {
    return (enum sheaf_unary_op)t->op_params[0];
}
enum sheaf_glu_op sheaf_get_glu_op(const struct sheaf_tensor *t) {
    return (enum sheaf_glu_op)t->op_params[0];
}
const char *sheaf_op_desc(const struct sheaf_tensor *t) {
    if (t->op == SHEAF_OP_UNARY) return sheaf_unary_op_name(sheaf_get_unary_op(t));
    if (t->op == SHEAF_OP_GLU) return sheaf_glu_op_name(sheaf_get_glu_op(t));
    return sheaf_op_name(t->op);
}
