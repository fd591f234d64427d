/* Language models from GGUF files, spread over the devices of a job: libsheaf-model.
 *
 * UNSTABLE: until 1.0, functions and structs here may change between any two versions.
 *
 *   struct sheaf_model_params params = sheaf_model_default_params();
 *   params.path = "model.gguf";
 *   sheaf_world_init(NULL);
 *   sheaf_model_open(&params, &model);
 *   sheaf_model_generate(model, "Once upon a time", NULL, print, NULL, NULL);
 *   sheaf_model_free(model);
 *   sheaf_world_finalize();
 *
 * SPMD: the functions marked "collective" are called by all ranks of the world, in the same order
 * and with the same arguments, except where it says that only rank 0's count. A collective step
 * that can fail on one rank (reading its file, allocating) is agreed on: all ranks get a
 * status, and a text that names the rank. Functions without the mark are local. A model belongs to
 * one thread at a time.
 *
 * Structs with `size`: the caller sets it to sizeof; later versions append fields, and fields that
 * the caller's version lacks have their defaults. */
#ifndef SHEAF_MODEL_H
#define SHEAF_MODEL_H

#include "sheaf/backend.h"
#include "sheaf/candidates.h"
#include "sheaf/chat.h"
#include "sheaf/gguf.h"
#include "sheaf/sampler.h"
#include "sheaf/tokenizer.h"

