/* Opens the library, finds its functions, has it load its backends.
 *
 * SHEAF_GGML_LIB names the file, SHEAF_GGML_BACKENDS the folder of the backends. Without the latter
 * the library searches where it was built to; if that gives no device, its own folder and the one
 * that Debian keeps them in are searched. */
#include "ggml/library.h"

#include <dlfcn.h>
#include <link.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/array.h"
#include "ggml/translate.h"

static struct gg_library library;
static enum { NOT_TRIED, FOUND, REFUSED } state;
static char why[1024]; /* of REFUSED */
static char last_error[512];
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER, error_lock = PTHREAD_MUTEX_INITIALIZER;

/* Functions beside those of the members of struct gg_library. */
static struct {
    void (*load_all)(void);
    void (*load_all_from_path)(const char *dir);
    void (*log_set)(void (*fn)(int level, const char *text, void *user), void *user);
    void (*set_abort_callback)(void (*fn)(const char *text));
} more;

/* ---- what the library says ---- */

/* ggml logs to the standard error output by itself; its lines become ours. */
static void take_log(int level, const char *text, void *user) {
    enum { WARN = 3, ERROR = 4 };
    const size_t n = strcspn(text, "\n");
    (void)user;
    if (!n || level < WARN || level > ERROR) return;
    if (level == ERROR) {
        pthread_mutex_lock(&error_lock);
        snprintf(last_error, sizeof last_error, "%.*s", (int)n, text);
        pthread_mutex_unlock(&error_lock);
    }
    sheaf_log(SHEAF_LOG_WARN, "ggml: %.*s", (int)n, text);
}

const char *gg_library_last_error(void) {
    static _Thread_local char text[sizeof last_error];
    pthread_mutex_lock(&error_lock);
    memcpy(text, last_error, sizeof text);
    last_error[0] = '\0';
    pthread_mutex_unlock(&error_lock);
    return text;
}

const char *gg_library_text(const struct gg_library *lib) {
    static _Thread_local char text[sizeof lib->path + sizeof lib->host.version + 16];
    snprintf(text, sizeof text, "ggml%s%s, %s", *lib->host.version ? " " : "", lib->host.version,
             lib->path);
    return text;
}

/* ggml calls this and then abort(): the other ranks learn why before the process is gone. */
static void take_abort(const char *text) {
    char line[1024];
    snprintf(line, sizeof line, "%s gave up: %s", gg_library_text(&library), text);
    sheaf_log(SHEAF_LOG_ERROR, "%s", line);
    sheaf_world_abort(line);
}

/* ---- functions ---- */

static void *find(void *handle, const char *name) {
    void *p = dlsym(RTLD_DEFAULT, name);
    return p || !handle ? p : dlsym(handle, name);
}

