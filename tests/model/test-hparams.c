/* Hyperparameters that no model has: each is refused with the name of its key and what is allowed.
 * Random models of each architecture, of which one key is changed. */
#include <criterion/criterion.h>
#include <math.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include "model/arch/arch.h"
#include "model/file/weights.h"
#include "model/random_model.h"
#include "temp_dir.h"

TestSuite(hparams, .init = setup, .fini = teardown, .timeout = 60);

enum kind { INT, FLOAT, TEXT, FLAGS, FLAG, INTS };

struct change {
    const char *arch, *suffix;
    enum kind kind;
    double value;
    const char *text; /* of TEXT; FLAGS and INTS: a digit for each layer */
    enum sheaf_status status;
    const char *want; /* in the message */
};

#define REFUSED SHEAF_STATUS_INVALID
#define UNKNOWN SHEAF_STATUS_UNSUPPORTED

static const struct change changes[] = {
    {"llama", "block_count", INT, 0, 0, REFUSED, "llama.block_count is 0; allowed are 1..4096"},
    {"llama", "block_count", INT, 5000, 0, REFUSED, "allowed are 1..4096"},
    {"llama", "embedding_length", INT, 1 << 25, 0, REFUSED, "allowed are 1..16777216"},
    {"llama", "feed_forward_length", INT, 0, 0, REFUSED, "llama.feed_forward_length is 0"},
    {"llama", "attention.head_count", INT, 0, 0, REFUSED, "head_count is 0; allowed are 1..65536"},
    {"llama", "attention.head_count", INT, 100000, 0, REFUSED, "allowed are 1..65536"},
    {"llama", "attention.head_count_kv", INT, 5, 0, REFUSED,
     "llama.attention.head_count_kv is 5; allowed are 1..4"},
    {"llama", "attention.head_count_kv", INT, 3, 0, REFUSED,
     "not a multiple of llama.attention.head_count_kv, 3"},
    {"llama", "attention.head_count_kv", INTS, 0, "2222222", 0, NULL},
    {"llama", "attention.head_count_kv", INTS, 0, "2222221", UNKNOWN,
     "key 'llama.attention.head_count_kv' differs between layers"},
    {"llama", "feed_forward_length", FLAGS, 0, "11", REFUSED,
     "key 'llama.feed_forward_length' is not a whole number"},
    {"granitehybrid", "attention.head_count_kv", INTS, 0, "0200204", REFUSED,
     "must be a list of 7"},
    {"granitehybrid", "attention.head_count_kv", INTS, 0, "0200202", 0, NULL},
    {"llama", "attention.key_length", INT, 5000, 0, REFUSED, "allowed are 1..4096"},
    {"llama", "rope.dimension_count", INT, 18, 0, REFUSED, "allowed are 2..16"},
    {"llama", "rope.dimension_count", INT, 7, 0, REFUSED,
     "llama.rope.dimension_count is 7; allowed are even numbers"},
    {"llama", "rope.dimension_sections", INT, 8, 0, UNKNOWN, "llama.rope.dimension_sections"},
    {"llama", "attention.causal", FLAG, 0, 0, UNKNOWN, "'llama.attention.causal' is false"},
    {"llama", "attention.causal", FLAG, 1, 0, 0, NULL},
    {"bert", "attention.causal", FLAG, 1, 0, UNKNOWN, "'bert.attention.causal' is true"},
    {"gemma3", "final_logit_softcapping", FLOAT, -1, 0, REFUSED, "final_logit_softcapping is -1"},
    {"llama", "rope.freq_base", FLOAT, 0.5, 0, REFUSED, "llama.rope.freq_base is 0.5"},
    {"llama", "rope.scaling.type", TEXT, 0, "su", UNKNOWN, "llama.rope.scaling.type 'su'"},
    {"llama", "rope.scaling.factor", FLOAT, -1, 0, REFUSED, "rope.scaling.factor is -1"},
    {"llama", "rope.scaling.attn_factor", FLOAT, 0, 0, REFUSED, "rope.scaling.attn_factor is 0"},
    {"deepseek2", "rope.scaling.factor", FLOAT, 0.5, 0, REFUSED,
     "deepseek2.rope.scaling.factor is 0.5; with yarn allowed are 1 and more, and 0 for none"},
    {"gpt-oss", "rope.scaling.factor", FLOAT, 0.99, 0, REFUSED, "with yarn allowed are 1 and more"},
    {"gpt-oss", "rope.scaling.factor", FLOAT, 1, 0, 0, NULL},
    {"gpt-oss", "rope.scaling.factor", FLOAT, 0, 0, 0, NULL},
    {"llama", "rope.scaling.factor", FLOAT, 0.5, 0, 0, NULL}, /* linear */
    {"deepseek2", "rope.scaling.yarn_beta_fast", FLOAT, 0, 0, REFUSED,
     "deepseek2.rope.scaling.yarn_beta_fast is 0; allowed are 0.001..1e+06"},
    {"deepseek2", "rope.scaling.yarn_beta_slow", FLOAT, -1, 0, REFUSED, "yarn_beta_slow is -1"},
    {"llama", "expert_count", INT, 4097, 0, REFUSED,
     "llama.expert_count is 4097; allowed are 0..4096"},
    {"llama", "expert_used_count", INT, 7, 0, REFUSED,
     "llama.expert_used_count is 7; allowed are 1..6"},
    {"llama", "expert_used_count", INT, 0, 0, REFUSED, "allowed are 1..6"},
    {"llama", "expert_feed_forward_length", INT, 0, 0, REFUSED, "expert_feed_forward_length is 0"},
    {"qwen3moe", "expert_count", INT, 0, 0, REFUSED, "expert_count is 0; allowed are 1..4096"},
    {"granitemoe", "expert_shared_feed_forward_length", INT, 1 << 25, 0, REFUSED,
     "expert_shared_feed_forward_length is 33554432"},
    {"granite", "residual_scale", FLOAT, 0, 0, REFUSED, "granite.residual_scale is 0"},
    {"granite", "logit_scale", FLOAT, 1e9, 0, REFUSED, "granite.logit_scale is 1e+09"},
    {"gemma3", "attention.sliding_window", INT, 3e9, 0, REFUSED,
     "gemma3.attention.sliding_window is 3000000000; allowed are 0..2147483647"},
    {"gemma3", "attention.sliding_window_pattern", INT, 0, 0, REFUSED,
     "gemma3.attention.sliding_window_pattern is 0; allowed are 1..4096"},
    {"gpt-oss", "attention.sliding_window", INT, 3e9, 0, REFUSED,
     "gpt-oss.attention.sliding_window"},
    {"gpt-oss", "expert_used_count", INT, 0, 0, REFUSED, "gpt-oss.expert_used_count is 0"},
    {"deepseek2", "expert_group_count", INT, 7, 0, REFUSED,
     "deepseek2.expert_group_count is 7; allowed are 0..6"},
    {"deepseek2", "expert_group_count", INT, 4, 0, REFUSED,
     "deepseek2.expert_group_count is 4; deepseek2.expert_count, 6, must be a multiple"},
    {"deepseek2", "expert_group_count", INT, 3, 0, REFUSED,
     "deepseek2.expert_group_used_count is 0; allowed are 1..3"},
    {"qwen3moe", "expert_group_count", INT, 4, 0, REFUSED, "6, must be a multiple"},
    {"qwen3moe", "expert_group_count", INT, 6, 0, REFUSED, "and at least 2 for each"},
    {"gpt-oss", "expert_group_count", INT, 3, 0, REFUSED,
     "gpt-oss.expert_group_used_count' is missing"},
    {"llama", "expert_group_count", INT, 1, 0, 0, NULL},
    {"deepseek2", "expert_gating_func", INT, 4, 0, REFUSED, "gating_func is 4; allowed are 1..3"},
    {"deepseek2", "expert_shared_count", INT, 0, 0, REFUSED, "expert_shared_count is 0"},
    {"deepseek2", "leading_dense_block_count", INT, 8, 0, REFUSED, "is 8; allowed are 0..7"},
    {"deepseek2", "attention.kv_lora_rank", INT, 5000, 0, REFUSED, "allowed are 1..4096"},
    {"deepseek2", "attention.key_length_mla", INT, 8, 0, REFUSED, "is 8; allowed are 9..4096"},
    {"deepseek2", "rope.scaling.yarn_log_multiplier", FLOAT, 11, 0, REFUSED, "is 11; allowed are"},
    {"mamba2", "ssm.conv_kernel", INT, 1, 0, REFUSED,
     "mamba2.ssm.conv_kernel is 1; allowed are 2.."},
    {"mamba2", "ssm.state_size", INT, 5000, 0, REFUSED,
     "ssm.state_size is 5000; allowed are 1..4096"},
    {"mamba2", "ssm.group_count", INT, 0, 0, REFUSED,
     "mamba2.ssm.group_count is 0; allowed are 1.."},
    {"mamba2", "ssm.group_count", INT, 3, 0, REFUSED, "and that of ssm.group_count, 3"},
    {"mamba2", "ssm.time_step_rank", INT, 7, 0, REFUSED,
     "must be a multiple of ssm.time_step_rank, 7"},
    {"granitehybrid", "attention.head_count_kv", INT, 2, 0, REFUSED,
     "granitehybrid.attention.head_count_kv' must be a list of 7 numbers, 0 or one of 1..4"},
    {"bert", "pooling_type", INT, 4, 0, REFUSED, "bert.pooling_type is 4; allowed are 0..3"},
    {"bert", "attention.layer_norm_epsilon", FLOAT, -1, 0, REFUSED, "layer_norm_epsilon is -1"},
    {"bert", "tokenizer.ggml.token_type_count", INT, 0, 0, REFUSED,
     "tokenizer.ggml.token_type_count is 0; allowed are 1..65536"},
    {"olmo2", "attention.sliding_window_pattern", FLAGS, 0, "1011011", UNKNOWN,
     "olmo2.attention.sliding_window_pattern"},
    {"olmo2", "attention.sliding_window_pattern", FLAGS, 0, "110", UNKNOWN, "a list of 7 flags"},
    {"olmo2", "attention.sliding_window_pattern", FLAGS, 0, "1101101", 0, NULL},
};

