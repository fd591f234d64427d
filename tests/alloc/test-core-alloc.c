/* Buffers, tensor data access, and the allocators, over a small backend made here from the
 * installed interface (sheaf/backend-impl.h) alone: memory of malloc that is not host memory to the
 * library, an alignment of 128, and 40 bytes more a tensor than it needs. So sizes and alignments
 * that a plain CPU buffer would forgive show, and so does whatever assumes host access.
 *
 * The graph allocator is checked by playing the graph: every node stamps its bytes, and every
 * reader must find the stamp of the node that made its operand. */
#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "alloc/gallocr.h"
#include "sheaf/alloc.h"
#include "sheaf/backend-impl.h"
#include "sheaf/ops.h"

typedef struct sheaf_tensor T;
typedef struct sheaf_context C;

/* ---- the small backend ---- */

enum { ALIGNMENT = 128, EXTRA = 40 };
static size_t n_live, max_size = SIZE_MAX;
static bool host;

static void free_buffer(sheaf_backend_buffer_t b) {
    memset(b->context, 0xDD, b->size);
    free(b->context);
    n_live--;
}
static void *get_base(sheaf_backend_buffer_t b) { return b->context; }
static enum sheaf_status memset_tensor(sheaf_backend_buffer_t b, T *t, uint8_t v, size_t offset,
                                       size_t size) {
    (void)b;
    memset((char *)t->data + offset, v, size);
    return SHEAF_STATUS_SUCCESS;
}
static enum sheaf_status set_tensor(sheaf_backend_buffer_t b, T *t, const void *data, size_t offset,
                                    size_t size) {
    (void)b;
    memcpy((char *)t->data + offset, data, size);
    return SHEAF_STATUS_SUCCESS;
}
static enum sheaf_status get_tensor(sheaf_backend_buffer_t b, const T *t, void *data, size_t offset,
                                    size_t size) {
    (void)b;
    memcpy(data, (const char *)t->data + offset, size);
    return SHEAF_STATUS_SUCCESS;
}
static enum sheaf_status clear(sheaf_backend_buffer_t b, uint8_t v) {
    memset(b->context, v, b->size);
    return SHEAF_STATUS_SUCCESS;
}
static int n_inits_until_failure = -1; /* below 0: none fails */
static enum sheaf_status init_tensor(sheaf_backend_buffer_t b, T *t) {
    (void)b;
    return n_inits_until_failure-- == 0
               ? sheaf_set_error(SHEAF_STATUS_FAILED, "test: init of '%s'", t->name)
               : SHEAF_STATUS_SUCCESS;
}
static const struct sheaf_backend_buffer_i buffer_i = {
    .init_tensor = init_tensor,
    .free_buffer = free_buffer,
    .get_base = get_base,
    .memset_tensor = memset_tensor,
    .set_tensor = set_tensor,
    .get_tensor = get_tensor,
    .clear = clear,
};
static const char *buft_name(sheaf_backend_buffer_type_t buft) {
    (void)buft;
    return "test";
}
static enum sheaf_status alloc_buffer(sheaf_backend_buffer_type_t buft, size_t size,
                                      sheaf_backend_buffer_t *out) {
    void *p = aligned_alloc(ALIGNMENT, (size / ALIGNMENT + 1) * ALIGNMENT);
    *out = p ? sheaf_backend_buffer_init(buft, &buffer_i, p, size) : NULL;
    if (!*out) {
        free(p);
        return sheaf_set_error(SHEAF_STATUS_ALLOC_FAILED, "test: %zu bytes", size);
    }
    n_live++;
    return SHEAF_STATUS_SUCCESS;
}
static size_t alignment(sheaf_backend_buffer_type_t buft) {
    (void)buft;
    return ALIGNMENT;
}
static size_t get_max_size(sheaf_backend_buffer_type_t buft) {
    (void)buft;
    return max_size;
}
static size_t alloc_size(sheaf_backend_buffer_type_t buft, const T *t) {
    (void)buft;
    return sheaf_nbytes(t) + EXTRA;
}
static bool is_host(sheaf_backend_buffer_type_t buft) {
    (void)buft;
    return host;
}
static const struct sheaf_backend_buffer_type_i buft_i = {
    .get_name = buft_name,
    .alloc_buffer = alloc_buffer,
    .get_alignment = alignment,
    .get_max_size = get_max_size,
    .get_alloc_size = alloc_size,
    .is_host = is_host,
};
static struct sheaf_backend_buffer_type test_buft = {.iface = &buft_i};

static C *arena(size_t n_tensors) {
    C *ctx = sheaf_init((struct sheaf_init_params){.mem_size = n_tensors * sheaf_tensor_overhead() +
                                                               sheaf_graph_overhead(),
                                                   .no_alloc = true});
    cr_assert_not_null(ctx);
    return ctx;
}

static uint32_t rnd(uint32_t *s) { return *s = *s * 1664525u + 1013904223u, *s >> 8; }

/* ---- data access ---- */

static enum sheaf_status reader(void *user, size_t offset, void *dst, size_t size) {
    if (offset == *(size_t *)user) return sheaf_set_error(SHEAF_STATUS_IO, "no more");
    for (size_t i = 0; i < size; i++)
        ((unsigned char *)dst)[i] = (unsigned char)((offset + i) % 251);
    return SHEAF_STATUS_SUCCESS;
}

