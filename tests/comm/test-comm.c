/* Groups and collectives: values and bits on threads of one process and on ranks, over both
 * transports; and what happens when a member dies, stops, comes late, or does something else. */
#include <criterion/criterion.h>
#include <dirent.h>
#include <errno.h>
#include <pthread.h>
#include <sys/mman.h>

#include "comm-check.h"
#include "comm/collectives/collectives.h"
#include "comm/transport/pending.h"
#include "mpirun.h"
#include "sanitizer.h"

/* ---- members are threads of this process ---- */

static void *gather_thread(void *arg) {
    size_t bytes[2] = {4, 4};
    char own[4] = {0}, all[8];
    usleep(400000);
    sheaf_comm_all_gather(arg, 1, own, all, bytes, NULL);
    return NULL;
}

/* What member 0 has to start for it. */
static struct sheaf_comm_call gather_call(void) {
    static size_t bytes[2] = {4, 4};
    static char own[4], all[8];
    return (struct sheaf_comm_call){.size = sizeof(struct sheaf_comm_call),
                                    .kind = SHEAF_COMM_ALL_GATHER,
                                    .send = own,
                                    .recv = all,
                                    .sizes = bytes};
}

static void *check_thread(void *arg) {
    if (!check_member(arg)) sheaf_world_abort("wrong values"); /* others need not wait */
    return NULL;
}

static void check_threads(int n, size_t slot, size_t largest, bool starts) {
    int ranks[CHECK_MAX_MEMBERS] = {0};
    struct sheaf_comm_params params = {.size = sizeof params, .slot_bytes = slot};
    struct sheaf_comm *comm;
    struct check c[CHECK_MAX_MEMBERS] = {0};
    pthread_t threads[CHECK_MAX_MEMBERS];
    cr_assert_eq(sheaf_comm_new(ranks, n, &params, &comm), SHEAF_STATUS_SUCCESS, "%s",
                 sheaf_last_error());
    cr_assert_eq(sheaf_comm_n_members(comm), n);
    cr_assert_eq(sheaf_comm_n_local(comm), n);
    for (int i = 0; i < n; i++) {
        c[i] =
            (struct check){.comm = comm, .member = i, .n = n, .largest = largest, .starts = starts};
        cr_assert_eq(sheaf_comm_local_member(comm, i), i);
        cr_assert_eq(pthread_create(&threads[i], NULL, check_thread, &c[i]), 0);
    }
    for (int i = 0; i < n; i++) pthread_join(threads[i], NULL);
    for (int i = 0; i < n; i++) {
        cr_assert_str_empty(c[i].error, "%d members, slot %zu: %s", n, slot, c[i].error);
        cr_assert_eq(c[i].hash, c[0].hash, "%d members, slot %zu: results differ", n, slot);
    }
    sheaf_comm_free(comm);
}

Test(comm, threads_one_to_eight) {
    for (int n = 1; n <= 8; n++) check_threads(n, 0, 16411, false);
}
Test(comm, threads_large) {
    check_threads(2, 0, 1048576, false), check_threads(3, 0, 300007, false);
}
Test(comm, threads_small_slots) {
    check_threads(2, 4096, 16411, false), check_threads(5, 4096, 16411, false);
}
Test(comm, threads_that_start_collectives) {
    for (int n = 1; n <= 3; n++) check_threads(n, 0, 70001, true);
}

/* Each has room for a line of each other in its slot, also where the slots asked for are shorter. */
enum { MANY = 40, EACH = 7, MANY_FLOATS = 3000 };
static struct sheaf_comm *of_many;
static void *one_of_many(void *member) {
    const int me = *(int *)member;
    float *x = malloc(MANY_FLOATS * sizeof *x), part[EACH + MANY];
    size_t counts[MANY], n = 0, at = 0;
    for (int m = 0; m < MANY; m++) {
        counts[m] = (size_t)(EACH + m);
        if (m < me) at += counts[m];
        n += counts[m];
    }
    for (size_t i = 0; i < MANY_FLOATS; i++) x[i] = (float)(me + (int)i);
    bool ok = !sheaf_comm_reduce_scatter(of_many, me, x, part, counts, NULL);
    for (size_t i = 0; i < counts[me] && ok; i++)
        ok = part[i] == (float)(MANY * (MANY - 1) / 2 + MANY * (int)(at + i));
    ok = ok && n <= MANY_FLOATS && !sheaf_comm_all_reduce(of_many, me, x, MANY_FLOATS, NULL);
    for (int i = 0; i < MANY_FLOATS && ok; i++)
        ok = x[i] == (float)(MANY * (MANY - 1) / 2 + MANY * i);
    if (!ok) sheaf_world_abort("a member has wrong values");
    free(x);
    return ok ? NULL : member;
}
Test(comm, threads_of_many_members) {
    int ranks[MANY] = {0}, members[MANY];
    const struct sheaf_comm_params params = {.size = sizeof params, .slot_bytes = 4096};
    pthread_t threads[MANY];
    void *bad;
    cr_assert_eq(sheaf_comm_new(ranks, MANY, &params, &of_many), SHEAF_STATUS_SUCCESS, "%s",
                 sheaf_last_error());
    for (int i = 0; i < MANY; i++) {
        members[i] = i;
        cr_assert_eq(pthread_create(&threads[i], NULL, one_of_many, &members[i]), 0);
    }
    for (int i = 0; i < MANY; i++) {
        pthread_join(threads[i], &bad);
        cr_expect_null(bad, "member %d", i);
    }
    sheaf_comm_free(of_many);
}

Test(comm, runs_refuse_bad_calls) {
    struct sheaf_comm *comm;
    float x[4] = {0};
    size_t sizes[] = {SIZE_MAX, SIZE_MAX};
    struct sheaf_comm_call call = {.kind = SHEAF_COMM_ALL_REDUCE, .recv = x, .n = 4};
    cr_assert_eq(sheaf_comm_new((int[]){0}, 1, NULL, &comm), SHEAF_STATUS_SUCCESS);
    cr_assert_eq(sheaf_comm_run(comm, 0, &call), SHEAF_STATUS_INVALID); /* without its size */
    call.size = sizeof call;
    cr_assert_eq(sheaf_comm_run(comm, 0, &call), SHEAF_STATUS_SUCCESS);
    cr_assert_eq(sheaf_comm_run(comm, 1, &call), SHEAF_STATUS_INVALID);
    call.kind = SHEAF_COMM_KIND_COUNT;
    cr_assert_eq(sheaf_comm_run(comm, 0, &call), SHEAF_STATUS_INVALID);
    cr_assert_not_null(strstr(sheaf_last_error(), "a kind below"), "%s", sheaf_last_error());
    for (int k = SHEAF_COMM_ALL_GATHER; k <= SHEAF_COMM_REDUCE_SCATTER; k++) {
        call.kind = (enum sheaf_comm_kind)k;
        call.sizes = NULL;
        cr_assert_eq(sheaf_comm_run(comm, 0, &call), SHEAF_STATUS_INVALID);
        cr_assert_not_null(strstr(sheaf_last_error(), "missing"), "%s", sheaf_last_error());
    }
    call.sizes = sizes;
    cr_assert_eq(sheaf_comm_run(comm, 0, &call), SHEAF_STATUS_INVALID);
    cr_assert_not_null(strstr(sheaf_last_error(), "overflow"), "%s", sheaf_last_error());
    struct sheaf_comm *two; /* whose blocks fit each, but not together */
    call.kind = SHEAF_COMM_ALL_GATHER;
    cr_assert_eq(sheaf_comm_new((int[]){0, 0}, 2, NULL, &two), SHEAF_STATUS_SUCCESS);
    cr_assert_eq(sheaf_comm_run(two, 0, &call), SHEAF_STATUS_INVALID);
    cr_assert_not_null(strstr(sheaf_last_error(), "overflow"), "%s", sheaf_last_error());
    call.kind = SHEAF_COMM_REDUCE_SCATTER; /* the first does not fit, the second does */
    sizes[1] = 0;
    cr_assert_eq(sheaf_comm_run(two, 0, &call), SHEAF_STATUS_INVALID);
    cr_assert_not_null(strstr(sheaf_last_error(), "overflow"), "%s", sheaf_last_error());
    sheaf_comm_free(two);
    sizes[0] = 4;
    for (int k = 0; k < SHEAF_COMM_BARRIER; k++) { /* a scatter's data are sent, others received */
        const bool scatters = k == SHEAF_COMM_REDUCE_SCATTER;
        const struct sheaf_comm_call without = {.size = sizeof call,
                                                .kind = (enum sheaf_comm_kind)k,
                                                .send = scatters ? NULL : x,
                                                .recv = scatters ? x : NULL,
                                                .n = 4,
                                                .sizes = sizes};
        cr_expect_eq(sheaf_comm_run(comm, 0, &without), SHEAF_STATUS_INVALID);
        cr_expect_not_null(strstr(sheaf_last_error(), "the data are missing"), "%s",
                           sheaf_last_error());
    }
    call.kind = SHEAF_COMM_BROADCAST;
    cr_assert_eq(sheaf_comm_run(comm, 0, &call), SHEAF_STATUS_SUCCESS);
    for (call.root = -1; call.root < 2; call.root += 2)
        cr_assert_eq(sheaf_comm_run(comm, 0, &call), SHEAF_STATUS_INVALID);
    cr_assert_eq(
        sheaf_comm_run(comm, 0,
                       &(struct sheaf_comm_call){.size = sizeof call, .kind = SHEAF_COMM_BARRIER}),
        SHEAF_STATUS_SUCCESS);
    sheaf_comm_free(comm);
    cr_assert_not(sheaf_world_failed());
}

