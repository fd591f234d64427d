/* T5: every allocation of planning, of describing and of compiling a graph fails once. The call
 * says that memory is out or does without, gives back all that it took, and works when there is
 * memory.
 *
 * Allocations are counted by functions that stand before the C library's, in one thread, between
 * arm and disarm. A sanitizer has its own, so there the suite has nothing to say. */
#include <criterion/criterion.h>
#include <errno.h>

#include "cpu_members.h"
#include "meta/meta_impl.h"
#include "meta_scenario.h"
#include "split_random.h"

#if defined __SANITIZE_ADDRESS__ || defined __SANITIZE_THREAD__
enum { CAN_COUNT = false };
static void arm(long fail) { (void)fail; }
static long disarm(long *live) { return *live = 0; }
#else
enum { CAN_COUNT = true };
void *__libc_malloc(size_t n);
void *__libc_calloc(size_t n, size_t size);
void *__libc_realloc(void *p, size_t n);
void *__libc_memalign(size_t alignment, size_t n);
void __libc_free(void *p);

static _Thread_local long left = -1, taken, held; /* left < 0: not counting */

static bool refuse(void) {
    if (left < 0) return false;
    taken++;
    held++;
    if (left == 0 || --left > 0) return false;
    held--;
    return true;
}
void *malloc(size_t n) { return refuse() ? NULL : __libc_malloc(n); }
void *calloc(size_t n, size_t size) { return refuse() ? NULL : __libc_calloc(n, size); }
void *realloc(void *p, size_t n) {
    if (!refuse()) {
        if (left >= 0 && p) held--; /* the old is gone */
        return __libc_realloc(p, n);
    }
    return NULL;
}
void *aligned_alloc(size_t alignment, size_t n) {
    return refuse() ? NULL : __libc_memalign(alignment, n);
}
int posix_memalign(void **out, size_t alignment, size_t n) {
    void *p = refuse() ? NULL : __libc_memalign(alignment, n);
    if (!p) return ENOMEM;
    *out = p;
    return 0;
}
void free(void *p) {
    if (left >= 0 && p) held--;
    __libc_free(p);
}

/* The `fail`th allocation from now fails; 0: none. */
static void arm(long fail) {
    taken = held = 0;
    left = fail;
}
/* How many allocations there were, and how many are still held. */
static long disarm(long *live) {
    left = -1;
    *live = held;
    return taken;
}
#endif

typedef enum sheaf_status (*work_fn)(void *user);
struct tally {
    long failed, errors, without;
};

static bool fail_each(const char *what, work_fn work, void *user, struct tally *t) {
    for (long fail = 1;; fail++) {
        long live;
        sheaf_set_error(SHEAF_STATUS_SUCCESS, "nothing");
        arm(fail);
        const enum sheaf_status st = work(user);
        const long n = disarm(&live);
        if (live) {
            fprintf(stderr, "%s, allocation %ld of %ld: %ld not given back\n", what, fail, n, live);
            return false;
        }
        if (n < fail) { /* none failed */
            if (st) fprintf(stderr, "%s: %s\n", what, sheaf_last_error());
            return st == SHEAF_STATUS_SUCCESS;
        }
        t->failed++;
        t->errors += st != SHEAF_STATUS_SUCCESS;
        t->without += st == SHEAF_STATUS_SUCCESS;
        if (st && (st != SHEAF_STATUS_ALLOC_FAILED || !strstr(sheaf_last_error(), "memory"))) {
            fprintf(stderr, "%s, allocation %ld: status %d, %s\n", what, fail, (int)st,
                    sheaf_last_error());
            return false;
        }
    }
}

static void report(const char *what, const struct tally *t) {
    printf("%s: %ld allocations failed one at a time: %ld errors, %ld done without\n", what,
           t->failed, t->errors, t->without);
    cr_expect_gt(t->errors, 20);
}

struct plan_work {
    struct split_model *m;
};
static enum sheaf_status plan_it(void *user) {
    const struct plan_work *w = user;
    struct sheaf__split_plan *plan;
    const enum sheaf_status st =
        sheaf__split_plan_new(w->m->graph, w->m->n_members, split_model_state, w->m, &plan);
    if (st && plan) abort();
    sheaf__split_plan_free(plan);
    return st;
}

static void need_counting(void) {
    if (!CAN_COUNT) cr_skip("allocations are the sanitizer's here");
}

Test(memory, plans_of_layers) {
    need_counting();
    struct tally t = {0};
    for (int i = 0; i < 8; i++) {
        struct split_shape c = split_llama;
        c.moe = i & 1;
        c.by_expert = i & 1 ? 2 : 0;
        c.bias = i & 2;
        c.fused_qkv = i & 2;
        struct split_model m;
        split_model_init(&m, i & 4 ? 64 : 3, 42);
        c.overlap = i & 4 && !c.fused_qkv;
        split_transformer(&m, &c);
        struct plan_work w = {&m};
        cr_expect(fail_each("a plan of layers", plan_it, &w, &t), "variant %d", i);
        split_model_free(&m);
    }
    report("plans of layers", &t);
}

