/* Control connections are made past addresses that do not answer, that refuse, and that another
 * process has; and only with ranks of the same job. Two processes of one host, without MPI. */
#include <arpa/inet.h>
#include <criterion/criterion.h>
#include <errno.h>
#include <fcntl.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/sha256.h"
#include "comm/watch/gate.h"

static const uint8_t secret[SHEAF__SECRET_BYTES] = "of this job";

/* Rank `rank` of two on one host, and its peer. */
static struct sheaf__gate *gate_of(int rank, struct sheaf__peer *peer) {
    struct sheaf__world *w = sheaf__world();
    w->rank = rank;
    w->size = 2;
    w->heartbeat_ns = 3000000000u;
    w->limit_ns[SHEAF_PHASE_START] = 120000000000u;
    *peer = (struct sheaf__peer){.rank = 1 - rank, .fd = -1};
    struct sheaf__gate *g = sheaf__gate_new(peer, 1);
    cr_assert_not_null(g);
    return g;
}

static void put_address(uint8_t *offer, uint32_t address, uint16_t port) {
    sheaf__put_le(offer, address, 4);
    sheaf__put_le(offer + 4, port, 2);
}

/* Rank 1 in a process of its own, with the secret that it believes in. Its exit status is 0 if it
 * met rank 0, and reads its first frame. It keeps nothing of rank 0's gate: a listener that it had
 * inherited would hold its connection open when rank 0 has closed its own. */
static pid_t start_peer(struct sheaf__gate *of_rank_0, const uint8_t *offer, const uint8_t *key) {
    const pid_t pid = fork();
    cr_assert_geq(pid, 0);
    if (pid) return pid;
    sheaf__gate_free(of_rank_0);
    struct sheaf__peer zero;
    uint8_t offers[2 * SHEAF__OFFER_BYTES] = {0};
    size_t size = 0;
    int error = 0;
    struct sheaf__gate *g = gate_of(1, &zero);
    memcpy(offers, offer, SHEAF__OFFER_BYTES);
    alarm(30);
    if (sheaf__gate_meet(g, offers, key)) {
        fprintf(stderr, "%s\n", sheaf_last_error());
        _exit(strstr(sheaf_last_error(), "no control connection to rank 0") ? 3 : 4);
    }
    sheaf__gate_free(g);
    while (sheaf__frame_next(&zero, &size) == 0)
        if (!sheaf__frame_receive(&zero, &error)) _exit(5);
    _exit(sheaf__frame_next(&zero, &size) == SHEAF__TOLD && size == 0 ? 0 : 6);
}

static int end_of(pid_t pid) {
    int status;
    cr_assert_eq(waitpid(pid, &status, 0), pid);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 100 + WTERMSIG(status);
}

/* A listener of another program: it accepts (the kernel does) and never speaks. */
static int listener(uint16_t *port) {
    const int fd = sheaf__address_listen(0x7f000001, port);
    cr_assert_geq(fd, 0);
    return fd;
}

/* Offers that listeners of others precede; the real one is last. */
static void meets(bool silent, bool refusing) {
    struct sheaf__peer one;
    uint8_t own[SHEAF__OFFER_BYTES] = {0}, offer[SHEAF__OFFER_BYTES] = {0}, offers[64] = {0};
    uint16_t port;
    int n = 0, foreign = -1;
    struct sheaf__gate *g = gate_of(0, &one);
    cr_assert_eq(sheaf__gate_open(g, own), SHEAF_STATUS_SUCCESS, "%s", sheaf_last_error());
    if (silent) {
        foreign = listener(&port);
        put_address(offer + 8 * n++, 0x7f000001, port);
    }
    if (refusing) {
        close(listener(&port)); /* a port that no process has */
        put_address(offer + 8 * n++, 0x7f000001, port);
    }
    memcpy(offer + 8 * n, own, 8);
    const pid_t peer = start_peer(g, offer, secret);
    cr_assert_eq(sheaf__gate_meet(g, offers, secret), SHEAF_STATUS_SUCCESS, "%s",
                 sheaf_last_error());
    sheaf__gate_free(g);
    cr_expect_geq(one.fd, 0);
    sheaf__frame_send(&one, SHEAF__TOLD, NULL, 0);
    cr_expect_eq(end_of(peer), 0);
    if (foreign >= 0) close(foreign);
}

