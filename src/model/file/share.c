/* Opens a model on all ranks, of which some lack its files. Keeps no state of its own.
 *
 * The sender's headers travel as one row of bytes: for each file three numbers, its path and its
 * header. A receiver parses each header as a file would be parsed, with the same checks. */
#include "model/file/share.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "sheaf/log.h"
#include "sheaf/world.h"

#include "base/lack.h"

enum found { OPEN, ABSENT, REFUSED };

enum {
    PIECE_BYTES = 16 << 20, /* of a broadcast */
    WHY_BYTES = 512,
};

struct head { /* of a file; travels as it is */
    uint64_t path_size, header_size, file_size;
};

struct row {
    uint8_t *bytes;
    uint64_t size;
};

static enum sheaf_status no_memory(const char *path) {
    return sheaf_set_error(SHEAF_STATUS_ALLOC_FAILED, "%s: no memory for its metadata", path);
}

/* ---- the sender ---- */

static struct head head_of(const struct sheaf_gguf *gguf) {
    return (struct head){strlen(sheaf_gguf_path(gguf)), sheaf_gguf_header_size(gguf),
                         sheaf_gguf_file_size(gguf)};
}

static enum sheaf_status write_row(const struct sheaf__weights *model, struct row *row) {
    enum sheaf_status status = SHEAF_STATUS_SUCCESS;
    for (int i = 0; i < model->n_files; i++) {
        const struct head h = head_of(model->files[i]);
        row->size += sizeof h + h.path_size + h.header_size; /* at most the files' sizes */
    }
    row->bytes = malloc(row->size);
    if (!row->bytes) return no_memory(sheaf_gguf_path(model->gguf));
    uint8_t *at = row->bytes;
    for (int i = 0; i < model->n_files && !status; i++) {
        const struct head h = head_of(model->files[i]);
        memcpy(at, &h, sizeof h);
        memcpy(at + sizeof h, sheaf_gguf_path(model->files[i]), h.path_size);
        at += sizeof h + h.path_size;
        status = sheaf_gguf_read_header(model->files[i], at);
        at += h.header_size;
    }
    return status;
}

/* ---- a rank without the files ---- */

static enum sheaf_status cut_off(void) {
    return sheaf_set_error(SHEAF_STATUS_PEER, "the metadata that another rank sent are cut off");
}

/* The file at *at, which moves behind it. */
static enum sheaf_status take_file(const struct row *row, uint64_t *at, struct sheaf_gguf **out) {
    struct head h;
    if (row->size - *at < sizeof h) return cut_off();
    memcpy(&h, row->bytes + *at, sizeof h);
    *at += sizeof h;
    const uint64_t left = row->size - *at;
    if (h.path_size > left || h.header_size > left - h.path_size) return cut_off();
    char *path = calloc(1, h.path_size + 1);
    if (!path) return no_memory("the model");
    memcpy(path, row->bytes + *at, h.path_size);
    *at += h.path_size;
    const enum sheaf_status status =
        sheaf_gguf_open_header(path, row->bytes + *at, h.header_size, h.file_size, out);
    *at += h.header_size;
    free(path);
    return status;
}

static enum sheaf_status take_row(const struct row *row, struct sheaf__weights **out) {
    const uint64_t most = row->size / sizeof(struct head) + 1;
    struct sheaf_gguf **files = calloc(most, sizeof(*files));
    enum sheaf_status status = files ? SHEAF_STATUS_SUCCESS : no_memory("the model");
    int n = 0;
    for (uint64_t at = 0; !status && at < row->size; n += !status)
        status = take_file(row, &at, &files[n]);
    if (!status && !n) status = cut_off();
    if (!status)
        status = sheaf__weights_describe(files, n, out);
    else
        for (int i = 0; i < n; i++) sheaf_gguf_free(files[i]);
    free(files);
    return status;
}

/* ---- all ranks ---- */

static enum sheaf_status send_pieces(const struct row *row, const bool *part, int sender) {
    enum sheaf_status status = SHEAF_STATUS_SUCCESS;
    for (uint64_t at = 0; at < row->size && !status; at += PIECE_BYTES) {
        const uint64_t left = row->size - at;
        status =
            sheaf_world_broadcast_to(part, row->bytes + at, left < PIECE_BYTES ? left : PIECE_BYTES,
                                     sender, "metadata of the model");
    }
    return status;
}

