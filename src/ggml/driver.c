/* The threads that call the engine, and what ggml's calls become. */
#include "ggml/driver.h"

#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/thread.h"
#include "ggml/driver_impl.h"
#include "ggml/file.h"
#include "ggml/translate.h"

struct gg_driver gg_driver;

/* ---- threads ---- */

typedef enum sheaf_status (*task_fn)(void *argument);

static struct {
    pthread_t thread;
    pthread_mutex_t callers; /* one call at a time */
    pthread_mutex_t lock;    /* of the fields below */
    pthread_cond_t changed;
    task_fn task; /* NULL: idle */
    void *argument;
    enum sheaf_status status;
    bool quit;
    pid_t pid;
    atomic_bool started;
    atomic_bool failed; /* the first failure, for the next graph */
    char text[1024], description[GG_MAX_GROUPS][64];
} shared = {.callers = PTHREAD_MUTEX_INITIALIZER,
            .lock = PTHREAD_MUTEX_INITIALIZER,
            .changed = PTHREAD_COND_INITIALIZER};
static _Thread_local bool is_inside; /* of a call */

static void *work(void *unused) {
    (void)unused;
    pthread_mutex_lock(&shared.lock);
    while (!shared.quit) {
        if (!shared.task) {
            pthread_cond_wait(&shared.changed, &shared.lock);
            continue;
        }
        pthread_mutex_unlock(&shared.lock);
        const enum sheaf_status st = shared.task(shared.argument);
        char text[sizeof shared.text];
        snprintf(text, sizeof text, "%s", st ? sheaf_last_error() : "");
        pthread_mutex_lock(&shared.lock);
        shared.status = st;
        memcpy(shared.text, text, sizeof text);
        shared.task = NULL;
        pthread_cond_broadcast(&shared.changed);
    }
    pthread_mutex_unlock(&shared.lock);
    return NULL;
}

/* Runs the task in the driver thread; its status, and its text in this thread. */
static enum sheaf_status hand_over(task_fn task, void *argument) {
    pthread_mutex_lock(&shared.lock);
    shared.task = task;
    shared.argument = argument;
    pthread_cond_broadcast(&shared.changed);
    while (shared.task) pthread_cond_wait(&shared.changed, &shared.lock);
    const enum sheaf_status st = shared.status;
    if (st) sheaf_set_error(st, "%s", shared.text);
    pthread_mutex_unlock(&shared.lock);
    return st;
}

static enum sheaf_status not_there(void) {
    return sheaf_set_error(SHEAF_STATUS_INVALID,
                           "SHEAF is not there in this process: the job has ended, or this is "
                           "a child of the process that belongs to it");
}

/* On this thread: to wake another one takes 50 to 200 us in a virtual machine, and to keep it awake
 * takes a core. On the driver thread if MPI serves no other. A child of a fork has no such thread,
 * and the job is not its own. */
static enum sheaf_status call(task_fn task, void *argument) {
    if (shared.pid != getpid()) return not_there();
    is_inside = true;
    pthread_mutex_lock(&shared.callers);
    const enum sheaf_status st = !shared.started           ? not_there()
                                 : sheaf_world_move_here() ? hand_over(task, argument)
                                                           : task(argument);
    pthread_mutex_unlock(&shared.callers);
    is_inside = false;
    return st;
}

/* ggml's functions that move data return nothing. */
static void keep_failure(enum sheaf_status st) {
    if (!st || atomic_exchange(&shared.failed, true)) return;
    sheaf_log(SHEAF_LOG_ERROR, "%s", sheaf_last_error());
}

/* Other commands use the memory of a run's results, or all ranks meet in them, as in a run whose
 * views move (c of them): they get its payload, and may plan again. */
static bool goes_beside_runs(enum gg_command_kind kind, uint64_t c) {
    return (kind == GG_COMMAND_RUN && !c) || kind == GG_COMMAND_FETCH || kind == GG_COMMAND_ASK ||
           kind == GG_COMMAND_END;
}

