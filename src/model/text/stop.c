/* Texts that end an answer: finds them across pieces.
 *
 * Invariant: held is what was taken and not passed on; no suffix of what was passed on, continued
 * by held, is one of the texts. */
#include "model/text/stop.h"

#include <stdlib.h>
#include <string.h>

#include "base/array.h"

/* Where in held the first of the texts begins; len if there is none. */
static size_t find(const struct sheaf__stop *s) {
    size_t first = s->len;
    for (int i = 0; i < s->n; i++) {
        const char *p = memmem(s->held, s->len, s->texts[i], strlen(s->texts[i]));
        if (p && (size_t)(p - s->held) < first) first = (size_t)(p - s->held);
    }
    return first;
}

/* Bytes at the end of held that may be the beginning of a text. */
static size_t n_begun(const struct sheaf__stop *s) {
    size_t most = 0;
    for (int i = 0; i < s->n; i++) {
        size_t k = strlen(s->texts[i]) - 1;
        if (k > s->len) k = s->len;
        while (k > most && memcmp(s->held + s->len - k, s->texts[i], k) != 0) k--;
        if (k > most) most = k;
    }
    return most;
}

static void drop_passed(struct sheaf__stop *s) {
    if (s->passed) memmove(s->held, s->held + s->passed, s->len - s->passed);
    s->len -= s->passed;
    s->passed = 0;
}

enum sheaf_status sheaf__stop_push(struct sheaf__stop *s, const char *piece, size_t n,
                                   const char **out, size_t *out_len) {
    *out = "";
    *out_len = 0;
    if (s->found || !n) return SHEAF_STATUS_SUCCESS;
    drop_passed(s);
    if (!sheaf__grow(&s->held, &s->cap, s->len + n, 1))
        return sheaf_set_error(SHEAF_STATUS_ALLOC_FAILED, "no memory for the answer");
    memcpy(s->held + s->len, piece, n);
    s->len += n;
    const size_t at = find(s);
    s->found = at < s->len;
    s->passed = s->found ? at : s->len - n_begun(s);
    *out = s->held;
    *out_len = s->passed;
    return SHEAF_STATUS_SUCCESS;
}

enum sheaf_status sheaf__stop_end(struct sheaf__stop *s, const char *piece, size_t n,
                                  const char **out, size_t *out_len) {
    drop_passed(s);
    const enum sheaf_status status = sheaf__stop_push(s, piece, n, out, out_len);
    if (status || s->found) return status;
    *out = s->len ? s->held : "";
    *out_len = s->len;
    return SHEAF_STATUS_SUCCESS;
}

void sheaf__stop_free(struct sheaf__stop *s) { free(s->held); }
