/* Layers that keep a state, for the ISA "baseline". */
#define NATIVE_ISA 0
#include "vector.h"

#include "layer_math.inc.h"

#include "state.inc.h"
