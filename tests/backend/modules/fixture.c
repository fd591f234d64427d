/* The modules that tests/backend/test-modules.c loads: this file once for each line of the table in
 * the CMakeLists.txt beside it. One device with host buffers and a backend that computes nothing; what
 * differs is the entry, to be right or wrong on purpose.
 *
 * FIXTURE_NAME     the backend's name; its device is called FIXTURE_NAME "0"
 * FIXTURE_VARIANT  what its function "variant" returns
 * FIXTURE_SCORE    what the score function returns; undefined: there is none
 * FIXTURE_VERSION  the interface version that it claims; undefined: the right one
 * FIXTURE_FAULT    NONE, NULL_ENTRY or NO_DEVICES
 * FIXTURE_NO_INIT  defined: an ordinary library */
#include <stdlib.h>
#include <string.h>

#include "sheaf/backend-impl.h"

enum { NONE, NULL_ENTRY, NO_DEVICES };
#ifndef FIXTURE_FAULT
#define FIXTURE_FAULT NONE
#endif
#ifndef FIXTURE_VERSION
#define FIXTURE_VERSION SHEAF_BACKEND_API_VERSION
#endif

#ifdef FIXTURE_NO_INIT
int sheaf_fixture_without_init(void);
int sheaf_fixture_without_init(void) { return 1; }
#else

static void buffer_free(sheaf_backend_buffer_t buffer) { free(buffer->context); }
static void *buffer_base(sheaf_backend_buffer_t buffer) { return buffer->context; }
static enum sheaf_status buffer_clear(sheaf_backend_buffer_t buffer, uint8_t value) {
    memset(buffer->context, value, buffer->size);
    return SHEAF_STATUS_SUCCESS;
}
static const struct sheaf_backend_buffer_i buffer_i = {
    .free_buffer = buffer_free, .get_base = buffer_base, .clear = buffer_clear};

static const char *buft_name(sheaf_backend_buffer_type_t buft) {
    (void)buft;
    return FIXTURE_NAME;
}
static enum sheaf_status buft_alloc(sheaf_backend_buffer_type_t buft, size_t size,
                                    sheaf_backend_buffer_t *out) {
    void *memory = malloc(size + 1);
    *out = memory ? sheaf_backend_buffer_init(buft, &buffer_i, memory, size) : NULL;
    if (*out) return SHEAF_STATUS_SUCCESS;
    free(memory);
    return sheaf_set_error(SHEAF_STATUS_ALLOC_FAILED, "fixture: out of memory");
}
static size_t buft_alignment(sheaf_backend_buffer_type_t buft) {
    (void)buft;
    return 16;
}
static const struct sheaf_backend_buffer_type_i buft_i = {
    .get_name = buft_name, .alloc_buffer = buft_alloc, .get_alignment = buft_alignment};

static const char *backend_name(sheaf_backend_t backend) {
    (void)backend;
    return FIXTURE_NAME;
}
static void backend_free(sheaf_backend_t backend) { free(backend); }
static enum sheaf_status backend_compute(sheaf_backend_t backend, struct sheaf_cgraph *graph) {
    (void)backend;
    (void)graph;
    return sheaf_set_error(SHEAF_STATUS_UNSUPPORTED, "fixture: it computes nothing");
}
static const struct sheaf_backend_i backend_i = {
    .get_name = backend_name, .free = backend_free, .graph_compute = backend_compute};

static struct sheaf_backend_device device;
static struct sheaf_backend_buffer_type buft;

static const char *dev_name(sheaf_backend_dev_t dev) {
    (void)dev;
    return FIXTURE_NAME "0";
}
static void dev_memory(sheaf_backend_dev_t dev, size_t *avail, size_t *total) {
    (void)dev;
    *avail = *total = 1 << 20;
}
static enum sheaf_backend_dev_type dev_type(sheaf_backend_dev_t dev) {
    (void)dev;
    return SHEAF_BACKEND_DEVICE_TYPE_ACCEL;
}
static void dev_props(sheaf_backend_dev_t dev, struct sheaf_backend_dev_props *props) {
    props->name = props->description = dev_name(dev);
    dev_memory(dev, &props->memory_free, &props->memory_total);
    props->type = dev_type(dev);
}
static enum sheaf_status dev_init(sheaf_backend_dev_t dev, const char *params,
                                  sheaf_backend_t *out) {
    if (params && strcmp(params, "ok") != 0)
        return sheaf_set_error(SHEAF_STATUS_INVALID, "fixture: params '%s'", params);
    *out = malloc(sizeof **out);
    if (!*out) return sheaf_set_error(SHEAF_STATUS_ALLOC_FAILED, "fixture: out of memory");
    **out = (struct sheaf_backend){.iface = &backend_i, .device = dev};
    return SHEAF_STATUS_SUCCESS;
}
static sheaf_backend_buffer_type_t dev_buft(sheaf_backend_dev_t dev) {
    (void)dev;
    return &buft;
}
static bool dev_supports_op(sheaf_backend_dev_t dev, const struct sheaf_tensor *op) {
    (void)dev;
    return op->op == SHEAF_OP_NONE;
}
static bool dev_supports_buft(sheaf_backend_dev_t dev, sheaf_backend_buffer_type_t type) {
    (void)dev;
    return type == &buft;
}
static const struct sheaf_backend_device_i device_i = {
    .get_name = dev_name,
    .get_description = dev_name,
    .get_memory = dev_memory,
    .get_type = dev_type,
    .get_props = dev_props,
    .init_backend = dev_init,
    .get_buffer_type = dev_buft,
    .supports_op = dev_supports_op,
    .supports_buft = dev_supports_buft,
};

static const char *reg_name(sheaf_backend_reg_t reg) {
    (void)reg;
    return FIXTURE_NAME;
}
static size_t reg_count(sheaf_backend_reg_t reg) {
    (void)reg;
    return 1;
}
static sheaf_backend_dev_t reg_get(sheaf_backend_reg_t reg, size_t index) {
    (void)reg;
    return index ? NULL : &device;
}
static const char *variant(void) { return FIXTURE_VARIANT; }
static void *reg_proc(sheaf_backend_reg_t reg, const char *name) {
    const char *(*fn)(void) = variant;
    void *address = NULL;
    (void)reg;
    if (!strcmp(name, "variant")) memcpy(&address, &fn, sizeof address);
    return address;
}
static const struct sheaf_backend_reg_i reg_i = {
    .get_name = reg_name,
    .get_device_count = reg_count,
    .get_device = FIXTURE_FAULT == NO_DEVICES ? NULL : reg_get,
    .get_proc_address = reg_proc,
};
static struct sheaf_backend_reg entry = {FIXTURE_VERSION, &reg_i, NULL};

sheaf_backend_reg_t sheaf_backend_init(void) {
    device = (struct sheaf_backend_device){&device_i, &entry, NULL};
    buft = (struct sheaf_backend_buffer_type){&buft_i, &device, NULL};
    if (FIXTURE_FAULT != NULL_ENTRY) return &entry;
    sheaf_set_error(SHEAF_STATUS_UNSUPPORTED, "the machine has no " FIXTURE_NAME);
    return NULL;
}
#ifdef FIXTURE_SCORE
int sheaf_backend_score(void) { return FIXTURE_SCORE; }
#endif
#endif
