/* What the suites of the CUDA backend on the CPU share: the module of tests/emulators/cuda, tensors on a
 * device of it, and the graphs that it replays. What a suite loads itself looks for races, too; programs
 * that it starts with ENV do not, which is faster. */
#ifndef SHEAF_TESTS_CUDA_RIG_H
#define SHEAF_TESTS_CUDA_RIG_H

#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "sheaf/sheaf.h"

#define PLACE  SHEAF_BUILD_DIR "/lib/cuda-emu"
#define RACES  SHEAF_BUILD_DIR "/lib/cuda-races"
#define MODULE RACES "/libsheaf-cuda.so"
#define ENV    "SHEAF_BACKEND_PATH='" PLACE "' "

static inline sheaf_backend_reg_t load(const char *machine) {
    sheaf_backend_reg_t reg;
    const char *other = getenv("SHEAF_TEST_CUDA_MODULE"); /* of scripts/cuda-mutants */
    setenv("SHEAF_TEST_CUDA_EMU", other && !*machine ? "order=7" : machine, 1);
    cr_assert_eq(sheaf_backend_load(other ? other : MODULE, &reg), SHEAF_STATUS_SUCCESS, "%s",
                 sheaf_last_error());
    return reg;
}

/* ---- a rig: tensors on a device ---- */

struct rig {
    sheaf_backend_reg_t reg;
    sheaf_backend_t backend;
    struct sheaf_context *ctx;
    struct sheaf_cgraph *graph;
    sheaf_backend_buffer_t buffer;
};

static inline struct rig rig_up(const char *machine, const char *params) {
    struct rig r = {.reg = load(machine)};
    cr_assert_eq(sheaf_backend_dev_init(sheaf_backend_reg_dev_get(r.reg, 0), params, &r.backend),
                 SHEAF_STATUS_SUCCESS, "%s", sheaf_last_error());
    r.ctx = sheaf_init((struct sheaf_init_params){
        .mem_size = 64 * sheaf_tensor_overhead() + 4 * sheaf_graph_overhead(), .no_alloc = true});
    r.graph = sheaf_new_graph(r.ctx);
    return r;
}
static inline void rig_alloc(struct rig *r) {
    cr_assert_eq(sheaf_backend_alloc_ctx_tensors(r->ctx, r->backend, &r->buffer),
                 SHEAF_STATUS_SUCCESS, "%s", sheaf_last_error());
}
static inline void rig_down(struct rig *r) {
    sheaf_backend_buffer_free(r->buffer);
    sheaf_backend_free(r->backend);
    sheaf_free(r->ctx);
    cr_assert_eq(sheaf_backend_unload(r->reg), SHEAF_STATUS_SUCCESS, "%s", sheaf_last_error());
}

/* Standard error goes to the file from now on, and what the emulation traces with it. */
static inline FILE *rig_trace(void) {
    FILE *trace = tmpfile();
    cr_assert_not_null(trace);
    setenv("SHEAF_TEST_CUDA_EMU_TRACE", "1", 1);
    cr_assert_geq(dup2(fileno(trace), 2), 0);
    return trace;
}
static inline void rig_trace_clear(FILE *trace) {
    cr_assert_eq(ftruncate(fileno(trace), 0), 0);
    rewind(trace);
    cr_assert_eq(lseek(fileno(trace), 0, SEEK_SET), 0); /* standard error has the same position */
}

/* What all nodes hold, one after another, *size bytes for the caller to free; the rig goes. */
static inline char *rig_results(struct rig *r, size_t *size) {
    char *all = malloc(1 << 20);
    *size = 0;
    for (int i = 0; i < sheaf_graph_n_nodes(r->graph); i++) {
        const struct sheaf_tensor *t = sheaf_graph_node(r->graph, i);
        cr_assert_leq(*size + sheaf_nbytes(t), (size_t)1 << 20);
        cr_assert_eq(sheaf_backend_tensor_get(t, all + *size, 0, sheaf_nbytes(t)),
                     SHEAF_STATUS_SUCCESS);
        *size += sheaf_nbytes(t);
    }
    rig_down(r);
    return all;
}
static inline void set_all(struct sheaf_tensor *t, float first, float step) {
    float x[512];
    for (int64_t i = 0; i < sheaf_nelements(t); i++) x[i] = first + step * (float)i;
    cr_assert_eq(sheaf_backend_tensor_set(t, x, 0, sheaf_nbytes(t)), SHEAF_STATUS_SUCCESS, "%s",
                 sheaf_last_error());
}
static inline float first_of(const struct sheaf_tensor *t) {
    float x = -1;
    cr_assert_eq(sheaf_backend_tensor_get(t, &x, 0, sizeof x), SHEAF_STATUS_SUCCESS, "%s",
                 sheaf_last_error());
    return x;
}

/* y = 2 (2 (x + x) + x) in five nodes */
static inline struct sheaf_tensor *five_nodes(struct rig *r, struct sheaf_tensor **x) {
    *x = sheaf_new_tensor_1d(r->ctx, SHEAF_TYPE_F32, 300);
    struct sheaf_tensor *y = sheaf_scale(r->ctx, sheaf_add(r->ctx, *x, *x), 2);
    y = sheaf_scale(r->ctx, sheaf_scale(r->ctx, sheaf_add(r->ctx, y, *x), 4), 0.5f);
    cr_assert_eq(sheaf_build_forward_expand(r->graph, y), SHEAF_STATUS_SUCCESS);
    rig_alloc(r);
    return y;
}

static inline void fill(struct sheaf_tensor *t, uint64_t seed) {
    static float x[1 << 16];
    cr_assert_leq(sheaf_nelements(t), 1 << 16);
    for (int64_t i = 0; i < sheaf_nelements(t); i++) {
        seed = seed * 6364136223846793005u + 1442695040888963407u;
        x[i] = (float)(seed >> 40) / (float)(1 << 23) - 1;
    }
    cr_assert_eq(sheaf_backend_tensor_set(t, x, 0, sheaf_nbytes(t)), SHEAF_STATUS_SUCCESS);
}

/* Counts lines "replays a graph of N" on standard error, which is a file meanwhile. */
static inline int replays_of(FILE *file, int n_launches) {
    char line[200];
    int count = 0, n = 0;
    rewind(file);
    while (fgets(line, sizeof line, file)) {
        if (sscanf(line, "cuda-emu: replays a graph of %d", &n) == 1) {
            cr_assert_eq(n, n_launches, "%d launches, not %d", n, n_launches);
            count++;
        }
    }
    return count;
}

#endif
