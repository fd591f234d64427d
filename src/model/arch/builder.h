/* Pieces of transformer graphs that the architectures share. Letters in shapes: n tokens, d head
 * size, h query heads, g key/value heads, t cached tokens, f n_ff, v vocabulary, e n_embd. */
#ifndef SHEAF_MODEL_BUILDER_H
#define SHEAF_MODEL_BUILDER_H

#include "sheaf/graph.h"

#include "model/file/weights.h"
#include "model/run/kv_cache.h"

/* Everything that building a graph needs; the inputs are made by sheaf__build_inputs. Tokens of one
 * evaluation may be built as two chunks in one graph, each with a builder: the second reads what
 * the first wrote into the cache. */
struct sheaf__builder {
    const struct sheaf__weights *model;
    const struct sheaf__hparams *hp;
    const struct sheaf__kv_cache *cache;
    struct sheaf_context *ctx;
    struct sheaf_cgraph *graph;
    int64_t n_tokens, n_kv;          /* n_kv: rows of the cache that attention reads */
    int64_t n_wanted;                /* tokens whose logits are wanted, >= 1 */
    struct sheaf_tensor *ids;        /* I32 [n] token ids */
    struct sheaf_tensor *pos;        /* I32 [n] positions */
    struct sheaf_tensor *slot;       /* I32 [1] where the states of the sequence are; or NULL */
    struct sheaf_tensor *rows;       /* I32 [n] rows of the cache to write */
    struct sheaf_tensor *mask;       /* F16 [t, n]: 0 or -inf */
    struct sheaf_tensor *mask_swa;   /* the same for sliding windows; NULL if there are none */
    bool makes_masks;                /* the device makes them of these (sheaf__mask_number) */
    struct sheaf_tensor *mask_tokens, *mask_cells, *mask_until, *mask_far;
    struct sheaf_tensor *out_ids;    /* I32 [n_wanted]: those tokens; NULL: all */
    struct sheaf__builder *before;   /* of the chunk before; NULL: this is the first */
    struct sheaf_tensor *written[2]; /* K and V caches of the layer, with this chunk's rows */
    struct sheaf_cgraph *order;      /* takes products and halves of layers first; or NULL */
};

enum { SHEAF__MAX_CHUNKS = 2 };
/* Tensors of the graph of a model in so many chunks, at most: of a layer 83 with latent attention
 * and experts, and two for each expert that a token uses, whose results are added. */
static inline size_t sheaf__builder_max_nodes(const struct sheaf__hparams *hp, int n_chunks) {
    enum { PER_LAYER = 128, OUTSIDE = 64 };
    const size_t layer = PER_LAYER + 2 * (size_t)hp->n_expert_used;
    return (size_t)n_chunks * ((size_t)hp->n_layer * layer + OUTSIDE);
}

struct sheaf__rope {
    enum sheaf_rope_mode mode;
    float freq_base, freq_scale, ext_factor, attn_factor;
};
/* As the model's metadata have it, for layers with full attention. */
struct sheaf__rope sheaf__rope_of(const struct sheaf__hparams *hp, enum sheaf_rope_mode mode);

void sheaf__build_inputs(struct sheaf__builder *b);

/* The F16 number of a position in masks that the device makes: twice what it is behind the first
 * token of the chunk, which F16 holds exactly; -1 and REACH + 1 stand for all beyond. mask_tokens
 * [1, n] has those of the tokens, mask_cells [t] of the cells, mask_until [t], with windows, of the
 * last position that sees a cell. A difference of -2 or less, times mask_far [1], is -infinity. */
enum { SHEAF__MASK_REACH = 1023, SHEAF__MASK_FAR = 65504 };
uint16_t sheaf__mask_number(int64_t position);
/* Embeddings of the tokens, scaled: [e, n]. */
struct sheaf_tensor *sheaf__build_embedding(struct sheaf__builder *b);
/* rms_norm(x) * weight */
struct sheaf_tensor *sheaf__build_norm(struct sheaf__builder *b, struct sheaf_tensor *x,
                                       struct sheaf_tensor *weight);
