/* sheaf-run: generates text or measures perplexity with a model spread over the devices of a job.
 *
 * SPMD: all ranks do the same; rank 0 reads text, chooses tokens and prints. A failure of any rank
 * ends all ranks with a non-zero exit code: failures of set-up are agreed on, later ones end the
 * waits of the others. Exit codes: 0 done, 1 failed, 2 bad command line, 130 interrupted. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/file.h"
#include "sheaf/meta.h"
#include "sheaf/trace.h"
#include "sheaf/world.h"

#include "common/devices.h"
#include "common/files.h"
#include "common/progress.h"
#include "run.h"

/* Everything that a run owns. */
struct run {
    struct run_options *o;
    struct sheaf_model *model;
    char *text; /* of the prompt; rank 0 only */
    size_t text_len;
    struct progress progress;
    struct run_result result;
};

static bool is_root(void) { return sheaf_world_rank() == 0; }

/* ---- before the model ---- */

/* A file that cannot be created is noticed before the work, not behind it. A file that is there
 * stays as it is; to open a pipe would tell its reader of an end. */
static enum sheaf_status check_output(const char *path) {
    struct stat there;
    const bool any = path && !stat(path, &there);
    if (!path || (any && S_ISFIFO(there.st_mode))) return SHEAF_STATUS_SUCCESS;
    FILE *f = fopen(path, "abe");
    if (!f)
        return sheaf_set_error(SHEAF_STATUS_IO, "cannot create %s: %s", path,
                               sheaf__errno_text(errno));
    fclose(f);
    if (!any) unlink(path);
    return SHEAF_STATUS_SUCCESS;
}

/* No output may be a file that is read, or another output. */
static enum sheaf_status check_files(const struct run_options *o) {
    const bool standard = o->file && !strcmp(o->file, "-");
    const struct tool_file files[] = {
        {"--model", o->model, false},
        {"--file", standard ? NULL : o->file, false},
        {"--perplexity", o->perplexity, false},
        {"--logits", o->logits, true},
        {"--trace", o->trace, true},
    };
    if (!is_root()) return SHEAF_STATUS_SUCCESS;
    enum sheaf_status status = tool_check_files(files, sizeof files / sizeof *files);
    if (!status) status = check_output(o->logits);
    return status ? status : check_output(o->trace);
}

static enum sheaf_status prepare(struct run *r) {
    struct run_options *o = r->o;
    unsigned char talk;
    o->asked_conversation = o->conversation;
    enum sheaf_status status = check_files(o);
    if (!status) status = run_read_prompt(o, &r->text, &r->text_len, &o->conversation);
    status = tool_await_input(status, "the prompt");
    if (o->any_seed && getrandom(&o->sampler.seed, sizeof o->sampler.seed, 0) < 0 && !status)
        status = sheaf_set_error(SHEAF_STATUS_FAILED, "no random seed: %s", strerror(errno));
    status = sheaf_world_agree(status, "preparing the prompt");
    talk = o->conversation;
    if (!status && sheaf_world_size() > 1)
        status = sheaf_world_broadcast(&talk, sizeof talk, 0, "whether it is a conversation");
    o->conversation = talk != 0;
    return status;
}

/* ---- the whole run ---- */

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

/* Fits sheaf_model_progress_fn. */
static bool on_progress(void *user, size_t done, size_t total) {
    return progress_show(user, done, total) && !tool_interrupted();
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
    params.n_ctx = o->n_ctx == RUN_CTX_DEFAULT ? 0 : o->n_ctx ? o->n_ctx : -1;
    params.n_batch = o->n_batch;
    params.kv_type = o->kv_type;
    params.progress = on_progress;
    params.user = &r->progress;
    const double start = sheaf__seconds();
    const enum sheaf_status status = sheaf_model_open(&params, &r->model);
    r->result.load_s = sheaf__seconds() - start;
    return status;
}

static enum sheaf_status work(struct run *r) {
    const struct run_options *o = r->o;
    if (o->embedding) return run_embedding(o, r->model, r->text, r->text_len);
    if (o->perplexity) return run_perplexity(o, r->model, r->text, r->text_len, &r->result);
    if (o->conversation) return run_talk(o, r->model, r->text, r->text_len, &r->result);
    return run_generate(o, r->model, r->text, r->text_len, NULL, 0, &r->result);
}

static enum sheaf_status run(struct run *r) {
    const struct run_options *o = r->o;
    struct sheaf_model_info info = {.size = sizeof info};
    enum sheaf_status status = prepare(r);
    if (!status) status = open_model(r);
    if (status) return status;
    status = sheaf_model_get_info(r->model, &info);
    if (!status) status = announce(r, &info);
    status = sheaf_world_agree(status, "describing the model");
    if (!status && o->trace) status = sheaf_trace_start(0);
    if (!status) status = work(r);
    if (!status && o->trace) status = sheaf_trace_write(o->trace);
    if (!status && !o->embedding) status = run_report(o, r->model, &r->result);
    return status;
}

static int end_of(const struct run *r, enum sheaf_status status) {
    if (tool_interrupted() || status == SHEAF_STATUS_ABORTED ||
        r->result.made.stop == SHEAF_MODEL_STOP_INTERRUPTED)
        return TOOL_INTERRUPTED;
    return status ? TOOL_FAILED : 0;
}

int main(int argc, char **argv) {
    struct run_options options;
    struct run r = {.o = &options};
    const enum sheaf_status parsed = run_options_parse(argc, argv, &options);
    if (!parsed && (options.help || options.version)) return tool_answer(&run_tool, options.help);
    int code = tool_start(&run_tool, parsed);
    if (code) return code;
    tool_catch_signals(true);
    /* the model's fingerprint, and the settings that --fast and the others set, are compared by the
     * library */
    enum sheaf_status status = tool_same_options(
        &run_tool, &options, "--model --threads --fast --wire --split-sums --verbose");
    if (!status) status = options.list_devices ? devices_print() : run(&r);
    code = end_of(&r, status);
    if (status) tool_complain(&run_tool);
    sheaf_model_free(r.model);
    free(r.text);
    run_result_free(&r.result);
    return tool_end(code);
}
