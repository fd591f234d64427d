/* scripts/netns-run: several hosts on this machine, and nothing left of them afterwards, however
 * the run ended. Needs root and network namespaces; where there are none the tests are skipped and
 * say so. */
#include <criterion/criterion.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

#include "mpirun.h"

#define NETNS  "'" SHEAF_SOURCE_DIR "/scripts/netns-run' "
#define HELPER " -- '" SHEAF_BUILD_DIR "/bin/helper-hosts' "

static bool possible(void) {
    char out[1000];
    if (run_command("ip netns add sheaf-try-$$ && ip netns exec sheaf-try-$$ unshare --uts true; "
                    "s=$?; ip netns del sheaf-try-$$ 2>/dev/null; exit $s",
                    20, out, sizeof out) == 0)
        return true;
    cr_skip_test("no network namespaces here: %s", out);
    return false;
}

/* Runs a command in which $T is a fresh temporary folder, and checks that no namespace of the runs
 * inside it and no file in $T is left. */
static int run_clean(const char *cmd, char *out, size_t cap) {
    char line[4096], left[2000];
    snprintf(line, sizeof line,
             "T=$(mktemp -d /tmp/netns-test.XXXXXX); export T TMPDIR=$T\n(%s)\ns=$?\n"
             "ls -A $T | sed 's/^/LEFT file /'\n"
             "for f in $T/*.pid; do test -e $f && ip netns list | grep \"^sheaf$(cat $f)-\" | "
             "sed 's/^/LEFT namespace /'; done\n"
             "rm -rf $T; exit $s",
             cmd);
    const int status = run_command(line, 120, out, cap);
    const char *found = strstr(out, "LEFT");
    snprintf(left, sizeof left, "%s", found ? found : "");
    cr_expect_null(found, "%s left: %s", cmd, left);
    return status;
}

Test(netns, two_hosts_with_names_of_their_own) {
    char out[4000];
    if (!possible()) return;
    cr_assert_eq(run_clean(NETNS "-H 2" HELPER, out, sizeof out), 0, "%s", out);
    cr_expect(strstr(out, "rank 0 host 0 host0\nrank 1 host 1 host1\nhosts 2\n"), "%s", out);
}

Test(netns, ranks_are_dealt_out_to_the_hosts) {
    char out[4000];
    if (!possible()) return;
    cr_assert_eq(run_clean(NETNS "-H 3 -r 2 --rate 1gbit" HELPER, out, sizeof out), 0, "%s", out);
    cr_expect(strstr(out, "rank 3 host 0 host0\nrank 4 host 1 host1\nrank 5 host 2 host2\nhosts 3"),
              "%s", out);
}

/* The CPU has the same number on both. */
Test(netns, ranks_share_no_cpu_with_other_hosts) {
    char out[4000];
    if (!possible()) return;
    cr_assert_eq(run_clean(NETNS "-H 2 -- taskset -c $(taskset -c -p $$ | sed 's/.*: //; "
                                 "s/[^0-9].*//') '" SHEAF_BUILD_DIR "/bin/helper-world' bindings",
                           out, sizeof out),
                 0, "%s", out);
    for (int r = 0; r < 2; r++) {
        char want[64];
        snprintf(want, sizeof want, "ok rank %d, crowded 0 0 1\n", r);
        cr_expect(strstr(out, want), "no '%s' in %s", want, out);
    }
}

/* One of them with a folder for temporary files that Open MPI's options cannot name. */
Test(netns, two_runs_at_once) {
    char out[4000];
    if (!possible()) return;
    cr_assert_eq(run_clean(NETNS "-H 2" HELPER "& p=$!; mkdir \"$T/a b\"; TMPDIR=\"$T/a b\" " NETNS
                                 "-H 2" HELPER "&& wait $p && rmdir \"$T/a b\"",
                           out, sizeof out),
                 0, "%s", out);
    const char *first = strstr(out, "hosts 2");
    cr_expect(first && strstr(first + 1, "hosts 2"), "%s", out);
}

