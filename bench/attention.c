/* The speed of attention: a new token against a filled K/V cache, in GB/s of the cache beside what
 * a plain loop reads, a new token of each of some sequences, and a prompt, in GFLOP/s of what its queries
 * see. Prints the tables of docs/performance-kernels.md.
 *
 *   bench-attention [THREADS [query]]    1 and 2 threads, or as many as given; query: the first table alone
 *   bench-attention types                one thread: each type of a K/V cache, and sinks, slopes, soft cap,
 *                                        beside F16 without them: they take turns, medians, CPU time */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "sheaf/sheaf.h"

#include "base/sort.h"
#include "bench.h"

enum { ROUNDS = 9, MAX_NODES = 64, CACHE = 96 << 20 /* bytes read in one go: more than a cache */ };

static const struct shape {
    const char *name;
    int64_t d, e, heads, heads_kv; /* e: of V */
} shapes[] = {{"TinyLlama", 64, 64, 32, 4},
              {"Llama 8B", 128, 128, 32, 8},
              {"SmolLM2", 64, 64, 9, 3},
              {"one K/V head", 256, 256, 4, 1}};

static void fill(struct sheaf_tensor *t) {
    static uint32_t seed = 1;
    const int64_t n = t->ne[0];
    float row[1024];
    for (int64_t r = 0; r < sheaf_nrows(t); r++) {
        for (int64_t i = 0; i < n; i++) {
            seed = seed * 1664525u + 1013904223u;
            row[i] = (float)(seed >> 8) / 8388608.0f - 1.0f;
        }
        check(sheaf_from_float(t->type, row, (char *)t->data + (size_t)r * t->nb[1], n));
    }
}

/* Query i of n sees keys up to t - n + i, or, as a sequence of its own, the i-th t / n of them. */
static void fill_mask(struct sheaf_tensor *mask, int64_t t, int64_t n, bool sequences) {
    for (int64_t i = 0; i < n; i++) {
        uint16_t *row = (uint16_t *)(void *)((char *)mask->data + (size_t)i * mask->nb[1]);
        for (int64_t j = 0; j < t; j++) {
            const bool open = sequences ? j / (t / n) == i : j <= t - n + i;
            row[j] = open ? 0 : 0xfc00;
        }
    }
}

/* Nodes of one kind, which together read more than the caches hold. */
struct job {
    enum sheaf_type type;
    bool sinks, sequences;
    float max_bias, softcap;
    int nodes;
    double bytes; /* of K and V, of a node */
    struct sheaf_context *c;
    struct sheaf_cgraph *graph;
    sheaf_backend_buffer_t buffer;
};

static void open_job(struct job *job, sheaf_backend_t backend, const struct shape *s, int64_t n,
                     int64_t t) {
    const size_t row = sheaf_row_size(job->type, s->d) + sheaf_row_size(job->type, s->e);
    const size_t bytes = (size_t)(t * s->heads_kv) * row;
    const int nodes = n > 1 && !job->sequences     ? 1
                      : CACHE / bytes >= MAX_NODES ? MAX_NODES
                                                   : (int)(CACHE / bytes) + 1;
    const struct sheaf_init_params params = {.mem_size = 1 << 20, .no_alloc = true};
    struct sheaf_context *c = must(sheaf_init(params));
    struct sheaf_tensor *kv[2 * MAX_NODES];
    struct sheaf_tensor *q = sheaf_new_tensor_3d(c, SHEAF_TYPE_F32, s->d, n, s->heads);
    struct sheaf_tensor *mask = sheaf_new_tensor_2d(c, SHEAF_TYPE_F16, t, n), *sinks = NULL;
    if (job->sinks) sinks = sheaf_new_tensor_1d(c, SHEAF_TYPE_F32, s->heads);
    job->graph = must(sheaf_new_graph(c));
    for (int i = 0; i < nodes; i++) {
        for (int j = 0; j < 2; j++) /* as a cache has them: the heads of a position together */
            kv[2 * i + j] = sheaf_new_tensor_3d(c, job->type, j ? s->e : s->d, s->heads_kv, t);
        check(sheaf_build_forward_expand(
            job->graph, sheaf_flash_attn_sinks(c, q, sheaf_permute(c, kv[2 * i], 0, 2, 1, 3),
                                               sheaf_permute(c, kv[2 * i + 1], 0, 2, 1, 3), mask,
                                               sinks, 0.125f, job->max_bias, job->softcap)));
    }
    check(sheaf_backend_alloc_ctx_tensors(c, backend, &job->buffer));
    fill(q);
    if (sinks) fill(sinks);
    fill_mask(mask, t, n, job->sequences);
    for (int i = 0; i < 2 * nodes; i++) fill(kv[i]);
    job->c = c;
    job->nodes = nodes;
    job->bytes = (double)bytes;
}