static enum sheaf_status find_all(void *handle, struct gg_library *l) {
    const struct {
        const char *name;
        void *at;
        bool optional;
    } wanted[] = {
        {"ggml_backend_dev_count", &l->dev_count, false},
        {"ggml_backend_dev_get", &l->dev_get, false},
        {"ggml_backend_dev_name", &l->dev_name, false},
        {"ggml_backend_dev_description", &l->dev_description, false},
        {"ggml_backend_dev_memory", &l->dev_memory, false},
        {"ggml_backend_dev_get_props", &l->dev_get_props, false},
        {"ggml_backend_dev_backend_reg", &l->dev_backend_reg, false},
        {"ggml_backend_dev_init", &l->dev_init, false},
        {"ggml_backend_dev_buffer_type", &l->dev_buffer_type, false},
        {"ggml_backend_dev_host_buffer_type", &l->dev_host_buffer_type, false},
        {"ggml_backend_dev_supports_op", &l->dev_supports_op, false},
        {"ggml_backend_reg_name", &l->reg_name, false},
        {"ggml_backend_reg_get_proc_address", &l->reg_get_proc_address, false},
        {"ggml_backend_buft_alloc_buffer", &l->buft_alloc_buffer, false},
        {"ggml_backend_buft_get_alignment", &l->buft_get_alignment, false},
        {"ggml_backend_buft_get_max_size", &l->buft_get_max_size, false},
        {"ggml_backend_buft_get_alloc_size", &l->buft_get_alloc_size, false},
        {"ggml_backend_buft_is_host", &l->buft_is_host, false},
        {"ggml_backend_buffer_free", &l->buffer_free, false},
        {"ggml_backend_buffer_get_base", &l->buffer_get_base, false},
        {"ggml_backend_buffer_clear", &l->buffer_clear, false},
        {"ggml_backend_buffer_set_usage", &l->buffer_set_usage, false},
        {"ggml_backend_tensor_alloc", &l->tensor_alloc, false},
        {"ggml_backend_view_init", &l->view_init, false},
        {"ggml_backend_tensor_set", &l->tensor_set, false},
        {"ggml_backend_tensor_get", &l->tensor_get, false},
        {"ggml_backend_tensor_copy", &l->tensor_copy, false},
        {"ggml_backend_free", &l->backend_free, false},
        {"ggml_backend_synchronize", &l->synchronize, false},
        {"ggml_backend_graph_compute_async", &l->graph_compute_async, false},
        {"ggml_backend_tensor_set_async", &l->tensor_set_async, false},
        {"ggml_backend_tensor_get_async", &l->tensor_get_async, false},
        {"ggml_backend_tensor_copy_async", &l->tensor_copy_async, false},
        {"ggml_backend_event_new", &l->event_new, false},
        {"ggml_backend_event_free", &l->event_free, false},
        {"ggml_backend_event_record", &l->event_record, false},
        {"ggml_backend_event_wait", &l->event_wait, false},
        {"ggml_backend_event_synchronize", &l->event_synchronize, false},
        {"ggml_init", &l->init, false},
        {"ggml_free", &l->free, false},
        {"ggml_graph_overhead_custom", &l->graph_overhead_custom, false},
        {"ggml_new_graph_custom", &l->new_graph_custom, false},
        {"ggml_build_forward_expand", &l->build_forward_expand, false},
        {"ggml_graph_next_uid", &l->graph_next_uid, true},
        {"ggml_backend_load_all", &more.load_all, true},
        {"ggml_backend_load_all_from_path", &more.load_all_from_path, true},
        {"ggml_log_set", &more.log_set, true},
        {"ggml_set_abort_callback", &more.set_abort_callback, true},
    };
    for (size_t i = 0; i < sizeof wanted / sizeof *wanted; i++) {
        void *f = find(handle, wanted[i].name);
        if (!f && !wanted[i].optional)
            return sheaf_set_error(SHEAF_STATUS_UNSUPPORTED, "it has no function %s",
                                   wanted[i].name);
        memcpy(wanted[i].at, &f, sizeof f);
    }
    return SHEAF_STATUS_SUCCESS;
}

/* ---- the file ---- */

struct objects { /* that are loaded */
    char **name;
    size_t n, cap;
};

static int note_object(struct dl_phdr_info *info, size_t size, void *user) {
    struct objects *o = user;
    (void)size;
    if (!*info->dlpi_name || !sheaf__grow(&o->name, &o->cap, o->n + 1, sizeof *o->name)) return 0;
    o->name[o->n] = strdup(info->dlpi_name);
    o->n += o->name[o->n] != NULL;
    return 0;
}

/* A program that uses ggml has it already: a second copy would have its own devices. It may have it
 * under any name and for itself alone, as modules of Python have. */
static void *open_programs(void) {
    static const char wanted[] = "ggml_backend_dev_count";
    struct objects objects = {0};
    void *found = NULL;
    if (dlsym(RTLD_DEFAULT, wanted)) return dlopen(NULL, RTLD_NOW);
    dl_iterate_phdr(note_object, &objects);
    for (size_t i = 0; i < objects.n; i++) {
        void *handle = found ? NULL : dlopen(objects.name[i], RTLD_NOW | RTLD_NOLOAD);
        if (handle && dlsym(handle, wanted))
            found = handle;
        else if (handle)
            dlclose(handle);
        free(objects.name[i]);
    }
    free(objects.name);
    return found;
}

