/* Messages of rank 0's program to the plugin's engine: objects, their states and graphs, as bytes. The
 * first byte chooses the kind of a command, the next three its numbers; the rest is its payload. What
 * is refused must leave the engine as it was; a graph that is accepted is not run here. */
#include "fuzz.h"

#include "ggml/engine.h"

static struct gg_engine *engine;

#define COMMAND(KIND, ...)                                                                         \
    (struct gg_command) { .kind = GG_COMMAND_##KIND, __VA_ARGS__ }
static void send(struct gg_command c, const void *payload, void *result) {
    gg_engine_do(engine, &c, payload, result);
}

static void start(void) {
    setenv("SHEAF_CPU_DEVICES", "2", 1);
    setenv("SHEAF_CPU_THREADS", "1", 1);
    MUST(!gg_engine_start(&(struct gg_start){0}, &engine));
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
            if (!is_large(payload, n))
                send(COMMAND(BIND, .buffer = a % 4, .size = n), payload, NULL);
            break;
        case 1:
            send(COMMAND(SET, .object = a, .offset = c, .size = n), payload, NULL);
            break;
        case 2:
            send(COMMAND(GET, .object = a, .offset = c, .bytes = n), NULL, result);
            break;
        case 3:
            send(COMMAND(FREE, .buffer = a % 4), NULL, NULL);
            break;
        case 4:
            send(COMMAND(ASK, .n_records = a, .size = n), payload, NULL);
            break;
        default:
            send(COMMAND(DROP, .program = a), NULL, NULL);
        }
        free(payload);
        b.at += n;
        b.left -= n;
    }
    for (uint64_t i = 0; i < 4; i++) send(COMMAND(FREE, .buffer = i), NULL, NULL);
    return 0;
}
