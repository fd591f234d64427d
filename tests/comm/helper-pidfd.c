/* Started by test-world.c under mpirun: starts the job where pidfd_open fails with the error number
 * SHEAF_TEST_ERROR. "stop": rank 1 is stopped then, and the others wait for it. */
#include <dlfcn.h>
#include <errno.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "sheaf/world.h"
#include "start_job.h"

/* It stands before that of the C library. */
long syscall(long number, ...) {
    static long (*real)(long, ...);
    long a[6];
    va_list ap;
    if (number == SYS_pidfd_open) {
        errno = atoi(getenv("SHEAF_TEST_ERROR"));
        return -1;
    }
    if (!real) *(void **)&real = dlsym(RTLD_NEXT, "syscall");
    va_start(ap, number);
    for (int i = 0; i < 6; i++) a[i] = va_arg(ap, long);
    va_end(ap);
    return real(number, a[0], a[1], a[2], a[3], a[4], a[5]);
}

int main(int argc, char **argv) {
    enum sheaf_status status = start_job();
    if (!status && argc > 1 && !strcmp(argv[1], "stop")) {
        if (sheaf_world_rank() == 1) raise(SIGSTOP);
        status = sheaf_world_barrier("behind the stop");
    }
    if (status && sheaf_world_reports_error()) fprintf(stderr, "error: %s\n", sheaf_last_error());
    if (!status) printf("ok rank %d\n", sheaf_world_rank());
    sheaf_world_finalize();
    return status ? 1 : 0;
}
