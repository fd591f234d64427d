/* scripts/bench-cluster, bench-peers, bench-hosts and draw-scaling: what they draw, and where they take
 * packages from; of all scripts their help, and what they say of bad input. */
#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "mpirun.h"

#define MODEL SHEAF_SOURCE_DIR "/models/kjv-q8_0.gguf"

enum { OUT = 1 << 16, TIMEOUT = 120 };
static char out[OUT];

TestSuite(bench_scripts, .timeout = 400);

static int script(const char *args) {
    char cmd[2048];
    snprintf(cmd, sizeof cmd, "exec '%s'/scripts/%s", SHEAF_SOURCE_DIR, args);
    return run_command(cmd, TIMEOUT, out, OUT);
}

#define BIN "--bin '" SHEAF_BUILD_DIR "/bin' "

Test(bench_scripts, cluster_draws_what_it_measured) {
    char dir[] = "/tmp/sheaf-test-cluster-XXXXXX", args[1024];
    cr_assert_not_null(mkdtemp(dir));
    snprintf(args, sizeof args,
             "bench-cluster -m " MODEL " " BIN "--ranks 1,2 --out %s -- -p 32 -n 16 -r 2 -t 1",
             dir);
    cr_assert_eq(script(args), 0, "%s", out);
    cr_assert_not_null(strstr(out, "| 1 | 1 | tg16 | "), "%s", out);
    cr_assert_not_null(strstr(out, "| 2 | 1 | pp32 | "), "%s", out);
    cr_assert_null(strstr(out, "NO |"), "other tokens: %s", out);
    /* well-formed, a line and two points for each test */
    snprintf(args, sizeof args,
             "exec python3 -c 'import csv,sys,xml.etree.ElementTree as e; d=sys.argv[1]; "
             "t=[x.tag.split(\"}\")[1] for x in e.parse(d+\"/scaling.svg\").getroot().iter()]; "
             "assert t.count(\"polyline\") == 2 and t.count(\"circle\") == 4, t; "
             "r=list(csv.DictReader(open(d+\"/scaling.csv\"))); "
             "assert [x[\"ranks\"] for x in r] == list(\"1122\"), r' %s",
             dir);
    cr_assert_eq(run_command(args, TIMEOUT, out, OUT), 0, "%s", out);
    snprintf(args, sizeof args, "rm -r %s", dir);
    cr_assert_eq(system(args), 0);
}

/* The picture of docs/scaling.md is that of its table. */
Test(bench_scripts, scaling_is_drawn_from_its_table) {
    const char *const docs = SHEAF_SOURCE_DIR "/docs";
    char cmd[1024];
    snprintf(cmd, sizeof cmd,
             "set -e; d=$(mktemp -d); trap 'rm -r $d' EXIT; "
             "'%s/../scripts/draw-scaling' '%s/scaling.md' $d/out.svg; "
             "cmp $d/out.svg '%s/scaling.svg'; "
             "test $(grep -c '<polyline' $d/out.svg) = 20; "
             "sed 's/| 1 | /| 1 | 9/' '%s/scaling.md' >$d/other.md; "
             "'%s/../scripts/draw-scaling' $d/other.md $d/other.svg; "
             "! cmp -s $d/other.svg $d/out.svg",
             docs, docs, docs, docs, docs);
    cr_assert_eq(run_command(cmd, TIMEOUT, out, OUT), 0, "%s", out);
}

/* Also where there is no HOME, as in a job of cron. */
Test(bench_scripts, all_tell_their_use) {
    cr_assert_eq(
        run_command("H=$(mktemp) || exit 1; cd '" SHEAF_SOURCE_DIR
                    "/scripts'; for s in *; do [ -f $s ] && [ -x $s ] || continue; "
                    "env -u HOME ./$s --help >$H 2>&1 </dev/null || echo "
                    "$s: status $?; [ $(grep -c \"$s\" $H) -gt 0 ] || echo $s: no use of it; "
                    "done; "
                    "rm $H",
                    TIMEOUT, out, OUT),
        0, "%s", out);
    cr_expect_str_eq(out, "", "%s", out);
}

/* scripts/run builds before the model writes: what the builder says is not among the text. */
Test(bench_scripts, a_build_leaves_the_output_alone) {
    cr_assert_eq(run_command("d=$(mktemp -d) || exit 1; printf '#!/bin/sh\necho no work to do\n' "
                             ">$d/cmake; chmod +x $d/cmake; PATH=$d:$PATH bash -c '. \"$1\"; "
                             "build release' run '" SHEAF_SOURCE_DIR
                             "/scripts/lib.sh' 2>/dev/null; s=$?; rm -r $d; exit $s",
                             TIMEOUT, out, OUT),
                 0, "%s", out);
    cr_expect_str_eq(out, "", "%s", out);
}

/* bench-peers --install takes Debian packages from where this machine's apt takes them; the apt-get
 * of the test prints `targets`. */
