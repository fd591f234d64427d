/* sheaf-run: generates text or measures perplexity with a model spread over the devices of a job.
 *
 * SPMD: all ranks do the same; rank 0 reads text, chooses tokens and prints. A failure of any rank
 * ends all ranks with a non-zero exit code: failures of set-up are agreed on, later ones end the
 * waits of the others. Exit codes: 0 done, 1 failed, 2 bad command line, 130 interrupted. */
#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "sheaf/meta.h"
#include "sheaf/module.h"
#include "sheaf/settings.h"
#include "sheaf/trace.h"
#include "sheaf/version.h"
#include "sheaf/world.h"

#include "model/run/logits.h"
#include "run.h"
#include "sheaf/chat.h"
#include "sheaf/sampler.h"

enum { EXIT_BAD_USAGE = 2, EXIT_INTERRUPTED = 130, MIN_CANDIDATES = 64 };

static volatile sig_atomic_t interrupted;

/* The first signal asks for an end between two batches; one a second later or more ends the process
 * at once. A sooner signal is the same wish: timeout(1) and launchers signal the process and its
 * group, so that it arrives twice. */
static void on_signal(int sig) {
    static time_t first;
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    if (!interrupted) {
        first = now.tv_sec;
        interrupted = 1;
    } else if (now.tv_sec - first > 1) {
        signal(sig, SIG_DFL);
        raise(sig); /* delivered on return, when it is no longer blocked */
    }
}

static void catch_signals(void) {
    struct sigaction a = {.sa_handler = on_signal};
    sigemptyset(&a.sa_mask);
    sigaddset(&a.sa_mask, SIGINT);
    sigaddset(&a.sa_mask, SIGTERM);
    sigaction(SIGINT, &a, NULL);
    sigaction(SIGTERM, &a, NULL);
}

/* Everything that a run owns. */
struct run {
    const struct run_options *o;
    struct sheaf__session *session;
    struct sheaf_tokenizer *tok; /* rank 0 only, as are detok and logits_file */
    struct sheaf_detokenizer *detok;
    FILE *logits_file;
    struct sheaf_sampler *sampler;
    struct sheaf__logits *logits;
    int32_t *prompt, *ids;
    size_t n_prompt, cap_ids;
    float *row; /* [n_vocab] with --logits */
    char *text; /* with --json */
    struct run_result result;
};

static bool is_root(void) { return sheaf_world_rank() == 0; }

/* ---- shared with the other files ---- */

enum sheaf_status run_read_file(const char *path, char **text, size_t *len) {
    enum sheaf_status status = SHEAF_STATUS_SUCCESS;
    size_t cap = 1 << 16;
    FILE *f = fopen(path, "rbe");
    *len = 0;
    *text = f ? malloc(cap) : NULL;
    if (!f) return sheaf_set_error(SHEAF_STATUS_IO, "cannot open %s: %s", path, strerror(errno));
    while (*text) {
        *len += fread(*text + *len, 1, cap - *len, f);
        if (*len < cap) break;
        char *grown = cap < (size_t)1 << 27 ? realloc(*text, 2 * cap) : NULL;
        if (!grown) {
            free(*text);
            *text = NULL;
        } else {
            *text = grown;
            cap *= 2;
        }
    }
    if (!*text)
        status = sheaf_set_error(SHEAF_STATUS_ALLOC_FAILED, "%s is too large to read", path);
    else if (ferror(f))
        status = sheaf_set_error(SHEAF_STATUS_IO, "cannot read %s: %s", path, strerror(errno));
    fclose(f);
    return status;
}

enum sheaf_status run_share_ids(int32_t **ids, size_t *n) {
    if (sheaf_world_size() == 1) return SHEAF_STATUS_SUCCESS;
    uint64_t count = *n;
    enum sheaf_status status = sheaf_world_broadcast(&count, sizeof count, 0, "number of tokens");
    if (status) return status;
    if (!is_root()) {
        *n = (size_t)count;
        *ids = calloc(*n + 1, sizeof **ids);
        if (!*ids) status = sheaf_set_error(SHEAF_STATUS_ALLOC_FAILED, "no memory for tokens");
    }
    status = sheaf_world_agree(status, "receiving tokens");
    return status ? status : sheaf_world_broadcast(*ids, *n * sizeof **ids, 0, "tokens");
}

/* Between batches: has rank 0 been interrupted? The launcher signals all ranks, but not at once. */
static enum sheaf_status check_interrupt(void *user) {
    (void)user;
    unsigned char stop = (unsigned char)interrupted;
    enum sheaf_status status = SHEAF_STATUS_SUCCESS;
    if (sheaf_world_size() > 1)
        status = sheaf_world_broadcast(&stop, sizeof stop, 0, "interrupt flag");
    if (!status && stop) status = sheaf_set_error(SHEAF_STATUS_ABORTED, "interrupted");
    return status;
}

