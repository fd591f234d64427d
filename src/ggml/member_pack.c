/* Weights in a layout of the device.
 *
 * ggml's CPU device multiplies faster by some types whose rows are interleaved. It has types of
 * buffers for them, which rearrange a tensor that is written whole and cannot be read. A weight is
 * complete when the first graph multiplies by it: it is then written into such a buffer, and the
 * pages where it lay go back to the system, so that it is in memory once. This is done to weights
 * that only products read (SHEAF_BACKEND_TENSOR_FACTOR), if the device says of the very node that
 * it computes it so.
 *
 * Invariant: a weight that is packed stays packed, since graphs point to its descriptor; what would
 * read it as it was written is refused with words. A new value may come in parts, in their order: it
 * lies where the weight lay at first until all of it is there. Other parts are refused. */
#include <string.h>

#include "base/pages.h"
#include "ggml/log.h"
#include "ggml/member.h"
#include "sheaf/settings.h"

/* ---- the device's layouts ---- */

static bool is_off(void) {
    const char *value = sheaf_setting_value("SHEAF_GGML_REPACK");
    return value && !strcmp(value, "0");
}

void gg_find_layouts(struct gg_member *m) {
    struct gg_buft **(*list)(struct gg_device * dev) = NULL;
    struct gg_reg *reg = m->lib->dev_backend_reg(m->dev);
    void *f = m->lib->reg_get_proc_address(reg, "ggml_backend_dev_get_extra_bufts");
    memcpy(&list, &f, sizeof list);
    m->n_layouts = 0;
    if (!f || is_off() || !m->lib->buft_is_host(m->gg_buft)) return;
    struct gg_buft **bufts = list(m->dev);
    for (; bufts && *bufts && m->n_layouts < GG_MAX_LAYOUTS; bufts++) {
        struct gg_layout *l = &m->layouts[m->n_layouts];
        l->buft = *bufts;
        l->nothing = m->lib->buft_alloc_buffer(*bufts, 0);
        m->n_layouts += l->nothing != NULL;
    }
}

/* Rows side by side, even where there is one: other graphs have more of them. Once a weight is
 * packed one is as good as dense, such as a token's part of a row of the whole, for which graphs of
 * more tokens have a copy. */
static bool is_dense(const struct sheaf_tensor *t) {
    for (int i = 1; i < SHEAF_MAX_DIMS; i++)
        if (t->nb[i] != t->nb[i - 1] * (size_t)t->ne[i - 1]) return false;
    return true;
}

/* A library says that it computes views of what it has packed, and products whose columns its
 * packed kernels take for dense or for those of one matrix. Rows of one block of 32 have wrong sums
 * with 32 columns and more (kernels for AMX of ggml 0.27). */
static bool is_plain_product(const struct sheaf_tensor *node, bool is_packed) {
    enum { SHORT = 32 };
    const struct sheaf_tensor *w = node->src[0], *x = node->src[1];
    const bool one = node->op == SHEAF_OP_MUL_MAT, by_id = node->op == SHEAF_OP_MUL_MAT_ID;
    if ((!one && !by_id) || w->ne[0] <= SHORT) return false;
    if (!(is_packed ? sheaf_is_contiguous(x) : is_dense(x))) return false;
    return w->ne[3] == 1 && (by_id || w->ne[2] * x->ne[2] * x->ne[3] == 1);
}

/* The one in which the device computes `node` with a weight like `like`; NULL: none. */
static const struct gg_layout *layout_for(const struct gg_member *m, const struct gg_tensor *like,
                                          const struct gg_tensor *node) {
    for (int i = 0; i < m->n_layouts; i++) {
        struct gg_tensor weight = *like, with = *node;
        weight.buffer = m->layouts[i].nothing;
        weight.data = weight.extra = NULL;
        with.src[0] = &weight;
        if (m->lib->dev_supports_op(m->dev, &with)) return &m->layouts[i];
    }
    return NULL;
}

/* ---- packing ---- */

/* Memory that nothing reads any more. */
static void give_back(void *data, size_t size) { sheaf__pages_advise(data, size, MADV_DONTNEED); }

static bool pack(const struct gg_member *m, struct gg_kept *k, const struct gg_layout *l,
                 size_t size) {
    const struct gg_library *lib = m->lib;
    k->packed = k->gg;
    k->packed.buffer = NULL;
    k->packed.data = k->packed.extra = NULL;
    struct gg_buffer *buffer =
        lib->buft_alloc_buffer(l->buft, lib->buft_get_alloc_size(l->buft, &k->packed));
    if (!buffer) return false;
    lib->buffer_set_usage(buffer, GG_USAGE_WEIGHTS);
    if (lib->tensor_alloc(buffer, &k->packed, lib->buffer_get_base(buffer))) {
        lib->buffer_free(buffer);
        return false;
    }
    sheaf__pages_large(k->packed.data, size);
    lib->tensor_set(&k->packed, k->gg.data, 0, size);
    k->packed_in = buffer;
    give_back(k->gg.data, size);
    return true;
}

