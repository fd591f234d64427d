/* A model's hyperparameters and cuts, from metadata alone. */
#include "model.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "model/random_model.h"

static void print_attention(const struct sheaf__hparams *hp) {
    if (sheaf__hparams_n_recurrent(hp) == hp->n_layer) return;
    if (hp->n_lora_kv)
        printf("heads          %" PRId64 ", keys and values latent: %" PRId64
               " elements a token and %" PRId64 " rotated\n",
               hp->n_head, hp->n_lora_kv, hp->n_rot);
    else
        printf("heads          %" PRId64 " on %" PRId64 " key/value head%s, size %" PRId64 "\n",
               hp->n_head, hp->n_head_kv, hp->n_head_kv == 1 ? "" : "s", hp->head_k);
    if (hp->swa_window && hp->swa_period > 1 && hp->swa_period <= hp->n_layer)
        printf("window         %" PRId64 " tokens; 1 layer in %" PRId64 " attends to all\n",
               hp->swa_window, hp->swa_period);
    else if (hp->swa_window && hp->swa_period > 1)
        printf("window         %" PRId64 " tokens\n", hp->swa_window);
    if (!hp->no_rope && !hp->arch->encoder)
        printf("rotary         %" PRId64 " of %" PRId64 " elements, base %g, scale %g\n", hp->n_rot,
               hp->head_k, (double)hp->freq_base, (double)hp->freq_scale);
}

static void print_states(const struct sheaf__hparams *hp) {
    const int64_t n = sheaf__hparams_n_recurrent(hp);
    if (!n) return;
    printf("states         in %" PRId64 " layer%s: %" PRId64 " heads in %" PRId64
           " group%s, %" PRId64 " x %" PRId64 " elements each\n",
           n, n == 1 ? "" : "s", hp->n_ssm_head, hp->n_ssm_group, hp->n_ssm_group == 1 ? "" : "s",
           hp->d_inner / hp->n_ssm_head, hp->d_state);
}

void model_print(const struct sheaf__weights *m, const char *name) {
    const struct sheaf__hparams *hp = &m->hp;
    const bool tied = !m->w[SHEAF__W_OUTPUT] && !hp->arch->encoder;
    printf("\nmodel          %s\narchitecture   %s\nweights        %.2f MiB in %" PRId64
           " tensors\n",
           name, hp->arch->name, (double)m->total_bytes / (1024.0 * 1024),
           sheaf_gguf_n_tensors(m->gguf));
    printf("layers         %" PRId64 "\nn_embd         %" PRId64 "\n", hp->n_layer, hp->n_embd);
    if (hp->arch->ffn && (!hp->n_expert || hp->n_layer_dense))
        printf("n_ff           %" PRId64 "\n", hp->n_ff);
    if (hp->n_expert)
        printf("experts        %" PRId64 ", %" PRId64 " for a token, n_ff %" PRId64 "\n",
               hp->n_expert, hp->n_expert_used, hp->n_ff_expert);
    print_attention(hp);
    print_states(hp);
    printf("vocabulary     %" PRId64 "%s\ncontext        %" PRId64 "\n", hp->n_vocab,
           tied ? " (output tied to the embeddings)" : "", hp->n_ctx_train);
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
