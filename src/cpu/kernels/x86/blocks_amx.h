/* A part of amx.c: products of few columns by tiles whose sums are those of one block, or of 16 elements, since its
 * scales come after: panels8_amx.h and panels_scaled_amx.h, 16 rows by 16 columns. */

/* Step s multiplies to tile s % 2, `MULTIPLY(tile, s)`. Its sums [2][16][16] are stored a step later, and joined
 * another step later, `JOIN(s, sums)`, since a core forwards neither to tiles nor from them. */
#define BLOCK_BY_BLOCK(STEPS, SUMS, MULTIPLY, JOIN)                                                \
    for (int64_t s = 0; s < (STEPS) + 2; s++) {                                                    \
        if (s < (STEPS) && s % 2) {                                                                \
            MULTIPLY(1, s);                                                                        \
        } else if (s < (STEPS)) {                                                                  \
            MULTIPLY(0, s);                                                                        \
        }                                                                                          \
        if (s > 1) JOIN(s - 2, (SUMS)[s % 2]);                                                     \
        if (s > (STEPS)) break;                                                                    \
        if (s % 2)                                                                                 \
            _tile_stored(0, (SUMS)[0], sizeof(SUMS)[0][0]);                                        \
        else if (s > 0)                                                                            \
            _tile_stored(1, (SUMS)[1], sizeof(SUMS)[1][0]);                                        \
    }

/* FN(by_16, mins, ...) for rows of the type like *LIKE. */
#define BY_KIND_OF_ROW(LIKE, FN, ...)                                                              \
    if ((LIKE)->by_16 && (LIKE)->has_min) {                                                        \
        FN(true, true, __VA_ARGS__);                                                               \
    } else if ((LIKE)->by_16) {                                                                    \
        FN(true, false, __VA_ARGS__);                                                              \
    } else if ((LIKE)->has_min) {                                                                  \
        FN(false, true, __VA_ARGS__);                                                              \
    } else {                                                                                       \
        FN(false, false, __VA_ARGS__);                                                             \
    }
