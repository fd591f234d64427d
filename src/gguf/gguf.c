/* GGUF files: what a file holds (metadata and tensor directory), looked up by key or number.
 *
 * Owns struct sheaf_gguf; parsing of bytes is in read.c, writing in write.c. Never reads
 * tensor data. Invariant: keys and tensor names are unique, sizes and offsets of a reader lie
 * inside its file. Source of the format: the GGUF specification (ggml, docs/gguf.md). */
#include "sheaf/gguf.h"

#include <limits.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/array.h"
#include "base/hash.h"
#include "gguf/gguf_impl.h"

static const struct {
    const char *name;
    size_t size;
} types[SHEAF_GGUF_TYPE_COUNT] = {
    [SHEAF_GGUF_TYPE_UINT8] = {"u8", 1},      [SHEAF_GGUF_TYPE_INT8] = {"i8", 1},
    [SHEAF_GGUF_TYPE_UINT16] = {"u16", 2},    [SHEAF_GGUF_TYPE_INT16] = {"i16", 2},
    [SHEAF_GGUF_TYPE_UINT32] = {"u32", 4},    [SHEAF_GGUF_TYPE_INT32] = {"i32", 4},
    [SHEAF_GGUF_TYPE_FLOAT32] = {"f32", 4},   [SHEAF_GGUF_TYPE_BOOL] = {"bool", 1},
    [SHEAF_GGUF_TYPE_STRING] = {"string", 0}, [SHEAF_GGUF_TYPE_ARRAY] = {"array", 0},
    [SHEAF_GGUF_TYPE_UINT64] = {"u64", 8},    [SHEAF_GGUF_TYPE_INT64] = {"i64", 8},
    [SHEAF_GGUF_TYPE_FLOAT64] = {"f64", 8},
};

static bool type_is_valid(enum sheaf_gguf_type type) {
    return (unsigned)type < SHEAF_GGUF_TYPE_COUNT;
}

size_t sheaf__gguf_type_size(enum sheaf_gguf_type type) {
    return type_is_valid(type) ? types[type].size : 0;
}

const char *sheaf__gguf_type_name(enum sheaf_gguf_type type) {
    return type_is_valid(type) ? types[type].name : "?";
}

/* ---- index by name ---- */

static uint64_t hash_name(const char *name) {
    const uint64_t h = sheaf__hash_bytes(0, name, strlen(name));
    return h ^ (h >> 29);
}

static const char *kv_name(const struct sheaf_gguf *gguf, size_t i) { return gguf->kv[i].key; }

static const char *tensor_name(const struct sheaf_gguf *gguf, size_t i) {
    return gguf->tensors[i].name;
}

typedef const char *(*name_fn)(const struct sheaf_gguf *gguf, size_t i);

static int64_t index_find(const struct sheaf_gguf *gguf, const struct sheaf__gguf_index *index,
                          name_fn name_of, const char *name) {
    if (!index->n_slots) return -1;
    for (size_t s = hash_name(name) & (index->n_slots - 1); index->slots[s];
         s = (s + 1) & (index->n_slots - 1)) {
        size_t i = index->slots[s] - 1;
        if (strcmp(name_of(gguf, i), name) == 0) return (int64_t)i;
    }
    return -1;
}

static void index_put(struct sheaf__gguf_index *index, const char *name, size_t i) {
    size_t s = hash_name(name) & (index->n_slots - 1);
    while (index->slots[s]) s = (s + 1) & (index->n_slots - 1);
    index->slots[s] = (uint32_t)(i + 1);
}

/* Room for entry number n; keeps the table at most half full. */
static bool index_reserve(const struct sheaf_gguf *gguf, struct sheaf__gguf_index *index,
                          name_fn name_of, size_t n) {
    if (n >= UINT32_MAX / 4) return false;
    if (2 * (n + 1) <= index->n_slots) return true;
    size_t n_slots = index->n_slots ? 2 * index->n_slots : 64;
    uint32_t *slots = calloc(n_slots, sizeof *slots);
    if (!slots) return false;
    free(index->slots);
    index->slots = slots;
    index->n_slots = n_slots;
    for (size_t i = 0; i < n; i++) index_put(index, name_of(gguf, i), i);
    return true;
}

void sheaf__gguf_kv_clear(struct sheaf__gguf_kv *kv) {
    free(kv->key);
    free(kv->data);
    free(kv->offs);
    *kv = (struct sheaf__gguf_kv){0};
}

