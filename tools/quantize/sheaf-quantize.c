/* sheaf-quantize: writes a GGUF file anew with its matrices in other types.
 *
 * One tensor is in memory at a time. Vectors and tensors of integers are copied, and so is all
 * metadata except the file type. Exit codes: 0 done, 1 failed, 2 bad command line, 130
 * interrupted. */
#include <inttypes.h>
#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "sheaf/sheaf.h"

#include "base/text.h"
#include "base/thread.h"
#include "common/interrupt.h"
#include "common/output.h"
#include "common/tool.h"
#include "importance.h"
#include "model/file/mix.h"

enum { MAX_THREADS = 256 };
static const float MOST_HALF = 65504; /* of F16, which scales of blocks are, too */

struct quantizer {
    const char *in_path, *out_path, *importance_path;
    const struct sheaf__mix *mix;
    struct sheaf__mix_model model;
    struct sheaf_gguf *in, *out;
    enum sheaf_type *types; /* [tensors of in] in the new file */
    int64_t n;
    int threads;
    bool dry_run;
    char *data, *result; /* of one tensor */
    struct importance importance;
};

static enum sheaf_status no_memory(void) {
    return sheaf_set_error(SHEAF_STATUS_ALLOC_FAILED, "no memory for a tensor");
}

/* ---- the plan ---- */

/* A number of the model; `otherwise` if the file does not have it, 0 if not as one number. */
static int64_t of_model(const struct quantizer *q, const char *arch, const char *what,
                        int64_t otherwise) {
    char key[128];
    uint64_t n = 0;
    snprintf(key, sizeof key, "%.60s.%.40s", arch, what);
    if (sheaf_gguf_find_key(q->in, key) < 0) return otherwise;
    return sheaf_gguf_get_u64(q->in, key, &n) || n > INT32_MAX ? 0 : (int64_t)n;
}

static void find_types(struct quantizer *q) {
    const char *arch = "";
    sheaf_gguf_get_str(q->in, "general.architecture", &arch);
    const int64_t layers = of_model(q, arch, "block_count", 0);
    const int64_t heads = of_model(q, arch, "attention.head_count", 0);
    const int64_t kv = of_model(q, arch, "attention.head_count_kv", heads);
    const int64_t gqa = kv ? heads / kv : 0;
    q->model = (struct sheaf__mix_model){layers, sheaf_gguf_find_tensor(q->in, "output.weight") < 0,
                                         gqa, of_model(q, arch, "expert_count", 0),
                                         sheaf__mix_is_70b(arch, layers, gqa)};
    for (int64_t i = 0; i < q->n; i++) {
        const struct sheaf_gguf_tensor *t = sheaf_gguf_tensor(q->in, i);
        const bool floats = t->type != SHEAF_TYPE_I32 && t->type != SHEAF_TYPE_I64;
        q->types[i] = t->n_dims > 1 && floats
                          ? sheaf__mix_type(q->mix, &q->model, t->name, t->ne[0])
                          : t->type;
    }
}

static enum sheaf_status add_all(struct quantizer *q) {
    enum sheaf_status status = sheaf_gguf_copy_kv(q->out, q->in);
    if (!status)
        status = sheaf_gguf_set_u32(q->out, "general.file_type", sheaf__mix_file_type(q->mix));
    if (!status) status = sheaf_gguf_set_u32(q->out, "general.quantization_version", 2);
    if (!status && q->importance_path)
        status = sheaf_gguf_set_str(q->out, "quantize.imatrix.file", q->importance_path);
    for (int64_t i = 0; i < q->n && !status; i++) {
        const struct sheaf_gguf_tensor *t = sheaf_gguf_tensor(q->in, i);
        status = sheaf_gguf_add_tensor(q->out, t->name, q->types[i], t->n_dims, t->ne, NULL);
    }
    return status;
}

/* ---- a tensor ---- */

/* Rows first to end - 1 of a tensor, by one thread. */
struct part {
    const struct quantizer *q;
    const struct sheaf_gguf_tensor *tensor;
    enum sheaf_type to;
    int64_t first, end;
    enum sheaf_status status;
    int64_t bad_row; /* of INVALID: an element of it is not finite, ... */
    float bad;       /* or this large, and not finite in the new type */
};

/* The largest magnitude; INFINITY if an element is infinite or no number. Without a sign, the bits
 * of floats are in the order of their values, those of NaN behind infinity. */
