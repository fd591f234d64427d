/* The table of mixes: a base type, the type of the output matrix, and exceptions, of which the
 * first that fits decides. */
#include "model/file/mix.h"

#include <string.h>

#include "base/locale.h"
#include "model/arch/arch.h"

/* In which layers an exception holds. */
enum where {
    NOWHERE,
    EVERYWHERE,
    SOME,         /* the first and the last eighth, and every third between */
    FIRST_4,      /* layers */
    FIRST_EIGHTH, /* of the layers */
    FIRST_2,
    FIRST_SIXTEENTH,
    GROUPED,       /* everywhere, if a K/V head has 4 query heads or more */
    EIGHT_EXPERTS, /* everywhere, if there are 8, as in Mixtral */
};

struct exception {
    enum sheaf__weight weight;
    enum where where;
    enum sheaf_type type;
};

enum { MAX_EXCEPTIONS = 6 };

struct sheaf__mix {
    const char *name;
    uint32_t file_type;
    enum sheaf_type base, output;
    struct exception exceptions[MAX_EXCEPTIONS];
};

#define T(name) SHEAF_TYPE_##name
#define V       SHEAF__W_V
#define DOWN    SHEAF__W_DOWN
#define O       SHEAF__W_O
#define EMBD    SHEAF__W_TOKEN_EMBD
/* the experts; of SHEAF__W_DOWN_EXPERTS, see sheaf__mix_type */
#define EXPERTS                                                                                    \
    {SHEAF__W_GATE_EXPERTS, EVERYWHERE, T(MXFP4)}, {SHEAF__W_UP_EXPERTS, EVERYWHERE, T(MXFP4)}, {  \
        SHEAF__W_DOWN_EXPERTS, EVERYWHERE, T(MXFP4)                                                \
    }

/* clang-format off */
static const struct sheaf__mix mixes[] = {
    {"F32",     0, T(F32),  T(F32),  {{0}}},
    {"F16",     1, T(F16),  T(F16),  {{0}}},
    {"BF16",   32, T(BF16), T(BF16), {{0}}},
    {"Q8_0",    7, T(Q8_0), T(Q8_0), {{0}}},
    {"Q4_0",    2, T(Q4_0), T(Q6_K), {{0}}},
    {"Q4_1",    3, T(Q4_1), T(Q6_K), {{0}}},
    {"Q5_0",    8, T(Q5_0), T(Q6_K), {{0}}},
    {"Q5_1",    9, T(Q5_1), T(Q6_K), {{0}}},
    {"Q4_K_S", 14, T(Q4_K), T(Q6_K), {{V, FIRST_4, T(Q5_K)}, {DOWN, FIRST_EIGHTH, T(Q5_K)},
                                      {O, EIGHT_EXPERTS, T(Q5_K)}}},
    {"Q4_K_M", 15, T(Q4_K), T(Q6_K), {{V, SOME, T(Q6_K)}, {DOWN, SOME, T(Q6_K)},
                                      {O, EIGHT_EXPERTS, T(Q5_K)}}},
    {"Q5_K_S", 16, T(Q5_K), T(Q6_K), {{0}}},
    {"Q5_K_M", 17, T(Q5_K), T(Q6_K), {{V, SOME, T(Q6_K)}, {DOWN, SOME, T(Q6_K)}}},
    {"Q6_K",   18, T(Q6_K), T(Q6_K), {{0}}},
    {"Q2_K",   10, T(Q2_K), T(Q6_K), {{V, GROUPED, T(Q4_K)}, {V, EVERYWHERE, T(Q3_K)},
                                      {DOWN, EVERYWHERE, T(Q3_K)}, {O, EIGHT_EXPERTS, T(Q5_K)},
                                      {O, EVERYWHERE, T(Q3_K)}}},
    {"Q3_K_S", 11, T(Q3_K), T(Q6_K), {{O, EIGHT_EXPERTS, T(Q5_K)}}},
    {"Q3_K_M", 12, T(Q3_K), T(Q6_K), {{V, FIRST_2, T(Q5_K)}, {V, EVERYWHERE, T(Q4_K)},
                                      {DOWN, FIRST_SIXTEENTH, T(Q5_K)}, {DOWN, EVERYWHERE, T(Q4_K)},
                                      {O, EIGHT_EXPERTS, T(Q5_K)}, {O, EVERYWHERE, T(Q4_K)}}},
    {"Q3_K_L", 13, T(Q3_K), T(Q6_K), {{V, EVERYWHERE, T(Q5_K)}, {DOWN, EVERYWHERE, T(Q5_K)},
                                      {O, EIGHT_EXPERTS, T(Q3_K)}, {O, EVERYWHERE, T(Q5_K)}}},
    {"IQ4_NL", 25, T(IQ4_NL), T(Q6_K), {{V, GROUPED, T(Q5_K)}, {DOWN, FIRST_EIGHTH, T(Q5_K)},
                                        {O, EIGHT_EXPERTS, T(Q5_K)}}},
    {"IQ4_XS", 30, T(IQ4_XS), T(Q6_K), {{V, GROUPED, T(Q5_K)}, {DOWN, FIRST_EIGHTH, T(Q5_K)},
                                        {O, EIGHT_EXPERTS, T(Q5_K)}}},
    {"MXFP4_MOE", 38, T(Q8_0), T(Q8_0), {EXPERTS}},
    {"MXFP4",  38, T(MXFP4), T(Q8_0), {{0}}}, /* dense models too: no name of llama-quantize */
    {"NVFP4",  39, T(NVFP4), T(Q6_K), {{0}}},
    {"TQ1_0",  36, T(TQ1_0), T(Q6_K), {{EMBD, EVERYWHERE, T(Q4_K)}}},
    {"TQ2_0",  37, T(TQ2_0), T(Q6_K), {{EMBD, EVERYWHERE, T(Q4_K)}}},
    {"Q1_0",   40, T(Q1_0), T(Q6_K), {{0}}},
    {"Q2_0",   41, T(Q2_0), T(Q6_K), {{EMBD, EVERYWHERE, T(Q4_K)}}},
};
/* clang-format on */
enum { N_MIXES = sizeof mixes / sizeof *mixes };

