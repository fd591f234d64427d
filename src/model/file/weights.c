/* Opens models. Owns struct sheaf__weights.
 *
 * Invariant after sheaf__weights_open: every weight that the architecture needs is there, with the
 * shape that the hyperparameters ask for, and no tensor of the files is left unused. */
#include "model/file/weights.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "sheaf/alloc.h"
#include "sheaf/backend-impl.h"
#include "sheaf/world.h"

#include "base/format.h"
#include "base/hash.h"
#include "base/text.h"
#include "model/arch/tag.h"

enum { MAX_FILES = 4096 };

void sheaf__weights_free(struct sheaf__weights *model) {
    if (!model) return;
    sheaf_backend_buffer_free(model->buffer);
    sheaf_free(model->ctx);
    for (int i = 0; i < model->n_files; i++) sheaf_gguf_free(model->files[i]);
    free(model->files);
    free(model->reads);
    free(model->layers);
    free(model);
}

static enum sheaf_status no_memory(const char *path) {
    return sheaf_set_error(SHEAF_STATUS_ALLOC_FAILED, "%s: no memory to describe the model", path);
}

/* ---- files ---- */

/* "x-00001-of-00003.gguf" and i = 1 -> "x-00002-of-00003.gguf"; owned by the caller. */
static enum sheaf_status split_path(const char *first, int i, int n, char **out) {
    static const char digits[] = "-00001-of-"; /* then 5 digits and ".gguf" */
    size_t len = strlen(first), tail = sizeof digits - 1 + 5 + 5;
    char expected[32];
    snprintf(expected, sizeof expected, "%s%05d.gguf", digits, n);
    if (len < tail || strcmp(first + len - tail, expected) != 0)
        return sheaf_set_error(SHEAF_STATUS_INVALID,
                               "%s is one of %d split files, but its name does not end in '%s': "
                               "give the first file, under its original name",
                               first, n, expected);
    *out = sheaf__format("%.*s-%05d-of-%05d.gguf", (int)(len - tail), first, i + 1, n);
    return *out ? SHEAF_STATUS_SUCCESS : no_memory(first);
}

static enum sheaf_status optional_int(const struct sheaf_gguf *gguf, const char *key, int64_t *v) {
    return sheaf_gguf_find_key(gguf, key) < 0 ? SHEAF_STATUS_SUCCESS
                                              : sheaf_gguf_get_i64(gguf, key, v);
}

/* Is the file part i, counted from 0, of n? */
static enum sheaf_status check_part(const struct sheaf_gguf *gguf, int64_t i, int64_t n) {
    int64_t number = -1, count = n;
    enum sheaf_status status = sheaf_gguf_get_i64(gguf, "split.no", &number);
    if (!status) status = optional_int(gguf, "split.count", &count);
    if (status || (number == i && count == n)) return status;
    return sheaf_set_error(SHEAF_STATUS_INVALID,
                           "%s: by split.no, %" PRId64 ", and split.count, %" PRId64
                           ", it is another file than part %" PRId64 " of %" PRId64
                           ", as its name says: get this part again",
                           sheaf_gguf_path(gguf), number, count, i + 1, n);
}

