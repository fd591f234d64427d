/* Checks of two devices that scripts/gpu-check starts where there are two GPUs, and test-cuda-host.c on the
 * emulation.
 *
 *   helper-gpus copies A B [MIB]     copies of MIB (256) from A to B and back: right, and how many GB/s
 *   helper-gpus pipeline A B [N]     N (200) inputs of graphs whose layers lie on A and B by turns, four in flight,
 *                                    against the CPU, which computes one after another
 *
 * The last line says what was found; the status is 0 if it is right. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "random_numbers.h"
#include "sheaf/sheaf.h"
#include "start_job.h"

static const char *const no_memory = "no memory";

/* ---- copies ---- */

/* A tensor of n bytes on a backend, alone in its context. */
struct place {
    struct sheaf_context *ctx;
    sheaf_backend_buffer_t buffer;
    struct sheaf_tensor *t;
};

static enum sheaf_status place_new(sheaf_backend_t backend, int64_t n, struct place *p) {
    p->ctx = sheaf_init(
        (struct sheaf_init_params){.mem_size = sheaf_tensor_overhead(), .no_alloc = true});
    p->t = sheaf_new_tensor_1d(p->ctx, SHEAF_TYPE_F32, n / (int64_t)sizeof(float));
    return sheaf_backend_alloc_ctx_tensors(p->ctx, backend, &p->buffer);
}

static void place_free(struct place *p) {
    sheaf_backend_buffer_free(p->buffer);
    sheaf_free(p->ctx);
}

/* GB/s of `times` copies in the queue of the source; 0: a call failed. */
static double rate(const sheaf_backend_t on[2], const struct place p[2], int from, int times) {
    enum sheaf_status st = sheaf_backend_synchronize(on[from]);
    const uint64_t begin = sheaf__time_ns();
    for (int i = 0; i < times && !st; i++)
        st = sheaf_backend_tensor_copy_async(on[from], on[!from], p[from].t, p[!from].t);
    if (!st) st = sheaf_backend_synchronize(on[from]);
    if (!st) st = sheaf_backend_synchronize(on[!from]);
    const double ns = (double)(sheaf__time_ns() - begin);
    return st ? 0 : (double)times * (double)sheaf_nbytes(p[from].t) / (ns > 0 ? ns : 1);
}

static int copies(const sheaf_backend_t on[2], int mib) {
    enum { TIMES = 8 };
    const size_t size = (size_t)mib << 20;
    struct place p[2] = {{0}};
    uint8_t *bytes = malloc(size), *back = calloc(1, size);
    double gbps[2] = {0};
    enum sheaf_status st = bytes && back ? place_new(on[0], (int64_t)size, &p[0])
                                         : sheaf_set_error(SHEAF_STATUS_ALLOC_FAILED, no_memory);
    if (!st) st = place_new(on[1], (int64_t)size, &p[1]);
    for (int from = 0; from < 2 && !st; from++) {
        for (size_t i = 0; i < size; i++) bytes[i] = (uint8_t)(i * 7 + i / 251 + (size_t)from);
        st = sheaf_backend_tensor_set(p[from].t, bytes, 0, size);
        if (!st) gbps[from] = rate(on, p, from, TIMES);
        if (!st) st = sheaf_backend_tensor_get(p[!from].t, back, 0, size);
        if (!st && memcmp(bytes, back, size))
            st = sheaf_set_error(SHEAF_STATUS_FAILED, "the copy has other bytes");
    }
    if (!st)
        printf("%s to %s %.1f GB/s, back %.1f GB/s, %d MiB\n", sheaf_backend_name(on[0]),
               sheaf_backend_name(on[1]), gbps[0], gbps[1], mib);
    place_free(&p[0]);
    place_free(&p[1]);
    free(bytes);
    free(back);
    return st || gbps[0] <= 0 || gbps[1] <= 0;
}

/* ---- pipeline ---- */

enum { LAYERS = 6, WIDTH = 256, COLUMNS = 4, GRAPHS = SHEAF_SCHED_MAX_COPIES };

