/* bfloat16 linears with rounded inputs for AVX-512 BF16. */
#if defined(__x86_64__)
#define NATIVE_ISA 2
#define NATIVE_BF16
#include "vector.h"

#include "inputs.inc.h"
#include "linear.inc.h"
#include "roof.inc.h"

DEFINE_LINEAR(ISA(linear_rounded), KIND_ROUNDED)
DEFINE_LINEAR(ISA(linear_coded_rounded), KIND_CODED_ROUNDED)
DEFINE_ROUND(ISA(round_row))
#endif
