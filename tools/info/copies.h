/* A hash of all bytes of a model's files, to compare the copies of a job's hosts. */
#ifndef SHEAF_TOOLS_INFO_COPIES_H
#define SHEAF_TOOLS_INFO_COPIES_H

#include "sheaf/status.h"

#include <stdint.h>

/* Device and inode of the first file. */
enum sheaf_status copies_find(const char *path, uint64_t *device, uint64_t *inode);
/* Reads the files to their ends. Local. */
enum sheaf_status copies_hash(const char *path, uint64_t *hash);

#endif
