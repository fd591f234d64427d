/* CPU kernels in modules: the best that this CPU runs is found without a call, wherever the
 * library was installed; a broken file is named and the next best is used; a file that
 * SHEAF_CPU_ISA names must be there. Each case is a process of its own, as the choice is made once.
 */
#include <criterion/criterion.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#include "cpu/kernels/kernels.h"
#include "mpirun.h"

static char dir[] = "/tmp/sheaf-kernels.XXXXXX";

/* The command runs in the temporary folder. $F: files of tests/cpu/modules/kernels.c, $I:
 * sheaf-info of an installation that was moved, $L: the library's folder there. */
static int run(const char *cmd, char *out, size_t cap) {
    char line[4096];
    snprintf(line, sizeof line,
             "cd %s; unset SHEAF_CPU_ISA SHEAF_BACKEND_PATH SHEAF_BACKEND_DEBUG\n"
             "F='%s/lib/modules/kernels'; I=\"$PWD/moved/bin/sheaf-info\"\n"
             "L=$(dirname \"$PWD\"/moved/lib*/libsheaf.so \"$PWD\"/moved/lib*/*/libsheaf.so "
             "2>/dev/null | head -1)\n%s",
             dir, SHEAF_BUILD_DIR, cmd);
    return run_command(line, 120, out, cap);
}

static void install(void) {
    char line[1024], out[4096];
    cr_assert_not_null(mkdtemp(dir));
    snprintf(line, sizeof line,
             "cmake --install '%s' --prefix first > log 2>&1 && mv first moved || { cat log; exit "
             "1; }",
             SHEAF_BUILD_DIR);
    cr_assert_eq(run(line, out, sizeof out), 0, "%s", out);
}

static void uninstall(void) {
    char cmd[100];
    snprintf(cmd, sizeof cmd, "rm -rf %s", dir);
    run_command(cmd, 60, NULL, 0);
}

TestSuite(cpu_modules, .init = install, .fini = uninstall);

/* The rank-th best table that runs here: 0 is the best. Portable at the worst. */
static const char *table(int rank) {
    const char *name = NULL;
    int n = 0;
    while (sheaf__cpu_kernels_at(n)) n++;
    name = sheaf__cpu_kernels_at(n - 1 - rank < 0 ? 0 : n - 1 - rank)->name;
    return name;
}

/* Exit status 0, and a device that uses `isa`. */
static void uses(const char *what, int status, const char *out, const char *isa) {
    char text[64];
    snprintf(text, sizeof text, " cores, %s, ", isa);
    cr_expect_eq(status, 0, "%s: status %d\n%s", what, status, out);
    cr_expect(strstr(out, text) || strstr(out, text + 6), "%s: '%s' is not in:\n%s", what, text,
              out);
}

Test(cpu_modules, a_file_that_is_broken_is_named_and_the_next_best_serves) {
    static const struct {
        const char *make, *says[2]; /* says NULL: it is no fault, nothing is said */
    } cases[] = {
        {"cp $F/libsheaf-cpu-version.so d", {"cpu-version.so: built for version", "one build"}},
        {"cp $F/libsheaf-cpu-size.so d", {"cpu-size.so: built for version"}},
        {"cp $F/libsheaf-cpu-nomodule.so d", {"cpu-nomodule.so: built for version 0"}},
        {"cp $F/libsheaf-cpu-notable.so d", {"cpu-notable.so: built for version"}},
        {"cp $F/libsheaf-cpu-other.so d", {"cpu-other.so: it holds the table 'another'"}},
        {"cp $F/libsheaf-cpu-other.so d/libsheaf-cpu.so", {"libsheaf-cpu.so: it holds the table"}},
        {"cp $F/libsheaf-cpu-foreign.so d", {"foreign.so: it exports no sheaf_cpu_kernels_init"}},
        {"echo text > d/libsheaf-cpu-x.so", {"libsheaf-cpu-x.so", "file too short"}},
        {"head -c 4096 /dev/urandom > d/libsheaf-cpu-x.so", {"libsheaf-cpu-x.so", "ELF"}},
        {": > d/libsheaf-cpu-x.so", {"libsheaf-cpu-x.so", "file too short"}},
        {"head -c 9000 $F/libsheaf-cpu-other.so > d/libsheaf-cpu-x.so", {"x.so", "cut short"}},
        {"head -c 100 $F/libsheaf-cpu-other.so > d/libsheaf-cpu-x.so", {"x.so", "cut short"}},
        {"mkdir d/libsheaf-cpu-x.so", {"x.so: not a regular file"}},
        {"mkfifo d/libsheaf-cpu-x.so", {"x.so: not a regular file"}},
        {"ln -s nowhere d/libsheaf-cpu-x.so", {"x.so: No such file"}},
        {"cp $F/libsheaf-cpu-unfit.so d", {NULL}},
        {"cp \"$L\"/libsheaf-cpu-*.so d", {NULL}},
        {"rmdir d", {"load backends from directory", "No such file"}},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char cmd[1024], out[8192];
        snprintf(cmd, sizeof cmd,
                 "rm -rf d; mkdir d && %s && SHEAF_BACKEND_PATH=$PWD/d \"$I\" 2> err; s=$?; cat "
                 "err; test -z \"$(cat err)\" && echo silent; exit $s",
                 cases[i].make);
        const int status = run(cmd, out, sizeof out);
        uses(cases[i].make, status, out, table(0));
        cr_expect_eq(!strstr(out, "silent"), !!cases[i].says[0], "%s:\n%s", cases[i].make, out);
        for (int j = 0; j < 2 && cases[i].says[j]; j++)
            cr_expect(strstr(out, cases[i].says[j]), "%s: '%s' is not in:\n%s", cases[i].make,
                      cases[i].says[j], out);
    }
}

