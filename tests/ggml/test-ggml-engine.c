/* The engine, on one rank: commands that it refuses. */
#include <criterion/criterion.h>
#include <stdlib.h>
#include <string.h>

#include "ggml/engine.h"

static struct gg_engine *engine;

static void start(void) {
    setenv("SHEAF_CPU_THREADS", "1", 1);
    cr_assert_eq(gg_engine_start(&(struct gg_start){0}, &engine), SHEAF_STATUS_SUCCESS);
}
static void stop(void) { gg_engine_stop(engine); }
TestSuite(ggml_engine, .init = start, .fini = stop);

/* One object of that number, on every member. */
static enum sheaf_status bind(uint64_t number) {
    struct gg_bytes b = {0};
    const struct gg_object_shape s = {number, SHEAF_TYPE_F32, {4, 1, 1, 1}};
    struct sheaf_split_state *state = sheaf_split_state_mirrored(1);
    gg_put_u64(&b, 1);
    gg_put(&b, &s, sizeof s);
    gg_put_state(&b, state);
    struct gg_command c = {.kind = GG_COMMAND_BIND, .buffer = 7, .size = b.n};
    sheaf_set_error(SHEAF_STATUS_INVALID, "an older failure");
    const enum sheaf_status st = gg_engine_do(engine, &c, b.data, NULL);
    sheaf_split_state_free(state);
    free(b.data);
    return st;
}

Test(ggml_engine, a_number_beyond_the_limit) {
    cr_expect_eq(bind((1 << 20) - 1), SHEAF_STATUS_SUCCESS, "%s", sheaf_last_error());
    cr_expect_eq(bind(1 << 20), SHEAF_STATUS_INVALID);
    cr_expect(strstr(sheaf_last_error(), "more than 1048576 weights and caches"), "%s",
              sheaf_last_error());
}
