/* Random weights, scaled so that activations stay near 1 and logits spread over a few units. The
 * same parameters give the same file on every machine: only integer arithmetic, +, * and sqrt. */
#include "model/random_model.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/array.h"
#include "base/hash.h"
#include "base/text.h"
#include "model/arch/arch.h"
#include "model/file/mix.h"

enum { N_BYTES = 256, MIN_VOCAB = 300, MAX_VOCAB = 1 << 20 };

struct sheaf__random_model_params sheaf__random_model_default_params(void) {
    return (struct sheaf__random_model_params){.size = sizeof(struct sheaf__random_model_params),
                                               .arch = "llama",
                                               .type = SHEAF_TYPE_F32,
                                               .n_layer = 2,
                                               .n_embd = 64,
                                               .n_head = 4,
                                               .n_head_kv = 2,
                                               .head_dim = 16,
                                               .n_ff = 128,
                                               .n_vocab = 512,
                                               .n_ctx = 256,
                                               .swa_window = 64,
                                               .seed = 1};
}

static const struct {
    const char *name, *arch;
    int64_t n_layer, n_embd, n_head, n_head_kv, head_dim, n_ff, n_vocab;
    int64_t n_expert, n_expert_used, n_ff_shared, swa_window, n_layer_dense, n_ff_dense;
} presets[] = {
    {"tinyllama-1.1b", "llama", 22, 2048, 32, 4, 64, 5632, 32000, 0, 0, 0, 64, 0, 0},
    {"llama-8b", "llama", 32, 4096, 32, 8, 128, 14336, 128256, 0, 0, 0, 64, 0, 0},
    {"llama-70b", "llama", 80, 8192, 64, 8, 128, 28672, 128256, 0, 0, 0, 64, 0, 0},
    {"llama-405b", "llama", 126, 16384, 128, 8, 128, 53248, 128256, 0, 0, 0, 64, 0, 0},
    {"mixtral-8x7b", "llama", 32, 4096, 32, 8, 128, 14336, 32000, 8, 2, 0, 64, 0, 0},
    {"qwen3-30b-a3b", "qwen3moe", 48, 2048, 32, 4, 128, 768, 151936, 128, 8, 0, 64, 0, 0},
    {"qwen3-235b-a22b", "qwen3moe", 94, 4096, 64, 4, 128, 1536, 151936, 128, 8, 0, 64, 0, 0},
    {"olmo2-7b", "olmo2", 32, 4096, 32, 32, 128, 11008, 100352, 0, 0, 0, 0, 0, 0},
    {"phi3-mini", "phi3", 32, 3072, 32, 32, 96, 8192, 32064, 0, 0, 0, 0, 0, 0},
    {"granite-3b-a800m", "granitemoe", 32, 1536, 24, 8, 64, 512, 49155, 40, 8, 0, 0, 0, 0},
    {"gpt-oss-20b", "gpt-oss", 24, 2880, 64, 8, 64, 2880, 201088, 32, 4, 0, 128, 0, 0},
    {"deepseek-v2-lite", "deepseek2", 27, 2048, 16, 1, 128, 1408, 102400, 64, 6, 0, 0, 0, 0},
    {"deepseek-v3", "deepseek2", 61, 7168, 128, 1, 128, 2048, 129280, 256, 8, 0, 0, 3, 18432},
    {"mamba2-2.7b", "mamba2", 64, 2560, 32, 1, 64, 1, 50288, 0, 0, 0, 0, 0, 0},
    {"granite-4-tiny", "granitehybrid", 40, 1536, 12, 4, 128, 512, 100352, 64, 6, 1024, 0, 0, 0},
    {"bge-base", "bert", 12, 768, 12, 12, 64, 3072, 30522, 0, 0, 0, 0, 0, 0},
};

enum sheaf_status sheaf__random_model_preset(const char *name,
                                             struct sheaf__random_model_params *p) {
    char known[512] = "";
    struct sheaf__text text = {known, sizeof known, 0};
    for (size_t i = 0; i < sizeof presets / sizeof *presets; i++) {
        sheaf__put(&text, "%s%s", i ? ", " : "", presets[i].name);
        if (strcmp(name, presets[i].name) != 0) continue;
        p->arch = presets[i].arch;
        p->n_layer = presets[i].n_layer;
        p->n_embd = presets[i].n_embd;
        p->n_head = presets[i].n_head;
        p->n_head_kv = presets[i].n_head_kv;
        p->head_dim = presets[i].head_dim;
        p->n_ff = presets[i].n_ff;
        p->n_vocab = presets[i].n_vocab;
        p->n_expert = presets[i].n_expert;
        p->n_expert_used = presets[i].n_expert_used;
        p->n_ff_shared = presets[i].n_ff_shared;
        p->swa_window = presets[i].swa_window;
        p->n_layer_dense = presets[i].n_layer_dense;
        p->n_ff_dense = presets[i].n_ff_dense;
        p->n_ctx = 2048;
        return SHEAF_STATUS_SUCCESS;
    }
    return sheaf_set_error(SHEAF_STATUS_INVALID, "there is no preset '%.40s': give one of %s", name,
                           known);
}

