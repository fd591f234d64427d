/* The CPU backend: one device per NUMA domain of the process's binding, cut further by
 * SHEAF_CPU_DEVICES=n.
 *
 * Environment: SHEAF_CPU_DEVICES (devices per domain), SHEAF_CPU_THREADS (threads per device, at
 * most its cores unless the cores are shared), SHEAF_CPU_ISA (portable | sse41 | avx2 |
 * avxvnni | avx512 | avx512vbmi | avx512bf16 | amx; on ARM portable | neon | dotprod: the kernels to
 * be used), SHEAF_CPU_ACTIVATIONS (f32 | bf16 | q8), SHEAF_CPU_REPACK (0: quantized weights of a meta device stay in memory as they were
 * written; results are the same), SHEAF_CPU_PROFILE (1: a backend prints the time of each op to
 * standard error when it is freed). When several ranks of one host share a binding, each takes its
 * share of the cores. A bad value is an error that names the variable.
 *
 * Kernels for an instruction set are a module libsheaf-cpu-ISA.so, found where sheaf/module.h says.
 * No call is needed: the first use of a CPU device takes the best that the CPU runs, portable
 * ones, which are part of the library, if there is none.
 *
 * With SHEAF_CPU_ACTIVATIONS=f32, the default, products take activations with 15 bits or more.
 * q8 (--fast of sheaf-run and sheaf-bench) rounds those of products with quantized weights, of the
 * common types by any number of columns, of others by 8 or more, to 8 bits (with avx2 IQ4 and Q8_0
 * by more than 8 columns to 16 bits, IQ1, IQ2 and IQ3 never to 8). With BF16 and F16 weights and 4
 * columns or more it rounds to BF16 (8 bits of mantissa) where the CPU multiplies BF16 (avx512bf16,
 * amx), and F16 weights are rounded, too. Attention of 8 queries and more rounds queries, keys,
 * values and its weights to BF16 (avx512bf16, amx). That is faster, but the logits of different
 * splits then differ by a few percent instead of in the last digits, and so may their tokens.
 * Products of F32 weights stay exact. bf16 rounds what q8 rounds to BF16 and nothing else
 * (attention, too): twice as fast there, with logits off by some thousandths. With amx, products of
 * more than 8 columns have one BF16 of activations and weights of all types but F32 in both modes.
 * The portable kernels never round.
 *
 * The first use of amx asks Linux for the tile registers, for the whole process and for good; Linux
 * refuses, and the next best kernels serve, if a thread has an alternate signal stack too small for
 * them. */
#ifndef SHEAF_CPU_H
#define SHEAF_CPU_H

#include "sheaf/backend.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Registered by the registry itself; callers seldom need it. */
sheaf_backend_reg_t sheaf_backend_cpu_reg(void);
bool sheaf_backend_is_cpu(sheaf_backend_t backend);
int sheaf_backend_cpu_get_n_threads(sheaf_backend_t backend);
enum sheaf_status sheaf_backend_cpu_set_n_threads(sheaf_backend_t backend, int n_threads);
/* Called between nodes by the computing thread; returning true ends the compute with
 * SHEAF_STATUS_ABORTED. */
typedef bool (*sheaf_abort_fn)(void *data);
void sheaf_backend_cpu_set_abort_callback(sheaf_backend_t backend, sheaf_abort_fn callback,
                                          void *data);
/* true: run every op with its portable reference, the specification of the op. For tests. */
void sheaf_backend_cpu_set_reference(sheaf_backend_t backend, bool reference);
bool sheaf_backend_dev_is_cpu(sheaf_backend_dev_t dev);
/* The buffer type of the first CPU device; NULL (text set) if the settings allow no device. */
sheaf_backend_buffer_type_t sheaf_backend_cpu_buffer_type(void);
/* A buffer of the first CPU device around the caller's memory: as
 * sheaf_backend_dev_buffer_from_host_ptr. */
enum sheaf_status sheaf_backend_cpu_buffer_from_ptr(void *ptr, size_t size,
                                                    sheaf_backend_buffer_t *out);
/* The kinds of memory near a CPU device (DRAM, HBM: hwloc's memory attributes), the default first,
 * then the faster before the slower. Buffer types are named "CPU0", "CPU0:HBM". 0 kinds and NULL
 * for other devices or an index outside. */
size_t sheaf_backend_cpu_n_memories(sheaf_backend_dev_t dev);
sheaf_backend_buffer_type_t sheaf_backend_cpu_memory_buffer_type(sheaf_backend_dev_t dev, size_t i);
/* Name of the kernels in use, as SHEAF_CPU_ISA takes it; "?" if a setting is bad. */
const char *sheaf_cpu_isa_name(void);

#ifdef __cplusplus
}
#endif
#endif
