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
#include <time.h>

#include "base/clock.h"
#include "common/output.h"
#include "sheaf/comm-bench.h"
#include "sheaf/sheaf.h"

enum { MAX_SIZES = 32, BLOCKS = 5, WARM_UP = 2, MAX_CALLS = 1000000, DEFAULT_CALLS = 2000 };
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
    int calls;
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

static int by_value(const void *a, const void *b) {
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
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
    for (int i = -WARM_UP; i < n && !st; i++) {
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
        [JSON] = "{\"collective\": \"%s\", \"bytes\": %zu, \"min_us\": %.2f, \"median_us\": %.2f, "
                 "\"p99_us\": %.2f, \"bus_gb_s\": %.3f, \"bound_us\": %.2f}",
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
    qsort(b->all, (size_t)b->calls, sizeof *b->all, by_value);
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

static int usage(const char *program) {
    fprintf(
        stderr,
        "usage: mpirun -np N %s [-n CALLS] [-s BYTES,BYTES,...] [-c COLLECTIVE,...]\n"
        "                       [--format text|md|csv|json] [--wire f32|bf16|q8_0] [--slot BYTES]\n"
        "Measures each collective over N ranks: microseconds of the slowest rank, bus bandwidth "
        "of\n"
        "the median (all_reduce: 2 (N-1)/N times the size a second), and the bound by the "
        "measured\n"
        "a and b. -c takes beginnings of names: all_reduce, MPI, all_gather, ...; copies (several "
        "hosts\n"
        "of several ranks) is what a rank copies within its host for an all-reduce.\n"
        "SHEAF_COMM_TRANSPORT=mpi treats every rank as a host; --mca pml ucx measures MPI over "
        "UCX.\n",
        program);
    return 2;
}

static int parse_sizes(const char *text, size_t *sizes) {
    int n = 0;
    while (n < MAX_SIZES) {
        char *end;
        const long v = strtol(text, &end, 10);
        if (end == text || v < (long)sizeof(float) || v > 1L << 30 || (*end && *end != ','))
            return 0;
        sizes[n++] = (size_t)v / sizeof(float) * sizeof(float);
        if (!*end) return n;
        text = end + 1;
    }
    return 0;
}

static bool parse_kinds(const char *text, bool *kinds) {
    memset(kinds, 0, N_KINDS * sizeof *kinds);
    while (*text) {
        const size_t len = strcspn(text, ",");
        bool any = false;
        for (int k = 0; k < N_KINDS; k++)
            if (len && !strncmp(names[k], text, len)) any = kinds[k] = true;
        if (!any) return false;
        text += len + (text[len] == ',');
    }
    return true;
}

static bool parse_format(const char *text, enum format *out) {
    int i = 0;
    while (i < N_FORMATS && strcmp(text, format_names[i])) i++;
    *out = (enum format)i;
    return i < N_FORMATS;
}

int main(int argc, char **argv) {
    size_t sizes[MAX_SIZES];
    int n_sizes = 0, calls = 0, exit_code = 1;
    struct sheaf_comm_params params = {.size = sizeof params};
    struct bench b = {0};
    for (size_t s = 4; s <= (size_t)64 << 20; s *= 4) sizes[n_sizes++] = s;
    for (int k = 0; k < N_KINDS; k++) b.kinds[k] = true;
    for (int i = 1; i < argc; i += 2) {
        const char *name = argv[i], *value = i + 1 < argc ? argv[i + 1] : NULL;
        bool ok = value != NULL;
        if (ok && !strcmp(name, "-n"))
            ok = (calls = atoi(value)) > 0 && calls <= MAX_CALLS;
        else if (ok && !strcmp(name, "-s"))
            ok = (n_sizes = parse_sizes(value, sizes)) > 0;
        else if (ok && !strcmp(name, "-c"))
            ok = parse_kinds(value, b.kinds);
        else if (ok && !strcmp(name, "--format"))
            ok = parse_format(value, &b.format);
        else if (ok && !strcmp(name, "--wire"))
            params.wire_type = sheaf_type_from_name(value);
        else if (ok && !strcmp(name, "--slot"))
            params.slot_bytes = (size_t)atol(value);
        else
            ok = false;
        if (!ok) return usage(argv[0]);
    }

    int *ranks = NULL;
    size_t largest = 0;
    void *shared = NULL;
    for (int i = 0; i < n_sizes; i++) largest = sizes[i] > largest ? sizes[i] : largest;
    enum sheaf_status st = sheaf_world_init(
        &(struct sheaf_world_params){.size = sizeof(struct sheaf_world_params), .may_exit = true});
    if (st) goto out;
    b.n = sheaf_world_size();
    b.me = sheaf_world_rank();
    const size_t n = (size_t)b.n, most = calls ? (size_t)calls : DEFAULT_CALLS;
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
    for (int i = 0; i < n_sizes && !st; i++) {
        const size_t fair = ROW_BYTES / sizes[i]; /* about as long for each size */
        b.calls = calls ? calls : (int)(fair > most ? most : fair < 10 ? 10 : fair);
        b.calls = (b.calls + BLOCKS - 1) / BLOCKS * BLOCKS;
        st = measure(&b, sizes[i]);
    }
    if (!st && b.me == 0 && b.format == JSON) puts("\n  ]\n}");
out:
    if (!st)
        exit_code = 0;
    else if (sheaf_world_reports_error())
        fprintf(stderr, "sheaf-comm-bench: %s\n", sheaf_last_error());
    for (int k = 0; k < N_KINDS; k++) free(b.times[k]);
    free(ranks);
    free(b.bytes);
    free(b.counts);
    free(b.a);
    free(b.b);
    free(b.all);
    sheaf_comm_free(b.comm);
    sheaf_world_finalize();
    return output_end(exit_code);
}
