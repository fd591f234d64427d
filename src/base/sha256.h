/* SHA-256 of a block of memory, as FIPS 180-4 states it, and HMAC over it, as RFC 2104 does. */
#ifndef SHEAF_BASE_SHA256_H
#define SHEAF_BASE_SHA256_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

enum { SHEAF__SHA_BYTES = 32, SHEAF__SHA_BLOCK = 64, SHEAF__HMAC_MAX = 192 };

static inline uint32_t sheaf__sha_rotate(uint32_t x, int n) { return x >> n | x << (32 - n); }

static inline void sheaf__sha_add_block(uint32_t h[8], const uint8_t *p) {
    static const uint32_t k[SHEAF__SHA_BLOCK] = {
        /* FIPS 180-4, 4.2.2 */
        0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4,
        0xab1c5ed5, 0xd807aa98, 0x12835b01, 0x243185be, 0x550c7dc3, 0x72be5d74, 0x80deb1fe,
        0x9bdc06a7, 0xc19bf174, 0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc, 0x2de92c6f,
        0x4a7484aa, 0x5cb0a9dc, 0x76f988da, 0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7,
        0xc6e00bf3, 0xd5a79147, 0x06ca6351, 0x14292967, 0x27b70a85, 0x2e1b2138, 0x4d2c6dfc,
        0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85, 0xa2bfe8a1, 0xa81a664b,
        0xc24b8b70, 0xc76c51a3, 0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070, 0x19a4c116,
        0x1e376c08, 0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f, 0x682e6ff3,
        0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208, 0x90befffa, 0xa4506ceb, 0xbef9a3f7,
        0xc67178f2};
    uint32_t w[SHEAF__SHA_BLOCK], v[8];
    for (int i = 0; i < 16; i++)
        w[i] = (uint32_t)p[4 * i] << 24 | (uint32_t)p[4 * i + 1] << 16 |
               (uint32_t)p[4 * i + 2] << 8 | p[4 * i + 3];
    for (int i = 16; i < SHEAF__SHA_BLOCK; i++) {
        const uint32_t a = w[i - 15], b = w[i - 2];
        w[i] = w[i - 16] + (sheaf__sha_rotate(a, 7) ^ sheaf__sha_rotate(a, 18) ^ a >> 3) +
               w[i - 7] + (sheaf__sha_rotate(b, 17) ^ sheaf__sha_rotate(b, 19) ^ b >> 10);
    }
    memcpy(v, h, sizeof v);
    for (int i = 0; i < SHEAF__SHA_BLOCK; i++) {
        const uint32_t a = v[0], e = v[4];
        const uint32_t t1 =
            v[7] + (sheaf__sha_rotate(e, 6) ^ sheaf__sha_rotate(e, 11) ^ sheaf__sha_rotate(e, 25)) +
            ((e & v[5]) ^ (~e & v[6])) + k[i] + w[i];
        const uint32_t t2 =
            (sheaf__sha_rotate(a, 2) ^ sheaf__sha_rotate(a, 13) ^ sheaf__sha_rotate(a, 22)) +
            ((a & v[1]) ^ (a & v[2]) ^ (v[1] & v[2]));
        memmove(v + 1, v, 7 * sizeof *v);
        v[4] += t1;
        v[0] = t1 + t2;
    }
    for (int i = 0; i < 8; i++) h[i] += v[i];
}

static inline void sheaf__sha256(const void *data, size_t n, uint8_t out[SHEAF__SHA_BYTES]) {
    /* FIPS 180-4, 5.3.3 */
    uint32_t h[8] = {0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a,
                     0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19};
    uint8_t last[2 * SHEAF__SHA_BLOCK] = {0};
    const uint8_t *p = data;
    const size_t rest = n % SHEAF__SHA_BLOCK;
    const size_t tail = rest < SHEAF__SHA_BLOCK - 8 ? SHEAF__SHA_BLOCK : 2 * SHEAF__SHA_BLOCK;
    for (size_t i = 0; i + SHEAF__SHA_BLOCK <= n; i += SHEAF__SHA_BLOCK)
        sheaf__sha_add_block(h, p + i);
    if (rest) memcpy(last, p + (n - rest), rest);
    last[rest] = 0x80;
    for (size_t i = 0; i < 8; i++) last[tail - 1 - i] = (uint8_t)((uint64_t)n * 8 >> 8 * i);
    for (size_t i = 0; i < tail; i += SHEAF__SHA_BLOCK) sheaf__sha_add_block(h, last + i);
    for (int i = 0; i < SHEAF__SHA_BYTES; i++) out[i] = (uint8_t)(h[i / 4] >> (24 - 8 * (i % 4)));
}

/* Of a key of at most SHEAF__SHA_BLOCK bytes and a message of at most SHEAF__HMAC_MAX. */
static inline void sheaf__hmac(const uint8_t *key, size_t key_bytes, const uint8_t *message,
                               size_t n, uint8_t out[SHEAF__SHA_BYTES]) {
    uint8_t inner[SHEAF__SHA_BLOCK + SHEAF__HMAC_MAX], outer[SHEAF__SHA_BLOCK + SHEAF__SHA_BYTES];
    for (size_t i = 0; i < SHEAF__SHA_BLOCK; i++) {
        const uint8_t k = i < key_bytes ? key[i] : 0;
        inner[i] = k ^ 0x36;
        outer[i] = k ^ 0x5c;
    }
    memcpy(inner + SHEAF__SHA_BLOCK, message, n);
    sheaf__sha256(inner, SHEAF__SHA_BLOCK + n, outer + SHEAF__SHA_BLOCK);
    sheaf__sha256(outer, sizeof outer, out);
    explicit_bzero(inner, sizeof inner);
    explicit_bzero(outer, sizeof outer);
}

#endif
