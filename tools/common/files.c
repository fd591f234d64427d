/* Compares the files that options name. */
#include "common/files.h"

#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

static bool same(const struct stat *a, const struct stat *b) {
    return a->st_dev == b->st_dev && a->st_ino == b->st_ino;
}

/* The name behind the last slash; *folder is that before it. */
static const char *name_in(const char *path, struct stat *folder, bool *known) {
    char text[4096] = ".";
    const char *slash = strrchr(path, '/');
    if (slash) snprintf(text, sizeof text, "%.*s", slash == path ? 1 : (int)(slash - path), path);
    *known = stat(text, folder) == 0;
    return slash ? slash + 1 : path;
}

static bool are_same(const char *a, const char *b) {
    struct stat x, y;
    bool has_x = stat(a, &x) == 0, has_y = stat(b, &y) == 0;
    if (has_x != has_y) return false;
    if (has_x) return S_ISREG(x.st_mode) && same(&x, &y);
    const char *name_a = name_in(a, &x, &has_x), *name_b = name_in(b, &y, &has_y);
    return has_x && has_y && same(&x, &y) && !strcmp(name_a, name_b);
}

enum sheaf_status tool_check_files(const struct tool_file *files, int n) {
    for (int i = 0; i < n; i++) {
        for (int k = 0; k < n && files[i].written && files[i].path; k++) {
            if (k == i || !files[k].path || !are_same(files[i].path, files[k].path)) continue;
            return sheaf_set_error(
                SHEAF_STATUS_INVALID, "%s %s and %s %s are the same file: give %s another name",
                files[k].option, files[k].path, files[i].option, files[i].path, files[i].option);
        }
    }
    return SHEAF_STATUS_SUCCESS;
}
