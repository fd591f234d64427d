/* Architecture `mamba2` (Mamba-2, Codestral Mamba): every layer is a norm and a state, without
 * attention or feed-forward.
 * Source of the facts: the Mamba-2 paper (arXiv 2405.21060) and the converter of GGUF files, which
 * stores -exp of A's logarithm as ssm_a. */
#include "model/arch/arch.h"
#include "model/arch/builder.h"

static enum sheaf_status read_hparams(const struct sheaf_gguf *gguf, struct sheaf__hparams *hp) {
    return sheaf__hparams_state(gguf, hp);
}

static struct sheaf_tensor *layer(struct sheaf__builder *b, int64_t il, struct sheaf_tensor *x) {
    struct sheaf_tensor *y = sheaf__build_norm(b, x, b->model->layers[il].w[SHEAF__W_ATTN_NORM]);
    y = sheaf__build_state(b, il, y);
    return sheaf__build_half(b, sheaf_add(b->ctx, sheaf__build_wanted(b, il, x), y));
}

const struct sheaf__arch sheaf__arch_mamba2 = {
    .name = "mamba2",
    .needs = SHEAF__W_BIT(ATTN_NORM),
    .scans = SHEAF__W_STATE,
    .model_needs = SHEAF__W_MODEL,
    .model_allows = SHEAF__W_OF_MODEL(OUTPUT),
    .bpe = true,
    .read_hparams = read_hparams,
    .attention = layer,
};
