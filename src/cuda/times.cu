/* Times of launches ("times=1"): an event before and behind each, the host waiting for it, so that what is
 * alike (op, type, shape, how many nodes together) is added up. Logged when the backend ends. The
 * waits make everything slower, and each time has some microseconds of the events in it: it shows where
 * the time goes, not how much there is. */
#include <stdio.h>
#include <stdlib.h>

#include "base/array.h"
#include "base/text.h"
#include "cuda/device.h"
#include "sheaf/log.h"

struct entry {
    char what[80];
    uint64_t count;
    double ms, bytes;
};
struct sheaf__cuda_times {
    cudaEvent_t before, behind;
    struct entry *entries;
    size_t n, cap;
};

struct sheaf__cuda_times *sheaf__cuda_times_new(void) {
    struct sheaf__cuda_times *t = (struct sheaf__cuda_times *)calloc(1, sizeof *t);
    if (t && !cudaEventCreateWithFlags(&t->before, 0) && !cudaEventCreateWithFlags(&t->behind, 0))
        return t;
    if (t && t->before) cudaEventDestroy(t->before);
    free(t);
    return NULL;
}

void sheaf__cuda_times_begin(struct sheaf__cuda_times *t, cudaStream_t stream) {
    cudaEventRecord(t->before, stream);
}

static void describe(char *text, size_t size, const struct sheaf_tensor *node, int more) {
    const struct sheaf_tensor *a = node->src[0] ? node->src[0] : node;
    int n = snprintf(text, size, "%s %s [%lld, %lld, %lld] -> [%lld, %lld, %lld]",
                     sheaf_op_name(node->op), sheaf_type_name(a->type), (long long)a->ne[0],
                     (long long)a->ne[1], (long long)a->ne[2], (long long)node->ne[0],
                     (long long)node->ne[1], (long long)node->ne[2]);
    if (more && n > 0 && (size_t)n < size) snprintf(text + n, size - (size_t)n, " + %d", more);
}

/* What the nodes read and write, each tensor as often as it is named; rows by number count whole. */
static double bytes_of(const struct sheaf_tensor *node) {
    double bytes = (double)sheaf_nbytes(node);
    const bool rows = node->op == SHEAF_OP_GET_ROWS || node->op == SHEAF_OP_SET_ROWS;
    if (rows) return 2 * (double)sheaf_nbytes(node->op == SHEAF_OP_SET_ROWS ? node->src[1] : node);
    for (int i = 0; i < SHEAF_MAX_SRC; i++)
        if (node->src[i]) bytes += (double)sheaf_nbytes(node->src[i]);
    return bytes;
}

static struct entry *entry_of(struct sheaf__cuda_times *t, const char *what) {
    for (size_t i = 0; i < t->n; i++)
        if (!strcmp(t->entries[i].what, what)) return &t->entries[i];
    if (!sheaf__grow(&t->entries, &t->cap, t->n + 1, sizeof *t->entries)) return NULL;
    struct entry *e = &t->entries[t->n++];
    memset(e, 0, sizeof *e);
    snprintf(e->what, sizeof e->what, "%s", what);
    return e;
}

void sheaf__cuda_times_end(struct sheaf__cuda_times *t, cudaStream_t stream,
                           struct sheaf_tensor *const *nodes, int n) {
    char what[80];
    float ms = 0;
    int more = -1;
    double bytes = 0;
    cudaEventRecord(t->behind, stream);
    if (cudaEventSynchronize(t->behind) || cudaEventElapsedTime(&ms, t->before, t->behind)) {
        cudaGetLastError();
        return;
    }
    for (int i = 0; i < n; i++) {
        if (sheaf_is_empty(nodes[i]) || sheaf_op_get_cost(nodes[i]->op) == SHEAF_OP_COST_FREE)
            continue;
        bytes += bytes_of(nodes[i]);
        more++;
    }
    describe(what, sizeof what, nodes[0], more);
    struct entry *e = entry_of(t, what);
    if (!e) return;
    e->count++;
    e->ms += (double)ms;
    e->bytes += bytes;
}

static int by_time(const void *x, const void *y) {
    const double a = ((const struct entry *)x)->ms, b = ((const struct entry *)y)->ms;
    return a < b ? 1 : a > b ? -1 : 0;
}

/* In messages of as many lines as the log takes at once. */
static void say(const struct sheaf__cuda_times *t, const char *device, double all) {
    char lines[7000];
    struct sheaf__text text = {lines, sizeof lines, 0};
    sheaf__put(&text, "%s: microseconds of each kind of launch, and its bytes a second\n", device);
    sheaf__put(&text, "%9s %8s %7s %6s", "us each", "count", "GB/s", "share");
    for (size_t i = 0; i < t->n; i++) {
        const struct entry *e = &t->entries[i];
        if (text.n > sizeof lines - 200) {
            sheaf_log(SHEAF_LOG_DEBUG, "%s", lines);
            text.n = 0;
            sheaf__put(&text, "%s, continued", device);
        }
        sheaf__put(&text, "\n%9.2f %8llu %7.0f %5.1f%%  %s", 1e3 * e->ms / (double)e->count,
                   (unsigned long long)e->count, e->ms > 0 ? 1e-6 * e->bytes / e->ms : 0.0,
                   all > 0 ? 100 * e->ms / all : 0.0, e->what);
    }
    sheaf_log(SHEAF_LOG_DEBUG, "%s", lines);
}

void sheaf__cuda_times_free(struct sheaf__cuda_times *t, const char *device) {
    double all = 0;
    if (!t) return;
    if (t->n) qsort(t->entries, t->n, sizeof *t->entries, by_time);
    for (size_t i = 0; i < t->n; i++) all += t->entries[i].ms;
    if (t->n) say(t, device, all);
    cudaEventDestroy(t->before);
    cudaEventDestroy(t->behind);
    free(t->entries);
    free(t);
}
