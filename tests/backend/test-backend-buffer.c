/* Buffers as the interface promises them: multi-buffers, memory of the caller's, two-dimensional
 * transfers, filling, copies between any two buffers, memory kinds; copies of graphs and the
 * comparison of backends. */
#include <criterion/criterion.h>
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "sheaf/sheaf.h"

#define OK(call) cr_assert_eq((call), SHEAF_STATUS_SUCCESS, "%s: %s", #call, sheaf_last_error())

static sheaf_backend_dev_t cpu(void) { return sheaf_backend_dev_get(0); }

static struct sheaf_context *context(void) {
    return sheaf_init((struct sheaf_init_params){.mem_size = 64 * sheaf_tensor_overhead() +
                                                             sheaf_graph_overhead_custom(32),
                                                 .no_alloc = true});
}

/* A meta device of one or two members; dimension 1 is cut, if there is one. */
static enum sheaf_status cut_rows(const struct sheaf_tensor *t, const void *user,
                                  struct sheaf_split_state **out) {
    const int n = *(const int *)user;
    if (n == 1 || t->ne[1] < 2) {
        *out = sheaf_split_state_mirrored(n);
    } else {
        *out = sheaf_split_state_cut(SHEAF_SPLIT_AXIS_1, n, (int64_t[]){1, t->ne[1] - 1}, 1);
    }
    return *out ? SHEAF_STATUS_SUCCESS : SHEAF_STATUS_ALLOC_FAILED;
}

/* ---- multi-buffers ---- */

Test(buffer, a_multi_buffer_speaks_for_its_parts) {
    sheaf_backend_buffer_type_t buft = sheaf_backend_dev_buffer_type(cpu());
    sheaf_backend_buffer_t parts[2], all;
    OK(sheaf_backend_buft_alloc_buffer(buft, 100, &parts[0]));
    OK(sheaf_backend_buft_alloc_buffer(buft, 3000, &parts[1]));
    OK(sheaf_backend_multi_buffer_alloc_buffer(parts, 2, &all));
    cr_assert(sheaf_backend_buffer_is_multi_buffer(all));
    cr_assert(!sheaf_backend_buffer_is_multi_buffer(parts[0]));
    cr_assert_eq(sheaf_backend_buffer_get_size(all), 3100);
    cr_assert_eq(sheaf_backend_buffer_get_type(all), buft);
    cr_assert_null(sheaf_backend_buffer_get_base(all));
    cr_assert_str_eq(sheaf_backend_buffer_name(all), "CPU0");
    cr_assert_eq(sheaf_backend_buffer_get_max_size(all), SIZE_MAX);
    OK(sheaf_backend_buffer_clear(all, 0x5A));
    for (int i = 0; i < 2; i++) {
        const char *p = sheaf_backend_buffer_get_base(parts[i]);
        cr_assert(p[0] == 0x5A && p[sheaf_backend_buffer_get_size(parts[i]) - 1] == 0x5A);
    }
    sheaf_backend_buffer_set_usage(all, SHEAF_BACKEND_BUFFER_USAGE_WEIGHTS);
    cr_assert_eq(sheaf_backend_buffer_get_usage(all), SHEAF_BACKEND_BUFFER_USAGE_WEIGHTS);
    cr_assert_eq(sheaf_backend_buffer_get_usage(parts[1]), SHEAF_BACKEND_BUFFER_USAGE_WEIGHTS);
    OK(sheaf_backend_buffer_reset(all));
    /* tensors lie in the parts */
    struct sheaf_context *ctx =
        sheaf_init((struct sheaf_init_params){.mem_size = 1 << 14, .no_alloc = true});
    struct sheaf_tensor *t = sheaf_new_tensor_1d(ctx, SHEAF_TYPE_F32, 4);
    struct sheaf_tallocr talloc;
    sheaf_tallocr_init(&talloc, all);
    cr_assert_eq(sheaf_tallocr_alloc(&talloc, t), SHEAF_STATUS_INVALID);
    cr_assert(strstr(sheaf_last_error(), "one of its parts"), "%s", sheaf_last_error());
    cr_assert_null(t->buffer);
    sheaf_free(ctx);
    sheaf_backend_buffer_free(all); /* and the parts: the leak checker sees */
}

Test(buffer, a_multi_buffer_wants_buffers) {
    sheaf_backend_buffer_t none[2] = {NULL, NULL}, all;
    cr_assert_eq(sheaf_backend_multi_buffer_alloc_buffer(none, 0, &all), SHEAF_STATUS_INVALID);
    cr_assert_eq(sheaf_backend_multi_buffer_alloc_buffer(none, 2, &all), SHEAF_STATUS_INVALID);
    cr_assert(strstr(sheaf_last_error(), "buffer 0 is NULL"), "%s", sheaf_last_error());
    cr_assert_null(all);
}

