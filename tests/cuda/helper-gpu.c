/* Checks of one device that scripts/gpu-check starts, and test-cuda-host.c on the emulation.
 *
 *   helper-gpu shapes DEVICE [DIVISOR]    products and attention in the shapes of models of 8B parameters against the
 *                                         CPU, all types; extents divided, for the emulation
 *   helper-gpu memory DEVICE MODEL [N]    free bytes of the device before, with the model, behind its first token and
 *                                         behind N (300) graphs; what is too large is refused, and the model goes on
 *   helper-gpu why KIND                   why there is no device of the kind; status 1 if nothing is known
 *
 * The last line says what was found; the status is 0 if it is right. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "sheaf/model.h"
#include "sheaf/sheaf.h"
#include "start_job.h"

static sheaf_backend_dev_t cpu_of(void) {
    return sheaf_backend_dev_by_type(SHEAF_BACKEND_DEVICE_TYPE_CPU);
}

/* ---- shapes ---- */

static int64_t divisor = 1;

/* An extent, a multiple of `step` also when it is divided. */
static int64_t part(int64_t n, int64_t step) {
    const int64_t p = n / divisor / step * step;
    return divisor == 1 ? n : p < step ? step : p;
}

static float next_value(uint64_t *seed) {
    *seed = *seed * 6364136223846793005u + 1442695040888963407u;
    return (float)(*seed >> 40) / (float)(1 << 23) - 1;
}

/* Rows of random values. Making them takes the host longer than a product, for some types by far: operand i of
 * all shapes with rows of the same type and length is made of the same rows, a prime number of them, over and over. */
enum { N_ROWS = 251 };
static struct rows {
    enum sheaf_type type;
    int64_t length;
    char *bytes; /* N_ROWS of them */
} kept[3];

static const char *rows_of(const struct sheaf_tensor *t, int operand) {
    struct rows *rows = &kept[operand];
    if (rows->bytes && rows->type == t->type && rows->length == t->ne[0]) return rows->bytes;
    const size_t size = sheaf_row_size(t->type, t->ne[0]);
    uint64_t seed = (uint64_t)operand + 1;
    float *x = malloc((size_t)t->ne[0] * sizeof *x);
    free(rows->bytes);
    *rows = (struct rows){t->type, t->ne[0], malloc(size * N_ROWS)};
    bool made = x && rows->bytes;
    for (int r = 0; r < N_ROWS && made; r++) {
        for (int64_t i = 0; i < t->ne[0]; i++) x[i] = next_value(&seed);
        made = !sheaf_from_float(t->type, x, rows->bytes + (size_t)r * size, t->ne[0]);
    }
    free(x);
    if (!made) {
        free(rows->bytes);
        rows->bytes = NULL;
    }
    return rows->bytes;
}

/* Values of an operand, of the tensor's type; bytes for the caller to free, NULL on failure. */
static char *bytes_of(const struct sheaf_tensor *t, int operand) {
    const size_t size = sheaf_row_size(t->type, t->ne[0]);
    const char *rows = rows_of(t, operand);
    char *bytes = rows ? malloc(sheaf_nbytes(t)) : NULL;
    for (int64_t r = 0; bytes && r < sheaf_nrows(t); r++)
        memcpy(bytes + (size_t)r * size, rows + (size_t)(r % N_ROWS) * size, size);
    return bytes;
}

typedef struct sheaf_tensor *(*build_fn)(struct sheaf_context *ctx, const int64_t *shape,
                                         enum sheaf_type type, struct sheaf_tensor **in);

/* shape: m, k, n */
static struct sheaf_tensor *build_product(struct sheaf_context *ctx, const int64_t *s,
                                          enum sheaf_type type, struct sheaf_tensor **in) {
    in[0] = sheaf_new_tensor_2d(ctx, type, s[1], s[0]);
    in[1] = sheaf_new_tensor_2d(ctx, SHEAF_TYPE_F32, s[1], s[2]);
    return sheaf_mul_mat(ctx, in[0], in[1]);
}

/* shape: d, t, n, query heads of a K/V head, of which there are two */
static struct sheaf_tensor *build_attention(struct sheaf_context *ctx, const int64_t *s,
                                            enum sheaf_type type, struct sheaf_tensor **in) {
    in[0] = sheaf_new_tensor_3d(ctx, SHEAF_TYPE_F32, s[0], s[2], 2 * s[3]);
    in[1] = sheaf_new_tensor_3d(ctx, type, s[0], s[1], 2);
    in[2] = sheaf_new_tensor_3d(ctx, type, s[0], s[1], 2);
    return sheaf_flash_attn_ext(ctx, in[0], in[1], in[2], NULL, 1 / sqrtf((float)s[0]), 0, 0);
}

