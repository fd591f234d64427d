/* The variables that the emulator's threads read at every turn, in a library of their own: only a
 * library with little memory of this kind may have it in the place that needs no call to be found,
 * and the kernels' shared memory is of this kind, too. */
#include "cuda_runtime.h"

EMU_NEAR __thread emu_thread emu_now;
EMU_NEAR __thread struct emu_machine *emu_here;
