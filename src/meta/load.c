/* Loading where only some ranks can read: the root reads for the others and sends them their slices.
 *
 * What a rank holds of the tensors is a row of bytes in the order in which tensor_set_from asks for
 * them. It travels in rounds: in each, every rank that still wants bytes gets the next block of its
 * row. Eight rounds are under way, so a rank needs memory for eight blocks beside its slices, and the
 * root for eight a rank: a part of many tensors begins and ends with the time of one block in which
 * nothing travels, so blocks are small.
 *
 * Blocks travel in calls of MPI only, so ranks call it between the bytes that they read and store, and
 * the root reads its own slices while they travel. */
#include <stdlib.h>

#include "comm/world/blocks.h"
#include "meta/buffer.h"
#include "sheaf/world.h"

enum {
    ROUNDS = 8,
    BLOCK_BYTES = 1 << 20,
    LEAST_BLOCK = 64 << 10,
    STEP_BYTES = 128 << 10, /* read between two calls of MPI: a millisecond at 1 Gbit/s */
    ROOT_BYTES = 8 << 20,   /* of all blocks of a round */
};

struct row { /* what the root has yet to send to a rank */
    size_t rest;
    size_t tensor, at; /* at: bytes of that tensor that are done */
};

struct round {
    struct sheaf__blocks *blocks;
    char *data;
    size_t size, used; /* of a rank that receives */
};

struct load {
    struct meta_device *dev;
    struct sheaf_tensor *const *tensors;
    size_t n_tensors;
    const bool *reads;
    int root;
    sheaf_backend_meta_read_fn read;
    void *user;
    struct row *rows; /* [ranks] */
    size_t *sizes;    /* [ranks] of the round that begins */
    size_t block;
    struct round rounds[ROUNDS];
    size_t begun, taken;      /* rounds; those that this rank has used, or the root has sent */
    size_t reading;           /* the tensor that is read */
    size_t asked;             /* bytes of it */
    size_t since;             /* bytes that were read or stored since the last call of MPI */
    enum sheaf_status failed; /* the root, to read */
};

static const struct meta_tensor *record_of(const struct load *l, size_t tensor) {
    return l->tensors[tensor]->extra;
}

/* ---- what a rank asks for ---- */

/* Of mirrored data a rank has one copy sent; of partial sums the value is member 0's. */
static bool asks(const struct load *l, size_t tensor, int member) {
    const enum sheaf_split_axis axis = record_of(l, tensor)->state->axis;
    const int *rank = l->dev->member_rank;
    if (axis == SHEAF_SPLIT_AXIS_PARTIAL) return member == 0;
    return axis != SHEAF_SPLIT_AXIS_MIRRORED || !member || rank[member - 1] != rank[member];
}

static size_t wanted(const struct load *l, size_t tensor, int rank) {
    const struct sheaf_tensor *t = l->tensors[tensor];
    size_t bytes = 0;
    for (int j = 0; j < l->dev->n_members; j++)
        if (l->dev->member_rank[j] == rank && asks(l, tensor, j))
            bytes += sheaf__meta_slice_bytes(record_of(l, tensor)->state, j, t->type, t->ne);
    return bytes;
}

/* ---- calls of MPI between bytes ---- */

/* After n more bytes. *over: the oldest round was found to be over. */
static enum sheaf_status poll_rounds(struct load *l, size_t n, bool *over) {
    enum sheaf_status st = SHEAF_STATUS_SUCCESS;
    *over = false;
    l->since += n;
    if (l->since < STEP_BYTES) return st;
    l->since = 0;
    for (size_t i = l->taken; i < l->begun && !st; i++) {
        bool done;
        st = sheaf__blocks_poll(l->rounds[i % ROUNDS].blocks, &done);
        *over = *over || (done && i == l->taken);
    }
    return st;
}

static enum sheaf_status keep_moving(struct load *l, size_t n) {
    bool over;
    return poll_rounds(l, n, &over);
}

/* ---- the root ---- */

struct packing { /* bytes [from, end) of a rank's part of a tensor */
    struct load *l;
    size_t tensor, at, from, end; /* at: where the next piece begins */
    char *out;
};

static enum sheaf_status pack_piece(void *user, const struct meta_piece *p) {
    struct packing *x = user;
    const size_t begin = x->at, size = p->n * p->outer;
    enum sheaf_status st = SHEAF_STATUS_SUCCESS;
    x->at += size;
    if (begin + size <= x->from || begin >= x->end) return st;
    for (size_t o = x->from > begin ? (x->from - begin) / p->n : 0; o < p->outer && !st; o++) {
        const size_t run = begin + o * p->n;
        if (run >= x->end) break;
        const size_t from = run > x->from ? run : x->from,
                     to = run + p->n < x->end ? run + p->n : x->end;
        st = x->l->read(x->l->user, x->tensor, p->full + o * p->full_stride + (from - run),
                        x->out + (from - x->from), to - from);
        if (!st) st = keep_moving(x->l, to - from);
    }
    return st;
}

