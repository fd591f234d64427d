/* SHA-256 of a block of memory, as FIPS 180-4 states it. */
#include <math.h>
#include <string.h>

#include "bench.h"

enum { BLOCK = 64 };

static uint32_t rotate(uint32_t x, int n) { return x >> n | x << (32 - n); }

/* The first 32 bits of the fraction of a root of the n-th prime. Exact: a double holds 53 bits, of
 * which the whole part takes at most 5. */
static uint32_t fraction(double root) { return (uint32_t)((root - floor(root)) * 0x1p32); }

static void constants(uint32_t h[8], uint32_t k[BLOCK]) {
    for (int n = 0, p = 2; n < BLOCK; p++) {
        bool prime = true;
        for (int d = 2; d * d <= p && prime; d++) prime = p % d != 0;
        if (!prime) continue;
        if (n < 8) h[n] = fraction(sqrt(p));
        k[n++] = fraction(cbrt(p));
    }
}

static void add_block(uint32_t h[8], const uint32_t k[BLOCK], const uint8_t *p) {
    uint32_t w[BLOCK], v[8];
    for (int i = 0; i < 16; i++)
        w[i] = (uint32_t)p[4 * i] << 24 | (uint32_t)p[4 * i + 1] << 16 |
               (uint32_t)p[4 * i + 2] << 8 | p[4 * i + 3];
    for (int i = 16; i < BLOCK; i++) {
        const uint32_t a = w[i - 15], b = w[i - 2];
        w[i] = w[i - 16] + (rotate(a, 7) ^ rotate(a, 18) ^ a >> 3) + w[i - 7] +
               (rotate(b, 17) ^ rotate(b, 19) ^ b >> 10);
    }
    memcpy(v, h, sizeof v);
    for (int i = 0; i < BLOCK; i++) {
        const uint32_t a = v[0], e = v[4];
        const uint32_t t1 = v[7] + (rotate(e, 6) ^ rotate(e, 11) ^ rotate(e, 25)) +
                            ((e & v[5]) ^ (~e & v[6])) + k[i] + w[i];
        const uint32_t t2 = (rotate(a, 2) ^ rotate(a, 13) ^ rotate(a, 22)) +
                            ((a & v[1]) ^ (a & v[2]) ^ (v[1] & v[2]));
        memmove(v + 1, v, 7 * sizeof *v);
        v[4] += t1;
        v[0] = t1 + t2;
    }
    for (int i = 0; i < 8; i++) h[i] += v[i];
}

void bench_sha256(const void *data, size_t n, char text[BENCH_SHA_TEXT]) {
    uint32_t h[8], k[BLOCK];
    uint8_t last[2 * BLOCK] = {0};
    const uint8_t *p = data;
    const size_t rest = n % BLOCK, tail = rest < BLOCK - 8 ? BLOCK : 2 * BLOCK;
    constants(h, k);
    for (size_t i = 0; i + BLOCK <= n; i += BLOCK) add_block(h, k, p + i);
    if (rest) memcpy(last, p + (n - rest), rest);
    last[rest] = 0x80;
    for (size_t i = 0; i < 8; i++) last[tail - 1 - i] = (uint8_t)((uint64_t)n * 8 >> 8 * i);
    for (size_t i = 0; i < tail; i += BLOCK) add_block(h, k, last + i);
    for (int i = 0; i < 8; i++) snprintf(text + 8 * (size_t)i, 9, "%08x", h[i]);
}
