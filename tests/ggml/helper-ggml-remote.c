/* What a program sees that computes for another one, as ggml-rpc-server does: buffers of which it does not
 * know what they are for, views that have lost the tensor that they show, copies of views as leaves.
 * Then tensors that lie over others, and graphs of which this device has a part.
 *     helper-ggml-remote LIBRARY PLUGIN API
 * Prints "ok" when all results were right. */
#include "ggml_host.h"

enum { N = 24, M = 6, BYTES = N * M * 4 };

struct remote {
    void *ctx;
    struct gg_buffer *weights, *work; /* both without a usage */
    size_t at, at_work;
    float values[N * M];
};

static void make(struct remote *r) {
    memset(r, 0, sizeof *r);
    r->ctx = CALL(void *(*)(struct gg_init_params),
                  "ggml_init")((struct gg_init_params){.mem_size = 1 << 20});
    r->weights = alloc(1 << 14);
    r->work = alloc(1 << 14);
    r->weights->iface.clear(r->weights, 0);
    for (int i = 0; i < N * M; i++) r->values[i] = (float)(i * 5 % 97);
}
static void end(struct remote *r) {
    r->weights->iface.free_buffer(r->weights);
    r->work->iface.free_buffer(r->work);
    CALL(void (*)(void *), "ggml_free")(r->ctx);
}
static struct gg_tensor *in(struct gg_buffer *b, struct gg_tensor *t, size_t *at) {
    put_at(b, t, at);
    return t;
}
static struct gg_tensor *at_offset(struct gg_buffer *b, struct gg_tensor *t, size_t at) {
    return in(b, t, &at);
}
static int differ(const float *got, const float *want, int n, float factor) {
    int wrong = 0;
    for (int i = 0; i < n; i++) wrong += got[i] != factor * want[i];
    return wrong;
}
/* Rows of `t` behind the first one, as they come over the network: without view_src. */
static struct gg_tensor *rows_of(void *ctx, struct gg_tensor *t) {
    struct gg_tensor *rows = view(ctx, t, N * (M - 1), N * sizeof(float));
    rows->view_src = NULL;
    rows->src[0] = NULL;
    rows->view_offs = 0;
    return rows;
}

/* A cache's state is saved and restored by such views, also before a graph has used the cache. */
static void check_views_without_source(void) {
    struct remote r;
    float got[N * M];
    make(&r);
    struct gg_tensor *cache = in(r.weights, tensor(r.ctx, N, M, "cache_k_l0"), &r.at);
    struct gg_tensor *rows = rows_of(r.ctx, cache);
    struct gg_tensor *twice = in(r.work, scale(r.ctx, cache, 2), &r.at_work);
    struct gg_cgraph *g = graph_of(r.ctx, twice, 0);
    set(rows, r.values + N, 0, BYTES - N * 4);
    expect(compute(g) == GG_STATUS_SUCCESS, "status of a cache that was restored");
    get(twice, got, sizeof got);
    expect(!differ(got + N, r.values + N, N * (M - 1), 2) && got[0] == 0,
           "a cache that was restored before its first graph");
    for (int i = 0; i < N * M; i++) r.values[i] += 3;
    set(cache, r.values, 0, sizeof r.values);
    get(rows, got, BYTES - N * 4);
    expect(!differ(got, r.values + N, N * (M - 1), 1), "a cache that is saved");
    for (int i = 0; i < N * M; i++) r.values[i] += 3;
    set(rows, r.values + N, 0, BYTES - N * 4);
    fill_bytes(rows, 0, N * 4, N * 4);
    memset(r.values + 2 * N, 0, N * 4);
    expect(compute(g) == GG_STATUS_SUCCESS, "status of the cache again");
    get(twice, got, sizeof got);
    expect(!differ(got + N, r.values + N, N * (M - 1), 2), "a cache that was restored");
    end(&r);
}

