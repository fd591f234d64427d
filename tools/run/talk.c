/* A conversation: messages from the standard input of rank 0, answers that see all before them in
 * the K/V cache.
 *
 * Invariant: all ranks follow the same orders, which rank 0 gives; while it waits for its user, the
 * others wait without a limit. */
#include <stdlib.h>
#include <string.h>

#include "base/array.h"
#include "sheaf/world.h"

#include "run.h"

enum order { ORDER_MESSAGE, ORDER_CLEAR, ORDER_END };

struct talk {
    const struct run_options *o;
    struct sheaf_model *model;
    struct run_result *r;
    char *message; /* rank 0 only */
    size_t len, cap;
    int32_t last;  /* token of the last answer that is not in the cache */
    size_t n_last; /* 0 or 1 */
};

static bool is_root(void) { return sheaf_world_rank() == 0; }

static enum sheaf_status no_memory(void) {
    return sheaf_set_error(SHEAF_STATUS_ALLOC_FAILED, "no memory for a message");
}

/* ---- input ---- */

/* Appends a line to the message; true if a backslash at its end joins the next one. */
static bool take_line(struct talk *t, const char *line, size_t n, enum sheaf_status *status) {
    n = run_without_newline(line, n);
    const bool more = n && line[n - 1] == '\\';
    if (more) n--;
    if (!sheaf__grow(&t->message, &t->cap, t->len + n + 2, 1)) {
        *status = no_memory();
        return false;
    }
    memcpy(t->message + t->len, line, n);
    t->len += n;
    if (more) t->message[t->len++] = '\n';
    t->message[t->len] = 0;
    return more;
}

/* A chat's texts end at a zero: what is behind it would be lost. */
static void leave_out_zeros(struct talk *t) {
    if (!t->len || !memchr(t->message, 0, t->len)) return;
    fputs("sheaf-run: a message with a zero byte is left out\n", stderr);
    t->len = 0;
}

/* The next message of the user that is not empty. */
static enum sheaf_status read_message(struct talk *t, enum order *order) {
    enum sheaf_status status = SHEAF_STATUS_SUCCESS;
    char *line = NULL;
    size_t cap = 0;
    ssize_t n = 0;
    bool more = true;
    t->len = 0;
    while (!status && (more || t->len == 0) && !tool_interrupted()) {
        fputs(t->len ? ". " : "> ", stderr);
        n = getline(&line, &cap, stdin);
        if (n < 0) break;
        more = take_line(t, line, (size_t)n, &status);
        if (!more && !status) leave_out_zeros(t);
    }
    free(line);
    if (!status) leave_out_zeros(t); /* the last line may have ended with a backslash */
    *order = ORDER_MESSAGE;
    if (tool_interrupted() || (n < 0 && t->len == 0)) *order = ORDER_END;
    if (n < 0 && t->len == 0) fputc('\n', stderr);
    if (t->len && strcmp(t->message, "/exit") == 0) *order = ORDER_END;
    if (t->len && strcmp(t->message, "/clear") == 0) *order = ORDER_CLEAR;
    return status;
}

/* Rank 0's order on all ranks. */
static enum sheaf_status next_order(struct talk *t, enum order *order) {
    int32_t words[2] = {0, 0}; /* order, status of rank 0 */
    enum sheaf_status status = SHEAF_STATUS_SUCCESS;
    if (is_root()) {
        status = read_message(t, order);
        words[0] = (int32_t)*order;
        words[1] = (int32_t)status;
    }
    if (sheaf_world_size() > 1) {
        const enum sheaf_status called =
            sheaf_world_call(words, sizeof words, 0, "the next message");
        if (called) return called;
        if (words[1]) return sheaf_world_agree(status, "reading a message");
    }
    *order = (enum order)words[0];
    return status;
}

/* ---- answers ---- */

static void forget(struct talk *t) {
    sheaf_model_cache_clear(t->model);
    t->n_last = 0;
}

/* One answer; a context that is full is emptied, and the message asked anew. One that does not fit
 * even then, or that is no prompt, is left out: all ranks have agreed on that before anything was
 * evaluated. */
static enum sheaf_status answer(struct talk *t) {
    struct run_result *r = t->r;
    const size_t evals = r->made.n_evals, ids = r->made.n_ids;
    enum sheaf_status status =
        run_generate(t->o, t->model, t->message, t->len, &t->last, t->n_last, r);
    if (status == SHEAF_STATUS_INVALID && sheaf_model_cache_end(t->model, 0) > 0 &&
        !sheaf_world_failed()) {
        if (is_root())
            fprintf(stderr, "sheaf-run: %s. The conversation so far is forgotten\n",
                    sheaf_last_error());
        forget(t);
        status = run_generate(t->o, t->model, t->message, t->len, NULL, 0, r);
    }
    if (status == SHEAF_STATUS_INVALID && !sheaf_world_failed()) {
        if (is_root())
            fprintf(stderr, "sheaf-run: %s. The message is left out\n", sheaf_last_error());
        return SHEAF_STATUS_SUCCESS;
    }
    if (status) return status;
    t->n_last = r->made.n_ids - ids > r->made.n_evals - evals ? 1 : 0;
    if (t->n_last) t->last = r->ids[r->n_ids - 1];
    return SHEAF_STATUS_SUCCESS;
}

enum sheaf_status run_talk(const struct run_options *o, struct sheaf_model *model, const char *text,
                           size_t len, struct run_result *r) {
    struct talk t = {.o = o, .model = model, .r = r};
    enum order order = ORDER_MESSAGE;
    enum sheaf_status status = SHEAF_STATUS_SUCCESS;
    bool given = o->prompt != NULL;
    if (given && is_root()) {
        t.message = strndup(text, len);
        t.len = len;
        if (!t.message) status = no_memory();
        status = sheaf_world_agree(status, "reading a message");
    } else if (given) {
        status = sheaf_world_agree(status, "reading a message");
    }
    while (!status && order != ORDER_END && r->made.stop != SHEAF_MODEL_STOP_INTERRUPTED) {
        if (!given) status = next_order(&t, &order);
        given = false;
        if (status || order == ORDER_END) break;
        if (order == ORDER_CLEAR)
            forget(&t);
        else
            status = answer(&t);
    }
    if (!status && tool_interrupted()) r->made.stop = SHEAF_MODEL_STOP_INTERRUPTED;
    free(t.message);
    return status;
}
