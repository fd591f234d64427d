/* Maps the host's ops and types by name, and checks its layouts on tensors that it makes itself. */
#include "ggml/host.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ggml/functions.h"
#include "ggml/op_table.h"

/* The functions that the checks need. */
struct probe {
    void *(*init)(struct gg_init_params params);
    void (*free)(void *ctx);
    struct gg_tensor *(*new_tensor_4d)(void *ctx, int type, int64_t a, int64_t b, int64_t c,
                                       int64_t d);
    struct gg_tensor *(*add)(void *ctx, struct gg_tensor *a, struct gg_tensor *b);
    struct gg_tensor *(*scale)(void *ctx, struct gg_tensor *a, float s);
    struct gg_tensor *(*view_1d)(void *ctx, struct gg_tensor *a, int64_t n, size_t offset);
    struct gg_tensor *(*set_name)(struct gg_tensor *t, const char *name);
    void (*set_output)(struct gg_tensor *t);
    void *(*get_data)(const struct gg_tensor *t);
    struct gg_cgraph *(*new_graph)(void *ctx);
    void (*build_forward_expand)(struct gg_cgraph *graph, struct gg_tensor *t);
    const char *(*op_name)(int op);
    const char *(*unary_op_name)(int op);
    const char *(*glu_op_name)(int op);
    const char *(*type_name)(int type);
    int64_t (*blck_size)(int type);
    size_t (*type_size)(int type);
    struct gg_buffer *(*buffer_init)(struct gg_buft *buft, struct gg_buffer_i iface, void *context,
                                     size_t size);
    void (*buffer_free)(struct gg_buffer *buffer);
    void (*buffer_set_usage)(struct gg_buffer *buffer, int usage);
    size_t (*buffer_get_size)(struct gg_buffer *buffer);
};

static enum sheaf_status refuse(const char *what) {
    return sheaf_set_error(SHEAF_STATUS_INVALID, "%s", what);
}

/* ---- functions ---- */

static void *open_caller(const void *caller) {
    Dl_info info;
    if (!dladdr(caller, &info) || !info.dli_fname) return NULL;
    return dlopen(info.dli_fname, RTLD_NOW | RTLD_NOLOAD);
}

static const struct gg_function functions[] = {
    {"ggml_init", offsetof(struct probe, init), false},
    {"ggml_free", offsetof(struct probe, free), false},
    {"ggml_new_tensor_4d", offsetof(struct probe, new_tensor_4d), false},
    {"ggml_add", offsetof(struct probe, add), false},
    {"ggml_scale", offsetof(struct probe, scale), false},
    {"ggml_view_1d", offsetof(struct probe, view_1d), false},
    {"ggml_set_name", offsetof(struct probe, set_name), false},
    {"ggml_set_output", offsetof(struct probe, set_output), false},
    {"ggml_get_data", offsetof(struct probe, get_data), false},
    {"ggml_new_graph", offsetof(struct probe, new_graph), false},
    {"ggml_build_forward_expand", offsetof(struct probe, build_forward_expand), false},
    {"ggml_op_name", offsetof(struct probe, op_name), false},
    {"ggml_unary_op_name", offsetof(struct probe, unary_op_name), false},
    {"ggml_glu_op_name", offsetof(struct probe, glu_op_name), false},
    {"ggml_type_name", offsetof(struct probe, type_name), false},
    {"ggml_blck_size", offsetof(struct probe, blck_size), false},
    {"ggml_type_size", offsetof(struct probe, type_size), false},
    {"ggml_backend_buffer_init", offsetof(struct probe, buffer_init), false},
    {"ggml_backend_buffer_free", offsetof(struct probe, buffer_free), false},
    {"ggml_backend_buffer_set_usage", offsetof(struct probe, buffer_set_usage), false},
    {"ggml_backend_buffer_get_size", offsetof(struct probe, buffer_get_size), false},
};

static enum sheaf_status find_all(void *library, struct probe *p) {
    const char *missing =
        gg_find_functions(library, functions, sizeof functions / sizeof *functions, p);
    if (!missing) return SHEAF_STATUS_SUCCESS;
    return sheaf_set_error(SHEAF_STATUS_INVALID, "this program's ggml has no function %s", missing);
}

