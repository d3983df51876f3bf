/* int8 linears for ARM's CPUs with SDOT: ARMv8.2's dot products, which Graviton 2 and Apple's M1 have. */
#if defined(__aarch64__)
#define NATIVE_ISA 0
#define NATIVE_DOT
#include "vector.h"

#include "inputs.inc.h"
#include "linear.inc.h"

DEFINE_LINEAR(linear_int8_dot, KIND_DOT)
DEFINE_QUANTIZE(quantize_bytes, 1)
#endif
