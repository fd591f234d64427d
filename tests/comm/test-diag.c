/* What the flight recorder and the trace write of a process. Without ranks. */
#include <criterion/criterion.h>
#include <locale.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#include "comm/diag/recorder.h"
#include "comm/diag/trace_file.c"
#include "comm/world/world.h"
#include "sheaf/log.h"

static char text[1 << 20];

static const char *read_file(const char *path) {
    FILE *f = fopen(path, "r");
    cr_assert_not_null(f, "%s", path);
    text[fread(text, 1, sizeof text - 1, f)] = 0;
    fclose(f);
    return text;
}

/* ---- the flight recorder ---- */

static char folder[] = "/tmp/test-diag-XXXXXX";

/* The dump of this process, as that of a rank. */
static const char *dump_as(int rank, int place) {
    char path[128];
    sheaf__recorder_dump(rank, place);
    snprintf(path, sizeof path, "%s/sheaf-%016llx-rank%d.flight", folder, 0ull, rank);
    return access(path, F_OK) ? NULL : read_file(path);
}

static int n_logged;
static void count_log(enum sheaf_log_level level, const char *line, void *user) {
    (void)level;
    (void)user;
    n_logged += strstr(line, "cannot write ") != NULL;
}

Test(recorder, writes_what_was_recorded) {
    enum { PLACE = 1 };
    cr_assert_not_null(mkdtemp(folder));
    setenv("SHEAF_FLIGHT_DIR", folder, 1);
    cr_expect_null(dump_as(0, PLACE), "nothing is recorded yet");
    uint8_t *memory = aligned_alloc(128, 2 * sheaf__recorder_bytes());
    cr_assert_not_null(memory);
    memset(memory, 0, 2 * sheaf__recorder_bytes());
    sheaf__recorders_place(memory, PLACE);
    cr_assert(sheaf__recording());
    sheaf__record_begin(0x7010009, SHEAF_COMM_ALL_REDUCE, 3, 16, 5, "two\nlines", 1500);
    sheaf__record_end(2000, 3000);
    sheaf__record_begin(9, SHEAF_COMM_BROADCAST, 4, 8, 6, "x", 4000);
    sheaf__record_begin(8, SHEAF_COMM_BARRIER, 0, 0, 1, "of another group", 5000);
    sheaf__record_end_group(9, 9000); /* what has ended before stays */
    sheaf_log_set(count_log, NULL);
    signal(SIGXFSZ, SIG_IGN);
    struct rlimit limit, full;
    cr_assert(!getrlimit(RLIMIT_FSIZE, &limit));
    full = (struct rlimit){100, limit.rlim_max};
    cr_assert(!setrlimit(RLIMIT_FSIZE, &full));
    const char *all = dump_as(0, PLACE);
    cr_assert(!setrlimit(RLIMIT_FSIZE, &limit));
    cr_expect(!all && n_logged == 1, "a dump that was cut off is removed");
    sheaf__board_own();
    sheaf__enter(SHEAF_PHASE_COMPUTE, "more\nlines", 1);
    all = dump_as(0, PLACE);
    cr_assert_not_null(all);
    cr_expect_eq(uselocale((locale_t)0), LC_GLOBAL_LOCALE);
    cr_expect(strstr(all, "\ndoing compute 'more?lines'\n"), "%s", all);
    cr_expect(strstr(all, "\nrecords 3\n# sequence group kind node bytes start_us wait_us total_us "
                          "tensor\n"
                          "5 65545 all_reduce 3 16 1.500 2.000 3.000 two?lines\n"
                          "6 9 broadcast 4 8 4.000 0.000 5.000 x\n"
                          "1 8 barrier 0 0 5.000 0.000 open of another group\n"),
              "%s", all);
    /* a ring: the third is the oldest that is left; it is not written over where it ends */
    for (uint64_t i = 2; i <= SHEAF__RECORDS; i++)
        sheaf__record_begin(7, SHEAF_COMM_BARRIER, 0, 0, i, "later", 6000);
    sheaf__record_end_group(8, 9000);
    char first[256];
    snprintf(first, sizeof first,
             "\nrecords %d\n# sequence group kind node bytes start_us wait_us "
             "total_us tensor\n1 8 barrier 0 0 5.000 0.000 4.000 of another group\n2 7 barrier",
             SHEAF__RECORDS + 2);
    cr_expect(strstr(dump_as(1, PLACE), first), "%.600s", text);
    char last[128]; /* in the places of the first two */
    snprintf(last, sizeof last,
             "\n%d 7 barrier 0 0 6.000 0.000 open later\n%d 7 barrier 0 0 6.000 0.000 open later\n",
             SHEAF__RECORDS - 1, SHEAF__RECORDS);
    cr_expect(strstr(text, last), "%s", text + strlen(text) - 200);
    const int next = dup(0); /* the lowest number that is free */
    close(next);
    sheaf__recorder_dump(1, PLACE); /* it is there */
    cr_expect_eq(dup(0), next, "a file stays open");
    cr_expect_eq(n_logged, 1);
    sheaf__set_recording(false);
    cr_expect_not(sheaf__recording());
    sheaf__recorders_place(NULL, 0);
    cr_expect_not(sheaf__recording());
    free(memory);
    char command[64];
    snprintf(command, sizeof command, "rm -r %s", folder);
    cr_expect_eq(system(command), 0);
}

