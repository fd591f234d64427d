/* The registry as its neighbours in this library see it: entries that came from modules, and counts
 * of what keeps a backend from being unloaded. */
#ifndef SHEAF_BACKEND_REGISTRY_H
#define SHEAF_BACKEND_REGISTRY_H

#include "sheaf/backend.h"

/* Registers a backend that came from `module` (what dlopen returned). *added is false, with
 * success, if this very entry had come from a module before. INVALID if another has its name. */
enum sheaf_status sheaf__registry_add(sheaf_backend_reg_t reg, void *module, bool *added);

/* Takes out an entry that came from a module and that nothing uses. */
enum sheaf_status sheaf__registry_remove(sheaf_backend_reg_t reg, void **module);

/* Something that keeps `reg` loaded begins and ends: a backend, a buffer, an event, a meta device's
 * member, a list of devices. Unregistered entries, and NULL, are not counted. */
void sheaf__registry_retain(sheaf_backend_reg_t reg);
void sheaf__registry_release(sheaf_backend_reg_t reg);

/* fn points to a pointer to a function: that of this name in the registry entry of the device, or
 * NULL. */
void sheaf__dev_find_proc(sheaf_backend_dev_t dev, const char *name, void *fn);

/* fn is called before the lists of devices are walked, with no lock of the registry held: for what
 * must not happen under it, like mapping files. Any number of times, by any thread. One fn. */
void sheaf__registry_before_walks(void (*fn)(void));

#endif
