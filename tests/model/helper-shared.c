/* Started by test-session.c under mpirun: ranks other than 0 have no file, and after the first part of the
 * model something happens. Arguments: the path of the first of several files, and what: "nothing", "cut" (the
 * second file loses its end), "change" (its first byte is written), "remove" (the files are deleted), "die N"
 * (rank N is killed), "stop N" (rank N wants to stop). Prints a line for each rank. */
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "sheaf/model.h"
#include "sheaf/world.h"
#include "start_job.h"

static const char *first, *what;
static int who;

static void second_path(char *path, size_t size) {
    snprintf(path, size, "%s", first);
    char *number = strstr(path, "-00001-of-");
    if (number) number[5] = '2';
}

static bool write_byte(const char *path) {
    const int fd = open(path, O_WRONLY);
    const bool done = fd >= 0 && pwrite(fd, "G", 1, 0) == 1;
    if (fd >= 0) close(fd);
    return done;
}

static bool on_progress(void *user, size_t done, size_t total) {
    int *calls = user;
    char second[512];
    (void)done;
    (void)total;
    if ((*calls)++) return true;
    second_path(second, sizeof second);
    if (!strcmp(what, "cut") && sheaf_world_rank() == 0 && truncate(second, 2000)) return false;
    if (!strcmp(what, "change") && sheaf_world_rank() == 0 && !write_byte(second)) return false;
    if (!strcmp(what, "remove") && sheaf_world_rank() == 0 && (unlink(first) || unlink(second)))
        return false;
    if (!strcmp(what, "die") && sheaf_world_rank() == who) raise(SIGKILL);
    return strcmp(what, "stop") || sheaf_world_rank() != who;
}

int main(int argc, char **argv) {
    struct sheaf_model_params params = sheaf_model_default_params();
    struct sheaf_model_info info = {.size = sizeof info};
    struct sheaf_model *model = NULL;
    int calls = 0;
    if (argc < 3) return 2;
    first = argv[1];
    what = argv[2];
    who = argc > 3 ? (int)strtol(argv[3], NULL, 10) : 0;
    enum sheaf_status status = start_job();
    params.path = sheaf_world_rank() ? "/nonexistent/m-00001-of-00003.gguf" : first;
    params.n_ctx = 64;
    params.progress = on_progress;
    params.user = &calls;
    if (!status) status = sheaf_model_open(&params, &model);
    if (!status) status = sheaf_model_get_info(model, &info);
    if (!status)
        printf("rank %d: %zu bytes held, %zu read, %llu sent, path %s\n", sheaf_world_rank(),
               info.weight_bytes, info.bytes_read, (unsigned long long)info.bytes_sent, info.path);
    else
        printf("rank %d: status %d: %s\n", sheaf_world_rank(), (int)status, sheaf_last_error());
    fflush(stdout);
    sheaf_model_free(model);
    sheaf_world_finalize();
    return status ? 1 : 0;
}
