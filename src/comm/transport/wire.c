/* Leaders of different hosts exchange data through MPI point-to-point.
 *
 * A frame is a header with up to SHEAF__FRAME_PAYLOAD bytes behind it. Every collective begins with
 * frames between all hosts, so nothing larger moves before both sides know that they are in the
 * same call with the same size: a receive never has another size than its send. All hosts post the
 * messages of a group in the same order, and MPI keeps it, so a group needs one tag. */
#include <stdio.h>
#include <stdlib.h>

#include "comm/transport/pending.h"
#include "comm/transport/transport.h"

enum {
    MAGIC = 0x57484153, /* "SAHW" */
    /* header: magic 4, group 4, kind 4, node 4, sequence 8, bytes 8, extra 8 */
    H_MAGIC = 0,
    H_GROUP = 4,
    H_KIND = 8,
    H_NODE = 12,
    H_SEQ = 16,
    H_SIZE = 24,
    H_EXTRA = 32,
    MAX_GROUPS = 1 << 20, /* tags are reused after so many groups */
    FRAME = SHEAF__FRAME_HEADER + SHEAF__FRAME_PAYLOAD,
};

enum sheaf_status sheaf__wire_new(struct sheaf_comm *comm) {
    const size_t hosts = (size_t)comm->n_hosts;
    /* A part of a chunk is at most an even share, or all pieces of this host's members. */
    const size_t chunk = comm->chunk_bytes / sizeof(float);
    const size_t share = chunk / hosts + SHEAF__ALIGN;
    const size_t pieces = chunk / (size_t)comm->n * (size_t)comm->n_here;
    comm->stage_floats = hosts == 2 ? chunk : share > pieces ? share : pieces;
    comm->frames_out = calloc(hosts, FRAME);
    comm->frames_in = calloc(hosts, FRAME);
    comm->give = calloc(hosts, sizeof *comm->give);
    comm->take = calloc(hosts, sizeof *comm->take);
    comm->stage = calloc(SHEAF__DEPTH * hosts * comm->stage_floats, sizeof *comm->stage);
    comm->parts = calloc(hosts, sizeof *comm->parts);
    bool ok = comm->frames_out && comm->frames_in && comm->give && comm->take && comm->stage &&
              comm->parts;
    if (comm->wire_type != SHEAF_TYPE_F32) {
        comm->coded = calloc(SHEAF__DEPTH, comm->chunk_bytes);
        const size_t whole = comm->slot_bytes / sizeof(float); /* what travels whole fits a slot */
        comm->decoded_floats = whole > chunk ? whole : chunk;
        comm->decoded = calloc(hosts * comm->decoded_floats, sizeof *comm->decoded);
        ok = ok && comm->coded && comm->decoded;
    }
    for (int i = 0; i < SHEAF__LANES; i++) {
        struct sheaf__lane *lane = &comm->lane[i];
        const size_t most = 2 * hosts * SHEAF__PIECES;
        lane->requests = calloc(most, sizeof *lane->requests);
        lane->statuses = calloc(most, sizeof *lane->statuses);
        lane->peers = calloc(most, sizeof *lane->peers);
        ok = ok && lane->requests && lane->statuses && lane->peers;
    }
    return ok ? SHEAF_STATUS_SUCCESS
              : sheaf_set_error(SHEAF_STATUS_ALLOC_FAILED,
                                "create group: out of memory for messages to %zu hosts", hosts - 1);
}

void sheaf__wire_free(struct sheaf_comm *comm) {
    free(comm->frames_out);
    free(comm->frames_in);
    free(comm->give);
    free(comm->take);
    free(comm->stage);
    free(comm->parts);
    free(comm->coded);
    free(comm->decoded);
    for (int i = 0; i < SHEAF__LANES; i++) {
        free(comm->lane[i].requests);
        free(comm->lane[i].statuses);
        free(comm->lane[i].peers);
    }
}

void sheaf__wire_begin(struct sheaf_comm *comm, int lane) {
    comm->lane[lane].n = 0;
    comm->lane[lane].code = MPI_SUCCESS;
    comm->lane[lane].posted = comm->delay_ns ? sheaf__time_ns() : 0;
    sheaf__mpi_lock();
}
void sheaf__wire_end(void) { sheaf__mpi_unlock(); }

static void post(struct sheaf_comm *comm, int lane, int host, void *in, const void *out,
                 size_t bytes) {
    struct sheaf__lane *l = &comm->lane[lane];
    const int rank = comm->hosts[host].leader_rank, tag = (int)(comm->id % MAX_GROUPS);
    if (l->code) return;
    l->peers[l->n] = rank;
    l->code = in ? MPI_Irecv(in, (int)bytes, MPI_BYTE, rank, tag, sheaf__world()->data,
                             &l->requests[l->n])
                 : MPI_Isend(out, (int)bytes, MPI_BYTE, rank, tag, sheaf__world()->data,
                             &l->requests[l->n]);
    if (!l->code) l->n++;
}

