/* Weights of every quantized type as bytes with a sign, 32 at a time: x = d * byte + m, with a d for each 32 or 16
 * of them and, in some types, an m. What rows by few columns and panels are made of.
 *
 * A new type has a line in each of the functions here: weights_32, scales_256 and the three that describe it. */
#include "cpu/kernels/v128/vector.h"
#include "quant/iq_points.h"

/* ---- what a type is ---- */

INLINE bool has_min(enum sheaf_type type) {
    return type == SHEAF_TYPE_Q4_1 || type == SHEAF_TYPE_Q5_1 || type == SHEAF_TYPE_Q4_K ||
           type == SHEAF_TYPE_Q5_K || type == SHEAF_TYPE_Q2_K;
}
/* Is d that of 16 elements, not of 32? */
INLINE bool by_16(enum sheaf_type type) {
    return type == SHEAF_TYPE_Q2_K || type == SHEAF_TYPE_Q3_K || type == SHEAF_TYPE_Q6_K ||
           type == SHEAF_TYPE_NVFP4 || type == SHEAF_TYPE_IQ2_XS || type == SHEAF_TYPE_IQ2_S ||
           type == SHEAF_TYPE_IQ1_M;
}
/* Bytes of 256 weights. */
INLINE size_t size_256(enum sheaf_type type) {
    switch ((int)type) {
#define SIZE(TYPE, type, per)                                                                      \
    case SHEAF_TYPE_##TYPE:                                                                        \
        return sizeof(struct sheaf__block_##type) * (SHEAF__QK_K / (per));
        SIZE(Q4_0, q4_0, SHEAF__QK)
        SIZE(Q4_1, q4_1, SHEAF__QK)
        SIZE(Q5_0, q5_0, SHEAF__QK)
        SIZE(Q5_1, q5_1, SHEAF__QK)
        SIZE(Q8_0, q8_0, SHEAF__QK)
        SIZE(IQ4_NL, iq4_nl, SHEAF__QK)
        SIZE(MXFP4, mxfp4, SHEAF__QK)
        SIZE(NVFP4, nvfp4, SHEAF__QK_NVFP4)
        SIZE(Q1_0, q1_0, SHEAF__QK1)
        SIZE(Q2_0, q2_0, SHEAF__QK2)
        SIZE(Q2_K, q2_k, SHEAF__QK_K)
        SIZE(Q3_K, q3_k, SHEAF__QK_K)
        SIZE(Q4_K, q4_k, SHEAF__QK_K)
        SIZE(Q5_K, q5_k, SHEAF__QK_K)
        SIZE(Q6_K, q6_k, SHEAF__QK_K)
        SIZE(TQ1_0, tq1_0, SHEAF__QK_K)
        SIZE(TQ2_0, tq2_0, SHEAF__QK_K)
        SIZE(IQ4_XS, iq4_xs, SHEAF__QK_K)
        SIZE(IQ2_XXS, iq2_xxs, SHEAF__QK_K)
        SIZE(IQ2_XS, iq2_xs, SHEAF__QK_K)
        SIZE(IQ2_S, iq2_s, SHEAF__QK_K)
        SIZE(IQ3_XXS, iq3_xxs, SHEAF__QK_K)
        SIZE(IQ3_S, iq3_s, SHEAF__QK_K)
        SIZE(IQ1_S, iq1_s, SHEAF__QK_K)
        SIZE(IQ1_M, iq1_m, SHEAF__QK_K)
#undef SIZE
    default:
        return 0;
    }
}

/* ---- 32 weights as bytes ---- */

static const int8_t iq4_levels[16] = SHEAF__IQ4_LEVELS, fp4_levels[16] = SHEAF__FP4_LEVELS;

static const int8_t iq2_levels[4] = SHEAF__IQ2_LEVELS, iq1_levels[4] = {-8, 0, 8};
static const int8_t iq3_xxs_levels[8] = SHEAF__IQ3_XXS_LEVELS,
                    iq3_s_levels[8] = SHEAF__IQ3_S_LEVELS;

/* The groups of the types of grids: their points and levels, bits of a coordinate, coordinates of a point. */
#define IQ_TYPES(X)                                                                                \
    X(IQ2_XXS, iq2_xxs, iq2_xxs_points, iq2_levels, 2, 8)                                          \
    X(IQ2_XS, iq2_xs, iq2_xs_points, iq2_levels, 2, 8)                                             \
    X(IQ2_S, iq2_s, iq2_s_points, iq2_levels, 2, 8)                                                \
    X(IQ3_XXS, iq3_xxs, iq3_xxs_points, iq3_xxs_levels, 4, 4)                                      \
    X(IQ3_S, iq3_s, iq3_s_points, iq3_s_levels, 4, 4)                                              \
    X(IQ1_S, iq1_s, iq1_points, iq1_levels, 2, 8)                                                  \
    X(IQ1_M, iq1_m, iq1_points, iq1_levels, 2, 8)

INLINE struct sheaf__iq_group iq_group(enum sheaf_type type, const void *w, int g) {
    switch ((int)type) {
#define GROUP(TYPE, type, points, levels, bits, dims)                                              \
    case SHEAF_TYPE_##TYPE:                                                                        \
        return sheaf__##type##_group(w, g);
        IQ_TYPES(GROUP)
#undef GROUP
    default:
        return (struct sheaf__iq_group){0};
    }
}
INLINE void iq_bytes(enum sheaf_type type, const void *w, int g, int8_t *q) {
    const struct sheaf__iq_group x = iq_group(type, w, g);
    switch ((int)type) {
#define BYTES(TYPE, type, points, levels, bits, dims)                                              \
    case SHEAF_TYPE_##TYPE:                                                                        \
        for (int j = 0; j < SHEAF__IQ_GROUP; j++) {                                                \
            const int at = points[x.point[j / (dims)]] >> (bits) * (j % (dims));                   \
            const int level = levels[at & ((1 << (bits)) - 1)];                                    \
            q[j] = (int8_t)(x.signs >> j & 1 ? -level : level + x.offset);                         \
        }                                                                                          \
        break;
        IQ_TYPES(BYTES)
#undef BYTES
    default:
        break;
    }
}

/* 16 bytes, all ones where a bit of 16 is set, the lowest first. */
INLINE v_u8 bits_16(const uint8_t *bits) {
    const v_u8 each = {1, 2, 4, 8, 16, 32, 64, 128, 1, 2, 4, 8, 16, 32, 64, 128};
    const uint8_t a = bits[0], b = bits[1];
    const v_u8 x = {a, a, a, a, a, a, a, a, b, b, b, b, b, b, b, b};
    return (v_u8)((x & each) == each);
}

/* Block b of the 8 of 256 weights at w, in order. b and the type are constants. */
INLINE void weights_32(enum sheaf_type type, const char *w, int b, v_i8 *q) {
    const v_u8 low = v_bytes(15);
    const int half = b / 4, quarter = b % 4; /* of the types that lie in halves of 128 */
    switch ((int)type) {
    case SHEAF_TYPE_Q4_0:
    case SHEAF_TYPE_Q4_1: {
        const size_t size = size_256(type) / 8;
        const v_u8 x = v_load_u8(w + (size_t)b * size + size - 16);
        const v_i8 less = (v_i8)v_bytes(type == SHEAF_TYPE_Q4_0 ? 8 : 0);
        q[0] = (v_i8)(x & low) - less;
        q[1] = (v_i8)(x >> 4) - less;
        return;
    }
    case SHEAF_TYPE_Q5_0:
    case SHEAF_TYPE_Q5_1: {
        const size_t size = size_256(type) / 8;
        const char *end = w + (size_t)(b + 1) * size;
        const uint8_t *qh = (const uint8_t *)(end - 20);
        const v_u8 x = v_load_u8(end - 16), fifth = v_bytes(16);
        const v_i8 less = (v_i8)v_bytes(type == SHEAF_TYPE_Q5_0 ? 16 : 0);
        q[0] = (v_i8)((x & low) | (bits_16(qh) & fifth)) - less;
        q[1] = (v_i8)((x >> 4) | (bits_16(qh + 2) & fifth)) - less;
        return;
    }
    case SHEAF_TYPE_Q8_0: {
        const struct sheaf__block_q8_0 *x = (const void *)w;
        q[0] = v_load_i8(x[b].qs);
        q[1] = v_load_i8(x[b].qs + 16);
        return;
    }
    case SHEAF_TYPE_IQ4_NL:
    case SHEAF_TYPE_MXFP4:
    case SHEAF_TYPE_IQ4_XS: {
        const bool fp4 = type == SHEAF_TYPE_MXFP4;
        const size_t size = size_256(type) / 8;
        const v_i8 levels = v_load_i8(fp4 ? fp4_levels : iq4_levels);
        const char *at = w + (size_t)b * size + size - 16;
        if (type == SHEAF_TYPE_IQ4_XS) at = w + size_256(type) - 128 + 16 * b;
        const v_u8 x = v_load_u8(at);
        q[0] = v_lookup(levels, x & low);
        q[1] = v_lookup(levels, x >> 4);
        return;
    }
    case SHEAF_TYPE_Q4_K:
    case SHEAF_TYPE_Q5_K: {
        const char *qs = w + size_256(type) - 128 + b / 2 * 32;
        UNROLL for (int h = 0; h < 2; h++) {
            v_u8 x = v_load_u8(qs + 16 * h);
            x = b % 2 ? x >> 4 : x & low;
            if (type == SHEAF_TYPE_Q5_K) {
                const struct sheaf__block_q5_k *of = (const void *)w;
                x |= (v_load_u8(of->qh + 16 * h) >> b & 1) << 4;
            }
            q[h] = (v_i8)x;
        }
        return;
    }
    case SHEAF_TYPE_Q6_K: {
        const struct sheaf__block_q6_k *of = (const void *)w;
        UNROLL for (int h = 0; h < 2; h++) {
            const v_u8 x = v_load_u8(of->ql + 64 * half + quarter % 2 * 32 + 16 * h);
            const v_u8 top = v_load_u8(of->qh + 32 * half + 16 * h) >> 2 * quarter & 3;
            q[h] = (v_i8)((quarter < 2 ? x & low : x >> 4) | top << 4) - (v_i8)v_bytes(32);
        }
        return;
    }
    case SHEAF_TYPE_Q2_K:
    case SHEAF_TYPE_Q3_K:
    case SHEAF_TYPE_TQ2_0: {
        const struct sheaf__block_q2_k *k2 = (const void *)w;
        const struct sheaf__block_q3_k *k3 = (const void *)w;
        const struct sheaf__block_tq2_0 *t2 = (const void *)w;
        const uint8_t *qs = type == SHEAF_TYPE_Q2_K   ? k2->qs
                            : type == SHEAF_TYPE_Q3_K ? k3->qs
                                                      : t2->qs;
        UNROLL for (int h = 0; h < 2; h++) {
            q[h] = (v_i8)(v_load_u8(qs + 32 * half + 16 * h) >> 2 * quarter & 3);
            if (type == SHEAF_TYPE_TQ2_0) q[h] -= (v_i8)v_bytes(1);
            if (type == SHEAF_TYPE_Q3_K)
                q[h] += (v_i8)((v_load_u8(k3->hmask + 16 * h) >> b & 1) << 2) - (v_i8)v_bytes(4);
        }
        return;
    }
    case SHEAF_TYPE_Q1_0: {
        const struct sheaf__block_q1_0 *of = (const void *)w;
        const uint8_t *bits = of[b / 4].qs + b % 4 * 4;
        UNROLL for (int h = 0; h < 2; h++) q[h] =
            (v_i8)(bits_16(bits + 2 * h) & 2) - (v_i8)v_bytes(1);
        return;
    }
    default: {
        int8_t x[32];
        for (int j = 0; j < 32; j++) {
            const int i = 32 * b + j;
            if (type == SHEAF_TYPE_NVFP4) {
                const struct sheaf__block_nvfp4 *of = (const void *)w;
                const uint8_t byte = of[b / 2].qs[8 * (b % 2 * 2 + j / 16) + j % 8];
                x[j] = fp4_levels[byte >> j % 16 / 8 * 4 & 15];
            } else if (type == SHEAF_TYPE_Q2_0) {
                const struct sheaf__block_q2_0 *of = (const void *)w;
                x[j] = (int8_t)((of[b / 2].qs[i % 64 / 4] >> j % 4 * 2 & 3) - 1);
            } else if (type == SHEAF_TYPE_TQ1_0) {
                const struct sheaf__block_tq1_0 *of = (const void *)w;
                const int n = i < 160 ? i / 32 : i < 240 ? (i - 160) / 16 : (i - 240) / 4;
                const uint8_t byte = i < 160   ? of->qs[j]
                                     : i < 240 ? of->qs[32 + (i - 160) % 16]
                                               : of->qh[i % 4];
                x[j] = (int8_t)(sheaf__tq1_digit(byte, n) - 1);
            } else if (j % SHEAF__IQ_GROUP == 0) {
                iq_bytes(type, w, i / SHEAF__IQ_GROUP, x + j);
            }
        }
        q[0] = v_load_i8(x);
        q[1] = v_load_i8(x + 16);
    }
    }
}

/* ---- scales ---- */

INLINE float f16_at(const void *p) {
#if defined(__aarch64__)
    float16_t h;
    memcpy(&h, p, sizeof h);
    return (float)h;
#else
    uint16_t h;
    memcpy(&h, p, sizeof h);
    return sheaf__f16_to_f32(h);
#endif
}

/* d, and m where the type has it, of n blocks of 32 from the first of 256 on: one for each, or, of types by 16, two. */
INLINE void scales_256(enum sheaf_type type, const char *w, int n, float *d, float *m) {
    switch ((int)type) {
    case SHEAF_TYPE_Q4_0:
    case SHEAF_TYPE_Q4_1:
    case SHEAF_TYPE_Q5_0:
    case SHEAF_TYPE_Q5_1:
    case SHEAF_TYPE_Q8_0:
    case SHEAF_TYPE_IQ4_NL: {
        const size_t size = size_256(type) / 8;
        uint16_t first[8] = {0}, second[8] = {0};
        for (int b = 0; b < n; b++) {
            memcpy(&first[b], w + (size_t)b * size, sizeof *first);
            if (has_min(type)) memcpy(&second[b], w + (size_t)b * size + 2, sizeof *second);
        }
        UNROLL for (int b = 0; b < 8; b += VW) {
            v_store(d + b, v_load_f16(first + b));
            if (has_min(type)) v_store(m + b, v_load_f16(second + b));
        }
        return;
    }
    case SHEAF_TYPE_MXFP4:
        for (int b = 0; b < n; b++)
            d[b] = sheaf__mxfp4_scale(((const struct sheaf__block_mxfp4 *)(const void *)w)[b].e);
        return;
    case SHEAF_TYPE_NVFP4:
        for (int s = 0; s < 2 * n; s++) {
            const struct sheaf__block_nvfp4 *of = (const void *)w;
            d[s] = sheaf__nvfp4_scale(of[s / 4].d[s % 4]);
        }
        return;
    case SHEAF_TYPE_Q1_0:
        for (int b = 0; b < n; b++)
            d[b] = f16_at(&((const struct sheaf__block_q1_0 *)(const void *)w)[b / 4].d);
        return;
    case SHEAF_TYPE_Q2_0:
        for (int b = 0; b < n; b++)
            d[b] = f16_at(&((const struct sheaf__block_q2_0 *)(const void *)w)[b / 2].d);
        return;
    case SHEAF_TYPE_Q4_K:
    case SHEAF_TYPE_Q5_K: {
        const struct sheaf__block_q4_k *of = (const void *)w;
        const float by = f16_at(&of->d), min = -f16_at(&of->dmin);
        for (int b = 0; b < n; b++) {
            uint8_t scale, less;
            sheaf__k_scale_min(of->scales, b, &scale, &less);
            d[b] = by * (float)scale;
            m[b] = min * (float)less;
        }
        return;
    }
    case SHEAF_TYPE_Q6_K: {
        const struct sheaf__block_q6_k *of = (const void *)w;
        const float by = f16_at(&of->d);
        for (int s = 0; s < 16; s++) d[s] = by * (float)of->scales[s];
        return;
    }
    case SHEAF_TYPE_Q2_K: {
        const struct sheaf__block_q2_k *of = (const void *)w;
        const float by = f16_at(&of->d), min = -f16_at(&of->dmin);
        for (int s = 0; s < 16; s++) {
            d[s] = by * (float)(of->scales[s] & 15);
            m[s] = min * (float)(of->scales[s] >> 4);
        }
        return;
    }
    case SHEAF_TYPE_Q3_K: {
        const struct sheaf__block_q3_k *of = (const void *)w;
        const float by = f16_at(&of->d);
        for (int s = 0; s < 16; s++) d[s] = by * (float)sheaf__q3_k_scale(of->scales, s);
        return;
    }
    case SHEAF_TYPE_IQ4_XS: {
        const struct sheaf__block_iq4_xs *of = (const void *)w;
        const float by = f16_at(&of->d);
        for (int b = 0; b < n; b++) d[b] = by * (float)sheaf__iq4_xs_scale(of, b);
        return;
    }
    case SHEAF_TYPE_TQ1_0:
        for (int b = 0; b < n; b++)
            d[b] = f16_at(&((const struct sheaf__block_tq1_0 *)(const void *)w)->d);
        return;
    case SHEAF_TYPE_TQ2_0:
        for (int b = 0; b < n; b++)
            d[b] = f16_at(&((const struct sheaf__block_tq2_0 *)(const void *)w)->d);
        return;
    default: {
        const int each = by_16(type) ? 2 : 4; /* groups of 8 */
        for (int s = 0; s < 4 * n / each; s++) d[s] = iq_group(type, w, each * s).scale;
    }
    }
}

/* ---- 256 weights ---- */

struct weights_256 {
    int8_t q[SHEAF__QK_K];
    float d[16], m[16]; /* of each 32, or of each 16; m only in types that have it */
};

INLINE void take_256(enum sheaf_type type, const char *w, int blocks, struct weights_256 *to) {
    scales_256(type, w, blocks, to->d, to->m);
    UNROLL for (int b = 0; b < 8; b++) {
        if (b >= blocks) break;
        v_i8 q[2];
        weights_32(type, w, b, q);
        v_store_i8(to->q + 32 * b, q[0]);
        v_store_i8(to->q + 32 * b + 16, q[1]);
    }
}

/* X(TYPE, name) for all of them. */
#define QUANTIZED_TYPES(X)                                                                         \
    X(Q4_0, q4_0)                                                                                  \
    X(Q4_1, q4_1)                                                                                  \
    X(Q5_0, q5_0)                                                                                  \
    X(Q5_1, q5_1)                                                                                  \
    X(Q8_0, q8_0)                                                                                  \
    X(Q2_K, q2_k)                                                                                  \
    X(Q3_K, q3_k)                                                                                  \
    X(Q4_K, q4_k)                                                                                  \
    X(Q5_K, q5_k)                                                                                  \
    X(Q6_K, q6_k)                                                                                  \
    X(IQ4_NL, iq4_nl)                                                                              \
    X(IQ4_XS, iq4_xs)                                                                              \
    X(MXFP4, mxfp4)                                                                                \
    X(NVFP4, nvfp4)                                                                                \
    X(Q1_0, q1_0)                                                                                  \
    X(Q2_0, q2_0)                                                                                  \
    X(TQ1_0, tq1_0)                                                                                \
    X(TQ2_0, tq2_0)                                                                                \
    X(IQ2_XXS, iq2_xxs)                                                                            \
    X(IQ2_XS, iq2_xs)                                                                              \
    X(IQ2_S, iq2_s)                                                                                \
    X(IQ3_XXS, iq3_xxs)                                                                            \
    X(IQ3_S, iq3_s)                                                                                \
    X(IQ1_S, iq1_s)                                                                                \
    X(IQ1_M, iq1_m)

/* A type, as the loops over rows need it: `take` unpacks so many blocks of 32, up to 256 weights. */
struct weights {
    size_t size; /* bytes of 256 */
    bool by_16, has_min;
    void (*take)(const char *w, int blocks, struct weights_256 *to);
};
#define TAKE(TYPE, type)                                                                           \
    static void take_##type(const char *w, int blocks, struct weights_256 *to) {                   \
        take_256(SHEAF_TYPE_##TYPE, w, blocks, to);                                                \
    }
QUANTIZED_TYPES(TAKE)
#undef TAKE
INLINE struct weights weights_of(enum sheaf_type type,
                                 void (*take)(const char *, int, struct weights_256 *)) {
    return (struct weights){size_256(type), by_16(type), has_min(type), take};
}

/* ---- weights as floats: the bits of quant/quants.c and its neighbours ---- */

static void floats_of(struct weights of, const char *w, float *y, int64_t n) {
    struct weights_256 x;
    for (; n > 0; n -= SHEAF__QK_K, w += of.size, y += SHEAF__QK_K) {
        const int sixteens = (int)(n < SHEAF__QK_K ? n : SHEAF__QK_K) / 16;
        of.take(w, sixteens / 2, &x);
        for (int i = 0; i < sixteens; i++) {
            const int s = of.by_16 ? i : i / 2;
            const v_i8 q = v_load_i8(x.q + 16 * i);
            UNROLL for (int p = 0; p < 4; p++) {
                v_f v = v_set1(x.d[s]) * v_from_i8(q, p);
                if (of.has_min) v = v + v_set1(x.m[s]);
                v_store(y + 16 * i + 4 * p, v);
            }
        }
    }
}

#define FLOATS(TYPE, type)                                                                         \
    static void floats_##type(const void *x, float *y, int64_t n) {                                \
        floats_of(weights_of(SHEAF_TYPE_##TYPE, take_##type), x, y, n);                            \
    }
QUANTIZED_TYPES(FLOATS)
#undef FLOATS

/* Plain ones as vectors. */
INLINE v_f plain_4(enum sheaf_type type, const void *x, int64_t i) {
    if (type == SHEAF_TYPE_F32) return v_load((const float *)x + i);
    const uint16_t *h = (const uint16_t *)x + i;
    return type == SHEAF_TYPE_F16 ? v_load_f16(h) : v_load_bf16(h);
}
INLINE float plain_1(enum sheaf_type type, const void *x, int64_t i) {
    if (type == SHEAF_TYPE_F32) return ((const float *)x)[i];
    const uint16_t *h = (const uint16_t *)x + i;
    return type == SHEAF_TYPE_F16 ? f16_at(h) : sheaf__bf16_to_f32(*h);
}
INLINE void floats_of_plain(enum sheaf_type type, const void *x, float *y, int64_t n) {
    int64_t i = 0;
    for (; i + VW <= n; i += VW) v_store(y + i, plain_4(type, x, i));
    for (; i < n; i++) y[i] = plain_1(type, x, i);
}

static void floats_f32(const void *x, float *y, int64_t n) { memcpy(y, x, (size_t)n * sizeof *y); }
static void floats_f16(const void *x, float *y, int64_t n) {
    floats_of_plain(SHEAF_TYPE_F16, x, y, n);
}
static void floats_bf16(const void *x, float *y, int64_t n) {
    floats_of_plain(SHEAF_TYPE_BF16, x, y, n);
}
