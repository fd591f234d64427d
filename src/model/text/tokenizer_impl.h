/* The fields of a tokenizer, shared by its loading (tokenizer_load.c), encoding and decoding
 * (tokenizer.c). */
#ifndef SHEAF_MODEL_TOKENIZER_IMPL_H
#define SHEAF_MODEL_TOKENIZER_IMPL_H

#include "model/text/pretokenizer.h"
#include "model/text/vocab.h"
#include "sheaf/tokenizer.h"

/* Values of tokenizer.ggml.token_type */
enum sheaf__token_type {
    SHEAF__TOKEN_NORMAL = 1,
    SHEAF__TOKEN_UNKNOWN = 2,
    SHEAF__TOKEN_CONTROL = 3,
    SHEAF__TOKEN_USER_DEFINED = 4,
    SHEAF__TOKEN_UNUSED = 5,
    SHEAF__TOKEN_BYTE = 6,
};

struct sheaf_tokenizer {
    bool bpe;       /* else SentencePiece-style, or */
    bool wordpiece; /* BERT's */
    bool lowercase; /* of WordPiece: text is read in lower case, without accents */
    const struct sheaf__pre_info *pre;
    char describe[64];

    int32_t n_vocab;
    /* Symbols 0..n_vocab-1 are the tokens. Only those that text may become are indexed: never a
     * control token, so that text cannot forge one. */
    struct sheaf__vocab vocab;
    uint8_t *type;   /* [n_vocab] sheaf__token_type */
    bool *eog;       /* [n_vocab] */
    float *score;    /* [n_vocab], SentencePiece-style */
    size_t max_text; /* bytes of the longest spelling */

    /* What tokens decode to. */
    char *piece_arena;
    struct sheaf__span *piece; /* [n_vocab] */
    size_t max_piece;

    int32_t byte_token[256];   /* -1: none */
    uint32_t byte_symbol[256]; /* BPE: where merging starts */

    int32_t *special;          /* control, unknown and user-defined tokens in byte order */
    size_t special_first[257]; /* special[special_first[b]..special_first[b+1]) begin with byte b */

    int32_t bos, eos, eot, eom, unk; /* -1: none */
    bool add_bos, add_eos, add_space_prefix;
    bool special_takes_space; /* white space behind most special tokens belongs to them */
};

/* GPT-2's spelling of bytes: printable bytes stand for themselves, the others for U+0100 and up. */
uint32_t sheaf__byte_to_char(unsigned char byte);
/* -1 if the character spells no byte */
int sheaf__char_to_byte(uint32_t cp);

#endif
