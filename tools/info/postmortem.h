/* sheaf-info --postmortem: compares the flight recorders of a failed job. */
#ifndef SHEAF_TOOLS_INFO_POSTMORTEM_H
#define SHEAF_TOOLS_INFO_POSTMORTEM_H

#include "sheaf/sheaf.h"

/* Reads the dumps in a directory (SHEAF_FLIGHT_DIR of the job) and prints the last collective of
 * each rank, the first collective in which ranks differ, and which rank was late. Files that
 * are no dumps are named and left out. */
enum sheaf_status postmortem_print(const char *dir);

#endif
