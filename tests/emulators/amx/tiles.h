/* The tile intrinsics of AMX in plain C, included before the sources of the AMX kernels: what the
 * instructions do to registers and memory, as Intel's manual has it. What a CPU would refuse with a
 * fault ends the process with a line that says what was wrong; so does a configuration that is
 * loaded over another one that was not kept, which a CPU allows and the kernels promise not to do.
 * Tests load and keep the tiles of the module's kernels by amx_emu_load and amx_emu_store. */
#ifndef AMX_EMU_TILES_H
#define AMX_EMU_TILES_H

#if defined(__x86_64__) /* before the names are taken below */
#include <immintrin.h>
#endif
#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Compiled once: kernels are unrolled around them. */
#define EMU __attribute__((noinline, unused)) static

enum { EMU_TILES = 8, EMU_ROWS = 16, EMU_BYTES = 64 };

static _Thread_local struct {
    int configured;
    int kept;           /* since it was loaded */
    uint8_t config[64]; /* all zeros: none */
    struct {
        int rows, bytes; /* both 0: not in use */
        uint8_t data[EMU_ROWS][EMU_BYTES];
    } tile[EMU_TILES];
} emu;

#define EMU_CHECK(condition, what)                                                                 \
    do {                                                                                           \
        if (condition) break;                                                                      \
        fprintf(stderr, "amx-emu: %s: %s\n", __func__, what);                                      \
        abort();                                                                                   \
    } while (0)

EMU void emu_loadconfig(const void *from) {
    uint8_t b[64];
    memcpy(b, from, sizeof b);
    EMU_CHECK(!emu.configured || emu.kept, "the configuration before was not released or kept");
    EMU_CHECK(b[0] == 1, "the only palette is 1");
    EMU_CHECK(b[1] == 0, "start_row is for instructions that were interrupted");
    for (int i = 2; i < 16; i++) EMU_CHECK(b[i] == 0, "a reserved byte is set");
    for (int i = 16 + 2 * EMU_TILES; i < 48; i++) EMU_CHECK(b[i] == 0, "there are 8 tiles");
    for (int i = 48 + EMU_TILES; i < 64; i++) EMU_CHECK(b[i] == 0, "there are 8 tiles");
    memset(&emu, 0, sizeof emu);
    for (int t = 0; t < EMU_TILES; t++) {
        const int bytes = b[16 + 2 * t] | b[17 + 2 * t] << 8, rows = b[48 + t];
        EMU_CHECK(rows <= EMU_ROWS, "a tile has 16 rows at most");
        EMU_CHECK(bytes <= EMU_BYTES, "a row has 64 bytes at most");
        EMU_CHECK((rows == 0) == (bytes == 0), "rows without bytes, or bytes without rows");
        emu.tile[t].rows = rows;
        emu.tile[t].bytes = bytes;
    }
    emu.configured = 1;
    memcpy(emu.config, b, sizeof b);
}

EMU void emu_storeconfig(void *to) {
    memcpy(to, emu.config, sizeof emu.config);
    emu.kept = 1;
}

EMU void emu_release(void) { memset(&emu, 0, sizeof emu); }

EMU void emu_in_use(int t) {
    EMU_CHECK(emu.configured, "no tiles are configured");
    EMU_CHECK(t >= 0 && t < EMU_TILES && emu.tile[t].rows > 0, "the tile is not configured");
}

EMU void emu_zero(int t) {
    emu_in_use(t);
    memset(emu.tile[t].data, 0, sizeof emu.tile[t].data);
}

EMU void emu_loadd(int t, const void *from, size_t stride) {
    emu_zero(t);
    for (int r = 0; r < emu.tile[t].rows; r++)
        memcpy(emu.tile[t].data[r], (const char *)from + (size_t)r * stride,
               (size_t)emu.tile[t].bytes);
}

EMU void emu_stored(int t, void *to, size_t stride) {
    emu_in_use(t);
    for (int r = 0; r < emu.tile[t].rows; r++)
        memcpy((char *)to + (size_t)r * stride, emu.tile[t].data[r], (size_t)emu.tile[t].bytes);
}