static void set(struct sheaf_gguf *g, const struct change *c) {
    char key[128];
    unsigned char flags[16];
    snprintf(key, sizeof key, "%s.%s", c->arch, c->suffix);
    if (strncmp(c->suffix, "tokenizer.", 10) == 0) snprintf(key, sizeof key, "%s", c->suffix);
    enum sheaf_status status = 0;
    if (c->kind == INT) status = sheaf_gguf_set_u32(g, key, (uint32_t)c->value);
    if (c->kind == FLOAT) status = sheaf_gguf_set_f32(g, key, (float)c->value);
    if (c->kind == TEXT) status = sheaf_gguf_set_str(g, key, c->text);
    if (c->kind == FLAG) status = sheaf_gguf_set_bool(g, key, c->value > 0);
    if (c->kind == INTS) {
        int32_t numbers[16];
        const size_t n = strlen(c->text);
        for (size_t i = 0; i < n; i++) numbers[i] = c->text[i] - '0';
        status = sheaf_gguf_set_arr(g, key, SHEAF_GGUF_TYPE_INT32, numbers, n);
    }
    if (c->kind == FLAGS) {
        const size_t n = strlen(c->text);
        for (size_t i = 0; i < n; i++) flags[i] = c->text[i] == '1';
        status = sheaf_gguf_set_arr(g, key, SHEAF_GGUF_TYPE_BOOL, flags, n);
    }
    cr_assert_eq(status, 0, "%s", sheaf_last_error());
}

