/* The engine, on one rank: commands that it refuses; what has room on members, or lacks it; files; groups of ranks;
 * and which process is the job's program. */
#include <criterion/criterion.h>
#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#include "ggml/capacity.h"
#include "ggml/claim.h"
#include "ggml/engine.h"
#include "ggml/file.h"
#include "ggml/groups.h"

static struct gg_engine *engine;

static void start(void) {
    setenv("SHEAF_CPU_THREADS", "1", 1);
    cr_assert_eq(gg_engine_start(&(struct gg_start){0}, &engine), SHEAF_STATUS_SUCCESS);
}
static void stop(void) { gg_engine_stop(engine); }
TestSuite(ggml_engine, .init = start, .fini = stop);

/* Sends the command and frees its payload. */
static enum sheaf_status give(struct gg_command c, struct gg_bytes *b, void *result) {
    sheaf_set_error(SHEAF_STATUS_INVALID, "an older failure");
    c.size = b->n;
    const enum sheaf_status st = gg_engine_do(engine, &c, b->data, result);
    free(b->data);
    return st;
}
static enum sheaf_status just(struct gg_command c) { return give(c, &(struct gg_bytes){0}, NULL); }

static void refuses(enum sheaf_status st, const char *why) {
    cr_expect_eq(st, SHEAF_STATUS_INVALID, "%s: status %d", why, (int)st);
    cr_expect(strstr(sheaf_last_error(), why), "no '%s' in: %s", why, sheaf_last_error());
}
static void succeeds(enum sheaf_status st) {
    cr_expect_eq(st, SHEAF_STATUS_SUCCESS, "%s", sheaf_last_error());
}

static void put_shape(struct gg_bytes *b, uint64_t number, uint64_t type, uint64_t ne0) {
    const struct gg_object_shape s = {number, type, {ne0, 1, 1, 1}};
    gg_put(b, &s, sizeof s);
}
static void put_state(struct gg_bytes *b, struct sheaf_split_state *state) {
    gg_put_state(b, state);
    sheaf_split_state_free(state);
}

/* Objects of these numbers in that buffer, each of 4 numbers, on every member. */
static enum sheaf_status bind_in(uint64_t buffer, const uint64_t *numbers, uint64_t n) {
    struct gg_bytes b = {0};
    gg_put_u64(&b, n);
    for (uint64_t i = 0; i < n; i++) put_shape(&b, numbers[i], SHEAF_TYPE_F32, 4);
    for (uint64_t i = 0; i < n; i++) put_state(&b, sheaf_split_state_mirrored(1));
    return give((struct gg_command){.kind = GG_COMMAND_BIND, .buffer = buffer}, &b, NULL);
}
static enum sheaf_status bind(uint64_t number) { return bind_in(7, &number, 1); }

Test(ggml_engine, a_number_beyond_the_limit) {
    cr_expect_eq(bind((1 << 20) - 1), SHEAF_STATUS_SUCCESS, "%s", sheaf_last_error());
    cr_expect_eq(bind(1 << 20), SHEAF_STATUS_INVALID);
    cr_expect(strstr(sheaf_last_error(), "more than 1048576 weights and caches"), "%s",
              sheaf_last_error());
}

static enum sheaf_status transfer(enum gg_command_kind kind, uint64_t object, uint64_t offset,
                                  uint64_t bytes) {
    static float data[2 * GG_INLINE_BYTES];
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
    refuses(transfer(GG_COMMAND_SET, 1 << 30, 0, 2 * GG_INLINE_BYTES), "a range outside of it");
}