Test(memory, plans_of_random_graphs) {
    need_counting();
    struct tally t = {0};
    bool good = true;
    for (uint64_t seed = 1; seed <= 400 && good; seed++) {
        struct maker k;
        make_graph(&k, seed, 14);
        struct plan_work w = {&k.m};
        good = fail_each("a plan of a random graph", plan_it, &w, &t);
        cr_expect(good, "seed %llu", (unsigned long long)seed);
        split_model_free(&k.m);
        split_free_all();
    }
    report("plans of 400 random graphs", &t);
}

struct program_work {
    struct meta_device *dev;
    struct sheaf_cgraph *graph;
    struct scenario_policy *policy;
};
static enum sheaf_status compile_it(void *user) {
    const struct program_work *w = user;
    struct meta_program *p = NULL;
    const enum sheaf_status st = sheaf__meta_program_new(w->dev, w->graph, NULL, &p);
    if (st && p) abort();
    sheaf__meta_program_free(p, w->dev->n_local);
    return st;
}
/* With words for a failure of its own. */
static enum sheaf_status state_of(const struct sheaf_tensor *t, const void *user,
                                  struct sheaf_split_state **out) {
    const enum sheaf_status st = scenario_state(t, user, out);
    return st ? sheaf_set_error(SHEAF_STATUS_ALLOC_FAILED, "the policy is out of memory") : st;
}
static bool see(const struct sheaf_backend_meta_step *step, void *user) {
    (void)step;
    (void)user;
    return true;
}
static enum sheaf_status describe_it(void *user) {
    const struct program_work *w = user;
    return sheaf_backend_meta_describe_plan(w->graph, w->dev->n_members, state_of, w->policy, see,
                                            NULL);
}
static enum sheaf_status explain_it(void *user) {
    const struct program_work *w = user;
    char text[4096];
    return sheaf_backend_meta_explain_node(w->graph, w->dev->n_members, state_of, w->policy,
                                           sheaf_graph_n_nodes(w->graph) / 2, text, sizeof text);
}

Test(memory, programs_and_descriptions) {
    need_counting();
    struct tally compiled = {0}, described = {0}, explained = {0};
    const sheaf_backend_dev_t *members = cpu_members(3);
    for (size_t n = 1; n <= 3; n++) {
        struct scenario_policy policy = {.n_members = (int)n};
        struct scenario_model model;
        struct scenario_graph g;
        sheaf_backend_dev_t meta;
        sheaf_backend_t backend;
        cr_assert_eq(sheaf_backend_meta_device(members, n, state_of, &policy, NULL, &meta),
                     SHEAF_STATUS_SUCCESS);
        cr_assert_eq(sheaf_backend_dev_init(meta, NULL, &backend), SHEAF_STATUS_SUCCESS);
        cr_assert(scenario_load(&model, backend, SHEAF_TYPE_F32));
        sheaf_gallocr_t galloc = sheaf_gallocr_new(sheaf_backend_get_default_buffer_type(backend));
        cr_assert(scenario_graph(&g, &model, N_TOKENS));
        cr_assert_eq(sheaf_gallocr_alloc_graph(galloc, g.graph), SHEAF_STATUS_SUCCESS);
        struct program_work w = {meta->context, g.graph, &policy};
        cr_expect(fail_each("a program", compile_it, &w, &compiled));
        cr_expect(fail_each("a description", describe_it, &w, &described));
        cr_expect(fail_each("an explanation", explain_it, &w, &explained));
        sheaf_free(g.ctx);
        sheaf_gallocr_free(galloc);
        scenario_unload(&model);
        sheaf_backend_free(backend);
        sheaf_backend_meta_device_free(meta);
    }
    report("programs for 1..3 members", &compiled);
    report("descriptions for 1..3 members", &described);
    report("explanations for 1..3 members", &explained);
}

/* ---- failures of other ranks ---- */

static int votes_left; /* until one finds that another rank has failed; 0: none does */

/* In place of the library's own; this process is a world of its own. */
enum sheaf_status sheaf_world_agree(enum sheaf_status status, const char *what) {
    if (status || !votes_left || --votes_left) return status;
    return sheaf_set_error(SHEAF_STATUS_PEER, "%s: rank 1 failed", what);
}

Test(memory, a_backend_that_another_rank_cannot_make) {
    const sheaf_backend_dev_t *members = cpu_members(2);
    struct scenario_policy policy = {.n_members = 2};
    sheaf_backend_dev_t meta;
    int failed = 0;
    need_counting();
    cr_assert_eq(sheaf_backend_meta_device(members, 2, state_of, &policy, NULL, &meta),
                 SHEAF_STATUS_SUCCESS);
    sheaf_backend_t backend;
    cr_assert_eq(sheaf_backend_dev_init(meta, NULL, &backend), SHEAF_STATUS_SUCCESS);
    sheaf_backend_free(backend); /* what the C library keeps of threads is there from now on */
    for (int vote = 1;; vote++) {
        long live;
        votes_left = vote;
        arm(0);
        const enum sheaf_status st = sheaf_backend_dev_init(meta, NULL, &backend);
        if (!st) sheaf_backend_free(backend);
        disarm(&live);
        cr_expect_eq(live, 0, "vote %d: %ld allocations not given back", vote, live);
        if (!st) break;
        cr_expect_eq(st, SHEAF_STATUS_PEER, "%s", sheaf_last_error());
        failed++;
    }
    cr_expect_geq(failed, 2); /* the members' backends, and how their data meet */
    votes_left = 0;
    sheaf_backend_meta_device_free(meta);
}
