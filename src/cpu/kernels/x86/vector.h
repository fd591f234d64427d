/* What all files of x86 kernels write their loops with, after the primitives of kernels.h: INLINE,
 * UNROLL, loads of a few elements, and columns turned into panels. */
#include <immintrin.h>
#include <string.h>

#define INLINE static inline __attribute__((always_inline))
#if defined(__clang__)
#define UNROLL    _Pragma("clang loop unroll(full)")
#define UNROLL_8  UNROLL
#define UNROLL_12 UNROLL
#define UNROLL_16 UNROLL
#else
#define UNROLL    _Pragma("GCC unroll 4")
#define UNROLL_8  _Pragma("GCC unroll 8")
#define UNROLL_12 _Pragma("GCC unroll 12")
#define UNROLL_16 _Pragma("GCC unroll 16")
#endif

/* The first n < VW elements, zeros after them. */
INLINE v_f v_load_n(const float *p, int64_t n) {
    float t[VW] = {0};
    memcpy(t, p, (size_t)n * sizeof *p);
    return v_load(t);
}
INLINE void v_store_n(float *p, v_f v, int64_t n) {
    float t[VW];
    v_store(t, v);
    memcpy(p, t, (size_t)n * sizeof *p);
}

#if defined(KERNELS_VNNI_512)
INLINE __m512i load512(const void *p) { return _mm512_loadu_si512(p); }
#endif

/* panel[i][c] = x[c][i], i < n, c < cols */
INLINE void pack_columns(const float *const *x, int64_t n, int cols, float *panel) {
    int64_t i = 0;
    for (; i + 4 <= n; i += 4) {
        for (int c = 0; c < cols; c += 4) {
            __m128 r0 = _mm_loadu_ps(x[c] + i), r1 = _mm_loadu_ps(x[c + 1] + i);
            __m128 r2 = _mm_loadu_ps(x[c + 2] + i), r3 = _mm_loadu_ps(x[c + 3] + i);
            float *to = panel + i * cols + c;
            _MM_TRANSPOSE4_PS(r0, r1, r2, r3);
            _mm_storeu_ps(to, r0);
            _mm_storeu_ps(to + cols, r1);
            _mm_storeu_ps(to + 2 * cols, r2);
            _mm_storeu_ps(to + 3 * cols, r3);
        }
    }
    for (; i < n; i++) {
        for (int c = 0; c < cols; c++) panel[i * cols + c] = x[c][i];
    }
}
