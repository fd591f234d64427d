/* The table of weights and the table of architectures. */
#include "model/arch/arch.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/text.h"

/* clang-format off */
#define D(name) SHEAF__DIM_##name
#define A SHEAF__HALF_ATTENTION
#define F SHEAF__HALF_FFN
#define N SHEAF__HALF_NONE
const struct sheaf__weight_info sheaf__weight_infos[SHEAF__W_COUNT] = {
    [SHEAF__W_ATTN_NORM] = {"attn_norm.weight", {D(EMBD)}, A, false},
    [SHEAF__W_Q] = {"attn_q.weight", {D(EMBD), D(Q)}, A, false},
    [SHEAF__W_K] = {"attn_k.weight", {D(EMBD), D(K)}, A, false},
    [SHEAF__W_V] = {"attn_v.weight", {D(EMBD), D(V)}, A, false},
    [SHEAF__W_QKV] = {"attn_qkv.weight", {D(EMBD), D(QKV)}, A, false},
    [SHEAF__W_Q_BIAS] = {"attn_q.bias", {D(Q)}, A, false},
    [SHEAF__W_K_BIAS] = {"attn_k.bias", {D(K)}, A, false},
    [SHEAF__W_V_BIAS] = {"attn_v.bias", {D(V)}, A, false},
    [SHEAF__W_QKV_BIAS] = {"attn_qkv.bias", {D(QKV)}, A, false},
    [SHEAF__W_Q_NORM] = {"attn_q_norm.weight", {D(HEAD)}, A, false},
    [SHEAF__W_K_NORM] = {"attn_k_norm.weight", {D(HEAD)}, A, false},
    [SHEAF__W_Q_NORM_WHOLE] = {"attn_q_norm.weight", {D(Q)}, A, false},
    [SHEAF__W_K_NORM_WHOLE] = {"attn_k_norm.weight", {D(K)}, A, false},
    [SHEAF__W_Q_A] = {"attn_q_a.weight", {D(EMBD), D(LORA_Q)}, A, false},
    [SHEAF__W_Q_A_NORM] = {"attn_q_a_norm.weight", {D(LORA_Q)}, A, false},
    [SHEAF__W_Q_B] = {"attn_q_b.weight", {D(LORA_Q), D(Q)}, A, false},
    [SHEAF__W_KV_A] = {"attn_kv_a_mqa.weight", {D(EMBD), D(LORA_KV_ROT)}, A, false},
    [SHEAF__W_KV_A_NORM] = {"attn_kv_a_norm.weight", {D(LORA_KV)}, A, false},
    [SHEAF__W_K_B] = {"attn_k_b.weight", {D(NOPE), D(LORA_KV), D(HEADS)}, A, false},
    [SHEAF__W_V_B] = {"attn_v_b.weight", {D(LORA_KV), D(HEAD_V), D(HEADS)}, A, false},
    [SHEAF__W_SINKS] = {"attn_sinks.weight", {D(HEADS)}, A, false},
    [SHEAF__W_O] = {"attn_output.weight", {D(O), D(EMBD)}, A, false},
    [SHEAF__W_O_BIAS] = {"attn_output.bias", {D(EMBD)}, A, false},
    [SHEAF__W_ATTN_POST_NORM] = {"post_attention_norm.weight", {D(EMBD)}, A, false},
    [SHEAF__W_FFN_NORM] = {"ffn_norm.weight", {D(EMBD)}, F, false},
    [SHEAF__W_GATE] = {"ffn_gate.weight", {D(EMBD), D(FF)}, F, false},
    [SHEAF__W_UP] = {"ffn_up.weight", {D(EMBD), D(FF)}, F, false},
    [SHEAF__W_GATE_UP] = {"ffn_up.weight", {D(EMBD), D(GATE_UP)}, F, false},
    [SHEAF__W_DOWN] = {"ffn_down.weight", {D(FF), D(EMBD)}, F, false},
    [SHEAF__W_ROUTER] = {"ffn_gate_inp.weight", {D(EMBD), D(EXPERT)}, F, true},
    [SHEAF__W_ROUTER_BIAS] = {"ffn_gate_inp.bias", {D(EXPERT)}, F, false},
    [SHEAF__W_CHOICE_BIAS] = {"exp_probs_b.bias", {D(EXPERT)}, F, false},
    [SHEAF__W_GATE_EXPERTS] = {"ffn_gate_exps.weight", {D(EMBD), D(FF_EXPERT), D(EXPERT)}, F, false},
    [SHEAF__W_UP_EXPERTS] = {"ffn_up_exps.weight", {D(EMBD), D(FF_EXPERT), D(EXPERT)}, F, false},
    [SHEAF__W_DOWN_EXPERTS] = {"ffn_down_exps.weight", {D(FF_EXPERT), D(EMBD), D(EXPERT)}, F, false},
    [SHEAF__W_GATE_EXPERTS_BIAS] = {"ffn_gate_exps.bias", {D(FF_EXPERT), D(EXPERT)}, F, true},
    [SHEAF__W_UP_EXPERTS_BIAS] = {"ffn_up_exps.bias", {D(FF_EXPERT), D(EXPERT)}, F, true},
    [SHEAF__W_DOWN_EXPERTS_BIAS] = {"ffn_down_exps.bias", {D(EMBD), D(EXPERT)}, F, true},
    [SHEAF__W_GATE_SHARED] = {"ffn_gate_shexp.weight", {D(EMBD), D(FF_SHARED)}, F, false},
    [SHEAF__W_UP_SHARED] = {"ffn_up_shexp.weight", {D(EMBD), D(FF_SHARED)}, F, false},
    [SHEAF__W_DOWN_SHARED] = {"ffn_down_shexp.weight", {D(FF_SHARED), D(EMBD)}, F, false},
    [SHEAF__W_FFN_POST_NORM] = {"post_ffw_norm.weight", {D(EMBD)}, F, false},
    [SHEAF__W_UP_BIAS] = {"ffn_up.bias", {D(FF)}, F, false},
    [SHEAF__W_DOWN_BIAS] = {"ffn_down.bias", {D(EMBD)}, F, false},
    [SHEAF__W_ATTN_OUT_NORM] = {"attn_output_norm.weight", {D(EMBD)}, A, false},
    [SHEAF__W_ATTN_OUT_NORM_BIAS] = {"attn_output_norm.bias", {D(EMBD)}, A, false},
    [SHEAF__W_LAYER_OUT_NORM] = {"layer_output_norm.weight", {D(EMBD)}, F, false},
    [SHEAF__W_LAYER_OUT_NORM_BIAS] = {"layer_output_norm.bias", {D(EMBD)}, F, false},
    [SHEAF__W_ROPE_FREQS_LAYER] = {"rope_freqs.weight", {D(ROT)}, A, false},
    [SHEAF__W_SSM_IN] = {"ssm_in.weight", {D(EMBD), D(SSM_IN)}, A, false},
    [SHEAF__W_SSM_CONV] = {"ssm_conv1d.weight", {D(TAPS), D(CHANNELS)}, A, true},
    [SHEAF__W_SSM_CONV_BIAS] = {"ssm_conv1d.bias", {D(CHANNELS)}, A, false},
    [SHEAF__W_SSM_DT_BIAS] = {"ssm_dt.bias", {D(SSM_HEADS)}, A, false},
    [SHEAF__W_SSM_A] = {"ssm_a", {D(ONE), D(SSM_HEADS)}, A, true},
    [SHEAF__W_SSM_D] = {"ssm_d", {D(ONE), D(SSM_HEADS)}, A, true},
    [SHEAF__W_SSM_NORM] = {"ssm_norm.weight", {D(SSM_GROUP), D(SSM_GROUPS)}, A, true},
    [SHEAF__W_SSM_OUT] = {"ssm_out.weight", {D(INNER), D(EMBD)}, A, false},
    [SHEAF__W_TOKEN_EMBD] = {"token_embd.weight", {D(EMBD), D(VOCAB)}, N, false},
    [SHEAF__W_OUTPUT_NORM] = {"output_norm.weight", {D(EMBD)}, N, false},
    [SHEAF__W_OUTPUT] = {"output.weight", {D(EMBD), D(VOCAB)}, N, false},
    [SHEAF__W_ROPE_FREQS] = {"rope_freqs.weight", {D(ROT)}, N, false},
    [SHEAF__W_ROPE_LONG] = {"rope_factors_long.weight", {D(ROT)}, N, false},
    [SHEAF__W_ROPE_SHORT] = {"rope_factors_short.weight", {D(ROT)}, N, false},
    [SHEAF__W_POSITIONS] = {"position_embd.weight", {D(EMBD), D(POSITIONS)}, N, true},
    [SHEAF__W_TOKEN_KINDS] = {"token_types.weight", {D(EMBD), D(KINDS)}, N, true},
    [SHEAF__W_EMBD_NORM] = {"token_embd_norm.weight", {D(EMBD)}, N, false},
    [SHEAF__W_EMBD_NORM_BIAS] = {"token_embd_norm.bias", {D(EMBD)}, N, false},
};
#undef D
#undef A
#undef F
#undef N
/* clang-format on */
static_assert(SHEAF__W_LAYER_COUNT <= 64 && SHEAF__W_COUNT - SHEAF__W_LAYER_COUNT <= 64,
              "weights of a layer, and of the model, are bits of a uint64_t");

