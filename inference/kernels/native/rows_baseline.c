/* Row statistics for baseline. */
#define NATIVE_ISA 0
#include "vector.h"

#include "rows.inc.h"
