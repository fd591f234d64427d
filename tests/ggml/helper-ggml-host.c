/* A program of ggml's in small: loads a library that stands for ggml and the plugin, and computes on
 * its devices: SHEAF, or SHEAF0, SHEAF1, ... if it has several.
 *     helper-ggml-host LIBRARY PLUGIN API [idle | close | child | many | ...]
 * Prints "refused" if the plugin stays out, else "ok" when all results were right. idle: waits for a
 * signal after the first graph. stays: the same, and does not take it. busy: computes the graph again
 * and again until it fails. lives: the same, and goes on afterwards. count: counts the signals that ask it to end. close: as a host of
 * another API does, unloads the plugin at once. child: starts itself again, as llama-server's router
 * does, with the mode close. many: thousands of graphs, and whether memory is lost. buffers: hundreds of
 * buffers of weights, few at a time. room: free memory while a second model comes and goes. room-beside: the
 * same while a graph is computed. layer: a
 * model's layer, node by node. fault: an op that fails on one rank. fault-in-chain: the same on the
 * second device, for whose results the third waits. slow: an op that takes longer than the limit of a
 * collective. queue: one whose device is still at it when its queue is waited for. exit: a signal's
 * handler ends the program while a graph is computed. fork: children without exec that free and compute.
 * copies-not: a device has no copies. inputs: large ones. beside: two devices compute at the same time.
 * second FILE: a second library stands for a ggml, too. lacks MIB: a weight of that size, which may be more
 * than there is. */
#include <malloc.h>
#include <math.h>
#include <pthread.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <unistd.h>

#include "ggml_host.h"
#include "sanitizer.h"

enum { N = 96, M = 4, THREADS = 4, MAX_DEVICES = 8 };

/* ---- checks ---- */

struct model {
    void *ctx;
    struct gg_buffer *weights, *work;
    struct gg_tensor *w, *x, *sum, *out;
    float values[N * M];
};

static void make(struct model *m) {
    typedef void *(*init_fn)(struct gg_init_params);
    typedef void (*usage_fn)(struct gg_buffer *, int);
    size_t at = 0, at_work = 0;
    m->ctx = CALL(init_fn, "ggml_init")((struct gg_init_params){.mem_size = 1 << 20});
    m->weights = alloc(8192);
    m->work = alloc(16384);
    CALL(usage_fn, "ggml_backend_buffer_set_usage")(m->weights, GG_USAGE_WEIGHTS);
    CALL(usage_fn, "ggml_backend_buffer_set_usage")(m->work, GG_USAGE_COMPUTE);
    m->w = tensor(m->ctx, N, M, "w");
    m->x = tensor(m->ctx, N, M, "x");
    put_at(m->weights, m->w, &at);
    put_at(m->work, m->x, &at_work);
    m->sum = add(m->ctx, m->w, m->x);
    m->out = scale(m->ctx, m->sum, 3);
    put_at(m->work, m->sum, &at_work);
    put_at(m->work, m->out, &at_work);
    for (int i = 0; i < N * M; i++) m->values[i] = (float)i / 7;
    set(m->w, m->values, 0, sizeof m->values);
    set(m->x, m->values, 0, sizeof m->values);
}

static void check_sum(const struct model *m, float w_add, float x_add, const char *what) {
    float got[N * M];
    int wrong = 0;
    get(m->out, got, sizeof got);
    for (int i = 0; i < N * M; i++)
        wrong += got[i] != (m->values[i] + w_add + (m->values[i] + x_add)) * 3;
    expect(!wrong, what);
}

static void check_graphs(struct model *m) {
    float moved[N * M];
    struct gg_cgraph *g = graph_of(m->ctx, m->out, 11);
    expect(compute(g) == GG_STATUS_SUCCESS, "status of a graph");
    check_sum(m, 0, 0, "the first result");
    for (int i = 0; i < N * M; i++) moved[i] = m->values[i] + 2;
    set(m->x, moved, 0, sizeof moved);
    expect(compute(g) == GG_STATUS_SUCCESS, "status of the graph again");
    check_sum(m, 0, 2, "the result of a changed input");
    set(m->w, moved, 0, sizeof moved);
    set_uid(g, 12); /* built anew, the same */
    expect(compute(g) == GG_STATUS_SUCCESS, "status of a graph like the first");
    check_sum(m, 2, 2, "the result of a changed weight");
    float back[N * M];
    get(m->w, back, sizeof back);
    expect(!memcmp(back, moved, sizeof back), "a weight read back");
    set(m->w, m->values, sizeof(float) * N, sizeof(float) * N);
    get(m->w, back, sizeof back);
    expect(!memcmp(back + N, m->values, sizeof(float) * N) && back[0] == moved[0],
           "a part of a weight written");
}

/* A node that writes over a part of a weight, as caches are cleared. */
static void check_in_place(struct model *m) {
    float before[N * M], after[N * M];
    get(m->w, before, sizeof before);
    struct gg_tensor *row = view(m->ctx, m->w, N, sizeof(float) * N * 2);
    struct gg_tensor *half = scale(m->ctx, row, 0.5f);
    half->view_src = m->w;
    half->view_offs = row->view_offs;
    half->data = row->data;
    half->buffer = m->w->buffer;
    expect(compute(graph_of(m->ctx, half, 13)) == GG_STATUS_SUCCESS, "status of a node in place");
    get(m->w, after, sizeof after);
    for (int i = 0; i < N * M; i++)
        if (i / N == 2) before[i] *= 0.5f;
    expect(!memcmp(before, after, sizeof after), "a row written in place");
    m->weights->iface.clear(m->weights, 0);
    get(m->w, after, sizeof after);
    expect(after[0] == 0 && after[N * M - 1] == 0, "a cleared buffer");
}

/* The scheduler's copy of a view of another device's tensor has the strides of the view. */
static void check_strided_leaf(struct model *m) {
    enum { WIDTH = N / 2 };
    float got[WIDTH * M];
    int wrong = 0;
    struct gg_tensor *half = tensor(m->ctx, WIDTH, M, "SHEAF#half#0");
    half->nb[1] = m->x->nb[1];
    half->nb[2] = half->nb[3] = half->nb[1] * M;
    half->data = m->x->data;
    half->buffer = m->x->buffer;
    set(m->x, m->values, 0, sizeof m->values);
    struct gg_tensor *twice = scale(m->ctx, half, 2);
    twice->data = m->out->data;
    twice->buffer = m->out->buffer;
    expect(dev->iface.supports_op(dev, twice), "SCALE of strided rows is supported");
    expect(compute(graph_of(m->ctx, twice, 15)) == GG_STATUS_SUCCESS, "status of a strided leaf");
    get(twice, got, sizeof got);
    for (int i = 0; i < WIDTH * M; i++) wrong += got[i] != 2 * m->values[i / WIDTH * N + i % WIDTH];
    expect(!wrong, "the result of a strided leaf");
}

/* Sums of views of views of an input, as in a part of a graph that has none of the views for nodes: more tensors
 * than eight a node. */
static void check_long_views(struct model *m) {
    typedef void *(*init_fn)(struct gg_init_params);
    typedef void (*usage_fn)(struct gg_buffer *, int);
    enum { SUMS = 48, DEEP = 14 };
    float got[N];
    size_t at = 0;
    int wrong = 0;
    void *ctx = CALL(init_fn, "ggml_init")((struct gg_init_params){.mem_size = 1 << 20});
    struct gg_buffer *work = alloc((SUMS + 2) * sizeof m->values);
    CALL(usage_fn, "ggml_backend_buffer_set_usage")(work, GG_USAGE_COMPUTE);
    struct gg_tensor *x = tensor(ctx, N, M, "x"), *sum = tensor(ctx, N, 1, "sum");
    put_at(work, x, &at);
    put_at(work, sum, &at);
    set(x, m->values, 0, sizeof m->values);
    set(sum, m->values, 0, sizeof got);
    struct gg_cgraph *g = graph_of(ctx, sum, 17);
    g->n_nodes = 0;
    for (int i = 0; i < SUMS; i++) {
        struct gg_tensor *v = x;
        for (int k = 0; k < DEEP; k++) v = view(ctx, v, N, k ? 0 : sizeof(float) * (size_t)i);
        sum = add(ctx, sum, v);
        sum->flags |= GG_FLAG_COMPUTE;
        put_at(work, sum, &at);
        g->nodes[g->n_nodes++] = sum;
    }
    expect(compute(g) == GG_STATUS_SUCCESS, "status of a graph of many operands");
    get(sum, got, sizeof got);
    for (int i = 0; i < N; i++) {
        float want = m->values[i];
        for (int k = 0; k < SUMS; k++) want += m->values[i + k];
        wrong += got[i] != want;
    }
    expect(!wrong, "the result of a graph of many operands");
    work->iface.free_buffer(work);
    CALL(void (*)(void *), "ggml_free")(ctx);
}

