/* The settings of cuts, cuts at random and out of a file, and the report of what stayed whole. */
#include "ggml/cut.h"

#include <errno.h>
#include <fnmatch.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "base/hash.h"
#include "base/settings.h"
#include "base/shares.h"
#include "ggml/cut_axis.h"

/* ---- settings ---- */

/* How weights and caches are cut: SHEAF_GGML_SPLIT. */
struct way {
    enum { AUTO, MIRROR, RANDOM, BY_FILE, UNKNOWN } kind;
    const char *rest; /* RANDOM: the seed; BY_FILE: the path; UNKNOWN: the setting */
};

static struct way read_way(void) {
    const char *text = sheaf_setting_value("SHEAF_GGML_SPLIT");
    if (!text || !strcmp(text, "auto")) return (struct way){AUTO, ""};
    if (!strcmp(text, "mirror")) return (struct way){MIRROR, ""};
    if (!strncmp(text, "random:", 7)) return (struct way){RANDOM, text + 7};
    if (!strncmp(text, "file:", 5)) return (struct way){BY_FILE, text + 5};
    return (struct way){UNKNOWN, text};
}

static enum sheaf_status unknown_way(const char *text) {
    return sheaf_set_error(SHEAF_STATUS_INVALID,
                           "setting SHEAF_GGML_SPLIT is '%s'; it takes auto, mirror, random:SEED "
                           "or file:PATH",
                           text);
}

/* shares: of this device's members, out of a share for each member of the job. */
static enum sheaf_status read_shares(const struct gg_engine *engine, size_t device,
                                     double *shares) {
    const char *text = sheaf_setting_value("SHEAF_SPLIT");
    const size_t n = gg_engine_n_members(engine), n_mine = gg_engine_n_members_of(engine, device);
    for (size_t j = 0; j < n_mine; j++) shares[j] = 1;
    if (!text || !strcmp(text, "even")) return SHEAF_STATUS_SUCCESS;
    double sum = 0, *all = calloc(n, sizeof *all);
    if (!all) return gg_no_memory("split states");
    const bool ok = sheaf__read_shares(text, all, (int)n) == (int)n;
    for (size_t j = 0; j < n_mine && ok; j++)
        sum += shares[j] = all[gg_engine_member(engine, device, j)];
    free(all);
    if (ok && sum > 0) return SHEAF_STATUS_SUCCESS;
    return sheaf_set_error(SHEAF_STATUS_INVALID,
                           "setting SHEAF_SPLIT is '%s'; it takes 'even' or a share for each of "
                           "the %zu member%s, as 3,1, not all 0 in a group",
                           text, n, n == 1 ? "" : "s");
}

static enum sheaf_status check_shares(const struct gg_engine *engine, size_t device) {
    double *shares = calloc(gg_engine_n_members_of(engine, device) + 1, sizeof *shares);
    const enum sheaf_status st =
        shares ? read_shares(engine, device, shares) : gg_no_memory("split states");
    free(shares);
    return st;
}

/* ---- random ---- */

/* Any axis, any sizes, empty slices too: what an op's rule says must hold for all of them. */
static struct sheaf_split_state *random_state(const struct gg_cutter *c, const struct gg_region *r,
                                              uint64_t *seed) {
    const int axis = (int)(sheaf__random(seed) % (SHEAF_MAX_DIMS + 1));
    const int64_t inner = axis == 0 ? sheaf_blck_size(r->type) : 1;
    if (axis == SHEAF_MAX_DIMS || r->ne[axis] <= 0) return sheaf_split_state_mirrored(c->n_members);
    int64_t left = r->ne[axis] / inner, *counts = calloc((size_t)c->n_members, sizeof *counts);
    if (!counts) return NULL;
    for (int j = 0; j < c->n_members - 1; j++) {
        counts[j] = (int64_t)(sheaf__random(seed) % (uint64_t)(left + 1));
        left -= counts[j];
    }
    counts[c->n_members - 1] = left;
    struct sheaf_split_state *state =
        sheaf_split_state_cut((enum sheaf_split_axis)axis, c->n_members, counts, inner);
    free(counts);
    return state;
}

static enum sheaf_status read_seed(const char *text, uint64_t *seed) {
    char *end;
    *seed = strtoull(text, &end, 10);
    if (end != text && !*end) return SHEAF_STATUS_SUCCESS;
    return sheaf_set_error(SHEAF_STATUS_INVALID,
                           "setting SHEAF_GGML_SPLIT is 'random:%s'; it wants a number there",
                           text);
}

