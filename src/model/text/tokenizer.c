/* Encoding and decoding; see tokenizer.h. The tokenizer is only read here.
 *
 * Encoding: spellings of special tokens cut the text into fragments; a fragment is one run of the
 * merger (SentencePiece-style) or one run for each word of the pre-tokenizer (BPE); symbols that
 * are no tokens fall back to byte tokens. */
#include "sheaf/tokenizer.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "base/array.h"
#include "model/text/merge.h"
#include "model/text/tokenizer_impl.h"
#include "model/text/unicode.h"
#include "model/text/wordpiece.h"

#define MAX_TEXT ((size_t)1 << 28) /* three bytes a space still fit 32-bit indices */

static const char space_mark[] = "\xE2\x96\x81"; /* U+2581, how SentencePiece spells a space */

int32_t sheaf_tokenizer_n_vocab(const struct sheaf_tokenizer *t) { return t->n_vocab; }
const char *sheaf_tokenizer_describe(const struct sheaf_tokenizer *t) { return t->describe; }
int32_t sheaf_tokenizer_bos(const struct sheaf_tokenizer *t) { return t->bos; }
int32_t sheaf_tokenizer_eos(const struct sheaf_tokenizer *t) { return t->eos; }
int32_t sheaf_tokenizer_eot(const struct sheaf_tokenizer *t) { return t->eot; }
bool sheaf_tokenizer_add_bos(const struct sheaf_tokenizer *t) { return t->add_bos; }
bool sheaf_tokenizer_add_eos(const struct sheaf_tokenizer *t) { return t->add_eos; }

static bool in_range(const struct sheaf_tokenizer *t, int32_t id) {
    return id >= 0 && id < t->n_vocab;
}

bool sheaf_tokenizer_is_eog(const struct sheaf_tokenizer *t, int32_t id) {
    return in_range(t, id) && t->eog[id];
}

bool sheaf_tokenizer_is_control(const struct sheaf_tokenizer *t, int32_t id) {
    return in_range(t, id) &&
           (t->type[id] == SHEAF__TOKEN_CONTROL || t->type[id] == SHEAF__TOKEN_UNKNOWN);
}

const char *sheaf_tokenizer_token(const struct sheaf_tokenizer *t, int32_t id, size_t *len) {
    if (!in_range(t, id)) return NULL;
    if (len) *len = t->vocab.text[id].len;
    return sheaf__vocab_text(&t->vocab, (uint32_t)id);
}

int32_t sheaf_tokenizer_find(const struct sheaf_tokenizer *t, const char *token) {
    size_t len = strlen(token);
    for (int32_t id = 0; id < t->n_vocab; id++)
        if (t->vocab.text[id].len == len &&
            memcmp(sheaf__vocab_text(&t->vocab, (uint32_t)id), token, len) == 0)
            return id;
    return -1;
}

/* ---- encoding ---- */

struct encoder {
    const struct sheaf_tokenizer *t;
    struct sheaf__merger merger;
    char *text; /* SentencePiece-style: the fragment with spaces as marks. BPE: a word as spelled */
    size_t text_cap;
    int32_t *ids;
    size_t n, cap;
};

static enum sheaf_status no_memory(size_t bytes) {
    return sheaf_set_error(SHEAF_STATUS_ALLOC_FAILED,
                           "tokenizer: cannot allocate %zu bytes for a text", bytes);
}

static enum sheaf_status emit(struct encoder *e, int32_t id) {
    if (!sheaf__grow(&e->ids, &e->cap, e->n + 1, sizeof *e->ids))
        return no_memory(e->n * sizeof *e->ids);
    e->ids[e->n++] = id;
    return SHEAF_STATUS_SUCCESS;
}

/* A stretch of text that is no token: a byte token for each byte. SentencePiece-style without byte
 * tokens: one unknown token for all. BPE vocabularies lack bytes that their training text never
 * held; the models' own tokenizers leave such bytes out, and so does this (an unknown token would
 * be worse: in SmolLM2's file that is <|endoftext|>). */
static enum sheaf_status emit_bytes(struct encoder *e, const char *s, size_t len) {
    const struct sheaf_tokenizer *t = e->t;
    enum sheaf_status st = SHEAF_STATUS_SUCCESS;
    for (size_t i = 0; i < len && !t->bpe; i++) {
        if (t->byte_token[(unsigned char)s[i]] >= 0) continue;
        if (t->unk >= 0) return emit(e, t->unk);
        return sheaf_set_error(SHEAF_STATUS_INVALID,
                               "tokenizer: the vocabulary has no token for the byte 0x%02X of the "
                               "text, and no unknown token",
                               (unsigned char)s[i]);
    }
    for (size_t i = 0; !st && i < len; i++) {
        int32_t id = t->byte_token[(unsigned char)s[i]];
        if (id >= 0) st = emit(e, id);
    }
    return st;
}

