/* Between linear.c, which knows how weights and inputs lie in memory, and the copies of linear.inc.h. */
#ifndef PARLEY_LINEAR_H
#define PARLEY_LINEAR_H

#include "native.h"

/* How the products are summed: enum Kind, and what some CPUs have for it. */
enum { KIND_ROUNDED = 4, KIND_VNNI = 5 }; /* bfloat16 with bfloat16 inputs; int8 with VPDPBUSD */

typedef struct Tile {
    const Linear *linear;
    const char *x; /* row 0 of the inputs, as this kind takes them */
    int64_t x_stride; /* bytes */
    int64_t x_bytes; /* of one input */
    const float *x_scales; /* int8: by row */
    const char *w;
    int64_t panel_bytes, panel_step; /* of a panel; of a panel's outputs at one k */
    int64_t row_from, row_to, panel_from, panel_to;
    float *y; /* row 0, column 0 */
    int64_t y_stride; /* floats */
} Tile;

typedef void TileFunction(const Tile *tile);

#define DECLARE_LINEARS(isa) \
    TileFunction linear_float32_##isa, linear_float16_##isa, linear_bfloat16_##isa, linear_int8_##isa
DECLARE_LINEARS(baseline);
#if defined(__x86_64__)
DECLARE_LINEARS(avx2);
DECLARE_LINEARS(avx512);
TileFunction linear_vnni_avx512, linear_rounded_avx512;
#endif

/* Preparing a row of inputs, in the same ISAs. `k` is rounded up; what lies beyond is zeros. */
typedef float QuantizeFunction(const float *x, int64_t k, void *row); /* returns the scale */
typedef void RoundFunction(const float *x, int64_t k, uint16_t *row);
QuantizeFunction quantize_signed_baseline;
#if defined(__x86_64__)
QuantizeFunction quantize_signed_avx2, quantize_signed_avx512, quantize_unsigned_avx512;
RoundFunction round_row_avx512;
#endif

#endif
