/* Started by test-world.c under mpirun: `helper-world MODE`. Prints "ok ..." lines, or the error
 * once a job, and exits with 1 after an error. */
#include <locale.h>
#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#include "comm/diag/events.h"
#include "comm/diag/recorder.h"
#include "comm/testing.h"
#include "comm/world/blocks.h"
#include "comm/world/world.h"
#include "sheaf/backend-impl.h"
#include "sheaf/world.h"
#include "start_job.h"

static int quit(bool ok) {
    if (!ok && sheaf_world_reports_error()) fprintf(stderr, "error: %s\n", sheaf_last_error());
    sheaf_world_finalize();
    sheaf_world_finalize(); /* may be called twice */
    if (ok && sheaf_world_size() > 1 &&
        (sheaf_world_barrier("late") != SHEAF_STATUS_INVALID ||
         !strstr(sheaf_last_error(), "barrier 'late': the world has ended"))) {
        fprintf(stderr, "WRONG: a call after the end: %s\n", sheaf_last_error());
        ok = false;
    }
    return ok ? 0 : 1;
}

static bool wrong(const char *what) {
    fprintf(stderr, "WRONG: %s on rank %d: %s\n", what, sheaf_world_rank(), sheaf_last_error());
    sheaf_world_abort(what);
    return false;
}

static bool info(void) {
    const struct sheaf__locality *l = sheaf__get_locality();
    if (!l || l->rank != sheaf_world_local_rank() || l->size != sheaf_world_local_size())
        return wrong("locality");
    if (sheaf_world_host_name(-1) || sheaf_world_host_name(sheaf_world_size()))
        return wrong("host_name");
    printf("ok rank %d of %d, host %d of %d, local %d of %d, name %s\n", sheaf_world_rank(),
           sheaf_world_size(), sheaf_world_host_index(sheaf_world_rank()), sheaf_world_n_hosts(),
           l->rank, l->size, sheaf_world_host_name(sheaf_world_rank())[0] ? "known" : "unknown");
    return true;
}

/* By its binding, and with a member, then with two members a rank in a group. */
static bool bindings(void) {
    const int n = sheaf_world_size();
    int members[8];
    bool crowded[3] = {sheaf__world()->crowded};
    for (int each = 1; each <= 2; each++) {
        struct sheaf_comm *comm;
        for (int m = 0; m < each * n; m++) members[m] = m / each;
        if (sheaf_comm_new(members, each * n, NULL, &comm)) return wrong("group");
        sheaf_comm_free(comm);
        crowded[each] = sheaf__world()->crowded;
    }
    printf("ok rank %d, crowded %d %d %d\n", sheaf_world_rank(), crowded[0], crowded[1],
           crowded[2]);
    return true;
}

/* Rank 1 has no descriptor left for the memory of a group. */
static bool no_descriptor(void) {
    struct rlimit limit;
    struct sheaf_comm *comm;
    const int lowest = dup(0);
    close(lowest);
    if (getrlimit(RLIMIT_NOFILE, &limit)) return wrong("limit");
    limit.rlim_cur = (rlim_t)lowest;
    if (sheaf_world_rank() == 1 && setrlimit(RLIMIT_NOFILE, &limit)) return wrong("limit");
    return !sheaf_comm_new((const int[]){0, 1}, 2, NULL, &comm);
}

/* What Open MPI was told of its transports. */
static bool transport(void) {
    const char *pml = getenv("OMPI_MCA_pml"), *tcp = getenv("OMPI_MCA_btl_tcp_if_include");
    printf("ok rank %d, pml %s, tcp %s\n", sheaf_world_rank(), pml ? pml : "unset",
           tcp ? tcp : "unset");
    return true;
}

/* Is a component of Open MPI that speaks to the launcher in memory? */
static bool has_pmix_component(void) {
    char line[1024];
    bool found = false;
    FILE *f = fopen("/proc/self/maps", "r");
    while (f && !found && fgets(line, sizeof line, f)) found = strstr(line, "/mca_pmix_") != NULL;
    if (f) fclose(f);
    return found;
}

/* Threads of Open MPI may call it until MPI_Finalize returns. */
static int components(void) {
    const bool before = has_pmix_component();
    const int rank = sheaf_world_rank(), status = quit(true);
    if (before && !has_pmix_component()) printf("WRONG: unloaded by MPI_Finalize\n");
    printf("ok rank %d%s\n", rank, before ? ", component" : "");
    return status;
}

