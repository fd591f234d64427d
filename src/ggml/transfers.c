/* Memory of ggml's buffers, which the program writes, reads, fills, clears and frees.
 *
 * Bytes of results and of compute buffers are in the shadow. Those of a weight or a cache are in
 * the shadow or in a file until a graph uses it, and then on the ranks. */
#include <pthread.h>
#include <string.h>
#include <sys/mman.h>

#include "base/arith.h"
#include "ggml/calls.h"
#include "ggml/driver_impl.h"
#include "ggml/file.h"
#include "ggml/translate.h"

static void wait_for_last(const struct gg_memory *m) {
    gg_driver_wait(m->device, gg_driver_last_run(m->device));
}

struct transfer {
    struct gg_memory *m;
    const struct gg_tensor *t;
    const void *from;
    void *to;
    uint8_t value;
    size_t at, size; /* in the buffer */
};

struct gg_memory *gg_driver_alloc(size_t device, size_t size) {
    static _Atomic uint64_t number = 1;
    return gg_memory_new(size, number++, device);
}

/* ---- buffers ---- */

/* ggml makes and frees buffers from any thread, outside of calls. */
static struct gg_memory *all;
static pthread_mutex_t lock_of_all = PTHREAD_MUTEX_INITIALIZER;

void gg_driver_keep(struct gg_memory *m, struct gg_buffer *buffer) {
    pthread_mutex_lock(&lock_of_all);
    m->buffer = buffer;
    m->next = all;
    all = m;
    pthread_mutex_unlock(&lock_of_all);
}

static void take_out(const struct gg_memory *m) {
    pthread_mutex_lock(&lock_of_all);
    struct gg_memory **at = &all;
    while (*at && *at != m) at = &(*at)->next;
    if (*at) *at = m->next;
    pthread_mutex_unlock(&lock_of_all);
}

size_t gg_bytes_to_come(size_t device) {
    size_t bytes = 0;
    pthread_mutex_lock(&lock_of_all);
    for (const struct gg_memory *m = all; m; m = m->next)
        if (m->device == device) bytes += gg_unbound_bytes(gg_driver.host, m);
    pthread_mutex_unlock(&lock_of_all);
    return bytes;
}

static enum sheaf_status free_task(void *argument) {
    struct gg_memory *m = argument;
    enum sheaf_status st = gg_later_wait_all();
    if (st) return st;
    gg_forget_buffer(m->number);
    struct gg_command c = {.kind = GG_COMMAND_FREE, .buffer = m->number};
    st = gg_send(&c, NULL, NULL);
    for (size_t i = 0; i < m->n_regions && !st; i++)
        gg_number_return(&gg_driver.numbers, m->regions[i]);
    return st;
}

static bool has_objects(const struct gg_memory *m) {
    for (size_t i = 0; i < m->n_regions; i++)
        if (m->regions[i]->object != GG_NO_OBJECT) return true;
    return false;
}

void gg_driver_free(struct gg_memory *m) {
    take_out(m);
    wait_for_last(m);
    if (has_objects(m) && gg_calls_are_open() && !sheaf_world_failed())
        gg_failure_note(gg_call(free_task, m));
    gg_memory_free(m);
}

static size_t place_of(const struct gg_memory *m, const struct gg_tensor *t, size_t offset) {
    return (size_t)((char *)t->data - m->base) + offset;
}

/* A program that computes for another one (ggml-rpc-server) has views of which it knows the address
 * and not the root. */
static bool is_view_without_root(const struct gg_tensor *t) {
    const struct sheaf_tensor s = {.op = gg_op_of(gg_driver.host, t->op)};
    return t->op != 0 && !t->view_src && t->buffer && gg_is_view(&s) &&
           gg_host_rest(gg_driver.host, t->buffer)->usage != GG_USAGE_COMPUTE;
}

/* May the tensor's bytes be elsewhere than in the shadow? */
static bool may_be_away(const struct gg_tensor *t) {
    return gg_is_static(gg_driver.host, t) || is_view_without_root(t);
}

/* The part of a file that was recorded is not all of the region's bytes any more. */
static enum sheaf_status take_out_of_file(struct gg_memory *m, struct gg_region *r) {
    if (!r->file) return SHEAF_STATUS_SUCCESS;
    const enum sheaf_status st = gg_region_bytes(m, r, 0, m->base + r->offset, r->bytes);
    r->file = NULL;
    return st;
}

