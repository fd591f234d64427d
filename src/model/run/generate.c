/* Generation of text: the prompt, then token by token. Every rank evaluates; rank 0 has the texts
 * and the sampler, chooses, and tells the others.
 *
 * Invariant: all ranks leave the loop at the same token. What one rank wants or fails to do travels
 * with the candidates or with the choice, so no rank waits for another that has left. A failure of
 * one rank's text or callback is kept, stops the generation as a wish does, and is agreed on at the
 * end. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "sheaf/world.h"

#include "base/clock.h"
#include "base/sized.h"
#include "model/model.h"
#include "model/text/stop.h"

/* Everything that one call owns. */
struct generation {
    struct sheaf_model *model;
    struct sheaf_model_generate_params p;
    sheaf_model_event_fn callback;
    void *user;
    const struct sheaf_tokenizer *tok; /* rank 0 only, as is detok */
    struct sheaf_detokenizer *detok;
    struct sheaf_sampler *sampler;
    int32_t *prompt;
    size_t n_candidates;
    struct sheaf__stop texts; /* rank 0 only */
    uint64_t start_ns;
    bool stop; /* this rank's callback has asked for an end, or this rank has failed */
    enum sheaf_status failed;
    char failure[512];
    struct sheaf_model_result result;
};

struct sheaf_model_generate_params sheaf_model_generate_default_params(void) {
    return (struct sheaf_model_generate_params){.size = sizeof(struct sheaf_model_generate_params),
                                                .n_predict = 128,
                                                .sampler = sheaf_sampler_default_params()};
}

const char *sheaf_model_stop_name(enum sheaf_model_stop stop) {
    static const char *const names[SHEAF_MODEL_STOP_COUNT] = {
        [SHEAF_MODEL_STOP_LENGTH] = "length",        [SHEAF_MODEL_STOP_EOG] = "end of text",
        [SHEAF_MODEL_STOP_CONTEXT] = "context full", [SHEAF_MODEL_STOP_INTERRUPTED] = "interrupted",
        [SHEAF_MODEL_STOP_FAILED] = "failed",        [SHEAF_MODEL_STOP_TEXT] = "stop text",
    };
    return (unsigned)stop < SHEAF_MODEL_STOP_COUNT ? names[stop] : "?";
}

static bool is_root(void) { return sheaf_world_rank() == 0; }

static double seconds_since(uint64_t ns) { return 1e-9 * (double)(sheaf__time_ns() - ns); }

/* ---- events ---- */

/* A failure of this rank alone. */
static void keep(struct generation *g, enum sheaf_status status) {
    if (!status || g->failed) return;
    g->failed = status;
    g->stop = true;
    snprintf(g->failure, sizeof g->failure, "%s", sheaf_last_error());
}

/* The callback's wish to stop, or its failure, is noted. */
static void tell(struct generation *g, enum sheaf_model_event_kind kind, const int32_t *ids,
                 size_t n, const char *text, size_t len) {
    const struct sheaf_model_event event = {.size = sizeof event,
                                            .kind = kind,
                                            .ids = ids,
                                            .n = n,
                                            .text = len ? text : "",
                                            .len = len};
    const enum sheaf_status status =
        g->callback ? g->callback(g->user, &event) : SHEAF_STATUS_SUCCESS;
    if (status == SHEAF_STATUS_ABORTED)
        g->stop = true;
    else
        keep(g, status);
}

/* Before a batch of the prompt: does rank 0 want to stop? */
static enum sheaf_status before_batch(void *user) {
    struct generation *g = user;
    enum sheaf_status status = SHEAF_STATUS_SUCCESS;
    tell(g, SHEAF_MODEL_EVENT_BATCH, NULL, 0, NULL, 0);
    unsigned char stop = g->stop;
    if (sheaf_world_size() > 1)
        status = sheaf_world_broadcast(&stop, sizeof stop, 0, "interrupt flag");
    if (!status && stop) {
        g->result.stop = SHEAF_MODEL_STOP_INTERRUPTED;
        status = sheaf_set_error(SHEAF_STATUS_ABORTED, "interrupted");
    }
    return status;
}

/* ---- the prompt ---- */

