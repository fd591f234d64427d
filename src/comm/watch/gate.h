/* Making the control connections: listening, connecting, and the proof that the other side is a
 * rank of this job.
 *
 * The higher rank connects, to each address that the lower one offers, one after the other without
 * waiting for a slow one; the first that proves to be the rank is kept. The job's secret does not
 * travel: each side sends a number of its own and gets an HMAC-SHA256 of both, so a process that
 * merely has the address learns nothing and is left. */
#ifndef SHEAF_COMM_GATE_H
#define SHEAF_COMM_GATE_H

#include "comm/watch/frames.h"
#include "comm/watch/watch_impl.h"

enum { SHEAF__SECRET_BYTES = 16, SHEAF__OFFER_BYTES = SHEAF__MAX_ADDRESSES * 8 };

struct sheaf__gate;

/* For the connections of these peers, by rank, whose `rank` is set and whose `fd` is -1. NULL: no
 * memory. */
struct sheaf__gate *sheaf__gate_new(struct sheaf__peer *peers, int n);
/* Listens, if a peer is to connect; *offer then tells where (address 4, port 2, pad 2, each). */
enum sheaf_status sheaf__gate_open(struct sheaf__gate *g, uint8_t offer[SHEAF__OFFER_BYTES]);
/* Returns when every peer is connected and proved; within a sixth of the start's limit. offers: those
 * of all ranks. */
enum sheaf_status sheaf__gate_meet(struct sheaf__gate *g, const uint8_t *offers,
                                   const uint8_t secret[SHEAF__SECRET_BYTES]);
void sheaf__gate_free(struct sheaf__gate *g);

#endif
