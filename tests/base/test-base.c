/* src/base: settings, log, texts, arrays, hashes. */
#include <criterion/criterion.h>
#include <ctype.h>
#include <fcntl.h>
#include <locale.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/arith.h"
#include "base/arm_cpu.h"
#include "base/array.h"
#include "base/file.h"
#include "base/hash.h"
#include "base/settings.h"
#include "base/shares.h"
#include "base/text.h"
#include "base/thread.h"
#include "languages.h"
#include "sheaf/link.h"
#include "sheaf/log.h"
#include "sheaf/type.h"
#include "temp_dir.h"

static struct sheaf_setting_info info_of(const char *name) {
    for (int i = 0; i < sheaf_setting_count(); i++) {
        struct sheaf_setting_info info = {.size = sizeof info};
        cr_assert_eq(sheaf_setting_get(i, &info), SHEAF_STATUS_SUCCESS);
        if (!strcmp(info.name, name)) return info;
    }
    cr_assert_fail("no setting %s", name);
    abort();
}

Test(settings, come_from_the_program_then_the_environment_then_the_default) {
    long n = 7;
    unsetenv("SHEAF_CPU_THREADS");
    cr_expect_eq(info_of("SHEAF_CPU_THREADS").source, SHEAF_SETTING_DEFAULT);
    cr_expect_eq(sheaf__setting_int(SHEAF__SET_CPU_THREADS, &n), SHEAF_STATUS_SUCCESS);
    cr_expect_eq(n, 7);

    setenv("SHEAF_CPU_THREADS", "3", 1);
    cr_expect_eq(info_of("SHEAF_CPU_THREADS").source, SHEAF_SETTING_ENVIRONMENT);
    cr_expect_eq(sheaf__setting_int(SHEAF__SET_CPU_THREADS, &n), SHEAF_STATUS_SUCCESS);
    cr_expect_eq(n, 3);

    cr_expect_eq(sheaf_setting_set("SHEAF_CPU_THREADS", "5"), SHEAF_STATUS_SUCCESS);
    cr_expect_eq(info_of("SHEAF_CPU_THREADS").source, SHEAF_SETTING_PROGRAM);
    cr_expect_str_eq(sheaf_setting_value("SHEAF_CPU_THREADS"), "5");
    cr_expect_eq(sheaf__setting_int(SHEAF__SET_CPU_THREADS, &n), SHEAF_STATUS_SUCCESS);
    cr_expect_eq(n, 5);

    cr_expect_eq(sheaf_setting_set("SHEAF_CPU_THREADS", NULL), SHEAF_STATUS_SUCCESS);
    cr_expect_str_eq(sheaf_setting_value("SHEAF_CPU_THREADS"), "3");
}