/* ---- clearing ---- */

static size_t resident(const unsigned char *p, size_t n) {
    const size_t page = (size_t)sysconf(_SC_PAGESIZE);
    unsigned char *in = malloc(n / page);
    size_t sum = 0;
    cr_assert(in && !mincore((void *)(uintptr_t)p, n, in));
    for (size_t i = 0; i < n / page; i++) sum += in[i] & 1;
    free(in);
    return sum * page;
}

/* A cache of a long context is cleared when it is made, and most of it may never be used. */
Test(buffer, a_new_buffer_is_cleared_without_being_touched) {
    enum { N = 64 << 20 };
    sheaf_backend_buffer_t buffer;
    OK(sheaf_backend_buft_alloc_buffer(sheaf_backend_dev_buffer_type(cpu()), N, &buffer));
    unsigned char *p = sheaf_backend_buffer_get_base(buffer);
    memset(p + N / 2, 1, 100); /* used before it is cleared */
    OK(sheaf_backend_buffer_clear(buffer, 0));
    cr_assert_eq(resident(p, N), 0);
    for (size_t i = 0; i < N; i += 64) cr_assert_eq(p[i], 0, "byte %zu", i);
    for (int value = 0; value < 3; value++) {
        memset(p, 3, N);
        OK(sheaf_backend_buffer_clear(buffer, (uint8_t)value));
        cr_assert_eq(resident(p, N), N, "memory that was used is used again");
        for (size_t i = 0; i < N; i++) cr_assert_eq(p[i], value, "byte %zu", i);
    }
    sheaf_backend_buffer_free(buffer);
    OK(sheaf_backend_buft_alloc_buffer(sheaf_backend_dev_buffer_type(cpu()), N, &buffer));
    p = sheaf_backend_buffer_get_base(buffer);
    OK(sheaf_backend_buffer_clear(buffer, 5));
    cr_assert(p[0] == 5 && p[N - 1] == 5);
    sheaf_backend_buffer_free(buffer);
    unsigned char in;
    cr_assert(mincore(p, 1, &in) && errno == ENOMEM, "its memory is given back");
}

/* From the heap or mapped. */
Test(buffer, memory_begins_at_a_line_of_the_cache) {
    sheaf_backend_buffer_t buffers[8];
    for (size_t i = 0; i < 8; i++) {
        OK(sheaf_backend_buft_alloc_buffer(sheaf_backend_dev_buffer_type(cpu()),
                                           i < 7 ? 16 * i : 1 << 20, &buffers[i]));
        cr_expect_eq((uintptr_t)sheaf_backend_buffer_get_base(buffers[i]) % 64, 0, "buffer %zu", i);
    }
    for (size_t i = 0; i < 8; i++) sheaf_backend_buffer_free(buffers[i]);
}

/* ---- memory of the caller's ---- */

Test(buffer, around_memory_of_the_caller) {
    static _Alignas(64) float store[128];
    float *const memory = store + 64;
    const size_t bytes = 64 * sizeof *memory;
    sheaf_backend_buffer_t buffer;
    OK(sheaf_backend_dev_buffer_from_host_ptr(cpu(), memory, bytes, bytes, &buffer));
    cr_assert_eq(sheaf_backend_buffer_get_base(buffer), memory);
    cr_assert(sheaf_backend_buffer_is_host(buffer));
    struct sheaf_context *ctx = context();
    struct sheaf_tensor *t = sheaf_new_tensor_1d(ctx, SHEAF_TYPE_F32, 8);
    struct sheaf_tensor *view = sheaf_view_1d(ctx, t, 2, 3 * sizeof(float));
    cr_assert_eq(sheaf_backend_view_init(view), SHEAF_STATUS_INVALID, "its owner has no memory");
    OK(sheaf_backend_tensor_alloc(buffer, t, memory + 16));
    OK(sheaf_backend_view_init(view));
    memory[16 + 4] = 42;
    float got = 0;
    OK(sheaf_backend_tensor_get(view, &got, sizeof(float), sizeof got));
    cr_assert_eq(got, 42);
    const float set = 7;
    OK(sheaf_backend_tensor_set(t, &set, 0, sizeof set));
    cr_assert_eq(memory[16], 7);
    struct sheaf_tensor *u = sheaf_new_tensor_1d(ctx, SHEAF_TYPE_F32, 8);
    cr_assert_eq(sheaf_backend_tensor_alloc(buffer, u, memory + 60), SHEAF_STATUS_INVALID);
    cr_assert_eq(sheaf_backend_tensor_alloc(buffer, u, memory - 1), SHEAF_STATUS_INVALID);
    sheaf_backend_buffer_free(buffer);
    cr_assert_eq(memory[16], 7, "the memory stays the caller's");

    OK(sheaf_backend_cpu_buffer_from_ptr(memory, bytes, &buffer));
    OK(sheaf_backend_buffer_clear(buffer, 0xFF));
    cr_assert(isnan(memory[0]) && isnan(memory[63]) && store[63] == 0, "all of it, and no more");
    sheaf_backend_buffer_free(buffer);
    cr_assert_eq(sheaf_backend_cpu_buffer_from_ptr(NULL, 4, &buffer), SHEAF_STATUS_INVALID);
    OK(sheaf_backend_cpu_buffer_from_ptr(NULL, 0, &buffer));
    OK(sheaf_backend_buffer_clear(buffer, 1));
    sheaf_backend_buffer_free(buffer);
    sheaf_free(ctx);
}

