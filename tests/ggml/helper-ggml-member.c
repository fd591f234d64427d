/* Computes (a + b) * 2.5 on a device of ggml, alone or beside CPU devices, and compares.
 *   helper-ggml-member DEVICE [alone|run|meta|fail|share|moves]
 *   helper-ggml-member DEVICE whole   as meta, with 23, of which a device may take no slice
 *   helper-ggml-member DEVICE fails-on-it|gives-up   as meta, with 13 and 29, which fail
 *   helper-ggml-member DEVICE columns as whole, cut by columns, so that gathers take copies;
 *                             slices, sums: as meta, a is whole, or addends, and must be cut
 *   helper-ggml-member DEVICE keeps   more graphs than are kept
 *   helper-ggml-member DEVICE copy    results of one stream go to another
 *   helper-ggml-member DEVICE heads   attention of heads that begin inside of a group of three
 *   helper-ggml-member DEVICE starts  nodes over views that begin where GPUs bind no memory
 *   helper-ggml-member DEVICE waits   FAKE1 for an event of DEVICE
 *   helper-ggml-member DEVICE asks-cuda   about nodes that CUDA says it computes
 *   helper-ggml-member DEVICE large   sums that leave the range of F16
 *   helper-ggml-member DEVICE asks    for more memory than it was given
 *   helper-ggml-member DEVICE room    attention whose kernel writes behind its result
 *   helper-ggml-member DEVICE packs|packs-q4_0   weights that the device may have in a layout of
 *                                     its own; fills: which are written by copies, too;
 *                                     short, short-q8_0: whose rows have 32 elements; experts:
 *                                     two of six
 * SHEAF_DEVICES names the device. A library that SHEAF_TEST_HAS names is the program's own. The last
 * line says what happened. */
#include <dlfcn.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "count_allocations.h"
#include "ggml/abi.h"
#include "sheaf/backend-impl.h"
#include "sheaf/ops.h"
#include "sheaf/sheaf.h"

enum { ROWS = 6, COLUMNS = 32, N = ROWS * COLUMNS, TIMES = 5 };

static float factor = 2.5f;
static enum sheaf_split_axis axis = SHEAF_SPLIT_AXIS_1, axis_of_a = SHEAF_SPLIT_AXIS_1;

static int fail(const char *what) {
    printf("%s: %s\n", what, sheaf_last_error());
    return 1;
}

/* Rows or columns on all members in turn. */
static enum sheaf_status cut(const struct sheaf_tensor *t, const void *user,
                             struct sheaf_split_state **out) {
    const enum sheaf_split_axis at = strcmp(t->name, "a") ? axis : axis_of_a;
    const int n = *(const int *)user;
    int64_t counts[16] = {0};
    for (int64_t i = 0; (int)at < SHEAF_MAX_DIMS && i < t->ne[at]; i++) counts[i % n]++;
    *out = at == SHEAF_SPLIT_AXIS_MIRRORED  ? sheaf_split_state_mirrored(n)
           : at == SHEAF_SPLIT_AXIS_PARTIAL ? sheaf_split_state_partial(n)
                                            : sheaf_split_state_cut(at, n, counts, 1);
    return *out ? SHEAF_STATUS_SUCCESS : SHEAF_STATUS_ALLOC_FAILED;
}

static struct sheaf_context *context(void) {
    return sheaf_init((struct sheaf_init_params){
        16 * sheaf_tensor_overhead() + 2 * sheaf_graph_overhead(), NULL, true});
}

static void release(sheaf_gallocr_t galloc, sheaf_backend_buffer_t buffer,
                    struct sheaf_context *leaves, struct sheaf_context *nodes) {
    sheaf_gallocr_free(galloc);
    sheaf_backend_buffer_free(buffer);
    sheaf_free(leaves);
    sheaf_free(nodes);
}

/* The last line; the exit status. */
static int say_wrong(int wrong) {
    printf(wrong ? "%d values are wrong\n" : "right\n", wrong);
    return wrong != 0;
}

/* The same graph in the same memory with other inputs. Computes after the first allocate nothing. */
static int run(sheaf_backend_t backend) {
    static float a[N], b[N], y[N];
    struct sheaf_context *leaves = context(), *nodes = context();
    sheaf_backend_buffer_t buffer = NULL;
    struct sheaf_tensor *ta = sheaf_new_tensor_2d(leaves, SHEAF_TYPE_F32, COLUMNS, ROWS);
    struct sheaf_tensor *tb = sheaf_new_tensor_2d(leaves, SHEAF_TYPE_F32, COLUMNS, ROWS);
    sheaf_set_name(ta, "a");
    if (sheaf_backend_alloc_ctx_tensors(leaves, backend, &buffer)) return fail("memory");
    sheaf_backend_buffer_set_usage(buffer, SHEAF_BACKEND_BUFFER_USAGE_WEIGHTS);
    struct sheaf_tensor *ty = sheaf_scale(nodes, sheaf_add(nodes, ta, tb), factor);
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
        counts_allocations = time > 0;
        if (sheaf_backend_graph_compute(backend, graph)) return fail("compute");
        counts_allocations = false;
        if (sheaf_backend_tensor_get(ty, y, 0, sizeof y)) return fail("get");
        for (int i = 0; i < N; i++) wrong += y[i] != (a[i] + b[i]) * factor;
    }
    release(galloc, buffer, leaves, nodes);
    printf("%ld allocations\n", (long)n_allocations);
    return say_wrong(wrong);
}

/* Computes a graph of views that lie elsewhere every time, before the device has come to the last one. None but the
 * first compute allocates. */
