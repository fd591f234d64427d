/* The public collectives: each by one table of kinds, and which way a sum goes. */
#include "comm/collectives/collectives.h"

enum {
    IN_SLOTS_BYTES = 4096, /* up to here also what lies in registered memory: 0.2 us less */
};

static enum sheaf_status sum_of_all(struct sheaf__call *c, float *data, size_t n) {
    const struct sheaf__sum_steps s = sheaf__sum_steps(c, data, data, n, NULL);
    const bool one_host = c->comm->n_hosts == 1;
    if (c->comm->n_here > 1 && !(one_host && n * sizeof *data <= IN_SLOTS_BYTES))
        sheaf__find_region(c, data, n * sizeof *data);
    return one_host ? sheaf__all_reduce_here(&s) : sheaf__reduce_hosts(&s);
}

static enum sheaf_status scatter_sum(struct sheaf__call *c, const float *send, float *recv,
                                     size_t n, const size_t *counts) {
    const struct sheaf__sum_steps s = sheaf__sum_steps(c, send, recv, n, counts);
    return c->comm->n_hosts == 1 ? sheaf__reduce_scatter_here(&s) : sheaf__reduce_hosts(&s);
}

static enum sheaf_status all_reduce(struct sheaf__call *c, const struct sheaf_comm_call *call) {
    return c->comm->n > 1 ? sum_of_all(c, call->recv, call->n) : SHEAF_STATUS_SUCCESS;
}

static enum sheaf_status all_gather(struct sheaf__call *c, const struct sheaf_comm_call *call) {
    if (c->comm->n > 1) return sheaf__all_gather(c, call->send, call->recv, call->sizes);
    if (call->sizes[0]) memmove(call->recv, call->send, call->sizes[0]);
    return SHEAF_STATUS_SUCCESS;
}

static enum sheaf_status reduce_scatter(struct sheaf__call *c, const struct sheaf_comm_call *call) {
    const size_t n = c->head.bytes / sizeof(float);
    if (c->comm->n > 1) return scatter_sum(c, call->send, call->recv, n, call->sizes);
    if (n) memmove(call->recv, call->send, n * sizeof(float));
    return SHEAF_STATUS_SUCCESS;
}

static enum sheaf_status broadcast(struct sheaf__call *c, const struct sheaf_comm_call *call) {
    return c->comm->n > 1 ? sheaf__broadcast(c, call->recv, call->n, call->root)
                          : SHEAF_STATUS_SUCCESS;
}

static enum sheaf_status barrier(struct sheaf__call *c, const struct sheaf_comm_call *call) {
    (void)call;
    return c->comm->n > 1 ? sheaf__barrier(c) : SHEAF_STATUS_SUCCESS;
}

static enum sheaf_status (*const runs[])(struct sheaf__call *, const struct sheaf_comm_call *) = {
    [SHEAF_COMM_ALL_REDUCE] = all_reduce,
    [SHEAF_COMM_ALL_GATHER] = all_gather,
    [SHEAF_COMM_REDUCE_SCATTER] = reduce_scatter,
    [SHEAF_COMM_BROADCAST] = broadcast,
    [SHEAF_COMM_BARRIER] = barrier,
};
static_assert(sizeof runs / sizeof *runs == SHEAF_COMM_KIND_COUNT, "run every kind");

enum sheaf_status sheaf_comm_run(struct sheaf_comm *comm, int member,
                                 const struct sheaf_comm_call *call) {
    struct sheaf__call c;
    struct sheaf_comm_call room;
    size_t bytes;
    enum sheaf_status st = sheaf__comm_check(comm, &call, &room, &bytes);
    if (st) return st;
    if ((st = sheaf__begin_call(&c, comm, member, call, bytes))) return st;
    st = runs[call->kind](&c, call);
    return sheaf__end_call(&c, st,
                           call->kind == SHEAF_COMM_ALL_GATHER ? call->sizes[member] : bytes);
}

/* ---- by kind ---- */

static enum sheaf_status run_kind(struct sheaf_comm *comm, int member, enum sheaf_comm_kind kind,
                                  struct sheaf_comm_call call, const struct sheaf_comm_what *what) {
    call.size = sizeof call;
    call.kind = kind;
    if (what) call.what = *what;
    return sheaf_comm_run(comm, member, &call);
}

enum sheaf_status sheaf_comm_all_reduce(struct sheaf_comm *comm, int member, float *data, size_t n,
                                        const struct sheaf_comm_what *what) {
    return run_kind(comm, member, SHEAF_COMM_ALL_REDUCE,
                    (struct sheaf_comm_call){.recv = data, .n = n}, what);
}

enum sheaf_status sheaf_comm_all_gather(struct sheaf_comm *comm, int member, const void *send,
                                        void *recv, const size_t *bytes,
                                        const struct sheaf_comm_what *what) {
    return run_kind(comm, member, SHEAF_COMM_ALL_GATHER,
                    (struct sheaf_comm_call){.send = send, .recv = recv, .sizes = bytes}, what);
}

enum sheaf_status sheaf_comm_reduce_scatter(struct sheaf_comm *comm, int member, const float *send,
                                            float *recv, const size_t *counts,
                                            const struct sheaf_comm_what *what) {
    return run_kind(comm, member, SHEAF_COMM_REDUCE_SCATTER,
                    (struct sheaf_comm_call){.send = send, .recv = recv, .sizes = counts}, what);
}

enum sheaf_status sheaf_comm_broadcast(struct sheaf_comm *comm, int member, void *data, size_t size,
                                       int root, const struct sheaf_comm_what *what) {
    return run_kind(comm, member, SHEAF_COMM_BROADCAST,
                    (struct sheaf_comm_call){.recv = data, .n = size, .root = root}, what);
}

enum sheaf_status sheaf_comm_barrier(struct sheaf_comm *comm, int member,
                                     const struct sheaf_comm_what *what) {
    return run_kind(comm, member, SHEAF_COMM_BARRIER, (struct sheaf_comm_call){0}, what);
}