enum sheaf_status gg_command(enum gg_command_kind kind, uint64_t a, uint64_t b, uint64_t c,
                             uint64_t d, const void *payload, size_t size, void *result) {
    const size_t n = goes_beside_runs(kind, c) ? 0 : gg_engine_n_devices(gg_driver.engine);
    for (size_t i = 0; i < n; i++) {
        const enum sheaf_status st = gg_fetch(i);
        if (st && sheaf_world_failed()) return st;
        keep_failure(st); /* of that run, not of this command */
    }
    struct gg_command command = {
        .kind = (uint32_t)kind, .a = a, .b = b, .c = c, .d = d, .size = size};
    return gg_engine_do(gg_driver.engine, &command, payload, result);
}

/* ---- start and end ---- */

/* The program may be idle, so that no call tells it: it is asked to end, as by its user, when the
 * ranks have had the time to agree on the one that prints the failure. A program that stays is
 * ended by the library after the limit of the end (SHEAF_TIMEOUT_FINALIZE_MS). */
static void *ask_to_end(void *unused) {
    (void)unused;
    usleep(1500000);
    kill(getpid(), SIGTERM);
    return NULL;
}
static void end_program(int rank, const char *text, void *user) {
    pthread_t thread;
    (void)rank;
    (void)text;
    (void)user;
    if (!sheaf__thread_start(&thread, ask_to_end, NULL)) pthread_detach(thread);
}

static int hosts_of(size_t device) {
    int n = 0;
    for (int h = 0; h < sheaf_world_n_hosts(); h++) {
        bool is_one = false;
        for (int r = 0; r < sheaf_world_size(); r++)
            is_one = is_one || (sheaf_world_host_index(r) == h &&
                                gg_engine_has_rank(gg_driver.engine, device, r));
        n += is_one;
    }
    return n;
}

static void describe(size_t device) {
    const size_t n = sheaf_backend_meta_dev_n_members(gg_engine_device(gg_driver.engine, device));
    const int hosts = hosts_of(device);
    snprintf(shared.description[device], sizeof shared.description[device],
             "%zu member%s on %d host%s", n, n == 1 ? "" : "s", hosts, hosts == 1 ? "" : "s");
}

static void stay_out(const char *text) {
    sheaf_log(SHEAF_LOG_ERROR, "SHEAF stays out of this program: %s", text);
}

static enum sheaf_status start_task(void *unused) {
    (void)unused;
    const char *on_failure = sheaf_setting_value("SHEAF_GGML_ON_FAILURE");
    const bool may_exit = !on_failure || strcmp(on_failure, "error") != 0;
    const enum sheaf_status st =
        gg_engine_start(may_exit, may_exit ? end_program : NULL, stay_out, &gg_driver.engine);
    for (size_t i = 0; !st && i < gg_engine_n_devices(gg_driver.engine); i++) describe(i);
    return st;
}

static enum sheaf_status stop_task(void *unused) {
    (void)unused;
    shared.started = false;
    sheaf_world_move_here();
    gg_engine_log(gg_driver.engine);
    if (!sheaf_world_failed()) gg_command(GG_COMMAND_END, 0, 0, 0, 0, NULL, 0, NULL);
    gg_forget_all();
    gg_encoder_free(&gg_driver.encoder);
    free(gg_driver.numbers.unused);
    gg_engine_stop(gg_driver.engine);
    return SHEAF_STATUS_SUCCESS;
}

enum sheaf_status gg_driver_start(const struct gg_host *host) {
    gg_driver.host = host;
    gg_driver.encoder.host = host;
    gg_driver.encoder.memory_of = gg_plugin_memory_of;
    gg_driver.encoder.numbers = &gg_driver.numbers;
    if (sheaf__thread_start(&shared.thread, work, NULL)) {
        stay_out("cannot start a thread");
        return sheaf_set_error(SHEAF_STATUS_FAILED, "cannot start a thread");
    }
    shared.pid = getpid();
    const enum sheaf_status st = hand_over(start_task, NULL);
    shared.started = !st;
    return st;
}

/* exit() in a handler of a signal comes here on a thread that may be in a call: the other ranks
 * then see this one go. */
