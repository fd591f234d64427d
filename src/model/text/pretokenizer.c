/* Scanners of the pre-tokenizers; see pretokenizer.h.
 *
 * The expressions (facts of the models' tokenizer.json files; which name of tokenizer.ggml.pre
 * means which is a convention of GGUF's converters):
 *   gpt-2      's|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+
 *   smollm     \p{N} first, then gpt-2 on what lies between
 *   llama-bpe  (?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}|
 *               ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+
 *   qwen2      as llama-bpe with \p{N} for \p{N}{1,3}
 *   gpt-4o     P?U*L+C?|P?U+L*C?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+
 *              where P is [^\r\n\p{L}\p{N}], U [\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}],
 *              L [\p{Ll}\p{Lm}\p{Lo}\p{M}], C (?i:'s|'t|'re|'ve|'m|'ll|'d)
 *   tekken     as gpt-4o without C, with \p{N}
 *   deepseek-v3   \p{N}{1,3} first, then [一-龥぀-ゟ゠-ヿ]+, and on what lies between
 *              [!-/:-@\[-`{-~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+|
 *               ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+ */
#include "model/text/pretokenizer.h"

#include <assert.h>
#include <string.h>

#include "model/text/unicode.h"

static const struct sheaf__pre_info infos[] = {
    {"default", SHEAF__PRE_GPT2, false, false},
    {"gpt-2", SHEAF__PRE_GPT2, false, false},
    {"gpt2", SHEAF__PRE_GPT2, false, false},
    {"mpt", SHEAF__PRE_GPT2, false, false},
    {"olmo", SHEAF__PRE_GPT2, false, false},
    {"phi-2", SHEAF__PRE_GPT2, false, false},
    {"granite-docling", SHEAF__PRE_GPT2, false, false},
    {"smollm", SHEAF__PRE_SMOLLM, false, false},
    {"starcoder", SHEAF__PRE_SMOLLM, false, false},
    {"refact", SHEAF__PRE_SMOLLM, false, false},
    {"command-r", SHEAF__PRE_SMOLLM, false, false},
    {"codeshell", SHEAF__PRE_SMOLLM, false, false},
    {"exaone", SHEAF__PRE_SMOLLM, false, false},
    {"llama-bpe", SHEAF__PRE_LLAMA3, true, true},
    {"llama3", SHEAF__PRE_LLAMA3, true, true},
    {"llama-v3", SHEAF__PRE_LLAMA3, true, true},
    {"falcon3", SHEAF__PRE_LLAMA3, true, true},
    {"dbrx", SHEAF__PRE_LLAMA3, false, false},
    {"smaug-bpe", SHEAF__PRE_LLAMA3, false, false},
    {"glm4", SHEAF__PRE_LLAMA3, true, false},
    {"qwen2", SHEAF__PRE_QWEN2, false, false},
    {"deepseek-r1-qwen", SHEAF__PRE_QWEN2, false, false},
    {"stablelm2", SHEAF__PRE_QWEN2, false, false},
    {"hunyuan", SHEAF__PRE_QWEN2, false, false},
    {"gpt-4o", SHEAF__PRE_GPT4O, false, false},
    {"llama4", SHEAF__PRE_GPT4O, false, false},
    {"tekken", SHEAF__PRE_TEKKEN, true, true},
    {"deepseek-v3", SHEAF__PRE_DEEPSEEK3, false, false},
};

const struct sheaf__pre_info *sheaf__pre_find(const char *name) {
    for (size_t i = 0; i < sizeof infos / sizeof *infos; i++)
        if (strcmp(infos[i].name, name) == 0) return &infos[i];
    return NULL;
}

const char *sheaf__pre_names(void) {
    return "default, gpt-2, gpt2, mpt, olmo, phi-2, granite-docling, smollm, starcoder, "
           "refact, command-r, codeshell, exaone, llama-bpe, llama3, llama-v3, falcon3, "
           "dbrx, smaug-bpe, glm4, qwen2, deepseek-r1-qwen, stablelm2, hunyuan, gpt-4o, "
           "llama4, tekken, deepseek-v3";
}

/* The text being cut. Where numbers, or Chinese and Japanese characters are cut off beforehand, such
 * a one reads as the end. */
struct scan {
    const char *s;
    size_t len;
    bool numbers_end, cjk_ends;
};

/* A character; class -1 at the end. */
struct peek {
    uint32_t cp;
    int class;
    size_t width;
};

/* 一-龥, hiragana and katakana */
static bool is_cjk(uint32_t cp) {
    return (cp >= 0x4E00 && cp <= 0x9FA5) || (cp >= 0x3040 && cp <= 0x30FF);
}

