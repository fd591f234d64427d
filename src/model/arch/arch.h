/* Architectures: which weights each has, what its dimensions mean, and how its graph is built. A
 * new one is a file NAME.c and a line of archs.def.
 *
 * One table of weights serves all: a weight is a name, the meaning of its dimensions (from which
 * its shape is checked and its cut follows), and a number. An architecture says which it needs and
 * which it may have; a tensor that it neither needs nor allows is an error, because ignoring one
 * would compute something else than the file's author meant. */
#ifndef SHEAF_MODEL_ARCH_H
#define SHEAF_MODEL_ARCH_H

#include "model/file/hparams.h"

/* What a dimension counts. */
enum sheaf__dim {
    SHEAF__DIM_NONE,        /* 1 */
    SHEAF__DIM_EMBD,        /* n_embd */
    SHEAF__DIM_Q,           /* n_head x head_k */
    SHEAF__DIM_K,           /* n_head_kv x head_k */
    SHEAF__DIM_V,           /* n_head_kv x head_v */
    SHEAF__DIM_QKV,         /* the three above, one after the other */
    SHEAF__DIM_O,           /* n_head x head_v */
    SHEAF__DIM_FF,          /* n_ff */
    SHEAF__DIM_GATE_UP,     /* 2 n_ff: gate, then up */
    SHEAF__DIM_FF_EXPERT,   /* n_ff of an expert */
    SHEAF__DIM_FF_SHARED,   /* n_ff of the experts that every token uses, together */
    SHEAF__DIM_EXPERT,      /* n_expert */
    SHEAF__DIM_VOCAB,       /* n_vocab */
    SHEAF__DIM_HEAD,        /* head_k */
    SHEAF__DIM_HEADS,       /* n_head */
    SHEAF__DIM_LORA_Q,      /* n_lora_q */
    SHEAF__DIM_LORA_KV,     /* n_lora_kv */
    SHEAF__DIM_LORA_KV_ROT, /* n_lora_kv + n_rot */
    SHEAF__DIM_NOPE,        /* head_k - n_rot */
    SHEAF__DIM_HEAD_V,      /* head_v */
    SHEAF__DIM_ROT,         /* n_rot / 2 */
    SHEAF__DIM_POSITIONS,   /* n_ctx_train */
    SHEAF__DIM_KINDS,       /* n_token_kinds */
    /* Of layers with a state (Mamba-2): taps of the convolution, heads x size, its channels (x, B
     * and C), the rows of the matrix before it (z, x, B, C, dt), heads, groups, elements of a
     * group, and 1. */
    SHEAF__DIM_TAPS,
    SHEAF__DIM_INNER,
    SHEAF__DIM_CHANNELS,
    SHEAF__DIM_SSM_IN,
    SHEAF__DIM_SSM_HEADS,
    SHEAF__DIM_SSM_GROUPS,
    SHEAF__DIM_SSM_GROUP,
    SHEAF__DIM_ONE,
    SHEAF__DIM_COUNT,
};

