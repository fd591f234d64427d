/* sheaf-bench: how fast a model runs on the devices of a job, and where the time goes.
 *
 * SPMD like sheaf-run: all ranks do the same, rank 0 prints. Exit codes: 0 done, 1 failed, 2 bad
 * command line. */
#include <stdlib.h>
#include <string.h>

#include "sheaf/cpu.h"
#include "sheaf/meta.h"
#include "sheaf/world.h"

#include "base/clock.h"
#include "bench.h"

static enum sheaf_status no_memory(void) {
    return sheaf_set_error(SHEAF_STATUS_ALLOC_FAILED, "no memory to measure");
}

/* ---- what this rank has ---- */

static enum sheaf_status count_threads(const struct bench *b, int *threads) {
    for (int j = 0; j < b->info.n_members; j++) {
        const sheaf_backend_dev_t dev = sheaf_model_member(b->model, j);
        sheaf_backend_t backend;
        if (sheaf_world_device_rank(dev) != sheaf_world_rank() || !sheaf_backend_dev_is_cpu(dev))
            continue;
        enum sheaf_status status = sheaf_backend_dev_init(dev, NULL, &backend);
        if (status) return status;
        *threads += sheaf_backend_cpu_get_n_threads(backend);
        sheaf_backend_free(backend);
    }
    return SHEAF_STATUS_SUCCESS;
}

/* A group of the members, with measured links. */
static enum sheaf_status measure_links(struct bench *b) {
    const int n = b->info.n_members;
    int *rank = calloc((size_t)n, sizeof *rank);
    enum sheaf_status status = sheaf_world_agree(rank ? 0 : no_memory(), "measuring the links");
    for (int j = 0; !status && j < n; j++)
        rank[j] = sheaf_world_device_rank(sheaf_model_member(b->model, j));
    if (!status) status = sheaf_comm_new(rank, n, NULL, &b->links);
    if (!status) status = sheaf_comm_measure(b->links);
    free(rank);
    return status;
}

/* The bandwidth that was asked for, or of a rank that has CPU devices only; of others none is
 * known. */
static enum sheaf_status measure_machine(struct bench *b, struct bench_rank *mine) {
    bool cpus = true;
    bench_cpu_model(mine->cpu, sizeof mine->cpu);
    for (int j = 0; j < b->info.n_members; j++) {
        const sheaf_backend_dev_t dev = sheaf_model_member(b->model, j);
        cpus = cpus && (sheaf_world_device_rank(dev) != sheaf_world_rank() ||
                        sheaf_backend_dev_is_cpu(dev));
    }
    enum sheaf_status status = count_threads(b, &mine->threads);
    status = sheaf_world_agree(status, "counting threads");
    if (status) return status;
    mine->bandwidth = 1e9 * (double)b->o->bandwidth;
    if (b->o->bandwidth <= 0) {
        mine->peak_bytes = bench_peak_resident();
        status = bench_read_bandwidth(cpus ? mine->threads : 0, &mine->bandwidth);
        bench_forget_peak(); /* which has the buffers of that measurement in it */
    }
    return status || sheaf_world_size() == 1 ? status : measure_links(b);
}

static enum sheaf_status exchange(struct bench *b, const struct bench_rank *mine) {
    b->ranks[0] = *mine;
    if (sheaf_world_size() == 1) return SHEAF_STATUS_SUCCESS;
    return sheaf_world_all_gather(mine, sizeof *mine, b->ranks, "numbers of the ranks");
}

/* Shares of the time of this host's CPUs since `from`: stolen, and busy with what no rank of the
 * job did. Collective. */
static enum sheaf_status measure_load(const struct bench_load *from, struct bench_rank *mine) {
    const struct bench_load to = bench_load_now();
    const double own = to.own - from->own, all = (to.time - from->time) * to.cpus;
    double others = to.busy - from->busy;
    double *owns = calloc((size_t)sheaf_world_size(), sizeof *owns);
    enum sheaf_status status = sheaf_world_agree(owns ? 0 : no_memory(), "measuring the load");
    if (!status) owns[0] = own;
    if (!status && sheaf_world_size() > 1)
        status = sheaf_world_all_gather(&own, sizeof own, owns, "processor times");
    for (int r = 0; !status && r < sheaf_world_size(); r++) {
        if (sheaf_world_host_index(r) == sheaf_world_host_index(sheaf_world_rank()))
            others -= owns[r];
    }
    mine->steal = all > 0 ? (to.steal - from->steal) / all : 0;
    mine->foreign = all > 0 && others > 0 ? others / all : 0;
    free(owns);
    return status;
}

/* ---- all tests ---- */

/* A test, with how much others used the machine meanwhile; its row is printed. */
static enum sheaf_status run_test(struct bench *b, const struct bench_test *test) {
    struct bench_result *r = &b->results[b->n_results++];
    struct bench_rank load = {0};
    const struct bench_load from = bench_load_now();
    enum sheaf_status status = bench_test_run(b, test, r);
    if (!status) status = measure_load(&from, &load);
    r->steal = load.steal;
    r->foreign = load.foreign;
    if (!status && !sheaf_world_rank()) bench_report_test(b, r);
    return status;
}

