/* NCCL, and the CUDA runtime that the module for it needs, on the CPU: between the members of one
 * process, whose memory is that of the emulated GPUs (../cuda). Streams do everything at once, so the
 * calls that end a group wait for the other members.
 *
 * The process ends with a text where the real library would hang or lose something: a thread that ends
 * inside a group; a block of another size than its receiver expects; memory that is made or freed while
 * there are communicators, for which CUDA may wait for a collective that another member is still to
 * join. SHEAF_TEST_NCCL="fail=NAME:COUNT": the COUNTth call of that function of the runtime fails. */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "nccl.h"

enum { MOST = 16, VERSION = 23000, MOST_CALLS = 256, PAGE = 4096 };

static void die(const char *what) {
    fprintf(stderr, "nccl-emu: %s\n", what);
    abort();
}

/* ---- members ---- */

struct message {
    struct message *next;
    size_t bytes;
    char data[];
};
struct group {
    struct group *next;
    ncclUniqueId id;
    int n, joined;
    struct message *box[MOST][MOST]; /* [from][to] the oldest first */
};
struct ncclComm {
    struct group *group;
    int rank;
    int aborted;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* of all that follows */
static pthread_cond_t changed = PTHREAD_COND_INITIALIZER;
static struct group *groups;
static int n_communicators;

static struct group *group_of(const ncclUniqueId *id, int n) {
    for (struct group *g = groups; g; g = g->next)
        if (!memcmp(&g->id, id, sizeof *id)) return g;
    struct group *g = calloc(1, sizeof *g);
    if (!g || n > MOST) die("no memory for a group, or too many members");
    g->id = *id;
    g->n = n;
    g->next = groups;
    return groups = g;
}

static void post(const struct ncclComm *c, int to, const void *data, size_t bytes) {
    struct message *m = malloc(sizeof *m + bytes), **at = &c->group->box[c->rank][to];
    if (!m) die("no memory for a message");
    m->next = NULL;
    m->bytes = bytes;
    memcpy(m->data, data, bytes);
    while (*at) at = &(*at)->next;
    *at = m;
    pthread_cond_broadcast(&changed);
}

static ncclResult_t take(const struct ncclComm *c, int from, void *data, size_t bytes) {
    struct message **at = &c->group->box[from][c->rank];
    while (!*at && !c->aborted) pthread_cond_wait(&changed, &lock);
    if (c->aborted) return ncclRemoteError;
    struct message *m = *at;
    if (m->bytes != bytes) die("a block has another size than its receiver expects");
    memcpy(data, m->data, bytes);
    *at = m->next;
    free(m);
    return ncclSuccess;
}

/* ---- calls, each in a group of its own or in one of several ---- */

struct call {
    enum { SEND, RECEIVE, GATHER, SUM } kind;
    struct ncclComm *comm;
    int peer;
    const char *from;
    char *to;
    size_t bytes;
};
static _Thread_local struct call calls[MOST_CALLS];
static _Thread_local int n_calls, depth;
static pthread_key_t at_end;

static void ends_outside(void *deep) {
    (void)deep;
    if (depth) die("a thread ends inside a group");
}
static __attribute__((constructor)) void watch_threads(void) {
    if (pthread_key_create(&at_end, ends_outside)) die("no key");
}

static int is_peer(const struct call *x, int rank) {
    const int all = x->kind == GATHER || x->kind == SUM;
    return rank != x->comm->rank && (all || rank == x->peer);
}

static ncclResult_t receive(const struct call *x) {
    ncclResult_t r = ncclSuccess;
    char *block = x->kind == SUM ? malloc((size_t)x->comm->group->n * x->bytes) : x->to;
    const size_t step = x->kind == RECEIVE ? 0 : x->bytes;
    if (x->kind != RECEIVE) memmove(block + (size_t)x->comm->rank * step, x->from, x->bytes);
    for (int i = 0; i < x->comm->group->n && !r; i++)
        if (is_peer(x, i)) r = take(x->comm, i, block + (size_t)i * step, x->bytes);
    if (x->kind != SUM) return r;
    float *sum = (float *)(void *)x->to;
    const float *addend = (const float *)(void *)block;
    const size_t n = x->bytes / sizeof *sum;
    for (size_t i = 0; i < n && !r; i++) {
        sum[i] = addend[i];
        for (int k = 1; k < x->comm->group->n; k++) sum[i] += addend[(size_t)k * n + i];
    }
    free(block);
    return r;
}

/* First all that is sent, so that members whose calls are in one group find each other's. */
static ncclResult_t run_calls(void) {
    ncclResult_t r = ncclSuccess;
    pthread_mutex_lock(&lock);
    for (int i = 0; i < n_calls; i++) {
        const struct call *x = &calls[i];
        while (x->comm->group->joined < x->comm->group->n && !x->comm->aborted)
            pthread_cond_wait(&changed, &lock);
        for (int k = 0; k < x->comm->group->n && x->kind != RECEIVE; k++)
            if (is_peer(x, k)) post(x->comm, k, x->from, x->bytes);
    }
    for (int i = 0; i < n_calls && !r; i++)
        if (calls[i].kind != SEND) r = receive(&calls[i]);
    n_calls = 0;
    pthread_mutex_unlock(&lock);
    return r;
}

ncclResult_t ncclGroupStart(void) {
    depth++;
    pthread_setspecific(at_end, &depth);
    return ncclSuccess;
}
ncclResult_t ncclGroupEnd(void) {
    if (!depth) return ncclInvalidUsage;
    return --depth ? ncclSuccess : run_calls();
}

static ncclResult_t add_call(struct call x, size_t count, ncclDataType_t type) {
    if (n_calls == MOST_CALLS) die("too many calls in a group");
    x.bytes = count * (type == ncclFloat32 ? sizeof(float) : 1);
    calls[n_calls++] = x;
    return depth ? ncclSuccess : run_calls();
}
ncclResult_t ncclSend(const void *from, size_t count, ncclDataType_t type, int peer,
                      ncclComm_t comm, cudaStream_t stream) {
    (void)stream;
    return add_call((struct call){SEND, comm, peer, from, NULL, 0}, count, type);
}
ncclResult_t ncclRecv(void *to, size_t count, ncclDataType_t type, int peer, ncclComm_t comm,
                      cudaStream_t stream) {
    (void)stream;
    return add_call((struct call){RECEIVE, comm, peer, NULL, to, 0}, count, type);
}
ncclResult_t ncclAllGather(const void *from, void *to, size_t count, ncclDataType_t type,
                           ncclComm_t comm, cudaStream_t stream) {
    (void)stream;
    return add_call((struct call){GATHER, comm, -1, from, to, 0}, count, type);
}
ncclResult_t ncclAllReduce(const void *from, void *to, size_t count, ncclDataType_t type,
                           ncclRedOp_t op, ncclComm_t comm, cudaStream_t stream) {
    (void)op, (void)stream;
    return add_call((struct call){SUM, comm, -1, from, to, 0}, count, type);
}

/* ---- communicators ---- */

ncclResult_t ncclGetVersion(int *version) {
    *version = VERSION;
    return ncclSuccess;
}
ncclResult_t ncclGetUniqueId(ncclUniqueId *id) {
    static int n;
    memset(id, 0, sizeof *id);
    snprintf(id->internal, sizeof id->internal, "group %d", n++);
    return ncclSuccess;
}
ncclResult_t ncclCommInitRankConfig(ncclComm_t *comm, int n, ncclUniqueId id, int rank,
                                    ncclConfig_t *config) {
    struct ncclComm *c = calloc(1, sizeof *c);
    if (!c || config->blocking != 1) die("no memory, or a communicator that does not block");
    pthread_mutex_lock(&lock);
    c->group = group_of(&id, n);
    c->rank = rank;
    c->group->joined++;
    n_communicators++;
    pthread_cond_broadcast(&changed);
    pthread_mutex_unlock(&lock);
    *comm = c;
    return ncclSuccess;
}
ncclResult_t ncclCommGetAsyncError(ncclComm_t comm, ncclResult_t *error) {
    *error = comm->aborted ? ncclRemoteError : ncclSuccess;
    return ncclSuccess;
}
ncclResult_t ncclCommFinalize(ncclComm_t comm) {
    (void)comm; /* what was sent has been copied */
    return ncclSuccess;
}
ncclResult_t ncclCommDestroy(ncclComm_t comm) {
    pthread_mutex_lock(&lock);
    n_communicators--;
    pthread_mutex_unlock(&lock);
    free(comm);
    return ncclSuccess;
}
/* What hangs in a call comes out of it, and still has the communicator. */
ncclResult_t ncclCommAbort(ncclComm_t comm) {
    pthread_mutex_lock(&lock);
    comm->aborted = 1;
    n_communicators--;
    pthread_cond_broadcast(&changed);
    pthread_mutex_unlock(&lock);
    return ncclSuccess;
}
const char *ncclGetErrorString(ncclResult_t result) {
    return result == ncclUnhandledCudaError ? "unhandled cuda error"
           : result == ncclRemoteError      ? "remote process exited or there was a network error"
                                            : "internal error";
}
const char *ncclGetLastError(ncclComm_t comm) {
    (void)comm;
    return "";
}

/* ---- the CUDA runtime ---- */

/* The COUNTth call of the function in SHEAF_TEST_NCCL. */
static int fails(const char *name) {
    static int n;
    const char *text = getenv("SHEAF_TEST_NCCL");
    const size_t len = strlen(name);
    if (!text || strncmp(text, "fail=", 5) || strncmp(text + 5, name, len) || text[5 + len] != ':')
        return 0;
    return __atomic_add_fetch(&n, 1, __ATOMIC_RELAXED) == atoi(text + 5 + len + 1);
}

static void no_communicators(const char *what) {
    pthread_mutex_lock(&lock);
    if (n_communicators) die(what);
    pthread_mutex_unlock(&lock);
}

const char *cudaGetErrorString(cudaError_t e) { return e ? "an emulated failure" : "no error"; }
cudaError_t cudaGetLastError(void) { return cudaSuccess; }
cudaError_t cudaGetDeviceProperties(struct cudaDeviceProp *p, int device) {
    memset(p->uuid.bytes, 'a' + device, sizeof p->uuid.bytes);
    return cudaSuccess;
}
cudaError_t cudaSetDevice(int device) {
    (void)device;
    return fails("cudaSetDevice") ? cudaErrorInvalidDevice : cudaSuccess;
}
/* Behind a page that has the size; what reads memory that was freed dies. */
cudaError_t cudaMalloc(void **p, size_t size) {
    no_communicators("cudaMalloc while there are communicators");
    size += PAGE;
    size_t *base = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (base == MAP_FAILED) return cudaErrorInvalidDevice;
    *base = size;
    *p = base + PAGE / sizeof *base;
    return cudaSuccess;
}
cudaError_t cudaFree(void *p) {
    no_communicators("cudaFree while there are communicators");
    size_t *base = (size_t *)p - PAGE / sizeof *base;
    munmap(base, *base);
    return cudaSuccess;
}
cudaError_t cudaMemsetAsync(void *p, int value, size_t size, cudaStream_t stream) {
    (void)stream;
    memset(p, value, size);
    return cudaSuccess;
}
cudaError_t cudaMemcpyAsync(void *to, const void *from, size_t size, enum cudaMemcpyKind kind,
                            cudaStream_t stream) {
    (void)stream;
    if (kind != cudaMemcpyDeviceToDevice) die("a copy that is not on the device");
    memmove(to, from, size);
    return cudaSuccess;
}
cudaError_t cudaStreamQuery(cudaStream_t stream) {
    (void)stream;
    return cudaSuccess;
}
