/* The scheduler over backends with queues and events that have no memory in common: islands
 * (islands.h) whose work lies in a list until something waits for it, or until a lot picks it. So a
 * wait that is missing is not a matter of time: the result is wrong. */
#include <criterion/criterion.h>

#include "islands.h"
#include "sheaf/alloc.h"
#include "sheaf/sched.h"

/* ---- queues ---- */

enum kind { COMPUTE, COPY, WAIT };

struct queue;

struct work {
    enum kind kind;
    struct sheaf_cgraph *graph;           /* COMPUTE */
    const struct sheaf_tensor *from, *to; /* COPY */
    struct queue *of;                     /* WAIT for so many works of that queue */
    size_t until;
};

struct queue {
    struct island island; /* first */
    struct work works[4096];
    size_t n, done;
    int n_graphs;       /* submitted */
    int refused, fails; /* the number of a graph that is refused, or fails when it runs; 0: none */
    bool failed, has_no_events;
    bool is_eager; /* runs its work at once */
};

struct event {
    struct sheaf_backend_event base; /* first */
    struct queue *of;
    size_t until;
};

static struct queue a, b;
static uint32_t lots;        /* 0: work lies until something waits for it */
static bool together;        /* each can use the other's memory */
static int most_waiting;     /* graphs of one queue */

static struct queue *queue_of(sheaf_backend_t backend) { return (struct queue *)backend->device; }

static void run_until(struct queue *q, size_t until);

static void run_one(struct queue *q) {
    const struct work w = q->works[q->done];
    if (w.kind == WAIT) run_until(w.of, w.until);
    if (w.kind == COPY) memcpy(w.to->data, w.from->data, sheaf_nbytes(w.from));
    if (w.kind == COMPUTE && !q->failed) {
        q->failed = q->island.n_graphs + 1 == q->fails;
        cr_assert(q->failed || !(together ? sheaf_backend_graph_compute(q->island.cpu, w.graph)
                                          : backend_compute(&q->island.backend, w.graph)));
    }
    q->done++;
}

static void run_until(struct queue *q, size_t until) {
    while (q->done < until) run_one(q);
}

static bool may_run(const struct queue *q) {
    const struct work *w = &q->works[q->done];
    return q->done < q->n && (w->kind != WAIT || w->of->done >= w->until);
}

static uint32_t lot(void) { return (lots = lots * 1664525u + 1013904223u) >> 16; }

static void submit(struct queue *q, struct work w) {
    cr_assert_lt(q->n, sizeof q->works / sizeof *q->works);
    q->works[q->n++] = w;
    if (q->is_eager) run_until(q, q->n);
    for (uint32_t i = lots ? lot() % 4 : 0; i > 0; i--) {
        struct queue *some = lot() % 2 ? &a : &b;
        if (may_run(some)) run_one(some);
    }
    int waiting = 0;
    for (size_t i = q->done; i < q->n; i++) waiting += q->works[i].kind == COMPUTE;
    if (waiting > most_waiting) most_waiting = waiting;
}

static enum sheaf_status compute_async(sheaf_backend_t backend, struct sheaf_cgraph *graph) {
    struct queue *q = queue_of(backend);
    if (++q->n_graphs == q->refused)
        return sheaf_set_error(SHEAF_STATUS_FAILED, "%s refuses a graph", q->island.name);
    submit(q, (struct work){.kind = COMPUTE, .graph = graph});
    return SHEAF_STATUS_SUCCESS;
}

static enum sheaf_status synchronize(sheaf_backend_t backend) {
    struct queue *q = queue_of(backend);
    run_until(q, q->n);
    if (!q->failed) return SHEAF_STATUS_SUCCESS;
    q->failed = false;
    return sheaf_set_error(SHEAF_STATUS_FAILED, "%s has failed", q->island.name);
}

static enum sheaf_status copy_async(sheaf_backend_t from, sheaf_backend_t to,
                                    struct sheaf_tensor *src, struct sheaf_tensor *dst,
                                    bool *done) {
    *done = from->iface == to->iface;
    if (!*done) return SHEAF_STATUS_SUCCESS;
    submit(queue_of(from), (struct work){.kind = COPY, .from = src, .to = dst});
    submit(queue_of(to),
           (struct work){.kind = WAIT, .of = queue_of(from), .until = queue_of(from)->n});
    return SHEAF_STATUS_SUCCESS;
}

