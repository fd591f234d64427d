/* Reads a model's hyperparameters. Owns the limits on them: after sheaf__hparams_read every product
 * of two of them fits int64_t with room to spare, so graph code multiplies without checks. */
#include "model/file/hparams.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "model/arch/arch.h"

enum {
    MAX_WIDTH = 1 << 24, /* n_embd, n_ff, n_vocab, heads x head size */
    MAX_HEAD = 4096,
    MAX_EXPERTS = 4096,
};

static void make_key(char key[128], const char *arch, const char *suffix) {
    snprintf(key, 128, "%s.%s", arch, suffix);
}

/* One number out of an array of equal ones (some files list the heads of every layer). */
static enum sheaf_status int_of_array(const struct sheaf_gguf *gguf, int64_t i, int64_t *out) {
    size_t n = sheaf_gguf_arr_n(gguf, i);
    enum sheaf_gguf_type type = sheaf_gguf_arr_type(gguf, i);
    const unsigned char *p = sheaf_gguf_arr_data(gguf, i);
    if (!p || n == 0 || (type != SHEAF_GGUF_TYPE_INT32 && type != SHEAF_GGUF_TYPE_UINT32))
        return sheaf_set_error(SHEAF_STATUS_INVALID, "%s: key '%s' is not a whole number",
                               sheaf_gguf_path(gguf), sheaf_gguf_key(gguf, i));
    for (size_t j = 1; j < n; j++) {
        if (memcmp(p, p + 4 * j, 4) != 0)
            return sheaf_set_error(SHEAF_STATUS_UNSUPPORTED,
                                   "%s: key '%s' differs between layers, which is not supported",
                                   sheaf_gguf_path(gguf), sheaf_gguf_key(gguf, i));
    }
    const uint32_t bits =
        (uint32_t)p[0] | (uint32_t)p[1] << 8 | (uint32_t)p[2] << 16 | (uint32_t)p[3] << 24;
    *out = type == SHEAF_GGUF_TYPE_INT32 ? (int64_t)(int32_t)bits : (int64_t)bits;
    return SHEAF_STATUS_SUCCESS;
}

enum sheaf_status sheaf__hparams_int(const struct sheaf_gguf *gguf, const char *arch,
                                     const char *suffix, int64_t min, int64_t max, int64_t *out) {
    char key[128];
    make_key(key, arch, suffix);
    int64_t i = sheaf_gguf_find_key(gguf, key), v = 0;
    if (i < 0) {
        v = *out;
        if (v < min)
            return sheaf_set_error(SHEAF_STATUS_INVALID, "%s: key '%s' is missing",
                                   sheaf_gguf_path(gguf), key);
    } else {
        enum sheaf_status status = sheaf_gguf_kv_type(gguf, i) == SHEAF_GGUF_TYPE_ARRAY
                                       ? int_of_array(gguf, i, &v)
                                       : sheaf_gguf_get_i64(gguf, key, &v);
        if (status) return status;
    }
    if (v < min || v > max)
        return sheaf_set_error(SHEAF_STATUS_INVALID,
                               "%s: %s is %" PRId64 "; allowed are %" PRId64 "..%" PRId64,
                               sheaf_gguf_path(gguf), key, v, min, max);
    *out = v;
    return SHEAF_STATUS_SUCCESS;
}

enum sheaf_status sheaf__hparams_float(const struct sheaf_gguf *gguf, const char *arch,
                                       const char *suffix, double min, double max, float *out) {
    char key[128];
    make_key(key, arch, suffix);
    if (sheaf_gguf_find_key(gguf, key) < 0) return SHEAF_STATUS_SUCCESS;
    double v = 0;
    enum sheaf_status status = sheaf_gguf_get_f64(gguf, key, &v);
    if (status) return status;
    if (!(v >= min && v <= max))
        return sheaf_set_error(SHEAF_STATUS_INVALID, "%s: %s is %g; allowed are %g..%g",
                               sheaf_gguf_path(gguf), key, v, min, max);
    *out = (float)v;
    return SHEAF_STATUS_SUCCESS;
}