/* Callers of an earlier version, whose structs end earlier. */
Test(comm, structs_may_be_shorter) {
    struct sheaf_comm *comm;
    float x[4] = {0};
    uint64_t ticket;
    struct sheaf_comm_params params = {.size = offsetof(struct sheaf_comm_params, wire_type),
                                       .wire_type = (enum sheaf_type)99};
    struct sheaf_comm_call call = {.size = offsetof(struct sheaf_comm_call, root),
                                   .kind = SHEAF_COMM_BROADCAST,
                                   .recv = x,
                                   .n = sizeof x,
                                   .root = 7,
                                   .what.tensor = (const char *)1};
    cr_assert_eq(sheaf_comm_new((int[]){0}, 1, &params, &comm), SHEAF_STATUS_SUCCESS, "%s",
                 sheaf_last_error());
    cr_assert_eq(sheaf_comm_run(comm, 0, &call), SHEAF_STATUS_SUCCESS, "%s", sheaf_last_error());
    call.kind = SHEAF_COMM_ALL_REDUCE;
    call.n = 4;
    cr_assert_eq(sheaf_comm_start(comm, 0, &call, &ticket), SHEAF_STATUS_SUCCESS);
    cr_assert_eq(sheaf_comm_wait(comm, 0, ticket), SHEAF_STATUS_SUCCESS);
    sheaf_comm_free(comm);
    const size_t wrong[] = {0, sizeof params + 8};
    for (size_t i = 0; i < 2; i++) {
        params.size = wrong[i];
        cr_expect_eq(sheaf_comm_new((int[]){0}, 1, &params, &comm), SHEAF_STATUS_INVALID);
        cr_expect(strstr(sheaf_last_error(), "sheaf_comm_params: size is"), "%s",
                  sheaf_last_error());
    }
}

Test(comm, starts_refuse_bad_calls) {
    struct sheaf_comm *comm;
    float x[4] = {0};
    uint64_t ticket = 5;
    struct sheaf_comm_call call = {
        .size = sizeof call, .kind = SHEAF_COMM_ALL_REDUCE, .recv = x, .n = 4};
    cr_assert_eq(sheaf_comm_new((int[]){0}, 1, NULL, &comm), SHEAF_STATUS_SUCCESS);
    cr_assert_eq(sheaf_comm_wait(comm, 0, 1), SHEAF_STATUS_INVALID);
    cr_assert_eq(sheaf_comm_start(comm, 1, &call, &ticket), SHEAF_STATUS_INVALID);
    cr_assert_eq(ticket, 0);
    call.size = 4;
    cr_assert_eq(sheaf_comm_start(comm, 0, &call, &ticket), SHEAF_STATUS_INVALID);
    call.size = sizeof call;
    call.kind = SHEAF_COMM_BROADCAST;
    cr_assert_eq(sheaf_comm_start(comm, 0, &call, &ticket), SHEAF_STATUS_INVALID);
    cr_assert_not_null(strstr(sheaf_last_error(), "broadcast"), "%s", sheaf_last_error());
    call.kind = SHEAF_COMM_ALL_GATHER; /* without sizes */
    cr_assert_eq(sheaf_comm_start(comm, 0, &call, &ticket), SHEAF_STATUS_INVALID);
    call.kind = SHEAF_COMM_ALL_REDUCE;
    cr_assert_eq(sheaf_comm_start(comm, 0, &call, &ticket), SHEAF_STATUS_SUCCESS);
    cr_assert_eq(sheaf_comm_wait(comm, 0, ticket + 1), SHEAF_STATUS_INVALID);
    cr_assert_eq(sheaf_comm_wait(comm, 0, 0), SHEAF_STATUS_INVALID);
    cr_assert_eq(sheaf_comm_wait(comm, 0, ticket), SHEAF_STATUS_SUCCESS);
    sheaf_comm_free(comm);
    cr_assert_not(sheaf_world_failed());
}

/* The other member comes 400 ms later; this one has work for 200 ms of them. Where others load the
 * machine its thread starts some of these later. */
Test(comm, started_time_is_hidden_until_it_is_waited_for) {
    struct sheaf_comm *comm;
    struct sheaf_comm_stats s;
    pthread_t thread;
    uint64_t ticket;
    const struct sheaf_comm_call call = gather_call();
    cr_assert_eq(sheaf_comm_new((int[]){0, 0}, 2, NULL, &comm), SHEAF_STATUS_SUCCESS);
    pthread_create(&thread, NULL, gather_thread, comm);
    cr_assert_eq(sheaf_comm_start(comm, 0, &call, &ticket), SHEAF_STATUS_SUCCESS);
    usleep(200000);
    cr_assert_eq(sheaf_comm_wait(comm, 0, ticket), SHEAF_STATUS_SUCCESS);
    pthread_join(thread, NULL);
    sheaf_comm_get_stats(comm, 0, SHEAF_COMM_ALL_GATHER, &s);
    cr_assert_eq(s.count, 1);
    cr_assert_gt(s.wait_ns, 300000000u);
    cr_assert_gt(s.hidden_ns, 100000000u);
    cr_assert_lt(s.hidden_ns, s.time_ns - 20000000u);
    /* hidden waits cost nothing */
    cr_assert_eq(s.stalled_ns, s.wait_ns - s.hidden_ns);
    sheaf_comm_get_stats(comm, 1, SHEAF_COMM_ALL_GATHER, &s);
    cr_assert_eq(s.stalled_ns, s.wait_ns); /* it was not started */
    /* one that has ended when it is waited for was hidden as a whole */
    struct sheaf_comm_stats before;
    sheaf_comm_get_stats(comm, 0, SHEAF_COMM_ALL_GATHER, &before);
    pthread_create(&thread, NULL, gather_thread, comm);
    cr_assert_eq(sheaf_comm_start(comm, 0, &call, &ticket), SHEAF_STATUS_SUCCESS);
    pthread_join(thread, NULL);
    for (s = before; s.count == before.count; usleep(1000))
        sheaf_comm_get_stats(comm, 0, SHEAF_COMM_ALL_GATHER, &s);
    cr_assert_eq(sheaf_comm_wait(comm, 0, ticket), SHEAF_STATUS_SUCCESS);
    sheaf_comm_get_stats(comm, 0, SHEAF_COMM_ALL_GATHER, &s);
    cr_assert_eq(s.hidden_ns - before.hidden_ns, s.time_ns - before.time_ns);
    sheaf_comm_free(comm);
}

/* Its thread looks for memory that its member registers and gives back. */
Test(comm, registered_memory_waits_for_started_calls) {
    struct sheaf_comm *comm;
    struct sheaf_comm_stats s;
    uint64_t ticket;
    void *memory;
    const struct sheaf_comm_call call = gather_call();
    cr_assert_eq(sheaf_comm_new((int[]){0, 0}, 2, NULL, &comm), SHEAF_STATUS_SUCCESS);
    for (uint64_t i = 0; i < 2; i++) {
        pthread_t thread; /* it comes later */
        pthread_create(&thread, NULL, gather_thread, comm);
        cr_assert_eq(sheaf_comm_start(comm, 0, &call, &ticket), SHEAF_STATUS_SUCCESS);
        if (i)
            sheaf_comm_dealloc(comm, 0, memory);
        else
            cr_assert_eq(sheaf_comm_alloc(comm, 0, 0, &memory), SHEAF_STATUS_SUCCESS);
        sheaf_comm_get_stats(comm, 0, SHEAF_COMM_ALL_GATHER, &s);
        cr_expect_eq(s.count, i + 1);
        pthread_join(thread, NULL);
    }
    sheaf_comm_free(comm);
}

/* The board has the call under way, of several that were started: for messages about a late rank. */
static struct sheaf__activity seen[3];
static void *look_and_sum(void *arg) {
    float x[4] = {0};
    for (int i = 0; i < 3; i++) {
        usleep(300000);
        sheaf__read_line(0, &seen[i]);
        sheaf_comm_all_reduce(arg, 1, x, 4, &(struct sheaf_comm_what){(uint32_t)i, "x"});
    }
    return NULL;
}
Test(comm, shows_the_call_that_it_waits_for) {
    struct sheaf_comm *comm;
    pthread_t thread;
    float x[3][4] = {{0}};
    uint64_t ticket = 0;
    sheaf__board_own();
    cr_assert_eq(sheaf_comm_new((int[]){0, 0}, 2, NULL, &comm), SHEAF_STATUS_SUCCESS);
    pthread_create(&thread, NULL, look_and_sum, comm);
    for (uint32_t i = 0; i < 3; i++) {
        const struct sheaf_comm_call call = {.size = sizeof call,
                                             .kind = SHEAF_COMM_ALL_REDUCE,
                                             .recv = x[i],
                                             .n = 4,
                                             .what = {i, "x"}};
        cr_assert_eq(sheaf_comm_start(comm, 0, &call, &ticket), SHEAF_STATUS_SUCCESS);
        if (i) cr_assert_eq(sheaf_comm_wait(comm, 0, ticket), SHEAF_STATUS_SUCCESS);
    }
    pthread_join(thread, NULL);
    for (uint32_t i = 0; i < 3; i++) {
        const struct sheaf__activity *a = &seen[i];
        cr_expect(a->phase == SHEAF_PHASE_COLLECTIVE && a->kind == SHEAF_COMM_ALL_REDUCE &&
                      a->node == i && a->bytes == 16 && a->sequence == i + 1 &&
                      !strcmp(a->name, "x"),
                  "call %u: phase %d, node %u, %zu bytes, collective %zu", i, (int)a->phase,
                  a->node, (size_t)a->bytes, (size_t)a->sequence);
    }
    sheaf__read_line(0, &seen[0]);
    cr_expect_eq(seen[0].phase, SHEAF_PHASE_IDLE);
    struct sheaf_comm_stats s; /* the second was waited for before it began */
    sheaf_comm_get_stats(comm, 0, SHEAF_COMM_ALL_REDUCE, &s);
    cr_expect_leq(s.hidden_ns, s.time_ns);
    /* there is no wait for what has ended */
    sheaf_world_enter(SHEAF_PHASE_PLAN, "next");
    cr_expect_eq(sheaf_comm_wait(comm, 0, ticket), SHEAF_STATUS_SUCCESS);
    cr_expect_eq(sheaf__phase(), SHEAF_PHASE_PLAN);
    sheaf_comm_free(comm);
}
Test(comm, shows_the_started_call_that_failed) {
    struct sheaf_comm_params params = {.size = sizeof params, .timeout_ms = 100};
    struct sheaf_comm *comm;
    float x[2][4] = {{0}};
    uint64_t ticket = 0;
    char name[] = "x";
    struct sheaf_comm_call call = {
        .size = sizeof call, .kind = SHEAF_COMM_ALL_REDUCE, .n = 4, .what = {7, name}};
    sheaf__board_own();
    cr_assert_eq(sheaf_comm_new((int[]){0, 0}, 2, &params, &comm), SHEAF_STATUS_SUCCESS);
    for (uint32_t i = 0; i < 2; i++, call.what.node++) {
        call.recv = x[i];
        cr_assert_eq(sheaf_comm_start(comm, 0, &call, &ticket), SHEAF_STATUS_SUCCESS);
    }
    name[0] = 'y'; /* the caller's again */
    cr_expect_eq(sheaf_comm_wait(comm, 0, ticket), SHEAF_STATUS_TIMEOUT);
    const char *text = sheaf_last_error();
    cr_expect(strstr(text, "all_reduce 'x' (node 7") == text, "%s", text);
    cr_expect_eq(sheaf_comm_start(comm, 0, &call, &ticket), SHEAF_STATUS_TIMEOUT);
    sheaf__read_line(0, &seen[0]);
    cr_expect(seen[0].phase == SHEAF_PHASE_COLLECTIVE && seen[0].node == 7, "phase %d, node %u",
              (int)seen[0].phase, seen[0].node);
    sheaf_comm_free(comm);
}

