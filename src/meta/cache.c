/* The programs that a meta backend has compiled, and the memory that they share.
 *
 * Invariant: every rank finds or compiles the same program in the same call, because the key of a
 * program depends on nothing that differs between ranks. */
#include <stdlib.h>

#include "alloc/gallocr.h"
#include "meta/backend.h"
#include "meta/builder.h"
#include "meta/overlap.h"
#include "sheaf/log.h"

/* 64 programs of any size; more if they are small, as those of scheduler splits are. */
enum { MAX_LARGE_PROGRAMS = 64, MAX_PROGRAM_NODES = 1 << 16 };

/* What ranks tell each other of a program. */
struct told {
    uint64_t fingerprint;
    uint64_t n_refused; /* nodes of which a device does not take a slice, and that are cut */
    uint64_t n_copies;  /* that a device does not make */
};

/* Nodes that every member computes whole, since a device refuses their slices. */
struct whole {
    uint8_t *node;     /* [nodes] 1: it is one */
    int n;             /* of them */
    int first, member; /* one of them, and a member whose device refuses its slice */
};

/* Every rank must have planned the same graph before the first of its data move. all [ranks]: what
 * each has told. */
static enum sheaf_status compare_programs(const struct sheaf_cgraph *graph,
                                          const struct meta_program *p, const struct whole *whole,
                                          struct told *all) {
    const int n = sheaf_world_size();
    struct told mine = {.n_copies = p->n_copies};
    for (int i = 0; i < graph->n_nodes; i++) mine.n_refused += p->refused[i] && !whole->node[i];
    all[0] = mine;
    if (n == 1) return SHEAF_STATUS_SUCCESS;
    mine.fingerprint = sheaf__split_plan_fingerprint(p->plan, graph);
    enum sheaf_status st = sheaf_world_all_gather(&mine, sizeof mine, all, "graph fingerprint");
    for (int r = 1; r < n && !st; r++) {
        if (all[r].fingerprint == all[0].fingerprint) continue;
        st = sheaf_set_error(
            SHEAF_STATUS_PEER,
            "graph: rank %d (%s) has another graph than rank 0 (%s): %d nodes here, fingerprints "
            "%016llx and %016llx; start the same program with the same model and options "
            "everywhere",
            r, sheaf_world_host_name(r), sheaf_world_host_name(0), graph->n_nodes,
            (unsigned long long)all[r].fingerprint, (unsigned long long)all[0].fingerprint);
    }
    return st;
}

/* The number of a member of that rank. */
static int member_of(const struct meta_device *dev, int rank, int local) {
    for (int j = 0; j < dev->n_members; j++)
        if (dev->member_rank[j] == rank && !local--) return j;
    return 0; /* not reached: a rank names members of its own */
}

/* Adds the nodes that a device of any rank does not take as slices. */
static enum sheaf_status add_refused(const struct meta_device *dev, const struct meta_program *p,
                                     struct whole *whole) {
    const size_t n = (size_t)p->n_nodes, n_ranks = (size_t)sheaf_world_size();
    uint8_t *all = malloc(n * n_ranks + 1);
    enum sheaf_status st =
        sheaf_world_agree(all ? SHEAF_STATUS_SUCCESS : sheaf__meta_no_memory(), "graph planning");
    if (!st) st = sheaf_world_all_gather(p->refused, n, all, "slices that devices refuse");
    for (size_t i = 0; i < n * n_ranks && !st; i++) {
        if (!all[i] || whole->node[i % n]) continue;
        if (!whole->n++) {
            whole->first = (int)(i % n);
            whole->member = member_of(dev, (int)(i / n), all[i] - 1);
        }
        whole->node[i % n] = 1;
    }
    free(all);
    return st;
}

/* That collectives move for nodes that are whole. */
static int64_t bytes_for(const struct sheaf__split_plan *plan, const struct whole *whole) {
    int64_t bytes = 0;
    for (int s = 0; s < plan->n_steps; s++) {
        const struct sheaf__split_step *step = &plan->steps[s];
        if (step->kind == SHEAF_SPLIT_STEP_COLLECTIVE && whole->node[step->node])
            bytes += step->bytes;
    }
    return bytes;
}

/* Said once a program: such nodes take longer, and printed plans, which are made without devices,
 * do not show them. */
