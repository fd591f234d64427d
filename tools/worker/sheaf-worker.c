/* sheaf-worker: the ranks of a llama.cpp program that runs on the whole job.
 *
 *     mpirun -np 4 sheaf-worker -- llama-server -m model.gguf
 *
 * Rank 0 starts the program with the plugin libggml-sheaf.so; the other ranks serve it. The parent
 * of the program stays: a program that ends without having loaded backends (--version) has never
 * joined the job, so the parent joins in its place and ends it, where MPI would abort. */
#include <dlfcn.h>
#include <errno.h>
#include <limits.h>
#include <signal.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/file.h"
#include "base/launcher.h"
#include "common/tool.h"
#include "ggml/claim.h"
#include "ggml/engine.h"
#include "sheaf/sheaf.h"

static const char synopsis[] =
    "usage: mpirun -np N sheaf-worker [OPTIONS] -- PROGRAM [ARGUMENTS]\n"
    "       mpirun -np 1 -x GGML_BACKEND_PATH=.../libggml-sheaf.so PROGRAM ... : -np N-1 "
    "sheaf-worker\n"
    "Runs a program of llama.cpp (or another one that uses ggml) on rank 0, with all ranks of the\n"
    "job as its one device, SHEAF; the other ranks serve it.\n";

struct options {
    int64_t threads;
    const char *split, *split_sums, *groups, *devices;
    bool help, version, fast;
};

#define AT(field) offsetof(struct options, field)
static const struct option option_table[] = {
    TOOL_FAST(AT(fast)),
    {"--threads", NULL, OPTION_INT, AT(threads), 0, 1, TOOL_MAX_THREADS, "N",
     "of each CPU device (SHEAF_CPU_THREADS, or its cores)", NULL},
    {"--split", NULL, OPTION_TEXT, AT(split), 0, 0, 0, "S",
     "even, or shares of the ranks: 3,1 (SHEAF_SPLIT, or even)", NULL},
    TOOL_SPLIT_SUMS(AT(split_sums)),
    {"--groups", NULL, OPTION_TEXT, AT(groups), 0, 0, 0, "G",
     "ranks that are one device each: all, host, or ranges: 0-1,2-3 (SHEAF_GROUPS, or all)", NULL},
    {"--devices", NULL, OPTION_TEXT, AT(devices), 0, 0, 0, "LIST",
     "those of the job: CPU0, CUDA0@1 (of rank 1), ggml:CPU (SHEAF_DEVICES, or all but ggml's)",
     NULL},
    TOOL_HELP(AT(help)),
    TOOL_VERSION(AT(version)),
};
#undef AT

static const struct tool tool = {"sheaf-worker", synopsis, NULL, option_table,
                                 sizeof option_table / sizeof *option_table};

enum {
    EXIT_NO_PROGRAM = 127,
    PATH_BYTES = PATH_MAX,
    ASKED_SECONDS = 5,
    LATE_SECONDS = 20 /* programs load backends first; imports of Python may take 10 */
};
static pid_t program; /* for the signal handler */
static int claim;
static bool in_open_mpi;
static volatile sig_atomic_t is_late;

/* The program has it already if its process group was signalled: by a terminal, or by Open MPI's
 * daemon, the parent of this process. llama-server ends at once, without cleaning up, if it is asked
 * twice. */
static void pass_on(int number, siginfo_t *info, void *context) {
    (void)context;
    const bool of_launcher = info->si_code == SI_USER && info->si_pid == getppid();
    const bool to_group = info->si_code == SI_KERNEL || (in_open_mpi && of_launcher);
    if (number == SIGTERM && of_launcher) gg_claim_note_end(claim);
    if (program > 0 && !to_group) kill(program, number);
}

static void note_late(int number) {
    (void)number;
    is_late = 1;
}
static void note_end(int number) { (void)number; } /* of the program: sigsuspend returns */

static bool is_rank_0(void) {
    const char *rank = sheaf__launcher_rank();
    return !rank || atoi(rank) == 0;
}

static int fail(const char *text) {
    fprintf(stderr, "sheaf-worker: %s\n", text);
    return EXIT_FAILURE;
}

/* ---- the environment of the program: this one's, with what the options have set ---- */

struct variables {
    char **text; /* NAME=VALUE */
    size_t n;
    bool failed;
};

static void add(struct variables *v, const char *name, const char *value) {
    const size_t bytes = strlen(name) + strlen(value) + 2;
    char *text = malloc(bytes);
    if (text) snprintf(text, bytes, "%s=%s", name, value);
    v->failed = v->failed || !text;
    v->text[v->n++] = text;
}