static int moves(sheaf_backend_t backend) {
    static float a[N], y[ROWS][COLUMNS];
    struct sheaf_context *leaves = context(), *nodes = context();
    sheaf_backend_buffer_t buffer = NULL;
    int wrong = 0;
    struct sheaf_tensor *ta = sheaf_new_tensor_2d(leaves, SHEAF_TYPE_F32, COLUMNS, ROWS);
    if (sheaf_backend_alloc_ctx_tensors(leaves, backend, &buffer)) return fail("memory");
    struct sheaf_tensor *row = sheaf_view_1d(nodes, ta, COLUMNS, 0);
    struct sheaf_tensor *ty = sheaf_scale(nodes, row, factor);
    struct sheaf_cgraph *graph = sheaf_new_graph(nodes);
    sheaf_gallocr_t galloc = sheaf_gallocr_new(sheaf_backend_get_default_buffer_type(backend));
    if (sheaf_build_forward_expand(graph, ty) || sheaf_gallocr_alloc_graph(galloc, graph))
        return fail("graph");
    for (int i = 0; i < N; i++) a[i] = (float)i;
    if (sheaf_backend_tensor_set(ta, a, 0, sizeof a)) return fail("set");
    for (int time = 0; time < ROWS; time++) {
        const uint64_t offset = (uint64_t)time * ta->nb[1];
        row->view_offs = offset;
        row->data = (char *)ta->data + offset;
        memcpy(row->op_params, &offset, sizeof offset);
        counts_allocations = time > 0;
        if (sheaf_backend_graph_compute_async(backend, graph)) return fail("compute");
        counts_allocations = false;
        if (sheaf_backend_tensor_get_async(backend, ty, y[time], 0, sizeof y[time]))
            return fail("get");
    }
    if (sheaf_backend_synchronize(backend)) return fail("wait");
    for (int i = 0; i < N; i++) wrong += y[i / COLUMNS][i % COLUMNS] != a[i] * factor;
    release(galloc, buffer, leaves, nodes);
    printf("%ld allocations\n", (long)n_allocations);
    return say_wrong(wrong);
}

/* Graphs of more tensors than are kept, one of them used again and again, and at last the one that was used longest
 * ago. */
static int keeps(sheaf_backend_t backend) {
    enum { GRAPHS = 540, NODES = 250, OFTEN = 50 };
    static struct sheaf_context *nodes[GRAPHS];
    static struct sheaf_cgraph *graphs[GRAPHS];
    static float a[N], y[N];
    struct sheaf_context *leaves = context();
    sheaf_backend_buffer_t buffer = NULL;
    struct sheaf_tensor *ta = sheaf_new_tensor_2d(leaves, SHEAF_TYPE_F32, COLUMNS, ROWS), *ty = ta;
    sheaf_gallocr_t galloc = sheaf_gallocr_new(sheaf_backend_get_default_buffer_type(backend));
    int wrong = 0;
    if (sheaf_backend_alloc_ctx_tensors(leaves, backend, &buffer)) return fail("memory");
    for (int i = 0; i < N; i++) a[i] = (float)i;
    if (sheaf_backend_tensor_set(ta, a, 0, sizeof a)) return fail("set");
    for (int g = 0; g < GRAPHS; g++) {
        nodes[g] = sheaf_init((struct sheaf_init_params){
            (NODES + 1) * sheaf_tensor_overhead() + sheaf_graph_overhead(), NULL, true});
        graphs[g] = sheaf_new_graph(nodes[g]);
        ty = ta;
        for (int i = 0; i < NODES; i++) ty = sheaf_scale(nodes[g], ty, 1);
        if (sheaf_build_forward_expand(graphs[g], ty) ||
            sheaf_gallocr_alloc_graph(galloc, graphs[g]) ||
            sheaf_backend_graph_compute_async(backend, graphs[g]) ||
            (g % OFTEN == 0 && sheaf_backend_graph_compute_async(backend, graphs[0])))
            return fail("compute");
    }
    if (sheaf_backend_graph_compute(backend, graphs[0]) ||
        sheaf_backend_graph_compute(backend, graphs[1]) ||
        sheaf_backend_tensor_get(sheaf_graph_node(graphs[1], NODES - 1), y, 0, sizeof y))
        return fail("get");
    for (int i = 0; i < N; i++) wrong += y[i] != a[i];
    for (int g = 0; g < GRAPHS; g++) sheaf_free(nodes[g]);
    release(galloc, buffer, leaves, NULL);
    return say_wrong(wrong);
}

/* Three tensors at one address, the last with the layout of the first: what graphs of the first
 * point to stays as it was. */
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

/* Results of one stream, copied to another, which goes on with them; five times without a wait, and
 * then the streams are waited for in that order or the other. */
static int copy(sheaf_backend_dev_t dev, sheaf_backend_t first) {
    static float x[2 * TIMES][N], y[2 * TIMES][N];
    sheaf_backend_t streams[] = {first, NULL};
    struct sheaf_context *ctx = context(), *nodes[] = {context(), context()};
    struct sheaf_tensor *in[2], *out[2];
    struct sheaf_cgraph *graphs[2];
    sheaf_gallocr_t galloc[2];
    sheaf_backend_buffer_t buffer = NULL;
    int wrong = 0;
    if (sheaf_backend_dev_init(dev, NULL, &streams[1])) return fail("start");
    for (int i = 0; i < 2; i++) in[i] = sheaf_new_tensor_2d(ctx, SHEAF_TYPE_F32, COLUMNS, ROWS);
    if (sheaf_backend_alloc_ctx_tensors(ctx, first, &buffer)) return fail("memory");
    for (int i = 0; i < 2; i++) {
        out[i] = sheaf_scale(nodes[i], in[i], 2.5f);
        sheaf_set_output(out[i]);
        graphs[i] = sheaf_new_graph(nodes[i]);
        galloc[i] = sheaf_gallocr_new(sheaf_backend_get_default_buffer_type(first));
        if (sheaf_build_forward_expand(graphs[i], out[i]) ||
            sheaf_gallocr_alloc_graph(galloc[i], graphs[i]))
            return fail("graph");
    }
    for (int time = 0; time < 2 * TIMES; time++) {
        const bool waits = time % TIMES == TIMES - 1;
        const int earlier = time >= TIMES;
        for (int i = 0; i < N; i++) x[time][i] = (float)(i * (time + 1));
        if (sheaf_backend_tensor_set_async(first, in[0], x[time], 0, sizeof x[time]) ||
            sheaf_backend_graph_compute_async(first, graphs[0]) ||
            sheaf_backend_tensor_copy_async(first, streams[1], out[0], in[1]) ||
            sheaf_backend_graph_compute_async(streams[1], graphs[1]) ||
            sheaf_backend_tensor_get_async(streams[1], out[1], y[time], 0, sizeof y[time]) ||
            (waits && (sheaf_backend_synchronize(streams[earlier]) ||
                       sheaf_backend_synchronize(streams[!earlier]))))
            return fail("copy");
    }
    for (int time = 0; time < 2 * TIMES; time++)
        for (int i = 0; i < N; i++) wrong += y[time][i] != x[time][i] * 2.5f * 2.5f;
    if (sheaf_backend_tensor_copy(in[0], in[1]) ||
        sheaf_backend_tensor_get(in[1], y[0], 0, sizeof y[0]))
        return fail("copy at once");
    for (int i = 0; i < N; i++) wrong += y[0][i] != x[2 * TIMES - 1][i];
    for (int i = 0; i < 2; i++) {
        sheaf_gallocr_free(galloc[i]);
        sheaf_free(nodes[i]);
    }
    sheaf_backend_buffer_free(buffer);
    sheaf_free(ctx);
    sheaf_backend_free(streams[1]);
    return say_wrong(wrong);
}

