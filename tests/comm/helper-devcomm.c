/* Collectives on the devices' own memory, between all devices of the job whose names begin with the
 * argument: every kind, sizes from one float to several chunks, uneven and empty blocks, compared
 * bit by bit with sums in member order. The group ends behind an all-reduce that no call has waited for.
 * Started by test-devcomm.c and scripts/gpu-check. Prints "ok N members through NAME". "version": prints
 * NCCL's version instead. */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "comm/device/devcomm.h"
#include "sheaf/sheaf.h"
#include "start_job.h"

enum { MOST = 16, N_SIZES = 6 };
static const size_t sizes[N_SIZES] = {1, 37, 4096, 65537, 1 << 20, 5000001};

static struct sheaf__devcomm *dc;
static int n, n_local, first;
static sheaf_backend_t backends[MOST];
static sheaf_backend_buffer_t buffers[MOST];

static float value(int member, size_t i) { /* sums of these depend on the order */
    const uint32_t x = ((uint32_t)i * 2654435761u) ^ ((uint32_t)member * 40503u + 7u);
    return (float)(x % 100003u) * 1.7e-3f + 1.0f / (float)(1 + member);
}
static float total(size_t i) { /* on one host */
    float sum = value(0, i);
    for (int m = 1; m < n; m++) sum += value(m, i);
    return sum;
}

static bool check(enum sheaf_status st, int member, const char *what, size_t size) {
    if (st) fprintf(stderr, "member %d: %s of %zu: %s\n", member, what, size, sheaf_last_error());
    return !st;
}

/* Blocks of 0, 1, 2, ... shares. */
static size_t share(size_t size, int member) {
    const size_t weights = (size_t)n * ((size_t)n - 1) / 2;
    if (!weights) return size;
    if (member == n - 1) {
        size_t rest = size;
        for (int m = 0; m < n - 1; m++) rest -= share(size, m);
        return rest;
    }
    return size * (size_t)member / weights;
}

static enum sheaf_status submit(int local, enum sheaf_comm_kind kind,
                                const struct sheaf_tensor *send, struct sheaf_tensor *recv,
                                size_t size, const size_t *block_sizes) {
    return sheaf__devcomm_run(dc, local,
                              &(struct sheaf_comm_call){.size = sizeof(struct sheaf_comm_call),
                                                        .kind = kind,
                                                        .send = send->data,
                                                        .recv = recv->data,
                                                        .n = size,
                                                        .sizes = block_sizes,
                                                        .what = {1, "test"}});
}

static bool run_size(int local, size_t size, struct sheaf_tensor *a, struct sheaf_tensor *b,
                     float *host) {
    const int member = first + local;
    size_t counts[MOST], bytes[MOST], at = 0;
    for (int m = 0; m < n; m++) {
        counts[m] = share(size, m);
        bytes[m] = counts[m] * sizeof *host;
        if (m < member) at += counts[m];
    }
    sheaf_backend_t backend = backends[local];
    for (size_t i = 0; i < size; i++) host[i] = value(member, i);
    const size_t all = size * sizeof *host;
    enum sheaf_status st = sheaf_backend_tensor_set_async(backend, a, host, 0, all);
    if (!st) st = submit(local, SHEAF_COMM_REDUCE_SCATTER, a, b, size, counts);
    if (!st) st = sheaf__devcomm_wait(dc, local);
    if (!check(st, member, "reduce-scatter", size)) return false;
    if (bytes[member]) st = sheaf_backend_tensor_get(b, host, 0, bytes[member]);
    for (size_t i = 0; i < counts[member] && !st; i++) {
        if (host[i] == total(at + i)) continue;
        fprintf(stderr, "member %d: reduce-scatter of %zu: element %zu\n", member, size, i);
        return false;
    }
    if (!st) st = submit(local, SHEAF_COMM_ALL_REDUCE, a, a, size, NULL);
    if (!st) st = sheaf__devcomm_wait(dc, local);
    if (!check(st, member, "all-reduce", size)) return false;
    st = sheaf_backend_tensor_get(a, host, 0, all);
    for (size_t i = 0; i < size && !st; i++) {
        if (host[i] == total(i)) continue;
        fprintf(stderr, "member %d: all-reduce of %zu: element %zu is %.9g, not %.9g\n", member,
                size, i, (double)host[i], (double)total(i));
        return false;
    }
    for (size_t i = 0; i < size; i++) host[i] = value(member, i);
    if (!st) st = sheaf_backend_tensor_set(a, host, 0, all);
    if (!st) st = submit(local, SHEAF_COMM_ALL_GATHER, a, b, size, bytes);
    if (!st) st = sheaf__devcomm_wait(dc, local);
    if (!check(st, member, "all-gather", size)) return false;
    st = sheaf_backend_tensor_get(b, host, 0, all);
    for (int m = 0, i = 0; m < n && !st; m++) {
        for (size_t k = 0; k < counts[m]; k++, i++) {
            if (host[i] == value(m, k)) continue;
            fprintf(stderr, "member %d: all-gather of %zu: element %zu of member %d\n", member,
                    size, k, m);
            return false;
        }
    }
    return check(st, member, "transfer", size);
}

