/* Linears of weights in 8 bits for AVX2, FMA and F16C. */
#if defined(__x86_64__)
#define NATIVE_ISA 1
#include "vector.h"

#include "linear_bits8.inc.h"

DEFINE_BITS8_LINEAR(ISA(linear_bits8))
#endif
