/* What the log of both libraries has only on request. */
#ifndef SHEAF_GGML_LOG_H
#define SHEAF_GGML_LOG_H

#include <stdbool.h>
#include <string.h>

#include "sheaf/settings.h"

/* Does the log have details (SHEAF_BACKEND_DEBUG=1)? */
static inline bool gg_logs_details(void) {
    const char *debug = sheaf_setting_value("SHEAF_BACKEND_DEBUG");
    return debug && !strcmp(debug, "1");
}

#endif
