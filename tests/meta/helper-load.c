/* Weights that some ranks cannot read: sheaf_backend_meta_tensors_load with every kind of cut, in
 * several rounds, from the first and from the last rank, with readers that fail. Started under mpirun by
 * test-meta.c. Prints "ok N members, B bytes sent". Argument "leave": the last rank drives no member. */
#include <stdio.h>
#include <string.h>

#include "sanitizer.h"
#include "sheaf/sheaf.h"
#include "start_job.h"

enum { N_TENSORS = 4, ROW = 1024, ROWS = 3000, BYTES = ROW * ROWS * 4, MAX_RANKS = 8 };
enum { IN_FLIGHT = 8 << 20 }; /* bytes of blocks a rank */

static struct sheaf_tensor *tensors[N_TENSORS];
static int me, n_ranks, n_members;
static const int *ranks_of_members;
static char data[BYTES], back[BYTES];

static bool wrong(const char *what, size_t tensor) {
    fprintf(stderr, "WRONG: %s (tensor %zu) on rank %d: %s\n", what, tensor, me,
            sheaf_last_error());
    sheaf_world_abort(what);
    return false;
}

/* "axis0": units of 32 columns, "axis1": of 5 rows; shares 1, 2, ..., and the second of three members
 * or more has nothing. */
static int64_t count_of(int64_t units, int member) {
    int64_t shares = 0, before = 0;
    for (int j = 0; j < n_members; j++) shares += n_members > 2 && j == 1 ? 0 : j + 1;
    for (int j = 0; j < member; j++)
        before += n_members > 2 && j == 1 ? 0 : units * (j + 1) / shares;
    if (member == n_members - 1) return units - before;
    return n_members > 2 && member == 1 ? 0 : units * (member + 1) / shares;
}
static enum sheaf_status state_of(const struct sheaf_tensor *t, const void *user,
                                  struct sheaf_split_state **out) {
    int64_t counts[2 * MAX_RANKS];
    const int axis = t->name[4] - '0', unit = axis ? 5 : 32;
    (void)user;
    for (int j = 0; j < n_members; j++) counts[j] = count_of(t->ne[axis & 1] / unit, j);
    *out = strncmp(t->name, "axis", 4)
               ? sheaf_split_state_mirrored(n_members)
               : sheaf_split_state_cut((enum sheaf_split_axis)axis, n_members, counts, unit);
    return *out ? SHEAF_STATUS_SUCCESS : SHEAF_STATUS_ALLOC_FAILED;
}

struct reader {
    size_t bytes, fails_at;
    bool own_began, goes_on_for_others; /* rank 0 reads for others after its first own bytes */
};
/* Bytes of rank 0, whose members are the first, and whose slices begin with the tensor or its rows. */
static bool are_of_rank_0(size_t i, size_t offset) {
    const int axis = tensors[i]->name[4] - '0', unit = axis ? 5 : 32;
    int64_t units = 0;
    for (int j = 0; j < n_members && !ranks_of_members[j]; j++)
        units += count_of(tensors[i]->ne[axis] / unit, j);
    return axis ? offset < (size_t)(units * unit) * ROW * 4
                : offset % (ROW * 4) < (size_t)(units * unit) * 4;
}
static void note_order(struct reader *r, size_t i, size_t offset) {
    if (strncmp(tensors[i]->name, "axis", 4)) return;
    if (are_of_rank_0(i, offset))
        r->own_began = true;
    else
        r->goes_on_for_others = r->own_began;
}
/* Tensor i has the data turned by i bytes. */
static char byte_of(size_t i, size_t at) { return data[(at + i) % BYTES]; }
static enum sheaf_status read_bytes(void *user, size_t i, size_t offset, void *dst, size_t size) {
    struct reader *r = user;
    r->bytes += size;
    note_order(r, i, offset);
    if (r->bytes > r->fails_at) return sheaf_set_error(SHEAF_STATUS_IO, "the disk is gone");
    for (size_t k = 0; k < size; k++) ((char *)dst)[k] = byte_of(i, offset + k);
    return SHEAF_STATUS_SUCCESS;
}

