/* A fuzz target: one function, which takes any bytes and ends the process if they break what must
 * hold. Linked with libFuzzer, or with driver.c. */
#ifndef SHEAF_TESTS_FUZZ_H
#define SHEAF_TESTS_FUZZ_H

#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* A condition that holds for every input. */
#define MUST(condition)                                                                            \
    do {                                                                                           \
        if (condition) break;                                                                      \
        fprintf(stderr, "%s:%d: %s does not hold\n", __FILE__, __LINE__, #condition);              \
        abort();                                                                                   \
    } while (0)

/* Numbers and texts out of the input, and zeros behind its end. */
struct fuzz_bytes {
    const uint8_t *at;
    size_t left;
};

static inline uint8_t fuzz_byte(struct fuzz_bytes *b) {
    if (!b->left) return 0;
    b->left--;
    return *b->at++;
}

/* A text of at most size - 1 bytes, which ends at a zero or at the end of the input. */
static inline char *fuzz_text(struct fuzz_bytes *b, char *out, size_t size) {
    const size_t room = b->left < size - 1 ? b->left : size - 1;
    const uint8_t *zero = room ? memchr(b->at, 0, room) : NULL;
    const size_t n = zero ? (size_t)(zero - b->at) : room;
    if (n) memcpy(out, b->at, n);
    out[n] = 0;
    b->at += n + (zero != NULL);
    b->left -= n + (zero != NULL);
    return out;
}

#endif
