/* The speed of a graph's products where their shape matters: of one column and long rows, in GB/s
 * of weights, beside the same rows in one go of the kernel (mul_mat.c cuts them in parts); and of
 * experts, a token and a prompt. Prints figures of docs/performance-kernels.md.
 *
 *   bench-products [THREADS]         1 thread, or as many as given
 *   bench-products 1 types           one matrix of each type: a token and a prompt, in CPU time
 *   bench-products 1 columns [TYPE]  few columns, weights from memory, in CPU time */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/sort.h"
#include "cpu/kernels/kernels.h"
#include "sheaf/sheaf.h"

#include "bench.h"

enum {
    ROUNDS = 7,
    BYTES = 96 << 20, /* of weights read in one go: more than a cache */
    CHUNK = 64,
    EXPERTS = 16,
    USED = 2,
};
static const int64_t lengths[] = {2048, 8192, 14336};
enum { LENGTHS = sizeof lengths / sizeof *lengths, EXPERT_K = 512, EXPERT_M = 2816 };
static const enum sheaf_type types[] = {SHEAF_TYPE_Q4_0, SHEAF_TYPE_Q4_K, SHEAF_TYPE_Q8_0,
                                        SHEAF_TYPE_Q6_K, SHEAF_TYPE_F16};
enum { TYPES = sizeof types / sizeof *types };
static const enum sheaf_type all[] = {
    SHEAF_TYPE_F32,     SHEAF_TYPE_F16,   SHEAF_TYPE_BF16,    SHEAF_TYPE_Q8_0,   SHEAF_TYPE_Q4_0,
    SHEAF_TYPE_Q4_1,    SHEAF_TYPE_Q5_0,  SHEAF_TYPE_Q5_1,    SHEAF_TYPE_Q4_K,   SHEAF_TYPE_Q5_K,
    SHEAF_TYPE_Q6_K,    SHEAF_TYPE_MXFP4, SHEAF_TYPE_NVFP4,   SHEAF_TYPE_IQ4_NL, SHEAF_TYPE_IQ4_XS,
    SHEAF_TYPE_Q2_K,    SHEAF_TYPE_Q3_K,  SHEAF_TYPE_IQ2_XXS, SHEAF_TYPE_IQ2_XS, SHEAF_TYPE_IQ2_S,
    SHEAF_TYPE_IQ3_XXS, SHEAF_TYPE_IQ3_S, SHEAF_TYPE_IQ1_S,   SHEAF_TYPE_IQ1_M,  SHEAF_TYPE_TQ1_0,
    SHEAF_TYPE_TQ2_0,   SHEAF_TYPE_Q1_0,  SHEAF_TYPE_Q2_0};
static const enum sheaf_type of_columns[] = {SHEAF_TYPE_Q4_0, SHEAF_TYPE_Q4_K, SHEAF_TYPE_Q8_0,
                                             SHEAF_TYPE_Q6_K, SHEAF_TYPE_F16,  SHEAF_TYPE_BF16};
enum { OF_COLUMNS = sizeof of_columns / sizeof *of_columns };
enum { ALL = sizeof all / sizeof *all, ALL_K = 4096, ALL_M = 2048, PROMPT = 128 };

/* Any blocks will do, but points of grids are to lie anywhere, and exponents of MXFP4 near 0: products of the smallest
 * are subnormal numbers, which take a CPU many times as long. */
static void fill(struct sheaf_tensor *w) {
    uint8_t *p = w->data;
    uint32_t x = 1;
    if (!sheaf_is_quantized(w->type)) {
        memset(p, 0, sheaf_nbytes(w));
        return;
    }
    for (size_t i = 0; i < sheaf_nbytes(w); i++) {
        x = x * 1664525 + 1013904223;
        p[i] = (uint8_t)(x >> 24);
        if (w->type == SHEAF_TYPE_MXFP4 && i % sheaf_type_size(w->type) == 0)
            p[i] = (uint8_t)(124 + p[i] % 8);
    }
}

/* A graph of one product. */
struct product {
    struct sheaf_context *ctx;
    struct sheaf_cgraph *graph;
    sheaf_backend_buffer_t buffer;
    struct sheaf_tensor *w, *x, *ids;
};

