/* Parses the header, metadata and tensor directory of a GGUF file, or of such bytes of a file that
 * is elsewhere.
 *
 * Every count, length and offset is hostile until checked: a count is first compared with the bytes
 * that are left (each element takes at least so many), so no allocation exceeds a small multiple of
 * the file. Reads through a buffer with pread, not mmap, so that a file that shrinks meanwhile is
 * an error and not a signal. */
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/array.h"
#include "base/file.h"
#include "gguf/gguf_impl.h"

struct reader {
    int fd; /* of the sheaf_gguf */
    const char *path;
    const uint8_t *bytes; /* [end] instead of the file; NULL: none */
    size_t end;           /* of what can be read */
    size_t pos;           /* of the next byte to hand out */
    size_t buf_pos, buf_n;
    uint8_t buf[1 << 16];
};

/* Names of the type numbers that GGUF files use and this library lacks, for the message. */
static const char *const foreign_types[SHEAF_TYPE_COUNT] = {
    [4] = "q4_2 (removed)", [5] = "q4_3 (removed)", [9] = "q8_1", [15] = "q8_K", [24] = "i8",
    [25] = "i16",           [28] = "f64",
};

static size_t left(const struct reader *r) { return r->end - r->pos; }

static enum sheaf_status truncated(const struct reader *r, const char *what) {
    return sheaf_set_error(SHEAF_STATUS_INVALID,
                           "%s: the file ends inside %s (at byte %zu of %zu): it is truncated or "
                           "damaged; copy it again",
                           r->path, what, r->pos, r->end);
}

static enum sheaf_status get_bytes(struct reader *r, void *dst, size_t n, const char *what) {
    if (n > left(r)) return truncated(r, what);
    uint8_t *p = dst;
    if (r->bytes) {
        if (n) memcpy(dst, r->bytes + r->pos, n);
        r->pos += n;
        return SHEAF_STATUS_SUCCESS;
    }
    while (n) {
        if (r->pos < r->buf_pos || r->pos >= r->buf_pos + r->buf_n) {
            ssize_t got;
            do {
                got = pread(r->fd, r->buf, sizeof r->buf, (off_t)r->pos);
            } while (got < 0 && errno == EINTR);
            if (got < 0)
                return sheaf_set_error(SHEAF_STATUS_IO, "%s: cannot read at byte %zu: %s", r->path,
                                       r->pos, strerror(errno));
            if (got == 0) return truncated(r, what);
            r->buf_pos = r->pos;
            r->buf_n = (size_t)got;
        }
        size_t at = r->pos - r->buf_pos, take = r->buf_n - at < n ? r->buf_n - at : n;
        memcpy(p, r->buf + at, take);
        p += take;
        r->pos += take;
        n -= take;
    }
    return SHEAF_STATUS_SUCCESS;
}

static enum sheaf_status get_u32(struct reader *r, uint32_t *out, const char *what) {
    uint8_t b[4] = {0};
    enum sheaf_status status = get_bytes(r, b, sizeof b, what);
    *out = (uint32_t)b[0] | (uint32_t)b[1] << 8 | (uint32_t)b[2] << 16 | (uint32_t)b[3] << 24;
    return status;
}

static enum sheaf_status get_u64(struct reader *r, uint64_t *out, const char *what) {
    uint32_t lo = 0, hi = 0;
    enum sheaf_status status = get_u32(r, &lo, what);
    if (!status) status = get_u32(r, &hi, what);
    *out = (uint64_t)hi << 32 | lo;
    return status;
}

/* A count of things that take at least min_size bytes each. */
static enum sheaf_status get_count(struct reader *r, size_t min_size, size_t *out,
                                   const char *what) {
    uint64_t n = 0;
    enum sheaf_status status = get_u64(r, &n, what);
    if (status) return status;
    if (n > left(r) / min_size)
        return sheaf_set_error(
            SHEAF_STATUS_INVALID,
            "%s: %s: a count of %llu does not fit the %zu bytes that are left: the "
            "file is truncated or damaged; copy it again",
            r->path, what, (unsigned long long)n, left(r));
    *out = (size_t)n;
    return SHEAF_STATUS_SUCCESS;
}

