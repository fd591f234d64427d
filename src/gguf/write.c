/* Collects metadata and tensors and writes them as one GGUF file, version 3.
 *
 * Owns what is set; tensor data stays the caller's. A file appears under its name only when it is
 * complete (written beside it, then renamed). Only a regular file is replaced. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/file.h"
#include "base/format.h"
#include "gguf/gguf_impl.h"

struct sheaf_gguf *sheaf_gguf_new(void) {
    struct sheaf_gguf *gguf = calloc(1, sizeof *gguf);
    if (!gguf) {
        sheaf_set_error(SHEAF_STATUS_ALLOC_FAILED, "no memory for a new GGUF");
        return NULL;
    }
    gguf->version = 3;
    gguf->fd = -1;
    gguf->alignment = SHEAF__GGUF_ALIGNMENT;
    return gguf;
}

static enum sheaf_status no_memory(const char *what) {
    return sheaf_set_error(SHEAF_STATUS_ALLOC_FAILED, "GGUF: no memory for '%s'", what);
}

/* general.alignment decides where tensors go, so it is checked and kept as it is set. */
static const char alignment_key[] = "general.alignment";
static enum sheaf_status take_alignment(struct sheaf_gguf *gguf, const struct sheaf__gguf_kv *kv) {
    if (strcmp(kv->key, alignment_key) != 0) return SHEAF_STATUS_SUCCESS;
    uint32_t a = 0;
    if (kv->type == SHEAF_GGUF_TYPE_UINT32)
        a = (uint32_t)kv->data[0] | (uint32_t)kv->data[1] << 8 | (uint32_t)kv->data[2] << 16 |
            (uint32_t)kv->data[3] << 24;
    if (a == 0 || a & (a - 1) || a > 1u << 30)
        return sheaf_set_error(SHEAF_STATUS_INVALID,
                               "GGUF: general.alignment must be a u32 power of two up to 2^30");
    gguf->alignment = a;
    return SHEAF_STATUS_SUCCESS;
}

/* Takes kv over; replaces an entry of the same key. */
static enum sheaf_status put(struct sheaf_gguf *gguf, const char *key, struct sheaf__gguf_kv *kv) {
    enum sheaf_status status;
    size_t n = strlen(key);
    if (n == 0 || n > SHEAF__GGUF_MAX_KEY) {
        sheaf__gguf_kv_clear(kv);
        return sheaf_set_error(SHEAF_STATUS_INVALID, "GGUF: a key has %zu bytes; allowed are 1..%d",
                               n, SHEAF__GGUF_MAX_KEY);
    }
    kv->key = strdup(key);
    if (!kv->key) {
        sheaf__gguf_kv_clear(kv);
        return no_memory(key);
    }
    status = take_alignment(gguf, kv);
    if (status) {
        sheaf__gguf_kv_clear(kv);
        return status;
    }
    int64_t i = sheaf_gguf_find_key(gguf, key);
    if (i < 0) return sheaf__gguf_push_kv(gguf, kv);
    struct sheaf__gguf_kv *old = &gguf->kv[i];
    free(kv->key); /* the old key stays: the index refers to it by number */
    kv->key = old->key;
    old->key = NULL;
    sheaf__gguf_kv_clear(old);
    *old = *kv;
    return SHEAF_STATUS_SUCCESS;
}

static void encode_le(uint8_t *p, uint64_t v, size_t n) {
    for (size_t i = 0; i < n; i++) p[i] = (uint8_t)(v >> (8 * i));
}

static enum sheaf_status put_number(struct sheaf_gguf *gguf, const char *key,
                                    enum sheaf_gguf_type type, uint64_t bits) {
    struct sheaf__gguf_kv kv = {.type = type, .n = 1, .size = sheaf__gguf_type_size(type)};
    kv.data = malloc(kv.size);
    if (!kv.data) return no_memory(key);
    encode_le(kv.data, bits, kv.size);
    return put(gguf, key, &kv);
}

enum sheaf_status sheaf_gguf_set_u32(struct sheaf_gguf *gguf, const char *key, uint32_t v) {
    return put_number(gguf, key, SHEAF_GGUF_TYPE_UINT32, v);
}

