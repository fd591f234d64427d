/* A backend: one stream of a device, what is queued in it, and graphs that are replayed.
 *
 * A graph that comes again with the same nodes, shapes, parameters and addresses is captured as a
 * CUDA graph and replayed from then on: one submission for all of it. Its description at the
 * capture is kept as bytes (a record a node) and compared each time, so no change is missed, unless
 * the graph has a version (tensor/graph.h): it says the same at once.
 * Captured graphs hold addresses of the work memory: when that moves they are forgotten. Where a caller asks for
 * captures between runs (sheaf__cuda_backend_capture), captured graphs are made and ended only there.
 *
 * A sum of blocks (backend/sum.h) is kept for the graph that comes next and is part of its record.
 *
 * Ids that are out of range are noted by kernels in pinned memory and become the error of the next
 * synchronize. Unlike on the CPU the work submitted behind them still runs: its results are not
 * promised. */
#include <stdio.h>
#include <stdlib.h>

#include "base/array.h"
#include "base/hash.h"
#include "cuda/device.h"
#include "sheaf/log.h"
#include "sheaf/settings.h"

enum {
    MAX_REPLAYS = 512,        /* graphs remembered: a meta device has two spans a layer, and two
                               * places for what they add */
    MAX_KEPT_NODES = 1 << 14, /* of all remembered graphs: each captured node takes memory of the
                               * host and of the device */
    MIN_NODES = 4,            /* fewer are launched one by one as fast */
    MAX_RETIRED = 32,         /* pieces of work memory that may still be in use */
};

/* What the launches of a node depend on. */
struct record {
    const struct sheaf_tensor *node; /* bad ids are reported by it */
    int32_t op_params[SHEAF_MAX_OP_PARAMS];
    struct {
        int64_t ne[SHEAF_MAX_DIMS];
        size_t nb[SHEAF_MAX_DIMS];
        void *data;
        int64_t type;
    } t[1 + SHEAF__OP_MAX_SRC]; /* the node and its operands */
    int64_t op;
};

/* The nodes to run; a plan has a list of its own. */
struct nodes {
    struct sheaf_tensor *const *node;
    int n;
    uint64_t version; /* not 0: graphs of this uid and version are the same */
};

struct replay {
    uint64_t uid;
    uint64_t content;       /* a hash of the records and the sum */
    int n_nodes, n_records; /* views leave no record */
    struct record *records;
    uint64_t version;      /* of the graph that the records are of, 0: none (tensor/graph.h) */
    struct sheaf__sum sum; /* before the nodes */
    cudaGraphExec_t exec;  /* NULL: seen once, or not to be captured */
    bool refused;
    struct nodes waits; /* n > 0: they ran, and are to be captured before they change */
    uint64_t used;      /* to find the least recently used */
};

struct backend {
    struct sheaf_backend base;
    struct sheaf__cuda_device *device;
    struct sheaf__cuda_queue q;
    Fault *fault; /* the host's address of q.fault */
    cudaEvent_t copied;
    bool graphs, fuse, says_counts;
    struct sheaf__cuda_times *times;   /* NULL: not asked for */
    struct sheaf__cuda_inputs *inputs; /* NULL: not needed yet */
    struct record *scratch;
    size_t scratch_cap;
    struct replay *replays[MAX_REPLAYS];
    int n_replays, n_waiting;
    bool between_runs;     /* captured graphs are made and ended in sheaf__cuda_backend_capture */
    cudaGraphExec_t *gone; /* [n_gone] to be ended there */
    size_t n_gone, cap_gone;
    char *retired[MAX_RETIRED]; /* freed when the queue is empty */
    int n_retired;
    uint64_t clock;
    struct plan *plans;
};

struct plan {
    struct plan *next;
    struct sheaf_tensor **nodes;
    int n;
    struct replay replay;
};

struct event {
    struct sheaf_backend_event base;
    cudaEvent_t event;
};

static struct backend *backend_of(sheaf_backend_t base) { return (struct backend *)base->context; }

static enum sheaf_status use_device(const struct backend *b) {
    const cudaError_t e = cudaSetDevice(b->device->ordinal);
    return e ? sheaf__cuda_error(b->device->name, e, "choosing the device") : SHEAF_STATUS_SUCCESS;
}

enum sheaf_status sheaf__cuda_launched(const struct sheaf__cuda_queue *q,
                                       const struct sheaf_tensor *dst) {
    const cudaError_t e = cudaGetLastError();
    return e ? sheaf__cuda_error(q->device->name, e, "starting %s '%s'", sheaf_op_desc(dst),
                                 dst->name)
             : SHEAF_STATUS_SUCCESS;
}

static bool computes(const struct sheaf_tensor *node) {
    return !sheaf_is_empty(node) && ((unsigned)node->op >= SHEAF_OP_COUNT ||
                                     sheaf_op_get_cost(node->op) != SHEAF_OP_COST_FREE);
}

/* ---- work memory ---- */