Test(netns, the_programs_failure_is_the_runs) {
    char out[4000];
    if (!possible()) return;
    cr_expect_eq(run_clean(NETNS "-H 2" HELPER "fail 1", out, sizeof out), 7, "%s", out);
    cr_expect_neq(run_clean(NETNS "-H 2 -- /nonexistent", out, sizeof out), 0, "%s", out);
    cr_expect_neq(run_clean(NETNS "-H 2 --rate nonsense" HELPER, out, sizeof out), 0, "%s", out);
    cr_expect(strstr(out, "'nonsense'"), "%s", out);
    /* a bucket that holds no whole packet would let none of full size pass */
    cr_expect_eq(run_clean(NETNS "-H 2 --rate 1gbit --burst 1kb" HELPER, out, sizeof out), 1, "%s",
                 out);
    cr_expect(strstr(out, "--burst 1kb: at 1gbit"), "%s", out);
    cr_expect_eq(run_clean(NETNS "-H 2 --rate 1gbit --burst 2kb" HELPER, out, sizeof out), 0, "%s",
                 out);
}

Test(netns, bad_arguments_are_named) {
    static const struct {
        const char *arguments, *words;
    } cases[] = {
        {"-H 1 -- true", "2 to 64"},  {"-H x -- true", "'x'"}, {"-H 65 -- true", "2 to 64"},
        {"-r 0 -- true", "-r wants"}, {"-H 2", "no program"},  {"--speed 3 -- true", "'--speed'"},
        {"-H", "-H wants"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char cmd[1000], out[2000];
        snprintf(cmd, sizeof cmd, NETNS "%s", cases[i].arguments);
        cr_expect_eq(run_command(cmd, 20, out, sizeof out), 1, "%s", cases[i].arguments);
        cr_expect(strstr(out, cases[i].words), "%s says: %s", cases[i].arguments, out);
    }
}

/* Ended from outside: by a request it cleans up itself, by SIGKILL the next run does it. */
Test(netns, nothing_is_left_after_a_signal) {
    static const char *const signals[] = {"TERM", "INT", "HUP"};
    char cmd[2000], out[4000];
    if (!possible()) return;
    for (size_t i = 0; i < sizeof signals / sizeof *signals; i++) {
        /* a shell starts background jobs with SIGINT ignored; env makes that the default again */
        snprintf(cmd, sizeof cmd,
                 "env --default-signal=INT " NETNS "-H 2" HELPER "hang > $T/out 2>&1 & p=$!\n"
                 "echo $p > $T/1.pid\n"
                 "for i in $(seq 100); do grep -q 'hosts 2' $T/out && break; sleep 0.1; done\n"
                 "kill -%s $p; wait $p; s=$?; grep 'hosts 2' $T/out; rm $T/out\n"
                 "ip netns list | grep \"^sheaf$p-\" && echo LEFT; rm $T/1.pid; exit $s",
                 signals[i]);
        const int status = run_clean(cmd, out, sizeof out);
        cr_expect_gt(status, 128, "%s: status %d: %s", signals[i], status, out);
        cr_expect(strstr(out, "hosts 2"), "%s: %s", signals[i], out);
    }
    const int status = run_clean(
        NETNS "-H 2" HELPER "hang > $T/out 2>&1 & p=$!\n"
              "for i in $(seq 100); do grep -q 'hosts 2' $T/out && break; sleep 0.1; done\n"
              "kill -KILL $p; wait $p; rm $T/out\n" NETNS "-H 2" HELPER "|| exit 1\n"
              "ip netns list | grep \"^sheaf$p-\" && echo LEFT; exit 0",
        out, sizeof out);
    cr_expect_eq(status, 0, "%s", out);
}

/* One rank is told to end by SIGTERM and keeps its connections for 0.4 s at most; the other one is not
 * told, and takes a connection that ends without a farewell for a death. */
Test(netns, farewells_arrive_though_packets_are_lost, .timeout = 400) {
    enum { RUNS = 3 };
    char cmd[1000], out[4000];
    if (!possible()) return;
    if (run_command("command -v nft", 20, NULL, 0)) {
        cr_skip_test("no nft here");
        return;
    }
    for (int told = 0; told < 2; told++) {
        for (int i = 0; i < RUNS; i++) {
            snprintf(cmd, sizeof cmd, NETNS "-H 2" HELPER "part %d", told);
            cr_expect_eq(run_clean(cmd, out, sizeof out), 130, "rank %d: %s", told, out);
            cr_expect(strstr(out, "hosts 2"), "%s", out);
            cr_expect_null(strstr(out, "sheaf: "), "rank %d: %s", told, out);
            cr_expect_null(strstr(out, "cannot lose packets"), "%s", out);
        }
    }
}

/* Every byte that another host needs leaves its host once for each host that needs it, however many
 * members a host has: counted on the hosts' interfaces. Headers and acknowledgements come on top.
 */
Test(netns, no_byte_crosses_twice) {
    static const struct {
        const char *hosts;
        int n, ranks;
        double share; /* of a reduce_scatter or all_gather; an all_reduce sends twice as much */
    } cases[] = {
        {"-H 2 -r 1", 2, 2, 1.0 / 2}, {"-H 2 -r 2", 2, 4, 1.0 / 2}, {"-H 3", 3, 3, 2.0 / 3}};
    static const char *const kinds[] = {"all_reduce", "reduce_scatter", "all_gather"};
    if (!possible()) return;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char cmd[1000], out[4000], want[64];
        snprintf(cmd, sizeof cmd, NETNS "%s -- '" SHEAF_BUILD_DIR "/bin/helper-comm' crossings 1",
                 cases[i].hosts);
        cr_assert_eq(run_clean(cmd, out, sizeof out), 0, "%s", out);
        for (int k = 0; k < 3; k++) {
            int found = 0;
            snprintf(want, sizeof want, " for %s\n", kinds[k]);
            for (const char *line = out; line; line = strchr(line + 1, '\n')) {
                double sent = 0;
                int host, end = 0;
                if (sscanf(line, " host %d sends %lf%n", &host, &sent, &end) != 2 ||
                    strncmp(line + end, want, strlen(want)))
                    continue;
                const double share = cases[i].share * (k ? 1 : 2);
                cr_expect(sent > 0.99 * share && sent < 1.1 * share, "%s: %s sends %g, not %g",
                          cases[i].hosts, kinds[k], sent, share);
                found++;
            }
            cr_expect_eq(found, cases[i].ranks, "%s: %s", kinds[k], out);
        }
    }
}

/* Two hosts with two ranks each, compared with one rank on one host; every mirrored result is
 * compared over the members on the way. */
Test(netns, a_model_says_the_same_on_two_hosts) {
    const char *run =
        "'" SHEAF_BUILD_DIR "/bin/sheaf-run' -m '" SHEAF_SOURCE_DIR
        "/models/kjv-f32.gguf' -p 'And the Lord said unto Moses' -n 64 --temp 0 --ids";
    char cmd[2000], want[4000], got[4000];
    if (!possible()) return;
    snprintf(cmd, sizeof cmd, "%s 2>/dev/null | grep '^ids: '", run);
    cr_assert_eq(run_command(cmd, 60, want, sizeof want), 0, "%s", want);
    snprintf(cmd, sizeof cmd,
             NETNS "-H 2 -r 2 -- %s --check 2>$T/err | grep '^ids: ' || cat $T/err; rm -f $T/err",
             run);
    cr_assert_eq(run_clean(cmd, got, sizeof got), 0, "%s", got);
    cr_assert_str_eq(got, want);
}