enum sheaf_status sheaf__hparams_bool(const struct sheaf_gguf *gguf, const char *arch,
                                      const char *suffix, bool *out) {
    char key[128];
    make_key(key, arch, suffix);
    return sheaf_gguf_find_key(gguf, key) < 0 ? SHEAF_STATUS_SUCCESS
                                              : sheaf_gguf_get_bool(gguf, key, out);
}

/* ---- rotary positions ---- */

/* none, linear, yarn (arXiv 2309.00071) and longrope, whose frequency factors come as tensors. Of
 * yarn, the op multiplies by 1 + 0.1 ln(1 / freq_scale) itself. */
static enum sheaf_status read_rope_scaling(const struct sheaf_gguf *gguf,
                                           struct sheaf__hparams *hp) {
    char key[128];
    const char *type = "linear", *arch = hp->arch->name;
    float factor = 1;
    make_key(key, arch, "rope.scaling.type");
    enum sheaf_status status = SHEAF_STATUS_SUCCESS;
    if (sheaf_gguf_find_key(gguf, key) >= 0) status = sheaf_gguf_get_str(gguf, key, &type);
    if (status) return status;
    if (strcmp(type, "yarn") == 0)
        hp->ext_factor = 1;
    else if (strcmp(type, "none") && strcmp(type, "linear") && strcmp(type, "longrope"))
        return sheaf_set_error(SHEAF_STATUS_UNSUPPORTED,
                               "%s: %s '%.60s' is not supported (none, linear, yarn and longrope "
                               "are)",
                               sheaf_gguf_path(gguf), key, type);
    hp->n_ctx_orig = hp->n_ctx_train;
    status = sheaf__hparams_int(gguf, arch, "rope.scaling.original_context_length", 1, INT32_MAX,
                                &hp->n_ctx_orig);
    if (!status)
        status = sheaf__hparams_float(gguf, arch, "rope.scaling.attn_factor", 1e-3, 1e3,
                                      &hp->attn_factor);
    if (status || strcmp(type, "none") == 0) return status;
    status = sheaf__hparams_float(gguf, arch, "rope.scale_linear", 1e-3, 1e6, &factor);
    if (!status) status = sheaf__hparams_float(gguf, arch, "rope.scaling.factor", 0, 1e6, &factor);
    if (!status)
        status = sheaf__hparams_float(gguf, arch, "rope.scaling.yarn_beta_fast", 1e-3, 1e6,
                                      &hp->beta_fast);
    if (!status)
        status = sheaf__hparams_float(gguf, arch, "rope.scaling.yarn_beta_slow", 1e-3, 1e6,
                                      &hp->beta_slow);
    if (!status && hp->ext_factor > 0 && factor > 0 && factor < 1)
        return sheaf_set_error(SHEAF_STATUS_INVALID,
                               "%s: %s.rope.scaling.factor is %g; with yarn allowed are 1 and "
                               "more, and 0 for none",
                               sheaf_gguf_path(gguf), arch, (double)factor);
    if (!status && factor > 0) hp->freq_scale = 1.0f / factor; /* 0 means none in old files */
    return status;
}

/* Positions of several dimensions (text, height, width) are not built here. */
static enum sheaf_status refuse_sections(const struct sheaf_gguf *gguf,
                                         const struct sheaf__hparams *hp) {
    char key[128];
    make_key(key, hp->arch->name, "rope.dimension_sections");
    if (sheaf_gguf_find_key(gguf, key) < 0) return SHEAF_STATUS_SUCCESS;
    return sheaf_set_error(SHEAF_STATUS_UNSUPPORTED,
                           "%s: key '%s': architecture %s has no rotary sections",
                           sheaf_gguf_path(gguf), key, hp->arch->name);
}

