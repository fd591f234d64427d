/* Makes random models: any architecture, type and shape, with a vocabulary that tokenizes any
 * text. For tests of shapes that no trained model of a few megabytes has, and, in the shapes of
 * known models, for measuring. Other programs that read GGUF files load them too. */
#ifndef SHEAF_MODEL_RANDOM_MODEL_H
#define SHEAF_MODEL_RANDOM_MODEL_H

#include "sheaf/gguf.h"

struct sheaf__random_model_params {
    size_t size;          /* sizeof */
    const char *arch;     /* a name of arch/archs.def */
    enum sheaf_type type; /* of the matrices; where a row is not whole blocks: a larger one */
    const char *mix;      /* NULL, or "Q4_K_M" and the like in place of type: see mix.h */
    int64_t n_layer, n_embd, n_head, n_head_kv, head_dim, n_ff, n_vocab, n_ctx;
    int64_t swa_window;              /* gemma3 */
    int64_t n_expert, n_expert_used; /* of architectures with experts, whose n_ff is n_ff; else 0 */
    int64_t n_ff_shared;             /* of the experts that every token uses, together; or 0 */
    /* deepseek2: the first layers, which have no experts, and their n_ff; 0: one, of n_ff */
    int64_t n_layer_dense, n_ff_dense;
    bool fused_qkv; /* one attn_qkv.weight */
    bool tied;      /* no output.weight */
    uint64_t seed;
    bool (*stopped)(void); /* true ends the writing with ABORTED, and no file; NULL: never */
};

/* llama, F32, 2 layers, n_embd 64, 4 heads on 2, head 16, n_ff 128, vocabulary 512, context 256. */
struct sheaf__random_model_params sheaf__random_model_default_params(void);
/* Shape of a known model, by name ("tinyllama-1.1b", "gpt-oss-20b"), into *params, the rest as it
 * is. INVALID lists the names. */
enum sheaf_status sheaf__random_model_preset(const char *name,
                                             struct sheaf__random_model_params *params);
/* Writes the model as one GGUF file, a tensor at a time; INVALID names the parameter that does not
 * fit. */
enum sheaf_status sheaf__random_model_write(const struct sheaf__random_model_params *params,
                                            const char *path);
/* The same model without data, to plan with; *out is the caller's. */
enum sheaf_status sheaf__random_model_describe(const struct sheaf__random_model_params *params,
                                               struct sheaf_gguf **out);

#endif
