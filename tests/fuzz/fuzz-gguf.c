/* A GGUF file of any bytes, and a header of such bytes without a file: directory and metadata, hyperparameters, tokenizer with encoding and
 * decoding, chat template. */
#include "check_text.h"
#include "memory_file.h"

#include "model/file/hparams.h"
#include "sheaf/chat.h"
#include "sheaf/gguf.h"
#include "sheaf/tokenizer.h"

static void walk(const struct sheaf_gguf *g) {
    for (int64_t i = 0; i < sheaf_gguf_n_kv(g); i++) {
        size_t len = 0;
        const char *text;
        if (sheaf_gguf_kv_type(g, i) != SHEAF_GGUF_TYPE_ARRAY) continue;
        for (size_t j = 0; j < sheaf_gguf_arr_n(g, i) && j < 100; j++)
            if (sheaf_gguf_arr_type(g, i) == SHEAF_GGUF_TYPE_STRING)
                MUST((text = sheaf_gguf_arr_str(g, i, j, &len)) && !text[len]);
    }
    for (int64_t i = 0; i < sheaf_gguf_n_tensors(g); i++) {
        const struct sheaf_gguf_tensor *t = sheaf_gguf_tensor(g, i);
        MUST(t->offset <= sheaf_gguf_file_size(g) &&
             t->size <= sheaf_gguf_file_size(g) - t->offset);
        MUST(sheaf_gguf_find_tensor(g, t->name) >= 0);
    }
}

static void read_hparams(const struct sheaf_gguf *g) {
    struct sheaf__hparams hp;
    if (sheaf__hparams_read(g, 512, &hp)) return;
    MUST(hp.n_layer >= 0 && hp.n_embd > 0);
    MUST(!hp.n_head_kv || hp.n_head % hp.n_head_kv == 0);
}

static void use_tokenizer(const struct sheaf_gguf *g) {
    static const char text[] = "Hello <|im_start|> world\n 123\xc3\xa9\xff</s>";
    struct sheaf_tokenizer *tok = NULL;
    struct sheaf_chat chat;
    if (sheaf_tokenizer_new(g, &tok)) return;
    sheaf_chat_from_gguf(g, tok, &chat);
    for (unsigned flags = 0; flags < 4; flags++) check_text(tok, text, sizeof text - 1, flags);
    sheaf_tokenizer_free(tok);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    char path[MEMORY_FILE_PATH];
    struct sheaf_gguf *g = NULL;
    const int fd = memory_file(data, size, path);
    if (!sheaf_gguf_open(path, &g)) {
        walk(g);
        read_hparams(g);
        use_tokenizer(g);
    }
    sheaf_gguf_free(g);
    if (!sheaf_gguf_open_header("header", size ? data : NULL, size, 2 * size, &g)) walk(g);
    sheaf_gguf_free(g);
    close(fd);
    return 0;
}