/* Version 3 came with a function that allocates many tensors at once. A later version is refused by
 * the host itself, which compares the number. */
static void find_version(void *library, struct gg_host *h) {
    const char *(*version)(void) = NULL;
    void *f = gg_find_function(library, "ggml_version");
    memcpy(&version, &f, sizeof f);
    snprintf(h->version, sizeof h->version, "%s", version ? version() : "of unknown version");
    h->api_version = gg_find_function(library, "ggml_backend_buft_alloc_buffer_n") ? 3 : 2;
}

/* ---- numbers ---- */

static void note_unknown(struct gg_host *h, const char *name) {
    const size_t n = strlen(h->unknown);
    if (*name) snprintf(h->unknown + n, sizeof h->unknown - n, "%s%s", n ? " " : "", name);
}

/* ggml's tables of names end without a mark. The last name that every version has ends the search,
 * so that nothing behind a table is read; ops that a later version has added there stay unknown. */
static void map_names(struct gg_host *h, const char *(*name_of)(int), const char *last, int8_t *map,
                      int room, int (*number)(const char *name)) {
    memset(map, -1, (size_t)room);
    for (int i = 0; i < room; i++) {
        const char *name = name_of(i);
        if (!name) return;
        map[i] = (int8_t)number(name);
        if (map[i] < 0) note_unknown(h, name);
        if (!strcmp(name, last)) return;
    }
}

static int unary_number(const char *name) {
    for (int i = 0; i < SHEAF_UNARY_OP_COUNT; i++)
        if (!strcmp(name, sheaf_unary_op_name((enum sheaf_unary_op)i))) return i;
    return -1;
}
static int glu_number(const char *name) {
    for (int i = 0; i < SHEAF_GLU_OP_COUNT; i++)
        if (!strcmp(name, sheaf_glu_op_name((enum sheaf_glu_op)i))) return i;
    return -1;
}

bool gg_is_since(const struct gg_host *h, int want) {
    int major = 0, minor = 0;
    return sscanf(h->version, "%d.%d", &major, &minor) == 2 && (major > 0 || minor >= want);
}

static bool is_before_0_9_5(const struct gg_host *h) {
    int major = 0, minor = 0, patch = 0;
    return sscanf(h->version, "%d.%d.%d", &major, &minor, &patch) == 3 && !major &&
           (minor < 9 || (minor == 9 && patch < 5));
}

/* A type is the same if name, block and bytes are. Numbers up to 39 (mxfp4) are in every version
 * that has backend API 2, 40 to 42 since 0.25 at the latest; ggml looks behind its table for
 * more. */
static void map_types(const struct probe *p, struct gg_host *h, int8_t *map) {
    const int n = gg_is_since(h, 25) ? 43 : 40;
    memset(map, -1, GG_MAX_TYPES);
    for (int i = 0; i < n; i++) {
        const char *name = p->type_name(i);
        const enum sheaf_type type = name ? sheaf_type_from_name(name) : SHEAF_TYPE_COUNT;
        const bool same = type != SHEAF_TYPE_COUNT && p->blck_size(i) == sheaf_blck_size(type) &&
                          p->type_size(i) == sheaf_type_size(type);
        map[i] = same ? (int8_t)type : -1;
        if (!same && name && p->blck_size(i) > 0) note_unknown(h, name); /* others were removed */
    }
}

/* ---- layouts of tensors and graphs ---- */

static bool is_plain(const struct gg_tensor *t, int type) {
    return t->type == type && t->ne[0] == 3 && t->ne[1] == 5 && t->ne[2] == 7 && t->ne[3] == 2 &&
           t->nb[0] == 4 && t->nb[1] == 12 && t->nb[2] == 60 && t->nb[3] == 420;
}

static int f32_number(const struct gg_host *h) {
    for (int i = 0; i < GG_MAX_TYPES; i++)
        if (h->type[i] == SHEAF_TYPE_F32) return i;
    return -1;
}

