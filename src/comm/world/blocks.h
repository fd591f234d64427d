/* Blocks of bytes from one rank to others, to each its own, with several rounds under way: while a
 * rank uses the blocks of one round, those of the next ones travel. For loading; at other times
 * control messages do. */
#ifndef SHEAF_COMM_WORLD_BLOCKS_H
#define SHEAF_COMM_WORLD_BLOCKS_H

#include "sheaf/world.h"

enum { SHEAF__BLOCK_HEADER = 64 };

struct sheaf__blocks;                            /* one round */
struct sheaf__blocks *sheaf__blocks_new(void);   /* NULL: out of memory */
void sheaf__blocks_free(struct sheaf__blocks *); /* of a round that is over; accepts NULL */

/* Begins a round: sizes[r] bytes go to rank r, the same numbers on all ranks, which begin all
 * rounds in the same order; the root's own number counts as 0. `data`: on the root, in rank order,
 * for each rank that gets any, SHEAF__BLOCK_HEADER bytes of room and the block; on a rank that gets
 * some, room for both; NULL elsewhere. It stays until the wait. */
enum sheaf_status sheaf__blocks_start(struct sheaf__blocks *b, void *data, const size_t *sizes,
                                      int root, const char *what);
/* Until this rank's part of the round is done. At once if it has none. */
enum sheaf_status sheaf__blocks_wait(struct sheaf__blocks *b);
/* Does not wait, but lets MPI, which moves bytes in calls of it only, go on. *done: a wait returns at
 * once. */
enum sheaf_status sheaf__blocks_poll(struct sheaf__blocks *b, bool *done);

#endif
