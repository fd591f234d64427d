/* Selection and merging of candidates; see candidates.h.
 *
 * While selecting, data is a heap with the worst kept candidate at the root, so a logit that is not
 * among the best costs one comparison; at the end the heap is sorted in place. */
#include "sheaf/candidates.h"

#include <float.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "model/text/exp.h"

enum sheaf_status sheaf_candidates_new(size_t cap, struct sheaf_candidates **out) {
    *out = NULL;
    size_t bytes;
    struct sheaf_candidates *c = NULL;
    if (!__builtin_mul_overflow(cap, sizeof *c->data, &bytes) &&
        !__builtin_add_overflow(bytes, sizeof *c, &bytes))
        c = malloc(bytes);
    if (!c)
        return sheaf_set_error(SHEAF_STATUS_ALLOC_FAILED,
                               "sampler: cannot allocate room for %zu candidates", cap);
    *c = (struct sheaf_candidates){.cap = cap, .data = (struct sheaf_candidate *)(c + 1)};
    sheaf_candidates_clear(c);
    *out = c;
    return SHEAF_STATUS_SUCCESS;
}

void sheaf_candidates_free(struct sheaf_candidates *c) { free(c); }

void sheaf_candidates_clear(struct sheaf_candidates *c) {
    c->n = c->n_seen = 0;
    c->max = -INFINITY;
    c->sum_exp = 0;
}

/* Cody and Waite: x = k ln 2 + r with |r| <= ln 2 / 2, then the Taylor series of exp(r). Only
 * additions and products, no contraction: the same everywhere. */
double sheaf__exp_negative(double x) {
    const double round = 0x1.8p52; /* adding it leaves an integer in the low bits */
    const double ln2_hi = 0x1.62e42fee00000p-1, ln2_lo = 0x1.a39ef35793c76p-33;
    if (!(x > -708.0)) return 0; /* below the normal numbers */
    double shifted = x * 0x1.71547652b82fep0 + round;
    double k = shifted - round;
    double r = (x - k * ln2_hi) - k * ln2_lo;
    double p = 1.0 / 39916800.0;
    p = p * r + 1.0 / 3628800.0;
    p = p * r + 1.0 / 362880.0;
    p = p * r + 1.0 / 40320.0;
    p = p * r + 1.0 / 5040.0;
    p = p * r + 1.0 / 720.0;
    p = p * r + 1.0 / 120.0;
    p = p * r + 1.0 / 24.0;
    p = p * r + 1.0 / 6.0;
    p = p * r + 0.5;
    p = p * r + 1.0;
    p = p * r + 1.0;
    uint64_t bits;
    memcpy(&bits, &p, sizeof bits);
    bits += (uint64_t)(int64_t)k << 52;
    memcpy(&p, &bits, sizeof p);
    return p;
}

/* a comes before b */
static inline bool better(struct sheaf_candidate a, struct sheaf_candidate b) {
    return a.logit > b.logit || (a.logit == b.logit && a.id < b.id);
}

/* Puts e at or below position i of the heap data[0..n). */
static void sift(struct sheaf_candidate *data, size_t n, size_t i, struct sheaf_candidate e) {
    for (size_t down; (down = 2 * i + 1) < n; i = down) {
        if (down + 1 < n && better(data[down], data[down + 1])) down++;
        if (!better(e, data[down])) break;
        data[i] = data[down];
    }
    data[i] = e;
}

static void offer(struct sheaf_candidates *c, struct sheaf_candidate e) {
    if (c->n < c->cap) {
        size_t i = c->n++;
        for (size_t up; i > 0 && better(c->data[up = (i - 1) / 2], e); i = up)
            c->data[i] = c->data[up];
        c->data[i] = e;
    } else if (c->n && better(e, c->data[0])) {
        sift(c->data, c->n, 0, e);
    }
}

/* The heap becomes a list, best first. */
static void sort(struct sheaf_candidates *c) {
    for (size_t n = c->n; n-- > 1;) {
        struct sheaf_candidate worst = c->data[0];
        sift(c->data, n, 0, c->data[n]);
        c->data[n] = worst;
    }
}

