/* sheaf-bench as its users start it: the three formats, alone and under mpirun, and bad input. The
 * speeds are whatever the machine gives; what is checked is that they are there, that they belong
 * together, and what does not depend on speed: counts, bytes, checksums. */
#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "mpirun.h"
#include "sanitizer.h"

#define MODEL SHEAF_SOURCE_DIR "/models/kjv-q8_0.gguf"
#define QUICK "-m " MODEL " -p 40 -n 24 -r 2 "

enum { OUT = 1 << 16, TIMEOUT = 120 };
static char out[OUT];

TestSuite(bench, .timeout = 400);

static int bench(int np, const char *env, const char *args) {
    char cmd[2048];
    if (np) return run_mpirun(np, env, TIMEOUT, out, OUT, "sheaf-bench %s", args);
    snprintf(cmd, sizeof cmd, "exec env %s '%s'/bin/sheaf-bench %s", env ? env : "",
             SHEAF_BUILD_DIR, args);
    return run_command(cmd, TIMEOUT, out, OUT);
}

/* The number after "key": in the test called `test` of the JSON output. */
static double number(const char *test, const char *key) {
    char text[128];
    snprintf(text, sizeof text, "\"test\": \"%s\"", test);
    const char *p = strstr(out, text), *end = p ? strstr(p, "ids_sha256") : NULL;
    cr_assert_not_null(end, "no test %s in: %s", test, out);
    snprintf(text, sizeof text, "\"%s\": ", key);
    p = strstr(p, text);
    cr_assert(p && p < end, "no %s of %s in: %s", key, test, out);
    return strtod(p + strlen(text), NULL);
}

static void copy_sha(char sha[65]) {
    const char *p = strstr(out, "\"ids_sha256\": \"");
    cr_assert_not_null(p, "no checksum in: %s", out);
    snprintf(sha, 65, "%s", p + strlen("\"ids_sha256\": \""));
    cr_assert_eq(strspn(sha, "0123456789abcdef"), 64, "%s", sha);
}

/* The output is JSON for a parser that is not ours, and `check` (Python, `d` is the object) holds.
 */
static void json_holds(const char *check) {
    char path[] = "/tmp/sheaf-test-bench-XXXXXX", cmd[1024], err[2048];
    const int fd = mkstemp(path);
    cr_assert(fd >= 0 && write(fd, out, strlen(out)) == (ssize_t)strlen(out));
    close(fd);
    snprintf(cmd, sizeof cmd,
             "exec python3 -c 'import hashlib,json,struct,sys; d=json.load(open(sys.argv[1])); "
             "assert %s' %s",
             check, path);
    const int rc = run_command(cmd, TIMEOUT, err, sizeof err);
    unlink(path);
    cr_assert_eq(rc, 0, "%s\n%s", err, out);
}

Test(bench, profile_of_the_ops) {
    cr_assert_eq(bench(2, "SHEAF_CPU_PROFILE=1", "-m " MODEL " -t 1 -p 8 -n 0 -r 1 -o json"), 0);
    double shares = 0;
    int tables = 0, devices = 0;
    for (const char *p = out; (p = strstr(p, "us each")); p++) tables++;
    for (const char *p = out; (p = strstr(p, "graphs, ")); p++) devices++;
    for (const char *p = out; (p = strstr(p, " %\n")); p++) {
        while (p[-1] != ' ') p--;
        shares += strtod(p, NULL);
        p = strchr(p, '%');
    }
    cr_assert(tables == 2 && devices == 2, "%s", out);
    cr_assert_float_eq(shares, 200, 2.0, "%g: %s", shares, out);
    cr_assert(strstr(out, "MUL_MAT        q8_0") && strstr(out, "RMS_NORM"), "%s", out);
}

Test(bench, json_of_one_process) {
    cr_assert_eq(bench(0, NULL, QUICK "-d 0,8 -o json 2>/dev/null"), 0, "%s", out);
    json_holds("[t[\"test\"] for t in d[\"tests\"]] == [\"pp40\", \"tg24\"] * 2 and "
               "[t[\"depth\"] for t in d[\"tests\"]] == [0, 0, 8, 8] and "
               "all(len(t[\"samples_s\"]) == 2 and t[\"tokens_per_s\"] > 0 for t in d[\"tests\"]) "
               "and all(t[\"same_ids\"] for t in d[\"tests\"] if t[\"ids_sha256\"]) and "
               "all(hashlib.sha256(struct.pack(\"<24i\", *t[\"ids\"])).hexdigest() == "
               "t[\"ids_sha256\"] for t in d[\"tests\"] if t[\"ids_sha256\"]) and "
               "len(d[\"ranks\"]) == 1 and d[\"link\"] is None");
    cr_assert_eq(number("tg24", "collectives_per_token"), 0);
    cr_assert_gt(number("tg24", "bound_tokens_per_s"), 0);
    cr_assert_gt(number("tg24", "compute_share"), 0);
    cr_assert_leq(number("tg24", "compute_share"), 1);
    /* the mean of the speeds of two repeats lies at or above that of the mean time */
    const char *p = strstr(out, "\"samples_s\": [");
    char *end;
    const double a = strtod(p + strlen("\"samples_s\": ["), &end), b = strtod(end + 1, NULL);
    const double speed = 0.5 * (40 / a + 40 / b);
    cr_assert_float_eq(number("pp40", "tokens_per_s"), speed, 1e-3 * speed);
}

