/* The room that members have together, and need: shares, and the memory of hosts and devices. */
#include "ggml/capacity.h"

#include <stdint.h>

/* The room of pool `pool`; *share: of all its members. */
static double room_of_pool(const struct gg_room *rooms, size_t n, int pool, double *share) {
    double bytes = 0;
    *share = 0;
    for (size_t i = 0; i < n; i++) {
        if (rooms[i].pool != pool) continue;
        bytes += (double)rooms[i].bytes;
        *share += rooms[i].share;
    }
    return bytes;
}

size_t gg_capacity(const struct gg_room *rooms, size_t n) {
    double least = 0;
    bool found = false;
    for (size_t i = 0; i < n; i++) {
        double share;
        const double bytes = room_of_pool(rooms, n, rooms[i].pool, &share);
        if (share <= 0 || (found && bytes / share >= least)) continue;
        least = bytes / share;
        found = true;
    }
    return least < (double)(SIZE_MAX / 2) ? (size_t)least : SIZE_MAX / 2;
}

bool gg_find_lack(const struct gg_room *rooms, size_t n, struct gg_lack *lack) {
    for (size_t i = 0; i < n; i++) {
        double needs;
        const double has = room_of_pool(rooms, n, rooms[i].pool, &needs);
        if (has <= 0 || needs <= has || rooms[i].share <= 0) continue;
        *lack = (struct gg_lack){i, needs > rooms[i].share, (size_t)needs, (size_t)has};
        return true;
    }
    return false;
}
