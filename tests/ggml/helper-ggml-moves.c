/* Graphs whose views of caches move from token to token, as those of whisper.cpp and of old llama.cpp:
 * keys go to a row of one cache and a stretch of another, values to a column of a third, and attention
 * reads a window of them.
 *     helper-ggml-moves LIBRARY PLUGIN API [count | memory]
 * Prints "ok" when all results were right. count: allocations are counted, too: the first tokens make
 * some, later ones none. memory: allocations fail. */
#include "count_allocations.h"
#include "ggml_host.h"
#include "sanitizer.h"

enum { N = 72, CELLS = 8, WINDOW = 2, TOKENS = 90, WARM = 70, MAX_WORK = 1 << 16 };
enum { CPY = 5 }; /* of the fake ggml */

/* ---- allocations ---- */

enum when { NEVER, FIRST, LATER, N_WHEN };
static long n_made[N_WHEN];

static int counted(struct gg_cgraph *g, enum when when) {
    const long before = n_allocations;
    counts_allocations = when != NEVER;
    const int status = compute(g);
    counts_allocations = false;
    n_made[when] += n_allocations - before;
    return status;
}

/* ---- the caches and what must be in them ---- */

struct caches {
    void *ctx;
    struct gg_buffer *buffer, *work;
    struct gg_tensor *rows, *flat, *columns; /* [N, CELLS], [N.CELLS], [CELLS, N] */
    float keys[CELLS][N], values[CELLS][N];
};

static void *new_ctx(void) {
    return CALL(void *(*)(struct gg_init_params),
                "ggml_init")((struct gg_init_params){.mem_size = 1 << 20});
}

static void make(struct caches *c) {
    static const float zeros[CELLS * N];
    typedef void (*usage_fn)(struct gg_buffer *, int);
    size_t at = 0;
    memset(c, 0, sizeof *c);
    c->ctx = new_ctx();
    c->buffer = alloc(1 << 14);
    c->work = alloc(MAX_WORK);
    CALL(usage_fn, "ggml_backend_buffer_set_usage")(c->work, GG_USAGE_COMPUTE);
    c->rows = tensor(c->ctx, N, CELLS, "rows");
    c->flat = tensor(c->ctx, N * CELLS, 1, "flat");
    c->columns = tensor(c->ctx, CELLS, N, "columns");
    struct gg_tensor *all[] = {c->rows, c->flat, c->columns};
    for (int i = 0; i < 3; i++) {
        put_at(c->buffer, all[i], &at);
        set(all[i], zeros, 0, sizeof zeros);
    }
}

/* A view of ne[0] x ne[1] whose rows lie nb1 bytes apart. */
static struct gg_tensor *window(void *ctx, struct gg_tensor *a, int64_t n, int64_t m, size_t nb1,
                                size_t offset) {
    struct gg_tensor *t = view(ctx, a, n, offset);
    t->ne[1] = m;
    t->nb[1] = nb1;
    t->nb[2] = t->nb[3] = nb1 * (size_t)m;
    return t;
}

static struct gg_tensor *copy(void *ctx, struct gg_tensor *from, struct gg_tensor *to) {
    struct gg_tensor *t = window(ctx, to, to->ne[0], to->ne[1], to->nb[1], 0);
    t->op = CPY;
    t->src[0] = from;
    t->src[1] = to;
    return t;
}

struct token {
    void *ctx;
    struct gg_tensor *key, *value, *result[3];
    struct gg_cgraph *graph;
};