/* A name: 1..max bytes without zeros. *out owned by the caller. */
static enum sheaf_status get_name(struct reader *r, size_t max, char **out, const char *what) {
    size_t n = 0;
    *out = NULL;
    enum sheaf_status status = get_count(r, 1, &n, what);
    if (status) return status;
    if (n == 0 || n > max)
        return sheaf_set_error(SHEAF_STATUS_INVALID, "%s: %s has %zu bytes; allowed are 1..%zu",
                               r->path, what, n, max);
    char *s = malloc(n + 1);
    if (!s)
        return sheaf_set_error(SHEAF_STATUS_ALLOC_FAILED, "%s: no memory for %s", r->path, what);
    status = get_bytes(r, s, n, what);
    s[n] = 0;
    for (size_t i = 0; !status && i < n; i++) {
        const unsigned char c = (unsigned char)s[i];
        if (c >= 0x20 && c != 0x7f) continue;
        s[i] = 0; /* the message shows what is before it */
        status = c ? sheaf_set_error(SHEAF_STATUS_INVALID,
                                     "%s: %s '%s...' holds the control character 0x%02x", r->path,
                                     what, s, c)
                   : sheaf_set_error(SHEAF_STATUS_INVALID, "%s: %s '%s' holds a zero byte", r->path,
                                     what, s);
    }
    if (status) {
        free(s);
        return status;
    }
    *out = s;
    return SHEAF_STATUS_SUCCESS;
}

/* kv->n strings into kv->data and kv->offs. */
static enum sheaf_status get_strings(struct reader *r, struct sheaf__gguf_kv *kv) {
    size_t cap = 0;
    kv->offs = calloc(kv->n + 1, sizeof *kv->offs);
    if (!kv->offs) goto no_memory;
    for (size_t j = 0; j < kv->n; j++) {
        size_t n = 0;
        enum sheaf_status status = get_count(r, 1, &n, kv->key);
        if (status) return status;
        /* n is at most the file size: no overflow */
        if (!sheaf__grow(&kv->data, &cap, kv->size + n + 1, 1)) goto no_memory;
        status = get_bytes(r, kv->data + kv->size, n, kv->key);
        if (status) return status;
        kv->data[kv->size + n] = 0;
        kv->size += n + 1;
        kv->offs[j + 1] = kv->size;
    }
    return SHEAF_STATUS_SUCCESS;
no_memory:
    return sheaf_set_error(SHEAF_STATUS_ALLOC_FAILED, "%s: no memory for key '%s'", r->path,
                           kv->key);
}

static enum sheaf_status get_value(struct reader *r, struct sheaf__gguf_kv *kv) {
    uint32_t type = 0;
    enum sheaf_status status = get_u32(r, &type, kv->key);
    if (status) return status;
    if (type >= SHEAF_GGUF_TYPE_COUNT)
        return sheaf_set_error(SHEAF_STATUS_INVALID, "%s: key '%s' has the unknown type %u",
                               r->path, kv->key, type);
    kv->type = (enum sheaf_gguf_type)type;
    enum sheaf_gguf_type element = kv->type;
    kv->n = 1;
    if (kv->type == SHEAF_GGUF_TYPE_ARRAY) {
        status = get_u32(r, &type, kv->key);
        if (status) return status;
        if (type >= SHEAF_GGUF_TYPE_COUNT)
            return sheaf_set_error(SHEAF_STATUS_INVALID,
                                   "%s: the array of key '%s' has the unknown type %u", r->path,
                                   kv->key, type);
        if (type == SHEAF_GGUF_TYPE_ARRAY)
            return sheaf_set_error(SHEAF_STATUS_UNSUPPORTED,
                                   "%s: key '%s' is an array of arrays, which is not supported",
                                   r->path, kv->key);
        kv->arr_type = element = (enum sheaf_gguf_type)type;
        size_t min_size = element == SHEAF_GGUF_TYPE_STRING ? 8 : sheaf__gguf_type_size(element);
        status = get_count(r, min_size, &kv->n, kv->key);
        if (status) return status;
    }
    if (element == SHEAF_GGUF_TYPE_STRING) return get_strings(r, kv);
    kv->size = kv->n * sheaf__gguf_type_size(element); /* at most the file: checked above */
    if (kv->size > left(r)) return truncated(r, kv->key);
    kv->data = malloc(kv->size + 1);
    if (!kv->data)
        return sheaf_set_error(SHEAF_STATUS_ALLOC_FAILED, "%s: no memory for key '%s'", r->path,
                               kv->key);
    status = get_bytes(r, kv->data, kv->size, kv->key);
    if (status) return status;
    for (size_t j = 0; element == SHEAF_GGUF_TYPE_BOOL && j < kv->n; j++) {
        if (kv->data[j] > 1)
            return sheaf_set_error(SHEAF_STATUS_INVALID, "%s: key '%s': a bool of value %u",
                                   r->path, kv->key, (unsigned)kv->data[j]);
    }
    return SHEAF_STATUS_SUCCESS;
}

