/* Settings that all ranks must have alike: mpirun hands an environment to its own host's ranks
 * only. */
#include "comm/world/same_setting.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "comm/world/world.h"

/* Of a long value a message shows this many characters, from shortly before the first that
 * differs. */
enum { SHOWN = 63, BEFORE = 20 };

/* Of two texts that differ. */
static size_t equal_start(const char *a, const char *b) {
    size_t n = 0;
    while (a[n] == b[n]) n++;
    return n;
}

/* The first rank whose value is not that of the first one that has any. values: one text after the
 * other, each with its end. */
static enum sheaf_status compare(const char *name, const char *option, const char *values,
                                 const size_t *sizes) {
    const char *first = NULL, *value = values;
    int first_rank = 0;
    for (int r = 0; r < sheaf_world_size(); value += sizes[r], r++) {
        if (!*value) continue;
        if (!first) {
            first = value;
            first_rank = r;
        }
        if (!strcmp(first, value)) continue;
        const size_t same = equal_start(first, value);
        const size_t from = same < SHOWN ? 0 : same - BEFORE;
        const char *const left_out = from ? "..." : "";
        return sheaf_set_error(
            SHEAF_STATUS_INVALID,
            "setting %s is '%s%.*s' on %s and '%s%.*s' on %s; give it to all ranks "
            "(mpirun -x %s%s%s)",
            name, left_out, SHOWN, first + from, sheaf__rank_text(first_rank), left_out, SHOWN,
            value + from, sheaf__rank_text(r), name, option ? ", or the option " : "",
            option ? option : "");
    }
    return SHEAF_STATUS_SUCCESS;
}

enum sheaf_status sheaf__same_setting(const char *name, const char *value, const char *option) {
    const size_t ranks = (size_t)sheaf_world_size(), mine = strlen(value) + 1;
    char *values = NULL;
    if (ranks == 1) return SHEAF_STATUS_SUCCESS;
    size_t *sizes = calloc(ranks, sizeof *sizes);
    enum sheaf_status st =
        sizes ? SHEAF_STATUS_SUCCESS
              : sheaf_set_error(SHEAF_STATUS_ALLOC_FAILED, "setting %s: out of memory", name);
    if ((st = sheaf_world_agree(st, name))) goto out;
    if ((st = sheaf_world_all_gather(&mine, sizeof mine, sizes, name))) goto out;
    size_t total = 0;
    for (size_t r = 0; r < ranks; r++) total += sizes[r];
    values = malloc(total);
    if (!values) st = sheaf_set_error(SHEAF_STATUS_ALLOC_FAILED, "setting %s: out of memory", name);
    if ((st = sheaf_world_agree(st, name))) goto out;
    if ((st = sheaf_world_all_gather_v(value, values, sizes, name))) goto out;
    st = sheaf_world_agree(compare(name, option, values, sizes), name);
out:
    free(values);
    free(sizes);
    return st;
}
