/* See graphs.h.
 *
 * A graph that comes again with the same nodes, shapes, parameters and addresses is captured as a
 * CUDA graph and replayed from then on: one submission for all of it. Its description at the
 * capture is kept as bytes (a record a node) and compared each time, so no change is missed, unless
 * the graph has a version (tensor/graph.h): it says the same at once.
 * Captured graphs hold addresses of the work memory: when that moves they are forgotten. Where a caller asks for
 * captures between runs (sheaf__cuda_graphs_capture), captured graphs are made and ended only there.
 *
 * A sum of blocks (backend/sum.h) is kept for the graph that comes next and is part of its record. */
#include "cuda/graphs.h"

#include <stdlib.h>

#include "base/array.h"
#include "base/hash.h"

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

struct replay {
    uint64_t uid;
    uint64_t content;       /* a hash of the records and the sum */
    int n_nodes, n_records; /* views leave no record */
    struct record *records;
    uint64_t version;      /* of the graph that the records are of, 0: none (tensor/graph.h) */
    struct sheaf__sum sum; /* before the nodes */
    cudaGraphExec_t exec;  /* NULL: seen once, or not to be captured */
    bool refused;
    struct sheaf__cuda_nodes waits; /* n > 0: they ran, and are to be captured before they change */
    uint64_t used;      /* to find the least recently used */
};

struct sheaf__cuda_plan {
    struct sheaf__cuda_plan *next;
    struct sheaf_tensor **nodes;
    int n;
    struct replay replay;
};

struct sheaf__cuda_graphs {
    struct sheaf__cuda_queue *q;
    bool replays_on, fuse;
    struct sheaf__cuda_times *times; /* NULL: not asked for */
    struct record *scratch;
    size_t scratch_cap;
    struct replay *replays[MAX_REPLAYS];
    int n_replays, n_waiting;
    bool between_runs;     /* captured graphs are made and ended in sheaf__cuda_graphs_capture */
    cudaGraphExec_t *gone; /* [n_gone] to be ended there */
    size_t n_gone, cap_gone;
    char *retired[MAX_RETIRED]; /* freed when the queue is empty */
    int n_retired;
    uint64_t clock;
    struct sheaf__cuda_plan *plans;
};

static bool computes(const struct sheaf_tensor *node) {
    return !sheaf_is_empty(node) && ((unsigned)node->op >= SHEAF_OP_COUNT ||
                                     sheaf_op_get_cost(node->op) != SHEAF_OP_COST_FREE);
}

/* ---- what is forgotten ---- */

static void end_capture(struct sheaf__cuda_graphs *g, cudaGraphExec_t exec) {
    if (g->between_runs && sheaf__grow(&g->gone, &g->cap_gone, g->n_gone + 1, sizeof *g->gone)) {
        g->gone[g->n_gone++] = exec;
    } else {
        cudaGraphExecDestroy(exec);
    }
}

static void free_gone(struct sheaf__cuda_graphs *g) {
    for (size_t i = 0; i < g->n_gone; i++) cudaGraphExecDestroy(g->gone[i]);
    g->n_gone = 0;
}

/* nodes: of the run that has just been submitted; without nodes it waits no more. */
static void set_waits(struct sheaf__cuda_graphs *g, struct replay *r, struct sheaf__cuda_nodes nodes) {
    g->n_waiting += (nodes.n > 0) - (r->waits.n > 0);
    r->waits = nodes;
}
static const struct sheaf__cuda_nodes NONE = {NULL, 0, 0};

static void forget_capture(struct sheaf__cuda_graphs *g, struct replay *r) {
    if (r->exec) end_capture(g, r->exec);
    set_waits(g, r, NONE);
    r->exec = NULL;
    r->n_nodes = 0; /* matches nothing */
    r->version = 0;
}

static void forget_all(struct sheaf__cuda_graphs *g) {
    for (int i = 0; i < g->n_replays; i++) forget_capture(g, g->replays[i]);
    for (struct sheaf__cuda_plan *p = g->plans; p; p = p->next) forget_capture(g, &p->replay);
}

/* ---- work memory ---- */

void sheaf__cuda_graphs_queue_is_empty(struct sheaf__cuda_graphs *g) {
    for (int i = 0; i < g->n_retired; i++) cudaFree(g->retired[i]);
    g->n_retired = 0;
}

