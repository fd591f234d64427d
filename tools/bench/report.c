/* What sheaf-bench prints: a table for people (md), a row a test (csv), everything (json). Each
 * test appears as it ends, so that a job that is stopped keeps those before. */
#include <inttypes.h>
#include <math.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include "base/sort.h"
#include "sheaf/cpu.h"
#include "sheaf/meta.h"
#include "sheaf/version.h"
#include "sheaf/world.h"

#include "bench.h"
#include "common/json.h"

/* Of one test, derived from what the ranks counted. */
struct summary {
    char name[64];                  /* "pp512", "tg128 @ d512" */
    double mean, deviation, median; /* tokens a second, over the repeats */
    double compute, comm, wait;     /* shares of the time, mean over the ranks */
    double hidden;                  /* of the time of collectives: beside computing */
    double collectives, bytes;      /* a token */
    double us, wire_us, skew_us;    /* a collective */
    double bound, bound_share;      /* 0: unknown */
};

struct kind_summary {
    double per_token, bytes, us, wire_us, skew_us;
};

static double over(double a, double b) { return b > 0 ? a / b : 0; }

/* Mean time in a collective, of that the part after the last has come, and how long those that are
 * not the last wait for it: if one of n ranks is late by t, n - 1 ranks wait t. */
static void times_of(uint64_t count, double time_ns, double wait_ns, int n, double *us,
                     double *wire_us, double *skew_us) {
    const double calls = (double)count * n;
    *us = 1e-3 * over(time_ns, calls);
    *wire_us = 1e-3 * over(time_ns - wait_ns, calls);
    *skew_us = n > 1 ? 1e-3 * over(wait_ns, (double)count * (n - 1)) : 0;
}

static struct kind_summary summarise_kind(const struct bench_result *r, int kind) {
    struct kind_summary s = {0};
    const struct sheaf_comm_stats *first = &r->ranks[0].kinds[kind];
    double time = 0, wait = 0;
    const int n = sheaf_world_size();
    for (int i = 0; i < n; i++) {
        time += (double)r->ranks[i].kinds[kind].time_ns;
        wait += (double)r->ranks[i].kinds[kind].wait_ns;
    }
    times_of(first->count, time, wait, n, &s.us, &s.wire_us, &s.skew_us);
    s.per_token = over((double)first->count, (double)bench_tokens(&r->test) * r->n_repeats);
    s.bytes = over((double)first->bytes, (double)first->count);
    return s;
}

static struct summary summarise(const struct bench_result *r) {
    struct summary s = {0};
    double speeds[BENCH_MAX_REPEATS], square = 0;
    double wall = 0, compute = 0, comm = 0, wait = 0, hidden = 0, stalled = 0;
    const int n = r->n_repeats, ranks = sheaf_world_size();
    const double tokens = (double)bench_tokens(&r->test) * n;
    for (int i = 0; i < n; i++) {
        speeds[i] = over((double)bench_tokens(&r->test), r->seconds[i]);
        s.mean += speeds[i] / n;
    }
    for (int i = 0; i < n; i++) square += (speeds[i] - s.mean) * (speeds[i] - s.mean);
    s.deviation = n > 1 ? sqrt(square / (n - 1)) : 0;
    qsort(speeds, (size_t)n, sizeof *speeds, sheaf__by_double);
    s.median = 0.5 * (speeds[(n - 1) / 2] + speeds[n / 2]);
    for (int i = 0; i < ranks; i++) {
        wall += 1e9 * r->ranks[i].wall_s;
        const struct rank_times *t = &r->ranks[i].times;
        compute += (double)t->compute_ns;
        comm += (double)t->collective_ns;
        wait += (double)t->wait_ns;
        hidden += (double)t->hidden_ns;
        stalled += (double)t->stalled_ns;
    }
    s.compute = over(compute, wall);
    s.comm = over(comm - hidden, wall);
    s.wait = over(stalled, wall);
    s.hidden = over(hidden, comm);
    s.collectives = over((double)r->ranks[0].times.n_collectives, tokens);
    s.bytes = over((double)r->ranks[0].times.collective_bytes, tokens);
    times_of(r->ranks[0].times.n_collectives, comm, wait, ranks, &s.us, &s.wire_us, &s.skew_us);
    s.bound = r->bound_s > 0 ? 1 / r->bound_s : 0;
    s.bound_share = over(s.median, s.bound);
    int used =
        snprintf(s.name, sizeof s.name, "%s%" PRId64, r->test.is_gen ? "tg" : "pp", r->test.n);
    if (r->test.sequences > 1)
        used +=
            snprintf(s.name + used, sizeof s.name - (size_t)used, " x %" PRId64, r->test.sequences);
    if (r->test.depth)
        snprintf(s.name + used, sizeof s.name - (size_t)used, " @ d%" PRId64, r->test.depth);
    return s;
}

