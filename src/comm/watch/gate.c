/* The start of control connections. Nothing here waits for one peer alone: all sockets are polled
 * together until every peer has proved itself. */
#include "comm/watch/gate.h"

#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/file.h"
#include "base/sha256.h"
#include "base/text.h"

enum {
    START_PART = 6,   /* all connections may take this part of the start's limit */
    MORE_PLACES = 16, /* for unknown connections, besides one for each peer */
    NONCE_BYTES = 16,
    HELLO_BYTES = 4 + NONCE_BYTES,                    /* rank, number */
    CHALLENGE_BYTES = NONCE_BYTES + SHEAF__SHA_BYTES, /* number, proof of the side that listens */
    PROOF_BYTES = SHEAF__SHA_BYTES,
    POLL_MS = 20,
    TRIES = SHEAF__MAX_ADDRESSES,
};
static const uint64_t CONNECT_NS = 3000000000u; /* for an address to answer */
static const uint64_t NEXT_NS = 300000000;      /* before the next address is tried besides */
static const uint64_t EVICT_NS = 1000000000;    /* a stranger may stay so long in a full house */

/* A process that has connected and is not known yet. */
struct stranger {
    struct sheaf__peer line;
    int rank; /* that it says it is; -1: it has not spoken */
    uint8_t theirs[NONCE_BYTES], ours[NONCE_BYTES];
};

/* The attempts to connect to one peer. */
struct attempt {
    struct sheaf__peer *peer;
    struct sheaf__peer line[TRIES];
    bool connected[TRIES];
    uint64_t since[TRIES];
    uint8_t nonce[TRIES][NONCE_BYTES];
    const uint8_t *offer;
    int n_tried;
    char why[256];
    struct sheaf__text tried;
};

struct sheaf__gate {
    struct sheaf__peer *peers;
    int n_peers;
    int listeners[SHEAF__MAX_ADDRESSES], n_listeners;
    struct stranger *strangers;
    int n_strangers;
    struct attempt *attempts;
    int n_attempts;
    struct pollfd *fds;
    uint8_t secret[SHEAF__SECRET_BYTES];
};

static void shut(struct sheaf__peer *line) {
    if (line->fd >= 0) close(line->fd);
    line->fd = -1;
}

/* ---- proofs ---- */

/* `side` keeps the answer of one side from being that of the other. */
static void prove(const struct sheaf__gate *g, char side, int low, int high, const uint8_t *of_high,
                  const uint8_t *of_low, uint8_t out[SHEAF__SHA_BYTES]) {
    uint8_t text[9 + 2 * NONCE_BYTES];
    text[0] = (uint8_t)side;
    sheaf__put_le(text + 1, (uint64_t)low, 4);
    sheaf__put_le(text + 5, (uint64_t)high, 4);
    memcpy(text + 9, of_high, NONCE_BYTES);
    memcpy(text + 9 + NONCE_BYTES, of_low, NONCE_BYTES);
    sheaf__hmac(g->secret, sizeof g->secret, text, sizeof text, out);
}

/* In a time that does not depend on where they differ. */
static bool same_proof(const uint8_t *a, const uint8_t *b) {
    uint8_t differs = 0;
    for (int i = 0; i < SHEAF__SHA_BYTES; i++) differs |= (uint8_t)(a[i] ^ b[i]);
    return differs == 0;
}

static bool draw(uint8_t nonce[NONCE_BYTES]) {
    return getrandom(nonce, NONCE_BYTES, 0) == NONCE_BYTES;
}

