/* Settings that all ranks must have alike: mpirun hands an environment to its own host's ranks
 * only. */
#include "comm/world/same_setting.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "comm/world/world.h"

enum { VALUE_BYTES = 64 };

/* The first rank whose value is not that of the first one that has any. */
static enum sheaf_status compare(const char *name, const char *option,
                                 const char (*values)[VALUE_BYTES]) {
    int first = -1;
    for (int r = 0; r < sheaf_world_size(); r++) {
        if (!values[r][0]) continue;
        if (first < 0) first = r;
        if (!strncmp(values[first], values[r], VALUE_BYTES)) continue;
        return sheaf_set_error(
            SHEAF_STATUS_INVALID,
            "setting %s is '%.63s' on %s and '%.63s' on %s; give it to all ranks "
            "(mpirun -x %s%s%s)",
            name, values[first], sheaf__rank_text(first), values[r], sheaf__rank_text(r), name,
            option ? ", or the option " : "", option ? option : "");
    }
    return SHEAF_STATUS_SUCCESS;
}

enum sheaf_status sheaf__same_setting(const char *name, const char *value, const char *option) {
    char mine[VALUE_BYTES] = "", (*all)[VALUE_BYTES];
    if (sheaf_world_size() == 1) return SHEAF_STATUS_SUCCESS;
    snprintf(mine, sizeof mine, "%s", value);
    all = calloc((size_t)sheaf_world_size(), sizeof *all);
    enum sheaf_status st =
        all ? SHEAF_STATUS_SUCCESS
            : sheaf_set_error(SHEAF_STATUS_ALLOC_FAILED, "setting %s: out of memory", name);
    st = sheaf_world_agree(st, name);
    if (!st) st = sheaf_world_all_gather(mine, sizeof mine, all, name);
    if (!st) st = sheaf_world_agree(compare(name, option, (const char(*)[VALUE_BYTES])all), name);
    free(all);
    return st;
}
