/* Which pairs of a row ROPE turns, and by which position: what the kernels of all devices share.
 * They are compiled as C and as C++.
 *
 * With sections (m-rope) a token has four positions: time, height, width, and one more. Pairs take
 * turns with them in runs: the first sections[0] pairs of a round by the first position, and so on.
 * IMROPE takes the first three in turn, pair by pair, as long as their sections last, then the
 * fourth. Source: Qwen2-VL (arXiv 2409.12191) and Qwen3-VL, as ggml computes them. */
#ifndef SHEAF_TENSOR_ROPE_H
#define SHEAF_TENSOR_ROPE_H

#include "quant/quants.h" /* SHEAF__HD */
#include "sheaf/ops.h"

enum { SHEAF__ROPE_SECTIONS = 4 };

struct sheaf__rope_shape {
    int64_t n_pairs, offset; /* pairs that are turned; the first element of them */
    int64_t half;            /* n_dims / 2: a frequency is base^(-exponent / half) */
    int mode, side_by_side;  /* pair i is elements 2i and 2i + 1, or i and n_pairs + i */
    int sections[SHEAF__ROPE_SECTIONS], round; /* round: the sum; 0: one position a token */
};

static inline struct sheaf__rope_shape sheaf__rope_shape(const struct sheaf_tensor *node) {
    struct sheaf__rope_shape r;
    r.half = node->op_params[0] / 2;
    r.mode = node->op_params[1];
    r.n_pairs = r.mode == SHEAF_ROPE_TYPE_VISION ? node->op_params[0] : r.half;
    r.offset = node->op_params[13];
    r.side_by_side = r.mode == SHEAF_ROPE_TYPE_NORMAL;
    r.round = 0;
    for (int i = 0; i < SHEAF__ROPE_SECTIONS; i++) {
        r.sections[i] = r.mode & SHEAF_ROPE_TYPE_MROPE ? node->op_params[9 + i] : 0;
        r.round += r.sections[i];
    }
    return r;
}

/* The number of the position that turns pair i, and the exponent of its frequency, which a vision
 * encoder counts from the first pair of each section. */
SHEAF__HD int sheaf__rope_position(const struct sheaf__rope_shape *r, int64_t i,
                                   int64_t *exponent) {
    *exponent = i;
    if (r->round == 0) return 0;
    const int at = (int)(i % r->round);
    if (r->mode == SHEAF_ROPE_TYPE_IMROPE)
        return at < 3 * r->sections[at % 3] ? at % 3 : SHEAF__ROPE_SECTIONS - 1;
    int section = 0, first = 0;
    while (section < SHEAF__ROPE_SECTIONS - 1 && at >= first + r->sections[section])
        first += r->sections[section++];
    if (r->mode == SHEAF_ROPE_TYPE_VISION) *exponent = at - first;
    return section;
}

/* The elements of pair i. From n_pairs on: an element that is copied, twice. */
struct sheaf__rope_pair {
    int64_t e0, e1;
};
SHEAF__HD struct sheaf__rope_pair sheaf__rope_pair(const struct sheaf__rope_shape *r, int64_t i) {
    struct sheaf__rope_pair p;
    if (i < r->n_pairs) {
        p.e0 = r->offset + (r->side_by_side ? 2 * i : i);
        p.e1 = p.e0 + (r->side_by_side ? 1 : r->n_pairs);
    } else {
        const int64_t rest = i - r->n_pairs;
        p.e0 = p.e1 = rest < r->offset ? rest : rest + 2 * r->n_pairs;
    }
    return p;
}

#endif
