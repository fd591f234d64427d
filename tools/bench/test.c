/* One test, as llama-bench does it: the cache is emptied, filled to the depth, then a prompt of
 * random tokens is evaluated, or tokens are generated one by one. Ours are really generated
 * (greedily, from the token that begins a text), so that their checksum says whether two machines
 * or splits compute the same; choosing is part of the time. */
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/hash.h"
#include "sheaf/gguf.h"
#include "sheaf/meta.h"
#include "sheaf/world.h"

#include "bench.h"

enum { CANDIDATES = 1 };

struct work {
    const struct bench *b;
    const struct bench_test *test;
    struct sheaf_model *model;
    int32_t *prompt; /* [depth + n] random ids */
    int32_t *ids;    /* [n][sequences] generated */
    int32_t first;   /* id that begins a text */
};

static void random_ids(int32_t *ids, int64_t n, int64_t n_vocab) {
    uint64_t state = 1;
    for (int64_t i = 0; i < n; i++) ids[i] = (int32_t)(sheaf__random(&state) % (uint64_t)n_vocab);
}

/* ---- counters ---- */

/* times: since the last reset */
static struct bench_counts counts_now(const struct sheaf_model *model) {
    struct bench_counts c = {0};
    struct sheaf_backend_meta_stats stats = {.size = sizeof stats};
    const sheaf_backend_dev_t meta = sheaf_model_meta(model);
    if (!meta) return c;
    sheaf_backend_meta_get_stats(sheaf_model_backend(model), &stats);
    c.times = rank_times_of(&stats);
    const struct sheaf_comm *comm = sheaf_backend_meta_dev_comm(meta);
    if (comm && sheaf_comm_n_local(comm) > 0)
        for (int k = 0; k < SHEAF_COMM_KIND_COUNT; k++)
            sheaf_comm_get_stats(comm, sheaf_comm_local_member(comm, 0), (enum sheaf_comm_kind)k,
                                 &c.kinds[k]);
    return c;
}

/* sum += after - before, whose times are those since then */
static void add_counts(struct bench_counts *sum, const struct bench_counts *before,
                       const struct bench_counts *after) {
    rank_times_add(&sum->times, &after->times);
    for (int k = 0; k < SHEAF_COMM_KIND_COUNT; k++) {
        sum->kinds[k].count += after->kinds[k].count - before->kinds[k].count;
        sum->kinds[k].bytes += after->kinds[k].bytes - before->kinds[k].bytes;
        sum->kinds[k].time_ns += after->kinds[k].time_ns - before->kinds[k].time_ns;
        sum->kinds[k].wait_ns += after->kinds[k].wait_ns - before->kinds[k].wait_ns;
    }
}

/* ---- the bound ---- */

/* Seconds of a token if every rank only read, at its bandwidth, and the collectives cost what they
 * cost alone. 0 if a part is unknown. */
static enum sheaf_status find_bound(const struct bench *b, struct bench_result *r) {
    const struct rank_times *c = &r->ranks[0].times;
    const double n_seq = (double)r->test.sequences;
    const double tokens = (double)bench_tokens(&r->test) * r->n_repeats;
    double slowest = 0;
    if (!r->test.is_gen) return SHEAF_STATUS_SUCCESS;
    for (int rank = 0; rank < sheaf_world_size(); rank++) {
        double bytes = 0;
        for (int j = 0; j < b->info.n_members; j++) {
            double part, weights;
            if (sheaf_world_device_rank(sheaf_model_member(b->model, j)) != rank) continue;
            enum sheaf_status status = sheaf_model_token_bytes(
                b->model, j, (double)r->test.depth + 0.5 * (double)r->test.n, &part);
            if (!status) status = sheaf_model_token_bytes(b->model, j, 0, &weights);
            if (status) return status;
            bytes += weights / n_seq + (part - weights); /* weights once for all sequences */
        }
        if (bytes > 0 && !(b->ranks[rank].bandwidth > 0)) return SHEAF_STATUS_SUCCESS;
        if (bytes > 0 && bytes / b->ranks[rank].bandwidth > slowest)
            slowest = bytes / b->ranks[rank].bandwidth;
    }
    if (c->n_collectives && !b->links) return SHEAF_STATUS_SUCCESS;
    r->bound_s = slowest;
    if (c->n_collectives)
        r->bound_s += 1e-9 * (double)c->n_collectives / tokens *
                      (double)sheaf_comm_bound_ns(b->links, SHEAF_COMM_ALL_REDUCE,
                                                  c->collective_bytes / c->n_collectives);
    return SHEAF_STATUS_SUCCESS;
}

/* ---- running ---- */

