/* Registered memory: the other members of a host read data there where a member has written them.
 *
 * A region is an anonymous file of its owner, which publishes its process, descriptor and a serial
 * number in the group's shared memory. The others map it when an arrival names it for the first
 * time, through /proc as in shared.c. Nothing has a name in a file system, and nothing is left when
 * processes end. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/file.h"
#include "comm/transport/pending.h"
#include "comm/transport/transport.h"

/* Do all members of this host live in this process? */
static bool single_process(const struct sheaf_comm *comm) { return comm->n_here == comm->n_local; }

static void drop(struct sheaf__view *v) {
    if (v->mapped) munmap(v->base, v->bytes);
    *v = (struct sheaf__view){0};
}

static struct sheaf__region *entry(const struct sheaf_comm *comm, int place, size_t i) {
    return &comm->regions[(size_t)place * SHEAF__REGIONS + i];
}

enum sheaf_status sheaf_comm_alloc(struct sheaf_comm *comm, int member, size_t bytes, void **out) {
    struct sheaf__member *self = sheaf__find_member(comm, member);
    size_t i = 0;
    *out = NULL;
    if (!self)
        return sheaf_set_error(SHEAF_STATUS_INVALID,
                               "comm alloc: member %d is not driven by rank %d", member,
                               sheaf_world_rank());
    if (self->pending) { /* its thread looks for regions */
        const enum sheaf_status st = sheaf__pending_settle(self->pending);
        if (st) return st;
    }
    while (i < SHEAF__REGIONS && self->own[i].base) i++;
    if (i == SHEAF__REGIONS)
        return sheaf_set_error(SHEAF_STATUS_UNSUPPORTED,
                               "comm alloc: member %d has %d registered buffers already", member,
                               SHEAF__REGIONS);
    if (bytes > SIZE_MAX / 2)
        return sheaf_set_error(SHEAF_STATUS_INVALID, "comm alloc: %zu bytes", bytes);
    const size_t size = sheaf__whole_pages(bytes ? bytes : 1);
    const bool alone = single_process(comm);
    const int fd = alone ? -1 : sheaf__shared_file(size);
    void *p = alone || fd >= 0 ? sheaf__shared_view(fd, size) : NULL;
    if (!p) {
        sheaf_set_error(SHEAF_STATUS_ALLOC_FAILED, "comm alloc: cannot get %zu bytes to share: %s",
                        size, sheaf__errno_text(errno));
        if (fd >= 0) close(fd);
        return SHEAF_STATUS_ALLOC_FAILED;
    }
    self->own[i] = (struct sheaf__view){++self->n_regions, p, size, true};
    self->own_fd[i] = fd;
    struct sheaf__region *r = entry(comm, comm->place[member], i);
    r->pid = (uint64_t)getpid();
    r->fd = (uint64_t)fd;
    r->address = (uint64_t)(uintptr_t)p;
    r->bytes = size;
    atomic_store_explicit(&r->serial, self->n_regions, memory_order_release);
    *out = p;
    return SHEAF_STATUS_SUCCESS;
}

static void release(struct sheaf_comm *comm, struct sheaf__member *self, size_t i) {
    if (!self->own[i].base) return;
    const int place = comm->place[comm->local[self - comm->members]];
    atomic_store_explicit(&entry(comm, place, i)->serial, 0, memory_order_relaxed);
    if (self->own_fd[i] >= 0) close(self->own_fd[i]);
    drop(&self->own[i]);
}

void sheaf_comm_dealloc(struct sheaf_comm *comm, int member, void *memory) {
    struct sheaf__member *self = sheaf__find_member(comm, member);
    if (self && self->pending) sheaf__pending_settle(self->pending);
    if (sheaf_world_failed()) return;
    for (size_t i = 0; self && i < SHEAF__REGIONS; i++)
        if (self->own[i].base == memory) release(comm, self, i);
}

