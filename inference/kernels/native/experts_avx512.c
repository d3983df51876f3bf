/* A mixture's experts for the ISA "avx512". */
#if defined(__x86_64__)
#define NATIVE_ISA 2
#include "vector.h"

#include "layer_math.inc.h"

#include "experts.inc.h"
#endif
