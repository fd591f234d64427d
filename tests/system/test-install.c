/* What `cmake --install` lays down is enough: a program elsewhere finds the library by CMake's
 * find_package and by pkg-config, compiles against the installed headers alone, and runs, with the
 * kernels of this CPU, also after the whole prefix was moved. */
#include <criterion/criterion.h>
#include <stdio.h>

#include "mpirun.h"
#include "sheaf/cpu.h"

static char dir[] = "/tmp/sheaf-install.XXXXXX";

/* The command runs in the temporary folder with $B, the build folder, set. Fails the test unless it
 * ends with status 0. */
static void must(const char *what, const char *cmd) {
    char line[4096], out[8192];
    snprintf(line, sizeof line, "set -e; B='%s'; BEST='%s'; cd %s\n%s", SHEAF_BUILD_DIR,
             sheaf_cpu_isa_name(), dir, cmd);
    const int status = run_command(line, 120, out, sizeof out);
    cr_assert_eq(status, 0, "%s: status %d\n%s", what, status, out);
}

static void install(void) {
    cr_assert_not_null(mkdtemp(dir));
    must("install",
         "cmake --install \"$B\" --prefix \"$PWD/first\" > log 2>&1 || { cat log; exit 1; }\n"
         "mv first moved\n"
         "cat > consumer.c <<'C'\n"
         "#include <stdio.h>\n"
         "#include <string.h>\n"
         "#include \"sheaf/backend-impl.h\"\n"
         "#include \"sheaf/sheaf.h\"\n"
         "int main(void) {\n"
         "    struct sheaf_context *ctx = sheaf_init((struct sheaf_init_params){1 << 20, NULL, "
         "false});\n"
         "    struct sheaf_tensor *t = sheaf_new_tensor_2d(ctx, SHEAF_TYPE_F32, 3, 2);\n"
         "    int bad = !t || sheaf_nelements(t) != 6 || strcmp(sheaf_version(), EXPECTED);\n"
         "    bad = bad || strcmp(sheaf_cpu_isa_name(), BEST);\n"
         "    printf(\"%s, %s, %s\\n\", sheaf_version(), sheaf_build_info(), "
         "sheaf_cpu_isa_name());\n"
         "    sheaf_free(ctx);\n"
         "    return bad;\n"
         "}\n"
         "C\n");
}

static void uninstall(void) {
    char cmd[100];
    snprintf(cmd, sizeof cmd, "rm -rf %s", dir);
    run_command(cmd, 60, NULL, 0);
}

TestSuite(install, .init = install, .fini = uninstall);

/* A sanitized library wants its runtime first, so the consumer is built like the library. */
#if defined(__SANITIZE_ADDRESS__)
#define CFLAGS "-fsanitize=address,undefined"
#elif defined(__SANITIZE_THREAD__)
#define CFLAGS "-fsanitize=thread"
#else
#define CFLAGS ""
#endif

Test(install, find_package) {
    must("find_package",
         "cat > CMakeLists.txt <<'C'\n"
         "cmake_minimum_required(VERSION 3.25)\n"
         "project(consumer LANGUAGES C)\n"
         "find_package(sheaf 0.2 REQUIRED)\n"
         "add_executable(consumer consumer.c)\n"
         "target_compile_definitions(consumer PRIVATE EXPECTED=\"${sheaf_VERSION}\" "
         "BEST=\"${BEST}\")\n"
         "target_link_libraries(consumer PRIVATE sheaf::sheaf)\n"
         "C\n"
         "cmake -G Ninja -S . -B b -DBEST=$BEST -DCMAKE_PREFIX_PATH=\"$PWD/moved\" "
         "-DCMAKE_C_FLAGS='" CFLAGS
         "' > log 2>&1 && cmake --build b >> log 2>&1 || { cat log; exit 1; }\n"
         "b/consumer");
}

Test(install, find_package_refuses_another_version) {
    must("find_package of 0.1", "cat > CMakeLists.txt <<'C'\n"
                                "cmake_minimum_required(VERSION 3.25)\n"
                                "project(consumer LANGUAGES C)\n"
                                "find_package(sheaf 0.1 REQUIRED)\n"
                                "C\n"
                                "if cmake -G Ninja -S . -B b -DCMAKE_PREFIX_PATH=\"$PWD/moved\" > "
                                "log 2>&1; then exit 1; fi\n"
                                "grep 'version: 0.2' log || { cat log; exit 1; }");
}

Test(install, pkg_config) {
    must(
        "pkg-config",
        "pc=$(find moved -name sheaf.pc)\n"
        "export PKG_CONFIG_PATH=$PWD/${pc%/*}\n"
        "cc " CFLAGS " -DBEST=\"\\\"$BEST\\\"\" -DEXPECTED=\"\\\"$(pkg-config --modversion "
                     "sheaf)\\\"\" consumer.c -o consumer "
        "$(pkg-config --cflags --libs sheaf) -Wl,-rpath,\"$(pkg-config --variable=libdir sheaf)\"\n"
        "./consumer");
}

/* The example loader and internal headers stay out; every tool that was built runs from its new
 * place. */
Test(install, only_what_is_public) {
    must("listing",
         "for h in \"" SHEAF_SOURCE_DIR
         "\"/include/sheaf/*.h; do test -f moved/include/sheaf/${h##*/}; done\n"
         "if find moved -name '*sheaf_model*' -o -name '*internal*' -o -name 'test-*' -o "
         "-name 'helper-*' | grep .; then exit 1; fi\n"
         "for t in \"$B\"/bin/sheaf-*; do\n"
         "    test -e \"$t\" || continue\n"
         "    if ldd moved/bin/${t##*/} | grep 'not found'; then exit 1; fi\n"
         "done");
}