/* ---- weights in a layout of the device ---- */

enum {
    WIDTH = 256,
    PACKED_ROWS = 256,
    ODD_ROWS = 3,
    TOKENS = 2,
    MOST_BYTES = PACKED_ROWS * WIDTH * 4
};

enum { MOST_VALUES = PACKED_ROWS * 64 };

static double nmse(const float *got, const float *want, int n) {
    double squares = 0, errors = 0;
    for (int i = 0; i < n; i++) {
        squares += (double)want[i] * (double)want[i];
        errors += ((double)want[i] - (double)got[i]) * ((double)want[i] - (double)got[i]);
    }
    return errors / squares;
}

/* Normalized mean squared error of y = w x with y->src[1]->ne[0] columns of w. */
static double error_of(const struct sheaf_tensor *y, const float *w, const float *x) {
    static float got[MOST_VALUES], want[MOST_VALUES];
    const int rows = (int)y->ne[0], n = rows * (int)y->ne[1], width = (int)y->src[1]->ne[0];
    if (n > MOST_VALUES || sheaf_backend_tensor_get(y, got, 0, sheaf_nbytes(y))) return 1;
    for (int i = 0; i < n; i++) {
        double sum = 0;
        for (int k = 0; k < width; k++)
            sum += (double)w[i % rows * width + k] * (double)x[i / rows * width + k];
        want[i] = (float)sum;
    }
    return nmse(got, want, n);
}

/* The last line; the exit status. Products round activations to 8 bits. */
static int say_error(double error) {
    const bool right = error < 5e-4;
    printf(right ? "right\n" : "NMSE %g\n", error);
    return !right;
}

/* Is the memory of a large tensor the system's again? It reads as zeros then. */
static bool is_given_back(const struct sheaf_tensor *t) {
    const char *p = (const char *)t->data + sheaf_nbytes(t) / 2;
    for (int i = 0; i < 64; i++)
        if (p[i]) return false;
    return true;
}

static void show(const char *what, enum sheaf_status st) {
    printf("%s: %s\n", what, st ? sheaf_last_error() : "done");
}

/* Reads and writes a weight past its backend: a copy to and from memory of the host. */
static int copies_to(const char *where, sheaf_backend_t other, struct sheaf_tensor *tw) {
    struct sheaf_context *ctx = context();
    sheaf_backend_buffer_t buffer = NULL;
    struct sheaf_tensor *same = sheaf_new_tensor_2d(ctx, tw->type, tw->ne[0], tw->ne[1]);
    if (sheaf_backend_alloc_ctx_tensors(ctx, other, &buffer)) return fail("memory");
    show(where, sheaf_backend_tensor_copy(tw, same));
    sheaf_backend_buffer_free(buffer);
    sheaf_free(ctx);
    return 0;
}

static int copies(sheaf_backend_t backend, struct sheaf_tensor *tw) {
    sheaf_backend_t cpu;
    if (sheaf_backend_init_by_name("CPU0", NULL, &cpu)) return fail("CPU0");
    const int status = copies_to("a copy", cpu, tw) || copies_to("a copy there", backend, tw);
    sheaf_backend_free(cpu);
    return status;
}

/* By n columns that lie apart. */
static int strided_product(const char *what, sheaf_backend_t backend, struct sheaf_tensor *tw,
                           int64_t n) {
    struct sheaf_context *leaves = context(), *nodes = context();
    sheaf_backend_buffer_t buffer = NULL;
    struct sheaf_tensor *wide = sheaf_new_tensor_2d(leaves, SHEAF_TYPE_F32, 2 * WIDTH, TOKENS);
    if (sheaf_backend_alloc_ctx_tensors(leaves, backend, &buffer)) return fail("memory");
    struct sheaf_tensor *x = sheaf_view_2d(nodes, wide, WIDTH, n, wide->nb[1], 0);
    struct sheaf_cgraph *graph = sheaf_new_graph(nodes);
    sheaf_gallocr_t galloc = sheaf_gallocr_new(sheaf_backend_get_default_buffer_type(backend));
    if (sheaf_build_forward_expand(graph, sheaf_mul_mat(nodes, tw, x)) ||
        sheaf_gallocr_alloc_graph(galloc, graph))
        return fail("graph");
    show(what, sheaf_backend_graph_compute(backend, graph));
    release(galloc, buffer, leaves, nodes);
    return 0;
}

/* In parts, as a load has it; a graph that reads the weight between two of them is refused. */
static int set_in_parts(sheaf_backend_t backend, struct sheaf_cgraph *graph,
                        struct sheaf_tensor *tw, const char *raw) {
    enum { PARTS = 4 };
    const size_t n = sheaf_nbytes(tw) / PARTS;
    for (size_t i = 0; i < PARTS; i++) {
        if (sheaf_backend_tensor_set(tw, raw + i * n, i * n, n)) return fail("set a part");
        if (i == 1) show("half written", sheaf_backend_graph_compute(backend, graph));
    }
    return 0;
}

/* A weight of a number of rows that the layout takes and one of another, both read by products;
 * then what the first must refuse, and what it must not. */
