/* Dumps of flight recorders: up to three files, which end at zeros, read together. */
#include "fuzz.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "info/postmortem.h"

enum { FILES = 3 };

/* The folder's name; the first call drops the standard output, since only its making is tested. */
static const char *folder(void) {
    static char path[64];
    if (path[0]) return path;
    snprintf(path, sizeof path, "/dev/shm/fuzz-postmortem-%ld", (long)getpid());
    MUST(freopen("/dev/null", "w", stdout));
    return path;
}

static void write_file(const char *path, const uint8_t *data, size_t n) {
    const int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    MUST(fd >= 0 && write(fd, data, n) == (ssize_t)n);
    close(fd);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    char path[FILES][128];
    int n = 0;
    MUST(!mkdir(folder(), 0700)); /* for each input anew: the fuzzer may end behind any of them */
    for (const uint8_t *end; n < FILES && size; n++) {
        snprintf(path[n], sizeof path[n], "%s/%d.flight", folder(), n);
        end = memchr(data, 0, size);
        const size_t len = end ? (size_t)(end - data) : size;
        write_file(path[n], data, len);
        data += end ? len + 1 : len;
        size -= end ? len + 1 : len;
    }
    postmortem_print(folder());
    for (int i = 0; i < n; i++) unlink(path[i]);
    MUST(!rmdir(folder()));
    return 0;
}