/* Bytes that the rank holds, of mirrored data once. */
static size_t held(const struct sheaf_tensor *t, int rank) {
    size_t bytes = 0;
    for (int j = 0; j < n_members; j++) {
        const int axis = t->name[4] - '0', unit = axis ? 5 : 32;
        if (ranks_of_members[j] != rank) continue;
        if (strncmp(t->name, "axis", 4)) return BYTES;
        bytes += (size_t)(count_of(t->ne[axis] / unit, j) * unit) * (axis ? ROW : ROWS) * 4;
    }
    return bytes;
}

static size_t held_of_all(int rank) {
    size_t bytes = 0;
    for (int i = 0; i < N_TENSORS; i++) bytes += held(tensors[i], rank);
    return bytes;
}

static bool check_values(void) {
    for (size_t i = 0; i < N_TENSORS; i++) {
        size_t differ = 0;
        if (sheaf_backend_tensor_get(tensors[i], back, 0, BYTES)) return wrong("get", i);
        for (size_t k = 0; k < BYTES; k++) differ += back[k] != byte_of(i, k);
        if (differ) return wrong("values", i);
    }
    return true;
}

/* Of this process, at most so far, in bytes. */
static size_t peak_memory(void) {
    char line[256];
    size_t kib = 0;
    FILE *f = fopen("/proc/self/status", "r");
    while (f && fgets(line, sizeof line, f))
        if (sscanf(line, "VmHWM: %zu", &kib) == 1) break;
    if (f) fclose(f);
    return kib * 1024;
}

static bool check_load(const bool *reads, int root, uint64_t *all_sent) {
    struct reader r = {.fails_at = SIZE_MAX};
    uint64_t sent = 0, others = 0;
    for (size_t i = 0; i < N_TENSORS; i++)
        if (sheaf_backend_tensor_memset(tensors[i], 0, 0, BYTES)) return wrong("memset", i);
    if (sheaf_backend_meta_tensors_load(tensors, N_TENSORS, reads, root,
                                        reads[me] || me == root ? read_bytes : NULL, &r, &sent))
        return wrong("load", 0);
    for (int i = 0; i < n_ranks; i++) others += reads[i] || i == root ? 0 : held_of_all(i);
    if (r.bytes != (reads[me] || me == root ? held_of_all(me) : 0) + (me == root ? others : 0))
        return wrong("bytes that were read", 0);
    if (sent != others) return wrong("bytes that were sent", 0);
    if (!me && !root && others > (size_t)(n_ranks - 1) * IN_FLIGHT && !r.goes_on_for_others)
        return wrong("the root, which must read its own bytes while it sends", 0);
    *all_sent += sent;
    return check_values();
}

/* Only the rank whose reader fails returns that; all go on. */
static bool check_failure(const bool *reads, int root, int fails) {
    struct reader r = {.fails_at = me == fails ? BYTES / 3 : SIZE_MAX};
    const enum sheaf_status st =
        sheaf_backend_meta_tensors_load(tensors, N_TENSORS, reads, root, read_bytes, &r, NULL);
    if (st != (r.bytes > r.fails_at ? SHEAF_STATUS_IO : SHEAF_STATUS_SUCCESS))
        return wrong("a failure to read", 0);
    return !sheaf_world_agree(SHEAF_STATUS_SUCCESS, "go on") || wrong("what follows", 0);
}

/* Beside its slices a rank needs eight blocks, the root eight a rank. */
static bool check_memory(size_t before) {
    enum { MORE = 3 << 20 };
    const bool reads[MAX_RANKS] = {0};
    struct reader r = {.fails_at = SIZE_MAX};
    const size_t receivers = me ? 1 : (size_t)n_ranks - 1;
    if (sheaf_backend_meta_tensors_load(tensors, N_TENSORS, reads, 0, read_bytes, &r, NULL))
        return wrong("load", 0);
    for (int j = 0, n = 0; j < n_members; j++) { /* of mirrored data each member has a copy */
        if (ranks_of_members[j] == me && n++) before += BYTES;
    }
    return SANITIZED || peak_memory() < before + held_of_all(me) + receivers * IN_FLIGHT + MORE ||
           wrong("memory", 0);
}

