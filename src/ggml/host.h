/* The ggml library in this process, called the host: its version, the numbers that it gives to ops
 * and types, and whether its structures lie as abi.h says. For the plugin that is the ggml of the
 * program that loaded it, for libsheaf-ggml.so a library of ggml (library.h). Filled once, before
 * anything else; read-only afterwards. */
#ifndef SHEAF_GGML_HOST_H
#define SHEAF_GGML_HOST_H

#include "ggml/abi.h"
#include "sheaf/sheaf.h"

enum { GG_MAX_OPS = 160, GG_MAX_UNARY = 48, GG_MAX_GLU = 16, GG_MAX_TYPES = 64 };

struct gg_host {
    int api_version; /* 2 or 3 */
    char version[32];
    struct gg_buffer *(*buffer_init)(struct gg_buft *buft, struct gg_buffer_i iface, void *context,
                                     size_t size); /* for gg_host_new_buffer */
    bool is_0_9;                                   /* its tables lack the fields that 0.10 added */
    bool has_uid;                                  /* its graphs have one */
    int8_t op[GG_MAX_OPS];      /* row of the table of ops (op_table.h); -1: none */
    int8_t unary[GG_MAX_UNARY]; /* enum sheaf_unary_op; -1: none */
    int8_t glu[GG_MAX_GLU];     /* enum sheaf_glu_op; -1: none */
    int8_t type[GG_MAX_TYPES];  /* enum sheaf_type; -1: none */
    bool has_compute_flag;
    char unknown[1024]; /* names of ops and types that have no counterpart here, with spaces */
};

/* Looks the host up from `caller`, an address inside of it, and checks it. INVALID, with a text
 * that names what is missing or has moved. */
enum sheaf_status gg_host_find(const void *caller, struct gg_host *out);
/* Does `caller` lie in this host? If not, INVALID with a text that names the files of both. */
enum sheaf_status gg_host_is_of(const struct gg_host *host, const void *caller);
/* The same for a library that dlopen has opened. */
enum sheaf_status gg_host_check(void *library, struct gg_host *out);
/* Is the host's version 0.`minor` or later? No, if it does not say. */
bool gg_is_since(const struct gg_host *host, int minor);

/* ggml_backend_buffer_init, with the table that this ggml has. */
struct gg_buffer *gg_host_new_buffer(const struct gg_host *host, struct gg_buft *buft,
                                     const struct gg_buffer_i *iface, void *context, size_t size);
/* The buffer's fields behind its table of functions. */
struct gg_buffer_rest *gg_host_rest(const struct gg_host *host, struct gg_buffer *buffer);
/* The graph's uid; 0: it has none. */
uint64_t gg_uid(const struct gg_host *host, const struct gg_cgraph *graph);

/* The tensors of the whole graph that this one is a part of, one a call; *at is 0 at first. NULL: there are no
 * more. */
const struct gg_tensor *gg_next_of_whole(const struct gg_cgraph *graph, size_t *at);
/* How often the whole graph uses t; -1: the graph does not know t. */
int gg_use_count(const struct gg_cgraph *graph, const struct gg_tensor *t);

#endif