/* llama.cpp's loader asks for a place for frequency factors by a ROPE that rotates nothing. Computed, it is a
 * copy. */
static void check_no_rotation(struct model *m) {
    typedef struct gg_tensor *(*make_fn)(void *, int, int64_t, int64_t, int64_t, int64_t);
    enum { ROPE = 23, I32 = 26 };
    const int32_t positions[M] = {3, 1, 4, 1};
    float got[N * M];
    size_t at = sizeof got, at_work = 12288;
    struct gg_tensor *t = CALL(make_fn, "ggml_new_tensor_4d")(m->ctx, 0, N, 1, M, 1);
    t->op = ROPE;
    t->src[0] = CALL(make_fn, "ggml_new_tensor_4d")(m->ctx, 0, N, 1, M, 1);
    t->src[1] = CALL(make_fn, "ggml_new_tensor_4d")(m->ctx, I32, M, 1, 1, 1);
    t->src[2] = CALL(make_fn, "ggml_new_tensor_4d")(m->ctx, 0, N / 2, 1, 1, 1);
    t->src[0]->data = m->x->data;
    t->src[0]->buffer = m->x->buffer;
    t->data = m->out->data;
    t->buffer = m->out->buffer;
    put_at(m->weights, t->src[2], &at);
    put_at(m->work, t->src[1], &at_work);
    set(m->x, m->values, 0, sizeof m->values);
    set(t->src[1], positions, 0, sizeof positions);
    expect(dev->iface.supports_op(dev, t), "a ROPE of no dimensions is supported");
    expect(compute(graph_of(m->ctx, t, 16)) == GG_STATUS_SUCCESS, "status of a ROPE of nothing");
    get(t, got, sizeof got);
    expect(!memcmp(got, m->values, sizeof got), "the result of a ROPE of nothing");
}

/* ggml does not start the angle anew at a section that comes after an empty one: left to it. */
static void check_sections_of_vision(struct model *m) {
    typedef struct gg_tensor *(*make_fn)(void *, int, int64_t, int64_t, int64_t, int64_t);
    enum { ROPE = 23, I32 = 26, VISION = 24, FIRST_SECTION = 11 };
    const float one = 1, base = 10000;
    struct gg_tensor *t = CALL(make_fn, "ggml_new_tensor_4d")(m->ctx, 0, N, 1, M, 1);
    t->op = ROPE;
    t->src[0] = CALL(make_fn, "ggml_new_tensor_4d")(m->ctx, 0, N, 1, M, 1);
    t->src[1] = CALL(make_fn, "ggml_new_tensor_4d")(m->ctx, I32, 4 * M, 1, 1, 1);
    t->op_params[1] = N / 2;
    t->op_params[2] = VISION;
    memcpy(&t->op_params[5], &base, sizeof base);
    memcpy(&t->op_params[6], &one, sizeof one);
    memcpy(&t->op_params[8], &one, sizeof one);
    t->op_params[FIRST_SECTION] = t->op_params[FIRST_SECTION + 2] = 1;
    expect(!dev->iface.supports_op(dev, t), "an empty section before another is refused");
    t->op_params[FIRST_SECTION + 1] = 1;
    expect(dev->iface.supports_op(dev, t), "ROPE of a vision encoder is supported");
}

/* Masks of F16 that are filled: of sparse attention. */
static void check_four_dimensions(struct model *m) {
    typedef struct gg_tensor *(*make_fn)(void *, int, int64_t, int64_t, int64_t, int64_t);
    float got[N * M];
    int wrong = 0;
    struct gg_tensor *x = CALL(make_fn, "ggml_new_tensor_4d")(m->ctx, 0, N / 2, M / 2, 2, 2);
    x->data = m->x->data;
    x->buffer = m->x->buffer;
    set(x, m->values, 0, sizeof got);
    struct gg_tensor *twice = scale(m->ctx, x, 2);
    twice->data = m->out->data;
    twice->buffer = m->out->buffer;
    expect(compute(graph_of(m->ctx, twice, 18)) == GG_STATUS_SUCCESS, "status of four dimensions");
    get(twice, got, sizeof got);
    for (int i = 0; i < N * M; i++) wrong += got[i] != 2 * m->values[i];
    expect(!wrong, "the result of an input of four dimensions");
}

static void check_fill_of_halves(struct model *m) {
    typedef struct gg_tensor *(*make_fn)(void *, int, int64_t, int64_t, int64_t, int64_t);
    enum { FILL = 24, F16 = 1, MINUS_INFINITY = 0xfc00 };
    const float value = -INFINITY;
    uint16_t got[N * M];
    int wrong = 0;
    struct gg_tensor *t = CALL(make_fn, "ggml_new_tensor_4d")(m->ctx, F16, N, M, 1, 1);
    t->op = FILL;
    t->src[0] = m->x;
    memcpy(t->op_params, &value, sizeof value);
    t->data = m->out->data;
    t->buffer = m->out->buffer;
    expect(dev->iface.supports_op(dev, t), "FILL of F16 is supported");
    expect(compute(graph_of(m->ctx, t, 17)) == GG_STATUS_SUCCESS, "status of a FILL of F16");
    get(t, got, sizeof got);
    for (int i = 0; i < N * M; i++) wrong += got[i] != MINUS_INFINITY;
    expect(!wrong, "the result of a FILL of F16");
}

/* Nodes one by one, as tests and callbacks do it: each result is read by the next part. */
static void check_parts(struct model *m) {
    struct gg_cgraph *g = graph_of(m->ctx, m->out, 0), part = *g;
    set(m->w, m->values, 0, sizeof m->values);
    set(m->x, m->values, 0, sizeof m->values);
    part.n_nodes = 1;
    expect(compute(&part) == GG_STATUS_SUCCESS, "status of the first part");
    part.nodes = g->nodes + 1;
    expect(compute(&part) == GG_STATUS_SUCCESS, "status of the second part");
    check_sum(m, 0, 0, "the result of two parts");
}

/* A callback reads the last node of its part, and the operands of it, here a view of what was computed
 * before it. A node that was computed in the place of its operand leaves its own value there. */
static void check_operands(struct model *m) {
    float moved[N * M], got[N * M];
    struct gg_tensor *rows = view(m->ctx, m->sum, N * 2, sizeof(float) * N);
    struct gg_tensor *twice = scale(m->ctx, rows, 2), *places[] = {m->out, m->sum};
    set(m->w, m->values, 0, sizeof m->values);
    for (int k = 0; k < 2; k++) {
        int wrong = 0;
        for (int i = 0; i < N * M; i++) moved[i] = m->values[i] + (float)(5 + k);
        set(m->x, moved, 0, sizeof moved);
        twice->data = places[k]->data;
        twice->buffer = m->work;
        expect(compute(graph_of(m->ctx, twice, 0)) == GG_STATUS_SUCCESS, "status of a part");
        get(twice, got, sizeof(float) * N * 2);
        for (int i = 0; i < N * 2; i++) wrong += got[i] != 2 * (m->values[N + i] + moved[N + i]);
        expect(!wrong, "the last node of a part");
        if (k) continue;
        get(rows, got, sizeof(float) * N * 2);
        for (int i = 0; i < N * 2; i++) wrong += got[i] != m->values[N + i] + moved[N + i];
        expect(!wrong, "an operand of the last node of a part");
    }
}

/* Memory that is filled before a graph uses it, after its buffer was cleared, and when another tensor
 * was there. */
static void check_fill(struct model *m) {
    float got[N * M], value;
    size_t at = 4096, at_work = 8192;
    memset(&value, 0x3f, sizeof value);
    m->weights->iface.clear(m->weights, 0);
    struct gg_tensor *f[] = {tensor(m->ctx, N, M, "f"), tensor(m->ctx, N / 2, M * 2, "g")};
    for (int k = 0; k < 2; k++) {
        int wrong = 0;
        struct gg_tensor *same = scale(m->ctx, f[k], 1);
        put_at(m->weights, f[k], &at);
        put_at(m->work, same, &at_work);
        fill_bytes(f[k], 0x3f, sizeof(float) * N, sizeof(float) * N);
        expect(compute(graph_of(m->ctx, same, 61 + (uint64_t)k)) == GG_STATUS_SUCCESS,
               "status of a graph of filled memory");
        get(same, got, sizeof got);
        for (int i = 0; i < N * M; i++) wrong += got[i] != (i / N == 1 ? value : 0);
        get(f[k], got, sizeof got);
        for (int i = 0; i < N * M; i++) wrong += got[i] != (i / N == 1 ? value : 0);
        expect(!wrong, "memory that was filled");
        fill_bytes(f[k], 0, 0, sizeof got);
        at = 4096;
    }
}