/* The first chunk from i on that has a logit above `bar` or a broken one. A chunk at once, so that
 * it is compared in vectors: once the list is full, next to no chunk has one. */
enum { CHUNK = 32 };
static size_t skip_chunks(const float *logits, size_t i, size_t n, float bar) {
    for (; i + CHUNK <= n; i += CHUNK) {
        int above = 0;
        for (size_t j = 0; j < CHUNK; j++) above |= !(logits[i + j] <= bar);
        if (above) break;
    }
    return i;
}

enum sheaf_status sheaf_candidates_select(struct sheaf_candidates *c, const float *logits, size_t n,
                                          int32_t first_id, bool with_sum) {
    sheaf_candidates_clear(c);
    if (first_id < 0 || n > (size_t)INT32_MAX - (size_t)first_id)
        return sheaf_set_error(SHEAF_STATUS_INVALID,
                               "sampler: ids %ld and %zu more are out of range", (long)first_id, n);
    for (size_t i = 0, look = 0; i < n; i++) {
        if (i >= look && c->n && c->n == c->cap) { /* the worst of a full list is its first */
            i = skip_chunks(logits, i, n, c->data[0].logit);
            look = i + CHUNK;
            if (i >= n) break;
        }
        float l = logits[i];
        if (!(l <= FLT_MAX)) {
            sheaf_candidates_clear(c);
            return sheaf_set_error(SHEAF_STATUS_INVALID,
                                   "sampler: the logit of token %zu is %s; the model's weights or "
                                   "its activations are broken",
                                   (size_t)first_id + i, l != l ? "not a number" : "infinite");
        }
        if (l > c->max) c->max = l;
        if (c->n < c->cap || (c->n && l > c->data[0].logit)) /* ids ascend: equals come too late */
            offer(c, (struct sheaf_candidate){first_id + (int32_t)i, l});
    }
    c->n_seen = n;
    if (with_sum && c->max > -INFINITY) {
        double sum[4] = {0};
        size_t i = 0;
        for (; i + 4 <= n; i += 4)
            for (size_t j = 0; j < 4; j++)
                sum[j] += sheaf__exp_negative((double)logits[i + j] - (double)c->max);
        for (; i < n; i++) sum[0] += sheaf__exp_negative((double)logits[i] - (double)c->max);
        c->sum_exp = (sum[0] + sum[1]) + (sum[2] + sum[3]);
    }
    sort(c);
    return SHEAF_STATUS_SUCCESS;
}

static void add_totals(struct sheaf_candidates *c, size_t n_seen, float max, double sum) {
    c->n_seen += n_seen;
    if (max > c->max) {
        double old = c->max > -INFINITY ? (double)c->max - (double)max : -INFINITY;
        c->sum_exp = c->sum_exp * sheaf__exp_negative(old) + sum;
        c->max = max;
    } else if (max > -INFINITY) {
        c->sum_exp += sum * sheaf__exp_negative((double)max - (double)c->max);
    }
}

static struct sheaf_candidate from_list(const void *list, size_t i) {
    return ((const struct sheaf_candidate *)list)[i];
}

static uint32_t get_u32(const unsigned char *p) {
    return (uint32_t)p[0] | (uint32_t)p[1] << 8 | (uint32_t)p[2] << 16 | (uint32_t)p[3] << 24;
}

static void put_u32(unsigned char *p, uint32_t v) {
    for (int i = 0; i < 4; i++) p[i] = (unsigned char)(v >> 8 * i);
}

static float get_f32(const unsigned char *p) {
    uint32_t bits = get_u32(p);
    float f;
    memcpy(&f, &bits, sizeof f);
    return f;
}

static void put_f32(unsigned char *p, float f) {
    uint32_t bits;
    memcpy(&bits, &f, sizeof bits);
    put_u32(p, bits);
}

static struct sheaf_candidate from_block(const void *block, size_t i) {
    const unsigned char *p = (const unsigned char *)block + 8 * i;
    return (struct sheaf_candidate){(int32_t)get_u32(p), get_f32(p + 4)};
}

/* Both lists are sorted. Their best are as many as fit; from the back, so that it works in place.
 */
