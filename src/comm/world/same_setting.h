/* Settings that all ranks must have alike. */
#ifndef SHEAF_COMM_SAME_SETTING_H
#define SHEAF_COMM_SAME_SETTING_H

#include "sheaf/status.h"

/* Collective over the world. value: that of this rank; "": none that counts.
 * option: that of the tools which sets it, or NULL. INVALID on all ranks if two have different
 * values, with a text that names the setting, both ranks and values, and what to do. */
enum sheaf_status sheaf__same_setting(const char *name, const char *value, const char *option);

#endif
