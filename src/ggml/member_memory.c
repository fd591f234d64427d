/* Buffers of a ggml device as buffers of ours. Offsets and sizes were checked by the library. */
#include <stdlib.h>
#include <string.h>

#include "base/arith.h"
#include "base/array.h"
#include "base/pages.h"
#include "ggml/member.h"

static const struct gg_library *lib_of(const struct gg_member_buffer *b) { return b->member->lib; }

/* ---- descriptors ---- */

/* A tensor of a type that this ggml lacks is so many bytes to it: nothing computes with it. */
static void as_bytes(const struct gg_library *lib, const struct sheaf_tensor *t,
                     struct gg_tensor *out) {
    out->type = lib->type[SHEAF_TYPE_F32];
    for (int i = 0; i < GG_MAX_DIMS; i++) {
        out->ne[i] = i ? 1 : (int64_t)((sheaf_nbytes(t) + 3) / 4);
        out->nb[i] = i ? (size_t)out->ne[0] * 4 : 4;
    }
}

struct gg_tensor gg_member_describe_shape(const struct gg_member *m, const struct sheaf_tensor *t) {
    struct gg_tensor out = {0};
    gg_describe_shape(m->lib, t, &out);
    if (out.type < 0) as_bytes(m->lib, t, &out);
    return out;
}

struct gg_tensor gg_member_describe(const struct gg_member *m, const struct sheaf_tensor *t) {
    struct gg_tensor out = gg_member_describe_shape(m, t);
    const struct gg_member_buffer *b = gg_member_buffer_of(t);
    out.buffer = b ? b->gg : NULL;
    out.data = t->data;
    return out;
}

/* ---- buffers ---- */

static uint64_t next_serial(void) {
    static uint64_t n_made;
    return __atomic_add_fetch(&n_made, 1, __ATOMIC_RELAXED);
}

static struct gg_member_buffer *context_of(sheaf_backend_buffer_t buffer) {
    return (struct gg_member_buffer *)buffer->context;
}

static void buffer_free(sheaf_backend_buffer_t buffer) {
    struct gg_member_buffer *b = context_of(buffer);
    lib_of(b)->buffer_free(b->gg);
    for (size_t i = 0; i < b->n_kept; i++) {
        gg_packed_free(lib_of(b), b->kept[i]);
        free(b->kept[i]);
    }
    free(b->kept);
    free(b);
}

static void *buffer_base(sheaf_backend_buffer_t buffer) {
    const struct gg_member_buffer *b = context_of(buffer);
    return lib_of(b)->buffer_get_base(b->gg);
}

/* Graphs point to kept descriptors, so none changes: another layout at the same address gets its
 * own. */
static struct gg_tensor *kept_like(const struct gg_member_buffer *b, const struct gg_tensor *like,
                                   const void *data) {
    for (size_t i = 0; i < b->n_kept; i++) {
        struct gg_tensor *k = &b->kept[i]->gg;
        if (k->data == data && gg_has_layout(k, like)) return k;
    }
    return NULL;
}

static struct gg_tensor *keep(struct gg_member_buffer *b, const struct gg_tensor *like) {
    struct gg_kept *k = calloc(1, sizeof *k);
    if (!k || !sheaf__grow(&b->kept, &b->cap_kept, b->n_kept + 1, sizeof *b->kept)) {
        free(k);
        return NULL;
    }
    k->gg = *like;
    b->kept[b->n_kept++] = k;
    return &k->gg;
}

/* A tensor may name one of another buffer, or of none any more. */
struct gg_kept *gg_member_kept(const struct sheaf_tensor *t) {
    const struct sheaf_tensor *root = t->view_src ? t->view_src : t;
    const struct gg_member_buffer *b = root->extra ? gg_member_buffer_of(root) : NULL;
    for (size_t i = 0; b && i < b->n_kept; i++)
        if (&b->kept[i]->gg == root->extra && b->kept[i]->gg.data == root->data) return b->kept[i];
    return NULL;
}

