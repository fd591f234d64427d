/* Tokenizers: the bundled model against its golden file, both families against a plain quadratic
 * reference, streams, special tokens, and metadata that lies. */
#include <criterion/criterion.h>
#include <errno.h>
#include <math.h>

#include "tokenizer-fixture.h"

#define KJV    SHEAF_SOURCE_DIR "/models/kjv-f32.gguf"
#define GOLDEN SHEAF_SOURCE_DIR "/tests/golden/kjv.golden.txt"

static struct sheaf_tokenizer *open_model(const char *path) {
    struct sheaf_gguf *g;
    ok(sheaf_gguf_open(path, &g));
    return make(g);
}

/* ---- the bundled model ---- */

static size_t parse_ids(const char *s, int32_t *ids, size_t cap) {
    size_t n = 0;
    for (char *end; n < cap; s = end) {
        long v = strtol(s, &end, 10);
        if (end == s) break;
        ids[n++] = (int32_t)v;
    }
    return n;
}

/* The text between the first and the last quote of a line, in place. */
static char *quoted(char *line) {
    char *from = strchr(line, '\''), *to = strrchr(line, '\'');
    cr_assert(from && to > from);
    *to = 0;
    return from + 1;
}

Test(kjv, golden_prompts_and_texts) {
    struct sheaf_tokenizer *t = open_model(KJV);
    FILE *f = fopen(GOLDEN, "r");
    cr_assert_not_null(f, "%s: %s", GOLDEN, strerror(errno));
    char line[4096], prompt[256] = "";
    int32_t ids[256];
    size_t n = 0;
    int n_prompts = 0, n_texts = 0;
    while (fgets(line, sizeof line, f)) {
        if (strncmp(line, "prompt ", 7) == 0) {
            snprintf(prompt, sizeof prompt, "%s", quoted(line));
        } else if (strncmp(line, "tokens ", 7) == 0) {
            n = parse_ids(line + 7, ids, N_OF(ids));
            expect_ids(t, prompt, SHEAF_TOKENIZE_ADD_SPECIAL, ids, n);
            expect_text(t, ids, n, SHEAF_DETOKENIZE_START, prompt, strlen(prompt));
            n_prompts++;
        } else if (strncmp(line, "greedy ", 7) == 0) {
            n += parse_ids(line + 7, ids + n, N_OF(ids) - n);
        } else if (strncmp(line, "text ", 5) == 0) {
            char *want = quoted(line);
            expect_text(t, ids + 1, n - 1, SHEAF_DETOKENIZE_SPECIAL, want, strlen(want));
            n_texts++;
        }
    }
    fclose(f);
    cr_expect_eq(n_prompts, 3);
    cr_expect_eq(n_texts, 3);
    sheaf_tokenizer_free(t);
}

Test(kjv, facts) {
    struct sheaf_tokenizer *t = open_model(KJV);
    cr_expect_eq(sheaf_tokenizer_n_vocab(t), 2048);
    cr_expect_str_eq(sheaf_tokenizer_describe(t), "llama");
    cr_expect_eq(sheaf_tokenizer_bos(t), 1);
    cr_expect_eq(sheaf_tokenizer_eos(t), 2);
    cr_expect_eq(sheaf_tokenizer_eot(t), -1);
    cr_expect(sheaf_tokenizer_add_bos(t));
    cr_expect_not(sheaf_tokenizer_add_eos(t));
    cr_expect(sheaf_tokenizer_is_eog(t, 2));
    cr_expect_not(sheaf_tokenizer_is_eog(t, 1));
    cr_expect(sheaf_tokenizer_is_control(t, 1));
    cr_expect_not(sheaf_tokenizer_is_control(t, 300));
    size_t len;
    cr_expect_str_eq(sheaf_tokenizer_token(t, 300, &len), "\xE2\x96\x81"
                                                          "And");
    cr_expect_eq(len, 6);
    cr_expect_eq(sheaf_tokenizer_find(t, "</s>"), 2);
    cr_expect_eq(sheaf_tokenizer_find(t, "no such token"), -1);
    const int32_t outside[] = {-1, 2048, INT32_MAX, INT32_MIN};
    for (size_t i = 0; i < N_OF(outside); i++) {
        char *text;
        cr_expect_null(sheaf_tokenizer_token(t, outside[i], NULL));
        cr_expect_not(sheaf_tokenizer_is_eog(t, outside[i]));
        cr_expect_not(sheaf_tokenizer_is_control(t, outside[i]));
        cr_expect_eq(sheaf_tokenizer_decode(t, &outside[i], 1, 0, &text, &len),
                     SHEAF_STATUS_INVALID);
        cr_expect_not_null(strstr(sheaf_last_error(), "there is no token"));
    }
    sheaf_tokenizer_free(t);
}

Test(kjv, bytes_and_special_tokens) {
    struct sheaf_tokenizer *t = open_model(KJV);
    int32_t space = sheaf_tokenizer_find(t, "\xE2\x96\x81");
    enum { BYTE_0 = 3 };
    EXPECT_IDS(t, "\xF0\x9F\x98\x80", 0, space, BYTE_0 + 0xF0, BYTE_0 + 0x9F, BYTE_0 + 0x98,
               BYTE_0 + 0x80);
    EXPECT_IDS(t, "\xFF", 0, space, BYTE_0 + 0xFF);
    expect_ids(t, "", SHEAF_TOKENIZE_ADD_SPECIAL, (const int32_t[]){1}, 1);
    expect_ids(t, "", 0, NULL, 0);
    EXPECT_IDS(t, "</s>", SHEAF_TOKENIZE_PARSE_SPECIAL, 2);
    EXPECT_IDS(t, "<s>the", SHEAF_TOKENIZE_ADD_SPECIAL | SHEAF_TOKENIZE_PARSE_SPECIAL, 1, 261);
    EXPECT_IDS(t, "the</s>the", SHEAF_TOKENIZE_PARSE_SPECIAL, 261, 2, 261);
    int32_t *ids;
    size_t n;
    ok(sheaf_tokenizer_encode(t, "</s>", 4, 0, &ids, &n));
    for (size_t i = 0; i < n; i++) cr_expect_not(sheaf_tokenizer_is_control(t, ids[i]));
    expect_text(t, ids, n, SHEAF_DETOKENIZE_START, "</s>", 4);
    free(ids);
    cr_expect_eq(sheaf_tokenizer_encode(t, "", (size_t)1 << 28, 0, &ids, &n), SHEAF_STATUS_INVALID);
    cr_expect_not_null(strstr(sheaf_last_error(), "too long"));
    sheaf_tokenizer_free(t);
}

