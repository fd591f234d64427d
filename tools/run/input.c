/* Texts from files and from standard input. Only rank 0 reads them. */
#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/file.h"
#include "sheaf/world.h"

#include "run.h"

enum { PATIENCE_MS = 1000 };

enum sheaf_status run_read_file(const char *path, char **text, size_t *len) {
    enum sheaf_status status = SHEAF_STATUS_SUCCESS;
    size_t cap = 1 << 16;
    const bool standard = strcmp(path, "-") == 0;
    FILE *f = standard ? stdin : fopen(path, "rbe");
    *len = 0;
    *text = f ? malloc(cap) : NULL;
    if (!f)
        return sheaf_set_error(SHEAF_STATUS_IO, "cannot open %s: %s", path,
                               sheaf__errno_text(errno));
    while (*text) {
        *len += fread(*text + *len, 1, cap - *len, f);
        if (*len < cap) break;
        char *grown = cap < (size_t)1 << 27 ? realloc(*text, 2 * cap) : NULL;
        if (!grown) {
            free(*text);
            *text = NULL;
        } else {
            *text = grown;
            cap *= 2;
        }
    }
    if (*text) (*text)[*len] = 0;
    if (!*text)
        status = sheaf_set_error(SHEAF_STATUS_ALLOC_FAILED, "%s is too large to read", path);
    else if (ferror(f))
        status = sheaf_set_error(SHEAF_STATUS_IO, "cannot read %s: %s", path, strerror(errno));
    if (!standard) fclose(f);
    return status;
}

size_t run_without_newline(const char *text, size_t len) {
    if (!len || text[len - 1] != '\n') return len;
    return len > 1 && text[len - 2] == '\r' ? len - 2 : len - 1;
}

/* The user may be waiting for the program while it waits for its input. */
static void announce_reading(void) {
    struct pollfd input = {.fd = STDIN_FILENO, .events = POLLIN};
    if (poll(&input, 1, PATIENCE_MS) == 0)
        fputs("sheaf-run: reading the prompt from the standard input (-p TEXT gives one)\n",
              stderr);
}

static enum sheaf_status read_standard(char **text, size_t *len) {
    announce_reading();
    const enum sheaf_status status = run_read_file("-", text, len);
    if (status || *len) return status;
    return sheaf_set_error(SHEAF_STATUS_INVALID,
                           "there is no prompt: give one with -p TEXT or -f FILE; the standard "
                           "input holds none");
}

enum sheaf_status run_read_prompt(const struct run_options *o, char **text, size_t *len,
                                  bool *talk) {
    enum sheaf_status status = SHEAF_STATUS_SUCCESS;
    const bool none = !o->prompt && !o->file;
    *text = NULL;
    *len = 0;
    if (sheaf_world_rank() != 0) return SHEAF_STATUS_SUCCESS;
    if (o->perplexity) return run_read_file(o->perplexity, text, len);
    if (none && *talk) return SHEAF_STATUS_SUCCESS;
    if (none && !o->json && !o->ids && !o->logits && !o->embedding && !o->no_chat)
        *talk = isatty(STDIN_FILENO);
    if (none && *talk) return SHEAF_STATUS_SUCCESS;
    if (none) {
        status = read_standard(text, len);
    } else if (o->file) {
        status = run_read_file(o->file, text, len);
    } else {
        *text = strdup(o->prompt);
        *len = *text ? strlen(*text) : 0;
        if (!*text) status = sheaf_set_error(SHEAF_STATUS_ALLOC_FAILED, "no memory for the prompt");
    }
    if (!status && !o->prompt) *len = run_without_newline(*text, *len);
    if (!status) (*text)[*len] = 0;
    return status;
}

enum sheaf_status run_share_ids(int32_t **ids, size_t *n) {
    if (sheaf_world_size() == 1) return SHEAF_STATUS_SUCCESS;
    uint64_t count = *n;
    enum sheaf_status status = sheaf_world_broadcast(&count, sizeof count, 0, "number of tokens");
    if (status) return status;
    if (sheaf_world_rank() != 0) {
        *n = (size_t)count;
        *ids = calloc(*n + 1, sizeof **ids);
        if (!*ids) status = sheaf_set_error(SHEAF_STATUS_ALLOC_FAILED, "no memory for tokens");
    }
    status = sheaf_world_agree(status, "receiving tokens");
    return status ? status : sheaf_world_broadcast(*ids, *n * sizeof **ids, 0, "tokens");
}