/* The result on one device; the operands are the same on all. NULL: it failed. */
static float *result_on(sheaf_backend_t backend, build_fn build, const int64_t *shape,
                        enum sheaf_type type, size_t *n) {
    struct sheaf_context *ctx = sheaf_init((struct sheaf_init_params){
        .mem_size = 8 * sheaf_tensor_overhead() + sheaf_graph_overhead(), .no_alloc = true});
    struct sheaf_tensor *in[3] = {0}, *y = build(ctx, shape, type, in);
    struct sheaf_cgraph *graph = sheaf_new_graph(ctx);
    sheaf_backend_buffer_t buffer = NULL;
    enum sheaf_status st = sheaf_build_forward_expand(graph, y);
    float *result = NULL;
    if (!st) st = sheaf_backend_alloc_ctx_tensors(ctx, backend, &buffer);
    for (int i = 0; i < 3 && !st && in[i]; i++) {
        char *bytes = bytes_of(in[i], i);
        st = bytes ? sheaf_backend_tensor_set(in[i], bytes, 0, sheaf_nbytes(in[i]))
                   : SHEAF_STATUS_ALLOC_FAILED;
        free(bytes);
    }
    if (!st) st = sheaf_backend_graph_compute(backend, graph);
    if (!st && (result = malloc(sheaf_nbytes(y))) != NULL)
        st = sheaf_backend_tensor_get(y, result, 0, sheaf_nbytes(y));
    *n = y ? (size_t)sheaf_nelements(y) : 0;
    sheaf_backend_buffer_free(buffer);
    sheaf_free(ctx);
    if (!st) return result;
    fprintf(stderr, "%s\n", sheaf_last_error());
    free(result);
    return NULL;
}

/* Of a device's result against the CPU's. mean: square of the differences over that of the CPU's result,
 * means of both. largest: the difference of an element over the root of the latter; a row or an end that is
 * lost does not show in the mean of millions. */
struct error {
    double mean, largest;
};
static const struct error allowed = {5e-4, 0.1};
static struct error worst;

static bool is_within(struct error e, struct error most) {
    return e.mean <= most.mean && e.largest <= most.largest; /* false for NaN */
}

static struct error error_of(const float *a, const float *b, size_t n) {
    double sum = 0, squares = 0, largest = 0;
    for (size_t i = 0; i < n; i++) {
        const double d = fabs((double)b[i] - (double)a[i]);
        sum += d * d;
        squares += (double)a[i] * (double)a[i];
        if (d > largest) largest = d;
    }
    return (struct error){sum / squares, largest / sqrt(squares / (double)n)};
}

/* NaN: a device failed. */
static struct error compare(const sheaf_backend_t *on, build_fn build, const int64_t *shape,
                            enum sheaf_type type) {
    size_t n = 0;
    float *a = result_on(on[0], build, shape, type, &n),
          *b = result_on(on[1], build, shape, type, &n);
    const struct error e = a && b ? error_of(a, b, n) : (struct error){NAN, NAN};
    free(a);
    free(b);
    return e;
}

static int n_wrong, n_compared;

static void judge(const sheaf_backend_t *on, build_fn build, const char *what, const int64_t *shape,
                  enum sheaf_type type) {
    const struct error e = compare(on, build, shape, type);
    n_compared++;
    if (e.mean > worst.mean) worst.mean = e.mean;
    if (e.largest > worst.largest) worst.largest = e.largest;
    if (is_within(e, allowed)) return;
    n_wrong++;
    printf("wrong: %s of %s, %lld x %lld x %lld x %lld: error %g, of one element %g\n", what,
           sheaf_type_name(type), (long long)shape[0], (long long)shape[1], (long long)shape[2],
           (long long)shape[3], e.mean, e.largest);
}