/* The prompt as a message of a chat: the first, or one behind other turns. */
static enum sheaf_status format_chat(const struct generation *g, const char *prompt, size_t len,
                                     bool begins, char **out) {
    const char *system = g->p.system ? g->p.system : "", *zero = memchr(prompt, 0, len);
    if (zero)
        return sheaf_set_error(SHEAF_STATUS_INVALID,
                               "byte %zu of the message is a zero, which chats cannot have: leave "
                               "it out, or give the prompt as raw text",
                               (size_t)(zero - prompt));
    struct sheaf_chat chat;
    char *message = strndup(prompt, len);
    const struct sheaf_chat_message messages[2] = {{"system", system}, {"user", message}};
    const size_t skip = *system ? 0 : 1;
    enum sheaf_status status =
        message ? sheaf_chat_from_gguf(sheaf_model_gguf(g->model), g->tok, &chat)
                : sheaf_set_error(SHEAF_STATUS_ALLOC_FAILED, "no memory for the prompt");
    if (!status)
        status = begins ? sheaf_chat_format_messages(&chat, messages + skip, 2 - skip, true, out)
                        : sheaf_chat_format_turn(&chat, message, out);
    free(message);
    return status;
}

/* What the caller wants before the tokens of the prompt. */
static enum sheaf_status put_first(struct generation *g) {
    const size_t n = g->p.n_first, all = n + g->result.n_prompt;
    int32_t *ids = malloc((all + 1) * sizeof *ids);
    if (!ids) return sheaf_set_error(SHEAF_STATUS_ALLOC_FAILED, "no memory for the prompt");
    memcpy(ids, g->p.first, n * sizeof *ids);
    if (g->prompt) memcpy(ids + n, g->prompt, g->result.n_prompt * sizeof *ids);
    free(g->prompt);
    g->prompt = ids;
    g->result.n_prompt = all;
    return SHEAF_STATUS_SUCCESS;
}

static enum sheaf_status check_room(const struct generation *g) {
    const size_t n = g->result.n_prompt, room = (size_t)sheaf_model_cache_room(g->model);
    const long long n_ctx = g->model->session->n_ctx;
    if (n <= room) return SHEAF_STATUS_SUCCESS;
    if (n > (size_t)n_ctx)
        return sheaf_set_error(SHEAF_STATUS_INVALID,
                               "the prompt has %zu tokens, more than the context of %lld: give a "
                               "larger --ctx or a shorter prompt",
                               n, n_ctx);
    return sheaf_set_error(SHEAF_STATUS_INVALID,
                           "the prompt has %zu tokens, but the context of %lld has room for %zu "
                           "more: give a larger --ctx, or begin anew",
                           n, n_ctx, room);
}

static enum sheaf_status encode(struct generation *g, const char *prompt) {
    char *formatted = NULL;
    size_t len = g->p.prompt_len ? g->p.prompt_len : strlen(prompt);
    const bool begins = sheaf_model_cache_end(g->model, g->p.seq) == 0;
    unsigned flags = begins ? SHEAF_TOKENIZE_ADD_SPECIAL : 0;
    enum sheaf_status status = SHEAF_STATUS_SUCCESS;
    if (g->p.chat) {
        status = format_chat(g, prompt, len, begins, &formatted);
        if (!status) len = strlen(formatted);
        flags |= SHEAF_TOKENIZE_PARSE_SPECIAL;
    }
    if (!status)
        status = sheaf_tokenizer_encode(g->tok, formatted ? formatted : prompt, len, flags,
                                        &g->prompt, &g->result.n_prompt);
    free(formatted);
    if (!status && g->p.n_first) status = put_first(g);
    if (!status && g->result.n_prompt == 0)
        status = sheaf_set_error(SHEAF_STATUS_INVALID, "the prompt is empty, and this model has no "
                                                       "start token: give some text");
    return status ? status : check_room(g);
}

/* What only rank 0 has. */
static enum sheaf_status prepare_root(struct generation *g, const char *prompt) {
    if (!is_root()) return SHEAF_STATUS_SUCCESS;
    if (!prompt) return sheaf_set_error(SHEAF_STATUS_INVALID, "rank 0 has no prompt");
    enum sheaf_status status = sheaf_model_tokenizer(g->model, &g->tok);
    if (!status) status = encode(g, prompt);
    for (int i = 0; !status && i < g->p.n_stop; i++)
        if (!*g->p.stop[i])
            status = sheaf_set_error(SHEAF_STATUS_INVALID, "stop text %d is empty", i);
    g->texts = (struct sheaf__stop){.texts = g->p.stop, .n = g->p.n_stop};
    return status ? status : sheaf_detokenizer_new(g->tok, 0, &g->detok);
}

