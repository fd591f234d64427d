/* Running programs from a test: a command with a deadline, its output and its status.
 *
 * Criterion forks every test, and MPI must not be started before a fork, so whatever needs ranks is
 * a helper program that a test starts under mpirun. Header only; nothing survives a call: when the
 * deadline passes, the command's process group is ended and the call says so. */
#ifndef SHEAF_TESTS_MPIRUN_H
#define SHEAF_TESTS_MPIRUN_H

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "sheaf/world.h"

enum { RUN_TIMED_OUT = -1, RUN_CANNOT_START = -2 };

static inline double run_seconds(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* Ends the process group of `pid` (which has not been reaped yet) and reaps pid. mpirun passes
 * SIGTERM on to its ranks, which sit in process groups of their own; so it gets a moment first. */
static inline int run_end(pid_t pid) {
    int status = 0;
    kill(-pid, SIGTERM);
    for (int i = 0; i < 300; i++) {
        if (waitpid(pid, &status, WNOHANG) == pid) return status;
        usleep(10000);
    }
    kill(-pid, SIGKILL);
    while (waitpid(pid, &status, 0) < 0 && errno == EINTR) {
    }
    return status;
}

/* Runs `cmd` with /bin/sh, standard input empty. out (cap bytes; may be NULL with cap 0) receives
 * the beginning of standard output and error together, always terminated. Returns the exit status,
 * 128 + signal number, RUN_TIMED_OUT or RUN_CANNOT_START. */
static inline int run_command(const char *cmd, int timeout_s, char *out, size_t cap) {
    size_t used = 0;
    int fd[2], status = 0;
    if (cap) out[0] = 0;
    if (pipe2(fd, O_CLOEXEC)) return RUN_CANNOT_START; /* commands beside each other share none */
    fflush(NULL);
    pid_t pid = fork();
    if (pid < 0) {
        close(fd[0]);
        close(fd[1]);
        return RUN_CANNOT_START;
    }
    if (pid == 0) {
        setpgid(0, 0);
        int null = open("/dev/null", O_RDONLY);
        if (null >= 0) dup2(null, 0);
        dup2(fd[1], 1);
        dup2(fd[1], 2);
        close(fd[0]);
        close(fd[1]);
        execl("/bin/sh", "sh", "-c", cmd, (char *)NULL);
        _exit(127);
    }
    setpgid(pid, pid);
    close(fd[1]);

    double end = run_seconds() + timeout_s;
    for (;;) {
        double left = end - run_seconds();
        struct pollfd p = {.fd = fd[0], .events = POLLIN};
        if (left <= 0) break;
        int r = poll(&p, 1, left > 1 ? 1000 : (int)(left * 1000) + 1);
        if (r <= 0) continue; /* a second passed, or a signal came */
        char block[4096];
        ssize_t n = read(fd[0], block, sizeof block);
        if (n <= 0) break;
        if (cap && used + 1 < cap) {
            size_t take = (size_t)n < cap - 1 - used ? (size_t)n : cap - 1 - used;
            memcpy(out + used, block, take);
            out[used += take] = 0;
        }
    }
    close(fd[0]);
    for (;;) { /* the output is closed: the end is near */
        if (waitpid(pid, &status, WNOHANG) == pid) break;
        if (run_seconds() >= end) {
            run_end(pid);
            return RUN_TIMED_OUT;
        }
        usleep(2000);
    }
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

/* Runs "BUILD/bin/ARGS" on np ranks of this machine; args in printf style, `env` is "NAME=value
 * ..." or NULL. Otherwise like run_command. When a rank fails, mpirun ends the others at once
 * instead of after its second of grace: the rank that prints the message must have printed it. */
__attribute__((format(printf, 6, 7))) static inline int
run_mpirun(int np, const char *env, int timeout_s, char *out, size_t cap, const char *args, ...) {
    char line[2048], cmd[4096];
    va_list ap;
    va_start(ap, args);
    vsnprintf(line, sizeof line, args, ap);
    va_end(ap);
    snprintf(cmd, sizeof cmd,
             "exec env %s mpirun --allow-run-as-root --oversubscribe "
             "--mca odls_base_sigkill_timeout 0 -np %d '%s'/bin/%s",
             env ? env : "", np, SHEAF_BUILD_DIR, line);
    return run_command(cmd, timeout_s, out, cap);
}

/* Runs a shell script without single quotes on np ranks: $R is the rank, $B the folder of the programs. Otherwise like
 * run_mpirun. (Ranks that differ come by this, and not by several programs with ':' between them: at these mpirun of
 * Debian 13's Open MPI 5.0.7 crashes, also at `true : true`.) */
static inline int run_on_ranks(int np, const char *env, int timeout_s, char *out, size_t cap,
                               const char *script) {
    char cmd[4096];
    snprintf(cmd, sizeof cmd,
             "exec env B='%s/bin' %s mpirun --allow-run-as-root --oversubscribe --bind-to none "
             "-np %d sh -c 'R=${OMPI_COMM_WORLD_RANK:-$PMI_RANK}; %s'",
             SHEAF_BUILD_DIR, env ? env : "", np, script);
    return run_command(cmd, timeout_s, out, cap);
}

/* Does the name of the MPI, with its version, begin so? */
static inline bool run_by(const char *mpi) {
    return strncmp(sheaf_world_mpi(), mpi, strlen(mpi)) == 0;
}
static inline bool run_by_mpich(void) { return run_by("MPICH"); }

/* Is rc what the launcher returns for a job of which a rank has failed with status `own` (128 + the
 * signal that ended it; 0: none has failed)? Open MPI's mpirun returns that status. MPICH's mpiexec
 * ends the other ranks and returns the statuses of all together, one number or-ed with the next, a
 * signal as its number. */
static inline bool run_returns(int rc, int own) {
    return own && run_by_mpich() ? rc > 0 : rc == own;
}

/* Copies the line of a program's output that begins where `head` does; false if there is none. */
static inline bool run_line_of(const char *out, const char *head, char *line, size_t cap) {
    const char *p = strstr(out, head);
    if (p) snprintf(line, cap, "%.*s", (int)strcspn(p, "\n"), p);
    return p != NULL;
}

#endif