static void close_job(struct job *job) {
    sheaf_backend_buffer_free(job->buffer);
    sheaf_free(job->c);
}

/* Seconds of a node. */
static double time_job(const struct job *job, sheaf_backend_t backend, double (*clock_of)(void)) {
    const double start = clock_of();
    check(sheaf_backend_graph_compute(backend, job->graph));
    return (clock_of() - start) / job->nodes;
}

/* Seconds of one attention of n queries over t positions, the best of some rounds. */
static double run(sheaf_backend_t backend, const struct shape *s, enum sheaf_type type, int64_t n,
                  int64_t t, bool sequences) {
    struct job job = {.type = type, .sequences = sequences};
    open_job(&job, backend, s, n, t);
    double best = 1e9;
    for (int i = 0; i < ROUNDS; i++) {
        const double took = time_job(&job, backend, sheaf__seconds);
        best = took < best ? took : best;
    }
    close_job(&job);
    return best;
}

/* Queries of one sequence each, over so many positions of its own. */
static void decode(sheaf_backend_t backend, int64_t sequences) {
    static const int64_t positions[] = {128, 1024, 4096};
    if (sequences > 1) printf("\n%lld sequences\n", (long long)sequences);
    printf("\n| shape | K/V | 128 positions us | GB/s | 1024 us | GB/s | 4096 us | GB/s |\n"
           "|---|---|---:|---:|---:|---:|---:|---:|\n");
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) {
        for (int q8 = 0; q8 < 2; q8++) {
            const enum sheaf_type type = q8 ? SHEAF_TYPE_Q8_0 : SHEAF_TYPE_F16;
            printf("| %s | %s |", shapes[i].name, sheaf_type_name(type));
            for (size_t j = 0; j < sizeof positions / sizeof *positions; j++) {
                const int64_t t = positions[j] * sequences;
                const double took = run(backend, &shapes[i], type, sequences, t, sequences > 1);
                const double bytes = 2.0 * (double)(t * shapes[i].heads_kv) *
                                     (double)sheaf_row_size(type, shapes[i].d);
                printf(" %.1f | %.1f |", 1e6 * took, 1e-9 * bytes / took);
            }
            printf("\n");
        }
    }
}

static void prompt(sheaf_backend_t backend) {
    enum { N = 512 };
    static const int64_t behind[] = {0, 3584};
    printf("\n| shape | K/V | 512 tokens ms | GFLOP/s | behind 3584 ms | GFLOP/s |\n"
           "|---|---|---:|---:|---:|---:|\n");
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) {
        for (int q8 = 0; q8 < 2; q8++) {
            const enum sheaf_type type = q8 ? SHEAF_TYPE_Q8_0 : SHEAF_TYPE_F16;
            printf("| %s | %s |", shapes[i].name, sheaf_type_name(type));
            for (size_t j = 0; j < sizeof behind / sizeof *behind; j++) {
                const double took = run(backend, &shapes[i], type, N, behind[j] + N, false);
                const double seen = (double)N * (double)behind[j] + N * (N + 1) / 2;
                const double flop = 4.0 * (double)(shapes[i].heads * shapes[i].d) * seen;
                printf(" %.2f | %.0f |", 1e3 * took, 1e-9 * flop / took);
            }
            printf("\n");
        }
    }
}

/* ---- in turns ---- */

enum { TURNS = 21 };

