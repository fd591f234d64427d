/* Model files that every rank may have a copy of, and where this process has mapped them. */
#ifndef SHEAF_GGML_FILE_H
#define SHEAF_GGML_FILE_H

#include "sheaf/sheaf.h"

/* A number of the file's size and of samples of its bytes; 0: it cannot be read. */
uint64_t gg_file_hash(const char *path, uint64_t *size);
/* For reading; -1: there is no file there with this size and hash. */
int gg_file_open(const char *path, uint64_t size, uint64_t hash);
/* Exactly `size` bytes at `offset`. */
enum sheaf_status gg_file_read(int fd, uint64_t offset, void *dst, size_t size);

/* The file that this process has mapped at `at`, if all of [at, at + size) is of one mapping that
 * cannot be written. *path: valid until the next call. */
bool gg_file_of_address(const void *at, size_t size, const char **path, uint64_t *offset);

#endif