void gg_driver_stop(void) {
    if (is_inside || shared.pid != getpid()) return;
    pthread_mutex_lock(&shared.callers);
    if (shared.started) {
        hand_over(stop_task, NULL);
        pthread_mutex_lock(&shared.lock);
        shared.quit = true;
        pthread_cond_broadcast(&shared.changed);
        pthread_mutex_unlock(&shared.lock);
        pthread_join(shared.thread, NULL);
    }
    pthread_mutex_unlock(&shared.callers);
}

size_t gg_driver_n_devices(void) { return gg_engine_n_devices(gg_driver.engine); }
const char *gg_driver_description(size_t device) { return shared.description[device]; }

/* Cuts follow the members' shares, so a device is full when the first member is. */
void gg_driver_memory(size_t device, size_t *free_bytes, size_t *total) {
    sheaf_backend_dev_memory(gg_engine_device(gg_driver.engine, device), free_bytes, total);
}

/* ---- runs that go on without rank 0 ---- */

static enum sheaf_status fetch_task(void *device) { return gg_fetch(*(const size_t *)device); }

uint64_t gg_driver_last_run(size_t device) { return gg_driver.pending[device].run; }

void gg_driver_wait(size_t device, uint64_t run) {
    if (gg_driver.pending[device].fetched < run && shared.started) /* there is one at most */
        keep_failure(call(fetch_task, &device));
}
static void wait_for_last(const struct gg_memory *m) {
    gg_driver_wait(m->device, gg_driver_last_run(m->device));
}

/* ---- memory ---- */

struct transfer {
    struct gg_memory *m;
    const struct gg_tensor *t;
    const void *from;
    void *to;
    uint8_t value;
    size_t offset, size; /* in the region */
};

struct gg_memory *gg_driver_alloc(size_t device, size_t size) {
    static _Atomic uint64_t group = 1;
    return gg_memory_new(size, group++, device);
}

static enum sheaf_status free_task(void *argument) {
    struct gg_memory *m = argument;
    gg_forget_group(m->group);
    const enum sheaf_status st = gg_command(GG_COMMAND_FREE, m->group, 0, 0, 0, NULL, 0, NULL);
    for (size_t i = 0; i < m->n_regions && !st; i++)
        gg_number_return(&gg_driver.numbers, m->regions[i]);
    return st;
}

static bool has_objects(const struct gg_memory *m) {
    for (size_t i = 0; i < m->n_regions; i++)
        if (m->regions[i]->object != GG_NO_OBJECT) return true;
    return false;
}

void gg_driver_free(struct gg_memory *m) {
    wait_for_last(m);
    if (has_objects(m) && shared.started && !sheaf_world_failed()) keep_failure(call(free_task, m));
    gg_memory_free(m);
}

static size_t in_region(const struct gg_tensor *t, size_t offset) {
    return (size_t)((char *)t->data - (char *)gg_root(t)->data) + offset;
}

/* The part of a file that was recorded is not all of the region's bytes any more. */
static enum sheaf_status take_out_of_file(struct gg_memory *m, struct gg_region *r) {
    if (!r->file) return SHEAF_STATUS_SUCCESS;
    const enum sheaf_status st = gg_region_bytes(m, r, 0, m->base + r->offset, r->bytes);
    r->file = NULL;
    return st;
}

/* A mapped file needs no copy: each rank reads its slices from its own. Small tensors are no
 * weights worth a look at the process's mappings. */
static bool record_file(struct gg_region *r, const void *data, size_t size) {
    enum { LEAST_BYTES = 4096 };
    if (size != r->bytes || size < LEAST_BYTES) return false;
    r->file = gg_file_of_address(data, size, &r->file_offset);
    return r->file;
}

/* The region that is written; NULL: out of memory, or its type is unknown here. */
static enum sheaf_status region_to_write(const struct transfer *x, struct gg_region **out) {
    struct gg_region *other = NULL;
    enum sheaf_status st = SHEAF_STATUS_SUCCESS;
    *out = gg_region_of(x->m, gg_driver.host, gg_root(x->t), &other);
    if (!*out && other) {
        st = gg_unbind_region(x->m, other);
        if (!st) *out = gg_region_of(x->m, gg_driver.host, gg_root(x->t), &other);
    }
    return st;
}

