/* Backends in modules: shared objects that are loaded while the program runs and add their devices
 * to the registry (sheaf/backend.h). sheaf/backend-impl.h declares what a module exports;
 * docs/backends.md shows how to write one.
 *
 * Threads: any. A module must not be unloaded while another thread still uses one of its objects or
 * looks through the registry with pointers that it got before. */
#ifndef SHEAF_MODULE_H
#define SHEAF_MODULE_H

#include "sheaf/backend.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Loads the module in the file `path` and registers its backend. *out (out may be NULL) is the
 * registry entry; the same one if the module is loaded already. Errors: IO if the file or a library
 * that it needs cannot be opened; UNSUPPORTED if it is no module of sheaf, has another interface
 * version, or says that this machine cannot run it (score 0); INVALID if a backend of that name is
 * registered already. */
enum sheaf_status sheaf_backend_load(const char *path, sheaf_backend_reg_t *out);

/* Takes a loaded backend out of the registry and unloads its module. `reg` and everything that it
 * gave (devices, buffer types) are invalid afterwards. INVALID, and nothing happens, if `reg` was
 * not loaded from a file, or while a backend, a buffer or an event of its devices exists, a meta
 * device has one of them as a member, or sheaf_world_devices lists them. */
enum sheaf_status sheaf_backend_unload(sheaf_backend_reg_t reg);

/* Loads every module that this machine can use from the search path: the directories of
 * SHEAF_BACKEND_PATH (separated by ':'), the directory that libsheaf lies in, the directory of the
 * running program. A module is a file libsheaf-NAME.so or libsheaf-NAME-VARIANT.so. Of the files
 * of one NAME the one with the highest score is loaded; among equals the first found. Left out in
 * silence: files with score 0, backends whose name is registered already, and libsheaf-cpu-*.so,
 * the kernels of the CPU device, which it finds by itself in the same places (sheaf/cpu.h).
 *
 * SUCCESS, also if there is nothing to load. Otherwise the status of the first failure; the text
 * names every file that could not be loaded and why. All others are loaded nevertheless, so a
 * program may print the text and go on. SHEAF_BACKEND_DEBUG=1 prints what became of every file on
 * standard error. */
enum sheaf_status sheaf_backend_load_all(void);
/* The same, from one directory. NULL: the search path. */
enum sheaf_status sheaf_backend_load_all_from_path(const char *dir);

#ifdef __cplusplus
}
#endif
#endif
