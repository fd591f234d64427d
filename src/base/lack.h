/* The words for ranks that lack a file of which another rank sends them slices: the model library and
 * the plugin say the same. */
#ifndef SHEAF_BASE_LACK_H
#define SHEAF_BASE_LACK_H

#include "base/text.h"

struct sheaf__lack {
    int rank, others;       /* the first rank without the file; how many more there are */
    const char *host, *why; /* of that rank; why: with the file's path */
    int sender;
    const char *sender_host;
};

static inline void sheaf__put_lack(struct sheaf__text *text, const struct sheaf__lack *l) {
    sheaf__put(text, "rank %d (%s)", l->rank, l->host);
    if (l->others) sheaf__put(text, " and %d more rank%s", l->others, l->others > 1 ? "s" : "");
    sheaf__put(text, ": %s; rank %d (%s) sends the slices", l->why, l->sender, l->sender_host);
}

#endif