/* What a text must become, the plain way: all symbols in a row, the best pair joined, again. */
static size_t spm_reference(const struct sheaf_tokenizer *t, const char *s, size_t len,
                            int32_t *ids) {
    struct {
        size_t start, len;
    } sym[512];
    char text[512];
    size_t n = 0, n_sym = 0, n_ids = 0;
    memcpy(text, "\xE2\x96\x81", 3);
    n = 3;
    for (size_t i = 0; i < len; i++) {
        if (s[i] != ' ') {
            text[n++] = s[i];
            continue;
        }
        memcpy(text + n, "\xE2\x96\x81", 3);
        n += 3;
    }
    for (size_t i = 0, w; i < n; i += w) {
        uint32_t cp;
        w = sheaf__utf8_next(text + i, n - i, &cp);
        sym[n_sym].start = i;
        sym[n_sym++].len = w;
    }
    for (;;) {
        size_t best = SIZE_MAX;
        float best_score = -INFINITY;
        for (size_t i = 0; i + 1 < n_sym; i++) {
            uint32_t id =
                sheaf__vocab_find(&t->vocab, text + sym[i].start, sym[i].len + sym[i + 1].len);
            if (id != SHEAF__NO_SYMBOL && t->score[id] > best_score) {
                best = i;
                best_score = t->score[id];
            }
        }
        if (best == SIZE_MAX) break;
        sym[best].len += sym[best + 1].len;
        memmove(&sym[best + 1], &sym[best + 2], (n_sym - best - 2) * sizeof *sym);
        n_sym--;
    }
    for (size_t i = 0; i < n_sym; i++) {
        uint32_t id = sheaf__vocab_find(&t->vocab, text + sym[i].start, sym[i].len);
        if (id != SHEAF__NO_SYMBOL)
            ids[n_ids++] = (int32_t)id;
        else
            for (size_t j = 0; j < sym[i].len; j++)
                ids[n_ids++] = 3 + (unsigned char)text[sym[i].start + j];
    }
    return n_ids;
}

/* Random text of the given alphabet of strings. */
static size_t random_text(char *s, size_t cap, const char *const *alphabet, size_t n) {
    size_t len = 0, parts = (size_t)rand() % 30;
    for (size_t i = 0; i < parts; i++) {
        const char *part = alphabet[(size_t)rand() % n];
        if (len + strlen(part) >= cap) break;
        memcpy(s + len, part, strlen(part));
        len += strlen(part);
    }
    return len;
}

Test(kjv, equals_the_plain_algorithm) {
    static const char *const alphabet[] = {
        " ",  "the", "LORD", "a",  "b",   "s", "un",       "ness",         "\n",   "  ", "And ",
        "th", "e",   "i",    "in", "ing", ".", "\xC3\xA9", "\xE4\xBD\xA0", "\xFF", "Z",  ", "};
    struct sheaf_tokenizer *t = open_model(KJV);
    srand(1);
    for (int round = 0; round < 1500; round++) {
        char s[128];
        int32_t want[512];
        size_t len = random_text(s, sizeof s, alphabet, N_OF(alphabet)), n;
        size_t n_want = len ? spm_reference(t, s, len, want) : 0;
        int32_t *ids;
        ok(sheaf_tokenizer_encode(t, s, len, 0, &ids, &n));
        cr_assert(n == n_want && memcmp(ids, want, n * sizeof *ids) == 0, "\"%.*s\"", (int)len, s);
        expect_text(t, ids, n, SHEAF_DETOKENIZE_START, s, len);
        free(ids);
    }
    sheaf_tokenizer_free(t);
}

/* A quadratic algorithm would need hours for this. */
Test(kjv, long_texts, .timeout = 240) {
    struct sheaf_tokenizer *t = open_model(KJV);
    struct sheaf_tokenizer *b = make(bpe_gguf("llama-bpe"));
    size_t len = 1 << 20;
    char *s = malloc(len);
    static const char fill[] = {'a', ' ', '\n', '9'};
    for (size_t i = 0; i < N_OF(fill); i++) {
        memset(s, fill[i], len);
        expect_round_trip(t, s, len, 0);
        expect_round_trip(b, s, len, 0);
    }
    free(s);
    sheaf_tokenizer_free(t);
    sheaf_tokenizer_free(b);
}

/* ---- SentencePiece-style, by hand ---- */

Test(spm, scores_and_space_prefix) {
    struct sheaf_gguf *g = spm_gguf();
    struct sheaf_tokenizer *t;
    ok(sheaf_tokenizer_new(g, &t));
    EXPECT_IDS(t, "abc", 0, 13, 12); /* bc is best, then _a is better than abc */
    EXPECT_IDS(t, "ab", 0, 3, 11);
    EXPECT_IDS(t, " a", 0, 3, 13);
    EXPECT_IDS(t, "ab", SHEAF_TOKENIZE_ADD_SPECIAL, 1, 3, 11);
    sheaf_tokenizer_free(t);
    ok(sheaf_gguf_set_bool(g, "tokenizer.ggml.add_space_prefix", false));
    ok(sheaf_gguf_set_bool(g, "tokenizer.ggml.add_bos_token", false));
    ok(sheaf_gguf_set_bool(g, "tokenizer.ggml.add_eos_token", true));
    t = make(g);
    EXPECT_IDS(t, "abc", 0, 14);
    EXPECT_IDS(t, " a", 0, 13);
    EXPECT_IDS(t, "ab", SHEAF_TOKENIZE_ADD_SPECIAL, 11, 2);
    expect_text(t, (const int32_t[]){13}, 1, SHEAF_DETOKENIZE_START, " a", 2);
    sheaf_tokenizer_free(t);
}

Test(spm, equal_scores_join_from_the_left) {
    static const char *const tokens[] = {"<unk>", "<s>", "</s>", "a", "aa"};
    const float scores[] = {0, 0, 0, -2, -1};
    struct sheaf_gguf *g = sheaf_gguf_new();
    ok(sheaf_gguf_set_str(g, "tokenizer.ggml.model", "llama"));
    ok(sheaf_gguf_set_arr_str(g, "tokenizer.ggml.tokens", tokens, 5));
    ok(sheaf_gguf_set_arr(g, "tokenizer.ggml.scores", SHEAF_GGUF_TYPE_FLOAT32, scores, 5));
    ok(sheaf_gguf_set_bool(g, "tokenizer.ggml.add_bos_token", false));
    ok(sheaf_gguf_set_bool(g, "tokenizer.ggml.add_space_prefix", false));
    struct sheaf_tokenizer *t = make(g);
    EXPECT_IDS(t, "aaaaa", 0, 4, 4, 3);
    sheaf_tokenizer_free(t);
}