static void log_refused(const struct meta_device *dev, const struct sheaf_cgraph *graph,
                        const struct sheaf__split_plan *plan, const struct whole *whole,
                        uint64_t n_copies) {
    if (sheaf_world_rank() != 0) return;
    if (whole->n) {
        const struct sheaf_tensor *t = graph->nodes[whole->first];
        sheaf_log(
            SHEAF_LOG_INFO,
            "meta: every member computes %d of %d nodes whole, for which %.3f MiB are "
            "gathered, since a device refuses their slices: %s refuses that of node %d, %s '%s'",
            whole->n, graph->n_nodes, (double)bytes_for(plan, whole) / (1 << 20),
            sheaf_backend_dev_name(dev->members[whole->member]), whole->first, sheaf_op_desc(t),
            t->name);
    }
    if (n_copies)
        sheaf_log(SHEAF_LOG_INFO,
                  "meta: %llu copies of a graph of %d nodes go through host memory, since a device "
                  "does not make them",
                  (unsigned long long)n_copies, graph->n_nodes);
}

/* A node that a device does not take as the slice which a plan has for it is whole in the next
 * plan. A node refused even so, or after many plans, fails with words when it is computed. st: of
 * this rank so far. */
static enum sheaf_status plan_program(struct meta_backend *b, const struct sheaf_cgraph *graph,
                                      enum sheaf_status st, struct meta_program **out) {
    enum { MOST_PLANS = 16 };
    struct whole whole = {.node = calloc((size_t)graph->n_nodes + 1, sizeof *whole.node)};
    struct told *all = calloc((size_t)sheaf_world_size(), sizeof *all);
    uint64_t n_refused = 1, n_copies = 0;
    if (!st && (!whole.node || !all)) st = sheaf__meta_no_memory();
    for (int i = 0; i < MOST_PLANS && n_refused; i++) {
        struct meta_program *p = NULL;
        if (!st) st = sheaf__meta_program_new(b->dev, graph, whole.node, &p);
        st = sheaf_world_agree(st, "graph planning");
        if (!st) st = compare_programs(graph, p, &whole, all);
        n_refused = n_copies = 0;
        for (int r = 0; r < sheaf_world_size() && !st; r++) {
            n_refused += all[r].n_refused;
            n_copies += all[r].n_copies;
        }
        if (!st && n_refused) st = add_refused(b->dev, p, &whole);
        sheaf__meta_program_free(*out, b->dev->n_local);
        *out = p;
        if (st) break;
    }
    if (!st) log_refused(b->dev, graph, (*out)->plan, &whole, n_copies);
    free(all);
    free(whole.node);
    return st;
}

void sheaf__meta_weights_go(const struct meta_device *dev, sheaf_backend_buffer_t buffer) {
    for (struct meta_backend *b = dev->backends; b; b = b->next) {
        for (int i = 0; i < b->n_programs; i++) {
            struct meta_program *p = b->programs[i];
            for (size_t k = 0; k < p->n_buffers && !p->weights_gone; k++)
                p->weights_gone = p->buffers[k] == buffer;
            b->has_gone = b->has_gone || p->weights_gone;
        }
    }
}

/* Empties programs whose weights are gone, now that results of the last one need not be readable any
 * longer; one whose results are kept stays until they are not. Empty programs remain in the list and
 * count as before, so that make_room takes the same ones on every rank, whenever each of the ranks
 * has freed the weights. */
static void let_go(struct meta_backend *b) {
    if (!b->has_gone) return;
    b->has_gone = false;
    for (int i = 0; i < b->n_programs; i++) {
        struct meta_program *p = b->programs[i];
        if (!p->weights_gone || !p->plan) continue;
        if (p->n_carried)
            b->has_gone = true;
        else
            sheaf__meta_program_empty(p, b->dev->n_local);
    }
}

/* Makes room for a program of n_nodes. One whose results are kept stays. */
static enum sheaf_status make_room(struct meta_backend *b, int n_nodes) {
    for (;;) {
        long total = n_nodes;
        int oldest = -1;
        for (int i = 0; i < b->n_programs; i++) {
            total += b->programs[i]->n_nodes;
            if (b->programs[i]->n_carried) continue;
            if (oldest < 0 || b->programs[i]->last_use < b->programs[oldest]->last_use) oldest = i;
        }
        const bool too_many = b->n_programs == META_MAX_PROGRAMS;
        if (!too_many && (b->n_programs < MAX_LARGE_PROGRAMS || total <= MAX_PROGRAM_NODES))
            return SHEAF_STATUS_SUCCESS;
        if (oldest < 0) {
            return !too_many ? SHEAF_STATUS_SUCCESS
                             : sheaf_set_error(SHEAF_STATUS_UNSUPPORTED,
                                               "meta: a graph of more than %d scheduler splits on "
                                               "this device; assign more of its ops here",
                                               META_MAX_PROGRAMS);
        }
        sheaf__meta_program_free(b->programs[oldest], b->dev->n_local);
        b->programs[oldest] = b->programs[--b->n_programs];
    }
}