static struct straggler find_straggler(const struct bench_result *r) {
    return straggler_find(&r->ranks[0].times, sizeof *r->ranks, sheaf_world_size());
}

static const char *file_name(const struct bench *b) {
    const char *path = b->info.path, *slash = strrchr(path, '/');
    return slash ? slash + 1 : path;
}

static const char *transport(const struct bench *b) {
    const sheaf_backend_dev_t meta = sheaf_model_meta(b->model);
    const struct sheaf_comm *comm = meta ? sheaf_backend_meta_dev_comm(meta) : NULL;
    return comm && sheaf_world_size() > 1 ? sheaf_comm_describe(comm) : "none";
}

/* Of an all-reduce, at least. */
static double latency_us(const struct bench *b) {
    return b->links ? 1e-3 * (double)sheaf_comm_bound_ns(b->links, SHEAF_COMM_ALL_REDUCE, 0) : 0;
}
static double us_per_mb(const struct bench *b) {
    if (!b->links) return 0;
    return 1e-3 * (double)sheaf_comm_bound_ns(b->links, SHEAF_COMM_ALL_REDUCE, 1000000) -
           latency_us(b);
}

static double mib(double bytes) { return bytes / (1024 * 1024); }

/* ---- md ---- */

/* "-" for a number that is not known or does not apply. */
static void cell(double v, const char *format, double unit) {
    char text[32];
    if (v > 0)
        snprintf(text, sizeof text, format, v * unit);
    else
        snprintf(text, sizeof text, "-");
    printf(" %s |", text);
}

static void md_kinds(const struct bench *b) {
    bool head = false;
    for (int i = 0; i < b->n_results; i++)
        for (int k = 0; k < SHEAF_COMM_KIND_COUNT; k++) {
            const struct bench_result *r = &b->results[i];
            const struct kind_summary s = summarise_kind(r, k);
            if (!r->ranks[0].kinds[k].count) continue;
            if (!head)
                puts("\n| test | collective | a token | bytes | us | wire us | skew us |\n"
                     "|---|---|---:|---:|---:|---:|---:|");
            head = true;
            printf("| %s | %s | %.2f | %.0f | %.2f | %.2f | %.2f |\n", summarise(r).name,
                   sheaf_comm_kind_name((enum sheaf_comm_kind)k), s.per_token, s.bytes, s.us,
                   s.wire_us, s.skew_us);
        }
}

static void md_begin(const struct bench *b) {
    (void)b;
    puts("| model | size | ranks | threads | test | t/s | compute | comm | wait | hidden | "
         "coll/token | "
         "KiB/token | us/coll | skew us | bound t/s | of bound |\n"
         "|---|---:|---:|---:|---|---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|");
}

static void md_test(const struct bench *b, const struct bench_result *r) {
    const struct summary s = summarise(r);
    printf("| %s | %.2f MiB | %d | %d | %s | %.2f ± %.2f |", file_name(b),
           mib((double)b->info.total_bytes), sheaf_world_size(), b->ranks[0].threads, s.name,
           s.mean, s.deviation);
    cell(s.compute, "%.1f %%", 100);
    cell(s.comm, "%.1f %%", 100);
    cell(s.wait, "%.1f %%", 100);
    cell(s.hidden, "%.1f %%", 100);
    cell(s.collectives, "%.2f", 1);
    cell(s.bytes, "%.2f", 1.0 / 1024);
    cell(s.us, "%.2f", 1);
    cell(s.skew_us, "%.2f", 1);
    cell(s.bound, "%.2f", 1);
    cell(s.bound_share, "%.0f %%", 100);
    putchar('\n');
}

