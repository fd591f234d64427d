/* What a module offers that moves and sums data in the members' device memory, as NCCL's does and
 * the CUDA backend for members on one GPU. comm/device/devcomm.h calls it.
 *
 * The registry entry of such a module (sheaf/module.h; it may have devices or not) gives, by the
 * name SHEAF__DEVCOMM_PROC, a struct sheaf__devcomm_i. No header of CUDA or NCCL is needed on the
 * caller's side: a device is a sheaf_backend_dev_t, a stream a sheaf_backend_t. */
#ifndef SHEAF_BACKEND_DEVCOMM_H
#define SHEAF_BACKEND_DEVCOMM_H

#include "backend/optional.h"
#include "sheaf/backend.h"

#ifdef __cplusplus
extern "C" {
#endif

enum {
    SHEAF__DEVCOMM_VERSION = 2,
    SHEAF__DEVCOMM_KEY_BYTES = 128,
    SHEAF__DEVCOMM_ID_BYTES = 16,
    SHEAF__DEVCOMM_WHY_BYTES = 128,
};

/* What a module is told of a group. Pointers live as long as what create makes. */
struct sheaf__devcomm_group {
    int n;            /* members */
    const int *order; /* [n] members in the order of summation ... */
    const int
        *host; /* [n] ... and the host of each: a host's are summed first, then the hosts' sums */
    int n_local;
    const int *local;                /* [n_local] member numbers */
    const sheaf_backend_t *backends; /* [n_local] their streams */
    uint8_t key[SHEAF__DEVCOMM_KEY_BYTES];
    bool (*give_up)(void); /* true: the job is over, or the deadline has passed. Any thread */
};

/* What a module asks of the members' physical devices. */
enum sheaf__devcomm_places {
    SHEAF__DEVCOMM_APART, /* no two members may share one */
    SHEAF__DEVCOMM_ANY,
    SHEAF__DEVCOMM_ONE, /* all members must share one */
};

struct sheaf__devcomm_i {
    int version;
    const char *name; /* "nccl" */
    /* The physical device. UNSUPPORTED if it is not of the module's kind, another status if it is
     * and cannot be a member all the same; the text says why. */
    enum sheaf_status (*identify)(sheaf_backend_dev_t dev, uint8_t id[SHEAF__DEVCOMM_ID_BYTES]);
    enum sheaf__devcomm_places (*places)(void);
    /* What all members of a group must know; made once, on the rank of member 0. */
    enum sheaf_status (*make_key)(uint8_t key[SHEAF__DEVCOMM_KEY_BYTES]);
    /* By all ranks of the group at once. Returns when it is ready, or give_up says so. */
    enum sheaf_status (*create)(const struct sheaf__devcomm_group *group, void **out);
    /* destroy waits, but not for long, for what the streams still hold and for the other members, so
     * that no memory goes which is read; abort ends what is under way, from any thread. */
    void (*destroy)(void *made);
    void (*abort)(void *made);
    /* As those of sheaf/comm.h, but the data are in the memory of the local member's device, and
     * the call submits to the member's stream. Called by one thread a member. */
    enum sheaf_status (*all_reduce)(void *made, int local, float *data, size_t n);
    enum sheaf_status (*all_gather)(void *made, int local, const void *send, void *recv,
                                    const size_t *bytes);
    enum sheaf_status (*reduce_scatter)(void *made, int local, const float *send, float *recv,
                                        const size_t *counts);
    /* Has all that the stream holds been done? */
    enum sheaf_status (*poll)(void *made, int local, bool *done);
};

#ifdef __cplusplus
}
#endif
#endif
