/* Perplexity of a text: windows of n_ctx tokens, each evaluated on its own; positions 1 .. n_ctx-1
 * of a window are predicted. A rest that fills no window is left out, unless it is the only one.
 * Where the model wants a bos before a text, each window has it in place of its first token, as
 * llama-perplexity does, but not with --ppl-lines, where the lines bring theirs. */
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/array.h"
#include "base/clock.h"
#include "sheaf/world.h"

#include "run.h"

enum { MAX_ROWS = 64 }; /* logits of a whole vocabulary are large: few rows at a time */

static enum sheaf_status append(int32_t **ids, size_t *n, size_t *cap, const int32_t *more,
                                size_t n_more) {
    if (!sheaf__grow(ids, cap, *n + n_more + 1, sizeof **ids))
        return sheaf_set_error(SHEAF_STATUS_ALLOC_FAILED, "no memory for the text");
    memcpy(*ids + *n, more, n_more * sizeof **ids);
    *n += n_more;
    return SHEAF_STATUS_SUCCESS;
}

static enum sheaf_status encode(const struct run_options *o, const struct sheaf_tokenizer *tok,
                                const char *text, size_t len, int32_t **ids, size_t *n) {
    size_t cap = 0;
    enum sheaf_status status = SHEAF_STATUS_SUCCESS;
    for (size_t at = 0; !status && at < len;) {
        size_t end = len;
        if (o->ppl_lines) {
            const char *newline = memchr(text + at, '\n', len - at);
            if (newline) end = (size_t)(newline - text);
        }
        if (end > at) {
            int32_t *more = NULL;
            size_t n_more = 0;
            status = sheaf_tokenizer_encode(tok, text + at, end - at, SHEAF_TOKENIZE_ADD_SPECIAL,
                                            &more, &n_more);
            if (!status) status = append(ids, n, &cap, more, n_more);
            free(more);
        }
        at = end + 1;
        if (o->ppl_tokens && *n >= (size_t)o->ppl_tokens) {
            *n = (size_t)o->ppl_tokens;
            break;
        }
    }
    if (!status && *n < 2)
        status = sheaf_set_error(SHEAF_STATUS_INVALID, "%s holds no two tokens", o->perplexity);
    return status;
}

/* Adds to *nll. A row that is not the logits of any model is an error, as it is where a token is
 * chosen. */
static enum sheaf_status row_nll(const float *row, int64_t n, int32_t target, double *nll) {
    float max = -INFINITY;
    double sum = 0;
    for (int64_t i = 0; i < n; i++) {
        if (!(row[i] < INFINITY))
            return sheaf_set_error(SHEAF_STATUS_INVALID,
                                   "the logit of token %" PRId64
                                   " is %s; the model's weights or its activations are broken",
                                   i, isnan(row[i]) ? "not a number" : "infinite");
        if (row[i] > max) max = row[i];
    }
    if (max == -INFINITY)
        return sheaf_set_error(SHEAF_STATUS_INVALID,
                               "none of the %" PRId64 " logits belongs to a possible token", n);
    for (int64_t i = 0; i < n; i++) sum += exp((double)row[i] - (double)max);
    *nll += log(sum) + (double)max - (double)row[target];
    return SHEAF_STATUS_SUCCESS;
}

/* What all windows use. */
struct work {
    struct sheaf_model *model;
    int64_t n_vocab, step;
    float *rows;  /* [step][n_vocab] */
    bool *wanted; /* [step], all true */
};

/* Between batches: ABORTED on all ranks if rank 0 has been interrupted. The launcher signals all
 * ranks, but not at once. */
static enum sheaf_status check_interrupt(void) {
    unsigned char stop = tool_interrupted();
    enum sheaf_status status = SHEAF_STATUS_SUCCESS;
    if (sheaf_world_size() > 1)
        status = sheaf_world_broadcast(&stop, sizeof stop, 0, "interrupt flag");
    if (!status && stop) status = sheaf_set_error(SHEAF_STATUS_ABORTED, "interrupted");
    return status;
}

static enum sheaf_status window(const struct work *w, const int32_t *ids, int64_t n, double *nll) {
    sheaf_model_cache_clear(w->model);
    for (int64_t at = 0; at < n; at += w->step) {
        const struct sheaf_model_batch batch = {.size = sizeof batch,
                                                .n_tokens = n - at < w->step ? n - at : w->step,
                                                .token = ids + at,
                                                .logits = w->wanted};
        enum sheaf_status status = check_interrupt();
        if (!status) status = sheaf_model_eval(w->model, &batch);
        if (!status) status = sheaf_model_get_logits(w->model, w->rows);
        for (int64_t i = 0; !status && i < batch.n_tokens && at + i + 1 < n; i++)
            status = row_nll(w->rows + i * w->n_vocab, w->n_vocab, ids[at + i + 1], nll);
        if (status) return status;
    }
    return SHEAF_STATUS_SUCCESS;
}

static size_t width_of(size_t n, int64_t n_ctx) { return n < (size_t)n_ctx ? n : (size_t)n_ctx; }

static enum sheaf_status tokens_of(const struct run_options *o, struct sheaf_model *model,
                                   const char *text, size_t len, int64_t n_ctx, int32_t **ids,
                                   size_t *n) {
    const struct sheaf_tokenizer *tok;
    if (sheaf_world_rank()) return SHEAF_STATUS_SUCCESS;
    enum sheaf_status status = sheaf_model_tokenizer(model, &tok);
    if (!status) status = encode(o, tok, text, len, ids, n);
    if (status || o->ppl_lines || !sheaf_tokenizer_add_bos(tok)) return status;
    const size_t width = width_of(*n, n_ctx);
    for (size_t at = width; at + width <= *n; at += width) (*ids)[at] = sheaf_tokenizer_bos(tok);
    return SHEAF_STATUS_SUCCESS;
}

enum sheaf_status run_perplexity(const struct run_options *o, struct sheaf_model *model,
                                 const char *text, size_t len, struct run_result *r) {
    int32_t *ids = NULL;
    size_t n = 0;
    double nll = 0, start = sheaf__seconds();
    struct sheaf_model_info info = {.size = sizeof info};
    enum sheaf_status status = sheaf_model_get_info(model, &info);
    struct work w = {.model = model,
                     .n_vocab = info.n_vocab,
                     .step = info.n_batch < MAX_ROWS ? info.n_batch : MAX_ROWS};
    w.rows = malloc(MAX_ROWS * (size_t)info.n_vocab * sizeof *w.rows);
    w.wanted = malloc(MAX_ROWS * sizeof *w.wanted);
    if (!status) status = tokens_of(o, model, text, len, info.n_ctx, &ids, &n);
    status = tool_await_input(status, "the text");
    if ((!w.rows || !w.wanted) && !status)
        status = sheaf_set_error(SHEAF_STATUS_ALLOC_FAILED, "no memory for logits");
    status = sheaf_world_agree(status, "reading the text");
    if (!status) status = run_share_ids(&ids, &n);
    for (int i = 0; !status && i < MAX_ROWS; i++) w.wanted[i] = true;
    const size_t width = width_of(n, info.n_ctx);
    for (size_t at = 0; !status && width > 1 && at + width <= n; at += width) {
        status = window(&w, ids + at, (int64_t)width, &nll);
        r->ppl_tokens += width - 1;
    }
    r->nll = r->ppl_tokens ? nll / (double)r->ppl_tokens : 0;
    r->ppl_s = sheaf__seconds() - start;
    free(w.rows);
    free(w.wanted);
    free(ids);
    return status;
}
