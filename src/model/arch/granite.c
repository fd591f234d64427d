/* Architectures `granite`, `granitemoe` and `granitehybrid`: as llama, with factors on the
 * embeddings, on what each half of a layer adds, on the scores of attention, and on the logits;
 * experts that every token uses beside those that the router chooses. In the hybrid most layers
 * have a state (Mamba-2) in place of attention. Source of the facts: the Granite 3.0 model cards
 * and the converter of GGUF files. */
#include "model/arch/arch.h"
#include "model/arch/builder.h"

static enum sheaf_status read_hparams(const struct sheaf_gguf *gguf, struct sheaf__hparams *hp) {
    const char *arch = hp->arch->name;
    const struct {
        const char *suffix;
        float *out;
    } scales[] = {
        {"embedding_scale", &hp->embd_scale},
        {"residual_scale", &hp->residual_scale},
        {"attention.scale", &hp->attn_scale},
        {"logit_scale", &hp->logit_scale},
    };
    enum sheaf_status status = SHEAF_STATUS_SUCCESS;
    bool rotated = true;
    for (size_t i = 0; !status && i < sizeof scales / sizeof *scales; i++)
        status = sheaf__hparams_float(gguf, arch, scales[i].suffix, 1e-6, 1e6, scales[i].out);
    if (!status) status = sheaf__hparams_bool(gguf, arch, "rope.scaling.finetuned", &rotated);
    hp->no_rope = !rotated;
    if (!status && hp->n_expert)
        status = sheaf__hparams_int(gguf, arch, "expert_shared_feed_forward_length", 0, 1 << 24,
                                    &hp->n_ff_shared);
    return status;
}

static enum sheaf_status read_hybrid(const struct sheaf_gguf *gguf, struct sheaf__hparams *hp) {
    const enum sheaf_status status = read_hparams(gguf, hp);
    return status ? status : sheaf__hparams_state(gguf, hp);
}

static struct sheaf_tensor *attention(struct sheaf__builder *b, int64_t il,
                                      struct sheaf_tensor *x) {
    return sheaf__build_plain_attention(b, il, x, SHEAF_ROPE_TYPE_NORMAL);
}

static struct sheaf_tensor *attention_or_state(struct sheaf__builder *b, int64_t il,
                                               struct sheaf_tensor *x) {
    if (!sheaf__hparams_is_recurrent(b->hp, il)) return attention(b, il, x);
    struct sheaf_tensor *y = sheaf__build_norm(b, x, b->model->layers[il].w[SHEAF__W_ATTN_NORM]);
    y = sheaf__build_state(b, il, y);
    return sheaf__build_half(b, sheaf__build_residual(b, sheaf__build_wanted(b, il, x), y));
}

const struct sheaf__arch sheaf__arch_granitehybrid = {
    .name = "granitehybrid",
    .needs = SHEAF__W_BIT(ATTN_NORM) | SHEAF__W_BIT(FFN_NORM),
    .attends = SHEAF__W_BIT(Q) | SHEAF__W_BIT(K) | SHEAF__W_BIT(V) | SHEAF__W_BIT(O),
    .scans = SHEAF__W_STATE,
    .dense = SHEAF__W_DENSE,
    .mixture = SHEAF__W_MIXTURE,
    .model_needs = SHEAF__W_MODEL,
    .model_allows = SHEAF__W_OF_MODEL(OUTPUT) | SHEAF__W_OF_MODEL(ROPE_FREQS),
    .bpe = true,
    .read_hparams = read_hybrid,
    .attention = attention_or_state,
    .ffn = sheaf__build_plain_ffn,
};

const struct sheaf__arch sheaf__arch_granite = {
    .name = "granite",
    .needs = SHEAF__W_ATTENTION | SHEAF__W_BIT(FFN_NORM),
    .dense = SHEAF__W_DENSE,
    .allows = SHEAF__W_BIT(QKV) | SHEAF__W_BIT(O_BIAS),
    .model_needs = SHEAF__W_MODEL,
    .model_allows = SHEAF__W_OF_MODEL(OUTPUT) | SHEAF__W_OF_MODEL(ROPE_FREQS),
    .read_hparams = read_hparams,
    .attention = attention,
    .ffn = sheaf__build_plain_ffn,
};

const struct sheaf__arch sheaf__arch_granitemoe = {
    .name = "granitemoe",
    .needs = SHEAF__W_ATTENTION | SHEAF__W_BIT(FFN_NORM),
    .mixture = SHEAF__W_MIXTURE,
    .allows = SHEAF__W_BIT(QKV) | SHEAF__W_BIT(O_BIAS),
    .model_needs = SHEAF__W_MODEL,
    .model_allows = SHEAF__W_OF_MODEL(OUTPUT) | SHEAF__W_OF_MODEL(ROPE_FREQS),
    .read_hparams = read_hparams,
    .attention = attention,
    .ffn = sheaf__build_plain_ffn,
};