Test(buffer, devices_say_whether_they_wrap_host_memory) {
    struct sheaf_backend_dev_props props;
    sheaf_backend_dev_get_props(cpu(), &props);
    cr_assert(props.caps.buffer_from_host_ptr);
    cr_assert_null(sheaf_backend_dev_host_buffer_type(cpu()), "its own memory is host memory");
    sheaf_backend_dev_t meta, member = cpu();
    int n = 1;
    OK(sheaf_backend_meta_device(&member, 1, cut_rows, &n, NULL, &meta));
    sheaf_backend_dev_get_props(meta, &props);
    cr_assert(!props.caps.buffer_from_host_ptr);
    sheaf_backend_buffer_t buffer;
    char byte;
    cr_assert_eq(sheaf_backend_dev_buffer_from_host_ptr(meta, &byte, 1, 1, &buffer),
                 SHEAF_STATUS_UNSUPPORTED);
    cr_assert_null(buffer);
    sheaf_backend_meta_device_free(meta);
}

/* ---- ranges, in two dimensions too, on host memory and on slices ---- */

static void two_dimensional(sheaf_backend_dev_t dev) {
    enum { W = 12, H = 5 };
    struct sheaf_context *ctx = context();
    struct sheaf_tensor *t = sheaf_new_tensor_2d(ctx, SHEAF_TYPE_F32, W, H);
    sheaf_backend_buffer_t buffer;
    OK(sheaf_backend_alloc_ctx_tensors_from_buft(ctx, sheaf_backend_dev_buffer_type(dev), &buffer));
    float whole[H][W], piece[H][3], want[H][W], back[H][2] = {{0}};
    const size_t f = sizeof(float);
    for (int i = 0; i < H * W; i++) whole[i / W][i % W] = want[i / W][i % W] = (float)i;
    for (int i = 0; i < H * 3; i++) piece[i / 3][i % 3] = (float)(1000 + i);
    OK(sheaf_backend_tensor_set(t, whole, 0, sizeof whole));
    OK(sheaf_backend_tensor_set_2d(t, piece, 4 * f, 2 * f, H, W * f, 3 * f));
    for (int i = 0; i < H; i++) want[i][4] = piece[i][0], want[i][5] = piece[i][1];
    OK(sheaf_backend_tensor_memset(t, 0, (W + 1) * f, 3 * f)); /* row 1, from column 1 */
    for (int i = 1; i < 4; i++) want[1][i] = 0;
    OK(sheaf_backend_tensor_get(t, whole, 0, sizeof whole));
    cr_assert(!memcmp(whole, want, sizeof whole), "%s", sheaf_backend_dev_name(dev));
    OK(sheaf_backend_tensor_get_2d(t, back, 5 * f, f, H, W * f, 2 * f));
    for (int i = 0; i < H; i++) cr_assert(back[i][0] == want[i][5] && back[i][1] == 0);
    /* nothing to do, and too much */
    OK(sheaf_backend_tensor_set_2d(t, piece, 0, f, 0, W * f, f));
    OK(sheaf_backend_tensor_set(t, piece, sizeof whole, 0));
    cr_assert_eq(sheaf_backend_tensor_set_2d(t, piece, 4 * f, 2 * f, H + 1, W * f, f),
                 SHEAF_STATUS_INVALID);
    cr_assert_eq(sheaf_backend_tensor_get_2d(t, back, 0, f, 2, SIZE_MAX, f), SHEAF_STATUS_INVALID);
    cr_assert_eq(sheaf_backend_tensor_memset(t, 0, 4, sizeof whole), SHEAF_STATUS_INVALID);
    sheaf_backend_buffer_free(buffer);
    sheaf_free(ctx);
}

