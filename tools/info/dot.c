/* The picture of a plan, as Graphviz text: boxes are nodes, red ovals are collectives, frames are
 * spans; blue is cut, orange is partial, grey is mirrored. Views are small: they move nothing. */
#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "plan.h"

enum { MAX_SEEN = 4096 };

struct plan_dot {
    FILE *file;
    char path[256];
    int span; /* number of the open frame; -1: none is open */
    struct {
        int value;
        int step; /* number of the step whose box shows it; -1: a box of its own */
    } seen[MAX_SEEN];
    int n_seen;
    char *edges; /* written last, so that they do not pull nodes into frames */
    size_t n_edges;
    FILE *edge_file;
};

static const char *color_of(const struct sheaf_split_state *state) {
    return state->axis == SHEAF_SPLIT_AXIS_MIRRORED  ? "#eeeeee"
           : state->axis == SHEAF_SPLIT_AXIS_PARTIAL ? "#ffd8a8"
                                                     : "#d0e4ff";
}

/* Several members may hold the same units, as heads that are fewer than members. */
static bool is_replicated(const struct sheaf_split_state *s, int64_t ne) {
    int64_t sum = 0;
    for (int j = 0; j < s->n_members; j++) sum += sheaf_split_state_extent(s, j, ne);
    return sum > ne;
}

/* "S0 16,16": elements of each member; many members are abbreviated. Of members that hold the same
 * elements the units are named as in the tables: "S0 {0:1,1:1,1:1}x16". */
static void state_text(const struct sheaf_backend_meta_value *v, char *buf, size_t n) {
    const struct sheaf_split_state *s = v->state;
    if (s->axis > SHEAF_SPLIT_AXIS_3) {
        snprintf(buf, n, "%s", s->axis == SHEAF_SPLIT_AXIS_MIRRORED ? "M" : "P");
        return;
    }
    if (s->n_members <= 8 && is_replicated(s, v->tensor->ne[s->axis])) {
        sheaf_split_state_print(s, buf, n);
        return;
    }
    size_t at = (size_t)snprintf(buf, n, "S%d ", (int)s->axis);
    for (int j = 0; j < s->n_members && at < n; j++) {
        if (j == 4 && s->n_members > 5) {
            snprintf(buf + at, n - at, ",...");
            return;
        }
        at += (size_t)snprintf(buf + at, n - at, "%s%" PRId64, j ? "," : "",
                               sheaf_split_state_extent(s, j, v->tensor->ne[s->axis]));
    }
}

/* Names come from files: no quotes, backslashes or control characters reach the text. */
static void put_text(FILE *f, const char *text) {
    for (; *text; text++) {
        const unsigned char c = (unsigned char)*text;
        fputc(c < 32 || c == '"' || c == '\\' || c >= 127 ? '_' : c, f);
    }
}

static void put_shape(FILE *f, const struct sheaf_tensor *t) {
    fputc('[', f);
    for (int d = 0, n = sheaf_n_dims(t); d < n; d++)
        fprintf(f, "%s%" PRId64, d ? " " : "", t->ne[d]);
    fputc(']', f);
}

enum sheaf_status plan_dot_begin(const char *path, const char *title, struct plan_dot **out) {
    *out = NULL;
    struct plan_dot *d = calloc(1, sizeof *d);
    if (!d) return sheaf_set_error(SHEAF_STATUS_ALLOC_FAILED, "no memory for the picture");
    d->span = -1;
    snprintf(d->path, sizeof d->path, "%s", path);
    d->edge_file = open_memstream(&d->edges, &d->n_edges);
    d->file = fopen(path, "w");
    if (!d->file || !d->edge_file) {
        const int e = errno;
        plan_dot_end(d);
        return sheaf_set_error(SHEAF_STATUS_IO, "--plan-dot: cannot write %s: %s", path,
                               sheaf__errno_text(e));
    }
    fputs("digraph plan {\n  label=\"", d->file);
    put_text(d->file, title);
    fputs("\";\n  labelloc=t; fontname=\"sans-serif\"; fontsize=14;\n"
          "  node [shape=box, style=filled, fontname=\"sans-serif\", fontsize=10, margin=\"0.1,"
          "0.03\", height=0.2];\n"
          "  edge [fontname=\"sans-serif\", fontsize=8, arrowsize=0.6];\n",
          d->file);
    *out = d;
    return SHEAF_STATUS_SUCCESS;
}

enum { UNSEEN = -2 };

