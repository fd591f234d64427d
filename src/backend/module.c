/* Backends in modules: loading one file, and the best files of the search path.
 *
 * Nothing of a module's registry entry is read before its interface version is known to be ours.
 * dlopen runs the module's constructors, which may register a backend: no lock of the registry is
 * held meanwhile. A handle has one owner: the registry from the moment it took the entry, else this
 * file closes it. */
#include "sheaf/module.h"

#include <dlfcn.h>

#include "backend/module_search.h"
#include "backend/registry.h"
#include "sheaf/backend-impl.h"
#include "sheaf/version.h"

static const struct sheaf__module_kind backends = {
    .what = "backend", .init = "sheaf_backend_init", .score = "sheaf_backend_score"};

/* Registers the backend of an open module, which the registry then owns; the path stays. */
static enum sheaf_status module_register(struct sheaf__module *m, sheaf_backend_reg_t *out) {
    sheaf_backend_reg_t (*init)(void);
    bool added = false;
    *out = NULL;
    SHEAF__MODULE_FIND(m->handle, backends.init, init);
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
    struct sheaf__module m;
    if (out) *out = NULL;
    if (!path || !*path) return sheaf_set_error(SHEAF_STATUS_INVALID, "load backend: no file name");
    enum sheaf_status st = sheaf__module_open(&backends, path, &m);
    if (st) return st;
    if (m.score <= 0) {
        st = sheaf_set_error(SHEAF_STATUS_UNSUPPORTED,
                             "load backend %s: it says that it cannot run on this machine (its "
                             "score is %d)",
                             path, m.score);
    } else {
        st = module_register(&m, &reg);
    }
    sheaf__module_close(&m);
    if (out) *out = reg;
    return st;
}

enum sheaf_status sheaf_backend_unload(sheaf_backend_reg_t reg) {
    void *handle;
    enum sheaf_status st = sheaf__registry_remove(reg, &handle);
    if (!st) dlclose(handle);
    return st;
}

/* Registers the best of the files named like found[first], the next best if that one fails. */
static void load_best(struct sheaf__module_search *s, size_t first) {
    const struct sheaf__module family = s->found[first];
    struct sheaf__module *best;
    while ((best = sheaf__module_next_best(s, &family))) {
        sheaf_backend_reg_t reg;
        enum sheaf_status st = module_register(best, &reg);
        /* INVALID: the name is taken, by a built-in backend or by an earlier call */
        if (st && st != SHEAF_STATUS_INVALID) {
            sheaf__module_failed(s, st);
            continue;
        }
        sheaf__module_tell("%s: %s", best->path,
                           st ? "its backend is registered already" : "loaded");
        break;
    }
    while (sheaf__module_next_best(s, &family)) { /* the rest is not wanted */
    }
}

enum sheaf_status sheaf_backend_load_all_from_path(const char *dir) {
    struct sheaf__module_search s = {.kind = &backends};
    sheaf__module_search(&s, dir);
    for (size_t i = 0; i < s.n; i++) {
        if (s.found[i].score > 0) load_best(&s, i);
    }
    sheaf__module_search_end(&s);
    return s.status ? sheaf_set_error(s.status, "%s", s.text) : SHEAF_STATUS_SUCCESS;
}

enum sheaf_status sheaf_backend_load_all(void) { return sheaf_backend_load_all_from_path(NULL); }