static enum sheaf_status buffer_init_tensor(sheaf_backend_buffer_t buffer, struct sheaf_tensor *t) {
    struct gg_member_buffer *b = context_of(buffer);
    if (t->view_src || t->op != SHEAF_OP_NONE || !t->data || sheaf_is_empty(t) ||
        buffer->usage == SHEAF_BACKEND_BUFFER_USAGE_COMPUTE)
        return SHEAF_STATUS_SUCCESS;
    struct gg_tensor once = gg_member_describe_shape(b->member, t);
    struct gg_tensor *kept = kept_like(b, &once, t->data), *placed = &once;
    if (!kept) placed = kept = keep(b, &once);
    if (!kept)
        return sheaf_set_error(SHEAF_STATUS_ALLOC_FAILED, "%s: no memory to describe '%s'",
                               b->member->name, t->name);
    /* also where one is kept: a device may clear what lies behind a tensor, and another tensor may
     * have written there since */
    if (lib_of(b)->tensor_alloc(b->gg, placed, t->data))
        return sheaf_set_error(SHEAF_STATUS_FAILED, "%s: cannot place '%s' (%s)", b->member->name,
                               t->name, gg_library_text(lib_of(b)));
    t->extra = kept;
    return SHEAF_STATUS_SUCCESS;
}

static enum sheaf_status buffer_set(sheaf_backend_buffer_t buffer, struct sheaf_tensor *t,
                                    const void *data, size_t offset, size_t size) {
    const struct gg_member_buffer *b = context_of(buffer);
    struct gg_tensor gg = gg_member_describe(b->member, t);
    bool done;
    const enum sheaf_status st = gg_write_packed(t, data, offset, size, &done);
    if (!st && !done) lib_of(b)->tensor_set(&gg, data, offset, size);
    return st;
}

static enum sheaf_status buffer_get(sheaf_backend_buffer_t buffer, const struct sheaf_tensor *t,
                                    void *data, size_t offset, size_t size) {
    const struct gg_member_buffer *b = context_of(buffer);
    const struct gg_tensor gg = gg_member_describe(b->member, t);
    const enum sheaf_status st = gg_read_as_written(t, "read");
    if (!st) lib_of(b)->tensor_get(&gg, data, offset, size);
    return st;
}

static enum sheaf_status buffer_memset(sheaf_backend_buffer_t buffer, struct sheaf_tensor *t,
                                       uint8_t value, size_t offset, size_t size) {
    enum { PART = 1 << 16 };
    const struct gg_member_buffer *b = context_of(buffer);
    struct gg_tensor gg = gg_member_describe(b->member, t);
    const enum sheaf_status st = gg_refuse_packed(t, "fill");
    if (st) return st;
    if (b->gg->iface.memset_tensor) {
        b->gg->iface.memset_tensor(b->gg, &gg, value, offset, size);
        return SHEAF_STATUS_SUCCESS;
    }
    char *part = malloc(PART);
    if (!part)
        return sheaf_set_error(SHEAF_STATUS_ALLOC_FAILED, "%s: out of memory", b->member->name);
    memset(part, value, PART);
    for (size_t at = 0; at < size; at += PART)
        lib_of(b)->tensor_set(&gg, part, offset + at, sheaf__min_size(size - at, PART));
    free(part);
    return SHEAF_STATUS_SUCCESS;
}

/* Between memories of the library's devices; what may lie between strided rows is another's. */
static bool buffer_copy(sheaf_backend_buffer_t buffer, const struct sheaf_tensor *src,
                        struct sheaf_tensor *dst) {
    const struct gg_member_buffer *to = context_of(buffer), *from = gg_member_buffer_of(src);
    if (!from || !sheaf_is_contiguous(src) || gg_is_packed(dst) || gg_read_as_written(src, "copy"))
        return false;
    const struct gg_tensor gg_src = gg_member_describe(from->member, src);
    struct gg_tensor gg_dst = gg_member_describe(to->member, dst);
    lib_of(to)->tensor_copy(&gg_src, &gg_dst);
    return true;
}

static enum sheaf_status buffer_clear(sheaf_backend_buffer_t buffer, uint8_t value) {
    const struct gg_member_buffer *b = context_of(buffer);
    for (size_t i = 0; i < b->n_kept; i++)
        if (b->kept[i]->packed_in)
            return sheaf_set_error(SHEAF_STATUS_UNSUPPORTED,
                                   "%s: clear: the device has '%s' in a layout of its own; "
                                   "SHEAF_GGML_REPACK=0 keeps weights as they are",
                                   b->member->name, b->kept[i]->gg.name);
    lib_of(b)->buffer_clear(b->gg, value);
    return SHEAF_STATUS_SUCCESS;
}