/* A view of more than the tensor that was there before. */
static void check_view_over_another(void) {
    struct remote r;
    float got[N * M];
    make(&r);
    struct gg_tensor *row = at_offset(r.weights, tensor(r.ctx, N, 1, "row"), N * 4);
    struct gg_tensor *whole = at_offset(r.weights, tensor(r.ctx, N, M, "whole"), 0);
    struct gg_tensor *twice = in(r.work, scale(r.ctx, row, 2), &r.at_work);
    set(row, r.values, 0, N * 4);
    expect(compute(graph_of(r.ctx, twice, 0)) == GG_STATUS_SUCCESS, "status of a row");
    for (int i = 0; i < N * M; i++) r.values[i] += 3;
    set(rows_of(r.ctx, whole), r.values + N, 0, BYTES - N * 4);
    twice = in(r.work, scale(r.ctx, whole, 2), &r.at_work);
    expect(compute(graph_of(r.ctx, twice, 0)) == GG_STATUS_SUCCESS, "status of all rows");
    get(twice, got, sizeof got);
    expect(!differ(got + N, r.values + N, N * (M - 1), 2), "a view over another tensor");
    end(&r);
}

/* Two caches that a graph alone has written, then two tensors of another shape in their places. */
static void check_other_shapes(void) {
    enum { CPY = 5 };
    struct remote r;
    float got[N * M];
    make(&r);
    struct gg_tensor *x = in(r.weights, tensor(r.ctx, N, M, "x"), &r.at), *written[2], *line[2];
    for (int i = 0; i < 2; i++) {
        const size_t place = 2048 * (size_t)(i + 1);
        struct gg_tensor *cache = at_offset(r.weights, tensor(r.ctx, N, M, "cache"), place);
        struct gg_tensor *times = in(r.work, scale(r.ctx, x, (float)(i + 2)), &r.at_work);
        written[i] = view(r.ctx, cache, N, 0);
        memcpy(written[i]->ne, cache->ne, sizeof cache->ne);
        memcpy(written[i]->nb, cache->nb, sizeof cache->nb);
        written[i]->op = CPY;
        written[i]->src[0] = times;
        written[i]->src[1] = cache;
        line[i] = at_offset(r.weights, tensor(r.ctx, N * M, 1, "line"), place);
    }
    struct gg_cgraph *g = graph_of(r.ctx, written[0], 0);
    add_node(g, written[1]);
    set(x, r.values, 0, BYTES);
    expect(compute(g) == GG_STATUS_SUCCESS, "status of two caches");
    struct gg_tensor *sum = in(r.work, add(r.ctx, line[0], line[1]), &r.at_work);
    expect(compute(graph_of(r.ctx, sum, 0)) == GG_STATUS_SUCCESS, "status of two other shapes");
    get(sum, got, sizeof got);
    expect(!differ(got, r.values, N * M, 5), "two tensors in the places of caches");
    end(&r);
}

/* In the buffer of the weights each result may be read, also one that the graph reads. */
static void check_one_buffer(void) {
    struct remote r;
    float got[N * M];
    make(&r);
    struct gg_tensor *w = in(r.weights, tensor(r.ctx, N, M, "w"), &r.at);
    struct gg_tensor *twice = in(r.weights, scale(r.ctx, w, 2), &r.at);
    struct gg_tensor *last = in(r.weights, scale(r.ctx, twice, 3), &r.at);
    struct gg_cgraph *g = graph_of(r.ctx, in(r.weights, scale(r.ctx, last, 1), &r.at), 401);
    for (int round = 0; round < 2; round++) {
        for (int i = 0; i < N * M; i++) r.values[i] += 1;
        set(w, r.values, 0, BYTES);
        expect(compute(g) == GG_STATUS_SUCCESS, "status of one buffer");
        get(twice, got, sizeof got);
        expect(!differ(got, r.values, N * M, 2), "a result inside of a graph");
        get(last, got, sizeof got);
        expect(!differ(got, r.values, N * M, 6), "another result inside of a graph");
    }
    end(&r);
}