static struct product make(sheaf_backend_t backend, enum sheaf_type type, int64_t k, int64_t m,
                           int64_t experts, int64_t tokens) {
    const struct sheaf_init_params params = {.mem_size = 1 << 20, .no_alloc = true};
    struct product p = {.ctx = must(sheaf_init(params))};
    p.graph = must(sheaf_new_graph(p.ctx));
    p.w = sheaf_new_tensor_3d(p.ctx, type, k, m, experts ? experts : 1);
    p.x = experts ? sheaf_new_tensor_3d(p.ctx, SHEAF_TYPE_F32, k, 1, tokens)
                  : sheaf_new_tensor_2d(p.ctx, SHEAF_TYPE_F32, k, tokens);
    p.ids = experts ? sheaf_new_tensor_2d(p.ctx, SHEAF_TYPE_I32, USED, tokens) : NULL;
    check(sheaf_build_forward_expand(p.graph, experts ? sheaf_mul_mat_id(p.ctx, p.w, p.x, p.ids)
                                                      : sheaf_mul_mat(p.ctx, p.w, p.x)));
    check(sheaf_backend_alloc_ctx_tensors(p.ctx, backend, &p.buffer));
    fill(p.w);
    float *x = p.x->data;
    for (int64_t i = 0; i < k * tokens; i++) x[i] = (float)(i % 255 - 127);
    if (experts) {
        int32_t *ids = p.ids->data;
        for (int64_t i = 0; i < USED * tokens; i++) /* two that differ, all equally often */
            ids[i] = (int32_t)((i / USED * 5 + i % USED * 7) % EXPERTS);
    }
    return p;
}

static double best_of(sheaf_backend_t backend, const struct product *p) {
    double best = 1e9;
    for (int i = 0; i < ROUNDS; i++) {
        const double start = sheaf__seconds();
        check(sheaf_backend_graph_compute(backend, p->graph));
        const double took = sheaf__seconds() - start;
        best = took < best ? took : best;
    }
    return best;
}

static void drop(struct product *p) {
    sheaf_backend_buffer_free(p->buffer);
    sheaf_free(p->ctx);
}

/* The kernel alone, rows in one go. */
static double whole(enum sheaf_type type, int64_t k, const char *w, int64_t m) {
    const struct sheaf__cpu_kernels *kern = sheaf__cpu_kernels();
    if (!kern) must(NULL);
    const size_t row = sheaf_row_size(type, k);
    const bool digits = kern->rows_dot_digits[type] != NULL;
    const sheaf__rows_dot_fn dot = digits ? kern->rows_dot_digits[type] : kern->rows_dot[type];
    float *zeros = must(calloc((size_t)k, sizeof *zeros)), out[CHUNK], *to = out;
    void *column = must(aligned_alloc(64, (size_t)(k + 256) * 8));
    if (digits)
        kern->to_digits(zeros, column, k, sheaf__digits_at_end(k), kern->digits_order[type]);
    const void *act = digits ? column : zeros;
    double best = 1e9;
    for (int i = 0; i < ROUNDS; i++) {
        const double start = sheaf__seconds();
        for (int64_t r = 0; r < m; r += CHUNK)
            dot(k, w + (size_t)r * row, row, m - r < CHUNK ? m - r : CHUNK, &act, 1, &to);
        const double took = sheaf__seconds() - start;
        best = took < best ? took : best;
    }
    free(column);
    free(zeros);
    return best;
}

static void long_rows(sheaf_backend_t backend, bool alone) {
    printf("\n| type |");
    for (int i = 0; i < LENGTHS; i++) printf(" k = %d GB/s |", (int)lengths[i]);
    printf("%s\n|---|", alone ? " in one go |" : "");
    for (int i = 0; i < LENGTHS + alone; i++) printf("---:|");
    for (int t = 0; t < TYPES; t++) {
        printf("\n| %s |", sheaf_type_name(types[t]));
        for (int i = 0; i < LENGTHS; i++) {
            const int64_t m = BYTES / (int64_t)sheaf_row_size(types[t], lengths[i]);
            struct product p = make(backend, types[t], lengths[i], m, 0, 1);
            const double bytes = (double)sheaf_nbytes(p.w);
            printf(" %.1f |", 1e-9 * bytes / best_of(backend, &p));
            if (alone && i == LENGTHS - 1)
                printf(" %.1f |", 1e-9 * bytes / whole(types[t], lengths[i], p.w->data, m));
            drop(&p);
        }
    }
    printf("\n");
}

static void experts(sheaf_backend_t backend) {
    printf("\n%d of %d experts, %d -> %d\n\n| type | 1 token us | 512 tokens ms | GFLOP/s |\n"
           "|---|---:|---:|---:|\n",
           USED, EXPERTS, EXPERT_K, EXPERT_M);
    for (int t = 0; t < TYPES; t++) {
        double took[2];
        for (int i = 0; i < 2; i++) {
            struct product p = make(backend, types[t], EXPERT_K, EXPERT_M, EXPERTS, i ? 512 : 1);
            took[i] = best_of(backend, &p);
            drop(&p);
        }
        const double flop = 2.0 * EXPERT_K * EXPERT_M * USED * 512;
        printf("| %s | %.0f | %.1f | %.0f |\n", sheaf_type_name(types[t]), 1e6 * took[0],
               1e3 * took[1], 1e-9 * flop / took[1]);
    }
}

static double seconds_of(sheaf_backend_t backend, const struct product *p) {
    const double start = cpu_seconds();
    check(sheaf_backend_graph_compute(backend, p->graph));
    return cpu_seconds() - start;
}

/* The product of one column by the portable kernel, which has all types as floats; by an eighth of
 * the rows. */
