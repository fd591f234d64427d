/* Owns the answers given so far.
 *
 * A rank can ask its own devices only. Where every rank has a device of each member's kind, the
 * answer is the same everywhere, for all have the same library; a rank that drives no member of a
 * kind asks its own device of that kind. Where kinds differ (a rank with a GPU, another without),
 * each rank asks its own and all agree; else two ranks would cut a graph differently. The scheduler
 * asks for every node of every graph, so answers are kept, by what an op is and not by which tensor
 * it is. */
#include "meta/support.h"

#include <ctype.h>
#include <stdlib.h>
#include <string.h>

#include "base/hash.h"
#include "sheaf/world.h"

enum { ROOM = 8192, MOST_ANSWERS = ROOM / 2 }; /* fixed: all ranks forget at the same time */

struct answer {
    uint64_t key; /* 0: free */
    bool yes;
};

struct meta_support {
    sheaf_backend_dev_t *asked; /* [n_asked] of this rank */
    int n_asked;
    bool is_local;
    struct answer *answers; /* [ROOM] open addressed; NULL if is_local */
    size_t used;
    uint8_t *votes; /* [ranks] */
};

/* "CUDA" of "CUDA0@3". */
static size_t kind_length(const char *name) {
    size_t n = 0;
    while (name[n] && !isdigit((unsigned char)name[n]) && name[n] != '@') n++;
    return n;
}

bool sheaf__meta_same_kind(sheaf_backend_dev_t a, sheaf_backend_dev_t b) {
    const char *x = sheaf_backend_dev_name(a), *y = sheaf_backend_dev_name(b);
    const size_t n = kind_length(x);
    return n == kind_length(y) && !strncmp(x, y, n);
}

/* The devices of the members and of the job. */
struct known {
    const sheaf_backend_dev_t *members, *devices;
    const int *member_rank;
    int n_members;
    size_t n_devices;
};

/* One of that rank and of the kind of member i; NULL: it has none. */
static sheaf_backend_dev_t device_like(const struct known *k, int i, int rank) {
    for (int j = 0; j < k->n_members; j++)
        if (k->member_rank[j] == rank && sheaf__meta_same_kind(k->members[i], k->members[j]))
            return k->members[j];
    for (size_t j = 0; j < k->n_devices; j++)
        if (sheaf_world_device_rank(k->devices[j]) == rank &&
            sheaf__meta_same_kind(k->members[i], k->devices[j]))
            return k->devices[j];
    return NULL;
}

static bool is_everywhere(const struct known *k, int i) {
    for (int r = 0; r < sheaf_world_size(); r++)
        if (!device_like(k, i, r)) return false;
    return true;
}

static bool is_first_of_its_kind(const struct known *k, int i) {
    for (int j = 0; j < i; j++)
        if (sheaf__meta_same_kind(k->members[i], k->members[j])) return false;
    return true;
}

/* Own members, and of a kind that only others have as members an own device. */
static void choose_asked(struct meta_support *s, const struct known *k) {
    const int me = sheaf_world_rank();
    for (int i = 0; i < k->n_members; i++) {
        const bool is_own = k->member_rank[i] == me;
        sheaf_backend_dev_t like = is_own ? k->members[i] : device_like(k, i, me);
        bool is_member = false;
        for (int j = 0; j < k->n_members && like; j++)
            is_member = is_member || k->members[j] == like;
        if (like && (is_own || (!is_member && is_first_of_its_kind(k, i))))
            s->asked[s->n_asked++] = like;
    }
}

enum sheaf_status sheaf__meta_support_new(const sheaf_backend_dev_t *members, const int *rank,
                                          int n, struct meta_support **out) {
    struct known k = {.members = members, .member_rank = rank, .n_members = n};
    *out = NULL;
    /* one rank drives all members; the job's list would keep every module loaded */
    if (sheaf_world_size() > 1) {
        const enum sheaf_status st = sheaf_world_devices(&k.devices, &k.n_devices);
        if (st) return st;
    }
    struct meta_support *s = calloc(1, sizeof *s);
    if (!s) goto full;
    s->asked = calloc((size_t)n, sizeof(sheaf_backend_dev_t));
    if (!s->asked) goto full;
    choose_asked(s, &k);
    s->is_local = true;
    for (int i = 0; i < n && s->is_local; i++)
        s->is_local = !is_first_of_its_kind(&k, i) || is_everywhere(&k, i);
    if (!s->is_local) {
        s->answers = calloc(ROOM, sizeof *s->answers);
        s->votes = malloc((size_t)sheaf_world_size());
        if (!s->answers || !s->votes) goto full;
    }
    *out = s;
    return SHEAF_STATUS_SUCCESS;
full:
    sheaf__meta_support_free(s);
    return sheaf_set_error(SHEAF_STATUS_ALLOC_FAILED, "meta device: out of memory");
}

void sheaf__meta_support_free(struct meta_support *s) {
    if (!s) return;
    free((void *)s->asked);
    free(s->answers);
    free(s->votes);
    free(s);
}

static bool ask_own(const struct meta_support *s, const struct sheaf_tensor *op) {
    for (int i = 0; i < s->n_asked; i++) {
        if (!sheaf_backend_dev_supports_op(s->asked[i], op)) return false;
    }
    return true;
}

static uint64_t mix_layout(uint64_t h, const struct sheaf_tensor *t) {
    h = sheaf__mix(sheaf__mix(h, (uint64_t)t->type + 1), t->view_offs);
    for (int i = 0; i < SHEAF_MAX_DIMS; i++)
        h = sheaf__mix(sheaf__mix(h, (uint64_t)t->ne[i]), t->nb[i]);
    return h;
}

/* Equal for ops that no device tells apart: some ask for flags, and where a view begins. */
static uint64_t key_of(const struct sheaf_tensor *op) {
    uint64_t h = mix_layout(sheaf__mix(0, (uint64_t)op->op), op);
    h = sheaf__mix(h, (uint32_t)op->flags);
    for (int i = 0; i < SHEAF_MAX_OP_PARAMS; i++) h = sheaf__mix(h, (uint32_t)op->op_params[i]);
    for (int i = 0; i < SHEAF_MAX_SRC; i++)
        h = op->src[i] ? mix_layout(h, op->src[i]) : sheaf__mix(h, 0);
    return h ? h : 1;
}

static struct answer *find(const struct meta_support *s, uint64_t key) {
    size_t i = key % ROOM;
    while (s->answers[i].key && s->answers[i].key != key) i = (i + 1) % ROOM;
    return &s->answers[i];
}

bool sheaf__meta_asks_all(const struct meta_support *s) { return !s->is_local; }

bool sheaf__meta_supports(struct meta_support *s, const struct sheaf_tensor *op) {
    const uint8_t mine = ask_own(s, op);
    if (s->is_local) return mine;
    const uint64_t key = key_of(op);
    if (find(s, key)->key) return find(s, key)->yes;
    if (sheaf_world_all_gather(&mine, 1, s->votes, "which ops the devices run"))
        return false; /* the job is over */
    bool yes = true;
    for (int r = 0; r < sheaf_world_size(); r++) yes = yes && s->votes[r];
    if (s->used == MOST_ANSWERS) {
        memset(s->answers, 0, ROOM * sizeof *s->answers);
        s->used = 0;
    }
    *find(s, key) = (struct answer){key, yes};
    s->used++;
    return yes;
}
