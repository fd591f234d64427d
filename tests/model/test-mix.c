/* Types of the tensors of mixes: what llama-quantize of llama.cpp 0.7.0 (Debian's llama.cpp-tools)
 * gave a model of 24 layers on 2026-11-21, the types of few bits by its source; and random models:
 * presets written as files, their sizes, vocabularies. */
#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "sheaf/gguf.h"
#include "sheaf/tokenizer.h"

#include "model/arch/arch.h"
#include "model/file/mix.h"
#include "model/random_model.h"

/* Layers whose tensor differs from the base type, one digit or letter each: 'a' is layer 10. */
static const struct {
    const char *mix, *base, *output, *other_v, *layers_v, *other_down, *layers_down;
} wanted[] = {
    {"F16", "f16", "f16", "", "", "", ""},
    {"Q8_0", "q8_0", "q8_0", "", "", "", ""},
    {"Q4_0", "q4_0", "q6_K", "", "", "", ""},
    {"Q4_1", "q4_1", "q6_K", "", "", "", ""},
    {"Q5_0", "q5_0", "q6_K", "", "", "", ""},
    {"Q5_1", "q5_1", "q6_K", "", "", "", ""},
    {"Q4_K_S", "q4_K", "q6_K", "q5_K", "0123", "q5_K", "012"},
    {"q4_k_m", "q4_K", "q6_K", "q6_K", "01258behklmn", "q6_K", "01258behklmn"},
    {"Q5_K_S", "q5_K", "q6_K", "", "", "", ""},
    {"Q5_K_M", "q5_K", "q6_K", "q6_K", "01258behklmn", "q6_K", "01258behklmn"},
    {"Q4_K", "q4_K", "q6_K", "q6_K", "01258behklmn", "q6_K", "01258behklmn"},
    {"q5_k", "q5_K", "q6_K", "q6_K", "01258behklmn", "q6_K", "01258behklmn"},
    {"Q6_K", "q6_K", "q6_K", "", "", "", ""},
};

enum { N_LAYERS = 24, WIDTH = 512 };

static const char *type_of(const struct sheaf__mix *mix, bool tied, const char *name, int64_t ne0) {
    const struct sheaf__mix_model model = {.n_layer = N_LAYERS, .tied = tied, .gqa = 1};
    return sheaf_type_name(sheaf__mix_type(mix, &model, name, ne0));
}

Test(mix, types_are_those_of_llama_quantize) {
    static const char digits[] = "0123456789abcdefghijklmn";
    static const char *const plain[] = {"attn_q", "attn_k", "attn_output", "ffn_gate", "ffn_up"};
    char name[64];
    for (size_t i = 0; i < sizeof wanted / sizeof *wanted; i++) {
        const struct sheaf__mix *mix = sheaf__mix_find(wanted[i].mix);
        cr_assert_not_null(mix, "%s", wanted[i].mix);
        cr_expect_str_eq(type_of(mix, false, "output.weight", WIDTH), wanted[i].output);
        cr_expect_str_eq(type_of(mix, false, "token_embd.weight", WIDTH), wanted[i].base);
        cr_expect_str_eq(type_of(mix, true, "token_embd.weight", WIDTH), wanted[i].output);
        for (int l = 0; l < N_LAYERS; l++) {
            const bool v = strchr(wanted[i].layers_v, digits[l]) != NULL;
            const bool down = strchr(wanted[i].layers_down, digits[l]) != NULL;
            snprintf(name, sizeof name, "blk.%d.attn_v.weight", l);
            cr_expect_str_eq(type_of(mix, false, name, WIDTH),
                             v ? wanted[i].other_v : wanted[i].base, "%s %s", wanted[i].mix, name);
            snprintf(name, sizeof name, "blk.%d.ffn_down.weight", l);
            cr_expect_str_eq(type_of(mix, false, name, WIDTH),
                             down ? wanted[i].other_down : wanted[i].base, "%s %s", wanted[i].mix,
                             name);
            for (size_t k = 0; k < sizeof plain / sizeof *plain; k++) {
                snprintf(name, sizeof name, "blk.%d.%s.weight", l, plain[k]);
                cr_expect_str_eq(type_of(mix, false, name, WIDTH), wanted[i].base, "%s %s",
                                 wanted[i].mix, name);
            }
        }
    }
    cr_assert_null(sheaf__mix_find("Q4_K_XXL"));
}

