/* sheaf-comm-bench: how long collectives take, beside MPI_Allreduce in the same run, and beside the
 * bound from the measured latency and rate of the links.
 *
 * Every rank drives one member. A time is the slowest rank's for one call; printed are minimum,
 * median and 99th percentile over the calls. Before each call the rank writes the data, after an
 * all-reduce it reads the result; the time includes both. Calls of ours and of MPI alternate in
 * blocks, so that disturbances of the machine hit both. */
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/sort.h"
#include "common/tool.h"
#include "sheaf/comm-bench.h"
#include "sheaf/sheaf.h"

enum { BLOCKS = 5, WARM_UP = 2, MAX_CALLS = 1000000, DEFAULT_CALLS = 2000 };
static const size_t ROW_BYTES = (size_t)128 << 20; /* that a row moves, about */

enum kind {
    ALL_REDUCE,
    REGISTERED,
    MPI_DEFAULT,
    MPI_SM,
    ALL_GATHER,
    REDUCE_SCATTER,
    BROADCAST,
    BARRIER,
    COPIES,
    N_KINDS
};
static const char *const names[N_KINDS] = {
    [ALL_REDUCE] = "all_reduce",
    [REGISTERED] = "all_reduce (registered)",
    [MPI_DEFAULT] = "MPI_Allreduce",
    [MPI_SM] = "MPI_Allreduce (coll/sm)",
    [ALL_GATHER] = "all_gather",
    [REDUCE_SCATTER] = "reduce_scatter",
    [BROADCAST] = "broadcast",
    [BARRIER] = "barrier",
    [COPIES] = "copies",
};

enum format { TEXT, MD, CSV, JSON, N_FORMATS };
static const char *const format_names[N_FORMATS] = {"text", "md", "csv", "json"};

struct bench {
    struct sheaf_comm *comm;
    int n, me, n_here;      /* n_here: ranks of the largest host, if there are several hosts */
    float *a, *b, *shared;  /* shared: registered memory */
    size_t *bytes, *counts; /* even blocks of the current size */
    double *mine, *all;     /* microseconds of each call; [ranks][calls] */
    double *times[N_KINDS]; /* [calls] */
    int calls, warm_up;
    enum format format;
    bool any_row, kinds[N_KINDS];
};

static double now_us(void) { return 1e-3 * (double)sheaf__time_ns(); }

/* The least work of a member for an all-reduce between hosts with several members, as copies: its
 * data to a slot, its parts of the host's sum and of the total, and the result to its data. */
static void copy(struct bench *b, size_t size) {
    enum { CHUNK = 256 * 1024 };
    uint8_t *data = (uint8_t *)b->a, *slot = (uint8_t *)b->b, *sum = (uint8_t *)b->shared;
    for (size_t at = 0; at < size; at += CHUNK) {
        const size_t len = size - at < CHUNK ? size - at : CHUNK, part = len / (size_t)b->n_here;
        memcpy(slot, data + at, len);
        memcpy(sum, slot + len - part, part);
        memcpy(sum + len - part, slot, part);
        memcpy(data + at, sum, len);
    }
}

static enum sheaf_status call(struct bench *b, enum kind kind, size_t size) {
    const struct sheaf_comm_what what = {(uint32_t)kind, "bench"};
    const size_t n = size / sizeof(float);
    switch (kind) {
    case ALL_REDUCE:
        return sheaf_comm_all_reduce(b->comm, b->me, b->a, n, &what);
    case REGISTERED:
        return sheaf_comm_all_reduce(b->comm, b->me, b->shared, n, &what);
    case MPI_DEFAULT:
        return sheaf_comm_bench_mpi_all_reduce(b->a, n, NULL);
    case MPI_SM:
        return sheaf_comm_bench_mpi_all_reduce(b->a, n, "sm");
    case ALL_GATHER:
        return sheaf_comm_all_gather(b->comm, b->me, b->a, b->b, b->bytes, &what);
    case REDUCE_SCATTER:
        return sheaf_comm_reduce_scatter(b->comm, b->me, b->a, b->b, b->counts, &what);
    case BROADCAST:
        return sheaf_comm_broadcast(b->comm, b->me, b->a, size, 0, &what);
    case COPIES:
        copy(b, size);
        return SHEAF_STATUS_SUCCESS;
    case BARRIER:
    default:
        return sheaf_comm_barrier(b->comm, b->me, &what);
    }
}