/* A decoder's tokens see those before them, an encoder's all. */
static enum sheaf_status check_causal(const struct sheaf_gguf *gguf,
                                      const struct sheaf__hparams *hp) {
    const struct sheaf__arch *arch = hp->arch;
    bool causal = !arch->encoder;
    if (arch->scans && !arch->attends) return SHEAF_STATUS_SUCCESS;
    const enum sheaf_status status =
        sheaf__hparams_bool(gguf, arch->name, "attention.causal", &causal);
    if (status || causal != arch->encoder) return status;
    return sheaf_set_error(SHEAF_STATUS_UNSUPPORTED,
                           "%s: key '%s.attention.causal' is %s: tokens of architecture %s see %s",
                           sheaf_gguf_path(gguf), arch->name, causal ? "true" : "false", arch->name,
                           arch->encoder ? "all others here" : "only those before them here");
}

/* ---- heads, experts, windows ---- */

/* Of a model in which some layers have attention: a list of K/V heads, 0 where a layer has a
 * state. */
static enum sheaf_status read_layer_kinds(const struct sheaf_gguf *gguf,
                                          struct sheaf__hparams *hp) {
    char key[128];
    make_key(key, hp->arch->name, "attention.head_count_kv");
    const int64_t i = sheaf_gguf_find_key(gguf, key);
    const bool list = i >= 0 && sheaf_gguf_kv_type(gguf, i) == SHEAF_GGUF_TYPE_ARRAY &&
                      (sheaf_gguf_arr_type(gguf, i) == SHEAF_GGUF_TYPE_INT32 ||
                       sheaf_gguf_arr_type(gguf, i) == SHEAF_GGUF_TYPE_UINT32) &&
                      (int64_t)sheaf_gguf_arr_n(gguf, i) == hp->n_layer;
    const unsigned char *p = list ? sheaf_gguf_arr_data(gguf, i) : NULL;
    int64_t found = 0;
    for (int64_t il = 0; p && il < hp->n_layer; il++, p += 4) {
        const int64_t v = (int64_t)((uint32_t)p[0] | (uint32_t)p[1] << 8 | (uint32_t)p[2] << 16 |
                                    (uint32_t)p[3] << 24);
        if (v == 0) hp->recurrent[il / 64] |= (uint64_t)1 << (il % 64);
        if (v && found && v != found) p = NULL;
        if (v) found = v;
        if (!p) break;
    }
    if (!p || found < 1 || found > hp->n_head)
        return sheaf_set_error(SHEAF_STATUS_INVALID,
                               "%s: key '%s' must be a list of %" PRId64
                               " numbers, 0 or one of 1..%" PRId64,
                               sheaf_gguf_path(gguf), key, hp->n_layer, hp->n_head);
    hp->n_head_kv = found;
    return SHEAF_STATUS_SUCCESS;
}

static enum sheaf_status read_heads(const struct sheaf_gguf *gguf, struct sheaf__hparams *hp) {
    const char *arch = hp->arch->name;
    if (hp->arch->scans &&
        !hp->arch->attends) { /* no attention: one head, so that there is something to divide by */
        hp->n_head = hp->n_head_kv = 1;
        hp->head_k = hp->head_v = hp->n_rot = 2;
        memset(hp->recurrent, 0xff, sizeof hp->recurrent);
        return SHEAF_STATUS_SUCCESS;
    }
    enum sheaf_status status =
        sheaf__hparams_int(gguf, arch, "attention.head_count", 1, 65536, &hp->n_head);
    hp->n_head_kv = hp->n_head;
    if (!status)
        status = hp->arch->attends ? read_layer_kinds(gguf, hp)
                                   : sheaf__hparams_int(gguf, arch, "attention.head_count_kv", 1,
                                                        hp->n_head, &hp->n_head_kv);
    if (status) return status;
    if (hp->n_head % hp->n_head_kv)
        return sheaf_set_error(SHEAF_STATUS_INVALID,
                               "%s: %s.attention.head_count is %" PRId64
                               ", not a multiple of %s.attention.head_count_kv, %" PRId64,
                               sheaf_gguf_path(gguf), arch, hp->n_head, arch, hp->n_head_kv);
    hp->head_k = hp->head_v = hp->n_embd / hp->n_head;
    status = sheaf__hparams_int(gguf, arch, "attention.key_length", 1, MAX_HEAD, &hp->head_k);
    if (!status)
        status = sheaf__hparams_int(gguf, arch, "attention.value_length", 1, MAX_HEAD, &hp->head_v);
    hp->n_rot = hp->head_k;
    if (!status)
        status = sheaf__hparams_int(gguf, arch, "rope.dimension_count", 2, hp->head_k, &hp->n_rot);
    if (!status && hp->n_rot % 2)
        status =
            sheaf_set_error(SHEAF_STATUS_INVALID,
                            "%s: %s.rope.dimension_count is %" PRId64 "; allowed are even numbers",
                            sheaf_gguf_path(gguf), arch, hp->n_rot);
    return status;
}

