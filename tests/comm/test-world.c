/* The world: of one rank without a launcher, of several under mpirun; control messages, votes,
 * devices, and ranks that disagree. */
#include <criterion/criterion.h>
#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/utsname.h>

#include "comm/watch/watch.h"
#include "comm/watch/watch_impl.h"
#include "comm/world/blocks.h"
#include "comm/world/same_setting.c"
#include "comm/world/shared.c"
#include "comm/world/world.h"
#include "languages.h"
#include "mpirun.h"
#include "sanitizer.h"
#include "sheaf/settings.h"
#include "sheaf/world.h"

Test(world, of_one_needs_no_launcher) {
    int x = 7, y = 0;
    cr_assert_eq(sheaf_world_init(NULL), SHEAF_STATUS_SUCCESS, "%s", sheaf_last_error());
    cr_assert_eq(sheaf_world_init(NULL), SHEAF_STATUS_INVALID);
    cr_assert_eq(sheaf_world_rank(), 0);
    cr_assert_eq(sheaf_world_size(), 1);
    cr_assert_eq(sheaf_world_n_hosts(), 1);
    cr_assert_eq(sheaf_world_local_rank(), 0);
    cr_assert_eq(sheaf_world_local_size(), 1);
    cr_assert_eq(sheaf_world_host_index(0), 0);
    cr_assert_eq(sheaf_world_host_index(1), -1);
    cr_assert_str_not_empty(sheaf_world_host_name(0));
    cr_assert_null(sheaf_world_host_name(1));
    cr_assert_eq(sheaf_world_barrier("x"), SHEAF_STATUS_SUCCESS);
    cr_assert_eq(sheaf_world_broadcast(&x, sizeof x, 0, "x"), SHEAF_STATUS_SUCCESS);
    cr_assert_eq(x, 7);
    cr_assert_eq(sheaf_world_broadcast(&x, sizeof x, 1, "x"), SHEAF_STATUS_INVALID);
    cr_assert_eq(sheaf_world_broadcast(&x, sizeof x, -1, "x"), SHEAF_STATUS_INVALID);
    cr_assert_eq(sheaf_world_broadcast(&x, (size_t)1 << 30, 0, "x"), SHEAF_STATUS_SUCCESS);
    cr_assert_eq(sheaf_world_broadcast(&x, ((size_t)1 << 30) + 1, 0, "x"), SHEAF_STATUS_INVALID);
    cr_assert_not_null(strstr(sheaf_last_error(), "too many for a control message"));
    cr_assert_eq(sheaf_world_gather_v(&x, &y, &(size_t){sizeof x}, 1, "x"), SHEAF_STATUS_INVALID);
    cr_assert_eq(sheaf_world_gather_v(&x, &y, &(size_t){sizeof x}, -1, "x"), SHEAF_STATUS_INVALID);
    cr_assert_eq(sheaf_world_gather_v(&x, &y, &(size_t){sizeof x}, 0, "x"), SHEAF_STATUS_SUCCESS);
    cr_assert_eq(y, 7);
    y = 0;
    cr_assert_eq(sheaf_world_all_gather(&x, sizeof x, &y, "x"), SHEAF_STATUS_SUCCESS);
    cr_assert_eq(y, 7);
    sheaf_set_error(SHEAF_STATUS_IO, "my words");
    cr_assert_eq(sheaf_world_agree(SHEAF_STATUS_IO, "x"), SHEAF_STATUS_IO);
    cr_assert_str_eq(sheaf_last_error(), "my words");
    cr_assert(sheaf_world_reports_error());
    sheaf_world_finalize();
    sheaf_world_finalize();
}

Test(world, of_one_has_the_devices_of_the_registry) {
    const sheaf_backend_dev_t *devices;
    size_t n;
    cr_assert_eq(sheaf_world_devices(&devices, &n), SHEAF_STATUS_SUCCESS);
    cr_assert_eq(n, sheaf_backend_dev_count());
    for (size_t i = 0; i < n; i++) {
        cr_assert_eq(devices[i], sheaf_backend_dev_get(i));
        cr_assert_eq(sheaf_world_device_rank(devices[i]), 0);
    }
}

Test(world, names_devices_as_lists_do) {
    static const struct {
        const char *entry;
        bool matches;
    } cases[] = {{"CPU0", true},    {"cpu0", true},   {"CPU0@0", true},  {"CPU*", true},
                 {"*", true},       {"c*@0", true},   {"CPU0,x", true},  {"CPU0@1", false},
                 {"CPU0@", false},  {"CPU", false},   {"CPU00", false},  {"CPU0@0x", false},
                 {"ggml:*", false}, {"CPU1*", false}, {"CPU0@*", false}, {"", false}};
    sheaf_backend_dev_t dev = sheaf_backend_dev_by_name("CPU0");
    char name[8];
    cr_assert_not_null(dev);
    sheaf_world_device_name(dev, name, sizeof name);
    cr_expect_str_eq(name, "CPU0@0");
    sheaf_world_device_name(dev, name, 4);
    cr_expect_str_eq(name, "CPU");
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        cr_expect_eq(sheaf_world_device_matches(cases[i].entry, strcspn(cases[i].entry, ","), dev),
                     cases[i].matches, "%s", cases[i].entry);
}

Test(world, abort_ends_everything) {
    cr_assert_not(sheaf_world_failed());
    sheaf_world_abort("enough");
    sheaf_world_abort("second reason");
    cr_assert(sheaf_world_failed());
    cr_assert_eq(sheaf_world_barrier("x"), SHEAF_STATUS_PEER);
    cr_assert_str_eq(sheaf_last_error(), "enough");
    cr_assert_eq(sheaf__fail(SHEAF_STATUS_TIMEOUT, "third reason"), SHEAF_STATUS_PEER);
    cr_assert_str_eq(sheaf_last_error(), "enough");
    struct sheaf__blocks *blocks = sheaf__blocks_new();
    bool done;
    cr_assert_not_null(blocks);
    cr_expect_eq(sheaf__blocks_start(blocks, NULL, &(size_t){0}, 0, "x"), SHEAF_STATUS_PEER);
    cr_expect_eq(sheaf__blocks_poll(blocks, &done), SHEAF_STATUS_PEER);
    cr_expect_eq(sheaf__blocks_wait(blocks), SHEAF_STATUS_PEER);
    sheaf__blocks_free(blocks);
    cr_assert_neq(sheaf_world_agree(SHEAF_STATUS_SUCCESS, "x"), SHEAF_STATUS_SUCCESS);
}

