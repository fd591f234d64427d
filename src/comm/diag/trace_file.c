/* Merges the events of all ranks into one file for trace viewers. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/file.h"
#include "base/locale.h"
#include "base/sort.h"
#include "comm/diag/events.h"
#include "comm/world/world.h"

enum { DEFAULT_EVENTS = 200000, MAX_EVENTS = 1 << 24, CLOCK_ROUNDS = 9 };
static const char WHAT[] = "trace";

static const char *const kinds[] = {
    [SHEAF__TRACE_COMPUTE] = "compute", [SHEAF__TRACE_WAIT] = "wait", [SHEAF__TRACE_WIRE] = "wire"};

static int64_t clock_offset; /* to be added for rank 0's clock */

/* Ranks leave a barrier at about the same time; the median of several differences. */
static enum sheaf_status compare_clocks(void) {
    const int n = sheaf_world_size(), me = sheaf_world_rank();
    int64_t differences[CLOCK_ROUNDS], *all = calloc((size_t)n, sizeof *all);
    enum sheaf_status st =
        all ? SHEAF_STATUS_SUCCESS
            : sheaf_set_error(SHEAF_STATUS_ALLOC_FAILED, "%s: out of memory", WHAT);
    st = sheaf_world_agree(st, WHAT);
    for (int i = 0; i < CLOCK_ROUNDS && !st; i++) {
        st = sheaf_world_barrier(WHAT);
        const int64_t now = (int64_t)sheaf__time_ns();
        if (!st) st = sheaf_world_all_gather(&now, sizeof now, all, WHAT);
        if (!st) differences[i] = all[0] - all[me];
    }
    if (!st) {
        qsort(differences, CLOCK_ROUNDS, sizeof *differences, sheaf__by_i64);
        /* ranks of one host have one clock */
        const bool same = sheaf_world_host_index(me) == sheaf_world_host_index(0);
        clock_offset = same ? 0 : differences[CLOCK_ROUNDS / 2];
    }
    free(all);
    return st;
}

enum sheaf_status sheaf_trace_start(size_t max_events) {
    enum sheaf_status st = SHEAF_STATUS_SUCCESS;
    if (!max_events) max_events = DEFAULT_EVENTS;
    if (sheaf__events())
        st = sheaf_set_error(SHEAF_STATUS_INVALID, "%s: it was started before", WHAT);
    else if (max_events > MAX_EVENTS)
        st = sheaf_set_error(SHEAF_STATUS_INVALID, "%s: %zu events; it takes up to %d", WHAT,
                             max_events, MAX_EVENTS);
    else if (!sheaf__events_start(max_events))
        st = sheaf_set_error(SHEAF_STATUS_ALLOC_FAILED, "%s: no memory for %zu events", WHAT,
                             max_events);
    const bool started = !st;
    if ((st = sheaf_world_agree(st, WHAT)) || (st = compare_clocks())) {
        if (started) sheaf__events_stop();
        return st;
    }
    sheaf__events_record(true);
    return st;
}

static void write_string(FILE *f, const char *text, size_t max) {
    fputc('"', f);
    for (size_t i = 0; i < max && text[i]; i++) {
        const unsigned char c = (unsigned char)text[i];
        if (c == '"' || c == '\\') fputc('\\', f);
        fputc(c < 0x20 || c >= 0x7f ? '?' : c, f);
    }
    fputc('"', f);
}

/* Lanes of ranks come first, then those beside them. */
static int lane_of(int rank, bool beside_it) {
    return beside_it ? sheaf_world_size() + rank : rank;
}

static void write_rank(FILE *f, int rank, const struct sheaf__event *list, size_t n,
                       uint64_t dropped, int64_t offset, int64_t zero) {
    const int host = sheaf_world_host_index(rank);
    bool two_lanes = false;
    for (size_t i = 0; i < n; i++) two_lanes = two_lanes || list[i].beside;
    fprintf(f, "%s{\"ph\":\"M\",\"name\":\"process_name\",\"pid\":%d,\"args\":{\"name\":",
            rank ? ",\n" : "", host);
    write_string(f, sheaf_world_host_name(rank), SHEAF__HOST_NAME_BYTES);
    fprintf(f,
            "}},\n{\"ph\":\"M\",\"name\":\"thread_name\",\"pid\":%d,\"tid\":%d,\"args\":"
            "{\"name\":\"rank %d\",\"dropped\":%llu}}",
            host, rank, rank, (unsigned long long)dropped);
    if (two_lanes)
        fprintf(f,
                ",\n{\"ph\":\"M\",\"name\":\"thread_name\",\"pid\":%d,\"tid\":%d,\"args\":"
                "{\"name\":\"rank %d, communication\"}}",
                host, lane_of(rank, true), rank);
    for (size_t i = 0; i < n; i++) {
        const struct sheaf__event *e = &list[i];
        const int64_t start = (int64_t)e->start + offset - zero;
        fprintf(f,
                ",\n{\"ph\":\"X\",\"pid\":%d,\"tid\":%d,\"ts\":%.3f,\"dur\":%.3f,\"cat\":\"%s\","
                "\"name\":",
                host, lane_of(rank, e->beside), (double)start * 1e-3, (double)e->ns * 1e-3,
                kinds[e->kind % (sizeof kinds / sizeof *kinds)]);
        write_string(f, e->name, sizeof e->name);
        fprintf(f, ",\"args\":{\"kind\":\"%s\"}}", kinds[e->kind % (sizeof kinds / sizeof *kinds)]);
    }
}