/* A buffer that is not of whole pages, one of which the system does not take back: it is locked. */
static void check_clear(struct model *m) {
    enum { BYTES = 5 * 65536 + 3 * 4096 + 100 };
    static uint8_t got[BYTES];
    struct gg_buffer *buffer = alloc(BYTES);
    struct gg_tensor *t = tensor(m->ctx, BYTES / 4, 1, "cleared");
    size_t at = 0, wrong = 0;
    put_at(buffer, t, &at);
    fill_bytes(t, 0x3f, 0, BYTES);
    expect(!mlock(t->data, 1), "a page is locked");
    buffer->iface.clear(buffer, 0);
    get(t, got, BYTES);
    for (size_t i = 0; i < BYTES; i++) wrong += got[i] != 0;
    expect(!wrong, "memory of a cleared buffer");
    buffer->iface.free_buffer(buffer);
}

/* Two tensors of one place by turns, each with its graph: what is computed is what was set last, and the
 * one before keeps no memory. */
static void check_reshape(void) {
    enum { SIDE = 1024, BYTES = SIDE * SIDE * 4, TURNS = 24 };
    void *ctx = CALL(void *(*)(struct gg_init_params),
                     "ggml_init")((struct gg_init_params){.mem_size = 1 << 20});
    struct gg_buffer *buffer = alloc(BYTES), *work = alloc(4096);
    struct gg_tensor *a[2], *y[2];
    struct gg_cgraph *g[2];
    float *values = malloc(BYTES), got[N];
    long before = 0;
    CALL(void (*)(struct gg_buffer *, int), "ggml_backend_buffer_set_usage")
    (work, GG_USAGE_COMPUTE);
    for (int k = 0; k < 2; k++) {
        size_t at = 0, at_work = 0;
        a[k] = large(ctx, SIDE << k, SIDE >> k, "a");
        put_at(buffer, a[k], &at);
        y[k] = scale(ctx, view(ctx, a[k], N, BYTES - sizeof got), 2);
        put_at(work, y[k], &at_work);
        g[k] = graph_of(ctx, y[k], 71 + (uint64_t)k);
    }
    for (int i = 0; i < TURNS; i++) {
        int wrong = 0;
        if (i == 4) before = mapped_mib();
        for (int k = 0; k < SIDE * SIDE; k++) values[k] = (float)(i + k % 1000);
        /* the second graph of a pair reads what the other tensor was set to */
        if (i % 3) set(a[i & 1], values, 0, BYTES);
        expect(compute(g[i & 1]) == GG_STATUS_SUCCESS, "status by turns");
        get(y[i & 1], got, sizeof got);
        for (int k = 0; k < N; k++)
            wrong +=
                got[k] != (i ? 2 * (float)((i % 3 ? i : i - 1) + (SIDE * SIDE - N + k) % 1000) : 0);
        expect(!wrong, "the result of a tensor in the place of another");
    }
    expect(SANITIZED || mapped_mib() - before < 40, "the tensor before keeps no memory");
    buffer->iface.free_buffer(buffer);
    work->iface.free_buffer(work);
    CALL(void (*)(void *), "ggml_free")(ctx);
    free(values);
}

/* A weight is read while graphs of another thread use ever more of its buffer. */
enum { WEIGHTS = 140 };
static struct gg_buffer *growing;
static void *use_more(void *unused) {
    struct gg_buffer *work = alloc(4096);
    size_t at = 128;
    (void)unused;
    CALL(void (*)(struct gg_buffer *, int), "ggml_backend_buffer_set_usage")
    (work, GG_USAGE_COMPUTE);
    for (int i = 1; i < WEIGHTS; i++) {
        struct gg_init_params params = {.mem_size = 1 << 20};
        void *ctx = CALL(void *(*)(struct gg_init_params), "ggml_init")(params);
        size_t at_work = 0;
        struct gg_tensor *w = tensor(ctx, 32, 1, "w"), *y = scale(ctx, w, 2);
        put_at(growing, w, &at);
        put_at(work, y, &at_work);
        expect(compute(graph_of(ctx, y, 0)) == GG_STATUS_SUCCESS, "status beside a reader");
        CALL(void (*)(void *), "ggml_free")(ctx);
    }
    work->iface.free_buffer(work);
    return NULL;
}
static void check_reader(struct model *m) {
    pthread_t thread;
    float got[32];
    int wrong = 0;
    size_t at = 0;
    growing = alloc(WEIGHTS * 128);
    struct gg_tensor *first = tensor(m->ctx, 32, 1, "first");
    put_at(growing, first, &at);
    set(first, m->values, 0, sizeof got);
    pthread_create(&thread, NULL, use_more, NULL);
    for (int i = 0; i < 2000; i++) {
        get(first, got, sizeof got);
        wrong += memcmp(got, m->values, sizeof got) != 0;
    }
    pthread_join(thread, NULL);
    expect(!wrong, "a weight that is read beside graphs");
    growing->iface.free_buffer(growing);
}

static void check_refusals(struct model *m) {
    struct gg_tensor *t = scale(m->ctx, m->w, 1);
    expect(dev->iface.supports_op(dev, t), "SCALE is supported");
    t->op = 6; /* a name that no table has */
    expect(!dev->iface.supports_op(dev, t), "an unknown op is not supported");
    expect(compute(graph_of(m->ctx, t, 14)) == GG_STATUS_FAILED, "an unknown op fails the graph");
}

/* An op that fails while it is computed, here for a row that the weight does not have, fails the graph
 * and not the job. */
static void check_failure(struct model *m) {
    typedef struct gg_tensor *(*make_fn)(void *, int, int64_t, int64_t, int64_t, int64_t);
    enum { SET_ROWS = 8, I64 = 27 };
    int64_t rows[M] = {3, 2, 99, 0};
    float got[N * M];
    int wrong = 0;
    struct gg_tensor *t = scale(m->ctx, m->x, 1);
    struct gg_tensor *ids = CALL(make_fn, "ggml_new_tensor_4d")(m->ctx, I64, M, 1, 1, 1);
    size_t at = 12288;
    put_at(m->work, ids, &at);
    t->op = SET_ROWS;
    memset(t->op_params, 0, sizeof t->op_params);
    t->src[1] = ids;
    t->src[2] = t->view_src = m->w;
    t->data = m->w->data;
    t->buffer = m->w->buffer;
    struct gg_cgraph *g = graph_of(m->ctx, t, 21);
    set(m->w, m->values, 0, sizeof m->values);
    set(m->x, m->values, 0, sizeof m->values);
    set(ids, rows, 0, sizeof rows);
    const int status = compute(g);
    if (n_devices == 1)
        expect(status == GG_STATUS_FAILED, "status of an op that fails");
    else /* known when its device was waited for, or at once */
        expect(status == GG_STATUS_FAILED || compute(g) == GG_STATUS_FAILED, "a failure is told");
    rows[2] = 1;
    set(ids, rows, 0, sizeof rows);
    expect(compute(g) == GG_STATUS_SUCCESS, "status of the graph after the failure");
    get(m->w, got, sizeof got);
    for (int i = 0; i < N * M; i++) wrong += got[i] != m->values[rows[i / N] * N + i % N];
    expect(!wrong, "the result after the failure");
}

/* A fake device is a member on one rank only, and fails to scale by 13. */
static void check_fault(struct model *m) {
    float got[N * M];
    int numbers = 0;
    size_t at = 8192;
    struct gg_tensor *t = scale(m->ctx, m->sum, 13);
    put_at(m->work, t, &at);
    set(m->w, m->values, 0, sizeof m->values);
    set(m->x, m->values, 0, sizeof m->values);
    expect(dev->iface.supports_op(dev, m->sum), "ADD on a device that rank 0 lacks");
    const int status = compute(graph_of(m->ctx, t, 31));
    expect(status == (n_devices == 1 ? GG_STATUS_FAILED : GG_STATUS_SUCCESS), "status of a fault");
    get(t, got, sizeof got);
    for (int i = 0; i < N * M; i++) numbers += got[i] == got[i];
    expect(!numbers, "the results of a failed graph are NaN");
    if (n_devices > 1)
        expect(compute(graph_of(m->ctx, m->out, 32)) == GG_STATUS_FAILED, "the fault is told");
    expect(compute(graph_of(m->ctx, m->out, 33)) == GG_STATUS_SUCCESS, "status after the fault");
    check_sum(m, 0, 0, "the result after the fault");
}