/* Data in a context's own memory belong to no buffer, and a place in a buffer may have none. */
Test(buffer, transfers_want_memory_of_a_buffer) {
    struct sheaf_context *ctx =
        sheaf_init((struct sheaf_init_params){2 * sheaf_tensor_overhead() + 4096, NULL, false});
    struct sheaf_tensor *t = sheaf_new_tensor_1d(ctx, SHEAF_TYPE_F32, 4);
    sheaf_backend_buffer_t buffer;
    float x[4] = {0};
    sheaf_set_name(t, "x");
    cr_assert(t->data && !t->buffer);
    cr_expect_eq(sheaf_backend_tensor_set(t, x, 0, sizeof x), SHEAF_STATUS_INVALID);
    cr_expect_str_eq(sheaf_last_error(), "set tensor 'x': the tensor has no memory yet");
    OK(sheaf_backend_buft_alloc_buffer(sheaf_backend_dev_buffer_type(cpu()), 64, &buffer));
    t->buffer = buffer;
    t->data = NULL;
    cr_expect_eq(sheaf_backend_tensor_get(t, x, 0, sizeof x), SHEAF_STATUS_INVALID);
    cr_expect_str_eq(sheaf_last_error(), "get tensor 'x': the tensor has no memory yet");
    sheaf_backend_buffer_free(buffer);
    sheaf_free(ctx);
}
Test(buffer, two_dimensional_transfers) { two_dimensional(cpu()); }

static sheaf_backend_dev_t meta_of(int *n, sheaf_backend_dev_t *meta) {
    sheaf_backend_dev_t members[2] = {sheaf_backend_dev_get(0), sheaf_backend_dev_get(1)};
    cr_assert_not_null(members[*n - 1]);
    OK(sheaf_backend_meta_device(members, (size_t)*n, cut_rows, n, NULL, meta));
    return *meta;
}

Test(buffer, two_dimensional_transfers_of_slices) {
    setenv("SHEAF_CPU_DEVICES", "2", 1);
    for (int n = 1; n <= 2; n++) {
        sheaf_backend_dev_t meta;
        two_dimensional(meta_of(&n, &meta));
        sheaf_backend_meta_device_free(meta);
    }
}

/* From every kind of buffer into every kind; whole tensors and a strided view. */
Test(buffer, copies_between_any_two_buffers) {
    setenv("SHEAF_CPU_DEVICES", "2", 1);
    enum { KINDS = 5, W = 8, H = 6 };
    int one = 1, two = 2;
    sheaf_backend_dev_t meta1, meta2;
    meta_of(&one, &meta1);
    meta_of(&two, &meta2);
    static _Alignas(64) char memory[4096];
    struct sheaf_context *ctx[KINDS];
    sheaf_backend_buffer_t buffer[KINDS];
    struct sheaf_tensor *t[KINDS];
    const sheaf_backend_dev_t devs[KINDS] = {sheaf_backend_dev_get(0), sheaf_backend_dev_get(1),
                                             NULL, meta1, meta2};
    for (int k = 0; k < KINDS; k++) {
        ctx[k] = context();
        t[k] = sheaf_new_tensor_2d(ctx[k], SHEAF_TYPE_F32, W, H);
        if (devs[k]) {
            OK(sheaf_backend_alloc_ctx_tensors_from_buft(
                ctx[k], sheaf_backend_dev_buffer_type(devs[k]), &buffer[k]));
        } else {
            OK(sheaf_backend_cpu_buffer_from_ptr(memory, sizeof memory, &buffer[k]));
            OK(sheaf_backend_tensor_alloc(buffer[k], t[k], memory));
        }
    }
    for (int from = 0; from < KINDS; from++) {
        for (int to = 0; to < KINDS; to++) {
            float in[H][W], out[H][W], zero[H][W] = {{0}};
            for (int i = 0; i < W * H; i++) in[i / W][i % W] = (float)(i + 100 * from + 7 * to + 1);
            OK(sheaf_backend_tensor_set(t[to], zero, 0, sizeof zero));
            OK(sheaf_backend_tensor_set(t[from], in, 0, sizeof in));
            OK(sheaf_backend_tensor_copy(t[from], t[to]));
            OK(sheaf_backend_tensor_get(t[to], out, 0, sizeof out));
            cr_assert(!memcmp(in, out, sizeof in), "%d to %d", from, to);
        }
    }
    struct sheaf_tensor *other = sheaf_new_tensor_2d(ctx[0], SHEAF_TYPE_F32, H, W);
    cr_assert_eq(sheaf_backend_tensor_copy(t[0], other), SHEAF_STATUS_INVALID);
    struct sheaf_tensor *bare = sheaf_dup_tensor(ctx[0], t[0]);
    cr_assert_eq(sheaf_backend_tensor_copy(t[0], bare), SHEAF_STATUS_INVALID, "no memory");
    for (int k = 0; k < KINDS; k++) {
        sheaf_backend_buffer_free(buffer[k]);
        sheaf_free(ctx[k]);
    }
    sheaf_backend_meta_device_free(meta1);
    sheaf_backend_meta_device_free(meta2);
}

