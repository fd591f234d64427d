/* Objects: weights and caches of rank 0's program as tensors of the meta device, by number. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "ggml/engine_impl.h"
#include "ggml/file.h"

enum { MAX_OBJECTS = 1 << 20, MAX_PATH = 4096 };

struct sheaf_tensor *gg_object_tensor(void *engine, uint32_t object) {
    const struct gg_engine *e = engine;
    return object < e->n_objects ? e->objects[object].tensor : NULL;
}

static enum sheaf_status no_memory(void) {
    return sheaf_set_error(SHEAF_STATUS_ALLOC_FAILED, "objects: out of memory");
}

/* ---- memory ---- */

void gg_group_free(struct gg_group *group) {
    sheaf_backend_buffer_free(group->buffer);
    sheaf_free(group->ctx);
}

static enum sheaf_status take_shapes(struct gg_reader *r, uint64_t n, struct gg_group *group,
                                     struct gg_binding *binding, uint64_t *numbers) {
    for (uint64_t i = 0; i < n; i++) {
        struct gg_object_shape s;
        const uint8_t *p = gg_take(r, sizeof s);
        if (!p) break;
        memcpy(&s, p, sizeof s);
        int64_t ne[SHEAF_MAX_DIMS];
        for (int k = 0; k < SHEAF_MAX_DIMS; k++) ne[k] = (int64_t)s.ne[k];
        if (s.object >= MAX_OBJECTS)
            return sheaf_set_error(SHEAF_STATUS_INVALID,
                                   "objects: more than %d weights and caches at a time",
                                   MAX_OBJECTS);
        struct sheaf_tensor *t =
            sheaf_new_tensor(group->ctx, (enum sheaf_type)s.type, SHEAF_MAX_DIMS, ne);
        if (!t) return SHEAF_STATUS_INVALID;
        sheaf_format_name(t, "object_%llu", (unsigned long long)s.object);
        numbers[i] = s.object;
        binding[i].tensor = t;
    }
    return r->bad ? sheaf_set_error(SHEAF_STATUS_INVALID, "objects: the message is cut off")
                  : SHEAF_STATUS_SUCCESS;
}

static enum sheaf_status take_states(struct gg_reader *r, int n_members, uint64_t n,
                                     struct gg_binding *binding) {
    for (uint64_t i = 0; i < n; i++) {
        binding[i].state = gg_take_state(r, n_members);
        if (!binding[i].state)
            return sheaf_set_error(SHEAF_STATUS_INVALID, "objects: a split state is malformed");
        const enum sheaf_status st = sheaf_split_state_check(binding[i].state, binding[i].tensor);
        if (st) return st;
    }
    return SHEAF_STATUS_SUCCESS;
}

static enum sheaf_status note_objects(struct gg_engine *e, const struct gg_command *c, uint64_t n,
                                      const uint64_t *numbers, struct gg_binding *binding,
                                      const struct sheaf_context *ctx) {
    size_t want = e->n_objects;
    for (uint64_t i = 0; i < n; i++) want = numbers[i] < want ? want : (size_t)numbers[i] + 1;
    if (!sheaf__grow(&e->objects, &e->cap_objects, want, sizeof *e->objects)) return no_memory();
    while (e->n_objects < want) e->objects[e->n_objects++] = (struct gg_object){0};
    if (want > e->max_objects) e->max_objects = want;
    for (uint64_t i = 0; i < n; i++) {
        e->objects[numbers[i]] = (struct gg_object){
            (struct sheaf_tensor *)(uintptr_t)binding[i].tensor, c->group, c->device, false, ctx};
    }
    return SHEAF_STATUS_SUCCESS;
}

