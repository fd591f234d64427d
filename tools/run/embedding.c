/* The embedding of a text: one line of numbers, or a JSON object. */
#include <stdlib.h>
#include <string.h>

#include "sheaf/world.h"

#include "run.h"

static enum sheaf_model_pooling pooling_of(const struct run_options *o) {
    if (!o->pooling) return SHEAF_MODEL_POOLING_DEFAULT;
    if (strcmp(o->pooling, "mean") == 0) return SHEAF_MODEL_POOLING_MEAN;
    return strcmp(o->pooling, "cls") == 0 ? SHEAF_MODEL_POOLING_CLS : SHEAF_MODEL_POOLING_LAST;
}

static void print(const struct run_options *o, const float *v, int64_t n, const int32_t *ids,
                  size_t n_ids) {
    printf("%s", o->json ? "{\"embedding\": [" : "");
    for (int64_t i = 0; i < n; i++) printf("%s%.9g", i ? o->json ? ", " : " " : "", (double)v[i]);
    if (o->json) printf("], \"tokens\": %zu}", n_ids);
    if (o->ids && !o->json) {
        printf("\nids:");
        for (size_t i = 0; i < n_ids; i++) printf(" %d", (int)ids[i]);
    }
    printf("\n");
    fflush(stdout);
}

enum sheaf_status run_embedding(const struct run_options *o, struct sheaf_model *model,
                                const char *text, size_t len) {
    struct sheaf_model_info info = {.size = sizeof info};
    const struct sheaf_tokenizer *tok;
    int32_t *ids = NULL;
    size_t n = 0;
    float *v = NULL;
    enum sheaf_status status = sheaf_model_get_info(model, &info);
    if (!status && sheaf_world_rank() == 0) {
        status = sheaf_model_tokenizer(model, &tok);
        if (!status)
            status = sheaf_tokenizer_encode(tok, text, len, SHEAF_TOKENIZE_ADD_SPECIAL, &ids, &n);
    }
    status = sheaf_world_agree(status, "reading the text");
    if (!status) status = run_share_ids(&ids, &n);
    if (!status && !(v = malloc((size_t)info.n_embd * sizeof *v)))
        status = sheaf_set_error(SHEAF_STATUS_ALLOC_FAILED, "no memory for an embedding");
    status = sheaf_world_agree(status, "preparing an embedding");
    if (!status) status = sheaf_model_embed(model, ids, (int64_t)n, pooling_of(o), v);
    if (!status && sheaf_world_rank() == 0) print(o, v, info.n_embd, ids, n);
    free(v);
    free(ids);
    return status;
}
