/* sheaf-quantize as its users start it: what it writes loads, says the right types, and has nearly
 * the perplexity of what it was made from. */
#include <criterion/criterion.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "sheaf/gguf.h"
#include "sheaf/type.h"

#include "mpirun.h"
#include "sanitizer.h"
#include "temp_dir.h"

#define F32     SHEAF_SOURCE_DIR "/models/kjv-f32.gguf"
#define HELDOUT SHEAF_SOURCE_DIR "/tests/golden/heldout.txt"

enum { OUT = 1 << 16 };
static char out[OUT];

TestSuite(quantize, .init = setup, .fini = teardown, .timeout = 400);

static int tool(const char *program, const char *args) {
    char cmd[2048];
    snprintf(cmd, sizeof cmd, "exec '%s'/bin/%s %s", SHEAF_BUILD_DIR, program, args);
    return run_command(cmd, 120, out, OUT);
}

static double perplexity(const char *model) {
    char args[1024];
    snprintf(args, sizeof args,
             "-m %s --perplexity " HELDOUT " --ppl-lines --ppl-tokens 1024 --single", model);
    cr_assert_eq(tool("sheaf-run", args), 0, "%s", out);
    const char *p = strstr(out, " perplexity ");
    cr_assert_not_null(p, "%s", out);
    return strtod(p + strlen(" perplexity "), NULL);
}

Test(quantize, loses_as_little_as_its_bits_allow) {
    static const struct {
        const char *type;
        double worse; /* at most, a factor of perplexity */
    } cases[] = {{"F16", 1.001},   {"Q8_0", 1.01},  {"Q6_K", 1.02},   {"Q5_K_M", 1.05},
                 {"Q4_K_M", 1.15}, {"Q4_1", 1.2},   {"Q4_0", 1.25},   {"IQ4_NL", 1.15},
                 {"MXFP4", 1.25},  {"NVFP4", 1.25}, {"Q3_K_M", 1.25}, {"Q2_K", 1.5}};
    const double want = perplexity(F32);
    char args[512], path[128];
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i += SANITIZED ? 4 : 1) {
        snprintf(path, sizeof path, "%s/%s.gguf", dir, cases[i].type);
        snprintf(args, sizeof args, F32 " %s %s", path, cases[i].type);
        cr_assert_eq(tool("sheaf-quantize", args), 0, "%s", out);
        const double got = perplexity(path);
        printf("%s: perplexity %.4f, F32 %.4f\n", cases[i].type, got, want);
        cr_expect(got < want * cases[i].worse && got > want * 0.98, "%s: %g, F32 %g", cases[i].type,
                  got, want);
    }
}

Test(quantize, keeps_metadata_and_vectors) {
    struct sheaf_gguf *a, *b;
    char args[512], path[128];
    uint64_t type = 0;
    snprintf(path, sizeof path, "%s/a.gguf", dir);
    snprintf(args, sizeof args, "--threads 3 " F32 " %s q4_k_m", path);
    cr_assert_eq(tool("sheaf-quantize", args), 0, "%s", out);
    cr_assert_not_null(strstr(out, "token_embd.weight"));
    cr_assert_eq(sheaf_gguf_open(F32, &a), 0);
    cr_assert_eq(sheaf_gguf_open(path, &b), 0, "%s", sheaf_last_error());
    for (int64_t i = 0; i < sheaf_gguf_n_kv(a); i++) {
        const int64_t j = sheaf_gguf_find_key(b, sheaf_gguf_key(a, i));
        cr_assert_geq(j, 0, "%s is lost", sheaf_gguf_key(a, i));
        cr_assert_eq(sheaf_gguf_kv_type(a, i), sheaf_gguf_kv_type(b, j));
        if (sheaf_gguf_kv_type(a, i) == SHEAF_GGUF_TYPE_ARRAY)
            cr_assert_eq(sheaf_gguf_arr_n(a, i), sheaf_gguf_arr_n(b, j));
    }
    cr_assert_eq(sheaf_gguf_get_u64(b, "general.file_type", &type), 0);
    cr_assert_eq(type, 15);
    cr_assert_eq(sheaf_gguf_n_tensors(a), sheaf_gguf_n_tensors(b));
    for (int64_t i = 0; i < sheaf_gguf_n_tensors(a); i++) {
        const struct sheaf_gguf_tensor *t = sheaf_gguf_tensor(a, i), *u = sheaf_gguf_tensor(b, i);
        cr_assert_str_eq(t->name, u->name);
        cr_assert_arr_eq(t->ne, u->ne, sizeof t->ne);
        cr_assert_eq(u->type == SHEAF_TYPE_F32, t->n_dims == 1, "%s", t->name);
    }
    sheaf_gguf_free(a);
    sheaf_gguf_free(b);
}

