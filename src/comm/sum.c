/* Addition of floats, always from the left: ((a + b) + c) + d for each element by itself, so the
 * instruction set cannot change a bit. */
#include "comm/group.h"

enum { BLOCK = 1024 }; /* floats that stay in the nearest cache between two additions */

/* dst may be one of the sources, but does not overlap them otherwise. */
#define SUM_BODY                                                                                   \
    for (size_t at = 0; at < n; at += BLOCK) {                                                     \
        const size_t len = sheaf__min_size(BLOCK, n - at);                                         \
        float acc[BLOCK], *to = n_src > 3 ? acc : dst + at;                                        \
        const float *a = src[0] + at, *b = src[1] + at;                                            \
        const float *c = n_src > 2 ? src[2] + at : NULL;                                           \
        if (c) {                                                                                   \
            _Pragma("GCC ivdep") for (size_t i = 0; i < len; i++) to[i] = (a[i] + b[i]) + c[i];    \
        } else {                                                                                   \
            _Pragma("GCC ivdep") for (size_t i = 0; i < len; i++) to[i] = a[i] + b[i];             \
        }                                                                                          \
        for (int s = 3; s < n_src; s++) {                                                          \
            b = src[s] + at;                                                                       \
            _Pragma("GCC ivdep") for (size_t i = 0; i < len; i++) to[i] += b[i];                   \
        }                                                                                          \
        if (to == acc) memcpy(dst + at, acc, len * sizeof *dst);                                   \
    }

typedef void (*sum_fn)(float *dst, const float *const *src, int n_src, size_t n);

static void sum_plain(float *dst, const float *const *src, int n_src, size_t n) { SUM_BODY }
#if defined(__x86_64__)
__attribute__((target("avx2"))) static void sum_avx2(float *dst, const float *const *src, int n_src,
                                                     size_t n) {
    SUM_BODY
}
__attribute__((target("avx512f,prefer-vector-width=512"))) static void
sum_avx512(float *dst, const float *const *src, int n_src, size_t n) {
    SUM_BODY
}
#endif

static sum_fn choose(void) {
#if defined(__x86_64__)
    if (__builtin_cpu_supports("avx512f")) return sum_avx512;
    if (__builtin_cpu_supports("avx2")) return sum_avx2;
#endif
    return sum_plain;
}

void sheaf__sum(float *dst, const float *const *src, int n_src, size_t n) {
    static _Atomic(sum_fn) chosen; /* every thread chooses the same */
    sum_fn f = atomic_load_explicit(&chosen, memory_order_relaxed);
    if (n_src == 1) {
        if (n && dst != src[0]) memmove(dst, src[0], n * sizeof *dst);
        return;
    }
    if (!f) atomic_store_explicit(&chosen, f = choose(), memory_order_relaxed);
    f(dst, src, n_src, n);
}