/* Two layers' sums and those after them are all that travels, and no split changes the tokens. */
Test(bench, ranks_count_collectives_and_generate_the_same) {
    char want[65], got[65];
    cr_assert_eq(bench(0, NULL, QUICK "-o json --single 2>/dev/null"), 0, "%s", out);
    copy_sha(want);
    cr_assert_eq(bench(2, "SHEAF_CPU_THREADS=1", QUICK "-o json 2>/dev/null"), 0, "%s", out);
    copy_sha(got);
    cr_assert_str_eq(got, want);
    json_holds("len(d[\"ranks\"]) == 2 and d[\"link\"][\"latency_us\"] >= 0 and "
               "all(r[\"threads\"] == 1 and r[\"read_bytes_per_s\"] > 0 and "
               "0 < r[\"weight_bytes\"] < d[\"model_bytes\"] for r in d[\"ranks\"])");
    /* attention and feed-forward of 4 layers of width 256, and the rows of the embeddings */
    cr_assert_eq(number("tg24", "collectives_per_token"), 9, "%s", out);
    cr_assert_eq(number("tg24", "bytes_per_token"), 9 * 256 * 4, "%s", out);
    cr_assert_eq(number("pp40", "collectives_per_token"), 9 / 40.0, "%s", out);
    cr_assert_gt(number("tg24", "us_per_collective"), 0);
    cr_assert_geq(number("tg24", "communication_share"), number("tg24", "wait_share"));
    cr_assert_gt(number("tg24", "bound_tokens_per_s"), 0);
}

static int uneven(const char *split, const char *more) {
    char args[256];
    snprintf(args, sizeof args, "-m " MODEL " -p 2048 -n 0 -r %d --bandwidth 10 --split %s %s",
             SANITIZED ? 1 : 3, split, more);
    return bench(2, "SHEAF_CPU_THREADS=1", args);
}

/* A rank with most of the work is the one that the others wait for. */
Test(bench, names_the_straggler) {
    cr_assert_eq(uneven("1,7", "-o json 2>/dev/null"), 0, "%s", out);
    json_holds("d[\"tests\"][0][\"straggler\"][\"rank\"] == 1 and "
               "0.2 < d[\"tests\"][0][\"straggler\"][\"share\"] < 1");
    cr_assert_eq(uneven("7,1", ""), 0);
    cr_assert(strstr(out, "straggler of pp2048: rank 0 ("), "%s", out);
    cr_assert_eq(bench(0, NULL, "-m " MODEL " -p 64 -n 0 -r 1 -o json 2>/dev/null"), 0, "%s", out);
    json_holds("d[\"tests\"][0][\"straggler\"] is None");
}

/* Sequences that generate together have the tokens that each has alone; speeds are of all. */
Test(bench, sequences_together) {
    cr_assert_eq(bench(0, NULL,
                       "-m " MODEL
                       " -p 8 -n 12 --sequences 1,3 -r 1 --bandwidth 10 -o json 2>/dev/null"),
                 0, "%s", out);
    json_holds(
        "[(t[\"test\"], t[\"sequences\"]) for t in d[\"tests\"]] == "
        "[(\"pp8\", 1), (\"tg12\", 1), (\"tg12\", 3)] and "
        "d[\"tests\"][2][\"ids\"][0::3] == d[\"tests\"][1][\"ids\"] and "
        "d[\"tests\"][2][\"ids\"][1::3] != d[\"tests\"][1][\"ids\"] and "
        "abs(d[\"tests\"][2][\"tokens_per_s\"] * d[\"tests\"][2][\"samples_s\"][0] / 36 - 1) "
        "< 1e-3");
    cr_assert_neq(bench(0, NULL, "-m " MODEL " --sequences 0"), 0);
    cr_assert(strstr(out, "--sequences wants"), "%s", out);
}