static int packs(sheaf_backend_t backend, enum sheaf_type type) {
    static float w[PACKED_ROWS * WIDTH], x[TOKENS * WIDTH];
    static char raw[MOST_BYTES], back[MOST_BYTES];
    struct sheaf_context *leaves = context(), *nodes = context(), *others = context();
    sheaf_backend_buffer_t buffer = NULL;
    struct sheaf_tensor *tw = sheaf_new_tensor_2d(leaves, type, WIDTH, PACKED_ROWS);
    struct sheaf_tensor *odd = sheaf_new_tensor_2d(leaves, type, WIDTH, ODD_ROWS);
    struct sheaf_tensor *tx = sheaf_new_tensor_2d(leaves, SHEAF_TYPE_F32, WIDTH, TOKENS);
    sheaf_set_name(tw, "factor");
    tw->flags |= SHEAF_BACKEND_TENSOR_FACTOR;
    odd->flags |= SHEAF_BACKEND_TENSOR_FACTOR;
    if (sheaf_backend_alloc_ctx_tensors(leaves, backend, &buffer)) return fail("memory");
    sheaf_backend_buffer_set_usage(buffer, SHEAF_BACKEND_BUFFER_USAGE_WEIGHTS);
    struct sheaf_tensor *y = sheaf_mul_mat(nodes, tw, tx), *z = sheaf_mul_mat(nodes, odd, tx);
    struct sheaf_tensor *half = sheaf_view_2d(others, tw, WIDTH, PACKED_ROWS / 2, tw->nb[1], 0);
    struct sheaf_tensor *part = sheaf_mul_mat(others, half, tx);
    struct sheaf_cgraph *graph = sheaf_new_graph(nodes), *other = sheaf_new_graph(others);
    sheaf_gallocr_t galloc[2];
    for (int i = 0; i < 2; i++)
        galloc[i] = sheaf_gallocr_new(sheaf_backend_get_default_buffer_type(backend));
    sheaf_set_output(y);
    sheaf_set_output(z);
    if (sheaf_build_forward_expand(graph, y) || sheaf_build_forward_expand(graph, z) ||
        sheaf_build_forward_expand(other, part) || sheaf_gallocr_alloc_graph(galloc[0], graph) ||
        sheaf_gallocr_alloc_graph(galloc[1], other))
        return fail("graph");
    double most = 0;
    for (int time = 0; time < TIMES; time++) {
        for (int i = 0; i < PACKED_ROWS * WIDTH && time % 2 == 0; i++)
            w[i] = (float)((i * 7 + i / 32 + time) % 13 - 6);
        for (int i = 0; i < TOKENS * WIDTH; i++) x[i] = (float)((i * 3 + time) % 17 - 8);
        if (time % 2 == 0 && (sheaf_from_float(type, w, raw, PACKED_ROWS * WIDTH) ||
                              sheaf_to_float(type, raw, w, PACKED_ROWS * WIDTH) ||
                              sheaf_backend_tensor_set(odd, raw, 0, sheaf_nbytes(odd))))
            return fail("set");
        const int failed = time % 2   ? 0
                           : time > 2 ? set_in_parts(backend, graph, tw, raw)
                                      : sheaf_backend_tensor_set(tw, raw, 0, sheaf_nbytes(tw));
        if (failed) return fail("set");
        if (sheaf_backend_tensor_set(tx, x, 0, sizeof x)) return fail("set");
        if (sheaf_backend_graph_compute(backend, graph)) return fail("compute");
        const double one = error_of(y, w, x), two = error_of(z, w, x);
        most = one > most ? one : two > most ? two : most;
    }
    printf("given back: %d\n", is_given_back(tw));
    show("a part", sheaf_backend_tensor_set(tw, w, 4, 8));
    show("through a view", sheaf_backend_tensor_set(half, w, 0, 8));
    show("a view", sheaf_backend_graph_compute(backend, other));
    show("back", sheaf_backend_tensor_get(tw, back, 0, sheaf_nbytes(tw)));
    if (copies(backend, tw) || strided_product("a column", backend, tw, 1) ||
        strided_product("strided columns", backend, tw, TOKENS))
        return 1;
    show("clear", sheaf_backend_buffer_clear(buffer, 0));
    sheaf_gallocr_free(galloc[1]);
    sheaf_free(others);
    release(galloc[0], buffer, leaves, nodes);
    return say_error(most);
}

/* Weights that are copied to, before their first product and after it. One is filled before, of one
 * a part is read. */
static int fills(sheaf_backend_t backend) {
    enum { COPIED, FILLED, READ, N_WEIGHTS };
    static const char *const names[] = {"copied", "filled", "read"};
    static float w[PACKED_ROWS * WIDTH], x[TOKENS * WIDTH];
    struct sheaf_context *leaves = context(), *nodes = context();
    struct sheaf_tensor *tw[N_WEIGHTS], *y[N_WEIGHTS];
    sheaf_backend_buffer_t buffer = NULL;
    struct sheaf_tensor *from = sheaf_new_tensor_2d(leaves, SHEAF_TYPE_F32, WIDTH, PACKED_ROWS);
    struct sheaf_tensor *tx = sheaf_new_tensor_2d(leaves, SHEAF_TYPE_F32, WIDTH, TOKENS);
    struct sheaf_cgraph *graph = sheaf_new_graph(nodes);
    sheaf_gallocr_t galloc = sheaf_gallocr_new(sheaf_backend_get_default_buffer_type(backend));
    double most = 0;
    for (int i = 0; i < N_WEIGHTS; i++) {
        tw[i] = sheaf_new_tensor_2d(leaves, SHEAF_TYPE_F32, WIDTH, PACKED_ROWS);
        sheaf_set_name(tw[i], names[i]);
        tw[i]->flags |= SHEAF_BACKEND_TENSOR_FACTOR;
    }
    if (sheaf_backend_alloc_ctx_tensors(leaves, backend, &buffer)) return fail("memory");
    sheaf_backend_buffer_set_usage(buffer, SHEAF_BACKEND_BUFFER_USAGE_WEIGHTS);
    for (int i = 0; i < N_WEIGHTS; i++) {
        y[i] = sheaf_mul_mat(nodes, tw[i], tx);
        sheaf_set_output(y[i]);
        if (sheaf_build_forward_expand(graph, y[i])) return fail("graph");
    }
    for (int i = 0; i < TOKENS * WIDTH; i++) x[i] = (float)(i * 3 % 17 - 8);
    if (sheaf_gallocr_alloc_graph(galloc, graph) || sheaf_backend_tensor_set(tx, x, 0, sizeof x) ||
        sheaf_backend_tensor_memset(tw[FILLED], 0, 4, sizeof w - 4) ||
        sheaf_backend_tensor_get(tw[READ], w, 0, 4))
        return fail("graph");
    for (int time = 0; time < 2; time++) {
        for (int i = 0; i < PACKED_ROWS * WIDTH; i++) w[i] = (float)((i * 7 + time) % 13 - 6);
        if (sheaf_backend_tensor_set(from, w, 0, sizeof w)) return fail("set");
        for (int i = 0; i < N_WEIGHTS; i++)
            if (sheaf_backend_tensor_copy(from, tw[i])) return fail("copy");
        if (sheaf_backend_graph_compute(backend, graph)) return fail("compute");
        for (int i = 0; i < N_WEIGHTS; i++) {
            const double error = error_of(y[i], w, x);
            most = error > most ? error : most;
        }
    }
    release(galloc, buffer, leaves, nodes);
    return say_error(most);
}

