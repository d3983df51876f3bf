/* Between roof.c and the copies of roof.inc.h. */
#ifndef PARLEY_ROOF_H
#define PARLEY_ROOF_H

#include "native.h"

typedef float ReadFunction(const float *x, int64_t count);
typedef int64_t PeakFunction(int64_t rounds, float *use);
ReadFunction read_memory_baseline, read_memory_avx2, read_memory_avx512;
PeakFunction peak_float_baseline, peak_float_avx2, peak_float_avx512, peak_int8_avx2, peak_vnni_avx512, peak_bf16_avx512;
PeakFunction peak_int8_amx, peak_bf16_amx;

#endif
