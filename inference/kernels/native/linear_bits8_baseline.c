/* Linears of weights in 8 bits for any CPU. */
#define NATIVE_ISA 0
#include "vector.h"

#include "linear_bits8.inc.h"

DEFINE_BITS8_LINEAR(ISA(linear_bits8))
