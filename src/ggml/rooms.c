/* The memory of the devices: what members have of it together. */
#include <stdlib.h>

#include "base/arith.h"
#include "ggml/calls.h"
#include "ggml/capacity.h"
#include "ggml/cut.h"
#include "ggml/driver_impl.h"

/* The last answer about each device: for questions during a call, and after the job. */
static struct { _Atomic size_t available, all; } known[GG_MAX_GROUPS];

/* Members on the memory of one host use it together, other devices have memory of their own. */
static int pool_of(sheaf_backend_dev_t dev, size_t member) {
    return sheaf_backend_dev_type(dev) == SHEAF_BACKEND_DEVICE_TYPE_CPU
               ? sheaf_world_host_index(sheaf_world_device_rank(dev))
               : sheaf_world_n_hosts() + (int)member;
}

static void find_rooms(size_t device, const struct gg_memory_now *now, const double *shares,
                       size_t n, struct gg_room *available, struct gg_room *all) {
    const sheaf_backend_dev_t meta = gg_engine_device(gg_driver.engine, device);
    for (size_t j = 0; j < n; j++) {
        const struct gg_memory_now *of = &now[gg_engine_member(gg_driver.engine, device, j)];
        available[j].share = all[j].share = shares[j];
        available[j].pool = all[j].pool = pool_of(sheaf_backend_meta_dev_member(meta, j), j);
        available[j].bytes = (size_t)of->available;
        all[j].bytes = (size_t)of->all;
    }
}

/* Cuts follow the members' shares, so a device is full when the first host is. llama.cpp fits the
 * context and the layers of a model into what is said here, also while weights of another one wait
 * for their first graph. */
static enum sheaf_status note_memory(size_t device, const struct gg_memory_now *now) {
    const size_t n = gg_engine_n_members_of(gg_driver.engine, device);
    struct gg_room *rooms = calloc(2 * n + 1, sizeof *rooms);
    double *shares = calloc(n + 1, sizeof *shares);
    enum sheaf_status st = rooms && shares ? gg_read_shares(gg_driver.engine, device, shares)
                                           : gg_no_memory("memory of the devices");
    if (!st) {
        find_rooms(device, now, shares, n, rooms, rooms + n);
        const size_t bytes = gg_capacity(rooms, n), to_come = gg_bytes_to_come(device);
        known[device].available = bytes - sheaf__min_size(bytes, to_come);
        known[device].all = gg_capacity(rooms + n, n);
    }
    free(rooms);
    free(shares);
    return st;
}

/* Ranks of a device that computes without rank 0 would answer at the end of that run. */
static bool are_ranks_idle(void) {
    for (size_t i = 0; i < gg_engine_n_devices(gg_driver.engine); i++)
        if (gg_driver.pending[i].fetched != gg_driver.pending[i].asked) return false;
    return !sheaf_world_failed();
}

enum sheaf_status gg_measure_all(void *unused) {
    (void)unused;
    if (!are_ranks_idle()) return SHEAF_STATUS_SUCCESS;
    struct gg_memory_now *now = calloc(gg_engine_n_members(gg_driver.engine) + 1, sizeof *now);
    if (!now) return gg_no_memory("memory of the devices");
    enum sheaf_status st = gg_send(&(struct gg_command){.kind = GG_COMMAND_MEASURE}, NULL, now);
    for (size_t i = 0; i < gg_engine_n_devices(gg_driver.engine) && !st; i++)
        st = note_memory(i, now);
    free(now);
    return st;
}

void gg_driver_memory(size_t device, size_t *free_bytes, size_t *total) {
    gg_call_if_idle(gg_measure_all, NULL);
    *free_bytes = known[device].available;
    *total = known[device].all;
}