Test(quantize, dry_run_and_bad_input) {
    char args[512], path[128];
    snprintf(path, sizeof path, "%s/none.gguf", dir);
    snprintf(args, sizeof args, "--dry-run " F32 " %s Q4_0", path);
    cr_assert_eq(tool("sheaf-quantize", args), 0, "%s", out);
    cr_assert_not_null(strstr(out, "nothing written"));
    cr_assert_neq(access(path, F_OK), 0, "a dry run wrote a file");
    static const struct {
        const char *args, *text;
        int code;
    } cases[] = {
        {F32 " " F32 " Q4_0", "are the same file", 1},
        {F32 " /nowhere/a.gguf Q4_0", "cannot create /nowhere/a.gguf", 1},
        {"/nowhere.gguf /tmp/never.gguf Q4_0", "/nowhere.gguf", 1},
        {HELDOUT " /tmp/never.gguf Q4_0", "heldout.txt", 1},
        {F32 " /tmp/never.gguf Q9", "there is no type Q9", 2},
        {F32 " /tmp/never.gguf", "give IN.gguf OUT.gguf TYPE", 2},
        {"--frob " F32 " /tmp/never.gguf Q8_0", "unknown option '--frob'", 2},
        {"--threads 0 " F32 " /tmp/never.gguf Q8_0", "--threads wants", 2},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        cr_expect_eq(tool("sheaf-quantize", cases[i].args), cases[i].code, "%s: %s", cases[i].args,
                     out);
        cr_expect_not_null(strstr(out, cases[i].text), "%s: %s", cases[i].args, out);
    }
    cr_assert_neq(access("/tmp/never.gguf", F_OK), 0);
}

/* What no model computes with is refused before a file is written; llama-quantize does so, too. */
Test(quantize, values_that_are_not_finite) {
    static const struct {
        float value;
        const char *type, *text;
    } cases[] = {
        {NAN, "Q8_0", "tensor 't' has an infinity or NaN in row 2"},
        {NAN, "F16", "tensor 't' has an infinity or NaN in row 2"},
        {-INFINITY, "Q4_K_M", "tensor 't' has an infinity or NaN in row 2"},
        {-1e6f, "F16", "has a value of magnitude 1e+06 in row 2, which f16 cannot hold"},
        {-1e6f, "BF16", NULL},
        {-1e6f, "Q8_0", NULL}, /* its scale is a half, of 1e6 / 127 */
        {1e8f, "Q8_0", "which q8_0 cannot hold"},
        {65504, "F16", NULL},
    };
    static float data[4 * 256];
    const int64_t ne[] = {256, 4};
    char in[128], result[128], args[300];
    snprintf(in, sizeof in, "%s/values.gguf", dir);
    snprintf(result, sizeof result, "%s/result.gguf", dir);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct sheaf_gguf *g = sheaf_gguf_new();
        data[2 * 256 + 7] = cases[i].value;
        cr_assert_eq(sheaf_gguf_add_tensor(g, "t", SHEAF_TYPE_F32, 2, ne, data), 0);
        cr_assert_eq(sheaf_gguf_write(g, in), 0, "%s", sheaf_last_error());
        sheaf_gguf_free(g);
        unlink(result);
        snprintf(args, sizeof args, "--threads 2 %s %s %s", in, result, cases[i].type);
        cr_expect_eq(tool("sheaf-quantize", args), cases[i].text ? 1 : 0, "%zu: %s", i, out);
        cr_expect(!cases[i].text || strstr(out, cases[i].text), "%zu: %s", i, out);
        cr_expect_eq(access(result, F_OK) == 0, !cases[i].text, "%zu", i);
    }
}