/* Mixes with more exceptions: the types of layers 0, 1, 2 and 23. */
Test(mix, types_of_few_bits) {
    static const struct {
        const char *mix, *name, *types[4];
        int64_t gqa;
    } rows[] = {
        {"Q2_K", "attn_v", {"q3_K", "q3_K", "q3_K", "q3_K"}, 3},
        {"Q2_K", "attn_v", {"q4_K", "q4_K", "q4_K", "q4_K"}, 4},
        {"Q2_K", "attn_output", {"q3_K", "q3_K", "q3_K", "q3_K"}, 1},
        {"Q2_K", "attn_q", {"q2_K", "q2_K", "q2_K", "q2_K"}, 8},
        {"Q3_K", "attn_v", {"q5_K", "q5_K", "q4_K", "q4_K"}, 1},
        {"Q3_K_M", "ffn_down", {"q5_K", "q4_K", "q4_K", "q4_K"}, 1},
        {"Q3_K_L", "ffn_down", {"q5_K", "q5_K", "q5_K", "q5_K"}, 1},
        {"Q3_K_S", "ffn_down", {"q3_K", "q3_K", "q3_K", "q3_K"}, 1},
        {"IQ4_XS", "ffn_down", {"q5_K", "q5_K", "q5_K", "iq4_xs"}, 1},
        {"IQ4_NL", "attn_v", {"q5_K", "q5_K", "q5_K", "q5_K"}, 4},
        {"IQ4_NL", "attn_v", {"iq4_nl", "iq4_nl", "iq4_nl", "iq4_nl"}, 2},
        {"MXFP4_MOE", "ffn_down_exps", {"mxfp4", "mxfp4", "mxfp4", "mxfp4"}, 1},
        {"MXFP4_MOE", "ffn_gate_exps", {"mxfp4", "mxfp4", "mxfp4", "mxfp4"}, 1},
        {"MXFP4_MOE", "attn_q", {"q8_0", "q8_0", "q8_0", "q8_0"}, 1},
        {"MXFP4", "ffn_up", {"mxfp4", "mxfp4", "mxfp4", "mxfp4"}, 1},
        {"NVFP4", "ffn_up", {"nvfp4", "nvfp4", "nvfp4", "nvfp4"}, 1},
        {"TQ1_0", "ffn_up", {"tq1_0", "tq1_0", "tq1_0", "tq1_0"}, 1},
        {"Q2_0", "ffn_down", {"q2_0", "q2_0", "q2_0", "q2_0"}, 1},
        {"Q1_0", "attn_k", {"q1_0", "q1_0", "q1_0", "q1_0"}, 1},
    };
    static const int layers[4] = {0, 1, 2, 23};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        const struct sheaf__mix *mix = sheaf__mix_find(rows[i].mix);
        const struct sheaf__mix_model model = {.n_layer = N_LAYERS, .gqa = rows[i].gqa};
        cr_assert_not_null(mix, "%s", rows[i].mix);
        for (int l = 0; l < 4; l++) {
            char name[64];
            snprintf(name, sizeof name, "blk.%d.%s.weight", layers[l], rows[i].name);
            cr_expect_str_eq(sheaf_type_name(sheaf__mix_type(mix, &model, name, WIDTH)),
                             rows[i].types[l], "%s %s", rows[i].mix, name);
        }
    }
    cr_expect_str_eq(type_of(sheaf__mix_find("TQ2_0"), false, "token_embd.weight", WIDTH), "q4_K");
    cr_expect_str_eq(type_of(sheaf__mix_find("TQ2_0"), true, "token_embd.weight", WIDTH), "q6_K");
    cr_expect_str_eq(type_of(sheaf__mix_find("MXFP4_MOE"), false, "output.weight", WIDTH), "q8_0");
    cr_expect_str_eq(type_of(sheaf__mix_find("IQ4_XS"), false, "blk.3.ffn_up.weight", 320),
                     "iq4_nl");
    cr_expect_str_eq(type_of(sheaf__mix_find("TQ1_0"), false, "blk.3.ffn_up.weight", 320), "q4_0");
    cr_assert_null(sheaf__mix_find("IQ2_XS"), "it needs an importance matrix");
}

