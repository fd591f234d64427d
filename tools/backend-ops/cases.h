/* What the files of cases share: types, and how a case and its operands are written. Included by
 * cases*.c, each of which has the generators and builders of some ops. */
#ifndef SHEAF_TOOLS_BACKEND_OPS_CASES_H
#define SHEAF_TOOLS_BACKEND_OPS_CASES_H

#include <string.h>

#include "backend_ops.h"
#include "base/array.h"

static const enum sheaf_type floats[] = {SHEAF_TYPE_F32, SHEAF_TYPE_F16, SHEAF_TYPE_BF16};
#define COUNT(array) (sizeof(array) / sizeof *(array))

typedef struct sheaf_tensor T;
typedef struct sheaf_context C;

static inline struct op_case *add(struct op_list *l, const struct op_family *f, int n_in) {
    if (!sheaf__grow(&l->cases, &l->cap, l->n + 1, sizeof *l->cases)) {
        l->full = true;
        return &l->spill;
    }
    struct op_case *c = &l->cases[l->n++];
    memset(c, 0, sizeof *c);
    c->family = f;
    c->n_in = n_in;
    return c;
}

static inline struct operand shape(enum sheaf_type type, int64_t a, int64_t b, int64_t c,
                                   int64_t d) {
    return (struct operand){.type = type, .ne = {a, b, c, d}};
}
static inline struct operand laid(struct operand o, enum layout layout) {
    o.layout = layout;
    return o;
}
static inline struct operand filled(struct operand o, enum fill fill, int64_t limit) {
    o.fill = fill;
    o.limit = limit;
    return o;
}

static inline void one(struct op_list *l, const struct op_family *f, struct operand x, float f0,
                       float f1) {
    struct op_case *c = add(l, f, 1);
    c->in[0] = x;
    c->f[0] = f0;
    c->f[1] = f1;
}

/* One operand in every layout, of one element, empty, and large. */
void gen_map(struct op_list *l, const struct op_family *f);

/* ---- cases_rows.c ---- */

struct sheaf_tensor *build_map(struct sheaf_context *ctx, const struct op_case *c,
                               struct sheaf_tensor **x);
struct sheaf_tensor *build_xielu(struct sheaf_context *ctx, const struct op_case *c,
                                 struct sheaf_tensor **x);
void gen_types(struct op_list *l, const struct op_family *f);
void gen_mean(struct op_list *l, const struct op_family *f);
void gen_positive(struct op_list *l, const struct op_family *f);
void gen_limited(struct op_list *l, const struct op_family *f);
struct sheaf_tensor *build_limited(struct sheaf_context *ctx, const struct op_case *c,
                                   struct sheaf_tensor **x);
void gen_argsort(struct op_list *l, const struct op_family *f);
void gen_add_id(struct op_list *l, const struct op_family *f);
struct sheaf_tensor *build_add_id(struct sheaf_context *ctx, const struct op_case *c,
                                  struct sheaf_tensor **x);
void gen_repeat(struct op_list *l, const struct op_family *f);
void gen_pad(struct op_list *l, const struct op_family *f);
struct sheaf_tensor *build_pad(struct sheaf_context *ctx, const struct op_case *c,
                               struct sheaf_tensor **x);
void gen_group_norm(struct op_list *l, const struct op_family *f);

/* ---- cases_image.c ---- */

void gen_image(struct op_list *l, const struct op_family *f);
struct sheaf_tensor *build_image(struct sheaf_context *ctx, const struct op_case *c,
                                 struct sheaf_tensor **x);

void gen_volume(struct op_list *l, const struct op_family *f);
struct sheaf_tensor *build_volume(struct sheaf_context *ctx, const struct op_case *c,
                                  struct sheaf_tensor **x);
void gen_count(struct op_list *l, const struct op_family *f);
struct sheaf_tensor *build_count(struct sheaf_context *ctx, const struct op_case *c,
                                 struct sheaf_tensor **x);

/* ---- cases_matrix.c ---- */

void gen_matrix(struct op_list *l, const struct op_family *f);
struct sheaf_tensor *build_matrix(struct sheaf_context *ctx, const struct op_case *c,
                                  struct sheaf_tensor **x);
void gen_deepseek(struct op_list *l, const struct op_family *f);
struct sheaf_tensor *build_deepseek(struct sheaf_context *ctx, const struct op_case *c,
                                    struct sheaf_tensor **x);

#endif
