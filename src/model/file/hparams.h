/* Hyperparameters of a model: what its GGUF metadata says, checked and completed with defaults. */
#ifndef SHEAF_MODEL_HPARAMS_H
#define SHEAF_MODEL_HPARAMS_H

#include "sheaf/gguf.h"

struct sheaf__arch;

struct sheaf__hparams {
    const struct sheaf__arch *arch;
    int64_t n_layer, n_embd, n_ff, n_vocab, n_ctx_train;
    int64_t n_expert, n_expert_used; /* 0: no experts; of each layer, and for a token */
    int64_t n_ff_expert;             /* n_ff of an expert */
    int64_t n_head, n_head_kv;       /* n_head is a multiple of n_head_kv */
    int64_t head_k, head_v;          /* elements of a head of q and k, and of v */
    int64_t n_rot;                   /* rotated elements of a head, even, <= head_k */
    float rms_eps;
    float freq_base, freq_scale;         /* of layers with full attention */
    float freq_base_swa, freq_scale_swa; /* of layers with a sliding window */
    float attn_scale;                    /* on q.k */
    float embd_scale;                    /* on token embeddings, 1 if none */
    int64_t swa_window; /* a token sees itself and swa_window - 1 before it; 0: no windows */
    int64_t swa_period; /* the last of each swa_period layers has full attention */
};

/* n_vocab: rows of token_embd.weight, which decide over the metadata. */
enum sheaf_status sheaf__hparams_read(const struct sheaf_gguf *gguf, int64_t n_vocab,
                                      struct sheaf__hparams *out);
/* Does layer il attend to a sliding window only? */
bool sheaf__hparams_is_swa(const struct sheaf__hparams *hp, int64_t il);

/* For the readers of single architectures. `suffix` follows "<arch>."; out keeps its value if the
 * key is absent. An array counts as a number if all its elements are equal. */
enum sheaf_status sheaf__hparams_int(const struct sheaf_gguf *gguf, const char *arch,
                                     const char *suffix, int64_t min, int64_t max, int64_t *out);
enum sheaf_status sheaf__hparams_float(const struct sheaf_gguf *gguf, const char *arch,
                                       const char *suffix, double min, double max, float *out);

#endif
