/* ARGMAX and TOP_K: positions of the largest elements of a row. A larger value is better; of equal
 * values the lower position; NaN is worse than everything else, so a result never depends on order.
 * ARGSORT: all positions in that order, or in that of growing values, with NaN last as well.
 * COUNT_EQUAL: at how many positions two tensors are equal. */
#include "cpu/kernels/kernels.h"
#include "cpu/ops/ops.h"

struct row {
    const char *data;
    size_t nb0;
    enum sheaf_type type;
    const float *plain; /* the same as dense F32, else NULL */
};

static struct row row_of(const struct sheaf_tensor *a, const char *data) {
    struct row row = {data, a->nb[0], a->type, NULL};
    if (a->type == SHEAF_TYPE_F32 && sheaf__cpu_is_dense(a)) row.plain = (const float *)data;
    return row;
}

static float value_at(const struct row *row, int32_t i) {
    float one;
    if (row->plain) return row->plain[i];
    return *sheaf__cpu_load(row->type, row->data + (size_t)i * row->nb0, row->nb0, 1, &one);
}

static bool better(const struct row *row, int32_t i, int32_t j) {
    float a = value_at(row, i), b = value_at(row, j);
    if (a > b) return true;
    if (a < b) return false;
    bool a_nan = a != a, b_nan = b != b;
    if (a_nan != b_nan) return b_nan;
    return i < j;
}

/* Position i comes after that of `best`, a value met before: the short way for nearly all of a row.
 * False if best is NaN. */
static bool surely_not_better(const struct row *row, int32_t i, float best) {
    return row->plain && row->plain[i] <= best;
}

/* a [i, j] -> dst I32 [j] */
static enum sheaf_status op_argmax(struct sheaf_tensor *dst, int ith, int nth,
                                   struct sheaf__cpu_sync *sync, void *work) {
    const struct sheaf_tensor *a = dst->src[0];
    int64_t first, last;
    sheaf__cpu_share(dst->ne[0], ith, nth, &first, &last);
    (void)sync;
    (void)work;
    for (int64_t j = first; j < last; j++) {
        struct row row = row_of(a, (const char *)a->data + (size_t)j * a->nb[1]);
        int32_t best = 0;
        float value = a->ne[0] > 0 ? value_at(&row, 0) : 0.0f;
        for (int32_t i = 1; i < a->ne[0]; i++) {
            if (surely_not_better(&row, i, value)) continue;
            if (better(&row, i, best)) {
                best = i;
                value = value_at(&row, i);
            }
        }
        memcpy((char *)dst->data + (size_t)j * dst->nb[0], &best, sizeof best);
    }
    return SHEAF_STATUS_SUCCESS;
}

/* heap[0] is the worst of the n positions in the heap */
static void sift_down(const struct row *row, int32_t *heap, int64_t n, int64_t i) {
    for (;;) {
        int64_t worst = i, left = 2 * i + 1, right = left + 1;
        if (left < n && better(row, heap[worst], heap[left])) worst = left;
        if (right < n && better(row, heap[worst], heap[right])) worst = right;
        if (worst == i) return;
        int32_t t = heap[i];
        heap[i] = heap[worst];
        heap[worst] = t;
        i = worst;
    }
}

