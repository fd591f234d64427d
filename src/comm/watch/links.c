/* Control connections while the job runs: signs of life, alarms, farewells. gate.c makes them. */
#include "comm/watch/watch_impl.h"

#include <errno.h>
#include <linux/sockios.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/ioctl.h>
#include <sys/random.h>
#include <unistd.h>

#include "comm/watch/gate.h"

/* a beat: what a rank does, as its line of the board says */
enum {
    B_PHASE = 0,
    B_KIND = 4,
    B_NODE = 8,
    B_BYTES = 16, /* behind four bytes that are 0 */
    B_SEQUENCE = 24,
    B_STEP = 32,
    B_CHANGES = 40,
    B_NAME = 48,
    BEAT_BYTES = B_NAME + SHEAF__NAME_BYTES,
};

/* A peer whose socket is full for so long does not read: it is stopped, or out of reach. */
static const uint64_t LEAVE_NS = 100000000;

static struct sheaf__peer *peers;
static int n_peers;

static bool connected(const struct sheaf__world *w, int a, int b) {
    return w->share_of[a] != w->share_of[b] && (w->share_of[a] == a || w->share_of[b] == b);
}

static bool is_first_host(int rank) { return sheaf__world()->share_of[rank] == 0; }

/* ---- their life ---- */

enum sheaf_status sheaf__links_start(void) {
    struct sheaf__world *w = sheaf__world();
    uint8_t offer[SHEAF__OFFER_BYTES] = {0}, job[8 + SHEAF__SECRET_BYTES] = {0};
    uint8_t *offers = calloc((size_t)w->size, SHEAF__OFFER_BYTES);
    enum sheaf_status st = SHEAF_STATUS_SUCCESS;
    peers = calloc((size_t)w->size, sizeof *peers);
    for (int r = 0; r < w->size && peers; r++)
        if (connected(w, r, w->rank))
            peers[n_peers++] = (struct sheaf__peer){.rank = r, .fd = -1, .heard = sheaf__time_ns()};
    struct sheaf__gate *g = peers ? sheaf__gate_new(peers, n_peers) : NULL;
    if (!offers || !g) st = sheaf_set_error(SHEAF_STATUS_ALLOC_FAILED, "start: out of memory");
    if (!st) st = sheaf__gate_open(g, offer);
    if (!st && w->rank == 0 && getrandom(job, sizeof job, 0) != sizeof job)
        st = sheaf_set_error(SHEAF_STATUS_IO, "start: no random numbers: %s", strerror(errno));
    if ((st = sheaf_world_agree(st, "start"))) goto out;
    if ((st = sheaf_world_broadcast(job, sizeof job, 0, "job"))) goto out;
    w->job = sheaf__get_le(job, 8);
    if ((st = sheaf_world_all_gather(offer, sizeof offer, offers, "addresses"))) goto out;
    st = sheaf_world_agree(sheaf__gate_meet(g, offers, job + 8), "start");
out:
    explicit_bzero(job, sizeof job);
    sheaf__gate_free(g);
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
}

/* ---- serving them ---- */

int sheaf__links_fds(struct pollfd *fds) {
    for (int i = 0; i < n_peers && fds; i++)
        fds[i] = (struct pollfd){.fd = peers[i].fd,
                                 .events = (short)(POLLIN | (peers[i].n_out ? POLLOUT : 0))};
    return n_peers;
}

