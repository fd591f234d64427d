/* The table of roles, and what a name says beside the role. */
#include "ggml/leaf.h"

#include <stdio.h>
#include <string.h>

static const struct {
    const char *part;
    enum gg_role role;
} roles[] = {
    {"attn_q", GG_ROLE_Q},
    {"attn_q_b", GG_ROLE_Q},
    {"attn_k", GG_ROLE_K},
    {"attn_v", GG_ROLE_V},
    {"attn_v_exps", GG_ROLE_V},
    {"attn_qkv", GG_ROLE_QKV},
    {"attn_gate", GG_ROLE_GATE},
    {"attn_output", GG_ROLE_O},
    {"attn_out", GG_ROLE_O},
    {"attn_o", GG_ROLE_O},
    {"attn_kv_b", GG_ROLE_LATENT_KV},
    {"attn_k_b", GG_ROLE_LATENT_K},
    {"attn_v_b", GG_ROLE_LATENT_V},
    {"attn_output_a", GG_ROLE_OUT_A},
    {"attn_output_b", GG_ROLE_OUT_B},
    {"attn_sinks", GG_ROLE_SINKS},
    {"attn_q_norm", GG_ROLE_Q_NORM},
    {"attn_k_norm", GG_ROLE_K_NORM},
    {"attn_norm_2", GG_ROLE_NORM_2},
    {"indexer.q_proj", GG_ROLE_PICK_Q},
    {"indexer.k_proj", GG_ROLE_PICK_K},
    {"cache_k", GG_ROLE_CACHE_K},
    {"cache_v", GG_ROLE_CACHE_V},
    {"ffn_up", GG_ROLE_FFN_IN},
    {"ffn_gate", GG_ROLE_FFN_IN},
    {"ffn_down", GG_ROLE_FFN_OUT},
    {"ffn_up_1", GG_ROLE_FFN_IN},
    {"ffn_down_1", GG_ROLE_FFN_OUT},
    {"ffn_up_exps", GG_ROLE_FFN_IN},
    {"ffn_gate_exps", GG_ROLE_FFN_IN},
    {"ffn_gate_up_exps", GG_ROLE_FFN_IN},
    {"ffn_down_exps", GG_ROLE_FFN_OUT},
    {"ffn_up_chexps", GG_ROLE_FFN_IN},
    {"ffn_gate_chexps", GG_ROLE_FFN_IN},
    {"ffn_down_chexps", GG_ROLE_FFN_OUT},
    {"ffn_up_shexp", GG_ROLE_FFN_IN},
    {"ffn_gate_shexp", GG_ROLE_FFN_IN},
    {"ffn_down_shexp", GG_ROLE_FFN_OUT},
    {"ffn_latent_up", GG_ROLE_FFN_LATENT_OUT},
    {"ffn_routed_up", GG_ROLE_FFN_LATENT_OUT},
    {"nextn.eh_proj", GG_ROLE_JOINED},
    {"ssm_in", GG_ROLE_STATE_IN},
    {"ssm_conv1d", GG_ROLE_CHANNELS},
    {"ssm_conv1d_q", GG_ROLE_STATE_HEADS},
    {"ssm_conv1d_k", GG_ROLE_STATE_HEADS},
    {"ssm_conv1d_v", GG_ROLE_STATE_HEADS},
    {"ssm_x", GG_ROLE_STATE_COLUMNS},
    {"ssm_dt", GG_ROLE_STATE_HEADS},
    {"ssm_a", GG_ROLE_STATE_HEADS},
    {"ssm_d", GG_ROLE_STATE_HEADS},
    {"ssm_alpha", GG_ROLE_STATE_HEADS},
    {"ssm_beta", GG_ROLE_STATE_HEADS},
    {"ssm_f_a", GG_ROLE_STATE_FIRST},
    {"ssm_f_b", GG_ROLE_STATE_HEADS},
    {"ssm_g_a", GG_ROLE_STATE_FIRST},
    {"ssm_g_b", GG_ROLE_STATE_HEADS},
    {"ssm_g", GG_ROLE_STATE_HEADS},
    {"ssm_ba", GG_ROLE_STATE_GROUPS},
    {"ssm_beta_alpha", GG_ROLE_STATE_GROUPS},
    {"ssm_norm", GG_ROLE_STATE_NORM},
    {"time_mix_key", GG_ROLE_STATE_FIRST},
    {"time_mix_value", GG_ROLE_STATE_FIRST},
    {"time_mix_receptance", GG_ROLE_STATE_HEADS},
    {"time_mix_gate", GG_ROLE_STATE_HEADS},
    {"time_mix_first", GG_ROLE_STATE_HEADS},
    {"time_mix_decay", GG_ROLE_STATE_HEADS},
    {"time_mix_decay_w2", GG_ROLE_STATE_HEADS},
    {"time_mix_ln", GG_ROLE_STATE_HEADS},
    {"time_mix_w0", GG_ROLE_STATE_HEADS},
    {"time_mix_w2", GG_ROLE_STATE_HEADS},
    {"time_mix_a0", GG_ROLE_STATE_HEADS},
    {"time_mix_a2", GG_ROLE_STATE_HEADS},
    {"time_mix_v0", GG_ROLE_STATE_HEADS},
    {"time_mix_v2", GG_ROLE_STATE_HEADS},
    {"time_mix_g2", GG_ROLE_STATE_HEADS},
    {"time_mix_k_k", GG_ROLE_STATE_HEADS},
    {"time_mix_k_a", GG_ROLE_STATE_HEADS},
    {"time_mix_r_k", GG_ROLE_STATE_HEADS},
    {"time_mix_output", GG_ROLE_STATE_OUT},
    {"channel_mix_key", GG_ROLE_FFN_IN},
    {"channel_mix_value", GG_ROLE_FFN_OUT},
    {"ssm_out", GG_ROLE_STATE_OUT},
    {"cache_r", GG_ROLE_CACHE_R},
    {"conv_states_all", GG_ROLE_CACHE_R},
    {"mamba_conv1d_state", GG_ROLE_CACHE_R},
    {"cache_s", GG_ROLE_CACHE_S},
    {"ssm_states_all", GG_ROLE_CACHE_S},
    {"mamba_ssm_states", GG_ROLE_CACHE_S},
    {"shortconv.in_proj", GG_ROLE_SHORT_IN},
    {"shortconv.conv", GG_ROLE_SHORT},
    {"shortconv.out_proj", GG_ROLE_SHORT_OUT},
    {"output", GG_ROLE_VOCABULARY},
    {"token_embd", GG_ROLE_VOCABULARY},
};

