/* How members reach each other: in shared memory, in registered memory, and between hosts. */
#ifndef SHEAF_COMM_TRANSPORT_H
#define SHEAF_COMM_TRANSPORT_H

#include "comm/transport/call.h"

/* ---- on a host (meet.c); all for the current step, self->step ---- */
/* Publishes what was written to the own slot and waits for all members of the host. The first time
 * in a call it compares heads. */
enum sheaf_status sheaf__arrive(struct sheaf__call *c);
void sheaf__publish_done(struct sheaf__call *c);
enum sheaf_status sheaf__await_done(struct sheaf__call *c);
void sheaf__publish_result(struct sheaf__call *c, uint64_t step);
enum sheaf_status sheaf__await_result(struct sheaf__call *c, uint64_t step);

/* ---- between hosts (wire.c); leaders only ---- */
enum sheaf_status sheaf__wire_new(struct sheaf_comm *comm);
void sheaf__wire_free(struct sheaf_comm *comm);
static inline uint8_t *sheaf__payload_out(const struct sheaf_comm *comm, int host) {
    return comm->frames_out + (size_t)host * (SHEAF__FRAME_HEADER + SHEAF__FRAME_PAYLOAD) +
           SHEAF__FRAME_HEADER;
}
static inline uint8_t *sheaf__payload_in(const struct sheaf_comm *comm, int host) {
    return comm->frames_in + (size_t)host * (SHEAF__FRAME_HEADER + SHEAF__FRAME_PAYLOAD) +
           SHEAF__FRAME_HEADER;
}
/* Sends header and the first `bytes` of the own host's payload_out to every other host, receives
 * theirs: comm->take[h] bytes into payload_in(h). Checks every header. */
enum sheaf_status sheaf__wire_frames(struct sheaf__call *c, size_t bytes);
/* The same in two parts. Messages posted between them must not rely on equal sizes. */
void sheaf__wire_frames_post(struct sheaf__call *c, size_t bytes);
/* To each host its own: comm->give[h] bytes of payload_out(h). */
void sheaf__wire_frames_post_each(struct sheaf__call *c);
enum sheaf_status sheaf__wire_frames_wait(struct sheaf__call *c);
/* The i-th of n owners of a sum, which are spread over the hosts. Owner h adds a part, of
 * comm->take[h] bytes. */
static inline int sheaf__owner(const struct sheaf_comm *comm, int n, int i) {
    return (int)((int64_t)i * comm->n_hosts / n);
}
/* How many hosts own a sum of this size; 0: every host, it travels whole; -1: it goes in chunks. */
static inline int sheaf__n_owners(const struct sheaf_comm *comm, size_t bytes) {
    const struct sheaf_comm_level *l = &comm->levels[SHEAF_COMM_LEVEL_HOSTS];
    const size_t least = bytes ? bytes : 1;
    if (least <= l->one_shot_bytes) return 0;
    for (int i = 0; i < SHEAF_COMM_OWNERS; i++)
        if (least <= l->owners[i].bytes) return l->owners[i].n;
    return bytes ? -1 : 0;
}
/* Sends payload_out(h), with header, to each owner h; an owner receives what all others have for
 * its part at payload_in(). Nothing goes to a host that owns nothing. */
enum sheaf_status sheaf__wire_to_owners(struct sheaf__call *c, int n);
/* And back: an owner sends its own payload_out to all others. A host that receives it knows that
 * all members are in the same call: the owner has seen their headers. */
enum sheaf_status sheaf__wire_from_owners(struct sheaf__call *c, int n);
/* Bare payloads, after frames have proved that sizes agree. begin ... recv/send ... end, wait. */
void sheaf__wire_begin(struct sheaf_comm *comm, int lane);
void sheaf__wire_recv(struct sheaf_comm *comm, int lane, int host, void *data, size_t bytes);
void sheaf__wire_send(struct sheaf_comm *comm, int lane, int host, const void *data, size_t bytes);
void sheaf__wire_end(void);
enum sheaf_status sheaf__wire_wait(struct sheaf__call *c, int lane);

/* ---- registered memory (region.c) ---- */
/* Sets c->region and c->offset if `bytes` from data on lie in a region of the member. */
void sheaf__find_region(struct sheaf__call *c, const void *data, size_t bytes);
/* After arrival: did any member of the host name a region? */
bool sheaf__any_region(const struct sheaf__call *c, uint64_t step);
/* The data of the member at `place` in this step, of which the first `bytes` are used; NULL, and
 * the job has failed, if there are none such or this process cannot map them. */
uint8_t *sheaf__data_of(struct sheaf__call *c, int place, uint64_t step, size_t bytes);
void sheaf__regions_free(struct sheaf_comm *comm, struct sheaf__member *self);

/* ---- types of data between hosts (codec.c): F32, BF16, Q8_0 ---- */
/* Bytes of n floats, the last block of Q8_0 filled up. */
size_t sheaf__codec_bytes(enum sheaf_type type, size_t n);
void sheaf__codec_encode(enum sheaf_type type, const float *src, uint8_t *dst, size_t n);
void sheaf__codec_decode(enum sheaf_type type, const uint8_t *src, float *dst, size_t n);
/* data [n]: to the type and back; scratch has them as they travel then. */
void sheaf__codec_round(enum sheaf_type type, float *data, uint8_t *scratch, size_t n);
/* The type that params and SHEAF_COMM_WIRE ask for. */
enum sheaf_status sheaf__codec_type(enum sheaf_type wanted, enum sheaf_type *out);

enum { SHEAF__OWNER_BYTES = 62 * 1024 }; /* of an owner's part, at most, without its alignment */
static_assert(SHEAF__OWNER_BYTES + SHEAF__ALIGN * sizeof(float) <= SHEAF__FRAME_PAYLOAD,
              "a part fits a frame");

#endif
