/* What AMX multiplies at most: four sums of each of two inputs and two weights, as linear_amx.c has them. */
#include "amx.h"
#include "roof.h"

#if defined(HAS_AMX)
#pragma GCC target("amx-tile,amx-int8,amx-bf16")
#include <immintrin.h>

#define SUMS 4

/* Of zeros the CPU multiplies a quarter more, at a higher clock, than of any other numbers. */
static void load_numbers(void) {
    uint16_t numbers[2 * AMX_ROWS * AMX_BYTES / 2];
    for (uint32_t i = 0; i < 2 * AMX_ROWS * AMX_BYTES / 2; i++)
        numbers[i] = (uint16_t)(0x3f00 | (i * 2654435761u) >> 24 | (i * 40503u & 0x8000)); /* 0.5 to 2, of both signs */
    amx_shape_linear(AMX_ROWS, AMX_ROWS);
    amx_memory_is_written();
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
    _tile_loadd(4, numbers, AMX_BYTES);
    _tile_loadd(5, (const char *)numbers + AMX_ROWS * AMX_BYTES, AMX_BYTES);
    _tile_loadd(6, numbers, AMX_BYTES);
    _tile_loadd(7, (const char *)numbers + AMX_ROWS * AMX_BYTES, AMX_BYTES);
}

#define DEFINE_PEAK(name, multiply, k)                \
    int64_t name(int64_t rounds, float *use) {        \
        (void)use; /* it isn't left out anyway */     \
        load_numbers();                               \
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