/* Integers stay as they are, in a matrix too; sizes are printed as they are in the files. */
Test(quantize, integers_are_copied) {
    static float floats[1024 * 2048];
    static int32_t numbers[4 * 256];
    const int64_t ne[] = {1024, 2048}, few[] = {256, 4};
    char args[300], back[sizeof numbers];
    struct sheaf_gguf *g = sheaf_gguf_new();
    for (int i = 0; i < 4 * 256; i++) numbers[i] = 77 * i - 1000;
    cr_assert_eq(sheaf_gguf_add_tensor(g, "t", SHEAF_TYPE_F32, 2, ne, floats), 0);
    cr_assert_eq(sheaf_gguf_add_tensor(g, "numbers", SHEAF_TYPE_I32, 2, few, numbers), 0);
    cr_assert_eq(sheaf_gguf_write(g, in_dir("in.gguf")), 0, "%s", sheaf_last_error());
    sheaf_gguf_free(g);
    snprintf(args, sizeof args, "%s/in.gguf %s/out.gguf F16", dir, dir);
    cr_assert_eq(tool("sheaf-quantize", args), 0, "%s", out);
    cr_expect(strstr(out, "[  1024,   2048]    f32 ->    f16,     8.00 ->     4.00 MiB"), "%s",
              out);
    cr_expect(strstr(out, "F16: 8.00 MiB -> 4.00 MiB"), "%s", out);
    cr_assert_eq(sheaf_gguf_open(in_dir("out.gguf"), &g), 0, "%s", sheaf_last_error());
    const struct sheaf_gguf_tensor *t = sheaf_gguf_tensor(g, sheaf_gguf_find_tensor(g, "numbers"));
    cr_assert_eq(t->type, SHEAF_TYPE_I32);
    cr_assert_eq(sheaf_gguf_read(g, t, 0, back, sizeof back), 0);
    cr_expect_arr_eq(back, numbers, sizeof back);
    sheaf_gguf_free(g);
}

/* A file as llama-imatrix writes it: sums of squares of the inputs of `name`, [256, n]. */
static void write_importance(const char *path, const char *type, const char *name, int64_t ne0,
                             int64_t n, const float *sums) {
    const int64_t ne[] = {ne0, n}, counts[] = {1, n};
    static const float ones[4] = {1, 1, 1, 1};
    char tensor[64];
    struct sheaf_gguf *g = sheaf_gguf_new();
    cr_assert_eq(sheaf_gguf_set_str(g, "general.type", type), 0);
    snprintf(tensor, sizeof tensor, "%s.in_sum2", name);
    cr_assert_eq(sheaf_gguf_add_tensor(g, tensor, SHEAF_TYPE_F32, 2, ne, sums), 0);
    snprintf(tensor, sizeof tensor, "%s.counts", name);
    cr_assert_eq(sheaf_gguf_add_tensor(g, tensor, SHEAF_TYPE_F32, 2, counts, ones), 0);
    cr_assert_eq(sheaf_gguf_write(g, path), 0, "%s", sheaf_last_error());
    sheaf_gguf_free(g);
}

/* Of each of two experts the squares of the errors of tensor "t" in out.gguf, in the columns that are
 * important to the first expert, and in the others. */
static void errors_of_halves(const float *data, double errors[2][2]) {
    static float got[2 * 4 * 256];
    static char blocks[sizeof got];
    struct sheaf_gguf *g;
    cr_assert_eq(sheaf_gguf_open(in_dir("out.gguf"), &g), 0, "%s", sheaf_last_error());
    const struct sheaf_gguf_tensor *t = sheaf_gguf_tensor(g, 0);
    cr_assert_eq(sheaf_gguf_read(g, t, 0, blocks, t->size), 0);
    cr_assert_eq(sheaf_to_float(t->type, blocks, got, 2 * 4 * 256), 0);
    memset(errors, 0, 4 * sizeof **errors);
    for (int i = 0; i < 2 * 4 * 256; i++)
        errors[i / 1024][i % 2] += pow((double)data[i] - (double)got[i], 2);
    sheaf_gguf_free(g);
}

