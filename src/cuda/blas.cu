/* cuBLASLt, taken at run time: the module neither links it nor needs it. A machine without the
 * library computes large products by mul_tile.cu.
 *
 * The algorithm of a shape is asked for once and kept; a graph that is captured has run before, so
 * its shapes are known. One object serves one queue. */
#include <cublasLt.h>
#include <dlfcn.h>
#include <stdlib.h>

#include "cuda/device.h"
#include "sheaf/log.h"

#define FUNCTIONS(X)                                                                               \
    X(cublasLtCreate)                                                                              \
    X(cublasLtDestroy)                                                                             \
    X(cublasLtMatmul)                                                                              \
    X(cublasLtMatmulDescCreate)                                                                    \
    X(cublasLtMatmulDescDestroy)                                                                   \
    X(cublasLtMatmulDescSetAttribute)                                                              \
    X(cublasLtMatrixLayoutCreate)                                                                  \
    X(cublasLtMatrixLayoutDestroy)                                                                 \
    X(cublasLtMatmulPreferenceCreate)                                                              \
    X(cublasLtMatmulPreferenceDestroy)                                                             \
    X(cublasLtMatmulPreferenceSetAttribute)                                                        \
    X(cublasLtMatmulAlgoGetHeuristic)

enum { KEPT = 128 };
static const size_t WORKSPACE = (size_t)32 << 20; /* what NVIDIA advises for Hopper */

struct shape {
    enum sheaf_type type;
    int64_t m, n, k, lda, ldo;
    uint32_t align; /* bytes: of the result; operands have 16 */
};
struct known {
    struct shape shape;
    bool usable;
    cublasLtMatmulDesc_t desc;
    cublasLtMatrixLayout_t a, b, out;
    cublasLtMatmulAlgo_t algo;
};

struct sheaf__cuda_blas {
    void *library;
    cublasLtHandle_t handle;
    void *workspace;
    int n_known, oldest;
    struct known known[KEPT];
#define MEMBER(name) decltype(&name) name##_;
    FUNCTIONS(MEMBER)
#undef MEMBER
};

/* The version that this was compiled with first; its functions have been the same since 11. The
 * library stays loaded: it holds a CUDA runtime of its own, which does not survive being unloaded. */
static void *open_library(void) {
    static const char *const names[] = {SHEAF_CUDA_BLAS_NAME, "libcublasLt.so.13",
                                        "libcublasLt.so.12", NULL};
    void *library = NULL;
    for (int i = 0; names[i] && !library; i++) library = dlopen(names[i], RTLD_NOW | RTLD_LOCAL);
    return library;
}

