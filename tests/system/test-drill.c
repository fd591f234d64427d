/* Jobs that are broken on purpose: the quick part of tests/system/drill.py (--full runs all; the
 * table is in docs/drill.md), and what is left of a job that failed: dumps and what they say. */
#include <criterion/criterion.h>

#include "mpirun.h"

static char out[1 << 17];

Test(drill, jobs_end_as_they_should, .timeout = 400) {
    const int rc = run_command("exec python3 '" SHEAF_SOURCE_DIR
                               "/tests/system/drill.py' '" SHEAF_BUILD_DIR "' -j 5",
                               380, out, sizeof out);
    cr_assert_eq(rc, 0, "status %d\n%s", rc, out);
}

/* Signals and full disks: the quick part of tests/system/drill_wide.py. */
Test(drill, signals_and_full_disks, .timeout = 300) {
    const int rc = run_command("exec python3 '" SHEAF_SOURCE_DIR
                               "/tests/system/drill_wide.py' '" SHEAF_BUILD_DIR "'",
                               280, out, sizeof out);
    cr_assert_eq(rc, 0, "status %d\n%s", rc, out);
}

/* Runs helper-comm's fault `mode` with a flight recorder, then the postmortem. */
static void postmortem(const char *mode, const char *env) {
    char dir[] = "/tmp/test-drill-XXXXXX", all[512], cmd[1024];
    cr_assert_not_null(mkdtemp(dir));
    snprintf(all, sizeof all, "SHEAF_TIMEOUT_MS=2000 SHEAF_FLIGHT_DIR=%s/new %s", dir, env);
    const int rc = run_mpirun(3, all, 60, out, sizeof out, "helper-comm %s 1 1 2048", mode);
    /* an mpirun that bears the loss of a rank returns 0 */
    cr_expect(rc != 0 || strstr(env, "enable_recovery"), "%s: %s", mode, out);
    snprintf(
        cmd, sizeof cmd,
        "'%s/bin/sheaf-info' --postmortem %s/new; s=$?; ls %s/new | grep -vc flight; rm -r %s; "
        "exit $s",
        SHEAF_BUILD_DIR, dir, dir, dir);
    cr_assert_eq(run_command(cmd, 20, out, sizeof out), 0, "%s: %s", mode, out);
}

Test(postmortem, names_where_ranks_part, .timeout = 120) {
    static const char *const envs[] = {"", "SHEAF_COMM_TRANSPORT=mpi"};
    for (size_t i = 0; i < 2; i++) {
        postmortem("kind", envs[i]);
        const char *line = strstr(out, "first divergence: ");
        cr_assert_not_null(line, "%s", out);
        cr_expect(strstr(line, "all_reduce 'ffn_out' (node 2, 8192 bytes, collective 3") &&
                      strstr(line, "barrier 'ffn_out' (node 2, 0 bytes, collective 3"),
                  "%s", out);
    }
}

/* Also of a rank that cannot write any more. */
Test(postmortem, names_the_late_rank, .timeout = 120) {
    static const char *const modes[] = {"stop", "never"};
    for (size_t i = 0; i < 2; i++) {
        postmortem(modes[i], "");
        cr_expect_not_null(strstr(out, "3 of 3 ranks"), "%s: %s", modes[i], out);
        cr_expect_not_null(strstr(out, "late: rank 1 ("), "%s: %s", modes[i], out);
        cr_expect_null(strstr(out, "late: rank 0"), "%s: %s", modes[i], out);
        cr_expect_null(strstr(out, "first divergence"), "%s: %s", modes[i], out);
    }
}

/* mpirun of Open MPI 4 and of 5 leaves ranks alone when one dies; sheaf sees the first. */
#define RECOVERY "OMPI_MCA_orte_enable_recovery=1 PRTE_MCA_state_base_recoverable=1"

/* The others of its host write it, where the launcher lets them. */
Test(postmortem, has_the_dump_of_a_dead_rank, .timeout = 60) {
    if (run_by_mpich()) cr_skip_test("mpiexec ends the others with a dead one");
    postmortem("kill", RECOVERY);
    cr_expect(strstr(out, "3 of 3 ranks") && strstr(out, "failure: rank 1 ("), "%s", out);
}

