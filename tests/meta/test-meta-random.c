/* Random graphs with random cuts of their leaves (split_random.h) on the meta device itself: its
 * programs, copies and collectives, where test-split-random runs plans with loops of its own. */
#include <criterion/criterion.h>

#include "cpu_members.h"
#include "meta_random.h"

static void random_graphs(size_t n_members, uint64_t first, uint64_t n) {
    cr_assert(run_meta_random(cpu_members(n_members), n_members, first, n), "%zu members",
              n_members);
}
/* Seed 87 gathers a tensor whose first member holds its last rows. */
Test(meta_random, two_members) { random_graphs(2, 1, 400); }
Test(meta_random, three_members) { random_graphs(3, 401, 400); }
Test(meta_random, five_members) { random_graphs(5, 1, 400); }

/* Every collective that can run beside a span does. */
static void beside_spans(size_t n_members, uint64_t first, uint64_t n) {
    uint64_t started;
    cr_assert(run_meta_random_with(cpu_members(n_members), n_members, first, n,
                                   SHEAF_BACKEND_META_OVERLAP_ALWAYS, &started),
              "%zu members", n_members);
    cr_assert_gt(started, 20, "no collective ran beside a span");
}
Test(meta_random, beside_spans_two_members) { beside_spans(2, 5001, 200); }
Test(meta_random, beside_spans_three_members) { beside_spans(3, 6001, 200); }

/* On a scheduler, which gives some nodes to a CPU. In seeds 100655 and 107712 it reads a result over an
 * output, which was gathered for another node. */
static void beside_a_cpu(size_t n_members, uint64_t first, uint64_t n) {
    cr_assert(run_meta_random_split(cpu_members(n_members), n_members, first, n), "%zu members",
              n_members);
}
Test(meta_random, beside_a_cpu_three_members) { beside_a_cpu(3, 100501, 400); }
Test(meta_random, beside_a_cpu_five_members) { beside_a_cpu(5, 107501, 400); }
