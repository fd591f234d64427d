/* The speed of each instruction set's kernels on one thread: products of one column, exact and
 * rounded, in GB/s of weights read from memory, beside the fastest loop that reads the same memory,
 * and from the cache; tiles of products by panels, in GFLOP/s; attention of one query from the
 * cache and from memory. Prints tables of docs/performance-kernels.md.
 *
 *   bench-kernels [ISA|TYPE ...]    all that run here, or those named; with types, their columns only
 *   taskset -c 1 bench-kernels ISA >/dev/null & taskset -c 0 bench-kernels ISA    while another core reads */
#include <assert.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/clock.h"
#include "common/reading.h"
#include "cpu/kernels/kernels.h"
#include "sheaf/type.h"

enum {
    K = 2048,
    BYTES = 192 << 20,
    CACHED = 64 << 10,
    ROUNDS = 5,
    CHUNK = 64,
    PASS = 256,
    COLUMNS = 512,
    TILE = 192 /* whole tiles of every kind */
};

static const enum sheaf_type types[] = {
    SHEAF_TYPE_F32,  SHEAF_TYPE_F16,    SHEAF_TYPE_BF16,   SHEAF_TYPE_Q8_0,
    SHEAF_TYPE_Q4_0, SHEAF_TYPE_Q4_1,   SHEAF_TYPE_Q5_0,   SHEAF_TYPE_Q5_1,
    SHEAF_TYPE_Q2_K, SHEAF_TYPE_Q3_K,   SHEAF_TYPE_Q4_K,   SHEAF_TYPE_Q5_K,
    SHEAF_TYPE_Q6_K, SHEAF_TYPE_IQ4_NL, SHEAF_TYPE_IQ4_XS, SHEAF_TYPE_MXFP4,
};

static void *memory(size_t size) {
    void *p = aligned_alloc(1 << 21, (size + (1 << 21) - 1) >> 21 << 21);
    if (!p) abort();
    madvise(p, size, MADV_HUGEPAGE); /* as buffers of weights are */
    memset(p, 0, size);
    return p;
}

/* GB/s of BYTES at p by a loop. */
static double stream(const char *p, int loop) {
    static volatile uint64_t sink;
    const double start = sheaf__seconds();
    sink = read_words((const uint64_t *)(const void *)p, BYTES / sizeof(uint64_t), loop);
    (void)sink;
    return BYTES / (sheaf__seconds() - start) / 1e9;
}

/* BYTES of weights, those of `size` bytes at w again and again, by one column, exact or rounded. */
static double decode(const struct sheaf__cpu_kernels *kern, enum sheaf_type type, bool repacked,
                     bool rounded, const char *w, int64_t size, void *column, float *out) {
    const size_t row = sheaf_row_size(type, K);
    const int64_t rows = size / (int64_t)row, times = BYTES / size;
    const struct sheaf__cpu_repacked *order = &kern->repacked[type];
    sheaf__rows_dot_fn dot = kern->rows_dot[type];
    float ones[K];
    for (int i = 0; i < K; i++) ones[i] = 1.0f;
    if (rounded) {
        kern->to_bytes(ones, column, K, sheaf__digits_at_end(K),
                       sheaf__bytes_order(kern->digits_order[type]));
        dot = repacked ? order->rows_dot_rounded : kern->rows_dot_rounded[type];
    } else if (kern->rows_dot_digits[type]) {
        kern->to_digits(ones, column, K, sheaf__digits_at_end(K), kern->digits_order[type]);
        dot = repacked ? order->rows_dot_digits : kern->rows_dot_digits[type];
    }
    const double start = sheaf__seconds();
    for (int64_t i = 0; i < times; i++) {
        for (int64_t r = 0; r < rows; r += CHUNK) {
            const void *act = column;
            float *to = out;
            dot(K, w + (size_t)r * row, row, rows - r < CHUNK ? rows - r : CHUNK, &act, 1, &to);
        }
    }
    return (double)(times * rows) * (double)row / (sheaf__seconds() - start) / 1e9;
}

