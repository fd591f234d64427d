/* Settings that all ranks must have alike. */
#ifndef SHEAF_COMM_SAME_SETTING_H
#define SHEAF_COMM_SAME_SETTING_H

#include "sheaf/status.h"

/* Collective over the world. value: that of this rank, up to 63 characters. INVALID on all ranks if one has another
 * than rank 0, with a text that names the setting and both values. */
enum sheaf_status sheaf__same_setting(const char *name, const char *value);

#endif
