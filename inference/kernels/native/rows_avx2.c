/* Row statistics for avx2. */
#if defined(__x86_64__)
#define NATIVE_ISA 1
#include "vector.h"

#include "rows.inc.h"
#endif
