/* Copies and runs that wait for the run of another device, so that three groups of ranks or more
 * compute at the same time: while rank 0 computes a batch with its own group, the next groups are at
 * the batches before.
 *
 * A device has a queue of them, in the order of the program's calls. Rank 0 learns of a run's end only
 * when it fetches the results, and all ranks meet there; so it does that when the run is about to be
 * over: its own group has computed since that run began (a turn). If it is not over yet, that group is
 * the slowest, for which all would have to wait. */
#include <stdlib.h>
#include <string.h>

#include "ggml/calls.h"
#include "ggml/driver_impl.h"

enum { MOST = 16 }; /* in a queue */

struct later {
    struct later *next;
    bool is_run;
    /* a copy */
    size_t from, n;
    uint64_t run; /* of device `from`, that computes the bytes */
    const void *src;
    void *to;
    bool is_here; /* the bytes are in `bytes`: what comes next may write over src */
    char *bytes;
    /* a run */
    uint64_t program;
    struct gg_places places;
};

static struct queue {
    struct later *first, *last;
    _Atomic size_t n; /* read outside of calls, too */
    bool is_busy;     /* its first is under way */
} queues[GG_MAX_GROUPS];

static enum sheaf_status wait_for(size_t device);

bool gg_has_later(size_t device) { return queues[device].n > 0; }

/* ---- the queue ---- */

static void put(size_t device, struct later *x) {
    struct queue *q = &queues[device];
    *(q->first ? &q->last->next : &q->first) = x;
    q->last = x;
    q->n++;
}

static void free_later(struct later *x) {
    gg_places_free(&x->places);
    free(x->bytes);
    free(x);
}

static void remove_first(size_t device) {
    struct queue *q = &queues[device];
    struct later *x = q->first;
    q->first = x->next;
    q->n--;
    free_later(x);
}

void gg_later_forget(void) {
    for (size_t i = 0; i < GG_MAX_GROUPS; i++)
        while (gg_has_later(i)) remove_first(i);
}

bool gg_later_copy(size_t device, void *to, size_t from, const void *src, size_t n) {
    const struct gg_pending *left = &gg_driver.pending[from];
    if (queues[device].n >= MOST) /* the wait may be one for these bytes */
        gg_failure_note(wait_for(device));
    if (left->fetched == left->asked) return false;
    struct later *x = calloc(1, sizeof *x);
    if (x) x->bytes = malloc(n);
    if (!x || !x->bytes) {
        free(x);
        return false;
    }
    x->from = from;
    x->n = n;
    x->run = left->asked;
    x->src = src;
    x->to = to;
    put(device, x);
    return true;
}

enum sheaf_status gg_later_run(const struct gg_sent_program *p, const struct gg_recent *r) {
    struct later *x = calloc(1, sizeof *x);
    if (!x) return gg_no_memory("graph");
    const enum sheaf_status st = gg_places_of(r, &x->places);
    if (st) {
        free_later(x);
        return st;
    }
    x->is_run = true;
    x->program = p->number;
    gg_driver.pending[p->device].asked++;
    put(p->device, x);
    return st;
}

void gg_later_fetched(size_t device) {
    for (size_t i = 0; i < GG_MAX_GROUPS; i++) {
        for (struct later *x = queues[i].first; x; x = x->next) {
            if (x->is_run || x->from != device || x->run != gg_driver.pending[device].run) continue;
            memcpy(x->bytes, x->src, x->n);
            x->is_here = true;
        }
    }
}

/* ---- its first ---- */

static enum sheaf_status copy(const struct later *x) {
    const enum sheaf_status st = gg_later_wait(x->from, x->run);
    if (x->is_here) memcpy(x->to, x->bytes, x->n);
    return st;
}

/* A run that could not begin has come to its end: what waits for it gets NaN. */
static enum sheaf_status begin(size_t device, struct later *x) {
    struct gg_pending *left = &gg_driver.pending[device];
    struct gg_sent_program *p = gg_program_of(x->program);
    const enum sheaf_status st =
        p ? gg_run(p, &x->places)
          : sheaf_set_error(SHEAF_STATUS_INVALID, "a program that waited is gone");
    if (st) {
        gg_spoil_results(gg_driver.engine, x->program, x->places.results);
        left->run++;
        gg_later_fetched(device);
        left->fetched = left->run;
    }
    return st;
}

static enum sheaf_status do_first(size_t device) {
    struct later *x = queues[device].first;
    queues[device].is_busy = true;
    const enum sheaf_status st = x->is_run ? begin(device, x) : copy(x);
    queues[device].is_busy = false;
    remove_first(device);
    return st;
}

/* ---- when ---- */

/* Is the wait for this run short? */
static bool is_about_over(size_t device, uint64_t run) {
    const struct gg_pending *left = &gg_driver.pending[device];
    return left->fetched >= run || (left->run >= run && left->turn < gg_driver.turn);
}

static bool is_ripe(size_t device) {
    const struct later *x = queues[device].first;
    if (!x || queues[device].is_busy) return false;
    return x->is_run ? is_about_over(device, gg_driver.pending[device].run)
                     : is_about_over(x->from, x->run);
}

/* The last device first: its run makes room for the one before. */
static void go_on(void) {
    for (size_t i = GG_MAX_GROUPS; i-- > 0;)
        while (!sheaf_world_failed() && is_ripe(i)) gg_failure_note(do_first(i));
}

void gg_later_turn(void) {
    gg_driver.turn++;
    go_on();
}

enum sheaf_status gg_later_wait(size_t device, uint64_t run) {
    const struct gg_pending *left = &gg_driver.pending[device];
    enum sheaf_status first = SHEAF_STATUS_SUCCESS;
    while (left->fetched < run) {
        const enum sheaf_status st = left->run < run ? do_first(device) : gg_fetch(device);
        if (!first) first = st;
        if (st && sheaf_world_failed()) return st;
        go_on(); /* what waited for this run */
    }
    return first;
}

/* All that was asked of the device; copies have no number. */
static enum sheaf_status wait_for(size_t device) {
    enum sheaf_status first = gg_later_wait(device, gg_driver.pending[device].asked);
    while (gg_has_later(device) && !sheaf_world_failed()) {
        const enum sheaf_status st = do_first(device);
        if (!first) first = st;
    }
    return first;
}

enum sheaf_status gg_later_wait_device(size_t device, uint64_t run) {
    return run < gg_driver.pending[device].asked ? gg_later_wait(device, run) : wait_for(device);
}

/* Does a run that waited begin now? */
static bool is_inside(void) {
    for (size_t i = 0; i < GG_MAX_GROUPS; i++)
        if (queues[i].is_busy) return true;
    return false;
}

/* A run that waited comes before what is in the queues behind it: only what has begun is in its way. */
enum sheaf_status gg_later_wait_all(void) {
    const bool inside = is_inside();
    for (size_t i = 0; i < gg_engine_n_devices(gg_driver.engine); i++) {
        const enum sheaf_status st = inside ? gg_fetch(i) : wait_for(i);
        if (st && sheaf_world_failed()) return st;
        gg_failure_note(st); /* of that run, not of the command behind it */
    }
    return SHEAF_STATUS_SUCCESS;
}