static float largest(const float *row, int64_t n) {
    uint32_t most = 0;
    float value;
    for (int64_t i = 0; i < n; i++) {
        uint32_t bits;
        memcpy(&bits, &row[i], sizeof bits);
        bits &= 0x7fffffff;
        if (bits > most) most = bits;
    }
    memcpy(&value, &most, sizeof value);
    return isfinite(value) ? value : INFINITY;
}

/* How much the square of an element's error counts: the importance of its column, if that is known,
 * times its magnitude and twice the mean of the row. Squares alone are least where large elements
 * are cut down, which shrinks what a matrix does; models notice that more than other errors. */
static void weigh(const float *row, const float *columns, int64_t n, float *weights) {
    double squares = 0;
    for (int64_t i = 0; i < n; i++) squares += (double)row[i] * (double)row[i];
    const float mean = (float)sqrt(squares / (double)n);
    for (int64_t i = 0; i < n; i++)
        weights[i] = (fabsf(row[i]) + 2 * mean) * (columns ? columns[i] : 1);
}

/* A row by way of floats; row [n], weights [n]. One NaN or infinity makes every logit NaN: the file would be of
 * no use, and nothing would say so before it is run. */
static enum sheaf_status convert_row(struct part *p, int64_t r, float *row, float *weights) {
    const int64_t n = p->tensor->ne[0];
    const char *from = p->q->data + (size_t)r * sheaf_row_size(p->tensor->type, n);
    char *to = p->q->result + (size_t)r * sheaf_row_size(p->to, n);
    enum sheaf_status status = sheaf_to_float(p->tensor->type, from, row, n);
    if (status) return status;
    p->bad_row = r;
    p->bad = largest(row, n);
    if (p->bad >= INFINITY) return SHEAF_STATUS_INVALID;
    weigh(row, importance_of_row(&p->q->importance, p->tensor, r), n, weights);
    status = sheaf_quantize(p->to, row, weights, to, n);
    if (status || p->bad <= MOST_HALF) return status;
    status = sheaf_to_float(p->to, to, row, n);
    return !status && largest(row, n) >= INFINITY ? SHEAF_STATUS_INVALID : status;
}

static void *convert(void *arg) {
    struct part *p = arg;
    float *row = malloc(2 * (size_t)p->tensor->ne[0] * sizeof *row);
    p->status = row ? SHEAF_STATUS_SUCCESS : SHEAF_STATUS_ALLOC_FAILED;
    for (int64_t r = p->first; r < p->end && !p->status && !tool_interrupted(); r++)
        p->status = convert_row(p, r, row, row + p->tensor->ne[0]);
    free(row);
    return NULL;
}

static enum sheaf_status explain(const struct part *p) {
    const char *name = p->tensor->name;
    if (p->status != SHEAF_STATUS_INVALID)
        return sheaf_set_error(p->status, "cannot convert tensor '%s'", name);
    if (p->bad >= INFINITY)
        return sheaf_set_error(SHEAF_STATUS_INVALID,
                               "tensor '%s' has an infinity or NaN in row %" PRId64
                               ": no model computes with it; get the file anew",
                               name, p->bad_row);
    return sheaf_set_error(SHEAF_STATUS_INVALID,
                           "tensor '%s' has a value of magnitude %g in row %" PRId64
                           ", which %s cannot hold: take another type (BF16, F32)",
                           name, (double)p->bad, p->bad_row, sheaf_type_name(p->to));
}

static enum sheaf_status convert_all(const struct quantizer *q, const struct sheaf_gguf_tensor *t,
                                     enum sheaf_type to) {
    struct part parts[MAX_THREADS];
    pthread_t threads[MAX_THREADS];
    bool started[MAX_THREADS] = {false};
    const int64_t rows = t->ne[1] * t->ne[2] * t->ne[3];
    enum sheaf_status status = SHEAF_STATUS_SUCCESS;
    for (int k = 0; k < q->threads; k++) {
        parts[k] =
            (struct part){q, t, to, rows * k / q->threads, rows * (k + 1) / q->threads, 0, 0, 0};
        started[k] = k > 0 && sheaf__thread_start(&threads[k], convert, &parts[k]) == 0;
    }
    for (int k = 0; k < q->threads; k++) /* parts without a thread are done here */
        if (!started[k]) convert(&parts[k]);
    for (int k = 0; k < q->threads; k++) {
        if (started[k]) pthread_join(threads[k], NULL);
        if (!status && parts[k].status) status = explain(&parts[k]);
    }
    return status;
}

