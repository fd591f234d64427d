/* A part of table.h and of bf16_rows.h: how weights are fetched from memory ahead of the loops that
 * read them, as the CPU wants it (sheaf__cpu_fetch). Rows of a cache: fetch_rows (attention.h). */
#ifndef SHEAF_CPU_KERNELS_X86_FETCH_H
#define SHEAF_CPU_KERNELS_X86_FETCH_H

#include "cpu/kernels/x86/vector.h"

/* How far ahead weights lie that are read so many bytes later, in rows of `row` bytes that are read. If these
 * are parts of longer rows, what comes next are the same parts of the next rows. */
INLINE size_t ahead_by(size_t bytes, size_t row, size_t w_stride) {
    if (row == 0 || w_stride < 2 * row) return bytes;
    return (bytes + row - 1) / row * w_stride;
}

/* How far ahead of what is read now weights are fetched. Rows mostly lie one after the other, and the
 * hardware does not look across pages: without it a core read Q4_0 at 28 GB/s from memory, with 4 KiB
 * at 31, with 8 KiB at 34, and Q8_0 at 37 and 40 with 4 and 8 KiB (AMD EPYC, Zen 5, November 2026).
 * BOTH: of SHEAF__FETCH_BOTH, to the first cache and to the second (D159). tools/common/reading.h has
 * loops with these distances, which measure what a core can read. */
enum { FETCH_AHEAD = 8192, FETCH_BOTH_FIRST = 1536, FETCH_BOTH_SECOND = 5120 };
INLINE void prefetch(const char *p, size_t bytes) {
    for (size_t i = 0; i < bytes; i += 64) _mm_prefetch(p + i, _MM_HINT_T1);
}

/* How weights are fetched, `times` times, so far ahead each: to the second cache, or the first time to
 * the first. `first` and `times` are constants after inlining where that counts. A Zen 4 seems to drop
 * requests, the more the faster a loop is (F16, AVX-512, k = 2048 and 5632: asked once 24 and 20 GB/s,
 * twice 29 and 25, three times 31 and 30; it streams at 33; November 2026). From its caches the kernels
 * are slower so, F16 at 44 to 49 GB/s instead of 58. */
enum { FETCH_MOST = 3, FETCH_STEP = 4096 /* of plain floats */ };
struct fetch {
    size_t ahead[FETCH_MOST];
    int times;
    bool first;
};
/* Of rows of `row` bytes that are read, w_stride apart. */
INLINE struct fetch fetch_once(bool first, size_t row, size_t w_stride) {
    return (struct fetch){{ahead_by(FETCH_AHEAD, row, w_stride)}, 1, first};
}
INLINE struct fetch fetch_often(int times, size_t step, size_t row, size_t w_stride) {
    struct fetch f = {.times = times};
    UNROLL for (int t = 0; t < times; t++) f.ahead[t] =
        ahead_by((size_t)(times - t) * step, row, w_stride);
    return f;
}
/* Of so many rows that are read at once: what is read after them are the next ones, so the distance is a multiple of
 * them all. Loops of few instructions ask once more: those of repacked weights, and those that are `fast` (Q8_0 by a
 * rounded column: 28 to 31 GB/s asked twice, 33 to 35 three times, where the core streamed at 34 to 36). */
INLINE struct fetch fetch_together(bool fast, int rows, size_t row, size_t w_stride) {
    const size_t all = (size_t)rows * row;
    const size_t step = all == 0 ? FETCH_AHEAD : (FETCH_AHEAD + all - 1) / all * all;
#if defined(KERNELS_REPACKED)
    fast = true;
#endif
    return fetch_often(fast ? 3 : 2, step, row, w_stride);
}
INLINE struct fetch fetch_both(size_t row, size_t w_stride) {
    const size_t first = ahead_by(FETCH_BOTH_FIRST, row, w_stride);
    return (struct fetch){{first, ahead_by(FETCH_BOTH_SECOND, row, w_stride)}, 2, true};
}
/* Of weights that meet several columns, as a CPU wants it, and the same to the second cache alone; `often`: how many
 * times where lines are asked for more than once (D162). */
