/* Modules of CPU kernels that are wrong in one way each, with a score above all true ones: this
 * file once for each line of the table in the CMakeLists.txt beside it.
 *
 * FIXTURE_NAME     the name in the table
 * FIXTURE_SCORE    undefined: 1000
 * FIXTURE_VERSION  undefined: the right one
 * FIXTURE_SIZE     of the table; undefined: the right one
 * FIXTURE_FAULT    NONE, NULL_MODULE or NULL_TABLE
 * FIXTURE_NO_INIT  defined: an ordinary library */
#include "cpu/kernels/kernels.h"

enum { NONE, NULL_MODULE, NULL_TABLE };
#ifndef FIXTURE_FAULT
#define FIXTURE_FAULT NONE
#endif
#ifndef FIXTURE_SCORE
#define FIXTURE_SCORE 1000
#endif
#ifndef FIXTURE_VERSION
#define FIXTURE_VERSION SHEAF__CPU_KERNELS_VERSION
#endif
#ifndef FIXTURE_SIZE
#define FIXTURE_SIZE sizeof(struct sheaf__cpu_kernels)
#endif

#pragma GCC visibility push(default)
int sheaf_cpu_kernels_score(void) { return FIXTURE_SCORE; }
#ifndef FIXTURE_NO_INIT
const struct sheaf__cpu_kernels_module *sheaf_cpu_kernels_init(void) {
    static const struct sheaf__cpu_kernels table = {.name = FIXTURE_NAME};
    static const struct sheaf__cpu_kernels_module module = {
        FIXTURE_VERSION, FIXTURE_SIZE, FIXTURE_FAULT == NULL_TABLE ? NULL : &table};
    return FIXTURE_FAULT == NULL_MODULE ? NULL : &module;
}
#endif
#pragma GCC visibility pop