/* A group that ends makes what was started, first. */
Test(comm, started_calls_end_with_their_group) {
    enum { CALLS = SHEAF__PENDING, BYTES = 1 << 20 };
    struct sheaf_comm *comm;
    size_t bytes = BYTES;
    uint64_t ticket;
    char *send = calloc(1, BYTES), *all = calloc(CALLS, BYTES);
    cr_assert(send && all);
    send[BYTES - 1] = 1;
    cr_assert_eq(sheaf_comm_new((int[]){0}, 1, NULL, &comm), SHEAF_STATUS_SUCCESS);
    for (size_t i = 0; i < CALLS; i++) {
        const struct sheaf_comm_call call = {.size = sizeof call,
                                             .kind = SHEAF_COMM_ALL_GATHER,
                                             .send = send,
                                             .recv = all + i * BYTES,
                                             .sizes = &bytes};
        cr_assert_eq(sheaf_comm_start(comm, 0, &call, &ticket), SHEAF_STATUS_SUCCESS);
    }
    sheaf_comm_free(comm);
    for (size_t i = 1; i <= CALLS; i++) cr_expect_eq(all[i * BYTES - 1], 1, "call %zu", i);
    free(send);
    free(all);
}

Test(comm, describes_itself) {
    struct sheaf_comm *comm;
    cr_assert_eq(sheaf_comm_new((int[]){0}, 1, NULL, &comm), SHEAF_STATUS_SUCCESS);
    cr_assert_str_eq(sheaf_comm_describe(comm), "self");
    cr_assert_eq(sheaf_comm_local_member(comm, 1), -1);
    cr_assert_eq(sheaf_comm_local_member(comm, -1), -1);
    sheaf_comm_free(comm);
    const struct sheaf_comm_params params = {.size = sizeof params, .slot_bytes = 5000};
    cr_assert_eq(sheaf_comm_new((int[]){0, 0}, 2, &params, &comm), SHEAF_STATUS_SUCCESS);
    cr_assert_str_eq(sheaf_comm_describe(comm), "shm(2)");
    cr_assert_eq(comm->slot_bytes, 5120, "slots are of whole lines");
    sheaf_comm_free(comm);
    sheaf_comm_free(NULL);
}

Test(comm, refuses_bad_lists) {
    static int too_many[4097];
    struct sheaf_comm *none;
    cr_assert_eq(sheaf_comm_new(too_many, 4097, NULL, &none), SHEAF_STATUS_INVALID);
    cr_assert_not_null(strstr(sheaf_last_error(), "4097 members"), "%s", sheaf_last_error());
    static const struct {
        int ranks[3], n;
        size_t slot;
        const char *text;
    } cases[] = {
        {{0}, 0, 0, "0 members"},
        {{0, 1}, 2, 0, "rank 1, but there are 1 ranks"},
        {{-1}, 1, 0, "rank -1"},
        {{0}, 1, 100, "slots of 100 bytes"},
        {{0}, 1, (size_t)1 << 40, "slots of"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct sheaf_comm_params params = {.size = sizeof params, .slot_bytes = cases[i].slot};
        struct sheaf_comm *comm = (void *)1;
        cr_assert_eq(sheaf_comm_new(cases[i].ranks, cases[i].n, &params, &comm),
                     SHEAF_STATUS_INVALID);
        cr_assert_null(comm);
        cr_assert_not_null(strstr(sheaf_last_error(), cases[i].text), "%s", sheaf_last_error());
    }
    cr_assert_not(sheaf_world_failed());
}

Test(comm, refuses_bad_calls) {
    struct sheaf_comm *comm;
    float x = 0;
    cr_assert_eq(sheaf_comm_new((int[]){0}, 1, NULL, &comm), SHEAF_STATUS_SUCCESS);
    cr_assert_eq(sheaf_comm_all_reduce(comm, 1, &x, 1, NULL), SHEAF_STATUS_INVALID);
    cr_assert_eq(sheaf_comm_all_reduce(comm, -1, &x, 1, NULL), SHEAF_STATUS_INVALID);
    cr_assert_eq(sheaf_comm_all_reduce(comm, 0, &x, SIZE_MAX, NULL), SHEAF_STATUS_INVALID);
    cr_assert_eq(sheaf_comm_broadcast(comm, 0, &x, 4, 1, NULL), SHEAF_STATUS_INVALID);
    cr_assert_eq(sheaf_comm_reduce_scatter(comm, 0, &x, &x, (size_t[]){SIZE_MAX}, NULL),
                 SHEAF_STATUS_INVALID);
    cr_assert_eq(sheaf_comm_all_reduce(NULL, 0, &x, 1, NULL), SHEAF_STATUS_INVALID);
    cr_assert_eq(sheaf_comm_all_reduce(comm, 0, &x, 1, NULL), SHEAF_STATUS_SUCCESS);
    sheaf_comm_free(comm);
}

static void *barrier_thread(void *arg) {
    usleep(100000);
    sheaf_comm_barrier(arg, 1, NULL);
    return NULL;
}

Test(comm, counts_and_waits) {
    struct sheaf_comm *comm;
    struct sheaf_comm_stats s;
    pthread_t thread;
    float x[100] = {0};
    cr_assert_eq(sheaf_comm_new((int[]){0, 0}, 2, NULL, &comm), SHEAF_STATUS_SUCCESS);
    pthread_create(&thread, NULL, barrier_thread, comm);
    cr_assert_eq(sheaf_comm_barrier(comm, 0, NULL), SHEAF_STATUS_SUCCESS);
    pthread_join(thread, NULL);
    sheaf_comm_get_stats(comm, 0, SHEAF_COMM_BARRIER, &s);
    cr_assert_eq(s.count, 1);
    cr_assert_gt(s.wait_ns, 80000000u); /* the other came 100 ms later */
    cr_assert_geq(s.time_ns, s.wait_ns);
    sheaf_comm_get_stats(comm, 1, SHEAF_COMM_BARRIER, &s);
    cr_assert_lt(s.wait_ns, 80000000u);
    sheaf_comm_free(comm);

    cr_assert_eq(sheaf_comm_new((int[]){0}, 1, NULL, &comm), SHEAF_STATUS_SUCCESS);
    sheaf__board_own();
    for (int i = 0; i < 3; i++) sheaf_comm_all_reduce(comm, 0, x, 100, NULL);
    sheaf_comm_get_stats(comm, 0, SHEAF_COMM_ALL_REDUCE, &s);
    cr_assert_eq(s.count, 3);
    cr_assert_eq(s.bytes, 1200);
    cr_assert_lt(s.time_ns, 60000000000u); /* it has a start */
    cr_assert_eq(sheaf__phase(), SHEAF_PHASE_IDLE);
    sheaf_comm_get_stats(comm, 0, (enum sheaf_comm_kind)1000000, &s);
    cr_assert_eq(s.count, 0);
    sheaf_comm_free(comm);
}

/* A gather's member brings its own block; a sum, a scatter and a broadcast are about all bytes. */
static void *bring_bytes(void *arg) {
    struct sheaf_comm *comm = arg;
    float x[3] = {0}, y[3];
    sheaf_comm_all_gather(comm, 1, x, y, (size_t[]){8, 4}, NULL);
    sheaf_comm_reduce_scatter(comm, 1, x, y, (size_t[]){2, 1}, NULL);
    return NULL;
}
Test(comm, counts_the_bytes_of_each_kind) {
    struct sheaf_comm *comm;
    struct sheaf_comm_stats s;
    pthread_t thread;
    float x[3] = {0}, y[3];
    cr_assert_eq(sheaf_comm_new((int[]){0, 0}, 2, NULL, &comm), SHEAF_STATUS_SUCCESS);
    pthread_create(&thread, NULL, bring_bytes, comm);
    cr_assert_eq(sheaf_comm_all_gather(comm, 0, x, y, (size_t[]){8, 4}, NULL),
                 SHEAF_STATUS_SUCCESS);
    cr_assert_eq(sheaf_comm_reduce_scatter(comm, 0, x, y, (size_t[]){2, 1}, NULL),
                 SHEAF_STATUS_SUCCESS);
    pthread_join(thread, NULL);
    for (int m = 0; m < 2; m++) {
        sheaf_comm_get_stats(comm, m, SHEAF_COMM_ALL_GATHER, &s);
        cr_expect_eq(s.bytes, m ? 4 : 8);
        sheaf_comm_get_stats(comm, m, SHEAF_COMM_REDUCE_SCATTER, &s);
        cr_expect_eq(s.bytes, 12);
    }
    sheaf_comm_free(comm);
}

/* Data lie in registered memory from the first byte to the last, or count as any others. */
Test(comm, finds_data_in_registered_memory) {
    enum { BYTES = 8192 };
    struct sheaf_comm *comm;
    char *memory[SHEAF__REGIONS];
    void *one_more;
    const struct sheaf_comm_call none = {.size = sizeof none, .kind = SHEAF_COMM_BARRIER};
    cr_assert_eq(sheaf_comm_new((int[]){0, 0}, 2, NULL, &comm), SHEAF_STATUS_SUCCESS);
    for (int i = 0; i < SHEAF__REGIONS; i++) {
        void *p;
        cr_assert_eq(sheaf_comm_alloc(comm, 0, i == 1 ? BYTES : 1, &p), SHEAF_STATUS_SUCCESS);
        memory[i] = p;
    }
    cr_expect_eq(sheaf_comm_alloc(comm, 0, 1, &one_more), SHEAF_STATUS_UNSUPPORTED);
    cr_expect_null(one_more);
    cr_expect_not_null(strstr(sheaf_last_error(), "16 registered buffers"), "%s",
                       sheaf_last_error());
    const struct {
        const char *data;
        size_t bytes, region, offset;
    } cases[] = {{memory[1], BYTES, 2, 0},
                 {memory[1] + 8, BYTES - 8, 2, 8},
                 {memory[1] + 8, BYTES - 7, 0, 0},
                 {memory[1] + 8, SIZE_MAX, 0, 0},
                 {(const char *)&comm, 4, 0, 0}};
    struct sheaf__call c;
    cr_assert_eq(sheaf__begin_call(&c, comm, 0, &none, 0), SHEAF_STATUS_SUCCESS);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        c.region = c.offset = 0;
        sheaf__find_region(&c, cases[i].data, cases[i].bytes);
        cr_expect(c.region == cases[i].region && c.offset == cases[i].offset,
                  "case %zu: region %zu, byte %zu", i, (size_t)c.region, (size_t)c.offset);
    }
    /* what its owner has given back is not found, and refused where a cell names it */
    sheaf_comm_dealloc(comm, 0, memory[1]);
    c.region = 0;
    sheaf__find_region(&c, memory[1], 4);
    cr_expect_eq(c.region, 0);
    struct sheaf__call other;
    cr_assert_eq(sheaf__begin_call(&other, comm, 1, &none, 0), SHEAF_STATUS_SUCCESS);
    comm->cells[0].line[0].region = 2;
    cr_expect_null(sheaf__data_of(&other, 0, 0, 4));
    cr_expect(strstr(sheaf_last_error(), "names region 2 of 16"), "%s", sheaf_last_error());
    sheaf_comm_free(comm);
}
/* As wire types are asked for: by params, or by the setting where they leave it open. */
Test(comm, sums_travel_as_they_are_told_to) {
    static const enum sheaf_type types[] = {SHEAF_TYPE_F32, SHEAF_TYPE_BF16, SHEAF_TYPE_Q8_0};
    struct sheaf_comm_params params = {.size = sizeof params};
    struct sheaf_comm_level level;
    struct sheaf_comm *comm;
    for (int set = 0; set < 2; set++) {
        if (set) setenv("SHEAF_COMM_WIRE", "q8_0", 1);
        for (size_t i = 0; i < sizeof types / sizeof *types; i++) {
            params.wire_type = types[i];
            cr_assert_eq(sheaf_comm_new((int[]){0}, 1, &params, &comm), SHEAF_STATUS_SUCCESS);
            sheaf_comm_get_level(comm, SHEAF_COMM_LEVEL_HOSTS, &level);
            cr_expect_eq(level.wire_type, set && !i ? SHEAF_TYPE_Q8_0 : types[i]);
            sheaf_comm_free(comm);
        }
    }
    params.wire_type = SHEAF_TYPE_F16;
    cr_expect_eq(sheaf_comm_new((int[]){0}, 1, &params, &comm), SHEAF_STATUS_INVALID);
    cr_expect(strstr(sheaf_last_error(), "sums cannot travel as f16"), "%s", sheaf_last_error());
}

