/* The engine, on one rank: commands that it refuses; what has room on members, or lacks it; and files. */
#include <criterion/criterion.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "ggml/capacity.h"
#include "ggml/engine.h"
#include "ggml/file.h"

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

static enum sheaf_status transfer(enum gg_command_kind kind, uint64_t object, uint64_t offset,
                                  uint64_t bytes) {
    static float data[16];
    struct gg_command c = {.kind = kind, .object = object, .offset = offset, .bytes = bytes};
    if (kind == GG_COMMAND_SET) {
        c.bytes = 0;
        c.size = bytes;
    }
    return gg_engine_do(engine, &c, data, data);
}

Test(ggml_engine, bytes_outside_of_an_object) {
    static const enum gg_command_kind kinds[] = {GG_COMMAND_SET, GG_COMMAND_FILL, GG_COMMAND_GET};
    cr_assert_eq(bind(3), SHEAF_STATUS_SUCCESS, "%s", sheaf_last_error());
    for (int i = 0; i < 3; i++) {
        cr_expect_eq(transfer(kinds[i], 3, 4, 12), SHEAF_STATUS_SUCCESS, "%s", sheaf_last_error());
        cr_expect_eq(transfer(kinds[i], 3, 4, 16), SHEAF_STATUS_INVALID, "kind %d", i);
        cr_expect_eq(transfer(kinds[i], 3, 20, 0), SHEAF_STATUS_INVALID, "kind %d", i);
        cr_expect_eq(transfer(kinds[i], 2, 0, 4), SHEAF_STATUS_INVALID, "kind %d", i);
        cr_expect(strstr(sheaf_last_error(), "object 2: a range outside of it"), "%s",
                  sheaf_last_error());
    }
}

/* A program goes with an object that it uses. */
Test(ggml_engine, programs_of_objects_that_go) {
    struct gg_bytes b = {0};
    struct gg_record object = {.kind = GG_LEAF_OBJECT, .object = 3};
    struct gg_record node = {
        .kind = GG_NODE, .op = SHEAF_OP_SQR, .ne = {4, 1, 1, 1}, .nb = {4, 16, 16, 16}, .src = {1}};
    const uint64_t no_changes = 0;
    float result[4];
    void *results[] = {result};
    cr_assert_eq(bind(3), SHEAF_STATUS_SUCCESS, "%s", sheaf_last_error());
    gg_put_u64(&b, 1);
    gg_put_record(&b, &object);
    gg_put_record(&b, &node);
    struct gg_command graph = {
        .kind = GG_COMMAND_GRAPH, .program = 5, .n_records = 2, .n_outputs = 1, .size = b.n};
    cr_assert_eq(gg_engine_do(engine, &graph, b.data, NULL), SHEAF_STATUS_SUCCESS, "%s",
                 sheaf_last_error());
    struct gg_command run = {
        .kind = GG_COMMAND_RUN, .program = 5, .with_results = 1, .size = sizeof no_changes};
    cr_expect_eq(gg_engine_do(engine, &run, &no_changes, results), SHEAF_STATUS_SUCCESS, "%s",
                 sheaf_last_error());
    struct gg_command release = {.kind = GG_COMMAND_RELEASE, .object = 3};
    cr_expect_eq(gg_engine_do(engine, &release, NULL, NULL), SHEAF_STATUS_SUCCESS);
    cr_expect_eq(gg_engine_do(engine, &run, &no_changes, results), SHEAF_STATUS_INVALID);
    cr_expect(strstr(sheaf_last_error(), "there is no program 5"), "%s", sheaf_last_error());
    free(b.data);
}

/* A graph of an input [4, 3] of F32 and of `node`, whose operand it is. */
static enum sheaf_status graph_of(struct gg_record node) {
    struct gg_bytes b = {0};
    struct gg_record input = {
        .kind = GG_LEAF_INPUT, .type = SHEAF_TYPE_F32, .ne = {4, 3, 1, 1}, .nb = {4, 16, 48, 48}};
    node.kind = GG_NODE;
    node.type = SHEAF_TYPE_F32;
    node.src[0] = 1;
    gg_put_u64(&b, 1); /* the output's record */
    gg_put_record(&b, &input);
    gg_put_record(&b, &node);
    struct gg_command c = {.kind = GG_COMMAND_GRAPH, .n_records = 2, .n_outputs = 1, .size = b.n};
    const enum sheaf_status st = gg_engine_do(engine, &c, b.data, NULL);
    free(b.data);
    return st;
}