/* Weights of two buffers, of which one goes. */
static void check_two_buffers(void) {
    struct remote r;
    float got[N * M];
    make(&r);
    struct gg_buffer *second = alloc(1 << 14);
    size_t at = 1024;
    struct gg_tensor *a = in(r.weights, tensor(r.ctx, N, M, "a"), &r.at);
    struct gg_tensor *b = in(second, tensor(r.ctx, N, M, "b"), &at);
    struct gg_tensor *sum = in(r.work, add(r.ctx, b, a), &r.at_work);
    struct gg_tensor *twice = in(r.work, scale(r.ctx, a, 2), &r.at_work);
    set(a, r.values, 0, BYTES);
    for (int i = 0; i < N * M; i++) r.values[i] += 1;
    set(b, r.values, 0, BYTES);
    expect(compute(graph_of(r.ctx, sum, 0)) == GG_STATUS_SUCCESS, "status of two buffers");
    get(sum, got, sizeof got);
    for (int i = 0; i < N * M; i++) got[i] += 1;
    expect(!differ(got, r.values, N * M, 2), "the sum of weights of two buffers");
    second->iface.free_buffer(second);
    expect(compute(graph_of(r.ctx, twice, 0)) == GG_STATUS_SUCCESS, "status of the one that stays");
    get(twice, got, sizeof got);
    for (int i = 0; i < N * M; i++) got[i] += 2;
    expect(!differ(got, r.values, N * M, 2), "a weight of the buffer that stays");
    end(&r);
}

/* ggml's cast is a copy to itself. An operand more than an op has may change its result. */
static void check_operands(void) {
    enum { CPY = 5 };
    struct remote r;
    float got[N * M];
    make(&r);
    struct gg_tensor *w = in(r.weights, tensor(r.ctx, N, M, "w"), &r.at);
    struct gg_tensor *cast = in(r.work, scale(r.ctx, w, 1), &r.at_work);
    cast->op = CPY;
    cast->op_params[0] = 0;
    cast->src[1] = cast;
    struct gg_cgraph one = {.size = 1, .n_nodes = 1, .nodes = &cast};
    cast->flags |= GG_FLAG_COMPUTE;
    set(w, r.values, 0, BYTES);
    expect(dev->iface.supports_op(dev, cast), "a cast is supported");
    expect(compute(&one) == GG_STATUS_SUCCESS, "status of a cast");
    get(cast, got, sizeof got);
    expect(!differ(got, r.values, N * M, 1), "the result of a cast");
    struct gg_tensor *more = scale(r.ctx, w, 1);
    expect(dev->iface.supports_op(dev, more), "SCALE is supported");
    more->src[1] = w;
    expect(!dev->iface.supports_op(dev, more), "SCALE with a second operand is not supported");
    end(&r);
}

/* Two tensors are one weight. */
static void check_two_of_a_weight(void) {
    struct remote r;
    float got[N * M];
    make(&r);
    struct gg_tensor *w[] = {tensor(r.ctx, N, M, "w"), tensor(r.ctx, N, M, "w")};
    for (int i = 0; i < 2; i++) at_offset(r.weights, w[i], 0);
    struct gg_tensor *sum = in(r.work, add(r.ctx, w[0], w[1]), &r.at_work);
    struct gg_cgraph *g = graph_of(r.ctx, sum, 0);
    for (int round = 0; round < 2; round++) {
        for (int i = 0; i < N * M; i++) r.values[i] += 1;
        set(w[round], r.values, 0, BYTES);
        expect(compute(g) == GG_STATUS_SUCCESS, "status of two tensors of a weight");
        get(sum, got, sizeof got);
        expect(!differ(got, r.values, N * M, 2), "the sum of two tensors of a weight");
    }
    end(&r);
}

/* A tensor of no elements lies where another one begins, which stays where it is. */
static void check_empty_operand(void) {
    enum { CONCAT = 13 };
    struct remote r;
    float got[N * M];
    make(&r);
    struct gg_tensor *w = at_offset(r.weights, tensor(r.ctx, N, M, "w"), 0);
    struct gg_tensor *none = at_offset(r.weights, tensor(r.ctx, N, 0, "none"), 0);
    struct gg_tensor *both = in(r.work, add(r.ctx, w, w), &r.at_work);
    both->op = CONCAT;
    both->src[0] = none;
    both->op_params[0] = 1;
    struct gg_cgraph *g = graph_of(r.ctx, both, 0);
    set(w, r.values, 0, BYTES);
    for (int i = 0; i < 2; i++) {
        expect(compute(g) == GG_STATUS_SUCCESS, "status of an empty operand");
        get(both, got, sizeof got);
        expect(!differ(got, r.values, N * M, 1), "a weight behind an empty operand");
    }
    end(&r);
}