/* Weights of a layer ("blk.N.<name>") and of the model. */
enum sheaf__weight {
    SHEAF__W_ATTN_NORM,
    SHEAF__W_Q,
    SHEAF__W_K,
    SHEAF__W_V,
    SHEAF__W_QKV,
    SHEAF__W_Q_BIAS,
    SHEAF__W_K_BIAS,
    SHEAF__W_V_BIAS,
    SHEAF__W_QKV_BIAS,
    SHEAF__W_Q_NORM,
    SHEAF__W_K_NORM,
    SHEAF__W_Q_NORM_WHOLE, /* over all heads of a token */
    SHEAF__W_K_NORM_WHOLE,
    SHEAF__W_Q_A, /* MLA: x to n_lora_q, to heads; x to what K and V are made of */
    SHEAF__W_Q_A_NORM,
    SHEAF__W_Q_B,
    SHEAF__W_KV_A,
    SHEAF__W_KV_A_NORM,
    SHEAF__W_K_B, /* a matrix for each head */
    SHEAF__W_V_B,
    SHEAF__W_SINKS,
    SHEAF__W_O,
    SHEAF__W_O_BIAS,
    SHEAF__W_ATTN_POST_NORM,
    SHEAF__W_FFN_NORM,
    SHEAF__W_GATE,
    SHEAF__W_UP,
    SHEAF__W_GATE_UP, /* under the name of up */
    SHEAF__W_DOWN,
    SHEAF__W_ROUTER,
    SHEAF__W_ROUTER_BIAS,
    SHEAF__W_CHOICE_BIAS, /* on the scores of experts while they are chosen */
    SHEAF__W_GATE_EXPERTS,
    SHEAF__W_UP_EXPERTS,
    SHEAF__W_DOWN_EXPERTS,
    SHEAF__W_GATE_EXPERTS_BIAS,
    SHEAF__W_UP_EXPERTS_BIAS,
    SHEAF__W_DOWN_EXPERTS_BIAS,
    SHEAF__W_GATE_SHARED,
    SHEAF__W_UP_SHARED,
    SHEAF__W_DOWN_SHARED,
    SHEAF__W_FFN_POST_NORM,
    SHEAF__W_UP_BIAS,
    SHEAF__W_DOWN_BIAS,
    SHEAF__W_ATTN_OUT_NORM, /* of BERT: behind the residual, with biases */
    SHEAF__W_ATTN_OUT_NORM_BIAS,
    SHEAF__W_LAYER_OUT_NORM,
    SHEAF__W_LAYER_OUT_NORM_BIAS,
    SHEAF__W_ROPE_FREQS_LAYER,
    SHEAF__W_SSM_IN,
    SHEAF__W_SSM_CONV,
    SHEAF__W_SSM_CONV_BIAS,
    SHEAF__W_SSM_DT_BIAS,
    SHEAF__W_SSM_A,
    SHEAF__W_SSM_D,
    SHEAF__W_SSM_NORM,
    SHEAF__W_SSM_OUT,
    SHEAF__W_LAYER_COUNT,
    SHEAF__W_TOKEN_EMBD = SHEAF__W_LAYER_COUNT,
    SHEAF__W_OUTPUT_NORM,
    SHEAF__W_OUTPUT,
    SHEAF__W_ROPE_FREQS,
    SHEAF__W_ROPE_LONG,   /* factors of contexts longer than n_ctx_orig */
    SHEAF__W_ROPE_SHORT,  /* and of all others */
    SHEAF__W_POSITIONS,   /* learned, a column each */
    SHEAF__W_TOKEN_KINDS, /* of which every token here is of the first */
    SHEAF__W_EMBD_NORM,
    SHEAF__W_EMBD_NORM_BIAS,
    SHEAF__W_COUNT,
    /* Of a layer, too, but not in the file: for tags. */
    SHEAF__CACHE_K = SHEAF__W_COUNT,
    SHEAF__CACHE_V,
    SHEAF__CACHE_CONV,  /* the last inputs of a convolution */
    SHEAF__CACHE_STATE, /* of a layer with a state */
};

/* Which half of a layer a weight belongs to. */
enum sheaf__half { SHEAF__HALF_ATTENTION, SHEAF__HALF_FFN, SHEAF__HALF_NONE };

enum { SHEAF__MAX_WEIGHT_DIMS = 3 };

struct sheaf__weight_info {
    const char *name; /* of a layer's weight: what follows "blk.N." */
    enum sheaf__dim dims[SHEAF__MAX_WEIGHT_DIMS];
    enum sheaf__half half;
    bool exact; /* a matrix that stays F32 when a file is quantized: it decides, or is a bias */
};
extern const struct sheaf__weight_info sheaf__weight_infos[SHEAF__W_COUNT];

/* Sets of weights: of a layer, and of the model. */
#define SHEAF__W_BIT(w)      ((uint64_t)1 << SHEAF__W_##w)
#define SHEAF__W_OF_MODEL(w) ((uint64_t)1 << (SHEAF__W_##w - SHEAF__W_LAYER_COUNT))

/* "blk.3.attn_q.weight" -> SHEAF__W_Q, *layer 3; -1 for a weight of the model. COUNT if unknown. Of
 * two weights with one name, the one that is in the set `of_layer`, otherwise the first. */
enum sheaf__weight sheaf__weight_find(const char *name, uint64_t of_layer, int64_t *layer);
int64_t sheaf__dim_extent(const struct sheaf__hparams *hp, enum sheaf__dim dim);
/* Dimensions of a weight: 1..SHEAF__MAX_WEIGHT_DIMS. */
int sheaf__weight_n_dims(enum sheaf__weight weight);
/* Does the weight hold a matrix, or a bias, for each expert? */
bool sheaf__weight_is_of_experts(enum sheaf__weight weight);
/* Is it the first operand of products and nothing else? (Not of embeddings, which may be the output
 * matrix, too.) */
