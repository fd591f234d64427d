/* sheaf-info --links: the links between the members, as measured now. */
#include "model.h"

#include <stdio.h>
#include <stdlib.h>

enum sheaf_status links_print(void) {
    static const char *const names[SHEAF_COMM_LEVEL_COUNT] = {
        [SHEAF_COMM_LEVEL_SHARED] = "shared memory", [SHEAF_COMM_LEVEL_HOSTS] = "between hosts"};
    static const size_t sizes[] = {8192, 32768, 1 << 20, 16 << 20};
    const sheaf_backend_dev_t *devices = NULL;
    struct sheaf_comm *comm = NULL;
    size_t n = 0;
    enum sheaf_status status = sheaf_world_devices(&devices, &n);
    if (status) return status;
    int *ranks = calloc(n + 1, sizeof *ranks);
    if (!ranks) status = sheaf_set_error(SHEAF_STATUS_ALLOC_FAILED, "links: out of memory");
    for (size_t i = 0; i < n && ranks; i++) ranks[i] = sheaf_world_device_rank(devices[i]);
    status = sheaf_world_agree(status, "links");
    if (!status) status = sheaf_comm_new(ranks, (int)n, NULL, &comm);
    if (!status) status = sheaf_comm_measure(comm);
    if (!status && sheaf_world_rank() == 0) {
        printf("\nlinks of %zu member%s (%s)\n", n, n == 1 ? "" : "s", sheaf_comm_describe(comm));
        for (int i = 0; i < SHEAF_COMM_LEVEL_COUNT; i++) {
            struct sheaf_comm_level l;
            sheaf_comm_get_level(comm, (enum sheaf_comm_level_kind)i, &l);
            if (l.link.n < 2) continue;
            printf("  %-14s %d, latency %.2f us, %.2f GB/s, sums as %s", names[i], l.link.n,
                   1e-3 * (double)l.link.latency_ns,
                   l.link.byte_ps > 0 ? 1e3 / (double)l.link.byte_ps : 0.0,
                   sheaf_type_name(l.wire_type));
            if (i == SHEAF_COMM_LEVEL_HOSTS) {
                printf(", whole up to %zu bytes", l.one_shot_bytes);
                for (int k = 0; k < SHEAF_COMM_OWNERS; k++)
                    if (l.owners[k].bytes)
                        printf(", through %d host%s up to %zu", l.owners[k].n,
                               l.owners[k].n > 1 ? "s" : "", l.owners[k].bytes);
                printf(", %s above", l.link.n == 2 ? "in chunks" : "in parts");
            }
            printf("\n");
        }
        printf("  all-reduce     %s", n > 1 ? "at least" : "none: there is one member");
        for (size_t i = 0; i < sizeof sizes / sizeof *sizes && n > 1; i++)
            printf("%s %.1f us for %zu KiB", i ? "," : "",
                   1e-3 * (double)sheaf_comm_bound_ns(comm, SHEAF_COMM_ALL_REDUCE, sizes[i]),
                   sizes[i] / 1024);
        putchar('\n');
    }
    sheaf_comm_free(comm);
    free(ranks);
    return status;
}
