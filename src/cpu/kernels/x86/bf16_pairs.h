/* A part of table.h, of the AVX-512 tables: rows of BF16 weights by one column, where lines are asked for once or twice
 * (else row_in_halves of plain.h).
 *
 * 32 weights are a vector as they lie. Shifted left by 16 bits, its dwords are the floats of the even
 * ones; without the low 16 bits, those of the odd ones. The column is parted likewise, once for all
 * rows. Widening 16 weights at a time takes two instructions of
 * the two pipes that move and shift, four cycles for 32 weights on a Zen 4 (58 GB/s of weights from the
 * third cache); here it is two (77 GB/s; F32, with nothing to convert, 81). Row by row: two rows, which share
 * loads of the column, a Zen 5 read from memory at 28 GB/s instead of 36.
 *
 * Invariant: a lane sums the elements that a lane of row_plain sums, in the same order, and the lanes
 * take its places at the end: the same bits. */

enum { PAIR_MOST = 8192 /* elements of a parted column */ };

/* Lanes of the even elements of 32, and of the odd ones, of two vectors; and back. */
#define EVEN_LANES _mm512_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30)
#define ODD_LANES  _mm512_setr_epi32(1, 3, 5, 7, 9, 11, 13, 15, 17, 19, 21, 23, 25, 27, 29, 31)
#define FIRST_HALF _mm512_setr_epi32(0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23)
#define LAST_HALF  _mm512_setr_epi32(8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31)

/* Of each 32 elements the even ones, then the odd ones. */
INLINE void part_column(int64_t k, const float *x, float *parted) {
    for (int64_t i = 0; i + 32 <= k; i += 32) {
        const v_f a = v_load(x + i), b = v_load(x + i + VW);
        v_store(parted + i, _mm512_permutex2var_ps(a, EVEN_LANES, b));
        v_store(parted + i + VW, _mm512_permutex2var_ps(a, ODD_LANES, b));
    }
}

/* One round is 64 elements, whose even and odd halves have sums 2 h and 2 h + 1. */
INLINE void row_pairs(int64_t k, const char *w, struct fetch fetch, const float *act,
                      const float *parted, float *const *out, int64_t r) {
    const __m512i odd_bits = _mm512_set1_epi32((int)0xffff0000u);
    v_f acc[ACCS], sums[1][ACCS];
    UNROLL for (int j = 0; j < ACCS; j++) acc[j] = v_set1(0.0f);
    int64_t i = 0;
    for (; i + ACCS * VW <= k; i += ACCS * VW) {
        UNROLL for (int h = 0; h < 2; h++) {
            const int64_t at = i + 32 * h;
            const char *p = w + (size_t)at * sizeof(uint16_t);
            __m512i x = _mm512_loadu_si512(p);
            LOADED_ONCE(x);
            fetch_lines(fetch, p, 64);
            acc[2 * h] = v_fma(_mm512_castsi512_ps(_mm512_slli_epi32(x, 16)), v_load(parted + at),
                               acc[2 * h]);
            acc[2 * h + 1] = v_fma(_mm512_castsi512_ps(_mm512_and_si512(x, odd_bits)),
                                   v_load(parted + at + VW), acc[2 * h + 1]);
        }
    }
    UNROLL for (int h = 0; h < 2; h++) {
        const v_f even = acc[2 * h], odd = acc[2 * h + 1];
        sums[0][2 * h] = _mm512_permutex2var_ps(even, FIRST_HALF, odd);
        sums[0][2 * h + 1] = _mm512_permutex2var_ps(even, LAST_HALF, odd);
    }
    row_plain_end(SHEAF_TYPE_BF16, k, i, w, &act, 1, sums, NULL, out, r);
}

INLINE void rows_pairs(int64_t k, const char *w, size_t w_stride, int64_t nr, struct fetch fetch,
                       const float *act, const float *parted, float *const *out) {
    for (int64_t r = 0; r < nr; r++, w += w_stride) row_pairs(k, w, fetch, act, parted, out, r);
}

static void rows_dot_pairs(int64_t k, const void *w, size_t w_stride, int64_t nr,
                           const void *const *act, int nc, float *const *out) {
    const size_t row = (size_t)k * sizeof(uint16_t);
    _Alignas(64) float parted[PAIR_MOST];
    if (nc != 1 || sheaf__cpu_fetch == SHEAF__FETCH_OFTEN || k > PAIR_MOST || nr < 2) {
        rows_dot_bf16(k, w, w_stride, nr, act, nc, out);
        return;
    }
    part_column(k, act[0], parted);
    BY_FETCH_PLAIN(row, w_stride, rows_pairs(k, w, w_stride, nr, fetch, act[0], parted, out));
}
