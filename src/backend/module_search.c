/* Modules on the search path. A file is measured before it is mapped: one that was cut short would
 * end the process with SIGBUS in the dynamic linker, not with an error. */
#include "backend/module_search.h"
#include "base/array.h"
#include "base/file.h"
#include "base/format.h"
#include "base/settings.h"
#include "sheaf/log.h"

#include <dirent.h>
#include <dlfcn.h>
#include <elf.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <link.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#define PREFIX "libsheaf-"
#define SUFFIX ".so"

/* Libraries that are no backends: parts of a built-in backend, which loads them itself, and
 * libsheaf-model. */
static const char *const parts[] = {"cpu", "model"};

void sheaf__module_close(struct sheaf__module *m) {
    if (m->handle) dlclose(m->handle);
    free(m->path);
    *m = (struct sheaf__module){0};
}

/* Are all bytes there that the dynamic linker will map? Whatever is no ELF file of this machine is
 * left to dlopen, which refuses it. */
static enum sheaf_status check_extent(const struct sheaf__module_kind *kind, const char *path) {
    ElfW(Ehdr) head;
    struct stat file;
    enum sheaf_status st = SHEAF_STATUS_SUCCESS;
    const int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0 || fstat(fd, &file)) {
        st = sheaf_set_error(SHEAF_STATUS_IO, "load %s %s: %s", kind->what, path,
                             sheaf__errno_text(errno));
        goto out;
    }
    if (!S_ISREG(file.st_mode)) {
        st = sheaf_set_error(SHEAF_STATUS_IO, "load %s %s: not a regular file", kind->what, path);
        goto out;
    }
    if (pread(fd, &head, sizeof head, 0) != (ssize_t)sizeof head ||
        memcmp(head.e_ident, ELFMAG, SELFMAG) != 0 || head.e_phentsize != sizeof(ElfW(Phdr)))
        goto out;
    for (unsigned i = 0; i < head.e_phnum; i++) {
        ElfW(Phdr) part;
        const off_t at = (off_t)(head.e_phoff + i * sizeof part);
        const bool there = pread(fd, &part, sizeof part, at) == (ssize_t)sizeof part;
        if (there && part.p_type != PT_LOAD) continue;
        if (there && part.p_filesz <= (ElfW(Xword))file.st_size &&
            part.p_offset <= (ElfW(Xword))file.st_size - part.p_filesz)
            continue;
        st = sheaf_set_error(SHEAF_STATUS_IO,
                             "load %s %s: the file was cut short (%lld bytes); install it again",
                             kind->what, path, (long long)file.st_size);
        goto out;
    }
out:
    if (fd >= 0) close(fd);
    return st;
}

enum sheaf_status sheaf__module_open(const struct sheaf__module_kind *kind, const char *path,
                                     struct sheaf__module *m) {
    void (*init)(void);
    int (*score)(void);
    *m = (struct sheaf__module){.path = realpath(path, NULL)};
    if (!m->path) {
        return sheaf_set_error(errno == ENOMEM ? SHEAF_STATUS_ALLOC_FAILED : SHEAF_STATUS_IO,
                               "load %s %s: %s", kind->what, path, strerror(errno));
    }
    enum sheaf_status st = check_extent(kind, m->path);
    if (st) goto out;
    m->handle = dlopen(m->path, RTLD_NOW | RTLD_LOCAL);
    if (!m->handle) {
        st = sheaf_set_error(SHEAF_STATUS_IO, "load %s %s", kind->what, dlerror()); /* names it */
        goto out;
    }
    SHEAF__MODULE_FIND(m->handle, kind->init, init);
    SHEAF__MODULE_FIND(m->handle, kind->score, score);
    if (!init) {
        st = sheaf_set_error(SHEAF_STATUS_UNSUPPORTED,
                             "load %s %s: it exports no %s, so it is no %s module of sheaf",
                             kind->what, path, kind->init, kind->what);
        goto out;
    }
    m->score = score ? score() : 1;
out:
    if (st) sheaf__module_close(m);
    return st;
}

bool sheaf__module_verbose(void) { return sheaf__setting_on(SHEAF__SET_BACKEND_DEBUG); }

void sheaf__module_tell(const char *fmt, ...) {
    va_list ap;
    if (!sheaf__module_verbose()) return;
    char text[2048];
    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    sheaf_log(SHEAF_LOG_DEBUG, "%s", text);
}

void sheaf__module_failed(struct sheaf__module_search *s, enum sheaf_status st) {
    const size_t used = strlen(s->text);
    if (!s->status) s->status = st;
    snprintf(s->text + used, sizeof s->text - used, "%s%s", used ? "; " : "", sheaf_last_error());
    sheaf__module_tell("%s", sheaf_last_error());
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

static bool wanted(const struct sheaf__module_search *s, const char *file) {
    const char *name = file + strlen(PREFIX), *family = s->kind->family;
    const size_t len = name_length(file);
    if (family) {
        if (len != strlen(family) || memcmp(name, family, len) != 0) return false;
        if (!s->variant) return true;
        const size_t n = strlen(s->variant);
        return name[len] == '-' && !strncmp(name + len + 1, s->variant, n) &&
               !strcmp(name + len + 1 + n, SUFFIX);
    }
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++) {
        if (len == strlen(parts[i]) && !memcmp(name, parts[i], len)) return false;
    }
    return true;
}

