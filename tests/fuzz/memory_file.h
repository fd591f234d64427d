/* Bytes as a file that functions which want a path can open. */
#ifndef SHEAF_TESTS_MEMORY_FILE_H
#define SHEAF_TESTS_MEMORY_FILE_H

#include <sys/mman.h>
#include <unistd.h>

#include "fuzz.h"

enum { MEMORY_FILE_PATH = 64 };

/* Returns its descriptor; the file is gone when that is closed. */
static inline int memory_file(const uint8_t *data, size_t size, char path[MEMORY_FILE_PATH]) {
    const int fd = memfd_create("fuzz", MFD_CLOEXEC);
    MUST(fd >= 0);
    MUST(!size || write(fd, data, size) == (ssize_t)size);
    snprintf(path, MEMORY_FILE_PATH, "/proc/self/fd/%d", fd);
    return fd;
}

#endif
