/* A model's hyperparameters and cuts, from metadata alone. */
#include "model.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "model/random_model.h"

void model_print(const struct sheaf__weights *m, const char *name) {
    const struct sheaf__hparams *hp = &m->hp;
    printf("\nmodel          %s\narchitecture   %s\nweights        %.2f MiB in %" PRId64
           " tensors\n",
           name, hp->arch->name, (double)m->total_bytes / (1024.0 * 1024),
           sheaf_gguf_n_tensors(m->gguf));
    printf("layers         %" PRId64 "\nn_embd         %" PRId64 "\nn_ff           %" PRId64
           "\nheads          %" PRId64 " on %" PRId64 " key/value heads, size %" PRId64 "\n",
           hp->n_layer, hp->n_embd, hp->n_ff, hp->n_head, hp->n_head_kv, hp->head_k);
    printf("vocabulary     %" PRId64 "%s\ncontext        %" PRId64 "\n", hp->n_vocab,
           m->w[SHEAF__W_OUTPUT] ? "" : " (output tied to the embeddings)", hp->n_ctx_train);
    if (hp->swa_window)
        printf("window         %" PRId64 " tokens, full attention in every %" PRId64 "th layer\n",
               hp->swa_window, hp->swa_period);
    printf("rotary         %" PRId64 " of %" PRId64 " elements, base %g, scale %g\n", hp->n_rot,
           hp->head_k, (double)hp->freq_base, (double)hp->freq_scale);
}

static int by_name(const void *a, const void *b) {
    const struct sheaf_tensor *const *x = a, *const *y = b;
    return strverscmp((*x)->name, (*y)->name);
}

static enum sheaf_status print_tensor(const struct sheaf_tensor *t, struct sheaf__policy *policy) {
    struct sheaf_split_state *state = NULL;
    char shape[48], cut[512];
    const enum sheaf_status status = sheaf__policy_get_state(t, policy, &state);
    if (status) return status;
    if (t->ne[2] > 1)
        snprintf(shape, sizeof shape, "[%" PRId64 ", %" PRId64 ", %" PRId64 "]", t->ne[0], t->ne[1],
                 t->ne[2]);
    else
        snprintf(shape, sizeof shape, "[%" PRId64 ", %" PRId64 "]", t->ne[0], t->ne[1]);
    printf("%-34s %-6s %-16s %s\n", t->name, sheaf_type_name(t->type), shape,
           sheaf_split_state_print(state, cut, sizeof cut));
    sheaf_split_state_free(state);
    return SHEAF_STATUS_SUCCESS;
}

enum sheaf_status model_print_tensors(const struct sheaf__weights *m,
                                      struct sheaf__policy *policy) {
    size_t n = 0, k = 0;
    struct sheaf_tensor *t;
    for (t = sheaf_get_first_tensor(m->ctx); t; t = sheaf_get_next_tensor(m->ctx, t)) n++;
    const struct sheaf_tensor **all = calloc(n + 1, sizeof *all);
    enum sheaf_status status = SHEAF_STATUS_SUCCESS;
    if (!all) return sheaf_set_error(SHEAF_STATUS_ALLOC_FAILED, "no memory to sort the tensors");
    for (t = sheaf_get_first_tensor(m->ctx); t; t = sheaf_get_next_tensor(m->ctx, t)) all[k++] = t;
    qsort(all, n, sizeof *all, by_name);
    printf("\n%-34s %-6s %-16s cut (M: mirrored, Sn: dimension n)\n", "tensor", "type", "shape");
    for (size_t i = 0; i < n && !status; i++) status = print_tensor(all[i], policy);
    free(all);
    return status;
}

enum sheaf_status model_preset(const char *name, const char *mix, struct sheaf__weights **out) {
    struct sheaf__random_model_params p = sheaf__random_model_default_params();
    struct sheaf_gguf *gguf = NULL;
    *out = NULL;
    enum sheaf_status status = sheaf__random_model_preset(name, &p);
    p.mix = mix;
    p.n_ctx = 131072;
    if (!status) status = sheaf__random_model_describe(&p, &gguf);
    return status ? status : sheaf__weights_describe(&gguf, 1, out);
}
