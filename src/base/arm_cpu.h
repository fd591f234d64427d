/* Names of ARM's processors. Linux and hwloc tell only the numbers of a register (MIDR_EL1); the names are those of
 * Linux, arch/arm64/include/asm/cputype.h. */
#ifndef SHEAF_BASE_ARM_CPU_H
#define SHEAF_BASE_ARM_CPU_H

#include <stddef.h>
#include <stdlib.h>

/* Of the numbers as texts, "0x41" and "0xd0c"; NULL for one that is not in the list, and for NULL. */
static inline const char *sheaf__arm_cpu_name(const char *implementer, const char *part) {
    enum { ARM = 0x41, FUJITSU = 0x46, HISILICON = 0x48, AMPERE = 0xc0 };
    static const struct {
        unsigned long implementer, part;
        const char *name;
    } cpus[] = {
        {ARM, 0xd03, "Cortex-A53"},   {ARM, 0xd08, "Cortex-A72"},   {ARM, 0xd0b, "Cortex-A76"},
        {ARM, 0xd41, "Cortex-A78"},   {ARM, 0xd42, "Cortex-A78AE"}, {ARM, 0xd0c, "Neoverse N1"},
        {ARM, 0xd49, "Neoverse N2"},  {ARM, 0xd8e, "Neoverse N3"},  {ARM, 0xd40, "Neoverse V1"},
        {ARM, 0xd4f, "Neoverse V2"},  {ARM, 0xd84, "Neoverse V3"},  {FUJITSU, 0x001, "A64FX"},
        {HISILICON, 0xd01, "TSV110"}, {AMPERE, 0xac3, "AmpereOne"}, {AMPERE, 0xac4, "AmpereOne A"},
    };
    for (size_t i = 0; implementer && part && i < sizeof cpus / sizeof *cpus; i++)
        if (cpus[i].implementer == strtoul(implementer, NULL, 16) &&
            cpus[i].part == strtoul(part, NULL, 16))
            return cpus[i].name;
    return NULL;
}

#endif
