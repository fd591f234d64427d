/* Every op of every device against the portable reference.
 *
 *   sheaf-backend-ops test     runs every case: each CPU device and, over one to four of them (or,
 *                              under mpirun, over all of the job), the meta device, with operands
 *                              mirrored, cut along each axis in turn, and cut at random
 *   sheaf-backend-ops support  which op runs on which types, as Markdown tables
 *   sheaf-backend-ops perf     time of the large cases
 *
 * A case that a device says it cannot run is counted; on a meta device whose members can run it, it
 * is a failure, as is a result that differs. Under mpirun every rank makes the same calls, so no
 * rank takes a decision of its own. */
#include <math.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "backend_ops.h"
#include "base/clock.h"
#include "base/hash.h"
#include "base/launcher.h"
#include "common/tool.h"

enum { MAX_SHOWN = 20, MAX_MEMBERS = 64, MAX_METAS = 4, MAX_TARGETS = 12 + MAX_METAS };

struct options {
    const char *mode[1], *op, *type, *device, *members;
    int n_modes;
    int32_t n_random; /* placements at random for each case */
    float error;      /* allowed of every op, where its own limit is less */
    bool verbose, tamper, help, version;
};

/* How a meta device lays the operands of the case that runs. */
struct placement {
    const struct op_case *c;
    int n_members, n_random;
    int axis[MAX_OPERANDS]; /* of the leaf; -1: mirrored */
    uint64_t seed;
};

struct target {
    sheaf_backend_dev_t dev;
    sheaf_backend_t backend;
    struct placement placement; /* meta devices only */
    bool meta;
    size_t n_cases, n_runs, n_wrong, n_refused, n_unsupported;
};

static void say_error(const char *what) {
    if (sheaf_world_reports_error() || sheaf_world_size() == 1)
        fprintf(stderr, "sheaf-backend-ops: %s: %s\n", what, sheaf_last_error());
}

/* ---- placements ---- */

/* A random partition of the axis in whole blocks; members may get none. */
static enum sheaf_status place(const struct sheaf_tensor *t, const void *user,
                               struct sheaf_split_state **out) {
    const struct placement *p = user;
    int k = 0;
    if (sscanf(t->name, "x%d", &k) != 1 || k < 0 || k >= MAX_OPERANDS) k = 0;
    const int axis = p->axis[k];
    *out = NULL;
    if (axis < 0) {
        *out = sheaf_split_state_mirrored(p->n_members);
    } else {
        const int64_t block = axis == 0 ? sheaf_blck_size(t->type) : 1, units = t->ne[axis] / block;
        int64_t counts[MAX_MEMBERS] = {0};
        uint64_t seed = p->seed + (uint64_t)k;
        /* every member's weight is 0 to 3: holes are common, equal shares too */
        int64_t weights[MAX_MEMBERS], total = 0, given = 0, sum = 0;
        for (int j = 0; j < p->n_members; j++) {
            weights[j] = (int64_t)(sheaf__random(&seed) % 4);
            total += weights[j];
        }
        for (int j = 0; j < p->n_members; j++) {
            sum += weights[j];
            const int64_t end = j == p->n_members - 1 ? units : total ? units * sum / total : 0;
            counts[j] = end - given;
            given = end;
        }
        *out = sheaf_split_state_cut((enum sheaf_split_axis)axis, p->n_members, counts, block);
    }
    return *out ? SHEAF_STATUS_SUCCESS
                : sheaf_set_error(SHEAF_STATUS_ALLOC_FAILED, "no memory for a split state");
}

static int64_t leaf_units(const struct operand *o, int axis) {
    static const int from[][SHEAF_MAX_DIMS] = {
        [LAYOUT_PLAIN] = {0, 1, 2, 3},
        [LAYOUT_GAP] = {0, 1, 2, 3},
        [LAYOUT_PERMUTED] = {0, 2, 1, 3},
        [LAYOUT_TRANSPOSED] = {1, 0, 2, 3},
    };
    const int64_t gap = o->layout == LAYOUT_GAP && axis < 2;
    const int64_t ne = o->ne[from[o->layout][axis]];
    return axis == 0 ? ne / sheaf_blck_size(o->type) + gap : ne + gap;
}