static void products(const sheaf_backend_t *on) {
    static const enum sheaf_type types[] = {
        SHEAF_TYPE_F32,  SHEAF_TYPE_F16,    SHEAF_TYPE_BF16,   SHEAF_TYPE_Q4_0,
        SHEAF_TYPE_Q4_1, SHEAF_TYPE_Q5_0,   SHEAF_TYPE_Q5_1,   SHEAF_TYPE_Q8_0,
        SHEAF_TYPE_Q2_K, SHEAF_TYPE_Q3_K,   SHEAF_TYPE_Q4_K,   SHEAF_TYPE_Q5_K,
        SHEAF_TYPE_Q6_K, SHEAF_TYPE_IQ4_NL, SHEAF_TYPE_IQ4_XS, SHEAF_TYPE_MXFP4};
    static const int64_t matrices[][2] = {
        {4096, 4096}, {14336, 4096}, {4096, 14336}, {32003, 4096}, {128256, 4096}};
    static const int64_t columns[] = {1, 2, 5, 8, 9, 33, 512};
    for (size_t t = 0; t < sizeof types / sizeof *types; t++) {
        for (size_t m = 0; m < sizeof matrices / sizeof *matrices; m++) {
            const bool common = types[t] == SHEAF_TYPE_F16 || types[t] == SHEAF_TYPE_Q4_0;
            if (matrices[m][0] > 30000 && !common) continue;
            for (size_t c = 0; c < sizeof columns / sizeof *columns; c++) {
                const int64_t odd = matrices[m][0] % 2;
                const int64_t shape[4] = {part(matrices[m][0] - odd, 8) + odd,
                                          part(matrices[m][1], 256), columns[c], 1};
                if (columns[c] == 512 && (!common || divisor > 1)) continue;
                judge(on, build_product, "a product", shape, types[t]);
            }
        }
    }
}

/* Taken an element at a time; making them takes the host long. */
static void plain_products(const sheaf_backend_t *on) {
    static const enum sheaf_type types[] = {SHEAF_TYPE_NVFP4,  SHEAF_TYPE_Q1_0,  SHEAF_TYPE_Q2_0,
                                            SHEAF_TYPE_TQ1_0,  SHEAF_TYPE_TQ2_0, SHEAF_TYPE_IQ2_XXS,
                                            SHEAF_TYPE_IQ2_XS, SHEAF_TYPE_IQ2_S, SHEAF_TYPE_IQ3_XXS,
                                            SHEAF_TYPE_IQ3_S,  SHEAF_TYPE_IQ1_S, SHEAF_TYPE_IQ1_M};
    for (size_t t = 0; t < sizeof types / sizeof *types; t++) {
        for (int64_t n = 1; n < 10; n += 8) {
            const int64_t shape[4] = {part(96, 8) + 1, part(4096, 256), n, 1};
            judge(on, build_product, "a product", shape, types[t]);
        }
    }
}

static void attention(const sheaf_backend_t *on) {
    static const enum sheaf_type types[] = {SHEAF_TYPE_F16, SHEAF_TYPE_Q8_0, SHEAF_TYPE_Q4_0};
    static const int64_t heads[] = {64, 128, 256}, keys[] = {1, 255, 4096, 33000};
    static const int64_t queries[] = {1, 7, 8, 512}, groups[] = {1, 4, 8};
    for (int i = 0; i < 3 * 3 * 4 * 4 * 3; i++) {
        const int64_t shape[4] = {heads[i % 3], part(keys[i / 3 % 4], 1),
                                  part(queries[i / 12 % 4], 1), groups[i / 48 % 3]};
        if (queries[i / 12 % 4] == 512 && keys[i / 3 % 4] > 4096) continue; /* minutes on the CPU */
        judge(on, build_attention, "attention", shape, types[i / 144]);
    }
}

static int shapes(const sheaf_backend_t *on) {
    products(on);
    plain_products(on);
    attention(on);
    printf("%d shapes, %d wrong; error at most %g, of one element %g\n", n_compared, n_wrong,
           worst.mean, worst.largest);
    for (int i = 0; i < 3; i++) free(kept[i].bytes);
    return n_wrong ? 1 : 0;
}

/* ---- memory ---- */

static double free_mib(sheaf_backend_dev_t dev) {
    size_t avail = 0, total = 0;
    sheaf_backend_dev_memory(dev, &avail, &total);
    return (double)avail / 1048576;
}

/* n prompts, whose lengths go round 40: graphs of as many shapes, made anew. */
static enum sheaf_status rebuild(struct sheaf_model *model, int n) {
    static int32_t ids[41];
    enum sheaf_status st = SHEAF_STATUS_SUCCESS;
    for (int i = 0; i < 41; i++) ids[i] = i + 3;
    for (int i = 0; i < n && !st; i++) {
        sheaf_model_cache_clear(model);
        st = sheaf_model_prompt(model, 0, ids, 1 + i % 40, NULL, NULL);
    }
    return st;
}

