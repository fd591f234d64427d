/* What rank 0 remembers of the job's programs: those that all ranks have, found again by their
 * bytes, and the graphs that ggml computed last, found again by uid. */
#include <stdlib.h>
#include <string.h>

#include "base/array.h"
#include "base/hash.h"
#include "base/settings.h"
#include "ggml/driver_impl.h"

/* ---- programs that the ranks have ---- */

static void free_program(struct gg_sent_program *p) {
    if (!p) return;
    for (size_t i = 0; p->inputs && i < p->n_inputs; i++) free(p->inputs[i].sent);
    free(p->inputs);
    free(p->uses);
    free(p->offsets);
    free(p->message.data);
    free(p);
}

static void forget_recent(uint64_t program) {
    for (size_t i = 0; i < GG_MAX_RECENT; i++)
        if (gg_driver.recent[i].program == program) gg_driver.recent[i].uid = 0;
}

static void remove_program(size_t at) {
    forget_recent(gg_driver.programs[at]->number);
    free_program(gg_driver.programs[at]);
    gg_driver.programs[at] = gg_driver.programs[--gg_driver.n_programs];
}

/* Programs that use this object, or, if it is GG_NO_OBJECT, any object of the buffer. */
static void forget_users(uint64_t buffer, int64_t object) {
    for (size_t i = gg_driver.n_programs; i-- > 0;) {
        const struct gg_sent_program *p = gg_driver.programs[i];
        bool uses = false;
        for (size_t j = 0; j < p->n_uses; j++)
            uses = uses || (object == GG_NO_OBJECT ? p->uses[j].buffer == buffer
                                                   : p->uses[j].object == object);
        if (uses) remove_program(i);
    }
}

void gg_forget_buffer(uint64_t buffer) { forget_users(buffer, GG_NO_OBJECT); }

void gg_forget_object(int64_t object) { forget_users(0, object); }

void gg_forget_all(void) {
    while (gg_driver.n_programs) remove_program(gg_driver.n_programs - 1);
    for (size_t i = 0; i < GG_MAX_RECENT; i++) {
        free(gg_driver.recent[i].inputs);
        free(gg_driver.recent[i].results);
        free(gg_driver.recent[i].offsets);
    }
    gg_later_forget();
    for (size_t i = 0; i < GG_MAX_GROUPS; i++) free(gg_driver.pending[i].addresses);
    free(gg_driver.run.data);
    gg_places_free(&gg_driver.places);
}

/* Outputs are numbers of 8 bytes, and the graph is words of 4 (wire.h). */
static uint64_t hash_of(const struct gg_bytes *outputs, const struct gg_bytes *graph) {
    uint64_t h = sheaf__mix(outputs->n, graph->n);
    for (size_t i = 0; i + 8 <= outputs->n; i += 8) {
        uint64_t number;
        memcpy(&number, outputs->data + i, sizeof number);
        h = sheaf__mix(h, number);
    }
    for (size_t i = 0; i + 4 <= graph->n; i += 4) {
        uint32_t word;
        memcpy(&word, graph->data + i, sizeof word);
        h = sheaf__mix(h, word);
    }
    return h;
}

static struct gg_sent_program *find_program(size_t device, uint64_t hash) {
    const struct gg_encoder *e = &gg_driver.encoder;
    for (size_t i = 0; i < gg_driver.n_programs; i++) {
        struct gg_sent_program *p = gg_driver.programs[i];
        if (p->device != device || p->hash != hash || p->message.n != e->outputs.n + e->graph.n)
            continue;
        if ((!e->outputs.n || !memcmp(p->message.data, e->outputs.data, e->outputs.n)) &&
            !memcmp(p->message.data + e->outputs.n, e->graph.data, e->graph.n))
            return p;
    }
    return NULL;
}

static enum sheaf_status drop_oldest(void) {
    size_t oldest = 0;
    for (size_t i = 1; i < gg_driver.n_programs; i++)
        if (gg_driver.programs[i]->last_use < gg_driver.programs[oldest]->last_use) oldest = i;
    const uint64_t number = gg_driver.programs[oldest]->number;
    remove_program(oldest);
    return gg_send(&(struct gg_command){.kind = GG_COMMAND_DROP, .program = number}, NULL, NULL);
}