/* Placement number i of a case; false when there are no more. */
static bool next_placement(struct placement *p, const struct op_case *c, int i) {
    p->c = c;
    p->seed = 0x5EAF + (uint64_t)i;
    for (int k = 0; k < MAX_OPERANDS; k++) p->axis[k] = -1;
    if (i == 0) return true;
    if (p->n_members == 1) return false;
    int left = c->large ? 0 : i - 1;
    for (int k = 0; k < c->n_in && !c->large; k++) {
        for (int axis = 0; axis < SHEAF_MAX_DIMS; axis++) {
            if (leaf_units(&c->in[k], axis) < 2) continue;
            if (left-- == 0) {
                p->axis[k] = axis;
                return true;
            }
        }
    }
    if (c->large) left = i - 1;
    if (left >= p->n_random) return false;
    uint64_t seed = p->seed * 77;
    for (int k = 0; k < c->n_in; k++) {
        const int axis = (int)(sheaf__random(&seed) % (SHEAF_MAX_DIMS + 1)) - 1;
        if (axis >= 0 && leaf_units(&c->in[k], axis) > 1) p->axis[k] = axis;
    }
    return true;
}

static const char *placement_text(const struct target *t, char *text, size_t size) {
    size_t used = 0;
    text[0] = 0;
    for (int k = 0; t->meta && k < t->placement.c->n_in && used < size; k++) {
        const int axis = t->placement.axis[k];
        used += (size_t)(axis < 0 ? snprintf(text + used, size - used, " M")
                                  : snprintf(text + used, size - used, " S%d", axis));
    }
    return text;
}

/* ---- comparing ---- */

/* Normalised mean square error; infinite if the values differ in kind. */
static double error_of(const float *want, const float *got, size_t n) {
    double difference = 0, size = 0;
    for (size_t i = 0; i < n; i++) {
        if (isnan(want[i]) && isnan(got[i])) continue;
        if (!isfinite(want[i]) || !isfinite(got[i])) {
            if (want[i] == got[i]) continue;
            return INFINITY;
        }
        const double d = (double)want[i] - (double)got[i];
        difference += d * d;
        size += (double)want[i] * (double)want[i];
    }
    return difference == 0 ? 0 : size == 0 ? INFINITY : difference / size;
}

static void report(const struct target *t, const struct op_case *c, const char *what, bool shown) {
    char text[256], where[64];
    if (!shown) return;
    printf("rank %d %s %s(%s)%s: %s\n", sheaf_world_rank(), sheaf_backend_dev_name(t->dev),
           c->family->name, op_case_text(c, text, sizeof text),
           placement_text(t, where, sizeof where), what);
}

/* Does a member of this rank not run the op? Then the meta device over it cannot. */
static bool a_member_lacks(const struct target *t, const struct op_case *c) {
    bool lacks = false;
    struct sheaf_context *ctx = sheaf_init(
        (struct sheaf_init_params){.mem_size = 32 * sheaf_tensor_overhead(), .no_alloc = true});
    const struct sheaf_tensor *op = ctx ? op_case_build(ctx, c) : NULL;
    for (int i = 0; op && i < t->placement.n_members && !lacks; i++) {
        sheaf_backend_dev_t member = sheaf_backend_meta_dev_member(t->dev, (size_t)i);
        lacks = sheaf_world_device_rank(member) == sheaf_world_rank() &&
                !sheaf_backend_dev_supports_op(member, op);
    }
    sheaf_free(ctx);
    return lacks;
}