/* The planner divides by a stride, reads an axis as an index, and looks at what a copy writes into. */
Test(ggml_engine, nodes_that_their_op_is_not_defined_for) {
    static const struct {
        struct gg_record node;
        bool good;
    } cases[] = {
        {{.op = SHEAF_OP_SQR, .ne = {4, 3, 1, 1}, .nb = {4, 16, 48, 48}}, true},
        {{.op = SHEAF_OP_SQR, .ne = {4, 2, 1, 1}, .nb = {4, 16, 32, 32}}, false},
        {{.op = SHEAF_OP_POOL_2D, .ne = {4, 3, 1, 1}, .nb = {4, 16, 48, 48}}, false},
        {{.op = SHEAF_OP_ADD, .ne = {4, 3, 1, 1}, .nb = {4, 16, 48, 48}}, false},
        {{.op = SHEAF_OP_CPY, .ne = {4, 3, 1, 1}, .nb = {4, 16, 48, 48}}, false},
        {{.op = SHEAF_OP_PERMUTE,
          .view_of = 1,
          .ne = {3, 4, 1, 1},
          .nb = {16, 4, 48, 48},
          .params = {1, 0, 2, 3}},
         true},
        {{.op = SHEAF_OP_PERMUTE,
          .view_of = 1,
          .ne = {3, 4, 1, 1},
          .nb = {16, 4, 48, 48},
          .params = {1, 0, 2, 1 << 20}},
         false},
        {{.op = SHEAF_OP_RESHAPE, .view_of = 1, .ne = {6, 2, 1, 1}, .nb = {4, 24, 48, 48}}, true},
        {{.op = SHEAF_OP_RESHAPE, .view_of = 1, .ne = {6, 1, 1, 1}, .nb = {4, 24, 24, 24}}, false},
        {{.op = SHEAF_OP_TRANSPOSE, .view_of = 1, .ne = {4, 3, 1, 1}, .nb = {4, 16, 48, 48}},
         false},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        cr_expect_eq(graph_of(cases[i].node),
                     cases[i].good ? SHEAF_STATUS_SUCCESS : SHEAF_STATUS_INVALID, "case %zu: %s", i,
                     sheaf_last_error());
        if (!cases[i].good)
            cr_expect(strstr(sheaf_last_error(), "record 1 is no node that its op is defined for"),
                      "case %zu: %s", i, sheaf_last_error());
    }
}

/* In GiB, of members on hosts 0 and 1 and on a GPU, number 2. */
Test(ggml_capacity, the_first_host_that_is_full) {
    static const struct {
        struct gg_room rooms[3];
        size_t n, room;
    } cases[] = {
        {{{1, 0, 64}}, 1, 64},
        {{{0.5, 0, 64}, {0.5, 1, 16}}, 2, 32},
        {{{0.8, 0, 64}, {0.2, 1, 16}}, 2, 80},
        {{{1, 0, 64}, {0, 1, 16}}, 2, 64},
        {{{0, 0, 64}, {1, 1, 16}}, 2, 16},
        {{{0.75, 0, 32}, {0.25, 0, 32}}, 2, 64}, /* ranks of one host */
        {{{0.25, 0, 32}, {0.25, 0, 32}, {0.5, 1, 20}}, 3, 40},
        {{{0.25, 0, 64}, {0.25, 1, 64}, {0.5, 2, 24}}, 3, 48},
        {{{1, 0, 32}, {1, 0, 32}, {1, 1, 24}}, 3, 24}, /* nothing is cut */
        {{{0, 0, 64}}, 1, 0},
        {{{0.5, 0, 0}, {0.5, 1, 16}}, 2, 0},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct gg_room rooms[3];
        memcpy(rooms, cases[i].rooms, sizeof rooms);
        for (size_t j = 0; j < cases[i].n; j++) rooms[j].bytes <<= 30;
        const size_t room = gg_capacity(rooms, cases[i].n);
        const double off = (double)room - (double)(cases[i].room << 30);
        cr_expect(off > -1024 && off < 1024, "case %zu: %zu MiB", i, room >> 20);
    }
}

/* Hosts, ranks of a host together, and a device that does not tell what it has. */
Test(ggml_capacity, what_pools_lack) {
    static const struct {
        struct gg_room rooms[3];
        size_t n;
        struct gg_lack lack; /* needs 0: none */
    } cases[] = {
        {{{64, 0, 64}}, 1, {0}},
        {{{65, 0, 64}}, 1, {0, false, 65, 64}},
        {{{9, 0, 64}, {17, 1, 16}}, 2, {1, false, 17, 16}},
        {{{40, 0, 32}, {24, 0, 32}}, 2, {0}},
        {{{40, 0, 32}, {25, 0, 32}}, 2, {0, true, 65, 64}},
        {{{0, 0, 32}, {65, 0, 32}}, 2, {1, false, 65, 64}},
        {{{9, 0, 0}, {3, 1, 4}, {3, 1, 0}}, 3, {1, true, 6, 4}},
        {{{9, 0, 8}, {9, 1, 4}}, 2, {0, false, 9, 8}},
        {{{0, 0, 8}, {9, 1, 0}}, 2, {0}},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct gg_lack lack, want = cases[i].lack;
        const bool lacks = gg_find_lack(cases[i].rooms, cases[i].n, &lack);
        cr_expect_eq(lacks, want.needs > 0, "case %zu", i);
        if (!lacks) continue;
        cr_expect(lack.member == want.member && lack.is_shared == want.is_shared &&
                      lack.needs == want.needs && lack.has == want.has,
                  "case %zu: %zu, %d, %zu of %zu", i, lack.member, lack.is_shared, lack.needs,
                  lack.has);
    }
}

/* A server loads many files, of which ranks may have others. */
Test(ggml_file, one_that_differs_is_closed) {
    const int before = open("/dev/null", O_RDONLY);
    enum gg_file_lack lack;
    int error;
    close(before);
    cr_expect_eq(gg_file_open("/dev/null", 1, 1, &lack, &error), -1);
    cr_expect_eq(lack, GG_FILE_NOT_REGULAR);
    cr_expect_eq(open("/dev/null", O_RDONLY), before);
}
