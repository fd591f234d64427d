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

#endif
