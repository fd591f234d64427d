/* The rows of a rule as text, one a line, without sizes: what a person reviews when the table
 * changes (tests/golden/split-rows.txt). Follows match.c row by row. */
#include <string.h>

#include "base/text.h"
#include "split/rule.h"

/* The first place of a factor of the set in the operand: the dimension, with the term and its place
 * in the term; -1: there is none. */
static int find_factor(const struct sheaf__expr *e, int operand, uint32_t set,
                       const struct sheaf__term **term, int *at) {
    for (int a = 0; a < SHEAF_MAX_DIMS; a++) {
        const struct sheaf__dim *d = &e->dim[operand][a];
        for (int i = 0; i < d->n; i++) {
            *term = &d->term[i];
            for (*at = 0; *at < d->term[i].n; ++*at)
                if (set >> d->term[i].factor[*at] & 1) return a;
        }
    }
    return -1;
}

/* "S2", "S0 outer=I", "S0 inner=r", "S0 in 2 segments" for f+f; "M" if no factor of the set is there. */
static void put_state(struct sheaf__text *t, const struct sheaf__expr *e, int operand,
                      uint32_t set) {
    const struct sheaf__term *term = NULL;
    int at = 0;
    const int a = find_factor(e, operand, set, &term, &at);
    if (a < 0) {
        sheaf__put(t, "M");
        return;
    }
    const int n_segments = e->dim[operand][a].n;
    sheaf__put(t, "S%d", a);
    if (n_segments > 1) sheaf__put(t, " in %d segments", n_segments);
    for (int k = 0; k < term->n; k++) {
        if (k == at || set >> term->factor[k] & 1) continue;
        sheaf__put(t, " %s=%c", k < at ? "outer" : "inner", e->letter[term->factor[k]]);
    }
}

static void put_row(struct sheaf__text *t, const char *name, const struct sheaf__expr *e,
                    uint32_t set, bool summed, const char *remark) {
    sheaf__put(t, "  %-8s ", name);
    for (int i = 0; i < e->n_operands; i++) {
        if (i) sheaf__put(t, ", ");
        put_state(t, e, i, set);
    }
    sheaf__put(t, " -> ");
    if (summed) {
        sheaf__put(t, "P");
    } else {
        put_state(t, e, e->n_operands, set);
    }
    sheaf__put(t, "%s\n", remark);
}

static void put_linear(struct sheaf__text *t, const struct sheaf__rule *rule, int n_operands) {
    for (int once = 1; once >= 0; once--) {
        if (!(rule->add_once >> once & 1)) continue;
        sheaf__put(t, "  once     ");
        for (int i = 0; i < n_operands; i++)
            sheaf__put(t, "%s%s", i ? ", " : "", i == 1 - once ? "P" : "M");
        sheaf__put(t, " -> P   (one member adds operand %d%s)\n", once,
                   once ? "" : "; equal shapes");
    }
    for (int l = 0; l < SHEAF__MAX_LINEAR && rule->linear[l]; l++) {
        sheaf__put(t, "  linear   ");
        for (int i = 0; i < n_operands; i++)
            sheaf__put(t, "%s%s", i ? ", " : "", rule->linear[l] >> i & 1 ? "P" : "M");
        sheaf__put(t, " -> P\n");
    }
    /* m: a masked P */
    if (rule->mask) {
        sheaf__put(t, "  mask     masks of x give m; ");
        sheaf__put(t, rule->base_operand ? "m, S%d" : "S%d, m", rule->base_axis);
        sheaf__put(t, ", M -> m if cut and ids are those of m\n");
    }
    for (int l = 0; l < SHEAF__MAX_LINEAR && rule->zero[l]; l++) {
        sheaf__put(t, "  mask     ");
        for (int i = 0; i < n_operands; i++)
            sheaf__put(t, "%s%s", i ? ", " : "", rule->zero[l] >> i & 1 ? "m" : "M");
        sheaf__put(t, " -> m%s\n",
                   rule->form == SHEAF__FORM_VIEW ? "   (columns stay columns)" : "");
    }
}

