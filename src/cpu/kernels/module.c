/* The entry of a module of kernels: built once with each of FOLDER/ISA.c, for any CPU. The build
 * defines KERNELS_NAME, KERNELS_SCORE, KERNELS_NEEDS, the CPU features that the flags of the table
 * stand for: HAS(avx2)&&HAS(fma), and KERNELS_TABLE: the table of the module or, with
 * KERNELS_EXTENDS, the one whose copy this function changes. */
#include <pthread.h>
#include <stdbool.h>

#include "cpu/kernels/kernels.h"

#if defined(__x86_64__)
#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>

#define HAS(feature) __builtin_cpu_supports(#feature)

/* CPUID leaf 1; clang 14 does not know the name "f16c". The registers' state that it needs is that of AVX,
 * which HAS(avx2) includes. */
__attribute__((unused)) static bool f16c(void) {
    unsigned a, b, c, d;
    return __get_cpuid(1, &a, &b, &c, &d) && (c & bit_F16C) != 0;
}

static bool by_amd(void) {
    unsigned a = 0, b = 0, c = 0, d = 0;
    return __get_cpuid(0, &a, &b, &c, &d) && b == signature_AMD_ebx && c == signature_AMD_ecx;
}

/* The score of a table whose gain is VDPBF16PS: as fast as a multiply-add on AMD, but not on Intel,
 * where prompts of BF16 weights went at 74 tokens/s with it and at 199 without (Granite Rapids). */
__attribute__((unused)) static int score_of_bf16(int score, int slow) {
    return by_amd() ? score : slow;
}

/* AMD from Zen 5 on (family 1Ah) to the first cache: by one column a Zen 5 reads BF16 at 40 GB/s so
 * and at 35 otherwise. A Zen 4 (19h, as Zen 3) has too few requests of its first cache under way,
 * read F16 at 12 to 19 GB/s instead of 23, and seems to drop requests of the second that come too
 * fast. Intel's Xeons of 2023 and later, which are those with AVX-512 FP16, to both: requests of the
 * first cache alone wait for memory in its few buffers (D159). */
static enum sheaf__cpu_fetch way_to_fetch(void) {
    enum { AVX512_FP16 = 1 << 23 };
    unsigned a, b, c, d;
    if (!by_amd()) {
        const bool fp16 = __get_cpuid_count(7, 0, &a, &b, &c, &d) && (d & AVX512_FP16);
        return fp16 ? SHEAF__FETCH_BOTH : SHEAF__FETCH_SECOND;
    }
    if (!__get_cpuid(1, &a, &b, &c, &d)) return SHEAF__FETCH_SECOND;
    const unsigned base = a >> 8 & 15, family = base == 15 ? base + (a >> 20 & 255) : base;
    return family >= 0x1a   ? SHEAF__FETCH_FIRST
           : family == 0x19 ? SHEAF__FETCH_OFTEN
                            : SHEAF__FETCH_SECOND;
}

/* CPUID leaf 7.1; clang 14 does not know the name "avxvnni". */
__attribute__((unused)) static bool avx_vnni(void) {
    enum { AVX_VNNI = 1 << 4 };
    unsigned a, b, c, d;
    return __get_cpuid_count(7, 1, &a, &b, &c, &d) && (a & AVX_VNNI);
}

/* AMX with bytes and with BF16. Its registers are so large that Linux hands them out to processes
 * that ask: for all threads, and for good. It refuses if a thread has an alternate signal stack
 * that could not hold them. */
__attribute__((unused)) static bool tiles_granted(void) {
    enum { BF16 = 1 << 22, TILE = 1 << 24, INT8 = 1 << 25, ALL = BF16 | TILE | INT8 };
    enum { REQUEST_PERMISSION = 0x1023, TILE_DATA = 18 }; /* ARCH_REQ_XCOMP_PERM, Linux 5.16 */
    unsigned a, b, c, d;
    if (!__get_cpuid_count(7, 0, &a, &b, &c, &d) || (d & ALL) != ALL) return false;
#if defined(__linux__)
    return syscall(SYS_arch_prctl, REQUEST_PERMISSION, TILE_DATA) == 0;
#else
    return false;
#endif
}
#elif defined(__aarch64__) && defined(__linux__)
#include <sys/auxv.h>

/* FEAT_DotProd, as the kernel tells it. */
__attribute__((unused)) static bool dot_products(void) {
    enum { ASIMDDP = 1 << 20 };
    return (getauxval(AT_HWCAP) & ASIMDDP) != 0;
}
#endif

extern const struct sheaf__cpu_kernels KERNELS_TABLE;
enum sheaf__cpu_fetch sheaf__cpu_fetch;

#if defined(KERNELS_EXTENDS)
static struct sheaf__cpu_kernels extended;
#define TABLE extended
#else
#define TABLE KERNELS_TABLE
#endif

static void prepare(void) {
#if defined(__x86_64__)
    sheaf__cpu_fetch = way_to_fetch();
#endif
#if defined(KERNELS_EXTENDS)
    extended = KERNELS_TABLE;
    extended.name = KERNELS_NAME;
    KERNELS_EXTENDS(&extended);
#endif
}

#pragma GCC visibility push(default)
int sheaf_cpu_kernels_score(void) {
#if defined(__x86_64__)
    __builtin_cpu_init();
#endif
    return KERNELS_NEEDS ? KERNELS_SCORE : 0;
}

const struct sheaf__cpu_kernels_module *sheaf_cpu_kernels_init(void) {
    static const struct sheaf__cpu_kernels_module module = {
        .version = SHEAF__CPU_KERNELS_VERSION,
        .table_size = sizeof TABLE,
        .kernels = &TABLE,
    };
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, prepare);
    return &module;
}
#pragma GCC visibility pop
