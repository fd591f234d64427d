/* The table of element types: names, block geometry, conversions.
 *
 * Adding a type is one row here, its block struct in quants.h or quant/iq.h, how a block is made in
 * blocks.h, rows in quants.c, quant/tables.c or quant/iq.c, and a row in each kernel table of
 * src/cpu, or in the portable one only. */
#include "sheaf/type.h"

#include "base/locale.h"
#include "quant/fit.h"
#include "quant/quants.h"

static void f32_to_f32(const void *src, float *dst, int64_t n) {
    if (n > 0) memmove(dst, src, (size_t)n * sizeof(float));
}
static void f32_from_f32(const float *src, void *dst, int64_t n) { f32_to_f32(src, dst, n); }

static void f16_to_f32(const void *src, float *dst, int64_t n) {
    const uint16_t *x = src;
    for (int64_t i = 0; i < n; i++) dst[i] = sheaf__f16_to_f32(x[i]);
}
static void f16_from_f32(const float *src, void *dst, int64_t n) {
    uint16_t *y = dst;
    for (int64_t i = 0; i < n; i++) y[i] = sheaf__f32_to_f16(src[i]);
}

static void bf16_to_f32(const void *src, float *dst, int64_t n) {
    const uint16_t *x = src;
    for (int64_t i = 0; i < n; i++) dst[i] = sheaf__bf16_to_f32(x[i]);
}
static void bf16_from_f32(const float *src, void *dst, int64_t n) {
    uint16_t *y = dst;
    for (int64_t i = 0; i < n; i++) y[i] = sheaf__f32_to_bf16(src[i]);
}

struct type_traits {
    const char *name;
    int64_t blck; /* elements of a block */
    size_t size;  /* bytes of a block */
    void (*to_float)(const void *src, float *dst, int64_t n);
    void (*from_float)(const float *src, void *dst, int64_t n);
};

/* clang-format off */
static const struct type_traits traits[SHEAF_TYPE_COUNT] = {
    [SHEAF_TYPE_F32]  = {"f32",    1,   4, f32_to_f32,             f32_from_f32},
    [SHEAF_TYPE_F16]  = {"f16",    1,   2, f16_to_f32,             f16_from_f32},
    [SHEAF_TYPE_BF16] = {"bf16",   1,   2, bf16_to_f32,            bf16_from_f32},
    [SHEAF_TYPE_Q4_0] = {"q4_0",  32,  18, sheaf__dequantize_q4_0, sheaf__quantize_q4_0},
    [SHEAF_TYPE_Q4_1] = {"q4_1",  32,  20, sheaf__dequantize_q4_1, sheaf__quantize_q4_1},
    [SHEAF_TYPE_Q5_0] = {"q5_0",  32,  22, sheaf__dequantize_q5_0, sheaf__quantize_q5_0},
    [SHEAF_TYPE_Q5_1] = {"q5_1",  32,  24, sheaf__dequantize_q5_1, sheaf__quantize_q5_1},
    [SHEAF_TYPE_Q8_0] = {"q8_0",  32,  34, sheaf__dequantize_q8_0, sheaf__quantize_q8_0},
    [SHEAF_TYPE_Q4_K] = {"q4_K", 256, 144, sheaf__dequantize_q4_k, sheaf__quantize_q4_k},
    [SHEAF_TYPE_Q5_K] = {"q5_K", 256, 176, sheaf__dequantize_q5_k, sheaf__quantize_q5_k},
    [SHEAF_TYPE_Q6_K] = {"q6_K", 256, 210, sheaf__dequantize_q6_k, sheaf__quantize_q6_k},
    [SHEAF_TYPE_Q2_K] = {"q2_K", 256, 84, sheaf__dequantize_q2_k, sheaf__quantize_q2_k},
    [SHEAF_TYPE_Q3_K] = {"q3_K", 256, 110, sheaf__dequantize_q3_k, sheaf__quantize_q3_k},
    [SHEAF_TYPE_IQ4_NL] = {"iq4_nl", 32, 18, sheaf__dequantize_iq4_nl, sheaf__quantize_iq4_nl},
    [SHEAF_TYPE_IQ4_XS] = {"iq4_xs", 256, 136, sheaf__dequantize_iq4_xs, sheaf__quantize_iq4_xs},
    [SHEAF_TYPE_MXFP4] = {"mxfp4", 32, 17, sheaf__dequantize_mxfp4, sheaf__quantize_mxfp4},
    [SHEAF_TYPE_NVFP4] = {"nvfp4", 64, 36, sheaf__dequantize_nvfp4, sheaf__quantize_nvfp4},
    [SHEAF_TYPE_Q1_0] = {"q1_0", 128,  18, sheaf__dequantize_q1_0, sheaf__quantize_q1_0},
    [SHEAF_TYPE_Q2_0] = {"q2_0",  64,  18, sheaf__dequantize_q2_0, sheaf__quantize_q2_0},
    [SHEAF_TYPE_TQ1_0] = {"tq1_0", 256, 54, sheaf__dequantize_tq1_0, sheaf__quantize_tq1_0},
    [SHEAF_TYPE_TQ2_0] = {"tq2_0", 256, 66, sheaf__dequantize_tq2_0, sheaf__quantize_tq2_0},
    [SHEAF_TYPE_IQ2_XXS] = {"iq2_xxs", 256, 66, sheaf__dequantize_iq2_xxs, sheaf__quantize_iq2_xxs},
    [SHEAF_TYPE_IQ2_XS] = {"iq2_xs", 256, 74, sheaf__dequantize_iq2_xs, sheaf__quantize_iq2_xs},
    [SHEAF_TYPE_IQ2_S] = {"iq2_s", 256, 82, sheaf__dequantize_iq2_s, sheaf__quantize_iq2_s},
    [SHEAF_TYPE_IQ3_XXS] = {"iq3_xxs", 256, 98, sheaf__dequantize_iq3_xxs, sheaf__quantize_iq3_xxs},
    [SHEAF_TYPE_IQ3_S] = {"iq3_s", 256, 110, sheaf__dequantize_iq3_s, sheaf__quantize_iq3_s},
    [SHEAF_TYPE_IQ1_S] = {"iq1_s", 256, 50, sheaf__dequantize_iq1_s, sheaf__quantize_iq1_s},
    [SHEAF_TYPE_IQ1_M] = {"iq1_m", 256, 56, sheaf__dequantize_iq1_m, sheaf__quantize_iq1_m},
    [SHEAF_TYPE_I32]  = {"i32",    1,   4, NULL,                   NULL},
    [SHEAF_TYPE_I64]  = {"i64",    1,   8, NULL,                   NULL},
};
/* clang-format on */