static void take_beat(const struct sheaf__peer *p, const uint8_t *d, uint64_t now) {
    struct sheaf__line *l = sheaf__line(p->rank);
    const uint64_t changes = sheaf__get_le(d + B_CHANGES, 8);
    if (!l) return;
    if (atomic_exchange_explicit(&l->changes, changes, memory_order_relaxed) != changes)
        atomic_store_explicit(&l->since_ns, now, memory_order_relaxed);
    atomic_store_explicit(&l->kind, (uint32_t)sheaf__get_le(d + B_KIND, 4), memory_order_release);
    atomic_store_explicit(&l->phase, (uint32_t)sheaf__get_le(d + B_PHASE, 4), memory_order_release);
    atomic_store_explicit(&l->node, (uint32_t)sheaf__get_le(d + B_NODE, 4), memory_order_relaxed);
    atomic_store_explicit(&l->bytes, sheaf__get_le(d + B_BYTES, 8), memory_order_relaxed);
    atomic_store_explicit(&l->sequence, sheaf__get_le(d + B_SEQUENCE, 8), memory_order_relaxed);
    atomic_store_explicit(&l->step, sheaf__get_le(d + B_STEP, 8), memory_order_relaxed);
    for (int i = 0; i < SHEAF__NAME_WORDS; i++) {
        uint64_t word;
        memcpy(&word, d + B_NAME + 8 * i, sizeof word);
        atomic_store_explicit(&l->name[i], word, memory_order_relaxed);
    }
    atomic_store_explicit(&l->heard_ns, now, memory_order_relaxed);
}

static void take_frames(struct sheaf__peer *p, uint64_t now) {
    size_t size = 0;
    int type;
    while ((type = sheaf__frame_next(p, &size)) > 0) {
        const uint8_t *d = sheaf__frame_data(p);
        p->heard = now;
        if (type == SHEAF__BEAT && size == BEAT_BYTES) take_beat(p, d, now);
        if (type == SHEAF__BYE || type == SHEAF__GONE) {
            p->left = true;
            struct sheaf__line *l = sheaf__line(p->rank);
            if (l) atomic_store(&l->left, 1);
        }
        if (type == SHEAF__TOLD) sheaf__hear_told(p->rank);
        if (type == SHEAF__SPEAK || type == SHEAF__BE_SILENT)
            sheaf__hear_permit(type == SHEAF__SPEAK);
        if ((type == SHEAF__ALARM || type == SHEAF__GONE) && size == SHEAF__ALARM_BYTES) {
            char text[SHEAF__REASON_BYTES];
            memcpy(text, d + 4, sizeof text);
            text[sizeof text - 1] = 0;
            const int origin = (int)sheaf__get_le(d, 4);
            const bool known = origin >= 0 && origin < sheaf__world()->size;
            if (known) sheaf__hear_failure(origin, text);
            if (known && is_first_host(sheaf__world()->rank))
                sheaf__frame_send(p, sheaf__permits(origin) ? SHEAF__SPEAK : SHEAF__BE_SILENT, NULL,
                                  0);
        }
        sheaf__frame_drop(p, size);
    }
    if (type < 0) {
        sheaf__notice("%s sent an invalid control message", sheaf__rank_text(p->rank));
        p->n_in = 0;
    }
}

static bool say_died(const struct sheaf__peer *p) {
    return sheaf__notice_lost(p->rank, "has died (it was killed or ended without notice)");
}

void sheaf__links_serve(const struct pollfd *fds, uint64_t now) {
    for (int i = 0; i < n_peers; i++) {
        struct sheaf__peer *p = &peers[i];
        int error = 0;
        if (p->fd < 0 || !fds[i].revents) continue;
        if (fds[i].revents & POLLOUT) sheaf__frame_flush(p);
        if (!(fds[i].revents & ~POLLOUT)) continue;
        const bool open = sheaf__frame_receive(p, &error);
        take_frames(p, now);
        if (open) continue;
        close(p->fd);
        p->fd = -1;
        p->lost = !p->left;
        if (p->left) continue;
        if (error && error != ECONNRESET)
            p->told =
                sheaf__notice_lost(p->rank, "cannot be reached any more (%s)", strerror(error));
        else
            p->told = say_died(p);
    }
}

