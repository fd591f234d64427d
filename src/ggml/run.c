/* A graph is computed: its program is found or made, its changed inputs go out with one command,
 * and its results come back into the shadow. */
#include <stdlib.h>
#include <string.h>

#include "base/array.h"
#include "base/hash.h"
#include "base/settings.h"
#include "ggml/driver_impl.h"

static enum sheaf_status no_memory(void) {
    return sheaf_set_error(SHEAF_STATUS_ALLOC_FAILED, "graph: out of memory");
}

/* ---- programs that the ranks have ---- */

static void free_known(struct gg_known *k) {
    if (!k) return;
    for (size_t i = 0; k->inputs && i < k->n_inputs; i++) free(k->inputs[i].sent);
    free(k->inputs);
    free(k->uses);
    free(k->offsets);
    free(k->message.data);
    free(k);
}

static void forget_recent(uint64_t program) {
    for (size_t i = 0; i < GG_MAX_RECENT; i++)
        if (gg_driver.recent[i].program == program) gg_driver.recent[i].uid = 0;
}

static void remove_known(size_t at) {
    forget_recent(gg_driver.known[at]->number);
    free_known(gg_driver.known[at]);
    gg_driver.known[at] = gg_driver.known[--gg_driver.n_known];
}

/* Programs that use this object, or, if it is GG_NO_OBJECT, any of the group. */
static void forget_users(uint64_t group, int64_t object) {
    for (size_t i = gg_driver.n_known; i-- > 0;) {
        const struct gg_known *k = gg_driver.known[i];
        bool uses = false;
        for (size_t j = 0; j < k->n_uses; j++)
            uses = uses || (object == GG_NO_OBJECT ? k->uses[j].group == group
                                                   : k->uses[j].object == object);
        if (uses) remove_known(i);
    }
}

void gg_forget_group(uint64_t group) { forget_users(group, GG_NO_OBJECT); }

void gg_forget_object(int64_t object) { forget_users(0, object); }

void gg_forget_all(void) {
    while (gg_driver.n_known) remove_known(gg_driver.n_known - 1);
    for (size_t i = 0; i < GG_MAX_RECENT; i++) {
        free(gg_driver.recent[i].inputs);
        free(gg_driver.recent[i].results);
        free(gg_driver.recent[i].offsets);
    }
    for (size_t i = 0; i < GG_MAX_GROUPS; i++) free(gg_driver.pending[i].addresses);
    free(gg_driver.run.data);
    free(gg_driver.addresses);
}

static uint64_t hash_of(const struct gg_bytes *a, const struct gg_bytes *b) {
    uint64_t h = sheaf__mix(a->n, b->n), word;
    for (size_t i = 0; i + 8 <= a->n; i += 8)
        h = (memcpy(&word, a->data + i, 8), sheaf__mix(h, word));
    for (size_t i = 0; i + 4 <= b->n; i += 4) {
        uint32_t half;
        memcpy(&half, b->data + i, 4);
        h = sheaf__mix(h, half);
    }
    return h;
}

static struct gg_known *find_known(size_t device, uint64_t hash) {
    const struct gg_encoder *e = &gg_driver.encoder;
    for (size_t i = 0; i < gg_driver.n_known; i++) {
        struct gg_known *k = gg_driver.known[i];
        if (k->device != device || k->hash != hash || k->message.n != e->outputs.n + e->graph.n)
            continue;
        if ((!e->outputs.n || !memcmp(k->message.data, e->outputs.data, e->outputs.n)) &&
            !memcmp(k->message.data + e->outputs.n, e->graph.data, e->graph.n))
            return k;
    }
    return NULL;
}

static enum sheaf_status drop_oldest(void) {
    size_t oldest = 0;
    for (size_t i = 1; i < gg_driver.n_known; i++)
        if (gg_driver.known[i]->last_use < gg_driver.known[oldest]->last_use) oldest = i;
    const uint64_t number = gg_driver.known[oldest]->number;
    remove_known(oldest);
    return gg_command(GG_COMMAND_DROP, number, 0, 0, 0, NULL, 0, NULL);
}

static size_t input_bytes(const struct gg_known *k) {
    size_t n = 0;
    for (size_t i = 0; i < k->n_inputs; i++) n += k->inputs[i].bytes;
    return n;
}

/* Room for one more: programs keep their inputs on all ranks. */
static enum sheaf_status make_room(const struct gg_known *added) {
    size_t bytes = input_bytes(added);
    for (size_t i = 0; i < gg_driver.n_known; i++) bytes += input_bytes(gg_driver.known[i]);
    enum sheaf_status st = SHEAF_STATUS_SUCCESS;
    while (!st && gg_driver.n_known &&
           (gg_driver.n_known == GG_MAX_PROGRAMS || bytes > GG_MAX_INPUT_BYTES)) {
        for (size_t i = 0; i < gg_driver.n_known; i++) bytes -= input_bytes(gg_driver.known[i]);
        st = drop_oldest();
        for (size_t i = 0; i < gg_driver.n_known; i++) bytes += input_bytes(gg_driver.known[i]);
    }
    return st;
}