static const char *text_of(struct sheaf__activity a) {
    static char text[160];
    sheaf__activity_text(&a, text, sizeof text);
    return text;
}
Test(world, says_what_a_rank_does) {
    const struct sheaf__activity sum = {.phase = SHEAF_PHASE_COLLECTIVE,
                                        .kind = SHEAF_COMM_ALL_REDUCE,
                                        .node = 3,
                                        .bytes = 16,
                                        .sequence = 5,
                                        .step = 2,
                                        .name = "x"};
    struct sheaf__activity a = sum;
    cr_expect_str_eq(text_of(a),
                     "collective all_reduce 'x' (node 3, 16 bytes, collective 5) of step 2");
    a.step = 0;
    cr_expect_str_eq(text_of(a), "collective all_reduce 'x' (node 3, 16 bytes, collective 5)");
    a = sum;
    a.kind = SHEAF__KIND_EXCHANGE;
    cr_expect_str_eq(text_of(a), "collective 'x' of step 2");
    a = sum;
    a.phase = SHEAF_PHASE_COMPUTE;
    cr_expect_str_eq(text_of(a), "compute 'x' of step 2");
    a.name[0] = 0;
    cr_expect_str_eq(text_of(a), "compute of step 2");
    a = sum;
    a.phase = SHEAF_PHASE_LOAD; /* of the next model */
    cr_expect_str_eq(text_of(a), "load 'x'");
    a.phase = SHEAF_PHASE_IDLE; /* what it did last is over */
    cr_expect_str_eq(text_of(a), "its own code, at the end of step 2");
    a.step = 0;
    cr_expect_str_eq(text_of(a), "its own code");
}

static void *act_elsewhere(void *arg) {
    sheaf__enter_collective(SHEAF_COMM_BARRIER, 1, 1, 1, "elsewhere", 500);
    sheaf__leave_exchange(sheaf__enter_exchange("elsewhere", 500));
    sheaf__enter(SHEAF_PHASE_LOAD, "elsewhere", 500);
    sheaf__touch(500);
    sheaf__next_step();
    sheaf__leave();
    return arg;
}

/* The lines of a board of three ranks, of which this is rank 1. */
Test(world, shows_what_its_main_thread_does) {
    enum { RANKS = 3, ME = 1 };
    static const char name[] = "of more characters than a line has room for";
    struct sheaf__world *w = sheaf__world();
    struct sheaf__activity a;
    w->size = RANKS;
    w->rank = ME;
    sheaf__board_own();
    sheaf__enter(SHEAF_PHASE_PLAN, "alone", 1);
    sheaf__read_line(0, &a);
    cr_expect(!a.name[0] && a.phase == SHEAF_PHASE_IDLE, "it knows nothing of other ranks");
    struct sheaf__board *board = aligned_alloc(128, sheaf__board_bytes());
    cr_assert_not_null(board);
    memset(board, 0, sheaf__board_bytes());
    sheaf__board_place(board);
    for (int r = 0; r < RANKS; r++) cr_expect_neq(board->lines[r].heard_ns, 0, "rank %d", r);
    sheaf__next_step();
    sheaf__next_step();
    sheaf__enter_collective(SHEAF_COMM_BARRIER, 3, 16, 5, name, 70);
    sheaf__read_line(ME, &a);
    cr_expect(a.phase == SHEAF_PHASE_COLLECTIVE && a.kind == SHEAF_COMM_BARRIER && a.node == 3 &&
              a.bytes == 16 && a.sequence == 5 && a.step == 2 && a.changes == 1);
    cr_expect(!strncmp(a.name, name, SHEAF__NAME_BYTES) && strlen(a.name) == SHEAF__NAME_BYTES);
    cr_expect_eq(board->lines[ME].since_ns, 70);
    sheaf__touch(90);
    cr_expect_eq(board->lines[ME].since_ns, 90);
    sheaf__leave();
    cr_expect_eq(sheaf__phase(), SHEAF_PHASE_IDLE);
    sheaf__enter(SHEAF_PHASE_COMPUTE, NULL, 100);
    sheaf__read_line(ME, &a);
    cr_expect(a.phase == SHEAF_PHASE_COMPUTE && a.kind == SHEAF__KIND_NONE && !a.name[0] &&
              a.changes == 2);
    cr_expect_eq(board->lines[ME].since_ns, 100);
    const struct sheaf__line before = board->lines[ME];
    pthread_t thread;
    cr_assert_eq(pthread_create(&thread, NULL, act_elsewhere, NULL), 0);
    pthread_join(thread, NULL);
    sheaf_world_enter(SHEAF_PHASE_COUNT, "a phase that there is not");
    cr_expect_arr_eq(&board->lines[ME], &before, sizeof before);
    board->lines[ME].phase = SHEAF_PHASE_COUNT; /* as another process may have written it */
    sheaf__read_line(ME, &a);
    cr_expect_eq(a.phase, SHEAF_PHASE_IDLE);
    sheaf__board_place(NULL);
    cr_expect_eq(w->failure, &sheaf__own_failure);
    sheaf__read_line(ME, &a);
    cr_expect_str_eq(a.name, "alone");
    free(board);
}

static _Atomic int half; /* of the main thread's rounds below */
static _Atomic bool has_looked;

/* How often a phase, or a kind, is seen with the time of the one before, which may be hours old. */
static void *look_for_old_times(void *arg) {
    int *seen = arg;
    for (int i = 0; i < 10000000; i++) {
        const int before = half;
        const struct sheaf__doing d = sheaf__doing(sheaf__line_here());
        *seen += half == before && d.phase == SHEAF_PHASE_LOAD && !d.exchanges && !d.since_ns;
    }
    has_looked = true;
    return NULL;
}

Test(world, a_new_phase_has_a_new_time) {
    pthread_t thread;
    int seen = 0;
    sheaf__board_own();
    cr_assert_eq(pthread_create(&thread, NULL, look_for_old_times, &seen), 0);
    while (!has_looked) {
        half++;
        sheaf__touch(0);
        sheaf__enter(SHEAF_PHASE_LOAD, "x", 1);
        const enum sheaf_phase outer = sheaf__enter_exchange("y", 1);
        half++;
        sheaf__touch(0);
        sheaf__leave_exchange(outer);
        sheaf__leave();
    }
    pthread_join(thread, NULL);
    cr_expect_eq(seen, 0, "%d times", seen);
}

/* An exchange in a phase that has a limit of its own is a part of it; others are collectives, and
 * leave nothing under way. */
Test(world, shows_exchanges_in_their_phase) {
    static const struct {
        enum sheaf_phase outer, within, behind;
    } cases[] = {
        {SHEAF_PHASE_IDLE, SHEAF_PHASE_COLLECTIVE, SHEAF_PHASE_IDLE},
        {SHEAF_PHASE_COMPUTE, SHEAF_PHASE_COLLECTIVE, SHEAF_PHASE_IDLE},
        {SHEAF_PHASE_LOAD, SHEAF_PHASE_LOAD, SHEAF_PHASE_LOAD},
        {SHEAF_PHASE_PLAN, SHEAF_PHASE_PLAN, SHEAF_PHASE_PLAN},
    };
    struct sheaf__activity a;
    sheaf__board_own();
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        sheaf__enter(cases[i].outer, "outer", 1);
        cr_expect_eq(sheaf__enter_exchange("votes", 2), cases[i].outer, "case %zu", i);
        sheaf__read_line(0, &a);
        cr_expect(a.phase == cases[i].within && a.kind == SHEAF__KIND_EXCHANGE &&
                      !strcmp(a.name, "votes"),
                  "case %zu", i);
        sheaf__leave_exchange(cases[i].outer);
        sheaf__read_line(0, &a);
        cr_expect(a.phase == cases[i].behind && a.kind == SHEAF__KIND_NONE, "case %zu", i);
    }
}

