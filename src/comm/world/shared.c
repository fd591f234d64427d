/* Memory that ranks of one host share, without names.
 *
 * The first rank of a group makes an anonymous file (memfd), the others open it through /proc of
 * that process. Nothing appears in /dev/shm, so nothing can be left there, and the kernel frees the
 * memory with its last user. A token in the memory proves that all ranks mapped the same memory. */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/arith.h"
#include "base/file.h"
#include "comm/world/world.h"

/* offer on the wire: pid 8, descriptor 8, token 8, bytes 8 */
enum { OFFER_PID = 0, OFFER_FD = 8, OFFER_TOKEN = 16, OFFER_SIZE = 24, OFFER_BYTES = 32 };

size_t sheaf__whole_pages(size_t bytes) {
    return sheaf__align_up(bytes, (size_t)sysconf(_SC_PAGESIZE));
}

int sheaf__shared_file(size_t bytes) {
    const int fd = memfd_create("sheaf", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    if (fd < 0 || (!ftruncate(fd, (off_t)bytes) && !fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK)))
        return fd;
    const int why = errno;
    close(fd);
    errno = why;
    return -1;
}

void sheaf__shared_path(uint64_t pid, uint64_t number, char path[static SHEAF__SHARED_PATH_BYTES]) {
    snprintf(path, SHEAF__SHARED_PATH_BYTES, "/proc/%llu/fd/%llu", (unsigned long long)pid,
             (unsigned long long)number);
}

int sheaf__shared_open(uint64_t pid, uint64_t number, size_t bytes) {
    char path[SHEAF__SHARED_PATH_BYTES];
    struct stat st;
    sheaf__shared_path(pid, number, path);
    const int fd = open(path, O_RDWR | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0) return -1;
    const int seals = fcntl(fd, F_GET_SEALS); /* -1: not of memory */
    if (seals >= 0 && seals & F_SEAL_SHRINK && !fstat(fd, &st) && (uint64_t)st.st_size >= bytes)
        return fd;
    close(fd);
    errno = EBADF;
    return -1;
}

void sheaf__shared_unmap(void *memory, size_t bytes) {
    if (memory) munmap(memory, bytes);
}

void *sheaf__shared_view(int fd, size_t bytes) {
    const int flags = fd < 0 ? MAP_PRIVATE | MAP_ANONYMOUS : MAP_SHARED;
    void *p = mmap(NULL, bytes, PROT_READ | PROT_WRITE, flags, fd, 0);
    return p == MAP_FAILED ? NULL : p;
}

static enum sheaf_status map(int fd, size_t bytes, const char *what, void **out) {
    *out = sheaf__shared_view(fd, bytes);
    return *out ? SHEAF_STATUS_SUCCESS
                : sheaf_set_error(SHEAF_STATUS_ALLOC_FAILED, "%s: cannot map %zu bytes: %s", what,
                                  bytes, sheaf__errno_text(errno));
}

static enum sheaf_status offer(size_t bytes, const char *what, int *fd, void **memory,
                               uint8_t *msg) {
    uint64_t token = 0;
    if ((*fd = sheaf__shared_file(sheaf__whole_pages(bytes))) < 0)
        return sheaf_set_error(SHEAF_STATUS_ALLOC_FAILED, "%s: cannot make %zu bytes to share: %s",
                               what, bytes, sheaf__errno_text(errno));
    enum sheaf_status st = map(*fd, bytes, what, memory);
    if (st) return st;
    if (getrandom(&token, sizeof token, 0) != sizeof token) token = sheaf__time_ns();
    memcpy(*memory, &token, sizeof token);
    sheaf__put_le(msg + OFFER_PID, (uint64_t)getpid(), 8);
    sheaf__put_le(msg + OFFER_FD, (uint64_t)*fd, 8);
    sheaf__put_le(msg + OFFER_TOKEN, token, 8);
    sheaf__put_le(msg + OFFER_SIZE, bytes, 8);
    return st;
}

static enum sheaf_status take(size_t bytes, const uint8_t *msg, int from, const char *what,
                              void **memory) {
    char path[SHEAF__SHARED_PATH_BYTES];
    const uint64_t token = sheaf__get_le(msg + OFFER_TOKEN, 8);
    const uint64_t pid = sheaf__get_le(msg + OFFER_PID, 8),
                   number = sheaf__get_le(msg + OFFER_FD, 8);
    sheaf__shared_path(pid, number, path);
    if (sheaf__get_le(msg + OFFER_SIZE, 8) != bytes)
        return sheaf_set_error(SHEAF_STATUS_PEER, "%s: %s offers %llu bytes to share, not %zu",
                               what, sheaf__rank_text(from),
                               (unsigned long long)sheaf__get_le(msg + OFFER_SIZE, 8), bytes);
    const int fd = sheaf__shared_open(pid, number, sheaf__whole_pages(bytes));
    if (fd < 0)
        return sheaf_set_error(SHEAF_STATUS_IO,
                               "%s: cannot open the shared memory of %s (%s: %s)%s", what,
                               sheaf__rank_text(from), path, sheaf__errno_text(errno),
                               errno == EMFILE ? ""
                                               : "; run all ranks of a host as one user, or set "
                                                 "SHEAF_COMM_TRANSPORT=mpi");
    enum sheaf_status st = map(fd, bytes, what, memory);
    close(fd);
    if (!st && memcmp(*memory, &token, sizeof token))
        st = sheaf_set_error(SHEAF_STATUS_PEER,
                             "%s: %s is another process of that number here; set "
                             "SHEAF_COMM_TRANSPORT=mpi",
                             what, path);
    return st;
}

enum sheaf_status sheaf__shared_map(size_t bytes, int group_first, int n_parts, const char *what,
                                    void **out) {
    const struct sheaf__world *w = sheaf__world();
    uint8_t mine[OFFER_BYTES] = {0}, *all = NULL;
    void *memory = NULL;
    int fd = -1;
    enum sheaf_status st = SHEAF_STATUS_SUCCESS;
    *out = NULL;
    if (bytes && n_parts == 1)
        st = map(-1, bytes, what, &memory);
    else if (bytes && group_first == w->rank)
        st = offer(bytes, what, &fd, &memory, mine);
    if (w->size == 1) {
        *out = memory;
        return st;
    }
    if ((st = sheaf_world_agree(st, what))) goto out;
    if (!(all = calloc((size_t)w->size, OFFER_BYTES)))
        st = sheaf_set_error(SHEAF_STATUS_ALLOC_FAILED, "%s: out of memory", what);
    if ((st = sheaf_world_agree(st, what))) goto out;
    if ((st = sheaf_world_all_gather(mine, OFFER_BYTES, all, what))) goto out;
    if (bytes && group_first != w->rank)
        st = take(bytes, all + (size_t)group_first * OFFER_BYTES, group_first, what, &memory);
    if ((st = sheaf_world_agree(st, what))) goto out;
    if (fd >= 0) memset(memory, 0, sizeof(uint64_t)); /* the token */
    if ((st = sheaf_world_barrier(what))) goto out;   /* no rank uses it before it is zero */
    *out = memory;
    memory = NULL;
out:
    if (fd >= 0) close(fd);
    sheaf__shared_unmap(memory, bytes);
    free(all);
    return st;
}
