/* GGUF files, versions 2 and 3, little-endian: metadata, tensor directory, and writing.
 *
 * Source of the format: the GGUF specification (ggml, docs/gguf.md). Every count, length and offset
 * comes from outside and is checked; a bad file yields SHEAF_STATUS_INVALID and a text that names
 * the file, the place, and what was wrong. Threads: a reader is immutable after opening. */
#ifndef SHEAF_GGUF_H
#define SHEAF_GGUF_H

#include "sheaf/tensor.h"

#ifdef __cplusplus
extern "C" {
#endif

enum sheaf_gguf_type {
    SHEAF_GGUF_TYPE_UINT8 = 0,
    SHEAF_GGUF_TYPE_INT8 = 1,
    SHEAF_GGUF_TYPE_UINT16 = 2,
    SHEAF_GGUF_TYPE_INT16 = 3,
    SHEAF_GGUF_TYPE_UINT32 = 4,
    SHEAF_GGUF_TYPE_INT32 = 5,
    SHEAF_GGUF_TYPE_FLOAT32 = 6,
    SHEAF_GGUF_TYPE_BOOL = 7,
    SHEAF_GGUF_TYPE_STRING = 8,
    SHEAF_GGUF_TYPE_ARRAY = 9,
    SHEAF_GGUF_TYPE_UINT64 = 10,
    SHEAF_GGUF_TYPE_INT64 = 11,
    SHEAF_GGUF_TYPE_FLOAT64 = 12,
    SHEAF_GGUF_TYPE_COUNT,
};

struct sheaf_gguf;

/* Reads header, metadata and tensor directory (not the tensor data). *out owned by the caller. The
 * file stays open until sheaf_gguf_free, for sheaf_gguf_read. A name or key with control characters
 * is refused: no model has one, and messages show names to terminals. */
enum sheaf_status sheaf_gguf_open(const char *path, struct sheaf_gguf **out);
/* As sheaf_gguf_open, with the same checks, from the first `size` bytes of a file of file_size
 * bytes that this process cannot read: those of sheaf_gguf_read_header of one that can. No tensor
 * can be read. path is for messages; header is read during the call only. */
enum sheaf_status sheaf_gguf_open_header(const char *path, const void *header, size_t size,
                                         size_t file_size, struct sheaf_gguf **out);
void sheaf_gguf_free(struct sheaf_gguf *gguf); /* accepts NULL */

const char *sheaf_gguf_path(const struct sheaf_gguf *gguf);
uint32_t sheaf_gguf_version(const struct sheaf_gguf *gguf);
size_t sheaf_gguf_alignment(const struct sheaf_gguf *gguf);
size_t sheaf_gguf_data_offset(
    const struct sheaf_gguf *gguf); /* where tensor data starts in the file, bytes */
size_t sheaf_gguf_file_size(const struct sheaf_gguf *gguf);
/* Bytes of header, metadata and tensor directory, from the start of the file. */
size_t sheaf_gguf_header_size(const struct sheaf_gguf *gguf);
/* These bytes, read again, into dst. IO: the file became shorter, or cannot be read. */
enum sheaf_status sheaf_gguf_read_header(const struct sheaf_gguf *gguf, void *dst);

/* ---- metadata ---- */
int64_t sheaf_gguf_n_kv(const struct sheaf_gguf *gguf);
int64_t sheaf_gguf_find_key(const struct sheaf_gguf *gguf, const char *key); /* -1 if absent */
const char *sheaf_gguf_key(const struct sheaf_gguf *gguf, int64_t i);
enum sheaf_gguf_type sheaf_gguf_kv_type(const struct sheaf_gguf *gguf, int64_t i);
enum sheaf_gguf_type sheaf_gguf_arr_type(const struct sheaf_gguf *gguf, int64_t i);
size_t sheaf_gguf_arr_n(const struct sheaf_gguf *gguf, int64_t i);
/* Raw little-endian elements of an array of numbers; NULL for strings. */
const void *sheaf_gguf_arr_data(const struct sheaf_gguf *gguf, int64_t i);
/* Element j of an array of strings, zero-terminated; *len (may be NULL) counts bytes, inner zeros
 * included. */
const char *sheaf_gguf_arr_str(const struct sheaf_gguf *gguf, int64_t i, size_t j, size_t *len);

/* By key, converting between number types where nothing is lost. INVALID if the key is absent or of
 * another kind; the text names key and file. */
enum sheaf_status sheaf_gguf_get_u64(const struct sheaf_gguf *gguf, const char *key, uint64_t *out);
enum sheaf_status sheaf_gguf_get_i64(const struct sheaf_gguf *gguf, const char *key, int64_t *out);
enum sheaf_status sheaf_gguf_get_f64(const struct sheaf_gguf *gguf, const char *key, double *out);
enum sheaf_status sheaf_gguf_get_bool(const struct sheaf_gguf *gguf, const char *key, bool *out);
enum sheaf_status sheaf_gguf_get_str(const struct sheaf_gguf *gguf, const char *key,
                                     const char **out);

/* ---- tensors ---- */
struct sheaf_gguf_tensor {
    const char *name;
    enum sheaf_type type;
    int n_dims;                 /* 0: a single element */
    int64_t ne[SHEAF_MAX_DIMS]; /* 1 beyond n_dims */
    size_t offset;              /* from the start of the file, bytes */
    size_t size;                /* bytes */
};
int64_t sheaf_gguf_n_tensors(const struct sheaf_gguf *gguf);
int64_t sheaf_gguf_find_tensor(const struct sheaf_gguf *gguf, const char *name); /* -1 if absent */
const struct sheaf_gguf_tensor *sheaf_gguf_tensor(const struct sheaf_gguf *gguf, int64_t i);
/* Bytes [offset, offset + size) of the data of a tensor of this GGUF, from the file that was
 * opened: one that has taken its name since is not read. IO: the file became shorter, or cannot be
 * read. Any thread. */
enum sheaf_status sheaf_gguf_read(const struct sheaf_gguf *gguf,
                                  const struct sheaf_gguf_tensor *tensor, size_t offset, void *dst,
                                  size_t size);
/* IO if the file was written to since it was opened (by its length and time of modification): what
 * was read may be of two versions. To be asked after the last read. SUCCESS without a file. */
enum sheaf_status sheaf_gguf_check_unchanged(const struct sheaf_gguf *gguf);

/* ---- writing: collect, then write in one go ---- */
struct sheaf_gguf *sheaf_gguf_new(void); /* an empty one, version 3; NULL if out of memory */
enum sheaf_status sheaf_gguf_set_u32(struct sheaf_gguf *gguf, const char *key, uint32_t v);
enum sheaf_status sheaf_gguf_set_i32(struct sheaf_gguf *gguf, const char *key, int32_t v);
enum sheaf_status sheaf_gguf_set_u64(struct sheaf_gguf *gguf, const char *key, uint64_t v);
enum sheaf_status sheaf_gguf_set_f32(struct sheaf_gguf *gguf, const char *key, float v);
enum sheaf_status sheaf_gguf_set_bool(struct sheaf_gguf *gguf, const char *key, bool v);
enum sheaf_status sheaf_gguf_set_str(struct sheaf_gguf *gguf, const char *key, const char *v);
enum sheaf_status sheaf_gguf_set_arr_str(struct sheaf_gguf *gguf, const char *key,
                                         const char *const *v, size_t n);
enum sheaf_status sheaf_gguf_set_arr(struct sheaf_gguf *gguf, const char *key,
                                     enum sheaf_gguf_type type, const void *data, size_t n);
/* All keys of src; general.alignment becomes a u32, which the format wants. */
enum sheaf_status sheaf_gguf_copy_kv(struct sheaf_gguf *dst, const struct sheaf_gguf *src);
/* data [size of the tensor] stays the caller's and must live until sheaf_gguf_write; NULL: comes
 * from the source of sheaf_gguf_write_from. */
enum sheaf_status sheaf_gguf_add_tensor(struct sheaf_gguf *gguf, const char *name,
                                        enum sheaf_type type, int n_dims, const int64_t *ne,
                                        const void *data);
/* A file that cannot be written whole is not left behind, and one that was there stays. A symbolic
 * link is followed, and a file that is replaced keeps its mode; INVALID, before any tensor is asked
 * for, if the path names anything but a regular file. */
enum sheaf_status sheaf_gguf_write(const struct sheaf_gguf *gguf, const char *path);
/* *data: the bytes of tensor i, valid until the next call. A failure ends the writing with it. */
typedef enum sheaf_status (*sheaf_gguf_source_fn)(void *user, int64_t i, const void **data);
/* For files that do not fit into memory: tensors that were added without data are asked for when
 * they are written, each once, in order. */
enum sheaf_status sheaf_gguf_write_from(const struct sheaf_gguf *gguf, const char *path,
                                        sheaf_gguf_source_fn source, void *user);

#ifdef __cplusplus
}
#endif
#endif