enum sheaf_status sheaf__gguf_push_kv(struct sheaf_gguf *gguf, struct sheaf__gguf_kv *kv) {
    enum sheaf_status status = SHEAF_STATUS_SUCCESS;
    if (sheaf_gguf_find_key(gguf, kv->key) >= 0) {
        status = sheaf_set_error(SHEAF_STATUS_INVALID, "%s: key '%s' occurs twice",
                                 sheaf_gguf_path(gguf), kv->key);
    } else if (!sheaf__grow(&gguf->kv, &gguf->cap_kv, gguf->n_kv + 1, sizeof *gguf->kv) ||
               !index_reserve(gguf, &gguf->kv_index, kv_name, gguf->n_kv)) {
        status = sheaf_set_error(SHEAF_STATUS_ALLOC_FAILED, "%s: no memory for key '%s'",
                                 sheaf_gguf_path(gguf), kv->key);
    }
    if (status) {
        sheaf__gguf_kv_clear(kv);
        return status;
    }
    gguf->kv[gguf->n_kv] = *kv;
    index_put(&gguf->kv_index, kv->key, gguf->n_kv++);
    *kv = (struct sheaf__gguf_kv){0};
    return SHEAF_STATUS_SUCCESS;
}

enum sheaf_status sheaf__gguf_push_tensor(struct sheaf_gguf *gguf, char *name,
                                          const struct sheaf_gguf_tensor *tensor,
                                          const void *data) {
    if (sheaf_gguf_find_tensor(gguf, name) >= 0) {
        enum sheaf_status status = sheaf_set_error(
            SHEAF_STATUS_INVALID, "%s: tensor '%s' occurs twice", sheaf_gguf_path(gguf), name);
        free(name);
        return status;
    }
    size_t cap = gguf->cap_tensors;
    if (!sheaf__grow(&gguf->tensor_data, &cap, gguf->n_tensors + 1, sizeof *gguf->tensor_data) ||
        !sheaf__grow(&gguf->tensors, &gguf->cap_tensors, gguf->n_tensors + 1,
                     sizeof *gguf->tensors) ||
        !index_reserve(gguf, &gguf->tensor_index, tensor_name, gguf->n_tensors)) {
        enum sheaf_status status =
            sheaf_set_error(SHEAF_STATUS_ALLOC_FAILED, "%s: no memory for tensor '%s'",
                            sheaf_gguf_path(gguf), name);
        free(name);
        return status;
    }
    gguf->tensors[gguf->n_tensors] = *tensor;
    gguf->tensors[gguf->n_tensors].name = name;
    gguf->tensor_data[gguf->n_tensors] = data;
    index_put(&gguf->tensor_index, name, gguf->n_tensors++);
    return SHEAF_STATUS_SUCCESS;
}

bool sheaf__gguf_tensor_size(enum sheaf_type type, const int64_t ne[SHEAF_MAX_DIMS], size_t *size) {
    int64_t block = sheaf_blck_size(type), n = 1;
    if (block <= 0 || ne[0] < 0 || ne[0] % block) return false;
    /* The element count fits int64_t too, and so does the product of any of the dimensions, also of
     * an empty tensor: later products do not overflow. */
    bool empty = false;
    for (int i = 0; i < SHEAF_MAX_DIMS; i++) {
        empty = empty || ne[i] == 0;
        if (ne[i] < 0 || __builtin_mul_overflow(n, ne[i] ? ne[i] : 1, &n)) return false;
    }
    if (empty) n = 0;
    return !__builtin_mul_overflow((size_t)(n / block), sheaf_type_size(type), size) &&
           *size <= INT64_MAX;
}

void sheaf_gguf_free(struct sheaf_gguf *gguf) {
    if (!gguf) return;
    if (gguf->fd >= 0) close(gguf->fd);
    for (size_t i = 0; i < gguf->n_kv; i++) sheaf__gguf_kv_clear(&gguf->kv[i]);
    for (size_t i = 0; i < gguf->n_tensors; i++) {
        char *name; /* owned; const only for readers of the public struct */
        memcpy(&name, &gguf->tensors[i].name, sizeof name);
        free(name);
    }
    free(gguf->kv);
    free(gguf->tensors);
    free(gguf->tensor_data);
    free(gguf->kv_index.slots);
    free(gguf->tensor_index.slots);
    free(gguf->path);
    free(gguf);
}

/* ---- lookup ---- */

const char *sheaf_gguf_path(const struct sheaf_gguf *gguf) {
    return gguf->path ? gguf->path : "(new GGUF)";
}
uint32_t sheaf_gguf_version(const struct sheaf_gguf *gguf) { return gguf->version; }
size_t sheaf_gguf_alignment(const struct sheaf_gguf *gguf) { return gguf->alignment; }
size_t sheaf_gguf_data_offset(const struct sheaf_gguf *gguf) { return gguf->data_offset; }
size_t sheaf_gguf_file_size(const struct sheaf_gguf *gguf) { return gguf->file_size; }

size_t sheaf_gguf_header_size(const struct sheaf_gguf *gguf) { return gguf->header_size; }

int64_t sheaf_gguf_n_kv(const struct sheaf_gguf *gguf) { return (int64_t)gguf->n_kv; }

