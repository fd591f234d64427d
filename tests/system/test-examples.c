/* The programs of examples/ do what they say, on 1, 2 and 3 ranks: as the tree builds them, built
 * against an installed prefix that was moved, and their Python versions. */
#include <criterion/criterion.h>
#include <stdio.h>
#include <string.h>

#include "mpirun.h"
#include "temp_dir.h"

#define MODEL SHEAF_SOURCE_DIR "/models/kjv-f32.gguf"
#define WRITTEN                                                                                    \
    " of the world, and the world had been with me. And I was in the world, and in the world"
#define MPIRUN "mpirun --allow-run-as-root --oversubscribe -np"

/* A sanitized library wants its runtime first: programs are built like it, Python preloads it. */
#if defined(__SANITIZE_ADDRESS__)
#define CFLAGS "-fsanitize=address,undefined"
#define PYTHON                                                                                     \
    "env ASAN_OPTIONS=detect_leaks=0 LD_PRELOAD=\"$(cc -print-file-name=libasan.so) "              \
    "$(cc -print-file-name=libubsan.so)\" python3"
#elif defined(__SANITIZE_THREAD__)
#define CFLAGS "-fsanitize=thread"
#define PYTHON "env LD_PRELOAD=\"$(cc -print-file-name=libtsan.so)\" python3"
#else
#define CFLAGS ""
#define PYTHON "python3"
#endif

TestSuite(examples, .init = setup, .fini = teardown, .timeout = 400);

/* The command with $S, $B (source and build folder), on np ranks; fails the test unless it ends
 * with status 0. */
static void must(const char *cmd, int timeout_s, char *out, size_t cap) {
    char line[4096];
    snprintf(line, sizeof line,
             "set -e; S='%s'; B='%s'; cd %s; export SHEAF_CPU_DEVICES=1 SHEAF_CPU_THREADS=1\n%s",
             SHEAF_SOURCE_DIR, SHEAF_BUILD_DIR, dir, cmd);
    const int status = run_command(line, timeout_s, out, cap);
    cr_assert_eq(status, 0, "%s: status %d\n%s", cmd, status, out);
}

/* Both programs, started as `generate` and `split` say, on np ranks. */
static void run_both(const char *generate, const char *split, int np) {
    char cmd[1024], out[4096], want[64];
    snprintf(cmd, sizeof cmd, MPIRUN " %d %s '" MODEL "' 'In the beginning' 24", np, generate);
    must(cmd, 60, out, sizeof out);
    cr_assert_eq(strncmp(out, WRITTEN, strlen(WRITTEN)), 0, "%d ranks wrote: %s", np, out);
    cr_assert_eq(strstr(out + 1, WRITTEN), NULL, "a rank too many wrote: %s", out);
    snprintf(cmd, sizeof cmd, MPIRUN " %d %s", np, split);
    must(cmd, 60, out, sizeof out);
    snprintf(want, sizeof want, "%d ranks, ", np);
    cr_assert_eq(strncmp(out, want, strlen(want)), 0, "%s", out);
    cr_assert(strstr(out, "largest difference "), "%s", out);
    if (!strstr(out, "collectives")) return; /* the Python version does not count them */
    snprintf(want, sizeof want, "%d ranks, %d collectives, ", np, np > 1);
    cr_assert_eq(strncmp(out, want, strlen(want)), 0, "one sum was expected: %s", out);
}

Test(examples, of_the_tree) {
    for (int np = 1; np <= 3; np++) run_both("$B/bin/generate", "$B/bin/split_a_graph", np);
}

Test(examples, of_an_installed_prefix) {
    char out[8192];
    must(
        "{ cmake --install $B --prefix $PWD/first && mv first moved &&\n"
        "cmake -G Ninja -S $S/examples -B b -DCMAKE_PREFIX_PATH=$PWD/moved -DCMAKE_C_FLAGS='" CFLAGS
        " -Werror' && cmake --build b; } > log 2>&1 || { cat log; exit 1; }\n"
        "! ldd b/generate | grep 'not found\\|'$B\n"
        "P=$(dirname $(find $PWD/moved -name sheaf-model.pc))\n"
        "cc " CFLAGS " $S/examples/generate.c -o generate $(PKG_CONFIG_PATH=$P pkg-config --cflags "
        "--libs sheaf-model) -Wl,-rpath,$(PKG_CONFIG_PATH=$P pkg-config --variable=libdir sheaf)",
        200, out, sizeof out);
    run_both("b/generate", "b/split_a_graph", 2);
    run_both("./generate", "b/split_a_graph", 1);
}

Test(examples, in_python) {
    for (int np = 1; np <= 2; np++)
        run_both(PYTHON " $S/examples/python/generate.py $B/lib/libsheaf-model.so",
                 PYTHON " $S/examples/python/split_a_graph.py $B/lib/libsheaf.so", np);
}

/* A failure is said once, with a status. */
Test(examples, failures_are_said_once) {
    char out[4096];
    must("! " MPIRUN " 2 $B/bin/generate nothing.gguf x 1", 60, out, sizeof out);
    const char *first = strstr(out, "nothing.gguf");
    cr_assert(first && strstr(out, "generate: "), "%s", out);
    cr_assert_not(strstr(strstr(out, "generate: ") + 1, "generate: "), "%s", out);
}
