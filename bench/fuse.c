/* The time saved when the residual and the norm follow an all-reduce row by row.
 *
 *   bench-fuse [REPEATS]                       members are the devices of this process
 *   mpirun -np 2 bench-fuse                    ... of all ranks
 *
 * Layers of an elementwise product whose result is partial, its all-reduce, ADD, RMS_NORM, MUL
 * (tests/support/fuse_scenario.h), with SHEAF_FUSE 0, 1 and 2 in turns: microseconds a layer,
 * median. `saved` is against 0. */
#include "../tests/support/fuse_scenario.h"

#include <time.h>

enum { MODES = 3, MAX_REPEATS = 1000, LAYERS = 8 };

static double now_us(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec * 1e6 + (double)t.tv_nsec * 1e-3;
}

static int ascending(const void *a, const void *b) {
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

int main(int argc, char **argv) {
    static const struct {
        int64_t width, rows;
    } sizes[] = {{576, 1},    {2048, 1},  {4096, 1},   {2048, 16},
                 {2048, 128}, {576, 512}, {2048, 512}, {4096, 512}};
    static const char *const modes[MODES] = {"0", "1", "2"};
    const int repeats = argc > 1 ? atoi(argv[1]) : 15;
    const sheaf_backend_dev_t *devices;
    size_t n;
    if (repeats < 1 || repeats > MAX_REPEATS) {
        fprintf(stderr, "usage: bench-fuse [REPEATS, 1 to %d]\n", MAX_REPEATS);
        return 1;
    }
    if (sheaf_world_init(NULL) || sheaf_world_devices(&devices, &n)) goto fail;
    const bool prints = sheaf_world_rank() == 0;
    if (prints) {
        printf("%zu members on %d ranks, us a layer\n\n", n, sheaf_world_size());
        printf("| width x rows | SHEAF_FUSE=0 | 1 | 2 | saved by 1 | by 2 "
               "|\n|---|---|---|---|---|---|\n");
    }
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        struct sheaf_backend_meta_stats stats = {.size = sizeof stats};
        double us[MODES][MAX_REPEATS], median[MODES];
        const struct fuse_case c = {
            .width = sizes[i].width, .rows = sizes[i].rows, .layers = LAYERS, .shape = FUSE_LIGHT};
        const int calls = (int)(20000000 / (c.width * c.rows * LAYERS * 8)) + 1; /* some 20 ms */
        for (int r = 0; r < repeats; r++) {
            for (int m = 0; m < MODES; m++) { /* in new memory: how pages share a cache is luck */
                struct fuse_rig rig;
                if (!fuse_up(&rig, devices, n, modes[m], &c)) goto fail;
                double begin = 0;
                for (int k = -2; k < calls; k++) {
                    if (k == 0) begin = now_us();
                    if (sheaf_backend_graph_compute(rig.backend, rig.graph)) goto fail;
                }
                us[m][r] = (now_us() - begin) / calls / LAYERS;
                sheaf_backend_meta_get_stats(rig.backend, &stats);
                fuse_down(&rig);
            }
        }
        for (int m = 0; m < MODES; m++) {
            qsort(us[m], (size_t)repeats, sizeof us[m][0], ascending);
            median[m] = us[m][repeats / 2];
        }
        const double collectives = (double)stats.n_collectives / (double)(calls + 2) / LAYERS,
                     fused = (double)stats.n_fused / (double)(calls + 2) / LAYERS;
        if (prints && n > 1 && (fused < 1 || collectives > 1))
            printf("%.1f all-reduces a layer, %.1f fused\n", collectives, fused);
        if (prints)
            printf("| %lld x %lld | %.2f | %.2f | %.2f | %.2f (%.1f %%) | %.2f (%.1f %%) |\n",
                   (long long)c.width, (long long)c.rows, median[0], median[1], median[2],
                   median[0] - median[1], 100 * (1 - median[1] / median[0]), median[0] - median[2],
                   100 * (1 - median[2] / median[0]));
    }
    sheaf_world_finalize();
    return 0;
fail:
    fprintf(stderr, "bench-fuse: %s\n", sheaf_last_error());
    return 1;
}
