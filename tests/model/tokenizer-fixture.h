/* Vocabularies made in memory for the tests of tokenizers and chat formats. */
#ifndef SHEAF_TESTS_TOKENIZER_FIXTURE_H
#define SHEAF_TESTS_TOKENIZER_FIXTURE_H

#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "model/text/tokenizer_impl.h"
#include "model/text/unicode.h"
#include "sheaf/gguf.h"
#include "sheaf/log.h"
#include "sheaf/tokenizer.h"

#define N_OF(array) (sizeof(array) / sizeof *(array))

static inline void ok(enum sheaf_status st) {
    cr_assert_eq(st, SHEAF_STATUS_SUCCESS, "%s", sheaf_last_error());
}

/* Merges of the byte-level vocabulary, in rank order; "_" stands for the spelled space. */
static const char *const bpe_merges[] = {
    "h e",
    "l l",
    "he ll",
    "hell o",
    "_ w",
    "o r",
    "_w or",
    "l d",
    "_wor ld",
    "_ _",
    "__ __",
    "1 2",
    "12 3",
    "\xC4\x8A \xC4\x8A",
    "a a",
    "aa a",
    "' s",
    "_ t",
    "_t h",
    "_th e",
    "\xC3\xB0 \xC5\x81", /* F0 9F: how emoji begin */
};

/* Writes s with "_" as U+0120. */
static inline void spell(const char *s, char *out) {
    for (; *s; s++) {
        if (*s == '_') *out++ = '\xC4';
        *out++ = *s == '_' ? '\xA0' : *s;
    }
    *out = 0;
}

struct bpe_text {
    char merges[N_OF(bpe_merges)][32], tokens[256 + N_OF(bpe_merges)][32];
    const char *merge_list[N_OF(bpe_merges)], *token_list[256 + N_OF(bpe_merges) + 16];
    int32_t types[256 + N_OF(bpe_merges) + 16];
    size_t n;
};

/* Tokens 0..255: the bytes; then the results of the merges; then <|im_start|> and so on. */
enum { BPE_FIRST_MERGE = 256, BPE_FIRST_SPECIAL = 256 + (int)N_OF(bpe_merges) };
static const struct {
    const char *text;
    int32_t type;
} bpe_special[] = {
    {"<|im_start|>", SHEAF__TOKEN_CONTROL},  {"<|im_end|>", SHEAF__TOKEN_CONTROL},
    {"<|endoftext|>", SHEAF__TOKEN_CONTROL}, {"<tool>", SHEAF__TOKEN_USER_DEFINED},
    {"<tool>x", SHEAF__TOKEN_USER_DEFINED},  {"[\xC3\xA9 ]", SHEAF__TOKEN_USER_DEFINED},
    {"\xC4\xA0whole", SHEAF__TOKEN_NORMAL}, /* no merges lead to it */
};

static inline struct sheaf_gguf *bpe_gguf(const char *pre) {
    struct bpe_text *t = calloc(1, sizeof *t);
    struct sheaf_gguf *g = sheaf_gguf_new();
    cr_assert(t && g);
    for (int b = 0; b < 256; b++)
        sheaf__utf8_put(sheaf__byte_to_char((unsigned char)b), t->tokens[b]);
    for (size_t i = 0; i < N_OF(bpe_merges); i++) {
        spell(bpe_merges[i], t->merges[i]);
        char *token = t->tokens[256 + i];
        for (const char *m = t->merges[i]; *m; m++)
            if (*m != ' ') *token++ = *m;
        t->merge_list[i] = t->merges[i];
    }
    for (t->n = 0; t->n < BPE_FIRST_SPECIAL; t->n++) {
        t->token_list[t->n] = t->tokens[t->n];
        t->types[t->n] = SHEAF__TOKEN_NORMAL;
    }
    for (size_t i = 0; i < N_OF(bpe_special); i++, t->n++) {
        t->token_list[t->n] = bpe_special[i].text;
        t->types[t->n] = bpe_special[i].type;
    }
    ok(sheaf_gguf_set_str(g, "tokenizer.ggml.model", "gpt2"));
    if (pre) ok(sheaf_gguf_set_str(g, "tokenizer.ggml.pre", pre));
    ok(sheaf_gguf_set_arr_str(g, "tokenizer.ggml.tokens", t->token_list, t->n));
    ok(sheaf_gguf_set_arr(g, "tokenizer.ggml.token_type", SHEAF_GGUF_TYPE_INT32, t->types, t->n));
    ok(sheaf_gguf_set_arr_str(g, "tokenizer.ggml.merges", t->merge_list, N_OF(bpe_merges)));
    ok(sheaf_gguf_set_u32(g, "tokenizer.ggml.bos_token_id", BPE_FIRST_SPECIAL));
    ok(sheaf_gguf_set_u32(g, "tokenizer.ggml.eos_token_id", BPE_FIRST_SPECIAL + 2));
    free(t);
    return g;
}

