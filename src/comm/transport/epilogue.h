/* What a member does with the elements of an all_reduce as they become final, while they are in its
 * cache and others are still on their way. */
#ifndef SHEAF_COMM_EPILOGUE_H
#define SHEAF_COMM_EPILOGUE_H

#include "sheaf/comm.h"

struct sheaf__epilogue {
    /* Elements [0, end) are final: no member writes or reads them any more, so they may be
     * overwritten. Called on the member's thread; end grows, the last call has all (a sum of
     * nothing has no call). An error ends the collective with it. */
    enum sheaf_status (*ready)(void *user, size_t end);
    void *user;
    uint64_t took_ns; /* out: inside `ready`; not counted as time of the collective */
};

/* As sheaf_comm_all_reduce; then may be NULL. */
enum sheaf_status sheaf__comm_all_reduce_then(struct sheaf_comm *comm, int member, float *data,
                                              size_t n, const struct sheaf_comm_what *what,
                                              struct sheaf__epilogue *then);

#endif
