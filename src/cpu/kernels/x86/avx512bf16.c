/* The AVX-512 table with products of BF16 (VDPBF16PS): what it adds to that of avx512.c. */
#include "cpu/kernels/x86/avx512.h"
#include "cpu/kernels/x86/bf16.h"

#include "cpu/kernels/x86/attention_bf16.h"
#include "cpu/kernels/x86/bf16_rows.h"

enum { BF16_ROWS = 12 };

INLINE __m512bh two_weights(const char *row, int64_t i) {
    int32_t x;
    memcpy(&x, row + (size_t)i * sizeof(uint16_t), sizeof x);
    return (__m512bh)_mm512_set1_epi32(x);
}
INLINE __m512bh pairs_of(const uint16_t (*x)[2]) {
    __m512bh v;
    memcpy(&v, x, sizeof v);
    return v;
}

/* The columns of so many vectors. */
INLINE void panel_bf16(int vectors, int terms, int64_t k, const char *row, size_t stride,
                       const struct panel_bf16 *panel, float *c, bool add) {
    v_f acc[BF16_ROWS][2];
    UNROLL_12 for (int r = 0; r < BF16_ROWS; r++) {
        UNROLL for (int v = 0; v < vectors; v++) acc[r][v] =
            add ? v_load(c + r * BF16_COLS + v * VW) : v_set1(0.0f);
    }
    for (int64_t i = 0; i < k; i += BF16_UNIT, panel += terms) {
        for (int j = 0; j < BF16_UNIT / 2; j++) {
            __m512bh x[2][2];
            UNROLL for (int t = 0; t < terms; t++) {
                UNROLL for (int v = 0; v < vectors; v++) x[t][v] = pairs_of(panel[t].x[j] + v * VW);
            }
            UNROLL_12 for (int r = 0; r < BF16_ROWS; r++) {
                const __m512bh w = two_weights(row + (size_t)r * stride, i + 2 * j);
                UNROLL for (int t = 0; t < terms; t++) {
                    UNROLL for (int v = 0; v < vectors; v++) acc[r][v] =
                        _mm512_dpbf16_ps(acc[r][v], w, x[t][v]);
                }
            }
        }
    }
    UNROLL_12 for (int r = 0; r < BF16_ROWS; r++) {
        UNROLL for (int v = 0; v < vectors; v++) v_store(c + r * BF16_COLS + v * VW, acc[r][v]);
    }
}
#define TILE_BF16(NAME, TERMS)                                                                     \
    static void NAME(int64_t k, const void *row, size_t stride, const void *panel, int used,       \
                     float *c, bool add) {                                                         \
        if (used > VW) {                                                                           \
            panel_bf16(2, TERMS, k, row, stride, panel, c, add);                                   \
        } else {                                                                                   \
            panel_bf16(1, TERMS, k, row, stride, panel, c, add);                                   \
        }                                                                                          \
    }
TILE_BF16(tile_bf16, 1)
TILE_BF16(tile_bf16_twice, 2)

void sheaf__cpu_kernels_extend(struct sheaf__cpu_kernels *table) {
    sheaf__cpu_kernels_use_vbmi(table);
    use_rows_bf16(table, SHEAF__BF16_COLS);
    use_attention_bf16(table);
    use_panels_bf16(table, BF16_ROWS, tile_bf16, tile_bf16_twice, NULL, NULL);
}