static enum sheaf_status probe_tensors(const struct probe *p, struct gg_host *h, void *ctx) {
    const int f32 = f32_number(h);
    if (f32 < 0) return refuse("this program's ggml has no type named f32");
    if (strcmp(p->op_name(0), "NONE")) return refuse("op 0 of this program's ggml is not NONE");
    struct gg_tensor *a = p->new_tensor_4d(ctx, f32, 3, 5, 7, 2);
    if (!a || !is_plain(a, f32)) return refuse("type, ne or nb of struct ggml_tensor have moved");
    p->set_name(a, "sheaf probe");
    p->set_output(a);
    if (strcmp(a->name, "sheaf probe")) return refuse("name of struct ggml_tensor has moved");
    if (!(a->flags & GG_FLAG_OUTPUT)) return refuse("flags of struct ggml_tensor have moved");
    if (!a->data || a->data != p->get_data(a))
        return refuse("data of struct ggml_tensor has moved");
    struct gg_tensor *b = p->scale(ctx, a, 2.5f), *sum = p->add(ctx, b, a);
    struct gg_tensor *v = p->view_1d(ctx, sum, 4, 8);
    float factor = 0;
    memcpy(&factor, b->op_params, sizeof factor);
    if (factor != 2.5f) return refuse("op_params of struct ggml_tensor have moved");
    if (b->op < 0 || b->op >= GG_MAX_OPS || strcmp(p->op_name(b->op), "SCALE"))
        return refuse("op of struct ggml_tensor has moved");
    if (sum->src[0] != b || sum->src[1] != a || sum->src[2])
        return refuse("src of struct ggml_tensor has moved");
    if (v->view_src != sum || v->view_offs != 8)
        return refuse("view_src or view_offs of struct ggml_tensor have moved");

    struct gg_cgraph *graph = p->new_graph(ctx);
    p->build_forward_expand(graph, sum);
    if (graph->n_nodes != 2 || graph->nodes[0] != b || graph->nodes[1] != sum)
        return refuse("n_nodes or nodes of struct ggml_cgraph have moved");
    if (gg_use_count(graph, a) != 2 || gg_use_count(graph, b) != 1 || gg_use_count(graph, sum) != 0)
        return refuse("use_counts or the hash set of struct ggml_cgraph have moved");
    /* the list of nodes lies behind the structure */
    h->has_uid = (char *)graph->nodes - (char *)graph >= (ptrdiff_t)sizeof *graph ||
                 (char *)graph->nodes < (char *)graph;
    h->has_compute_flag = sum->flags & GG_FLAG_COMPUTE;
    return SHEAF_STATUS_SUCCESS;
}

/* ---- layouts of buffers ---- */

static void probe_free(struct gg_buffer *buffer) { (void)buffer; }

struct gg_buffer *gg_host_new_buffer(const struct gg_host *h, struct gg_buft *buft,
                                     const struct gg_buffer_i *iface, void *context, size_t size) {
    typedef struct gg_buffer *(*init_0_9)(struct gg_buft *, struct gg_buffer_i_0_9, void *, size_t);
    if (!h->is_0_9) return h->buffer_init(buft, *iface, context, size);
    const struct gg_buffer_i_0_9 table = {.free_buffer = iface->free_buffer,
                                          .get_base = iface->get_base,
                                          .init_tensor = iface->init_tensor,
                                          .memset_tensor = iface->memset_tensor,
                                          .set_tensor = iface->set_tensor,
                                          .get_tensor = iface->get_tensor,
                                          .cpy_tensor = iface->cpy_tensor,
                                          .clear = iface->clear,
                                          .reset = iface->reset};
    return ((init_0_9)(gg_fn)h->buffer_init)(buft, table, context, size);
}

struct gg_buffer_rest *gg_host_rest(const struct gg_host *h, struct gg_buffer *buffer) {
    return (struct gg_buffer_rest *)((char *)buffer + (h->is_0_9 ? sizeof(struct gg_buffer_i_0_9)
                                                                 : sizeof(struct gg_buffer_i)));
}

uint64_t gg_uid(const struct gg_host *h, const struct gg_cgraph *graph) {
    return h->has_uid ? graph->uid : 0;
}

/* The short table is tried first: to look for the long one in a buffer that has the short one would
 * read behind its end. */
