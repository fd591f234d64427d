/* Collectives of members that share one GPU, in one process or in several of a host
 * (backend/devcomm.h).
 *
 * Each member has two places in device memory that the others read: through CUDA's IPC in another
 * process. A member copies its addend there, waits until its queue has done so, and says so in
 * shared memory; once all have, each adds for itself, in the group's order. So no kernel waits for
 * another process, whose turn on the GPU would come only after its own: hosts wait, with the
 * group's deadline. Places are used in turns. A member that has announced step s has read the
 * result of step s - 1, so no member writes to a place that is still read.
 *
 * Shared memory holds numbers and handles only. It is an anonymous file of the process that makes
 * the group's key, as in src/comm/world/shared.c: nothing has a name that another user could take, or
 * that a lost process could leave. */
#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#include "backend/devcomm.h"
#include "base/clock.h"
#include "base/file.h"
#include "cuda/device.h"

namespace {

enum {
    PLACE_BYTES = 8 << 20, /* more is exchanged piece by piece */
    PLACE_FLOATS = PLACE_BYTES / 4,
    SPINS = 2000, /* of a wait before it yields its core, and SPINS more before it naps */
    NAP_NS = 20000,
    FAREWELL_S = 1,
};

enum state { ABSENT, OPEN, HERE, GONE, BROKEN };

struct seat { /* of a member, in shared memory */
    uint32_t state;
    uint32_t pid;
    cudaIpcMemHandle_t handle;
    alignas(64) uint64_t step; /* what its places hold */
};

struct local {
    int member;
    const struct sheaf__cuda_device *device;
    sheaf_backend_t backend;
    cudaStream_t stream;
    char *places; /* [2][PLACE_BYTES] */
    uint64_t step;
};

struct made {
    struct sheaf__devcomm_group group;
    struct table *table;
    struct seat *seats; /* of the table: [n] */
    char *places[SHEAF__SUM_BLOCKS];
    bool opened[SHEAF__SUM_BLOCKS]; /* through IPC */
    uint32_t aborted;
    struct local locals[SHEAF__SUM_BLOCKS];
};

template <typename T> T load(const T *p) { return __atomic_load_n(p, __ATOMIC_ACQUIRE); }
template <typename T> void store(T *p, T value) { __atomic_store_n(p, value, __ATOMIC_RELEASE); }

struct sheaf__cuda_device *device_of(sheaf_backend_dev_t dev) {
    sheaf_backend_buffer_type_t buft = sheaf_backend_dev_buffer_type(dev);
    return buft ? sheaf__cuda_device_of_buft(buft) : NULL;
}

/* Processes that do not see each other's numbers are not on one GPU as far as this goes. */
enum sheaf_status identify(sheaf_backend_dev_t dev, uint8_t id[SHEAF__DEVCOMM_ID_BYTES]) {
    const struct sheaf__cuda_device *d = device_of(dev);
    struct cudaDeviceProp p;
    struct stat pids;
    if (!d) return sheaf_set_error(SHEAF_STATUS_UNSUPPORTED, "it is no CUDA device");
    const cudaError_t e = cudaGetDeviceProperties(&p, d->ordinal);
    if (e) return sheaf__cuda_error(d->name, e, "asking for its identity");
    if (stat("/proc/self/ns/pid", &pids))
        return sheaf_set_error(SHEAF_STATUS_IO, "/proc/self/ns/pid: %s", strerror(errno));
    memcpy(id, &p.uuid, SHEAF__DEVCOMM_ID_BYTES);
    for (size_t i = 0; i < sizeof pids.st_ino; i++)
        id[i] ^= (uint8_t)((uint64_t)pids.st_ino >> 8 * i);
    return SHEAF_STATUS_SUCCESS;
}

enum sheaf__devcomm_places places() { return SHEAF__DEVCOMM_ONE; }

/* The key of a group: where its table is, and a number that is in the table as well. */
struct key {
    uint64_t pid, fd, token;
};
static_assert(sizeof(struct key) <= SHEAF__DEVCOMM_KEY_BYTES, "a key has room");

struct table {
    uint64_t token;
    struct seat seats[SHEAF__SUM_BLOCKS];
};

/* The file is whole from the start: to write to a page of it cannot fail later. */
enum sheaf_status make_key(uint8_t out[SHEAF__DEVCOMM_KEY_BYTES]) {
    struct key k = {(uint64_t)getpid(), 0, 0};
    const int fd = memfd_create("sheaf-gpu", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    int failed = fd < 0 ? errno : posix_fallocate(fd, 0, sizeof(struct table));
    if (!failed && (getrandom(&k.token, sizeof k.token, 0) != sizeof k.token ||
                    pwrite(fd, &k.token, sizeof k.token, 0) != sizeof k.token ||
                    fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK)))
        failed = errno;
    if (failed) {
        if (fd >= 0) close(fd);
        return sheaf_set_error(SHEAF_STATUS_IO, "memory to share: %s", sheaf__errno_text(failed));
    }
    k.fd = (uint64_t)fd;
    memset(out, 0, SHEAF__DEVCOMM_KEY_BYTES);
    memcpy(out, &k, sizeof k);
    return SHEAF_STATUS_SUCCESS;
}

/* ---- queues ---- */

cudaError_t query(const struct local *l) {
    const cudaError_t e = cudaStreamQuery(l->stream);
    if (e == cudaErrorNotReady) cudaGetLastError(); /* or the next launch would find it */
    return e;
}

/* Ranks that wait for each other on few cores must not take these from each other. */
void rest(unsigned spins) {
    if (spins > 2 * SPINS) {
        sheaf__nap(NAP_NS);
    } else if (spins > SPINS) {
        sched_yield();
    }
}

enum sheaf_status poll(void *made, int local, bool *done) {
    struct made *m = (struct made *)made;
    struct local *l = &m->locals[local];
    if (load(&m->aborted)) return sheaf_set_error(SHEAF_STATUS_PEER, "the group was ended");
    enum sheaf_status st = sheaf__cuda_backend_sum(l->backend, NULL);
    cudaError_t e = st ? cudaSuccess : cudaSetDevice(l->device->ordinal);
    if (!st && !e) e = query(l);
    *done = !st && !e;
    return st || !e || e == cudaErrorNotReady
               ? st
               : sheaf__cuda_error(l->device->name, e, "waiting for the queue");
}

/* ---- life ---- */

/* Until all seats are past a state, or it is over. Every member's state is asked each time, so that
 * one that failed ends the others. */
enum sheaf_status await_state(struct made *m, uint32_t state, bool (*over)(const void *),
                              const void *user) {
    for (int i = 0; i < m->group.n;) {
        const uint32_t s = load(&m->seats[i].state);
        if (s == BROKEN)
            return sheaf_set_error(SHEAF_STATUS_TIMEOUT, "member %d could not join", i);
        if (s >= state) {
            i++;
        } else if (over(user)) {
            return sheaf_set_error(SHEAF_STATUS_TIMEOUT, "member %d did not join in time", i);
        } else {
            sched_yield();
        }
    }
    return SHEAF_STATUS_SUCCESS;
}

bool group_gives_up(const void *user) { return ((const struct made *)user)->group.give_up(); }
bool time_is_up(const void *user) { return sheaf__time_ns() > *(const uint64_t *)user; }

void say(struct made *m, uint32_t state) {
    for (int i = 0; m->seats && i < m->group.n_local; i++)
        store(&m->seats[m->group.local[i]].state, state);
}

struct key key_of(const struct made *m) {
    struct key k;
    memcpy(&k, m->group.key, sizeof k);
    return k;
}

/* A number of another process may have come to mean another file: the size, the seal and the token
 * tell. */
enum sheaf_status share_table(struct made *m) {
    const struct key k = key_of(m);
    char name[64];
    struct stat st;
    void *p = MAP_FAILED;
    snprintf(name, sizeof name, "/proc/%llu/fd/%llu", (unsigned long long)k.pid,
             (unsigned long long)k.fd);
    const int fd = open(name, O_RDWR | O_CLOEXEC | O_NONBLOCK);
    const int seals = fd < 0 ? -1 : fcntl(fd, F_GET_SEALS);
    int failed = fd < 0 ? errno : EBADF;
    if (seals >= 0 && seals & F_SEAL_SHRINK && !fstat(fd, &st) &&
        st.st_size == (off_t)sizeof(struct table)) {
        p = mmap(NULL, sizeof(struct table), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
        failed = errno;
    }
    if (fd >= 0) close(fd);
    if (p == MAP_FAILED)
        return sheaf_set_error(SHEAF_STATUS_IO, "shared memory %s: %s", name, sheaf__errno_text(failed));
    m->table = (struct table *)p;
    if (m->table->token != k.token)
        return sheaf_set_error(SHEAF_STATUS_PEER, "shared memory %s is of another process", name);
    m->seats = m->table->seats;
    return SHEAF_STATUS_SUCCESS;
}

enum sheaf_status take_seat(struct made *m, struct local *l) {
    struct seat *s = &m->seats[l->member];
    const char *name = l->device->name;
    void *p = NULL;
    cudaError_t e = cudaSetDevice(l->device->ordinal);
    if (!e) e = cudaMalloc(&p, 2 * (size_t)PLACE_BYTES);
    if (e) return sheaf__cuda_error(name, e, "%d bytes for collectives", 2 * PLACE_BYTES);
    l->places = m->places[l->member] = (char *)p;
    if (m->group.n > m->group.n_local) e = cudaIpcGetMemHandle(&s->handle, p);
    if (e) return sheaf__cuda_error(name, e, "sharing memory with other processes");
    s->pid = (uint32_t)getpid();
    struct sheaf__sum nothing;
    memset(&nothing, 0, sizeof nothing);
    nothing.n_blocks = 1;
    return sheaf__cuda_backend_sum(l->backend, &nothing); /* loads the kernel */
}

enum sheaf_status open_places(struct made *m) {
    const cudaError_t chosen = cudaSetDevice(m->locals[0].device->ordinal);
    if (chosen) return sheaf__cuda_error(m->locals[0].device->name, chosen, "choosing the device");
    for (int i = 0; i < m->group.n; i++) {
        if (m->places[i]) continue;
        void *p = NULL;
        const cudaError_t e =
            cudaIpcOpenMemHandle(&p, m->seats[i].handle, cudaIpcMemLazyEnablePeerAccess);
        if (e)
            return sheaf__cuda_error(m->locals[0].device->name, e,
                                     "reaching the memory of member %d", i);
        m->places[i] = (char *)p;
        m->opened[i] = true;
    }
    return SHEAF_STATUS_SUCCESS;
}

void abort_group(void *made) {
    struct made *m = (struct made *)made;
    store(&m->aborted, 1u);
}

/* Have all local queues done what they hold? */
bool are_empty_by(struct made *m, uint64_t end) {
    bool empty = true;
    for (int i = 0; i < m->group.n_local && empty; i++) {
        bool done = !m->locals[i].places;
        for (unsigned spins = SPINS; !done && empty; rest(spins++))
            empty = !poll(m, i, &done) && (done || !time_is_up(&end));
    }
    return empty;
}

/* The queues here may read the others' memory until they are empty, the others' this one's until they
 * are gone. Both are waited for, but not for long. What may still be read then stays until the process
 * ends: to free it would wait for the device, without a deadline. */
void destroy(void *made) {
    struct made *m = (struct made *)made;
    const bool joined = m->seats && load(&m->seats[m->group.local[0]].state) != BROKEN;
    const uint64_t end = sheaf__time_ns() + FAREWELL_S * UINT64_C(1000000000);
    bool unused = !load(&m->aborted) && are_empty_by(m, end);
    if (m->locals[0].device) cudaSetDevice(m->locals[0].device->ordinal); /* it opened them */
    for (int i = 0; i < m->group.n && unused; i++)
        if (m->opened[i]) cudaIpcCloseMemHandle(m->places[i]);
    if (joined) {
        say(m, unused ? GONE : BROKEN);
        unused = unused && !await_state(m, GONE, time_is_up, &end);
    }
    for (int i = 0; i < m->group.n_local && unused; i++) {
        struct local *l = &m->locals[i];
        if (!l->places) continue;
        cudaSetDevice(l->device->ordinal);
        cudaFree(l->places);
    }
    cudaGetLastError();
    if (m->table) munmap(m->table, sizeof *m->table);
    free(m);
}

enum sheaf_status join(const struct sheaf__devcomm_group *group, void **out) {
    if (group->n > SHEAF__SUM_BLOCKS)
        return sheaf_set_error(SHEAF_STATUS_UNSUPPORTED, "%d members; it takes at most %d",
                               group->n, SHEAF__SUM_BLOCKS);
    struct made *m = (struct made *)calloc(1, sizeof *m);
    if (!m) return sheaf_set_error(SHEAF_STATUS_ALLOC_FAILED, "no memory for a group");
    m->group = *group;
    enum sheaf_status st = share_table(m);
    if (!st) say(m, OPEN);
    if (!st) st = await_state(m, OPEN, group_gives_up, m);
    for (int i = 0; i < group->n_local && !st; i++) {
        struct local *l = &m->locals[i];
        l->member = group->local[i];
        l->backend = group->backends[i];
        l->device = device_of(sheaf_backend_get_device(l->backend));
        l->stream = (cudaStream_t)sheaf__cuda_backend_stream(l->backend);
        st = take_seat(m, l);
    }
    if (!st) say(m, HERE);
    if (!st) st = await_state(m, HERE, group_gives_up, m);
    if (!st) st = open_places(m);
    if (!st) {
        *out = m;
        return st;
    }
    say(m, BROKEN);
    destroy(m);
    return st;
}

/* All have it, or it is of no use. */
void close_key(const struct sheaf__devcomm_group *group) {
    struct key k;
    memcpy(&k, group->key, sizeof k);
    if (k.pid == (uint64_t)getpid()) close((int)k.fd);
}

enum sheaf_status create(const struct sheaf__devcomm_group *group, void **out) {
    const enum sheaf_status st = join(group, out);
    close_key(group);
    return st;
}

/* ---- steps ---- */

enum sheaf_status over(const struct made *m, const struct local *l, const char *waits_for) {
    if (load(&m->aborted)) return sheaf_set_error(SHEAF_STATUS_PEER, "the group was ended");
    if (!m->group.give_up()) return SHEAF_STATUS_SUCCESS;
    return sheaf_set_error(SHEAF_STATUS_TIMEOUT, "%s: %s did not come in time", l->device->name,
                           waits_for);
}

/* `bytes` from `from` to this member's place of the next step; returns once all members' are there.
 */
enum sheaf_status step(struct made *m, struct local *l, const void *from, size_t bytes) {
    const char *name = l->device->name;
    enum sheaf_status st = sheaf__cuda_backend_sum(l->backend, NULL);
    if (st) return st;
    cudaError_t e = cudaSetDevice(l->device->ordinal);
    l->step++;
    if (!e && bytes)
        e = cudaMemcpyAsync(l->places + l->step % 2 * PLACE_BYTES, from, bytes,
                            cudaMemcpyDeviceToDevice, l->stream);
    if (e) return sheaf__cuda_error(name, e, "giving %zu bytes to the group", bytes);
    for (unsigned spins = 1; (e = query(l)) == cudaErrorNotReady; spins++) {
        if (spins >= SPINS && (st = over(m, l, "its own queue"))) return st;
        rest(spins + SPINS);
    }
    if (e) return sheaf__cuda_error(name, e, "waiting for the addends of a collective");
    store(&m->seats[l->member].step, l->step);
    for (int i = 0; i < m->group.n; i++) {
        for (unsigned spins = 1; load(&m->seats[i].step) < l->step; spins++) {
            if (spins >= SPINS && (st = over(m, l, "another member"))) return st;
            rest(spins);
        }
    }
    return SHEAF_STATUS_SUCCESS;
}

struct place { /* of all members, from a float on */
    const struct made *m;
    uint64_t step;
    size_t at;
};
const char *place_of(const struct made *m, int member, uint64_t step) {
    return m->places[member] + step % 2 * PLACE_BYTES;
}
const float *addend_of(const void *user, int member) {
    const struct place *p = (const struct place *)user;
    return (const float *)(const void *)place_of(p->m, member, p->step) + p->at;
}

/* All members' elements [at, at + n) of the step; kept by the backend until it has more to do. */
enum sheaf_status add(const struct made *m, const struct local *l, size_t at, float *out,
                      size_t n) {
    const struct sheaf__devcomm_group *g = &m->group;
    const struct place from = {m, l->step, at};
    const struct sheaf__sum s = sheaf__sum_of(g->n, g->order, g->host, addend_of, &from, out, n);
    return sheaf__cuda_backend_sum(l->backend, &s);
}

size_t least(size_t a, size_t b) { return a < b ? a : b; }

enum sheaf_status all_reduce(void *made, int local, float *data, size_t n) {
    struct made *m = (struct made *)made;
    struct local *l = &m->locals[local];
    enum sheaf_status st = SHEAF_STATUS_SUCCESS;
    for (size_t at = 0; at < n && !st; at += PLACE_FLOATS) {
        const size_t len = least(n - at, PLACE_FLOATS);
        st = step(m, l, data + at, len * sizeof *data);
        if (!st) st = add(m, l, 0, data + at, len);
    }
    return st;
}

enum sheaf_status reduce_scatter(void *made, int local, const float *send, float *recv,
                                 const size_t *counts) {
    struct made *m = (struct made *)made;
    struct local *l = &m->locals[local];
    size_t n = 0, first = 0;
    for (int i = 0; i < m->group.n; i++) {
        if (i == l->member) first = n;
        n += counts[i];
    }
    const size_t last = first + counts[l->member];
    enum sheaf_status st = SHEAF_STATUS_SUCCESS;
    for (size_t at = 0; at < n && !st; at += PLACE_FLOATS) {
        const size_t end = at + least(n - at, PLACE_FLOATS);
        const size_t lo = first > at ? first : at, hi = least(last, end);
        st = step(m, l, send + at, (end - at) * sizeof *send);
        if (!st && lo < hi) st = add(m, l, lo - at, recv + (lo - first), hi - lo);
    }
    return st;
}

enum sheaf_status all_gather(void *made, int local, const void *send, void *recv,
                             const size_t *bytes) {
    struct made *m = (struct made *)made;
    struct local *l = &m->locals[local];
    size_t longest = 0;
    for (int i = 0; i < m->group.n; i++) longest = bytes[i] > longest ? bytes[i] : longest;
    enum sheaf_status st = SHEAF_STATUS_SUCCESS;
    for (size_t at = 0; at < longest && !st; at += PLACE_BYTES) {
        size_t mine = bytes[l->member] > at ? least(bytes[l->member] - at, PLACE_BYTES) : 0;
        char *to = (char *)recv + at;
        st = step(m, l, (const char *)send + at, mine);
        for (int i = 0; i < m->group.n && !st; to += bytes[i++]) {
            if (bytes[i] <= at) continue;
            const cudaError_t e =
                cudaMemcpyAsync(to, place_of(m, i, l->step), least(bytes[i] - at, PLACE_BYTES),
                                cudaMemcpyDeviceToDevice, l->stream);
            if (e) st = sheaf__cuda_error(l->device->name, e, "taking what member %d gave", i);
        }
    }
    return st;
}

struct sheaf__devcomm_i make_interface() {
    struct sheaf__devcomm_i i;
    memset(&i, 0, sizeof i);
    i.version = SHEAF__DEVCOMM_VERSION;
    i.name = "shared-gpu";
    i.identify = identify;
    i.places = places;
    i.make_key = make_key;
    i.create = create;
    i.destroy = destroy;
    i.abort = abort_group;
    i.all_reduce = all_reduce;
    i.all_gather = all_gather;
    i.reduce_scatter = reduce_scatter;
    i.poll = poll;
    return i;
}

} // namespace

const struct sheaf__devcomm_i sheaf__cuda_shared_gpu = make_interface();