/* The graph of a token at cell `at`, which reads the cells from `first`. */
static void build(const struct caches *c, int at, int first, uint64_t uid, struct token *t) {
    const size_t row = N * sizeof(float), cell = sizeof(float);
    struct gg_tensor *a[6], *plain[2];
    size_t end = 0;
    t->ctx = new_ctx();
    t->key = tensor(t->ctx, N, 1, "key");
    t->value = tensor(t->ctx, 1, N, "value");
    plain[0] = scale(t->ctx, t->key, 2);
    plain[1] = scale(t->ctx, t->value, 3);
    struct gg_tensor *mine[] = {t->key, t->value, plain[0], plain[1]};
    for (int i = 0; i < 4; i++) put_at(c->work, mine[i], &end);
    a[0] = copy(t->ctx, plain[0], view(t->ctx, c->rows, N, (size_t)at * row));
    a[1] = copy(t->ctx, plain[0], view(t->ctx, c->flat, N, (size_t)at * row));
    a[2] =
        copy(t->ctx, plain[1], window(t->ctx, c->columns, 1, N, CELLS * cell, (size_t)at * cell));
    a[3] = window(t->ctx, c->rows, N, WINDOW, row, (size_t)first * row);
    a[4] = view(t->ctx, c->flat, N * WINDOW, (size_t)first * row);
    a[5] = window(t->ctx, c->columns, WINDOW, N, CELLS * cell, (size_t)first * cell);
    t->graph = graph_of(t->ctx, a[0], uid);
    for (int i = 1; i < 6; i++) {
        struct gg_tensor *node = i < 3 ? a[i] : scale(t->ctx, a[i], (float)i);
        if (i >= 3) { /* dense, unlike its operand */
            node->nb[1] = cell * (size_t)node->ne[0];
            node->nb[2] = node->nb[3] = node->nb[1] * (size_t)node->ne[1];
            put_at(c->work, t->result[i - 3] = node, &end);
        }
        add_node(t->graph, node);
    }
}

/* The inputs of a token, and what they leave in the caches. */
static void give(struct caches *c, const struct token *t, int at, int number) {
    float x[N];
    for (int i = 0; i < N; i++) {
        x[i] = (float)(number * 100 + i);
        c->keys[at][i] = 2 * x[i];
        c->values[at][i] = 3 * x[i];
    }
    set(t->key, x, 0, sizeof x);
    set(t->value, x, 0, sizeof x);
}

static void check_results(const struct caches *c, const struct token *t, int first) {
    float got[3][WINDOW * N];
    int wrong = 0;
    for (int k = 0; k < 3; k++) get(t->result[k], got[k], sizeof got[k]);
    for (int w = 0; w < WINDOW; w++) {
        for (int i = 0; i < N; i++) {
            wrong += got[0][w * N + i] != 3 * c->keys[first + w][i];
            wrong += got[1][w * N + i] != 4 * c->keys[first + w][i];
            wrong += got[2][i * WINDOW + w] != 5 * c->values[first + w][i];
        }
    }
    expect(!wrong, "what attention reads");
}

static void run(struct caches *c, const struct token *t, int at, int first, int number,
                enum when when) {
    give(c, t, at, number);
    expect(counted(t->graph, when) == GG_STATUS_SUCCESS, "status of a token");
    check_results(c, t, first);
}

static void check_caches(const struct caches *c) {
    float rows[CELLS][N], flat[CELLS][N], columns[N][CELLS];
    int wrong = 0;
    get(c->rows, rows, sizeof rows);
    get(c->flat, flat, sizeof flat);
    get(c->columns, columns, sizeof columns);
    for (int k = 0; k < CELLS; k++)
        for (int i = 0; i < N; i++)
            wrong += rows[k][i] != c->keys[k][i] || flat[k][i] != c->keys[k][i] ||
                     columns[i][k] != c->values[k][i];
    expect(!wrong, "the caches");
}

static void free_token(const struct token *t) { CALL(void (*)(void *), "ggml_free")(t->ctx); }

/* The first cell that a token reads: often its own or the one before, not always. */
static int first_of(int number, int at) {
    const int first = number % 5 == 4 ? at / 3 : at - number % 2;
    return first < 0 ? 0 : first > CELLS - WINDOW ? CELLS - WINDOW : first;
}

static void check_tokens(struct caches *c, bool count_all) {
    for (int i = 0; i < TOKENS; i++) {
        const int at = i * 3 % CELLS, first = first_of(i, at);
        struct token t;
        build(c, at, first, (uint64_t)i + 100, &t);
        run(c, &t, at, first, i, !count_all ? NEVER : i < WARM ? FIRST : LATER);
        free_token(&t);
    }
    check_caches(c);
}

/* A graph that is computed again has its own offsets again. */
static void check_turns(struct caches *c) {
    struct token a, b;
    build(c, 1, 0, 1001, &a);
    build(c, 6, 5, 1002, &b);
    for (int i = 0; i < 4; i++) {
        run(c, &a, 1, 0, 50 + 2 * i, NEVER);
        run(c, &b, 6, 5, 51 + 2 * i, NEVER);
    }
    free_token(&a);
    free_token(&b);
    check_caches(c);
}

