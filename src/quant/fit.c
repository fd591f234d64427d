/* The search (fit.h), one for all types.
 *
 * A block is parts, each of which has a scale and, in some types, a min: x = scale * level - min.
 * Scales and mins are integers times the block's two halves, or the halves themselves, or come from
 * a table of the type. Given the levels of all elements, the scale and min with the least error are
 * a line by least squares; given scale and min, the best level of each element is the nearest one.
 * So, for each part alone: from many scales to levels, from these to lines, and from the best of the
 * lines to levels again, in turns (free_line). Then, for the block: from the largest line to
 * some pairs of halves, for each to the best integers near the lines, and from these to the halves
 * by least squares, in turns (fit_block).
 *
 * Sums are of LANES partial sums, so that compilers make vectors without a change of the result. */
#include "quant/fit.h"

#include <math.h>
#include <stddef.h>

#include "quant/blocks.h"

enum {
    LANES = 8,
    MOST_PARTS = 16,
    MOST = SHEAF__QK_K, /* elements of a block */
    BELOW = 8,          /* places of the largest element that are tried below the last level, ... */
    ABOVE = 15,         /* ... and above it, where it is cut down */
    SHIFTS = 5,         /* of each end of the range */
    TURNS = 2,
    DIVISORS = 3, /* integers that the largest scale is tried at */
    NEXT = 1,     /* integers of a scale on either side of the nearest one, ... */
    NEXT_OF = 6,  /* ... and of those of a table, which has 8 from one power of two to the next */
};

enum mins { NO_MIN, FREE_MIN, INTEGER_MIN };

/* Bits of the codes: element j has `bits` of them in byte j % bytes of the group of `span` elements
 * that it is in, bytes = span * bits / 8, the first elements lowest. */
struct field {
    uint16_t at, bits, span;
};

struct format {
    int block, part; /* elements */
    int lo, hi;      /* levels: all integers from lo to hi, or those of `rising` */
    int n_rising;
    const int8_t *rising;
    const int8_t *levels; /* by their code, where there is `rising` */
    int bias;             /* code - level, where not */
    struct field low, high;
    int scale_lo, scale_hi; /* integers; both 1: the half is the scale */
    enum mins mins;
    int min_hi;
    float (*scale_of)(uint8_t); /* of an integer, in place of a half */
    int d_at, dmin_at;          /* halves; -1: there is none */
    void (*put)(void *block, const int *scales, const int *mins);
    void (*plain)(const float *x, void *block, int64_t n);
    void (*to_floats)(const void *block, float *x, int64_t n);
    size_t size; /* of a block */
};

struct part {
    const float *x, *w;
    int n;
    double sum_w, sum_wx, sum_wxx;
};

/* Of a part's levels q. */
struct sums {
    double wq, wqq, wqx;
};

/* x = scale * q - min */
struct line {
    double scale, min, error;
};

/* ---- one part ---- */

/* Numbers that are added one by one. */
typedef float lanes __attribute__((vector_size(LANES * sizeof(float))));

static double total(const lanes *of) {
    double sums[LANES];
    for (int l = 0; l < LANES; l++) sums[l] = (double)(*of)[l];
    for (int n = LANES / 2; n > 0; n /= 2) /* short chains of sums */
        for (int l = 0; l < n; l++) sums[l] += sums[l + n];
    return sums[0];
}

static struct part part_of(const struct format *f, const float *x, const float *w) {
    struct part p = {.x = x, .w = w, .n = f->part};
    for (int j = 0; j < p.n; j++) {
        const double wx = (double)w[j] * (double)x[j];
        p.sum_w += (double)w[j];
        p.sum_wx += wx;
        p.sum_wxx += wx * (double)x[j];
    }
    return p;
}

