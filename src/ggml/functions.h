/* ggml's functions, which are found by name: nothing of ggml is linked. */
#ifndef SHEAF_GGML_FUNCTIONS_H
#define SHEAF_GGML_FUNCTIONS_H

#include <stdbool.h>
#include <stddef.h>

/* A function that is wanted, and the member of a structure that takes its address. */
struct gg_function {
    const char *name;
    size_t member; /* offset in the structure */
    bool optional; /* some versions lack it: the member is NULL then */
};

/* Finds n functions, and writes their addresses to the members of *out. The name of one that is
 * missing and not optional; NULL: all are there. library: as for gg_function. */
const char *gg_find_functions(void *library, const struct gg_function *wanted, size_t n, void *out);
/* The address of one function; NULL: it is missing. The program is searched first, then `library`,
 * which dlopen has opened (NULL: no library). */
void *gg_find_function(void *library, const char *name);

#endif
