/* Architecture `deepseek2` (DeepSeek V2, V3, R1; Kimi K2): multi-head latent attention with its
 * projections absorbed into queries and results, rotary pairs (2i, 2i+1), scaled by YaRN; the first
 * layers dense, the others with experts that every token uses and experts chosen out of the best
 * groups.
 * Source of the facts: the reports of DeepSeek V2 and V3 (arXiv 2405.04434, 2412.19437) and the
 * converter of GGUF files. Files of before 2025-04, which lack attn_k_b, are refused. */
#include <math.h>

#include "model/arch/arch.h"
#include "model/arch/builder.h"

/* Queries are scaled by how much longer the context became, and not rotated pairs, as YaRN would:
 * the factor that the op has for them is taken back. `log_mul` is stored times 0.1. */
static void set_scales(struct sheaf__hparams *hp, float log_mul) {
    const float log_scale = logf(1.0f / hp->freq_scale);
    const float yarn = 1 + 0.1f * log_scale;
    if (hp->ext_factor > 0) hp->attn_factor /= yarn;
    const float scale = hp->attn_factor * yarn * (1 + log_mul * log_scale);
    hp->attn_scale = scale * scale / sqrtf((float)hp->head_k);
}

static enum sheaf_status read_latent(const struct sheaf_gguf *gguf, struct sheaf__hparams *hp) {
    const char *arch = hp->arch->name;
    const struct {
        const char *suffix;
        int64_t min, max, *out;
    } ints[] = {
        {"attention.q_lora_rank", 0, 1 << 20, &hp->n_lora_q},
        {"attention.kv_lora_rank", 1, 4096, &hp->n_lora_kv},
        {"attention.key_length_mla", hp->n_rot + 1, 4096, &hp->head_k},
        {"attention.value_length_mla", 1, 4096, &hp->head_v},
    };
    enum sheaf_status status = SHEAF_STATUS_SUCCESS;
    hp->head_k = hp->head_v = 0; /* those of the cache */
    for (size_t i = 0; !status && i < sizeof ints / sizeof *ints; i++)
        status =
            sheaf__hparams_int(gguf, arch, ints[i].suffix, ints[i].min, ints[i].max, ints[i].out);
    return status;
}

/* Mistral Large 3 has this architecture, and queries that grow with the position: in steps of the
 * length, of which the first has the factor 1. */
static enum sheaf_status read_temperature(const struct sheaf_gguf *gguf,
                                          struct sheaf__hparams *hp) {
    float scale = 0;
    const enum sheaf_status status =
        sheaf__hparams_float(gguf, hp->arch->name, "attention.temperature_scale", 0, 1e3, &scale);
    if (status || scale <= 0) return status;
    return sheaf__hparams_int(gguf, hp->arch->name, "attention.temperature_length", 1, INT32_MAX,
                              &hp->n_ctx_plain);
}

static enum sheaf_status read_hparams(const struct sheaf_gguf *gguf, struct sheaf__hparams *hp) {
    const char *arch = hp->arch->name;
    float log_mul = 0;
    int64_t shared = 1;
    hp->expert_norm = false;
    enum sheaf_status status = read_latent(gguf, hp);
    if (!status) status = read_temperature(gguf, hp);
    if (!status)
        status =
            sheaf__hparams_float(gguf, arch, "rope.scaling.yarn_log_multiplier", 0, 10, &log_mul);
    if (status) return status;
    set_scales(hp, log_mul);
    if (!hp->n_expert) return status;
    status = sheaf__hparams_int(gguf, arch, "leading_dense_block_count", 0, hp->n_layer,
                                &hp->n_layer_dense);
    if (!status) status = sheaf__hparams_int(gguf, arch, "expert_shared_count", 1, 4096, &shared);
    if (!status) status = sheaf__hparams_gating(gguf, hp);
    hp->n_ff_shared = shared * hp->n_ff_expert;
    return status;
}

static struct sheaf_tensor *attention(struct sheaf__builder *b, int64_t il,
                                      struct sheaf_tensor *x) {
    const struct sheaf__rope rope = sheaf__rope_of(b->hp, SHEAF_ROPE_TYPE_NORMAL);
    struct sheaf_tensor *y = sheaf__build_norm(b, x, b->model->layers[il].w[SHEAF__W_ATTN_NORM]);
    y = sheaf__build_latent_attention(b, il, y, &rope, b->mask);
    return sheaf__build_half(b, sheaf__build_residual(b, sheaf__build_wanted(b, il, x), y));
}

const struct sheaf__arch sheaf__arch_deepseek2 = {
    .name = "deepseek2",
    .needs = SHEAF__W_LATENT | SHEAF__W_BIT(FFN_NORM),
    .dense = SHEAF__W_DENSE,
    .mixture = SHEAF__W_MIXTURE,
    .allows = SHEAF__W_BIT(CHOICE_BIAS),
    .model_needs = SHEAF__W_MODEL,
    .model_allows = SHEAF__W_OF_MODEL(OUTPUT),
    .bpe = true,
    .read_hparams = read_hparams,
    .attention = attention,
    .ffn = sheaf__build_plain_ffn,
};
