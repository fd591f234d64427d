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
#include "sheaf/trace.h"
#include "sheaf/version.h"
#include "sheaf/world.h"

#include "common/output.h"
#include "run.h"

enum { EXIT_BAD_USAGE = 2, EXIT_INTERRUPTED = 130 };

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
    struct sheaf_model *model;
    int64_t n_vocab;
    char *text; /* of the prompt; rank 0 only, as is logits_file */
    size_t text_len;
    FILE *logits_file;
    int32_t *prompt, *ids;
    size_t n_ids, cap_ids;
    float *row;    /* [n_vocab] with --logits */
    char *written; /* the generated text, with --json */
    struct run_result result;
};

static bool is_root(void) { return sheaf_world_rank() == 0; }

/* ---- shared with the other files ---- */

enum sheaf_status run_read_file(const char *path, char **text, size_t *len) {
    enum sheaf_status status = SHEAF_STATUS_SUCCESS;
    size_t cap = 1 << 16;
    const bool standard = strcmp(path, "-") == 0;
    FILE *f = standard ? stdin : fopen(path, "rbe");
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
    if (*text) (*text)[*len] = 0;
    if (!*text)
        status = sheaf_set_error(SHEAF_STATUS_ALLOC_FAILED, "%s is too large to read", path);
    else if (ferror(f))
        status = sheaf_set_error(SHEAF_STATUS_IO, "cannot read %s: %s", path, strerror(errno));
    if (!standard) fclose(f);
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

/* ---- generation ---- */

static enum sheaf_status no_memory(void) {
    return sheaf_set_error(SHEAF_STATUS_ALLOC_FAILED, "no memory to generate");
}

/* What only rank 0 has. */
static enum sheaf_status prepare_root(struct run *r) {
    const struct run_options *o = r->o;
    enum sheaf_status status = SHEAF_STATUS_SUCCESS;
    if (!is_root() || o->perplexity) return SHEAF_STATUS_SUCCESS;
    if (o->file) status = run_read_file(o->file, &r->text, &r->text_len);
    if (!status && o->logits) {
        r->logits_file = fopen(o->logits, "wbe");
        if (!r->logits_file)
            status = sheaf_set_error(SHEAF_STATUS_IO, "cannot create %s: %s", o->logits,
                                     strerror(errno));
    }
    return status;
}

static void show(const struct run *r, const char *text, size_t n) {
    if (r->o->json || !n) return;
    fwrite(text, 1, n, stdout);
    fflush(stdout);
}

/* ids as text. */
static enum sheaf_status decode(const struct run *r, const int32_t *ids, size_t n, unsigned flags,
                                char **text, size_t *len) {
    const struct sheaf_tokenizer *tok;
    const enum sheaf_status status = sheaf_model_tokenizer(r->model, &tok);
    return status ? status : sheaf_tokenizer_decode(tok, ids, n, flags, text, len);
}

static enum sheaf_status show_prompt(const struct run *r, const struct sheaf_model_event *e) {
    char *text = NULL;
    size_t len = 0;
    if (!is_root() || r->o->json || r->o->chat) return SHEAF_STATUS_SUCCESS;
    enum sheaf_status status = decode(r, e->ids, e->n, SHEAF_DETOKENIZE_START, &text, &len);
    if (!status) show(r, text, len);
    free(text);
    return status;
}

static enum sheaf_status keep_prompt(struct run *r, const struct sheaf_model_event *e) {
    r->prompt = malloc((e->n + 1) * sizeof *r->prompt);
    if (!r->prompt) return no_memory();
    memcpy(r->prompt, e->ids, e->n * sizeof *r->prompt);
    return show_prompt(r, e);
}

static enum sheaf_status keep_token(struct run *r, const struct sheaf_model_event *e) {
    if (r->n_ids == r->cap_ids) {
        const size_t cap = r->cap_ids ? 2 * r->cap_ids : 256;
        int32_t *grown = realloc(r->ids, cap * sizeof *grown);
        if (!grown) return no_memory();
        r->ids = grown;
        r->cap_ids = cap;
    }
    r->ids[r->n_ids++] = e->ids[0];
    show(r, e->text, e->len);
    return SHEAF_STATUS_SUCCESS;
}

static enum sheaf_status write_logits(struct run *r) {
    if (!r->o->logits) return SHEAF_STATUS_SUCCESS;
    const size_t n = (size_t)r->n_vocab;
    if (!r->row) r->row = malloc(n * sizeof *r->row);
    if (!r->row) return no_memory();
    enum sheaf_status status = sheaf_model_get_logits(r->model, r->row);
    if (status || !is_root() || fwrite(r->row, sizeof *r->row, n, r->logits_file) == n)
        return status;
    return sheaf_set_error(SHEAF_STATUS_IO, "cannot write %s: %s", r->o->logits, strerror(errno));
}

static enum sheaf_status finish_text(struct run *r, const struct sheaf_model_event *e) {
    if (!is_root()) return SHEAF_STATUS_SUCCESS;
    show(r, e->text, e->len);
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
    return decode(r, r->ids, r->n_ids, 0, &r->written, &r->result.text_len);
}

/* Fits sheaf_model_event_fn. */
static enum sheaf_status on_event(void *user, const struct sheaf_model_event *e) {
    struct run *r = user;
    enum sheaf_status status = SHEAF_STATUS_SUCCESS;
    if (e->kind == SHEAF_MODEL_EVENT_PROMPT) status = keep_prompt(r, e);
    if (e->kind == SHEAF_MODEL_EVENT_EVALUATED) status = write_logits(r);
    if (e->kind == SHEAF_MODEL_EVENT_TOKEN) status = keep_token(r, e);
    if (e->kind == SHEAF_MODEL_EVENT_END) return finish_text(r, e);
    return status || !interrupted ? status : SHEAF_STATUS_ABORTED;
}

/* An instruct model often ends a text that is no message at once. */
static void advise(const struct run *r) {
    const struct sheaf_tokenizer *tok;
    struct sheaf_chat chat;
    const struct sheaf_model_result *made = &r->result.made;
    if (!is_root() || r->o->chat || made->n_ids || made->stop != SHEAF_MODEL_STOP_EOG) return;
    if (sheaf_model_tokenizer(r->model, &tok) ||
        sheaf_chat_from_gguf(sheaf_model_gguf(r->model), tok, &chat))
        return;
    fprintf(stderr,
            "sheaf-run: the answer is empty. This model has a chat template (%s): --chat makes the "
            "prompt a message\n",
            sheaf_chat_name(chat.format));
}

static enum sheaf_status generate_text(struct run *r) {
    const struct run_options *o = r->o;
    struct sheaf_model_generate_params params = sheaf_model_generate_default_params();
    params.n_predict = o->n_predict;
    params.sampler = o->sampler;
    params.chat = o->chat;
    params.system = o->system;
    params.ignore_eos = o->ignore_eos;
    params.prompt_len = r->text_len;
    r->result.made.size = sizeof r->result.made;
    enum sheaf_status status = sheaf_model_generate(r->model, r->text ? r->text : o->prompt,
                                                    &params, on_event, r, &r->result.made);
    if (status) {
        if (is_root() && r->prompt && !o->json) fputc('\n', stdout);
        return status;
    }
    r->result.prompt = r->prompt;
    r->result.ids = r->ids;
    r->result.text = r->written;
    advise(r);
    return SHEAF_STATUS_SUCCESS;
}

/* ---- the whole run ---- */

static void warn(const struct sheaf_model_info *info) {
    if (is_root() && info->n_ctx > info->n_ctx_train)
        fprintf(stderr,
                "sheaf-run: the context has %lld tokens, but the model was trained on %lld: what "
                "it writes behind those may make no sense\n",
                (long long)info->n_ctx, (long long)info->n_ctx_train);
}

static enum sheaf_status announce(const struct run *r, const struct sheaf_model_info *info) {
    const struct sheaf_tokenizer *tok;
    if (!r->o->verbose || !is_root()) return SHEAF_STATUS_SUCCESS;
    const enum sheaf_status status = sheaf_model_tokenizer(r->model, &tok);
    if (status) return status;
    char cut[512];
    const sheaf_backend_dev_t meta = sheaf_model_meta(r->model);
    for (int j = 0; j < info->n_members; j++) {
        const sheaf_backend_dev_t dev = sheaf_model_member(r->model, j);
        fprintf(stderr, "member %d: %s on %s, %s\n", j, sheaf_model_device_name(dev),
                sheaf_world_host_name(sheaf_world_device_rank(dev)),
                sheaf_backend_dev_description(dev));
    }
    if (meta)
        fprintf(stderr, "transport: %s\n", sheaf_comm_describe(sheaf_backend_meta_dev_comm(meta)));
    fprintf(stderr, "cut: %s\n", sheaf_model_print_split(r->model, cut, sizeof cut));
    fprintf(stderr, "tokenizer: %s, context %lld, batch %lld\n", sheaf_tokenizer_describe(tok),
            (long long)info->n_ctx, (long long)info->n_batch);
    if (meta && info->n_members > 1)
        fprintf(stderr, "collectives %s\n",
                sheaf_backend_meta_transport(sheaf_model_backend(r->model)));
    return SHEAF_STATUS_SUCCESS;
}

static enum sheaf_status open_model(struct run *r) {
    const struct run_options *o = r->o;
    struct sheaf_model_params params = sheaf_model_default_params();
    params.path = o->model;
    params.devices = o->devices;
    params.split = o->split;
    params.single = o->single;
    params.check = o->check;
    params.overlap = o->overlap;
    params.experts = o->experts;
    params.wire = o->wire;
    params.n_ctx = o->n_ctx;
    params.n_batch = o->n_batch;
    params.kv_type = o->kv_type;
    params.progress = run_progress;
    return sheaf_model_open(&params, &r->model);
}

static enum sheaf_status run(struct run *r) {
    const struct run_options *o = r->o;
    struct sheaf_model_info info = {.size = sizeof info};
    enum sheaf_status status = open_model(r);
    if (status) return status;
    status = sheaf_model_get_info(r->model, &info);
    r->n_vocab = info.n_vocab;
    if (!status) status = prepare_root(r);
    if (!status) status = announce(r, &info);
    status = sheaf_world_agree(status, "preparing the prompt");
    if (status) return status;
    warn(&info);
    if (o->trace && (status = sheaf_trace_start(0))) return status;
    if (o->embedding) return run_embedding(o, r->model, r->text, r->text_len);
    status = o->perplexity ? run_perplexity(o, r->model, check_interrupt, NULL, &r->result)
                           : generate_text(r);
    if (!status && o->trace) status = sheaf_trace_write(o->trace);
    if (!status) status = run_report(o, r->model, &r->result);
    return status;
}

static void run_free(struct run *r) {
    if (r->logits_file) fclose(r->logits_file);
    sheaf_model_free(r->model);
    free(r->text);
    free(r->prompt);
    free(r->ids);
    free(r->row);
    free(r->written);
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
    enum sheaf_status status = sheaf_world_init(
        &(struct sheaf_world_params){.size = sizeof(struct sheaf_world_params), .may_exit = true});
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
        status = run(&r);
        if (status == SHEAF_STATUS_ABORTED || r.result.made.stop == SHEAF_MODEL_STOP_INTERRUPTED)
            code = EXIT_INTERRUPTED;
        else if (status)
            code = EXIT_FAILURE;
        if (status) complain();
    }
    run_free(&r);
    sheaf_world_finalize();
    return output_end(code || !sheaf_world_failed() ? code : EXIT_FAILURE);
}
