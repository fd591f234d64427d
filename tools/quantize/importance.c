/* See importance.h. Sums are not divided by their counts: within a row only ratios matter. */
#include "importance.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* -1 if the file has nothing of the tensor. */
static int64_t find(const struct importance *importance, const char *tensor) {
    char name[256];
    snprintf(name, sizeof name, "%.200s.in_sum2", tensor);
    return sheaf_gguf_find_tensor(importance->file, name);
}

static enum sheaf_status check(const struct importance *importance, const char *model) {
    const char *type = "";
    if (sheaf_gguf_find_key(importance->file, "general.type") >= 0)
        sheaf_gguf_get_str(importance->file, "general.type", &type);
    if (strcmp(type, "imatrix") != 0)
        return sheaf_set_error(SHEAF_STATUS_INVALID,
                               "%s is no importance matrix: its general.type is '%.40s', not "
                               "'imatrix'",
                               importance->path, type);
    if (importance->found == 0)
        return sheaf_set_error(SHEAF_STATUS_INVALID,
                               "%s is of another model: it has no tensor of %s", importance->path,
                               model);
    return SHEAF_STATUS_SUCCESS;
}

enum sheaf_status importance_open(const char *path, const struct sheaf_gguf *model,
                                  struct importance *importance) {
    importance->path = path;
    const enum sheaf_status status = sheaf_gguf_open(path, &importance->file);
    if (status) return status;
    for (int64_t i = 0; i < sheaf_gguf_n_tensors(model); i++)
        importance->found += find(importance, sheaf_gguf_tensor(model, i)->name) >= 0;
    return check(importance, sheaf_gguf_path(model));
}

enum sheaf_status importance_read(struct importance *importance,
                                  const struct sheaf_gguf_tensor *tensor) {
    free(importance->columns);
    importance->columns = NULL;
    const int64_t i = importance->file ? find(importance, tensor->name) : -1;
    if (i < 0) return SHEAF_STATUS_SUCCESS;
    const struct sheaf_gguf_tensor *sums = sheaf_gguf_tensor(importance->file, i);
    importance->n = sums->ne[1];
    if (sums->type != SHEAF_TYPE_F32 || sums->ne[0] != tensor->ne[0] ||
        (sums->ne[1] != 1 && sums->ne[1] != tensor->ne[2]) || sums->ne[2] * sums->ne[3] != 1)
        return sheaf_set_error(SHEAF_STATUS_INVALID,
                               "%s is of another model: its '%s' does not fit the tensor",
                               importance->path, sums->name);
    importance->columns = malloc(sums->size);
    if (!importance->columns)
        return sheaf_set_error(SHEAF_STATUS_ALLOC_FAILED, "no memory for '%s'", sums->name);
    return sheaf_gguf_read(importance->file, sums, 0, importance->columns, sums->size);
}

const float *importance_of_row(const struct importance *importance,
                               const struct sheaf_gguf_tensor *tensor, int64_t r) {
    if (!importance->columns) return NULL;
    return importance->columns + r / tensor->ne[1] % importance->n * tensor->ne[0];
}

void importance_close(struct importance *importance) {
    free(importance->columns);
    sheaf_gguf_free(importance->file);
}
