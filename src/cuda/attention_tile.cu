/* Attention of prompts with tensor cores (placeholder). */
#include "cuda/attention.h"

bool sheaf__cuda_attention_tiles(struct sheaf__cuda_queue *q, const struct Attention *at) {
    (void)q;
    (void)at;
    return false;
}