Test(gate, connects, .timeout = 30) { meets(false, false); }
Test(gate, passes_an_address_that_refuses, .timeout = 30) { meets(false, true); }
Test(gate, passes_an_address_of_another_process, .timeout = 30) { meets(true, true); }

/* The listener goes on waiting for its peer; the one with the wrong secret hears that no address is
 * the rank's, and has sent nothing by which another could speak for it. */
Test(gate, wants_the_same_secret, .timeout = 60) {
    static const uint8_t wrong[SHEAF__SECRET_BYTES] = "of another job";
    struct sheaf__peer one;
    uint8_t own[SHEAF__OFFER_BYTES] = {0}, offers[64] = {0};
    struct sheaf__gate *g = gate_of(0, &one);
    cr_assert_eq(sheaf__gate_open(g, own), SHEAF_STATUS_SUCCESS);
    const pid_t stranger = start_peer(g, own, wrong), peer = start_peer(g, own, secret);
    cr_assert_eq(sheaf__gate_meet(g, offers, secret), SHEAF_STATUS_SUCCESS, "%s",
                 sheaf_last_error());
    sheaf__frame_send(&one, SHEAF__TOLD, NULL, 0);
    cr_expect_eq(end_of(peer), 0);
    sheaf__gate_free(g);
    cr_expect_eq(end_of(stranger), 3);
}

/* The next frame of a connection that blocks; 0 at its end. */
static int wait_for_frame(struct sheaf__peer *line, size_t *size) {
    int type, error;
    while (!(type = sheaf__frame_next(line, size)))
        if (!sheaf__frame_receive(line, &error)) return 0;
    return type;
}

/* What a process that has the secret says to rank 1, spelled out in bytes. */
struct claim {
    uint8_t rank, first,
        last;            /* its hello's; type of its first frame; a change of its proof's end */
    char side;           /* that its proof is for */
    size_t hello, proof; /* bytes of its frames */
    bool again;          /* says hello a second time */
};
enum { HELLO_BYTES = 20, NUMBER_BYTES = 16, PROOF_BYTES = SHEAF__SHA_BYTES };

/* Of rank `low`, which listens, or of rank `high`; by the numbers of both. */
static void prove(char side, uint8_t low, uint8_t high, const uint8_t *of_high,
                  const uint8_t *of_low, uint8_t *out) {
    uint8_t text[9 + 2 * NUMBER_BYTES] = {(uint8_t)side, low, 0, 0, 0, high};
    memcpy(text + 9, of_high, NUMBER_BYTES);
    memcpy(text + 9 + NUMBER_BYTES, of_low, NUMBER_BYTES);
    sheaf__hmac(secret, sizeof secret, text, sizeof text, out);
}

/* Leaves the process if the answer is no proof of rank 1, or has the number of an earlier one. */
static void check_challenge(const struct sheaf__peer *line, uint8_t rank, const uint8_t *nonce) {
    static uint8_t last[NUMBER_BYTES];
    uint8_t want[PROOF_BYTES];
    const uint8_t *data = sheaf__frame_data(line);
    prove('L', 1, rank, nonce, data, want);
    if (memcmp(want, data + NUMBER_BYTES, sizeof want)) _exit(10);
    if (!memcmp(last, data, NUMBER_BYTES)) _exit(11);
    memcpy(last, data, NUMBER_BYTES);
}

/* The type of the frame that answers it; 0: it was shown the door. */
static int answer_to(const struct claim *c, const uint8_t *own) {
    const int on = 1, off = 0;
    struct sheaf__peer line = {.rank = 1};
    uint8_t hello[PROOF_BYTES] = {c->rank, 0, 0, 0, 'm', 'i', 'n', 'e'};
    uint8_t proof[PROOF_BYTES + 1] = {0};
    size_t size = 0;
    line.fd = sheaf__address_connect((uint32_t)sheaf__get_le(own, 4),
                                     (uint16_t)sheaf__get_le(own + 4, 2));
    sheaf__frame_send(&line, c->first, hello, c->hello);
    int type = wait_for_frame(&line, &size);
    if (type == SHEAF__CHALLENGE && size == NUMBER_BYTES + PROOF_BYTES) {
        check_challenge(&line, c->rank, hello + 4);
        prove(c->side, 1, c->rank, hello + 4, sheaf__frame_data(&line), proof);
        proof[PROOF_BYTES - 1] ^= c->last;
        sheaf__frame_drop(&line, size);
        if (c->again) sheaf__frame_send(&line, SHEAF__HELLO, hello, HELLO_BYTES);
        setsockopt(line.fd, IPPROTO_TCP, TCP_CORK, &on, sizeof on);
        sheaf__frame_send(&line, SHEAF__PROOF, proof, c->proof);
        sheaf__frame_send(&line, SHEAF__SPEAK, NULL, 0);
        setsockopt(line.fd, IPPROTO_TCP, TCP_CORK, &off, sizeof off);
        type = wait_for_frame(&line, &size);
    }
    close(line.fd);
    return type;
}