static enum sheaf_status bind(struct gg_engine *e, const struct gg_ranks *on, struct gg_reader *r,
                              struct gg_group *group, struct gg_binding *binding, uint64_t *numbers,
                              uint64_t n) {
    enum sheaf_status st = take_shapes(r, n, group, binding, numbers);
    if (!st) st = take_states(r, on->n_members, n, binding);
    st = sheaf_world_agree(st, "objects");
    if (st) return st;
    e->binding = binding;
    e->n_binding = (size_t)n;
    st = sheaf_backend_alloc_ctx_tensors(group->ctx, on->backend, &group->buffer);
    e->binding = NULL;
    e->n_binding = 0;
    if (!st && group->buffer) st = sheaf_backend_buffer_clear(group->buffer, 0);
    return sheaf_world_agree(st, "memory of weights and caches");
}

enum sheaf_status gg_execute_bind(struct gg_engine *e, const struct gg_command *c,
                                  const uint8_t *payload) {
    struct gg_reader r = {payload, payload + c->size, false};
    const uint64_t n = gg_take_u64(&r);
    if (n > c->size / sizeof(struct gg_object_shape)) /* before memory for so many is taken */
        return sheaf_set_error(SHEAF_STATUS_INVALID, "objects: the message is cut off");
    struct gg_group group = {.number = c->group};
    struct gg_binding *binding = n < MAX_OBJECTS ? calloc(n + 1, sizeof *binding) : NULL;
    uint64_t *numbers = n < MAX_OBJECTS ? calloc(n + 1, sizeof *numbers) : NULL;
    group.ctx = sheaf_init((struct sheaf_init_params){
        .mem_size = ((size_t)(n < MAX_OBJECTS ? n : 0) + 1) * sheaf_tensor_overhead(),
        .no_alloc = true});
    const bool ok = binding && numbers && group.ctx &&
                    sheaf__grow(&e->groups, &e->cap_groups, e->n_groups + 1, sizeof *e->groups);
    enum sheaf_status st = sheaf_world_agree(ok ? SHEAF_STATUS_SUCCESS : no_memory(), "objects");
    if (!st) st = bind(e, &e->devices[c->device], &r, &group, binding, numbers, n);
    if (!st) st = gg_or_end(note_objects(e, c, n, numbers, binding, group.ctx));
    for (uint64_t i = 0; binding && i < n; i++) sheaf_split_state_free(binding[i].state);
    free(binding);
    free(numbers);
    if (st)
        gg_group_free(&group);
    else
        e->groups[e->n_groups++] = group;
    return st;
}

static void let_go(struct gg_engine *e) {
    gg_programs_let_go(e);
    for (size_t i = 0; i < e->n_objects; i++)
        if (e->objects[i].goes) e->objects[i] = (struct gg_object){0};
    while (e->n_objects && !e->objects[e->n_objects - 1].tensor) e->n_objects--;
}

enum sheaf_status gg_execute_free(struct gg_engine *e, const struct gg_command *c) {
    for (size_t i = 0; i < e->n_objects; i++)
        e->objects[i].goes = e->objects[i].tensor && e->objects[i].group == c->group;
    let_go(e);
    size_t kept = 0;
    for (size_t i = 0; i < e->n_groups; i++) {
        if (e->groups[i].number == c->group)
            gg_group_free(&e->groups[i]);
        else
            e->groups[kept++] = e->groups[i];
    }
    e->n_groups = kept;
    return SHEAF_STATUS_SUCCESS;
}

/* One that was never bound is no error: what a failed BIND has left behind is released like
 * this. */
enum sheaf_status gg_execute_release(struct gg_engine *e, const struct gg_command *c) {
    if (c->object >= e->n_objects || !e->objects[c->object].tensor) return SHEAF_STATUS_SUCCESS;
    const struct sheaf_context *ctx = e->objects[c->object].ctx;
    bool others = false;
    e->objects[c->object].goes = true;
    let_go(e);
    for (size_t i = 0; i < e->n_objects; i++) others = others || e->objects[i].ctx == ctx;
    for (size_t i = 0; i < e->n_groups && !others; i++) {
        if (e->groups[i].ctx != ctx) continue;
        gg_group_free(&e->groups[i]);
        e->groups[i] = e->groups[--e->n_groups];
        break;
    }
    return SHEAF_STATUS_SUCCESS;
}