Test(core_buffer, every_range_is_checked) {
    C *ctx = arena(10);
    T *t = sheaf_set_name(sheaf_new_tensor_2d(ctx, SHEAF_TYPE_F32, 4, 3), "w");
    T *unplaced = sheaf_new_tensor_1d(ctx, SHEAF_TYPE_F32, 4);
    sheaf_backend_buffer_t b;
    unsigned char data[64] = {0};
    cr_assert_eq(sheaf_backend_buft_alloc_buffer(&test_buft, 1024, &b), SHEAF_STATUS_SUCCESS);
    cr_assert_eq(sheaf_backend_tensor_set(t, data, 0, 1), SHEAF_STATUS_INVALID);
    cr_assert(strstr(sheaf_last_error(), "'w'") && strstr(sheaf_last_error(), "no memory"));
    cr_assert_eq(sheaf_backend_tensor_alloc(b, t, (char *)get_base(b) + 128), SHEAF_STATUS_SUCCESS);
    static const struct {
        size_t offset, size, n, stride;
        bool good;
    } cases[] = {
        {0, 48, 1, 0, true},
        {0, 49, 1, 0, false},
        {48, 0, 1, 0, true},
        {49, 0, 1, 0, false},
        {SIZE_MAX, 2, 1, 0, false},
        {4, SIZE_MAX, 1, 0, false},
        {0, 4, 12, 4, true},
        {0, 4, 13, 4, false},
        {8, 8, 3, 16, true},
        {9, 8, 3, 16, false},
        {0, 1, SIZE_MAX, 2, false},
        {0, 1, 3, SIZE_MAX / 2, false},
        {99, 1, 0, 0, true},
        /* end below their beginning when the sum leaves size_t */
        {0, 4, (SIZE_MAX >> 2) + 2, 4, false},
        {8, 4, 2, SIZE_MAX - 3, false},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const enum sheaf_status want = cases[i].good ? SHEAF_STATUS_SUCCESS : SHEAF_STATUS_INVALID;
        const size_t o = cases[i].offset, s = cases[i].size, n = cases[i].n, d = cases[i].stride;
        cr_expect_eq(sheaf_backend_tensor_set_2d(t, data, o, s, n, d, 0), want, "case %zu", i);
        cr_expect_eq(sheaf_backend_tensor_get_2d(t, data, o, s, n, d, 0), want, "case %zu", i);
        if (n != 1) continue;
        cr_expect_eq(sheaf_backend_tensor_set(t, data, o, s), want, "case %zu", i);
        cr_expect_eq(sheaf_backend_tensor_get(t, data, o, s), want, "case %zu", i);
        cr_expect_eq(sheaf_backend_tensor_memset(t, 0, o, s), want, "case %zu", i);
    }
    /* 1024 - 48 - EXTRA is the last place where t fits */
    cr_expect_eq(sheaf_backend_tensor_alloc(b, unplaced, (char *)get_base(b) + 1024 - 16 - EXTRA),
                 SHEAF_STATUS_SUCCESS);
    cr_expect_eq(sheaf_backend_tensor_alloc(b, t, (char *)get_base(b) + 1024 - 47 - EXTRA),
                 SHEAF_STATUS_INVALID);
    cr_expect_eq(sheaf_backend_tensor_alloc(b, t, (char *)get_base(b) - 128), SHEAF_STATUS_INVALID);
    sheaf_backend_buffer_free(b);
    sheaf_backend_buffer_free(NULL);
    max_size = 1000;
    cr_expect_eq(sheaf_backend_buft_alloc_buffer(&test_buft, 1001, &b), SHEAF_STATUS_ALLOC_FAILED);
    cr_expect_null(b);
    cr_expect_eq(n_live, 0);
    sheaf_free(ctx);
}

/* Loading in chunks of 4 MiB when memory is not the host's, in one read when it is; a reader's
 * failure is the call's. */
Test(core_buffer, loading_through_a_reader) {
    for (int pass = 0; pass < 2; pass++) {
        host = pass;
        C *ctx = arena(10);
        const size_t size = ((size_t)9 << 20) + 4;
        T *t = sheaf_new_tensor_1d(ctx, SHEAF_TYPE_F32, (int64_t)size / 4);
        sheaf_backend_buffer_t b;
        cr_assert_eq(sheaf_backend_alloc_ctx_tensors_from_buft(ctx, &test_buft, &b),
                     SHEAF_STATUS_SUCCESS);
        size_t fail_at = SIZE_MAX;
        cr_assert_eq(sheaf_backend_tensor_set_from(t, reader, &fail_at), SHEAF_STATUS_SUCCESS);
        for (size_t i = 0; i < size; i++) {
            cr_assert_eq(((unsigned char *)t->data)[i], i % 251, "byte %zu", i);
        }
        fail_at = host ? 0 : (size_t)8 << 20;
        cr_assert_eq(sheaf_backend_tensor_set_from(t, reader, &fail_at), SHEAF_STATUS_IO);
        cr_assert_str_eq(sheaf_last_error(), "no more");
        sheaf_backend_buffer_free(b);
        sheaf_free(ctx);
    }
}

