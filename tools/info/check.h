/* sheaf-info --check: is every host of the job fit for it? */
#ifndef SHEAF_TOOLS_INFO_CHECK_H
#define SHEAF_TOOLS_INFO_CHECK_H

#include "sheaf/sheaf.h"

/* Collective. Compares versions, memory, shared memory, interfaces, clocks, links and (path not
 * NULL) the model file over all ranks; rank 0 prints. FAILED on every rank, with a text that counts
 * them, if a host is unfit; each has been named then. */
enum sheaf_status check_job(const char *path);

#endif