static void try_file(struct sheaf__module_search *s, const char *dir, const char *file) {
    struct sheaf__module m;
    char *path = NULL;
    enum sheaf_status st = SHEAF_STATUS_SUCCESS;
    if (!sheaf__grow(&s->found, &s->cap, s->n + 1, sizeof *s->found)) goto full;
    if (!(path = sheaf__format("%s/%s", dir, file))) goto full;
    st = sheaf__module_open(s->kind, path, &m);
    free(path);
    if (st) {
        sheaf__module_failed(s, st);
        return;
    }
    bool seen = false; /* a directory twice in the path, or a link */
    for (size_t i = 0; i < s->n; i++) seen = seen || !strcmp(s->found[i].path, m.path);
    if (seen || m.score <= 0) {
        sheaf__module_tell("%s: %s", m.path,
                           seen ? "found twice" : "score 0, cannot run on this machine");
        s->n_unfit += !seen;
        sheaf__module_close(&m);
        return;
    }
    m.name = strrchr(m.path, '/') + 1 + strlen(PREFIX);
    m.name_len = name_length(m.name - strlen(PREFIX));
    if (!m.name_len) { /* a link to a file of another name */
        m.name = m.path;
        m.name_len = strlen(m.path);
    }
    sheaf__module_tell("%s: score %d", m.path, m.score);
    s->found[s->n++] = m;
    return;
full:
    sheaf__module_failed(
        s, sheaf_set_error(SHEAF_STATUS_ALLOC_FAILED, "load %s: out of memory", s->kind->what));
}

/* named: by the user, so it has to exist. */
static void look_into(struct sheaf__module_search *s, const char *dir, bool named) {
    struct dirent **files;
    const int n = scandir(dir, &files, is_module_file, alphasort); /* sorted: alike everywhere */
    int tried = 0;
    if (n < 0) {
        /* a directory that the user names wrongly is said once, by the search for backends */
        if (errno == EMFILE || (named && !s->kind->family))
            sheaf__module_failed(s, sheaf_set_error(SHEAF_STATUS_IO,
                                                    "load %s%s from directory '%s': %s",
                                                    s->kind->what, s->kind->family ? "" : "s", dir,
                                                    sheaf__errno_text(errno)));
        return;
    }
    for (int i = 0; i < n; i++) tried += wanted(s, files[i]->d_name);
    sheaf__module_tell("%s: %d modules (%s)", dir, tried, s->kind->what);
    for (int i = 0; i < n; i++) {
        if (wanted(s, files[i]->d_name)) try_file(s, dir, files[i]->d_name);
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

/* The file that this code lies in. Asked for when it is loaded: a relative name (a script that
 * opened
 * "./libsheaf.so") means something else once the program has changed its directory. */
static char here[PATH_MAX];
__attribute__((constructor)) static void remember_here(void) {
    Dl_info info;
    if (!dladdr(here, &info) || !info.dli_fname || !realpath(info.dli_fname, here)) here[0] = '\0';
}

static void look_into_path(struct sheaf__module_search *s) {
    const char *dirs = sheaf__setting_text(SHEAF__SET_BACKEND_PATH);
    char path[PATH_MAX];
    for (const char *p = dirs ? dirs : ""; *p;) {
        const size_t n = strcspn(p, ":");
        if (n >= sizeof path) {
            sheaf__module_failed(
                s, sheaf_set_error(SHEAF_STATUS_INVALID,
                                   "SHEAF_BACKEND_PATH: a directory's name is too long"));
        } else if (n) {
            memcpy(path, p, n);
            path[n] = '\0';
            look_into(s, path, true);
        }
        p += n + (p[n] == ':');
    }
    if (*here) {
        strcpy(path, here);
        look_into(s, directory(path), false);
    }
    const ssize_t n = readlink("/proc/self/exe", path, sizeof path - 1);
    if (n > 0) {
        path[n] = '\0';
        look_into(s, directory(path), false);
    }
}

void sheaf__module_search(struct sheaf__module_search *s, const char *dir) {
    if (dir) {
        look_into(s, dir, true);
    } else {
        look_into_path(s);
    }
}

bool sheaf__module_same_name(const struct sheaf__module *a, const struct sheaf__module *b) {
    return a->name_len == b->name_len && !memcmp(a->name, b->name, a->name_len);
}

struct sheaf__module *sheaf__module_next_best(struct sheaf__module_search *s,
                                              const struct sheaf__module *like) {
    struct sheaf__module *best = NULL;
    int score = 0;
    for (size_t i = 0; i < s->n; i++) {
        struct sheaf__module *m = &s->found[i];
        if (m->score <= score || (like && !sheaf__module_same_name(m, like))) continue;
        best = m;
        score = m->score;
    }
    if (best) best->score = 0;
    return best;
}

void sheaf__module_search_end(struct sheaf__module_search *s) {
    for (size_t i = 0; i < s->n; i++) sheaf__module_close(&s->found[i]);
    free(s->found);
    s->found = NULL;
    s->n = s->cap = 0;
}