static enum sheaf_status event_new(sheaf_backend_dev_t dev, sheaf_backend_event_t *out) {
    struct event *e = calloc(1, sizeof *e);
    cr_assert(e);
    e->of = (struct queue *)dev;
    *out = &e->base;
    return SHEAF_STATUS_SUCCESS;
}
static void event_free(sheaf_backend_dev_t dev, sheaf_backend_event_t event) {
    (void)dev;
    free(event);
}
static enum sheaf_status event_synchronize(sheaf_backend_dev_t dev, sheaf_backend_event_t event) {
    run_until((struct queue *)dev, ((struct event *)event)->until);
    return SHEAF_STATUS_SUCCESS;
}
static enum sheaf_status event_record(sheaf_backend_t backend, sheaf_backend_event_t event) {
    ((struct event *)event)->until = queue_of(backend)->n;
    return SHEAF_STATUS_SUCCESS;
}
static enum sheaf_status event_wait(sheaf_backend_t backend, sheaf_backend_event_t event) {
    const struct event *e = (struct event *)event;
    submit(queue_of(backend), (struct work){.kind = WAIT, .of = e->of, .until = e->until});
    return SHEAF_STATUS_SUCCESS;
}

static void queue_props(sheaf_backend_dev_t dev, struct sheaf_backend_dev_props *p) {
    dev_props(dev, p);
    p->caps.async = true;
    p->caps.events = !((struct queue *)dev)->has_no_events;
}
static bool queue_supports_buft(sheaf_backend_dev_t dev, sheaf_backend_buffer_type_t buft) {
    return buft->device == dev || (together && buft->device && buft->device->iface == dev->iface);
}

static const struct sheaf_backend_i queue_backend_i = {
    .get_name = backend_name,
    .free = backend_free,
    .graph_compute = backend_compute,
    .synchronize = synchronize,
    .graph_compute_async = compute_async,
    .cpy_tensor_async = copy_async,
    .event_record = event_record,
    .event_wait = event_wait,
};

static void queue_up(struct queue *q, const char *name, sheaf_backend_t cpu) {
    static struct sheaf_backend_device_i queue_i;
    memset(q, 0, sizeof *q);
    island_up(&q->island, name, cpu);
    queue_i = island_i;
    queue_i.get_props = queue_props;
    queue_i.supports_buft = queue_supports_buft;
    queue_i.event_new = event_new;
    queue_i.event_free = event_free;
    queue_i.event_synchronize = event_synchronize;
    q->island.dev.iface = &queue_i;
    q->island.backend.iface = &queue_backend_i;
}

/* ---- graphs ---- */

enum { N = 8, LAYERS = 6, GRAPHS = 13 };

/* y = 2 (y + w) + x for each layer; then sum = sum / 2 + y, which B has. Graphs must lie alike to
 * be in flight together, so a graph leaves nothing else behind. x has one column, in some graphs
 * several alike, of which the last one counts. */
struct rig {
    sheaf_backend_t cpu;
    sheaf_backend_sched_t sched;
    struct sheaf_context *weights[2], *ctx;
    sheaf_backend_buffer_t buffer[2];
    struct sheaf_tensor *w[LAYERS], *sum;
    struct sheaf_tensor *x[GRAPHS];
    struct sheaf_cgraph *graph[GRAPHS];
    float want[N];
};

static struct sheaf_context *context(size_t n_tensors, size_t n_graphs) {
    return sheaf_init((struct sheaf_init_params){.mem_size = n_tensors * sheaf_tensor_overhead() +
                                                             n_graphs * sheaf_graph_overhead(),
                                                 .no_alloc = true});
}

struct mode {
    bool waits;     /* no graphs in flight */
    bool together;  /* A and B can use each other's memory */
    bool no_events; /* B has none */
    bool sizes;     /* each third graph has more columns, and more with each of them */
    uint32_t seed;
};

