/* Remembers the row chosen for a node, by everything that the choice depends on: the layers of a
 * model repeat the same few nodes, so only the first layer is worked out. */
#ifndef SHEAF_SPLIT_MEMO_H
#define SHEAF_SPLIT_MEMO_H

#include "split/match.h"

struct sheaf__memo_entry;
struct sheaf__memo {
    struct sheaf__memo_entry **slot;
    size_t n_slots, n;
    uint64_t *scratch; /* the key being made */
    size_t cap;
    bool failed;
};
/* Valid until the next sheaf__memo_key of the same memo. */
struct sheaf__memo_key {
    uint64_t hash;
    size_t n; /* words in the memo's scratch */
};

bool sheaf__memo_init(struct sheaf__memo *memo);
void sheaf__memo_free(struct sheaf__memo *memo);
struct sheaf__memo_key sheaf__memo_key(struct sheaf__memo *memo, const struct sheaf_tensor *node,
                                       const struct sheaf__have *have, int n, int extra);
const struct sheaf__row *sheaf__memo_find(const struct sheaf__memo *memo,
                                          const struct sheaf__memo_key *key);
/* False if out of memory. */
bool sheaf__memo_put(struct sheaf__memo *memo, const struct sheaf__memo_key *key,
                     const struct sheaf__row *row);

#endif