/* Of every architecture, as llama.cpp reads them. */
static enum sheaf_status read_groups(const struct sheaf_gguf *gguf, struct sheaf__hparams *hp) {
    const char *arch = hp->arch->name;
    enum sheaf_status status =
        sheaf__hparams_int(gguf, arch, "expert_group_count", 0, hp->n_expert, &hp->n_groups);
    if (status || hp->n_groups <= 1) return status;
    if (hp->n_expert % hp->n_groups || hp->n_expert / hp->n_groups < 2)
        return sheaf_set_error(SHEAF_STATUS_INVALID,
                               "%s: %s.expert_group_count is %" PRId64 "; %s.expert_count, %" PRId64
                               ", must be a multiple of it, and at least 2 for each",
                               sheaf_gguf_path(gguf), arch, hp->n_groups, arch, hp->n_expert);
    status = sheaf__hparams_int(gguf, arch, "expert_group_used_count", 1, hp->n_groups,
                                &hp->n_groups_used);
    const int64_t possible = hp->n_groups_used * (hp->n_expert / hp->n_groups);
    if (status || hp->n_expert_used <= possible) return status;
    return sheaf_set_error(SHEAF_STATUS_INVALID,
                           "%s: %s.expert_used_count is %" PRId64
                           ", but the groups that expert_group_used_count allows have %" PRId64,
                           sheaf_gguf_path(gguf), arch, hp->n_expert_used, possible);
}

static enum sheaf_status read_experts(const struct sheaf_gguf *gguf, struct sheaf__hparams *hp) {
    const char *arch = hp->arch->name;
    if (!hp->arch->mixture) return SHEAF_STATUS_SUCCESS;
    hp->n_ff_expert = hp->n_ff;
    enum sheaf_status status = sheaf__hparams_int(gguf, arch, "expert_count", !hp->arch->dense,
                                                  MAX_EXPERTS, &hp->n_expert);
    if (status || !hp->n_expert) return status;
    status =
        sheaf__hparams_int(gguf, arch, "expert_used_count", 1, hp->n_expert, &hp->n_expert_used);
    if (!status)
        status = sheaf__hparams_int(gguf, arch, "expert_feed_forward_length", 1, MAX_WIDTH,
                                    &hp->n_ff_expert);
    return status ? status : read_groups(gguf, hp);
}

enum sheaf_status sheaf__hparams_gating(const struct sheaf_gguf *gguf, struct sheaf__hparams *hp) {
    const char *arch = hp->arch->name;
    int64_t gating = hp->gating;
    enum sheaf_status status =
        sheaf__hparams_int(gguf, arch, "expert_gating_func", SHEAF__GATING_SOFTMAX,
                           SHEAF__GATING_SOFTMAX_OF_CHOSEN, &gating);
    hp->gating = (enum sheaf__gating)gating;
    if (!status) status = sheaf__hparams_bool(gguf, arch, "expert_weights_norm", &hp->expert_norm);
    if (!status)
        status =
            sheaf__hparams_float(gguf, arch, "expert_weights_scale", 0, 1e6, &hp->expert_scale);
    if (hp->expert_scale <= 0) hp->expert_scale = 1; /* 0 means none */
    return status;
}