/* The bandwidth that is given, and not measured, is the one of the report and of the bound. */
Test(bench, bandwidth_as_given) {
    double bound[2];
    for (int i = 0; i < 2; i++) {
        char args[256], want[64];
        const int tenths = 125 * (i + 1);
        snprintf(args, sizeof args,
                 "-m " MODEL " -p 0 -n 8 -r 1 --bandwidth %g -o json 2>/dev/null", 0.1 * tenths);
        snprintf(want, sizeof want, "\"read_bytes_per_s\": %d00000000,", tenths);
        cr_assert_eq(bench(0, NULL, args), 0, "%s", out);
        cr_expect(strstr(out, want), "no %s in %s", want, out);
        bound[i] = number("tg8", "bound_tokens_per_s");
    }
    cr_expect_float_eq(bound[1] / bound[0], 2, 1e-3, "%g and %g", bound[0], bound[1]);
}

/* The depth changes what is generated; repeats, threads and batches do not. */
Test(bench, checksum_follows_the_ids) {
#define GENERATE "-m " MODEL " -p 0 -n 24 --bandwidth 10 -o json "
    char a[65], b[65];
    cr_assert_eq(bench(0, NULL, GENERATE "-r 1"), 0, "%s", out);
    copy_sha(a);
    cr_assert_eq(bench(0, NULL, GENERATE "-r 2 -t 1 --no-warmup -b 7"), 0, "%s", out);
    copy_sha(b);
    cr_assert_str_eq(a, b);
    cr_assert_eq(bench(0, NULL, GENERATE "-r 1 -d 5"), 0, "%s", out);
    copy_sha(b);
    cr_assert_str_neq(a, b);
}

static int commas(const char *line) {
    int n = 0;
    for (; *line && *line != '\n'; line++) n += *line == ',';
    return n;
}

Test(bench, csv_has_a_row_a_test) {
    cr_assert_eq(bench(0, NULL, QUICK "-o csv 2>/dev/null"), 0, "%s", out);
    const char *line[4];
    line[0] = out;
    for (int i = 1; i < 4; i++) {
        line[i] = strchr(line[i - 1], '\n');
        cr_assert_not_null(line[i], "%s", out);
        line[i]++;
    }
    cr_assert_eq(*line[3], 0, "%s", out);
    cr_assert_eq(strncmp(line[0], "model,", 6), 0, "%s", out);
    cr_assert_eq(commas(line[1]), commas(line[0]), "%s", out);
    cr_assert_eq(commas(line[2]), commas(line[0]), "%s", out);
    cr_assert_not_null(strstr(line[1], ",pp40,40,0,2,"));
    cr_assert_not_null(strstr(line[2], ",tg24,24,0,2,"));
}

Test(bench, md_says_who_else_was_there) {
    static const char *const wanted[] = {"| kjv-q8_0.gguf | 3.73 MiB | 2 | 1 | pp40 |",
                                         "| tg24 | all_reduce | 9.00 | 1024 |",
                                         "ids of tg24: sha256 ",
                                         "rank 1: ",
                                         "stolen",
                                         "used by others",
                                         "link: an all-reduce takes "};
    cr_assert_eq(bench(2, NULL, QUICK "-t 1 2>/dev/null"), 0, "%s", out);
    for (size_t i = 0; i < sizeof wanted / sizeof *wanted; i++)
        cr_assert_not_null(strstr(out, wanted[i]), "no '%s' in: %s", wanted[i], out);
}

Test(bench, bad_input_is_named) {
    static const struct {
        const char *args, *text;
        int code;
    } cases[] = {
        {"", "give a model with -m", 2},
        {"-m " MODEL " -p 0 -n 0", "nothing to measure", 2},
        {"-m " MODEL " -p 1,x", "--n-prompt wants", 2},
        {"-m " MODEL " -r 0", "--repetitions wants a whole number from 1", 2},
        {"-m " MODEL " -o xml", "md, csv or json, not 'xml'", 2},
        {"-m " MODEL " --bandwidth 0", "--bandwidth wants a number", 2},
        {"-m " MODEL " --kv-type q4_0", "--kv-type is", 2},
        {"-m " MODEL " --single --split even", "--single has no members", 2},
        {"-m " MODEL " -npl 1,3 -b 2", "-npl 3: a token of each sequence is a batch", 2},
        {"-m " MODEL " --frobnicate", "unknown option '--frobnicate'", 2},
        {"-m " MODEL " -n", "a value is missing after -n", 2},
        {"-m /nowhere.gguf", "/nowhere.gguf", 1},
        {"-m " MODEL " --split 1,2", "2 numbers", 1},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        cr_expect_eq(bench(0, NULL, cases[i].args), cases[i].code, "%s: %s", cases[i].args, out);
        cr_expect_not_null(strstr(out, cases[i].text), "%s: %s", cases[i].args, out);
    }
    cr_assert_eq(bench(0, NULL, "--help"), 0);
    cr_assert_not_null(strstr(out, "usage: sheaf-bench"));
}