int sheaf__weight_n_dims(enum sheaf__weight weight) {
    int n = 1;
    while (n < SHEAF__MAX_WEIGHT_DIMS && sheaf__weight_infos[weight].dims[n] != SHEAF__DIM_NONE)
        n++;
    return n;
}

bool sheaf__weight_is_of_experts(enum sheaf__weight weight) {
    const int last = sheaf__weight_n_dims(weight) - 1;
    return last > 0 && weight != SHEAF__W_ROUTER &&
           sheaf__weight_infos[weight].dims[last] == SHEAF__DIM_EXPERT;
}

bool sheaf__weight_is_factor(enum sheaf__weight weight) {
    return sheaf__weight_n_dims(weight) > 1 && !sheaf__weight_infos[weight].exact &&
           weight != SHEAF__W_TOKEN_EMBD;
}

bool sheaf__weight_is_f32(enum sheaf__weight weight) {
    const struct sheaf__weight_info *info = &sheaf__weight_infos[weight];
    return info->dims[1] == SHEAF__DIM_NONE || strstr(info->name, ".bias") != NULL ||
           weight == SHEAF__W_TOKEN_KINDS ||
           (info->exact && SHEAF__W_STATE >> (unsigned)weight & 1);
}

enum sheaf__weight sheaf__weight_find(const char *name, uint64_t of_layer, int64_t *layer) {
    int first = SHEAF__W_LAYER_COUNT, last = SHEAF__W_COUNT, found = SHEAF__W_COUNT;
    *layer = -1;
    if (strncmp(name, "blk.", 4) == 0) {
        char *end;
        if (name[4] < '0' || name[4] > '9') return SHEAF__W_COUNT;
        *layer = strtol(name + 4, &end, 10);
        if (*end != '.') return SHEAF__W_COUNT;
        name = end + 1;
        first = 0;
        last = SHEAF__W_LAYER_COUNT;
    }
    for (int w = first; w < last; w++) {
        if (strcmp(sheaf__weight_infos[w].name, name) != 0) continue;
        if (found == SHEAF__W_COUNT || (first == 0 && of_layer >> (unsigned)w & 1)) found = w;
    }
    return (enum sheaf__weight)found;
}

