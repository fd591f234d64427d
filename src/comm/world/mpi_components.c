/* Keeps the components of Open MPI in memory to the end of the process.
 *
 * MPI_Finalize of Open MPI 4.1 unloads the component that speaks to the launcher (mca_pmix_*)
 * before it ends its progress thread. An event that PMIx has handed to that thread by then calls a
 * function that is no longer mapped, and the rank dies of SIGSEGV at the end of a right run
 * (docs/decisions.md, D100). */
#include <dlfcn.h>
#include <link.h>
#include <stdlib.h>
#include <string.h>

#include "comm/world/world.h"

enum { MAX_COMPONENTS = 512 };

struct components {
    char *path[MAX_COMPONENTS];
    int n;
};

static int list_component(struct dl_phdr_info *info, size_t size, void *user) {
    struct components *list = user;
    const char *slash = strrchr(info->dlpi_name, '/');
    (void)size;
    if (!slash || strncmp(slash, "/mca_", 5) || list->n == MAX_COMPONENTS) return 0;
    list->path[list->n] = strdup(info->dlpi_name);
    list->n += list->path[list->n] != NULL;
    return 0;
}

/* The list is made first: dlopen inside the iteration would take its locks the other way round. */
void sheaf__keep_mpi_components(void) {
    struct components list = {.n = 0};
    dl_iterate_phdr(list_component, &list);
    for (int i = 0; i < list.n; i++) {
        /* one that another thread has unloaded meanwhile stays so */
        void *handle = dlopen(list.path[i], RTLD_LAZY | RTLD_NOLOAD | RTLD_NODELETE);
        if (handle) dlclose(handle);
        free(list.path[i]);
    }
}
