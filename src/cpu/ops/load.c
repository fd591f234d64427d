/* Rows as floats: loading any float or block type, storing any of them, and the slope of a head.
 * Conversion itself is core's (sheaf_to_float, sheaf_from_float), or a kernel that gives its bits,
 * so every op rounds alike. */
#include <math.h>

#include "cpu/kernels/kernels.h"
#include "cpu/ops/ops.h"

enum { FEW = 16 }; /* elements for which looking for a kernel does not pay */

static float load_one(enum sheaf_type type, const char *p) {
    uint16_t h;
    float f = 0;
    if (type == SHEAF_TYPE_F32) {
        memcpy(&f, p, sizeof f);
        return f;
    }
    memcpy(&h, p, sizeof h);
    return type == SHEAF_TYPE_F16 ? sheaf_fp16_to_fp32(h) : sheaf_bf16_to_fp32(h);
}

static void store_one(enum sheaf_type type, float f, char *p) {
    if (type == SHEAF_TYPE_F32) {
        memcpy(p, &f, sizeof f);
        return;
    }
    uint16_t h = type == SHEAF_TYPE_F16 ? sheaf_fp32_to_fp16(f) : sheaf_fp32_to_bf16(f);
    memcpy(p, &h, sizeof h);
}

const float *sheaf__cpu_load(enum sheaf_type type, const void *p, size_t nb0, int64_t n,
                             float *buf) {
    if (nb0 == sheaf_type_size(type) || n <= sheaf_blck_size(type)) {
        if (type == SHEAF_TYPE_F32) return p;
        if (n >= FEW && sheaf__cpu_kernels()->to_float[type]) {
            sheaf__cpu_kernels()->to_float[type](p, buf, n);
        } else {
            sheaf_to_float(type, p, buf, n);
        }
        return buf;
    }
    for (int64_t i = 0; i < n; i++) buf[i] = load_one(type, (const char *)p + (size_t)i * nb0);
    return buf;
}

void sheaf__cpu_store(enum sheaf_type type, const float *src, void *p, size_t nb0, int64_t n) {
    if ((const void *)src == p) return;
    if (nb0 == sheaf_type_size(type) || n <= sheaf_blck_size(type)) {
        if (type == SHEAF_TYPE_F32) {
            memmove(p, src, (size_t)n * sizeof *src);
        } else if (n >= FEW && sheaf__cpu_kernels()->from_float[type]) {
            sheaf__cpu_kernels()->from_float[type](src, p, n);
        } else {
            sheaf_from_float(type, src, p, n);
        }
        return;
    }
    for (int64_t i = 0; i < n; i++) store_one(type, src[i], (char *)p + (size_t)i * nb0);
}

/* Press et al., arXiv 2108.12409: slopes 2^(-max_bias/n * k) for the largest power of two n of
 * heads, and odd powers of the root of that ratio for the rest. */
float sheaf__cpu_alibi_slope(float max_bias, int64_t h, int64_t n_head) {
    if (max_bias <= 0.0f) return 1.0f;
    int64_t n = 1;
    while (n * 2 <= n_head) n *= 2;
    if (h < n) return powf(powf(2.0f, -max_bias / (float)n), (float)(h + 1));
    return powf(powf(2.0f, -max_bias / 2.0f / (float)n), (float)(2 * (h - n) + 1));
}