/* Copying a strided view leaves the bytes between its rows alone: they belong to another tensor. */
Test(core_buffer, copies_between_any_two_tensors) {
    for (int pass = 0; pass < 2; pass++) {
        host = pass;
        C *ctx = arena(20);
        T *a = sheaf_new_tensor_2d(ctx, SHEAF_TYPE_I32, 6, 4);
        T *b = sheaf_new_tensor_2d(ctx, SHEAF_TYPE_I32, 6, 4);
        T *va = sheaf_view_2d(ctx, a, 2, 3, a->nb[1], 8),
          *vb = sheaf_view_2d(ctx, b, 2, 3, b->nb[1], 8);
        sheaf_backend_buffer_t buffer;
        cr_assert_eq(sheaf_backend_alloc_ctx_tensors_from_buft(ctx, &test_buft, &buffer),
                     SHEAF_STATUS_SUCCESS);
        int32_t data[24], got[24];
        for (int i = 0; i < 24; i++) data[i] = i;
        sheaf_backend_tensor_set(a, data, 0, sizeof data);
        sheaf_backend_tensor_memset(b, 0xFF, 0, sizeof data);
        cr_assert_eq(sheaf_backend_tensor_copy(va, vb), SHEAF_STATUS_SUCCESS);
        sheaf_backend_tensor_get(b, got, 0, sizeof got);
        for (int i = 0; i < 24; i++) {
            const bool inside = i / 6 < 3 && i % 6 >= 2 && i % 6 < 4;
            cr_assert_eq(got[i], inside ? i : -1, "element %d is %d", i, got[i]);
        }
        cr_assert_eq(sheaf_backend_tensor_copy(a, b), SHEAF_STATUS_SUCCESS);
        sheaf_backend_tensor_get(b, got, 0, sizeof got);
        cr_assert_arr_eq(got, data, sizeof data);
        cr_assert_eq(sheaf_backend_tensor_copy(va, a), SHEAF_STATUS_INVALID);
        T *ta = sheaf_transpose(ctx, a), *tb = sheaf_transpose(ctx, b);
        sheaf_backend_view_init(ta), sheaf_backend_view_init(tb);
        sheaf_backend_tensor_memset(b, 0, 0, sizeof data);
        cr_assert_eq(sheaf_backend_tensor_copy(ta, tb), SHEAF_STATUS_SUCCESS);
        sheaf_backend_tensor_get(b, got, 0, sizeof got);
        cr_assert_arr_eq(got, data, sizeof data);
        sheaf_backend_buffer_free(buffer);
        sheaf_free(ctx);
    }
}

/* ---- bump allocator and contexts ---- */

/* After a failure no tensor of the context has memory; what had some keeps it, and a view of what
 * has none yet waits. */
Test(core_alloc, a_tensor_that_cannot_be_set_up) {
    C *ctx = arena(10), *other = arena(10);
    T *a = sheaf_new_tensor_1d(ctx, SHEAF_TYPE_F32, 5),
      *b = sheaf_new_tensor_1d(ctx, SHEAF_TYPE_F32, 5);
    T *view = sheaf_view_1d(ctx, b, 2, 4), *later = sheaf_new_tensor_1d(other, SHEAF_TYPE_F32, 5);
    T *waits = sheaf_view_1d(ctx, later, 2, 4);
    sheaf_backend_buffer_t buffer, second;
    for (int i = 0; i < 3; i++) { /* a, b, the view */
        n_inits_until_failure = i;
        cr_assert_eq(sheaf_backend_alloc_ctx_tensors_from_buft(ctx, &test_buft, &buffer),
                     SHEAF_STATUS_FAILED);
        cr_expect(!buffer && !a->data && !a->buffer && !b->data && !b->buffer && !view->buffer);
        cr_expect_eq(n_live, 0);
    }
    n_inits_until_failure = -1;
    cr_assert_eq(sheaf_backend_alloc_ctx_tensors_from_buft(ctx, &test_buft, &buffer),
                 SHEAF_STATUS_SUCCESS);
    cr_expect(a->data && b->data && view->data == (char *)b->data + 4 && !waits->buffer);
    T *more = sheaf_new_tensor_1d(ctx, SHEAF_TYPE_F32, 5);
    n_inits_until_failure = 1; /* of `more`, and no other */
    cr_assert_eq(sheaf_backend_alloc_ctx_tensors_from_buft(ctx, &test_buft, &second),
                 SHEAF_STATUS_SUCCESS);
    cr_expect(more->buffer == second && a->buffer == buffer && n_inits_until_failure == 0);
    n_inits_until_failure = -1;
    sheaf_backend_buffer_free(buffer);
    sheaf_backend_buffer_free(second);
    sheaf_free(ctx);
    sheaf_free(other);
}

