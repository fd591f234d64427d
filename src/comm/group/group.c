/* Groups: their making, their end, and their counters.
 *
 * A group is made by all ranks together or by none: each step that can fail on one rank ends in a
 * vote. The memory of a host's members is one mapping, first touched by the ranks that use it. */
#include <stdio.h>
#include <stdlib.h>

#include "base/hash.h"
#include "base/settings.h"
#include "base/sized.h"
#include "comm/group/comm_thread.h"
#include "comm/measure/measure.h"
#include "comm/testing.h"
#include "comm/transport/comm.h"
#include "comm/transport/transport.h"

enum {
    DEFAULT_SLOT = 256 * 1024,
    MIN_SLOT = 4096,
    MAX_SLOT = 64 * 1024 * 1024,
    SLOT_A_MEMBER = SHEAF__ALIGN * sizeof(float), /* a chunk holds a part of every member */
    MAX_MEMBERS = 4096,
    SPINS = 20000, /* about 0.5 ms; then others may have the core */
    SPINS_CROWDED = 64,
};
static const char WHAT[] = "create group";

int sheaf_comm_n_members(const struct sheaf_comm *comm) { return comm->n; }
int sheaf_comm_n_local(const struct sheaf_comm *comm) { return comm->n_local; }
int sheaf_comm_local_member(const struct sheaf_comm *comm, int i) {
    return i >= 0 && i < comm->n_local ? comm->local[i] : -1;
}
const char *sheaf_comm_describe(const struct sheaf_comm *comm) { return comm->text; }

/* ---- making ---- */

static enum sheaf_status check_list(const int *member_rank, int n,
                                    const struct sheaf_comm_params *params, size_t *slot,
                                    enum sheaf_type *wire) {
    const int size = sheaf_world_size();
    if (!member_rank || n < 1 || n > MAX_MEMBERS)
        return sheaf_set_error(SHEAF_STATUS_INVALID, "%s: %d members; it takes 1 to %d", WHAT, n,
                               MAX_MEMBERS);
    for (int i = 0; i < n; i++) {
        if (member_rank[i] < 0 || member_rank[i] >= size)
            return sheaf_set_error(SHEAF_STATUS_INVALID,
                                   "%s: member %d is on rank %d, but there are %d ranks", WHAT, i,
                                   member_rank[i], size);
        if (i && member_rank[i] < member_rank[i - 1])
            return sheaf_set_error(SHEAF_STATUS_INVALID,
                                   "%s: member %d is on rank %d after one on rank %d; list the "
                                   "members by rank",
                                   WHAT, i, member_rank[i], member_rank[i - 1]);
    }
    *slot = params->slot_bytes ? params->slot_bytes : DEFAULT_SLOT;
    if (*slot < MIN_SLOT || *slot > MAX_SLOT)
        return sheaf_set_error(SHEAF_STATUS_INVALID, "%s: slots of %zu bytes; they take %d to %d",
                               WHAT, *slot, MIN_SLOT, MAX_SLOT);
    if (*slot < (size_t)n * SLOT_A_MEMBER) *slot = (size_t)n * SLOT_A_MEMBER;
    *slot = sheaf__align_up(*slot, SHEAF__LINE);
    return sheaf__codec_type(params->wire_type, wire);
}

/* All ranks passed the same: compares a hash with rank 0's. */
static enum sheaf_status same_everywhere(enum sheaf_status mine, const int *member_rank, int n,
                                         size_t slot, enum sheaf_type wire) {
    const int size = sheaf_world_size();
    if (size == 1) return mine;
    uint8_t hash[8] = {0}, *all = malloc((size_t)size * sizeof hash);
    if (!mine) {
        const uint64_t settings[] = {slot, (uint64_t)wire};
        uint64_t h = sheaf__hash_bytes(0, member_rank, (size_t)n * sizeof *member_rank);
        sheaf__put_le(hash, sheaf__hash_bytes(h, settings, sizeof settings), sizeof hash);
    }
    if (!mine && !all) mine = sheaf_set_error(SHEAF_STATUS_ALLOC_FAILED, "%s: out of memory", WHAT);
    enum sheaf_status st = sheaf_world_agree(mine, WHAT);
    if (!st) st = sheaf_world_all_gather(hash, sizeof hash, all, WHAT);
    for (int r = 1; r < size && !st; r++)
        if (memcmp(all, all + (size_t)r * sizeof hash, sizeof hash))
            st = sheaf_set_error(SHEAF_STATUS_INVALID,
                                 "%s: %s and %s pass different lists of members, slot sizes or "
                                 "wire types (SHEAF_COMM_WIRE)",
                                 WHAT, sheaf__rank_text(0), sheaf__rank_text(r));
    if (st && !sheaf_world_failed() && sheaf__world()->reporter < 0)
        sheaf__world()->reporter = 0; /* all ranks have found the same */
    free(all);
    return st;
}

