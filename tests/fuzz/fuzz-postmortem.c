/* Dumps of flight recorders: up to three texts, which end at zeros, read together. Files, folders and
 * what is no regular file are test-drill's. */
#include "fuzz.h"

#include "info/postmortem.c"

enum { FILES = 3 };

static void start(void) {
    MUST(freopen("/dev/null", "w", stdout)); /* only its making is tested */
    setvbuf(stdout, NULL, _IOFBF, 1 << 16);
}

static bool add(struct dumps *all, const uint8_t *data, size_t n) {
    FILE *f = n ? fmemopen((void *)(uintptr_t)data, n, "r") : NULL;
    struct dump *d = next_dump(all);
    MUST((f || !n) && d);
    const bool right = !read_dump(f, "a.flight", d);
    if (f) fclose(f);
    all->n += right;
    return right;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static bool started;
    struct dumps all = {0};
    bool right = true;
    if (!started) start();
    started = true;
    for (int n = 0; n < FILES && size && right; n++) {
        const uint8_t *end = memchr(data, 0, size);
        const size_t len = end ? (size_t)(end - data) : size;
        right = add(&all, data, len);
        data += end ? len + 1 : len;
        size -= end ? len + 1 : len;
    }
    if (right && !line_up(&all, "dumps")) print_all(&all);
    release(&all);
    return 0;
}
