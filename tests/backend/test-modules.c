/* Backends in modules: what loading accepts and refuses, which file of several is taken, what keeps
 * a module from being unloaded. The modules are tests/backend/modules/fixture.c in several builds.
 */
#include <criterion/criterion.h>
#include <dlfcn.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "sheaf/backend-impl.h"
#include "sheaf/sheaf.h"

#define MODULES SHEAF_BUILD_DIR "/lib/modules"
#define ALPHA   MODULES "/one/libsheaf-alpha.so"
#define BETA    MODULES "/one/libsheaf-beta.so"

static const char *variant(sheaf_backend_reg_t reg) {
    const char *(*fn)(void);
    void *address = sheaf_backend_reg_get_proc_address(reg, "variant");
    cr_assert_not_null(address);
    memcpy(&fn, &address, sizeof fn);
    return fn();
}

static sheaf_backend_reg_t load(const char *path) {
    sheaf_backend_reg_t reg;
    cr_assert_eq(sheaf_backend_load(path, &reg), SHEAF_STATUS_SUCCESS, "%s", sheaf_last_error());
    cr_assert_not_null(reg);
    return reg;
}

static void unload(const char *name) {
    sheaf_backend_reg_t reg = sheaf_backend_reg_by_name(name);
    cr_assert_not_null(reg, "%s is not registered", name);
    cr_assert_eq(sheaf_backend_unload(reg), SHEAF_STATUS_SUCCESS, "%s", sheaf_last_error());
    cr_assert_null(sheaf_backend_reg_by_name(name));
}

static bool mapped(const char *path) {
    void *handle = dlopen(path, RTLD_NOW | RTLD_NOLOAD);
    if (handle) dlclose(handle);
    return handle;
}

Test(modules, load_registers_and_unload_removes) {
    const size_t regs = sheaf_backend_reg_count(), devs = sheaf_backend_dev_count();
    for (int round = 0; round < 2; round++) {
        sheaf_backend_reg_t reg = load(ALPHA), again;
        cr_assert_eq(sheaf_backend_reg_count(), regs + 1);
        cr_assert_eq(sheaf_backend_dev_count(), devs + 1);
        cr_assert_eq(sheaf_backend_reg_by_name("alpha"), reg);
        sheaf_backend_dev_t dev = sheaf_backend_dev_by_name("alpha0");
        cr_assert_not_null(dev);
        cr_assert_eq(sheaf_backend_dev_get(devs), dev);
        cr_assert_null(sheaf_backend_dev_get(devs + 1));
        cr_assert_eq(sheaf_backend_dev_by_type(SHEAF_BACKEND_DEVICE_TYPE_ACCEL), dev);
        cr_assert_eq(sheaf_backend_dev_backend_reg(dev), reg);
        cr_assert_str_eq(variant(reg), "plain");
        cr_assert_null(sheaf_backend_reg_get_proc_address(reg, "nothing"));
        cr_assert_eq(sheaf_backend_load(ALPHA, &again), SHEAF_STATUS_SUCCESS);
        cr_assert_eq(again, reg, "loaded twice is loaded once");
        cr_assert_eq(sheaf_backend_load(ALPHA, NULL), SHEAF_STATUS_SUCCESS);
        cr_assert_eq(sheaf_backend_reg_count(), regs + 1);
        cr_assert(mapped(ALPHA));
        unload("Alpha");
        cr_assert_eq(sheaf_backend_reg_count(), regs);
        cr_assert_eq(sheaf_backend_dev_count(), devs);
        cr_assert_null(sheaf_backend_dev_by_name("Alpha0"));
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__) /* they keep modules mapped */
        cr_assert_not(mapped(ALPHA));
#endif
    }
}

