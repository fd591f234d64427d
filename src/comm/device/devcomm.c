/* Which module serves a group, and the deadlines of what it does.
 *
 * All ranks vote before any of them enters the module's constructor: one that cannot (no library,
 * two members on one GPU) would leave the others inside it. A constructor that fails on one rank is
 * undone on all. The sums of a module have the order of the group, so that its bits are those of
 * the path through host memory. */
#include "comm/device/devcomm.h"
#include "base/settings.h"

#include <stdio.h>
#include <stdlib.h>

#include "backend/registry.h"
#include "base/thread.h"
#include "comm/diag/recorder.h"
#include "comm/transport/call.h"
#include "comm/world/same_setting.h"

enum { BALLOT_BYTES = sizeof(struct sheaf__devcomm_ballot), SPINS = 20000, ROUNDS = 2 };
static const char WHAT[] = "collectives on the devices";

struct sheaf__devcomm {
    const struct sheaf__devcomm_i *i;
    struct sheaf_comm *comm;
    void *made;
    struct sheaf__devcomm_group group;
    sheaf_backend_t *backends;
    struct last { /* [n_local] for messages */
        struct sheaf_comm_what what;
        enum sheaf_comm_kind kind;
        size_t bytes;
        bool open; /* submitted since the last wait */
    } * last;
};

/* ---- the vote ---- */

bool sheaf__devcomm_decide(const struct sheaf__devcomm_ballot *b, int n,
                           const char *(*name)(const void *user, int member), const void *user,
                           char *text, size_t size) {
    for (int i = 0; i < n; i++) {
        if (b[i].can) continue;
        snprintf(text, size, "member %d (%s): %s", i, name(user, i),
                 b[i].why[0] ? b[i].why : "it has no other module");
        return false;
    }
    for (int i = 1; i < n; i++) {
        if (!strcmp(b[i].module, b[0].module)) continue;
        snprintf(text, size, "member %d (%s) has %s, member 0 (%s) %s", i, name(user, i),
                 b[i].module, name(user, 0), b[0].module);
        return false;
    }
    int places = SHEAF__DEVCOMM_ONE; /* one rank's libraries may allow less than another's */
    for (int i = 0; i < n; i++) places = b[i].places < places ? b[i].places : places;
    for (int i = 0; i < n && places != SHEAF__DEVCOMM_ANY; i++) {
        for (int j = 0; j < i; j++) {
            const bool same = !memcmp(b[i].id, b[j].id, sizeof b[i].id);
            if (same == (places == SHEAF__DEVCOMM_ONE)) continue;
            snprintf(text, size, "members %d (%s) and %d (%s) are %s, which %s refuses", j,
                     name(user, j), i, name(user, i), same ? "one device" : "two devices",
                     b[0].module);
            return false;
        }
    }
    snprintf(text, size, "%s", n ? b[0].module : "nothing");
    return n > 0;
}

/* ---- modules ---- */

static const struct sheaf__devcomm_i *interface_of(sheaf_backend_reg_t reg) {
    const void *p = sheaf_backend_reg_get_proc_address(reg, SHEAF__DEVCOMM_PROC);
    const struct sheaf__devcomm_i *i = p;
    return i && i->version == SHEAF__DEVCOMM_VERSION ? i : NULL;
}

/* Module number `round` (from 0) of those that take the device, of one name or, if it is "", of
 * any; NULL, and a reason in b->why ("" if rounds before have said it all). */
static const struct sheaf__devcomm_i *vote_for(sheaf_backend_dev_t dev, const char *only, int round,
                                               struct sheaf__devcomm_ballot *b) {
    const bool first = !round;
    bool asked = false;
    if (first) snprintf(b->why, sizeof b->why, "no module for collectives on devices is loaded");
    for (size_t r = 0; r < sheaf_backend_reg_count(); r++) {
        const struct sheaf__devcomm_i *i = interface_of(sheaf_backend_reg_get(r));
        if (!i || (*only && strcmp(only, i->name) != 0)) continue;
        const enum sheaf_status st = i->identify(dev, b->id);
        if (st) { /* one that knows the device says more than one that does not */
            if (st != SHEAF_STATUS_UNSUPPORTED || (first && !asked))
                snprintf(b->why, sizeof b->why, "%s", sheaf_last_error());
            asked = true;
            continue;
        }
        if (round--) continue;
        b->can = true;
        b->places = (uint8_t)i->places();
        snprintf(b->module, sizeof b->module, "%s", i->name);
        return i;
    }
    return NULL;
}