/* One query, by the keys and values of a cache: nanoseconds for a key of one K/V head and for its value. */
enum {
    KEYS = 256,
    MOST_QUERIES = 8,
    MOST_HEADS = 8,
    TURN = 32,
    VALUE_TURN = SHEAF__VALUES_TOGETHER
};
struct shape {
    const char *name;
    int64_t d;
    int heads, queries; /* K/V heads; query heads of each */
};
struct times {
    double key, value;
};

/* Heads take turns, as in attention. */
static struct times one_query(const struct sheaf__cpu_kernels *kern, enum sheaf_type type,
                              const struct shape *s, int64_t keys, const char *cache) {
    static _Alignas(64) float q[MOST_QUERIES][SHEAF__DIRECT_WIDTH], weights[MOST_QUERIES][KEYS];
    static _Alignas(64) float y[MOST_HEADS][MOST_QUERIES][SHEAF__DIRECT_WIDTH];
    static struct sheaf__query_digits digits[MOST_QUERIES][SHEAF__DIRECT_WIDTH / 32];
    static float scores[MOST_QUERIES * KEYS];
    const bool integers = type == SHEAF_TYPE_Q8_0 && kern->attention_q8.query;
    const size_t row = sheaf_row_size(type, s->d), stride = (size_t)s->heads * row;
    sheaf__mix_rows_fn mix = integers ? kern->attention_q8.mix : kern->mix_of[type];
    const struct sheaf__query_digits *of[MOST_QUERIES];
    const float *rows[MOST_QUERIES];
    struct times best = {1e9, 1e9};
    for (int c = 0; c < s->queries; c++) {
        for (int64_t i = 0; i < s->d; i++) q[c][i] = (float)((i + c) % 5) - 2.0f;
        for (int j = 0; j < KEYS; j++) weights[c][j] = 1.0f / (float)(1 + j);
        rows[c] = q[c];
        of[c] = digits[c];
        if (integers) kern->attention_q8.query(s->d, q[c], digits[c]);
    }
    for (int i = 0; i < (keys > KEYS ? ROUNDS : 200 * ROUNDS); i++) {
        const double start = sheaf__seconds();
        for (int64_t t = 0; t < keys; t += TURN) {
            for (int h = 0; h < s->heads; h++) {
                const char *x = cache + (size_t)t * stride + (size_t)h * row;
                if (integers)
                    kern->attention_q8.dots(s->d, x, stride, TURN, of, s->queries, scores, KEYS);
                else
                    kern->dots_of[type](s->d, x, stride, TURN, rows, s->queries, scores, KEYS);
            }
        }
        const double between = sheaf__seconds();
        for (int64_t t = 0; t < keys; t += VALUE_TURN) {
            for (int h = 0; h < s->heads; h++)
                mix(VALUE_TURN, cache + (size_t)t * stride + (size_t)h * row, stride, s->d,
                    weights[0], KEYS, s->queries, y[h][0], SHEAF__DIRECT_WIDTH);
        }
        const double end = sheaf__seconds();
        if (between - start < best.key) best.key = between - start;
        if (end - between < best.value) best.value = end - between;
    }
    const double each = 1e9 / (double)(keys * s->heads);
    return (struct times){best.key * each, best.value * each};
}