enum sheaf_status sheaf__hparams_state(const struct sheaf_gguf *gguf, struct sheaf__hparams *hp) {
    const char *arch = hp->arch->name;
    const struct {
        const char *suffix;
        int64_t min, max, *out;
    } ints[] = {
        {"ssm.conv_kernel", 2, 64, &hp->n_taps},
        {"ssm.inner_size", 1, MAX_WIDTH, &hp->d_inner},
        {"ssm.state_size", 1, MAX_HEAD, &hp->d_state},
        {"ssm.time_step_rank", 1, 65536, &hp->n_ssm_head},
        {"ssm.group_count", 1, 65536, &hp->n_ssm_group},
    };
    enum sheaf_status status = SHEAF_STATUS_SUCCESS;
    for (size_t i = 0; !status && i < sizeof ints / sizeof *ints; i++)
        status =
            sheaf__hparams_int(gguf, arch, ints[i].suffix, ints[i].min, ints[i].max, ints[i].out);
    if (!status && (hp->d_inner % hp->n_ssm_head || hp->n_ssm_head % hp->n_ssm_group))
        status = sheaf_set_error(
            SHEAF_STATUS_INVALID,
            "%s: %s.ssm.inner_size, %" PRId64 ", must be a multiple of "
            "ssm.time_step_rank, %" PRId64 ", and that of ssm.group_count, %" PRId64,
            sheaf_gguf_path(gguf), arch, hp->d_inner, hp->n_ssm_head, hp->n_ssm_group);
    return status;
}

/* The smallest p so that the last of each p layers, and no other, has full attention; 0: none. */
static int64_t period_of(const unsigned char *windowed, int64_t n) {
    for (int64_t p = 1; p <= n; p++) {
        int64_t il = 0;
        while (il < n && (windowed[il] != 0) == (il % p < p - 1)) il++;
        if (il == n) return p;
    }
    return 0;
}

enum sheaf_status sheaf__hparams_windows(const struct sheaf_gguf *gguf, struct sheaf__hparams *hp,
                                         int64_t period) {
    const char *arch = hp->arch->name, *suffix = "attention.sliding_window_pattern";
    char key[128];
    enum sheaf_status status =
        sheaf__hparams_int(gguf, arch, "attention.sliding_window", 0, INT32_MAX, &hp->swa_window);
    if (status) return status;
    make_key(key, arch, suffix);
    const int64_t i = sheaf_gguf_find_key(gguf, key);
    hp->swa_period = period;
    if (i < 0 || sheaf_gguf_kv_type(gguf, i) != SHEAF_GGUF_TYPE_ARRAY)
        return sheaf__hparams_int(gguf, arch, suffix, 1, SHEAF__MAX_LAYERS, &hp->swa_period);
    if (sheaf_gguf_arr_type(gguf, i) == SHEAF_GGUF_TYPE_BOOL &&
        (int64_t)sheaf_gguf_arr_n(gguf, i) == hp->n_layer)
        hp->swa_period = period_of(sheaf_gguf_arr_data(gguf, i), hp->n_layer);
    else
        hp->swa_period = 0;
    if (hp->swa_period) return SHEAF_STATUS_SUCCESS;
    return sheaf_set_error(SHEAF_STATUS_UNSUPPORTED,
                           "%s: key '%s' must be a number, or a list of %" PRId64
                           " flags in which the last of every few layers has no window",
                           sheaf_gguf_path(gguf), key, hp->n_layer);
}

