/* Runs a fuzz target without libFuzzer: mutates its seeds for a time. What libFuzzer has and this has
 * not is the knowledge of which input reaches new code; the targets are the same.
 *
 *   fuzz-NAME [-max_total_time=S] [-runs=N] [-seed=N] [FILE or FOLDER ...]
 *
 * With only files, it runs these, once each: how a finding is looked at again. The input that is
 * being run lies in crash-NAME.PID in the current folder if the process ends by it. */
#include <dirent.h>
#include <fcntl.h>
#include <signal.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/clock.h"
#include "fuzz.h"

enum { LONGEST = 1 << 16, MOST_SEEDS = 4096 };

static struct input {
    uint8_t *data;
    size_t n;
} seeds[MOST_SEEDS];
static int n_seeds;
static uint8_t now[LONGEST];
static size_t n_now;
static uint64_t state = 1;
static const char *name;

static uint64_t draw(uint64_t below) {
    state += 0x9e3779b97f4a7c15u; /* SplitMix64, public domain, S. Vigna */
    uint64_t z = state;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return (z ^ z >> 31) % below;
}

static void add_seed(const char *path) {
    FILE *f = n_seeds < MOST_SEEDS ? fopen(path, "re") : NULL;
    struct input *s = &seeds[n_seeds];
    if (!f) return;
    s->data = malloc(LONGEST);
    s->n = s->data ? fread(s->data, 1, LONGEST, f) : 0;
    fclose(f);
    n_seeds++;
}

/* Returns whether it is a folder. */
static bool add_seeds(const char *path) {
    struct stat st;
    char file[4096];
    DIR *d = stat(path, &st) || !S_ISDIR(st.st_mode) ? NULL : opendir(path);
    if (!d) add_seed(path);
    if (!d) return false;
    for (const struct dirent *e; (e = readdir(d));) {
        snprintf(file, sizeof file, "%s/%s", path, e->d_name);
        if (e->d_name[0] != '.') add_seed(file);
    }
    closedir(d);
    return true;
}

/* ---- mutations ---- */

static void put_number(void) {
    static const uint64_t numbers[] = {
        0,        1,          2,         7,          127,        128,
        255,      256,        32767,     65535,      1u << 20,   INT32_MAX,
        1u << 31, UINT32_MAX, INT64_MAX, UINT64_MAX, 1ull << 40, UINT64_MAX / 2};
    const size_t n = (size_t)1 << draw(4), at = draw(n_now);
    const uint64_t value = numbers[draw(sizeof numbers / sizeof *numbers)] + draw(3) - 1;
    for (size_t i = 0; i < n && at + i < n_now; i++) now[at + i] = (uint8_t)(value >> 8 * i);
}

static void cut_out(void) {
    const size_t at = draw(n_now), n = 1 + draw(n_now - at < 64 ? n_now - at : 64);
    memmove(now + at, now + at + n, n_now - at - n);
    n_now -= n;
}

static void repeat(void) {
    const size_t from = draw(n_now), n = 1 + draw(n_now - from < 256 ? n_now - from : 256);
    const size_t at = draw(n_now + 1);
    uint8_t copy[256];
    if (n_now + n > LONGEST) return;
    memcpy(copy, now + from, n);
    memmove(now + at + n, now + at, n_now - at);
    memcpy(now + at, copy, n);
    n_now += n;
}

/* The rest becomes that of another seed. */
static void join_another(void) {
    const struct input *s = &seeds[draw((uint64_t)n_seeds)];
    const size_t at = draw(n_now + 1), from = draw(s->n + 1);
    const size_t n = s->n - from < LONGEST - at ? s->n - from : LONGEST - at;
    if (n) memcpy(now + at, s->data + from, n);
    n_now = at + n;
}

static void mutate(void) {
    if (!n_now) now[n_now++] = (uint8_t)draw(256);
    switch (draw(7)) {
    case 0:
        now[draw(n_now)] ^= (uint8_t)(1u << draw(8));
        break;
    case 1:
    case 2:
        now[draw(n_now)] = (uint8_t)draw(256);
        break;
    case 3:
        put_number();
        break;
    case 4:
        cut_out();
        break;
    case 5:
        repeat();
        break;
    default:
        if (n_seeds) join_another();
    }
}

/* ---- runs ---- */

/* Also a sanitizer's: it ends with SIGABRT if told abort_on_error=1. */
static void keep_input(int number) {
    char path[256];
    snprintf(path, sizeof path, "crash-%s.%ld", name, (long)getpid());
    const int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
    if (fd >= 0 && write(fd, now, n_now) == (ssize_t)n_now) {
        const char text[] = "the input is in a file crash-NAME.PID of this folder\n";
        if (write(STDERR_FILENO, text, sizeof text - 1) < 0) number = SIGABRT;
    }
    signal(number, SIG_DFL);
    raise(number);
}

static void run_one(const uint8_t *data, size_t n) {
    if (n) memmove(now, data, n);
    n_now = n;
    uint8_t *exact = malloc(n); /* so that a sanitizer sees a read behind its end */
    if (n) memcpy(exact, data, n);
    LLVMFuzzerTestOneInput(exact, n);
    free(exact);
}

static void make_input(void) {
    const struct input *s = n_seeds ? &seeds[draw((uint64_t)n_seeds)] : NULL;
    n_now = s ? s->n : draw(256);
    if (s && s->n) memcpy(now, s->data, s->n);
    for (size_t i = 0; !s && i < n_now; i++) now[i] = (uint8_t)draw(256);
    for (uint64_t k = 1 + draw(1u << draw(5)); k--;) mutate();
}

int main(int argc, char **argv) {
    static const int ends[] = {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGABRT, SIGALRM};
    double seconds = 0;
    long runs = 0, done = 0;
    bool folder = false;
    name = strrchr(argv[0], '/') ? strrchr(argv[0], '/') + 1 : argv[0];
    for (int i = 1; i < argc; i++) {
        if (!strncmp(argv[i], "-max_total_time=", 16))
            seconds = strtod(argv[i] + 16, NULL);
        else if (!strncmp(argv[i], "-runs=", 6))
            runs = strtol(argv[i] + 6, NULL, 10);
        else if (!strncmp(argv[i], "-seed=", 6))
            state = strtoull(argv[i] + 6, NULL, 10);
        else if (argv[i][0] != '-')
            folder = add_seeds(argv[i]) || folder;
    }
    for (size_t i = 0; i < sizeof ends / sizeof *ends; i++) signal(ends[i], keep_input);
    const double start = sheaf__seconds();
    for (int i = 0; i < n_seeds; i++, done++) run_one(seeds[i].data, seeds[i].n);
    const bool only_files = n_seeds && !folder;
    double t = sheaf__seconds(), renewed = t - 2;
    while (!only_files && (runs ? done < runs : t < start + seconds)) {
        if (t > renewed + 1) {
            alarm(30); /* no input takes so long */
            renewed = t;
        }
        make_input();
        run_one(now, n_now);
        done++;
        t = sheaf__seconds();
    }
    fprintf(stderr, "%s: %ld executions in %.1f s\n", name, done, sheaf__seconds() - start);
    for (int i = 0; i < n_seeds; i++) free(seeds[i].data);
    return 0;
}
