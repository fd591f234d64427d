/* The emulated machine: see cuda_runtime.h. */
#include "cuda_runtime.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <ucontext.h>
#include <unistd.h>

#include <atomic>
#include <map>
#include <mutex>
#include <vector>

#include "races.h"

[[noreturn]] static void die(const char *what) {
    fprintf(stderr, "cuda-emu: %s (block %u %u %u, thread %u)\n", what, blockIdx.x, blockIdx.y,
            blockIdx.z, threadIdx.x);
    abort();
}

/* ---- alignment ---- */

/* What the compiler calls (-fsanitize=alignment) where an access is at no multiple of its type's alignment. A GPU
 * faults there: 16 bytes at once want a multiple of 16. */
struct misaligned {
    const char *file;
    uint32_t line, column;
};
extern "C" void __ubsan_handle_type_mismatch_v1_abort(void *data, void *p) {
    const misaligned *at = (const misaligned *)data;
    char text[300];
    snprintf(text, sizeof text, "an access to %p is not aligned, %s:%u", p, at->file, at->line);
    die(text);
}

/* ---- fibers ---- */

/* A function in which a fiber stops and goes on: its callers must not look into which registers it
 * leaves alone. */
#ifdef __clang__
#define APART __attribute__((noinline))
#else
#define APART __attribute__((noipa))
#endif

/* __builtin_setjmp keeps three words where setjmp keeps all registers and the C library asks for
 * clean-ups; the compiler saves what else is in use. Fibers change at every shuffle. */
struct place {
    void *words[5];
};
#define COMES_BACK_TO(p) __builtin_setjmp((p).words)
[[noreturn]] static void APART go_to(place *p) { __builtin_longjmp(p->words, 1); }

enum { MAX_THREADS = 1024, STACK = 256 << 10 };
enum state { READY, AT_WARP, AT_BLOCK, DONE };

/* A copy to shared memory that runs on: until its group is waited for, its bytes may not be there. */
struct copy {
    void *to;
    const void *from;
    size_t size;
    int group;
    bool there;
};

struct fiber {
    place at;
    enum state state;
    uint32_t slot[2]; /* what its shuffles give, by turns */
    int turn;
    bool made;
    int vote; /* what it brings to a barrier */
    unsigned passed[PASSED];
    int group; /* of its copies: the one that is open */
    std::vector<copy> copies;
};

struct emu_machine { /* of one OS thread */
    fiber fibers[MAX_THREADS];
    const void *shown[MAX_THREADS];
    char *stacks;
    ucontext_t start;
    place back;
    int current;
    unsigned *passed; /* of the thread that runs */
    int vote;         /* of the last barrier: all of its threads' */
    const std::function<void()> *kernel;
    std::vector<char> shared;
    uint64_t seed; /* 0: blocks, warps and lanes in a fixed order */
};

/* One of n, by chance; with a fixed order the first. */
static unsigned any_of(unsigned n) {
    if (!emu_here->seed) return 0;
    emu_here->seed = emu_here->seed * 6364136223846793005u + 1442695040888963407u;
    return (unsigned)((emu_here->seed >> 33) % n);
}

static void fiber_main(void) {
    for (;;) {
        (*emu_here->kernel)();
        emu_here->fibers[emu_here->current].state = DONE;
        if (!COMES_BACK_TO(emu_here->fibers[emu_here->current].at)) go_to(&emu_here->back);
    }
}

static void APART resume(int i, int n_threads_x) {
    fiber *f = &emu_here->fibers[i];
    emu_here->current = i;
    emu_now.thread = dim3((unsigned)(i % n_threads_x), (unsigned)(i / n_threads_x), 0);
    races_run(i, emu_here->passed = f->passed);
    if (COMES_BACK_TO(emu_here->back)) return;
    if (f->made) go_to(&f->at);
    f->made = true;
    getcontext(&emu_here->start);
    emu_here->start.uc_stack.ss_sp = emu_here->stacks + (size_t)i * STACK;
    emu_here->start.uc_stack.ss_size = STACK;
    emu_here->start.uc_link = NULL;
    makecontext(&emu_here->start, fiber_main, 0);
    setcontext(&emu_here->start);
}

static void APART wait_as(enum state s) {
    fiber *f = &emu_here->fibers[emu_here->current];
    f->state = s;
    if (!COMES_BACK_TO(f->at)) go_to(&emu_here->back);
}

