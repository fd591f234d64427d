/* A library that stands for ggml with one device, FAKE0, for libsheaf-ggml.so: what fake-ggml.c
 * has, and as much of the registry, buffers, backends and graphs as the module looks for. The
 * device adds and scales F32 in memory of its own kind: data of tensors are addresses that cannot
 * be followed. Its graphs have a number, and it counts how often it saw a number for the first
 * time.
 *
 * Its streams are lazy: what is submitted runs when something waits for it, and no earlier, so that
 * a wait that is missing shows in the values.
 *
 * It attends to one key. Behind the result it wants room, which it fills, and behind that of a node
 * that is scaled by 37. It says which products and attentions are to be summed in F32.
 *
 * It takes no slice of six rows or 32 columns that are scaled by 23. It does not scale by 13: that
 * graph fails; by 29, the library gives up as ggml does where it asserts. Scaling by 17 takes 2.5 s,
 * by 19 8 s in the queue.
 *   FAKE_CUDA            says that it is of CUDA and computes everything
 *   FAKE_TWO             has a second device, FAKE1
 *   FAKE_BAD_VERSION     says that its backends have interface version 9
 *   FAKE_PACKS           memory of the host; multiplies, and by weights of a multiple of 4 rows also in a
 *                        layout of its own, which holds the negative of what is written */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "fake-ggml.c"

struct fake_props {
    struct gg_props p;
};
void ggml_backend_load_all(void);
void ggml_backend_load_all_from_path(const char *dir);
void ggml_set_abort_callback(void (*fn)(const char *text));
void ggml_log_set(void (*fn)(int level, const char *text, void *user), void *user);
size_t ggml_backend_dev_count(void);
struct gg_device *ggml_backend_dev_get(size_t index);
const char *ggml_backend_dev_name(struct gg_device *dev);
const char *ggml_backend_dev_description(struct gg_device *dev);
void ggml_backend_dev_memory(struct gg_device *dev, size_t *free_bytes, size_t *total);
void ggml_backend_dev_get_props(struct gg_device *dev, struct gg_props *props);
struct gg_reg *ggml_backend_dev_backend_reg(struct gg_device *dev);
struct gg_backend *ggml_backend_dev_init(struct gg_device *dev, const char *params);
struct gg_buft *ggml_backend_dev_buffer_type(struct gg_device *dev);
struct gg_buft *ggml_backend_dev_host_buffer_type(struct gg_device *dev);
bool ggml_backend_dev_supports_op(struct gg_device *dev, const struct gg_tensor *op);
const char *ggml_backend_reg_name(struct gg_reg *reg);
void *ggml_backend_reg_get_proc_address(struct gg_reg *reg, const char *name);
struct gg_buffer *ggml_backend_buft_alloc_buffer(struct gg_buft *buft, size_t size);
size_t ggml_backend_buft_get_alignment(struct gg_buft *buft);
size_t ggml_backend_buft_get_max_size(struct gg_buft *buft);
size_t ggml_backend_buft_get_alloc_size(struct gg_buft *buft, const struct gg_tensor *t);
bool ggml_backend_buft_is_host(struct gg_buft *buft);
void *ggml_backend_buffer_get_base(struct gg_buffer *b);
void ggml_backend_buffer_clear(struct gg_buffer *b, uint8_t value);
int ggml_backend_tensor_alloc(struct gg_buffer *b, struct gg_tensor *t, void *addr);
int ggml_backend_view_init(struct gg_tensor *t);
void ggml_backend_tensor_set(struct gg_tensor *t, const void *data, size_t offset, size_t size);
void ggml_backend_tensor_get(const struct gg_tensor *t, void *data, size_t offset, size_t size);
void ggml_backend_free(struct gg_backend *b);
void ggml_backend_synchronize(struct gg_backend *b);
int ggml_backend_graph_compute_async(struct gg_backend *b, struct gg_cgraph *g);
void ggml_backend_tensor_set_async(struct gg_backend *b, struct gg_tensor *t, const void *data,
                                   size_t offset, size_t size);
void ggml_backend_tensor_get_async(struct gg_backend *b, const struct gg_tensor *t, void *data,
                                   size_t offset, size_t size);
void *ggml_backend_event_new(struct gg_device *dev);
void ggml_backend_event_free(void *event);
void ggml_backend_event_record(void *event, struct gg_backend *b);
void ggml_backend_event_wait(struct gg_backend *b, void *event);
void ggml_backend_event_synchronize(void *event);
size_t ggml_graph_overhead_custom(size_t size, bool grads);
struct gg_cgraph *ggml_new_graph_custom(void *ctx, size_t size, bool grads);
GG_SINCE_0_10(uint64_t ggml_graph_next_uid(void);)

