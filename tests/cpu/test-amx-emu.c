/* The emulation of AMX judged: products of known results, and instructions that a CPU would refuse.
 * Code that runs on it is in test-mul-mat.c. */
#include <criterion/criterion.h>
#include <signal.h>

#include "amx/tiles.h"

struct config {
    uint8_t palette, start_row, reserved[14];
    uint16_t bytes[16];
    uint8_t rows[16];
};
/* c [2][3], a [2][8 bytes], b [8 bytes][3]; tile 3 and up unused */
#define GOOD                                                                                       \
    {                                                                                              \
        .palette = 1, .bytes = {12, 8, 12}, .rows = { 2, 2, 2 }                                    \
    }
static const struct config good = GOOD;

static uint16_t bf16(float x) {
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    return (uint16_t)(bits >> 16);
}

/* One sum of four products: x0 y0 + x2 y2 and x1 y1 + x3 y3, then both, then c. */
static float dot_bf16(const float *x, const float *y, float c) {
    static const struct config shapes = {.palette = 1, .bytes = {4, 8, 4}, .rows = {1, 1, 2}};
    uint16_t a[4], b[2][2];
    for (int i = 0; i < 4; i++) {
        a[i] = bf16(x[i]);
        b[i / 2][i % 2] = bf16(y[i]);
    }
    _tile_loadconfig(&shapes);
    _tile_loadd(0, &c, sizeof c);
    _tile_loadd(1, a, sizeof a);
    _tile_loadd(2, b, sizeof b[0]);
    _tile_dpbf16ps(0, 1, 2);
    _tile_stored(0, &c, sizeof c);
    _tile_release();
    return c;
}

Test(amx_emu, products_of_bf16) {
    const float big = 0x1p60f, tiny = 0x1p-130f, ones[] = {1, 1, 1, 1};
    cr_assert_eq(dot_bf16((const float[4]){1, 2, 3, 4}, (const float[4]){5, 6, 7, 8}, 100), 170);
    /* even and odd apart: in one chain 1 would be lost in 2^60 */
    cr_assert_eq(dot_bf16((const float[4]){big, 1, -big, 2}, ones, 0), 3);
    cr_assert_eq(dot_bf16((const float[4]){big, -big, 1, 2}, ones, 0), 0);
    /* what was there comes last, and ties go to even */
    cr_assert_eq(dot_bf16((const float[4]){1, -1, 0, 1}, ones, 0x1p24f), 0x1p24f);
    cr_assert_eq(dot_bf16((const float[4]){1, 1, 1, 0}, ones, 0x1p24f), 0x1p24f + 4);
    /* subnormal operands, sums and results are zeros */
    cr_assert_eq(dot_bf16((const float[4]){tiny, 0, 0, 0}, (const float[4]){0x1p100f}, 0), 0);
    cr_assert_eq(dot_bf16((const float[4]){0x1p-65f}, (const float[4]){0x1p-65f}, 0), 0);
    cr_assert_eq(dot_bf16((const float[4]){0}, ones, tiny), 0);
    cr_assert_eq(dot_bf16((const float[4]){0x1p-63f}, (const float[4]){0x1p-63f}, 0), 0x1p-126f);
}

/* Two rows of eight bytes by two columns, signed, added to what was there; sums wrap. */
Test(amx_emu, products_of_bytes) {
    static const struct config shapes = {.palette = 1, .bytes = {8, 8, 8}, .rows = {2, 2, 2}};
    const int8_t a[2][8] = {{1, 2, 3, 4, 5, 6, 7, 8}, {-128, 127, 0, 0, 0, 0, 0, -1}};
    const int8_t b[2][2][4] = {{{1, 0, 0, 0}, {-128, -128, 0, 0}}, {{0, 0, 0, 1}, {0, 0, 0, 127}}};
    const int32_t want[2][2] = {{9 + 100, -384 + 1016 - 7}, {-129 + INT32_MAX - 1, 128 - 127}};
    int32_t c[2][2] = {{100, -7}, {INT32_MAX - 1, 0}};
    _tile_loadconfig(&shapes);
    _tile_loadd(0, c, sizeof c[0]);
    _tile_loadd(1, a, sizeof a[0]);
    _tile_loadd(2, b, sizeof b[0]);
    _tile_dpbssd(0, 1, 2);
    _tile_stored(0, c, sizeof c[0]);
    cr_assert(!memcmp(c, want, sizeof c), "%d %d %d %d", c[0][0], c[0][1], c[1][0], c[1][1]);
    /* -128 - 128 from the least there is: */
    const int32_t least[2][2] = {{INT32_MIN, INT32_MIN}, {INT32_MIN, INT32_MIN}};
    const int8_t down[2][8] = {{-128}, {0, -1}};
    _tile_loadd(0, least, sizeof least[0]);
    _tile_loadd(1, down, sizeof down[0]);
    _tile_dpbssd(0, 1, 2);
    _tile_stored(0, c, sizeof c[0]);
    cr_assert_eq(c[0][0], INT32_MAX - 127);
    cr_assert_eq(c[0][1], INT32_MIN + 16384);
    cr_assert_eq(c[1][1], INT32_MIN + 128);
    _tile_release();
}

#define REFUSES(NAME, ...)                                                                         \
    Test(amx_emu, refuses_##NAME, .signal = SIGABRT) { __VA_ARGS__; }
static void load(struct config c) { _tile_loadconfig(&c); }
static void ready(void) { load(good); }

REFUSES(a_product_without_tiles, _tile_dpbf16ps(0, 1, 2))
REFUSES(bytes_without_tiles, _tile_dpbssd(0, 1, 2))
REFUSES(a_load_without_tiles, _tile_loadd(0, &good, 8))
REFUSES(use_after_release, ready(); _tile_release(); _tile_zero(0))
REFUSES(a_tile_that_has_no_shape, ready(); _tile_zero(3))
REFUSES(a_second_configuration, ready(); ready())
REFUSES(palette_0, struct config c = GOOD; c.palette = 0; load(c))
REFUSES(palette_2, struct config c = GOOD; c.palette = 2; load(c))
REFUSES(reserved_bytes, struct config c = GOOD; c.reserved[3] = 1; load(c))
REFUSES(17_rows, struct config c = GOOD; c.rows[1] = 17; load(c))
REFUSES(65_bytes, struct config c = GOOD; c.bytes[1] = 65; load(c))
REFUSES(rows_without_bytes, struct config c = GOOD; c.rows[5] = 1; load(c))
REFUSES(a_ninth_tile, struct config c = GOOD; c.bytes[8] = 4; c.rows[8] = 1; load(c))
REFUSES(a_tile_by_itself, ready(); _tile_dpbf16ps(0, 1, 1))
REFUSES(rows_that_differ, struct config c = GOOD; c.rows[1] = 1; load(c); _tile_dpbf16ps(0, 1, 2))
REFUSES(columns_that_differ, struct config c = GOOD; c.bytes[2] = 8; load(c); _tile_dpbf16ps(0, 1, 2))
REFUSES(bytes_of_another_k, struct config c = GOOD; c.bytes[1] = 4; load(c); _tile_dpbssd(0, 1, 2))
REFUSES(another_k, struct config c = GOOD; c.bytes[1] = 4; load(c); _tile_dpbf16ps(0, 1, 2))