static thread_local bool cooperative_now;
int emu_syncthreads(int vote) {
    if (!emu_here || !cooperative_now) die("a barrier in a kernel that was launched as plain");
    emu_here->fibers[emu_here->current].vote = vote;
    wait_as(AT_BLOCK);
    emu_here->fibers[emu_here->current].passed[BARRIERS]++;
    return emu_here->vote;
}
void emu_syncwarp(void) {
    wait_as(AT_WARP);
    emu_here->fibers[emu_here->current].passed[SYNCWARPS]++;
}
uint32_t emu_shuffle(uint32_t value, int from) {
    fiber *f = &emu_here->fibers[emu_here->current];
    const int turn = f->turn ^= 1, first = emu_here->current / 32 * 32;
    f->slot[turn] = value;
    wait_as(AT_WARP);
    return emu_here->fibers[first + from].slot[turn];
}
const void *const *emu_show(const void *mine) {
    emu_here->shown[emu_here->current] = mine;
    wait_as(AT_WARP);
    return emu_here->shown + emu_here->current / 32 * 32;
}

void emu_multiply_16x8x16(float *d, const uint32_t *a, const uint32_t *b,
                          float (*number)(uint16_t)) {
    struct operands {
        float a[4][2], b[2][2];
    } mine;
    for (int i = 0; i < 4; i++)
        for (int j = 0; j < 2; j++) mine.a[i][j] = number((uint16_t)(a[i] >> j * 16));
    for (int i = 0; i < 2; i++)
        for (int j = 0; j < 2; j++) mine.b[i][j] = number((uint16_t)(b[i] >> j * 16));
    const void *const *shown = emu_show(&mine);
    const int lane = emu_here->current % 32, row = lane / 4, column = lane % 4 * 2;
    for (int k = 0; k < 16; k++) {
        const operands *x = (const operands *)shown[row * 4 + k % 8 / 2];
        for (int i = 0; i < 4; i++) {
            const operands *y = (const operands *)shown[(column + i % 2) * 4 + k % 8 / 2];
            d[i] += x->a[i / 2 + k / 8 * 2][k % 2] * y->b[k / 8][k % 2];
        }
    }
    wait_as(AT_WARP); /* all have read */
}

void emu_load_matrices(uint32_t *r, const void *row, bool transposed) {
    if ((uintptr_t)row % 16) die("a row of a matrix is not aligned");
    races_read_by_warp(row, 16);
    const void *const *shown = emu_show(row);
    const int lane = emu_here->current % 32, g = lane / 4, t = lane % 4;
    for (int i = 0; i < 4; i++) {
        uint32_t word = 0;
        for (int j = 0; j < 2; j++) {
            const int of = transposed ? 2 * t + j : g, at = transposed ? g : 2 * t + j;
            word |= (uint32_t)((const uint16_t *)shown[8 * i + of])[at] << 16 * j;
        }
        r[i] = word;
    }
    wait_as(AT_WARP); /* all have read */
}

void emu_previous_done(void) { emu_here->passed[WAITS]++; }
void emu_prefetch(const void *p, unsigned bytes) {
    if (bytes > 1 && ((uintptr_t)p | bytes) % 16) die("a request to the L2 cache is not aligned");
    volatile char at = ((const char *)p)[bytes - 1];
    (void)at;
}
int emu_guess(const int *p) { return *p; }
unsigned long long atomicCAS(unsigned long long *p, unsigned long long compare,
                             unsigned long long value) {
    const unsigned long long old = *p;
    if (old == compare) *p = value;
    return old;
}

/* The bytes come when the copy is begun or as late as they may, by chance; without it late. */
void emu_copy_ahead(void *to, const void *from, size_t size) {
    fiber *f = &emu_here->fibers[emu_here->current];
    if ((uintptr_t)to % size || (uintptr_t)from % size)
        die("a copy to shared memory is not aligned");
    races_copy_begins(to, size);
    const bool there = emu_here->seed && any_of(2);
    if (there) memcpy(to, from, size);
    f->copies.push_back(copy{to, from, size, f->group, there});
}
void emu_copies_begun(void) { emu_here->fibers[emu_here->current].group++; }
void emu_copies_done(int running) {
    fiber *f = &emu_here->fibers[emu_here->current];
    size_t kept = 0;
    for (const copy &c : f->copies) {
        if (c.group >= f->group - running) {
            f->copies[kept++] = c;
        } else {
            if (!c.there) memcpy(c.to, c.from, c.size);
            races_copy_arrives(c.to, c.size);
        }
    }
    f->copies.resize(kept);
}
void *emu_dynamic_shared(void) {
    return (void *)(((uintptr_t)emu_here->shared.data() + 127) / 128 * 128);
}