static bool runs(const struct bench *b, enum kind kind, size_t size) {
    return b->kinds[kind] && (kind != BARRIER || size <= sizeof(float)) &&
           (kind != COPIES || b->n_here > 1);
}

/* Acts as producer and consumer: the data are in this core's cache before the call and (sums only)
 * after it. Otherwise an unwritten buffer would stay in the cache of the core that summed it last.
 */
static void produce(float *data, size_t size, int i) { memset(data, i & 1, size); }
static void consume(const float *data, size_t size) {
    static volatile float sink;
    float sum = 0;
    for (size_t k = 0; k < size / sizeof *data; k += 64 / sizeof *data) sum += data[k];
    sink = sum;
    (void)sink;
}

/* n calls after a few that do not count; times to b->times[kind] from `first` on. */
static enum sheaf_status run_block(struct bench *b, enum kind kind, size_t size, int first, int n) {
    enum sheaf_status st = SHEAF_STATUS_SUCCESS;
    float *data = kind == REGISTERED ? b->shared : b->a;
    for (int i = -b->warm_up; i < n && !st; i++) {
        produce(data, size, i);
        st = sheaf_comm_barrier(b->comm, b->me, NULL);
        const double start = now_us();
        if (!st) st = call(b, kind, size);
        if (kind < ALL_GATHER) consume(data, size);
        if (i >= 0) b->times[kind][first + i] = now_us() - start;
    }
    return st;
}

/* GB/s on a rank's link, counting the bytes that every algorithm must move. */
static double bus_rate(const struct bench *b, enum kind kind, size_t size, double us) {
    const double share = (double)(b->n - 1) / b->n;
    const double factor = kind == BARRIER || kind == COPIES              ? 0
                          : kind == BROADCAST                            ? 1
                          : kind == ALL_GATHER || kind == REDUCE_SCATTER ? share
                                                                         : 2 * share;
    return us > 0 ? factor * (double)size / us * 1e-3 : 0;
}

static void print_row(struct bench *b, enum kind kind, size_t size, const double *t, double bound) {
    static const char *const rows[N_FORMATS] = {
        [TEXT] = "%-24s %9zu %10.2f %10.2f %10.2f %8.3f %10.2f\n",
        [MD] = "| %s | %zu | %.2f | %.2f | %.2f | %.3f | %.2f |\n",
        [CSV] = "%s,%zu,%.2f,%.2f,%.2f,%.3f,%.2f\n",
        [JSON] = ("{\"collective\": \"%s\", \"bytes\": %zu, \"min_us\": %.2f, \"median_us\": %.2f, "
                  "\"p99_us\": %.2f, \"bus_gb_s\": %.3f, \"bound_us\": %.2f}"),
    };
    if (b->format == JSON) fputs(b->any_row ? ",\n    " : "    ", stdout);
    b->any_row = true;
    const double median = t[b->calls / 2];
    printf(rows[b->format], names[kind], size, t[0], median, t[(size_t)b->calls * 99 / 100],
           bus_rate(b, kind, size, median), bound);
    fflush(stdout);
}

static enum sheaf_status report(struct bench *b, enum kind kind, size_t size) {
    const size_t row = (size_t)b->calls * sizeof *b->all;
    enum sheaf_status st = sheaf_world_all_gather(b->times[kind], row, b->all, "times");
    if (st || sheaf_world_rank()) return st;
    for (int i = 0; i < b->calls; i++)
        for (int r = 1; r < sheaf_world_size(); r++) {
            const double t = b->all[(size_t)r * (size_t)b->calls + (size_t)i];
            if (t > b->all[i]) b->all[i] = t;
        }
    qsort(b->all, (size_t)b->calls, sizeof *b->all, sheaf__by_double);
    const bool sums = kind == ALL_REDUCE || kind == REGISTERED;
    print_row(b, kind, size, b->all,
              sums ? 1e-3 * (double)sheaf_comm_bound_ns(b->comm, SHEAF_COMM_ALL_REDUCE, size)
                   : 0.0);
    return st;
}