Test(core_alloc, a_context_in_one_buffer) {
    C *ctx = arena(20);
    T *a = sheaf_new_tensor_1d(ctx, SHEAF_TYPE_F32, 33), *v = sheaf_view_1d(ctx, a, 3, 8);
    T *e = sheaf_new_tensor_1d(ctx, SHEAF_TYPE_F32, 0),
      *b = sheaf_new_tensor_1d(ctx, SHEAF_TYPE_I32, 7);
    sheaf_backend_buffer_t buffer;
    cr_assert_eq(sheaf_backend_alloc_ctx_tensors_from_buft(ctx, &test_buft, &buffer),
                 SHEAF_STATUS_SUCCESS);
    cr_assert_eq(v->buffer, buffer);
    cr_assert_eq((char *)v->data - (char *)a->data, 8);
    T *all[] = {a, e, b};
    for (int i = 0; i < 3; i++) {
        cr_assert_eq((uintptr_t)all[i]->data % ALIGNMENT, 0);
        if (i)
            cr_assert_geq((char *)all[i]->data,
                          (char *)all[i - 1]->data + sheaf_nbytes(all[i - 1]) + EXTRA);
    }
    sheaf_backend_buffer_t again;
    cr_assert_eq(sheaf_backend_alloc_ctx_tensors_from_buft(ctx, &test_buft, &again),
                 SHEAF_STATUS_SUCCESS);
    cr_assert_null(again, "nothing was left to do");
    sheaf_backend_buffer_free(buffer);
    sheaf_free(ctx);

    ctx = arena(2);
    a = sheaf_new_tensor_1d(ctx, SHEAF_TYPE_F32, 100);
    max_size = 64;
    cr_assert_eq(sheaf_backend_alloc_ctx_tensors_from_buft(ctx, &test_buft, &buffer),
                 SHEAF_STATUS_ALLOC_FAILED);
    cr_assert_null(buffer);
    cr_assert(!a->buffer && !a->data);
    max_size = SIZE_MAX;
    cr_assert_eq(sheaf_backend_buft_alloc_buffer(&test_buft, 500, &buffer), SHEAF_STATUS_SUCCESS);
    struct sheaf_tallocr talloc;
    sheaf_tallocr_init(&talloc, buffer);
    cr_assert_eq(sheaf_tallocr_alloc(&talloc, a), SHEAF_STATUS_ALLOC_FAILED, "512 of 500 bytes");
    cr_assert(strstr(sheaf_last_error(), "512"), "%s", sheaf_last_error());
    talloc.offset = 501; /* as where the buffer is smaller than what its base lacks of alignment */
    cr_assert_eq(sheaf_tallocr_alloc(&talloc, a), SHEAF_STATUS_ALLOC_FAILED);
    cr_assert(strstr(sheaf_last_error(), "has 0 left"), "%s", sheaf_last_error());
    sheaf_backend_buffer_free(buffer);
    sheaf_free(ctx);
    cr_assert_eq(n_live, 0);
}

/* ---- the graph allocator ---- */

/* The op reads its operand elementwise, so that it may write where the operand lies. */
static bool elementwise(const T *t) {
    return t->op == SHEAF_OP_ADD || t->op == SHEAF_OP_MUL || t->op == SHEAF_OP_SCALE ||
           t->op == SHEAF_OP_UNARY || t->op == SHEAF_OP_RMS_NORM || t->op == SHEAF_OP_SOFT_MAX;
}
static bool only_a_view(const T *t) {
    return t->op == SHEAF_OP_VIEW || t->op == SHEAF_OP_RESHAPE || t->op == SHEAF_OP_PERMUTE ||
           t->op == SHEAF_OP_TRANSPOSE;
}
static T *owner(T *t) { return t->view_src ? t->view_src : t; }

static void stamp(T *o, uint32_t value) {
    for (size_t i = 0; i + 4 <= sheaf_nbytes(o); i += 4) memcpy((char *)o->data + i, &value, 4);
}
static bool has_stamp(const T *o, uint32_t value) {
    uint32_t v;
    for (size_t i = 0; i + 4 <= sheaf_nbytes(o); i += 4) {
        memcpy(&v, (const char *)o->data + i, 4);
        if (v != value) return false;
    }
    return true;
}

/* Plays the graph: an owner's stamp is its address, cut; a reader must find it. Returns a complaint
 * or NULL. `in_place` counts nodes that took over an operand's memory. */
static const char *play(struct sheaf_cgraph *g, int *in_place) {
    static char text[200];
    const int n = sheaf_graph_n_nodes(g);
    for (int i = 0; i < sheaf_graph_n_leafs(g); i++) {
        T *t = sheaf_graph_leaf(g, i);
        stamp(t, (uint32_t)(uintptr_t)t);
    }
    for (int i = 0; i < n; i++) {
        T *t = sheaf_graph_node(g, i), *o = owner(t);
        if (!t->data || !t->buffer) return "a node has no memory";
        if (t->view_src && (char *)t->data != (char *)o->data + t->view_offs)
            return "a view lies outside its owner";
        if (o->flags & SHEAF_TENSOR_FLAG_INPUT || !t->view_src) {
            if ((uintptr_t)o->data % ALIGNMENT) return "not aligned";
            const char *base = get_base(o->buffer);
            if ((char *)o->data < base ||
                (char *)o->data + sheaf_nbytes(o) + EXTRA > base + o->buffer->size)
                return "outside the buffer";
        }
        for (int j = 0; j < SHEAF_MAX_SRC; j++) {
            T *p = t->src[j] ? owner(t->src[j]) : NULL;
            if (!p) continue;
            if (!has_stamp(p, (uint32_t)(uintptr_t)p)) {
                snprintf(text, sizeof text, "node %d (%s): operand %d was overwritten", i,
                         sheaf_op_desc(t), j);
                return text;
            }
            const char *a = o->data, *b = p->data;
            if (only_a_view(t) || o == p || !sheaf_nbytes(o) || !sheaf_nbytes(p) ||
                a + sheaf_nbytes(o) <= b || b + sheaf_nbytes(p) <= a)
                continue;
            if (!elementwise(t) || t->data != t->src[j]->data ||
                !sheaf_are_same_layout(t, t->src[j])) {
                snprintf(text, sizeof text, "node %d (%s) overlaps operand %d that it still reads",
                         i, sheaf_op_desc(t), j);
                return text;
            }
            ++*in_place;
        }
        if (!only_a_view(t)) stamp(o, (uint32_t)(uintptr_t)o);
    }
    for (int i = 0; i < n; i++) {
        T *t = sheaf_graph_node(g, i), *o = owner(t);
        if ((t->flags & SHEAF_TENSOR_FLAG_OUTPUT) && !has_stamp(o, (uint32_t)(uintptr_t)o)) {
            snprintf(text, sizeof text, "output %d (%s) was overwritten", i, sheaf_op_desc(t));
            return text;
        }
    }
    return NULL;
}

