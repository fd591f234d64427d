/* The parts of the watch, lowest first: each uses only those above it here. */
#ifndef SHEAF_COMM_WATCH_IMPL_H
#define SHEAF_COMM_WATCH_IMPL_H

#include <poll.h>
#include <stdbool.h>
#include <stdint.h>

#include "sheaf/status.h"

/* ---- address.c: IPv4 addresses of this host that control connections may use, and sockets on
 * them. Addresses are in host byte order. ---- */
enum { SHEAF__MAX_ADDRESSES = 4, SHEAF__ADDRESS_TEXT = 16 };

struct sheaf__address_list {
    uint32_t address[SHEAF__MAX_ADDRESSES];
    int n;
};

/* one_host: the loopback address. Otherwise those of SHEAF_CONTROL_ADDRESS (an address or a network
 * a.b.c.d/n), or those by which the launcher reaches this host, if they are not public ones. */
enum sheaf_status sheaf__address_own(bool one_host, struct sheaf__address_list *list);
void sheaf__address_text(uint32_t address, char text[SHEAF__ADDRESS_TEXT]);
/* True for addresses that the internet routes. */
bool sheaf__address_is_public(uint32_t address);
/* Both return -1 and errno, or a socket that does not block; a connection may still be under
 * way. */
int sheaf__address_listen(uint32_t address, uint16_t *port);
int sheaf__address_connect(uint32_t address, uint16_t port);

/* ---- pmix.c: what a failing job asks of its launcher, through the PMIx library that Open MPI has
 * loaded. It works while the main thread is inside MPI_Init. Every call returns in a few seconds,
 * whatever the launcher does; a launcher without PMIx knows nothing. ---- */
enum sheaf__claim {
    SHEAF__CLAIM_UNKNOWN, /* the launcher cannot tell */
    SHEAF__CLAIM_WON,     /* this rank speaks for the job */
    SHEAF__CLAIM_LOST,    /* another rank has spoken */
};
/* Is there a library to ask for claims? */
bool sheaf__launcher_publishes(void);
/* Ends the job, also if the launcher was told not to react to deaths. */
void sheaf__launcher_abort(int status);
/* Once a process. */
enum sheaf__claim sheaf__launcher_claim(void);
/* After MPI_Init, once a process: on_loss runs on a thread of PMIx when the launcher is lost, before Open MPI ends
 * the process for that. */
void sheaf__launcher_expect_loss(void (*on_loss)(void));

/* ---- launcher.c: what the launcher's variables say ---- */
/* Removes what Open MPI would leave in /dev/shm. */
void sheaf__launcher_remove_names(void);

/* ---- speaker.c: one message of a job whose ranks have not met yet ---- */
/* Is this the process that prints the failure? Takes a quarter of a second, and up to ten if the
 * launcher does not answer; the first answer holds. */
bool sheaf__speaker_claim(void);
/* Before the process ends: others may still look for the claim. */
void sheaf__speaker_hold(void);

/* ---- dumps.c: the flight records of lost ranks and of this one, as files. A directory that does
 * not answer holds up a thread of its own, never the guard. ---- */
struct sheaf__dump {
    int rank, place; /* in its share group */
};
/* Writes them in the background. */
void sheaf__dumps_write(const struct sheaf__dump *list, int n);
/* Waits until they are written, or for a limit (2 s). */
void sheaf__dumps_await(void);

/* ---- report.c: a failure that the watch noticed or heard of, and which rank prints it. `met`: the
 * ranks share a board. ---- */
enum sheaf__teller { SHEAF__NO_TELLER, SHEAF__TELLER_MAIN, SHEAF__TELLER_WATCH };
/* True if this thread of this process, and no other, is to print the failure: the first to ask. The
 * main thread may ask again. `last`: the rank that was to print it has had its time. */
bool sheaf__report_claim(enum sheaf__teller teller, bool met, bool last);
/* The watch prints the failure if that is its task. Returns true when it has printed it. */
bool sheaf__report_tell(bool met, bool last);
/* The record is complete: its state is marked before its text is written. */
bool sheaf__report_has_text(void);
/* The writer of the record was lost before its text was complete: says so in its place. */
void sheaf__notice_torn(void);
/* Takes the record; the watch prints it then. */
void sheaf__notice(const char *fmt, ...) __attribute__((format(printf, 1, 2)));
/* The same about a rank that is gone: "has died (...)" and such. False: an end is expected, so it
 * is no failure. */
bool sheaf__notice_lost(int rank, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
bool sheaf__noticed(void);
/* What other hosts say. */
void sheaf__hear_failure(int origin, const char *text);
void sheaf__hear_told(int rank);     /* it has printed the failure */
void sheaf__hear_permit(bool speak); /* the answer of rank 0's host: may this host? */
/* On rank 0's host: may `origin`'s speak? The first to ask may. */
bool sheaf__permits(int origin);

/* ---- crash.c: signals of a crash, where MPI handles them. ---- */
/* "SIGABRT": a thread of this process is in the handler; NULL: none. */
const char *sheaf__crash_name(void);
/* The message has been printed, by this rank or another one: the process may end. */
void sheaf__crash_told(void);
/* MPI's handlers again. */
void sheaf__crash_leave(void);
/* What wakes the guard; called by a signal handler. */
void sheaf__crash_wakes(void (*fn)(void));

/* ---- links.c: control connections between ranks that share no memory: signs of life, what a
 * rank does, alarms, farewells. TCP, served by the guard's thread, without MPI.
 *
 * Two ranks of different share groups are connected if one of them is the first of its group, so
 * every group hears of every rank, also when its first rank or the other group's has died. Sockets
 * listen only while connections are made, on private addresses that the launcher uses, and take
 * only a peer that proves that it knows the job's secret (gate.h). ---- */
/* Collective; main thread, before the guard serves the connections. */
enum sheaf_status sheaf__links_start(void);
void sheaf__links_stop(void);
/* The rest is the guard's. */
int sheaf__links_fds(struct pollfd *fds); /* fds NULL: how many */
void sheaf__links_serve(const struct pollfd *fds, uint64_t now);
void sheaf__links_beat(void);
void sheaf__links_alarm(int origin, const char *text);
/* The same again to rank 0's host, for its answer. False if none of its ranks can be reached. */
bool sheaf__links_ask(int origin, const char *text);
void sheaf__links_told(void); /* this host has printed the failure */
/* Of a rank that leaves a failed job: from here on it is silent, and neither stopped nor lost. On
 * the main thread, behind the guard. */
void sheaf__links_leave(int origin, const char *text);
/* Says farewell to each peer once; true when the hosts of all that are still connected have
 * acknowledged it. A connection that is closed before is reset by the peer's next sign of life, and
 * bytes without an acknowledgement are lost: the peer takes the end for a death. */
bool sheaf__links_farewell(void);
bool sheaf__links_all_left(void); /* any thread */
/* Silent for `limit`: ends the job. `forgive`: this process itself was away; start again. */
void sheaf__links_check(uint64_t now, uint64_t limit, bool forgive);
/* Has a rank been lost (its connection broke, or it is silent for longer than `limit`)? */
bool sheaf__links_lost(uint64_t now, uint64_t limit);

#endif