/* Longer than a collective may take. */
static void check_slow(struct model *m, float factor) {
    float got[N * M];
    int wrong = 0;
    size_t at = 8192;
    struct gg_tensor *t = scale(m->ctx, m->sum, factor);
    put_at(m->work, t, &at);
    set(m->w, m->values, 0, sizeof m->values);
    set(m->x, m->values, 0, sizeof m->values);
    expect(start(graph_of(m->ctx, t, 37)) == GG_STATUS_SUCCESS, "status of a slow graph");
    const struct gg_tensor *other = scale(m->ctx, m->sum, 41);
    expect(dev->iface.supports_op(dev, other), "a question to ranks that compute");
    get(t, got, sizeof got);
    for (int i = 0; i < N * M; i++) wrong += got[i] != 2 * m->values[i] * factor;
    expect(!wrong, "the result of a slow graph");
}

static void free_nothing(struct gg_buffer *b) { (void)b; }
static int32_t type_gpu(struct gg_device *d) {
    (void)d;
    return GG_DEVICE_TYPE_GPU;
}
static int32_t type_meta(struct gg_device *d) {
    (void)d;
    return GG_DEVICE_TYPE_META;
}

/* Before it loads a model, llama.cpp plans with caches in empty buffers of this type. A result in a
 * buffer of another type is the other device's, but ggml's meta device asks about its own ones. */
static void check_plans(struct model *m) {
    typedef struct gg_buffer *(*init_fn)(struct gg_buft *, struct gg_buffer_i, void *, size_t);
    static struct gg_device gpu = {.iface.get_type = type_gpu},
                            meta = {.iface.get_type = type_meta};
    static struct gg_buft_2 v2[] = {{0}, {.device = &gpu}, {.device = &meta}};
    static struct gg_buft_3 v3[] = {{0}, {.device = &gpu}, {.device = &meta}};
    struct gg_buft *types[4] = {dev->iface.get_buffer_type(dev)};
    for (int i = 0; i < 3; i++)
        types[i + 1] = api == 2 ? (struct gg_buft *)&v2[i] : (struct gg_buft *)&v3[i];
    for (int i = 0; i < 4; i++) {
        struct gg_tensor *cache = tensor(m->ctx, N, M, "cache"), *t = scale(m->ctx, cache, 1);
        cache->buffer = CALL(init_fn, "ggml_backend_buffer_init")(
            types[i], (struct gg_buffer_i){.free_buffer = free_nothing}, NULL, 0);
        t->view_src = cache;
        expect(dev->iface.supports_op(dev, t) == (i == 0 || i == 3), "a result in another buffer");
        free(cache->buffer);
    }
}

/* A result over a weight is copied there, which a device that copies nothing does not do. */
static void check_no_copies(struct model *m) {
    struct gg_tensor *t = scale(m->ctx, m->w, 2);
    expect(dev->iface.supports_op(dev, t), "a result of its own");
    t->view_src = m->w;
    expect(!dev->iface.supports_op(dev, t), "a result over a weight");
}

static void *ask(void *model) {
    struct model m;
    (void)model;
    make(&m);
    for (int i = 0; i < 8; i++) {
        expect(compute(graph_of(m.ctx, m.out, 0)) == GG_STATUS_SUCCESS, "status beside others");
        check_sum(&m, 0, 0, "the result beside others");
    }
    return NULL;
}

static void check_threads(void) {
    pthread_t threads[THREADS];
    for (int i = 0; i < THREADS; i++) pthread_create(&threads[i], NULL, ask, NULL);
    for (int i = 0; i < THREADS; i++) pthread_join(threads[i], NULL);
}

static void check_reg(struct gg_reg *reg) {
    expect(reg->api_version == api, "the API's version");
    expect(!strcmp(reg->iface.get_name(reg), "SHEAF"), "name");
    n_devices = reg->iface.get_device_count(reg);
    expect(!reg->iface.get_device(reg, n_devices), "a device more than there are");
}

static void check_device(struct gg_reg *reg, size_t i) {
    struct gg_props props = {0};
    dev = reg->iface.get_device(reg, i);
    dev->iface.get_props(dev, &props);
    expect(props.type == GG_DEVICE_TYPE_GPU && !props.device_id, "properties");
    expect(props.caps.mmap_support, "llama.cpp would read the whole model into rank 0's memory");
    expect(props.caps.async == (n_devices > 1) && props.caps.events == (n_devices > 1),
           "groups work while the program does");
    printf("%s: %s\n", props.name, props.description);
    backend = dev->iface.init_backend(dev, NULL);
    expect(backend && backend->device == dev && backend->guid, "a backend");
    struct gg_backend *second = dev->iface.init_backend(dev, NULL);
    second->iface.free(second);
}

struct on {
    struct gg_device *dev;
    struct gg_backend *backend;
    struct model m;
};

static void check_all(struct model *m) {
    check_in_place(m);
    check_parts(m);
    check_operands(m);
    check_strided_leaf(m);
    check_long_views(m);
    check_no_rotation(m);
    check_sections_of_vision(m);
    check_four_dimensions(m);
    check_fill_of_halves(m);
    check_refusals(m);
    check_failure(m);
    check_plans(m);
    check_threads();
    check_fill(m);
    check_clear(m);
    check_reshape();
    check_reader(m);
}

static void use(const struct on *o) {
    dev = o->dev;
    backend = o->backend;
}

/* Runs are started on all devices, some with a second run behind the first, and waited for by events
 * in another order. */
static void check_beside(struct on *o) {
    float moved[N * M];
    struct gg_event *event[MAX_DEVICES];
    for (size_t i = 0; i < n_devices; i++) {
        use(&o[i]);
        set(o[i].m.w, o[i].m.values, 0, sizeof moved);
    }
    for (int round = 0; round < 20; round++) {
        for (size_t i = 0; i < n_devices; i++) {
            use(&o[i]);
            for (int k = 0; k < N * M; k++) moved[k] = o[i].m.values[k] + (float)(round + (int)i);
            set(o[i].m.x, o[i].m.values, 0, sizeof moved);
            if (round % 2)
                expect(start(graph_of(o[i].m.ctx, o[i].m.out, 0)) == GG_STATUS_SUCCESS, "a run");
            set(o[i].m.x, moved, 0, sizeof moved);
            expect(start(graph_of(o[i].m.ctx, o[i].m.out, 0)) == GG_STATUS_SUCCESS, "started");
            event[i] = dev->iface.event_new(dev);
            backend->iface.event_record(backend, event[i]);
        }
        for (size_t i = n_devices; i-- > 0;) {
            use(&o[i]);
            if (round % 3) o[0].backend->iface.event_wait(o[0].backend, event[i]);
            if (round % 3 == 1) dev->iface.event_synchronize(dev, event[i]);
            check_sum(&o[i].m, 0, (float)(round + (int)i), "a result of devices side by side");
            dev->iface.event_free(dev, event[i]);
        }
    }
}

/* ---- a chain of devices, as ggml's scheduler makes it of layers ---- */

enum { SLOTS = 4, BATCHES = 24 }; /* copies of each input; batches that go through the chain */
struct link {
    struct gg_tensor *in[SLOTS], *out[SLOTS];
    struct gg_cgraph *graph[SLOTS];
    struct gg_event *used[SLOTS]; /* the run that reads in[slot] */
};

static void make_link(const struct on *o, struct link *l, size_t i) {
    const bool is_last = i == n_devices - 1;
    size_t at = 0;
    use(o);
    struct gg_buffer *b = alloc(1 << 16);
    typedef void (*usage_fn)(struct gg_buffer *, int);
    CALL(usage_fn, "ggml_backend_buffer_set_usage")(b, GG_USAGE_COMPUTE);
    for (int slot = 0; slot < SLOTS; slot++) {
        l->in[slot] = tensor(o->m.ctx, N, M, "SHEAF#h#0");
        put_at(b, l->in[slot], &at);
    }
    const size_t inputs = at;
    for (int slot = 0; slot < SLOTS; slot++) {
        if (!is_last) at = inputs; /* each result is where the one before was */
        l->out[slot] = scale(o->m.ctx, l->in[slot], (float)(i + 2));
        put_at(b, l->out[slot], &at);
        l->graph[slot] = graph_of(o->m.ctx, l->out[slot], 100 + 10 * i + (size_t)slot);
        l->used[slot] = dev->iface.event_new(dev);
    }
}

/* What ggml_backend_sched does with an input of a split that another split has computed. */
static bool pass_on(const struct on *from, const struct link *l, const struct on *to,
                    const struct link *next, int slot) {
    static float h[N * M];
    to->backend->iface.event_wait(to->backend, next->used[slot]);
    if (to->backend->iface.cpy_tensor_async(from->backend, to->backend, l->out[slot],
                                            next->in[slot]))
        return true;
    from->backend->iface.synchronize(from->backend);
    to->dev->iface.event_synchronize(to->dev, next->used[slot]);
    get(l->out[slot], h, sizeof h);
    set(next->in[slot], h, 0, sizeof h);
    return false;
}