/* Of one object, cut off at each place, with a shape or a state that is none. */
Test(ggml_engine, objects_that_are_none) {
    const struct gg_command c = {.kind = GG_COMMAND_BIND, .buffer = 7};
    for (int i = 0; i < 6; i++) {
        static const char *const why[] = {"objects: the message is cut off",
                                          "objects: the message is cut off",
                                          "objects: a split state is malformed",
                                          "type",
                                          "ne",
                                          "object_3"};
        const int64_t three = 3;
        struct gg_bytes b = {0};
        gg_put_u64(&b, i ? 1 : (uint64_t)1 << 40);
        if (i == 3) put_shape(&b, 3, 9999, 4);
        if (i == 4) put_shape(&b, 3, SHEAF_TYPE_F32, (uint64_t)-4);
        if (i == 1) gg_put(&b, &(struct gg_object_shape){0}, sizeof(struct gg_object_shape) - 8);
        if (i == 2 || i == 5) put_shape(&b, 3, SHEAF_TYPE_F32, 4);
        if (i == 5) put_state(&b, sheaf_split_state_cut(SHEAF_SPLIT_AXIS_0, 1, &three, 1));
        if (i == 3 || i == 4) put_state(&b, sheaf_split_state_mirrored(1));
        refuses(give(c, &b, NULL), why[i]);
    }
    succeeds(bind(3));
}

Test(ggml_engine, devices_and_programs_that_are_none) {
    struct gg_command c = {.kind = GG_COMMAND_MEASURE, .device = 1};
    refuses(just(c), "command: there is no device 1");
    c = (struct gg_command){.kind = GG_COMMAND_DROP, .program = 9};
    refuses(just(c), "there is no program 9");
    c.kind = GG_COMMAND_RUN;
    refuses(just(c), "there is no program 9");
    c.kind = GG_COMMAND_FETCH;
    refuses(just(c), "there is no program 9");
}

/* ---- objects and programs that come and go ---- */

/* Program `number`: twice objects `first` and `second` together. */
static enum sheaf_status make_sum(uint64_t number, uint32_t first, uint32_t second) {
    struct gg_bytes b = {0};
    struct gg_record of_first = {.kind = GG_LEAF_OBJECT, .object = first};
    struct gg_record of_second = {.kind = GG_LEAF_OBJECT, .object = second};
    struct gg_record sum = {.kind = GG_NODE,
                            .op = SHEAF_OP_ADD,
                            .ne = {4, 1, 1, 1},
                            .nb = {4, 16, 16, 16},
                            .src = {1, 2}};
    gg_put_u64(&b, 2);
    gg_put_record(&b, &of_first);
    gg_put_record(&b, &of_second);
    gg_put_record(&b, &sum);
    return give(
        (struct gg_command){
            .kind = GG_COMMAND_GRAPH, .program = number, .n_records = 3, .n_outputs = 1},
        &b, NULL);
}
static enum sheaf_status run_with(uint64_t program, struct gg_bytes *changes, float *result) {
    void *results[] = {result};
    return give((struct gg_command){.kind = GG_COMMAND_RUN, .program = program, .with_results = 1},
                changes, results);
}
static enum sheaf_status run(uint64_t program, float *result) {
    struct gg_bytes b = {0};
    gg_put_u64(&b, 0); /* no changes */
    return run_with(program, &b, result);
}
static void fill(uint64_t object, float value) {
    struct gg_bytes b = {0};
    for (int i = 0; i < 4; i++) gg_put(&b, &value, sizeof value);
    succeeds(give((struct gg_command){.kind = GG_COMMAND_SET, .object = object}, &b, NULL));
}
static void shows_sum(uint64_t program, float want) {
    float result[4] = {0};
    succeeds(run(program, result));
    cr_expect(result[0] == want && result[3] == want, "program %d: %g, not %g", (int)program,
              (double)result[3], (double)want);
}

/* Programs go with each object that they use, first or last; others stay, as do objects bound together with it. */
Test(ggml_engine, programs_of_objects_that_go) {
    static const uint64_t together[] = {3, 5, 7},
                          alone[] = {1}; /* 7: the last that there is room for */
    const struct gg_command release = {.kind = GG_COMMAND_RELEASE, .object = 3};
    float result[4];
    succeeds(bind_in(7, together, 3));
    succeeds(bind_in(8, alone, 1));
    fill(1, 1);
    fill(3, 10);
    fill(5, 100);
    succeeds(make_sum(20, 3, 5));
    succeeds(make_sum(21, 1, 5));
    succeeds(make_sum(22, 5, 3));
    succeeds(make_sum(23, 1, 3));
    shows_sum(20, 110);
    succeeds(just(release));
    succeeds(just(release)); /* it is gone already */
    for (uint64_t i = 20; i < 24; i++) {
        if (i == 21) continue;
        char why[40];
        snprintf(why, sizeof why, "there is no program %d", (int)i);
        refuses(run(i, result), why);
    }
    shows_sum(21, 101);
    refuses(make_sum(24, 1, 3), "object");
    refuses(make_sum(24, 1, 8), "object");
    for (uint64_t i = 7; i <= 8; i++)
        succeeds(just((struct gg_command){.kind = GG_COMMAND_RELEASE, .object = i}));
    shows_sum(21, 101);
    succeeds(just((struct gg_command){.kind = GG_COMMAND_FREE, .buffer = 8}));
    refuses(run(21, result), "there is no program 21");
    succeeds(make_sum(25, 5, 5));
    shows_sum(25, 200);
}