static enum sheaf_status open_file(void **handle) {
    const char *path = sheaf_setting_value("SHEAF_GGML_LIB");
    char text[512];
    *handle = dlopen(path ? path : "libggml.so.0", RTLD_NOW | RTLD_LOCAL);
    if (*handle) return SHEAF_STATUS_SUCCESS;
    snprintf(text, sizeof text, "%s", dlerror());
    return sheaf_set_error(SHEAF_STATUS_IO, "%s (SHEAF_GGML_LIB names the file of the library)",
                           text);
}

/* Where the library lies, which is also where its backends may lie. */
static void find_path(void *handle, struct gg_library *l) {
    Dl_info info;
    void *f = find(handle, "ggml_backend_dev_count");
    if (f && dladdr(f, &info) && info.dli_fname)
        snprintf(l->path, sizeof l->path, "%s", info.dli_fname);
}

static void load_beside(const struct gg_library *l, const char *below) {
    char dir[sizeof l->path + 32];
    const char *slash = strrchr(l->path, '/');
    if (!slash || l->dev_count()) return;
    snprintf(dir, sizeof dir, "%.*s%s", (int)(slash - l->path), l->path, below);
    more.load_all_from_path(dir);
}

static void load_backends(const struct gg_library *l) {
    const char *dir = sheaf_setting_value("SHEAF_GGML_BACKENDS");
    if (!l->own || !more.load_all || !more.load_all_from_path) return;
    if (more.log_set) more.log_set(take_log, NULL);
    if (more.set_abort_callback) more.set_abort_callback(take_abort);
    if (dir) {
        more.load_all_from_path(dir);
        return;
    }
    more.load_all();
    load_beside(l, "/ggml/backends0");
    load_beside(l, "");
}

/* The interface's number is the first word of a registry entry, of whatever version. */
static enum sheaf_status check_devices(const struct gg_library *l) {
    if (!l->dev_count())
        return sheaf_set_error(SHEAF_STATUS_UNSUPPORTED,
                               "it has no devices; SHEAF_GGML_BACKENDS names the folder of its "
                               "backends (libggml-cpu-*.so, ...)");
    const int version = l->dev_backend_reg(l->dev_get(0))->api_version;
    if (version == 2 || version == 3) return SHEAF_STATUS_SUCCESS;
    return sheaf_set_error(SHEAF_STATUS_UNSUPPORTED,
                           "its backends have interface version %d; this build of sheaf knows 2 "
                           "(ggml 0.9.5 to 0.25) and 3 (from 0.26)",
                           version);
}

static void map_types(struct gg_library *l) {
    for (int t = 0; t < SHEAF_TYPE_COUNT; t++)
        l->type[t] = (int16_t)gg_type_number(&l->host, (enum sheaf_type)t);
}

static enum sheaf_status open_library(struct gg_library *l) {
    void *handle = open_programs();
    const char *named = handle ? NULL : sheaf_setting_value("SHEAF_GGML_LIB");
    enum sheaf_status st = SHEAF_STATUS_SUCCESS;
    l->own = !handle;
    snprintf(l->path, sizeof l->path, "%s", named ? named : "libggml.so.0");
    if (!handle) st = open_file(&handle);
    if (st) return st;
    find_path(handle, l);
    st = gg_host_check(handle, &l->host);
    if (!st) st = find_all(handle, l);
    if (st) return st;
    map_types(l);
    load_backends(l);
    gg_library_last_error(); /* a backend that did not load is no reason of later failures */
    return check_devices(l);
}

const struct gg_library *gg_library_open(void) {
    pthread_mutex_lock(&lock);
    if (state == NOT_TRIED) {
        const enum sheaf_status st = open_library(&library);
        if (st) snprintf(why, sizeof why, "%s: %s", gg_library_text(&library), sheaf_last_error());
        state = st ? REFUSED : FOUND;
    }
    pthread_mutex_unlock(&lock);
    if (state == FOUND) return &library;
    sheaf_set_error(SHEAF_STATUS_UNSUPPORTED, "%s", why);
    return NULL;
}