/* Batches go through the devices from `first` on, one behind the other. Results are read now and then.
 * Returns the number of copies that waited for a run. */
static int send_batches(const struct on *o, const struct link *links, size_t first) {
    float h[N * M], factor = 1;
    int later = 0;
    for (size_t i = first; i < n_devices; i++) factor *= (float)(i + 2);
    for (int batch = 0; batch < BATCHES; batch++) {
        const int slot = batch % SLOTS;
        for (int k = 0; k < N * M; k++) h[k] = (float)(batch + k);
        o[first].dev->iface.event_synchronize(o[first].dev, links[first].used[slot]);
        set(links[first].in[slot], h, 0, sizeof h);
        for (size_t i = first; i < n_devices; i++) {
            if (i > first) later += pass_on(&o[i - 1], &links[i - 1], &o[i], &links[i], slot);
            use(&o[i]);
            expect(start(links[i].graph[slot]) == GG_STATUS_SUCCESS, "a batch is started");
            backend->iface.event_record(backend, links[i].used[slot]);
        }
        if (batch % 12 != 11 && batch % 7 != 5) continue;
        for (int i = batch - 3; i <= batch; i++) {
            int wrong = 0;
            get(links[n_devices - 1].out[i % SLOTS], h, sizeof h);
            for (int k = 0; k < N * M; k++) wrong += h[k] != (float)(i + k) * factor;
            expect(!wrong, "the result of a chain");
        }
    }
    return later;
}

enum { COPIES = 40 }; /* more than a queue holds */
/* Copies alone, of one run, to tensors that are read with no run behind. */
static void check_copies(struct on *o, int n) {
    float h[N * M];
    struct gg_tensor *to[COPIES];
    size_t at = 0;
    use(&o[2]);
    struct gg_buffer *b = alloc(1 << 17);
    typedef void (*usage_fn)(struct gg_buffer *, int);
    CALL(usage_fn, "ggml_backend_buffer_set_usage")(b, GG_USAGE_COMPUTE);
    for (int i = 0; i < n; i++) {
        to[i] = tensor(o[2].m.ctx, N, M, "SHEAF#h#0");
        put_at(b, to[i], &at);
    }
    use(&o[1]);
    set(o[1].m.w, o[1].m.values, 0, sizeof h);
    set(o[1].m.x, o[1].m.values, 0, sizeof h);
    expect(start(graph_of(o[1].m.ctx, o[1].m.out, 0)) == GG_STATUS_SUCCESS, "a run to copy from");
    for (int i = 0; i < n; i++) {
        if (backend->iface.cpy_tensor_async(backend, o[2].backend, o[1].m.out, to[i])) continue;
        get(o[1].m.out, h, sizeof h);
        set(to[i], h, 0, sizeof h);
    }
    for (int i = 0; i < n; i++) {
        int wrong = 0;
        get(to[i], h, sizeof h);
        for (int k = 0; k < N * M; k++) wrong += h[k] != 6 * o[1].m.values[k];
        expect(!wrong, "one of several copies");
    }
    b->iface.free_buffer(b);
}

/* A run that waits, and whose view of a cache begins elsewhere than in its last run. */
static void check_moved_view_later(struct on *o) {
    float got[N];
    struct gg_tensor *from = o[1].m.out;
    use(&o[2]);
    struct model *m = &o[2].m;
    set(m->w, m->values, 0, sizeof m->values);
    for (int row = 0; row < M; row++) {
        size_t at = 12288;
        int wrong = 0;
        struct gg_tensor *part = view(m->ctx, m->w, N, sizeof(float) * N * (size_t)row);
        part->data = (char *)m->w->data + part->view_offs;
        part->buffer = m->w->buffer;
        struct gg_tensor *t = add(m->ctx, part, view(m->ctx, m->x, N, 0));
        t->src[1]->data = m->x->data;
        t->src[1]->buffer = m->x->buffer;
        put_at(m->work, t, &at);
        use(&o[1]);
        expect(start(graph_of(o[1].m.ctx, from, 0)) == GG_STATUS_SUCCESS, "a run before a view");
        expect(backend->iface.cpy_tensor_async(backend, o[2].backend, from, m->x),
               "a copy before a view");
        use(&o[2]);
        expect(start(graph_of(m->ctx, t, 0)) == GG_STATUS_SUCCESS, "a run whose view moves");
        get(t, got, sizeof got);
        for (int k = 0; k < N; k++)
            wrong += got[k] != m->values[row * N + k] + 6 * o[1].m.values[k];
        expect(!wrong, "the result of a run whose view moves");
    }
}

/* With a device that rank 0 computes for, and, if there are others enough, without. */
static void check_chain(struct on *o) {
    static struct link links[MAX_DEVICES];
    for (size_t i = 0; i < n_devices; i++) make_link(&o[i], &links[i], i);
    const int later = send_batches(o, links, 0);
    if (n_devices > 2) {
        expect(later > BATCHES / 2, "copies that wait for a run");
        expect(send_batches(o, links, 1) > BATCHES / 2, "the same without rank 0");
        check_copies(o, 3);
        check_copies(o, COPIES);
        check_moved_view_later(o);
    }
    for (size_t i = 0; i < n_devices; i++) {
        use(&o[i]);
        struct gg_buffer *b = links[i].out[0]->buffer;
        b->iface.free_buffer(b);
        for (int slot = 0; slot < SLOTS; slot++) dev->iface.event_free(dev, links[i].used[slot]);
    }
}

/* The last device waits until the first one, which computes at the same time, has come to its end. */
static void check_runs_beside(struct on *o) {
    float got[N * M];
    int wrong = 0;
    struct model *m = &o[n_devices - 1].m;
    size_t at = 8192;
    struct gg_tensor *t = scale(m->ctx, m->sum, 41);
    put_at(m->work, t, &at);
    set(m->w, m->values, 0, sizeof m->values);
    set(m->x, m->values, 0, sizeof m->values);
    use(&o[n_devices - 1]);
    expect(dev->iface.supports_op(dev, t), "the device adds and scales");
    expect(start(graph_of(m->ctx, t, 38)) == GG_STATUS_SUCCESS, "a run that waits");
    expect(dev->iface.supports_op(dev, t), "a question that was asked before");
    use(&o[0]);
    expect(compute(graph_of(o[0].m.ctx, o[0].m.out, 39)) == GG_STATUS_SUCCESS, "a run beside it");
    FILE *f = fopen(getenv("SHEAF_TEST_WAITS_FOR"), "w");
    if (f) fclose(f);
    use(&o[n_devices - 1]);
    backend->iface.synchronize(backend);
    get(t, got, sizeof got);
    for (int i = 0; i < N * M; i++) wrong += got[i] != 2 * m->values[i] * 41;
    expect(!wrong, "the result of a run that waited");
}

/* What another device is told meanwhile is not lost. */
static void check_fault_beside(struct on *o) {
    float moved[N * M], got[N * M];
    struct model *m = &o[n_devices - 1].m;
    size_t at = 8192;
    struct gg_tensor *t = scale(m->ctx, m->sum, 13);
    put_at(m->work, t, &at);
    for (int i = 0; i < N * M; i++) moved[i] = m->values[i] + 5;
    use(&o[n_devices - 1]);
    expect(start(graph_of(m->ctx, t, 34)) == GG_STATUS_SUCCESS, "a fault that is started");
    set(o[0].m.w, moved, 0, sizeof moved);
    get(o[0].m.w, got, sizeof got);
    expect(!memcmp(got, moved, sizeof got), "a weight of another device, written after a fault");
    expect(start(graph_of(m->ctx, m->out, 35)) == GG_STATUS_FAILED, "the second fault is told");
    expect(compute(graph_of(m->ctx, m->out, 36)) == GG_STATUS_SUCCESS, "status after two faults");
    check_sum(m, 0, 0, "the result after two faults");
}

/* The results of a run, the graph `number`, that waited for what a fault spoiled are NaN, and the next graph is told. */
static void check_fault_is_told(struct model *last, uint64_t number, const char *what) {
    float got[N * M];
    int numbers = 0;
    get(last->out, got, sizeof got);
    for (int i = 0; i < N * M; i++) numbers += got[i] == got[i];
    expect(!numbers, what);
    expect(start(graph_of(last->ctx, last->out, number)) == GG_STATUS_FAILED, "a fault is told");
    set(last->x, last->values, 0, sizeof last->values);
    expect(compute(graph_of(last->ctx, last->out, number)) == GG_STATUS_SUCCESS, "status after it");
    check_sum(last, 0, 0, "the result after it");
}