static enum sheaf_status measure(struct bench *b, size_t size) {
    enum sheaf_status st = SHEAF_STATUS_SUCCESS;
    const int n = b->calls / BLOCKS;
    for (int m = 0; m < b->n; m++) {
        b->counts[m] = size / sizeof(float) / (size_t)b->n;
        b->bytes[m] = size / (size_t)b->n;
    }
    for (int block = 0; block < BLOCKS; block++)
        for (int k = 0; k < N_KINDS && !st; k++)
            if (runs(b, (enum kind)k, size)) st = run_block(b, (enum kind)k, size, n * block, n);
    for (int k = 0; k < N_KINDS && !st; k++)
        if (runs(b, (enum kind)k, size)) st = report(b, (enum kind)k, k == BARRIER ? 0 : size);
    return st;
}

static void print_head(struct bench *b) {
    static const char *const heads[N_FORMATS] = {
        [TEXT] = "collective                   bytes     min us  median us     p99 us bus GB/s   "
                 "bound us\n",
        [MD] = "\n| collective | bytes | min us | median us | p99 us | bus GB/s | bound us |\n"
               "|---|---|---|---|---|---|---|\n",
        [CSV] = "collective,bytes,min_us,median_us,p99_us,bus_gb_s,bound_us\n",
        [JSON] = "  \"rows\": [\n",
    };
    static const char *const levels[SHEAF_COMM_LEVEL_COUNT] = {"shared memory", "hosts"};
    const char *mark = b->format == MD ? "" : "# ", *end = b->format == MD ? "\\\n" : "\n";
    if (b->format == JSON)
        printf("{\n  \"ranks\": %d, \"hosts\": %d, \"group\": \"%s\",\n", b->n,
               sheaf_world_n_hosts(), sheaf_comm_describe(b->comm));
    else
        printf("%s%d ranks, %d hosts, %s%s", mark, b->n, sheaf_world_n_hosts(),
               sheaf_comm_describe(b->comm), end);
    for (int i = 0; i < SHEAF_COMM_LEVEL_COUNT; i++) {
        struct sheaf_comm_level l;
        sheaf_comm_get_level(b->comm, (enum sheaf_comm_level_kind)i, &l);
        if (l.link.n < 2) continue;
        const double a_us = 1e-3 * (double)l.link.latency_ns, b_ns = 1e-3 * (double)l.link.byte_ps;
        if (b->format == JSON)
            printf("  \"%s\": {\"a_us\": %.3f, \"b_ns\": %.4f, \"one_shot_bytes\": %zu, \"wire\": "
                   "\"%s\"},\n",
                   i ? "hosts_link" : "shared_link", a_us, b_ns, l.one_shot_bytes,
                   sheaf_type_name(l.wire_type));
        else
            printf("%s%s (%d): a = %.2f us, b = %.4f ns/byte, %s%s", mark, levels[i], l.link.n,
                   a_us, b_ns, sheaf_type_name(l.wire_type), end);
    }
    fputs(heads[b->format], stdout);
}

/* ---- the command line ---- */

struct bench_options {
    int64_t calls, warm_up, slot; /* 0: the default */
    int64_t from, to, factor;
    int64_t sizes[OPTION_MAX_LIST];
    int n_sizes;
    const char *collectives, *format;
    enum sheaf_type wire;
    bool help, version;
};

static const char synopsis[] =
    "usage: mpirun -np N sheaf-comm-bench [options]\n"
    "Measures each collective over N ranks: microseconds of the slowest rank, bus bandwidth of "
    "the\n"
    "median (all_reduce: 2 (N-1)/N times the size a second), and the bound by the measured a and\n"
    "b. Sizes take K, M and G (powers of 1024). Rows appear as they are measured.\n\n";

static const char notes[] =
    "SHEAF_COMM_TRANSPORT=mpi treats every rank as a host; --mca pml ucx measures MPI over UCX.\n";

