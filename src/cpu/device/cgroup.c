/* Reads the files of control groups. A file that is not there, or says "max", is no limit. */
#include "cpu/device/cgroup.h"

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

enum { MAX_PATH = 4096 };

/* The number behind `key` ("": the first number) in the file of a folder; `absent` if there is none. */
static size_t number_in(const char *folder, const char *file, const char *key, size_t absent) {
    char path[MAX_PATH], line[128];
    const size_t n = strlen(key);
    unsigned long long value;
    bool found = false;
    if (snprintf(path, sizeof path, "%s/%s", folder, file) >= (int)sizeof path) return absent;
    FILE *f = fopen(path, "re");
    if (!f) return absent;
    while (!found && fgets(line, sizeof line, f))
        found = !strncmp(line, key, n) && sscanf(line + n, "%llu", &value) == 1;
    fclose(f);
    return found && value < SIZE_MAX ? (size_t)value : absent;
}

/* A controller in one of the versions. */
struct version {
    const char *controller; /* in the membership; "" is version 2, which has one group for all */
    const char *mount;
    void (*limit_by)(const struct version *v, const char *folder, struct sheaf__cgroup_limits *l);
    const char *limit;
    const char *other;     /* the memory in use, or the period that a limit of time is for */
    const char *cached[2]; /* keys of memory.stat: page cache of files */
};

static void limit_memory(const struct version *v, const char *folder,
                         struct sheaf__cgroup_limits *l) {
    const size_t limit = number_in(folder, v->limit, "", SIZE_MAX);
    if (limit == SIZE_MAX) return;
    size_t used = number_in(folder, v->other, "", 0);
    for (int i = 0; i < 2; i++) {
        const size_t cached = number_in(folder, "memory.stat", v->cached[i], 0);
        used -= cached < used ? cached : used;
    }
    const size_t left = limit > used ? limit - used : 0;
    if (limit < l->total) l->total = limit;
    if (left < l->avail) l->avail = left;
}

static void limit_cpus(const struct version *v, const char *folder,
                       struct sheaf__cgroup_limits *l) {
    const size_t quota = number_in(folder, v->limit, "", SIZE_MAX);
    char key[24]; /* version 2 has both numbers in a line */
    snprintf(key, sizeof key, "%zu", quota);
    const size_t period = number_in(folder, v->other, v->controller[0] ? "" : key, 0);
    if (quota == SIZE_MAX || period == 0) return;
    const size_t cpus = quota < period ? 1 : quota / period;
    if (cpus < l->cpus) l->cpus = cpus;
}

static const struct version versions[] = {
    {"", "", limit_memory, "memory.max", "memory.current", {"inactive_file", "active_file"}},
    {"memory",
     "/memory",
     limit_memory,
     "memory.limit_in_bytes",
     "memory.usage_in_bytes",
     {"total_inactive_file", "total_active_file"}},
    {"", "", limit_cpus, "cpu.max", "cpu.max", {NULL}},
    {"cpu", "/cpu", limit_cpus, "cpu.cfs_quota_us", "cpu.cfs_period_us", {NULL}},
};

/* From the group up to the root. In a container the path can be that of the host's tree, of which
 * it sees only the end: groups that are not there have no limit. */
static void limit_by_groups(const struct version *v, const char *root, const char *path,
                            struct sheaf__cgroup_limits *l) {
    char folder[MAX_PATH];
    const size_t top = strlen(root) + strlen(v->mount);
    const int n = snprintf(folder, sizeof folder, "%s%s%s", root, v->mount, path);
    if (n < 0 || n >= (int)sizeof folder) return;
    for (;;) {
        v->limit_by(v, folder, l);
        char *last = strrchr(folder + top, '/');
        if (!last) return;
        *last = '\0';
    }
}

static bool names(const char *list, const char *controller) {
    const size_t n = strlen(controller);
    for (const char *p = list;; p++) {
        const size_t length = strcspn(p, ",");
        if (length == n && !strncmp(p, controller, n)) return true;
        p += length;
        if (!*p) return false;
    }
}

void sheaf__cgroup_limit(const char *membership, const char *root,
                         struct sheaf__cgroup_limits *limits) {
    char line[MAX_PATH]; /* NUMBER:CONTROLLER,...:/PATH */
    FILE *f = fopen(membership, "re");
    if (!f) return;
    while (fgets(line, sizeof line, f)) {
        line[strcspn(line, "\n")] = '\0';
        char *list = strchr(line, ':'), *path = list ? strchr(list + 1, ':') : NULL;
        if (!path) continue;
        *path++ = '\0';
        for (size_t i = 0; i < sizeof versions / sizeof *versions; i++)
            if (names(list + 1, versions[i].controller))
                limit_by_groups(&versions[i], root, path, limits);
    }
    fclose(f);
}
