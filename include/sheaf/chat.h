/* Chat formats: messages to the text that a model was trained on.
 *
 * A format is recognised by the markers in tokenizer.chat_template, or, if the file has no
 * template, by its special tokens; templates are not executed. Of a ChatML template the system
 * message that it inserts when there is none is kept. The prompt is to be encoded with
 * SHEAF_TOKENIZE_ADD_SPECIAL | SHEAF_TOKENIZE_PARSE_SPECIAL (the text begins with a bos only where
 * the template has one and the tokenizer puts none before a text). */
#ifndef SHEAF_CHAT_H
#define SHEAF_CHAT_H

#include "sheaf/tokenizer.h"

#ifdef __cplusplus
extern "C" {
#endif

enum sheaf_chat_format {
    SHEAF_CHAT_CHATML, /* <|im_start|>role ... <|im_end|> (Qwen, SmolLM) */
    SHEAF_CHAT_LLAMA3, /* <|start_header_id|>role<|end_header_id|> ... <|eot_id|> */
    SHEAF_CHAT_GEMMA,  /* <start_of_turn>role ... <end_of_turn>; the system message goes into the
                          first user message */
    SHEAF_CHAT_PHI4,   /* <|im_start|>role<|im_sep|> ... <|im_end|> */
    SHEAF_CHAT_COUNT,
};

struct sheaf_chat {
    enum sheaf_chat_format format;
    char default_system[512]; /* "" if the template has none */
    char bos[64];             /* what the first message begins with, or "" */
};

struct sheaf_chat_message {
    const char *role; /* "system" (first only), "user" or "assistant" */
    const char *content;
};

/* The format of a template's text. UNSUPPORTED if it is none of the above. */
enum sheaf_status sheaf_chat_from_template(const char *text, struct sheaf_chat *out);
/* The format of a model. UNSUPPORTED if there is no sign of a known one. */
enum sheaf_status sheaf_chat_from_gguf(const struct sheaf_gguf *gguf,
                                       const struct sheaf_tokenizer *tok, struct sheaf_chat *out);
/* "ChatML", for messages */
const char *sheaf_chat_name(enum sheaf_chat_format format);

/* messages [n] as a prompt, owned by the caller: free(). `reply`: the opening of the assistant's
 * turn follows. Without a system message the template's default is used. */
enum sheaf_status sheaf_chat_format_messages(const struct sheaf_chat *chat,
                                             const struct sheaf_chat_message *messages, size_t n,
                                             bool reply, char **out);
/* A later message of the user, behind an answer whose tokens are in the cache: the end of the
 * answer's turn, the message, the opening of the reply. Without SHEAF_TOKENIZE_ADD_SPECIAL. Owned
 * by the caller: free(). */
enum sheaf_status sheaf_chat_format_turn(const struct sheaf_chat *chat, const char *message,
                                         char **out);
/* The text between an answer that the model ended with its end-of-turn token and the next message:
 * what a chat that keeps its state must still feed. */
const char *sheaf_chat_after_answer(const struct sheaf_chat *chat);

#ifdef __cplusplus
}
#endif
#endif