/* A random graph over F32 tensors of a few sizes. Leaves come first in `all`. */
static struct sheaf_cgraph *random_graph(C *ctx, uint32_t seed, int n) {
    uint32_t s = seed * 7919 + 1;
    T *all[200];
    for (int i = 0; i < 6; i++) {
        all[i] = sheaf_new_tensor_2d(ctx, SHEAF_TYPE_F32, 16, 4 + 12 * (i % 2));
        if (rnd(&s) % 2) sheaf_set_input(all[i]);
    }
    for (int i = 6; i < n; i++) {
        /* mostly recent operands, so that many tensors die */
        T *a = all[rnd(&s) % 4 ? i - 1 - (int)(rnd(&s) % 5) : (int)(rnd(&s) % (uint32_t)i)];
        T *b = all[rnd(&s) % 4 ? i - 1 - (int)(rnd(&s) % 5) : (int)(rnd(&s) % (uint32_t)i)];
        T *r = NULL;
        switch (rnd(&s) % 12) {
        case 0:
            r = sheaf_scale(ctx, a, 2);
            break;
        case 1:
            r = sheaf_rms_norm(ctx, a, 0);
            break;
        case 2:
            if (a->ne[0] == b->ne[0] && !sheaf_is_transposed(b)) r = sheaf_mul_mat(ctx, b, a);
            break;
        case 3:
            if (sheaf_is_contiguous(a)) r = sheaf_reshape_2d(ctx, a, 16, sheaf_nelements(a) / 16);
            break;
        case 4:
            r = sheaf_transpose(ctx, a);
            break;
        case 5:
            r = sheaf_cont(ctx, a);
            break;
        case 6:
            if (a->ne[1] > 4 && sheaf_is_contiguous(a))
                r = sheaf_view_2d(ctx, a, a->ne[0], 4, a->nb[1], 4 * a->nb[1]);
            break;
        case 7:
            if (sheaf_nelements(a) == sheaf_nelements(b) && a != b && owner(a) != owner(b))
                r = sheaf_cpy(ctx, a, b);
            break;
        default:
            if (sheaf_can_repeat(b, a))
                r = rnd(&s) % 2 ? sheaf_add(ctx, a, b) : sheaf_mul(ctx, a, b);
            break;
        }
        if (!r) r = sheaf_silu(ctx, a);
        cr_assert_not_null(r, "%s", sheaf_last_error());
        if (sheaf_nelements(r) % 16) r = a; /* keep sizes that reshape can take */
        if (r != a && rnd(&s) % 10 == 0) sheaf_set_output(r);
        all[i] = r;
    }
    struct sheaf_cgraph *g = sheaf_new_graph(ctx);
    for (int i = 0; i < 3; i++) {
        cr_assert_eq(sheaf_build_forward_expand(g, all[n - 1 - 3 * i]), SHEAF_STATUS_SUCCESS, "%s",
                     sheaf_last_error());
    }
    return g;
}

Test(core_gallocr, live_tensors_never_overlap) {
    int in_place = 0;
    for (uint32_t seed = 0; seed < 1500; seed++) {
        C *ctx = arena(500);
        struct sheaf_cgraph *g = random_graph(ctx, seed, 20 + (int)(seed % 150));
        sheaf_gallocr_t galloc = sheaf_gallocr_new(&test_buft);
        cr_assert_eq(sheaf_gallocr_alloc_graph(galloc, g), SHEAF_STATUS_SUCCESS, "%s",
                     sheaf_last_error());
        const char *wrong = play(g, &in_place);
        cr_assert_null(wrong, "seed %u: %s", seed, wrong);
        sheaf_gallocr_free(galloc);
        sheaf_free(ctx);
    }
    cr_assert_gt(in_place, 1000, "only %d nodes ran in place: the test tries too little", in_place);
    cr_assert_eq(n_live, 0);
}

/* The checker above can fail. */
Test(core_gallocr, self_check) {
    int in_place = 0;
    C *ctx = arena(20);
    T *x = sheaf_new_tensor_2d(ctx, SHEAF_TYPE_F32, 16, 16);
    T *a = sheaf_cont(ctx, x), *b = sheaf_cont(ctx, a), *c = sheaf_add(ctx, b, a);
    struct sheaf_cgraph *g = sheaf_new_graph(ctx);
    cr_assert_eq(sheaf_build_forward_expand(g, c), SHEAF_STATUS_SUCCESS);
    sheaf_gallocr_t galloc = sheaf_gallocr_new(&test_buft);
    cr_assert_eq(sheaf_gallocr_alloc_graph(galloc, g), SHEAF_STATUS_SUCCESS);
    cr_assert_null(play(g, &in_place));
    void *good = b->data;
    b->data = a->data;
    cr_assert_not_null(play(g, &in_place), "CONT over its own operand");
    b->data = (char *)good + ALIGNMENT;
    cr_assert_not_null(play(g, &in_place), "a shifted result");
    b->data = NULL;
    cr_assert_not_null(play(g, &in_place));
    sheaf_gallocr_free(galloc);
    sheaf_free(ctx);
}