/* sum += scale (tanh (W x)) over all layers; layer i and what it computes lie on device i % 2. One graph each for
 * what is in flight. */
struct pipeline {
    struct sheaf_context *weights[2], *ctx;
    sheaf_backend_buffer_t buffer[2];
    struct sheaf_tensor *w[LAYERS], *sum, *x[GRAPHS];
    struct sheaf_cgraph *graph[GRAPHS];
};

static enum sheaf_status set_random(struct sheaf_tensor *t, uint64_t seed, float scale) {
    const int64_t n = sheaf_nelements(t);
    float *v = malloc((size_t)n * sizeof *v);
    if (!v) return sheaf_set_error(SHEAF_STATUS_ALLOC_FAILED, no_memory);
    rng = seed * UINT64_C(0x9e3779b97f4a7c15) | 1;
    for (int64_t i = 0; i < n; i++) v[i] = scale * random_float();
    const enum sheaf_status st = sheaf_backend_tensor_set(t, v, 0, (size_t)n * sizeof *v);
    free(v);
    return st;
}

static enum sheaf_status pipeline_new(struct pipeline *p, const sheaf_backend_t on[2]) {
    enum sheaf_status st = SHEAF_STATUS_SUCCESS;
    for (int d = 0; d < 2; d++)
        p->weights[d] = sheaf_init((struct sheaf_init_params){
            .mem_size = (LAYERS + 1) * sheaf_tensor_overhead(), .no_alloc = true});
    for (int i = 0; i < LAYERS; i++)
        p->w[i] = sheaf_new_tensor_2d(p->weights[i % 2], SHEAF_TYPE_F32, WIDTH, WIDTH);
    p->sum = sheaf_new_tensor_2d(p->weights[(LAYERS - 1) % 2], SHEAF_TYPE_F32, WIDTH, COLUMNS);
    for (int d = 0; d < 2 && !st; d++) {
        st = sheaf_backend_alloc_ctx_tensors(p->weights[d], on[d], &p->buffer[d]);
        if (!st) sheaf_backend_buffer_set_usage(p->buffer[d], SHEAF_BACKEND_BUFFER_USAGE_WEIGHTS);
        if (!st) st = sheaf_backend_buffer_clear(p->buffer[d], 0);
    }
    for (int i = 0; i < LAYERS && !st; i++) st = set_random(p->w[i], (uint64_t)i + 1, 0.25f);
    p->ctx = sheaf_init((struct sheaf_init_params){
        .mem_size = GRAPHS * ((4 * LAYERS + 8) * sheaf_tensor_overhead() + sheaf_graph_overhead()),
        .no_alloc = true});
    for (int g = 0; g < GRAPHS && !st; g++) {
        struct sheaf_tensor *y = p->x[g] =
            sheaf_new_tensor_2d(p->ctx, SHEAF_TYPE_F32, WIDTH, COLUMNS);
        sheaf_set_input(y);
        for (int i = 0; i < LAYERS; i++)
            y = sheaf_scale(p->ctx, sheaf_tanh(p->ctx, sheaf_mul_mat(p->ctx, p->w[i], y)), 0.5f);
        p->graph[g] = sheaf_new_graph(p->ctx);
        st = sheaf_build_forward_expand(p->graph[g],
                                        sheaf_cpy(p->ctx, sheaf_add(p->ctx, p->sum, y), p->sum));
    }
    return st;
}

static void pipeline_free(struct pipeline *p) {
    for (int d = 0; d < 2; d++) {
        sheaf_backend_buffer_free(p->buffer[d]);
        sheaf_free(p->weights[d]);
    }
    sheaf_free(p->ctx);
}

