/* The table for 64-bit ARM: NEON, which every such CPU has. Compiled with its own flags; nothing
 * here runs before the score of its module (cpu/kernels/module.c) was asked. */
#include "cpu/kernels/v128/table.h"
