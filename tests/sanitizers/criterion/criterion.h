/* Criterion's macros for builds under ThreadSanitizer, which Criterion itself cannot run in: it
 * shares memory between its processes at addresses that ThreadSanitizer keeps for itself. Same
 * tests, same summary line: every test runs in a forked child with a time limit; a child that ends
 * badly is a failed test. Only the macros that our suites use. */
#ifndef SHEAF_TESTS_TSAN_CRITERION_H
#define SHEAF_TESTS_TSAN_CRITERION_H

#include <fnmatch.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

struct tsan_options {
    void (*init)(void), (*fini)(void);
    double timeout;
    bool disabled;
    int signal; /* that ends the test */
};
struct tsan_test { /* a suite, if run is NULL */
    const char *suite, *name;
    void (*run)(void);
    struct tsan_options options;
    struct tsan_test *next;
};
static struct tsan_test *tsan_tests, **tsan_last = &tsan_tests;
static bool tsan_failed;

#define TSAN_REGISTER(s, n, f, ...)                                                                \
    static struct tsan_test s##_##n##_entry = {#s, #n, f, {__VA_ARGS__}, NULL};                    \
    __attribute__((constructor)) static void s##_##n##_register(void) {                            \
        *tsan_last = &s##_##n##_entry;                                                             \
        tsan_last = &s##_##n##_entry.next;                                                         \
    }