/* -0 is no worse than 0; and a token as long as any is made of two others. */
Test(spm, scores_of_zero_and_the_longest_token) {
    static const char *const tokens[] = {"<unk>", "<s>", "</s>", "a",       "b",
                                         "aa",    "ab",  "aaaa", "aaaaaaaa"};
    const float scores[] = {0, 0, 0, -2, -2, -0.0f, 0, -1, -1.5f};
    struct sheaf_gguf *g = sheaf_gguf_new();
    ok(sheaf_gguf_set_str(g, "tokenizer.ggml.model", "llama"));
    ok(sheaf_gguf_set_arr_str(g, "tokenizer.ggml.tokens", tokens, 9));
    ok(sheaf_gguf_set_arr(g, "tokenizer.ggml.scores", SHEAF_GGUF_TYPE_FLOAT32, scores, 9));
    ok(sheaf_gguf_set_bool(g, "tokenizer.ggml.add_bos_token", false));
    ok(sheaf_gguf_set_bool(g, "tokenizer.ggml.add_space_prefix", false));
    struct sheaf_tokenizer *t = make(g);
    EXPECT_IDS(t, "aab", 0, 5, 4); /* from the left, not "ab" first */
    EXPECT_IDS(t, "aaaaaaaa", 0, 8);
    sheaf_tokenizer_free(t);
}

/* A token whose type says that it is unused is one of text, as in llama.cpp. Of two with one
 * spelling the first is taken. */
Test(spm, unused_tokens_are_text) {
    static const char *const tokens[] = {"<unk>", "<s>", "</s>", "a", "aa", "aa"};
    const float scores[] = {0, 0, 0, -2, -1, -1};
    const int32_t types[] = {2, 3, 3, 1, SHEAF__TOKEN_UNUSED, 1};
    struct sheaf_gguf *g = sheaf_gguf_new();
    ok(sheaf_gguf_set_str(g, "tokenizer.ggml.model", "llama"));
    ok(sheaf_gguf_set_arr_str(g, "tokenizer.ggml.tokens", tokens, 6));
    ok(sheaf_gguf_set_arr(g, "tokenizer.ggml.scores", SHEAF_GGUF_TYPE_FLOAT32, scores, 6));
    ok(sheaf_gguf_set_arr(g, "tokenizer.ggml.token_type", SHEAF_GGUF_TYPE_INT32, types, 6));
    ok(sheaf_gguf_set_bool(g, "tokenizer.ggml.add_bos_token", false));
    ok(sheaf_gguf_set_bool(g, "tokenizer.ggml.add_space_prefix", false));
    struct sheaf_tokenizer *t = make(g);
    EXPECT_IDS(t, "aa", 0, 4);
    sheaf_tokenizer_free(t);
}

Test(spm, special_tokens) {
    struct sheaf_tokenizer *t = make(spm_gguf());
    /* Text cannot forge a control token, though its halves are tokens. */
    EXPECT_IDS(t, "</s>", 0, 3, 20, 15);
    EXPECT_IDS(t, "</s>", SHEAF_TOKENIZE_PARSE_SPECIAL, 2);
    /* User-defined tokens count always, the longest first. */
    EXPECT_IDS(t, "a  b", 0, 13, 18, 3, 5);
    EXPECT_IDS(t, "a     b", 0, 13, 19, 3, 3, 5);
    /* A turn's end is known by name, whatever its type. */
    cr_expect_eq(sheaf_tokenizer_eot(t), 17);
    cr_expect(sheaf_tokenizer_is_eog(t, 17));
    cr_expect(sheaf_tokenizer_is_control(t, 17));
    EXPECT_IDS(t, "a<end_of_turn>", SHEAF_TOKENIZE_PARSE_SPECIAL, 13, 17);
    sheaf_tokenizer_free(t);
}

/* As llama.cpp has it of models with that name. */
Test(spm, white_space_behind_the_special_tokens_of_phi_3) {
    for (int i = 0; i < 2; i++) {
        struct sheaf_gguf *g = spm_gguf();
        ok(sheaf_gguf_set_str(g, "general.name", i ? "Phi-3 mini" : "Phi 4"));
        struct sheaf_tokenizer *t = make(g);
        if (i) {
            EXPECT_IDS(t, "</s> \t\r\na", SHEAF_TOKENIZE_PARSE_SPECIAL, 2, 13);
            EXPECT_IDS(t, "a</s>\n", SHEAF_TOKENIZE_PARSE_SPECIAL, 13, 2);
        } else {
            EXPECT_IDS(t, "</s> a", SHEAF_TOKENIZE_PARSE_SPECIAL, 2, 3, 13);
        }
        EXPECT_IDS(t, "<s> a", SHEAF_TOKENIZE_PARSE_SPECIAL, 1, 3, 13);
        sheaf_tokenizer_free(t);
    }
}

Test(spm, what_is_not_in_the_vocabulary) {
    struct sheaf_gguf *g = spm_gguf();
    struct sheaf_tokenizer *t;
    ok(sheaf_tokenizer_new(g, &t));
    EXPECT_IDS(t, "x\xC3\xA9", 0, 3, 0, 0); /* one unknown token a character */
    sheaf_tokenizer_free(t);
    int32_t types[N_OF(spm_tokens)];
    for (size_t i = 0; i < N_OF(types); i++) types[i] = SHEAF__TOKEN_NORMAL;
    ok(sheaf_gguf_set_arr(g, "tokenizer.ggml.token_type", SHEAF_GGUF_TYPE_INT32, types,
                          N_OF(types)));
    t = make(g);
    int32_t *ids;
    size_t n;
    cr_expect_eq(sheaf_tokenizer_encode(t, "ax", 2, 0, &ids, &n), SHEAF_STATUS_INVALID);
    cr_expect_not_null(strstr(sheaf_last_error(), "no token for the byte 0x78"));
    cr_expect_null(ids);
    cr_expect_eq(sheaf_tokenizer_encode(t, "a\0", 2, 0, &ids, &n), SHEAF_STATUS_INVALID);
    cr_expect_not_null(strstr(sheaf_last_error(), "no token for the byte 0x00"));
    sheaf_tokenizer_free(t);
}

/* ---- byte-level BPE, by hand ---- */

enum { S = BPE_FIRST_SPECIAL };

static void count_warnings(enum sheaf_log_level level, const char *text, void *user) {
    cr_expect_eq(level, SHEAF_LOG_WARN);
    cr_expect(strstr(text, "(tokenizer.ggml.pre): \"default\" is taken"), "%s", text);
    ++*(int *)user;
}

