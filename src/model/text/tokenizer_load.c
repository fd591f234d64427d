/* Making a tokenizer from GGUF metadata; see tokenizer.h.
 *
 * Everything here comes from outside: array lengths are compared, ids are checked against the
 * vocabulary, scores must be numbers. After this file a tokenizer is consistent, and encoding and
 * decoding check only their arguments. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/array.h"
#include "base/locale.h"
#include "model/text/tokenizer_impl.h"
#include "model/text/unicode.h"
#include "sheaf/log.h"

#define KEY(name) "tokenizer.ggml." name

/* ---- GPT-2's spelling of bytes ---- */

static bool stands_for_itself(unsigned b) {
    return (b >= 0x21 && b <= 0x7E) || (b >= 0xA1 && b <= 0xAC) || b >= 0xAE;
}

/* How many bytes below b do not stand for themselves; the others are spelled U+0100 + that. */
static uint32_t rank_of_hidden(unsigned b) {
    uint32_t n = 0;
    for (unsigned i = 0; i < b; i++) n += !stands_for_itself(i);
    return n;
}

uint32_t sheaf__byte_to_char(unsigned char byte) {
    return stands_for_itself(byte) ? byte : 0x100 + rank_of_hidden(byte);
}

int sheaf__char_to_byte(uint32_t cp) {
    if (cp < 0x100) return stands_for_itself(cp) ? (int)cp : -1;
    if (cp < 0x100 + 0x21) return (int)(cp - 0x100);
    if (cp <= 0x100 + 0x21 + 0x21) return (int)(cp - 0x100 - 0x21 + 0x7F);
    return cp == 0x143 ? 0xAD : -1;
}

/* ---- reading metadata ---- */

struct array {
    const char *key;
    int64_t i; /* -1: absent */
    size_t n;
};

/* An array of the given element type; its absence is an error if it is required. */
static enum sheaf_status get_array(const struct sheaf_gguf *g, const char *key,
                                   enum sheaf_gguf_type type, bool required, struct array *out) {
    static const char *const elements[SHEAF_GGUF_TYPE_COUNT] = {
        [SHEAF_GGUF_TYPE_STRING] = "strings",
        [SHEAF_GGUF_TYPE_INT32] = "numbers of type i32",
        [SHEAF_GGUF_TYPE_FLOAT32] = "numbers of type f32",
    };
    *out = (struct array){key, sheaf_gguf_find_key(g, key), 0};
    if (out->i < 0)
        return required ? sheaf_set_error(SHEAF_STATUS_INVALID, "tokenizer: %s is missing in %s",
                                          key, sheaf_gguf_path(g))
                        : SHEAF_STATUS_SUCCESS;
    if (sheaf_gguf_kv_type(g, out->i) != SHEAF_GGUF_TYPE_ARRAY ||
        sheaf_gguf_arr_type(g, out->i) != type)
        return sheaf_set_error(SHEAF_STATUS_INVALID, "tokenizer: %s in %s is not an array of %s",
                               key, sheaf_gguf_path(g), elements[type]);
    out->n = sheaf_gguf_arr_n(g, out->i);
    return SHEAF_STATUS_SUCCESS;
}

static enum sheaf_status same_length(const struct sheaf_gguf *g, const struct array *a,
                                     int32_t n_vocab) {
    if (a->i < 0 || a->n == (size_t)n_vocab) return SHEAF_STATUS_SUCCESS;
    return sheaf_set_error(SHEAF_STATUS_INVALID,
                           "tokenizer: %s in %s has %zu elements for %d tokens", a->key,
                           sheaf_gguf_path(g), a->n, (int)n_vocab);
}

static uint32_t element_u32(const struct sheaf_gguf *g, const struct array *a, size_t j) {
    const unsigned char *p = (const unsigned char *)sheaf_gguf_arr_data(g, a->i) + 4 * j;
    return (uint32_t)p[0] | (uint32_t)p[1] << 8 | (uint32_t)p[2] << 16 | (uint32_t)p[3] << 24;
}

