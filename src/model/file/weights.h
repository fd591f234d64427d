/* A model: GGUF files, hyperparameters, weight tensors, and their data on some device.
 *
 * Opening reads only metadata and makes descriptors; load.h has what fills them. */
#ifndef SHEAF_MODEL_WEIGHTS_H
#define SHEAF_MODEL_WEIGHTS_H

#include "sheaf/model.h"

#include "model/arch/arch.h"

struct sheaf__layer {
    struct sheaf_tensor *w[SHEAF__W_LAYER_COUNT]; /* NULL where the model has none */
};

struct sheaf__weights {
    struct sheaf__hparams hp;
    struct sheaf_gguf *gguf; /* the first file: metadata */
    int n_files;
    struct sheaf_gguf **files; /* all, in order; files[0] == gguf */
    struct sheaf_context *ctx; /* descriptors of the weights */
    struct sheaf_backend_buffer *buffer;
    struct sheaf_tensor *w[SHEAF__W_COUNT]; /* of the model; entries below LAYER_COUNT unused */
    struct sheaf__layer *layers;            /* [n_layer] */
    size_t total_bytes;                     /* of all weights, in the files */
    size_t bytes_read;                      /* by this process, of weights */
    /* Of a model that only some ranks can read (model/file/share.h): */
    bool *reads;         /* [ranks] those that have the files; NULL: all have */
    int sender;          /* the rank that reads for the others */
    uint64_t bytes_sent; /* by it, of weights */
};

/* `path` is a file, or the first of split files "name-00001-of-00003.gguf". *out is freed by
 * sheaf__weights_free. */
enum sheaf_status sheaf__weights_open(const char *path, struct sheaf__weights **out);
/* Of n GGUFs whose data is not here: shapes to plan with. They pass to the model, also on
 * failure. */
enum sheaf_status sheaf__weights_describe(struct sheaf_gguf **files, int n,
                                          struct sheaf__weights **out);
void sheaf__weights_free(struct sheaf__weights *model); /* accepts NULL */

/* A matrix of the type and width that most bytes of a layer have: for measurements. */
const struct sheaf_tensor *sheaf__weights_typical(const struct sheaf__weights *model);
/* The part of a weight that one token reads: of experts, those that it uses. */
double sheaf__weights_read_share(const struct sheaf__weights *model, enum sheaf__weight weight);

/* Hashes that are equal on ranks that opened equal models. */
struct sheaf__fingerprint {
    uint64_t header;  /* of metadata and tensor directory */
    uint64_t samples; /* of some bytes of each tensor, where the files are */
};
struct sheaf__fingerprint sheaf__weights_fingerprint(const struct sheaf__weights *model);

#endif