static void buffer_set_usage(sheaf_backend_buffer_t buffer, enum sheaf_backend_buffer_usage usage) {
    const struct gg_member_buffer *b = context_of(buffer);
    lib_of(b)->buffer_set_usage(b->gg, (int)usage);
}

static const struct sheaf_backend_buffer_i buffer_i = {
    .free_buffer = buffer_free,
    .get_base = buffer_base,
    .init_tensor = buffer_init_tensor,
    .memset_tensor = buffer_memset,
    .set_tensor = buffer_set,
    .get_tensor = buffer_get,
    .cpy_tensor = buffer_copy,
    .clear = buffer_clear,
    .set_usage = buffer_set_usage,
};

const struct gg_member_buffer *gg_member_buffer_of(const struct sheaf_tensor *t) {
    const struct sheaf_tensor *owner = t->view_src ? t->view_src : t;
    return owner->buffer && owner->buffer->iface == &buffer_i ? context_of(owner->buffer) : NULL;
}

void gg_member_buffer_renew(const struct sheaf_tensor *t) {
    const struct sheaf_tensor *owner = t->view_src ? t->view_src : t;
    context_of(owner->buffer)->serial = next_serial();
}

/* ---- buffer types ---- */

static struct gg_buft *buft_of(sheaf_backend_buffer_type_t buft) {
    return (struct gg_buft *)buft->context;
}

static const char *buft_name(sheaf_backend_buffer_type_t buft) {
    return gg_member_of(buft->device)->name;
}

static enum sheaf_status buft_alloc(sheaf_backend_buffer_type_t buft, size_t size,
                                    sheaf_backend_buffer_t *out) {
    struct gg_member *m = gg_member_of(buft->device);
    struct gg_member_buffer *b = calloc(1, sizeof *b);
    *out = NULL;
    if (!b) goto fail;
    b->member = m;
    b->serial = next_serial();
    /* ggml's empty buffers have no address */
    b->gg = m->lib->buft_alloc_buffer(buft_of(buft),
                                      size ? size : m->lib->buft_get_alignment(buft_of(buft)));
    if (!b->gg) goto fail;
    if (m->lib->buft_is_host(buft_of(buft))) /* ggml takes it from the heap, in small pages */
        sheaf__pages_large(m->lib->buffer_get_base(b->gg), size);
    *out = sheaf_backend_buffer_init(buft, &buffer_i, b, size);
    if (*out) return SHEAF_STATUS_SUCCESS;
    m->lib->buffer_free(b->gg);
fail:
    free(b);
    return sheaf_set_error(SHEAF_STATUS_ALLOC_FAILED, "%s: no memory for %zu bytes (%s)", m->name,
                           size, gg_library_text(m->lib));
}

static size_t buft_alignment(sheaf_backend_buffer_type_t buft) {
    return gg_member_of(buft->device)->lib->buft_get_alignment(buft_of(buft));
}
static size_t buft_max_size(sheaf_backend_buffer_type_t buft) {
    return gg_member_of(buft->device)->lib->buft_get_max_size(buft_of(buft));
}
/* Never less than the bytes that transfers may touch. */
static size_t buft_alloc_size(sheaf_backend_buffer_type_t buft, const struct sheaf_tensor *t) {
    const size_t own = sheaf_nbytes(t);
    const size_t n = gg_member_alloc_size(gg_member_of(buft->device), buft_of(buft), t);
    return n > own ? n : own;
}
/* Memory in which weights may be packed is reached through the functions above alone. */
static bool buft_is_host(sheaf_backend_buffer_type_t buft) {
    const struct gg_member *m = gg_member_of(buft->device);
    return m->lib->buft_is_host(buft_of(buft)) && !m->n_layouts;
}

const struct sheaf_backend_buffer_type_i gg_member_buft_i = {
    .get_name = buft_name,
    .alloc_buffer = buft_alloc,
    .get_alignment = buft_alignment,
    .get_max_size = buft_max_size,
    .get_alloc_size = buft_alloc_size,
    .is_host = buft_is_host,
};
