/* All public headers of sheaf. */
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
