/* GET_ROWS, SET_ROWS and ADD_ID: rows picked by number. Numbers come from the model's input and are
 * checked in every build; an invalid one fails the compute and nothing of the node's result is
 * promised. */
#include <inttypes.h>

#include "cpu/matmul/repacked.h"
#include "cpu/ops/ops.h"

static int64_t id_at(const struct sheaf_tensor *ids, int64_t i0, int64_t i1, int64_t i2) {
    const char *p = (const char *)ids->data + (size_t)i0 * ids->nb[0] + (size_t)i1 * ids->nb[1] +
                    (size_t)i2 * ids->nb[2];
    int32_t i32;
    int64_t i64;
    if (ids->type == SHEAF_TYPE_I64) {
        memcpy(&i64, p, sizeof i64);
        return i64;
    }
    memcpy(&i32, p, sizeof i32);
    return i32;
}

static enum sheaf_status bad_id(const struct sheaf_tensor *dst, const struct sheaf_tensor *ids,
                                int64_t id, int64_t at, int64_t limit) {
    return sheaf_set_error(SHEAF_STATUS_INVALID,
                           "cpu: %s '%s': row %" PRId64 " (element %" PRId64
                           " of '%s') is outside [0, %" PRId64 ")",
                           sheaf_op_name(dst->op), dst->name, id, at, ids->name, limit);
}

/* n elements of 4 bytes, nb0 bytes apart */
static void copy_words(char *to, const char *from, size_t nb0, int64_t n) {
    for (int64_t i = 0; i < n; i++) memcpy(to + 4 * i, from + (size_t)i * nb0, 4);
}

/* n weights of a row as floats. */
static void load_repacked(const struct sheaf__cpu_repacked *repacked, enum sheaf_type type,
                          const char *w, int64_t n, float *to) {
    enum { UNIT = SHEAF__REPACKED_UNIT };
    char plain[SHEAF__REPACKED_BYTES];
    for (int64_t i = 0; i < n; i += UNIT, w += sheaf_row_size(type, UNIT)) {
        repacked->restore(w, plain, UNIT);
        sheaf__cpu_load(type, plain, sheaf_type_size(type), UNIT, to + i);
    }
}

/* a [e, v, h, s], b [n, h, s] -> dst F32, or I32 if a is, [e, n, h, s]. With EXTENT, a holds rows
 * [BASE, BASE + v) of EXTENT and the rows of others are zeros. */
static enum sheaf_status op_get_rows(struct sheaf_tensor *dst, int ith, int nth,
                                     struct sheaf__cpu_sync *sync, void *work) {
    const struct sheaf_tensor *a = dst->src[0], *b = dst->src[1];
    const int64_t base = dst->op_params[SHEAF_OP_PARAM_BASE];
    const int64_t extent = dst->op_params[SHEAF_OP_PARAM_EXTENT];
    const int64_t limit = extent != 0 ? extent : a->ne[1];
    const struct sheaf__cpu_repacked *repacked = sheaf__cpu_repacked(a);
    const int64_t n = dst->ne[0];
    int64_t first, last;
    sheaf__cpu_share(sheaf_nrows(dst), ith, nth, &first, &last);
    (void)sync;
    (void)work;
    for (int64_t row = first; row < last; row++) {
        struct sheaf__cpu_row at = sheaf__cpu_row_at(dst->ne, row);
        int64_t id = id_at(b, at.i1, at.i2, at.i3);
        if (id < 0 || id >= limit) return bad_id(dst, b, id, row, limit);
        float *d = (float *)(void *)sheaf__cpu_row_data(dst, at);
        id -= base;
        if (id < 0 || id >= a->ne[1]) {
            memset(d, 0, (size_t)n * sizeof *d);
            continue;
        }
        struct sheaf__cpu_row from = {id, at.i2, at.i3};
        if (a->type == SHEAF_TYPE_I32) {
            copy_words((char *)d, sheaf__cpu_row_data(a, from), a->nb[0], n);
            continue;
        }
        if (repacked) {
            load_repacked(repacked, a->type, sheaf__cpu_row_data(a, from), n, d);
            continue;
        }
        const float *x = sheaf__cpu_load(a->type, sheaf__cpu_row_data(a, from), a->nb[0], n, d);
        sheaf__cpu_store(SHEAF_TYPE_F32, x, d, sizeof *d, n);
    }
    return SHEAF_STATUS_SUCCESS;
}

/* b [e, n, h, s], c [n, h, s] repeated -> rows of dst [e, L, h, s] (a view of a). Shared out by
 * columns, so that of two rows with the same number the later wins for any number of threads. */