/* ---- prompt ---- */

static enum sheaf_status encode_prompt(struct run *r) {
    const struct run_options *o = r->o;
    char *text = NULL, *formatted = NULL;
    size_t len = 0;
    unsigned flags = SHEAF_TOKENIZE_ADD_SPECIAL;
    enum sheaf_status status = SHEAF_STATUS_SUCCESS;
    if (o->file)
        status = run_read_file(o->file, &text, &len);
    else
        len = strlen(o->prompt);
    if (!status && o->chat) {
        struct sheaf_chat chat;
        char *message = strndup(o->file ? text : o->prompt, len);
        struct sheaf_chat_message m[2] = {{"system", o->system}, {"user", message}};
        size_t skip = *o->system ? 0 : 1;
        status = message ? sheaf_chat_from_gguf(r->session->model->gguf, r->tok, &chat)
                         : sheaf_set_error(SHEAF_STATUS_ALLOC_FAILED, "no memory for the prompt");
        if (!status)
            status = sheaf_chat_format_messages(&chat, m + skip, 2 - skip, true, &formatted);
        free(message);
        if (!status) len = strlen(formatted);
        flags |= SHEAF_TOKENIZE_PARSE_SPECIAL;
    }
    if (!status)
        status = sheaf_tokenizer_encode(r->tok,
                                        formatted ? formatted
                                        : o->file ? text
                                                  : o->prompt,
                                        len, flags, &r->prompt, &r->n_prompt);
    if (!status && r->n_prompt == 0)
        status = sheaf_set_error(SHEAF_STATUS_INVALID, "the prompt is empty, and this model has no "
                                                       "start token: give some text");
    if (!status && r->n_prompt > (size_t)r->session->n_ctx)
        status = sheaf_set_error(SHEAF_STATUS_INVALID,
                                 "the prompt has %zu tokens, more than the context of %lld: give a "
                                 "larger --ctx or a shorter prompt",
                                 r->n_prompt, (long long)r->session->n_ctx);
    free(text);
    free(formatted);
    return status;
}

/* What only rank 0 has. */
static enum sheaf_status prepare_root(struct run *r) {
    if (!is_root()) return SHEAF_STATUS_SUCCESS;
    enum sheaf_status status = sheaf_tokenizer_new(r->session->model->gguf, &r->tok);
    if (status || r->o->perplexity) return status;
    if (sheaf_tokenizer_n_vocab(r->tok) > r->session->model->hp.n_vocab)
        return sheaf_set_error(
            SHEAF_STATUS_INVALID, "%s: the tokenizer has %d tokens, the embeddings only %lld",
            sheaf_gguf_path(r->session->model->gguf), sheaf_tokenizer_n_vocab(r->tok),
            (long long)r->session->model->hp.n_vocab);
    status = encode_prompt(r);
    if (!status) status = sheaf_detokenizer_new(r->tok, 0, &r->detok);
    if (!status && r->o->logits) {
        r->logits_file = fopen(r->o->logits, "wbe");
        if (!r->logits_file)
            status = sheaf_set_error(SHEAF_STATUS_IO, "cannot create %s: %s", r->o->logits,
                                     strerror(errno));
    }
    return status;
}

/* What every rank has. */
static enum sheaf_status prepare_all(struct run *r) {
    int64_t n_vocab = r->session->model->hp.n_vocab;
    enum sheaf_status status = sheaf_sampler_new(&r->o->sampler, (int32_t)n_vocab, &r->sampler);
    if (status) return status;
    size_t k = sheaf_sampler_n_candidates(r->sampler);
    status = sheaf__logits_new(n_vocab, k < MIN_CANDIDATES ? MIN_CANDIDATES : k, &r->logits);
    if (status) return status;
    r->cap_ids = (size_t)r->session->n_ctx + 1;
    r->ids = calloc(r->cap_ids, sizeof *r->ids);
    if (r->o->logits) r->row = malloc((size_t)n_vocab * sizeof *r->row);
    if (!r->ids || (r->o->logits && !r->row))
        return sheaf_set_error(SHEAF_STATUS_ALLOC_FAILED, "no memory to generate");
    return SHEAF_STATUS_SUCCESS;
}

/* ---- generation ---- */

static void show(const struct run *r, const char *text, size_t n) {
    if (r->o->json || !n) return;
    fwrite(text, 1, n, stdout);
    fflush(stdout);
}

static enum sheaf_status show_prompt(const struct run *r) {
    char *text = NULL;
    size_t len = 0;
    if (!is_root() || r->o->json || r->o->chat) return SHEAF_STATUS_SUCCESS;
    enum sheaf_status status =
        sheaf_tokenizer_decode(r->tok, r->prompt, r->n_prompt, SHEAF_DETOKENIZE_START, &text, &len);
    if (!status) show(r, text, len);
    free(text);
    return status;
}