/* ---- data ---- */

/* A local failure here (a device that refuses a copy) would leave ranks apart. */
enum sheaf_status gg_or_end(enum sheaf_status st) {
    if (st && sheaf_world_size() > 1) sheaf_world_abort(sheaf_last_error());
    return st;
}

enum sheaf_status gg_execute_transfer(struct gg_engine *e, const struct gg_command *c,
                                      const uint8_t *payload, void *result) {
    struct sheaf_tensor *t =
        c->object < e->n_objects ? gg_object_tensor(e, (uint32_t)c->object) : NULL;
    const size_t size = c->kind == GG_COMMAND_SET ? (size_t)c->size : (size_t)c->bytes;
    if (!t || c->offset > sheaf_nbytes(t) || size > sheaf_nbytes(t) - c->offset)
        return sheaf_set_error(SHEAF_STATUS_INVALID, "object %llu: a range outside of it",
                               (unsigned long long)c->object);
    if (c->kind == GG_COMMAND_SET && !payload) return SHEAF_STATUS_SUCCESS;
    if (c->kind == GG_COMMAND_SET)
        return gg_or_end(sheaf_backend_tensor_set(t, payload, (size_t)c->offset, size));
    if (c->kind == GG_COMMAND_FILL)
        return gg_or_end(
            sheaf_backend_tensor_memset(t, (uint8_t)c->value, (size_t)c->offset, size));
    return gg_or_end(sheaf_backend_meta_tensor_get_at(t, 0, result, (size_t)c->offset, size));
}

/* ---- loading ---- */

/* Objects of a LOAD, and where this rank has their bytes. */
struct loading {
    struct sheaf_tensor **tensors; /* [n] */
    uint64_t *offsets;             /* [n] in the file */
    size_t n, first;               /* first: of those that are being loaded */
    int fd;                        /* -1: no file */
    const char *path;
    const struct gg_source *mine; /* rank 0's bytes; NULL elsewhere */
    bool *reads;                  /* [ranks] */
};

static enum sheaf_status read_bytes(void *user, size_t i, size_t offset, void *dst, size_t size) {
    const struct loading *l = user;
    i += l->first;
    return l->mine ? l->mine->read(l->mine->user, i, offset, dst, size)
                   : gg_file_read(l->fd, l->path, l->offsets[i] + offset, dst, size);
}

static enum sheaf_status take_places(const struct gg_engine *e, struct gg_reader *r,
                                     struct loading *l) {
    for (size_t i = 0; i < l->n; i++) {
        struct gg_object_place place = {0};
        const uint8_t *p = gg_take(r, sizeof place);
        if (p) memcpy(&place, p, sizeof place);
        l->offsets[i] = place.offset;
        l->tensors[i] = p && place.object < e->n_objects ? e->objects[place.object].tensor : NULL;
        if (!l->tensors[i])
            return sheaf_set_error(SHEAF_STATUS_INVALID,
                                   "load: an unknown object, or the message is cut off");
    }
    return SHEAF_STATUS_SUCCESS;
}

/* In parts: a rank that fails goes on in step with the others until the next agreement. */
static enum sheaf_status load_all(struct gg_engine *e, struct loading *l) {
    enum { PART_BYTES = 256 << 20 };
    enum sheaf_status st = SHEAF_STATUS_SUCCESS;
    for (size_t end; l->first < l->n && !st; l->first = end) {
        size_t bytes = 0;
        for (end = l->first; end < l->n && bytes < PART_BYTES; end++)
            bytes += sheaf_nbytes(l->tensors[end]);
        sheaf_world_enter(SHEAF_PHASE_LOAD, l->path);
        st = sheaf_backend_meta_tensors_load(l->tensors + l->first, end - l->first, l->reads, 0,
                                             read_bytes, l, &e->sent_bytes);
        st = sheaf_world_agree(st, "load");
    }
    return st;
}