/* ---- giving up ---- */

/* The deadline of the calling thread's wait, for give_up. */
static _Thread_local uint64_t deadline;
static _Thread_local struct sheaf__absence away;

static void set_deadline(uint64_t now, uint64_t limit) {
    deadline = now + limit;
    away = (struct sheaf__absence){.looked = now};
}

static bool give_up(void) {
    if (sheaf__has_failed(sheaf__world())) return true;
    const uint64_t now = sheaf__time_ns();
    return deadline && now > deadline + sheaf__away(&away, now);
}

/* ---- making ---- */

static const char *name_of(const void *members, int member) {
    return sheaf_backend_dev_name(((const sheaf_backend_dev_t *)members)[member]);
}

enum mode { MODE_OFF, MODE_AUTO, MODE_REQUIRE };

/* *only: the module that alone may serve, "" for any. */
static enum sheaf_status read_mode(enum mode *mode, const char **only) {
    static const char *const words[] = {"off", "auto", "require"};
    const char *text = sheaf__setting_text(SHEAF__SET_COMM_DEVICE);
    *mode = MODE_AUTO;
    *only = "";
    for (int i = 0; text && i < 3; i++) {
        if (strcmp(text, words[i]) != 0) continue;
        *mode = (enum mode)i;
        return SHEAF_STATUS_SUCCESS;
    }
    if (!text || !*text) return SHEAF_STATUS_SUCCESS;
    for (size_t r = 0; r < sheaf_backend_reg_count(); r++) {
        const struct sheaf__devcomm_i *i = interface_of(sheaf_backend_reg_get(r));
        if (!i || strcmp(text, i->name) != 0) continue;
        *mode = MODE_REQUIRE;
        *only = i->name;
        return SHEAF_STATUS_SUCCESS;
    }
    return sheaf_set_error(SHEAF_STATUS_INVALID,
                           "setting SHEAF_COMM_DEVICE is '%.40s'; it is off, auto, "
                           "require or the name of a module that is loaded",
                           text);
}

static enum sheaf_status same_setting(enum sheaf__setting setting, const char *unset) {
    const char *text = sheaf__setting_text(setting);
    return sheaf__same_setting(sheaf__setting_name(setting), text && *text ? text : unset, NULL);
}

/* Every member's ballot, in member order; *i: the module of this rank. */
static enum sheaf_status exchange_ballots(const struct sheaf_comm *comm,
                                          const sheaf_backend_dev_t *members, const char *only,
                                          int round, struct sheaf__devcomm_ballot *all,
                                          const struct sheaf__devcomm_i **i) {
    size_t *sizes = calloc((size_t)sheaf_world_size(), sizeof *sizes);
    struct sheaf__devcomm_ballot *own = calloc((size_t)comm->n_local + 1, BALLOT_BYTES);
    enum sheaf_status st = SHEAF_STATUS_SUCCESS;
    if (!sizes || !own) st = sheaf_set_error(SHEAF_STATUS_ALLOC_FAILED, "%s: out of memory", WHAT);
    if ((st = sheaf_world_agree(st, WHAT))) goto out;
    for (int m = 0; m < comm->n; m++) sizes[comm->rank_of[m]] += BALLOT_BYTES;
    for (int l = 0; l < comm->n_local; l++)
        *i = vote_for(members[comm->local[l]], only, round, &own[l]);
    st = sheaf_world_all_gather_v(own, all, sizes, WHAT);
out:
    free(sizes);
    free(own);
    return st;
}

