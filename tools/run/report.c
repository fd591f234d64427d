/* What sheaf-run prints besides the text: the summary, JSON. Only rank 0 prints. */
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "sheaf/meta.h"
#include "sheaf/version.h"
#include "sheaf/world.h"

#include "common/json.h"
#include "common/straggler.h"
#include "run.h"

/* Of one rank, exchanged for the summary. */
struct numbers {
    uint64_t weight_bytes, share_bytes, bytes_read, graph_bytes;
    struct rank_times times;
};

/* The model and the numbers of all ranks, to be printed. */
struct report {
    const struct run_options *o;
    const struct sheaf_model *model;
    struct sheaf_model_info info;
    const struct run_result *r;
    struct numbers *all; /* [world size] */
};

static enum sheaf_status gather(struct report *p) {
    struct numbers mine = {.weight_bytes = p->info.weight_bytes,
                           .share_bytes = p->info.share_bytes,
                           .bytes_read = p->info.bytes_read};
    if (sheaf_model_meta(p->model)) {
        struct sheaf_backend_meta_stats stats = {.size = sizeof stats};
        sheaf_backend_meta_get_stats(sheaf_model_backend(p->model), &stats);
        mine.graph_bytes = stats.compute_bytes + stats.input_bytes;
        mine.times = rank_times_of(&stats);
    }
    p->all[0] = mine;
    return sheaf_world_size() == 1
               ? SHEAF_STATUS_SUCCESS
               : sheaf_world_all_gather(&mine, sizeof mine, p->all, "numbers for the summary");
}

static const char *s(size_t n) { return n == 1 ? "" : "s"; }

static double per_second(size_t n, double s) { return s > 0 ? (double)n / s : 0; }

/* Of a prompt that was evaluated; an interrupt before its first batch leaves none. */
static double prompt_seconds(const struct run_result *r) {
    return r->made.first_token_s > 0 || r->made.stop != SHEAF_MODEL_STOP_INTERRUPTED
               ? r->made.prompt_s
               : 0;
}

static double share(double part, double all) { return all > 0 ? part / all : 0; }

/* Of the time of the work, that in communication, and of that the time of waiting. */
static double communication_share(const struct rank_times *t) {
    return share(rank_times_communication(t), rank_times_busy(t));
}
static double wait_share(const struct rank_times *t) {
    return share(1e-9 * (double)t->stalled_ns, rank_times_communication(t));
}

static bool has_device(const struct report *p, int rank) {
    for (int j = 0; j < p->info.n_members; j++)
        if (sheaf_world_device_rank(sheaf_model_member(p->model, j)) == rank) return true;
    return false;
}

static struct straggler find_straggler(const struct report *p) {
    return straggler_find(&p->all[0].times, sizeof *p->all, sheaf_world_size());
}

/* "CPU0@1 CPU1@1" */
static void print_devices(FILE *f, const struct report *p, int rank, const char *quote,
                          const char *between) {
    bool first = true;
    for (int j = 0; j < p->info.n_members; j++) {
        const sheaf_backend_dev_t dev = sheaf_model_member(p->model, j);
        if (sheaf_world_device_rank(dev) != rank) continue;
        fprintf(f, "%s%s%s%s", first ? "" : between, quote, sheaf_model_device_name(dev), quote);
        first = false;
    }
}

/* Five and more members with the same share in a row are one, as sheaf_model_print_split has
 * counts. */
static void print_split(FILE *f, const struct report *p) {
    char cut[512];
    const int n = p->info.n_members;
    double sum = 0;
    for (int j = 0; j < n; j++) sum += sheaf_model_share(p->model, j);
    for (int j = 0, alike = 1; j < n; j += alike) {
        const double part = sheaf_model_share(p->model, j);
        for (alike = 1; j + alike < n && sheaf_model_share(p->model, j + alike) == part;) alike++;
        if (alike < 5) alike = 1;
        fprintf(f, "%s%.1f", j ? " : " : "", 100 * part / sum);
        if (alike > 1) fprintf(f, "(x%d)", alike);
    }
    fprintf(f, " %% (%s)", sheaf_model_print_split(p->model, cut, sizeof cut));
}

static void print_ids(FILE *f, const int32_t *ids, size_t n, const char *between) {
    for (size_t i = 0; i < n; i++) fprintf(f, "%s%" PRId32, i ? between : "", ids[i]);
}

static uint64_t most_read(const struct report *p) {
    uint64_t most = 0;
    for (int i = 0; i < sheaf_world_size(); i++)
        if (p->all[i].bytes_read > most) most = p->all[i].bytes_read;
    return most;
}