/* The levels nearest to (x + min) / scale. */
static void to_levels(const struct format *f, const struct part *p, double scale, double min,
                      float *restrict q) {
    const float id = scale != 0 ? (float)(1 / scale) : 0, m = (float)min;
    const float lo = (float)f->lo, hi = (float)f->hi, to_integer = 0x1.8p23f;
    float t[MOST];
    for (int j = 0; j < p->n; j++) {
        t[j] = (p->x[j] + m) * id;
        t[j] = t[j] < lo ? lo : t[j];
        t[j] = t[j] > hi ? hi : t[j];
        q[j] = (t[j] + to_integer) - to_integer; /* floats as large as this are integers */
    }
    if (!f->rising) return;
    for (int j = 0; j < p->n; j++) q[j] = lo;
    for (int k = 1; k < f->n_rising; k++) {
        const float step = (float)(f->rising[k] - f->rising[k - 1]);
        const float middle = (float)f->rising[k] - 0.5f * step;
        for (int j = 0; j < p->n; j++) q[j] += t[j] > middle ? step : 0.0f;
    }
}

static struct sums sums_of(const struct part *p, const float *q) {
    lanes wq = {0}, wqq = {0}, wqx = {0};
    for (int j = 0; j < p->n; j += LANES) {
        lanes w, x, level;
        memcpy(&w, p->w + j, sizeof w);
        memcpy(&x, p->x + j, sizeof x);
        memcpy(&level, q + j, sizeof level);
        w *= level;
        wq += w;
        wqq += w * level;
        wqx += w * x;
    }
    return (struct sums){total(&wq), total(&wqq), total(&wqx)};
}

static double error_of(const struct part *p, const struct sums *s, double scale, double min) {
    return p->sum_wxx + scale * scale * s->wqq + min * min * p->sum_w - 2 * scale * s->wqx +
           2 * min * p->sum_wx - 2 * scale * min * s->wq;
}

/* The best line for levels. Those that are all the same tell no min: its error is NaN, or as large as
 * rounding makes it. */
static struct line line_of(const struct format *f, const struct part *p, const float *q) {
    const struct sums s = sums_of(p, q);
    const double det = s.wqq * p->sum_w - s.wq * s.wq;
    struct line l = {s.wqx / s.wqq, 0, 0};
    if (f->mins != NO_MIN) {
        l.scale = (s.wqx * p->sum_w - s.wq * p->sum_wx) / det;
        l.min = (s.wq * s.wqx - s.wqq * p->sum_wx) / det;
    }
    l.error = error_of(p, &s, l.scale, l.min);
    return l;
}

/* Replaces *best if the levels by scale and min have a better line. */
static void improve(const struct format *f, const struct part *p, double scale, double min,
                    struct line *best) {
    float q[MOST];
    to_levels(f, p, scale, min, q);
    const struct line l = line_of(f, p, q);
    if (l.error < best->error) *best = l;
}

/* Scales of both signs, where levels reach further on one side. */
static void try_scales(const struct format *f, const struct part *p, struct line *best) {
    const double max = (double)fabsf(sheaf__signed_max(p->x, p->n)), last = -f->lo;
    const int n_levels = f->rising ? f->n_rising : f->hi - f->lo + 1;
    const double between = (f->hi - f->lo) / (double)(n_levels - 1);
    for (int k = -BELOW; k <= ABOVE; k++) {
        const double scale = max / (last + k * (last / 4 + between) / ABOVE);
        improve(f, p, scale, 0, best);
        if (f->hi != -f->lo) improve(f, p, -scale, 0, best);
    }
}

/* Ranges whose ends lie up to three quarters of a step within the part's, or a quarter outside. */
static void try_ranges(const struct format *f, const struct part *p, struct line *best) {
    float lo, hi;
    sheaf__range(p->x, p->n, &lo, &hi);
    if (f->mins == INTEGER_MIN && lo > 0) lo = 0;
    const double step = (double)(hi - lo) / f->hi;
    for (int i = 0; i < SHIFTS; i++)
        for (int k = 0; k < SHIFTS; k++)
            improve(f, p, step * (f->hi - (i + k - 2) / 4.0) / f->hi,
                    -((double)lo + step * (i - 1) / 4), best);
}

static struct line free_line(const struct format *f, const struct part *p) {
    struct line best = {0, 0, INFINITY};
    if (f->mins == NO_MIN)
        try_scales(f, p, &best);
    else
        try_ranges(f, p, &best);
    for (int i = 0; i < TURNS; i++) improve(f, p, best.scale, best.min, &best);
    return best;
}