static bool says_nothing(const struct sheaf__devcomm_ballot *b, int n) {
    for (int m = 0; m < n; m++)
        if (b[m].can || b[m].why[0]) return false;
    return true;
}

/* Round by round, each with another module of every member's list: all ranks see all ballots, and
 * so end at the same round. *chosen: `text` is the module's name, else why no round found one. */
static enum sheaf_status elect(const struct sheaf_comm *comm, const sheaf_backend_dev_t *members,
                               const char *only, const struct sheaf__devcomm_i **i, bool *chosen,
                               char *text, size_t size) {
    struct sheaf__devcomm_ballot *ballots = calloc((size_t)comm->n, BALLOT_BYTES);
    enum sheaf_status st = SHEAF_STATUS_SUCCESS;
    *chosen = false;
    *text = '\0';
    if (!ballots) st = sheaf_set_error(SHEAF_STATUS_ALLOC_FAILED, "%s: out of memory", WHAT);
    st = sheaf_world_agree(st, WHAT);
    for (int round = 0; round < ROUNDS && !st && !*chosen; round++) {
        char why[256];
        if ((st = exchange_ballots(comm, members, only, round, ballots, i))) break;
        *chosen = sheaf__devcomm_decide(ballots, comm->n, name_of, members, why, sizeof why);
        const size_t used = *chosen ? 0 : strlen(text);
        if (round && !*chosen && says_nothing(ballots, comm->n)) break;
        if (*chosen || !strstr(text, why))
            snprintf(text + used, size - used, "%s%s", used ? "; " : "", why);
    }
    free(ballots);
    return st;
}

static enum sheaf_status make(struct sheaf__devcomm *dc) {
    struct sheaf_comm *comm = dc->comm;
    enum sheaf_status st = SHEAF_STATUS_SUCCESS;
    const bool first = comm->rank_of[0] == sheaf_world_rank();
    if (first) st = dc->i->make_key(dc->group.key);
    if ((st = sheaf_world_agree(st, WHAT))) return st;
    st = sheaf_world_broadcast(dc->group.key, sizeof dc->group.key, comm->rank_of[0], WHAT);
    if (st) return st;
    /* ends before the deadline of the other ranks, which wait for this one below */
    set_deadline(sheaf__time_ns(), sheaf__world()->limit_ns[SHEAF_PHASE_COLLECTIVE] / 2);
    if (comm->n_local) st = dc->i->create(&dc->group, &dc->made);
    /* the cause first: ranks that waited for it in vain come second */
    const enum sheaf_status cause = st == SHEAF_STATUS_TIMEOUT ? SHEAF_STATUS_SUCCESS : st;
    const enum sheaf_status agreed = sheaf_world_agree(cause, WHAT);
    return agreed ? agreed : sheaf_world_agree(st, WHAT);
}

/* Why it is host memory, before any vote; "" if it need not be. Every rank sees the same. */
static void rule_out(const struct sheaf_comm *comm, const sheaf_backend_dev_t *members,
                     enum mode mode, char *why, size_t size) {
    *why = '\0';
    if (mode == MODE_OFF) snprintf(why, size, "SHEAF_COMM_DEVICE=off");
    for (int m = 0; m < comm->n && !*why; m++)
        if (sheaf_backend_dev_type(members[m]) == SHEAF_BACKEND_DEVICE_TYPE_CPU)
            snprintf(why, size, "member %d (%s) is a CPU", m, sheaf_backend_dev_name(members[m]));
}

