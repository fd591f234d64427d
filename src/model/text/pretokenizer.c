/* Scanners of the pre-tokenizers; see pretokenizer.h.
 *
 * The expressions (facts of the models' tokenizer.json files; which name of tokenizer.ggml.pre
 * means which is a convention of GGUF's converters):
 *   gpt-2      's|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+
 *   smollm     \p{N} first, then gpt-2 on what lies between
 *   default    one after another, each on what those before have made of the text, as llama.cpp has
 *              it for files that name none: [\p{P}$+<=>^~|]+, gpt-2, \p{N}+, [0-9][0-9][0-9]
 *   llama-bpe  (?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}|
 *               ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+
 *   qwen2      as llama-bpe with \p{N} for \p{N}{1,3}
 *   gpt-4o     P?U*L+C?|P?U+L*C?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+
 *              where P is [^\r\n\p{L}\p{N}], U [\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}],
 *              L [\p{Ll}\p{Lm}\p{Lo}\p{M}], C (?i:'s|'t|'re|'ve|'m|'ll|'d)
 *   tekken     as gpt-4o without C, with \p{N}
 *   deepseek-v3   \p{N}{1,3} first, then [一-龥぀-ゟ゠-ヿ]+, and on what lies between
 *              [!-/:-@\[-`{-~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+|
 *               ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+
 *   kimi-k2    \p{Han}+| and gpt-4o without characters of \p{Han} in U and L, and without the slash
 *   deepseek-llm  one after another, each on what those before have made of the text:
 *              [\r\n], \s?[LETTERS]+, \s?[SIGNS]+, \s+$, [EASTERN]+, \p{N}
 *              where LETTERS are those of `cased_letters`, SIGNS and EASTERN of `signs` and
 *              `eastern` */
#include "model/text/pretokenizer.h"

#include <assert.h>
#include <string.h>

#include "model/text/unicode.h"

/* llama.cpp's names of these. X(name, scanner, whole_words, add_bos) */
#define NAMES(X)                                                                                   \
    X("default", DEFAULT, false, false)                                                            \
    X("gpt-2", GPT2, false, false)                                                                 \
    X("gpt2", GPT2, false, false)                                                                  \
    X("mpt", GPT2, false, false)                                                                   \
    X("olmo", GPT2, false, false)                                                                  \
    X("phi-2", GPT2, false, false)                                                                 \
    X("jais", GPT2, false, false)                                                                  \
    X("gigachat", GPT2, false, false)                                                              \
    X("a.x-4.0", GPT2, false, false)                                                               \
    X("mellum", GPT2, false, false)                                                                \
    X("exaone4", GPT2, false, false)                                                               \
    X("trillion", GPT2, false, false)                                                              \
    X("granite-docling", GPT2, false, false)                                                       \
    X("smollm", SMOLLM, false, false)                                                              \
    X("starcoder", SMOLLM, false, false)                                                           \
    X("refact", SMOLLM, false, false)                                                              \
    X("command-r", SMOLLM, false, false)                                                           \
    X("codeshell", SMOLLM, false, false)                                                           \
    X("exaone", SMOLLM, false, false)                                                              \
    X("minerva-7b", SMOLLM, false, false)                                                          \
    X("mellum2", SMOLLM, false, false)                                                             \
    X("llama-bpe", LLAMA3, true, true)                                                             \
    X("llama3", LLAMA3, true, true)                                                                \
    X("llama-v3", LLAMA3, true, true)                                                              \
    X("falcon3", LLAMA3, true, true)                                                               \
    X("falcon-h1", LLAMA3, true, true)                                                             \
    X("pixtral", LLAMA3, true, true)                                                               \
    X("midm-2.0", LLAMA3, true, true)                                                              \
    X("lfm2", LLAMA3, true, true)                                                                  \
    X("dbrx", LLAMA3, false, false)                                                                \
    X("smaug-bpe", LLAMA3, false, false)                                                           \
    X("chatglm-bpe", LLAMA3, false, false)                                                         \
    X("glm4", LLAMA3, true, false)                                                                 \
    X("glm5", LLAMA3, true, false)                                                                 \
    X("qwen2", QWEN2, false, false)                                                                \
    X("deepseek-r1-qwen", QWEN2, false, false)                                                     \
    X("kormo", QWEN2, false, false)                                                                \
    X("f2llmv2", QWEN2, false, false)                                                              \
    X("megrez", QWEN2, false, false)                                                               \
    X("grok-2", QWEN2, false, false)                                                               \
    X("solar-open", QWEN2, false, false)                                                           \
    X("stablelm2", QWEN2, false, false)                                                            \
    X("hunyuan", QWEN2, false, false)                                                              \
    X("gpt-4o", GPT4O, false, false)                                                               \
    X("llama4", GPT4O, false, false)                                                               \
    X("kanana2", GPT4O, false, false)                                                              \
    X("talkie", GPT4O, false, false)                                                               \
    X("minimax-m2", GPT4O, false, false)                                                           \
    X("tekken", TEKKEN, true, true)                                                                \
    X("deepseek-v3", DEEPSEEK3, false, false)                                                      \
    X("hunyuan-dense", DEEPSEEK3, false, false)                                                    \
    X("joyai-llm", DEEPSEEK3, false, false)                                                        \
    X("hy_v4", DEEPSEEK3, false, false)                                                            \
    X("deepseek-llm", DEEPSEEK1, false, false)                                                     \
    X("kimi-k2", KIMI, false, false)

