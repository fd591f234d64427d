/* Architecture `phi3`: as llama, with q, k and v in one matrix, gate and up in another, rotary
 * pairs (i, i + d/2), and two sets of frequency factors, for contexts within and beyond the
 * original one. Source of the facts: the Phi-3 report (arXiv 2404.14219) and the converter of GGUF
 * files. Its sliding windows are not used: files state them for models that were trained
 * without. */
#include "model/arch/arch.h"
#include "model/arch/builder.h"

static struct sheaf_tensor *attention(struct sheaf__builder *b, int64_t il,
                                      struct sheaf_tensor *x) {
    return sheaf__build_plain_attention(b, il, x, SHEAF_ROPE_TYPE_NEOX);
}

const struct sheaf__arch sheaf__arch_phi3 = {
    .name = "phi3",
    .needs = SHEAF__W_BIT(ATTN_NORM) | SHEAF__W_BIT(QKV) | SHEAF__W_BIT(O) | SHEAF__W_BIT(FFN_NORM),
    .dense = SHEAF__W_BIT(GATE_UP) | SHEAF__W_BIT(DOWN),
    .model_needs = SHEAF__W_MODEL,
    .model_allows =
        SHEAF__W_OF_MODEL(OUTPUT) | SHEAF__W_OF_MODEL(ROPE_LONG) | SHEAF__W_OF_MODEL(ROPE_SHORT),
    .attention = attention,
    .ffn = sheaf__build_plain_ffn,
};