/* Each expert has its own columns: those with more importance lose less than without. */
Test(quantize, importance_moves_errors) {
    static float data[2 * 4 * 256], sums[2 * 256];
    const int64_t ne[] = {256, 4, 2};
    double without[2][2], with[2][2];
    char args[400];
    struct sheaf_gguf *g = sheaf_gguf_new();
    for (int i = 0; i < 2 * 4 * 256; i++) data[i] = sinf((float)i * 1.7f) + sinf((float)(i * i));
    for (int i = 0; i < 2 * 256; i++) sums[i] = i % 2 == i / 256 ? 20 : 1;
    cr_assert_eq(sheaf_gguf_add_tensor(g, "t", SHEAF_TYPE_F32, 3, ne, data), 0);
    cr_assert_eq(sheaf_gguf_write(g, in_dir("in.gguf")), 0, "%s", sheaf_last_error());
    sheaf_gguf_free(g);
    write_importance(in_dir("sums.gguf"), "imatrix", "t", 256, 2, sums);
    snprintf(args, sizeof args, "%s/in.gguf %s/out.gguf Q4_K_S", dir, dir);
    cr_assert_eq(tool("sheaf-quantize", args), 0, "%s", out);
    errors_of_halves(data, without);
    snprintf(args, sizeof args, "--imatrix %s/sums.gguf %s/in.gguf %s/out.gguf Q4_K_S", dir, dir,
             dir);
    cr_assert_eq(tool("sheaf-quantize", args), 0, "%s", out);
    cr_expect(strstr(out, "importance of 1 of 1 tensors from "), "%s", out);
    errors_of_halves(data, with);
    for (int expert = 0; expert < 2; expert++) {
        cr_expect_lt(with[expert][expert], 0.9 * without[expert][expert], "expert %d", expert);
        cr_expect_gt(with[expert][!expert], without[expert][!expert], "expert %d", expert);
    }
    cr_assert_eq(sheaf_gguf_open(in_dir("out.gguf"), &g), 0);
    cr_expect_geq(sheaf_gguf_find_key(g, "quantize.imatrix.file"), 0);
    sheaf_gguf_free(g);
    write_importance(in_dir("sums.gguf"), "imatrix", "t", 256, 1, sums); /* of all experts */
    cr_assert_eq(tool("sheaf-quantize", args), 0, "%s", out);
    errors_of_halves(data, with);
    for (int expert = 0; expert < 2; expert++)
        cr_expect_lt(with[expert][0], 0.9 * without[expert][0], "expert %d", expert);
}

Test(quantize, importance_of_another_model) {
    static const struct {
        const char *type, *name, *text;
        int64_t ne0, n;
    } cases[] = {
        {"imatrix", "t", "its 't.in_sum2' does not fit the tensor", 128, 1},
        {"imatrix", "t", "its 't.in_sum2' does not fit the tensor", 256, 3},
        {"imatrix", "u", "is of another model: it has no tensor of ", 256, 1},
        {"model", "t", "its general.type is 'model', not 'imatrix'", 256, 1},
    };
    static float data[4 * 256];
    const int64_t ne[] = {256, 4};
    char args[400];
    struct sheaf_gguf *g = sheaf_gguf_new();
    cr_assert_eq(sheaf_gguf_add_tensor(g, "t", SHEAF_TYPE_F32, 2, ne, data), 0);
    cr_assert_eq(sheaf_gguf_write(g, in_dir("in.gguf")), 0, "%s", sheaf_last_error());
    sheaf_gguf_free(g);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        write_importance(in_dir("sums.gguf"), cases[i].type, cases[i].name, cases[i].ne0,
                         cases[i].n, data);
        snprintf(args, sizeof args, "--imatrix %s/sums.gguf %s/in.gguf %s/none.gguf Q4_0", dir, dir,
                 dir);
        cr_expect_eq(tool("sheaf-quantize", args), 1, "%zu: %s", i, out);
        cr_expect(strstr(out, cases[i].text), "%zu: %s", i, out);
        cr_expect_neq(access(in_dir("none.gguf"), F_OK), 0, "%zu", i);
    }
}

/* Squared errors alone are least with the large elements cut down, which shrinks what a matrix does
 * (0.934 of it here, in place of 0.949). */
