/* What libsheaf.so and libsheaf-model.so show is what include/sheaf declares: no more (sheaf.map
 * hides the rest) and no less (every declared function is defined). The headers are read by the
 * preprocessor and a pattern for `sheaf_name (`, the library by nm. */
#include <criterion/criterion.h>
#include <stdio.h>

#include "mpirun.h"

#define LIBRARY SHEAF_BUILD_DIR "/lib/libsheaf"

/* Defined by modules, not by the library (sheaf/backend-impl.h). */
#define OF_MODULES "sheaf_backend_init|sheaf_backend_score"

/* In sanitizer builds the library has functions that stand for those of others (cmake/sanitized-mpi.c). */
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define OF_SANITIZER "dlclose|MPI_Init|MPI_Init_thread|MPI_Finalize|event_base_loop"
#else
#define OF_SANITIZER "-"
#endif

/* Declares a shell function that lists what the headers named by a pattern declare. */
#define DECLARES                                                                                   \
    "declares() { (cd '" SHEAF_SOURCE_DIR "/include/sheaf' && ls | grep -xE \"$1\") | sed "        \
    "'s|.*|#include \"sheaf/&\"|' | cc -E -P -I '" SHEAF_SOURCE_DIR                                \
    "/include' -x c - | tr '\\n' ' ' | grep -oE '\\bsheaf_[a-z0-9_]+ *\\([^*]' | sed 's/ "         \
    "*(.*//' | grep -vxE '" OF_MODULES "' | sort -u; }\n"
/* Of libsheaf-model: what its headers declare and those that they include do not. */
#define MODEL_HEADERS "model.h|tokenizer.h|sampler.h|chat.h|candidates.h"
#define DECLARED                                                                                   \
    DECLARES "declares '.*' > all\n"                                                               \
             "ls '" SHEAF_SOURCE_DIR "/include/sheaf' | grep -vxE '" MODEL_HEADERS                 \
             "' | paste -sd '|' > names\n"                                                         \
             "declares \"$(cat names)\" > declared; comm -23 all declared > declared-model\n"
#define SHOWN                                                                                      \
    "for l in '' -model; do nm -D --defined-only '" LIBRARY                                        \
    "'$l.so | sed 's/.* //; s/@.*//' | grep -vxE 'SHEAF_[0-9]+|" OF_SANITIZER                      \
    "' | sort -u > shown$l; done"

static void in_temporary_folder(const char *cmd, char *out, size_t cap) {
    char line[4096];
    snprintf(line, sizeof line,
             "set -e; d=$(mktemp -d); trap 'rm -rf \"$d\"' EXIT; cd \"$d\"\n%s\n%s\n%s", DECLARED,
             SHOWN, cmd);
    cr_assert_eq(run_command(line, 60, out, cap), 0, "%s", out);
}

Test(symbols, the_libraries_show_what_the_headers_declare) {
    char out[8192];
    in_temporary_folder("for l in '' -model; do\n"
                        "comm -23 declared$l shown$l | sed 's/^/declared, not shown: /'\n"
                        "comm -13 declared$l shown$l | sed 's/^/shown, not declared: /'\n"
                        "done",
                        out, sizeof out);
    cr_assert_str_eq(out, "", "%s", out);
}

/* The two lists are what they should be, so that equal lists mean something. */
/* Of every one, so that a later interface can have another beside it. Not in sanitizer builds. */
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
Test(symbols, all_have_a_version) {
    char out[8192];
    in_temporary_folder("for l in '' -model; do nm -D --defined-only '" LIBRARY
                        "'$l.so | grep -v ' A SHEAF_0' | grep -v '@@SHEAF_0$' || true; done",
                        out, sizeof out);
    cr_assert_str_eq(out, "", "%s", out);
}
#endif

Test(symbols, the_lists_are_complete) {
    char out[8192];
    in_temporary_folder("for f in sheaf_init sheaf_mul_mat sheaf_backend_load sheaf_gguf_open "
                        "sheaf_backend_buffer_init sheaf_comm_bench_mpi_all_reduce; do\n"
                        "    grep -qx $f declared || echo \"not found in a header: $f\"\n"
                        "    grep -qx $f shown || echo \"not found in the library: $f\"\n"
                        "done\n"
                        "for f in sheaf_model_generate sheaf_tokenizer_encode; do\n"
                        "    grep -qx $f declared-model || echo \"not found in a header: $f\"\n"
                        "    grep -qx $f shown-model || echo \"not found in the library: $f\"\n"
                        "done\n"
                        "test $(wc -l < declared) -ge 250 || wc -l declared\n"
                        "test $(wc -l < declared-model) -ge 50 || wc -l declared-model\n"
                        "nm '" SHEAF_BUILD_DIR
                        "/lib/unhidden/libsheaf.so' | grep -q ' T sheaf__' || echo 'no sheaf__ "
                        "function at all: what is hidden here?'",
                        out, sizeof out);
    cr_assert_str_eq(out, "", "%s", out);
}

/* Open MPI leaks what it allocates; a leak of ours may not look like those. */
Test(symbols, asprintf_is_not_called) {
    char out[8192];
    const int rc =
        run_command("nm -D --undefined-only '" LIBRARY ".so' '" LIBRARY
                    "-model.so' > /tmp/sheaf-undefined.$$ && grep -q ' malloc' "
                    "/tmp/sheaf-undefined.$$ && ! grep asprintf /tmp/sheaf-undefined.$$; "
                    "s=$?; rm /tmp/sheaf-undefined.$$; exit $s",
                    60, out, sizeof out);
    cr_assert_eq(rc, 0, "%s", out);
}

/* Position-independent programs, all symbols bound at the start, no writable tables, no executable
 * stack. What the compiler adds in packages is checked where these are (test-package). */
Test(symbols, the_files_are_hardened) {
    char out[8192];
    const int rc =
        run_command("cd '" SHEAF_BUILD_DIR "' || exit 1; d=$(mktemp -d)\n"
                    "for f in lib/libsheaf.so lib/libsheaf-model.so bin/sheaf-info; do\n"
                    "    readelf -hldW $f > $d/elf || exit 1\n"
                    "    grep -q 'Type: *DYN' $d/elf || echo \"$f is not position independent\"\n"
                    "    grep -qE 'BIND_NOW|FLAGS_1.*NOW' $d/elf || echo \"$f binds late\"\n"
                    "    grep -q GNU_RELRO $d/elf || echo \"$f has writable tables\"\n"
                    "    grep 'GNU_STACK' $d/elf | grep -q 'RW ' || echo \"$f: executable stack\"\n"
                    "done; rm -r $d",
                    60, out, sizeof out);
    cr_assert_eq(rc, 0, "%s", out);
    cr_assert_str_eq(out, "", "%s", out);
}
