/* Rows of elements and conversions of every table of kernels, against the portable ones or the core,
 * to the bit; and what the portable ones compute, against double. Tables that this CPU lacks are not
 * among them; test-mul-mat says so. */
#include <criterion/criterion.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "cpu/kernels/kernels.h"
#include "random_numbers.h"
#include "sheaf/sheaf.h"

#define FOR_EACH_TABLE(kern)                                                                       \
    for (int table_ = 0; table_ >= 0; table_ = -1)                                                 \
        for (const struct sheaf__cpu_kernels *kern; (kern = sheaf__cpu_kernels_at(table_++));)

/* The same bits, or NaN, whose bits say nothing. */
static void same(const char *table, const char *what, int64_t n, const float *got,
                 const float *want) {
    for (int64_t i = 0; i < n; i++)
        cr_assert(memcmp(&got[i], &want[i], sizeof *got) == 0 || (isnan(got[i]) && isnan(want[i])),
                  "%s, %s: element %d of %d is %a, not %a", table, what, (int)i, (int)n,
                  (double)got[i], (double)want[i]);
}

/* ---- elements ---- */

enum { MOST = 77 }; /* whole vectors, and a tail, of every table */
static float a[MOST], b[MOST], want[MOST + 1], got[MOST + 1];

static void fill_rows(void) {
    static const float special[] = {0.0f,      -0.0f,      INFINITY, -INFINITY, NAN,
                                    0x1p-149f, -0x1p-130f, 3e38f,    -89.0f,    0.625f};
    for (int i = 0; i < MOST; i++) {
        a[i] = i < 10 ? special[i] : 8 * random_float();
        b[i] = i % 9 == 8 ? special[i % 10] : 8 * random_float();
    }
}

