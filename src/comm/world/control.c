/* Control messages: small exchanges between all ranks, for set-up and for the one token a step.
 *
 * Every exchange is point-to-point and direct. A message opens with a header that says which call
 * its sender is in; two ranks in different calls become an error that names both, never a hang or
 * mixed data. Up to INLINE_BYTES travel with the header, more in a second message after the headers
 * have matched. The root of a call does not wait until a rank that still computes takes that header:
 * it goes on, and its last CALLS calls keep their bytes until then. No allocation after the start. */
#include <stdio.h>
#include <stdlib.h>

#include "comm/world/world.h"

enum {
    INLINE_BYTES = 4096,
    MAX_BYTES = 1 << 30, /* a count of MPI is an int */
    TAG_FRAME = 1,
    TAG_PAYLOAD = 2,
    CALLS = 16,
    MAGIC = 0x43484153, /* "SAHC" */
    /* header: magic 4, kind 4, sequence 8, bytes 8, what as text */
    H_MAGIC = 0,
    H_KIND = 4,
    H_SEQ = 8,
    H_SIZE = 16,
    H_WHAT = 24,
    WHAT_BYTES = 40,
    HEADER_BYTES = H_WHAT + WHAT_BYTES,
    FRAME_BYTES = HEADER_BYTES + INLINE_BYTES,
};

enum kind { BARRIER, BROADCAST, ALL_GATHER, AGREE, GATHER, KIND_COUNT };
static const char *const kind_names[] = {"barrier", "broadcast", "all_gather", "agree", "gather"};
static_assert(sizeof kind_names / sizeof *kind_names == KIND_COUNT, "a name for each kind");

/* A call that this rank has sent. */
struct call {
    uint8_t *frame; /* FRAME_BYTES */
    MPI_Request *requests;
    int n; /* requests; 0: all ranks have it */
};

static struct {
    uint64_t sequence, n_calls;
    uint8_t *out, *in; /* FRAME_BYTES; [size][FRAME_BYTES] */
    MPI_Request *requests;
    MPI_Status *statuses;
    int *peers, *others; /* others: [size - 1], in the order in which they are sent to */
    struct call calls[CALLS];
} control;

/* One exchange, as this rank takes part in it. */
struct exchange {
    enum kind kind;
    const char *what;
    int root; /* of a broadcast or gather, else -1 */
    const void *send;
    size_t send_size;
    uint8_t *recv;       /* block of rank r at offset given by sizes */
    const size_t *sizes; /* [size], or NULL: send_size each; of a broadcast: the one block */
    bool unlimited;      /* of a broadcast: ranks wait for it without a limit */
    const bool *part;    /* [size] of a broadcast: the ranks that take it, NULL: all */
};

static void describe(const void *user, char *text, size_t size) {
    const struct exchange *e = user;
    snprintf(text, size, "%s '%s'", kind_names[e->kind], e->what);
}

enum sheaf_status sheaf__control_start(void) {
    const struct sheaf__world *w = sheaf__world();
    const size_t n = (size_t)w->size;
    control.out = calloc(1, FRAME_BYTES);
    control.in = calloc(n, FRAME_BYTES);
    control.requests = calloc(2 * n, sizeof *control.requests);
    control.statuses = calloc(2 * n, sizeof *control.statuses);
    control.peers = calloc(2 * n, sizeof *control.peers);
    control.others = calloc(n, sizeof *control.others);
    bool all = control.out && control.in && control.requests && control.statuses && control.peers &&
               control.others;
    for (int i = 1; i < w->size && all; i++) control.others[i - 1] = (w->rank + i) % w->size;
    for (size_t i = 0; i < CALLS; i++) {
        struct call *c = &control.calls[i];
        c->frame = calloc(1, FRAME_BYTES);
        c->requests = calloc(n, sizeof *c->requests);
        all = all && c->frame && c->requests;
    }
    if (all) return SHEAF_STATUS_SUCCESS;
    sheaf__control_stop();
    return sheaf_set_error(SHEAF_STATUS_ALLOC_FAILED, "start: out of memory");
}

void sheaf__control_stop(void) {
    free(control.out);
    free(control.in);
    free(control.requests);
    free(control.statuses);
    free(control.peers);
    free(control.others);
    for (size_t i = 0; i < CALLS; i++) {
        free(control.calls[i].frame);
        free(control.calls[i].requests);
    }
    memset(&control, 0, sizeof control);
}