/* ---- a block ---- */

struct fit {
    uint16_t d, dmin;
    int scales[MOST_PARTS], mins[MOST_PARTS];
    struct sums sums[MOST_PARTS];
    double error;
};

static double scale_value(const struct format *f, double d, int scale) {
    return f->scale_of ? (double)f->scale_of((uint8_t)scale) : d * scale;
}

/* The scale's integer whose value is nearest to `scale`, or one next to it. */
static int scale_near(const struct format *f, double d, double scale) {
    int lo = f->scale_lo, hi = f->scale_hi;
    if (!f->scale_of) return sheaf__round_to((float)(scale / d), lo, hi);
    while (hi - lo > 1) {
        const int middle = (lo + hi) / 2;
        if ((double)f->scale_of((uint8_t)middle) <= scale)
            lo = middle;
        else
            hi = middle;
    }
    return lo;
}

/* Part i by one integer as its scale, and the min that fits; kept if it is better than *error. */
static void try_integer(const struct format *f, const struct part *p, const struct line *want,
                        double d, double dmin, int scale, int i, struct fit *c, double *error) {
    const double value = scale_value(f, d, scale);
    double min = want->min;
    int integer_min = f->mins == FREE_MIN;
    float q[MOST];
    if (f->mins == INTEGER_MIN) {
        to_levels(f, p, value, min, q);
        min = (value * sums_of(p, q).wq - p->sum_wx) / p->sum_w;
        integer_min = sheaf__round_to((float)(min / dmin), 0, f->min_hi);
    }
    min = dmin * integer_min;
    to_levels(f, p, value, min, q);
    const struct sums s = sums_of(p, q);
    const double e = error_of(p, &s, value, min);
    if (!(e < *error)) return;
    *error = e;
    c->scales[i] = scale;
    c->mins[i] = integer_min;
    c->sums[i] = s;
}

/* The best integers for halves; the halves may be any numbers, and become those. */
static void choose_integers(const struct format *f, const struct part *parts,
                            const struct line *lines, int n, double d, double dmin, struct fit *c) {
    c->d = sheaf__f32_to_f16((float)d);
    c->dmin = sheaf__f32_to_f16((float)dmin);
    c->error = 0;
    const int next = f->scale_of ? NEXT_OF : NEXT;
    d = (double)sheaf__f16_to_f32(c->d);
    dmin = (double)sheaf__f16_to_f32(c->dmin);
    for (int i = 0; i < n; i++) {
        const int near = scale_near(f, d, lines[i].scale);
        double error = INFINITY;
        for (int scale = near - next; scale <= near + next; scale++)
            if (scale >= f->scale_lo && scale <= f->scale_hi)
                try_integer(f, &parts[i], &lines[i], d, dmin, scale, i, c, &error);
        c->error += error;
    }
}

/* The halves with the least error for the integers and levels. */
static void halves_of(const struct part *parts, int n, const struct fit *c, double *d,
                      double *dmin) {
    double dd = 0, dm = 0, mm = 0, dx = 0, mx = 0;
    for (int i = 0; i < n; i++) {
        const double scale = c->scales[i], min = c->mins[i];
        dd += scale * scale * c->sums[i].wqq;
        dm += scale * min * c->sums[i].wq;
        mm += min * min * parts[i].sum_w;
        dx += scale * c->sums[i].wqx;
        mx += min * parts[i].sum_wx;
    }
    const double det = dd * mm - dm * dm;
    if (det > 0) {
        *d = (dx * mm - mx * dm) / det;
        *dmin = (dx * dm - mx * dd) / det;
    } else if (mm == 0) {
        *d = dx / dd;
    }
}

/* The number of greatest magnitude of two. */
static double larger(double a, double b) { return fabs(b) > fabs(a) ? b : a; }

