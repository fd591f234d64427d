/* Rows of the IQ formats of 1 to 3 bits (iq.h).
 *
 * Dequantizing is the specification, as in quants.c. Quantizing takes the largest magnitude of each
 * sub-block as the largest level and then the nearest point of the grid, no search for a better
 * scale and no weights of importance: tools that have these write better files, and sheaf-quantize
 * does not offer these types. Any bits are accepted, as in blocks.h. */
#include "quant/iq.h"
#include "quant/blocks.h"
#include "quant/iq_points.h"

/* A family of formats: its grid, and the form of its scales, x = d * unit * (2 scale + 1) * q. */
struct grid {
    const uint16_t *points;
    int n, dims;  /* points; coordinates of one */
    int bits;     /* of a coordinate in a packed point */
    int n_levels; /* q of each coordinate */
    int8_t levels[8];
    int top;      /* the largest q, with the offset of IQ1 */
    int per, max; /* elements of a scale; the largest scale */
    float unit;
    bool even, offsets; /* signs of an even number; IQ1 */
};
static const struct grid iq2_xxs = {.points = iq2_xxs_points,
                                    .n = 256,
                                    .dims = 8,
                                    .bits = 2,
                                    .n_levels = 3,
                                    .levels = SHEAF__IQ2_LEVELS,
                                    .top = 43,
                                    .per = 32,
                                    .max = 15,
                                    .unit = 0.125f,
                                    .even = true};
static const struct grid iq2_xs = {.points = iq2_xs_points,
                                   .n = 512,
                                   .dims = 8,
                                   .bits = 2,
                                   .n_levels = 3,
                                   .levels = SHEAF__IQ2_LEVELS,
                                   .top = 43,
                                   .per = 16,
                                   .max = 15,
                                   .unit = 0.125f,
                                   .even = true};
static const struct grid iq2_s = {.points = iq2_s_points,
                                  .n = 1024,
                                  .dims = 8,
                                  .bits = 2,
                                  .n_levels = 3,
                                  .levels = SHEAF__IQ2_LEVELS,
                                  .top = 43,
                                  .per = 16,
                                  .max = 15,
                                  .unit = 0.125f};
static const struct grid iq3_xxs = {.points = iq3_xxs_points,
                                    .n = 256,
                                    .dims = 4,
                                    .bits = 4,
                                    .n_levels = 8,
                                    .levels = SHEAF__IQ3_XXS_LEVELS,
                                    .top = 62,
                                    .per = 32,
                                    .max = 15,
                                    .unit = 0.25f,
                                    .even = true};
static const struct grid iq3_s = {.points = iq3_s_points,
                                  .n = 512,
                                  .dims = 4,
                                  .bits = 4,
                                  .n_levels = 8,
                                  .levels = SHEAF__IQ3_S_LEVELS,
                                  .top = 15,
                                  .per = 32,
                                  .max = 15,
                                  .unit = 1.0f};
static const struct grid iq1_s = {.points = iq1_points,
                                  .n = 2048,
                                  .dims = 8,
                                  .bits = 2,
                                  .n_levels = 3,
                                  .levels = {-8, 0, 8},
                                  .top = 9,
                                  .per = 32,
                                  .max = 7,
                                  .unit = 0.125f,
                                  .offsets = true};
static const struct grid iq1_m = {.points = iq1_points,
                                  .n = 2048,
                                  .dims = 8,
                                  .bits = 2,
                                  .n_levels = 3,
                                  .levels = {-8, 0, 8},
                                  .top = 9,
                                  .per = 16,
                                  .max = 7,
                                  .unit = 0.125f,
                                  .offsets = true};

static int level_of(const struct grid *g, int point, int j) {
    return g->levels[g->points[point] >> g->bits * j & ((1 << g->bits) - 1)];
}

/* ---- to floats ---- */

static void group_to_floats(const struct grid *g, struct sheaf__iq_group x, float *dst) {
    for (int j = 0; j < SHEAF__IQ_GROUP; j++) {
        const int q = level_of(g, x.point[j / g->dims], j % g->dims);
        dst[j] = x.scale * (float)(x.signs >> j & 1 ? -q : q + x.offset);
    }
}