/* The first of three ranks that have a value, and the first that has another; of long values the
 * characters around the first that differs. */
Test(world, names_ranks_with_different_values) {
#define FORTY "1234567890123456789012345678901234567890"
    static const struct {
        const char *value[3], *want[2]; /* NULL: they agree */
    } cases[] = {
        {{"a", "a", "a"}, {NULL}},
        {{"", "a", "a"}, {NULL}},
        {{"a", "", ""}, {NULL}},
        {{"a", "a", "b"}, {"setting S is 'a' on rank 0", "'b' on rank 2"}},
        {{"", "ab", "a"}, {"'ab' on rank 1", "'a' on rank 2"}},
        {{"a", "b", "c"}, {"'a' on rank 0", "'b' on rank 1"}},
        {{FORTY "1234567890123456789012a!", "", FORTY "1234567890123456789012b!"},
         {"is '" FORTY "1234567890123456789012a' on rank 0",
          "and '" FORTY "1234567890123456789012b' on rank 2"}},
        {{FORTY "12345678901234567890123a!", "", FORTY "12345678901234567890123b!"},
         {"is '...45678901234567890123a!' on rank 0", "and '...45678901234567890123b!' on rank 2"}},
    };
    sheaf__world()->size = 3;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char values[512], *at = values;
        size_t sizes[3];
        for (int r = 0; r < 3; r++) {
            sizes[r] = strlen(cases[i].value[r]) + 1;
            at = (char *)memcpy(at, cases[i].value[r], sizes[r]) + sizes[r];
        }
        cr_expect_eq(compare("S", NULL, values, sizes),
                     cases[i].want[0] ? SHEAF_STATUS_INVALID : SHEAF_STATUS_SUCCESS, "case %zu", i);
        if (!cases[i].want[0]) continue;
        const char *text = sheaf_last_error();
        cr_expect(strstr(text, cases[i].want[0]) && strstr(text, cases[i].want[1]) &&
                      strstr(text, "(mpirun -x S)"),
                  "case %zu: %s", i, text);
    }
    compare("S", "--s", "a\0b\0c", (const size_t[]){2, 2, 2});
    cr_expect(strstr(sheaf_last_error(), "(mpirun -x S, or the option --s)"), "%s",
              sheaf_last_error());
#undef FORTY
}

/* Alarms of other hosts pass here, too. */
Test(world, a_failure_does_not_command_the_terminal) {
    cr_assert_eq(sheaf__fail(SHEAF_STATUS_TIMEOUT, "enough\033[2J"), SHEAF_STATUS_TIMEOUT);
    cr_assert_str_eq(sheaf__failure_record()->text, "enough?[2J");
}

static int n_spread;
static void count_spread(void) { n_spread++; }
Test(world, aborts_once_for_a_reason) {
    sheaf__failure_spread_by(count_spread);
    sheaf_world_abort("");
    sheaf_world_abort("second reason");
    cr_assert_eq(n_spread, 1);
    cr_assert_str_eq(sheaf__failure_record()->text, "the job was aborted");
}

static void count_failure(int rank, const char *text, void *user) {
    int *n = user;
    cr_expect_eq(rank, 0);
    cr_expect_str_eq(text, "enough");
    ++*n;
}

Test(world, of_one_tells_the_host_of_a_failure) {
    int n = 0;
    const struct sheaf_world_params params = {
        .size = sizeof params, .on_failure = count_failure, .on_failure_user = &n};
    cr_assert_eq(sheaf_world_init(&params), SHEAF_STATUS_SUCCESS, "%s", sheaf_last_error());
    sheaf_world_abort("enough");
    sheaf_world_abort("second reason");
    cr_assert_eq(n, 1);
    sheaf_world_finalize();
    cr_assert_eq(sheaf_world_init(&params), SHEAF_STATUS_INVALID);
    cr_assert_not_null(strstr(sheaf_last_error(), "after sheaf_world_finalize"), "%s",
                       sheaf_last_error());
}

Test(world, refuses_params_without_a_size) {
    const struct sheaf_world_params params = {.timeout_ms = 1000};
    cr_assert_eq(sheaf_world_init(&params), SHEAF_STATUS_INVALID);
    cr_assert_not_null(strstr(sheaf_last_error(), "sizeof"), "%s", sheaf_last_error());
}

Test(world, refuses_bad_settings) {
    setenv("SHEAF_TIMEOUT_MS", "soon", 1);
    cr_assert_eq(sheaf_world_init(NULL), SHEAF_STATUS_INVALID);
    cr_assert_not_null(strstr(sheaf_last_error(), "SHEAF_TIMEOUT_MS"));
    unsetenv("SHEAF_TIMEOUT_MS");
    setenv("SHEAF_COMM_TRANSPORT", "pigeon", 1);
    cr_assert_eq(sheaf_world_init(NULL), SHEAF_STATUS_INVALID);
    cr_assert_not_null(strstr(sheaf_last_error(), "pigeon"));
    setenv("SHEAF_COMM_TRANSPORT", "hosts:0,x", 1);
    cr_assert_eq(sheaf_world_init(NULL), SHEAF_STATUS_INVALID);
    cr_assert_not_null(strstr(sheaf_last_error(), "hosts:0,x"));
}

/* Numbers and choices are checked at the start, also those that only some jobs read, or none. */
Test(world, refuses_bad_settings_that_nobody_reads) {
    static const char *const bad[][2] = {
        {"SHEAF_BACKEND_DEBUG", "abc"}, {"SHEAF_CPU_PROFILE", "-1"},
        {"SHEAF_GGML_REPACK", "7"},     {"SHEAF_GGML_ON_FAILURE", "foo"},
        {"SHEAF_SCHED_DEBUG", "abc"},   {"SHEAF_COMM_ONE_SHOT", "abc"},
        {"SHEAF_COMM_OWNERS", "0"},     {"SHEAF_TIMEOUT_MS", " 100"},
    };
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        setenv(bad[i][0], bad[i][1], 1);
        cr_expect_eq(sheaf_world_init(NULL), SHEAF_STATUS_INVALID, "%s", bad[i][0]);
        cr_expect_not_null(strstr(sheaf_last_error(), bad[i][0]), "%s", sheaf_last_error());
        unsetenv(bad[i][0]);
    }
    cr_expect_eq(sheaf_world_init(NULL), SHEAF_STATUS_SUCCESS, "%s", sheaf_last_error());
    sheaf_world_finalize();
}

