/* Plans of layers with a state: a Mamba-2 layer, whose fused input has segments that members hold
 * alike, and the gated delta net, whose key heads follow modulo. Collectives are counted, slices
 * compared with the whole. */
#include <criterion/criterion.h>

#include "split_layers.h"

static struct split_tally plan_it(struct split_model *m, const char *what) {
    struct sheaf__split_plan *plan = NULL;
    cr_assert_eq(sheaf__split_plan_new(m->graph, m->n_members, split_model_state, m, &plan),
                 SHEAF_STATUS_SUCCESS, "%s", sheaf_last_error());
    const struct split_tally t = split_count(plan);
    const double error = split_run_and_compare(m, plan);
    if (!(error <= 1e-10)) split_print_plan(plan, m->graph);
    cr_expect(error <= 1e-10, "%s: NMSE %g with %d members", what, error, m->n_members);
    sheaf__split_plan_free(plan);
    split_model_free(m);
    split_free_all();
    return t;
}

static struct split_tally mamba(const struct split_mamba *c, int n_members) {
    struct split_model m;
    split_model_init(&m, n_members, 77);
    split_mamba_graph(&m, c);
    char what[64];
    snprintf(what, sizeof what, "mamba of %lld heads in %lld groups", (long long)c->heads,
             (long long)c->groups);
    return plan_it(&m, what);
}

/* As many groups as members: one all-reduce a layer, and nothing else moves. */
Test(layers, mamba_by_groups_needs_one_reduction) {
    for (int d = 1; d <= 4; d++) {
        for (int uneven = 0; uneven < 2; uneven++) {
            const struct split_mamba c = {12, 8, 3, 4, 5, 4, 3, 2, 2, uneven};
            const struct split_tally t = mamba(&c, d);
            cr_expect_eq(t.collective[SHEAF_COMM_ALL_REDUCE], d == 1 ? 0 : c.n_layers, "%d members",
                         d);
            cr_expect_eq(t.collective[SHEAF_COMM_ALL_GATHER], 0, "%d members", d);
            cr_expect_eq(t.collective[SHEAF_COMM_REDUCE_SCATTER], 0);
        }
    }
}

/* Fewer groups: B and C are whole on every member (or on the members of a group), heads are cut.
 * The norm over a group that members share is what is gathered. */
Test(layers, mamba_with_few_groups_keeps_heads_cut) {
    for (int groups = 1; groups <= 2; groups++) {
        for (int d = 2; d <= 5; d++) {
            if (groups >= d) continue;
            for (int uneven = 0; uneven < 2; uneven++) {
                const struct split_mamba c = {12, 8, 3, groups, 5, 4, 2, 1, 2, uneven};
                if (groups == 2 && d == 3) continue; /* heads 3 and 2 of 4: no equal shares */
                if (groups == 2 && (uneven || d == 5)) continue;
                const struct split_tally t = mamba(&c, d);
                cr_expect_eq(t.collective[SHEAF_COMM_ALL_REDUCE], c.n_layers, "%d members", d);
                cr_expect_eq(t.collective[SHEAF_COMM_ALL_GATHER], c.n_layers, "%d members", d);
            }
        }
    }
}

/* A token, and sequences side by side; more members than heads: some own nothing. */
Test(layers, mamba_of_one_token) {
    const struct split_mamba token = {12, 8, 3, 4, 5, 4, 1, 1, 3, false};
    cr_expect_eq(mamba(&token, 4).collective[SHEAF_COMM_ALL_REDUCE], 3);
    const struct split_mamba several = {12, 6, 2, 3, 4, 4, 1, 3, 2, false};
    cr_expect_eq(mamba(&several, 3).collective[SHEAF_COMM_ALL_REDUCE], 2);
    const struct split_mamba few = {12, 4, 3, 1, 5, 4, 2, 1, 1, false};
    cr_expect_eq(mamba(&few, 7).collective[SHEAF_COMM_ALL_REDUCE], 1);
}

static struct split_tally delta(const struct split_delta *c, int n_members) {
    struct split_model m;
    split_model_init(&m, n_members, 78);
    split_delta_graph(&m, c);
    return plan_it(&m, c->by_key ? "delta net by key heads" : "delta net by value heads");
}

Test(layers, delta_net_by_key_heads_needs_one_reduction) {
    for (int d = 1; d <= 5; d++) {
        for (int uneven = 0; uneven < 2; uneven++) {
            const struct split_delta c = {12, 4, 8, 5, 3, uneven, true};
            const struct split_tally t = delta(&c, d);
            cr_expect_eq(t.collective[SHEAF_COMM_ALL_REDUCE], d > 1, "%d members", d);
            cr_expect_eq(t.collective[SHEAF_COMM_ALL_GATHER], 0, "%d members", d);
        }
    }
}

/* Members whose value heads go round all key heads: q and k are whole on each. */
Test(layers, delta_net_by_rounds_has_whole_keys) {
    for (int d = 2; d <= 4; d++) {
        const struct split_delta c = {12, 2, 2 * d, 5, 3, false, false};
        const struct split_tally t = delta(&c, d);
        cr_expect_eq(t.collective[SHEAF_COMM_ALL_REDUCE], 1, "%d members", d);
        cr_expect_eq(t.collective[SHEAF_COMM_ALL_GATHER], 0, "%d members", d);
    }
}

/* A cut that residues do not come round in is gathered, and the results are right. */
Test(layers, delta_net_by_other_cuts_runs) {
    const struct split_delta c = {12, 4, 8, 4, 2, false, false}; /* heads 2, 3, 4: 2, 3, 0 */
    cr_expect_gt(delta(&c, 3).collective[SHEAF_COMM_ALL_GATHER], 0);
}