static void end_capture(struct backend *b, cudaGraphExec_t exec) {
    if (b->between_runs && sheaf__grow(&b->gone, &b->cap_gone, b->n_gone + 1, sizeof *b->gone)) {
        b->gone[b->n_gone++] = exec;
    } else {
        cudaGraphExecDestroy(exec);
    }
}

static void free_gone(struct backend *b) {
    for (size_t i = 0; i < b->n_gone; i++) cudaGraphExecDestroy(b->gone[i]);
    b->n_gone = 0;
}

/* nodes: of the run that has just been submitted; without nodes it waits no more. */
static void set_waits(struct backend *b, struct replay *r, struct nodes nodes) {
    b->n_waiting += (nodes.n > 0) - (r->waits.n > 0);
    r->waits = nodes;
}
static const struct nodes NONE = {NULL, 0, 0};

static void forget_capture(struct backend *b, struct replay *r) {
    if (r->exec) end_capture(b, r->exec);
    set_waits(b, r, NONE);
    r->exec = NULL;
    r->n_nodes = 0; /* matches nothing */
    r->version = 0;
}

static void forget_all(struct backend *b) {
    for (int i = 0; i < b->n_replays; i++) forget_capture(b, b->replays[i]);
    for (struct plan *p = b->plans; p; p = p->next) forget_capture(b, &p->replay);
}

static void free_retired(struct backend *b) {
    for (int i = 0; i < b->n_retired; i++) cudaFree(b->retired[i]);
    b->n_retired = 0;
}

/* A queue may use the old memory, and may hold a collective whose peer is dead, for which no
 * call may wait without a deadline: the memory stays until the queue is found empty.
 * It grows by a quarter at least, so all that was left is five times the last at most. */
static void retire_work(struct backend *b) {
    forget_all(b);
    if (b->n_retired == MAX_RETIRED) { /* 1.25^32 is 1262: no run gets here */
        cudaStreamSynchronize(b->q.stream);
        free_retired(b);
    }
    if (b->q.work) b->retired[b->n_retired++] = b->q.work;
    b->q.work = NULL;
    b->q.work_size = 0;
    const cudaError_t e = b->n_retired ? cudaStreamQuery(b->q.stream) : cudaErrorNotReady;
    if (e == cudaSuccess) free_retired(b);
    if (e == cudaErrorNotReady) cudaGetLastError(); /* or the next launch would find it */
}

static enum sheaf_status reserve_work(struct backend *b, size_t need) {
    if (need <= b->q.work_size) return SHEAF_STATUS_SUCCESS;
    retire_work(b);
    need = sheaf__align_up(need + need / 4, (size_t)1 << 20); /* room to grow */
    void *p = NULL;
    const cudaError_t e = cudaMalloc(&p, need);
    if (e) return sheaf__cuda_error(b->device->name, e, "%zu bytes of work memory", need);
    b->q.work = (char *)p;
    b->q.work_size = need;
    return SHEAF_STATUS_SUCCESS;
}

static enum sheaf_status prepare(struct backend *b, struct nodes nodes) {
    size_t need = 0;
    for (int i = 0; i < nodes.n; i++) {
        const struct sheaf_tensor *node = nodes.node[i];
        if (!computes(node)) continue;
        const enum sheaf_status st = sheaf__cuda_check_node(b->device, node);
        if (st) return st;
        const struct sheaf__cuda_op *op = sheaf__cuda_op(node->op);
        const size_t n = op->work_size ? op->work_size(&b->q, node) : 0;
        if (n > need) need = n;
    }
    return reserve_work(b, need);
}

/* ---- running ---- */

/* The nodes from i on that compute something, at most `most`. */
static int look_ahead(struct nodes nodes, int i, const struct sheaf_tensor **next, int most) {
    int n = 0;
    for (; i < nodes.n && n < most; i++)
        if (computes(nodes.node[i])) next[n++] = nodes.node[i];
    return n;
}

/* After a node: are the rounded columns in the scratch still those of their tensor? MUL_MAT sees to
 * them itself, unless it writes to that tensor. */
static void keep_rounded(struct backend *b, const struct sheaf_tensor *node) {
    const struct sheaf_tensor *x = b->q.rounded;
    if (!x) return;
    const struct sheaf__cuda_op *op = sheaf__cuda_op(node->op);
    const bool scratch = op->work_size && op->launch != sheaf__cuda_op_MUL_MAT.launch &&
                         op->work_size(&b->q, node) > 0;
    if (!b->fuse || !sheaf__cuda_disjoint(node, x) || scratch) b->q.rounded = NULL;
}

