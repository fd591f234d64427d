/* The speed of attention: a new token against a filled K/V cache, in GB/s of the cache beside what
 * a plain loop reads, and a prompt, in GFLOP/s of what its queries see. Prints the tables of
 * docs/performance.md.
 *
 *   bench-attention [THREADS]    1 and 2 threads, or as many as given */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "sheaf/sheaf.h"

#include "bench.h"

enum { ROUNDS = 9, MAX_NODES = 64, CACHE = 96 << 20 /* bytes read in one go: more than a cache */ };

static const struct shape {
    const char *name;
    int64_t d, heads, heads_kv;
} shapes[] = {{"TinyLlama", 64, 32, 4},
              {"Llama 8B", 128, 32, 8},
              {"SmolLM2", 64, 9, 3},
              {"one K/V head", 256, 4, 1}};

static void fill(struct sheaf_tensor *t) {
    static uint32_t seed = 1;
    const int64_t n = t->ne[0];
    float row[512];
    for (int64_t r = 0; r < sheaf_nrows(t); r++) {
        for (int64_t i = 0; i < n; i++) {
            seed = seed * 1664525u + 1013904223u;
            row[i] = (float)(seed >> 8) / 8388608.0f - 1.0f;
        }
        check(sheaf_from_float(t->type, row, (char *)t->data + (size_t)r * t->nb[1], n));
    }
}

/* Query i of n sees keys up to t - n + i. */
static void fill_mask(struct sheaf_tensor *mask, int64_t t, int64_t n) {
    for (int64_t i = 0; i < n; i++) {
        uint16_t *row = (uint16_t *)(void *)((char *)mask->data + (size_t)i * mask->nb[1]);
        for (int64_t j = 0; j < t; j++) row[j] = j <= t - n + i ? 0 : 0xfc00;
    }
}

/* Seconds of one attention of n queries over t positions, the best of some rounds. */
static double run(sheaf_backend_t backend, const struct shape *s, enum sheaf_type type, int64_t n,
                  int64_t t) {
    const size_t bytes = 2 * (size_t)(t * s->heads_kv) * sheaf_row_size(type, s->d);
    const int nodes = n > 1 ? 1 : CACHE / bytes > MAX_NODES ? MAX_NODES : (int)(CACHE / bytes) + 1;
    const struct sheaf_init_params params = {.mem_size = 1 << 20, .no_alloc = true};
    struct sheaf_context *c = must(sheaf_init(params));
    struct sheaf_tensor *kv[2 * MAX_NODES];
    struct sheaf_tensor *q = sheaf_new_tensor_3d(c, SHEAF_TYPE_F32, s->d, n, s->heads);
    struct sheaf_tensor *mask = sheaf_new_tensor_2d(c, SHEAF_TYPE_F16, t, n);
    struct sheaf_cgraph *graph = must(sheaf_new_graph(c));
    for (int i = 0; i < nodes; i++) {
        for (int j = 0; j < 2; j++) /* as a cache has them: the heads of a position together */
            kv[2 * i + j] = sheaf_new_tensor_3d(c, type, s->d, s->heads_kv, t);
        check(sheaf_build_forward_expand(
            graph,
            sheaf_flash_attn_ext(c, q, sheaf_permute(c, kv[2 * i], 0, 2, 1, 3),
                                 sheaf_permute(c, kv[2 * i + 1], 0, 2, 1, 3), mask, 0.125f, 0, 0)));
    }
    sheaf_backend_buffer_t buffer;
    check(sheaf_backend_alloc_ctx_tensors(c, backend, &buffer));
    fill(q);
    fill_mask(mask, t, n);
    for (int i = 0; i < 2 * nodes; i++) fill(kv[i]);
    double best = 1e9;
    for (int i = 0; i < ROUNDS; i++) {
        const double start = sheaf__seconds();
        check(sheaf_backend_graph_compute(backend, graph));
        const double took = (sheaf__seconds() - start) / nodes;
        best = took < best ? took : best;
    }
    sheaf_backend_buffer_free(buffer);
    sheaf_free(c);
    return best;
}

static void decode(sheaf_backend_t backend) {
    static const int64_t positions[] = {128, 1024, 4096};
    printf("\n| shape | K/V | 128 positions us | GB/s | 1024 us | GB/s | 4096 us | GB/s |\n"
           "|---|---|---:|---:|---:|---:|---:|---:|\n");
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) {
        for (int q8 = 0; q8 < 2; q8++) {
            const enum sheaf_type type = q8 ? SHEAF_TYPE_Q8_0 : SHEAF_TYPE_F16;
            printf("| %s | %s |", shapes[i].name, sheaf_type_name(type));
            for (size_t j = 0; j < sizeof positions / sizeof *positions; j++) {
                const double took = run(backend, &shapes[i], type, 1, positions[j]);
                const double bytes = 2.0 * (double)(positions[j] * shapes[i].heads_kv) *
                                     (double)sheaf_row_size(type, shapes[i].d);
                printf(" %.1f | %.1f |", 1e6 * took, 1e-9 * bytes / took);
            }
            printf("\n");
        }
    }
}

static void prompt(sheaf_backend_t backend) {
    printf("\n| shape | K/V | 512 tokens ms | GFLOP/s |\n|---|---|---:|---:|\n");
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) {
        const double took = run(backend, &shapes[i], SHEAF_TYPE_F16, 512, 512);
        const double flop = 4.0 * (double)(shapes[i].heads * shapes[i].d) * 512 * 513 / 2;
        printf("| %s | f16 | %.2f | %.0f |\n", shapes[i].name, 1e3 * took, 1e-9 * flop / took);
    }
}

int main(int argc, char **argv) {
    const int first = argc > 1 ? atoi(argv[1]) : 1, last = argc > 1 ? first : 2;
    for (int threads = first; threads <= last; threads++) {
        char params[32];
        snprintf(params, sizeof params, "threads=%d", threads);
        sheaf_backend_t backend;
        check(sheaf_backend_init_by_name("CPU0", params, &backend));
        printf("\n%d thread%s, %s\n", threads, threads > 1 ? "s" : "", sheaf_cpu_isa_name());
        decode(backend);
        prompt(backend);
        sheaf_backend_free(backend);
    }
    return 0;
}
