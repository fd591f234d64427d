/* Runs a graph on a device that comes from a module, beside the CPU: under the scheduler, and by
 * hand with copies between the devices. Both results are compared with that of the CPU alone.
 *
 *   example-graph libsheaf-example.so    loads that file
 *   example-graph                        loads whatever the search path has
 *
 *   h = W x           CPU: the module cannot multiply matrices
 *   t = (h * g + b)/2 Example0
 *   y = softmax(t)    CPU
 *
 * with x [K, N], W [K, M], g and b [M, 1], y [M, N]. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "sheaf/sheaf.h"

enum { K = 48, M = 40, N = 7 };

static void must(enum sheaf_status status, const char *what) {
    if (!status) return;
    fprintf(stderr, "example-graph: %s: %s\n", what, sheaf_last_error());
    exit(1);
}

static struct sheaf_context *new_context(void) {
    const size_t size = 32 * sheaf_tensor_overhead() + 3 * sheaf_graph_overhead();
    struct sheaf_context *ctx = sheaf_init((struct sheaf_init_params){size, NULL, true});
    if (!ctx) must(SHEAF_STATUS_ALLOC_FAILED, "context");
    return ctx;
}

/* Numbers in (-0.5, 0.5), the same on every machine. */
static void fill(struct sheaf_tensor *t, unsigned seed) {
    const size_t n = (size_t)sheaf_nelements(t);
    float *values = malloc(n * sizeof *values);
    if (!values) exit(1);
    for (size_t i = 0; i < n; i++) {
        seed = seed * 1664525u + 1013904223u;
        values[i] = (float)(seed >> 8) / (float)(1 << 24) - 0.5f;
    }
    must(sheaf_backend_tensor_set(t, values, 0, n * sizeof *values), "fill");
    free(values);
}

static struct sheaf_tensor *product(struct sheaf_context *ctx, struct sheaf_tensor *w,
                                    struct sheaf_tensor *x) {
    return sheaf_mul_mat(ctx, w, x);
}
static struct sheaf_tensor *middle(struct sheaf_context *ctx, struct sheaf_tensor *h,
                                   struct sheaf_tensor *g, struct sheaf_tensor *b) {
    return sheaf_scale(ctx, sheaf_add(ctx, sheaf_mul(ctx, h, g), b), 0.5f);
}

/* Builds the graph of one result, computes it, and leaves it allocated in *buffer. */
static void run(sheaf_backend_t backend, struct sheaf_context *ctx, struct sheaf_tensor *result,
                sheaf_backend_buffer_t *buffer) {
    struct sheaf_cgraph *graph = sheaf_new_graph(ctx);
    must(sheaf_build_forward_expand(graph, result), "build");
    must(sheaf_backend_alloc_ctx_tensors(ctx, backend, buffer), "allocate");
    for (struct sheaf_tensor *t = sheaf_get_first_tensor(ctx); t; t = sheaf_get_next_tensor(ctx, t))
        if (t->op == SHEAF_OP_NONE && t->name[0] == '#') fill(t, (unsigned)t->name[1]);
    must(sheaf_backend_graph_compute(backend, graph), "compute");
}

/* "#x": a leaf that `run` fills with numbers that depend on the name alone. */
static struct sheaf_tensor *leaf(struct sheaf_context *ctx, const char *name, int64_t ne0,
                                 int64_t ne1) {
    return sheaf_set_name(sheaf_new_tensor_2d(ctx, SHEAF_TYPE_F32, ne0, ne1), name);
}

static void on_one(sheaf_backend_t cpu, float *out) {
    struct sheaf_context *ctx = new_context();
    sheaf_backend_buffer_t buffer;
    struct sheaf_tensor *x = leaf(ctx, "#x", K, N), *w = leaf(ctx, "#w", K, M);
    struct sheaf_tensor *g = leaf(ctx, "#g", M, 1), *b = leaf(ctx, "#b", M, 1);
    struct sheaf_tensor *y = sheaf_soft_max(ctx, middle(ctx, product(ctx, w, x), g, b));
    run(cpu, ctx, y, &buffer);
    must(sheaf_backend_tensor_get(y, out, 0, sheaf_nbytes(y)), "get");
    sheaf_backend_buffer_free(buffer);
    sheaf_free(ctx);
}

/* One context and one graph a device; sheaf_backend_tensor_copy carries the tensors over. */
static void on_both(sheaf_backend_t cpu, sheaf_backend_t device, float *out) {
    struct sheaf_context *ctx[3] = {new_context(), new_context(), new_context()};
    sheaf_backend_buffer_t buffer[3];

    struct sheaf_tensor *x = leaf(ctx[0], "#x", K, N), *w = leaf(ctx[0], "#w", K, M);
    struct sheaf_tensor *h = product(ctx[0], w, x);
    run(cpu, ctx[0], h, &buffer[0]);

    /* The copy comes after the allocation and before the compute, so `run` is taken apart here. */
    struct sheaf_tensor *h1 = leaf(ctx[1], "h", M, N);
    struct sheaf_tensor *g = leaf(ctx[1], "#g", M, 1), *b = leaf(ctx[1], "#b", M, 1);
    struct sheaf_tensor *t = middle(ctx[1], h1, g, b);
    struct sheaf_cgraph *graph = sheaf_new_graph(ctx[1]);
    must(sheaf_build_forward_expand(graph, t), "build");
    must(sheaf_backend_alloc_ctx_tensors(ctx[1], device, &buffer[1]), "allocate");
    fill(g, 'g');
    fill(b, 'b');
    must(sheaf_backend_tensor_copy(h, h1), "copy to the device");
    must(sheaf_backend_graph_compute(device, graph), "compute on the device");

    struct sheaf_tensor *t2 = leaf(ctx[2], "t", M, N), *y = sheaf_soft_max(ctx[2], t2);
    graph = sheaf_new_graph(ctx[2]);
    must(sheaf_build_forward_expand(graph, y), "build");
    must(sheaf_backend_alloc_ctx_tensors(ctx[2], cpu, &buffer[2]), "allocate");
    must(sheaf_backend_tensor_copy(t, t2), "copy from the device");
    must(sheaf_backend_graph_compute(cpu, graph), "compute");

    must(sheaf_backend_tensor_get(y, out, 0, sheaf_nbytes(y)), "get");
    for (int i = 0; i < 3; i++) {
        sheaf_backend_buffer_free(buffer[i]);
        sheaf_free(ctx[i]);
    }
}