struct head { /* of a rank's events */
    uint64_t n, dropped;
    int64_t offset; /* of its clock */
};

/* Rank 0 writes the events of each rank in turn, so it needs memory for those of one rank. */
static enum sheaf_status write_ranks(FILE *f, const struct head *heads, size_t *sizes) {
    const struct sheaf__events *own = sheaf__events();
    const int64_t zero = own->n ? (int64_t)own->events[0].start : 0;
    enum sheaf_status st = SHEAF_STATUS_SUCCESS;
    for (int r = 0; r < sheaf_world_size() && !st; r++) {
        const size_t n = (size_t)heads[r].n;
        if (n > MAX_EVENTS)
            return sheaf_set_error(SHEAF_STATUS_PEER, "%s: %s has %zu events; it takes up to %d",
                                   WHAT, sheaf__rank_text(r), n, MAX_EVENTS);
        struct sheaf__event *list = f ? malloc(n * sizeof *list + 1) : NULL;
        if (f && !list) st = sheaf_set_error(SHEAF_STATUS_ALLOC_FAILED, "%s: out of memory", WHAT);
        st = sheaf_world_agree(st, WHAT);
        sizes[r] = n * sizeof *list;
        if (!st) st = sheaf_world_gather_v(own->events, list, sizes, 0, WHAT);
        sizes[r] = 0;
        const locale_t language = uselocale(sheaf__c_locale());
        if (!st && f) write_rank(f, r, list, n, heads[r].dropped, heads[r].offset, zero);
        uselocale(language);
        free(list);
    }
    return st;
}

static enum sheaf_status merge(FILE *f) {
    const struct sheaf__events *own = sheaf__events();
    const struct head mine = {own->n, own->n_asked - own->n, clock_offset};
    struct head *heads = calloc((size_t)sheaf_world_size(), sizeof *heads);
    size_t *sizes = calloc((size_t)sheaf_world_size(), sizeof *sizes);
    enum sheaf_status st = SHEAF_STATUS_SUCCESS;
    if (!heads || !sizes)
        st = sheaf_set_error(SHEAF_STATUS_ALLOC_FAILED, "%s: out of memory", WHAT);
    st = sheaf_world_agree(st, WHAT);
    if (!st) st = sheaf_world_all_gather(&mine, sizeof mine, heads, WHAT);
    if (!st) st = write_ranks(f, heads, sizes);
    free(heads);
    free(sizes);
    return st;
}

enum sheaf_status sheaf_trace_write(const char *path) {
    FILE *f = NULL;
    enum sheaf_status st = SHEAF_STATUS_SUCCESS;
    if (!sheaf__events())
        st = sheaf_set_error(SHEAF_STATUS_INVALID, "%s: it was not started", WHAT);
    else if (sheaf_world_rank() == 0 && !(f = fopen(path, "we")))
        st = sheaf_set_error(SHEAF_STATUS_IO, "%s: cannot create %s: %s", WHAT, path,
                             sheaf__errno_text(errno));
    sheaf__events_record(false);
    st = sheaf_world_agree(st, WHAT);
    if (f && !st) fputs("{\"displayTimeUnit\":\"ms\",\"traceEvents\":[\n", f);
    if (!st) st = merge(f);
    if (f) {
        fputs("\n]}\n", f);
        const int why = sheaf__close_written(f);
        if (why && !st)
            st = sheaf_set_error(SHEAF_STATUS_IO, "%s: cannot write %s: %s", WHAT, path,
                                 strerror(why));
    }
    sheaf__events_stop();
    return sheaf_world_failed() ? st : sheaf_world_agree(st, WHAT);
}