/* What depends on the model: eight experts, the shape of a 70B, and matrices that hold several. */
Test(mix, types_by_the_model) {
    static const struct {
        const char *mix, *name, *type;
        int64_t n_expert;
        bool is_70b;
    } rows[] = {
        {"Q4_K_M", "attn_v", "q8_0", 8, false},       {"Q4_0", "attn_k", "q8_0", 8, false},
        {"Q4_K_M", "attn_k", "q4_K", 7, false},       {"F16", "attn_v", "f16", 8, false},
        {"Q4_K_M", "attn_output", "q5_K", 8, false},  {"Q3_K_L", "attn_output", "q3_K", 8, false},
        {"Q2_K", "attn_output", "q5_K", 8, false},    {"Q5_K_M", "attn_output", "q5_K", 8, false},
        {"Q4_K_M", "attn_v", "q5_K", 0, true},        {"Q4_K_M", "attn_q", "q4_K", 0, true},
        {"Q4_K_M", "attn_qkv", "q4_K", 0, false},     {"Q3_K_M", "attn_qkv", "q4_K", 0, false},
        {"Q2_K", "attn_qkv", "q3_K", 0, false},       {"Q4_0", "attn_qkv", "q8_0", 8, false},
        {"Q2_K", "ffn_down_shexp", "q3_K", 4, false},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        const struct sheaf__mix_model model = {
            .n_layer = N_LAYERS, .gqa = 1, .n_expert = rows[i].n_expert, .is_70b = rows[i].is_70b};
        char name[64];
        snprintf(name, sizeof name, "blk.3.%s.weight", rows[i].name);
        cr_expect_str_eq(
            sheaf_type_name(sheaf__mix_type(sheaf__mix_find(rows[i].mix), &model, name, WIDTH)),
            rows[i].type, "%s %s", rows[i].mix, name);
    }
    cr_expect(sheaf__mix_is_70b("llama", 80, 8) && sheaf__mix_is_70b("qwen2", 80, 8));
    cr_expect_not(sheaf__mix_is_70b("llama", 80, 1), "Llama 65B");
    cr_expect_not(sheaf__mix_is_70b("llama", 32, 4) || sheaf__mix_is_70b("qwen3", 80, 8));
}