enum sheaf_status sheaf_gguf_set_i32(struct sheaf_gguf *gguf, const char *key, int32_t v) {
    return put_number(gguf, key, SHEAF_GGUF_TYPE_INT32, (uint32_t)v);
}

enum sheaf_status sheaf_gguf_set_u64(struct sheaf_gguf *gguf, const char *key, uint64_t v) {
    return put_number(gguf, key, SHEAF_GGUF_TYPE_UINT64, v);
}

enum sheaf_status sheaf_gguf_set_f32(struct sheaf_gguf *gguf, const char *key, float v) {
    uint32_t bits;
    memcpy(&bits, &v, sizeof bits);
    return put_number(gguf, key, SHEAF_GGUF_TYPE_FLOAT32, bits);
}

enum sheaf_status sheaf_gguf_set_bool(struct sheaf_gguf *gguf, const char *key, bool v) {
    return put_number(gguf, key, SHEAF_GGUF_TYPE_BOOL, v);
}

static enum sheaf_status put_strings(struct sheaf_gguf *gguf, const char *key,
                                     struct sheaf__gguf_kv kv, const char *const *v) {
    for (size_t j = 0; j < kv.n; j++) kv.size += strlen(v[j]) + 1;
    kv.data = malloc(kv.size + 1);
    kv.offs = calloc(kv.n + 1, sizeof *kv.offs);
    if (!kv.data || !kv.offs) {
        sheaf__gguf_kv_clear(&kv);
        return no_memory(key);
    }
    for (size_t j = 0; j < kv.n; j++) {
        size_t n = strlen(v[j]) + 1;
        memcpy(kv.data + kv.offs[j], v[j], n);
        kv.offs[j + 1] = kv.offs[j] + n;
    }
    return put(gguf, key, &kv);
}

enum sheaf_status sheaf_gguf_set_str(struct sheaf_gguf *gguf, const char *key, const char *v) {
    return put_strings(gguf, key, (struct sheaf__gguf_kv){.type = SHEAF_GGUF_TYPE_STRING, .n = 1},
                       &v);
}

enum sheaf_status sheaf_gguf_set_arr_str(struct sheaf_gguf *gguf, const char *key,
                                         const char *const *v, size_t n) {
    return put_strings(gguf, key,
                       (struct sheaf__gguf_kv){.type = SHEAF_GGUF_TYPE_ARRAY,
                                               .arr_type = SHEAF_GGUF_TYPE_STRING,
                                               .n = n},
                       v);
}

enum sheaf_status sheaf_gguf_set_arr(struct sheaf_gguf *gguf, const char *key,
                                     enum sheaf_gguf_type type, const void *data, size_t n) {
    size_t element = sheaf__gguf_type_size(type);
    if (!element)
        return sheaf_set_error(SHEAF_STATUS_INVALID,
                               "GGUF: key '%s': %s is no type of an array of numbers", key,
                               sheaf__gguf_type_name(type));
    struct sheaf__gguf_kv kv = {.type = SHEAF_GGUF_TYPE_ARRAY, .arr_type = type, .n = n};
    if (__builtin_mul_overflow(n, element, &kv.size) || kv.size == SIZE_MAX) return no_memory(key);
    kv.data = malloc(kv.size + 1);
    if (!kv.data) return no_memory(key);
    if (kv.size) memcpy(kv.data, data, kv.size);
    return put(gguf, key, &kv);
}

enum sheaf_status sheaf_gguf_copy_kv(struct sheaf_gguf *dst, const struct sheaf_gguf *src) {
    for (size_t i = 0; i < src->n_kv; i++) {
        struct sheaf__gguf_kv kv = src->kv[i];
        if (strcmp(kv.key, alignment_key) == 0) { /* a file may have it in another type */
            const enum sheaf_status status =
                sheaf_gguf_set_u32(dst, alignment_key, (uint32_t)src->alignment);
            if (status) return status;
            continue;
        }
        kv.key = NULL;
        kv.data = malloc(kv.size + 1);
        kv.offs = src->kv[i].offs ? malloc((kv.n + 1) * sizeof *kv.offs) : NULL;
        if (!kv.data || (src->kv[i].offs && !kv.offs)) {
            sheaf__gguf_kv_clear(&kv);
            return no_memory(src->kv[i].key);
        }
        if (kv.size) memcpy(kv.data, src->kv[i].data, kv.size);
        if (kv.offs) memcpy(kv.offs, src->kv[i].offs, (kv.n + 1) * sizeof *kv.offs);
        enum sheaf_status status = put(dst, src->kv[i].key, &kv);
        if (status) return status;
    }
    return SHEAF_STATUS_SUCCESS;
}