/* The row of a type; a row of zeros for numbers that the library does not have. */
static const struct type_traits *row(enum sheaf_type type) {
    static const struct type_traits unknown = {0};
    return (unsigned)type < SHEAF_TYPE_COUNT ? &traits[type] : &unknown;
}

bool sheaf_type_is_known(enum sheaf_type type) { return row(type)->name != NULL; }

const char *sheaf_type_name(enum sheaf_type type) {
    return row(type)->name ? row(type)->name : "?";
}

enum sheaf_type sheaf_type_from_name(const char *name) {
    for (int t = 0; name && t < SHEAF_TYPE_COUNT; t++) {
        if (traits[t].name && sheaf__strcasecmp(traits[t].name, name) == 0)
            return (enum sheaf_type)t;
    }
    return SHEAF_TYPE_COUNT;
}

int64_t sheaf_blck_size(enum sheaf_type type) { return row(type)->blck; }

size_t sheaf_type_size(enum sheaf_type type) { return row(type)->size; }

size_t sheaf_row_size(enum sheaf_type type, int64_t ne) {
    const struct type_traits *t = row(type);
    size_t size;
    if (!t->name || ne < 0 || ne % t->blck != 0) return 0;
    return __builtin_mul_overflow((size_t)(ne / t->blck), t->size, &size) ? 0 : size;
}

bool sheaf_is_quantized(enum sheaf_type type) { return row(type)->blck > 1; }

static enum sheaf_status check(enum sheaf_type type, bool converts, int64_t n) {
    if (!converts)
        return sheaf_set_error(SHEAF_STATUS_UNSUPPORTED, "type %s (number %d) is not a float type",
                               sheaf_type_name(type), (int)type);
    if (n < 0 || n % row(type)->blck != 0)
        return sheaf_set_error(SHEAF_STATUS_INVALID,
                               "%lld elements are not whole blocks of type %s (%lld elements each)",
                               (long long)n, sheaf_type_name(type), (long long)row(type)->blck);
    return SHEAF_STATUS_SUCCESS;
}

enum sheaf_status sheaf_to_float(enum sheaf_type type, const void *src, float *dst, int64_t n) {
    enum sheaf_status status = check(type, row(type)->to_float != NULL, n);
    if (status == SHEAF_STATUS_SUCCESS) row(type)->to_float(src, dst, n);
    return status;
}

enum sheaf_status sheaf_from_float(enum sheaf_type type, const float *src, void *dst, int64_t n) {
    enum sheaf_status status = check(type, row(type)->from_float != NULL, n);
    if (status == SHEAF_STATUS_SUCCESS) row(type)->from_float(src, dst, n);
    return status;
}

enum sheaf_status sheaf_quantize(enum sheaf_type type, const float *src, const float *weights,
                                 void *dst, int64_t n) {
    enum sheaf_status status = check(type, row(type)->from_float != NULL, n);
    if (status == SHEAF_STATUS_SUCCESS && !sheaf__fit_row(type, src, weights, dst, n))
        row(type)->from_float(src, dst, n);
    return status;
}

float sheaf_fp16_to_fp32(uint16_t h) { return sheaf__f16_to_f32(h); }
uint16_t sheaf_fp32_to_fp16(float f) { return sheaf__f32_to_f16(f); }
float sheaf_bf16_to_fp32(uint16_t h) { return sheaf__bf16_to_f32(h); }
uint16_t sheaf_fp32_to_bf16(float f) { return sheaf__f32_to_bf16(f); }