/* Of what layer il computes for all tokens, the columns that are wanted from here on: in the last
 * layer, once K and V are written, those whose logits are. x [m, n] to [m, n or 1]. */
struct sheaf_tensor *sheaf__build_wanted(struct sheaf__builder *b, int64_t il,
                                         struct sheaf_tensor *x);
/* Self attention of layer il over x [e, n], cache written and read: what is wanted of [e, n],
 * without residual. rope NULL: positions are not rotated in. */
struct sheaf_tensor *sheaf__build_attention(struct sheaf__builder *b, int64_t il,
                                            struct sheaf_tensor *x, const struct sheaf__rope *rope,
                                            struct sheaf_tensor *mask);
/* Multi-head latent attention (arXiv 2405.04434) of layer il, as sheaf__build_attention: K and V of
 * a token stay the n_lora_kv elements that they are made of, and queries and results are projected
 * to and from them. */
struct sheaf_tensor *sheaf__build_latent_attention(struct sheaf__builder *b, int64_t il,
                                                   struct sheaf_tensor *x,
                                                   const struct sheaf__rope *rope,
                                                   struct sheaf_tensor *mask);
/* The layer's state, read and written, over x [e, n]: what is wanted of [e, n], without
 * residual. */
struct sheaf_tensor *sheaf__build_state(struct sheaf__builder *b, int64_t il,
                                        struct sheaf_tensor *x);
/* down(glu(gate x, up x)) of layer il over x [e, n]: [e, n], without residual. Gate and up may be
 * one matrix. */
struct sheaf_tensor *sheaf__build_ffn(struct sheaf__builder *b, int64_t il, struct sheaf_tensor *x,
                                      enum sheaf_glu_op glu);
/* The same with experts: a router gives each an F32 score, the n_expert_used best are weighted (by
 * the softmax of the scores, divided by the sum of those chosen, where the metadata say nothing
 * else), and their results added; with that of the experts that every token uses, where the layer
 * has some. */
struct sheaf_tensor *sheaf__build_mixture(struct sheaf__builder *b, int64_t il,
                                          struct sheaf_tensor *x, enum sheaf_glu_op glu);
/* Final norm and output projection of x [e, n]: [v, n]. */
struct sheaf_tensor *sheaf__build_logits(struct sheaf__builder *b, struct sheaf_tensor *x);
/* Ends what half a layer computes without needing a sum over the members: with two chunks, the
 * other one comes next. Returns x. */
struct sheaf_tensor *sheaf__build_half(struct sheaf__builder *b, struct sheaf_tensor *x);
/* x, and what a half of a layer adds to it. */
struct sheaf_tensor *sheaf__build_residual(struct sheaf__builder *b, struct sheaf_tensor *x,
                                           struct sheaf_tensor *y);
/* Halves of the layers of llama and qwen2: pre-norms, residuals, SwiGLU; a mixture of experts where
 * the layer has a router. */
struct sheaf_tensor *sheaf__build_plain_attention(struct sheaf__builder *b, int64_t il,
                                                  struct sheaf_tensor *x,
                                                  enum sheaf_rope_mode mode);
struct sheaf_tensor *sheaf__build_plain_ffn(struct sheaf__builder *b, int64_t il,
                                            struct sheaf_tensor *x);
/* The result of an encoder's last layer, x [e, n], pooled: [e], or [e, n] without pooling. */
struct sheaf_tensor *sheaf__build_pooled(struct sheaf__builder *b, struct sheaf_tensor *x,
                                         enum sheaf__pooling pooling);
/* Logits [n_vocab, n_out] of the last of n chunks, of an encoder its result [n_embd, n]; NULL on
 * error. Two chunks take turns, half a layer each: while the sums of one chunk travel, the other
 * has work. */
struct sheaf_tensor *sheaf__build_model(struct sheaf__builder *chunks, int n_chunks);

#endif
