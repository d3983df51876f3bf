/* Linears for AVX2, FMA and F16C. */
#if defined(__x86_64__)
#define NATIVE_ISA 1
#include "vector.h"

#include "inputs.inc.h"
#include "linear.inc.h"
#include "roof.inc.h"

DEFINE_LINEAR(ISA(linear_float32), KIND_FLOAT32)
DEFINE_LINEAR(ISA(linear_float16), KIND_FLOAT16)
DEFINE_LINEAR(ISA(linear_bfloat16), KIND_BFLOAT16)
DEFINE_LINEAR(ISA(linear_int8), KIND_INT8)
DEFINE_LINEAR(ISA(linear_coded), KIND_CODED)
DEFINE_QUANTIZE(ISA(quantize_signed), 0)
#endif