/* ---- the trace ---- */

Test(trace, writes_what_was_traced) {
    char path[] = "/tmp/test-diag-XXXXXX";
    const int fd = mkstemp(path);
    cr_assert_geq(fd, 0);
    close(fd);
    cr_expect_eq(sheaf_trace_write(path), SHEAF_STATUS_INVALID);
    cr_expect_eq(sheaf_trace_start(((size_t)1 << 24) + 1), SHEAF_STATUS_INVALID);
    cr_expect_not(sheaf__tracing());
    cr_assert_eq(sheaf_trace_start(2), SHEAF_STATUS_SUCCESS, "%s", sheaf_last_error());
    cr_expect_eq(sheaf_trace_start(2), SHEAF_STATUS_INVALID);
    cr_expect(strstr(sheaf_last_error(), "it was started before"), "%s", sheaf_last_error());
    cr_assert(sheaf__tracing());
    clock_offset = 5000; /* as on a host whose clock is late */
    sheaf__trace(SHEAF__TRACE_COMPUTE, "nothing", 500, 0);
    sheaf__trace(SHEAF__TRACE_COMPUTE, "a\"b\\c\n\x80", 1000, 500);
    sheaf__trace_beside(true);
    sheaf__trace(SHEAF__TRACE_WIRE, "beside", 3000, 250);
    sheaf__trace(SHEAF__TRACE_WAIT, "without room", 4000, 250);
    sheaf__trace_beside(false);
    sheaf__trace(SHEAF__TRACE_WAIT, "of a thread that is not traced", 5000, 250);
    cr_expect_not(sheaf__tracing());
    sheaf__events_own(); /* as a thread that takes the main one's place */
    cr_expect(sheaf__tracing());
    cr_assert_eq(sheaf_trace_write(path), SHEAF_STATUS_SUCCESS, "%s", sheaf_last_error());
    cr_expect_not(sheaf__tracing());
    cr_expect_eq(uselocale((locale_t)0), LC_GLOBAL_LOCALE);
    static const char *const wants[] = {
        "\"name\":\"rank 0\",\"dropped\":1}",
        "\"tid\":1,\"args\":{\"name\":\"rank 0, communication\"}",
        "\"tid\":0,\"ts\":5.000,\"dur\":0.500,\"cat\":\"compute\",\"name\":\"a\\\"b\\\\c??\",",
        "\"tid\":1,\"ts\":7.000,\"dur\":0.250,\"cat\":\"wire\",\"name\":\"beside\",",
    };
    read_file(path);
    for (size_t i = 0; i < sizeof wants / sizeof *wants; i++)
        cr_expect(strstr(text, wants[i]), "no %s in %s", wants[i], text);
    cr_expect_null(strstr(text, "nothing"));
    cr_expect_null(strstr(text, "without room"));
    cr_expect_null(strstr(text, "not traced"));
    cr_expect_null(sheaf__events());
    cr_assert_eq(sheaf_trace_start(2), SHEAF_STATUS_SUCCESS, "%s", sheaf_last_error());
    cr_expect_eq(sheaf__events()->n_asked, 0, "the next trace begins with nothing");
    unlink(path);
}

Test(trace, says_where_it_cannot_write) {
    cr_assert_eq(sheaf_trace_start(0), SHEAF_STATUS_SUCCESS);
    cr_expect_eq(sheaf__events()->cap, 200000, "as many events as it holds unless told");
    cr_expect_eq(sheaf_trace_write("/nonexistent/trace"), SHEAF_STATUS_IO);
    cr_expect(strstr(sheaf_last_error(), "cannot create /nonexistent/trace"), "%s",
              sheaf_last_error());
    cr_assert_eq(sheaf_trace_start(0), SHEAF_STATUS_SUCCESS, "%s", sheaf_last_error());
    cr_expect_eq(sheaf_trace_write("/dev/full"), SHEAF_STATUS_IO);
    cr_expect(strstr(sheaf_last_error(), "cannot write /dev/full"), "%s", sheaf_last_error());
}