static size_t block_size(const struct exchange *e, int rank) {
    return e->sizes ? e->sizes[rank] : e->send_size;
}

/* In a gather, a rank without bytes has nothing to say. */
static bool sends(const struct exchange *e, int me) {
    if (e->kind == GATHER) return e->root != me && e->send_size;
    return e->root < 0 || e->root == me;
}
static bool takes(const struct exchange *e, int me, int from) {
    if (e->kind == GATHER && !block_size(e, from)) return false;
    return from != me && (!e->part || e->part[me]) &&
           (e->root < 0 || e->root == (e->kind == GATHER ? me : from));
}

static size_t block_offset(const struct exchange *e, int rank) {
    if (e->kind == BROADCAST) return 0;
    if (!e->sizes) return (size_t)rank * e->send_size;
    size_t at = 0;
    for (int r = 0; r < rank; r++) at += e->sizes[r];
    return at;
}

static void write_header(const struct exchange *e) {
    sheaf__put_le(control.out + H_MAGIC, MAGIC, 4);
    sheaf__put_le(control.out + H_KIND, (uint64_t)e->kind, 4);
    sheaf__put_le(control.out + H_SEQ, control.sequence, 8);
    sheaf__put_le(control.out + H_SIZE, e->send_size, 8);
    snprintf((char *)control.out + H_WHAT, WHAT_BYTES, "%s", e->what);
}

/* The header of `from` against what this rank is doing. */
static enum sheaf_status check_header(const struct exchange *e, int from, int count) {
    const uint8_t *h = control.in + (size_t)from * FRAME_BYTES;
    const size_t size = block_size(e, from);
    char theirs[WHAT_BYTES] = {0};
    uint64_t kind = KIND_COUNT, sequence = 0, bytes = 0;
    if (count >= HEADER_BYTES && sheaf__get_le(h + H_MAGIC, 4) == MAGIC) {
        kind = sheaf__get_le(h + H_KIND, 4);
        sequence = sheaf__get_le(h + H_SEQ, 8);
        bytes = sheaf__get_le(h + H_SIZE, 8);
        memcpy(theirs, h + H_WHAT, WHAT_BYTES - 1);
    }
    if (kind >= KIND_COUNT)
        return sheaf__fail(SHEAF_STATUS_PEER,
                           "%s '%s': %s sent %d bytes that are not a valid message",
                           kind_names[e->kind], e->what, sheaf__rank_text(from), count);
    if (kind != (uint64_t)e->kind || sequence != control.sequence || bytes != size ||
        strncmp(theirs, (const char *)control.out + H_WHAT, WHAT_BYTES))
        return sheaf__fail(SHEAF_STATUS_PEER,
                           "%s is in %s '%s' (step %llu, %llu bytes) while %s is in %s '%s' (step "
                           "%llu, %zu bytes); all ranks must make the same calls in the same order",
                           sheaf__rank_text(from), kind_names[kind], theirs,
                           (unsigned long long)sequence, (unsigned long long)bytes,
                           sheaf__rank_text(sheaf__world()->rank), kind_names[e->kind], e->what,
                           (unsigned long long)control.sequence, size);
    const size_t with_header = size <= INLINE_BYTES ? size : 0;
    if ((size_t)count != HEADER_BYTES + with_header)
        return sheaf__fail(SHEAF_STATUS_PEER, "%s '%s': a message of %s has %d bytes, not %zu",
                           kind_names[e->kind], e->what, sheaf__rank_text(from), count,
                           HEADER_BYTES + with_header);
    return SHEAF_STATUS_SUCCESS;
}

/* Posts one round: frames, or the payloads that were too large for them. Returns the number of
 * requests; receives first. *code is MPI's. */