static size_t buffer_size(struct sheaf_cgraph *g) {
    sheaf_gallocr_t galloc = sheaf_gallocr_new(&test_buft);
    cr_assert_eq(sheaf_gallocr_reserve(galloc, g), SHEAF_STATUS_SUCCESS);
    const size_t size = sheaf_gallocr_get_buffer_size(galloc);
    sheaf_gallocr_free(galloc);
    return size;
}

static void expand(struct sheaf_cgraph *g, T *t) {
    cr_assert_not_null(t, "%s", sheaf_last_error());
    cr_assert_eq(sheaf_build_forward_expand(g, t), SHEAF_STATUS_SUCCESS);
}
/* x and zeros below, to so many rows */
static T *longer(C *ctx, T *x, int rows) {
    return sheaf_pad(ctx, x, (const int[4]){0}, (const int[4]){0, rows - (int)x->ne[1]}, false);
}

/* A small result goes to the smallest memory that is free, and neighbours that are free are one: in
 * each graph the last node fits between others. */
Test(core_gallocr, free_memory_is_joined_and_the_best_is_taken) {
    const size_t one = 1152, small = 128; /* of 16 x 16, of one element */
    for (int way = 0; way < 4; way++) {
        C *ctx = arena(100);
        struct sheaf_cgraph *g = sheaf_new_graph(ctx);
        T *x = sheaf_new_tensor_2d(ctx, SHEAF_TYPE_F32, 16, 16);
        T *a = way == 3 ? longer(ctx, x, 34) : sheaf_cont(ctx, x);
        T *b = sheaf_cont(ctx, x), *c = sheaf_cont(ctx, x);
        expand(g, a);
        expand(g, b);
        size_t want = 4 * one; /* x a b, a product */
        if (way == 0) {        /* the one before: what is left of a, and b */
            expand(g, sheaf_mul_mat(ctx, a, x));
            expand(g, sheaf_sum(ctx, b));
            expand(g, longer(ctx, x, 32));
        } else if (way == 1) { /* the one after: b and c */
            expand(g, c);
            expand(g, sheaf_mul_mat(ctx, a, c));
            expand(g, sheaf_mul_mat(ctx, b, x));
            expand(g, longer(ctx, x, 34));
            want += one;
        } else if (way == 2) { /* both: what is left of a, b and c */
            expand(g, c);
            expand(g, sheaf_mul_mat(ctx, a, c));
            expand(g, sheaf_sum(ctx, b));
            expand(g, longer(ctx, x, (int)(3 * one - small - 40) / 64));
            want += one;
        } else { /* c is enough for a product; a, twice as long, is for the last */
            expand(g, c);
            sheaf_set_output(b);
            expand(g, sheaf_mul_mat(ctx, a, c));
            expand(g, sheaf_mul_mat(ctx, b, x));
            expand(g, longer(ctx, x, 34));
            want += 3 * one;
        }
        cr_expect_eq(buffer_size(g), want, "way %d: %zu instead of %zu", way, buffer_size(g), want);
        sheaf_free(ctx);
    }
}

/* A buffer type that is named twice has one buffer. */
Test(core_gallocr, equal_types_share_a_buffer) {
    C *ctx = arena(10);
    struct sheaf_cgraph *g = sheaf_new_graph(ctx);
    expand(g, sheaf_cont(ctx, sheaf_new_tensor_2d(ctx, SHEAF_TYPE_F32, 16, 16)));
    const sheaf_backend_buffer_type_t types[] = {&test_buft, &test_buft};
    sheaf_gallocr_t galloc = sheaf_gallocr_new_n(types, 2);
    cr_assert_eq(sheaf_gallocr_reserve_n(galloc, g, (const int[]){1}, (const int[]){0}),
                 SHEAF_STATUS_SUCCESS);
    cr_expect_eq(sheaf_gallocr_get_buffer_size(galloc), 2 * 1152);
    for (int id = 0; id < 2; id++)
        cr_expect_eq(sheaf_gallocr_get_buffer_size_n(galloc, id), 2 * 1152);
    cr_expect_eq(sheaf_gallocr_get_buffer_size_n(galloc, 2), 0);
    cr_expect_eq(sheaf_gallocr_get_buffer_size_n(galloc, -1), 0);
    size_t bytes = 0;
    cr_assert_eq(sheaf__gallocr_measure(galloc, g, &bytes), SHEAF_STATUS_SUCCESS);
    cr_expect_eq(bytes, 2 * 1152);
    cr_assert_eq(sheaf_gallocr_alloc_graph(galloc, g), SHEAF_STATUS_SUCCESS);
    const sheaf_backend_buffer_t buffer = sheaf_graph_node(g, 0)->buffer;
    cr_expect_eq(sheaf_backend_buffer_get_usage(buffer), SHEAF_BACKEND_BUFFER_USAGE_COMPUTE);
    sheaf_gallocr_free(galloc);
    sheaf_free(ctx);
}

/* A chain takes the memory of one tensor if its ops run in place, of two if they do not, however
 * long it is. */