/* Each lie is refused at once; the truth, which comes last, is taken, with the frame behind it. */
Test(gate, believes_no_part_of_a_proof, .timeout = 60) {
    static const struct claim lies[] = {
        {2, SHEAF__HELLO, 1, 'H', HELLO_BYTES, PROOF_BYTES, false},
        {2, SHEAF__HELLO, 0, 'L', HELLO_BYTES, PROOF_BYTES, false},
        {1, SHEAF__HELLO, 0, 'H', HELLO_BYTES, PROOF_BYTES, false},
        {3, SHEAF__HELLO, 0, 'H', HELLO_BYTES, PROOF_BYTES, false}, /* is connected already */
        {4, SHEAF__HELLO, 0, 'H', HELLO_BYTES, PROOF_BYTES, false}, /* no peer */
        {2, SHEAF__BEAT, 0, 'H', HELLO_BYTES, PROOF_BYTES, false},
        {2, SHEAF__PROOF, 0, 'H', PROOF_BYTES, PROOF_BYTES, false},
        {2, SHEAF__HELLO, 0, 'H', HELLO_BYTES + 1, PROOF_BYTES, false},
        {2, SHEAF__HELLO, 0, 'H', HELLO_BYTES, PROOF_BYTES + 1, false},
        {2, SHEAF__HELLO, 0, 'H', HELLO_BYTES, PROOF_BYTES, true},
    };
    static const struct claim truth = {2, SHEAF__HELLO, 0, 'H', HELLO_BYTES, PROOF_BYTES, false};
    struct sheaf__peer peers[2], *one = &peers[0];
    uint8_t own[SHEAF__OFFER_BYTES] = {0}, offers[64] = {0};
    sheaf__gate_free(gate_of(1, one));
    one->rank = 2;
    peers[1] = (struct sheaf__peer){.rank = 3, .fd = dup(0)};
    struct sheaf__gate *g = sheaf__gate_new(peers, 2);
    cr_assert_eq(sheaf__gate_open(g, own), SHEAF_STATUS_SUCCESS);
    const uint64_t before = sheaf__time_ns();
    const pid_t pid = fork();
    cr_assert_geq(pid, 0);
    if (!pid) {
        sheaf__gate_free(g);
        alarm(30);
        for (size_t i = 0; i < sizeof lies / sizeof *lies; i++)
            if (answer_to(&lies[i], own)) _exit(20 + (int)i);
        _exit(answer_to(&truth, own) == SHEAF__TOLD ? 0 : 1);
    }
    cr_expect_eq(sheaf__gate_meet(g, offers, secret), SHEAF_STATUS_SUCCESS);
    sheaf__gate_free(g);
    cr_assert_geq(one->fd, 0);
    cr_expect_eq(one->rank, 2);
    cr_expect_gt(one->heard, before);
    unsigned limit = 0;
    cr_expect(
        !getsockopt(one->fd, IPPROTO_TCP, TCP_USER_TIMEOUT, &limit, &(socklen_t){sizeof limit}));
    cr_expect_eq(limit, 3000, "%u ms of silence", limit);
    int at_once = 0;
    cr_expect(
        !getsockopt(one->fd, IPPROTO_TCP, TCP_NODELAY, &at_once, &(socklen_t){sizeof at_once}));
    cr_expect(at_once, "a sign of life waits for the answer to the one before");
    size_t size;
    cr_expect_eq(wait_for_frame(one, &size), SHEAF__SPEAK);
    sheaf__frame_send(one, SHEAF__TOLD, NULL, 0);
    cr_expect_eq(end_of(pid), 0);
}

/* What rank 0 answers to the hello of rank 1. */
struct answer {
    uint8_t type, last; /* of the frame; a change of its end */
    size_t size;
};
enum { CHALLENGE_BYTES = NUMBER_BYTES + PROOF_BYTES };