static int post(const struct exchange *e, bool payloads, int *code) {
    struct sheaf__world *w = sheaf__world();
    int n = 0, rc = MPI_SUCCESS;
    for (int r = 0; r < w->size && !rc; r++) {
        const size_t size = takes(e, w->rank, r) ? block_size(e, r) : 0;
        if (!takes(e, w->rank, r) || (payloads && size <= INLINE_BYTES)) continue;
        control.peers[n] = r;
        rc = payloads ? MPI_Irecv(e->recv + block_offset(e, r), (int)size, MPI_BYTE, r, TAG_PAYLOAD,
                                  w->control, &control.requests[n])
                      : MPI_Irecv(control.in + (size_t)r * FRAME_BYTES, FRAME_BYTES, MPI_BYTE, r,
                                  TAG_FRAME, w->control, &control.requests[n]);
        n += !rc;
    }
    const bool with_header = e->send_size <= INLINE_BYTES;
    const size_t frame = HEADER_BYTES + (with_header ? e->send_size : 0);
    for (int i = 0; i < w->size - 1 && !rc; i++) {
        const int r = control.others[i];
        if (!sends(e, w->rank) || (payloads && with_header)) continue;
        if (e->part && !e->part[r]) continue;
        if (e->kind == GATHER && r != e->root) continue;
        control.peers[n] = r;
        rc = payloads ? MPI_Isend(e->send, (int)e->send_size, MPI_BYTE, r, TAG_PAYLOAD, w->control,
                                  &control.requests[n])
                      : MPI_Isend(control.out, (int)frame, MPI_BYTE, r, TAG_FRAME, w->control,
                                  &control.requests[n]);
        n += !rc;
    }
    *code = rc;
    return n;
}

/* An exchange may take as long as the phase in which it is made. */
static enum sheaf_phase limit_of(enum sheaf_phase outer) {
    return outer == SHEAF_PHASE_IDLE || outer == SHEAF_PHASE_COMPUTE ? SHEAF_PHASE_COLLECTIVE
                                                                     : outer;
}

/* Requests of the exchange with these peers. */
static enum sheaf_status await(const struct exchange *e, MPI_Request *requests, const int *peers,
                               int n, uint64_t start, struct sheaf__absence *away,
                               enum sheaf_phase outer) {
    const struct sheaf__mpi_wait wait = {
        .requests = requests,
        .statuses = control.statuses,
        .peers = peers,
        .n = n,
        .start = start,
        .deadline = start + sheaf__world()->limit_ns[limit_of(outer)],
        .away = away,
        .setting = outer == limit_of(outer) ? sheaf__phase_setting(outer) : NULL,
        .describe = describe,
        .user = e,
        .unlimited = e->unlimited,
    };
    return sheaf__mpi_wait_all(&wait);
}

static enum sheaf_status round_trip(const struct exchange *e, bool payloads, uint64_t start,
                                    struct sheaf__absence *away, enum sheaf_phase outer) {
    int code;
    sheaf__mpi_lock();
    const int n = post(e, payloads, &code);
    sheaf__mpi_unlock();
    if (code) return sheaf__mpi_check(code, e->what);
    return await(e, control.requests, control.peers, n, start, away, outer);
}

static enum sheaf_status await_call(struct call *c, const struct exchange *e,
                                    enum sheaf_phase outer) {
    const uint64_t start = sheaf__time_ns();
    struct sheaf__absence away = {.looked = start};
    const enum sheaf_status st = await(e, c->requests, control.others, c->n, start, &away, outer);
    if (!st) c->n = 0;
    return st;
}

/* The test lets MPI send what it could not send at once. */
static enum sheaf_status send_call(const struct exchange *e) {
    struct call *c = &control.calls[control.n_calls++ % CALLS];
    const size_t bytes = HEADER_BYTES + e->send_size;
    const enum sheaf_status st = await_call(c, e, SHEAF_PHASE_IDLE);
    if (st) return st;
    int code = MPI_SUCCESS, done = 0;
    memcpy(c->frame, control.out, bytes);
    sheaf__mpi_lock();
    for (int i = 0; i < sheaf__world()->size - 1 && !code; i++) {
        code = MPI_Isend(c->frame, (int)bytes, MPI_BYTE, control.others[i], TAG_FRAME,
                         sheaf__world()->control, &c->requests[c->n]);
        c->n += !code;
    }
    if (!code) code = MPI_Testall(c->n, c->requests, &done, control.statuses);
    sheaf__mpi_unlock();
    if (done) c->n = 0;
    return sheaf__mpi_check(code, e->what);
}

enum sheaf_status sheaf__control_settle(void) {
    const struct exchange e = {.kind = BROADCAST, .what = "the last calls"};
    enum sheaf_status st = SHEAF_STATUS_SUCCESS;
    for (size_t i = 0; i < CALLS && !st; i++)
        st = await_call(&control.calls[i], &e, SHEAF_PHASE_FINALIZE);
    return st;
}

