/* The merging that both tokenizer families share: a sequence of symbols, of which the best adjacent
 * pair is joined again and again until no pair can be.
 *
 * Best is the lowest priority value, of equals the leftmost. A linked list and a heap make it
 * n log n. The arrays are kept between runs, so one merger serves all words of a text. */
#ifndef SHEAF_MODEL_MERGE_H
#define SHEAF_MODEL_MERGE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "sheaf/status.h"

struct sheaf__symbol {
    uint32_t start, len; /* bytes of the run's text; len 0: joined to its left neighbour */
    uint32_t symbol;     /* SHEAF__NO_SYMBOL if the text is none */
    int32_t prev, next;  /* -1 at the ends */
};

struct sheaf__merger {
    struct sheaf__symbol *symbols; /* [n], in text order; follow .next from 0 */
    size_t n, cap;
    struct sheaf__merge {
        uint64_t key; /* priority << 32 | index of the left symbol */
        uint32_t symbol, len;
        int32_t left, right;
    } * heap; /* smallest key first */
    size_t n_heap, heap_cap;
};

/* True if the two neighbours can be joined: to *symbol, with *priority. */
typedef bool sheaf__merge_rule(const void *ctx, const struct sheaf__symbol *left,
                               const struct sheaf__symbol *right, uint32_t *priority,
                               uint32_t *symbol);

void sheaf__merger_free(struct sheaf__merger *m); /* what m points to, not m */
static inline void sheaf__merger_clear(struct sheaf__merger *m) { m->n = 0; }
/* Appends a symbol of `len` > 0 bytes behind the last one. */
enum sheaf_status sheaf__merger_push(struct sheaf__merger *m, uint32_t len, uint32_t symbol);
enum sheaf_status sheaf__merger_run(struct sheaf__merger *m, sheaf__merge_rule *rule,
                                    const void *ctx);

#endif