/* A number that is used again is that of the new object, whose bytes are 0. */
Test(ggml_engine, numbers_and_buffers_that_come_back) {
    for (int i = 0; i < 3; i++) {
        static const uint64_t numbers[] = {2, 4, 6};
        succeeds(bind_in(7, numbers, 1));
        succeeds(bind_in(8, numbers + 1, 1));
        succeeds(bind_in(9, numbers + 2, 1));
        succeeds(make_sum(20, 2, 4));
        succeeds(make_sum(21, 4, 4));
        shows_sum(20, 0);
        fill(2, 1);
        fill(4, 10);
        shows_sum(20, 11);
        succeeds(just((struct gg_command){.kind = GG_COMMAND_DROP, .program = 20}));
        shows_sum(21, 20);
        for (uint64_t b = 7; b <= 9; b++)
            succeeds(just((struct gg_command){.kind = GG_COMMAND_FREE, .buffer = b}));
        refuses(transfer(GG_COMMAND_GET, 4, 0, 4), "object 4: a range outside of it");
    }
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

/* ---- graphs and changes that are none ---- */

/* Record 1 of 2: an input, and its sum with itself, in a message that says how many records and outputs it has. */
static enum sheaf_status twice(uint64_t program, uint64_t n_records, uint64_t n_outputs,
                               uint64_t output) {
    struct gg_bytes b = {0};
    struct gg_record input = {
        .kind = GG_LEAF_INPUT, .type = SHEAF_TYPE_F32, .ne = {4, 1, 1, 1}, .nb = {4, 16, 16, 16}};
    struct gg_record sum = input;
    sum.kind = GG_NODE;
    sum.op = SHEAF_OP_ADD;
    sum.src[0] = sum.src[1] = 1;
    for (uint64_t i = 0; i < n_outputs && i < 8; i++) gg_put_u64(&b, output);
    gg_put_record(&b, &input);
    gg_put_record(&b, &sum);
    return give((struct gg_command){.kind = GG_COMMAND_GRAPH,
                                    .program = program,
                                    .n_records = n_records,
                                    .n_outputs = n_outputs},
                &b, NULL);
}

Test(ggml_engine, graphs_that_are_cut_off) {
    const uint64_t all = UINT64_MAX / 8;
    refuses(twice(1, 2, all, 1), "program: the message is cut off");
    refuses(twice(1, ((uint64_t)1 << 32) + 2, 1, 1), "program: the message is cut off");
    refuses(twice(1, 2, 1, 2), "program: an output is no record");
    succeeds(twice(1, 2, 1, 1));
}

static void put_change(struct gg_bytes *b, uint64_t input, uint64_t offset, uint64_t size,
                       float value) {
    gg_put_u64(b, input);
    gg_put_u64(b, offset);
    gg_put_u64(b, size);
    for (uint64_t i = 0; i < 4 && i < size / 4; i++) gg_put(b, &value, sizeof value);
    gg_put_zeros(b);
}

/* The results of a run that fails are NaN, and the program runs again. */
Test(ggml_engine, changes_that_are_none) {
    static const struct {
        uint64_t input, offset, size;
        const char *why;
    } cases[] = {
        {1, 0, 16, "run: the message is malformed"},
        {0, 0, 64, "run: the message is malformed"},
        {0, 8, 16, "input"},
        {0, 0, UINT64_MAX, "input"}, /* filled up to a multiple of 8 it is 0 bytes */
    };
    float result[4];
    succeeds(twice(1, 2, 1, 1));
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct gg_bytes bad = {0}, good = {0};
        gg_put_u64(&bad, 2);
        put_change(&bad, cases[i].input, cases[i].offset, cases[i].size, 1);
        if (cases[i].input == 0 && cases[i].size < 64) put_change(&bad, 0, 0, 16, 3);
        result[3] = 0;
        refuses(run_with(1, &bad, result), cases[i].why);
        cr_expect(isnan(result[0]) && isnan(result[3]), "case %zu: %g", i, (double)result[3]);
        gg_put_u64(&good, 2);
        put_change(&good, 0, 0, 12, (float)i);
        put_change(&good, 0, 12, 4, 7);
        succeeds(run_with(1, &good, result));
        cr_expect(result[0] == 2 * (float)i && result[2] == 2 * (float)i && result[3] == 14,
                  "case %zu: %g, %g, %g", i, (double)result[0], (double)result[2],
                  (double)result[3]);
    }
}