/* A mapped file needs no copy: each rank reads its slices from its own. Small tensors are no
 * weights worth a look at the process's mappings. */
static bool record_file(struct gg_region *r, const void *data, size_t size) {
    enum { LEAST_BYTES = 4096 };
    if (size != r->bytes || size < LEAST_BYTES) return false;
    r->file = gg_file_of_address(data, size, &r->file_offset);
    return r->file;
}

/* Brings what lies over these bytes into the shadow. */
static enum sheaf_status bring_all_back(const struct transfer *x) {
    struct gg_region *over;
    enum sheaf_status st = SHEAF_STATUS_SUCCESS;
    while (!st && (over = gg_region_over(x->m, x->at, x->size, NULL)))
        st = gg_unbind_region(x->m, over);
    return st;
}

/* The region that is written; NULL: out of memory, its type is unknown here, or no region has the
 * bytes of a view. */
static enum sheaf_status region_to_write(const struct transfer *x, struct gg_region **out) {
    enum sheaf_status st = SHEAF_STATUS_SUCCESS;
    struct gg_region *other = NULL;
    if (is_view_without_root(x->t)) {
        *out = gg_region_around(x->m, x->at, x->size);
        return *out ? st : bring_all_back(x);
    }
    while (!(*out = gg_region_of(x->m, gg_driver.host, gg_root(x->t), &other)) && other && !st)
        st = gg_unbind_region(x->m, other);
    return st;
}

/* Notes that bytes of the shadow are written. */
static void note_written(const struct transfer *x, struct gg_region *r) {
    if (r)
        r->written = true;
    else
        x->m->written = true;
}

/* In parts, for the other ranks keep memory for the largest one. */
static enum sheaf_status set_object(const struct gg_region *r, const struct transfer *x) {
    enum { PART = 4 << 20 };
    enum sheaf_status st = SHEAF_STATUS_SUCCESS;
    for (size_t at = 0, n; at < x->size && !st; at += n) {
        n = sheaf__min_size(x->size - at, PART);
        struct gg_command c = {.kind = GG_COMMAND_SET,
                               .object = (uint64_t)r->object,
                               .offset = x->at - r->offset + at,
                               .size = n};
        st = gg_send(&c, (const char *)x->from + at, NULL);
    }
    return st;
}

static enum sheaf_status set_task(void *argument) {
    const struct transfer *x = argument;
    struct gg_region *r = NULL;
    enum sheaf_status st = region_to_write(x, &r);
    if (st) return st;
    if (r && r->bound) return set_object(r, x);
    note_written(x, r);
    if (r && x->at == r->offset && record_file(r, x->from, x->size)) return st;
    if (r) st = take_out_of_file(x->m, r);
    memcpy(x->m->base + x->at, x->from, x->size);
    return st;
}

void gg_driver_set(struct gg_memory *m, const struct gg_tensor *t, const void *data, size_t offset,
                   size_t size) {
    if (!may_be_away(t)) {
        memcpy((char *)t->data + offset, data, size);
        return;
    }
    struct transfer x = {.m = m, .t = t, .from = data, .at = place_of(m, t, offset), .size = size};
    gg_failure_note(gg_call(set_task, &x));
}

static enum sheaf_status fill_object(const struct gg_region *r, size_t offset, size_t bytes,
                                     uint8_t value) {
    struct gg_command c = {.kind = GG_COMMAND_FILL,
                           .object = (uint64_t)r->object,
                           .offset = offset,
                           .bytes = bytes,
                           .value = value};
    return gg_send(&c, NULL, NULL);
}

static enum sheaf_status fill_task(void *argument) {
    const struct transfer *x = argument;
    struct gg_region *r = NULL;
    enum sheaf_status st = region_to_write(x, &r);
    if (st) return st;
    if (r && r->bound) return fill_object(r, x->at - r->offset, x->size, x->value);
    note_written(x, r);
    if (r) st = take_out_of_file(x->m, r);
    memset(x->m->base + x->at, x->value, x->size);
    return st;
}

