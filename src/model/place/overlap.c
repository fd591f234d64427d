/* The cost model of two chunks. A batch in one piece takes, a layer, both halves and two sums. In
 * two chunks, the halves of one chunk run beside the sums of the other, whichever is longer counts;
 * what a sum needs of a core is not hidden, and products of fewer columns may be slower a column.
 */
#include "model/place/overlap.h"

#include <stdlib.h>
#include <string.h>

#include "sheaf/alloc.h"
#include "sheaf/tensor.h"
#include "sheaf/world.h"

#include "base/clock.h"

enum {
    MIN_TOKENS = 32, /* in two chunks; fewer are not worth a look */
    ROWS = 256,      /* of the product that is timed */
    MAX_COLUMNS = 512,
    TIMES = 3,
};
/* Below, repeats of a measurement differ by more. */
static const double LEAST_GAIN = 0.1;
/* Of a core, for each byte of a sum: sockets, copies, additions, looks at the wire. Between network
 * namespaces a communication thread took 0.72 s for 340 MB (2026-11-21, one core a host). */
static const double BUSY_BYTE = 2e-9;

enum sheaf_status sheaf__overlap_parse(const char *text, enum sheaf_backend_meta_overlap *out) {
    static const char *const names[] = {
        [SHEAF_BACKEND_META_OVERLAP_CHEAPER] = "auto",
        [SHEAF_BACKEND_META_OVERLAP_NEVER] = "off",
        [SHEAF_BACKEND_META_OVERLAP_ALWAYS] = "on",
    };
    *out = SHEAF_BACKEND_META_OVERLAP_CHEAPER;
    for (int i = 0; text && i < 3; i++) {
        if (strcmp(text, names[i]) != 0) continue;
        *out = (enum sheaf_backend_meta_overlap)i;
        return SHEAF_STATUS_SUCCESS;
    }
    if (!text) return SHEAF_STATUS_SUCCESS;
    return sheaf_set_error(SHEAF_STATUS_INVALID, "--overlap is auto, on or off, not '%.60s'", text);
}

static double longer(double a, double b) { return a > b ? a : b; }

double sheaf__overlap_gain(const struct sheaf__overlap_times *whole,
                           const struct sheaf__overlap_times *half) {
    const double layers = (double)whole->n_layer, wire = half->sum - half->busy;
    const double one = layers * (whole->attention + whole->ffn + 2 * whole->sum);
    const double two = layers * (2 * longer(half->attention, wire) + 2 * longer(half->ffn, wire) +
                                 4 * half->busy) +
                       wire; /* nothing is left to do beside the last */
    return one > 0 ? 1 - two / one : 0;
}

/* ---- measured ---- */

/* Seconds for each element of a matrix like w, times n columns; the least of some. */
static enum sheaf_status time_product(sheaf_backend_dev_t dev, const struct sheaf_tensor *w,
                                      int64_t n, double *seconds) {
    sheaf_backend_t backend = NULL;
    sheaf_backend_buffer_t buffer = NULL;
    struct sheaf_cgraph *graph = NULL;
    struct sheaf_tensor *a, *x, *y;
    const int64_t columns = n < MAX_COLUMNS ? n : MAX_COLUMNS;
    struct sheaf_context *ctx = sheaf_init((struct sheaf_init_params){
        .mem_size = 8 * sheaf_tensor_overhead() + sheaf_graph_overhead_custom(8),
        .no_alloc = true});
    enum sheaf_status status =
        ctx ? sheaf_backend_dev_init(dev, NULL, &backend) : SHEAF_STATUS_ALLOC_FAILED;
    if (status) goto out;
    a = sheaf_new_tensor_2d(ctx, w->type, w->ne[0], ROWS);
    x = sheaf_new_tensor_2d(ctx, SHEAF_TYPE_F32, w->ne[0], columns);
    y = sheaf_mul_mat(ctx, a, x);
    graph = sheaf_new_graph_custom(ctx, 8);
    status = graph ? sheaf_build_forward_expand(graph, y) : SHEAF_STATUS_ALLOC_FAILED;
    if (!status) status = sheaf_backend_alloc_ctx_tensors(ctx, backend, &buffer);
    if (!status) status = sheaf_backend_buffer_clear(buffer, 0);
    if (!status) status = sheaf_backend_graph_compute(backend, graph); /* pages, caches */
    for (int i = 0; i < TIMES && !status; i++) {
        const double start = sheaf__seconds();
        status = sheaf_backend_graph_compute(backend, graph);
        const double t =
            (sheaf__seconds() - start) / (double)(w->ne[0] * ROWS) * (double)n / (double)columns;
        if (i == 0 || t < *seconds) *seconds = t;
    }
out:
    sheaf_backend_buffer_free(buffer);
    sheaf_backend_free(backend);
    sheaf_free(ctx);
    return status;
}

