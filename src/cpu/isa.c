/* Chooses the kernel table: once per process, the best that the CPU runs, not above
 * SHEAF_CPU_ISA; and the format of activations, SHEAF_CPU_ACTIVATIONS. A wrong setting is
 * remembered and reported to every caller. */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#if defined(__x86_64__)
#include <cpuid.h>
#endif

#include "cpu/kernels.h"
#include "sheaf/cpu.h"

/* The questions to the CPU are asked here, in code compiled for any CPU. */
static bool always(void) { return true; }
#if defined(__x86_64__)
/* CPUID leaf 1; clang 14 does not know the name "f16c". The registers' state that it needs is that
 * of AVX, which the check of avx2 includes. */
static bool has_f16c(void) {
    unsigned a, b, c, d;
    return __get_cpuid(1, &a, &b, &c, &d) && (c & bit_F16C) != 0;
}
static bool has_avx2(void) {
    return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && has_f16c();
}
static bool has_avx512(void) {
    return has_avx2() && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
           __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq") &&
           __builtin_cpu_supports("avx512vnni");
}
#endif

static const struct {
    const struct sheaf__cpu_kernels *kernels;
    bool (*runs_here)(void);
} tables[] = {
    /* worst first */
    {&sheaf__cpu_kernels_portable, always},
#if defined(__x86_64__)
    {&sheaf__cpu_kernels_avx2, has_avx2},
    {&sheaf__cpu_kernels_avx512, has_avx512},
#endif
};
enum { N_TABLES = sizeof tables / sizeof tables[0] };

static pthread_once_t once = PTHREAD_ONCE_INIT;
static const struct sheaf__cpu_kernels *chosen;
static bool round_activations;
static char refusal[256];

static void choose_kernels(void) {
    const char *wanted = getenv("SHEAF_CPU_ISA");
    bool any = !wanted || !*wanted;
    for (int i = 0; i < N_TABLES; i++) {
        if (!any && strcmp(tables[i].kernels->name, wanted) != 0) continue;
        if (tables[i].runs_here()) {
            chosen = tables[i].kernels;
        } else if (!any) {
            snprintf(refusal, sizeof refusal,
                     "SHEAF_CPU_ISA=%s: this CPU lacks that instruction set; unset the variable to "
                     "use the best it has",
                     wanted);
        }
    }
    if (!chosen && !*refusal)
        snprintf(refusal, sizeof refusal,
                 "SHEAF_CPU_ISA=%.40s: not an instruction set of this build; use one of portable%s",
                 wanted, N_TABLES > 1 ? ", avx2, avx512" : "");
}

static void choose(void) {
    const char *format = getenv("SHEAF_CPU_ACTIVATIONS");
    choose_kernels();
    if (!format || !*format || strcmp(format, "f32") == 0) return;
    round_activations = strcmp(format, "q8") == 0;
    if (round_activations || !chosen) return;
    chosen = NULL;
    snprintf(
        refusal, sizeof refusal,
        "SHEAF_CPU_ACTIVATIONS=%.40s: not a format of activations; use f32 (the default) or q8",
        format);
}

const struct sheaf__cpu_kernels *sheaf__cpu_kernels(void) {
    pthread_once(&once, choose);
    if (!chosen) sheaf_set_error(SHEAF_STATUS_INVALID, "%s", refusal);
    return chosen;
}

const struct sheaf__cpu_kernels *sheaf__cpu_kernels_at(int i, bool *runs_here) {
    if (i < 0 || i >= N_TABLES) return NULL;
    *runs_here = tables[i].runs_here();
    return tables[i].kernels;
}

const char *sheaf_cpu_isa_name(void) {
    const struct sheaf__cpu_kernels *k = sheaf__cpu_kernels();
    return k ? k->name : "?";
}

/* clang-format off */
static const struct {
    enum sheaf__act floats, rounded;
} acts[SHEAF_TYPE_COUNT] = {
    [SHEAF_TYPE_Q8_0] = {SHEAF__ACT_F32, SHEAF__ACT_Q8},
    [SHEAF_TYPE_Q4_0] = {SHEAF__ACT_F32, SHEAF__ACT_Q8},
    [SHEAF_TYPE_Q4_1] = {SHEAF__ACT_F32, SHEAF__ACT_Q8},
    [SHEAF_TYPE_Q5_0] = {SHEAF__ACT_F32, SHEAF__ACT_Q8},
    [SHEAF_TYPE_Q5_1] = {SHEAF__ACT_F32, SHEAF__ACT_Q8},
    [SHEAF_TYPE_Q4_K] = {SHEAF__ACT_F32_SUMS, SHEAF__ACT_Q8K},
    [SHEAF_TYPE_Q5_K] = {SHEAF__ACT_F32_SUMS, SHEAF__ACT_Q8K},
    [SHEAF_TYPE_Q6_K] = {SHEAF__ACT_F32_SUMS, SHEAF__ACT_Q8K},
};
/* clang-format on */

enum sheaf__act sheaf__act_for(enum sheaf_type weights, bool rounded) {
    if ((unsigned)weights >= SHEAF_TYPE_COUNT) return SHEAF__ACT_F32;
    return rounded ? acts[weights].rounded : acts[weights].floats;
}

enum sheaf__act sheaf__act_of(enum sheaf_type weights) {
    pthread_once(&once, choose);
    return sheaf__act_for(weights, round_activations);
}

size_t sheaf__act_row_size(enum sheaf__act act, int64_t k) {
    switch (act) {
    case SHEAF__ACT_Q8:
        return (size_t)(k / 32) * sizeof(struct sheaf__act_q8);
    case SHEAF__ACT_Q8K:
        return (size_t)(k / 256) * sizeof(struct sheaf__act_q8k);
    case SHEAF__ACT_F32_SUMS:
        return (size_t)(k + k / 16) * sizeof(float);
    default:
        return (size_t)k * sizeof(float);
    }
}

void sheaf__act_sums(const float *x, float *sums, int64_t n) {
    for (int64_t g = 0; g < n / 16; g++, x += 16) {
        float lane[4];
        for (int l = 0; l < 4; l++) lane[l] = (x[l] + x[l + 4]) + (x[l + 8] + x[l + 12]);
        sums[g] = (lane[0] + lane[2]) + (lane[1] + lane[3]);
    }
}