/* Returns 0 if rank 1 has answered with its proof. */
static int answer_hello(int fd, const struct answer *a) {
    struct sheaf__peer line = {.fd = accept(fd, NULL, NULL)};
    uint8_t nonce[NUMBER_BYTES], challenge[CHALLENGE_BYTES + 1] = "number of rank 0",
                                                             want[PROOF_BYTES];
    size_t size;
    if (wait_for_frame(&line, &size) != SHEAF__HELLO || size != HELLO_BYTES) return 2;
    memcpy(nonce, sheaf__frame_data(&line) + 4, sizeof nonce);
    sheaf__frame_drop(&line, size);
    prove('L', 0, 1, nonce, challenge, challenge + NUMBER_BYTES);
    prove('H', 0, 1, nonce, challenge, want);
    challenge[CHALLENGE_BYTES - 1] ^= a->last;
    sheaf__frame_send(&line, a->type, challenge, a->size);
    if (wait_for_frame(&line, &size) != SHEAF__PROOF) return 1;
    return size == PROOF_BYTES && !memcmp(sheaf__frame_data(&line), want, sizeof want) ? 0 : 3;
}

/* A process that listens at rank 0's address, and has the secret. */
Test(gate, believes_no_part_of_a_challenge, .timeout = 60) {
    static const struct answer answers[] = {
        {SHEAF__CHALLENGE, 0, CHALLENGE_BYTES},
        {SHEAF__CHALLENGE, 1, CHALLENGE_BYTES},
        {SHEAF__CHALLENGE, 0, CHALLENGE_BYTES + 1},
        {SHEAF__HELLO, 0, CHALLENGE_BYTES},
    };
    for (size_t i = 0; i < sizeof answers / sizeof *answers; i++) {
        struct sheaf__peer zero;
        uint8_t offers[2 * SHEAF__OFFER_BYTES] = {0};
        uint16_t port;
        const int fd = listener(&port);
        cr_assert_eq(fcntl(fd, F_SETFL, 0), 0); /* it waits for the connection */
        put_address(offers, 0x7f000001, port);
        struct sheaf__gate *g = gate_of(1, &zero);
        const uint64_t before = sheaf__time_ns();
        const pid_t pid = fork();
        cr_assert_geq(pid, 0);
        if (!pid) {
            alarm(30);
            _exit(answer_hello(fd, &answers[i]));
        }
        cr_expect_eq(sheaf__gate_meet(g, offers, secret),
                     i ? SHEAF_STATUS_IO : SHEAF_STATUS_SUCCESS, "case %zu", i);
        cr_expect_eq(zero.heard > before, !i, "case %zu", i);
        cr_expect(!i || strstr(sheaf_last_error(), "the process that answers is not that rank"),
                  "case %zu: %s", i, sheaf_last_error());
        sheaf__gate_free(g);
        cr_expect_eq(end_of(pid), i ? 1 : 0, "case %zu", i);
        close(fd);
    }
}

