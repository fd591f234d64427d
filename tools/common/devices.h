/* The hosts, ranks and devices of the job, as a list. */
#ifndef SHEAF_TOOLS_DEVICES_H
#define SHEAF_TOOLS_DEVICES_H

#include "sheaf/status.h"

/* To standard output, by rank 0. Collective. */
enum sheaf_status devices_print(void);

#endif