static void set_all(const char *variables, bool set) {
    char text[256], *save = NULL;
    snprintf(text, sizeof text, "%s", variables);
    for (char *p = strtok_r(text, " ", &save); p; p = strtok_r(NULL, " ", &save)) {
        char *value = strchr(p, '=');
        *value++ = 0;
        if (set)
            setenv(p, value, 1);
        else
            unsetenv(p);
    }
}

#define SLURM_PMIX "PMIX_RANK=0 PMIX_NAMESPACE=slurm.pmix.7.0 SLURM_STEP_NUM_TASKS=4"

Test(world, counts_ranks_by_the_launchers_variables) {
    static const struct {
        const char *variables;
        int size, rank;
        const char *missed;
    } cases[] = {
        {"SHEAF_TEST_NOTHING=1", 1, 0, ""},
        {"PMI_SIZE=3", 3, 0, "another MPI's"},
        {"OMPI_COMM_WORLD_SIZE=2", 2, 0, "another MPI's"},
        {"OMPI_COMM_WORLD_SIZE=1 PMI_SIZE=3", 1, 0, ""}, /* mpirun inside a rank of MPICH */
        {"OMPI_COMM_WORLD_SIZE=4 OMPI_COMM_WORLD_RANK=2 PMI_SIZE=3 PMI_RANK=1", 3, 1, "another"},
        {"OMPI_COMM_WORLD_SIZE=4 OMPI_COMM_WORLD_RANK=2", 4, 2, "another MPI's"},
        {"PMI_SIZE=many", 1, 0, ""},
        {SLURM_PMIX, 4, 0, "srun --mpi=list"},
        {SLURM_PMIX " OMPI_COMM_WORLD_SIZE=1", 1, 0, ""}, /* mpirun -n 1 inside a task */
        {SLURM_PMIX " PMI_SIZE=2", 2, 0, "another MPI's"},
        {"SLURM_PROCID=0 SLURM_STEP_NUM_TASKS=4", 1, 0, ""}, /* four programs of one, perhaps */
        {"PMIX_NAMESPACE=811.1 SLURM_STEP_NUM_TASKS=4", 1, 0,
         ""}, /* Open MPI's daemons are tasks */
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        set_all(cases[i].variables, true);
        const struct sheaf__launch job = sheaf__launcher_job();
        cr_expect_eq(job.size, cases[i].size, "%s", cases[i].variables);
        cr_expect_eq(job.rank, cases[i].rank, "%s", cases[i].variables);
        cr_expect_not_null(strstr(job.missed, cases[i].missed), "%s: %s", cases[i].variables,
                           job.missed);
        set_all(cases[i].variables, false);
    }
}

static bool lacks(const char *what) {
    const char *text;
    for (size_t i = 0; (text = sheaf_world_mpi_lacks(i)); i++)
        if (strstr(text, what)) return true;
    return false;
}

/* Slurm's PMIx has the functions, which do nothing. */
Test(world, knows_what_slurm_lacks) {
    static const char claims[] = "PMIx publish and lookup";
    cr_expect(lacks(claims), "there is no PMIx");
    set_all("PMIX_RANK=0 PMIX_NAMESPACE=811.1", true);
    cr_expect_not(lacks(claims), "mpirun has them");
    set_all(SLURM_PMIX, true);
    cr_expect(lacks(claims), "Slurm's plugin has not");
}

/* In place of the C library's. */
static const char *name_of_host;
int gethostname(char *name, size_t size) {
    struct utsname u;
    snprintf(name, size, "%s", name_of_host || uname(&u) ? name_of_host : u.nodename);
    return 0;
}

/* Open MPI calls a host by its name up to the first dot, or by the whole name. */
Test(world, removes_what_mpi_left_under_both_names_of_the_host) {
    static const struct {
        const char *host, *file;
        bool goes;
    } cases[] = {
        {"node1", "node1.%u.131.0", true},
        {"node1", "node1.%u.131.1", true},
        {"node1", "node1.%u.131.2", false}, /* two ranks are 0 and 1 */
        {"node1", "node1.%u.132.0", false}, /* of another job */
        {"node1.example.org", "node1.%u.131.1", true},
        {"node1.example.org", "node1.example.org.%u.131.1", true},
        {"node1.example.org", "node1.example.%u.131.1", false},
        {"10.1.2.3", "10.1.2.3.%u.131.0", true},
    };
    char dir[] = "/tmp/test-world-XXXXXX", file[64], path[256];
    cr_assert_not_null(mkdtemp(dir));
    set_all("PMIX_NAMESPACE=305 OMPI_COMM_WORLD_LOCAL_SIZE=2", true);
    setenv("OMPI_MCA_btl_vader_backing_directory", dir, 1);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        snprintf(file, sizeof file, cases[i].file, geteuid());
        snprintf(path, sizeof path, "%s/vader_segment.%s", dir, file);
        FILE *f = fopen(path, "w");
        cr_assert_not_null(f);
        fclose(f);
        name_of_host = cases[i].host;
        sheaf__launcher_remove_names();
        cr_expect_eq(access(path, F_OK) != 0, cases[i].goes, "%s on %s", file, cases[i].host);
        unlink(path);
    }
    name_of_host = NULL;
    rmdir(dir);
}

/* Open MPI 5's, which differ in the rank; a rank knows them by its own. */
Test(world, removes_what_the_sm_of_open_mpi_5_left) {
    static const char *const files[] = {"0", "1", "2"}; /* two ranks are 0 and 1 */
    char dir[] = "/tmp/test-world-XXXXXX", path[3][256];
    cr_assert_not_null(mkdtemp(dir));
    set_all("PMIX_NAMESPACE=prterun-node1-33@1 OMPI_COMM_WORLD_LOCAL_SIZE=2", true);
    for (size_t i = 0; i < 3; i++) {
        snprintf(path[i], sizeof path[i], "%s/sm_segment.node1.0.9eee0001.%s", dir, files[i]);
        FILE *f = fopen(path[i], "w+");
        cr_assert_not_null(f);
        if (i == 1) cr_assert_neq(mmap(NULL, 1, PROT_READ, MAP_SHARED, fileno(f), 0), MAP_FAILED);
        fclose(f);
    }
    sheaf__launcher_note_names();
    sheaf__launcher_remove_names();
    for (size_t i = 0; i < 3; i++) cr_expect_eq(access(path[i], F_OK) == 0, i == 2, "%s", path[i]);
    unlink(path[2]);
    rmdir(dir);
}

/* ---- under mpirun ---- */

static char out[1 << 16];

static int count(const char *what) {
    int n = 0;
    for (const char *p = out; (p = strstr(p, what)); p++) n++;
    return n;
}

enum { RANKS_STEP = SANITIZED ? 2 : 1 };