Test(modules, load_refuses) {
    char version[40];
    snprintf(version, sizeof version, "version %d", SHEAF_BACKEND_API_VERSION + 1);
    const struct {
        const char *path;
        enum sheaf_status status;
        const char *text[3];
    } cases[] = {
        {NULL, SHEAF_STATUS_INVALID, {"no file name"}},
        {"", SHEAF_STATUS_INVALID, {"no file name"}},
        {MODULES "/none.so", SHEAF_STATUS_IO, {"none.so", "No such file"}},
        {SHEAF_SOURCE_DIR "/README.md", SHEAF_STATUS_IO, {"README.md", "invalid ELF header"}},
        {MODULES "/broken/libsheaf-foreign.so",
         SHEAF_STATUS_UNSUPPORTED,
         {"foreign.so", "no sheaf_backend_init"}},
        {MODULES "/broken/libsheaf-future.so",
         SHEAF_STATUS_UNSUPPORTED,
         {"future.so", version, "build it again"}},
        {MODULES "/broken/libsheaf-gamma-absent.so",
         SHEAF_STATUS_UNSUPPORTED,
         {"absent.so", "the machine has no Gamma"}},
        {MODULES "/broken/libsheaf-hollow.so",
         SHEAF_STATUS_UNSUPPORTED,
         {"hollow.so", "lacks", "get_device"}},
        {MODULES "/one/libsheaf-alpha-faster.so",
         SHEAF_STATUS_UNSUPPORTED,
         {"faster.so", "cannot run on this machine"}},
        {MODULES "/one/libsheaf-alpha-fast.so",
         SHEAF_STATUS_INVALID,
         {"fast.so", "'Alpha' is registered already"}},
    };
    sheaf_backend_reg_t alpha = load(ALPHA), reg;
    const size_t n = sheaf_backend_reg_count();
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        reg = alpha;
        const enum sheaf_status st = sheaf_backend_load(cases[i].path, &reg);
        cr_expect_eq(st, cases[i].status, "%s: %d: %s", cases[i].path, st, sheaf_last_error());
        cr_expect_null(reg, "%s", cases[i].path);
        for (int j = 0; j < 3 && cases[i].text[j]; j++) {
            cr_expect(strstr(sheaf_last_error(), cases[i].text[j]), "%s: '%s' is not in '%s'",
                      cases[i].path, cases[i].text[j], sheaf_last_error());
        }
        cr_expect_eq(sheaf_backend_reg_count(), n);
    }
    unload("Alpha");
}

static void refuses_unload(sheaf_backend_reg_t reg, const char *text) {
    const size_t n = sheaf_backend_reg_count();
    cr_assert_eq(sheaf_backend_unload(reg), SHEAF_STATUS_INVALID, "wanted: %s", text);
    cr_assert(strstr(sheaf_last_error(), text), "'%s' is not in '%s'", text, sheaf_last_error());
    cr_assert_eq(sheaf_backend_reg_count(), n);
}

Test(modules, only_what_was_loaded_is_unloaded) {
    static struct sheaf_backend_reg unknown;
    refuses_unload(sheaf_backend_cpu_reg(), "not loaded from a file");
    refuses_unload(&unknown, "not registered");
    refuses_unload(NULL, "not registered");
}

Test(modules, not_unloaded_while_used) {
    sheaf_backend_reg_t reg = load(ALPHA);
    sheaf_backend_dev_t dev = sheaf_backend_reg_dev_get(reg, 0);
    sheaf_backend_t backend, failed;
    sheaf_backend_buffer_t buffer;
    cr_assert_eq(sheaf_backend_dev_init(dev, NULL, &backend), SHEAF_STATUS_SUCCESS);
    cr_assert_eq(sheaf_backend_alloc_buffer(backend, 100, &buffer), SHEAF_STATUS_SUCCESS);
    cr_assert_eq(sheaf_backend_dev_init(dev, "bad", &failed), SHEAF_STATUS_INVALID);
    refuses_unload(reg, "2 of its");
    sheaf_backend_free(backend);
    refuses_unload(reg, "1 of its");
    sheaf_backend_buffer_free(buffer);

    const sheaf_backend_dev_t *devices;
    size_t n;
    cr_assert_eq(sheaf_world_init(NULL), SHEAF_STATUS_SUCCESS);
    cr_assert_eq(sheaf_world_devices(&devices, &n), SHEAF_STATUS_SUCCESS);
    cr_assert_eq(devices[n - 1], dev, "a loaded device is one of the world's");
    refuses_unload(reg, "1 of its");
    sheaf_world_finalize();
    unload("Alpha");
}

static enum sheaf_status mirrored(const struct sheaf_tensor *tensor, const void *user,
                                  struct sheaf_split_state **out) {
    (void)tensor;
    (void)user;
    *out = sheaf_split_state_mirrored(1);
    return SHEAF_STATUS_SUCCESS;
}

Test(modules, not_unloaded_while_a_member) {
    sheaf_backend_reg_t reg = load(ALPHA);
    sheaf_backend_dev_t dev = sheaf_backend_reg_dev_get(reg, 0), meta;
    cr_assert_eq(sheaf_backend_meta_device(&dev, 1, mirrored, NULL, NULL, &meta),
                 SHEAF_STATUS_SUCCESS, "%s", sheaf_last_error());
    refuses_unload(reg, "1 of its");
    sheaf_backend_meta_device_free(meta);
    unload("Alpha");
}

