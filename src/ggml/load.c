/* The bytes of weights: each rank reads its slices from its own copy of the file, and rank 0 sends
 * theirs to ranks that have no copy. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/file.h"
#include "base/lack.h"
#include "ggml/engine_impl.h"
#include "ggml/file.h"

enum { MAX_PATH = 4096 };

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

static void put_why(struct sheaf__text *why, const char *path, enum gg_file_lack lack, int error) {
    static const char *const texts[] = {
        [GG_FILE_NOT_REGULAR] = "is not a regular file",
        [GG_FILE_OTHER_SIZE] = "has another size than on rank 0",
        [GG_FILE_OTHER_CONTENT] = "has other bytes than on rank 0",
    };
    if (lack == GG_FILE_FAILS)
        sheaf__put(why, "cannot open %s: %s", path, sheaf__errno_text(error));
    else
        sheaf__put(why, "%s %s", path, texts[lack]);
}

static void tell_of(int rank, int others, const char *path, enum gg_file_lack lack, int error) {
    char why[MAX_PATH + 128], line[MAX_PATH + 512];
    struct sheaf__text reason = {why, sizeof why, 0}, text = {line, sizeof line, 0};
    put_why(&reason, path, lack, error);
    sheaf__put_lack(&text, &(struct sheaf__lack){rank, others, sheaf_world_host_name(rank), why, 0,
                                                 sheaf_world_host_name(0)});
    sheaf_log(SHEAF_LOG_WARN, "%s", line);
}

/* reads[r]: the rank has the file, or is rank 0, which says which of the device's have not. */
static enum sheaf_status meet_about(const struct gg_ranks *on, const uint8_t mine[2],
                                    const char *path, bool *reads) {
    uint8_t *all = calloc((size_t)sheaf_world_size(), 2);
    if (!all) return gg_or_end(gg_no_memory("load"));
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

/* Memory for n places, and the places that the message has; size: bytes of the payload. */
static enum sheaf_status make_loading(const struct gg_engine *e, struct gg_reader *r, uint64_t n,
                                      uint64_t size, struct loading *l) {
    if (n > size / sizeof(struct gg_object_place)) /* before memory for so many is taken */
        return sheaf_set_error(SHEAF_STATUS_INVALID, "load: the message is cut off");
    l->n = (size_t)n;
    l->tensors = calloc(l->n + 1, sizeof(*l->tensors));
    l->offsets = calloc(l->n + 1, sizeof *l->offsets);
    l->reads = calloc((size_t)sheaf_world_size(), sizeof *l->reads);
    return l->tensors && l->offsets && l->reads ? take_places(e, r, l) : gg_no_memory("load");
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