static bool is_set_by_option(const char *variable) {
    struct sheaf_setting_info s = {.size = sizeof s};
    for (int i = 0; !sheaf_setting_get(i, &s); i++) {
        const size_t n = strlen(s.name);
        if (!strncmp(variable, s.name, n) && variable[n] == '=')
            return s.source == SHEAF_SETTING_PROGRAM;
    }
    return false;
}

static void add_options(struct variables *v) {
    struct sheaf_setting_info s = {.size = sizeof s};
    for (int i = 0; !sheaf_setting_get(i, &s); i++)
        if (s.source == SHEAF_SETTING_PROGRAM) add(v, s.name, s.value);
}

/* Where this process has none of them yet. */
static void add_defaults(struct variables *v) {
    Dl_info info;
    /* its threads would spin beside those of the kernels */
    if (!getenv("OMP_WAIT_POLICY")) add(v, "OMP_WAIT_POLICY", "passive");
    if (!getenv("GGML_BACKEND_PATH") && dladdr((void *)(uintptr_t)&sheaf_version, &info) &&
        info.dli_fname) { /* the plugin lies beside the library */
        char path[PATH_BYTES];
        const char *slash = strrchr(info.dli_fname, '/');
        snprintf(path, sizeof path, "%.*slibggml-sheaf.so",
                 slash ? (int)(slash - info.dli_fname) + 1 : 0, info.dli_fname);
        add(v, "GGML_BACKEND_PATH", path);
    }
}

/* NULL: out of memory. */
static char **environment(void) {
    enum { DEFAULTS = 2 };
    size_t n = 0;
    while (environ[n]) n++;
    struct variables v = {
        .text = calloc(n + (size_t)sheaf_setting_count() + DEFAULTS + 1, sizeof *v.text)};
    if (!v.text) return NULL;
    for (size_t i = 0; i < n; i++)
        if (!is_set_by_option(environ[i])) v.text[v.n++] = environ[i];
    add_options(&v);
    add_defaults(&v);
    return v.failed ? NULL : v.text;
}

/* ---- the other ranks ---- */

/* The launcher asks all ranks to end, and the program tells this one when it does. A rank that is
 * not told, because it alone was asked, ends by itself. */
static void await_end(int number) {
    (void)number;
    sheaf_world_expect_end(GG_EXIT_ASKED);
    alarm(ASKED_SECONDS);
}

/* mpirun ends the job, and so the program, when a rank ends without MPI_Finalize. After a failure a
 * worker therefore stays until the program has ended so. Other launchers end none of the two, nor
 * does mpirun that recovers: a worker that stayed would stay for good. */
static bool may_stay(void) {
    return gg_program_lives_on() && getenv("OMPI_COMM_WORLD_SIZE") && !sheaf__launcher_recovers();
}

static void outlast_the_program(pid_t launcher) {
    signal(SIGTERM, SIG_DFL);
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    while (getppid() == launcher) pause();
}

static int serve(void) {
    struct gg_engine *e = NULL;
    const pid_t launcher = getppid();
    const bool stays = may_stay();
    enum sheaf_status st = gg_engine_start(&(struct gg_start){.may_exit = !stays}, &e);
    const struct sigaction action = {.sa_handler = await_end, .sa_flags = SA_RESTART};
    if (!st) sigaction(SIGTERM, &action, NULL);
    if (!st && sheaf_world_rank() == 0)
        st = sheaf_set_error(SHEAF_STATUS_INVALID,
                             "rank 0 runs the program: sheaf-worker -- PROGRAM, or as the first of "
                             "two, PROGRAM : -np N sheaf-worker");
    if (!st) st = gg_engine_serve(e);
    char text[1024];
    snprintf(text, sizeof text, "%s", sheaf_last_error());
    if (st) sheaf_world_abort(text);
    if (st && sheaf_world_reports_error()) fail(text);
    const bool is_lost = e && sheaf_world_failed() && sheaf_world_rank() > 0;
    if (e) gg_engine_stop(e);
    if (is_lost && stays) outlast_the_program(launcher);
    return st ? EXIT_FAILURE : EXIT_SUCCESS;
}

/* ---- rank 0 ---- */

/* The workers wait for a program that has ended and never came. */
static int join_in_its_place(int status) {
    struct gg_engine *e = NULL;
    struct gg_command end = {.kind = GG_COMMAND_END};
    enum sheaf_status st = gg_engine_start(&(struct gg_start){.may_exit = true}, &e);
    if (!st) st = gg_engine_do(e, &end, NULL, NULL);
    if (st) return fail(sheaf_last_error());
    gg_engine_stop(e);
    return status;
}

/* Why a program has loaded no plugin, and what to do: this process may have been given another file to hand on. */
static const char *advice(void) {
    static char text[PATH_BYTES + 128];
    const char *path = getenv("GGML_BACKEND_PATH");
    if (!path || (strstr(path, "libggml-sheaf.so") && !access(path, R_OK)))
        return "one that has them built in calls ggml_backend_load_all()";
    snprintf(text, sizeof text,
             "GGML_BACKEND_PATH is '%s', not libggml-sheaf.so; unset it, and sheaf-worker sets it",
             path);
    return text;
}