/* *id unchanged if the key is absent. */
static enum sheaf_status get_id(const struct sheaf_gguf *g, const char *key, int32_t n_vocab,
                                int32_t *id) {
    if (sheaf_gguf_find_key(g, key) < 0) return SHEAF_STATUS_SUCCESS;
    uint64_t v;
    enum sheaf_status st = sheaf_gguf_get_u64(g, key, &v);
    if (st) return st;
    if (v >= (uint64_t)n_vocab)
        return sheaf_set_error(SHEAF_STATUS_INVALID,
                               "tokenizer: %s in %s is %llu, but there are %d tokens", key,
                               sheaf_gguf_path(g), (unsigned long long)v, (int)n_vocab);
    *id = (int32_t)v;
    return SHEAF_STATUS_SUCCESS;
}

static enum sheaf_status get_flag(const struct sheaf_gguf *g, const char *key, bool *flag) {
    return sheaf_gguf_find_key(g, key) < 0 ? SHEAF_STATUS_SUCCESS
                                           : sheaf_gguf_get_bool(g, key, flag);
}

static enum sheaf_status no_memory(void) {
    return sheaf_set_error(SHEAF_STATUS_ALLOC_FAILED,
                           "tokenizer: out of memory while loading the vocabulary");
}

/* ---- tokens ---- */

static enum sheaf_status load_family(struct sheaf_tokenizer *t, const struct sheaf_gguf *g) {
    const char *model, *pre = "default";
    enum sheaf_status st = sheaf_gguf_get_str(g, KEY("model"), &model);
    if (st) return st;
    if (strcmp(model, "llama") != 0 && strcmp(model, "gpt2") != 0 && strcmp(model, "bert") != 0)
        return sheaf_set_error(SHEAF_STATUS_UNSUPPORTED,
                               "tokenizer: " KEY("model") " is \"%s\" in %s; known are llama, gpt2 "
                                                          "and bert",
                               model, sheaf_gguf_path(g));
    t->bpe = model[0] == 'g';
    t->wordpiece = model[0] == 'b';
    if (t->wordpiece) {
        t->add_bos = t->add_eos = t->lowercase = t->add_space_prefix = true;
        snprintf(t->describe, sizeof t->describe, "bert");
        return get_flag(g, KEY("normalizer.lowercase"), &t->lowercase);
    }
    if (!t->bpe) {
        t->add_bos = t->add_space_prefix = true;
        snprintf(t->describe, sizeof t->describe, "llama");
        return SHEAF_STATUS_SUCCESS;
    }
    const char *named = "";
    if (sheaf_gguf_find_key(g, KEY("pre")) >= 0) st = sheaf_gguf_get_str(g, KEY("pre"), &named);
    if (st) return st;
    if (*named) {
        pre = named;
    } else {
        sheaf_log(SHEAF_LOG_WARN,
                  "%s does not say how its model divides text (%s): \"%s\" is taken, and answers "
                  "may be worse for it; a file converted anew says it",
                  sheaf_gguf_path(g), KEY("pre"), pre);
    }
    t->pre = sheaf__pre_find(pre);
    if (!t->pre)
        return sheaf_set_error(SHEAF_STATUS_UNSUPPORTED,
                               "tokenizer: " KEY("pre") " is \"%s\" in %s; known are %s", pre,
                               sheaf_gguf_path(g), sheaf__pre_names());
    t->add_bos = t->pre->add_bos;
    snprintf(t->describe, sizeof t->describe, "gpt2 (%s)", t->pre->name);
    return SHEAF_STATUS_SUCCESS;
}

