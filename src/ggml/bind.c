/* Regions become objects when the first graph uses them: memory on all ranks, cut by split states,
 * and their bytes. */
#include <stdlib.h>
#include <string.h>

#include "ggml/cut.h"
#include "ggml/driver_impl.h"
#include "ggml/file.h"

enum sheaf_status gg_region_bytes(const struct gg_memory *m, const struct gg_region *r,
                                  size_t offset, void *out, size_t size) {
    if (r->file)
        return gg_file_read(r->file->fd, r->file->path, r->file_offset + offset, out, size);
    memcpy(out, m->base + r->offset + offset, size);
    return SHEAF_STATUS_SUCCESS;
}

static double bytes_of_slice(const struct gg_region *r, const struct sheaf_split_state *state,
                             int member) {
    int64_t ne[SHEAF_MAX_DIMS];
    sheaf_split_state_local_ne(state, r->ne, member, ne);
    return (double)sheaf_row_size(r->type, ne[0]) * (double)(ne[1] * ne[2] * ne[3]);
}

/* Said before a system without memory ends a rank without a word. */
static enum sheaf_status check_room(const struct gg_memory *m, struct gg_region *const *regions,
                                    size_t n, struct sheaf_split_state *const *states) {
    enum { LEAST_BYTES = 64 << 20 }; /* worth a question to all ranks */
    const size_t n_members = gg_engine_n_members_of(gg_driver.engine, m->device);
    if (m->size < LEAST_BYTES) return SHEAF_STATUS_SUCCESS;
    double *needs = calloc(n_members + 1, sizeof *needs);
    if (!needs) return gg_no_memory("weights and caches");
    for (size_t j = 0; j < n_members; j++)
        for (size_t i = 0; i < n; i++) needs[j] += bytes_of_slice(regions[i], states[i], (int)j);
    const enum sheaf_status st = gg_check_room(m->device, needs);
    free(needs);
    return st;
}

/* Memory for all regions of one buffer. */
static enum sheaf_status make_objects(const struct gg_memory *m, struct gg_region *const *regions,
                                      size_t n, struct sheaf_split_state *const *states) {
    struct gg_bytes b = {0};
    gg_put_u64(&b, n);
    for (size_t i = 0; i < n; i++) {
        const struct gg_region *r = regions[i];
        struct gg_object_shape s = {(uint64_t)r->object, (uint64_t)r->type, {0}};
        for (int k = 0; k < SHEAF_MAX_DIMS; k++) s.ne[k] = (uint64_t)r->ne[k];
        gg_put(&b, &s, sizeof s);
    }
    for (size_t i = 0; i < n; i++) gg_put_state(&b, states[i]);
    struct gg_command c = {
        .kind = GG_COMMAND_BIND, .device = (uint32_t)m->device, .buffer = m->number, .size = b.n};
    const enum sheaf_status st =
        b.failed ? gg_no_memory("weights and caches") : gg_send(&c, b.data, NULL);
    free(b.data);
    return st;
}

struct some { /* of the regions of a buffer */
    const struct gg_memory *m;
    const struct gg_region **regions; /* [n] */
    size_t n;
};

static enum sheaf_status read_one(void *user, size_t i, size_t offset, void *dst, size_t size) {
    const struct some *s = user;
    return gg_region_bytes(s->m, s->regions[i], offset, dst, size);
}

/* From one file, which other ranks may have, or from the shadow, which is rank 0's only. */
static enum sheaf_status load(const struct some *s, const struct gg_file *file) {
    struct gg_bytes b = {0};
    struct gg_source source = {read_one, (void *)(uintptr_t)s};
    uint64_t size = 0;
    const uint64_t hash = file ? gg_file_hash(file->fd, &size) : 0;
    gg_put_u64(&b, file ? strlen(file->path) : 0);
    if (file) gg_put(&b, file->path, strlen(file->path));
    gg_put_u64(&b, size);
    gg_put_u64(&b, hash);
    gg_put_u64(&b, s->n);
    for (size_t i = 0; i < s->n; i++) {
        const struct gg_object_place place = {(uint64_t)s->regions[i]->object,
                                              s->regions[i]->file_offset};
        gg_put(&b, &place, sizeof place);
    }
    struct gg_command c = {.kind = GG_COMMAND_LOAD, .device = (uint32_t)s->m->device, .size = b.n};
    const enum sheaf_status st =
        b.failed ? gg_no_memory("weights and caches") : gg_send(&c, b.data, &source);
    free(b.data);
    return st;
}