static void run_one(struct target *t, const struct op_case *c, const struct op_data *data,
                    const float *want, size_t n_want, const struct options *o) {
    struct op_rig rig;
    float *got = NULL;
    size_t n = 0;
    enum sheaf_status st = op_rig_up(&rig, t->backend, c, data);
    const bool shown = t->n_wrong + t->n_refused < MAX_SHOWN;
    char text[600];
    t->n_runs++;
    if (st == SHEAF_STATUS_UNSUPPORTED && (!t->meta || a_member_lacks(t, c))) {
        t->n_unsupported++;
    } else {
        if (!st) st = sheaf_backend_graph_compute(t->backend, rig.graph);
        if (!st) st = op_rig_result(&rig, &got, &n);
        if (st) {
            snprintf(text, sizeof text, "refused: %s", sheaf_last_error());
            report(t, c, text, shown);
            t->n_refused++;
        } else {
            if (o->tamper && n) got[n / 2] += 1;
            const double e = n == n_want ? error_of(want, got, n) : INFINITY;
            const double most = fmax(c->family->max_error, (double)o->error);
            if (!(e <= most)) {
                snprintf(text, sizeof text, "wrong: error %g, at most %g", e, most);
                report(t, c, text, shown);
                t->n_wrong++;
            }
        }
    }
    free(got);
    op_rig_down(&rig);
}

static void run_case(struct target *t, const struct op_case *c, const struct op_data *data,
                     const float *want, size_t n, const struct options *o) {
    t->n_cases++;
    if (!t->meta) {
        run_one(t, c, data, want, n, o);
        return;
    }
    for (int i = 0; next_placement(&t->placement, c, i) && !sheaf_world_failed(); i++)
        run_one(t, c, data, want, n, o);
}

static bool chosen_op(const struct options *o, const struct op_case *c) {
    return !o->op || !strcasecmp(o->op, c->family->name);
}
static bool chosen(const struct options *o, const struct op_case *c) {
    return chosen_op(o, c) &&
           (!o->type ||
            (c->n_in && !strcasecmp(o->type, sheaf_type_name(c->in[c->family->typed].type))));
}

static bool test(struct target *targets, int n_targets, sheaf_backend_t reference,
                 const struct op_list *list, const struct options *o) {
    bool ok = true;
    for (size_t i = 0; i < list->n && !sheaf_world_failed(); i++) {
        const struct op_case *c = &list->cases[i];
        if (!chosen(o, c)) continue;
        struct op_rig rig = {0};
        struct op_data data;
        float *want = NULL;
        size_t n = 0;
        char text[256];
        if (o->verbose && sheaf_world_rank() == 0)
            fprintf(stderr, "%s(%s)\n", c->family->name, op_case_text(c, text, sizeof text));
        enum sheaf_status st = op_data_make(&data, c, i);
        if (!st) st = op_rig_up(&rig, reference, c, &data);
        if (!st) st = sheaf_backend_graph_compute(reference, rig.graph);
        if (!st) st = op_rig_result(&rig, &want, &n);
        if (st) {
            printf("reference %s(%s): %s\n", c->family->name, op_case_text(c, text, sizeof text),
                   sheaf_last_error());
            ok = false;
        }
        for (int t = 0; t < n_targets && !st; t++) run_case(&targets[t], c, &data, want, n, o);
        free(want);
        op_rig_down(&rig);
        op_data_free(&data);
    }
    if (sheaf_world_failed()) {
        printf("rank %d stopped: %s\n", sheaf_world_rank(), sheaf_last_error());
        ok = false;
    }
    for (int t = 0; t < n_targets; t++) {
        const struct target *x = &targets[t];
        ok = ok && !x->n_wrong && !x->n_refused;
        if (sheaf_world_rank() == 0) {
            printf("%-6s %zu cases, %zu runs: %zu wrong, %zu refused, %zu unsupported\n",
                   sheaf_backend_dev_name(x->dev), x->n_cases, x->n_runs, x->n_wrong, x->n_refused,
                   x->n_unsupported);
        }
    }
    return ok;
}