static bool is_result(const struct gg_encoder *e, const struct gg_tensor *t) {
    for (size_t i = 0; i < e->n_results; i++)
        if (e->results[i] == t) return true;
    return false;
}

static enum sheaf_status describe(struct gg_known *k) {
    const struct gg_encoder *e = &gg_driver.encoder;
    k->n_records = e->n_made;
    k->n_results = e->n_results;
    k->inputs = calloc(e->n_inputs + 1, sizeof *k->inputs);
    k->uses = calloc(e->n_made + 1, sizeof *k->uses);
    k->n_offsets = e->n_offsets;
    k->offsets = calloc(e->n_offsets + 1, sizeof *k->offsets);
    if (!k->inputs || !k->uses || !k->offsets) return no_memory();
    for (size_t i = 0; i < e->n_made; i++) {
        const struct gg_made *made = &e->made[i];
        const enum sheaf_type type = (enum sheaf_type)made->record.type;
        if (made->record.kind == GG_LEAF_OBJECT) {
            k->uses[k->n_uses++] = (struct gg_use){gg_plugin_memory_of(made->tensor)->group,
                                                   (int64_t)made->record.object};
        } else if (made->record.kind == GG_LEAF_INPUT) {
            struct gg_input *in = &k->inputs[k->n_inputs++];
            const uint64_t *ne = made->record.ne;
            in->bytes = sheaf_row_size(type, (int64_t)ne[0]) * ne[1] * ne[2] * ne[3];
            in->sent = malloc(in->bytes ? in->bytes : 1);
            in->written = is_result(e, made->tensor);
            if (!in->sent) return no_memory();
        }
    }
    gg_put(&k->message, e->outputs.data, e->outputs.n);
    gg_put(&k->message, e->graph.data, e->graph.n);
    return k->message.failed ? no_memory() : SHEAF_STATUS_SUCCESS;
}