static int exit_status(int status) {
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

static void start_program(char **argv, pid_t parent) {
    char **with = environment();
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != parent) _exit(EXIT_FAILURE);
    if (!with) _exit(fail("out of memory"));
    execvpe(argv[0], argv, with);
    fprintf(stderr, "sheaf-worker: cannot run %s: %s\n", argv[0], strerror(errno));
    _exit(EXIT_NO_PROGRAM);
}

static void handle_signals(void) {
    const struct sigaction pass = {.sa_sigaction = pass_on, .sa_flags = SA_SIGINFO};
    const struct sigaction late = {.sa_handler = note_late}, end = {.sa_handler = note_end};
    sigaction(SIGTERM, &pass, NULL);
    sigaction(SIGINT, &pass, NULL);
    sigaction(SIGHUP, &pass, NULL);
    sigaction(SIGALRM, &late, NULL);
    sigaction(SIGCHLD, &end, NULL);
}

/* The exit status. Signals come only while it waits, with the mask `open`. */
static int await_program(const char *name, const sigset_t *open) {
    int status = 0;
    alarm(LATE_SECONDS);
    while (waitpid(program, &status, WNOHANG) == 0) {
        sigsuspend(open);
        if (is_late && !gg_claim_owner(claim))
            fprintf(stderr,
                    "sheaf-worker: %s has loaded no backend in %d s and computes without SHEAF "
                    "until it does; %s\n",
                    name, LATE_SECONDS, advice());
        is_late = 0;
    }
    alarm(0);
    program = 0;
    return exit_status(status);
}

static int run_program(char **argv) {
    const pid_t parent = getpid();
    sigset_t all, open;
    claim = gg_claim_make();
    if (claim < 0) return fail(sheaf__errno_text(errno));
    in_open_mpi = getenv("OMPI_COMM_WORLD_SIZE") != NULL;
    sigfillset(&all);
    sigprocmask(SIG_SETMASK, &all, &open);
    handle_signals();
    program = fork();
    if (program < 0) return fail(strerror(errno));
    if (program == 0) {
        sigprocmask(SIG_SETMASK, &open, NULL);
        start_program(argv, parent);
    }
    const int status = await_program(argv[0], &open);
    sigprocmask(SIG_SETMASK, &open, NULL);
    if (gg_claim_owner(claim)) return status;
    if (status != EXIT_NO_PROGRAM) /* of it is said already what cannot be run */
        fprintf(stderr, "sheaf-worker: %s ended (status %d) without loading a backend; %s\n",
                argv[0], status, advice());
    return join_in_its_place(status);
}

/* ---- options ---- */

/* A text that is NULL leaves the setting as it is. */
static enum sheaf_status set(const char *name, const char *value) {
    return value ? sheaf_setting_set(name, value) : SHEAF_STATUS_SUCCESS;
}

static enum sheaf_status set_all(const struct options *o) {
    enum sheaf_status status = tool_set_cpus(o->threads, o->fast);
    if (!status) status = tool_set_sums(o->split_sums);
    if (!status) status = set("SHEAF_SPLIT", o->split);
    if (!status) status = set("SHEAF_GROUPS", o->groups);
    return status ? status : set("SHEAF_DEVICES", o->devices);
}

/* Of the n arguments before --. has_program: a program stands behind it. */
static enum sheaf_status read_options(int n, char **argv, bool has_program, struct options *o) {
    char text[512];
    const enum sheaf_status status = options_parse(&tool, n, argv, o);
    bool word = false;
    for (int i = 1; i < n; i++) word = word || argv[i][0] != '-';
    if (!status || has_program || !word) return status;
    snprintf(text, sizeof text, "%s", sheaf_last_error());
    return sheaf_set_error(
        status, "%s; the program stands behind --: sheaf-worker [OPTIONS] -- PROGRAM", text);
}

int main(int argc, char **argv) {
    struct options o = {0};
    int n = 1; /* arguments before -- */
    while (n < argc && strcmp(argv[n], "--")) n++;
    const bool has_program = n + 1 < argc;
    enum sheaf_status status = read_options(n, argv, has_program, &o);
    if (!status && (o.help || o.version)) return tool_answer(&tool, o.help);
    if (!status && n < argc && !has_program)
        status = sheaf_set_error(SHEAF_STATUS_INVALID, "no program stands behind --");
    if (!status) status = set_all(&o);
    if (status) return tool_is_first() ? tool_refuse(&tool) : TOOL_BAD_USAGE;
    return has_program && is_rank_0() ? run_program(argv + n + 1) : serve();
}
