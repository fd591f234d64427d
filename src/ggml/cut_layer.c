/* The tensors of a graph by layer and role. */
#include "ggml/cut_layer.h"

#include <stdlib.h>
#include <string.h>

#include "ggml/cut_axis.h"
#include "ggml/translate.h"

static void note(struct gg_whole *g, const struct gg_tensor *t) {
    if (t) g->all[g->n++].tensor = t;
}

/* A program makes a graph's tensors one after the other. */
static int by_address(const void *a, const void *b) {
    const uintptr_t x = (uintptr_t)((const struct gg_known *)a)->tensor;
    const uintptr_t y = (uintptr_t)((const struct gg_known *)b)->tensor;
    return (x > y) - (x < y);
}

static void describe(const struct gg_host *host, struct gg_known *k) {
    struct sheaf_tensor s;
    struct gg_operands o;
    if (k->tensor->op == 0) gg_leaf_of(k->tensor->name, &k->leaf);
    k->op = k->tensor->op && gg_translate(host, k->tensor, &s, &o) ? (int)s.op : -1;
}

bool gg_whole_of(const struct gg_host *host, const struct gg_cgraph *graph, struct gg_whole *g) {
    const size_t n = (size_t)graph->n_nodes * (1 + GG_MAX_SRC) + graph->visited.size;
    const struct gg_tensor *t;
    size_t kept = 0;
    g->all = calloc(n + 1, sizeof *g->all);
    if (!g->all) return false;
    for (int i = 0; i < graph->n_nodes; i++) {
        note(g, graph->nodes[i]);
        for (int k = 0; k < GG_MAX_SRC; k++) note(g, graph->nodes[i]->src[k]);
    }
    for (size_t at = 0; (t = gg_next_of_whole(graph, &at));) note(g, t);
    qsort(g->all, g->n, sizeof *g->all, by_address);
    for (size_t i = 0; i < g->n; i++)
        if (!i || g->all[i].tensor != g->all[i - 1].tensor)
            g->all[kept++].tensor = g->all[i].tensor;
    g->n = kept;
    for (size_t i = 0; i < g->n; i++) describe(host, &g->all[i]);
    return true;
}

const struct gg_tensor *gg_find(const struct gg_whole *g, const char *layer, enum gg_role role,
                                const char *family) {
    for (size_t i = 0; i < g->n; i++) {
        const struct gg_leaf *l = &g->all[i].leaf;
        if (l->role == role && !l->bias && !strcmp(l->layer, layer) && !strcmp(l->family, family))
            return g->all[i].tensor;
    }
    return NULL;
}

static const struct gg_known *known_in(const struct gg_whole *g, const struct gg_tensor *t) {
    const struct gg_known key = {.tensor = t};
    return bsearch(&key, g->all, g->n, sizeof *g->all, by_address);
}

const struct gg_leaf *gg_leaf_in(const struct gg_whole *g, const struct gg_tensor *t) {
    const struct gg_known *found = known_in(g, t);
    return found ? &found->leaf : NULL;
}

int gg_op_in(const struct gg_whole *g, const struct gg_tensor *t) {
    const struct gg_known *found = known_in(g, t);
    return found ? found->op : -1;
}

bool gg_comes_from(const struct gg_tensor *t, const struct gg_tensor *cache) {
    for (int i = 0; cache && t && i < 8; i++, t = t->src[0])
        if (t == cache || t->view_src == cache) return true;
    return false;
}

/* Ops whose result has the rows of a product where the product has them. */
static bool passes_rows_on(int op) {
    return op == SHEAF_OP_ADD || op == SHEAF_OP_SCALE || op == SHEAF_OP_MUL ||
           op == SHEAF_OP_CLAMP || op == SHEAF_OP_RMS_NORM || op == SHEAF_OP_CONT ||
           op == SHEAF_OP_UNARY;
}

int gg_views_behind(const struct gg_whole *g, const struct gg_tensor *weight,
                    const struct gg_tensor **out, int room) {
    const struct gg_tensor *now = NULL;    /* the product, then what is added to it */
    const struct gg_tensor *shaped = NULL; /* the same in another shape */
    int n = 0;
    for (size_t i = 0; i < g->n; i++) {
        const struct gg_tensor *t = g->all[i].tensor;
        const int op = g->all[i].op;
        if (op == SHEAF_OP_MUL_MAT && t->src[0] == weight && !now) now = t;
        if (!now || (t->src[0] != now && t->src[1] != now && (!shaped || t->src[0] != shaped)))
            continue;
        if (passes_rows_on(op) && t->ne[0] == now->ne[0] && !n)
            now = t;
        else if ((op == SHEAF_OP_RESHAPE || op == SHEAF_OP_VIEW) && n < room)
            out[n++] = t;
        if (op == SHEAF_OP_RESHAPE && !shaped) shaped = t;
    }
    return n;
}

/* ---- cuts of a layer ---- */

bool gg_division_init(struct gg_division *d, int n_members) {
    const size_t n = (size_t)n_members;
    int64_t *numbers = calloc(4 * n, sizeof *numbers);
    if (!numbers) return false;
    *d = (struct gg_division){numbers, numbers + n, numbers + 2 * n, numbers + 3 * n};
    return true;
}

void gg_division_fini(struct gg_division *d) { free(d->head_first); }

void gg_cut_layer(const struct gg_cutter *c, const struct gg_whole *g, const char *layer,
                  const struct gg_layer_cut *cut, struct sheaf_split_state **states,
                  const char **why) {
    for (size_t i = 0; i < c->e->n_unbound; i++) {
        const struct gg_leaf *l = &g->unbound[i];
        const struct gg_region *r = c->e->unbound[i];
        if (strcmp(l->layer, layer) || !cut->has_role(l->role, cut->layer)) continue;
        why[i] = cut->why_whole;
        if (why[i]) continue;
        states[i] = gg_checked(r, cut->state_of(c, l, r, cut->layer, &why[i]), &why[i]);
    }
}