static enum sheaf_status write_logits(struct run *r) {
    if (!r->o->logits) return SHEAF_STATUS_SUCCESS;
    size_t n = (size_t)r->session->model->hp.n_vocab;
    enum sheaf_status status = sheaf__evaluator_get_logits(r->session->context, r->row);
    if (status || !is_root() || fwrite(r->row, sizeof *r->row, n, r->logits_file) == n)
        return status;
    return sheaf_set_error(SHEAF_STATUS_IO, "cannot write %s: %s", r->o->logits, strerror(errno));
}

struct choice {
    int32_t id;
    int32_t stop; /* enum run_stop; LENGTH: go on */
};

/* The next token, the same on every rank. */
static enum sheaf_status choose(struct run *r, struct choice *c) {
    const struct sheaf_candidates *candidates = NULL;
    bool stop = interrupted;
    enum sheaf_status mine =
        sheaf__logits_select(r->logits, sheaf__evaluator_logits(r->session->context),
                             sheaf_sampler_needs_sum(r->sampler), &stop, &candidates);
    if (mine) return mine;
    *c = (struct choice){0, stop ? RUN_INTERRUPTED : RUN_LENGTH};
    if (is_root() && !stop) {
        mine = sheaf_sampler_sample(r->sampler, candidates, &c->id);
        if (mine)
            c->stop = RUN_FAILED;
        else if (!r->o->ignore_eos && sheaf_tokenizer_is_eog(r->tok, c->id))
            c->stop = RUN_EOG;
    }
    if (sheaf_world_size() == 1) return mine;
    enum sheaf_status status = sheaf_world_broadcast(c, sizeof *c, 0, "the next token");
    if (!status && c->stop == RUN_FAILED) status = sheaf_world_agree(mine, "sampling");
    return mine ? mine : status;
}

static enum sheaf_status accept(struct run *r, int32_t id) {
    r->ids[r->result.n_ids++] = id;
    if (!is_root()) return SHEAF_STATUS_SUCCESS;
    const char *text;
    size_t len;
    enum sheaf_status status = sheaf_detokenizer_push(r->detok, id, &text, &len);
    if (!status) show(r, text, len);
    return status;
}

static enum sheaf_status generate(struct run *r) {
    struct run_result *res = &r->result;
    struct sheaf__evaluator *ctx = r->session->context;
    size_t wanted = r->o->n_predict < 0 ? SIZE_MAX : (size_t)r->o->n_predict;
    double start = run_now();
    enum sheaf_status status =
        sheaf__evaluator_prompt(ctx, r->prompt, (int64_t)r->n_prompt, check_interrupt, NULL);
    res->prompt_s = run_now() - start;
    if (!status) status = write_logits(r);
    res->stop = RUN_LENGTH;
    while (!status && res->n_ids < wanted) {
        struct choice c;
        status = choose(r, &c);
        if (!status && c.stop) res->stop = (enum run_stop)c.stop;
        if (status || c.stop) break;
        status = accept(r, c.id);
        if (status || res->n_ids == wanted) break;
        if (sheaf__evaluator_n_past(ctx) == sheaf__evaluator_n_ctx(ctx)) {
            res->stop = RUN_CONTEXT;
            break;
        }
        start = run_now();
        status = sheaf__evaluator_eval(ctx, &c.id, 1, false);
        res->generate_s += run_now() - start;
        res->n_evals++;
        if (!status) status = write_logits(r);
    }
    return status;
}

static enum sheaf_status finish_text(struct run *r) {
    const char *rest;
    size_t len;
    if (!is_root()) return SHEAF_STATUS_SUCCESS;
    sheaf_detokenizer_flush(r->detok, &rest, &len);
    show(r, rest, len);
    if (!r->o->json) fputc('\n', stdout);
    fflush(stdout);
    if (r->logits_file) {
        FILE *f = r->logits_file;
        r->logits_file = NULL;
        if (fclose(f) != 0)
            return sheaf_set_error(SHEAF_STATUS_IO, "cannot write %s: %s", r->o->logits,
                                   strerror(errno));
    }
    if (!r->o->json) return SHEAF_STATUS_SUCCESS;
    return sheaf_tokenizer_decode(r->tok, r->ids, r->result.n_ids, 0, &r->text,
                                  &r->result.text_len);
}

static enum sheaf_status generate_text(struct run *r) {
    enum sheaf_status status = sheaf_world_agree(prepare_all(r), "preparing to generate");
    if (!status) status = run_share_ids(&r->prompt, &r->n_prompt);
    if (!status) status = show_prompt(r);
    if (!status) status = generate(r);
    if (status == SHEAF_STATUS_ABORTED && interrupted) {
        r->result.stop = RUN_INTERRUPTED;
        status = SHEAF_STATUS_SUCCESS;
    }
    if (status) {
        if (is_root() && !r->o->json) fputc('\n', stdout);
        return status;
    }
    status = sheaf_world_agree(finish_text(r), "writing results");
    r->result.prompt = r->prompt;
    r->result.n_prompt = r->n_prompt;
    r->result.ids = r->ids;
    r->result.text = r->text;
    return status;
}