static struct fit fit_block(const struct format *f, const struct part *parts, int n) {
    struct line lines[MOST_PARTS];
    struct fit best = {.error = INFINITY}, c;
    double most = 0, most_min = 0;
    for (int i = 0; i < n; i++) {
        lines[i] = free_line(f, &parts[i]);
        most = larger(most, lines[i].scale);
        most_min = larger(most_min, lines[i].min);
    }
    /* a scale of either sign reaches further on the negative side: there first */
    for (int k = 0; k < (f->scale_hi > 1 && !f->scale_of ? DIVISORS : 1); k++) {
        double d = most / (f->scale_lo < 0 && k == 0 ? f->scale_lo : f->scale_hi - k);
        double dmin = most_min / (f->mins == INTEGER_MIN ? f->min_hi : 1);
        for (int turn = 0; turn <= TURNS; turn++) {
            choose_integers(f, parts, lines, n, d, dmin, &c);
            if (c.error < best.error) best = c;
            halves_of(parts, n, &c, &d, &dmin);
        }
    }
    return best;
}

/* ---- a block's bytes ---- */

static void put_field(struct field f, int j, int value, uint8_t *block) {
    const int bytes = f.span * f.bits / 8, in = j % f.span;
    uint8_t *at = block + f.at + j / f.span * bytes + in % bytes;
    *at = (uint8_t)(*at | (value & ((1 << f.bits) - 1)) << in / bytes * f.bits);
}

static int code_of(const struct format *f, int level) {
    int code = 0;
    if (!f->levels) return level + f->bias;
    while (f->levels[code] != level) code++;
    return code;
}

static void put_half(uint16_t half, int at, uint8_t *block) {
    if (at >= 0) memcpy(block + at, &half, sizeof half);
}

/* Levels to codes; to digits, of a type without fields, as its plain quantizer does. */
static void put_levels(const struct format *f, const float *q, uint8_t *block) {
    if (!f->low.bits) f->plain(q, block, f->block);
    for (int j = 0; j < f->block && f->low.bits; j++) {
        const int code = code_of(f, (int)q[j]);
        put_field(f->low, j, code, block);
        if (f->high.bits) put_field(f->high, j, code >> f->low.bits, block);
    }
}

static void put_block(const struct format *f, const struct part *parts, int n, const struct fit *c,
                      uint8_t *block) {
    const double d = (double)sheaf__f16_to_f32(c->d), dmin = (double)sheaf__f16_to_f32(c->dmin);
    float q[MOST];
    for (int i = 0; i < n; i++)
        to_levels(f, &parts[i], scale_value(f, d, c->scales[i]), dmin * c->mins[i],
                  q + i * f->part);
    put_levels(f, q, block);
    put_half(c->d, f->d_at, block);
    put_half((uint16_t)(f->mins == FREE_MIN ? c->dmin ^ 0x8000 : c->dmin), f->dmin_at, block);
    if (f->put) f->put(block, c->scales, c->mins);
}

static void put_q2_k(void *block, const int *scales, const int *mins) {
    struct sheaf__block_q2_k *b = block;
    for (int i = 0; i < 16; i++) b->scales[i] = (uint8_t)(scales[i] | mins[i] << 4);
}
static void put_q3_k(void *block, const int *scales, const int *mins) {
    struct sheaf__block_q3_k *b = block;
    (void)mins;
    for (int i = 0; i < 16; i++) sheaf__add_q3_k_scale(b->scales, i, scales[i]);
}
static void put_q4_k(void *block, const int *scales, const int *mins) {
    struct sheaf__block_q4_k *b = block; /* and Q5_K, which has the same beginning */
    for (int i = 0; i < 8; i++) sheaf__add_k_scale_min(b->scales, i, scales[i], mins[i]);
}
static void put_q6_k(void *block, const int *scales, const int *mins) {
    struct sheaf__block_q6_k *b = block;
    (void)mins;
    for (int i = 0; i < 16; i++) b->scales[i] = (int8_t)scales[i];
}
static void put_iq4_xs(void *block, const int *scales, const int *mins) {
    struct sheaf__block_iq4_xs *b = block;
    (void)mins;
    for (int i = 0; i < 8; i++) sheaf__add_iq4_xs_scale(b, i, scales[i]);
}
static void put_mxfp4(void *block, const int *scales, const int *mins) {
    struct sheaf__block_mxfp4 *b = block;
    (void)mins;
    b->e = (uint8_t)scales[0];
}
static void put_nvfp4(void *block, const int *scales, const int *mins) {
    struct sheaf__block_nvfp4 *b = block;
    (void)mins;
    for (int i = 0; i < 4; i++) b->d[i] = (uint8_t)scales[i];
}

