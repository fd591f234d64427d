/* The AVX2 table with the VNNI products of 32 bytes (AVX-VNNI): what it changes of that of avx2.c, for Intel's CPUs of
 * 2021 and later that have no AVX-512. The integers are those of avx2.c, in fewer instructions; only IQ4 and, in the
 * fast mode, types of 8 bits have other forms. */
#pragma GCC diagnostic ignored "-Wunused-function" /* of the parts not all are needed */
#pragma GCC diagnostic ignored "-Wunused-const-variable"
#define KERNELS_VNNI_256
#define KERNELS_NO_TABLE
#include "cpu/kernels/x86/avx2.h"

#include "cpu/kernels/x86/table.h"

void sheaf__cpu_kernels_extend(struct sheaf__cpu_kernels *table) {
    static const struct sheaf__cpu_kernels with_vnni = {
        .panels = {[SHEAF__PANELS_16] = {PANELS_16, .unpack = {ENTRIES_16}},
                   [SHEAF__PANELS_8] = {PANELS_8, .unpack = {ENTRIES_8}}},
        .rows_dot_digits = {ENTRIES_DIGITS},
        .digits_order = DIGITS_ORDER,
        .rows_dot_rounded = {ROUNDED(ROUNDED_ENTRY)},
    };
    table->panels[SHEAF__PANELS_16] = with_vnni.panels[SHEAF__PANELS_16];
    table->panels[SHEAF__PANELS_8] = with_vnni.panels[SHEAF__PANELS_8];
    memcpy(table->rows_dot_digits, with_vnni.rows_dot_digits, sizeof table->rows_dot_digits);
    memcpy(table->digits_order, with_vnni.digits_order, sizeof table->digits_order);
    memcpy(table->rows_dot_rounded, with_vnni.rows_dot_rounded, sizeof table->rows_dot_rounded);
    sheaf__cpu_kernels_use_repacked(table);
}
