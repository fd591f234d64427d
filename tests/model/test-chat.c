/* Chat formats: recognition and the exact prompts. */
#include "tokenizer-fixture.h"

#include "sheaf/chat.h"

/* Shortened from the templates of the models named. */
static const char smollm2[] =
    "{% for message in messages %}{% if loop.first and messages[0]['role'] != 'system' %}"
    "{{ '<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face"
    "<|im_end|>\n' }}{% endif %}{{'<|im_start|>' + message['role'] + '\n' + message['content'] + "
    "'<|im_end|>' + '\n'}}{% endfor %}";
static const char qwen25[] =
    "{%- if tools %}{{- '<|im_start|>system\\n' }}{{- 'You are Qwen.' }}{{- \"<|im_end|>\\n\" }}"
    "{%- else %}{%- if messages[0]['role'] == 'system' %}{{- '<|im_start|>system\\n' + "
    "messages[0]['content'] + '<|im_end|>\\n' }}{%- else %}{{- '<|im_start|>system\\nYou are Qwen, "
    "created by Alibaba Cloud. You are a helpful assistant.<|im_end|>\\n' }}{%- endif %}";
static const char qwen3[] =
    "{%- if messages[0].role == 'system' %}{{- '<|im_start|>system\\n' + messages[0].content + "
    "'<|im_end|>\\n' }}{%- endif %}";
static const char llama3[] =
    "{% set content = '<|start_header_id|>' + message['role'] + '<|end_header_id|>\n\n'+ "
    "message['content'] | trim + '<|eot_id|>' %}";
static const char gemma[] =
    "{{ '<start_of_turn>' + role + '\n' + message['content'] | trim + '<end_of_turn>\n' }}";
static const char phi4[] =
    "{% for message in messages %}{% if (message['role'] == 'user') %}"
    "{{'<|im_start|>user<|im_sep|>' + message['content'] + '<|im_end|>'}}{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant<|im_sep|>' }}{% endif %}";
static const char smolvlm[] =
    "<|im_start|>{% for message in messages %}{{message['role'] | capitalize}}"
    "<end_of_utterance>\n{% endfor %}";

Test(chat, templates) {
    static const struct {
        const char *text, *name, *system;
    } cases[] = {
        {smollm2, "ChatML", "You are a helpful AI assistant named SmolLM, trained by Hugging Face"},
        {qwen25, "ChatML", "You are Qwen, created by Alibaba Cloud. You are a helpful assistant."},
        {qwen3, "ChatML", ""},
        {llama3, "Llama 3", ""},
        {gemma, "Gemma", ""},
        {phi4, "Phi-4", ""},
        {"{{ \"<|im_start|>system\nI don't lie<|im_end|>\" }}", "ChatML", "I don't lie"},
        {"{{ '<|im_start|>system\\nI don\\'t:\\n\"lie\"<|im_end|>' }}", "ChatML",
         "I don't:\n\"lie\""},
        {"{{ '<|im_start|>system\\n\\x41<|im_end|>' }}", "ChatML", ""},
        {"{{ \"<|im_start|>system\\n\" + s + '<|im_end|>' }}", "ChatML", ""},
        {"text <|im_start|>system\nI don't<|im_end|>", "ChatML", ""},
        {"<|im_start|>system\nnever closed", "ChatML", ""},
        {"<|im_start|>system\n<|im_end|>", "ChatML", ""},
    };
    for (size_t i = 0; i < N_OF(cases); i++) {
        struct sheaf_chat chat;
        ok(sheaf_chat_from_template(cases[i].text, &chat));
        cr_expect_str_eq(sheaf_chat_name(chat.format), cases[i].name, "case %zu", i);
        cr_expect_str_eq(chat.default_system, cases[i].system, "case %zu", i);
    }
    static const char *const unknown[] = {"", "{{ bos_token }}[INST] {{ message }} [/INST]",
                                          "<|start_header_id|> alone", smolvlm};
    for (size_t i = 0; i < N_OF(unknown); i++) {
        struct sheaf_chat chat;
        cr_expect_eq(sheaf_chat_from_template(unknown[i], &chat), SHEAF_STATUS_UNSUPPORTED);
        cr_expect_not_null(strstr(sheaf_last_error(), "none of ChatML, Llama 3, Gemma"));
    }
}

