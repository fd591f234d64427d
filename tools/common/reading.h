/* Reading memory as fast as a core can, which bounds the products of one column: what sheaf-bench
 * and bench-kernels compare with. Header only. */
#ifndef SHEAF_TOOLS_COMMON_READING_H
#define SHEAF_TOOLS_COMMON_READING_H

#include <stddef.h>
#include <stdint.h>

/* Loops: `streams` places at once, `ahead` bytes fetched before they are read, and `far` bytes
 * before, to the second cache; the last three fetch as the kernels do (cpu/kernels/x86/fetch.h).
 * Which is fastest depends on the core and on its neighbours (Zen 4 on large pages: one stream 23.5
 * GB/s, two 25.8, with 4 KiB fetched ahead 14 to 24; Zen 5: 8 KiB ahead before 4 KiB; Granite
 * Rapids: to both caches 17.0, the others 15.6; with fetching ahead quantized rows are read
 * faster), so passes take turns and the best one counts. */
enum { READING_LOOPS = 5 };
static const struct reading_loop {
    size_t streams, ahead, far;
} reading_loops[READING_LOOPS] = {
    {1, 0, 0}, {2, 0, 0}, {1, 4096, 0}, {1, 8192, 0}, {1, 1536, 5120}};

enum { READING_WORDS = 32 }; /* that are summed apart: 4 vectors of 64 bytes */

/* The sum of n numbers, by a loop. */
#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__) &&                             \
    !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
__attribute__((target_clones("avx512f", "avx2", "default"), optimize("O3")))
#endif
static uint64_t
read_words(const uint64_t *x, size_t n, int loop) {
    const size_t streams = reading_loops[loop].streams, ahead = reading_loops[loop].ahead,
                 far = reading_loops[loop].far;
    uint64_t s[READING_WORDS] = {0};
    for (size_t i = 0; i + READING_WORDS <= n / streams; i += READING_WORDS) {
        for (size_t k = 0; k < streams; k++) {
            const uint64_t *p = x + k * (n / streams) + i;
            for (size_t j = 0; ahead && j < READING_WORDS; j += 8)
                __builtin_prefetch((const char *)(p + j) + ahead);
            for (size_t j = 0; far && j < READING_WORDS; j += 8)
                __builtin_prefetch((const char *)(p + j) + far, 0, 2);
            for (size_t j = 0; j < READING_WORDS; j++) s[j] += p[j];
        }
    }
    for (size_t j = 1; j < READING_WORDS; j++) s[0] += s[j];
    return s[0];
}

#endif
