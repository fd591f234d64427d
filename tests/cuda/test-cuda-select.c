/* The best of a row on the CUDA device: ARGMAX and TOP_K of rows of any length against the order itself, and the
 * candidates for a sampler, of which only a few bytes come to the host. */
#include <criterion/criterion.h>
#include <math.h>

#include "model/random_model.h"
#include "model/run/best.h"
#include "rig.h"
#include "sheaf/backend-impl.h"
#include "sheaf/model.h"
#include "temp_dir.h"

TestSuite(cuda_select, .timeout = 300);

enum { LONGEST = 6000, VOCAB = 2500 };

/* Values with many ties; one in 50 is none, one in 50 is -infinity, one in 20 a zero of either sign. */
static float value_at(uint64_t seed, int64_t i, bool numbers) {
    const uint64_t h = (seed * 1000003 + (uint64_t)i) * 0x9e3779b97f4a7c15u >> 20;
    if (h % 50 == 7) return -INFINITY;
    if (h % 50 == 8 && !numbers) return NAN;
    if (h % 20 == 9) return h / 20 % 2 ? 0.0f : -0.0f;
    return (float)(int)(h / 1000 % 701) - 350;
}

static const float *sorted_by; /* of compare_positions */
static int compare_positions(const void *a, const void *b) {
    const int32_t i = *(const int32_t *)a, j = *(const int32_t *)b;
    const float x = sorted_by[i], y = sorted_by[j];
    const bool x_nan = isnan(x), y_nan = isnan(y);
    if (x_nan != y_nan) return x_nan ? 1 : -1;
    if (x > y || x < y) return x > y ? -1 : 1;
    return i < j ? -1 : i > j;
}

static void rows_are_ordered(int64_t n, int64_t n_rows, int k, const char *machine) {
    struct rig r = rig_up(machine, NULL);
    struct sheaf_tensor *a = sheaf_new_tensor_2d(r.ctx, SHEAF_TYPE_F32, n, n_rows);
    struct sheaf_tensor *best = k ? sheaf_top_k(r.ctx, a, k) : sheaf_argmax(r.ctx, a);
    static float x[2 * LONGEST];
    static int32_t want[LONGEST], got[2 * LONGEST];
    const int64_t width = k ? k : 1;
    cr_assert_eq(sheaf_build_forward_expand(r.graph, best), SHEAF_STATUS_SUCCESS);
    rig_alloc(&r);
    for (int64_t i = 0; i < n * n_rows; i++) x[i] = value_at((uint64_t)(n + k), i, false);
    cr_assert_eq(sheaf_backend_tensor_set(a, x, 0, sheaf_nbytes(a)), SHEAF_STATUS_SUCCESS);
    cr_assert_eq(sheaf_backend_graph_compute(r.backend, r.graph), SHEAF_STATUS_SUCCESS, "%s",
                 sheaf_last_error());
    cr_assert_eq(sheaf_backend_tensor_get(best, got, 0, sheaf_nbytes(best)), SHEAF_STATUS_SUCCESS);
    for (int64_t row = 0; row < n_rows; row++) {
        for (int64_t i = 0; i < n; i++) want[i] = (int32_t)i;
        sorted_by = x + row * n;
        qsort(want, (size_t)n, sizeof *want, compare_positions);
        for (int64_t j = 0; j < width; j++)
            cr_assert_eq(got[row * width + j], want[j], "%d of %d, row %d, %d: %d, not %d", k,
                         (int)n, (int)row, (int)j, got[row * width + j], want[j]);
    }
    rig_down(&r);
}

