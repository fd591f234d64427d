/* The activity of every rank, in memory that the ranks of a share group see: for deadlines, for
 * messages about a rank that can no longer send any, and for the flight recorder.
 *
 * A line is written by its rank's main thread and guard, or, for ranks that share no memory with
 * this one, by the guards that hear of them. Readers may see a line half changed: it serves
 * messages and limits of seconds, never data. */
#ifndef SHEAF_COMM_BOARD_H
#define SHEAF_COMM_BOARD_H

#include <stdatomic.h>

#include "base/clock.h"
#include "sheaf/comm.h"
#include "sheaf/world.h"

enum {
    SHEAF__NAME_WORDS = 5, /* of a tensor or step, in 64-bit words; longer ones are cut */
    SHEAF__NAME_BYTES = SHEAF__NAME_WORDS * 8,
    SHEAF__REASON_BYTES = 640,
};

/* A line's kind outside collectives of a group. */
enum { SHEAF__KIND_NONE = SHEAF_COMM_KIND_COUNT, SHEAF__KIND_EXCHANGE /* of control messages */ };

/* A copy of a line. */
struct sheaf__activity {
    enum sheaf_phase phase;
    uint32_t kind, node;
    uint64_t bytes, sequence, step, changes;
    char name[SHEAF__NAME_BYTES + 1];
};

/* What limits of time look at. The time is that of the phase and kind, or a later one: a line's writer changes it before
 * them, and sheaf__doing reads it after them. */
struct sheaf__doing {
    enum sheaf_phase phase;
    bool exchanges;
    uint64_t since_ns;
};

struct sheaf__line {
    _Alignas(128) _Atomic uint32_t phase, kind, node, left; /* left: it is done and may end */
    _Atomic uint64_t bytes, sequence, step, changes;
    _Atomic uint64_t since_ns; /* when the line changed last, by the clock of this host */
    _Atomic uint64_t heard_ns; /* when its guard was last heard of, by the clock of this host */
    _Atomic uint64_t name[SHEAF__NAME_WORDS];
};

/* The first to move state from HEALTHY writes the text. If it is lost before the text is complete,
 * the first to move state from FAILING to RETAKEN writes another one. */
enum { SHEAF__HEALTHY = 0, SHEAF__FAILING = 1, SHEAF__FAILED = 2, SHEAF__RETAKEN = 3 };
struct sheaf__failure {
    _Atomic int state;
    int origin;            /* rank that noticed */
    _Atomic int lower;     /* a lower rank of another share group reports a failure too */
    _Atomic int outranked; /* another share group speaks */
    _Atomic int told;      /* rank + 1 that prints it */
    _Atomic int printed;   /* the watch of that rank has */
    _Atomic int permit;    /* first rank + 1 of the share group that may, as rank 0's host says */
    char text[SHEAF__REASON_BYTES];
};

struct sheaf__board {
    struct sheaf__failure failure;
    struct sheaf__line lines[]; /* [world size], then the recorders of the share group */
};

extern struct sheaf__failure sheaf__own_failure; /* until the board is shared */
extern const char *const sheaf__phase_names[SHEAF_PHASE_COUNT];

/* Shows the activity of the calling thread if it is the main one; other threads are not shown. */
void sheaf__enter(enum sheaf_phase phase, const char *what, uint64_t now);
void sheaf__enter_collective(uint32_t kind, uint32_t node, uint64_t bytes, uint64_t sequence,
                             const char *tensor, uint64_t now);
/* The thread waits for control messages; returns the phase that it was in, for leave. */
enum sheaf_phase sheaf__enter_exchange(const char *what, uint64_t now);
void sheaf__leave_exchange(enum sheaf_phase outer);
void sheaf__leave(void);
/* The main thread's wait is still justified: called by itself, or by the thread it waits for. */
void sheaf__touch(uint64_t now);
void sheaf__touch_main(uint64_t now);
void sheaf__next_step(void); /* one more graph */
enum sheaf_phase sheaf__phase(void);
/* Makes the calling thread the main one. */
void sheaf__board_own(void);
bool sheaf__board_is_main(void);

struct sheaf__doing sheaf__doing(const struct sheaf__line *line);
void sheaf__read(const struct sheaf__line *line, struct sheaf__activity *out);
void sheaf__read_line(int rank, struct sheaf__activity *out);
/* "compute 'ffn_out-3' of step 12" */
void sheaf__activity_text(const struct sheaf__activity *a, char *text, size_t size);
/* "rank 2 (b), last seen in compute 'x' of step 12" */
void sheaf__where(int rank, char *text, size_t size);
struct sheaf__line *sheaf__line(int rank);
struct sheaf__line *sheaf__line_here(void); /* of this rank */

/* Memory of the board, without the recorders behind it. */
size_t sheaf__board_bytes(void);
/* The board of the share group lies in this memory, which is zero at first, from here on; NULL:
 * back to one of this process alone. */
void sheaf__board_place(void *memory);

#endif
