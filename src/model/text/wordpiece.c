/* Words and their tokens; see wordpiece.h. Invariant: a word grows in one buffer, begins with the
 * mark, and is given out whole. */
#include "model/text/wordpiece.h"

#include <stdlib.h>
#include <string.h>

#include "base/array.h"
#include "model/text/unicode.h"

static const char mark[] = "\xE2\x96\x81";
enum { MARK = sizeof mark - 1 };

struct words {
    const struct sheaf_tokenizer *t;
    sheaf__emit_fn emit;
    void *user;
    char *word; /* [n], the mark first */
    size_t n, cap;
    int32_t *ids; /* of the word */
    size_t n_ids, cap_ids;
};

static enum sheaf_status no_memory(void) {
    return sheaf_set_error(SHEAF_STATUS_ALLOC_FAILED, "tokenizer: no memory for a word");
}

static enum sheaf_status append(struct words *w, const char *s, size_t n) {
    if (!sheaf__grow(&w->word, &w->cap, w->n + n, 1)) return no_memory();
    memcpy(w->word + w->n, s, n);
    w->n += n;
    return SHEAF_STATUS_SUCCESS;
}

/* The longest token at `from`, and where it ends; -1: there is none. */
static int32_t longest(const struct words *w, size_t from, size_t *end) {
    const size_t most = w->t->max_text < w->n - from ? w->t->max_text : w->n - from;
    for (size_t len = most; len > 0; len--) {
        const uint32_t id = sheaf__vocab_find(&w->t->vocab, w->word + from, len);
        if (id >= (uint32_t)w->t->n_vocab) continue;
        *end = from + len;
        return (int32_t)id;
    }
    return -1;
}

static enum sheaf_status end_word(struct words *w) {
    enum sheaf_status st = SHEAF_STATUS_SUCCESS;
    if (w->n <= MARK) return st;
    w->n_ids = 0;
    for (size_t at = 0; at < w->n;) {
        const int32_t id = longest(w, at, &at);
        if (!sheaf__grow(&w->ids, &w->cap_ids, w->n_ids + 1, sizeof *w->ids)) return no_memory();
        if (id < 0) { /* the word as a whole is unknown */
            w->ids[0] = w->t->unk;
            w->n_ids = 1;
            break;
        }
        w->ids[w->n_ids++] = id;
    }
    for (size_t i = 0; !st && i < w->n_ids; i++) st = w->emit(w->user, w->ids[i]);
    w->n = MARK;
    return st;
}

static bool is_chinese(uint32_t c) {
    return (c >= 0x4E00 && c <= 0x9FFF) || (c >= 0x3400 && c <= 0x4DBF) ||
           (c >= 0x20000 && c <= 0x2A6DF) || (c >= 0x2A700 && c <= 0x2B73F) ||
           (c >= 0x2B740 && c <= 0x2B81F) || (c >= 0x2B920 && c <= 0x2CEAF) ||
           (c >= 0xF900 && c <= 0xFAFF) || (c >= 0x2F800 && c <= 0x2FA1F);
}

/* A character after lower case and without accents. */
static enum sheaf_status add(struct words *w, uint32_t cp) {
    const enum sheaf__char_kind kind = sheaf__char_kind(cp);
    char utf8[4];
    enum sheaf_status st = SHEAF_STATUS_SUCCESS;
    if (kind == SHEAF__KIND_SPACE) return end_word(w);
    if (cp == 0 || cp == 0xFFFD || kind == SHEAF__KIND_OTHER) return st;
    const bool alone = kind == SHEAF__KIND_PUNCTUATION ||
                       (cp < 0x7F && kind == SHEAF__KIND_SYMBOL) || is_chinese(cp);
    if (alone) st = end_word(w);
    if (!st) st = append(w, utf8, sheaf__utf8_put(cp, utf8));
    return !st && alone ? end_word(w) : st;
}

enum sheaf_status sheaf__wordpiece_encode(const struct sheaf_tokenizer *t, const char *s,
                                          size_t len, sheaf__emit_fn emit, void *user) {
    struct words w = {.t = t, .emit = emit, .user = user};
    enum sheaf_status st = append(&w, mark, MARK);
    for (size_t i = 0, width; !st && i < len; i += width) {
        uint32_t cp, folded[3];
        width = sheaf__utf8_next(s + i, len - i, &cp);
        const size_t n = t->lowercase ? sheaf__char_fold(cp, folded) : 1;
        if (!t->lowercase) folded[0] = cp;
        for (size_t k = 0; !st && k < n; k++) st = add(&w, folded[k]);
    }
    if (!st) st = end_word(&w);
    free(w.word);
    free(w.ids);
    return st;
}
