/* What AMX multiplies at most: four sums of each of two inputs and two weights, as linear_amx.c has them. */
#include "amx.h"
#include "roof.h"

#if defined(HAS_AMX)
#pragma GCC target("amx-tile,amx-int8,amx-bf16")
#include <immintrin.h>

#define SUMS 4

#define DEFINE_PEAK(name, multiply, k)                \
    int64_t name(int64_t rounds, float *use) {        \
        (void)use; /* it isn't left out anyway */     \
        amx_shape_linear(AMX_ROWS, AMX_ROWS);         \
        for (int64_t i = 0; i < rounds; i++) {        \
            multiply(0, 4, 6);                        \
            multiply(1, 4, 7);                        \
            multiply(2, 5, 6);                        \
            multiply(3, 5, 7);                        \
        }                                             \
        return 2 * SUMS * AMX_ROWS * AMX_ROWS * k;    \
    }
DEFINE_PEAK(peak_int8_amx, _tile_dpbusd, 64)
DEFINE_PEAK(peak_bf16_amx, _tile_dpbf16ps, 32)
#endif
