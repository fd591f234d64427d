/* The registry: which backends this process has, and their devices in one list.
 *
 * The built-in CPU backend registers itself from a constructor when the library is loaded, so that
 * this folder includes nothing of the others. Only entries that came from a module are ever removed
 * (backend/module.c), and only while their count of users is 0.
 *
 * One lock guards the entries and is held while a list of devices is walked, so that no entry goes
 * away in the middle. It is recursive: a backend may ask the registry while the registry asks it.
 */
#include "backend/registry.h"

#include <pthread.h>
#include <stdio.h>
#include <string.h>

#include "base/locale.h"
#include "sheaf/backend-impl.h"

enum { MAX_REGS = 16, MAX_NAME = 128 };

static struct entry {
    sheaf_backend_reg_t reg;
    void *module;   /* NULL: built in, or registered by the program */
    size_t n_users; /* see sheaf__registry_retain */
} entries[MAX_REGS];
static size_t n_entries;
static pthread_mutex_t lock = PTHREAD_RECURSIVE_MUTEX_INITIALIZER_NP;

static void (*before_walks)(void); /* set while the library is loaded, by one thread */

void sheaf__registry_before_walks(void (*fn)(void)) { before_walks = fn; }

static struct entry *find(sheaf_backend_reg_t reg) {
    for (size_t i = 0; i < n_entries; i++) {
        if (entries[i].reg == reg) return &entries[i];
    }
    return NULL;
}

/* With the lock held. The entry must not be registered yet. */
static enum sheaf_status append(sheaf_backend_reg_t reg, void *module) {
    if (n_entries == MAX_REGS) {
        return sheaf_set_error(SHEAF_STATUS_FAILED,
                               "register backend %s: the registry is full (%d backends)",
                               reg->iface->get_name(reg), MAX_REGS);
    }
    entries[n_entries++] = (struct entry){.reg = reg, .module = module};
    return SHEAF_STATUS_SUCCESS;
}

enum sheaf_status sheaf_backend_register(sheaf_backend_reg_t reg) {
    if (!reg || reg->api_version != SHEAF_BACKEND_API_VERSION) {
        return sheaf_set_error(SHEAF_STATUS_UNSUPPORTED,
                               "register backend: it was built for interface version %d, this "
                               "library has %d; rebuild it",
                               reg ? reg->api_version : 0, SHEAF_BACKEND_API_VERSION);
    }
    pthread_mutex_lock(&lock);
    enum sheaf_status st = find(reg) ? SHEAF_STATUS_SUCCESS : append(reg, NULL);
    pthread_mutex_unlock(&lock);
    return st;
}

enum sheaf_status sheaf__registry_add(sheaf_backend_reg_t reg, void *module, bool *added) {
    const char *name = sheaf_backend_reg_name(reg);
    enum sheaf_status st = SHEAF_STATUS_SUCCESS;
    *added = true;
    pthread_mutex_lock(&lock);
    struct entry *known = find(reg);
    sheaf_backend_reg_t same_name = sheaf_backend_reg_by_name(name);
    if (known && known->module) {
        *added = false;
    } else if (known) { /* it registered itself when it was mapped */
        known->module = module;
    } else if (same_name) {
        st = sheaf_set_error(SHEAF_STATUS_INVALID,
                             "a backend named '%s' is registered already; unload that one first",
                             sheaf_backend_reg_name(same_name));
    } else {
        st = append(reg, module);
    }
    pthread_mutex_unlock(&lock);
    return st;
}

