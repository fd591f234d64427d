/* Rank 0's side of the job: what the plugin's functions call. Each becomes commands (engine.h),
 * which all ranks execute.
 *
 *   driver.c, calls.c    start and end, threads, failures
 *   rooms.c              memory of the devices
 *   transfers.c          memory of buffers that is written, read, filled, cleared, freed
 *   supports.c           the question whether a device computes a node
 *   run.c, cache.c       graphs: their runs, and the programs that the ranks have
 *   later.c              copies and runs that wait for the run of another device
 *   bind.c               weights and caches that become objects of the ranks
 *
 * A device with rank 0 among its ranks computes inside the call. Another device computes while rank
 * 0 goes on; its results are fetched before anything of that device is read, or its next run
 * begins, so that at most one run of a device is under way. A run whose inputs are results that are
 * not there yet waits on rank 0, which goes on as well. */
#ifndef SHEAF_GGML_DRIVER_H
#define SHEAF_GGML_DRIVER_H

#include "ggml/encode.h"

/* Starts the thread, the world and the meta devices; logs why not. Once a process. */
enum sheaf_status gg_driver_start(const struct gg_host *host);
/* Tells the workers that the job is over, and ends the thread. At exit; safe to call twice. */
void gg_driver_stop(void);
size_t gg_driver_n_devices(void);
/* Members and hosts, "4 members on 2 hosts". */
const char *gg_driver_description(size_t device);
/* What the members have together, without what buffers are still to take of it. Asks the ranks, if
 * they are idle; otherwise it is what they said last. */
void gg_driver_memory(size_t device, size_t *free_bytes, size_t *total);

struct gg_memory *gg_driver_alloc(size_t device, size_t size);
/* `buffer` is ggml's for this memory. */
void gg_driver_keep(struct gg_memory *m, struct gg_buffer *buffer);
void gg_driver_free(struct gg_memory *m);
void gg_driver_set(struct gg_memory *m, const struct gg_tensor *t, const void *data, size_t offset,
                   size_t size);
void gg_driver_fill(struct gg_memory *m, const struct gg_tensor *t, uint8_t value, size_t offset,
                    size_t size);
void gg_driver_get(struct gg_memory *m, const struct gg_tensor *t, void *data, size_t offset,
                   size_t size);
void gg_driver_clear(struct gg_memory *m, uint8_t value);
/* A result of a device goes to a compute buffer of another one when it is there, before what is asked
 * of that device from now on. False: nothing was done, since it is there, or may be copied at once. */
bool gg_driver_copy_later(const struct gg_tensor *src, const struct gg_tensor *dst);
enum sheaf_status gg_driver_compute(size_t device, const struct gg_cgraph *graph);
bool gg_driver_supports(size_t device, const struct gg_tensor *op);
/* The number of the device's last run, and the wait for that run or an earlier one. */
uint64_t gg_driver_last_run(size_t device);
void gg_driver_wait(size_t device, uint64_t run);
/* How buffers of this plugin are recognised; set by plugin.c. */
struct gg_memory *gg_plugin_memory_of(const struct gg_tensor *root);
/* Of that device's buffer type, if only in a plan: then there is no gg_memory. Or of ggml's meta
 * device, which asks its devices about tensors of its own. root has a buffer. */
bool gg_plugin_is_for_us(const struct gg_tensor *root, size_t device);

#endif