Test(hparams, refused_by_the_name_of_the_key) {
    char path[128];
    snprintf(path, sizeof path, "%s", in_dir("m.gguf"));
    for (size_t i = 0; i < sizeof changes / sizeof *changes; i++) {
        const struct change *c = &changes[i];
        struct sheaf__random_model_params p = sheaf__random_model_default_params();
        struct sheaf_gguf *in, *out = sheaf_gguf_new();
        struct sheaf__hparams hp;
        p.arch = c->arch;
        p.n_layer = 7;
        p.n_expert = strstr(c->suffix, "expert") || strstr(c->arch, "moe") ||
                             strcmp(c->arch, "gpt-oss") == 0 || strcmp(c->arch, "deepseek2") == 0
                         ? 6
                         : 0;
        p.n_expert_used = p.n_expert ? 3 : 0;
        cr_assert_eq(sheaf__random_model_write(&p, path), 0, "%s", sheaf_last_error());
        cr_assert_eq(sheaf_gguf_open(path, &in), 0, "%s", sheaf_last_error());
        cr_assert_eq(sheaf__hparams_read(in, 512, &hp), 0, "%s", sheaf_last_error());
        cr_assert_eq(sheaf_gguf_copy_kv(out, in), 0);
        set(out, c);
        const enum sheaf_status status = sheaf__hparams_read(out, 512, &hp);
        cr_expect_eq(status, c->status, "%s.%s: status %d, %s", c->arch, c->suffix, status,
                     status ? sheaf_last_error() : "");
        if (c->want)
            cr_expect(strstr(sheaf_last_error(), c->want), "'%s' lacks '%s'", sheaf_last_error(),
                      c->want);
        sheaf_gguf_free(in);
        sheaf_gguf_free(out);
    }
}