/* Frames arrive in any pieces, several at once, and are refused if they are none. */
Test(frames, come_in_pieces_and_together) {
    int pair[2], error;
    size_t size;
    struct sheaf__peer a = {0}, b = {0};
    uint8_t long_one[SHEAF__ALARM_BYTES], bytes[2 * SHEAF__LINK_BYTES];
    cr_assert_eq(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, pair), 0);
    a.fd = pair[0];
    for (size_t i = 0; i < sizeof long_one; i++) long_one[i] = (uint8_t)(i * 7);
    sheaf__frame_send(&a, SHEAF__TOLD, NULL, 0);
    sheaf__frame_send(&a, SHEAF__BEAT, (const uint8_t *)"abc", 3);
    sheaf__frame_send(&a, SHEAF__ALARM, long_one, sizeof long_one);
    const ssize_t n = recv(pair[1], bytes, sizeof bytes, 0);
    cr_assert_eq(n, 3 * SHEAF__LINK_HEADER + 3 + SHEAF__ALARM_BYTES);
    for (size_t step = 1; step < 700; step += 23) { /* bytes at a time */
        static const int types[] = {SHEAF__TOLD, SHEAF__BEAT, SHEAF__ALARM};
        int seen = 0;
        b = (struct sheaf__peer){.fd = pair[1]};
        for (size_t at = 0; at < (size_t)n;) {
            const size_t some = (size_t)n - at < step ? (size_t)n - at : step;
            int type;
            cr_assert_eq(send(pair[0], bytes + at, some, 0), (ssize_t)some);
            at += some;
            do {
                cr_assert(sheaf__frame_receive(&b, &error));
                while ((type = sheaf__frame_next(&b, &size))) {
                    cr_assert(seen < 3 && type == types[seen], "step %zu: type %d", step, type);
                    const uint8_t *data = sheaf__frame_data(&b);
                    cr_expect(seen != 1 || (size == 3 && !memcmp(data, "abc", 3)));
                    cr_expect(seen != 2 || (size == sizeof long_one &&
                                            !memcmp(data, long_one, sizeof long_one)));
                    sheaf__frame_drop(&b, size);
                    seen++;
                }
            } while (recv(pair[1], &(char){0}, 1, MSG_PEEK | MSG_DONTWAIT) == 1);
        }
        cr_expect(seen == 3 && !b.n_in, "step %zu: %d frames, %zu bytes left", step, seen, b.n_in);
    }
    static const uint8_t bad[][SHEAF__LINK_HEADER] = {
        {0x53, 0x41, 0x48, 0x31, 4, 0, 3, 0}, /* another magic number */
        {0x53, 0x41, 0x48, 0x32, 0, 0, 3, 0}, /* no type */
        {0x53, 0x41, 0x48, 0x32, 4, 0, 255, 255} /* more than any has */};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        b = (struct sheaf__peer){.n_in = SHEAF__LINK_HEADER};
        memcpy(b.in, bad[i], sizeof bad[i]);
        cr_expect_eq(sheaf__frame_next(&b, &size), -1, "case %zu", i);
    }
    close(pair[0]);
    b = (struct sheaf__peer){.fd = pair[1]};
    cr_expect_not(sheaf__frame_receive(&b, &error));
    cr_expect_eq(error, 0);
    close(pair[1]);
}

/* Processes that connect and say nothing have taken every place: the oldest make room. */
Test(gate, is_not_filled_by_strangers, .timeout = 30) {
    enum { STRANGERS = 28 }; /* places are for one peer and 16 others */
    struct sheaf__peer one;
    uint8_t own[SHEAF__OFFER_BYTES] = {0}, offers[64] = {0};
    struct sheaf__gate *g = gate_of(0, &one);
    int strangers[STRANGERS];
    cr_assert_eq(sheaf__gate_open(g, own), SHEAF_STATUS_SUCCESS, "%s", sheaf_last_error());
    for (int i = 0; i < STRANGERS; i++) {
        strangers[i] = sheaf__address_connect((uint32_t)sheaf__get_le(own, 4),
                                              (uint16_t)sheaf__get_le(own + 4, 2));
        cr_assert_geq(strangers[i], 0);
    }
    const pid_t peer = start_peer(g, own, secret);
    const uint64_t before = sheaf__time_ns();
    sheaf__world()->limit_ns[SHEAF_PHASE_START] = 60000000000u;
    cr_assert_eq(sheaf__gate_meet(g, offers, secret), SHEAF_STATUS_SUCCESS, "%s",
                 sheaf_last_error());
    sheaf__gate_free(g);
    cr_expect_geq(sheaf__time_ns() - before, 1000000000u, "each may stay for a second");
    for (int i = 0; i < STRANGERS; i++)
        cr_expect(recv(strangers[i], &(char){0}, 1, MSG_DONTWAIT) == 0 || errno != EAGAIN,
                  "stranger %d is still connected", i);
    sheaf__frame_send(&one, SHEAF__TOLD, NULL, 0);
    cr_expect_eq(end_of(peer), 0);
    for (int i = 0; i < STRANGERS; i++) close(strangers[i]);
}

/* One that cannot be reached, one that does not answer (a listener whose queue is full lets a connection
 * hang, as a firewall does that drops packets), two that refuse; none of the next rank's offer. */