/* A tensor of the file. */
struct entry {
    enum sheaf__weight weight;
    enum sheaf_type type;
    int64_t ne[SHEAF__MAX_WEIGHT_DIMS];
};

struct generator {
    const struct sheaf__random_model_params *p;
    const struct sheaf__mix *mix; /* NULL: all matrices of p->type */
    struct sheaf__hparams hp;
    struct sheaf_gguf *gguf;
    uint64_t state;
    struct entry *entries; /* in the order of the file */
    size_t n_entries, cap_entries;
    float *row;
    char *data; /* of one tensor */
};

/* Nearly normal, mean 0, variance 1: the sum of four uniform numbers. */
static float random_normal(struct generator *g) {
    const uint64_t u = sheaf__random(&g->state);
    const int32_t sum =
        (int32_t)((u & 0xffff) + (u >> 16 & 0xffff) + (u >> 32 & 0xffff) + (u >> 48));
    return (float)(sum - 2 * 0xffff) * (1.7320508f / 0x10000); /* sqrt(3) */
}

static enum sheaf_status no_memory(void) {
    return sheaf_set_error(SHEAF_STATUS_ALLOC_FAILED, "no memory for the random model");
}

/* ---- weights ---- */

/* Spread of a weight's elements around its mean. */
static void spread_of(const struct generator *g, enum sheaf__weight w, float *mean, float *spread) {
    const enum sheaf__dim *dims = sheaf__weight_infos[w].dims;
    int64_t fan_in = sheaf__dim_extent(&g->hp, dims[0]);
    *mean = strstr(sheaf__weight_infos[w].name, "norm.weight") ? 1.0f : 0.0f;
    *spread = w == SHEAF__W_SINKS ? 1.0f : 0.1f;
    if (w == SHEAF__W_SSM_A) *mean = -1.0f;
    if (w == SHEAF__W_SSM_D) *mean = 1.0f;
    if (dims[0] == SHEAF__DIM_ROT) *mean = w == SHEAF__W_ROPE_LONG ? 4.0f : 1.0f;
    if (dims[1] != SHEAF__DIM_NONE && dims[0] != SHEAF__DIM_ONE)
        *spread = 1.0f / sqrtf((float)fan_in);
    if (dims[1] == SHEAF__DIM_VOCAB) *spread *= 2.0f;
    if (w == SHEAF__W_Q || w == SHEAF__W_K || w == SHEAF__W_QKV) *spread *= 1.5f;
}

static enum sheaf_type type_of(const struct generator *g, const char *name, int64_t ne0) {
    const int64_t gqa = g->p->n_head / g->p->n_head_kv;
    const struct sheaf__mix_model model = {g->hp.n_layer, g->p->tied, gqa, g->hp.n_expert,
                                           sheaf__mix_is_70b(g->p->arch, g->hp.n_layer, gqa)};
    return g->mix ? sheaf__mix_type(g->mix, &model, name, ne0)
                  : sheaf__mix_fitting(g->p->type, ne0);
}

static enum sheaf_status add_weight(struct generator *g, enum sheaf__weight w, int64_t il) {
    const struct sheaf__weight_info *info = &sheaf__weight_infos[w];
    char name[SHEAF_MAX_NAME];
    if (il >= 0)
        snprintf(name, sizeof name, "blk.%" PRId64 ".%s", il, info->name);
    else
        snprintf(name, sizeof name, "%s", info->name);
    struct entry e = {.weight = w};
    for (int i = 0; i < SHEAF__MAX_WEIGHT_DIMS; i++)
        e.ne[i] = sheaf__dim_extent(&g->hp, info->dims[i]);
    e.type = sheaf__weight_is_f32(w) || info->exact ? SHEAF_TYPE_F32 : type_of(g, name, e.ne[0]);
    if (!sheaf__grow(&g->entries, &g->cap_entries, g->n_entries + 1, sizeof e)) return no_memory();
    g->entries[g->n_entries++] = e;
    return sheaf_gguf_add_tensor(g->gguf, name, e.type, sheaf__weight_n_dims(w), e.ne, NULL);
}

