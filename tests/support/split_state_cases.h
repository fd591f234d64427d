/* Cases and wrong rules of the ops with a state, for test-split-exhaustive: rows of its tables. */
#ifndef SHEAF_TESTS_SPLIT_STATE_CASES_H
#define SHEAF_TESTS_SPLIT_STATE_CASES_H

#include "sheaf/sheaf.h"

typedef struct sheaf_tensor T;
typedef struct sheaf_context C;

static T *b_ssm_conv(C *c, T **a) { return sheaf_ssm_conv(c, a[0], a[1]); }
static T *ssm_scan(C *c, T **a, int kept) {
    return sheaf_ssm_scan(c, a[0], a[1], a[2], a[3], a[4], a[5], a[6], kept);
}
static T *b_ssm_scan(C *c, T **a) { return ssm_scan(c, a, 1); }
static T *b_ssm_scan_2(C *c, T **a) { return ssm_scan(c, a, 2); }
static T *b_delta_net(C *c, T **a) {
    return sheaf_gated_delta_net(c, a[0], a[1], a[2], a[3], a[4], a[5], 1);
}
static T *b_delta_net_2(C *c, T **a) {
    return sheaf_gated_delta_net(c, a[0], a[1], a[2], a[3], a[4], a[5], 2);
}
static T *b_wkv6(C *c, T **a) { return sheaf_rwkv_wkv6(c, a[0], a[1], a[2], a[3], a[4], a[5]); }
static T *b_wkv7(C *c, T **a) {
    return sheaf_rwkv_wkv7(c, a[0], a[1], a[2], a[3], a[4], a[5], a[6]);
}
static T *b_gla(C *c, T **a) {
    return sheaf_gated_linear_attn(c, a[0], a[1], a[2], a[3], a[4], 0.5f);
}

/* The result is flat, of several segments: its states are those that some row offers. Operands are
 * many and have few candidates. */
static bool is_flat_case(T *(*build)(C *ctx, T **a)) {
    return build == b_ssm_scan || build == b_ssm_scan_2 || build == b_delta_net ||
           build == b_delta_net_2 || build == b_wkv6 || build == b_wkv7 || build == b_gla;
}

#define ALIKE(a, b, c)                                                                             \
    {a, b, c, 1}, { a, b, c, 1 }
#define SEQS(a)                                                                                    \
    { a, 1, 2, 2 }
/* Sequences are of more than one token: with one, more sums would be linear. */
#define STATE_CASES                                                                                \
    {"ssm_conv", 2, {{5, 6, 4, 1}, {2, 6, 1, 1}}, "ff", 0, 4, b_ssm_conv},                         \
        {"ssm_scan heads",                                                                         \
         7,                                                                                        \
         {{2, 1, 4, 3}, {1, 4, 1, 1}, {4, 1, 1, 1}, {1, 4, 1, 1}, ALIKE(2, 2, 1), {1, 1, 1, 1}},   \
         "ffffffi",                                                                                \
         3,                                                                                        \
         3,                                                                                        \
         b_ssm_scan_2},                                                                            \
        {"ssm_scan sequences",                                                                     \
         7,                                                                                        \
         {{2, 2, 1, 2}, SEQS(2), {1, 2, 2, 1}, {2, 1, 1, 1}, SEQS(2), SEQS(2), {2, 1, 1, 1}},      \
         "ffffffi",                                                                                \
         2,                                                                                        \
         2,                                                                                        \
         b_ssm_scan},                                                                              \
        {"delta net heads", 6, {ALIKE(2, 2, 1), {2, 4, 1, 1}, ALIKE(1, 4, 1), {2, 2, 4, 1}},       \
         "ffffff",          0, 3,                                                                  \
         b_delta_net},                                                                             \
        {"delta net sequences",                                                                    \
         6,                                                                                        \
         {SEQS(1), SEQS(1), SEQS(1), SEQS(1), SEQS(1), {1, 1, 1, 2}},                              \
         "ffffff",                                                                                 \
         0,                                                                                        \
         2,                                                                                        \
         b_delta_net_2},                                                                           \
        {"wkv6",   6, {ALIKE(2, 2, 4), {2, 2, 4, 1}, {2, 2, 1, 1}, {2, 2, 4, 1}, {8, 2, 1, 1}},    \
         "ffffff", 0, 2,                                                                           \
         b_wkv6},                                                                                  \
        {"wkv7 heads", 7, {ALIKE(1, 3, 2), ALIKE(1, 3, 2), ALIKE(1, 3, 2), {3, 1, 1, 1}},          \
         "fffffff",    0, 2,                                                                       \
         b_wkv7},                                                                                  \
        {"wkv7 state", 7, {ALIKE(2, 1, 2), ALIKE(2, 1, 2), ALIKE(2, 1, 2), {4, 1, 1, 1}},          \
         "fffffff",    0, 2,                                                                       \
         b_wkv7},                                                                                  \
        {"gated linear attention",                                                                 \
         5,                                                                                        \
         {ALIKE(2, 2, 4), ALIKE(2, 2, 4), {8, 2, 1, 1}},                                           \
         "fffff",                                                                                  \
         0,                                                                                        \
         3,                                                                                        \
         b_gla},