static enum sheaf_status prepare(struct generation *g, const char *prompt) {
    const int32_t n_vocab = (int32_t)g->model->session->model->hp.n_vocab;
    if (sheaf_model_cache_end(g->model, g->p.seq) < 0)
        return sheaf_set_error(SHEAF_STATUS_INVALID, "sequence %d is not one of 0..%d", g->p.seq,
                               SHEAF_MODEL_MAX_SEQUENCES - 1);
    enum sheaf_status status = sheaf__evaluator_check_decoder(g->model->session->context);
    if (!status) status = sheaf_sampler_new(&g->p.sampler, n_vocab, &g->sampler);
    if (status) return status;
    g->n_candidates = sheaf_sampler_n_candidates(g->sampler);
    return prepare_root(g, prompt);
}

/* Rank 0's tokens of the prompt, on every rank. */
static enum sheaf_status share_prompt(struct generation *g) {
    if (sheaf_world_size() == 1) return SHEAF_STATUS_SUCCESS;
    uint64_t n = g->result.n_prompt;
    enum sheaf_status status = sheaf_world_broadcast(&n, sizeof n, 0, "number of tokens");
    if (status) return status;
    if (!is_root()) {
        g->result.n_prompt = (size_t)n;
        g->prompt = calloc((size_t)n + 1, sizeof *g->prompt);
        if (!g->prompt) status = sheaf_set_error(SHEAF_STATUS_ALLOC_FAILED, "no memory for tokens");
    }
    status = sheaf_world_agree(status, "receiving tokens");
    return status ? status
                  : sheaf_world_broadcast(g->prompt, (size_t)n * sizeof *g->prompt, 0, "tokens");
}

/* ---- tokens ---- */

struct choice {
    int32_t id;
    int32_t stop; /* enum sheaf_model_stop; LENGTH: go on */
};

/* The next token, the same on every rank. */
static enum sheaf_status choose(struct generation *g, struct choice *c) {
    const struct sheaf_candidates *candidates = NULL;
    bool stop = g->stop;
    enum sheaf_status mine = sheaf_model_get_candidates(
        g->model, 0, g->n_candidates, sheaf_sampler_needs_sum(g->sampler), &stop, &candidates);
    if (mine) return mine;
    *c = (struct choice){0, stop ? SHEAF_MODEL_STOP_INTERRUPTED : SHEAF_MODEL_STOP_LENGTH};
    if (is_root() && g->texts.found) {
        c->stop = SHEAF_MODEL_STOP_TEXT;
    } else if (is_root() && !stop) {
        mine = sheaf_sampler_sample(g->sampler, candidates, &c->id);
        if (mine)
            c->stop = SHEAF_MODEL_STOP_FAILED;
        else if (!g->p.ignore_eos && sheaf_tokenizer_is_eog(g->tok, c->id))
            c->stop = SHEAF_MODEL_STOP_EOG;
    }
    if (sheaf_world_size() == 1) return mine;
    enum sheaf_status status = sheaf_world_broadcast(c, sizeof *c, 0, "the next token");
    if (!status && c->stop == SHEAF_MODEL_STOP_FAILED) status = sheaf_world_agree(mine, "sampling");
    return mine ? mine : status;
}

static void accept(struct generation *g, int32_t id) {
    const char *text = NULL;
    size_t len = 0;
    enum sheaf_status status =
        is_root() ? sheaf_detokenizer_push(g->detok, id, &text, &len) : SHEAF_STATUS_SUCCESS;
    if (!g->result.n_ids++) g->result.first_token_s = seconds_since(g->start_ns);
    if (!status && g->texts.n) status = sheaf__stop_push(&g->texts, text, len, &text, &len);
    keep(g, status);
    if (!g->failed) tell(g, SHEAF_MODEL_EVENT_TOKEN, &id, 1, text, len);
}

static enum sheaf_status evaluate(struct generation *g, int32_t id) {
    const int32_t seq = g->p.seq;
    const struct sheaf_model_batch batch = {
        .size = sizeof batch, .n_tokens = 1, .token = &id, .seq = &seq};
    const uint64_t start = sheaf__time_ns();
    enum sheaf_status status = sheaf_model_eval(g->model, &batch);
    g->result.generate_s += seconds_since(start);
    g->result.n_evals++;
    if (!status) tell(g, SHEAF_MODEL_EVENT_EVALUATED, NULL, 0, NULL, 0);
    return status;
}