/* ---- kinds of memory ---- */

Test(buffer, memory_kinds_of_this_machine) {
    const size_t n = sheaf_backend_cpu_n_memories(cpu());
    cr_assert_geq(n, 1);
    cr_assert_eq(sheaf_backend_cpu_memory_buffer_type(cpu(), 0),
                 sheaf_backend_dev_buffer_type(cpu()));
    cr_assert_eq(sheaf_backend_cpu_buffer_type(), sheaf_backend_dev_buffer_type(cpu()));
    cr_assert_str_eq(sheaf_backend_buft_name(sheaf_backend_cpu_buffer_type()), "CPU0");
    cr_assert_null(sheaf_backend_cpu_memory_buffer_type(cpu(), n));
    for (size_t i = 0; i < n; i++) {
        sheaf_backend_buffer_t b;
        OK(sheaf_backend_buft_alloc_buffer(sheaf_backend_cpu_memory_buffer_type(cpu(), i),
                                           (size_t)4 << 20, &b));
        OK(sheaf_backend_buffer_clear(b, 1));
        sheaf_backend_buffer_free(b);
    }
}

/* A machine as hwloc describes it: four cores with two memories. */
Test(buffer, memory_kinds_of_a_machine_with_two) {
    setenv("HWLOC_SYNTHETIC", "pack:1 [numa(memory=16GB)] [numa(memory=4GB)] core:4 pu:1", 1);
    sheaf_backend_dev_t dev = cpu();
    cr_assert_eq(sheaf_backend_reg_dev_count(sheaf_backend_cpu_reg()), 1,
                 "a second memory is not a second device");
    cr_assert_eq(sheaf_backend_cpu_n_memories(dev), 2);
    cr_assert_str_eq(sheaf_backend_buft_name(sheaf_backend_cpu_memory_buffer_type(dev, 0)), "CPU0");
    cr_assert_str_eq(sheaf_backend_buft_name(sheaf_backend_cpu_memory_buffer_type(dev, 1)),
                     "CPU0:NUMA1");
    sheaf_backend_buffer_t b;
    OK(sheaf_backend_buft_alloc_buffer(sheaf_backend_cpu_memory_buffer_type(dev, 1), 100, &b));
    cr_assert(sheaf_backend_dev_supports_buft(dev, sheaf_backend_buffer_get_type(b)));
    sheaf_backend_buffer_free(b);
}

/* ---- copies of graphs ---- */

struct model {
    struct sheaf_context *ctx;
    sheaf_backend_buffer_t buffer;
    struct sheaf_tensor *w, *x, *cache, *h, *y;
    struct sheaf_cgraph *graph;
};

/* y = relu(w x)^T w', with a cache written through a view and read back. */
static void build(struct model *m) {
    m->ctx = context();
    m->w = sheaf_set_name(sheaf_new_tensor_2d(m->ctx, SHEAF_TYPE_F32, 8, 6), "w");
    m->x = sheaf_set_name(sheaf_new_tensor_2d(m->ctx, SHEAF_TYPE_F32, 8, 3), "x");
    m->cache = sheaf_set_name(sheaf_new_tensor_2d(m->ctx, SHEAF_TYPE_F32, 6, 10), "cache");
    OK(sheaf_backend_alloc_ctx_tensors_from_buft(m->ctx, sheaf_backend_cpu_buffer_type(),
                                                 &m->buffer));
    float v[64];
    for (int i = 0; i < 64; i++) v[i] = sinf((float)i);
    OK(sheaf_backend_tensor_set(m->w, v, 0, sheaf_nbytes(m->w)));
    OK(sheaf_backend_tensor_set(m->x, v + 5, 0, sheaf_nbytes(m->x)));
    OK(sheaf_backend_tensor_set(m->cache, v + 2, 0, sheaf_nbytes(m->cache)));
    m->h = sheaf_set_name(sheaf_relu(m->ctx, sheaf_mul_mat(m->ctx, m->w, m->x)), "h");
    struct sheaf_tensor *rows =
        sheaf_view_2d(m->ctx, m->cache, 6, 3, m->cache->nb[1], 4 * m->cache->nb[1]);
    struct sheaf_tensor *written = sheaf_cpy(m->ctx, m->h, rows);
    m->y = sheaf_set_name(
        sheaf_add(m->ctx, sheaf_scale(m->ctx, written, 2), sheaf_scale(m->ctx, rows, 0)), "y");
    m->graph = sheaf_new_graph_custom(m->ctx, 32);
    OK(sheaf_build_forward_expand(m->graph, m->y));
}

