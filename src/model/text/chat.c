/* Recognising and writing chat formats; see chat.h. One table row a format. */
#include "sheaf/chat.h"

#include <stdlib.h>
#include <string.h>

struct format {
    const char *name;
    const char *markers[2]; /* all must occur; unused ones are "" */
    const char *others[2];  /* markers of other formats: none may occur; NULL: unused */
    const char *open, *opened, *close;
    const char *assistant; /* what the format calls that role */
    bool trim;             /* contents without white space around them */
    bool has_system;
};

static const struct format formats[SHEAF_CHAT_COUNT] = {
    [SHEAF_CHAT_CHATML] = {"ChatML",
                           {"<|im_start|>", ""},
                           {"<|im_sep|>", "<end_of_utterance>"},
                           "<|im_start|>",
                           "\n",
                           "<|im_end|>\n",
                           "assistant",
                           false,
                           true},
    [SHEAF_CHAT_LLAMA3] = {"Llama 3",
                           {"<|start_header_id|>", "<|end_header_id|>"},
                           {NULL, NULL},
                           "<|start_header_id|>",
                           "<|end_header_id|>\n\n",
                           "<|eot_id|>",
                           "assistant",
                           true,
                           true},
    [SHEAF_CHAT_GEMMA] = {"Gemma",
                          {"<start_of_turn>", ""},
                          {NULL, NULL},
                          "<start_of_turn>",
                          "\n",
                          "<end_of_turn>\n",
                          "model",
                          true,
                          false},
    [SHEAF_CHAT_PHI4] = {"Phi-4",
                         {"<|im_start|>", "<|im_sep|>"},
                         {NULL, NULL},
                         "<|im_start|>",
                         "<|im_sep|>",
                         "<|im_end|>",
                         "assistant",
                         false,
                         true},
};

const char *sheaf_chat_name(enum sheaf_chat_format format) {
    return (unsigned)format < SHEAF_CHAT_COUNT ? formats[format].name : "?";
}

/* The text s [len] of a literal in `quote` (0: of unknown quotes) into dst, which has room for it;
 * 0: a quote, a brace or an escape in it means that something variable is inserted. */
static size_t read_literal(const char *s, size_t len, char quote, char *dst) {
    static const char escapes[] = "nt'\"\\", meanings[] = "\n\t'\"\\";
    size_t n = 0;
    for (size_t i = 0; i < len; i++) {
        char c = s[i];
        const char *escape = quote && c == '\\' && i + 1 < len ? strchr(escapes, s[i + 1]) : NULL;
        const bool other_quote = quote && (c == '\'' || c == '"') && c != quote;
        if (escape && *escape) {
            c = meanings[escape - escapes];
            i++;
        } else if (strchr("'\"{}\\", c) && !other_quote) {
            return 0;
        }
        dst[n++] = c;
    }
    return n;
}

/* A ChatML template that inserts a system message of its own spells it whole: a literal from
 * <|im_start|>system to <|im_end|>, with the newline either real or as \n. */
static void find_default_system(const char *text, struct sheaf_chat *chat) {
    static const char open[] = "<|im_start|>system", close[] = "<|im_end|>";
    for (const char *p = text; (p = strstr(p, open)) != NULL;) {
        const char before = p > text ? p[-1] : 0;
        const char quote = before == '\'' || before == '"' ? before : 0;
        p += sizeof open - 1;
        size_t skip = *p == '\n' ? 1 : p[0] == '\\' && p[1] == 'n' ? 2 : 0;
        const char *end = strstr(p, close);
        if (skip == 0 || !end) continue;
        size_t len = (size_t)(end - p) - skip;
        if (len == 0 || len >= sizeof chat->default_system) continue;
        len = read_literal(p + skip, len, quote, chat->default_system);
        chat->default_system[len] = 0;
        if (len) return;
    }
}