/* A message goes in pieces that MPI sends without asking the receiver. */
static size_t piece_of(const struct sheaf_comm *comm, size_t bytes) {
    const size_t even = (bytes + SHEAF__PIECES - 1) / SHEAF__PIECES;
    return even > comm->part_bytes ? even : comm->part_bytes;
}
void sheaf__wire_recv(struct sheaf_comm *comm, int lane, int host, void *data, size_t bytes) {
    for (size_t at = 0, piece = piece_of(comm, bytes); at < bytes && host != comm->here;
         at += piece)
        post(comm, lane, host, (uint8_t *)data + at, NULL, sheaf__min_size(piece, bytes - at));
}
void sheaf__wire_send(struct sheaf_comm *comm, int lane, int host, const void *data, size_t bytes) {
    for (size_t at = 0, piece = piece_of(comm, bytes); at < bytes && host != comm->here;
         at += piece)
        post(comm, lane, host, NULL, (const uint8_t *)data + at,
             sheaf__min_size(piece, bytes - at));
}

/* Sixteenths of the time limit that are added to it. A wait for a host that waits itself ends
 * later: that host knows the culprit. */
enum { AT_ONCE = 2, LATER = 3 };

static enum sheaf_status wait_lane(struct sheaf__call *c, int lane, unsigned beyond) {
    const struct sheaf_comm *comm = c->comm;
    const struct sheaf__lane *l = &comm->lane[lane];
    if (l->code) {
        char doing[256];
        sheaf__describe_call(c, doing, sizeof doing);
        return sheaf__mpi_check(l->code, doing);
    }
    const struct sheaf__mpi_wait wait = {
        .requests = l->requests,
        .statuses = l->statuses,
        .peers = l->peers,
        .n = l->n,
        .not_before = comm->delay_ns && l->n ? l->posted + comm->delay_ns : 0,
        .start = c->start,
        .deadline = c->start + comm->timeout_ns + comm->timeout_ns / 16 * beyond,
        .away = &c->away,
        .loads = sheaf__group_loads,
        .describe = sheaf__describe_call,
        .user = c,
        .idle = sheaf__pending_idle(c->pending),
    };
    return sheaf__mpi_wait_all(&wait);
}
enum sheaf_status sheaf__wire_wait(struct sheaf__call *c, int lane) {
    return wait_lane(c, lane, AT_ONCE);
}

static void write_header(const struct sheaf__call *c, int host) {
    uint8_t *h = sheaf__payload_out(c->comm, host) - SHEAF__FRAME_HEADER;
    sheaf__put_le(h + H_MAGIC, MAGIC, 4);
    sheaf__put_le(h + H_GROUP, c->comm->id, 4);
    sheaf__put_le(h + H_KIND, c->head.kind, 4);
    sheaf__put_le(h + H_NODE, c->head.node, 4);
    sheaf__put_le(h + H_SEQ, c->head.sequence, 8);
    sheaf__put_le(h + H_SIZE, c->head.bytes, 8);
    sheaf__put_le(h + H_EXTRA, c->head.extra, 8);
}

/* wanted: bytes of payload */
static enum sheaf_status check_frame(const struct sheaf__call *c, int host,
                                     const MPI_Status *status, size_t wanted) {
    const uint8_t *h = sheaf__payload_in(c->comm, host) - SHEAF__FRAME_HEADER;
    const int rank = c->comm->hosts[host].leader_rank;
    int count = 0;
    MPI_Get_count(status, MPI_BYTE, &count);
    if (count < SHEAF__FRAME_HEADER || sheaf__get_le(h + H_MAGIC, 4) != MAGIC ||
        sheaf__get_le(h + H_GROUP, 4) != c->comm->id) {
        char doing[256];
        sheaf__describe_call(c, doing, sizeof doing);
        return sheaf__fail(SHEAF_STATUS_PEER,
                           "%s: %s sent %d bytes that are no message of group %u", doing,
                           sheaf__rank_text(rank), count, c->comm->id);
    }
    const struct sheaf__head theirs = {
        .kind = (uint32_t)sheaf__get_le(h + H_KIND, 4),
        .node = (uint32_t)sheaf__get_le(h + H_NODE, 4),
        .sequence = sheaf__get_le(h + H_SEQ, 8),
        .bytes = sheaf__get_le(h + H_SIZE, 8),
        .extra = sheaf__get_le(h + H_EXTRA, 8),
    };
    if (!sheaf__same_head(&theirs, &c->head) || (size_t)count != SHEAF__FRAME_HEADER + wanted)
        return sheaf__diverged(c, rank, &theirs);
    return SHEAF_STATUS_SUCCESS;
}