static void summary(const struct report *p) {
    const struct run_options *o = p->o;
    const struct run_result *r = p->r;
    const struct numbers *all = p->all;
    const bool meta = sheaf_model_meta(p->model) != NULL;
    /* in one piece, because a launcher mixes the streams of its ranks as they come */
    char *text = NULL;
    size_t len = 0;
    FILE *f = open_memstream(&text, &len);
    const double mib = 1024.0 * 1024;
    if (!f) return;
    fprintf(f, "\nmodel       %s (%s), %.1f MiB of weights\n", p->info.path, p->info.arch,
            (double)p->info.total_bytes / mib);
    fprintf(f, "job         %d rank%s on %d host%s, %d device%s%s\n", sheaf_world_size(),
            s((size_t)sheaf_world_size()), sheaf_world_n_hosts(), s((size_t)sheaf_world_n_hosts()),
            p->info.n_members, s((size_t)p->info.n_members),
            meta ? "" : " without the meta device");
    for (int i = 0; i < sheaf_world_size(); i++) {
        fprintf(f, "  rank %-4d %s, ", i, sheaf_world_host_name(i));
        if (has_device(p, i))
            print_devices(f, p, i, "", " ");
        else
            fputs("no device in use", f);
        fprintf(f, ": weights %.2f MiB (share %.2f MiB), read %.2f MiB, results %.2f MiB\n",
                (double)all[i].weight_bytes / mib, (double)all[i].share_bytes / mib,
                (double)all[i].bytes_read / mib, (double)all[i].graph_bytes / mib);
    }
    fprintf(f, "split       %s: ", o->split ? o->split : "even");
    print_split(f, p);
    fputc('\n', f);
    fprintf(f, "loading     %.2f s, %.2f GiB/s", r->load_s,
            r->load_s > 0 ? (double)most_read(p) / r->load_s / (1024 * mib) : 0.0);
    if (p->info.bytes_sent)
        fprintf(f, ", %.1f MiB sent to ranks without the model", (double)p->info.bytes_sent / mib);
    if (r->made.first_token_s > 0)
        fprintf(f, "; first token %.3f s after the prompt", r->made.first_token_s);
    fputc('\n', f);
    if (o->perplexity) {
        fprintf(f, "perplexity  %zu token%s, %.1f tokens/s\n", r->ppl_tokens, s(r->ppl_tokens),
                per_second(r->ppl_tokens, r->ppl_s));
    } else {
        fprintf(f, "prompt      %zu token%s, %.1f tokens/s%s%s%s\n", r->made.n_prompt,
                s(r->made.n_prompt), per_second(r->made.n_prompt, prompt_seconds(r)),
                r->chat ? ", as messages (" : "", r->chat ? r->chat : "",
                r->chat ? "; --no-chat: raw text)" : "");
        if (o->any_seed) fprintf(f, "sampling    --seed %" PRIu64 "\n", o->sampler.seed);
        fprintf(f, "generation  %zu token%s, %.1f tokens/s, ended by: %s\n", r->made.n_ids,
                s(r->made.n_ids), per_second(r->made.n_evals, r->made.generate_s),
                sheaf_model_stop_name(r->made.stop));
    }
    if (meta)
        fprintf(f,
                "time        %.1f %% in communication, of that %.1f %% waiting; %" PRIu64
                " collectives, %.2f MiB\n",
                100 * communication_share(&all[0].times), 100 * wait_share(&all[0].times),
                all[0].times.n_collectives, (double)all[0].times.collective_bytes / mib);
    const struct straggler slow = find_straggler(p);
    if (slow.rank >= 0)
        fprintf(f,
                "straggler   rank %d (%s): the others waited %.2f s for it, %.0f %% of the time\n",
                slow.rank, sheaf_world_host_name(slow.rank), slow.wait_s, 100 * slow.share);
    if (fclose(f) == 0) fwrite(text, 1, len, stderr);
    free(text);
}

