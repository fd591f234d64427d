/* Symbol table and merge table; see vocab.h.
 *
 * Both tables are open-addressed with linear probing and at most half full, so a search always
 * meets an empty slot. */
#include "model/text/vocab.h"

#include <stdlib.h>
#include <string.h>

#include "base/array.h"
#include "base/hash.h"

static enum sheaf_status no_memory(size_t bytes) {
    return sheaf_set_error(SHEAF_STATUS_ALLOC_FAILED,
                           "tokenizer: cannot allocate %zu bytes for the vocabulary", bytes);
}

void sheaf__vocab_free(struct sheaf__vocab *v) {
    free(v->arena);
    free(v->text);
    free(v->slots);
    free(v->pairs);
    *v = (struct sheaf__vocab){0};
}

static uint32_t hash_text(const char *s, size_t len) {
    return (uint32_t)sheaf__mix(0, sheaf__hash_bytes(0, s, len));
}

static size_t hash_pair(uint32_t left, uint32_t right) {
    return (size_t)sheaf__mix(sheaf__mix(0, left), right);
}

static enum sheaf_status grow(void *array, size_t *cap, size_t need, size_t size) {
    return sheaf__grow(array, cap, need, size) ? SHEAF_STATUS_SUCCESS : no_memory(need * size);
}

enum sheaf_status sheaf__vocab_add(struct sheaf__vocab *v, const char *s, size_t len,
                                   uint32_t *out) {
    if (v->n >= INT32_MAX || len > UINT32_MAX / 2 || v->arena_n > UINT32_MAX / 2)
        return sheaf_set_error(SHEAF_STATUS_INVALID,
                               "tokenizer: the vocabulary's text exceeds 2 GiB");
    enum sheaf_status st = grow(&v->arena, &v->arena_cap, v->arena_n + len + 1, 1);
    if (!st) st = grow(&v->text, &v->cap, v->n + 1, sizeof *v->text);
    if (st) return st;
    v->text[v->n] = (struct sheaf__span){(uint32_t)v->arena_n, (uint32_t)len};
    if (len) memcpy(v->arena + v->arena_n, s, len);
    v->arena[v->arena_n + len] = 0;
    v->arena_n += len + 1;
    if (out) *out = (uint32_t)v->n;
    v->n++;
    return SHEAF_STATUS_SUCCESS;
}

static bool same(const struct sheaf__vocab *v, uint32_t symbol, const char *s, size_t len) {
    return v->text[symbol].len == len && memcmp(sheaf__vocab_text(v, symbol), s, len) == 0;
}

/* The slot that holds the text, or the empty one where it belongs. Texts are far apart in memory:
 * only one with the same hash is looked at. */
static struct sheaf__slot *slot(const struct sheaf__vocab *v, uint32_t hash, const char *s,
                                size_t len) {
    const size_t mask = v->n_slots - 1;
    for (size_t i = hash & mask;; i = (i + 1) & mask) {
        struct sheaf__slot *p = &v->slots[i];
        if (p->symbol == 0 || (p->hash == hash && same(v, p->symbol - 1, s, len))) return p;
    }
}

static enum sheaf_status double_slots(struct sheaf__vocab *v) {
    const size_t n = v->n_slots ? 2 * v->n_slots : 1024;
    struct sheaf__slot *p = calloc(n, sizeof *p);
    if (!p) return no_memory(n * sizeof *p);
    for (size_t i = 0; i < v->n_slots; i++) {
        size_t to = v->slots[i].hash & (n - 1);
        if (!v->slots[i].symbol) continue;
        while (p[to].symbol) to = (to + 1) & (n - 1);
        p[to] = v->slots[i];
    }
    free(v->slots);
    v->slots = p;
    v->n_slots = n;
    return SHEAF_STATUS_SUCCESS;
}

enum sheaf_status sheaf__vocab_index(struct sheaf__vocab *v, uint32_t symbol) {
    const enum sheaf_status st =
        2 * (v->n_used + 1) > v->n_slots ? double_slots(v) : SHEAF_STATUS_SUCCESS;
    if (st) return st;
    const char *s = sheaf__vocab_text(v, symbol);
    const uint32_t hash = hash_text(s, v->text[symbol].len);
    struct sheaf__slot *p = slot(v, hash, s, v->text[symbol].len);
    if (p->symbol) return st;
    *p = (struct sheaf__slot){hash, symbol + 1};
    v->n_used++;
    return st;
}

uint32_t sheaf__vocab_find(const struct sheaf__vocab *v, const char *s, size_t len) {
    if (v->n_slots == 0) return SHEAF__NO_SYMBOL;
    const uint32_t found = slot(v, hash_text(s, len), s, len)->symbol;
    return found ? found - 1 : SHEAF__NO_SYMBOL;
}

enum sheaf_status sheaf__vocab_intern(struct sheaf__vocab *v, const char *s, size_t len,
                                      uint32_t *out) {
    *out = sheaf__vocab_find(v, s, len);
    if (*out != SHEAF__NO_SYMBOL) return SHEAF_STATUS_SUCCESS;
    enum sheaf_status st = sheaf__vocab_add(v, s, len, out);
    return st ? st : sheaf__vocab_index(v, *out);
}

enum sheaf_status sheaf__vocab_reserve_pairs(struct sheaf__vocab *v, size_t n) {
    size_t cap = 16;
    while (cap / 2 < n) cap *= 2;
    v->pairs = malloc(cap * sizeof *v->pairs);
    if (!v->pairs) return no_memory(cap * sizeof *v->pairs);
    v->n_pairs = cap;
    for (size_t i = 0; i < cap; i++) v->pairs[i].left = SHEAF__NO_SYMBOL;
    return SHEAF_STATUS_SUCCESS;
}

static struct sheaf__pair *pair_slot(const struct sheaf__vocab *v, uint32_t left, uint32_t right) {
    size_t mask = v->n_pairs - 1;
    for (size_t i = hash_pair(left, right) & mask;; i = (i + 1) & mask) {
        struct sheaf__pair *p = &v->pairs[i];
        if (p->left == SHEAF__NO_SYMBOL || (p->left == left && p->right == right)) return p;
    }
}

void sheaf__vocab_add_pair(struct sheaf__vocab *v, uint32_t left, uint32_t right, uint32_t rank,
                           uint32_t symbol) {
    struct sheaf__pair *p = pair_slot(v, left, right);
    if (p->left == SHEAF__NO_SYMBOL) *p = (struct sheaf__pair){left, right, rank, symbol};
}

const struct sheaf__pair *sheaf__vocab_find_pair(const struct sheaf__vocab *v, uint32_t left,
                                                 uint32_t right) {
    if (v->n_pairs == 0) return NULL;
    const struct sheaf__pair *p = pair_slot(v, left, right);
    return p->left == SHEAF__NO_SYMBOL ? NULL : p;
}
