/* Attention and layers for the ISA "baseline". */
#define NATIVE_ISA 0
#include "vector.h"

#include "layer_math.inc.h"

#include "attention.inc.h"

#include "layer.inc.h"
