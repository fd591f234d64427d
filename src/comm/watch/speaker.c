/* One message of a job that fails before its ranks share a board.
 *
 * The kernel lets one process of a host have a name without a file, and the launcher connects
 * hosts. The process that holds the name listens on it once it is known which rank speaks. */
#include <stdatomic.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/launcher.h"
#include "comm/watch/watch_impl.h"

static const uint64_t CLAIM_NS = 6000000000u; /* for the holder of the name to settle it */
static const uint64_t ENDING_NS = 2000000000; /* no answer: the launcher may be ending the job */
static const uint64_t HOLD_NS = 3000000000u;  /* for others to find that the name is taken */

enum { UNDECIDED, DECIDING, SPEAKS, SILENT };
static _Atomic int state;
static _Atomic bool launcher_knows; /* which rank speaks */

enum holder { HOLDER_UNKNOWN, HOLDER_OF_JOB, HOLDER_STRANGER };

/* Asks for the user of the process that listens on the name. Any user of the host may have taken
 * it, and a full queue of a listener makes connect wait: so the call does not block, and only a
 * process of the same user is believed. */
static enum holder ask_holder(const struct sockaddr_un *a, socklen_t size) {
    const int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    struct ucred peer;
    socklen_t n = sizeof peer;
    enum holder holder = HOLDER_UNKNOWN;
    if (fd < 0) return holder;
    if (!connect(fd, (const struct sockaddr *)a, size) &&
        !getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &n))
        holder = peer.uid == geteuid() ? HOLDER_OF_JOB : HOLDER_STRANGER;
    close(fd);
    return holder;
}

/* true: this process is to speak. A stranger's hold of the name is as none: the message may come
 * twice then, and is not lost. */
static bool take_name(void) {
    const char *job = getenv("PMIX_NAMESPACE");
    struct sockaddr_un a = {.sun_family = AF_UNIX};
    const int n = snprintf(a.sun_path + 1, sizeof a.sun_path - 1, "sheaf-%u-%.64s", geteuid(),
                           job ? job : "");
    const socklen_t size = (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + (size_t)n);
    const uint64_t end = sheaf__time_ns() + CLAIM_NS;
    const int fd = job ? socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0) : -1;
    if (fd < 0) return true;
    while (bind(fd, (struct sockaddr *)&a, size) && sheaf__time_ns() < end) {
        const enum holder holder = ask_holder(&a, size);
        if (holder == HOLDER_STRANGER) break;
        if (holder == HOLDER_OF_JOB) {
            close(fd);
            return false;
        }
        sheaf__nap(20000000);
    }
    const enum sheaf__claim claim = sheaf__launcher_claim();
    atomic_store(&launcher_knows, claim != SHEAF__CLAIM_UNKNOWN);
    if (claim == SHEAF__CLAIM_UNKNOWN && !sheaf__launcher_recovers()) sheaf__nap(ENDING_NS);
    listen(fd, SOMAXCONN); /* until the process ends */
    return claim != SHEAF__CLAIM_LOST;
}

bool sheaf__speaker_claim(void) {
    int now = UNDECIDED;
    if (atomic_compare_exchange_strong(&state, &now, DECIDING)) {
        now = take_name() ? SPEAKS : SILENT;
        atomic_store(&state, now);
    }
    return now == SPEAKS;
}

/* The name goes with the process. */
void sheaf__speaker_hold(void) {
    if (atomic_load(&state) == SPEAKS && !atomic_load(&launcher_knows) &&
        sheaf__launcher_recovers())
        sheaf__nap(HOLD_NS);
}