static void rig_up(struct rig *r, struct mode mode) {
    struct queue *on[2] = {&a, &b};
    *r = (struct rig){0};
    setenv("SHEAF_CPU_THREADS", "1", 1);
    cr_assert(!sheaf_backend_init_by_type(SHEAF_BACKEND_DEVICE_TYPE_CPU, NULL, &r->cpu));
    queue_up(&a, "A", r->cpu);
    queue_up(&b, "B", r->cpu);
    together = mode.together;
    b.has_no_events = mode.no_events;
    lots = mode.seed;
    most_waiting = 0;
    for (int d = 0; d < 2; d++) {
        r->weights[d] = context(LAYERS + 1, 0);
        for (int i = d; i < LAYERS; i += 2)
            r->w[i] = sheaf_new_tensor_1d(r->weights[d], SHEAF_TYPE_F32, N);
        if (d == 1) r->sum = sheaf_new_tensor_1d(r->weights[d], SHEAF_TYPE_F32, N);
        cr_assert(
            !sheaf_backend_alloc_ctx_tensors(r->weights[d], &on[d]->island.backend, &r->buffer[d]));
        sheaf_backend_buffer_set_usage(r->buffer[d], SHEAF_BACKEND_BUFFER_USAGE_WEIGHTS);
    }
    for (int i = 0; i < LAYERS; i++) {
        float w[N];
        for (int k = 0; k < N; k++) w[k] = (float)(i + k);
        cr_assert(!sheaf_backend_tensor_set(r->w[i], w, 0, sizeof w));
    }
    cr_assert(!sheaf_backend_tensor_set(r->sum, r->want, 0, sizeof r->want));
    r->ctx = context(GRAPHS * (3 * LAYERS + 5), GRAPHS);
    for (int g = 0; g < GRAPHS; g++) {
        const int n = mode.sizes && g % 3 == 1 ? g : 1;
        struct sheaf_tensor *y = r->x[g] = sheaf_new_tensor_2d(r->ctx, SHEAF_TYPE_F32, N, n);
        sheaf_set_input(y);
        for (int i = 0; i < LAYERS; i++) {
            y = sheaf_scale(r->ctx, sheaf_add(r->ctx, y, r->w[i]), 2.0f);
            y = sheaf_add(r->ctx, y, r->x[g]);
        }
        if (n > 1) y = sheaf_view_1d(r->ctx, y, N, (size_t)(n - 1) * y->nb[1]);
        y = sheaf_add(r->ctx, y, sheaf_scale(r->ctx, r->sum, 0.5f));
        r->graph[g] = sheaf_new_graph(r->ctx);
        cr_assert(!sheaf_build_forward_expand(r->graph[g], sheaf_cpy(r->ctx, y, r->sum)));
    }
    r->sched =
        sheaf_backend_sched_new((sheaf_backend_t[]){&a.island.backend, &b.island.backend, r->cpu},
                                NULL, 3, 64, !mode.waits, false);
    cr_assert(r->sched, "%s", sheaf_last_error());
}

static void rig_down(struct rig *r) {
    sheaf_backend_sched_free(r->sched);
    for (int d = 0; d < 2; d++) {
        sheaf_backend_buffer_free(r->buffer[d]);
        sheaf_free(r->weights[d]);
    }
    sheaf_free(r->ctx);
    sheaf_backend_free(r->cpu);
}

static float input(int number, int k) { return (float)(100 * number + k); }

/* The graph is `number`th input's. */
static enum sheaf_status start(struct rig *r, int g, int number) {
    float x[N];
    for (int k = 0; k < N; k++) x[k] = input(number, k);
    for (int i = 0; i < sheaf_graph_n_nodes(r->graph[g]) && together; i++) /* else weights say it */
        cr_assert(!sheaf_backend_sched_set_tensor_backend(
            r->sched, sheaf_graph_node(r->graph[g], i),
            i >= 3 * LAYERS || i / 3 % 2 ? &b.island.backend : &a.island.backend));
    enum sheaf_status st = sheaf_backend_sched_alloc_graph(r->sched, r->graph[g]);
    for (int64_t c = 0; c < r->x[g]->ne[1] && !st; c++)
        st = sheaf_backend_tensor_set(r->x[g], x, (size_t)c * sizeof x, sizeof x);
    if (!st) st = sheaf_backend_sched_graph_compute_async(r->sched, r->graph[g]);
    for (int k = 0; k < N && !st; k++) {
        float y = x[k];
        for (int i = 0; i < LAYERS; i++) y = 2 * (y + (float)(i + k)) + x[k];
        r->want[k] = 0.5f * r->want[k] + y;
    }
    return st;
}