/* A queue may use the old memory, and may hold a collective whose peer is dead, for which no
 * call may wait without a deadline: the memory stays until the queue is found empty.
 * It grows by a quarter at least, so all that was left is five times the last at most. */
static void retire_work(struct sheaf__cuda_graphs *g) {
    forget_all(g);
    if (g->n_retired == MAX_RETIRED) { /* 1.25^32 is 1262: no run gets here */
        cudaStreamSynchronize(g->q->stream);
        sheaf__cuda_graphs_queue_is_empty(g);
    }
    if (g->q->work) g->retired[g->n_retired++] = g->q->work;
    g->q->work = NULL;
    g->q->work_size = 0;
    const cudaError_t e = g->n_retired ? cudaStreamQuery(g->q->stream) : cudaErrorNotReady;
    if (e == cudaSuccess) sheaf__cuda_graphs_queue_is_empty(g);
    if (e == cudaErrorNotReady) cudaGetLastError(); /* or the next launch would find it */
}

static enum sheaf_status reserve_work(struct sheaf__cuda_graphs *g, size_t need) {
    if (need <= g->q->work_size) return SHEAF_STATUS_SUCCESS;
    retire_work(g);
    need = sheaf__align_up(need + need / 4, (size_t)1 << 20); /* room to grow */
    void *p = NULL;
    const cudaError_t e = cudaMalloc(&p, need);
    if (e) return sheaf__cuda_error(g->q->device->name, e, "%zu bytes of work memory", need);
    g->q->work = (char *)p;
    g->q->work_size = need;
    return SHEAF_STATUS_SUCCESS;
}

enum sheaf_status sheaf__cuda_graphs_reserve(struct sheaf__cuda_graphs *g, struct sheaf__cuda_nodes nodes) {
    size_t need = 0;
    for (int i = 0; i < nodes.n; i++) {
        const struct sheaf_tensor *node = nodes.node[i];
        if (!computes(node)) continue;
        const enum sheaf_status st = sheaf__cuda_check_node(g->q->device, node);
        if (st) return st;
        const struct sheaf__cuda_op *op = sheaf__cuda_op(node->op);
        const size_t n = op->work_size ? op->work_size(g->q, node) : 0;
        if (n > need) need = n;
    }
    return reserve_work(g, need);
}

/* ---- launches ---- */

/* The nodes from i on that compute something, at most `most`. */
static int look_ahead(struct sheaf__cuda_nodes nodes, int i, const struct sheaf_tensor **next, int most) {
    int n = 0;
    for (; i < nodes.n && n < most; i++)
        if (computes(nodes.node[i])) next[n++] = nodes.node[i];
    return n;
}

/* After a node: are the rounded columns in the scratch still those of their tensor? MUL_MAT sees to
 * them itself, unless it writes to that tensor. */
static void keep_rounded(struct sheaf__cuda_graphs *g, const struct sheaf_tensor *node) {
    const struct sheaf_tensor *x = g->q->rounded;
    if (!x) return;
    const struct sheaf__cuda_op *op = sheaf__cuda_op(node->op);
    const bool scratch = op->work_size && op->launch != sheaf__cuda_op_MUL_MAT.launch &&
                         op->work_size(g->q, node) > 0;
    if (!g->fuse || !sheaf__cuda_disjoint(node, x) || scratch) g->q->rounded = NULL;
}