/* What waits for a run that fails has its results, NaN, and the next graph is told. */
static void check_fault_in_chain(struct on *o) {
    struct model *m = &o[1].m, *last = &o[2].m;
    size_t at = 8192;
    struct gg_tensor *t = scale(m->ctx, m->sum, 13);
    put_at(m->work, t, &at);
    set(last->w, last->values, 0, sizeof last->values);
    use(&o[1]);
    expect(start(graph_of(m->ctx, t, 51)) == GG_STATUS_SUCCESS, "a fault that is started");
    expect(backend->iface.cpy_tensor_async(backend, o[2].backend, t, last->x), "a copy that waits");
    use(&o[2]);
    expect(start(graph_of(last->ctx, last->out, 52)) == GG_STATUS_SUCCESS, "a run that waits");
    check_fault_is_told(last, 52, "what is computed of a failed run's results is NaN");
}

/* A run that waits behind a failed one does not begin; what waits for its results has NaN, too. */
static void check_fault_behind_a_fault(struct on *o) {
    struct model *m = &o[1].m, *last = &o[2].m;
    size_t at = 8192;
    struct gg_tensor *t = scale(m->ctx, m->sum, 13);
    put_at(m->work, t, &at);
    set(last->w, last->values, 0, sizeof last->values);
    set(last->x, last->values, 0, sizeof last->values);
    use(&o[1]);
    expect(start(graph_of(m->ctx, t, 53)) == GG_STATUS_SUCCESS, "a fault before other runs");
    use(&o[2]);
    expect(start(graph_of(last->ctx, last->out, 54)) == GG_STATUS_SUCCESS, "a run beside a fault");
    expect(backend->iface.cpy_tensor_async(backend, o[1].backend, last->out, m->x), "its copy");
    use(&o[1]);
    expect(start(graph_of(m->ctx, m->out, 55)) == GG_STATUS_SUCCESS, "a run behind a fault");
    expect(backend->iface.cpy_tensor_async(backend, o[2].backend, m->out, last->x), "a copy of it");
    use(&o[2]);
    expect(start(graph_of(last->ctx, last->out, 54)) == GG_STATUS_SUCCESS, "a run behind that");
    check_fault_is_told(last, 54, "what is computed of a run that did not begin is NaN");
}

static void free_on(struct on *o) {
    use(o);
    o->m.weights->iface.free_buffer(o->m.weights);
    o->m.work->iface.free_buffer(o->m.work);
    backend->iface.free(backend);
}

/* Ever new graphs, as a server's batches make them: old ones are forgotten, here and, after 1024, by
 * the meta device. */
static void check_many(void) {
    enum { GRAPHS = 4200, NODES = 40 };
    size_t used[3] = {0};
    struct gg_buffer *work = alloc(1 << 20);
    CALL(void (*)(struct gg_buffer *, int), "ggml_backend_buffer_set_usage")
    (work, GG_USAGE_COMPUTE);
    for (int i = 0; i < GRAPHS; i++) {
        struct gg_init_params params = {.mem_size = 1 << 20};
        void *ctx = CALL(void *(*)(struct gg_init_params), "ggml_init")(params);
        size_t end = 0;
        float x = 1, got = 0;
        struct gg_tensor *t = tensor(ctx, N, M, "x");
        put_at(work, t, &end);
        set(t, &x, 0, sizeof x);
        for (int k = 0; k < NODES; k++) {
            t = scale(ctx, t, k ? 1 : (float)i);
            put_at(work, t, &end);
        }
        expect(compute(graph_of(ctx, t, (uint64_t)i + 100)) == GG_STATUS_SUCCESS, "one of many");
        get(t, &got, sizeof got);
        expect(got == (float)i, "the result of one of many");
        CALL(void (*)(void *), "ggml_free")(ctx);
        if (i % (GRAPHS / 3) == GRAPHS / 3 - 1) used[i / (GRAPHS / 3)] = mallinfo2().uordblks;
    }
    work->iface.free_buffer(work);
    printf("%zu, %zu, %zu bytes are used after thirds of %d graphs\n", used[0], used[1], used[2],
           GRAPHS);
    expect(used[2] < used[1] + 65536, "no memory is lost");
    expect(used[2] < 48 << 20, "1024 programs of 40 nodes take less than 48 KiB each");
}

/* Graphs whose inputs take 129 MiB each: the ranks keep 256 MiB of them. The second has the first forgotten, which is
 * then made anew. */
static void check_large_inputs(struct model *m) {
    enum { MOST = 129 << 20, GRAPHS = 2 };
    struct gg_buffer *work[GRAPHS];
    struct gg_cgraph *g[GRAPHS];
    struct gg_tensor *t[GRAPHS];
    for (int i = 0; i < GRAPHS; i++) {
        size_t at = 0, end = 0;
        struct gg_tensor *x = large(m->ctx, N, MOST / 4 / N, "x");
        work[i] = alloc(MOST);
        CALL(void (*)(struct gg_buffer *, int), "ggml_backend_buffer_set_usage")
        (work[i], GG_USAGE_COMPUTE);
        put_at(work[i], x, &at);
        set(x, m->values, 0, N * sizeof(float));
        t[i] = scale(m->ctx, view(m->ctx, x, N, 0), (float)(i + 2));
        put_at(m->work, t[i], &end);
        g[i] = graph_of(m->ctx, t[i], (uint64_t)i + 40);
    }
    for (int i = 0; i < 3; i++) {
        float got = 0;
        expect(compute(g[i % GRAPHS]) == GG_STATUS_SUCCESS, "status of a graph of a large input");
        get(t[i % GRAPHS], &got, sizeof got);
        expect(got == m->values[0] * (float)(i % GRAPHS + 2), "the result of a large input");
    }
    for (int i = 0; i < GRAPHS; i++) work[i]->iface.free_buffer(work[i]);
}

/* ---- a layer, node by node ---- */

enum { EMBD = 32, HEAD = 8, HEADS = 4, KV = 2, FF = 64, TOKENS = 3, MUL_MAT = 4 };

static float part_of(int seed, int i) { return (float)((i * 7 + i / 5 + seed) % 3 - 1); }

/* n x m numbers, small enough for exact sums. */
static struct gg_tensor *numbers(void *ctx, struct gg_buffer *b, size_t *at, int64_t n, int64_t m,
                                 const char *name, int seed) {
    float values[EMBD * FF];
    struct gg_tensor *t = tensor(ctx, n, m, name);
    for (int i = 0; i < n * m; i++) values[i] = part_of(seed, i);
    put_at(b, t, at);
    set(t, values, 0, sizeof(float) * (size_t)(n * m));
    return t;
}
static struct gg_tensor *product(void *ctx, struct gg_tensor *w, struct gg_tensor *x) {
    struct gg_tensor *t = tensor(ctx, w->ne[1], x->ne[1], "product");
    t->op = MUL_MAT;
    t->src[0] = w;
    t->src[1] = x;
    return t;
}
/* A view that takes the rows of a product apart, and what reads it. */
static struct gg_tensor *heads_of(void *ctx, struct gg_tensor *x, int64_t n) {
    struct gg_tensor *t = view(ctx, x, HEAD, 0); /* nothing looks at its data */
    t->ne[1] = n;
    t->ne[2] = x->ne[1];
    t->nb[1] = HEAD * sizeof(float);
    t->nb[2] = x->nb[1];
    t->nb[3] = x->nb[1] * (size_t)x->ne[1];
    return scale(ctx, t, 2);
}
static void multiply(const float *w, const float *x, int n, int rows, float *out) {
    for (int t = 0; t < TOKENS; t++) {
        for (int r = 0; r < rows; r++) {
            out[t * rows + r] = 0;
            for (int i = 0; i < n; i++) out[t * rows + r] += w[r * n + i] * x[t * n + i];
        }
    }
}
static void check_last(const struct gg_tensor *down) {
    float w[4][EMBD * FF], x[TOKENS * FF], y[TOKENS * FF], got[TOKENS * EMBD];
    for (int k = 0; k < 4; k++)
        for (int i = 0; i < EMBD * FF; i++) w[k][i] = part_of(k, i);
    for (int i = 0; i < EMBD * TOKENS; i++) x[i] = part_of(9, i);
    multiply(w[0], x, EMBD, EMBD, y);
    multiply(w[1], y, EMBD, EMBD, x);
    multiply(w[2], x, EMBD, FF, y);
    multiply(w[3], y, FF, EMBD, x);
    get(down, got, sizeof got);
    expect(!memcmp(got, x, sizeof got), "the result of a layer");
}

