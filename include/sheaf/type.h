/* Element and block types. The numbers and block layouts are those of GGUF files, bit for bit
 * (source of the layouts: ggml-common.h of ggml, and the GGUF specification). */
#ifndef SHEAF_TYPE_H
#define SHEAF_TYPE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "sheaf/status.h"

#ifdef __cplusplus
extern "C" {
#endif

enum sheaf_type {
    SHEAF_TYPE_F32 = 0,
    SHEAF_TYPE_F16 = 1,
    SHEAF_TYPE_Q4_0 = 2,
    SHEAF_TYPE_Q4_1 = 3,
    SHEAF_TYPE_Q5_0 = 6,
    SHEAF_TYPE_Q5_1 = 7,
    SHEAF_TYPE_Q8_0 = 8,
    SHEAF_TYPE_Q2_K = 10,
    SHEAF_TYPE_Q3_K = 11,
    SHEAF_TYPE_Q4_K = 12,
    SHEAF_TYPE_Q5_K = 13,
    SHEAF_TYPE_Q6_K = 14,
    SHEAF_TYPE_IQ2_XXS = 16,
    SHEAF_TYPE_IQ2_XS = 17,
    SHEAF_TYPE_IQ3_XXS = 18,
    SHEAF_TYPE_IQ1_S = 19,
    SHEAF_TYPE_IQ4_NL = 20,
    SHEAF_TYPE_IQ3_S = 21,
    SHEAF_TYPE_IQ2_S = 22,
    SHEAF_TYPE_IQ4_XS = 23,
    SHEAF_TYPE_I32 = 26,
    SHEAF_TYPE_I64 = 27,
    SHEAF_TYPE_IQ1_M = 29,
    SHEAF_TYPE_BF16 = 30,
    SHEAF_TYPE_TQ1_0 = 34,
    SHEAF_TYPE_TQ2_0 = 35,
    SHEAF_TYPE_MXFP4 = 39,
    SHEAF_TYPE_NVFP4 = 40,
    SHEAF_TYPE_Q1_0 = 41,
    SHEAF_TYPE_Q2_0 = 42,
    SHEAF_TYPE_COUNT = 43, /* one past the largest number that GGUF files use */
};

/* True if the library has this type (the numbering has gaps). */
bool sheaf_type_is_known(enum sheaf_type type);
/* Name as in GGUF tools: "f32", "q4_K". "?" for an unknown type. */
const char *sheaf_type_name(enum sheaf_type type);
/* The type with that name; SHEAF_TYPE_COUNT if there is none. Case does not matter. */
enum sheaf_type sheaf_type_from_name(const char *name);
/* Elements in a block (1 for plain types) and bytes of a block. 0 for an unknown type. */
int64_t sheaf_blck_size(enum sheaf_type type);
size_t sheaf_type_size(enum sheaf_type type);
/* Bytes of a row of `ne` elements; ne must be a multiple of the block size (else 0). */
size_t sheaf_row_size(enum sheaf_type type, int64_t ne);
bool sheaf_is_quantized(enum sheaf_type type);

/* Dequantizes / converts `n` elements (a multiple of the block size). Exact: this is the
 * specification that every kernel is compared with. Works for every type except I32 and I64. */
enum sheaf_status sheaf_to_float(enum sheaf_type type, const void *src, float *dst, int64_t n);
/* Quantizes / rounds `n` floats (round to nearest even for F16 and BF16). Every float type of the
 * table; the IQ1, IQ2 and IQ3 types without weights of importance, so worse than tools that have
 * them do. */
enum sheaf_status sheaf_from_float(enum sheaf_type type, const float *src, void *dst, int64_t n);
/* As sheaf_from_float with smaller errors, and some 20 to 60 times as slow: for files. A search finds
 * scales and integers for which the sum of weights [n] times squares of errors is small; NULL: all
 * weights are 1, as they are in a block without one that is above 0 and finite. F32, F16, BF16, IQ1,
 * IQ2 and IQ3 have no search. */
enum sheaf_status sheaf_quantize(enum sheaf_type type, const float *src, const float *weights,
                                 void *dst, int64_t n);

float sheaf_fp16_to_fp32(uint16_t h);
uint16_t sheaf_fp32_to_fp16(float f);
float sheaf_bf16_to_fp32(uint16_t h);
uint16_t sheaf_fp32_to_bf16(float f);

#ifdef __cplusplus
}
#endif
#endif