/* A program for a graph with these leaves: of the same graph by uid, or of one that is alike. */
static struct meta_program *find(const struct meta_backend *b, const struct sheaf_cgraph *graph,
                                 uint64_t leaves, const uint64_t *key) {
    for (int i = 0; i < b->n_programs; i++) {
        struct meta_program *p = b->programs[i];
        const bool same = key ? p->key == *key && p->n_nodes == graph->n_nodes
                              : p->uid == graph->uid && p->leaves == leaves;
        if (same && !p->weights_gone && sheaf__meta_can_move(p, graph)) return p;
    }
    return NULL;
}

enum sheaf_status sheaf__meta_find_program(struct meta_backend *b, const struct sheaf_cgraph *graph,
                                           struct meta_program **out) {
    uint64_t leaves = 0, key = 0;
    let_go(b);
    enum sheaf_status st = sheaf__meta_leaves_key(b, graph, &leaves);
    struct meta_program *p = st ? NULL : find(b, graph, leaves, NULL);
    if (!st && !p) st = sheaf__meta_graph_key(b, graph, leaves, &key);
    if (!st && !p) p = find(b, graph, leaves, &key);
    if (p) {
        *out = p;
        return SHEAF_STATUS_SUCCESS;
    }
    sheaf_world_enter(SHEAF_PHASE_PLAN,
                      graph->n_nodes ? graph->nodes[graph->n_nodes - 1]->name : "");
    st = plan_program(b, graph, st, &p);
    sheaf_world_enter(SHEAF_PHASE_IDLE, NULL);
    if (!st) st = make_room(b, graph->n_nodes); /* the same on every rank */
    if (st) {
        sheaf__meta_program_free(p, b->dev->n_local);
        return st;
    }
    p->key = key;
    p->leaves = leaves;
    b->programs[b->n_programs++] = p;
    b->n_plans++;
    *out = p;
    return st;
}

/* Compute buffers stay as large as the largest program wants them, so that prompts and tokens, in
 * turns, find their memory. They go when no program that is left wants nearly as much. */
static void give_back_memory(struct meta_backend *b) {
    enum { LEAST_BYTES = 64 << 20, FEW = 4 };
    size_t have = 0, needed = 0;
    for (int m = 0; m < b->dev->n_local; m++)
        have += sheaf_gallocr_get_buffer_size(b->members[m].galloc);
    for (int i = 0; i < b->n_programs; i++)
        if (b->programs[i]->needed > needed) needed = b->programs[i]->needed;
    if (have < LEAST_BYTES || needed > have / FEW) return;
    for (int m = 0; m < b->dev->n_local; m++) {
        sheaf__gallocr_give_back(b->members[m].galloc);
        sheaf__meta_staging_free(&b->members[m].in);
        sheaf__meta_staging_free(&b->members[m].out);
    }
    for (int i = 0; i < b->n_programs; i++) b->programs[i]->reserved = false;
    b->generation++;
}

/* Places the program's tensors in the members' compute buffers, which all programs share. */
static enum sheaf_status allocate(struct meta_backend *b, struct meta_program *p) {
    if (p->generation == b->generation) return SHEAF_STATUS_SUCCESS;
    give_back_memory(b);
    bool grown = false;
    p->needed = 0;
    for (int m = 0; m < b->dev->n_local; m++) {
        struct sheaf_cgraph *g = &p->parts[m].graph;
        for (int i = 0; i < g->n_nodes; i++) g->nodes[i]->data = NULL, g->nodes[i]->buffer = NULL;
        const size_t before = sheaf_gallocr_get_buffer_size(b->members[m].galloc);
        enum sheaf_status st = sheaf_gallocr_alloc_graph(b->members[m].galloc, g);
        grown = grown || sheaf_gallocr_get_buffer_size(b->members[m].galloc) != before;
        p->needed += sheaf__gallocr_needed(b->members[m].galloc);
        if (st) {
            b->generation += grown;
            return st;
        }
        if (!b->devcomm && !b->members[m].staged)
            sheaf__meta_place_waits(b->dev, &p->parts[m], b->members[m].galloc);
        sheaf__meta_renew_spans(&p->parts[m]);
    }
    if (grown) b->generation++; /* the other programs' addresses are gone */
    p->generation = b->generation;
    return SHEAF_STATUS_SUCCESS;
}

enum sheaf_status sheaf__meta_prepare(struct meta_backend *b, struct meta_program *p,
                                      const struct sheaf_cgraph *graph) {
    /* first the inputs: their last buffers may be gone, and to allocate places views of them */
    enum sheaf_status st = sheaf__meta_program_bind(b->dev, p, graph);
    if (!st) st = allocate(b, p);
    return st ? st : sheaf__meta_move(b->dev, p, graph);
}