void sheaf__links_beat(void) {
    struct sheaf__activity a;
    uint8_t d[BEAT_BYTES] = {0};
    if (!n_peers) return;
    sheaf__read_line(sheaf__world()->rank, &a);
    sheaf__put_le(d + B_PHASE, (uint64_t)a.phase, 4);
    sheaf__put_le(d + B_KIND, a.kind, 4);
    sheaf__put_le(d + B_NODE, a.node, 4);
    sheaf__put_le(d + B_BYTES, a.bytes, 8);
    sheaf__put_le(d + B_SEQUENCE, a.sequence, 8);
    sheaf__put_le(d + B_STEP, a.step, 8);
    sheaf__put_le(d + B_CHANGES, a.changes, 8);
    memcpy(d + B_NAME, a.name, SHEAF__NAME_BYTES);
    for (int i = 0; i < n_peers; i++) sheaf__frame_send(&peers[i], SHEAF__BEAT, d, sizeof d);
}

static void write_alarm(uint8_t d[static SHEAF__ALARM_BYTES], int origin, const char *text) {
    memset(d, 0, SHEAF__ALARM_BYTES);
    sheaf__put_le(d, (uint64_t)origin, 4);
    snprintf((char *)d + 4, SHEAF__REASON_BYTES, "%s", text);
}

static bool send_alarm(int origin, const char *text, bool first_host_only) {
    uint8_t d[SHEAF__ALARM_BYTES];
    bool any = false;
    write_alarm(d, origin, text);
    for (int i = 0; i < n_peers; i++) {
        struct sheaf__peer *p = &peers[i];
        if (first_host_only && !is_first_host(p->rank)) continue;
        sheaf__frame_send(p, SHEAF__ALARM, d, sizeof d);
        any = any || (p->fd >= 0 && !p->lost);
    }
    return any;
}

void sheaf__links_alarm(int origin, const char *text) { send_alarm(origin, text, false); }

bool sheaf__links_ask(int origin, const char *text) { return send_alarm(origin, text, true); }

void sheaf__links_told(void) {
    for (int i = 0; i < n_peers; i++) sheaf__frame_send(&peers[i], SHEAF__TOLD, NULL, 0);
}

/* Says so once to each peer, behind what is still queued; true when the kernel has it all. */
static bool part(enum sheaf__frame type, const uint8_t *data, size_t n) {
    bool sent = true;
    for (int i = 0; i < n_peers; i++) {
        struct sheaf__peer *p = &peers[i];
        sheaf__frame_flush(p);
        if (!p->parted && !p->n_out) {
            sheaf__frame_send(p, type, data, n);
            p->parted = true;
        }
        sent = sent && (p->fd < 0 || (p->parted && !p->n_out));
    }
    return sent;
}

void sheaf__links_leave(int origin, const char *text) {
    const uint64_t end = sheaf__time_ns() + LEAVE_NS;
    uint8_t d[SHEAF__ALARM_BYTES];
    write_alarm(d, origin, text);
    while (!part(SHEAF__GONE, d, sizeof d) && sheaf__time_ns() < end) sheaf__nap(2000000);
}

bool sheaf__links_farewell(void) {
    bool arrived = part(SHEAF__BYE, NULL, 0);
    for (int i = 0; i < n_peers; i++) {
        int unanswered = 0;
        if (peers[i].fd < 0) continue;
        const bool known = !ioctl(peers[i].fd, SIOCOUTQ, &unanswered);
        arrived = arrived && !(known && unanswered);
    }
    return arrived;
}

bool sheaf__links_all_left(void) {
    for (int i = 0; i < n_peers; i++)
        if (!peers[i].left) return false;
    return true;
}

void sheaf__links_check(uint64_t now, uint64_t limit, bool forgive) {
    for (int i = 0; i < n_peers; i++) {
        struct sheaf__peer *p = &peers[i];
        if (forgive) p->heard = now;
        if (p->lost && p->fd < 0 && !p->told)
            p->told = say_died(p); /* no end came of what was expected */
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