enum sheaf_status sheaf_gguf_add_tensor(struct sheaf_gguf *gguf, const char *name,
                                        enum sheaf_type type, int n_dims, const int64_t *ne,
                                        const void *data) {
    struct sheaf_gguf_tensor t = {.type = type, .n_dims = n_dims, .ne = {1, 1, 1, 1}};
    size_t n = strlen(name);
    if (n == 0 || n >= SHEAF_MAX_NAME || n_dims < 0 || n_dims > SHEAF_MAX_DIMS)
        return sheaf_set_error(SHEAF_STATUS_INVALID,
                               "GGUF: tensor '%.80s' has a name of %zu bytes and %d dimensions; "
                               "allowed are 1..%d bytes and 0..%d dimensions",
                               name, n, n_dims, SHEAF_MAX_NAME - 1, SHEAF_MAX_DIMS);
    for (int i = 0; i < n_dims; i++) t.ne[i] = ne[i];
    if (!sheaf_type_is_known(type) || !sheaf__gguf_tensor_size(type, t.ne, &t.size))
        return sheaf_set_error(
            SHEAF_STATUS_INVALID,
            "GGUF: tensor '%s' [%lld, %lld, %lld, %lld] cannot be of type %s: the "
            "type is unknown, the first dimension is not whole blocks of it, or "
            "the size overflows",
            name, (long long)t.ne[0], (long long)t.ne[1], (long long)t.ne[2], (long long)t.ne[3],
            sheaf_type_name(type));
    char *copy = strdup(name);
    if (!copy) return no_memory(name);
    return sheaf__gguf_push_tensor(gguf, copy, &t, data);
}

/* ---- writing ---- */

struct writer {
    FILE *file;
    size_t pos;
    bool failed;
};

static void write_bytes(struct writer *w, const void *data, size_t n) {
    if (n && !w->failed && fwrite(data, 1, n, w->file) != n) w->failed = true;
    w->pos += n;
}

static void write_number(struct writer *w, uint64_t v, size_t n) {
    uint8_t b[8];
    encode_le(b, v, n);
    write_bytes(w, b, n);
}

static void write_str(struct writer *w, const void *s, size_t n) {
    write_number(w, n, 8);
    write_bytes(w, s, n);
}

static void pad(struct writer *w, size_t alignment) {
    static const uint8_t zeros[64];
    while (w->pos % alignment) {
        size_t n = alignment - w->pos % alignment;
        write_bytes(w, zeros, n < sizeof zeros ? n : sizeof zeros);
    }
}

static void write_kv(struct writer *w, const struct sheaf__gguf_kv *kv) {
    write_str(w, kv->key, strlen(kv->key));
    write_number(w, kv->type, 4);
    if (kv->type == SHEAF_GGUF_TYPE_ARRAY) {
        write_number(w, kv->arr_type, 4);
        write_number(w, kv->n, 8);
    }
    if (!kv->offs) {
        write_bytes(w, kv->data, kv->size);
        return;
    }
    for (size_t j = 0; j < kv->n; j++)
        write_str(w, kv->data + kv->offs[j], kv->offs[j + 1] - kv->offs[j] - 1);
}

/* Header and directory; the position is where tensor data starts. */
static void write_head(struct writer *w, const struct sheaf_gguf *gguf) {
    write_bytes(w, "GGUF", 4);
    write_number(w, 3, 4);
    write_number(w, gguf->n_tensors, 8);
    write_number(w, gguf->n_kv, 8);
    for (size_t i = 0; i < gguf->n_kv; i++) write_kv(w, &gguf->kv[i]);
    size_t offset = 0;
    for (size_t i = 0; i < gguf->n_tensors; i++) {
        const struct sheaf_gguf_tensor *t = &gguf->tensors[i];
        write_str(w, t->name, strlen(t->name));
        write_number(w, (uint64_t)t->n_dims, 4);
        for (int d = 0; d < t->n_dims; d++) write_number(w, (uint64_t)t->ne[d], 8);
        write_number(w, t->type, 4);
        write_number(w, offset, 8);
        offset = (offset + t->size + gguf->alignment - 1) / gguf->alignment * gguf->alignment;
    }
    pad(w, gguf->alignment);
}

