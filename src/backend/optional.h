/* Interfaces that a registry entry may offer by name beside those of sheaf/backend-impl.h
 * (sheaf_backend_reg_get_proc_address). They are private to this tree: a module built with the
 * installed headers alone has none of them and works without. A name ends in its version; a change
 * of an interface changes its name, so that a module of another version is not asked. */
#ifndef SHEAF_BACKEND_OPTIONAL_H
#define SHEAF_BACKEND_OPTIONAL_H

#include <stdbool.h>

#include "sheaf/status.h"

struct sheaf_backend;
struct sheaf_tensor;

#define SHEAF__SUM_PROC     "sheaf_sum_1"     /* sheaf__sum_fn: backend/sum.h */
#define SHEAF__DEVCOMM_PROC "sheaf_devcomm_2" /* struct sheaf__devcomm_i: backend/devcomm.h */
/* void (sheaf_backend_dev_t): binds the calling thread, which was made to drive the device, to the
 * device's first core, where a team expects its caller. */
#define SHEAF__BIND_THREAD_PROC "sheaf_bind_thread_1"

/* bool (sheaf_backend_dev_t, const struct sheaf_tensor *node): does the device compute the node,
 * which has no memory yet and may be a slice? For devices that support an op, but not every slice
 * of it: all members then compute that node whole. */
#define SHEAF__TAKES_SLICE_PROC "sheaf_takes_slice_1"

/* const char *(void): what the devices of the entry round operands of products to, as a setting of
 * the process names it: members of one meta device must be alike in it. */
#define SHEAF__ROUNDING_PROC "sheaf_rounding_1"

/* sheaf__capture_fn: from the first call on, the graphs that the backend captures to replay them are made and ended in
 * these calls alone. A device may wait for all work of the process to make or end one, also for a collective that
 * another member is still to join: so the caller sees to it that no queue of the process holds one. now: graphs that
 * were computed since the last call are there as they were; false: they may be gone. */
#define SHEAF__CAPTURE_PROC "sheaf_capture_1"
typedef void sheaf__capture_fn(struct sheaf_backend *backend, bool now);

/* sheaf__as_written_fn: the memory of a tensor of the device (SHEAF__TENSOR_PRIVATE), which may be a view, is read or
 * written directly from now on: its bytes are to lie there as they were written. All work of the device's queues on
 * it has ended. */
#define SHEAF__AS_WRITTEN_PROC "sheaf_as_written_1"
typedef enum sheaf_status sheaf__as_written_fn(const struct sheaf_tensor *tensor);

enum {
    /* A flag of a node that nothing outside of its graph reads: a device may compute it together with
     * the node that does, and leave its memory as it was. */
    SHEAF__TENSOR_INTERNAL = 1 << 19,
    /* Of a weight or cache that is reached through its device alone, by nodes and by the functions of its buffer, or
     * after SHEAF__AS_WRITTEN_PROC: meanwhile the device may keep it in another order. */
    SHEAF__TENSOR_PRIVATE = 1 << 25,
};

#endif