Test(cpu_modules, the_installed_files_one_after_the_other) {
    char cmd[1024], out[8192];
    uses("as installed", run("\"$I\"", out, sizeof out), out, table(0));
    uses("debug", run("SHEAF_BACKEND_DEBUG=1 \"$I\"", out, sizeof out), out, table(0));
    snprintf(cmd, sizeof cmd, "CPU kernels: %s, ", table(0));
    cr_expect(strstr(out, cmd), "'%s' is not in:\n%s", cmd, out);
    for (int i = 0; strcmp(table(i), "portable"); i++) {
        snprintf(cmd, sizeof cmd, "truncate -s 20000 \"$L\"/libsheaf-cpu-%s.so && \"$I\"",
                 table(i));
        uses(cmd, run(cmd, out, sizeof out), out, table(i + 1));
        cr_expect(strstr(out, "cut short") && strstr(out, "are used instead"), "%s", out);
        snprintf(cmd, sizeof cmd, "SHEAF_CPU_ISA=%s \"$I\"", table(i));
        cr_expect_neq(run(cmd, out, sizeof out), 0, "%s:\n%s", cmd, out);
        cr_expect(strstr(out, "cut short") && strstr(out, "SHEAF_CPU_ISA="), "%s:\n%s", cmd, out);
    }
    uses("none is left", run("rm -f \"$L\"/libsheaf-cpu-*; \"$I\"", out, sizeof out), out,
         "portable");
#if defined(__x86_64__)
    cr_expect(strstr(out, "several times slower"), "no word about it:\n%s", out);
#endif
    uses("portable wanted", run("SHEAF_CPU_ISA=portable \"$I\"", out, sizeof out), out, "portable");
    cr_expect_not(strstr(out, "slower"), "%s", out);
    uses("back by the path", run("SHEAF_BACKEND_PATH=$F/../.. \"$I\"", out, sizeof out), out,
         table(0));
}

Test(cpu_modules, what_is_named_must_be_there_and_fit) {
    static const struct {
        const char *isa, *says[2];
    } cases[] = {
        {"quantum", {"SHEAF_CPU_ISA=quantum: there is no libsheaf-cpu-quantum.so", "portable"}},
        {"../avx2", {"SHEAF_CPU_ISA=../avx2: there is no"}},
        {"unfit", {"SHEAF_CPU_ISA=unfit: this CPU lacks that instruction set", "unset"}},
        {"version", {"SHEAF_CPU_ISA=version: load CPU kernels", "built for version"}},
        {"foreign", {"SHEAF_CPU_ISA=foreign: load CPU kernels", "no sheaf_cpu_kernels_init"}},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char cmd[1024], out[8192];
        snprintf(cmd, sizeof cmd, "SHEAF_BACKEND_PATH=$F SHEAF_CPU_ISA='%s' \"$I\"", cases[i].isa);
        cr_expect_neq(run(cmd, out, sizeof out), 0, "%s:\n%s", cmd, out);
        for (int j = 0; j < 2 && cases[i].says[j]; j++)
            cr_expect(strstr(out, cases[i].says[j]), "%s: '%s' is not in:\n%s", cmd,
                      cases[i].says[j], out);
    }
    for (int i = 0; i < 3; i++) {
        char cmd[1024], out[8192];
        snprintf(cmd, sizeof cmd, "SHEAF_CPU_ISA=%s \"$I\"", table(i));
        uses(cmd, run(cmd, out, sizeof out), out, table(i));
    }
}

/* The folders cannot be read then, which is no lack of files. */
Test(cpu_modules_limits, no_descriptor_is_left) {
    char log[] = "/tmp/sheaf-kernels-log.XXXXXX", text[1024] = "";
    const int fd = mkstemp(log);
    struct rlimit limit;
    cr_assert(fd >= 0 && !unlink(log) && dup2(fd, STDERR_FILENO) >= 0);
    cr_assert_eq(getrlimit(RLIMIT_NOFILE, &limit), 0);
    limit.rlim_cur = 3;
    cr_assert_eq(setrlimit(RLIMIT_NOFILE, &limit), 0);
    unsetenv("SHEAF_CPU_ISA");
    cr_expect_str_eq(sheaf__cpu_kernels()->name, "portable");
    cr_assert_gt(pread(fd, text, sizeof text - 1, 0), 0);
    cr_expect(strstr(text, "load CPU kernels from directory '") && strstr(text, "ulimit -n") &&
                  !strstr(text, "no libsheaf-cpu"),
              "%s", text);
}

static void *first_use(void *user) {
    (void)user;
    return (void *)sheaf__cpu_kernels();
}

Test(cpu_modules_threads, one_choice) {
    pthread_t threads[8];
    unsetenv("SHEAF_CPU_ISA");
    for (int i = 0; i < 8; i++) cr_assert_eq(pthread_create(&threads[i], NULL, first_use, NULL), 0);
    for (int i = 0; i < 8; i++) {
        void *got;
        pthread_join(threads[i], &got);
        cr_assert_eq(got, (void *)sheaf__cpu_kernels());
    }
    cr_assert_str_eq(sheaf__cpu_kernels()->name, table(0));
}