static enum sheaf_status get_tensor(struct reader *r, struct sheaf_gguf *gguf) {
    struct sheaf_gguf_tensor t = {.ne = {1, 1, 1, 1}};
    char *name = NULL;
    uint32_t n_dims = 0, type = 0;
    uint64_t offset = 0;
    enum sheaf_status status = get_name(r, SHEAF_MAX_NAME - 1, &name, "a tensor name");
    if (!status) status = get_u32(r, &n_dims, name);
    if (status) goto out;
    if (n_dims > SHEAF_MAX_DIMS) {
        status = sheaf_set_error(SHEAF_STATUS_INVALID,
                                 "%s: tensor '%s' has %u dimensions; at most %d are possible",
                                 r->path, name, n_dims, SHEAF_MAX_DIMS);
        goto out;
    }
    t.n_dims = (int)n_dims;
    for (uint32_t i = 0; i < n_dims; i++) {
        uint64_t ne = 0;
        status = get_u64(r, &ne, name);
        if (status) goto out;
        if (ne > INT64_MAX) {
            status = sheaf_set_error(SHEAF_STATUS_INVALID,
                                     "%s: tensor '%s': dimension %u is %llu, which is absurd",
                                     r->path, name, i, (unsigned long long)ne);
            goto out;
        }
        t.ne[i] = (int64_t)ne;
    }
    status = get_u32(r, &type, name);
    if (!status) status = get_u64(r, &offset, name);
    if (status) goto out;
    if (type >= SHEAF_TYPE_COUNT || !sheaf_type_is_known((enum sheaf_type)type)) {
        const char *foreign = type < SHEAF_TYPE_COUNT ? foreign_types[type] : NULL;
        status = sheaf_set_error(SHEAF_STATUS_UNSUPPORTED,
                                 "%s: tensor '%s' has type %u (%s), which this build cannot read",
                                 r->path, name, type, foreign ? foreign : "unknown");
        goto out;
    }
    t.type = (enum sheaf_type)type;
    if (!sheaf__gguf_tensor_size(t.type, t.ne, &t.size)) {
        status = sheaf_set_error(SHEAF_STATUS_INVALID,
                                 "%s: tensor '%s' [%lld, %lld, %lld, %lld] %s: the first dimension "
                                 "is not whole blocks of %lld, or the size overflows",
                                 r->path, name, (long long)t.ne[0], (long long)t.ne[1],
                                 (long long)t.ne[2], (long long)t.ne[3], sheaf_type_name(t.type),
                                 (long long)sheaf_blck_size(t.type));
        goto out;
    }
    if (offset > INT64_MAX || offset % gguf->alignment) {
        status = sheaf_set_error(SHEAF_STATUS_INVALID,
                                 "%s: tensor '%s' starts at offset %llu, not a multiple of the "
                                 "alignment %zu",
                                 r->path, name, (unsigned long long)offset, gguf->alignment);
        goto out;
    }
    t.offset = (size_t)offset;
    status = sheaf__gguf_push_tensor(gguf, name, &t, NULL);
    name = NULL;
out:
    free(name);
    return status;
}

static enum sheaf_status get_header(struct reader *r, struct sheaf_gguf *gguf, size_t *n_tensors,
                                    size_t *n_kv) {
    uint8_t magic[4] = {0};
    enum sheaf_status status = get_bytes(r, magic, sizeof magic, "the header");
    if (!status && memcmp(magic, "GGUF", 4) != 0)
        status = sheaf_set_error(SHEAF_STATUS_INVALID,
                                 "%s is not a GGUF file: it starts with %02x %02x %02x %02x, not "
                                 "\"GGUF\"",
                                 r->path, magic[0], magic[1], magic[2], magic[3]);
    if (!status) status = get_u32(r, &gguf->version, "the header");
    if (!status && gguf->version != 2 && gguf->version != 3)
        status = sheaf_set_error(SHEAF_STATUS_UNSUPPORTED,
                                 "%s: GGUF version %u%s; versions 2 and 3 "
                                 "of little-endian files can be read",
                                 r->path, gguf->version,
                                 gguf->version && !(gguf->version & 0xffff) ? " (big-endian file?)"
                                                                            : "");
    /* name length, dimensions, type, offset; key length, type, one byte */
    if (!status) status = get_count(r, 8 + 1 + 4 + 4 + 8, n_tensors, "the number of tensors");
    if (!status) status = get_count(r, 8 + 1 + 4 + 1, n_kv, "the number of keys");
    return status;
}

