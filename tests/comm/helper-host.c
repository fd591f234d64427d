/* Started by test-host.c under mpirun: `helper-host MODE [LEVEL]`. A host program that owns MPI, or
 * must live on after a failed job. Prints "ok ..." lines; its exit status is its own. */
#include <mpi.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "comm/world/blocks.h"
#include "sheaf/comm.h"
#include "sheaf/log.h"

enum { OWN_STATUS = 7 };

static int rank, size; /* of MPI_COMM_WORLD */
static _Atomic int n_failures, n_logged;
static char failure_text[1024];

static void on_failure(int origin, const char *text, void *user) {
    snprintf(failure_text, sizeof failure_text, "%d: %s", origin, text);
    atomic_fetch_add((_Atomic int *)user, 1);
}

static void on_log(enum sheaf_log_level level, const char *text, void *user) {
    (void)level;
    (void)text;
    atomic_fetch_add((_Atomic int *)user, 1);
}

static void wrong(const char *what) {
    printf("WRONG: %s on rank %d: %s\n", what, rank, sheaf_last_error());
    fflush(stdout);
    MPI_Abort(MPI_COMM_WORLD, 3);
}

static void start_mpi(const char *level) {
    static const struct {
        const char *name;
        int level;
    } levels[] = {{"single", MPI_THREAD_SINGLE},
                  {"funneled", MPI_THREAD_FUNNELED},
                  {"serialized", MPI_THREAD_SERIALIZED},
                  {"multiple", MPI_THREAD_MULTIPLE}};
    int got, wanted = -1;
    for (size_t i = 0; i < sizeof levels / sizeof *levels; i++)
        if (!strcmp(levels[i].name, level)) wanted = levels[i].level;
    if (wanted < 0)
        MPI_Init(NULL, NULL);
    else
        MPI_Init_thread(NULL, NULL, wanted, &got);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
}

static struct sheaf_world_params params(void) {
    return (struct sheaf_world_params){.size = sizeof(struct sheaf_world_params),
                                       .on_failure = on_failure,
                                       .on_failure_user = &n_failures};
}

/* A group with one member a rank: sums that are run, and sums that are started. */
static void use_group(void) {
    enum { N = 5000 };
    static float data[2][N];
    int ranks[64];
    const int n = sheaf_world_size(), me = sheaf_world_rank();
    struct sheaf_comm *comm;
    uint64_t ticket[2];
    for (int r = 0; r < n; r++) ranks[r] = r;
    if (sheaf_comm_new(ranks, n, NULL, &comm)) wrong("group");
    for (int i = 0; i < N; i++) data[0][i] = data[1][i] = (float)(me + i);
    for (int k = 0; k < 2; k++) {
        const struct sheaf_comm_call call = {.size = sizeof call,
                                             .kind = SHEAF_COMM_ALL_REDUCE,
                                             .recv = data[k],
                                             .n = N,
                                             .what = {.node = (uint32_t)k}};
        if (sheaf_comm_start(comm, me, &call, &ticket[k])) wrong("start");
    }
    for (int k = 0; k < 2; k++)
        if (sheaf_comm_wait(comm, me, ticket[k])) wrong("wait");
    if (sheaf_comm_all_reduce(comm, me, data[1], N, NULL)) wrong("all_reduce");
    for (int i = 0; i < N; i++) {
        const int sum = n * (n - 1) / 2 + n * i;
        if (data[0][i] != (float)sum || data[1][i] != (float)(n * sum)) wrong("values");
    }
    sheaf_comm_free(comm);
}

/* The world is used and left; MPI goes on. */
static void own(void) {
    int one = 1, sum = 0;
    struct sheaf_world_params p = params();
    if (sheaf_world_init(&p)) wrong("init");
    if (sheaf_world_size() != size || sheaf_world_rank() != rank) wrong("size");
    use_group();
    sheaf_world_finalize();
    MPI_Allreduce(&one, &sum, 1, MPI_INT, MPI_SUM, MPI_COMM_WORLD);
    if (sum != size) wrong("MPI afterwards");
    if (sheaf_world_init(&p) != SHEAF_STATUS_INVALID ||
        !strstr(sheaf_last_error(), "after sheaf_world_finalize"))
        wrong("init again");
}

/* Two worlds of one job: even and odd ranks, in reverse order. */
static void split(void) {
    MPI_Comm half;
    MPI_Comm_split(MPI_COMM_WORLD, rank % 2, -rank, &half);
    struct sheaf_world_params p = params();
    p.mpi_comm = &half;
    if (sheaf_world_init(&p)) wrong("init");
    if (sheaf_world_size() != (size + 1 - rank % 2) / 2) wrong("size");
    int mine = rank, all[64];
    if (sheaf_world_all_gather(&mine, sizeof mine, all, "ranks")) wrong("all_gather");
    for (int i = 0; i < sheaf_world_size(); i++)
        if (all[i] % 2 != rank % 2 || (i && all[i] >= all[i - 1])) wrong("order");
    use_group();
    sheaf_world_finalize();
    MPI_Comm_free(&half);
}

static void refuse(const struct sheaf_world_params *p, const char *words) {
    if (sheaf_world_init(p) != SHEAF_STATUS_INVALID || !strstr(sheaf_last_error(), words))
        wrong(words);
}

static void *init_elsewhere(void *arg) {
    refuse(arg, "from the thread that did it");
    return NULL;
}

