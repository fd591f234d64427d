/* Generation in several turns, and texts that end an answer. Turns behind each other in the cache are
 * compared with one evaluation of all their tokens. */
#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "sheaf/model.h"
#include "sheaf/world.h"

#include "model/random_model.h"
#include "model/text/stop.h"
#include "temp_dir.h"

enum { MAX_IDS = 256, MAX_TEXT = 4096 };

TestSuite(turns, .init = setup, .fini = teardown, .timeout = 60);

static void ok(enum sheaf_status status) { cr_assert_eq(status, 0, "%s", sheaf_last_error()); }

/* The prompt, the tokens and the text of one answer. */
struct answer {
    int32_t prompt[MAX_IDS], ids[MAX_IDS];
    size_t n_prompt, n_ids, len;
    char text[MAX_TEXT];
    struct sheaf_model_result result;
};

static enum sheaf_status keep(void *user, const struct sheaf_model_event *e) {
    struct answer *a = user;
    if (e->kind == SHEAF_MODEL_EVENT_PROMPT)
        memcpy(a->prompt, e->ids, (a->n_prompt = e->n) * sizeof *e->ids);
    if (e->kind == SHEAF_MODEL_EVENT_TOKEN) a->ids[a->n_ids++] = e->ids[0];
    memcpy(a->text + a->len, e->text, e->len);
    a->len += e->len;
    a->text[a->len] = 0;
    return SHEAF_STATUS_SUCCESS;
}

static struct sheaf_model *open_model(void) {
    struct sheaf__random_model_params p = sheaf__random_model_default_params();
    struct sheaf_model_params params = sheaf_model_default_params();
    struct sheaf_model *model;
    p.arch = "qwen2";
    ok(sheaf__random_model_write(&p, in_dir("m.gguf")));
    setenv("SHEAF_CPU_THREADS", "1", 1);
    ok(sheaf_world_init(NULL));
    params.path = in_dir("m.gguf");
    params.kv_type = SHEAF_TYPE_F32;
    ok(sheaf_model_open(&params, &model));
    return model;
}

static struct sheaf_model_generate_params greedy(int64_t n) {
    struct sheaf_model_generate_params p = sheaf_model_generate_default_params();
    p.sampler.temperature = 0;
    p.ignore_eos = true;
    p.n_predict = n;
    return p;
}

static void generate(struct sheaf_model *model, const char *prompt,
                     const struct sheaf_model_generate_params *p, struct answer *out) {
    memset(out, 0, sizeof *out);
    out->result.size = sizeof out->result;
    ok(sheaf_model_generate(model, prompt, p, keep, out, &out->result));
    cr_assert_eq(out->n_ids, out->result.n_ids);
}

static int32_t next_token(struct sheaf_model *model, const int32_t *ids, size_t n) {
    const struct sheaf_candidates *best;
    bool stop = false;
    sheaf_model_cache_clear(model);
    ok(sheaf_model_prompt(model, 0, ids, (int64_t)n, NULL, NULL));
    ok(sheaf_model_get_candidates(model, 0, 1, false, &stop, &best));
    return best->data[0].id;
}

/* The second message is behind the first answer, without a system message of its own, and the answer
 * is that of the whole text at once. */