Test(bpe, a_file_that_does_not_say_how_text_is_divided_is_warned_of) {
    int n_warnings = 0;
    sheaf_log_set(count_warnings, &n_warnings);
    sheaf_tokenizer_free(make(bpe_gguf("default")));
    cr_expect_eq(n_warnings, 0);
    struct sheaf_tokenizer *t = make(bpe_gguf(NULL));
    cr_expect_eq(n_warnings, 1);
    cr_expect_str_eq(sheaf_tokenizer_describe(t), "gpt2 (default)");
    EXPECT_IDS(t, "it's", 0, 105, 116, '\'', 's'); /* no other family has its signs apart */
    sheaf_tokenizer_free(t);
    sheaf_tokenizer_free(make(bpe_gguf("")));
    cr_expect_eq(n_warnings, 2);
    sheaf_log_set(NULL, NULL);
}

Test(bpe, ranks_and_words) {
    struct sheaf_tokenizer *gpt2 = make(bpe_gguf("gpt-2")), *smollm = make(bpe_gguf("smollm"));
    struct sheaf_tokenizer *llama = make(bpe_gguf("llama-bpe")), *qwen2 = make(bpe_gguf("qwen2"));
    struct sheaf_tokenizer *all[] = {gpt2, smollm, llama, qwen2};
    static const char *const names[] = {"gpt2 (gpt-2)", "gpt2 (smollm)", "gpt2 (llama-bpe)",
                                        "gpt2 (qwen2)"};
    for (size_t i = 0; i < N_OF(all); i++) {
        cr_expect_str_eq(sheaf_tokenizer_describe(all[i]), names[i]);
        EXPECT_IDS(all[i], "hello world", 0, 259, 264);
        EXPECT_IDS(all[i], "it's", 0, 105, 116, 272);
        EXPECT_IDS(all[i], "aaa", 0, 271);
        EXPECT_IDS(all[i], "aaaaa", 0, 270, 271);
        EXPECT_IDS(all[i], "\xF0\x9F\x98\x80", 0, 276, 0x98, 0x80);
        expect_ids(all[i], "", 0, NULL, 0);
    }
    EXPECT_IDS(gpt2, "123", 0, 268);
    EXPECT_IDS(llama, "123", 0, 268);
    EXPECT_IDS(smollm, "123", 0, '1', '2', '3');
    EXPECT_IDS(qwen2, "123", 0, '1', '2', '3');
    EXPECT_IDS(gpt2, "\n\nx", 0, '\n', '\n', 'x');
    EXPECT_IDS(llama, "\n\nx", 0, 269, 'x');
    /* Llama 3's files hold words that no merges lead to. */
    EXPECT_IDS(llama, " whole", 0, S + 6);
    EXPECT_IDS(gpt2, " whole", 0, 260, 'h', 'o', 'l', 'e');
    /* Only Llama 3's pre-tokenizer implies a bos token. */
    EXPECT_IDS(llama, "x", SHEAF_TOKENIZE_ADD_SPECIAL, S, 'x');
    EXPECT_IDS(llama, "<|im_start|>x", SHEAF_TOKENIZE_ADD_SPECIAL | SHEAF_TOKENIZE_PARSE_SPECIAL, S,
               'x');
    EXPECT_IDS(llama, "<|im_start|><|im_start|>x",
               SHEAF_TOKENIZE_ADD_SPECIAL | SHEAF_TOKENIZE_PARSE_SPECIAL, S, S, 'x');
    EXPECT_IDS(llama, "x<|im_start|>", SHEAF_TOKENIZE_ADD_SPECIAL | SHEAF_TOKENIZE_PARSE_SPECIAL, S,
               'x', S);
    EXPECT_IDS(qwen2, "x", SHEAF_TOKENIZE_ADD_SPECIAL, 'x');
    for (size_t i = 0; i < N_OF(all); i++) sheaf_tokenizer_free(all[i]);
}

Test(bpe, special_tokens) {
    struct sheaf_gguf *g = bpe_gguf("qwen2");
    struct sheaf_tokenizer *t;
    ok(sheaf_tokenizer_new(g, &t));
    EXPECT_IDS(t, "<tool>x<tool>", 0, S + 4, S + 3);
    EXPECT_IDS(t, "a[\xC3\xA9 ]a", 0, 'a', S + 5, 'a');
    expect_text(t, (const int32_t[]){S + 5}, 1, 0, "[\xC3\xA9 ]", 5);
    EXPECT_IDS(t, "<|im_end|>", SHEAF_TOKENIZE_PARSE_SPECIAL, S + 1);
    EXPECT_IDS(t, "<|im_end|", SHEAF_TOKENIZE_PARSE_SPECIAL, '<', '|', 'i', 'm', '_', 'e', 'n', 'd',
               '|');
    EXPECT_IDS(t, "<|im_end|>", 0, '<', '|', 'i', 'm', '_', 'e', 'n', 'd', '|', '>');
    const int32_t ids[] = {'a', S, 'b'};
    expect_text(t, ids, 3, 0, "ab", 2);
    expect_text(t, ids, 3, SHEAF_DETOKENIZE_SPECIAL, "a<|im_start|>b", 14);

    cr_expect_eq(sheaf_tokenizer_eos(t), S + 2);
    cr_expect_eq(sheaf_tokenizer_eot(t), S + 1, "<|im_end|> goes before <|endoftext|>");
    cr_expect_not(sheaf_tokenizer_is_eog(t, S));
    cr_expect(sheaf_tokenizer_is_eog(t, S + 1));
    cr_expect(sheaf_tokenizer_is_eog(t, S + 2));
    cr_expect_not(sheaf_tokenizer_is_eog(t, S + 3));
    sheaf_tokenizer_free(t);
    ok(sheaf_gguf_set_u32(g, "tokenizer.ggml.eot_token_id", S + 3));
    t = make(g);
    cr_expect_eq(sheaf_tokenizer_eot(t), S + 3);
    cr_expect(sheaf_tokenizer_is_eog(t, S + 3));
    sheaf_tokenizer_free(t);
}

/* Replaces one token's text. */
static void set_token(struct sheaf_gguf *g, size_t id, const char *text) {
    int64_t k = sheaf_gguf_find_key(g, "tokenizer.ggml.tokens");
    size_t n = sheaf_gguf_arr_n(g, k);
    char **list = malloc(n * sizeof *list);
    for (size_t i = 0; i < n; i++)
        list[i] = strdup(i == id ? text : sheaf_gguf_arr_str(g, k, i, NULL));
    ok(sheaf_gguf_set_arr_str(g, "tokenizer.ggml.tokens", (const char *const *)list, n));
    for (size_t i = 0; i < n; i++) free(list[i]);
    free(list);
}

