/* Names for messages: of kinds of collectives, of phases, of ranks. */
#include <stdio.h>

#include "comm/world/world.h"

static const char *const kind_names[] = {
    [SHEAF_COMM_ALL_REDUCE] = "all_reduce",
    [SHEAF_COMM_ALL_GATHER] = "all_gather",
    [SHEAF_COMM_REDUCE_SCATTER] = "reduce_scatter",
    [SHEAF_COMM_BROADCAST] = "broadcast",
    [SHEAF_COMM_BARRIER] = "barrier",
};
static_assert(sizeof kind_names / sizeof *kind_names == SHEAF_COMM_KIND_COUNT, "name every kind");

const char *sheaf_comm_kind_name(enum sheaf_comm_kind kind) {
    return (unsigned)kind < SHEAF_COMM_KIND_COUNT ? kind_names[kind] : "unknown";
}
const char *const sheaf__phase_names[SHEAF_PHASE_COUNT] = {
    [SHEAF_PHASE_IDLE] = "its own code", [SHEAF_PHASE_START] = "start",
    [SHEAF_PHASE_LOAD] = "load",         [SHEAF_PHASE_PLAN] = "plan",
    [SHEAF_PHASE_COMPUTE] = "compute",   [SHEAF_PHASE_COLLECTIVE] = "collective",
    [SHEAF_PHASE_FINALIZE] = "finalize",
};

const char *sheaf__rank_text(int rank) {
    static _Thread_local char text[4][SHEAF__HOST_NAME_BYTES + 32];
    static _Thread_local unsigned next;
    char *t = text[next++ % 4];
    const char *host = sheaf_world_host_name(rank);
    if (host && host[0])
        snprintf(t, sizeof text[0], "rank %d (%s)", rank, host);
    else
        snprintf(t, sizeof text[0], "rank %d", rank);
    return t;
}
