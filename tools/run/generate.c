/* One answer: printed as it is made, and kept for the report. Rank 0 prints. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/array.h"
#include "base/file.h"
#include "sheaf/world.h"

#include "run.h"

/* What the events of one answer need. */
struct answer {
    const struct run_options *o;
    struct sheaf_model *model;
    struct run_result *r;
    bool chat;         /* the prompt is a message, and not shown */
    FILE *logits_file; /* rank 0 only */
    float *row;        /* [n_vocab] with --logits */
    int64_t n_vocab;
};

static bool is_root(void) { return sheaf_world_rank() == 0; }

static enum sheaf_status no_memory(void) {
    return sheaf_set_error(SHEAF_STATUS_ALLOC_FAILED, "no memory to generate");
}

void run_result_free(struct run_result *r) {
    free(r->prompt);
    free(r->ids);
    free(r->text);
}

static void show(const struct answer *a, const char *text, size_t n) {
    if (a->o->json || !n) return;
    fwrite(text, 1, n, stdout);
    fflush(stdout);
}

/* ---- events ---- */

static enum sheaf_status show_prompt(const struct answer *a, const struct sheaf_model_event *e) {
    const struct sheaf_tokenizer *tok;
    char *text = NULL;
    size_t len = 0;
    if (!is_root() || a->o->json || a->chat) return SHEAF_STATUS_SUCCESS;
    enum sheaf_status status = sheaf_model_tokenizer(a->model, &tok);
    if (!status)
        status = sheaf_tokenizer_decode(tok, e->ids, e->n, SHEAF_DETOKENIZE_START, &text, &len);
    if (!status) show(a, text, len);
    free(text);
    return status;
}

/* At the prompt and not before: opening the file empties one that was there. */
static enum sheaf_status open_logits(struct answer *a) {
    if (!a->o->logits || !is_root()) return SHEAF_STATUS_SUCCESS;
    a->logits_file = fopen(a->o->logits, "wbe");
    if (a->logits_file) return SHEAF_STATUS_SUCCESS;
    return sheaf_set_error(SHEAF_STATUS_IO, "cannot create %s: %s", a->o->logits,
                           sheaf__errno_text(errno));
}

static enum sheaf_status keep_prompt(struct answer *a, const struct sheaf_model_event *e) {
    struct run_result *r = a->r;
    int32_t *grown = realloc(r->prompt, (e->n + 1) * sizeof *grown);
    if (!grown) return no_memory();
    r->prompt = grown;
    r->n_prompt = e->n;
    memcpy(r->prompt, e->ids, e->n * sizeof *r->prompt);
    const enum sheaf_status status = open_logits(a);
    return status ? status : show_prompt(a, e);
}

static enum sheaf_status keep_text(struct answer *a, const char *text, size_t n) {
    struct run_result *r = a->r;
    if (!a->o->json || !n) return SHEAF_STATUS_SUCCESS;
    if (!sheaf__grow(&r->text, &r->cap_text, r->text_len + n, 1)) return no_memory();
    memcpy(r->text + r->text_len, text, n);
    r->text_len += n;
    return SHEAF_STATUS_SUCCESS;
}

static enum sheaf_status keep_token(struct answer *a, const struct sheaf_model_event *e) {
    struct run_result *r = a->r;
    if (!sheaf__grow(&r->ids, &r->cap_ids, r->n_ids + 1, sizeof *r->ids)) return no_memory();
    r->ids[r->n_ids++] = e->ids[0];
    show(a, e->text, e->len);
    return keep_text(a, e->text, e->len);
}

static enum sheaf_status write_logits(struct answer *a) {
    if (!a->o->logits) return SHEAF_STATUS_SUCCESS;
    const size_t n = (size_t)a->n_vocab;
    if (!a->row) a->row = malloc(n * sizeof *a->row);
    if (!a->row) return no_memory();
    enum sheaf_status status = sheaf_model_get_logits(a->model, a->row);
    if (status || !is_root() || fwrite(a->row, sizeof *a->row, n, a->logits_file) == n)
        return status;
    return sheaf_set_error(SHEAF_STATUS_IO, "cannot write %s: %s", a->o->logits, strerror(errno));
}

static enum sheaf_status end_text(struct answer *a, const struct sheaf_model_event *e) {
    if (!is_root()) return SHEAF_STATUS_SUCCESS;
    show(a, e->text, e->len);
    if (!a->o->json) fputc('\n', stdout);
    fflush(stdout);
    if (a->logits_file) {
        FILE *f = a->logits_file;
        a->logits_file = NULL;
        if (fclose(f) != 0)
            return sheaf_set_error(SHEAF_STATUS_IO, "cannot write %s: %s", a->o->logits,
                                   strerror(errno));
    }
    return keep_text(a, e->text, e->len);
}

