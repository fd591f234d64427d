/* The files libsheaf-NAME.so and libsheaf-NAME-VARIANT.so of the search path: found, opened, asked
 * for their scores. Their content is the caller's affair: the registry searches for
 * backends (backend/module.c), a backend for parts of itself that it keeps in files of their own.
 *
 * The search path: the directories of SHEAF_BACKEND_PATH, the directory of libsheaf, the directory
 * of the program. SHEAF_BACKEND_DEBUG=1 tells on standard error what becomes of every file. */
#ifndef SHEAF_BACKEND_MODULE_SEARCH_H
#define SHEAF_BACKEND_MODULE_SEARCH_H

#include <stdbool.h>
#include <stddef.h>
#include <string.h>

#include "sheaf/status.h"

/* Which files are wanted. */
struct sheaf__module_kind {
    const char *what;   /* for texts: "backend" */
    const char *family; /* NAME; NULL: any that is not the name of a built-in backend's parts */
    const char *init;   /* a function that every file of the kind exports */
    const char *score; /* int (*)(void): 0 cannot run here, more is better. A file may lack it: 1 */
};

struct sheaf__module {
    char *path;       /* without links; owned */
    void *handle;     /* of dlopen; a caller that takes it over sets it to NULL */
    int score;        /* 0 once tried */
    const char *name; /* in path: the NAME of the file's name, name_len bytes */
    size_t name_len;  /* the whole path if a link led to a file of another name */
};

struct sheaf__module_search {
    const struct sheaf__module_kind *kind;
    const char *variant;         /* NULL: any; else the VARIANT of libsheaf-NAME-VARIANT.so */
    struct sheaf__module *found; /* with a score above 0, in the order in which they were found */
    size_t n, cap;
    size_t n_unfit;           /* files with score 0 */
    enum sheaf_status status; /* the first failure */
    char text[1800];          /* all of them, joined by "; " */
};

/* Opens one file. On success the caller closes *m; score 0 is a success. */
enum sheaf_status sheaf__module_open(const struct sheaf__module_kind *kind, const char *path,
                                     struct sheaf__module *m);
void sheaf__module_close(struct sheaf__module *m);

/* Fills *s, whose kind and variant are set and the rest is 0. dir: NULL for the search path. dlopen
 * runs the constructors of files: no lock that one of them may want is held meanwhile. */
void sheaf__module_search(struct sheaf__module_search *s, const char *dir);
/* The best file that was not tried yet, of those named like `like` (NULL: of all); the first found
 * among equals. Its score becomes 0. NULL if there is none. */
struct sheaf__module *sheaf__module_next_best(struct sheaf__module_search *s,
                                              const struct sheaf__module *like);
/* Notes a failure, whose text is sheaf_last_error(). */
void sheaf__module_failed(struct sheaf__module_search *s, enum sheaf_status st);
/* Closes all files that were not taken over. */
void sheaf__module_search_end(struct sheaf__module_search *s);

bool sheaf__module_same_name(const struct sheaf__module *a, const struct sheaf__module *b);
/* A line on standard error if SHEAF_BACKEND_DEBUG wants it. */
bool sheaf__module_verbose(void);
__attribute__((format(printf, 1, 2))) void sheaf__module_tell(const char *fmt, ...);

/* A function of the module as a pointer to a function: C has no cast from what dlsym returns. */
#define SHEAF__MODULE_FIND(handle, symbol, fn)                                                     \
    do {                                                                                           \
        void *address = dlsym(handle, symbol);                                                     \
        memcpy(&(fn), &address, sizeof(fn));                                                       \
    } while (0)

#endif