/* The newest box of a value: its step, -1 (a box of its own), or UNSEEN. */
static int box_of(const struct plan_dot *d, int value) {
    for (int i = d->n_seen - 1; i >= 0; i--) {
        if (d->seen[i].value == value) return d->seen[i].step;
    }
    return UNSEEN;
}
static void mark(struct plan_dot *d, int value, int step) {
    if (d->n_seen == MAX_SEEN) return;
    d->seen[d->n_seen].value = value;
    d->seen[d->n_seen++].step = step;
}

static void end_frame(struct plan_dot *d) {
    if (d->span >= 0) fputs("  }\n", d->file);
    d->span = -1;
}

static const char *short_name(const struct sheaf_tensor *t) {
    const char *p = strncmp(t->name, "blk.", 4) == 0 ? strchr(t->name + 4, '.') : NULL;
    return p ? p + 1 : t->name;
}

/* A weight, a cache, an input, or the result of another layer. */
static void draw_source(struct plan_dot *d, const struct sheaf_backend_meta_value *v) {
    char state[96];
    const bool leaf = v->tensor->op == SHEAF_OP_NONE;
    state_text(v, state, sizeof state);
    fprintf(d->file, "    v%d [shape=%s, fillcolor=\"%s\", label=\"", v->number,
            leaf ? "note" : "cds", color_of(v->state));
    put_text(d->file, leaf || *v->tensor->name ? short_name(v->tensor) : "from before");
    fputs("\\n", d->file);
    put_shape(d->file, v->tensor);
    fprintf(d->file, " %s\"];\n", state);
    mark(d, v->number, -1);
}

void plan_dot_step(struct plan_dot *d, const struct sheaf_backend_meta_step *step) {
    const bool collective = step->kind == SHEAF_SPLIT_STEP_COLLECTIVE;
    const struct sheaf_tensor *t = step->out.tensor;
    const int n_in = step->kind == SHEAF_SPLIT_STEP_NODE ? SHEAF_MAX_SRC : 1;
    char state[96];
    if (collective) {
        end_frame(d);
    } else if (d->span != step->span) {
        end_frame(d);
        d->span = step->span;
        fprintf(d->file,
                "  subgraph cluster_%d {\n    label=\"span %d\"; color=\"#999999\"; "
                "style=rounded; fontsize=10;\n",
                step->span, step->span);
    }
    for (int i = 0; i < n_in; i++) {
        if (step->in[i].number < 0) continue;
        const int value = step->in[i].number;
        if (box_of(d, value) == UNSEEN) draw_source(d, &step->in[i]);
        const int box = box_of(d, value);
        fprintf(d->edge_file, "  %c%d -> s%d%s;\n", box < 0 ? 'v' : 's', box < 0 ? value : box,
                step->index, step->in[i].tensor->op == SHEAF_OP_NONE ? " [style=dashed]" : "");
    }
    state_text(&step->out, state, sizeof state);
    const bool small = step->kind == SHEAF_SPLIT_STEP_NODE && sheaf_op_is_view(t->op);
    fprintf(d->file, "    s%d [%s, fillcolor=\"%s\", label=\"", step->index,
            collective ? "shape=ellipse, penwidth=2, color=\"#d00000\""
            : small    ? "shape=plain, fontsize=8"
                       : "shape=box",
            color_of(step->out.state));
    if (step->kind == SHEAF_SPLIT_STEP_NODE) {
        fprintf(d->file, "%s%s", sheaf_op_desc(t), step->add_once ? " (once)" : "");
        if (*t->name && !small) {
            fputc(' ', d->file);
            put_text(d->file, t->name);
        }
    } else {
        fprintf(d->file, "%s, %" PRId64 " bytes", sheaf_backend_meta_step_name(step), step->bytes);
    }
    fputs(small ? " " : "\\n", d->file);
    put_shape(d->file, t);
    fprintf(d->file, " %s\"];\n", state);
    mark(d, step->out.number, step->index);
}

enum sheaf_status plan_dot_end(struct plan_dot *d) {
    enum sheaf_status st = SHEAF_STATUS_SUCCESS;
    if (!d) return st;
    if (d->file) end_frame(d);
    int why = d->edge_file ? sheaf__close_written(d->edge_file) : 0;
    if (d->file) {
        if (d->edges) fputs(d->edges, d->file);
        fputs("}\n", d->file);
        const int end = sheaf__close_written(d->file);
        if (end) why = end;
    }
    if (why)
        st = sheaf_set_error(SHEAF_STATUS_IO, "--plan-dot: cannot write %s: %s", d->path,
                             strerror(why));
    free(d->edges);
    free(d);
    return st;
}