/* What a callback sees of a layer's nodes; how weights are cut does not depend on it. */
static void check_layer(void) {
    void *ctx = CALL(void *(*)(struct gg_init_params),
                     "ggml_init")((struct gg_init_params){.mem_size = 1 << 20});
    struct gg_buffer *weights = alloc(1 << 16), *work = alloc(1 << 16);
    size_t at = 0, at_work = 0;
    CALL(void (*)(struct gg_buffer *, int), "ggml_backend_buffer_set_usage")
    (work, GG_USAGE_COMPUTE);
    struct gg_tensor *x = numbers(ctx, work, &at_work, EMBD, TOKENS, "x", 9);
    struct gg_tensor *w[] = {
        numbers(ctx, weights, &at, EMBD, HEADS * HEAD, "blk.0.attn_q.weight", 0),
        numbers(ctx, weights, &at, EMBD, EMBD, "blk.0.attn_output.weight", 1),
        numbers(ctx, weights, &at, EMBD, FF, "blk.0.ffn_up.weight", 2),
        numbers(ctx, weights, &at, FF, EMBD, "blk.0.ffn_down.weight", 3),
        numbers(ctx, weights, &at, EMBD, KV * HEAD, "blk.0.attn_k.weight", 4),
        numbers(ctx, weights, &at, EMBD, KV * HEAD, "blk.0.attn_v.weight", 5)};
    struct gg_tensor *shift =
        tensor(ctx, EMBD, 1, "blk.0.attn_norm.weight"); /* whole, of 0, and few bytes */
    put_at(weights, shift, &at);
    struct gg_tensor *y = add(ctx, x, shift);
    struct gg_tensor *q = product(ctx, w[0], y), *o = product(ctx, w[1], q);
    struct gg_tensor *up = product(ctx, w[2], o), *down = product(ctx, w[3], up);
    struct gg_tensor *k = product(ctx, w[4], y), *v = product(ctx, w[5], y);
    struct gg_tensor *made[] = {y,
                                q,
                                o,
                                up,
                                down,
                                k,
                                v,
                                heads_of(ctx, q, HEADS),
                                heads_of(ctx, k, KV),
                                heads_of(ctx, v, KV)};
    struct gg_cgraph *g = graph_of(ctx, down, 0), part = *g;
    for (size_t i = 0; i < sizeof made / sizeof *made; i++) {
        put_at(work, made[i], &at_work);
        add_node(g, made[i]);
    }
    for (int i = 0; i < g->n_nodes; i++) {
        part.nodes = g->nodes + i;
        part.n_nodes = 1;
        expect(compute(&part) == GG_STATUS_SUCCESS, "status of a node of a layer");
    }
    check_last(down);
    weights->iface.free_buffer(weights);
    work->iface.free_buffer(work);
    CALL(void (*)(void *), "ggml_free")(ctx);
}

/* Contexts of a server come and go, each with its own caches, beside a model that stays. Every third is
 * one tensor first, then two in the same place. */
static void check_buffers(struct model *m) {
    enum { CONTEXTS = 300, CACHES = 3 };
    struct gg_buffer *work = alloc(1 << 16);
    CALL(void (*)(struct gg_buffer *, int), "ggml_backend_buffer_set_usage")
    (work, GG_USAGE_COMPUTE);
    set(m->w, m->values, 0, sizeof m->values);
    set(m->x, m->values, 0, sizeof m->values);
    for (int i = 0; i < CONTEXTS; i++) {
        struct gg_init_params params = {.mem_size = 1 << 20};
        void *ctx = CALL(void *(*)(struct gg_init_params), "ggml_init")(params);
        struct gg_buffer *caches = alloc(8192);
        float x[N] = {0}, got = 0;
        size_t at = 0, at_work = 0;
        struct gg_tensor *sum = NULL;
        if (i % 3 == 0) {
            struct gg_tensor *whole = tensor(ctx, 2 * N, 1, "cache"), *t = scale(ctx, whole, 1);
            size_t at_whole = 0;
            put_at(caches, whole, &at_whole);
            put_at(work, t, &at_work);
            set(whole, x, 0, sizeof x);
            expect(compute(graph_of(ctx, t, 0)) == GG_STATUS_SUCCESS, "a cache of another shape");
        }
        for (int k = 0; k < CACHES; k++) {
            struct gg_tensor *cache = tensor(ctx, N, 1, "cache");
            put_at(caches, cache, &at);
            x[0] = (float)(i + k);
            set(cache, x, 0, sizeof x);
            sum = sum ? add(ctx, sum, cache) : cache;
            if (k) put_at(work, sum, &at_work);
        }
        expect(compute(graph_of(ctx, sum, 0)) == GG_STATUS_SUCCESS, "a graph of caches");
        get(sum, &got, sizeof got);
        expect(got == (float)(3 * i + 3), "the result of caches");
        caches->iface.free_buffer(caches);
        CALL(void (*)(void *), "ggml_free")(ctx);
        if (i % 50) continue;
        expect(compute(graph_of(m->ctx, m->out, 0)) == GG_STATUS_SUCCESS, "the model beside them");
        check_sum(m, 0, 0, "the result of the model beside them");
    }
    work->iface.free_buffer(work);
}

static double free_mib(void) {
    size_t available = 0, all = 0;
    dev->iface.get_memory(dev, &available, &all);
    expect(available > 0 && available <= all, "free memory");
    return (double)available / (1 << 20);
}

/* A second model's weights count from the time that they have a buffer, as long as they have one. */
static void check_room_taken(void) {
    enum { MIB = 64 };
    struct gg_init_params params = {.mem_size = 1 << 20};
    typedef void (*usage_fn)(struct gg_buffer *, int);
    const double before = free_mib();
    void *ctx = CALL(void *(*)(struct gg_init_params), "ggml_init")(params);
    struct gg_buffer *weights = alloc(MIB << 20), *work = alloc(MIB << 20); /* not counted */
    CALL(usage_fn, "ggml_backend_buffer_set_usage")(work, GG_USAGE_COMPUTE);
    expect(fabs(before - free_mib() - MIB) < 1, "free memory beside weights of no graph yet");
    size_t at = 0, at_work = 0;
    struct gg_tensor *w = large(ctx, 1 << 12, MIB << 6, "second");
    put_at(weights, w, &at);
    set(w, &before, 0, sizeof before);
    expect(fabs(before - free_mib() - MIB) < 1, "free memory beside a weight that was set");
    struct gg_tensor *row = scale(ctx, view(ctx, w, N, 0), 2);
    put_at(work, row, &at_work);
    expect(compute(graph_of(ctx, row, 0)) == GG_STATUS_SUCCESS, "a graph of the second model");
    expect(fabs(before - free_mib() - MIB) < 1, "free memory beside weights that the ranks have");
    weights->iface.free_buffer(weights);
    work->iface.free_buffer(work);
    CALL(void (*)(void *), "ggml_free")(ctx);
    expect(fabs(before - free_mib()) < 1, "free memory when they are gone");
}

static void *ask_for_room(void *unused) {
    (void)unused;
    for (int i = 0; i < 200; i++) free_mib();
    return NULL;
}

/* A weight of which the graph reads one row. */
static void use_large(size_t mib) {
    struct gg_init_params params = {.mem_size = 1 << 20};
    void *ctx = CALL(void *(*)(struct gg_init_params), "ggml_init")(params);
    struct gg_buffer *weights = alloc(mib << 20), *work = alloc(1 << 20);
    size_t at = 0, at_work = 0;
    CALL(void (*)(struct gg_buffer *, int), "ggml_backend_buffer_set_usage")
    (work, GG_USAGE_COMPUTE);
    struct gg_tensor *w = large(ctx, 1 << 12, (int64_t)mib << 6, "lacks");
    put_at(weights, w, &at);
    struct gg_tensor *row = scale(ctx, view(ctx, w, N, 0), 2);
    put_at(work, row, &at_work);
    compute(graph_of(ctx, row, 0)); /* the system may refuse the memory */
    weights->iface.free_buffer(weights);
    work->iface.free_buffer(work);
    CALL(void (*)(void *), "ggml_free")(ctx);
}

static void *compute_it(void *graph) {
    expect(compute(graph) == GG_STATUS_SUCCESS, "a graph that waits for a file");
    return NULL;
}
/* The answer is what the ranks said last. One that waited for the graph would come too late for its file. */
static void check_room_beside(struct model *m) {
    float got[N * M];
    int wrong = 0;
    size_t at = 8192;
    pthread_t other;
    struct gg_tensor *t = scale(m->ctx, m->sum, 41);
    put_at(m->work, t, &at);
    set(m->w, m->values, 0, sizeof got);
    set(m->x, m->values, 0, sizeof got);
    pthread_create(&other, NULL, compute_it, graph_of(m->ctx, t, 57));
    usleep(200000); /* it has begun; otherwise this shows less */
    free_mib();
    FILE *f = fopen(getenv("SHEAF_TEST_WAITS_FOR"), "w");
    if (f) fclose(f);
    pthread_join(other, NULL);
    get(t, got, sizeof got);
    for (int i = 0; i < N * M; i++) wrong += got[i] != 2 * m->values[i] * 41;
    expect(!wrong, "a graph beside a question about memory");
}