/* Elements of tensor i; fits sheaf_gguf_source_fn. */
static enum sheaf_status fill(void *user, int64_t i, const void **data) {
    struct generator *g = user;
    const struct entry *e = &g->entries[i];
    const size_t row_size = sheaf_row_size(e->type, e->ne[0]);
    const int64_t rows = e->ne[1] * e->ne[2];
    float mean, spread;
    enum sheaf_status status = SHEAF_STATUS_SUCCESS;
    free(g->row);
    free(g->data);
    g->row = malloc((size_t)e->ne[0] * sizeof *g->row);
    g->data = malloc(row_size * (size_t)rows);
    if (!g->row || !g->data) return no_memory();
    spread_of(g, e->weight, &mean, &spread);
    for (int64_t r = 0; !status && r < rows; r++) {
        if (g->p->stopped && g->p->stopped())
            return sheaf_set_error(SHEAF_STATUS_ABORTED, "interrupted: no file was written");
        for (int64_t k = 0; k < e->ne[0]; k++) g->row[k] = mean + spread * random_normal(g);
        status = sheaf_from_float(e->type, g->row, g->data + (size_t)r * row_size, e->ne[0]);
    }
    *data = g->data;
    return status;
}

static bool bit(uint64_t set, int w) { return set >> (unsigned)w & 1; }

/* What layer il gets: what it must have, with q, k and v in one matrix if so wanted. */
static uint64_t layer_weights(const struct generator *g, int64_t il) {
    const uint64_t parts = SHEAF__W_BIT(Q) | SHEAF__W_BIT(K) | SHEAF__W_BIT(V);
    const uint64_t biases = SHEAF__W_BIT(Q_BIAS) | SHEAF__W_BIT(K_BIAS) | SHEAF__W_BIT(V_BIAS);
    const uint64_t fused = SHEAF__W_BIT(QKV) | SHEAF__W_BIT(QKV_BIAS);
    uint64_t wanted = sheaf__arch_layer_needs(&g->hp, il);
    if (g->hp.arch->encoder) wanted |= g->hp.arch->allows & ~fused;
    if (!g->p->fused_qkv || !(wanted & parts)) return wanted;
    if (wanted & biases) wanted |= SHEAF__W_BIT(QKV_BIAS);
    return (wanted & ~(parts | biases)) | SHEAF__W_BIT(QKV);
}

static enum sheaf_status add_weights(struct generator *g) {
    const struct sheaf__arch *arch = g->hp.arch;
    const uint64_t factors = SHEAF__W_OF_MODEL(ROPE_LONG) | SHEAF__W_OF_MODEL(ROPE_SHORT);
    uint64_t wanted = arch->model_needs | (arch->model_allows & factors);
    if (!g->p->tied) wanted |= arch->model_allows & SHEAF__W_OF_MODEL(OUTPUT);
    enum sheaf_status status = SHEAF_STATUS_SUCCESS;
    for (int w = SHEAF__W_LAYER_COUNT; !status && w < SHEAF__W_COUNT; w++)
        if (bit(wanted, w - SHEAF__W_LAYER_COUNT))
            status = add_weight(g, (enum sheaf__weight)w, -1);
    for (int64_t il = 0; !status && il < g->hp.n_layer; il++)
        for (int w = 0; !status && w < SHEAF__W_LAYER_COUNT; w++)
            if (bit(layer_weights(g, il), w)) status = add_weight(g, (enum sheaf__weight)w, il);
    return status;
}

/* ---- vocabulary ---- */

struct vocab {
    char (*text)[16];
    float *scores;
    int32_t *types;
    int64_t n, i;
};

enum { TOKEN_NORMAL = 1, TOKEN_UNKNOWN = 2, TOKEN_CONTROL = 3, TOKEN_BYTE = 6 };

static void put_token(struct vocab *v, const char *text, float score, int32_t type) {
    if (v->i >= v->n) return;
    snprintf(v->text[v->i], sizeof v->text[0], "%s", text);
    v->scores[v->i] = score;
    v->types[v->i++] = type;
}

/* Code point below 0x800 in UTF-8. */
static void put_utf8(char *dst, unsigned c) {
    if (c < 0x80) {
        dst[0] = (char)c;
        dst[1] = 0;
    } else {
        dst[0] = (char)(0xc0 | c >> 6);
        dst[1] = (char)(0x80 | (c & 0x3f));
        dst[2] = 0;
    }
}

