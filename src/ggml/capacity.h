/* How many bytes of a model have room on members that each get their share of them. Pure. */
#ifndef SHEAF_GGML_CAPACITY_H
#define SHEAF_GGML_CAPACITY_H

#include <stdbool.h>
#include <stddef.h>

struct gg_room {  /* of a member */
    double share; /* of the model: 1 if it gets all */
    int pool;     /* members with the same number use each other's bytes, as those of a host do */
    size_t bytes;
};

/* The pool that is full first decides. 0: no member has a share. */
size_t gg_capacity(const struct gg_room *rooms, size_t n);

struct gg_lack {
    size_t member;     /* the first of its pool that needs some */
    bool is_shared;    /* other members of the pool do, too */
    size_t needs, has; /* bytes of the pool */
};
/* The first pool with less bytes than its members need; shares are these bytes. A pool of 0 bytes
 * has not told what it has. False: there is none. */
bool gg_find_lack(const struct gg_room *rooms, size_t n, struct gg_lack *lack);

#endif