Test(core_gallocr, memory_is_reused) {
    const size_t one = 1152; /* 1024 + EXTRA, aligned */
    for (int n = 2; n < 40; n += 12) {
        C *ctx = arena(100);
        T *t = sheaf_new_tensor_2d(ctx, SHEAF_TYPE_F32, 16, 16), *u = t;
        for (int i = 0; i < n; i++) t = sheaf_silu(ctx, t);
        struct sheaf_cgraph *g = sheaf_new_graph(ctx);
        cr_assert_eq(sheaf_build_forward_expand(g, t), SHEAF_STATUS_SUCCESS);
        cr_assert_eq(buffer_size(g), one, "%d in place", n);
        for (int i = 0; i < n; i++) u = sheaf_cont(ctx, u);
        sheaf_graph_clear(g);
        cr_assert_eq(sheaf_build_forward_expand(g, u), SHEAF_STATUS_SUCCESS);
        cr_assert_eq(buffer_size(g), 2 * one, "%d not in place", n);
        /* through a reshape of the whole, too */
        T *w = sheaf_cont(ctx, u);
        for (int i = 0; i < 4; i++)
            w = sheaf_silu(ctx, sheaf_reshape_2d(ctx, w, 32 >> i % 2, 8 << i % 2));
        sheaf_graph_clear(g);
        cr_assert_eq(sheaf_build_forward_expand(g, w), SHEAF_STATUS_SUCCESS);
        cr_assert_eq(buffer_size(g), 2 * one);
        sheaf_free(ctx);
    }
}

/* A view that starts a little later in its owner is no place for a result, though both take the
 * same padded size. */
Test(core_gallocr, a_shifted_view_is_not_overwritten_in_place) {
    C *ctx = arena(20);
    T *x = sheaf_cont(ctx, sheaf_new_tensor_1d(ctx, SHEAF_TYPE_F32, 256));
    T *r = sheaf_silu(ctx, sheaf_view_1d(ctx, x, 255, 4));
    struct sheaf_cgraph *g = sheaf_new_graph(ctx);
    cr_assert_eq(sheaf_build_forward_expand(g, r), SHEAF_STATUS_SUCCESS);
    sheaf_gallocr_t galloc = sheaf_gallocr_new(&test_buft);
    cr_assert_eq(sheaf_gallocr_alloc_graph(galloc, g), SHEAF_STATUS_SUCCESS);
    int in_place = 0;
    const char *wrong = play(g, &in_place);
    cr_assert_null(wrong, "%s", wrong);
    sheaf_gallocr_free(galloc);
    sheaf_free(ctx);
}

/* Weights in buffers of their own are not touched, and offsets depend on the graph's structure
 * alone. */
Test(core_gallocr, same_structure_same_offsets) {
    size_t offsets[2][300];
    int n[2];
    for (int k = 0; k < 2; k++) {
        C *pad = arena((size_t)k * 3 + 1); /* other addresses */
        C *ctx = arena(500);
        struct sheaf_cgraph *g = random_graph(ctx, 77, 120);
        sheaf_gallocr_t galloc = sheaf_gallocr_new(&test_buft);
        cr_assert_eq(sheaf_gallocr_alloc_graph(galloc, g), SHEAF_STATUS_SUCCESS);
        n[k] = sheaf_graph_n_nodes(g);
        for (int i = 0; i < n[k]; i++) {
            const T *t = sheaf_graph_node(g, i);
            offsets[k][i] = (size_t)((char *)t->data - (char *)get_base(t->buffer));
        }
        sheaf_gallocr_free(galloc);
        sheaf_free(ctx);
        sheaf_free(pad);
    }
    cr_assert_eq(n[0], n[1]);
    cr_assert_arr_eq(offsets[0], offsets[1], (size_t)n[0] * sizeof(size_t));
}

static T *chain(C *ctx, int64_t rows, T *weight, struct sheaf_cgraph **g) {
    T *x = sheaf_new_tensor_2d(ctx, SHEAF_TYPE_F32, 16, rows);
    T *r = sheaf_cont(ctx, sheaf_mul_mat(ctx, weight, x));
    *g = sheaf_new_graph_custom(ctx, 16);
    cr_assert_eq(sheaf_build_forward_expand(*g, r), SHEAF_STATUS_SUCCESS);
    return r;
}

/* The buffer grows twice; a graph placed before the first growth is placed anew, and a foreign
 * buffer that malloc puts where a freed one was is still foreign. */