static void expect_ok(const char *env, int np, const char *mode) {
    const int rc = run_mpirun(np, env, 60, out, sizeof out, "helper-world %s", mode);
    cr_assert_eq(rc, 0, "%s np %d: status %d\n%s", mode, np, rc, out);
    cr_assert_eq(count("ok rank"), np, "%s np %d\n%s", mode, np, out);
}

/* A number that another process has by now may be any file. */
Test(world, opens_only_what_was_shared) {
    const uint64_t me = (uint64_t)getpid();
    const int fd = sheaf__shared_file(8192);
    FILE *file = tmpfile();
    cr_assert(fd >= 0 && file && !ftruncate(fileno(file), 8192));
    cr_assert_neq(ftruncate(fd, 4096), 0, "nothing may take memory away that others have mapped");
    cr_assert_geq(sheaf__shared_open(me, (uint64_t)fd, 8192), 0);
    const int next = dup(0); /* the lowest number that is free */
    close(next);
    errno = 0;
    cr_assert_eq(sheaf__shared_open(me, (uint64_t)fd, 8193), -1);
    cr_assert_eq(errno, EBADF);
    cr_assert_eq(sheaf__shared_open(me, (uint64_t)fileno(file), 8192), -1);
    cr_assert_eq(dup(0), next, "a file that was refused is closed");
    cr_assert_eq(sheaf__shared_open(me, 9999, 8192), -1);
    fclose(file);
    close(fd);
}

/* Numbers of a process and a file say little on a host where ranks see other processes. */
Test(world, takes_only_what_was_offered) {
    enum { BYTES = 5000 };
    uint8_t msg[OFFER_BYTES];
    void *mine = NULL, *theirs = NULL;
    int fd;
    cr_assert_eq(offer(BYTES, "x", &fd, &mine, msg), SHEAF_STATUS_SUCCESS);
    cr_assert_eq(take(BYTES, msg, 1, "x", &theirs), SHEAF_STATUS_SUCCESS, "%s", sheaf_last_error());
    ((uint8_t *)mine)[BYTES - 1] = 7;
    cr_expect_eq(((uint8_t *)theirs)[BYTES - 1], 7);
    cr_expect_eq(take(BYTES + 1, msg, 1, "x", &theirs), SHEAF_STATUS_PEER);
    cr_expect(strstr(sheaf_last_error(), "x: rank 1 offers 5000 bytes to share, not 5001"), "%s",
              sheaf_last_error());
    msg[OFFER_TOKEN] ^= 1;
    cr_expect_eq(take(BYTES, msg, 1, "x", &theirs), SHEAF_STATUS_PEER);
    cr_expect(strstr(sheaf_last_error(), "is another process of that number here"), "%s",
              sheaf_last_error());
    sheaf__put_le(msg + OFFER_FD, 9999, 8);
    cr_expect_eq(take(BYTES, msg, 1, "x", &theirs), SHEAF_STATUS_IO);
    cr_expect(strstr(sheaf_last_error(), "run all ranks of a host as one user"), "%s",
              sheaf_last_error());
    cr_expect_null(sheaf__shared_view(-1, SIZE_MAX / 2));
}

Test(world_ranks, know_their_places, .timeout = 120) {
    expect_ok(NULL, 3, "info");
    cr_assert_not_null(strstr(out, "ok rank 2 of 3, host 0 of 1, local 2 of 3, name known"), "%s",
                       out);
    expect_ok("SHEAF_COMM_TRANSPORT=mpi", 2, "info"); /* shares no memory, but the cores */
    cr_assert_not_null(strstr(out, "ok rank 1 of 2, host 0 of 1, local 1 of 2"), "%s", out);
}
/* By taskset, one rank by the first list of CPUs and one by the second. */
Test(world_ranks, know_ranks_on_their_cpus, .timeout = 120) {
    cpu_set_t all;
    char cmd[256], lists[3][16];
    int cpus[2], n = 0;
    cr_assert_eq(sched_getaffinity(0, sizeof all, &all), 0);
    for (int i = 0; i < CPU_SETSIZE && n < 2; i++)
        if (CPU_ISSET((size_t)i, &all)) cpus[n++] = i;
    if (n < 2) cr_skip_test("there is one CPU here");
    snprintf(lists[0], sizeof lists[0], "%d", cpus[0]);
    snprintf(lists[1], sizeof lists[1], "%d", cpus[1]);
    snprintf(lists[2], sizeof lists[2], "%d,%d", cpus[0], cpus[1]);
    static const struct {
        int list[2];
        const char *crowded[2];
    } cases[] = {
        {{0, 1}, {"0 0 1", "0 0 1"}},
        {{0, 0}, {"1 1 1", "1 1 1"}},
        {{2, 2}, {"0 0 1", "0 0 1"}},
        {{0, 2}, {"1 1 1", "0 0 1"}},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        snprintf(cmd, sizeof cmd,
                 "C=%s; [ $R = 0 ] || C=%s; exec taskset -c $C $B/helper-world bindings",
                 lists[cases[i].list[0]], lists[cases[i].list[1]]);
        cr_assert_eq(run_on_ranks(2, NULL, 60, out, sizeof out, cmd), 0, "%s\n%s", cmd, out);
        for (int r = 0; r < 2; r++) {
            char want[64];
            snprintf(want, sizeof want, "ok rank %d, crowded %s\n", r, cases[i].crowded[r]);
            cr_expect(strstr(out, want), "case %zu: no '%s' in\n%s", i, want, out);
        }
    }
    snprintf(cmd, sizeof cmd, "exec taskset -c %s '%s/bin/helper-world' bindings", lists[0],
             SHEAF_BUILD_DIR);
    cr_assert_eq(run_command(cmd, 60, out, sizeof out), 0, "%s", out);
    cr_expect_str_eq(out, "ok rank 0, crowded 0 0 1\n", "without mpirun: %s", out);
}
/* A limit of open files ends a start in many ways, most of them MPI's own, and MPICH's may not end;
 * sheaf names the limit before. */