static enum sheaf_status load_tokens(struct sheaf_tokenizer *t, const struct sheaf_gguf *g) {
    struct array tokens, types, scores;
    enum sheaf_status st = get_array(g, KEY("tokens"), SHEAF_GGUF_TYPE_STRING, true, &tokens);
    if (st) return st;
    if (tokens.n == 0 || tokens.n > 1 << 24)
        return sheaf_set_error(SHEAF_STATUS_INVALID,
                               "tokenizer: " KEY("tokens") " in %s has %zu elements; 1 to %d are "
                                                           "possible",
                               sheaf_gguf_path(g), tokens.n, 1 << 24);
    t->n_vocab = (int32_t)tokens.n;
    st = get_array(g, KEY("token_type"), SHEAF_GGUF_TYPE_INT32, false, &types);
    if (!st) st = same_length(g, &types, t->n_vocab);
    const bool scored = !t->bpe && !t->wordpiece;
    if (!st) st = get_array(g, KEY("scores"), SHEAF_GGUF_TYPE_FLOAT32, scored, &scores);
    if (!st && scored) st = same_length(g, &scores, t->n_vocab);
    if (st) return st;

    size_t n = tokens.n;
    t->type = malloc(n);
    t->eog = calloc(n, sizeof *t->eog);
    t->score = scored ? malloc(n * sizeof *t->score) : NULL;
    if (!t->type || !t->eog || (scored && !t->score)) return no_memory();
    for (size_t j = 0; j < n; j++) {
        size_t len;
        const char *s = sheaf_gguf_arr_str(g, tokens.i, j, &len);
        st = sheaf__vocab_add(&t->vocab, s, len, NULL);
        if (st) return st;
        if (len > t->max_text) t->max_text = len;
        uint32_t type = types.i < 0 ? SHEAF__TOKEN_NORMAL : element_u32(g, &types, j);
        if (type > SHEAF__TOKEN_BYTE)
            return sheaf_set_error(SHEAF_STATUS_INVALID,
                                   "tokenizer: " KEY("token_type") "[%zu] in %s is %d; 0 to %d are "
                                                                   "known",
                                   j, sheaf_gguf_path(g), (int)type, SHEAF__TOKEN_BYTE);
        t->type[j] = (uint8_t)(type ? type : SHEAF__TOKEN_NORMAL);
        if (!scored) continue;
        uint32_t bits = element_u32(g, &scores, j);
        memcpy(&t->score[j], &bits, sizeof bits);
        if (t->score[j] != t->score[j])
            return sheaf_set_error(SHEAF_STATUS_INVALID,
                                   "tokenizer: " KEY("scores") "[%zu] in %s is not a number", j,
                                   sheaf_gguf_path(g));
    }
    return SHEAF_STATUS_SUCCESS;
}

/* Of a vocabulary that has all three (harmony, gpt-oss) the first ends a message, behind which
 * others follow. */
enum { NAME_END = 3, NAME_RETURN = 10, NAME_CALL = 11 };
/* Tokens that end a generation by their name, best end of turn first. Files often leave the keys
 * out, or give the tokens an ordinary type; their names are unmistakable. */
static const char *const eog_names[] = {
    "<|eot_id|>",
    "<|im_end|>",
    "<end_of_turn>",
    [NAME_END] = "<|end|>",
    "<end_of_utterance>",
    "<|endoftext|>",
    "<EOT>",
    "_<EOT>",
    "<|end_of_text|>",
    "<|eom_id|>",
    [NAME_RETURN] = "<|return|>",
    [NAME_CALL] = "<|call|>",
    ("<\xEF\xBD\x9C"
     "end\xE2\x96\x81of\xE2\x96\x81sentence\xEF\xBD\x9C>"),
};

/* Control tokens that end a generation by their name as well, as in llama.cpp: the end of a text
 * where another token is eos, and of models of code what fills up, and begins another file. Not
 * where the file has the name as an ordinary token: "</s>" is one of Qwen's, of HTML. */
static const char *const text_ends[] = {
    "</s>",          "<eos>",      "[EOS]",  "[EOT]",      "<|fim_pad|>",
    "<fim-pad>",     "<fim_pad>",  "<PAD>",  "[PAD]",      "<|fim_repo|>",
    "<|repo_name|>", "<fim-repo>", "<REPO>", "<reponame>", "<|file_sep|>",
};

/* WordPiece puts its class token before and its separator behind a text, whatever other keys say.
 * The numbers are those of BERT's own vocabulary; the key's spelling is GGUF's. */