/* Such weights stay as they are: ggml 0.27 has wrong kernels for them. */
static int short_rows(sheaf_backend_t backend, enum sheaf_type type) {
    enum { K = 32, M = 128, COLUMNS_OF_X = 64 };
    static float w[M * K], x[K * COLUMNS_OF_X];
    char raw[sizeof w];
    struct sheaf_context *leaves = context(), *nodes = context();
    sheaf_backend_buffer_t buffer = NULL;
    struct sheaf_tensor *tw = sheaf_new_tensor_2d(leaves, type, K, M);
    struct sheaf_tensor *tx = sheaf_new_tensor_2d(leaves, SHEAF_TYPE_F32, K, COLUMNS_OF_X);
    struct sheaf_tensor *y = sheaf_mul_mat(nodes, tw, tx);
    struct sheaf_cgraph *graph = sheaf_new_graph(nodes);
    sheaf_gallocr_t galloc = sheaf_gallocr_new(sheaf_backend_get_default_buffer_type(backend));
    tw->flags |= SHEAF_BACKEND_TENSOR_FACTOR;
    if (sheaf_backend_alloc_ctx_tensors(leaves, backend, &buffer)) return fail("memory");
    sheaf_backend_buffer_set_usage(buffer, SHEAF_BACKEND_BUFFER_USAGE_WEIGHTS);
    sheaf_set_output(y);
    for (int i = 0; i < M * K; i++) w[i] = (float)(i * 7 % 13 - 6);
    for (int i = 0; i < K * COLUMNS_OF_X; i++) x[i] = (float)(i * 3 % 17 - 8);
    if (sheaf_build_forward_expand(graph, y) || sheaf_gallocr_alloc_graph(galloc, graph) ||
        sheaf_from_float(type, w, raw, M * K) || sheaf_to_float(type, raw, w, M * K) ||
        sheaf_backend_tensor_set(tw, raw, 0, sheaf_nbytes(tw)) ||
        sheaf_backend_tensor_set(tx, x, 0, sizeof x))
        return fail("graph");
    double most = 0;
    for (int time = 0; time < TIMES; time++) {
        if (sheaf_backend_graph_compute(backend, graph)) return fail("compute");
        const double error = error_of(y, w, x);
        most = error > most ? error : most;
    }
    release(galloc, buffer, leaves, nodes);
    return say_error(most);
}

/* Experts 2 and 3 of six, as a member's node has them: tokens name experts of other members, too,
 * whose rows are zeros. Values are computed from the weights as they are rounded. */
static int experts(sheaf_backend_t backend) {
    enum { K = 256, M = 64, HELD = 2, BASE = 2, ALL = 6, USED = 2, N_TOKENS = 40 };
    static float w[K * M * HELD], x[K * N_TOKENS];
    static float got[M * USED * N_TOKENS], want[M * USED * N_TOKENS];
    static char raw[sizeof w];
    int32_t named[USED * N_TOKENS];
    struct sheaf_context *leaves = context(), *nodes = context();
    sheaf_backend_buffer_t buffer = NULL;
    struct sheaf_tensor *tw = sheaf_new_tensor_3d(leaves, SHEAF_TYPE_Q4_0, K, M, HELD);
    struct sheaf_tensor *tx = sheaf_new_tensor_3d(leaves, SHEAF_TYPE_F32, K, 1, N_TOKENS);
    struct sheaf_tensor *ids = sheaf_new_tensor_2d(leaves, SHEAF_TYPE_I32, USED, N_TOKENS);
    struct sheaf_tensor *y = sheaf_mul_mat_id(nodes, tw, tx, ids);
    struct sheaf_cgraph *graph = sheaf_new_graph(nodes);
    sheaf_gallocr_t galloc = sheaf_gallocr_new(sheaf_backend_get_default_buffer_type(backend));
    tw->flags |= SHEAF_BACKEND_TENSOR_FACTOR;
    y->op_params[SHEAF_OP_PARAM_BASE] = BASE;
    y->op_params[SHEAF_OP_PARAM_EXTENT] = ALL;
    if (sheaf_backend_alloc_ctx_tensors(leaves, backend, &buffer)) return fail("memory");
    sheaf_backend_buffer_set_usage(buffer, SHEAF_BACKEND_BUFFER_USAGE_WEIGHTS);
    sheaf_set_output(y);
    for (int i = 0; i < K * M * HELD; i++) w[i] = (float)((i * 7 + i / K) % 13 - 6);
    for (int i = 0; i < K * N_TOKENS; i++) x[i] = (float)((i * 3 + i / K) % 17 - 8);
    for (int i = 0; i < USED * N_TOKENS; i++) named[i] = (i % USED + i / USED) % ALL;
    if (sheaf_build_forward_expand(graph, y) || sheaf_gallocr_alloc_graph(galloc, graph) ||
        sheaf_from_float(tw->type, w, raw, K * M * HELD) ||
        sheaf_to_float(tw->type, raw, w, K * M * HELD) ||
        sheaf_backend_tensor_set(tw, raw, 0, sheaf_nbytes(tw)) ||
        sheaf_backend_tensor_set(tx, x, 0, sizeof x) ||
        sheaf_backend_tensor_set(ids, named, 0, sizeof named) ||
        sheaf_backend_graph_compute(backend, graph) ||
        sheaf_backend_tensor_get(y, got, 0, sizeof got))
        return fail("graph");
    for (int i = 0; i < M * USED * N_TOKENS; i++) {
        const int pair = i / M, expert = named[pair] - BASE;
        double sum = 0;
        for (int k = 0; k < K && expert >= 0 && expert < HELD; k++)
            sum += (double)w[(expert * M + i % M) * K + k] * (double)x[pair / USED * K + k];
        want[i] = (float)sum;
    }
    release(galloc, buffer, leaves, nodes);
    return say_error(nmse(got, want, M * USED * N_TOKENS));
}

enum { HEAD = 64, QUERIES = 5, KEYS = 70, HEADS = 2, Q_HEADS = HEAD * QUERIES };

static enum sheaf_status fill(struct sheaf_tensor *t, int step) {
    static float values[HEAD * KEYS * HEADS];
    static char raw[sizeof values];
    const int64_t n = sheaf_nelements(t);
    for (int64_t i = 0; i < n; i++) values[i] = (float)((i * step) % 23 - 11) / 16;
    const enum sheaf_status st = sheaf_from_float(t->type, values, raw, n);
    return st ? st : sheaf_backend_tensor_set(t, raw, 0, sheaf_nbytes(t));
}