Test(world_ranks, name_a_low_limit_of_open_files, .timeout = 300) {
    static const struct {
        int limit;
        bool starts, warns; /* starts: surely */
    } cases[] = {{12, false, true}, {16, false, true}, {18, false, true},
                 {20, false, true}, {65, true, true},  {66, true, false}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char cmd[512];
        snprintf(cmd, sizeof cmd,
                 "exec mpirun --allow-run-as-root --oversubscribe -np 2 sh -c 'ulimit -n %d; exec "
                 "%s/bin/helper-world bindings'",
                 cases[i].limit, SHEAF_BUILD_DIR);
        const bool may_hang = run_by_mpich() && !cases[i].starts;
        const int rc = run_command(cmd, may_hang ? 10 : 60, out, sizeof out);
        cr_expect(may_hang || (rc >= 0 && (rc == 0 || !cases[i].starts)), "limit %d: status %d\n%s",
                  cases[i].limit, rc, out);
        cr_expect_eq(strstr(out, "ulimit -n") != NULL, cases[i].warns, "limit %d\n%s",
                     cases[i].limit, out);
    }
}
Test(world_ranks, name_the_limit_that_closes_shared_memory, .timeout = 60) {
    const int rc = run_mpirun(2, NULL, 60, out, sizeof out, "helper-world no-descriptor");
    cr_expect(run_returns(rc, 1), "status %d\n%s", rc, out);
    cr_expect(strstr(out, "cannot open the shared memory of rank 0 (") &&
                  strstr(out, ": Too many open files; raise the limit (ulimit -n))\n"),
              "%s", out);
}
/* On one host it need not look for one; what the user says comes first. */
Test(world_ranks, tell_open_mpi_its_transport, .timeout = 120) {
    const bool five = run_by("Open MPI v5");
    expect_ok(NULL, 2, "transport");
    cr_assert_eq(count(run_by_mpich() ? "pml unset" : "pml ob1"), 2, "%s", out);
    cr_assert_eq(count(five ? "tcp lo" : "tcp unset"), 2, "%s", out);
    cr_expect_eq(count("reachable"), 0, "%s", out); /* Open MPI's words */
    expect_ok("OMPI_MCA_pml=^ucx OMPI_MCA_btl_tcp_if_include=127.0.0.0/8", 2, "transport");
    cr_assert_eq(count("pml ^ucx, tcp 127.0.0.0/8"), 2, "%s", out);
    expect_ok("OMPI_MCA_btl_tcp_if_exclude=sppp", 2, "transport");
    cr_assert_eq(count("tcp unset"), 2, "%s", out);
}
Test(world_ranks, leave_the_transport_between_hosts_to_open_mpi, .timeout = 120) {
    char cmd[1024];
#if defined(__SANITIZE_THREAD__)
    cr_skip_test("UCX's hooks crash in threads that end under ThreadSanitizer, without sheaf too");
#endif
    snprintf(cmd, sizeof cmd,
             "mpirun --allow-run-as-root --oversubscribe -np 2 env OMPI_COMM_WORLD_LOCAL_SIZE=1 "
             "'%s/bin/helper-world' transport",
             SHEAF_BUILD_DIR);
    cr_assert_eq(run_command(cmd, 60, out, sizeof out), 0, "%s", out);
    cr_assert_eq(count("pml unset, tcp unset"), 2, "%s", out);
}
/* Of Open MPI 4: its progress thread outlives them in MPI_Finalize, and may call them. */
Test(world_ranks, keep_components_to_the_end, .timeout = 120) {
    expect_ok(NULL, 2, "components");
    cr_assert_eq(count("WRONG"), 0, "%s", out);
    cr_assert_eq(count(", component"), run_by("Open MPI v4") ? 2 : 0, "%s", out);
}
/* PMIx waits 2 s for it, and then the launcher takes the rank for lost. */
Test(world_ranks, end_behind_a_launcher_that_is_away, .timeout = 120) {
    expect_ok(NULL, 2, "away");
}
Test(world_ranks, call_from_other_threads, .timeout = 60) {
    for (int np = 1; np <= 2; np++) expect_ok(NULL, np, "threads");
}

