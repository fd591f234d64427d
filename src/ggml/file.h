/* Model files that every rank may have a copy of, and where this process has mapped them. */
#ifndef SHEAF_GGML_FILE_H
#define SHEAF_GGML_FILE_H

#include "sheaf/sheaf.h"

/* A number of the file's size and of samples of its bytes; 0: it cannot be read. */
uint64_t gg_file_hash(int fd, uint64_t *size);
/* Can a rank read its copy of a file, and if not, why? */
enum gg_file_lack {
    GG_FILE_OPEN, /* it can */
    GG_FILE_FAILS,
    GG_FILE_NOT_REGULAR,
    GG_FILE_OTHER_SIZE,
    GG_FILE_OTHER_CONTENT,
};
/* For reading; -1: there is no file there with this size and hash; *error: errno of FAILS. */
int gg_file_open(const char *path, uint64_t size, uint64_t hash, enum gg_file_lack *lack,
                 int *error);
/* Exactly `size` bytes at `offset`; the path is for the text of an error. */
enum sheaf_status gg_file_read(int fd, const char *path, uint64_t offset, void *dst, size_t size);

/* A file that stays open: it may be deleted or replaced while its bytes are still wanted. */
struct gg_file {
    char *path;
    int fd;
    uint64_t device, inode;
};
/* The file that this process has mapped at `at`, if all of [at, at + size) is of one mapping that
 * cannot be written, and the file is still there under its name. NULL: no such file. One thread at
 * a time. */
const struct gg_file *gg_file_of_address(const void *at, size_t size, uint64_t *offset);

#endif