/* a [i, j, h, s] -> dst I32 [k, j, h, s]; the heap is the row of dst itself */
static enum sheaf_status op_top_k(struct sheaf_tensor *dst, int ith, int nth,
                                  struct sheaf__cpu_sync *sync, void *work) {
    const struct sheaf_tensor *a = dst->src[0];
    const int64_t k = dst->ne[0];
    int64_t first, last;
    sheaf__cpu_share(sheaf_nrows(dst), ith, nth, &first, &last);
    (void)sync;
    (void)work;
    for (int64_t r = first; r < last; r++) {
        struct sheaf__cpu_row at = sheaf__cpu_row_at(dst->ne, r);
        struct row row = row_of(a, sheaf__cpu_row_data(a, at));
        int32_t *heap = (int32_t *)(void *)sheaf__cpu_row_data(dst, at);
        for (int32_t i = 0; i < k; i++) heap[i] = i;
        for (int64_t i = k / 2 - 1; i >= 0; i--) sift_down(&row, heap, k, i);
        float worst = value_at(&row, heap[0]);
        for (int32_t i = (int32_t)k; i < a->ne[0]; i++) {
            if (surely_not_better(&row, i, worst)) continue;
            if (!better(&row, i, heap[0])) continue;
            heap[0] = i;
            sift_down(&row, heap, k, 0);
            worst = value_at(&row, heap[0]);
        }
        for (int64_t n = k - 1; n > 0; n--) { /* the worst goes last, again and again */
            int32_t t = heap[0];
            heap[0] = heap[n];
            heap[n] = t;
            sift_down(&row, heap, n, 0);
        }
    }
    return SHEAF_STATUS_SUCCESS;
}

/* ---- sorting ---- */

struct key {
    uint32_t key;
    int32_t at;
};

/* Unsigned numbers in the order of the values; NaN is the largest, both zeros are one. */
static uint32_t key_of(float x, bool descending) {
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    if (x != x) return UINT32_MAX;
    if (x == 0.0f) bits = 0;
    bits = bits >> 31 ? ~bits : bits | 0x80000000u;
    return descending ? ~bits : bits;
}

static void insertion_sort(struct key *k, int64_t n) {
    for (int64_t i = 1; i < n; i++) {
        const struct key x = k[i];
        int64_t j = i;
        for (; j > 0 && k[j - 1].key > x.key; j--) k[j] = k[j - 1];
        k[j] = x;
    }
}

/* By bytes from the least on, each pass keeping the order of the one before. A byte that all keys
 * have in common needs no pass. The result is in k or in other; returned is where. */
static struct key *radix_sort(struct key *k, struct key *other, int64_t n) {
    uint32_t count[4][256] = {{0}};
    for (int64_t i = 0; i < n; i++) {
        for (int b = 0; b < 4; b++) count[b][k[i].key >> (8 * b) & 255]++;
    }
    for (int b = 0; b < 4; b++) {
        if ((int64_t)count[b][k[0].key >> (8 * b) & 255] == n) continue;
        for (uint32_t v = 0, at = 0, c; v < 256; v++, at += c) {
            c = count[b][v];
            count[b][v] = at;
        }
        for (int64_t i = 0; i < n; i++) other[count[b][k[i].key >> (8 * b) & 255]++] = k[i];
        struct key *const swap = k;
        k = other;
        other = swap;
    }
    return k;
}

enum {
    FEW = 24,
    MANY = 256
}; /* between them keys are counted; up to FEW, radix_sort does not pay */

/* key_of as signed numbers, without branches. */
static void signed_keys(int64_t n, const float *x, bool descending, int32_t *keys) {
    const uint32_t turn = descending ? UINT32_MAX : 0;
    for (int64_t i = 0; i < n; i++) {
        uint32_t bits;
        memcpy(&bits, &x[i], sizeof bits);
        const uint32_t size = bits & 0x7fffffffu, minus = size ? bits >> 31 : 0;
        const uint32_t key = (size ^ (0 - minus)) ^ turn;
        keys[i] = (int32_t)(size > 0x7f800000u ? 0x7fffffffu : key);
    }
}

/* Positions by counting for each key those below it: with vectors that is the fastest for a
 * router's few hundred. Of equal keys the first comes first: `taken` counts those that were
 * placed. */
static void sort_by_counts(const struct row *row, int64_t n, bool descending, int32_t *work,
                           int32_t *d) {
    int32_t *const keys = work, *const below = keys + n, *const taken = below + n;
    float values[MANY];
    for (int32_t i = 0; i < n && !row->plain; i++) values[i] = value_at(row, i);
    signed_keys(n, row->plain ? row->plain : values, descending, keys);
    sheaf__cpu_kernels()->elements.below(n, keys, below);
    memset(taken, 0, (size_t)n * sizeof *taken);
    for (int32_t i = 0; i < n; i++) d[below[i] + taken[below[i]]++] = i;
}