/* Calls come from ever other threads, with what belongs to the thread that makes them. */
static void *call_here(void *ok) {
    if (sheaf_world_move_here()) return NULL;
    sheaf__record_begin(1, 0, 2, 3, 4, "elsewhere", 5);
    sheaf__trace(SHEAF__TRACE_COMPUTE, "elsewhere", 1, 2);
    sheaf_world_enter(SHEAF_PHASE_LOAD, "elsewhere");
    *(bool *)ok = sheaf__phase() == SHEAF_PHASE_LOAD && sheaf__recording() && sheaf__tracing() &&
                  !sheaf_world_barrier("elsewhere");
    return NULL;
}
static bool threads(void) {
    pthread_t thread;
    if (sheaf_trace_start(64)) return wrong("trace");
    for (int i = 0; i < 8; i++) {
        bool ok = false;
        if (pthread_create(&thread, NULL, call_here, &ok)) return wrong("thread");
        pthread_join(thread, NULL);
        if (!ok) return wrong("a call on another thread");
        sheaf_world_enter(SHEAF_PHASE_PLAN, "of the thread before");
        if (sheaf__phase() != SHEAF_PHASE_LOAD) return wrong("the phase of the thread before");
    }
    if (sheaf_world_move_here() || sheaf_world_barrier("back")) return wrong("back");
    sheaf_world_enter(SHEAF_PHASE_PLAN, "of this thread");
    if (sheaf__phase() != SHEAF_PHASE_PLAN) return wrong("the phase of this thread");
    printf("ok rank %d, %zu events\n", sheaf_world_rank(), sheaf__events()->n);
    return true;
}

/* The launcher does not run while the ranks end. */
static bool launcher_away(void) {
    char wake[128];
    snprintf(wake, sizeof wake, "(sleep 4; kill -CONT %ld) >/dev/null 2>&1 &", (long)getppid());
    if (sheaf_world_rank() == 0 && (system(wake) || kill(getppid(), SIGSTOP))) return wrong("stop");
    if (sheaf_world_barrier("stopped")) return wrong("barrier");
    printf("ok rank %d\n", sheaf_world_rank());
    return true;
}

static uint8_t value(size_t i, int rank) { return (uint8_t)(i * 7 + (size_t)rank * 13 + i / 251); }

static bool control(void) {
    static const size_t sizes[] = {0, 1, 4, 4095, 4096, 4097, 100000, 3000000};
    const int n = sheaf_world_size(), me = sheaf_world_rank();
    uint8_t *send = malloc(3000000), *recv = malloc((size_t)n * 3000000 + 1);
    size_t *each = calloc((size_t)n, sizeof *each);
    for (size_t s = 0; s < sizeof sizes / sizeof *sizes; s++) {
        const size_t size = sizes[s];
        for (size_t i = 0; i < size; i++) send[i] = value(i, me);
        if (sheaf_world_all_gather(send, size, recv, "gather")) return wrong("all_gather");
        for (int r = 0; r < n; r++)
            for (size_t i = 0; i < size; i++)
                if (recv[(size_t)r * size + i] != value(i, r)) return wrong("all_gather values");
        for (int root = 0; root < n; root++) {
            for (size_t i = 0; i < size; i++) recv[i] = me == root ? value(i, root) : 0;
            if (sheaf_world_broadcast(recv, size, root, "cast")) return wrong("broadcast");
            for (size_t i = 0; i < size; i++)
                if (recv[i] != value(i, root)) return wrong("broadcast values");
        }
        size_t at = 0;
        for (int r = 0; r < n; r++) each[r] = r % 2 ? size : size / 3;
        if (sheaf_world_all_gather_v(send, recv, each, "uneven")) return wrong("all_gather_v");
        for (int r = 0; r < n; r++)
            for (size_t i = 0; i < each[r]; i++, at++)
                if (recv[at] != value(i, r)) return wrong("all_gather_v values");
        const int root = (int)(s % (size_t)n);
        memset(recv, 0, at);
        if (sheaf_world_gather_v(send, me == root ? recv : NULL, each, root, "to one"))
            return wrong("gather_v");
        at = 0;
        for (int r = 0; r < n && me == root; r++)
            for (size_t i = 0; i < each[r]; i++, at++)
                if (recv[at] != value(i, r)) return wrong("gather_v values");
        for (size_t i = 0; i < size; i++) recv[i] = me == root ? value(i, root) : 0;
        bool part[8] = {0}; /* the root is one of them in half of the steps */
        for (int r = 0; r < n && r < 8; r++) part[r] = (r + (int)s) % 2;
        for (size_t i = 0; i < size; i++) recv[i] = me == root ? value(i, root) : 0;
        if (sheaf_world_broadcast_to(part, recv, size, root, "to some")) return wrong("to some");
        for (size_t i = 0; i < size; i++)
            if (recv[i] != (me == root || part[me] ? value(i, root) : 0))
                return wrong("values for some");
        if (sheaf_world_call(recv, size, root, "call")) return wrong("call");
        for (size_t i = 0; i < size; i++)
            if (recv[i] != value(i, root)) return wrong("call values");
        if (sheaf_world_barrier("step")) return wrong("barrier");
    }
    for (int i = 0; i < 2000; i++) {
        int token = me == i % n ? i : -1;
        if (sheaf_world_broadcast(&token, sizeof token, i % n, "token") || token != i)
            return wrong("many broadcasts");
    }
    if (sheaf_world_agree(SHEAF_STATUS_SUCCESS, "fine")) return wrong("agree");
    free(send);
    free(recv);
    free(each);
    printf("ok rank %d\n", me);
    return true;
}

