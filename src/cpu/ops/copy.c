/* DUP, CONT, CPY and CONCAT: elements moved, and converted where the types differ.
 *
 * Elements are numbered in the logical order of their tensor, dimension 0 fastest; a copy keeps the
 * number, the shapes may differ. A cursor walks a tensor in runs of elements that lie side by side.
 * Pieces of the work start at multiples of PIECE, which is whole blocks of every type, and ne[0] of
 * a block type is whole blocks, so a run never starts inside a block. */
#include "cpu/ops/ops.h"

enum { PIECE = 512 };

struct cursor {
    const struct sheaf_tensor *t;
    int64_t i0;
    struct sheaf__cpu_row at;
    size_t step; /* bytes between blocks (elements) of a row */
    int64_t block;
    bool dense;
};

static struct cursor cursor_at(const struct sheaf_tensor *t, int64_t element) {
    struct cursor c;
    c.t = t;
    c.i0 = element % t->ne[0];
    c.at = sheaf__cpu_row_at(t->ne, element / t->ne[0]);
    c.dense = sheaf__cpu_is_dense(t);
    c.step = c.dense ? sheaf_type_size(t->type) : t->nb[0];
    c.block = sheaf_blck_size(t->type);
    return c;
}

static char *cursor_data(const struct cursor *c) {
    return sheaf__cpu_row_data(c->t, c->at) + (size_t)(c->i0 / c->block) * c->step;
}

/* Elements from here to the end of the row, at most n. */
static int64_t cursor_run(const struct cursor *c, int64_t n) {
    return c->t->ne[0] - c->i0 < n ? c->t->ne[0] - c->i0 : n;
}

static void cursor_advance(struct cursor *c, int64_t n) {
    c->i0 += n;
    if (c->i0 < c->t->ne[0]) return;
    c->i0 = 0;
    if (++c->at.i1 < c->t->ne[1]) return;
    c->at.i1 = 0;
    if (++c->at.i2 < c->t->ne[2]) return;
    c->at.i2 = 0;
    c->at.i3++;
}

/* n elements (blocks) of `size` bytes, strided on either side */
static void move_strided(char *d, size_t dstep, const char *s, size_t sstep, size_t size,
                         int64_t n) {
    if (dstep == size && sstep == size) {
        memcpy(d, s, (size_t)n * size);
    } else if (size == 4) {
        for (int64_t i = 0; i < n; i++) memcpy(d + (size_t)i * dstep, s + (size_t)i * sstep, 4);
    } else if (size == 2) {
        for (int64_t i = 0; i < n; i++) memcpy(d + (size_t)i * dstep, s + (size_t)i * sstep, 2);
    } else {
        for (int64_t i = 0; i < n; i++) memcpy(d + (size_t)i * dstep, s + (size_t)i * sstep, size);
    }
}

/* Bytes of a tensor lie in the order of its elements; strides of dimensions of 1 do not matter. */
static bool is_one_run(const struct sheaf_tensor *t) {
    size_t next = sheaf_row_size(t->type, t->ne[0]);
    if (!sheaf__cpu_is_dense(t)) return false;
    for (int i = 1; i < SHEAF_MAX_DIMS; i++) {
        if (t->ne[i] != 1 && t->nb[i] != next) return false;
        next *= (size_t)t->ne[i];
    }
    return true;
}

static void copy_same(const struct sheaf_tensor *dst, const struct sheaf_tensor *src, int64_t first,
                      int64_t last) {
    const size_t size = sheaf_type_size(dst->type);
    const int64_t block = sheaf_blck_size(dst->type);
    if (is_one_run(dst) && is_one_run(src)) {
        const size_t at = (size_t)(first / block) * size, end = (size_t)(last / block) * size;
        memmove((char *)dst->data + at, (const char *)src->data + at, end - at);
        return;
    }
    struct cursor d = cursor_at(dst, first), s = cursor_at(src, first);
    while (first < last) {
        int64_t n = cursor_run(&s, cursor_run(&d, last - first));
        move_strided(cursor_data(&d), d.step, cursor_data(&s), s.step, size, n / block);
        cursor_advance(&d, n);
        cursor_advance(&s, n);
        first += n;
    }
}

static void copy_floats(const struct sheaf_tensor *dst, const struct sheaf_tensor *src,
                        int64_t first, int64_t last) {
    float buf[PIECE];
    struct cursor d = cursor_at(dst, first), s = cursor_at(src, first);
    while (first < last) {
        /* The longest piece that is one run on the target; it may be several on the source. */
        int64_t n = cursor_run(&d, last - first < PIECE ? last - first : PIECE);
        if (sheaf_is_quantized(src->type) && n % s.block != 0 && n > s.block) n -= n % s.block;
        if (sheaf_is_quantized(src->type) && n % s.block != 0) {
            /* A row of the target ends inside a block of the source: take the block once and
             * spread it over rows. */
            int64_t left = s.block < last - first ? s.block : last - first;
            sheaf_to_float(src->type, cursor_data(&s), buf, s.block);
            cursor_advance(&s, s.block);
            for (int64_t done = 0; done < left;) {
                int64_t m = cursor_run(&d, left - done);
                sheaf__cpu_store(dst->type, buf + done, cursor_data(&d), d.step, m);
                cursor_advance(&d, m);
                done += m;
            }
            first += left;
            continue;
        }
        for (int64_t done = 0; done < n;) {
            int64_t m = cursor_run(&s, n - done);
            const float *x = sheaf__cpu_load(src->type, cursor_data(&s), s.step, m, buf + done);
            if (x != buf + done) memcpy(buf + done, x, (size_t)m * sizeof *buf);
            cursor_advance(&s, m);
            done += m;
        }
        sheaf__cpu_store(dst->type, buf, cursor_data(&d), d.step, n);
        cursor_advance(&d, n);
        first += n;
    }
}