static void log_left(const struct gg_member *m, const struct sheaf_tensor *weight,
                     const struct gg_kept *k) {
    if (gg_logs_details())
        sheaf_log(SHEAF_LOG_DEBUG,
                  "%s: '%s' stays as the file has it: before its first product something had to %s "
                  "it",
                  m->name, weight->name, k->read_as_written);
}

struct gg_tensor *gg_pack(const struct sheaf_tensor *weight, const struct sheaf_tensor *node,
                          const struct gg_tensor *gg) {
    struct gg_kept *k = gg_member_kept(weight);
    const bool may = k && is_plain_product(node, k->packed_in != NULL) && !weight->view_src &&
                     weight->flags & SHEAF_BACKEND_TENSOR_FACTOR && sheaf_is_contiguous(weight);
    if (!may) return NULL;
    const struct gg_member *m = gg_member_buffer_of(weight)->member;
    const struct gg_layout *l = k->renewed ? NULL : layout_for(m, &k->gg, gg);
    if (!l || (k->packed_in && l->buft != k->packed_in->buft)) return NULL;
    if (!k->packed_in && k->read_as_written) {
        if (!k->is_told) log_left(m, weight, k);
        k->is_told = true;
        return NULL;
    }
    if (!k->packed_in && !pack(m, k, l, sheaf_nbytes(weight))) return NULL;
    return &k->packed;
}

void gg_packed_free(const struct gg_library *lib, struct gg_kept *k) {
    if (k->packed_in) lib->buffer_free(k->packed_in);
    k->packed_in = NULL;
}

/* ---- other readers and writers ---- */

static struct gg_kept *factor_of(const struct sheaf_tensor *t) {
    const struct sheaf_tensor *root = t->view_src ? t->view_src : t;
    return root->flags & SHEAF_BACKEND_TENSOR_FACTOR ? gg_member_kept(root) : NULL;
}

bool gg_is_packed(const struct sheaf_tensor *t) {
    const struct gg_kept *k = factor_of(t);
    return k && k->packed_in;
}

enum sheaf_status gg_refuse_packed(const struct sheaf_tensor *t, const char *what) {
    if (!gg_is_packed(t)) return SHEAF_STATUS_SUCCESS;
    const char *why = factor_of(t)->renewed
                          ? "only a part of its new value is written"
                          : "the device has the weight in a layout of its own since the first "
                            "product; SHEAF_GGML_REPACK=0 keeps weights as they are";
    return sheaf_set_error(SHEAF_STATUS_UNSUPPORTED, "%s: %s '%s': %s",
                           gg_member_buffer_of(t)->member->name, what,
                           (t->view_src ? t->view_src : t)->name, why);
}

enum sheaf_status gg_read_as_written(const struct sheaf_tensor *t, const char *what) {
    struct gg_kept *k = factor_of(t);
    if (k && !k->read_as_written) k->read_as_written = what; /* from now on it is not packed */
    return gg_refuse_packed(t, what);
}

/* The value in `data` becomes that of the packed weight. */
static void pack_anew(const struct sheaf_tensor *t, struct gg_kept *k, const void *data) {
    gg_member_buffer_of(t)->member->lib->tensor_set(&k->packed, data, 0, sheaf_nbytes(t));
    if (k->renewed) give_back(k->gg.data, k->renewed);
    k->renewed = 0;
}

enum sheaf_status gg_write_packed(const struct sheaf_tensor *t, const void *data, size_t offset,
                                  size_t size, bool *done) {
    struct gg_kept *k = factor_of(t);
    *done = k && k->packed_in && !t->view_src && (!offset || offset == k->renewed);
    if (!*done) return gg_refuse_packed(t, "write a part of");
    if (!offset && size == sheaf_nbytes(t)) {
        pack_anew(t, k, data);
        return SHEAF_STATUS_SUCCESS;
    }
    if (!k->renewed) gg_member_buffer_renew(t);
    memcpy((char *)k->gg.data + offset, data, size);
    k->renewed = offset + size;
    if (k->renewed == sheaf_nbytes(t)) pack_anew(t, k, k->gg.data);
    return SHEAF_STATUS_SUCCESS;
}