static enum sheaf_status launch_all(struct backend *b, struct nodes nodes) {
    enum sheaf_status st = SHEAF_STATUS_SUCCESS;
    b->q.rounded = b->q.rounds = NULL;
    for (int i = 0; i < nodes.n && !st; i++) {
        const struct sheaf_tensor *next[SHEAF__CUDA_TOGETHER];
        if (!computes(nodes.node[i])) continue;
        const int n = b->fuse ? look_ahead(nodes, i, next, SHEAF__CUDA_TOGETHER) : 0;
        const int first = i;
        int together = 0;
        if (b->times) sheaf__cuda_times_begin(b->times, b->q.stream);
        if (b->q.sum.n_blocks) {
            together = n ? sheaf__cuda_launch_chain(&b->q, next, n, &st) : 0;
            if (!together) st = sheaf__cuda_launch_sum(&b->q);
            if (st) break;
        }
        if (n && !together) together = sheaf__cuda_launch_products(&b->q, next, n, &st);
        if (n && !together) together = sheaf__cuda_launch_glu_rounded(&b->q, next, n, &st);
        if (n && !together) together = sheaf__cuda_launch_attention(&b->q, next, n, &st);
        if (n && !together) together = sheaf__cuda_launch_turn(&b->q, next, n, &st);
        if (n && !together) together = sheaf__cuda_launch_chain(&b->q, next, n, &st);
        if (!together) st = sheaf__cuda_op(nodes.node[i]->op)->launch(&b->q, nodes.node[i]);
        keep_rounded(b, nodes.node[i]);
        for (int left = together - 1; left > 0;) {
            if (!computes(nodes.node[++i])) continue;
            keep_rounded(b, nodes.node[i]);
            left--;
        }
        if (b->times)
            sheaf__cuda_times_end(b->times, b->q.stream, nodes.node + first, i - first + 1);
        if (!b->q.rounds) continue;
        b->q.rounded = b->q.rounds;
        b->q.rounded_type = b->q.rounds_type;
        b->q.rounds = NULL;
    }
    return st;
}

static enum sheaf_status launch_nodes(struct backend *b, struct nodes nodes) {
    b->q.counts.node_by_node++;
    return launch_all(b, nodes);
}

static bool grow_scratch(struct backend *b, int n) {
    return sheaf__grow(&b->scratch, &b->scratch_cap, (size_t)n, sizeof *b->scratch);
}

/* Into b->scratch; how many. -1 if a node has more operands than a record. */
static int take_records(struct backend *b, struct nodes nodes) {
    int n = 0;
    if (!grow_scratch(b, nodes.n)) return -1;
    for (int i = 0; i < nodes.n; i++) {
        const struct sheaf_tensor *node = nodes.node[i];
        if (!computes(node)) continue;
        struct record *r = &b->scratch[n++];
        memset(r, 0, sizeof *r); /* compared by its bytes */
        r->node = node;
        r->op = node->op;
        memcpy(r->op_params, node->op_params, sizeof r->op_params);
        for (int j = 0; j <= SHEAF__OP_MAX_SRC; j++) {
            const struct sheaf_tensor *t = j ? node->src[j - 1] : node;
            if (!t) continue;
            memcpy(r->t[j].ne, t->ne, sizeof t->ne);
            memcpy(r->t[j].nb, t->nb, sizeof t->nb);
            r->t[j].data = t->data;
            r->t[j].type = t->type;
        }
        if (node->src[SHEAF__OP_MAX_SRC]) return -1;
    }
    return n;
}

static bool same_records(const struct backend *b, const struct replay *r, int n_nodes, int n) {
    return r->n_nodes == n_nodes && r->n_records == n &&
           !memcmp(&r->sum, &b->q.sum, sizeof r->sum) &&
           !memcmp(r->records, b->scratch, (size_t)n * sizeof *r->records);
}

/* By words: the records of a graph are some 100 KB. */
static uint64_t content_of(const struct record *records, int n, const struct sheaf__sum *sum) {
    uint64_t h = (uint64_t)(uintptr_t)sum->block[0], x;
    const char *p = (const char *)records;
    for (size_t at = 0; at + sizeof x <= (size_t)n * sizeof *records; at += sizeof x) {
        memcpy(&x, p + at, sizeof x);
        h = sheaf__mix(h, x);
    }
    return h;
}

static void free_replay(struct backend *b, struct replay *r) {
    forget_capture(b, r);
    free(r->records);
    free(r);
}

/* The least recently used of the remembered graphs go until the others and `r` are within bounds. */
static void make_room(struct backend *b, const struct replay *r) {
    for (;;) {
        int oldest = -1, nodes = 0;
        for (int i = 0; i < b->n_replays; i++) {
            nodes += b->replays[i]->n_records;
            if (b->replays[i] != r &&
                (oldest < 0 || b->replays[i]->used < b->replays[oldest]->used))
                oldest = i;
        }
        if (oldest < 0 || (nodes <= MAX_KEPT_NODES && b->n_replays < MAX_REPLAYS)) return;
        free_replay(b, b->replays[oldest]);
        b->replays[oldest] = b->replays[--b->n_replays];
    }
}

static bool keep_records(struct backend *b, struct replay *r, int n_nodes, int n,
                         const struct sheaf__sum *sum) {
    forget_capture(b, r);
    r->refused = false;
    struct record *p = (struct record *)realloc(r->records, (size_t)(n ? n : 1) * sizeof *p);
    if (!p) return false;
    memcpy(p, b->scratch, (size_t)n * sizeof *p);
    r->records = p;
    r->n_records = n;
    r->n_nodes = n_nodes;
    r->sum = *sum;
    r->content = content_of(r->records, n, sum);
    make_room(b, r);
    return true;
}