int64_t sheaf__dim_extent(const struct sheaf__hparams *hp, enum sheaf__dim dim) {
    const int64_t extents[SHEAF__DIM_COUNT] = {
        [SHEAF__DIM_NONE] = 1,
        [SHEAF__DIM_EMBD] = hp->n_embd,
        [SHEAF__DIM_Q] = hp->n_head * hp->head_k,
        [SHEAF__DIM_K] = hp->n_head_kv * hp->head_k,
        [SHEAF__DIM_V] = hp->n_head_kv * hp->head_v,
        [SHEAF__DIM_QKV] = (hp->n_head + hp->n_head_kv) * hp->head_k + hp->n_head_kv * hp->head_v,
        [SHEAF__DIM_O] = hp->n_head * hp->head_v,
        [SHEAF__DIM_FF] = hp->n_ff,
        [SHEAF__DIM_GATE_UP] = 2 * hp->n_ff,
        [SHEAF__DIM_FF_EXPERT] = hp->n_ff_expert,
        [SHEAF__DIM_FF_SHARED] = hp->n_ff_shared,
        [SHEAF__DIM_EXPERT] = hp->n_expert,
        [SHEAF__DIM_VOCAB] = hp->n_vocab,
        [SHEAF__DIM_HEAD] = hp->head_k,
        [SHEAF__DIM_HEADS] = hp->n_head,
        [SHEAF__DIM_LORA_Q] = hp->n_lora_q,
        [SHEAF__DIM_LORA_KV] = hp->n_lora_kv,
        [SHEAF__DIM_LORA_KV_ROT] = hp->n_lora_kv + hp->n_rot,
        [SHEAF__DIM_NOPE] = hp->head_k - hp->n_rot,
        [SHEAF__DIM_HEAD_V] = hp->head_v,
        [SHEAF__DIM_ROT] = hp->n_rot / 2,
        [SHEAF__DIM_POSITIONS] = hp->n_ctx_train,
        [SHEAF__DIM_KINDS] = hp->n_token_kinds,
        [SHEAF__DIM_TAPS] = hp->n_taps,
        [SHEAF__DIM_INNER] = hp->d_inner,
        [SHEAF__DIM_CHANNELS] = sheaf__hparams_channels(hp),
        [SHEAF__DIM_SSM_IN] = hp->d_inner + sheaf__hparams_channels(hp) + hp->n_ssm_head,
        [SHEAF__DIM_SSM_HEADS] = hp->n_ssm_head,
        [SHEAF__DIM_SSM_GROUPS] = hp->n_ssm_group,
        [SHEAF__DIM_SSM_GROUP] = hp->n_ssm_group ? hp->d_inner / hp->n_ssm_group : 0,
        [SHEAF__DIM_ONE] = 1,
    };
    return extents[dim];
}

