/* Control connections are made past addresses that do not answer, that refuse, and that another
 * process has; and only with ranks of the same job. Two processes of one host, without MPI. */
#include <arpa/inet.h>
#include <criterion/criterion.h>
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
