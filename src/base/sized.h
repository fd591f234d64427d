/* Structs of the public interface that begin with `size_t size`, in both directions. The rule is in
 * sheaf/sheaf.h. */
#ifndef SHEAF_BASE_SIZED_H
#define SHEAF_BASE_SIZED_H

#include <string.h>

#include "sheaf/status.h"

/* The caller's size; INVALID if it is that of no version up to this one. `what` for the message. */
static inline enum sheaf_status sheaf__sized_read(const void *caller, size_t own_size,
                                                  const char *what, size_t *size) {
    memcpy(size, caller, sizeof *size);
    if (*size < sizeof *size || *size > own_size)
        return sheaf_set_error(SHEAF_STATUS_INVALID,
                               "%s: size is %zu, but the struct has %zu bytes: set size to sizeof",
                               what, *size, own_size);
    return SHEAF_STATUS_SUCCESS;
}

/* The caller's struct over *own [own_size], which holds what members have that the caller's version
 * lacks: 0, or their defaults. */
static inline enum sheaf_status sheaf__sized_take(const void *caller, void *own, size_t own_size,
                                                  const char *what) {
    size_t size;
    const enum sheaf_status st = sheaf__sized_read(caller, own_size, what, &size);
    if (st) return st;
    memcpy(own, caller, size);
    memcpy(own, &own_size, sizeof own_size);
    return SHEAF_STATUS_SUCCESS;
}

/* The library's struct to the caller's, as far as that goes; the caller's size stays. */
static inline enum sheaf_status sheaf__sized_give(const void *own, size_t own_size, void *caller,
                                                  const char *what) {
    size_t size;
    const enum sheaf_status st = sheaf__sized_read(caller, own_size, what, &size);
    if (st) return st;
    memcpy(caller, own, size);
    memcpy(caller, &size, sizeof size);
    return SHEAF_STATUS_SUCCESS;
}

#endif