/* A graph that cannot be captured runs node by node for ever; that is no error. */
static void capture(struct backend *b, struct replay *r, struct nodes nodes) {
    cudaGraph_t graph = NULL;
    r->refused = true;
    if (cudaStreamBeginCapture(b->q.stream, cudaStreamCaptureModeThreadLocal)) {
        cudaGetLastError();
        return;
    }
    const enum sheaf_status st = launch_all(b, nodes);
    const cudaError_t e = cudaStreamEndCapture(b->q.stream, &graph);
    if (!st && !e && graph && !cudaGraphInstantiate(&r->exec, graph, 0)) {
        r->refused = false;
        b->q.counts.captured++;
    } else {
        r->exec = NULL;
    }
    if (graph) cudaGraphDestroy(graph);
    cudaGetLastError();
    sheaf_clear_error();
}
static void capture_counted(struct backend *b, struct replay *r, struct nodes nodes) {
    capture(b, r, nodes);
    b->q.counts.refused += r->refused;
}

/* By the graph's version, without a look at its nodes. */
static bool same_version(const struct backend *b, const struct replay *r, struct nodes nodes) {
    return nodes.version && r->version == nodes.version && r->n_nodes == nodes.n &&
           !memcmp(&r->sum, &b->q.sum, sizeof r->sum);
}

/* Once as it is, then captured, then replayed. */
static enum sheaf_status run_with(struct backend *b, struct replay *r, struct nodes nodes) {
    const bool known = same_version(b, r, nodes);
    const int n = known ? r->n_records : take_records(b, nodes);
    const struct sheaf__sum sum = b->q.sum; /* submitting it clears it */
    if (!n) return SHEAF_STATUS_SUCCESS;    /* nothing computes: the sum stays kept for what does */
    if (n < 0 || (!known && !same_records(b, r, nodes.n, n))) {
        enum sheaf_status st = prepare(b, nodes);
        if (!st) st = launch_nodes(b, nodes);
        if (!st && n >= 0 && keep_records(b, r, nodes.n, n, &sum)) r->version = nodes.version;
        return st;
    }
    r->version = nodes.version;
    if (!r->exec && !r->refused) {
        if (b->between_runs)
            set_waits(b, r, nodes);
        else
            capture_counted(b, r, nodes);
    }
    b->q.sum = sum;
    if (!r->exec) return launch_nodes(b, nodes);
    memset(&b->q.sum, 0, sizeof b->q.sum);
    const cudaError_t e = cudaGraphLaunch(r->exec, b->q.stream);
    b->q.counts.replayed += !e;
    return e ? sheaf__cuda_error(b->device->name, e, "starting a captured graph of %d nodes",
                                 nodes.n)
             : SHEAF_STATUS_SUCCESS;
}

/* A graph that was built again, with another uid, has the same records if it lies in the same
 * memory, as a context that is filled anew makes it. */
static struct replay *replay_of_content(struct backend *b, struct nodes nodes) {
    const int n = take_records(b, nodes);
    if (n < 0) return NULL;
    const uint64_t content = content_of(b->scratch, n, &b->q.sum);
    for (int i = 0; i < b->n_replays; i++) {
        struct replay *r = b->replays[i];
        if (r->content == content && same_records(b, r, nodes.n, n)) return r;
    }
    return NULL;
}

static struct replay *replay_of(struct backend *b, uint64_t uid, struct nodes nodes) {
    for (int i = 0; i < b->n_replays; i++)
        if (b->replays[i]->uid == uid) return b->replays[i];
    struct replay *r = replay_of_content(b, nodes);
    if (!r) {
        make_room(b, NULL);
        if (!(r = (struct replay *)calloc(1, sizeof *r))) return NULL;
        b->replays[b->n_replays++] = r;
    }
    r->uid = uid;
    return r;
}

static enum sheaf_status run_nodes(struct backend *b, struct nodes nodes, uint64_t uid) {
    enum sheaf_status st = use_device(b);
    if (st) return st;
    /* members on one GPU add blocks of two places by turns: a record for each */
    const uint64_t key = sheaf__mix(uid, (uint64_t)(uintptr_t)b->q.sum.block[0]);
    struct replay *r = b->graphs && uid && nodes.n >= MIN_NODES ? replay_of(b, key, nodes) : NULL;
    if (r) {
        r->used = ++b->clock;
        return run_with(b, r, nodes);
    }
    st = prepare(b, nodes);
    return st ? st : launch_nodes(b, nodes);
}

static enum sheaf_status graph_reserve(sheaf_backend_t base, struct sheaf_cgraph *graph) {
    const struct nodes nodes = {graph->nodes, graph->n_nodes, 0};
    struct backend *b = backend_of(base);
    const enum sheaf_status st = use_device(b);
    if (st) return st;
    const cudaError_t e = cudaStreamSynchronize(b->q.stream); /* so that old memory goes now */
    return e ? sheaf__cuda_error(b->device->name, e, "waiting for the queue") : prepare(b, nodes);
}