/* Sums of any length, to the last byte and no further. */
Test(comm, codecs_keep_to_their_bytes) {
    static const enum sheaf_type types[] = {SHEAF_TYPE_F32, SHEAF_TYPE_BF16, SHEAF_TYPE_Q8_0};
    enum { MOST = 65, BEHIND = 64 };
    float x[MOST], y[MOST + 1];
    uint8_t coded[MOST * sizeof *x + BEHIND];
    for (size_t i = 0; i < MOST; i++) x[i] = (float)i; /* bf16 has them, q8_0 nearly */
    for (size_t t = 0; t < sizeof types / sizeof *types; t++)
        for (size_t n = 0; n <= MOST; n++) {
            const size_t bytes = sheaf__codec_bytes(types[t], n);
            memset(coded, 90, sizeof coded);
            y[n] = 42;
            sheaf__codec_encode(types[t], x, coded, n);
            for (size_t i = bytes; i < sizeof coded; i++) cr_assert_eq(coded[i], 90, "%zu", n);
            sheaf__codec_decode(types[t], coded, y, n);
            cr_assert_eq(y[n], 42, "%zu", n);
            for (size_t i = 0; i < n; i++) cr_assert_float_eq(y[i], x[i], 0.3f, "%zu", n);
        }
}

/* A piece more would be written behind the result, to memory of the group that shows no sign of it. */
Test(comm, pieces_of_all_members_fit_a_result) {
    for (int n = 3; n <= MANY; n++) {
        const struct sheaf_comm comm = {.n = n, .n_hosts = 2, .slot_bytes = 8192};
        cr_expect_leq((size_t)n * sheaf__gather_chunk(&comm, false), comm.slot_bytes, "%d", n);
    }
}
/* From turns as a measurement leaves them that one member gave up before the other came. */
Test(comm, measures_again_behind_a_measurement_that_timed_out, .timeout = 60) {
    struct sheaf_comm *comm;
    struct sheaf_comm_level level = {0};
    bool whole = false;
    cr_assert_eq(sheaf_comm_new((int[]){0, 0}, 2, NULL, &comm), SHEAF_STATUS_SUCCESS);
    comm->n_measured = 1;
    comm->probe->turn[0] = 7;
    comm->probe->turn[1] = 3;
    for (int i = 0; i < 20 && !whole; i++) { /* the machine may stop for a while */
        cr_assert_eq(sheaf_comm_measure(comm), SHEAF_STATUS_SUCCESS);
        /* of 30 turns, none of them taken before */
        whole = comm->probe->turn[0] == 30 * comm->n_measured &&
                comm->probe->turn[1] == 30 * comm->n_measured;
    }
    cr_expect(whole, "turns %d and %d", (int)comm->probe->turn[0], (int)comm->probe->turn[1]);
    sheaf_comm_get_level(comm, SHEAF_COMM_LEVEL_SHARED, &level);
    cr_expect(level.link.latency_ns > 0 && level.link.byte_ps > 0);
    sheaf_comm_free(comm);
}

Test(comm, has_no_memory_without_end) {
    struct sheaf_comm *comm;
    void *p = &comm;
    cr_assert_eq(sheaf_comm_new((int[]){0}, 1, NULL, &comm), SHEAF_STATUS_SUCCESS);
    cr_expect_eq(sheaf_comm_alloc(comm, 0, SIZE_MAX, &p), SHEAF_STATUS_INVALID);
    cr_expect_null(p);
    cr_expect_eq(sheaf_comm_alloc(comm, 1, 1, &p), SHEAF_STATUS_INVALID);
    sheaf_comm_free(comm);
}

/* Cells are memory that other processes write. */
Test(comm, cells_name_no_memory_that_there_is_not) {
    enum { BYTES = 8192 };
    static const struct {
        uint64_t region, offset;
        const char *want;
    } cases[] = {
        {SHEAF__REGIONS + 1, 0, "names region 17 of 16"},
        {2, 0, "names region 2 of 16"},
        {1, BYTES + 1, "names byte 8193 of 8192"},
        {1, BYTES - 8, "names byte 8184 of 8192"},
    };
    float x[4] = {0};
    const struct sheaf_comm_call sum = {
        .size = sizeof sum, .kind = SHEAF_COMM_ALL_REDUCE, .recv = x, .n = 4};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct sheaf_comm *comm;
        struct sheaf__call c;
        void *memory;
        cr_assert_eq(sheaf_comm_new((int[]){0, 0}, 2, NULL, &comm), SHEAF_STATUS_SUCCESS);
        cr_assert_eq(sheaf_comm_alloc(comm, 1, BYTES, &memory), SHEAF_STATUS_SUCCESS);
        cr_assert_eq(sheaf__begin_call(&c, comm, 0, &sum, sizeof x), SHEAF_STATUS_SUCCESS);
        comm->cells[1].line[0].region = cases[i].region;
        comm->cells[1].line[0].offset = cases[i].offset;
        cr_expect_null(sheaf__data_of(&c, 1, 0, sizeof x), "case %zu", i);
        cr_expect(sheaf_world_failed() && strstr(sheaf_last_error(), cases[i].want), "case %zu: %s",
                  i, sheaf_last_error());
        atomic_store(&sheaf__world()->failure->state, SHEAF__HEALTHY);
        const struct sheaf__sum_steps s = sheaf__sum_steps(&c, x, x, 4, NULL);
        cr_expect_neq(sheaf__sum_members(&s, 0, 4, x), SHEAF_STATUS_SUCCESS, "case %zu", i);
        cr_expect(sheaf_world_failed() && strstr(sheaf_last_error(), cases[i].want), "case %zu: %s",
                  i, sheaf_last_error());
        sheaf_comm_free(comm);
        atomic_store(&sheaf__world()->failure->state, SHEAF__HEALTHY);
    }
}

