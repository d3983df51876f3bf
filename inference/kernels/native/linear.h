/* Between linear.c, which knows how weights and inputs lie in memory, and the copies of linear.inc.h. */
#ifndef PARLEY_LINEAR_H
#define PARLEY_LINEAR_H

#include "native.h"

/* How the products are summed: enum Kind, and what some CPUs have for it. */
enum { KIND_ROUNDED = 8, KIND_VNNI = 9, KIND_CODED_ROUNDED = 10 }; /* with bfloat16 inputs; int8 with VPDPBUSD, as int6 */
enum { KIND_WIDENED = 11 }; /* float32's panel, made of the weights by a block before */
enum { KIND_SPLIT = 12, KIND_CODED_SPLIT = 13 }; /* with inputs as sums of three numbers of bfloat16 (linear_amx.c) */
enum { KIND_DOT = 14 }; /* int8 with SDOT */

/* bfloat16 in 12 bits. A weight's lower byte is stored as it is; of its upper byte, which is the sign and the upper
 * seven bits of the exponent, there is a code of four: bit 3 the sign, bits 2-0 what the seven are above half of the
 * panel's base. Trained weights have few exponents beyond these 16 (Zhang et al. 2025, DFloat11: an entropy of under 3
 * bits), and those that have are listed. Four k of a panel are a quad of three lines, 64 bytes each: A with the lower
 * bytes of the first two k, B with those of the others, C with the codes, bits 3-0 for A's byte at the same place and
 * 7-4 for B's.
 *
 * Bytes lie so that interleaving a vector of a line with one of upper bytes, as SIMD does it by groups of 16 bytes,
 * gives two vectors of words in the order of bfloat16's panel. So vectors' length matters: linear->lanes. */
#define QUAD 4
#define QUAD_WEIGHTS (QUAD * PANEL)
#define QUAD_BYTES 192

/* int8 whose lower two bits are zeros, without them: eight k of a panel are four lines of int8's panel, of which the
 * first three lie here, with the fourth's bits 7-6, 5-4 and 3-2 in the bits that are free. */
#define EIGHT 8
#define EIGHT_LINES 4
#define EIGHT_BYTES 192

/* Weights in 4 bits: w = scale (level[code] + zero), a scale and maybe a zero for each group of k of each output. In 8
 * bits: w = scale number. */
#define CODES_GROUP 128 /* of k at most */
#define BITS4_CODES 8 /* of a word */
#define BITS4_BYTES (4 * PANEL) /* of so many k of a panel */

typedef struct Exception {
    uint32_t at; /* in its panel: quad * QUAD_WEIGHTS + the place that it has in four k of bfloat16's panel */
    uint16_t bits, unused;
} Exception;

#define NO_EXCEPTION UINT32_MAX /* `at` of the last one of a panel */

typedef struct Packing {
    const Linear *linear;
    char *packed;
    char *rows; /* (n, k), or where rows are unpacked to */
    const int64_t *ids;
    int64_t count;
} Packing;

/* KIND_CODED (linear_coded.c): pack a panel; unpack row n of W. */
void coded_pack_panel(const Packing *packing, int64_t panel);
void coded_unpack_row(const Linear *linear, int64_t n, uint16_t *row);

/* KIND_INT6 (linear_int6.c), the same. */
void int6_pack_panel(const Packing *packing, int64_t panel);
void int6_unpack_row(const Linear *linear, int64_t n, int8_t *row);

static inline int is_split(int kind) { return kind == KIND_SPLIT || kind == KIND_CODED_SPLIT; }

typedef struct Tile {
    const Linear *linear;
    const char *x; /* row 0 of the inputs, as this kind takes them */
    int64_t x_stride; /* bytes */
    int64_t x_bytes; /* of one input */
    const float *x_scales; /* int8: by row */
    const int32_t *x_pairs; /* the same of KIND_INT8, where AVX2 multiplies: see linear_int8.inc.h */
    const char *w;
    int64_t panel_bytes, panel_step; /* of a panel; of a panel's outputs at one k */
    int64_t row_from, row_to, panel_from, panel_to;
    float *y; /* row 0, column 0 */
    int64_t y_stride; /* floats */
} Tile;

typedef void TileFunction(const Tile *tile);

#define DECLARE_LINEARS(isa) \
    TileFunction linear_float32_##isa, linear_float16_##isa, linear_bfloat16_##isa, linear_int8_##isa, \
        linear_coded_##isa, linear_bits4_##isa, linear_bits8_##isa
DECLARE_LINEARS(baseline);
#if defined(__x86_64__)
DECLARE_LINEARS(avx2);
DECLARE_LINEARS(avx512);
TileFunction linear_vnni_avx512, linear_int6_avx512, linear_rounded_avx512, linear_coded_rounded_avx512;
TileFunction linear_rounded_amx, linear_coded_rounded_amx, linear_split_amx, linear_coded_split_amx, linear_int8_amx,
    linear_int6_amx;
#elif defined(__aarch64__)
TileFunction linear_int8_dot;
#endif

/* Preparing a row of inputs, in the same ISAs. `k` is rounded up; what lies beyond is zeros. */
typedef float QuantizeFunction(const float *x, int64_t k, void *row, int32_t *pairs); /* returns the scale */
typedef void RoundFunction(const float *x, int64_t k, uint16_t *row);
QuantizeFunction quantize_signed_baseline;
#if defined(__x86_64__)
QuantizeFunction quantize_signed_avx2, quantize_signed_avx512, quantize_unsigned_avx512;
RoundFunction round_row_avx512, split_row_amx;
#elif defined(__aarch64__)
QuantizeFunction quantize_bytes;
#endif

#endif
