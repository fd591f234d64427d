/* Texts and ids of any bytes through the tokenizer of the bundled model. The first byte gives the
 * flags and whether the rest is a text or ids. */
#include "check_text.h"

#include "sheaf/gguf.h"

static struct sheaf_tokenizer *bundled(void) {
    static struct sheaf_tokenizer *tok;
    struct sheaf_gguf *g = NULL;
    if (tok) return tok;
    MUST(!sheaf_gguf_open(SHEAF_SOURCE_DIR "/models/kjv-q8_0.gguf", &g));
    MUST(!sheaf_tokenizer_new(g, &tok));
    sheaf_gguf_free(g);
    return tok;
}

static void check_ids(const struct sheaf_tokenizer *tok, const uint8_t *data, size_t size,
                      unsigned flags) {
    int32_t ids[256] = {0};
    char *text = NULL;
    size_t n = size / sizeof *ids < 256 ? size / sizeof *ids : 256, len = 0;
    bool known = true;
    for (size_t i = 0; i < n; i++) {
        memcpy(&ids[i], data + i * sizeof *ids, sizeof *ids);
        if (i % 4) ids[i] &= 511; /* most are in the vocabulary */
        known = known && ids[i] >= 0 && ids[i] < sheaf_tokenizer_n_vocab(tok);
    }
    const bool decoded = !sheaf_tokenizer_decode(tok, ids, n, flags, &text, &len);
    MUST(decoded == known);
    if (decoded) check_stream(tok, ids, n, flags, text, len);
    free(text);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    if (!size) return 0;
    if (data[0] & 128)
        check_ids(bundled(), data + 1, size - 1, data[0] & 3);
    else
        check_text(bundled(), (const char *)data + 1, size - 1, data[0] & 3);
    return 0;
}
