/* Rule strings to factors: parsing, and finding the size of every factor from the shapes of a node.
 * A factor stands in at most one dimension of an operand (perhaps in several terms of it). */
#include <string.h>

#include "split/rule.h"

int sheaf__expr_factor(const struct sheaf__expr *e, char letter) {
    for (int f = 0; f < e->n_factors; f++) {
        if (e->letter[f] == letter) return f;
    }
    return -1;
}

static bool is_digit(char c) { return c >= '0' && c <= '9'; }
static bool is_letter(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z'); }

static int factor(const struct sheaf__rule *rule, struct sheaf__expr *e, char letter) {
    const int known = sheaf__expr_factor(e, letter);
    if (known >= 0) return known;
    if (e->n_factors == SHEAF__MAX_FACTORS) return -1;
    const int f = e->n_factors++;
    e->letter[f] = letter;
    e->number[f] = -1;
    e->kind[f] = sheaf__has_letter(rule->sum, letter)     ? SHEAF__SUM
                 : sheaf__has_letter(rule->whole, letter) ? SHEAF__WHOLE
                 : sheaf__has_letter(rule->index, letter) ? SHEAF__INDEX
                 : sheaf__has_letter(rule->slope, letter) ? SHEAF__SLOPE
                                                          : SHEAF__FREE;
    return f;
}

/* -1: it is too large. *p is moved behind the digits. */
static int64_t digits(const char **p) {
    int64_t n = 0;
    for (; is_digit(**p); ++*p) {
        if (n > (INT64_MAX - 9) / 10) return -1;
        n = n * 10 + (**p - '0');
    }
    return n;
}

/* A number from 0 on, 1 aside: a factor of its own. */
static int number(struct sheaf__expr *e, const char **p) {
    const int64_t n = digits(p);
    if (n < 0 || e->n_factors == SHEAF__MAX_FACTORS) return -1;
    const int f = e->n_factors++;
    e->letter[f] = '#';
    e->number[f] = n;
    e->kind[f] = SHEAF__WHOLE;
    return f;
}

/* A letter, with its size behind it where shapes do not tell: "k" or "k=8". */
static int named(const struct sheaf__rule *rule, struct sheaf__expr *e, const char **p) {
    const int f = factor(rule, e, *(*p)++);
    if (f < 0 || **p != '=') return f;
    ++*p;
    e->number[f] = is_digit(**p) ? digits(p) : -1;
    return e->number[f] < 0 ? -1 : f;
}

/* Factors joined by points: "g.r", "1". *p is moved behind them. */
static bool parse_term(const struct sheaf__rule *rule, struct sheaf__expr *e, struct sheaf__term *t,
                       const char **p) {
    for (;; ++*p) {
        if (**p == '1' && !is_digit((*p)[1])) {
            ++*p;
        } else {
            if ((!is_letter(**p) && !is_digit(**p)) || t->n == SHEAF__MAX_PRODUCT) return false;
            const int f = is_digit(**p) ? number(e, p) : named(rule, e, p);
            if (f < 0) return false;
            t->factor[t->n++] = (int8_t)f;
        }
        if (**p != '.') return true;
    }
}

/* Terms joined by +. */
static bool parse_dim(const struct sheaf__rule *rule, struct sheaf__expr *e, struct sheaf__dim *d,
                      const char **p) {
    for (;; ++*p) {
        if (d->n == SHEAF__MAX_TERMS || !parse_term(rule, e, &d->term[d->n++], p)) return false;
        if (**p != '+') return !**p || **p == ' ' || **p == ',';
    }
}

bool sheaf__expr_parse(const struct sheaf__rule *rule, const char *text, struct sheaf__expr *e) {
    memset(e, 0, sizeof *e);
    int operand = 0, axis = 0;
    bool result = false;
    const char *p = text;
    while (*p) {
        if (*p == ' ') {
            p++;
        } else if (*p == ',' || !strncmp(p, "->", 2)) {
            if (axis == 0 || result || ++operand > SHEAF__MAX_OPERANDS) return false;
            if (*p == '-') {
                e->n_operands = operand;
                result = true;
            }
            axis = 0;
            p += *p == '-' ? 2 : 1;
        } else if (axis == SHEAF_MAX_DIMS || !parse_dim(rule, e, &e->dim[operand][axis++], &p)) {
            return false;
        }
    }
    for (int i = 0; i <= e->n_operands; i++) {
        for (int a = 0; a < SHEAF_MAX_DIMS; a++) {
            if (!e->dim[i][a].n) e->dim[i][a].n = 1; /* a missing dimension is the literal 1 */
        }
    }
    return result && axis > 0;
}

int64_t sheaf__expr_term_size(const struct sheaf__expr *e, const struct sheaf__term *t) {
    int64_t n = 1;
    for (int i = 0; i < t->n; i++) n *= e->size[t->factor[i]];
    return n;
}

enum { UNKNOWN = -1 };

/* One pass over a dimension: finds its factor if only one is unknown. false: does not divide. */
static bool solve(struct sheaf__expr *e, const struct sheaf__dim *d, int64_t ne, bool *progress) {
    int unknown = UNKNOWN, times = 0;
    int64_t known_sum = 0, coefficient = 0;
    for (int i = 0; i < d->n; i++) {
        int64_t product = 1;
        int mine = UNKNOWN;
        for (int k = 0; k < d->term[i].n; k++) {
            const int f = d->term[i].factor[k];
            if (e->size[f] != UNKNOWN) {
                product *= e->size[f];
            } else if (mine != UNKNOWN || (unknown != UNKNOWN && unknown != f)) {
                return true; /* two unknowns: later */
            } else {
                mine = f;
            }
        }
        if (mine == UNKNOWN) {
            known_sum += product;
        } else {
            unknown = mine;
            coefficient += product;
            times++;
        }
    }
    if (times == 0) return known_sum == ne;
    /* a factor beside one of size 0 can be anything; 1 keeps the product */
    if (coefficient == 0) {
        if (ne != known_sum) return false;
        e->size[unknown] = 1;
    } else {
        if (ne < known_sum || (ne - known_sum) % coefficient) return false;
        e->size[unknown] = (ne - known_sum) / coefficient;
    }
    *progress = true;
    return true;
}

bool sheaf__expr_bind(struct sheaf__expr *e, const int64_t *const ne[]) {
    for (int f = 0; f < e->n_factors; f++) e->size[f] = e->number[f]; /* or UNKNOWN */
    for (bool progress = true; progress;) {
        progress = false;
        for (int i = 0; i <= e->n_operands; i++) {
            for (int a = 0; a < SHEAF_MAX_DIMS; a++) {
                if (!solve(e, &e->dim[i][a], ne[i][a], &progress)) return false;
            }
        }
    }
    for (int f = 0; f < e->n_factors; f++) {
        if (e->size[f] == UNKNOWN) return false;
    }
    return true;
}

bool sheaf__expr_of(const struct sheaf_tensor *node, const struct sheaf__rule *rule,
                    struct sheaf__expr *e, char text[SHEAF__MAX_EXPR]) {
    char own[SHEAF__MAX_EXPR];
    if (!text) text = own;
    text[0] = 0;
    if (rule->build) {
        rule->build(node, text);
    } else if (rule->expr) {
        strncat(text, rule->expr, SHEAF__MAX_EXPR - 1);
    } else {
        return false;
    }
    if (!sheaf__expr_parse(rule, text, e)) return false;
    static const int64_t lacking[SHEAF_MAX_DIMS] = {1, 1, 1, 1};
    const int64_t *ne[SHEAF__MAX_OPERANDS + 1];
    for (int i = 0; i < e->n_operands; i++) ne[i] = node->src[i] ? node->src[i]->ne : lacking;
    ne[e->n_operands] = node->ne;
    return sheaf__expr_bind(e, ne);
}

int sheaf__expr_axis(const struct sheaf__expr *e, int operand, int f) {
    for (int a = 0; a < SHEAF_MAX_DIMS; a++) {
        for (int i = 0; i < e->dim[operand][a].n; i++) {
            const struct sheaf__term *t = &e->dim[operand][a].term[i];
            for (int k = 0; k < t->n; k++) {
                if (t->factor[k] == f) return a;
            }
        }
    }
    return -1;
}
