/* Computes (a + b) * 2.5 on a device of ggml, alone or beside CPU devices, and compares.
 *   helper-ggml-member DEVICE [alone|run|meta|fail|share]
 * SHEAF_DEVICES names the device. The last line says what happened. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ggml/abi.h"
#include "sheaf/backend-impl.h"
#include "sheaf/sheaf.h"

enum { ROWS = 6, COLUMNS = 32, N = ROWS * COLUMNS, TIMES = 5 };

static int fail(const char *what) {
    printf("%s: %s\n", what, sheaf_last_error());
    return 1;
}

/* Rows on all members in turn. */
static enum sheaf_status cut(const struct sheaf_tensor *t, const void *user,
                             struct sheaf_split_state **out) {
    const int n = *(const int *)user;
    int64_t counts[16] = {0};
    for (int64_t i = 0; i < t->ne[1]; i++) counts[i % n]++;
    *out = sheaf_split_state_cut(SHEAF_SPLIT_AXIS_1, n, counts, 1);
    return *out ? SHEAF_STATUS_SUCCESS : SHEAF_STATUS_ALLOC_FAILED;
}

static struct sheaf_context *context(void) {
    return sheaf_init((struct sheaf_init_params){
        16 * sheaf_tensor_overhead() + 2 * sheaf_graph_overhead(), NULL, true});
}

/* Twice the same graph in the same memory, then with other inputs. */
static int run(sheaf_backend_t backend) {
    static float a[N], b[N], y[N];
    struct sheaf_context *leaves = context(), *nodes = context();
    sheaf_backend_buffer_t buffer = NULL;
    struct sheaf_tensor *ta = sheaf_new_tensor_2d(leaves, SHEAF_TYPE_F32, COLUMNS, ROWS);
    struct sheaf_tensor *tb = sheaf_new_tensor_2d(leaves, SHEAF_TYPE_F32, COLUMNS, ROWS);
    if (sheaf_backend_alloc_ctx_tensors(leaves, backend, &buffer)) return fail("memory");
    sheaf_backend_buffer_set_usage(buffer, SHEAF_BACKEND_BUFFER_USAGE_WEIGHTS);
    struct sheaf_tensor *ty = sheaf_scale(nodes, sheaf_add(nodes, ta, tb), 2.5f);
    sheaf_set_output(ty);
    struct sheaf_cgraph *graph = sheaf_new_graph(nodes);
    sheaf_gallocr_t galloc = sheaf_gallocr_new(sheaf_backend_get_default_buffer_type(backend));
    if (sheaf_build_forward_expand(graph, ty) || sheaf_gallocr_alloc_graph(galloc, graph))
        return fail("graph");
    int wrong = 0;
    for (int time = 0; time < TIMES; time++) {
        for (int i = 0; i < N; i++) {
            a[i] = (float)(i * (time + 1));
            b[i] = (float)(i % 7);
        }
        if (sheaf_backend_tensor_set(ta, a, 0, sizeof a) ||
            sheaf_backend_tensor_set(tb, b, 0, sizeof b))
            return fail("set");
        if (sheaf_backend_graph_compute(backend, graph)) return fail("compute");
        if (sheaf_backend_tensor_get(ty, y, 0, sizeof y)) return fail("get");
        for (int i = 0; i < N; i++) wrong += y[i] != (a[i] + b[i]) * 2.5f;
    }
    sheaf_gallocr_free(galloc);
    sheaf_backend_buffer_free(buffer);
    sheaf_free(leaves);
    sheaf_free(nodes);
    printf(wrong ? "%d values are wrong\n" : "right\n", wrong);
    return wrong != 0;
}

/* Three tensors at one address, the last with the layout of the first: what graphs of the first point to
 * stays as it was. */