int64_t sheaf_gguf_find_key(const struct sheaf_gguf *gguf, const char *key) {
    return index_find(gguf, &gguf->kv_index, kv_name, key);
}

static const struct sheaf__gguf_kv *kv_at(const struct sheaf_gguf *gguf, int64_t i) {
    return i >= 0 && (size_t)i < gguf->n_kv ? &gguf->kv[i] : NULL;
}

const char *sheaf_gguf_key(const struct sheaf_gguf *gguf, int64_t i) {
    const struct sheaf__gguf_kv *kv = kv_at(gguf, i);
    return kv ? kv->key : NULL;
}

enum sheaf_gguf_type sheaf_gguf_kv_type(const struct sheaf_gguf *gguf, int64_t i) {
    const struct sheaf__gguf_kv *kv = kv_at(gguf, i);
    return kv ? kv->type : SHEAF_GGUF_TYPE_COUNT;
}

enum sheaf_gguf_type sheaf_gguf_arr_type(const struct sheaf_gguf *gguf, int64_t i) {
    const struct sheaf__gguf_kv *kv = kv_at(gguf, i);
    return kv && kv->type == SHEAF_GGUF_TYPE_ARRAY ? kv->arr_type : SHEAF_GGUF_TYPE_COUNT;
}

size_t sheaf_gguf_arr_n(const struct sheaf_gguf *gguf, int64_t i) {
    const struct sheaf__gguf_kv *kv = kv_at(gguf, i);
    return kv && kv->type == SHEAF_GGUF_TYPE_ARRAY ? kv->n : 0;
}

const void *sheaf_gguf_arr_data(const struct sheaf_gguf *gguf, int64_t i) {
    const struct sheaf__gguf_kv *kv = kv_at(gguf, i);
    return kv && kv->type == SHEAF_GGUF_TYPE_ARRAY && kv->arr_type != SHEAF_GGUF_TYPE_STRING
               ? kv->data
               : NULL;
}

const char *sheaf_gguf_arr_str(const struct sheaf_gguf *gguf, int64_t i, size_t j, size_t *len) {
    const struct sheaf__gguf_kv *kv = kv_at(gguf, i);
    if (!kv || kv->type != SHEAF_GGUF_TYPE_ARRAY || kv->arr_type != SHEAF_GGUF_TYPE_STRING ||
        j >= kv->n)
        return NULL;
    if (len) *len = kv->offs[j + 1] - kv->offs[j] - 1;
    return (const char *)kv->data + kv->offs[j];
}

/* A number of any type, as the widest that holds it without loss. */
struct number {
    enum { UNSIGNED, SIGNED, REAL } kind; /* SIGNED only if negative */
    uint64_t u;
    int64_t i;
    double f;
};

static uint64_t decode_le(const uint8_t *p, size_t n) {
    uint64_t v = 0;
    for (size_t i = 0; i < n; i++) v |= (uint64_t)p[i] << (8 * i);
    return v;
}

static bool is_signed(enum sheaf_gguf_type type) {
    return type == SHEAF_GGUF_TYPE_INT8 || type == SHEAF_GGUF_TYPE_INT16 ||
           type == SHEAF_GGUF_TYPE_INT32 || type == SHEAF_GGUF_TYPE_INT64;
}

static enum sheaf_status get_number(const struct sheaf_gguf *gguf, const char *key,
                                    struct number *out) {
    const struct sheaf__gguf_kv *kv = kv_at(gguf, sheaf_gguf_find_key(gguf, key));
    if (!kv)
        return sheaf_set_error(SHEAF_STATUS_INVALID, "%s: key '%s' is missing",
                               sheaf_gguf_path(gguf), key);
    size_t size = sheaf__gguf_type_size(kv->type);
    if (!size || kv->type == SHEAF_GGUF_TYPE_BOOL)
        return sheaf_set_error(SHEAF_STATUS_INVALID, "%s: key '%s' is of type %s, not a number",
                               sheaf_gguf_path(gguf), key, sheaf__gguf_type_name(kv->type));
    uint64_t raw = decode_le(kv->data, size);
    *out = (struct number){.kind = UNSIGNED, .u = raw};
    if (kv->type == SHEAF_GGUF_TYPE_FLOAT32) {
        uint32_t bits = (uint32_t)raw;
        float f;
        memcpy(&f, &bits, sizeof f);
        out->kind = REAL;
        out->f = (double)f;
    } else if (kv->type == SHEAF_GGUF_TYPE_FLOAT64) {
        out->kind = REAL;
        memcpy(&out->f, &raw, sizeof out->f);
    } else if (is_signed(kv->type) && raw >> (8 * size - 1)) {
        out->kind = SIGNED;
        if (size < 8) raw |= ~(uint64_t)0 << (8 * size); /* extend the sign */
        memcpy(&out->i, &raw, sizeof out->i);
    }
    return SHEAF_STATUS_SUCCESS;
}