/* Rounds of blocks from rank 1, three under way. The last rank takes part in another way if `how`
 * says so: in a block of another size or name, or behind a round that the others do not know. */
static bool blocks(const char *how) {
    enum { ROUNDS = 3, MOST = 100000, ROOT = 1 };
    const int n = sheaf_world_size(), me = sheaf_world_rank();
    const bool odd = me == n - 1;
    const char *what = odd && !strcmp(how, "blocks-what") ? "another" : "weights";
    struct sheaf__blocks *round[ROUNDS];
    uint8_t *data[ROUNDS];
    size_t sizes[ROUNDS][8] = {{0}}, none[8] = {0};
    bool done;
    for (int i = 0; i < ROUNDS; i++) {
        round[i] = sheaf__blocks_new();
        data[i] = malloc(8 * (SHEAF__BLOCK_HEADER + MOST));
        if (!round[i] || !data[i]) return wrong("memory");
        memset(data[i], 0xff, SHEAF__BLOCK_HEADER); /* of bytes that were there before */
    }
    /* without bytes nothing is sent, so a name may differ, and must leave nothing behind */
    if (sheaf__blocks_start(round[0], NULL, none, ROOT, odd ? "weights of a rank" : what) ||
        sheaf__blocks_poll(round[0], &done) || !done || sheaf__blocks_wait(round[0]))
        return false;
    if (sheaf__phase() != SHEAF_PHASE_IDLE) return wrong("phase");
    if (odd && !strcmp(how, "blocks-round") &&
        sheaf__blocks_start(round[0], NULL, none, ROOT, what))
        return false;
    for (int i = 0; i < ROUNDS; i++) {
        uint8_t *at = data[i];
        for (int r = 0; r < n; r++) {
            const size_t size = (r + i) % 4 == 3 ? 0 : i == 2 ? MOST : (size_t)(1 + r + i);
            sizes[i][r] = size;
            if (me != ROOT || r == ROOT || !size) continue;
            for (size_t k = 0; k < size; k++) at[SHEAF__BLOCK_HEADER + k] = value(k, r + i);
            at += SHEAF__BLOCK_HEADER + size;
        }
        if (odd && i == 0 && !strcmp(how, "blocks-short")) sizes[i][me]--;
        if (odd && i == 0 && !strcmp(how, "blocks-long")) sizes[i][me]++;
        if (i == 0 && me == ROOT && sheaf_world_barrier("before")) return false;
        if (i == 0 && me == ROOT && (!strcmp(how, "blocks-load") || !strcmp(how, "blocks-late")))
            sleep(2);
        if (sheaf__blocks_start(round[i], data[i], sizes[i], ROOT, what)) return false;
        if (i || me == ROOT) continue;
        if (sheaf__blocks_poll(round[0], &done)) return false;
        if (done && sizes[0][me]) return wrong("a block is there before it was sent");
        if (sheaf_world_barrier("before")) return false;
        if (!strcmp(how, "blocks-load")) sheaf_world_enter(SHEAF_PHASE_LOAD, "weights");
    }
    for (int i = 0; i < ROUNDS; i++) {
        for (done = false; !done && i == 1;) /* the others are only waited for */
            if (sheaf__blocks_poll(round[i], &done)) return false;
        if (sheaf__blocks_wait(round[i])) return false;
        for (size_t k = 0; k < sizes[i][me] && me != ROOT; k++)
            if (data[i][SHEAF__BLOCK_HEADER + k] != value(k, me + i)) return wrong("values");
        sheaf__blocks_free(round[i]);
        free(data[i]);
    }
    if (sheaf_world_barrier("after")) return false;
    printf("ok rank %d\n", me);
    return true;
}