/* A leaf that is the copy of a view has the view's strides. */
static void check_strided_leaf(void) {
    struct remote r;
    float got[N * M], want[N * M];
    make(&r);
    struct gg_tensor *w = in(r.weights, tensor(r.ctx, N / 2, M, "w"), &r.at);
    struct gg_tensor *x = tensor(r.ctx, N / 2, M, "x");
    x->nb[1] = N * sizeof(float);
    x->nb[2] = x->nb[3] = x->nb[1] * M;
    x = in(r.work, x, &r.at_work);
    struct gg_tensor *twice = scale(r.ctx, x, 2); /* in a buffer that is not known yet */
    twice->nb[1] = N / 2 * sizeof(float);
    twice->nb[2] = twice->nb[3] = twice->nb[1] * M;
    in(r.work, twice, &r.at_work);
    set(x, r.values, 0, BYTES - N / 2 * 4);
    expect(compute(graph_of(r.ctx, twice, 0)) == GG_STATUS_SUCCESS, "status of strides alone");
    get(twice, got, BYTES / 2);
    for (int i = 0; i < N / 2 * M; i++) want[i] = r.values[i / (N / 2) * N + i % (N / 2)];
    expect(!differ(got, want, N / 2 * M, 2), "the result of a leaf with strides");
    struct gg_tensor *sum = in(r.work, add(r.ctx, w, x), &r.at_work);
    struct gg_cgraph *g = graph_of(r.ctx, sum, 0);
    for (int round = 0; round < 3; round++) {
        for (int i = 0; i < N * M; i++) r.values[i] += 1;
        set(w, r.values, 0, BYTES / 2);
        set(x, r.values, 0, BYTES - N / 2 * 4);
        expect(compute(g) == GG_STATUS_SUCCESS, "status of a leaf with strides");
        get(sum, got, BYTES / 2);
        for (int i = 0; i < N / 2 * M; i++)
            want[i] = r.values[i] + r.values[i / (N / 2) * N + i % (N / 2)];
        expect(!differ(got, want, N / 2 * M, 1), "the sum with a leaf with strides");
    }
    end(&r);
}

/* Inputs of graphs of several shapes lie where others lay, in any order, between results. */
static void check_inputs_by_turns(void) {
    struct remote r;
    float got[N * M];
    make(&r);
    struct gg_tensor *w = in(r.weights, tensor(r.ctx, N, 1, "w"), &r.at);
    set(w, r.values, 0, N * 4);
    for (int round = 0; round < 6; round++) {
        const int m = round % 2 ? M : 2 + round / 2;
        struct gg_tensor *x = at_offset(r.work, tensor(r.ctx, N, m, "x"), 0);
        struct gg_tensor *y = at_offset(r.work, tensor(r.ctx, N, 1, "y"), (size_t)m * 128);
        struct gg_tensor *sum = scale(r.ctx, x, 1), *last = scale(r.ctx, y, 3);
        sum = at_offset(r.work, add(r.ctx, at_offset(r.work, sum, 4096), x), 2048);
        last = at_offset(r.work, add(r.ctx, w, at_offset(r.work, last, 5120)), 6144);
        struct gg_cgraph *g = graph_of(r.ctx, sum, 0);
        add_node(g, last);
        for (int i = 0; i < N * M; i++) r.values[i] = (float)(i + 10 * round);
        set(y, r.values + N, 0, N * 4);
        set(w, r.values + 2 * N, 0, N * 4);
        set(x, r.values, 0, (size_t)(N * m) * 4);
        expect(compute(g) == GG_STATUS_SUCCESS, "status by turns");
        get(sum, got, (size_t)(N * m) * 4);
        expect(!differ(got, r.values, N * m, 2), "a sum of inputs that change places");
        get(last, got, N * 4);
        int wrong = 0;
        for (int i = 0; i < N; i++) wrong += got[i] != r.values[2 * N + i] + 3 * r.values[N + i];
        expect(!wrong, "an input that is set before another one");
    }
    end(&r);
}