static void unbuild(struct model *m) {
    sheaf_backend_buffer_free(m->buffer);
    sheaf_free(m->ctx);
}

Test(graph_copy, runs_elsewhere_and_leaves_the_original_alone) {
    setenv("SHEAF_CPU_DEVICES", "2", 1);
    struct model m;
    build(&m);
    sheaf_backend_t backend;
    float before[60], after[60], want[18] = {0}, got[18];
    OK(sheaf_backend_tensor_get(m.cache, before, 0, sizeof before));
    for (int kind = 0; kind < 3; kind++) { /* CPU1, meta of 1, meta of 2 */
        sheaf_backend_dev_t meta = NULL;
        int n = kind;
        OK(sheaf_backend_dev_init(kind ? meta_of(&n, &meta) : sheaf_backend_dev_get(1), NULL,
                                  &backend));
        struct sheaf_backend_graph_copy copy;
        OK(sheaf_backend_graph_copy(backend, m.graph, &copy));
        cr_assert_eq(sheaf_graph_n_nodes(copy.graph), sheaf_graph_n_nodes(m.graph));
        for (int i = 0; i < sheaf_graph_n_nodes(m.graph); i++) {
            const struct sheaf_tensor *a = sheaf_graph_node(m.graph, i),
                                      *b = sheaf_graph_node(copy.graph, i);
            cr_assert(a != b && a->op == b->op && sheaf_are_same_layout(a, b));
            cr_assert_str_eq(a->name, b->name);
        }
        OK(sheaf_backend_graph_compute(backend, copy.graph));
        OK(sheaf_backend_tensor_get(sheaf_graph_get_tensor(copy.graph, "y"), got, 0, sizeof got));
        if (!kind) memcpy(want, got, sizeof got);
        cr_assert_neq(got[0], 0);
        for (int i = 0; i < 18; i++) cr_assert_float_eq(got[i], want[i], 1e-5, "kind %d", kind);
        OK(sheaf_backend_tensor_get(sheaf_graph_get_tensor(copy.graph, "h"), got, 0, sizeof got));
        for (int i = 0; i < 18; i++) cr_assert_float_eq(2 * got[i], want[i], 1e-5);
        sheaf_backend_graph_copy_free(&copy);
        sheaf_backend_graph_copy_free(&copy);
        sheaf_backend_free(backend);
        sheaf_backend_meta_device_free(meta);
    }
    OK(sheaf_backend_tensor_get(m.cache, after, 0, sizeof after));
    cr_assert(!memcmp(before, after, sizeof before));
    cr_assert_null(m.y->data);
    unbuild(&m);
}

/* Nodes before the part are leaves of the copy, views among them. */
Test(graph_copy, of_a_part_of_a_graph) {
    struct model m;
    build(&m);
    sheaf_backend_buffer_t buffer;
    OK(sheaf_backend_alloc_ctx_tensors_from_buft(m.ctx, sheaf_backend_cpu_buffer_type(), &buffer));
    sheaf_backend_t backend;
    OK(sheaf_backend_dev_init(cpu(), NULL, &backend));
    OK(sheaf_backend_graph_compute(backend, m.graph));
    const int n = sheaf_graph_n_nodes(m.graph);
    for (int first = 0; first < n; first++) {
        struct sheaf_cgraph *part = sheaf_graph_view(m.ctx, m.graph, first, n);
        struct sheaf_backend_graph_copy copy;
        OK(sheaf_backend_graph_copy(backend, part, &copy));
        cr_assert_eq(sheaf_graph_n_nodes(copy.graph), n - first, "from node %d", first);
        for (int i = 0; i < n - first; i++)
            cr_assert_eq(sheaf_graph_node(copy.graph, i)->op, sheaf_graph_node(part, i)->op,
                         "from node %d: node %d", first, i);
        OK(sheaf_backend_graph_compute(backend, copy.graph));
        float want[18], got[18];
        OK(sheaf_backend_tensor_get(m.y, want, 0, sizeof want));
        OK(sheaf_backend_tensor_get(sheaf_graph_node(copy.graph, -1), got, 0, sizeof got));
        cr_assert(!memcmp(want, got, sizeof want), "from node %d", first);
        sheaf_backend_graph_copy_free(&copy);
    }
    sheaf_backend_free(backend);
    sheaf_backend_buffer_free(buffer);
    unbuild(&m);
}

