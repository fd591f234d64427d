/* Only in sanitizer builds, in the place of functions of other libraries.
 *
 * Modules that Open MPI loads stay mapped until the process ends, so that the reports about them carry a module name and
 * tests/sanitizers/{lsan,tsan}.supp can tell them from ours.
 *
 * LeakSanitizer does not look at what MPI allocates while it starts and ends, nor at what the thread of PMIx allocates:
 * Open MPI leaks some of it in every process, and one leak that has to be told from ours by its stack costs the process
 * 0.18 s, for which debug information of all modules is read. No code of ours runs inside. */
int dlclose(void *handle);
int dlclose(void *handle) {
    (void)handle;
    return 0;
}

#ifdef __SANITIZE_ADDRESS__
#include <dlfcn.h>
#include <mpi.h>
#include <sanitizer/lsan_interface.h>
#include <stdatomic.h>
#include <stddef.h>
#include <string.h>

int MPI_Init(int *argc, char ***argv) {
    __lsan_disable();
    const int code = PMPI_Init(argc, argv);
    __lsan_enable();
    return code;
}

int MPI_Init_thread(int *argc, char ***argv, int required, int *provided) {
    __lsan_disable();
    const int code = PMPI_Init_thread(argc, argv, required, provided);
    __lsan_enable();
    return code;
}

int MPI_Finalize(void) {
    __lsan_disable();
    const int code = PMPI_Finalize();
    __lsan_enable();
    return code;
}

/* libevent's, in which the threads of PMIx and of Open MPI spend their lives. */
struct event_base;
int event_base_loop(struct event_base *base, int flags);
int event_base_loop(struct event_base *base, int flags) {
    static _Atomic(void *) next; /* asked for once: MPI calls this while it polls */
    void *found = atomic_load(&next);
    if (!found) atomic_store(&next, found = dlsym(RTLD_NEXT, "event_base_loop"));
    if (!found) return -1;
    int (*loop)(struct event_base *, int);
    memcpy(&loop, &found, sizeof loop);
    __lsan_disable();
    const int code = loop(base, flags);
    __lsan_enable();
    return code;
}
#endif