static float mxfp4_scale(uint8_t e) { return sheaf__mxfp4_scale(e); }
static float nvfp4_scale(uint8_t d) { return sheaf__nvfp4_scale(d); }

/* ---- the types ---- */

static const int8_t iq4[] = SHEAF__IQ4_LEVELS, fp4[] = SHEAF__FP4_LEVELS, signs[] = {-1, 1};
static const int8_t fp4_rising[] = {-12, -8, -6, -4, -3, -2, -1, 0, 1, 2, 3, 4, 6, 8, 12};

#define AT(type, member) (int)offsetof(struct sheaf__block_##type, member)
#define OF(type)                                                                                   \
    .size = sizeof(struct sheaf__block_##type), .plain = sheaf__quantize_##type,                   \
    .to_floats = sheaf__dequantize_##type
#define D(type)      OF(type), .d_at = AT(type, d), .dmin_at = -1
#define D_M(type, m) OF(type), .d_at = AT(type, d), .dmin_at = AT(type, m)
#define NO_D(type)   OF(type), .d_at = -1, .dmin_at = -1
#define TABLE(t, codes, first, last)                                                               \
    .lo = first, .hi = last, .n_rising = sizeof t, .rising = t, .levels = codes
#define HALF .scale_lo = 1, .scale_hi = 1
/* clang-format off */
static const struct format formats[SHEAF_TYPE_COUNT] = {
    [SHEAF_TYPE_Q4_0] = {32, 32, -8, 7, .bias = 8, .low = {AT(q4_0, qs), 4, 32}, HALF, D(q4_0)},
    [SHEAF_TYPE_Q4_1] = {32, 32, 0, 15, .low = {AT(q4_1, qs), 4, 32}, HALF, .mins = FREE_MIN,
                         D_M(q4_1, m)},
    [SHEAF_TYPE_Q5_0] = {32, 32, -16, 15, .bias = 16, .low = {AT(q5_0, qs), 4, 32},
                         .high = {AT(q5_0, qh), 1, 8}, HALF, D(q5_0)},
    [SHEAF_TYPE_Q5_1] = {32, 32, 0, 31, .low = {AT(q5_1, qs), 4, 32},
                         .high = {AT(q5_1, qh), 1, 8}, HALF, .mins = FREE_MIN, D_M(q5_1, m)},
    [SHEAF_TYPE_Q8_0] = {32, 32, -127, 127, .low = {AT(q8_0, qs), 8, 1}, HALF, D(q8_0)},
    [SHEAF_TYPE_Q2_K] = {256, 16, 0, 3, .low = {AT(q2_k, qs), 2, 128}, .scale_hi = 15,
                         .mins = INTEGER_MIN, .min_hi = 15, D_M(q2_k, dmin), .put = put_q2_k},
    [SHEAF_TYPE_Q3_K] = {256, 16, -4, 3, .bias = 4, .low = {AT(q3_k, qs), 2, 128},
                         .high = {AT(q3_k, hmask), 1, 256}, .scale_lo = -32, .scale_hi = 31,
                         D(q3_k), .put = put_q3_k},
    [SHEAF_TYPE_Q4_K] = {256, 32, 0, 15, .low = {AT(q4_k, qs), 4, 64}, .scale_hi = 63,
                         .mins = INTEGER_MIN, .min_hi = 63, D_M(q4_k, dmin), .put = put_q4_k},
    [SHEAF_TYPE_Q5_K] = {256, 32, 0, 31, .low = {AT(q5_k, qs), 4, 64},
                         .high = {AT(q5_k, qh), 1, 256}, .scale_hi = 63, .mins = INTEGER_MIN,
                         .min_hi = 63, D_M(q5_k, dmin), .put = put_q4_k},
    [SHEAF_TYPE_Q6_K] = {256, 16, -32, 31, .bias = 32, .low = {AT(q6_k, ql), 4, 128},
                         .high = {AT(q6_k, qh), 2, 128}, .scale_lo = -128, .scale_hi = 127,
                         D(q6_k), .put = put_q6_k},
    [SHEAF_TYPE_IQ4_NL] = {32, 32, TABLE(iq4, iq4, -127, 113), .low = {AT(iq4_nl, qs), 4, 32}, HALF, D(iq4_nl)},
    [SHEAF_TYPE_IQ4_XS] = {256, 32, TABLE(iq4, iq4, -127, 113), .low = {AT(iq4_xs, qs), 4, 32},
                           .scale_lo = -32, .scale_hi = 31, D(iq4_xs), .put = put_iq4_xs},
    [SHEAF_TYPE_MXFP4] = {32, 32, TABLE(fp4_rising, fp4, -12, 12), .low = {AT(mxfp4, qs), 4, 32},
                          .scale_hi = 254, .scale_of = mxfp4_scale, NO_D(mxfp4),
                          .put = put_mxfp4},
    [SHEAF_TYPE_NVFP4] = {64, 16, TABLE(fp4_rising, fp4, -12, 12), .low = {AT(nvfp4, qs), 4, 16},
                          .scale_hi = 0x7e, .scale_of = nvfp4_scale, NO_D(nvfp4),
                          .put = put_nvfp4},
    [SHEAF_TYPE_Q1_0] = {128, 128, TABLE(signs, signs, -1, 1), .low = {AT(q1_0, qs), 1, 8}, HALF, D(q1_0)},
    [SHEAF_TYPE_Q2_0] = {64, 64, -1, 2, .bias = 1, .low = {AT(q2_0, qs), 2, 4}, HALF, D(q2_0)},
    [SHEAF_TYPE_TQ1_0] = {256, 256, -1, 1, HALF, D(tq1_0)},
    [SHEAF_TYPE_TQ2_0] = {256, 256, -1, 1, .bias = 1, .low = {AT(tq2_0, qs), 2, 128}, HALF, D(tq2_0)},
};
/* clang-format on */
static_assert(AT(q4_k, scales) == AT(q5_k, scales), "put_q4_k");

/* Weights of a block, the largest 1; none is 0, so that a part without weight keeps its values. */
static void scale_weights(const float *given, int n, float *w) {
    float most = 0;
    for (int j = 0; given && j < n; j++) most = given[j] > most ? given[j] : most;
    const bool usable = most > 0 && most < INFINITY;
    for (int j = 0; j < n; j++) w[j] = usable ? fmaxf(given[j] / most, 1e-6f) : 1;
}

static double loss(const struct format *f, const float *x, const float *w, const void *block) {
    float y[MOST];
    double sum = 0;
    f->to_floats(block, y, f->block);
    for (int j = 0; j < f->block; j++) {
        const double off = (double)x[j] - (double)y[j];
        sum += (double)w[j] * off * off;
    }
    return sum;
}

/* What the plain quantizer makes stays where the search finds nothing better: sums of products may be
 * no floats, or halves just right without a search. */
static void quantize_block(const struct format *f, const float *x, const float *weights,
                           uint8_t *block) {
    const float max = fabsf(sheaf__signed_max(x, f->block));
    const int n = f->block / f->part;
    struct part parts[MOST_PARTS];
    float w[MOST];
    uint8_t other[MOST + 64] = {0};
    f->plain(x, block, f->block);
    if (!(max < 0x1p48f)) return;
    scale_weights(weights, f->block, w);
    for (int i = 0; i < n; i++) parts[i] = part_of(f, x + i * f->part, w + i * f->part);
    const struct fit c = fit_block(f, parts, n);
    if (!(c.error < INFINITY)) return; /* an element is no number */
    put_block(f, parts, n, &c, other);
    if (loss(f, x, w, other) < loss(f, x, w, block)) memcpy(block, other, f->size);
}

bool sheaf__fit_row(enum sheaf_type type, const float *x, const float *weights, void *dst,
                    int64_t n) {
    const struct format *f = &formats[type];
    uint8_t *block = dst;
    if (!f->block) return false;
    for (int64_t i = 0; i < n; i += f->block, block += f->size)
        quantize_block(f, x + i, weights ? weights + i : NULL, block);
    return true;
}
