/* How weights and caches are cut when the first graph that uses them is known. */
#ifndef SHEAF_GGML_CUT_H
#define SHEAF_GGML_CUT_H

#include "ggml/encode.h"

/* states[i]: of e->unbound[i]; the caller frees them. */
enum sheaf_status gg_choose_cuts(const struct gg_encoder *e, sheaf_backend_dev_t device,
                                 struct sheaf_split_state **states);

#endif