/* ---- support ---- */

static const char *support_cell(const struct target *t, const struct op_list *list,
                                const struct op_family *f, enum sheaf_type type) {
    size_t yes = 0, all = 0;
    for (size_t i = 0; i < list->n; i++) {
        const struct op_case *c = &list->cases[i];
        if (c->family != f || c->in[f->typed].type != type) continue;
        struct sheaf_context *ctx = sheaf_init(
            (struct sheaf_init_params){.mem_size = 32 * sheaf_tensor_overhead(), .no_alloc = true});
        struct sheaf_tensor *y = ctx ? op_case_build(ctx, c) : NULL;
        all++;
        yes += y && sheaf_backend_dev_supports_op(t->dev, y);
        sheaf_free(ctx);
    }
    return !all ? " " : yes == all ? "yes" : yes ? "some" : "no";
}

/* The rows of n types; `all`: also of ops that do not exist for them. */
static void support_table(const struct target *t, const struct op_list *list,
                          const struct options *o, const enum sheaf_type *types, int n, bool all) {
    const bool shown = sheaf_world_rank() == 0; /* the other ranks take part in the calls */
    if (shown) printf("\n|op|");
    for (int i = 0; i < n && shown; i++) printf("%s|", sheaf_type_name(types[i]));
    if (shown) printf("\n|---|");
    for (int i = 0; i < n && shown; i++) printf("---|");
    if (shown) printf("\n");
    for (size_t f = 0; f < n_op_families; f++) {
        const char *cells[SHEAF_TYPE_COUNT];
        bool any = all;
        if (o->op && strcasecmp(o->op, op_families[f].name)) continue;
        for (int i = 0; i < n; i++) {
            cells[i] = support_cell(t, list, &op_families[f], types[i]);
            any = any || cells[i][0] != ' ';
        }
        if (!shown || !any) continue;
        printf("| %s |", op_families[f].name);
        for (int i = 0; i < n; i++) printf(" %s |", cells[i]);
        printf("\n");
    }
}

static void support(const struct target *targets, int n_targets, const struct op_list *list,
                    const struct options *o) {
    static const enum sheaf_type types[] = {
        SHEAF_TYPE_F32,    SHEAF_TYPE_F16,    SHEAF_TYPE_BF16, SHEAF_TYPE_I32,  SHEAF_TYPE_I64,
        SHEAF_TYPE_Q4_0,   SHEAF_TYPE_Q4_1,   SHEAF_TYPE_Q5_0, SHEAF_TYPE_Q5_1, SHEAF_TYPE_Q8_0,
        SHEAF_TYPE_Q4_K,   SHEAF_TYPE_Q5_K,   SHEAF_TYPE_Q6_K, SHEAF_TYPE_Q2_K, SHEAF_TYPE_Q3_K,
        SHEAF_TYPE_IQ4_NL, SHEAF_TYPE_IQ4_XS, SHEAF_TYPE_MXFP4};
    static const enum sheaf_type rarer[] = {SHEAF_TYPE_NVFP4,  SHEAF_TYPE_Q1_0,  SHEAF_TYPE_Q2_0,
                                            SHEAF_TYPE_TQ1_0,  SHEAF_TYPE_TQ2_0, SHEAF_TYPE_IQ2_XXS,
                                            SHEAF_TYPE_IQ2_XS, SHEAF_TYPE_IQ2_S, SHEAF_TYPE_IQ3_XXS,
                                            SHEAF_TYPE_IQ3_S,  SHEAF_TYPE_IQ1_S, SHEAF_TYPE_IQ1_M};
    for (int t = 0; t < n_targets; t++) {
        if (sheaf_world_rank() == 0) printf("\n## %s\n", sheaf_backend_dev_name(targets[t].dev));
        support_table(&targets[t], list, o, types, sizeof types / sizeof *types, true);
        support_table(&targets[t], list, o, rarer, sizeof rarer / sizeof *rarer, false);
    }
}

