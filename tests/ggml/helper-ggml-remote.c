/* What a program sees that computes for another one, as ggml-rpc-server does: buffers of which it does not
 * know what they are for, views that have lost the tensor that they show, copies of views as leaves.
 * Then tensors that lie over others.
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
        CALL(void (*)(struct gg_cgraph *, struct gg_tensor *), "ggml_build_forward_expand")(g, last);
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
        expect(!differ(got, r.values + HALF, HALF, 1), "a part that is read in the place of another");
        set(part[1], other + HALF, 0, BYTES / 2);
        set(part[0], other, 0, BYTES / 2);
        expect(compute(g2) == GG_STATUS_SUCCESS, "status of two tensors over one");
        get(sum, got, BYTES / 2);
        int wrong = 0;
        for (int i = 0; i < HALF; i++) wrong += got[i] != other[i] + other[HALF + i];
        expect(!wrong, "two tensors over one");
        get(whole, got, sizeof got);
        expect(!differ(got, other, N * M, 1), "the tensor over two that is read");
    }
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
        check_strided_leaf();
        check_inputs_by_turns();
        check_tensors_over_others();
        backend->iface.free(backend);
    }
    if (!failures) puts("ok");
    return failures != 0;
}