void gg_driver_fill(struct gg_memory *m, const struct gg_tensor *t, uint8_t value, size_t offset,
                    size_t size) {
    if (!may_be_away(t)) {
        memset((char *)t->data + offset, value, size);
        return;
    }
    struct transfer x = {
        .m = m, .t = t, .value = value, .at = place_of(m, t, offset), .size = size};
    gg_failure_note(gg_call(fill_task, &x));
}

static enum sheaf_status get_object(const struct gg_region *r, const struct transfer *x) {
    struct gg_command c = {.kind = GG_COMMAND_GET,
                           .object = (uint64_t)r->object,
                           .offset = x->at - r->offset,
                           .bytes = x->size};
    return gg_send(&c, NULL, x->to);
}

/* A tensor that lies over others has what they have. */
static enum sheaf_status get_task(void *argument) {
    const struct transfer *x = argument;
    const struct gg_region *r = gg_region_around(x->m, x->at, x->size);
    if (r && r->bound) return get_object(r, x);
    if (r && r->file) return gg_region_bytes(x->m, r, x->at - r->offset, x->to, x->size);
    const enum sheaf_status st = bring_all_back(x);
    memcpy(x->to, x->m->base + x->at, x->size);
    return st;
}

void gg_driver_get(struct gg_memory *m, const struct gg_tensor *t, void *data, size_t offset,
                   size_t size) {
    wait_for_last(m);
    if (!may_be_away(t)) {
        memcpy(data, (const char *)t->data + offset, size);
        return;
    }
    struct transfer x = {.m = m, .t = t, .to = data, .at = place_of(m, t, offset), .size = size};
    gg_failure_note(gg_call(get_task, &x)); /* a graph on another thread may be adding regions */
}

/* ---- copies between devices ---- */

/* 0: they are not laid out alike, or have gaps. */
static size_t bytes_alike(const struct gg_tensor *a, const struct gg_tensor *b) {
    const bool are_alike = a->type == b->type && !memcmp(a->ne, b->ne, sizeof a->ne) &&
                           !memcmp(a->nb, b->nb, sizeof a->nb);
    return are_alike && gg_is_dense(gg_driver.host, a) ? gg_bytes_of(gg_driver.host, a) : 0;
}

struct copy {
    size_t device, from;
    const struct gg_tensor *src, *dst;
    size_t bytes;
    bool is_later;
};

static enum sheaf_status copy_task(void *argument) {
    struct copy *c = argument;
    c->is_later = gg_later_copy(c->device, c->dst->data, c->from, c->src->data, c->bytes);
    return SHEAF_STATUS_SUCCESS;
}

bool gg_driver_copy_later(const struct gg_tensor *src, const struct gg_tensor *dst) {
    const struct gg_memory *from = gg_root(src)->buffer ? gg_plugin_memory_of(gg_root(src)) : NULL;
    const struct gg_memory *to = gg_root(dst)->buffer ? gg_plugin_memory_of(gg_root(dst)) : NULL;
    if (!from || !to || from->device == to->device || may_be_away(src) || may_be_away(dst) ||
        gg_engine_has_rank(gg_driver.engine, to->device, 0) || !gg_calls_are_open())
        return false;
    struct copy c = {to->device, from->device, src, dst, bytes_alike(src, dst), false};
    if (c.bytes) gg_failure_note(gg_call(copy_task, &c));
    return c.is_later;
}

static enum sheaf_status clear_task(void *argument) {
    const struct transfer *x = argument;
    enum sheaf_status st = SHEAF_STATUS_SUCCESS;
    for (size_t i = 0; i < x->m->n_regions && !st; i++) {
        struct gg_region *r = x->m->regions[i];
        r->file = NULL;
        r->written = x->value != 0;
        if (r->bound) st = fill_object(r, 0, r->bytes, x->value);
    }
    return st;
}

void gg_driver_clear(struct gg_memory *m, uint8_t value) {
    struct transfer x = {.m = m, .value = value};
    /* pages given back are zero; the system keeps those that are locked */
    if (value || madvise(m->base, m->size, MADV_DONTNEED)) memset(m->base, value, m->size);
    if (m->n_regions) gg_failure_note(gg_call(clear_task, &x));
    m->cleared = value;
    m->written = false;
}
