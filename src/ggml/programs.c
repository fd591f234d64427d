/* Programs: graphs that rank 0 has sent, built once on every rank from the same bytes, and run. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ggml/engine_impl.h"

void gg_program_free(struct gg_program *p) {
    if (!p) return;
    sheaf_gallocr_free(p->galloc);
    gg_graph_free(&p->g);
    free(p->inputs);
    free(p->outputs);
    free(p);
}

struct gg_program *gg_program_find(const struct gg_engine *e, uint64_t number, size_t *at) {
    for (size_t i = 0; i < e->n_programs; i++) {
        if (e->programs[i]->number != number) continue;
        if (at) *at = i;
        return e->programs[i];
    }
    sheaf_set_error(SHEAF_STATUS_INVALID, "there is no program %llu", (unsigned long long)number);
    return NULL;
}

static void remove_program(struct gg_engine *e, size_t at) {
    gg_program_free(e->programs[at]);
    e->programs[at] = e->programs[--e->n_programs];
}

enum sheaf_status gg_execute_drop(struct gg_engine *e, const struct gg_command *c) {
    size_t at = 0;
    if (!gg_program_find(e, c->program, &at)) return SHEAF_STATUS_INVALID;
    remove_program(e, at);
    return SHEAF_STATUS_SUCCESS;
}

void gg_programs_let_go(struct gg_engine *e) {
    for (size_t i = e->n_programs; i-- > 0;) {
        const struct gg_graph *g = &e->programs[i]->g;
        bool uses = false;
        for (uint32_t k = 0; k < g->n_objects; k++) uses = uses || e->objects[g->objects[k]].goes;
        if (uses) remove_program(e, i);
    }
}

/* ---- building ---- */

static enum sheaf_status find_inputs(struct gg_program *p) {
    p->inputs = calloc((size_t)p->g.n + 1, sizeof *p->inputs);
    if (!p->inputs) return gg_no_memory("program");
    for (uint32_t i = 0; i < p->g.n; i++)
        if (p->g.tensors[i]->flags & SHEAF_TENSOR_FLAG_INPUT)
            p->inputs[p->n_inputs++] = p->g.tensors[i];
    return SHEAF_STATUS_SUCCESS;
}

static enum sheaf_status find_outputs(struct gg_program *p, struct gg_reader *r, uint64_t n) {
    p->outputs = calloc((size_t)n + 1, sizeof *p->outputs);
    if (!p->outputs) return gg_no_memory("program");
    for (uint64_t i = 0; i < n; i++) {
        const uint64_t record = gg_take_u64(r);
        if (record >= p->g.n)
            return sheaf_set_error(SHEAF_STATUS_INVALID, "program: an output is no record");
        p->outputs[i] = p->g.tensors[record];
        sheaf_set_output(p->outputs[i]);
    }
    p->n_outputs = (uint32_t)n;
    return SHEAF_STATUS_SUCCESS;
}

static enum sheaf_status build(struct gg_engine *e, struct gg_program *p,
                               const struct gg_command *c, const uint8_t *payload) {
    const size_t head = (size_t)c->n_outputs * sizeof(uint64_t);
    if (c->n_outputs > c->size / sizeof(uint64_t) || c->n_records > UINT32_MAX)
        return sheaf_set_error(SHEAF_STATUS_INVALID, "program: the message is cut off");
    struct gg_reader r = {payload, payload + head, false};
    enum sheaf_status st = gg_graph_decode(payload + head, (size_t)c->size - head,
                                           (uint32_t)c->n_records, gg_object_tensor, e, &p->g);
    if (!st) st = find_inputs(p);
    if (!st) st = find_outputs(p, &r, c->n_outputs);
    p->device = c->device;
    p->galloc =
        sheaf_gallocr_new(sheaf_backend_get_default_buffer_type(e->devices[p->device].backend));
    if (!st && !p->galloc) st = gg_no_memory("program");
    return st ? st : sheaf_gallocr_alloc_graph(p->galloc, p->g.graph);
}

