/* What scripts/gpu-check starts on a GPU, here on the emulation: the checks themselves must be right. */
#include <criterion/criterion.h>

#include "backend-ops.h"
#include "rig.h"

static void passes(const char *arguments, const char *want) {
    static char out[CAP], cmd[1200];
    snprintf(cmd, sizeof cmd,
             "cd /tmp && export SHEAF_CPU_THREADS=1 SHEAF_CPU_DEVICES=1 " ENV
             "&& B='" SHEAF_BUILD_DIR "/bin' && %s",
             arguments);
    cr_assert_eq(run_command(cmd, DEADLINE, out, CAP), 0, "%s", out);
    cr_assert(strstr(out, want), "'%s' is not in: %s", want, out);
}

Test(cuda_host, real_shapes, .timeout = DEADLINE) {
    passes("$B/helper-gpu shapes CUDA0 1024", " shapes, 0 wrong");
}

Test(cuda_host, memory_of_a_model, .timeout = DEADLINE) {
    passes(
        "D=$(mktemp -d) && $B/sheaf-make-model -o $D/m.gguf --type q4_0 --embd 128 --head-dim 64 "
        "--heads 2 --kv-heads 1 >&2 && $B/helper-gpu memory CUDA0 $D/m.gguf 12; S=$?; rm -r $D; "
        "exit $S",
        "behind a token");
}