void sheaf__cuda_backend_capture(sheaf_backend_t base, bool now) {
    struct backend *b = backend_of(base);
    b->between_runs = true;
    if ((!b->n_waiting && !b->n_gone) || cudaSetDevice(b->device->ordinal)) return;
    free_gone(b);
    for (int i = 0; i < b->n_replays && b->n_waiting; i++) {
        struct replay *r = b->replays[i];
        const struct nodes nodes = r->waits;
        set_waits(b, r, NONE);
        if (!now || !nodes.n) continue;
        b->q.sum = r->sum; /* as in the run */
        capture_counted(b, r, nodes);
        memset(&b->q.sum, 0, sizeof b->q.sum);
    }
}

static enum sheaf_status graph_compute_async(sheaf_backend_t base, struct sheaf_cgraph *graph) {
    const struct nodes nodes = {graph->nodes, graph->n_nodes, graph->version};
    return run_nodes(backend_of(base), nodes, graph->uid);
}

/* Before anything but a graph. */
static enum sheaf_status submit_sum(struct backend *b) {
    if (!b->q.sum.n_blocks) return SHEAF_STATUS_SUCCESS;
    const enum sheaf_status st = use_device(b);
    return st ? st : sheaf__cuda_launch_sum(&b->q);
}

enum sheaf_status sheaf__cuda_backend_sum(sheaf_backend_t base, const struct sheaf__sum *sum) {
    struct backend *b = backend_of(base);
    const enum sheaf_status st = submit_sum(b);
    if (st || !sum) return st;
    b->q.sum = *sum;
    return sum->n ? st : submit_sum(b);
}

/* The text of a bad id; forgets it. The node is alive: graphs stay until the queue was waited for.
 */
static enum sheaf_status take_fault(struct backend *b) {
    const Fault f = *b->fault;
    if (!f.node) return SHEAF_STATUS_SUCCESS;
    b->fault->node = 0;
    b->fault->id = 0;
    const struct sheaf_tensor *t = (const struct sheaf_tensor *)(uintptr_t)f.node;
    const int64_t extent = t->op_params[SHEAF_OP_PARAM_EXTENT];
    const char *what = "row";
    int64_t n = t->src[0]->ne[1];
    switch (t->op) {
    case SHEAF_OP_MUL_MAT_ID:
        what = "expert";
        n = extent ? extent : t->src[0]->ne[2];
        break;
    case SHEAF_OP_ADD_ID:
        what = "expert";
        n = extent ? extent : t->src[1]->ne[1];
        break;
    case SHEAF_OP_SSM_SCAN:
        what = "state";
        n = t->src[0]->ne[3];
        break;
    case SHEAF_OP_SET_ROWS:
        n = t->ne[1];
        break;
    default:
        if (extent) n = extent;
    }
    return sheaf_set_error(SHEAF_STATUS_INVALID, "%s: %s '%s': %s %lld is outside [0, %lld)",
                           b->device->name, sheaf_op_name(t->op), t->name, what, f.id,
                           (long long)n);
}

static enum sheaf_status synchronize(sheaf_backend_t base) {
    struct backend *b = backend_of(base);
    const enum sheaf_status st = submit_sum(b);
    if (st) return st;
    const cudaError_t e = cudaStreamSynchronize(b->q.stream);
    if (e) return sheaf__cuda_error(b->device->name, e, "waiting for what was submitted");
    free_retired(b);
    return take_fault(b);
}

static enum sheaf_status graph_compute(sheaf_backend_t base, struct sheaf_cgraph *graph) {
    enum sheaf_status st = graph_compute_async(base, graph);
    if (!st) return synchronize(base);
    synchronize(base); /* nothing of it runs on while the caller reads the error */
    return st;
}

/* ---- plans ---- */

static struct plan *plan_of(sheaf_backend_graph_plan_t p) { return (struct plan *)(void *)p; }

static void plan_free(sheaf_backend_t base, sheaf_backend_graph_plan_t opaque) {
    struct plan *p = plan_of(opaque);
    struct backend *b = backend_of(base);
    /* a captured graph that runs is freed by the driver once it is done */
    for (struct plan **at = &b->plans; *at; at = &(*at)->next) {
        if (*at == p) {
            *at = p->next;
            break;
        }
    }
    forget_capture(b, &p->replay);
    free(p->replay.records);
    free(p->nodes);
    free(p);
}

static enum sheaf_status plan_update(sheaf_backend_t base, sheaf_backend_graph_plan_t opaque,
                                     const struct sheaf_cgraph *graph) {
    struct backend *b = backend_of(base);
    struct plan *p = plan_of(opaque);
    const struct nodes nodes = {graph->nodes, graph->n_nodes, 0};
    enum sheaf_status st = use_device(b);
    if (!st) st = prepare(b, nodes);
    if (st) return st;
    const size_t n = graph->n_nodes > 0 ? (size_t)graph->n_nodes : 1;
    struct sheaf_tensor **list = (struct sheaf_tensor **)malloc(n * sizeof *list);
    if (!list)
        return sheaf_set_error(SHEAF_STATUS_ALLOC_FAILED, "%s: no memory for a plan",
                               b->device->name);
    memcpy(list, graph->nodes, (size_t)graph->n_nodes * sizeof *list);
    free(p->nodes);
    p->nodes = list;
    p->n = graph->n_nodes;
    return SHEAF_STATUS_SUCCESS;
}

