/* Bytes choose a graph and the cuts of its leaves (split_random.h); it is planned for three members
 * and computed by them, and every node must be what one device gives. */
#include "fuzz.h"

#include "meta_random.h"
#include "sheaf/world.h"

static struct split_model *model;
static sheaf_backend_dev_t meta;
static sheaf_backend_t backend;

enum { MEMBERS = 3 };

static void start(void) {
    const struct sheaf_backend_meta_params params = {.size = sizeof params};
    const sheaf_backend_dev_t *devices;
    size_t n = 0;
    setenv("SHEAF_CPU_DEVICES", "3", 1);
    setenv("SHEAF_CPU_THREADS", "1", 1);
    MUST(!sheaf_world_init(NULL) && !sheaf_world_devices(&devices, &n) && n >= MEMBERS);
    MUST(!sheaf_backend_meta_device(devices, MEMBERS, meta_random_state, &model, &params, &meta));
    MUST(!sheaf_backend_dev_init(meta, NULL, &backend));
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    struct maker k;
    long n_nodes = 0;
    if (!backend) start();
    make_graph_of(&k, data, size, 10, MEMBERS);
    model = &k.m;
    if (meta_random_can(meta, k.m.graph)) MUST(meta_random_run(backend, &k, k.seed, &n_nodes));
    split_model_free(&k.m);
    split_free_all();
    return 0;
}
