/* Elements of the types that kernels take by elements, one at a time: the IQ formats of 1 to
 * 3 bits, and those of two to four levels. As src/quant/iq.c and tables.c compute them; the grids, 9 KiB,
 * lie in global memory of the device, once for each .cu file that reads them. */
#ifndef SHEAF_CUDA_IQ_CUH
#define SHEAF_CUDA_IQ_CUH

/* C leaves out fields that are 0; C++ warns of it. */
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wmissing-field-initializers"
#include "quant/iq.h"
#pragma GCC diagnostic pop

#define POINTS(name, grid) static __device__ const uint16_t name[] = {grid(SHEAF__IQ_POINTS)}
POINTS(iq2_xxs_points, SHEAF__IQ2_XXS_GRID);
POINTS(iq2_xs_points, SHEAF__IQ2_XS_GRID);
POINTS(iq2_s_points, SHEAF__IQ2_S_GRID);
POINTS(iq3_xxs_points, SHEAF__IQ3_XXS_GRID);
POINTS(iq3_s_points, SHEAF__IQ3_S_GRID);
POINTS(iq1_points, SHEAF__IQ1_GRID);
#undef POINTS

#define AT static __device__ __forceinline__

/* Integer q of a group's element j, with its sign and the offset, times the scale. */
AT float iq_value(const struct sheaf__iq_group &g, int j, int q) {
    return g.scale * (float)(g.signs >> j & 1 ? -q : q + g.offset);
}
/* Coordinate j of a point of 8 as its level: 8, 25, 43; -8, 0, 8. */
AT int iq2_level(uint16_t point, int j) {
    const int c = point >> 2 * j & 3;
    return c == 0 ? 8 : c == 1 ? 25 : 43;
}
AT int iq1_level(uint16_t point, int j) { return 8 * ((point >> 2 * j & 3) - 1); }
/* Of a point of 4: 4, 12, .. 52, 62; 1, 3, .. 15. */
AT int iq3_xxs_level(uint16_t point, int j) {
    const int c = point >> 4 * j & 15;
    return 8 * c + (c == 7 ? 6 : 4);
}
AT int iq3_s_level(uint16_t point, int j) { return 2 * (point >> 4 * j & 15) + 1; }

#define IQ2(name)                                                                                  \
    AT float element(const sheaf__block_##name *b, int i) {                                        \
        const struct sheaf__iq_group g = sheaf__##name##_group(b, i / 8);                          \
        return iq_value(g, i % 8, iq2_level(name##_points[g.point[0]], i % 8));                    \
    }
#define IQ3(name)                                                                                  \
    AT float element(const sheaf__block_##name *b, int i) {                                        \
        const struct sheaf__iq_group g = sheaf__##name##_group(b, i / 8);                          \
        const uint16_t point = name##_points[g.point[i % 8 / 4]];                                  \
        return iq_value(g, i % 8, name##_level(point, i % 4));                                     \
    }
#define IQ1(name)                                                                                  \
    AT float element(const sheaf__block_##name *b, int i) {                                        \
        const struct sheaf__iq_group g = sheaf__##name##_group(b, i / 8);                          \
        return iq_value(g, i % 8, iq1_level(iq1_points[g.point[0]], i % 8));                       \
    }
IQ2(iq2_xxs)
IQ2(iq2_xs)
IQ2(iq2_s)
IQ3(iq3_xxs)
IQ3(iq3_s)
IQ1(iq1_s)
IQ1(iq1_m)
#undef IQ1
#undef IQ2
#undef IQ3

/* ---- two to four levels ---- */

AT float element(const sheaf__block_nvfp4 *b, int i) {
    const int s = i / 16;
    return sheaf__nvfp4_scale(b->d[s]) * level(true, b->qs[8 * s + i % 8] >> i % 16 / 8 * 4 & 15);
}
AT float element(const sheaf__block_q1_0 *b, int i) {
    const float d = f16_to_f32(b->d);
    return b->qs[i / 8] >> i % 8 & 1 ? d : -d;
}
AT float element(const sheaf__block_q2_0 *b, int i) {
    return f16_to_f32(b->d) * (float)((b->qs[i / 4] >> i % 4 * 2 & 3) - 1);
}
AT float element(const sheaf__block_tq1_0 *b, int i) {
    const int digit = i < 160   ? sheaf__tq1_digit(b->qs[i % 32], i / 32)
                      : i < 240 ? sheaf__tq1_digit(b->qs[32 + i % 16], (i - 160) / 16)
                                : sheaf__tq1_digit(b->qh[i % 4], (i - 240) / 4);
    return f16_to_f32(b->d) * (float)(digit - 1);
}
AT float element(const sheaf__block_tq2_0 *b, int i) {
    return f16_to_f32(b->d) * (float)((b->qs[i / 128 * 32 + i % 32] >> i / 32 % 4 * 2 & 3) - 1);
}
#undef AT

#endif