static const struct sheaf__pre_info infos[] = {
#define INFO(name, scanner, whole_words, add_bos)                                                  \
    {name, SHEAF__PRE_##scanner, whole_words, add_bos},
    NAMES(INFO)
#undef INFO
};

const struct sheaf__pre_info *sheaf__pre_find(const char *name) {
    for (size_t i = 0; i < sizeof infos / sizeof *infos; i++)
        if (strcmp(infos[i].name, name) == 0) return &infos[i];
    return NULL;
}

const char *sheaf__pre_names(void) {
#define LISTED(name, ...) ", " name
    static const char names[] = NAMES(LISTED);
#undef LISTED
    return names + 2;
}

/* The text being cut. Where numbers, or Chinese and Japanese characters are cut off beforehand,
 * such a one reads as the end. */
struct scan {
    const char *s;
    size_t len;
    bool numbers_end, cjk_ends;
    bool signs_end; /* and of "default" its signs */
    bool han_apart; /* Chinese characters are no letters of words with capitals */
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

/* [\p{P}$+<=>^~|] of "default" */
static bool is_default_sign(uint32_t cp) {
    return sheaf__char_kind(cp) == SHEAF__KIND_PUNCTUATION ||
           (cp && cp < 0x80 && strchr("$+<=>^~|", (int)cp));
}

static struct peek at(const struct scan *t, size_t pos) {
    struct peek p = {SHEAF__CP_INVALID, -1, 0};
    if (pos >= t->len) return p;
    p.width = sheaf__utf8_next(t->s + pos, t->len - pos, &p.cp);
    p.class = (int)sheaf__char_class(p.cp);
    if ((t->numbers_end && p.class == SHEAF__CHAR_NUMBER) || (t->cjk_ends && is_cjk(p.cp)) ||
        (t->signs_end && is_default_sign(p.cp)))
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

/* Of a run of numbers at the start, [0, n): up to the first three digits of ASCII, or these. */
static size_t three_digits(const struct scan *t, size_t n) {
    for (size_t pos = 0; pos + 3 <= n; pos++)
        if (t->s[pos] >= '0' && t->s[pos] <= '9' && t->s[pos + 1] >= '0' && t->s[pos + 1] <= '9' &&
            t->s[pos + 2] >= '0' && t->s[pos + 2] <= '9')
            return pos ? pos : 3;
    return n;
}

static size_t next_default(struct scan t) {
    size_t pos = 0;
    for (struct peek p; p = at(&t, pos), p.class >= 0 && is_default_sign(p.cp);) pos += p.width;
    if (pos) return pos;
    if (at(&t, 0).class == SHEAF__CHAR_NUMBER)
        return three_digits(&t, run(&t, 0, SHEAF__CHAR_NUMBER, SIZE_MAX));
    t.signs_end = true;
    const bool before_number = t.s[0] == ' ' && at(&t, 1).class == SHEAF__CHAR_NUMBER;
    return before_number ? 1 : next_gpt2(&t);
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

/* ---- sets of characters ---- */

struct range {
    uint32_t first, last;
};

/* ranges [n] ascend. */
static bool is_in(const struct range *ranges, size_t n, uint32_t cp) {
    size_t lo = 0, hi = n; /* ranges[lo - 1].first <= cp < ranges[hi].first */
    while (lo < hi) {
        const size_t mid = lo + (hi - lo) / 2;
        if (ranges[mid].first <= cp)
            lo = mid + 1;
        else
            hi = mid;
    }
    return lo && cp <= ranges[lo - 1].last;
}
#define IS_IN(ranges, cp) is_in(ranges, sizeof(ranges) / sizeof *(ranges), cp)

/* \p{Han} */
static const struct range han[] = {
    {0x2E80, 0x2E99},   {0x2E9B, 0x2EF3},   {0x2F00, 0x2FD5},   {0x3005, 0x3005},
    {0x3007, 0x3007},   {0x3021, 0x3029},   {0x3038, 0x303B},   {0x3400, 0x4DBF},
    {0x4E00, 0x9FFF},   {0xF900, 0xFA6D},   {0xFA70, 0xFAD9},   {0x16FE2, 0x16FE3},
    {0x16FF0, 0x16FF1}, {0x20000, 0x2A6DF}, {0x2A700, 0x2B739}, {0x2B740, 0x2B81D},
    {0x2B820, 0x2CEA1}, {0x2CEB0, 0x2EBE0}, {0x2EBF0, 0x2EE5D}, {0x2F800, 0x2FA1D},
    {0x30000, 0x3134A}, {0x31350, 0x323AF},
};

/* ---- words with capitals ---- */

static bool may_begin(const struct scan *t, const struct peek *p) { /* U of gpt-4o */
    const enum sheaf__char_kind k = sheaf__char_kind(p->cp);
    return p->class >= 0 &&
           (k == SHEAF__KIND_UPPER || k == SHEAF__KIND_LETTER || k == SHEAF__KIND_MARK) &&
           !(t->han_apart && IS_IN(han, p->cp));
}

static bool may_go_on(const struct scan *t, const struct peek *p) { /* L */
    const enum sheaf__char_kind k = sheaf__char_kind(p->cp);
    return p->class >= 0 &&
           (k == SHEAF__KIND_LOWER || k == SHEAF__KIND_LETTER || k == SHEAF__KIND_MARK) &&
           !(t->han_apart && IS_IN(han, p->cp));
}

/* Where U*L+ ends that begins at pos, 0: it does not match. *upper: where U+L* ends, or 0. */
static size_t cased_word(const struct scan *t, size_t pos, size_t *upper) {
    const size_t start = pos;
    size_t last = 0; /* behind the last character of U* that L has, too */
    struct peek p;
    while (p = at(t, pos), may_begin(t, &p)) {
        pos += p.width;
        if (may_go_on(t, &p)) last = pos;
    }
    const size_t capitals = pos;
    while (p = at(t, pos), may_go_on(t, &p)) pos += p.width;
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

static size_t next_cased(const struct scan *t, size_t max_digits, bool contractions, bool slash) {
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
    while (pos < t->len && (t->s[pos] == '\r' || t->s[pos] == '\n' || (slash && t->s[pos] == '/')))
        pos++;
    return pos;
}

static size_t next_kimi(struct scan t) {
    struct peek p;
    size_t pos = 0;
    while (p = at(&t, pos), p.class >= 0 && IS_IN(han, p.cp)) pos += p.width;
    t.han_apart = true;
    return pos ? pos : next_cased(&t, 3, true, false);
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
        const struct scan rest = {
            .s = t.s + pos, .len = t.len - pos, .numbers_end = true, .cjk_ends = true};
        if (match_deepseek3(&rest)) break;
    }
    return pos;
}

/* ---- DeepSeek LLM and V2 ---- */

static const struct range cased_letters[] = {
    // clang-format off
    {0x41, 0x5A}, {0x61, 0x7A}, {0xB5, 0xB5}, {0xC0, 0xD6}, {0xD8, 0xF6}, {0xF8, 0x1BA},
    {0x1BC, 0x1BF}, {0x1C4, 0x293}, {0x295, 0x2AF}, {0x370, 0x373}, {0x376, 0x376}, {0x377, 0x377},
    {0x37B, 0x37D}, {0x37F, 0x37F}, {0x386, 0x386}, {0x388, 0x38A}, {0x38C, 0x38C}, {0x38E, 0x3A1},
    {0x3A3, 0x3F5}, {0x3F7, 0x481}, {0x48A, 0x52F}, {0x531, 0x556}, {0x10A0, 0x10C5},
    {0x13A0, 0x13F5}, {0x13F8, 0x13FD}, {0x1C90, 0x1CBA}, {0x1CBD, 0x1CBF}, {0x1D00, 0x1D2B},
    {0x1D6B, 0x1D77}, {0x1D79, 0x1D9A}, {0x1E00, 0x1F15}, {0x1F18, 0x1F1D}, {0x1F20, 0x1F45},
    {0x1F48, 0x1F4D}, {0x1F50, 0x1F57}, {0x1F59, 0x1F59}, {0x1F5B, 0x1F5B}, {0x1F5D, 0x1F5D},
    {0x1F5F, 0x1F7D}, {0x1F80, 0x1FB4}, {0x1FB6, 0x1FBC}, {0x1FBE, 0x1FBE}, {0x1FC2, 0x1FC4},
    {0x1FC6, 0x1FCC}, {0x1FD0, 0x1FD3}, {0x1FD6, 0x1FDB}, {0x1FE0, 0x1FEC}, {0x1FF2, 0x1FF4},
    {0x1FF6, 0x1FFC}, {0x2102, 0x2102}, {0x2107, 0x2107}, {0x210A, 0x2113}, {0x2115, 0x2115},
    {0x2119, 0x211D}, {0x2124, 0x2124}, {0x2126, 0x2126}, {0x2128, 0x2128}, {0x212A, 0x212D},
    {0x212F, 0x2134}, {0x2139, 0x2139}, {0x213C, 0x213F}, {0x2145, 0x2149}, {0x214E, 0x214E},
    {0x2183, 0x2183}, {0x2184, 0x2184}, {0x2C00, 0x2C7B}, {0x2C7E, 0x2CE4}, {0x2CEB, 0x2CEE},
    {0x2CF2, 0x2CF2}, {0x2CF3, 0x2CF3}, {0xA640, 0xA66D}, {0xA680, 0xA69B}, {0xA722, 0xA76F},
    {0xA771, 0xA787}, {0xA78B, 0xA78E}, {0xAB70, 0xABBF}, {0xFB00, 0xFB06}, {0xFB13, 0xFB17},
    {0xFF21, 0xFF3A}, {0xFF41, 0xFF5A}, {0x10400, 0x1044F}, {0x104B0, 0x104D3}, {0x104D8, 0x104FB},
    {0x10C80, 0x10CB2}, {0x10CC0, 0x10CF2}, {0x118A0, 0x118DF}, {0x1E900, 0x1E943},
    // clang-format on
};
static const struct range signs[] = {
    {0x21, 0x2F},     {0x3A, 0x7E},     {0x2018, 0x201F},
    {0x3000, 0x3002}, {0xFF01, 0xFF0F}, {0xFF1A, 0xFF5E},
};
static const struct range eastern[] = {{0x800, 0x9FA5}, {0xAC00, 0xD7FF}};

static bool is_letter(const struct peek *p) { return p->class >= 0 && IS_IN(cased_letters, p->cp); }
static bool is_listed_sign(const struct peek *p) { return p->class >= 0 && IS_IN(signs, p->cp); }
static bool is_eastern(const struct peek *p) { return p->class >= 0 && IS_IN(eastern, p->cp); }
static bool is_space(const struct peek *p) { return p->class == SHEAF__CHAR_SPACE; }
static bool is_newline(const struct peek *p) { return p->cp == '\r' || p->cp == '\n'; }

/* Three characters of the text, from the one at pos on. */
struct three {
    struct peek a, b, c;
};

static struct three look(const struct scan *t, size_t pos) {
    const struct peek a = at(t, pos), b = at(t, pos + a.width);
    return (struct three){a, b, at(t, pos + a.width + b.width)};
}

/* Do the first two expressions cut between the character at pos and the next? */
static bool words_end(const struct scan *t, size_t pos) {
    const struct three x = look(t, pos);
    if (x.b.class < 0 || is_newline(&x.a) || is_newline(&x.b)) return true;
    const bool within = is_letter(&x.a) || (is_space(&x.a) && is_letter(&x.b));
    return within != is_letter(&x.b) || (is_space(&x.b) && is_letter(&x.c));
}

/* Does the third? It sees letters, too: some of them are in its range of ASCII. */
static bool signs_end(const struct scan *t, size_t pos) {
    const struct three x = look(t, pos);
    const bool within = is_listed_sign(&x.a) || (is_space(&x.a) && is_listed_sign(&x.b));
    const bool begins = is_space(&x.b) && !is_listed_sign(&x.b) && is_listed_sign(&x.c) &&
                        !words_end(t, pos + x.a.width);
    return within != is_listed_sign(&x.b) || begins;
}

/* Does the fourth? It matches spaces at the end of what lies between the cuts of the others. */
static bool spaces_begin(const struct scan *t, size_t pos) {
    struct peek p = at(t, pos);
    if (is_space(&p)) return false;
    while (pos += p.width, p = at(t, pos), is_space(&p))
        if (words_end(t, pos) || signs_end(t, pos)) return true;
    return false;
}

static size_t next_deepseek1(const struct scan *t) {
    for (size_t pos = 0;;) {
        const struct three x = look(t, pos);
        if (words_end(t, pos) || signs_end(t, pos) || spaces_begin(t, pos) ||
            is_eastern(&x.a) != is_eastern(&x.b) || x.a.class == SHEAF__CHAR_NUMBER ||
            x.b.class == SHEAF__CHAR_NUMBER)
            return pos + x.a.width;
        pos += x.a.width;
    }
}

size_t sheaf__pre_next(enum sheaf__pre pre, const char *s, size_t len) {
    assert(len > 0);
    struct scan t = {.s = s, .len = len};
    switch (pre) {
    case SHEAF__PRE_DEFAULT:
        return next_default(t);
    case SHEAF__PRE_LLAMA3:
        return next_llama3(&t, 3);
    case SHEAF__PRE_QWEN2:
        return next_llama3(&t, 1);
    case SHEAF__PRE_GPT4O:
        return next_cased(&t, 3, true, true);
    case SHEAF__PRE_TEKKEN:
        return next_cased(&t, 1, false, true);
    case SHEAF__PRE_DEEPSEEK3:
        return next_deepseek3(t);
    case SHEAF__PRE_DEEPSEEK1:
        return next_deepseek1(&t);
    case SHEAF__PRE_KIMI:
        return next_kimi(t);
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
