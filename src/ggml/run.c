/* A graph is run: its changed inputs and offsets go out with one command, and its results come back
 * into the shadow. */
#include <stdlib.h>
#include <string.h>

#include "base/array.h"
#include "ggml/driver_impl.h"

/* Adds what differs from the ranks' copy, from the first to the last byte. */
static void put_change(struct gg_bytes *b, uint64_t number, struct gg_input *in,
                       const uint8_t *now) {
    size_t first = 0, last = in->bytes;
    if (in->is_sent && !in->written) {
        while (first + 8 <= last && !memcmp(now + first, in->sent + first, 8)) first += 8;
        while (last >= first + 8 && !memcmp(now + last - 8, in->sent + last - 8, 8)) last -= 8;
    }
    const size_t n = last - first;
    if (!n) return;
    memcpy(in->sent + first, now + first, n);
    gg_put_u64(b, number);
    gg_put_u64(b, first);
    gg_put_u64(b, n);
    gg_put(b, now + first, n);
    gg_put_zeros(b);
}

static uint64_t put_changes(struct gg_bytes *b, struct gg_sent_program *p,
                            const struct gg_places *at) {
    uint64_t n = 0;
    for (size_t i = 0; i < at->n_inputs; i++) {
        struct gg_input *in = &p->inputs[i];
        const uint8_t *now = at->inputs[i];
        const size_t before = b->n;
        if (in->bytes && (!in->is_sent || in->written || memcmp(now, in->sent, in->bytes)))
            put_change(b, i, in, now);
        in->is_sent = true;
        n += b->n != before;
    }
    return n;
}

/* Offsets that are others than those of the program's last run; how many. */
static uint64_t put_offsets(struct gg_bytes *b, struct gg_sent_program *p,
                            const struct gg_places *at) {
    uint64_t n = 0, stay = 0;
    for (size_t i = 0; i < p->n_offsets; i++) {
        if (p->offsets[i] == at->offsets[i]) {
            stay++;
            continue;
        }
        p->offsets[i] = at->offsets[i];
        gg_put_short(b, stay);
        gg_put_short(b, at->offsets[i]);
        stay = 0;
        n++;
    }
    gg_put_zeros(b);
    return n;
}

/* Notes that the run goes on without rank 0; its results come with a FETCH. */
static enum sheaf_status note_pending(const struct gg_sent_program *p, const struct gg_places *at) {
    struct gg_pending *left = &gg_driver.pending[p->device];
    if (!sheaf__grow(&left->addresses, &left->cap, at->n_results + 1, sizeof *left->addresses))
        return gg_no_memory("graph");
    if (at->n_results)
        memcpy(left->addresses, at->results, at->n_results * sizeof *left->addresses);
    left->n = at->n_results;
    left->program = p->number;
    left->turn = gg_driver.turn;
    return SHEAF_STATUS_SUCCESS;
}

enum sheaf_status gg_fetch(size_t device) {
    struct gg_pending *left = &gg_driver.pending[device];
    struct gg_command c = {.kind = GG_COMMAND_FETCH, .program = left->program};
    if (left->fetched == left->run) return SHEAF_STATUS_SUCCESS;
    const enum sheaf_status st = gg_send(&c, NULL, left->addresses);
    gg_later_fetched(device);
    left->fetched = left->run; /* other threads take it for the end of the copies */
    return st;
}

static enum sheaf_status send_run(const struct gg_sent_program *p, const struct gg_places *at,
                                  uint64_t n_moves) {
    const bool inside = gg_engine_has_rank(gg_driver.engine, p->device, 0);
    struct gg_command c = {.kind = GG_COMMAND_RUN,
                           .program = p->number,
                           .with_results = inside,
                           .n_moves = n_moves,
                           .size = gg_driver.run.n};
    if (inside) return gg_send(&c, gg_driver.run.data, at->results);
    enum sheaf_status st = note_pending(p, at);
    if (!st) st = gg_send(&c, gg_driver.run.data, NULL);
    if (!st) gg_driver.pending[p->device].run++;
    return st;
}

/* After a failure the ranks may not have what was recorded as sent. */
static void forget_sent(struct gg_sent_program *p) {
    for (size_t i = 0; i < p->n_inputs; i++) p->inputs[i].is_sent = false;
    memset(p->offsets, 0xff, p->n_offsets * sizeof *p->offsets); /* no view begins there */
}

static enum sheaf_status run(struct gg_sent_program *p, const struct gg_places *at) {
    struct gg_bytes *b = &gg_driver.run;
    b->n = 0;
    b->failed = false;
    gg_put_u64(b, 0); /* the number of changes, below */
    const uint64_t n_changes = put_changes(b, p, at), n_moves = put_offsets(b, p, at);
    enum sheaf_status st = b->failed ? gg_no_memory("graph") : SHEAF_STATUS_SUCCESS;
    if (!st) {
        memcpy(b->data, &n_changes, sizeof n_changes);
        st = send_run(p, at, n_moves);
    }
    if (st) forget_sent(p);
    return st;
}

enum sheaf_status gg_run(struct gg_sent_program *p, const struct gg_places *at) {
    const enum sheaf_status st = gg_fetch(p->device);
    return st ? st : run(p, at);
}

void gg_places_free(struct gg_places *at) {
    free(at->inputs);
    free(at->results);
    free(at->offsets);
    *at = (struct gg_places){0};
}

enum sheaf_status gg_places_of(const struct gg_recent *r, struct gg_places *out) {
    if (!sheaf__grow(&out->inputs, &out->cap_inputs, r->n_inputs, sizeof *out->inputs) ||
        !sheaf__grow(&out->results, &out->cap_results, r->n_results + 1, sizeof *out->results) ||
        !sheaf__grow(&out->offsets, &out->cap_offsets, r->n_offsets, sizeof *out->offsets))
        return gg_no_memory("graph");
    out->n_inputs = r->n_inputs;
    out->n_results = r->n_results;
    out->n_offsets = r->n_offsets;
    for (size_t i = 0; i < r->n_inputs; i++) out->inputs[i] = r->inputs[i]->data;
    for (size_t i = 0; i < r->n_results; i++) out->results[i] = r->results[i]->data;
    for (size_t i = 0; i < r->n_offsets; i++) out->offsets[i] = r->offsets[i];
    return SHEAF_STATUS_SUCCESS;
}

static enum sheaf_status run_now(struct gg_sent_program *p, const struct gg_recent *r) {
    enum sheaf_status st = gg_places_of(r, &gg_driver.places);
    if (!st) st = run(p, &gg_driver.places);
    if (gg_engine_has_rank(gg_driver.engine, p->device, 0))
        gg_later_turn();
    else
        gg_driver.pending[p->device].asked = gg_driver.pending[p->device].run;
    return st;
}

enum sheaf_status gg_run_graph(size_t device, const struct gg_cgraph *g) {
    struct gg_sent_program *p = NULL;
    struct gg_recent *r = NULL;
    if (g->n_nodes == 0) return SHEAF_STATUS_SUCCESS;
    enum sheaf_status st = SHEAF_STATUS_SUCCESS;
    if (!gg_has_later(device)) /* inputs may be in the results */
        st = gg_later_wait(device, gg_driver.pending[device].asked);
    if (!st) st = gg_find_program(device, g, &p, &r);
    if (st || !p) return st;
    return gg_has_later(device) ? gg_later_run(p, r) : run_now(p, r);
}