static enum sheaf_status share(const bool *part, int sender, struct sheaf__weights **model) {
    const int me = sheaf_world_rank();
    struct row row = {NULL, 0};
    enum sheaf_status status = me == sender ? write_row(*model, &row) : SHEAF_STATUS_SUCCESS;
    status = sheaf_world_agree(status, "reading the metadata");
    if (!status)
        status = sheaf_world_broadcast(&row.size, sizeof row.size, sender, "size of the metadata");
    if (!status && part[me] && me != sender) row.bytes = malloc(row.size);
    if (!status)
        status = sheaf_world_agree(part[me] && !row.bytes ? no_memory("the model") : status,
                                   "memory for the metadata");
    if (!status) status = send_pieces(&row, part, sender);
    if (!status && part[me] && me != sender) status = take_row(&row, model);
    free(row.bytes);
    return sheaf_world_agree(status, "metadata of the model");
}

/* why: of this rank; the first one without the model gives its own. */
static enum sheaf_status warn(const uint8_t *all, int sender, char why[WHY_BYTES], bool *two) {
    const int n = sheaf_world_size();
    char line[WHY_BYTES + 256];
    struct sheaf__text text = {line, sizeof line, 0};
    int first = -1, others = -1;
    for (int r = 0; r < n; r++) {
        if (all[r] != ABSENT) continue;
        if (first < 0) first = r;
        others++;
    }
    two[first] = two[sender] = true;
    const enum sheaf_status status =
        sheaf_world_broadcast_to(two, why, WHY_BYTES, first, "why the model is not there");
    if (status || sheaf_world_rank() != sender) return status;
    why[WHY_BYTES - 1] = 0;
    sheaf__put_lack(&text, &(struct sheaf__lack){first, others, sheaf_world_host_name(first), why,
                                                 sender, sheaf_world_host_name(sender)});
    sheaf_log(SHEAF_LOG_WARN, "%s", line);
    return status;
}

/* mine: what opening here came to, with the text of sheaf_last_error. */
static enum sheaf_status meet(enum sheaf_status mine, uint8_t *all, bool *part,
                              struct sheaf__weights **model) {
    const int n = sheaf_world_size();
    const uint8_t found = !mine ? OPEN : mine == SHEAF_STATUS_IO ? ABSENT : REFUSED;
    int sender = -1, n_absent = 0;
    char why[WHY_BYTES] = "";
    if (mine) snprintf(why, sizeof why, "%s", sheaf_last_error());
    enum sheaf_status status =
        sheaf_world_all_gather(&found, sizeof found, all, "which ranks have the model");
    if (status) return status;
    for (int r = n; r-- > 0;) {
        if (all[r] == OPEN) sender = r;
        n_absent += all[r] == ABSENT;
    }
    status = sheaf_world_agree(found == ABSENT && sender >= 0 ? SHEAF_STATUS_SUCCESS : mine,
                               "opening the model");
    if (status || !n_absent) return status;
    sheaf_clear_error();
    status = warn(all, sender, why, part);
    for (int r = 0; r < n; r++) part[r] = r == sender || all[r] == ABSENT;
    if (!status) status = share(part, sender, model);
    if (status) return status;
    for (int r = 0; r < n; r++) part[r] = all[r] == OPEN;
    (*model)->sender = sender;
    (*model)->reads = part;
    return status;
}

enum sheaf_status sheaf__weights_open_on_ranks(const char *path, struct sheaf__weights **out) {
    const size_t n = (size_t)sheaf_world_size();
    const enum sheaf_status mine = sheaf__weights_open(path, out);
    if (n == 1) return mine;
    uint8_t *all = calloc(n, sizeof *all);
    bool *part = calloc(n, sizeof *part);
    enum sheaf_status status = sheaf_world_agree(
        all && part ? SHEAF_STATUS_SUCCESS : no_memory(path), "opening the model");
    if (!status) status = meet(mine, all, part, out);
    free(all);
    if (!*out || (*out)->reads != part) free(part);
    if (status) {
        sheaf__weights_free(*out);
        *out = NULL;
    }
    return status;
}