static size_t argsort_work(const struct sheaf_tensor *dst, int nth) {
    return (size_t)nth * 2 * (size_t)dst->ne[0] * sizeof(struct key);
}

/* a [i, j, h, s] -> dst I32 [i, j, h, s] */
static enum sheaf_status op_argsort(struct sheaf_tensor *dst, int ith, int nth,
                                    struct sheaf__cpu_sync *sync, void *work) {
    const struct sheaf_tensor *a = dst->src[0];
    const int64_t n = dst->ne[0];
    const bool descending = dst->op_params[0] == (int32_t)SHEAF_SORT_ORDER_DESC;
    struct key *own = (struct key *)work + (size_t)ith * 2 * (size_t)n;
    int64_t first, last;
    sheaf__cpu_share(sheaf_nrows(dst), ith, nth, &first, &last);
    (void)sync;
    for (int64_t r = first; r < last; r++) {
        struct sheaf__cpu_row at = sheaf__cpu_row_at(dst->ne, r);
        const struct row row = row_of(a, sheaf__cpu_row_data(a, at));
        int32_t *d = (int32_t *)(void *)sheaf__cpu_row_data(dst, at);
        if (n > FEW && n <= MANY) {
            sort_by_counts(&row, n, descending, (int32_t *)(void *)own, d);
            continue;
        }
        struct key *k = own;
        for (int32_t i = 0; i < n; i++)
            k[i] = (struct key){key_of(value_at(&row, i), descending), i};
        if (n <= FEW) {
            insertion_sort(k, n);
        } else {
            k = radix_sort(k, own + n, n);
        }
        for (int64_t i = 0; i < n; i++) d[i] = k[i].at;
    }
    return SHEAF_STATUS_SUCCESS;
}

/* ---- counting ---- */

static int32_t int_at(const struct sheaf_tensor *t, struct sheaf__cpu_row row, int64_t i) {
    int32_t x;
    memcpy(&x, sheaf__cpu_row_data(t, row) + (size_t)i * t->nb[0], sizeof x);
    return x;
}

static size_t count_work(const struct sheaf_tensor *dst, int nth) {
    (void)dst;
    return (size_t)nth * sizeof(int64_t);
}

/* a and b I32 [i, j, h, s] -> dst I64 [1] */
static enum sheaf_status op_count_equal(struct sheaf_tensor *dst, int ith, int nth,
                                        struct sheaf__cpu_sync *sync, void *work) {
    const struct sheaf_tensor *a = dst->src[0], *b = dst->src[1];
    int64_t *counts = work, first, last, n = 0;
    sheaf__cpu_share(sheaf_nrows(a), ith, nth, &first, &last);
    for (int64_t r = first; r < last; r++) {
        const struct sheaf__cpu_row at = sheaf__cpu_row_at(a->ne, r);
        for (int64_t i = 0; i < a->ne[0]; i++) n += int_at(a, at, i) == int_at(b, at, i);
    }
    counts[ith] = n;
    sheaf__cpu_barrier(sync, nth);
    for (int j = 1; j < nth && ith == 0; j++) n += counts[j];
    if (ith == 0) memcpy(dst->data, &n, sizeof n);
    return SHEAF_STATUS_SUCCESS;
}

SHEAF__CPU_OP(COUNT_EQUAL) = {.fn = op_count_equal, .work_size = count_work, .measure = 1};
SHEAF__CPU_OP(ARGMAX) = {.fn = op_argmax, .measure = 1};
SHEAF__CPU_OP(TOP_K) = {.fn = op_top_k, .measure = 1};
SHEAF__CPU_OP(ARGSORT) = {.fn = op_argsort, .work_size = argsort_work};