size_t sheaf__mix_count(void) { return N_MIXES; }
const struct sheaf__mix *sheaf__mix_get(size_t i) { return &mixes[i]; }
const char *sheaf__mix_name(const struct sheaf__mix *mix) { return mix->name; }
uint32_t sheaf__mix_file_type(const struct sheaf__mix *mix) { return mix->file_type; }

const struct sheaf__mix *sheaf__mix_find(const char *name) {
    for (int i = 0; i < N_MIXES; i++) {
        if (sheaf__strcasecmp(mixes[i].name, name) == 0) return &mixes[i];
    }
    /* what people call the medium mix */
    if (sheaf__strcasecmp(name, "Q4_K") == 0) return sheaf__mix_find("Q4_K_M");
    if (sheaf__strcasecmp(name, "Q5_K") == 0) return sheaf__mix_find("Q5_K_M");
    if (sheaf__strcasecmp(name, "Q3_K") == 0) return sheaf__mix_find("Q3_K_M");
    return NULL;
}

/* In layer `layer` of the model? */
static bool holds(enum where where, int64_t layer, const struct sheaf__mix_model *model) {
    const int64_t n = model->n_layer;
    switch (where) {
    case GROUPED:
        return model->gqa >= 4;
    case FIRST_2:
        return layer < 2;
    case FIRST_SIXTEENTH:
        return layer < n / 16;
    case EVERYWHERE:
        return true;
    case SOME:
        return layer < n / 8 || layer >= 7 * n / 8 || (layer - n / 8) % 3 == 2;
    case FIRST_4:
        return layer < 4;
    case FIRST_EIGHTH:
        return layer < n / 8;
    case EIGHT_EXPERTS:
        return model->n_expert == 8;
    case NOWHERE:
    default:
        return false;
    }
}

