/* The settings by number, for the code that reads them. The table is in settings.c. */
#ifndef SHEAF_BASE_SETTINGS_H
#define SHEAF_BASE_SETTINGS_H

#include <stdbool.h>
#include <string.h>

#include "sheaf/settings.h"

enum sheaf__setting {
    /* time limits */
    SHEAF__SET_TIMEOUT,
    SHEAF__SET_TIMEOUT_START,
    SHEAF__SET_TIMEOUT_LOAD,
    SHEAF__SET_TIMEOUT_PLAN,
    SHEAF__SET_TIMEOUT_COMPUTE,
    SHEAF__SET_TIMEOUT_COLLECTIVE,
    SHEAF__SET_TIMEOUT_FINALIZE,
    SHEAF__SET_TIMEOUT_HEARTBEAT,
    /* communication */
    SHEAF__SET_COMM_WIRE,
    SHEAF__SET_COMM_DEVICE,
    SHEAF__SET_COMM_TRANSPORT,
    SHEAF__SET_COMM_DELAY,
    SHEAF__SET_COMM_ONE_SHOT,
    SHEAF__SET_COMM_OWNERS,
    SHEAF__SET_CONTROL_ADDRESS,
    SHEAF__SET_NCCL_LIBRARY,
    SHEAF__SET_NCCL_SUMS,
    /* devices */
    SHEAF__SET_CPU_DEVICES,
    SHEAF__SET_CPU_THREADS,
    SHEAF__SET_CPU_ISA,
    SHEAF__SET_CPU_ACTIVATIONS,
    SHEAF__SET_CPU_REPACK,
    SHEAF__SET_CUDA_DEVICES,
    SHEAF__SET_CUDA_PARAMS,
    SHEAF__SET_BACKEND_PATH,
    SHEAF__SET_DEVICES,
    SHEAF__SET_GGML_LIB,
    SHEAF__SET_GGML_BACKENDS,
    SHEAF__SET_GGML_REPACK,
    /* plans */
    SHEAF__SET_SPLIT_SUMS,
    /* programs of ggml: read by the plugin */
    SHEAF__SET_GGML_SPLIT,
    SHEAF__SET_SPLIT,
    SHEAF__SET_GROUPS,
    SHEAF__SET_GGML_ON_FAILURE,
    /* diagnosis */
    SHEAF__SET_BACKEND_DEBUG,
    SHEAF__SET_SCHED_DEBUG,
    SHEAF__SET_CPU_PROFILE,
    SHEAF__SET_FLIGHT_DIR,
    /* read by scripts/, not by the library */
    SHEAF__SET_CACHE,
    SHEAF__SET_GGML_SUITE,
    SHEAF__SETTING_COUNT,
};

const char *sheaf__setting_name(enum sheaf__setting setting);
/* Value in force; NULL: the default. An empty one counts as none, except for integers. */
const char *sheaf__setting_text(enum sheaf__setting setting);
/* *out stays as it is, the caller's default, if the setting has no value. INVALID (text set) if the
 * value is outside the range or not one of the choices. */
enum sheaf_status sheaf__setting_int(enum sheaf__setting setting, long *out);
enum sheaf_status sheaf__setting_choice(enum sheaf__setting setting, int *out);
/* The name of choice number i, "" beyond the last. */
enum { SHEAF__CHOICE_BYTES = 16 };
void sheaf__setting_choice_name(enum sheaf__setting setting, int i,
                                char name[static SHEAF__CHOICE_BYTES]);
/* Are the numbers and choices in force right, also those that nothing reads? INVALID (text set)
 * names the first that is not. A setting of type text is checked where it is read. */
enum sheaf_status sheaf__settings_check(void);
/* Is the value there, and not "0"? */
bool sheaf__setting_on(enum sheaf__setting setting);

/* The same for one integer of any name: the parser behind sheaf__setting_int. */
enum sheaf_status sheaf__setting_parse_int(const char *name, const char *text, long min, long max,
                                           long *out);

/* SHEAF_SPLIT_SUMS. A value that is no choice, which making a meta device refuses, counts as
 * partial. By the public function, for libsheaf-model and the plugin, too. */
static inline bool sheaf__whole_sums(void) {
    const char *text = sheaf_setting_value("SHEAF_SPLIT_SUMS");
    return text && !strcmp(text, "whole");
}

#endif
