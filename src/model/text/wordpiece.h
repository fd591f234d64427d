/* Text to tokens as BERT does it (WordPiece, Wu et al., arXiv 1609.08144): words are runs without
 * white space, and every sign and Chinese character is a word; a word is the longest token that it
 * begins with, then the longest that the rest begins with, and so on, or else one unknown token.
 * Tokens that begin a word are spelled with U+2581 before them. */
#ifndef SHEAF_MODEL_WORDPIECE_H
#define SHEAF_MODEL_WORDPIECE_H

#include "model/text/tokenizer_impl.h"

/* Fits what a tokenizer calls for each token. */
typedef enum sheaf_status (*sheaf__emit_fn)(void *user, int32_t id);

/* Tokens of s[0..len) to `emit`, in order; ends with the first status that is no success. */
enum sheaf_status sheaf__wordpiece_encode(const struct sheaf_tokenizer *t, const char *s,
                                          size_t len, sheaf__emit_fn emit, void *user);

#endif
