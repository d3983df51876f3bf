/* Linears of weights in 4 bits for any CPU. */
#define NATIVE_ISA 0
#include "vector.h"

#include "linear_bits4.inc.h"

DEFINE_BITS4_LINEAR(ISA(linear_bits4))