static void recv_frame(struct sheaf_comm *comm, int lane, int host) {
    post(comm, lane, host, sheaf__payload_in(comm, host) - SHEAF__FRAME_HEADER, NULL, FRAME);
}
/* The frame that lies at payload_out(from). */
static void send_frame(struct sheaf_comm *comm, int lane, int host, int from, size_t bytes) {
    post(comm, lane, host, NULL, sheaf__payload_out(comm, from) - SHEAF__FRAME_HEADER,
         SHEAF__FRAME_HEADER + bytes);
}

/* from: the host whose frame all others get; -1: each its own. */
static void post_frames(struct sheaf__call *c, int from, size_t bytes) {
    struct sheaf_comm *comm = c->comm;
    const int lane = SHEAF__FRAME_LANE;
    for (int h = 0; h < comm->n_hosts; h++)
        if (from < 0 || h == from) write_header(c, h);
    sheaf__wire_begin(comm, lane);
    for (int h = 0; h < comm->n_hosts; h++)
        if (h != comm->here) recv_frame(comm, lane, h);
    for (int i = 1; i < comm->n_hosts; i++) {
        const int h = (comm->here + i) % comm->n_hosts;
        send_frame(comm, lane, h, from < 0 ? h : from, from < 0 ? comm->give[h] : bytes);
    }
    sheaf__wire_end();
}

void sheaf__wire_frames_post(struct sheaf__call *c, size_t bytes) {
    post_frames(c, c->comm->here, bytes);
}
void sheaf__wire_frames_post_each(struct sheaf__call *c) { post_frames(c, -1, 0); }

static void count_wait(struct sheaf__call *c, uint64_t begin) {
    const uint64_t took = sheaf__time_ns() - begin;
    c->wait_ns += took;
    c->hosts_ns += took;
}

enum sheaf_status sheaf__wire_frames_wait(struct sheaf__call *c) {
    struct sheaf_comm *comm = c->comm;
    const uint64_t before = sheaf__time_ns();
    enum sheaf_status st = sheaf__wire_wait(c, SHEAF__FRAME_LANE);
    count_wait(c, before);
    for (int h = 0, i = 0; h < comm->n_hosts && !st; h++) {
        if (h == comm->here) continue;
        st = check_frame(c, h, &comm->lane[SHEAF__FRAME_LANE].statuses[i++], comm->take[h]);
    }
    return st;
}

enum sheaf_status sheaf__wire_frames(struct sheaf__call *c, size_t bytes) {
    sheaf__wire_frames_post(c, bytes);
    return sheaf__wire_frames_wait(c);
}

/* ---- owners ---- */

static bool owns(const struct sheaf_comm *comm, int n, int host) {
    for (int i = 0; i < n; i++)
        if (sheaf__owner(comm, n, i) == host) return true;
    return false;
}

static enum sheaf_status through_owners(struct sheaf__call *c, int n, bool back) {
    struct sheaf_comm *comm = c->comm;
    const int lane = SHEAF__FRAME_LANE, here = comm->here;
    const bool own = owns(comm, n, here);
    const uint64_t begin = sheaf__time_ns();
    sheaf__wire_begin(comm, lane);
    for (int h = 0; h < comm->n_hosts; h++)
        if (h != here && (back ? owns(comm, n, h) : own)) recv_frame(comm, lane, h);
    for (int i = 1; i < comm->n_hosts; i++) {
        const int h = (here + i) % comm->n_hosts, from = back ? here : h;
        if (!(back ? own : owns(comm, n, h))) continue;
        write_header(c, from);
        send_frame(comm, lane, h, from, comm->take[from]);
    }
    sheaf__wire_end();
    enum sheaf_status st = wait_lane(c, lane, back ? LATER : AT_ONCE);
    for (int h = 0, i = 0; h < comm->n_hosts && !st; h++)
        if (h != here && (back ? owns(comm, n, h) : own))
            st = check_frame(c, h, &comm->lane[lane].statuses[i++], comm->take[back ? h : here]);
    count_wait(c, begin);
    return st;
}

enum sheaf_status sheaf__wire_to_owners(struct sheaf__call *c, int n) {
    return through_owners(c, n, false);
}
enum sheaf_status sheaf__wire_from_owners(struct sheaf__call *c, int n) {
    return through_owners(c, n, true);
}
