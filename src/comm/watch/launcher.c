/* Which launcher and which MPI it is, by their variables: the job's size, what sheaf does without
 * there, and what has to be removed after them. Nothing here waits; requests are in pmix.c. */
#include <mpi.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "comm/watch/watch.h"
#include "comm/watch/watch_impl.h"
#include "comm/world/world.h"
#include "sheaf/world.h"

enum { MAX_HERE = 65536 }; /* ranks of a host */

/* ---- what Open MPI leaves ---- */

static char of_sm[512];     /* names of Open MPI 5's sm, up to the rank */
static _Atomic bool has_sm; /* of_sm is complete */

/* Open MPI 5 makes the number of the job in these names itself. Each rank has its own segment mapped. */
void sheaf__launcher_note_names(void) {
    char line[1024];
    FILE *f = fopen("/proc/self/maps", "re");
    while (f && !atomic_load(&has_sm) && fgets(line, sizeof line, f)) {
        const char *path = strchr(line, '/'), *name = path ? strstr(path, "/sm_segment.") : NULL;
        if (!name) continue;
        snprintf(of_sm, sizeof of_sm, "%.*s", (int)(strrchr(name, '.') - path), path);
        atomic_store(&has_sm, true);
    }
    if (f) fclose(f);
}

static void remove_of_sm(unsigned long n) {
    char path[sizeof of_sm + 24];
    for (unsigned long r = 0; r < n && r < MAX_HERE && atomic_load(&has_sm); r++) {
        snprintf(path, sizeof path, "%s.%lu", of_sm, r);
        unlink(path);
    }
}

/* Names that Open MPI's vader leaves in /dev/shm when its processes end without MPI_Finalize:
 * exactly those of the ranks of this job on this host, which vader numbers from 0 on each host. A
 * process that has them mapped keeps them. Open MPI calls the host by its name up to the first dot,
 * unless the name is an address or orte_keep_fqdn_hostnames is set: both are tried. */
void sheaf__launcher_remove_names(void) {
    const char *job = getenv("PMIX_NAMESPACE"), *ranks = getenv("OMPI_COMM_WORLD_LOCAL_SIZE");
    const char *dir = getenv("OMPI_MCA_btl_vader_backing_directory");
    char *end, host[SHEAF__HOST_NAME_BYTES] = "", path[512];
    if (!job || !ranks) return;
    const unsigned long id = strtoul(job, &end, 10), n = strtoul(ranks, NULL, 10);
    remove_of_sm(n);
    if (end == job || *end || id > UINT32_MAX) return; /* another launcher's names */
    gethostname(host, sizeof host - 1);
    const int lengths[] = {(int)strlen(host), (int)strcspn(host, ".")};
    for (unsigned long r = 0; r < n && r < MAX_HERE; r++)
        for (int k = 0; k < 1 + (lengths[1] < lengths[0]); k++) {
            snprintf(path, sizeof path, "%s/vader_segment.%.*s.%u.%lx.%lu", dir ? dir : "/dev/shm",
                     lengths[k], host, geteuid(), id, r);
            unlink(path);
        }
}

/* ---- which MPI it is ---- */

const char *sheaf_world_mpi(void) {
    static char name[64];
    char text[MPI_MAX_LIBRARY_VERSION_STRING] = "";
    int n = 0;
    if (name[0]) return name;
    if (MPI_Get_library_version(text, &n) != MPI_SUCCESS || !text[0]) return "unknown";
    text[strcspn(text, ",\n")] = 0; /* "MPICH Version:\t4.0.2", "Open MPI v4.1.4, package: ..." */
    for (char *p = text; *p; p++)
        if (*p == '\t') *p = ' ';
    snprintf(name, sizeof name, "%.*s", (int)sizeof name - 1, text);
    return name;
}

/* Slurm's plugin names the job "slurm.pmix.JOB.STEP", and answers PMIx_Publish and PMIx_Lookup with
 * PMIX_ERR_NOT_SUPPORTED (src/plugins/mpi/pmix/pmixp_info.c, pmixp_client_v2.c of Slurm). */
static bool is_slurm_pmix(void) {
    static const char slurm[] = "slurm.pmix.";
    const char *job = getenv("PMIX_NAMESPACE");
    return job && !strncmp(job, slurm, sizeof slurm - 1);
}

static bool has_claims(void) { return !is_slurm_pmix() && sheaf__launcher_publishes(); }
static bool has_daemons(void) { return getenv("OMPI_MCA_orte_local_daemon_uri"); }
static bool is_open_mpi(void) { return !strncmp(sheaf_world_mpi(), "Open MPI", 8); }

const char *sheaf_world_mpi_lacks(size_t i) {
    static const struct {
        bool (*has)(void);
        const char *text;
    } wants[] = {
        {has_claims, "the launcher has no PMIx publish and lookup: a job that fails before its "
                     "ranks have met may be reported by one rank of each host"},
        {has_daemons, "the launcher's addresses are unknown: control connections between hosts use "
                      "those of the host's name, or SHEAF_CONTROL_ADDRESS"},
        {is_open_mpi,
         "names that MPI leaves in /dev/shm when its ranks are killed are not removed"},
        {is_open_mpi, "sheaf-comm-bench compares with MPI's default collectives alone: components "
                      "are Open MPI's"},
    };
    for (size_t k = 0; k < sizeof wants / sizeof *wants; k++)
        if (!wants[k].has() && i-- == 0) return wants[k].text;
    return NULL;
}

/* 0: the variable is not set, or no number of ranks */
static int number_from(const char *name) {
    const char *text = getenv(name);
    const long n = text ? strtol(text, NULL, 10) : 0;
    return n > 0 && n < INT32_MAX ? (int)n : 0;
}

static int rank_from(const char *name) {
    const char *text = getenv(name);
    return text ? atoi(text) : 0;
}

struct sheaf__launch sheaf__launcher_job(void) {
    static const char *const sizes[] = {"OMPI_COMM_WORLD_SIZE", "PMI_SIZE"};
    static const char *const ranks[] = {"OMPI_COMM_WORLD_RANK", "PMI_RANK"};
    static const char other[] = "the launcher is another MPI's; use that one's mpirun or mpiexec";
    const struct sheaf__launch one = {1, 0, other};
    struct sheaf__launch job = one;
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        const int n = number_from(sizes[i]);
        if (n == 1) return one; /* a launcher inside another one's rank */
        if (n > 1) job = (struct sheaf__launch){n, rank_from(ranks[i]), other};
    }
    if (job.size > 1 || !is_slurm_pmix()) return job;
    /* PMIx has no variable for the size. Tasks of a step without --mpi may be programs of one. */
    const int n = number_from("SLURM_STEP_NUM_TASKS");
    return (struct sheaf__launch){
        n > 1 ? n : 1, n > 1 ? rank_from("PMIX_RANK") : 0,
        "it has not joined srun's PMIx; use that MPI's mpirun or mpiexec, or another kind of "
        "srun --mpi (srun --mpi=list names them)"};
}
