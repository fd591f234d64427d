/* WordPiece against an independent tokenizer (BERT's basic tokenizer and longest matches, in Python
 * with its unicodedata, 2026-11), over a small vocabulary; keys that files lack or have wrong. */
#include <criterion/criterion.h>
#include <stdlib.h>
#include <string.h>

#include "model/text/unicode.h"
#include "sheaf/gguf.h"
#include "sheaf/tokenizer.h"

// clang-format off
static const char *const tokens[] = {"[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "\xE2\x96\x81the", "\xE2\x96\x81""cat", "\xE2\x96\x81""cats", "s", "\xE2\x96\x81un", "aff", "able", "affable", "\xE2\x96\x81""a", "\xE2\x96\x81""cafe", "\xE2\x96\x81,", "\xE2\x96\x81.", "\xE2\x96\x81!", "\xE2\x96\x81\xE4\xB8\xAD", "\xE2\x96\x81\xE5\x9B\xBD", "\xE2\x96\x81\xC3\x9F", "\xE2\x96\x81$", "\xE2\x96\x81""2", "3", "\xE2\x96\x81\xED\x95\x9C", "\xE2\x96\x81\xE1\x84\x92", "\xE1\x85\xA1", "\xE1\x86\xAB", "x", "y", "\xE2\x96\x81x", "\xE2\x96\x81\xE2\x82\xAC", "\xE2\x96\x81st", "rasse", "\xE2\x96\x81\xC3\xA9", "\xE2\x96\x81i", "\xE2\x96\x81ij", "\xE2\x96\x81-", "\xE2\x96\x81'", "t", "don", "\xE2\x96\x81""don"};
static const struct {
    const char *text;
    size_t len, n;
    int32_t ids[24];
} cases[] = {
    {"The cat", 7, 4, {2, 5, 6, 3}},
    {"cats, THE cats!", 15, 7, {2, 7, 15, 5, 7, 17, 3}},
    {"unaffable", 9, 4, {2, 9, 12, 3}},
    {"un aff able", 11, 5, {2, 9, 1, 1, 3}},
    {"Caf\xC3\xA9 cafe\xCC\x81 CAF\xC3\x89", 18, 5, {2, 14, 14, 14, 3}},
    {"\xE4\xB8\xAD\xE5\x9B\xBD x\xE4\xB8\xADy", 12, 7, {2, 18, 19, 30, 18, 1, 3}},
    {"\xC3\x9F SS Strasse", 13, 6, {2, 20, 1, 32, 33, 3}},
    {"$2 23 \xE2\x82\xAC""2", 10, 7, {2, 21, 22, 22, 23, 1, 3}},
    {"\xED\x95\x9C \xED\x95\x9C\xCC\x81", 9, 8, {2, 25, 26, 27, 25, 26, 27, 3}},
    {"don't", 5, 5, {2, 41, 38, 1, 3}},
    {"a\x09""b\x0Athe\x0D\x0A", 9, 5, {2, 13, 1, 5, 3}},
    {"\x00""a\xEF\xBF\xBDx\xE2\x80\x8Bx\x07", 11, 5, {2, 13, 28, 28, 3}},
    {"\xC4\xB0i \xC4\xB3", 6, 4, {2, 1, 1, 3}},
    {"", 0, 2, {2, 3}},
    {"   ", 3, 2, {2, 3}},
    {"--..", 4, 6, {2, 37, 37, 16, 16, 3}},
    {"\xEF\xAC\x81 x", 5, 4, {2, 1, 30, 3}},
    {"xyxyq x", 7, 4, {2, 1, 30, 3}},
    {"\xC3\x89 \xC3\x89\xC3\x89", 7, 4, {2, 1, 1, 3}},
};
// clang-format on

static struct sheaf_gguf *vocabulary(bool ids) {
    struct sheaf_gguf *g = sheaf_gguf_new();
    int32_t types[sizeof tokens / sizeof *tokens];
    for (size_t i = 0; i < sizeof tokens / sizeof *tokens; i++)
        types[i] = i == 1 ? 2 : i < 5 ? 3 : 1;
    cr_assert_eq(sheaf_gguf_set_str(g, "tokenizer.ggml.model", "bert"), 0);
    cr_assert_eq(
        sheaf_gguf_set_arr_str(g, "tokenizer.ggml.tokens", tokens, sizeof tokens / sizeof *tokens),
        0);
    cr_assert_eq(sheaf_gguf_set_arr(g, "tokenizer.ggml.token_type", SHEAF_GGUF_TYPE_INT32, types,
                                    sizeof types / sizeof *types),
                 0);
    if (!ids) return g;
    cr_assert_eq(sheaf_gguf_set_u32(g, "tokenizer.ggml.unknown_token_id", 1), 0);
    cr_assert_eq(sheaf_gguf_set_u32(g, "tokenizer.ggml.cls_token_id", 2), 0);
    cr_assert_eq(sheaf_gguf_set_u32(g, "tokenizer.ggml.seperator_token_id", 3), 0);
    return g;
}

static void check(const struct sheaf_tokenizer *t, const char *text, size_t len,
                  const int32_t *want, size_t n_want) {
    int32_t *ids;
    size_t n;
    cr_assert_eq(sheaf_tokenizer_encode(t, text, len, SHEAF_TOKENIZE_ADD_SPECIAL, &ids, &n), 0);
    cr_expect_eq(n, n_want, "'%s': %zu tokens, not %zu", text, n, n_want);
    for (size_t i = 0; i < n && i < n_want; i++)
        cr_expect_eq(ids[i], want[i], "'%s': token %zu is %d, not %d", text, i, ids[i], want[i]);
    free(ids);
}

Test(wordpiece, tokens_of_an_independent_tokenizer) {
    struct sheaf_gguf *g = vocabulary(true);
    struct sheaf_tokenizer *t;
    cr_assert_eq(sheaf_tokenizer_new(g, &t), 0, "%s", sheaf_last_error());
    cr_expect_str_eq(sheaf_tokenizer_describe(t), "bert");
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        check(t, cases[i].text, cases[i].len, cases[i].ids, cases[i].n);
    sheaf_tokenizer_free(t);
    sheaf_gguf_free(g);
}

Test(wordpiece, capitals_and_accents_may_count) {
    static const int32_t want[] = {2, 1, 6, 30, 1, 34, 3};
    static const char text[] = "The cat x \xC3\x89 \xC3\xA9";
    struct sheaf_gguf *g = vocabulary(true);
    struct sheaf_tokenizer *t;
    cr_assert_eq(sheaf_gguf_set_bool(g, "tokenizer.ggml.normalizer.lowercase", false), 0);
    cr_assert_eq(sheaf_tokenizer_new(g, &t), 0, "%s", sheaf_last_error());
    check(t, text, sizeof text - 1, want, sizeof want / sizeof *want);
    sheaf_tokenizer_free(t);
    sheaf_gguf_free(g);
}

/* 0 is a number of a token as any other. */
Test(wordpiece, the_unknown_token_may_be_the_first) {
    static const int32_t want[] = {2, 5, 0, 3};
    struct sheaf_gguf *g = vocabulary(true);
    struct sheaf_tokenizer *t;
    cr_assert_eq(sheaf_gguf_set_u32(g, "tokenizer.ggml.unknown_token_id", 0), 0);
    cr_assert_eq(sheaf_tokenizer_new(g, &t), 0, "%s", sheaf_last_error());
    check(t, "the qq", 6, want, sizeof want / sizeof *want);
    sheaf_tokenizer_free(t);
    sheaf_gguf_free(g);
}

Test(wordpiece, a_vocabulary_without_its_markers_is_refused) {
    struct sheaf_gguf *g = vocabulary(false);
    struct sheaf_tokenizer *t;
    cr_assert_eq(sheaf_tokenizer_new(g, &t), SHEAF_STATUS_INVALID);
    cr_expect(strstr(sheaf_last_error(), "tokenizer.ggml.cls_token_id is missing"), "%s",
              sheaf_last_error());
    sheaf_gguf_free(g);
}

Test(wordpiece, folds) {
    static const struct {
        uint32_t from;
        size_t n;
        uint32_t to[3];
    } known[] = {
        {'a', 1, {'a'}},
        {'Z', 1, {'z'}},
        {0xC9, 1, {'e'}},
        {0xDF, 1, {0xDF}},
        {0x301, 0, {0}},
        {0x130, 1, {'i'}},
        {0x410, 1, {0x430}},
        {0x1F88, 1, {0x3B1}},
        {0xAC00, 2, {0x1100, 0x1161}},
        {0xD55C, 3, {0x1112, 0x1161, 0x11AB}},
        {0xF900, 1, {0x8C48}},
        {0x9CB, 2, {0x9C7, 0x9BE}},
        {0x1D161, 3, {0x1D158, 0x1D165, 0x1D16F}},
        {0x10FFFF, 1, {0x10FFFF}},
        {SHEAF__CP_INVALID, 1, {SHEAF__CP_INVALID}},
    };
    for (size_t i = 0; i < sizeof known / sizeof *known; i++) {
        uint32_t out[3] = {0};
        cr_expect_eq(sheaf__char_fold(known[i].from, out), known[i].n, "U+%04X",
                     (unsigned)known[i].from);
        for (size_t k = 0; k < known[i].n; k++)
            cr_expect_eq(out[k], known[i].to[k], "U+%04X", (unsigned)known[i].from);
    }
}
