/* What the files of sheaf-bench share.
 *
 *   options.c  the command line
 *   machine.c  what the machine can do and how much others use it: read bandwidth, steal, load
 *   test.c     one test: warm-up, repeats, what each rank measured
 *   report.c   md, csv, json
 *   sha256.c   the checksum of generated ids
 *   sheaf-bench.c    the order of things */
#ifndef SHEAF_TOOLS_BENCH_H
#define SHEAF_TOOLS_BENCH_H

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

#include "sheaf/comm.h"
#include "sheaf/model.h"

#include "common/progress.h"
#include "common/straggler.h"
#include "common/tool.h"

enum { BENCH_MAX_REPEATS = 1000, BENCH_SHA_TEXT = 65 };

enum bench_format { BENCH_MD, BENCH_CSV, BENCH_JSON };

struct bench_options {
    const char *models[OPTION_MAX_LIST]; /* exactly one */
    int n_models;
    const char *split, *split_sums, *devices, *overlap, *output;
    int64_t n_prompt[OPTION_MAX_LIST], n_gen[OPTION_MAX_LIST], depth[OPTION_MAX_LIST];
    int64_t sequences[OPTION_MAX_LIST];
    int n_prompts, n_gens, n_depths, n_sequences; /* entries of the lists */
    int64_t repeats, n_batch, threads;
    float bandwidth; /* GB/s of each rank; 0: measured */
    enum sheaf_type kv_type;
    enum bench_format format; /* that `output` names */
    bool single, fast, no_warmup, help, version;
};

/* Strings stay those of argv. INVALID with a text that names the option. */
enum sheaf_status bench_options_parse(int argc, char **argv, struct bench_options *out);
extern const struct tool bench_tool;

/* ---- the machine ---- */

/* Collective over the world. Bytes a second that `threads` threads of this rank reach when each
 * reads its own part of a buffer larger than caches, forwards, while all other ranks do the same:
 * of the pass in which all together were fastest. threads 0: reads nothing, 0. */
enum sheaf_status bench_read_bandwidth(int threads, double *bytes_per_s);

/* Processor time of this host and of this process, in seconds since some start. */
struct bench_load {
    double time;        /* monotonic clock */
    double busy, steal; /* of the host, over all its CPUs; steal is not part of busy */
    double own;         /* of this process */
    int cpus;
};
/* Zeros where /proc says nothing. */
struct bench_load bench_load_now(void);
void bench_cpu_model(char *text, size_t size);
size_t bench_peak_resident(void); /* bytes; 0 if unknown */
void bench_forget_peak(void); /* later peaks count from what is resident now, if /proc lets us */

/* ---- a test ---- */

struct bench_test {
    bool is_gen;
    int64_t n, depth;  /* tokens; tokens already in the cache; of each sequence */
    int64_t sequences; /* that generate together; 1 for a prompt */
};
/* Tokens of all sequences. */
static inline int64_t bench_tokens(const struct bench_test *test) {
    return test->n * test->sequences;
}

/* Of one rank, over all timed repeats of a test. */
struct bench_counts {
    double wall_s;
    struct rank_times times;
    struct sheaf_comm_stats kinds[SHEAF_COMM_KIND_COUNT];
};

struct bench_result {
    struct bench_test test;
    int n_repeats;
    double seconds[BENCH_MAX_REPEATS]; /* of rank 0 */
    struct bench_counts *ranks;        /* [world size] */
    double bound_s;                    /* a token at the bound; 0: unknown */
    int32_t *ids; /* [test.n][test.sequences] generated in the last repeat; else unused */
    char sha256[BENCH_SHA_TEXT]; /* of ids as little-endian int32; "" for prompts */
    bool same_ids;               /* every repeat generated the same */
    double steal, foreign;       /* of the CPU time of rank 0's host meanwhile, 0..1 */
};

/* What the machine of each rank is. */
struct bench_rank {
    double bandwidth; /* bytes a second; 0: neither given nor measured */
    uint64_t weight_bytes, compute_bytes, peak_bytes;
    double steal, foreign; /* of the CPU time of its host while measuring, 0..1 */
    int threads;
    char cpu[64];
};

struct bench {
    const struct bench_options *o;
    struct sheaf_model *model;
    struct sheaf_model_info info; /* of the model */
    struct bench_rank *ranks;     /* [world size] */
    struct progress progress;     /* of the load */
    double load_s;
    struct sheaf_comm *links; /* measured; NULL: nothing to measure */
    struct bench_result *results;
    int n_results;
};

/* Runs a test; *out is zeroed by the caller, its arrays are freed by it. Collective. */
enum sheaf_status bench_test_run(const struct bench *b, const struct bench_test *test,
                                 struct bench_result *out);
/* Rank 0 alone, to standard output: what comes before the tests, a test that has ended, what comes
 * after all. */
void bench_report_begin(const struct bench *b);
void bench_report_test(const struct bench *b, const struct bench_result *r);
void bench_report_end(const struct bench *b);

/* SHA-256 (FIPS 180-4) as 64 hexadecimal digits. */
void bench_sha256(const void *data, size_t n, char text[BENCH_SHA_TEXT]);

#endif