static void md_end(const struct bench *b) {
    const int n = sheaf_world_size();
    md_kinds(b);
    putchar('\n');
    for (int i = 0; i < b->n_results; i++)
        if (b->results[i].sha256[0])
            printf("ids of %s: sha256 %s%s\n", summarise(&b->results[i]).name, b->results[i].sha256,
                   b->results[i].same_ids ? "" : " (NOT THE SAME IN EVERY REPEAT)");
    for (int i = 0; i < b->n_results; i++) {
        const struct straggler slow = find_straggler(&b->results[i]);
        if (slow.rank < 0) continue;
        printf("straggler of %s: rank %d (%s); the others waited for it %.0f %% of the time\n",
               summarise(&b->results[i]).name, slow.rank, sheaf_world_host_name(slow.rank),
               100 * slow.share);
    }
    for (int i = 0; i < n; i++) {
        const struct bench_rank *r = &b->ranks[i];
        printf("rank %d: %s, %s, ", i, sheaf_world_host_name(i), r->cpu);
        if (r->threads > 0) /* else its devices are none of sheaf's CPU backend */
            printf("%s, %d thread%s, reads %.2f GB/s; ", sheaf_cpu_isa_name(), r->threads,
                   r->threads == 1 ? "" : "s", r->bandwidth * 1e-9);
        printf("weights %.1f MiB, compute %.1f MiB, peak resident %.1f MiB; of its host's time "
               "stolen %.1f %%, used by others %.1f %%\n",
               mib((double)r->weight_bytes), mib((double)r->compute_bytes),
               mib((double)r->peak_bytes), 100 * r->steal, 100 * r->foreign);
    }
    if (b->links)
        printf("link: an all-reduce takes at least %.2f us + %.2f us/MB over %s\n", latency_us(b),
               us_per_mb(b), sheaf_comm_describe(b->links));
    if (b->info.min_chunked)
        printf("batches of %" PRId64 " tokens and more of a prompt go in two chunks (--overlap)\n",
               b->info.min_chunked);
}

/* ---- csv, json: the same columns ---- */

struct column {
    const char *name;
    size_t offset; /* in struct summary */
    int digits;
};
#define AT(field) offsetof(struct summary, field)
static const struct column columns[] = {
    {"tokens_per_s", AT(mean), 4},
    {"tokens_per_s_stddev", AT(deviation), 4},
    {"tokens_per_s_median", AT(median), 4},
    {"compute_share", AT(compute), 5},
    {"communication_share", AT(comm), 5},
    {"wait_share", AT(wait), 5},
    {"hidden_share", AT(hidden), 5},
    {"collectives_per_token", AT(collectives), 4},
    {"bytes_per_token", AT(bytes), 1},
    {"us_per_collective", AT(us), 3},
    {"wire_us_per_collective", AT(wire_us), 3},
    {"skew_us_per_collective", AT(skew_us), 3},
    {"bound_tokens_per_s", AT(bound), 4},
    {"share_of_bound", AT(bound_share), 4},
};
enum { N_COLUMNS = sizeof columns / sizeof *columns };

static double value(const struct summary *s, const struct column *c) {
    double v;
    memcpy(&v, (const char *)s + c->offset, sizeof v);
    return v;
}

/* A field of a CSV file, RFC 4180. */
static void csv_text(const char *text) {
    putchar('"');
    for (; *text; text++) {
        if (*text == '"') putchar('"');
        putchar(*text);
    }
    putchar('"');
}

static void csv_begin(const struct bench *b) {
    (void)b;
    fputs("model,model_bytes,ranks,hosts,threads,kv_type,batch,test,n,depth,repeats", stdout);
    for (int c = 0; c < N_COLUMNS; c++) printf(",%s", columns[c].name);
    puts(",read_bytes_per_s,latency_us,us_per_mb,steal,foreign,sha256,sequences");
}

static void csv_test(const struct bench *b, const struct bench_result *r) {
    const struct summary s = summarise(r);
    csv_text(b->info.path);
    printf(",%zu,%d,%d,%d,%s,%" PRId64 ",%s%" PRId64 ",%" PRId64 ",%" PRId64 ",%d",
           b->info.total_bytes, sheaf_world_size(), sheaf_world_n_hosts(), b->ranks[0].threads,
           sheaf_type_name(b->o->kv_type), b->info.n_batch, r->test.is_gen ? "tg" : "pp", r->test.n,
           r->test.n, r->test.depth, r->n_repeats);
    for (int c = 0; c < N_COLUMNS; c++) printf(",%.*f", columns[c].digits, value(&s, &columns[c]));
    printf(",%.0f,%.3f,%.3f,%.4f,%.4f,%s,%" PRId64 "\n", b->ranks[0].bandwidth, latency_us(b),
           us_per_mb(b), r->steal, r->foreign, r->sha256, r->test.sequences);
}

static void csv_end(const struct bench *b) { (void)b; }

static void json_key(const char *key, const char *text) {
    printf("\"%s\": ", key);
    json_string(stdout, text, strlen(text));
}