void ggml_backend_tensor_copy(const struct gg_tensor *src, struct gg_tensor *dst);
void ggml_backend_tensor_copy_async(struct gg_backend *from, struct gg_backend *to,
                                    const struct gg_tensor *src, struct gg_tensor *dst);

#ifdef FAKE_PACKS
enum { PACKS = 1 };
#else
enum { PACKS = 0 };
#endif
enum { MAX_SEEN = 1024, OP_MUL_MAT = 4, OP_FLASH_ATTN_EXT = 19 };
#ifdef FAKE_TWO
enum { N_DEVICES = 2 };
#else
enum { N_DEVICES = 1 };
#endif
static char reg_object, device_objects[N_DEVICES], buft_object, packed_object;
static struct gg_reg reg;
static uint64_t seen[MAX_SEEN];
static int n_seen, n_computed;
static bool fails;
static void (*tell_abort)(const char *text);
static void (*tell)(int level, const char *text, void *user);

void ggml_log_set(void (*fn)(int level, const char *text, void *user), void *user) {
    (void)user;
    tell = fn;
}
static void say(int level, const char *text) {
    if (tell) tell(level, text, NULL);
}
/* The device is there without. */
void ggml_backend_load_all(void) { say(4, "a backend does not load\n"); }
void ggml_backend_load_all_from_path(const char *dir) { (void)dir; }
void ggml_set_abort_callback(void (*fn)(const char *text)) { tell_abort = fn; }

/* ---- the device ---- */

size_t ggml_backend_dev_count(void) { return N_DEVICES; }
struct gg_device *ggml_backend_dev_get(size_t index) {
    return index < N_DEVICES ? (struct gg_device *)(void *)&device_objects[index] : NULL;
}
const char *ggml_backend_dev_name(struct gg_device *dev) {
    return dev == ggml_backend_dev_get(0) ? "FAKE0" : "FAKE1";
}
const char *ggml_backend_dev_description(struct gg_device *dev) { return dev ? "a fake" : NULL; }
static _Atomic size_t taken; /* by buffers */
void ggml_backend_dev_memory(struct gg_device *dev, size_t *free_bytes, size_t *total) {
    (void)dev;
    *free_bytes = ((size_t)1 << 28) - taken;
    *total = (size_t)1 << 29;
}
void ggml_backend_dev_get_props(struct gg_device *dev, struct gg_props *props) {
    memset(props, 0, sizeof *props);
    props->name = ggml_backend_dev_name(dev);
    props->type = PACKS                            ? GG_DEVICE_TYPE_CPU
                  : dev != ggml_backend_dev_get(0) ? GG_DEVICE_TYPE_IGPU
                                                   : GG_DEVICE_TYPE_GPU;
    props->caps.events = true;
}
struct gg_reg *ggml_backend_dev_backend_reg(struct gg_device *dev) {
    (void)dev;
    (void)reg_object;
#ifdef FAKE_BAD_VERSION
    reg.api_version = 9;
#else
    reg.api_version = FAKE_API;
#endif
    return &reg;
}
#ifdef FAKE_CUDA
enum { IS_CUDA = 1 };
#else
enum { IS_CUDA = 0 };
#endif
const char *ggml_backend_reg_name(struct gg_reg *r) {
    return !r ? NULL : IS_CUDA ? "CUDA" : "FAKE";
}
static struct gg_buft *packed_type(void) { return (struct gg_buft *)(void *)&packed_object; }
static struct gg_buft **extra_bufts(struct gg_device *dev) {
    static struct gg_buft *list[2];
    list[0] = dev ? packed_type() : NULL;
    return list;
}
void *ggml_backend_reg_get_proc_address(struct gg_reg *r, const char *name) {
    struct gg_buft **(*f)(struct gg_device * dev) = extra_bufts;
    void *p = NULL;
    (void)r;
    if (PACKS && !strcmp(name, "ggml_backend_dev_get_extra_bufts")) memcpy(&p, &f, sizeof p);
    return p;
}
struct gg_buft *ggml_backend_dev_buffer_type(struct gg_device *dev) {
    (void)dev;
    return (struct gg_buft *)(void *)&buft_object;
}
struct gg_buft *ggml_backend_dev_host_buffer_type(struct gg_device *dev) {
    (void)dev;
    return NULL;
}
static float factor_of(const struct gg_tensor *t) { /* 0: it does not scale */
    float factor;
    memcpy(&factor, t->op_params, sizeof factor);
    return t->op == OP_SCALE ? factor : 0;
}
static bool is_packed(const struct gg_tensor *t) {
    return t && t->buffer && t->buffer->buft == packed_type();
}
bool ggml_backend_dev_supports_op(struct gg_device *dev, const struct gg_tensor *op) {
    if (IS_CUDA && dev) return true;
    if (is_packed(
            op->src[0])) /* of views it says so, as ggml's CPU device does, and computes none */
        return op->op == OP_VIEW || (op->op == OP_MUL_MAT && op->src[0]->ne[1] % 4 == 0);
    if (PACKS && op->op == OP_MUL_MAT) return op->type == TYPE_F32;
    if (factor_of(op) == 23 && (op->ne[0] < 32 || op->ne[1] < 6)) return false;
    if (op->op == OP_FLASH_ATTN_EXT && op->src[1]->ne[1] != 1) return false;
    return op->type == TYPE_F32 &&
           (op->op == OP_ADD || op->op == OP_SCALE || op->op == OP_FLASH_ATTN_EXT);
}