static enum sheaf_status op_set_rows(struct sheaf_tensor *dst, int ith, int nth,
                                     struct sheaf__cpu_sync *sync, void *work) {
    enum { COLUMNS = 512 }; /* whole blocks of every type */
    const struct sheaf_tensor *b = dst->src[1], *c = dst->src[2];
    const int64_t blck = sheaf_blck_size(dst->type);
    const size_t step = sheaf__cpu_is_dense(dst) ? sheaf_type_size(dst->type) : dst->nb[0];
    /* one thread takes whole rows, if they need no buffer */
    const bool whole = nth == 1 && b->type == SHEAF_TYPE_F32 && sheaf__cpu_is_dense(b);
    const int64_t per_row = whole ? 1 : (b->ne[0] + COLUMNS - 1) / COLUMNS;
    float buf[COLUMNS];
    int64_t first, last;
    (void)sync;
    (void)work;
    for (int64_t i2 = 0; i2 < c->ne[2]; i2++) {
        for (int64_t i1 = 0; i1 < c->ne[1]; i1++) {
            for (int64_t i0 = 0; i0 < c->ne[0]; i0++) {
                int64_t id = id_at(c, i0, i1, i2);
                if (id < 0 || id >= dst->ne[1]) return bad_id(dst, c, id, i0, dst->ne[1]);
            }
        }
    }
    sheaf__cpu_share(per_row * b->ne[2] * b->ne[3], ith, nth, &first, &last);
    for (int64_t item = first; item < last; item++) {
        const int64_t row = whole ? item : item / per_row, i0 = (item - row * per_row) * COLUMNS;
        const int64_t i2 = sheaf__cpu_wrap(row, b->ne[2]), i3 = row == i2 ? 0 : row / b->ne[2];
        const int64_t n = whole || b->ne[0] - i0 < COLUMNS ? b->ne[0] - i0 : COLUMNS;
        for (int64_t i1 = 0; i1 < b->ne[1]; i1++) {
            struct sheaf__cpu_row from = {i1, i2, i3};
            struct sheaf__cpu_row to = {
                id_at(c, i1, sheaf__cpu_wrap(i2, c->ne[1]), sheaf__cpu_wrap(i3, c->ne[2])), i2, i3};
            const char *bp = sheaf__cpu_row_data(b, from) + (size_t)i0 * b->nb[0];
            char *dp = sheaf__cpu_row_data(dst, to) + (size_t)(i0 / blck) * step;
            sheaf__cpu_store(dst->type, sheaf__cpu_load(b->type, bp, b->nb[0], n, buf), dp, step,
                             n);
        }
    }
    return SHEAF_STATUS_SUCCESS;
}

/* a F32 [m, u, n], b F32 [m, x], ids [u, n] -> dst F32 [m, u, n]. With EXTENT, b holds rows [BASE,
 * BASE + x) of EXTENT and the result is 0 where the row is another's. */
static enum sheaf_status op_add_id(struct sheaf_tensor *dst, int ith, int nth,
                                   struct sheaf__cpu_sync *sync, void *work) {
    const struct sheaf_tensor *a = dst->src[0], *b = dst->src[1], *ids = dst->src[2];
    const int64_t base = dst->op_params[SHEAF_OP_PARAM_BASE];
    const int64_t extent = dst->op_params[SHEAF_OP_PARAM_EXTENT];
    const int64_t limit = extent != 0 ? extent : b->ne[1];
    int64_t first, last;
    sheaf__cpu_share(sheaf_nrows(dst), ith, nth, &first, &last);
    (void)sync;
    (void)work;
    for (int64_t row = first; row < last; row++) {
        const struct sheaf__cpu_row at = sheaf__cpu_row_at(dst->ne, row);
        const int64_t id = id_at(ids, at.i1, at.i2, 0);
        if (id < 0 || id >= limit) return bad_id(dst, ids, id, row, limit);
        const struct sheaf__cpu_row from = {id - base, 0, 0};
        float *d = (float *)(void *)sheaf__cpu_row_data(dst, at);
        if (from.i1 < 0 || from.i1 >= b->ne[1]) {
            memset(d, 0, (size_t)dst->ne[0] * sizeof *d);
        } else {
            sheaf__cpu_add_row(dst->ne[0], d,
                               (const float *)(const void *)sheaf__cpu_row_data(a, at),
                               (const float *)(const void *)sheaf__cpu_row_data(b, from));
        }
    }
    return SHEAF_STATUS_SUCCESS;
}

SHEAF__CPU_OP(GET_ROWS) = {.fn = op_get_rows};
SHEAF__CPU_OP(SET_ROWS) = {.fn = op_set_rows, .measure = 2};
SHEAF__CPU_OP(ADD_ID) = {.fn = op_add_id};