Test(hparams, flags_of_windows_are_a_period) {
    struct sheaf__random_model_params p = sheaf__random_model_default_params();
    struct sheaf_gguf *in, *out = sheaf_gguf_new();
    struct sheaf__hparams hp;
    const char *path = in_dir("m.gguf");
    p.arch = "olmo2";
    p.n_layer = 7;
    cr_assert_eq(sheaf__random_model_write(&p, path), 0, "%s", sheaf_last_error());
    cr_assert_eq(sheaf_gguf_open(path, &in), 0, "%s", sheaf_last_error());
    cr_assert_eq(sheaf_gguf_copy_kv(out, in), 0);
    set(out, &(struct change){.arch = "olmo2",
                              .suffix = "attention.sliding_window_pattern",
                              .kind = FLAGS,
                              .text = "1101101"});
    cr_assert_eq(sheaf__hparams_read(out, 512, &hp), 0, "%s", sheaf_last_error());
    cr_assert_eq(hp.swa_period, 3);
    sheaf_gguf_free(in);
    sheaf_gguf_free(out);
}

/* Every architecture with experts has groups of them where the file says so. */
Test(hparams, groups_of_experts) {
    static const char *const archs[] = {"llama",         "qwen3moe",  "granitemoe",
                                        "granitehybrid", "deepseek2", "gpt-oss"};
    for (size_t i = 0; i < sizeof archs / sizeof *archs; i++) {
        struct sheaf__random_model_params p = sheaf__random_model_default_params();
        struct sheaf_gguf *in, *out = sheaf_gguf_new();
        struct sheaf__hparams hp;
        struct change count = {archs[i], "expert_group_count", INT, 3, 0, 0, NULL};
        struct change used = {archs[i], "expert_group_used_count", INT, 2, 0, 0, NULL};
        const char *path = in_dir("m.gguf");
        p.arch = archs[i];
        p.n_layer = 7;
        p.n_expert = 6;
        p.n_expert_used = 3;
        cr_assert_eq(sheaf__random_model_write(&p, path), 0, "%s", sheaf_last_error());
        cr_assert_eq(sheaf_gguf_open(path, &in), 0, "%s", sheaf_last_error());
        cr_assert_eq(sheaf_gguf_copy_kv(out, in), 0);
        set(out, &count);
        set(out, &used);
        cr_assert_eq(sheaf__hparams_read(out, 512, &hp), 0, "%s", sheaf_last_error());
        cr_expect_eq(hp.n_groups, 3, "%s", archs[i]);
        cr_expect_eq(hp.n_groups_used, 2, "%s", archs[i]);
        used.value = 1; /* a group of 2 for 3 experts a token */
        set(out, &used);
        cr_expect_eq(sheaf__hparams_read(out, 512, &hp), SHEAF_STATUS_INVALID, "%s", archs[i]);
        cr_expect(strstr(sheaf_last_error(), "expert_used_count is 3, but the groups that "
                                             "expert_group_used_count allows have 2"),
                  "%s", sheaf_last_error());
        sheaf_gguf_free(in);
        sheaf_gguf_free(out);
    }
}