/* ---- memory ---- */

struct memory {
    char *addresses, *bytes;
};
static struct memory *memory_of(const struct gg_buffer *b) { return b->context; }
static float *values(const struct gg_tensor *t) {
    struct memory *m = memory_of(t->buffer);
    return (float *)(void *)(m->bytes + ((char *)t->data - m->addresses));
}
static void free_buffer(struct gg_buffer *b) {
    taken -= b->size;
    munmap(memory_of(b)->addresses, b->size);
    if (!PACKS) free(memory_of(b)->bytes);
    free(b->context);
}
struct gg_buffer *ggml_backend_buft_alloc_buffer(struct gg_buft *buft, size_t size) {
    struct memory *m = malloc(sizeof *m);
    const int may = PACKS ? PROT_READ | PROT_WRITE : PROT_NONE;
    if (!size) size = 1; /* to ask about */
    taken += size;
    m->addresses = mmap(NULL, size, may, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    m->bytes = PACKS ? m->addresses : malloc(size);
    memset(m->bytes, 0xFF, size); /* NaN */
    return ggml_backend_buffer_init(buft, (struct gg_buffer_i){.free_buffer = free_buffer}, m,
                                    size);
}
size_t ggml_backend_buft_get_alignment(struct gg_buft *buft) { return buft ? 64 : 0; }
size_t ggml_backend_buft_get_max_size(struct gg_buft *buft) { return buft ? SIZE_MAX : 0; }
/* As CUDA's for copies of K and V. */
static size_t room_behind(const struct gg_tensor *t) {
    size_t n = factor_of(t) == 37 ? 64 : 0;
    for (int i = 1; t->op == OP_FLASH_ATTN_EXT && i <= 2; i++)
        n += (size_t)(t->src[i]->ne[0] * t->src[i]->ne[1] * t->src[i]->ne[2]) * 2;
    return n;
}
size_t ggml_backend_buft_get_alloc_size(struct gg_buft *buft, const struct gg_tensor *t) {
    size_t n = ggml_type_size(t->type) + room_behind(t);
    (void)buft;
    for (int i = 0; i < GG_MAX_DIMS; i++) n += (size_t)(t->ne[i] - 1) * t->nb[i];
    return n + 32; /* more than its bytes, as on GPUs */
}
bool ggml_backend_buft_is_host(struct gg_buft *buft) { return PACKS && buft != packed_type(); }
void *ggml_backend_buffer_get_base(struct gg_buffer *b) { return memory_of(b)->addresses; }
void ggml_backend_buffer_clear(struct gg_buffer *b, uint8_t value) {
    memset(memory_of(b)->bytes, value, b->size);
}
int ggml_backend_tensor_alloc(struct gg_buffer *b, struct gg_tensor *t, void *addr) {
    const size_t offset = (size_t)((char *)addr - memory_of(b)->addresses);
    if (t->buffer || t->data || t->view_src ||
        offset + ggml_backend_buft_get_alloc_size(b->buft, t) > b->size)
        abort();
    t->buffer = b;
    t->data = addr;
    return 0;
}
int ggml_backend_view_init(struct gg_tensor *t) {
    if (t->buffer || !t->view_src || !t->view_src->buffer) abort();
    t->buffer = t->view_src->buffer;
    t->data = (char *)t->view_src->data + t->view_offs;
    return 0;
}
void ggml_backend_tensor_set(struct gg_tensor *t, const void *data, size_t offset, size_t size) {
    if (offset + size > t->nb[3] * (size_t)t->ne[3]) abort(); /* as ggml */
    memcpy((char *)values(t) + offset, data, size);
    if (!is_packed(t)) return;
    if (offset || size != (size_t)(t->ne[0] * t->ne[1]) * sizeof(float)) abort();
    for (int64_t i = 0; i < t->ne[0] * t->ne[1]; i++) values(t)[i] *= -1;
    printf("FAKE0: %lld rows are packed\n", (long long)t->ne[1]);
}
void ggml_backend_tensor_copy(const struct gg_tensor *src, struct gg_tensor *dst) {
    memcpy(values(dst), values(src), src->nb[3] * (size_t)src->ne[3]);
}
void ggml_backend_tensor_get(const struct gg_tensor *t, void *data, size_t offset, size_t size) {
    if (is_packed(t)) abort();
    memcpy(data, (char *)values(t) + offset, size);
}

/* ---- streams ---- */

enum { MAX_STREAMS = 64 };
struct work {
    enum { COMPUTE, SET, GET, COPY, WAIT } kind;
    struct gg_cgraph *graph;
    struct gg_tensor from, to;
    const void *data; /* of SET; read when it runs */
    void *out;        /* of GET */
    size_t offset, size;
    struct stream *other; /* of WAIT: until it has done so many */
    size_t until;
};
struct stream {
    struct gg_backend base;
    struct gg_device *device;
    bool used;
    struct work *work; /* [n] from number `first` on */
    size_t first, n, cap, done;
};
struct event {
    struct gg_device *device;
    struct stream *of;
    size_t at;
};
static struct stream streams[MAX_STREAMS]; /* they stay, because events name them */

static struct stream *stream_of(struct gg_backend *b) { return (struct stream *)(void *)b; }

static void multiply(const struct gg_tensor *t) {
    const struct gg_tensor *a = t->src[0], *b = t->src[1];
    if (t->op_params[0] == GG_PREC_F32) printf("FAKE0: a product in F32\n");
    for (int64_t k = 0; k < t->ne[0] * t->ne[1]; k++) {
        const float *x = values(a) + k % t->ne[0] * a->ne[0];
        const float *y = values(b) + k / t->ne[0] * a->ne[0];
        float sum = 0;
        for (int64_t i = 0; i < a->ne[0]; i++) sum += x[i] * y[i];
        values(t)[k] = is_packed(a) ? -sum : sum;
    }
}
static void attend(const struct gg_tensor *t) { /* a query to one key */
    const struct gg_tensor *v = t->src[2];
    if (t->op_params[3] == GG_PREC_F32) printf("FAKE0: attention in F32\n");
    const int64_t group = t->ne[1] / v->ne[2];
    for (int64_t k = 0; k < t->ne[0] * t->ne[1]; k++)
        values(t)[k] = values(v)[k / t->ne[0] / group * v->ne[0] + k % t->ne[0]];
    memset(values(t) + t->ne[0] * t->ne[1], 0xFF, room_behind(t));
}
/* Until another process has made the file, or a minute. */
static bool waits_for_file(void) {
    const char *path = getenv("SHEAF_TEST_WAITS_FOR");
    for (int i = 0; i < 600 && path; i++, usleep(100000))
        if (!access(path, F_OK)) return true;
    return false;
}
static void compute_node(const struct gg_tensor *t) {
    if (t->op == OP_FLASH_ATTN_EXT) {
        attend(t);
        return;
    }
    if (t->op == OP_MUL_MAT) {
        multiply(t);
        return;
    }
    if (is_packed(t->src[0])) abort();
    if (factor_of(t) == 41 && !waits_for_file()) return;
    for (int64_t k = 0; k < t->ne[0] * t->ne[1] * t->ne[2] * t->ne[3]; k++) {
        const float a = values(t->src[0])[k];
        if (t->op == OP_ADD) values(t)[k] = a + values(t->src[1])[k];
        if (t->op == OP_SCALE) values(t)[k] = a * factor_of(t);
    }
    if (factor_of(t) == 19) usleep(8000000);
}

static void run_until(struct stream *s, size_t until) {
    while (s->done < until) {
        struct work *w = &s->work[s->done++ - s->first];
        for (int i = 0; w->kind == COMPUTE && i < w->graph->n_nodes; i++)
            compute_node(w->graph->nodes[i]);
        if (w->kind == SET) ggml_backend_tensor_set(&w->to, w->data, w->offset, w->size);
        if (w->kind == GET) ggml_backend_tensor_get(&w->from, w->out, w->offset, w->size);
        if (w->kind == COPY) ggml_backend_tensor_copy(&w->from, &w->to);
        if (w->kind == WAIT) run_until(w->other, w->until);
    }
}
static void submit(struct gg_backend *b, struct work w) {
    struct stream *s = stream_of(b);
    if (s->n == s->cap) {
        s->cap = s->cap ? 2 * s->cap : 64;
        s->work = realloc(s->work, s->cap * sizeof *s->work);
    }
    s->work[s->n++] = w;
    if (PACKS) ggml_backend_synchronize(b); /* a CPU computes at once */
}
void ggml_backend_synchronize(struct gg_backend *b) {
    struct stream *s = stream_of(b);
    run_until(s, s->first + s->n);
    s->first = s->done;
    s->n = 0;
}

struct gg_backend *ggml_backend_dev_init(struct gg_device *dev, const char *params) {
    fails = params && !strcmp(params, "fail");
    for (int i = 0; i < MAX_STREAMS && dev; i++)
        if (!streams[i].used)
            return streams[i].used = true, streams[i].device = dev, &streams[i].base;
    return NULL;
}
void ggml_backend_free(struct gg_backend *b) {
    printf("FAKE0: %d computes of %d graphs\n", n_computed, n_seen);
    ggml_backend_synchronize(b);
    stream_of(b)->used = false;
}
int ggml_backend_graph_compute_async(struct gg_backend *b, struct gg_cgraph *g) {
    bool known = false;
    if (fails) {
        static int n;
        say(2, "it computes\n");
        if (n++ == 1) say(4, "it has no memory\n"); /* of other failures it says nothing */
        say(3, "it may be lost\n");
        say(5, "...\n");
        return GG_STATUS_FAILED;
    }
    uint64_t uid = (uint64_t)(uintptr_t)g;
    GG_SINCE_0_10(uid = g->uid;)
    for (int i = 0; i < n_seen; i++) known = known || seen[i] == uid;
    if (!known && n_seen < MAX_SEEN) seen[n_seen++] = uid;
    n_computed++;
    for (int i = 0; i < g->n_nodes; i++) {
        if (factor_of(g->nodes[i]) == 13) return GG_STATUS_FAILED;
        if (factor_of(g->nodes[i]) == 17) usleep(2500000);
        if (factor_of(g->nodes[i]) == 29) {
            if (tell_abort) tell_abort("fake-device.c:1: GGML_ASSERT(false) failed");
            abort();
        }
    }
    submit(b, (struct work){.kind = COMPUTE, .graph = g});
    return GG_STATUS_SUCCESS;
}
void ggml_backend_tensor_set_async(struct gg_backend *b, struct gg_tensor *t, const void *data,
                                   size_t offset, size_t size) {
    submit(b, (struct work){.kind = SET, .to = *t, .data = data, .offset = offset, .size = size});
}
void ggml_backend_tensor_get_async(struct gg_backend *b, const struct gg_tensor *t, void *data,
                                   size_t offset, size_t size) {
    submit(b, (struct work){.kind = GET, .from = *t, .out = data, .offset = offset, .size = size});
}
void ggml_backend_tensor_copy_async(struct gg_backend *from, struct gg_backend *to,
                                    const struct gg_tensor *src, struct gg_tensor *dst) {
    if (from == to) abort();
    submit(to, (struct work){.kind = COPY, .from = *src, .to = *dst});
    printf("FAKE0: a copy between streams\n");
}
void *ggml_backend_event_new(struct gg_device *dev) {
    struct event *e = dev ? calloc(1, sizeof *e) : NULL;
    if (e) e->device = dev;
    return e;
}
void ggml_backend_event_free(void *event) { free(event); }
void ggml_backend_event_record(void *event, struct gg_backend *b) {
    struct stream *s = stream_of(b);
    struct event *e = event;
    if (e->device != s->device) abort();
    e->of = s;
    e->at = s->first + s->n;
}
void ggml_backend_event_wait(struct gg_backend *b, void *event) {
    const struct event *e = event;
    if (e->device != stream_of(b)->device) abort();
    if (e->of) submit(b, (struct work){.kind = WAIT, .other = e->of, .until = e->at});
}
void ggml_backend_event_synchronize(void *event) {
    const struct event *e = event;
    if (e->of) run_until(e->of, e->at);
}

size_t ggml_graph_overhead_custom(size_t size, bool grads) { return grads ? 0 : size * 64; }
struct gg_cgraph *ggml_new_graph_custom(void *ctx, size_t size, bool grads) {
    if (size > MAX_NODES || grads) abort();
    return ggml_new_graph(ctx);
}
#ifndef GG_BEFORE_0_10
uint64_t ggml_graph_next_uid(void) {
    static uint64_t last = 100;
    return ++last;
}
#endif
