/* The driver thread, the lock of the calls, and the failure that the next graph reports. */
#include "ggml/calls.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/thread.h"
#include "sheaf/sheaf.h"

/* ---- calls ---- */

static struct {
    pthread_t thread;
    pthread_mutex_t callers; /* one call at a time */
    pthread_mutex_t lock;    /* of the fields below */
    pthread_cond_t changed;
    gg_task_fn task; /* NULL: idle */
    void *argument;
    enum sheaf_status status;
    bool quit;
    pid_t pid;
    atomic_bool open;
    atomic_bool failed; /* a failure is noted */
    char text[1024];
} shared = {.callers = PTHREAD_MUTEX_INITIALIZER,
            .lock = PTHREAD_MUTEX_INITIALIZER,
            .changed = PTHREAD_COND_INITIALIZER};
static _Thread_local bool is_inside; /* of a call */

static void *work(void *unused) {
    (void)unused;
    pthread_mutex_lock(&shared.lock);
    while (!shared.quit) {
        if (!shared.task) {
            pthread_cond_wait(&shared.changed, &shared.lock);
            continue;
        }
        pthread_mutex_unlock(&shared.lock);
        const enum sheaf_status st = shared.task(shared.argument);
        char text[sizeof shared.text];
        snprintf(text, sizeof text, "%s", st ? sheaf_last_error() : "");
        pthread_mutex_lock(&shared.lock);
        shared.status = st;
        memcpy(shared.text, text, sizeof text);
        shared.task = NULL;
        pthread_cond_broadcast(&shared.changed);
    }
    pthread_mutex_unlock(&shared.lock);
    return NULL;
}

/* Runs the task in the driver thread; its status, and its text in this thread. */
static enum sheaf_status hand_over(gg_task_fn task, void *argument) {
    pthread_mutex_lock(&shared.lock);
    shared.task = task;
    shared.argument = argument;
    pthread_cond_broadcast(&shared.changed);
    while (shared.task) pthread_cond_wait(&shared.changed, &shared.lock);
    const enum sheaf_status st = shared.status;
    if (st) sheaf_set_error(st, "%s", shared.text);
    pthread_mutex_unlock(&shared.lock);
    return st;
}

static bool is_child(void) { return shared.pid != getpid(); }

static enum sheaf_status not_there(void) {
    if (is_child())
        return sheaf_set_error(
            SHEAF_STATUS_INVALID,
            "this process is a forked child of process %ld, which SHEAF belongs "
            "to; compute there, or start the child as a program of its own "
            "(Python's multiprocessing: \"spawn\"), which computes without SHEAF",
            (long)shared.pid);
    return sheaf_set_error(SHEAF_STATUS_INVALID, "SHEAF is not there any more: the job has ended");
}

/* With the lock of the callers, which it gives back. On this thread: to wake another one takes 50 to
 * 200 us in a virtual machine, and to keep it awake takes a core. On the driver thread if MPI serves
 * no other. */
static enum sheaf_status call(gg_task_fn task, void *argument) {
    const enum sheaf_status st = !shared.open              ? not_there()
                                 : sheaf_world_move_here() ? hand_over(task, argument)
                                                           : task(argument);
    pthread_mutex_unlock(&shared.callers);
    return st;
}

/* A child of a fork has no driver thread, and the job is not its own. */
enum sheaf_status gg_call(gg_task_fn task, void *argument) {
    if (is_child()) return not_there();
    is_inside = true;
    pthread_mutex_lock(&shared.callers);
    const enum sheaf_status st = call(task, argument);
    is_inside = false;
    return st;
}

bool gg_call_if_idle(gg_task_fn task, void *argument) {
    if (is_child() || is_inside) return false;
    is_inside = true;
    const bool is_idle = !pthread_mutex_trylock(&shared.callers);
    const bool done = is_idle && !call(task, argument);
    is_inside = false;
    return done;
}

/* ---- start and end ---- */

enum sheaf_status gg_calls_start(void) {
    if (sheaf__thread_start(&shared.thread, work, NULL))
        return sheaf_set_error(SHEAF_STATUS_FAILED, "cannot start a thread");
    shared.pid = getpid();
    return SHEAF_STATUS_SUCCESS;
}

enum sheaf_status gg_calls_open(gg_task_fn first) {
    const enum sheaf_status st = hand_over(first, NULL);
    shared.open = !st;
    return st;
}

bool gg_calls_are_open(void) { return shared.open && !is_child(); }

/* Where this does nothing inside of a call, the other ranks see this one go. */
void gg_calls_close(gg_task_fn last) {
    if (is_inside || is_child()) return;
    pthread_mutex_lock(&shared.callers);
    if (shared.open) {
        shared.open = false;
        hand_over(last, NULL);
        pthread_mutex_lock(&shared.lock);
        shared.quit = true;
        pthread_cond_broadcast(&shared.changed);
        pthread_mutex_unlock(&shared.lock);
        pthread_join(shared.thread, NULL);
    }
    pthread_mutex_unlock(&shared.callers);
}

/* ---- failures ---- */

void gg_failure_log(void) {
    if (sheaf_world_failed() && !sheaf_world_reports_error()) return;
    sheaf_log(SHEAF_LOG_ERROR, "%s", sheaf_last_error());
}

void gg_failure_note(enum sheaf_status st) {
    if (st && !atomic_exchange(&shared.failed, true)) gg_failure_log();
}

void gg_failure_set(void) { atomic_store(&shared.failed, true); }

enum sheaf_status gg_failure_take(void) {
    if (!atomic_load(&shared.failed)) return SHEAF_STATUS_SUCCESS;
    const bool over = sheaf_world_failed();
    if (!over) atomic_store(&shared.failed, false);
    return sheaf_set_error(SHEAF_STATUS_FAILED, "%s",
                           over ? "the job has failed" : "an earlier call failed");
}
