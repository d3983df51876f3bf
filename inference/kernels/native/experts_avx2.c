/* A mixture's experts for the ISA "avx2". */
#if defined(__x86_64__)
#define NATIVE_ISA 1
#include "vector.h"

#include "layer_math.inc.h"

#include "experts.inc.h"
#endif