/* A group of one member: of rank 1, or of rank 2, which loads. */
Test(comm, knows_that_the_rank_of_a_member_loads) {
    enum { RANKS = 3, LOADS = 2 };
    struct sheaf__world *w = sheaf__world();
    w->size = RANKS;
    w->limit_ns[SHEAF_PHASE_LOAD] = 1000;
    struct sheaf__board *board = aligned_alloc(SHEAF__LINE, sheaf__board_bytes());
    cr_assert_not_null(board);
    memset(board, 0, sheaf__board_bytes());
    sheaf__board_place(board);
    struct sheaf__line *l = sheaf__line(LOADS);
    for (int r = 0; r < RANKS; r++) {
        const struct sheaf_comm comm = {.n = 1, .rank_of = &r};
        const struct sheaf__call c = {.comm = (struct sheaf_comm *)&comm};
        l->phase = SHEAF_PHASE_LOAD;
        l->kind = SHEAF__KIND_NONE;
        l->since_ns = 5;
        cr_expect_eq(sheaf__group_loads(&c, 1004), r == LOADS, "rank %d", r);
        cr_expect_not(sheaf__group_loads(&c, 1005), "it has had its time");
        l->kind = SHEAF__KIND_EXCHANGE; /* it waits for others itself */
        cr_expect_not(sheaf__group_loads(&c, 1004), "rank %d", r);
        l->kind = SHEAF__KIND_NONE;
        l->phase = SHEAF_PHASE_PLAN;
        cr_expect_not(sheaf__group_loads(&c, 1004), "rank %d", r);
    }
    sheaf__board_place(NULL);
    free(board);
}

/* While a rank loads the wait goes on to the next look; when it has loaded it has the limit anew, once. */
Test(comm, forgives_the_time_that_a_load_takes) {
    enum { LATE = 5, LIMIT = 1000, LOOK = 100000000 };
    struct sheaf__absence a = {0};
    cr_expect_not(sheaf__forgive_load(&a, false, LATE, LIMIT));
    cr_expect_eq(a.total, 0);
    for (uint64_t n = 1; n <= 2; n++) {
        cr_expect(sheaf__forgive_load(&a, true, LATE, LIMIT));
        cr_expect_eq(a.total, n * (LATE + LOOK));
    }
    cr_expect(sheaf__forgive_load(&a, false, LATE, LIMIT));
    cr_expect_eq(a.total, 2 * (LATE + LOOK) + LATE + LIMIT);
    cr_expect_not(sheaf__forgive_load(&a, false, LATE, LIMIT));
}

static const struct sheaf_comm_what step7 = {7, "ffn"};

Test(comm, thread_that_never_comes) {
    struct sheaf_comm_params params = {.size = sizeof params, .timeout_ms = 300};
    struct sheaf_comm *comm;
    float x[4] = {0};
    cr_assert_eq(sheaf_comm_new((int[]){0, 0}, 2, &params, &comm), SHEAF_STATUS_SUCCESS);
    const double start = run_seconds();
    cr_assert_eq(sheaf_comm_all_reduce(comm, 0, x, 4, &step7), SHEAF_STATUS_TIMEOUT);
    cr_assert_lt(run_seconds() - start, 2.0);
    const char *text = sheaf_last_error();
    cr_assert(strstr(text, "all_reduce 'ffn' (node 7") && strstr(text, "member 1 of rank 0"), "%s",
              text);
    cr_assert(sheaf_world_failed());
    struct sheaf_comm_stats s;
    sheaf_comm_get_stats(comm, 0, SHEAF_COMM_ALL_REDUCE, &s);
    cr_assert_eq(s.count, 0);
    cr_assert_eq(sheaf_comm_all_reduce(comm, 1, x, 4, NULL), SHEAF_STATUS_PEER);
    cr_assert_eq(sheaf_world_barrier("later"), SHEAF_STATUS_PEER);
    struct sheaf_comm *other;
    cr_assert_eq(sheaf_comm_new((int[]){0}, 1, NULL, &other), SHEAF_STATUS_PEER);
    cr_assert_null(other);
    sheaf_comm_free(comm);
}

/* A member may still add there when another one has returned with the failure. */
Test(comm, memory_outlives_a_failure) {
    struct sheaf_comm_params params = {.size = sizeof params, .timeout_ms = 100};
    struct sheaf_comm *comm;
    unsigned char there;
    void *memory;
    float x[4] = {0};
    cr_assert_eq(sheaf_comm_new((int[]){0, 0}, 2, &params, &comm), SHEAF_STATUS_SUCCESS);
    cr_assert_eq(sheaf_comm_alloc(comm, 0, 1, &memory), SHEAF_STATUS_SUCCESS);
    cr_assert_eq(sheaf_comm_all_reduce(comm, 0, x, 4, &step7), SHEAF_STATUS_TIMEOUT);
    sheaf_comm_dealloc(comm, 0, memory);
    cr_expect_eq(mincore(memory, 1, &there), 0, "%s", strerror(errno));
    sheaf_comm_free(comm);
    cr_expect(mincore(memory, 1, &there) && errno == ENOMEM);
}

static void *broadcast_thread(void *arg) {
    char x[4] = {0};
    return (void *)(intptr_t)sheaf_comm_broadcast(arg, 1, x, 4, 1, &step7);
}

Test(comm, threads_in_different_calls) {
    struct sheaf_comm *comm;
    pthread_t thread;
    void *theirs;
    char x[4] = {0};
    cr_assert_eq(sheaf_comm_new((int[]){0, 0}, 2, NULL, &comm), SHEAF_STATUS_SUCCESS);
    pthread_create(&thread, NULL, broadcast_thread, comm);
    cr_assert_eq(sheaf_comm_broadcast(comm, 0, x, 4, 0, &step7), SHEAF_STATUS_PEER);
    cr_assert_not_null(strstr(sheaf_last_error(), "another root"), "%s", sheaf_last_error());
    pthread_join(thread, &theirs);
    cr_assert_eq((intptr_t)theirs, SHEAF_STATUS_PEER);
    sheaf_comm_free(comm);
}

/* Calls that bring no bytes meet as all others do. */
static void *empty_sum_thread(void *arg) {
    return (void *)(intptr_t)sheaf_comm_all_reduce(arg, 1, NULL, 0, &step7);
}
Test(comm, threads_that_bring_nothing_meet) {
    struct sheaf_comm *comm;
    struct sheaf_comm_stats s;
    pthread_t thread;
    void *theirs;
    cr_assert_eq(sheaf_comm_new((int[]){0, 0}, 2, NULL, &comm), SHEAF_STATUS_SUCCESS);
    pthread_create(&thread, NULL, empty_sum_thread, comm);
    cr_assert_eq(sheaf_comm_all_reduce(comm, 0, NULL, 0, &step7), SHEAF_STATUS_SUCCESS);
    pthread_join(thread, &theirs);
    cr_assert_eq((intptr_t)theirs, SHEAF_STATUS_SUCCESS);
    sheaf_comm_get_stats(comm, 0, SHEAF_COMM_ALL_REDUCE, &s);
    cr_assert_eq(s.count, 1);
    cr_assert_lt(s.time_ns, 60000000000u); /* it has a start */
    pthread_create(&thread, NULL, empty_sum_thread, comm);
    cr_assert_eq(sheaf_comm_barrier(comm, 0, &step7), SHEAF_STATUS_PEER);
    cr_assert(strstr(sheaf_last_error(), "all_reduce") && strstr(sheaf_last_error(), "barrier"),
              "%s", sheaf_last_error());
    pthread_join(thread, &theirs);
    cr_assert_eq((intptr_t)theirs, SHEAF_STATUS_PEER);
    sheaf_comm_free(comm);
}

/* Blocks of other sizes, though of as many bytes. */
static void *other_counts_thread(void *arg) {
    char own[8] = {0}, all[12];
    return (void *)(intptr_t)sheaf_comm_all_gather(arg, 1, own, all, (size_t[]){4, 8}, &step7);
}
Test(comm, threads_with_other_counts) {
    struct sheaf_comm *comm;
    pthread_t thread;
    void *theirs;
    char own[8] = {0}, all[12];
    cr_assert_eq(sheaf_comm_new((int[]){0, 0}, 2, NULL, &comm), SHEAF_STATUS_SUCCESS);
    pthread_create(&thread, NULL, other_counts_thread, comm);
    cr_assert_eq(sheaf_comm_all_gather(comm, 0, own, all, (size_t[]){8, 4}, &step7),
                 SHEAF_STATUS_PEER);
    cr_assert_not_null(strstr(sheaf_last_error(), "other counts"), "%s", sheaf_last_error());
    pthread_join(thread, &theirs);
    cr_assert_eq((intptr_t)theirs, SHEAF_STATUS_PEER);
    sheaf_comm_free(comm);
}

/* ---- members are ranks ---- */

static char out[1 << 16];

/* All hashes of a wire type in the output; false if they differ or there are not n. */
static bool one_hash(int n, const char *type, char *hash) {
    char head[24];
    int found = 0;
    snprintf(head, sizeof head, " %s hash ", type);
    for (const char *p = out; (p = strstr(p, head)); found++) {
        p += strlen(head);
        if (found && strncmp(hash, p, 16)) return false;
        snprintf(hash, 17, "%.16s", p);
    }
    return found == n;
}

static void run_checks(const char *env, int np, const char *mode, const char *members,
                       size_t largest, const char *describe) {
    const int rc =
        run_mpirun(np, env, 120, out, sizeof out, "helper-comm %s %s %zu", mode, members, largest);
    cr_assert_eq(rc, 0, "%s np %d, members %s: status %d\n%s", env, np, members, rc, out);
    cr_assert_not_null(strstr(out, describe), "%s np %d: want %s\n%s", env, np, describe, out);
}

static void run_values(const char *env, int np, const char *members, int n, size_t largest,
                       const char *describe, char *hash) {
    run_checks(env, np, "values", members, largest, describe);
    cr_assert(one_hash(n, "f32", hash), "%s np %d, members %s: results differ\n%s", env, np,
              members, out);
}

