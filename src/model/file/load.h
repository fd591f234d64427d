/* The data of a model's weights: allocated on a buffer type, and read from its files. A rank reads
 * the bytes that it holds, no others; one that has no files gets them from the sender. */
#ifndef SHEAF_MODEL_LOAD_H
#define SHEAF_MODEL_LOAD_H

#include "model/file/weights.h"

/* progress may be NULL. Collective where not all ranks read (model->reads): all get the status. */
enum sheaf_status sheaf__weights_load(struct sheaf__weights *model,
                                      sheaf_backend_buffer_type_t buft,
                                      sheaf_model_progress_fn progress, void *user);

#endif
