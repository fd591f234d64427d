/* See sets.h: a table with open addressing. */
#include "split/sets.h"

#include "base/array.h"
#include "base/hash.h"

static uint64_t hash_set(const struct sheaf__set *s) {
    uint64_t h = sheaf__mix((uint64_t)s->n, (uint64_t)s->native << 8 | s->packed);
    for (int i = 0; i < s->n; i++) {
        h = sheaf__mix(h, (uint64_t)s->st[i].kind << 8 | (uint64_t)s->st[i].axis);
        h = sheaf__mix(h,
                       (uint64_t)(uintptr_t)s->st[i].cut ^ (uint64_t)(uintptr_t)s->st[i].mask << 1);
    }
    return h;
}

static bool same_set(const struct sheaf__set *a, const struct sheaf__set *b) {
    if (a->n != b->n || a->native != b->native || a->packed != b->packed) return false;
    for (int i = 0; i < a->n; i++) {
        if (!sheaf__st_equal(a->st[i], b->st[i])) return false;
    }
    return true;
}

int sheaf__set_number(struct sheaf__sets *s, const struct sheaf__set *x) {
    if (2 * (s->n + 1) > s->n_slots) {
        const int n = s->n_slots ? 2 * s->n_slots : 256;
        int *slot = calloc((size_t)n, sizeof *slot);
        if (!slot) return SHEAF__NO_SET;
        for (int i = 0; i < s->n; i++) {
            size_t at = hash_set(&s->set[i]) & (size_t)(n - 1);
            while (slot[at]) at = (at + 1) & (size_t)(n - 1);
            slot[at] = i + 1;
        }
        free(s->slot);
        s->slot = slot;
        s->n_slots = n;
    }
    size_t at = hash_set(x) & (size_t)(s->n_slots - 1);
    for (; s->slot[at]; at = (at + 1) & (size_t)(s->n_slots - 1)) {
        if (same_set(&s->set[s->slot[at] - 1], x)) return s->slot[at] - 1;
    }
    if (!sheaf__grow(&s->set, &s->cap, (size_t)s->n + 1, sizeof *s->set)) return SHEAF__NO_SET;
    s->set[s->n] = *x;
    s->slot[at] = s->n + 1;
    return s->n++;
}

int sheaf__set_of_one(struct sheaf__sets *s, struct sheaf__st st, bool native) {
    const struct sheaf__set x = {.n = 1, .native = native, .st = {st}};
    return sheaf__set_number(s, &x);
}

bool sheaf__set_holds(const struct sheaf__set *x, enum sheaf__state_kind kind) {
    for (int i = 0; i < x->n; i++) {
        if (x->st[i].kind == kind) return true;
    }
    return false;
}

void sheaf__set_add(struct sheaf__set *x, struct sheaf__st st, bool packed) {
    for (int i = 0; i < x->n; i++) {
        if (sheaf__st_equal(x->st[i], st)) return;
    }
    if (x->n == SHEAF__SET_STATES) x->n--; /* the newest; the first may be the tensor's own */
    x->packed = (uint8_t)(x->packed & ~(1u << x->n));
    if (packed) x->packed = (uint8_t)(x->packed | 1u << x->n);
    x->st[x->n++] = st;
}

void sheaf__sets_free(struct sheaf__sets *s) {
    free(s->set);
    free(s->slot);
}