/* A default longer than its field is left out, not cut. */
Test(chat, long_default) {
    static const size_t fits = sizeof((struct sheaf_chat *)NULL)->default_system - 1;
    const size_t lengths[] = {1000, fits + 1, fits};
    for (size_t i = 0; i < N_OF(lengths); i++) {
        struct sheaf_chat chat;
        char text[2048] = "<|im_start|>system\n";
        memset(text + strlen(text), 'x', lengths[i]);
        strcat(text, "<|im_end|>");
        ok(sheaf_chat_from_template(text, &chat));
        cr_expect_eq(strlen(chat.default_system), lengths[i] > fits ? 0 : fits, "%zu", lengths[i]);
    }
}

/* Behind the vocabulary's others. */
static void add_token(struct sheaf_gguf *g, const char *text) {
    const int64_t tokens = sheaf_gguf_find_key(g, "tokenizer.ggml.tokens");
    const int64_t types = sheaf_gguf_find_key(g, "tokenizer.ggml.token_type");
    const size_t n = sheaf_gguf_arr_n(g, tokens);
    const char **list = calloc(n + 1, sizeof *list);
    int32_t *kinds = calloc(n + 1, sizeof *kinds);
    cr_assert(list && kinds);
    for (size_t i = 0; i < n; i++) list[i] = sheaf_gguf_arr_str(g, tokens, i, NULL);
    memcpy(kinds, sheaf_gguf_arr_data(g, types), n * sizeof *kinds);
    list[n] = text;
    kinds[n] = SHEAF__TOKEN_CONTROL;
    ok(sheaf_gguf_set_arr_str(g, "tokenizer.ggml.tokens", list, n + 1));
    ok(sheaf_gguf_set_arr(g, "tokenizer.ggml.token_type", SHEAF_GGUF_TYPE_INT32, kinds, n + 1));
    free(list);
    free(kinds);
}

Test(chat, models) {
    struct sheaf_chat chat;
    struct sheaf_gguf *g = bpe_gguf("qwen2");
    struct sheaf_tokenizer *t;
    ok(sheaf_tokenizer_new(g, &t));
    ok(sheaf_chat_from_gguf(g, t, &chat));
    cr_expect_eq(chat.format, SHEAF_CHAT_CHATML, "by its tokens");
    ok(sheaf_gguf_set_str(g, "tokenizer.chat_template", llama3));
    ok(sheaf_chat_from_gguf(g, t, &chat));
    cr_expect_eq(chat.format, SHEAF_CHAT_LLAMA3, "a template goes before tokens");
    ok(sheaf_gguf_set_str(g, "tokenizer.chat_template", "[INST]"));
    cr_expect_eq(sheaf_chat_from_gguf(g, t, &chat), SHEAF_STATUS_UNSUPPORTED);
    ok(sheaf_gguf_set_u32(g, "tokenizer.chat_template", 1));
    cr_expect_eq(sheaf_chat_from_gguf(g, t, &chat), SHEAF_STATUS_INVALID);
    sheaf_tokenizer_free(t);
    sheaf_gguf_free(g);

    g = bpe_gguf("qwen2");
    add_token(g, "<|im_sep|>");
    ok(sheaf_tokenizer_new(g, &t));
    ok(sheaf_chat_from_gguf(g, t, &chat));
    cr_expect_eq(chat.format, SHEAF_CHAT_PHI4, "ChatML has no token between role and text");
    sheaf_tokenizer_free(t);
    sheaf_gguf_free(g);

    g = spm_gguf();
    ok(sheaf_tokenizer_new(g, &t));
    ok(sheaf_chat_from_gguf(g, t, &chat));
    cr_expect_eq(chat.format, SHEAF_CHAT_GEMMA);
    sheaf_tokenizer_free(t);
    sheaf_gguf_free(g);

    ok(sheaf_gguf_open(SHEAF_SOURCE_DIR "/models/kjv-f32.gguf", &g));
    ok(sheaf_tokenizer_new(g, &t));
    cr_expect_eq(sheaf_chat_from_gguf(g, t, &chat), SHEAF_STATUS_UNSUPPORTED);
    cr_expect_not_null(strstr(sheaf_last_error(), "not trained for chat"));
    sheaf_tokenizer_free(t);
    sheaf_gguf_free(g);
}

