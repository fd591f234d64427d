/* Collectives on the memory of far devices, so that the vote, the choice and the calls of groups
 * that use such a module can be tested without a GPU.
 *
 * Members meet in a file in shared memory that the key names: each writes its block, waits for the
 * others, and sums or copies in the order of the group. It waits where a GPU's stream would, in the
 * call itself. SHEAF_TEST_FAR_COMM: "none" refuses every device, "broken" fails to start on rank 1,
 * "stuck" never arrives there at the third collective (SHEAF_TEST_FAR_STUCK_AT: at that), "same" shows
 * all devices as one. */
#include <fcntl.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include "backend/devcomm.h"
#include "far.h"

enum { BLOCK = 1 << 20 }; /* bytes a member */

struct meeting { /* in shared memory, followed by the blocks */
    _Atomic int attached;
    _Atomic uint64_t arrived[]; /* [n] steps */
};

struct made {
    struct sheaf__devcomm_group group;
    struct meeting *meeting;
    char *blocks;
    size_t mapped;
    uint64_t step[FAR_MAX_DEVICES]; /* of the local members */
    _Atomic bool aborted;
};

static bool is(const char *what) {
    const char *text = getenv("SHEAF_TEST_FAR_COMM");
    return text && !strcmp(text, what);
}
static bool is_rank_1(void) {
    const char *rank = getenv("OMPI_COMM_WORLD_RANK");
    return rank && !strcmp(rank, "1");
}

static enum sheaf_status identify(sheaf_backend_dev_t dev, uint8_t id[SHEAF__DEVCOMM_ID_BYTES]) {
    const sheaf_backend_reg_t reg = sheaf_backend_dev_backend_reg(dev);
    memset(id, 0, SHEAF__DEVCOMM_ID_BYTES);
    if (!reg || strcmp(sheaf_backend_reg_name(reg), "Far") != 0)
        return sheaf_set_error(SHEAF_STATUS_UNSUPPORTED, "it is no far device");
    if (is("none")) return sheaf_set_error(SHEAF_STATUS_UNSUPPORTED, "libfar.so.2 was not found");
    const pid_t pid = is("same") ? 0 : getpid();
    memcpy(id, &pid, sizeof pid);
    if (!is("same")) id[15] = (uint8_t)sheaf_backend_dev_name(dev)[3];
    return SHEAF_STATUS_SUCCESS;
}
static enum sheaf__devcomm_places places(void) { return SHEAF__DEVCOMM_APART; }

static enum sheaf_status make_key(uint8_t key[SHEAF__DEVCOMM_KEY_BYTES]) {
    static int n;
    snprintf((char *)key, SHEAF__DEVCOMM_KEY_BYTES, "/far-%ld-%d", (long)getpid(), n++);
    return SHEAF_STATUS_SUCCESS;
}

static bool over(const struct made *m) { return m->aborted || m->group.give_up(); }

static void pause_a_while(void) { nanosleep(&(struct timespec){0, 20000}, NULL); }

static void destroy(void *made) {
    struct made *m = made;
    munmap(m->meeting, m->mapped);
    free(m);
}