Test(turns, are_one_text) {
    static const char begins[] = "<|im_start|>system\nbe brief<|im_end|>\n<|im_start|>user\ntt"
                                 "<|im_end|>\n<|im_start|>assistant\n";
    static const char want[] =
        "<|im_end|>\n<|im_start|>user\nee<|im_end|>\n<|im_start|>assistant\n";
    struct sheaf_model *model = open_model();
    const struct sheaf_tokenizer *tok;
    static struct answer first, second;
    struct sheaf_model_generate_params p = greedy(6);
    int32_t all[MAX_IDS];
    char *text;
    size_t len, n = 0;
    p.chat = true;
    p.system = "be brief";
    generate(model, "tt", &p, &first);
    cr_assert_eq(first.result.stop, SHEAF_MODEL_STOP_LENGTH);
    cr_assert_gt(first.result.first_token_s, 0);
    p.first = &first.ids[first.n_ids - 1];
    p.n_first = 1;
    generate(model, "ee", &p, &second);
    cr_assert_eq(second.prompt[0], first.ids[first.n_ids - 1]);
    ok(sheaf_model_tokenizer(model, &tok));
    ok(sheaf_tokenizer_decode(tok, first.prompt, first.n_prompt, SHEAF_DETOKENIZE_SPECIAL, &text,
                              &len));
    cr_expect_str_eq(text, begins);
    free(text);
    ok(sheaf_tokenizer_decode(tok, second.prompt + 1, second.n_prompt - 1, SHEAF_DETOKENIZE_SPECIAL,
                              &text, &len));
    cr_expect_str_eq(text, want);
    free(text);
    memcpy(all, first.prompt, first.n_prompt * sizeof *all);
    n += first.n_prompt;
    memcpy(all + n, first.ids, (first.n_ids - 1) * sizeof *all);
    n += first.n_ids - 1;
    memcpy(all + n, second.prompt, second.n_prompt * sizeof *all);
    n += second.n_prompt;
    cr_expect_eq(next_token(model, all, n), second.ids[0]);
    /* another first turn gives another text: the comparison above can fail */
    all[first.n_prompt / 2] ^= 1;
    cr_expect_neq(next_token(model, all, n), second.ids[0]);
    sheaf_model_free(model);
    sheaf_world_finalize();
}

/* A chat is written in texts that end at a zero: a message that holds one was cut there. */
Test(turns, a_message_is_not_cut_at_a_zero) {
    struct sheaf_model *model = open_model();
    static struct answer raw;
    struct sheaf_model_generate_params p = greedy(1);
    p.prompt_len = 5;
    p.chat = true;
    struct sheaf_model_result result = {.size = sizeof result};
    cr_expect_eq(sheaf_model_generate(model, "tt\0ee", &p, NULL, NULL, &result),
                 SHEAF_STATUS_INVALID);
    cr_expect_eq(result.stop, SHEAF_MODEL_STOP_FAILED);
    cr_expect(strstr(sheaf_last_error(), "byte 2 of the message is a zero"), "%s",
              sheaf_last_error());
    p.chat = false;
    generate(model, "tt\0ee", &p, &raw);
    cr_expect_eq(raw.n_prompt, 3); /* "tt", the zero, "ee" */
    sheaf_model_free(model);
    sheaf_world_finalize();
}

/* A token without a row of the embeddings has no meaning. */
Test(turns, more_tokens_than_embeddings_are_refused) {
    struct sheaf__random_model_params p = sheaf__random_model_default_params();
    struct sheaf_model_params params = sheaf_model_default_params();
    struct sheaf_gguf *small, *large, *out = sheaf_gguf_new();
    const struct sheaf_tokenizer *tok;
    struct sheaf_model *model;
    ok(sheaf__random_model_write(&p, in_dir("small.gguf")));
    ok(sheaf_gguf_open(in_dir("small.gguf"), &small));
    p.n_vocab++;
    ok(sheaf__random_model_describe(&p, &large));
    ok(sheaf_gguf_copy_kv(out, large));
    char *data = malloc(sheaf_gguf_file_size(small)), *at = data;
    cr_assert_not_null(data);
    for (int64_t i = 0; i < sheaf_gguf_n_tensors(small); i++) {
        const struct sheaf_gguf_tensor *t = sheaf_gguf_tensor(small, i);
        ok(sheaf_gguf_read(small, t, 0, at, t->size));
        ok(sheaf_gguf_add_tensor(out, t->name, t->type, t->n_dims, t->ne, at));
        at += t->size;
    }
    ok(sheaf_gguf_write(out, in_dir("m.gguf")));
    ok(sheaf_world_init(NULL));
    params.path = in_dir("m.gguf");
    ok(sheaf_model_open(&params, &model));
    cr_expect_eq(sheaf_model_tokenizer(model, &tok), SHEAF_STATUS_INVALID);
    cr_expect(strstr(sheaf_last_error(), "the tokenizer has 513 tokens, the embeddings only 512"),
              "%s", sheaf_last_error());
    sheaf_model_free(model);
    sheaf_world_finalize();
    sheaf_gguf_free(small);
    sheaf_gguf_free(large);
    sheaf_gguf_free(out);
    free(data);
}

