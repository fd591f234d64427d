/* Status codes and the text of the last error.
 *
 * Every function that can fail returns `enum sheaf_status`; results come through out pointers.
 * Functions that return a pointer (tensor constructors) return NULL instead. In both cases the
 * words are set where the facts are known and can be read with sheaf_last_error() by the same
 * thread. */
#ifndef SHEAF_STATUS_H
#define SHEAF_STATUS_H

#ifdef __cplusplus
extern "C" {
#endif

enum sheaf_status {
    SHEAF_STATUS_SUCCESS = 0,
    SHEAF_STATUS_ABORTED = 1,       /* stopped on request (abort callback, Ctrl-C) */
    SHEAF_STATUS_FAILED = -1,       /* anything without a better code */
    SHEAF_STATUS_ALLOC_FAILED = -2, /* out of memory */
    SHEAF_STATUS_INVALID = -3,      /* bad argument, bad file, bad setting */
    SHEAF_STATUS_IO = -4,           /* the operating system refused a read, write or open */
    SHEAF_STATUS_UNSUPPORTED = -5,  /* valid, but this device or build cannot do it */
    SHEAF_STATUS_TIMEOUT = -6,      /* a wait passed its deadline */
    SHEAF_STATUS_PEER = -7,         /* another rank failed, died, or diverged */
};

/* Short name of a status, for messages: "out of memory". Never NULL. */
const char *sheaf_status_to_string(enum sheaf_status status);

/* Text of the calling thread's last error, "" if none. Valid until the thread's next failing call.
 */
const char *sheaf_last_error(void);

/* For backends and loaders: stores the text (printf style) and returns `status`. */
enum sheaf_status sheaf_set_error(enum sheaf_status status, const char *fmt, ...)
#if defined(__GNUC__)
    __attribute__((format(printf, 2, 3)))
#endif
    ;

/* Forgets the calling thread's last error. */
void sheaf_clear_error(void);

#ifdef __cplusplus
}
#endif
#endif