#define DEQUANTIZE(type)                                                                           \
    void sheaf__dequantize_##type(const void *src, float *dst, int64_t n) {                        \
        const struct sheaf__block_##type *b = src;                                                 \
        for (int64_t i = 0; i < n / SHEAF__IQ_GROUP; i++, dst += SHEAF__IQ_GROUP)                  \
            group_to_floats(                                                                       \
                &type,                                                                             \
                sheaf__##type##_group(&b[i / SHEAF__IQ_GROUPS], (int)(i % SHEAF__IQ_GROUPS)),      \
                dst);                                                                              \
    }
DEQUANTIZE(iq2_xxs)
DEQUANTIZE(iq2_xs)
DEQUANTIZE(iq2_s)
DEQUANTIZE(iq3_xxs)
DEQUANTIZE(iq3_s)
DEQUANTIZE(iq1_s)
DEQUANTIZE(iq1_m)

/* ---- from floats ---- */

/* A block before it is packed. */
struct coded {
    uint16_t d;
    uint8_t scale[16];
    uint16_t point[SHEAF__QK_K / 4];
    uint8_t signs[SHEAF__IQ_GROUPS];
    bool minus[SHEAF__IQ_GROUPS]; /* the offset */
};

/* What the coordinates in one byte of a packed point add to the square of its distance from t, for
 * the bytes of which points are made. Returns the least of it. */
static float byte_costs(const struct grid *g, const float *t, float *costs) {
    float least = 0;
    costs[0] = 0;
    for (int j = 0; j < 8 / g->bits; j++) {
        const int bytes = 1 << g->bits * j; /* of the coordinates before this one */
        float add[16], least_added = INFINITY;
        for (int v = 0; v < g->n_levels; v++) {
            const float off = t[j] - (float)g->levels[v];
            add[v] = off * off;
            least_added = add[v] < least_added ? add[v] : least_added;
        }
        least += least_added;
        for (int v = g->n_levels; v-- > 0;) /* the sums for 0 take the place of those before */
            for (int i = 0; i < bytes; i++) costs[v * bytes + i] = costs[i] + add[v];
    }
    return least;
}

/* Where the high byte of a grid's points changes: run i is the points from first[i] to
 * first[i + 1]. Points with one high byte lie together in all grids. */
struct runs {
    int n;
    uint16_t first[257];
};
static struct runs runs_of(const struct grid *g) {
    struct runs runs = {.n = 0};
    for (int p = 0; p < g->n; p++)
        if (p == 0 || g->points[p] >> 8 != g->points[p - 1] >> 8)
            runs.first[runs.n++] = (uint16_t)p;
    runs.first[runs.n] = (uint16_t)g->n;
    return runs;
}

/* The point nearest to t [dims], the first of several, and the square of its distance. The cheapest
 * run comes first; those that cost more than the best point with any low byte are passed over. */
static int nearest_point(const struct grid *g, const struct runs *runs, const float *t,
                         float *distance) {
    float low[256], high[256], at[256];
    const float least = byte_costs(g, t, low);
    int best = g->n, cheapest = 0;
    byte_costs(g, t + g->dims / 2, high);
    int i = 0;
    do { /* a grid has a run */
        at[i] = high[g->points[runs->first[i]] >> 8];
        if (at[i] < at[cheapest]) cheapest = i;
    } while (++i < runs->n);
    *distance = INFINITY;
    for (int k = -1; k < runs->n; k++) {
        i = k < 0 ? cheapest : k;
        if (least + at[i] > *distance || k == cheapest) continue;
        for (int p = runs->first[i]; p < runs->first[i + 1]; p++) {
            const float cost = low[g->points[p] & 255] + at[i];
            if (cost < *distance || (cost == *distance && p < best)) {
                *distance = cost;
                best = p;
            }
        }
    }
    return best < g->n ? best : 0;
}

/* Takes the signs off t; of an odd number of them, where it must be even, the one that costs least
 * is stored wrong. */
