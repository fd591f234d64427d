/* Messages of rank 0's program to the plugin's engine: objects, their states and graphs, as bytes. The
 * first byte chooses the kind of a command, the next three its numbers; the rest is its payload. What
 * is refused must leave the engine as it was; a graph that is accepted is not run here. */
#include "fuzz.h"

#include "ggml/engine.h"

static struct gg_engine *engine;

static void command(enum gg_command_kind kind, uint64_t a, uint64_t b, uint64_t c,
                    const void *payload, size_t size, void *result) {
    struct gg_command cmd = {.kind = (uint32_t)kind, .a = a, .b = b, .c = c, .size = size};
    gg_engine_do(engine, &cmd, payload, result);
}

static void start(void) {
    setenv("SHEAF_CPU_DEVICES", "2", 1);
    setenv("SHEAF_CPU_THREADS", "1", 1);
    MUST(!gg_engine_start(false, NULL, NULL, &engine));
}

/* Memory for what BIND asks for is not what is tested. */
static bool is_large(const uint8_t *data, size_t size) {
    struct gg_reader r = {data, data + size, false};
    uint64_t n = gg_take_u64(&r), bytes = 0;
    for (struct gg_object_shape s; n && n < 64; n--) {
        const uint8_t *p = gg_take(&r, sizeof s);
        if (!p) return false;
        memcpy(&s, p, sizeof s);
        uint64_t elements = 1;
        for (int k = 0; k < SHEAF_MAX_DIMS; k++)
            if (__builtin_mul_overflow(elements, s.ne[k], &elements)) return true;
        if (elements > 1 << 20 || (bytes += elements) > 1 << 20) return true;
        if (s.object >> 12 && s.object < 1 << 20) return true; /* the table ends at the highest */
    }
    return false;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static uint8_t result[1 << 16];
    struct fuzz_bytes b = {data, size};
    if (!engine) start();
    while (b.left > 4) {
        const uint8_t kind = fuzz_byte(&b) % 6, a = fuzz_byte(&b), c = fuzz_byte(&b);
        const size_t want = (size_t)fuzz_byte(&b) * 4, n = want < b.left ? want : b.left;
        uint8_t *payload = malloc(n + 1);
        MUST(payload);
        memcpy(payload, b.at, n);
        switch (kind) {
        case 0:
            if (!is_large(payload, n)) command(GG_COMMAND_BIND, a % 4, 0, 0, payload, n, NULL);
            break;
        case 1:
            command(GG_COMMAND_SET, a, c, 0, payload, n, NULL);
            break;
        case 2:
            command(GG_COMMAND_GET, a, c, n, NULL, 0, result);
            break;
        case 3:
            command(GG_COMMAND_FREE, a % 4, 0, 0, NULL, 0, NULL);
            break;
        case 4:
            command(GG_COMMAND_ASK, 0, a, 0, payload, n, NULL);
            break;
        default:
            command(GG_COMMAND_DROP, a, 0, 0, NULL, 0, NULL);
        }
        free(payload);
        b.at += n;
        b.left -= n;
    }
    for (uint64_t group = 0; group < 4; group++)
        command(GG_COMMAND_FREE, group, 0, 0, NULL, 0, NULL);
    return 0;
}