static void json(const struct report *p) {
    const struct run_options *o = p->o;
    const struct run_result *r = p->r;
    const struct numbers *all = p->all;
    FILE *f = stdout;
    fprintf(f, "{\"model\": ");
    json_string(f, p->info.path, strlen(p->info.path));
    fprintf(f, ", \"architecture\": \"%s\"", p->info.arch);
    if (o->perplexity) {
        fprintf(f, ", \"perplexity_tokens\": %zu, \"nll\": ", r->ppl_tokens);
        json_number(f, r->nll, 9);
        fputs(", \"perplexity\": ", f);
        json_number(f, exp(r->nll), 6);
        fprintf(f, ", \"tokens_per_s\": %.3f", per_second(r->ppl_tokens, r->ppl_s));
    } else {
        fputs(", \"prompt_ids\": [", f);
        print_ids(f, r->prompt, r->n_prompt, ", ");
        fputs("], \"ids\": [", f);
        print_ids(f, r->ids, r->n_ids, ", ");
        fputs("], \"text\": ", f);
        json_string(f, r->text ? r->text : "", r->text_len);
        fprintf(f,
                ", \"stop\": \"%s\", \"prompt_tokens_per_s\": %.3f, "
                "\"generation_tokens_per_s\": %.3f",
                sheaf_model_stop_name(r->made.stop),
                per_second(r->made.n_prompt, prompt_seconds(r)),
                per_second(r->made.n_evals, r->made.generate_s));
        fprintf(f, ", \"first_token_s\": %.4f, \"seed\": %" PRIu64 ", \"chat\": ",
                r->made.first_token_s, o->sampler.seed);
        if (r->chat)
            fprintf(f, "\"%s\"", r->chat);
        else
            fputs("null", f);
    }
    fprintf(f, ", \"load_s\": %.4f, \"build\": \"%s\"", r->load_s, sheaf_build_info());
    fprintf(f,
            ", \"communication_share\": %.4f, \"collectives\": %" PRIu64
            ", \"collective_bytes\": %" PRIu64
            ", \"hosts\": %d, \"weight_bytes\": %zu, \"bytes_sent\": "
            "%" PRIu64,
            communication_share(&all[0].times), all[0].times.n_collectives,
            all[0].times.collective_bytes, sheaf_world_n_hosts(), p->info.total_bytes,
            p->info.bytes_sent);
    char cut[512];
    const struct straggler slow = find_straggler(p);
    if (slow.rank >= 0)
        fprintf(f, ", \"straggler\": {\"rank\": %d, \"wait_s\": %.4f, \"share\": %.4f}", slow.rank,
                slow.wait_s, slow.share);
    else
        fprintf(f, ", \"straggler\": null");
    fprintf(f, ", \"cut\": \"%s\", \"ranks\": [",
            sheaf_model_print_split(p->model, cut, sizeof cut));
    for (int i = 0; i < sheaf_world_size(); i++) {
        fprintf(f, "%s{\"rank\": %d, \"host\": ", i ? ", " : "", i);
        json_string(f, sheaf_world_host_name(i), strlen(sheaf_world_host_name(i)));
        fputs(", \"devices\": [", f);
        print_devices(f, p, i, "\"", ", ");
        fprintf(f,
                "], \"weight_bytes\": %" PRIu64 ", \"share_bytes\": %" PRIu64
                ", \"bytes_read\": %" PRIu64 ", \"compute_bytes\": %" PRIu64
                ", \"compute_s\": %.4f, \"collective_s\": %.4f, \"wait_s\": %.4f, "
                "\"stalled_s\": %.4f}",
                all[i].weight_bytes, all[i].share_bytes, all[i].bytes_read, all[i].graph_bytes,
                1e-9 * (double)all[i].times.compute_ns, 1e-9 * (double)all[i].times.collective_ns,
                1e-9 * (double)all[i].times.wait_ns, 1e-9 * (double)all[i].times.stalled_ns);
    }
    fputs("]}\n", f);
}

enum sheaf_status run_report(const struct run_options *o, const struct sheaf_model *model,
                             const struct run_result *r) {
    struct report p = {.o = o, .model = model, .info = {.size = sizeof p.info}, .r = r};
    enum sheaf_status status = sheaf_model_get_info(model, &p.info);
    p.all = calloc((size_t)sheaf_world_size(), sizeof *p.all);
    if (!p.all) status = sheaf_set_error(SHEAF_STATUS_ALLOC_FAILED, "no memory to report");
    if (!status) status = gather(&p);
    if (!status && sheaf_world_rank() == 0) {
        if (o->json) {
            json(&p);
        } else {
            if (o->perplexity)
                printf("perplexity_tokens %zu nll %.9f perplexity %.6f\n", r->ppl_tokens, r->nll,
                       exp(r->nll));
            if (o->ids && !o->perplexity) {
                fputs("prompt_ids: ", stdout);
                print_ids(stdout, r->prompt, r->n_prompt, " ");
                fputs("\nids: ", stdout);
                print_ids(stdout, r->ids, r->n_ids, " ");
                fputc('\n', stdout);
            }
            fflush(stdout);
            summary(&p);
        }
    }
    free(p.all);
    return status;
}
