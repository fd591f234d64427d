/* The pool of cuts: interning, and the operations that carry a cut through dimensions made of
 * factors. Every operation reads canonical interval lists and makes canonical interval lists; none
 * looks at segments, which are the public form (segments.c). */
#include "split/cut.h"

#include <stdlib.h>
#include <string.h>

#include "base/arith.h"
#include "base/hash.h"

/* The first chunk, doubled until chunks have the most: a plan of a few nodes is kept as long as one of thousands. */
enum { LEAST_CHUNK = 2 << 10, MOST_CHUNK = 32 << 10 };

struct sheaf__chunk {
    struct sheaf__chunk *next;
    size_t used, size;
    _Alignas(16) unsigned char bytes[];
};

enum sheaf_status sheaf__pool_init(struct sheaf__pool *pool, int n_members) {
    memset(pool, 0, sizeof *pool);
    pool->n_members = n_members;
    pool->n_slots = 256;
    pool->slots = calloc(pool->n_slots, sizeof(struct sheaf__cut *));
    pool->build_begin = malloc(((size_t)n_members + 1) * sizeof *pool->build_begin);
    struct sheaf_split_state *m = sheaf_split_state_mirrored(n_members);
    struct sheaf_split_state *p = sheaf_split_state_partial(n_members);
    pool->mirrored = m;
    pool->partial = p;
    if (pool->slots && pool->build_begin && m && p) return SHEAF_STATUS_SUCCESS;
    sheaf__pool_free(pool);
    return sheaf_set_error(SHEAF_STATUS_ALLOC_FAILED, "split: out of memory for %d members",
                           n_members);
}

void sheaf__pool_free(struct sheaf__pool *pool) {
    for (struct sheaf__chunk *c = pool->chunks, *next; c; c = next) {
        next = c->next;
        free(c);
    }
    free(pool->slots);
    free(pool->build);
    free(pool->build_begin);
    sheaf_split_state_free((struct sheaf_split_state *)(uintptr_t)pool->mirrored);
    sheaf_split_state_free((struct sheaf_split_state *)(uintptr_t)pool->partial);
    memset(pool, 0, sizeof *pool);
}

void *sheaf__pool_alloc(struct sheaf__pool *pool, size_t size) {
    size = (size + 15) / 16 * 16;
    struct sheaf__chunk *c = pool->chunks;
    if (!c || c->size - c->used < size) {
        size_t bytes = c ? sheaf__min_size(2 * c->size, MOST_CHUNK) : LEAST_CHUNK;
        if (bytes < size) bytes = size;
        c = malloc(sizeof *c + bytes);
        if (!c) {
            pool->failed = true;
            return NULL;
        }
        c->used = 0;
        c->size = bytes;
        c->next = pool->chunks;
        pool->chunks = c;
    }
    void *p = c->bytes + c->used;
    c->used += size;
    return memset(p, 0, size);
}

void sheaf__cut_begin(struct sheaf__pool *pool) {
    pool->n_build = 0;
    pool->build_member = 0;
    pool->build_begin[0] = 0;
    pool->build_refused = false;
}

void sheaf__cut_add(struct sheaf__pool *pool, int64_t lo, int64_t hi) {
    if (lo >= hi || pool->build_refused) return;
    const size_t first = (size_t)pool->build_begin[pool->build_member];
    if (pool->n_build > first && pool->build[pool->n_build - 1].hi == lo) {
        pool->build[pool->n_build - 1].hi = hi;
        return;
    }
    if (pool->n_build == pool->cap_build) {
        const size_t cap = pool->cap_build ? 2 * pool->cap_build : 256;
        struct sheaf__interval *grown =
            cap > SHEAF__MAX_INTERVALS ? NULL : realloc(pool->build, cap * sizeof *grown);
        if (!grown) {
            pool->build_refused = true;
            pool->any_refused = pool->any_refused || cap > SHEAF__MAX_INTERVALS;
            if (cap <= SHEAF__MAX_INTERVALS) pool->failed = true;
            return;
        }
        pool->build = grown;
        pool->cap_build = cap;
    }
    int64_t before = 0;
    if (pool->n_build > first) {
        const struct sheaf__interval *last = &pool->build[pool->n_build - 1];
        before = last->before + last->hi - last->lo;
    }
    pool->build[pool->n_build++] = (struct sheaf__interval){lo, hi, before};
}

void sheaf__cut_next_member(struct sheaf__pool *pool) {
    /* a merge above may have changed the last interval's end, never its start */
    pool->build_begin[++pool->build_member] = (int32_t)pool->n_build;
}

