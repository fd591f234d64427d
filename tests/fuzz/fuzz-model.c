/* Models of any numbers: bytes choose an architecture, the values of keys, a tensor that is wrong, members and their
 * shares. What hyperparameters accept has tensors of the shapes that they ask for; the model is described, divided
 * and built as a graph without an overflow, and its members hold all of it. */
#include <math.h>

#include "fuzz.h"

#include "model/file/mix.h"
#include "model/place/memory.h"
#include "model/place/outline.h"
#include "sheaf/gguf.h"

enum { MOST_LAYERS = 6, MOST_MEMBERS = 5, N_VOCAB = 48, N_CTX = 64 };

enum kind { NUMBER, REAL, FLAG, TEXT };
static const struct key {
    const char *suffix;
    enum kind kind;
    double value; /* below 0: not in the file unless it is chosen */
} keys[] = {
    {"block_count", NUMBER, 3},
    {"embedding_length", NUMBER, 32},
    {"feed_forward_length", NUMBER, 64},
    {"context_length", NUMBER, 64},
    {"attention.head_count", NUMBER, 4},
    {"attention.head_count_kv", NUMBER, 2}, /* of a hybrid, a list */
    {"attention.key_length", NUMBER, -1},
    {"attention.value_length", NUMBER, -1},
    {"rope.dimension_count", NUMBER, 4},
    {"expert_count", NUMBER, -1},
    {"expert_used_count", NUMBER, 2},
    {"expert_feed_forward_length", NUMBER, -1},
    {"expert_shared_feed_forward_length", NUMBER, -1},
    {"expert_shared_count", NUMBER, -1},
    {"expert_group_count", NUMBER, -1},
    {"expert_group_used_count", NUMBER, -1},
    {"expert_gating_func", NUMBER, -1},
    {"expert_weights_norm", FLAG, -1},
    {"expert_weights_scale", REAL, -1},
    {"leading_dense_block_count", NUMBER, -1},
    {"attention.q_lora_rank", NUMBER, 12},
    {"attention.kv_lora_rank", NUMBER, 16},
    {"attention.key_length_mla", NUMBER, 12},
    {"attention.value_length_mla", NUMBER, 8},
    {"attention.temperature_scale", REAL, -1},
    {"attention.temperature_length", NUMBER, -1},
    {"attention.sliding_window", NUMBER, 8},
    {"attention.sliding_window_pattern", NUMBER, -1},
    {"attention.scale", REAL, -1},
    {"embedding_scale", REAL, -1},
    {"residual_scale", REAL, -1},
    {"logit_scale", REAL, -1},
    {"final_logit_softcapping", REAL, -1},
    {"attention.layer_norm_rms_epsilon", REAL, 1e-5},
    {"attention.layer_norm_epsilon", REAL, 1e-5},
    {"rope.freq_base", REAL, 1e4},
    {"rope.freq_base_swa", REAL, -1},
    {"rope.scaling.type", TEXT, -1},
    {"rope.scaling.factor", REAL, -1},
    {"rope.scale_linear", REAL, -1},
    {"rope.scaling.attn_factor", REAL, -1},
    {"rope.scaling.original_context_length", NUMBER, -1},
    {"rope.scaling.yarn_log_multiplier", REAL, -1},
    {"rope.scaling.yarn_beta_fast", REAL, -1},
    {"rope.scaling.yarn_beta_slow", REAL, -1},
    {"rope.scaling.finetuned", FLAG, -1},
    {"pooling_type", NUMBER, -1},
    {"ssm.conv_kernel", NUMBER, 4},
    {"ssm.inner_size", NUMBER, 64},
    {"ssm.state_size", NUMBER, 16},
    {"ssm.time_step_rank", NUMBER, 8},
    {"ssm.group_count", NUMBER, 2},
};
enum { N_KEYS = sizeof keys / sizeof *keys };

/* ---- metadata ---- */

static double draw_value(struct fuzz_bytes *b, enum kind kind) {
    static const double numbers[] = {256,        512,     4096, 65536, 1 << 20, 1 << 24, INT32_MAX,
                                     UINT32_MAX, 1 << 23, 4095, 96,    128,     -1};
    static const double reals[] = {0,  1e-6, 0.1,  0.5,      0.999, 1, 2,
                                   40, 1e6,  1e12, INFINITY, NAN,   -1};
    const uint8_t v = fuzz_byte(b);
    if (kind == REAL) return reals[v % (sizeof reals / sizeof *reals)];
    return v < 64 || kind != NUMBER ? v : numbers[v % (sizeof numbers / sizeof *numbers)];
}

