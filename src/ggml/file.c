/* Files are recognised by size and sampled content, for a copy on another host has another
 * inode. */
#include "ggml/file.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/hash.h"

enum { SAMPLES = 64, SAMPLE_BYTES = 4096 };

uint64_t gg_file_hash(int fd, uint64_t *size) {
    struct stat st;
    uint8_t block[SAMPLE_BYTES];
    if (fstat(fd, &st)) return 0;
    *size = (uint64_t)st.st_size;
    uint64_t h = sheaf__mix(1, *size);
    for (uint64_t i = 0; i < SAMPLES; i++) {
        const uint64_t room = *size > SAMPLE_BYTES ? *size - SAMPLE_BYTES : 0;
        const ssize_t n = pread(fd, block, sizeof block, (off_t)(room * i / (SAMPLES - 1)));
        if (n < 0) return 0;
        h = sheaf__hash_bytes(h, block, (size_t)n);
    }
    return h ? h : 1;
}

static enum gg_file_lack compare(int fd, uint64_t size, uint64_t hash) {
    struct stat st;
    uint64_t own = 0;
    if (fstat(fd, &st)) return GG_FILE_FAILS;
    if (!S_ISREG(st.st_mode)) return GG_FILE_NOT_REGULAR;
    if ((uint64_t)st.st_size != size) return GG_FILE_OTHER_SIZE;
    const uint64_t found = gg_file_hash(fd, &own);
    return !found ? GG_FILE_FAILS : found == hash ? GG_FILE_OPEN : GG_FILE_OTHER_CONTENT;
}

int gg_file_open(const char *path, uint64_t size, uint64_t hash, enum gg_file_lack *lack,
                 int *error) {
    const int fd = open(path, O_RDONLY | O_CLOEXEC | O_NOCTTY | O_NONBLOCK);
    *lack = fd < 0 ? GG_FILE_FAILS : compare(fd, size, hash);
    *error = errno;
    if (fd < 0 || *lack == GG_FILE_OPEN) return fd;
    close(fd);
    return -1;
}

enum sheaf_status gg_file_read(int fd, const char *path, uint64_t offset, void *dst, size_t size) {
    for (size_t at = 0; at < size;) {
        const ssize_t n = pread(fd, (char *)dst + at, size - at, (off_t)(offset + at));
        if (n < 0 && errno == EINTR) continue;
        if (n <= 0)
            return sheaf_set_error(SHEAF_STATUS_IO, "load: %s: %s", path,
                                   n ? strerror(errno) : "the file ends too early");
        at += (size_t)n;
    }
    return SHEAF_STATUS_SUCCESS;
}

/* ---- mappings ---- */

struct mapping {
    uintptr_t begin, end;
    uint64_t offset, inode;
    char path[4096];
};

/* The heap grows at its end only, and holds no file. It is where most programs have what they write
 * to small tensors, and the list of mappings takes a tenth of a millisecond and more. */
static uintptr_t heap_begin;

static bool is_heap(uintptr_t at) {
    return heap_begin && at >= heap_begin && at < (uintptr_t)sbrk(0);
}

/* "7f00-7f80 r--s 00000000 08:01 123   /path": private mappings too, while they are read-only. */
static bool read_line(const char *line, struct mapping *m) {
    char mode[8] = "";
    int path_at = 0;
    if (sscanf(line, "%" SCNxPTR "-%" SCNxPTR " %7s %" SCNx64 " %*s %" SCNu64 " %n", &m->begin,
               &m->end, mode, &m->offset, &m->inode, &path_at) < 5)
        return false;
    if (!heap_begin && !strncmp(line + path_at, "[heap]", 6)) heap_begin = m->begin;
    if (mode[0] != 'r' || mode[1] == 'w' || !path_at || line[path_at] != '/') return false;
    snprintf(m->path, sizeof m->path, "%s", line + path_at);
    m->path[strcspn(m->path, "\n")] = 0;
    return true;
}

static bool covers(const struct mapping *m, uintptr_t at, size_t size) {
    return at >= m->begin && at < m->end && size <= m->end - at;
}

/* The open file; a name that stands for another file now is none. */
static const struct gg_file *keep(const struct mapping *m) {
    enum { MAX_FILES = 256 }; /* of models; a process has few */
    static struct gg_file files[MAX_FILES];
    static size_t n;
    struct stat st;
    const int fd = open(m->path, O_RDONLY | O_CLOEXEC | O_NOCTTY | O_NONBLOCK);
    if (fd < 0) return NULL;
    const bool same = !fstat(fd, &st) && S_ISREG(st.st_mode) && (uint64_t)st.st_ino == m->inode;
    for (size_t i = 0; same && i < n; i++) {
        if (files[i].inode != m->inode || files[i].device != (uint64_t)st.st_dev) continue;
        close(fd);
        return &files[i];
    }
    if (!same || n == MAX_FILES || !(files[n].path = strdup(m->path))) {
        close(fd);
        return NULL;
    }
    files[n].fd = fd;
    files[n].device = (uint64_t)st.st_dev;
    files[n].inode = m->inode;
    return &files[n++];
}

/* Asked anew each time: another file may have been mapped there since. */
const struct gg_file *gg_file_of_address(const void *address, size_t size, uint64_t *offset) {
    const uintptr_t at = (uintptr_t)address;
    struct mapping m = {0};
    char line[4400];
    bool found = false;
    if (is_heap(at)) return NULL;
    FILE *f = fopen("/proc/self/maps", "re");
    while (f && !found && fgets(line, sizeof line, f))
        found = read_line(line, &m) && covers(&m, at, size);
    if (f) fclose(f);
    const struct gg_file *file = found ? keep(&m) : NULL;
    if (file) *offset = m.offset + (at - m.begin);
    return file;
}
