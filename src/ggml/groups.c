/* Reads SHEAF_GROUPS. Every rank is given the text of rank 0, so that all have the same groups. */
#include "ggml/groups.h"

#include <ctype.h>
#include <stdlib.h>
#include <string.h>

static enum sheaf_status refuse(const char *text, const char *why) {
    return sheaf_set_error(SHEAF_STATUS_INVALID,
                           "setting SHEAF_GROUPS is '%s': %s; it takes 'all', 'host', or ranges of "
                           "ranks as 0-1,2-3",
                           text, why);
}

/* "2" or "2-3". NULL: neither. */
static const char *take_range(const char *at, long *first, long *last) {
    char *end;
    if (!isdigit((unsigned char)*at)) return NULL;
    *first = *last = strtol(at, &end, 10);
    if (*end != '-') return end;
    at = end + 1;
    if (!isdigit((unsigned char)*at)) return NULL;
    *last = strtol(at, &end, 10);
    return end;
}

static enum sheaf_status parse_list(const char *text, int n_ranks, int *group_of, int *n_groups) {
    const char *at = text;
    for (int r = 0; r < n_ranks; r++) group_of[r] = -1;
    for (int g = 0;; g++) {
        long first, last;
        at = take_range(at, &first, &last);
        if (!at || (*at && *at != ',')) return refuse(text, "that is no list of ranges");
        if (g == GG_MAX_GROUPS) return refuse(text, "there are more than 64 groups");
        if (first > last || last >= n_ranks) return refuse(text, "the job has no such ranks");
        for (long r = first; r <= last; r++) {
            if (group_of[r] >= 0) return refuse(text, "a rank is in two groups");
            group_of[r] = g;
        }
        *n_groups = g + 1;
        if (!*at) break;
        at++;
    }
    for (int r = 0; r < n_ranks; r++)
        if (group_of[r] < 0) return refuse(text, "a rank is in no group");
    return SHEAF_STATUS_SUCCESS;
}

static enum sheaf_status group_hosts(const char *text, int n_ranks, int (*host_of)(int),
                                     int *group_of, int *n_groups) {
    *n_groups = 0;
    for (int r = 0; r < n_ranks; r++) {
        int q = 0;
        while (host_of(q) != host_of(r)) q++;
        if (q == r && *n_groups == GG_MAX_GROUPS)
            return refuse(text, "there are more than 64 hosts");
        group_of[r] = q == r ? (*n_groups)++ : group_of[q];
    }
    return SHEAF_STATUS_SUCCESS;
}

enum sheaf_status gg_groups_parse(const char *text, int n_ranks, int (*host_of)(int), int *group_of,
                                  int *n_groups) {
    *n_groups = 1;
    memset(group_of, 0, (size_t)n_ranks * sizeof *group_of);
    if (!text || !*text || !strcmp(text, "all")) return SHEAF_STATUS_SUCCESS;
    if (!strcmp(text, "host")) return group_hosts(text, n_ranks, host_of, group_of, n_groups);
    return parse_list(text, n_ranks, group_of, n_groups);
}