Test(hparams, the_range_of_yarn_is_that_of_the_file) {
    static const struct change fast = {.arch = "deepseek2",
                                       .suffix = "rope.scaling.yarn_beta_fast",
                                       .kind = FLOAT,
                                       .value = 4},
                               slow = {.arch = "deepseek2",
                                       .suffix = "rope.scaling.yarn_beta_slow",
                                       .kind = FLOAT,
                                       .value = 2};
    struct sheaf__random_model_params p = sheaf__random_model_default_params();
    struct sheaf_gguf *in, *out = sheaf_gguf_new();
    struct sheaf__hparams hp;
    const char *path = in_dir("m.gguf");
    p.arch = "deepseek2";
    p.n_expert = 6;
    p.n_expert_used = 3;
    cr_assert_eq(sheaf__random_model_write(&p, path), 0, "%s", sheaf_last_error());
    cr_assert_eq(sheaf_gguf_open(path, &in), 0, "%s", sheaf_last_error());
    cr_assert_eq(sheaf_gguf_copy_kv(out, in), 0);
    cr_assert_eq(sheaf__hparams_read(out, 512, &hp), 0, "%s", sheaf_last_error());
    cr_expect_float_eq(hp.beta_fast, 32, 0, "those of the paper");
    cr_expect_float_eq(hp.beta_slow, 1, 0);
    set(out, &fast);
    set(out, &slow);
    cr_assert_eq(sheaf__hparams_read(out, 512, &hp), 0, "%s", sheaf_last_error());
    cr_expect_float_eq(hp.beta_fast, 4, 0);
    cr_expect_float_eq(hp.beta_slow, 2, 0);
    sheaf_gguf_free(in);
    sheaf_gguf_free(out);
}

/* What other keys make of the positions, and of the weights of experts. */
Test(hparams, old_names_and_zeros) {
    static const struct {
        struct change changes[2];
        float freq_scale, expert_scale;
    } cases[] = {
        {{{.arch = "deepseek2", .suffix = "expert_weights_scale", .kind = FLOAT, .value = 0}},
         0.25f,
         1},
        {{{.arch = "deepseek2", .suffix = "expert_weights_scale", .kind = FLOAT, .value = 3}},
         0.25f,
         3},
        {{{.arch = "llama", .suffix = "rope.scale_linear", .kind = FLOAT, .value = 8}}, 0.125f, 1},
        {{{.arch = "llama", .suffix = "rope.scale_linear", .kind = FLOAT, .value = 8},
          {.arch = "llama", .suffix = "rope.scaling.factor", .kind = FLOAT, .value = 2}},
         0.5f,
         1},
        {{{.arch = "llama", .suffix = "rope.scaling.factor", .kind = FLOAT, .value = 2},
          {.arch = "llama", .suffix = "rope.scaling.type", .kind = TEXT, .text = "none"}},
         1,
         1},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct sheaf__random_model_params p = sheaf__random_model_default_params();
        struct sheaf_gguf *in, *out = sheaf_gguf_new();
        struct sheaf__hparams hp;
        const char *path = in_dir("m.gguf");
        p.arch = cases[i].changes[0].arch;
        p.n_expert = 6;
        p.n_expert_used = 3;
        cr_assert_eq(sheaf__random_model_write(&p, path), 0, "%s", sheaf_last_error());
        cr_assert_eq(sheaf_gguf_open(path, &in), 0, "%s", sheaf_last_error());
        cr_assert_eq(sheaf_gguf_copy_kv(out, in), 0);
        for (int k = 0; k < 2 && cases[i].changes[k].arch; k++) set(out, &cases[i].changes[k]);
        cr_assert_eq(sheaf__hparams_read(out, 512, &hp), 0, "%s", sheaf_last_error());
        cr_expect_float_eq(hp.freq_scale, cases[i].freq_scale, 0, "%zu: %g", i,
                           (double)hp.freq_scale);
        cr_expect_float_eq(hp.expert_scale, cases[i].expert_scale, 0, "%zu: %g", i,
                           (double)hp.expert_scale);
        sheaf_gguf_free(in);
        sheaf_gguf_free(out);
    }
}

