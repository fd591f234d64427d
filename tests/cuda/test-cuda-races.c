/* No kernel has a race: the module that looks for them (tests/emulators/cuda/races.h) runs ops whose threads meet, and
 * a model, whose kernels start while those before them run. It ends the process at the first race, so every suite that
 * loads it through rig.h looks, too, and test-cuda-mutants shows that it finds what it looks for. All ops take minutes:
 *     SHEAF_BACKEND_PATH=build/lib/cuda-races build/bin/sheaf-backend-ops test -b CUDA0 */
#include "backend-ops.h"
#include "rig.h"
#include "temp_dir.h"

#define IN_RACES "SHEAF_BACKEND_PATH='" RACES "' "
#define BIN      "'" SHEAF_BUILD_DIR "/bin/"

Test(cuda_races, ops, .timeout = DEADLINE) {
    static char out[CAP];
    static const char *const some[] = {"SET_ROWS",
                                       "RMS_NORM",
                                       "SOFT_MAX",
                                       "TOP_K",
                                       "NORM",
                                       "SSM_SCAN",
                                       "MUL_MAT -t q4_0",
                                       "MUL_MAT -t q4_K",
                                       "MUL_MAT -t q8_0",
                                       "MUL_MAT -t f16",
                                       "MUL_MAT_ID -t q4_0"};
    for (size_t i = 0; i < sizeof some / sizeof *some; i++) {
        char args[64];
        snprintf(args, sizeof args, "test -b CUDA0 -o %s", some[i]);
        cr_assert_eq(ops(IN_RACES, args, out), 0, "%s: %s", args, out);
        none_wrong_of(out, "CUDA0", FEW_CASES, FEW_CASES);
    }
}

static void runs(const char *command, const char *expected) {
    static char out[CAP];
    cr_assert_eq(run_command(command, 300, out, sizeof out), 0, "%s\n%s", command, out);
    cr_assert(strstr(out, expected), "%s\n%s", command, out);
}

/* A prompt by cuBLASLt and by tiles, and tokens: rows of whole chunks, columns of integers from norms, GLUs and attention,
 * heads turned and written to the cache in one launch. */
Test(cuda_races, models, .timeout = DEADLINE, .init = setup, .fini = teardown) {
    static const char *const params[] = {"blas=1", "blas=0"};
    const char *model = in_dir("model.gguf");
    char command[1024];
    snprintf(command, sizeof command,
             BIN "sheaf-make-model' -o %s --mix Q4_K_M --layers 1 --embd 1024 --ff 1024 --heads 8 "
                 "--kv-heads 4 "
                 "--head-dim 128 --vocab 512 --ctx 256",
             model);
    runs(command, "");
    for (int i = 0; i < 2; i++) {
        snprintf(command, sizeof command,
                 IN_RACES "SHEAF_CUDA_PARAMS=%s " BIN
                          "sheaf-run' -m %s -p 'aaaa bbbb cccc' -n 2 --temp 0 "
                          "--ignore-eos --devices CUDA0",
                 params[i], model);
        runs(command, "generation  2 tokens");
    }
}