Test(settings, refuse_what_is_out_of_range) {
    const struct {
        const char *name, *value, *says;
    } cases[] = {
        {"SHEAF_CPU_THREADS", "0", "SHEAF_CPU_THREADS is '0'; it takes a whole number from 1 to"},
        {"SHEAF_CPU_THREADS", "", "SHEAF_CPU_THREADS is ''"},
        {"SHEAF_CPU_THREADS", " 1", "SHEAF_CPU_THREADS is ' 1'"},
        {"SHEAF_CPU_THREADS", "+1", "SHEAF_CPU_THREADS is '+1'"},
        {"SHEAF_COMM_WIRE", "f8", "SHEAF_COMM_WIRE is 'f8'; it takes f32, bf16 or q8_0"},
        {"SHEAF_COMM_WIRE", "bf", "SHEAF_COMM_WIRE is 'bf'"},
        {"SHEAF_COM_WIRE", "f32", "there is no 'SHEAF_COM_WIRE'; did you mean SHEAF_COMM_WIRE?"},
        {"HOME", "/", "there is no 'HOME'"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        cr_expect_eq(sheaf_setting_set(cases[i].name, cases[i].value), SHEAF_STATUS_INVALID);
        cr_expect(strstr(sheaf_last_error(), cases[i].says), "%s", sheaf_last_error());
    }
    int choice = 1;
    setenv("SHEAF_COMM_WIRE", "f8", 1);
    cr_expect_eq(sheaf__setting_choice(SHEAF__SET_COMM_WIRE, &choice), SHEAF_STATUS_INVALID);
    cr_expect_eq(choice, 1);
    cr_expect(strstr(info_of("SHEAF_COMM_WIRE").error, "'f8'"));
    setenv("SHEAF_COMM_WIRE", "q8_0", 1);
    cr_expect_eq(sheaf__setting_choice(SHEAF__SET_COMM_WIRE, &choice), SHEAF_STATUS_SUCCESS);
    cr_expect_eq(choice, 2);
    cr_expect_null(info_of("SHEAF_COMM_WIRE").error);
    cr_expect_eq(sheaf_setting_set("SHEAF_COMM_WIRE", ""), SHEAF_STATUS_SUCCESS, "as if unset");
    cr_expect_eq(sheaf__setting_choice(SHEAF__SET_COMM_WIRE, &choice), SHEAF_STATUS_SUCCESS);
    cr_expect_eq(choice, 2);
    long number;
    setenv("SHEAF_CPU_THREADS", "", 1);
    cr_expect_eq(sheaf__setting_int(SHEAF__SET_CPU_THREADS, &number), SHEAF_STATUS_INVALID);
}

Test(settings, all_are_described) {
    for (int i = 0; i < sheaf_setting_count(); i++) {
        struct sheaf_setting_info s = {.size = sizeof s};
        cr_assert_eq(sheaf_setting_get(i, &s), SHEAF_STATUS_SUCCESS);
        cr_expect_eq(strncmp(s.name, "SHEAF_", 6), 0);
        cr_expect(s.help && s.default_value, "%s", s.name);
        cr_expect_eq(s.type == SHEAF_SETTING_INTEGER, s.max > s.min, "%s", s.name);
        cr_expect_eq(s.type == SHEAF_SETTING_CHOICE, s.choices != NULL, "%s", s.name);
    }
    struct sheaf_setting_info none = {.size = sizeof none};
    cr_expect_eq(sheaf_setting_get(-1, &none), SHEAF_STATUS_INVALID);
    cr_expect_eq(sheaf_setting_get(sheaf_setting_count(), &none), SHEAF_STATUS_INVALID);
}

/* A caller of an earlier version, whose struct ends earlier, gets as much. */
Test(settings, descriptions_may_be_shorter) {
    struct sheaf_setting_info info;
    memset(&info, 0x55, sizeof info);
    info.size = offsetof(struct sheaf_setting_info, help);
    cr_assert_eq(sheaf_setting_get(0, &info), SHEAF_STATUS_SUCCESS, "%s", sheaf_last_error());
    cr_expect_str_eq(info.name, "SHEAF_TIMEOUT_MS");
    cr_expect_str_eq(info.default_value, "60000");
    cr_expect_eq(info.size, offsetof(struct sheaf_setting_info, help));
    cr_expect_eq((uintptr_t)info.help, (uintptr_t)0x5555555555555555);
    for (int i = 0; i < 2; i++) {
        info.size = i ? sizeof info + 8 : 0;
        cr_expect_eq(sheaf_setting_get(0, &info), SHEAF_STATUS_INVALID);
        cr_expect(strstr(sheaf_last_error(), "sheaf_setting_info: size is"), "%s",
                  sheaf_last_error());
    }
}

Test(settings, misspelt_variables_are_found) {
    const char *nearest = "";
    int found = 0;
    setenv("SHEAF_TIMOUT_MS", "1", 1);
    setenv("SHEAF_TEST_ANYTHING", "1", 1);
    setenv("SHEAF_QQQQQQQQQQQQ", "1", 1);
    for (int i = 0; i < 2; i++) {
        const char *name = sheaf_setting_unknown(i, &nearest);
        cr_assert_not_null(name);
        if (!strcmp(name, "SHEAF_TIMOUT_MS")) {
            cr_expect_str_eq(nearest, "SHEAF_TIMEOUT_MS");
            found |= 1;
        } else if (!strcmp(name, "SHEAF_QQQQQQQQQQQQ")) {
            cr_expect_null(nearest);
            found |= 2;
        }
    }
    cr_expect_eq(found, 3);
    cr_expect_null(sheaf_setting_unknown(2, &nearest));
}

static char logged[256];
static enum sheaf_log_level logged_level;
static void keep(enum sheaf_log_level level, const char *text, void *user) {
    logged_level = level;
    snprintf(logged, sizeof logged, "%s%s", (const char *)user, text);
}

Test(log, goes_to_the_function_alone) {
    int ends[2];
    char printed[64] = "";
    cr_assert_eq(pipe(ends), 0);
    const int before = dup(STDERR_FILENO);
    dup2(ends[1], STDERR_FILENO);
    sheaf_log_set(keep, "> ");
    sheaf_log(SHEAF_LOG_WARN, "%d lines", 2);
    sheaf_log_set(NULL, NULL);
    sheaf_log(SHEAF_LOG_INFO, "printed");
    dup2(before, STDERR_FILENO);
    close(ends[1]);
    const ssize_t n = read(ends[0], printed, sizeof printed - 1);
    cr_expect_str_eq(logged, "> 2 lines");
    cr_expect_eq(logged_level, SHEAF_LOG_WARN);
    cr_expect_eq(n, 15);
    cr_expect_str_eq(printed, "sheaf: printed\n");
}

Test(text, is_cut_and_counted) {
    char memory[6];
    struct sheaf__text t = {memory, sizeof memory, 0};
    sheaf__put(&t, "%s", "abc");
    cr_expect_str_eq(memory, "abc");
    sheaf__put(&t, "%s", "defgh");
    cr_expect_str_eq(memory, "abcde");
    sheaf__put(&t, "i");
    cr_expect_str_eq(memory, "abcde");
    cr_expect_eq(t.n, 9);
    cr_expect_eq(sheaf__word_distance("kitten", "sitting"), 3);
    cr_expect_eq(sheaf__word_distance("", "abc"), 3);
    cr_expect_eq(sheaf__word_distance("same", "same"), 0);
}

Test(shares, are_numbers_with_commas) {
    static const char *const none[] = {
        "",     ",",   "1,",  ",1",  "3,,1", "0",   "0,0",  "-1",    "+1",   " 1",    "1 ",
        "1, 2", "nan", "inf", "0x1", "2e12", "1;2", "even", "3,1,x", "-0,1", "1e400", "1.5.2"};
    double shares[3] = {0};
    for (size_t i = 0; i < sizeof none / sizeof *none; i++)
        cr_expect_eq(sheaf__read_shares(none[i], shares, 3), 0, "%s", none[i]);
    cr_expect_eq(sheaf__read_shares("3,0,.5", shares, 3), 3);
    cr_expect(shares[0] == 3 && shares[1] == 0 && shares[2] == 0.5);
    cr_expect_eq(sheaf__read_shares("1e12,7,8,9", shares, 2), 4);
    cr_expect(shares[0] == 1e12 && shares[1] == 7 && shares[2] == 0.5);
    cr_expect_eq(sheaf__read_shares("1,2", NULL, 0), 2);
}

/* The program around the library may speak its user's language: in Turkish "3,1" is a number, and I is
 * another letter than i. */
Test(locale, changes_no_setting, .init = setup, .fini = teardown) {
    double shares[2] = {0};
    speak_turkish(dir);
    cr_assert_not_null(setlocale(LC_ALL, ""));
    cr_assert(strtod("3,1", NULL) > 3 && tolower('I') != 'i');
    cr_expect_eq(sheaf__read_shares("3,1", shares, 2), 2);
    cr_expect_eq(sheaf__read_shares("2.5", shares, 2), 1);
    cr_expect(shares[0] == 2.5 && shares[1] == 1);
    cr_expect_eq(sheaf_type_from_name("iq4_nl"), SHEAF_TYPE_IQ4_NL);
}

Test(array, grows_and_keeps) {
    int *at = NULL;
    size_t cap = 0;
    for (int i = 0; i < 1000; i++) {
        cr_assert(sheaf__grow(&at, &cap, (size_t)i + 1, sizeof *at));
        at[i] = i;
    }
    for (int i = 0; i < 1000; i++) cr_assert_eq(at[i], i);
    cr_expect_eq(cap, 1024);
    cr_expect_not(sheaf__grow(&at, &cap, SIZE_MAX / 2, sizeof *at));
    cr_expect_eq(at[999], 999);
    cr_expect_eq(cap, 1024);
    free(at);
}

Test(numbers, are_those_of_the_sources) {
    /* FNV-1a of "a", and the first number of splitmix64 from state 0, as published */
    cr_expect_eq(sheaf__hash_bytes(0, "a", 1), 0xAF63DC4C8601EC8Cu);
    uint64_t state = 0;
    cr_expect_eq(sheaf__random(&state), 0xE220A8397B1DCDAFu);
    cr_expect_eq(sheaf__gcd(12, 18), 6);
    cr_expect_eq(sheaf__gcd(0, 5), 5);
    cr_expect_eq(sheaf__align_up(13, 8), 16);
}

Test(link, sums_travel_whole_or_in_parts) {
    const struct sheaf_link two = {2, 1000, 200}, eight = {8, 1000, 200}, none = {1, 1000, 200};
    const struct {
        const struct sheaf_link *link;
        int64_t bytes, all_reduce, gather;
    } cases[] = {
        {&none, 1 << 20, 0, 0},
        {&two, 0, 1000, 1000},
        {&two, 10000, 3000, 2000},  /* whole: a + 2000 */
        {&two, 10001, 3000, 2000},  /* a fifth of a nanosecond is none */
        {&eight, 1000, 2350, 1175}, /* in parts: 2 (a + 7/8 of 200), whole: a + 1400 */
        {&eight, 500, 1700, 1087},  /* whole: a + 700 */
        {&two, 1000000000, 200001000, 100001000},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        cr_expect_eq(sheaf_link_all_reduce_ns(cases[i].link, cases[i].bytes), cases[i].all_reduce,
                     "case %zu: %lld", i,
                     (long long)sheaf_link_all_reduce_ns(cases[i].link, cases[i].bytes));
        cr_expect_eq(sheaf_link_gather_ns(cases[i].link, cases[i].bytes), cases[i].gather,
                     "case %zu: %lld", i,
                     (long long)sheaf_link_gather_ns(cases[i].link, cases[i].bytes));
    }
}

Test(link, long_times_stay_in_range) {
    const struct sheaf_link slow = {1 << 30, INT64_MAX, INT64_MAX};
    const int64_t longest = INT64_MAX / 1024;
    cr_expect_eq(sheaf_link_all_reduce_ns(&slow, INT64_MAX), longest);
    cr_expect_eq(sheaf_link_gather_ns(&slow, INT64_MAX), longest);
    cr_expect_eq(sheaf_link_all_reduce_ns(&slow, 0), longest);
}

/* The guard of a failing job prints its message whatever reads the pipe behind it. */
Test(log, does_not_wait_for_ever_for_a_full_pipe, .timeout = 60) {
    int fd[2], status;
    char block[4096] = "";
    cr_assert_eq(pipe(fd), 0);
    const pid_t pid = fork();
    cr_assert_geq(pid, 0);
    if (pid == 0) {
        alarm(30);
        fcntl(fd[1], F_SETFL, O_NONBLOCK);
        while (write(fd[1], block, sizeof block) > 0) {
        }
        fcntl(fd[1], F_SETFL, 0);
        dup2(fd[1], STDERR_FILENO);
        sheaf_log(SHEAF_LOG_ERROR, "no process reads this");
        _exit(0);
    }
    cr_assert_eq(waitpid(pid, &status, 0), pid);
    cr_assert(WIFEXITED(status) && WEXITSTATUS(status) == 0, "status %d", status);
}

/* It is written in pieces. */
Test(log, a_long_message_arrives_whole) {
    enum { N = 7000 };
    static char text[N + 1], want[N + 32], got[N + 32];
    int fd[2];
    for (int i = 0; i < N; i++) text[i] = (char)('a' + i * 7 % 26);
    snprintf(want, sizeof want, "sheaf: %s\n", text);
    cr_assert_eq(pipe(fd), 0);
    const int before = dup(STDERR_FILENO);
    dup2(fd[1], STDERR_FILENO);
    sheaf_log(SHEAF_LOG_ERROR, "%s", text);
    dup2(before, STDERR_FILENO);
    close(fd[1]);
    size_t n = 0;
    for (ssize_t some; (some = read(fd[0], got + n, sizeof got - 1 - n)) > 0;) n += (size_t)some;
    cr_expect_str_eq(got, want);
}

Test(status, keeps_a_long_text) {
    static char text[1001];
    memset(text, 'x', 1000);
    sheaf_set_error(SHEAF_STATUS_INVALID, "%s", text);
    cr_expect_str_eq(sheaf_last_error(), text);
}

Test(status, shows_no_control_bytes) {
    sheaf_set_error(SHEAF_STATUS_INVALID, "key '%s'", "a\033]0;title\007\nsheaf: all is well\177");
    cr_assert_str_eq(sheaf_last_error(), "key 'a?]0;title??sheaf: all is well?'");
}

static void *blocked_signals(void *out) {
    pthread_sigmask(SIG_SETMASK, NULL, out);
    return NULL;
}

Test(thread, takes_no_signals) {
    sigset_t there, here;
    pthread_t thread;
    cr_assert_eq(sheaf__thread_start(&thread, blocked_signals, &there), 0);
    pthread_join(thread, NULL);
    pthread_sigmask(SIG_SETMASK, NULL, &here);
    for (int s = 1; s < 32; s++) {
        if (s != SIGKILL && s != SIGSTOP) cr_expect(sigismember(&there, s), "signal %d", s);
        cr_expect_not(sigismember(&here, s), "signal %d", s);
    }
}

/* A disk that is full for the first write only, as when another program removes a file. */
static ssize_t fail_once(void *user, const char *data, size_t n) {
    int *writes = user;
    (void)data;
    if ((*writes)++) return (ssize_t)n;
    errno = ENOSPC;
    return 0;
}

Test(file, says_what_to_do_when_too_many_are_open) {
    cr_expect_str_eq(sheaf__errno_text(EMFILE), "Too many open files; raise the limit (ulimit -n)");
    cr_expect_str_eq(sheaf__errno_text(ENOENT), strerror(ENOENT));
}

Test(file, tells_at_its_end_that_a_write_was_lost) {
    static const char line[] = "some words\n";
    int writes = 0;
    FILE *f = fopen("/dev/full", "w");
    cr_assert_not_null(f);
    fputs(line, f);
    cr_expect_eq(sheaf__close_written(f), ENOSPC, "what is still buffered");

    f = fopencookie(&writes, "w", (cookie_io_functions_t){.write = fail_once});
    cr_assert_not_null(f);
    setvbuf(f, NULL, _IOLBF, 64);
    for (int i = 0; i < 10; i++) fputs(line, f);
    cr_expect_gt(writes, 1, "later ones arrived");
    errno = 0; /* as if another call had succeeded since */
    cr_expect_eq(sheaf__close_written(f), EIO, "the first one was lost");

    f = fopen("/dev/null", "w");
    cr_assert_not_null(f);
    fputs(line, f);
    errno = EAGAIN;
    cr_expect_eq(sheaf__close_written(f), 0, "an errno of something else");
}

/* With two decimals, as messages print them. */
Test(arith, a_need_that_is_greater_reads_as_greater) {
    const size_t gib = (size_t)1 << 30,
                 sizes[] = {0, 1, gib / 100 * 28, gib / 4, gib - 1, gib, 70 * gib + gib / 3};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        char needed[32], available[32];
        snprintf(needed, sizeof needed, "%.2f", sheaf__gib_needed(sizes[i] + 1));
        snprintf(available, sizeof available, "%.2f", sheaf__gib_free(sizes[i]));
        cr_expect_gt(strtod(needed, NULL), strtod(available, NULL), "%s, %s", needed, available);
        cr_expect_lt(strtod(needed, NULL) - (double)sizes[i] / (double)gib, 0.0101, "%s", needed);
        cr_expect_lt((double)sizes[i] / (double)gib - strtod(available, NULL), 0.0101, "%s",
                     available);
    }
    cr_expect(sheaf__gib_needed(3 * gib / 4) == 0.75 && sheaf__gib_free(3 * gib / 4) == 0.75);
}

Test(arm_cpu, has_the_name_of_its_numbers) {
    cr_expect_str_eq(sheaf__arm_cpu_name("0x41", "0xd0c"), "Neoverse N1");
    cr_expect_str_eq(sheaf__arm_cpu_name("0xc0", "0xac3"), "AmpereOne");
    cr_expect_null(sheaf__arm_cpu_name("0xc0", "0xd0c"), "a part is one of its implementer's");
    cr_expect_null(sheaf__arm_cpu_name("0x41", "0x1"));
    cr_expect_null(sheaf__arm_cpu_name("", ""), "no ARM");
    cr_expect_null(sheaf__arm_cpu_name(NULL, "0xd0c"));
    cr_expect_null(sheaf__arm_cpu_name("0x41", NULL));
}
