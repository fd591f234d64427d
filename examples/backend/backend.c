/* A backend with one device that adds, multiplies and scales F32 tensors, and the two functions by
 * which it is a module. Everything else is left to other devices: supports_op says so. */
#include <stdlib.h>
#include <string.h>

#include "example.h"

static long n_computed; /* nodes that the device has computed; see example_n_computed */

/* ---- ops: a, b and dst are contiguous F32; b repeats to the shape of a ---- */

static void binary(struct sheaf_tensor *dst, float (*fn)(float, float)) {
    const struct sheaf_tensor *a = dst->src[0], *b = dst->src[1];
    const float *x = (const float *)example_memory(a), *y = (const float *)example_memory(b);
    float *z = (float *)example_memory(dst);
    for (int64_t r = 0; r < sheaf_nrows(a); r++) {
        const int64_t i1 = r % a->ne[1], i2 = r / a->ne[1] % a->ne[2];
        const int64_t i3 = r / a->ne[1] / a->ne[2];
        const int64_t row_b =
            ((i3 % b->ne[3]) * b->ne[2] + i2 % b->ne[2]) * b->ne[1] + i1 % b->ne[1];
        for (int64_t i = 0; i < a->ne[0]; i++) {
            z[r * a->ne[0] + i] = fn(x[r * a->ne[0] + i], y[row_b * b->ne[0] + i % b->ne[0]]);
        }
    }
}

static float plus(float a, float b) { return a + b; }
static float times(float a, float b) { return a * b; }
static void add(struct sheaf_tensor *dst) { binary(dst, plus); }
static void mul(struct sheaf_tensor *dst) { binary(dst, times); }

static void scale(struct sheaf_tensor *dst) {
    const float *x = (const float *)example_memory(dst->src[0]);
    float *z = (float *)example_memory(dst), factor, bias;
    memcpy(&factor, &dst->op_params[0], sizeof factor); /* sheaf/ops.h says where they are */
    memcpy(&bias, &dst->op_params[1], sizeof bias);
    for (int64_t i = 0; i < sheaf_nelements(dst); i++) z[i] = x[i] * factor + bias;
}

static const struct {
    bool supported;
    void (*compute)(struct sheaf_tensor *dst); /* NULL: nothing to do */
} ops[SHEAF_OP_COUNT] = {
    [SHEAF_OP_NONE] = {true, NULL},      [SHEAF_OP_RESHAPE] = {true, NULL},
    [SHEAF_OP_VIEW] = {true, NULL},      [SHEAF_OP_PERMUTE] = {true, NULL},
    [SHEAF_OP_TRANSPOSE] = {true, NULL}, [SHEAF_OP_ADD] = {true, add},
    [SHEAF_OP_MUL] = {true, mul},        [SHEAF_OP_SCALE] = {true, scale},
};

static bool supports_op(sheaf_backend_dev_t dev, const struct sheaf_tensor *op) {
    (void)dev;
    if ((unsigned)op->op >= SHEAF_OP_COUNT || !ops[op->op].supported) return false;
    if (!ops[op->op].compute) return true;
    for (int i = -1; i < SHEAF_MAX_SRC; i++) {
        const struct sheaf_tensor *t = i < 0 ? op : op->src[i];
        if (t && (t->type != SHEAF_TYPE_F32 || !sheaf_is_contiguous(t))) return false;
    }
    return true;
}

/* ---- backend: works at once, so there is nothing to wait for in synchronize ---- */

static const char *name(void) { return "Example0"; }
static const char *backend_name(sheaf_backend_t backend) {
    (void)backend;
    return name();
}

static void backend_free(sheaf_backend_t backend) { free(backend); }

static enum sheaf_status graph_compute(sheaf_backend_t backend, struct sheaf_cgraph *graph) {
    for (int i = 0; i < sheaf_graph_n_nodes(graph); i++) {
        struct sheaf_tensor *node = sheaf_graph_node(graph, i);
        if (!supports_op(backend->device, node)) {
            return sheaf_set_error(SHEAF_STATUS_UNSUPPORTED, "%s: cannot compute %s '%s'", name(),
                                   sheaf_op_desc(node), node->name);
        }
        if (!ops[node->op].compute || sheaf_is_empty(node)) continue;
        ops[node->op].compute(node);
        n_computed++;
    }
    return SHEAF_STATUS_SUCCESS;
}

