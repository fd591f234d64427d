/* The cost of watching a collective: the line on the board, the flight recorder, the clock.
 *
 *   bench-recorder
 *
 * Nanoseconds a collective, least of 15 rounds; the calls are those at the begin and the end of
 * each (src/comm/group/group.c). */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "comm/diag/events.h"
#include "comm/diag/recorder.h"

enum { ROUNDS = 15, CALLS = 200000 };

static const char NAME[] = "ffn_out-17";

static void board(uint64_t i) {
    sheaf__enter_collective(SHEAF_COMM_ALL_REDUCE, (uint32_t)i, 2304, i, NAME, i);
    sheaf__leave();
}
static void recorder(uint64_t i) {
    sheaf__record_begin(1, SHEAF_COMM_ALL_REDUCE, (uint32_t)i, 2304, i, NAME, i);
    sheaf__record_end(i, i);
}
static void trace_off(uint64_t i) {
    sheaf__trace(SHEAF__TRACE_WAIT, NAME, i, 1);
    sheaf__trace(SHEAF__TRACE_WIRE, NAME, i, 1);
}
static volatile uint64_t sink;
static void clock_reads(uint64_t i) {
    const uint64_t begin = sheaf__time_ns(); /* and once in the wait for arrivals */
    const uint64_t wait = sheaf__time_ns() - begin;
    sink = sheaf__time_ns() - begin + wait + i;
}

int main(void) {
    static const struct {
        const char *name;
        void (*call)(uint64_t i);
    } parts[] = {{"board", board},
                 {"flight recorder", recorder},
                 {"trace, not started", trace_off},
                 {"three readings of the clock", clock_reads}};
    void *memory = aligned_alloc(128, sheaf__recorder_bytes());
    if (!memory) return 1;
    memset(memory, 0, sheaf__recorder_bytes());
    sheaf__board_own();
    sheaf__recorders_place(memory, 0);
    for (size_t p = 0; p < sizeof parts / sizeof *parts; p++) {
        uint64_t least = UINT64_MAX;
        for (int r = 0; r < ROUNDS; r++) {
            const uint64_t begin = sheaf__time_ns();
            for (uint64_t i = 0; i < CALLS; i++) parts[p].call(i);
            const uint64_t took = sheaf__time_ns() - begin;
            if (took < least) least = took;
        }
        printf("%-28s %6.1f ns\n", parts[p].name, (double)least / CALLS);
    }
    sheaf__recorders_place(NULL, 0);
    free(memory);
    return 0;
}