/* KEYS positions lie in the second cache; then as many as BYTES hold are read from memory. */
static void queries(const struct sheaf__cpu_kernels *kern) {
    static const struct shape shapes[] = {{"TinyLlama", 64, 4, 8},
                                          {"Llama 8B", 128, 8, 4},
                                          {"Llama 70B", 128, 8, 8},
                                          {"SmolLM2", 64, 3, 3}};
    static const enum sheaf_type of[] = {SHEAF_TYPE_F16, SHEAF_TYPE_Q8_0};
    char *cache = memory(BYTES);
    float x[SHEAF__DIRECT_WIDTH];
    for (int i = 0; i < SHEAF__DIRECT_WIDTH; i++) x[i] = (float)(i % 7) - 3.0f;
    printf("\n| one query | K/V | ns a key | ns a value | a key from memory | GB/s | a value | "
           "GB/s |\n"
           "|---|---|---:|---:|---:|---:|---:|---:|\n");
    for (size_t t = 0; t < sizeof of / sizeof *of; t++) {
        const size_t size = sheaf_row_size(of[t], SHEAF__DIRECT_WIDTH);
        for (size_t i = 0; i < BYTES / size; i++)
            sheaf_from_float(of[t], x, cache + i * size, SHEAF__DIRECT_WIDTH);
        for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) {
            const size_t row = sheaf_row_size(of[t], shapes[i].d);
            const int64_t all = (int64_t)(BYTES / row) / shapes[i].heads / VALUE_TURN * VALUE_TURN;
            const struct times near = one_query(kern, of[t], &shapes[i], KEYS, cache);
            const struct times far = one_query(kern, of[t], &shapes[i], all, cache);
            printf("| %s | %s | %.2f | %.2f | %.2f | %.1f | %.2f | %.1f |\n", shapes[i].name,
                   sheaf_type_name(of[t]), near.key, near.value, far.key, (double)row / far.key,
                   far.value, (double)row / far.value);
        }
    }
    free(cache);
}

/* As products have them: src/cpu/matmul/panels.c. */
static size_t stride_of(const struct sheaf__cpu_panels *p) {
    return PASS / (size_t)p->unit * p->row_bytes + (p->rows > 16 ? 64 : 0);
}

static double tiles(const struct sheaf__cpu_panels *p, const char *rows, const char *panels,
                    float *c) {
    const size_t stride = stride_of(p);
    const size_t panel = PASS / (size_t)p->unit * p->panel_bytes;
    const int64_t all = COLUMNS / p->cols; /* panels */
    struct sheaf__cpu_kept kept;
    if (p->begin) p->begin(&kept);
    const double start = sheaf__seconds();
    for (int64_t q = 0; q < all; q++) {
        for (int64_t r = 0; r < TILE; r += p->rows)
            p->tile(PASS, rows + (size_t)r * stride, stride, panels + (size_t)q * panel, p->cols, c,
                    false);
    }
    const double took = sheaf__seconds() - start;
    if (p->end) p->end(&kept);
    return 2.0 * TILE * (double)(all * p->cols) * PASS / took / 1e9;
}

static double best_reading(const char *w) {
    double read = 0;
    for (int i = 0; i < ROUNDS * READING_LOOPS; i++)
        read = fmax(read, stream(w, i % READING_LOOPS));
    return read;
}

/* A line of the table: weights in memory and in a cache. */
static void print_type(const struct sheaf__cpu_kernels *kern, enum sheaf_type type, bool repacked,
                       const char *w, double read, char *column, float *out) {
    printf("| %s%s |", sheaf_type_name(type), repacked ? ", repacked" : "");
    for (int rounded = 0; rounded < 2; rounded++) {
        double speed = 0, cached = 0;
        if (rounded && !(sheaf_is_quantized(type) && kern->rows_dot_rounded[type])) {
            printf(" | | |");
            continue;
        }
        for (int i = 0; i < ROUNDS; i++) {
            speed = fmax(speed, decode(kern, type, repacked, rounded, w, BYTES, column, out));
            cached = fmax(cached, decode(kern, type, repacked, rounded, w, CACHED, column, out));
        }
        printf(" %.1f | %.0f %% | %.1f |", speed, 100 * speed / read, cached);
    }
    printf("\n");
}

/* What the command names: tables and types. */
struct names {
    int n;
    char **name;
};
static bool has(const struct names *names, const char *name) {
    for (int i = 0; i < names->n; i++) {
        if (strcmp(name, names->name[i]) == 0) return true;
    }
    return false;
}
static bool has_type(const struct names *names, enum sheaf_type type) {
    return has(names, sheaf_type_name(type));
}
static int types_in(const struct names *names) {
    int n = 0;
    for (size_t t = 0; t < sizeof types / sizeof *types; t++) n += has_type(names, types[t]);
    return n;
}