/* A pair that is listed twice has the rank of its first place. */
Test(bpe, the_first_of_two_ranks_counts) {
    static const char *const merges[] = {"h e", "e l", "h e"};
    struct sheaf_gguf *g = bpe_gguf("qwen2");
    ok(sheaf_gguf_set_arr_str(g, "tokenizer.ggml.merges", merges, N_OF(merges)));
    struct sheaf_tokenizer *t = make(g);
    EXPECT_IDS(t, "hel", 0, 256, 'l');
    sheaf_tokenizer_free(t);
}

/* Control tokens that end a text by their name; an ordinary token of that name is text. */
Test(bpe, control_tokens_that_end_a_text) {
    static const char *const names[] = {"</s>",       "<eos>",       "[EOS]",
                                        "[EOT]",      "<|fim_pad|>", "<|repo_name|>",
                                        "<reponame>", "<|file_sep|>"};
    for (size_t i = 0; i < N_OF(names); i++) {
        struct sheaf_gguf *g = bpe_gguf("qwen2");
        set_token(g, S, names[i]);
        struct sheaf_tokenizer *t = make(g);
        cr_expect(sheaf_tokenizer_is_eog(t, S), "%s", names[i]);
        cr_expect_eq(sheaf_tokenizer_eot(t), S + 1, "%s ends no turn", names[i]);
        sheaf_tokenizer_free(t);
        g = bpe_gguf("qwen2");
        set_token(g, S + 6, names[i]);
        t = make(g);
        cr_expect_not(sheaf_tokenizer_is_eog(t, S + 6), "%s", names[i]);
        cr_expect_not(sheaf_tokenizer_is_control(t, S + 6), "%s", names[i]);
        sheaf_tokenizer_free(t);
    }
}

/* Of harmony (gpt-oss), whose messages follow each other: <|end|> ends one, and no text. */
Test(bpe, an_end_of_a_message_is_not_that_of_a_text) {
    struct sheaf_gguf *g = bpe_gguf("gpt-4o");
    struct sheaf_tokenizer *t;
    set_token(g, S, "<|end|>");
    set_token(g, S + 1, "<|call|>");
    ok(sheaf_tokenizer_new(g, &t));
    cr_expect(sheaf_tokenizer_is_eog(t, S), "without <|return|> it is another format");
    cr_expect_eq(sheaf_tokenizer_eot(t), S);
    sheaf_tokenizer_free(t);
    set_token(g, S + 2, "<|return|>");
    ok(sheaf_gguf_set_u32(g, "tokenizer.ggml.eom_token_id", S + 3));
    t = make(g);
    cr_expect_not(sheaf_tokenizer_is_eog(t, S));
    cr_expect(sheaf_tokenizer_is_eog(t, S + 1));
    cr_expect(sheaf_tokenizer_is_eog(t, S + 2));
    cr_expect(sheaf_tokenizer_is_eog(t, S + 3), "the key of <|eom_id|> counts");
    cr_expect_eq(sheaf_tokenizer_eot(t), S + 2);
    sheaf_tokenizer_free(t);
}

/* Files of this family carry the key for nothing: a text may begin with a space of its own. */
Test(bpe, no_space_is_put_before_a_text) {
    struct sheaf_gguf *g = bpe_gguf("qwen2");
    ok(sheaf_gguf_set_bool(g, "tokenizer.ggml.add_space_prefix", true));
    struct sheaf_tokenizer *t = make(g);
    EXPECT_IDS(t, "a", 0, 'a');
    expect_text(t, (const int32_t[]){260}, 1, SHEAF_DETOKENIZE_START, " w", 2);
    sheaf_tokenizer_free(t);
}

Test(bpe, bytes_without_a_token_are_left_out) {
    struct sheaf_gguf *g = bpe_gguf("smollm");
    set_token(g, 0xF1, "unused");
    struct sheaf_tokenizer *t = make(g);
    EXPECT_IDS(t, "a\xF1\x80\x80\x80", 0, 'a', 0x80, 0x80, 0x80);
    expect_ids(t, "\xF1", 0, NULL, 0);
    sheaf_tokenizer_free(t);
}

Test(bpe, merges_through_symbols_that_are_no_tokens) {
    struct sheaf_gguf *g = bpe_gguf("qwen2");
    static const char *const merges[] = {"q r", "qr s", "q r"};
    ok(sheaf_gguf_set_arr_str(g, "tokenizer.ggml.merges", merges, 3));
    set_token(g, 256, "qrs");
    struct sheaf_tokenizer *t = make(g);
    EXPECT_IDS(t, "qrs", 0, 256);
    EXPECT_IDS(t, "qrqr", 0, 'q', 'r', 'q', 'r');
    sheaf_tokenizer_free(t);
}

/* Word by word, all symbols in a row, the pair of lowest rank joined, again. */
static size_t bpe_reference(const struct sheaf_tokenizer *t, const char *s, size_t len,
                            int32_t *ids) {
    int32_t left[N_OF(bpe_merges)], right[N_OF(bpe_merges)];
    size_t n_ids = 0;
    for (size_t m = 0; m < N_OF(bpe_merges); m++) {
        char text[32];
        spell(bpe_merges[m], text);
        char *space = strchr(text, ' ');
        *space = 0;
        left[m] = sheaf_tokenizer_find(t, text);
        right[m] = sheaf_tokenizer_find(t, space + 1);
        cr_assert(left[m] >= 0 && right[m] >= 0);
    }
    for (size_t k; len; s += k, len -= k) {
        int32_t *w = ids + n_ids;
        size_t n = k = sheaf__pre_next(t->pre->pre, s, len);
        int32_t whole = t->pre->whole_words ? BPE_FIRST_SPECIAL : 0;
        while (--whole >= 0)
            if (t->piece[whole].len == k &&
                memcmp(t->piece_arena + t->piece[whole].offset, s, k) == 0)
                break;
        if (whole >= 0) {
            ids[n_ids++] = whole;
            continue;
        }
        for (size_t i = 0; i < n; i++) w[i] = (unsigned char)s[i];
        for (bool joined = true; joined;) {
            joined = false;
            for (size_t m = 0; m < N_OF(bpe_merges) && !joined; m++)
                for (size_t i = 0; i + 1 < n && !joined; i++)
                    if (w[i] == left[m] && w[i + 1] == right[m]) {
                        w[i] = BPE_FIRST_MERGE + (int32_t)m;
                        memmove(w + i + 1, w + i + 2, (n - i - 2) * sizeof *w);
                        n--;
                        joined = true;
                    }
        }
        n_ids += n;
    }
    return n_ids;
}