/* A SentencePiece-style vocabulary without byte tokens; "_" stands for U+2581. */
static const struct {
    const char *text;
    float score;
    int32_t type;
} spm_tokens[] = {
    {"<unk>", 0, SHEAF__TOKEN_UNKNOWN},
    {"<s>", 0, SHEAF__TOKEN_CONTROL},
    {"</s>", 0, SHEAF__TOKEN_CONTROL},
    {"_", -10, SHEAF__TOKEN_NORMAL},
    {"a", -11, SHEAF__TOKEN_NORMAL},
    {"b", -12, SHEAF__TOKEN_NORMAL},
    {"c", -13, SHEAF__TOKEN_NORMAL},
    {"<", -14, SHEAF__TOKEN_NORMAL},
    {"/", -15, SHEAF__TOKEN_NORMAL},
    {"s", -16, SHEAF__TOKEN_NORMAL},
    {">", -17, SHEAF__TOKEN_NORMAL},
    {"ab", -2, SHEAF__TOKEN_NORMAL}, /* 11 */
    {"bc", -1, SHEAF__TOKEN_NORMAL},
    {"_a", -3, SHEAF__TOKEN_NORMAL},
    {"abc", -4, SHEAF__TOKEN_NORMAL},
    {"s>", -5, SHEAF__TOKEN_NORMAL}, /* 15: would lead to <s> */
    {"<start_of_turn>", 0, SHEAF__TOKEN_CONTROL},
    {"<end_of_turn>", 0, SHEAF__TOKEN_NORMAL}, /* 17: a type that is wrong on purpose */
    {"  ", 0, SHEAF__TOKEN_USER_DEFINED},      /* 18: runs of spaces, as in Gemma's files */
    {"    ", 0, SHEAF__TOKEN_USER_DEFINED},
    {"</", -6, SHEAF__TOKEN_NORMAL}, /* 20 */
};

static inline struct sheaf_gguf *spm_gguf(void) {
    struct sheaf_gguf *g = sheaf_gguf_new();
    const char *list[N_OF(spm_tokens)];
    char text[N_OF(spm_tokens)][32];
    float scores[N_OF(spm_tokens)];
    int32_t types[N_OF(spm_tokens)];
    cr_assert_not_null(g);
    for (size_t i = 0; i < N_OF(spm_tokens); i++) {
        const char *s = spm_tokens[i].text;
        snprintf(text[i], sizeof text[i], "%s%s", s[0] == '_' ? "\xE2\x96\x81" : "",
                 s[0] == '_' ? s + 1 : s);
        list[i] = text[i];
        scores[i] = spm_tokens[i].score;
        types[i] = spm_tokens[i].type;
    }
    ok(sheaf_gguf_set_str(g, "tokenizer.ggml.model", "llama"));
    ok(sheaf_gguf_set_arr_str(g, "tokenizer.ggml.tokens", list, N_OF(list)));
    ok(sheaf_gguf_set_arr(g, "tokenizer.ggml.scores", SHEAF_GGUF_TYPE_FLOAT32, scores,
                          N_OF(scores)));
    ok(sheaf_gguf_set_arr(g, "tokenizer.ggml.token_type", SHEAF_GGUF_TYPE_INT32, types,
                          N_OF(types)));
    ok(sheaf_gguf_set_u32(g, "tokenizer.ggml.bos_token_id", 1));
    ok(sheaf_gguf_set_u32(g, "tokenizer.ggml.eos_token_id", 2));
    return g;
}

/* Frees the reader: the tokenizer must not need it. */
static inline struct sheaf_tokenizer *make(struct sheaf_gguf *g) {
    struct sheaf_tokenizer *t;
    ok(sheaf_tokenizer_new(g, &t));
    sheaf_gguf_free(g);
    return t;
}

static inline void expect_ids(const struct sheaf_tokenizer *t, const char *text, unsigned flags,
                              const int32_t *want, size_t n_want) {
    int32_t *ids;
    size_t n;
    ok(sheaf_tokenizer_encode(t, text, strlen(text), flags, &ids, &n));
    char got[512] = "", expected[512] = "";
    for (size_t i = 0; i < n; i++)
        snprintf(got + strlen(got), sizeof got - strlen(got), " %d", (int)ids[i]);
    for (size_t i = 0; i < n_want; i++)
        snprintf(expected + strlen(expected), sizeof expected - strlen(expected), " %d",
                 (int)want[i]);
    cr_expect_str_eq(got, expected, "\"%s\" gives%s, expected%s", text, got, expected);
    free(ids);
}
#define EXPECT_IDS(t, text, flags, ...)                                                            \
    expect_ids(t, text, flags, (const int32_t[]){__VA_ARGS__},                                     \
               sizeof((const int32_t[]){__VA_ARGS__}) / sizeof(int32_t))

static inline void expect_text(const struct sheaf_tokenizer *t, const int32_t *ids, size_t n,
                               unsigned flags, const char *want, size_t want_len) {
    char *text;
    size_t len;
    ok(sheaf_tokenizer_decode(t, ids, n, flags, &text, &len));
    cr_expect(len == want_len && memcmp(text, want, len) == 0,
              "decoded \"%s\" (%zu bytes), expected \"%s\" (%zu bytes)", text, len, want, want_len);
    free(text);
}

static inline void expect_round_trip(const struct sheaf_tokenizer *t, const char *s, size_t len,
                                     unsigned flags) {
    int32_t *ids;
    size_t n;
    ok(sheaf_tokenizer_encode(t, s, len, flags, &ids, &n));
    expect_text(t, ids, n, SHEAF_DETOKENIZE_START | SHEAF_DETOKENIZE_SPECIAL, s, len);
    free(ids);
}

#endif