/* The sum over n inputs; *n_copies: how many graphs may be in flight. The devices are waited for at the end alone. */
static enum sheaf_status run_pipeline(const sheaf_backend_t on[2], sheaf_backend_t cpu, int n,
                                      float *sum, int *n_copies) {
    const sheaf_backend_t list[] = {on[0], on[1], cpu};
    const bool own = on[0] != cpu;
    struct pipeline p = {.ctx = NULL};
    sheaf_backend_sched_t sched =
        sheaf_backend_sched_new(own ? list : list + 2, NULL, own ? 3 : 1, 64, true, false);
    enum sheaf_status st = sched ? pipeline_new(&p, on) : SHEAF_STATUS_FAILED;
    for (int i = 0; i < n && !st; i++) {
        const int g = i % GRAPHS;
        st = sheaf_backend_sched_alloc_graph(sched, p.graph[g]);
        if (!st && own && sheaf_backend_sched_get_n_splits(sched) < LAYERS)
            st = sheaf_set_error(SHEAF_STATUS_FAILED, "the layers are in %d splits",
                                 sheaf_backend_sched_get_n_splits(sched));
        if (!st) st = set_random(p.x[g], 1000 + (uint64_t)i, 1);
        if (!st) st = sheaf_backend_sched_graph_compute_async(sched, p.graph[g]);
    }
    if (!st) st = sheaf_backend_sched_synchronize(sched);
    if (!st) st = sheaf_backend_tensor_get(p.sum, sum, 0, sheaf_nbytes(p.sum));
    *n_copies = sched ? sheaf_backend_sched_get_n_copies(sched) : 0;
    sheaf_backend_sched_free(sched);
    pipeline_free(&p);
    return st;
}

static int pipeline(const sheaf_backend_t on[2], int n) {
    static float sum[2][WIDTH * COLUMNS];
    int n_copies = 0, ignored = 0;
    double difference = 0, size = 0;
    sheaf_backend_t cpu = NULL;
    enum sheaf_status st = sheaf_backend_init_by_type(SHEAF_BACKEND_DEVICE_TYPE_CPU, NULL, &cpu);
    const sheaf_backend_t cpus[2] = {cpu, cpu};
    if (!st) st = run_pipeline(cpus, cpu, n, sum[0], &ignored);
    const uint64_t begin = sheaf__time_ns();
    if (!st) st = run_pipeline(on, cpu, n, sum[1], &n_copies);
    const double us = (double)(sheaf__time_ns() - begin) * 1e-3;
    for (int i = 0; i < WIDTH * COLUMNS; i++) {
        const double d = (double)sum[1][i] - (double)sum[0][i];
        difference += d * d;
        size += (double)sum[0][i] * (double)sum[0][i];
    }
    sheaf_backend_free(cpu);
    if (st) return 1;
    printf("%d inputs of %d layers, %d in flight, %.1f us each, error %.2g\n", n, LAYERS, n_copies,
           us / n, difference / size);
    return !(size > 0 && difference / size < 1e-8 && n_copies > 1);
}

/* ---- */

static sheaf_backend_dev_t find(const char *name) {
    sheaf_backend_dev_t dev = sheaf_backend_dev_by_name(name);
    if (!dev) sheaf_set_error(SHEAF_STATUS_INVALID, "there is no device %s", name);
    return dev;
}

int main(int argc, char **argv) {
    const bool is_copies = argc > 3 && !strcmp(argv[1], "copies");
    const int number = argc > 4 ? atoi(argv[4]) : is_copies ? 256 : 200;
    if (argc < 4 || argc > 5 || number < 1 || (!is_copies && strcmp(argv[1], "pipeline") != 0)) {
        fprintf(stderr, "usage: helper-gpus copies A B [MIB] | pipeline A B [N]\n");
        return 2;
    }
    sheaf_backend_t on[2] = {NULL, NULL};
    int status = 1;
    enum sheaf_status st = sheaf_backend_load_all();
    if (!st) st = start_job();
    for (int i = 0; i < 2 && !st; i++) {
        sheaf_backend_dev_t dev = find(argv[2 + i]);
        st = dev ? sheaf_backend_dev_init(dev, NULL, &on[i]) : SHEAF_STATUS_INVALID;
    }
    if (!st) status = is_copies ? copies(on, number) : pipeline(on, number);
    if (status && *sheaf_last_error()) fprintf(stderr, "%s\n", sheaf_last_error());
    sheaf_backend_free(on[1]);
    sheaf_backend_free(on[0]);
    sheaf_world_finalize();
    return status;
}