static enum sheaf_status plan_create(sheaf_backend_t base, const struct sheaf_cgraph *graph,
                                     sheaf_backend_graph_plan_t *out) {
    struct plan *p = (struct plan *)calloc(1, sizeof *p);
    struct backend *b = backend_of(base);
    if (!p)
        return sheaf_set_error(SHEAF_STATUS_ALLOC_FAILED, "%s: no memory for a plan",
                               b->device->name);
    p->next = b->plans;
    b->plans = p;
    sheaf_backend_graph_plan_t opaque = (sheaf_backend_graph_plan_t)(void *)p;
    const enum sheaf_status st = plan_update(base, opaque, graph);
    if (st) {
        plan_free(base, opaque);
    } else {
        *out = opaque;
    }
    return st;
}

static enum sheaf_status plan_compute(sheaf_backend_t base, sheaf_backend_graph_plan_t opaque) {
    struct backend *b = backend_of(base);
    struct plan *p = plan_of(opaque);
    const struct nodes nodes = {p->nodes, p->n, 0};
    enum sheaf_status st = use_device(b);
    if (!st) st = b->graphs ? run_with(b, &p->replay, nodes) : prepare(b, nodes);
    if (!st && !b->graphs) st = launch_nodes(b, nodes);
    if (!st) return synchronize(base);
    synchronize(base);
    return st;
}

/* ---- transfers ---- */

static enum sheaf_status move_async(struct backend *b, void *to, const void *from, size_t size,
                                    cudaMemcpyKind kind, const char *what, const char *name) {
    enum sheaf_status st = use_device(b);
    if (!st) st = submit_sum(b);
    if (st) return st;
    const cudaError_t e = cudaMemcpyAsync(to, from, size, kind, b->q.stream);
    return e ? sheaf__cuda_error(b->device->name, e, "%s '%s' (%zu bytes)", what, name, size)
             : SHEAF_STATUS_SUCCESS;
}

static enum sheaf_status set_tensor_async(sheaf_backend_t base, struct sheaf_tensor *t,
                                          const void *data, size_t offset, size_t size) {
    return move_async(backend_of(base), (char *)t->data + offset, data, size,
                      cudaMemcpyHostToDevice, "writing", t->name);
}

static enum sheaf_status get_tensor_async(sheaf_backend_t base, const struct sheaf_tensor *t,
                                          void *data, size_t offset, size_t size) {
    return move_async(backend_of(base), data, (const char *)t->data + offset, size,
                      cudaMemcpyDeviceToHost, "reading", t->name);
}

static enum sheaf_status set_tensors(sheaf_backend_t base, const struct sheaf_tensor_write *writes,
                                     size_t n) {
    struct backend *b = backend_of(base);
    bool done = false;
    enum sheaf_status st = use_device(b);
    if (!st) st = submit_sum(b);
    if (!st) st = sheaf__cuda_inputs_write(&b->inputs, &b->q, writes, n, &done);
    if (st || done) return st;
    st = synchronize(base);
    for (size_t i = 0; i < n && !st; i++)
        st = sheaf_backend_tensor_set(writes[i].tensor, writes[i].data, 0,
                                      sheaf_nbytes(writes[i].tensor));
    return st;
}

static const struct sheaf_backend_i *backend_iface(void);

/* In the queue of the source; that of the target waits for it. */
static enum sheaf_status cpy_tensor_async(sheaf_backend_t base_src, sheaf_backend_t base_dst,
                                          struct sheaf_tensor *src, struct sheaf_tensor *dst,
                                          bool *done) {
    *done = false;
    if (base_src->iface != backend_iface() || !sheaf_is_contiguous(src))
        return SHEAF_STATUS_SUCCESS;
    struct backend *from = backend_of(base_src), *to = backend_of(base_dst);
    if (sheaf__cuda_device_of_tensor(src) != from->device ||
        sheaf__cuda_device_of_tensor(dst) != to->device)
        return SHEAF_STATUS_SUCCESS;
    const size_t size = sheaf_nbytes(src);
    enum sheaf_status st = submit_sum(to);
    if (!st) st = use_device(from);
    if (!st) st = submit_sum(from);
    if (st) return st;
    cudaError_t e =
        from->device->ordinal == to->device->ordinal
            ? cudaMemcpyAsync(dst->data, src->data, size, cudaMemcpyDeviceToDevice, from->q.stream)
            : cudaMemcpyPeerAsync(dst->data, to->device->ordinal, src->data, from->device->ordinal,
                                  size, from->q.stream);
    if (!e && from != to) e = cudaEventRecord(from->copied, from->q.stream);
    if (!e && from != to) e = cudaStreamWaitEvent(to->q.stream, from->copied, 0);
    if (e)
        return sheaf__cuda_error(from->device->name, e, "copying '%s' to %s", src->name,
                                 to->device->name);
    *done = true;
    return SHEAF_STATUS_SUCCESS;
}

