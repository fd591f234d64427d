/* libsheaf-cuda.so as nvcc built it, on whatever machine this is: it loads without a driver, then
 * lists nothing and says why; it needs no CUDA library to start, and shows what a module shows. */
#include <criterion/criterion.h>
#include <stdio.h>
#include <string.h>

#include "mpirun.h"
#include "sheaf/sheaf.h"

#define MODULE SHEAF_BUILD_DIR "/lib/libsheaf-cuda.so"

#ifdef SHEAF_WITH_CUDA
#define NEEDS_MODULE() ((void)0)
#else
#define NEEDS_MODULE() cr_skip_test("built without nvcc: there is no libsheaf-cuda.so")
#endif

Test(cuda_module, loads_and_says_what_it_found) {
    NEEDS_MODULE();
    for (int round = 0; round < 2; round++) {
        sheaf_backend_reg_t reg;
        const char *(*no_device)(void);
        cr_assert_eq(sheaf_backend_load(MODULE, &reg), SHEAF_STATUS_SUCCESS, "%s",
                     sheaf_last_error());
        cr_assert_str_eq(sheaf_backend_reg_name(reg), "CUDA");
        void *p = sheaf_backend_reg_get_proc_address(reg, "sheaf_backend_cuda_no_device");
        cr_assert_not_null(p);
        memcpy(&no_device, &p, sizeof no_device);
        const size_t n = sheaf_backend_reg_dev_count(reg);
        if (n) {
            cr_assert_str_empty(no_device());
            cr_assert_eq(sheaf_backend_dev_type(sheaf_backend_reg_dev_get(reg, 0)),
                         SHEAF_BACKEND_DEVICE_TYPE_GPU);
        } else {
            cr_assert(!strncmp(no_device(), "no CUDA device: ", 16), "%s", no_device());
            cr_assert_gt(strlen(no_device()), 24, "%s", no_device());
            cr_assert_null(sheaf_backend_dev_by_name("CUDA0"));
        }
        cr_assert_null(sheaf_backend_reg_dev_get(reg, n));
        cr_assert_null(sheaf_backend_reg_get_proc_address(reg, "nothing"));
        cr_assert_eq(sheaf_backend_unload(reg), SHEAF_STATUS_SUCCESS, "%s", sheaf_last_error());
    }
}

/* The driver and cuBLASLt are taken at run time, or the module would not load without them. */
Test(cuda_module, needs_no_cuda_library) {
    NEEDS_MODULE();
    char out[4096];
    cr_assert_eq(run_command("readelf -d " MODULE " | grep NEEDED", 20, out, sizeof out), 0, "%s",
                 out);
    cr_assert(strstr(out, "libsheaf.so") && !strstr(out, "libcu") && !strstr(out, "libnv"), "%s",
              out);
    cr_assert_eq(run_command("nm -D --defined-only " MODULE
                             " | sed 's/.* //' | sort | tr '\\n' ' '",
                             20, out, sizeof out),
                 0);
    cr_assert_str_eq(out, "sheaf_backend_init sheaf_backend_score ");
}