static enum sheaf_status place_members(struct sheaf_comm *comm, const int *member_rank) {
    const struct sheaf__world *w = sheaf__world();
    const size_t n = (size_t)comm->n;
    comm->rank_of = calloc(n, sizeof *comm->rank_of);
    comm->local = calloc(n, sizeof *comm->local);
    comm->order = calloc(n, sizeof *comm->order);
    comm->host_of = calloc(n, sizeof *comm->host_of);
    comm->place = calloc(n, sizeof *comm->place);
    comm->hosts = calloc(n, sizeof *comm->hosts);
    if (!comm->rank_of || !comm->local || !comm->order || !comm->host_of || !comm->place ||
        !comm->hosts)
        return sheaf_set_error(SHEAF_STATUS_ALLOC_FAILED, "%s: out of memory", WHAT);
    memcpy(comm->rank_of, member_rank, n * sizeof *member_rank);
    comm->here = -1;
    for (int m = 0; m < comm->n; m++) comm->host_of[m] = -1;
    int at = 0;
    for (int m = 0; m < comm->n; m++) {
        if (comm->host_of[m] >= 0) continue;
        const int rank = comm->rank_of[m], share = w->share_of ? w->share_of[rank] : 0;
        struct sheaf__host *h = &comm->hosts[comm->n_hosts];
        *h = (struct sheaf__host){.leader_rank = rank, .first = at};
        for (int i = m; i < comm->n; i++) {
            if ((w->share_of ? w->share_of[comm->rank_of[i]] : 0) != share) continue;
            comm->host_of[i] = comm->n_hosts;
            comm->place[i] = h->n++;
            comm->order[at++] = i;
        }
        comm->n_hosts++;
    }
    for (int m = 0; m < comm->n; m++) {
        if (comm->rank_of[m] != w->rank) continue;
        comm->local[comm->n_local++] = m;
        comm->here = comm->host_of[m];
    }
    if (comm->here >= 0) comm->n_here = comm->hosts[comm->here].n;
    return SHEAF_STATUS_SUCCESS;
}

/* Members of one rank have a thread each, and the first one of a host exchanges data with others.
 */
static enum sheaf_status check_threads(const struct sheaf_comm *comm) {
    if (comm->n_hosts < 2 || comm->n_local < 2 || !sheaf__world()->one_thread)
        return SHEAF_STATUS_SUCCESS;
    return sheaf_set_error(SHEAF_STATUS_UNSUPPORTED,
                           "%s: %d members of one rank, in a group over %d hosts, need MPI to be "
                           "initialized with MPI_THREAD_SERIALIZED",
                           WHAT, comm->n_local, comm->n_hosts);
}

/* Where members of a host have to meet, steps are as long as slots allow. Where they have not,
 * short chunks keep what is in flight in the caches: over veth (2026-11-21) 1 and 4 MiB take 0.35
 * ns a byte in chunks of 48 KiB, four of them in flight, and 0.65 in chunks of 512 KiB. */
static void choose_chunks(struct sheaf_comm *comm) {
    enum { STEP = 2 * SHEAF__ALIGN * sizeof(float) }; /* a half is aligned, too */
    const size_t hosts = (size_t)comm->n_hosts, parts = hosts > 2 ? hosts : 1;
    comm->direct = hosts > 1 && comm->n_hosts == comm->n;
    const size_t room = comm->direct ? comm->slot_bytes : comm->slot_bytes / hosts;
    comm->max_part_bytes = room < STEP ? STEP : sheaf__min_size(SHEAF__EAGER, room) / STEP * STEP;
    comm->part_bytes = comm->max_part_bytes;
    comm->chunk_bytes = comm->direct ? parts * comm->max_part_bytes : comm->slot_bytes;
}

static enum sheaf_status make_members(struct sheaf_comm *comm) {
    if (!comm->n_local) return SHEAF_STATUS_SUCCESS;
    const size_t n_src = (size_t)(comm->n_here > comm->n_hosts ? comm->n_here : comm->n_hosts);
    comm->members = aligned_alloc(SHEAF__LINE, (size_t)comm->n_local * sizeof *comm->members);
    if (!comm->members)
        return sheaf_set_error(SHEAF_STATUS_ALLOC_FAILED, "%s: out of memory", WHAT);
    memset(comm->members, 0, (size_t)comm->n_local * sizeof *comm->members);
    for (int i = 0; i < comm->n_local; i++) {
        struct sheaf__member *self = &comm->members[i];
        self->sources = calloc(n_src, sizeof *self->sources);
        self->targets = calloc((size_t)comm->n_here, sizeof *self->targets);
        self->views = calloc((size_t)comm->n_here * SHEAF__REGIONS, sizeof *self->views);
        if (!self->sources || !self->targets || !self->views)
            return sheaf_set_error(SHEAF_STATUS_ALLOC_FAILED, "%s: out of memory", WHAT);
    }
    const bool leads = comm->place[comm->local[0]] == 0;
    return comm->n_hosts > 1 && leads ? sheaf__wire_new(comm) : SHEAF_STATUS_SUCCESS;
}

