/* Rank 1 computes another graph than rank 0, in the way that the argument names; started under
 * mpirun by test-plan.c. Prints the error text of every rank, or "computed" if there is none. */
#include "meta_scenario.h"
#include "start_job.h"

static enum sheaf_status state(const struct sheaf_tensor *t, const void *user,
                               struct sheaf_split_state **out) {
    const bool other = *(const bool *)user;
    (void)t;
    *out = sheaf_split_state_cut(SHEAF_SPLIT_AXIS_1, 2,
                                 other ? (int64_t[]){5, 3} : (int64_t[]){4, 4}, 1);
    return *out ? SHEAF_STATUS_SUCCESS : SHEAF_STATUS_ALLOC_FAILED;
}

static enum sheaf_status compute(const char *how) {
    const sheaf_backend_dev_t *devices;
    size_t n;
    const bool other = sheaf_world_rank() == 1;
    bool other_cut = other && !strcmp(how, "cut");
    sheaf_backend_dev_t meta = NULL;
    sheaf_backend_t backend = NULL;
    sheaf_backend_buffer_t buffer = NULL;
    enum sheaf_status st = sheaf_world_devices(&devices, &n);
    if (!st && n != 2) st = sheaf_set_error(SHEAF_STATUS_FAILED, "%zu devices", n);
    if (!st) st = sheaf_backend_meta_device(devices, 2, state, &other_cut, NULL, &meta);
    if (!st) st = sheaf_backend_dev_init(meta, NULL, &backend);
    if (st) return st;
    struct sheaf_context *ctx = sheaf_init((struct sheaf_init_params){
        .mem_size = 16 * sheaf_tensor_overhead() + sheaf_graph_overhead_custom(8),
        .no_alloc = true});
    struct sheaf_tensor *w = sheaf_set_name(sheaf_new_tensor_2d(ctx, SHEAF_TYPE_F32, 4, 8), "w");
    st = sheaf_backend_alloc_ctx_tensors(ctx, backend, &buffer);
    if (!st) st = sheaf_backend_buffer_clear(buffer, 0);
    const int64_t n_tokens = other && !strcmp(how, "shape") ? 3 : 2;
    struct sheaf_tensor *x = sheaf_new_tensor_2d(ctx, SHEAF_TYPE_F32, 4, n_tokens);
    struct sheaf_tensor *y = sheaf_mul_mat(ctx, w, x);
    y = other && !strcmp(how, "op") ? sheaf_gelu(ctx, y) : sheaf_silu(ctx, y);
    if (other && !strcmp(how, "nodes")) y = sheaf_scale(ctx, y, 2);
    sheaf_set_output(y);
    struct sheaf_cgraph *graph = sheaf_new_graph_custom(ctx, 8);
    if (!st) st = sheaf_build_forward_expand(graph, y);
    sheaf_gallocr_t galloc = sheaf_gallocr_new(sheaf_backend_get_default_buffer_type(backend));
    if (!st) st = sheaf_gallocr_alloc_graph(galloc, graph);
    if (!st) st = sheaf_backend_graph_compute(backend, graph);
    if (!st) printf("rank %d computed\n", sheaf_world_rank());
    sheaf_gallocr_free(galloc);
    sheaf_backend_buffer_free(buffer);
    sheaf_free(ctx);
    sheaf_backend_free(backend);
    sheaf_backend_meta_device_free(meta);
    return st;
}

int main(int argc, char **argv) {
    if (argc != 2 || start_job()) {
        fprintf(stderr, "helper-diverge same|shape|op|cut|nodes: %s\n", sheaf_last_error());
        return 1;
    }
    const enum sheaf_status st = compute(argv[1]);
    if (st) {
        fprintf(stderr, "rank %d: %s\n", sheaf_world_rank(), sheaf_last_error());
        sheaf_world_abort(sheaf_last_error());
    }
    sheaf_world_finalize();
    return st ? 1 : 0;
}
