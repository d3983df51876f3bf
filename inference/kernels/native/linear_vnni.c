/* int8 and int6 linears for AVX-512 VNNI. */
#if defined(__x86_64__)
#define NATIVE_ISA 2
#define NATIVE_VNNI
#include "vector.h"

#include "inputs.inc.h"
#include "linear.inc.h"
#include "roof.inc.h"

DEFINE_LINEAR(ISA(linear_vnni), KIND_VNNI)
DEFINE_LINEAR(ISA(linear_int6), KIND_INT6)
DEFINE_QUANTIZE(ISA(quantize_unsigned), 1)
#endif
