/* Text to token ids and back, from the metadata of a GGUF file.
 *
 * Three families: SentencePiece-style (`llama`: pairs joined by best score, byte tokens for what is
 * not in the vocabulary), byte-level BPE (`gpt2`: words cut by a pre-tokenizer, pairs joined by
 * rank), and WordPiece (`bert`: the longest tokens that words begin with). Keys read:
 * tokenizer.ggml.{model, pre, tokens, scores, token_type, merges, bos_token_id, eos_token_id,
 * eot_token_id, eom_token_id, unknown_token_id, cls_token_id, seperator_token_id, add_bos_token,
 * add_eos_token, add_space_prefix, normalizer.lowercase}.
 *
 * Text is bytes with a length: it may hold zeros and need not be UTF-8. A tokenizer is immutable
 * after creation (any number of threads) and keeps nothing of the GGUF reader. Metadata that
 * contradicts itself yields SHEAF_STATUS_INVALID, a family or pre-tokenizer that is not built in
 * SHEAF_STATUS_UNSUPPORTED; the text names the key. */
#ifndef SHEAF_TOKENIZER_H
#define SHEAF_TOKENIZER_H

#include "sheaf/gguf.h"

#ifdef __cplusplus
extern "C" {
#endif

struct sheaf_tokenizer;

enum sheaf_status sheaf_tokenizer_new(const struct sheaf_gguf *gguf, struct sheaf_tokenizer **out);
void sheaf_tokenizer_free(struct sheaf_tokenizer *tok); /* accepts NULL */

int32_t sheaf_tokenizer_n_vocab(const struct sheaf_tokenizer *tok);
/* "llama" or "gpt2 (qwen2)", for messages */
const char *sheaf_tokenizer_describe(const struct sheaf_tokenizer *tok);

/* -1 where the model has none. eot ends a turn of a chat (may equal eos). */
int32_t sheaf_tokenizer_bos(const struct sheaf_tokenizer *tok);
int32_t sheaf_tokenizer_eos(const struct sheaf_tokenizer *tok);
int32_t sheaf_tokenizer_eot(const struct sheaf_tokenizer *tok);
bool sheaf_tokenizer_add_bos(const struct sheaf_tokenizer *tok);
bool sheaf_tokenizer_add_eos(const struct sheaf_tokenizer *tok);

/* Generation ends with this token: eos, eot, and tokens known by name (<|im_end|>, <end_of_turn>,
 * ...). False for an id out of range. */
bool sheaf_tokenizer_is_eog(const struct sheaf_tokenizer *tok, int32_t id);
/* A marker that is not text (<s>, <|im_start|>). False for an id out of range. */
bool sheaf_tokenizer_is_control(const struct sheaf_tokenizer *tok, int32_t id);

/* The token as the file spells it, zero-terminated; *len (may be NULL) in bytes. NULL for an id out
 * of range. */
const char *sheaf_tokenizer_token(const struct sheaf_tokenizer *tok, int32_t id, size_t *len);
/* The token with that spelling, -1 if there is none. Searches all; not for hot paths. */
int32_t sheaf_tokenizer_find(const struct sheaf_tokenizer *tok, const char *token);

enum {
    SHEAF_TOKENIZE_ADD_SPECIAL = 1,   /* bos before and eos after where the model wants them; a
                                         bos that the text spells itself is not doubled */
    SHEAF_TOKENIZE_PARSE_SPECIAL = 2, /* spellings of control tokens become those tokens (for
                                         formatted chats; never for text of unknown origin) */
};

/* text [len] to *ids [*n], owned by the caller: free(). len below 2^28. A byte for which a
 * byte-level vocabulary has no token is left out. INVALID if a SentencePiece-style one has none and
 * no unknown token. */
enum sheaf_status sheaf_tokenizer_encode(const struct sheaf_tokenizer *tok, const char *text,
                                         size_t len, unsigned flags, int32_t **ids, size_t *n);

enum {
    SHEAF_DETOKENIZE_SPECIAL = 1, /* control tokens appear by their spelling, else as nothing */
    SHEAF_DETOKENIZE_START = 2,   /* ids begin a text: the space that the tokenizer puts before it
                                     is left out */
};

/* ids [n] to *text [*len] (zero-terminated besides), owned by the caller: free(). */
enum sheaf_status sheaf_tokenizer_decode(const struct sheaf_tokenizer *tok, const int32_t *ids,
                                         size_t n, unsigned flags, char **text, size_t *len);

/* Decoding a stream, token by token, without allocation. Bytes that begin a UTF-8 character wait
 * until it is whole, so every piece of a valid text is valid; bytes that never become a character
 * are passed on. Pieces are zero-terminated and valid until the next call. */
struct sheaf_detokenizer;
/* The tokenizer must outlive it. */
enum sheaf_status sheaf_detokenizer_new(const struct sheaf_tokenizer *tok, unsigned flags,
                                        struct sheaf_detokenizer **out);
void sheaf_detokenizer_free(struct sheaf_detokenizer *d); /* accepts NULL */
/* The text that this token completes, possibly none. INVALID for an id out of range. */
enum sheaf_status sheaf_detokenizer_push(struct sheaf_detokenizer *d, int32_t id, const char **text,
                                         size_t *len);
/* The text still held at the end of the stream; the detokenizer starts afresh, with its flags. */
void sheaf_detokenizer_flush(struct sheaf_detokenizer *d, const char **text, size_t *len);

#ifdef __cplusplus
}
#endif
#endif