static const char *lack_text(enum gg_file_lack lack, int error) {
    static const char *const texts[] = {
        [GG_FILE_NOT_REGULAR] = "what is there is no regular file",
        [GG_FILE_OTHER_SIZE] = "the file there has another size",
        [GG_FILE_OTHER_CONTENT] = "the file there has other bytes",
    };
    return lack == GG_FILE_FAILS ? strerror(error) : texts[lack];
}

static void tell_of(int rank, int others, const char *path, enum gg_file_lack lack, int error) {
    char more[32] = "";
    if (others) snprintf(more, sizeof more, " and %d more rank%s", others, others > 1 ? "s" : "");
    sheaf_log(SHEAF_LOG_WARN, "rank %d (%s)%s %s no copy of %s (%s): rank 0 sends the slices", rank,
              sheaf_world_host_name(rank), more, others ? "have" : "has", path,
              lack_text(lack, error));
}

/* reads[r]: the rank has the file, or is rank 0, which says which of the device's have not. */
static enum sheaf_status meet_about(const struct gg_ranks *on, const uint8_t mine[2],
                                    const char *path, bool *reads) {
    uint8_t *all = calloc((size_t)sheaf_world_size(), 2);
    if (!all) return gg_or_end(no_memory());
    enum sheaf_status st = sheaf_world_all_gather(mine, 2, all, "which ranks have the file");
    int first = -1, others = -1;
    for (int i = 0; i < sheaf_world_size() && !st; i++) {
        reads[i] = reads[i] || all[2 * i] == GG_FILE_OPEN;
        if (reads[i] || !on->part[i]) continue;
        if (first < 0) first = i;
        others++;
    }
    if (first >= 0 && sheaf_world_rank() == 0)
        tell_of(first, others, path, (enum gg_file_lack)all[2 * first], all[2 * first + 1]);
    free(all);
    return st;
}

static enum sheaf_status make_loading(const struct gg_engine *e, struct gg_reader *r, uint64_t n,
                                      uint64_t size, struct loading *l) {
    if (n > size / sizeof(struct gg_object_place)) /* before memory for so many is taken */
        return sheaf_set_error(SHEAF_STATUS_INVALID, "load: the message is cut off");
    l->n = (size_t)n;
    l->tensors = calloc(l->n + 1, sizeof(*l->tensors));
    l->offsets = calloc(l->n + 1, sizeof *l->offsets);
    l->reads = calloc((size_t)sheaf_world_size(), sizeof *l->reads);
    return l->tensors && l->offsets && l->reads ? take_places(e, r, l) : no_memory();
}

enum sheaf_status gg_execute_load(struct gg_engine *e, const struct gg_command *c,
                                  const uint8_t *payload, const struct gg_source *mine) {
    struct gg_reader r = {payload, payload + c->size, false};
    char path[MAX_PATH] = "";
    const uint64_t length = gg_take_u64(&r);
    const uint8_t *text = length < MAX_PATH ? gg_take(&r, length) : NULL;
    if (text) memcpy(path, text, length);
    const uint64_t size = gg_take_u64(&r), hash = gg_take_u64(&r), n = gg_take_u64(&r);
    struct loading l = {.fd = -1, .path = path[0] ? path : "weights of rank 0", .mine = mine};
    enum gg_file_lack lack = GG_FILE_FAILS;
    int error = 0;
    enum sheaf_status st = sheaf_world_agree(make_loading(e, &r, n, c->size, &l), "load");
    if (!st && path[0] && !mine) l.fd = gg_file_open(path, size, hash, &lack, &error);
    const uint8_t found[2] = {(uint8_t)lack, (uint8_t)error};
    if (!st) l.reads[0] = true;
    if (!st && path[0]) st = meet_about(&e->devices[c->device], found, path, l.reads);
    if (!st) st = load_all(e, &l);
    sheaf_world_enter(SHEAF_PHASE_IDLE, NULL);
    if (l.fd >= 0) close(l.fd);
    free(l.tensors);
    free(l.offsets);
    free(l.reads);
    return st;
}