static bool find_functions(struct sheaf__cuda_blas *b) {
    bool all = true;
#define FIND(name)                                                                                 \
    do {                                                                                           \
        void *address = dlsym(b->library, #name);                                                  \
        memcpy(&b->name##_, &address, sizeof address);                                             \
        all = all && address;                                                                      \
    } while (0);
    FUNCTIONS(FIND)
#undef FIND
    return all;
}

/* Products of prompts are some ten times slower without it, so its absence is said, once. */
static void report_absence(const char *device, const char *why, const char *remedy) {
    static bool reported;
    if (__atomic_exchange_n(&reported, true, __ATOMIC_RELAXED)) return;
    sheaf_log(
        SHEAF_LOG_WARN,
        "%s: %s cannot be used (%s): products of long prompts take kernels without tensor cores, "
        "which are many times slower; %s",
        device, SHEAF_CUDA_BLAS_NAME, why, remedy);
}

/* NULL, or why not, and what to do. */
static const char *start(struct sheaf__cuda_blas *b, const char **remedy) {
    *remedy = "install cuBLAS or add its folder to LD_LIBRARY_PATH";
    b->library = open_library();
    if (!b->library) return "the library is not found";
    *remedy = "put a newer cuBLAS first in LD_LIBRARY_PATH";
    if (!find_functions(b)) return "the library lacks a function";
    *remedy = "take the cuBLAS of a CUDA version that the driver supports (nvidia-smi prints it)";
    if (b->cublasLtCreate_(&b->handle) != CUBLAS_STATUS_SUCCESS) return "it does not start";
    *remedy = "end other programs on this GPU or put less on it";
    static_assert(WORKSPACE == (size_t)32 << 20, "the text says it");
    if (cudaMalloc(&b->workspace, WORKSPACE) != cudaSuccess)
        return "the GPU has no 32 MiB free for its workspace";
    return NULL;
}

void sheaf__cuda_blas_new(const struct sheaf__cuda_device *device, struct sheaf__cuda_blas **out) {
    struct sheaf__cuda_blas *b = (struct sheaf__cuda_blas *)calloc(1, sizeof *b);
    const char *remedy;
    *out = NULL;
    if (!b) return;
    const char *why = start(b, &remedy);
    if (!why) {
        *out = b;
        return;
    }
    cudaGetLastError(); /* a failed allocation is no error of the next launch */
    report_absence(device->name, why, remedy);
    sheaf__cuda_blas_free(b);
}

static void forget(struct sheaf__cuda_blas *b, struct known *x) {
    if (x->desc) b->cublasLtMatmulDescDestroy_(x->desc);
    if (x->a) b->cublasLtMatrixLayoutDestroy_(x->a);
    if (x->b) b->cublasLtMatrixLayoutDestroy_(x->b);
    if (x->out) b->cublasLtMatrixLayoutDestroy_(x->out);
    memset(x, 0, sizeof *x);
}

void sheaf__cuda_blas_free(struct sheaf__cuda_blas *b) {
    if (!b) return;
    for (int i = 0; i < b->n_known; i++) forget(b, &b->known[i]);
    if (b->workspace) cudaFree(b->workspace);
    if (b->handle) b->cublasLtDestroy_(b->handle);
    free(b);
}

static bool set_alignment(struct sheaf__cuda_blas *b, cublasLtMatmulPreference_t p, uint32_t out) {
    static const cublasLtMatmulPreferenceAttributes_t names[] = {
        CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES,
        CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES};
    const uint32_t bytes[] = {16, 16, out, out};
    bool ok = true;
    for (int i = 0; i < 4; i++)
        ok = ok && b->cublasLtMatmulPreferenceSetAttribute_(
                       p, names[i], &bytes[i], sizeof bytes[i]) == CUBLAS_STATUS_SUCCESS;
    return ok;
}

/* In cuBLAS's column order: out [m, n] = a^T [m, k] . b [k, n]. */
static bool describe(struct sheaf__cuda_blas *b, struct known *x) {
    const struct shape *s = &x->shape;
    const cudaDataType_t type = s->type == SHEAF_TYPE_F16 ? CUDA_R_16F : CUDA_R_16BF;
    const cublasOperation_t transposed = CUBLAS_OP_T;
    const uint64_t m = (uint64_t)s->m, n = (uint64_t)s->n, k = (uint64_t)s->k;
    cublasLtMatmulPreference_t preference = NULL;
    cublasLtMatmulHeuristicResult_t best;
    int found = 0;
    bool ok =
        b->cublasLtMatmulDescCreate_(&x->desc, CUBLAS_COMPUTE_32F, CUDA_R_32F) ==
            CUBLAS_STATUS_SUCCESS &&
        b->cublasLtMatmulDescSetAttribute_(x->desc, CUBLASLT_MATMUL_DESC_TRANSA, &transposed,
                                           sizeof transposed) == CUBLAS_STATUS_SUCCESS &&
        b->cublasLtMatrixLayoutCreate_(&x->a, type, k, m, s->lda) == CUBLAS_STATUS_SUCCESS &&
        b->cublasLtMatrixLayoutCreate_(&x->b, type, k, n, s->k) == CUBLAS_STATUS_SUCCESS &&
        b->cublasLtMatrixLayoutCreate_(&x->out, CUDA_R_32F, m, n, s->ldo) ==
            CUBLAS_STATUS_SUCCESS &&
        b->cublasLtMatmulPreferenceCreate_(&preference) == CUBLAS_STATUS_SUCCESS &&
        b->cublasLtMatmulPreferenceSetAttribute_(
            preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &WORKSPACE, sizeof WORKSPACE) ==
            CUBLAS_STATUS_SUCCESS &&
        set_alignment(b, preference, s->align) &&
        b->cublasLtMatmulAlgoGetHeuristic_(b->handle, x->desc, x->a, x->b, x->out, x->out,
                                           preference, 1, &best, &found) == CUBLAS_STATUS_SUCCESS &&
        found > 0 && best.state == CUBLAS_STATUS_SUCCESS;
    if (preference) b->cublasLtMatmulPreferenceDestroy_(preference);
    if (ok) x->algo = best.algo;
    return ok;
}

/* By shape; asked for at its first use. */
static struct known *algorithm(struct sheaf__cuda_blas *b, const struct shape *s) {
    for (int i = 0; i < b->n_known; i++) {
        if (!memcmp(&b->known[i].shape, s, sizeof *s)) return &b->known[i];
    }
    struct known *x;
    if (b->n_known < KEPT) {
        x = &b->known[b->n_known++];
    } else {
        x = &b->known[b->oldest];
        b->oldest = (b->oldest + 1) % KEPT;
        forget(b, x);
    }
    x->shape = *s;
    x->usable = describe(b, x);
    return x;
}

bool sheaf__cuda_blas_product(struct sheaf__cuda_blas *b, cudaStream_t stream, enum sheaf_type type,
                              int64_t m, int64_t n, int64_t k, const void *a, int64_t lda,
                              const void *columns, float *out, int64_t ldo) {
    const float one = 1.0f, zero = 0.0f;
    struct shape s;
    memset(&s, 0, sizeof s); /* compared by its bytes */
    s.type = type;
    s.m = m;
    s.n = n;
    s.k = k;
    s.lda = lda;
    s.ldo = ldo;
    s.align = ((uintptr_t)out | (uintptr_t)(ldo * 4)) % 16 == 0 ? 16 : 4;
    struct known *x = algorithm(b, &s);
    if (!x->usable) return false;
    return b->cublasLtMatmul_(b->handle, x->desc, &one, a, x->a, columns, x->b, &zero, out, x->out,
                              out, x->out, &x->algo, b->workspace, WORKSPACE,
                              stream) == CUBLAS_STATUS_SUCCESS;
}