Test(modules, load_all_takes_the_best_of_each_name) {
    sheaf_backend_reg_t reg;
    cr_assert_eq(sheaf_backend_load_all_from_path(MODULES "/one"), SHEAF_STATUS_SUCCESS, "%s",
                 sheaf_last_error());
    const size_t n = sheaf_backend_reg_count();
    cr_assert_str_eq(variant(reg = sheaf_backend_reg_by_name("Alpha")), "fast");
    cr_assert_str_eq(variant(sheaf_backend_reg_by_name("Beta")), "one");
    cr_assert_eq(sheaf_backend_load_all_from_path(MODULES "/one"), SHEAF_STATUS_SUCCESS);
    cr_assert_eq(sheaf_backend_load_all_from_path(MODULES "/two"), SHEAF_STATUS_SUCCESS,
                 "what is there stays");
    cr_assert_eq(sheaf_backend_reg_by_name("Alpha"), reg);
    cr_assert_eq(sheaf_backend_reg_count(), n);
    unload("Alpha");
    cr_assert_eq(sheaf_backend_load_all_from_path(MODULES "/two"), SHEAF_STATUS_SUCCESS);
    cr_assert_str_eq(variant(sheaf_backend_reg_by_name("Alpha")), "best");
    unload("Alpha");
    unload("Beta");
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
    cr_assert_not(mapped(ALPHA), "a file that lost was left mapped");
    cr_assert_not(mapped(BETA));
#endif
}

/* Files that cannot be loaded are named, all others are loaded. Of Gamma the better file gives no
 * backend, so the other one serves. */
Test(modules, load_all_goes_on_after_failures) {
    const size_t n = sheaf_backend_reg_count();
    cr_assert_eq(sheaf_backend_load_all_from_path(MODULES "/broken"), SHEAF_STATUS_UNSUPPORTED);
    static const char *const named[] = {"libsheaf-foreign.so", "libsheaf-future.so",
                                        "libsheaf-gamma-absent.so", "libsheaf-hollow.so"};
    for (size_t i = 0; i < sizeof named / sizeof *named; i++)
        cr_expect(strstr(sheaf_last_error(), named[i]), "%s: %s", named[i], sheaf_last_error());
    cr_expect(strstr(sheaf_last_error(), "; load ") && !strchr(sheaf_last_error(), '?'), "%s",
              sheaf_last_error());
    cr_assert_eq(sheaf_backend_reg_count(), n + 1);
    cr_assert_str_eq(variant(sheaf_backend_reg_by_name("Gamma")), "plain");
    unload("Gamma");
    cr_assert_eq(sheaf_backend_load_all_from_path(MODULES "/none"), SHEAF_STATUS_IO);
    cr_assert(strstr(sheaf_last_error(), MODULES "/none"), "%s", sheaf_last_error());
    cr_assert_eq(sheaf_backend_load_all_from_path(SHEAF_SOURCE_DIR), SHEAF_STATUS_SUCCESS,
                 "a directory without modules: %s", sheaf_last_error());
    cr_assert_eq(sheaf_backend_reg_count(), n);
}

Test(modules, search_path_from_the_environment) {
    static const struct {
        const char *dirs, *alpha, *beta;
        enum sheaf_status status;
    } cases[] = {
        {"", NULL, NULL, SHEAF_STATUS_SUCCESS},
        {MODULES "/one", "fast", "one", SHEAF_STATUS_SUCCESS},
        {MODULES "/one:" MODULES "/two", "best", "one", SHEAF_STATUS_SUCCESS},
        {MODULES "/two::" MODULES "/one:", "best", "two", SHEAF_STATUS_SUCCESS},
        {MODULES "/one:" MODULES "/none", "fast", "one", SHEAF_STATUS_IO},
        {MODULES "/one:" MODULES "/one/../one", "fast", "one", SHEAF_STATUS_SUCCESS},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        setenv("SHEAF_BACKEND_PATH", cases[i].dirs, 1);
        const enum sheaf_status st = sheaf_backend_load_all();
        cr_assert_eq(st, cases[i].status, "%s: %s", cases[i].dirs, sheaf_last_error());
        const char *const want[] = {cases[i].alpha, cases[i].beta};
        static const char *const names[] = {"Alpha", "Beta"};
        for (int j = 0; j < 2; j++) {
            sheaf_backend_reg_t reg = sheaf_backend_reg_by_name(names[j]);
            cr_assert_eq(!reg, !want[j], "%s: %s", cases[i].dirs, names[j]);
            if (!reg) continue;
            cr_assert_str_eq(variant(reg), want[j], "%s", cases[i].dirs);
            unload(names[j]);
        }
    }
    unsetenv("SHEAF_BACKEND_PATH");
}