/* One part, parts of one level and of two; a k that takes passes. k 0: ARGMAX. */
Test(cuda_select, rows_of_any_length) {
    static const struct {
        int n, k;
    } cases[] = {{1, 0},     {1, 1},      {2, 0},     {31, 31},    {64, 8},   {65, 0},
                 {1000, 40}, {1024, 2},   {1025, 0},  {1025, 256}, {5000, 3}, {LONGEST, 0},
                 {5000, 64}, {5121, 256}, {600, 257}, {256, 256}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        rows_are_ordered(cases[i].n, 2, cases[i].k, i % 2 ? "order=5" : "order=17");
}

/* ---- candidates ---- */

static void select_both(struct rig *r, struct sheaf__best **best, const struct sheaf_tensor *t,
                        int64_t row, size_t cap, const float *values, bool possible) {
    struct sheaf_candidates *got, *want;
    bool done = false;
    cr_assert_eq(sheaf_candidates_new(cap, &got), SHEAF_STATUS_SUCCESS);
    cr_assert_eq(sheaf_candidates_new(cap, &want), SHEAF_STATUS_SUCCESS);
    cr_assert_eq(sheaf__best_select(best, r->backend, t, row, got, &done), SHEAF_STATUS_SUCCESS,
                 "%s", sheaf_last_error());
    cr_assert_eq(done, possible, "%zu of row %d", cap, (int)row);
    const enum sheaf_status st = sheaf_candidates_select(want, values, (size_t)t->ne[0], 0, false);
    if (done) {
        cr_assert_eq(st, SHEAF_STATUS_SUCCESS);
        cr_assert(got->n == want->n && got->n_seen == want->n_seen && got->max == want->max);
        cr_assert(!memcmp(got->data, want->data, want->n * sizeof *want->data), "%zu of row %d",
                  cap, (int)row);
    }
    sheaf_candidates_free(got);
    sheaf_candidates_free(want);
}

Test(cuda_select, candidates_are_those_of_the_row) {
    enum { ROWS = 4 };
    static float x[ROWS * VOCAB];
    struct rig r = rig_up("", NULL);
    struct sheaf_tensor *t = sheaf_new_tensor_2d(r.ctx, SHEAF_TYPE_F32, VOCAB, ROWS);
    struct sheaf_tensor *small = sheaf_new_tensor_2d(r.ctx, SHEAF_TYPE_F32, 1024, 1);
    struct sheaf__best *best = NULL;
    rig_alloc(&r);
    for (int64_t i = 0; i < ROWS * VOCAB; i++) x[i] = value_at(3, i, true);
    x[2 * VOCAB + 2499] = NAN;      /* in the rest behind the last whole piece */
    x[3 * VOCAB + 1030] = INFINITY; /* the host says so by name */
    cr_assert_eq(sheaf_backend_tensor_set(t, x, 0, sheaf_nbytes(t)), SHEAF_STATUS_SUCCESS);
    cr_assert_eq(sheaf_backend_tensor_set(small, x, 0, sheaf_nbytes(small)), SHEAF_STATUS_SUCCESS);
    static const size_t caps[] = {1, 40, 64, 65};
    for (size_t i = 0; i < 4; i++) {
        for (int64_t row = 0; row < ROWS; row++)
            select_both(&r, &best, t, row, caps[i], x + row * VOCAB, row < 2 && caps[i] <= 64);
        select_both(&r, &best, small, 0, caps[i], x, caps[i] <= 64);
    }
    x[1000] = NAN; /* the memory is the same, the values are not */
    cr_assert_eq(sheaf_backend_tensor_set(small, x, 0, sheaf_nbytes(small)), SHEAF_STATUS_SUCCESS);
    select_both(&r, &best, small, 0, 1, x, false);
    sheaf__best_free(best);
    rig_down(&r);
}

static bool has_other_ties(sheaf_backend_dev_t dev, const struct sheaf_tensor *op) {
    (void)dev;
    return !(op->flags & SHEAF_BACKEND_TENSOR_TIES_BY_INDEX);
}
/* The first two change places. */
static enum sheaf_status get_swapped(sheaf_backend_t backend, const struct sheaf_tensor *t,
                                     void *data, size_t offset, size_t size) {
    (void)backend;
    const enum sheaf_status st = sheaf_backend_tensor_get(t, data, offset, size);
    int32_t *id = data, first = id[0];
    id[0] = id[1];
    id[1] = first;
    return st;
}

/* A device says that its order of ties is another; or does not say it. */
Test(cuda_select, another_order_of_ties_is_not_taken) {
    static float x[VOCAB];
    struct rig r = rig_up("", NULL);
    struct sheaf_tensor *t = sheaf_new_tensor_2d(r.ctx, SHEAF_TYPE_F32, VOCAB, 1);
    sheaf_backend_dev_t dev = sheaf_backend_get_device(r.backend);
    const struct sheaf_backend_device_i *own_dev = dev->iface;
    const struct sheaf_backend_i *own = r.backend->iface;
    struct sheaf_backend_device_i other_dev = *own_dev;
    struct sheaf_backend_i other = *own;
    struct sheaf__best *best = NULL;
    other_dev.supports_op = has_other_ties;
    other.get_tensor_async = get_swapped;
    rig_alloc(&r);
    cr_assert_eq(sheaf_backend_tensor_set(t, x, 0, sheaf_nbytes(t)), SHEAF_STATUS_SUCCESS);
    dev->iface = &other_dev;
    select_both(&r, &best, t, 0, 1, x, false);
    select_both(&r, &best, t, 0, 40, x, false);
    dev->iface = own_dev;
    r.backend->iface = &other;
    select_both(&r, &best, t, 0, 8, x, false);
    r.backend->iface = own;
    select_both(&r, &best, t, 0, 8, x, true);
    sheaf__best_free(best);
    rig_down(&r);
}

/* ---- models ---- */

static struct sheaf_model *open_on(const char *devices) {
    struct sheaf__random_model_params shape = sheaf__random_model_default_params();
    struct sheaf_model_params p = sheaf_model_default_params();
    struct sheaf_model *model;
    shape.n_vocab = VOCAB;
    shape.n_ctx = 512;
    p.path = in_dir("random.gguf");
    p.devices = devices;
    cr_assert_eq(sheaf__random_model_write(&shape, p.path), 0, "%s", sheaf_last_error());
    cr_assert_eq(sheaf_model_open(&p, &model), 0, "%s", sheaf_last_error());
    return model;
}

/* What one choice brings to the host, by the emulation's trace. */
static size_t bytes_to_the_host(FILE *trace) {
    char line[200];
    size_t n = 0, sum = 0;
    rewind(trace);
    while (fgets(line, sizeof line, trace))
        if (sscanf(line, "cuda-emu: copies %zu bytes to the host", &n) == 1) sum += n;
    rig_trace_clear(trace);
    return sum;
}

static void chosen_on(const char *devices, FILE *trace) {
    static float row[VOCAB];
    static const size_t caps[] = {1, 40, 64, 65};
    struct sheaf_model *model = open_on(devices);
    struct sheaf_candidates *want;
    cr_assert_eq(sheaf_candidates_new(65, &want), SHEAF_STATUS_SUCCESS);
    int32_t id = 5;
    for (int round = 0; round < 6; round++) {
        const struct sheaf_model_batch batch = {.size = sizeof batch, .n_tokens = 1, .token = &id};
        const struct sheaf_candidates *got;
        bool stop = false;
        cr_assert_eq(sheaf_model_eval(model, &batch), 0, "%s", sheaf_last_error());
        cr_assert_eq(sheaf_model_get_logits(model, row), 0);
        for (size_t i = 0; i < 4; i++) {
            for (int sum = 0; sum < 2; sum++) {
                want->cap = caps[i];
                cr_assert_eq(sheaf_candidates_select(want, row, VOCAB, 0, sum), 0);
                bytes_to_the_host(trace);
                cr_assert_eq(sheaf_model_get_candidates(model, 0, caps[i], sum, &stop, &got), 0,
                             "%s", sheaf_last_error());
                const size_t bytes = bytes_to_the_host(trace);
                cr_assert(got->n == want->n && got->max == want->max && got->n_seen == VOCAB);
                cr_assert(!memcmp(got->data, want->data, want->n * sizeof *want->data), "%s: %zu",
                          devices, caps[i]);
                if (sum || caps[i] > 64)
                    cr_assert_geq(bytes, 4 * VOCAB / 4, "%s: %zu", devices, bytes);
                else
                    cr_assert(bytes > 0 && bytes <= 4 * 1024, "%s: %zu bytes", devices, bytes);
            }
        }
        id = want->data[0].id;
    }
    sheaf_candidates_free(want);
    sheaf_model_free(model);
}

/* From the second token on the selection comes with the graph: nothing is left to be brought. */
static void follows_the_graph(const char *devices, FILE *trace) {
    static float row[VOCAB];
    struct sheaf_model *model = open_on(devices);
    struct sheaf_candidates *want;
    enum { BEFORE = 250, CHANGES = 6 }; /* at 256 keys the graph has another shape */
    int32_t id = 5, ids[BEFORE];
    for (int i = 0; i < BEFORE; i++) ids[i] = i;
    cr_assert_eq(sheaf_candidates_new(1, &want), SHEAF_STATUS_SUCCESS);
    cr_assert_eq(sheaf_model_prompt(model, 0, ids, BEFORE, NULL, NULL), 0);
    for (int round = 0; round < 12; round++) {
        const struct sheaf_model_batch batch = {.size = sizeof batch, .n_tokens = 1, .token = &id};
        const struct sheaf_candidates *got;
        bool stop = false;
        cr_assert_eq(sheaf_model_eval(model, &batch), 0, "%s", sheaf_last_error());
        bytes_to_the_host(trace);
        if (round == 9) continue; /* not asked for, so the next one is not prepared */
        cr_assert_eq(sheaf_model_get_candidates(model, 0, 1, false, &stop, &got), 0);
        const size_t bytes = bytes_to_the_host(trace);
        const bool behind = round != 0 && round != CHANGES && round != 10;
        cr_assert_eq(bytes == 0, behind, "%s: token %d: %zu bytes", devices, round, bytes);
        cr_assert_eq(sheaf_model_get_logits(model, row), 0);
        cr_assert_eq(sheaf_candidates_select(want, row, VOCAB, 0, false), 0);
        cr_assert_eq(got->data[0].id, want->data[0].id, "%s: token %d", devices, round);
        id = got->data[0].id;
    }
    sheaf_candidates_free(want);
    sheaf_model_free(model);
}

/* On one GPU, cut over two, and over a CPU and a GPU. */
Test(cuda_select, only_candidates_come_to_the_host, .init = setup, .fini = teardown) {
    FILE *trace = tmpfile();
    cr_assert_not_null(trace);
    setenv("SHEAF_CPU_DEVICES", "1", 1);
    setenv("SHEAF_CPU_THREADS", "1", 1);
    setenv("SHEAF_CUDA_DEVICES", "2", 1);
    setenv("SHEAF_BACKEND_PATH", PLACE, 1);
    setenv("SHEAF_TEST_CUDA_EMU_TRACE", "1", 1);
    cr_assert_eq(sheaf_backend_load_all(), 0, "%s", sheaf_last_error());
    cr_assert_eq(sheaf_world_init(NULL), 0, "%s", sheaf_last_error());
    cr_assert_geq(dup2(fileno(trace), 2), 0);
    chosen_on("CUDA0", trace);
    chosen_on("CUDA0,CUDA1", trace);
    chosen_on("CPU0,CUDA0", trace);
    follows_the_graph("CUDA0", trace);
    fclose(trace);
}
