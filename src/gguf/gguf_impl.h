/* What the GGUF reader (gguf.c) and writer (write.c) share: the collected metadata and tensor
 * directory, and the index by name. Invariant: names are unique in each list, and every entry that
 * is in a list is in its index. */
#ifndef SHEAF_GGUF_GGUF_IMPL_H
#define SHEAF_GGUF_GGUF_IMPL_H

#include <time.h>

#include "sheaf/gguf.h"

struct sheaf__gguf_kv {
    char *key;
    enum sheaf_gguf_type type;
    enum sheaf_gguf_type arr_type; /* element type if type is ARRAY */
    size_t n;                      /* elements: 1 unless type is ARRAY */
    uint8_t *data;                 /* numbers: little-endian elements; strings: bytes, each
                                      followed by a zero */
    size_t size;                   /* bytes of data */
    size_t *offs;                  /* strings: [n + 1] starts in data; offs[n] == size */
};

struct sheaf__gguf_index {
    uint32_t *slots; /* number of the entry + 1; 0: free */
    size_t n_slots;  /* a power of two, or 0 */
};

struct sheaf_gguf {
    char *path;
    int fd; /* the file, open for reading; -1: none: it is elsewhere, or being written */
    struct timespec modified; /* when it was opened */
    uint32_t version;
    size_t alignment, header_size, data_offset, file_size;
    size_t n_kv, cap_kv;
    struct sheaf__gguf_kv *kv;
    size_t n_tensors, cap_tensors;
    struct sheaf_gguf_tensor *tensors; /* names owned */
    const void **tensor_data;          /* writer: [cap_tensors]; NULL in a reader */
    struct sheaf__gguf_index kv_index, tensor_index;
};

enum {
    SHEAF__GGUF_ALIGNMENT = 32, /* if general.alignment is absent */
    SHEAF__GGUF_MAX_KEY = 65535,
};

/* Bytes of one element; 0 for strings, arrays and unknown types. */
size_t sheaf__gguf_type_size(enum sheaf_gguf_type type);
const char *sheaf__gguf_type_name(enum sheaf_gguf_type type);
/* Append a checked entry, whose memory passes to gguf (freed on failure too). INVALID if the name
 * exists. */
enum sheaf_status sheaf__gguf_push_kv(struct sheaf_gguf *gguf, struct sheaf__gguf_kv *kv);
enum sheaf_status sheaf__gguf_push_tensor(struct sheaf_gguf *gguf, char *name,
                                          const struct sheaf_gguf_tensor *tensor, const void *data);
void sheaf__gguf_kv_clear(struct sheaf__gguf_kv *kv);
/* Bytes of a tensor of this shape; false if ne is not whole blocks, negative, or too large. */
bool sheaf__gguf_tensor_size(enum sheaf_type type, const int64_t ne[SHEAF_MAX_DIMS], size_t *size);

#endif