static enum sheaf_status make_known(size_t device, const struct gg_cgraph *g, uint64_t hash,
                                    struct gg_known **out) {
    struct gg_known *k = calloc(1, sizeof *k);
    enum sheaf_status st = k ? describe(k) : no_memory();
    if (!st) st = make_room(k);
    if (!st) st = gg_bind_regions(g);
    if (!st) {
        k->hash = hash;
        k->device = device;
        k->number = gg_driver.next_program++;
        st = gg_command(GG_COMMAND_GRAPH, k->number, k->n_records, k->n_results, device,
                        k->message.data, k->message.n, NULL);
    }
    if (st) {
        free_known(k);
        return st;
    }
    gg_driver.known[gg_driver.n_known++] = *out = k;
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

static struct gg_known *known_of(uint64_t number) {
    for (size_t i = 0; i < gg_driver.n_known; i++)
        if (gg_driver.known[i]->number == number) return gg_driver.known[i];
    return NULL;
}

/* The lists of the last encoded graph. */
static enum sheaf_status copy_lists(struct gg_recent *r) {
    const struct gg_encoder *e = &gg_driver.encoder;
    if (!sheaf__grow(&r->inputs, &r->cap_inputs, e->n_inputs, sizeof *r->inputs) ||
        !sheaf__grow(&r->results, &r->cap_results, e->n_results, sizeof *r->results) ||
        !sheaf__grow(&r->offsets, &r->cap_offsets, e->n_offsets, sizeof *r->offsets))
        return no_memory();
    r->n_inputs = e->n_inputs;
    r->n_results = e->n_results;
    for (size_t i = 0; i < e->n_inputs; i++) r->inputs[i] = e->inputs[i];
    for (size_t i = 0; i < e->n_results; i++) r->results[i] = e->results[i];
    for (size_t i = 0; i < e->n_offsets; i++) r->offsets[i] = e->offsets[i];
    return SHEAF_STATUS_SUCCESS;
}

static enum sheaf_status remember(const struct gg_cgraph *g, const struct gg_known *k,
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
    r->program = k->number;
    *out = r;
    return SHEAF_STATUS_SUCCESS;
}

/* Memory that was another tensor's before. Two shapes of one place in a graph would go on for ever.
 */
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

/* ---- a run ---- */

/* Adds what differs from the ranks' copy, from the first to the last byte. */
static void put_change(struct gg_bytes *b, uint64_t number, struct gg_input *in,
                       const uint8_t *now) {
    static const uint8_t zeros[8];
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
    gg_put(b, zeros, (8 - n % 8) % 8);
}

static uint64_t put_changes(struct gg_bytes *b, struct gg_known *k, const struct gg_recent *r) {
    uint64_t n = 0;
    for (size_t i = 0; i < r->n_inputs; i++) {
        struct gg_input *in = &k->inputs[i];
        const uint8_t *now = r->inputs[i]->data;
        const size_t before = b->n;
        if (in->bytes && (!in->is_sent || in->written || memcmp(now, in->sent, in->bytes)))
            put_change(b, i, in, now);
        in->is_sent = true;
        n += b->n != before;
    }
    return n;
}

/* Offsets that are others than those of the program's last run; how many. */
static uint64_t put_offsets(struct gg_bytes *b, struct gg_known *k, const struct gg_recent *r) {
    static const uint8_t zeros[8];
    uint64_t n = 0, stay = 0;
    for (size_t i = 0; i < k->n_offsets; i++) {
        if (k->offsets[i] == r->offsets[i] && !k->offsets_unsure) {
            stay++;
            continue;
        }
        k->offsets[i] = r->offsets[i];
        gg_put_short(b, stay);
        gg_put_short(b, r->offsets[i]);
        stay = 0;
        n++;
    }
    k->offsets_unsure = false;
    gg_put(b, zeros, (8 - b->n % 8) % 8);
    return n;
}

/* The run goes on without rank 0; its results come with a FETCH. */
static enum sheaf_status leave_running(const struct gg_known *k, size_t n_results, uint64_t moves) {
    struct gg_pending *p = &gg_driver.pending[k->device];
    if (!sheaf__grow(&p->addresses, &p->cap, n_results + 1, sizeof *p->addresses))
        return no_memory();
    if (n_results) memcpy(p->addresses, gg_driver.addresses, n_results * sizeof *p->addresses);
    p->n = n_results;
    p->program = k->number;
    return gg_command(GG_COMMAND_RUN, k->number, false, moves, 0, gg_driver.run.data,
                      gg_driver.run.n, NULL);
}

enum sheaf_status gg_fetch(size_t device) {
    struct gg_pending *p = &gg_driver.pending[device];
    if (p->fetched == p->run) return SHEAF_STATUS_SUCCESS;
    const enum sheaf_status st =
        gg_command(GG_COMMAND_FETCH, p->program, 0, 0, 0, NULL, 0, p->addresses);
    p->fetched = p->run; /* other threads take it for the end of the copies */
    return st;
}

static enum sheaf_status send_run(const struct gg_known *k, const struct gg_recent *r,
                                  uint64_t moves) {
    const struct gg_bytes *b = &gg_driver.run;
    for (size_t i = 0; i < r->n_results; i++) gg_driver.addresses[i] = r->results[i]->data;
    if (!gg_engine_has_rank(gg_driver.engine, k->device, 0)) {
        const enum sheaf_status st = leave_running(k, r->n_results, moves);
        if (!st) gg_driver.pending[k->device].run++;
        return st;
    }
    return gg_command(GG_COMMAND_RUN, k->number, true, moves, 0, b->data, b->n,
                      gg_driver.addresses);
}

/* After a failure the ranks may not have what was recorded as sent. */
static enum sheaf_status run(struct gg_known *k, const struct gg_recent *r) {
    struct gg_bytes *b = &gg_driver.run;
    enum sheaf_status st = SHEAF_STATUS_SUCCESS;
    b->n = 0;
    b->failed = false;
    gg_put_u64(b, 0);
    const uint64_t n = put_changes(b, k, r), moves = put_offsets(b, k, r);
    if (b->failed || !sheaf__grow(&gg_driver.addresses, &gg_driver.cap_addresses, r->n_results + 1,
                                  sizeof *gg_driver.addresses))
        st = no_memory();
    if (!st) {
        memcpy(b->data, &n, sizeof n);
        st = send_run(k, r, moves);
    }
    for (size_t i = 0; st && i < k->n_inputs; i++) k->inputs[i].is_sent = false;
    if (st) k->offsets_unsure = true;
    return st;
}

enum sheaf_status gg_run_graph(size_t device, const struct gg_cgraph *g) {
    if (g->n_nodes == 0) return SHEAF_STATUS_SUCCESS;
    struct gg_recent *r = find_recent(g);
    struct gg_known *k = r ? known_of(r->program) : NULL;
    const enum sheaf_status before = gg_fetch(device); /* its inputs may be in the results */
    if (before) return before;
    if (!k) {
        struct gg_encoder *e = &gg_driver.encoder;
        e->shares_norms =
            gg_engine_n_members_of(gg_driver.engine, device) > 1 && !sheaf__whole_sums();
        enum sheaf_status st = encode(g);
        if (st || e->n_made == 0) return st;
        const uint64_t hash = hash_of(&e->outputs, &e->graph);
        k = find_known(device, hash);
        if (!k) st = make_known(device, g, hash, &k);
        if (!st) st = remember(g, k, &r);
        if (st) return st;
    }
    k->last_use = r->last_use = ++gg_driver.clock;
    return run(k, r);
}