/* Matrices of architectures that only llama.cpp knows: it ends where a norm or a convolution is of another type. */
Test(mix, matrices_that_stay_exact) {
    static const struct {
        const char *name, *type;
    } rows[] = {
        {"blk.3.attn_q_norm.weight", "f32"},        {"output_hc_norm.weight", "f32"},
        {"blk.1.ssm_conv1d_q.weight", "f32"},       {"blk.1.shortconv.conv.weight", "f32"},
        {"blk.1.shortconv.in_proj.weight", "q4_0"}, {"altup_proj.weight", "f32"},
        {"blk.0.laurel_l.weight", "f32"},           {"enc.blk.0.attn_rel_b.weight", "f32"},
        {"v.position_embd.weight", "f32"},          {"per_layer_model_proj.weight", "f32"},
        {"blk.0.indexer.q_proj.weight", "f32"},     {"blk.0.indexer.k_proj.weight", "f32"},
        {"blk.0.indexer.proj.weight", "q4_0"},      {"blk.0.time_mix_first.weight", "f32"},
        {"blk.0.time_mix_w1.weight", "f32"},        {"blk.0.time_mix_decay_w2.weight", "f32"},
        {"blk.0.ple_norm_key.weight", "f32"},       {"blk.0.indexer_compressor_ape.weight", "f32"},
        {"blk.0.time_mix_value.weight", "q4_0"},    {"blk.0.time_mix_gate.weight", "q4_0"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        cr_expect_str_eq(type_of(sheaf__mix_find("Q4_0"), false, rows[i].name, WIDTH), rows[i].type,
                         "%s", rows[i].name);
    cr_expect_str_eq(type_of(sheaf__mix_find("F16"), false, "blk.1.ssm_conv1d_q.weight", 4), "f32");
}

/* Rows of 320 are whole blocks of 32, rows of 40 of nothing. */
Test(mix, rows_that_do_not_fit_get_a_larger_type) {
    const struct sheaf__mix *mix = sheaf__mix_find("Q4_K_M");
    cr_assert_str_eq(type_of(mix, false, "blk.3.ffn_down.weight", 320), "q5_0");
    cr_assert_str_eq(type_of(mix, false, "blk.0.ffn_down.weight", 320), "q8_0");
    cr_assert_str_eq(type_of(sheaf__mix_find("Q5_K_S"), false, "blk.0.ffn_up.weight", 320), "q5_1");
    cr_assert_str_eq(type_of(mix, false, "blk.3.ffn_down.weight", 40), "f16");
    cr_assert_str_eq(type_of(sheaf__mix_find("Q4_0"), false, "blk.3.ffn_up.weight", 40), "f16");
}

Test(mix, presets_are_written_with_their_mix) {
    static const struct {
        const char *preset;
        int64_t embd, ff, kv;
    } presets[] = {{"tinyllama-1.1b", 2048, 5632, 256}, {"llama-8b", 4096, 14336, 1024}};
    for (int i = 0; i < 2; i++) {
        struct sheaf__random_model_params p = sheaf__random_model_default_params();
        struct sheaf_gguf *g;
        char path[] = "/tmp/sheaf-test-mix-XXXXXX";
        uint64_t n = 0;
        close(mkstemp(path));
        cr_assert_eq(sheaf__random_model_preset(presets[i].preset, &p), 0);
        p.n_layer = 1;
        p.n_vocab = 320;
        p.mix = "Q4_K_M";
        cr_assert_eq(sheaf__random_model_write(&p, path), 0, "%s", sheaf_last_error());
        cr_assert_eq(sheaf_gguf_open(path, &g), 0, "%s", sheaf_last_error());
        unlink(path);
        const struct sheaf_gguf_tensor *t =
            sheaf_gguf_tensor(g, sheaf_gguf_find_tensor(g, "blk.0.ffn_gate.weight"));
        cr_assert_eq(t->ne[0], presets[i].embd);
        cr_assert_eq(t->ne[1], presets[i].ff);
        cr_assert_eq(t->type, SHEAF_TYPE_Q4_K);
        t = sheaf_gguf_tensor(g, sheaf_gguf_find_tensor(g, "blk.0.attn_k.weight"));
        cr_assert_eq(t->ne[1], presets[i].kv);
        t = sheaf_gguf_tensor(g, sheaf_gguf_find_tensor(g, "output.weight"));
        cr_assert_eq(t->type, SHEAF_TYPE_Q6_K);
        cr_assert_eq(sheaf_gguf_get_u64(g, "general.file_type", &n), 0);
        cr_assert_eq(n, 15);
        sheaf_gguf_free(g);
    }
    struct sheaf__random_model_params p = sheaf__random_model_default_params();
    cr_assert_eq(sheaf__random_model_preset("llama-9000b", &p), SHEAF_STATUS_INVALID);
    p.mix = "Q9";
    cr_assert_eq(sheaf__random_model_write(&p, "/tmp/never"), SHEAF_STATUS_INVALID);
    cr_assert_not_null(strstr(sheaf_last_error(), "Q9"));
}

/* Elements of all tensors: parameters as the models' makers count them, within 1.5 %. Without
 * deepseek-v2-lite, which has two experts that every token uses, and not one. */
Test(mix, presets_have_the_parameters_of_their_models) {
    static const struct {
        const char *preset;
        double millions;
        bool tied;
    } known[] = {
        {"tinyllama-1.1b", 1100, false},    {"llama-8b", 8030, false},
        {"llama-70b", 70554, false},        {"llama-405b", 405853, false},
        {"mixtral-8x7b", 46703, false},     {"qwen3-30b-a3b", 30532, false},
        {"qwen3-235b-a22b", 235094, false}, {"olmo2-7b", 7299, false},
        {"phi3-mini", 3821, false},         {"granite-3b-a800m", 3299, true},
        {"gpt-oss-20b", 20915, false},      {"deepseek-v3", 671026, false},
        {"mamba2-2.7b", 2703, true},        {"granite-4-tiny", 6939, true},
        {"bge-base", 109, false},
    };
    for (size_t i = 0; i < sizeof known / sizeof *known; i++) {
        struct sheaf__random_model_params p = sheaf__random_model_default_params();
        struct sheaf_gguf *g;
        double n = 0;
        cr_assert_eq(sheaf__random_model_preset(known[i].preset, &p), 0);
        p.tied = known[i].tied;
        cr_assert_eq(sheaf__random_model_describe(&p, &g), 0, "%s", sheaf_last_error());
        for (int64_t k = 0; k < sheaf_gguf_n_tensors(g); k++) {
            const struct sheaf_gguf_tensor *t = sheaf_gguf_tensor(g, k);
            n += (double)t->ne[0] * (double)t->ne[1] * (double)t->ne[2];
        }
        n /= 1e6;
        cr_expect(n > known[i].millions * 0.985 && n < known[i].millions * 1.015,
                  "%s has %.0f million parameters, not %.0f", known[i].preset, n,
                  known[i].millions);
        sheaf_gguf_free(g);
    }
}

/* A vocabulary of the family that models of the architecture have, which gives any text back. */
Test(mix, random_models_have_a_vocabulary) {
    static const struct {
        const char *family, *archs; /* with a blank behind each */
    } known[] = {
        {"llama", "llama gemma3 phi3 granite granitemoe "},
        {"gpt2 (qwen2)", "qwen2 qwen3 qwen3moe olmo2 gpt-oss deepseek2 mamba2 granitehybrid "},
        {"bert", "bert "},
    };
    static const char text[] = "aeta \xC3\xA9\xE6\xBC\xA2\n~\x01";
    const struct sheaf__arch *arch;
    for (size_t k = 0; (arch = sheaf__arch_get(k)); k++) {
        struct sheaf__random_model_params p = sheaf__random_model_default_params();
        struct sheaf_gguf *g;
        struct sheaf_tokenizer *tok;
        const char *want = NULL;
        char word[32], *back;
        int32_t *ids;
        size_t n, len;
        p.arch = arch->name;
        p.n_expert = arch->mixture && !arch->dense ? 4 : 0;
        p.n_expert_used = p.n_expert / 2;
        cr_assert_eq(sheaf__random_model_describe(&p, &g), 0, "%s", sheaf_last_error());
        cr_assert_eq(sheaf_tokenizer_new(g, &tok), 0, "%s: %s", arch->name, sheaf_last_error());
        snprintf(word, sizeof word, "%s ", arch->name);
        for (size_t i = 0; i < sizeof known / sizeof *known; i++) {
            const char *at = strstr(known[i].archs, word);
            if (at && (at == known[i].archs || at[-1] == ' ')) want = known[i].family;
        }
        cr_assert_not_null(want, "%s", arch->name);
        cr_expect_str_eq(sheaf_tokenizer_describe(tok), want, "%s", arch->name);
        cr_assert_eq(sheaf_tokenizer_encode(tok, text, sizeof text - 1, 0, &ids, &n), 0, "%s",
                     sheaf_last_error());
        cr_assert_eq(sheaf_tokenizer_decode(tok, ids, n, SHEAF_DETOKENIZE_START, &back, &len), 0);
        if (!arch->encoder) /* which folds and splits words */
            cr_expect(len == sizeof text - 1 && !memcmp(back, text, len), "%s: '%s'", arch->name,
                      back);
        free(back);
        free(ids);
        sheaf_tokenizer_free(tok);
        sheaf_gguf_free(g);
    }
}