/* One side of an order that is longer than a header takes comes long after the other. */
static bool late_call(int late) {
    enum { BYTES = 8 << 20 };
    uint8_t *data = calloc(1, BYTES);
    if (sheaf_world_rank() == 0) memset(data, 7, BYTES);
    if (sheaf_world_rank() == late) sleep(2);
    const enum sheaf_status st = sheaf_world_call(data, BYTES, 0, "the next order");
    const bool right = !st && data[0] == 7 && data[BYTES - 1] == 7;
    free(data);
    if (!right) return wrong("a late call");
    printf("ok rank %d\n", sheaf_world_rank());
    return true;
}

/* The others take the first 16 calls of rank 0 when a file says that all are made; of the next ones all
 * but 16 must have been taken. The root's bytes are other ones after each call. */
static bool many_calls(void) {
    enum { BYTES = 4096, KEPT = 16, ALL = 100 };
    const bool is_root = sheaf_world_rank() == 0;
    char path[64] = "";
    uint8_t *data = calloc(1, BYTES);
    if (is_root) snprintf(path, sizeof path, "/tmp/sheaf-calls-%d", (int)getpid());
    if (!data || sheaf_world_broadcast(path, sizeof path, 0, "a name")) return wrong("the name");
    for (int i = 0; i < ALL; i++) {
        memset(data, is_root ? i : 0, BYTES);
        if (i == KEPT && is_root) fclose(fopen(path, "w"));
        while (i == 0 && !is_root && access(path, F_OK)) usleep(1000);
        if (sheaf_world_call(data, BYTES, 0, "one of many")) return wrong("one of many calls");
        if (data[0] != i || data[BYTES - 1] != i) return wrong("the value of a call");
    }
    free(data);
    if (sheaf_world_barrier("all calls")) return wrong("barrier");
    if (is_root) unlink(path);
    printf("ok rank %d\n", sheaf_world_rank());
    return true;
}

/* Ranks 1 and 2 fail, all learn rank 1's words, or those of its status; the world goes on. */
static bool agree(void) {
    enum sheaf_status mine = SHEAF_STATUS_SUCCESS;
    if (sheaf_world_rank() == 1) mine = SHEAF_STATUS_ALLOC_FAILED;
    if (sheaf_world_agree(mine, "without words") != SHEAF_STATUS_ALLOC_FAILED ||
        strncmp(sheaf_last_error(), "rank 1 (", 8) ||
        !strstr(sheaf_last_error(), sheaf_status_to_string(SHEAF_STATUS_ALLOC_FAILED)))
        return wrong("agree without words");
    mine = SHEAF_STATUS_SUCCESS;
    if (sheaf_world_rank() == 1) mine = sheaf_set_error(SHEAF_STATUS_IO, "file x is gone");
    if (sheaf_world_rank() == 2) mine = sheaf_set_error(SHEAF_STATUS_INVALID, "file y is bad");
    if (sheaf_world_agree(mine, "load") != SHEAF_STATUS_IO) return wrong("agree");
    /* the caller's caller agrees on it, too: the rank is named once */
    if (sheaf_world_agree(SHEAF_STATUS_IO, "start") != SHEAF_STATUS_IO) return wrong("agree");
    if (sheaf_world_failed()) return wrong("agree killed the world");
    char text[512];
    snprintf(text, sizeof text, "%s", sheaf_last_error());
    if (sheaf_world_barrier("on we go")) return wrong("barrier");
    printf("ok rank %d heard: %s\n", sheaf_world_rank(), text);
    fflush(stdout);
    sheaf_set_error(SHEAF_STATUS_IO, "%s", text);
    return false;
}