static enum sheaf_status write_tensors(struct writer *w, const struct sheaf_gguf *gguf,
                                       sheaf_gguf_source_fn source, void *user) {
    for (size_t i = 0; i < gguf->n_tensors && !w->failed; i++) {
        const void *data = gguf->tensor_data[i];
        if (!data && gguf->tensors[i].size) {
            enum sheaf_status status = source(user, (int64_t)i, &data);
            if (status) return status;
        }
        write_bytes(w, data, gguf->tensors[i].size);
        pad(w, gguf->alignment);
    }
    return SHEAF_STATUS_SUCCESS;
}

enum sheaf_status sheaf_gguf_write(const struct sheaf_gguf *gguf, const char *path) {
    for (size_t i = 0; i < gguf->n_tensors; i++) {
        if (!gguf->tensor_data[i] && gguf->tensors[i].size)
            return sheaf_set_error(SHEAF_STATUS_INVALID, "GGUF: tensor '%s' has no data to write",
                                   gguf->tensors[i].name);
    }
    return sheaf_gguf_write_from(gguf, path, NULL, NULL);
}

/* The file that path names, through symbolic links, as *target, and its mode, 0 if there is none
 * yet. INVALID if it is none that may be replaced: a rename would put a file in the place of a
 * device. */
static enum sheaf_status find_target(const char *path, char **target, mode_t *mode) {
    struct stat st;
    *mode = 0;
    *target = NULL;
    if (!*path)
        return sheaf_set_error(SHEAF_STATUS_INVALID,
                               "the name of the file to write is empty: give one");
    if (stat(path, &st) == 0) {
        if (!S_ISREG(st.st_mode))
            return sheaf_set_error(SHEAF_STATUS_INVALID,
                                   "%s is %s, not a regular file: give the name of a file", path,
                                   S_ISDIR(st.st_mode) ? "a folder" : "a device or a pipe");
        *mode = st.st_mode & 07777;
        *target = realpath(path, NULL);
        if (!*target)
            return sheaf_set_error(SHEAF_STATUS_IO, "cannot write %s: %s", path, strerror(errno));
        return SHEAF_STATUS_SUCCESS;
    }
    if (lstat(path, &st) == 0 && S_ISLNK(st.st_mode))
        return sheaf_set_error(SHEAF_STATUS_INVALID,
                               "%s is a symbolic link to nothing: remove it, or make its target",
                               path);
    *target = strdup(path);
    return *target ? SHEAF_STATUS_SUCCESS : no_memory(path);
}

enum sheaf_status sheaf_gguf_write_from(const struct sheaf_gguf *gguf, const char *path,
                                        sheaf_gguf_source_fn source, void *user) {
    char *target, *part = NULL;
    mode_t mode;
    struct writer w = {0};
    enum sheaf_status status = find_target(path, &target, &mode);
    if (status) goto out;
    part = sheaf__format("%s.part-%ld", target, (long)getpid());
    if (!part) {
        status = no_memory(path);
        goto out;
    }
    w.file = fopen(part, "wbxe");
    if (!w.file) {
        status = sheaf_set_error(SHEAF_STATUS_IO, "cannot create %s: %s", part,
                                 sheaf__errno_text(errno));
        goto out;
    }
    errno = 0;
    if (mode && fchmod(fileno(w.file), mode) != 0) w.failed = true;
    write_head(&w, gguf);
    status = write_tensors(&w, gguf, source, user);
    /* on the disk before it takes the name: a power cut must not leave an empty file there */
    if (!status && !w.failed && (fflush(w.file) || fsync(fileno(w.file)))) w.failed = true;
    if (fclose(w.file) != 0) w.failed = true;
    if (!status && (w.failed || rename(part, target) != 0))
        status = sheaf_set_error(SHEAF_STATUS_IO, "cannot write %s: %s", path, strerror(errno));
    if (status) unlink(part);
out:
    free(part);
    free(target);
    return status;
}
