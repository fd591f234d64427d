/* A graph of one's own over all devices of the job: y = B relu(A x), A cut by rows, B by columns.
 * Each member computes its rows of A x and, from them, an addend of y; the sum over the members is
 * the one message that this needs. Checked against the same sum computed here.
 *     mpirun -np 3 split_a_graph */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "sheaf/sheaf.h"

enum { K = 64, F = 96, M = 32, N = 5 }; /* A [K, F], B [F, M], x [K, N]: columns, rows */

static float value(int i) { return (float)((i * 37 + 11) % 101 - 50) / 50; }

/* How a weight lies over the members: F in parts that are as even as they go. */
static enum sheaf_status split(const struct sheaf_tensor *t, const void *user,
                               struct sheaf_split_state **out) {
    const int n = *(const int *)user;
    int64_t *counts = calloc((size_t)n, sizeof *counts);
    for (int j = 0; counts && j < n; j++) counts[j] = F * (j + 1) / n - F * j / n;
    const enum sheaf_split_axis axis = t->name[0] == 'A' ? SHEAF_SPLIT_AXIS_1 : SHEAF_SPLIT_AXIS_0;
    *out = counts ? sheaf_split_state_cut(axis, n, counts, 1) : NULL;
    free(counts);
    return *out ? SHEAF_STATUS_SUCCESS : SHEAF_STATUS_ALLOC_FAILED;
}

static enum sheaf_status put(struct sheaf_tensor *t, int first) {
    static float data[K * F];
    const int n = (int)sheaf_nelements(t);
    for (int i = 0; i < n; i++) data[i] = value(first + i);
    return sheaf_backend_tensor_set(t, data, 0, sizeof *data * (size_t)n);
}

static double expected(int m, int n) {
    double sum = 0;
    for (int f = 0; f < F; f++) {
        double h = 0;
        for (int k = 0; k < K; k++) h += (double)value(f * K + k) * (double)value(3 + n * K + k);
        sum += (double)value(1 + m * F + f) * (h > 0 ? h : 0);
    }
    return sum;
}

/* Builds the graph, computes it and prints the largest difference. */
static enum sheaf_status compute(sheaf_backend_t backend) {
    const struct sheaf_init_params arena = {
        .mem_size = 16 * sheaf_tensor_overhead() + sheaf_graph_overhead(), .no_alloc = true};
    struct sheaf_context *weights = sheaf_init(arena), *ctx = sheaf_init(arena);
    struct sheaf_tensor *a =
        sheaf_set_name(sheaf_new_tensor_2d(weights, SHEAF_TYPE_F32, K, F), "A");
    struct sheaf_tensor *b =
        sheaf_set_name(sheaf_new_tensor_2d(weights, SHEAF_TYPE_F32, F, M), "B");
    struct sheaf_tensor *x = sheaf_new_tensor_2d(ctx, SHEAF_TYPE_F32, K, N);
    struct sheaf_tensor *y = sheaf_mul_mat(ctx, b, sheaf_relu(ctx, sheaf_mul_mat(ctx, a, x)));
    struct sheaf_cgraph *graph = sheaf_new_graph(ctx);
    sheaf_gallocr_t galloc = sheaf_gallocr_new(sheaf_backend_get_default_buffer_type(backend));
    sheaf_backend_buffer_t buffer = NULL;
    float got[M * N];
    double worst = 0;
    if (x) sheaf_set_input(x);
    if (y) sheaf_set_output(y);
    enum sheaf_status status = sheaf_build_forward_expand(graph, y);
    if (!status) status = sheaf_backend_alloc_ctx_tensors(weights, backend, &buffer);
    if (!status) status = put(a, 0);
    if (!status) status = put(b, 1);
    if (!status) status = sheaf_gallocr_alloc_graph(galloc, graph);
    if (!status) status = put(x, 3);
    if (!status) status = sheaf_backend_graph_compute(backend, graph);
    if (!status) status = sheaf_backend_tensor_get(y, got, 0, sizeof got); /* on all ranks */
    for (int i = 0; !status && i < M * N; i++)
        worst = fmax(worst, fabs((double)got[i] - expected(i % M, i / M)));
    struct sheaf_backend_meta_stats stats = {.size = sizeof stats};
    sheaf_backend_meta_get_stats(backend, &stats);
    if (!status && sheaf_world_rank() == 0)
        printf("%d ranks, %d collectives, largest difference %.1g\n", sheaf_world_size(),
               (int)stats.n_collectives, worst);
    if (!status && !(worst < 1e-3))
        status = sheaf_set_error(SHEAF_STATUS_FAILED, "the result is off by %g", worst);
    sheaf_gallocr_free(galloc);
    sheaf_backend_buffer_free(buffer);
    sheaf_free(ctx);
    sheaf_free(weights);
    return status;
}

int main(void) {
    const sheaf_backend_dev_t *devices = NULL;
    sheaf_backend_dev_t meta = NULL;
    sheaf_backend_t backend = NULL;
    /* a failed job may end this process, which is nothing besides */
    const struct sheaf_world_params world = {.size = sizeof world, .may_exit = true};
    size_t n = 0;
    int members = 0;
    enum sheaf_status status = sheaf_world_init(&world);
    if (!status) status = sheaf_world_devices(&devices, &n);
    members = (int)n;
    if (!status) status = sheaf_backend_meta_device(devices, n, split, &members, NULL, &meta);
    if (!status) status = sheaf_backend_dev_init(meta, NULL, &backend);
    if (!status) status = compute(backend);
    if (status) {
        sheaf_world_abort(sheaf_last_error());
        if (sheaf_world_reports_error()) fprintf(stderr, "split_a_graph: %s\n", sheaf_last_error());
    }
    sheaf_backend_free(backend);
    sheaf_backend_meta_device_free(meta);
    sheaf_world_finalize();
    return status || sheaf_world_failed() ? EXIT_FAILURE : EXIT_SUCCESS;
}