static int64_t load_int(enum sheaf_type type, const char *p) {
    int32_t i32;
    int64_t i64;
    float f;
    switch (type) {
    case SHEAF_TYPE_I32:
        memcpy(&i32, p, sizeof i32);
        return i32;
    case SHEAF_TYPE_I64:
        memcpy(&i64, p, sizeof i64);
        return i64;
    default:
        break;
    }
    /* towards zero; what does not fit is clamped, NaN is 0 */
    f = *sheaf__cpu_load(type, p, sheaf_type_size(type), 1, &f);
    if (f != f) return 0;
    if (f >= 9223372036854775808.0f) return INT64_MAX;
    if (f < -9223372036854775808.0f) return INT64_MIN;
    return (int64_t)f;
}

static void store_int(enum sheaf_type type, int64_t v, char *p) {
    if (type == SHEAF_TYPE_I64) {
        memcpy(p, &v, sizeof v);
    } else if (type == SHEAF_TYPE_I32) {
        int32_t i32 = v > INT32_MAX ? INT32_MAX : v < INT32_MIN ? INT32_MIN : (int32_t)v;
        memcpy(p, &i32, sizeof i32);
    } else {
        float f = (float)v;
        sheaf__cpu_store(type, &f, p, sheaf_type_size(type), 1);
    }
}

/* one side is I32 or I64, the other plain */
static void copy_ints(const struct sheaf_tensor *dst, const struct sheaf_tensor *src, int64_t first,
                      int64_t last) {
    struct cursor d = cursor_at(dst, first), s = cursor_at(src, first);
    for (; first < last; first++) {
        store_int(dst->type, load_int(src->type, cursor_data(&s)), cursor_data(&d));
        cursor_advance(&d, 1);
        cursor_advance(&s, 1);
    }
}

static bool is_int(const struct sheaf_tensor *t) {
    return t->type == SHEAF_TYPE_I32 || t->type == SHEAF_TYPE_I64;
}

/* dst has as many elements as src[0], in any shape */
static enum sheaf_status op_copy(struct sheaf_tensor *dst, int ith, int nth,
                                 struct sheaf__cpu_sync *sync, void *work) {
    const struct sheaf_tensor *src = dst->src[0];
    const int64_t n = sheaf_nelements(dst);
    int64_t first, last;
    (void)sync;
    (void)work;
    /* rows that move within their tensor are moved by one thread: another would write what is still
     * to be read */
    const bool moves = sheaf__overlaps(dst, src);
    if (moves && ith > 0) return SHEAF_STATUS_SUCCESS;
    sheaf__cpu_share((n + PIECE - 1) / PIECE, ith, moves ? 1 : nth, &first, &last);
    first *= PIECE;
    last = last * PIECE < n ? last * PIECE : n;
    if (first >= last) return SHEAF_STATUS_SUCCESS;
    if (dst->type == src->type) {
        copy_same(dst, src, first, last);
    } else if (is_int(dst) || is_int(src)) {
        copy_ints(dst, src, first, last);
    } else {
        copy_floats(dst, src, first, last);
    }
    return SHEAF_STATUS_SUCCESS;
}

/* a [.., x, ..], b [.., y, ..] -> dst [.., x+y, ..] in dimension op_params[0] */
static enum sheaf_status op_concat(struct sheaf_tensor *dst, int ith, int nth,
                                   struct sheaf__cpu_sync *sync, void *work) {
    const int dim = dst->op_params[0];
    const size_t size = sheaf_type_size(dst->type);
    const int64_t block = sheaf_blck_size(dst->type);
    int64_t offset = 0;
    (void)sync;
    (void)work;
    for (int i = 0; i < 2; i++) {
        const struct sheaf_tensor *src = dst->src[i];
        const size_t dstep = sheaf__cpu_is_dense(dst) ? size : dst->nb[0];
        const size_t sstep = sheaf__cpu_is_dense(src) ? size : src->nb[0];
        int64_t first, last;
        if (!sheaf_is_empty(src)) {
            sheaf__cpu_share(sheaf_nrows(src), ith, nth, &first, &last);
            for (int64_t row = first; row < last; row++) {
                struct sheaf__cpu_row from = sheaf__cpu_row_at(src->ne, row), to = from;
                to.i1 += dim == 1 ? offset : 0;
                to.i2 += dim == 2 ? offset : 0;
                to.i3 += dim == 3 ? offset : 0;
                char *d = sheaf__cpu_row_data(dst, to);
                if (dim == 0) d += (size_t)(offset / block) * dstep;
                move_strided(d, dstep, sheaf__cpu_row_data(src, from), sstep, size,
                             src->ne[0] / block);
            }
        }
        offset += src->ne[dim];
    }
    return SHEAF_STATUS_SUCCESS;
}

SHEAF__CPU_OP(DUP) = {.fn = op_copy};
SHEAF__CPU_OP(CONT) = {.fn = op_copy};
SHEAF__CPU_OP(CPY) = {.fn = op_copy};
SHEAF__CPU_OP(CONCAT) = {.fn = op_concat};