static int by_lo(const void *a, const void *b) {
    const struct sheaf__interval *x = a, *y = b;
    return x->lo < y->lo ? -1 : x->lo > y->lo;
}

/* Fills in what the intervals say as a whole. */
static bool describe(struct sheaf__cut *cut) {
    const int n = cut->begin[cut->n_members];
    cut->contiguous = cut->everywhere = true;
    for (int j = 0; j < cut->n_members; j++) {
        const int k = cut->begin[j + 1] - cut->begin[j];
        if (k > 1) cut->contiguous = false;
        if (sheaf__cut_count(cut, j) != cut->extent) cut->everywhere = false;
    }
    int64_t at = 0;
    bool in_order = true;
    for (int i = 0; i < n && in_order; i++) {
        in_order = cut->interval[i].lo == at;
        at = cut->interval[i].hi;
    }
    if (in_order) {
        cut->partition = at == cut->extent;
        return true;
    }
    struct sheaf__interval *all = malloc((size_t)n * sizeof *all);
    if (!all) return false;
    memcpy(all, cut->interval, (size_t)n * sizeof *all);
    qsort(all, (size_t)n, sizeof *all, by_lo);
    cut->partition = true;
    at = 0;
    for (int i = 0; i < n; i++) {
        if (all[i].lo != at) cut->partition = false;
        if (all[i].hi > at) at = all[i].hi;
    }
    if (at != cut->extent) cut->partition = false;
    free(all);
    return true;
}

static void rehash(struct sheaf__pool *pool) {
    const size_t n = pool->n_slots * 4;
    struct sheaf__cut **slots = calloc(n, sizeof *slots);
    if (!slots) return; /* longer chains, nothing worse */
    for (size_t i = 0; i < pool->n_slots; i++) {
        for (struct sheaf__cut *c = pool->slots[i], *next; c; c = next) {
            next = c->next;
            c->next = slots[c->hash & (n - 1)];
            slots[c->hash & (n - 1)] = c;
        }
    }
    free(pool->slots);
    pool->slots = slots;
    pool->n_slots = n;
}

const struct sheaf__cut *sheaf__cut_end(struct sheaf__pool *pool, int64_t extent) {
    if (pool->build_refused || pool->failed) return NULL;
    const int d = pool->n_members;
    uint64_t h = sheaf__mix(0, (uint64_t)extent);
    for (int j = 0; j <= d; j++) h = sheaf__mix(h, (uint64_t)pool->build_begin[j]);
    for (size_t i = 0; i < pool->n_build; i++) {
        h = sheaf__mix(h, (uint64_t)pool->build[i].lo);
        h = sheaf__mix(h, (uint64_t)pool->build[i].hi);
    }
    const size_t begin_bytes = ((size_t)d + 1) * sizeof *pool->build_begin;
    const size_t bytes = pool->n_build * sizeof *pool->build;
    for (struct sheaf__cut *c = pool->slots[h & (pool->n_slots - 1)]; c; c = c->next) {
        if (c->hash == h && c->extent == extent &&
            !memcmp(c->begin, pool->build_begin, begin_bytes) &&
            (!bytes || !memcmp(c->interval, pool->build, bytes)))
            return c;
    }
    if (pool->n_cuts > 2 * pool->n_slots) rehash(pool);
    struct sheaf__cut *cut = sheaf__pool_alloc(pool, sizeof *cut);
    int32_t *begin = sheaf__pool_alloc(pool, begin_bytes);
    struct sheaf__interval *interval = sheaf__pool_alloc(pool, bytes + 1);
    if (!cut || !begin || !interval) return NULL;
    memcpy(begin, pool->build_begin, begin_bytes);
    if (bytes) memcpy(interval, pool->build, bytes);
    cut->extent = extent;
    cut->n_members = d;
    cut->hash = h;
    cut->begin = begin;
    cut->interval = interval;
    if (!describe(cut)) {
        pool->failed = true;
        return NULL;
    }
    cut->next = pool->slots[h & (pool->n_slots - 1)];
    pool->slots[h & (pool->n_slots - 1)] = cut;
    pool->n_cuts++;
    return cut;
}

