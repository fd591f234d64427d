/* A block is one message of MPI, which knows its length: a header that says which round its sender is
 * in, and the bytes. */
#include "comm/world/blocks.h"

#include <stdio.h>
#include <stdlib.h>

#include "comm/world/world.h"

enum {
    TAG_BLOCK = 3, /* control messages have the ones below */
    /* header: round 8, what as text */
    H_ROUND = 0,
    H_WHAT = 8,
    WHAT_BYTES = SHEAF__BLOCK_HEADER - H_WHAT,
};

struct sheaf__blocks {
    MPI_Request *requests; /* [n], room for all ranks */
    MPI_Status *statuses;
    int *peers;
    int n, root;
    uint64_t round;
    uint8_t *data;
    size_t size; /* of the block that this rank gets */
    char what[WHAT_BYTES];
};

static uint64_t rounds; /* begun so far, alike on all ranks */

void sheaf__blocks_free(struct sheaf__blocks *b) {
    if (!b) return;
    free(b->requests);
    free(b->statuses);
    free(b->peers);
    free(b);
}

struct sheaf__blocks *sheaf__blocks_new(void) {
    const size_t n = (size_t)sheaf_world_size();
    struct sheaf__blocks *b = calloc(1, sizeof *b);
    if (!b) return NULL;
    b->requests = calloc(n, sizeof *b->requests);
    b->statuses = calloc(n, sizeof *b->statuses);
    b->peers = calloc(n, sizeof *b->peers);
    if (b->requests && b->statuses && b->peers) return b;
    sheaf__blocks_free(b);
    return NULL;
}

static void describe(const void *user, char *text, size_t size) {
    const struct sheaf__blocks *b = user;
    snprintf(text, size, "blocks of '%s'", b->what);
}

static void write_header(const struct sheaf__blocks *b, uint8_t *h) {
    sheaf__put_le(h + H_ROUND, b->round, 8);
    memcpy(h + H_WHAT, b->what, WHAT_BYTES);
}

/* Room for headers is part of the blocks, since a message is one piece of memory. */
static int post(struct sheaf__blocks *b, const size_t *sizes) {
    struct sheaf__world *w = sheaf__world();
    uint8_t *at = b->data;
    int code = MPI_SUCCESS;
    if (w->rank != b->root) {
        b->size = sizes[w->rank];
        b->peers[0] = b->root;
        if (b->size)
            code = MPI_Irecv(at, (int)(SHEAF__BLOCK_HEADER + b->size), MPI_BYTE, b->root, TAG_BLOCK,
                             w->control, &b->requests[0]);
        b->n = b->size && !code;
        return code;
    }
    for (int r = 0; r < w->size && !code; r++) {
        const size_t size = SHEAF__BLOCK_HEADER + sizes[r];
        if (r == w->rank || !sizes[r]) continue;
        write_header(b, at);
        b->peers[b->n] = r;
        code = MPI_Isend(at, (int)size, MPI_BYTE, r, TAG_BLOCK, w->control, &b->requests[b->n]);
        b->n += !code;
        at += size;
    }
    return code;
}

enum sheaf_status sheaf__blocks_start(struct sheaf__blocks *b, void *data, const size_t *sizes,
                                      int root, const char *what) {
    struct sheaf__world *w = sheaf__world();
    b->n = 0;
    b->root = root;
    b->round = ++rounds;
    b->data = data;
    b->size = 0;
    memset(b->what, 0, sizeof b->what);
    snprintf(b->what, sizeof b->what, "%s", what);
    if (sheaf__has_failed(w)) return sheaf__report_failure();
    const enum sheaf_status allowed = sheaf__mpi_allowed(what);
    if (allowed) return allowed;
    sheaf__mpi_lock();
    const int code = post(b, sizes);
    sheaf__mpi_unlock();
    return sheaf__mpi_check(code, what);
}

static enum sheaf_status check(const struct sheaf__blocks *b) {
    const uint8_t *h = b->data;
    int count = 0;
    MPI_Get_count(&b->statuses[0], MPI_BYTE, &count);
    if ((size_t)count == SHEAF__BLOCK_HEADER + b->size &&
        sheaf__get_le(h + H_ROUND, 8) == b->round && !memcmp(h + H_WHAT, b->what, WHAT_BYTES))
        return SHEAF_STATUS_SUCCESS;
    return sheaf__fail(SHEAF_STATUS_PEER,
                       "blocks of '%s': %s sent %d bytes that are not block %llu of %zu bytes; all "
                       "ranks must make the same calls in the same order",
                       b->what, sheaf__rank_text(b->root), count, (unsigned long long)b->round,
                       b->size);
}

/* MPI_Test would free a request that is done, and the wait could not check what has come. */
enum sheaf_status sheaf__blocks_poll(struct sheaf__blocks *b, bool *done) {
    int all = 1, code = MPI_SUCCESS;
    *done = true;
    if (sheaf__has_failed(sheaf__world())) return sheaf__report_failure();
    sheaf__mpi_lock();
    for (int i = 0; i < b->n && all && !code; i++)
        code = MPI_Request_get_status(b->requests[i], &all, &b->statuses[i]);
    sheaf__mpi_unlock();
    *done = all;
    return sheaf__mpi_check(code, b->what);
}

enum sheaf_status sheaf__blocks_wait(struct sheaf__blocks *b) {
    if (sheaf__has_failed(sheaf__world())) return sheaf__report_failure();
    const uint64_t start = sheaf__time_ns();
    struct sheaf__absence away = {.looked = start};
    const enum sheaf_phase outer = sheaf__enter_exchange(b->what, start);
    const enum sheaf_phase phase =
        outer == SHEAF_PHASE_LOAD ? SHEAF_PHASE_LOAD : SHEAF_PHASE_COLLECTIVE;
    const struct sheaf__mpi_wait wait = {
        .requests = b->requests,
        .statuses = b->statuses,
        .peers = b->peers,
        .n = b->n,
        .start = start,
        .deadline = start + sheaf__world()->limit_ns[phase],
        .away = &away,
        .setting = sheaf__phase_setting(phase),
        .describe = describe,
        .user = b,
    };
    const enum sheaf_status st = sheaf__mpi_wait_all(&wait);
    sheaf__leave_exchange(outer);
    return st || !b->size ? st : check(b);
}
