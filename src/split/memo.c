/* A hash table from nodes, as far as rules look at them, to rows. Keys are words compared in full;
 * the hash only finds them. Cuts enter as addresses, which is sound because they are interned. */
#include "split/memo.h"

#include <stdlib.h>
#include <string.h>

struct sheaf__memo_entry {
    struct sheaf__memo_entry *next;
    uint64_t hash;
    struct sheaf__row row;
    size_t n;
    uint64_t word[];
};

enum { SLOTS = 512, WORDS_TENSOR = 10, WORDS_FIXED = 24 };

bool sheaf__memo_init(struct sheaf__memo *memo) {
    memset(memo, 0, sizeof *memo);
    memo->n_slots = SLOTS;
    memo->slot = calloc(SLOTS, sizeof(struct sheaf__memo_entry *));
    return memo->slot != NULL;
}

void sheaf__memo_free(struct sheaf__memo *memo) {
    for (size_t i = 0; memo->slot && i < memo->n_slots; i++) {
        for (struct sheaf__memo_entry *e = memo->slot[i], *next; e; e = next) {
            next = e->next;
            free(e);
        }
    }
    free(memo->slot);
    free(memo->scratch);
    memset(memo, 0, sizeof *memo);
}

static uint64_t *put_tensor(uint64_t *w, const struct sheaf_tensor *t,
                            const struct sheaf_tensor *a) {
    *w++ = (uint64_t)t->type;
    for (int i = 0; i < SHEAF_MAX_DIMS; i++) *w++ = (uint64_t)t->ne[i];
    for (int i = 0; i < SHEAF_MAX_DIMS; i++) *w++ = (uint64_t)t->nb[i];
    *w++ = a ? t->view_offs - a->view_offs : 0;
    return w;
}

struct sheaf__memo_key sheaf__memo_key(struct sheaf__memo *memo, const struct sheaf_tensor *node,
                                       const struct sheaf__have *have, int n, int extra) {
    struct sheaf__memo_key key = {0};
    size_t states = 0;
    for (int i = 0; i < n; i++) states += (size_t)have[i].n;
    const size_t most = WORDS_FIXED + WORDS_TENSOR * ((size_t)n + 1) + (size_t)n + 3 * states;
    if (most > memo->cap) {
        uint64_t *grown = realloc(memo->scratch, most * sizeof *grown);
        if (!grown) {
            memo->failed = true;
            return key;
        }
        memo->scratch = grown;
        memo->cap = most;
    }
    uint64_t *w = memo->scratch;
    *w++ = (uint64_t)node->op | (uint64_t)extra << 32;
    for (int i = 0; i < SHEAF_MAX_OP_PARAMS; i += 2)
        *w++ = (uint32_t)node->op_params[i] | (uint64_t)(uint32_t)node->op_params[i + 1] << 32;
    w = put_tensor(w, node, n ? node->src[0] : NULL);
    const int mask = sheaf__rule_of(node)->mask;
    *w++ = mask ? (uint64_t)(uintptr_t)node->src[mask - 1] : 0; /* masked results name it */
    for (int i = 0; i < n; i++) {
        w = put_tensor(w, node->src[i], NULL);
        *w++ = (uint64_t)have[i].n;
        for (int k = 0; k < have[i].n; k++) {
            *w++ = (uint64_t)have[i].st[k].lie << 8 | (uint64_t)have[i].st[k].axis;
            *w++ = (uint64_t)(uintptr_t)have[i].st[k].cut;
            *w++ = (uint64_t)(uintptr_t)have[i].st[k].mask;
        }
    }
    key.n = (size_t)(w - memo->scratch);
    for (size_t i = 0; i < key.n; i++) {
        key.hash = (key.hash ^ memo->scratch[i]) * 0x9E3779B97F4A7C15u;
        key.hash ^= key.hash >> 32;
    }
    return key;
}

const struct sheaf__row *sheaf__memo_find(const struct sheaf__memo *memo,
                                          const struct sheaf__memo_key *key) {
    const struct sheaf__memo_entry *e = memo->slot[key->hash & (memo->n_slots - 1)];
    for (; e; e = e->next) {
        if (e->hash == key->hash && e->n == key->n &&
            !memcmp(e->word, memo->scratch, key->n * sizeof *e->word))
            return &e->row;
    }
    return NULL;
}

bool sheaf__memo_put(struct sheaf__memo *memo, const struct sheaf__memo_key *key,
                     const struct sheaf__row *row) {
    if (memo->failed) return false;
    struct sheaf__memo_entry *e = malloc(sizeof *e + key->n * sizeof *e->word);
    if (!e) return false;
    e->hash = key->hash;
    e->row = *row;
    e->n = key->n;
    memcpy(e->word, memo->scratch, key->n * sizeof *e->word);
    struct sheaf__memo_entry **slot = &memo->slot[key->hash & (memo->n_slots - 1)];
    e->next = *slot;
    *slot = e;
    memo->n++;
    return true;
}