/* ---- events ---- */

enum sheaf_status sheaf__cuda_event_new(sheaf_backend_dev_t dev, sheaf_backend_event_t *out) {
    const struct sheaf__cuda_device *d = (const struct sheaf__cuda_device *)dev->context;
    struct event *x = (struct event *)calloc(1, sizeof *x);
    *out = NULL;
    if (!x)
        return sheaf_set_error(SHEAF_STATUS_ALLOC_FAILED, "%s: no memory for an event", d->name);
    cudaError_t e = cudaSetDevice(d->ordinal);
    if (!e) e = cudaEventCreateWithFlags(&x->event, cudaEventDisableTiming);
    if (e) {
        free(x);
        return sheaf__cuda_error(d->name, e, "making an event");
    }
    *out = &x->base;
    return SHEAF_STATUS_SUCCESS;
}

void sheaf__cuda_event_free(sheaf_backend_dev_t dev, sheaf_backend_event_t event) {
    struct event *x = (struct event *)event;
    (void)dev;
    cudaEventDestroy(x->event); /* what waits for it still does */
    free(x);
}

enum sheaf_status sheaf__cuda_event_synchronize(sheaf_backend_dev_t dev,
                                                sheaf_backend_event_t event) {
    const cudaError_t e = cudaEventSynchronize(((struct event *)event)->event);
    return e ? sheaf__cuda_error(((const struct sheaf__cuda_device *)dev->context)->name, e,
                                 "waiting for an event")
             : SHEAF_STATUS_SUCCESS;
}

static enum sheaf_status event_record(sheaf_backend_t base, sheaf_backend_event_t event) {
    struct backend *b = backend_of(base);
    enum sheaf_status st = use_device(b);
    if (!st) st = submit_sum(b);
    if (st) return st;
    const cudaError_t e = cudaEventRecord(((struct event *)event)->event, b->q.stream);
    return e ? sheaf__cuda_error(b->device->name, e, "recording an event") : SHEAF_STATUS_SUCCESS;
}

static enum sheaf_status event_wait(sheaf_backend_t base, sheaf_backend_event_t event) {
    struct backend *b = backend_of(base);
    enum sheaf_status st = use_device(b);
    if (!st) st = submit_sum(b);
    if (st) return st;
    const cudaError_t e = cudaStreamWaitEvent(b->q.stream, ((struct event *)event)->event, 0);
    return e ? sheaf__cuda_error(b->device->name, e, "making the queue wait for an event")
             : SHEAF_STATUS_SUCCESS;
}

/* ---- life ---- */

static const char *backend_name(sheaf_backend_t base) { return backend_of(base)->device->name; }

static const uint8_t *backend_guid(sheaf_backend_t base) {
    static const uint8_t guid[16] = {0x73, 0x68, 0x65, 0x61, 0x66, 0x2d, 0x43, 0x55,
                                     0x44, 0x41, 0x8b, 0x52, 0xe0, 0x3d, 0x97, 0x61};
    (void)base;
    return guid;
}

/* A line that scripts/gpu-check reads. Backends that computed nothing print none. */
static void say_counts(const struct backend *b) {
    const struct sheaf__cuda_counts *c = &b->q.counts;
    if (!b->says_counts || !(c->replayed + c->node_by_node)) return;
    sheaf_log(
        SHEAF_LOG_DEBUG,
        "%s: graphs: %llu captured, %llu replayed, %llu refused, %llu node by node; products as "
        "launched: %llu of few columns, %llu with weights ahead, %llu by cuBLASLt, %llu in tiles",
        b->device->name, (unsigned long long)c->captured, (unsigned long long)c->replayed,
        (unsigned long long)c->refused, (unsigned long long)c->node_by_node,
        (unsigned long long)c->few, (unsigned long long)c->early, (unsigned long long)c->blas,
        (unsigned long long)c->tiles);
}

static void backend_free(sheaf_backend_t base) {
    struct backend *b = backend_of(base);
    say_counts(b);
    cudaSetDevice(b->device->ordinal);
    if (b->q.stream) cudaStreamSynchronize(b->q.stream);
    for (int i = 0; i < b->n_replays; i++) free_replay(b, b->replays[i]);
    free_gone(b);
    sheaf__cuda_blas_free(b->q.blas);
    sheaf__cuda_times_free(b->times, b->device->name);
    sheaf__cuda_inputs_free(b->inputs);
    free_retired(b);
    if (b->q.work) cudaFree(b->q.work);
    if (b->fault) cudaFreeHost(b->fault);
    if (b->copied) cudaEventDestroy(b->copied);
    if (b->q.stream) cudaStreamDestroy(b->q.stream);
    free(b->scratch);
    free(b->gone);
    free(b);
}