static bool differ(const char *how) {
    char data[64] = "";
    size_t sizes[8];
    const bool odd = sheaf_world_rank() == 1;
    for (int r = 0; r < 8; r++) sizes[r] = odd ? 5 : 6;
    if (!strcmp(how, "call"))
        return !(odd ? sheaf_world_barrier("one thing")
                     : sheaf_world_all_gather(data, 4, data, "another"));
    if (!strcmp(how, "kind"))
        return !(odd ? sheaf_world_barrier("same") : sheaf_world_all_gather(data, 0, data, "same"));
    if (!strcmp(how, "what")) return !sheaf_world_barrier(odd ? "load" : "save");
    if (!strcmp(how, "size")) return !sheaf_world_all_gather_v(data, data, sizes, "sizes");
    if (!strcmp(how, "root")) /* a root receives nothing: the next exchange shows it */
        return !sheaf_world_broadcast(data, 4, odd ? 1 : 0, "token") &&
               !sheaf_world_barrier("gate");
    if (!strcmp(how, "skips")) { /* what has nothing for it: only the number of the call differs */
        const size_t none[8] = {0};
        return (odd || !sheaf_world_gather_v(data, data, none, 0, "nothing")) &&
               !sheaf_world_barrier("gate");
    }
    if ((!strcmp(how, "never") && odd) || (!strcmp(how, "alone") && sheaf_world_rank())) {
        for (int t = 0; t < 100 && !sheaf_world_failed(); t++) usleep(100000);
        return !sheaf_world_barrier("late");
    }
    if (!strcmp(how, "quits") && odd) {
        sheaf_world_abort("rank 1 gives up");
        sheaf_set_error(SHEAF_STATUS_FAILED, "rank 1 gives up");
        return false;
    }
    if (!strcmp(how, "torn") && odd) { /* as if it was killed while it wrote the record */
        atomic_store(&sheaf__world()->failure->state, SHEAF__FAILING);
        sleep(5);
    }
    if (!strcmp(how, "slow") && odd) usleep(1200000);
    if (!strcmp(how, "load") && odd) {
        sheaf_world_enter(SHEAF_PHASE_LOAD, "a large file");
        sleep(4);
        sheaf_world_enter(SHEAF_PHASE_IDLE, NULL);
    }
    if (!strcmp(how, "plan")) {
        sheaf_world_enter(SHEAF_PHASE_PLAN, "a large graph");
        if (odd) sleep(3);
    }
    return !sheaf_world_barrier("gate");
}

/* ---- devices: rank r has r of its own, besides those of the registry ---- */
static const char *fake_name(sheaf_backend_dev_t dev) { return dev->context; }
static void fake_memory(sheaf_backend_dev_t dev, size_t *avail, size_t *total) {
    (void)dev;
    *avail = 1000 + (size_t)sheaf_world_rank();
    *total = 2000;
}
static enum sheaf_backend_dev_type type_of_fakes = SHEAF_BACKEND_DEVICE_TYPE_ACCEL;
static enum sheaf_backend_dev_type fake_type(sheaf_backend_dev_t dev) {
    (void)dev;
    return type_of_fakes;
}
static void fake_props(sheaf_backend_dev_t dev, struct sheaf_backend_dev_props *p) {
    *p = (struct sheaf_backend_dev_props){.name = dev->context,
                                          .description = "a fake",
                                          .type = type_of_fakes,
                                          .caps = {.async = true, .events = true}};
    fake_memory(dev, &p->memory_free, &p->memory_total);
}
static bool fake_supports(sheaf_backend_dev_t dev, const struct sheaf_tensor *op) {
    (void)dev;
    (void)op;
    return false;
}
static const struct sheaf_backend_device_i fake_iface = {.get_name = fake_name,
                                                         .get_description = fake_name,
                                                         .get_memory = fake_memory,
                                                         .get_type = fake_type,
                                                         .get_props = fake_props,
                                                         .supports_op = fake_supports};
