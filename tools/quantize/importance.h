/* An importance matrix: what llama.cpp's llama-imatrix writes into a GGUF file. Of each matrix it has
 * the squares of its inputs, summed over a text, for each column; of experts, for each of them.
 * An error of a weight counts as much as its column. */
#ifndef SHEAF_TOOLS_QUANTIZE_IMPORTANCE_H
#define SHEAF_TOOLS_QUANTIZE_IMPORTANCE_H

#include "sheaf/gguf.h"

struct importance {
    struct sheaf_gguf *file; /* NULL: there is none */
    const char *path;
    float *columns; /* [n][ne0] of one tensor; NULL: none is known */
    int64_t n;      /* 1, or experts of the tensor */
    int64_t found;  /* tensors of the model that the file has */
};

/* INVALID if the file has no tensor of the model. */
enum sheaf_status importance_open(const char *path, const struct sheaf_gguf *model,
                                  struct importance *importance);
/* Reads what belongs to a tensor into `columns`. */
enum sheaf_status importance_read(struct importance *importance,
                                  const struct sheaf_gguf_tensor *tensor);
/* Of row r of that tensor, [ne0], or NULL. */
const float *importance_of_row(const struct importance *importance,
                               const struct sheaf_gguf_tensor *tensor, int64_t r);
void importance_close(struct importance *importance);

#endif