static struct sheaf_backend_i make_backend_i() {
    struct sheaf_backend_i i;
    memset(&i, 0, sizeof i);
    i.get_name = backend_name;
    i.free = backend_free;
    i.graph_compute = graph_compute;
    i.synchronize = synchronize;
    i.get_guid = backend_guid;
    i.graph_compute_async = graph_compute_async;
    i.set_tensor_async = set_tensor_async;
    i.get_tensor_async = get_tensor_async;
    i.cpy_tensor_async = cpy_tensor_async;
    i.graph_plan_create = plan_create;
    i.graph_plan_free = plan_free;
    i.graph_plan_update = plan_update;
    i.graph_plan_compute = plan_compute;
    i.event_record = event_record;
    i.event_wait = event_wait;
    i.graph_reserve = graph_reserve;
    i.set_tensors = set_tensors;
    return i;
}
static const struct sheaf_backend_i backend_i = make_backend_i();
static const struct sheaf_backend_i *backend_iface(void) { return &backend_i; }

void *sheaf__cuda_backend_stream(sheaf_backend_t backend) {
    return backend && backend->iface == &backend_i ? (void *)backend_of(backend)->q.stream : NULL;
}

/* Switches for finding where a fault or the time comes from: "graphs=0,blas=0" in any order; those
 * of SHEAF_CUDA_PARAMS where the caller gives none. */
enum { GRAPHS, BLAS, FUSE, AHEAD, TIMES, COUNTS, N_SWITCHES };
static enum sheaf_status parse_params(const char *device, const char *params, bool on[N_SWITCHES]) {
    static const char *const names[N_SWITCHES] = {
        "graphs=", "blas=", "fuse=", "ahead=", "times=", "counts="};
    for (int i = 0; i < N_SWITCHES; i++) on[i] = i != TIMES && i != COUNTS;
    while (params && *params) {
        int which = 0;
        while (which < N_SWITCHES && strncmp(params, names[which], strlen(names[which]))) which++;
        const char *value = which < N_SWITCHES ? params + strlen(names[which]) : "";
        if ((*value != '0' && *value != '1') || (value[1] && value[1] != ','))
            return sheaf_set_error(SHEAF_STATUS_INVALID,
                                   "%s: parameters '%s'; they are \"graphs=0|1\" (replay captured "
                                   "graphs), \"blas=0|1\" (use cuBLASLt), \"fuse=0|1\" (several "
                                   "nodes in a kernel), \"ahead=0|1\" (kernels start while others "
                                   "end), \"times=0|1\" (print the times of launches) and "
                                   "\"counts=0|1\" (print how graphs and products ran), joined by "
                                   "commas",
                                   device, params);
        on[which] = *value == '1';
        params = value + 1 + (value[1] == ',');
    }
    return SHEAF_STATUS_SUCCESS;
}

enum sheaf_status sheaf__cuda_backend_new(struct sheaf__cuda_device *device, const char *params,
                                          sheaf_backend_t *out) {
    bool on[N_SWITCHES];
    void *fault = NULL, *fault_device = NULL;
    *out = NULL;
    if (!params || !*params) params = sheaf_setting_value("SHEAF_CUDA_PARAMS");
    enum sheaf_status st = parse_params(device->name, params, on);
    if (st) return st;
    struct backend *b = (struct backend *)calloc(1, sizeof *b);
    if (!b) return sheaf_set_error(SHEAF_STATUS_ALLOC_FAILED, "%s: no memory", device->name);
    b->base.iface = &backend_i;
    b->base.device = &device->base;
    b->base.context = b;
    b->device = device;
    b->graphs = on[GRAPHS] && !on[TIMES]; /* a capture has no times of its nodes */
    b->fuse = on[FUSE];
    b->says_counts = on[COUNTS];
    b->q.device = device;
    b->q.ahead =
        on[AHEAD] && !on[TIMES] && device->code >= 90; /* older code does not wait (kernel.cuh) */
    cudaError_t e = sheaf__cuda_use(device);
    if (!e) e = cudaStreamCreateWithFlags(&b->q.stream, cudaStreamNonBlocking);
    if (!e) e = cudaEventCreateWithFlags(&b->copied, cudaEventDisableTiming);
    if (!e)
        e = cudaHostAlloc(&fault, sizeof *b->fault, cudaHostAllocMapped | cudaHostAllocPortable);
    if (!e) {
        memset(fault, 0, sizeof *b->fault);
        b->fault = (Fault *)fault;
        e = cudaHostGetDevicePointer(&fault_device, fault, 0);
        b->q.fault = (Fault *)fault_device;
    }
    if (e) {
        st = sheaf__cuda_error(device->name, e, "starting the device");
        backend_free(&b->base);
        return st;
    }
    if (on[TIMES]) b->times = sheaf__cuda_times_new();
    sheaf__cuda_reach_peers(device);
    if (on[BLAS]) sheaf__cuda_blas_new(device, &b->q.blas);
    *out = &b->base;
    return SHEAF_STATUS_SUCCESS;
}