const struct sheaf__cut *sheaf__cut_embed(struct sheaf__pool *pool, const struct sheaf__cut *cut,
                                          int64_t left, int64_t right) {
    if (left == 1 && right == 1) return cut;
    const int64_t run = cut->extent * right;
    sheaf__cut_begin(pool);
    for (int j = 0; j < pool->n_members; j++) {
        for (int64_t l = 0; l < left && !pool->build_refused; l++) {
            for (int i = cut->begin[j]; i < cut->begin[j + 1]; i++)
                sheaf__cut_add(pool, l * run + cut->interval[i].lo * right,
                               l * run + cut->interval[i].hi * right);
            if (cut->begin[j] == cut->begin[j + 1]) break;
        }
        sheaf__cut_next_member(pool);
    }
    return sheaf__cut_end(pool, left * run);
}

const struct sheaf__cut *sheaf__cut_extract(struct sheaf__pool *pool, const struct sheaf__cut *cut,
                                            int64_t left, int64_t f, int64_t right) {
    if (left == 1 && right == 1) return cut->extent == f ? cut : NULL;
    if (left < 1 || right < 1 || cut->extent != left * f * right) return NULL;
    if (left > 1) { /* the first repeat decides; embedding it again must give the cut */
        const struct sheaf__cut *one = sheaf__cut_sub(pool, cut, 0, f * right);
        return one && sheaf__cut_embed(pool, one, left, 1) == cut
                   ? sheaf__cut_extract(pool, one, 1, f, right)
                   : NULL;
    }
    if (!sheaf__cut_aligned(cut, right)) return NULL;
    sheaf__cut_begin(pool);
    for (int j = 0; j < pool->n_members; j++) {
        for (int i = cut->begin[j]; i < cut->begin[j + 1]; i++)
            sheaf__cut_add(pool, cut->interval[i].lo / right, cut->interval[i].hi / right);
        sheaf__cut_next_member(pool);
    }
    return sheaf__cut_end(pool, f);
}

const struct sheaf__cut *sheaf__cut_sub(struct sheaf__pool *pool, const struct sheaf__cut *cut,
                                        int64_t lo, int64_t extent) {
    if (lo == 0 && extent == cut->extent) return cut;
    sheaf__cut_begin(pool);
    for (int j = 0; j < pool->n_members; j++) {
        for (int i = cut->begin[j]; i < cut->begin[j + 1]; i++) {
            int64_t a = cut->interval[i].lo - lo, b = cut->interval[i].hi - lo;
            if (a < 0) a = 0;
            if (b > extent) b = extent;
            sheaf__cut_add(pool, a, b);
        }
        sheaf__cut_next_member(pool);
    }
    return sheaf__cut_end(pool, extent);
}

const struct sheaf__cut *sheaf__cut_concat(struct sheaf__pool *pool, const struct sheaf__cut *a,
                                           const struct sheaf__cut *b) {
    sheaf__cut_begin(pool);
    for (int j = 0; j < pool->n_members; j++) {
        for (int i = a->begin[j]; i < a->begin[j + 1]; i++)
            sheaf__cut_add(pool, a->interval[i].lo, a->interval[i].hi);
        for (int i = b->begin[j]; i < b->begin[j + 1]; i++)
            sheaf__cut_add(pool, a->extent + b->interval[i].lo, a->extent + b->interval[i].hi);
        sheaf__cut_next_member(pool);
    }
    return sheaf__cut_end(pool, a->extent + b->extent);
}

/* Is what is taken of a group as much as of the groups before? */
static bool is_same_share(int64_t *share, int64_t taken) {
    if (*share < 0) *share = taken;
    return *share == taken;
}

/* Adds the groups of the member; false if it does not take equally many of each. */
static bool add_groups(struct sheaf__pool *pool, const struct sheaf__cut *cut, int member,
                       int64_t r) {
    int64_t last = -1, taken = 0, share = -1;
    for (int i = cut->begin[member]; i < cut->begin[member + 1]; i++) {
        const int64_t hi = cut->interval[i].hi;
        for (int64_t at = cut->interval[i].lo, upto; at < hi; at = upto) {
            const int64_t g = at / r;
            upto = (g + 1) * r < hi ? (g + 1) * r : hi;
            if (g != last) {
                if (last >= 0 && !is_same_share(&share, taken)) return false;
                sheaf__cut_add(pool, g, g + 1);
                last = g;
                taken = 0;
            }
            taken += upto - at;
        }
    }
    return is_same_share(&share, taken);
}

bool sheaf__cut_divides_groups(const struct sheaf__cut *cut, int member, int64_t r) {
    if (cut->begin[member + 1] - cut->begin[member] != 1) return false;
    const struct sheaf__interval *v = &cut->interval[cut->begin[member]];
    return (v->lo % r || v->hi % r) && v->lo / r != (v->hi - 1) / r;
}