static enum sheaf_status load_wordpiece_ids(struct sheaf_tokenizer *t, const struct sheaf_gguf *g) {
    const struct {
        const char *key;
        int32_t otherwise, *id;
    } ids[] = {
        {KEY("cls_token_id"), 101, &t->bos},
        {KEY("seperator_token_id"), 102, &t->eos},
        {KEY("unknown_token_id"), 100, &t->unk},
    };
    t->add_bos = t->add_eos = true;
    for (size_t i = 0; i < sizeof ids / sizeof *ids; i++) {
        enum sheaf_status st = get_id(g, ids[i].key, t->n_vocab, ids[i].id);
        if (st) return st;
        if (*ids[i].id < 0 && ids[i].otherwise < t->n_vocab) *ids[i].id = ids[i].otherwise;
        if (*ids[i].id < 0)
            return sheaf_set_error(SHEAF_STATUS_INVALID,
                                   "tokenizer: %s is missing in %s, whose vocabulary is not BERT's",
                                   ids[i].key, sheaf_gguf_path(g));
    }
    return SHEAF_STATUS_SUCCESS;
}

/* The ids and flags that the file gives; -1: it has none. */
static enum sheaf_status read_ids(struct sheaf_tokenizer *t, const struct sheaf_gguf *g) {
    const struct {
        const char *key;
        int32_t *id;
    } ids[] = {
        {KEY("bos_token_id"), &t->bos},     {KEY("eos_token_id"), &t->eos},
        {KEY("eot_token_id"), &t->eot},     {KEY("eom_token_id"), &t->eom},
        {KEY("unknown_token_id"), &t->unk},
    };
    const struct {
        const char *key;
        bool *flag;
    } flags[] = {
        {KEY("add_bos_token"), &t->add_bos},
        {KEY("add_eos_token"), &t->add_eos},
        {KEY("add_space_prefix"), &t->add_space_prefix},
    };
    enum sheaf_status st = SHEAF_STATUS_SUCCESS;
    for (size_t i = 0; i < sizeof ids / sizeof *ids && !st; i++) {
        *ids[i].id = -1;
        st = get_id(g, ids[i].key, t->n_vocab, ids[i].id);
    }
    for (size_t i = 0; i < sizeof flags / sizeof *flags && !st; i++)
        st = get_flag(g, flags[i].key, flags[i].flag);
    if (t->bpe) t->add_space_prefix = false; /* files of this family carry the key for nothing */
    return !st && t->wordpiece ? load_wordpiece_ids(t, g) : st;
}

/* Tokens that the tokenizer adds must be there. */
static enum sheaf_status check_added(const struct sheaf_tokenizer *t, const struct sheaf_gguf *g) {
    const struct {
        bool flag;
        int32_t id;
        const char *name;
    } needed[] = {{t->add_bos, t->bos, "bos"}, {t->add_eos, t->eos, "eos"}};
    for (size_t i = 0; i < sizeof needed / sizeof *needed; i++)
        if (needed[i].flag && needed[i].id < 0)
            return sheaf_set_error(SHEAF_STATUS_INVALID,
                                   "tokenizer: the model in %s wants a %s token, but "
                                   "tokenizer.ggml.%s_token_id is missing",
                                   sheaf_gguf_path(g), needed[i].name, needed[i].name);
    return SHEAF_STATUS_SUCCESS;
}

/* Tokens at which generation ends, and the end of a turn: by their ids, and by names that are
 * known. */
