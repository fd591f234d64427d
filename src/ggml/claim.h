/* Which process is the program of its rank. MPI lets one in, once; children of that process (those
 * of llama-server's router) and programs that follow it under one shell must stay out.
 *
 * All of them inherit an environment, so the claim is a file in memory whose name stands there:
 * sheaf-worker makes it, or, where the launcher starts the program itself, that program. The file
 * holds the number of the process that has taken the claim, also when it is gone, and ends with its
 * last reader. Behind that number stands whether the launcher has asked the rank to end. */
#ifndef SHEAF_GGML_CLAIM_H
#define SHEAF_GGML_CLAIM_H

#include <signal.h>

#include "sheaf/sheaf.h"

enum { GG_EXIT_ASKED = 128 + SIGTERM }; /* status of a program that its launcher has asked to end */

/* Makes a claim for the programs that this process starts. A descriptor; -1 with errno. */
int gg_claim_make(void);
/* The process that has taken it; 0: none. */
long gg_claim_owner(int claim);
/* Takes the claim of this rank for this process; not twice, neither by a later program in the same
 * process. INVALID with a text: another one has it. A process outside of a launcher's job is its
 * own job and may always. */
enum sheaf_status gg_claim_take(void);
/* The launcher asks this rank to end. For handlers of signals. */
void gg_claim_note_end(int claim);
/* Has it? For the program. */
bool gg_claim_has_end(void);

#endif
