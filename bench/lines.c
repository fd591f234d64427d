/* The cost of cache lines that two cores exchange: the bound of sums in shared memory.
 *
 *   bench-lines [CORE CORE]                     default: 0 1
 *
 * Medians. A flag's way from one core to the other, and nanoseconds a line (64 bytes) of 4 and 64
 * KiB that the one core touches after the other has. */
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/clock.h"
#include "base/sort.h"
#include "base/thread.h"

enum { LINE = 64, MOST = 64 * 1024, ROUNDS = 401, PINGS = 200 };

static struct {
    _Alignas(4096) uint8_t data[MOST];
    _Alignas(2 * LINE) _Atomic uint64_t mine;
    _Alignas(2 * LINE) _Atomic uint64_t theirs;
} shared;
static _Atomic uint64_t sink;

static void tell(_Atomic uint64_t *flag, uint64_t value) {
    atomic_store_explicit(flag, value, memory_order_release);
}
static void await(_Atomic uint64_t *flag, uint64_t value) {
    while (atomic_load_explicit(flag, memory_order_acquire) < value) sheaf__relax();
}

static void nothing(size_t bytes) { (void)bytes; }
static void read_lines(size_t bytes) {
    uint64_t sum = 0;
    for (size_t i = 0; i < bytes; i += LINE) sum += *(volatile uint64_t *)(void *)(shared.data + i);
    atomic_fetch_add(&sink, sum); /* and waits for what is under way, as below */
}
static void write_lines(size_t bytes) {
    for (size_t i = 0; i < bytes; i += LINE) *(volatile uint64_t *)(void *)(shared.data + i) = i;
    atomic_fetch_add(&sink, 1);
}
static void read_and_write_lines(size_t bytes) {
    read_lines(bytes);
    write_lines(bytes);
}
static void take_lines(size_t bytes) {
    for (size_t i = 0; i < bytes; i += LINE) __builtin_prefetch(shared.data + i, 1);
    read_and_write_lines(bytes);
}

static const struct {
    const char *name;
    void (*before)(size_t bytes); /* this core */
    void (*other)(size_t bytes);  /* then the other core */
    void (*after)(size_t bytes);  /* then this core, as the timed one */
    void (*timed)(size_t bytes);
} cases[] = {
    {"read what the other wrote", nothing, write_lines, nothing, read_lines},
    {"read it, then write it", nothing, write_lines, nothing, read_and_write_lines},
    {"the same, fetched for writing", nothing, write_lines, nothing, take_lines},
    {"write what the other wrote and I have read", nothing, write_lines, read_lines, write_lines},
    {"write what I wrote and the other has read", write_lines, read_lines, nothing, write_lines},
};
enum { CASES = sizeof cases / sizeof *cases };
static const size_t sizes[] = {4096, MOST};

static cpu_set_t only(int core) {
    cpu_set_t set;
    CPU_ZERO(&set);
    CPU_SET((size_t)core, &set);
    return set;
}

static void *other_core(void *unused) {
    uint64_t n = 0;
    for (int i = 0; i < ROUNDS * PINGS; i++) {
        await(&shared.mine, ++n);
        tell(&shared.theirs, n);
    }
    for (size_t c = 0; c < CASES; c++)
        for (size_t s = 0; s < 2; s++)
            for (int r = 0; r < ROUNDS; r++) {
                await(&shared.mine, ++n);
                cases[c].other(sizes[s]);
                tell(&shared.theirs, n);
            }
    return unused;
}

int main(int argc, char **argv) {
    const cpu_set_t here = only(argc == 3 ? atoi(argv[1]) : 0),
                    there = only(argc == 3 ? atoi(argv[2]) : 1);
    uint64_t n = 0, times[ROUNDS];
    pthread_t thread;
    pthread_attr_t attr;
    pthread_attr_init(&attr);
    pthread_attr_setaffinity_np(&attr, sizeof there, &there);
    if (sched_setaffinity(0, sizeof here, &here) ||
        pthread_create(&thread, &attr, other_core, NULL)) {
        fprintf(stderr, "bench-lines: cannot run on these cores\n");
        return 1;
    }
    for (int r = 0; r < ROUNDS; r++) {
        const uint64_t begin = sheaf__time_ns();
        for (int i = 0; i < PINGS; i++) {
            tell(&shared.mine, ++n);
            await(&shared.theirs, n);
        }
        times[r] = sheaf__time_ns() - begin;
    }
    printf("%-48s %6.0f ns\n%-48s %9s %9s\n", "one-way latency of a flag",
           (double)sheaf__median(times, ROUNDS) / (2 * PINGS), "ns a line of", "4 KiB", "64 KiB");
    for (size_t c = 0; c < CASES; c++) {
        printf("%-48s", cases[c].name);
        for (size_t s = 0; s < 2; s++) {
            for (int r = 0; r < ROUNDS; r++) {
                cases[c].before(sizes[s]);
                tell(&shared.mine, ++n);
                await(&shared.theirs, n);
                cases[c].after(sizes[s]);
                const uint64_t begin = sheaf__time_ns();
                cases[c].timed(sizes[s]);
                times[r] = sheaf__time_ns() - begin;
            }
            printf(" %9.1f", (double)sheaf__median(times, ROUNDS) / (double)(sizes[s] / LINE));
        }
        printf("\n");
    }
    pthread_join(thread, NULL);
    return 0;
}
