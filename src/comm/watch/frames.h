/* Frames of control connections and the buffers of one connection. Bytes of a peer are checked here
 * before they are used. */
#ifndef SHEAF_COMM_FRAMES_H
#define SHEAF_COMM_FRAMES_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "comm/world/world.h"

enum {
    SHEAF__LINK_HEADER = 8, /* magic 4, type 2, bytes behind it 2 */
    SHEAF__ALARM_BYTES = 4 + SHEAF__REASON_BYTES,
    SHEAF__LINK_BYTES = SHEAF__LINK_HEADER + SHEAF__ALARM_BYTES, /* of the longest */
};

enum sheaf__frame {
    SHEAF__HELLO = 1,
    SHEAF__CHALLENGE,
    SHEAF__PROOF,
    SHEAF__BEAT,
    SHEAF__ALARM,
    SHEAF__BYE,
    SHEAF__TOLD,
    SHEAF__SPEAK,
    SHEAF__BE_SILENT,
    SHEAF__GONE, /* alarm and farewell in one: neither can be dropped without the other */
};

/* One connection; `fd` is -1 while there is none. */
struct sheaf__peer {
    int rank, fd;
    _Atomic bool left,
        lost;    /* these and `heard`: the guard writes, the main thread reads at the end */
    bool told;   /* the loss has been noticed as a failure; of the guard */
    bool parted; /* the farewell was sent; of the guard */
    _Atomic uint64_t heard;
    size_t n_in, n_out;
    uint8_t in[SHEAF__LINK_BYTES], out[SHEAF__LINK_BYTES];
};

/* Sends what a full socket left unsent. */
void sheaf__frame_flush(struct sheaf__peer *p);
/* A frame is dropped while the last one is still being sent. No beat is missed by that: the peer
 * receives the earlier one. */
void sheaf__frame_send(struct sheaf__peer *p, enum sheaf__frame type, const uint8_t *data,
                       size_t n);
/* Reads the bytes that have arrived. Returns false at the end of the connection; *error is then
 * errno or 0. */
bool sheaf__frame_receive(struct sheaf__peer *p, int *error);
/* The type and size of the whole frame at the front of p->in; 0 if there is none yet, -1 if it is
 * invalid. */
int sheaf__frame_next(const struct sheaf__peer *p, size_t *size);
/* The bytes behind the header of the frame at the front. */
const uint8_t *sheaf__frame_data(const struct sheaf__peer *p);
void sheaf__frame_drop(struct sheaf__peer *p, size_t size);

#endif
