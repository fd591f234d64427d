/* Collectives on the devices' own memory: what a module such as NCCL's offers, and how a group
 * comes to use it.
 *
 * A module is a backend module without devices (sheaf/module.h): its registry entry gives, by the
 * name SHEAF__DEVCOMM_PROC, a struct sheaf__devcomm_i. No header of CUDA or NCCL is needed on this
 * side: a device is a sheaf_backend_dev_t, a stream a sheaf_backend_t. */
#ifndef SHEAF_COMM_DEVCOMM_H
#define SHEAF_COMM_DEVCOMM_H

#include "sheaf/comm.h"

#ifdef __cplusplus
extern "C" {
#endif

#define SHEAF__DEVCOMM_PROC "sheaf_devcomm"
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
    /* destroy waits for no work; abort ends what is under way, from any thread. */
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

/* ---- the vote: pure ---- */

/* What a rank says of each of its members. */
struct sheaf__devcomm_ballot {
    bool can;
    uint8_t places; /* enum sheaf__devcomm_places */
    char module[16];
    uint8_t id[SHEAF__DEVCOMM_ID_BYTES];
    char why[SHEAF__DEVCOMM_WHY_BYTES]; /* if it cannot */
};
/* true: all members can, through the same module, and are where it wants them. Else `text` says why
 * not: "member 2 (CUDA0@1): libnccl.so.2 was not found". name(user, i) names member i. */
bool sheaf__devcomm_decide(const struct sheaf__devcomm_ballot *ballots, int n,
                           const char *(*name)(const void *user, int member), const void *user,
                           char *text, size_t size);

/* ---- a group ---- */

struct sheaf__devcomm;

/* Collective over the world. members [n] of the group, backends [n_local] of this rank's. *out is
 * NULL, with SUCCESS, if the group's data go through host memory; text [size] says how they go, and
 * why: "nccl", "host memory: member 1 (CPU0@1) is a CPU". SHEAF_COMM_DEVICE=off|auto|require|NAME:
 * never, where all can (the default), or else an error; by the module of that name, or an error. */
enum sheaf_status sheaf__devcomm_new(struct sheaf_comm *comm, const sheaf_backend_dev_t *members,
                                     const sheaf_backend_t *backends, char *text, size_t size,
                                     struct sheaf__devcomm **out);
void sheaf__devcomm_free(struct sheaf__devcomm *dc); /* accepts NULL */

/* Submit; counted in the statistics of the group's collectives, without times. On the board while
 * it is submitted and while it is waited for; its flight record is open from here until then. */
enum sheaf_status sheaf__devcomm_all_reduce(struct sheaf__devcomm *dc, int local, float *data,
                                            size_t n, const struct sheaf_comm_what *what);
enum sheaf_status sheaf__devcomm_all_gather(struct sheaf__devcomm *dc, int local, const void *send,
                                            void *recv, const size_t *bytes,
                                            const struct sheaf_comm_what *what);
enum sheaf_status sheaf__devcomm_reduce_scatter(struct sheaf__devcomm *dc, int local,
                                                const float *send, float *recv,
                                                const size_t *counts,
                                                const struct sheaf_comm_what *what);
/* Until the member's stream is empty. A stream that waits for a dead peer never ends by itself, so
 * this comes before any wait of the backend's own. After the deadline everything is aborted and the
 * job ends with a text that names the last collective. */
enum sheaf_status sheaf__devcomm_wait(struct sheaf__devcomm *dc, int local);

#ifdef __cplusplus
}
#endif
#endif