/* ---- the whole run ---- */

static void announce(const struct run *r) {
    if (!r->o->verbose || !is_root()) return;
    char cut[512];
    const struct sheaf__session *s = r->session;
    for (int j = 0; j < s->n_members; j++)
        fprintf(stderr, "member %d: %s on %s, %s\n", j, sheaf__session_device_name(s->members[j]),
                sheaf_world_host_name(sheaf_world_device_rank(s->members[j])),
                sheaf_backend_dev_description(s->members[j]));
    if (s->meta)
        fprintf(stderr, "transport: %s\n",
                sheaf_comm_describe(sheaf_backend_meta_dev_comm(s->meta)));
    fprintf(stderr, "cut: %s\n", sheaf__policy_print(s->policy, cut, sizeof cut));
    fprintf(stderr, "tokenizer: %s, context %lld, batch %lld\n", sheaf_tokenizer_describe(r->tok),
            (long long)s->n_ctx, (long long)s->n_batch);
    if (s->meta && s->n_members > 1)
        fprintf(stderr, "collectives %s\n", sheaf_backend_meta_transport(s->backend));
}

static enum sheaf_status run(struct run *r) {
    const struct run_options *o = r->o;
    const struct sheaf__session_params params = {
        .size = sizeof params,
        .path = o->model,
        .devices = o->devices,
        .split = o->split,
        .single = o->single,
        .check = o->check,
        .overlap = o->overlap,
        .n_ctx = o->n_ctx,
        .n_batch = o->n_batch,
        .kv_type = o->kv_type,
        .progress = run_progress,
    };
    enum sheaf_status status = sheaf__session_new(&params, &r->session);
    if (!status) status = sheaf_world_agree(prepare_root(r), "preparing the prompt");
    if (status) return status;
    announce(r);
    if (o->trace && (status = sheaf_trace_start(0))) return status;
    status = o->perplexity
                 ? run_perplexity(o, r->session, r->tok, check_interrupt, NULL, &r->result)
                 : generate_text(r);
    if (!status && o->trace) status = sheaf_trace_write(o->trace);
    if (!status) status = run_report(o, r->session, &r->result);
    return status;
}

static void run_free(struct run *r) {
    if (r->logits_file) fclose(r->logits_file);
    sheaf_detokenizer_free(r->detok);
    sheaf_tokenizer_free(r->tok);
    sheaf_sampler_free(r->sampler);
    sheaf__logits_free(r->logits);
    sheaf__session_free(r->session);
    free(r->prompt);
    free(r->ids);
    free(r->row);
    free(r->text);
}

/* One message for a job: of the rank that noticed, or of the one that failed. */
static void complain(void) {
    char text[1024];
    snprintf(text, sizeof text, "%s", sheaf_last_error());
    /* first: peers that wait for this rank must not wait for their deadline */
    sheaf_world_abort(text);
    if (sheaf_world_reports_error()) fprintf(stderr, "sheaf-run: %s\n", text);
}

/* Devices of GPUs and others. Modules that cannot be loaded are left out, and reported once a host.
 */
static void load_modules(void) {
    if (sheaf_backend_load_all() && sheaf_world_local_rank() == 0)
        fprintf(stderr, "sheaf-run: %s\n", sheaf_last_error());
}

int main(int argc, char **argv) {
    struct run_options options;
    struct run r = {.o = &options};
    int code = EXIT_SUCCESS;
    enum sheaf_status status = sheaf_world_init(NULL);
    if (status) {
        complain();
        sheaf_world_finalize();
        return EXIT_FAILURE;
    }
    load_modules();
    status = run_options_parse(argc, argv, &options);
    if (status) {
        complain();
        code = EXIT_BAD_USAGE;
    } else if (options.help || options.version) {
        if (is_root() && options.help) fputs(run_usage, stdout);
        if (is_root() && options.version) printf("sheaf %s\n", sheaf_version());
    } else {
        catch_signals();
        if (options.wire) status = sheaf_setting_set("SHEAF_COMM_WIRE", options.wire);
        if (!status) status = run(&r);
        if (status == SHEAF_STATUS_ABORTED || r.result.stop == RUN_INTERRUPTED)
            code = EXIT_INTERRUPTED;
        else if (status)
            code = EXIT_FAILURE;
        if (status) complain();
    }
    run_free(&r);
    sheaf_world_finalize();
    return code || !sheaf_world_failed() ? code : EXIT_FAILURE;
}