/* One tensor, then two in its place, of which the second is set first, and one over both again. */
static void check_tensors_over_others(void) {
    struct remote r;
    float got[N * M], other[N * M];
    enum { HALF = N * M / 2 };
    make(&r);
    for (int i = 0; i < N * M; i++) other[i] = (float)(1000 - i);
    struct gg_tensor *whole = at_offset(r.weights, tensor(r.ctx, N, M, "whole"), 0), *part[2];
    struct gg_tensor *twice = in(r.work, scale(r.ctx, whole, 2), &r.at_work);
    struct gg_cgraph *g = graph_of(r.ctx, twice, 0);
    for (int i = 0; i < 2; i++)
        part[i] = at_offset(r.weights, tensor(r.ctx, N, M / 2, "part"), (size_t)i * HALF * 4);
    struct gg_tensor *sum = in(r.work, add(r.ctx, part[0], part[1]), &r.at_work);
    struct gg_cgraph *g2 = graph_of(r.ctx, sum, 0);
    for (int round = 0; round < 2; round++) {
        set(whole, r.values, 0, BYTES);
        expect(compute(g) == GG_STATUS_SUCCESS, "status of a tensor over two");
        get(twice, got, sizeof got);
        expect(!differ(got, r.values, N * M, 2), "a tensor over two");
        get(part[1], got, BYTES / 2);
        expect(!differ(got, r.values + HALF, HALF, 1),
               "a part that is read in the place of another");
        set(part[1], other + HALF, 0, BYTES / 2);
        set(part[0], other, 0, BYTES / 2);
        expect(compute(g2) == GG_STATUS_SUCCESS, "status of two tensors over one");
        get(sum, got, BYTES / 2);
        int wrong = 0;
        for (int i = 0; i < HALF; i++) wrong += got[i] != other[i] + other[HALF + i];
        expect(!wrong, "two tensors over one");
        other[HALF + 1] += 1;
        set(part[1], other + HALF, 0, BYTES / 2);
        get(whole, got, sizeof got);
        expect(!differ(got, other, N * M, 1), "the tensor over two that is read");
    }
    end(&r);
}

/* The same shape in another type. */
static void check_another_type(void) {
    typedef struct gg_tensor *(*make_fn)(void *, int, int64_t, int64_t, int64_t, int64_t);
    enum { CONT = 10, F16 = 1 };
    struct remote r;
    float got[N * M];
    make(&r);
    struct gg_tensor *w = at_offset(r.weights, tensor(r.ctx, N, M, "w"), 0);
    struct gg_tensor *twice = in(r.work, scale(r.ctx, w, 2), &r.at_work);
    set(w, r.values, 0, BYTES);
    expect(compute(graph_of(r.ctx, twice, 0)) == GG_STATUS_SUCCESS, "status of a type");
    struct gg_tensor *half = CALL(make_fn, "ggml_new_tensor_4d")(r.ctx, F16, N, M, 1, 1);
    struct gg_tensor *same = scale(r.ctx, half, 1);
    same->op = CONT;
    at_offset(r.weights, half, 0);
    in(r.work, same, &r.at_work);
    set(half, r.values, 0, BYTES / 2);
    expect(compute(graph_of(r.ctx, same, 0)) == GG_STATUS_SUCCESS, "status of another type");
    get(same, got, BYTES / 2);
    expect(!memcmp(got, r.values, BYTES / 2), "a tensor of another type in the place of one");
    end(&r);
}

/* A full table, in which the tensor `last` lies behind two others of its place. */
struct full {
    struct gg_tensor *keys[3];
    int32_t counts[3];
    uint32_t used;
};
static void fill_table(struct full *f, struct gg_tensor *const *others, struct gg_tensor *last,
                       int32_t count, struct gg_cgraph *g) {
    const size_t first = ((size_t)(uintptr_t)last >> 4) % 3;
    *f = (struct full){.used = 7};
    for (size_t i = 0; i < 3; i++) {
        f->keys[(first + i) % 3] = i < 2 ? others[i] : last;
        f->counts[(first + i) % 3] = i < 2 ? (int32_t)i : count;
    }
    g->use_counts = f->counts;
    g->visited.size = 3;
    g->visited.used = &f->used;
    g->visited.keys = f->keys;
}