#define SCAN_READS "k d g.r S, d g.r t s, g.r t s, a g.r, k g t s, k g t s, s -> "
#define SCAN_RULE  .expr = SCAN_READS "s.t.g.r.d+K.s.g.r.d.k", .whole = "ktSaK"
#define STATE_MUTANTS                                                                              \
    {"a convolution sums over its taps",                                                           \
     "ssm_conv",                                                                                   \
     {.expr = "T c s, k c -> c t s", .whole = "Tt", .sum = "k"}},                                  \
        {"heads of a scan need not keep groups",                                                   \
         "ssm_scan heads",                                                                         \
         {.expr = "k d h S, d h t s, h t s, a h, k g t s, k g t s, s -> s.t.h.d+K.s.h.d.k",        \
          .whole = "ktSaKg"}},                                                                     \
        {"a scan is linear in x alone", "ssm_scan heads", {SCAN_RULE, .linear = {1u << 1}}},       \
        {"a scan is linear in c", "ssm_scan heads", {SCAN_RULE, .linear = {1u << 0 | 1u << 5}}},   \
        {"kept states lie as one",                                                                 \
         "ssm_scan heads",                                                                         \
         {.expr = SCAN_READS "s.t.g.r.d+s.g.K.r.d.k", .whole = "ktSaK", .group = "gr"}},           \
        {"any state of the cache may be cut",                                                      \
         "ssm_scan sequences",                                                                     \
         {.expr = "k d h s, d h t s, h t s, a h, k g t s, k g t s, s -> s.t.h.d+s.h.d.k",          \
          .whole = "ktag"}},                                                                       \
        {"key heads of a delta net lie in groups",                                                 \
         "delta net heads",                                                                        \
         {.expr = "i g t s, i g t s, j g.r t s, a g.r t s, 1 g.r t s, i j g.r s -> "               \
                  "s.t.g.r.j+K.s.g.r.j.i",                                                         \
          .whole = "ijtaK",                                                                        \
          .group = "gr"}},                                                                         \
        {"a delta net is linear in its values",                                                    \
         "delta net heads",                                                                        \
         {.expr = "i g t s, i g t s, j h t s, a h t s, 1 h t s, i j h s -> s.t.h.j+K.s.h.j.i",     \
          .whole = "ijtaKgh",                                                                      \
          .linear = {1u << 2}}},                                                                   \
        {"the heads of a state are its minor dimension",                                           \
         "wkv6",                                                                                   \
         {.expr = "i h s.t, j h s.t, i h s.t, i h, i h s.t, i.h.j s -> s.t.h.j+s.i.h.j",           \
          .whole = "ijt"}},

#endif
