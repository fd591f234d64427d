/* See chain.h. An operand is either taken row by row, or one row that serves all rows. */
#include "cpu/run/chain.h"

enum {
    MAX_SRC = 2,
    /* Floats of a block of rows, all nodes of which are computed before the next one: five tensors
     * of it fit in an L2 of 1 MiB. Single rows are slower, as each stream of memory begins anew for
     * each (2048 x 512, Zen 5, 2026-11-21: rows -12 %, 8192 0 %, 32768 3 %, 65536 -4 % against
     * nodes one after the other). */
    BLOCK = 32768,
};

static const int n_operands[SHEAF_OP_COUNT] = {
    [SHEAF_OP_ADD] = 2,
    [SHEAF_OP_MUL] = 2,
    [SHEAF_OP_RMS_NORM] = 1,
};

static bool is_plain(const struct sheaf_tensor *t) {
    return t->type == SHEAF_TYPE_F32 && sheaf_is_contiguous(t);
}

static bool is_link(const struct sheaf_tensor *t, const struct sheaf_tensor *like) {
    const int n = (unsigned)t->op < SHEAF_OP_COUNT ? n_operands[t->op] : 0;
    if (!n || !is_plain(t) || sheaf_is_empty(t) || !sheaf_are_same_shape(t, like)) return false;
    for (int i = 0; i < n; i++) {
        const struct sheaf_tensor *s = t->src[i];
        const bool one_row = sheaf_nrows(s) == 1 && s->ne[0] == t->ne[0];
        if (!is_plain(s) || !(one_row || sheaf_are_same_shape(s, t))) return false;
    }
    return true;
}

int sheaf__cpu_chain_length(const struct sheaf_tensor *source, struct sheaf_tensor *const *nodes,
                            int n) {
    int k = 0;
    if (source && !is_plain(source)) return 0;
    while (k < n && k < SHEAF__CHAIN_MAX && is_link(nodes[k], source ? source : nodes[0])) k++;
    return k;
}

/* ---- memory ---- */

struct extent {
    uintptr_t begin, end;
    size_t row; /* bytes between rows; 0: one row for all */
};

static struct extent extent_of(const struct sheaf_tensor *t, int64_t rows) {
    const uintptr_t at = (uintptr_t)t->data;
    return (struct extent){at, at + sheaf_nbytes(t), sheaf_nrows(t) == rows ? t->nb[1] : 0};
}

bool sheaf__cpu_chain_is_safe(const struct sheaf_tensor *source, struct sheaf_tensor *const *nodes,
                              int n) {
    struct extent written[SHEAF__CHAIN_MAX + 1], used[SHEAF__CHAIN_MAX * MAX_SRC];
    const int64_t rows = sheaf_nrows(nodes[0]);
    int n_written = 0, n_used = 0;
    if (rows == 1) return true; /* the order of nodes is that of the graph */
    if (source) written[n_written++] = extent_of(source, rows);
    for (int i = 0; i < n; i++) {
        written[n_written++] = extent_of(nodes[i], rows);
        for (int k = 0; k < MAX_SRC; k++)
            if (k < n_operands[nodes[i]->op]) used[n_used++] = extent_of(nodes[i]->src[k], rows);
    }
    for (int i = 0; i < n_written; i++) {
        for (int k = 0; k < n_written + n_used; k++) {
            const struct extent *a = &written[i],
                                *b = k < n_written ? &written[k] : &used[k - n_written];
            if (a->end <= b->begin || b->end <= a->begin) continue;
            if (a->begin != b->begin || a->row != b->row || !a->row) return false;
        }
    }
    return true;
}

/* ---- computing ---- */

struct operand {
    float *row;
    size_t step; /* floats to the next one */
};

static struct operand operand_of(const struct sheaf_tensor *t, int64_t rows, int64_t first) {
    const size_t step = t && sheaf_nrows(t) == rows ? (size_t)t->ne[0] : 0;
    return (struct operand){t ? (float *)t->data + step * (size_t)first : NULL, step};
}

static void node_rows(const struct sheaf_tensor *t, int64_t first, int64_t last) {
    const int64_t width = t->ne[0], rows = sheaf_nrows(t);
    struct operand d = operand_of(t, rows, first), a = operand_of(t->src[0], rows, first),
                   b = operand_of(t->src[1], rows, first);
    const float eps = sheaf__param_f32(t, 0);
    for (int64_t row = first; row < last; row++) {
        if (t->op == SHEAF_OP_ADD)
            sheaf__cpu_add_row(width, d.row, a.row, b.row);
        else if (t->op == SHEAF_OP_MUL)
            sheaf__cpu_mul_row(width, d.row, a.row, b.row);
        else
            sheaf__cpu_rms_norm_row(width, a.row, eps, d.row);
        d.row += d.step;
        a.row += a.step;
        b.row += b.step;
    }
}

void sheaf__cpu_chain_rows(struct sheaf_tensor *const *nodes, int n, int64_t first, int64_t last) {
    const int64_t width = nodes[0]->ne[0], block = width < BLOCK ? BLOCK / width : 1;
    for (int64_t row = first; row < last; row += block) {
        for (int i = 0; i < n; i++)
            node_rows(nodes[i], row, last - row < block ? last : row + block);
    }
}