/* ---- perf ---- */

static bool perf(struct target *targets, int n_targets, const struct op_list *list,
                 const struct options *o) {
    bool ok = true;
    for (size_t i = 0; i < list->n && !sheaf_world_failed(); i++) {
        const struct op_case *c = &list->cases[i];
        struct op_data data;
        if (!c->large || !chosen(o, c)) continue;
        if (op_data_make(&data, c, i)) {
            say_error(c->family->name);
            return false;
        }
        for (int k = 0; k < n_targets; k++) {
            struct target *t = &targets[k];
            struct op_rig rig = {0};
            char text[256];
            next_placement(&t->placement, c, 0);
            enum sheaf_status st = op_rig_up(&rig, t->backend, c, &data);
            if (!st) st = sheaf_backend_graph_compute(t->backend, rig.graph); /* warm */
            int n = 0;
            double begin = sheaf__seconds(), spent = 0;
            /* a fixed number under mpirun, where ranks must agree */
            while (!st && (sheaf_world_size() > 1 ? n < 50 : n < 3 || spent < 0.2)) {
                st = sheaf_backend_graph_compute(t->backend, rig.graph);
                spent = sheaf__seconds() - begin;
                n++;
            }
            if (st) {
                ok = false;
                say_error(c->family->name);
            } else if (sheaf_world_rank() == 0) {
                double bytes = (double)sheaf_nbytes(rig.result);
                for (int j = 0; j < c->n_in; j++) {
                    const struct operand *x = &c->in[j];
                    bytes += (double)(sheaf_row_size(x->type, x->ne[0]) *
                                      (size_t)(x->ne[1] * x->ne[2] * x->ne[3]));
                }
                printf("%-6s %-14s %10.1f us  %7.2f GB/s", sheaf_backend_dev_name(t->dev),
                       c->family->name, 1e6 * spent / n, 1e-9 * bytes * n / spent);
                if (!strcmp(c->family->name, "MUL_MAT")) {
                    const double flop =
                        2.0 * (double)(c->in[0].ne[0] * c->in[0].ne[1]) * (double)c->in[1].ne[1];
                    printf("  %7.2f GFLOP/s", 1e-9 * flop * n / spent);
                }
                printf("  %s\n", op_case_text(c, text, sizeof text));
            }
            op_rig_down(&rig);
        }
        op_data_free(&data);
    }
    return ok;
}

/* ---- devices ---- */

static bool add_target(struct target *targets, int *n, sheaf_backend_dev_t dev, int n_members,
                       const struct options *o) {
    if (!dev) return false;
    if (o->device && strcasecmp(o->device, sheaf_backend_dev_name(dev))) {
        if (n_members) sheaf_backend_meta_device_free(dev);
        return true;
    }
    struct target *t = &targets[(*n)++];
    t->dev = dev;
    t->meta = n_members > 0;
    return sheaf_backend_dev_init(dev, NULL, &t->backend) == SHEAF_STATUS_SUCCESS;
}

static bool add_meta(struct target *targets, int *n, const sheaf_backend_dev_t *devs, size_t n_devs,
                     const struct options *o) {
    sheaf_backend_dev_t meta;
    struct placement *p = &targets[*n].placement;
    if (n_devs > MAX_MEMBERS) {
        sheaf_set_error(
            SHEAF_STATUS_INVALID,
            "the meta device of all %zu devices: at most %d are cut here; name fewer (-m LIST)",
            n_devs, MAX_MEMBERS);
        return false;
    }
    p->n_members = (int)n_devs;
    p->n_random = o->n_random;
    return sheaf_backend_meta_device(devs, n_devs, place, p, NULL, &meta) == SHEAF_STATUS_SUCCESS &&
           add_target(targets, n, meta, (int)n_devs, o);
}