void sheaf__regions_free(struct sheaf_comm *comm, struct sheaf__member *self) {
    for (size_t i = 0; i < SHEAF__REGIONS; i++) release(comm, self, i);
    for (size_t i = 0; self->views && i < (size_t)comm->n_here * SHEAF__REGIONS; i++)
        drop(&self->views[i]);
    free(self->views);
}

void sheaf__find_region(struct sheaf__call *c, const void *data, size_t bytes) {
    const uintptr_t at = (uintptr_t)data;
    for (size_t i = 0; i < SHEAF__REGIONS; i++) {
        const struct sheaf__view *v = &c->self->own[i];
        const uintptr_t base = (uintptr_t)v->base;
        if (!base || at < base || at - base > v->bytes || bytes > v->bytes - (at - base)) continue;
        c->region = i + 1;
        c->offset = at - base;
        return;
    }
}

bool sheaf__any_region(const struct sheaf__call *c, uint64_t step) {
    const struct sheaf_comm *comm = c->comm;
    uint64_t any = 0;
    for (int p = 0; p < comm->n_here; p++) any |= comm->cells[p].line[step & 1].region;
    return any != 0;
}

static __attribute__((noinline)) bool map_view(struct sheaf__call *c, int place,
                                               const struct sheaf__region *r, uint64_t serial,
                                               struct sheaf__view *v) {
    drop(v);
    if (r->pid == (uint64_t)getpid()) {
        *v = (struct sheaf__view){serial, (uint8_t *)(uintptr_t)r->address, r->bytes, false};
        return true;
    }
    char path[SHEAF__SHARED_PATH_BYTES], doing[256];
    sheaf__shared_path(r->pid, r->fd, path);
    const int fd = sheaf__shared_open(r->pid, r->fd, r->bytes);
    void *p = fd < 0 ? NULL : sheaf__shared_view(fd, r->bytes);
    const int why = errno;
    if (fd >= 0) close(fd);
    if (p) {
        *v = (struct sheaf__view){serial, p, r->bytes, true};
        return true;
    }
    const struct sheaf_comm *comm = c->comm;
    sheaf__describe_call(c, doing, sizeof doing);
    sheaf__fail(SHEAF_STATUS_IO, "%s: cannot map the registered memory of %s (%s): %s", doing,
                sheaf__rank_text(sheaf__rank_at(comm, place)), path, sheaf__errno_text(why));
    return false;
}

/* The member at `place` names memory that there is not. */
static __attribute__((noinline)) uint8_t *refuse(const struct sheaf__call *c, int place,
                                                 const char *what, uint64_t named, size_t n) {
    const struct sheaf_comm *comm = c->comm;
    char doing[256];
    sheaf__describe_call(c, doing, sizeof doing);
    sheaf__fail(SHEAF_STATUS_PEER, "%s: %s names %s %llu of %zu as its registered memory", doing,
                sheaf__rank_text(sheaf__rank_at(comm, place)), what, (unsigned long long)named, n);
    return NULL;
}

uint8_t *sheaf__data_of(struct sheaf__call *c, int place, uint64_t step, size_t bytes) {
    const struct sheaf_comm *comm = c->comm;
    const uint64_t region = comm->cells[place].line[step & 1].region;
    if (!region) return sheaf__slot(comm, place, step);
    if (region > SHEAF__REGIONS) return refuse(c, place, "region", region, SHEAF__REGIONS);
    const uint64_t offset = comm->cells[place].line[step & 1].offset;
    if (place == c->place) return c->self->own[region - 1].base + offset;
    const struct sheaf__region *r = entry(comm, place, region - 1);
    const uint64_t serial = atomic_load_explicit(&r->serial, memory_order_acquire);
    if (!serial) return refuse(c, place, "region", region, SHEAF__REGIONS);
    struct sheaf__view *v = &c->self->views[(size_t)place * SHEAF__REGIONS + region - 1];
    if (v->serial != serial && !map_view(c, place, r, serial, v)) return NULL;
    if (offset <= v->bytes && bytes <= v->bytes - offset) return v->base + offset;
    return refuse(c, place, "byte", offset, v->bytes);
}