static size_t input_bytes(const struct gg_sent_program *p) {
    size_t n = 0;
    for (size_t i = 0; i < p->n_inputs; i++) n += p->inputs[i].bytes;
    return n;
}

/* Programs keep their inputs on all ranks. */
static bool has_room(const struct gg_sent_program *added) {
    size_t bytes = input_bytes(added);
    for (size_t i = 0; i < gg_driver.n_programs; i++) bytes += input_bytes(gg_driver.programs[i]);
    return gg_driver.n_programs < GG_MAX_PROGRAMS && bytes <= GG_MAX_INPUT_BYTES;
}

static enum sheaf_status make_room(const struct gg_sent_program *added) {
    enum sheaf_status st = SHEAF_STATUS_SUCCESS;
    while (!st && gg_driver.n_programs && !has_room(added)) st = drop_oldest();
    return st;
}

static bool is_result(const struct gg_encoder *e, const struct gg_tensor *t) {
    for (size_t i = 0; i < e->n_results; i++)
        if (e->results[i] == t) return true;
    return false;
}

static enum sheaf_status describe(struct gg_sent_program *p) {
    const struct gg_encoder *e = &gg_driver.encoder;
    p->n_records = e->n_made;
    p->n_results = e->n_results;
    p->inputs = calloc(e->n_inputs + 1, sizeof *p->inputs);
    p->uses = calloc(e->n_made + 1, sizeof *p->uses);
    p->n_offsets = e->n_offsets;
    p->offsets = calloc(e->n_offsets + 1, sizeof *p->offsets);
    if (!p->inputs || !p->uses || !p->offsets) return gg_no_memory("graph");
    for (size_t i = 0; i < e->n_made; i++) {
        const struct gg_made *made = &e->made[i];
        const enum sheaf_type type = (enum sheaf_type)made->record.type;
        if (made->record.kind == GG_LEAF_OBJECT) {
            p->uses[p->n_uses++] = (struct gg_use){gg_plugin_memory_of(made->tensor)->number,
                                                   (int64_t)made->record.object};
        } else if (made->record.kind == GG_LEAF_INPUT) {
            struct gg_input *in = &p->inputs[p->n_inputs++];
            const uint64_t *ne = made->record.ne;
            in->bytes = sheaf_row_size(type, (int64_t)ne[0]) * ne[1] * ne[2] * ne[3];
            in->sent = malloc(in->bytes ? in->bytes : 1);
            in->written = is_result(e, made->tensor);
            if (!in->sent) return gg_no_memory("graph");
        }
    }
    gg_put(&p->message, e->outputs.data, e->outputs.n);
    gg_put(&p->message, e->graph.data, e->graph.n);
    return p->message.failed ? gg_no_memory("graph") : SHEAF_STATUS_SUCCESS;
}

static enum sheaf_status make_program(size_t device, const struct gg_cgraph *g, uint64_t hash,
                                      struct gg_sent_program **out) {
    struct gg_sent_program *p = calloc(1, sizeof *p);
    enum sheaf_status st = p ? describe(p) : gg_no_memory("graph");
    if (!st) st = gg_later_wait_all(); /* programs may have to go */
    if (!st) st = make_room(p);
    if (!st) st = gg_bind_regions(g);
    if (!st) {
        p->hash = hash;
        p->device = device;
        p->number = gg_driver.next_program++;
        struct gg_command c = {.kind = GG_COMMAND_GRAPH,
                               .device = (uint32_t)device,
                               .program = p->number,
                               .n_records = p->n_records,
                               .n_outputs = p->n_results,
                               .size = p->message.n};
        st = gg_send(&c, p->message.data, NULL);
    }
    if (st) {
        free_program(p);
        return st;
    }
    gg_driver.programs[gg_driver.n_programs++] = *out = p;
    return st;
}

/* ---- graphs that ggml computes again ---- */

