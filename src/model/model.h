/* What an open model of the public interface consists of. */
#ifndef SHEAF_MODEL_MODEL_H
#define SHEAF_MODEL_MODEL_H

#include "model/run/logits.h"
#include "model/run/session.h"

struct sheaf_model {
    struct sheaf__session *session;
    struct sheaf_tokenizer *tokenizer; /* NULL before it is asked for */
    struct sheaf__logits *logits;      /* scratch for n_candidates; NULL before the first */
    size_t n_candidates;
    enum sheaf_type kv_type;
};

/* The caller's struct, whose first field says how large it is, over the defaults in *own. INVALID
 * if it is of a later version than this library. `what` for the message. */
enum sheaf_status sheaf__model_take_params(const void *caller, void *own, size_t own_size,
                                           const char *what);
/* The library's struct to the caller's, which may be of an earlier version. INVALID as above. */
enum sheaf_status sheaf__model_give_struct(const void *own, size_t own_size, void *caller,
                                           const char *what);

#endif
