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

/* The command runs after the folder b was configured with these options and those of earlier
 * calls, and installed. b has descriptions of its own; what is built comes from $B, and keeps its
 * search paths: the file `paths` has those that it would get. */
static void install_with(const char *options, const char *cmd) {
    char line[4096];
    snprintf(
        line, sizeof line,
        "cmake -G Ninja -S \"" SHEAF_SOURCE_DIR
        "\" -B b -DSHEAF_BUILD_TESTS=OFF -DSHEAF_CUDA=OFF %s > log 2>&1 || { cat log; exit 1; }\n"
        "find b -name cmake_install.cmake | while read -r f; do\n"
        "    grep -A3 'file(RPATH_CHANGE' \"$f\" || :\n"
        "    sed -i -e '/file(RPATH_CHANGE/,/)$/d' "
        "-e \"s#$PWD/b/\\(lib\\|bin\\|man\\)/#$B/\\1/#\" \"$f\"\n"
        "done > paths\n"
        "cmake --install b > log 2>&1 || { cat log; exit 1; }\n%s",
        options, cmd);
    must(options, line);
}

#define PROJECT                                                                                    \
    "cat > CMakeLists.txt <<'C'\n"                                                                 \
    "cmake_minimum_required(VERSION 3.22)\n"                                                       \
    "project(consumer LANGUAGES C)\n"                                                              \
    "find_package(sheaf REQUIRED)\n"                                                               \
    "add_executable(consumer consumer.c)\n"                                                        \
    "target_compile_definitions(consumer PRIVATE EXPECTED=\"${sheaf_VERSION}\" "                   \
    "BEST=\"${BEST}\")\n"                                                                          \
    "target_link_libraries(consumer PRIVATE sheaf::sheaf)\n"                                       \
    "C\n"

/* Folders that the user names by their whole path, as some distributions do: outside the prefix
 * they are where they were put, inside they move with it. */
Test(install, folders_of_the_users_choice) {
    install_with(
        "-DCMAKE_INSTALL_PREFIX=$PWD/p -DCMAKE_INSTALL_LIBDIR=$PWD/far/libs "
        "-DCMAKE_INSTALL_INCLUDEDIR=$PWD/far/headers -DCMAKE_INSTALL_BINDIR=$PWD/far/programs",
        "grep -A3 /programs/sheaf-run paths | grep -q \"NEW_RPATH \\\"$PWD/far/libs\"\n"
        "far/programs/sheaf-info --version\n" PROJECT
        "cmake -G Ninja -S . -B c -DBEST=$BEST -Dsheaf_DIR=\"$PWD/far/libs/cmake/sheaf\" "
        "-DCMAKE_C_FLAGS='" CFLAGS
        "' > log 2>&1 && cmake --build c >> log 2>&1 || { cat log; exit 1; }\n"
        "c/consumer\n"
        "export PKG_CONFIG_PATH=$PWD/far/libs/pkgconfig\n"
        "cc " CFLAGS " -DBEST=\"\\\"$BEST\\\"\" -DEXPECTED=\"\\\"$(pkg-config --modversion "
        "sheaf-model)\\\"\" consumer.c -o consumer $(pkg-config --cflags --libs sheaf-model) "
        "-Wl,-rpath,$(pkg-config --variable=libdir sheaf-model)\n"
        "./consumer");
    install_with(
        "-DCMAKE_INSTALL_LIBDIR=$PWD/p/deep/libs -DCMAKE_INSTALL_INCLUDEDIR=$PWD/p/headers "
        "-DCMAKE_INSTALL_BINDIR=more/our/programs",
        "grep -A3 programs/sheaf-run paths | grep -q 'NEW_RPATH \".*ORIGIN/../../../deep/libs'\n"
        "mv p q\n"
        "test -x q/more/our/programs/sheaf-run\n" PROJECT "rm -rf c\n"
        "cmake -G Ninja -S . -B c -DBEST=$BEST -Dsheaf_DIR=\"$PWD/q/deep/libs/cmake/sheaf\" "
        "-DCMAKE_C_FLAGS='" CFLAGS
        "' > log 2>&1 && cmake --build c >> log 2>&1 || { cat log; exit 1; }\n"
        "c/consumer\n"
        "export PKG_CONFIG_PATH=$PWD/q/deep/libs/pkgconfig\n"
        "[ \"$(realpath \"$(pkg-config --variable=libdir sheaf)\")\" = \"$PWD/q/deep/libs\" ]\n"
        "[ \"$(realpath \"$(pkg-config --variable=includedir sheaf)\")\" = \"$PWD/q/headers\" ]");
}

/* What a build would leave out or do otherwise than asked in silence is refused, or not done. */
Test(install, options_mean_what_they_say) {
    must("options", "cat > configure <<'C'\n"
                    "exec cmake -G Ninja -S \"" SHEAF_SOURCE_DIR
                    "\" -B o -DSHEAF_BUILD_TESTS=OFF \"$@\" 2>&1\n"
                    "C\n"
                    "if sh configure -DBUILD_SHARED_LIBS=OFF > log; then exit 1; fi\n"
                    "grep 'libraries are always shared' log || { cat log; exit 1; }\n"
                    "if sh configure -UBUILD_SHARED_LIBS -DSHEAF_CUDA=OFF -DSHEAF_NCCL=no > log; "
                    "then exit 1; fi\n"
                    "grep \"SHEAF_NCCL is 'no'\" log || { cat log; exit 1; }\n"
                    "there='-DSHEAF_NVCC=/bin/true -DSHEAF_CUDA_INCLUDE=/tmp -DSHEAF_CUDART=/tmp/a "
                    "-DSHEAF_NCCL_INCLUDE=/tmp'\n"
                    "sh configure -DSHEAF_NCCL=AUTO $there > log || { cat log; exit 1; }\n"
                    "if grep -q libsheaf-nccl o/build.ninja; then exit 1; fi\n"
                    "for arch in 70 90a; do\n"
                    "    if sh configure -DSHEAF_CUDA=ON -DSHEAF_CUDART_STATIC=/tmp/a "
                    "-DSHEAF_CUBLASLT_INCLUDE=/tmp -DSHEAF_CUDA_ARCHITECTURES=$arch $there > log; "
                    "then exit 1; fi\n"
                    "    grep \"'$arch' is not a number like 90\" log || { cat log; exit 1; }\n"
                    "done\n"
                    "sh configure -DSHEAF_CUDA=OFF -DSHEAF_NCCL=ON > log || { cat log; exit 1; }\n"
                    "grep -q libsheaf-nccl o/build.ninja");
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