static void check_room(struct model *m) {
    pthread_t other;
    check_room_taken();
    struct gg_cgraph *g = graph_of(m->ctx, m->out, 11);
    pthread_create(&other, NULL, ask_for_room, NULL);
    for (int i = 0; i < 200; i++) expect(compute(g) == GG_STATUS_SUCCESS, "a graph beside it");
    pthread_join(other, NULL);
}

/* As llama-server does at the second Ctrl-C, on the thread that computes. */
static volatile sig_atomic_t is_computing;
static void end_inside(int number) {
    (void)number;
    if (is_computing) exit(5);
}
static void check_exit(const struct model *m) {
    const struct itimerval often = {{0, 1000}, {0, 1000}};
    struct gg_cgraph *g = graph_of(m->ctx, m->out, 41);
    signal(SIGALRM, end_inside);
    setitimer(ITIMER_REAL, &often, NULL);
    for (;;) {
        is_computing = 1;
        compute(g);
        is_computing = 0;
    }
}

static volatile sig_atomic_t signals;
static void count_signal(int number) {
    (void)number;
    signals++;
}
static int count_signals(void) {
    signal(SIGTERM, count_signal);
    puts("idle");
    fflush(stdout);
    for (int i = 0; i < 6000 && !signals; i++) usleep(10000);
    for (int i = 0; i < 40; i++) usleep(10000);
    printf("%d signals\nend", (int)signals); /* of a line that is not over there is a buffer */
    return 0;
}

static void run_child(char **argv) {
    char mode[] = "close", *with[] = {argv[0], argv[1], argv[2], argv[3], mode, NULL};
    int status = -1;
    const pid_t child = vfork();
    if (child == 0) {
        execv(argv[0], with);
        _exit(127);
    }
    waitpid(child, &status, 0);
    expect(status == 0, "status of the child");
}

/* As Python's multiprocessing: a child that frees what it has from its parent and ends by exit(), and
 * one that computes. */
static int status_of_fork(void (*child)(struct on *), struct on *on) {
    int status = -1;
    fflush(stdout);
    const pid_t pid = fork();
    if (pid == 0) {
        child(on);
        exit(failures != 0);
    }
    waitpid(pid, &status, 0);
    return status;
}
static void compute_in_child(struct on *on) {
    expect(compute(graph_of(on->m.ctx, on->m.out, 0)) != GG_STATUS_SUCCESS, "a graph of a child");
}
static void check_fork(struct on *on) {
    expect(status_of_fork(free_on, on) == 0, "a child that frees");
    puts("freed");
    expect(status_of_fork(compute_in_child, on) == 0, "a child that computes");
}

/* A second ggml of this process, local to its handle, asks the plugin, too. It is served if the first was not. */
static void check_second_ggml(void *plugin, const char *path, bool served) {
    bool (*offered)(void *) = NULL;
    void *second = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    void *f = second ? dlsym(second, "fake_ggml_load") : NULL;
    memcpy(&offered, &f, sizeof f);
    expect(offered && offered(dlsym(plugin, "ggml_backend_init")) == served,
           served ? "a second ggml is served" : "a second ggml is refused");
}

/* Computes until a rank is lost, and lives on (SHEAF_GGML_ON_FAILURE). */
static int outlive(struct on *on) {
    float got[N * M];
    puts("idle");
    fflush(stdout);
    int i = 0;
    struct gg_cgraph *g = graph_of(on->m.ctx, on->m.out, 0);
    while (i++ < 60000 && compute(g) == GG_STATUS_SUCCESS) usleep(1000);
    for (int k = 0; k < 2; k++) {
        expect(compute(graph_of(on->m.ctx, on->m.out, 0)) == GG_STATUS_FAILED, "a later graph");
        set(on->m.w, on->m.values, 0, sizeof got);
        get(on->m.w, got, sizeof got);
        on->m.weights->iface.clear(on->m.weights, 0);
        free_mib();
    }
    free_on(on);
    sleep(2); /* a launcher that ends the job does so by now */
    puts(failures ? "failed" : "lives");
    fflush(stdout);
    return 6;
}

int main(int argc, char **argv) {
    void *plugin = argc < 4 ? NULL : load(argv);
    if (!plugin) return 3;
    const char *mode = argc > 4 ? argv[4] : "";
    struct gg_reg *reg = registry(plugin);
    if (!strcmp(mode, "second") && argc > 5) check_second_ggml(plugin, argv[5], !reg);
    if (!reg || !strcmp(mode, "close")) {
        dlclose(plugin);
        puts(reg ? "closed" : "refused");
        return failures != 0;
    }
    static struct on on[MAX_DEVICES];
    expect(CALL(int (*)(void), "fake_ggml_n_buffers")() == 0,
           "buffers of the plugin's checks are freed");
    check_reg(reg);
    for (size_t i = 0; i < n_devices && i < MAX_DEVICES; i++) {
        check_device(reg, i);
        on[i].dev = dev;
        on[i].backend = backend;
        make(&on[i].m);
        check_graphs(&on[i].m);
    }
    if (!strcmp(mode, "count")) return count_signals();
    if (!strcmp(mode, "stays")) signal(SIGTERM, SIG_IGN);
    if (!strcmp(mode, "idle") || !strcmp(mode, "stays")) {
        puts("idle");
        fflush(stdout);
        for (int i = 0; i < 600; i++) usleep(100000);
        return 4;
    }
    if (!strcmp(mode, "busy")) {
        puts("idle");
        fflush(stdout);
        struct gg_cgraph *g = graph_of(on[0].m.ctx, on[0].m.out, 0);
        for (int i = 0; i < 60000; i++) {
            if (compute(g) != GG_STATUS_SUCCESS) return 5;
            usleep(1000);
        }
        return 4;
    }
    if (!strcmp(mode, "lives")) return outlive(&on[0]);
    if (!strcmp(mode, "child")) {
        fflush(stdout);
        run_child(argv);
    }
    if (!strcmp(mode, "fork")) check_fork(&on[0]);
    if (!strcmp(mode, "exit")) check_exit(&on[0].m);
    if (!strcmp(mode, "fault")) { /* of the last device, which is in use */
        check_fault(&on[n_devices - 1].m);
        if (n_devices > 1) check_fault_beside(on);
        if (!failures) puts("ok");
        return failures != 0;
    }
    if (!strcmp(mode, "fault-in-chain")) {
        check_fault_in_chain(on);
        check_fault_behind_a_fault(on);
        if (!failures) puts("ok");
        return failures != 0;
    }
    if (!strcmp(mode, "slow") || !strcmp(mode, "queue")) {
        check_slow(&on[n_devices - 1].m, !strcmp(mode, "slow") ? 17 : 19);
        if (!failures) puts("ok");
        return failures != 0;
    }
    if (!strcmp(mode, "beside")) {
        check_runs_beside(on);
        if (!failures) puts("ok");
        return failures != 0;
    }
    if (!strcmp(mode, "total")) {
        size_t available = 0, all = 0;
        dev->iface.get_memory(dev, &available, &all);
        printf("%zu MiB\n", all >> 20);
        return 0;
    }
    if (!strcmp(mode, "lacks") && argc > 5) {
        use_large((size_t)atoll(argv[5]));
        if (!failures) puts("ok");
        return failures != 0;
    }
    if (!strcmp(mode, "room-beside")) {
        check_room_beside(&on[0].m);
        if (!failures) puts("ok");
        return failures != 0;
    }
    if (!strcmp(mode, "room")) { /* of the last device */
        check_room(&on[n_devices - 1].m);
        if (!failures) puts("ok");
        return failures != 0;
    }
    if (!strcmp(mode, "copies-not") || !strcmp(mode, "inputs")) {
        if (!strcmp(mode, "inputs"))
            check_large_inputs(&on[0].m);
        else
            check_no_copies(&on[0].m);
        if (!failures) puts("ok");
        return failures != 0;
    }
    if (!strcmp(mode, "many")) check_many();
    if (!strcmp(mode, "layer") || !strcmp(mode, "buffers")) {
        use(&on[0]);
        if (!strcmp(mode, "layer"))
            check_layer();
        else
            check_buffers(&on[0].m);
        if (!failures) puts("ok");
        return failures != 0;
    }
    if (n_devices > 1) {
        check_beside(on);
        check_chain(on);
    }
    for (size_t i = 0; i < n_devices; i++) {
        use(&on[i]);
        check_all(&on[i].m);
    }
    for (size_t i = 0; i < n_devices; i++) free_on(&on[i]);
    if (!failures) puts("ok");
    return failures != 0;
}
