/* Row statistics for avx512. */
#if defined(__x86_64__)
#define NATIVE_ISA 2
#include "vector.h"

#include "rows.inc.h"
#endif
