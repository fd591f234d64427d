/* sheaf-info --check: is every host of the job fit for it? */
#ifndef SHEAF_TOOLS_INFO_CHECK_H
#define SHEAF_TOOLS_INFO_CHECK_H

#include "sheaf/sheaf.h"

/* Collective. Compares versions, memory, shared memory, interfaces, clocks, links and (path not
 * NULL) the model file over all ranks; rank 0 prints. If a host is unfit, its name and its problems
 * are printed, and every rank gets FAILED with a text that counts the unfit hosts. */
enum sheaf_status check_job(const char *path);

#endif