static int mirror_of(const char *targets) {
    char cmd[2048];
    snprintf(
        cmd, sizeof cmd,
        "d=$(mktemp -d); printf '#!/bin/sh\\nprintf \"%s\"' >$d/apt-get; chmod +x $d/apt-get; "
        "PATH=$d:$PATH PYTHONPATH='" SHEAF_SOURCE_DIR
        "/scripts' python3 -B -c 'import sys; from importlib.machinery import "
        "SourceFileLoader as L; print(L(\"peers\", sys.argv[1]).load_module().debian_mirror())' "
        "'" SHEAF_SOURCE_DIR "/scripts/bench-peers'; s=$?; rm -r $d; exit $s",
        targets);
    return run_command(cmd, TIMEOUT, out, OUT);
}

Test(bench_scripts, peers_come_from_the_mirror_of_this_machine) {
    cr_assert_eq(mirror_of("Other|main|http://a.invalid/\\\\n"
                           "Debian|bookworm-updates|http://b.invalid/\\\\n"
                           "Debian|bookworm|http://c.invalid/debian/\\\\n"),
                 0, "%s", out);
    cr_expect(strstr(out, "http://c.invalid/debian/\n"), "%s", out);
    cr_assert_neq(mirror_of("Other|main|http://a.invalid/\\\\n"), 0, "%s", out);
    cr_expect(strstr(out, "run apt-get update"), "%s", out);
}

Test(bench_scripts, name_what_is_wrong) {
    static const char *const cases[][2] = {
        {"bench-cluster -m /nowhere.gguf", "there is no file /nowhere.gguf"},
        {"bench-cluster -m " MODEL " --bin /nowhere", "build first"},
        {"bench-cluster -m " MODEL " " BIN "--ranks 1,x", "--ranks wants numbers"},
        {"bench-cluster -m " MODEL " " BIN "--hostfile /nowhere", "cannot read /nowhere"},
        {"bench-cluster -m " MODEL " " BIN "--hostfile /dev/null", "names no hosts"},
        {"bench-cluster -m " MODEL " " BIN "--ranks 1 -- -p x", "--n-prompt wants"},
        {"bench-cluster -m " MODEL " " BIN
         "--ranks 2 --launch env -- -p 8 -n 4 -r 1 --bandwidth 10",
         "asked for 2 ranks, measured 1"},
        {"package --x", "no option '--x'"},
        {"package a b", "one folder, not 'a' and 'b'"},
        {"op-table --x", "no option '--x'"},
        {"op-table /nowhere", "cmake --build /nowhere"},
        {"test-mpich --x", "no option '--x'"},
        {"test-debian --arm --x", "no option '--x'"},
        {"test-debian --arm", "which release"},
        {"test-debian Trixie", "'Trixie' is no name of a release"},
        {"comm-bench --x", "no option '--x'"},
        {"slurm-check --x", "no option '--x'"},
        {"uninstall --x", "no option '--x'"},
        {"uninstall /nowhere", "nothing was installed from /nowhere"},
        {"make-man /nowhere", "give a folder of programs"},
        {"make-unicode-table x", "no arguments but fold"},
        {"settings-page x", "unrecognized arguments: x"},
        {"settings-page --bin /nowhere", "/nowhere/sheaf-info is missing"},
        {"draw-scaling " SHEAF_SOURCE_DIR "/LICENSE /dev/null", "has no table"},
        {"draw-scaling /nowhere.md /dev/null", "No such file"},
        {"scaling-check -m /nowhere.gguf", "give a model"},
        {"bench-peers -m /nowhere.gguf " BIN "--llama-bench true",
         "there is no file /nowhere.gguf"},
        {"bench-peers --bin /nowhere", "build first"},
        {"bench-peers " BIN "-t 1,x", "wants whole numbers like 1,2"},
        {"bench-peers " BIN "-t 4096", "would measure waiting"},
        {"bench-peers " BIN "-t 1 -d 0,x", "wants whole numbers like 0,4096"},
        {"bench-peers " BIN "-t 1 --peer true", "wants NAME=..."},
        {"bench-peers " BIN "-t 1 --build up=/", "/ is no source tree of llama.cpp"},
        {"bench-peers -m " MODEL " " BIN "-t 1 -p 8 -n 4 --llama-bench /nowhere",
         "there is no program '/nowhere'"},
        {"bench-peers -m " MODEL " " BIN "-t 1 -p 8 -n 4 --llama-bench false",
         "exit status 1: false"},
        {"bench-peers " BIN "-t 1 --sequences 2 --update x", "cannot --update"},
        {"bench-hosts --bin /nowhere", "build first"},
        {"bench-hosts " BIN "-p 2048", "exceed the context of the model, 2048"},
        {"bench-hosts " BIN "--hosts 1,x", "wants whole numbers"},
        {"bench-hosts " BIN "--hosts 1 --build up=/", "/ is no source tree of llama.cpp"},
        {"bench-hosts " BIN "--hosts 1 --only none", "--only names no program"},
        {"bench-peers -m " MODEL " " BIN "-t 1 -n 2 -r 1 --sequences 2 --llama-bench true",
         "no row for 2 sequences"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        cr_expect_neq(script(cases[i][0]), 0, "%s: %s", cases[i][0], out);
        cr_expect_not_null(strstr(out, cases[i][1]), "%s: %s", cases[i][0], out);
        cr_expect_null(strstr(out, "Traceback"), "%s: %s", cases[i][0], out);
    }
}
