/* libsheaf-nccl.so: collectives between CUDA devices through NCCL (backend/devcomm.h).
 *
 * NCCL moves the data; the CUDA backend adds (backend/sum.h), in the order of the group. So the
 * bits do not depend on NCCL's choice of an algorithm, which changes with the size of a message,
 * nor on NVLS, whose sums inside the switch differ from call to call. A small vector is gathered
 * whole and summed by every member; of a large one each member sums its part and passes it on.
 * SHEAF_NCCL_SUMS=nccl leaves all-reduce to NCCL instead: fewer bytes for many members, other bits
 * (NVLS is left out all the same).
 *
 * libnccl is opened when the first device is asked about, so that the module loads where there is
 * none.
 *
 * Communicators are blocking: with nonblocking ones NCCL makes a thread for each collective. So
 * what may wait for a peer runs on a thread of its own, which is waited for with a deadline
 * (aside.h): making the communicators, the first exchange with every peer, which makes the
 * connections so that later calls find them, and ending. Between collectives no memory is made or
 * freed: CUDA may wait for all work of the process then, also for a collective that another member of
 * it is still to join. Sums that are larger than the scratch go piece by piece.
 *
 * Calls of a communicator and its end exclude each other by the member's lock. A member that does
 * not give it back in time hangs in such a call, which nothing but the abort ends. */
#include <dlfcn.h>
#include <nccl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "backend/devcomm.h"
#include "backend/sum.h"
#include "comm/device/nccl/aside.h"
#include "sheaf/backend-impl.h"
#include "sheaf/settings.h"

enum {
    OLDEST = 21800,             /* ncclCommFinalize, and aborts that can be relied on */
    SHARES_FROM = 23000,        /* two members on one GPU, if NCCL_MULTI_RANK_GPU_ENABLE=1 */
    ONE_SHOT_BYTES = 256 << 10, /* up to here a vector is gathered whole */
    CHUNK = 4 << 20,            /* floats of a larger one at once */
    ALIGN = 32,                 /* floats: parts begin on cache lines */
    FAREWELL_S = 2,             /* that a communicator may take to end */
};

/* ---- the library ---- */

#define FUNCTIONS(X)                                                                               \
    X(ncclGetVersion)                                                                              \
    X(ncclGetUniqueId)                                                                             \
    X(ncclCommInitRankConfig)                                                                      \
    X(ncclCommGetAsyncError)                                                                       \
    X(ncclCommAbort)                                                                               \
    X(ncclCommFinalize)                                                                            \
    X(ncclCommDestroy)                                                                             \
    X(ncclGroupStart)                                                                              \
    X(ncclGroupEnd)                                                                                \
    X(ncclSend)                                                                                    \
    X(ncclRecv)                                                                                    \
    X(ncclAllGather)                                                                               \
    X(ncclAllReduce)                                                                               \
    X(ncclGetErrorString)                                                                          \
    X(ncclGetLastError)

static struct {
#define FIELD(f) __typeof__(f) *f;
    FUNCTIONS(FIELD)
#undef FIELD
    int version;
    char why[SHEAF__DEVCOMM_WHY_BYTES]; /* "" if it is there */
} nccl;
static pthread_once_t opened = PTHREAD_ONCE_INIT;

