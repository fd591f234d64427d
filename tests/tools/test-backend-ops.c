/* sheaf-backend-ops as the judge of the CPU with each of its instruction sets; its arguments and
 * its table. And the judge judged: spoiled results must fail. The meta device:
 * test-backend-ops-meta.c. */
#include "backend-ops.h"

/* Under a sanitizer three threads run the same code as one, and suites of the CPU the portable one. */
#if !defined __SANITIZE_ADDRESS__ && !defined __SANITIZE_THREAD__
Test(backend_ops, cpu_best_instructions, .timeout = DEADLINE) { on_device("", "CPU0", 1900); }
Test(backend_ops, cpu_portable, .timeout = DEADLINE) {
    on_device("SHEAF_CPU_ISA=portable", "CPU0", 1900);
}
#endif
Test(backend_ops, cpu_with_three_threads, .timeout = DEADLINE) {
    on_device("SHEAF_CPU_DEVICES=4 SHEAF_CPU_THREADS=3", "CPU0", 1900);
}
Test(backend_ops, spoiled_results_fail, .timeout = DEADLINE) {
    static char out[CAP];
    static const char *const args[] = {"test --tamper -b CPU0 -o NORM",
                                       "test --tamper -b META2 -o ADD"};
    for (int i = 0; i < 2; i++) {
        cr_assert_eq(ops("", args[i], out), 1, "%s", out);
        cr_assert(strstr(out, "wrong: error"), "%s", out);
    }
    cr_assert_eq(ops("", "test --tamper -b CPU0 -o MUL_MAT", out), 1, "%s", out);
    cr_assert(strstr(out, " 0 refused, 0 unsupported"), "%s", out);
}

Test(backend_ops, arguments, .timeout = DEADLINE) {
    static char out[CAP];
    cr_assert_eq(ops("", "", out), 2);
    cr_assert_eq(ops("", "test -r many", out), 2);
    cr_assert_eq(ops("", "test -o NOTHING", out), 2);
    cr_assert_str_eq(out, "sheaf-backend-ops: no op is named 'NOTHING'\n", "%s", out);
    cr_assert_eq(ops("", "test -o NOTHING -t q4_0", out), 2);
    cr_assert_str_eq(out, "sheaf-backend-ops: no op is named 'NOTHING'\n", "%s", out);
    cr_assert_eq(ops("", "test -o GET_ROWS -t nothing", out), 2);
    cr_assert_str_eq(out, "sheaf-backend-ops: no type of the op's cases is named 'nothing'\n", "%s",
                     out);
    cr_assert_eq(ops("", "test -b CPU0 -o GET_ROWS", out), 0, "%s", out);
    int all = 0, some = 0;
    cr_assert_eq(sscanf(out, "CPU0 %d cases", &all), 1, "%s", out);
    cr_assert_eq(ops("", "test -b CPU0 -o GET_ROWS -t q4_0", out), 0, "%s", out);
    cr_assert_eq(sscanf(out, "CPU0 %d cases", &some), 1, "%s", out);
    cr_expect(some > 0 && some < all, "%d of %d", some, all);
    cr_assert_eq(ops("", "test -v -b CPU0 -o FLASH_ATTN_EXT -t q8_0", out), 0, "%s", out);
    cr_assert(strstr(out, "q8_0 [64,70,2,1]") && !strstr(out, "], f32 [64,70,"), "%s", out);
    cr_assert_eq(ops("SHEAF_CPU_DEVICES=16", "test -b CPU13 -o NORM", out), 0, "%s", out);
    cr_assert_eq(ops("SHEAF_CPU_DEVICES=70", "test -m CPU -o NORM", out), 1, "%s", out);
    cr_assert(strstr(out, "all 70 devices: at most 64 are cut here"), "%s", out);
    cr_assert_eq(ops("", "test -b NOTHING", out), 1);
    cr_assert(strstr(out, "no device is named 'NOTHING'"), "%s", out);
}

Test(backend_ops, perf_measures, .timeout = DEADLINE) {
    static char out[CAP];
    cr_assert_eq(ops("", "perf -b CPU0 -o ADD", out), 0, "%s", out);
    cr_assert(strstr(out, "GB/s") && strstr(out, "ADD"), "%s", out);
}

/* docs/ops.md is what scripts/op-table writes, without a "no" or "some". */
Test(backend_ops, the_table_in_the_documents, .timeout = DEADLINE) {
    static char out[CAP], doc[CAP];
    cr_assert_eq(ops("", "support", out), 0, "%s", out);
    cr_assert(!strstr(out, "| no |") && !strstr(out, "| some |"), "%s", out);
    FILE *f = fopen(SHEAF_SOURCE_DIR "/docs/ops.md", "r");
    cr_assert_not_null(f);
    doc[fread(doc, 1, sizeof doc - 1, f)] = 0;
    fclose(f);
    cr_assert(strstr(doc, out), "docs/ops.md is old: run scripts/op-table");
}