Test(modules, backend_from_a_string) {
    static const struct {
        const char *text, *device; /* NULL: an error that contains `wrong` */
        const char *wrong;
    } cases[] = {
        {"CPU0", "CPU0", NULL},
        {"cpu", "CPU0", NULL},
        {"CPU0:threads=1", "CPU0", NULL},
        {"CPU:threads=1", "CPU0", NULL},
        {"CPU0:", "CPU0", NULL},
        {"Alpha", "Alpha0", NULL},
        {"alpha0:ok", "Alpha0", NULL},
        {"Alpha:bad", NULL, "params 'bad'"},
        {"CPU0:threads=x", NULL, "'threads=x'"},
        {"absent:x", NULL, "'absent'"},
        {":x", NULL, "NAME:PARAMS"},
        {"", NULL, "NAME:PARAMS"},
        {NULL, NULL, "NAME:PARAMS"},
    };
    load(ALPHA);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        sheaf_backend_t backend;
        const enum sheaf_status st = sheaf_backend_init_from_string(cases[i].text, &backend);
        if (cases[i].device) {
            cr_assert_eq(st, SHEAF_STATUS_SUCCESS, "%s: %s", cases[i].text, sheaf_last_error());
            cr_assert_str_eq(sheaf_backend_dev_name(sheaf_backend_get_device(backend)),
                             cases[i].device);
            if (strstr(cases[i].text, "threads=1"))
                cr_assert_eq(sheaf_backend_cpu_get_n_threads(backend), 1);
        } else {
            cr_assert_eq(st, SHEAF_STATUS_INVALID, "%s", cases[i].text);
            cr_assert_null(backend);
            cr_assert(strstr(sheaf_last_error(), cases[i].wrong), "%s", sheaf_last_error());
        }
        sheaf_backend_free(backend);
    }
    unload("Alpha");
    sheaf_backend_t best;
    cr_assert_eq(sheaf_backend_init_best(&best), SHEAF_STATUS_SUCCESS);
    const bool gpu = sheaf_backend_dev_by_type(SHEAF_BACKEND_DEVICE_TYPE_GPU);
    cr_assert_eq(sheaf_backend_dev_type(sheaf_backend_get_device(best)),
                 gpu ? SHEAF_BACKEND_DEVICE_TYPE_GPU : SHEAF_BACKEND_DEVICE_TYPE_CPU);
    sheaf_backend_free(best);
}

/* Readers walk the registry while a backend comes and goes before and behind others. */
static _Atomic bool stop_readers;
static void *read_registry(void *user) {
    _Atomic long *rounds = user;
    while (!atomic_load(&stop_readers)) {
        const size_t n = sheaf_backend_dev_count();
        if (n < 1 || !sheaf_backend_dev_by_name("CPU0") || sheaf_backend_dev_by_name("absent") ||
            !sheaf_backend_dev_get(0) || sheaf_backend_dev_get(n + 8))
            return "wrong";
        ++*rounds;
    }
    return NULL;
}

Test(modules, readers_beside_loads_and_unloads, .timeout = 60) {
    pthread_t readers[2];
    _Atomic long rounds[2] = {0};
    for (int i = 0; i < 2; i++)
        cr_assert_eq(pthread_create(&readers[i], NULL, read_registry, &rounds[i]), 0);
    /* a reader may get a core late */
    for (int i = 0; i < 100 || rounds[0] == 0 || rounds[1] == 0; i++) {
        load(ALPHA);
        load(BETA);
        unload("Alpha");
        unload("Beta");
    }
    atomic_store(&stop_readers, true);
    for (int i = 0; i < 2; i++) {
        void *wrong;
        pthread_join(readers[i], &wrong);
        cr_assert_null(wrong);
        cr_assert_gt(rounds[i], 0);
    }
}

/* A program that looks for what a setting names, which is not set. */
Test(modules, no_name) {
    sheaf_backend_t backend;
    cr_expect_null(sheaf_backend_reg_by_name(NULL));
    cr_expect_null(sheaf_backend_dev_by_name(NULL));
    cr_expect_eq(sheaf_backend_init_by_name(NULL, NULL, &backend), SHEAF_STATUS_INVALID);
    cr_expect_null(backend);
    cr_expect(strstr(sheaf_last_error(), "no device is named ''"), "%s", sheaf_last_error());
}