static struct peek at(const struct scan *t, size_t pos) {
    struct peek p = {SHEAF__CP_INVALID, -1, 0};
    if (pos >= t->len) return p;
    p.width = sheaf__utf8_next(t->s + pos, t->len - pos, &p.cp);
    p.class = (int)sheaf__char_class(p.cp);
    if ((t->numbers_end && p.class == SHEAF__CHAR_NUMBER) || (t->cjk_ends && is_cjk(p.cp)))
        p = (struct peek){p.cp, -1, 0};
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

/* ---- words with capitals ---- */

static bool may_begin(const struct peek *p) { /* U of gpt-4o */
    const enum sheaf__char_kind k = sheaf__char_kind(p->cp);
    return p->class >= 0 &&
           (k == SHEAF__KIND_UPPER || k == SHEAF__KIND_LETTER || k == SHEAF__KIND_MARK);
}

static bool may_go_on(const struct peek *p) { /* L */
    const enum sheaf__char_kind k = sheaf__char_kind(p->cp);
    return p->class >= 0 &&
           (k == SHEAF__KIND_LOWER || k == SHEAF__KIND_LETTER || k == SHEAF__KIND_MARK);
}

/* Where U*L+ ends that begins at pos, 0: it does not match. *upper: where U+L* ends, or 0. */
static size_t cased_word(const struct scan *t, size_t pos, size_t *upper) {
    const size_t start = pos;
    size_t last = 0; /* behind the last character of U* that L has, too */
    struct peek p;
    while (p = at(t, pos), may_begin(&p)) {
        pos += p.width;
        if (may_go_on(&p)) last = pos;
    }
    const size_t capitals = pos;
    while (p = at(t, pos), may_go_on(&p)) pos += p.width;
    *upper = capitals > start ? pos : 0;
    return pos > capitals ? pos : last;
}

/* P?U*L+ or P?U+L*, the first that matches; 0: none. */
static size_t cased(const struct scan *t) {
    const struct peek p = at(t, 0);
    size_t upper = 0, upper_without = 0, end = 0;
    const bool prefix = p.class != SHEAF__CHAR_LETTER && p.class != SHEAF__CHAR_NUMBER &&
                        p.cp != '\r' && p.cp != '\n';
    if (prefix) end = cased_word(t, p.width, &upper);
    if (!end) end = cased_word(t, 0, &upper_without);
    if (!end) end = upper ? upper : upper_without;
    return end;
}

static size_t next_cased(const struct scan *t, size_t max_digits, bool contractions) {
    const size_t word = cased(t);
    const struct peek p = at(t, 0);
    if (word) {
        const struct scan rest = {.s = t->s + word, .len = t->len - word};
        return word + (contractions ? contraction(&rest, true) : 0);
    }
    if (p.class == SHEAF__CHAR_NUMBER) return run(t, 0, SHEAF__CHAR_NUMBER, max_digits);
    size_t pos = p.cp == ' ' ? 1 : 0;
    if (at(t, pos).class != SHEAF__CHAR_OTHER) return white_space(t, true);
    pos = run(t, pos, SHEAF__CHAR_OTHER, SIZE_MAX);
    while (pos < t->len && (t->s[pos] == '\r' || t->s[pos] == '\n' || t->s[pos] == '/')) pos++;
    return pos;
}

/* ---- DeepSeek V3 ---- */

static bool is_ascii_letter(uint32_t cp) { return (cp | 32) >= 'a' && (cp | 32) <= 'z'; }

static bool is_sign(const struct peek *p) { /* [\p{P}\p{S}] */
    const enum sheaf__char_kind k = sheaf__char_kind(p->cp);
    return p->class >= 0 && (k == SHEAF__KIND_PUNCTUATION || k == SHEAF__KIND_SYMBOL);
}

static size_t run_if(const struct scan *t, size_t pos, bool (*of)(const struct peek *p)) {
    for (struct peek p; p = at(t, pos), of(&p);) pos += p.width;
    return pos;
}

static bool is_letter_or_mark(const struct peek *p) {
    return p->class == SHEAF__CHAR_LETTER ||
           (p->class >= 0 && sheaf__char_kind(p->cp) == SHEAF__KIND_MARK);
}

static bool is_latin(const struct peek *p) { return p->class >= 0 && is_ascii_letter(p->cp); }

/* What the third expression matches at pos; 0: nothing. */
static size_t match_deepseek3(const struct scan *t) {
    const struct peek p = at(t, 0), second = at(t, p.width);
    if (p.class < 0) return 0;
    if (p.cp < 0x80 && is_sign(&p) && is_latin(&second)) return run_if(t, p.width, is_latin);
    const bool prefix =
        p.class != SHEAF__CHAR_LETTER && !is_sign(&p) && p.cp != '\r' && p.cp != '\n';
    if (prefix && is_letter_or_mark(&second)) return run_if(t, p.width, is_letter_or_mark);
    if (is_letter_or_mark(&p)) return run_if(t, 0, is_letter_or_mark);
    size_t pos = p.cp == ' ' && is_sign(&second) ? 1 : 0;
    if (pos || is_sign(&p)) {
        pos = run_if(t, pos, is_sign);
        while (pos < t->len && (t->s[pos] == '\r' || t->s[pos] == '\n')) pos++;
        return pos;
    }
    return p.class == SHEAF__CHAR_SPACE ? white_space(t, true) : 0;
}

/* Text that no expression matches stays together up to the next match. */
static size_t next_deepseek3(struct scan t) {
    struct peek p = at(&t, 0);
    size_t pos = 0;
    if (p.class == SHEAF__CHAR_NUMBER) return run(&t, 0, SHEAF__CHAR_NUMBER, 3);
    while (p.class >= 0 && is_cjk(p.cp)) p = at(&t, pos += p.width);
    if (pos) return pos;
    t.numbers_end = t.cjk_ends = true;
    const size_t found = match_deepseek3(&t);
    if (found) return found;
    for (; (p = at(&t, pos)).class >= 0; pos += p.width) {
        const struct scan rest = {t.s + pos, t.len - pos, true, true};
        if (match_deepseek3(&rest)) break;
    }
    return pos;
}

size_t sheaf__pre_next(enum sheaf__pre pre, const char *s, size_t len) {
    assert(len > 0);
    struct scan t = {.s = s, .len = len};
    switch (pre) {
    case SHEAF__PRE_LLAMA3:
        return next_llama3(&t, 3);
    case SHEAF__PRE_QWEN2:
        return next_llama3(&t, 1);
    case SHEAF__PRE_GPT4O:
        return next_cased(&t, 3, true);
    case SHEAF__PRE_TEKKEN:
        return next_cased(&t, 1, false);
    case SHEAF__PRE_DEEPSEEK3:
        return next_deepseek3(t);
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
