/* What people outside the tree do with an installed sheaf: write a backend (examples/backend), and
 * drive the library from another language (tests/system/ffi). Both see the installed files alone, in a
 * prefix that was moved after the installation. */
#include <criterion/criterion.h>
#include <stdio.h>

#include "mpirun.h"
#include "sheaf/cpu.h"

/* A sanitized library wants its runtime first: programs are built like it, Python preloads it. What
 * Python itself leaves at its end is no finding. */
#if defined(__SANITIZE_ADDRESS__)
#define CFLAGS "-fsanitize=address,undefined"
#define PYTHON                                                                                     \
    "ASAN_OPTIONS=detect_leaks=0 LD_PRELOAD=\"$(cc -print-file-name=libasan.so) "                  \
    "$(cc -print-file-name=libubsan.so)\" python3"
#else
#define CFLAGS ""
#define PYTHON "python3"
#endif

static char dir[] = "/tmp/sheaf-outside.XXXXXX";

/* The command runs in the temporary folder with $S, the source tree, and $L, where the library was
 * installed. Fails the test unless it ends with status 0. */
static void must(const char *what, const char *cmd, char *out, size_t cap) {
    char line[4096];
    snprintf(line, sizeof line,
             "set -e; S='%s'; cd %s; L=$(dirname \"$(find \"$PWD/moved\" -name libsheaf.so)\")\n%s",
             SHEAF_SOURCE_DIR, dir, cmd);
    const int status = run_command(line, 120, out, cap);
    cr_assert_eq(status, 0, "%s: status %d\n%s", what, status, out);
}

static void install(void) {
    char line[1024], out[4096];
    cr_assert_not_null(mkdtemp(dir));
    snprintf(
        line, sizeof line,
        "cd %s && cmake --install '%s' --prefix \"$PWD/first\" > log 2>&1 && mv first moved || "
        "{ cat log; exit 1; }",
        dir, SHEAF_BUILD_DIR);
    cr_assert_eq(run_command(line, 60, out, sizeof out), 0, "%s", out);
}

static void uninstall(void) {
    char cmd[100];
    snprintf(cmd, sizeof cmd, "rm -rf %s", dir);
    run_command(cmd, 60, NULL, 0);
}

TestSuite(out_of_tree, .init = install, .fini = uninstall);

static void has(const char *out, const char *text) {
    cr_assert(strstr(out, text), "'%s' is not in:\n%s", text, out);
}

static void ran_on_both(const char *out) {
    has(out, "Example: Example0, adds, multiplies, scales");
    has(out, "scheduler splits: 3\n");
    has(out, "nodes on the device: 6\n");
    has(out, "unload while in use: unload backend Example: ");
    has(out, "unloaded: gone\n");
}

Test(out_of_tree, backend) {
    char out[8192];
    must("build",
         "cp -r \"$S/examples/backend\" source\n"
         "cmake -G Ninja -S source -B b -DCMAKE_PREFIX_PATH=\"$PWD/moved\" "
         "-DCMAKE_C_FLAGS='" CFLAGS " -Werror' -DCMAKE_BUILD_TYPE=Release > log 2>&1 && "
         "cmake --build b >> log 2>&1 || { cat log; exit 1; }",
         out, sizeof out);
    must("its symbols",
         "nm -D --defined-only b/libsheaf-example.so | sed 's/.* //' | sort | tr '\\n' ' '", out,
         sizeof out);
    cr_assert_str_eq(out, "sheaf_backend_init sheaf_backend_score ");

    must("by path", "b/example-graph b/libsheaf-example.so", out, sizeof out);
    ran_on_both(out);
    must("beside the program", "b/example-graph", out, sizeof out);
    ran_on_both(out);
    must("beside the library",
         "cmake --install b --prefix moved > log && rm b/libsheaf-example.so && b/example-graph",
         out, sizeof out);
    ran_on_both(out);
    must("in SHEAF_BACKEND_PATH",
         "mkdir d && mv \"$L/libsheaf-example.so\" d && SHEAF_BACKEND_PATH=$PWD/d b/example-graph",
         out, sizeof out);
    ran_on_both(out);
    must("nowhere", "if b/example-graph; then exit 1; fi", out, sizeof out);
    has(out, "no module of the search path is named Example");
}

Test(out_of_tree, python) {
    char out[8192];
    char isa[40];
    must("python", "cd \"$L\"; " PYTHON " \"$S/tests/system/ffi/graph.py\" ./libsheaf.so", out,
         sizeof out);
    snprintf(isa, sizeof isa, ", %s kernels\n", sheaf_cpu_isa_name());
    has(out, isa);
    has(out, "CPU backend: largest difference");
    has(out, "scheduler, graph 0: largest difference");
    has(out, "scheduler, graph 1: largest difference");
    has(out, "META2, 2 members: largest difference");
}