enum sheaf_type sheaf__mix_fitting(enum sheaf_type type, int64_t ne0) {
    static const enum sheaf_type larger[SHEAF_TYPE_COUNT] = {
        [T(Q4_K)] = T(Q5_0),     [T(Q5_K)] = T(Q5_1),  [T(Q6_K)] = T(Q8_0),  [T(Q2_K)] = T(Q4_0),
        [T(Q3_K)] = T(Q4_0),     [T(TQ1_0)] = T(Q4_0), [T(TQ2_0)] = T(Q4_0), [T(Q2_0)] = T(Q4_0),
        [T(IQ4_XS)] = T(IQ4_NL), [T(Q1_0)] = T(Q4_0),  [T(NVFP4)] = T(MXFP4)};
    if (ne0 % sheaf_blck_size(type) == 0) return type;
    if (larger[type] && ne0 % sheaf_blck_size(larger[type]) == 0) return larger[type];
    return T(F16);
}

/* The last matrices of experts are chosen as that of a dense layer is, and one that holds q, k and v
 * as that of v. */
static enum sheaf__weight like(enum sheaf__weight weight) {
    if (weight == SHEAF__W_DOWN_EXPERTS || weight == SHEAF__W_DOWN_SHARED) return SHEAF__W_DOWN;
    return weight == SHEAF__W_QKV ? SHEAF__W_V : weight;
}

bool sheaf__mix_is_70b(const char *arch, int64_t n_layer, int64_t gqa) {
    return n_layer == 80 && ((!strcmp(arch, "llama") && gqa != 1) || !strcmp(arch, "qwen2"));
}

/* Matrices that are small beside the rest of a model get more bits in every mix. */
static enum sheaf_type enlarge(enum sheaf_type type, const struct sheaf__mix *mix,
                               const struct sheaf__mix_model *model, enum sheaf__weight weight) {
    const bool is_v = like(weight) == SHEAF__W_V;
    if (!sheaf_is_quantized(mix->base)) return type;
    if (model->n_expert == 8 && (is_v || weight == SHEAF__W_K)) return T(Q8_0);
    return model->is_70b && is_v && (type == T(Q3_K) || type == T(Q4_K)) ? T(Q5_K) : type;
}

/* Parts of names of matrices that stay F32, in any architecture: norms with a row for each head, convolutions and terms
 * that are added to activations, all of which ggml's CPU backend takes in F32 alone, and some small matrices.
 * llama-quantize leaves the same, except for those in the last line. */
/* clang-format off */
static const char *const exact_parts[] = {
    "_norm.weight", "ssm_conv1d", "shortconv.conv.", "altup", "laurel", "per_layer_model_proj.", "attn_rel_b.",
    ".position_embd.", "indexer.q_proj", "indexer.k_proj", "time_mix_first.", "time_mix_lerp_fused.",
    "time_mix_w0.", "time_mix_w1.", "time_mix_w2.", "time_mix_v0.", "time_mix_v1.", "time_mix_v2.", "time_mix_a0.",
    "time_mix_a1.", "time_mix_a2.", "time_mix_g1.", "time_mix_g2.", "time_mix_decay_w1.", "time_mix_decay_w2.",
    "compressor_ape.", "ple_norm_", "ple_conv1d.",
};
/* clang-format on */

static bool is_exact(enum sheaf__weight weight, const char *name) {
    bool exact = weight != SHEAF__W_COUNT && sheaf__weight_infos[weight].exact;
    for (size_t i = 0; i < sizeof exact_parts / sizeof *exact_parts; i++)
        exact = exact || strstr(name, exact_parts[i]);
    return exact;
}

enum sheaf_type sheaf__mix_type(const struct sheaf__mix *mix, const struct sheaf__mix_model *model,
                                const char *name, int64_t ne0) {
    int64_t layer;
    const enum sheaf__weight weight = sheaf__weight_find(name, 0, &layer);
    const bool is_output =
        weight == SHEAF__W_OUTPUT || (weight == SHEAF__W_TOKEN_EMBD && model->tied);
    enum sheaf_type type = is_output ? mix->output : mix->base;
    if (is_exact(weight, name)) return T(F32);
    for (int i = 0; i < MAX_EXCEPTIONS && !is_output; i++) {
        const struct exception *e = &mix->exceptions[i];
        if (e->where == NOWHERE) break;
        if ((e->weight != like(weight) && e->weight != weight) || !holds(e->where, layer, model))
            continue;
        type = e->type;
        break;
    }
    return sheaf__mix_fitting(enlarge(type, mix, model, weight), ne0);
}
