/* Started by test-drill on two ranks that share no memory. While rank 0 waits for rank 1's control
 * connection, which this program delays, strangers connect to it: one with nonsense, one with a
 * greeting and a wrong proof, one with nothing. All must be closed, the job goes on, and afterwards
 * no rank listens any more. */
#include <arpa/inet.h>
#include <dlfcn.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/launcher.h"
#include "comm/watch/watch_impl.h"
#include "sheaf/world.h"
#include "start_job.h"

enum { STRANGERS = 3 };
static struct sockaddr_in seen; /* where rank 0 listens */
static _Atomic bool listens;
static int refused, silent = -1;

/* In place of the library's own: notes where it listens. MPI may listen on the same address. */
int sheaf__address_listen(uint32_t address, uint16_t *port) {
    int (*next)(uint32_t, uint16_t *);
    void *symbol = dlsym(RTLD_NEXT, "sheaf__address_listen");
    memcpy(&next, &symbol, sizeof next);
    const int fd = next(address, port);
    if (fd < 0 || atomic_load(&listens)) return fd;
    seen = (struct sockaddr_in){.sin_family = AF_INET,
                                .sin_port = htons(*port),
                                .sin_addr.s_addr = htonl(address)};
    atomic_store(&listens, true);
    return fd;
}

/* In place of the library's own: rank 1 connects 1.5 s late. */
int sheaf__address_connect(uint32_t address, uint16_t port) {
    int (*next)(uint32_t, uint16_t);
    void *symbol = dlsym(RTLD_NEXT, "sheaf__address_connect");
    memcpy(&next, &symbol, sizeof next);
    usleep(1500000);
    return next(address, port);
}

static int stranger(const void *data, size_t n) {
    const int fd = socket(AF_INET, SOCK_STREAM, 0);
    if (connect(fd, (struct sockaddr *)&seen, sizeof seen)) return -1;
    if (n && send(fd, data, n, MSG_NOSIGNAL) < 0) perror("send");
    setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &(struct timeval){3, 0}, sizeof(struct timeval));
    return fd;
}

static bool is_closed(int fd) {
    char c;
    return fd >= 0 && recv(fd, &c, 1, 0) == 0;
}

/* A greeting of rank 1, and zeros in answer to the number that rank 0 sends. */
static int liar(void) {
    const unsigned char hello[8 + 20] = {0x53, 0x41, 0x48, 0x32, 1, 0, 20, 0, 1};
    const unsigned char proof[8 + 32] = {0x53, 0x41, 0x48, 0x32, 3, 0, 32, 0};
    char challenge[8 + 48];
    const int fd = stranger(hello, sizeof hello);
    if (fd < 0 || recv(fd, challenge, sizeof challenge, MSG_WAITALL) != sizeof challenge) return -1;
    return send(fd, proof, sizeof proof, MSG_NOSIGNAL) < 0 ? -1 : fd;
}

static void *strangers(void *arg) {
    (void)arg;
    for (int i = 0; i < 20000 && !atomic_load(&listens); i++) usleep(500);
    const char nonsense[] = "GET / HTTP/1.0\r\n\r\n";
    silent = stranger(NULL, 0);
    refused += is_closed(stranger(nonsense, sizeof nonsense));
    refused += is_closed(liar());
    return NULL;
}

int main(void) {
    pthread_t thread;
    const char *rank = sheaf__launcher_rank();
    const bool root = rank && rank[0] == '0';
    if (root && pthread_create(&thread, NULL, strangers, NULL)) return 2;
    if (start_job()) {
        fprintf(stderr, "error: %s\n", sheaf_last_error());
        return 1;
    }
    bool ok = true;
    if (root) {
        pthread_join(thread, NULL);
        refused += is_closed(silent);
        ok = refused == STRANGERS && seen.sin_addr.s_addr == htonl(INADDR_LOOPBACK) &&
             stranger(NULL, 0) < 0; /* no rank listens any more */
        printf("%s: %d strangers were refused\n", ok ? "ok" : "WRONG", refused);
        fflush(stdout);
    }
    ok = !sheaf_world_barrier("after") && ok;
    sheaf_world_finalize();
    return ok ? 0 : 1;
}
