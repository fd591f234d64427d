/* Used by the plugin and by the devices of ggml: whether the log has details, and the error that there is no memory. */
#ifndef SHEAF_GGML_LOG_H
#define SHEAF_GGML_LOG_H

#include <stdbool.h>
#include <string.h>

#include "sheaf/settings.h"
#include "sheaf/status.h"

/* Does the log have details (SHEAF_BACKEND_DEBUG=1)? */
static inline bool gg_logs_details(void) {
    const char *debug = sheaf_setting_value("SHEAF_BACKEND_DEBUG");
    return debug && !strcmp(debug, "1");
}

/* ALLOC_FAILED with the text "WHAT: out of memory". */
static inline enum sheaf_status gg_no_memory(const char *what) {
    return sheaf_set_error(SHEAF_STATUS_ALLOC_FAILED, "%s: out of memory", what);
}

#endif