static double seconds_portable(const struct product *p) {
    static float out[ALL_M];
    float *to = out;
    const enum sheaf_type type = p->w->type;
    const void *x = p->x->data;
    const size_t row = sheaf_row_size(type, ALL_K);
    const double start = cpu_seconds();
    sheaf__cpu_kernels_portable.rows_dot[type](ALL_K, p->w->data, row, ALL_M / 8, &x, 1, &to);
    const double took = cpu_seconds() - start;
    return 8 * took;
}

/* Medians of runs in turns. */
static void each_type(sheaf_backend_t backend) {
    printf(
        "\n%d -> %d\n\n| type | bits | 1 token us | GB/s | of portable | %d tokens ms | GFLOP/s |\n"
        "|---|---:|---:|---:|---:|---:|---:|\n",
        ALL_K, ALL_M, PROMPT);
    for (int t = 0; t < ALL; t++) {
        struct product one = make(backend, all[t], ALL_K, ALL_M, 0, 1);
        struct product many = make(backend, all[t], ALL_K, ALL_M, 0, PROMPT);
        const double bytes = (double)sheaf_nbytes(one.w);
        double token[ROUNDS], prompt[ROUNDS], ratio[ROUNDS];
        for (int i = 0; i < ROUNDS; i++) {
            token[i] = seconds_of(backend, &one);
            ratio[i] = seconds_portable(&one) / token[i];
            prompt[i] = seconds_of(backend, &many);
        }
        const double us = 1e6 * sheaf__median_of_reals(token, ROUNDS),
                     ms = 1e3 * sheaf__median_of_reals(prompt, ROUNDS);
        printf("| %s | %.4g | %.0f | %.1f | %.1f | %.1f | %.0f |\n", sheaf_type_name(all[t]),
               8 * bytes / ALL_K / ALL_M, us, 1e-3 * bytes / us,
               sheaf__median_of_reals(ratio, ROUNDS), ms, 2e-6 * ALL_K * ALL_M * PROMPT / ms);
        fflush(stdout);
        drop(&one);
        drop(&many);
    }
}

/* Microseconds for a MiB of weights of n types, medians of runs in turns. */
static void few_columns(sheaf_backend_t backend, int64_t k, const enum sheaf_type *of,
                        size_t n_of) {
    static const int64_t counts[] = {1, 4, 8, 12, 16, 24, 32};
    enum { COUNTS = sizeof counts / sizeof *counts, FEW_BYTES = 64 << 20 };
    printf("\nus a MiB, k = %d\n\n| type |", (int)k);
    for (int n = 0; n < COUNTS; n++) printf(" %d |", (int)counts[n]);
    printf("\n|---|");
    for (int n = 0; n < COUNTS; n++) printf("---:|");
    for (size_t t = 0; t < n_of; t++) {
        struct product p[COUNTS];
        double took[COUNTS][ROUNDS];
        for (int n = 0; n < COUNTS; n++)
            p[n] = make(backend, of[t], k, FEW_BYTES / (int64_t)sheaf_row_size(of[t], k), 0,
                        counts[n]);
        for (int i = 0; i < ROUNDS; i++) {
            for (int n = 0; n < COUNTS; n++) took[n][i] = seconds_of(backend, &p[n]);
        }
        printf("\n| %s |", sheaf_type_name(of[t]));
        for (int n = 0; n < COUNTS; n++) {
            const double us = 1e6 * sheaf__median_of_reals(took[n], ROUNDS);
            printf(" %.0f |", us * (1 << 20) / (double)sheaf_nbytes(p[n].w));
            drop(&p[n]);
        }
        fflush(stdout);
    }
    printf("\n");
}

int main(int argc, char **argv) {
    const bool types_only = argc > 2 && !strcmp(argv[2], "types");
    const bool columns_only = argc > 2 && !strcmp(argv[2], "columns");
    const int threads = argc > 1 ? atoi(argv[1]) : 1;
    char params[32];
    snprintf(params, sizeof params, "threads=%d", threads);
    sheaf_backend_t backend;
    check(sheaf_backend_init_by_name("CPU0", params, &backend));
    printf("%d thread%s, %s\n", threads, threads > 1 ? "s" : "", sheaf_cpu_isa_name());
    if (types_only) {
        each_type(backend);
    } else if (columns_only) {
        const enum sheaf_type one = argc > 3 ? sheaf_type_from_name(argv[3]) : SHEAF_TYPE_COUNT;
        if (argc > 3 && one == SHEAF_TYPE_COUNT) {
            fprintf(stderr, "bench-products: no type is named '%s'; names are as in q4_0, f16\n",
                    argv[3]);
            return 1;
        }
        static const int64_t ks[] = {2048, 5632};
        for (int i = 0; i < 2; i++)
            few_columns(backend, ks[i], argc > 3 ? &one : of_columns, argc > 3 ? 1 : OF_COLUMNS);
    } else {
        long_rows(backend, threads == 1);
        experts(backend);
    }
    sheaf_backend_free(backend);
    return 0;
}