static void merge(struct sheaf_candidates *c, const void *list, size_t n,
                  struct sheaf_candidate (*get)(const void *, size_t)) {
    size_t i = 0, j = 0;
    while (i + j < c->cap && (i < c->n || j < n)) {
        if (i < c->n && (j == n || better(c->data[i], get(list, j))))
            i++;
        else
            j++;
    }
    c->n = i + j;
    for (size_t k = c->n; j > 0; k--) {
        struct sheaf_candidate e = get(list, j - 1);
        if (i > 0 && better(e, c->data[i - 1])) {
            c->data[k - 1] = c->data[--i];
        } else {
            c->data[k - 1] = e;
            j--;
        }
    }
}

void sheaf_candidates_merge(struct sheaf_candidates *c, const struct sheaf_candidates *part) {
    add_totals(c, part->n_seen, part->max, part->sum_exp);
    merge(c, part->data, part->n, from_list);
}

/* Block: u32 magic, u32 n, u64 n_seen, f64 sum_exp, f32 max, u32 zero, then n of {i32 id, f32
 * logit} and zeros up to cap. */
enum { BLOCK_MAGIC = 0x31444353 /* "SCD1" */, BLOCK_HEAD = 32 };

size_t sheaf_candidates_packed_size(size_t cap) { return BLOCK_HEAD + 8 * cap; }

void sheaf_candidates_pack(const struct sheaf_candidates *c, void *block) {
    unsigned char *p = block;
    uint64_t sum;
    memset(p, 0, sheaf_candidates_packed_size(c->cap));
    memcpy(&sum, &c->sum_exp, sizeof sum);
    put_u32(p, BLOCK_MAGIC);
    put_u32(p + 4, (uint32_t)c->n);
    put_u32(p + 8, (uint32_t)c->n_seen);
    put_u32(p + 12, (uint32_t)((uint64_t)c->n_seen >> 32));
    put_u32(p + 16, (uint32_t)sum);
    put_u32(p + 20, (uint32_t)(sum >> 32));
    put_f32(p + 24, c->max);
    for (size_t i = 0; i < c->n; i++) {
        put_u32(p + BLOCK_HEAD + 8 * i, (uint32_t)c->data[i].id);
        put_f32(p + BLOCK_HEAD + 8 * i + 4, c->data[i].logit);
    }
}

enum sheaf_status sheaf_candidates_merge_packed(struct sheaf_candidates *c, const void *block,
                                                size_t size) {
    const unsigned char *p = block;
    const char *wrong = NULL;
    size_t n = 0;
    if (size < BLOCK_HEAD || get_u32(p) != BLOCK_MAGIC) {
        wrong = "it does not begin as one";
    } else {
        n = get_u32(p + 4);
        if (n > (size - BLOCK_HEAD) / 8) wrong = "it holds more candidates than fit";
    }
    if (wrong) goto out;
    uint64_t seen = get_u32(p + 8) | (uint64_t)get_u32(p + 12) << 32;
    uint64_t bits = get_u32(p + 16) | (uint64_t)get_u32(p + 20) << 32;
    double sum;
    memcpy(&sum, &bits, sizeof sum);
    float max = get_f32(p + 24);
    if (seen > INT32_MAX || n > seen || !(max <= FLT_MAX) || !(sum >= 0) || !(sum <= DBL_MAX))
        wrong = "its totals are impossible";
    const unsigned char *list = p + BLOCK_HEAD;
    for (size_t i = 0; !wrong && i < n; i++) {
        struct sheaf_candidate e = from_block(list, i);
        if (e.id < 0 || !(e.logit <= max)) wrong = "a candidate is impossible";
        if (i && !wrong && !better(from_block(list, i - 1), e)) wrong = "it is out of order";
    }
    if (wrong) goto out;
    add_totals(c, (size_t)seen, max, sum);
    merge(c, list, n, from_block);
    return SHEAF_STATUS_SUCCESS;
out:
    return sheaf_set_error(SHEAF_STATUS_INVALID,
                           "sampler: a peer's list of candidates (%zu bytes) is damaged: %s", size,
                           wrong);
}