#define SHM "SHEAF_COMM_TRANSPORT=auto"
#define MPI "SHEAF_COMM_TRANSPORT=mpi"

Test(comm_ranks, one_member_a_rank_same_bits_on_both_transports, .timeout = 300) {
    for (int np = 1; np <= 4; np += SANITIZED ? 2 : 1) {
        char shm[24], mpi[24], text[32] = "self";
        if (np > 1) snprintf(text, sizeof text, "shm(%d)", np);
        run_values(SHM, np, "1", np, 70001, text, shm);
        if (np > 1) snprintf(text, sizeof text, "mpi(%d hosts)", np);
        run_values(MPI, np, "1", np, 70001, text, mpi);
        cr_assert_str_eq(shm, mpi, "np %d: transports differ", np);
    }
}

Test(comm_ranks, several_megabytes, .timeout = 300) {
    char shm[24], mpi[24];
    run_values(MPI, 2, "1", 2, 1048576, "mpi(2 hosts)", mpi);
    run_values(SHM, 3, "1", 3, 300007, "shm(3)", shm);
    if (SANITIZED) return; /* the same bits are no question for it */
    char other[24];
    run_values(SHM, 2, "1", 2, 1048576, "shm(2)", other);
    cr_assert_str_eq(other, mpi);
    run_values(MPI, 3, "1", 3, 300007, "mpi(3 hosts)", other);
    cr_assert_str_eq(shm, other);
}

Test(comm_ranks, two_members_a_rank, .timeout = 300) {
    char hash[24], again[24];
    for (int np = 1; np <= 3; np += SANITIZED ? 2 : 1) {
        char text[32];
        snprintf(text, sizeof text, "shm(%d)", 2 * np);
        run_values(SHM, np, "2", 2 * np, 16411, text, hash);
        run_values(MPI, np, "2", 2 * np, 16411, "shm(2)", hash);
    }
    /* two hosts of two members: the same sums, whichever rank drives the members */
    run_values(MPI, 2, "2", 4, 70001, "shm(2)+mpi(2 hosts)", hash);
    run_values("SHEAF_COMM_TRANSPORT=hosts:0,0,1,1", 4, "1", 4, 70001, "shm(2)+mpi(2 hosts)",
               again);
    cr_assert_str_eq(hash, again);
}

Test(comm_ranks, hosts_with_several_ranks, .timeout = 300) {
    char hash[24], again[24];
    run_values("SHEAF_COMM_TRANSPORT=hosts:0,1,0,1", 4, "1", 4, 70001, "shm(2)+mpi(2 hosts)", hash);
    run_values("SHEAF_COMM_TRANSPORT=hosts:0,1,0,2", 4, "2,1,1,2", 6, 70001, "shm(3)+mpi(3 hosts)",
               hash);
    run_values("TEST_SLOT=4096 SHEAF_COMM_TRANSPORT=hosts:0,1,0,2", 4, "2,1,1,2", 6, 70001,
               "shm(3)+mpi(3 hosts)", again);
    cr_assert_str_eq(hash, again, "the slot size changes the bits");
}

Test(comm_ranks, ranks_without_members_and_small_slots, .timeout = 300) {
    char a[24], b[24];
    run_values(SHM, 3, "0,2,1", 3, 16411, "shm(3)", a);
    run_values(MPI, 3, "1,0,2", 3, 16411, "shm(2)+mpi(2 hosts)", b);
    run_values("TEST_SLOT=4096 " SHM, 3, "1", 3, 16411, "shm(3)", b);
    cr_assert_str_eq(a, b, "the slot size changes the bits");
    run_values("TEST_SLOT=4096 " MPI, 3, "1", 3, 16411, "mpi(3 hosts)", b);
    cr_assert_str_eq(a, b, "the slot size changes the bits");
}

Test(comm_ranks, delayed_messages, .timeout = 300) {
    char a[24], b[24];
    run_values(MPI, 2, "1", 2, 5000, "mpi(2 hosts)", a);
    run_values("SHEAF_COMM_DELAY_US=300 " MPI, 2, "1", 2, 5000, "mpi(2 hosts)", b);
    cr_assert_str_eq(a, b);
}

/* Whether data travel whole or in parts must not matter, nor which hosts add: for each wire type. */
Test(comm_ranks, wire_types_and_algorithms, .timeout = 300) {
#define FOUR "SHEAF_COMM_TRANSPORT=hosts:0,1,2,0"
    static const char *const types[] = {"f32", "bf16", "q8_0"};
    static const struct {
        int np;
        const char *members;
        int n;
        const char *describe, *envs[3];
    } cases[] = {
        {2, "1", 2, "mpi(2 hosts)", {MPI, "SHEAF_COMM_ONE_SHOT=1 " MPI}},
        {3, "1", 3, "mpi(3 hosts)", {MPI, "SHEAF_COMM_ONE_SHOT=1 " MPI}},
        {4,
         "1,2,1,1",
         5,
         "shm(2)+mpi(3 hosts)",
         {FOUR, "TEST_SLOT=4096 SHEAF_COMM_ONE_SHOT=1 " FOUR, "SHEAF_COMM_OWNERS=2 " FOUR}}};
    for (size_t i = SANITIZED; i < sizeof cases / sizeof *cases; i++) {
        char first[3][24], hash[24];
        for (size_t e = 0; e < 3 && cases[i].envs[e]; e++) {
            const char *env = cases[i].envs[e];
            run_checks(env, cases[i].np, "wires", cases[i].members, 16411, cases[i].describe);
            for (size_t t = 0; t < 3; t += SANITIZED ? 2 : 1) {
                cr_assert(one_hash(cases[i].n, types[t], hash), "%s %s: results differ\n%s", env,
                          types[t], out);
                if (!e) strcpy(first[t], hash);
                cr_assert_str_eq(hash, first[t], "%s changes the bits of %s", env, types[t]);
            }
        }
    }
}

/* A few hosts add for all; parts are uneven, and empty where there are fewer floats than owners. */
Test(comm_ranks, sums_through_owners, .timeout = 300) {
    for (int np = 2; np <= 8; np += SANITIZED ? 3 : 1) {
        char env[80], hash[24];
        snprintf(env, sizeof env, "SHEAF_COMM_OWNERS=%d " MPI, 1 + np % 3);
        run_values(env, np, "1", np, np < 5 ? 70001 : 5000, "mpi(", hash);
    }
}

Test(comm_ranks, started_and_direct_ones_meet, .timeout = 300) {
    char shm[24], mpi[24];
    run_values("TEST_START=1 " SHM, 3, "1", 3, 70001, "shm(3)", shm);
    run_values("TEST_START=1 " MPI, 3, "1", 3, 70001, "mpi(3 hosts)", mpi);
    cr_assert_str_eq(shm, mpi, "transports differ");
    run_values("TEST_START=1 SHEAF_COMM_TRANSPORT=hosts:0,1,0", 3, "1,2,1", 4, 16411,
               "shm(2)+mpi(2 hosts)", shm);
}

Test(comm_ranks, unknown_wire_type, .timeout = 60) {
    const int rc =
        run_mpirun(2, "SHEAF_COMM_WIRE=f16", 60, out, sizeof out, "helper-comm values 1 1");
    cr_assert(run_returns(rc, 1), "status %d\n%s", rc, out);
    cr_assert_not_null(strstr(out, "it takes f32, bf16 or q8_0"), "%s", out);
}

Test(comm_ranks, eight_ranks_on_both_transports, .timeout = 120) {
    char shm[24], mpi[24];
    run_values(SHM, 8, "1", 8, 5000, "shm(8)", shm);
    run_values(MPI, 8, "1", 8, 5000, "mpi(8 hosts)", mpi);
    cr_assert_str_eq(shm, mpi);
}

/* Threads of a rank work in two groups at the same time. */
Test(comm_ranks, two_groups_at_once, .timeout = 120) {
    char hash[24];
    static const char *const envs[] = {MPI, "SHEAF_COMM_TRANSPORT=hosts:0,0,1"};
    for (size_t i = 0; i < sizeof envs / sizeof *envs; i++) {
        const int rc = run_mpirun(3, envs[i], 60, out, sizeof out, "helper-comm groups 1 5000");
        cr_assert_eq(rc, 0, "%s: status %d\n%s", envs[i], rc, out);
        cr_assert(one_hash(6, "f32", hash), "%s: results differ\n%s", envs[i], out);
    }
}

Test(comm_ranks, are_listed_in_order, .timeout = 60) {
    const int rc = run_mpirun(2, SHM, 30, out, sizeof out, "helper-comm backwards 1");
    cr_assert(rc == 0 && strstr(out, "ok rank 0") && strstr(out, "ok rank 1"), "status %d\n%s", rc,
              out);
}

/* Each rank counts what it waits, also those that do not talk to other hosts themselves. */
Test(comm_ranks, all_but_the_late_one_wait, .timeout = 120) {
    static const char *const hosts[] = {"SHEAF_COMM_TRANSPORT=hosts:0,0,1,1",
                                        "SHEAF_COMM_OWNERS=1 SHEAF_COMM_TRANSPORT=hosts:0,1,0,1"};
    for (size_t i = 0; i < sizeof hosts / sizeof *hosts; i++) {
        const int rc = run_mpirun(4, hosts[i], 60, out, sizeof out, "helper-comm waits 1");
        cr_assert_eq(rc, 0, "%s: status %d\n%s", hosts[i], rc, out);
        cr_assert_null(strstr(out, "WRONG"), "%s\n%s", hosts[i], out);
        cr_assert_not_null(strstr(out, "ok rank 3"), "%s\n%s", hosts[i], out);
    }
}

/* What takes long is the exchange itself, of which ranks behind their leader count no more as a wait
 * than it does. */