Test(world_ranks, exchange_control_messages, .timeout = 120) {
    for (int np = 1; np <= 4; np += RANKS_STEP) expect_ok(NULL, np, "control");
}
Test(world_ranks, exchange_blocks, .timeout = 120) {
    for (int np = 2; np <= 4; np += RANKS_STEP) expect_ok(NULL, np, "blocks");
    /* as long as loading may take, where they are waited for in it */
    expect_ok("SHEAF_TIMEOUT_COLLECTIVE_MS=1000", 2, "blocks-load");
    const int rc = run_mpirun(2, "SHEAF_TIMEOUT_COLLECTIVE_MS=1000", 60, out, sizeof out,
                              "helper-world blocks-late");
    cr_expect(run_returns(rc, 1), "status %d\n%s", rc, out);
    cr_expect(strstr(out, "blocks of 'weights': waited 1.0 s for rank 1 (") &&
                  strstr(out, "raise SHEAF_TIMEOUT_COLLECTIVE_MS"),
              "%s", out);
}
/* The rank that notices is the odd one: it names what it has, and the rank that sent it. */
Test(world_ranks, that_disagree_on_blocks_end_with_one_message, .timeout = 120) {
    static const struct {
        const char *mode, *want;
    } cases[] = {
        {"blocks-short", "blocks of 'weights': MPI says of the message with rank 1 ("},
        {"blocks-long", "sent 67 bytes that are not block 2 of 4 bytes"},
        {"blocks-what", "blocks of 'another': rank 1 ("},
        {"blocks-round", "sent 67 bytes that are not block 3 of 3 bytes"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const int rc = run_mpirun(3, "SHEAF_TIMEOUT_MS=5000", 60, out, sizeof out,
                                  "helper-world %s", cases[i].mode);
        cr_expect(run_returns(rc, 1), "%s: status %d\n%s", cases[i].mode, rc, out);
        cr_expect_eq(count("error: "), 1, "%s\n%s", cases[i].mode, out);
        cr_expect(strstr(out, cases[i].want), "%s\n%s", cases[i].mode, out);
        cr_expect_null(strstr(out, "IN_STATUS"), "%s\n%s", cases[i].mode, out);
    }
}
Test(world_ranks, see_all_devices, .timeout = 120) {
    for (int np = 1; np <= 4; np += RANKS_STEP) expect_ok(NULL, np, "devices");
}
Test(world_ranks, refuse_devices_of_unknown_types, .timeout = 60) {
    const int rc = run_mpirun(2, NULL, 60, out, sizeof out, "helper-world unknown-type");
    cr_assert(run_returns(rc, 1), "status %d\n%s", rc, out);
    cr_assert_not_null(strstr(out, "has a device FAKE0@1 of type 99"), "%s", out);
}
Test(world_ranks, wait_for_a_slow_one, .timeout = 120) {
    expect_ok("SHEAF_TIMEOUT_MS=3000", 3, "slow");
}
/* Numbers of files have points, also in a program whose own have commas. */
Test(world_ranks, write_files_in_no_language, .timeout = 60) {
    char folder[] = "/tmp/test-world-XXXXXX", cmd[512];
    cr_assert_not_null(mkdtemp(folder));
    speak_turkish(folder);
    snprintf(cmd, sizeof cmd, "TRACE=%s/trace SHEAF_FLIGHT_DIR=%s/flight", folder, folder);
    const int rc = run_mpirun(2, cmd, 60, out, sizeof out, "helper-world language");
    cr_expect(run_returns(rc, 1), "status %d\n%s", rc, out);
    cr_expect_eq(count("WRONG"), 0, "%s", out);
    snprintf(cmd, sizeof cmd,
             "cd %s; grep -cF '\"dur\":1234.567,' trace; cat flight/*rank* | "
             "grep -cF ' 0.005 1.500 2.500 sum'; rm -r %s",
             folder, folder);
    cr_assert_eq(run_command(cmd, 20, out, sizeof out), 0, "%s", out);
    cr_expect_str_eq(out, "2\n2\n");
}
/* Those that have planned wait for it as long as it may plan. */
Test(world_ranks, wait_for_one_that_plans, .timeout = 120) {
    expect_ok("SHEAF_TIMEOUT_COLLECTIVE_MS=1000 SHEAF_TIMEOUT_PLAN_MS=20000", 3, "plan");
}
/* Those that wait for one that loads see it do so, and that it makes progress. */
Test(world_ranks, wait_for_one_that_loads, .timeout = 120) {
    expect_ok("SHEAF_TIMEOUT_MS=1000", 3, "load");
    expect_ok("SHEAF_TIMEOUT_MS=1000 SHEAF_COMM_TRANSPORT=mpi", 3, "load");
}
Test(world_ranks, wait_for_an_order_without_a_limit, .timeout = 120) {
    /* over TCP the bytes behind the header take a while */
    expect_ok("SHEAF_TIMEOUT_MS=1000 OMPI_MCA_btl=self,tcp", 2, "late-call");
    expect_ok("SHEAF_TIMEOUT_MS=1000 OMPI_MCA_btl=self,tcp", 2, "late-callee");
}
/* In shared memory Open MPI ends a send when the other rank looks for it. */
Test(world_ranks, do_not_wait_until_an_order_is_taken, .timeout = 120) {
    expect_ok(NULL, 3, "many-calls");
    expect_ok("OMPI_MCA_btl=self,tcp", 3, "many-calls");
}
Test(world_ranks, agree_on_the_lowest_failure, .timeout = 120) {
    const int rc = run_mpirun(3, NULL, 60, out, sizeof out, "helper-world agree");
    cr_assert(run_returns(rc, 1), "status %d\n%s", rc, out);
    for (int r = 0; r < 3; r++) {
        char want[64];
        snprintf(want, sizeof want, "ok rank %d heard: rank 1 (", r);
        cr_assert_not_null(strstr(out, want), "%s", out);
    }
    cr_assert_eq(count("): file x is gone"), 4, "%s", out); /* 3 heard, 1 message */
    cr_assert_eq(count("error: "), 1, "%s", out);
}

/* A neighbour has died only if the kernel says so. */
Test(world_ranks, start_without_descriptors_of_processes, .timeout = 120) {
    static const struct {
        int error, status;
        const char *want;
    } cases[] = {
        {ESRCH, 1, "has died"},
        {EMFILE, 1, "no descriptor to watch rank"},
        {EPERM, 0, "ok rank 1"}, /* as older containers forbid it */
        {ENOSYS, 0, "ok rank 1"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char env[64];
        snprintf(env, sizeof env, "SHEAF_TEST_ERROR=%d", cases[i].error);
        const int rc = run_mpirun(2, env, 60, out, sizeof out, "helper-pidfd");
        cr_expect(run_returns(rc, cases[i].status) && strstr(out, cases[i].want), "%s: %d\n%s",
                  strerror(cases[i].error), rc, out);
    }
}

/* One that is stopped is silent, also where the kernel tells nothing of it. */
Test(world_ranks, miss_a_stopped_one_without_descriptors, .timeout = 60) {
    char env[96];
    snprintf(env, sizeof env, "SHEAF_TEST_ERROR=%d SHEAF_TIMEOUT_HEARTBEAT_MS=1500", EPERM);
    const int rc = run_mpirun(3, env, 30, out, sizeof out, "helper-pidfd stop");
    cr_assert(run_returns(rc, 1), "status %d\n%s", rc, out);
    cr_assert_eq(count("rank 1 ("), 1, "%s", out);
    cr_assert_not_null(strstr(out, "has not run for"), "%s", out);
}

/* The shortest silence that the setting takes: a rank that is stopped is missed, and no other. */
Test(world_ranks, take_the_shortest_silence, .timeout = 120) {
    struct sheaf_setting_info info = {.size = sizeof info, .name = ""};
    for (int i = 0; strcmp(info.name, "SHEAF_TIMEOUT_HEARTBEAT_MS"); i++)
        cr_assert_eq(sheaf_setting_get(i, &info), SHEAF_STATUS_SUCCESS);
    char env[128];
    snprintf(env, sizeof env, "SHEAF_TEST_ERROR=%d SHEAF_COMM_TRANSPORT=mpi %s=%ld", EPERM,
             info.name, info.min);
    expect_ok(env, 3, "slow");
    const int rc = run_mpirun(3, env, 30, out, sizeof out, "helper-pidfd stop");
    cr_assert(run_returns(rc, 1), "status %d\n%s", rc, out);
    cr_assert_not_null(strstr(out, "has not been heard of for"), "%s", out);
}

Test(world_ranks, that_disagree_end_with_one_message, .timeout = 300) {
    static const struct {
        const char *mode, *a, *b;
    } cases[] = {
        {"call", "barrier 'one thing'", "all_gather 'another'"},
        {"kind", "barrier 'same'", "all_gather 'same'"},
        {"what", "barrier 'load'", "barrier 'save'"},
        {"size", "all_gather 'sizes'", "5 bytes"},
        {"root", "rank 1 (", "broadcast 'token'"},
        {"skips", "barrier 'gate' (step", "while rank"},
        {"never", "barrier 'gate': waited 2.0 s for rank 1 (", "SHEAF_TIMEOUT_MS"},
        {"alone", "barrier 'gate': waited 2.0 s for rank 1 (", ", and 1 more rank; if"},
        {"quits", "rank 1 gives up", ""},
    };
    static const char *const transports[] = {"auto", "mpi"};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        for (size_t t = 0; t < 2; t++) {
            if (SANITIZED && (i + t) % 2) continue; /* transports take turns */
            char env[128];
            snprintf(env, sizeof env, "SHEAF_TIMEOUT_MS=2000 SHEAF_COMM_TRANSPORT=%s",
                     transports[t]);
            const double start = run_seconds();
            const int rc =
                run_mpirun(3, env, 60, out, sizeof out, "helper-world %s", cases[i].mode);
            cr_expect(run_returns(rc, 1), "%s %s: status %d\n%s", cases[i].mode, transports[t], rc,
                      out);
            cr_expect_lt(run_seconds() - start, 12.0, "%s took too long", cases[i].mode);
            cr_expect_eq(count("error: "), 1, "%s %s\n%s", cases[i].mode, transports[t], out);
            cr_expect(strstr(out, cases[i].a) && strstr(out, cases[i].b), "%s %s: want %s, %s\n%s",
                      cases[i].mode, transports[t], cases[i].a, cases[i].b, out);
        }
}

/* A rank that ends between the mark of its record and the text. A sanitizer that looks for leaks at
 * the end of a rank stops all its threads; a guard of another rank may take it for lost and kill it. */
Test(world_ranks, take_a_torn_record_over, .timeout = 120) {
    static const char *const transports[] = {"auto", "mpi"};
    for (size_t t = 0; t < 2; t++) {
        char env[128];
        snprintf(env, sizeof env, "SHEAF_TIMEOUT_MS=20000 SHEAF_COMM_TRANSPORT=%s", transports[t]);
        const int rc = run_mpirun(3, env, 60, out, sizeof out, "helper-world torn");
        cr_expect(run_returns(rc, 1) || (SANITIZED && run_returns(rc, 128 + SIGKILL)),
                  "status %d\n%s", rc, out);
        cr_expect_eq(count("was lost while it reported a failure"), 1, "%s", out);
        cr_expect_eq(count("error: "), 0, "%s", out);
    }
}

/* A rank that is still in its start when the job fails is no stopped one, which others would kill. */
Test(world_ranks, let_one_in_its_start_live, .timeout = 120) {
    const int rc = run_mpirun(3, NULL, 60, out, sizeof out, "helper-world late");
    cr_expect(run_returns(rc, 1), "status %d\n%s", rc, out);
    cr_expect_eq(count("error: rank 1 gives up"), 1, "%s", out);
    cr_expect(run_by_mpich() || count("signal 9") == 0, "%s", out); /* mpiexec kills the others */
}

/* Nor is one silent that is slow in its start, also for ranks of other hosts. */
Test(world_ranks, wait_for_one_that_is_slow_in_its_start, .timeout = 120) {
    expect_ok("SHEAF_TIMEOUT_HEARTBEAT_MS=1500 SHEAF_COMM_TRANSPORT=mpi", 3, "slow-start");
}

/* A rank that has left a failed job is not silent as a stopped one is. */
Test(world_ranks, end_after_a_failure_when_they_want, .timeout = 120) {
    static const char *const transports[] = {"auto", "mpi"};
    for (size_t t = 0; t < 2; t++) {
        char env[64];
        snprintf(env, sizeof env, "SHEAF_COMM_TRANSPORT=%s", transports[t]);
        const int rc = run_mpirun(2, env, 60, out, sizeof out, "helper-world last-work");
        cr_expect(run_returns(rc, 1), "%s: status %d\n%s", env, rc, out);
        cr_expect_eq(count("error: rank 1 gives up"), 1, "%s\n%s", env, out);
        cr_expect_not_null(strstr(out, "ok rank 1, 1"), "%s\n%s", env, out);
    }
}

/* Any user of a host can take the name first. That neither stops nor silences a job that fails. */
static void speaker(const char *holder, const char *want) {
    char command[512], text[1024];
    double seconds = 0;
    snprintf(command, sizeof command, "exec '%s/bin/helper-speaker' %s", SHEAF_BUILD_DIR, holder);
    const int status = run_command(command, 30, text, sizeof text);
    cr_assert_eq(status, 0, "%s: status %d: %s", holder, status, text);
    cr_assert(!strncmp(text, want, strlen(want)), "%s: %s", holder, text);
    cr_assert(sscanf(text + strlen(want), " after %lf s", &seconds) == 1 && seconds < 12, "%s",
              text);
}
Test(world, of_one_job_has_one_speaker, .timeout = 60) {
    speaker("own", "silent");
    speaker("speaker", "silent");
}
Test(world, speaks_past_other_users, .timeout = 90) {
    if (geteuid() != 0) cr_skip_test("only root can start the process of another user");
    speaker("stranger", "speaks");
    speaker("full", "speaks");
}

/* A launcher of another MPI: three processes, each alone in its world. */
static void refused_once(const char *around) {
    char cmd[1024];
    snprintf(cmd, sizeof cmd,
             "%s for r in 0 1 2; do PMI_SIZE=3 PMI_RANK=$r '" SHEAF_BUILD_DIR
             "/bin/helper-world' refused & done; wait",
             around);
    const int rc = run_command(cmd, 30, out, sizeof out);
    cr_assert_eq(rc, 0, "status %d\n%s", rc, out);
    cr_assert_eq(count("ok\n"), 3, "%s", out);
    cr_assert_eq(count("error: start: the launcher has started 3 ranks, but each is alone"), 1,
                 "%s", out);
    cr_assert_eq(count("error: "), 1, "%s", out);
}
Test(world, of_a_foreign_launcher_is_refused_once, .timeout = 60) { refused_once(""); }
/* Its mpiexec runs inside rank 2 of Open MPI's mpirun, whose variables its processes inherit. */
Test(world, of_a_foreign_launcher_in_a_rank_is_refused_once, .timeout = 60) {
    refused_once("export OMPI_COMM_WORLD_SIZE=4 OMPI_COMM_WORLD_RANK=2;");
}

Test(world_ranks, have_a_number_each_in_the_transport, .timeout = 120) {
    static const char *const values[] = {"hosts:0", "hosts:0,1,0"};
    for (int i = 0; i < 2; i++) {
        char env[64];
        snprintf(env, sizeof env, "SHEAF_COMM_TRANSPORT=%s", values[i]);
        const int rc = run_mpirun(2, env, 30, out, sizeof out, "helper-world info");
        cr_expect(run_returns(rc, 1), "status %d\n%s", rc, out);
        cr_expect_not_null(strstr(out, "but the job has 2 ranks: give a number for each"), "%s",
                           out);
    }
}

/* Ranks must find the same hosts: mpirun hands an environment to its own host's ranks only. */
Test(world_ranks, hear_of_a_transport_that_differs, .timeout = 60) {
    static const char *const settings[] = {"mpi", "hosts:0,1,1"};
    for (size_t i = 0; i < 2; i++) {
        char cmd[128];
        snprintf(cmd, sizeof cmd,
                 "[ $R = 0 ] && export SHEAF_COMM_TRANSPORT=%s; exec $B/helper-world info",
                 settings[i]);
        const int rc = run_on_ranks(3, NULL, 30, out, sizeof out, cmd);
        cr_expect(run_returns(rc, 1), "status %d\n%s", rc, out);
        cr_expect_eq(count("error: "), 1, "%s", out);
        cr_expect_not_null(strstr(out, "setting SHEAF_COMM_TRANSPORT is '"), "%s", out);
        cr_expect_not_null(strstr(out, " and 'auto' on rank 1 ("), "%s", out);
    }
}

Test(world_ranks, hear_of_one_rank_s_bad_setting, .timeout = 60) {
    const int rc =
        run_on_ranks(2, NULL, 30, out, sizeof out,
                     "[ $R = 1 ] && export SHEAF_TIMEOUT_MS=soon; exec $B/helper-world info");
    cr_assert(run_returns(rc, 1), "status %d\n%s", rc, out);
    cr_assert_eq(count("error: rank 1 ("), 1, "%s", out);
    cr_assert_not_null(strstr(out, "SHEAF_TIMEOUT_MS is 'soon'"), "%s", out);
}
