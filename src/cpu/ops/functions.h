/* Functions of one element or two, over rows of floats: UNARY, GLU, and ops that map an element. p
 * are the words of the node's parameters as floats, from the first that the function has. y may be
 * an operand. */
#ifndef SHEAF_CPU_OPS_FUNCTIONS_H
#define SHEAF_CPU_OPS_FUNCTIONS_H

#include "cpu/kernels/kernels.h"
#include "sheaf/tensor.h"

/* Either of the two is set. */
struct sheaf__cpu_function {
    sheaf__cpu_unary_fn plain;
    sheaf__cpu_map_fn with;
    float p[4];
};

/* Of UNARY and of the ops that map an element. */
struct sheaf__cpu_function sheaf__cpu_function_of(const struct sheaf__cpu_kernels *kern,
                                                  const struct sheaf_tensor *node);

/* Of GLU: `plain` of the gate is multiplied by the value, or `both` or `with` computes the
 * whole. */
struct sheaf__cpu_gate {
    sheaf__cpu_unary_fn plain;
    sheaf__cpu_pair_fn both;
    sheaf__cpu_gate_fn with;
    float p[2];
};
struct sheaf__cpu_gate sheaf__cpu_gate_of(const struct sheaf__cpu_kernels *kern,
                                          const struct sheaf_tensor *node);

#endif