/* ---- absurd numbers in every key ---- */

static bool is_one_of(const char *name, const char *const *list) {
    while (*list && strcmp(*list, name) != 0) list++;
    return *list != NULL;
}

/* Keys that the random models have, but that nothing reads for this architecture. */
static bool is_unread(const struct sheaf__arch *arch, const char *suffix) {
    static const char *const windowed[] = {"gemma3", "gpt-oss", "olmo2", NULL};
    static const char *const shared[] = {"granitemoe", "granitehybrid", NULL};
    static const char *const never[] = {"vocab_size", "expert_group_used_count", NULL};
    const bool heads = strncmp(suffix, "attention.", 10) == 0 || strncmp(suffix, "rope.", 5) == 0;
    if (heads && arch->scans && !arch->attends)
        return strcmp(suffix, "attention.layer_norm_rms_epsilon") != 0;
    if (strcmp(suffix, "attention.sliding_window") == 0) return !is_one_of(arch->name, windowed);
    if (strcmp(suffix, "expert_shared_feed_forward_length") == 0)
        return !is_one_of(arch->name, shared);
    return is_one_of(suffix, never);
}

/* A whole number that no model has, or a number that is none. */
static void set_absurd(struct sheaf_gguf *g, const char *key, bool whole, int which) {
    static const uint32_t ints[] = {UINT32_MAX, 1u << 31};
    const float floats[] = {NAN, -1e30f};
    const enum sheaf_status status =
        whole ? sheaf_gguf_set_u32(g, key, ints[which]) : sheaf_gguf_set_f32(g, key, floats[which]);
    cr_assert_eq(status, 0, "%s", sheaf_last_error());
}

/* Of one model: each key that belongs to the architecture and is a number, one after another. Returns
 * how many there are. */
static int try_absurd(const struct sheaf__arch *arch, const struct sheaf_gguf *in) {
    const size_t prefix = strlen(arch->name) + 1;
    int n = 0;
    for (int64_t i = 0; i < sheaf_gguf_n_kv(in); i++) {
        const char *key = sheaf_gguf_key(in, i);
        const enum sheaf_gguf_type type = sheaf_gguf_kv_type(in, i);
        const bool whole = type == SHEAF_GGUF_TYPE_UINT32 || type == SHEAF_GGUF_TYPE_INT32;
        if (strncmp(key, arch->name, prefix - 1) != 0 || key[prefix - 1] != '.' ||
            (!whole && type != SHEAF_GGUF_TYPE_FLOAT32) || is_unread(arch, key + prefix))
            continue;
        for (int which = 0; which < 2; which++) {
            struct sheaf_gguf *out = sheaf_gguf_new();
            struct sheaf__hparams hp;
            cr_assert_eq(sheaf_gguf_copy_kv(out, in), 0);
            set_absurd(out, key, whole, which);
            sheaf_clear_error();
            cr_expect_eq(sheaf__hparams_read(out, 512, &hp), SHEAF_STATUS_INVALID, "%s", key);
            cr_expect(strstr(sheaf_last_error(), key + prefix), "%s: '%s'", key,
                      sheaf_last_error());
            sheaf_gguf_free(out);
        }
        n++;
    }
    return n;
}

/* A random model of the architecture without data; with experts where it has some in every layer. */
static struct sheaf_gguf *described(const char *arch) {
    struct sheaf__random_model_params p = sheaf__random_model_default_params();
    struct sheaf_gguf *g;
    p.arch = arch;
    p.tied = true;
    p.n_expert =
        strstr(arch, "moe") || !strcmp(arch, "gpt-oss") || !strcmp(arch, "deepseek2") ? 6 : 0;
    p.n_expert_used = p.n_expert ? 3 : 0;
    cr_assert_eq(sheaf__random_model_describe(&p, &g), 0, "%s: %s", arch, sheaf_last_error());
    return g;
}

