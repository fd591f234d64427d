/* The flight recorder: the last collectives of each rank, in the board's memory, so that other
 * ranks can write down the calls of a rank that can no longer do it. */
#ifndef SHEAF_COMM_RECORDER_H
#define SHEAF_COMM_RECORDER_H

#include "comm/world/board.h"

enum { SHEAF__RECORDS = 2048 };

size_t sheaf__recorder_bytes(void); /* of one rank */
/* Where the recorders of the share group lie, and which is this rank's; NULL: record nothing. */
void sheaf__recorders_place(void *recorders, int place);
/* One collective of the main thread, or of a thread that works for it; others are not recorded. It
 * is open until its end. */
void sheaf__record_begin(uint32_t group, uint32_t kind, uint32_t node, uint64_t bytes,
                         uint64_t sequence, const char *tensor, uint64_t now);
void sheaf__record_end(uint64_t wait_ns, uint64_t total_ns);
/* Is the calling thread's work recorded? */
bool sheaf__recording(void);
void sheaf__set_recording(bool on);
/* All open ones of a group, which were submitted to devices, have ended. */
void sheaf__record_end_group(uint32_t group, uint64_t now);
/* Writes the records of a rank of the share group to a file in SHEAF_FLIGHT_DIR, if that is set and
 * the file does not exist. `place` is its number in the share group. Any thread. */
void sheaf__recorder_dump(int rank, int place);

#endif