enum sheaf_status gg_execute_graph(struct gg_engine *e, const struct gg_command *c,
                                   const uint8_t *payload) {
    struct gg_program *p = calloc(1, sizeof *p);
    const bool ok =
        p && sheaf__grow(&e->programs, &e->cap_programs, e->n_programs + 1, sizeof *e->programs);
    enum sheaf_status st = ok ? build(e, p, c, payload) : gg_no_memory("program");
    st = sheaf_world_agree(st, "program");
    if (st) {
        gg_program_free(p);
        return st;
    }
    p->number = c->program;
    e->programs[e->n_programs++] = p;
    e->n_graphs++;
    return st;
}

/* ---- running ---- */

/* A change: input, offset, size, bytes padded to 8. */
static enum sheaf_status take_changes(struct gg_engine *e, struct gg_program *p,
                                      struct gg_reader *r) {
    enum sheaf_status st = SHEAF_STATUS_SUCCESS;
    for (uint64_t n = gg_take_u64(r); n && !st; n--) {
        const uint64_t input = gg_take_u64(r), offset = gg_take_u64(r), size = gg_take_u64(r);
        const uint8_t *data = gg_take(r, (size + 7) / 8 * 8);
        if (!data || input >= p->n_inputs)
            return sheaf_set_error(SHEAF_STATUS_INVALID, "run: the message is malformed");
        st = sheaf_backend_tensor_set(p->inputs[input], data, offset, size);
        e->n_inputs++;
        e->input_bytes += size;
    }
    return st;
}

/* To rank 0 only, which has addresses for them. */
static enum sheaf_status give_outputs(struct gg_program *p, void *const *result) {
    enum sheaf_status st = SHEAF_STATUS_SUCCESS;
    for (uint32_t i = 0; i < p->n_outputs && !st; i++)
        st = sheaf_backend_meta_tensor_get_at(p->outputs[i], 0, result ? result[i] : NULL, 0,
                                              sheaf_nbytes(p->outputs[i]));
    return st;
}

/* Rank 0 learns how the run went on each rank of the device, which all have computed to the end. */
static enum sheaf_status meet_after(struct gg_engine *e, const struct gg_program *p) {
    const struct gg_ranks *on = &e->devices[p->device];
    const struct gg_report *r = e->reports;
    enum sheaf_status st = sheaf_world_gather_v(&p->report, e->reports, on->report, 0, "run");
    if (st || sheaf_world_rank() != 0) return st;
    if (sheaf_world_size() == 1)
        return p->report.status
                   ? sheaf_set_error((enum sheaf_status)p->report.status, "%s", p->report.text)
                   : st;
    for (int rank = 0; rank < sheaf_world_size() && !st; rank++) {
        if (!on->part[rank]) continue;
        if (r->status)
            st = sheaf_set_error((enum sheaf_status)r->status, "rank %d (%s): %.*s", rank,
                                 sheaf_world_host_name(rank), (int)sizeof r->text - 1, r->text);
        r++;
    }
    return st;
}

/* A run can come to its end while another rank is lost. */
static enum sheaf_status job_failed(void) {
    return sheaf_set_error(SHEAF_STATUS_PEER, "the job has failed");
}

static enum sheaf_status finish(struct gg_engine *e, struct gg_program *p, void *result) {
    const enum sheaf_status st = give_outputs(p, result);
    if (sheaf_world_failed()) return st ? st : job_failed();
    return st && !p->report.status ? gg_or_end(st) : meet_after(e, p);
}

/* If the log has details: why members do not have what a node reads. */
static enum sheaf_status state_of(const struct sheaf_tensor *t, const void *user,
                                  struct sheaf_split_state **out) {
    (void)user;
    const struct sheaf_split_state *state = sheaf_backend_meta_get_state(t);
    *out = state ? sheaf_split_state_copy(state) : NULL;
    return *out ? SHEAF_STATUS_SUCCESS : gg_no_memory("program");
}