INLINE struct fetch fetch_few(enum sheaf__cpu_fetch way, int often, size_t row, size_t w_stride) {
    return way == SHEAF__FETCH_BOTH    ? fetch_both(row, w_stride)
           : way == SHEAF__FETCH_OFTEN ? fetch_often(often, FETCH_AHEAD, row, w_stride)
                                       : fetch_once(false, row, w_stride);
}
INLINE struct fetch fetch_second(int often, size_t row, size_t w_stride) {
    const struct fetch few = fetch_few(sheaf__cpu_fetch, often, row, w_stride);
    return few.first ? (struct fetch){.ahead = {few.ahead[1]}, .times = 1} : few;
}
INLINE void fetch_lines(struct fetch f, const char *p, size_t bytes) {
    UNROLL for (int t = 0; t < f.times; t++) {
        const char *from = p + f.ahead[t];
        __asm__("" : "+r"(from)); /* gcc would keep an offset for each line in a register */
        if (t == 0 && f.first) {
            for (size_t i = 0; i < bytes; i += 64) _mm_prefetch(from + i, _MM_HINT_T0);
        } else {
            prefetch(from, bytes);
        }
    }
}

/* CALL with a `fetch` whose `times` and `first` are constants, so that no line is asked for behind a branch. */
#define WITH_FETCH(FETCH, CALL)                                                                    \
    do {                                                                                           \
        const struct fetch fetch = FETCH;                                                          \
        CALL;                                                                                      \
    } while (0)
/* BY_FETCH is for weights that meet one column, BY_FETCH_OFTEN for those whose loop has few instructions,
 * BY_FETCH_PLAIN for plain floats, BY_FETCH_FEW for weights that meet several columns. A CPU that wants lines asked for
 * more than once (SHEAF__FETCH_OFTEN) gets TIMES requests, STEP bytes apart. */
#define BY_FETCH(ROW, W_STRIDE, CALL)                                                              \
    do {                                                                                           \
        if (sheaf__cpu_fetch == SHEAF__FETCH_BOTH)                                                 \
            WITH_FETCH(fetch_both(ROW, W_STRIDE), CALL);                                           \
        else if (sheaf__cpu_fetch == SHEAF__FETCH_FIRST)                                           \
            WITH_FETCH(fetch_once(true, ROW, W_STRIDE), CALL);                                     \
        else                                                                                       \
            WITH_FETCH(fetch_once(false, ROW, W_STRIDE), CALL);                                    \
    } while (0)
#define BY_FETCH_OFTEN(TIMES, STEP, ROW, W_STRIDE, CALL)                                           \
    do {                                                                                           \
        if (sheaf__cpu_fetch == SHEAF__FETCH_OFTEN)                                                \
            WITH_FETCH(fetch_often(TIMES, STEP, ROW, W_STRIDE), CALL);                             \
        else                                                                                       \
            BY_FETCH(ROW, W_STRIDE, CALL);                                                         \
    } while (0)
#define BY_FETCH_PLAIN(ROW, W_STRIDE, CALL)                                                        \
    BY_FETCH_OFTEN(FETCH_MOST, FETCH_STEP, ROW, W_STRIDE, CALL)
#define BY_FETCH_FEW(OFTEN, ROW, W_STRIDE, CALL)                                                   \
    do {                                                                                           \
        if (sheaf__cpu_fetch == SHEAF__FETCH_BOTH)                                                 \
            WITH_FETCH(fetch_few(SHEAF__FETCH_BOTH, OFTEN, ROW, W_STRIDE), CALL);                  \
        else if (sheaf__cpu_fetch == SHEAF__FETCH_OFTEN)                                           \
            WITH_FETCH(fetch_few(SHEAF__FETCH_OFTEN, OFTEN, ROW, W_STRIDE), CALL);                 \
        else                                                                                       \
            WITH_FETCH(fetch_few(SHEAF__FETCH_SECOND, OFTEN, ROW, W_STRIDE), CALL);                \
    } while (0)

#endif