static enum sheaf_status open_files(const char *path, struct sheaf__weights *model) {
    int64_t n = 1, no = 0, n_tensors = -1, sum = 0;
    struct sheaf_gguf *first = NULL;
    enum sheaf_status status = sheaf_gguf_open(path, &first);
    if (status) return status;
    status = optional_int(first, "split.count", &n);
    if (!status) status = optional_int(first, "split.no", &no);
    if (!status) status = optional_int(first, "split.tensors.count", &n_tensors);
    if (n == 0) n = 1;
    if (!status && (n < 1 || n > MAX_FILES))
        status = sheaf_set_error(SHEAF_STATUS_INVALID,
                                 "%s: split.count is %" PRId64 "; allowed are 0..%d", path, n,
                                 MAX_FILES);
    if (!status && no != 0)
        status = sheaf_set_error(SHEAF_STATUS_INVALID,
                                 "%s is not the first of %" PRId64 " split files (its split.no is "
                                 "%" PRId64 "): give the first one (number 00001)",
                                 path, n, no);
    if (!status) {
        model->files = calloc((size_t)n, sizeof(*model->files));
        if (!model->files) status = no_memory(path);
    }
    if (status) {
        sheaf_gguf_free(first);
        return status;
    }
    model->files[model->n_files++] = model->gguf = first;
    for (int i = 1; i < n; i++) {
        char *name = NULL;
        status = split_path(path, i, (int)n, &name);
        if (!status) status = sheaf_gguf_open(name, &model->files[i]);
        free(name);
        if (status) return status;
        model->n_files = i + 1;
        status = check_part(model->files[i], i, n);
        if (status) return status;
    }
    for (int i = 0; i < model->n_files; i++) sum += sheaf_gguf_n_tensors(model->files[i]);
    if (n_tensors >= 0 && n > 1 && sum != n_tensors)
        return sheaf_set_error(SHEAF_STATUS_INVALID,
                               "%s: its %d files hold %" PRId64 " tensors, not %" PRId64, path,
                               model->n_files, sum, n_tensors);
    return SHEAF_STATUS_SUCCESS;
}

static const struct sheaf_gguf_tensor *find(const struct sheaf__weights *model, const char *name,
                                            int *file) {
    for (int i = 0; i < model->n_files; i++) {
        int64_t k = sheaf_gguf_find_tensor(model->files[i], name);
        if (k >= 0) {
            if (file) *file = i;
            return sheaf_gguf_tensor(model->files[i], k);
        }
    }
    return NULL;
}

/* ---- descriptors ---- */

static bool bit(uint64_t set, int w) { return set >> (unsigned)w & 1; }

static enum sheaf_status check_shape(const struct sheaf__weights *model,
                                     const struct sheaf_gguf *file,
                                     const struct sheaf_gguf_tensor *t, enum sheaf__weight w) {
    char want[96] = "";
    struct sheaf__text text = {want, sizeof want, 0};
    bool same = t->ne[3] == 1;
    for (int i = 0; i < SHEAF__MAX_WEIGHT_DIMS; i++) {
        const int64_t ne = sheaf__dim_extent(&model->hp, sheaf__weight_infos[w].dims[i]);
        same = same && t->ne[i] == ne;
        if (i < 2 || i < sheaf__weight_n_dims(w))
            sheaf__put(&text, "%s%" PRId64, i ? ", " : "", ne);
    }
    if (same) return SHEAF_STATUS_SUCCESS;
    return sheaf_set_error(SHEAF_STATUS_INVALID,
                           "%s: tensor '%s' is [%" PRId64 ", %" PRId64 ", %" PRId64 ", %" PRId64
                           "], but the metadata asks for [%s]",
                           sheaf_gguf_path(file), t->name, t->ne[0], t->ne[1], t->ne[2], t->ne[3],
                           want);
}

static bool type_is_allowed(enum sheaf__weight w, enum sheaf_type type) {
    if (type == SHEAF_TYPE_I32 || type == SHEAF_TYPE_I64) return false;
    return !sheaf__weight_is_f32(w) || type == SHEAF_TYPE_F32;
}

/* May the model have it, in layer il? */
static bool belongs(const struct sheaf__hparams *hp, enum sheaf__weight w, int64_t il) {
    const struct sheaf__arch *arch = hp->arch;
    if (il >= 0) return bit(sheaf__arch_layer_needs(hp, il) | arch->allows, (int)w);
    return bit(arch->model_needs | arch->model_allows, (int)w - SHEAF__W_LAYER_COUNT);
}