#define AT(field) offsetof(struct bench_options, field)
static const struct option options[] = {
    {"--minbytes", "-b", OPTION_SIZE, AT(from), 0, 4, 1 << 30, "SIZE", "the smallest size (4)",
     NULL},
    {"--maxbytes", "-e", OPTION_SIZE, AT(to), 0, 4, 1 << 30, "SIZE", "the largest size (64M)",
     NULL},
    {"--stepfactor", "-f", OPTION_INT, AT(factor), 0, 2, 1024, "F",
     "each size is F times the one before (4)", NULL},
    {"--sizes", "-s", OPTION_SIZES, AT(sizes), AT(n_sizes), 4, 1 << 30, "SIZE,..",
     "these sizes instead", NULL},
    {"--calls", "-n --iters", OPTION_INT, AT(calls), 0, 1, MAX_CALLS, "N",
     "calls of each collective and size (so many that a row moves 128 MiB, 10 to 2000)", NULL},
    {"--warmup_iters", "-w", OPTION_INT, AT(warm_up), 0, 0, 1000, "N",
     "calls before each block that do not count (2)", NULL},
    {"--collectives", "-c", OPTION_TEXT, AT(collectives), 0, 0, 0, "NAME,..",
     "beginnings of names: all_reduce, MPI, all_gather, reduce_scatter, broadcast, barrier, copies "
     "(several hosts of several ranks: what a rank copies within its host for an all-reduce) (all)",
     NULL},
    {"--format", "-o --output", OPTION_CHOICE, AT(format), 0, 0, 0, "FORMAT",
     "text, md, csv or json (text)", "text|md|csv|json"},
    {"--wire", NULL, OPTION_TYPE, AT(wire), 0, 0, 0, "TYPE",
     "f32, bf16, q8_0: how sums travel between hosts (SHEAF_COMM_WIRE, or f32)", "f32|bf16|q8_0"},
    {"--slot", NULL, OPTION_SIZE, AT(slot), 0, 1, 1 << 30, "SIZE",
     "of a member's slot in shared memory (the library's)", NULL},
    TOOL_HELP(AT(help)),
    TOOL_VERSION(AT(version)),
};
#undef AT

static const struct tool tool = {"sheaf-comm-bench", synopsis, notes, options,
                                 sizeof options / sizeof *options};

/* "all_reduce,MPI": which of the collectives. */
static enum sheaf_status parse_kinds(const char *text, bool *kinds) {
    memset(kinds, 0, N_KINDS * sizeof *kinds);
    for (const char *p = text; *p;) {
        const size_t len = strcspn(p, ",");
        bool any = false;
        for (int k = 0; k < N_KINDS; k++)
            if (len && !strncmp(names[k], p, len)) any = kinds[k] = true;
        if (!any)
            return sheaf_set_error(SHEAF_STATUS_INVALID,
                                   "-c: no collective begins with '%.*s'; there are all_reduce, "
                                   "MPI_Allreduce, all_gather, reduce_scatter, broadcast, barrier, "
                                   "copies",
                                   (int)(len < 60 ? len : 60), p);
        p += len + (p[len] == ',');
    }
    return SHEAF_STATUS_SUCCESS;
}

/* The sizes by -s, or those from -b to -e; whole floats. */
static enum sheaf_status find_sizes(struct bench_options *o) {
    if (o->n_sizes && (o->from || o->to))
        return sheaf_set_error(SHEAF_STATUS_INVALID, "-s names the sizes: leave out -b and -e");
    const int64_t from = o->from ? o->from : 4, to = o->to ? o->to : 64 << 20;
    if (from > to) return sheaf_set_error(SHEAF_STATUS_INVALID, "-b is more than -e");
    if (!o->n_sizes)
        for (int64_t s = from; s <= to && o->n_sizes < OPTION_MAX_LIST; s *= o->factor)
            o->sizes[o->n_sizes++] = s;
    for (int i = 0; i < o->n_sizes; i++) o->sizes[i] = o->sizes[i] / 4 * 4;
    return SHEAF_STATUS_SUCCESS;
}

static enum sheaf_status parse(int argc, char **argv, struct bench_options *o, struct bench *b) {
    *o = (struct bench_options){.factor = 4,
                                .warm_up = WARM_UP,
                                .format = "text",
                                .collectives = "",
                                .wire = SHEAF_TYPE_COUNT};
    for (int k = 0; k < N_KINDS; k++) b->kinds[k] = true;
    enum sheaf_status status = options_parse(&tool, argc, argv, o);
    if (status || o->help || o->version) return status;
    if (*o->collectives) status = parse_kinds(o->collectives, b->kinds);
    if (!status) status = find_sizes(o);
    while (strcmp(o->format, format_names[b->format])) b->format++;
    b->warm_up = (int)o->warm_up;
    return status;
}