/* One graph: the scheduler gives each node to a device and copies what another one reads. */
static void scheduled(sheaf_backend_t cpu, sheaf_backend_t device, float *out) {
    struct sheaf_context *ctx[3] = {new_context(), new_context(), new_context()};
    sheaf_backend_buffer_t weights[2];
    struct sheaf_tensor *w = leaf(ctx[0], "#w", K, M);
    struct sheaf_tensor *g = leaf(ctx[1], "#g", M, 1), *b = leaf(ctx[1], "#b", M, 1);
    must(sheaf_backend_alloc_ctx_tensors(ctx[0], cpu, &weights[0]), "allocate");
    must(sheaf_backend_alloc_ctx_tensors(ctx[1], device, &weights[1]), "allocate");
    for (int i = 0; i < 2; i++)
        sheaf_backend_buffer_set_usage(weights[i], SHEAF_BACKEND_BUFFER_USAGE_WEIGHTS);
    fill(w, 'w');
    fill(g, 'g');
    fill(b, 'b');

    struct sheaf_tensor *x = leaf(ctx[2], "#x", K, N);
    struct sheaf_tensor *y = sheaf_soft_max(ctx[2], middle(ctx[2], product(ctx[2], w, x), g, b));
    sheaf_set_input(x);
    sheaf_set_output(y);
    struct sheaf_cgraph *graph = sheaf_new_graph(ctx[2]);
    must(sheaf_build_forward_expand(graph, y), "build");

    const sheaf_backend_t backends[] = {device, cpu}; /* the best first */
    sheaf_backend_sched_t sched = sheaf_backend_sched_new(backends, NULL, 2, 64, false, false);
    if (!sched) must(SHEAF_STATUS_FAILED, "scheduler");
    must(sheaf_backend_sched_alloc_graph(sched, graph), "allocate");
    fill(x, 'x');
    must(sheaf_backend_sched_graph_compute(sched, graph), "compute");
    must(sheaf_backend_tensor_get(y, out, 0, sheaf_nbytes(y)), "get");
    printf("scheduler splits: %d\n", sheaf_backend_sched_get_n_splits(sched));

    sheaf_backend_sched_free(sched);
    for (int i = 0; i < 3; i++) {
        if (i < 2) sheaf_backend_buffer_free(weights[i]);
        sheaf_free(ctx[i]);
    }
}

static double largest_difference(const float *a, const float *b, size_t n) {
    double most = 0;
    for (size_t i = 0; i < n; i++) {
        const double d = fabs((double)a[i] - b[i]);
        if (!(d <= most)) most = d; /* NaN stays */
    }
    return most;
}

int main(int argc, char **argv) {
    sheaf_backend_reg_t reg = NULL;
    sheaf_backend_t cpu, device;
    if (argc > 1) {
        must(sheaf_backend_load(argv[1], &reg), "load");
    } else {
        must(sheaf_backend_load_all(), "load all");
        reg = sheaf_backend_reg_by_name("Example");
    }
    if (!reg) {
        fprintf(stderr, "example-graph: no module of the search path is named Example\n");
        return 1;
    }
    must(sheaf_backend_init_from_string("CPU", &cpu), "CPU");
    must(sheaf_backend_init_from_string("Example", &device), "Example");
    long (*n_computed)(void) = NULL;
    void *address = sheaf_backend_reg_get_proc_address(reg, "example_n_computed");
    memcpy(&n_computed, &address, sizeof n_computed);

    static float one[M * N], both[M * N], under[M * N];
    on_one(cpu, one);
    on_both(cpu, device, both);
    scheduled(cpu, device, under);
    const double difference =
        fmax(largest_difference(one, both, M * N), largest_difference(one, under, M * N));
    printf("%s: %s, %s\n", sheaf_backend_reg_name(reg), sheaf_backend_name(device),
           sheaf_backend_dev_description(sheaf_backend_get_device(device)));
    printf("nodes on the device: %ld\n", n_computed());
    printf("largest difference: %g\n", difference);

    const bool refused = sheaf_backend_unload(reg) == SHEAF_STATUS_INVALID;
    printf("unload while in use: %s\n", refused ? sheaf_last_error() : "was allowed");
    sheaf_backend_free(device);
    sheaf_backend_free(cpu);
    must(sheaf_backend_unload(reg), "unload");
    const bool gone = !sheaf_backend_reg_by_name("Example");
    printf("unloaded: %s\n", gone ? "gone" : "still there");
    return refused && gone && difference < 1e-6 ? 0 : 1;
}