Test(bpe, equals_the_plain_algorithm) {
    static const char *const alphabet[] = {
        "h",        "e",    "l", "hell", "o",   " ", "  ",
        "world",    " the", "t", "he",   "12",  "3", "'s",
        "\n",       "\n\n", "a", "aa",   "aaa", ".", "\xF0\x9F\x98\x80",
        "\xC3\xA9", "\xFF"};
    static const char *const pres[] = {"gpt-2", "smollm", "llama-bpe", "qwen2"};
    srand(2);
    for (size_t p = 0; p < N_OF(pres); p++) {
        struct sheaf_tokenizer *t = make(bpe_gguf(pres[p]));
        for (int round = 0; round < 1500; round++) {
            char s[128];
            int32_t want[128], *ids;
            size_t len = random_text(s, sizeof s, alphabet, N_OF(alphabet)), n;
            size_t n_want = bpe_reference(t, s, len, want);
            ok(sheaf_tokenizer_encode(t, s, len, 0, &ids, &n));
            cr_assert(n == n_want && memcmp(ids, want, n * sizeof *ids) == 0, "%s: \"%.*s\"",
                      pres[p], (int)len, s);
            free(ids);
        }
        sheaf_tokenizer_free(t);
    }
}

/* Any bytes come back, valid UTF-8 or not, zeros too. */
Test(bpe, round_trip) {
    static const char *const pres[] = {"default", "smollm", "llama-bpe", "qwen2"};
    srand(3);
    for (size_t p = 0; p < N_OF(pres); p++) {
        struct sheaf_tokenizer *t = make(bpe_gguf(pres[p]));
        for (int round = 0; round < 1000; round++) {
            char s[256];
            size_t len = 0, want = (size_t)rand() % 200;
            while (len < want) {
                if (round % 2)
                    s[len++] = (char)rand();
                else
                    len +=
                        sheaf__utf8_put((uint32_t)rand() % (rand() % 2 ? 0x300 : 0xD800), s + len);
            }
            expect_round_trip(t, s, len, 0);
            expect_round_trip(t, s, len, SHEAF_TOKENIZE_PARSE_SPECIAL);
        }
        sheaf_tokenizer_free(t);
    }
}

/* ---- streams ---- */

Test(stream, characters_come_whole) {
    struct sheaf_tokenizer *t = make(bpe_gguf("qwen2"));
    struct sheaf_detokenizer *d;
    const char *piece;
    size_t len;
    ok(sheaf_detokenizer_new(t, 0, &d));
    const struct {
        int32_t id;
        const char *piece;
    } steps[] = {
        {'a', "a"},
        {276, ""},
        {S, ""},
        {0x98, ""},
        {0x80, "\xF0\x9F\x98\x80"},
        {0xC3, ""},
        {'b', "\xC3"
              "b"},
        {0xE2, ""},
        {0x82, ""},
        {0xE2, "\xE2\x82"},
        {0x82, ""},
        {0xAC, "\xE2\x82\xAC"},
        {0xFF, "\xFF"},
        {259, "hello"},
        {0xF0, ""},
    };
    for (size_t i = 0; i < N_OF(steps); i++) {
        ok(sheaf_detokenizer_push(d, steps[i].id, &piece, &len));
        cr_expect_str_eq(piece, steps[i].piece, "step %zu", i);
        cr_expect_eq(len, strlen(steps[i].piece));
    }
    sheaf_detokenizer_flush(d, &piece, &len);
    cr_expect(len == 1 && piece[0] == '\xF0' && piece[1] == 0);
    sheaf_detokenizer_flush(d, &piece, &len);
    cr_expect_eq(len, 0);
    ok(sheaf_detokenizer_push(d, 0, &piece, &len));
    cr_expect(len == 1 && piece[0] == 0, "a zero byte is text");
    cr_expect_eq(sheaf_detokenizer_push(d, 100000, &piece, &len), SHEAF_STATUS_INVALID);
    cr_expect(len == 0 && piece[0] == 0);
    sheaf_detokenizer_free(d);
    sheaf_tokenizer_free(t);
}

Test(stream, space_prefix_only_at_the_start) {
    struct sheaf_tokenizer *t = make(spm_gguf());
    struct sheaf_detokenizer *d;
    const char *piece;
    size_t len;
    ok(sheaf_detokenizer_new(t, SHEAF_DETOKENIZE_START, &d));
    for (int round = 0; round < 2; round++) {
        ok(sheaf_detokenizer_push(d, 1, &piece, &len)); /* <s> is not shown and does not count */
        cr_expect_eq(len, 0);
        ok(sheaf_detokenizer_push(d, 13, &piece, &len));
        cr_expect_str_eq(piece, "a");
        ok(sheaf_detokenizer_push(d, 13, &piece, &len));
        cr_expect_str_eq(piece, " a");
        sheaf_detokenizer_flush(d, &piece, &len);
    }
    sheaf_detokenizer_free(d);
    /* nor does one that is shown */
    expect_text(t, (const int32_t[]){1, 13, 13}, 3,
                SHEAF_DETOKENIZE_START | SHEAF_DETOKENIZE_SPECIAL, "<s>a a", 6);
    sheaf_tokenizer_free(t);
}

/* ---- SmolLM2, where it is at hand ---- */

