/* Symbols of a vocabulary: strings with consecutive ids, found by text, and the merges between
 * them.
 *
 * Owns all text. The first ids are the tokens; further ones are strings that only merges mention.
 * Built once, then read by any number of threads. */
#ifndef SHEAF_MODEL_VOCAB_H
#define SHEAF_MODEL_VOCAB_H

#include <stddef.h>
#include <stdint.h>

#include "sheaf/status.h"

#define SHEAF__NO_SYMBOL UINT32_MAX

struct sheaf__span {
    uint32_t offset, len; /* in the arena */
};

struct sheaf__vocab {
    char *arena;
    size_t arena_n, arena_cap;
    struct sheaf__span *text; /* [n] */
    size_t n, cap;

    struct sheaf__slot {
        uint32_t hash, symbol; /* of the text; symbol + 1, 0 if empty */
    } * slots;                 /* open-addressed, a power of two */
    size_t n_slots, n_used;

    struct sheaf__pair {
        uint32_t left, right; /* left == SHEAF__NO_SYMBOL: empty */
        uint32_t rank, symbol;
    } * pairs; /* open-addressed by (left, right), a power of two */
    size_t n_pairs;
};

void sheaf__vocab_free(struct sheaf__vocab *v); /* what v points to, not v */

/* Appends a symbol without making it findable; *out (may be NULL) is its id. */
enum sheaf_status sheaf__vocab_add(struct sheaf__vocab *v, const char *s, size_t len,
                                   uint32_t *out);
/* Makes a symbol findable by its text; of equal texts the first one indexed is found. */
enum sheaf_status sheaf__vocab_index(struct sheaf__vocab *v, uint32_t symbol);
/* SHEAF__NO_SYMBOL if no indexed symbol has that text. */
uint32_t sheaf__vocab_find(const struct sheaf__vocab *v, const char *s, size_t len);
/* Finds, or adds and indexes. */
enum sheaf_status sheaf__vocab_intern(struct sheaf__vocab *v, const char *s, size_t len,
                                      uint32_t *out);

/* Room for n merges; before the first sheaf__vocab_add_pair. */
enum sheaf_status sheaf__vocab_reserve_pairs(struct sheaf__vocab *v, size_t n);
/* left + right -> symbol with that rank; of equal pairs the first counts. */
void sheaf__vocab_add_pair(struct sheaf__vocab *v, uint32_t left, uint32_t right, uint32_t rank,
                           uint32_t symbol);
const struct sheaf__pair *sheaf__vocab_find_pair(const struct sheaf__vocab *v, uint32_t left,
                                                 uint32_t right);

static inline const char *sheaf__vocab_text(const struct sheaf__vocab *v, uint32_t symbol) {
    return v->arena + v->text[symbol].offset;
}

#endif
