/* Started by test-world with "own", "speaker", "stranger" or "full". A child holds the name by which the
 * ranks of a host agree on one message before they share memory: as a process of this job (own), also one
 * that was told to speak (speaker), as one of another user (stranger), and with a queue of connections
 * that is full (full). Prints whether this process speaks, and after how many seconds it knew. */
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "base/clock.h"
#include "comm/watch/watch_impl.h"

enum { OTHER_USER = 65534, QUEUE = 8 };

static socklen_t name_of_job(struct sockaddr_un *a, unsigned user) {
    *a = (struct sockaddr_un){.sun_family = AF_UNIX};
    const int n = snprintf(a->sun_path + 1, sizeof a->sun_path - 1, "sheaf-%u-%s", user,
                           getenv("PMIX_NAMESPACE"));
    return (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + (size_t)n);
}

static void hold(const char *how, unsigned user, int ready) {
    struct sockaddr_un a;
    const socklen_t size = name_of_job(&a, user);
    const bool speaks = !strcmp(how, "speaker");
    if (strcmp(how, "own") && !speaks && setuid(OTHER_USER)) _exit(1);
    prctl(PR_SET_PDEATHSIG, 9); /* setuid() clears it */
    if (speaks && !(sheaf__speaker_claim() && sheaf__speaker_claim() /* the same answer */))
        _exit(1);
    const int fd = socket(AF_UNIX, SOCK_STREAM, 0);
    if (!speaks && (bind(fd, (struct sockaddr *)&a, size) || listen(fd, 0))) _exit(1);
    for (int i = 0; i < QUEUE && !strcmp(how, "full"); i++) {
        const int client = socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0);
        if (connect(client, (struct sockaddr *)&a, size)) break; /* it is full */
    }
    if (write(ready, "r", 1) != 1) _exit(1);
    for (;;) pause();
}

int main(int argc, char **argv) {
    const unsigned user = geteuid();
    char job[64], r;
    int ready[2];
    if (argc != 2 || pipe(ready)) return 2;
    snprintf(job, sizeof job, "test-%d", (int)getpid());
    setenv("PMIX_NAMESPACE", job, 1);
    const pid_t child = fork();
    if (child == 0) hold(argv[1], user, ready[1]);
    close(ready[1]);
    if (child < 0 || read(ready[0], &r, 1) != 1) return 1;
    const double start = sheaf__seconds();
    const bool speaks = sheaf__speaker_claim();
    if (sheaf__speaker_claim() != speaks) return 1;
    printf("%s after %.1f s\n", speaks ? "speaks" : "silent", sheaf__seconds() - start);
    return 0;
}