static bool check_all(void) {
    uint64_t sent = 0;
    for (int k = 0; k < 6; k++) {
        bool reads[MAX_RANKS] = {0};
        const int root = k % 2 ? n_ranks - 1 : 0;
        for (int r = 0; r < n_ranks; r++) reads[r] = k / 2 == 1 || (k / 2 == 2 && r % 2);
        if (!check_load(reads, root, &sent) || !check_failure(reads, root, root) ||
            !check_failure(reads, root, n_ranks / 2))
            return false;
    }
    if (me == 0)
        printf("ok %d members on %d ranks, %llu bytes sent\n", n_members, n_ranks,
               (unsigned long long)sent);
    return true;
}

static bool check_refusals(struct sheaf_context *ctx) {
    const bool reads[MAX_RANKS] = {0};
    struct sheaf_tensor *list[2] = {tensors[0], sheaf_view_1d(ctx, tensors[0], ROW, 0)};
    struct reader r = {.fails_at = SIZE_MAX};
    if (sheaf_backend_meta_tensors_load(list, 1, reads, n_ranks, read_bytes, &r, NULL) !=
            SHEAF_STATUS_INVALID ||
        sheaf_backend_meta_tensors_load(list, 2, reads, 0, read_bytes, &r, NULL) !=
            SHEAF_STATUS_INVALID ||
        sheaf_backend_meta_tensors_load(NULL, 0, reads, 0, read_bytes, &r, NULL))
        return wrong("what must be refused", 0);
    return true;
}

int main(int argc, char **argv) {
    const sheaf_backend_dev_t *devices;
    sheaf_backend_dev_t meta = NULL;
    sheaf_backend_t backend = NULL;
    sheaf_backend_buffer_t buffer = NULL;
    size_t n = 0;
    int rank_of[2 * MAX_RANKS];
    if (start_job()) {
        fprintf(stderr, "%s\n", sheaf_last_error());
        return 1;
    }
    me = sheaf_world_rank();
    n_ranks = sheaf_world_size();
    bool ok = !sheaf_world_devices(&devices, &n) && n <= 2 * MAX_RANKS && n_ranks <= MAX_RANKS;
    while (ok && argc > 1 && !strcmp(argv[1], "leave") && n > 1 &&
           sheaf_world_device_rank(devices[n - 1]) == n_ranks - 1)
        n--;
    for (size_t i = 0; ok && i < n; i++) rank_of[i] = sheaf_world_device_rank(devices[i]);
    n_members = (int)n;
    ranks_of_members = rank_of;
    for (size_t i = 0; i < BYTES; i++) data[i] = (char)(i * 2654435761u >> 24);
    ok = ok && !sheaf_backend_meta_device(devices, n, state_of, NULL, NULL, &meta) &&
         !sheaf_backend_dev_init(meta, NULL, &backend);
    struct sheaf_context *ctx = sheaf_init(
        (struct sheaf_init_params){.mem_size = 8 * sheaf_tensor_overhead(), .no_alloc = true});
    static const char *const names[N_TENSORS] = {"axis0", "axis1", "mirrored", "axis0"};
    for (int i = 0; i < N_TENSORS; i++)
        tensors[i] = sheaf_set_name(sheaf_new_tensor_2d(ctx, SHEAF_TYPE_F32, ROW, ROWS), names[i]);
    const size_t before = peak_memory();
    ok = ok && !sheaf_backend_alloc_ctx_tensors(ctx, backend, &buffer) && check_memory(before) &&
         check_all() && check_refusals(ctx);
    if (!ok && sheaf_world_reports_error()) fprintf(stderr, "error: %s\n", sheaf_last_error());
    sheaf_backend_buffer_free(buffer);
    sheaf_free(ctx);
    sheaf_backend_free(backend);
    sheaf_backend_meta_device_free(meta);
    sheaf_world_finalize();
    return ok ? 0 : 1;
}