static enum sheaf_status launch_all(struct sheaf__cuda_graphs *g, struct sheaf__cuda_nodes nodes) {
    enum sheaf_status st = SHEAF_STATUS_SUCCESS;
    g->q->rounded = g->q->rounds = NULL;
    for (int i = 0; i < nodes.n && !st; i++) {
        const struct sheaf_tensor *next[SHEAF__CUDA_TOGETHER];
        if (!computes(nodes.node[i])) continue;
        const int n = g->fuse ? look_ahead(nodes, i, next, SHEAF__CUDA_TOGETHER) : 0;
        const int first = i;
        int together = 0;
        if (g->times) sheaf__cuda_times_begin(g->times, g->q->stream);
        if (g->q->sum.n_blocks) {
            together = n ? sheaf__cuda_launch_chain(g->q, next, n, &st) : 0;
            if (!together) st = sheaf__cuda_launch_sum(g->q);
            if (st) break;
        }
        if (n && !together) together = sheaf__cuda_launch_products(g->q, next, n, &st);
        if (n && !together) together = sheaf__cuda_launch_glu_rounded(g->q, next, n, &st);
        if (n && !together) together = sheaf__cuda_launch_attention(g->q, next, n, &st);
        if (n && !together) together = sheaf__cuda_launch_turn(g->q, next, n, &st);
        if (n && !together) together = sheaf__cuda_launch_chain(g->q, next, n, &st);
        if (!together) st = sheaf__cuda_op(nodes.node[i]->op)->launch(g->q, nodes.node[i]);
        keep_rounded(g, nodes.node[i]);
        for (int left = together - 1; left > 0;) {
            if (!computes(nodes.node[++i])) continue;
            keep_rounded(g, nodes.node[i]);
            left--;
        }
        if (g->times)
            sheaf__cuda_times_end(g->times, g->q->stream, nodes.node + first, i - first + 1);
        if (!g->q->rounds) continue;
        g->q->rounded = g->q->rounds;
        g->q->rounded_type = g->q->rounds_type;
        g->q->rounds = NULL;
    }
    return st;
}

static enum sheaf_status launch_nodes(struct sheaf__cuda_graphs *g, struct sheaf__cuda_nodes nodes) {
    g->q->counts.node_by_node++;
    return launch_all(g, nodes);
}

/* ---- replays ---- */

static bool grow_scratch(struct sheaf__cuda_graphs *g, int n) {
    return sheaf__grow(&g->scratch, &g->scratch_cap, (size_t)n, sizeof *g->scratch);
}