/* Does the device's name begin with an entry of the list "CPU0,CUDA"? */
static bool is_listed(const char *list, sheaf_backend_dev_t dev) {
    for (const char *p = list, *end; *p; p = end + (*end == ',')) {
        end = p + strcspn(p, ",");
        if (end > p && !strncasecmp(sheaf_backend_dev_name(dev), p, (size_t)(end - p))) return true;
    }
    return false;
}

static bool add_listed(struct target *targets, int *n, const sheaf_backend_dev_t *devs,
                       size_t n_devs, const struct options *o) {
    sheaf_backend_dev_t members[MAX_MEMBERS];
    size_t used = 0;
    for (size_t i = 0; i < n_devs; i++) {
        if (!is_listed(o->members, devs[i])) continue;
        if (used < MAX_MEMBERS) members[used] = devs[i];
        used++;
    }
    if (used) return add_meta(targets, n, members, used, o); /* which refuses more */
    sheaf_set_error(SHEAF_STATUS_INVALID, "-m %s: there is no such device", o->members);
    return false;
}

static bool add_targets(struct target *targets, int *n, const struct options *o) {
    const sheaf_backend_dev_t *devs;
    size_t n_devs;
    if (sheaf_world_devices(&devs, &n_devs)) return false;
    if (o->members) return add_listed(targets, n, devs, n_devs, o);
    if (sheaf_world_size() > 1) return add_meta(targets, n, devs, n_devs, o);
    for (size_t i = 0; i < n_devs && *n < MAX_TARGETS - MAX_METAS; i++) {
        /* the CPU devices are alike: one stands for all unless another is asked for */
        if (sheaf_backend_dev_is_cpu(devs[i]) && i > 0 && !o->device) continue;
        if (!add_target(targets, n, devs[i], 0, o)) return false;
    }
    for (size_t m = 1; m <= n_devs && m <= MAX_METAS; m++)
        if (!add_meta(targets, n, devs, m, o)) return false;
    return true;
}

/* ---- the command line ---- */

static const char synopsis[] = "usage: sheaf-backend-ops test|support|perf [options]\n"
                               "Every op of every device against the portable reference.\n";
static const char notes[] = "SHEAF_CPU_DEVICES (default here 4) gives the members.\n";

#define AT(field) offsetof(struct options, field)
static const struct option option_table[] = {
    {"test, support or perf", NULL, OPTION_WORDS, AT(mode), AT(n_modes), 0, 1, NULL, NULL, NULL},
    {"--op", "-o", OPTION_TEXT, AT(op), 0, 0, 0, "OP", "this op alone, as in the tables of support",
     NULL},
    {"--type", "-t", OPTION_TEXT, AT(type), 0, 0, 0, "TYPE",
     "cases of this type alone, as in the tables of support: q4_0", NULL},
    {"--backend", "-b", OPTION_TEXT, AT(device), 0, 0, 0, "DEVICE",
     "this device alone: CPU0, META1 to META4 (METAn under mpirun)", NULL},
    {"--members", "-m", OPTION_TEXT, AT(members), 0, 0, 0, "LIST",
     "one meta device over the devices whose names begin so: CPU0,CUDA", NULL},
    {"--random", "-r", OPTION_INT32, AT(n_random), 0, 0, 1000000, "N",
     "placements at random for each case on a meta device (3)", NULL},
    {"--error", "-e", OPTION_REAL, AT(error), 0, 0, 1, "NMSE",
     "allow every op this error, where its own limit is less", NULL},
    {"--verbose", "-v", OPTION_FLAG, AT(verbose), 0, 0, 0, NULL, "name each case on standard error",
     NULL},
    {"--tamper", NULL, OPTION_FLAG, AT(tamper), 0, 0, 0, NULL,
     "spoil every result of test: it must fail", NULL},
    TOOL_HELP(AT(help)),
    TOOL_VERSION(AT(version)),
};
#undef AT

