/* Which elements of a row are the largest, and their order: ARGMAX, TOP_K, ARGSORT.
 *
 * Elements of a row have a strict order: a larger value is better, of equal values the lower
 * position, NaN is worse than all else. A key has the order of its element in 64 bits, so rows of any
 * length are taken in parts: a block keeps the best k keys of a part, and blocks of the next level
 * theirs, until one part is left. The levels' keys lie in the scratch. */
#include "cuda/device.h"

enum {
    PART = 1024,     /* keys that a block has in shared memory */
    MAX_SORTED = 256 /* the largest k: each level leaves a quarter of the keys at most */
};

/* ---- keys; 0: none ---- */

HD uint64_t key_of(float value, uint32_t position) {
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    bits = bits >> 31 ? ~bits : bits | 0x80000000u; /* of negative values the order turns round */
    if (value == 0.0f) bits = 0x80000000u;          /* -0 is 0 */
    if (value != value) bits = 0;
    return (uint64_t)bits << 32 | (uint32_t)~position;
}

struct Level {
    View dst, a;
    const uint64_t *in; /* [n_rows, n] of the level before; NULL: the elements of a */
    uint64_t *out;      /* [n_rows, n_parts, k]; NULL: the last level, which writes dst */
    int64_t n_rows, n, n_parts;
    int k, size; /* size: of a part, a power of two */
    bool argmax;
};

static __device__ __forceinline__ uint64_t key_at(const Level &l, int64_t row, int64_t i) {
    if (i >= l.n) return 0;
    if (l.in) return l.in[row * l.n + i];
    const char *x = row_data(l.a, row_at(l.a.ne, row)) + (size_t)i * l.a.nb[0];
    return key_of(load_plain(l.a.type, x), (uint32_t)i);
}

/* The largest first. The keys are there for all threads before and after. */
static __device__ void find_largest(uint64_t *keys, int size) {
    for (int half = size / 2; half > 0; half /= 2) {
        for (int i = (int)threadIdx.x; i < half; i += (int)blockDim.x)
            if (keys[i + half] > keys[i]) keys[i] = keys[i + half];
        __syncthreads(); /* the larger halves are there */
    }
}

/* In falling order: runs of doubling length, by turns falling and rising, are merged. */
static __device__ void sort_keys(uint64_t *keys, int size) {
    for (int run = 2; run <= size; run *= 2) {
        for (int step = run / 2; step > 0; step /= 2) {
            for (int t = (int)threadIdx.x; t < size / 2; t += (int)blockDim.x) {
                const int i = 2 * t - (t & (step - 1));
                const bool falls = (i & run) == 0;
                const uint64_t x = keys[i], y = keys[i + step];
                if ((x < y) != falls) continue;
                keys[i] = y;
                keys[i + step] = x;
            }
            __syncthreads(); /* the pairs are in order */
        }
    }
}

static __device__ __forceinline__ void write_key(const Level &l, int64_t item, int j,
                                                 uint64_t key) {
    if (l.out) {
        l.out[item * l.k + j] = key;
        return;
    }
    char *d = l.argmax ? l.dst.data + (size_t)item * l.dst.nb[0]
                       : row_data(l.dst, row_at(l.a.ne, item)) + (size_t)j * l.dst.nb[0];
    *(int *)(void *)d = (int)~(uint32_t)key;
}

static __global__ void __launch_bounds__(512) best_kernel(Level l) {
    __shared__ uint64_t keys[PART];
    next_may_start();
    previous_done();
    for (int64_t item = blockIdx.x; item < l.n_rows * l.n_parts; item += gridDim.x) {
        const Divided part = divided(item, l.n_parts);
        const int64_t row = part.quotient, first = part.rest * PART;
        for (int i = (int)threadIdx.x; i < l.size; i += (int)blockDim.x)
            keys[i] = key_at(l, row, first + i);
        __syncthreads(); /* the part's keys are there */
        if (l.k == 1)
            find_largest(keys, l.size);
        else
            sort_keys(keys, l.size);
        for (int j = (int)threadIdx.x; j < l.k; j += (int)blockDim.x)
            write_key(l, item, j, keys[j]);
        __syncthreads(); /* the keys have been read */
    }
}