static enum sheaf_status pack_tensor(struct load *l, size_t tensor, int rank, size_t from, size_t n,
                                     char *out) {
    const struct sheaf_tensor *t = l->tensors[tensor];
    struct packing x = {.l = l, .tensor = tensor, .from = from, .end = from + n, .out = out};
    enum sheaf_status st = SHEAF_STATUS_SUCCESS;
    for (int j = 0; j < l->dev->n_members && !st; j++)
        if (l->dev->member_rank[j] == rank && asks(l, tensor, j))
            st = sheaf__meta_for_pieces(record_of(l, tensor)->state, j, t->type, t->ne, pack_piece,
                                        &x);
    return st;
}

/* The next n bytes of a rank's row. */
static enum sheaf_status pack(struct load *l, int rank, size_t n, char *out) {
    struct row *row = &l->rows[rank];
    enum sheaf_status st = SHEAF_STATUS_SUCCESS;
    while (n && !st) {
        const size_t left = wanted(l, row->tensor, rank) - row->at, some = left < n ? left : n;
        if (some) st = pack_tensor(l, row->tensor, rank, row->at, some, out);
        row->at = some == left ? 0 : row->at + some;
        row->tensor += some == left;
        out += some;
        n -= some;
    }
    return st;
}

/* After a failure rounds go on, for the others count on them; their bytes mean nothing. */
static void pack_all(struct load *l, char *out) {
    for (int r = 0; r < sheaf_world_size() && !l->failed; r++) {
        if (!l->sizes[r]) continue;
        l->failed = pack(l, r, l->sizes[r], out + SHEAF__BLOCK_HEADER);
        out += SHEAF__BLOCK_HEADER + l->sizes[r];
    }
}

/* ---- rounds ---- */

static bool is_all_begun(const struct load *l) {
    for (int r = 0; r < sheaf_world_size(); r++)
        if (l->rows[r].rest) return false;
    return true;
}

/* In a place that is free. */
static enum sheaf_status begin_round(struct load *l) {
    struct round *round = &l->rounds[l->begun++ % ROUNDS];
    for (int r = 0; r < sheaf_world_size(); r++) {
        l->sizes[r] = l->rows[r].rest < l->block ? l->rows[r].rest : l->block;
        l->rows[r].rest -= l->sizes[r];
    }
    if (l->root == sheaf_world_rank()) pack_all(l, round->data);
    round->size = l->sizes[sheaf_world_rank()];
    round->used = 0;
    return sheaf__blocks_start(round->blocks, round->data, l->sizes, l->root, "weights");
}

static enum sheaf_status begin_rounds(struct load *l) {
    enum sheaf_status st = SHEAF_STATUS_SUCCESS;
    while (!st && l->begun - l->taken < ROUNDS && !is_all_begun(l)) st = begin_round(l);
    return st;
}

/* The oldest round is over, and the next one begins in its place. */
static enum sheaf_status end_round(struct load *l) {
    l->taken++;
    return begin_rounds(l);
}

static enum sheaf_status go_on_to_the_end(struct load *l) {
    enum sheaf_status st = begin_rounds(l);
    while (!st && l->taken < l->begun) {
        st = sheaf__blocks_wait(l->rounds[l->taken % ROUNDS].blocks);
        if (!st) st = end_round(l);
    }
    return st;
}

/* ---- a rank that receives ---- */

/* In the order of the row, whatever the offset. */
static enum sheaf_status take(void *user, size_t offset, void *dst, size_t size) {
    struct load *l = user;
    enum sheaf_status st = SHEAF_STATUS_SUCCESS;
    (void)offset;
    l->asked += size;
    while (size && !st) {
        struct round *round = &l->rounds[l->taken % ROUNDS];
        if (l->taken == l->begun || !round->size)
            return sheaf_set_error(SHEAF_STATUS_INVALID, "load '%s': more is read than was sent",
                                   l->tensors[l->reading]->name);
        if (!round->used) st = sheaf__blocks_wait(round->blocks);
        if (st) return st;
        const size_t left = round->size - round->used, n = left < size ? left : size;
        memcpy(dst, round->data + SHEAF__BLOCK_HEADER + round->used, n);
        round->used += n;
        dst = (char *)dst + n;
        size -= n;
        st = round->used == round->size ? end_round(l) : keep_moving(l, n);
    }
    return st;
}

static enum sheaf_status receive(struct load *l) {
    enum sheaf_status st = begin_rounds(l);
    for (l->reading = 0; l->reading < l->n_tensors && !st; l->reading++) {
        l->asked = 0;
        st = sheaf_backend_tensor_set_from(l->tensors[l->reading], take, l);
        if (!st && l->asked != wanted(l, l->reading, sheaf_world_rank()))
            st = sheaf_set_error(SHEAF_STATUS_INVALID, "load '%s': less is read than was sent",
                                 l->tensors[l->reading]->name);
    }
    return st;
}

/* ---- a rank that reads ---- */