/* How byte-level BPE spells a byte: itself where that is printable, else 256 and up (GPT-2). */
static unsigned byte_to_char(unsigned byte) {
    unsigned c = 256;
    for (unsigned b = 0; b < N_BYTES; b++) {
        bool printable =
            (b >= '!' && b <= '~') || (b >= 0xa1 && b <= 0xac) || (b >= 0xae && b <= 0xff);
        if (b == byte) return printable ? b : c;
        if (!printable) c++;
    }
    return 0;
}

/* Letters in pairs, then in fours: enough for any size, each token made of two earlier ones. */
static void pair(int64_t k, char left[8], char right[8]) {
    static const char letters[] = "etaoinshrdlucmfwypvbgkjqxz";
    if (k < 26 * 26) {
        snprintf(left, 8, "%c", letters[k / 26]);
        snprintf(right, 8, "%c", letters[k % 26]);
    } else {
        int64_t a = (k - 26 * 26) / (26 * 26) % (26 * 26), b = (k - 26 * 26) % (26 * 26);
        snprintf(left, 8, "%c%c", letters[a / 26], letters[a % 26]);
        snprintf(right, 8, "%c%c", letters[b / 26], letters[b % 26]);
    }
}

static void fill_spm(struct vocab *v) {
    char text[16], left[8], right[8];
    put_token(v, "<unk>", 0, TOKEN_UNKNOWN);
    put_token(v, "<s>", 0, TOKEN_CONTROL);
    put_token(v, "</s>", 0, TOKEN_CONTROL);
    for (unsigned b = 0; b < N_BYTES; b++) {
        snprintf(text, sizeof text, "<0x%02X>", b);
        put_token(v, text, 0, TOKEN_BYTE);
    }
    put_token(v, "\xe2\x96\x81", -1, TOKEN_NORMAL);
    for (char c = 'a'; c <= 'z'; c++) {
        text[0] = c;
        text[1] = 0;
        put_token(v, text, -1, TOKEN_NORMAL);
    }
    for (int64_t k = 0; v->i < v->n; k++) {
        pair(k, left, right);
        snprintf(text, sizeof text, "%s%s", left, right);
        put_token(v, text, -2.0f - (float)k, TOKEN_NORMAL);
    }
}

/* WordPiece: characters and pairs of letters, at the start of a word and inside. */
static void fill_wordpiece(struct vocab *v) {
    static const char mark[] = "\xe2\x96\x81";
    char text[16], left[8], right[8];
    put_token(v, "[PAD]", 0, TOKEN_CONTROL);
    put_token(v, "[UNK]", 0, TOKEN_UNKNOWN);
    put_token(v, "[CLS]", 0, TOKEN_CONTROL);
    put_token(v, "[SEP]", 0, TOKEN_CONTROL);
    put_token(v, "[MASK]", 0, TOKEN_CONTROL);
    for (char c = '!'; c <= '~'; c++) {
        snprintf(text, sizeof text, "%s%c", mark, c);
        put_token(v, text, 0, TOKEN_NORMAL);
        put_token(v, text + 3, 0, TOKEN_NORMAL);
    }
    for (int64_t k = 0; v->i < v->n; k++) {
        pair(k, left, right);
        snprintf(text, sizeof text, "%s%.5s%.5s", mark, left, right);
        put_token(v, text, 0, TOKEN_NORMAL);
        put_token(v, text + 3, 0, TOKEN_NORMAL);
    }
}

static void fill_bpe(struct vocab *v, char (*merges)[16], int64_t *n_merges) {
    char text[16], left[8], right[8];
    for (unsigned b = 0; b < N_BYTES; b++) {
        put_utf8(text, byte_to_char(b));
        put_token(v, text, 0, TOKEN_NORMAL);
    }
    put_token(v, "<|endoftext|>", 0, TOKEN_CONTROL);
    put_token(v, "<|im_start|>", 0, TOKEN_CONTROL);
    put_token(v, "<|im_end|>", 0, TOKEN_CONTROL);
    for (*n_merges = 0; v->i < v->n; (*n_merges)++) {
        pair(*n_merges, left, right);
        snprintf(text, sizeof text, "%s%s", left, right);
        put_token(v, text, 0, TOKEN_NORMAL);
        snprintf(merges[*n_merges], sizeof merges[0], "%s %s", left, right);
    }
}

