/* The file is opened through the process that made it, /proc/PID/fd/NUMBER. If that process is
 * gone, the descriptor of the same number that this process has inherited is tried; programs
 * between the two may have closed it. */
#include "ggml/claim.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/launcher.h"

static const char variable[] = "GGML_SHEAF_CLAIM"; /* /proc/PID/fd/NUMBER */
static const char label[] = "sheaf-claim";
enum { END_AT = 63 }; /* behind the number */

int gg_claim_make(void) {
    char path[64];
    const int claim = memfd_create(label, 0);
    if (claim < 0) return -1;
    snprintf(path, sizeof path, "/proc/%ld/fd/%d", (long)getpid(), claim);
    return setenv(variable, path, 1) ? -1 : claim;
}

long gg_claim_owner(int claim) {
    char text[32] = "";
    return pread(claim, text, sizeof text - 1, 0) > 0 ? atol(text) : 0;
}

/* Opens nothing else: the maker may be gone, and its number another process's. */
static int open_at(const char *path) {
    char target[64] = "", want[64];
    snprintf(want, sizeof want, "/memfd:%s", label);
    if (readlink(path, target, sizeof target - 1) < 0 || strncmp(target, want, strlen(want)))
        return -1;
    return open(path, O_RDWR | O_CLOEXEC);
}

static int open_claim(const char *path) {
    char own[64];
    const int claim = open_at(path);
    const char *slash = strrchr(path, '/');
    if (claim >= 0 || !slash) return claim;
    snprintf(own, sizeof own, "/proc/self/fd/%d", atoi(slash + 1));
    return open_at(own);
}

static enum sheaf_status refuse(const char *who) {
    return sheaf_set_error(
        SHEAF_STATUS_INVALID,
        "%s of this rank is or was the job's program, and MPI lets no second one "
        "in (children of llama-server's router stay out: give it a model, -m)",
        who);
}

/* The lock ends with the descriptor. */
static enum sheaf_status take(int claim, bool in_job) {
    char text[32];
    flock(claim, LOCK_EX);
    const long owner = gg_claim_owner(claim);
    const int n = snprintf(text, sizeof text, "%ld", (long)getpid());
    const bool written = owner || pwrite(claim, text, (size_t)n, 0) == n;
    if (!written)
        return sheaf_set_error(SHEAF_STATUS_IO, "cannot note that this is the job's program: %s",
                               strerror(errno));
    snprintf(text, sizeof text, "process %ld", owner);
    return owner && in_job ? refuse(text) : SHEAF_STATUS_SUCCESS;
}

enum sheaf_status gg_claim_take(void) {
    const bool in_job = sheaf__launcher_mpi_rank();
    if (!getenv(variable) && (!in_job || gg_claim_make() < 0)) return SHEAF_STATUS_SUCCESS;
    const int claim = open_claim(getenv(variable));
    if (claim < 0) return in_job ? refuse("another process") : SHEAF_STATUS_SUCCESS;
    const enum sheaf_status st = take(claim, in_job);
    close(claim);
    return st;
}

void gg_claim_note_end(int claim) {
    const int before = errno;
    (void)!pwrite(claim, "1", 1, END_AT);
    errno = before;
}

bool gg_claim_has_end(void) {
    char ends = 0;
    const int claim = getenv(variable) ? open_claim(getenv(variable)) : -1;
    if (claim < 0) return false;
    (void)!pread(claim, &ends, 1, END_AT);
    close(claim);
    return ends;
}