Test(comm_ranks, exchange_is_no_wait, .timeout = 120) {
    const int rc = run_mpirun(3, "SHEAF_COMM_DELAY_US=30000 SHEAF_COMM_TRANSPORT=hosts:0,0,1", 60,
                              out, sizeof out, "helper-comm transfer 1");
    cr_assert_eq(rc, 0, "status %d\n%s", rc, out);
    for (int r = 0; r < 3; r++) {
        unsigned long long waited, took;
        char head[32];
        snprintf(head, sizeof head, "ok rank %d waited ", r);
        const char *at = strstr(out, head);
        cr_assert(at && sscanf(at + strlen(head), "%llu of %llu", &waited, &took) == 2, "%s", out);
        cr_expect(took > 100000 && waited < took / 2, "%s", out);
    }
}

/* ---- tools ---- */

Test(comm_tools, bench_prints_every_collective_in_each_format, .timeout = 120) {
    static const struct {
        const char *format, *head, *row;
    } cases[] = {
        {"text", "collective ", "all_reduce (registered) "},
        {"md", "| collective | bytes |", "| reduce_scatter | 4096 |"},
        {"csv", "collective,bytes,min_us", "broadcast,4096,"},
        {"json", "\"rows\": [", "{\"collective\": \"all_gather\", \"bytes\": 4096,"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const int rc = run_mpirun(2, i % 2 ? MPI : SHM, 60, out, sizeof out,
                                  "sheaf-comm-bench -n 10 -s 4,4096 --format %s", cases[i].format);
        cr_assert_eq(rc, 0, "status %d\n%s", rc, out);
        cr_assert(strstr(out, cases[i].head) && strstr(out, cases[i].row), "%s", out);
        cr_assert_not_null(strstr(out, "MPI_Allreduce"), "%s", out);
    }
    cr_assert_eq(run_mpirun(2, SHM, 60, out, sizeof out, "sheaf-comm-bench -c nothing"), 2);
}

Test(comm_tools, info_prints_the_links, .timeout = 60) {
    int rc = run_mpirun(3, "SHEAF_COMM_TRANSPORT=hosts:0,1,0", 60, out, sizeof out,
                        "sheaf-info --links");
    cr_assert_eq(rc, 0, "status %d\n%s", rc, out);
    double a = 0, rate = 0;
    unsigned long whole = 0;
    const char *line = strstr(out, "between hosts");
    cr_assert(line && sscanf(line,
                             "between hosts %*d, latency %lf us, %lf GB/s, sums as f32, whole up "
                             "to %lu bytes",
                             &a, &rate, &whole) == 3,
              "%s", out);
    cr_assert(a > 0 && rate > 0 && whole > 0, "%s", out);
    line = strstr(out, "shared memory");
    cr_assert(line && sscanf(line, "shared memory %*d, latency %lf us, %lf GB/s", &a, &rate) == 2,
              "%s", out);
    cr_assert(strstr(out, "at least"), "%s", out);
    rc = run_mpirun(1, SHM, 60, out, sizeof out, "sheaf-info --links");
    cr_assert(rc == 0 && strstr(out, "one member"), "status %d\n%s", rc, out);
}

/* The latency that sheaf-info says; whole: the size up to which sums travel whole. */
static double measured_latency(const char *env, unsigned long *whole) {
    double a = 0;
    cr_assert_eq(run_mpirun(3, env, 60, out, sizeof out, "sheaf-info --links"), 0, "%s", out);
    const char *line = strstr(out, "between hosts");
    cr_assert(line &&
                  sscanf(line,
                         "between hosts %*d, latency %lf us, %*f GB/s, sums as f32, whole up to "
                         "%lu bytes",
                         &a, whole) == 2,
              "%s", out);
    return a;
}

/* A delay of 2 ms is found, and one exchange is better than two. On a busy machine other jobs may
 * delay more than that, so three measurements may try. */
Test(comm_tools, measured_latency_follows_the_delay, .timeout = 120) {
    unsigned long whole = 0;
    for (int i = 0; i < 3 && whole < 4096; i++)
        cr_assert_gt(measured_latency("SHEAF_COMM_DELAY_US=2000 " MPI, &whole), 1999.0, "%s", out);
    cr_assert_geq(whole, 4096, "%s", out);
}

/* A sanitizer keeps what was freed, so that the process grows; leaks it finds by itself. */
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
enum { MOST_GAINED_KIB = 32768 };
#else
enum { MOST_GAINED_KIB = 256 };
#endif
Test(comm_ranks, many_small_ones_gain_no_memory, .timeout = 300) {
    static const struct {
        const char *env;
        int n;
    } cases[] = {{SHM, 20000}, {MPI, 2000}};
    for (size_t i = 0; i < 2; i++) {
        const int rc =
            run_mpirun(2, cases[i].env, 120, out, sizeof out, "helper-comm many 1 %d", cases[i].n);
        cr_assert_eq(rc, 0, "%s: status %d\n%s", cases[i].env, rc, out);
        for (int r = 0; r < 2; r++) {
            char want[32];
            long kib = -1;
            snprintf(want, sizeof want, "ok rank %d gained ", r);
            const char *at = strstr(out, want);
            cr_assert(at && sscanf(at + strlen(want), "%ld", &kib) == 1, "%s", out);
            cr_expect_lt(kib, MOST_GAINED_KIB, "%s: rank %d gained %ld KiB", cases[i].env, r, kib);
        }
    }
}

/* Numbers of steps and collectives pass their largest value: same results. */
Test(comm_ranks, numbers_wrap, .timeout = 300) {
    static const struct {
        const char *env, *where;
        int n;
    } cases[] = {{SHM, "shm(2)", 2},
                 {SHM, "shm(3)", 3},
                 {MPI, NULL, 3},
                 {"SHEAF_COMM_TRANSPORT=hosts:0,0,1", NULL, 3},
                 {"SHEAF_COMM_OWNERS=1 " MPI, NULL, 3}};
    char want[24], line[64];
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const int n = cases[i].n;
        if (cases[i].where) run_values(cases[i].env, n, "1", n, 16411, cases[i].where, want);
        const int rc =
            run_mpirun(n, cases[i].env, 120, out, sizeof out, "helper-comm wrap 1 16411");
        cr_assert_eq(rc, 0, "%s: status %d\n%s", cases[i].env, rc, out);
        snprintf(line, sizeof line, "member %d f32 hash %s", n - 1, want);
        cr_assert_not_null(strstr(out, line), "%s: want %s\n%s", cases[i].env, line, out);
    }
}

/* ---- faults ---- */

static int count(const char *text, const char *what) {
    int n = 0;
    for (const char *p = text; (p = strstr(p, what)); p++) n++;
    return n;
}

/* Processes whose command line holds `token`. */
static int processes_with(const char *token) {
    DIR *dir = opendir("/proc");
    int n = 0;
    for (struct dirent *e; dir && (e = readdir(dir));) {
        char path[300], line[4096];
        snprintf(path, sizeof path, "/proc/%s/cmdline", e->d_name);
        FILE *f = e->d_name[0] >= '0' && e->d_name[0] <= '9' ? fopen(path, "r") : NULL;
        if (!f) continue;
        const size_t got = fread(line, 1, sizeof line - 1, f);
        fclose(f);
        for (size_t i = 0; i < got; i++)
            if (!line[i]) line[i] = ' ';
        line[got] = 0;
        n += strstr(line, token) != NULL;
    }
    if (dir) closedir(dir);
    return n;
}

static int files_in(const char *path, const char *prefix) {
    DIR *dir = opendir(path);
    int n = 0;
    for (struct dirent *e; dir && (e = readdir(dir));)
        n += e->d_name[0] != '.' && !strncmp(e->d_name, prefix, strlen(prefix));
    if (dir) closedir(dir);
    return n;
}

/* A job of three ranks, of which `culprit` misbehaves, and its end. MPI's own files lie in a folder
 * of this job, so that other jobs do not count. */
struct fault {
    const char *env, *mode;
    size_t floats;
    int culprit, rc;
    double seconds;
    pthread_t thread;
    char dir[32], token[64], out[1 << 14];
};
enum { MOST_FAULTS = 4, FAULTS_AT_ONCE = SANITIZED ? 2 : MOST_FAULTS };
static struct fault faults[MOST_FAULTS];
static int n_faults;

static void *run_fault(void *arg) {
    struct fault *f = arg;
    char env[512];
    snprintf(env, sizeof env,
             "SHEAF_TIMEOUT_MS=2000 OMPI_MCA_btl_vader_backing_directory=%s "
             "OMPI_MCA_btl_sm_backing_directory=%s TMPDIR=%s %s",
             f->dir, f->dir, f->dir, f->env);
    const double start = run_seconds();
    f->rc = run_mpirun(3, env, 60, f->out, sizeof f->out, "helper-comm %s 1 %d %zu %s", f->mode,
                       f->culprit, f->floats, f->token);
    f->seconds = run_seconds() - start;
    return NULL;
}

/* It was in time, and everything of it is gone. */
static void expect_gone(const struct fault *f) {
    cr_expect_lt(f->seconds, 12.0, "%s %s took %.1f s\n%s", f->env, f->mode, f->seconds, f->out);
    int left = 1;
    for (int i = 0; i < 50 && left; i++) {
        left = processes_with(f->token) + files_in(f->dir, "") + files_in("/dev/shm", "sheaf");
        if (left) usleep(100000);
    }
    cr_expect_eq(left, 0, "%s %s leaves %d processes, %d + %d files", f->env, f->mode,
                 processes_with(f->token), files_in(f->dir, ""), files_in("/dev/shm", "sheaf"));
    rmdir(f->dir);
}

