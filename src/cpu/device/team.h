/* A thread team: the calling thread and n - 1 workers of its own, bound to the cores of one device.
 *
 * A run gives every member the same function with its number ith of nth; the caller is ith 0. Waits
 * spin for a while and then sleep in the kernel, or sleep at once when the cores are shared with
 * others. Teams share nothing: two of them in one process do not disturb one another except for the
 * time of the cores. One thread at a time runs a team; it need not be the one that made it.
 *
 * The workers are bound. The caller is not: it belongs to the application. A caller that makes a
 * thread only to drive a device binds it by SHEAF__BIND_THREAD_PROC (backend/optional.h).
 */
#ifndef SHEAF_CPU_DEVICE_TEAM_H
#define SHEAF_CPU_DEVICE_TEAM_H

#include <stdbool.h>

#include "cpu/matmul/mul_mat.h"
#include "sheaf/status.h"

struct sheaf__cpu_team;

/* sync->barrier returns once all nth members have called it: what each wrote before is visible to
 * all. */
typedef void (*sheaf__cpu_team_fn)(void *user, int ith, int nth, struct sheaf__cpu_sync *sync);

struct sheaf__cpu_team_params {
    int n_threads; /* with the caller; at least 1 */
    bool shared;   /* more threads than cores: do not spin */
    /* Binds the calling worker; NULL: not bound. Called once by each worker with its ith. */
    void (*bind)(void *bind_user, int ith);
    void *bind_user;
};

enum sheaf_status sheaf__cpu_team_new(const struct sheaf__cpu_team_params *params,
                                      struct sheaf__cpu_team **out);
/* Ends and joins the workers; no run may be going on. Accepts NULL. */
void sheaf__cpu_team_free(struct sheaf__cpu_team *team);
int sheaf__cpu_team_size(const struct sheaf__cpu_team *team);
/* Runs fn on every member; returns when all have returned. No allocation, no lock. */
void sheaf__cpu_team_run(struct sheaf__cpu_team *team, sheaf__cpu_team_fn fn, void *user);

#endif