static enum sheaf_status add_tensor(struct sheaf__weights *model, const struct sheaf_gguf *file,
                                    const struct sheaf_gguf_tensor *t) {
    const struct sheaf__arch *arch = model->hp.arch;
    int64_t il;
    const enum sheaf__weight w =
        sheaf__weight_find(t->name, arch->needs | arch->dense | arch->mixture, &il);
    if (w == SHEAF__W_COUNT || il >= model->hp.n_layer || !belongs(&model->hp, w, il))
        return sheaf_set_error(SHEAF_STATUS_UNSUPPORTED,
                               "%s: tensor '%s' is not part of architecture %s as it is built here",
                               sheaf_gguf_path(file), t->name, arch->name);
    enum sheaf_status status = check_shape(model, file, t, w);
    if (status) return status;
    if (!type_is_allowed(w, t->type))
        return sheaf_set_error(SHEAF_STATUS_UNSUPPORTED, "%s: tensor '%s' cannot be of type %s",
                               sheaf_gguf_path(file), t->name, sheaf_type_name(t->type));
    struct sheaf_tensor **slot = il >= 0 ? &model->layers[il].w[w] : &model->w[w];
    if (*slot)
        return sheaf_set_error(SHEAF_STATUS_INVALID, "%s: tensor '%s' is in two of the files",
                               sheaf_gguf_path(file), t->name);
    *slot = sheaf_new_tensor(model->ctx, t->type, sheaf__weight_n_dims(w), t->ne);
    if (!*slot) return SHEAF_STATUS_ALLOC_FAILED;
    sheaf_set_name(*slot, t->name);
    sheaf__tag_set(*slot, (int)w, il);
    if (sheaf__weight_is_factor(w)) (*slot)->flags |= SHEAF_BACKEND_TENSOR_FACTOR;
    model->total_bytes += t->size; /* at most the files' sizes */
    return SHEAF_STATUS_SUCCESS;
}

static enum sheaf_status missing(const struct sheaf__weights *model, int64_t il, int w) {
    char prefix[32] = "";
    if (il >= 0) snprintf(prefix, sizeof prefix, "blk.%" PRId64 ".", il);
    return sheaf_set_error(SHEAF_STATUS_INVALID, "%s: tensor '%s%s' is missing",
                           sheaf_gguf_path(model->gguf), prefix, sheaf__weight_infos[w].name);
}

static enum sheaf_status check_complete(const struct sheaf__weights *model) {
    const uint64_t qkv = SHEAF__W_BIT(Q) | SHEAF__W_BIT(K) | SHEAF__W_BIT(V);
    const uint64_t qkv_bias = SHEAF__W_BIT(Q_BIAS) | SHEAF__W_BIT(K_BIAS) | SHEAF__W_BIT(V_BIAS);
    for (int64_t il = 0; il < model->hp.n_layer; il++) {
        uint64_t needs = sheaf__arch_layer_needs(&model->hp, il);
        struct sheaf_tensor *const *t = model->layers[il].w;
        if (t[SHEAF__W_QKV]) {
            if (needs & qkv_bias) needs |= SHEAF__W_BIT(QKV_BIAS);
            needs &= ~(qkv | qkv_bias);
        }
        for (int w = 0; w < SHEAF__W_LAYER_COUNT; w++) {
            const bool separate = bit(qkv | qkv_bias, w), fused = w == SHEAF__W_QKV_BIAS;
            if (t[w] && (t[SHEAF__W_QKV] ? separate : fused))
                return sheaf_set_error(
                    SHEAF_STATUS_INVALID,
                    "%s: layer %" PRId64
                    " has fused and separate q, k, v, or biases of the other form",
                    sheaf_gguf_path(model->gguf), il);
        }
        for (int w = 0; w < SHEAF__W_LAYER_COUNT; w++) {
            if (bit(needs, w) && !t[w]) return missing(model, il, w);
        }
    }
    for (int w = SHEAF__W_LAYER_COUNT; w < SHEAF__W_COUNT; w++) {
        if (bit(model->hp.arch->model_needs, w - SHEAF__W_LAYER_COUNT) && !model->w[w])
            return missing(model, -1, w);
    }
    return SHEAF_STATUS_SUCCESS;
}