static enum sheaf_status set_key(struct sheaf_gguf *g, const char *arch, int i, double v) {
    static const char *const texts[] = {"none", "linear", "yarn", "longrope"};
    char name[128];
    snprintf(name, sizeof name, "%s.%s", arch, keys[i].suffix);
    if (v < 0) return SHEAF_STATUS_SUCCESS;
    switch (keys[i].kind) {
    case REAL:
        return sheaf_gguf_set_f32(g, name, (float)v);
    case FLAG:
        return sheaf_gguf_set_bool(g, name, (int)v & 1);
    case TEXT:
        return sheaf_gguf_set_str(g, name, texts[(int)v & 3]);
    default:
        return sheaf_gguf_set_u32(g, name, (uint32_t)v);
    }
}

static enum sheaf_status set_layer_kinds(struct sheaf_gguf *g, const char *arch, double kv,
                                         uint8_t which) {
    int32_t heads[MOST_LAYERS];
    char name[128];
    for (int il = 0; il < MOST_LAYERS; il++) heads[il] = which >> il & 1 ? (int32_t)kv : 0;
    snprintf(name, sizeof name, "%s.attention.head_count_kv", arch);
    return sheaf_gguf_set_arr(g, name, SHEAF_GGUF_TYPE_INT32, heads, 3);
}

static struct sheaf_gguf *describe(struct fuzz_bytes *b, const struct sheaf__arch *arch) {
    struct sheaf_gguf *g = sheaf_gguf_new();
    double v[N_KEYS];
    const bool list = arch->attends != 0;
    const uint8_t which = fuzz_byte(b), experts = fuzz_byte(b), edits = fuzz_byte(b) % 7;
    for (int i = 0; i < N_KEYS; i++) {
        v[i] = keys[i].value;
        if (!strcmp(keys[i].suffix, "expert_count") && (experts & 1 || !arch->dense)) v[i] = 8;
    }
    for (int e = 0; e < edits; e++) {
        const int i = fuzz_byte(b) % N_KEYS;
        v[i] = draw_value(b, keys[i].kind);
    }
    MUST(g && !sheaf_gguf_set_str(g, "general.architecture", arch->name));
    MUST(!sheaf_gguf_set_u32(g, "tokenizer.ggml.token_type_count", 2));
    for (int i = 0; i < N_KEYS; i++) {
        const bool kinds = list && !strcmp(keys[i].suffix, "attention.head_count_kv");
        MUST(!(kinds ? set_layer_kinds(g, arch->name, v[i], which)
                     : set_key(g, arch->name, i, v[i])));
    }
    return g;
}

/* ---- tensors ---- */

struct wrong {
    uint8_t tensor, how; /* the number of the tensor, and what is wrong: nothing for most */
    bool done;           /* there is such a tensor */
};

static bool add_tensor(struct sheaf_gguf *g, const struct sheaf__hparams *hp, int w, int64_t il,
                       enum sheaf_type type, struct wrong *wrong) {
    const struct sheaf__weight_info *info = &sheaf__weight_infos[w];
    const bool chosen = sheaf_gguf_n_tensors(g) == wrong->tensor;
    int n_dims = sheaf__weight_n_dims((enum sheaf__weight)w);
    int64_t ne[4] = {1, 1, 1, 1};
    char name[64];
    for (int i = 0; i < SHEAF__MAX_WEIGHT_DIMS; i++) ne[i] = sheaf__dim_extent(hp, info->dims[i]);
    type = sheaf__weight_is_f32((enum sheaf__weight)w) || info->exact
               ? SHEAF_TYPE_F32
               : sheaf__mix_fitting(type, ne[0]);
    wrong->done = wrong->done || (chosen && wrong->how >= 1 && wrong->how <= 5);
    if (chosen && wrong->how == 1) ne[0]++;
    if (chosen && wrong->how == 2) ne[n_dims++] = 2;
    if (chosen && wrong->how == 3) type = SHEAF_TYPE_I32;
    if (chosen && wrong->how == 4) il++;
    if (il >= 0)
        snprintf(name, sizeof name, "blk.%d.%s", (int)il, info->name);
    else
        snprintf(name, sizeof name, "%s", info->name);
    return (chosen && wrong->how == 5) || !sheaf_gguf_add_tensor(g, name, type, n_dims, ne, NULL);
}