/* What a file with the keys that it must have, and no others, means. */
Test(hparams, keys_that_are_missing) {
    static const char *const keys[] = {"block_count", "embedding_length", "feed_forward_length",
                                       "attention.head_count"};
    static const uint32_t values[] = {2, 64, 128, 4};
    struct sheaf_gguf *g = sheaf_gguf_new();
    struct sheaf__hparams hp;
    char key[64];
    cr_assert_eq(sheaf_gguf_set_str(g, "general.architecture", "llama"), 0);
    for (int i = 0; i < 4; i++) {
        snprintf(key, sizeof key, "llama.%s", keys[i]);
        cr_assert_eq(sheaf_gguf_set_u32(g, key, values[i]), 0);
    }
    cr_assert_eq(sheaf__hparams_read(g, 512, &hp), 0, "%s", sheaf_last_error());
    cr_expect(hp.n_head_kv == 4 && hp.n_ctx_train == 2048 && hp.n_ctx_orig == 2048);
    cr_expect(hp.head_k == 16 && hp.head_v == 16 && hp.n_rot == 16);
    cr_expect_float_eq(hp.attn_scale, 0.25f, 0);
    sheaf_gguf_free(g);
}

/* Where a key of one architecture goes to. */
Test(hparams, keys_of_single_architectures) {
#define AT(field) offsetof(struct sheaf__hparams, field)
    static const struct {
        struct change change;
        size_t at;
    } cases[] = {
        {{.arch = "gpt-oss", .suffix = "rope.freq_base_swa", .value = 500}, AT(freq_base_swa)},
        {{.arch = "olmo2", .suffix = "rope.freq_base_swa", .value = 500}, AT(freq_base_swa)},
        {{.arch = "gemma3", .suffix = "rope.freq_base_swa", .value = 500}, AT(freq_base_swa)},
        {{.arch = "gemma3", .suffix = "final_logit_softcapping", .value = 30}, AT(logit_cap)},
        {{.arch = "bert", .suffix = "attention.layer_norm_epsilon", .value = 0.5}, AT(norm_eps)},
        {{.arch = "granite", .suffix = "embedding_scale", .value = 7}, AT(embd_scale)},
        {{.arch = "granitemoe", .suffix = "residual_scale", .value = 7}, AT(residual_scale)},
        {{.arch = "granite", .suffix = "attention.scale", .value = 7}, AT(attn_scale)},
        {{.arch = "granitehybrid", .suffix = "logit_scale", .value = 7}, AT(logit_scale)},
        {{.arch = "llama", .suffix = "rope.freq_base", .value = 500}, AT(freq_base)},
        {{.arch = "llama", .suffix = "attention.layer_norm_rms_epsilon", .value = 0.5},
         AT(rms_eps)},
    };
#undef AT
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct change c = cases[i].change;
        struct sheaf__hparams hp;
        struct sheaf_gguf *g = described(c.arch);
        c.kind = FLOAT;
        set(g, &c);
        cr_assert_eq(sheaf__hparams_read(g, 512, &hp), 0, "%s", sheaf_last_error());
        cr_expect_float_eq(*(const float *)(const void *)((const char *)&hp + cases[i].at),
                           (float)c.value, 1e-9, "%s.%s", c.arch, c.suffix);
        sheaf_gguf_free(g);
    }
    struct sheaf_gguf *g = described("bert");
    struct sheaf__hparams hp;
    set(g, &(struct change){.arch = "bert", .suffix = "pooling_type", .kind = INT, .value = 2});
    cr_assert_eq(sheaf__hparams_read(g, 512, &hp), 0, "%s", sheaf_last_error());
    cr_expect_eq(hp.pooling, SHEAF__POOLING_CLS);
    sheaf_gguf_free(g);
}

