/* A short benchmark of each device: decode reads every weight once a token, so the rate at which a
 * device multiplies one vector with its matrices is what a share should follow. */
#include "model/place/speed.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "sheaf/alloc.h"
#include "sheaf/tensor.h"
#include "sheaf/world.h"

#include "base/clock.h"

enum { MIN_MS = 30, ROWS = 2048, PRODUCTS = 8 };

static enum sheaf_status time_graph(sheaf_backend_t backend, struct sheaf_cgraph *graph,
                                    double bytes, double *speed) {
    enum sheaf_status status = sheaf_backend_graph_compute(backend, graph); /* pages, caches */
    double start = sheaf__seconds(), end = start;
    int n = 0;
    while (!status && (end - start < 1e-3 * MIN_MS || n < 3)) {
        status = sheaf_backend_graph_compute(backend, graph);
        end = sheaf__seconds();
        n++;
    }
    *speed = end > start ? 1e-9 * bytes * n / (end - start) : 0;
    return status;
}

static enum sheaf_status measure(sheaf_backend_dev_t dev, enum sheaf_type type, int64_t width,
                                 double *speed) {
    sheaf_backend_t backend = NULL;
    sheaf_backend_buffer_t buffer = NULL;
    struct sheaf_cgraph *graph = NULL;
    struct sheaf_tensor *x, *sum = NULL;
    double bytes = 0;
    /* a GPU has tens of megabytes of cache, and work for it takes microseconds to start */
    const int64_t rows =
        sheaf_backend_dev_type(dev) == SHEAF_BACKEND_DEVICE_TYPE_GPU ? 8 * ROWS : ROWS;
    struct sheaf_context *ctx = sheaf_init((struct sheaf_init_params){
        .mem_size = 64 * sheaf_tensor_overhead() + sheaf_graph_overhead_custom(64),
        .no_alloc = true});
    enum sheaf_status status = sheaf_backend_dev_init(dev, NULL, &backend);
    if (status) goto out;
    /* several matrices, so that together they do not stay in a cache */
    x = sheaf_new_tensor_2d(ctx, SHEAF_TYPE_F32, width, 1);
    for (int i = 0; i < PRODUCTS; i++) {
        struct sheaf_tensor *w = sheaf_new_tensor_2d(ctx, type, width, rows);
        struct sheaf_tensor *y = sheaf_mul_mat(ctx, w, x);
        sum = sum ? sheaf_add(ctx, sum, y) : y;
        if (w) bytes += (double)sheaf_nbytes(w);
    }
    graph = sheaf_new_graph_custom(ctx, 64);
    status = graph ? sheaf_build_forward_expand(graph, sum) : SHEAF_STATUS_ALLOC_FAILED;
    if (!status) status = sheaf_backend_alloc_ctx_tensors(ctx, backend, &buffer);
    if (!status) status = sheaf_backend_buffer_clear(buffer, 0);
    if (!status) status = time_graph(backend, graph, bytes, speed);
out:
    sheaf_backend_buffer_free(buffer);
    sheaf_backend_free(backend);
    sheaf_free(ctx);
    return status;
}

enum sheaf_status sheaf__speed_measure(const struct sheaf__weights *model,
                                       const sheaf_backend_dev_t *members, int n, double *speeds) {
    size_t size = (size_t)n * sizeof(double), ranks = (size_t)sheaf_world_size();
    double *mine = calloc((size_t)n, sizeof *mine), *all = calloc((size_t)n * ranks, sizeof *all);
    enum sheaf_status status = SHEAF_STATUS_SUCCESS;
    if (!mine || !all)
        status = sheaf_set_error(SHEAF_STATUS_ALLOC_FAILED, "no memory to measure the devices");
    const struct sheaf_tensor *w = sheaf__weights_typical(model);
    for (int j = 0; !status && j < n; j++) {
        if (sheaf_world_device_rank(members[j]) == sheaf_world_rank())
            status = measure(members[j], w->type, w->ne[0], &mine[j]);
    }
    status = sheaf_world_agree(status, "measuring the devices");
    if (!status && ranks == 1)
        for (int j = 0; j < n; j++) all[j] = mine[j];
    else if (!status)
        status = sheaf_world_all_gather(mine, size, all, "speeds of the devices");
    for (int j = 0; !status && j < n; j++)
        speeds[j] = all[(size_t)sheaf_world_device_rank(members[j]) * (size_t)n + (size_t)j];
    free(mine);
    free(all);
    return status;
}

/* ---- links ---- */

enum sheaf_status sheaf__speed_links(const sheaf_backend_dev_t *members, int n,
                                     struct sheaf_comm **out) {
    int *rank = calloc((size_t)n, sizeof *rank);
    *out = NULL;
    enum sheaf_status status =
        rank ? SHEAF_STATUS_SUCCESS
             : sheaf_set_error(SHEAF_STATUS_ALLOC_FAILED, "no memory to measure the links");
    status = sheaf_world_agree(status, "measuring the links");
    for (int j = 0; !status && j < n; j++) rank[j] = sheaf_world_device_rank(members[j]);
    if (!status) status = sheaf_comm_new(rank, n, NULL, out);
    if (!status) status = sheaf_comm_measure(*out);
    free(rank);
    return status;
}
