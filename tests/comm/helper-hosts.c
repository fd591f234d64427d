/* Started by test-netns on several simulated hosts: says where each rank is, and that ranks on
 * different hosts can talk. Arguments: "fail RANK" makes that rank fail, "hang" waits for ever, "part
 * RANK" ends that rank by SIGTERM, as sheaf-run ends, on a host that loses 30 % of what it sends. */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "sheaf/world.h"

enum { TERMINATED = 130 };

static void on_term(int number) {
    (void)number;
    sheaf_world_expect_end(TERMINATED);
}

/* The other ranks are not told, as if the launcher's order to their hosts were still on its way. */
static int part(int rank, int told) {
    if (rank != told) return 0;
    signal(SIGTERM, on_term);
    const int rules =
        system("nft add table inet part && nft 'add chain inet part out { type filter hook output "
               "priority 0 ; }' && nft add rule inet part out oifname eth0 numgen random mod 100 "
               "\\< 30 counter drop");
    if (rules) fprintf(stderr, "cannot lose packets: status %d\n", rules);
    raise(SIGTERM);
    return TERMINATED;
}

int main(int argc, char **argv) {
    int all[64] = {0}, status = 1;
    if (sheaf_world_init(NULL) || sheaf_world_size() > 64) goto out;
    const int rank = sheaf_world_rank();
    if (sheaf_world_all_gather(&rank, sizeof rank, all, "ranks")) goto out;
    for (int i = 0; i < sheaf_world_size(); i++) {
        if (all[i] != i) goto out;
    }
    if (rank == 0) {
        for (int i = 0; i < sheaf_world_size(); i++) {
            printf("rank %d host %d %s\n", i, sheaf_world_host_index(i), sheaf_world_host_name(i));
        }
        printf("hosts %d\n", sheaf_world_n_hosts());
        fflush(stdout);
    }
    if (argc > 1 && !strcmp(argv[1], "hang")) pause();
    if (sheaf_world_barrier("end")) goto out;
    if (argc > 2 && !strcmp(argv[1], "part")) {
        status = part(rank, atoi(argv[2]));
        goto out;
    }
    status = argc > 2 && !strcmp(argv[1], "fail") && atoi(argv[2]) == rank ? 7 : 0;
out:
    if (*sheaf_last_error()) fprintf(stderr, "%s\n", sheaf_last_error());
    sheaf_world_finalize();
    return status;
}