static struct sheaf_backend_device fakes[8];
static size_t fake_count(sheaf_backend_reg_t reg) {
    (void)reg;
    return (size_t)sheaf_world_rank();
}
static sheaf_backend_dev_t fake_get(sheaf_backend_reg_t reg, size_t i) {
    static char names[8][16];
    snprintf(names[i], sizeof names[i], "FAKE%zu", i);
    fakes[i] = (struct sheaf_backend_device){&fake_iface, reg, names[i]};
    return &fakes[i];
}
static const char *reg_name(sheaf_backend_reg_t reg) {
    (void)reg;
    return "fake";
}
static const struct sheaf_backend_reg_i reg_iface = {
    .get_name = reg_name, .get_device_count = fake_count, .get_device = fake_get};
static struct sheaf_backend_reg fake_reg = {SHEAF_BACKEND_API_VERSION, &reg_iface, NULL};

static bool devices(void) {
    const sheaf_backend_dev_t *list, *again;
    size_t n, m;
    if (sheaf_backend_register(&fake_reg)) return wrong("register");
    if (sheaf_world_devices(&list, &n)) return wrong("devices");
    if (sheaf_world_devices(&again, &m) || again != list || m != n) return wrong("second call");
    int last = 0;
    for (size_t i = 0; i < n; i++) {
        struct sheaf_backend_dev_props p;
        sheaf_backend_t backend;
        const int rank = sheaf_world_device_rank(list[i]);
        sheaf_backend_dev_get_props(list[i], &p);
        if (rank < last) return wrong("order");
        last = rank;
        if (p.remote != (rank != sheaf_world_rank())) return wrong("remote");
        if (!p.remote || p.type != SHEAF_BACKEND_DEVICE_TYPE_ACCEL) continue;
        char want[32], name[96];
        snprintf(want, sizeof want, "@%d", rank);
        sheaf_world_device_name(list[i], name, sizeof name);
        if (!strstr(p.name, want) || strcmp(name, p.name) || p.rank != rank ||
            strcmp(p.description, "a fake") || p.memory_free != 1000 + (size_t)rank ||
            p.memory_total != 2000 || !p.caps.async || p.caps.host_buffer || !p.caps.events)
            return wrong("description");
        if (sheaf_backend_dev_init(list[i], NULL, &backend) != SHEAF_STATUS_UNSUPPORTED ||
            backend || !strstr(sheaf_last_error(), "only that rank"))
            return wrong("a remote device started");
        /* judged as the local fake does, if there is one */
        if (sheaf_world_rank() && sheaf_backend_dev_supports_op(list[i], NULL))
            return wrong("supports_op");
    }
    size_t n_fake = 0;
    for (size_t i = 0; i < n; i++) n_fake += !strncmp(sheaf_backend_dev_name(list[i]), "FAKE", 4);
    if (n_fake != (size_t)(sheaf_world_size() * (sheaf_world_size() - 1) / 2))
        return wrong("number");
    printf("ok rank %d sees %zu fakes\n", sheaf_world_rank(), n_fake);
    return true;
}

/* Rank 1 has a device of a type that this version does not have. */
static bool unknown_type(void) {
    const sheaf_backend_dev_t *list;
    size_t n;
    if (sheaf_world_rank() == 1) type_of_fakes = (enum sheaf_backend_dev_type)99;
    if (sheaf_backend_register(&fake_reg)) return wrong("register");
    return !sheaf_world_devices(&list, &n);
}

/* ---- rank 0 stays in its start: it has voted in the last agreement, and the others have all votes
 * when rank 2 has. Rank 1 fails then ---- */
static pthread_t starting;
static int stay_ms = 6000;

static void stay(int signal) {
    (void)signal;
    for (int i = 0; i < stay_ms / 100; i++) usleep(100000);
}
static void *interrupt(void *arg) {
    usleep(300000);
    pthread_kill(starting, SIGUSR2);
    return arg;
}
static void hold_the_start(enum sheaf_phase phase, const char *what) {
    static bool is_last;
    pthread_t thread;
    (void)phase;
    if (what && strstr(what, "process numbers")) is_last = true;
    if (!is_last || !strstr(what, "agree 'start'")) return;
    is_last = false;
    if (sheaf_world_rank() == 2) usleep(600000);
    if (sheaf_world_rank() != 0) return;
    starting = pthread_self();
    signal(SIGUSR2, stay);
    if (!pthread_create(&thread, NULL, interrupt, NULL)) pthread_detach(thread);
}
static int late(void) {
    sheaf__phase_hook = hold_the_start;
    const bool started = !start_job();
    if (started && sheaf_world_rank() == 1) {
        sheaf_world_abort("rank 1 gives up");
        sheaf_set_error(SHEAF_STATUS_FAILED, "rank 1 gives up");
    }
    usleep(2000000); /* longer than a rank may be silent, shorter than it may take to come out */
    return quit(false);
}