static enum sheaf_status map_memory(struct sheaf_comm *comm) {
    const int first = comm->n_local ? comm->hosts[comm->here].leader_rank : -1;
    int n_ranks = 0, last = -1;
    for (int i = 0; i < comm->n_here; i++) {
        const int rank = sheaf__rank_at(comm, i);
        n_ranks += rank != last;
        last = rank;
    }
    const size_t n = (size_t)comm->n_here, regions = n * sizeof(struct sheaf__cell),
                 probe = sheaf__align_up(regions + n * SHEAF__REGIONS * sizeof *comm->regions,
                                         SHEAF__LINE),
                 cells = sheaf__align_up(probe + sizeof *comm->probe, 4096);
    const size_t sums = comm->n_hosts > 1 ? 2 : 0;
    comm->map_bytes = comm->n_local ? cells + (2 * n + 2 + sums) * comm->slot_bytes : 0;
    enum sheaf_status st = sheaf__shared_map(comm->map_bytes, first, n_ranks, WHAT, &comm->map);
    if (st || !comm->map) return st;
    comm->cells = comm->map;
    comm->regions = (void *)((uint8_t *)comm->map + regions);
    comm->probe = (void *)((uint8_t *)comm->map + probe);
    comm->slots = (uint8_t *)comm->map + cells;
    comm->results = comm->slots + 2 * n * comm->slot_bytes;
    comm->sums = comm->results + 2 * comm->slot_bytes;
    /* The first to touch a page decides where it lies, and pays for it: not the first token. */
    for (int i = 0; i < comm->n_local; i++)
        memset(sheaf__slot(comm, comm->place[comm->local[i]], 0), 0, 2 * comm->slot_bytes);
    if (comm->place[comm->local[0]] == 0) memset(comm->results, 0, (2 + sums) * comm->slot_bytes);
    return SHEAF_STATUS_SUCCESS;
}

/* A waiting member must not occupy the core of a member that it waits for: that happens where more members than CPUs
 * meet, by the bindings of the ranks (hosts of a simulated cluster are bound to a core each). */
static enum sheaf_status choose_spins(struct sheaf_comm *comm) {
    struct sheaf__world *w = sheaf__world();
    const int host = sheaf_world_host_index(w->rank);
    struct sheaf__cpus own;
    int *members = calloc((size_t)w->size, sizeof *members);
    enum sheaf_status st = SHEAF_STATUS_SUCCESS;
    if (!members) st = sheaf_set_error(SHEAF_STATUS_ALLOC_FAILED, "%s: out of memory", WHAT);
    if (!w->cpus) sheaf__cpus_here(&own);
    for (int m = 0; m < comm->n && !st; m++)
        if (sheaf_world_host_index(comm->rank_of[m]) == host) members[comm->rank_of[m]]++;
    if (!st && sheaf__cpus_each(w->cpus ? w->cpus : &own, members, w->size, w->rank) < 1)
        w->crowded = true;
    free(members);
    comm->spins = w->crowded ? SPINS_CROWDED : SPINS;
    return sheaf_world_agree(st, WHAT);
}

static void set_levels(struct sheaf_comm *comm) {
    int most = 0;
    for (int h = 0; h < comm->n_hosts; h++)
        most = comm->hosts[h].n > most ? comm->hosts[h].n : most;
    comm->levels[SHEAF_COMM_LEVEL_SHARED].link.n = most;
    comm->levels[SHEAF_COMM_LEVEL_HOSTS].link.n = comm->n_hosts;
    comm->levels[SHEAF_COMM_LEVEL_HOSTS].wire_type = comm->wire_type;
}

static void write_text(struct sheaf_comm *comm) {
    const int most = comm->levels[SHEAF_COMM_LEVEL_SHARED].link.n;
    char shm[24] = "", mpi[32] = "";
    if (most > 1) snprintf(shm, sizeof shm, "shm(%d)", most);
    if (comm->n_hosts > 1) snprintf(mpi, sizeof mpi, "mpi(%d hosts)", comm->n_hosts);
    snprintf(comm->text, sizeof comm->text, "%s%s%s", shm, shm[0] && mpi[0] ? "+" : "", mpi);
    if (!comm->text[0]) snprintf(comm->text, sizeof comm->text, "self");
}