/* Heads 1 to 5 of six, as a member's node has them: neither their part of the K/V cache nor that of
 * the sinks begins where a GPU binds memory. */
static int heads_on(sheaf_backend_t backend, float *y) {
    struct sheaf_context *leaves = context(), *nodes = context();
    sheaf_backend_buffer_t buffer = NULL;
    struct sheaf_tensor *q = sheaf_new_tensor_2d(leaves, SHEAF_TYPE_F32, HEAD, QUERIES);
    struct sheaf_tensor *k = sheaf_new_tensor_3d(leaves, SHEAF_TYPE_Q8_0, HEAD, HEADS, KEYS);
    struct sheaf_tensor *v = sheaf_new_tensor_3d(leaves, SHEAF_TYPE_Q8_0, HEAD, HEADS, KEYS);
    struct sheaf_tensor *sinks = sheaf_new_tensor_1d(leaves, SHEAF_TYPE_F32, QUERIES);
    if (sheaf_backend_alloc_ctx_tensors(leaves, backend, &buffer)) return fail("memory");
    if (fill(q, 3) || fill(k, 5) || fill(v, 7) || fill(sinks, 9)) return fail("set");
    struct sheaf_tensor *t = sheaf_new_tensor_2d(nodes, SHEAF_TYPE_F32, HEAD, QUERIES);
    const float scale = 0.125f;
    t->op = SHEAF_OP_FLASH_ATTN_EXT;
    t->src[0] = sheaf_view_3d(nodes, q, HEAD, 1, QUERIES, q->nb[1], q->nb[1], 0);
    t->src[1] = sheaf_permute(nodes, k, 0, 2, 1, 3);
    t->src[2] = sheaf_permute(nodes, v, 0, 2, 1, 3);
    t->src[4] = sinks;
    memcpy(t->op_params, &scale, sizeof scale);
    t->op_params[SHEAF_OP_PARAM_GROUP] = 3;
    t->op_params[SHEAF_OP_PARAM_BASE] = 1;
    t->op_params[SHEAF_OP_PARAM_EXTENT] = 6;
    struct sheaf_cgraph *graph = sheaf_new_graph(nodes);
    sheaf_gallocr_t galloc = sheaf_gallocr_new(sheaf_backend_get_default_buffer_type(backend));
    if (sheaf_build_forward_expand(graph, t) || sheaf_gallocr_alloc_graph(galloc, graph))
        return fail("graph");
    if (sheaf_backend_graph_compute(backend, graph)) return fail("compute");
    if (sheaf_backend_tensor_get(t, y, 0, Q_HEADS * sizeof *y)) return fail("get");
    release(galloc, buffer, leaves, nodes);
    return 0;
}

static int heads(sheaf_backend_t backend) {
    static float y[Q_HEADS], want[Q_HEADS];
    sheaf_backend_t cpu;
    int wrong = 0;
    if (sheaf_backend_init_by_name("CPU0", NULL, &cpu)) return fail("CPU0");
    int status = heads_on(cpu, want);
    if (!status) status = heads_on(backend, y);
    for (int i = 0; i < Q_HEADS; i++) wrong += !(fabsf(y[i] - want[i]) < 2e-3f);
    sheaf_backend_free(cpu);
    return status ? status : say_wrong(wrong);
}

/* A product of two values, not by a weight, whose sums leave the range of F16. */
static int large(sheaf_backend_t backend) {
    enum { K = 256, M = 16, COLUMNS_OF_X = 32 };
    static float x[K * COLUMNS_OF_X], y[M * COLUMNS_OF_X];
    static char raw[K * M * 2];
    struct sheaf_context *leaves = context(), *nodes = context();
    sheaf_backend_buffer_t buffer = NULL;
    int wrong = 0;
    struct sheaf_tensor *a = sheaf_new_tensor_2d(leaves, SHEAF_TYPE_F16, K, M);
    struct sheaf_tensor *b = sheaf_new_tensor_2d(leaves, SHEAF_TYPE_F32, K, COLUMNS_OF_X);
    if (sheaf_backend_alloc_ctx_tensors(leaves, backend, &buffer)) return fail("memory");
    struct sheaf_tensor *t = sheaf_mul_mat(nodes, sheaf_view_2d(nodes, a, K, M, a->nb[1], 0), b);
    struct sheaf_cgraph *graph = sheaf_new_graph(nodes);
    sheaf_gallocr_t galloc = sheaf_gallocr_new(sheaf_backend_get_default_buffer_type(backend));
    if (sheaf_build_forward_expand(graph, t) || sheaf_gallocr_alloc_graph(galloc, graph))
        return fail("graph");
    for (int i = 0; i < K * COLUMNS_OF_X; i++) x[i] = 128;
    if (sheaf_from_float(a->type, x, raw, K * M) ||
        sheaf_backend_tensor_set(a, raw, 0, sizeof raw) ||
        sheaf_backend_tensor_set(b, x, 0, sizeof x) ||
        sheaf_backend_graph_compute(backend, graph) || sheaf_backend_tensor_get(t, y, 0, sizeof y))
        return fail("compute");
    for (int i = 0; i < M * COLUMNS_OF_X; i++) wrong += y[i] != K * 128.0f * 128.0f;
    release(galloc, buffer, leaves, nodes);
    return say_wrong(wrong);
}