/* Lanes of a warp from w to end that are ready run until they wait, then the warp's shuffle is done;
 * false: it goes no further until the block's barrier. */
static bool step_warp(int w, int end, int n, int n_x) {
    int waiting = 0;
    const int first = (int)any_of((unsigned)(end - w));
    for (int k = 0; k < end - w; k++) {
        const int i = w + (first + k) % (end - w);
        if (emu_here->fibers[i].state == READY) resume(i, n_x);
    }
    for (int i = w; i < end; i++) waiting += emu_here->fibers[i].state == AT_WARP;
    if (!waiting) return false;
    if (waiting != end - w || n % 32) die("lanes of a warp miss its shuffle");
    for (int i = w; i < end; i++) emu_here->fibers[i].state = READY;
    return true;
}

/* Runs the fibers of one block to their ends: warp by warp from barrier to barrier, or, by chance, a
 * step of any warp, or all steps of a warp while the others have not begun. */
static void run_block(int n, int n_x) {
    for (int i = 0; i < n; i++) {
        emu_here->fibers[i].state = READY;
        emu_here->fibers[i].turn = 0;
        emu_here->fibers[i].group = 0;
        memset(emu_here->fibers[i].passed, 0, sizeof emu_here->fibers[i].passed);
        emu_here->fibers[i].copies.clear();
    }
    for (;;) {
        int warps[MAX_THREADS / 32], n_warps = 0, at_block = 0, done = 0;
        for (int w = 0; w < n; w += 32) warps[n_warps++] = w;
        const bool goes_on = any_of(2);
        while (n_warps) {
            const int k = (int)any_of((unsigned)n_warps), w = warps[k];
            bool more;
            do more = step_warp(w, w + 32 < n ? w + 32 : n, n, n_x);
            while (more && goes_on);
            if (more) continue;
            if (!emu_here->seed) {
                memmove(warps, warps + 1, (size_t)--n_warps * sizeof *warps);
            } else {
                warps[k] = warps[--n_warps];
            }
        }
        for (int i = 0; i < n; i++) {
            at_block += emu_here->fibers[i].state == AT_BLOCK;
            done += emu_here->fibers[i].state == DONE;
        }
        if (done == n) return;
        if (at_block != n) die("not all threads reach a barrier");
        emu_here->vote = 0;
        for (int i = 0; i < n; i++) {
            emu_here->fibers[i].state = READY;
            emu_here->vote |= emu_here->fibers[i].vote;
        }
    }
}

static long setting(const char *name, long otherwise);

/* Block number i of a grid of n, the last first; or, by chance, all in an order of their own. */
static uint64_t block_number(uint64_t i, uint64_t n, uint64_t start, uint64_t stride) {
    return emu_here->seed ? (start + i * stride) % n : n - 1 - i;
}
static uint64_t common_divisor(uint64_t a, uint64_t b) { return b ? common_divisor(b, a % b) : a; }

