/* Finds or opens the library, and has it load its backends.
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
#include "ggml/functions.h"
#include "ggml/translate.h"

static struct gg_library library;
static enum { NOT_TRIED, FOUND, REFUSED } state;
static char why[1024]; /* of REFUSED */
static char last_error[512];
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER, error_lock = PTHREAD_MUTEX_INITIALIZER;

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

/* A function of ggml for a member of struct gg_library. */
#define FUNCTION(name, member)                                                                     \
    { name, offsetof(struct gg_library, member), false }
#define OPTIONAL(name, member)                                                                     \
    { name, offsetof(struct gg_library, member), true }
static const struct gg_function functions[] = {
    FUNCTION("ggml_backend_dev_count", dev_count),
    FUNCTION("ggml_backend_dev_get", dev_get),
    FUNCTION("ggml_backend_dev_name", dev_name),
    FUNCTION("ggml_backend_dev_description", dev_description),
    FUNCTION("ggml_backend_dev_memory", dev_memory),
    FUNCTION("ggml_backend_dev_get_props", dev_get_props),
    FUNCTION("ggml_backend_dev_backend_reg", dev_backend_reg),
    FUNCTION("ggml_backend_dev_init", dev_init),
    FUNCTION("ggml_backend_dev_buffer_type", dev_buffer_type),
    FUNCTION("ggml_backend_dev_host_buffer_type", dev_host_buffer_type),
    FUNCTION("ggml_backend_dev_supports_op", dev_supports_op),
    FUNCTION("ggml_backend_reg_name", reg_name),
    FUNCTION("ggml_backend_reg_get_proc_address", reg_get_proc_address),
    FUNCTION("ggml_backend_buft_alloc_buffer", buft_alloc_buffer),
    FUNCTION("ggml_backend_buft_get_alignment", buft_get_alignment),
    FUNCTION("ggml_backend_buft_get_max_size", buft_get_max_size),
    FUNCTION("ggml_backend_buft_get_alloc_size", buft_get_alloc_size),
    FUNCTION("ggml_backend_buft_is_host", buft_is_host),
    FUNCTION("ggml_backend_buffer_free", buffer_free),
    FUNCTION("ggml_backend_buffer_get_base", buffer_get_base),
    FUNCTION("ggml_backend_buffer_clear", buffer_clear),
    FUNCTION("ggml_backend_buffer_set_usage", buffer_set_usage),
    FUNCTION("ggml_backend_tensor_alloc", tensor_alloc),
    FUNCTION("ggml_backend_view_init", view_init),
    FUNCTION("ggml_backend_tensor_set", tensor_set),
    FUNCTION("ggml_backend_tensor_get", tensor_get),
    FUNCTION("ggml_backend_tensor_copy", tensor_copy),
    FUNCTION("ggml_backend_free", backend_free),
    FUNCTION("ggml_backend_synchronize", synchronize),
    FUNCTION("ggml_backend_graph_compute_async", graph_compute_async),
    FUNCTION("ggml_backend_tensor_set_async", tensor_set_async),
    FUNCTION("ggml_backend_tensor_get_async", tensor_get_async),
    FUNCTION("ggml_backend_tensor_copy_async", tensor_copy_async),
    FUNCTION("ggml_backend_event_new", event_new),
    FUNCTION("ggml_backend_event_free", event_free),
    FUNCTION("ggml_backend_event_record", event_record),
    FUNCTION("ggml_backend_event_wait", event_wait),
    FUNCTION("ggml_backend_event_synchronize", event_synchronize),
    FUNCTION("ggml_init", init),
    FUNCTION("ggml_free", free),
    FUNCTION("ggml_graph_overhead_custom", graph_overhead_custom),
    FUNCTION("ggml_new_graph_custom", new_graph_custom),
    FUNCTION("ggml_build_forward_expand", build_forward_expand),
    OPTIONAL("ggml_graph_next_uid", graph_next_uid),
    OPTIONAL("ggml_backend_load_all", load_all),
    OPTIONAL("ggml_backend_load_all_from_path", load_all_from_path),
    OPTIONAL("ggml_log_set", log_set),
    OPTIONAL("ggml_set_abort_callback", set_abort_callback),
};