static uint8_t take_signs(const struct grid *g, float *t) {
    uint8_t signs = 0;
    int least = 0;
    for (int j = 0; j < SHEAF__IQ_GROUP; j++) {
        if (t[j] < 0) signs = (uint8_t)(signs | 1 << j);
        t[j] = fabsf(t[j]);
        if (t[j] < t[least]) least = j;
    }
    if (!g->even || sheaf__even_signs(signs & 127) == signs) return signs;
    t[least] = -t[least];
    return (uint8_t)(signs ^ 1 << least);
}

/* Group i of x, times id, with an offset in IQ1; returns the square of the distance. */
static float code_group(const struct grid *g, const struct runs *runs, const float *x, float id,
                        int i, bool minus, struct coded *c) {
    float t[SHEAF__IQ_GROUP], sum = 0;
    for (int j = 0; j < SHEAF__IQ_GROUP; j++)
        t[j] = x[8 * i + j] * id - (float)(g->offsets ? minus ? -1 : 1 : 0);
    c->signs[i] = g->offsets ? 0 : take_signs(g, t);
    c->minus[i] = minus;
    for (int p = 0; p < SHEAF__IQ_GROUP / g->dims; p++) {
        float distance;
        c->point[SHEAF__IQ_GROUP / g->dims * i + p] =
            (uint16_t)nearest_point(g, runs, t + p * g->dims, &distance);
        sum += distance;
    }
    return sum;
}

/* n groups from group i on, which have one offset: the better one. */
static void code_groups(const struct grid *g, const struct runs *runs, const float *x, float id,
                        int i, int n, struct coded *c) {
    struct coded other = *c;
    float cost[2] = {0, 0};
    for (int k = i; k < i + n; k++) {
        cost[0] += code_group(g, runs, x, id, k, false, c);
        if (g->offsets) cost[1] += code_group(g, runs, x, id, k, true, &other);
    }
    if (g->offsets && cost[1] < cost[0]) *c = other;
}

static struct coded code_block(const struct grid *g, const struct runs *runs, const float *x,
                               int together) {
    struct coded c = {0};
    float want[16], most = 0;
    const int n = SHEAF__QK_K / g->per;
    for (int s = 0; s < n; s++) {
        want[s] = fabsf(sheaf__signed_max(x + s * g->per, g->per)) / (float)g->top;
        most = want[s] > most ? want[s] : most;
    }
    c.d = sheaf__f32_to_f16(most / (g->unit * (float)(2 * g->max + 1)));
    const float unit = sheaf__f16_to_f32(c.d) * g->unit;
    for (int s = 0; s < n; s++)
        c.scale[s] = (uint8_t)sheaf__round_to((want[s] * sheaf__inverse(unit) - 1) / 2, 0, g->max);
    for (int i = 0; i < SHEAF__IQ_GROUPS; i += together)
        code_groups(g, runs, x, sheaf__inverse(unit * (float)(2 * c.scale[8 * i / g->per] + 1)), i,
                    together, &c);
    return c;
}

/* Four times 7 signs and a scale. */
static uint32_t signs_and_scale(const struct coded *c, int s) {
    uint32_t u = (uint32_t)c->scale[s] << 28;
    for (int i = 0; i < 4; i++) u |= (uint32_t)(c->signs[4 * s + i] & 127) << 7 * i;
    return u;
}
static void pack_nibbles(const uint8_t *from, int n, uint8_t *to) {
    for (int i = 0; i < n; i += 2) to[i / 2] = (uint8_t)(from[i] | from[i + 1] << 4);
}

