/* Texts that end an answer. An answer comes in pieces; of each as much is passed on as cannot be
 * the beginning of such a text. */
#ifndef SHEAF_MODEL_STOP_H
#define SHEAF_MODEL_STOP_H

#include <stdbool.h>
#include <stddef.h>

#include "sheaf/status.h"

/* All zero except texts [n], which are not empty and stay the caller's. */
struct sheaf__stop {
    const char *const *texts;
    int n;
    bool found; /* one of the texts has occurred */
    char *held; /* [len] not yet passed on, behind `passed` bytes that were */
    size_t len, cap, passed;
};

/* Takes a piece; *out [*out_len] can be shown, valid until the next call. Once a text has occurred:
 * nothing more. */
enum sheaf_status sheaf__stop_push(struct sheaf__stop *stop, const char *piece, size_t n,
                                   const char **out, size_t *out_len);
/* Takes the last piece; *out is the rest of what can be shown. */
enum sheaf_status sheaf__stop_end(struct sheaf__stop *stop, const char *piece, size_t n,
                                  const char **out, size_t *out_len);
void sheaf__stop_free(struct sheaf__stop *stop);

#endif