static enum sheaf_status lossy(const struct sheaf_gguf *gguf, const char *key, const char *wanted) {
    return sheaf_set_error(SHEAF_STATUS_INVALID, "%s: the value of key '%s' is not %s",
                           sheaf_gguf_path(gguf), key, wanted);
}

enum sheaf_status sheaf_gguf_get_u64(const struct sheaf_gguf *gguf, const char *key,
                                     uint64_t *out) {
    struct number n = {.kind = UNSIGNED};
    enum sheaf_status status = get_number(gguf, key, &n);
    if (status) return status;
    /* 2^64 is exact in double; the comparison is false for NaN */
    if (n.kind == REAL && n.f >= 0 && n.f < 18446744073709551616.0 && floor(n.f) >= n.f) {
        n.kind = UNSIGNED;
        n.u = (uint64_t)n.f;
    }
    if (n.kind != UNSIGNED) return lossy(gguf, key, "a whole number >= 0");
    *out = n.u;
    return SHEAF_STATUS_SUCCESS;
}

enum sheaf_status sheaf_gguf_get_i64(const struct sheaf_gguf *gguf, const char *key, int64_t *out) {
    struct number n = {.kind = UNSIGNED};
    enum sheaf_status status = get_number(gguf, key, &n);
    if (status) return status;
    if (n.kind == REAL && n.f >= -9223372036854775808.0 && n.f < 9223372036854775808.0 &&
        floor(n.f) >= n.f) {
        n.kind = SIGNED;
        n.i = (int64_t)n.f;
    } else if (n.kind == UNSIGNED && n.u <= INT64_MAX) {
        n.kind = SIGNED;
        n.i = (int64_t)n.u;
    }
    if (n.kind != SIGNED) return lossy(gguf, key, "a whole number of 64 bits");
    *out = n.i;
    return SHEAF_STATUS_SUCCESS;
}

enum sheaf_status sheaf_gguf_get_f64(const struct sheaf_gguf *gguf, const char *key, double *out) {
    struct number n = {.kind = UNSIGNED};
    enum sheaf_status status = get_number(gguf, key, &n);
    if (status) return status;
    const uint64_t exact = (uint64_t)1 << 53;
    if (n.kind == UNSIGNED && n.u <= exact) {
        n.kind = REAL;
        n.f = (double)n.u;
    } else if (n.kind == SIGNED && n.i >= -(int64_t)exact) {
        n.kind = REAL;
        n.f = (double)n.i;
    }
    if (n.kind != REAL) return lossy(gguf, key, "exact in double precision");
    *out = n.f;
    return SHEAF_STATUS_SUCCESS;
}

static enum sheaf_status get_kind(const struct sheaf_gguf *gguf, const char *key,
                                  enum sheaf_gguf_type type, const struct sheaf__gguf_kv **out) {
    *out = kv_at(gguf, sheaf_gguf_find_key(gguf, key));
    if (!*out)
        return sheaf_set_error(SHEAF_STATUS_INVALID, "%s: key '%s' is missing",
                               sheaf_gguf_path(gguf), key);
    if ((*out)->type != type)
        return sheaf_set_error(SHEAF_STATUS_INVALID, "%s: key '%s' is of type %s, not %s",
                               sheaf_gguf_path(gguf), key, sheaf__gguf_type_name((*out)->type),
                               sheaf__gguf_type_name(type));
    return SHEAF_STATUS_SUCCESS;
}

enum sheaf_status sheaf_gguf_get_bool(const struct sheaf_gguf *gguf, const char *key, bool *out) {
    const struct sheaf__gguf_kv *kv;
    enum sheaf_status status = get_kind(gguf, key, SHEAF_GGUF_TYPE_BOOL, &kv);
    if (!status) *out = kv->data[0] != 0;
    return status;
}

enum sheaf_status sheaf_gguf_get_str(const struct sheaf_gguf *gguf, const char *key,
                                     const char **out) {
    const struct sheaf__gguf_kv *kv;
    enum sheaf_status status = get_kind(gguf, key, SHEAF_GGUF_TYPE_STRING, &kv);
    if (!status) *out = (const char *)kv->data;
    return status;
}

int64_t sheaf_gguf_n_tensors(const struct sheaf_gguf *gguf) { return (int64_t)gguf->n_tensors; }

int64_t sheaf_gguf_find_tensor(const struct sheaf_gguf *gguf, const char *name) {
    return index_find(gguf, &gguf->tensor_index, tensor_name, name);
}

const struct sheaf_gguf_tensor *sheaf_gguf_tensor(const struct sheaf_gguf *gguf, int64_t i) {
    return i >= 0 && (size_t)i < gguf->n_tensors ? &gguf->tensors[i] : NULL;
}
