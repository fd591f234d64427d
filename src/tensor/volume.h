/* Channels of volumes. Dimension 3 of a CONV_3D's kernel is m.k, of its image n.k, of its result
 * n.m: a slice has fewer of one of them, so none is a parameter, and k follows from the three. */
#ifndef SHEAF_TENSOR_VOLUME_H
#define SHEAF_TENSOR_VOLUME_H

#include <math.h>

#include "sheaf/tensor.h"

/* k of m.k, n.k and n.m; -1: they are no such products. Of an empty result 0. */
static inline int64_t sheaf__summed_channels(int64_t mk, int64_t nk, int64_t nm) {
    if (mk > INT32_MAX || nk > INT32_MAX || nm > INT32_MAX) return -1;
    if (nm == 0) return mk == 0 || nk == 0 ? 0 : -1;
    const int64_t square = mk * nk / nm;
    int64_t k = (int64_t)sqrt((double)square);
    while (k * k > square) k--;
    while ((k + 1) * (k + 1) <= square) k++;
    if (k == 0) return mk == 0 && nk == 0 ? 0 : -1;
    return mk % k == 0 && nk % k == 0 && mk / k * (nk / k) == nm ? k : -1;
}

#endif
