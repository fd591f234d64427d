/* All public headers of sheaf. Rules that hold in all of them:
 *
 * Structs that may grow begin with `size_t size`. In those that a caller passes, the caller sets it
 * to sizeof: the library reads members past it as zero, and writes none past it, so a program keeps
 * working with a newer library. A size that no version of the library has had (0, or more than this
 * one's) is INVALID. In those that a callback gets it is "set by the library", to what
 * the library knows. Structs without `size` do not grow.
 *
 * Handles that ggml has too are typedefs of pointers with its names (sheaf_backend_t,
 * sheaf_gallocr_t); all others are pointers to structs (struct sheaf_comm *).
 *
 * Types of callbacks end in _fn. A callback gets the `user` pointer that was given with it. */
#ifndef SHEAF_SHEAF_H
#define SHEAF_SHEAF_H

#include "sheaf/alloc.h"
#include "sheaf/backend.h"
#include "sheaf/comm-bench.h"
#include "sheaf/comm.h"
#include "sheaf/cpu.h"
#include "sheaf/gguf.h"
#include "sheaf/graph.h"
#include "sheaf/link.h"
#include "sheaf/log.h"
#include "sheaf/meta.h"
#include "sheaf/module.h"
#include "sheaf/ops.h"
#include "sheaf/sched.h"
#include "sheaf/settings.h"
#include "sheaf/split.h"
#include "sheaf/status.h"
#include "sheaf/tensor.h"
#include "sheaf/trace.h"
#include "sheaf/type.h"
#include "sheaf/version.h"
#include "sheaf/world.h"

#endif
