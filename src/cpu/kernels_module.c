/* What makes a kernel table a module: built once with each of kernels_ISA.c, for any CPU. The build
 * defines KERNELS_TABLE, KERNELS_SCORE and KERNELS_NEEDS, the CPU features that the flags of the
 * table stand for: HAS(avx2)&&HAS(fma). */
#include <stdbool.h>

#include "cpu/kernels.h"

#if defined(__x86_64__)
#include <cpuid.h>

#define HAS(feature) __builtin_cpu_supports(#feature)

/* All tables for x86 convert F16 with it. CPUID leaf 1; clang 14 does not know the name "f16c". The
 * registers' state that it needs is that of AVX, which HAS(avx2) includes. */
static bool baseline(void) {
    unsigned a, b, c, d;
    __builtin_cpu_init();
    return __get_cpuid(1, &a, &b, &c, &d) && (c & bit_F16C) != 0;
}
#endif

extern const struct sheaf__cpu_kernels KERNELS_TABLE;

#pragma GCC visibility push(default)
int sheaf_cpu_kernels_score(void) { return baseline() && KERNELS_NEEDS ? KERNELS_SCORE : 0; }

const struct sheaf__cpu_kernels_module *sheaf_cpu_kernels_init(void) {
    static const struct sheaf__cpu_kernels_module module = {
        .version = SHEAF__CPU_KERNELS_VERSION,
        .table_size = sizeof KERNELS_TABLE,
        .kernels = &KERNELS_TABLE,
    };
    return &module;
}
#pragma GCC visibility pop
