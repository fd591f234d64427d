/* A rank that crashes under a signal handler of the MPI library.
 *
 * Open MPI handles SIGABRT, SIGSEGV and the like to print the stack, and loads a library for that.
 * glibc aborts a process whose heap is damaged while it holds the heap's lock: the handler then
 * waits for its own thread, and the rank neither ends nor counts as dead (D103). So that library is
 * loaded at the start, and a handler of ours comes first: the guard names the rank, MPI's handler
 * prints what it can, and an alarm ends the process if it does not end by itself.
 *
 * Invariant: the handlers call only what POSIX calls async-signal-safe, and take no lock. Signals
 * that MPI_Init has not given a handler are never touched: they are the host program's. */
#include <execinfo.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/clock.h"
#include "comm/watch/watch.h"
#include "comm/watch/watch_impl.h"

enum { ALARM_S = 3 };                       /* for all that a crash still does */
static const uint64_t TELL_NS = 1800000000; /* of it, for the guard to print the message */

static struct {
    int number;
    const char *name;
    struct sigaction before, theirs; /* MPI's; only if `ours` */
    bool ours;
} signals[] = {{.number = SIGABRT, .name = "SIGABRT"},
               {.number = SIGSEGV, .name = "SIGSEGV"},
               {.number = SIGBUS, .name = "SIGBUS"},
               {.number = SIGFPE, .name = "SIGFPE"},
               {.number = SIGILL, .name = "SIGILL"}};
enum { N_SIGNALS = sizeof signals / sizeof *signals };

static _Atomic int crash;    /* the first signal; 0: none */
static _Atomic long crashed; /* its thread */
static _Atomic bool told;
static void (*_Atomic wake)(void);

static int index_of(int number) {
    int i = 0;
    while (i < N_SIGNALS && signals[i].number != number) i++;
    return i;
}

const char *sheaf__crash_name(void) {
    const int i = index_of(atomic_load(&crash));
    return i < N_SIGNALS ? signals[i].name : NULL;
}

void sheaf__crash_told(void) { atomic_store(&told, true); }

void sheaf__crash_wakes(void (*fn)(void)) { atomic_store(&wake, fn); }

/* ---- in the handlers ---- */

static void set_default(int number) {
    const struct sigaction action = {.sa_handler = SIG_DFL};
    sigaction(number, &action, NULL);
}

static void unblock(int number) {
    sigset_t one;
    sigemptyset(&one);
    sigaddset(&one, number);
    pthread_sigmask(SIG_UNBLOCK, &one, NULL);
}

/* As the signal would have ended the process without any handler. */
static _Noreturn void end_now(void) {
    const int number = atomic_load(&crash);
    set_default(number);
    unblock(number);
    raise(number);
    _exit(128 + number); /* not reached: the default of all of them ends the process */
}

static void on_alarm(int number) {
    (void)number;
    end_now();
}

static void set_alarm(void) {
    const struct sigaction action = {.sa_handler = on_alarm};
    sigaction(SIGALRM, &action, NULL);
    unblock(SIGALRM);
    alarm(ALARM_S);
}

static void call_theirs(const struct sigaction *theirs, int number, siginfo_t *info,
                        void *context) {
    if (theirs->sa_flags & SA_SIGINFO)
        theirs->sa_sigaction(number, info, context);
    else
        theirs->sa_handler(number);
}

static void on_crash(int number, siginfo_t *info, void *context) {
    const long self = syscall(SYS_gettid);
    void (*const guard_wake)(void) = atomic_load(&wake);
    int none = 0;
    if (!atomic_compare_exchange_strong(&crash, &none, number)) {
        if (atomic_load(&crashed) == self) end_now(); /* MPI's handler has crashed */
        for (;;) pause();                             /* another thread's crash ends the process */
    }
    atomic_store(&crashed, self);
    set_alarm();
    set_default(number);
    if (guard_wake) guard_wake();
    const uint64_t end = sheaf__time_ns() + TELL_NS;
    while (!atomic_load(&told) && sheaf__time_ns() < end) sheaf__nap(1000000);
    call_theirs(&signals[index_of(number)].theirs, number, info, context);
    raise(number); /* on return, where the crash was */
}

/* ---- in and out of force ---- */

static bool is_handler(const struct sigaction *a) {
    return (a->sa_flags & SA_SIGINFO) || (a->sa_handler != SIG_DFL && a->sa_handler != SIG_IGN);
}

void sheaf__crash_before_mpi(void) {
    for (int i = 0; i < N_SIGNALS; i++) sigaction(signals[i].number, NULL, &signals[i].before);
}

void sheaf__crash_after_mpi(void) {
    bool any = false;
    for (int i = 0; i < N_SIGNALS; i++) {
        struct sigaction *theirs = &signals[i].theirs;
        if (sigaction(signals[i].number, NULL, theirs) || is_handler(&signals[i].before) ||
            !is_handler(theirs))
            continue;
        struct sigaction action = *theirs;
        action.sa_sigaction = on_crash;
        action.sa_flags = SA_SIGINFO | (theirs->sa_flags & SA_ONSTACK);
        signals[i].ours = !sigaction(signals[i].number, &action, NULL);
        any = any || signals[i].ours;
    }
    void *frame;
    if (any) (void)backtrace(&frame, 1); /* its first call loads libgcc_s */
}

void sheaf__crash_leave(void) {
    for (int i = 0; i < N_SIGNALS; i++) {
        struct sigaction now;
        if (!signals[i].ours) continue;
        signals[i].ours = false;
        if (!sigaction(signals[i].number, NULL, &now) && (now.sa_flags & SA_SIGINFO) &&
            now.sa_sigaction == on_crash)
            sigaction(signals[i].number, &signals[i].theirs, NULL);
    }
}