static enum sheaf_status read_alignment(struct sheaf_gguf *gguf) {
    gguf->alignment = SHEAF__GGUF_ALIGNMENT;
    if (sheaf_gguf_find_key(gguf, "general.alignment") < 0) return SHEAF_STATUS_SUCCESS;
    uint64_t a = 0;
    enum sheaf_status status = sheaf_gguf_get_u64(gguf, "general.alignment", &a);
    if (status) return status;
    if (a == 0 || a & (a - 1) || a > (uint64_t)1 << 30)
        return sheaf_set_error(SHEAF_STATUS_INVALID,
                               "%s: general.alignment is %llu, not a power of two up to 2^30",
                               gguf->path, (unsigned long long)a);
    gguf->alignment = (size_t)a;
    return SHEAF_STATUS_SUCCESS;
}

static int by_offset(const void *a, const void *b) {
    const size_t x = (*(const struct sheaf_gguf_tensor *const *)a)->offset;
    const size_t y = (*(const struct sheaf_gguf_tensor *const *)b)->offset;
    return (x > y) - (x < y);
}

/* No two tensors share bytes: of a damaged directory one would be read as another. */
static enum sheaf_status check_overlap(const struct sheaf_gguf *gguf) {
    const size_t n = gguf->n_tensors;
    const struct sheaf_gguf_tensor **t = malloc((n + 1) * sizeof(*t)), *last = NULL;
    enum sheaf_status status = SHEAF_STATUS_SUCCESS;
    if (!t)
        return sheaf_set_error(SHEAF_STATUS_ALLOC_FAILED, "%s: no memory to read it", gguf->path);
    for (size_t i = 0; i < n; i++) t[i] = &gguf->tensors[i];
    qsort(t, n, sizeof(*t), by_offset);
    for (size_t i = 0; i < n && !status; i++) {
        if (!t[i]->size) continue;
        if (last && last->offset + last->size > t[i]->offset)
            status = sheaf_set_error(SHEAF_STATUS_INVALID,
                                     "%s: tensors '%s' and '%s' share bytes from %zu on: the file "
                                     "is damaged; copy it again",
                                     gguf->path, last->name, t[i]->name, t[i]->offset);
        last = t[i];
    }
    free(t);
    return status;
}

/* Turns offsets into places in the file and checks that all data is there. */
static enum sheaf_status place_tensors(const struct reader *r, struct sheaf_gguf *gguf) {
    gguf->data_offset = (r->pos + gguf->alignment - 1) / gguf->alignment * gguf->alignment;
    for (size_t i = 0; i < gguf->n_tensors; i++) {
        struct sheaf_gguf_tensor *t = &gguf->tensors[i];
        t->offset += gguf->data_offset; /* both at most INT64_MAX */
        if (t->offset > gguf->file_size || t->size > gguf->file_size - t->offset)
            return sheaf_set_error(SHEAF_STATUS_INVALID,
                                   "%s: tensor '%s' takes bytes %zu..%zu, but the file has %zu: it "
                                   "is truncated or damaged; copy it again",
                                   gguf->path, t->name, t->offset, t->offset + t->size,
                                   gguf->file_size);
    }
    return check_overlap(gguf);
}

static enum sheaf_status read_all(struct reader *r, struct sheaf_gguf *gguf) {
    size_t n_tensors = 0, n_kv = 0;
    enum sheaf_status status = get_header(r, gguf, &n_tensors, &n_kv);
    for (size_t i = 0; !status && i < n_kv; i++) {
        struct sheaf__gguf_kv kv = {0};
        status = get_name(r, SHEAF__GGUF_MAX_KEY, &kv.key, "a key");
        if (!status) status = get_value(r, &kv);
        if (status)
            sheaf__gguf_kv_clear(&kv);
        else
            status = sheaf__gguf_push_kv(gguf, &kv);
    }
    if (!status) status = read_alignment(gguf);
    for (size_t i = 0; !status && i < n_tensors; i++) status = get_tensor(r, gguf);
    gguf->header_size = r->pos;
    if (!status) status = place_tensors(r, gguf);
    return status;
}

static enum sheaf_status open_file(const char *path, struct sheaf_gguf *gguf) {
    if (!*path)
        return sheaf_set_error(SHEAF_STATUS_INVALID,
                               "the name of the model file is empty: give one");
    /* O_NONBLOCK: opening a pipe must not wait for its writer */
    gguf->fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (gguf->fd < 0)
        return sheaf_set_error(SHEAF_STATUS_IO, "cannot open %s: %s", path,
                               sheaf__errno_text(errno));
    struct stat st;
    if (fstat(gguf->fd, &st) < 0)
        return sheaf_set_error(SHEAF_STATUS_IO, "cannot stat %s: %s", path, strerror(errno));
    if (!S_ISREG(st.st_mode))
        return sheaf_set_error(SHEAF_STATUS_INVALID, "%s is not a regular file", path);
    gguf->file_size = (size_t)st.st_size;
    gguf->modified = st.st_mtim;
    return SHEAF_STATUS_SUCCESS;
}