static int64_t parts_of(int64_t n) { return (n + PART - 1) / PART; }

static bool in_levels(const struct sheaf_tensor *dst) {
    return dst->op == SHEAF_OP_ARGMAX || dst->ne[0] <= MAX_SORTED;
}

static int64_t k_of(const struct sheaf_tensor *dst) {
    return dst->op == SHEAF_OP_ARGMAX ? 1 : dst->ne[0];
}

/* Keys of the first level, and of the second; the third writes over the first. */
static size_t best_work(const struct sheaf__cuda_queue *, const struct sheaf_tensor *dst) {
    const int64_t n = dst->src[0]->ne[0], rows = sheaf_nrows(dst->src[0]), k = k_of(dst);
    if (n <= PART || !in_levels(dst)) return 0;
    const int64_t first = parts_of(n) * k;
    return (size_t)(rows * (first + parts_of(first) * k)) * sizeof(uint64_t);
}

static enum sheaf_status launch_levels(struct sheaf__cuda_queue *q,
                                       const struct sheaf_tensor *dst) {
    const struct sheaf_tensor *a = dst->src[0];
    uint64_t *work[2] = {(uint64_t *)(void *)q->work, NULL};
    Level l;
    memset(&l, 0, sizeof l);
    l.dst = sheaf__cuda_view(dst);
    l.a = sheaf__cuda_view(a);
    l.argmax = dst->op == SHEAF_OP_ARGMAX;
    l.k = (int)k_of(dst);
    l.n = a->ne[0];
    l.n_rows = sheaf_nrows(a);
    work[1] = work[0] + l.n_rows * parts_of(l.n) * l.k;
    for (int level = 0;; level++) {
        l.n_parts = parts_of(l.n);
        l.out = l.n_parts > 1 ? work[level % 2] : NULL;
        for (l.size = 2; l.size < PART && l.size < l.n;) l.size *= 2;
        const unsigned threads = l.size < 64 ? 32 : (unsigned)l.size / 2;
        CUDA_LAUNCH_AHEAD(q->ahead, best_kernel, sheaf__cuda_blocks(l.n_rows * l.n_parts, 1),
                          threads, 0, q->stream, l);
        if (!l.out) break;
        l.in = l.out;
        l.n = l.n_parts * l.k;
    }
    return sheaf__cuda_launched(q, dst);
}

/* ---- a k too large for that: k passes of one block ---- */

struct Candidate {
    float value;
    int index; /* -1: none */
};

HD bool is_better(const Candidate &a, const Candidate &b) {
    if (b.index < 0) return a.index >= 0;
    if (a.index < 0) return false;
    if (a.value > b.value) return true;
    if (a.value < b.value) return false;
    const bool a_nan = a.value != a.value, b_nan = b.value != b.value;
    if (a_nan != b_nan) return b_nan;
    return a.index < b.index;
}

static __device__ __forceinline__ Candidate warp_best(Candidate c) {
    for (int d = 16; d > 0; d /= 2) {
        Candidate other;
        other.value = __shfl_xor_sync(FULL_WARP, c.value, d);
        other.index = __shfl_xor_sync(FULL_WARP, c.index, d);
        if (is_better(other, c)) c = other;
    }
    return c;
}

/* The best of the row after `last` (index -1: of all), the same for every thread. */
static __device__ Candidate best_after(const View &a, const char *x, Candidate last,
                                       Candidate *scratch) {
    Candidate best = {0.0f, -1};
    for (int64_t i = threadIdx.x; i < a.ne[0]; i += blockDim.x) {
        const Candidate c = {load_plain(a.type, x + (size_t)i * a.nb[0]), (int)i};
        if ((last.index < 0 || is_better(last, c)) && is_better(c, best)) best = c;
    }
    best = warp_best(best);
    __syncthreads(); /* the last pass has read what the warps found */
    if (threadIdx.x % 32 == 0) scratch[threadIdx.x / 32] = best;
    __syncthreads(); /* what the warps found is there */
    best.index = -1;
    if (threadIdx.x % 32 < blockDim.x / 32) best = scratch[threadIdx.x % 32];
    return warp_best(best);
}