/* Products with one column, of weights as they are in files and repacked. */
static void print_columns(const struct sheaf__cpu_kernels *kern, const struct names *names,
                          const char *w) {
    char *column = memory(K * 8);
    float *c = memory(4096 * sizeof(float));
    const double read = best_reading(w);
    printf(
        "\n%s: reads %.1f GB/s\n\n| type | GB/s | of reading | from cache | rounded | of reading | "
        "from cache |\n|---|---:|---:|---:|---:|---:|---:|\n",
        kern->name, read);
    for (size_t t = 0; t < sizeof types / sizeof *types; t++) {
        if (types_in(names) && !has_type(names, types[t])) continue;
        print_type(kern, types[t], false, w, read, column, c);
        if (kern->repacked[types[t]].repack) print_type(kern, types[t], true, w, read, column, c);
    }
    printf("\n");
    free(column);
    free(c);
}

static const char *const panel_names[] = {
    [SHEAF__PANELS_FLOATS] = "floats",
    [SHEAF__PANELS_16] = "16 bits",
    [SHEAF__PANELS_16_WORDS] = "16 bits, words",
    [SHEAF__PANELS_BF16_SCALED] = "scaled BF16",
    [SHEAF__PANELS_BF16_BOTH] = "two BF16 each",
    [SHEAF__PANELS_BF16_TWICE] = "two BF16",
    [SHEAF__PANELS_24_IN_PLACE] = "24 bits, in place",
    [SHEAF__PANELS_BF16_SCALED_ONCE] = "scaled BF16, once",
    [SHEAF__PANELS_BF16] = "BF16",
    [SHEAF__PANELS_8] = "8 bits",
};
static_assert(sizeof panel_names / sizeof *panel_names == SHEAF__PANELS_KINDS, "a name for each");

/* Tiles of products with many columns. */
static void print_tiles(const struct sheaf__cpu_kernels *kern, const char *w) {
    char *panels = memory(2 * COLUMNS * PASS * sizeof(float));
    char *rows = memory(TILE * (PASS * sizeof(float) + 64));
    float *c = memory(4096 * sizeof(float));
    for (int kind = 0; kind < SHEAF__PANELS_KINDS; kind++) {
        const struct sheaf__cpu_panels *p = &kern->panels[kind];
        for (size_t t = 0; t < sizeof types / sizeof *types && p->rows > 0; t++) {
            const size_t stride = stride_of(p);
            double speed = 0;
            if (!p->unpack[types[t]] || (kind == SHEAF__PANELS_FLOATS && t > 0)) continue;
            for (int r = 0; r < TILE; r++) p->unpack[types[t]](w, rows + (size_t)r * stride, PASS);
            for (int i = 0; i < 20 * ROUNDS; i++) speed = fmax(speed, tiles(p, rows, panels, c));
            printf("tiles of %s, %s: %.0f GFLOP/s\n", panel_names[kind], sheaf_type_name(types[t]),
                   speed);
        }
    }
    free(panels);
    free(rows);
    free(c);
}

static void one_table(const struct sheaf__cpu_kernels *kern, const struct names *names,
                      const char *w) {
    print_columns(kern, names, w);
    if (types_in(names)) return;
    print_tiles(kern, w);
    queries(kern);
}

int main(int argc, char **argv) {
    const struct names names = {argc - 1, argv + 1};
    char *w = memory(BYTES + 8192);
    /* A scale of MXFP4 of all zeros is subnormal, which is slow; of these bytes every scale is normal. */
    memset(w, 0x35, BYTES);
    const struct sheaf__cpu_kernels *kern;
    for (int i = 0; (kern = sheaf__cpu_kernels_at(i)); i++) {
        if (names.n == types_in(&names) || has(&names, kern->name)) one_table(kern, &names, w);
    }
    free(w);
    return 0;
}