#define ARCH(name) &sheaf__arch_##name,
static const struct sheaf__arch *const archs[] = {
#include "model/arch/archs.def"
    NULL};
#undef ARCH

const struct sheaf__arch *sheaf__arch_get(size_t i) {
    return i < sizeof archs / sizeof *archs ? archs[i] : NULL;
}

uint64_t sheaf__arch_layer_needs(const struct sheaf__hparams *hp, int64_t il) {
    const struct sheaf__arch *arch = hp->arch;
    uint64_t needs = arch->needs;
    needs |= sheaf__hparams_has_experts(hp, il) ? arch->mixture : arch->dense;
    needs |= sheaf__hparams_is_recurrent(hp, il) ? arch->scans : arch->attends;
    if (hp->n_lora_kv)
        needs |= hp->n_lora_q ? SHEAF__W_BIT(Q_A) | SHEAF__W_BIT(Q_A_NORM) | SHEAF__W_BIT(Q_B)
                              : SHEAF__W_BIT(Q);
    return sheaf__hparams_has_experts(hp, il) && hp->n_ff_shared ? needs | SHEAF__W_SHARED : needs;
}

enum sheaf_status sheaf__arch_find(const char *name, const char *path,
                                   const struct sheaf__arch **out) {
    char known[512] = "";
    struct sheaf__text text = {known, sizeof known, 0};
    for (size_t i = 0; archs[i]; i++) {
        if (strcmp(archs[i]->name, name) == 0) {
            *out = archs[i];
            return SHEAF_STATUS_SUCCESS;
        }
        sheaf__put(&text, "%s%s", i ? ", " : "", archs[i]->name);
    }
    return sheaf_set_error(SHEAF_STATUS_UNSUPPORTED,
                           "%s: architecture '%.60s' is not supported; supported are %s", path,
                           name, known);
}
