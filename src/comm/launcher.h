/* What a failing job asks of its launcher, through the PMIx library that Open MPI has loaded: to
 * end ranks of other hosts, and, while ranks have no connection of their own yet, which of them
 * speaks. It works while the main thread is inside MPI_Init. Every call returns in a few seconds,
 * whatever the launcher does; a launcher without PMIx is one that knows nothing. */
#ifndef SHEAF_COMM_LAUNCHER_H
#define SHEAF_COMM_LAUNCHER_H

#include <stdbool.h>

enum sheaf__claim {
    SHEAF__CLAIM_UNKNOWN, /* the launcher cannot tell */
    SHEAF__CLAIM_WON,     /* this rank speaks for the job */
    SHEAF__CLAIM_LOST,    /* another rank has spoken */
};

/* Was mpirun told to leave ranks alone when others end? */
bool sheaf__launcher_recovers(void);
/* Ends the job, also if the launcher was told not to react to deaths. */
void sheaf__launcher_abort(int status);
/* Once a process. */
enum sheaf__claim sheaf__launcher_claim(void);

#endif
