/* The checksum of generated ids as text. */
#include "base/sha256.h"

#include "bench.h"

void bench_sha256(const void *data, size_t n, char text[BENCH_SHA_TEXT]) {
    uint8_t sum[SHEAF__SHA_BYTES];
    sheaf__sha256(data, n, sum);
    for (size_t i = 0; i < sizeof sum; i++) snprintf(text + 2 * i, 3, "%02x", sum[i]);
}
