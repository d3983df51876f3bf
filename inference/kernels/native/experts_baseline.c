/* A mixture's experts for the ISA "baseline". */
#define NATIVE_ISA 0
#include "vector.h"

#include "layer_math.inc.h"

#include "experts.inc.h"
