/* A library for scripts/bench-start: preloaded into a program, it writes down when the program calls the functions that
 * stand at the borders of a start.
 *
 * At the end of the process, or before it prints its first text, it writes lines "nanoseconds name" (CLOCK_MONOTONIC)
 * to $START_PHASES.RANK. Each name is written once, at its first event. The program computes what it computes without
 * it. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { MOST = 64 };

static struct {
    uint64_t ns;
    const char *name;
} events[MOST];
static int n_events, generates;

static void note(const char *name) {
    struct timespec t;
    for (int i = 0; i < n_events; i++)
        if (!strcmp(events[i].name, name)) return;
    clock_gettime(CLOCK_MONOTONIC, &t);
    if (n_events == MOST) return;
    events[n_events].ns = (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
    events[n_events++].name = name;
}

__attribute__((constructor)) static void begin(void) { note("libraries"); }

__attribute__((destructor)) static void write_down(void) {
    const char *to = getenv("START_PHASES"), *rank = getenv("OMPI_COMM_WORLD_RANK");
    char path[512];
    if (!to || n_events < 2) return;
    snprintf(path, sizeof path, "%s.%s", to, rank ? rank : "0");
    FILE *f = fopen(path, "we");
    for (int i = 0; f && i < n_events; i++)
        fprintf(f, "%llu %s\n", (unsigned long long)events[i].ns, events[i].name);
    if (f) fclose(f);
    n_events = 0;
}

/* `next`: the function of that name behind this library. */
#define NEXT(f)                                                                                    \
    static __typeof__(f) *next;                                                                    \
    if (!next) next = (__typeof__(f) *)dlsym(RTLD_NEXT, #f);                                       \
    if (!next) abort()

int MPI_Init_thread(int *argc, char ***argv, int wanted, int *given) {
    NEXT(MPI_Init_thread);
    note("before MPI_Init");
    const int code = next(argc, argv, wanted, given);
    note("MPI_Init");
    return code;
}

int MPI_Comm_dup(void *from, void *to) {
    NEXT(MPI_Comm_dup);
    const int code = next(from, to);
    note("first MPI_Comm_dup");
    return code;
}

int sheaf_world_init(const void *params) {
    NEXT(sheaf_world_init);
    const int status = next(params);
    note("world");
    return status;
}

int sheaf_gguf_open(const char *path, void *out) {
    NEXT(sheaf_gguf_open);
    note("modules");
    const int status = next(path, out);
    note("file opened");
    return status;
}

int sheaf_world_devices(void *devices, void *n) {
    NEXT(sheaf_world_devices);
    note("fingerprint");
    const int status = next(devices, n);
    note("devices");
    return status;
}

int sheaf_backend_meta_device(void *devs, size_t n, void *get_state, void *user, const void *params,
                              void *out) {
    NEXT(sheaf_backend_meta_device);
    note("split");
    const int status = next(devs, n, get_state, user, params, out);
    note("group");
    return status;
}

void sheaf_world_enter(int phase, const char *name) {
    NEXT(sheaf_world_enter);
    if (name && !strcmp(name, "memory for the weights")) note("ops asked");
    next(phase, name);
}

int sheaf_gguf_check_unchanged(const void *gguf) {
    NEXT(sheaf_gguf_check_unchanged);
    const int status = next(gguf);
    note("weights read");
    return status;
}

int sheaf_model_open(const void *params, void *out) {
    NEXT(sheaf_model_open);
    const int status = next(params, out);
    note("cache");
    return status;
}

int sheaf_model_generate(void *model, const char *prompt, const void *params, void *fn, void *user,
                         void *result) {
    NEXT(sheaf_model_generate);
    note("tokenizer");
    generates = 1;
    return next(model, prompt, params, fn, user, result);
}

int fflush(FILE *f) {
    NEXT(fflush);
    const int code = next(f);
    if (f == stdout && generates) {
        generates = 0;
        note("first token");
        write_down();
    }
    return code;
}