#define Test(s, n, ...)                                                                            \
    static void s##_##n##_test(void);                                                              \
    TSAN_REGISTER(s, n, s##_##n##_test, __VA_ARGS__)                                               \
    static void s##_##n##_test(void)
#define TestSuite(s, ...) TSAN_REGISTER(s, suite_options, NULL, __VA_ARGS__) struct tsan_test

__attribute__((format(printf, 6, 7))) static inline void tsan_check(bool fatal, bool good,
                                                                    const char *file, int line,
                                                                    const char *what,
                                                                    const char *fmt, ...) {
    if (good) return;
    va_list ap;
    fprintf(stderr, "[----] %s:%d: Assertion Failed: %s: ", file, line, what);
    va_start(ap, fmt);
    vfprintf(stderr, fmt, ap);
    va_end(ap);
    fprintf(stderr, "\n");
    tsan_failed = true;
    if (fatal) exit(1);
}
#define TSAN_CHECK(fatal, cond, what, ...)                                                         \
    tsan_check(fatal, cond, __FILE__, __LINE__, what, " " __VA_ARGS__)
#define TSAN_NEAR(a, b, e) ((a) - (b) <= (e) && (b) - (a) <= (e))

#define cr_assert(c, ...)               TSAN_CHECK(true, c, #c, __VA_ARGS__)
#define cr_assert_not(c, ...)           TSAN_CHECK(true, !(c), "not " #c, __VA_ARGS__)
#define cr_assert_fail(...)             TSAN_CHECK(true, false, "fail", __VA_ARGS__)
#define cr_assert_eq(a, b, ...)         TSAN_CHECK(true, (a) == (b), #a " == " #b, __VA_ARGS__)
#define cr_assert_neq(a, b, ...)        TSAN_CHECK(true, (a) != (b), #a " != " #b, __VA_ARGS__)
#define cr_assert_lt(a, b, ...)         TSAN_CHECK(true, (a) < (b), #a " < " #b, __VA_ARGS__)
#define cr_assert_gt(a, b, ...)         TSAN_CHECK(true, (a) > (b), #a " > " #b, __VA_ARGS__)
#define cr_assert_leq(a, b, ...)        TSAN_CHECK(true, (a) <= (b), #a " <= " #b, __VA_ARGS__)
#define cr_assert_geq(a, b, ...)        TSAN_CHECK(true, (a) >= (b), #a " >= " #b, __VA_ARGS__)
#define cr_assert_null(a, ...)          TSAN_CHECK(true, !(a), #a " is null", __VA_ARGS__)
#define cr_assert_not_null(a, ...)      TSAN_CHECK(true, (a) != NULL, #a " is not null", __VA_ARGS__)
#define cr_assert_str_eq(a, b, ...)     TSAN_CHECK(true, !strcmp(a, b), #a " is " #b, __VA_ARGS__)
#define cr_assert_str_neq(a, b, ...)    TSAN_CHECK(true, strcmp(a, b), #a " is not " #b, __VA_ARGS__)
#define cr_assert_str_empty(a, ...)     TSAN_CHECK(true, !*(a), #a " is empty", __VA_ARGS__)
#define cr_assert_str_not_empty(a, ...) TSAN_CHECK(true, *(a), #a " is not empty", __VA_ARGS__)
#define cr_assert_arr_eq(a, b, n, ...)                                                             \
    TSAN_CHECK(true, !memcmp(a, b, n), #a " equals " #b, __VA_ARGS__)
#define cr_assert_arr_neq(a, b, n, ...)                                                            \
    TSAN_CHECK(true, memcmp(a, b, n), #a " differs from " #b, __VA_ARGS__)
#define cr_assert_float_eq(a, b, e, ...)                                                           \
    TSAN_CHECK(true, TSAN_NEAR(a, b, e), #a " is near " #b, __VA_ARGS__)

#define cr_expect(c, ...)               TSAN_CHECK(false, c, #c, __VA_ARGS__)
#define cr_expect_not(c, ...)           TSAN_CHECK(false, !(c), "not " #c, __VA_ARGS__)
#define cr_expect_fail(...)             TSAN_CHECK(false, false, "fail", __VA_ARGS__)
#define cr_expect_eq(a, b, ...)         TSAN_CHECK(false, (a) == (b), #a " == " #b, __VA_ARGS__)
#define cr_expect_neq(a, b, ...)        TSAN_CHECK(false, (a) != (b), #a " != " #b, __VA_ARGS__)
#define cr_expect_lt(a, b, ...)         TSAN_CHECK(false, (a) < (b), #a " < " #b, __VA_ARGS__)
#define cr_expect_gt(a, b, ...)         TSAN_CHECK(false, (a) > (b), #a " > " #b, __VA_ARGS__)
#define cr_expect_leq(a, b, ...)        TSAN_CHECK(false, (a) <= (b), #a " <= " #b, __VA_ARGS__)
#define cr_expect_geq(a, b, ...)        TSAN_CHECK(false, (a) >= (b), #a " >= " #b, __VA_ARGS__)
#define cr_expect_null(a, ...)          TSAN_CHECK(false, !(a), #a " is null", __VA_ARGS__)
#define cr_expect_not_null(a, ...)      TSAN_CHECK(false, (a) != NULL, #a " is not null", __VA_ARGS__)
#define cr_expect_str_eq(a, b, ...)     TSAN_CHECK(false, !strcmp(a, b), #a " is " #b, __VA_ARGS__)
#define cr_expect_str_neq(a, b, ...)    TSAN_CHECK(false, strcmp(a, b), #a " is not " #b, __VA_ARGS__)
#define cr_expect_str_empty(a, ...)     TSAN_CHECK(false, !*(a), #a " is empty", __VA_ARGS__)
#define cr_expect_str_not_empty(a, ...) TSAN_CHECK(false, *(a), #a " is not empty", __VA_ARGS__)
#define cr_expect_arr_eq(a, b, n, ...)                                                             \
    TSAN_CHECK(false, !memcmp(a, b, n), #a " equals " #b, __VA_ARGS__)
#define cr_expect_float_eq(a, b, e, ...)                                                           \
    TSAN_CHECK(false, TSAN_NEAR(a, b, e), #a " is near " #b, __VA_ARGS__)

#define cr_log_error(...)                                                                          \
    do {                                                                                           \
        fprintf(stderr, "[----] " __VA_ARGS__);                                                    \
        fprintf(stderr, "\n");                                                                     \
    } while (0)

enum { TSAN_SKIPPED = 77 };
#define cr_skip(...) cr_skip_test(__VA_ARGS__)
#define cr_skip_test(...)                                                                          \
    do {                                                                                           \
        fprintf(stderr, "[SKIP] " __VA_ARGS__);                                                    \
        fprintf(stderr, "\n");                                                                     \
        exit(TSAN_SKIPPED);                                                                        \
    } while (0)

static inline const struct tsan_options *tsan_suite(const char *suite) {
    static const struct tsan_options none;
    for (const struct tsan_test *t = tsan_tests; t; t = t->next) {
        if (!t->run && !strcmp(t->suite, suite)) return &t->options;
    }
    return &none;
}

/* Of Criterion's options, --filter SUITE/NAME with wildcards. */
int main(int argc, char **argv) {
    int tested = 0, failed = 0;
    const char *filter = "*";
    for (int i = 1; i + 1 < argc; i++)
        if (!strcmp(argv[i], "--filter")) filter = argv[i + 1];
    for (const struct tsan_test *t = tsan_tests; t; t = t->next) {
        if (!t->run || t->options.disabled) continue;
        char name[256];
        snprintf(name, sizeof name, "%s/%s", t->suite, t->name);
        if (fnmatch(filter, name, 0)) continue;
        const struct tsan_options *suite = tsan_suite(t->suite);
        const double limit = t->options.timeout > 0 ? t->options.timeout
                             : suite->timeout > 0   ? suite->timeout
                                                    : 300;
        int status = 0;
        fflush(NULL);
        pid_t pid = fork();
        if (pid == 0) {
            alarm((unsigned)limit + 1);
            void (*init)(void) = t->options.init ? t->options.init : suite->init;
            void (*fini)(void) = t->options.fini ? t->options.fini : suite->fini;
            if (init) init();
            t->run();
            if (fini) fini();
            exit(tsan_failed);
        }
        if (pid < 0 || waitpid(pid, &status, 0) != pid) return 1;
        if (WIFEXITED(status) && WEXITSTATUS(status) == TSAN_SKIPPED) continue;
        const bool good = t->options.signal
                              ? WIFSIGNALED(status) && WTERMSIG(status) == t->options.signal
                              : WIFEXITED(status) && WEXITSTATUS(status) == 0;
        fprintf(stderr, "[%s] %s::%s\n", good ? "PASS" : "FAIL", t->suite, t->name);
        tested++;
        failed += !good;
    }
    fprintf(stderr, "[====] Synthesis: Tested: %d | Passing: %d | Failing: %d | Crashing: 0\n",
            tested, tested - failed, failed);
    return failed != 0;
}

#endif
