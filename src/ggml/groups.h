/* SHEAF_GROUPS: which ranks are one device of ggml together.
 *
 *     (unset), all    all ranks are one device
 *     host            the ranks of each host, in order of the hosts' first ranks
 *     0-1,2-3         a list; each rank stands in one range of it */
#ifndef SHEAF_GGML_GROUPS_H
#define SHEAF_GGML_GROUPS_H

#include "sheaf/status.h"

enum { GG_MAX_GROUPS = 64 };

/* group_of [n_ranks]: numbers 0 .. *n_groups - 1. host_of: the host number of a rank. INVALID with
 * a text that says what the setting takes. */
enum sheaf_status gg_groups_parse(const char *text, int n_ranks, int (*host_of)(int rank),
                                  int *group_of, int *n_groups);

#endif