static enum sheaf_status add_strings(struct sheaf_gguf *gguf, const char *key, char (*text)[16],
                                     int64_t n) {
    const char **p = malloc(((size_t)n + 1) * sizeof *p);
    if (!p) return no_memory();
    for (int64_t i = 0; i < n; i++) p[i] = text[i];
    enum sheaf_status status = sheaf_gguf_set_arr_str(gguf, key, p, (size_t)n);
    free(p);
    return status;
}

static enum sheaf_status add_numbers(struct sheaf_gguf *out, const char *const keys[],
                                     const uint32_t *values, size_t n) {
    enum sheaf_status status = SHEAF_STATUS_SUCCESS;
    for (size_t i = 0; !status && i < n; i++) status = sheaf_gguf_set_u32(out, keys[i], values[i]);
    return status;
}

static enum sheaf_status add_wordpiece_keys(struct sheaf_gguf *out) {
    static const char *const keys[] = {
        "tokenizer.ggml.padding_token_id", "tokenizer.ggml.unknown_token_id",
        "tokenizer.ggml.cls_token_id",     "tokenizer.ggml.bos_token_id",
        "tokenizer.ggml.eos_token_id",     "tokenizer.ggml.seperator_token_id",
        "tokenizer.ggml.mask_token_id",    "tokenizer.ggml.token_type_count"};
    static const uint32_t values[] = {0, 1, 2, 2, 3, 3, 4, 2};
    return add_numbers(out, keys, values, sizeof values / sizeof *values);
}

static enum sheaf_status add_vocab(struct generator *g) {
    const bool bpe = g->hp.arch->bpe, wordpiece = g->hp.arch->encoder;
    size_t n = (size_t)g->hp.n_vocab;
    int64_t n_merges = 0;
    struct vocab v = {.text = calloc(n, sizeof v.text[0]),
                      .scores = calloc(n, sizeof *v.scores),
                      .types = calloc(n, sizeof *v.types),
                      .n = g->hp.n_vocab};
    char(*merges)[16] = calloc(n, sizeof merges[0]);
    struct sheaf_gguf *out = g->gguf;
    enum sheaf_status status =
        v.text && v.scores && v.types && merges ? SHEAF_STATUS_SUCCESS : no_memory();
    if (status) goto out;
    if (bpe)
        fill_bpe(&v, merges, &n_merges);
    else if (wordpiece)
        fill_wordpiece(&v);
    else
        fill_spm(&v);
    status = sheaf_gguf_set_str(out, "tokenizer.ggml.model",
                                bpe         ? "gpt2"
                                : wordpiece ? "bert"
                                            : "llama");
    if (!status) status = add_strings(out, "tokenizer.ggml.tokens", v.text, v.n);
    if (!status)
        status =
            sheaf_gguf_set_arr(out, "tokenizer.ggml.token_type", SHEAF_GGUF_TYPE_INT32, v.types, n);
    if (bpe) {
        if (!status) status = sheaf_gguf_set_str(out, "tokenizer.ggml.pre", "qwen2");
        if (!status) status = add_strings(out, "tokenizer.ggml.merges", merges, n_merges);
        if (!status) status = sheaf_gguf_set_u32(out, "tokenizer.ggml.eos_token_id", N_BYTES);
        if (!status) status = sheaf_gguf_set_bool(out, "tokenizer.ggml.add_bos_token", false);
    } else if (!wordpiece) {
        if (!status)
            status = sheaf_gguf_set_arr(out, "tokenizer.ggml.scores", SHEAF_GGUF_TYPE_FLOAT32,
                                        v.scores, n);
        if (!status) status = sheaf_gguf_set_u32(out, "tokenizer.ggml.bos_token_id", 1);
        if (!status) status = sheaf_gguf_set_u32(out, "tokenizer.ggml.eos_token_id", 2);
        if (!status) status = sheaf_gguf_set_u32(out, "tokenizer.ggml.unknown_token_id", 0);
        if (!status) status = sheaf_gguf_set_bool(out, "tokenizer.ggml.add_bos_token", true);
    }
out:
    free(v.text);
    free(v.scores);
    free(v.types);
    free(merges);
    return status;
}

/* ---- metadata ---- */

/* Keys of single architectures, so that their random models use what is particular to them. */
enum kind { NUMBER, REAL, FLAG };

