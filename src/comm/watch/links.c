/* Making the control connections, and what goes over them. */
#include "comm/watch/watch_impl.h"

#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/text.h"
#include "comm/world/world.h"

enum {
    MAGIC = 0x42484153, /* "SAHB" */
    /* frame: magic 4, type 2, bytes behind it 2 */
    F_MAGIC = 0,
    F_TYPE = 4,
    F_SIZE = 6,
    F_HEADER = 8,
    SECRET_BYTES = 16,
    HELLO_BYTES = 4 + SECRET_BYTES, /* rank, secret */
    BEAT_NUMBERS = 48, /* phase 4, kind 4, node 4, left 4, bytes 8, sequence 8, step 8, changes 8 */
    BEAT_BYTES = BEAT_NUMBERS + SHEAF__NAME_BYTES,
    ALARM_BYTES = 4 + SHEAF__REASON_BYTES,
    FRAME_BYTES = F_HEADER + ALARM_BYTES,
    OFFER_BYTES = SHEAF__MAX_ADDRESSES * 8, /* address 4, port 2, pad 2 */
    STRANGERS = 16,                         /* unknown connections at a time */
    START_SECONDS = 20,                     /* seconds for all connections */
};
enum type { HELLO = 1, WELCOME, BEAT, ALARM, BYE, TOLD, SPEAK, BE_SILENT };

struct peer {
    int rank, fd;
    bool greeted;
    _Atomic bool left,
        lost; /* these and `heard`: the guard writes, the main thread reads at the end */
    _Atomic uint64_t heard;
    size_t n_in, n_out;
    uint8_t in[FRAME_BYTES], out[FRAME_BYTES];
};

static struct peer *peers;
static int n_peers;
static uint8_t secret[SECRET_BYTES];

static bool connected(const struct sheaf__world *w, int a, int b) {
    return w->share_of[a] != w->share_of[b] && (w->share_of[a] == a || w->share_of[b] == b);
}

static bool is_first_host(int rank) { return sheaf__world()->share_of[rank] == 0; }

/* ---- frames ---- */

static size_t make_frame(uint8_t *out, enum type type, const uint8_t *data, size_t n) {
    sheaf__put_le(out + F_MAGIC, MAGIC, 4);
    sheaf__put_le(out + F_TYPE, (uint64_t)type, 2);
    sheaf__put_le(out + F_SIZE, n, 2);
    if (n) memcpy(out + F_HEADER, data, n);
    return F_HEADER + n;
}

static void flush_out(struct peer *p) {
    while (p->n_out && p->fd >= 0) {
        const ssize_t n = send(p->fd, p->out, p->n_out, MSG_NOSIGNAL | MSG_DONTWAIT);
        if (n <= 0) return; /* a broken connection shows when it is read */
        memmove(p->out, p->out + n, p->n_out - (size_t)n);
        p->n_out -= (size_t)n;
    }
}

/* A frame is dropped while the last one is still being sent. No beat is missed by that: the peer
 * receives the earlier one. */
static void send_frame(struct peer *p, enum type type, const uint8_t *data, size_t n) {
    flush_out(p);
    if (p->fd < 0 || p->n_out) return;
    p->n_out = make_frame(p->out, type, data, n);
    flush_out(p);
}

/* Reads the bytes that have arrived. Returns false at the end of the connection; *error is then
 * errno or 0. */
static bool fill_in(struct peer *p, int *error) {
    const ssize_t n = recv(p->fd, p->in + p->n_in, sizeof p->in - p->n_in, MSG_DONTWAIT);
    *error = 0;
    if (n > 0) p->n_in += (size_t)n;
    if (n > 0 || (n < 0 && (errno == EAGAIN || errno == EINTR))) return true;
    if (n < 0) *error = errno;
    return false;
}

/* The type and size of the whole frame at the front of p->in; 0 if there is none yet, -1 if it is
 * invalid. */
static int next_frame(const struct peer *p, size_t *size) {
    if (p->n_in < F_HEADER) return 0;
    *size = (size_t)sheaf__get_le(p->in + F_SIZE, 2);
    if (sheaf__get_le(p->in + F_MAGIC, 4) != MAGIC || *size > ALARM_BYTES) return -1;
    return p->n_in < F_HEADER + *size ? 0 : (int)sheaf__get_le(p->in + F_TYPE, 2);
}

