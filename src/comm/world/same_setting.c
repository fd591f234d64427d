/* Settings that all ranks must have alike: mpirun hands an environment to its own host's ranks only. */
#include "comm/world/same_setting.h"

#include <stdio.h>
#include <string.h>

#include "sheaf/world.h"

enum { VALUE_BYTES = 64 };

enum sheaf_status sheaf__same_setting(const char *name, const char *value) {
    char mine[VALUE_BYTES] = "", first[VALUE_BYTES];
    snprintf(mine, sizeof mine, "%s", value);
    memcpy(first, mine, sizeof first);
    enum sheaf_status st = sheaf_world_broadcast(first, sizeof first, 0, name);
    if (!st && strcmp(first, mine) != 0)
        st = sheaf_set_error(SHEAF_STATUS_INVALID,
                             "setting %s is '%s' on rank 0 and '%s' here; hand it to all ranks "
                             "(mpirun -x %s)",
                             name, first, mine, name);
    return sheaf_world_agree(st, name);
}