/* Fits sheaf_model_event_fn. */
static enum sheaf_status on_event(void *user, const struct sheaf_model_event *e) {
    struct answer *a = user;
    enum sheaf_status status = SHEAF_STATUS_SUCCESS;
    if (e->kind == SHEAF_MODEL_EVENT_PROMPT) status = keep_prompt(a, e);
    if (e->kind == SHEAF_MODEL_EVENT_EVALUATED) status = write_logits(a);
    if (e->kind == SHEAF_MODEL_EVENT_TOKEN) status = keep_token(a, e);
    if (e->kind == SHEAF_MODEL_EVENT_END) return end_text(a, e);
    return status || !tool_interrupted() ? status : SHEAF_STATUS_ABORTED;
}

/* ---- the answer ---- */

/* Is the prompt a message? Asked for, or by a template that the model has. Rank 0 decides. */
static enum sheaf_status choose_chat(struct answer *a) {
    const struct run_options *o = a->o;
    const struct sheaf_gguf *gguf = sheaf_model_gguf(a->model);
    const struct sheaf_tokenizer *tok;
    struct sheaf_chat chat;
    const bool wanted = o->chat || *o->system || o->asked_conversation;
    if (!is_root() || o->no_chat) return SHEAF_STATUS_SUCCESS;
    const bool has = sheaf_gguf_find_key(gguf, "tokenizer.chat_template") >= 0;
    if (!wanted && !has) return SHEAF_STATUS_SUCCESS;
    enum sheaf_status status = sheaf_model_tokenizer(a->model, &tok);
    if (!status) status = sheaf_chat_from_gguf(gguf, tok, &chat);
    a->chat = !status;
    if (a->chat) a->r->chat = sheaf_chat_name(chat.format);
    if (status != SHEAF_STATUS_UNSUPPORTED || wanted) return status;
    fputs("sheaf-run: the model's chat template is none of the known formats; the prompt is taken "
          "as raw text\n",
          stderr);
    return SHEAF_STATUS_SUCCESS;
}

/* Why there is no text, if that is not what was asked for. */
static void explain_empty(const struct answer *a, const struct sheaf_model_result *made) {
    const char *why = NULL;
    if (!is_root() || made->n_ids) return;
    if (made->stop == SHEAF_MODEL_STOP_EOG && a->chat)
        why = "the model ended its answer at once. Ask otherwise, or try --ignore-eos or --no-chat";
    else if (made->stop == SHEAF_MODEL_STOP_EOG && a->o->no_chat)
        why = "the model took the prompt for a whole text. Without --no-chat it is a message, if "
              "the model has a chat template; --ignore-eos goes on";
    else if (made->stop == SHEAF_MODEL_STOP_EOG)
        why = "the model took the prompt for a whole text. --ignore-eos goes on; --chat makes it a "
              "message";
    else if (made->stop == SHEAF_MODEL_STOP_CONTEXT)
        why = "the prompt fills the context: give a larger --ctx";
    if (why) fprintf(stderr, "sheaf-run: the answer is empty: %s\n", why);
}

static void add_result(struct run_result *r, const struct sheaf_model_result *made) {
    if (!r->n_turns++) r->made.first_token_s = made->first_token_s;
    r->made.stop = made->stop;
    r->made.n_prompt += made->n_prompt;
    r->made.n_ids += made->n_ids;
    r->made.n_evals += made->n_evals;
    r->made.prompt_s += made->prompt_s;
    r->made.generate_s += made->generate_s;
}

static enum sheaf_status prepare(struct answer *a) {
    struct sheaf_model_info info = {.size = sizeof info};
    enum sheaf_status status = sheaf_model_get_info(a->model, &info);
    a->n_vocab = info.n_vocab;
    if (!status) status = choose_chat(a);
    return sheaf_world_agree(status, "preparing the prompt");
}

enum sheaf_status run_generate(const struct run_options *o, struct sheaf_model *model,
                               const char *text, size_t len, const int32_t *first, size_t n_first,
                               struct run_result *r) {
    struct answer a = {.o = o, .model = model, .r = r};
    struct sheaf_model_generate_params params = sheaf_model_generate_default_params();
    struct sheaf_model_result made = {.size = sizeof made};
    enum sheaf_status status = prepare(&a);
    params.n_predict = o->n_predict;
    params.sampler = o->sampler;
    params.chat = a.chat;
    params.system = o->system;
    params.ignore_eos = o->ignore_eos;
    params.prompt_len = len;
    params.stop = o->stop;
    params.n_stop = o->n_stop;
    params.first = first;
    params.n_first = n_first;
    r->n_prompt = r->n_ids = r->text_len = 0;
    if (!status) status = sheaf_model_generate(model, text, &params, on_event, &a, &made);
    if (!status) {
        add_result(r, &made);
        explain_empty(&a, &made);
    } else if (is_root() && r->n_prompt && !o->json) {
        fputc('\n', stdout);
    }
    if (a.logits_file) fclose(a.logits_file);
    free(a.row);
    return status;
}