/* Rank 0 is slow in its start, twice: in an exchange for which the others wait, and behind its vote
 * in the last agreement, which the others come out of before it. The job goes on. */
static void slow_the_start(enum sheaf_phase phase, const char *what) {
    if (what && strstr(what, "process numbers") && sheaf_world_rank() == 0) usleep(2200000);
    hold_the_start(phase, what);
}
static int slow_start(void) {
    sheaf__phase_hook = slow_the_start;
    stay_ms = 2500;
    const bool ok = !start_job() && !sheaf_world_barrier("gate");
    if (ok) printf("ok rank %d\n", sheaf_world_rank());
    return quit(ok);
}

/* After a failed job rank 1 has work of its own, for seconds. Rank 0 leaves the job in that time. */
static int last_work(void) {
    const bool leaves_first = sheaf_world_rank() == 1;
    if (leaves_first)
        sheaf_world_abort("rank 1 gives up");
    else
        usleep(2200000);
    const int status = quit(!sheaf_world_barrier("gate"));
    usleep(leaves_first ? 3200000 : 30000000); /* mpirun ends all when one has ended with 1 */
    printf("ok rank %d, %d\n", leaves_first, status);
    fflush(stdout);
    usleep(300000); /* mpirun may lose what a rank wrote just before it ended with 1 */
    return status;
}

/* A program that speaks its user's language: what is written for programs is as without. */
static bool language(void) {
    if (!setlocale(LC_ALL, "") || strcmp(localeconv()->decimal_point, ","))
        return wrong("the language has no comma in numbers");
    if (sheaf_trace_start(16)) return wrong("trace_start");
    sheaf__trace(SHEAF__TRACE_COMPUTE, "span", sheaf__time_ns(), 1234567);
    if (sheaf_trace_write(getenv("TRACE"))) return wrong("trace_write");
    sheaf__record_begin(1, 0, 2, 3, 4, "sum", 5);
    sheaf__record_end(1500, 2500);
    if (sheaf_world_barrier("gate")) return false; /* rank 0 may be at the end already */
    sheaf_world_abort("the end");
    return false;
}

/* A start that is refused leaves no MPI behind that the process would have to end. */
static int refused(void) {
    int initialized = 0, finalized = 0;
    MPI_Initialized(&initialized);
    MPI_Finalized(&finalized);
    printf("%s\n", initialized && finalized ? "ok" : "WRONG: MPI is not finalized");
    return quit(false);
}

int main(int argc, char **argv) {
    if (argc < 2) return 2;
    if (!strcmp(argv[1], "late")) return late();
    if (!strcmp(argv[1], "slow-start")) return slow_start();
    if (start_job()) return !strcmp(argv[1], "refused") ? refused() : quit(false);
    if (!strcmp(argv[1], "last-work")) return last_work();
    if (!strcmp(argv[1], "info")) return quit(info());
    if (!strcmp(argv[1], "bindings")) return quit(bindings());
    if (!strcmp(argv[1], "no-descriptor")) return quit(no_descriptor());
    if (!strcmp(argv[1], "transport")) return quit(transport());
    if (!strcmp(argv[1], "components")) return components();
    if (!strcmp(argv[1], "away")) return quit(launcher_away());
    if (!strcmp(argv[1], "threads")) return quit(threads());
    if (!strcmp(argv[1], "control")) return quit(control());
    if (!strncmp(argv[1], "blocks", 6)) return quit(blocks(argv[1]));
    if (!strcmp(argv[1], "late-call")) return quit(late_call(0));
    if (!strcmp(argv[1], "late-callee")) return quit(late_call(1));
    if (!strcmp(argv[1], "many-calls")) return quit(many_calls());
    if (!strcmp(argv[1], "agree")) return quit(agree());
    if (!strcmp(argv[1], "devices")) return quit(devices());
    if (!strcmp(argv[1], "unknown-type")) return quit(unknown_type());
    if (!strcmp(argv[1], "language")) return quit(language());
    const bool ok = differ(argv[1]);
    if (ok) printf("ok rank %d\n", sheaf_world_rank());
    return quit(ok);
}
