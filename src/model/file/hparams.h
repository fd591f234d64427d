/* Hyperparameters of a model: what its GGUF metadata says, checked and completed with defaults. */
#ifndef SHEAF_MODEL_HPARAMS_H
#define SHEAF_MODEL_HPARAMS_H

#include "sheaf/gguf.h"

struct sheaf__arch;

enum { SHEAF__MAX_LAYERS = 4096 };

/* How scores of experts become weights; numbers of the key expert_gating_func. */
enum sheaf__gating {
    SHEAF__GATING_SOFTMAX = 1,
    SHEAF__GATING_SIGMOID = 2,
    SHEAF__GATING_SOFTMAX_OF_CHOSEN = 3,
};

/* What one embedding is made of; numbers of the key pooling_type. */
enum sheaf__pooling {
    SHEAF__POOLING_NONE = 0,
    SHEAF__POOLING_MEAN = 1,
    SHEAF__POOLING_CLS = 2, /* the first token's */
    SHEAF__POOLING_LAST = 3,
};

struct sheaf__hparams {
    const struct sheaf__arch *arch;
    int64_t n_layer, n_embd, n_ff, n_vocab, n_ctx_train;
    int64_t n_expert, n_expert_used; /* 0: no experts; of each layer, and for a token */
    int64_t n_ff_expert;             /* n_ff of an expert */
    int64_t n_ff_shared;             /* of the experts that every token uses, together; 0: none */
    int64_t n_layer_dense;           /* the first layers, which have no experts */
    int64_t n_groups,
        n_groups_used; /* of experts; those of the best groups can be chosen. 0: none */
    enum sheaf__gating gating;
    bool expert_norm;          /* weights of those chosen are divided by their sum */
    float expert_scale;        /* and multiplied by this */
    int64_t n_head, n_head_kv; /* n_head is a multiple of n_head_kv */
    int64_t head_k, head_v;    /* elements of a head of q and k, and of v */
    int64_t n_rot;             /* rotated elements of a head, even, <= head_k */
    /* Multi-head latent attention: K and V of a token are made of n_lora_kv elements, which are
     * what the cache holds, with n_rot rotated ones; queries go through n_lora_q. 0: none */
    int64_t n_lora_q, n_lora_kv;
    float rms_eps;
    float norm_eps;                      /* of norms that take the mean away */
    int64_t n_token_kinds;               /* of BERT */
    enum sheaf__pooling pooling;         /* of an encoder's results */
    int64_t n_ctx_orig;                  /* tokens of training before positions were scaled */
    float freq_base, freq_scale;         /* of layers with full attention */
    float freq_base_swa, freq_scale_swa; /* of layers with a sliding window */
    float ext_factor, attn_factor;       /* of rotary positions: 1 and YaRN's factor, or 0 and 1 */
    /* YaRN's: pairs that turn beta_fast times and more in n_ctx_orig tokens stay as they are, those
     * of beta_slow turns and fewer are slowed in full */
    float beta_fast, beta_slow;
    bool no_rope;                        /* positions are not rotated in at all */
    int64_t n_ctx_plain; /* queries at positions from this on are scaled, which is not
                                            built here; 0: none are */
    float attn_scale;                    /* on q.k */
    float embd_scale;                    /* on token embeddings, 1 if none */
    float residual_scale;                /* on what a half of a layer adds, 1 if none */
    float logit_scale;                   /* logits are divided by it, 1 if none */
    float logit_cap; /* then they become cap tanh(logit / cap); 0: they do not */
    /* Layers with a state: heads of d_inner / n_ssm_head elements, n_ssm_group groups of which
     * share their inputs, a state of d_state for each element; a convolution over n_taps tokens. 0:
     * none */
    uint64_t recurrent[SHEAF__MAX_LAYERS / 64]; /* bit il: layer il has a state, not attention */
    int64_t n_taps, d_inner, d_state, n_ssm_head, n_ssm_group;
    int64_t swa_window; /* a token sees itself and swa_window - 1 before it; 0: no windows */
    int64_t swa_period; /* the last of each swa_period layers has full attention */
};

/* n_vocab: rows of token_embd.weight, which decide over the metadata. */
enum sheaf_status sheaf__hparams_read(const struct sheaf_gguf *gguf, int64_t n_vocab,
                                      struct sheaf__hparams *out);
/* Does layer il attend to a sliding window only? */
bool sheaf__hparams_is_swa(const struct sheaf__hparams *hp, int64_t il);

/* Elements of a row of the K cache, and of the V cache; V is part of K with latent attention. */
int64_t sheaf__hparams_cache_k(const struct sheaf__hparams *hp);
int64_t sheaf__hparams_cache_v(const struct sheaf__hparams *hp);
/* Channels of the convolution of a layer with a state. */
int64_t sheaf__hparams_channels(const struct sheaf__hparams *hp);
/* Has layer il a state in place of attention? */
bool sheaf__hparams_is_recurrent(const struct sheaf__hparams *hp, int64_t il);
int64_t sheaf__hparams_n_recurrent(const struct sheaf__hparams *hp);
/* Does layer il have a mixture of experts? */
bool sheaf__hparams_has_experts(const struct sheaf__hparams *hp, int64_t il);

/* For the readers of single architectures. `suffix` follows "<arch>."; out keeps its value if the
 * key is absent. An array counts as a number if all its elements are equal. */
enum sheaf_status sheaf__hparams_int(const struct sheaf_gguf *gguf, const char *arch,
                                     const char *suffix, int64_t min, int64_t max, int64_t *out);
enum sheaf_status sheaf__hparams_float(const struct sheaf_gguf *gguf, const char *arch,
                                       const char *suffix, double min, double max, float *out);
enum sheaf_status sheaf__hparams_bool(const struct sheaf_gguf *gguf, const char *arch,
                                      const char *suffix, bool *out);
/* What a file says of the weights of experts: gating, expert_norm, expert_scale. */
enum sheaf_status sheaf__hparams_gating(const struct sheaf_gguf *gguf, struct sheaf__hparams *hp);
/* The keys of layers with a state. */
enum sheaf_status sheaf__hparams_state(const struct sheaf_gguf *gguf, struct sheaf__hparams *hp);
/* swa_window, 0 .. INT32_MAX, and swa_period from the keys of sliding windows; `period` where the
 * file has none. A list of layers must repeat a period, too. */
enum sheaf_status sheaf__hparams_windows(const struct sheaf_gguf *gguf, struct sheaf__hparams *hp,
                                         int64_t period);

#endif
