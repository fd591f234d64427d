/* Scanners of the pre-tokenizers; see pretokenizer.h.
 *
 * The expressions (facts of the models' tokenizer.json files; which name of tokenizer.ggml.pre
 * means which is a convention of GGUF's converters): gpt-2      's|'t|'re|'ve|'m|'ll|'d| ?\p{L}+|
 * ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+ smollm     \p{N} first, then gpt-2 on what lies between
 *   llama-bpe  (?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}|
 *               ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+
 *   qwen2      as llama-bpe with \p{N} for \p{N}{1,3} */
#include "model/text/pretokenizer.h"

#include <assert.h>
#include <string.h>

#include "model/text/unicode.h"

static const struct sheaf__pre_info infos[] = {
    {"default", SHEAF__PRE_GPT2, false, false},
    {"gpt-2", SHEAF__PRE_GPT2, false, false},
    {"gpt2", SHEAF__PRE_GPT2, false, false},
    {"smollm", SHEAF__PRE_SMOLLM, false, false},
    {"llama-bpe", SHEAF__PRE_LLAMA3, true, true},
    {"llama3", SHEAF__PRE_LLAMA3, true, true},
    {"llama-v3", SHEAF__PRE_LLAMA3, true, true},
    {"qwen2", SHEAF__PRE_QWEN2, false, false},
    {"deepseek-r1-qwen", SHEAF__PRE_QWEN2, false, false},
};

const struct sheaf__pre_info *sheaf__pre_find(const char *name) {
    for (size_t i = 0; i < sizeof infos / sizeof *infos; i++)
        if (strcmp(infos[i].name, name) == 0) return &infos[i];
    return NULL;
}

const char *sheaf__pre_names(void) {
    return "default, gpt-2, smollm, llama-bpe, llama3, llama-v3, qwen2, deepseek-r1-qwen";
}

/* The text being cut. Where numbers are cut off beforehand, a number reads as the end. */
struct scan {
    const char *s;
    size_t len;
    bool numbers_end;
};

/* A character; class -1 at the end. */
struct peek {
    uint32_t cp;
    int class;
    size_t width;
};

static struct peek at(const struct scan *t, size_t pos) {
    struct peek p = {SHEAF__CP_INVALID, -1, 0};
    if (pos >= t->len) return p;
    p.width = sheaf__utf8_next(t->s + pos, t->len - pos, &p.cp);
    p.class = (int)sheaf__char_class(p.cp);
    if (t->numbers_end && p.class == SHEAF__CHAR_NUMBER) p = (struct peek){p.cp, -1, 0};
    return p;
}

/* Where the run of `class` that begins at pos ends, after at most `max` characters. */
static size_t run(const struct scan *t, size_t pos, int class, size_t max) {
    for (struct peek p; max > 0 && (p = at(t, pos)).class == class; max--) pos += p.width;
    return pos;
}

/* 's 't 're 've 'm 'll 'd at the start: its length, or 0. Case folding is Unicode's, as in the
 * engines that made these vocabularies: the long s (U+017F) folds to s. */
static size_t contraction(const struct scan *t, bool fold) {
    static const char *const ends[] = {"s", "t", "re", "ve", "m", "ll", "d"};
    if (t->len < 2 || t->s[0] != '\'') return 0;
    if (fold && t->len >= 3 && memcmp(t->s + 1, "\xC5\xBF", 2) == 0) return 3;
    for (size_t i = 0; i < sizeof ends / sizeof *ends; i++) {
        size_t n = strlen(ends[i]), j = 0;
        if (t->len < 1 + n) continue;
        for (; j < n; j++) {
            char c = t->s[1 + j];
            if (fold && c >= 'A' && c <= 'Z') c = (char)(c - 'A' + 'a');
            if (c != ends[i][j]) break;
        }
        if (j == n) return 1 + n;
    }
    return 0;
}

/* A run of white space at the start: all of it at the end of the text, else without its last
 * character (which belongs to the next word) unless it is the only one. `newlines`: up to the last
 * CR or LF, if there is one. */
static size_t white_space(const struct scan *t, bool newlines) {
    size_t pos = 0, last = 0, after_newline = 0;
    struct peek p;
    while ((p = at(t, pos)).class == SHEAF__CHAR_SPACE) {
        last = pos;
        pos += p.width;
        if (p.cp == '\r' || p.cp == '\n') after_newline = pos;
    }
    if (newlines && after_newline) return after_newline;
    return p.class < 0 || last == 0 ? pos : last;
}

static size_t next_gpt2(const struct scan *t) {
    size_t n = contraction(t, false);
    if (n) return n;
    size_t pos = t->s[0] == ' ' ? 1 : 0;
    int class = at(t, pos).class;
    if (class >= 0 && class != SHEAF__CHAR_SPACE) return run(t, pos, class, SIZE_MAX);
    return white_space(t, false);
}

static size_t next_llama3(const struct scan *t, size_t max_digits) {
    size_t n = contraction(t, true);
    if (n) return n;
    struct peek p = at(t, 0);
    if (p.class == SHEAF__CHAR_LETTER) return run(t, 0, SHEAF__CHAR_LETTER, SIZE_MAX);
    if (p.class == SHEAF__CHAR_NUMBER) return run(t, 0, SHEAF__CHAR_NUMBER, max_digits);
    if (p.cp != '\r' && p.cp != '\n' && at(t, p.width).class == SHEAF__CHAR_LETTER)
        return run(t, p.width, SHEAF__CHAR_LETTER, SIZE_MAX);
    size_t pos = p.cp == ' ' ? 1 : 0;
    if (at(t, pos).class == SHEAF__CHAR_OTHER) {
        pos = run(t, pos, SHEAF__CHAR_OTHER, SIZE_MAX);
        while (pos < t->len && (t->s[pos] == '\r' || t->s[pos] == '\n')) pos++;
        return pos;
    }
    return white_space(t, true);
}

size_t sheaf__pre_next(enum sheaf__pre pre, const char *s, size_t len) {
    assert(len > 0);
    struct scan t = {s, len, false};
    switch (pre) {
    case SHEAF__PRE_LLAMA3:
        return next_llama3(&t, 3);
    case SHEAF__PRE_QWEN2:
        return next_llama3(&t, 1);
    case SHEAF__PRE_SMOLLM: {
        struct peek p = at(&t, 0);
        if (p.class == SHEAF__CHAR_NUMBER) return p.width;
        t.numbers_end = true;
        return next_gpt2(&t);
    }
    default:
        return next_gpt2(&t);
    }
}