static enum sheaf_status emit_symbols(struct encoder *e, const char *text) {
    enum sheaf_status st = SHEAF_STATUS_SUCCESS;
    int32_t i = e->merger.n ? 0 : -1;
    for (; !st && i >= 0; i = e->merger.symbols[i].next) {
        const struct sheaf__symbol *s = &e->merger.symbols[i];
        st = s->symbol < (uint32_t)e->t->n_vocab ? emit(e, (int32_t)s->symbol)
                                                 : emit_bytes(e, text + s->start, s->len);
    }
    return st;
}

static enum sheaf_status reserve_text(struct encoder *e, size_t need) {
    return sheaf__grow(&e->text, &e->text_cap, need, 1) ? SHEAF_STATUS_SUCCESS : no_memory(need);
}

/* Scores in descending order as ascending integers. */
static uint32_t priority_of_score(float score) {
    uint32_t bits;
    score += 0.0f; /* -0 and 0 are equal */
    memcpy(&bits, &score, sizeof bits);
    return bits & 0x80000000u ? bits : ~(bits | 0x80000000u);
}

static bool join_by_score(const void *ctx, const struct sheaf__symbol *left,
                          const struct sheaf__symbol *right, uint32_t *priority, uint32_t *symbol) {
    const struct encoder *e = ctx;
    size_t len = (size_t)left->len + right->len;
    if (len > e->t->max_text) return false;
    *symbol = sheaf__vocab_find(&e->t->vocab, e->text + left->start, len);
    if (*symbol == SHEAF__NO_SYMBOL) return false;
    *priority = priority_of_score(e->t->score[*symbol]);
    return true;
}

static bool join_by_rank(const void *ctx, const struct sheaf__symbol *left,
                         const struct sheaf__symbol *right, uint32_t *priority, uint32_t *symbol) {
    const struct encoder *e = ctx;
    const struct sheaf__pair *p = sheaf__vocab_find_pair(&e->t->vocab, left->symbol, right->symbol);
    if (!p) return false;
    *priority = p->rank;
    *symbol = p->symbol;
    return true;
}

static enum sheaf_status encode_spm(struct encoder *e, const char *s, size_t len, bool prefix) {
    enum sheaf_status st = reserve_text(e, 3 * (len + 1));
    if (st) return st;
    size_t n = 0;
    if (prefix) {
        memcpy(e->text, space_mark, 3);
        n = 3;
    }
    for (size_t i = 0; i < len; i++) {
        if (s[i] == ' ') {
            memcpy(e->text + n, space_mark, 3);
            n += 3;
        } else {
            e->text[n++] = s[i];
        }
    }
    sheaf__merger_clear(&e->merger);
    for (size_t i = 0, width; !st && i < n; i += width) {
        uint32_t cp;
        width = sheaf__utf8_next(e->text + i, n - i, &cp);
        st = sheaf__merger_push(&e->merger, (uint32_t)width,
                                sheaf__vocab_find(&e->t->vocab, e->text + i, width));
    }
    if (!st) st = sheaf__merger_run(&e->merger, join_by_score, e);
    return st ? st : emit_symbols(e, e->text);
}

/* The token that is the whole word, or -1. */
static int32_t whole_word(struct encoder *e, const char *s, size_t len) {
    if (len > e->t->max_text) return -1;
    size_t n = 0;
    for (size_t i = 0; i < len; i++) {
        uint32_t b = e->t->byte_symbol[(unsigned char)s[i]];
        uint32_t width = e->t->vocab.text[b].len;
        memcpy(e->text + n, sheaf__vocab_text(&e->t->vocab, b), width);
        n += width;
    }
    uint32_t found = sheaf__vocab_find(&e->t->vocab, e->text, n);
    return found < (uint32_t)e->t->n_vocab ? (int32_t)found : -1;
}

static enum sheaf_status encode_bpe(struct encoder *e, const char *s, size_t len) {
    const struct sheaf_tokenizer *t = e->t;
    enum sheaf_status st = reserve_text(e, 2 * t->max_text + 1); /* a spelled byte takes up to 2 */
    for (size_t n; !st && len; s += n, len -= n) {
        n = sheaf__pre_next(t->pre->pre, s, len);
        int32_t word = t->pre->whole_words ? whole_word(e, s, n) : -1;
        if (word >= 0) {
            st = emit(e, word);
            continue;
        }
        sheaf__merger_clear(&e->merger);
        for (size_t i = 0; !st && i < n; i++)
            st = sheaf__merger_push(&e->merger, 1, t->byte_symbol[(unsigned char)s[i]]);
        if (!st) st = sheaf__merger_run(&e->merger, join_by_rank, e);
        if (!st) st = emit_symbols(e, s);
    }
    return st;
}