/* Has the text all markers of a format, and none of others? */
static bool fits(const struct format *f, const char *text) {
    for (int i = 0; i < 2; i++)
        if (!strstr(text, f->markers[i]) || (f->others[i] && strstr(text, f->others[i])))
            return false;
    return true;
}

enum sheaf_status sheaf_chat_from_template(const char *text, struct sheaf_chat *out) {
    *out = (struct sheaf_chat){0};
    for (int f = 0; f < SHEAF_CHAT_COUNT; f++) {
        if (!fits(&formats[f], text)) continue;
        out->format = (enum sheaf_chat_format)f;
        if (f == SHEAF_CHAT_CHATML) find_default_system(text, out);
        return SHEAF_STATUS_SUCCESS;
    }
    return sheaf_set_error(
        SHEAF_STATUS_UNSUPPORTED,
        "chat: the model's template is none of ChatML, Llama 3, Gemma, Phi-4; it begins "
        "\"%.60s\". Run without --chat and write the format into the prompt",
        text);
}

/* The chat writes the bos itself if the template has one and the tokenizer puts none before a
 * text. */
static void find_bos(const char *text, const struct sheaf_tokenizer *tok, struct sheaf_chat *chat) {
    size_t len;
    const char *bos = sheaf_tokenizer_token(tok, sheaf_tokenizer_bos(tok), &len);
    if (!bos || len >= sizeof chat->bos || sheaf_tokenizer_add_bos(tok)) return;
    if (strstr(text, "bos_token")) memcpy(chat->bos, bos, len + 1);
}

/* Has the vocabulary all markers of a format, and none of others? */
static bool has_tokens(const struct format *f, const struct sheaf_tokenizer *tok) {
    for (int i = 0; i < 2; i++) {
        if (*f->markers[i] && sheaf_tokenizer_find(tok, f->markers[i]) < 0) return false;
        if (f->others[i] && sheaf_tokenizer_find(tok, f->others[i]) >= 0) return false;
    }
    return true;
}

enum sheaf_status sheaf_chat_from_gguf(const struct sheaf_gguf *gguf,
                                       const struct sheaf_tokenizer *tok, struct sheaf_chat *out) {
    if (sheaf_gguf_find_key(gguf, "tokenizer.chat_template") >= 0) {
        const char *text;
        enum sheaf_status st = sheaf_gguf_get_str(gguf, "tokenizer.chat_template", &text);
        if (!st) st = sheaf_chat_from_template(text, out);
        if (!st) find_bos(text, tok, out);
        return st;
    }
    *out = (struct sheaf_chat){0};
    for (int f = 0; f < SHEAF_CHAT_COUNT; f++) {
        if (!has_tokens(&formats[f], tok)) continue;
        out->format = (enum sheaf_chat_format)f;
        return SHEAF_STATUS_SUCCESS;
    }
    return sheaf_set_error(SHEAF_STATUS_UNSUPPORTED,
                           "chat: %s has no chat template and no tokens of ChatML, Llama 3, Gemma "
                           "or Phi-4; it is probably not trained for chat, run without --chat",
                           sheaf_gguf_path(gguf));
}

/* ---- writing ---- */

/* Text of unknown length: first pass counts (s NULL), second writes. */
struct text {
    char *s;
    size_t n;
};

static void put(struct text *t, const char *s, size_t len) {
    if (t->s) memcpy(t->s + t->n, s, len);
    t->n += len;
}

static void put_str(struct text *t, const char *s) { put(t, s, strlen(s)); }

static void put_content(struct text *t, const char *s, bool trim) {
    static const char blank[] = " \t\r\n\v\f";
    size_t len = strlen(s);
    if (trim) {
        size_t skip = strspn(s, blank);
        s += skip;
        len -= skip;
        while (len && strchr(blank, s[len - 1])) len--;
    }
    put(t, s, len);
}