/* A job in each of the environments, with a time limit of 2 s: side by side, as they mostly wait. */
static void run_faults(const char *const *envs, const char *mode, size_t floats, int culprit) {
    for (n_faults = 0; envs[n_faults]; n_faults++) {
        struct fault *f = &faults[n_faults];
        cr_assert_lt(n_faults, MOST_FAULTS);
        *f = (struct fault){.env = envs[n_faults],
                            .mode = mode,
                            .floats = floats,
                            .culprit = culprit,
                            .dir = "/dev/shm/test-comm-XXXXXX"};
        cr_assert_not_null(mkdtemp(f->dir));
        snprintf(f->token, sizeof f->token, "token-%ld-%s-%d", (long)getpid(), mode, n_faults);
        if (n_faults >= FAULTS_AT_ONCE) pthread_join(f[-FAULTS_AT_ONCE].thread, NULL);
        cr_assert_eq(pthread_create(&f->thread, NULL, run_fault, f), 0);
    }
    for (int i = n_faults > FAULTS_AT_ONCE ? n_faults - FAULTS_AT_ONCE : 0; i < n_faults; i++)
        pthread_join(faults[i].thread, NULL);
    for (int i = 0; i < n_faults; i++) expect_gone(&faults[i]);
}

#define TWO_AND_ONE "SHEAF_COMM_TRANSPORT=hosts:0,0,1"
#define IN(...)     ((const char *const[]){__VA_ARGS__, NULL})
/* Every fault on every transport; under a sanitizer, where a job takes three times as long, on one:
 * cases take turns. Ends with NULL. */
static const char *const *transports(int turn) {
    static const char *const all[] = {SHM, MPI, TWO_AND_ONE, NULL};
    static const char *one[2];
    one[0] = all[turn % 3];
    return SANITIZED ? one : all;
}

/* The job ends as if nothing had happened. */
static void expect_fine(const char *const *envs, const char *mode, size_t floats) {
    run_faults(envs, mode, floats, 1);
    for (const struct fault *f = faults; f < faults + n_faults; f++) {
        cr_expect_eq(f->rc, 0, "%s %s: status %d\n%s", f->env, mode, f->rc, f->out);
        cr_expect_eq(count(f->out, "ok rank"), 3, "%s %s\n%s", f->env, mode, f->out);
    }
}

static void expect_status(const char *const *envs, const char *mode, size_t floats, int status) {
    run_faults(envs, mode, floats, 1);
    for (const struct fault *f = faults; f < faults + n_faults; f++)
        cr_expect(run_returns(f->rc, status), "%s %s: status %d\n%s", f->env, mode, f->rc, f->out);
}

/* One message, which holds both texts; status 1, or that of a stopped rank which the others end, if
 * mpirun sees that first. */
static void expect_message_of(int culprit, const char *const *envs, const char *mode, size_t floats,
                              const char *a, const char *b) {
    run_faults(envs, mode, floats, culprit);
    for (const struct fault *f = faults; f < faults + n_faults; f++) {
        const bool ended = !strcmp(mode, "stop") && run_returns(f->rc, 128 + SIGKILL);
        cr_expect(run_returns(f->rc, 1) || ended, "%s %s: status %d\n%s", f->env, mode, f->rc,
                  f->out);
        cr_expect_eq(count(f->out, "error: "), 1, "%s %s: want one message\n%s", f->env, mode,
                     f->out);
        cr_expect(strstr(f->out, a) && strstr(f->out, b), "%s %s: want '%s' and '%s'\n%s", f->env,
                  mode, a, b, f->out);
        cr_expect_eq(count(f->out, "BUG"), 0, "%s %s\n%s", f->env, mode, f->out);
    }
}
static void expect_message(const char *const *envs, const char *mode, const char *a,
                           const char *b) {
    expect_message_of(1, envs, mode, 2048, a, b);
}

Test(comm_faults, late_within_the_limit_is_fine, .timeout = 120) {
    expect_fine(transports(0), "late", 2048);
}
/* The group's limit is ten times the world's, to which the guard keeps otherwise. */
Test(comm_faults, late_within_the_limit_of_the_group_is_fine, .timeout = 120) {
    expect_fine(transports(1), "later", 2048);
}
/* One that loads has the time of that, also where others wait for it in a collective. */
Test(comm_faults, loading_longer_than_a_collective_may_take_is_fine, .timeout = 120) {
    expect_fine(IN(SHM, MPI " TEST_START=1", "TEST_START=1 SHEAF_COMM_TRANSPORT=hosts:0,1,0",
                   TWO_AND_ONE /* rank 2 waits for rank 0, that for rank 1 */),
                "loads", 2048);
}
/* All ranks are stopped for longer than the limits, one while it computes, the others in the sum. */
Test(comm_faults, job_that_is_suspended_goes_on, .timeout = 120) {
    expect_fine(IN(SHM, MPI, TWO_AND_ONE, MPI " TEST_START=1"), "suspend", 2048);
}
/* A rank that comes back when the watch has reported it does not report itself. */
Test(comm_faults, rank_that_is_slow_and_alone, .timeout = 60) {
    const int rc =
        run_mpirun(1, "SHEAF_TIMEOUT_MS=2000", 30, out, sizeof out, "helper-comm slow 1 0 2048");
    cr_expect(run_returns(rc, 1), "status %d\n%s", rc, out);
    cr_expect_eq(count(out, "compute 'long' has not ended"), 1, "want one message\n%s", out);
}
Test(comm_faults, rank_that_never_calls, .timeout = 120) {
    expect_message(transports(1), "never", "all_reduce 'ffn_out' (node 2", "rank 1 (");
}
Test(comm_faults, rank_that_is_stopped, .timeout = 120) {
    expect_message(transports(2), "stop", "all_reduce 'ffn_out' (node 2", "rank 1 (");
}
Test(comm_faults, rank_in_another_collective, .timeout = 120) {
    expect_message(transports(0), "kind", "all_reduce", "barrier");
    /* the second of its host is not named by its place there */
    expect_message_of(2, IN("SHEAF_COMM_TRANSPORT=hosts:0,1,1"), "kind", 2048, "rank 1 (",
                      "rank 2 (");
}
Test(comm_faults, rank_with_another_size, .timeout = 120) {
    expect_message(transports(1), "size", "4096 bytes", "8192 bytes");
    expect_message(transports(1), "bigger", "16384 bytes", "8192 bytes");
}
Test(comm_faults, rank_at_another_node, .timeout = 120) {
    expect_message(transports(2), "node", "node 99", "node 2");
}
Test(comm_faults, rank_that_aborts, .timeout = 120) {
    expect_message(transports(0), "abort", "the cat sat on the keyboard", "");
}
Test(comm_faults, ranks_with_different_lists, .timeout = 120) {
    expect_message(transports(1), "list", "different lists of members", "rank 1 (");
    expect_message(IN(SHM), "slot", "different lists of members, slot sizes", "rank 1 (");
    expect_message(IN(MPI), "wire", "slot sizes or wire types", "rank 1 (");
}
Test(comm_faults, large_messages_meet_other_sizes, .timeout = 120) {
    static const char *const cases[][2] = {
        {"size", "1600000 bytes"}, {"bigger", "1600000 bytes"}, {"gather", "4800000 bytes"}};
    for (size_t m = 0; m < sizeof cases / sizeof *cases; m++) {
        expect_status(transports(2), cases[m][0], 400000, 1);
        for (const struct fault *f = faults; f < faults + n_faults; f++)
            cr_expect_not_null(strstr(f->out, cases[m][1]), "%s\n%s", f->env, f->out);
    }
}
/* The culprit is alone on its host: the headers between hosts show it, in front of the chunks. */
Test(comm_faults, hosts_with_other_sizes, .timeout = 120) {
    static const struct {
        const char *mode;
        size_t floats;
        const char *a, *b;
    } cases[] = {
        {"gather", 400000, "4800000 bytes", "9600000 bytes"},
        {"cast", 400000, "1600000 bytes", "3200000 bytes"},
        {"size", 20000, "40000 bytes", "80000 bytes"}, /* in one chunk, of which one fits a frame */
        {"bigger", 20000, "160000 bytes", "80000 bytes"},
    };
    for (size_t m = 0; m < sizeof cases / sizeof *cases; m++)
        expect_message_of(2, IN(TWO_AND_ONE), cases[m].mode, cases[m].floats, cases[m].a,
                          cases[m].b);
}
/* Rank 2 waits for its leader, rank 1, which waits for rank 0 and knows that. */
Test(comm_faults, ranks_behind_a_leader_do_not_accuse_it, .timeout = 60) {
    expect_message_of(0, IN("SHEAF_COMM_TRANSPORT=hosts:0,1,1"), "never", 2048,
                      "all_reduce 'ffn_out' (node 2", " s for rank 0 (");
}
/* Rank 0 owns all, so rank 2 hears nothing of rank 1. */
Test(comm_faults, owners_name_the_culprit, .timeout = 120) {
    expect_message(IN("SHEAF_COMM_OWNERS=1 " MPI), "never", "all_reduce 'ffn_out' (node 2",
                   "rank 1 (");
    expect_message(IN("SHEAF_COMM_OWNERS=2 " MPI), "bigger", "16384 bytes", "8192 bytes");
}
/* While the thread of a rank makes a collective and the rank has other work. */
Test(comm_faults, started_ones_end_as_direct_ones, .timeout = 120) {
    expect_fine(IN("TEST_START=1 " TWO_AND_ONE), "late", 70000);
    expect_message(IN("TEST_START=1 " MPI), "never", "all_reduce 'ffn_out' (node 2", "rank 1 (");
    expect_message(IN("TEST_START=1 " TWO_AND_ONE), "stop", "all_reduce 'ffn_out' (node",
                   "rank 1 (");
    expect_message(IN("TEST_START=1 " MPI), "size", "4096 bytes", "8192 bytes");
    expect_status(IN("TEST_START=1 " TWO_AND_ONE), "kill", 70000, 128 + SIGKILL);
}
/* 2.4 s in all for a rank that waits, but each less than the limit of a second. */
Test(comm_faults, each_of_several_started_ones_has_its_own_time, .timeout = 60) {
    expect_fine(IN("SHEAF_TIMEOUT_COLLECTIVE_MS=1000"), "queue", 600);
}
/* The launcher ends the job before a time limit passes; it is its message then. */
Test(comm_faults, rank_that_dies, .timeout = 120) {
    expect_status(transports(0), "die", 2048, 9);
    expect_status(transports(0), "kill", 2048, 128 + SIGKILL);
}
