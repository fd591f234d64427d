/* sheaf-comm-bench: how long collectives take, beside MPI_Allreduce in the same run.
 *
 * Every rank drives one member. A time is the slowest rank's for one call; printed are minimum,
 * median and 99th percentile over the calls. Calls of ours and of MPI alternate in blocks, so that
 * disturbances of the machine hit both. */
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "sheaf/comm-bench.h"
#include "sheaf/sheaf.h"

enum { MAX_SIZES = 32, BLOCKS = 5, WARM_UP = 20, MAX_CALLS = 1000000 };

enum kind { ALL_REDUCE, MPI_ALL_REDUCE, ALL_GATHER, REDUCE_SCATTER, BROADCAST, BARRIER, N_KINDS };
static const char *const names[N_KINDS] = {"all_reduce",     "MPI_Allreduce", "all_gather",
                                           "reduce_scatter", "broadcast",     "barrier"};

struct bench {
    struct sheaf_comm *comm;
    int n, me;
    float *a, *b;
    size_t *bytes, *counts; /* even blocks of the current size */
    double *mine, *all;     /* microseconds of each call; [ranks][calls] */
    int calls;
};

static double now_us(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec * 1e6 + (double)t.tv_nsec * 1e-3;
}

static enum sheaf_status call(struct bench *b, enum kind kind, size_t size) {
    const struct sheaf_comm_what what = {(uint32_t)kind, "bench"};
    switch (kind) {
    case ALL_REDUCE:
        return sheaf_comm_all_reduce(b->comm, b->me, b->a, size / sizeof(float), &what);
    case MPI_ALL_REDUCE:
        return sheaf_comm_bench_mpi_all_reduce(b->a, size / sizeof(float));
    case ALL_GATHER:
        return sheaf_comm_all_gather(b->comm, b->me, b->a, b->b, b->bytes, &what);
    case REDUCE_SCATTER:
        return sheaf_comm_reduce_scatter(b->comm, b->me, b->a, b->b, b->counts, &what);
    case BROADCAST:
        return sheaf_comm_broadcast(b->comm, b->me, b->a, size, 0, &what);
    case BARRIER:
    default:
        return sheaf_comm_barrier(b->comm, b->me, &what);
    }
}