static enum sheaf_status exchange_in(const struct exchange *e, enum sheaf_phase outer) {
    struct sheaf__world *w = sheaf__world();
    control.sequence++;
    write_header(e);
    if (e->send_size && e->send_size <= INLINE_BYTES && sends(e, w->rank))
        memcpy(control.out + HEADER_BYTES, e->send, e->send_size);
    if (e->unlimited && e->root == w->rank && e->send_size <= INLINE_BYTES) return send_call(e);
    uint64_t start = sheaf__time_ns();
    struct sheaf__absence away = {.looked = start};
    enum sheaf_status st = round_trip(e, false, start, &away, outer);
    if (st) return st;

    int i = 0;
    bool more = sends(e, w->rank) && e->send_size > INLINE_BYTES;
    for (int r = 0; r < w->size; r++) {
        if (!takes(e, w->rank, r)) continue;
        int count = 0;
        MPI_Get_count(&control.statuses[i++], MPI_BYTE, &count);
        if ((st = check_header(e, r, count))) return st;
        const size_t size = block_size(e, r);
        if (size > INLINE_BYTES)
            more = true;
        else if (size)
            memcpy(e->recv + block_offset(e, r),
                   control.in + (size_t)r * FRAME_BYTES + HEADER_BYTES, size);
    }
    if (!more) return SHEAF_STATUS_SUCCESS;
    if (e->unlimited) start = sheaf__time_ns(); /* naps grow with the wait; this one is another */
    return round_trip(e, true, start, &away, outer);
}

static enum sheaf_status exchange(const struct exchange *e) {
    struct sheaf__world *w = sheaf__world();
    if (sheaf__has_failed(w)) return sheaf__report_failure();
    for (int r = 0; r < w->size; r++)
        if (block_size(e, r) > MAX_BYTES)
            return sheaf_set_error(SHEAF_STATUS_INVALID,
                                   "%s '%s': %zu bytes are too many for a control message",
                                   kind_names[e->kind], e->what, block_size(e, r));
    if (w->size == 1) return SHEAF_STATUS_SUCCESS;
    if (!control.out)
        return sheaf_set_error(SHEAF_STATUS_INVALID, "%s '%s': the world has ended",
                               kind_names[e->kind], e->what);

    char what[SHEAF__NAME_BYTES];
    describe(e, what, sizeof what);
    const enum sheaf_status allowed = sheaf__mpi_allowed(what);
    if (allowed) return allowed;
    if (e->unlimited) return exchange_in(e, SHEAF_PHASE_IDLE);
    const enum sheaf_phase outer = sheaf__enter_exchange(what, sheaf__time_ns());
    const enum sheaf_status st = exchange_in(e, outer);
    sheaf__leave_exchange(outer);
    return st;
}

enum sheaf_status sheaf_world_barrier(const char *what) {
    return exchange(&(struct exchange){.kind = BARRIER, .what = what ? what : "", .root = -1});
}

static enum sheaf_status broadcast(const bool *part, void *data, size_t size, int root,
                                   const char *what, bool unlimited) {
    if (root < 0 || root >= sheaf_world_size())
        return sheaf_set_error(SHEAF_STATUS_INVALID, "broadcast '%s': there is no rank %d",
                               what ? what : "", root);
    return exchange(&(struct exchange){.kind = BROADCAST,
                                       .what = what ? what : "",
                                       .root = root,
                                       .send = data,
                                       .send_size = size,
                                       .recv = data,
                                       .unlimited = unlimited,
                                       .part = part});
}

enum sheaf_status sheaf_world_broadcast(void *data, size_t size, int root, const char *what) {
    return broadcast(NULL, data, size, root, what, false);
}

enum sheaf_status sheaf_world_broadcast_to(const bool *part, void *data, size_t size, int root,
                                           const char *what) {
    return broadcast(part, data, size, root, what, false);
}

enum sheaf_status sheaf_world_call(void *data, size_t size, int root, const char *what) {
    return broadcast(NULL, data, size, root, what, true);
}