static bool tell(const struct sheaf_backend_meta_step *step, void *user) {
    struct gg_program *p = user;
    if (step->kind == SHEAF_SPLIT_STEP_COLLECTIVE && step->why)
        sheaf_log(SHEAF_LOG_DEBUG, "program %llu: %s", (unsigned long long)p->number, step->why);
    return true;
}

static void tell_gathers(const struct gg_engine *e, struct gg_program *p) {
    if (p->told) return;
    p->told = true; /* also where nothing is logged: later runs do not look at the setting */
    if (sheaf_world_rank() != 0 || !gg_logs_details()) return;
    if (sheaf_backend_meta_describe_plan(p->g.graph, e->devices[p->device].n_members, state_of,
                                         NULL, tell, p))
        sheaf_log(SHEAF_LOG_DEBUG, "program %llu: %s", (unsigned long long)p->number,
                  sheaf_last_error());
}

enum sheaf_status gg_execute_run(struct gg_engine *e, const struct gg_command *c,
                                 const uint8_t *payload, void *result) {
    struct gg_reader r = {payload, payload ? payload + c->size : NULL, false};
    struct gg_program *p = gg_program_find(e, c->program, NULL);
    if (!p) return SHEAF_STATUS_INVALID;
    enum sheaf_status st = payload ? gg_or_end(take_changes(e, p, &r)) : SHEAF_STATUS_SUCCESS;
    if (!st && c->n_moves) st = gg_or_end(gg_graph_move(&p->g, c->n_moves, &r));
    e->n_moves += c->n_moves;
    if (!st) st = sheaf_backend_graph_compute(e->devices[p->device].backend, p->g.graph);
    e->n_runs++;
    tell_gathers(e, p);
    if (sheaf_world_failed()) return st ? st : job_failed();
    p->report.status = st;
    snprintf(p->report.text, sizeof p->report.text, "%s", st ? sheaf_last_error() : "");
    return c->with_results ? finish(e, p, result) : SHEAF_STATUS_SUCCESS;
}

/* Limits hold inside the group that computes; the wait for it has none. Each of its ranks tells all
 * others that it is here. */
static enum sheaf_status wait_for_group(const struct gg_ranks *on) {
    uint64_t here = 0;
    enum sheaf_status st = SHEAF_STATUS_SUCCESS;
    for (int rank = 1; rank < sheaf_world_size() && !st; rank++)
        if (on->part[rank]) st = sheaf_world_call(&here, sizeof here, rank, "results");
    return st;
}

enum sheaf_status gg_execute_fetch(struct gg_engine *e, const struct gg_command *c, void *result) {
    struct gg_program *p = gg_program_find(e, c->program, NULL);
    const enum sheaf_status st = p ? wait_for_group(&e->devices[p->device]) : SHEAF_STATUS_INVALID;
    return st ? st : finish(e, p, result);
}

/* ggml does not ask for the status of a run that it has started, and would take old values of its
 * memory for results. */
void gg_spoil_results(const struct gg_engine *e, uint64_t program, void *const *result) {
    const struct gg_program *p = gg_program_find(e, program, NULL);
    for (uint32_t i = 0; p && i < p->n_outputs; i++) {
        const size_t n = sheaf_nbytes(p->outputs[i]) / sizeof(float);
        float *y = result[i];
        for (size_t k = 0; p->outputs[i]->type == SHEAF_TYPE_F32 && k < n; k++) y[k] = NAN;
    }
}

enum sheaf_status gg_execute_ask(struct gg_engine *e, const struct gg_command *c,
                                 const uint8_t *payload) {
    struct gg_graph g;
    enum sheaf_status st =
        gg_graph_decode(payload, (size_t)c->size, (uint32_t)c->n_records, gg_object_tensor, e, &g);
    for (uint32_t i = 0; i < g.n && !st; i++)
        if (g.tensors[i]->op != SHEAF_OP_NONE &&
            !sheaf_backend_dev_supports_op(e->devices[c->device].device, g.tensors[i]))
            st = sheaf_set_error(SHEAF_STATUS_UNSUPPORTED, "op");
    gg_graph_free(&g);
    return st;
}
