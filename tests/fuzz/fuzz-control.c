/* Control connections: what a process sends that connects while the job starts, what one answers to
 * which this rank connects, and frames of a rank of the job. The first byte says which; then pieces,
 * each with its length in a byte before it. Without the secret no peer is made. */
#include "fuzz.h"

#include <sys/socket.h>

#include "comm/watch/gate.c"
#include "comm/watch/links.c"

static int receiving_end(int *other) {
    int pair[2];
    MUST(!socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, pair));
    *other = pair[1];
    return pair[0];
}

/* Also reads what is sent back, or the socket would be full. */
static bool next_piece(struct fuzz_bytes *b, int fd) {
    uint8_t piece[256], answer[4096];
    const size_t want = fuzz_byte(b), n = want < b->left ? want : b->left;
    if (!b->left) return false;
    memcpy(piece, b->at, n);
    b->at += n;
    b->left -= n;
    const ssize_t sent = n ? send(fd, piece, n, MSG_NOSIGNAL) : 0;
    while (recv(fd, answer, sizeof answer, MSG_DONTWAIT) > 0) continue;
    return sent == (ssize_t)n;
}

static void stranger_connects(struct fuzz_bytes *b) {
    struct sheaf__peer one = {.rank = 1, .fd = -1};
    struct sheaf__gate *g = sheaf__gate_new(&one, 1);
    struct stranger *s;
    int other;
    MUST(g);
    memset(g->secret, 77, sizeof g->secret);
    s = &g->strangers[0];
    s->rank = -1;
    s->line.fd = receiving_end(&other);
    for (bool open = true; open && next_piece(b, other);) open = hear_stranger(g, s);
    MUST(one.fd < 0);
    close(other);
    sheaf__gate_free(g);
}

static void stranger_answers(struct fuzz_bytes *b) {
    static const uint8_t offers[2 * SHEAF__OFFER_BYTES];
    struct sheaf__peer zero = {.rank = 0, .fd = -1};
    struct sheaf__gate *g;
    int other;
    sheaf__world()->rank = 1;
    MUST((g = sheaf__gate_new(&zero, 1)) && !begin_attempts(g, offers));
    memset(g->secret, 77, sizeof g->secret);
    struct attempt *a = &g->attempts[0];
    a->line[0].fd = receiving_end(&other);
    a->n_tried = 1;
    a->connected[0] = true;
    a->since[0] = sheaf__time_ns();
    while (a->line[0].fd >= 0 && next_piece(b, other)) serve_try(g, a, 0, a->since[0]);
    MUST(zero.fd < 0);
    close(other);
    sheaf__gate_free(g);
    sheaf__world()->rank = 0;
}

static void peer_speaks(struct fuzz_bytes *b) {
    struct sheaf__peer one = {.rank = 1};
    int other, error;
    one.fd = receiving_end(&other);
    peers = &one;
    n_peers = 1;
    for (bool open = true; open && next_piece(b, other);) {
        open = sheaf__frame_receive(&one, &error);
        take_frames(&one, 1);
        MUST(one.n_in <= sizeof one.in && one.n_out <= sizeof one.out);
    }
    const struct sheaf__failure *f = sheaf__world()->failure;
    MUST(f->origin >= 0 && f->origin < 2 && memchr(f->text, 0, sizeof f->text));
    close(one.fd);
    close(other);
    peers = NULL;
    n_peers = 0;
    memset(&sheaf__own_failure, 0, sizeof sheaf__own_failure);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static int share_of[2] = {0, 1};
    struct fuzz_bytes b = {data, size};
    sheaf__world()->size = 2;
    sheaf__world()->share_of = share_of;
    switch (fuzz_byte(&b) % 3) {
    case 0:
        stranger_connects(&b);
        break;
    case 1:
        stranger_answers(&b);
        break;
    default:
        peer_speaks(&b);
    }
    return 0;
}
