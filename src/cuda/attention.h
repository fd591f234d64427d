/* What the attention kernels share. */
#ifndef SHEAF_CUDA_ATTENTION_H
#define SHEAF_CUDA_ATTENTION_H

#include "cuda/device.h"

/* q F32 [d, n, g.r, s], k [d, t, g, s], v [e, t, g, s], mask [t, >=n, 1|g.r, 1|s] or data NULL ->
 * dst F32 [e, g.r, n, s] */
struct Attention {
    View dst, q, k, v, mask;
    float scale, max_bias, softcap;
    int64_t base, n_head; /* head h of the slice is head base + h of n_head (ALiBi) */
};

/* With tensor cores, for many queries of F16 keys and values; false: not for this one. */
bool sheaf__cuda_attention_tiles(struct sheaf__cuda_queue *q, const struct Attention *at);

#endif