#ifdef __cplusplus
extern "C" {
#endif

struct sheaf_model;

/* ---- opening ---- */

/* done, total in bytes of the weights as the files hold them. Returning false ends the load with
 * SHEAF_STATUS_ABORTED. */
typedef bool (*sheaf_model_progress_fn)(void *user, size_t done, size_t total);

struct sheaf_model_params {
    size_t size;
    const char *path;    /* a GGUF file, or the first of split files; not all ranks need have it */
    const char *devices; /* "all" or NULL, or names: "CPU0@0,CPU0@1" */
    const char *split;   /* "even" or NULL, "auto" (by measured speed), or shares: "3,1" */
    const char *overlap; /* "auto" or NULL, "on", "off": prompts in two chunks */
    /* How sums travel between hosts: "f32", "bf16", "q8_0"; NULL: the setting SHEAF_COMM_WIRE. */
    const char *wire;
    /* How experts are cut: "auto" or NULL, "columns" (each by the columns of its last matrix),
     * "rows" (by those of all), "whole" (each on one member). */
    const char *experts;
    /* Cells of the K/V cache; 0: what the model was trained on, at most 4096; -1: all of that. More
     * is logged as a warning. */
    int64_t n_ctx;
    int64_t n_batch;         /* tokens evaluated at once, at most; 0: 512 */
    enum sheaf_type kv_type; /* of the K/V cache: F16 (default), Q8_0, F32 */
    bool single;             /* the first local device, without the meta device; one rank only */
    bool check;              /* compare the results of all members after every evaluation */
    sheaf_model_progress_fn progress; /* may be NULL */
    void *user;                       /* of progress */
};

struct sheaf_model_params sheaf_model_default_params(void);

/* Opens the file, divides it over the devices, loads this rank's slices and makes the K/V cache.
 * Ranks that cannot open the file get metadata and slices from the first rank that can, which a
 * warning says (not with params.single). An own copy that is damaged, or another model, is an
 * error. Collective, after sheaf_world_init. params is read during the call only. *out is freed by
 * sheaf_model_free before sheaf_world_finalize; NULL on failure. */
enum sheaf_status sheaf_model_open(const struct sheaf_model_params *params,
                                   struct sheaf_model **out);
void sheaf_model_free(struct sheaf_model *model); /* accepts NULL */

struct sheaf_model_info {
    size_t size;
    const char *path, *arch; /* owned by the model */
    int64_t n_vocab, n_embd, n_layer;
    int64_t n_ctx_train; /* tokens of a text that the model was trained on */
    int64_t n_ctx;       /* cells of the cache */
    int64_t n_batch;     /* most tokens of a batch, if the cache has as many cells */
    int n_members;       /* devices that share the model */
    int64_t min_chunked; /* a prompt's batch of so many tokens goes in two chunks; 0: none does */
    size_t total_bytes;  /* of all weights, in the files */
    size_t weight_bytes; /* that this rank holds */
    size_t share_bytes;  /* its exact proportion of total_bytes */
    size_t bytes_read;   /* by this rank, those that it sent included */
    enum sheaf_type kv_type;
    uint64_t bytes_sent; /* of weights, to ranks without the files */
};
enum sheaf_status sheaf_model_get_info(const struct sheaf_model *model,
                                       struct sheaf_model_info *out);
/* Metadata of the (first) file; owned by the model. */
const struct sheaf_gguf *sheaf_model_gguf(const struct sheaf_model *model);
/* Device and share of member i; NULL and 0 if there is none. */
sheaf_backend_dev_t sheaf_model_member(const struct sheaf_model *model, int i);
double sheaf_model_share(const struct sheaf_model *model, int i);
/* "CPU0@1" of any world device; valid until the thread's next call. */
const char *sheaf_model_device_name(sheaf_backend_dev_t dev);
/* The backend that computes: of the meta device, or with params.single of the first device. Owned
 * by the model. sheaf/meta.h has what can be asked of it. */
sheaf_backend_t sheaf_model_backend(const struct sheaf_model *model);
/* NULL with params.single. */
sheaf_backend_dev_t sheaf_model_meta(const struct sheaf_model *model);
/* "q heads 6,3, k/v heads 2,1, ffn 1024,512, vocabulary 32768,16384" into buf [n], always
 * terminated; returns buf. Five and more members with the same count in a row are one: "ffn
 * 96(x16)". */
char *sheaf_model_print_split(const struct sheaf_model *model, char *buf, size_t n);
/* Bytes of weights and cache that member i reads to evaluate one token behind n_past others. */
enum sheaf_status sheaf_model_token_bytes(const struct sheaf_model *model, int i, double n_past,
                                          double *bytes);

/* ---- evaluation ---- */

enum { SHEAF_MODEL_MAX_SEQUENCES = 64 };

/* Tokens of one or several sequences. A token sees the cached tokens of its sequence at its
 * position and before. */
struct sheaf_model_batch {
    size_t size;
    int64_t n_tokens;     /* 1..n_batch */
    const int32_t *token; /* [n_tokens] ids */
    const int32_t *pos;   /* [n_tokens] behind all that the sequence has, here and in the cache;
                             NULL: each sequence goes on where it ends */
    const int32_t *seq;   /* [n_tokens] 0..SHEAF_MODEL_MAX_SEQUENCES - 1; NULL: 0 */
    const bool *logits;   /* [n_tokens] whose logits are wanted; NULL, or none: the last's */
};

/* Collective. On failure the batch is not in the cache. INVALID if a token, position or sequence is
 * out of range or the cache has not enough free cells. */
enum sheaf_status sheaf_model_eval(struct sheaf_model *model,
                                   const struct sheaf_model_batch *batch);
/* Called before each batch of a prompt, on every rank. Anything but success ends the prompt. */
typedef enum sheaf_status (*sheaf_model_before_fn)(void *user);
/* Any number of tokens behind a sequence, in batches; logits of the last. before: may be NULL.
 * Collective. */
enum sheaf_status sheaf_model_prompt(struct sheaf_model *model, int seq, const int32_t *tokens,
                                     int64_t n, sheaf_model_before_fn before, void *user);

/* Rows of logits that the last evaluation left: one for each token whose logits were wanted, in the
 * order of the batch. 0 before the first. */
int64_t sheaf_model_n_rows(const struct sheaf_model *model);
/* All rows into dst [n_rows][n_vocab] of every rank. Collective. */
enum sheaf_status sheaf_model_get_logits(struct sheaf_model *model, float *dst);
/* The k best of a row, best first, the same list on every rank: each rank selects among the rows of
 * the vocabulary that it holds, and only these lists travel. with_sum: also the normaliser
 * (sheaf/candidates.h). *stop is this rank's wish to stop, and becomes true if any rank has it.
 * *out is owned by the model and valid until the next call. Collective; allocates only when k
 * changes, or result, row or shape where a device with memory of its own selects. */
enum sheaf_status sheaf_model_get_candidates(struct sheaf_model *model, int64_t row, size_t k,
                                             bool with_sum, bool *stop,
                                             const struct sheaf_candidates **out);

/* What one embedding is made of the tokens' results. */
enum sheaf_model_pooling {
    SHEAF_MODEL_POOLING_DEFAULT, /* as the file says, or the mean */
    SHEAF_MODEL_POOLING_MEAN,
    SHEAF_MODEL_POOLING_CLS, /* that of the first token */
    SHEAF_MODEL_POOLING_LAST,
};
/* The embedding of a text of n tokens by an encoder (bert): dst [n_embd], of length 1, on every
 * rank. Texts do not see each other, nor the cache. UNSUPPORTED if the model writes text instead,
 * INVALID if there is no token, or there are more than n_ctx_train or n_batch. Collective. */
enum sheaf_status sheaf_model_embed(struct sheaf_model *model, const int32_t *tokens, int64_t n,
                                    enum sheaf_model_pooling pooling, float *dst);

/* ---- the K/V cache ---- */

/* These change which cells are in use, without moving data; call them on all ranks alike, between
 * evaluations. Positions are not shifted: a sequence keeps those that it has. */
void sheaf_model_cache_clear(struct sheaf_model *model);
/* Positions [from, to) of a sequence are forgotten. seq -1: of all; to -1: to the end. */
enum sheaf_status sheaf_model_cache_remove(struct sheaf_model *model, int seq, int64_t from,
                                           int64_t to);
/* A model with states (mamba2) has sequence 0 only, which is forgotten whole and never copied:
 * UNSUPPORTED otherwise. Sequence `to_seq` gets positions [from, to) of sequence `seq`, in the same
 * cells. to -1: to the end. INVALID if it has one of them already. */
enum sheaf_status sheaf_model_cache_copy(struct sheaf_model *model, int seq, int to_seq,
                                         int64_t from, int64_t to);
/* The position behind the last one of a sequence: 0 if it is empty; -1 if there is no such one. */
int64_t sheaf_model_cache_end(const struct sheaf_model *model, int seq);
/* Cells that are free. */
int64_t sheaf_model_cache_room(const struct sheaf_model *model);

/* ---- text ---- */

/* The model's tokenizer, made at the first call of this rank; owned by the model. Local. */
enum sheaf_status sheaf_model_tokenizer(struct sheaf_model *model,
                                        const struct sheaf_tokenizer **out);

/* ---- generation ---- */

enum sheaf_model_stop {
    SHEAF_MODEL_STOP_LENGTH,      /* params.n_predict tokens */
    SHEAF_MODEL_STOP_EOG,         /* the model ended its text */
    SHEAF_MODEL_STOP_CONTEXT,     /* no free cell is left */
    SHEAF_MODEL_STOP_INTERRUPTED, /* the callback returned SHEAF_STATUS_ABORTED */
    SHEAF_MODEL_STOP_FAILED,
    SHEAF_MODEL_STOP_TEXT, /* one of params.stop occurred */
    SHEAF_MODEL_STOP_COUNT,
};
/* "length", "end of text", "context full", "interrupted", "failed", "stop text" */
const char *sheaf_model_stop_name(enum sheaf_model_stop stop);

struct sheaf_model_generate_params {
    size_t size;
    int64_t n_predict; /* most tokens; -1: until the end of the text or of the cache. 128 */
    struct sheaf_sampler_params sampler;
    const char *system; /* with chat: system message; NULL or "": the template's own */
    size_t prompt_len;  /* bytes of the prompt; 0: up to its terminating zero */
    int seq;            /* the sequence that is continued. 0 */
    /* The prompt is a user's message, put into the model's chat format; INVALID if it holds a zero
     * byte. Behind earlier turns of the sequence it is the next one, without the system message. */
    bool chat;
    bool ignore_eos; /* go on after the end-of-text token */
    /* Texts [n_stop], none empty, that end the generation and are not passed on; rank 0's count.
     * Tokens up to the one that completed the text are in the cache. */
    const char *const *stop;
    int n_stop;
    /* Put before the prompt [n_first]: of an answer that ended otherwise than by the end of the
     * text, the last token, which is not in the cache. Rank 0's count. */
    const int32_t *first;
    size_t n_first;
};
struct sheaf_model_generate_params sheaf_model_generate_default_params(void);

enum sheaf_model_event_kind {
    SHEAF_MODEL_EVENT_PROMPT,    /* the prompt's tokens are known: ids [n] */
    SHEAF_MODEL_EVENT_BATCH,     /* a batch of the prompt is about to be evaluated */
    SHEAF_MODEL_EVENT_EVALUATED, /* there are logits, of one row: sheaf_model_get_logits */
    SHEAF_MODEL_EVENT_TOKEN,     /* a token was chosen: ids [1], and on rank 0 its text */
    SHEAF_MODEL_EVENT_END,       /* the last event; on rank 0 text of bytes that never became a
                                    character */
};

/* Valid during the call that gives it. */
struct sheaf_model_event {
    size_t size; /* sizeof, set by the library */
    enum sheaf_model_event_kind kind;
    const int32_t *ids;
    size_t n;
    const char *text; /* [len], zero-terminated; "" where there is none. Whole characters only */
    size_t len;
};

/* Called on every rank for every event, in the same order, so it may make collective calls. It
 * returns SHEAF_STATUS_ABORTED to end the generation: during the prompt rank 0's counts, later any
 * rank's. Any other status but success fails the generation with it. */
typedef enum sheaf_status (*sheaf_model_event_fn)(void *user,
                                                  const struct sheaf_model_event *event);

struct sheaf_model_result {
    size_t size; /* sizeof, set by the caller */
    enum sheaf_model_stop stop;
    size_t n_prompt, n_ids;      /* tokens of the prompt, and chosen */
    size_t n_evals;              /* of chosen tokens: the last one is not evaluated */
    double prompt_s, generate_s; /* seconds in evaluations */
    double first_token_s;        /* from the evaluation of the prompt to the first token; 0: none */
};

/* Evaluates the prompt behind what params->seq holds, then chooses tokens one by one: every rank
 * evaluates, rank 0 chooses with a sampler of its own and tells the others. A token that begins a
 * text is put before the prompt where the model wants one and the sequence is empty. prompt: a
 * UTF-8 text; only rank 0's is read (others may give NULL). params NULL: the defaults. callback,
 * result: may be NULL. The last token chosen is not in the cache. Collective. */
enum sheaf_status sheaf_model_generate(struct sheaf_model *model, const char *prompt,
                                       const struct sheaf_model_generate_params *params,
                                       sheaf_model_event_fn callback, void *user,
                                       struct sheaf_model_result *result);

#ifdef __cplusplus
}
#endif
#endif