static void put_message(struct text *t, const struct format *f, const char *role,
                        const char *system, const char *content) {
    put_str(t, f->open);
    put_str(t, role);
    put_str(t, f->opened);
    if (system) {
        put_content(t, system, f->trim);
        put_str(t, "\n\n");
    }
    put_content(t, content, f->trim);
    put_str(t, f->close);
}

static void put_reply(struct text *t, const struct format *f) {
    put_str(t, f->open);
    put_str(t, f->assistant);
    put_str(t, f->opened);
}

static void put_all(struct text *t, const struct sheaf_chat *chat,
                    const struct sheaf_chat_message *m, size_t n, bool reply) {
    const struct format *f = &formats[chat->format];
    const char *system = *chat->default_system ? chat->default_system : NULL;
    size_t first = n && strcmp(m[0].role, "system") == 0;
    put_str(t, chat->bos);
    if (first) system = m[0].content;
    if (system && f->has_system) {
        put_message(t, f, "system", NULL, system);
        system = NULL;
    }
    for (size_t i = first; i < n; i++) {
        bool answer = strcmp(m[i].role, "assistant") == 0;
        put_message(t, f, answer ? f->assistant : m[i].role, answer ? NULL : system, m[i].content);
        if (!answer) system = NULL;
    }
    if (reply) put_reply(t, f);
}

/* After the first pass. */
static enum sheaf_status make_room(struct text *t) {
    t->s = malloc(t->n + 1);
    if (!t->s)
        return sheaf_set_error(SHEAF_STATUS_ALLOC_FAILED,
                               "chat: cannot allocate %zu bytes for the prompt", t->n + 1);
    t->n = 0;
    return SHEAF_STATUS_SUCCESS;
}

enum sheaf_status sheaf_chat_format_messages(const struct sheaf_chat *chat,
                                             const struct sheaf_chat_message *messages, size_t n,
                                             bool reply, char **out) {
    *out = NULL;
    for (size_t i = 0; i < n; i++) {
        const char *role = messages[i].role;
        if (strcmp(role, "user") == 0 || strcmp(role, "assistant") == 0) continue;
        if (strcmp(role, "system") != 0)
            return sheaf_set_error(SHEAF_STATUS_INVALID,
                                   "chat: message %zu has the role \"%s\"; system, user and "
                                   "assistant are known",
                                   i, role);
        if (i > 0)
            return sheaf_set_error(SHEAF_STATUS_INVALID,
                                   "chat: message %zu is a system message; only the first can be",
                                   i);
        if (!formats[chat->format].has_system && (n < 2 || strcmp(messages[1].role, "user") != 0))
            return sheaf_set_error(SHEAF_STATUS_INVALID,
                                   "chat: the %s format needs a user message after the system "
                                   "message",
                                   formats[chat->format].name);
    }
    struct text t = {NULL, 0};
    put_all(&t, chat, messages, n, reply);
    const enum sheaf_status status = make_room(&t);
    if (status) return status;
    put_all(&t, chat, messages, n, reply);
    t.s[t.n] = 0;
    *out = t.s;
    return SHEAF_STATUS_SUCCESS;
}

static void put_turn(struct text *t, const struct format *f, const char *message) {
    put_str(t, f->close);
    put_message(t, f, "user", NULL, message);
    put_reply(t, f);
}

enum sheaf_status sheaf_chat_format_turn(const struct sheaf_chat *chat, const char *message,
                                         char **out) {
    struct text t = {NULL, 0};
    *out = NULL;
    put_turn(&t, &formats[chat->format], message);
    const enum sheaf_status status = make_room(&t);
    if (status) return status;
    put_turn(&t, &formats[chat->format], message);
    t.s[t.n] = 0;
    *out = t.s;
    return SHEAF_STATUS_SUCCESS;
}

const char *sheaf_chat_after_answer(const struct sheaf_chat *chat) {
    const char *close = formats[chat->format].close;
    return strchr(close, '>') + 1;
}
