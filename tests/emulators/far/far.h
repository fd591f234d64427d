/* The far device: a device for tests whose memory no one on the host may touch, like a GPU's.
 *
 * A module: memory.c is its memory and host buffers, far.c its devices and streams, comm.c
 * collectives on its memory (only with SHEAF_TEST_FAR_COMM, so that groups go through host memory
 * otherwise), slices.c nodes that it refuses. It computes with the CPU's kernels, on tensors mapped
 * to where their bytes really are. SHEAF_TEST_FAR_DEVICES (2) devices; SHEAF_TEST_FAR_SLOWDOWN=f
 * makes each compute take f times as long; SHEAF_TEST_FAR_LATE=f: before each it sleeps f times as
 * long as it had none, so the others wait for it, however long they are kept from the cores;
 * SHEAF_TEST_FAR_KIND=accel lists them as accelerators instead of GPUs; SHEAF_TEST_FAR_REFUSES=OP: it
 * lacks that op; SHEAF_TEST_FAR_SLICES=n: it takes nodes like those that it was asked about whole, and
 * of others, slices and copies, some that n chooses. Computing any other node fails. */
#ifndef SHEAF_TESTS_FAR_H
#define SHEAF_TESTS_FAR_H

#include <stdatomic.h>

#include "sheaf/backend-impl.h"

enum { FAR_MAX_DEVICES = 8 };

struct far_device {
    struct sheaf_backend_device base;
    struct sheaf_backend_buffer_type buft, host_buft;
    char name[32], host_name[48];
};

/* What the function far_count ("far_count" of get_proc_address: long (*)(const char *)) tells. */
enum far_event {
    FAR_COMPUTES,     /* graphs */
    FAR_NODES,        /* nodes computed */
    FAR_PINNED,       /* transfers from or to host buffers of a far device */
    FAR_PAGEABLE,     /* transfers from or to other memory of the host */
    FAR_HOST_BUFFERS, /* made so far */
    FAR_REFUSED,      /* slices */
    FAR_EVENT_COUNT,
};
extern _Atomic long far_counts[FAR_EVENT_COUNT];

extern const struct sheaf_backend_buffer_type_i far_buft_i, far_host_buft_i;

/* The tensor with its bytes where the CPU can reach them, as a leaf. False, with a text, if its
 * memory is not of `device`: a real device would compute on garbage. */
bool far_map(const struct sheaf_tensor *tensor, const struct far_device *device,
             struct sheaf_tensor *out);
/* The memory behind an address of the device, wherever it is; NULL if no buffer holds it. */
char *far_reach(const struct far_device *device, const void *address);
/* Collectives between far devices, for SHEAF__DEVCOMM_PROC (comm.c). */
struct sheaf__devcomm_i;
extern const struct sheaf__devcomm_i far_devcomm;
/* A node that was asked about whole, as sheaf_backend_dev_supports_op does. */
void far_knows(const struct sheaf_tensor *node);
/* Of SHEAF__TAKES_SLICE_PROC: a node like one that was asked about, or by chance. */
bool far_takes(sheaf_backend_dev_t dev, const struct sheaf_tensor *node);
bool far_takes_some(void); /* is SHEAF_TEST_FAR_SLICES set? */
/* Counts a transfer by where its host end lies. */
void far_count_transfer(const void *host);

#endif
