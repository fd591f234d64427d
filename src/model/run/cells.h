/* Which cell of a K/V cache holds which position of which sequences.
 *
 * All sequences share the cells. A cell is a row of every layer's K and V: one position of one
 * sequence, or of several after a copy. The free cell with the lowest number is taken first, so one
 * sequence alone has position i in cell i. Bookkeeping only: pure, the same on every rank. */
#ifndef SHEAF_MODEL_CELLS_H
#define SHEAF_MODEL_CELLS_H

#include <stdint.h>

#include "sheaf/status.h"

enum { SHEAF__MAX_SEQUENCES = 64 };

struct sheaf__cells {
    int64_t n, n_used;
    int64_t end;                        /* 1 + the last cell in use; 0: none is */
    int64_t low;                        /* no cell below is free */
    int32_t *pos;                       /* [n] */
    uint64_t *owners;                   /* [n] bit s: a cell of sequence s; 0: free */
    int32_t next[SHEAF__MAX_SEQUENCES]; /* position behind the last one of a sequence */
};

enum sheaf_status sheaf__cells_init(struct sheaf__cells *cells, int64_t n);
void sheaf__cells_free(struct sheaf__cells *cells); /* what cells points to, not cells */

/* Takes a free cell for a position behind all others of the sequence. -1: all are in use. */
int64_t sheaf__cells_take(struct sheaf__cells *cells, int seq, int32_t pos);
void sheaf__cells_clear(struct sheaf__cells *cells);
/* Positions [from, to) of a sequence are forgotten; seq -1: of all sequences. */
void sheaf__cells_remove(struct sheaf__cells *cells, int seq, int32_t from, int32_t to);
/* Positions [from, to) of sequence a belong to sequence b, too, which has none of its own there.
 * INVALID if it has. */
enum sheaf_status sheaf__cells_copy(struct sheaf__cells *cells, int a, int b, int32_t from,
                                    int32_t to);
/* Positions of the first n cells, to `positions`; INT32_MAX: the cell is none of the sequence's. */
void sheaf__cells_positions(const struct sheaf__cells *cells, int seq, int32_t *positions,
                            int64_t n);
/* Which of n cells with these positions a token at `pos` sees, as a row of a mask, F16: 0, else
 * -infinity. window 0: all up to its own; else the last `window` of them. */
void sheaf__cells_mask(const int32_t *positions, int64_t n, int32_t pos, int64_t window,
                       uint16_t *row);

#endif
