/* Nodes that the far device refuses: see far.h. Nodes are told apart by op, types and extents, so
 * that one computed whole, of whatever strides, is known again. */
#include <pthread.h>
#include <stdlib.h>

#include "base/hash.h"
#include "far.h"

enum { ROOM = 1 << 15 };

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static uint64_t known[ROOM]; /* open addressed; 0: free */
static size_t n_known;

static const char *setting(void) { return getenv("SHEAF_TEST_FAR_SLICES"); }
bool far_takes_some(void) { return setting() != NULL; }

static uint64_t mix_shape(uint64_t h, const struct sheaf_tensor *t) {
    h = sheaf__mix(h, (uint64_t)t->type);
    for (int i = 0; i < SHEAF_MAX_DIMS; i++) h = sheaf__mix(h, (uint64_t)t->ne[i]);
    return h;
}

static uint64_t key_of(const struct sheaf_tensor *t) {
    uint64_t h = mix_shape((uint64_t)t->op, t);
    for (int i = 0; i < SHEAF_MAX_SRC; i++)
        h = t->src[i] ? mix_shape(h, t->src[i]) : sheaf__mix(h, 1);
    return h ? h : 1;
}

static uint64_t *find(uint64_t key) {
    size_t i = key % ROOM;
    while (known[i] && known[i] != key) i = (i + 1) % ROOM;
    return &known[i];
}

void far_knows(const struct sheaf_tensor *node) {
    const uint64_t key = key_of(node);
    pthread_mutex_lock(&lock);
    if (!*find(key)) {
        if (++n_known == ROOM) abort();
        *find(key) = key;
    }
    pthread_mutex_unlock(&lock);
}

bool far_takes(sheaf_backend_dev_t dev, const struct sheaf_tensor *node) {
    const uint64_t key = key_of(node);
    (void)dev;
    if (node->op == SHEAF_OP_NONE || sheaf_op_is_view(node->op) || sheaf_is_empty(node))
        return true;
    pthread_mutex_lock(&lock);
    const bool is_known = *find(key) != 0;
    pthread_mutex_unlock(&lock);
    if (is_known || sheaf__mix(key, strtoull(setting(), NULL, 10)) & 1) return true;
    atomic_fetch_add(&far_counts[FAR_REFUSED], 1);
    return false;
}