/* a [i, j, h, s] -> the k best positions of each row: the best, then the best of what is worse than
 * that one, and so on. */
static __global__ void __launch_bounds__(1024) passes_kernel(View dst, View a, int64_t k) {
    __shared__ Candidate scratch[32];
    for (int64_t row = blockIdx.x; row < n_rows(a); row += gridDim.x) {
        const Row at = row_at(a.ne, row);
        const char *x = row_data(a, at);
        char *d = row_data(dst, at);
        Candidate last = {0.0f, -1};
        for (int64_t j = 0; j < k; j++) {
            last = best_after(a, x, last, scratch);
            if (threadIdx.x == 0) *(int *)(void *)(d + (size_t)j * dst.nb[0]) = last.index;
        }
    }
}

static enum sheaf_status launch_best(struct sheaf__cuda_queue *q, const struct sheaf_tensor *dst) {
    const struct sheaf_tensor *a = dst->src[0];
    if (in_levels(dst)) return launch_levels(q, dst);
    CUDA_LAUNCH(passes_kernel, sheaf__cuda_blocks(sheaf_nrows(a), 1),
                sheaf__cuda_row_threads(a->ne[0]), 0, q->stream, sheaf__cuda_view(dst),
                sheaf__cuda_view(a), dst->ne[0]);
    return sheaf__cuda_launched(q, dst);
}

/* ---- argsort: a thread counts the elements before its own, which is the place of it ---- */

HD bool is_before(const Candidate &a, const Candidate &b, bool descending) {
    const bool a_nan = a.value != a.value, b_nan = b.value != b.value;
    if (a_nan != b_nan) return b_nan;
    if (a.value > b.value) return descending;
    if (a.value < b.value) return !descending;
    return a.index < b.index;
}

static __global__ void __launch_bounds__(1024) argsort_kernel(View dst, View a, bool descending) {
    for (int64_t row = blockIdx.x; row < n_rows(a); row += gridDim.x) {
        const Row at = row_at(a.ne, row);
        const char *x = row_data(a, at);
        int *d = (int *)(void *)row_data(dst, at);
        for (int i = (int)threadIdx.x; i < (int)a.ne[0]; i += (int)blockDim.x) {
            const Candidate own = {load_plain(a.type, x + (size_t)i * a.nb[0]), i};
            int place = 0;
            for (int j = 0; j < (int)a.ne[0]; j++) {
                const Candidate other = {load_plain(a.type, x + (size_t)j * a.nb[0]), j};
                place += is_before(other, own, descending) ? 1 : 0;
            }
            d[place] = i;
        }
    }
}

bool sheaf__cuda_sort_fits(const struct sheaf_tensor *dst) { return dst->ne[0] <= 4096; }

static enum sheaf_status launch_argsort(struct sheaf__cuda_queue *q,
                                        const struct sheaf_tensor *dst) {
    const struct sheaf_tensor *a = dst->src[0];
    unsigned threads = 32;
    while (threads < 512 && (int64_t)threads < a->ne[0]) threads *= 2;
    CUDA_LAUNCH_PLAIN(argsort_kernel, sheaf__cuda_blocks(sheaf_nrows(a), 1), threads, 0, q->stream,
                      sheaf__cuda_view(dst), sheaf__cuda_view(a),
                      dst->op_params[0] == SHEAF_SORT_ORDER_DESC);
    return sheaf__cuda_launched(q, dst);
}

SHEAF__CUDA_OP(ARGMAX) = {launch_best, best_work};
SHEAF__CUDA_OP(TOP_K) = {launch_best, best_work};
SHEAF__CUDA_OP(ARGSORT) = {launch_argsort, NULL};