static enum sheaf_status probe_buffer(const struct probe *p, struct gg_host *h) {
    static int context;
    static struct gg_buft_3 buft; /* looked at by nothing that is called here */
    for (int longer = 0; longer < 2; longer++) {
        h->is_0_9 = !longer;
        struct gg_buffer *b =
            gg_host_new_buffer(h, (struct gg_buft *)&buft,
                               &(struct gg_buffer_i){.free_buffer = probe_free}, &context, 4096);
        if (!b) return refuse("ggml_backend_buffer_init returned NULL");
        p->buffer_set_usage(b, GG_USAGE_COMPUTE);
        const struct gg_buffer_rest *rest = gg_host_rest(h, b);
        const bool fits = rest->buft == (struct gg_buft *)&buft && rest->context == &context &&
                          rest->size == 4096 && rest->usage == GG_USAGE_COMPUTE &&
                          p->buffer_get_size(b) == 4096;
        if (b->iface.free_buffer != probe_free) break; /* the first of both tables, which frees b */
        p->buffer_free(b);
        if (fits) return SHEAF_STATUS_SUCCESS;
    }
    return refuse("struct ggml_backend_buffer has another layout");
}

/* ---- all of it ---- */

enum sheaf_status gg_host_find(const void *caller, struct gg_host *h) {
    void *library = open_caller(caller);
    const enum sheaf_status st = gg_host_check(library, h);
    if (library) dlclose(library); /* the program keeps it */
    return st;
}

static const char *file_of(const void *address) {
    Dl_info info;
    return dladdr(address, &info) && info.dli_fname ? info.dli_fname : "a library";
}

enum sheaf_status gg_host_is_of(const struct gg_host *h, const void *caller) {
    void *library = open_caller(caller), *f = gg_find_function(library, "ggml_backend_buffer_init");
    void *own = NULL;
    memcpy(&own, &h->buffer_init, sizeof own);
    if (library) dlclose(library);
    if (f == own) return SHEAF_STATUS_SUCCESS;
    return sheaf_set_error(SHEAF_STATUS_INVALID,
                           "the ggml of %s is not that of %s, which loaded SHEAF first in this "
                           "process",
                           file_of(caller), file_of(own));
}

enum sheaf_status gg_host_check(void *library, struct gg_host *h) {
    struct probe p = {0};
    memset(h, 0, sizeof *h);
    enum sheaf_status st = find_all(library, &p);
    find_version(library, h);
    if (st) return st;
    h->buffer_init = p.buffer_init;
    if (is_before_0_9_5(h)) return refuse("ggml before 0.9.5 lacks names that are looked for");
    map_names(h, p.op_name, "GLU", h->op, GG_MAX_OPS, gg_find_op_row);
    map_names(h, p.unary_op_name, "TRUNC", h->unary, GG_MAX_UNARY, unary_number);
    map_names(h, p.glu_op_name, gg_is_since(h, 25) ? "SWIGLU_CLAMP" : "GEGLU_QUICK", h->glu,
              GG_MAX_GLU, glu_number);
    map_types(&p, h, h->type);
    void *ctx = p.init((struct gg_init_params){.mem_size = 1 << 20});
    if (!ctx) return refuse("ggml_init returned NULL");
    st = probe_tensors(&p, h, ctx);
    p.free(ctx);
    return st ? st : probe_buffer(&p, h);
}

static bool is_in_use(const struct gg_hash_set *set, size_t i) {
    return set->used[i / 32] >> (i % 32) & 1;
}

const struct gg_tensor *gg_next_of_whole(const struct gg_cgraph *graph, size_t *at) {
    const struct gg_hash_set *set = &graph->visited;
    while (set->used && set->keys && *at < set->size) {
        const size_t i = (*at)++;
        if (is_in_use(set, i)) return set->keys[i];
    }
    return NULL;
}

int gg_use_count(const struct gg_cgraph *graph, const struct gg_tensor *t) {
    const struct gg_hash_set *set = &graph->visited;
    if (!graph->use_counts || !set->used || !set->keys || !set->size) return -1;
    const size_t first = ((size_t)(uintptr_t)t >> 4) % set->size;
    for (size_t i = first, seen = 0; seen < set->size; seen++, i = (i + 1) % set->size) {
        if (!is_in_use(set, i)) return -1;
        if (set->keys[i] == t) return graph->use_counts[i];
    }
    return -1;
}