/* The reason of a failure may hold the name of a tensor out of a file. */
Test(postmortem, reads_reasons_of_any_bytes, .timeout = 60) {
    postmortem("abort", "SHEAF_TEST_REASON=\"$(printf 'two\\nlines \\033[31m')\"");
    cr_expect(strstr(out, "two?lines ?[31m"), "%s", out);
}

/* Also where a stopped rank leaves the others to end the job, and where mpirun does not. */
Test(postmortem, does_not_wait_for_its_directory, .timeout = 120) {
    static const char *const modes[] = {"stop", "kill"};
    static const char env[] = "SHEAF_TIMEOUT_MS=2000 SHEAF_TIMEOUT_HEARTBEAT_MS=3000 "
                              "SHEAF_FLIGHT_DIR=/tmp/never-answers " RECOVERY;
    for (size_t i = 0; i < sizeof modes / sizeof *modes; i++) {
        const int rc = run_mpirun(3, env, 40, out, sizeof out, "helper-comm %s 1 1 2048", modes[i]);
        cr_expect(rc >= 0, "%s: the job hangs\n%s", modes[i], out);
        const char *said = strstr(out, "rank 1 (");
        cr_expect(said && !strstr(said + 1, "sheaf: rank 1 ("), "%s: %s", modes[i], out);
    }
}