/* In parts, for the other ranks keep memory for the largest one. */
static enum sheaf_status set_object(const struct gg_region *r, const struct transfer *x) {
    enum { PART = 4 << 20 };
    enum sheaf_status st = SHEAF_STATUS_SUCCESS;
    for (size_t at = 0, n; at < x->size && !st; at += n) {
        n = x->size - at < PART ? x->size - at : PART;
        st = gg_command(GG_COMMAND_SET, (uint64_t)r->object, x->offset + at, 0, 0,
                        (const char *)x->from + at, n, NULL);
    }
    return st;
}

static enum sheaf_status set_task(void *argument) {
    const struct transfer *x = argument;
    struct gg_region *r = NULL;
    enum sheaf_status st = region_to_write(x, &r);
    if (st) return st;
    if (r && r->bound) return set_object(r, x);
    if (r) r->written = true;
    if (r && x->offset == 0 && record_file(r, x->from, x->size)) return st;
    if (r) st = take_out_of_file(x->m, r);
    memcpy((char *)gg_root(x->t)->data + x->offset, x->from, x->size);
    return st;
}

void gg_driver_set(struct gg_memory *m, const struct gg_tensor *t, const void *data, size_t offset,
                   size_t size) {
    if (!gg_is_static(gg_driver.host, t)) {
        memcpy((char *)t->data + offset, data, size);
        return;
    }
    struct transfer x = {
        .m = m, .t = t, .from = data, .offset = in_region(t, offset), .size = size};
    keep_failure(call(set_task, &x));
}

static enum sheaf_status fill_task(void *argument) {
    const struct transfer *x = argument;
    struct gg_region *r = NULL;
    enum sheaf_status st = region_to_write(x, &r);
    if (st) return st;
    if (r && r->bound)
        return gg_command(GG_COMMAND_FILL, (uint64_t)r->object, x->offset, x->size, x->value, NULL,
                          0, NULL);
    if (r) r->written = true;
    if (r) st = take_out_of_file(x->m, r);
    memset((char *)gg_root(x->t)->data + x->offset, x->value, x->size);
    return st;
}

void gg_driver_fill(struct gg_memory *m, const struct gg_tensor *t, uint8_t value, size_t offset,
                    size_t size) {
    if (!gg_is_static(gg_driver.host, t)) {
        memset((char *)t->data + offset, value, size);
        return;
    }
    struct transfer x = {
        .m = m, .t = t, .value = value, .offset = in_region(t, offset), .size = size};
    keep_failure(call(fill_task, &x));
}

static enum sheaf_status get_task(void *argument) {
    const struct transfer *x = argument;
    const struct gg_region *r = gg_region_find(x->m, gg_root(x->t));
    if (r && r->bound)
        return gg_command(GG_COMMAND_GET, (uint64_t)r->object, x->offset, x->size, 0, NULL, 0,
                          x->to);
    if (r && r->file) return gg_region_bytes(x->m, r, x->offset, x->to, x->size);
    memcpy(x->to, (const char *)gg_root(x->t)->data + x->offset, x->size);
    return SHEAF_STATUS_SUCCESS;
}

void gg_driver_get(struct gg_memory *m, const struct gg_tensor *t, void *data, size_t offset,
                   size_t size) {
    wait_for_last(m);
    if (!gg_is_static(gg_driver.host, t)) {
        memcpy(data, (const char *)t->data + offset, size);
        return;
    }
    struct transfer x = {.m = m, .t = t, .to = data, .offset = in_region(t, offset), .size = size};
    keep_failure(call(get_task, &x)); /* a graph on another thread may be adding regions */
}

static enum sheaf_status clear_task(void *argument) {
    const struct transfer *x = argument;
    enum sheaf_status st = SHEAF_STATUS_SUCCESS;
    for (size_t i = 0; i < x->m->n_regions && !st; i++) {
        struct gg_region *r = x->m->regions[i];
        r->file = NULL;
        r->written = x->value != 0;
        if (r->bound)
            st = gg_command(GG_COMMAND_FILL, (uint64_t)r->object, 0, r->bytes, x->value, NULL, 0,
                            NULL);
    }
    return st;
}