static enum sheaf_status all_gather(enum kind kind, const void *send, size_t size, void *recv,
                                    const size_t *sizes, const char *what) {
    const struct exchange e = {.kind = kind,
                               .what = what ? what : "",
                               .root = -1,
                               .send = send,
                               .send_size = size,
                               .recv = recv,
                               .sizes = sizes};
    const enum sheaf_status st = exchange(&e);
    if (!st && size) memmove(e.recv + block_offset(&e, sheaf_world_rank()), send, size);
    return st;
}

enum sheaf_status sheaf_world_all_gather(const void *send, size_t size, void *recv,
                                         const char *what) {
    return all_gather(ALL_GATHER, send, size, recv, NULL, what);
}

enum sheaf_status sheaf_world_all_gather_v(const void *send, void *recv, const size_t *sizes,
                                           const char *what) {
    return all_gather(ALL_GATHER, send, sizes[sheaf_world_rank()], recv, sizes, what);
}

enum sheaf_status sheaf_world_gather_v(const void *send, void *recv, const size_t *sizes, int root,
                                       const char *what) {
    const int me = sheaf_world_rank();
    if (root < 0 || root >= sheaf_world_size())
        return sheaf_set_error(SHEAF_STATUS_INVALID, "gather '%s': there is no rank %d",
                               what ? what : "", root);
    const struct exchange e = {.kind = GATHER,
                               .what = what ? what : "",
                               .root = root,
                               .send = send,
                               .send_size = sizes[me],
                               .recv = recv,
                               .sizes = sizes};
    const enum sheaf_status st = exchange(&e);
    if (!st && me == root && sizes[me]) memmove(e.recv + block_offset(&e, me), send, sizes[me]);
    return st;
}

/* What a rank says in an agreement: its status; of a failure the text; 1 if that is the text of an
 * earlier agreement, which names the rank. */
enum { VOTE_STATUS = 4, VOTE_TEXT = 763, VOTE_AGREED = VOTE_STATUS + VOTE_TEXT, VOTE_BYTES };

static void write_vote(uint8_t vote[static VOTE_BYTES], enum sheaf_status status) {
    const struct sheaf__world *w = sheaf__world();
    const char *error = sheaf_last_error();
    memset(vote, 0, VOTE_BYTES);
    sheaf__put_le(vote, (uint32_t)status, VOTE_STATUS);
    if (!status) return;
    vote[VOTE_AGREED] = *error && !strcmp(error, w->agreed);
    snprintf((char *)vote + VOTE_STATUS, VOTE_TEXT, "%s",
             *error ? error : sheaf_status_to_string(status));
}

static enum sheaf_status status_of(const uint8_t vote[static VOTE_BYTES]) {
    return (enum sheaf_status)(int32_t)(uint32_t)sheaf__get_le(vote, VOTE_STATUS);
}

/* Sets the error to that of the rank, and keeps it as what was agreed on. */
static void take_failure(int rank, const uint8_t vote[static VOTE_BYTES]) {
    struct sheaf__world *w = sheaf__world();
    char text[VOTE_TEXT];
    memcpy(text, vote + VOTE_STATUS, sizeof text);
    text[sizeof text - 1] = 0;
    const bool named = vote[VOTE_AGREED];
    sheaf_set_error(status_of(vote), "%s%s%s", named ? "" : sheaf__rank_text(rank),
                    named ? "" : ": ", text);
    snprintf(w->agreed, sizeof w->agreed, "%s", sheaf_last_error());
    w->reporter = rank;
}

enum sheaf_status sheaf_world_agree(enum sheaf_status mine, const char *what) {
    struct sheaf__world *w = sheaf__world();
    if (w->size == 1 && !sheaf__has_failed(w)) return mine;
    uint8_t vote[VOTE_BYTES], *votes = malloc((size_t)w->size * VOTE_BYTES);
    write_vote(vote, mine);
    if (!votes) return sheaf__fail(SHEAF_STATUS_ALLOC_FAILED, "agree '%s': out of memory", what);
    enum sheaf_status st = all_gather(AGREE, vote, VOTE_BYTES, votes, NULL, what);
    if (!st) w->reporter = -1;
    for (int r = 0; r < w->size && !st; r++) {
        const uint8_t *theirs = votes + (size_t)r * VOTE_BYTES;
        st = status_of(theirs);
        if (st) take_failure(r, theirs);
    }
    free(votes);
    return st;
}