static void finish(struct rig *r) {
    float got[N];
    cr_assert(!sheaf_backend_sched_synchronize(r->sched), "%s", sheaf_last_error());
    cr_assert(a.done == a.n && b.done == b.n);
    cr_assert(!sheaf_backend_tensor_get(r->sum, got, 0, sizeof got));
    for (int k = 0; k < N; k++)
        cr_assert_eq(got[k], r->want[k], "value %d: %g, not %g", k, (double)got[k],
                     (double)r->want[k]);
    rig_down(r);
}

/* n graph objects take turns. */
static void in_flight(struct mode mode, int n) {
    struct rig r;
    rig_up(&r, mode);
    for (int i = 0; i < 2 * GRAPHS; i++) cr_assert(!start(&r, i % n, i), "%s", sheaf_last_error());
    cr_assert_eq(sheaf_backend_sched_get_n_splits(r.sched), LAYERS);
    if (!mode.seed && !mode.waits && !mode.together && !mode.no_events && !mode.sizes)
        /* the splits of as many graphs as there are copies of inputs */
        cr_assert_eq(most_waiting, LAYERS / 2 * (n < 4 ? n : 4), "%d", most_waiting);
    finish(&r);
}

Test(sched_queues, work_lies_until_it_is_waited_for) { in_flight((struct mode){0}, GRAPHS); }
Test(sched_queues, one_graph_at_a_time) { in_flight((struct mode){.waits = true}, GRAPHS); }
Test(sched_queues, one_memory) { in_flight((struct mode){.together = true}, GRAPHS); }
Test(sched_queues, no_events) { in_flight((struct mode){.no_events = true}, GRAPHS); }
/* Memory is given to the next graph, or taken from all, when those in flight are done. */
Test(sched_queues, graphs_of_several_sizes) { in_flight((struct mode){.sizes = true}, GRAPHS); }
Test(sched_queues, a_graph_that_comes_again_is_waited_for) {
    for (int n = 1; n < 4; n++) in_flight((struct mode){0}, n);
}

Test(sched_queues, work_runs_by_lot) {
    for (uint32_t seed = 1; seed <= 64; seed++)
        in_flight((struct mode){.waits = seed % 16 == 0,
                                .together = seed % 4 == 1,
                                .no_events = seed % 8 == 2,
                                .sizes = seed % 2,
                                .seed = seed},
                  seed % 3 ? GRAPHS : 3);
}

/* A queue refuses a split while the others are under way: they are waited for, and the graph's
 * operands are its own again. */
Test(sched_queues, a_refused_split) {
    for (int number = 1; number <= LAYERS / 2; number++) {
        struct rig r;
        rig_up(&r, (struct mode){0});
        b.refused = number + LAYERS / 2;
        cr_assert(!start(&r, 0, 0), "%s", sheaf_last_error());
        cr_assert_eq(start(&r, 1, 1), SHEAF_STATUS_FAILED);
        cr_assert_str_eq(sheaf_last_error(), "B refuses a graph");
        cr_assert(a.done == a.n && b.done == b.n);
        cr_assert_eq(sheaf_graph_node(r.graph[1], 0)->src[0], r.x[1]);
        cr_assert(!start(&r, 1, 2), "%s", sheaf_last_error());
        finish(&r);
    }
}

/* An error that shows only when a queue runs is told by the next wait, the first of several by its
 * text, also if that is a wait inside of a graph; the graphs after it are right. */
static void failure(bool no_events) {
    struct rig r;
    rig_up(&r, (struct mode){.no_events = no_events});
    b.fails = 2;
    if (!no_events) a.fails = 2; /* else B is waited for before */
    enum sheaf_status st = start(&r, 0, 0);
    if (!st) st = sheaf_backend_sched_synchronize(r.sched);
    cr_assert_eq(st, SHEAF_STATUS_FAILED);
    cr_assert_str_eq(sheaf_last_error(), no_events ? "B has failed" : "A has failed");
    cr_assert(a.done == a.n && b.done == b.n && !a.failed && !b.failed);
    a.fails = b.fails = 0;
    memset(r.want, 0, sizeof r.want); /* the sum comes after what failed */
    cr_assert(!start(&r, 1, 1), "%s", sheaf_last_error());
    finish(&r);
}

