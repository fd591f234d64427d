/* Backends in modules: opening one file, and choosing among the files of the search path.
 *
 * Nothing of a module's registry entry is read before its interface version is known to be ours.
 * dlopen runs the module's constructors, which may register a backend: no lock of the registry is
 * held meanwhile. A handle has one owner: the registry from the moment it took the entry, else this
 * file closes it. */
#include "sheaf/module.h"

#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <limits.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "core/registry.h"
#include "sheaf/backend-impl.h"
#include "sheaf/version.h"

#define PREFIX "libsheaf-"
#define SUFFIX ".so"

struct module {
    char *path; /* without links; owned */
    void *handle;
    int score;
    const char *name; /* in path: the NAME of libsheaf-NAME-VARIANT.so */
    size_t name_len;
};

static void module_close(struct module *m) {
    if (m->handle) dlclose(m->handle);
    free(m->path);
    *m = (struct module){0};
}

/* A function of the module as a pointer to a function: C has no cast from what dlsym returns. */
#define FIND(handle, symbol, fn)                                                                   \
    do {                                                                                           \
        void *address = dlsym(handle, symbol);                                                     \
        memcpy(&(fn), &address, sizeof(fn));                                                       \
    } while (0)

/* Maps the file and asks for its score. On success the caller closes *m; score 0 is a success. */
static enum sheaf_status module_open(const char *path, struct module *m) {
    sheaf_backend_reg_t (*init)(void);
    int (*score)(void);
    *m = (struct module){.path = realpath(path, NULL)};
    if (!m->path) {
        return sheaf_set_error(errno == ENOMEM ? SHEAF_STATUS_ALLOC_FAILED : SHEAF_STATUS_IO,
                               "load backend %s: %s", path, strerror(errno));
    }
    enum sheaf_status st = SHEAF_STATUS_SUCCESS;
    m->handle = dlopen(m->path, RTLD_NOW | RTLD_LOCAL);
    if (!m->handle) {
        st = sheaf_set_error(SHEAF_STATUS_IO, "load backend %s", dlerror()); /* names the file */
        goto out;
    }
    FIND(m->handle, "sheaf_backend_init", init);
    FIND(m->handle, "sheaf_backend_score", score);
    if (!init) {
        st = sheaf_set_error(SHEAF_STATUS_UNSUPPORTED,
                             "load backend %s: it exports no sheaf_backend_init, so it is no "
                             "backend module of sheaf",
                             path);
        goto out;
    }
    m->score = score ? score() : 1;
out:
    if (st) module_close(m);
    return st;
}

/* Registers the backend of an open module, which the registry then owns; the path stays. */
static enum sheaf_status module_register(struct module *m, sheaf_backend_reg_t *out) {
    sheaf_backend_reg_t (*init)(void);
    bool added = false;
    *out = NULL;
    FIND(m->handle, "sheaf_backend_init", init);
    sheaf_clear_error();
    sheaf_backend_reg_t reg = init();
    if (!reg) {
        const char *why = sheaf_last_error();
        return sheaf_set_error(SHEAF_STATUS_UNSUPPORTED, "load backend %s: it gave no backend%s%s",
                               m->path, *why ? ": " : "", why);
    }
    if (reg->api_version != SHEAF_BACKEND_API_VERSION) {
        return sheaf_set_error(SHEAF_STATUS_UNSUPPORTED,
                               "load backend %s: it was built for interface version %d, this "
                               "library (sheaf %s) has %d; build it again with the headers of this "
                               "library",
                               m->path, reg->api_version, sheaf_version(),
                               SHEAF_BACKEND_API_VERSION);
    }
    if (!reg->iface || !reg->iface->get_name || !reg->iface->get_device_count ||
        !reg->iface->get_device) {
        return sheaf_set_error(SHEAF_STATUS_UNSUPPORTED,
                               "load backend %s: its registry entry lacks get_name, "
                               "get_device_count or get_device",
                               m->path);
    }
    enum sheaf_status st = sheaf__registry_add(reg, m->handle, &added);
    if (st) return sheaf_set_error(st, "load backend %s: %s", m->path, sheaf_last_error());
    if (added) m->handle = NULL;
    *out = reg;
    return SHEAF_STATUS_SUCCESS;
}

