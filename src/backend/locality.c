/* This process's place among the ranks of its host. See locality.h. */
#include "backend/locality.h"

#include <sched.h>
#include <string.h>
#include <unistd.h>

enum { BITS = 8 * sizeof(unsigned long), WORDS = SHEAF__MOST_CPUS / BITS };

static bool has(const struct sheaf__cpus *cpus, int cpu) {
    return cpus->word[cpu / BITS] >> cpu % BITS & 1;
}

static bool meet(const struct sheaf__cpus *a, const struct sheaf__cpus *b) {
    unsigned long both = 0;
    for (int i = 0; i < WORDS; i++) both |= a->word[i] & b->word[i];
    return both != 0;
}

void sheaf__cpus_here(struct sheaf__cpus *cpus) {
    memset(cpus, 0, sizeof *cpus);
    if (!sched_getaffinity(0, sizeof *cpus, (cpu_set_t *)cpus->word)) return;
    const long online = sysconf(_SC_NPROCESSORS_ONLN);
    for (int i = 0; i < online && i < SHEAF__MOST_CPUS; i++)
        cpus->word[i / BITS] |= 1ul << i % BITS;
}

double sheaf__cpus_each(const struct sheaf__cpus *of, const int *tasks, int n, int me) {
    double sum = 0;
    for (int cpu = 0; cpu < SHEAF__MOST_CPUS; cpu++) {
        if (!has(&of[me], cpu)) continue;
        int load = 0;
        for (int i = 0; i < n; i++) load += has(&of[i], cpu) ? tasks[i] : 0;
        sum += 1.0 / (load ? load : 1);
    }
    return sum + 1e-9; /* six sixths are 1 */
}

struct sheaf__locality sheaf__locality_of(const struct sheaf__cpus *bindings, const int *here,
                                          int n, int me) {
    const struct sheaf__cpus *mine = &bindings[me];
    struct sheaf__locality l = {.binding = *mine};
    int cpus = 0;
    for (int r = 0; r < n; r++) {
        if (!here[r]) continue;
        const bool same = !memcmp(mine, &bindings[r], sizeof *mine);
        l.rank += r < me;
        l.size++;
        l.twin += same && r < me;
        l.twins += same;
        l.mixed = l.mixed || (!same && meet(mine, &bindings[r]));
        for (int i = 0; i < WORDS; i++) l.used.word[i] |= bindings[r].word[i];
    }
    for (int cpu = 0; cpu < SHEAF__MOST_CPUS; cpu++) cpus += has(mine, cpu);
    l.part = sheaf__cpus_each(bindings, here, n, me) / cpus;
    return l;
}

static struct sheaf__locality own;
static bool is_set;

void sheaf__set_locality(const struct sheaf__locality *locality) {
    own = *locality;
    is_set = true;
}

const struct sheaf__locality *sheaf__get_locality(void) { return is_set ? &own : NULL; }