static enum sheaf_status find_all(void *handle, struct gg_library *l) {
    const char *missing =
        gg_find_functions(handle, functions, sizeof functions / sizeof *functions, l);
    if (!missing) return SHEAF_STATUS_SUCCESS;
    return sheaf_set_error(SHEAF_STATUS_UNSUPPORTED, "it has no function %s", missing);
}

/* ---- the file ---- */

struct loaded { /* all libraries of this process */
    char **name;
    size_t n, cap;
};

static int note_loaded(struct dl_phdr_info *info, size_t size, void *user) {
    struct loaded *o = user;
    (void)size;
    if (!sheaf__grow(&o->name, &o->cap, o->n + 1, sizeof *o->name)) return 0;
    o->name[o->n] = strdup(info->dlpi_name);
    o->n += o->name[o->n] != NULL;
    return 0;
}

/* A program that uses ggml has it already: a second copy would have its own devices. It may have it
 * under any name and for itself alone, as modules of Python have. */
static void *open_programs(void) {
    static const char wanted[] = "ggml_backend_dev_count";
    struct loaded loaded = {0};
    void *found = NULL;
    if (dlsym(RTLD_DEFAULT, wanted)) return dlopen(NULL, RTLD_NOW);
    dl_iterate_phdr(note_loaded, &loaded);
    for (size_t i = 0; i < loaded.n; i++) {
        void *handle = found ? NULL : dlopen(loaded.name[i], RTLD_NOW | RTLD_NOLOAD);
        if (handle && dlsym(handle, wanted))
            found = handle;
        else if (handle)
            dlclose(handle);
        free(loaded.name[i]);
    }
    free(loaded.name);
    return found;
}

/* The loader begins with the name of the file that it failed at: of this one, or of a library that
 * this one needs. The caller names this one. */
static enum sheaf_status open_file(const char *path, void **handle) {
    const size_t n = strlen(path);
    *handle = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (*handle) return SHEAF_STATUS_SUCCESS;
    const char *text = dlerror();
    if (!strncmp(text, path, n) && !strncmp(text + n, ": ", 2)) text += n + 2;
    return sheaf_set_error(SHEAF_STATUS_IO, "%s (SHEAF_GGML_LIB names the file of the library)",
                           text);
}

/* Where the library lies, which is also where its backends may lie. */
static void find_path(void *handle, struct gg_library *l) {
    Dl_info info;
    void *f = gg_find_function(handle, "ggml_backend_dev_count");
    if (f && dladdr(f, &info) && info.dli_fname)
        snprintf(l->path, sizeof l->path, "%s", info.dli_fname);
}

static void load_beside(const struct gg_library *l, const char *below) {
    char dir[sizeof l->path + 32];
    const char *slash = strrchr(l->path, '/');
    if (!slash || l->dev_count()) return;
    snprintf(dir, sizeof dir, "%.*s%s", (int)(slash - l->path), l->path, below);
    l->load_all_from_path(dir);
}

static void load_backends(const struct gg_library *l) {
    const char *dir = sheaf_setting_value("SHEAF_GGML_BACKENDS");
    if (!l->own || !l->load_all || !l->load_all_from_path) return;
    if (l->log_set) l->log_set(take_log, NULL);
    if (l->set_abort_callback) l->set_abort_callback(take_abort);
    if (dir) {
        l->load_all_from_path(dir);
        return;
    }
    l->load_all();
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
    const char *path = named ? named : "libggml.so.0";
    enum sheaf_status st = SHEAF_STATUS_SUCCESS;
    l->own = !handle;
    snprintf(l->path, sizeof l->path, "%s", path);
    if (!handle) st = open_file(path, &handle);
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