static void find_ends(struct sheaf_tokenizer *t) {
    enum { N_NAMES = sizeof eog_names / sizeof *eog_names };
    int32_t named[N_NAMES];
    for (size_t i = 0; i < N_NAMES; i++) named[i] = -1;
    for (int32_t id = 0; id < t->n_vocab; id++) {
        const char *s = sheaf__vocab_text(&t->vocab, (uint32_t)id);
        if (s[0] != '<' && s[0] != '_' && s[0] != '[') continue;
        for (size_t i = 0; i < sizeof text_ends / sizeof *text_ends; i++)
            if (t->type[id] == SHEAF__TOKEN_CONTROL && strcmp(s, text_ends[i]) == 0)
                t->eog[id] = true;
        for (size_t i = 0; i < N_NAMES; i++)
            if (strcmp(s, eog_names[i]) == 0) {
                if (named[i] < 0) named[i] = id;
                t->eog[id] = true;
                t->type[id] = SHEAF__TOKEN_CONTROL;
            }
    }
    for (size_t i = 0; i < N_NAMES && t->eot < 0; i++) t->eot = named[i];
    const int32_t ends[] = {t->eos, t->eot, t->eom};
    for (size_t i = 0; i < sizeof ends / sizeof *ends; i++)
        if (ends[i] >= 0) t->eog[ends[i]] = true;
    if (named[NAME_END] >= 0 && named[NAME_RETURN] >= 0 && named[NAME_CALL] >= 0) {
        t->eog[named[NAME_END]] = false;
        if (t->eot == named[NAME_END]) t->eot = named[NAME_RETURN];
    }
}

static enum sheaf_status load_ids(struct sheaf_tokenizer *t, const struct sheaf_gguf *g) {
    enum sheaf_status st = read_ids(t, g);
    if (!st) st = check_added(t, g);
    if (st) return st;
    find_ends(t);
    for (int32_t id = 0; id < t->n_vocab && t->unk < 0; id++)
        if (t->type[id] == SHEAF__TOKEN_UNKNOWN) t->unk = id;
    return SHEAF_STATUS_SUCCESS;
}

/* ---- what text may become, and what tokens decode to ---- */

static int hex_digit(char c) {
    if (c >= '0' && c <= '9') return c - '0';
    if (c >= 'A' && c <= 'F') return c - 'A' + 10;
    if (c >= 'a' && c <= 'f') return c - 'a' + 10;
    return -1;
}

/* The byte of "<0xNN>", or -1. */
static int byte_spelling(const char *s, size_t len) {
    if (len != 6 || memcmp(s, "<0x", 3) != 0 || s[5] != '>') return -1;
    int hi = hex_digit(s[3]), lo = hex_digit(s[4]);
    return hi < 0 || lo < 0 ? -1 : hi * 16 + lo;
}

static enum sheaf_status index_tokens(struct sheaf_tokenizer *t, const struct sheaf_gguf *g) {
    bool typed = sheaf_gguf_find_key(g, KEY("token_type")) >= 0;
    for (int b = 0; b < 256; b++) t->byte_token[b] = -1;
    for (int32_t id = 0; id < t->n_vocab; id++) {
        const char *s = sheaf__vocab_text(&t->vocab, (uint32_t)id);
        size_t len = t->vocab.text[id].len;
        int byte = byte_spelling(s, len);
        if (!typed && !t->bpe && byte >= 0) t->type[id] = SHEAF__TOKEN_BYTE;
        if (t->type[id] == SHEAF__TOKEN_BYTE) {
            if (byte < 0)
                return sheaf_set_error(SHEAF_STATUS_INVALID,
                                       "tokenizer: token %d in %s is a byte token, but is spelled "
                                       "\"%.32s\" instead of <0xNN>",
                                       (int)id, sheaf_gguf_path(g), s);
            if (t->byte_token[byte] < 0) t->byte_token[byte] = id;
        }
        bool from_text = t->type[id] == SHEAF__TOKEN_NORMAL ||
                         t->type[id] == SHEAF__TOKEN_USER_DEFINED ||
                         t->type[id] == SHEAF__TOKEN_UNUSED;
        if (!from_text || len == 0) continue;
        enum sheaf_status st = sheaf__vocab_index(&t->vocab, (uint32_t)id);
        if (st) return st;
    }
    for (int b = 0; b < 256; b++) {
        char c = (char)b;
        if (!t->bpe) {
            /* Without a byte token a token of just that byte will do. */
            uint32_t id = sheaf__vocab_find(&t->vocab, &c, 1);
            if (t->byte_token[b] < 0 && id != SHEAF__NO_SYMBOL) t->byte_token[b] = (int32_t)id;
            continue;
        }
        char text[4];
        size_t len = sheaf__utf8_put(sheaf__byte_to_char((unsigned char)b), text);
        enum sheaf_status st = sheaf__vocab_intern(&t->vocab, text, len, &t->byte_symbol[b]);
        if (st) return st;
        if (t->byte_symbol[b] < (uint32_t)t->n_vocab) t->byte_token[b] = (int32_t)t->byte_symbol[b];
    }
    return SHEAF_STATUS_SUCCESS;
}

