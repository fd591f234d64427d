/* How sums are written between hosts. Every rank decodes what every rank has sent, its own part
 * included, so rounding is the same everywhere. Never F16: partial sums overflow it. */

#include <string.h>

#include "base/settings.h"
#include "comm/transport/transport.h"
#include "quant/quants.h"

size_t sheaf__codec_bytes(enum sheaf_type type, size_t n) {
    switch (type) {
    case SHEAF_TYPE_BF16:
        return n * sizeof(uint16_t);
    case SHEAF_TYPE_Q8_0:
        return (n + SHEAF__QK - 1) / SHEAF__QK * sizeof(struct sheaf__block_q8_0);
    default:
        return n * sizeof(float);
    }
}

void sheaf__codec_encode(enum sheaf_type type, const float *src, uint8_t *dst, size_t n) {
    if (type == SHEAF_TYPE_F32) {
        if (n) memcpy(dst, src, n * sizeof *src);
        return;
    }
    if (type == SHEAF_TYPE_BF16) {
        for (size_t i = 0; i < n; i++) {
            const uint16_t h = sheaf__f32_to_bf16(src[i]);
            memcpy(dst + i * sizeof h, &h, sizeof h);
        }
        return;
    }
    const size_t whole = n / SHEAF__QK * SHEAF__QK;
    sheaf__quantize_q8_0(src, dst, (int64_t)whole);
    if (whole == n) return;
    float rest[SHEAF__QK] = {0};
    memcpy(rest, src + whole, (n - whole) * sizeof *rest);
    sheaf__quantize_q8_0(rest, dst + sheaf__codec_bytes(type, whole), SHEAF__QK);
}

void sheaf__codec_decode(enum sheaf_type type, const uint8_t *src, float *dst, size_t n) {
    if (type == SHEAF_TYPE_F32) {
        if (n) memcpy(dst, src, n * sizeof *dst);
        return;
    }
    if (type == SHEAF_TYPE_BF16) {
        for (size_t i = 0; i < n; i++) {
            uint16_t h;
            memcpy(&h, src + i * sizeof h, sizeof h);
            dst[i] = sheaf__bf16_to_f32(h);
        }
        return;
    }
    const size_t whole = n / SHEAF__QK * SHEAF__QK;
    sheaf__dequantize_q8_0(src, dst, (int64_t)whole);
    if (whole == n) return;
    float rest[SHEAF__QK];
    sheaf__dequantize_q8_0(src + sheaf__codec_bytes(type, whole), rest, SHEAF__QK);
    memcpy(dst + whole, rest, (n - whole) * sizeof *rest);
}

void sheaf__codec_round(enum sheaf_type type, float *data, uint8_t *scratch, size_t n) {
    sheaf__codec_encode(type, data, scratch, n);
    if (type != SHEAF_TYPE_F32) sheaf__codec_decode(type, scratch, data, n);
}

enum sheaf_status sheaf__codec_type(enum sheaf_type wanted, enum sheaf_type *out) {
    static const enum sheaf_type types[] = {SHEAF_TYPE_F32, SHEAF_TYPE_BF16, SHEAF_TYPE_Q8_0};
    *out = wanted;
    if (wanted == SHEAF_TYPE_F32) {
        int choice = 0;
        const enum sheaf_status st = sheaf__setting_choice(SHEAF__SET_COMM_WIRE, &choice);
        *out = types[choice];
        return st;
    }
    if (wanted == SHEAF_TYPE_BF16 || wanted == SHEAF_TYPE_Q8_0) return SHEAF_STATUS_SUCCESS;
    return sheaf_set_error(SHEAF_STATUS_INVALID,
                           "create group: sums cannot travel as %s; they take f32, bf16 or q8_0",
                           sheaf_type_name(wanted));
}