static enum sheaf_status cut_at_random(const struct gg_cutter *c, const char *seed_text,
                                       struct sheaf_split_state **states) {
    uint64_t seed;
    const enum sheaf_status st = read_seed(seed_text, &seed);
    if (st) return st;
    for (size_t i = 0; i < c->e->n_unbound; i++) {
        uint64_t state = sheaf__mix(seed, (uint64_t)c->e->unbound[i]->object);
        states[i] = random_state(c, c->e->unbound[i], &state);
        if (!states[i]) return gg_no_memory("split states");
    }
    return SHEAF_STATUS_SUCCESS;
}

/* ---- a file ---- */

struct line {
    char pattern[128];
    int axis;
    long long inner;
};

static enum sheaf_status cannot_read(const char *path) {
    return sheaf_set_error(SHEAF_STATUS_IO, "SHEAF_GGML_SPLIT: cannot read %s: %s", path,
                           sheaf__errno_text(errno));
}

static enum sheaf_status bad_line(const char *path, int number) {
    return sheaf_set_error(SHEAF_STATUS_INVALID,
                           "%s: line %d is not 'PATTERN AXIS [UNIT]' (blk.*.ffn_up.weight 1 32)",
                           path, number);
}

static struct sheaf_split_state *state_of_line(const struct gg_cutter *c, const struct line *l,
                                               const struct gg_region *r) {
    const int64_t inner = l->inner;
    if (l->axis < 0 || l->axis >= SHEAF_MAX_DIMS || inner < 1 || r->ne[l->axis] % inner ||
        (l->axis == 0 && inner % sheaf_blck_size(r->type)))
        return NULL;
    return gg_cut_axis(c, l->axis, r->ne[l->axis] / inner, inner);
}

/* The first line that fits a name counts. */
static enum sheaf_status cut_by_line(const struct gg_cutter *c, const char *path, int number,
                                     const struct line *l, struct sheaf_split_state **states) {
    for (size_t i = 0; i < c->e->n_unbound; i++) {
        const struct gg_region *r = c->e->unbound[i];
        if (states[i] || fnmatch(l->pattern, r->name, 0)) continue;
        states[i] = state_of_line(c, l, r);
        if (!states[i])
            return sheaf_set_error(SHEAF_STATUS_INVALID,
                                   "%s: line %d cannot cut '%s': no such axis, or no whole units "
                                   "of its type",
                                   path, number, r->name);
    }
    return SHEAF_STATUS_SUCCESS;
}

/* c NULL: reads the file only. */
static enum sheaf_status cut_by_file(const struct gg_cutter *c, const char *path,
                                     struct sheaf_split_state **states) {
    char text[512];
    int number = 0;
    enum sheaf_status st = SHEAF_STATUS_SUCCESS;
    FILE *f = fopen(path, "re");
    if (!f) return cannot_read(path);
    while (!st && fgets(text, sizeof text, f)) {
        struct line l = {.inner = 1};
        number++;
        if (strlen(text) == sizeof text - 1 && !strchr(text, '\n')) st = bad_line(path, number);
        if (text[strspn(text, " \t\r\n")] == 0 || text[0] == '#') continue;
        if (!st && sscanf(text, "%127s %d %lld", l.pattern, &l.axis, &l.inner) < 2)
            st = bad_line(path, number);
        if (!st && c) st = cut_by_line(c, path, number, &l, states);
    }
    if (!st && ferror(f)) st = cannot_read(path); /* a folder can be opened, too */
    fclose(f);
    return st;
}

/* ---- the report ---- */

/* "attn_q" of "blk.7.attn_q.weight", "cache_k" of "cache_k_l7". */
static void kind_of_name(const char *name, char kind[GG_MAX_NAME]) {
    size_t n = 0;
    for (const char *p = name; *p && n < GG_MAX_NAME - 1; p++)
        if (*p < '0' || *p > '9') kind[n++] = *p;
    kind[n] = 0;
}

/* Is it the first of its kind that is cut, or whole, as it is? *bytes: of all these. */
static bool is_first(const struct gg_cutter *c, struct sheaf_split_state *const *states, size_t i,
                     const char *kind, double *bytes) {
    char other[GG_MAX_NAME];
    *bytes = 0;
    for (size_t k = 0; k < c->e->n_unbound; k++) {
        kind_of_name(c->e->unbound[k]->name, other);
        if (!states[k] != !states[i] || strcmp(kind, other)) continue;
        if (k < i) return false;
        *bytes += (double)c->e->unbound[k]->bytes;
    }
    return true;
}

/* Has this been said? A program's second context has caches like the first one's. One thread at a time
 * gets here: calls that need the job take turns (calls.h). */
static bool is_known(const char *kind, double bytes, const char *why) {
    enum { ROOM = 256 };
    static uint64_t told[ROOM];
    static size_t n;
    uint64_t h = sheaf__hash_bytes(0, kind, strlen(kind));
    h = sheaf__hash_bytes(sheaf__mix(h, (uint64_t)bytes), why, strlen(why));
    for (size_t i = 0; i < n && i < ROOM; i++)
        if (told[i] == h) return true;
    told[n++ % ROOM] = h;
    return false;
}

