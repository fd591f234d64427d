/* The cost of thread teams: a barrier, waking and joining; and whether two teams of one process
 * slow one another, on cores of their own and on the same cores. Prints figures of
 * docs/performance-kernels.md.
 *
 *   bench-teams */
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "base/sort.h"
#include "cpu/device/team.h"
#include "cpu/kernels/kernels.h"

#include "bench.h"

enum { BARRIERS = 1000, RUNS = 201, MAX_CORES = 1024, FLOATS = 4096, SUMS = 16, STEPS = 64 };

struct cores { /* of a team: its member i is bound to core[i] */
    int n, core[MAX_CORES];
};

static void bind(void *user, int ith) {
    const struct cores *cores = user;
    cpu_set_t set;
    CPU_ZERO(&set);
    CPU_SET((size_t)cores->core[ith % cores->n], &set);
    sched_setaffinity(0, sizeof set, &set);
}

static void nothing(void *user, int ith, int nth, struct sheaf__cpu_sync *sync) {
    (void)user, (void)ith, (void)nth, (void)sync;
}
static void barriers(void *user, int ith, int nth, struct sheaf__cpu_sync *sync) {
    (void)user, (void)ith;
    for (int i = 0; i < BARRIERS; i++) sheaf__cpu_barrier(sync, nth);
}

static float data[FLOATS];
static _Atomic double seen; /* so that no sum is left out */

/* As a graph does: every member computes in its first cache, then all meet. */
static void steps(void *user, int ith, int nth, struct sheaf__cpu_sync *sync) {
    const struct sheaf__cpu_kernels *kern = user;
    double sum = 0;
    (void)ith;
    for (int step = 0; step < STEPS; step++) {
        for (int i = 0; i < SUMS; i++) sum += kern->sum_sq(FLOATS, data);
        sheaf__cpu_barrier(sync, nth);
    }
    seen = sum;
}

/* The median of RUNS; idle_us of sleep before each. */
static double run_us(struct sheaf__cpu_team *team, sheaf__cpu_team_fn fn, void *user,
                     unsigned idle_us) {
    double t[RUNS];
    for (int i = 0; i < RUNS; i++) {
        if (idle_us) usleep(idle_us);
        const double start = sheaf__seconds();
        sheaf__cpu_team_run(team, fn, user);
        t[i] = 1e6 * (sheaf__seconds() - start);
    }
    return sheaf__median_of_reals(t, RUNS);
}

static struct sheaf__cpu_team *new_team(struct cores *cores, int n, bool shared) {
    const struct sheaf__cpu_team_params params = {
        .n_threads = n, .shared = shared, .bind = bind, .bind_user = cores};
    struct sheaf__cpu_team *team = NULL;
    bind(cores, 0);
    if (sheaf__cpu_team_new(&params, &team)) {
        fprintf(stderr, "bench-teams: no team of %d threads\n", n);
        exit(1);
    }
    return team;
}

/* ---- two teams ---- */

struct side {
    struct cores cores;
    int n_threads;
    bool shared;
    pthread_barrier_t *start;
    atomic_int *working; /* sides that still measure: a side that is done continues until all are */
    double us;
};

static void *one_side(void *arg) {
    struct side *s = arg;
    void *kern = (void *)(uintptr_t)sheaf__cpu_kernels();
    struct sheaf__cpu_team *team = new_team(&s->cores, s->n_threads, s->shared);
    pthread_barrier_wait(s->start);
    s->us = run_us(team, steps, kern, 0);
    atomic_fetch_sub(s->working, 1);
    while (atomic_load(s->working)) sheaf__cpu_team_run(team, steps, kern);
    sheaf__cpu_team_free(team);
    return NULL;
}

/* The slower of n sides at the same time. */
static double together_us(struct side *sides, int n) {
    pthread_barrier_t start;
    pthread_t thread[2];
    atomic_int working = n;
    double most = 0;
    pthread_barrier_init(&start, NULL, (unsigned)n);
    for (int i = 0; i < n; i++) {
        sides[i].start = &start;
        sides[i].working = &working;
        if (pthread_create(&thread[i], NULL, one_side, &sides[i])) exit(1);
    }
    for (int i = 0; i < n; i++) {
        pthread_join(thread[i], NULL);
        most = sides[i].us > most ? sides[i].us : most;
    }
    pthread_barrier_destroy(&start);
    return most;
}

int main(void) {
    static struct cores all;
    static struct side own[2], same[2];
    cpu_set_t mine;
    if (sched_getaffinity(0, sizeof mine, &mine)) CPU_ZERO(&mine);
    for (int c = 0; c < MAX_CORES && c < CPU_SETSIZE; c++)
        if (CPU_ISSET((size_t)c, &mine)) all.core[all.n++] = c;
    for (int i = 0; i < FLOATS; i++) data[i] = 1.0f / (float)(i + 1);
    if (all.n < 2) {
        printf("a single core: nothing to measure\n");
        return 0;
    }
    struct sheaf__cpu_team *team = new_team(&all, 2, false);
    printf("team of 2 (median): barrier %.2f us, run %.2f us, run after 5 ms idle %.1f us\n",
           run_us(team, barriers, NULL, 0) / BARRIERS, run_us(team, nothing, NULL, 0),
           run_us(team, nothing, NULL, 5000));
    sheaf__cpu_team_free(team);
    for (int i = 0; i < 2; i++) {
        const int half = all.n / 2;
        own[i].cores.n = own[i].n_threads = half;
        for (int c = 0; c < half; c++) own[i].cores.core[c] = all.core[i * half + c];
        same[i].cores.n = same[i].n_threads = 2;
        same[i].shared = true;
        for (int c = 0; c < 2; c++) same[i].cores.core[c] = all.core[c];
    }
    const double alone = together_us(own, 1), beside = together_us(own, 2);
    printf("two teams on cores of their own, %d threads each: %d steps take %.1f us alone, %.1f us "
           "beside the other (%.2f)\n",
           own[0].n_threads, STEPS, alone, beside, beside / alone);
    const double shared = together_us(same, 2);
    printf("two teams of 2 on the same two cores: %.1f us each, %.2f of twice the time alone\n",
           shared, shared / (2 * alone));
    return 0;
}
