/* Linears of weights in 8 bits for AVX-512 F, BW, VL and DQ. */
#if defined(__x86_64__)
#define NATIVE_ISA 2
#include "vector.h"

#include "linear_bits8.inc.h"

DEFINE_BITS8_LINEAR(ISA(linear_bits8))
#endif
