/* Ranges of addresses for buffers, the regions in them, and numbers of objects. */
#include "ggml/memory.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "base/arith.h"
#include "base/array.h"
#include "base/hash.h"
#include "base/pages.h"
#include "ggml/translate.h"

struct gg_memory *gg_memory_new(size_t size, uint64_t number, size_t device) {
    struct gg_memory *m = calloc(1, sizeof *m);
    if (!m) return NULL;
    /* pages take memory when they are written */
    void *base = mmap(NULL, size ? size : 1, PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (base == MAP_FAILED) {
        free(m);
        return NULL;
    }
    m->base = base;
    m->size = size;
    m->number = number;
    m->device = device;
    return m;
}

void gg_memory_free(struct gg_memory *m) {
    munmap(m->base, m->size ? m->size : 1);
    for (size_t i = 0; i < m->n_regions; i++) free(m->regions[i]);
    free(m->regions);
    free(m->index);
    free(m);
}

bool gg_number_take(struct gg_numbers *all, struct gg_region *r) {
    if (r->object != GG_NO_OBJECT) return true;
    if (!all->n_unused) {
        /* with room for all numbers, a return cannot fail */
        if (!sheaf__grow(&all->unused, &all->cap, (size_t)all->n + 1, sizeof *all->unused))
            return false;
        all->unused[all->n_unused++] = all->n++;
    }
    r->object = all->unused[--all->n_unused];
    return true;
}

void gg_number_return(struct gg_numbers *all, struct gg_region *r) {
    if (r->object != GG_NO_OBJECT) all->unused[all->n_unused++] = (uint32_t)r->object;
    r->object = GG_NO_OBJECT;
}

static size_t slot_of(const struct gg_memory *m, size_t offset) {
    return (size_t)sheaf__mix(0, offset / 32) & (m->n_index - 1);
}

static struct gg_region *find_at(const struct gg_memory *m, size_t offset) {
    if (!m->n_index) return NULL;
    for (size_t i = slot_of(m, offset); m->index[i]; i = (i + 1) & (m->n_index - 1))
        if (m->regions[m->index[i] - 1]->offset == offset) return m->regions[m->index[i] - 1];
    return NULL;
}

static void enter(struct gg_memory *m, size_t region) {
    size_t i = slot_of(m, m->regions[region]->offset);
    while (m->index[i]) i = (i + 1) & (m->n_index - 1);
    m->index[i] = (uint32_t)region + 1;
}

static struct gg_region *add(struct gg_memory *m, size_t offset) {
    if (!sheaf__grow(&m->regions, &m->cap_regions, m->n_regions + 1, sizeof *m->regions))
        return NULL;
    if (2 * (m->n_regions + 1) > m->n_index) {
        const size_t n = m->n_index ? 2 * m->n_index : 64;
        uint32_t *index = calloc(n, sizeof *index);
        if (!index) return NULL;
        free(m->index);
        m->index = index;
        m->n_index = n;
        for (size_t i = 0; i < m->n_regions; i++) enter(m, i);
    }
    struct gg_region *r = calloc(1, sizeof *r);
    if (!r) return NULL;
    r->offset = offset;
    r->object = GG_NO_OBJECT;
    r->written = m->cleared != 0 || m->written;
    m->regions[m->n_regions++] = r;
    enter(m, m->n_regions - 1);
    return r;
}

static size_t offset_of(const struct gg_memory *m, const struct gg_tensor *root) {
    return (size_t)((char *)root->data - m->base);
}

struct gg_region *gg_region_find(const struct gg_memory *m, const struct gg_tensor *root) {
    return find_at(m, offset_of(m, root));
}

bool gg_region_is_away(const struct gg_region *r) { return r->bound || r->file; }

static bool overlaps(const struct gg_region *r, size_t offset, size_t bytes) {
    return r->offset < offset + bytes && offset < r->offset + r->bytes;
}

struct gg_region *gg_region_around(const struct gg_memory *m, size_t offset, size_t bytes) {
    struct gg_region *found = NULL;
    for (size_t i = 0; i < m->n_regions && !(found && gg_region_is_away(found)); i++) {
        struct gg_region *r = m->regions[i];
        const size_t from = offset - r->offset;
        if (offset >= r->offset && from <= r->bytes && bytes <= r->bytes - from) found = r;
    }
    return found;
}

struct gg_region *gg_region_over(const struct gg_memory *m, size_t offset, size_t bytes,
                                 const struct gg_region *but) {
    for (size_t i = 0; i < m->n_regions; i++) {
        struct gg_region *r = m->regions[i];
        if (r != but && gg_region_is_away(r) && overlaps(r, offset, bytes)) return r;
    }
    return NULL;
}

size_t gg_bytes_of(const struct gg_host *host, const struct gg_tensor *t) {
    const int type = gg_type_of(host, t->type);
    if (type < 0) return 0;
    return sheaf_row_size((enum sheaf_type)type, t->ne[0]) *
           (size_t)(t->ne[1] * t->ne[2] * t->ne[3]);
}

static bool describes(const struct gg_region *r, enum sheaf_type type, const int64_t *ne) {
    return r->type == type && !memcmp(r->ne, ne, sizeof r->ne);
}

struct gg_region *gg_region_of(struct gg_memory *m, const struct gg_host *host,
                               const struct gg_tensor *root, struct gg_region **other) {
    const int type = gg_type_of(host, root->type);
    *other = NULL;
    if (type < 0 || !root->data || offset_of(m, root) > m->size) return NULL;
    const size_t at = offset_of(m, root), bytes = gg_bytes_of(host, root);
    struct gg_region *r = find_at(m, at);
    const bool is_used = r && (r->object != GG_NO_OBJECT || r->file);
    if (is_used && !describes(r, (enum sheaf_type)type, root->ne))
        *other = r;
    else if (!r || !gg_region_is_away(r))
        *other = gg_region_over(m, at, bytes, r);
    if (*other) return NULL;
    if (!r) r = add(m, at);
    if (!r) return NULL;
    r->type = (enum sheaf_type)type;
    memcpy(r->ne, root->ne, sizeof r->ne);
    r->bytes = bytes;
    memcpy(r->name, root->name, sizeof r->name);
    return r;
}

/* An empty one may lie where another begins, and needs no object. */
bool gg_is_static(const struct gg_host *host, const struct gg_tensor *t) {
    const struct gg_tensor *root = gg_root(t);
    for (int i = 0; i < GG_MAX_DIMS; i++)
        if (root->ne[i] == 0) return false;
    return root->op == 0 && root->buffer &&
           gg_host_rest(host, root->buffer)->usage != GG_USAGE_COMPUTE && gg_is_dense(host, root);
}

/* Compute buffers have no regions: a program has memory of its own on the ranks. */
size_t gg_unbound_bytes(const struct gg_host *host, const struct gg_memory *m) {
    size_t bytes = m->size;
    if (gg_host_rest(host, m->buffer)->usage == GG_USAGE_COMPUTE) return 0;
    for (size_t i = 0; i < m->n_regions; i++)
        if (m->regions[i]->bound) bytes -= sheaf__min_size(bytes, m->regions[i]->bytes);
    return bytes;
}

void gg_shadow_drop(const struct gg_memory *m, size_t offset, size_t bytes) {
    sheaf__pages_advise(m->base + offset, bytes, MADV_DONTNEED);
}
