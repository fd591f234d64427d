/* The memory of the devices: what members have of it together, and whether weights and caches fit. */
#include <stdlib.h>

#include "base/arith.h"
#include "ggml/calls.h"
#include "ggml/capacity.h"
#include "ggml/cut.h"
#include "ggml/driver_impl.h"

/* The last answer about each device: for questions during a call, and after the job. */
static struct { _Atomic size_t available, all; } known[GG_MAX_GROUPS];

static sheaf_backend_dev_t member_of(size_t device, size_t j) {
    return sheaf_backend_meta_dev_member(gg_engine_device(gg_driver.engine, device), j);
}

/* Members on the memory of one host use it together, other devices have memory of their own. */
static int pool_of(size_t device, size_t j) {
    const sheaf_backend_dev_t dev = member_of(device, j);
    return sheaf_backend_dev_type(dev) == SHEAF_BACKEND_DEVICE_TYPE_CPU
               ? sheaf_world_host_index(sheaf_world_device_rank(dev))
               : sheaf_world_n_hosts() + (int)j;
}

/* total: the rooms are what there is in all, else what is free. */
static void find_rooms(size_t device, const struct gg_memory_now *now, const double *shares,
                       size_t n, bool total, struct gg_room *rooms) {
    for (size_t j = 0; j < n; j++) {
        const struct gg_memory_now *of = &now[gg_engine_member(gg_driver.engine, device, j)];
        rooms[j] = (struct gg_room){shares[j], pool_of(device, j),
                                    (size_t)(total ? of->all : of->available)};
    }
}

/* Cuts follow the members' shares, so a device is full when the first host is. llama.cpp fits the
 * context and the layers of a model into what is said here, also while weights of another one wait
 * for their first graph. */
static enum sheaf_status note_memory(size_t device, const struct gg_memory_now *now) {
    const size_t n = gg_engine_n_members_of(gg_driver.engine, device);
    struct gg_room *rooms = calloc(n + 1, sizeof *rooms);
    double *shares = calloc(n + 1, sizeof *shares);
    enum sheaf_status st = rooms && shares ? gg_read_shares(gg_driver.engine, device, shares)
                                           : gg_no_memory("memory of the devices");
    if (!st) {
        find_rooms(device, now, shares, n, false, rooms);
        const size_t bytes = gg_capacity(rooms, n), to_come = gg_bytes_to_come(device);
        known[device].available = bytes - sheaf__min_size(bytes, to_come);
        find_rooms(device, now, shares, n, true, rooms);
        known[device].all = gg_capacity(rooms, n);
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

/* *now: of all members; the caller frees it, also after a failure. */
static enum sheaf_status measure(struct gg_memory_now **now) {
    *now = calloc(gg_engine_n_members(gg_driver.engine) + 1, sizeof **now);
    return *now ? gg_send(&(struct gg_command){.kind = GG_COMMAND_MEASURE}, NULL, *now)
                : gg_no_memory("memory of the devices");
}

enum sheaf_status gg_measure_all(void *unused) {
    (void)unused;
    if (!are_ranks_idle()) return SHEAF_STATUS_SUCCESS;
    struct gg_memory_now *now;
    enum sheaf_status st = measure(&now);
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

/* ---- what does not fit ---- */

static void tell_of_lack(size_t device, const struct gg_lack *lack) {
    char name[64];
    const sheaf_backend_dev_t dev = member_of(device, lack->member);
    const int rank = sheaf_world_device_rank(dev);
    sheaf_world_device_name(dev, name, sizeof name);
    sheaf_log(SHEAF_LOG_WARN,
              "weights and caches need %.2f GiB on rank %d (%s, %s)%s, and %.2f GiB are free "
              "there: use more hosts, fewer layers (-ngl), a smaller context or quantization",
              sheaf__gib_needed(lack->needs), rank, sheaf_world_host_name(rank), name,
              lack->is_shared ? " and others of its host" : "", sheaf__gib_free(lack->has));
}

enum sheaf_status gg_check_room(size_t device, const double *needs) {
    const size_t n = gg_engine_n_members_of(gg_driver.engine, device);
    struct gg_room *rooms = calloc(n + 1, sizeof *rooms);
    struct gg_memory_now *now = NULL;
    struct gg_lack lack;
    const enum sheaf_status st = rooms ? measure(&now) : gg_no_memory("memory of the devices");
    if (!st) find_rooms(device, now, needs, n, false, rooms);
    if (!st && gg_find_lack(rooms, n, &lack)) tell_of_lack(device, &lack);
    free(rooms);
    free(now);
    return st;
}
