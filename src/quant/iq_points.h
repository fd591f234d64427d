/* The points of the grids of iq.h as tables, for files that look up all of them. */
#ifndef SHEAF_QUANT_IQ_POINTS_H
#define SHEAF_QUANT_IQ_POINTS_H

#include "quant/iq.h"

static const uint16_t iq2_xxs_points[] = {SHEAF__IQ2_XXS_GRID(SHEAF__IQ_POINTS)};
static const uint16_t iq2_xs_points[] = {SHEAF__IQ2_XS_GRID(SHEAF__IQ_POINTS)};
static const uint16_t iq2_s_points[] = {SHEAF__IQ2_S_GRID(SHEAF__IQ_POINTS)};
static const uint16_t iq3_xxs_points[] = {SHEAF__IQ3_XXS_GRID(SHEAF__IQ_POINTS)};
static const uint16_t iq3_s_points[] = {SHEAF__IQ3_S_GRID(SHEAF__IQ_POINTS)};
static const uint16_t iq1_points[] = {SHEAF__IQ1_GRID(SHEAF__IQ_POINTS)};
static_assert(sizeof iq2_xxs_points == 256 * 2 && sizeof iq2_xs_points == 512 * 2 &&
                  sizeof iq2_s_points == 1024 * 2 && sizeof iq3_xxs_points == 256 * 2 &&
                  sizeof iq3_s_points == 512 * 2 && sizeof iq1_points == 2048 * 2,
              "points of the formats");

#endif