static void end(const struct caches *c) {
    c->buffer->iface.free_buffer(c->buffer);
    c->work->iface.free_buffer(c->work);
    CALL(void (*)(void *), "ggml_free")(c->ctx);
}

/* Has the caches placed on the ranks; a run that sends nothing. */
static void place(const struct caches *c) {
    struct gg_tensor *all[] = {c->rows, c->flat, c->columns};
    struct gg_cgraph *g = NULL;
    size_t end = 0;
    for (int i = 0; i < 3; i++) {
        struct gg_tensor *twice = scale(c->ctx, all[i], 2);
        put_at(c->work, twice, &end);
        if (!i) g = graph_of(c->ctx, twice, 1998);
        add_node(g, twice);
    }
    expect(compute(g) == GG_STATUS_SUCCESS, "a graph of caches");
}

static bool fails_at(const struct token *t, int n) {
    failing = n;
    const bool failed = counted(t->graph, FIRST) != GG_STATUS_SUCCESS;
    failing = 0;
    return failed;
}

/* The first token that is computed, again and again until no allocation fails: so those fail, too, that are made once in
 * a program's life. What an attempt has made is there in the next one, which then would pass over those that come behind:
 * hence the first few after each. */
static void fail_at_first(void) {
    enum { FEW = 8 };
    struct caches c;
    struct token t;
    bool failed = true;
    make(&c);
    place(&c);
    build(&c, 2, 1, 1999, &t);
    give(&c, &t, 2, 1);
    for (int n = 1; failed; n++) {
        failed = fails_at(&t, n);
        for (int few = 1; few <= FEW && failed; few++) failed = fails_at(&t, few);
    }
    check_results(&c, &t, 1);
    check_caches(&c);
    free_token(&t);
    end(&c);
}

/* Each allocation of the first two tokens of new caches fails once: the graph fails, or does without. Computed
 * again it is right. */
static void check_memory(void) {
    int n_failed = 0, none = 0;
    fail_at_first();
    for (int n = 1; !none; n++) {
        struct caches c;
        make(&c);
        failing = n;
        for (int i = 0; i < 2; i++) {
            struct token t;
            build(&c, 3 * i + 2, 2 * i + 1, (uint64_t)(2 * n + i) + 2000, &t);
            give(&c, &t, 3 * i + 2, i + 1);
            const int status = counted(t.graph, FIRST);
            n_failed += status != GG_STATUS_SUCCESS;
            if (status != GG_STATUS_SUCCESS)
                expect(counted(t.graph, NEVER) == GG_STATUS_SUCCESS, "after a failed allocation");
            check_results(&c, &t, 2 * i + 1);
            free_token(&t);
        }
        none = failing > 0;
        failing = 0;
        check_caches(&c);
        end(&c);
    }
    printf("%d graphs failed for lack of memory\n", n_failed);
}

static void check_outside(struct caches *c) {
    struct token t;
    build(c, CELLS, 0, 1003, &t);
    expect(compute(t.graph) == GG_STATUS_FAILED, "a view that ends outside of its cache");
    free_token(&t);
    build(c, 2, 1, 1004, &t);
    run(c, &t, 2, 1, 70, NEVER);
    free_token(&t);
    check_caches(c);
}

int main(int argc, char **argv) {
    void *plugin = argc < 4 ? NULL : load(argv);
    const char *mode = argc > 4 && !SANITIZED ? argv[4] : "";
    const bool count_all = !strcmp(mode, "count");
    struct gg_reg *reg = plugin ? registry(plugin) : NULL;
    if (!reg) return 3;
    n_devices = reg->iface.get_device_count(reg);
    for (size_t i = 0; i < n_devices; i++) {
        struct caches c;
        dev = reg->iface.get_device(reg, i);
        backend = dev->iface.init_backend(dev, NULL);
        if (!strcmp(mode, "memory")) check_memory();
        make(&c);
        check_tokens(&c, count_all);
        check_turns(&c);
        check_outside(&c);
        end(&c);
        backend->iface.free(backend);
    }
    printf("%ld allocations, %ld later\n", n_made[FIRST], n_made[LATER]);
    expect(!count_all || n_made[FIRST] > 0, "the first tokens' allocations are counted");
    expect(n_made[LATER] == 0, "a token allocates nothing");
    if (!failures) puts("ok");
    return failures != 0;
}