static void put_kinds(struct sheaf__text *t, const struct sheaf__rule *rule) {
    const struct {
        const char *set;
        char mark;
    } kinds[] = {{rule->sum, '+'}, {rule->whole, '!'}, {rule->index, '@'}, {rule->slope, '~'}};
    bool first = true;
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++) {
        for (const char *p = kinds[i].set; p && *p; p++) {
            sheaf__put(t, "%s%c%c", first ? "   " : " ", *p, kinds[i].mark);
            first = false;
        }
    }
}

static void put_form(struct sheaf__text *t, const struct sheaf__rule *rule) {
    static const char *const forms[] = {
        [SHEAF__FORM_VIEW] = "the cut is carried through the strides",
        [SHEAF__FORM_PERMUTE] = "the axis moves with its dimension",
        [SHEAF__FORM_COPY] = "the cut is carried through the order of elements",
    };
    const int operands = rule->form == SHEAF__FORM_COPY ? 2 : 1;
    sheaf__put(t, "  all M    %s -> M\n", operands == 2 ? "M, M" : "M");
    sheaf__put(t, "  cut      %s -> S%s   (%s)\n", operands == 2 ? "S, S" : "S",
               operands == 2 ? " of operand 1" : "", forms[rule->form]);
    put_linear(t, rule, operands);
}

/* The row of factor f and of pair[1], the factor that it is paired with. */
static void put_pair(struct sheaf__text *t, const struct sheaf__rule *rule,
                     const struct sheaf__expr *e, int f, const char *pair) {
    const bool minor = sheaf__has_letter(rule->minor, e->letter[f]);
    const int r = sheaf__expr_factor(e, pair[1]);
    put_row(t, (const char[]){e->letter[f], '.', pair[1], 0}, e, 1u << f | 1u << r, false,
            minor                        ? "   (its residues, round after round)"
            : e->kind[f] == SHEAF__SLOPE ? "   (a run, with its base)"
            : rule->parts                ? "   (a run, or equal shares of the groups touched)"
                                         : "   (equal shares of the groups touched)");
}

static void put_factors(struct sheaf__text *t, const struct sheaf__rule *rule,
                        const struct sheaf__expr *e) {
    uint32_t joint = 0;
    for (int f = 0; f < e->n_factors; f++) {
        if (sheaf__has_letter(rule->joint, e->letter[f])) joint |= 1u << f;
    }
    for (int f = 0; f < e->n_factors; f++) {
        const bool minor = sheaf__has_letter(rule->minor, e->letter[f]);
        const char *pairs = minor ? rule->minor : rule->group;
        const char *pair = pairs ? strchr(pairs, e->letter[f]) : NULL;
        if (pair) {
            if ((pair - pairs) % 2 == 0) put_pair(t, rule, e, f, pair);
        } else if (joint >> f & 1) {
            if (!(joint & ((1u << f) - 1)))
                put_row(t, rule->joint, e, joint, false, "   (each its own cut)");
        } else if (e->kind[f] != SHEAF__WHOLE) {
            const bool summed = e->kind[f] == SHEAF__SUM || e->kind[f] == SHEAF__INDEX;
            const bool run = e->kind[f] == SHEAF__SLOPE || e->kind[f] == SHEAF__INDEX;
            put_row(t, (const char[]){e->letter[f], 0}, e, 1u << f, summed,
                    run ? "   (a run, with its base)" : "");
        }
    }
}

size_t sheaf__rows_print(const struct sheaf__rule *rule, const char *expr, char *buf, size_t n) {
    struct sheaf__text t = {buf, n, 0};
    struct sheaf__expr e;
    if (n) *buf = 0;
    if (rule->none) {
        sheaf__put(&t, "  none: %s\n", rule->none);
    } else if (rule->form != SHEAF__FORM_EXPR) {
        put_form(&t, rule);
    } else if (!sheaf__expr_parse(rule, expr, &e)) {
        sheaf__put(&t, "  does not parse: %s\n", expr);
    } else {
        sheaf__put(&t, "  %s", expr);
        put_kinds(&t, rule);
        sheaf__put(&t, "\n");
        put_row(&t, "all M", &e, 0, false, "");
        put_factors(&t, rule, &e);
        put_linear(&t, rule, e.n_operands);
    }
    return t.n;
}