static void say(const struct quantizer *q, int64_t i) {
    const struct sheaf_gguf_tensor *t = sheaf_gguf_tensor(q->in, i);
    const int64_t rows = t->ne[1] * t->ne[2] * t->ne[3];
    const double mib = 1024 * 1024;
    printf("[%4" PRId64 "/%4" PRId64 "] %-32s [%6" PRId64 ", %6" PRId64 "] %6s -> %6s, %8.2f -> "
           "%8.2f MiB\n",
           i + 1, q->n, t->name, t->ne[0], rows, sheaf_type_name(t->type),
           sheaf_type_name(q->types[i]), (double)t->size / mib,
           (double)sheaf_row_size(q->types[i], t->ne[0]) * (double)rows / mib);
    fflush(stdout);
}

/* The status ends the writing, which removes what it has written. */
static enum sheaf_status check_interrupt(const struct quantizer *q) {
    if (!tool_interrupted()) return SHEAF_STATUS_SUCCESS;
    return sheaf_set_error(SHEAF_STATUS_ABORTED, "interrupted: %s was not written", q->out_path);
}

/* Fits sheaf_gguf_source_fn. */
static enum sheaf_status give(void *user, int64_t i, const void **data) {
    struct quantizer *q = user;
    const struct sheaf_gguf_tensor *t = sheaf_gguf_tensor(q->in, i);
    const size_t rows = (size_t)(t->ne[1] * t->ne[2] * t->ne[3]);
    say(q, i);
    free(q->data);
    free(q->result);
    q->data = malloc(t->size + 1);
    q->result = malloc(sheaf_row_size(q->types[i], t->ne[0]) * rows + 1);
    if (!q->data || !q->result) return no_memory();
    enum sheaf_status status = sheaf_gguf_read(q->in, t, 0, q->data, t->size);
    if (!status && i == q->n - 1) status = sheaf_gguf_check_unchanged(q->in);
    if (!status) status = importance_read(&q->importance, t);
    if (status) return status;
    *data = q->types[i] == t->type ? q->data : q->result;
    if (q->types[i] != t->type) status = convert_all(q, t, q->types[i]);
    return status ? status : check_interrupt(q);
}

/* ---- the whole file ---- */

static enum sheaf_status check(const struct quantizer *q) {
    struct stat in, out;
    uint64_t parts = 0;
    if (stat(q->in_path, &in) == 0 && stat(q->out_path, &out) == 0 && in.st_dev == out.st_dev &&
        in.st_ino == out.st_ino)
        return sheaf_set_error(SHEAF_STATUS_INVALID,
                               "%s and %s are the same file: give the result another name",
                               q->in_path, q->out_path);
    if (sheaf_gguf_find_key(q->in, "split.count") >= 0 &&
        !sheaf_gguf_get_u64(q->in, "split.count", &parts) && parts > 1)
        return sheaf_set_error(SHEAF_STATUS_UNSUPPORTED,
                               "%s is one of %" PRIu64 " parts: join them first (llama.cpp's "
                               "llama-gguf-split --merge FIRST-PART JOINED.gguf)",
                               q->in_path, parts);
    return SHEAF_STATUS_SUCCESS;
}

static enum sheaf_status quantize(struct quantizer *q) {
    size_t before = 0, after = 0;
    bool again = false;
    enum sheaf_status status = sheaf_gguf_open(q->in_path, &q->in);
    if (!status) status = check(q);
    if (!status && q->importance_path)
        status = importance_open(q->importance_path, q->in, &q->importance);
    if (status) return status;
    q->n = sheaf_gguf_n_tensors(q->in);
    q->types = calloc((size_t)q->n + 1, sizeof *q->types);
    q->out = sheaf_gguf_new();
    if (!q->types || !q->out) return no_memory();
    find_types(q);
    for (int64_t i = 0; i < q->n; i++) {
        const struct sheaf_gguf_tensor *t = sheaf_gguf_tensor(q->in, i);
        before += t->size;
        after += sheaf_row_size(q->types[i], t->ne[0]) * (size_t)(t->ne[1] * t->ne[2] * t->ne[3]);
        again = again || (sheaf_is_quantized(t->type) && q->types[i] != t->type);
        if (q->dry_run) say(q, i);
    }
    if (again)
        fprintf(stderr,
                "sheaf-quantize: some tensors of %s are quantized already: the result is "
                "worse than from F16 or F32\n",
                q->in_path);
    if (!q->dry_run) {
        status = add_all(q);
        if (!status) status = sheaf_gguf_write_from(q->out, q->out_path, give, q);
    }
    if (!status)
        printf("%s: %.2f MiB -> %.2f MiB%s\n", sheaf__mix_name(q->mix),
               (double)before / (1024 * 1024), (double)after / (1024 * 1024),
               q->dry_run ? " (nothing written)" : "");
    if (!status && q->importance_path)
        printf("importance of %" PRId64 " of %" PRId64 " tensors from %s\n", q->importance.found,
               q->n, q->importance_path);
    return status;
}