/* header: NULL, or [size] bytes of a file of file_size. */
static enum sheaf_status open_any(const char *path, const void *header, size_t size,
                                  size_t file_size, struct sheaf_gguf **out) {
    *out = NULL;
    struct reader *r = malloc(sizeof *r);
    struct sheaf_gguf *gguf = calloc(1, sizeof *gguf);
    enum sheaf_status status = SHEAF_STATUS_SUCCESS;
    if (gguf) gguf->fd = -1;
    if (gguf) gguf->path = strdup(path);
    if (!r || !gguf || !gguf->path) {
        status = sheaf_set_error(SHEAF_STATUS_ALLOC_FAILED, "%s: no memory to read it", path);
        goto out;
    }
    r->path = gguf->path;
    r->pos = r->buf_pos = r->buf_n = 0;
    r->bytes = header;
    gguf->file_size = file_size;
    if (!header) status = open_file(path, gguf);
    if (status) goto out;
    r->fd = gguf->fd;
    r->end = header ? size : gguf->file_size;
    status = read_all(r, gguf);
out:
    free(r);
    if (status)
        sheaf_gguf_free(gguf);
    else
        *out = gguf;
    return status;
}

enum sheaf_status sheaf_gguf_open(const char *path, struct sheaf_gguf **out) {
    return open_any(path, NULL, 0, 0, out);
}

enum sheaf_status sheaf_gguf_open_header(const char *path, const void *header, size_t size,
                                         size_t file_size, struct sheaf_gguf **out) {
    *out = NULL;
    if (!header)
        return sheaf_set_error(SHEAF_STATUS_INVALID, "%s: there are no bytes of its header", path);
    return open_any(path, header, size, file_size, out);
}

/* ---- bytes of the file ---- */

/* tensor: NULL for the header. */
static enum sheaf_status read_at(const struct sheaf_gguf *gguf,
                                 const struct sheaf_gguf_tensor *tensor, size_t offset, char *dst,
                                 size_t size) {
    if (gguf->fd < 0)
        return sheaf_set_error(SHEAF_STATUS_INVALID, "%s: only its header is here, no file",
                               gguf->path);
    for (size_t done = 0; done < size;) {
        const ssize_t got = pread(gguf->fd, dst + done, size - done, (off_t)(offset + done));
        if (got < 0 && errno == EINTR) continue;
        if (got <= 0)
            return sheaf_set_error(SHEAF_STATUS_IO, "%s: cannot read %s%s%s: %s", gguf->path,
                                   tensor ? "tensor '" : "", tensor ? tensor->name : "the header",
                                   tensor ? "'" : "",
                                   got < 0 ? strerror(errno) : "the file became shorter");
        done += (size_t)got;
    }
    return SHEAF_STATUS_SUCCESS;
}

enum sheaf_status sheaf_gguf_read_header(const struct sheaf_gguf *gguf, void *dst) {
    return read_at(gguf, NULL, 0, dst, gguf->header_size);
}

enum sheaf_status sheaf_gguf_read(const struct sheaf_gguf *gguf,
                                  const struct sheaf_gguf_tensor *tensor, size_t offset, void *dst,
                                  size_t size) {
    if (offset > tensor->size || size > tensor->size - offset)
        return sheaf_set_error(SHEAF_STATUS_INVALID,
                               "%s: bytes %zu+%zu of tensor '%s' do not exist", gguf->path, offset,
                               size, tensor->name);
    return read_at(gguf, tensor, tensor->offset + offset, dst, size);
}

enum sheaf_status sheaf_gguf_check_unchanged(const struct sheaf_gguf *gguf) {
    struct stat st;
    if (gguf->fd < 0) return SHEAF_STATUS_SUCCESS; /* nothing was read from it */
    if (fstat(gguf->fd, &st) < 0)
        return sheaf_set_error(SHEAF_STATUS_IO, "cannot stat %s: %s", gguf->path, strerror(errno));
    if ((size_t)st.st_size == gguf->file_size && st.st_mtim.tv_sec == gguf->modified.tv_sec &&
        st.st_mtim.tv_nsec == gguf->modified.tv_nsec)
        return SHEAF_STATUS_SUCCESS;
    return sheaf_set_error(SHEAF_STATUS_IO,
                           "%s was written to while it was read: what was loaded may be of two "
                           "versions; load it again when it is complete",
                           gguf->path);
}