static const struct sheaf_backend_i backend_i = {
    .get_name = backend_name,
    .free = backend_free,
    .graph_compute = graph_compute,
};

/* ---- device ---- */

static const char *dev_name(sheaf_backend_dev_t dev) {
    (void)dev;
    return name();
}
static const char *dev_description(sheaf_backend_dev_t dev) {
    (void)dev;
    return "adds, multiplies, scales; memory of its own";
}
static void dev_memory(sheaf_backend_dev_t dev, size_t *avail, size_t *total) {
    (void)dev;
    *avail = *total = (size_t)1 << 30;
}
static enum sheaf_backend_dev_type dev_type(sheaf_backend_dev_t dev) {
    (void)dev;
    return SHEAF_BACKEND_DEVICE_TYPE_ACCEL;
}
static void dev_props(sheaf_backend_dev_t dev, struct sheaf_backend_dev_props *props) {
    props->name = dev_name(dev);
    props->description = dev_description(dev);
    dev_memory(dev, &props->memory_free, &props->memory_total);
    props->type = dev_type(dev);
}
static enum sheaf_status dev_init(sheaf_backend_dev_t dev, const char *params,
                                  sheaf_backend_t *out) {
    if (params && *params)
        return sheaf_set_error(SHEAF_STATUS_INVALID, "%s: it takes no parameters, got '%s'", name(),
                               params);
    sheaf_backend_t backend = malloc(sizeof *backend);
    if (!backend) return sheaf_set_error(SHEAF_STATUS_ALLOC_FAILED, "%s: out of memory", name());
    *backend = (struct sheaf_backend){.iface = &backend_i, .device = dev};
    *out = backend;
    return SHEAF_STATUS_SUCCESS;
}
static sheaf_backend_buffer_type_t dev_buft(sheaf_backend_dev_t dev) {
    (void)dev;
    return &example_buft;
}
static bool supports_buft(sheaf_backend_dev_t dev, sheaf_backend_buffer_type_t buft) {
    (void)dev;
    return buft == &example_buft;
}

static const struct sheaf_backend_device_i device_i = {
    .get_name = dev_name,
    .get_description = dev_description,
    .get_memory = dev_memory,
    .get_type = dev_type,
    .get_props = dev_props,
    .init_backend = dev_init,
    .get_buffer_type = dev_buft,
    .supports_op = supports_op,
    .supports_buft = supports_buft,
};

/* ---- registry entry ---- */

static struct sheaf_backend_reg entry;
struct sheaf_backend_device example_device = {&device_i, &entry, NULL};

static const char *reg_name(sheaf_backend_reg_t reg) {
    (void)reg;
    return "Example";
}
static size_t reg_device_count(sheaf_backend_reg_t reg) {
    (void)reg;
    return 1;
}
static sheaf_backend_dev_t reg_device(sheaf_backend_reg_t reg, size_t index) {
    (void)reg;
    return index == 0 ? &example_device : NULL;
}

/* "example_n_computed": long (*)(void). A backend's own functions reach programs this way. */
static long get_n_computed(void) { return n_computed; }
static void *reg_proc(sheaf_backend_reg_t reg, const char *wanted) {
    long (*fn)(void) = get_n_computed;
    void *address = NULL;
    (void)reg;
    if (!strcmp(wanted, "example_n_computed")) memcpy(&address, &fn, sizeof address);
    return address;
}

static const struct sheaf_backend_reg_i reg_i = {
    .get_name = reg_name,
    .get_device_count = reg_device_count,
    .get_device = reg_device,
    .get_proc_address = reg_proc,
};
static struct sheaf_backend_reg entry = {SHEAF_BACKEND_API_VERSION, &reg_i, NULL};

sheaf_backend_reg_t sheaf_backend_init(void) { return &entry; }
int sheaf_backend_score(void) { return 1; } /* runs anywhere */