/* The answer ends before the text, wherever tokens begin. */
Test(turns, stop_texts_end_an_answer) {
    struct sheaf_model *model = open_model();
    static struct answer whole, cut;
    struct sheaf_model_generate_params p = greedy(24);
    generate(model, "tt", &p, &whole);
    cr_assert_gt(whole.len, 12);
    for (size_t at = 1; at + 3 < whole.len; at += 4) {
        char stop[4];
        const char *texts[] = {"never occurs", stop};
        snprintf(stop, sizeof stop, "%.3s", whole.text + at);
        const size_t found = (size_t)(strstr(whole.text, stop) - whole.text);
        p.stop = texts;
        p.n_stop = 2;
        sheaf_model_cache_clear(model);
        generate(model, "tt", &p, &cut);
        cr_expect_eq(cut.len, found, "'%s' in '%s': '%s'", stop, whole.text, cut.text);
        cr_expect_eq(strncmp(cut.text, whole.text, found), 0, "%s", cut.text);
        cr_expect_eq(cut.result.stop, SHEAF_MODEL_STOP_TEXT, "%s",
                     sheaf_model_stop_name(cut.result.stop));
    }
    /* one that the last token that may come completes */
    const char *end = whole.text + whole.len - 1;
    while (strstr(whole.text, end) < end) end--;
    p.stop = &end;
    p.n_stop = 1;
    sheaf_model_cache_clear(model);
    generate(model, "tt", &p, &cut);
    cr_expect_eq(cut.n_ids, whole.n_ids);
    cr_expect_eq(cut.len, (size_t)(end - whole.text), "'%s'", cut.text);
    cr_expect_eq(cut.result.stop, SHEAF_MODEL_STOP_TEXT, "%s",
                 sheaf_model_stop_name(cut.result.stop));
    const char *empty[] = {""};
    p.stop = empty;
    cr_expect_eq(sheaf_model_generate(model, "tt", &p, NULL, NULL, NULL), SHEAF_STATUS_INVALID);
    sheaf_model_free(model);
    sheaf_world_finalize();
}

/* Every piece at once, and byte by byte. */
static void expect_shown(const char *const *texts, int n, const char *answer, const char *want) {
    for (size_t step = 1; step <= strlen(answer); step++) {
        struct sheaf__stop s = {.texts = texts, .n = n};
        char shown[64] = "";
        const char *out;
        size_t len;
        for (size_t at = 0; at < strlen(answer); at += step) {
            const size_t left = strlen(answer) - at;
            ok(sheaf__stop_push(&s, answer + at, left < step ? left : step, &out, &len));
            strncat(shown, out, len);
        }
        ok(sheaf__stop_end(&s, "", 0, &out, &len));
        strncat(shown, out, len);
        cr_expect_str_eq(shown, want, "'%s' in steps of %zu: '%s'", answer, step, shown);
        cr_expect_eq(s.found, strcmp(answer, want) != 0);
        if (s.found) { /* nothing is shown behind it */
            ok(sheaf__stop_push(&s, "more", 4, &out, &len));
            cr_expect_eq(len, 0, "'%s'", answer);
        }
        sheaf__stop_free(&s);
    }
}

Test(turns, stop_texts_are_found_in_pieces) {
    static const char *const texts[] = {"User:", "aab", "END"};
    expect_shown(texts, 3, "hello User: x", "hello ");
    expect_shown(texts, 3, "aaab", "a");
    expect_shown(texts, 3, "EN", "EN");
    expect_shown(texts, 3, "UseUser", "UseUser");
    expect_shown(texts, 3, "xENUser:END", "xEN");
    expect_shown(texts, 3, "END", "");
}