static bool is_first_of_file(struct gg_region *const *regions, size_t i) {
    for (size_t k = 0; k < i; k++)
        if (regions[k]->file == regions[i]->file) return false;
    return true;
}

static enum sheaf_status load_regions(const struct gg_memory *m, struct gg_region *const *regions,
                                      size_t n) {
    struct some s = {m, calloc(n, sizeof *s.regions), 0};
    enum sheaf_status st = s.regions ? SHEAF_STATUS_SUCCESS : gg_no_memory("weights and caches");
    for (size_t i = 0; i < n && !st; i++) {
        if (!is_first_of_file(regions, i)) continue;
        s.n = 0;
        for (size_t k = i; k < n; k++)
            if (regions[k]->file == regions[i]->file && (regions[k]->file || regions[k]->written))
                s.regions[s.n++] = regions[k];
        if (s.n) st = load(&s, regions[i]->file);
    }
    free((void *)s.regions);
    return st;
}

/* Programs go first: a graph that is computed again is encoded again then. */
static enum sheaf_status release(const struct gg_region *r) {
    gg_forget_object(r->object);
    struct gg_command c = {.kind = GG_COMMAND_RELEASE, .object = (uint64_t)r->object};
    return gg_send(&c, NULL, NULL);
}

/* The ranks give the memory of a failed load back. */
static void give_back(struct gg_region *const *regions, size_t n) {
    for (size_t i = 0; i < n && !sheaf_world_failed(); i++) release(regions[i]);
}

/* All or none: until the ranks have all bytes, they stay here. */
static enum sheaf_status bind_buffer(struct gg_memory *m, struct gg_region **regions, size_t n,
                                     struct sheaf_split_state *const *states) {
    enum sheaf_status st = check_room(m, regions, n, states);
    if (!st) st = make_objects(m, regions, n, states);
    if (!st) st = load_regions(m, regions, n);
    for (size_t i = 0; i < n; i++) {
        struct gg_region *r = regions[i];
        r->bound = !st;
        if (st) continue;
        r->file = NULL;
        gg_shadow_drop(m, r->offset, r->bytes);
    }
    if (st) give_back(regions, n);
    return st;
}

enum sheaf_status gg_bind_regions(const struct gg_cgraph *graph) {
    struct gg_encoder *e = &gg_driver.encoder;
    const size_t n = e->n_unbound;
    if (!n) return SHEAF_STATUS_SUCCESS;
    struct sheaf_split_state **states = calloc(n, sizeof *states);
    struct gg_region **some = calloc(n, sizeof *some);
    struct sheaf_split_state **some_states = calloc(n, sizeof *some_states);
    bool *done = calloc(n, sizeof *done);
    enum sheaf_status st = states && some && some_states && done
                               ? SHEAF_STATUS_SUCCESS
                               : gg_no_memory("weights and caches");
    if (!st) st = gg_choose_cuts(e, graph, gg_driver.engine, e->unbound_in[0]->device, states);
    for (size_t i = 0; i < n && !st; i++) {
        size_t k = 0;
        if (done[i]) continue;
        for (size_t j = i; j < n; j++) {
            if (e->unbound_in[j] != e->unbound_in[i]) continue;
            done[j] = true;
            some_states[k] = states[j];
            some[k++] = e->unbound[j];
        }
        st = bind_buffer(e->unbound_in[i], some, k, some_states);
    }
    for (size_t i = 0; states && i < n; i++) sheaf_split_state_free(states[i]);
    free(states);
    free(some);
    free(some_states);
    free(done);
    return st;
}

/* Brings the bytes of a region into the shadow. */
static enum sheaf_status bring_back(const struct gg_memory *m, const struct gg_region *r) {
    char *shadow = m->base + r->offset;
    struct gg_command c = {
        .kind = GG_COMMAND_GET, .object = (uint64_t)r->object, .bytes = r->bytes};
    if (r->bound) return gg_send(&c, NULL, shadow);
    return r->file ? gg_region_bytes(m, r, 0, shadow, r->bytes) : SHEAF_STATUS_SUCCESS;
}

enum sheaf_status gg_unbind_region(struct gg_memory *m, struct gg_region *r) {
    enum sheaf_status st = bring_back(m, r);
    if (st) return st;
    if (r->bound) st = release(r);
    if (!st) gg_number_return(&gg_driver.numbers, r);
    r->bound = false;
    r->object = GG_NO_OBJECT;
    r->written = true;
    r->file = NULL;
    return st;
}