/* The connection of `line` becomes that of the peer. */
static void adopt(struct sheaf__peer *p, struct sheaf__peer *line) {
    const int on = 1;
    const unsigned limit = (unsigned)(sheaf__world()->heartbeat_ns / 1000000u);
    line->rank = p->rank;
    line->heard = sheaf__time_ns();
    *p = *line;
    line->fd = -1;
    setsockopt(p->fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    setsockopt(p->fd, IPPROTO_TCP, TCP_USER_TIMEOUT, &limit, sizeof limit);
}

/* ---- the side that listens ---- */

static struct sheaf__peer *expected(const struct sheaf__gate *g, int rank) {
    for (int i = 0; i < g->n_peers; i++)
        if (g->peers[i].rank == rank && g->peers[i].fd < 0) return &g->peers[i];
    return NULL;
}

static bool take_hello(const struct sheaf__gate *g, struct stranger *s, const uint8_t *hello) {
    uint8_t answer[CHALLENGE_BYTES];
    const int rank = (int)sheaf__get_le(hello, 4), me = sheaf__world()->rank;
    if (s->rank >= 0 || !expected(g, rank) || !draw(s->ours)) return false;
    s->rank = rank;
    memcpy(s->theirs, hello + 4, NONCE_BYTES);
    memcpy(answer, s->ours, NONCE_BYTES);
    prove(g, 'L', me, rank, s->theirs, s->ours, answer + NONCE_BYTES);
    sheaf__frame_send(&s->line, SHEAF__CHALLENGE, answer, sizeof answer);
    return true;
}

static bool take_proof(const struct sheaf__gate *g, struct stranger *s, const uint8_t *proof) {
    uint8_t want[SHEAF__SHA_BYTES];
    struct sheaf__peer *p = expected(g, s->rank);
    if (!p) return false;
    prove(g, 'H', sheaf__world()->rank, s->rank, s->theirs, s->ours, want);
    if (!same_proof(want, proof)) return false;
    sheaf__frame_drop(&s->line, PROOF_BYTES);
    adopt(p, &s->line);
    return true;
}

/* Returns false if the connection is to be closed. */
static bool hear_stranger(const struct sheaf__gate *g, struct stranger *s) {
    size_t size = 0;
    int error, type;
    const bool open = sheaf__frame_receive(&s->line, &error);
    while (s->line.fd >= 0 && (type = sheaf__frame_next(&s->line, &size))) {
        const uint8_t *data = sheaf__frame_data(&s->line);
        if (type == SHEAF__PROOF && size == PROOF_BYTES) return take_proof(g, s, data);
        if (type != SHEAF__HELLO || size != HELLO_BYTES || !take_hello(g, s, data)) return false;
        sheaf__frame_drop(&s->line, size);
    }
    return open;
}

/* A free place, or that of the oldest connection if it is older than EVICT_NS; NULL: none. */
static struct stranger *find_place(const struct sheaf__gate *g, uint64_t now) {
    struct stranger *oldest = &g->strangers[0];
    for (int i = 0; i < g->n_strangers; i++) {
        struct stranger *s = &g->strangers[i];
        if (s->line.fd < 0) return s;
        if (s->line.heard < oldest->line.heard) oldest = s;
    }
    return now > oldest->line.heard + EVICT_NS ? oldest : NULL;
}

static void serve_strangers(const struct sheaf__gate *g, uint64_t now) {
    for (int i = 0; i < g->n_listeners; i++) {
        struct stranger *s = find_place(g, now);
        const int fd = s ? accept4(g->listeners[i], NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK) : -1;
        if (fd < 0) continue;
        shut(&s->line);
        *s = (struct stranger){.rank = -1, .line = {.rank = -1, .fd = fd, .heard = now}};
    }
    for (int i = 0; i < g->n_strangers; i++) {
        struct stranger *s = &g->strangers[i];
        if (s->line.fd >= 0 && !hear_stranger(g, s)) shut(&s->line);
    }
}

/* ---- the side that connects ---- */

static void give_up(struct attempt *a, int i, const char *why) {
    char name[SHEAF__ADDRESS_TEXT];
    sheaf__address_text((uint32_t)sheaf__get_le(a->offer + 8 * i, 4), name);
    sheaf__put(&a->tried, "%s%s: %s", a->tried.n ? ", " : "", name, why);
    shut(&a->line[i]);
}

static void begin_try(struct attempt *a, uint64_t now) {
    const int i = a->n_tried;
    const uint32_t address = (uint32_t)sheaf__get_le(a->offer + 8 * i, 4);
    const uint16_t port = (uint16_t)sheaf__get_le(a->offer + 8 * i + 4, 2);
    a->since[i] = now;
    a->line[i].fd = sheaf__address_connect(address, port);
    a->n_tried++;
    if (a->line[i].fd < 0) give_up(a, i, sheaf__errno_text(errno));
}

static bool more_addresses(const struct attempt *a) {
    return a->n_tried < TRIES && sheaf__get_le(a->offer + 8 * a->n_tried + 4, 2);
}

static bool under_way(const struct attempt *a) {
    for (int i = 0; i < a->n_tried; i++)
        if (a->line[i].fd >= 0) return true;
    return false;
}

/* -1: not yet, 0: connected, or the error. */
static int connection_of(int fd) {
    struct pollfd p = {.fd = fd, .events = POLLOUT};
    int error = 0;
    socklen_t size = sizeof error;
    if (poll(&p, 1, 0) != 1) return -1;
    return getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &size) ? errno : error;
}