static int by_value(const void *a, const void *b) {
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* `calls` calls in BLOCKS blocks, each after a barrier; times to b->mine from `first` on. */
static enum sheaf_status run_block(struct bench *b, enum kind kind, size_t size, int first, int n) {
    enum sheaf_status st = SHEAF_STATUS_SUCCESS;
    memset(b->a, 0, size); /* sums of sums must not overflow */
    for (int i = 0; i < WARM_UP / BLOCKS && !st; i++) st = call(b, kind, size);
    for (int i = 0; i < n && !st; i++) {
        const double start = now_us();
        st = call(b, kind, size);
        b->mine[first + i] = now_us() - start;
    }
    return st;
}

static enum sheaf_status report(struct bench *b, enum kind kind, size_t size) {
    const size_t row = (size_t)b->calls * sizeof *b->mine;
    enum sheaf_status st = sheaf_world_all_gather(b->mine, row, b->all, "times");
    if (st || sheaf_world_rank()) return st;
    for (int i = 0; i < b->calls; i++)
        for (int r = 1; r < sheaf_world_size(); r++) {
            const double t = b->all[(size_t)r * (size_t)b->calls + (size_t)i];
            if (t > b->all[i]) b->all[i] = t;
        }
    qsort(b->all, (size_t)b->calls, sizeof *b->all, by_value);
    const double median = b->all[b->calls / 2];
    printf("%-15s %10zu %10.2f %10.2f %10.2f %10.2f\n", names[kind], size, b->all[0], median,
           b->all[(size_t)b->calls * 99 / 100], median > 0 ? (double)size / median * 1e-3 : 0.0);
    fflush(stdout);
    return st;
}

static enum sheaf_status measure(struct bench *b, size_t size, double **times) {
    enum sheaf_status st = SHEAF_STATUS_SUCCESS;
    for (int m = 0; m < b->n; m++) {
        b->counts[m] = size / sizeof(float) / (size_t)b->n;
        b->bytes[m] = size / (size_t)b->n;
    }
    for (int block = 0; block < BLOCKS; block++)
        for (int k = 0; k < N_KINDS && !st; k++) {
            if (k == BARRIER && size > sizeof(float)) continue;
            b->mine = times[k];
            st = run_block(b, (enum kind)k, size, b->calls / BLOCKS * block, b->calls / BLOCKS);
        }
    for (int k = 0; k < N_KINDS && !st; k++) {
        if (k == BARRIER && size > sizeof(float)) continue;
        if (k == MPI_ALL_REDUCE && sheaf_world_size() == 1) continue;
        b->mine = times[k];
        st = report(b, (enum kind)k, k == BARRIER ? 0 : size);
    }
    return st;
}

static int usage(const char *program) {
    fprintf(stderr,
            "usage: mpirun -np N %s [-n CALLS] [-s BYTES,BYTES,...]\n"
            "Measures each collective over N ranks; times in microseconds, GB/s of the median.\n"
            "SHEAF_COMM_TRANSPORT=mpi treats every rank as a host.\n",
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

int main(int argc, char **argv) {
    size_t sizes[MAX_SIZES] = {4,         4096,       8192,        16384,      32768,
                               64 * 1024, 256 * 1024, 1024 * 1024, 4096 * 1024};
    int n_sizes = 9, calls = 0, exit_code = 1;
    for (int i = 1; i < argc; i += 2) {
        if (i + 1 == argc) return usage(argv[0]);
        if (!strcmp(argv[i], "-n"))
            calls = atoi(argv[i + 1]);
        else if (!strcmp(argv[i], "-s"))
            n_sizes = parse_sizes(argv[i + 1], sizes);
        else
            return usage(argv[0]);
    }
    if (n_sizes < 1 || calls < 0 || calls > MAX_CALLS) return usage(argv[0]);

    struct bench b = {0};
    int *ranks = NULL;
    double *times[N_KINDS] = {0};
    size_t largest = 0;
    for (int i = 0; i < n_sizes; i++) largest = sizes[i] > largest ? sizes[i] : largest;
    enum sheaf_status st = sheaf_world_init(NULL);
    if (st) goto out;
    b.n = sheaf_world_size();
    b.me = sheaf_world_rank();
    const size_t n = (size_t)b.n, most = calls ? (size_t)calls : 2000;
    ranks = calloc(n, sizeof *ranks);
    b.bytes = calloc(n, sizeof *b.bytes);
    b.counts = calloc(n, sizeof *b.counts);
    b.a = calloc(largest + sizeof(float), 1);
    b.b = calloc(largest + sizeof(float), 1);
    b.all = calloc(n * (most + BLOCKS), sizeof *b.all);
    bool ok = ranks && b.bytes && b.counts && b.a && b.b && b.all;
    for (int k = 0; k < N_KINDS; k++) ok = (times[k] = calloc(most + BLOCKS, sizeof **times)) && ok;
    if (!ok) st = sheaf_set_error(SHEAF_STATUS_ALLOC_FAILED, "out of memory");
    if ((st = sheaf_world_agree(st, "set up"))) goto out;
    for (int r = 0; r < b.n; r++) ranks[r] = r;
    if ((st = sheaf_comm_new(ranks, b.n, NULL, &b.comm))) goto out;
    if (b.me == 0)
        printf("# %d ranks, %d hosts, %s\n%-15s %10s %10s %10s %10s %10s\n", b.n,
               sheaf_world_n_hosts(), sheaf_comm_describe(b.comm), "collective", "bytes", "min us",
               "median us", "p99 us", "GB/s");
    for (int i = 0; i < n_sizes && !st; i++) {
        const size_t fair = (size_t)64 * 1024 * 1024 / sizes[i]; /* about as long for each size */
        b.calls = calls ? calls : (int)(fair > most ? most : fair < 50 ? 50 : fair);
        b.calls = (b.calls + BLOCKS - 1) / BLOCKS * BLOCKS;
        st = measure(&b, sizes[i], times);
    }
out:
    if (!st)
        exit_code = 0;
    else if (sheaf_world_reports_error())
        fprintf(stderr, "sheaf-comm-bench: %s\n", sheaf_last_error());
    for (int k = 0; k < N_KINDS; k++) free(times[k]);
    free(ranks);
    free(b.bytes);
    free(b.counts);
    free(b.a);
    free(b.b);
    free(b.all);
    sheaf_comm_free(b.comm);
    sheaf_world_finalize();
    return exit_code;
}