static enum sheaf_status describe(struct sheaf__weights *model) {
    const char *path = sheaf_gguf_path(model->gguf);
    const struct sheaf_gguf_tensor *embd = find(model, "token_embd.weight", NULL);
    enum sheaf_status status = sheaf__hparams_read(model->gguf, embd ? embd->ne[1] : 1, &model->hp);
    if (status) return status; /* an unknown architecture is the better message */
    if (!embd) return missing(model, -1, SHEAF__W_TOKEN_EMBD);
    if (embd->ne[1] < 1 || embd->ne[1] > 1 << 24)
        return sheaf_set_error(SHEAF_STATUS_INVALID,
                               "%s: token_embd.weight has %" PRId64 " rows: not a vocabulary", path,
                               embd->ne[1]);
    model->layers = calloc((size_t)model->hp.n_layer, sizeof *model->layers);
    size_t n = 0;
    for (int i = 0; i < model->n_files; i++) n += (size_t)sheaf_gguf_n_tensors(model->files[i]);
    model->ctx = sheaf_init((struct sheaf_init_params){
        .mem_size = (n + 1) * sheaf_tensor_overhead(), .no_alloc = true});
    if (!model->layers || !model->ctx) return no_memory(path);
    for (int i = 0; i < model->n_files; i++) {
        for (int64_t k = 0; k < sheaf_gguf_n_tensors(model->files[i]); k++) {
            status = add_tensor(model, model->files[i], sheaf_gguf_tensor(model->files[i], k));
            if (status) return status;
        }
    }
    return check_complete(model);
}

enum sheaf_status sheaf__weights_open(const char *path, struct sheaf__weights **out) {
    *out = NULL;
    struct sheaf__weights *model = calloc(1, sizeof *model);
    if (!model) return no_memory(path);
    enum sheaf_status status = open_files(path, model);
    if (!status) status = describe(model);
    if (status)
        sheaf__weights_free(model);
    else
        *out = model;
    return status;
}

enum sheaf_status sheaf__weights_describe(struct sheaf_gguf **files, int n,
                                          struct sheaf__weights **out) {
    *out = NULL;
    struct sheaf__weights *model = calloc(1, sizeof *model);
    struct sheaf_gguf **own = calloc((size_t)n, sizeof(*own));
    if (!model || !own) {
        free(model);
        free(own);
        for (int i = 0; i < n; i++) sheaf_gguf_free(files[i]);
        return no_memory("a model without a file");
    }
    memcpy(own, files, (size_t)n * sizeof(*own));
    model->files = own;
    model->n_files = n;
    model->gguf = own[0];
    const enum sheaf_status status = describe(model);
    if (status)
        sheaf__weights_free(model);
    else
        *out = model;
    return status;
}

/* ---- fingerprint ---- */

