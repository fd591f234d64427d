/* Where the library's messages go.
 *
 * A function that fails returns a status and keeps its text for sheaf_last_error(); it prints
 * nothing. A message is for facts that no return value carries: the library falls back to slower
 * kernels, a module cannot be loaded, a rank of the job has failed. Without a log function messages
 * go to the standard error output, each after "sheaf: ". With one, the library prints nothing
 * at all. */
#ifndef SHEAF_LOG_H
#define SHEAF_LOG_H

#ifdef __cplusplus
extern "C" {
#endif

enum sheaf_log_level {
    SHEAF_LOG_DEBUG = 0, /* asked for by a setting: SHEAF_SCHED_DEBUG, SHEAF_CUDA_PARAMS */
    SHEAF_LOG_INFO = 1,
    SHEAF_LOG_WARN = 2,  /* the call went on, but not as its caller may expect */
    SHEAF_LOG_ERROR = 3, /* the job ends */
};

/* `text`: one or more lines, without a newline at the end; valid during the call. Called from any
 * thread, also from several at once, and from the thread that watches deadlines: it must return
 * soon and must not call the library. */
typedef void (*sheaf_log_fn)(enum sheaf_log_level level, const char *text, void *user);

/* NULL: back to the standard error output. Before other threads use the library, so that none
 * calls a function that was replaced. */
void sheaf_log_set(sheaf_log_fn fn, void *user);

/* Logs a message (printf style; at most 8191 bytes of it). For backends and loaders as well. */
void sheaf_log(enum sheaf_log_level level, const char *fmt, ...)
#if defined(__GNUC__)
    __attribute__((format(printf, 2, 3)))
#endif
    ;

#ifdef __cplusplus
}
#endif
#endif