static void open_library(void) {
    const char *given = sheaf_setting_value("SHEAF_NCCL_LIBRARY");
    const char *const name = given ? given : "libnccl.so.2";
    void *handle = dlopen(name, RTLD_NOW | RTLD_LOCAL);
    if (!handle) {
        snprintf(nccl.why, sizeof nccl.why, "%.60s was not found or cannot be opened", name);
        return;
    }
#define FIND(f)                                                                                    \
    {                                                                                              \
        void *address = dlsym(handle, #f);                                                         \
        memcpy(&nccl.f, &address, sizeof address);                                                 \
        if (!address) snprintf(nccl.why, sizeof nccl.why, "%.60s has no %s", name, #f);            \
    }
    FUNCTIONS(FIND)
#undef FIND
    if (nccl.why[0]) return;
    if (nccl.ncclGetVersion(&nccl.version) != ncclSuccess) nccl.version = 0;
    if (nccl.version < OLDEST)
        snprintf(nccl.why, sizeof nccl.why, "%.60s is version %d; it takes %d", name, nccl.version,
                 OLDEST);
}

static bool have_library(void) {
    pthread_once(&opened, open_library);
    return !nccl.why[0];
}

/* For messages and for scripts/gpu-check; 0 without a library. */
static int version(void) { return have_library() ? nccl.version : 0; }

/* ---- devices ---- */

static void *proc_of(sheaf_backend_dev_t dev, const char *name) {
    sheaf_backend_reg_t reg = sheaf_backend_dev_backend_reg(dev);
    return reg ? sheaf_backend_reg_get_proc_address(reg, name) : NULL;
}

/* CUDA's number of the device, -1 if it is none of CUDA's. */
static int ordinal_of(sheaf_backend_dev_t dev) {
    int (*ordinal)(sheaf_backend_dev_t);
    void *address = proc_of(dev, "sheaf_backend_cuda_ordinal");
    memcpy(&ordinal, &address, sizeof ordinal);
    return address ? ordinal(dev) : -1;
}

static cudaStream_t stream_of(sheaf_backend_t backend) {
    void *(*stream)(sheaf_backend_t);
    void *address = proc_of(sheaf_backend_get_device(backend), "sheaf_backend_cuda_stream");
    memcpy(&stream, &address, sizeof stream);
    return address ? stream(backend) : NULL;
}

static enum sheaf_status identify(sheaf_backend_dev_t dev, uint8_t id[SHEAF__DEVCOMM_ID_BYTES]) {
    struct cudaDeviceProp p;
    const int ordinal = ordinal_of(dev);
    if (ordinal < 0)
        return sheaf_set_error(SHEAF_STATUS_UNSUPPORTED, "it is no CUDA device, as NCCL needs");
    if (!have_library()) return sheaf_set_error(SHEAF_STATUS_IO, "%s", nccl.why);
    const cudaError_t e = cudaGetDeviceProperties(&p, ordinal);
    if (e) return sheaf_set_error(SHEAF_STATUS_FAILED, "%s", cudaGetErrorString(e));
    memcpy(id, &p.uuid, SHEAF__DEVCOMM_ID_BYTES);
    return SHEAF_STATUS_SUCCESS;
}

static enum sheaf__devcomm_places places(void) {
    const char *text = getenv("NCCL_MULTI_RANK_GPU_ENABLE");
    const bool shares = have_library() && nccl.version >= SHARES_FROM && text && !strcmp(text, "1");
    return shares ? SHEAF__DEVCOMM_ANY : SHEAF__DEVCOMM_APART;
}

static enum sheaf_status make_key(uint8_t key[SHEAF__DEVCOMM_KEY_BYTES]) {
    ncclUniqueId id;
    _Static_assert(sizeof id == SHEAF__DEVCOMM_KEY_BYTES, "a key is NCCL's unique id");
    const ncclResult_t r = nccl.ncclGetUniqueId(&id);
    if (r != ncclSuccess)
        return sheaf_set_error(SHEAF_STATUS_FAILED, "NCCL: %s", nccl.ncclGetErrorString(r));
    memcpy(key, &id, sizeof id);
    return SHEAF_STATUS_SUCCESS;
}

/* ---- groups ---- */

struct local {
    int member, ordinal;
    ncclComm_t comm;
    sheaf_backend_t backend;
    cudaStream_t stream;
    sheaf__sum_fn *add;
    float *scratch;
    size_t scratch_floats;
    pthread_mutex_t lock; /* held during calls of the communicator, and its end */
    atomic_bool aborted;  /* its communicator is gone, or about to be */
};

struct made {
    struct sheaf__devcomm_group group;
    bool sums_by_nccl;
    bool left; /* a thread that never returned uses this */
    int n_local;
    struct local locals[];
};

static enum sheaf_status failed(ncclResult_t r, const char *what) {
    const char *more = nccl.ncclGetLastError(NULL);
    return sheaf_set_error(r == ncclRemoteError ? SHEAF_STATUS_PEER : SHEAF_STATUS_FAILED,
                           "%s: %s%s%s", what, nccl.ncclGetErrorString(r),
                           more && *more ? ": " : "", more ? more : "");
}

static enum sheaf_status cuda_failed(cudaError_t e, const char *what) {
    cudaGetLastError(); /* or the next sum would find it */
    return sheaf_set_error(SHEAF_STATUS_FAILED, "%s: %s", what, cudaGetErrorString(e));
}

static enum sheaf_status was_ended(void) {
    return sheaf_set_error(SHEAF_STATUS_PEER, "the group was ended");
}

/* Before calls of the communicator; enter fails, without the lock, once it is gone. */
static enum sheaf_status enter(struct local *l) {
    pthread_mutex_lock(&l->lock);
    if (!l->aborted) return SHEAF_STATUS_SUCCESS;
    pthread_mutex_unlock(&l->lock);
    return was_ended();
}
static enum sheaf_status leave(struct local *l, ncclResult_t r, const char *what) {
    pthread_mutex_unlock(&l->lock);
    if (l->aborted) return was_ended();
    return r == ncclSuccess ? SHEAF_STATUS_SUCCESS : failed(r, what);
}

/* ---- the end of a communicator ---- */

static bool time_is_up(const void *user) { return sheaf__time_ns() > *(const uint64_t *)user; }

static uint64_t farewell(void) { return sheaf__time_ns() + FAREWELL_S * UINT64_C(1000000000); }

static void abort_one(void *user) { nccl.ncclCommAbort(user); /* lets the stream go on */ }

struct ending {
    ncclComm_t comm;
    int ordinal;
};
static void finish_one(void *user) {
    struct ending *e = user;
    cudaSetDevice(e->ordinal);
    if (nccl.ncclCommFinalize(e->comm) == ncclSuccess)
        nccl.ncclCommDestroy(e->comm);
    else
        nccl.ncclCommAbort(e->comm);
    free(e);
}

static void end_all(void *made) {
    struct made *m = made;
    for (int i = 0; i < m->n_local; i++) {
        struct local *l = &m->locals[i];
        bool begun;
        if (atomic_exchange(&l->aborted, true) || !l->comm) continue;
        struct timespec until;
        clock_gettime(CLOCK_REALTIME, &until);
        until.tv_sec += 1;
        const bool locked = !pthread_mutex_timedlock(&l->lock, &until);
        const uint64_t end = farewell();
        if (!sheaf__aside(abort_one, l->comm, time_is_up, &end, &begun)) m->left = true;
        if (locked) pthread_mutex_unlock(&l->lock);
    }
}

/* Every rank finishes what its peers still read, if they come; one that is alone gives up on
 * them. */
static void finish_all(struct made *m) {
    for (int i = 0; i < m->n_local; i++) {
        struct local *l = &m->locals[i];
        struct ending *e = malloc(sizeof *e);
        const uint64_t end = farewell();
        bool begun = false;
        if (!e || !l->comm || atomic_exchange(&l->aborted, true)) {
            free(e);
            continue;
        }
        l->add(l->backend, NULL); /* a sum that is kept reads the scratch */
        *e = (struct ending){l->comm, l->ordinal};
        if (!sheaf__aside(finish_one, e, time_is_up, &end, &begun)) m->left = true;
        if (!begun) free(e);
    }
}

static void destroy(void *made) {
    struct made *m = made;
    if (m->group.give_up())
        end_all(m);
    else
        finish_all(m);   /* all streams are empty */
    if (m->left) return; /* its memory is in use for as long as the process lives */
    for (int i = 0; i < m->n_local; i++) {
        struct local *l = &m->locals[i];
        pthread_mutex_destroy(&l->lock);
        if (!l->scratch) continue;
        cudaSetDevice(l->ordinal);
        cudaFree(l->scratch);
    }
    free(m);
}

/* ---- the start ---- */

static bool group_gives_up(const void *user) {
    return ((const struct made *)user)->group.give_up();
}

/* Until the stream is empty, or it is given up. */
static enum sheaf_status drain(const struct made *m, const struct local *l, const char *what) {
    cudaError_t e = cudaSetDevice(l->ordinal);
    while (!e && (e = cudaStreamQuery(l->stream)) == cudaErrorNotReady) {
        cudaGetLastError(); /* or the next sum would find it */
        if (l->aborted) return was_ended();
        if (m->group.give_up())
            return sheaf_set_error(SHEAF_STATUS_TIMEOUT, "%s: a peer did not come in time", what);
        sheaf__nap(20000);
        e = cudaSuccess;
    }
    return e ? cuda_failed(e, what) : SHEAF_STATUS_SUCCESS;
}

static enum sheaf_status make_scratch(struct local *l, size_t floats) {
    void *p = NULL;
    cudaError_t e = cudaSetDevice(l->ordinal);
    if (!e) e = cudaMalloc(&p, floats * sizeof *l->scratch);
    if (e) return cuda_failed(e, "scratch memory of the group");
    l->scratch = p;
    l->scratch_floats = floats;
    return SHEAF_STATUS_SUCCESS;
}

static size_t part_of_members(size_t n, size_t members) {
    return ((n + members - 1) / members + ALIGN - 1) / ALIGN * ALIGN;
}
/* What the largest one-shot all-reduce and a chunk of a larger one need. */
static size_t scratch_of(const struct made *m) {
    const size_t n = (size_t)m->group.n;
    const size_t whole = ONE_SHOT_BYTES / sizeof(float) * n, parts = part_of_members(CHUNK, n) * n;
    return whole > parts ? whole : parts;
}

static ncclResult_t make_communicators(struct made *m) {
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    ncclUniqueId id;
    config.blocking = 1;
    memcpy(&id, m->group.key, sizeof id);
    ncclResult_t r = nccl.ncclGroupStart();
    for (int i = 0; i < m->n_local && r == ncclSuccess; i++) {
        struct local *l = &m->locals[i];
        r = cudaSetDevice(l->ordinal)
                ? ncclUnhandledCudaError
                : nccl.ncclCommInitRankConfig(&l->comm, m->group.n, id, l->member, &config);
    }
    const ncclResult_t end = nccl.ncclGroupEnd();
    return r == ncclSuccess ? end : r;
}

/* A collective of every kind and of two sizes, which makes the connections; the scratch is sent. */
static ncclResult_t meet(struct made *m, size_t bytes) {
    const size_t all = (size_t)m->group.n;
    ncclResult_t r = nccl.ncclGroupStart();
    for (int i = 0; i < m->n_local && r == ncclSuccess; i++) {
        struct local *l = &m->locals[i];
        char *at = (char *)l->scratch;
        if (cudaSetDevice(l->ordinal)) r = ncclUnhandledCudaError;
        if (r == ncclSuccess)
            r = nccl.ncclAllGather(at + (size_t)l->member * bytes, at, bytes, ncclInt8, l->comm,
                                   l->stream);
        if (r == ncclSuccess && m->sums_by_nccl)
            r = nccl.ncclAllReduce(at, at, bytes / sizeof(float), ncclFloat32, ncclSum, l->comm,
                                   l->stream);
        for (size_t j = 0; j < all && r == ncclSuccess; j++) {
            if (j == (size_t)l->member) continue;
            r = nccl.ncclSend(at + (size_t)l->member * bytes, bytes, ncclInt8, (int)j, l->comm,
                              l->stream);
            if (r == ncclSuccess)
                r = nccl.ncclRecv(at + j * bytes, bytes, ncclInt8, (int)j, l->comm, l->stream);
        }
    }
    const ncclResult_t end = nccl.ncclGroupEnd();
    return r == ncclSuccess ? end : r;
}

struct starting {
    struct made *m;
    ncclResult_t result;
};
static void start_aside(void *user) {
    struct starting *s = user;
    s->result = make_communicators(s->m);
    if (s->result == ncclSuccess) s->result = meet(s->m, 1024);
    if (s->result == ncclSuccess) s->result = meet(s->m, ONE_SHOT_BYTES);
}

static enum sheaf_status start(struct made *m) {
    struct starting *s = malloc(sizeof *s);
    enum sheaf_status st = SHEAF_STATUS_SUCCESS;
    bool begun;
    if (!s) return sheaf_set_error(SHEAF_STATUS_ALLOC_FAILED, "NCCL: out of memory");
    *s = (struct starting){m, ncclInternalError};
    for (int i = 0; i < m->n_local && !st; i++) {
        st = make_scratch(&m->locals[i], scratch_of(m));
        if (!st &&
            cudaMemsetAsync(m->locals[i].scratch, 0, m->locals[i].scratch_floats * sizeof(float),
                            m->locals[i].stream))
            st = cuda_failed(cudaGetLastError(), "clear scratch memory");
    }
    if (st) {
        free(s);
        return st;
    }
    if (!sheaf__aside(start_aside, s, group_gives_up, m, &begun)) {
        if (!begun) free(s);
        m->left = begun;
        return begun ? sheaf_set_error(SHEAF_STATUS_TIMEOUT,
                                       "make a communicator: NCCL was not done in time")
                     : sheaf_set_error(SHEAF_STATUS_ALLOC_FAILED, "NCCL: no thread to start on");
    }
    if (s->result != ncclSuccess) st = failed(s->result, "make a communicator");
    free(s);
    for (int i = 0; i < m->n_local && !st; i++) st = drain(m, &m->locals[i], "the first exchange");
    return st;
}

static enum sheaf_status create(const struct sheaf__devcomm_group *group, void **out) {
    const char *sums = sheaf_setting_value("SHEAF_NCCL_SUMS");
    if (group->n > SHEAF__SUM_BLOCKS)
        return sheaf_set_error(SHEAF_STATUS_UNSUPPORTED, "%d members; it takes at most %d",
                               group->n, SHEAF__SUM_BLOCKS);
    if (sums && strcmp(sums, "nccl") != 0 && strcmp(sums, "ordered") != 0)
        return sheaf_set_error(SHEAF_STATUS_INVALID,
                               "SHEAF_NCCL_SUMS is '%.40s'; it is ordered or nccl", sums);
    struct made *m = calloc(1, sizeof *m + (size_t)group->n_local * sizeof m->locals[0]);
    if (!m) return sheaf_set_error(SHEAF_STATUS_ALLOC_FAILED, "NCCL: out of memory");
    m->group = *group;
    m->n_local = group->n_local;
    m->sums_by_nccl = sums && !strcmp(sums, "nccl");
    if (m->sums_by_nccl) setenv("NCCL_ALGO", "^NVLS,NVLSTree", 0);
    enum sheaf_status st = SHEAF_STATUS_SUCCESS;
    for (int i = 0; i < m->n_local; i++) {
        struct local *l = &m->locals[i];
        l->member = group->local[i];
        l->backend = group->backends[i];
        l->ordinal = ordinal_of(sheaf_backend_get_device(l->backend));
        l->stream = stream_of(l->backend);
        pthread_mutex_init(&l->lock, NULL);
        void *add = proc_of(sheaf_backend_get_device(l->backend), SHEAF__SUM_PROC);
        memcpy(&l->add, &add, sizeof l->add);
        if (l->ordinal < 0 || !l->stream || !l->add)
            st = sheaf_set_error(SHEAF_STATUS_FAILED,
                                 "the CUDA backend gives no stream, or cannot add");
        const struct sheaf__sum nothing = {.n_blocks = 1};
        if (!st) st = l->add(l->backend, &nothing); /* loads the kernel */
    }
    if (!st) st = start(m);
    if (st) {
        destroy(m);
    } else {
        *out = m;
    }
    return st;
}

/* ---- collectives ---- */

/* Makes the thread use the member's device; what was in the scratch has been added. */
static enum sheaf_status prepare(struct local *l) {
    const cudaError_t e = cudaSetDevice(l->ordinal);
    if (e) return cuda_failed(e, "use the device");
    return l->aborted ? was_ended() : l->add(l->backend, NULL);
}

/* What a member sends to another, and receives from it, in bytes. */
struct exchange {
    const char *send;
    size_t send_bytes;
    char *recv;
    size_t recv_bytes;
};

/* One exchange with every member; with oneself it is a copy. */
static enum sheaf_status exchange_all(struct made *m, struct local *l,
                                      struct exchange (*with)(const void *user, int member),
                                      const void *user) {
    const struct exchange own = with(user, l->member);
    if (own.send_bytes && own.send != own.recv) {
        const cudaError_t e = cudaMemcpyAsync(own.recv, own.send, own.send_bytes,
                                              cudaMemcpyDeviceToDevice, l->stream);
        if (e) return cuda_failed(e, "copy");
    }
    const enum sheaf_status st = enter(l);
    if (st) return st;
    ncclResult_t r = nccl.ncclGroupStart();
    for (int i = 0; i < m->group.n && r == ncclSuccess; i++) {
        if (i == l->member) continue;
        const struct exchange x = with(user, i);
        if (x.send_bytes) r = nccl.ncclSend(x.send, x.send_bytes, ncclInt8, i, l->comm, l->stream);
        if (x.recv_bytes && r == ncclSuccess)
            r = nccl.ncclRecv(x.recv, x.recv_bytes, ncclInt8, i, l->comm, l->stream);
    }
    const ncclResult_t end = nccl.ncclGroupEnd();
    return leave(l, r == ncclSuccess ? end : r, "exchange");
}

struct scratch { /* the addends of all members there, each `stride` floats */
    const float *at;
    size_t stride;
};
static const float *addend_of(const void *user, int member) {
    const struct scratch *s = user;
    return s->at + (size_t)member * s->stride;
}

/* Kept by the backend until it has more to do. */
static enum sheaf_status sum(const struct made *m, const struct local *l, size_t stride, float *out,
                             size_t n) {
    const struct sheaf__devcomm_group *g = &m->group;
    const struct scratch from = {l->scratch, stride};
    const struct sheaf__sum s = sheaf__sum_of(g->n, g->order, g->host, addend_of, &from, out, n);
    return n ? l->add(l->backend, &s) : SHEAF_STATUS_SUCCESS;
}

/* A chunk of a large vector: member j owns floats [j * part, (j + 1) * part). */
struct chunk {
    const struct made *m;
    const struct local *l;
    float *data;
    size_t n, part;
};

static size_t part_floats(const struct chunk *c, int member) {
    const size_t at = (size_t)member * c->part;
    return at >= c->n ? 0 : c->n - at < c->part ? c->n - at : c->part;
}
static float *part_of(const struct chunk *c, int member) {
    return c->data + (part_floats(c, member) ? (size_t)member * c->part : 0);
}

static struct exchange scatter_with(const void *user, int member) {
    const struct chunk *c = user;
    return (struct exchange){
        .send = (const char *)part_of(c, member),
        .send_bytes = part_floats(c, member) * sizeof(float),
        .recv = (char *)(c->l->scratch + (size_t)member * c->part),
        .recv_bytes = part_floats(c, c->l->member) * sizeof(float),
    };
}
static struct exchange gather_with(const void *user, int member) {
    const struct chunk *c = user;
    return (struct exchange){
        .send = (const char *)part_of(c, c->l->member),
        .send_bytes = part_floats(c, c->l->member) * sizeof(float),
        .recv = (char *)part_of(c, member),
        .recv_bytes = part_floats(c, member) * sizeof(float),
    };
}

static enum sheaf_status reduce_chunk(struct made *m, struct local *l, float *data, size_t n) {
    const size_t members = (size_t)m->group.n;
    const size_t part = part_of_members(n, members);
    const struct chunk c = {m, l, data, n, part};
    enum sheaf_status st = prepare(l);
    if (!st) st = exchange_all(m, l, scatter_with, &c);
    if (!st) st = sum(m, l, part, part_of(&c, l->member), part_floats(&c, l->member));
    if (!st) st = l->add(l->backend, NULL);
    return st ? st : exchange_all(m, l, gather_with, &c);
}

static enum sheaf_status all_reduce(void *made, int local, float *data, size_t n) {
    struct made *m = made;
    struct local *l = &m->locals[local];
    enum sheaf_status st = SHEAF_STATUS_SUCCESS;
    if (!n) return st;
    if (m->sums_by_nccl) {
        if ((st = prepare(l)) || (st = enter(l))) return st;
        return leave(l, nccl.ncclAllReduce(data, data, n, ncclFloat32, ncclSum, l->comm, l->stream),
                     "all-reduce");
    }
    if (n * sizeof *data <= ONE_SHOT_BYTES) {
        st = prepare(l);
        if (!st && !(st = enter(l)))
            st = leave(l, nccl.ncclAllGather(data, l->scratch, n, ncclFloat32, l->comm, l->stream),
                       "gather addends");
        return st ? st : sum(m, l, n, data, n);
    }
    for (size_t at = 0; at < n && !st; at += CHUNK)
        st = reduce_chunk(m, l, data + at, n - at < CHUNK ? n - at : CHUNK);
    return st;
}

struct blocks { /* of reduce_scatter and all_gather: block j is that of member j */
    const struct local *l;
    const char *send;
    char *recv;
    const size_t *counts;
    size_t unit;     /* bytes */
    size_t at, most; /* of reduce_scatter: from there on, so many of each block */
};

static size_t before(const size_t *counts, int member) {
    size_t n = 0;
    for (int i = 0; i < member; i++) n += counts[i];
    return n;
}

static size_t piece_of(const struct blocks *b, int member) {
    const size_t n = b->counts[member];
    return n <= b->at ? 0 : n - b->at < b->most ? n - b->at : b->most;
}
static struct exchange addends_with(const void *user, int member) {
    const struct blocks *b = user;
    const size_t n = piece_of(b, member), mine = piece_of(b, b->l->member);
    return (struct exchange){
        .send = b->send + (before(b->counts, member) + (n ? b->at : 0)) * b->unit,
        .send_bytes = n * b->unit,
        .recv = b->recv + (size_t)member * mine * b->unit,
        .recv_bytes = mine * b->unit,
    };
}
static struct exchange blocks_with(const void *user, int member) {
    const struct blocks *b = user;
    return (struct exchange){
        .send = b->send,
        .send_bytes = b->counts[b->l->member] * b->unit,
        .recv = b->recv + before(b->counts, member) * b->unit,
        .recv_bytes = b->counts[member] * b->unit,
    };
}

static enum sheaf_status reduce_scatter(void *made, int local, const float *send, float *recv,
                                        const size_t *counts) {
    struct made *m = made;
    struct local *l = &m->locals[local];
    struct blocks b = {l,
                       (const char *)send,
                       (char *)l->scratch,
                       counts,
                       sizeof *send,
                       0,
                       l->scratch_floats / (size_t)m->group.n};
    size_t longest = 0;
    for (int i = 0; i < m->group.n; i++) longest = counts[i] > longest ? counts[i] : longest;
    enum sheaf_status st = SHEAF_STATUS_SUCCESS;
    for (; b.at < longest && !st; b.at += b.most) {
        const size_t mine = piece_of(&b, l->member);
        st = prepare(l);
        if (!st) st = exchange_all(m, l, addends_with, &b);
        if (!st) st = sum(m, l, mine, recv + (mine ? b.at : 0), mine);
    }
    return st;
}

static enum sheaf_status all_gather(void *made, int local, const void *send, void *recv,
                                    const size_t *bytes) {
    struct made *m = made;
    struct local *l = &m->locals[local];
    const struct blocks b = {l, send, recv, bytes, 1, 0, 0};
    enum sheaf_status st = prepare(l);
    return st ? st : exchange_all(m, l, blocks_with, &b);
}

static enum sheaf_status poll(void *made, int local, bool *done) {
    struct made *m = made;
    struct local *l = &m->locals[local];
    ncclResult_t r = ncclSuccess;
    if (l->aborted) return was_ended();
    enum sheaf_status st = l->add(l->backend, NULL);
    if (st) return st;
    cudaError_t e = cudaSetDevice(l->ordinal);
    if (!e) e = cudaStreamQuery(l->stream);
    *done = !e;
    if (e == cudaErrorNotReady) cudaGetLastError(); /* or the next sum would find it */
    if (e && e != cudaErrorNotReady) return cuda_failed(e, "the stream");
    if ((st = enter(l))) return st;
    const ncclResult_t asked = nccl.ncclCommGetAsyncError(l->comm, &r);
    return leave(l, asked != ncclSuccess ? asked : r, "NCCL");
}

static const struct sheaf__devcomm_i devcomm = {.version = SHEAF__DEVCOMM_VERSION,
                                                .name = "nccl",
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

/* ---- the module: a backend without devices ---- */

static const char *reg_name(sheaf_backend_reg_t reg) {
    (void)reg;
    return "NCCL";
}
static size_t reg_count(sheaf_backend_reg_t reg) {
    (void)reg;
    return 0;
}
static sheaf_backend_dev_t reg_get(sheaf_backend_reg_t reg, size_t index) {
    (void)reg;
    (void)index;
    return NULL;
}
static void *reg_proc(sheaf_backend_reg_t reg, const char *name) {
    const struct sheaf__devcomm_i *i = &devcomm;
    int (*fn)(void) = version;
    void *address = NULL;
    (void)reg;
    if (!strcmp(name, SHEAF__DEVCOMM_PROC)) memcpy(&address, &i, sizeof address);
    if (!strcmp(name, "sheaf_nccl_version")) memcpy(&address, &fn, sizeof address);
    return address;
}
static const struct sheaf_backend_reg_i reg_i = {.get_name = reg_name,
                                                 .get_device_count = reg_count,
                                                 .get_device = reg_get,
                                                 .get_proc_address = reg_proc};
static struct sheaf_backend_reg entry = {SHEAF_BACKEND_API_VERSION, &reg_i, NULL};

sheaf_backend_reg_t sheaf_backend_init(void) { return &entry; }
