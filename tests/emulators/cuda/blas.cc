/* The emulated cuBLASLt: column-major matrices with leading dimensions, a transposed or not, F32
 * sums. Shapes, leading dimensions and alignments that do not fit are refused. */
#include "cublasLt.h"

#include <stdlib.h>

#include "quant/quants.h"

struct emu_blas {
    int unused;
};
struct emu_desc {
    bool transposed;
};
struct emu_layout {
    cudaDataType type;
    int64_t rows, cols, ld;
};
struct emu_preference {
    uint32_t align[4];
};
#define SHOWN __attribute__((visibility("default")))

static float at(const void *p, cudaDataType type, int64_t i) {
    if (type == CUDA_R_32F) return ((const float *)p)[i];
    const uint16_t h = ((const uint16_t *)p)[i];
    return type == CUDA_R_16F ? sheaf__f16_to_f32(h) : sheaf__bf16_to_f32(h);
}

SHOWN cublasStatus_t cublasLtCreate(cublasLtHandle_t *h) {
    const char *machine = getenv("SHEAF_TEST_CUDA_EMU"); /* "blas=0": as if it were not installed */
    if (machine && strstr(machine, "blas=0")) return CUBLAS_STATUS_NOT_SUPPORTED;
    *h = new emu_blas();
    return CUBLAS_STATUS_SUCCESS;
}
SHOWN cublasStatus_t cublasLtDestroy(cublasLtHandle_t h) {
    delete h;
    return CUBLAS_STATUS_SUCCESS;
}
SHOWN cublasStatus_t cublasLtMatmulDescCreate(cublasLtMatmulDesc_t *d, cublasComputeType_t,
                                              cudaDataType_t) {
    *d = new emu_desc();
    return CUBLAS_STATUS_SUCCESS;
}
SHOWN cublasStatus_t cublasLtMatmulDescDestroy(cublasLtMatmulDesc_t d) {
    delete d;
    return CUBLAS_STATUS_SUCCESS;
}
SHOWN cublasStatus_t cublasLtMatmulDescSetAttribute(cublasLtMatmulDesc_t d,
                                                    cublasLtMatmulDescAttributes_t,
                                                    const void *value, size_t size) {
    if (size != sizeof(cublasOperation_t)) return CUBLAS_STATUS_INVALID_VALUE;
    d->transposed = *(const cublasOperation_t *)value == CUBLAS_OP_T;
    return CUBLAS_STATUS_SUCCESS;
}
SHOWN cublasStatus_t cublasLtMatrixLayoutCreate(cublasLtMatrixLayout_t *l, cudaDataType type,
                                                uint64_t rows, uint64_t cols, int64_t ld) {
    *l = new emu_layout{type, (int64_t)rows, (int64_t)cols, ld};
    return CUBLAS_STATUS_SUCCESS;
}
SHOWN cublasStatus_t cublasLtMatrixLayoutDestroy(cublasLtMatrixLayout_t l) {
    delete l;
    return CUBLAS_STATUS_SUCCESS;
}
SHOWN cublasStatus_t cublasLtMatmulPreferenceCreate(cublasLtMatmulPreference_t *p) {
    *p = new emu_preference{{256, 256, 256, 256}};
    return CUBLAS_STATUS_SUCCESS;
}
SHOWN cublasStatus_t cublasLtMatmulPreferenceDestroy(cublasLtMatmulPreference_t p) {
    delete p;
    return CUBLAS_STATUS_SUCCESS;
}
SHOWN cublasStatus_t cublasLtMatmulPreferenceSetAttribute(cublasLtMatmulPreference_t p,
                                                          cublasLtMatmulPreferenceAttributes_t a,
                                                          const void *value, size_t size) {
    if (a == CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES)
        return size == 8 ? CUBLAS_STATUS_SUCCESS : CUBLAS_STATUS_INVALID_VALUE;
    if (size != 4) return CUBLAS_STATUS_INVALID_VALUE;
    p->align[a - CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES] = *(const uint32_t *)value;
    return CUBLAS_STATUS_SUCCESS;
}

/* The promised alignments travel in the algorithm, and the product holds the caller to them. */
SHOWN cublasStatus_t cublasLtMatmulAlgoGetHeuristic(
    cublasLtHandle_t, cublasLtMatmulDesc_t d, cublasLtMatrixLayout_t a, cublasLtMatrixLayout_t b,
    cublasLtMatrixLayout_t, cublasLtMatrixLayout_t out, cublasLtMatmulPreference_t p, int,
    cublasLtMatmulHeuristicResult_t *results, int *found) {
    const int64_t m = d->transposed ? a->cols : a->rows, k = d->transposed ? a->rows : a->cols;
    const char *machine = getenv("SHEAF_TEST_CUDA_EMU"); /* "algorithms=0": none for any shape */
    *found = 0;
    if (machine && strstr(machine, "algorithms=0")) return CUBLAS_STATUS_SUCCESS;
    if (b->rows != k || out->rows != m || out->cols != b->cols || a->ld < a->rows ||
        b->ld < b->rows || out->ld < out->rows || a->type != b->type || out->type != CUDA_R_32F)
        return CUBLAS_STATUS_NOT_SUPPORTED;
    for (int i = 0; i < 4; i++) results->algo.data[i] = p->align[i];
    results->state = CUBLAS_STATUS_SUCCESS;
    *found = 1;
    return CUBLAS_STATUS_SUCCESS;
}

SHOWN cublasStatus_t cublasLtMatmul(cublasLtHandle_t, cublasLtMatmulDesc_t d, const void *alpha,
                                    const void *a, cublasLtMatrixLayout_t al, const void *b,
                                    cublasLtMatrixLayout_t bl, const void *beta, const void *c,
                                    cublasLtMatrixLayout_t, void *out, cublasLtMatrixLayout_t ol,
                                    const cublasLtMatmulAlgo_t *algo, void *, size_t,
                                    cudaStream_t stream) {
    const float f = *(const float *)alpha;
    const void *const at_all[] = {a, b, c, out};
    for (int i = 0; i < 4; i++)
        if ((uintptr_t)at_all[i] % algo->data[i]) return CUBLAS_STATUS_INVALID_VALUE;
    if (*(const float *)beta != 0.0f) return CUBLAS_STATUS_NOT_SUPPORTED;
    const emu_layout x = *al, y = *bl, z = *ol;
    const bool transposed = d->transposed;
    const std::function<void()> work = [=] {
        const int64_t k = y.rows;
        for (int64_t j = 0; j < z.cols; j++) {
            for (int64_t i = 0; i < z.rows; i++) {
                float sum = 0;
                for (int64_t l = 0; l < k; l++)
                    sum += at(a, x.type, transposed ? i * x.ld + l : l * x.ld + i) *
                           at(b, y.type, j * y.ld + l);
                ((float *)out)[j * z.ld + i] = f * sum;
            }
        }
    };
    if (stream && stream->capture) {
        stream->capture->work.push_back(work);
    } else {
        work();
    }
    return CUBLAS_STATUS_SUCCESS;
}
