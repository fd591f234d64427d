/* sheaf-info --settings. */
#ifndef SHEAF_TOOLS_INFO_SETTINGS_H
#define SHEAF_TOOLS_INFO_SETTINGS_H

#include "sheaf/status.h"

/* Prints every setting: the value in force, its source, its range, its help; then the environment
 * variables that look like settings and are none. INVALID (text set) if a value is wrong. */
enum sheaf_status settings_print(void);

#endif