enum sheaf_status sheaf_backend_load(const char *path, sheaf_backend_reg_t *out) {
    sheaf_backend_reg_t reg = NULL;
    struct module m;
    if (out) *out = NULL;
    if (!path || !*path) return sheaf_set_error(SHEAF_STATUS_INVALID, "load backend: no file name");
    enum sheaf_status st = module_open(path, &m);
    if (st) return st;
    if (m.score <= 0) {
        st = sheaf_set_error(SHEAF_STATUS_UNSUPPORTED,
                             "load backend %s: it says that it cannot run on this machine (its "
                             "score is %d)",
                             path, m.score);
    } else {
        st = module_register(&m, &reg);
    }
    module_close(&m);
    if (out) *out = reg;
    return st;
}

enum sheaf_status sheaf_backend_unload(sheaf_backend_reg_t reg) {
    void *handle;
    enum sheaf_status st = sheaf__registry_remove(reg, &handle);
    if (!st) dlclose(handle);
    return st;
}

/* ---- the search path ---- */

struct search {
    struct module *found; /* all with a score above 0, in the order in which they were found */
    size_t n, cap;
    enum sheaf_status status; /* the first failure */
    char text[1800];          /* all of them */
    bool verbose;
};

__attribute__((format(printf, 2, 3))) static void tell(const struct search *s, const char *fmt,
                                                       ...) {
    va_list ap;
    if (!s->verbose) return;
    va_start(ap, fmt);
    fputs("sheaf: ", stderr);
    vfprintf(stderr, fmt, ap);
    fputc('\n', stderr);
    va_end(ap);
}

/* Notes sheaf_last_error(). */
static void failed(struct search *s, enum sheaf_status st) {
    const size_t used = strlen(s->text);
    if (!s->status) s->status = st;
    snprintf(s->text + used, sizeof s->text - used, "%s%s", used ? "\n" : "", sheaf_last_error());
    tell(s, "%s", sheaf_last_error());
}

/* NAME of libsheaf-NAME.so or libsheaf-NAME-VARIANT.so; 0 if `file` is neither. */
static size_t name_length(const char *file) {
    const size_t len = strlen(file), prefix = strlen(PREFIX), suffix = strlen(SUFFIX);
    if (len <= prefix + suffix || strncmp(file, PREFIX, prefix) != 0) return 0;
    if (strcmp(file + len - suffix, SUFFIX) != 0) return 0;
    const size_t dash = strcspn(file + prefix, "-");
    return dash < len - prefix - suffix ? dash : len - prefix - suffix;
}

static int is_module_file(const struct dirent *e) { return name_length(e->d_name) > 0; }

static void try_file(struct search *s, const char *dir, const char *file) {
    struct module m;
    char *path = NULL;
    enum sheaf_status st = SHEAF_STATUS_SUCCESS;
    if (s->n == s->cap) {
        const size_t cap = s->cap ? 2 * s->cap : 16;
        struct module *more = realloc(s->found, cap * sizeof *more);
        if (!more) goto full;
        s->found = more;
        s->cap = cap;
    }
    if (asprintf(&path, "%s/%s", dir, file) < 0) goto full;
    st = module_open(path, &m);
    free(path);
    if (st) {
        failed(s, st);
        return;
    }
    bool seen = false; /* a directory twice in the path, or a link */
    for (size_t i = 0; i < s->n; i++) seen = seen || !strcmp(s->found[i].path, m.path);
    if (seen || m.score <= 0) {
        tell(s, "%s: %s", m.path, seen ? "found twice" : "score 0, cannot run on this machine");
        module_close(&m);
        return;
    }
    m.name = strrchr(m.path, '/') + 1 + strlen(PREFIX);
    m.name_len = name_length(m.name - strlen(PREFIX));
    if (!m.name_len) { /* a link to a file of another name */
        m.name = m.path;
        m.name_len = strlen(m.path);
    }
    tell(s, "%s: score %d", m.path, m.score);
    s->found[s->n++] = m;
    return;
full:
    failed(s, sheaf_set_error(SHEAF_STATUS_ALLOC_FAILED, "load backends: out of memory"));
}