/* Before a module is chosen. *out also after a failure; NULL possible. */
static enum sheaf_status new_devcomm(struct sheaf_comm *comm, const sheaf_backend_t *backends,
                                     struct sheaf__devcomm **out) {
    const size_t n_local = (size_t)comm->n_local;
    struct sheaf__devcomm *dc = *out = calloc(1, sizeof *dc);
    if (dc) {
        dc->comm = comm;
        dc->backends = calloc(n_local + 1, sizeof(sheaf_backend_t));
        dc->last = calloc(n_local + 1, sizeof *dc->last);
    }
    if (!dc || !dc->backends || !dc->last)
        return sheaf_set_error(SHEAF_STATUS_ALLOC_FAILED, "%s: out of memory", WHAT);
    if (n_local) memcpy((void *)dc->backends, backends, n_local * sizeof *backends);
    dc->group = (struct sheaf__devcomm_group){.n = comm->n,
                                              .order = comm->order,
                                              .host = comm->host_of,
                                              .n_local = comm->n_local,
                                              .local = comm->local,
                                              .backends = dc->backends,
                                              .give_up = give_up};
    return SHEAF_STATUS_SUCCESS;
}

/* By the module that the members elect. *out NULL after SUCCESS: there is none. text: the module's
 * name, or why there is none. */
static enum sheaf_status make_by_vote(struct sheaf_comm *comm, const sheaf_backend_dev_t *members,
                                      const sheaf_backend_t *backends, const char *only, char *text,
                                      size_t size, struct sheaf__devcomm **out) {
    struct sheaf__devcomm *dc = NULL;
    bool chosen = false;
    enum sheaf_status st = sheaf_world_agree(new_devcomm(comm, backends, &dc), WHAT);
    if (!st) st = elect(comm, members, only, &dc->i, &chosen, text, size);
    if (!st && chosen) {
        st = make(dc);
        if (!st) {
            *out = dc;
            return st;
        }
        if (!sheaf_world_failed()) {
            snprintf(text, size, "%s", sheaf_last_error()); /* the same on every rank */
            st = SHEAF_STATUS_SUCCESS;
        }
    }
    sheaf__devcomm_free(dc);
    return st;
}

enum sheaf_status sheaf__devcomm_new(struct sheaf_comm *comm, const sheaf_backend_dev_t *members,
                                     const sheaf_backend_t *backends, char *text, size_t size,
                                     struct sheaf__devcomm **out) {
    enum mode mode;
    const char *only;
    char why[512];
    *out = NULL;
    enum sheaf_status st = sheaf_world_agree(read_mode(&mode, &only), WHAT);
    if (!st) st = same_setting(SHEAF__SET_COMM_DEVICE, "auto");
    if (!st) st = same_setting(SHEAF__SET_NCCL_SUMS, "ordered");
    if (st) return st;
    rule_out(comm, members, mode, why, sizeof why);
    if (!*why) st = make_by_vote(comm, members, backends, only, why, sizeof why, out);
    if (st) return st;
    snprintf(text, size, "%s%s", *out ? "" : "host memory: ", why);
    return *out || mode != MODE_REQUIRE
               ? SHEAF_STATUS_SUCCESS
               : sheaf_set_error(SHEAF_STATUS_UNSUPPORTED, "SHEAF_COMM_DEVICE=%s: %s",
                                 *only ? only : "require", why);
}

void sheaf__devcomm_free(struct sheaf__devcomm *dc) {
    if (!dc) return;
    deadline = 0; /* that of the last wait is over; only the end of the job makes it give up */
    if (dc->made) dc->i->destroy(dc->made);
    free((void *)dc->backends);
    free(dc->last);
    free(dc);
}

/* ---- collectives ---- */

/* On the board while it is submitted, and while it is waited for. */
static void show(const struct sheaf__devcomm *dc, int local, uint64_t now) {
    const struct last *l = &dc->last[local];
    sheaf__enter_collective((uint32_t)l->kind, l->what.node, l->bytes,
                            dc->comm->members[local].sequence, l->what.tensor, now);
}

static void begin(struct sheaf__devcomm *dc, int local, enum sheaf_comm_kind kind, size_t bytes,
                  const struct sheaf_comm_what *what) {
    const uint64_t now = sheaf__time_ns();
    struct sheaf__member *self = &dc->comm->members[local];
    struct last *l = &dc->last[local];
    *l = (struct last){*what, kind, bytes, true};
    if (!l->what.tensor) l->what.tensor = "";
    set_deadline(now, dc->comm->timeout_ns);
    self->sequence++;
    show(dc, local, now);
    sheaf__record_begin(dc->comm->id, (uint32_t)kind, what->node, bytes, self->sequence,
                        l->what.tensor, now);
    atomic_fetch_add_explicit(&self->stats[kind].count, 1, memory_order_relaxed);
    atomic_fetch_add_explicit(&self->stats[kind].bytes, bytes, memory_order_relaxed);
}

