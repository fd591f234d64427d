/* Loads a model, divides it over all devices of the job and prints what it writes:
 *     mpirun -np 4 generate MODEL.gguf "Once upon a time" 64 */
#include <stdio.h>
#include <stdlib.h>

#include "sheaf/model.h"
#include "sheaf/module.h"
#include "sheaf/world.h"

/* Called on all ranks; only rank 0 gets text. */
static enum sheaf_status print(void *user, const struct sheaf_model_event *event) {
    (void)user;
    fwrite(event->text, 1, event->len, stdout);
    fflush(stdout);
    return SHEAF_STATUS_SUCCESS;
}

int main(int argc, char **argv) {
    struct sheaf_model_params params = sheaf_model_default_params();
    struct sheaf_model_generate_params how = sheaf_model_generate_default_params();
    /* a failed job may end this process, which is nothing besides */
    const struct sheaf_world_params world = {.size = sizeof world, .may_exit = true};
    struct sheaf_model *model = NULL;
    if (argc != 4) return fputs("usage: generate MODEL.gguf PROMPT N_TOKENS\n", stderr), 2;
    params.path = argv[1];
    params.split = "even"; /* or "auto", by measured speed */
    how.n_predict = atoi(argv[3]);
    how.sampler.temperature = 0; /* always the best token */

    enum sheaf_status status = sheaf_world_init(&world);
    if (!status) sheaf_backend_load_all(); /* GPUs, where their modules are installed */
    if (!status) status = sheaf_model_open(&params, &model);
    if (!status) status = sheaf_model_generate(model, argv[2], &how, print, NULL, NULL);
    if (!status && sheaf_world_rank() == 0) putchar('\n');
    if (status) {
        sheaf_world_abort(sheaf_last_error()); /* the other ranks need not wait for this one */
        if (sheaf_world_reports_error()) fprintf(stderr, "generate: %s\n", sheaf_last_error());
    }
    sheaf_model_free(model);
    sheaf_world_finalize();
    return status || sheaf_world_failed() ? EXIT_FAILURE : EXIT_SUCCESS;
}