Test(gate, gives_addresses_up, .timeout = 30) {
    enum { FILL = 4 };
    struct sheaf__peer zero;
    uint8_t offers[2 * SHEAF__OFFER_BYTES] = {0}, own[SHEAF__OFFER_BYTES] = {0}, none[8] = {0};
    uint16_t port, refused;
    int fill[FILL], n = 0;
    const int full = listener(&port);
    struct sheaf__gate *g = gate_of(1, &zero);
    cr_expect_eq(sheaf__gate_open(g, own), SHEAF_STATUS_SUCCESS);
    cr_expect_arr_eq(own, none, sizeof none, "no rank connects to the last one");
    cr_assert_eq(listen(full, 0), 0);
    for (int i = 0; i < FILL; i++) fill[i] = sheaf__address_connect(0x7f000001, port);
    close(listener(&refused));
    put_address(offers, 0xffffffff, 1);
    put_address(offers + 8, 0x7f000001, port);
    for (int i = 2; i <= SHEAF__MAX_ADDRESSES; i++)
        put_address(offers + 8 * i, 0x7f000001, refused);
    cr_expect_eq(sheaf__gate_meet(g, offers, secret), SHEAF_STATUS_IO);
    const char *text = sheaf_last_error();
    cr_expect(strstr(text, "no control connection to rank 0 (255.255.255.255: ") &&
                  strstr(text, strerror(ETIMEDOUT)) && strstr(text, strerror(ECONNREFUSED)),
              "%s", text);
    for (const char *at = text; (at = strstr(at, ", 127.0.0.1: ")); at++) n++;
    cr_expect_eq(n, 3, "%s", text);
    sheaf__gate_free(g);
    for (int i = 0; i < FILL; i++) close(fill[i]);
    close(full);
}

Test(gate, hears_of_a_rank_without_addresses, .timeout = 30) {
    struct sheaf__peer zero;
    uint8_t offers[2 * SHEAF__OFFER_BYTES] = {0};
    struct sheaf__gate *g = gate_of(1, &zero);
    cr_expect_eq(sheaf__gate_meet(g, offers, secret), SHEAF_STATUS_IO);
    cr_expect(strstr(sheaf_last_error(), "rank 0 (it offers no address)"), "%s",
              sheaf_last_error());
    sheaf__gate_free(g);
}

Test(gate, ends_with_its_job, .timeout = 30) {
    struct sheaf__peer one;
    uint8_t offers[64] = {0};
    struct sheaf__gate *g = gate_of(0, &one);
    sheaf_world_abort("a rank is gone");
    cr_expect_eq(sheaf__gate_meet(g, offers, secret), SHEAF_STATUS_PEER);
    cr_expect(strstr(sheaf_last_error(), "a rank is gone"), "%s", sheaf_last_error());
    sheaf__gate_free(g);
}

/* A peer that never comes: a sixth of the start's limit, and the setting that lengthens it. */
Test(gate, waits_for_a_part_of_the_starts_limit, .timeout = 30) {
    struct sheaf__peer one;
    uint8_t own[SHEAF__OFFER_BYTES] = {0}, offers[64] = {0};
    struct sheaf__gate *g = gate_of(0, &one);
    cr_assert_eq(sheaf__gate_open(g, own), SHEAF_STATUS_SUCCESS, "%s", sheaf_last_error());
    sheaf__world()->limit_ns[SHEAF_PHASE_START] = 900000000u;
    cr_expect_eq(sheaf__gate_meet(g, offers, secret), SHEAF_STATUS_TIMEOUT);
    sheaf__gate_free(g);
    cr_expect(strstr(sheaf_last_error(), "waited 0.15 s for the control connection of rank 1") &&
                  strstr(sheaf_last_error(), "SHEAF_TIMEOUT_START_MS"),
              "%s", sheaf_last_error());
}

/* ---- which addresses ---- */

/* In place of the C library's: interfaces of a host, and its name. */
static const struct interface {
    const char *name, *address; /* NULL: it has none */
    unsigned flags;
} * interfaces;
static int n_interfaces;
static const char *name_of_host = "192.0.2.1"; /* an address, as no name service is asked for it */

int gethostname(char *name, size_t size) {
    snprintf(name, size, "%s", name_of_host);
    return 0;
}

static uint32_t address(const char *text) {
    struct in_addr in;
    cr_assert_eq(inet_pton(AF_INET, text, &in), 1, "%s", text);
    return ntohl(in.s_addr);
}

int getifaddrs(struct ifaddrs **out) {
    struct one {
        struct ifaddrs i;
        struct sockaddr_in in;
    } *all = calloc((size_t)n_interfaces, sizeof *all);
    for (int k = 0; k < n_interfaces; k++) {
        const struct interface *i = &interfaces[k];
        all[k].in.sin_family = strcmp(i->name, "link") ? AF_INET : AF_PACKET;
        if (i->address) all[k].in.sin_addr.s_addr = htonl(address(i->address));
        all[k].i = (struct ifaddrs){.ifa_next = k + 1 < n_interfaces ? &all[k + 1].i : NULL,
                                    .ifa_name = (char *)(uintptr_t)i->name,
                                    .ifa_flags = i->flags,
                                    .ifa_addr = i->address ? (struct sockaddr *)&all[k].in : NULL};
    }
    *out = &all->i;
    return 0;
}
void freeifaddrs(struct ifaddrs *list) { free(list); }