/* "_exps" of "ffn_up_exps", a part with a role: which of a layer's feed-forwards it belongs to. */
static const char *family_of(const char *part) {
    static const char *const families[] = {"_exps", "_chexps", "_shexp", "_1"};
    for (size_t i = 0; i < sizeof families / sizeof *families; i++)
        if (strstr(part, families[i])) return families[i];
    return "";
}

/* "cache_k_l7", "conv_states_all-7": the name of a cache, and of one that the program has renamed. */
static bool read_cache(char *text, struct gg_leaf *l) {
    int layer;
    char *number = !strncmp(text, "cache_", 6) ? strstr(text, "_l") : strrchr(text, '-');
    if (!number || (sscanf(number, "_l%d", &layer) != 1 && sscanf(number, "-%d", &layer) != 1) ||
        layer < 0)
        return false;
    snprintf(l->layer, sizeof l->layer, "blk.%d.", layer);
    *number = 0;
    return true;
}

/* The part of "blk.7.ffn_up.weight", of "blk.7.shortconv.conv.weight" and of "blk.7.ssm_a"; l->layer
 * is what comes before. */
static const char *read_weight(char *text, struct gg_leaf *l) {
    char *dot = strrchr(text, '.');
    const char *part;
    int at = 0;
    if (!dot) return NULL;
    l->bias = !strcmp(dot, ".bias");
    if (l->bias || !strcmp(dot, ".weight")) *dot = 0;
    if (sscanf(text, "blk.%*d.%n", &at) == 0 && at)
        part = text + at;
    else if ((dot = strrchr(text, '.')))
        part = dot + 1;
    else
        part = text;
    /* a decoder's caches are those of "blk.7.", and its second attention is a layer of its own */
    const char *layer = strncmp(text, "dec.", 4) ? text : text + 4;
    const bool is_cross = !strncmp(part, "cross_", 6);
    snprintf(l->layer, sizeof l->layer, "%.*s%s", (int)(part - layer), layer,
             is_cross ? "cross." : "");
    return is_cross ? part + 6 : part;
}

void gg_leaf_of(const char *name, struct gg_leaf *l) {
    char text[GG_MAX_NAME];
    memset(l, 0, sizeof *l);
    l->family = "";
    snprintf(text, sizeof text, "%s", name);
    const char *part = read_cache(text, l) ? text : read_weight(text, l);
    for (size_t i = 0; part && i < sizeof roles / sizeof *roles; i++) {
        if (strcmp(part, roles[i].part)) continue;
        l->role = roles[i].role;
        l->family = family_of(part);
    }
}