/* A template's bos is written where the tokenizer puts none before a text. */
Test(chat, bos_of_the_template) {
    static const struct sheaf_chat_message hi[] = {{"user", "Hi"}};
    for (int added = 0; added < 2; added++)
        for (int wanted = 0; wanted < 2; wanted++) {
            struct sheaf_gguf *g = bpe_gguf("qwen2");
            struct sheaf_tokenizer *t;
            struct sheaf_chat chat;
            char *prompt, *turn, want[256], template[1024];
            snprintf(template, sizeof template, "%s%s", wanted ? "{{ bos_token }}" : "", llama3);
            ok(sheaf_gguf_set_str(g, "tokenizer.chat_template", template));
            ok(sheaf_gguf_set_bool(g, "tokenizer.ggml.add_bos_token", added));
            ok(sheaf_tokenizer_new(g, &t));
            ok(sheaf_chat_from_gguf(g, t, &chat));
            ok(sheaf_chat_format_messages(&chat, hi, 1, false, &prompt));
            snprintf(
                want, sizeof want, "%s<|start_header_id|>user<|end_header_id|>\n\nHi<|eot_id|>",
                wanted && !added ? sheaf_tokenizer_token(t, sheaf_tokenizer_bos(t), NULL) : "");
            cr_expect_str_eq(prompt, want);
            ok(sheaf_chat_format_turn(&chat, "Hi", &turn));
            cr_expect_eq(strncmp(turn, "<|eot_id|><|start", 16), 0, "%s", turn);
            free(prompt);
            free(turn);
            sheaf_tokenizer_free(t);
            sheaf_gguf_free(g);
        }
}

static void expect_prompt(const char *template, const struct sheaf_chat_message *m, size_t n,
                          bool reply, const char *want) {
    struct sheaf_chat chat;
    char *prompt;
    ok(sheaf_chat_from_template(template, &chat));
    ok(sheaf_chat_format_messages(&chat, m, n, reply, &prompt));
    cr_expect_str_eq(prompt, want);
    free(prompt);
}

Test(chat, prompts) {
    static const struct sheaf_chat_message talk[] = {
        {"system", " Be brief. "}, {"user", "Hi\n"}, {"assistant", "Hello."}, {"user", "Bye"}};
    expect_prompt(qwen3, talk, 4, true,
                  "<|im_start|>system\n Be brief. <|im_end|>\n<|im_start|>user\nHi\n<|im_end|>\n"
                  "<|im_start|>assistant\nHello.<|im_end|>\n<|im_start|>user\nBye<|im_end|>\n"
                  "<|im_start|>assistant\n");
    expect_prompt(llama3, talk, 4, true,
                  "<|start_header_id|>system<|end_header_id|>\n\nBe brief.<|eot_id|>"
                  "<|start_header_id|>user<|end_header_id|>\n\nHi<|eot_id|>"
                  "<|start_header_id|>assistant<|end_header_id|>\n\nHello.<|eot_id|>"
                  "<|start_header_id|>user<|end_header_id|>\n\nBye<|eot_id|>"
                  "<|start_header_id|>assistant<|end_header_id|>\n\n");
    expect_prompt(gemma, talk, 4, true,
                  "<start_of_turn>user\nBe brief.\n\nHi<end_of_turn>\n"
                  "<start_of_turn>model\nHello.<end_of_turn>\n"
                  "<start_of_turn>user\nBye<end_of_turn>\n<start_of_turn>model\n");
    expect_prompt(phi4, talk, 4, true,
                  "<|im_start|>system<|im_sep|> Be brief. <|im_end|><|im_start|>user<|im_sep|>Hi\n"
                  "<|im_end|><|im_start|>assistant<|im_sep|>Hello.<|im_end|>"
                  "<|im_start|>user<|im_sep|>Bye<|im_end|><|im_start|>assistant<|im_sep|>");
    /* The template's own system message stands in for a missing one. */
    expect_prompt(smollm2, talk + 1, 1, false,
                  "<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by "
                  "Hugging Face<|im_end|>\n<|im_start|>user\nHi\n<|im_end|>\n");
    expect_prompt(smollm2, talk, 1, false, "<|im_start|>system\n Be brief. <|im_end|>\n");
    expect_prompt(llama3, NULL, 0, true, "<|start_header_id|>assistant<|end_header_id|>\n\n");
}