Test(postmortem, refuses_what_is_no_dump) {
    static const struct {
        const char *make, *words;
    } cases[] = {
        {"true", "holds no *.flight files"},
        {"echo nonsense > $d/a.flight", "is no dump"},
        {"printf 'sheaf-flight 1\\nrank 5 of 2\\n' > $d/a.flight", "is no dump"},
        {"printf 'sheaf-flight 1\\njob 1\\nrank 0 of 1\\n' > $d/a.flight;"
         "printf 'sheaf-flight 1\\njob 2\\nrank 0 of 1\\n' > $d/b.flight",
         "several jobs"},
        {"mkfifo $d/a.flight", "is no dump"}, /* it does not wait for a writer */
        {"{ printf 'sheaf-flight 1\\nrank 0 of 1\\n'; seq -f '%.0f 1 k 1 1 1 1 1 t' 8193; } > "
         "$d/a.flight",
         "is no dump"}, /* more than a recorder keeps */
        {"rm -r $d", "cannot open"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char cmd[1024];
        snprintf(
            cmd, sizeof cmd,
            "d=$(mktemp -d); %s; '%s/bin/sheaf-info' --postmortem $d; s=$?; rm -rf $d; exit $s",
            cases[i].make, SHEAF_BUILD_DIR);
        cr_expect_eq(run_command(cmd, 20, out, sizeof out), 1, "%s: %s", cases[i].make, out);
        cr_expect(strstr(out, cases[i].words), "%s: %s", cases[i].make, out);
    }
}

/* A file that was cut short is named, and the dumps of the other ranks are read. */
Test(postmortem, goes_on_after_a_damaged_dump) {
    cr_assert_eq(
        run_command("d=$(mktemp -d); printf 'sheaf-flight 1\nrank 1 of 3\n' > $d/b.flight; "
                    ": > $d/a.flight; echo nonsense > $d/c.flight; '" SHEAF_BUILD_DIR
                    "/bin/sheaf-info' --postmortem $d; s=$?; rm -rf $d; exit $s",
                    20, out, sizeof out),
        0, "%s", out);
    cr_expect(strstr(out, "/a.flight is no dump of a flight recorder"), "%s", out);
    cr_expect(strstr(out, "/c.flight is no dump of a flight recorder"), "%s", out);
    cr_expect(strstr(out, "\nrank 1 "), "%s", out);
    cr_expect(strstr(out, "\nrank 0 left no dump that can be read\n"), "%s", out);
}

/* Of a large job few ranks may have written; the others are not a line each. */
Test(postmortem, names_ranks_without_dumps_together) {
    cr_assert_eq(run_command("d=$(mktemp -d); for r in 1 2 40000; do printf 'sheaf-flight 1\\nrank "
                             "%d of 65536\\n' $r > $d/$r.flight; done; '" SHEAF_BUILD_DIR
                             "/bin/sheaf-info' --postmortem $d; s=$?; rm -rf $d; exit $s",
                             20, out, sizeof out),
                 0, "%s", out);
    cr_expect(strstr(out, "\nrank 0 left no dump: "), "%s", out);
    cr_expect(strstr(out, "\nranks 3 to 39999 left no dumps: "), "%s", out);
    cr_expect(strstr(out, "\nranks 40001 to 65535 left no dumps: "), "%s", out);
}

Test(trace, has_a_lane_for_each_rank, .timeout = 60) {
    char path[] = "/tmp/test-drill-XXXXXX", cmd[2048];
    const int fd = mkstemp(path);
    cr_assert_geq(fd, 0);
    close(fd);
    int rc = run_mpirun(
        2, NULL, 60, out, sizeof out,
        "sheaf-run -m " SHEAF_SOURCE_DIR "/models/kjv-f32.gguf -p And -n 64 --trace %s", path);
    cr_assert_eq(rc, 0, "%s", out);
    snprintf(
        cmd, sizeof cmd,
        "python3 -c '\n"
        "import json\n"
        "events = [e for e in json.load(open(\"%s\"))[\"traceEvents\"] if e[\"ph\"] == \"X\"]\n"
        "for rank in 0, 1:\n"
        "    lane = sorted((e for e in events if e[\"tid\"] == rank), key=lambda e: e[\"ts\"])\n"
        "    assert {e[\"cat\"] for e in lane} == {\"compute\", \"wait\", \"wire\"}, rank\n"
        "    for a, b in zip(lane, lane[1:]):  # a rank does one thing at a time\n"
        "        assert a[\"ts\"] + a[\"dur\"] <= b[\"ts\"] + 0.002, (a, b)\n"
        "' && '%s/scripts/draw-trace' %s %s.svg --ms 1e9 && python3 -c '\n"
        "import xml.etree.ElementTree as tree\n"
        "root = tree.parse(\"%s.svg\").getroot()\n"
        "text = [e.text for e in root.iter() if e.text]\n"
        "kinds = {t.split()[0] for t in text if t.endswith(\" us\") and \",\" in t}\n"
        "assert kinds == {\"compute\", \"wait\", \"wire\"}, kinds\n"
        "assert \"rank 0\" in text and \"rank 1\" in text, text[:9]\n"
        "'; s=$?; rm -f %s %s.svg; exit $s",
        path, SHEAF_SOURCE_DIR, path, path, path, path, path);
    rc = run_command(cmd, 20, out, sizeof out);
    cr_assert_eq(rc, 0, "%s", out);
    rc = run_mpirun(2, NULL, 60, out, sizeof out,
                    "sheaf-run -m " SHEAF_SOURCE_DIR
                    "/models/kjv-f32.gguf -p And -n 1 --trace /nonexistent/x");
    cr_assert_eq(rc, 1, "%s", out);
    cr_assert_not_null(strstr(out, "cannot create /nonexistent/x"), "%s", out);
}

/* A model with spans that end in a node without a name. */
Test(trace, names_every_event, .timeout = 60) {
    char dir[] = "/tmp/test-drill-XXXXXX", cmd[1024];
    cr_assert_not_null(mkdtemp(dir));
    snprintf(cmd, sizeof cmd, "exec '%s/bin/sheaf-make-model' --arch granitehybrid -o %s/m.gguf",
             SHEAF_BUILD_DIR, dir);
    cr_assert_eq(run_command(cmd, 20, out, sizeof out), 0, "%s", out);
    const int rc = run_mpirun(2, NULL, 60, out, sizeof out,
                              "sheaf-run -m %s/m.gguf -p And -n 4 --trace %s/trace", dir, dir);
    cr_expect_eq(rc, 0, "%s", out);
    snprintf(cmd, sizeof cmd,
             "python3 -c '\n"
             "import json\n"
             "events = json.load(open(\"%s/trace\"))[\"traceEvents\"]\n"
             "names = [e[\"name\"] for e in events if e[\"ph\"] == \"X\"]\n"
             "assert len(names) > 50 and all(names), names\n"
             "'; s=$?; rm -r %s; exit $s",
             dir, dir);
    cr_assert_eq(run_command(cmd, 20, out, sizeof out), 0, "%s", out);
}

/* Of two ranks, each in a folder of its own, $s, in which the command `make` puts a model m.gguf. */
static int check_copies(const char *make) {
    char dir[] = "/tmp/test-drill-XXXXXX", cmd[1024], script[256];
    cr_assert_not_null(mkdtemp(dir));
    snprintf(cmd, sizeof cmd, "set -e; cd %s; for s in 0 1; do mkdir $s; %s; done", dir, make);
    cr_assert_eq(run_command(cmd, 60, out, sizeof out), 0, "%s", out);
    snprintf(script, sizeof script, "cd %s/$R; exec $B/sheaf-info --check -m m.gguf", dir);
    const int rc = run_on_ranks(2, NULL, 60, out, sizeof out, script);
    snprintf(cmd, sizeof cmd, "rm -r %s", dir);
    run_command(cmd, 20, NULL, 0);
    return rc;
}

Test(check, finds_the_odd_host, .timeout = 120) {
    char cmd[512];
    int rc = run_mpirun(2, NULL, 60, out, sizeof out,
                        "sheaf-info --check -m " SHEAF_SOURCE_DIR "/models/kjv-f32.gguf");
    cr_assert_eq(rc, 0, "%s", out);
    cr_assert_not_null(strstr(out, "fit: 2 ranks on 1 host"), "%s", out);
    cr_expect_not_null(strstr(out, "MPI: "), "%s", out);
    cr_expect((strstr(out, "MPI: Open MPI v4") != NULL) == (strstr(out, "\nwithout ") == NULL),
              "%s", out); /* it is the one with everything */
    /* rank 0 or 1 has none, which is no fault */
    for (int r = 0; r < 2; r++) {
        snprintf(cmd, sizeof cmd,
                 "M=" SHEAF_SOURCE_DIR "/models/kjv-f32.gguf; [ $R = %d ] && M=/nonexistent; "
                 "exec $B/sheaf-info --check -m $M",
                 r);
        cr_assert_eq(run_on_ranks(2, NULL, 60, out, sizeof out, cmd), 0, "%s", out);
        cr_expect_not_null(strstr(out, ": cannot open /nonexistent: No such file or directory; rank "),
                           "%s", out);
        cr_expect_not_null(strstr(out, ") would send its slices\n"), "%s", out);
        cr_expect_not_null(strstr(out, "fit: 2 ranks on 1 host"), "%s", out);
    }
    /* rank 1 has another file under the same name */
    rc = check_copies("'" SHEAF_BUILD_DIR "/bin/sheaf-make-model' --seed 1$s -o $s/m.gguf");
    cr_assert_eq(rc, 1, "status %d: %s", rc, out);
    cr_assert_not_null(strstr(out, "(rank 1): another model under m.gguf"), "%s", out);
    cr_assert_not_null(strstr(out, "1 problem (above)"), "%s", out);
}

/* Between the samples that the start of a run compares. */
Test(check, reads_every_byte_of_the_copies, .timeout = 120) {
    const int rc =
        check_copies("cp '" SHEAF_SOURCE_DIR "/models/kjv-q8_0.gguf' $s/m.gguf; [ $s = 0 ] || "
                     "printf X | dd of=$s/m.gguf bs=1 seek=2000003 conv=notrunc");
    cr_assert_eq(rc, 1, "status %d: %s", rc, out);
    cr_expect_not_null(strstr(out, "reading all of m.gguf"), "%s", out);
    cr_expect_not_null(strstr(out, "(rank 1): bytes of m.gguf are others than on host"), "%s", out);
}

/* ---- which peers may connect ---- */

Test(control, refuses_strangers, .timeout = 60) {
    const int rc =
        run_mpirun(2, "SHEAF_COMM_TRANSPORT=mpi", 60, out, sizeof out, "helper-stranger");
    cr_assert_eq(rc, 0, "status %d\n%s", rc, out);
    cr_assert_not_null(strstr(out, "ok: 3 strangers were refused"), "%s", out);
}

Test(control, wants_a_private_or_named_address, .timeout = 60) {
    const int rc = run_mpirun(2, "SHEAF_COMM_TRANSPORT=mpi SHEAF_CONTROL_ADDRESS=anywhere", 60, out,
                              sizeof out, "helper-world info");
    cr_assert_eq(rc, 1, "status %d\n%s", rc, out);
    cr_assert_not_null(strstr(out, "SHEAF_CONTROL_ADDRESS is 'anywhere'"), "%s", out);
}