static void send_hello(struct attempt *a, int i) {
    uint8_t hello[HELLO_BYTES];
    sheaf__put_le(hello, (uint64_t)sheaf__world()->rank, 4);
    memcpy(hello + 4, a->nonce[i], NONCE_BYTES);
    sheaf__frame_send(&a->line[i], SHEAF__HELLO, hello, sizeof hello);
}

/* Did the other side prove itself? Its proof is answered then, and the connection kept. */
static bool take_challenge(const struct sheaf__gate *g, struct attempt *a, int i) {
    uint8_t want[SHEAF__SHA_BYTES], mine[SHEAF__SHA_BYTES];
    const int me = sheaf__world()->rank, low = a->peer->rank;
    const uint8_t *data = sheaf__frame_data(&a->line[i]);
    prove(g, 'L', low, me, a->nonce[i], data, want);
    if (!same_proof(want, data + NONCE_BYTES)) return false;
    prove(g, 'H', low, me, a->nonce[i], data, mine);
    sheaf__frame_drop(&a->line[i], CHALLENGE_BYTES);
    sheaf__frame_send(&a->line[i], SHEAF__PROOF, mine, sizeof mine);
    adopt(a->peer, &a->line[i]);
    return true;
}

static void serve_try(const struct sheaf__gate *g, struct attempt *a, int i, uint64_t now) {
    struct sheaf__peer *line = &a->line[i];
    size_t size = 0;
    int error = 0;
    if (!a->connected[i]) {
        const int state = connection_of(line->fd);
        if (state > 0) give_up(a, i, strerror(state));
        if (state < 0 && now > a->since[i] + CONNECT_NS) give_up(a, i, strerror(ETIMEDOUT));
        if (state) return;
        a->connected[i] = true;
        a->since[i] = now; /* the peer may have many to greet */
        if (!draw(a->nonce[i])) give_up(a, i, strerror(errno));
        send_hello(a, i);
        return;
    }
    const bool open = sheaf__frame_receive(line, &error);
    const int type = sheaf__frame_next(line, &size);
    if (type == 0 && open) return;
    if (type != SHEAF__CHALLENGE || size != CHALLENGE_BYTES || !take_challenge(g, a, i))
        give_up(a, i, error ? strerror(error) : "the process that answers is not that rank");
}

/* Sets an error if no address is left. */
static enum sheaf_status serve_attempt(const struct sheaf__gate *g, struct attempt *a,
                                       uint64_t now) {
    for (int i = 0; i < a->n_tried && a->peer->fd < 0; i++)
        if (a->line[i].fd >= 0) serve_try(g, a, i, now);
    if (a->peer->fd >= 0) {
        for (int i = 0; i < a->n_tried; i++) shut(&a->line[i]);
        return SHEAF_STATUS_SUCCESS;
    }
    if (more_addresses(a) && (!under_way(a) || now > a->since[a->n_tried - 1] + NEXT_NS))
        begin_try(a, now);
    if (under_way(a) || more_addresses(a)) return SHEAF_STATUS_SUCCESS;
    return sheaf_set_error(SHEAF_STATUS_IO,
                           "start: no control connection to %s (%s); hosts must reach each other "
                           "by TCP at any port, SHEAF_CONTROL_ADDRESS names the network to use",
                           sheaf__rank_text(a->peer->rank),
                           a->tried.n ? a->why : "it offers no address");
}

/* ---- both ---- */

static const struct sheaf__peer *missing(const struct sheaf__gate *g) {
    for (int i = 0; i < g->n_peers; i++)
        if (g->peers[i].fd < 0) return &g->peers[i];
    return NULL;
}

static void wait_for_any(const struct sheaf__gate *g) {
    nfds_t n = 0;
    for (int i = 0; i < g->n_listeners; i++)
        g->fds[n++] = (struct pollfd){.fd = g->listeners[i], .events = POLLIN};
    for (int i = 0; i < g->n_strangers; i++)
        g->fds[n++] = (struct pollfd){.fd = g->strangers[i].line.fd, .events = POLLIN};
    for (int i = 0; i < g->n_attempts; i++) {
        const struct attempt *a = &g->attempts[i];
        for (int k = 0; k < TRIES; k++)
            g->fds[n++] =
                (struct pollfd){.fd = a->line[k].fd, .events = a->connected[k] ? POLLIN : POLLOUT};
    }
    poll(g->fds, n, POLL_MS);
}

