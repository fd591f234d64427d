/* Sessions over several ranks: what fails on one rank fails on all, and not all ranks need the model. */
#include <criterion/criterion.h>

#include "sheaf/gguf.h"

#include "mpirun.h"
#include "sanitizer.h"
#include "temp_dir.h"

#define MODEL SHEAF_SOURCE_DIR "/models/kjv-q8_0.gguf"

enum { N_PARTS = 3 };

static char out[1 << 14], part[N_PARTS][128];

TestSuite(session, .init = setup, .fini = teardown, .timeout = 180);

static void fails_alike(const char *args) {
    if (SANITIZED) cr_skip_test("a sanitizer has an allocator of its own");
    const int rc = run_mpirun(2, "SHEAF_CPU_THREADS=1 SHEAF_TIMEOUT_MS=3000", 120, out, sizeof out,
                              "helper-session %s", args);
    cr_assert(run_returns(rc, 0) && !strstr(out, "WRONG"), "status %d\n%s", rc, out);
    cr_assert(strstr(out, "ok rank 0, ") && !strstr(out, "ok rank 0, 0 failures"), "%s", out);
}

Test(session, plan_agrees_on_memory_that_one_rank_lacks) { fails_alike("1"); }
Test(session, memory_that_the_sender_lacks) { fails_alike("0 1"); }
Test(session, memory_that_a_rank_without_the_model_lacks) { fails_alike("1 1"); }

/* ---- a model that rank 0 has, in three files ---- */

static void write_part(const struct sheaf_gguf *in, int number) {
    struct sheaf_gguf *g = sheaf_gguf_new();
    char *data = malloc(sheaf_gguf_file_size(in));
    size_t used = 0;
    snprintf(part[number], sizeof part[number], "%s/m-%05d-of-%05d.gguf", dir, number + 1, N_PARTS);
    if (!number) cr_assert_eq(sheaf_gguf_copy_kv(g, in), 0);
    cr_assert_eq(sheaf_gguf_set_u32(g, "split.no", (uint32_t)number), 0);
    cr_assert_eq(sheaf_gguf_set_u32(g, "split.count", N_PARTS), 0);
    for (int64_t i = number; i < sheaf_gguf_n_tensors(in); i += N_PARTS) {
        const struct sheaf_gguf_tensor *t = sheaf_gguf_tensor(in, i);
        cr_assert_eq(sheaf_gguf_read(in, t, 0, data + used, t->size), 0);
        cr_assert_eq(sheaf_gguf_add_tensor(g, t->name, t->type, t->n_dims, t->ne, data + used), 0);
        used += t->size;
    }
    cr_assert_eq(sheaf_gguf_write(g, part[number]), 0, "%s", sheaf_last_error());
    free(data);
    sheaf_gguf_free(g);
}

static void write_parts(void) {
    struct sheaf_gguf *in;
    cr_assert_eq(sheaf_gguf_open(MODEL, &in), 0, "%s", sheaf_last_error());
    for (int i = 0; i < N_PARTS; i++) write_part(in, i);
    sheaf_gguf_free(in);
}

/* Started on three ranks; returns the seconds that it took. */
static double load(const char *what, int *rc) {
    const double start = run_seconds();
    write_parts();
    *rc = run_mpirun(3, "SHEAF_CPU_THREADS=1", 60, out, sizeof out, "helper-shared %s %s", part[0],
                     what);
    return run_seconds() - start;
}

static void shows(int rank, const char *text) {
    char head[32], line[512] = "";
    snprintf(head, sizeof head, "rank %d: ", rank);
    cr_expect(run_line_of(out, head, line, sizeof line) && strstr(line, text),
              "no '%s' in '%s'\n%s", text, line, out);
}

/* What the others hold is sent once, and rank 0 reads it beside its own. */
Test(session, a_model_that_rank_0_has) {
    size_t held[3], got[3], sent[3], others;
    int rc;
    load("nothing", &rc);
    cr_assert(run_returns(rc, 0), "%d: %s", rc, out);
    for (int r = 0; r < 3; r++) {
        char head[32], line[512] = "", path[256] = "";
        snprintf(head, sizeof head, "rank %d: ", r);
        cr_assert(run_line_of(out, head, line, sizeof line), "%s", out);
        cr_assert_eq(sscanf(line + strlen(head), "%zu bytes held, %zu read, %zu sent, path %255s",
                            &held[r], &got[r], &sent[r], path),
                     4, "%s", line);
        cr_expect_str_eq(path, part[0]);
    }
    others = held[1] + held[2];
    cr_expect(got[0] == held[0] + others && !got[1] && !got[2], "%s", out);
    cr_expect(sent[0] == others && sent[1] == others && sent[2] == others, "%s", out);
    cr_expect(strstr(out,
                     ") and 1 more rank: cannot open /nonexistent/m-00001-of-00003.gguf: No such "
                     "file or directory; rank 0 ("),
              "%s", out);
}

/* They stay open. */
Test(session, files_that_are_deleted_while_they_are_sent) {
    int rc;
    load("remove", &rc);
    cr_assert(run_returns(rc, 0), "%d: %s", rc, out);
    for (int i = 0; i < 2; i++) { /* for teardown */
        FILE *f = fopen(part[i], "w");
        if (f) fclose(f);
    }
}

Test(session, a_file_that_is_cut_off_while_it_is_sent) {
    int rc;
    cr_expect_lt(load("cut", &rc), 30);
    cr_assert(run_returns(rc, 1), "%d: %s", rc, out);
    shows(0, "m-00002-of-00003.gguf: cannot read tensor '");
    shows(0, "': the file became shorter");
    for (int r = 1; r < 3; r++) {
        shows(r, "rank 0 (");
        shows(r, "': the file became shorter");
    }
}

/* Part of what was sent may be old. */
Test(session, a_file_that_is_written_to_while_it_is_sent) {
    int rc;
    load("change", &rc);
    cr_assert(run_returns(rc, 1), "%d: %s", rc, out);
    for (int r = 0; r < 3; r++) shows(r, "m-00002-of-00003.gguf was written to while it was read");
}

Test(session, a_rank_that_stops_the_loading) {
    int rc;
    cr_expect_lt(load("stop 1", &rc), 30);
    for (int r = 0; r < 3; r++) shows(r, "loading was stopped");
}

/* The ranks notice it, or a launcher that ends them before they do. */
static void dies(int rank, const char *what) {
    char by_us[32], by_mpirun[32];
    int rc;
    snprintf(by_us, sizeof by_us, "rank %d (", rank);
    snprintf(by_mpirun, sizeof by_mpirun, "rank %d with PID", rank);
    cr_expect_lt(load(what, &rc), 30);
    cr_expect_gt(rc, 0);
    cr_expect((strstr(out, by_us) && strstr(out, "has died")) || strstr(out, by_mpirun) ||
                  strstr(out, "SIGNAL: 9"),
              "%s", out);
}
Test(session, a_rank_that_dies_while_it_is_sent_to) { dies(2, "die 2"); }
Test(session, a_sender_that_dies) { dies(0, "die 0"); }