static void drop_frame(struct peer *p, size_t size) {
    p->n_in -= F_HEADER + size;
    memmove(p->in, p->in + F_HEADER + size, p->n_in);
}

/* ---- making connections ---- */

static bool same_secret(const uint8_t *theirs) {
    uint8_t differs = 0;
    for (int i = 0; i < SECRET_BYTES; i++) differs |= (uint8_t)(theirs[i] ^ secret[i]);
    return differs == 0;
}

static void set_options(int fd) {
    const int on = 1;
    const unsigned limit = (unsigned)(sheaf__world()->heartbeat_ns / 1000000u);
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    setsockopt(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, &limit, sizeof limit);
}

static void send_hello(struct peer *p, enum type type) {
    uint8_t hello[HELLO_BYTES];
    sheaf__put_le(hello, (uint64_t)sheaf__world()->rank, 4);
    memcpy(hello + 4, secret, SECRET_BYTES);
    send_frame(p, type, hello, sizeof hello);
}

static enum sheaf_status connect_to(struct peer *p, const uint8_t *offer) {
    char text[256] = "it offers no address";
    struct sheaf__text tried = {text, sizeof text, 0};
    for (int i = 0; i < SHEAF__MAX_ADDRESSES; i++) {
        const uint32_t address = (uint32_t)sheaf__get_le(offer + 8 * i, 4);
        const uint16_t port = (uint16_t)sheaf__get_le(offer + 8 * i + 4, 2);
        if (!port) break;
        p->fd = sheaf__address_connect(address, port);
        if (p->fd >= 0) {
            set_options(p->fd);
            send_hello(p, HELLO);
            return SHEAF_STATUS_SUCCESS;
        }
        const int error = errno;
        char name[SHEAF__ADDRESS_TEXT];
        sheaf__address_text(address, name);
        sheaf__put(&tried, "%s%s: %s", tried.n ? ", " : "", name, strerror(error));
    }
    return sheaf_set_error(SHEAF_STATUS_IO,
                           "start: no control connection to %s (%s); hosts must reach each other "
                           "by TCP at any port, SHEAF_CONTROL_ADDRESS names the network to use",
                           sheaf__rank_text(p->rank), text);
}

static struct peer *find_peer(int rank) {
    for (int i = 0; i < n_peers; i++)
        if (peers[i].rank == rank) return &peers[i];
    return NULL;
}

/* Reads a greeting. Returns false if the connection is to be closed. */
static bool greet(struct peer *p, enum type want, int *rank) {
    size_t size = 0;
    int error;
    const bool open = fill_in(p, &error);
    const int type = next_frame(p, &size);
    *rank = -1;
    if (type == 0) return open;
    if (type != (int)want || size != HELLO_BYTES || !same_secret(p->in + F_HEADER + 4))
        return false;
    *rank = (int)sheaf__get_le(p->in + F_HEADER, 4);
    drop_frame(p, size);
    return true;
}

/* Takes over the connection of a stranger that has proved to be a peer. */
static bool adopt(struct peer *stranger, int rank) {
    struct peer *p = find_peer(rank);
    if (!p || p->fd >= 0 || rank < sheaf__world()->rank) return false;
    p->fd = stranger->fd;
    p->n_in = stranger->n_in;
    memcpy(p->in, stranger->in, stranger->n_in);
    p->heard = stranger->heard;
    p->greeted = true;
    set_options(p->fd);
    send_hello(p, WELCOME);
    return true;
}

struct gate { /* while connections are made */
    int listeners[SHEAF__MAX_ADDRESSES], n_listeners;
    struct peer strangers[STRANGERS];
};