/* Each job beside the first, n queries over t positions. */
static void in_turns(sheaf_backend_t backend, const struct shape *s, struct job *job,
                     const char *const *names, int n_jobs, int64_t n, int64_t t) {
    static double took[16][TURNS], ratio[16][TURNS];
    for (int i = 0; i < n_jobs; i++) open_job(&job[i], backend, s, n, t);
    for (int turn = -1; turn < TURNS; turn++) { /* the first only warms up */
        for (int i = 0; i < n_jobs; i++) {
            const double x = time_job(&job[i], backend, cpu_seconds);
            if (turn < 0) continue;
            took[i][turn] = x;
            ratio[i][turn] = x / took[0][turn];
        }
    }
    printf("\n%s: %lld quer%s, %lld positions\n\n"
           "| K/V | us | bytes of the cache | GB/s | time beside %s | lowest | highest |\n"
           "|---|---:|---:|---:|---:|---:|---:|\n",
           s->name, (long long)n, n > 1 ? "ies" : "y", (long long)t, names[0]);
    for (int i = 0; i < n_jobs; i++) {
        const double us = 1e6 * sheaf__median_of_reals(took[i], TURNS),
                     beside = sheaf__median_of_reals(ratio[i], TURNS);
        printf("| %s | %.1f | %.0f | %.1f | %.2f | %.2f | %.2f |\n", names[i], us, job[i].bytes,
               1e-3 * job[i].bytes / us, beside, ratio[i][0], ratio[i][TURNS - 1]);
        close_job(&job[i]);
    }
}

static void types(sheaf_backend_t backend) {
    static const struct shape mla = {"MLA", 576, 512, 16, 1}, gpt = {"gpt-oss", 64, 64, 64, 8};
    static const enum sheaf_type all[] = {SHEAF_TYPE_F16,  SHEAF_TYPE_F32,  SHEAF_TYPE_BF16,
                                          SHEAF_TYPE_Q8_0, SHEAF_TYPE_Q4_0, SHEAF_TYPE_Q4_1,
                                          SHEAF_TYPE_Q5_0, SHEAF_TYPE_Q5_1, SHEAF_TYPE_IQ4_NL};
    enum { N = sizeof all / sizeof *all };
    static const char *const features[] = {"f16", "sinks", "slopes", "soft cap"};
    for (int64_t n = 1; n <= 256; n += 255) {
        for (int k = 0; k < 2; k++) {
            struct job job[N] = {{0}};
            const char *names[N];
            for (int i = 0; i < N; i++) {
                job[i].type = all[i];
                names[i] = sheaf_type_name(all[i]);
            }
            in_turns(backend, k ? &mla : &shapes[1], job, names, N, n, n > 1 ? n : 1024);
        }
        struct job job[4] = {{.type = SHEAF_TYPE_F16},
                             {.type = SHEAF_TYPE_F16, .sinks = true},
                             {.type = SHEAF_TYPE_F16, .max_bias = 8},
                             {.type = SHEAF_TYPE_F16, .softcap = 50}};
        in_turns(backend, &gpt, job, features, 4, n, n > 1 ? n : 1024);
    }
}

int main(int argc, char **argv) {
    if (argc > 1 && !strcmp(argv[1], "types")) {
        sheaf_backend_t backend;
        check(sheaf_backend_init_by_name("CPU0", "threads=1", &backend));
        printf("\n1 thread, %s\n", sheaf_cpu_isa_name());
        types(backend);
        sheaf_backend_free(backend);
        return 0;
    }
    const int first = argc > 1 ? atoi(argv[1]) : 1, last = argc > 1 ? first : 2;
    for (int threads = first; threads <= last; threads++) {
        char params[32];
        snprintf(params, sizeof params, "threads=%d", threads);
        sheaf_backend_t backend;
        check(sheaf_backend_init_by_name("CPU0", params, &backend));
        printf("\n%d thread%s, %s\n", threads, threads > 1 ? "s" : "", sheaf_cpu_isa_name());
        decode(backend, 1);
        if (argc < 3 || strcmp(argv[2], "query") != 0) {
            decode(backend, 16);
            prompt(backend);
        }
        sheaf_backend_free(backend);
    }
    return 0;
}