/* Fits sheaf__emit_fn. */
static enum sheaf_status emit_to(void *user, int32_t id) { return emit(user, id); }

/* Text between special tokens. */
static enum sheaf_status encode_plain(struct encoder *e, const char *s, size_t len) {
    if (e->t->wordpiece) return sheaf__wordpiece_encode(e->t, s, len, emit_to, e);
    if (e->t->bpe) return encode_bpe(e, s, len);
    return encode_spm(e, s, len, e->t->add_space_prefix);
}

/* The longest special token spelled at s, or -1. User-defined tokens are text of a kind and always
 * count; control tokens only if asked for. */
static int32_t special_at(const struct sheaf_tokenizer *t, const char *s, size_t len,
                          bool control) {
    size_t lo = t->special_first[(unsigned char)s[0]];
    size_t hi = t->special_first[(unsigned char)s[0] + 1];
    int32_t best = -1;
    /* special[lo..hi) agree with s in the first `depth` bytes, shortest first. */
    for (size_t depth = 1; lo < hi; depth++) {
        while (lo < hi && t->vocab.text[t->special[lo]].len == depth) {
            int32_t id = t->special[lo++];
            if (control || t->type[id] == SHEAF__TOKEN_USER_DEFINED) best = id;
        }
        if (depth == len) break;
        unsigned char want = (unsigned char)s[depth];
        size_t bound[2];
        for (int k = 0; k < 2; k++) { /* first with byte >= want, first with byte > want */
            size_t a = lo, b = hi;
            while (a < b) {
                size_t mid = a + (b - a) / 2;
                const char *text = sheaf__vocab_text(&t->vocab, (uint32_t)t->special[mid]);
                unsigned char c = (unsigned char)text[depth];
                if (k ? c > want : c >= want)
                    b = mid;
                else
                    a = mid + 1;
            }
            bound[k] = a;
        }
        lo = bound[0];
        hi = bound[1];
    }
    return best;
}

/* Does the white space behind a special token belong to it? Phi-3's tokenizer_config.json, "rstrip". */
static bool takes_space(const struct sheaf_tokenizer *t, int32_t id) {
    static const char *const others[] = {"<unk>", "<s>", "<|endoftext|>"};
    if (!t->special_takes_space) return false;
    const char *text = sheaf__vocab_text(&t->vocab, (uint32_t)id);
    for (size_t i = 0; i < sizeof others / sizeof *others; i++)
        if (t->vocab.text[id].len == strlen(others[i]) &&
            !memcmp(text, others[i], strlen(others[i])))
            return false;
    return true;
}

/* The end of a special token that begins at pos, with the white space that belongs to it. */
static size_t end_of_special(const struct sheaf_tokenizer *t, int32_t id, const char *text,
                             size_t pos, size_t len) {
    size_t end = pos + t->vocab.text[id].len;
    const bool takes = takes_space(t, id);
    while (takes && end < len && (text[end] == ' ' || (text[end] >= '\t' && text[end] <= '\r')))
        end++;
    return end;
}

enum sheaf_status sheaf_tokenizer_encode(const struct sheaf_tokenizer *t, const char *text,
                                         size_t len, unsigned flags, int32_t **ids, size_t *n) {
    *ids = NULL;
    *n = 0;
    if (len >= MAX_TEXT)
        return sheaf_set_error(SHEAF_STATUS_INVALID,
                               "tokenizer: a text of %zu bytes is too long, the limit is %zu", len,
                               MAX_TEXT - 1);
    struct encoder e = {.t = t};
    enum sheaf_status st = SHEAF_STATUS_SUCCESS;
    bool control = flags & SHEAF_TOKENIZE_PARSE_SPECIAL;
    bool add = flags & SHEAF_TOKENIZE_ADD_SPECIAL;
    size_t start = 0;
    if (add && t->add_bos) st = emit(&e, t->bos);
    for (size_t pos = 0; !st && pos <= len; pos++) {
        int32_t id = pos < len ? special_at(t, text + pos, len - pos, control) : -1;
        if (id < 0 && pos < len) continue;
        if (pos > start) st = encode_plain(&e, text + start, pos - start);
        if (st || id < 0) break;
        bool doubled = add && t->add_bos && id == t->bos && e.n == 1 && pos == 0;
        if (!doubled) st = emit(&e, id);
        start = end_of_special(t, id, text, pos, len);
        pos = start - 1;
    }
    if (!st && add && t->add_eos) st = emit(&e, t->eos);
    if (!st && !e.ids) { /* nothing to say, but free() must have something */
        e.ids = malloc(sizeof *e.ids);
        if (!e.ids) st = no_memory(sizeof *e.ids);
    }
    sheaf__merger_free(&e.merger);
    free(e.text);
    if (st) {
        free(e.ids);
        return st;
    }
    *ids = e.ids;
    *n = e.n;
    return SHEAF_STATUS_SUCCESS;
}

