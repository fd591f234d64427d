/* Weights that a program maps from files: a file that is mapped where another was before, memory where
 * a file was, a weight that is partly filled, a larger tensor in the place of one, and a file that
 * cannot be read for a time.
 *     helper-ggml-files LIBRARY PLUGIN API [alone | parts]
 * Prints "ok" when every weight had the bytes that were there when it was set. With "alone" the file is
 * rank 0's only: others find nothing under its name, or something else. parts: a file that is loaded in
 * two parts. */
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "ggml_host.h"
#include "sanitizer.h"

enum { N = 64, M = 64, BYTES = N * M * 4, FILES = 3 };
static char path[FILES][32] = {"/tmp/sheaf-weights-XXXXXX", "/tmp/sheaf-weights-XXXXXX",
                               "/tmp/sheaf-weights-XXXXXX"};

static float value_of(int content, int i) { return (float)(i * 7 % 1000 + 10000 * content); }
static void fill(float *values, int content) {
    for (int i = 0; i < N * M; i++) values[i] = value_of(content, i);
}

/* At the address `at`, where nothing is lost; NULL: anywhere. */
static void *map_file(int k, void *at) {
    static float values[N * M];
    const int fd = mkstemp(path[k]);
    fill(values, k);
    expect(fd >= 0 && write(fd, values, sizeof values) == (ssize_t)sizeof values, "a file");
    void *p = mmap(at, BYTES, PROT_READ, MAP_SHARED | (at ? MAP_FIXED : 0), fd, 0);
    close(fd);
    return p;
}
static void *map_again(int k) {
    const int fd = open(path[k], O_RDONLY);
    void *p = mmap(NULL, BYTES, PROT_READ, MAP_SHARED, fd, 0);
    close(fd);
    return p;
}
static void *map_memory(int content, void *at) {
    void *p =
        mmap(at, BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
    fill(p, content);
    return p;
}

/* ---- the tensors of a check ---- */

static void *new_ctx(void) {
    return CALL(void *(*)(struct gg_init_params),
                "ggml_init")((struct gg_init_params){.mem_size = 1 << 20});
}
static struct gg_buffer *buffer_for(int usage, size_t size) {
    struct gg_buffer *b = alloc(size);
    CALL(void (*)(struct gg_buffer *, int), "ggml_backend_buffer_set_usage")(b, usage);
    return b;
}
static struct gg_buffer *work_of(size_t size) { return buffer_for(GG_USAGE_COMPUTE, size); }
/* At the start of the buffer, where the tensor before was. */
static struct gg_tensor *in(struct gg_buffer *b, struct gg_tensor *t) {
    size_t at = 0;
    put_at(b, t, &at);
    return t;
}
static void end(void *ctx, struct gg_buffer *weights, struct gg_buffer *work) {
    weights->iface.free_buffer(weights);
    work->iface.free_buffer(work);
    CALL(void (*)(void *), "ggml_free")(ctx);
}

/* ---- checks ---- */

static void check_weight(const void *data, int content, uint64_t uid) {
    static float got[N * M];
    void *ctx = new_ctx();
    struct gg_buffer *weights = buffer_for(GG_USAGE_WEIGHTS, BYTES), *work = work_of(BYTES);
    struct gg_tensor *w = in(weights, tensor(ctx, N, M, "w")), *t = in(work, scale(ctx, w, 2));
    int wrong = 0;
    set(w, data, 0, BYTES);
    expect(compute(graph_of(ctx, t, uid)) == GG_STATUS_SUCCESS, "status of a graph");
    get(t, got, sizeof got);
    for (int i = 0; i < N * M; i++) wrong += got[i] != 2 * value_of(content, i);
    expect(!wrong, content < FILES ? "a weight of a file" : "a weight in memory");
    end(ctx, weights, work);
}

/* A tensor that no one has set reads what is in its memory: the file's bytes, and zeros behind them. */
static void check_in_place_of(const void *data, int content) {
    static float got[2 * N * M];
    void *ctx = new_ctx();
    struct gg_buffer *weights = alloc(2 * BYTES), *work = work_of(2 * BYTES);
    struct gg_tensor *w = in(weights, tensor(ctx, N, M, "w"));
    struct gg_tensor *larger = in(weights, tensor(ctx, 2 * N, M, "larger"));
    struct gg_tensor *t = in(work, scale(ctx, larger, 2));
    int wrong = 0;
    set(w, data, 0, BYTES);
    fill_bytes(w, 0, BYTES / 2, 4 * N);
    set(w, data, 0, BYTES);
    expect(compute(graph_of(ctx, t, 11)) == GG_STATUS_SUCCESS, "status of a larger tensor");
    get(t, got, sizeof got);
    for (int i = 0; i < 2 * N * M; i++)
        wrong += got[i] != (i < N * M ? 2 * value_of(content, i) : 0);
    expect(!wrong, "a larger tensor in the place of a file's");
    end(ctx, weights, work);
}

static void check_partly_filled(const void *data, int content) {
    static float got[N * M];
    void *ctx = new_ctx();
    struct gg_buffer *weights = alloc(BYTES), *work = work_of(BYTES);
    struct gg_tensor *w = in(weights, tensor(ctx, N, M, "w")), *t = in(work, scale(ctx, w, 2));
    int wrong = 0;
    set(w, data, 0, BYTES);
    fill_bytes(w, 0, BYTES / 2, 4 * N);
    expect(compute(graph_of(ctx, t, 12)) == GG_STATUS_SUCCESS, "status of a filled weight");
    get(t, got, sizeof got);
    for (int i = 0; i < N * M; i++)
        wrong += got[i] != (i / N == M / 2 ? 0 : 2 * value_of(content, i));
    expect(!wrong, "a file's weight that was partly filled");
    end(ctx, weights, work);
}

/* Another file has the name of the one that is mapped, and the name that Linux gives that one. */
static void check_replaced_file(void) {
    static float values[N * M];
    char old[] = "/tmp/sheaf-weights-XXXXXX", new[] = "/tmp/sheaf-weights-XXXXXX", deleted[64];
    const int fd[] = {mkstemp(old), mkstemp(new)};
    for (int k = 0; k < 2; k++) {
        fill(values, k);
        expect(write(fd[k], values, BYTES) == BYTES, "a file");
    }
    void *data = mmap(NULL, BYTES, PROT_READ, MAP_SHARED, fd[0], 0);
    snprintf(deleted, sizeof deleted, "%s (deleted)", old);
    expect(!rename(new, old) && !link(old, deleted), "a file in the place of another");
    check_weight(data, 0, 14);
    for (int k = 0; k < 2; k++) close(fd[k]);
    unlink(old);
    unlink(deleted);
}

/* The bytes of a weight are those of two files. */
static void check_two_mappings(void) {
    static float got[2 * N * M];
    char *data = mmap(NULL, 2 * BYTES, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    void *ctx = new_ctx();
    struct gg_buffer *weights = alloc(2 * BYTES), *work = work_of(2 * BYTES);
    struct gg_tensor *w = in(weights, tensor(ctx, N, 2 * M, "w")), *t = in(work, scale(ctx, w, 2));
    int wrong = 0;
    for (int k = 0; k < 2; k++) {
        const int fd = open(path[k], O_RDONLY);
        mmap(data + k * BYTES, BYTES, PROT_READ, MAP_SHARED | MAP_FIXED, fd, 0);
        close(fd);
    }
    set(w, data, 0, 2 * BYTES);
    expect(compute(graph_of(ctx, t, 18)) == GG_STATUS_SUCCESS, "status of two mappings");
    get(t, got, sizeof got);
    for (int i = 0; i < 2 * N * M; i++) wrong += got[i] != 2 * value_of(i / (N * M), i % (N * M));
    expect(!wrong, "a weight of two files");
    end(ctx, weights, work);
}

/* llama.cpp unmaps what it does not need, so that a mapping begins inside of its file; and one that may be
 * written has bytes that the file lacks. */
static void check_parts_of_mappings(void) {
    enum { PAGE = 4096 };
    static float values[N * M];
    char name[] = "/tmp/sheaf-weights-XXXXXX";
    const int fd = mkstemp(name);
    char *zeros = calloc(1, PAGE);
    fill(values, 1);
    expect(write(fd, zeros, PAGE) == PAGE && write(fd, values, BYTES) == BYTES, "a file");
    char *data = mmap(NULL, PAGE + BYTES, PROT_READ, MAP_SHARED, fd, 0);
    expect(!munmap(data, PAGE), "the first page");
    check_weight(data + PAGE, 1, 15);
    data = mmap(NULL, PAGE + BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE, fd, 0);
    fill((float *)(void *)(data + PAGE), 2);
    check_weight(data + PAGE, 2, 16);
    close(fd);
    unlink(name);
    free(zeros);
}

static int resident_pages(void *from, size_t bytes) {
    unsigned char pages[BYTES / 4096 + 1];
    int n = 0;
    expect(!mincore(from, bytes, pages), "pages of a buffer");
    for (size_t i = 0; i < bytes / 4096; i++) n += pages[i] & 1;
    return n;
}

/* Pages of a weight that graphs have used are given back, and not those that it shares with others. */
static void check_neighbours(void) {
    static float values[N * M], got[N * M];
    void *ctx = new_ctx();
    struct gg_buffer *weights = alloc(2 * BYTES), *work = work_of(BYTES);
    struct gg_tensor *w[] = {tensor(ctx, N, 1, "before"), tensor(ctx, N, M, "w"),
                             tensor(ctx, N, 1, "behind")};
    const int order[] = {1, 0, 2};
    size_t at = 0;
    fill(values, 1);
    for (int k = 0; k < 3; k++) put_at(weights, w[k], &at);
    for (int k = 0; k < 3; k++) set(w[k], values, 0, k == 1 ? BYTES : N * 4);
    for (int k = 0; k < 3; k++) {
        struct gg_tensor *t = in(work, scale(ctx, w[order[k]], 2));
        int wrong = 0;
        expect(compute(graph_of(ctx, t, 0)) == GG_STATUS_SUCCESS, "status of a neighbour");
        get(t, got, sizeof got);
        for (int i = 0; i < N; i++) wrong += got[i] != 2 * value_of(1, i);
        expect(!wrong, "a weight beside one whose pages are given back");
        char *page = weights->iface.get_base(weights);
        expect(sysconf(_SC_PAGESIZE) != 4096 || !resident_pages(page + 4096, BYTES - 4096),
               "rank 0 has pages of a weight that the ranks have");
    }
    end(ctx, weights, work);
}

/* Bytes behind the part that was set are not those of the file. */
static void check_first_half(const void *data, int content) {
    static float got[N * M];
    void *ctx = new_ctx();
    struct gg_buffer *weights = alloc(BYTES), *work = work_of(BYTES);
    struct gg_tensor *w = in(weights, tensor(ctx, N, M, "w")), *t = in(work, scale(ctx, w, 2));
    int wrong = 0;
    set(w, data, 0, BYTES / 2);
    expect(compute(graph_of(ctx, t, 13)) == GG_STATUS_SUCCESS, "status of a half of a file");
    get(t, got, sizeof got);
    for (int i = 0; i < N * M; i++)
        wrong += got[i] != (i < N * M / 2 ? 2 * value_of(content, i) : 0);
    expect(!wrong, "a weight that has a half of a file");
    end(ctx, weights, work);
}

/* A buffer that is cleared before its first graph: one weight was a file's, one is set by nothing. */
static void check_cleared(const void *data, uint8_t value) {
    static float got[N * M];
    float want;
    void *ctx = new_ctx();
    struct gg_buffer *weights = alloc(2 * BYTES), *work = work_of(BYTES);
    struct gg_tensor *w[] = {in(weights, tensor(ctx, N, M, "w")), tensor(ctx, N, M, "unset")};
    size_t at = BYTES;
    memset(&want, value, sizeof want);
    put_at(weights, w[1], &at);
    set(w[0], data, 0, BYTES);
    weights->iface.clear(weights, value);
    for (int k = 0; k < 2; k++) {
        struct gg_tensor *t = in(work, scale(ctx, w[k], 1));
        int wrong = 0;
        expect(compute(graph_of(ctx, t, 0)) == GG_STATUS_SUCCESS, "status of a cleared weight");
        get(t, got, sizeof got);
        for (int i = 0; i < N * M; i++) wrong += got[i] != want;
        get(w[k], got, sizeof got);
        for (int i = 0; i < N * M; i++) wrong += got[i] != want;
        expect(!wrong, k ? "a weight that only its buffer has" : "a file's weight that is cleared");
    }
    end(ctx, weights, work);
}

/* A load that fails leaves no memory behind on the ranks, also where a weight beside it is in use. */
static void check_failed_load(void) {
    enum { ROWS = 1024, LARGE = ROWS * ROWS * 4, TRIES = 16 };
    char name[] = "/tmp/sheaf-weights-XXXXXX";
    const int fd = mkstemp(name);
    float *values = calloc(1, LARGE), got[N];
    void *ctx = new_ctx();
    struct gg_buffer *weights = alloc(LARGE + 4096), *work = work_of(4096);
    struct gg_tensor *w = in(weights, large(ctx, ROWS, ROWS, "w")), *beside;
    size_t at = LARGE;
    int wrong = 0;
    long before = 0;
    for (int i = 0; i < N; i++) values[LARGE / 4 - N + i] = (float)i;
    expect(write(fd, values, LARGE) == LARGE, "a large file");
    put_at(weights, beside = tensor(ctx, N, 1, "beside"), &at);
    set(beside, values, 0, N * 4);
    struct gg_tensor *t = in(work, scale(ctx, beside, 2));
    expect(compute(graph_of(ctx, t, 21)) == GG_STATUS_SUCCESS, "status of the weight beside it");
    set(w, mmap(NULL, LARGE, PROT_READ, MAP_SHARED, fd, 0), 0, LARGE);
    t = in(work, scale(ctx, view(ctx, w, N, LARGE - N * 4), 2));
    struct gg_cgraph *g = graph_of(ctx, t, 22);
    expect(!ftruncate(fd, 0), "an empty file");
    for (int i = 0; i < TRIES; i++) {
        if (i == 2) before = mapped_mib();
        expect(compute(g) == GG_STATUS_FAILED, "status of a file that cannot be read");
    }
    expect(SANITIZED || mapped_mib() - before < 24, "what was not loaded takes no memory");
    expect(pwrite(fd, values, LARGE, 0) == LARGE, "the file again");
    expect(compute(g) == GG_STATUS_SUCCESS, "status of a file that is there again");
    get(t, got, sizeof got);
    for (int i = 0; i < N; i++) wrong += got[i] != 2 * (float)i;
    expect(!wrong, "a weight that was loaded at last");
    close(fd);
    unlink(name);
    free(values);
    end(ctx, weights, work);
}

/* ---- a file that other ranks do not have ---- */

enum {
    ALONE_N = 1024,
    ALONE_M = 2049,
    ALONE_BYTES = ALONE_N * ALONE_M * 4, /* of two SETs and more */
    ALONE_AT = 4096,                     /* in the file */
    FILE_BYTES = ALONE_AT + ALONE_BYTES
};

static void check_doubled(struct gg_tensor *t, const float *values, const char *what) {
    static float got[ALONE_N * ALONE_M];
    int wrong = 0;
    get(t, got, sizeof got);
    for (int i = 0; i < ALONE_N * ALONE_M; i++) wrong += got[i] != 2 * values[i];
    expect(!wrong, what);
}

/* Under the name of the file, when other ranks look for it. */
static void nothing(const char *name) { unlink(name); }
static void a_folder(const char *name) { expect(!unlink(name) && !mkdir(name, 0700), "a folder"); }
static void a_file(const char *name, size_t size) {
    char *bytes = calloc(1, size);
    unlink(name);
    FILE *f = fopen(name, "w");
    expect(f && fwrite(bytes, 1, size, f) == size && !fclose(f), "another file");
    free(bytes);
}
static void other_bytes(const char *name) { a_file(name, FILE_BYTES); }
static void a_longer_file(const char *name) { a_file(name, FILE_BYTES + 1); }
/* The weight, whose last value is greater by `more`. */
static void write_weight(int fd, float more) {
    float *values = malloc(ALONE_BYTES);
    for (int i = 0; i < ALONE_N * ALONE_M; i++) values[i] = (float)(i % 9973);
    values[ALONE_N * ALONE_M - 1] += more;
    expect(pwrite(fd, values, ALONE_BYTES, ALONE_AT) == ALONE_BYTES, "a file");
    free(values);
}
static void another_end(const char *name) {
    unlink(name);
    const int fd = open(name, O_CREAT | O_WRONLY, 0600);
    write_weight(fd, 1);
    close(fd);
}
static void the_file(const char *name) { (void)name; }

static void check_alone(void (*put)(const char *), uint64_t uid) {
    char name[] = "/tmp/sheaf-weights-XXXXXX";
    const int fd = mkstemp(name);
    float *values = malloc(ALONE_BYTES);
    void *ctx = new_ctx();
    struct gg_buffer *weights = alloc(ALONE_BYTES), *work = work_of(ALONE_BYTES);
    struct gg_tensor *w = in(weights, large(ctx, ALONE_N, ALONE_M, "alone"));
    struct gg_tensor *t = scale(ctx, tensor(ctx, ALONE_N, 1, "few"), 2);
    t->src[0] = w; /* the library has no memory for a result of that size */
    t->ne[1] = ALONE_M;
    t->nb[2] = t->nb[3] = ALONE_BYTES;
    struct gg_cgraph *g = graph_of(ctx, in(work, t), uid);
    for (int i = 0; i < ALONE_N * ALONE_M; i++) values[i] = (float)(i % 9973);
    write_weight(fd, 0);
    const char *file = mmap(NULL, FILE_BYTES, PROT_READ, MAP_SHARED, fd, 0);
    set(w, file + ALONE_AT, 0, ALONE_BYTES);
    close(fd);
    put(name);
    expect(compute(g) == GG_STATUS_SUCCESS, "status of a file of rank 0");
    check_doubled(t, values, "a weight of rank 0's file");
    /* the ranks have it now, and get it again, and a part that begins anywhere */
    for (int i = 0; i < ALONE_N * ALONE_M; i++) values[i] += 1;
    set(w, values, 0, ALONE_BYTES);
    expect(compute(g) == GG_STATUS_SUCCESS, "status of a weight that was set again");
    check_doubled(t, values, "a weight that was set again");
    for (int i = 777; i < ALONE_N * ALONE_M - 5; i++) values[i] += 1;
    set(w, values + 777, 777 * 4, ALONE_BYTES - (777 + 5) * 4);
    expect(compute(g) == GG_STATUS_SUCCESS, "status of a weight that was set in part");
    check_doubled(t, values, "a weight that was set in part");
    remove(name);
    free(values);
    end(ctx, weights, work);
}

static void check_files_of_rank_0(void) {
    check_alone(nothing, 31);
    check_alone(a_folder, 32);
    check_alone(a_longer_file, 33);
    check_alone(other_bytes, 34);
    check_alone(another_end, 35);
    check_alone(the_file, 36); /* each rank reads its slice */
}

/* Weights of one buffer and one graph, of two files and of memory. */
static void check_several_files(void) {
    enum { MANY = 3 };
    static float values[N * M], got[N * M];
    void *ctx = new_ctx(), *data[MANY] = {map_again(0), map_again(1), values};
    struct gg_buffer *weights = buffer_for(GG_USAGE_WEIGHTS, MANY * BYTES),
                     *work = work_of(2 * BYTES);
    struct gg_tensor *sum = NULL;
    size_t at = 0, at_work = 0;
    int wrong = 0;
    fill(values, 2);
    for (int k = 0; k < MANY; k++) {
        struct gg_tensor *w = tensor(ctx, N, M, "w");
        put_at(weights, w, &at);
        set(w, data[k], 0, BYTES);
        sum = sum ? add(ctx, sum, w) : w;
        if (k) put_at(work, sum, &at_work);
    }
    expect(compute(graph_of(ctx, sum, 17)) == GG_STATUS_SUCCESS, "status of several files");
    get(sum, got, sizeof got);
    for (int i = 0; i < N * M; i++)
        wrong += got[i] != value_of(0, i) + value_of(1, i) + value_of(2, i);
    expect(!wrong, "weights of several files");
    end(ctx, weights, work);
}

/* Ranks agree behind 256 MiB, and load a weight afterwards. */
static void check_parts(void) {
    enum { SIDE = 1 << 13, LARGE = SIDE * SIDE * 4 };
    static float values[N * M], got[N];
    char name[] = "/tmp/sheaf-weights-XXXXXX";
    const int fd = mkstemp(name);
    void *ctx = new_ctx();
    struct gg_buffer *weights = buffer_for(GG_USAGE_WEIGHTS, LARGE + BYTES), *work = work_of(BYTES);
    struct gg_tensor *first = large(ctx, SIDE, SIDE, "w"), *second = tensor(ctx, N, M, "behind");
    size_t at = 0;
    int wrong = 0;
    fill(values, 1);
    expect(!ftruncate(fd, LARGE) && pwrite(fd, values, BYTES, LARGE) == BYTES, "a large file");
    char *data = mmap(NULL, LARGE + BYTES, PROT_READ, MAP_SHARED, fd, 0);
    put_at(weights, first, &at);
    put_at(weights, second, &at);
    set(first, data, 0, LARGE);
    set(second, data + LARGE, 0, BYTES);
    struct gg_tensor *t = add(ctx, view(ctx, first, N, 0), view(ctx, second, N, BYTES / 2));
    expect(compute(graph_of(ctx, in(work, t), 41)) == GG_STATUS_SUCCESS, "status of a large file");
    get(t, got, sizeof got);
    for (int i = 0; i < N; i++) wrong += got[i] != value_of(1, N * M / 2 + i);
    expect(!wrong, "a weight of the second part");
    close(fd);
    unlink(name);
    end(ctx, weights, work);
}

static void check_files(void) {
    void *at = map_file(0, NULL);
    check_weight(at, 0, 1);
    check_weight(map_file(1, at), 1, 2);
    check_weight(map_memory(FILES, at), FILES, 3);
    at = map_file(2, NULL);
    check_in_place_of(at, 2);
    check_partly_filled(at, 2);
    check_first_half(at, 2);
    check_neighbours();
    check_replaced_file();
    check_parts_of_mappings();
    check_several_files();
    check_two_mappings();
    check_cleared(at, 0x3f);
    check_cleared(at, 0);
    check_failed_load();
    for (int k = 0; k < FILES; k++) unlink(path[k]);
}

int main(int argc, char **argv) {
    void *plugin = argc < 4 ? NULL : load(argv);
    struct gg_reg *reg = plugin ? registry(plugin) : NULL;
    if (!reg) return 3;
    n_devices = reg->iface.get_device_count(reg);
    dev = reg->iface.get_device(reg, 0);
    backend = dev->iface.init_backend(dev, NULL);
    if (argc > 4 && !strcmp(argv[4], "alone"))
        check_files_of_rank_0();
    else if (argc > 4 && !strcmp(argv[4], "parts"))
        check_parts();
    else
        check_files();
    backend->iface.free(backend);
    if (!failures) puts("ok");
    return failures != 0;
}