static const struct {
    const char *arch, *suffix;
    enum kind kind;
    double value;
} extras[] = {
    {"phi3", "rope.scaling.original_context_length", NUMBER, 64},
    {"phi3", "rope.scaling.attn_factor", REAL, 1.2},
    {"granite", "embedding_scale", REAL, 3},
    {"granite", "residual_scale", REAL, 0.5},
    {"granite", "attention.scale", REAL, 0.15},
    {"granite", "logit_scale", REAL, 2},
    {"granitemoe", "embedding_scale", REAL, 3},
    {"granitemoe", "residual_scale", REAL, 0.5},
    {"granitemoe", "attention.scale", REAL, 0.15},
    {"granitemoe", "logit_scale", REAL, 2},
    {"granitehybrid", "embedding_scale", REAL, 3},
    {"granitehybrid", "residual_scale", REAL, 0.5},
    {"granitehybrid", "attention.scale", REAL, 0.15},
    {"granitehybrid", "logit_scale", REAL, 2},
    {"gpt-oss", "rope.scaling.factor", REAL, 4},
    {"gpt-oss", "rope.scaling.original_context_length", NUMBER, 64},
    {"deepseek2", "rope.scaling.factor", REAL, 4},
    {"deepseek2", "rope.scaling.original_context_length", NUMBER, 64},
    {"deepseek2", "rope.scaling.yarn_log_multiplier", REAL, 0.0707},
    {"deepseek2", "leading_dense_block_count", NUMBER, 1},
    {"deepseek2", "expert_shared_count", NUMBER, 1},
    {"deepseek2", "expert_gating_func", NUMBER, 2},
    {"deepseek2", "expert_weights_norm", FLAG, 1},
    {"deepseek2", "expert_weights_scale", REAL, 2.5},
    {"bert", "attention.layer_norm_epsilon", REAL, 1e-12},
    {"bert", "attention.causal", FLAG, 0},
    {"bert", "pooling_type", NUMBER, 1},
};

static enum sheaf_status add_key(struct generator *g, const char *suffix, enum kind kind,
                                 double value) {
    char key[128];
    snprintf(key, sizeof key, "%s.%s", g->p->arch, suffix);
    if (kind == REAL) return sheaf_gguf_set_f32(g->gguf, key, (float)value);
    return kind == FLAG ? sheaf_gguf_set_bool(g->gguf, key, value > 0)
                        : sheaf_gguf_set_u32(g->gguf, key, (uint32_t)value);
}

/* Latent attention in the proportions of DeepSeek V3: of heads of 128 + 64 elements. */
static enum sheaf_status add_latent(struct generator *g) {
    const int64_t d = g->p->head_dim, rot = d / 2, latent = 4 * d, experts = g->p->n_expert;
    const bool groups = experts >= 8 && experts % 4 == 0;
    const struct {
        const char *suffix;
        int64_t v;
    } ints[] = {
        {"attention.head_count_kv", 1},         {"attention.q_lora_rank", 12 * d},
        {"attention.kv_lora_rank", latent},     {"attention.key_length", latent + rot},
        {"attention.value_length", latent},     {"attention.key_length_mla", d + rot},
        {"attention.value_length_mla", d},      {"rope.dimension_count", rot},
        {"expert_group_count", groups ? 4 : 0}, {"expert_group_used_count", groups ? 2 : 0},
    };
    enum sheaf_status status = SHEAF_STATUS_SUCCESS;
    for (size_t i = 0; !status && i < sizeof ints / sizeof *ints; i++)
        status = add_key(g, ints[i].suffix, NUMBER, (double)ints[i].v);
    return status;
}

/* States in the proportions of Mamba-2: twice as wide as the model, in heads of head_dim. */
static enum sheaf_status add_state(struct generator *g) {
    const int64_t inner = 2 * g->p->n_embd;
    const struct {
        const char *suffix;
        int64_t v;
    } ints[] = {
        {"ssm.conv_kernel", 4},
        {"ssm.inner_size", inner},
        {"ssm.state_size", 2 * g->p->head_dim},
        {"ssm.time_step_rank", inner / g->p->head_dim},
        {"ssm.group_count", g->p->n_head_kv},
    };
    enum sheaf_status status = SHEAF_STATUS_SUCCESS;
    for (size_t i = 0; !status && i < sizeof ints / sizeof *ints; i++)
        status = add_key(g, ints[i].suffix, NUMBER, (double)ints[i].v);
    return status;
}

/* Without attention or feed-forward. */
static enum sheaf_status add_no_attention(struct generator *g) {
    enum sheaf_status status = add_key(g, "attention.head_count", NUMBER, 0);
    if (!status) status = add_key(g, "attention.head_count_kv", NUMBER, 0);
    if (!status) status = add_key(g, "feed_forward_length", NUMBER, 0);
    return status ? status : add_state(g);
}