enum sheaf_status sheaf__registry_remove(sheaf_backend_reg_t reg, void **module) {
    enum sheaf_status st = SHEAF_STATUS_SUCCESS;
    *module = NULL;
    pthread_mutex_lock(&lock);
    struct entry *e = find(reg);
    if (!e) { /* may already be freed: do not dereference */
        st = sheaf_set_error(SHEAF_STATUS_INVALID, "unload backend: it is not registered");
    } else if (!e->module) {
        st = sheaf_set_error(SHEAF_STATUS_INVALID,
                             "unload backend %s: it was not loaded from a file",
                             sheaf_backend_reg_name(reg));
    } else if (e->n_users) {
        st = sheaf_set_error(SHEAF_STATUS_INVALID,
                             "unload backend %s: %zu of its backends, buffers or devices are in "
                             "use; free them first",
                             sheaf_backend_reg_name(reg), e->n_users);
    } else {
        *module = e->module;
        const size_t after = n_entries - (size_t)(e - entries) - 1;
        memmove(e, e + 1, after * sizeof *e);
        n_entries--;
    }
    pthread_mutex_unlock(&lock);
    return st;
}

void sheaf__registry_retain(sheaf_backend_reg_t reg) {
    if (!reg) return;
    pthread_mutex_lock(&lock);
    struct entry *e = find(reg);
    if (e) e->n_users++;
    pthread_mutex_unlock(&lock);
}

void sheaf__registry_release(sheaf_backend_reg_t reg) {
    if (!reg) return;
    pthread_mutex_lock(&lock);
    struct entry *e = find(reg);
    if (e && e->n_users) e->n_users--;
    pthread_mutex_unlock(&lock);
}

size_t sheaf_backend_reg_count(void) {
    pthread_mutex_lock(&lock);
    const size_t n = n_entries;
    pthread_mutex_unlock(&lock);
    return n;
}

sheaf_backend_reg_t sheaf_backend_reg_get(size_t index) {
    pthread_mutex_lock(&lock);
    sheaf_backend_reg_t reg = index < n_entries ? entries[index].reg : NULL;
    pthread_mutex_unlock(&lock);
    return reg;
}

sheaf_backend_reg_t sheaf_backend_reg_by_name(const char *name) {
    sheaf_backend_reg_t found = NULL;
    if (!name) return NULL;
    pthread_mutex_lock(&lock);
    for (size_t i = 0; i < n_entries && !found; i++) {
        if (!sheaf__strcasecmp(sheaf_backend_reg_name(entries[i].reg), name))
            found = entries[i].reg;
    }
    pthread_mutex_unlock(&lock);
    return found;
}

const char *sheaf_backend_reg_name(sheaf_backend_reg_t reg) { return reg->iface->get_name(reg); }
size_t sheaf_backend_reg_dev_count(sheaf_backend_reg_t reg) {
    return reg->iface->get_device_count(reg);
}
sheaf_backend_dev_t sheaf_backend_reg_dev_get(sheaf_backend_reg_t reg, size_t index) {
    return reg->iface->get_device(reg, index);
}
void *sheaf_backend_reg_get_proc_address(sheaf_backend_reg_t reg, const char *name) {
    return reg->iface->get_proc_address ? reg->iface->get_proc_address(reg, name) : NULL;
}
void sheaf__dev_find_proc(sheaf_backend_dev_t dev, const char *name, void *fn) {
    sheaf_backend_reg_t reg = sheaf_backend_dev_backend_reg(dev);
    void *found = reg ? sheaf_backend_reg_get_proc_address(reg, name) : NULL;
    memcpy(fn, &found, sizeof found); /* ISO C has no cast from object to function pointers */
}

size_t sheaf_backend_dev_count(void) {
    size_t n = 0;
    if (before_walks) before_walks();
    pthread_mutex_lock(&lock);
    for (size_t i = 0; i < n_entries; i++) n += sheaf_backend_reg_dev_count(entries[i].reg);
    pthread_mutex_unlock(&lock);
    return n;
}

/* The first device that `wanted` accepts, in the order of the registry. */
static sheaf_backend_dev_t first_device(bool (*wanted)(sheaf_backend_dev_t dev, void *user),
                                        void *user) {
    sheaf_backend_dev_t found = NULL;
    if (before_walks) before_walks();
    pthread_mutex_lock(&lock);
    for (size_t i = 0; i < n_entries && !found; i++) {
        const size_t n = sheaf_backend_reg_dev_count(entries[i].reg);
        for (size_t j = 0; j < n && !found; j++) {
            sheaf_backend_dev_t dev = sheaf_backend_reg_dev_get(entries[i].reg, j);
            if (wanted(dev, user)) found = dev;
        }
    }
    pthread_mutex_unlock(&lock);
    return found;
}