/* The next round begins when the oldest one is over. */
static enum sheaf_status go_on(struct load *l, size_t n) {
    bool over;
    enum sheaf_status st = poll_rounds(l, n, &over);
    if (!st && over) st = sheaf__blocks_wait(l->rounds[l->taken % ROUNDS].blocks);
    return st || !over ? st : end_round(l);
}

static enum sheaf_status read_one(void *user, size_t offset, void *dst, size_t size) {
    enum { MOST = 1 << 20 }; /* at once */
    struct load *l = user;
    enum sheaf_status st = SHEAF_STATUS_SUCCESS;
    for (size_t at = 0, n; at < size && !st; at += n) {
        n = size - at < MOST ? size - at : MOST;
        st = l->read(l->user, l->reading, offset + at, (char *)dst + at, n);
        if (!st) st = go_on(l, n);
    }
    return st;
}

static enum sheaf_status read_all(struct load *l) {
    enum sheaf_status st = begin_rounds(l);
    for (l->reading = 0; l->reading < l->n_tensors && !st; l->reading++)
        st = sheaf_backend_tensor_set_from(l->tensors[l->reading], read_one, l);
    return st;
}

/* ---- all ---- */

static enum sheaf_status no_memory(void) {
    return sheaf_set_error(SHEAF_STATUS_ALLOC_FAILED, "loading: out of memory");
}

static enum sheaf_status make_rounds(struct load *l, size_t n_receivers) {
    const bool is_root = l->root == sheaf_world_rank();
    const size_t n = is_root ? n_receivers : l->rows[sheaf_world_rank()].rest ? 1 : 0;
    for (int i = 0; i < ROUNDS; i++) {
        l->rounds[i].blocks = sheaf__blocks_new();
        if (n) l->rounds[i].data = malloc(n * (SHEAF__BLOCK_HEADER + l->block));
        if (!l->rounds[i].blocks || (n && !l->rounds[i].data)) return no_memory();
    }
    return SHEAF_STATUS_SUCCESS;
}

/* A rank that cannot take part ends the job: the others count on it. */
static enum sheaf_status prepare(struct load *l, uint64_t *sent) {
    const int n = sheaf_world_size();
    size_t n_receivers = 0, most = 0;
    l->rows = calloc((size_t)n, sizeof *l->rows);
    l->sizes = calloc((size_t)n, sizeof *l->sizes);
    if (!l->rows || !l->sizes) return no_memory();
    for (int r = 0; r < n; r++) {
        size_t *rest = &l->rows[r].rest;
        for (size_t i = 0; i < l->n_tensors && r != l->root && !l->reads[r]; i++)
            *rest += wanted(l, i, r);
        n_receivers += *rest > 0;
        most = *rest > most ? *rest : most;
        if (sent) *sent += *rest;
    }
    l->block = BLOCK_BYTES;
    while (l->block > LEAST_BLOCK && l->block * n_receivers > ROOT_BYTES) l->block /= 2;
    if (most < l->block) l->block = most;
    return make_rounds(l, n_receivers);
}

static void release(struct load *l) {
    for (int i = 0; i < ROUNDS; i++) {
        sheaf__blocks_free(l->rounds[i].blocks);
        free(l->rounds[i].data);
    }
    free(l->rows);
    free(l->sizes);
}

static enum sheaf_status check(const struct load *l) {
    for (size_t i = 0; i < l->n_tensors; i++) {
        const struct sheaf_tensor *t = l->tensors[i];
        if (t->buffer && sheaf__meta_is_buffer(t->buffer) && !t->view_src && t->extra &&
            ((struct meta_buffer *)t->buffer->context)->dev == l->dev)
            continue;
        return sheaf_set_error(SHEAF_STATUS_INVALID,
                               "load '%s': it is not on the meta device, or a view", t->name);
    }
    return l->root >= 0 && l->root < sheaf_world_size()
               ? SHEAF_STATUS_SUCCESS
               : sheaf_set_error(SHEAF_STATUS_INVALID, "load: there is no rank %d", l->root);
}

enum sheaf_status sheaf_backend_meta_tensors_load(struct sheaf_tensor *const *tensors, size_t n,
                                                  const bool *reads, int root,
                                                  sheaf_backend_meta_read_fn read, void *user,
                                                  uint64_t *sent) {
    struct load l = {.tensors = tensors,
                     .n_tensors = n,
                     .reads = reads,
                     .root = root,
                     .read = read,
                     .user = user};
    if (!n) return SHEAF_STATUS_SUCCESS;
    if (tensors[0]->buffer && sheaf__meta_is_buffer(tensors[0]->buffer))
        l.dev = ((struct meta_buffer *)tensors[0]->buffer->context)->dev;
    enum sheaf_status st = check(&l), mine;
    if (st) return st;
    st = prepare(&l, sent);
    if (st) {
        release(&l);
        return sheaf__meta_end_apart(st);
    }
    mine = root != sheaf_world_rank() && !reads[sheaf_world_rank()] ? receive(&l) : read_all(&l);
    st = go_on_to_the_end(&l);
    if (!sheaf_world_failed()) release(&l); /* else MPI may still write there */
    return st ? st : l.failed ? l.failed : mine;
}