/* Weights that a file may have beside those that it must, by their names in the file. */
Test(hparams, weights_that_may_be_there) {
    static const struct {
        const char *name, *archs; /* with a blank behind each */
        enum sheaf__weight weight;
        int64_t layer;
    } cases[] = {
        {"blk.0.attn_output.bias", "llama bert granite granitemoe gpt-oss ", SHEAF__W_O_BIAS, 0},
        {"blk.0.attn_q.bias", "llama qwen2 bert gpt-oss ", SHEAF__W_Q_BIAS, 0},
        {"blk.0.attn_k.bias", "llama qwen2 bert gpt-oss ", SHEAF__W_K_BIAS, 0},
        {"blk.0.attn_v.bias", "llama qwen2 bert gpt-oss ", SHEAF__W_V_BIAS, 0},
        {"blk.0.ffn_up.bias", "bert ", SHEAF__W_UP_BIAS, 0},
        {"blk.0.ffn_down.bias", "bert ", SHEAF__W_DOWN_BIAS, 0},
        {"blk.1.exp_probs_b.bias", "deepseek2 ", SHEAF__W_CHOICE_BIAS, 1},
        {"blk.0.rope_freqs.weight", "llama ", SHEAF__W_ROPE_FREQS_LAYER, 0},
        {"rope_freqs.weight", "llama qwen2 qwen3 qwen3moe granite granitemoe granitehybrid ",
         SHEAF__W_ROPE_FREQS, -1},
        {"rope_factors_long.weight", "phi3 ", SHEAF__W_ROPE_LONG, -1},
        {"rope_factors_short.weight", "phi3 ", SHEAF__W_ROPE_SHORT, -1},
        {"output.weight",
         "llama qwen2 gemma3 qwen3 qwen3moe phi3 granite granitemoe olmo2 gpt-oss deepseek2 mamba2 "
         "granitehybrid ",
         SHEAF__W_OUTPUT, -1},
    };
    const struct sheaf__arch *arch;
    for (size_t k = 0; (arch = sheaf__arch_get(k)); k++)
        for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
            struct sheaf_gguf *g = described(arch->name);
            struct sheaf__hparams hp;
            struct sheaf__weights *model;
            char word[32];
            cr_assert_eq(sheaf__hparams_read(g, 512, &hp), 0, "%s", sheaf_last_error());
            const enum sheaf__dim *dims = sheaf__weight_infos[cases[i].weight].dims;
            const int64_t ne[] = {sheaf__dim_extent(&hp, dims[0]), sheaf__dim_extent(&hp, dims[1])};
            if (sheaf_gguf_find_tensor(g, cases[i].name) < 0)
                cr_assert_eq(sheaf_gguf_add_tensor(g, cases[i].name, SHEAF_TYPE_F32,
                                                   sheaf__weight_n_dims(cases[i].weight), ne, NULL),
                             0, "%s", sheaf_last_error());
            snprintf(word, sizeof word, "%s ", arch->name);
            const char *at = strstr(cases[i].archs, word);
            const bool may = at && (at == cases[i].archs || at[-1] == ' ');
            const enum sheaf_status status = sheaf__weights_describe(&g, 1, &model);
            cr_expect_eq(status, may ? 0 : SHEAF_STATUS_UNSUPPORTED, "%s, %s: %s", arch->name,
                         cases[i].name, status ? sheaf_last_error() : "");
            if (!status)
                cr_expect_not_null(cases[i].layer < 0
                                       ? model->w[cases[i].weight]
                                       : model->layers[cases[i].layer].w[cases[i].weight]);
            sheaf__weights_free(model);
        }
}

Test(hparams, absurd_numbers_are_refused_by_every_architecture) {
    const char *path = in_dir("m.gguf");
    const struct sheaf__arch *arch;
    for (size_t k = 0; (arch = sheaf__arch_get(k)); k++) {
        struct sheaf__random_model_params p = sheaf__random_model_default_params();
        struct sheaf_gguf *in;
        p.arch = arch->name;
        p.n_layer = 7;
        p.swa_window = 8;
        p.n_expert = arch->mixture ? 6 : 0;
        p.n_expert_used = arch->mixture ? 3 : 0;
        cr_assert_eq(sheaf__random_model_write(&p, path), 0, "%s", sheaf_last_error());
        cr_assert_eq(sheaf_gguf_open(path, &in), 0, "%s", sheaf_last_error());
        cr_expect_geq(try_absurd(arch, in), 6, "%s", arch->name);
        sheaf_gguf_free(in);
    }
}