static bool at_index(sheaf_backend_dev_t dev, void *user) {
    size_t *left = user;
    (void)dev;
    return (*left)-- == 0;
}
static bool has_name(sheaf_backend_dev_t dev, void *user) {
    return !sheaf__strcasecmp(sheaf_backend_dev_name(dev), *(const char **)user);
}
static bool has_type(sheaf_backend_dev_t dev, void *user) {
    return sheaf_backend_dev_type(dev) == *(enum sheaf_backend_dev_type *)user;
}

sheaf_backend_dev_t sheaf_backend_dev_get(size_t index) { return first_device(at_index, &index); }
sheaf_backend_dev_t sheaf_backend_dev_by_name(const char *name) {
    return name ? first_device(has_name, &name) : NULL;
}
sheaf_backend_dev_t sheaf_backend_dev_by_type(enum sheaf_backend_dev_type type) {
    return first_device(has_type, &type);
}

enum sheaf_status sheaf_backend_init_by_name(const char *name, const char *params,
                                             sheaf_backend_t *out) {
    *out = NULL;
    sheaf_backend_dev_t dev = sheaf_backend_dev_by_name(name);
    if (!dev)
        return sheaf_set_error(SHEAF_STATUS_INVALID, "no device is named '%s'", name ? name : "");
    return sheaf_backend_dev_init(dev, params, out);
}

enum sheaf_status sheaf_backend_init_by_type(enum sheaf_backend_dev_type type, const char *params,
                                             sheaf_backend_t *out) {
    *out = NULL;
    sheaf_backend_dev_t dev = sheaf_backend_dev_by_type(type);
    if (!dev) return sheaf_set_error(SHEAF_STATUS_INVALID, "no device of the wanted type exists");
    return sheaf_backend_dev_init(dev, params, out);
}

enum sheaf_status sheaf_backend_init_from_string(const char *text, sheaf_backend_t *out) {
    *out = NULL;
    char name[MAX_NAME];
    if (!text) text = "";
    snprintf(name, sizeof name, "%s", text);
    /* names of devices have colons too (ggml:CPU): the longest name counts */
    sheaf_backend_dev_t dev = sheaf_backend_dev_by_name(name);
    for (char *cut; !dev && (cut = strrchr(name, ':')); dev = sheaf_backend_dev_by_name(name))
        *cut = '\0';
    const size_t n = strlen(name);
    const char *colon = text[n] == ':' ? text + n : NULL;
    if (n == 0 || (!dev && n == sizeof name - 1)) {
        return sheaf_set_error(SHEAF_STATUS_INVALID,
                               "start backend '%s': it wants NAME or NAME:PARAMS", text);
    }
    sheaf_backend_reg_t reg = dev ? NULL : sheaf_backend_reg_by_name(name);
    if (reg && sheaf_backend_reg_dev_count(reg)) dev = sheaf_backend_reg_dev_get(reg, 0);
    if (!dev) {
        return sheaf_set_error(
            SHEAF_STATUS_INVALID,
            reg ? "backend '%s' has no devices here" : "no device or backend is named '%s'", name);
    }
    return sheaf_backend_dev_init(dev, colon ? colon + 1 : NULL, out);
}

enum sheaf_status sheaf_backend_init_best(sheaf_backend_t *out) {
    sheaf_backend_dev_t dev = sheaf_backend_dev_by_type(SHEAF_BACKEND_DEVICE_TYPE_GPU);
    if (!dev) dev = sheaf_backend_dev_by_type(SHEAF_BACKEND_DEVICE_TYPE_CPU);
    *out = NULL;
    if (!dev) return sheaf_set_error(SHEAF_STATUS_INVALID, "no GPU or CPU device exists");
    return sheaf_backend_dev_init(dev, NULL, out);
}