static int share(sheaf_backend_t backend) {
    struct sheaf_context *ctx = context(), *others = context();
    sheaf_backend_buffer_t buffer = NULL;
    struct sheaf_tensor *a = sheaf_new_tensor_2d(ctx, SHEAF_TYPE_F32, COLUMNS, ROWS);
    struct sheaf_tensor *b = sheaf_new_tensor_2d(others, SHEAF_TYPE_F32, ROWS, COLUMNS);
    struct sheaf_tensor *c = sheaf_new_tensor_2d(others, SHEAF_TYPE_F32, COLUMNS, ROWS);
    if (sheaf_backend_alloc_ctx_tensors(ctx, backend, &buffer)) return fail("memory");
    const struct gg_tensor *first = a->extra;
    const struct gg_tensor before = *first;
    if (sheaf_backend_tensor_alloc(buffer, b, a->data) ||
        sheaf_backend_tensor_alloc(buffer, c, a->data))
        return fail("place");
    const struct gg_tensor *second = b->extra;
    const bool kept = !memcmp(first, &before, sizeof before) && c->extra == first;
    const bool own = second != first && second->ne[0] == ROWS && second->data == a->data;
    sheaf_backend_buffer_free(buffer);
    sheaf_free(ctx);
    sheaf_free(others);
    printf("the first is kept: %d, the second has its own: %d\n", kept, own);
    return !kept || !own;
}

/* More ops than the device has, and what ggml does not promise. */
static int refuses(sheaf_backend_dev_t dev) {
    struct sheaf_context *ctx = context();
    struct sheaf_tensor *a = sheaf_new_tensor_2d(ctx, SHEAF_TYPE_F32, COLUMNS, ROWS);
    const bool one = sheaf_backend_dev_supports_op(dev, sheaf_add(ctx, a, a));
    const bool two = sheaf_backend_dev_supports_op(dev, sheaf_soft_max(ctx, a));
    struct sheaf_tensor *ordered = sheaf_add(ctx, a, a);
    ordered->flags |= SHEAF_BACKEND_TENSOR_TIES_BY_INDEX;
    const bool ties = sheaf_backend_dev_supports_op(dev, ordered);
    sheaf_free(ctx);
    printf("adds: %d, softmax: %d, an order of ties: %d\n", one, two, ties);
    return !one || two || ties;
}

static int events(sheaf_backend_dev_t dev, sheaf_backend_t backend) {
    sheaf_backend_event_t event = NULL;
    if (sheaf_backend_event_new(dev, &event)) return fail("event");
    if (sheaf_backend_event_record(event, backend) || sheaf_backend_event_synchronize(event))
        return fail("event");
    sheaf_backend_event_free(event);
    return 0;
}

int main(int argc, char **argv) {
    const char *name = argc > 1 ? argv[1] : "", *mode = argc > 2 ? argv[2] : "alone";
    const sheaf_backend_dev_t *devices = NULL;
    sheaf_backend_t backend = NULL;
    sheaf_backend_dev_t meta = NULL;
    size_t n = 0;
    int status;
    if (sheaf_world_init(NULL)) return fail("world");
    if (sheaf_backend_load_all()) return fail("modules");
    if (sheaf_world_devices(&devices, &n)) return fail("devices");
    sheaf_backend_dev_t dev = sheaf_backend_dev_by_name(name);
    if (!dev) return printf("no device %s\n", name), 1;
    printf("%s: %s\n", sheaf_backend_dev_name(dev), sheaf_backend_dev_description(dev));
    if (!strcmp(mode, "meta")) {
        const int members = (int)n;
        status = sheaf_backend_meta_device(devices, n, cut, &members, NULL, &meta) ||
                 sheaf_backend_dev_init(meta, NULL, &backend);
        if (status) return fail("meta");
        printf("members: %zu\n", n);
        status = run(backend);
    } else {
        if (sheaf_backend_dev_init(dev, !strcmp(mode, "fail") ? "fail" : NULL, &backend))
            return fail("start");
        status = strcmp(mode, "share") != 0 ? run(backend) : share(backend);
        if (!status && !strcmp(mode, "alone")) status = refuses(dev) || events(dev, backend);
    }
    sheaf_backend_free(backend);
    sheaf_backend_meta_device_free(meta);
    sheaf_world_finalize();
    return status;
}
