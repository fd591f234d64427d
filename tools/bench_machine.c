/* What the machine can do, and who else uses it while we measure. Linux; elsewhere zeros. */
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

#include "bench.h"

enum { PASSES = 6, MAX_THREADS = 1024 };
static const size_t part_bytes = (size_t)128 << 20; /* of a thread: larger than its share of L3 */

double bench_now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* ---- streaming read ---- */

struct reading {
    pthread_mutex_t gate; /* held until all readers are there */
    pthread_barrier_t barrier;
    bool go; /* read after passing the gate */
};

struct reader {
    struct reading *reading;
    pthread_t thread;
    uint64_t *data; /* seen from outside, so that no compiler drops a pass */
    uint64_t sum;
    double begin[PASSES], end[PASSES]; /* by its own clock: the caller may be late at a barrier */
    bool failed;
};

#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__) &&                             \
    !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
__attribute__((target_clones("avx512f", "avx2", "default"), optimize("O3")))
#endif
static uint64_t
sum_words(const uint64_t *x, size_t n) {
    uint64_t s[32] = {0};
    for (size_t i = 0; i + 32 <= n; i += 32)
        for (size_t j = 0; j < 32; j++) s[j] += x[i + j];
    for (size_t j = 1; j < 32; j++) s[0] += s[j];
    return s[0];
}

/* All pass the same barrier: after touching the memory and before each pass. */
static void *read_part(void *arg) {
    struct reader *r = arg;
    struct reading *all = r->reading;
    pthread_mutex_lock(&all->gate);
    const bool go = all->go;
    pthread_mutex_unlock(&all->gate);
    if (!go) return NULL;
    r->data = aligned_alloc(4096, part_bytes);
    r->failed = !r->data;
    if (r->data) memset(r->data, 1, part_bytes);
    for (int pass = 0; pass < PASSES; pass++) {
        pthread_barrier_wait(&all->barrier);
        r->begin[pass] = bench_now();
        if (r->data) r->sum += sum_words(r->data, part_bytes / sizeof *r->data);
        r->end[pass] = bench_now();
    }
    free(r->data);
    return NULL;
}

/* Of the fastest pass, from the first that began to the last that ended. */
static double best_speed(const struct reader *readers, int n) {
    double best = 0;
    for (int pass = 0; pass < PASSES; pass++) {
        double begin = readers[0].begin[pass], end = readers[0].end[pass];
        for (int i = 1; i < n; i++) {
            if (readers[i].begin[pass] < begin) begin = readers[i].begin[pass];
            if (readers[i].end[pass] > end) end = readers[i].end[pass];
        }
        const double speed = end > begin ? (double)part_bytes * n / (end - begin) : 0;
        if (speed > best) best = speed;
    }
    return best;
}

enum sheaf_status bench_read_bandwidth(int threads, double *bytes_per_s) {
    const int n = threads < 1 ? 1 : threads > MAX_THREADS ? MAX_THREADS : threads;
    struct reader *readers = calloc((size_t)n, sizeof *readers);
    struct reading all = {.gate = PTHREAD_MUTEX_INITIALIZER};
    bool failed = false;
    int started = 0;
    *bytes_per_s = 0;
    if (!readers || pthread_barrier_init(&all.barrier, NULL, (unsigned)n)) {
        free(readers);
        return sheaf_set_error(SHEAF_STATUS_ALLOC_FAILED, "no memory to measure the bandwidth");
    }
    pthread_mutex_lock(&all.gate);
    for (; started < n; started++) {
        readers[started].reading = &all;
        if (pthread_create(&readers[started].thread, NULL, read_part, &readers[started])) break;
    }
    all.go = started == n;
    pthread_mutex_unlock(&all.gate);
    for (int i = 0; i < started; i++) {
        pthread_join(readers[i].thread, NULL);
        failed = failed || readers[i].failed;
    }
    pthread_barrier_destroy(&all.barrier);
    if (all.go && !failed) *bytes_per_s = best_speed(readers, n);
    free(readers);
    if (!all.go)
        return sheaf_set_error(SHEAF_STATUS_FAILED,
                               "cannot start %d threads to measure the bandwidth", n);
    if (failed)
        return sheaf_set_error(SHEAF_STATUS_ALLOC_FAILED, "no memory to measure the bandwidth");
    return SHEAF_STATUS_SUCCESS;
}

/* ---- who uses it ---- */

static double seconds_of(struct timeval t) { return (double)t.tv_sec + 1e-6 * (double)t.tv_usec; }

struct bench_load bench_load_now(void) {
    struct bench_load load = {.time = bench_now()};
    unsigned long long user = 0, nice = 0, system = 0, idle = 0, iowait = 0, irq = 0, soft = 0,
                       steal = 0;
    const double tick = 1.0 / (double)sysconf(_SC_CLK_TCK);
    struct rusage usage;
    FILE *f = fopen("/proc/stat", "re");
    if (f && fscanf(f, "cpu %llu %llu %llu %llu %llu %llu %llu %llu", &user, &nice, &system, &idle,
                    &iowait, &irq, &soft, &steal) == 8) {
        load.busy = tick * (double)(user + nice + system + irq + soft);
        load.steal = tick * (double)steal;
    }
    if (f) fclose(f);
    if (getrusage(RUSAGE_SELF, &usage) == 0)
        load.own = seconds_of(usage.ru_utime) + seconds_of(usage.ru_stime);
    load.cpus = (int)sysconf(_SC_NPROCESSORS_ONLN);
    return load;
}

/* The value of the first line "key<blanks>: value" of a file of /proc; "" if there is none. */
static void proc_value(const char *path, const char *key, char *value, size_t size) {
    char line[256];
    FILE *f = fopen(path, "re");
    value[0] = 0;
    while (f && !value[0] && fgets(line, sizeof line, f)) {
        const char *colon = strchr(line, ':');
        if (!colon || strncmp(line, key, strlen(key)) != 0) continue;
        colon += 1 + strspn(colon + 1, " \t");
        snprintf(value, size, "%.*s", (int)strcspn(colon, "\n"), colon);
    }
    if (f) fclose(f);
}

void bench_cpu_model(char *text, size_t size) {
    proc_value("/proc/cpuinfo", "model name", text, size);
    if (!text[0]) snprintf(text, size, "unknown CPU");
}

size_t bench_peak_resident(void) {
    char value[64] = "";
    proc_value("/proc/self/status", "VmHWM", value, sizeof value);
    return (size_t)strtoull(value, NULL, 10) * 1024;
}

void bench_forget_peak(void) {
    FILE *f = fopen("/proc/self/clear_refs", "we");
    if (!f) return;
    fputs("5", f); /* proc(5): resets the peak to what is resident now */
    fclose(f);
}
