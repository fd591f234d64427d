/* No kernel has a race: the module that looks for them (tests/emulators/cuda/races.h) runs ops whose threads meet, and
 * models, whose kernels start while those before them run. It ends the process at the first race, so every suite that
 * loads it through rig.h looks, too, and test-cuda-mutants shows that it finds what it looks for. All ops take minutes:
 *     SHEAF_BACKEND_PATH=build/lib/cuda-races build/bin/sheaf-backend-ops test -b CUDA0 */
#include <criterion/criterion.h>

#include "mpirun.h"
#include "rig.h"

#define IN_RACES "SHEAF_BACKEND_PATH='" SHEAF_BUILD_DIR "/lib/cuda-races' "
#define BIN      "'" SHEAF_BUILD_DIR "/bin/"

static void runs(const char *command, const char *expected) {
    static char out[1 << 16];
    cr_assert_eq(run_command(command, 300, out, sizeof out), 0, "%s\n%s", command, out);
    cr_assert(strstr(out, expected), "%s\n%s", command, out);
}

Test(cuda_races, ops, .timeout = 600) {
    static const char *const ops[] = {"SET_ROWS",
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
    for (size_t i = 0; i < sizeof ops / sizeof *ops; i++) {
        char command[512];
        snprintf(command, sizeof command, IN_RACES BIN "sheaf-backend-ops' test -b CUDA0 -o %s",
                 ops[i]);
        runs(command, " 0 wrong, 0 refused");
    }
}

/* A prompt by cuBLASLt and by tiles, and tokens: rows of whole chunks, columns of integers from norms, GLUs and attention,
 * heads turned and written to the cache in one launch. */
Test(cuda_races, models, .timeout = 600) {
    char model[] = "/tmp/sheaf-races-XXXXXX", command[1024];
    const int fd = mkstemp(model);
    cr_assert_geq(fd, 0);
    close(fd);
    snprintf(command, sizeof command,
             BIN "sheaf-make-model' -o %s --mix Q4_K_M --layers 1 --embd 1024 --ff 1024 --heads 8 "
                 "--kv-heads 4 --head-dim 128 "
                 "--vocab 512 --ctx 256",
             model);
    runs(command, "");
    static const char *const params[] = {"graphs=1", "blas=0"};
    for (int i = 0; i < 2; i++) {
        snprintf(command, sizeof command,
                 IN_RACES "SHEAF_CUDA_PARAMS=%s " BIN
                          "sheaf-run' -m %s -p 'aaaa bbbb cccc' -n 2 --temp 0 --ignore-eos "
                          "--devices CUDA0",
                 params[i], model);
        runs(command, "generation  2 tokens");
    }
    unlink(model);
}