static enum sheaf_status load_merges(struct sheaf_tokenizer *t, const struct sheaf_gguf *g) {
    struct array merges;
    char *joined = NULL;
    size_t joined_cap = 0;
    enum sheaf_status st = get_array(g, KEY("merges"), SHEAF_GGUF_TYPE_STRING, true, &merges);
    if (st) return st;
    if (merges.n > 1 << 24)
        return sheaf_set_error(SHEAF_STATUS_INVALID,
                               "tokenizer: " KEY("merges") " in %s has %zu elements; up to %d are "
                                                           "possible",
                               sheaf_gguf_path(g), merges.n, 1 << 24);
    st = sheaf__vocab_reserve_pairs(&t->vocab, merges.n);
    for (size_t j = 0; !st && j < merges.n; j++) {
        size_t len;
        const char *s = sheaf_gguf_arr_str(g, merges.i, j, &len);
        /* "left right"; spaces inside are spelled otherwise, so the first one separates. */
        const char *space = len > 2 ? memchr(s + 1, ' ', len - 2) : NULL;
        if (!space) {
            st =
                sheaf_set_error(SHEAF_STATUS_INVALID,
                                "tokenizer: " KEY("merges") "[%zu] in %s is \"%.32s\"; two symbols "
                                                            "with a space between are expected",
                                j, sheaf_gguf_path(g), s);
            break;
        }
        if (!sheaf__grow(&joined, &joined_cap, len, 1)) {
            st = no_memory();
            break;
        }
        size_t n_left = (size_t)(space - s), n_right = len - n_left - 1;
        memcpy(joined, s, n_left);
        memcpy(joined + n_left, space + 1, n_right);
        uint32_t left, right, both;
        st = sheaf__vocab_intern(&t->vocab, s, n_left, &left);
        if (!st) st = sheaf__vocab_intern(&t->vocab, space + 1, n_right, &right);
        if (!st) st = sheaf__vocab_intern(&t->vocab, joined, n_left + n_right, &both);
        if (!st) sheaf__vocab_add_pair(&t->vocab, left, right, (uint32_t)j, both);
    }
    free(joined);
    return st;
}

/* Writes what the token decodes to, at most its spelling's length; returns the bytes written. */
static size_t piece_of(const struct sheaf_tokenizer *t, int32_t id, char *out) {
    const char *s = sheaf__vocab_text(&t->vocab, (uint32_t)id);
    size_t len = t->vocab.text[id].len, n = 0;
    enum sheaf__token_type type = (enum sheaf__token_type)t->type[id];
    if (type == SHEAF__TOKEN_BYTE) {
        out[0] = (char)byte_spelling(s, len);
        return 1;
    }
    bool literal = type == SHEAF__TOKEN_CONTROL || type == SHEAF__TOKEN_UNKNOWN ||
                   (t->bpe && type == SHEAF__TOKEN_USER_DEFINED);
    for (size_t i = 0, width; i < len; i += width) {
        uint32_t cp;
        width = sheaf__utf8_next(s + i, len - i, &cp);
        int byte = !t->bpe ? (cp == 0x2581 ? ' ' : -1) : sheaf__char_to_byte(cp);
        if (!literal && byte >= 0) {
            out[n++] = (char)byte;
        } else {
            memcpy(out + n, s + i, width);
            n += width;
        }
    }
    return n;
}