/* Attention in every third layer. */
static enum sheaf_status add_hybrid(struct generator *g) {
    int32_t heads[1024] = {0};
    char key[128];
    for (int64_t il = 1; il < g->p->n_layer; il += 3) heads[il] = (int32_t)g->p->n_head_kv;
    snprintf(key, sizeof key, "%s.attention.head_count_kv", g->p->arch);
    const enum sheaf_status status =
        sheaf_gguf_set_arr(g->gguf, key, SHEAF_GGUF_TYPE_INT32, heads, (size_t)g->p->n_layer);
    return status ? status : add_state(g);
}

static enum sheaf_status add_extras(struct generator *g) {
    const char *arch = g->p->arch;
    char key[128];
    enum sheaf_status status = SHEAF_STATUS_SUCCESS;
    for (size_t i = 0; !status && i < sizeof extras / sizeof *extras; i++)
        if (strcmp(extras[i].arch, arch) == 0)
            status = add_key(g, extras[i].suffix, extras[i].kind, extras[i].value);
    if (!status && g->p->n_layer_dense)
        status = add_key(g, "leading_dense_block_count", NUMBER, (double)g->p->n_layer_dense);
    snprintf(key, sizeof key, "%s.rope.scaling.factor", arch);
    if (!status && sheaf_gguf_find_key(g->gguf, key) >= 0) {
        snprintf(key, sizeof key, "%s.rope.scaling.type", arch);
        status = sheaf_gguf_set_str(g->gguf, key, "yarn");
    }
    if (!status && strcmp(arch, "deepseek2") == 0) status = add_latent(g);
    if (!status && strcmp(arch, "mamba2") == 0) status = add_no_attention(g);
    if (!status && strcmp(arch, "granitehybrid") == 0) status = add_hybrid(g);
    if (!status && strcmp(arch, "bert") == 0) status = add_wordpiece_keys(g->gguf);
    return status;
}

static enum sheaf_status add_metadata(struct generator *g) {
    const struct sheaf__random_model_params *p = g->p;
    const struct {
        const char *suffix;
        int64_t v;
    } ints[] = {
        {"context_length", p->n_ctx},
        {"embedding_length", p->n_embd},
        {"block_count", p->n_layer},
        {"feed_forward_length", p->n_ff_dense ? p->n_ff_dense : p->n_ff},
        {"attention.head_count", p->n_head},
        {"attention.head_count_kv", p->n_head_kv},
        {"attention.key_length", p->head_dim},
        {"attention.value_length", p->head_dim},
        {"rope.dimension_count", p->head_dim},
        {"attention.sliding_window", p->swa_window},
        {"expert_count", p->n_expert},
        {"expert_used_count", p->n_expert_used},
        {"expert_feed_forward_length", p->n_ff},
        {"expert_shared_feed_forward_length", p->n_ff_shared},
    };
    char key[128];
    enum sheaf_status status = sheaf_gguf_set_str(g->gguf, "general.architecture", p->arch);
    if (!status) status = sheaf_gguf_set_str(g->gguf, "general.name", "random weights");
    if (!status && g->mix)
        status = sheaf_gguf_set_u32(g->gguf, "general.file_type", sheaf__mix_file_type(g->mix));
    if (!status) status = sheaf_gguf_set_u32(g->gguf, "general.quantization_version", 2);
    for (size_t i = 0; !status && i < sizeof ints / sizeof *ints; i++) {
        if (strncmp(ints[i].suffix, "expert_", 7) == 0 && !p->n_expert) continue;
        snprintf(key, sizeof key, "%s.%s", p->arch, ints[i].suffix);
        status = sheaf_gguf_set_u32(g->gguf, key, (uint32_t)ints[i].v);
    }
    if (!status) status = add_extras(g);
    snprintf(key, sizeof key, "%s.attention.layer_norm_rms_epsilon", p->arch);
    if (!status) status = sheaf_gguf_set_f32(g->gguf, key, 1e-5f);
    snprintf(key, sizeof key, "%s.rope.freq_base", p->arch);
    if (!status) status = sheaf_gguf_set_f32(g->gguf, key, 10000.0f);
    return status;
}