Test(quantize, large_elements_are_not_cut_down) {
    static float data[4 * 256], got[4 * 256];
    static char blocks[sizeof got];
    const int64_t ne[] = {256, 4};
    double products = 0, squares = 0;
    char args[300];
    struct sheaf_gguf *g = sheaf_gguf_new();
    for (int i = 0; i < 4 * 256; i++)
        data[i] = powf(sinf((float)i * 1.7f) + sinf((float)(i * i)), 3);
    cr_assert_eq(sheaf_gguf_add_tensor(g, "t", SHEAF_TYPE_F32, 2, ne, data), 0);
    cr_assert_eq(sheaf_gguf_write(g, in_dir("in.gguf")), 0, "%s", sheaf_last_error());
    sheaf_gguf_free(g);
    snprintf(args, sizeof args, "%s/in.gguf %s/out.gguf Q2_K", dir, dir);
    cr_assert_eq(tool("sheaf-quantize", args), 0, "%s", out);
    cr_assert_eq(sheaf_gguf_open(in_dir("out.gguf"), &g), 0, "%s", sheaf_last_error());
    const struct sheaf_gguf_tensor *t = sheaf_gguf_tensor(g, 0);
    cr_assert_eq(t->type, SHEAF_TYPE_Q2_K);
    cr_assert_eq(sheaf_gguf_read(g, t, 0, blocks, t->size), 0);
    cr_assert_eq(sheaf_to_float(t->type, blocks, got, 4 * 256), 0);
    sheaf_gguf_free(g);
    for (int i = 0; i < 4 * 256; i++) {
        products += (double)data[i] * (double)got[i];
        squares += (double)data[i] * (double)data[i];
    }
    cr_expect_gt(products, 0.943 * squares, "%g", products / squares);
}

Test(quantize, parts_are_to_be_joined) {
    char args[256], path[128];
    struct sheaf_gguf *g = sheaf_gguf_new();
    snprintf(path, sizeof path, "%s/a-00001-of-00002.gguf", dir);
    cr_assert_eq(sheaf_gguf_set_u32(g, "split.count", 2), 0);
    cr_assert_eq(sheaf_gguf_write(g, path), 0, "%s", sheaf_last_error());
    sheaf_gguf_free(g);
    snprintf(args, sizeof args, "%s %s/out.gguf Q8_0", path, dir);
    cr_assert_eq(tool("sheaf-quantize", args), 1, "%s", out);
    cr_expect(
        strstr(out, "is one of 2 parts: join them first (llama.cpp's llama-gguf-split --merge"),
        "%s", out);
}

/* Runs a script in the test's folder, in which `start` is a command, then `signal` is sent to it. */
static void interrupted(const char *start, const char *wait_for, const char *signal) {
    char cmd[1024];
    snprintf(cmd, sizeof cmd,
             "cd %s || exit 9; rm -f pipe; mkfifo pipe; PATH='" SHEAF_BUILD_DIR
             "/bin':$PATH; %s > pipe "
             "& p=$!; { %s; kill -%s $p; cat > /dev/null; } < pipe; wait $p; s=$?; ls; exit $s",
             dir, start, wait_for, signal);
    cr_expect_eq(run_command(cmd, 60, out, OUT), 130, "%s: %s", start, out);
    cr_expect(strstr(out, ": interrupted: "), "%s: %s", start, out);
    cr_expect_not(strstr(out, "part-") || strstr(out, "\nnew"), "%s: %s", start, out);
}

/* The names of so many tensors do not fit into a pipe that is not read: the signal comes amid the work. */
Test(quantize, an_interrupt_leaves_no_part_of_a_file) {
    static const char *const signals[] = {"INT", "TERM", "HUP"};
    char args[256];
    snprintf(args, sizeof args, "-o %s/in.gguf --embd 64 --ff 64 --layers 400", dir);
    cr_assert_eq(tool("sheaf-make-model", args), 0, "%s", out);
    for (int i = 0; i < 3; i++)
        interrupted("sheaf-quantize in.gguf new Q8_0", "read line", signals[i]);
    interrupted("sheaf-make-model -o new --embd 1024 --ff 4096 --layers 1000",
                "until ls | grep -q part-; do sleep 0.02; done", "INT");
}