/* Calls that are refused with words. */
static void order(const char *level) {
    const sheaf_backend_dev_t *devices;
    size_t n;
    if (sheaf_world_devices(&devices, &n) != SHEAF_STATUS_INVALID ||
        !strstr(sheaf_last_error(), "sheaf_world_init first"))
        wrong("devices before init");
    struct sheaf_world_params p = params();
    MPI_Comm none = MPI_COMM_NULL;
    p.mpi_comm = &none;
    refuse(&p, "not initialized");
    start_mpi(level);
    refuse(&p, "no intracommunicator");
    p.mpi_comm = NULL;
    p.size = 4;
    refuse(&p, "size is 4");
    p.size = sizeof p;
    if (!strcmp(level, "funneled")) {
        pthread_t thread;
        pthread_create(&thread, NULL, init_elsewhere, &p);
        pthread_join(thread, NULL);
    }
    if (sheaf_world_init(&p)) wrong("init");
    if (sheaf_world_devices(&devices, &n)) wrong("devices");
    refuse(&p, "twice");
    sheaf_world_finalize();
    MPI_Finalize();
    refuse(&p, "after sheaf_world_finalize");
}

static void *barrier_elsewhere(void *arg) {
    enum sheaf_status *st = arg;
    if (!sheaf_world_move_here()) wrong("moving to another thread");
    *st = sheaf_world_barrier("elsewhere");
    return NULL;
}

static void *blocks_elsewhere(void *st) {
    const size_t none[2] = {0};
    struct sheaf__blocks *b = sheaf__blocks_new();
    if (!b) wrong("memory");
    *(enum sheaf_status *)st = sheaf__blocks_start(b, NULL, none, 0, "elsewhere");
    sheaf__blocks_free(b);
    return NULL;
}

/* What MPI_THREAD_SINGLE does not allow. */
static void threads(void) {
    struct sheaf_world_params p = params();
    const int members[] = {0, 0, 1};
    struct sheaf_comm *comm;
    enum sheaf_status st = SHEAF_STATUS_SUCCESS;
    pthread_t thread;
    if (sheaf_world_init(&p)) wrong("init");
    if (sheaf_comm_new(members, 3, NULL, &comm) != SHEAF_STATUS_UNSUPPORTED ||
        !strstr(sheaf_last_error(), "MPI_THREAD_SERIALIZED"))
        wrong("several members");
    pthread_create(&thread, NULL, barrier_elsewhere, &st);
    pthread_join(thread, NULL);
    if (st != SHEAF_STATUS_INVALID) wrong("barrier on another thread");
    pthread_create(&thread, NULL, blocks_elsewhere, &st);
    pthread_join(thread, NULL);
    if (st != SHEAF_STATUS_INVALID) wrong("blocks on another thread");
    if (sheaf_world_move_here()) wrong("moving to the thread that it is");
    if (sheaf_world_barrier("here")) wrong("barrier");
    sheaf_world_finalize();
}

/* Opens the world; no rank goes on while another is in it. Without the barrier of MPI a rank that
 * breaks the job at once would fail the start of a slower one. */
static void init_together(void) {
    struct sheaf_world_params p = params();
    if (sheaf_world_init(&p)) wrong("init");
    MPI_Barrier(MPI_COMM_WORLD);
}

/* Rank 1 breaks the job in a way; every rank hears of it, lives on and keeps its MPI. */
static void broken(const char *how) {
    sheaf_log_set(on_log, &n_logged);
    init_together();
    enum sheaf_status st = SHEAF_STATUS_SUCCESS;
    if (rank == 1 && !strcmp(how, "gives up")) sheaf_world_abort("rank 1 gives up");
    if (rank == 1 && !strcmp(how, "stuck")) {
        sheaf_world_enter(SHEAF_PHASE_COMPUTE, "a long node");
        sleep(8); /* the watch would end the process after 1 + 3 s */
    }
    if (rank == 1 && !strcmp(how, "other call"))
        st = sheaf_world_all_gather(&rank, 0, &rank, "one thing");
    else
        st = sheaf_world_barrier("another");
    if (!st || !sheaf_world_failed()) wrong("no failure");
    const bool prints = sheaf_world_reports_error();
    sheaf_world_finalize();
    if (n_failures != 1) wrong("on_failure");
    printf("ok rank %d lives%s, heard %s\n", rank, prints ? " and reports" : "", failure_text);
    fflush(stdout);
}

int main(int argc, char **argv) {
    const char *mode = argc > 1 ? argv[1] : "", *level = argc > 2 ? argv[2] : "plain";
    if (!strcmp(mode, "order")) {
        order(level);
        printf("ok rank %d\n", rank);
        return 0;
    }
    start_mpi(level);
    if (!strcmp(mode, "own")) own();
    if (!strcmp(mode, "split")) split();
    if (!strcmp(mode, "threads")) threads();
    if (!strcmp(mode, "late")) {
        struct sheaf_world_params p = params();
        sheaf_log_set(on_log, &n_logged);
        if (sheaf_world_init(&p)) wrong("init");
        MPI_Finalize();
        sheaf_world_finalize();
        printf("ok rank %d, %d logged\n", rank, n_logged);
        return 0;
    }
    if (!strcmp(mode, "broken")) {
        broken(argv[3]);
        MPI_Finalize();
        return OWN_STATUS;
    }
    if (!strcmp(mode, "killed")) { /* mpirun --enable-recovery leaves rank 0 alone */
        init_together();
        if (rank == 1) raise(SIGKILL);
        if (!sheaf_world_barrier("gate")) wrong("no failure");
        sheaf_world_finalize();
        sleep(2);
        printf("ok rank %d lives, %d heard %s\n", rank, n_failures, failure_text);
        fflush(stdout);
        _exit(OWN_STATUS); /* MPI_Finalize would wait for the dead rank */
    }
    printf("ok rank %d\n", rank);
    MPI_Finalize();
    return 0;
}