static enum sheaf_status evaluate_prompt(struct generation *g) {
    const size_t n = g->result.n_prompt;
    tell(g, SHEAF_MODEL_EVENT_PROMPT, g->prompt, n, NULL, 0);
    const uint64_t start = g->start_ns = sheaf__time_ns();
    const enum sheaf_status status =
        sheaf_model_prompt(g->model, g->p.seq, g->prompt, (int64_t)n, before_batch, g);
    g->result.prompt_s = seconds_since(start);
    if (!status) tell(g, SHEAF_MODEL_EVENT_EVALUATED, NULL, 0, NULL, 0);
    return status;
}

/* No token follows, for this reason; but the last one may have completed a stop text, which rank 0
 * alone knows. */
static enum sheaf_status end_for(struct generation *g, enum sheaf_model_stop reason) {
    int32_t stop = (int32_t)(is_root() && g->texts.found ? SHEAF_MODEL_STOP_TEXT : reason);
    enum sheaf_status status = SHEAF_STATUS_SUCCESS;
    if (sheaf_world_size() > 1)
        status = sheaf_world_broadcast(&stop, sizeof stop, 0, "why the answer ends");
    g->result.stop = (enum sheaf_model_stop)stop;
    return status;
}

static enum sheaf_status generate(struct generation *g) {
    const size_t wanted = g->p.n_predict < 0 ? SIZE_MAX : (size_t)g->p.n_predict;
    struct sheaf_model_result *r = &g->result;
    enum sheaf_status status = evaluate_prompt(g);
    while (!status && r->n_ids < wanted) {
        struct choice c;
        status = choose(g, &c);
        if (!status && c.stop) r->stop = (enum sheaf_model_stop)c.stop;
        if (status || c.stop) break;
        accept(g, c.id);
        const bool last = r->n_ids == wanted;
        if (last || sheaf_model_cache_room(g->model) == 0) {
            status = end_for(g, last ? SHEAF_MODEL_STOP_LENGTH : SHEAF_MODEL_STOP_CONTEXT);
            break;
        }
        status = evaluate(g, c.id);
    }
    const bool interrupted =
        status == SHEAF_STATUS_ABORTED && r->stop == SHEAF_MODEL_STOP_INTERRUPTED;
    return interrupted ? SHEAF_STATUS_SUCCESS : status;
}

static enum sheaf_status end(struct generation *g) {
    const char *rest = NULL;
    size_t len = 0;
    if (is_root()) sheaf_detokenizer_flush(g->detok, &rest, &len);
    if (g->texts.n) keep(g, sheaf__stop_end(&g->texts, rest, len, &rest, &len));
    if (!g->failed) tell(g, SHEAF_MODEL_EVENT_END, NULL, 0, rest, len);
    return sheaf_world_agree(g->failed ? sheaf_set_error(g->failed, "%s", g->failure)
                                       : SHEAF_STATUS_SUCCESS,
                             "writing results");
}

enum sheaf_status sheaf_model_generate(struct sheaf_model *model, const char *prompt,
                                       const struct sheaf_model_generate_params *params,
                                       sheaf_model_event_fn callback, void *user,
                                       struct sheaf_model_result *result) {
    struct generation g = {.model = model,
                           .p = sheaf_model_generate_default_params(),
                           .callback = callback,
                           .user = user,
                           .result = {.size = sizeof g.result}};
    enum sheaf_status status = SHEAF_STATUS_SUCCESS;
    if (params) status = sheaf__sized_take(params, &g.p, sizeof g.p, "sheaf_model_generate_params");
    if (!status) status = prepare(&g, prompt);
    status = sheaf_world_agree(status, "preparing to generate");
    if (!status) status = share_prompt(&g);
    if (!status) status = generate(&g);
    if (!status) status = end(&g);
    if (status) g.result.stop = SHEAF_MODEL_STOP_FAILED;
    if (result) {
        const enum sheaf_status given =
            sheaf__sized_give(&g.result, sizeof g.result, result, "sheaf_model_result");
        if (!status) status = given;
    }
    sheaf__stop_free(&g.texts);
    sheaf_detokenizer_free(g.detok);
    sheaf_sampler_free(g.sampler);
    free(g.prompt);
    return status;
}