/* c [m][n] += a [m][4k] . b [k][4n], in bytes: what a product asks of its tiles. */
EMU void emu_shapes(int c, int a, int b) {
    emu_in_use(c);
    emu_in_use(a);
    emu_in_use(b);
    EMU_CHECK(c != a && c != b && a != b, "a product of a tile with itself");
    EMU_CHECK(emu.tile[c].rows == emu.tile[a].rows, "sums and rows of a differ in number");
    EMU_CHECK(emu.tile[c].bytes == emu.tile[b].bytes, "sums and columns of b differ in number");
    EMU_CHECK(emu.tile[a].bytes == 4 * emu.tile[b].rows, "a row of a is not a column of b");
    EMU_CHECK(emu.tile[c].bytes % 4 == 0, "elements have 4 bytes");
}

/* Sums read and write tiles only, whose sizes emu_shapes has checked. A sanitizer's checks made suites of these
 * kernels take three times as long. */
#define EMU_SUMS __attribute__((no_sanitize("address", "undefined")))

/* The float of a BF16; subnormal ones count as zero, as do results (DAZ, FTZ). */
EMU_SUMS static inline float emu_flush(float x) {
    return fabsf(x) < 0x1p-126f ? copysignf(0, x) : x;
}
EMU_SUMS static inline float emu_bf16(const uint8_t *p) {
    const uint32_t bits = (uint32_t)p[0] << 16 | (uint32_t)p[1] << 24;
    float x;
    memcpy(&x, &bits, sizeof x);
    return emu_flush(x);
}

/* The elements of even and of odd number are summed apart, in order, by fused products rounded to
 * nearest even; then the two sums, then what was there. */
EMU_SUMS EMU void emu_dpbf16ps(int c, int a, int b) {
    emu_shapes(c, a, b);
    for (int m = 0; m < emu.tile[c].rows; m++) {
        float sum[EMU_BYTES / 4][2] = {0}, was;
        for (int k = 0; k < emu.tile[b].rows; k++) {
            for (int i = 0; i < 2; i++) {
                const float x = emu_bf16(&emu.tile[a].data[m][4 * k + 2 * i]);
                for (int n = 0; n < emu.tile[c].bytes / 4; n++)
                    sum[n][i] = emu_flush(
                        fmaf(x, emu_bf16(&emu.tile[b].data[k][4 * n + 2 * i]), sum[n][i]));
            }
        }
        for (int n = 0; n < emu.tile[c].bytes / 4; n++) {
            memcpy(&was, &emu.tile[c].data[m][4 * n], sizeof was);
            was = emu_flush(emu_flush(was) + emu_flush(sum[n][0] + sum[n][1]));
            memcpy(&emu.tile[c].data[m][4 * n], &was, sizeof was);
        }
    }
}

/* Signed bytes, exact in 32 bits, which wrap. */
EMU_SUMS EMU void emu_dpbssd(int c, int a, int b) {
    emu_shapes(c, a, b);
    for (int m = 0; m < emu.tile[c].rows; m++) {
        for (int n = 0; n < emu.tile[c].bytes / 4; n++) {
            uint32_t sum;
            memcpy(&sum, &emu.tile[c].data[m][4 * n], sizeof sum);
            for (int k = 0; k < emu.tile[a].bytes; k++)
                sum += (uint32_t)((int8_t)emu.tile[a].data[m][k] *
                                  (int8_t)emu.tile[b].data[k / 4][4 * n + k % 4]);
            memcpy(&emu.tile[c].data[m][4 * n], &sum, sizeof sum);
        }
    }
}

#define EMU_SHOWN __attribute__((visibility("default")))
EMU_SHOWN void amx_emu_load(const void *from);
EMU_SHOWN void amx_emu_store(void *to);
void amx_emu_load(const void *from) { emu_loadconfig(from); }
void amx_emu_store(void *to) { emu_storeconfig(to); }

#undef _tile_zero
#undef _tile_loadd
#undef _tile_stored
#undef _tile_dpbf16ps
#undef _tile_dpbssd
#define _tile_loadconfig(from)       emu_loadconfig(from)
#define _tile_storeconfig(to)        emu_storeconfig(to)
#define _tile_release()              emu_release()
#define _tile_zero(t)                emu_zero(t)
#define _tile_loadd(t, from, stride) emu_loadd(t, from, stride)
#define _tile_stored(t, to, stride)  emu_stored(t, to, stride)
#define _tile_dpbf16ps(c, a, b)      emu_dpbf16ps(c, a, b)
#define _tile_dpbssd(c, a, b)        emu_dpbssd(c, a, b)

#endif