static void run_grid(dim3 grid, dim3 block, size_t shared, const emu_kernel &kernel) {
    const int n = (int)(block.x * block.y * block.z);
    if (!emu_here) {
        emu_here = new emu_machine();
        emu_here->stacks = (char *)mmap(NULL, (size_t)MAX_THREADS * STACK, PROT_READ | PROT_WRITE,
                                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        if (emu_here->stacks == MAP_FAILED) abort();
    }
    emu_here->kernel = &kernel.call;
    emu_now.block_dim = block;
    emu_now.grid_dim = grid;
    if (!emu_here->seed) emu_here->seed = (uint64_t)setting("order", 0);
    const uint64_t blocks = (uint64_t)grid.x * grid.y * grid.z;
    uint64_t start = any_of(1u << 30), stride = 1 + any_of(1u << 30);
    while (common_divisor(stride, blocks) != 1) stride++;
    if (kernel.cooperative) {
        races_begin_launch(kernel, emu_here->stacks,
                           emu_here->stacks + (size_t)MAX_THREADS * STACK);
    } else {
        races_begin_launch(kernel, NULL, (char *)__builtin_frame_address(0));
    }
    for (uint64_t i = 0; i < blocks; i++) { /* no order is promised */
        const uint64_t b = block_number(i, blocks, start % blocks, stride);
        emu_now.block = dim3((unsigned)(b % grid.x), (unsigned)(b / grid.x % grid.y),
                             (unsigned)(b / grid.x / grid.y));
        if (kernel.cooperative) {
            emu_here->shared.assign(shared + 256, (char)0xee);
            races_begin_block((unsigned)b, emu_here->shared.data(), shared + 256);
            run_block(n, (int)block.x);
            continue;
        }
        races_begin_block((unsigned)b, NULL, 0);
        for (int t = 0; t < n; t++) {
            unsigned passed[PASSED] = {0};
            emu_now.thread = dim3((unsigned)t, 0, 0);
            races_run(t, emu_here->passed = passed);
            kernel.call();
        }
    }
    races_end_launch();
}

/* ---- the machine's settings and failures ---- */

static thread_local cudaError_t last_error;
static std::mutex lock;

static long setting(const char *name, long otherwise) {
    const char *text = getenv("SHEAF_TEST_CUDA_EMU");
    char key[64];
    snprintf(key, sizeof key, "%s=", name);
    const char *at = text ? strstr(text, key) : NULL;
    return at ? strtol(at + strlen(key), NULL, 10) : otherwise;
}

/* The COUNTth call of the function named in fail=NAME:COUNT. */
static bool fails(const char *name) {
    static std::map<std::string, long> calls;
    const char *text = getenv("SHEAF_TEST_CUDA_EMU"), *at = text ? strstr(text, "fail=") : NULL;
    const size_t n = strlen(name);
    if (!at || strncmp(at + 5, name, n) || at[5 + n] != ':') return false;
    std::lock_guard<std::mutex> hold(lock);
    return ++calls[name] == strtol(at + 5 + n + 1, NULL, 10);
}

static cudaError_t give(cudaError_t e) {
    if (e) last_error = e;
    return e;
}
#define MAY_FAIL(name, error)                                                                      \
    if (fails(name)) return give(error)

/* ---- streams ---- */

struct emu_event {
    int recorded;
    long waits; /* that had ended by then */
};

/* Streams whose work the host has neither waited for nor found done. That of a thread is waited for in the
 * call that uses it. */
static std::atomic<int> n_busy;
static void busy(cudaStream_t s) {
    if (s != cudaStreamPerThread && s && !s->busy.exchange(true)) n_busy++;
}
static bool idle(cudaStream_t s) { /* was it busy? */
    const bool was = s != cudaStreamPerThread && s && s->busy.exchange(false);
    n_busy -= was;
    return was;
}

static cudaError_t submit(cudaStream_t s, const std::function<void()> &work) {
    if (s != cudaStreamPerThread && s && s->capture) {
        s->capture->work.push_back(work);
    } else {
        work();
        busy(s);
    }
    return cudaSuccess;
}

/* Bytes of dynamic shared memory that a kernel may have on a device: 48 KiB, or what it was given. */
static thread_local int device_now;
static std::map<std::pair<int, const void *>, size_t> given_shared;
static size_t shared_allowed(const void *function) {
    std::lock_guard<std::mutex> hold(lock);
    auto it = given_shared.find({device_now, function});
    return it == given_shared.end() ? 48 << 10 : it->second;
}
/* At most what the smallest of the devices that the module is built for has: 64 KiB on 7.5, 99 KiB
 * on 8.6, 227 KiB on 9.0. */
static size_t most_shared(void) {
    const long cc = setting("cc", 90);
    return (size_t)(cc < 80 ? 64 : cc == 80 ? 163 : cc == 90 || cc == 100 ? 227 : 99) << 10;
}
/* It holds for all threads of the process: less than before may fail the launch of another one. */
cudaError_t emu_give_shared(const void *function, int bytes) {
    if (bytes < 0 || (size_t)bytes > most_shared()) return give(cudaErrorInvalidValue);
    std::lock_guard<std::mutex> hold(lock);
    size_t &given = given_shared[{device_now, function}];
    if ((size_t)bytes < given) die("a kernel may have less shared memory than another thread counts on");
    given = (size_t)bytes;
    return cudaSuccess;
}

void emu_launch(dim3 grid, dim3 block, size_t shared, cudaStream_t stream,
                const emu_kernel &kernel) {
    const uint64_t threads = (uint64_t)block.x * block.y * block.z;
    if (!threads || threads > MAX_THREADS || !grid.x || !grid.y || !grid.z || grid.y > 65535 ||
        grid.z > 65535 || grid.x > 0x7fffffff || shared > shared_allowed(kernel.function)) {
        give(cudaErrorInvalidValue);
        return;
    }
    if (fails("launch")) {
        give(cudaErrorLaunchFailure);
        return;
    }
    submit(stream, [=] {
        cooperative_now = kernel.cooperative;
        run_grid(grid, block, shared, kernel);
    });
}

cudaError_t cudaStreamCreateWithFlags(cudaStream_t *s, unsigned) {
    MAY_FAIL("cudaStreamCreateWithFlags", cudaErrorMemoryAllocation);
    *s = new emu_stream();
    return cudaSuccess;
}
cudaError_t cudaStreamDestroy(cudaStream_t s) {
    idle(s);
    delete s;
    return cudaSuccess;
}
static std::atomic<long> n_waits;
cudaError_t cudaStreamSynchronize(cudaStream_t s) {
    MAY_FAIL("cudaStreamSynchronize", cudaErrorIllegalAddress);
    if (s != cudaStreamPerThread && s && s->capture) return give(cudaErrorStreamCaptureUnsupported);
    n_waits++;
    races_all_done();
    idle(s);
    return cudaSuccess;
}
/* A stream that has work is found busy once. */
cudaError_t cudaStreamQuery(cudaStream_t s) {
    static thread_local long queries;
    MAY_FAIL("cudaStreamQuery", cudaErrorIllegalAddress);
    if (s != cudaStreamPerThread && s && s->capture) return give(cudaErrorStreamCaptureUnsupported);
    const long never = setting("never", 0);
    if (never && ++queries >= never) return give(cudaErrorNotReady);
    return idle(s) ? give(cudaErrorNotReady) : cudaSuccess;
}
cudaError_t cudaStreamWaitEvent(cudaStream_t, cudaEvent_t, unsigned) { return cudaSuccess; }
cudaError_t cudaEventCreateWithFlags(cudaEvent_t *e, unsigned) {
    MAY_FAIL("cudaEventCreateWithFlags", cudaErrorMemoryAllocation);
    *e = new emu_event();
    return cudaSuccess;
}
cudaError_t cudaEventRecord(cudaEvent_t e, cudaStream_t) {
    e->recorded++;
    e->waits = n_waits;
    return cudaSuccess;
}
cudaError_t cudaEventSynchronize(cudaEvent_t) { return cudaSuccess; }
/* With "busy=1" what was recorded is done when a stream was waited for since. */
cudaError_t cudaEventQuery(cudaEvent_t e) {
    return setting("busy", 0) && e->waits == n_waits ? give(cudaErrorNotReady) : cudaSuccess;
}
cudaError_t cudaEventElapsedTime(float *ms, cudaEvent_t, cudaEvent_t) {
    *ms = 2e-3f;
    return cudaSuccess;
}
cudaError_t cudaEventDestroy(cudaEvent_t e) {
    delete e;
    return cudaSuccess;
}

/* ---- graphs ---- */

/* These make or free memory, and may wait for all work of the process on its GPUs. Members of one process each have
 * a thread, all but the first, and while these run, a collective may be under way that waits for the caller. A thread
 * that captures may not call them at all. */
static thread_local int captures_now;
static void may_wait_for_all(const char *what) {
    if (captures_now) die("memory is made or freed while a stream is captured");
    if (setting("home", 0) && gettid() != getpid()) die(what);
}

cudaError_t cudaStreamBeginCapture(cudaStream_t s, cudaStreamCaptureMode) {
    MAY_FAIL("cudaStreamBeginCapture", cudaErrorStreamCaptureUnsupported);
    s->capture = new emu_graph();
    captures_now++;
    return cudaSuccess;
}
cudaError_t cudaStreamEndCapture(cudaStream_t s, cudaGraph_t *g) {
    *g = s->capture;
    s->capture = NULL;
    captures_now--;
    return cudaSuccess;
}
cudaError_t cudaGraphInstantiate(cudaGraphExec_t *exec, cudaGraph_t g, unsigned long long) {
    MAY_FAIL("cudaGraphInstantiate", cudaErrorMemoryAllocation);
    may_wait_for_all("cudaGraphInstantiate on another thread than the first");
    *exec = new emu_graph(*g);
    return cudaSuccess;
}
cudaError_t cudaGraphLaunch(cudaGraphExec_t exec, cudaStream_t s) {
    MAY_FAIL("cudaGraphLaunch", cudaErrorLaunchFailure);
    busy(s);
    if (getenv("SHEAF_TEST_CUDA_EMU_TRACE"))
        fprintf(stderr, "cuda-emu: replays a graph of %zu\n", exec->work.size());
    for (auto &w : exec->work) w();
    return cudaSuccess;
}
cudaError_t cudaGraphDestroy(cudaGraph_t g) {
    delete g;
    return cudaSuccess;
}
cudaError_t cudaGraphExecDestroy(cudaGraphExec_t exec) {
    may_wait_for_all("cudaGraphExecDestroy on another thread than the first");
    delete exec;
    return cudaSuccess;
}

/* ---- devices and memory ---- */

struct block {
    size_t size, mapped;
    char *base;
    int device;
    int fd;      /* of memory that others may map, else -1 */
    bool opened; /* it is another process's */
};
static std::map<void *, block> blocks;
static size_t used[16];

cudaError_t cudaGetDeviceCount(int *n) {
    const long devices = setting("devices", 1);
    if (devices < 0) return give(cudaErrorInsufficientDriver);
    if (devices == 0) return give(cudaErrorNoDevice);
    *n = (int)devices;
    const char *visible = getenv("CUDA_VISIBLE_DEVICES"); /* a list of numbers: the first so many */
    int listed = visible && *visible;
    for (const char *p = visible; p && *p; p++) listed += *p == ',';
    if (listed && listed < *n) *n = listed;
    return cudaSuccess;
}
cudaError_t cudaGetDeviceProperties(cudaDeviceProp *p, int device) {
    MAY_FAIL("cudaGetDeviceProperties", cudaErrorInvalidDevice);
    const long cc = setting("cc", 90);
    snprintf(p->name, sizeof p->name, "Emulated GPU %d", device);
    memset(p->uuid.bytes, 'a' + device, sizeof p->uuid.bytes);
    p->totalGlobalMem = (size_t)setting("memory", 1L << 30);
    p->sharedMemPerBlockOptin = most_shared();
    p->major = (int)cc / 10;
    p->minor = (int)cc % 10;
    p->multiProcessorCount = 4;
    return cudaSuccess;
}
cudaError_t cudaSetDevice(int device) {
    device_now = device;
    return cudaSuccess;
}
/* direct[a][b]: device a reaches the memory of b. "peers=0": none can. */
static bool direct[16][16];
cudaError_t cudaDeviceCanAccessPeer(int *can, int device, int peer) {
    *can = device != peer && setting("peers", 1);
    return cudaSuccess;
}
cudaError_t cudaDeviceEnablePeerAccess(int peer, unsigned) {
    std::lock_guard<std::mutex> hold(lock);
    if (peer == device_now) return give(cudaErrorInvalidDevice);
    if (direct[device_now][peer]) return give(cudaErrorPeerAccessAlreadyEnabled);
    direct[device_now][peer] = true;
    return cudaSuccess;
}
cudaError_t cudaMemGetInfo(size_t *available, size_t *total) {
    MAY_FAIL("cudaMemGetInfo", cudaErrorMemoryAllocation);
    std::lock_guard<std::mutex> hold(lock);
    *total = (size_t)setting("memory", 1L << 30);
    *available = *total - used[device_now];
    return cudaSuccess;
}
/* Ends at an inaccessible page, so what reads behind it dies; begins at a multiple of 256. */
cudaError_t cudaMalloc(void **p, size_t size) {
    MAY_FAIL("cudaMalloc", cudaErrorMemoryAllocation);
    may_wait_for_all("cudaMalloc on another thread than the first");
    std::lock_guard<std::mutex> hold(lock);
    if (used[device_now] + size > (size_t)setting("memory", 1L << 30))
        return give(cudaErrorMemoryAllocation);
    const size_t whole = (size + 255) / 256 * 256, mapped = (whole + 4095) / 4096 * 4096 + 4096;
    char *base =
        (char *)mmap(NULL, mapped, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (base == MAP_FAILED) return give(cudaErrorMemoryAllocation);
    mprotect(base + mapped - 4096, 4096, PROT_NONE);
    *p = base + mapped - 4096 - whole;
    memset(*p, 0xcd, whole); /* nothing comes as zeros */
    blocks[*p] = block{size, mapped, base, device_now, -1, false};
    used[device_now] += size;
    return cudaSuccess;
}
cudaError_t cudaFree(void *p) {
    may_wait_for_all("cudaFree on another thread than the first");
    std::lock_guard<std::mutex> hold(lock);
    auto it = blocks.find(p);
    if (!p) return cudaSuccess;
    if (it == blocks.end() || it->second.opened) return give(cudaErrorInvalidValue);
    if (it->second.fd >= 0) close(it->second.fd);
    used[it->second.device] -= it->second.size;
    munmap(it->second.base, it->second.mapped);
    blocks.erase(it);
    return cudaSuccess;
}
/* ---- memory of other processes ---- */

struct shared_block { /* what a handle holds */
    long pid;
    int fd;
    size_t size, mapped, offset;
};
static_assert(sizeof(shared_block) <= sizeof(cudaIpcMemHandle_t), "a handle has no room for it");

cudaError_t cudaIpcGetMemHandle(cudaIpcMemHandle_t *handle, void *p) {
    MAY_FAIL("cudaIpcGetMemHandle", cudaErrorInvalidValue);
    std::lock_guard<std::mutex> hold(lock);
    auto it = blocks.find(p);
    if (it == blocks.end() || it->second.opened) return give(cudaErrorInvalidValue);
    block &b = it->second;
    if (b.fd < 0) { /* the same bytes at the same address, from now on in a file without a name */
        const size_t size = b.mapped - 4096;
        const int fd = memfd_create("cuda-emu", MFD_CLOEXEC);
        if (fd < 0 || ftruncate(fd, (off_t)size) || pwrite(fd, b.base, size, 0) != (ssize_t)size ||
            mmap(b.base, size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, fd, 0) != b.base) {
            if (fd >= 0) close(fd);
            return give(cudaErrorMemoryAllocation);
        }
        b.fd = fd;
    }
    const shared_block s = {getpid(), b.fd, b.size, b.mapped, (size_t)((char *)p - b.base)};
    memset(handle, 0, sizeof *handle);
    memcpy(handle, &s, sizeof s);
    return cudaSuccess;
}
cudaError_t cudaIpcOpenMemHandle(void **p, cudaIpcMemHandle_t handle, unsigned) {
    MAY_FAIL("cudaIpcOpenMemHandle", cudaErrorInvalidValue);
    shared_block s;
    char path[64];
    memcpy(&s, &handle, sizeof s);
    if (s.pid == getpid()) return give(cudaErrorInvalidDevice);
    snprintf(path, sizeof path, "/proc/%ld/fd/%d", s.pid, s.fd);
    const int fd = open(path, O_RDWR | O_CLOEXEC);
    if (fd < 0) return give(cudaErrorInvalidValue);
    char *base = (char *)mmap(NULL, s.mapped, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (base != MAP_FAILED &&
        mmap(base, s.mapped - 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, fd, 0) != base)
        base = (char *)MAP_FAILED;
    close(fd);
    if (base == MAP_FAILED) return give(cudaErrorMemoryAllocation);
    std::lock_guard<std::mutex> hold(lock);
    *p = base + s.offset;
    blocks[*p] = block{s.size, s.mapped, base, device_now, -1, true};
    return cudaSuccess;
}
cudaError_t cudaIpcCloseMemHandle(void *p) {
    std::lock_guard<std::mutex> hold(lock);
    auto it = blocks.find(p);
    if (it == blocks.end() || !it->second.opened) return give(cudaErrorInvalidValue);
    if (n_busy) die("memory of another process goes while a stream may read it");
    munmap(it->second.base, it->second.mapped);
    blocks.erase(it);
    return cudaSuccess;
}

cudaError_t cudaHostAlloc(void **p, size_t size, unsigned) {
    MAY_FAIL("cudaHostAlloc", cudaErrorMemoryAllocation);
    may_wait_for_all("cudaHostAlloc on another thread than the first");
    *p = aligned_alloc(4096, (size + 4095) / 4096 * 4096);
    return *p ? cudaSuccess : give(cudaErrorMemoryAllocation);
}
cudaError_t cudaFreeHost(void *p) {
    may_wait_for_all("cudaFreeHost on another thread than the first");
    free(p);
    return cudaSuccess;
}
cudaError_t cudaHostGetDevicePointer(void **device, void *host, unsigned) {
    *device = host;
    return cudaSuccess;
}

/* Is [p, p + size) device memory? Copies must say which side is. */
static bool on_device(const void *p, size_t size) {
    std::lock_guard<std::mutex> hold(lock);
    auto it = blocks.upper_bound((void *)p);
    if (it == blocks.begin()) return false;
    --it;
    return (const char *)p + size <= (char *)it->first + it->second.size;
}
cudaError_t cudaMemcpyAsync(void *to, const void *from, size_t size, cudaMemcpyKind kind,
                            cudaStream_t s) {
    MAY_FAIL("cudaMemcpyAsync", cudaErrorIllegalAddress);
    if (on_device(to, size) != (kind != cudaMemcpyDeviceToHost) ||
        on_device(from, size) != (kind != cudaMemcpyHostToDevice))
        return give(cudaErrorInvalidValue);
    if (kind != cudaMemcpyDeviceToDevice && getenv("SHEAF_TEST_CUDA_EMU_TRACE"))
        fprintf(stderr, "cuda-emu: copies %zu bytes to the %s\n", size,
                kind == cudaMemcpyDeviceToHost ? "host" : "device");
    return submit(s, [=] {
        races_all_done();
        memmove(to, from, size);
    });
}
/* Between two GPUs only. With "peers=1" it wants them to reach each other: the real one would go
 * through host memory in silence. */
cudaError_t cudaMemcpyPeerAsync(void *to, int to_device, const void *from, int from_device,
                                size_t size, cudaStream_t s) {
    if (to_device == from_device) return give(cudaErrorInvalidDevice);
    if (setting("peers", 0) && !(direct[to_device][from_device] && direct[from_device][to_device]))
        return give(cudaErrorInvalidValue);
    return cudaMemcpyAsync(to, from, size, cudaMemcpyDeviceToDevice, s);
}
cudaError_t cudaMemcpy2DAsync(void *to, size_t to_step, const void *from, size_t from_step,
                              size_t width, size_t height, cudaMemcpyKind kind, cudaStream_t s) {
    if (to_step < width || from_step < width || to_step > INT32_MAX || from_step > INT32_MAX)
        return give(cudaErrorInvalidValue); /* 2^31 - 1 is cudaDevAttrMaxPitch of every GPU */
    cudaError_t e = cudaSuccess;
    for (size_t i = 0; i < height && !e; i++)
        e = cudaMemcpyAsync((char *)to + i * to_step, (const char *)from + i * from_step, width,
                            kind, s);
    return e;
}
cudaError_t cudaMemsetAsync(void *p, int value, size_t size, cudaStream_t s) {
    if (!on_device(p, size)) return give(cudaErrorInvalidValue);
    return submit(s, [=] {
        races_all_done();
        memset(p, value, size);
    });
}

/* ---- errors ---- */

cudaError_t cudaGetLastError(void) {
    const cudaError_t e = last_error;
    last_error = cudaSuccess;
    return e;
}
const char *cudaGetErrorString(cudaError_t e) {
    switch (e) {
    case cudaSuccess:
        return "no error";
    case cudaErrorMemoryAllocation:
        return "out of memory";
    case cudaErrorNotReady:
        return "device not ready";
    case cudaErrorInsufficientDriver:
        return "CUDA driver version is insufficient for CUDA runtime version";
    case cudaErrorNoDevice:
        return "no CUDA-capable device is detected";
    case cudaErrorIllegalAddress:
        return "an illegal memory access was encountered";
    case cudaErrorLaunchFailure:
        return "unspecified launch failure";
    default:
        return "invalid argument";
    }
}
const char *cudaGetErrorName(cudaError_t e) {
    switch (e) {
    case cudaErrorMemoryAllocation:
        return "cudaErrorMemoryAllocation";
    case cudaErrorInsufficientDriver:
        return "cudaErrorInsufficientDriver";
    case cudaErrorIllegalAddress:
        return "cudaErrorIllegalAddress";
    case cudaErrorLaunchFailure:
        return "cudaErrorLaunchFailure";
    default:
        return "cudaErrorInvalidValue";
    }
}