static enum sheaf_status make_pieces(struct sheaf_tokenizer *t) {
    size_t n = (size_t)t->n_vocab, total = 0;
    for (size_t id = 0; id < n; id++) total += t->vocab.text[id].len;
    t->piece_arena = malloc(total + 1);
    t->piece = malloc(n * sizeof *t->piece);
    if (!t->piece_arena || !t->piece) return no_memory();
    size_t used = 0;
    for (size_t id = 0; id < n; id++) {
        size_t len = piece_of(t, (int32_t)id, t->piece_arena + used);
        t->piece[id] = (struct sheaf__span){(uint32_t)used, (uint32_t)len};
        used += len;
        if (len > t->max_piece) t->max_piece = len;
    }
    return SHEAF_STATUS_SUCCESS;
}

/* ---- tokens that are looked for in the text itself ---- */

struct spelling {
    const char *s;
    size_t len;
    int32_t id;
};

static int by_bytes(const void *a, const void *b) {
    const struct spelling *x = a, *y = b;
    int c = memcmp(x->s, y->s, x->len < y->len ? x->len : y->len);
    if (c) return c;
    if (x->len != y->len) return x->len < y->len ? -1 : 1;
    return x->id < y->id ? -1 : 1;
}

static enum sheaf_status sort_special(struct sheaf_tokenizer *t) {
    struct spelling *list = malloc((size_t)t->n_vocab * sizeof *list);
    t->special = malloc((size_t)t->n_vocab * sizeof *t->special);
    if (!list || !t->special) {
        free(list);
        return no_memory();
    }
    size_t n = 0;
    for (int32_t id = 0; id < t->n_vocab; id++) {
        size_t len = t->vocab.text[id].len;
        bool special = t->type[id] == SHEAF__TOKEN_CONTROL || t->type[id] == SHEAF__TOKEN_UNKNOWN ||
                       t->type[id] == SHEAF__TOKEN_USER_DEFINED;
        if (special && len)
            list[n++] = (struct spelling){sheaf__vocab_text(&t->vocab, (uint32_t)id), len, id};
    }
    qsort(list, n, sizeof *list, by_bytes);
    for (size_t i = 0; i < n; i++) {
        t->special[i] = list[i].id;
        t->special_first[(unsigned char)list[i].s[0] + 1]++;
    }
    for (int b = 0; b < 256; b++) t->special_first[b + 1] += t->special_first[b];
    free(list);
    return SHEAF_STATUS_SUCCESS;
}

/* In any case of its letters. */
static bool has_part(const char *name, const char *part) {
    while (*name && sheaf__strncasecmp(name, part, strlen(part))) name++;
    return *name != '\0';
}

/* A GGUF file does not say it: as in llama.cpp the name of the model decides. */
static enum sheaf_status load_white_space(struct sheaf_tokenizer *t, const struct sheaf_gguf *g) {
    const char *name = "";
    const int64_t i = sheaf_gguf_find_key(g, "general.name");
    if (i < 0 || sheaf_gguf_kv_type(g, i) != SHEAF_GGUF_TYPE_STRING) return SHEAF_STATUS_SUCCESS;
    const enum sheaf_status st = sheaf_gguf_get_str(g, "general.name", &name);
    t->special_takes_space = has_part(name, "phi-3") || has_part(name, "phi3");
    return st;
}

enum sheaf_status sheaf_tokenizer_new(const struct sheaf_gguf *gguf, struct sheaf_tokenizer **out) {
    *out = NULL;
    struct sheaf_tokenizer *t = calloc(1, sizeof *t);
    if (!t) return no_memory();
    enum sheaf_status st = load_family(t, gguf);
    if (!st) st = load_tokens(t, gguf);
    if (!st) st = load_ids(t, gguf);
    if (!st) st = index_tokens(t, gguf);
    if (!st && t->bpe) st = load_merges(t, gguf);
    if (!st) st = make_pieces(t);
    if (!st) st = sort_special(t);
    if (!st) st = load_white_space(t, gguf);
    if (st) {
        sheaf_tokenizer_free(t);
        return st;
    }
    *out = t;
    return SHEAF_STATUS_SUCCESS;
}

void sheaf_tokenizer_free(struct sheaf_tokenizer *t) {
    if (!t) return;
    sheaf__vocab_free(&t->vocab);
    free(t->type);
    free(t->eog);
    free(t->score);
    free(t->piece_arena);
    free(t->piece);
    free(t->special);
    free(t);
}
