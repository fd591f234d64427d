/* What the two ways of attention share: by parts of the keys (attention.c) for few queries, by
 * lanes (attention_lanes.c) for many. */
#ifndef SHEAF_CPU_OPS_ATTENTION_H
#define SHEAF_CPU_OPS_ATTENTION_H

#include "cpu/kernels/kernels.h"
#include "cpu/ops/ops.h"

/* q F32 [d, n, g.r, s], k [d, t, g, s], v [e, t, g, s], mask [t, >=n, 1|g.r, 1|s] -> dst F32
 * [e, g.r, n, s]; sinks F32 [g.r] or NULL */
struct sheaf__attn {
    const struct sheaf__cpu_kernels *kern;
    const struct sheaf__cpu_attention *by_lanes; /* of many queries */
    const struct sheaf_tensor *q, *k, *v, *mask, *sinks;
    const struct sheaf_tensor *dst;
    int64_t d, e, t, n, heads_kv, n_s;
    struct sheaf__head_groups groups; /* query heads of one K/V head */
    int64_t rows;                     /* most that a K/V head has, see sheaf__attn_rows */
    /* Queries see different keys, as sequences that generate together do: parts of the keys that
     * each sees [n][parts]; else NULL (attention.c) */
    const bool *sees;
    float scale, softcap, max_bias;
    int64_t base, n_head;
};

struct sheaf__attn_row {
    int64_t head, query, s;
};
static inline int64_t sheaf__attn_first_head(const struct sheaf__attn *at, int64_t hk) {
    return sheaf__first_head(at->groups, at->q->ne[2], hk);
}
/* Rows of a K/V head, for each query its heads side by side. */
static inline int64_t sheaf__attn_rows(const struct sheaf__attn *at, int64_t hk) {
    return (sheaf__attn_first_head(at, hk + 1) - sheaf__attn_first_head(at, hk)) * at->n;
}
static inline struct sheaf__attn_row sheaf__attn_row(const struct sheaf__attn *at, int64_t s,
                                                     int64_t hk, int64_t m) {
    const int64_t first = sheaf__attn_first_head(at, hk);
    const int64_t heads = sheaf__attn_first_head(at, hk + 1) - first;
    return (struct sheaf__attn_row){first + m % heads, m / heads, s};
}

/* Where row r of q and of dst lie, and the slope of its mask. */
const float *sheaf__attn_q(const struct sheaf__attn *at, struct sheaf__attn_row r, float *buf);
float *sheaf__attn_dst(const struct sheaf__attn *at, struct sheaf__attn_row r);
float sheaf__attn_slope(const struct sheaf__attn *at, struct sheaf__attn_row r);

/* What the row's sum of values is multiplied by: the softmax's largest score and sum, and the sink
 * of the head, which has no value. */
float sheaf__attn_factor(const struct sheaf__attn *at, struct sheaf__attn_row r, float max,
                         float sum);

/* Row t0 of head hk of K or V; the next one lies nb[1] behind it. */
static inline const char *sheaf__attn_cache(const struct sheaf_tensor *x, int64_t s, int64_t hk,
                                            int64_t t0) {
    return (const char *)x->data + (size_t)t0 * x->nb[1] + (size_t)hk * x->nb[2] +
           (size_t)s * x->nb[3];
}
/* Rows [t0, t0 + n) of head hk of K or V as floats, `stride` apart. True if all are finite. */
bool sheaf__attn_load(const struct sheaf__attn *at, const struct sheaf_tensor *x, int64_t s,
                      int64_t hk, int64_t t0, int64_t n, float *buf, int64_t stride);

/* Whose mask rows are one: two rows with equal numbers have the same. */
int64_t sheaf__attn_mask_id(const struct sheaf__attn *at, struct sheaf__attn_row r);
enum sheaf__attn_mask {
    SHEAF__ATTN_PLAIN /* zeros */,
    SHEAF__ATTN_CLOSED /* -inf */,
    SHEAF__ATTN_MIXED
};
/* The mask of a row for keys [t0, t0 + n), from its bits alone: one that is mixed may turn out
 * closed. */
enum sheaf__attn_mask sheaf__attn_mask_kind(const struct sheaf__attn *at, struct sheaf__attn_row r,
                                            int64_t t0, int64_t n);
/* The same, at buf as floats if it is mixed. */
enum sheaf__attn_mask sheaf__attn_mask(const struct sheaf__attn *at, struct sheaf__attn_row r,
                                       int64_t t0, int64_t n, float *buf);

/* By lanes: true if the node is done so. The number of queries and the keys that they see decide,
 * so it is the same for any team and split. */
bool sheaf__attn_by_lanes(const struct sheaf__attn *at);
size_t sheaf__attn_lanes_size(const struct sheaf__attn *at); /* bytes of work of one thread */
void sheaf__attn_lanes(const struct sheaf__attn *at, struct sheaf__cpu_sync *sync, int ith, int nth,
                       void *work);

#endif