static struct gg_recent *find_recent(const struct gg_cgraph *g) {
    const uint64_t uid = gg_uid(gg_driver.host, g);
    for (size_t i = 0; i < GG_MAX_RECENT && uid; i++) {
        struct gg_recent *r = &gg_driver.recent[i];
        if (r->uid == uid && r->n_nodes == g->n_nodes && r->first == g->nodes[0] &&
            r->last == g->nodes[g->n_nodes - 1])
            return r;
    }
    return NULL;
}

struct gg_sent_program *gg_program_of(uint64_t number) {
    for (size_t i = 0; i < gg_driver.n_programs; i++)
        if (gg_driver.programs[i]->number == number) return gg_driver.programs[i];
    return NULL;
}

/* Copies the lists of the last encoded graph. */
static enum sheaf_status copy_lists(struct gg_recent *r) {
    const struct gg_encoder *e = &gg_driver.encoder;
    if (!sheaf__grow(&r->inputs, &r->cap_inputs, e->n_inputs, sizeof *r->inputs) ||
        !sheaf__grow(&r->results, &r->cap_results, e->n_results, sizeof *r->results) ||
        !sheaf__grow(&r->offsets, &r->cap_offsets, e->n_offsets, sizeof *r->offsets))
        return gg_no_memory("graph");
    r->n_inputs = e->n_inputs;
    r->n_results = e->n_results;
    r->n_offsets = e->n_offsets;
    for (size_t i = 0; i < e->n_inputs; i++) r->inputs[i] = e->inputs[i];
    for (size_t i = 0; i < e->n_results; i++) r->results[i] = e->results[i];
    for (size_t i = 0; i < e->n_offsets; i++) r->offsets[i] = e->offsets[i];
    return SHEAF_STATUS_SUCCESS;
}

static enum sheaf_status remember(const struct gg_cgraph *g, const struct gg_sent_program *p,
                                  struct gg_recent **out) {
    struct gg_recent *r = &gg_driver.recent[0];
    for (size_t i = 1; i < GG_MAX_RECENT; i++)
        if (gg_driver.recent[i].last_use < r->last_use) r = &gg_driver.recent[i];
    r->uid = 0;
    const enum sheaf_status st = copy_lists(r);
    if (st) return st;
    r->uid = gg_uid(gg_driver.host, g);
    r->first = g->nodes[0];
    r->last = g->nodes[g->n_nodes - 1];
    r->n_nodes = g->n_nodes;
    r->program = p->number;
    *out = r;
    return SHEAF_STATUS_SUCCESS;
}

/* A tensor that lies where another one did needs that one's object back first. Two shapes at one
 * place of one graph would do so for ever, so there is a limit. */
static enum sheaf_status encode(const struct gg_cgraph *g) {
    enum { MAX_STALE = 4096 };
    struct gg_encoder *e = &gg_driver.encoder;
    enum sheaf_status st = gg_encode(e, g);
    for (size_t i = 0; st && e->stale && i < MAX_STALE; i++) {
        st = gg_unbind_region(e->stale_in, e->stale);
        if (st) return st;
        st = gg_encode(e, g);
    }
    return st;
}

/* A program that the ranks have already, or a new one. *out NULL: there is nothing to compute. */
static enum sheaf_status program_of_graph(size_t device, const struct gg_cgraph *g,
                                          struct gg_sent_program **out) {
    struct gg_encoder *e = &gg_driver.encoder;
    e->shares_norms = gg_engine_n_members_of(gg_driver.engine, device) > 1 && !sheaf__whole_sums();
    const enum sheaf_status st = encode(g);
    if (st || e->n_made == 0) return st;
    const uint64_t hash = hash_of(&e->outputs, &e->graph);
    *out = find_program(device, hash);
    return *out ? st : make_program(device, g, hash, out);
}

enum sheaf_status gg_find_program(size_t device, const struct gg_cgraph *g,
                                  struct gg_sent_program **program, struct gg_recent **graph) {
    *graph = find_recent(g);
    *program = *graph ? gg_program_of((*graph)->program) : NULL;
    if (!*program) {
        enum sheaf_status st = program_of_graph(device, g, program);
        if (!st && *program) st = remember(g, *program, graph);
        if (st || !*program) return st;
    }
    (*program)->last_use = (*graph)->last_use = ++gg_driver.clock;
    return SHEAF_STATUS_SUCCESS;
}