/* A result is not overwritten by nodes behind its last use, and what is no number stays as it is when a run fails. */
Test(ggml_engine, results_that_stay) {
    struct gg_bytes b = {0}, good = {0}, bad = {0};
    struct gg_record node = {
        .kind = GG_LEAF_INPUT, .type = SHEAF_TYPE_F32, .ne = {4, 1, 1, 1}, .nb = {4, 16, 16, 16}};
    float first[4], last[4];
    int32_t largest = 77;
    void *results[] = {first, last, &largest};
    gg_put_u64(&b, 1);
    gg_put_u64(&b, 4);
    gg_put_u64(&b, 5);
    gg_put_record(&b, &node);
    node.kind = GG_NODE;
    node.op = SHEAF_OP_ADD;
    for (uint32_t i = 1; i <= 4; i++) {
        node.src[0] = node.src[1] = i;
        gg_put_record(&b, &node);
    }
    struct gg_record argmax = {.kind = GG_NODE,
                               .op = SHEAF_OP_ARGMAX,
                               .type = SHEAF_TYPE_I32,
                               .ne = {1, 1, 1, 1},
                               .nb = {4, 4, 4, 4},
                               .src = {5}};
    gg_put_record(&b, &argmax);
    succeeds(give((struct gg_command){.kind = GG_COMMAND_GRAPH, .n_records = 6, .n_outputs = 3}, &b,
                  NULL));
    struct gg_command c = {.kind = GG_COMMAND_RUN, .with_results = 1};
    gg_put_u64(&bad, 1);
    refuses(give(c, &bad, results), "run: the message is malformed");
    cr_expect(isnan(first[0]) && isnan(last[3]) && largest == 77, "%d", (int)largest);
    gg_put_u64(&good, 1);
    put_change(&good, 0, 0, 16, 1);
    succeeds(give(c, &good, results));
    cr_expect(first[3] == 2 && last[3] == 16 && largest == 0, "%g, %g, %d", (double)first[3],
              (double)last[3], (int)largest);
}

/* ---- weights of a file ---- */

static const float weights[12] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11};

static int make_file(char *path, uint64_t *size, uint64_t *hash) {
    const int fd = mkstemp(path);
    cr_assert(fd >= 0 && write(fd, weights, sizeof weights) == sizeof weights);
    *hash = gg_file_hash(fd, size);
    return fd;
}
static enum sheaf_status load(const char *path, uint64_t length, uint64_t size, uint64_t hash,
                              uint64_t n, const struct gg_object_place *places) {
    struct gg_bytes b = {0};
    gg_put_u64(&b, length);
    gg_put(&b, path, strlen(path));
    gg_put_u64(&b, size);
    gg_put_u64(&b, hash);
    gg_put_u64(&b, n);
    gg_put(&b, places, 2 * sizeof *places);
    return give((struct gg_command){.kind = GG_COMMAND_LOAD}, &b, NULL);
}
static void has(uint64_t object, const float *want) {
    float got[4] = {0};
    struct gg_command c = {.kind = GG_COMMAND_GET, .object = object, .bytes = sizeof got};
    succeeds(gg_engine_do(engine, &c, NULL, got));
    cr_expect(!memcmp(got, want, sizeof got), "object %d: %g ...", (int)object, (double)got[0]);
}