static enum sheaf_status begin_attempts(struct sheaf__gate *g, const uint8_t *offers) {
    const int me = sheaf__world()->rank;
    for (int i = 0; i < g->n_peers; i++) g->n_attempts += g->peers[i].rank < me;
    g->attempts = calloc((size_t)g->n_attempts + 1, sizeof *g->attempts);
    g->fds = calloc((size_t)(SHEAF__MAX_ADDRESSES + g->n_strangers + TRIES * g->n_attempts),
                    sizeof *g->fds);
    if (!g->attempts || !g->fds) {
        g->n_attempts = 0;
        return sheaf_set_error(SHEAF_STATUS_ALLOC_FAILED, "start: out of memory");
    }
    for (int i = 0; i < g->n_attempts; i++) { /* the lower ranks come first */
        struct attempt *a = &g->attempts[i];
        for (int k = 0; k < TRIES; k++) a->line[k].fd = -1;
        a->peer = &g->peers[i];
        a->offer = offers + (size_t)g->peers[i].rank * SHEAF__OFFER_BYTES;
        a->tried = (struct sheaf__text){a->why, sizeof a->why, 0};
    }
    return SHEAF_STATUS_SUCCESS;
}

enum sheaf_status sheaf__gate_meet(struct sheaf__gate *g, const uint8_t *offers,
                                   const uint8_t secret[SHEAF__SECRET_BYTES]) {
    const uint64_t limit = sheaf__world()->limit_ns[SHEAF_PHASE_START] / START_PART;
    const uint64_t end = sheaf__time_ns() + limit;
    enum sheaf_status st = begin_attempts(g, offers);
    memcpy(g->secret, secret, sizeof g->secret);
    while (!st) {
        const uint64_t now = sheaf__time_ns();
        serve_strangers(g, now);
        for (int i = 0; i < g->n_attempts && !st; i++) st = serve_attempt(g, &g->attempts[i], now);
        const struct sheaf__peer *p = missing(g);
        if (st || !p) return st;
        if (sheaf__has_failed(sheaf__world())) return sheaf__report_failure();
        if (now > end)
            return sheaf_set_error(
                SHEAF_STATUS_TIMEOUT,
                "start: waited %.3g s for the control connection of %s; hosts must reach each "
                "other by TCP at any port, SHEAF_CONTROL_ADDRESS names the network to use, and "
                "hosts that are slow get more time by SHEAF_TIMEOUT_START_MS (the connections "
                "may take a sixth of it)",
                (double)limit / 1e9, sheaf__rank_text(p->rank));
        wait_for_any(g);
    }
    return st;
}

struct sheaf__gate *sheaf__gate_new(struct sheaf__peer *peers, int n) {
    struct sheaf__gate *g = calloc(1, sizeof *g);
    if (!g) return NULL;
    g->peers = peers;
    g->n_peers = n;
    g->n_strangers = n + MORE_PLACES;
    g->strangers = calloc((size_t)g->n_strangers, sizeof *g->strangers);
    if (!g->strangers) g->n_strangers = 0;
    for (int i = 0; i < g->n_strangers; i++) g->strangers[i].line.fd = -1;
    if (g->strangers) return g;
    sheaf__gate_free(g);
    return NULL;
}

enum sheaf_status sheaf__gate_open(struct sheaf__gate *g, uint8_t offer[SHEAF__OFFER_BYTES]) {
    struct sheaf__address_list list;
    bool accepts = false;
    for (int i = 0; i < g->n_peers; i++)
        accepts = accepts || g->peers[i].rank > sheaf__world()->rank;
    if (!accepts) return SHEAF_STATUS_SUCCESS;
    enum sheaf_status st = sheaf__address_own(sheaf__world()->n_hosts == 1, &list);
    for (int i = 0; i < list.n && !st; i++) {
        uint16_t port = 0;
        const int fd = sheaf__address_listen(list.address[i], &port);
        if (fd < 0) {
            char text[SHEAF__ADDRESS_TEXT];
            sheaf__address_text(list.address[i], text);
            return sheaf_set_error(SHEAF_STATUS_IO, "start: cannot listen on %s: %s", text,
                                   sheaf__errno_text(errno));
        }
        g->listeners[g->n_listeners++] = fd;
        sheaf__put_le(offer + 8 * i, list.address[i], 4);
        sheaf__put_le(offer + 8 * i + 4, port, 2);
    }
    return st;
}

void sheaf__gate_free(struct sheaf__gate *g) {
    if (!g) return;
    for (int i = 0; i < g->n_listeners; i++) close(g->listeners[i]);
    for (int i = 0; i < g->n_strangers; i++) shut(&g->strangers[i].line);
    for (int i = 0; i < g->n_attempts; i++)
        for (int k = 0; k < TRIES; k++) shut(&g->attempts[i].line[k]);
    free(g->strangers);
    free(g->attempts);
    free(g->fds);
    explicit_bzero(g->secret, sizeof g->secret);
    free(g);
}
