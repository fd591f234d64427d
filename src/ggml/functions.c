/* The library that called is asked first. A program that opened ggml itself (Python's ctypes) shows
 * it only to the libraries that link to it, and a process may have several, of which RTLD_DEFAULT
 * finds another one. */
#include "ggml/functions.h"

#include <dlfcn.h>
#include <string.h>

void *gg_find_function(void *library, const char *name) {
    void *p = library ? dlsym(library, name) : NULL;
    return p ? p : dlsym(RTLD_DEFAULT, name);
}

const char *gg_find_functions(void *library, const struct gg_function *wanted, size_t n,
                              void *out) {
    for (size_t i = 0; i < n; i++) {
        void *f = gg_find_function(library, wanted[i].name);
        if (!f && !wanted[i].optional) return wanted[i].name;
        memcpy((char *)out + wanted[i].member, &f, sizeof f);
    }
    return NULL;
}
