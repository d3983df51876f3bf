/* Linears of weights in 4 bits for AVX2 and FMA. */
#if defined(__x86_64__)
#define NATIVE_ISA 1
#include "vector.h"

#include "linear_bits4.inc.h"

DEFINE_BITS4_LINEAR(ISA(linear_bits4))
#endif