struct seen {
    int n, stop_at;
    double worst;
};

static bool compare(int node, struct sheaf_tensor *a, struct sheaf_tensor *b, void *user) {
    struct seen *s = user;
    float va[64], vb[64];
    (void)node;
    cr_assert(sheaf_are_same_layout(a, b));
    OK(sheaf_backend_tensor_get(a, va, 0, sheaf_nbytes(a)));
    OK(sheaf_backend_tensor_get(b, vb, 0, sheaf_nbytes(b)));
    for (int64_t i = 0; i < sheaf_nelements(a); i++)
        s->worst = fmax(s->worst, fabs((double)va[i] - (double)vb[i]));
    return ++s->n != s->stop_at;
}

Test(graph_copy, compares_backends_node_by_node) {
    setenv("SHEAF_CPU_DEVICES", "2", 1);
    struct model m;
    build(&m);
    sheaf_backend_t fast, slow;
    OK(sheaf_backend_dev_init(sheaf_backend_dev_get(0), NULL, &fast));
    OK(sheaf_backend_dev_init(sheaf_backend_dev_get(1), NULL, &slow));
    sheaf_backend_cpu_set_reference(slow, true);
    struct seen s = {0};
    OK(sheaf_backend_compare_graph_backend(fast, slow, m.graph, compare, &s, NULL, 0));
    cr_assert_eq(s.n, 6, "mul_mat relu cpy scale scale add, without the view: %d", s.n);
    cr_assert_lt(s.worst, 1e-5);
    s = (struct seen){0};
    struct sheaf_tensor *only[] = {m.h};
    OK(sheaf_backend_compare_graph_backend(fast, slow, m.graph, compare, &s, only, 1));
    cr_assert_eq(s.n, 1);
    s = (struct seen){.stop_at = 2};
    cr_assert_eq(sheaf_backend_compare_graph_backend(fast, slow, m.graph, compare, &s, NULL, 0),
                 SHEAF_STATUS_ABORTED);
    cr_assert_eq(s.n, 2);
    cr_assert(strstr(sheaf_last_error(), "node 1"), "%s", sheaf_last_error());
    sheaf_backend_free(fast);
    sheaf_backend_free(slow);
    unbuild(&m);
}

Test(graph_copy, wants_leaves_with_data) {
    struct sheaf_context *ctx = context();
    struct sheaf_tensor *x = sheaf_set_name(sheaf_new_tensor_1d(ctx, SHEAF_TYPE_F32, 4), "bare");
    struct sheaf_cgraph *graph = sheaf_new_graph_custom(ctx, 4);
    OK(sheaf_build_forward_expand(graph, sheaf_scale(ctx, x, 2)));
    sheaf_backend_t backend;
    OK(sheaf_backend_dev_init(cpu(), NULL, &backend));
    struct sheaf_backend_graph_copy copy;
    cr_assert_eq(sheaf_backend_graph_copy(backend, graph, &copy), SHEAF_STATUS_INVALID);
    cr_assert(strstr(sheaf_last_error(), "bare"), "%s", sheaf_last_error());
    cr_assert_null(copy.graph);
    sheaf_backend_free(backend);
    sheaf_free(ctx);
}

/* ---- what buffers, types and devices say of themselves ---- */

Test(buffer, speaks_for_its_type) {
    struct sheaf_context *ctx = context();
    struct sheaf_tensor *t = sheaf_new_tensor_2d(ctx, SHEAF_TYPE_Q8_0, 64, 3);
    struct sheaf_tensor *view = sheaf_view_tensor(ctx, t);
    sheaf_backend_buffer_type_t buft = sheaf_backend_dev_buffer_type(cpu());
    sheaf_backend_buffer_t buffer;
    cr_assert_eq(sheaf_backend_buft_get_device(buft), cpu());
    cr_assert_geq(sheaf_backend_buft_get_max_size(buft), (size_t)1 << 32);
    const size_t size = sheaf_backend_buft_get_alloc_size(buft, t);
    const size_t alignment = sheaf_backend_buft_get_alignment(buft);
    cr_assert_geq(size, 2 * 34 * 3);
    OK(sheaf_backend_buft_alloc_buffer(buft, size + alignment, &buffer));
    cr_assert_eq(sheaf_backend_buffer_get_alignment(buffer), alignment);
    cr_assert_eq(sheaf_backend_buffer_get_alloc_size(buffer, t), size);
    OK(sheaf_backend_tensor_alloc(buffer, t, sheaf_backend_buffer_get_base(buffer)));
    OK(sheaf_backend_buffer_init_tensor(buffer, t));
    cr_assert(sheaf_is_view(view) && !sheaf_is_view(t));
    OK(sheaf_backend_view_init(view));
    cr_assert_eq(view->data, t->data);
    sheaf_backend_buffer_free(buffer);
    sheaf_free(ctx);
}

