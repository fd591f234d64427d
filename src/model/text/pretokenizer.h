/* The first cut of byte-level BPE: text into words that merges never cross.
 *
 * Each family is a regular expression in the model's tokenizer file; here it is a hand-written
 * scanner with the same result, so there is no regular-expression engine and no backtracking: every
 * character is looked at a bounded number of times. Pure functions. */
#ifndef SHEAF_MODEL_PRETOKENIZER_H
#define SHEAF_MODEL_PRETOKENIZER_H

#include <stdbool.h>
#include <stddef.h>

enum sheaf__pre {
    SHEAF__PRE_GPT2,
    SHEAF__PRE_DEFAULT, /* of files that name none: signs apart, GPT-2's, numbers by three */
    SHEAF__PRE_SMOLLM,  /* every number character alone, GPT-2's expression between them */
    SHEAF__PRE_LLAMA3,  /* numbers in groups of up to three */
    SHEAF__PRE_QWEN2,   /* as Llama 3's, numbers one by one */
    SHEAF__PRE_GPT4O,   /* o200k: words end where a capital follows; "don't" is one word */
    SHEAF__PRE_TEKKEN,  /* the same without contractions, numbers one by one */
    SHEAF__PRE_DEEPSEEK3,
    SHEAF__PRE_DEEPSEEK1, /* DeepSeek LLM and V2: words, signs, spaces at ends, digits one by one */
    SHEAF__PRE_KIMI,      /* o200k, with Chinese characters apart */
    SHEAF__PRE_COUNT,
};

/* What else the value of tokenizer.ggml.pre implies where the file does not say. */
struct sheaf__pre_info {
    const char *name; /* as in tokenizer.ggml.pre */
    enum sheaf__pre pre;
    bool whole_words; /* a word that is a token is taken as it is, whatever the merges say */
    bool add_bos;
};

/* NULL if the name is not known. */
const struct sheaf__pre_info *sheaf__pre_find(const char *name);
/* Comma-separated known names, for messages. */
const char *sheaf__pre_names(void);

/* Bytes of the first word of s[0..len): 1..len. len > 0. */
size_t sheaf__pre_next(enum sheaf__pre pre, const char *s, size_t len);

#endif