enum sheaf_status sheaf__hparams_read(const struct sheaf_gguf *gguf, int64_t n_vocab,
                                      struct sheaf__hparams *out) {
    const char *name = NULL;
    *out = (struct sheaf__hparams){.n_ctx_train = 2048,
                                   .rms_eps = 1e-5f,
                                   .norm_eps = 1e-5f,
                                   .pooling = SHEAF__POOLING_MEAN,
                                   .freq_base = 10000,
                                   .freq_scale = 1,
                                   .freq_base_swa = 10000,
                                   .freq_scale_swa = 1,
                                   .gating = SHEAF__GATING_SOFTMAX,
                                   .expert_norm = true,
                                   .expert_scale = 1,
                                   .attn_factor = 1,
                                   .beta_fast = 32,
                                   .beta_slow = 1,
                                   .embd_scale = 1,
                                   .residual_scale = 1,
                                   .logit_scale = 1};
    enum sheaf_status status = sheaf_gguf_get_str(gguf, "general.architecture", &name);
    if (!status) status = sheaf__arch_find(name, sheaf_gguf_path(gguf), &out->arch);
    if (status) return status;
    const char *arch = out->arch->name;
    const struct {
        const char *suffix;
        int64_t min, max, *out;
    } ints[] = {
        {"block_count", 1, SHEAF__MAX_LAYERS, &out->n_layer},
        {"embedding_length", 1, MAX_WIDTH, &out->n_embd},
        {"feed_forward_length", out->arch->ffn ? 1 : 0, MAX_WIDTH, &out->n_ff},
        {"context_length", 1, INT32_MAX, &out->n_ctx_train},
    };
    for (size_t i = 0; !status && i < sizeof ints / sizeof *ints; i++)
        status =
            sheaf__hparams_int(gguf, arch, ints[i].suffix, ints[i].min, ints[i].max, ints[i].out);
    if (!status) status = read_heads(gguf, out);
    if (!status) status = read_experts(gguf, out);
    if (!status)
        status = sheaf__hparams_float(gguf, arch, "attention.layer_norm_rms_epsilon", 0, 1,
                                      &out->rms_eps);
    if (!status)
        status = sheaf__hparams_float(gguf, arch, "rope.freq_base", 1, 1e12, &out->freq_base);
    if (!status) status = read_rope_scaling(gguf, out);
    if (!status) status = refuse_sections(gguf, out);
    if (!status) status = check_causal(gguf, out);
    if (status) return status;
    out->n_vocab = n_vocab;
    out->attn_scale = 1.0f / sqrtf((float)out->head_k);
    if (out->arch->read_hparams) status = out->arch->read_hparams(gguf, out);
    return status;
}

bool sheaf__hparams_is_swa(const struct sheaf__hparams *hp, int64_t il) {
    return hp->swa_window > 0 && hp->swa_period > 0 && il % hp->swa_period < hp->swa_period - 1;
}

bool sheaf__hparams_is_recurrent(const struct sheaf__hparams *hp, int64_t il) {
    return hp->recurrent[il / 64] >> (il % 64) & 1;
}

int64_t sheaf__hparams_n_recurrent(const struct sheaf__hparams *hp) {
    int64_t n = 0;
    for (int64_t il = 0; il < hp->n_layer; il++) n += sheaf__hparams_is_recurrent(hp, il);
    return n;
}

int64_t sheaf__hparams_channels(const struct sheaf__hparams *hp) {
    return hp->d_inner + 2 * hp->n_ssm_group * hp->d_state;
}

bool sheaf__hparams_has_experts(const struct sheaf__hparams *hp, int64_t il) {
    return hp->n_expert > 0 && il >= hp->n_layer_dense;
}

int64_t sheaf__hparams_cache_k(const struct sheaf__hparams *hp) {
    if (hp->arch->scans && !hp->arch->attends) return 0;
    return hp->n_lora_kv ? hp->n_lora_kv + hp->n_rot : hp->n_head_kv * hp->head_k;
}

int64_t sheaf__hparams_cache_v(const struct sheaf__hparams *hp) {
    if (hp->n_lora_kv || (hp->arch->scans && !hp->arch->attends)) return 0;
    return hp->n_head_kv * hp->head_v;
}