/* false: one is refused; its size may be that of no file. */
static bool add_tensors(struct sheaf_gguf *g, const struct sheaf__hparams *hp, struct fuzz_bytes *b,
                        struct wrong *wrong) {
    const uint64_t separate = SHEAF__W_BIT(Q) | SHEAF__W_BIT(K) | SHEAF__W_BIT(V) |
                              SHEAF__W_BIT(Q_BIAS) | SHEAF__W_BIT(K_BIAS) | SHEAF__W_BIT(V_BIAS),
                   fused = SHEAF__W_BIT(QKV) | SHEAF__W_BIT(QKV_BIAS);
    static const enum sheaf_type types[] = {SHEAF_TYPE_F32, SHEAF_TYPE_Q8_0, SHEAF_TYPE_Q4_K,
                                            SHEAF_TYPE_F16};
    const enum sheaf_type type = types[fuzz_byte(b) & 3];
    wrong->tensor = fuzz_byte(b);
    wrong->how = fuzz_byte(b);
    const bool all = fuzz_byte(b) & 1;
    const uint64_t of_model = hp->arch->model_needs | (all ? hp->arch->model_allows : 0);
    bool added = true;
    for (int w = SHEAF__W_LAYER_COUNT; added && w < SHEAF__W_COUNT; w++)
        if (of_model >> (w - SHEAF__W_LAYER_COUNT) & 1)
            added = add_tensor(g, hp, w, -1, type, wrong);
    for (int64_t il = 0; added && il < hp->n_layer; il++) {
        const uint64_t needs = sheaf__arch_layer_needs(hp, il), allows = all ? hp->arch->allows : 0;
        const bool one =
            (allows | needs) & SHEAF__W_BIT(QKV) && (needs & separate || hp->arch->needs & fused);
        const uint64_t wanted = (needs | allows) & ~(one ? separate : fused);
        for (int w = 0; added && w < SHEAF__W_LAYER_COUNT; w++)
            if (wanted >> w & 1) added = add_tensor(g, hp, w, il, type, wrong);
    }
    return added;
}

/* ---- members ---- */

static void divide(const struct sheaf__weights *model, struct fuzz_bytes *b) {
    static const char *const experts[] = {"auto", "columns", "rows", "whole"};
    double shares[MOST_MEMBERS], sum = 0;
    size_t bytes[MOST_MEMBERS], tokens[MOST_MEMBERS], states[MOST_MEMBERS];
    char text[256];
    struct sheaf__policy *p = NULL;
    const int n = 1 + fuzz_byte(b) % MOST_MEMBERS;
    for (int j = 0; j < n; j++) shares[j] = fuzz_byte(b) % 16;
    if (sheaf__policy_new(model, shares, n, &p)) return;
    MUST(!sheaf__policy_cut_experts(p, experts[fuzz_byte(b) & 3]));
    MUST(strlen(sheaf__policy_print(p, text, sizeof text)) < sizeof text);
    if (!sheaf__policy_weight_bytes(p, bytes)) {
        for (int j = 0; j < n; j++) sum += (double)bytes[j];
        MUST(sum >= (double)model->total_bytes * (1 - 1e-9));
        MUST(n > 1 || bytes[0] == model->total_bytes);
    }
    sheaf__memory_cache(model, p, N_CTX, SHEAF_TYPE_F16, tokens, states);
    sheaf__policy_free(p);
}

static void build(const struct sheaf__weights *model, struct fuzz_bytes *b) {
    static const enum sheaf_type types[] = {SHEAF_TYPE_F16, SHEAF_TYPE_Q8_0};
    struct sheaf__outline *o = NULL;
    if (!sheaf__outline_new(model, 2, N_CTX, types[fuzz_byte(b) & 1], &o))
        MUST(sheaf_graph_n_nodes(o->graph) > 0);
    sheaf__outline_free(o);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    struct fuzz_bytes b = {data, size};
    struct sheaf__hparams hp;
    struct sheaf__weights *model = NULL;
    struct wrong wrong = {0};
    size_t n_archs = 0;
    while (sheaf__arch_get(n_archs)) n_archs++;
    struct sheaf_gguf *g = describe(&b, sheaf__arch_get(fuzz_byte(&b) % n_archs));
    if (sheaf__hparams_read(g, N_VOCAB, &hp) || hp.n_layer > MOST_LAYERS ||
        !add_tensors(g, &hp, &b, &wrong)) {
        sheaf_gguf_free(g);
        return 0;
    }
    if (sheaf__weights_describe(&g, 1, &model)) {
        MUST(wrong.done && *sheaf_last_error());
        return 0;
    }
    divide(model, &b);
    build(model, &b);
    sheaf__weights_free(model);
    return 0;
}