/* Sequences differ from their first token on. */
static enum sheaf_status generate(struct work *w, int64_t n) {
    enum sheaf_status status = SHEAF_STATUS_SUCCESS;
    const int64_t n_seq = w->test->sequences;
    int32_t id[SHEAF_MODEL_MAX_SEQUENCES], seq[SHEAF_MODEL_MAX_SEQUENCES];
    bool logits[SHEAF_MODEL_MAX_SEQUENCES];
    for (int64_t s = 0; s < n_seq; s++) {
        id[s] = (int32_t)((w->first + s) % w->b->info.n_vocab);
        seq[s] = (int32_t)s;
        logits[s] = true;
    }
    const struct sheaf_model_batch batch = {
        .size = sizeof batch, .n_tokens = n_seq, .token = id, .seq = seq, .logits = logits};
    for (int64_t i = 0; i < n && !status; i++) {
        status = sheaf_model_eval(w->model, &batch);
        for (int64_t s = 0; s < n_seq && !status; s++) {
            const struct sheaf_candidates *best = NULL;
            bool stop = false;
            status = sheaf_model_get_candidates(w->model, s, CANDIDATES, false, &stop, &best);
            if (!status) w->ids[i * n_seq + s] = id[s] = best->data[0].id;
        }
    }
    return status;
}

/* n tokens after the depth; what they took is added to *sum. */
static enum sheaf_status once(struct work *w, int64_t n, struct bench_counts *sum,
                              double *seconds) {
    const int64_t depth = w->test->depth;
    enum sheaf_status status = SHEAF_STATUS_SUCCESS;
    sheaf_model_cache_clear(w->model);
    for (int s = 0; s < w->test->sequences && depth && !status; s++)
        status = sheaf_model_prompt(w->model, s, w->prompt, depth, NULL, NULL);
    if (!status) status = sheaf_world_barrier("start of a test");
    if (sheaf_model_meta(w->b->model))
        sheaf_backend_meta_reset_stats(sheaf_model_backend(w->b->model));
    const struct bench_counts before = counts_now(w->b->model);
    const double start = sheaf__seconds();
    if (!status)
        status = w->test->is_gen
                     ? generate(w, n)
                     : sheaf_model_prompt(w->model, 0, w->prompt + depth, n, NULL, NULL);
    *seconds = sheaf__seconds() - start;
    const struct bench_counts after = counts_now(w->b->model);
    sum->wall_s += *seconds;
    add_counts(sum, &before, &after);
    return status;
}

static enum sheaf_status measure(struct work *w, struct bench_result *out,
                                 struct bench_counts *mine) {
    const struct bench *b = w->b;
    const size_t size = (size_t)bench_tokens(w->test) * sizeof(int32_t);
    struct bench_counts untimed = {0};
    char sha[BENCH_SHA_TEXT];
    double seconds;
    enum sheaf_status status = SHEAF_STATUS_SUCCESS;
    if (!b->o->no_warmup) status = once(w, w->test->is_gen ? 1 : w->test->n, &untimed, &seconds);
    out->same_ids = true;
    for (int i = 0; i < (int)b->o->repeats && !status; i++) {
        status = once(w, w->test->n, mine, &seconds);
        out->seconds[out->n_repeats++] = seconds;
        if (status || !w->test->is_gen) continue;
        bench_sha256(w->ids, size, sha);
        if (i && strcmp(sha, out->sha256) != 0) out->same_ids = false;
        memcpy(out->sha256, sha, sizeof sha);
    }
    return status;
}

static int32_t first_id(const struct sheaf_gguf *gguf, int64_t n_vocab) {
    uint64_t id;
    if (sheaf_gguf_find_key(gguf, "tokenizer.ggml.bos_token_id") < 0 ||
        sheaf_gguf_get_u64(gguf, "tokenizer.ggml.bos_token_id", &id) || id >= (uint64_t)n_vocab)
        return 0;
    return (int32_t)id;
}

enum sheaf_status bench_test_run(const struct bench *b, const struct bench_test *test,
                                 struct bench_result *out) {
    const int64_t n_vocab = b->info.n_vocab;
    const size_t n_ids = (size_t)(test->depth + test->n);
    struct bench_counts mine = {0};
    struct work w = {.b = b,
                     .test = test,
                     .model = b->model,
                     .first = first_id(sheaf_model_gguf(b->model), n_vocab),
                     .prompt = calloc(n_ids, sizeof *w.prompt)};
    out->test = *test;
    out->ids = w.ids = calloc((size_t)bench_tokens(test), sizeof *w.ids);
    out->ranks = calloc((size_t)sheaf_world_size(), sizeof *out->ranks);
    enum sheaf_status status = SHEAF_STATUS_SUCCESS;
    if (!w.prompt || !w.ids || !out->ranks)
        status = sheaf_set_error(SHEAF_STATUS_ALLOC_FAILED, "no memory for a test");
    status = sheaf_world_agree(status, "preparing a test");
    if (status) goto out;
    random_ids(w.prompt, (int64_t)n_ids, n_vocab);
    status = measure(&w, out, &mine);
    if (!status) {
        out->ranks[0] = mine;
        if (sheaf_world_size() > 1)
            status = sheaf_world_all_gather(&mine, sizeof mine, out->ranks, "times of a test");
    }
    if (!status) status = find_bound(b, out);
out:
    free(w.prompt);
    return status;
}