/* Elements of the member's matrices in both halves of a layer. */
static enum sheaf_status count_elements(const struct sheaf__weights *model,
                                        const struct sheaf__policy *policy, int member,
                                        double elements[2]) {
    elements[0] = elements[1] = 0;
    for (int w = 0; w < SHEAF__W_LAYER_COUNT; w++) {
        const struct sheaf_tensor *t = model->layers[0].w[w];
        size_t bytes;
        if (!t || t->ne[1] == 1) continue;
        enum sheaf_status status = sheaf__policy_tensor_bytes(policy, t, member, &bytes);
        if (status) return status;
        const bool ffn = sheaf__weight_infos[w].half == SHEAF__HALF_FFN;
        elements[ffn] += (double)sheaf_nelements(t) * (double)bytes / (double)sheaf_nbytes(t) *
                         sheaf__weights_read_share(model, (enum sheaf__weight)w);
    }
    return SHEAF_STATUS_SUCCESS;
}

/* Of this rank's slowest member: seconds of both halves of a layer, for n tokens. */
static enum sheaf_status time_halves(const struct sheaf__weights *model,
                                     const struct sheaf__policy *policy, sheaf_backend_dev_t meta,
                                     int64_t n, double halves[2]) {
    halves[0] = halves[1] = 0;
    for (size_t i = 0; i < sheaf_backend_meta_dev_n_local(meta); i++) {
        const size_t member = sheaf_backend_meta_dev_local_member(meta, i);
        double elements[2], seconds = 0;
        enum sheaf_status status = time_product(sheaf_backend_meta_dev_member(meta, member),
                                                sheaf__weights_typical(model), n, &seconds);
        if (!status) status = count_elements(model, policy, (int)member, elements);
        if (status) return status;
        for (int h = 0; h < 2; h++) halves[h] = longer(halves[h], elements[h] * seconds);
    }
    return SHEAF_STATUS_SUCCESS;
}

/* The slowest rank's, the same on all. */
static enum sheaf_status times_of(const struct sheaf__weights *model,
                                  const struct sheaf__policy *policy, sheaf_backend_dev_t meta,
                                  int64_t n, double (*all)[2], struct sheaf__overlap_times *out) {
    const size_t bytes = (size_t)(n * model->hp.n_embd) * sizeof(float);
    double mine[2];
    enum sheaf_status status =
        sheaf_world_agree(time_halves(model, policy, meta, n, mine), "measuring products");
    if (!status) status = sheaf_world_all_gather(mine, sizeof mine, all, "times of products");
    if (status) return status;
    *out = (struct sheaf__overlap_times){
        .n_layer = model->hp.n_layer,
        .sum = 1e-9 * (double)sheaf_comm_bound_ns(sheaf_backend_meta_dev_comm(meta),
                                                  SHEAF_COMM_ALL_REDUCE, bytes),
        .busy = BUSY_BYTE * (double)bytes,
    };
    out->busy = out->busy < out->sum ? out->busy : out->sum;
    for (int r = 0; r < sheaf_world_size(); r++) {
        out->attention = longer(out->attention, all[r][0]);
        out->ffn = longer(out->ffn, all[r][1]);
    }
    return status;
}

enum sheaf_status sheaf__overlap_choose(enum sheaf_backend_meta_overlap overlap,
                                        const struct sheaf__weights *model,
                                        const struct sheaf__policy *policy,
                                        sheaf_backend_dev_t meta, int64_t n_batch,
                                        int64_t *min_tokens) {
    struct sheaf_comm_level hosts;
    struct sheaf__overlap_times whole, half;
    *min_tokens = overlap == SHEAF_BACKEND_META_OVERLAP_ALWAYS ? MIN_TOKENS : 0;
    sheaf_comm_get_level(sheaf_backend_meta_dev_comm(meta), SHEAF_COMM_LEVEL_HOSTS, &hosts);
    if (overlap != SHEAF_BACKEND_META_OVERLAP_CHEAPER || hosts.link.n < 2 || n_batch < MIN_TOKENS)
        return SHEAF_STATUS_SUCCESS;
    double(*all)[2] = calloc((size_t)sheaf_world_size(), sizeof *all);
    enum sheaf_status status =
        all ? SHEAF_STATUS_SUCCESS
            : sheaf_set_error(SHEAF_STATUS_ALLOC_FAILED, "no memory to measure products");
    status = sheaf_world_agree(status, "measuring products");
    /* from large to small, while it pays; rank 0's word counts */
    if (!status) status = times_of(model, policy, meta, n_batch, all, &whole);
    for (int64_t n = n_batch; !status && n >= MIN_TOKENS; n /= 2, whole = half) {
        status = times_of(model, policy, meta, n / 2, all, &half);
        double gain = status ? 0 : sheaf__overlap_gain(&whole, &half);
        if (!status) status = sheaf_world_broadcast(&gain, sizeof gain, 0, "gain of two chunks");
        if (gain < LEAST_GAIN) break;
        *min_tokens = n;
    }
    free(all);
    return status;
}