Test(smollm2, known_ids) {
    const char *path = getenv("SHEAF_TEST_SMOLLM2");
    if (!path) cr_skip("SHEAF_TEST_SMOLLM2 does not name the file of SmolLM2-135M-Instruct");
    struct sheaf_tokenizer *t = open_model(path);
    cr_expect_str_eq(sheaf_tokenizer_describe(t), "gpt2 (smollm)");
    cr_expect_eq(sheaf_tokenizer_n_vocab(t), 49152);
    cr_expect_not(sheaf_tokenizer_add_bos(t));
    cr_expect_eq(sheaf_tokenizer_eot(t), 2);
    cr_expect(sheaf_tokenizer_is_eog(t, 0));
    /* from the tokenizers package of PyPI, 0.23.3, with this vocabulary */
    EXPECT_IDS(t, "The capital of France is", 0, 504, 3575, 282, 4649, 314);
    EXPECT_IDS(t, "I'm sure we'll don't", 0, 57, 5248, 2090, 392, 3060, 1326, 982);
    EXPECT_IDS(t, "12345 67", 0, 33, 34, 35, 36, 37, 216, 38, 39);
    EXPECT_IDS(t, "a\n\n b \n\tc", 0, 81, 1116, 278, 3717, 197, 83);
    EXPECT_IDS(t, "  hello   world  ", 0, 216, 33662, 256, 905, 256);
    EXPECT_IDS(t, "Caf\xC3\xA9 d\xC3\xA9j\xC3\xA0 vu.", 0, 51, 1939, 2756, 32564, 90, 16739, 386,
               101, 30);
    EXPECT_IDS(t, "\xE4\xBD\xA0\xE5\xA5\xBD\xEF\xBC\x8C\xE4\xB8\x96\xE7\x95\x8C", 0, 18645, 250,
               48392, 138, 12831, 7906, 240, 178, 239, 230);
    EXPECT_IDS(t, "<|im_start|>user\nHi<|im_end|>\n", SHEAF_TOKENIZE_PARSE_SPECIAL, 1, 4093, 198,
               26843, 2, 198);
    EXPECT_IDS(t, "<|im_start|>user\nHi<|im_end|>\n", 0, 44, 108, 306, 79, 3738, 108, 46, 4093, 198,
               26843, 44, 108, 306, 79, 486, 108, 46, 198);
    sheaf_tokenizer_free(t);
}

/* ---- metadata that lies ---- */

Test(metadata, refused) {
    static const struct {
        char family; /* 'b' or 's' */
        const char *key;
        char kind; /* s string, u number, i/f array of n i32/f32, t array of n copies of a string */
        const char *s;
        double v;
        size_t n;
        enum sheaf_status status;
        const char *words;
    } cases[] = {
        {'b', "model", 's', "t5", 0, 0, SHEAF_STATUS_UNSUPPORTED, "is \"t5\""},
        {'b', "model", 'u', "", 1, 0, SHEAF_STATUS_INVALID, "tokenizer.ggml.model"},
        {'b', "pre", 's', "no-such", 0, 0, SHEAF_STATUS_UNSUPPORTED, "known are default, gpt-2"},
        {'b', "pre", 'u', "", 1, 0, SHEAF_STATUS_INVALID, "tokenizer.ggml.pre"},
        {'b', "tokens", 't', "", 0, 0, SHEAF_STATUS_INVALID, "has 0 elements"},
        {'b', "tokens", 't', "a", 0, 3, SHEAF_STATUS_INVALID, "for 3 tokens"},
        {'b', "tokens", 'i', "", 0, 3, SHEAF_STATUS_INVALID, "not an array of strings"},
        {'b', "tokens", 's', "a", 0, 0, SHEAF_STATUS_INVALID, "not an array of strings"},
        {'b', "token_type", 'i', "", 1, 3, SHEAF_STATUS_INVALID, "token_type"},
        {'b', "token_type", 'i', "", 7, S + 7, SHEAF_STATUS_INVALID, "is 7; 0 to 6 are known"},
        {'b', "token_type", 'i', "", -1, S + 7, SHEAF_STATUS_INVALID, "is -1; 0 to 6 are known"},
        {'b', "token_type", 'i', "", 6, S + 7, SHEAF_STATUS_INVALID, "instead of <0xNN>"},
        {'b', "token_type", 'f', "", 1, S + 7, SHEAF_STATUS_INVALID,
         "array of numbers of type i32"},
        {'b', "merges", 't', "ab", 0, 2, SHEAF_STATUS_INVALID, "merges[0]"},
        {'b', "merges", 't', " a", 0, 2, SHEAF_STATUS_INVALID, "merges[0]"},
        {'b', "merges", 't', "a ", 0, 2, SHEAF_STATUS_INVALID, "merges[0]"},
        {'b', "merges", 't', "", 0, 2, SHEAF_STATUS_INVALID, "merges[0]"},
        {'b', "merges", 'i', "", 0, 2, SHEAF_STATUS_INVALID, "array of strings"},
        {'b', "bos_token_id", 'u', "", S + 7, 0, SHEAF_STATUS_INVALID, "bos_token_id"},
        {'b', "eos_token_id", 'u', "", 4294967295.0, 0, SHEAF_STATUS_INVALID, "is 4294967295, but"},
        {'b', "eot_token_id", 's', "x", 0, 0, SHEAF_STATUS_INVALID, "eot_token_id"},
        {'b', "unknown_token_id", 'u', "", 1e6, 0, SHEAF_STATUS_INVALID, "unknown_token_id"},
        {'b', "add_bos_token", 's', "yes", 0, 0, SHEAF_STATUS_INVALID, "add_bos_token"},
        {'s', "scores", 'f', "", 1, 5, SHEAF_STATUS_INVALID, "has 5 elements for 21 tokens"},
        {'s', "scores", 'f', "", NAN, 21, SHEAF_STATUS_INVALID, "is not a number"},
        {'s', "scores", 'i', "", 1, 21, SHEAF_STATUS_INVALID, "array of numbers of type f32"},
        {'s', "tokens", 't', "a", 0, 20, SHEAF_STATUS_INVALID, "for 20 tokens"},
        {'s', "token_type", 'i', "", 6, 21, SHEAF_STATUS_INVALID, "instead of <0xNN>"},
    };
    for (size_t i = 0; i < N_OF(cases); i++) {
        struct sheaf_gguf *g = cases[i].family == 'b' ? bpe_gguf("qwen2") : spm_gguf();
        char key[64];
        size_t n = cases[i].n;
        int32_t *numbers = calloc(n + 1, sizeof *numbers);
        float *floats = calloc(n + 1, sizeof *floats);
        const char **list = calloc(n + 1, sizeof *list);
        for (size_t j = 0; j < n; j++) {
            if (cases[i].kind == 'i') numbers[j] = (int32_t)cases[i].v;
            floats[j] = (float)cases[i].v;
            list[j] = cases[i].s;
        }
        snprintf(key, sizeof key, "tokenizer.ggml.%s", cases[i].key);
        switch (cases[i].kind) {
        case 's':
            ok(sheaf_gguf_set_str(g, key, cases[i].s));
            break;
        case 'u':
            ok(sheaf_gguf_set_u32(g, key, (uint32_t)cases[i].v));
            break;
        case 'i':
            ok(sheaf_gguf_set_arr(g, key, SHEAF_GGUF_TYPE_INT32, numbers, n));
            break;
        case 'f':
            ok(sheaf_gguf_set_arr(g, key, SHEAF_GGUF_TYPE_FLOAT32, floats, n));
            break;
        default:
            ok(sheaf_gguf_set_arr_str(g, key, list, n));
            break;
        }
        struct sheaf_tokenizer *t;
        sheaf_clear_error();
        cr_expect_eq(sheaf_tokenizer_new(g, &t), cases[i].status, "case %zu: %s", i,
                     sheaf_last_error());
        cr_expect_null(t);
        cr_expect_not_null(strstr(sheaf_last_error(), cases[i].words), "case %zu says \"%s\"", i,
                           sheaf_last_error());
        free(numbers);
        free(floats);
        free(list);
        sheaf_gguf_free(g);
    }
}

