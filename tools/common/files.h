/* The files that a tool reads and writes: none may be two of them. */
#ifndef SHEAF_TOOLS_FILES_H
#define SHEAF_TOOLS_FILES_H

#include <stdbool.h>

#include "sheaf/status.h"

struct tool_file {
    const char *option, *path; /* path NULL: the option was not given */
    bool written;
};

/* INVALID if a file that is written is another of the list, by device and inode, or by folder and
 * name while neither exists. Devices and pipes may be named twice. */
enum sheaf_status tool_check_files(const struct tool_file *files, int n);

#endif
