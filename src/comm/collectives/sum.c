/* Addition of floats, always from the left: ((a + b) + c) + d for each element by itself, so the
 * instruction set cannot change a bit. And copies, by the same vectors: glibc's memcpy takes "rep
 * movsb" from 2 KiB on where the processor calls it fast, and that has a start of 0.1 to 0.2 us
 * (2026-11-21, Zen 5). */
#include "comm/collectives/collectives.h"

enum {
    BLOCK = 1024, /* floats that stay in the nearest cache between two additions */
    LINE = 16,    /* floats of a cache line */
    AHEAD = 48 * LINE,
    STRIDE = 256, /* bytes */
};

/* No iteration of a loop reads what another one writes; AVX-512 in vectors of 64 bytes. */
#ifdef __clang__
#define INDEPENDENT _Pragma("clang loop vectorize(assume_safety)")
#define AVX512      "avx512f"
#else
#define INDEPENDENT _Pragma("GCC ivdep")
#define AVX512      "avx512f,prefer-vector-width=512"
#endif
#define FOR_EVERY_TARGET static inline __attribute__((always_inline)) void

/* dst may be one of the sources, but does not overlap them otherwise. */
FOR_EVERY_TARGET sum(float *dst, const float *const *src, int n_src, size_t n) {
    for (size_t at = 0; at < n; at += BLOCK) {
        const size_t len = sheaf__min_size(BLOCK, n - at);
        float acc[BLOCK], *to = n_src > 3 ? acc : dst + at;
        const float *a = src[0] + at, *b = src[1] + at;
        const float *c = n_src > 2 ? src[2] + at : NULL;
        if (c) {
            INDEPENDENT
            for (size_t i = 0; i < len; i++) to[i] = (a[i] + b[i]) + c[i];
        } else {
            INDEPENDENT
            for (size_t i = 0; i < len; i++) to[i] = a[i] + b[i];
        }
        for (int s = 3; s < n_src; s++) {
            b = src[s] + at;
            INDEPENDENT
            for (size_t i = 0; i < len; i++) to[i] += b[i];
        }
        if (to == acc) memcpy(dst + at, acc, len * sizeof *dst);
    }
}

/* The other's lines are asked for AHEAD of the sum: 32 and 64 KiB take 10 % less (2026-11-21). */
FOR_EVERY_TARGET sum_both(float *own, float *theirs, const float *a, const float *b, size_t n) {
    size_t at = 0;
    for (size_t i = 0; i < AHEAD && i < n; i += LINE) __builtin_prefetch(theirs + i, 1);
    for (; at + LINE <= n; at += LINE) {
        if (n - at > AHEAD) __builtin_prefetch(theirs + at + AHEAD, 1);
        INDEPENDENT
        for (size_t i = at; i < at + LINE; i++) {
            const float both = a[i] + b[i];
            own[i] = both;
            theirs[i] = both;
        }
    }
    for (; at < n; at++) own[at] = theirs[at] = a[at] + b[at];
}

FOR_EVERY_TARGET copy(uint8_t *restrict dst, const uint8_t *restrict src, size_t bytes) {
    size_t at = 0;
    for (; at + STRIDE <= bytes; at += STRIDE) {
        memcpy(dst + at, src + at, STRIDE);
        __asm__ volatile("" ::: "memory"); /* or the loop would become a call of memcpy */
    }
    if (at < bytes) memcpy(dst + at, src + at, bytes - at);
}

struct kernels {
    void (*sum)(float *dst, const float *const *src, int n_src, size_t n);
    void (*sum_both)(float *own, float *theirs, const float *a, const float *b, size_t n);
    void (*copy)(uint8_t *restrict dst, const uint8_t *restrict src, size_t bytes);
};

#define KERNELS(name, target)                                                                      \
    target static void sum_##name(float *dst, const float *const *src, int n_src, size_t n) {      \
        sum(dst, src, n_src, n);                                                                   \
    }                                                                                              \
    target static void sum_both_##name(float *own, float *theirs, const float *a, const float *b,  \
                                       size_t n) {                                                 \
        sum_both(own, theirs, a, b, n);                                                            \
    }                                                                                              \
    target static void copy_##name(uint8_t *restrict dst, const uint8_t *restrict src,             \
                                   size_t bytes) {                                                 \
        copy(dst, src, bytes);                                                                     \
    }                                                                                              \
    static const struct kernels name = {sum_##name, sum_both_##name, copy_##name};

KERNELS(plain, )
#if defined(__x86_64__)
KERNELS(avx2, __attribute__((target("avx2"))))
KERNELS(avx512, __attribute__((target(AVX512))))
#endif

static const struct kernels *choose(void) {
#if defined(__x86_64__)
    if (__builtin_cpu_supports("avx512f")) return &avx512;
    if (__builtin_cpu_supports("avx2")) return &avx2;
#endif
    return &plain;
}

static const struct kernels *kernels(void) {
    static const struct kernels *_Atomic chosen; /* every thread chooses the same */
    const struct kernels *k = atomic_load_explicit(&chosen, memory_order_relaxed);
    if (!k) atomic_store_explicit(&chosen, k = choose(), memory_order_relaxed);
    return k;
}

void sheaf__sum(float *dst, const float *const *src, int n_src, size_t n) {
    kernels()->sum(dst, src, n_src, n);
}

void sheaf__sum_both(float *own, float *theirs, const float *const *src, size_t n) {
    kernels()->sum_both(own, theirs, src[0], src[1], n);
}

void sheaf__copy(void *dst, const void *src, size_t bytes) {
    if (bytes) kernels()->copy(dst, src, bytes);
}