const struct sheaf__cut *sheaf__cut_groups(struct sheaf__pool *pool, const struct sheaf__cut *cut,
                                           int64_t r, bool parts) {
    if (r == 1) return cut;
    if (r < 1 || cut->extent % r) return NULL;
    sheaf__cut_begin(pool);
    for (int j = 0; j < pool->n_members; j++) {
        if (parts && sheaf__cut_divides_groups(cut, j, r)) {
            const struct sheaf__interval *v = &cut->interval[cut->begin[j]];
            sheaf__cut_add(pool, v->lo / r, (v->hi - 1) / r + 1);
        } else if (!add_groups(pool, cut, j, r)) {
            return NULL;
        }
        sheaf__cut_next_member(pool);
    }
    return sheaf__cut_end(pool, cut->extent / r);
}

/* Adds the residues of the member; false if they do not come round as they must. */
static bool add_residues(struct sheaf__pool *pool, const struct sheaf__cut *cut, int member,
                         int64_t g) {
    const int first = cut->begin[member], last = cut->begin[member + 1];
    int64_t period = 0, n = 0, before = -1;
    for (int i = first; i < last && !period; i++) { /* the first round */
        for (int64_t at = cut->interval[i].lo; at < cut->interval[i].hi && !period; at++, n++) {
            if (at % g <= before) period = n;
            if (!period) sheaf__cut_add(pool, at % g, at % g + 1);
            before = at % g;
        }
    }
    if (!period) return true;
    const size_t begin = (size_t)pool->build_begin[member];
    int64_t in_round = 0;
    size_t v = begin;
    for (int i = first; i < last; i++) {
        for (int64_t at = cut->interval[i].lo; at < cut->interval[i].hi; at++) {
            const int64_t expect = pool->build[v].lo + in_round;
            if (at % g != expect) return false;
            in_round++;
            if (expect + 1 < pool->build[v].hi) continue;
            in_round = 0;
            if (++v == pool->n_build) v = begin;
        }
    }
    return v == begin && in_round == 0;
}

const struct sheaf__cut *sheaf__cut_residues(struct sheaf__pool *pool, const struct sheaf__cut *cut,
                                             int64_t g) {
    if (g < 1 || cut->extent % g) return NULL;
    if (cut->extent == g) return cut;
    sheaf__cut_begin(pool);
    for (int j = 0; j < pool->n_members; j++) {
        if (!add_residues(pool, cut, j, g) || pool->build_refused) return NULL;
        sheaf__cut_next_member(pool);
    }
    return sheaf__cut_end(pool, g);
}

bool sheaf__cut_serves(const struct sheaf__cut *a, const struct sheaf__cut *b,
                       const struct sheaf__cut *readers) {
    if (a == b) return true;
    if (a->extent != b->extent) return false;
    for (int j = 0; j < a->n_members; j++) {
        if (readers->begin[j] == readers->begin[j + 1]) continue;
        const int n = a->begin[j + 1] - a->begin[j];
        if (n != b->begin[j + 1] - b->begin[j]) return false;
        for (int i = 0; i < n; i++) {
            const struct sheaf__interval *x = &a->interval[a->begin[j] + i];
            const struct sheaf__interval *y = &b->interval[b->begin[j] + i];
            if (x->lo != y->lo || x->hi != y->hi) return false;
        }
    }
    return true;
}

int64_t sheaf__cut_count(const struct sheaf__cut *cut, int member) {
    if (cut->begin[member] == cut->begin[member + 1]) return 0;
    const struct sheaf__interval *last = &cut->interval[cut->begin[member + 1] - 1];
    return last->before + last->hi - last->lo;
}

int64_t sheaf__cut_rank(const struct sheaf__cut *cut, int member, int64_t i) {
    int lo = cut->begin[member], hi = cut->begin[member + 1];
    const int first = lo;
    while (lo < hi) { /* first interval that starts at or after i */
        const int mid = lo + (hi - lo) / 2;
        if (cut->interval[mid].lo < i) {
            lo = mid + 1;
        } else {
            hi = mid;
        }
    }
    if (lo == first) return 0;
    const struct sheaf__interval *v = &cut->interval[lo - 1];
    return v->before + (i < v->hi ? i : v->hi) - v->lo;
}

bool sheaf__cut_aligned(const struct sheaf__cut *cut, int64_t unit) {
    if (unit == 1) return true;
    for (int i = 0; i < cut->begin[cut->n_members]; i++) {
        if (cut->interval[i].lo % unit || cut->interval[i].hi % unit) return false;
    }
    return true;
}