/* What the keys of experts would not say: they are written for a mixture only. */
static enum sheaf_status check_experts(const struct sheaf__random_model_params *p) {
    const struct sheaf__arch *arch;
    const enum sheaf_status status = sheaf__arch_find(p->arch, "random model", &arch);
    if (status) return status;
    if (p->n_expert && !arch->mixture)
        return sheaf_set_error(SHEAF_STATUS_INVALID,
                               "architecture %s has no experts: leave out experts", p->arch);
    if (!p->n_expert && arch->mixture && !arch->dense)
        return sheaf_set_error(SHEAF_STATUS_INVALID,
                               "architecture %s has experts in every layer: give experts and "
                               "experts-used",
                               p->arch);
    if (p->n_expert && (p->n_expert_used < 1 || p->n_expert_used > p->n_expert))
        return sheaf_set_error(SHEAF_STATUS_INVALID,
                               "experts-used is %" PRId64 "; allowed are 1..%" PRId64
                               ", the number of experts",
                               p->n_expert_used, p->n_expert);
    if (!p->n_expert && (p->n_expert_used || p->n_ff_shared))
        return sheaf_set_error(SHEAF_STATUS_INVALID,
                               "experts-used and shared-ff want a number of experts");
    return SHEAF_STATUS_SUCCESS;
}

static enum sheaf_status check(const struct sheaf__random_model_params *p) {
    const struct {
        const char *name;
        int64_t v, min, max;
    } ranges[] = {
        {"layers", p->n_layer, 1, 1024},
        {"embd", p->n_embd, 1, 1 << 16},
        {"heads", p->n_head, 1, 1024},
        {"kv-heads", p->n_head_kv, 1, p->n_head},
        {"head-dim", p->head_dim, 2, 1024},
        {"ff", p->n_ff, 1, 1 << 18},
        {"vocab", p->n_vocab, MIN_VOCAB, MAX_VOCAB / 4},
        {"ctx", p->n_ctx, 1, 1 << 24},
        {"window", p->swa_window, 0, 1 << 24},
        {"experts", p->n_expert, 0, 4096},
        {"experts-used", p->n_expert_used, 0, 4096},
        {"shared-ff", p->n_ff_shared, 0, 1 << 18},
    };
    for (size_t i = 0; i < sizeof ranges / sizeof *ranges; i++) {
        if (ranges[i].v < ranges[i].min || ranges[i].v > ranges[i].max)
            return sheaf_set_error(SHEAF_STATUS_INVALID,
                                   "%s is %" PRId64 "; allowed are %" PRId64 "..%" PRId64,
                                   ranges[i].name, ranges[i].v, ranges[i].min, ranges[i].max);
    }
    if (p->n_head % p->n_head_kv || p->head_dim % 2)
        return sheaf_set_error(SHEAF_STATUS_INVALID,
                               "heads must be a multiple of kv-heads, and head-dim even");
    if (!sheaf_type_is_known(p->type) || p->type == SHEAF_TYPE_I32 || p->type == SHEAF_TYPE_I64)
        return sheaf_set_error(SHEAF_STATUS_INVALID, "weights cannot be of type %s",
                               sheaf_type_name(p->type));
    return check_experts(p);
}

/* Metadata, vocabulary and the list of tensors. */
static enum sheaf_status describe(struct generator *g) {
    const struct sheaf__random_model_params *params = g->p;
    enum sheaf_status status = check(params);
    if (status) return status;
    if (params->mix && !(g->mix = sheaf__mix_find(params->mix)))
        return sheaf_set_error(SHEAF_STATUS_INVALID, "there is no type or mix '%.40s'",
                               params->mix);
    g->gguf = sheaf_gguf_new();
    if (!g->gguf) return SHEAF_STATUS_ALLOC_FAILED;
    status = add_metadata(g);
    /* read back what was written, so that shapes follow the loader's own rules */
    if (!status) status = sheaf__hparams_read(g->gguf, params->n_vocab, &g->hp);
    if (!status) status = add_vocab(g);
    return status ? status : add_weights(g);
}

enum sheaf_status sheaf__random_model_describe(const struct sheaf__random_model_params *params,
                                               struct sheaf_gguf **out) {
    struct generator g = {.p = params};
    const enum sheaf_status status = describe(&g);
    *out = status ? NULL : g.gguf;
    if (status) sheaf_gguf_free(g.gguf);
    free(g.entries);
    return status;
}

enum sheaf_status sheaf__random_model_write(const struct sheaf__random_model_params *params,
                                            const char *path) {
    struct generator g = {.p = params, .state = params->seed};
    enum sheaf_status status = describe(&g);
    if (!status) status = sheaf_gguf_write_from(g.gguf, path, fill, &g);
    free(g.entries);
    free(g.row);
    free(g.data);
    sheaf_gguf_free(g.gguf);
    return status;
}