/* ---- the whole ---- */

int main(int argc, char **argv) {
    struct bench_options o;
    struct bench b = {0};
    const enum sheaf_status parsed = parse(argc, argv, &o, &b);
    if (!parsed && (o.help || o.version)) return tool_answer(&tool, o.help);
    const int code = tool_start(&tool, parsed);
    if (code) return code;

    struct sheaf_comm_params params = {.size = sizeof params, .slot_bytes = (size_t)o.slot};
    if (o.wire != SHEAF_TYPE_COUNT) params.wire_type = o.wire;
    int *ranks = NULL;
    size_t largest = 0;
    void *shared = NULL;
    enum sheaf_status st = SHEAF_STATUS_SUCCESS;
    for (int i = 0; i < o.n_sizes; i++)
        if ((size_t)o.sizes[i] > largest) largest = (size_t)o.sizes[i];
    b.n = sheaf_world_size();
    b.me = sheaf_world_rank();
    const size_t n = (size_t)b.n, most = o.calls ? (size_t)o.calls : DEFAULT_CALLS;
    if (b.n == 1) b.kinds[MPI_DEFAULT] = false;
    /* coll/sm is for one host, and where it cannot serve, MPI would take its default */
    if (b.n == 1 || sheaf_world_n_hosts() > 1) b.kinds[MPI_SM] = false;
    ranks = calloc(n, sizeof *ranks);
    b.bytes = calloc(n, sizeof *b.bytes);
    b.counts = calloc(n, sizeof *b.counts);
    b.a = calloc(largest + sizeof(float), 1);
    b.b = calloc(largest + sizeof(float), 1);
    b.all = calloc(n * (most + BLOCKS), sizeof *b.all);
    bool ok = ranks && b.bytes && b.counts && b.a && b.b && b.all;
    for (int k = 0; k < N_KINDS; k++)
        ok = (b.times[k] = calloc(most + BLOCKS, sizeof **b.times)) && ok;
    if (!ok) st = sheaf_set_error(SHEAF_STATUS_ALLOC_FAILED, "out of memory");
    if ((st = sheaf_world_agree(st, "set up"))) goto out;
    for (int r = 0; r < b.n; r++) ranks[r] = r;
    if ((st = sheaf_comm_new(ranks, b.n, &params, &b.comm))) goto out;
    st = sheaf_comm_alloc(b.comm, b.me, largest, &shared);
    if ((st = sheaf_world_agree(st, "set up"))) goto out;
    b.shared = shared;
    if ((st = sheaf_comm_measure(b.comm))) goto out;
    struct sheaf_comm_level here, hosts;
    sheaf_comm_get_level(b.comm, SHEAF_COMM_LEVEL_SHARED, &here);
    sheaf_comm_get_level(b.comm, SHEAF_COMM_LEVEL_HOSTS, &hosts);
    b.n_here = hosts.link.n > 1 ? here.link.n : 0;
    if (b.me == 0) print_head(&b);
    for (int i = 0; i < o.n_sizes && !st; i++) {
        const size_t fair = ROW_BYTES / (size_t)o.sizes[i]; /* about as long for each size */
        b.calls = o.calls ? (int)o.calls : (int)(fair > most ? most : fair < 10 ? 10 : fair);
        b.calls = (b.calls + BLOCKS - 1) / BLOCKS * BLOCKS;
        st = measure(&b, (size_t)o.sizes[i]);
    }
    if (!st && b.me == 0 && b.format == JSON) puts("\n  ]\n}");
out:
    if (st) tool_complain(&tool);
    for (int k = 0; k < N_KINDS; k++) free(b.times[k]);
    free(ranks);
    free(b.bytes);
    free(b.counts);
    free(b.a);
    free(b.b);
    free(b.all);
    sheaf_comm_free(b.comm);
    return tool_end(st ? TOOL_FAILED : 0);
}