static void *run_member(void *arg) {
    const int local = *(const int *)arg;
    const size_t most = sizes[N_SIZES - 1];
    struct sheaf_context *ctx = sheaf_init(
        (struct sheaf_init_params){.mem_size = 2 * sheaf_tensor_overhead(), .no_alloc = true});
    struct sheaf_tensor *a = sheaf_new_tensor_1d(ctx, SHEAF_TYPE_F32, (int64_t)most);
    struct sheaf_tensor *b = sheaf_new_tensor_1d(ctx, SHEAF_TYPE_F32, (int64_t)most);
    float *host = malloc(most * sizeof *host);
    bool ok = host && !sheaf_backend_alloc_ctx_tensors(ctx, backends[local], &buffers[local]);
    if (!ok) fprintf(stderr, "member %d: %s\n", first + local, sheaf_last_error());
    for (int i = 0; i < N_SIZES && ok; i++) ok = run_size(local, sizes[i], a, b, host);
    if (ok) ok = !submit(local, SHEAF_COMM_ALL_REDUCE, a, a, sizes[3], NULL);
    if (!ok) sheaf_world_abort("a member failed");
    sheaf_free(ctx);
    free(host);
    return ok ? NULL : arg;
}

static bool run(const char *kind, char *text, size_t size) {
    const sheaf_backend_dev_t *devices;
    sheaf_backend_dev_t members[MOST];
    int ranks[MOST], locals[MOST];
    size_t n_devices;
    struct sheaf_comm *comm = NULL;
    pthread_t threads[MOST];
    bool ok = true;
    if (sheaf_world_devices(&devices, &n_devices)) return false;
    for (size_t i = 0; i < n_devices && n < MOST; i++) {
        if (strncmp(sheaf_backend_dev_name(devices[i]), kind, strlen(kind)) != 0) continue;
        members[n] = devices[i];
        ranks[n] = sheaf_world_device_rank(devices[i]);
        if (ranks[n] == sheaf_world_rank()) {
            if (!n_local) first = n;
            if (sheaf_backend_dev_init(devices[i], NULL, &backends[n_local++])) return false;
        }
        n++;
    }
    if (!n) {
        sheaf_set_error(SHEAF_STATUS_INVALID, "no %s device", kind);
        return false;
    }
    if (sheaf_comm_new(ranks, n, NULL, &comm) ||
        sheaf__devcomm_new(comm, members, backends, text, size, &dc))
        return false;
    if (!dc) sheaf_set_error(SHEAF_STATUS_UNSUPPORTED, "%s", text);
    ok = dc;
    for (int i = 0; i < n_local && ok; i++) {
        locals[i] = i;
        ok = !pthread_create(&threads[i], NULL, run_member, &locals[i]);
    }
    for (int i = 0; i < n_local && dc; i++) {
        void *bad = NULL;
        pthread_join(threads[i], &bad);
        ok = ok && !bad;
    }
    sheaf__devcomm_free(dc);
    sheaf_comm_free(comm);
    for (int i = 0; i < n_local; i++) {
        ok = !sheaf_backend_synchronize(backends[i]) && ok;
        sheaf_backend_buffer_free(buffers[i]);
        sheaf_backend_free(backends[i]);
    }
    return ok;
}

static int print_version(void) {
    sheaf_backend_reg_t reg = sheaf_backend_reg_by_name("NCCL");
    void *address = reg ? sheaf_backend_reg_get_proc_address(reg, "sheaf_nccl_version") : NULL;
    int (*version)(void);
    memcpy(&version, &address, sizeof version);
    if (!address) fprintf(stderr, "the module libsheaf-nccl.so is not there\n");
    if (address) printf("%d\n", version());
    return address && version() ? 0 : 1;
}

int main(int argc, char **argv) {
    char text[256] = "";
    if (argc != 2) return 2;
    if (start_job() || sheaf_backend_load_all()) {
        fprintf(stderr, "%s\n", sheaf_last_error());
        return 1;
    }
    if (!strcmp(argv[1], "version")) return print_version();
    const bool ok = run(argv[1], text, sizeof text);
    if (!ok) fprintf(stderr, "rank %d: %s\n", sheaf_world_rank(), sheaf_last_error());
    const bool all = !sheaf_world_agree(ok ? SHEAF_STATUS_SUCCESS : SHEAF_STATUS_FAILED, "test");
    if (all && sheaf_world_rank() == 0) printf("ok %d members through %s\n", n, text);
    sheaf_world_finalize();
    return all ? 0 : 1;
}