/* The addresses, with spaces between them; or the error. */
static const char *own_addresses(const struct interface *of, int n, bool one_host) {
    static char text[512];
    struct sheaf__address_list list;
    interfaces = of;
    n_interfaces = n;
    if (sheaf__address_own(one_host, &list)) return sheaf_last_error();
    text[0] = 0;
    for (int i = 0; i < list.n; i++) {
        char one[SHEAF__ADDRESS_TEXT];
        sheaf__address_text(list.address[i], one);
        snprintf(text + strlen(text), sizeof text - strlen(text), "%s%s", i ? " " : "", one);
    }
    return text;
}

Test(addresses, of_the_internet_are_public) {
    static const struct {
        const char *first, *last, *before, *behind;
    } networks[] = {
        {"10.0.0.0", "10.255.255.255", "9.255.255.255", "11.0.0.0"},
        {"172.16.0.0", "172.31.255.255", "172.15.255.255", "172.32.0.0"},
        {"192.168.0.0", "192.168.255.255", "192.167.255.255", "192.169.0.0"},
        {"127.0.0.0", "127.255.255.255", "126.255.255.255", "128.0.0.0"},
        {"169.254.0.0", "169.254.255.255", "169.253.255.255", "169.255.0.0"},
        {"100.64.0.0", "100.127.255.255", "100.63.255.255", "100.128.0.0"},
        {"192.0.2.0", "192.0.2.255", "192.0.1.255", "192.0.3.0"},
        {"198.51.100.0", "198.51.100.255", "198.51.99.255", "198.51.101.0"},
        {"203.0.113.0", "203.0.113.255", "203.0.112.255", "203.0.114.0"},
        {"198.18.0.0", "198.19.255.255", "198.17.255.255", "198.20.0.0"},
    };
    for (size_t i = 0; i < sizeof networks / sizeof *networks; i++) {
        cr_expect_not(sheaf__address_is_public(address(networks[i].first)), "%zu", i);
        cr_expect_not(sheaf__address_is_public(address(networks[i].last)), "%zu", i);
        cr_expect(sheaf__address_is_public(address(networks[i].before)), "%zu", i);
        cr_expect(sheaf__address_is_public(address(networks[i].behind)), "%zu", i);
    }
}