static void json_test(const struct bench *b, const struct bench_result *r) {
    const struct summary s = summarise(r);
    if (r != b->results) printf(",\n  ");
    printf("{\"test\": \"%s%" PRId64 "\", \"n\": %" PRId64 ", \"depth\": %" PRId64
           ", \"sequences\": %" PRId64,
           r->test.is_gen ? "tg" : "pp", r->test.n, r->test.n, r->test.depth, r->test.sequences);
    for (int c = 0; c < N_COLUMNS; c++)
        printf(", \"%s\": %.*f", columns[c].name, columns[c].digits, value(&s, &columns[c]));
    printf(", \"samples_s\": [");
    for (int i = 0; i < r->n_repeats; i++) printf("%s%.9f", i ? ", " : "", r->seconds[i]);
    const struct straggler slow = find_straggler(r);
    if (slow.rank >= 0)
        printf("], \"straggler\": {\"rank\": %d, \"share\": %.4f}, \"collectives\": [", slow.rank,
               slow.share);
    else
        printf("], \"straggler\": null, \"collectives\": [");
    bool first = true;
    for (int k = 0; k < SHEAF_COMM_KIND_COUNT; k++) {
        const struct kind_summary ks = summarise_kind(r, k);
        if (!r->ranks[0].kinds[k].count) continue;
        printf("%s{\"kind\": \"%s\", \"per_token\": %.4f, \"bytes\": %.1f, \"us\": %.3f, "
               "\"wire_us\": %.3f, \"skew_us\": %.3f}",
               first ? "" : ", ", sheaf_comm_kind_name((enum sheaf_comm_kind)k), ks.per_token,
               ks.bytes, ks.us, ks.wire_us, ks.skew_us);
        first = false;
    }
    printf("], \"ids_sha256\": ");
    if (!r->sha256[0]) {
        printf("null}");
        return;
    }
    printf("\"%s\", \"same_ids\": %s, \"ids\": [", r->sha256, r->same_ids ? "true" : "false");
    for (int64_t i = 0; i < bench_tokens(&r->test); i++)
        printf("%s%" PRId32, i ? ", " : "", r->ids[i]);
    printf("]}");
}

static void json_begin(const struct bench *b) {
    char cut[512];
    putchar('{');
    json_key("sheaf", sheaf_version());
    printf(", ");
    json_key("build", sheaf_build_info());
    printf(", ");
    json_key("model", b->info.path);
    printf(", \"model_bytes\": %zu, \"hosts\": %d, \"isa\": \"%s\", \"kv_type\": \"%s\", "
           "\"batch\": %" PRId64 ", \"repeats\": %" PRId64 ", ",
           b->info.total_bytes, sheaf_world_n_hosts(), sheaf_cpu_isa_name(),
           sheaf_type_name(b->o->kv_type), b->info.n_batch, b->o->repeats);
    json_key("cut", sheaf_model_print_split(b->model, cut, sizeof cut));
    printf(", ");
    json_key("transport", transport(b));
    if (b->links)
        printf(", \"link\": {\"latency_us\": %.3f, \"us_per_mb\": %.3f}", latency_us(b),
               us_per_mb(b));
    else
        printf(", \"link\": null");
    printf(", \"load_s\": %.4f, \"min_chunked\": %" PRId64 ",\n \"tests\": [", b->load_s,
           b->info.min_chunked);
}

static void json_end(const struct bench *b) {
    printf("],\n \"ranks\": [");
    for (int i = 0; i < sheaf_world_size(); i++) {
        const struct bench_rank *r = &b->ranks[i];
        printf("%s{\"rank\": %d, ", i ? ",\n  " : "", i);
        json_key("host", sheaf_world_host_name(i));
        printf(", ");
        json_key("cpu", r->cpu);
        printf(", \"threads\": %d, \"read_bytes_per_s\": %.0f, \"weight_bytes\": %" PRIu64
               ", \"compute_bytes\": %" PRIu64 ", \"peak_resident_bytes\": %" PRIu64
               ", \"steal\": %.4f, \"foreign\": %.4f}",
               r->threads, r->bandwidth, r->weight_bytes, r->compute_bytes, r->peak_bytes, r->steal,
               r->foreign);
    }
    puts("]}");
}

static const struct {
    void (*begin)(const struct bench *);
    void (*test)(const struct bench *, const struct bench_result *);
    void (*end)(const struct bench *);
} reports[] = {[BENCH_MD] = {md_begin, md_test, md_end},
               [BENCH_CSV] = {csv_begin, csv_test, csv_end},
               [BENCH_JSON] = {json_begin, json_test, json_end}};

void bench_report_begin(const struct bench *b) {
    reports[b->o->format].begin(b);
    fflush(stdout);
}

void bench_report_test(const struct bench *b, const struct bench_result *r) {
    reports[b->o->format].test(b, r);
    fflush(stdout);
}

void bench_report_end(const struct bench *b) { reports[b->o->format].end(b); }
