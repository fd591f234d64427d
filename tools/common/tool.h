/* What every tool does alike: --help, --version, the start and the end of the job, one message for
 * a job. */
#ifndef SHEAF_TOOLS_TOOL_H
#define SHEAF_TOOLS_TOOL_H

#include "common/options.h"

enum {
    /* exit status: FAILED also where the job, a file or a model lacks what the command line names;
     * BAD_USAGE where no job could make it right */
    TOOL_FAILED = 1,
    TOOL_BAD_USAGE = 2,
    TOOL_INTERRUPTED = 130,
    TOOL_MAX_THREADS = 1024, /* as SHEAF_CPU_THREADS has it, so that the message names the option */
};

/* Is this process the first of its job? Known before the ranks meet, by the variables of launchers;
 * true without one. */
bool tool_is_first(void);

/* --help or --version, to standard output, once a job; the ranks need not have met. Returns the
 * code for the end of main. */
int tool_answer(const struct tool *tool, bool help);

/* For tools of one process: says what is wrong with the command line; returns TOOL_BAD_USAGE. */
int tool_refuse(const struct tool *tool);

/* Settings of the CPU devices by --threads (0: not given) and --fast. Before tool_start. */
enum sheaf_status tool_set_cpus(int64_t threads, bool fast);
/* SHEAF_SPLIT_SUMS by --split-sums (NULL: not given). Before tool_start. */
enum sheaf_status tool_set_sums(const char *sums);
/* --split (NULL: not given): INVALID if it is right for no number of members. */
enum sheaf_status tool_check_split(const char *split);
/* The same of --devices: NULL, all or names, each once, of lower ranks first. Only the job knows
 * which devices there are. */
enum sheaf_status tool_check_devices(const char *list);
/* Rows that several tools have in their tables, for the field at `offset`. */
#define TOOL_HELP(offset)                                                                          \
    { "--help", "-h", OPTION_FLAG, offset, 0, 0, 0, NULL, "this text", NULL }
#define TOOL_VERSION(offset)                                                                       \
    {                                                                                              \
        "--version", NULL, OPTION_FLAG, offset, 0, 0, 0, NULL,                                     \
            "version, commit and compiler of the library, kernels of this CPU", NULL               \
    }
#define TOOL_SINGLE(offset)                                                                        \
    {                                                                                              \
        "--single", NULL, OPTION_FLAG, offset, 0, 0, 0, NULL,                                      \
            "the first device alone, without the meta device (one rank)", NULL                     \
    }
#define TOOL_FAST(offset)                                                                          \
    {                                                                                              \
        "--fast", NULL, OPTION_FLAG, offset, 0, 0, 0, NULL,                                        \
            "products on CPUs with activations of 8 bits: faster, but results differ a little, "   \
            "and from split to split (SHEAF_CPU_ACTIVATIONS=q8)",                                  \
            NULL                                                                                   \
    }
#define TOOL_SPLIT_SUMS(offset)                                                                    \
    {                                                                                              \
        "--split-sums", NULL, OPTION_CHOICE, offset, 0, 0, 0, "S",                                 \
            "partial, whole: whole sums are not added from members' parts, so that results have "  \
            "the same bits on any number of members, for twice the collectives "                   \
            "(SHEAF_SPLIT_SUMS, or partial)",                                                      \
            "partial|whole"                                                                        \
    }

/* Starts the world and loads the modules of devices, after the command line was parsed with status
 * `parsed`, whose text is in sheaf_last_error. Returns 0 or the exit code of a tool that cannot go
 * on: the command line was bad, or the ranks did not meet; it has been said. */
int tool_start(const struct tool *tool, enum sheaf_status parsed);

/* INVALID on all ranks, with a text that names an option and two ranks, if a rank's command line,
 * parsed into *out, has another value than rank 0's, except of the blank-separated names in
 * `may_differ`. A rank without an option of rank 0 would leave the others in a collective.
 * Collective. */
enum sheaf_status tool_same_options(const struct tool *tool, const void *out,
                                    const char *may_differ);

/* Behind what rank 0 alone reads, maybe from a user or a pipe: the other ranks wait for it without
 * a limit. Collective; returns st, or the failure of the wait. */
enum sheaf_status tool_await_input(enum sheaf_status st, const char *what);

/* The error of this rank: ends the waits of the other ranks, and is printed once a job. */
void tool_complain(const struct tool *tool);

/* Ends the world and the standard output; for the return of main. */
int tool_end(int code);

#endif