/* Read by this rank itself, as by each that has the file. */
Test(ggml_engine, weights_of_a_file) {
    static const uint64_t numbers[] = {3, 5, 7};
    struct gg_object_place places[] = {{5, 16}, {3, 32}};
    char path[] = "/tmp/sheaf-engine-XXXXXX", long_path[4097];
    uint64_t size = 0, hash = 0;
    close(make_file(path, &size, &hash));
    const uint64_t length = strlen(path);
    const int before = open("/dev/null", O_RDONLY);
    close(before);
    succeeds(bind_in(7, numbers, 3));
    succeeds(load(path, length, size, hash, 2, places));
    has(5, weights + 4);
    has(3, weights + 8);
    const int after = open("/dev/null", O_RDONLY);
    close(after);
    cr_expect_eq(after, before, "the file is closed");
    places[1].offset = 36;
    cr_expect_neq(load(path, length, size, hash, 2, places), SHEAF_STATUS_SUCCESS, "its end");
    refuses(load(path, length, size, hash, (uint64_t)1 << 40, places),
            "load: the message is cut off");
    refuses(load(path, length, size, hash, 3, places), "or the message is cut off");
    places[1].object = 8;
    refuses(load(path, length, size, hash, 2, places), "load: an unknown object");
    memset(long_path, 'a', sizeof long_path - 1);
    long_path[4096] = 0;
    refuses(load(long_path, 4096, size, hash, 2, places), "load: the message is cut off");
    unlink(path);
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

/* ---- the start ---- */

static char told[1024];
static void tell(const char *text) { snprintf(told, sizeof told, "%s", text); }
static enum sheaf_status find_fault(const struct gg_engine *e) {
    return sheaf_set_error(SHEAF_STATUS_INVALID, "%d fault", (int)gg_engine_n_devices(e));
}
static void does_not_start(const struct gg_start *start, const char *why) {
    struct gg_engine *e = NULL;
    told[0] = 0;
    refuses(gg_engine_start(start, &e), why);
    cr_expect(!e && strstr(told, why), "%s", told);
}

Test(ggml_start, what_is_told) {
    char text[513] = "";
    setenv("SHEAF_CPU_THREADS", "1", 1);
    memset(text, '0', sizeof text - 1);
    setenv("SHEAF_GROUPS", text, 1);
    does_not_start(&(struct gg_start){.tell = tell}, "setting SHEAF_GROUPS is too long");
}
Test(ggml_start, what_is_checked) {
    char text[512] = "";
    setenv("SHEAF_CPU_THREADS", "1", 1);
    memset(text, '0', sizeof text - 1);
    setenv("SHEAF_GROUPS", text, 1); /* rank 0 */
    does_not_start(&(struct gg_start){.tell = tell, .check = find_fault}, "1 fault");
}
Test(ggml_start, programs_that_live_on) {
    cr_expect(!gg_program_lives_on());
    setenv("SHEAF_GGML_ON_FAILURE", "exit", 1);
    cr_expect(!gg_program_lives_on());
    setenv("SHEAF_GGML_ON_FAILURE", "error", 1);
    cr_expect(gg_program_lives_on());
}

/* ---- groups of ranks ---- */

static int host_of(int rank) { return rank % 3 == 2; }
static int own_host(int rank) { return rank; }
static int one_of_64(int rank) { return rank % 64; }

Test(ggml_groups, ranks_of_each) {
    static const struct {
        const char *text;
        int n, groups, of[7];
    } cases[] = {
        {NULL, 3, 1, {0, 0, 0}},
        {"", 3, 1, {0, 0, 0}},
        {"all", 3, 1, {0, 0, 0}},
        {"0,1", 2, 2, {0, 1}},
        {"0-0,1-2", 3, 2, {0, 1, 1}},
        {"3,1-2,0", 4, 3, {2, 1, 1, 0}},
        {"0-6", 7, 1, {0}},
        {"host", 7, 2, {0, 0, 1, 0, 0, 1, 0}},
        {"00-01,2,0003", 4, 3, {0, 0, 1, 2}},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        int of[7], n = 0;
        succeeds(gg_groups_parse(cases[i].text, cases[i].n, host_of, of, &n));
        cr_expect_eq(n, cases[i].groups, "case %zu: %d groups", i, n);
        for (int r = 0; r < cases[i].n; r++)
            cr_expect_eq(of[r], cases[i].of[r], "case %zu: rank %d is in %d", i, r, of[r]);
    }
}

Test(ggml_groups, texts_that_are_none) {
    static const struct {
        const char *text, *why;
    } cases[] = {
        {"0-1,1-2", "a rank is in two groups"},
        {"0,1", "a rank is in no group"},
        {"0-3", "the job has no such ranks"},
        {"0-2,3", "the job has no such ranks"},
        {"2-0,0-2", "the job has no such ranks"},
        {"0-99999999999999999999", "the job has no such ranks"},
        {"0;1-2", "that is no list of ranges"},
        {"0-2,", "that is no list of ranges"},
        {"0-,1-2", "that is no list of ranges"},
        {"-1,0-2", "that is no list of ranges"},
        {"+0-2", "that is no list of ranges"},
        {"0--2", "that is no list of ranges"},
        {" 0-2", "that is no list of ranges"},
        {"0-1-2", "that is no list of ranges"},
        {"each", "that is no list of ranges"},
        {"All", "that is no list of ranges"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        int of[3], n;
        char why[128];
        snprintf(why, sizeof why,
                 "setting SHEAF_GROUPS is '%s': %s; it takes 'all', 'host', or ranges",
                 cases[i].text, cases[i].why);
        refuses(gg_groups_parse(cases[i].text, 3, host_of, of, &n), why);
    }
}

/* As many as there may be, and one more: the last rank then has a group, or a host, of its own. */
Test(ggml_groups, as_many_as_there_may_be) {
    enum { MOST = 64 };
    char text[MOST * 3 + 1] = "";
    for (int g = 0; g <= MOST; g++) {
        int of[MOST + 1], n = 0;
        snprintf(text + strlen(text), sizeof text - strlen(text), "%s%d", g ? "," : "", g);
        if (g == MOST) {
            refuses(gg_groups_parse(text, g + 1, own_host, of, &n),
                    "there are more than 64 groups");
            refuses(gg_groups_parse("host", g + 1, own_host, of, &n),
                    "there are more than 64 hosts");
            continue;
        }
        succeeds(gg_groups_parse(text, g + 1, own_host, of, &n));
        cr_expect(n == g + 1 && of[g] == g, "%d groups", n);
        succeeds(gg_groups_parse("host", g + 1, own_host, of, &n));
        cr_expect(n == g + 1 && of[g] == g, "%d hosts", n);
    }
    int of[MOST + 1], n = 0;
    succeeds(gg_groups_parse("host", MOST + 1, one_of_64, of, &n));
    cr_expect(n == MOST && of[MOST] == 0, "%d hosts", n);
}

/* ---- which process is the program ---- */

static void as_rank(const char *rank) {
    static const char *const names[] = {"OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK"};
    for (int i = 0; i < 3; i++) unsetenv(names[i]);
    if (rank) setenv(names[0], rank, 1);
    unsetenv("GGML_SHEAF_CLAIM");
}
static int n_open(void) {
    int n = 0;
    for (int fd = 0; fd < 1024; fd++) n += fcntl(fd, F_GETFD) >= 0;
    return n;
}

/* Without a launcher's job each process is a job of its own, and starts none whose ranks it would keep out. */
Test(ggml_claim, a_process_of_its_own) {
    as_rank(NULL);
    succeeds(gg_claim_take());
    succeeds(gg_claim_take());
    cr_expect_null(getenv("GGML_SHEAF_CLAIM"));
    const int claim = gg_claim_make();
    cr_expect_eq(gg_claim_owner(claim), 0);
    succeeds(gg_claim_take());
    cr_expect_eq(gg_claim_owner(claim), getpid());
    succeeds(gg_claim_take());
    const char *const none[] = {"nonsense", "/proc/none/fd/99", "/proc/self/fd/0"};
    for (int i = 0; i < 3; i++) {
        setenv("GGML_SHEAF_CLAIM", none[i], 1);
        succeeds(gg_claim_take());
        cr_expect(!gg_claim_has_end(), "%s", none[i]);
    }
}

/* With the claim that sheaf-worker has made, and with the program's own. Nothing stays open but that. */
Test(ggml_claim, one_process_of_a_rank) {
    for (int own = 0; own < 2; own++) {
        char why[64];
        as_rank("0");
        const int claim = own ? -1 : gg_claim_make(), before = n_open();
        succeeds(gg_claim_take());
        cr_expect_not_null(getenv("GGML_SHEAF_CLAIM"));
        if (!own) cr_expect_eq(gg_claim_owner(claim), getpid());
        snprintf(why, sizeof why, "process %ld of this rank is or was the job's program",
                 (long)getpid());
        refuses(gg_claim_take(), why);
        cr_expect(!gg_claim_has_end());
        cr_expect_eq(n_open(), before + own, "a claim stays open");
    }
}

/* Its maker is gone, and the number of that process may be another's by now: a descriptor of the same number that
 * was inherited. Of another file nothing is read or written. */
Test(ggml_claim, a_claim_whose_maker_is_gone) {
    char name[64], path[] = "/tmp/sheaf-claim-XXXXXX", text[8];
    as_rank("0");
    const int claim = gg_claim_make(), file = mkstemp(path);
    cr_expect_eq(fcntl(claim, F_GETFD), 0, "programs inherit it");
    snprintf(name, sizeof name, "/proc/%ld/fd/%d", (long)1 << 30, claim);
    setenv("GGML_SHEAF_CLAIM", name, 1);
    succeeds(gg_claim_take());
    cr_expect_eq(gg_claim_owner(claim), getpid());
    snprintf(name, sizeof name, "/proc/%ld/fd/%d", (long)getpid(), file);
    setenv("GGML_SHEAF_CLAIM", name, 1);
    refuses(gg_claim_take(), "another process of this rank is or was the job's program");
    cr_expect_eq(pread(file, text, sizeof text, 0), 0, "another file is written");
    unlink(path);
}

/* The number of the process that had it stays, and a claim that cannot be written is none. */
Test(ggml_claim, a_claim_of_another_process) {
    const struct rlimit nothing = {0, 0};
    as_rank("0");
    const int claim = gg_claim_make();
    cr_assert_eq(pwrite(claim, "1", 1, 0), 1);
    refuses(gg_claim_take(), "process 1 of this rank is or was the job's program");
    cr_expect_eq(gg_claim_owner(claim), 1);
    gg_claim_make();
    signal(SIGXFSZ, SIG_IGN);
    setrlimit(RLIMIT_FSIZE, &nothing);
    cr_expect_eq(gg_claim_take(), SHEAF_STATUS_IO);
    cr_expect(strstr(sheaf_last_error(), "cannot note that this is the job's program: File too"),
              "%s", sheaf_last_error());
}

/* A second claim, of a sheaf-worker below another one, is its own; the end is no owner, and a handler keeps errno. */
Test(ggml_claim, the_end_of_a_rank) {
    as_rank("0");
    const int first = gg_claim_make(), second = gg_claim_make();
    cr_expect(!gg_claim_has_end());
    errno = ERANGE;
    gg_claim_note_end(-1);
    cr_expect_eq(errno, ERANGE);
    gg_claim_note_end(first);
    cr_expect(!gg_claim_has_end());
    gg_claim_note_end(second);
    cr_expect(gg_claim_has_end());
    cr_expect_eq(gg_claim_owner(second), 0);
    succeeds(gg_claim_take());
    cr_expect_eq(gg_claim_owner(second), getpid());
    cr_expect_eq(gg_claim_owner(first), 0);
    cr_expect(gg_claim_has_end());
    unsetenv("GGML_SHEAF_CLAIM");
    cr_expect(!gg_claim_has_end());
}