Test(addresses, are_those_of_the_launcher_or_of_the_setting) {
    static const struct interface host[] = {
        {"lo", "127.0.0.1", IFF_UP},       {"eth0", "10.0.0.5", IFF_UP},
        {"eth0:1", "10.0.0.5", IFF_UP},    {"eth1", "192.168.7.5", IFF_UP},
        {"wan", "8.8.4.4", IFF_UP},        {"down", "10.9.9.9", 0},
        {"docker0", "172.17.0.1", IFF_UP}, {"tun0", NULL, IFF_UP},
        {"link", "10.0.0.9", IFF_UP}};
    static const struct {
        const char *setting, *uri, *name, *want;
    } cases[] = {
        {NULL, "1.0;tcp://10.0.0.5,192.168.7.5:3333", "x", "10.0.0.5 192.168.7.5"},
        {NULL, "1.0;tcp://192.168.7.5:3333;ud://7.1", "x", "192.168.7.5"},
        {NULL, "1.0;tcp://192.168.7.5", "x", "192.168.7.5"}, /* without a port */
        {NULL, "1.0;tcp://192.168.7.5;ud://10.0.0.5", "x", "192.168.7.5"},
        {NULL, "1.0;tcp://10.9.9.9:3333", "x", "has no private address"}, /* it is down */
        {NULL, "1.0;tcp://8.8.4.4:3333", "x", "has no private address"},
        {NULL, "1.0;tcp://127.0.0.1:3333", "x", "has no private address"},
        {NULL, NULL, "192.168.7.5", "192.168.7.5"},
        {NULL, "1.0;tcp://10.0.0.5:3333", "192.168.7.5", "10.0.0.5"},
        {NULL, NULL, "", "10.0.0.5 192.168.7.5 172.17.0.1"}, /* neither says anything */
        {NULL, NULL, "127.0.1.1", "10.0.0.5 192.168.7.5 172.17.0.1"},
        {"10.0.0.5", "1.0;tcp://192.168.7.5:1", "x", "10.0.0.5"},
        {"172.16.0.0/12", NULL, "x", "172.17.0.1"},
        {"8.8.4.4", NULL, "x", "8.8.4.4"}, /* public, but named */
        {"127.0.0.0/8", NULL, "x", "127.0.0.1"},
        {"10.0.0.0/1", NULL, "x", "127.0.0.1 10.0.0.5 8.8.4.4"},
        {"10.7.0.0/16", NULL, "x",
         "has no address in that network for control connections (it has lo 127.0.0.1, eth0 "
         "10.0.0.5, "},
        {"10.0.0.0/0", NULL, "x", "it takes an IPv4 address"},
        {"10.0.0.0/33", NULL, "x", "it takes an IPv4 address"},
        {"10.0.0.0/", NULL, "x", "it takes an IPv4 address"},
        {"10.0.0.0/8x", NULL, "x", "it takes an IPv4 address"},
        {"10.0.0/8", NULL, "x", "it takes an IPv4 address"},
        {"10.0.0.0/00000000000000000000016", NULL, "x", "it takes an IPv4 address"},
        {"eth0", NULL, "x", "it takes an IPv4 address"},
        {"10.0.0.0/8                                   ", NULL, "x", "it takes an IPv4 address"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        unsetenv("SHEAF_CONTROL_ADDRESS");
        unsetenv("OMPI_MCA_orte_local_daemon_uri");
        unsetenv("SLURMD_NODENAME");
        if (cases[i].setting) setenv("SHEAF_CONTROL_ADDRESS", cases[i].setting, 1);
        if (cases[i].uri) setenv("OMPI_MCA_orte_local_daemon_uri", cases[i].uri, 1);
        if (strcmp(cases[i].name, "x")) name_of_host = cases[i].name;
        const char *got = own_addresses(host, sizeof host / sizeof *host, false);
        if (strchr("0123456789", cases[i].want[0]))
            cr_expect_str_eq(got, cases[i].want, "case %zu: %s", i, got);
        else
            cr_expect(strstr(got, cases[i].want), "case %zu: %s", i, got);
    }
    unsetenv("SHEAF_CONTROL_ADDRESS");
    setenv("SLURMD_NODENAME", "10.0.0.5", 1);
    name_of_host = "192.168.7.5";
    cr_expect_str_eq(own_addresses(host, 7, false), "10.0.0.5");
    cr_expect_str_eq(own_addresses(host, 7, true), "127.0.0.1");
}

Test(addresses, are_four_at_most) {
    struct interface many[6];
    static const char *const texts[] = {"10.0.0.1", "10.0.0.2", "10.0.0.3",
                                        "10.0.0.4", "10.0.0.5", "10.0.0.6"};
    for (int i = 0; i < 6; i++) many[i] = (struct interface){"eth", texts[i], IFF_UP};
    setenv("SHEAF_CONTROL_ADDRESS", "10.0.0.0/24", 1);
    cr_expect_str_eq(own_addresses(many, 6, false), "10.0.0.1 10.0.0.2 10.0.0.3 10.0.0.4");
}

/* RFC 4231, test cases 1 and 2; FIPS 180-4's "abc". */
Test(hmac, is_as_in_the_standards) {
    static const char *const want[] = {
        "b0344c61d8db38535ca8afceaf0bf12b881dc200c9833da726e9376c2e32cff7",
        "5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843",
        "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"};
    uint8_t key[20], sum[3][SHEAF__SHA_BYTES];
    memset(key, 0x0b, sizeof key);
    sheaf__hmac(key, sizeof key, (const uint8_t *)"Hi There", 8, sum[0]);
    sheaf__hmac((const uint8_t *)"Jefe", 4, (const uint8_t *)"what do ya want for nothing?", 28,
                sum[1]);
    sheaf__sha256("abc", 3, sum[2]);
    for (int i = 0; i < 3; i++) {
        char text[2 * SHEAF__SHA_BYTES + 1];
        for (int k = 0; k < SHEAF__SHA_BYTES; k++) snprintf(text + 2 * k, 3, "%02x", sum[i][k]);
        cr_expect_str_eq(text, want[i]);
    }
}