/* A result of attention and a tensor that comes behind it. */
static int room(sheaf_backend_t backend) {
    static float v[HEAD * HEADS], y[HEAD * HEADS * 2], behind[N], back[N];
    struct sheaf_context *ctx = context();
    sheaf_backend_buffer_t buffer = NULL;
    int wrong = 0;
    struct sheaf_tensor *q = sheaf_new_tensor_3d(ctx, SHEAF_TYPE_F32, HEAD, 1, HEADS * 2);
    struct sheaf_tensor *tk = sheaf_new_tensor_3d(ctx, SHEAF_TYPE_F32, HEAD, 1, HEADS);
    struct sheaf_tensor *tv = sheaf_new_tensor_3d(ctx, SHEAF_TYPE_F32, HEAD, 1, HEADS);
    struct sheaf_tensor *t = sheaf_flash_attn_ext(ctx, q, tk, tv, NULL, 0.125f, 0, 0);
    struct sheaf_tensor *next = sheaf_new_tensor_1d(ctx, SHEAF_TYPE_F32, N);
    struct sheaf_cgraph *graph = sheaf_new_graph(ctx);
    for (int i = 0; i < HEAD * HEADS; i++) v[i] = (float)i;
    for (int i = 0; i < N; i++) behind[i] = (float)(i + 1);
    if (sheaf_backend_alloc_ctx_tensors(ctx, backend, &buffer)) return fail("memory");
    if (fill(q, 3) || fill(tk, 5) || sheaf_backend_tensor_set(tv, v, 0, sizeof v) ||
        sheaf_backend_tensor_set(next, behind, 0, sizeof behind) ||
        sheaf_build_forward_expand(graph, t) || sheaf_backend_graph_compute(backend, graph) ||
        sheaf_backend_tensor_get(t, y, 0, sizeof y) ||
        sheaf_backend_tensor_get(next, back, 0, sizeof back))
        return fail("attention");
    for (int i = 0; i < HEAD * HEADS * 2; i++) wrong += y[i] != v[i / HEAD / 2 * HEAD + i % HEAD];
    for (int i = 0; i < N; i++) wrong += back[i] != behind[i];
    sheaf_backend_buffer_free(buffer);
    sheaf_free(ctx);
    return say_wrong(wrong);
}

/* Node `which` over views that begin where a GPU does not bind memory. NULL: there are no more. */
static struct sheaf_tensor *unbound(struct sheaf_context *ctx, int which, struct sheaf_tensor *f,
                                    struct sheaf_tensor *q, struct sheaf_tensor *w) {
    struct sheaf_tensor *rows = sheaf_view_2d(ctx, f, 32, 8, f->nb[1], f->nb[1]);
    struct sheaf_tensor *blocks = sheaf_view_2d(ctx, q, 32, 8, q->nb[1], 3 * q->nb[1]);
    switch (which) {
    case 0:
        return sheaf_mul_mat(ctx, w, rows);
    case 1:
        return sheaf_soft_max(ctx, rows);
    case 2:
        return sheaf_cast(ctx, blocks, SHEAF_TYPE_F32);
    case 3:
        return sheaf_sqr(ctx, rows);
    case 4:
        return sheaf_cast(ctx, sheaf_cont(ctx, blocks), SHEAF_TYPE_F32);
    default:
        return NULL;
    }
}

/* A node that the device takes must have the values of a CPU device: 1; 0: it does not take it. */
static int starts_on(sheaf_backend_t backend, int which, float *y, const char **op) {
    static float x[33 * 16];
    static char raw[sizeof x];
    struct sheaf_context *leaves = context(), *nodes = context();
    sheaf_backend_buffer_t buffer = NULL;
    struct sheaf_tensor *f = sheaf_new_tensor_2d(leaves, SHEAF_TYPE_F32, 33, 16);
    struct sheaf_tensor *q = sheaf_new_tensor_2d(leaves, SHEAF_TYPE_Q4_0, 32, 16);
    struct sheaf_tensor *w = sheaf_new_tensor_2d(leaves, SHEAF_TYPE_F32, 32, 8);
    struct sheaf_tensor *t = unbound(nodes, which, f, q, w);
    struct sheaf_cgraph *graph = sheaf_new_graph(nodes);
    sheaf_gallocr_t galloc = sheaf_gallocr_new(sheaf_backend_get_default_buffer_type(backend));
    if (!t) return -1;
    *op = sheaf_op_desc(t);
    if (sheaf_backend_alloc_ctx_tensors(leaves, backend, &buffer)) return -2;
    for (int i = 0; i < 33 * 16; i++) x[i] = (float)(i * 7 % 23 - 11) / 8;
    const bool takes = sheaf_backend_supports_op(backend, t);
    if (takes &&
        (sheaf_from_float(q->type, x, raw, 32 * 16) ||
         sheaf_backend_tensor_set(q, raw, 0, sheaf_nbytes(q)) ||
         sheaf_backend_tensor_set(f, x, 0, sizeof x) ||
         sheaf_backend_tensor_set(w, x, 0, sheaf_nbytes(w)) ||
         sheaf_build_forward_expand(graph, t) || sheaf_gallocr_alloc_graph(galloc, graph) ||
         sheaf_backend_graph_compute(backend, graph) ||
         sheaf_backend_tensor_get(t, y, 0, sheaf_nbytes(t))))
        return -2;
    release(galloc, buffer, leaves, nodes);
    return takes;
}

static int starts(sheaf_backend_t backend) {
    static float y[256], want[256];
    const char *op = NULL;
    sheaf_backend_t cpu;
    int wrong = 0, is = 0;
    if (sheaf_backend_init_by_name("CPU0", NULL, &cpu)) return fail("CPU0");
    for (int which = 0; (is = starts_on(backend, which, y, &op)) >= 0; which++) {
        if (starts_on(cpu, which, want, &op) != 1) return fail("CPU0");
        printf("%s: %s\n", op, is ? "taken" : "refused");
        for (int i = 0; is && i < 8; i++) wrong += !(fabsf(y[i] - want[i]) < 1e-4f);
    }
    sheaf_backend_free(cpu);
    return is == -2 ? fail(op) : say_wrong(wrong);
}