/* The scheduler gives a node to another part of the graph, and leaves one out that is not to be computed. */
static void check_parts(void) {
    typedef void (*usage_fn)(struct gg_buffer *, int);
    struct remote r;
    float got[N * M];
    make(&r);
    CALL(usage_fn, "ggml_backend_buffer_set_usage")(r.work, GG_USAGE_COMPUTE);
    struct gg_tensor *w = in(r.weights, tensor(r.ctx, N, M, "w"), &r.at), *made[4];
    for (int i = 0; i < 4; i++)
        made[i] = in(r.work, scale(r.ctx, i ? made[0] : w, (float)(i + 2)), &r.at_work);
    struct gg_cgraph *g = graph_of(r.ctx, made[1], 0);
    for (int i = 2; i < 4; i++) add_node(g, made[i]);
    made[3]->flags &= ~GG_FLAG_COMPUTE;
    struct full table;
    for (int round = 0; round < 2; round++) {
        for (int i = 0; i < N * M; i++) r.values[i] += 1;
        set(w, r.values, 0, BYTES);
        set(made[3], r.values, 0, BYTES);
        for (int i = 0; i < 2; i++) {
            struct gg_cgraph part = *g;
            part.nodes = g->nodes + 2 * i;
            part.n_nodes = 2;
            if (round) fill_table(&table, made + 1, made[0], 3, &part);
            set_uid(&part, 201 + (uint64_t)(2 * round + i));
            expect(start(&part) == GG_STATUS_SUCCESS, "status of a part");
        }
        for (int i = 1; i < 4; i++) {
            get(made[i], got, sizeof got);
            expect(!differ(got, r.values, N * M, i < 3 ? 2 * (float)(i + 2) : 1),
                   i < 3 ? "a node that two parts read" : "a node that is not computed");
        }
    }
    end(&r);
}

/* t writes over what `shown` shows. */
static struct gg_tensor *over(struct gg_tensor *t, struct gg_tensor *shown) {
    t->view_src = shown->view_src ? shown->view_src : shown;
    t->view_offs = shown->view_offs;
    t->data = shown->data;
    t->buffer = shown->buffer;
    memcpy(t->nb, shown->nb, sizeof t->nb);
    return t;
}

/* Views of views, a copy behind the start of a tensor, and columns that are scaled in their place: of a
 * weight, an input and a result. */
static void check_views_of(int kind) {
    typedef void (*usage_fn)(struct gg_buffer *, int);
    enum { CPY = 5, ROW = N * 4 };
    struct remote r;
    float got[N * M], want[N * M];
    make(&r);
    CALL(usage_fn, "ggml_backend_buffer_set_usage")(r.work, GG_USAGE_COMPUTE);
    struct gg_tensor *x = kind ? in(r.work, tensor(r.ctx, N, M, "x"), &r.at_work)
                               : in(r.weights, tensor(r.ctx, N, M, "x"), &r.at);
    struct gg_tensor *root = kind < 2 ? x : in(r.work, scale(r.ctx, x, 1), &r.at_work);
    struct gg_tensor *third = view(r.ctx, view(r.ctx, root, N * 4, ROW), N, ROW);
    struct gg_tensor *twice = in(r.work, scale(r.ctx, third, 2), &r.at_work);
    twice->flags |= GG_FLAG_OUTPUT;
    struct gg_tensor *fifth = view(r.ctx, root, N, 4 * ROW);
    struct gg_tensor *copy = over(scale(r.ctx, twice, 1), fifth);
    copy->op = CPY;
    copy->src[1] = fifth;
    struct gg_tensor *half = view(r.ctx, root, N / 2, 0);
    half->ne[1] = M;
    half->nb[1] = ROW;
    half->nb[2] = half->nb[3] = ROW * M;
    struct gg_tensor *columns = over(scale(r.ctx, half, 5), half);
    struct gg_tensor *all = in(r.work, scale(r.ctx, root, 1), &r.at_work);
    struct gg_cgraph *g = graph_of(r.ctx, twice, 0);
    struct gg_tensor *more[] = {copy, columns, all};
    for (int i = 0; i < 3; i++) add_node(g, more[i]);
    set(x, r.values, 0, BYTES);
    memcpy(want, r.values, sizeof want);
    for (int i = 0; i < N; i++) want[4 * N + i] = 2 * want[2 * N + i];
    for (int i = 0; i < N * M; i++) want[i] *= i % N < N / 2 ? 5 : 1;
    expect(compute(g) == GG_STATUS_SUCCESS, "status of views");
    get(twice, got, ROW);
    expect(!differ(got, r.values + 2 * N, N, 2), "a view of a view");
    get(all, got, sizeof got);
    expect(!differ(got, want, N * M, 1), "a tensor that was written through views");
    get(root, got, sizeof got);
    expect(!differ(got, want, N * M, 1), "its bytes afterwards");
    end(&r);
}

