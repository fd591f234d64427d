/* Does a device compute a node? ggml asks before it gives a node to the device. */
#include <string.h>

#include "base/hash.h"
#include "ggml/calls.h"
#include "ggml/driver_impl.h"
#include "ggml/translate.h"

struct question {
    size_t device;
    const struct gg_tensor *op;
};

/* What all ranks have answered, by a hash of device and question. A program asks the same for each graph that it
 * builds; a message would wait for ranks that compute. */
static struct answer {
    uint64_t question;
    enum sheaf_status status; /* SUCCESS or UNSUPPORTED */
} answers[4096];

static enum sheaf_status ask(size_t device, const struct gg_encoder *e) {
    struct gg_command c = {.kind = GG_COMMAND_ASK,
                           .device = (uint32_t)device,
                           .n_records = e->n_made,
                           .size = e->graph.n};
    return gg_send(&c, e->graph.data, NULL);
}

/* What a device can do does not depend on where operands lie. */
static enum sheaf_status supports_task(void *argument) {
    const struct question *q = argument;
    struct gg_encoder *e = &gg_driver.encoder;
    enum sheaf_status st = gg_encode_question(e, q->op);
    if (st) return st;
    const uint64_t h = sheaf__hash_bytes(q->device + 1, e->graph.data, e->graph.n);
    struct answer *a = &answers[h % (sizeof answers / sizeof *answers)];
    if (a->question == h) return a->status;
    st = ask(q->device, e);
    if (!st || st == SHEAF_STATUS_UNSUPPORTED) *a = (struct answer){h, st};
    return st;
}

static bool is_asked_here(size_t device, const struct sheaf_tensor *node) {
    return sheaf_backend_dev_supports_op(gg_engine_device(gg_driver.engine, device), node);
}

/* A result that is written over an operand is copied there afterwards. */
static bool can_copy_into(size_t device, const struct gg_tensor *t,
                          const struct sheaf_tensor *node) {
    struct sheaf_tensor from = *node, copy = *node;
    copy.op = SHEAF_OP_CPY;
    memset(copy.op_params, 0, sizeof copy.op_params);
    memset(copy.src, 0, sizeof copy.src);
    from.op = SHEAF_OP_NONE;
    copy.src[0] = &from;
    copy.src[1] = &from;
    return !t->view_src || is_asked_here(device, &copy);
}

/* A result in another device's memory: the scheduler copies views of it before this device has
 * written them. */
static bool is_written_here(size_t device, const struct gg_tensor *root) {
    if (root->buffer && !gg_plugin_is_for_us(root, device)) return false;
    return root->op == 0 || gg_driver_supports(device, root);
}

static void set_rows(struct gg_tensor *t, int64_t n, int64_t rows) {
    const int64_t ne[] = {n, rows, 1, 1};
    memcpy(t->ne, ne, sizeof ne);
    t->nb[1] = t->nb[0] * (size_t)n;
    t->nb[2] = t->nb[3] = t->nb[1] * (size_t)rows;
}

/* The node of t, or a copy of it with other operands. */
struct asked {
    const struct gg_tensor *node;
    struct gg_tensor copy, first, state;
};

/* llama.cpp asks where to put a weight by a node whose other operands it makes up. Those of RWKV_WKV6 do not fit
 * the weight, time_mix_first [head size, heads], and its states have four dimensions where a graph's have two. */
static void fit_operands(const struct gg_tensor *t, struct asked *a) {
    a->node = t;
    if (gg_op_of(gg_driver.host, t->op) != SHEAF_OP_RWKV_WKV6) return;
    if (!t->src[0] || !t->src[3] || !t->src[5]) return; /* it is refused as it is */
    const int64_t size = t->src[0]->ne[0], heads = t->src[0]->ne[1];
    a->copy = *t;
    a->first = *t->src[3];
    a->state = *t->src[5];
    set_rows(&a->first, size, heads);
    set_rows(&a->state, size * size * heads, a->state.ne[1]);
    a->copy.src[3] = &a->first;
    a->copy.src[5] = &a->state;
    a->node = &a->copy;
}

bool gg_driver_supports(size_t device, const struct gg_tensor *asked) {
    struct asked a;
    fit_operands(asked, &a);
    const struct gg_tensor *t = a.node;
    struct sheaf_tensor node, operand[SHEAF_MAX_SRC];
    struct gg_operands o;
    if (t->op == 0) return gg_type_of(gg_driver.host, t->type) >= 0;
    if (!gg_translate(gg_driver.host, t, &node, &o)) return false;
    for (int i = 0; i < SHEAF_MAX_SRC && o.order[i] >= 0; i++) {
        const struct gg_tensor *src = t->src[o.order[i]];
        if (!src) continue;
        if (!gg_operand(gg_driver.host, &o, i, src, &operand[i])) return false;
        node.src[i] = &operand[i];
    }
    if (gg_is_view(&node)) return true;
    if (t->view_src && !is_written_here(device, t->view_src)) return false;
    struct question q = {device, t};
    if (gg_engine_asks_all(gg_driver.engine, device)) return !gg_call(supports_task, &q);
    return is_asked_here(device, &node) &&
           (gg_writes_operand(&node) || can_copy_into(device, t, &node));
}