static enum sheaf_status run_tests(struct bench *b) {
    const struct bench_options *o = b->o;
    const struct {
        const int64_t *list;
        int n;
        bool is_gen;
    } kinds[] = {{o->n_prompt, o->n_prompts, false}, {o->n_gen, o->n_gens, true}};
    enum sheaf_status status = SHEAF_STATUS_SUCCESS;
    for (int d = 0; d < o->n_depths; d++)
        for (int k = 0; k < 2; k++)
            for (int i = 0; i < kinds[k].n; i++)
                for (int s = 0; s < (kinds[k].is_gen ? o->n_sequences : 1) && !status; s++) {
                    const struct bench_test test = {kinds[k].is_gen, kinds[k].list[i], o->depth[d],
                                                    kinds[k].is_gen ? o->sequences[s] : 1};
                    if (test.n) status = run_test(b, &test);
                }
    return status;
}

static enum sheaf_status open_model(struct bench *b) {
    const struct bench_options *o = b->o;
    int64_t most = 0, depth = 0, sequences = 1;
    for (int i = 0; i < o->n_prompts; i++) most = o->n_prompt[i] > most ? o->n_prompt[i] : most;
    for (int i = 0; i < o->n_gens; i++) most = o->n_gen[i] > most ? o->n_gen[i] : most;
    for (int i = 0; i < o->n_depths; i++) depth = o->depth[i] > depth ? o->depth[i] : depth;
    for (int i = 0; i < o->n_sequences; i++)
        sequences = o->sequences[i] > sequences ? o->sequences[i] : sequences;
    struct sheaf_model_params params = sheaf_model_default_params();
    params.path = o->models[0];
    params.devices = o->devices;
    params.split = o->split;
    params.single = o->single;
    params.overlap = o->overlap;
    params.n_ctx = (most + depth) * sequences;
    params.n_batch = o->n_batch;
    params.kv_type = o->kv_type;
    params.progress = progress_show;
    params.user = &b->progress;
    const double start = sheaf__seconds();
    const enum sheaf_status status = sheaf_model_open(&params, &b->model);
    b->load_s = sheaf__seconds() - start;
    b->info.size = sizeof b->info;
    return status ? status : sheaf_model_get_info(b->model, &b->info);
}

static enum sheaf_status bench(struct bench *b) {
    struct bench_rank mine = {0};
    enum sheaf_status status = open_model(b);
    if (status) return status;
    b->ranks = calloc((size_t)sheaf_world_size(), sizeof *b->ranks);
    b->results =
        calloc((size_t)(b->o->n_depths * (b->o->n_prompts + b->o->n_gens * b->o->n_sequences)),
               sizeof *b->results);
    status = sheaf_world_agree(b->ranks && b->results ? 0 : no_memory(), "preparing to measure");
    if (!status) status = measure_machine(b, &mine);
    if (!status) status = exchange(b, &mine); /* the bounds need the bandwidths */
    if (!status && !sheaf_world_rank()) bench_report_begin(b);
    const struct bench_load from = bench_load_now();
    if (!status) status = run_tests(b);
    if (!status) status = measure_load(&from, &mine);
    if (status) return status;
    mine.weight_bytes = b->info.weight_bytes;
    const size_t peak = bench_peak_resident();
    if (peak > mine.peak_bytes) mine.peak_bytes = peak;
    if (sheaf_model_meta(b->model)) {
        struct sheaf_backend_meta_stats stats = {.size = sizeof stats};
        sheaf_backend_meta_get_stats(sheaf_model_backend(b->model), &stats);
        mine.compute_bytes = stats.compute_bytes + stats.input_bytes;
    }
    status = exchange(b, &mine);
    if (!status && !sheaf_world_rank()) bench_report_end(b);
    return status;
}

static void bench_free(struct bench *b) {
    for (int i = 0; i < b->n_results; i++) {
        free(b->results[i].ranks);
        free(b->results[i].ids);
    }
    free(b->results);
    free(b->ranks);
    sheaf_comm_free(b->links);
    sheaf_model_free(b->model);
}

int main(int argc, char **argv) {
    struct bench_options options;
    struct bench b = {.o = &options};
    const enum sheaf_status parsed = bench_options_parse(argc, argv, &options);
    if (!parsed && (options.help || options.version)) return tool_answer(&bench_tool, options.help);
    int code = tool_start(&bench_tool, parsed);
    if (code) return code;
    if (tool_same_options(&bench_tool, &options,
                          "--model --threads --fast --split-sums --bandwidth") ||
        bench(&b)) {
        code = TOOL_FAILED;
        tool_complain(&bench_tool);
    }
    bench_free(&b);
    return tool_end(code);
}