bool sheaf__weight_is_factor(enum sheaf__weight weight);
/* Vectors, and the biases of experts: operands of F32 arithmetic. */
bool sheaf__weight_is_f32(enum sheaf__weight weight);

/* Of attention behind a norm, which most architectures have; a feed-forward, and its mixture. */
#define SHEAF__W_ATTENTION                                                                         \
    (SHEAF__W_BIT(ATTN_NORM) | SHEAF__W_BIT(Q) | SHEAF__W_BIT(K) | SHEAF__W_BIT(V) |               \
     SHEAF__W_BIT(O))
#define SHEAF__W_DENSE (SHEAF__W_BIT(GATE) | SHEAF__W_BIT(UP) | SHEAF__W_BIT(DOWN))
#define SHEAF__W_MIXTURE                                                                           \
    (SHEAF__W_BIT(ROUTER) | SHEAF__W_BIT(GATE_EXPERTS) | SHEAF__W_BIT(UP_EXPERTS) |                \
     SHEAF__W_BIT(DOWN_EXPERTS))
#define SHEAF__W_SHARED                                                                            \
    (SHEAF__W_BIT(GATE_SHARED) | SHEAF__W_BIT(UP_SHARED) | SHEAF__W_BIT(DOWN_SHARED))
/* Multi-head latent attention, without the weights of its queries. */
#define SHEAF__W_LATENT                                                                            \
    (SHEAF__W_BIT(ATTN_NORM) | SHEAF__W_BIT(KV_A) | SHEAF__W_BIT(KV_A_NORM) | SHEAF__W_BIT(K_B) |  \
     SHEAF__W_BIT(V_B) | SHEAF__W_BIT(O))
#define SHEAF__W_STATE                                                                             \
    (SHEAF__W_BIT(SSM_IN) | SHEAF__W_BIT(SSM_CONV) | SHEAF__W_BIT(SSM_CONV_BIAS) |                 \
     SHEAF__W_BIT(SSM_DT_BIAS) | SHEAF__W_BIT(SSM_A) | SHEAF__W_BIT(SSM_D) |                       \
     SHEAF__W_BIT(SSM_NORM) | SHEAF__W_BIT(SSM_OUT))
#define SHEAF__W_MODEL (SHEAF__W_OF_MODEL(TOKEN_EMBD) | SHEAF__W_OF_MODEL(OUTPUT_NORM))

struct sheaf__builder;

struct sheaf__arch {
    const char *name; /* general.architecture, and prefix of its keys */
    /* Sets of a layer's weights; q, k, v may come fused as qkv. */
    uint64_t needs;   /* in every layer */
    uint64_t dense;   /* in a layer without experts; 0: every layer has some */
    uint64_t mixture; /* in a layer with experts; 0: none has any */
    uint64_t attends; /* in a layer with attention, where others have a state */
    uint64_t scans;   /* in a layer with a state in place of attention; 0: none has one */
    uint64_t allows;
    uint64_t model_needs, model_allows; /* SHEAF__W_OF_MODEL */
    /* Every token sees all others, there is no cache, and the results of the last layer are what is
     * asked for: an embedding, not logits. */
    bool encoder;
    bool bpe; /* random models get a byte-level vocabulary; encoders one of WordPiece */
    /* What differs from the defaults; may be NULL. */
    enum sheaf_status (*read_hparams)(const struct sheaf_gguf *gguf, struct sheaf__hparams *hp);
    /* The tokens' [n_embd, n] before the first layer; NULL: sheaf__build_embedding. */
    struct sheaf_tensor *(*embedding)(struct sheaf__builder *b);
    /* Layer il in two halves, each from x [n_embd, n] to the x of the next, residual included. NULL
     * on error. */
    struct sheaf_tensor *(*attention)(struct sheaf__builder *b, int64_t il, struct sheaf_tensor *x);
    /* ffn may be NULL: a layer is its first half. */
    struct sheaf_tensor *(*ffn)(struct sheaf__builder *b, int64_t il, struct sheaf_tensor *x);
};

#define ARCH(name) extern const struct sheaf__arch sheaf__arch_##name;
#include "model/arch/archs.def"
#undef ARCH
/* The architectures of archs.def; NULL behind the last. */
const struct sheaf__arch *sheaf__arch_get(size_t i);
/* What layer il must have. */
uint64_t sheaf__arch_layer_needs(const struct sheaf__hparams *hp, int64_t il);
/* UNSUPPORTED with the list of architectures; `path` for the message. */
enum sheaf_status sheaf__arch_find(const char *name, const char *path,
                                   const struct sheaf__arch **out);

#endif