Test(core_gallocr, growing_moves_old_graphs_and_spares_other_buffers) {
    C *ctx = arena(100);
    T *weight = sheaf_new_tensor_2d(ctx, SHEAF_TYPE_F32, 16, 16);
    sheaf_backend_buffer_t weights;
    cr_assert_eq(sheaf_backend_alloc_ctx_tensors_from_buft(ctx, &test_buft, &weights),
                 SHEAF_STATUS_SUCCESS);
    void *place = weight->data;
    sheaf_gallocr_t galloc = sheaf_gallocr_new(&test_buft);
    enum { N = 6 };
    struct sheaf_cgraph *g[N];
    sheaf_backend_buffer_t others[N]; /* each may get the address of the buffer just outgrown */
    C *contexts[N];
    T *state[N];
    void *at[N];
    int in_place = 0;
    for (int i = 0; i < N; i++) {
        contexts[i] = arena(20);
        state[i] = sheaf_new_tensor_2d(contexts[i], SHEAF_TYPE_F32, 16, 16);
    }
    for (int i = 0; i < N; i++) {
        chain(ctx, 4 << 2 * i, weight, &g[i]);
        cr_assert_eq(sheaf_gallocr_alloc_graph(galloc, g[i]), SHEAF_STATUS_SUCCESS);
        cr_assert_eq(sheaf_backend_alloc_ctx_tensors_from_buft(contexts[i], &test_buft, &others[i]),
                     SHEAF_STATUS_SUCCESS);
        at[i] = state[i]->data;
        cr_assert_null(play(g[i], &in_place));
    }
    cr_assert_eq(n_live, 2 + N, "%zu buffers: the outgrown ones are freed", n_live);
    char byte = 0;
    cr_assert_eq(sheaf_backend_tensor_set(sheaf_graph_node(g[0], 0), &byte, 0, 1),
                 SHEAF_STATUS_INVALID);
    cr_assert(strstr(sheaf_last_error(), "allocate the graph again"), "%s", sheaf_last_error());
    for (int i = 0; i < N; i++) {
        cr_assert_eq(sheaf_gallocr_alloc_graph(galloc, g[i]), SHEAF_STATUS_SUCCESS);
        for (int j = 0; j < sheaf_graph_n_nodes(g[i]); j++) {
            T *t = sheaf_graph_node(g[i], j);
            cr_assert_eq(t->buffer, sheaf_graph_node(g[N - 1], 0)->buffer, "graph %d, node %d", i,
                         j);
        }
        const char *wrong = play(g[i], &in_place);
        cr_assert_null(wrong, "graph %d: %s", i, wrong);
    }
    cr_assert_eq(weight->data, place);
    for (int i = 0; i < N; i++) {
        struct sheaf_cgraph *h;
        chain(contexts[i], 4, state[i], &h);
        cr_assert_eq(sheaf_gallocr_alloc_graph(galloc, h), SHEAF_STATUS_SUCCESS);
        cr_assert_eq(state[i]->buffer, others[i], "buffer %d was taken for an outgrown one", i);
        cr_assert_eq(state[i]->data, at[i]);
        sheaf_backend_buffer_free(others[i]);
        sheaf_free(contexts[i]);
    }
    sheaf_gallocr_free(galloc);
    sheaf_gallocr_free(NULL);
    sheaf_backend_buffer_free(weights);
    cr_assert_eq(n_live, 0);
    sheaf_free(ctx);
}

Test(core_gallocr, no_memory_is_an_error) {
    C *ctx = arena(100);
    struct sheaf_cgraph *g = random_graph(ctx, 5, 50);
    sheaf_gallocr_t galloc = sheaf_gallocr_new(&test_buft);
    max_size = 100;
    cr_assert_eq(sheaf_gallocr_alloc_graph(galloc, g), SHEAF_STATUS_ALLOC_FAILED);
    cr_assert_eq(sheaf_gallocr_get_buffer_size(galloc), 0);
    max_size = SIZE_MAX;
    int in_place = 0;
    cr_assert_eq(sheaf_gallocr_alloc_graph(galloc, g), SHEAF_STATUS_SUCCESS);
    cr_assert_null(play(g, &in_place), "after a failure it works again");
    sheaf_gallocr_free(galloc);
    sheaf_free(ctx);
}

/* ---- registry ---- */

static const char *reg_name(sheaf_backend_reg_t reg) {
    (void)reg;
    return "TestReg";
}
static size_t no_devices(sheaf_backend_reg_t reg) {
    (void)reg;
    return 0;
}
static const struct sheaf_backend_reg_i reg_i = {.get_name = reg_name,
                                                 .get_device_count = no_devices};

Test(core_registry, registration_checks_the_interface_version) {
    static struct sheaf_backend_reg good = {SHEAF_BACKEND_API_VERSION, &reg_i, NULL},
                                    old = {0, &reg_i, NULL};
    const size_t before = sheaf_backend_reg_count();
    cr_assert_eq(sheaf_backend_register(&old), SHEAF_STATUS_UNSUPPORTED);
    cr_assert(strstr(sheaf_last_error(), "version 0"), "%s", sheaf_last_error());
    cr_assert_eq(sheaf_backend_register(NULL), SHEAF_STATUS_UNSUPPORTED);
    cr_assert_eq(sheaf_backend_register(&good), SHEAF_STATUS_SUCCESS);
    cr_assert_eq(sheaf_backend_register(&good), SHEAF_STATUS_SUCCESS, "twice is once");
    cr_assert_eq(sheaf_backend_reg_count(), before + 1);
    cr_assert_eq(sheaf_backend_reg_by_name("testreg"), &good, "case does not matter");
    cr_assert_null(sheaf_backend_reg_by_name("absent"));
    cr_assert_null(sheaf_backend_reg_get(before + 1));
    cr_assert_null(sheaf_backend_reg_get_proc_address(&good, "x"));
    sheaf_backend_t backend;
    cr_assert_eq(sheaf_backend_init_by_name("absent", NULL, &backend), SHEAF_STATUS_INVALID);
    cr_assert(strstr(sheaf_last_error(), "'absent'"));
    static struct sheaf_backend_reg many[40];
    enum sheaf_status st = SHEAF_STATUS_SUCCESS;
    for (int i = 0; i < 40 && !st; i++) {
        many[i] = good;
        st = sheaf_backend_register(&many[i]);
    }
    cr_assert_eq(st, SHEAF_STATUS_FAILED, "the registry has an end, and says so");
}
