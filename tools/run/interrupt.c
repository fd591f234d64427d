/* Signals that end a run: its report is still written. */
#include <signal.h>
#include <time.h>

#include "sheaf/world.h"

#include "run.h"

static volatile sig_atomic_t interrupted;

/* The first signal asks for an end between two batches; one a second later or more ends the process
 * at once. A sooner signal is the same wish: timeout(1) and launchers signal the process and its
 * group, so that it arrives twice. */
static void on_signal(int sig) {
    static time_t first;
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    if (sig == SIGTERM) sheaf_world_expect_end(TOOL_INTERRUPTED); /* the launcher ends the job */
    if (!interrupted) {
        first = now.tv_sec;
        interrupted = 1;
    } else if (now.tv_sec - first > 1) {
        signal(sig, SIG_DFL);
        raise(sig); /* delivered on return, when it is no longer blocked */
    }
}

/* Without SA_RESTART: a read of the standard input ends with the signal. */
void run_catch_signals(void) {
    struct sigaction a = {.sa_handler = on_signal};
    sigemptyset(&a.sa_mask);
    sigaddset(&a.sa_mask, SIGINT);
    sigaddset(&a.sa_mask, SIGTERM);
    sigaction(SIGINT, &a, NULL);
    sigaction(SIGTERM, &a, NULL);
}

bool run_interrupted(void) { return interrupted != 0; }

/* The launcher signals all ranks, but not at once. */
enum sheaf_status run_check_interrupt(void *unused) {
    unsigned char stop = (unsigned char)interrupted;
    enum sheaf_status status = SHEAF_STATUS_SUCCESS;
    (void)unused;
    if (sheaf_world_size() > 1)
        status = sheaf_world_broadcast(&stop, sizeof stop, 0, "interrupt flag");
    if (!status && stop) status = sheaf_set_error(SHEAF_STATUS_ABORTED, "interrupted");
    return status;
}