/* Bytes of the device's weights and caches in the whole graph: a part of it may bring a single small weight. 0 if the
 * graph has no table of its tensors. */
static double bytes_of_all(const struct gg_cutter *c) {
    const struct gg_encoder *e = c->e;
    const struct gg_tensor *t;
    double bytes = 0;
    for (size_t at = 0; (t = gg_next_of_whole(c->graph, &at));)
        if (!t->view_src && gg_is_static(e->host, t) && e->memory_of(t))
            bytes += (double)gg_bytes_of(e->host, t);
    return bytes;
}

static void report(const struct gg_cutter *c, struct sheaf_split_state *const *states,
                   const char *const *why) {
    const struct gg_encoder *e = c->e;
    const bool details = gg_logs_details();
    const double all = bytes_of_all(c);
    for (size_t i = 0; i < e->n_unbound; i++) {
        char kind[GG_MAX_NAME], text[256];
        double bytes = 0;
        kind_of_name(e->unbound[i]->name, kind);
        const char *reason = why[i] ? why[i] : "no cut is known for this name";
        if (!is_first(c, states, i, kind, &bytes)) continue;
        if (!states[i] && all > 0 && bytes > 0.01 * all && !is_known(kind, bytes, reason))
            sheaf_log(SHEAF_LOG_INFO, "%s: %.1f %% of the bytes are on every member: %s", kind,
                      100 * bytes / all, reason);
        else if (states[i] && details)
            sheaf_log(SHEAF_LOG_DEBUG, "%s: %s", e->unbound[i]->name,
                      sheaf_split_state_print(states[i], text, sizeof text));
    }
}

/* ---- all ---- */

static enum sheaf_status cut_by_meaning(const struct gg_cutter *c,
                                        struct sheaf_split_state **states) {
    bool is_named;
    const char **why = calloc(c->e->n_unbound + 1, sizeof *why);
    enum sheaf_status st =
        why ? gg_cut_by_names(c, states, why, &is_named) : gg_no_memory("split states");
    if (!st && !is_named) st = gg_cut_by_graph(c, states);
    if (!st && c->n_members > 1) report(c, states, why);
    free(why);
    return st;
}

static enum sheaf_status choose(const struct gg_cutter *c, struct sheaf_split_state **states) {
    const struct way way = read_way();
    switch (way.kind) {
    case AUTO:
        return cut_by_meaning(c, states);
    case MIRROR:
        return SHEAF_STATUS_SUCCESS;
    case RANDOM:
        return cut_at_random(c, way.rest, states);
    case BY_FILE:
        return cut_by_file(c, way.rest, states);
    default:
        return unknown_way(way.rest);
    }
}

enum sheaf_status gg_read_shares(const struct gg_engine *engine, size_t device, double *shares) {
    const bool is_cut = read_way().kind != MIRROR;
    const size_t n = gg_engine_n_members_of(engine, device);
    const enum sheaf_status st = read_shares(engine, device, shares);
    double sum = 0;
    for (size_t j = 0; j < n; j++) sum += shares[j];
    for (size_t j = 0; j < n && !st; j++) shares[j] = is_cut ? shares[j] / sum : 1;
    return st;
}

enum sheaf_status gg_check_cuts(const struct gg_engine *engine) {
    const struct way way = read_way();
    enum sheaf_status st = SHEAF_STATUS_SUCCESS;
    uint64_t seed;
    for (size_t i = 0; i < gg_engine_n_devices(engine) && !st; i++) st = check_shares(engine, i);
    if (st) return st;
    if (way.kind == RANDOM) return read_seed(way.rest, &seed);
    if (way.kind == BY_FILE) return cut_by_file(NULL, way.rest, NULL);
    return way.kind == UNKNOWN ? unknown_way(way.rest) : st;
}

enum sheaf_status gg_choose_cuts(const struct gg_encoder *e, const struct gg_cgraph *graph,
                                 const struct gg_engine *engine, size_t device,
                                 struct sheaf_split_state **states) {
    const int n = (int)gg_engine_n_members_of(engine, device);
    const struct gg_cutter c = {e, graph, n, calloc((size_t)n, sizeof(double)),
                                sheaf__whole_sums()};
    enum sheaf_status st =
        c.shares ? read_shares(engine, device, c.shares) : gg_no_memory("split states");
    if (!st) st = choose(&c, states);
    for (size_t i = 0; i < e->n_unbound && !st; i++) {
        if (!states[i]) states[i] = sheaf_split_state_mirrored(n);
        if (!states[i]) st = gg_no_memory("split states");
    }
    free(c.shares);
    return st;
}
