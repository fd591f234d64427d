/* Chat templates and messages: texts that end at zeros, in turn the template, roles, contents. */
#include "fuzz.h"

#include "sheaf/chat.h"

enum { MESSAGES = 4 };

/* Some formats leave out blanks around a content. */
static bool has_blank_end(const char *s) {
    return strchr(" \t\r\n\v\f", s[0]) || strchr(" \t\r\n\v\f", s[strlen(s) - 1]);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static const char *const roles[] = {"system", "user", "assistant", "tool"};
    static char text[1 << 16], content[MESSAGES][4096];
    struct fuzz_bytes b = {data, size};
    struct sheaf_chat chat = {.format = SHEAF_CHAT_CHATML};
    struct sheaf_chat_message messages[MESSAGES];
    const uint8_t how = fuzz_byte(&b);
    if (sheaf_chat_from_template(fuzz_text(&b, text, sizeof text), &chat))
        chat.format = (enum sheaf_chat_format)(how % SHEAF_CHAT_COUNT);
    MUST(chat.format < SHEAF_CHAT_COUNT &&
         memchr(chat.default_system, 0, sizeof chat.default_system));
    const size_t n = how / 4 % (MESSAGES + 1);
    for (size_t i = 0; i < n; i++) {
        messages[i].role = roles[i ? fuzz_byte(&b) % 4 : how / 32 % 4];
        messages[i].content = fuzz_text(&b, content[i], sizeof content[i]);
    }
    char *out = NULL;
    if (!sheaf_chat_format_messages(&chat, messages, n, how & 1, &out)) {
        MUST(out && sheaf_chat_after_answer(&chat));
        for (size_t i = 0; i < n; i++)
            MUST(strstr(out, messages[i].content) || has_blank_end(messages[i].content));
    }
    free(out);
    return 0;
}