/* ---- decoding ---- */

struct sheaf_detokenizer {
    const struct sheaf_tokenizer *t;
    unsigned flags;
    bool at_start; /* the next piece may begin with the space that the tokenizer puts there */
    size_t n_wait; /* bytes that wait for the rest of their character */
    char wait[4];  /* [n_wait] */
    char text[];   /* [3 + max_piece + 1] */
};

enum sheaf_status sheaf_detokenizer_new(const struct sheaf_tokenizer *t, unsigned flags,
                                        struct sheaf_detokenizer **out) {
    size_t bytes = sizeof **out + 3 + t->max_piece + 1;
    struct sheaf_detokenizer *d = malloc(bytes);
    *out = d;
    if (!d) return no_memory(bytes);
    *d = (struct sheaf_detokenizer){.t = t, .flags = flags};
    d->at_start = (flags & SHEAF_DETOKENIZE_START) && t->add_space_prefix;
    return SHEAF_STATUS_SUCCESS;
}

void sheaf_detokenizer_free(struct sheaf_detokenizer *d) { free(d); }

enum sheaf_status sheaf_detokenizer_push(struct sheaf_detokenizer *d, int32_t id, const char **text,
                                         size_t *len) {
    const struct sheaf_tokenizer *t = d->t;
    d->text[0] = 0;
    *text = d->text;
    *len = 0;
    if (!in_range(t, id))
        return sheaf_set_error(SHEAF_STATUS_INVALID,
                               "tokenizer: there is no token %d, the vocabulary has %d", (int)id,
                               (int)t->n_vocab);
    bool control = sheaf_tokenizer_is_control(t, id);
    if (control && !(d->flags & SHEAF_DETOKENIZE_SPECIAL)) return SHEAF_STATUS_SUCCESS;
    const char *piece = t->piece_arena + t->piece[id].offset;
    size_t n = t->piece[id].len;
    if (d->at_start && !control && n) {
        d->at_start = false;
        if (*piece == ' ') {
            piece++;
            n--;
        }
    }
    memcpy(d->text, d->wait, d->n_wait);
    memcpy(d->text + d->n_wait, piece, n);
    n += d->n_wait;
    d->n_wait = sheaf__utf8_unfinished(d->text, n);
    n -= d->n_wait;
    memcpy(d->wait, d->text + n, d->n_wait);
    d->text[n] = 0;
    *len = n;
    return SHEAF_STATUS_SUCCESS;
}

void sheaf_detokenizer_flush(struct sheaf_detokenizer *d, const char **text, size_t *len) {
    memcpy(d->text, d->wait, d->n_wait);
    d->text[d->n_wait] = 0;
    *text = d->text;
    *len = d->n_wait;
    d->n_wait = 0;
    d->at_start = (d->flags & SHEAF_DETOKENIZE_START) && d->t->add_space_prefix;
}

enum sheaf_status sheaf_tokenizer_decode(const struct sheaf_tokenizer *t, const int32_t *ids,
                                         size_t n, unsigned flags, char **text, size_t *len) {
    *text = NULL;
    *len = 0;
    size_t total = 0;
    for (size_t i = 0; i < n; i++) /* ids out of range are refused below */
        total += in_range(t, ids[i]) ? t->piece[ids[i]].len : 0;
    struct sheaf_detokenizer *d;
    enum sheaf_status st = sheaf_detokenizer_new(t, flags, &d);
    if (st) return st;
    char *out = malloc(total + 1);
    if (!out) st = no_memory(total + 1);
    size_t used = 0, m = 0;
    const char *piece;
    for (size_t i = 0; !st && i <= n; i++) {
        if (i < n)
            st = sheaf_detokenizer_push(d, ids[i], &piece, &m);
        else
            sheaf_detokenizer_flush(d, &piece, &m);
        if (!st) memcpy(out + used, piece, m);
        used += m;
    }
    sheaf_detokenizer_free(d);
    if (st) {
        free(out);
        return st;
    }
    assert(used <= total);
    out[used] = 0;
    *text = out;
    *len = used;
    return SHEAF_STATUS_SUCCESS;
}
