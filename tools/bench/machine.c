/* What the machine can do, and how much others use it while we measure. Linux; elsewhere zeros. */
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

#include "base/arm_cpu.h"
#include "base/clock.h"
#include "bench.h"
#include "common/reading.h"

/* The part of a thread is much larger than its share of L3: of 128 MiB, read again and again beside
 * 32 MiB of L3, so much was still there that a Zen 5 read 46 to 50 GB/s, and 40 to 43 of 256 MiB to
 * 1 GiB. Under a sanitizer the speed says nothing, and reading so much takes seconds. */
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
enum { PASSES = 5, PART_MIB = 4 };
#else
enum { PASSES = 15, PART_MIB = 256 };
#endif
enum { MAX_THREADS = 1024 };
static const size_t part_bytes = (size_t)PART_MIB << 20;

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

/* As buffers of weights are: large pages, where the system gives them. */
static uint64_t *new_part(void) {
    const size_t large = (size_t)2 << 20;
    uint64_t *p = aligned_alloc(large, part_bytes + large); /* what is fetched ahead is there */
    if (p) madvise(p, part_bytes + large, MADV_HUGEPAGE);
    if (p) memset(p, 1, part_bytes + large);
    return p;
}

/* All pass the same barrier before each pass, with the thread that has met the other ranks. */
static void *read_part(void *arg) {
    struct reader *r = arg;
    struct reading *all = r->reading;
    pthread_mutex_lock(&all->gate);
    const bool go = all->go;
    pthread_mutex_unlock(&all->gate);
    if (!go) return NULL;
    r->data = new_part();
    r->failed = !r->data;
    for (int pass = 0; pass < PASSES; pass++) {
        const int loop = pass % READING_LOOPS;
        pthread_barrier_wait(&all->barrier);
        r->begin[pass] = sheaf__seconds();
        if (r->data) r->sum += read_words(r->data, part_bytes / sizeof *r->data, loop);
        r->end[pass] = sheaf__seconds();
    }
    free(r->data);
    return NULL;
}

/* From the first that began to the last that ended. */
static double speed_of(const struct reader *readers, int n, int pass) {
    double begin = readers[0].begin[pass], end = readers[0].end[pass];
    for (int i = 1; i < n; i++) {
        if (readers[i].begin[pass] < begin) begin = readers[i].begin[pass];
        if (readers[i].end[pass] > end) end = readers[i].end[pass];
    }
    return end > begin ? (double)part_bytes * n / (end - begin) : 0;
}

/* Starts n readers and joins them; speed [PASSES]. Every rank meets all others before each pass,
 * also one that reads nothing (n is 0) or fails. */
static enum sheaf_status read_passes(int n, double *speed) {
    struct reader *readers = calloc((size_t)n + 1, sizeof *readers);
    struct reading all = {.gate = PTHREAD_MUTEX_INITIALIZER};
    enum sheaf_status st = SHEAF_STATUS_SUCCESS, met = SHEAF_STATUS_SUCCESS;
    int started = 0;
    if (!readers || pthread_barrier_init(&all.barrier, NULL, (unsigned)n + 1)) {
        free(readers);
        readers = NULL;
        st = sheaf_set_error(SHEAF_STATUS_ALLOC_FAILED, "no memory to measure the bandwidth");
    }
    pthread_mutex_lock(&all.gate);
    for (; readers && started < n; started++) {
        readers[started].reading = &all;
        if (pthread_create(&readers[started].thread, NULL, read_part, &readers[started])) break;
    }
    all.go = readers && started == n;
    pthread_mutex_unlock(&all.gate);
    if (readers && !all.go)
        st = sheaf_set_error(SHEAF_STATUS_FAILED,
                             "cannot start %d threads to measure the bandwidth", n);
    for (int pass = 0; pass < PASSES; pass++) {
        if (!met) met = sheaf_world_barrier("measuring the memory");
        if (all.go) pthread_barrier_wait(&all.barrier);
    }
    for (int i = 0; i < started; i++) pthread_join(readers[i].thread, NULL);
    for (int i = 0; i < started && all.go && !st; i++)
        if (readers[i].failed)
            st = sheaf_set_error(SHEAF_STATUS_ALLOC_FAILED, "no memory to measure the bandwidth");
    for (int pass = 0; pass < PASSES && all.go && n; pass++)
        speed[pass] = speed_of(readers, n, pass);
    if (readers) pthread_barrier_destroy(&all.barrier);
    free(readers);
    return met ? met : sheaf_world_agree(st, "measuring the memory");
}

enum sheaf_status bench_read_bandwidth(int threads, double *bytes_per_s) {
    const int n_ranks = sheaf_world_size();
    double speed[PASSES] = {0}, best = 0;
    double(*all)[PASSES] = calloc((size_t)n_ranks, sizeof *all);
    enum sheaf_status st = SHEAF_STATUS_SUCCESS;
    *bytes_per_s = 0;
    if (!all) st = sheaf_set_error(SHEAF_STATUS_ALLOC_FAILED, "no memory to measure the bandwidth");
    st = sheaf_world_agree(st, "measuring the memory");
    if (!st) st = read_passes(threads < MAX_THREADS ? threads : MAX_THREADS, speed);
    if (!st) st = sheaf_world_all_gather(speed, sizeof speed, all, "measuring the memory");
    for (int pass = 0; pass < PASSES && !st; pass++) {
        double sum = 0;
        for (int r = 0; r < n_ranks; r++) sum += all[r][pass];
        if (sum > best) best = sum, *bytes_per_s = speed[pass];
    }
    free(all);
    return st;
}

/* ---- how much others use it ---- */

static double seconds_of(struct timeval t) { return (double)t.tv_sec + 1e-6 * (double)t.tv_usec; }

struct bench_load bench_load_now(void) {
    struct bench_load load = {.time = sheaf__seconds()};
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
    char implementer[16], part[16];
    proc_value("/proc/cpuinfo", "model name", text, size);
    if (text[0]) return;
    proc_value("/proc/cpuinfo", "CPU implementer", implementer, sizeof implementer);
    proc_value("/proc/cpuinfo", "CPU part", part, sizeof part);
    const char *name = sheaf__arm_cpu_name(implementer, part);
    snprintf(text, size, "%s", name ? name : "unknown CPU");
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