/* Is a buffer that is larger than all memory refused by its status? */
static bool refuses(sheaf_backend_dev_t dev) {
    size_t avail = 0, total = 0;
    sheaf_backend_buffer_t buffer = NULL;
    sheaf_backend_dev_memory(dev, &avail, &total);
    const enum sheaf_status st = sheaf_backend_buft_alloc_buffer(
        sheaf_backend_dev_buffer_type(dev), total + ((size_t)1 << 30), &buffer);
    sheaf_backend_buffer_free(buffer);
    if (st != SHEAF_STATUS_ALLOC_FAILED) printf("a buffer larger than the memory: status %d\n", st);
    return st == SHEAF_STATUS_ALLOC_FAILED;
}

/* n graphs may keep what 40 shapes need, in the replays that are bounded by nodes; not more behind the
 * first third. */
static int memory(sheaf_backend_dev_t dev, const char *path, int n) {
    struct sheaf_model_params p = sheaf_model_default_params();
    struct sheaf_model *model = NULL;
    double mib[5];
    p.path = path;
    p.devices = sheaf_backend_dev_name(dev);
    mib[0] = free_mib(dev);
    enum sheaf_status st = sheaf_model_open(&p, &model);
    mib[1] = free_mib(dev);
    if (!st) st = rebuild(model, 1);
    mib[2] = free_mib(dev);
    if (!st) st = rebuild(model, n / 3);
    mib[3] = free_mib(dev);
    if (!st) st = rebuild(model, n - n / 3);
    mib[4] = free_mib(dev);
    const bool refused = !st && refuses(dev);
    if (refused) st = rebuild(model, 3);
    if (st) fprintf(stderr, "%s\n", sheaf_last_error());
    sheaf_model_free(model);
    printf(
        "free MiB before %.0f, with the model %.0f, behind a token %.0f, %d graphs %.0f, %d graphs "
        "%.0f\n",
        mib[0], mib[1], mib[2], n / 3, mib[3], n, mib[4]);
    const bool grows = mib[3] - mib[4] > 64;
    if (grows) printf("the last graphs took %.0f MiB\n", mib[3] - mib[4]);
    return st || !refused || grows ? 1 : 0;
}

/* ---- */

static int why(const char *kind) {
    const char *(*reason)(void);
    if (sheaf_backend_load_all()) return 1;
    for (size_t i = 0; i < sheaf_backend_reg_count(); i++) {
        sheaf_backend_reg_t reg = sheaf_backend_reg_get(i);
        void *p = sheaf_backend_reg_get_proc_address(reg, "sheaf_backend_cuda_no_device");
        if (!p || strcmp(sheaf_backend_reg_name(reg), kind) != 0) continue;
        memcpy(&reason, &p, sizeof reason);
        printf("%s\n", reason());
        return 0;
    }
    return 1;
}

static sheaf_backend_dev_t find(const char *name) {
    const sheaf_backend_dev_t *devices;
    size_t n = 0;
    if (sheaf_backend_load_all() || start_job() || sheaf_world_devices(&devices, &n)) return NULL;
    for (size_t i = 0; i < n; i++)
        if (!strcmp(sheaf_backend_dev_name(devices[i]), name)) return devices[i];
    sheaf_set_error(SHEAF_STATUS_INVALID, "there is no device %s", name);
    return NULL;
}

int main(int argc, char **argv) {
    const bool of_shapes = argc >= 3 && !strcmp(argv[1], "shapes");
    const int number = argc > 3 ? atoi(argv[argc - 1]) : 0;
    if (argc == 3 && !strcmp(argv[1], "why")) return why(argv[2]);
    if (!of_shapes && (argc < 4 || strcmp(argv[1], "memory") != 0)) {
        fprintf(stderr,
                "usage: helper-gpu shapes DEVICE [DIVISOR] | memory DEVICE MODEL [N] | why KIND\n");
        return 2;
    }
    sheaf_backend_dev_t dev = find(argv[2]);
    sheaf_backend_t on[2] = {NULL, NULL};
    int status = 1;
    if (dev && !of_shapes) status = memory(dev, argv[3], argc > 4 && number > 2 ? number : 300);
    if (of_shapes && number > 1) divisor = number;
    if (dev && of_shapes && !sheaf_backend_dev_init(cpu_of(), NULL, &on[0]) &&
        !sheaf_backend_dev_init(dev, NULL, &on[1]))
        status = shapes(on);
    if (status && *sheaf_last_error()) fprintf(stderr, "%s\n", sheaf_last_error());
    sheaf_backend_free(on[1]);
    sheaf_backend_free(on[0]);
    sheaf_world_finalize();
    return status;
}