/* wanted: the user named this directory, so it has to exist. */
static void look_into(struct search *s, const char *dir, bool wanted) {
    struct dirent **files;
    const int n = scandir(dir, &files, is_module_file, alphasort); /* sorted: alike everywhere */
    if (n < 0) {
        if (wanted) {
            failed(s, sheaf_set_error(SHEAF_STATUS_IO, "load backends from directory '%s': %s", dir,
                                      strerror(errno)));
        }
        return;
    }
    tell(s, "%s: %d modules", dir, n);
    for (int i = 0; i < n; i++) {
        try_file(s, dir, files[i]->d_name);
        free(files[i]);
    }
    free(files);
}

/* The directory part of a path, in place. */
static const char *directory(char *path) {
    char *slash = strrchr(path, '/');
    if (!slash) return ".";
    slash[slash == path] = '\0';
    return path;
}

static void look_into_path(struct search *s) {
    const char *dirs = secure_getenv("SHEAF_BACKEND_PATH");
    char path[PATH_MAX];
    for (const char *p = dirs ? dirs : ""; *p;) {
        const size_t n = strcspn(p, ":");
        if (n >= sizeof path) {
            failed(s, sheaf_set_error(SHEAF_STATUS_INVALID,
                                      "SHEAF_BACKEND_PATH: a directory's name is too long"));
        } else if (n) {
            memcpy(path, p, n);
            path[n] = '\0';
            look_into(s, path, true);
        }
        p += n + (p[n] == ':');
    }
    Dl_info here;
    static const char inside = 0; /* dladdr wants an address of this library */
    if (dladdr(&inside, &here) && here.dli_fname && strlen(here.dli_fname) < sizeof path) {
        strcpy(path, here.dli_fname);
        look_into(s, directory(path), false);
    }
    const ssize_t n = readlink("/proc/self/exe", path, sizeof path - 1);
    if (n > 0) {
        path[n] = '\0';
        look_into(s, directory(path), false);
    }
}

static bool same_name(const struct module *a, const struct module *b) {
    return a->name_len == b->name_len && !memcmp(a->name, b->name, a->name_len);
}

/* Registers the best of the files named like found[first], the next best if that one fails. */
static void load_best(struct search *s, size_t first) {
    const struct module family = s->found[first];
    for (;;) {
        struct module *best = NULL;
        sheaf_backend_reg_t reg;
        for (size_t i = first; i < s->n; i++) {
            struct module *m = &s->found[i];
            if (m->score > 0 && same_name(m, &family) && (!best || m->score > best->score))
                best = m;
        }
        if (!best) return;
        best->score = 0; /* tried */
        enum sheaf_status st = module_register(best, &reg);
        /* INVALID: the name is taken, by a built-in backend or by an earlier call */
        if (st && st != SHEAF_STATUS_INVALID) {
            failed(s, st);
            continue;
        }
        tell(s, "%s: %s", best->path, st ? "its backend is registered already" : "loaded");
        break;
    }
    for (size_t i = first; i < s->n; i++) {
        if (same_name(&s->found[i], &family)) s->found[i].score = 0;
    }
}

enum sheaf_status sheaf_backend_load_all_from_path(const char *dir) {
    const char *verbose = getenv("SHEAF_BACKEND_DEBUG");
    struct search s = {.verbose = verbose && *verbose && strcmp(verbose, "0") != 0};
    if (dir) {
        look_into(&s, dir, true);
    } else {
        look_into_path(&s);
    }
    for (size_t i = 0; i < s.n; i++) {
        if (s.found[i].score > 0) load_best(&s, i);
    }
    for (size_t i = 0; i < s.n; i++) module_close(&s.found[i]);
    free(s.found);
    return s.status ? sheaf_set_error(s.status, "%s", s.text) : SHEAF_STATUS_SUCCESS;
}

enum sheaf_status sheaf_backend_load_all(void) { return sheaf_backend_load_all_from_path(NULL); }
