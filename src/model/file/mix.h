/* Which type each tensor of a quantized file has: the mixes that people know by name.
 *
 * "Q4_K_M" is not a type but a habit: most matrices in Q4_K, those that matter more in Q6_K. The
 * choices follow what llama-quantize makes, so that a file of the same name has the same types
 * (compared with llama.cpp 0.7.0 on 2026-11-29, random models, without an importance matrix).
 * But where some layers have no attention, llama-quantize counts those that have. Types that are of
 * no use without an importance matrix have no mix. Pure. */
#ifndef SHEAF_MODEL_MIX_H
#define SHEAF_MODEL_MIX_H

#include <stdbool.h>

#include "sheaf/type.h"

struct sheaf__mix;

size_t sheaf__mix_count(void);
const struct sheaf__mix *sheaf__mix_get(size_t i);
/* By name, any case; NULL if there is none. */
const struct sheaf__mix *sheaf__mix_find(const char *name);
const char *sheaf__mix_name(const struct sheaf__mix *mix);
/* The number of general.file_type. */
uint32_t sheaf__mix_file_type(const struct sheaf__mix *mix);

/* What a mix must know of the model. */
struct sheaf__mix_model {
    int64_t n_layer;
    bool tied;   /* no output.weight: the embeddings are the output matrix too */
    int64_t gqa; /* query heads of a K/V head; 0: not known */
    int64_t n_expert;
    bool is_70b; /* of a shape that llama-quantize takes for Llama's or Qwen's 70B */
};
/* The last field, of an architecture. */
bool sheaf__mix_is_70b(const char *arch, int64_t n_layer, int64_t gqa);
/* The type of the matrix `name`, whose rows have ne0 elements. Where they are not whole blocks, the
 * next larger type whose blocks fit. Vectors are F32, and not asked for. */
enum sheaf_type sheaf__mix_type(const struct sheaf__mix *mix, const struct sheaf__mix_model *model,
                                const char *name, int64_t ne0);
/* `type`, or the next larger type whose blocks fit rows of ne0 elements. */
enum sheaf_type sheaf__mix_fitting(enum sheaf_type type, int64_t ne0);

#endif