static enum sheaf_status create(const struct sheaf__devcomm_group *group, void **out) {
    const char *name = (const char *)group->key;
    const size_t head =
        (sizeof(struct meeting) + (size_t)group->n * sizeof(uint64_t) + 4095) / 4096 * 4096;
    if (is("broken") && is_rank_1())
        return sheaf_set_error(SHEAF_STATUS_FAILED, "the far wire is cut");
    struct made *m = calloc(1, sizeof *m);
    if (!m) return sheaf_set_error(SHEAF_STATUS_ALLOC_FAILED, "far: out of memory");
    m->group = *group;
    m->mapped = head + 2 * (size_t)group->n * BLOCK;
    const int fd = shm_open(name, O_RDWR | O_CREAT, 0600);
    void *p = MAP_FAILED;
    if (fd >= 0 && !ftruncate(fd, (off_t)m->mapped))
        p = mmap(NULL, m->mapped, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (fd >= 0) close(fd);
    if (p == MAP_FAILED) {
        free(m);
        return sheaf_set_error(SHEAF_STATUS_FAILED, "far: no shared memory %s", name);
    }
    m->meeting = p;
    m->blocks = (char *)p + head;
    const int n_there = atomic_fetch_add(&m->meeting->attached, group->n_local) + group->n_local;
    if (n_there == group->n) shm_unlink(name);
    while (atomic_load(&m->meeting->attached) < group->n) {
        if (over(m)) {
            shm_unlink(name);
            destroy(m);
            return sheaf_set_error(SHEAF_STATUS_TIMEOUT, "far: a peer did not come");
        }
        pause_a_while();
    }
    *out = m;
    return SHEAF_STATUS_SUCCESS;
}

static void end_all(void *made) { ((struct made *)made)->aborted = true; }

/* The memory behind a far address. */
static char *reach(const struct made *m, int local, const void *address) {
    return far_reach(m->group.backends[local]->device->context, address);
}

static char *block(const struct made *m, int member, uint64_t step) {
    return m->blocks + (2 * (size_t)member + (step & 1)) * BLOCK;
}

/* All members have written their blocks of this step. Blocks exist twice, as in groups. */
static enum sheaf_status meet(struct made *m, int local) {
    const int member = m->group.local[local];
    const uint64_t step = m->step[local] + 1;
    const char *at = getenv("SHEAF_TEST_FAR_STUCK_AT");
    while (is("stuck") && is_rank_1() && step == (at ? strtoull(at, NULL, 10) : 3))
        pause_a_while(); /* until it is killed */
    atomic_store(&m->meeting->arrived[member], step);
    for (int i = 0; i < m->group.n; i++) {
        while (atomic_load(&m->meeting->arrived[i]) < step) {
            if (over(m)) return sheaf_set_error(SHEAF_STATUS_TIMEOUT, "member %d did not come", i);
            sched_yield();
        }
    }
    return SHEAF_STATUS_SUCCESS;
}

/* out [n] = the sum of floats [from, from + n) of every block. */
static void sum(const struct made *m, uint64_t step, size_t from, float *out, size_t n) {
    const struct sheaf__devcomm_group *g = &m->group;
    for (size_t e = 0; e < n; e++) {
        float total = 0, host = 0;
        for (int i = 0; i < g->n; i++) {
            const int member = g->order[i];
            const float v = ((const float *)(const void *)block(m, member, step))[from + e];
            const bool first = i == 0 || g->host[member] != g->host[g->order[i - 1]];
            const bool last = i + 1 == g->n || g->host[g->order[i + 1]] != g->host[member];
            host = first ? v : host + v;
            if (last) total = g->host[member] == g->host[g->order[0]] ? host : total + host;
        }
        out[e] = total;
    }
}

static enum sheaf_status all_reduce(void *made, int local, float *data, size_t n) {
    struct made *m = made;
    char *mine = reach(m, local, data);
    const size_t most = BLOCK / sizeof *data;
    enum sheaf_status st =
        mine || !n ? sheaf_backend_synchronize(m->group.backends[local]) : SHEAF_STATUS_INVALID;
    for (size_t at = 0; at < n && !st; at += most, m->step[local]++) {
        const size_t len = n - at < most ? n - at : most;
        float *part = (float *)(void *)mine + at;
        memcpy(block(m, m->group.local[local], m->step[local]), part, len * sizeof *part);
        st = meet(m, local);
        if (!st) sum(m, m->step[local], 0, part, len);
    }
    return st;
}

static enum sheaf_status all_gather(void *made, int local, const void *send, void *recv,
                                    const size_t *bytes) {
    struct made *m = made;
    const int member = m->group.local[local];
    size_t longest = 0;
    for (int i = 0; i < m->group.n; i++) longest = bytes[i] > longest ? bytes[i] : longest;
    const char *mine = bytes[member] ? reach(m, local, send) : NULL;
    char *all = longest ? reach(m, local, recv) : NULL;
    enum sheaf_status st = sheaf_backend_synchronize(m->group.backends[local]);
    if ((bytes[member] && !mine) || (longest && !all)) st = SHEAF_STATUS_INVALID;
    for (size_t at = 0; at < longest && !st; at += BLOCK, m->step[local]++) {
        size_t len = bytes[member] > at ? bytes[member] - at : 0, to = 0;
        if (len) memcpy(block(m, member, m->step[local]), mine + at, len < BLOCK ? len : BLOCK);
        st = meet(m, local);
        for (int i = 0; i < m->group.n && !st; to += bytes[i++]) {
            len = bytes[i] > at ? bytes[i] - at : 0;
            if (len) memcpy(all + to + at, block(m, i, m->step[local]), len < BLOCK ? len : BLOCK);
        }
    }
    return st;
}

static enum sheaf_status reduce_scatter(void *made, int local, const float *send, float *recv,
                                        const size_t *counts) {
    struct made *m = made;
    const int member = m->group.local[local];
    const size_t most = BLOCK / sizeof *send;
    size_t n = 0, first = 0;
    for (int i = 0; i < m->group.n; i++) {
        if (i == member) first = n;
        n += counts[i];
    }
    const float *mine = n ? (const float *)(const void *)reach(m, local, send) : NULL;
    float *out = counts[member] ? (float *)(void *)reach(m, local, recv) : NULL;
    enum sheaf_status st = sheaf_backend_synchronize(m->group.backends[local]);
    if ((n && !mine) || (counts[member] && !out)) st = SHEAF_STATUS_INVALID;
    for (size_t at = 0; at < n && !st; at += most, m->step[local]++) {
        const size_t end = n - at < most ? n : at + most;
        const size_t lo = first > at ? first : at;
        const size_t hi = first + counts[member] < end ? first + counts[member] : end;
        memcpy(block(m, member, m->step[local]), mine + at, (end - at) * sizeof *send);
        st = meet(m, local);
        if (!st && lo < hi) sum(m, m->step[local], lo - at, out + (lo - first), hi - lo);
    }
    return st;
}

static enum sheaf_status poll(void *made, int local, bool *done) {
    const struct made *m = made;
    *done = true; /* the calls wait; what else is queued is the backend's */
    return m->aborted ? sheaf_set_error(SHEAF_STATUS_PEER, "aborted")
                      : sheaf_backend_synchronize(m->group.backends[local]);
}

const struct sheaf__devcomm_i far_devcomm = {.version = SHEAF__DEVCOMM_VERSION,
                                             .name = "far",
                                             .identify = identify,
                                             .places = places,
                                             .make_key = make_key,
                                             .create = create,
                                             .destroy = destroy,
                                             .abort = end_all,
                                             .all_reduce = all_reduce,
                                             .all_gather = all_gather,
                                             .reduce_scatter = reduce_scatter,
                                             .poll = poll};
