/* Version and build description of the loaded library. The values are facts of the CMake run
 * (src/base/CMakeLists.txt); nothing here is computed at run time. */
#include "sheaf/version.h"

const char *sheaf_version(void) { return SHEAF_VERSION; }

/* A sanitized build says so: its speeds mean nothing. */
const char *sheaf_build_info(void) {
    return "commit " SHEAF_COMMIT ", " SHEAF_COMPILER ", " SHEAF_BUILD_KIND;
}
