/* What the files of the example backend share: its one device and its memory. */
#ifndef EXAMPLE_H
#define EXAMPLE_H

#include "sheaf/backend-impl.h"

extern struct sheaf_backend_device example_device;
extern struct sheaf_backend_buffer_type example_buft;

/* The bytes behind an address of the device's memory. */
char *example_memory(const struct sheaf_tensor *tensor);

#endif
