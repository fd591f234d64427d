/* Pair merging with a linked list and a binary heap; see merge.h.
 *
 * A heap entry is stale once either symbol has changed; that shows in the lengths, since a symbol
 * only ever grows to the right and a joined one has length 0. */
#include "model/text/merge.h"

#include <stdlib.h>

#include "base/array.h"

static enum sheaf_status grow(void *array, size_t *cap, size_t need, size_t size) {
    if (sheaf__grow(array, cap, need, size)) return SHEAF_STATUS_SUCCESS;
    return sheaf_set_error(SHEAF_STATUS_ALLOC_FAILED,
                           "tokenizer: no memory for %zu symbols to encode a text", need);
}

void sheaf__merger_free(struct sheaf__merger *m) {
    free(m->symbols);
    free(m->heap);
    *m = (struct sheaf__merger){0};
}

enum sheaf_status sheaf__merger_push(struct sheaf__merger *m, uint32_t len, uint32_t symbol) {
    enum sheaf_status st = grow(&m->symbols, &m->cap, m->n + 1, sizeof *m->symbols);
    if (st) return st;
    struct sheaf__symbol *s = &m->symbols[m->n];
    *s = (struct sheaf__symbol){0, len, symbol, (int32_t)m->n - 1, -1};
    if (m->n) {
        s[-1].next = (int32_t)m->n;
        s->start = s[-1].start + s[-1].len;
    }
    m->n++;
    return SHEAF_STATUS_SUCCESS;
}

static enum sheaf_status heap_push(struct sheaf__merger *m, struct sheaf__merge e) {
    enum sheaf_status st = grow(&m->heap, &m->heap_cap, m->n_heap + 1, sizeof *m->heap);
    if (st) return st;
    size_t i = m->n_heap++;
    for (size_t up; i > 0 && m->heap[up = (i - 1) / 2].key > e.key; i = up)
        m->heap[i] = m->heap[up];
    m->heap[i] = e;
    return SHEAF_STATUS_SUCCESS;
}

static struct sheaf__merge heap_pop(struct sheaf__merger *m) {
    struct sheaf__merge top = m->heap[0], e = m->heap[--m->n_heap];
    size_t i = 0;
    for (size_t down; (down = 2 * i + 1) < m->n_heap; i = down) {
        if (down + 1 < m->n_heap && m->heap[down + 1].key < m->heap[down].key) down++;
        if (m->heap[down].key >= e.key) break;
        m->heap[i] = m->heap[down];
    }
    m->heap[i] = e;
    return top;
}

static enum sheaf_status consider(struct sheaf__merger *m, sheaf__merge_rule *rule, const void *ctx,
                                  int32_t left, int32_t right) {
    if (left < 0 || right < 0) return SHEAF_STATUS_SUCCESS;
    const struct sheaf__symbol *l = &m->symbols[left], *r = &m->symbols[right];
    struct sheaf__merge e = {0, 0, l->len + r->len, left, right};
    uint32_t priority;
    if (!rule(ctx, l, r, &priority, &e.symbol)) return SHEAF_STATUS_SUCCESS;
    e.key = (uint64_t)priority << 32 | (uint32_t)left;
    return heap_push(m, e);
}

enum sheaf_status sheaf__merger_run(struct sheaf__merger *m, sheaf__merge_rule *rule,
                                    const void *ctx) {
    enum sheaf_status st = SHEAF_STATUS_SUCCESS;
    m->n_heap = 0;
    for (int32_t i = 1; !st && i < (int32_t)m->n; i++) st = consider(m, rule, ctx, i - 1, i);
    while (!st && m->n_heap) {
        struct sheaf__merge e = heap_pop(m);
        struct sheaf__symbol *l = &m->symbols[e.left], *r = &m->symbols[e.right];
        if (l->len == 0 || r->len == 0 || l->len + r->len != e.len) continue;
        l->len = e.len;
        l->symbol = e.symbol;
        l->next = r->next;
        r->len = 0;
        if (l->next >= 0) m->symbols[l->next].prev = e.left;
        st = consider(m, rule, ctx, l->prev, e.left);
        if (!st) st = consider(m, rule, ctx, e.left, l->next);
    }
    return st;
}
