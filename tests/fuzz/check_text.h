/* Checks of a text that is encoded and decoded. */
#ifndef SHEAF_TESTS_CHECK_TEXT_H
#define SHEAF_TESTS_CHECK_TEXT_H

#include "fuzz.h"
#include "sheaf/tokenizer.h"

/* Ids in the order of a stream give the text that they give together. */
static inline void check_stream(const struct sheaf_tokenizer *tok, const int32_t *ids, size_t n,
                                unsigned flags, const char *whole, size_t len) {
    struct sheaf_detokenizer *d = NULL;
    const char *piece;
    size_t at = 0, m = 0;
    if (sheaf_detokenizer_new(tok, flags, &d)) return;
    for (size_t i = 0; i <= n; i++) {
        if (i == n)
            sheaf_detokenizer_flush(d, &piece, &m);
        else
            MUST(!sheaf_detokenizer_push(d, ids[i], &piece, &m));
        MUST(m <= len - at && !memcmp(whole + at, piece, m));
        at += m;
    }
    MUST(at == len);
    sheaf_detokenizer_free(d);
}

static inline void check_text(const struct sheaf_tokenizer *tok, const char *text, size_t n_text,
                              unsigned flags) {
    int32_t *ids = NULL;
    char *back = NULL;
    size_t n = 0, len = 0;
    if (sheaf_tokenizer_encode(tok, text, n_text, flags, &ids, &n)) return;
    for (size_t i = 0; i < n; i++) MUST(ids[i] >= 0 && ids[i] < sheaf_tokenizer_n_vocab(tok));
    if (!sheaf_tokenizer_decode(tok, ids, n, flags, &back, &len)) {
        MUST(!back[len]);
        check_stream(tok, ids, n, flags, back, len);
    }
    free(back);
    free(ids);
}

#endif