/* Nodes that a device of CUDA says it computes, and does not. */
static int asks_cuda(sheaf_backend_dev_t dev) {
    struct sheaf_context *ctx = context();
    struct sheaf_tensor *a = sheaf_new_tensor_2d(ctx, SHEAF_TYPE_F32, COLUMNS, ROWS);
    struct sheaf_tensor *gap = sheaf_view_2d(ctx, a, COLUMNS / 2, ROWS, a->nb[1], 0);
    struct sheaf_tensor *wide = sheaf_new_tensor_2d(ctx, SHEAF_TYPE_F32, 4, ROWS);
    struct sheaf_tensor *narrow = sheaf_new_tensor_2d(ctx, SHEAF_TYPE_F32, 2, ROWS);
    struct sheaf_tensor *nine = sheaf_new_tensor_2d(ctx, SHEAF_TYPE_F32, 9, ROWS);
    struct sheaf_tensor *six = sheaf_new_tensor_2d(ctx, SHEAF_TYPE_F32, 6, ROWS);
    struct sheaf_tensor *x = sheaf_new_tensor_3d(ctx, SHEAF_TYPE_F32, 16, ROWS, 1);
    struct sheaf_tensor *longs = sheaf_new_tensor_2d(ctx, SHEAF_TYPE_I64, COLUMNS, ROWS);
    const struct sheaf_tensor *nodes[] = {
        sheaf_clamp(ctx, a, 0, 1),    sheaf_clamp(ctx, gap, 0, 1),
        sheaf_argmax(ctx, a),         sheaf_argmax(ctx, gap),
        sheaf_silu(ctx, a),           sheaf_silu(ctx, gap),
        sheaf_ssm_conv(ctx, x, wide), sheaf_ssm_conv(ctx, x, narrow),
        sheaf_ssm_conv(ctx, x, nine), sheaf_ssm_conv(ctx, x, six),
        sheaf_cpy(ctx, a, a),         sheaf_cpy(ctx, longs, longs),
    };
    for (size_t i = 0; i < sizeof nodes / sizeof *nodes; i++)
        printf("%s: %d\n", sheaf_op_desc(nodes[i]), sheaf_backend_dev_supports_op(dev, nodes[i]));
    sheaf_free(ctx);
    return 0;
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

/* A stream of another device waits for an event of this one. */
static int waits(sheaf_backend_dev_t dev, sheaf_backend_t first) {
    static float x[N], y[N];
    sheaf_backend_t second = NULL;
    sheaf_backend_event_t event = NULL;
    struct sheaf_context *ctx = context();
    sheaf_backend_buffer_t buffer = NULL;
    int wrong = 0;
    struct sheaf_tensor *in = sheaf_new_tensor_1d(ctx, SHEAF_TYPE_F32, N);
    struct sheaf_tensor *t = sheaf_scale(ctx, in, factor);
    struct sheaf_cgraph *graph = sheaf_new_graph(ctx);
    if (sheaf_backend_init_by_name("ggml:FAKE1", NULL, &second) ||
        sheaf_backend_event_new(dev, &event))
        return fail("start");
    if (sheaf_backend_alloc_ctx_tensors(ctx, first, &buffer)) return fail("memory");
    for (int i = 0; i < N; i++) x[i] = (float)i;
    if (sheaf_backend_tensor_set(in, x, 0, sizeof x) || sheaf_build_forward_expand(graph, t) ||
        sheaf_backend_graph_compute_async(first, graph) ||
        sheaf_backend_event_record(event, first) || sheaf_backend_event_wait(second, event) ||
        sheaf_backend_synchronize(second) || sheaf_backend_tensor_get(t, y, 0, sizeof y))
        return fail("wait");
    for (int i = 0; i < N; i++) wrong += y[i] != x[i] * factor;
    sheaf_backend_event_free(event);
    sheaf_backend_free(second);
    sheaf_backend_buffer_free(buffer);
    sheaf_free(ctx);
    return say_wrong(wrong);
}

int main(int argc, char **argv) {
    const char *name = argc > 1 ? argv[1] : "", *mode = argc > 2 ? argv[2] : "alone";
    const sheaf_backend_dev_t *devices = NULL;
    sheaf_backend_t backend = NULL;
    sheaf_backend_dev_t meta = NULL;
    size_t n = 0;
    int status;
    const char *has = getenv("SHEAF_TEST_HAS");
    if (has && !dlopen(has, RTLD_NOW | RTLD_LOCAL)) return printf("%s\n", dlerror()), 1;
    if (sheaf_world_init(NULL)) return fail("world");
    if (sheaf_backend_load_all()) return fail("modules");
    if (sheaf_world_devices(&devices, &n)) return fail("devices");
    sheaf_backend_dev_t dev = sheaf_backend_dev_by_name(name);
    if (!dev) return printf("no device %s\n", name), 1;
    printf("%s: %s\n", sheaf_backend_dev_name(dev), sheaf_backend_dev_description(dev));
    const bool by_columns =
        !strcmp(mode, "columns") || !strcmp(mode, "slices") || !strcmp(mode, "sums");
    if (!strcmp(mode, "whole") || !strcmp(mode, "columns")) factor = 23;
    const bool ends = !strcmp(mode, "fails-on-it") || !strcmp(mode, "gives-up");
    if (!strcmp(mode, "asks")) factor = 37;
    if (ends) factor = !strcmp(mode, "gives-up") ? 29 : 13;
    if (by_columns) axis = axis_of_a = SHEAF_SPLIT_AXIS_0;
    if (!strcmp(mode, "slices")) axis_of_a = SHEAF_SPLIT_AXIS_MIRRORED;
    if (!strcmp(mode, "sums")) axis_of_a = SHEAF_SPLIT_AXIS_PARTIAL;
    if (!strcmp(mode, "meta") || !strcmp(mode, "whole") || by_columns || ends) {
        const int members = (int)n;
        status = sheaf_backend_meta_device(devices, n, cut, &members, NULL, &meta) ||
                 sheaf_backend_dev_init(meta, NULL, &backend);
        if (status) return fail("meta");
        printf("members: %zu\n", n);
        status = run(backend);
    } else {
        if (sheaf_backend_dev_init(dev, !strcmp(mode, "fail") ? "fail" : NULL, &backend))
            return fail("start");
        status = !strcmp(mode, "share")        ? share(backend)
                 : !strcmp(mode, "copy")       ? copy(dev, backend)
                 : !strcmp(mode, "moves")      ? moves(backend)
                 : !strcmp(mode, "keeps")      ? keeps(backend)
                 : !strcmp(mode, "heads")      ? heads(backend)
                 : !strcmp(mode, "room")       ? room(backend)
                 : !strcmp(mode, "large")      ? large(backend)
                 : !strcmp(mode, "starts")     ? starts(backend)
                 : !strcmp(mode, "waits")      ? waits(dev, backend)
                 : !strcmp(mode, "asks-cuda")  ? asks_cuda(dev)
                 : !strcmp(mode, "packs")      ? packs(backend, SHEAF_TYPE_F32)
                 : !strcmp(mode, "packs-q4_0") ? packs(backend, SHEAF_TYPE_Q4_0)
                 : !strcmp(mode, "fills")      ? fills(backend)
                 : !strcmp(mode, "short")      ? short_rows(backend, SHEAF_TYPE_F32)
                 : !strcmp(mode, "experts")    ? experts(backend)
                 : !strcmp(mode, "short-q8_0") ? short_rows(backend, SHEAF_TYPE_Q8_0)
                                               : run(backend);
        for (int i = 0; i < 2 && !strcmp(mode, "fail"); i++) run(backend); /* of other reasons */
        if (!status && !strcmp(mode, "alone")) status = refuses(dev) || events(dev, backend);
    }
    sheaf_backend_free(backend);
    sheaf_backend_meta_device_free(meta);
    sheaf_world_finalize();
    return status;
}