void gg_driver_clear(struct gg_memory *m, uint8_t value) {
    struct transfer x = {.m = m, .value = value};
    gg_shadow_drop(m, 0, m->size);
    const size_t whole = value ? 0 : m->size / 4096 * 4096; /* pages given back are zero */
    memset(m->base + whole, value, m->size - whole);
    if (m->n_regions) keep_failure(call(clear_task, &x));
    m->cleared = value;
}

/* ---- graphs ---- */

struct computation {
    size_t device;
    const struct gg_cgraph *graph;
};

static enum sheaf_status compute_task(void *argument) {
    const struct computation *c = argument;
    return gg_run_graph(c->device, c->graph);
}

enum sheaf_status gg_driver_compute(size_t device, const struct gg_cgraph *graph) {
    if (atomic_load(&shared.failed)) {
        const bool over = sheaf_world_failed();
        if (!over) atomic_store(&shared.failed, false); /* told once; the job goes on */
        return sheaf_set_error(SHEAF_STATUS_FAILED, "%s",
                               over ? "the job has failed" : "an earlier call failed");
    }
    struct computation c = {device, graph};
    const enum sheaf_status st = call(compute_task, &c);
    if (st) sheaf_log(SHEAF_LOG_ERROR, "%s", sheaf_last_error());
    if (st && sheaf_world_failed()) atomic_store(&shared.failed, true);
    return st;
}

struct question {
    size_t device;
    const struct gg_tensor *op;
};

/* What a device can do does not depend on where operands lie. */
static enum sheaf_status supports_task(void *argument) {
    const struct question *q = argument;
    struct gg_encoder *e = &gg_driver.encoder;
    const enum sheaf_status st = gg_encode_question(e, q->op);
    return st ? st
              : gg_command(GG_COMMAND_ASK, q->device, e->n_made, 0, 0, e->graph.data, e->graph.n,
                           NULL);
}

static bool is_asked_here(size_t device, const struct sheaf_tensor *node) {
    return sheaf_backend_dev_supports_op(gg_engine_device(gg_driver.engine, device), node);
}

/* A result that is written over an operand is copied there afterwards. */
static bool can_copy_into(size_t device, const struct gg_tensor *t,
                          const struct sheaf_tensor *node) {
    struct sheaf_tensor from = *node, copy = *node;
    copy.op = SHEAF_OP_CPY;
    memset(copy.op_params, 0, sizeof copy.op_params);
    memset(copy.src, 0, sizeof copy.src);
    from.op = SHEAF_OP_NONE;
    copy.src[0] = &from;
    copy.src[1] = &from;
    return !t->view_src || is_asked_here(device, &copy);
}

/* A result in another device's memory: the scheduler copies views of it before this device has
 * written them. */
static bool is_written_here(size_t device, const struct gg_tensor *root) {
    if (root->buffer && !gg_plugin_is_for_us(root, device)) return false;
    return root->op == 0 || gg_driver_supports(device, root);
}

bool gg_driver_supports(size_t device, const struct gg_tensor *t) {
    struct sheaf_tensor node, operand[SHEAF_MAX_SRC];
    struct gg_operands o;
    if (t->op == 0) return gg_type_of(gg_driver.host, t->type) >= 0;
    if (!gg_translate(gg_driver.host, t, &node, &o)) return false;
    for (int i = 0; i < SHEAF_MAX_SRC && o.order[i] >= 0; i++) {
        const struct gg_tensor *src = t->src[o.order[i]];
        if (!src) continue;
        if (!gg_operand(gg_driver.host, &o, i, src, &operand[i])) return false;
        node.src[i] = &operand[i];
    }
    if (gg_is_view(&node)) return true;
    if (t->view_src && !is_written_here(device, t->view_src)) return false;
    struct question q = {device, t};
    if (gg_engine_asks_all(gg_driver.engine, device)) return !call(supports_task, &q);
    return is_asked_here(device, &node) &&
           (gg_writes_operand(&node) || can_copy_into(device, t, &node));
}