/* The steps that a rank takes alone. */
static enum sheaf_status make_group(struct sheaf_comm *comm, const int *member_rank) {
    enum sheaf_status st = place_members(comm, member_rank);
    if (!st) st = check_threads(comm);
    if (!st) choose_chunks(comm);
    return st ? st : make_members(comm);
}

/* The steps that all ranks take together. */
static enum sheaf_status join_group(struct sheaf_comm *comm) {
    enum sheaf_status st = map_memory(comm);
    if (!st) st = choose_spins(comm);
    if (st) return st;
    set_levels(comm);
    write_text(comm);
    return comm->n_hosts > 1 ? sheaf__measure_hosts(comm) : st;
}

enum sheaf_status sheaf_comm_new(const int *member_rank, int n_members,
                                 const struct sheaf_comm_params *params, struct sheaf_comm **out) {
    struct sheaf_comm_params p = {.size = sizeof p};
    struct sheaf__world *w = sheaf__world();
    size_t slot = 0;
    long delay = 0;
    *out = NULL;
    enum sheaf_type wire = SHEAF_TYPE_F32;
    enum sheaf_status st = params ? sheaf__sized_take(params, &p, sizeof p, "sheaf_comm_params")
                                  : SHEAF_STATUS_SUCCESS;
    if (!st) st = check_list(member_rank, n_members, &p, &slot, &wire);
    if (!st) st = sheaf__setting_int(SHEAF__SET_COMM_DELAY, &delay);
    if ((st = same_everywhere(st, member_rank, n_members, slot, wire))) return st;

    const uint32_t id = w->n_groups++; /* counts alike on every rank, whatever fails below */
    struct sheaf_comm *comm = calloc(1, sizeof *comm);
    if (!comm) {
        st = sheaf_set_error(SHEAF_STATUS_ALLOC_FAILED, "%s: out of memory", WHAT);
    } else {
        comm->n = n_members;
        comm->slot_bytes = slot;
        comm->wire_type = wire;
        comm->id = id;
        comm->delay_ns = (uint64_t)delay * 1000u;
        comm->timeout_ns = p.timeout_ms > 0 ? (uint64_t)p.timeout_ms * 1000000u
                                            : w->limit_ns[SHEAF_PHASE_COLLECTIVE];
        if (comm->timeout_ns > w->group_limit_ns) w->group_limit_ns = comm->timeout_ns;
        st = make_group(comm, member_rank);
    }
    st = sheaf_world_agree(st, WHAT);
    if (!st) st = join_group(comm);
    if (st)
        sheaf_comm_free(comm);
    else
        *out = comm;
    return st;
}

void sheaf_comm_free(struct sheaf_comm *comm) {
    if (!comm) return;
    for (int i = 0; comm->members && i < comm->n_local; i++) {
        sheaf__comm_thread_free(comm->members[i].pending);
        sheaf__regions_free(comm, &comm->members[i]);
        free(comm->members[i].sources);
        free(comm->members[i].targets);
    }
    sheaf__wire_free(comm);
    sheaf__shared_unmap(comm->map, comm->map_bytes);
    free(comm->members);
    free(comm->rank_of);
    free(comm->local);
    free(comm->order);
    free(comm->host_of);
    free(comm->place);
    free(comm->hosts);
    free(comm);
}

void sheaf__comm_start_at(struct sheaf_comm *comm, uint64_t number) {
    for (int i = 0; i < comm->n_local; i++) {
        struct sheaf__member *self = &comm->members[i];
        self->step = self->sequence = number;
        if (!comm->cells) continue;
        struct sheaf__cell *cell = &comm->cells[comm->place[comm->local[i]]];
        for (int k = 0; k < 2; k++) atomic_store(&cell->line[k].ready, number);
        atomic_store(&cell->done, number);
        atomic_store(&cell->result, number);
    }
}

void sheaf_comm_get_stats(const struct sheaf_comm *comm, int member, enum sheaf_comm_kind kind,
                          struct sheaf_comm_stats *stats) {
    const struct sheaf__member *self = sheaf__find_member(comm, member);
    *stats = (struct sheaf_comm_stats){0};
    if (!self || (unsigned)kind >= SHEAF_COMM_KIND_COUNT) return;
    stats->count = atomic_load_explicit(&self->stats[kind].count, memory_order_relaxed);
    stats->bytes = atomic_load_explicit(&self->stats[kind].bytes, memory_order_relaxed);
    stats->time_ns = atomic_load_explicit(&self->stats[kind].time_ns, memory_order_relaxed);
    stats->wait_ns = atomic_load_explicit(&self->stats[kind].wait_ns, memory_order_relaxed);
    stats->hidden_ns = atomic_load_explicit(&self->stats[kind].hidden_ns, memory_order_relaxed);
    stats->stalled_ns = atomic_load_explicit(&self->stats[kind].stalled_ns, memory_order_relaxed);
}