Test(sched_queues, a_failure_in_a_queue) { failure(false); }
Test(sched_queues, a_failure_without_events) { failure(true); }

static bool no_node(struct sheaf_tensor *t, bool ask, void *user) {
    (void)t, (void)user;
    return !ask;
}

/* With a callback a compute returns when all is done, copies between queues, too. */
Test(sched_queues, a_callback_waits) {
    struct rig r;
    rig_up(&r, (struct mode){0});
    sheaf_backend_sched_set_eval_callback(r.sched, no_node, NULL);
    for (int g = 0; g < 3; g++) {
        cr_assert(!start(&r, g, g), "%s", sheaf_last_error());
        cr_assert(a.done == a.n && b.done == b.n);
        cr_assert_eq(sheaf_graph_node(r.graph[g], 0)->src[0], r.x[g]);
    }
    finish(&r);
}

/* ---- memory that is used again ---- */

static struct sheaf_tensor *on(sheaf_backend_sched_t sched, struct sheaf_cgraph *g,
                               struct sheaf_tensor *t, struct queue *q, bool output) {
    if (output) sheaf_set_output(t);
    cr_assert(!sheaf_build_forward_expand(g, t));
    cr_assert(!sheaf_backend_sched_set_tensor_backend(sched, t, &q->island.backend));
    return t;
}

static float first_of(const struct sheaf_tensor *t) {
    float value = 0;
    cr_assert(!sheaf_backend_tensor_get(t, &value, 0, sizeof value));
    return value;
}

/* x is copied from A to B, which is late. It is not read again, so a copy of y, from C, comes to lie
 * where x was: C must wait until B has x. */
Test(sched_queues, copies_wait_for_copies_to_others) {
    static struct queue third;
    static const float three[N] = {3};
    sheaf_backend_t cpu;
    sheaf_backend_buffer_t buffer;
    setenv("SHEAF_CPU_THREADS", "1", 1);
    cr_assert(!sheaf_backend_init_by_type(SHEAF_BACKEND_DEVICE_TYPE_CPU, NULL, &cpu));
    queue_up(&a, "A", cpu);
    queue_up(&b, "B", cpu);
    queue_up(&third, "C", cpu);
    third.is_eager = true;
    struct sheaf_context *weights = context(1, 0), *ctx = context(8, 1);
    struct sheaf_tensor *w = sheaf_new_tensor_1d(weights, SHEAF_TYPE_F32, N);
    cr_assert(!sheaf_backend_alloc_ctx_tensors(weights, &a.island.backend, &buffer));
    sheaf_backend_buffer_set_usage(buffer, SHEAF_BACKEND_BUFFER_USAGE_WEIGHTS);
    cr_assert(!sheaf_backend_tensor_set(w, three, 0, sizeof three));
    sheaf_backend_sched_t sched = sheaf_backend_sched_new(
        (sheaf_backend_t[]){&a.island.backend, &b.island.backend, &third.island.backend, cpu}, NULL,
        4, 64, false, false);
    cr_assert(sched, "%s", sheaf_last_error());
    struct sheaf_cgraph *g = sheaf_new_graph(ctx);
    struct sheaf_tensor *x = on(sched, g, sheaf_scale(ctx, w, 1), &a, false);
    struct sheaf_tensor *y = on(sched, g, sheaf_scale(ctx, x, 2), &third, false);
    struct sheaf_tensor *r = on(sched, g, sheaf_scale(ctx, x, 5), &b, true);
    struct sheaf_tensor *z = on(sched, g, sheaf_scale(ctx, y, 2), &a, true);
    cr_assert(!sheaf_backend_sched_alloc_graph(sched, g), "%s", sheaf_last_error());
    cr_assert_eq(z->data, x->data, "the copy lies elsewhere: the test shows nothing");
    cr_assert(!sheaf_backend_sched_graph_compute(sched, g), "%s", sheaf_last_error());
    cr_expect_eq(first_of(r), 15, "%g", (double)first_of(r));
    cr_expect_eq(first_of(z), 12, "%g", (double)first_of(z));
    sheaf_backend_sched_free(sched);
    sheaf_backend_buffer_free(buffer);
    sheaf_free(ctx);
    sheaf_free(weights);
    sheaf_backend_free(cpu);
}
