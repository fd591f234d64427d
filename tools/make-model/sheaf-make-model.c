/* sheaf-make-model: writes a model with random weights, for tests, experiments with odd shapes, and
 * measuring. The work is in src/model/random_model.c. */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "sheaf/sheaf.h"

#include "common/output.h"
#include "model/random_model.h"

static const char usage[] =
    "usage: sheaf-make-model -o FILE [options]\n"
    "Writes a GGUF model with random weights and a vocabulary that tokenizes any text.\n"
    "  -o FILE          where to write\n"
    "  --arch NAME      llama, qwen2, gemma3, ...             (llama)\n"
    "  --preset NAME    shape of a known model; later options change it: tinyllama-1.1b, "
    "llama-8b,\n"
    "                   mixtral-8x7b, qwen3-30b-a3b, olmo2-7b, phi3-mini, granite-3b-a800m,\n"
    "                   gpt-oss-20b, deepseek-v2-lite, mamba2-2.7b, granite-4-tiny, bge-base\n"
    "  --type NAME      of the matrices: f32, q8_0, q4_K, ... (f32)\n"
    "  --mix NAME       types as sheaf-quantize chooses them: Q4_K_M, Q8_0, F16, ...\n"
    "  --layers N       (2)     --embd N      (64)    --ff N     (128)\n"
    "  --heads N        (4)     --kv-heads N  (2)     --head-dim N (16)\n"
    "  --vocab N        (512)   --ctx N       (256)   --window N (64, gemma3)\n"
    "  --experts N      (0)     --experts-used N (0): experts of each layer, and for a token\n"
    "  --shared-ff N    (0)     n_ff of the experts that every token uses (granitemoe)\n"
    "  --fused-qkv      q, k and v in one matrix\n"
    "  --tied           the embeddings are the output matrix too\n"
    "  --seed N         (1)\n";

static int fail(const char *text, const char *what) {
    fprintf(stderr, "sheaf-make-model: %s%s\n", text, what);
    return 2;
}

int main(int argc, char **argv) {
    struct sheaf__random_model_params p = sheaf__random_model_default_params();
    int64_t seed = 1;
    const char *path = NULL;
    const struct {
        const char *name;
        int64_t *out;
    } ints[] = {
        {"--layers", &p.n_layer},
        {"--embd", &p.n_embd},
        {"--heads", &p.n_head},
        {"--kv-heads", &p.n_head_kv},
        {"--head-dim", &p.head_dim},
        {"--ff", &p.n_ff},
        {"--vocab", &p.n_vocab},
        {"--ctx", &p.n_ctx},
        {"--seed", &seed},
        {"--window", &p.swa_window},
        {"--experts", &p.n_expert},
        {"--experts-used", &p.n_expert_used},
        {"--shared-ff", &p.n_ff_shared},
    };
    const size_t n_ints = sizeof ints / sizeof *ints;
    for (int i = 1; i < argc; i++) {
        size_t k = 0;
        if (strcmp(argv[i], "--help") == 0 || strcmp(argv[i], "-h") == 0) {
            fputs(usage, stdout);
            return output_end(0);
        }
        if (strcmp(argv[i], "--fused-qkv") == 0) {
            p.fused_qkv = true;
            continue;
        }
        if (strcmp(argv[i], "--tied") == 0) {
            p.tied = true;
            continue;
        }
        while (k < n_ints && strcmp(argv[i], ints[k].name) != 0) k++;
        bool known = k < n_ints || strcmp(argv[i], "-o") == 0 || strcmp(argv[i], "--arch") == 0 ||
                     strcmp(argv[i], "--type") == 0 || strcmp(argv[i], "--mix") == 0 ||
                     strcmp(argv[i], "--preset") == 0;
        if (!known) return fail("unknown option ", argv[i]);
        if (i + 1 == argc) return fail("a value is missing after ", argv[i]);
        const char *value = argv[++i];
        if (k < n_ints) {
            char *end;
            errno = 0;
            *ints[k].out = strtoll(value, &end, 10);
            if (errno || end == value || *end) return fail("not a whole number: ", value);
        } else if (strcmp(argv[i - 1], "-o") == 0) {
            path = value;
        } else if (strcmp(argv[i - 1], "--arch") == 0) {
            p.arch = value;
        } else if (strcmp(argv[i - 1], "--mix") == 0) {
            p.mix = value;
        } else if (strcmp(argv[i - 1], "--preset") == 0) {
            if (sheaf__random_model_preset(value, &p)) return fail(sheaf_last_error(), "");
        } else {
            p.type = sheaf_type_from_name(value);
            if (p.type == SHEAF_TYPE_COUNT) return fail("unknown type ", value);
        }
    }
    if (!path) return fail("give a file with -o\n", usage);
    p.seed = (uint64_t)seed;
    if (sheaf__random_model_write(&p, path)) {
        fprintf(stderr, "sheaf-make-model: %s\n", sheaf_last_error());
        return 1;
    }
    return output_end(0);
}
