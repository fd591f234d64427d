/* Started by test-session.c under mpirun: a rank lacks the memory of the n-th allocation that the model
 * library makes while it plans a session, for every n. All ranks must end with the same status, and go
 * on. Arguments: that rank, and the rank that does not have the model (none: all have it). */
#include <stdio.h>
#include <stdlib.h>

#include "model/run/session.h"
#include "sheaf/world.h"
#include "start_job.h"

static _Thread_local int left; /* allocations up to the one that is refused; 0: none is */

#if !defined __SANITIZE_ADDRESS__ && !defined __SANITIZE_THREAD__
extern char __executable_start, etext; /* the model library is a part of the program, MPI is not */
static bool is_refused(const void *caller) {
    const char *at = caller;
    return left && at >= &__executable_start && at < &etext && --left == 0;
}

/* They stand before those of the C library. */
void *__libc_malloc(size_t n);
void *__libc_calloc(size_t n, size_t size);
void *__libc_realloc(void *p, size_t n);
void *malloc(size_t n) { return is_refused(__builtin_return_address(0)) ? NULL : __libc_malloc(n); }
void *calloc(size_t n, size_t size) {
    return is_refused(__builtin_return_address(0)) ? NULL : __libc_calloc(n, size);
}
void *realloc(void *p, size_t n) {
    return is_refused(__builtin_return_address(0)) ? NULL : __libc_realloc(p, n);
}
#endif

static bool same_on_all(enum sheaf_status status) {
    int32_t mine = (int32_t)status, all[8];
    if (sheaf_world_all_gather(&mine, sizeof mine, all, "statuses")) return false;
    for (int r = 0; r < sheaf_world_size(); r++)
        if (all[r] != mine) return false;
    return true;
}

int main(int argc, char **argv) {
    struct sheaf_model_params params = {
        .size = sizeof params, .path = SHEAF_SOURCE_DIR "/models/kjv-q8_0.gguf", .devices = "CPU0"};
    const int lacks = argc > 1 ? (int)strtol(argv[1], NULL, 10) : 1;
    bool refused = true, good = !start_job();
    if (argc > 2 && sheaf_world_rank() == strtol(argv[2], NULL, 10)) params.path = "/nonexistent";
    int n = 0, failed = 0;
    while (good && refused) {
        struct sheaf__session *s = NULL;
        left = sheaf_world_rank() == lacks ? ++n : 0;
        const enum sheaf_status status = sheaf__session_plan(&params, &s);
        refused = left == 0;
        left = 0;
        failed += status != SHEAF_STATUS_SUCCESS;
        if (!same_on_all(status)) {
            printf("WRONG: rank %d has status %d: %s\n", sheaf_world_rank(), (int)status,
                   sheaf_last_error());
            good = false;
        }
        sheaf__session_free(s);
        good = good && !sheaf_world_broadcast(&refused, sizeof refused, lacks, "refused");
    }
    if (good) printf("ok rank %d, %d failures\n", sheaf_world_rank(), failed);
    sheaf_world_finalize();
    return good ? 0 : 1;
}