static void check_rows(const char *table, const char *what, int n) {
    cr_assert_eq(got[n], 77.0f, "%s, %s writes behind a row of %d", table, what, n);
    same(table, what, n, got, want);
}
#define CHECK(what, ...)                                                                           \
    do {                                                                                           \
        got[n] = 77;                                                                               \
        base->what(__VA_ARGS__, want);                                                             \
        e->what(__VA_ARGS__, got);                                                                 \
        check_rows(kern->name, #what, n);                                                          \
    } while (0)

Test(cpu_kernels, elements_have_the_same_bits) {
    const struct sheaf__cpu_elements *base = &sheaf__cpu_kernels_portable.elements;
    const float p[2] = {1.7f, 2.5f};
    fill_rows();
    FOR_EACH_TABLE(kern) {
        const struct sheaf__cpu_elements *e = &kern->elements;
        for (int n = 0; n <= MOST; n++) {
            CHECK(add, n, a, b);
            CHECK(sub, n, a, b);
            CHECK(mul, n, a, b);
            CHECK(div, n, a, b);
            CHECK(sqr, n, a);
            CHECK(sqrt, n, a);
            CHECK(scale, n, a, p);
            CHECK(clamp, n, a, p);
            CHECK(leaky_relu, n, a, p);
            CHECK(swiglu_oai, n, a, b, p);
            CHECK(swiglu_clamp, n, a, b, p);
            for (int op = 0; op < SHEAF_UNARY_OP_COUNT; op++) {
                cr_assert_eq(!e->unary[op], !base->unary[op]);
                if (!base->unary[op]) continue;
                CHECK(unary[op], n, a);
                memcpy(got, a, (size_t)n * sizeof *a);
                e->unary[op](n, got, got); /* in place */
                check_rows(kern->name, "in place", n);
            }
        }
    }
}

Test(cpu_kernels, swiglu_is_silu_and_a_product) {
    fill_rows();
    FOR_EACH_TABLE(kern) {
        for (int n = 0; n <= MOST; n++) {
            got[n] = 77;
            kern->silu_f32(n, a, want);
            kern->elements.mul(n, want, b, want);
            kern->swiglu_f32(n, a, b, got);
            check_rows(kern->name, "swiglu", n);
        }
    }
}

Test(cpu_kernels, tanh_against_double) {
    enum { N = 1 << 14 };
    static float x[N], y[N];
    for (int i = 0; i < N; i++) x[i] = 24.0f * ((float)i - N / 2) / N; /* 0 among them */
    for (int i = 0; i < 100; i++) x[i] = ldexpf(i % 2 ? -1.3f : 1.3f, -i);
    x[100] = INFINITY, x[101] = -INFINITY, x[102] = 1e30f, x[103] = -0.0f;
    sheaf__cpu_kernels_portable.elements.unary[SHEAF_UNARY_OP_TANH](N, x, y);
    for (int i = 0; i < N; i++) {
        const double w = tanh((double)x[i]);
        cr_assert_float_eq((double)y[i], w, 2.5e-7 * fabs(w), "tanh(%a) = %a, not %a", (double)x[i],
                           (double)y[i], w);
    }
    cr_assert(signbit(y[103]));
    x[0] = NAN;
    sheaf__cpu_kernels_portable.elements.unary[SHEAF_UNARY_OP_TANH](1, x, y);
    cr_assert(isnan(y[0]));
}

Test(cpu_kernels, keys_below) {
    enum { N = 300 };
    static int32_t key[N], below[N + 1];
    FOR_EACH_TABLE(kern) {
        for (int n = 0; n <= N; n += n < 140 ? 1 : 53) {
            const int32_t kinds = n % 3 ? INT32_MAX : 7; /* many are equal */
            for (int i = 0; i < n; i++)
                key[i] = (int32_t)(random_u32() % (uint32_t)kinds) * (i % 2 ? 1 : -1);
            if (n > 2) key[0] = INT32_MAX, key[1] = INT32_MIN;
            below[n] = 77;
            kern->elements.below(n, key, below);
            cr_assert_eq(below[n], 77, "%s writes behind %d", kern->name, n);
            for (int i = 0; i < n; i++) {
                int count = 0;
                for (int j = 0; j < n; j++) count += key[j] < key[i];
                cr_assert_eq(below[i], count, "%s: %d of %d", kern->name, i, n);
            }
        }
    }
}

/* ---- conversions ---- */

/* Any bytes are blocks: scales are subnormal, infinite and NaN, codes are those that no quantizer
 * makes. */
Test(cpu_kernels, to_floats_as_the_core) {
    enum { BLOCKS = 41, MOST_BYTES = 256 };
    static uint8_t w[BLOCKS * MOST_BYTES];
    static float y[BLOCKS * 256 + 1], core[BLOCKS * 256];
    FOR_EACH_TABLE(kern) {
        for (int t = 0; t < SHEAF_TYPE_COUNT; t++) {
            const enum sheaf_type type = (enum sheaf_type)t;
            const int64_t block = sheaf_blck_size(type);
            if (!sheaf_is_quantized(type)) continue;
            if (!kern->to_float[t]) {
                cr_assert(!kern->to_digits, "%s has no rows of %s", kern->name,
                          sheaf_type_name(type));
                continue;
            }
            cr_assert_leq(sheaf_type_size(type), MOST_BYTES);
            for (int turn = 0; turn < 8; turn++) {
                for (size_t i = 0; i < sizeof w; i++) w[i] = (uint8_t)random_u32();
                for (int64_t n = turn; n <= BLOCKS; n += 8) {
                    y[n * block] = 77;
                    kern->to_float[t](w, y, n * block);
                    cr_assert_eq(sheaf_to_float(type, w, core, n * block), SHEAF_STATUS_SUCCESS);
                    cr_assert_eq(y[n * block], 77.0f);
                    same(kern->name, sheaf_type_name(type), n * block, y, core);
                }
            }
        }
    }
}

/* Blocks of one kind each: any size, few values so that many are equal, with halves between two codes,
 * zeros of both signs, one that is not finite. */
static void fill_block(int kind, float *x) {
    const float size = ldexpf(1, (int)(random_u32() % 60) - 40);
    for (int i = 0; i < 32; i++) {
        const float few = (float)((int)(random_u32() % 33) - 16) / 2;
        x[i] = kind == 0   ? size * random_float()
               : kind == 1 ? few
               : kind == 2 ? size * few
               : kind == 3 ? (random_u32() % 2 ? 0.0f : -0.0f)
               : kind == 4 ? 0x1p-140f * few
               : kind == 5 ? fabsf(few) + 1
                           : random_float();
    }
    if (kind > 6) x[random_u32() % 32] = kind == 7 ? INFINITY : kind == 8 ? -INFINITY : NAN;
}

Test(cpu_kernels, from_floats_as_the_core) {
    enum { BLOCKS = 200 };
    static const enum sheaf_type types[] = {SHEAF_TYPE_Q8_0, SHEAF_TYPE_Q4_0, SHEAF_TYPE_Q4_1,
                                            SHEAF_TYPE_Q5_0, SHEAF_TYPE_Q5_1};
    static float x[BLOCKS * 32];
    static uint8_t mine[BLOCKS * 34 + 1], core[BLOCKS * 34];
    FOR_EACH_TABLE(kern) {
        for (size_t t = 0; t < sizeof types / sizeof *types; t++) {
            if (!kern->from_float[types[t]]) {
                cr_assert(!kern->to_digits, "%s", kern->name);
                continue;
            }
            const size_t size = sheaf_type_size(types[t]);
            const int kinds =
                types[t] == SHEAF_TYPE_Q8_0 ? 7 : 10; /* of NaN, Q8_0 promises nothing */
            for (int i = 0; i < BLOCKS; i++) fill_block(i % kinds, x + 32 * i);
            for (int n = 0; n <= BLOCKS; n += 40) {
                mine[(size_t)n * size] = 77;
                kern->from_float[types[t]](x, mine, 32 * n);
                cr_assert_eq(sheaf_from_float(types[t], x, core, 32 * n), SHEAF_STATUS_SUCCESS);
                cr_assert_eq(mine[(size_t)n * size], 77);
                for (int i = 0; i < n; i++)
                    cr_assert(!memcmp(mine + (size_t)i * size, core + (size_t)i * size, size),
                              "%s, %s: block %d of kind %d", kern->name, sheaf_type_name(types[t]),
                              i, i % kinds);
            }
        }
    }
}

/* ---- AddressSanitizer's checks of vectors (tests/sanitizers/asan_vectors.c) ---- */

#if defined(__SANITIZE_ADDRESS__)
/* A row of floats times a column, in a process of its own; so many bytes of the row are not there. */
static int status_of_row(const struct sheaf__cpu_kernels *kern, size_t missing) {
    enum { K = 64 };
    int status = 0;
    const pid_t child = fork();
    cr_assert_geq(child, 0);
    if (child == 0) {
        const size_t bytes = K * sizeof(float);
        const char *row = calloc(1, bytes - missing);
        const void *column = calloc(1, bytes);
        float sum[1], *out = sum;
        if (missing) close(STDERR_FILENO); /* what is found is long */
        kern->rows_dot[SHEAF_TYPE_F32](K, row, bytes, 1, &column, 1, &out);
        _exit(0);
    }
    cr_assert_eq(waitpid(child, &status, 0), child);
    return status;
}

/* By vectors of 32 bytes, and of 64. */
Test(cpu_kernels, a_vector_beyond_its_memory_is_found, .timeout = 120) {
    static const size_t missing[] = {1, 20, 64};
    FOR_EACH_TABLE(kern) {
        if (strcmp(kern->name, "avx2") && strcmp(kern->name, "avx512")) continue;
        cr_assert_eq(status_of_row(kern, 0), 0, "%s", kern->name);
        for (size_t i = 0; i < sizeof missing / sizeof *missing; i++)
            cr_assert_neq(status_of_row(kern, missing[i]), 0, "%s: a read of %zu bytes too many",
                          kern->name, missing[i]);
    }
}
#endif
