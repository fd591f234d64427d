/* Signals that end a tool between two steps of its work, so that it can still report or remove what
 * it began. */
#include "common/interrupt.h"

#include <signal.h>
#include <time.h>

#include "sheaf/world.h"

#include "common/tool.h"

static volatile sig_atomic_t interrupted;

/* The first signal asks for an end between two steps; one a second later or more ends the process
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

static void catch (int sig, int flags) {
    struct sigaction a = {.sa_handler = on_signal, .sa_flags = flags};
    sigemptyset(&a.sa_mask);
    sigaddset(&a.sa_mask, SIGINT);
    sigaddset(&a.sa_mask, SIGTERM);
    sigaction(sig, &a, NULL);
}

void tool_catch_signals(bool ends_reads) {
    struct sigaction hangup;
    const int flags = ends_reads ? 0 : SA_RESTART;
    catch (SIGINT, flags);
    catch (SIGTERM, flags);
    if (!ends_reads && !sigaction(SIGHUP, NULL, &hangup) && hangup.sa_handler != SIG_IGN)
        catch (SIGHUP, flags);
}

bool tool_interrupted(void) { return interrupted != 0; }
