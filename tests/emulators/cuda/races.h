/* Races of kernels: two accesses to one byte, one of them a write, which nothing orders.
 *
 * The sources of src/cuda are compiled with -fsanitize=thread, whose calls at every access come to races.cc
 * in place of ThreadSanitizer's library, which knows neither fibers nor warps. Accesses are ordered by what
 * CUDA promises:
 *   a barrier         those of the block's threads
 *   __syncwarp        those of the warp's lanes
 *   previous_done     those of the launches before it and the thread's own behind it
 *   a launch's end    those of launches that do not start ahead
 * Shuffles, votes, tensor cores and loads of matrices order nothing. A copy that runs on writes at any time
 * until the thread that began it has waited for it.
 *
 * Shared memory is looked at within a block, device memory within all launches. Blocks and warps may run in
 * any order: what is compared is the order that is promised, not the one that was. The process ends
 * at the first race, with its two places (addr2line -Cfie FILE ADDRESS); with "races=all" in
 * SHEAF_TEST_CUDA_EMU it goes on, and says each pair of places once.
 *
 * Without SHEAF_CUDA_EMU_RACES the calls of emu.cc are empty. */
#ifndef SHEAF_CUDA_EMU_RACES_H
#define SHEAF_CUDA_EMU_RACES_H

#include "cuda_runtime.h"

/* What races.cc knows, of one OS thread. */
extern EMU_NEAR __thread struct looking *races_here;

/* What a thread has passed, counted: barriers, calls of __syncwarp and of previous_done. */
enum { BARRIERS, SYNCWARPS, WAITS, PASSED };

#ifdef SHEAF_CUDA_EMU_RACES
/* Threads have their stacks in [stacks, end); NULL: all have the caller's, whose frame begins at `end`. */
void races_begin_launch(const emu_kernel &kernel, const char *stacks, const char *end);
void races_end_launch(void);
/* The host has waited for all launches, or a copy does: the next one starts behind them. */
void races_all_done(void);
/* A block of the launch, whose dynamic shared memory is at p. */
void races_begin_block(unsigned block, const void *p, size_t size);
/* The thread that runs from now on. */
void races_run(int thread, const unsigned *passed);
/* A copy to shared memory begins, has arrived. */
void races_copy_begins(void *to, size_t size);
void races_copy_arrives(void *to, size_t size);
/* A lane reads for others of its warp. */
void races_read_by_warp(const void *p, size_t size);
#else
static inline void races_begin_launch(const emu_kernel &, const char *, const char *) {}
static inline void races_end_launch(void) {}
static inline void races_all_done(void) {}
static inline void races_begin_block(unsigned, const void *, size_t) {}
static inline void races_run(int, const unsigned *) {}
static inline void races_copy_begins(void *, size_t) {}
static inline void races_copy_arrives(void *, size_t) {}
static inline void races_read_by_warp(const void *, size_t) {}
#endif

#endif