Test(buffer, rows_are_written_through_the_queue) {
    struct sheaf_context *ctx = context();
    struct sheaf_tensor *t = sheaf_new_tensor_2d(ctx, SHEAF_TYPE_F32, 4, 3);
    sheaf_backend_t backend;
    sheaf_backend_buffer_t buffer;
    OK(sheaf_backend_dev_init(cpu(), NULL, &backend));
    cr_assert_str_eq(sheaf_backend_name(backend), "CPU0");
    cr_assert(sheaf_backend_dev_is_cpu(cpu()));
    cr_assert(!sheaf_backend_dev_is_meta(cpu()));
    cr_assert(sheaf_backend_supports_buft(backend, sheaf_backend_dev_buffer_type(cpu())));
    cr_assert(!sheaf_backend_dev_offload_op(cpu(), sheaf_scale(ctx, t, 2)));
    OK(sheaf_backend_alloc_ctx_tensors(ctx, backend, &buffer));
    OK(sheaf_backend_buffer_clear(buffer, 0));
    const float data[] = {1, 2, -1, 3, 4, -1, 5, 6, -1};
    /* two floats of every row, from column 1, out of rows of three */
    OK(sheaf_backend_tensor_set_2d_async(backend, t, data, sizeof(float), 2 * sizeof(float), 3,
                                         4 * sizeof(float), 3 * sizeof(float)));
    OK(sheaf_backend_synchronize(backend));
    float got[12];
    OK(sheaf_backend_tensor_get(t, got, 0, sizeof got));
    for (int i = 0; i < 3; i++) {
        cr_assert_eq(got[4 * i], 0);
        cr_assert_eq(got[4 * i + 1], data[3 * i]);
        cr_assert_eq(got[4 * i + 2], data[3 * i + 1]);
        cr_assert_eq(got[4 * i + 3], 0);
    }
    sheaf_backend_buffer_free(buffer);
    sheaf_backend_free(backend);
    sheaf_free(ctx);
}

/* ---- the graph allocator over two buffer types ---- */

Test(gallocr_n, places_every_tensor_where_its_number_says) {
    setenv("SHEAF_CPU_DEVICES", "2", 1);
    struct sheaf_context *ctx = context();
    const sheaf_backend_buffer_type_t bufts[] = {
        sheaf_backend_dev_buffer_type(sheaf_backend_dev_get(0)),
        sheaf_backend_dev_buffer_type(sheaf_backend_dev_get(1))};
    struct sheaf_tensor *x = sheaf_new_tensor_1d(ctx, SHEAF_TYPE_F32, 1000);
    struct sheaf_tensor *a = sheaf_scale(ctx, x, 2), *b = sheaf_scale(ctx, a, 3);
    struct sheaf_cgraph *graph = sheaf_new_graph_custom(ctx, 8);
    sheaf_set_output(b);
    OK(sheaf_build_forward_expand(graph, b));
    const int nodes[] = {0, 1}, leaves[] = {1}, wrong[] = {0, 2};
    sheaf_gallocr_t galloc = sheaf_gallocr_new_n(bufts, 2);
    cr_assert_not_null(galloc);
    cr_assert_eq(sheaf_gallocr_reserve_n(galloc, graph, wrong, leaves), SHEAF_STATUS_INVALID);
    OK(sheaf_gallocr_reserve_n(galloc, graph, nodes, leaves));
    cr_assert_geq(sheaf_gallocr_get_buffer_size_n(galloc, 0), 4000);
    cr_assert_geq(sheaf_gallocr_get_buffer_size_n(galloc, 1), 4000);
    OK(sheaf_gallocr_alloc_graph_n(galloc, graph, nodes, leaves));
    cr_assert_eq(sheaf_backend_buffer_get_type(x->buffer), bufts[1]);
    cr_assert_eq(sheaf_backend_buffer_get_type(a->buffer), bufts[0]);
    cr_assert_eq(sheaf_backend_buffer_get_type(b->buffer), bufts[1]);
    sheaf_gallocr_free(galloc);
    sheaf_free(ctx);
}
