/* What attention of many queries is made of, in floats (attention.h) and in pairs of BF16 (attention_bf16.h):
 * tiles of some rows by all lanes, and the first half of a softmax. */
#ifndef SHEAF_CPU_KERNELS_X86_LANES_H
#define SHEAF_CPU_KERNELS_X86_LANES_H

#include "cpu/kernels/x86/vector.h"

#include <math.h>

enum { LANE_VECTORS = 3, LANES = LANE_VECTORS * VW, LANE_ROWS = VW == 16 ? 8 : 4 };

/* acc + a * b, or with pairs of BF16 acc + the products of both elements */
INLINE v_f lanes_add(bool pairs, v_f a, v_f b, v_f acc) {
#if defined(__AVX512BF16__)
    if (pairs)
        return _mm512_dpbf16_ps(acc, (__m512bh)_mm512_castps_si512(a),
                                (__m512bh)_mm512_castps_si512(b));
#endif
    (void)pairs;
    return v_fma(a, b, acc);
}

/* Calls FN(V, ...) with the number of vectors that hold the lanes. */
#define LANES_BY_VECTORS(LANES_USED, FN, ...)                                                      \
    do {                                                                                           \
        if ((LANES_USED) <= VW) {                                                                  \
            FN(1, __VA_ARGS__);                                                                    \
        } else if ((LANES_USED) <= 2 * VW) {                                                       \
            FN(2, __VA_ARGS__);                                                                    \
        } else {                                                                                   \
            FN(3, __VA_ARGS__);                                                                    \
        }                                                                                          \
    } while (0)

/* c[r] = or += sum over i of a[r * by_row + i * by_i] * panel[i], for LANE_ROWS rows r */
INLINE void lanes_tile(int vectors, bool pairs, int64_t k, const float *a, int64_t by_row,
                       int64_t by_i, const float *panel, float *c, bool add) {
    v_f acc[LANE_ROWS][LANE_VECTORS], b[LANE_VECTORS];
    UNROLL_8 for (int r = 0; r < LANE_ROWS; r++) {
        UNROLL for (int v = 0; v < vectors; v++) acc[r][v] =
            add ? v_load(c + r * LANES + v * VW) : v_set1(0.0f);
    }
    for (int64_t i = 0; i < k; i++, panel += LANES) {
        UNROLL for (int v = 0; v < vectors; v++) b[v] = v_load(panel + v * VW);
        UNROLL_8 for (int r = 0; r < LANE_ROWS; r++) {
            v_f x = v_set1(a[r * by_row + i * by_i]);
            UNROLL for (int v = 0; v < vectors; v++) acc[r][v] =
                lanes_add(pairs, x, b[v], acc[r][v]);
        }
    }
    UNROLL_8 for (int r = 0; r < LANE_ROWS; r++) {
        UNROLL for (int v = 0; v < vectors; v++) v_store(c + r * LANES + v * VW, acc[r][v]);
    }
}

/* c [rows][LANES] = or += sum over i < k of a[r * by_row + i * by_i] * panel[i] */
INLINE void lanes_tiles(bool pairs, int64_t k, const float *a, int64_t by_row, int64_t by_i,
                        int64_t rows, const float *panel, int lanes, float *c, bool add) {
    for (; rows > 0; rows -= LANE_ROWS, a += LANE_ROWS * by_row, c += LANE_ROWS * LANES)
        LANES_BY_VECTORS(lanes, lanes_tile, pairs, k, a, by_row, by_i, panel, c, add);
}

/* Scores of n keys become scale * score + slope * mask; m[v] becomes the largest of them and of itself. All
 * vectors at once: one waits for itself. */
INLINE void lanes_max(int vectors, int64_t n, float scale, const float *mask, const float *slope,
                      float *scores, v_f *m) {
    const v_f s = v_set1(scale), closed = v_set1(-INFINITY);
    for (int64_t j = 0; j < n; j++, scores += LANES) {
        UNROLL for (int v = 0; v < vectors; v++) {
            v_f x = v_mul(v_load(scores + v * VW), s);
            if (mask) {
                const v_f y = v_load(mask + j * LANES + v * VW);
                x = v_if_equal(y, closed, closed, v_fma(v_load(slope + v * VW), y, x));
            }
            v_store(scores + v * VW, x);
            m[v] = v_max(x, m[v]);
        }
    }
}

#endif