static const struct tool tool = {"sheaf-backend-ops", synopsis, notes, option_table,
                                 sizeof option_table / sizeof *option_table};

static enum sheaf_status parse(int argc, char **argv, struct options *o) {
    static const char *const modes[] = {"test", "support", "perf"};
    const enum sheaf_status status = options_parse(&tool, argc, argv, o);
    if (status || o->help || o->version) return status;
    for (int i = 0; o->n_modes && i < 3; i++)
        if (!strcmp(*o->mode, modes[i])) return SHEAF_STATUS_SUCCESS;
    return sheaf_set_error(SHEAF_STATUS_INVALID, "say test, support or perf (see --help)");
}

/* Devices of four parts, unless the user or a launcher divides the machine. */
static enum sheaf_status divide(void) {
    if (sheaf__launcher_mpi_rank() || sheaf_setting_value("SHEAF_CPU_DEVICES"))
        return SHEAF_STATUS_SUCCESS;
    return sheaf_setting_set("SHEAF_CPU_DEVICES", "4");
}

static bool has_chosen(const struct op_list *list, const struct options *o,
                       bool (*is_chosen)(const struct options *, const struct op_case *)) {
    size_t i = 0;
    while (i < list->n && !is_chosen(o, &list->cases[i])) i++;
    return i < list->n;
}

static void say_nothing_chosen(const struct options *o, bool has_device, bool has_op) {
    fprintf(stderr, "sheaf-backend-ops: no %s is named '%s'\n",
            !has_device ? "device"
            : has_op    ? "type of the op's cases"
                        : "op",
            !has_device ? o->device
            : has_op    ? o->type
                        : o->op);
}

/* Returns the tool's exit status. */
static int run(const struct options *o, struct target *targets, int *n, struct op_list *list,
               sheaf_backend_t *reference) {
    sheaf_backend_dev_t cpu = sheaf_backend_dev_by_type(SHEAF_BACKEND_DEVICE_TYPE_CPU);
    if (!add_targets(targets, n, o) || !cpu || sheaf_backend_dev_init(cpu, NULL, reference)) {
        say_error("devices");
        return TOOL_FAILED;
    }
    sheaf_backend_cpu_set_reference(*reference, true);
    if (!op_list_all(list)) {
        fprintf(stderr, "sheaf-backend-ops: no memory for the cases\n");
        return TOOL_FAILED;
    }
    if (!*n || !has_chosen(list, o, chosen)) {
        if (sheaf_world_rank() == 0) say_nothing_chosen(o, *n, has_chosen(list, o, chosen_op));
        return *n ? TOOL_BAD_USAGE : TOOL_FAILED;
    }
    bool ok = true;
    if (!strcmp(*o->mode, "perf"))
        ok = perf(targets, *n, list, o);
    else if (!strcmp(*o->mode, "test"))
        ok = test(targets, *n, *reference, list, o);
    else
        support(targets, *n, list, o);
    return ok ? 0 : TOOL_FAILED;
}

int main(int argc, char **argv) {
    struct options o = {.n_random = 3};
    struct op_list list = {0};
    sheaf_backend_t reference = NULL;
    int n = 0;
    enum sheaf_status parsed = parse(argc, argv, &o);
    if (!parsed && (o.help || o.version)) return tool_answer(&tool, o.help);
    if (!parsed) parsed = divide();
    int code = tool_start(&tool, parsed);
    if (code) return code;
    struct target *targets = calloc(MAX_TARGETS, sizeof *targets);
    code = targets ? run(&o, targets, &n, &list, &reference) : TOOL_FAILED;
    for (int i = 0; i < n; i++) {
        sheaf_backend_free(targets[i].backend);
        if (targets[i].meta) sheaf_backend_meta_device_free(targets[i].dev);
    }
    sheaf_backend_free(reference);
    free(list.cases);
    free(targets);
    return tool_end(code);
}