static void serve_strangers(struct gate *g) {
    for (int i = 0; i < g->n_listeners; i++) {
        const int fd = accept4(g->listeners[i], NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
        int oldest = 0;
        if (fd < 0) continue;
        for (int k = 0; k < STRANGERS; k++) {
            if (g->strangers[oldest].fd < 0) break;
            if (g->strangers[k].fd < 0 || g->strangers[k].heard < g->strangers[oldest].heard)
                oldest = k;
        }
        if (g->strangers[oldest].fd >= 0) close(g->strangers[oldest].fd);
        g->strangers[oldest] = (struct peer){.rank = -1, .fd = fd, .heard = sheaf__time_ns()};
    }
    for (int k = 0; k < STRANGERS; k++) {
        struct peer *s = &g->strangers[k];
        int rank;
        if (s->fd < 0) continue;
        const bool good = greet(s, HELLO, &rank);
        if (good && rank < 0) continue;
        if (!good || !adopt(s, rank)) close(s->fd);
        s->fd = -1;
    }
}

/* Until every peer has been greeted. */
static enum sheaf_status meet(struct gate *g) {
    const uint64_t start = sheaf__time_ns(), end = start + (uint64_t)START_SECONDS * 1000000000u;
    for (;;) {
        const struct peer *missing = NULL;
        serve_strangers(g);
        for (int i = 0; i < n_peers; i++) {
            struct peer *p = &peers[i];
            int rank;
            if (p->greeted) continue;
            missing = p;
            if (p->fd < 0) continue;
            if (!greet(p, WELCOME, &rank) || (rank >= 0 && rank != p->rank))
                return sheaf_set_error(
                    SHEAF_STATUS_PEER,
                    "start: the process that answers for %s is not a rank of this job",
                    sheaf__rank_text(p->rank));
            p->greeted = rank == p->rank;
        }
        if (!missing) return SHEAF_STATUS_SUCCESS;
        if (sheaf__has_failed(sheaf__world())) return sheaf__report_failure();
        if (sheaf__time_ns() > end)
            return sheaf_set_error(
                SHEAF_STATUS_TIMEOUT,
                "start: waited %d s for the control connection of %s; hosts must "
                "reach each other by TCP at any port, SHEAF_CONTROL_ADDRESS "
                "names the network to use",
                START_SECONDS, sheaf__rank_text(missing->rank));
        struct pollfd fds[SHEAF__MAX_ADDRESSES + STRANGERS];
        nfds_t n = 0;
        for (int i = 0; i < g->n_listeners; i++)
            fds[n++] = (struct pollfd){.fd = g->listeners[i], .events = POLLIN};
        for (int k = 0; k < STRANGERS; k++)
            fds[n++] = (struct pollfd){.fd = g->strangers[k].fd, .events = POLLIN};
        poll(fds, n, 2); /* answers to our own greetings are looked for every 2 ms */
    }
}

static enum sheaf_status open_gate(struct gate *g, uint8_t *offer) {
    struct sheaf__address_list list;
    enum sheaf_status st = sheaf__address_own(sheaf__world()->n_hosts == 1, &list);
    for (int i = 0; i < list.n && !st; i++) {
        uint16_t port = 0;
        const int fd = sheaf__address_listen(list.address[i], &port);
        if (fd < 0) {
            char text[SHEAF__ADDRESS_TEXT];
            sheaf__address_text(list.address[i], text);
            return sheaf_set_error(SHEAF_STATUS_IO, "start: cannot listen on %s: %s", text,
                                   strerror(errno));
        }
        g->listeners[g->n_listeners++] = fd;
        sheaf__put_le(offer + 8 * i, list.address[i], 4);
        sheaf__put_le(offer + 8 * i + 4, port, 2);
    }
    return st;
}

static void close_gate(struct gate *g) {
    for (int i = 0; i < g->n_listeners; i++) close(g->listeners[i]);
    for (int i = 0; i < STRANGERS; i++)
        if (g->strangers[i].fd >= 0) close(g->strangers[i].fd);
    free(g);
}

enum sheaf_status sheaf__links_start(void) {
    struct sheaf__world *w = sheaf__world();
    uint8_t offer[OFFER_BYTES] = {0}, job[8 + SECRET_BYTES] = {0};
    uint8_t *offers = calloc((size_t)w->size, OFFER_BYTES);
    struct gate *g = calloc(1, sizeof *g);
    bool accepts = false;
    for (int i = 0; i < STRANGERS && g; i++) g->strangers[i].fd = -1;
    enum sheaf_status st = SHEAF_STATUS_SUCCESS;
    peers = calloc((size_t)w->size, sizeof *peers);
    if (!offers || !peers || !g)
        st = sheaf_set_error(SHEAF_STATUS_ALLOC_FAILED, "start: out of memory");
    for (int r = 0; r < w->size && !st; r++) {
        if (!connected(w, r, w->rank)) continue;
        peers[n_peers++] = (struct peer){.rank = r, .fd = -1, .heard = sheaf__time_ns()};
        accepts = accepts || r > w->rank;
    }
    if (!st && accepts) st = open_gate(g, offer);
    if (!st && w->rank == 0 && getrandom(job, sizeof job, 0) != sizeof job)
        st = sheaf_set_error(SHEAF_STATUS_IO, "start: no random numbers: %s", strerror(errno));
    if ((st = sheaf_world_agree(st, "start"))) goto out;
    if ((st = sheaf_world_broadcast(job, sizeof job, 0, "job"))) goto out;
    w->job = sheaf__get_le(job, 8);
    memcpy(secret, job + 8, SECRET_BYTES);
    if ((st = sheaf_world_all_gather(offer, OFFER_BYTES, offers, "addresses"))) goto out;
    for (int i = 0; i < n_peers && !st; i++)
        if (peers[i].rank < w->rank)
            st = connect_to(&peers[i], offers + (size_t)peers[i].rank * OFFER_BYTES);
    if (!st) st = meet(g);
    st = sheaf_world_agree(st, "start");
out:
    if (g) close_gate(g);
    free(offers);
    if (st) sheaf__links_stop();
    return st;
}

void sheaf__links_stop(void) {
    for (int i = 0; i < n_peers; i++)
        if (peers[i].fd >= 0) close(peers[i].fd);
    free(peers);
    peers = NULL;
    n_peers = 0;
    memset(secret, 0, sizeof secret);
}

/* ---- serving them ---- */

int sheaf__links_fds(struct pollfd *fds) {
    for (int i = 0; i < n_peers && fds; i++)
        fds[i] = (struct pollfd){.fd = peers[i].fd,
                                 .events = (short)(POLLIN | (peers[i].n_out ? POLLOUT : 0))};
    return n_peers;
}

static void take_beat(const struct peer *p, const uint8_t *d, uint64_t now) {
    struct sheaf__line *l = sheaf__line(p->rank);
    const uint64_t changes = sheaf__get_le(d + 40, 8);
    if (!l) return;
    atomic_store_explicit(&l->phase, (uint32_t)sheaf__get_le(d, 4), memory_order_relaxed);
    atomic_store_explicit(&l->kind, (uint32_t)sheaf__get_le(d + 4, 4), memory_order_relaxed);
    atomic_store_explicit(&l->node, (uint32_t)sheaf__get_le(d + 8, 4), memory_order_relaxed);
    atomic_store_explicit(&l->bytes, sheaf__get_le(d + 16, 8), memory_order_relaxed);
    atomic_store_explicit(&l->sequence, sheaf__get_le(d + 24, 8), memory_order_relaxed);
    atomic_store_explicit(&l->step, sheaf__get_le(d + 32, 8), memory_order_relaxed);
    if (atomic_exchange_explicit(&l->changes, changes, memory_order_relaxed) != changes)
        atomic_store_explicit(&l->since_ns, now, memory_order_relaxed);
    for (int i = 0; i < SHEAF__NAME_WORDS; i++) {
        uint64_t word;
        memcpy(&word, d + BEAT_NUMBERS + 8 * i, sizeof word);
        atomic_store_explicit(&l->name[i], word, memory_order_relaxed);
    }
    atomic_store_explicit(&l->heard_ns, now, memory_order_relaxed);
}

static void take_frames(struct peer *p, uint64_t now) {
    size_t size = 0;
    int type;
    while ((type = next_frame(p, &size)) > 0) {
        const uint8_t *d = p->in + F_HEADER;
        p->heard = now;
        if (type == BEAT && size == BEAT_BYTES) take_beat(p, d, now);
        if (type == BYE) {
            p->left = true;
            struct sheaf__line *l = sheaf__line(p->rank);
            if (l) atomic_store(&l->left, 1);
        }
        if (type == TOLD) sheaf__hear_told(p->rank);
        if (type == SPEAK || type == BE_SILENT) sheaf__hear_permit(type == SPEAK);
        if (type == ALARM && size == ALARM_BYTES) {
            char text[SHEAF__REASON_BYTES];
            memcpy(text, d + 4, sizeof text);
            text[sizeof text - 1] = 0;
            const int origin = (int)sheaf__get_le(d, 4);
            const bool known = origin >= 0 && origin < sheaf__world()->size;
            if (known) sheaf__hear_failure(origin, text);
            if (known && is_first_host(sheaf__world()->rank))
                send_frame(p, sheaf__permits(origin) ? SPEAK : BE_SILENT, NULL, 0);
        }
        drop_frame(p, size);
    }
    if (type < 0) {
        sheaf__notice("%s sent an invalid control message", sheaf__rank_text(p->rank));
        p->n_in = 0;
    }
}

void sheaf__links_serve(const struct pollfd *fds, uint64_t now) {
    for (int i = 0; i < n_peers; i++) {
        struct peer *p = &peers[i];
        int error = 0;
        if (p->fd < 0 || !fds[i].revents) continue;
        if (fds[i].revents & POLLOUT) flush_out(p);
        if (!(fds[i].revents & ~POLLOUT)) continue;
        const bool open = fill_in(p, &error);
        take_frames(p, now);
        if (open) continue;
        close(p->fd);
        p->fd = -1;
        p->lost = !p->left;
        if (p->left) continue;
        if (error && error != ECONNRESET)
            sheaf__notice_lost(p->rank, "cannot be reached any more (%s)", strerror(error));
        else
            sheaf__notice_lost(p->rank, "has died (it was killed or ended without notice)");
    }
}

void sheaf__links_beat(void) {
    struct sheaf__activity a;
    uint8_t d[BEAT_BYTES] = {0};
    if (!n_peers) return;
    sheaf__read_line(sheaf__world()->rank, &a);
    sheaf__put_le(d, (uint64_t)a.phase, 4);
    sheaf__put_le(d + 4, a.kind, 4);
    sheaf__put_le(d + 8, a.node, 4);
    sheaf__put_le(d + 16, a.bytes, 8);
    sheaf__put_le(d + 24, a.sequence, 8);
    sheaf__put_le(d + 32, a.step, 8);
    sheaf__put_le(d + 40, a.changes, 8);
    memcpy(d + BEAT_NUMBERS, a.name, SHEAF__NAME_BYTES);
    for (int i = 0; i < n_peers; i++) send_frame(&peers[i], BEAT, d, sizeof d);
}

static bool send_alarm(int origin, const char *text, bool first_host_only) {
    uint8_t d[ALARM_BYTES] = {0};
    bool any = false;
    sheaf__put_le(d, (uint64_t)origin, 4);
    snprintf((char *)d + 4, SHEAF__REASON_BYTES, "%s", text);
    for (int i = 0; i < n_peers; i++) {
        struct peer *p = &peers[i];
        if (first_host_only && !is_first_host(p->rank)) continue;
        send_frame(p, ALARM, d, sizeof d);
        any = any || (p->fd >= 0 && !p->lost);
    }
    return any;
}

void sheaf__links_alarm(int origin, const char *text) { send_alarm(origin, text, false); }

bool sheaf__links_ask(int origin, const char *text) { return send_alarm(origin, text, true); }

void sheaf__links_told(void) {
    for (int i = 0; i < n_peers; i++) send_frame(&peers[i], TOLD, NULL, 0);
}

void sheaf__links_farewell(void) {
    for (int i = 0; i < n_peers; i++) send_frame(&peers[i], BYE, NULL, 0);
}

bool sheaf__links_all_left(void) {
    for (int i = 0; i < n_peers; i++)
        if (!peers[i].left) return false;
    return true;
}

void sheaf__links_check(uint64_t now, uint64_t limit, bool forgive) {
    for (int i = 0; i < n_peers; i++) {
        struct peer *p = &peers[i];
        if (forgive) p->heard = now;
        if (p->fd < 0 || p->left || now < p->heard + limit) continue;
        sheaf__notice_lost(p->rank,
                           "has not been heard of for %.1f s, so it is stopped, or its host or the "
                           "link is down (SHEAF_TIMEOUT_HEARTBEAT_MS)",
                           (double)(now - p->heard) * 1e-9);
        p->lost = true;
    }
}

bool sheaf__links_lost(uint64_t now, uint64_t limit) {
    for (int i = 0; i < n_peers; i++)
        if (peers[i].lost || (!peers[i].left && now > peers[i].heard + limit)) return true;
    return false;
}