Test(chat, wrong_messages) {
    static const struct sheaf_chat_message odd_role[] = {{"tool", "x"}},
                                           late_system[] = {{"user", "x"}, {"system", "y"}},
                                           lone_system[] = {{"system", "x"}, {"assistant", "y"}};
    struct sheaf_chat chat;
    char *prompt;
    ok(sheaf_chat_from_template(gemma, &chat));
    cr_expect_eq(sheaf_chat_format_messages(&chat, odd_role, 1, true, &prompt),
                 SHEAF_STATUS_INVALID);
    cr_expect_not_null(strstr(sheaf_last_error(), "\"tool\""));
    cr_expect_eq(sheaf_chat_format_messages(&chat, late_system, 2, true, &prompt),
                 SHEAF_STATUS_INVALID);
    cr_expect_not_null(strstr(sheaf_last_error(), "only the first"));
    cr_expect_eq(sheaf_chat_format_messages(&chat, lone_system, 2, true, &prompt),
                 SHEAF_STATUS_INVALID);
    cr_expect_not_null(strstr(sheaf_last_error(), "needs a user message"));
    cr_expect_null(prompt);
}

/* first + answer + turn is the prompt of all three messages. */
static void expect_next_turn(const struct sheaf_chat *chat, const char *first) {
    static const struct sheaf_chat_message talk[] = {
        {"user", "Hi"}, {"assistant", "Hello"}, {"user", " Bye"}};
    char *turn, *all, joined[768];
    ok(sheaf_chat_format_turn(chat, " Bye", &turn));
    ok(sheaf_chat_format_messages(chat, talk, 3, true, &all));
    snprintf(joined, sizeof joined, "%sHello%s", first, turn);
    cr_expect_str_eq(joined, all);
    free(turn);
    free(all);
}

/* The prompt for the next turn, fed piecewise, is the prompt of the whole talk. */
Test(chat, after_answer) {
    static const struct sheaf_chat_message talk[] = {{"user", "Hi"}, {"assistant", "Hello"}};
    static const char *const templates[] = {qwen3, llama3, gemma, phi4};
    static const char *const ends[] = {"<|im_end|>", "<|eot_id|>", "<end_of_turn>", "<|im_end|>"};
    for (size_t i = 0; i < N_OF(templates); i++) {
        struct sheaf_chat chat;
        char *first, *both, joined[512];
        ok(sheaf_chat_from_template(templates[i], &chat));
        ok(sheaf_chat_format_messages(&chat, talk, 1, true, &first));
        ok(sheaf_chat_format_messages(&chat, talk, 2, false, &both));
        expect_next_turn(&chat, first);
        snprintf(joined, sizeof joined, "%sHello%s%s", first, ends[i],
                 sheaf_chat_after_answer(&chat));
        cr_expect_str_eq(joined, both);
        free(first);
        free(both);
    }
}