/* A failed submission or wait ends the job, unless it has ended already. A wait behind a span has
 * no collective under way, and the name of the last one may be gone. */
static enum sheaf_status ended(struct sheaf__devcomm *dc, int local, enum sheaf_status st) {
    if (!st) {
        sheaf__leave();
        return st;
    }
    const struct last *l = &dc->last[local];
    char why[512];
    snprintf(why, sizeof why, "%s", sheaf_last_error());
    dc->i->abort(dc->made);
    if (sheaf__has_failed(sheaf__world())) return sheaf__report_failure();
    if (!l->open)
        return sheaf__fail(st, "%s: a wait for the device of member %d, %s: %s", dc->i->name,
                           dc->group.local[local], sheaf__rank_text(sheaf_world_rank()), why);
    return sheaf__fail(st, "%s: %s '%s' (node %u) of member %d, %s: %s", dc->i->name,
                       sheaf_comm_kind_name(l->kind), l->what.tensor, l->what.node,
                       dc->group.local[local], sheaf__rank_text(sheaf_world_rank()), why);
}

/* By the module's function of that kind. */
static enum sheaf_status submit(struct sheaf__devcomm *dc, int local,
                                const struct sheaf_comm_call *call) {
    switch (call->kind) {
    case SHEAF_COMM_ALL_REDUCE:
        return dc->i->all_reduce(dc->made, local, call->recv, call->n);
    case SHEAF_COMM_ALL_GATHER:
        return dc->i->all_gather(dc->made, local, call->send, call->recv, call->sizes);
    default:
        return dc->i->reduce_scatter(dc->made, local, call->send, call->recv, call->sizes);
    }
}

enum sheaf_status sheaf__devcomm_run(struct sheaf__devcomm *dc, int local,
                                     const struct sheaf_comm_call *call) {
    struct sheaf_comm_call room;
    size_t bytes;
    const enum sheaf_status st = sheaf__comm_check(dc->comm, &call, &room, &bytes);
    if (st) return st;
    if (!sheaf__comm_may_start(call->kind))
        return sheaf_set_error(SHEAF_STATUS_UNSUPPORTED, "%s: devices have no %s", WHAT,
                               sheaf_comm_kind_name(call->kind));
    if (call->kind == SHEAF_COMM_ALL_GATHER) bytes = call->sizes[dc->group.local[local]];
    begin(dc, local, call->kind, bytes, &call->what);
    return ended(dc, local, submit(dc, local, call));
}

enum sheaf_status sheaf__devcomm_wait(struct sheaf__devcomm *dc, int local) {
    const uint64_t now = sheaf__time_ns();
    const bool open = dc->last[local].open;
    set_deadline(now, dc->comm->timeout_ns);
    if (open) show(dc, local, now);
    for (unsigned spins = 0;; spins++) {
        bool done = false;
        enum sheaf_status st = dc->i->poll(dc->made, local, &done);
        if (!st && done) {
            if (!open) return st;
            dc->last[local].open = false;
            sheaf__record_end_group(dc->comm->id, sheaf__time_ns());
            return ended(dc, local, st);
        }
        if (!st && (spins < SPINS ? 0 : give_up()))
            st = sheaf_set_error(SHEAF_STATUS_TIMEOUT,
                                 "not done after %.1f s; a peer is gone, or slower than "
                                 "SHEAF_TIMEOUT_MS allows",
                                 (double)dc->comm->timeout_ns * 1e-9);
        if (st) return ended(dc, local, st);
        if (spins < SPINS) {
            sheaf__relax();
        } else {
            sheaf__nap(20000);
        }
    }
}