/* ---- the command line ---- */

struct quantize_options {
    const char *words[3]; /* IN OUT TYPE */
    int n_words;
    const char *importance;
    int64_t threads;
    bool dry_run, help, version;
};

static const char synopsis[] =
    "usage: sheaf-quantize [--dry-run] [--threads N] [--imatrix FILE] IN.gguf OUT.gguf TYPE\n"
    "Writes IN with its matrices in other types.\n";

#define AT(field) offsetof(struct quantize_options, field)
static const struct option options[] = {
    {"arguments", NULL, OPTION_WORDS, AT(words), AT(n_words), 0, 3, NULL, NULL, NULL},
    {"--dry-run", NULL, OPTION_FLAG, AT(dry_run), 0, 0, 0, NULL,
     "print the types and sizes, write nothing", NULL},
    {"--imatrix", NULL, OPTION_TEXT, AT(importance), 0, 0, 0, "FILE",
     "importance of columns, of llama.cpp's llama-imatrix (GGUF)", NULL},
    {"--threads", "-t", OPTION_INT, AT(threads), 0, 1, MAX_THREADS, "N", "(all CPUs)", NULL},
    TOOL_HELP(AT(help)),
    TOOL_VERSION(AT(version)),
};
#undef AT

/* "TYPE is one of: ..." into text. */
static struct tool describe(char *text, size_t size) {
    struct sheaf__text t = {text, size, 0};
    sheaf__put(&t, "TYPE is one of:\n ");
    for (size_t i = 0; i < sheaf__mix_count(); i++)
        sheaf__put(&t, "%s%s", i && i % 12 == 0 ? "\n  " : " ", sheaf__mix_name(sheaf__mix_get(i)));
    sheaf__put(&t, "\n");
    return (struct tool){"sheaf-quantize", synopsis, text, options,
                         sizeof options / sizeof *options};
}

static enum sheaf_status parse(const struct tool *tool, int argc, char **argv,
                               struct quantize_options *o) {
    const enum sheaf_status status = options_parse(tool, argc, argv, o);
    if (status || o->help || o->version) return status;
    if (o->n_words < 3)
        return sheaf_set_error(SHEAF_STATUS_INVALID, "give IN.gguf OUT.gguf TYPE (see --help)");
    if (!sheaf__mix_find(o->words[2]))
        return sheaf_set_error(SHEAF_STATUS_INVALID, "there is no type %.60s (see --help)",
                               o->words[2]);
    return SHEAF_STATUS_SUCCESS;
}

int main(int argc, char **argv) {
    struct quantize_options o = {.threads = sysconf(_SC_NPROCESSORS_ONLN)};
    char types[1024];
    const struct tool tool = describe(types, sizeof types);
    const enum sheaf_status parsed = parse(&tool, argc, argv, &o);
    if (parsed) return tool_refuse(&tool);
    if (o.help || o.version) return tool_answer(&tool, o.help);
    struct quantizer q = {.in_path = o.words[0],
                          .out_path = o.words[1],
                          .importance_path = o.importance,
                          .mix = sheaf__mix_find(o.words[2]),
                          .threads = o.threads > MAX_THREADS ? MAX_THREADS : (int)o.threads,
                          .dry_run = o.dry_run};
    tool_catch_signals(false);
    const enum sheaf_status status = quantize(&q);
    if (status) fprintf(stderr, "sheaf-quantize: %s\n", sheaf_last_error());
    free(q.types);
    free(q.data);
    free(q.result);
    importance_close(&q.importance);
    sheaf_gguf_free(q.in);
    sheaf_gguf_free(q.out);
    return output_end(status == SHEAF_STATUS_ABORTED ? TOOL_INTERRUPTED : status ? TOOL_FAILED : 0);
}
