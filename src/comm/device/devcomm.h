/* Collectives on the devices' own memory: how a group comes to use a module for them
 * (backend/devcomm.h), and calls it. */
#ifndef SHEAF_COMM_DEVCOMM_H
#define SHEAF_COMM_DEVCOMM_H

#include "sheaf/comm.h"

#include "backend/devcomm.h"

#ifdef __cplusplus
extern "C" {
#endif

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

/* Submits an all_reduce, all_gather or reduce_scatter of device memory to the stream of local
 * member `local`. Counted in the statistics of the group's collectives, without times. On the board
 * while it is submitted and while it is waited for; its flight record is open from here until then.
 */
enum sheaf_status sheaf__devcomm_run(struct sheaf__devcomm *dc, int local,
                                     const struct sheaf_comm_call *call);
/* Until the member's stream is empty. A stream that waits for a dead peer never ends by itself, so
 * this comes before any wait of the backend's own. After the deadline everything is aborted and the
 * job ends with a text that names the last collective. */
enum sheaf_status sheaf__devcomm_wait(struct sheaf__devcomm *dc, int local);

#ifdef __cplusplus
}
#endif
#endif