/* Into g->scratch; how many. -1 if a node has more operands than a record. */
static int take_records(struct sheaf__cuda_graphs *g, struct sheaf__cuda_nodes nodes) {
    int n = 0;
    if (!grow_scratch(g, nodes.n)) return -1;
    for (int i = 0; i < nodes.n; i++) {
        const struct sheaf_tensor *node = nodes.node[i];
        if (!computes(node)) continue;
        struct record *r = &g->scratch[n++];
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

static bool same_records(const struct sheaf__cuda_graphs *g, const struct replay *r, int n_nodes, int n) {
    return r->n_nodes == n_nodes && r->n_records == n &&
           !memcmp(&r->sum, &g->q->sum, sizeof r->sum) &&
           !memcmp(r->records, g->scratch, (size_t)n * sizeof *r->records);
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

static void free_replay(struct sheaf__cuda_graphs *g, struct replay *r) {
    forget_capture(g, r);
    free(r->records);
    free(r);
}

/* The least recently used of the remembered graphs go until the others and `r` are within bounds. */
static void make_room(struct sheaf__cuda_graphs *g, const struct replay *r) {
    for (;;) {
        int oldest = -1, nodes = 0;
        for (int i = 0; i < g->n_replays; i++) {
            nodes += g->replays[i]->n_records;
            if (g->replays[i] != r &&
                (oldest < 0 || g->replays[i]->used < g->replays[oldest]->used))
                oldest = i;
        }
        if (oldest < 0 || (nodes <= MAX_KEPT_NODES && g->n_replays < MAX_REPLAYS)) return;
        free_replay(g, g->replays[oldest]);
        g->replays[oldest] = g->replays[--g->n_replays];
    }
}

static bool keep_records(struct sheaf__cuda_graphs *g, struct replay *r, int n_nodes, int n,
                         const struct sheaf__sum *sum) {
    forget_capture(g, r);
    r->refused = false;
    struct record *p = (struct record *)realloc(r->records, (size_t)(n ? n : 1) * sizeof *p);
    if (!p) return false;
    memcpy(p, g->scratch, (size_t)n * sizeof *p);
    r->records = p;
    r->n_records = n;
    r->n_nodes = n_nodes;
    r->sum = *sum;
    r->content = content_of(r->records, n, sum);
    make_room(g, r);
    return true;
}

/* A graph that cannot be captured runs node by node for ever; that is no error. */
static void capture(struct sheaf__cuda_graphs *g, struct replay *r, struct sheaf__cuda_nodes nodes) {
    cudaGraph_t graph = NULL;
    r->refused = true;
    if (cudaStreamBeginCapture(g->q->stream, cudaStreamCaptureModeThreadLocal)) {
        cudaGetLastError();
        return;
    }
    const enum sheaf_status st = launch_all(g, nodes);
    const cudaError_t e = cudaStreamEndCapture(g->q->stream, &graph);
    if (!st && !e && graph && !cudaGraphInstantiate(&r->exec, graph, 0)) {
        r->refused = false;
        g->q->counts.captured++;
    } else {
        r->exec = NULL;
    }
    if (graph) cudaGraphDestroy(graph);
    cudaGetLastError();
    sheaf_clear_error();
}
static void capture_counted(struct sheaf__cuda_graphs *g, struct replay *r, struct sheaf__cuda_nodes nodes) {
    capture(g, r, nodes);
    g->q->counts.refused += r->refused;
}

/* By the graph's version, without a look at its nodes. */
static bool same_version(const struct sheaf__cuda_graphs *g, const struct replay *r, struct sheaf__cuda_nodes nodes) {
    return nodes.version && r->version == nodes.version && r->n_nodes == nodes.n &&
           !memcmp(&r->sum, &g->q->sum, sizeof r->sum);
}

/* Once as it is, then captured, then replayed. */
static enum sheaf_status run_with(struct sheaf__cuda_graphs *g, struct replay *r, struct sheaf__cuda_nodes nodes) {
    const bool known = same_version(g, r, nodes);
    const int n = known ? r->n_records : take_records(g, nodes);
    const struct sheaf__sum sum = g->q->sum; /* submitting it clears it */
    if (!n) return SHEAF_STATUS_SUCCESS;    /* nothing computes: the sum stays kept for what does */
    if (n < 0 || (!known && !same_records(g, r, nodes.n, n))) {
        enum sheaf_status st = sheaf__cuda_graphs_reserve(g, nodes);
        if (!st) st = launch_nodes(g, nodes);
        if (!st && n >= 0 && keep_records(g, r, nodes.n, n, &sum)) r->version = nodes.version;
        return st;
    }
    r->version = nodes.version;
    if (!r->exec && !r->refused) {
        if (g->between_runs)
            set_waits(g, r, nodes);
        else
            capture_counted(g, r, nodes);
    }
    g->q->sum = sum;
    if (!r->exec) return launch_nodes(g, nodes);
    memset(&g->q->sum, 0, sizeof g->q->sum);
    const cudaError_t e = cudaGraphLaunch(r->exec, g->q->stream);
    g->q->counts.replayed += !e;
    return e ? sheaf__cuda_error(g->q->device->name, e, "starting a captured graph of %d nodes",
                                 nodes.n)
             : SHEAF_STATUS_SUCCESS;
}

/* A graph that was built again, with another uid, has the same records if it lies in the same
 * memory, as a context that is filled anew makes it. */
static struct replay *replay_of_content(struct sheaf__cuda_graphs *g, struct sheaf__cuda_nodes nodes) {
    const int n = take_records(g, nodes);
    if (n < 0) return NULL;
    const uint64_t content = content_of(g->scratch, n, &g->q->sum);
    for (int i = 0; i < g->n_replays; i++) {
        struct replay *r = g->replays[i];
        if (r->content == content && same_records(g, r, nodes.n, n)) return r;
    }
    return NULL;
}

static struct replay *replay_of(struct sheaf__cuda_graphs *g, uint64_t uid, struct sheaf__cuda_nodes nodes) {
    for (int i = 0; i < g->n_replays; i++)
        if (g->replays[i]->uid == uid) return g->replays[i];
    struct replay *r = replay_of_content(g, nodes);
    if (!r) {
        make_room(g, NULL);
        if (!(r = (struct replay *)calloc(1, sizeof *r))) return NULL;
        g->replays[g->n_replays++] = r;
    }
    r->uid = uid;
    return r;
}

enum sheaf_status sheaf__cuda_graphs_run(struct sheaf__cuda_graphs *g,
                                         struct sheaf__cuda_nodes nodes, uint64_t uid) {
    /* members on one GPU add blocks of two places by turns: a record for each */
    const uint64_t key = sheaf__mix(uid, (uint64_t)(uintptr_t)g->q->sum.block[0]);
    struct replay *r = g->replays_on && uid && nodes.n >= MIN_NODES ? replay_of(g, key, nodes) : NULL;
    if (r) {
        r->used = ++g->clock;
        return run_with(g, r, nodes);
    }
    const enum sheaf_status st = sheaf__cuda_graphs_reserve(g, nodes);
    return st ? st : launch_nodes(g, nodes);
}

void sheaf__cuda_graphs_capture(struct sheaf__cuda_graphs *g, bool now) {
    g->between_runs = true;
    if ((!g->n_waiting && !g->n_gone) || cudaSetDevice(g->q->device->ordinal)) return;
    free_gone(g);
    for (int i = 0; i < g->n_replays && g->n_waiting; i++) {
        struct replay *r = g->replays[i];
        const struct sheaf__cuda_nodes nodes = r->waits;
        set_waits(g, r, NONE);
        if (!now || !nodes.n) continue;
        g->q->sum = r->sum; /* as in the run */
        capture_counted(g, r, nodes);
        memset(&g->q->sum, 0, sizeof g->q->sum);
    }
}

/* ---- plans ---- */

struct sheaf__cuda_plan *sheaf__cuda_plan_new(struct sheaf__cuda_graphs *g) {
    struct sheaf__cuda_plan *p = (struct sheaf__cuda_plan *)calloc(1, sizeof *p);
    if (!p) return NULL;
    p->next = g->plans;
    g->plans = p;
    return p;
}

void sheaf__cuda_plan_free(struct sheaf__cuda_graphs *g, struct sheaf__cuda_plan *p) {
    /* a captured graph that runs is freed by the driver once it is done */
    for (struct sheaf__cuda_plan **at = &g->plans; *at; at = &(*at)->next) {
        if (*at == p) {
            *at = p->next;
            break;
        }
    }
    forget_capture(g, &p->replay);
    free(p->replay.records);
    free(p->nodes);
    free(p);
}

enum sheaf_status sheaf__cuda_plan_update(struct sheaf__cuda_graphs *g, struct sheaf__cuda_plan *p,
                                          struct sheaf__cuda_nodes nodes) {
    const enum sheaf_status st = sheaf__cuda_graphs_reserve(g, nodes);
    if (st) return st;
    const size_t n = nodes.n > 0 ? (size_t)nodes.n : 1;
    struct sheaf_tensor **list = (struct sheaf_tensor **)malloc(n * sizeof *list);
    if (!list)
        return sheaf_set_error(SHEAF_STATUS_ALLOC_FAILED, "%s: no memory for a plan",
                               g->q->device->name);
    memcpy(list, nodes.node, (size_t)nodes.n * sizeof *list);
    free(p->nodes);
    p->nodes = list;
    p->n = nodes.n;
    return SHEAF_STATUS_SUCCESS;
}

enum sheaf_status sheaf__cuda_plan_run(struct sheaf__cuda_graphs *g, struct sheaf__cuda_plan *p) {
    const struct sheaf__cuda_nodes nodes = {p->nodes, p->n, 0};
    if (g->replays_on) return run_with(g, &p->replay, nodes);
    const enum sheaf_status st = sheaf__cuda_graphs_reserve(g, nodes);
    return st ? st : launch_nodes(g, nodes);
}

/* ---- life ---- */

struct sheaf__cuda_graphs *sheaf__cuda_graphs_new(struct sheaf__cuda_queue *q,
                                                  struct sheaf__cuda_graphs_params params) {
    struct sheaf__cuda_graphs *g = (struct sheaf__cuda_graphs *)calloc(1, sizeof *g);
    if (!g) return NULL;
    g->q = q;
    g->replays_on = params.replays && !params.times; /* a capture has no times of its nodes */
    g->fuse = params.fuse;
    if (params.times) g->times = sheaf__cuda_times_new();
    return g;
}

void sheaf__cuda_graphs_free(struct sheaf__cuda_graphs *g) {
    if (!g) return;
    for (int i = 0; i < g->n_replays; i++) free_replay(g, g->replays[i]);
    free_gone(g);
    sheaf__cuda_times_free(g->times, g->q->device->name);
    sheaf__cuda_graphs_queue_is_empty(g);
    if (g->q->work) cudaFree(g->q->work);
    g->q->work = NULL;
    free(g->scratch);
    free(g->gone);
    free(g);
}