Test(metadata, missing) {
    static const struct {
        const char *model, *words;
    } cases[] = {{NULL, "tokenizer.ggml.model"},
                 {"llama", "tokenizer.ggml.scores is missing"},
                 {"gpt2", "tokenizer.ggml.merges is missing"}};
    for (size_t i = 0; i < N_OF(cases); i++) {
        static const char *const tokens[] = {"a", "b"};
        struct sheaf_gguf *g = sheaf_gguf_new();
        struct sheaf_tokenizer *t;
        if (cases[i].model) {
            ok(sheaf_gguf_set_str(g, "tokenizer.ggml.model", cases[i].model));
            cr_expect_eq(sheaf_tokenizer_new(g, &t), SHEAF_STATUS_INVALID);
            cr_expect_not_null(strstr(sheaf_last_error(), "tokenizer.ggml.tokens is missing"));
        }
        ok(sheaf_gguf_set_arr_str(g, "tokenizer.ggml.tokens", tokens, 2));
        cr_expect_eq(sheaf_tokenizer_new(g, &t), SHEAF_STATUS_INVALID);
        cr_expect_not_null(strstr(sheaf_last_error(), cases[i].words), "%s", sheaf_last_error());
        if (i == 1) { /* the family wants a bos token, so there must be one */
            ok(sheaf_gguf_set_arr(g, "tokenizer.ggml.scores", SHEAF_GGUF_TYPE_FLOAT32,
                                  (const float[]){0, 0}, 2));
            cr_expect_eq(sheaf_tokenizer_new(g, &t), SHEAF_STATUS_INVALID);
            cr_expect_not_null(strstr(sheaf_last_error(), "bos_token_id is missing"));
        }
        sheaf_gguf_free(g);
    }
}

/* Random metadata, near enough to the truth to be accepted now and then: never a crash, and what is
 * accepted must work. Run under a sanitizer this is the test of the loader. */
Test(metadata, random) {
    static const char *const strings[] = {"a",
                                          "b",
                                          "",
                                          "ab",
                                          " ",
                                          "a b",
                                          "ab a",
                                          "<s>",
                                          "</s>",
                                          "<0x41>",
                                          "<0xzz>",
                                          "\xFF",
                                          "\xE2\x96\x81",
                                          "\xC4\xA0",
                                          "<|im_end|>",
                                          "b a",
                                          "gpt2",
                                          "llama",
                                          "default",
                                          "qwen2",
                                          "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa"};
    static const char *const keys[] = {
        "model",         "pre",           "tokens",          "scores",       "token_type",
        "merges",        "bos_token_id",  "eos_token_id",    "eot_token_id", "unknown_token_id",
        "add_bos_token", "add_eos_token", "add_space_prefix"};
    srand(5);
    int accepted = 0, refused = 0;
    for (int round = 0; round < 20000; round++) {
        struct sheaf_gguf *g = sheaf_gguf_new();
        bool bpe = rand() % 2;
        size_t n_tokens = (size_t)rand() % 12;
        for (size_t k = 0; k < N_OF(keys); k++) {
            char key[64];
            int wild = rand() % 60;
            size_t n = wild == 1 ? (size_t)rand() % 12 : n_tokens;
            const char *list[12];
            int32_t types[12];
            float scores[12];
            for (size_t j = 0; j < 12; j++) {
                list[j] = strings[(size_t)rand() % N_OF(strings)];
                if (k == 5 && rand() % 30) list[j] = rand() % 2 ? "a b" : "ab a";
                types[j] = 1 + rand() % (rand() % 50 ? 5 : 8);
                scores[j] = (float)(rand() % 5);
            }
            snprintf(key, sizeof key, "tokenizer.ggml.%s", keys[k]);
            if (wild == 2) {
                ok(sheaf_gguf_set_str(g, key, strings[(size_t)rand() % N_OF(strings)]));
            } else if (wild == 3) {
                ok(sheaf_gguf_set_i32(g, key, rand() % 3 - 1));
            } else if (wild == 4) {
                continue; /* absent */
            } else if (k == 0) {
                ok(sheaf_gguf_set_str(g, key, bpe ? "gpt2" : "llama"));
            } else if (k == 1) {
                ok(sheaf_gguf_set_str(g, key, rand() % 2 ? "qwen2" : "llama-bpe"));
            } else if (k == 2 || k == 5) {
                ok(sheaf_gguf_set_arr_str(g, key, list, n));
            } else if (k == 3) {
                ok(sheaf_gguf_set_arr(g, key, SHEAF_GGUF_TYPE_FLOAT32, scores, n));
            } else if (k == 4) {
                ok(sheaf_gguf_set_arr(g, key, SHEAF_GGUF_TYPE_INT32, types, n));
            } else if (k < 10) {
                uint32_t below = n_tokens ? (uint32_t)n_tokens : 1;
                ok(sheaf_gguf_set_u32(g, key, (uint32_t)rand() % below));
            } else {
                ok(sheaf_gguf_set_bool(g, key, rand() % 2));
            }
        }
        struct sheaf_tokenizer *t;
        if (sheaf_tokenizer_new(g, &t)) {
            cr_assert_null(t);
            cr_assert(sheaf_last_error()[0]);
            refused++;
        } else {
            accepted++;
            for (unsigned flags = 0; flags < 4; flags++) {
                char s[64];
                int32_t *ids;
                size_t n, len = random_text(s, sizeof s, strings, N_OF(strings));
                if (sheaf_tokenizer_encode(t, s, len, flags, &ids, &n)) continue;
                for (size_t i = 0; i < n; i++)
                    cr_assert(ids[i] >= 0 && ids[i] < sheaf_tokenizer_n_vocab(t));
                char *text;
                ok(sheaf_tokenizer_decode(t, ids, n, flags, &text, &len));
                free(text);
                free(ids);
            }
            sheaf_tokenizer_free(t);
        }
        sheaf_gguf_free(g);
    }
    cr_expect(accepted > 1000 && refused > 1000, "%d accepted, %d refused", accepted, refused);
}