static uint64_t hash_kv(uint64_t h, const struct sheaf_gguf *gguf, int64_t i) {
    const char *key = sheaf_gguf_key(gguf, i), *s;
    uint64_t u;
    int64_t n;
    double f;
    bool b;
    h = sheaf__hash_bytes(h, key, strlen(key) + 1);
    size_t count = sheaf_gguf_arr_n(gguf, i);
    for (size_t j = 0; j < count; j++) {
        size_t len;
        s = sheaf_gguf_arr_str(gguf, i, j, &len);
        if (s) h = sheaf__hash_bytes(h, s, len + 1);
    }
    if (sheaf_gguf_arr_data(gguf, i)) {
        static const unsigned char sizes[SHEAF_GGUF_TYPE_COUNT] = {1, 1, 2, 2, 4, 4, 4,
                                                                   1, 0, 0, 8, 8, 8};
        return sheaf__hash_bytes(h, sheaf_gguf_arr_data(gguf, i),
                                 count * sizes[sheaf_gguf_arr_type(gguf, i)]);
    }
    switch (sheaf_gguf_kv_type(gguf, i)) {
    case SHEAF_GGUF_TYPE_ARRAY:
        return h;
    case SHEAF_GGUF_TYPE_STRING:
        return sheaf_gguf_get_str(gguf, key, &s) ? h : sheaf__hash_bytes(h, s, strlen(s) + 1);
    case SHEAF_GGUF_TYPE_BOOL:
        return sheaf_gguf_get_bool(gguf, key, &b) ? h : sheaf__hash_bytes(h, &b, sizeof b);
    case SHEAF_GGUF_TYPE_FLOAT32:
    case SHEAF_GGUF_TYPE_FLOAT64:
        return sheaf_gguf_get_f64(gguf, key, &f) ? h : sheaf__hash_bytes(h, &f, sizeof f);
    default:
        if (!sheaf_gguf_get_u64(gguf, key, &u)) return sheaf__hash_bytes(h, &u, sizeof u);
        return sheaf_gguf_get_i64(gguf, key, &n) ? h : sheaf__hash_bytes(h, &n, sizeof n);
    }
}

/* Some bytes from the middle of each tensor: files of one shape may hold other weights, and one
 * that was not copied to its end differs there. Unreadable bytes count too. */
static uint64_t hash_samples(uint64_t h, const struct sheaf_gguf *gguf) {
    for (int64_t i = 0; i < sheaf_gguf_n_tensors(gguf); i++) {
        const struct sheaf_gguf_tensor *t = sheaf_gguf_tensor(gguf, i);
        unsigned char sample[64];
        const size_t n = t->size < sizeof sample ? t->size : sizeof sample;
        const bool read = !sheaf_gguf_read(gguf, t, (t->size - n) / 2, sample, n);
        h = sheaf__hash_bytes(h, &read, sizeof read);
        if (read)
            h = sheaf__hash_bytes(h, sample, n);
        else
            sheaf_clear_error();
    }
    return h;
}

const struct sheaf_tensor *sheaf__weights_typical(const struct sheaf__weights *model) {
    for (int w = 0; w < SHEAF__W_LAYER_COUNT; w++) {
        const struct sheaf__weight_info *info = &sheaf__weight_infos[w];
        const struct sheaf_tensor *t = model->layers[0].w[w];
        if (t && info->half == SHEAF__HALF_FFN && !info->exact && info->dims[1] != SHEAF__DIM_NONE)
            return t;
    }
    return model->w[SHEAF__W_TOKEN_EMBD];
}

double sheaf__weights_read_share(const struct sheaf__weights *model, enum sheaf__weight weight) {
    const struct sheaf__hparams *hp = &model->hp;
    return sheaf__weight_is_of_experts(weight) ? (double)hp->n_expert_used / (double)hp->n_expert
                                               : 1;
}

struct sheaf__fingerprint sheaf__weights_fingerprint(const struct sheaf__weights *model) {
    struct sheaf__fingerprint print = {0, 0};
    uint64_t h = 0;
    for (int f = 0; f < model->n_files; f++) {
        const struct sheaf_gguf *gguf = model->files[f];
        for (int64_t i = 0; i < sheaf_gguf_n_kv(gguf); i++) h = hash_kv(h, gguf, i);
        for (int64_t i = 0; i < sheaf_gguf_n_tensors(gguf); i++) {
            const struct sheaf_gguf_tensor *t = sheaf_gguf_tensor(gguf, i);
            h = sheaf__hash_bytes(h, t->name, strlen(t->name) + 1);
            h = sheaf__hash_bytes(h, &t->type, sizeof t->type);
            h = sheaf__hash_bytes(h, t->ne, sizeof t->ne);
            h = sheaf__hash_bytes(h, &t->offset, sizeof t->offset);
        }
        print.samples = hash_samples(print.samples, gguf);
    }
    print.header = h;
    return print;
}