/* A part writes over an input, which the next part reads. */
static void check_input_written_in_place(void) {
    typedef void (*usage_fn)(struct gg_buffer *, int);
    struct remote r;
    float got[N * M];
    make(&r);
    CALL(usage_fn, "ggml_backend_buffer_set_usage")(r.work, GG_USAGE_COMPUTE);
    struct gg_tensor *x = in(r.work, tensor(r.ctx, N, M, "x"), &r.at_work);
    struct gg_tensor *thrice = over(scale(r.ctx, x, 3), x), *made[2];
    for (int i = 0; i < 2; i++) made[i] = in(r.work, scale(r.ctx, i ? x : thrice, 2), &r.at_work);
    struct gg_cgraph *g = graph_of(r.ctx, made[0], 0);
    add_node(g, made[1]);
    for (int round = 0; round < 2; round++) {
        set(x, r.values, 0, BYTES);
        for (int i = 0; i < 2; i++) {
            struct gg_cgraph part = *g;
            part.nodes = g->nodes + 2 * i;
            part.n_nodes = 2 - i;
            set_uid(&part, 301 + (uint64_t)i);
            expect(compute(&part) == GG_STATUS_SUCCESS, "status of a part that writes an input");
        }
        for (int i = 0; i < 2; i++) {
            get(made[i], got, sizeof got);
            expect(!differ(got, r.values, N * M, 6), "an input that a part writes over");
        }
    }
    end(&r);
}

/* A device that computes beside rank 0 still has results to write when their buffer is freed. */
static void check_buffer_that_is_freed(void) {
    struct remote r;
    float got[N * M];
    make(&r);
    struct gg_tensor *w = in(r.weights, tensor(r.ctx, N, M, "w"), &r.at);
    struct gg_tensor *twice = in(r.work, scale(r.ctx, w, 2), &r.at_work);
    set(w, r.values, 0, BYTES);
    expect(start(graph_of(r.ctx, twice, 0)) == GG_STATUS_SUCCESS, "status before its buffer goes");
    struct gg_buffer *other = alloc(1 << 14); /* elsewhere */
    r.work->iface.free_buffer(r.work);
    r.work = other;
    r.at_work = 0;
    in(r.work, twice, &r.at_work);
    expect(start(graph_of(r.ctx, twice, 0)) == GG_STATUS_SUCCESS, "status in another buffer");
    get(twice, got, sizeof got); /* waits */
    expect(!differ(got, r.values, N * M, 2), "a result in another buffer");
    end(&r);
}

int main(int argc, char **argv) {
    void *plugin = argc < 4 ? NULL : load(argv);
    struct gg_reg *reg = plugin ? registry(plugin) : NULL;
    if (!reg) return 3;
    n_devices = reg->iface.get_device_count(reg);
    for (size_t i = 0; i < n_devices; i++) {
        dev = reg->iface.get_device(reg, i);
        backend = dev->iface.init_backend(dev, NULL);
        check_views_without_source();
        check_view_over_another();
        check_other_shapes();
        check_one_buffer();
        check_two_buffers();
        check_operands();
        check_two_of_a_weight();
        check_empty_operand();
        check_strided_leaf();
        check_inputs_by_turns();
        check_tensors_over_others();
        check_another_type();
        check_parts();
        for (int kind = 0; kind < 3; kind++) check_views_of(kind);
        check_input_written_in_place();
        check_buffer_that_is_freed();
        backend->iface.free(backend);
    }
    if (!failures) puts("ok");
    return failures != 0;
}