static void pack_iq2_xxs(const struct coded *c, struct sheaf__block_iq2_xxs *b) {
    b->d = c->d;
    for (int s = 0; s < 8; s++) {
        for (int i = 0; i < 4; i++) b->qs[8 * s + i] = (uint8_t)c->point[4 * s + i];
        sheaf__store_le32(b->qs + 8 * s + 4, signs_and_scale(c, s));
    }
}
static void pack_iq2_xs(const struct coded *c, struct sheaf__block_iq2_xs *b) {
    b->d = c->d;
    for (int i = 0; i < SHEAF__IQ_GROUPS; i++) {
        b->qs[2 * i] = (uint8_t)c->point[i];
        b->qs[2 * i + 1] = (uint8_t)(c->point[i] >> 8 | (c->signs[i] & 127) << 1);
    }
    pack_nibbles(c->scale, 16, b->scales);
}
static void pack_iq2_s(const struct coded *c, struct sheaf__block_iq2_s *b) {
    memset(b, 0, sizeof *b);
    b->d = c->d;
    memcpy(b->signs, c->signs, sizeof b->signs);
    for (int i = 0; i < SHEAF__IQ_GROUPS; i++) {
        b->qs[i] = (uint8_t)c->point[i];
        b->qh[i / 4] = (uint8_t)(b->qh[i / 4] | c->point[i] >> 8 << i % 4 * 2);
    }
    pack_nibbles(c->scale, 16, b->scales);
}
static void pack_iq3_xxs(const struct coded *c, struct sheaf__block_iq3_xxs *b) {
    b->d = c->d;
    for (int i = 0; i < SHEAF__QK_K / 4; i++) b->qs[i] = (uint8_t)c->point[i];
    for (int s = 0; s < 8; s++) sheaf__store_le32(b->signs_scales + 4 * s, signs_and_scale(c, s));
}
static void pack_iq3_s(const struct coded *c, struct sheaf__block_iq3_s *b) {
    memset(b, 0, sizeof *b);
    b->d = c->d;
    memcpy(b->signs, c->signs, sizeof b->signs);
    for (int i = 0; i < SHEAF__QK_K / 4; i++) {
        b->qs[i] = (uint8_t)c->point[i];
        b->qh[i / 8] = (uint8_t)(b->qh[i / 8] | c->point[i] >> 8 << i % 8);
    }
    pack_nibbles(c->scale, 8, b->scales);
}
static void pack_iq1_s(const struct coded *c, struct sheaf__block_iq1_s *b) {
    b->d = c->d;
    for (int s = 0; s < 8; s++) {
        int h = c->scale[s] << 12 | (c->minus[4 * s] ? 1 << 15 : 0);
        for (int i = 0; i < 4; i++) {
            b->qs[4 * s + i] = (uint8_t)c->point[4 * s + i];
            h |= c->point[4 * s + i] >> 8 << 3 * i;
        }
        b->qh[2 * s] = (uint8_t)h;
        b->qh[2 * s + 1] = (uint8_t)(h >> 8);
    }
}
static void pack_iq1_m(const struct coded *c, struct sheaf__block_iq1_m *b) {
    uint8_t nibble[SHEAF__IQ_GROUPS];
    for (int i = 0; i < SHEAF__IQ_GROUPS; i++) {
        b->qs[i] = (uint8_t)c->point[i];
        nibble[i] = (uint8_t)(c->point[i] >> 8 | (c->minus[i] ? 8 : 0));
    }
    pack_nibbles(nibble, SHEAF__IQ_GROUPS, b->qh);
    for (int k = 0; k < 4; k++) {
        int u = (c->d >> 4 * k & 15) << 12;
        for (int i = 0; i < 4; i++) u |= c->scale[4 * k + i] << 3 * i;
        b->scales[2 * k] = (uint8_t)u;
        b->scales[2 * k + 1] = (uint8_t)(u >> 8);
    }
}

/* together: groups of 8 that have one offset; any number for types without. */
#define QUANTIZE(type, together)                                                                   \
    void sheaf__quantize_##type(const float *src, void *dst, int64_t n) {                          \
        struct sheaf__block_##type *b = dst;                                                       \
        const struct runs runs = runs_of(&type);                                                   \
        for (int64_t i = 0; i < n / SHEAF__QK_K; i++) {                                            \
            const struct coded c = code_block(&type, &runs, src + i * SHEAF__QK_K, together);      \
            pack_##type(&c, &b[i]);                                                                \
        }                                                                                          \
    }
QUANTIZE(iq2_xxs, 1)
QUANTIZE(iq2_xs, 1)
QUANTIZE(iq2_s, 1)
QUANTIZE(iq3_xxs, 1)
QUANTIZE(iq3_s, 1)
QUANTIZE(iq1_s, 4)
QUANTIZE(iq1_m, 1)
