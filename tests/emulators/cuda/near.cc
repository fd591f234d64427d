/* The variables of a thread that kernels and fibers read all the time, as static thread-local memory
 * (initial-exec), whose address needs no call. A library that is loaded at run time may have only
 * little of it. The emulated module has much thread-local memory, the kernels' shared memory, so these
 * are a library of their own. */
#include "races.h"

EMU_NEAR __thread emu_thread emu_now;
EMU_NEAR __thread struct emu_machine *emu_here;
EMU_NEAR __thread struct looking *races_here;
